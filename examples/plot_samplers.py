"""
Every sampler on the same target
================================

Two hundred chains start at one corner of a density with a bent valley and an island beside it,
which has a third of the mass. Every continuous sampler gets the same budget, 600 gradients (or
energies) a chain after a warm-up; parallel tempering spends them on five replicas. Dots are the
chains at the end, the line is one of them on its way.
"""

# %%
# The target
# ----------
# Any energy is a module with a domain and a ``forward``.

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


def valley_and_island(x, sigma=0.0):
    """-log of a mixture: a bent valley, and a third of the mass on an island to the right."""
    a, b = x[..., 0], x[..., 1]
    width = 0.35 + sigma
    valley = (a / (1.5 + sigma)).square() / 2 + ((b - 0.6 * a.square() + 1) / width).square() / 2
    island = ((a - 3.5).square() + (b + 1.5).square()) / (2 * (0.4 + sigma) ** 2)
    return -torch.logaddexp(
        np.log(2 / 3) - valley - torch.log(torch.as_tensor((1.5 + sigma) * width)),
        np.log(1 / 3) - island - 2 * torch.log(torch.as_tensor(0.4 + sigma)),
    )


class Target(Energy):
    domain = Real((2,))

    def forward(self, x, cond=None):
        return valley_and_island(x, 0.0 if cond is None else cond)


# %%
# Real rows
# ---------
# ``trace`` keeps every step; ``n_warmup`` steps come first, in which samplers with ``adapt=True``
# tune themselves. Steps that follow the gradient stay in the valley for long: MALA and HMC are
# exact, but have not arrived. The long blind steps of a random walk may hit the island in two
# dimensions, where much room is not. Tempering crosses in many. Annealed Langevin dynamics come
# down from noise levels that see no gap, in shares that the ladder decides: biased, as plain
# Langevin dynamics are.

generator = torch.Generator().manual_seed(0)
start = torch.tensor([-2.6, 3.2]).expand(200, 2)
annealed = AnnealedLangevin(0.1, sigma_max=3.0, sigma_min=0.05, n_levels=10, n_steps_per_level=60)
tempered = ParallelTempering(5, MALA(adapt=True), max_temperature=20.0)
contestants = {
    "MetropolisHastings": (MetropolisHastings(adapt=True), 600),
    "Langevin": (Langevin(0.03), 600),
    "MALA": (MALA(adapt=True), 600),
    "HMC": (HMC(n_leapfrog=10, adapt=True), 60),
    "AnnealedLangevin": (annealed, 600),
    "ParallelTempering": (tempered, 120),
}
grid = torch.stack(
    torch.meshgrid(torch.linspace(-4.5, 5.5, 160), torch.linspace(-3.5, 6.5, 160), indexing="xy"),
    -1,
)
density = (-valley_and_island(grid)).exp()


def draw_target(ax, name):
    ax.contourf(grid[..., 0], grid[..., 1], density, levels=12, cmap="Blues")
    ax.set(title=name, xticks=[], yticks=[], xlim=(-4.5, 5.5), ylim=(-3.5, 6.5))


figure, axes = plt.subplots(3, 3, figsize=(10, 10), layout="constrained")
for ax, (name, (sampler, n_steps)) in zip(axes.flat, contestants.items(), strict=False):
    trace = sampler.trace(
        Target(), start, n_steps, generator, n_warmup=0 if sampler is annealed else n_steps
    )
    on_island = float((trace.x[-1, :, 0] > 2.4).float().mean())
    print(
        f"{name:20} acceptance {float(trace.acceptance.mean()):.2f}, {on_island:.0%} on the island"
    )
    draw_target(ax, f"{name}: {on_island:.0%} on the island")
    ax.plot(*trace.x[:, 0].T, color="#d55e00", linewidth=0.8)
    ax.plot(*trace.x[-1].T, ".", color="black", markersize=2)

# %%
# One-hot and binary rows
# -----------------------
# The same target on a grid of 40 x 40 cells, a one-hot column for each coordinate. Samplers that
# follow gradients need an energy that can be asked between the cells; a bilinear form will do.
# Gibbs sampling draws a lattice of spins, half of it at once.


class Cells(Energy):
    domain = Categorical((40, 40))

    def __init__(self):
        super().__init__()
        self.table = valley_and_island(grid[::4, ::4]).T.contiguous()  # E of each pair of cells

    def forward(self, x, cond=None):
        return ((x[:, :40] @ self.table) * x[:, 40:]).sum(1)


first = torch.tensor([[7, 27]]).expand(200, 2)  # the same corner
for ax, sampler in zip(axes.flat[6:8], (GibbsWithGradients(), DiscreteLangevin(5.0)), strict=True):
    rows = Cells.domain.one_hot(first, torch.float32)
    trace = sampler.trace(Cells(), rows, 300, generator)
    place = torch.stack([Cells.domain.levels(x) for x in trace.x]) * 10 / 39.75
    place = place + torch.tensor([-4.5, -3.5])
    draw_target(ax, type(sampler).__name__)
    ax.plot(*place[:, 0].T, color="#d55e00", linewidth=0.8)
    jitter = 0.1 * torch.randn(200, 2, generator=generator)
    ax.plot(*(place[-1] + jitter).T, ".", color="black", markersize=2)

spins = ising_grid(40, 40, coupling=0.43)
x = spins.domain.uniform(1, generator, dtype=torch.float32)
state, _ = Gibbs().run(spins, x, 300, generator)
axes.flat[8].imshow(state.x.view(40, 40), cmap="Blues")
axes.flat[8].set(title="Gibbs: a 40 x 40 lattice of spins", xticks=[], yticks=[])
plt.show()

# %%
# Is it enough?
# -------------
# A display of the chains tells what their draws are worth.

from skebm.inspection import ChainDisplay

apart = 3 * torch.randn(8, 2, generator=generator)
trace = tempered.run_until(Target(), apart, generator, r_hat=1.02, max_steps=3000)
print(f"converged: {trace.converged} after {trace.n_steps} steps; ESS {trace.ess().round()}")
ChainDisplay.from_trace(trace, feature_names=["a", "b"]).plot()
plt.show()
