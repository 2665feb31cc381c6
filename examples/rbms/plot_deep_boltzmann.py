"""
Deep Boltzmann machine of digits: two layers, samples, bounds
=============================================================

A deep Boltzmann machine with two hidden layers, each coupled to the one
below, is fitted to digits. The example shows what the units of either layer
represent, what the model draws, and how tight the bounds of its likelihood
are.
"""

# %%
# A fit
# -----
# The pixels of the digits are bits. RBMs of neighbouring layers are trained
# first, then all layers together. Likelihoods are lower bounds here,
# because the hidden layers depend on each other given a digit.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from skebm import DeepBoltzmannMachine
from skebm.training import SGD

digits = load_digits()
X = (digits.data > 7).astype(float)
train, test, y_train, y_test = train_test_split(
    X, digits.target, random_state=0
)
model = DeepBoltzmannMachine(
    (64, 32),
    n_iter=120,
    pretraining="layerwise",
    optimizer=SGD(schedule="linear"),
    random_state=0,
).fit(train)

inferred = model.posterior_means(test)
bound = inferred.bound.mean() - model.log_partition_
print(f"mean of new digits: {model.bound_kind_} bounds")
print(f"variational bound      {bound:.2f} nats")
print(f"100 importance weights {model.score_samples(test).mean():.2f}")
print(f"at the largest log Z   {model.score(test):.2f}")
print(f"mean field takes {inferred.n_steps.mean():.1f} steps a row")

# %%
# Both layers
# -----------
# The figure shows the weights of units of the first layer, those of the
# second layer as combinations of the first, W2 W1, and samples beside
# digits.


def strongest(filters, n=20):
    """The filters with the largest weights, scaled to [-1, 1]."""
    largest = filters[np.argsort(-np.abs(filters).sum(1))[:n]]
    return largest / np.abs(largest).max(1, keepdims=True)


def tiled(rows, n_down=5):
    """One picture of images of 8 x 8 pixels, with gaps."""
    images = rows.reshape(n_down, -1, 8, 8)
    framed = np.pad(images, [(0, 0)] * 2 + [(1, 1)] * 2, constant_values=0)
    return framed.transpose(0, 2, 1, 3).reshape(10 * n_down, -1)


first, second = model.weights_
panels = {
    "first layer": (strongest(first), "RdBu_r", -1),
    "second layer": (strongest(second @ first), "RdBu_r", -1),
    "new digits": (test[:20], "gray_r", 0),
    "samples": (model.sample(20, random_state=0), "gray_r", 0),
}
figure, axes = plt.subplots(1, 4, figsize=(8, 2.7))
for ax, (title, panel) in zip(axes, panels.items(), strict=True):
    rows, colours, lowest = panel
    ax.imshow(tiled(rows), cmap=colours, vmin=lowest, vmax=1)
    ax.set(title=title, xticks=[], yticks=[], frame_on=False)
plt.show()

# %%
# Features
# --------
# The features are the means of all hidden units. A linear classifier is
# fitted to them and, for comparison, to the pixels.

few = slice(0, 200)
features = {"pixels": lambda Z: Z, "both layers": model.transform}
print("accuracy with 200 labels")
for name, feature in features.items():
    classifier = LogisticRegression(max_iter=2000)
    classifier.fit(feature(train[few]), y_train[few])
    print(f"  {name:12} {classifier.score(feature(test), y_test):.3f}")
