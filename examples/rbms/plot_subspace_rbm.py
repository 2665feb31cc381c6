"""
Subspace RBM of shifted digits: filters by gate
===============================================

A gate of a subspace RBM controls several units, and is on if one or more of
their filters match the image. The filters of a gate become variants of each
other, and gates change less than the units of an RBM if an image moves a
little.
"""

# %%
# Digits that are shifted
# -----------------------
# Images of 8 x 8 bits are placed within 10 x 10 pixels, moved by up to a
# pixel in each direction.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.datasets import load_digits

from skebm import RBMEstimator, SubspaceRBM

digits = load_digits().data.reshape(-1, 8, 8) >= 8
rng = np.random.default_rng(0)


def placed(images, shifts):
    """Rows of images within 10 x 10 pixels, moved down and to the right."""
    rows = np.zeros((len(images), 10, 10))
    for row, image, (i, j) in zip(rows, images, shifts, strict=True):
        row[i : i + 8, j : j + 8] = image
    return rows.reshape(len(images), -1)


X = placed(digits, rng.integers(0, 3, (len(digits), 2)))

# %%
# Thirty-two gates of four units each, beside an RBM of as many units:

settings = {
    "base": "independent",
    "learning_rate": 0.1,
    "n_iter": 100,
    "random_state": 0,
}
gates = SubspaceRBM(32, 4, **settings).fit(X)
plain = RBMEstimator(128, **settings).fit(X)

# %%
# Filters, and an image that moves
# --------------------------------
# The left panel has the four filters of each of the five gates with the
# largest weights, one gate in each line. An image is then moved by one
# pixel after the other, down and to the right in turn. The right panel
# shows the correlation of its features with those before the first move, as
# a mean over images: over the first two moves, gates change less than the
# units of the RBM.

import matplotlib.pyplot as plt


def tiled(rows):
    """One picture of images of 10 x 10 pixels, four in a line."""
    images = rows.reshape(-1, 4, 10, 10)
    framed = np.pad(images, [(0, 0)] * 2 + [(1, 1)] * 2)
    return framed.transpose(0, 2, 1, 3).reshape(-1, 48)


def correlation(model, move):
    """Of the features of an image with those of the moved one."""
    features = [
        model.transform(placed(digits, np.full((len(digits), 2), place)))
        for place in ((0, 0), move)
    ]
    pairs = zip(*features, strict=True)
    return np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])


strongest = np.argsort(-np.square(gates.components_).sum((1, 2)))[:5]
filters = gates.components_[strongest].reshape(20, -1)
moves = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(7.5, 4), width_ratios=[1, 1.15]
)
size = np.quantile(np.abs(filters), 0.995)
left.imshow(tiled(filters), cmap="RdBu_r", vmin=-size, vmax=size)
left.set(title="filters of five gates", xticks=[], yticks=[])
left.set(frame_on=False)
for name, model in {"gates": gates, "units of an RBM": plain}.items():
    values = [correlation(model, move) for move in moves]
    right.plot(range(5), values, "o-", label=name)
    print(f"{name}: {np.round(values, 2)}")
right.set(xlabel="moves by one pixel", ylabel="correlation of the features")
right.axhline(0, color="0.8", linewidth=1, zorder=0)
right.set_xticks(range(5))
right.legend(loc="upper right")
plt.show()
