"""
Contrastive divergence: a spiral from a Gaussian base
=====================================================

``ContrastiveDivergenceDensity`` trains a network by stochastic gradient
ascent on the likelihood: each step lowers the energy at the data and raises
it at samples from Markov chains of the model. The rows are drawn from a
spiral whose density is known, so that samples can be seen to lie where the
rows lie, and the Kullback-Leibler divergence says how far the model is from
the truth.
"""

# %%
# Rows of a known density
# -----------------------
# A row is a point of the spiral with Gaussian noise, so that the density is
# a mean of Gaussians along the curve.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from sklearn.neighbors import KernelDensity

from skebm import ContrastiveDivergenceDensity
from skebm.energies import MLP
from skebm.inspection import TrainingDisplay
from skebm.samplers import FromData

NOISE = 0.12
length = np.linspace(0, 1, 400)
angle = 2 * np.pi * (0.6 + 1.4 * length)
curve = np.stack([np.cos(angle), np.sin(angle)], 1)
curve = curve * 2.2 * (length[:, None] + 0.25)


def spiral(n, seed):
    rng = np.random.default_rng(seed)
    points = curve[rng.integers(len(curve), size=n)]
    return points + NOISE * rng.normal(size=(n, 2))


X, X_test = spiral(1500, seed=0), spiral(2000, seed=1)
truth = KernelDensity(bandwidth=NOISE).fit(curve)

# %%
# Two fits
# --------
# The base is one Gaussian, so that the network has to learn the spiral; its
# random Fourier features let it follow narrow shapes. Chains are persistent
# by default: they go on from where they ended, and run for ten steps at
# each batch. In the classical CD-1 they start at the rows, for a single
# step, which takes a third of the time and is biased.


def divergence(model):
    """KL divergence from the truth, in nats, and its standard error."""
    gap = truth.score_samples(X_test) - model.score_samples(X_test)
    return gap.mean(), gap.std() / len(gap) ** 0.5


model = ContrastiveDivergenceDensity(
    MLP(n_frequencies=32),
    base="gaussian",
    learning_rate=0.0025,
    n_iter=30,
    random_state=0,
).fit(X)
base = ContrastiveDivergenceDensity(base="gaussian", n_iter=0).fit(X)
cd1 = ContrastiveDivergenceDensity(
    MLP(n_frequencies=32),
    base="gaussian",
    chains=FromData(n_steps=1),
    n_iter=30,
    random_state=0,
).fit(X)
fits = {"base": base, "persistent chains": model, "CD-1": cd1}
for name, fit in fits.items():
    kl, error = divergence(fit)
    print(f"{name:18} KL to the truth {kl:5.3f} nats, error {error:.3f}")

# %%
# Rows and samples
# ----------------
# All panels have the same colours. Samples are ends of new chains.

side = np.linspace(-3.2, 3.2, 121)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
panels = {
    "truth, 400 rows": (truth, X[:400]),
    "Gaussian base, 400 draws": (base, base.sample(400, random_state=0)),
    "model, 400 samples": (model, model.sample(400, random_state=0)),
}
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), sharey=True)
for ax, (title, (density, rows)) in zip(axes, panels.items(), strict=True):
    p = np.exp(density.score_samples(grid)).reshape(len(side), -1)
    ax.pcolormesh(side, side, p, vmin=0, vmax=0.4, rasterized=True)
    ax.plot(*rows.T, ".", color="C1", markersize=2)
    ax.set(xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), aspect=1, title=title)
    ax.set(xticks=[], yticks=[], frame_on=False)
plt.show()

# %%
# Training
# --------
# The energy gap, mean E(rows) - mean E(chains), is the loss; its gradient
# is that of the likelihood, but its value is not. The gain over the base,
# in nats per row, is measured on validation rows.

TrainingDisplay.from_estimator(
    model, names=["energy_gap", "gain_over_base"]
).plot()
plt.show()
