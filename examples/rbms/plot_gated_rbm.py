"""
Gated RBM of pairs of images: analogies of digits
=================================================

A gated restricted Boltzmann machine learns how the second image of a pair
is made from the first. It is trained on pairs of images, the second of
which is the first one shifted, sheared or rotated, and is never told which
of these applies. The mapping units that it infers from a pair represent the
relation, which can then be applied to another digit: a is to b as c is to
what?

The digits below are not among those that the model was trained on.
"""

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from skebm import GatedRBM

# %%
# Pairs of images
# ---------------
# There are six relations: shifts in four directions, a shear, and a
# rotation. Half of the training pairs are random dots, which show a
# relation at every pixel, whereas digits show it only at their strokes.

RELATIONS = ("up", "down", "left", "right", "shear", "rotation")
angle = np.radians(-30)
MATRICES = {
    "shear": np.array([[1, 0], [0.5, 1]]),
    "rotation": np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    ),
}
SHIFTS = {"up": (-2, 0), "down": (2, 0), "left": (0, -2), "right": (0, 2)}


def apply(image, relation):
    """An image of 12 x 12 pixels, changed."""
    if relation in SHIFTS:
        return np.roll(image, SHIFTS[relation], (0, 1))
    matrix, centre = MATRICES[relation], np.full(2, 5.5)
    offset = centre - matrix @ centre
    return np.clip(affine_transform(image, matrix, offset, order=1), 0, 1)


digits = np.pad(load_digits().images / 16, ((0, 0), (2, 2), (2, 2)))
rng = np.random.default_rng(0)


def pairs(images, n):
    """Flat images x and y, and the numbers of their relations."""
    which = rng.integers(0, len(RELATIONS), n)
    chosen = images[rng.integers(0, len(images), n)]
    Y = np.stack(
        [apply(x, RELATIONS[k]) for x, k in zip(chosen, which, strict=True)]
    )
    return chosen.reshape(n, -1), Y.reshape(n, -1), which


X, Y, relation = pairs(digits[:1400], 8_000)
dots = (rng.random((8_000, 12, 12)) < 0.15).astype(float)
X_dots, Y_dots, _ = pairs(dots, 8_000)
X_new, Y_new, relation_new = pairs(digits[1400:], 2000)

# %%
# The relation, read from the mapping units
# -----------------------------------------
# `fit` does not use the labels of the relations. A linear classifier that
# is trained on the mapping units of 2,000 training pairs recognises the
# relations of pairs of new digits.

model = GatedRBM(60, 120, n_iter=40, random_state=0)
model.fit(np.vstack([X, X_dots]), np.vstack([Y, Y_dots]))
mapping = model.transform(X_new, Y_new)
read_out = LogisticRegression(C=10, max_iter=1000)
read_out.fit(model.transform(X[:2000], Y[:2000]), relation[:2000])
right = read_out.score(mapping, relation_new)
print(f"relations of new pairs that are recognised: {right:.1%}")

# %%
# a is to b as c is to ?
# ----------------------
# Mapping units are inferred from the pair (a, b) and applied to two other
# digits. A single pair shows only the part of the relation that its own
# strokes reveal; the mean over fifty pairs shows more of it.

others = np.flatnonzero(relation_new == 0)[[0, 1]]
titles = ["a", "b"] + 2 * ["c", "one pair", "fifty"]
fig, axes = plt.subplots(len(RELATIONS), len(titles), figsize=(7.2, 5.6))
for row, name in zip(axes, RELATIONS, strict=True):
    same = np.flatnonzero(relation_new == RELATIONS.index(name))
    by_one = model.predict(X_new[others], mapping[same[3]])
    by_many = model.predict(X_new[others], mapping[same[:50]].mean(0))
    shown = [X_new[same[3]], Y_new[same[3]]]
    for images in zip(X_new[others], by_one, by_many, strict=True):
        shown += images
    for ax, image in zip(row, shown, strict=True):
        ax.imshow(image.reshape(12, 12), cmap="gray_r", vmin=-0.06, vmax=1)
        ax.set(xticks=[], yticks=[], frame_on=False)
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
for ax, title in zip(axes[0], titles, strict=True):
    ax.set_title(title)
plt.show()

# %%
# Filters
# -------
# The filters that a factor has for x and for y are alike up to the
# relation: they show the same pattern in different places.

strength = np.linalg.norm(model.components_, axis=1)
strength *= np.linalg.norm(model.mapping_components_, axis=1)
both = {"of x": model.given_components_, "of y": model.components_}
fig, axes = plt.subplots(2, 10, figsize=(7.2, 1.7))
for line, (name, filters) in zip(axes, both.items(), strict=True):
    for ax, f in zip(line, np.argsort(-strength)[:10], strict=True):
        size = np.abs(filters[f]).max()
        image = filters[f].reshape(12, 12)
        ax.imshow(image, cmap="RdBu_r", vmin=-size, vmax=size)
        ax.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
