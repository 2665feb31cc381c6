"""
Sum of two energies: where a ring and two bands overlap
=======================================================

The normalised product of two densities is the density of rows that satisfy
both models at once, and its energy is the sum of theirs. Here one model is
fitted to rows on a ring, and another one to rows in two bands. Neither has
seen the four places where ring and bands overlap, but the sum of their
energies draws its samples there.
"""

# %%
# Two sets of rows
# ----------------
# Both densities are known, and so is their product, up to a constant.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import norm

from skebm import NCEDensity
from skebm.energies import MLP
from skebm.partition import Quadrature
from skebm.samplers import MALA

rng = np.random.default_rng(0)
angle, radius = rng.uniform(0, 2 * np.pi, 2000), rng.normal(2, 0.25, 2000)
ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
bands = rng.normal([0, 1.2], [1.5, 0.25], (2000, 2))
bands[:1000, 1] *= -1


def log_ring(X):
    radius = np.hypot(*X.T)
    return norm.logpdf(radius, 2, 0.25) - np.log(2 * np.pi * radius)


def log_bands(X):
    low, high = (norm.logpdf(X[:, 1], mean, 0.25) for mean in (-1.2, 1.2))
    mixture = np.logaddexp(low, high) - np.log(2)
    return norm.logpdf(X[:, 0], 0, 1.5) + mixture


# %%
# Two models, and their sum
# -------------------------
# Energies are modules that can be added, as long as their rows have the
# same units: the columns are not standardised. The sum has a log Z of its
# own, and any sampler takes it. The chains start at rows of the ring.

network = MLP((64, 64))
settings = {"noise": "gaussian", "noise_ratio": 4, "random_state": 0}
first = NCEDensity(network, standardize=False, **settings).fit(ring)
second = NCEDensity(network, standardize=False, **settings).fit(bands)

both = first.energy_ + second.energy_
log_z = Quadrature().estimate(both).value
generator = torch.Generator().manual_seed(0)
start = torch.as_tensor(ring[:400], dtype=torch.float32)
trace = MALA(adapt=True).trace(both, start, 100, generator, n_warmup=200)
samples = trace.x[-1].numpy()
print(f"{type(both).__name__}: log Z {log_z:.2f} nats")

# %%
# Beside the truth
# ----------------
# KL divergences are sums over the cells of a grid, in nats.

side = np.linspace(-4, 4, 160)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
points = torch.as_tensor(grid, dtype=torch.float32)
with torch.no_grad():
    log_both = -both(points).numpy() - log_z


def divergence(log_p, log_q):
    """KL divergence of densities on the grid, each normalised there."""
    log_p, log_q = (
        log - np.logaddexp.reduce(log) for log in (log_p, log_q)
    )
    return np.sum(np.exp(log_p) * (log_p - log_q))


panels = {
    "first: ring": (log_ring(grid), first.score_samples(grid), ring[:400]),
    "second: bands": (
        log_bands(grid),
        second.score_samples(grid),
        bands[800:1200],
    ),
    "sum: ring and bands": (
        log_ring(grid) + log_bands(grid),
        log_both,
        samples,
    ),
}
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), sharey=True)
for ax, (title, panel) in zip(axes, panels.items(), strict=True):
    log_truth, log_p, rows = panel
    print(f"{title}, KL {divergence(log_truth, log_p):.3f}")
    p = np.exp(log_p).reshape(len(side), -1)
    ax.pcolormesh(side, side, p, rasterized=True)
    ax.plot(*rows.T, ".", color="C1", markersize=2)
    ax.set(xlim=(-4, 4), ylim=(-4, 4), aspect=1, title=title)
    ax.set(xticks=[], yticks=[], frame_on=False)
plt.show()

# %%
# Points are 400 training rows of the first two panels, and 400 samples of
# the sum. Weights shift the balance, as in ``first.energy_ + 2.0 *
# second.energy_``.
