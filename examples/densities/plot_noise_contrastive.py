"""
Noise contrastive estimation: two rings and parity of bits
==========================================================

``NCEDensity`` trains a classifier to discriminate data from draws of a
known noise distribution. The classifier learns the ratio of the two
densities, and thereby the density of the data and its log Z.
"""

# %%
# Two rings
# ---------
# The rows lie on two circles, with Gaussian noise, so that their density is
# known. The noise of the classifier is one Gaussian. Random Fourier
# features let the network follow narrow shapes.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_circles
from sklearn.neighbors import KernelDensity

from skebm import NCEDensity
from skebm.energies import MLP
from skebm.inspection import TrainingDisplay

X, _ = make_circles(4000, noise=0.07, factor=0.5, random_state=0)
train, test = X[:2000], X[2000:]
truth = KernelDensity(bandwidth=0.07).fit(make_circles(1000, factor=0.5)[0])


def divergence(model):
    """KL divergence from the truth, in nats, and its standard error."""
    gap = truth.score_samples(test) - model.score_samples(test)
    return gap.mean(), gap.std() / len(gap) ** 0.5


network = MLP(n_frequencies=32)
model = NCEDensity(network, noise="gaussian", random_state=0).fit(train)
noise = NCEDensity(noise="gaussian", n_iter=0, random_state=0).fit(train)
for name, density in {"noise": noise, "model": model}.items():
    kl, error = divergence(density)
    print(f"{name}: KL to the truth {kl:.3f} nats, error {error:.3f}")

# %%
# Rows, noise and samples
# -----------------------
# All panels have the same colours.

side = np.linspace(-1.6, 1.6, 121)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
panels = {
    "truth, 400 rows": (truth, train[:400]),
    "noise, 400 draws": (noise, noise.sample(400, random_state=0)),
    "model, 400 samples": (model, model.sample(400, random_state=0)),
}
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), sharey=True)
for ax, (title, (density, rows)) in zip(axes, panels.items(), strict=True):
    p = np.exp(density.score_samples(grid)).reshape(len(side), -1)
    ax.pcolormesh(side, side, p, vmin=0, vmax=1, rasterized=True)
    ax.plot(*rows.T, ".", color="C1", markersize=2)
    ax.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect=1, title=title)
    ax.set(xticks=[], yticks=[], frame_on=False)
plt.show()

# %%
# Which noise, and how much of it
# -------------------------------
# Two parameters matter most: the noise distribution, and the number of
# draws per row. A noise that is near the data leaves little to learn.

more = NCEDensity(
    network, noise="gaussian", noise_ratio=4, random_state=0
).fit(train)
near = NCEDensity(network, noise="mixture", random_state=0).fit(train)
fits = {
    "Gaussian, a draw per row": model,
    "Gaussian, four draws": more,
    "mixture, a draw per row": near,
}
print(
    "noise                      KL to the truth   log Z: learned, estimated"
)
for name, fit in fits.items():
    print(
        f"{name:25} {divergence(fit)[0]:13.3f}"
        f" {fit.log_partition_learned_:18.3f} {fit.log_partition_:8.3f}"
    )

# %%
# The classifier learns log Z as a parameter. Importance sampling from the
# noise gives a second estimate with a standard error, which is the one used
# in likelihoods.
#
# Training
# --------
# Two quantities are monitored on validation rows during training: the
# accuracy of the classifier (0.5 if the noise is as good as the model), and
# the gain in log-likelihood over the noise, in nats per row.

TrainingDisplay.from_estimator(
    model, names=["accuracy", "gain_over_base"]
).plot()
plt.show()

# %%
# Binary rows
# -----------
# The noise is a Chow-Liu tree, and log Z is exact, as the states of six
# bits can be enumerated.

rng = np.random.default_rng(0)
parity = rng.integers(0, 2, (1500, 5))
last = parity.sum(1) % 2 ^ (rng.random(1500) < 0.1)
bits = np.column_stack([parity, last]).astype(float)
tree = NCEDensity(n_iter=0, random_state=0).fit(bits[:1000])
binary = NCEDensity(random_state=0).fit(bits[:1000])
print("parity of five bits, mean log-likelihood of new rows in nats")
print(f"  tree                     {tree.score(bits[1000:]):.3f}")
print(f"  corrected by the network {binary.score(bits[1000:]):.3f}")
print(f"  log Z: {binary.log_partition_method_}")
