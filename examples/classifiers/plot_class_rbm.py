"""
Classification RBM of digits: few labels, many rows
===================================================

A restricted Boltzmann machine of images and their classes has exact class
probabilities and a density of the images. It also learns from images
without labels, and draws digits of a given class.
"""

# %%
# Ten labels of each class
# ------------------------
# Only a hundred of the 1,297 training images have a label; the others are
# marked by -1. For comparison, the same classifier is also fitted without
# the unlabelled images, and so is one that learns class probabilities
# alone.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.datasets import load_digits

from skebm import RBMClassifier

X, y = load_digits(return_X_y=True)
X = X / 16  # pixels as probabilities of bits
X_train, X_test, y_train, y_test = X[:1297], X[1297:], y[:1297], y[1297:]

rng = np.random.default_rng(0)
few = np.full_like(y_train, -1)
for digit in range(10):
    few[rng.permutation(np.flatnonzero(y_train == digit))[:10]] = digit
known = few >= 0

first = RBMClassifier(
    100, objective="discriminative", n_iter=60, random_state=0
)
hybrid = RBMClassifier(100, n_iter=60, random_state=0)
semi = RBMClassifier(100, n_iter=60, unlabeled=-1, random_state=0)
first.fit(X_train[known], few[known])
hybrid.fit(X_train[known], few[known])
semi.fit(X_train, few)
models = {
    "p(y | x) alone, 100 images": first,
    "p(x, y), 100 images": hybrid,
    "p(x, y), all images": semi,
}
print(f"accuracy on {len(X_test)} test images")
for name, model in models.items():
    print(f"  {name:26} {model.score(X_test, y_test):.1%}")

# %%
# What the other images add
# -------------------------
# Test images that the classifier of a hundred images takes for another
# class, and that the one of all images recognises.

import matplotlib.pyplot as plt

by_few, by_all = hybrid.predict(X_test), semi.predict(X_test)
mended = np.flatnonzero((by_few != y_test) & (by_all == y_test))[:16]
figure, axes = plt.subplots(2, 8, figsize=(7, 2.8))
for ax, k in zip(axes.flat, mended, strict=True):
    ax.imshow(X_test[k].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], frame_on=False)
    ax.set_title(f"{by_few[k]} → {by_all[k]}")
figure.suptitle("class by a hundred images → class by all images")
plt.show()

# %%
# The density of each class
# -------------------------
# Chains of p(x given y) start at images that are chosen in proportion to
# p(y given x). The means of a hundred draws of each class are shown below
# those of the test images.

draws = [semi.sample(100, y=k, random_state=0).mean(0) for k in range(10)]
means = {
    "test images": [X_test[y_test == k].mean(0) for k in range(10)],
    "draws given y": draws,
}
figure, axes = plt.subplots(2, 10, figsize=(7.5, 1.7))
for line, (name, images) in zip(axes, means.items(), strict=True):
    for ax, image in zip(line, images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %%
# Images that are no digits
# -------------------------
# The largest class probability may be near 1 for any image; the energy
# shows which images are not digits.

noise = rng.permuted(X_test, axis=1)
for name, rows in (("digits", X_test), ("pixels shuffled", noise)):
    sure = semi.predict_proba(rows).max(1).mean()
    energy = semi.energy(rows).mean()
    print(
        f"{name:15} largest p(y | x) {sure:.2f}, energy {energy:4.0f} nats"
    )
