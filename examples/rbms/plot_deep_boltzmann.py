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

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from skebm import DeepBoltzmannMachine

digits = load_digits()
X = (digits.data > 7).astype(float)
train, test, y_train, y_test = train_test_split(
    X, digits.target, random_state=0
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model = DeepBoltzmannMachine(
        (64, 32), n_iter=250, pretraining="layerwise", random_state=0
    ).fit(train)

inferred = model.posterior_means(test)
print(
    f"likelihoods are {model.bound_kind_} bounds; log Z by {model.log_partition_method_}"
)
print(
    f"variational bound      {inferred.bound.mean() - model.log_partition_:.2f} nats"
)
print(f"100 importance weights {model.score_samples(test).mean():.2f}")
print(f"at the largest log Z   {model.score(test):.2f}")
print(f"mean field takes {inferred.n_steps.mean():.1f} steps a row")

# %%
# Both layers
# -----------
# The figure shows the weights of units of the first layer, those of the
# second layer as combinations of the first, W2 W1, and samples.

first, second = model.weights_
samples = model.sample(16, random_state=0)
shown = {
    "first layer": first[np.argsort(-np.abs(first).sum(1))[:16]],
    "second layer": (second @ first)[
        np.argsort(-np.abs(second @ first).sum(1))[:16]
    ],
    "samples": samples,
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2))
for axis, (title, rows) in zip(axes, shown.items(), strict=True):
    image = rows.reshape(4, 4, 8, 8).transpose(0, 2, 1, 3).reshape(32, 32)
    limit = np.abs(image).max()
    axis.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set_title(title)
    axis.set_xticks([]), axis.set_yticks([])
figure.tight_layout()

# %%
# Features
# --------
# The features are the means of all hidden units. A linear classifier is
# fitted to them and, for comparison, to the pixels.

few = slice(0, 200)
for name, features in {
    "pixels": lambda Z: Z,
    "both layers": model.transform,
}.items():
    classifier = LogisticRegression(max_iter=2000).fit(
        features(train[few]), y_train[few]
    )
    print(
        f"{name:12} accuracy with 200 labels {classifier.score(features(test), y_test):.3f}"
    )
plt.show()
