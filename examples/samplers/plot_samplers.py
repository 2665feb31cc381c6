"""
Markov chain Monte Carlo samplers: two modes, cells and spins
=============================================================

Two hundred chains start at one end of a curved valley; a second, separate
mode has a third of the mass. Every continuous sampler gets the same budget,
600 gradients (or energies) per chain after a warm-up; parallel tempering
spends them on five replicas. Dots are the final states of the chains, the
line is the path of one of them.
"""

# %%
# The target
# ----------
# An energy is a module with a domain and a ``forward``.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
import torch

from skebm.base import Categorical, Energy, Real
from skebm.energies import ising_grid
from skebm.samplers import (
    HMC,
    MALA,
    AnnealedLangevin,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    Langevin,
    MetropolisHastings,
    ParallelTempering,
)


def two_modes(x, sigma=0.0):
    """Minus the log of a mixture of a valley and, to the right, a mode.

    The mode has a third of the mass; `sigma` is added to all widths.
    """
    a, b = x[..., 0], x[..., 1]
    length, width, radius = (
        torch.as_tensor(scale + sigma) for scale in (1.5, 0.35, 0.4)
    )
    across = (b - 0.6 * a.square() + 1) / width
    valley = (a / length).square() / 2 + across.square() / 2
    mode = ((a - 3.5).square() + (b + 1.5).square()) / (2 * radius**2)
    return -torch.logaddexp(
        np.log(2 / 3) - valley - torch.log(length * width),
        np.log(1 / 3) - mode - torch.log(radius**2),
    )


class Target(Energy):
    domain = Real((2,))

    def forward(self, x, cond=None):
        return two_modes(x, 0.0 if cond is None else cond)


# %%
# Real rows
# ---------
# ``trace`` keeps every step after the first ``n_warmup`` steps, during
# which samplers with ``adapt=True`` adapt. Gradient-based chains stay in
# the valley for a long time: MALA and HMC are exact, but have not
# converged. The larger steps of a random walk may reach the second mode in
# two dimensions, but not in many dimensions; parallel tempering reaches it
# there as well. Annealed Langevin dynamics start at noise levels without
# separate modes. The masses that the modes get depend on the ladder of
# noise levels, so the method is biased, as plain Langevin dynamics are.
#
# The numbers in the titles are the shares of chains in the second mode,
# which has 33 % of the mass.

generator = torch.Generator().manual_seed(0)
start = torch.tensor([-2.6, 3.2]).expand(200, 2)
annealed = AnnealedLangevin(
    0.1, sigma_max=3.0, sigma_min=0.05, n_levels=10, n_steps_per_level=60
)
tempered = ParallelTempering(5, MALA(adapt=True), max_temperature=20.0)
samplers = {
    "MetropolisHastings": (MetropolisHastings(adapt=True), 600),
    "Langevin": (Langevin(0.03), 600),
    "MALA": (MALA(adapt=True), 600),
    "HMC": (HMC(n_leapfrog=10, adapt=True), 60),
    "AnnealedLangevin": (annealed, 600),
    "ParallelTempering": (tempered, 120),
}
axis = torch.linspace(-4.5, 5.5, 160)
grid = torch.stack(torch.meshgrid(axis, axis + 1, indexing="xy"), -1)
density = (-two_modes(grid)).exp()


def draw(ax, name, path, ends):
    """The target, the path of one chain and the ends of all."""
    ax.contourf(axis, axis + 1, density, levels=12, cmap="Blues")
    ax.plot(*path.T, color="C1", linewidth=0.6)
    ax.plot(*ends.T, ".", color="black", markersize=2)
    ax.set(title=name, xticks=[], yticks=[], frame_on=False)
    ax.set(xlim=(-4.5, 5.5), ylim=(-3.5, 6.5), aspect=1)


figure, axes = plt.subplots(2, 3, figsize=(7.5, 5.4))
for ax, (name, (sampler, n_steps)) in zip(
    axes.flat, samplers.items(), strict=True
):
    n_warmup = 0 if sampler is annealed else n_steps
    trace = sampler.trace(
        Target(), start, n_steps, generator, n_warmup=n_warmup
    )
    in_second = float((trace.x[-1, :, 0] > 2.4).float().mean())
    print(
        f"{name:20} acceptance {float(trace.acceptance.mean()):.2f}, "
        f"{in_second:.0%} in the second mode"
    )
    title = f"{name}: {in_second:.0%}"
    draw(ax, title, trace.x[:, 0], trace.x[-1])
plt.show()

# %%
# One-hot and binary rows
# -----------------------
# The target is the same, on a grid of 40 x 40 cells with a one-hot column
# for each coordinate. Gradient-based samplers need an energy that is
# defined for real numbers; here it is a bilinear form. Gibbs sampling draws
# half of the spins of a lattice at once.


class Cells(Energy):
    domain = Categorical((40, 40))

    def __init__(self):
        super().__init__()
        # The energy of each pair of levels.
        self.table = two_modes(grid[::4, ::4]).T.contiguous()

    def forward(self, x, cond=None):
        return ((x[:, :40] @ self.table) * x[:, 40:]).sum(1)


first = torch.tensor([[7, 27]]).expand(200, 2)  # the same corner
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.8))
for ax, sampler in zip(
    axes[:2], (GibbsWithGradients(), DiscreteLangevin(5.0)), strict=True
):
    rows = Cells.domain.one_hot(first, torch.float32)
    trace = sampler.trace(Cells(), rows, 300, generator)
    levels = torch.stack([Cells.domain.levels(x) for x in trace.x])
    place = levels * 10 / 39.75 + torch.tensor([-4.5, -3.5])
    jitter = 0.1 * torch.randn(200, 2, generator=generator)
    name = type(sampler).__name__
    draw(ax, name, place[:, 0], place[-1] + jitter)

spins = ising_grid(40, 40, coupling=0.43)
x = spins.domain.uniform(1, generator, dtype=torch.float32)
state, _ = Gibbs().run(spins, x, 300, generator)
axes[2].imshow(state.x.view(40, 40), cmap="Blues")
axes[2].set(title="Gibbs, 40 x 40 spins", xticks=[], yticks=[])
axes[2].set(frame_on=False)
plt.show()

# %%
# Convergence diagnostics
# -----------------------
# A display of the chains shows effective sample sizes and R-hat.

from skebm.inspection import ChainDisplay

apart = 3 * torch.randn(8, 2, generator=generator)
trace = tempered.run_until(
    Target(), apart, generator, r_hat=1.1, max_steps=2000
)
print(f"converged: {trace.converged} after {trace.n_steps} steps")
print(f"effective sample sizes of the columns: {trace.ess().round()}")
ChainDisplay.from_trace(trace, feature_names=["a", "b"]).plot()
plt.show()
