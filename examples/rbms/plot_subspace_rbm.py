"""
Subspace RBM of shifted digits: filters by gate
===============================================

A gate of a subspace RBM controls several units, and is on if one or more of
their filters match the image. The filters of a gate become variants of each
other, and gates change less than the units of an RBM if an image moves.
"""

# %%
# Digits that are shifted
# -----------------------
# Images of 8 x 8 bits are placed within 10 x 10 pixels, moved by up to a
# pixel in each direction.

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
settings = {
    "base": "independent",
    "learning_rate": 0.1,
    "n_iter": 100,
    "random_state": 0,
}
gates = SubspaceRBM(16, 4, **settings).fit(X)
plain = RBMEstimator(64, **settings).fit(X)

# %%
# Filters
# -------
# Each row of four images shows the filters of one gate.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(8, 9, figsize=(6, 5.5), layout="constrained")
largest = np.abs(gates.components_).max() / 2
for number, filters in enumerate(gates.components_):
    first = 5 * (number // 8)
    for ax, one in zip(
        axes[number % 8, first : first + 4], filters, strict=True
    ):
        ax.imshow(
            one.reshape(10, 10), cmap="RdBu_r", vmin=-largest, vmax=largest
        )
for ax in axes.flat:
    ax.axis("off")
plt.show()

# %%
# Features of an image that moves
# -------------------------------
# The features of an image are correlated with those of the same image moved
# by a pixel. The correlations are averaged over images.

moved = placed(digits, np.full((len(digits), 2), (1, 2)))
still = placed(digits, np.full((len(digits), 2), (1, 1)))
for name, model in (("gates", gates), ("units of an RBM", plain)):
    pairs = zip(model.transform(still), model.transform(moved), strict=True)
    print(
        f"{name}: {np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]):.2f}"
    )
