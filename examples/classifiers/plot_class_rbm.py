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

models = {
    "discriminative, 100 images": RBMClassifier(
        objective="discriminative", random_state=0
    ),
    "hybrid, 100 images": RBMClassifier(random_state=0),
    "hybrid, 1,297 images": RBMClassifier(unlabeled=-1, random_state=0),
}
for name, model in models.items():
    rows = slice(None) if "1,297" in name else known
    model.fit(X_train[rows], few[rows])
    print(
        f"{name}: {100 * model.score(X_test, y_test):.1f} % of test images right"
    )

# %%
# Digits of each class
# --------------------
# Chains of p(x given y) start at images that are chosen in proportion to
# p(y given x).

import matplotlib.pyplot as plt

semi = models["hybrid, 1,297 images"]
figure, axes = plt.subplots(5, 10, figsize=(8, 4), layout="constrained")
for digit, column in enumerate(axes.T):
    images = semi.sample(len(column), y=digit, random_state=0)
    for ax, image in zip(column, images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r")
        ax.axis("off")
plt.show()

# %%
# Images that are no digits
# -------------------------
# The largest class probability may be near 1 for any image; the energy
# shows which images are not digits.

noise = rng.permuted(X_test, axis=1)
for name, rows in (("digits", X_test), ("pixels shuffled", noise)):
    sure = semi.predict_proba(rows).max(1).mean()
    print(
        f"{name}: largest probability {sure:.2f}, energy {semi.energy(rows).mean():.0f} nats"
    )
