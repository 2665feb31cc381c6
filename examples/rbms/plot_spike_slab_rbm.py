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
# The images are 8 pixels high and, without the column at the left, which is
# nearly always empty, 7 pixels wide. Pixel values are integers from 0
# to 16. Uniform noise as wide as the gap between them is added, so that
# they have a density. The base of both RBMs is the same normal
# distribution.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture

from skebm import RBMEstimator, SpikeSlabRBM
from skebm.partition import AISBracket
from skebm.training import SGD

rng = np.random.default_rng(0)
X = load_digits().images[:, :, 1:].reshape(-1, 56)
X = X + rng.uniform(size=X.shape)
train, test = X[:1400], X[1400:]

settings = {
    "batch_size": 100,
    "learning_rate": 0.1,
    "n_iter": 200,
    "optimizer": SGD(schedule="linear"),
    "partition": AISBracket(n_betas=1000, n_steps=100),
    "random_state": 0,
}
models = {
    "one normal distribution": GaussianMixture(reg_covar=0.1),
    "Gaussian RBM": RBMEstimator(64, base="gaussian", **settings),
    "spike-and-slab RBM": SpikeSlabRBM(64, **settings),
}
print("mean log-likelihood of test images, in nats")
for name, model in models.items():
    model.fit(train)
    print(f"  {name:23} {model.score_samples(test).mean():.1f}")

# %%
# Filters and samples
# -------------------
# The left panel shows the directions in which units with the largest
# weights move images, the right panel samples of the model. These have the
# noise that was added to the grey levels.

import matplotlib.pyplot as plt

model = models["spike-and-slab RBM"]
order = np.argsort(-np.linalg.norm(model.components_, axis=1))
filters = model.filters_[order[:24]]
filters = filters / np.abs(filters).max(1, keepdims=True)
samples = model.sample(24, random_state=0)


def tiled(rows, gap):
    """One picture of images of 8 x 7 pixels, six in a line."""
    images = rows.reshape(4, 6, 8, 7)
    framed = np.pad(
        images, [(0, 0)] * 2 + [(1, 1)] * 2, constant_values=gap
    )
    return framed.transpose(0, 2, 1, 3).reshape(40, 54)


figure, axes = plt.subplots(1, 2, figsize=(7.5, 3))
axes[0].imshow(tiled(filters, 0), cmap="RdBu_r", vmin=-1, vmax=1)
axes[1].imshow(tiled(samples, 0), cmap="gray_r", vmin=0, vmax=17)
for ax, title in zip(axes, ("filters", "samples"), strict=True):
    ax.set(title=title, xticks=[], yticks=[], frame_on=False)
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
    units = np.argsort(-typical)[:5]
    print(f"on more often in {digit} than in others: units {units}")
