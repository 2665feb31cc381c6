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
    """-log of a mixture of a curved valley and, with a third of the mass, a mode to the right."""
    a, b = x[..., 0], x[..., 1]
    width = 0.35 + sigma
    valley = (a / (1.5 + sigma)).square() / 2 + (
        (b - 0.6 * a.square() + 1) / width
    ).square() / 2
    second = ((a - 3.5).square() + (b + 1.5).square()) / (
        2 * (0.4 + sigma) ** 2
    )
    return -torch.logaddexp(
        np.log(2 / 3)
        - valley
        - torch.log(torch.as_tensor((1.5 + sigma) * width)),
        np.log(1 / 3)
        - second
        - 2 * torch.log(torch.as_tensor(0.4 + sigma)),
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
grid = torch.stack(
    torch.meshgrid(
        torch.linspace(-4.5, 5.5, 160),
        torch.linspace(-3.5, 6.5, 160),
        indexing="xy",
    ),
    -1,
)
density = (-two_modes(grid)).exp()


def draw_target(ax, name):
    ax.contourf(
        grid[..., 0], grid[..., 1], density, levels=12, cmap="Blues"
    )
    ax.set(
        title=name, xticks=[], yticks=[], xlim=(-4.5, 5.5), ylim=(-3.5, 6.5)
    )


figure, axes = plt.subplots(2, 3, figsize=(10, 6.8), layout="constrained")
for ax, (name, (sampler, n_steps)) in zip(
    axes.flat, samplers.items(), strict=True
):
    trace = sampler.trace(
        Target(),
        start,
        n_steps,
        generator,
        n_warmup=0 if sampler is annealed else n_steps,
    )
    in_second = float((trace.x[-1, :, 0] > 2.4).float().mean())
    print(
        f"{name:20} acceptance {float(trace.acceptance.mean()):.2f}, "
        f"{in_second:.0%} in the second mode"
    )
    draw_target(ax, f"{name}: {in_second:.0%} in the 2nd mode")
    ax.plot(*trace.x[:, 0].T, color="#d55e00", linewidth=0.8)
    ax.plot(*trace.x[-1].T, ".", color="black", markersize=2)
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
        self.table = two_modes(
            grid[::4, ::4]
        ).T.contiguous()  # E of each pair of levels

    def forward(self, x, cond=None):
        return ((x[:, :40] @ self.table) * x[:, 40:]).sum(1)


first = torch.tensor([[7, 27]]).expand(200, 2)  # the same corner
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for ax, sampler in zip(
    axes[:2], (GibbsWithGradients(), DiscreteLangevin(5.0)), strict=True
):
    rows = Cells.domain.one_hot(first, torch.float32)
    trace = sampler.trace(Cells(), rows, 300, generator)
    place = (
        torch.stack([Cells.domain.levels(x) for x in trace.x]) * 10 / 39.75
    )
    place = place + torch.tensor([-4.5, -3.5])
    draw_target(ax, type(sampler).__name__)
    ax.plot(*place[:, 0].T, color="#d55e00", linewidth=0.8)
    jitter = 0.1 * torch.randn(200, 2, generator=generator)
    ax.plot(*(place[-1] + jitter).T, ".", color="black", markersize=2)

spins = ising_grid(40, 40, coupling=0.43)
x = spins.domain.uniform(1, generator, dtype=torch.float32)
state, _ = Gibbs().run(spins, x, 300, generator)
axes[2].imshow(state.x.view(40, 40), cmap="Blues")
axes[2].set(title="Gibbs: a 40 x 40 lattice of spins", xticks=[], yticks=[])
plt.show()

# %%
# Convergence diagnostics
# -----------------------
# A display of the chains shows effective sample sizes and R-hat.

from skebm.inspection import ChainDisplay

apart = 3 * torch.randn(8, 2, generator=generator)
trace = tempered.run_until(
    Target(), apart, generator, r_hat=1.02, max_steps=3000
)
print(
    f"converged: {trace.converged} after {trace.n_steps} steps; ESS {trace.ess().round()}"
)
ChainDisplay.from_trace(trace, feature_names=["a", "b"]).plot()
plt.show()
