"""
Spike-and-slab RBM of digits: filters and samples
=================================================

Hidden units of a Gaussian RBM move the mean of the pixels; given these
units, the covariance of the pixels is the same for all images. Units of a
spike-and-slab RBM also change the covariance: a unit that is off suppresses
variation along its filter, and a unit that is on allows it.
"""

# %%
# Likelihoods
# -----------
# Pixel values are integers from 0 to 16. Uniform noise as wide as the gap
# between them is added, so that they have a density. The base of both RBMs
# is the same normal distribution.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture

from skebm import RBMEstimator, SpikeSlabRBM
from skebm.partition import AISBracket
from skebm.training import SGD

rng = np.random.default_rng(0)
X = load_digits().data
X = X + rng.uniform(size=X.shape)
train, test = X[:1400], X[1400:]

settings = {
    "batch_size": 100,
    "learning_rate": 0.05,
    "n_iter": 150,
    "optimizer": SGD(schedule="linear"),
    "partition": AISBracket(n_betas=300, n_steps=100),
    "random_state": 0,
}
models = {
    "one normal distribution": GaussianMixture(reg_covar=0.1),
    "Gaussian RBM": RBMEstimator(64, base="gaussian", **settings),
    "spike-and-slab RBM": SpikeSlabRBM(64, **settings),
}
for name, model in models.items():
    model.fit(train)
    print(
        f"{name}: {model.score_samples(test).mean():.1f} nats of a test image"
    )

# %%
# Filters and samples
# -------------------
# The left panel shows the directions in which units with the largest
# weights move images, the right panel samples of the model.

import matplotlib.pyplot as plt

model = models["spike-and-slab RBM"]
order = np.argsort(-np.linalg.norm(model.components_, axis=1))
filters = model.filters_[order[:40]]
filters = filters / np.abs(filters).max(1, keepdims=True)
samples = model.sample(40, random_state=0)

figure = plt.figure(figsize=(9, 4.6), layout="constrained")
left, right = figure.subfigures(1, 2)
left.suptitle("filters")
right.suptitle("samples")
for part, images, colours in (
    (left, filters, {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}),
    (right, samples, {"cmap": "gray_r", "vmin": 0, "vmax": 17}),
):
    for ax, image in zip(part.subplots(5, 8).flat, images, strict=True):
        ax.imshow(image.reshape(8, 8), **colours)
        ax.axis("off")
plt.show()

# %%
# Spikes as features
# ------------------
# The output states how many of the units are on, and how that differs
# between digits.

y = load_digits().target
spikes = model.transform(X)
print(f"{spikes.mean():.0%} of the units are on in an image")
for digit in range(3):
    typical = spikes[y == digit].mean(0) - spikes.mean(0)
    print(
        f"digit {digit}: units {np.argsort(-typical)[:5]} are on more often than in others"
    )
