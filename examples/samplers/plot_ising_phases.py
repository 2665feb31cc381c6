"""
Ising models by parallel tempering: phases and couplings
========================================================

Spins on a square grid prefer to agree with their four neighbours. At a low
temperature nearly all of them agree; at a high one they are almost
independent. In between, at the critical temperature :math:`T_c = 2 /
\\log(1 + \\sqrt 2) = 2.27`, the magnetisation of the infinite grid
vanishes. Onsager computed the energy of this grid and Yang its
magnetisation; small grids can be enumerated. Samples of finite grids are
compared with both, and then the couplings are recovered from samples.
"""

# %%
# One run for all temperatures
# ----------------------------
# ``ising_grid`` is an energy of bits x with spins :math:`s = 2x - 1`, and
# ``energy / T`` is the same energy at the temperature T. A Gibbs sweep
# draws the spins of one colour of the checkerboard, then those of the
# other. Below :math:`T_c`, such sweeps hardly ever lead from a state with
# most spins up to one with most spins down, or remove one of two domains
# that lie side by side. Parallel tempering does so by exchanging grids
# between temperatures, and its replicas are draws at all temperatures. Half
# of the chains start with all spins up, the others at random; R-hat
# compares the chains.

# sphinx_gallery_thumbnail_number = 2

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import ellipk

from skebm import BoltzmannMachineDensity
from skebm.diagnostics import effective_sample_size, r_hat
from skebm.energies import ising_grid
from skebm.inspection import CouplingDisplay
from skebm.partition import Exact, exact_draws
from skebm.samplers import ParallelTempering

N_TEMPERATURES, COLDEST, HOTTEST = 12, 1.5, 3.6
N_CHAINS, N_WARMUP, N_STEPS = 16, 100, {4: 300, 12: 500}
T_CRITICAL = 2 / np.log(1 + np.sqrt(2))
temperatures = HOTTEST * (COLDEST / HOTTEST) ** np.linspace(
    0, 1, N_TEMPERATURES
)
generator = torch.Generator().manual_seed(0)


def sampled(side):
    """Magnetisations and energies per spin, and the last grids.

    The first two have shape (temperatures, draws, chains).
    """
    energy = ising_grid(side, side) / COLDEST
    sampler = ParallelTempering(
        N_TEMPERATURES, max_temperature=HOTTEST / COLDEST
    )
    x = energy.domain.uniform(N_CHAINS, generator, dtype=torch.float32)
    x[: N_CHAINS // 2] = 1.0
    state, kept = sampler.init(energy, x), []
    for step in range(N_WARMUP + N_STEPS[side]):
        state, _ = sampler.step(energy, state, generator)
        if step >= N_WARMUP:
            grids = torch.stack([replica.x for replica in state.aux])
            magnetisation = (2 * grids - 1).mean(2).abs()
            values = energy(grids.flatten(0, 1)).view_as(magnetisation)
            per_spin = values * COLDEST / side**2
            kept.append(torch.stack([magnetisation, per_spin]))
    magnetisation, per_spin = torch.stack(kept, 2).numpy()
    shape = (N_TEMPERATURES, N_CHAINS, side, side)
    return magnetisation, per_spin, grids.view(shape)


with torch.no_grad():
    samples = {side: sampled(side) for side in (4, 12)}
for side, (magnetisation, energies, _) in samples.items():
    worst = max(
        r_hat(values[k])
        for values in (magnetisation, energies)
        for k in range(N_TEMPERATURES)
    )
    least = min(effective_sample_size(values) for values in magnetisation)
    print(
        f"{side} x {side}: R-hat at most {worst:.3f}, "
        f"effective sample size at least {least:.0f}"
    )

# %%
# Beside exact curves
# -------------------
# The energy of the infinite grid is computed by Onsager's formula, where
# K(m) is the complete elliptic integral; the 65,536 states of the 4 x 4
# grid are enumerated, with log Z from :class:`skebm.partition.Exact`.


def infinite_grid(T):
    """Magnetisation (Yang, 1952) and energy (Onsager, 1944) per spin."""
    K = 1 / T
    modulus = 2 * np.sinh(2 * K) / np.cosh(2 * K) ** 2
    factor = 2 / np.pi * (2 * np.tanh(2 * K) ** 2 - 1)
    energy = -(1 + factor * ellipk(modulus**2)) / np.tanh(2 * K)
    return np.maximum(1 - np.sinh(2 * K) ** -4, 0) ** (1 / 8), energy


def enumerated(energy, temperatures):
    """Mean |magnetisation| and energy per spin, by sums over all states."""
    n = energy.domain.n_columns
    states = next(
        energy.domain.enumerate(2**n, dtype=torch.float32, device="cpu")
    )
    magnetisation = (2 * states - 1).mean(1).abs().double()
    means = []
    with torch.no_grad():
        values = energy(states).double()
        for T in temperatures:
            log_z = Exact().estimate(energy / T).value
            p = (-values / T - log_z).exp()
            means.append((float(p @ magnetisation), float(p @ values) / n))
    return np.transpose(means)


fine = np.linspace(COLDEST, HOTTEST, 301)
rough = np.linspace(COLDEST, HOTTEST, 21)
onsager = infinite_grid(fine)
small = enumerated(ising_grid(4, 4), rough)
colours = {4: "C1", 12: "C0"}
names = ("mean |magnetisation|", "energy per spin")
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
for k, (ax, name) in enumerate(zip(axes, names, strict=True)):
    ax.axvline(T_CRITICAL, color="0.8", linewidth=1)
    ax.plot(fine, onsager[k], color="black", label="infinite grid, exact")
    ax.plot(rough, small[k], color="C1", label="4 x 4, enumerated")
    for side, draws in samples.items():
        label = f"{side} x {side}, sampled"
        means = draws[k].mean((1, 2))
        ax.plot(temperatures, means, "o", color=colours[side], label=label)
    ax.set(xlabel="temperature T (grey: critical)", ylabel=name)
axes[1].legend(loc="lower right")
plt.show()

exact = enumerated(ising_grid(4, 4), temperatures)
for name, draws, truth in zip(names, samples[4][:2], exact, strict=True):
    error = np.abs(draws.mean((1, 2)) - truth).max()
    print(f"4 x 4, {name}: largest error of a mean {error:.4f}")

# %%
# Grids at four temperatures
# --------------------------
# Far below :math:`T_c` hardly any spin differs from the others, and chains
# pass from most spins up to most spins down by way of higher temperatures.
# Near :math:`T_c` there are clusters of several sizes. At the highest
# temperature a third of the pairs of neighbours disagree; by chance, half
# of them would.

figure, axes = plt.subplots(2, 4, figsize=(7, 3.9))
for line, T in zip(axes.T, (1.5, 2.0, T_CRITICAL, 3.6), strict=True):
    nearest = int(np.abs(temperatures - T).argmin())
    for ax, chain in zip(line, (0, -1), strict=True):
        spins = samples[12][2][nearest, chain].numpy()
        ax.imshow(spins, cmap="Blues", vmin=-0.2, vmax=1)
        ax.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_title(f"T = {temperatures[nearest]:.2f}")
figure.suptitle("12 x 12 grids of two chains; dark spins are up")
plt.show()

# %%
# Couplings from samples
# ----------------------
# The problem is now reversed: 3,000 independent draws at T = 3 of a 4 x 4
# grid, this time not periodic, are given to an estimator that knows nothing
# of grids. The pseudo-likelihood needs no Z, and the extended BIC chooses
# which of the 120 pairs of spins are coupled. The true couplings of the 24
# pairs of neighbours are :math:`1 / T = 0.33`; all others are zero.

T = 3.0
grid = ising_grid(4, 4, periodic=False)
X = 2 * exact_draws(grid / T, 3000, generator).numpy() - 1
model = BoltzmannMachineDensity(
    "pseudo_likelihood", l1="ebic", coding="spin", random_state=0
).fit(X)
neighbours = grid.coupling.detach().numpy() != 0
couplings = model.couplings_[model.graph_]
print(f"Edges as in the grid: {np.array_equal(model.graph_, neighbours)}")
print(
    f"Couplings: mean {couplings.mean():.3f}, "
    f"from {couplings.min():.3f} to {couplings.max():.3f}"
)

display = CouplingDisplay.from_estimator(model)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8))
display.plot("matrix", ax=axes[0])
rows, columns = np.divmod(np.arange(16), 4)
display.plot("graph", layout=np.column_stack([columns, -rows]), ax=axes[1])
plt.show()

# %%
# The model was learned at T = 3, and can be sampled at any other
# temperature: ``temperature=0.5`` halves that of the grid to 1.5. At this
# temperature the grid is magnetised, although none of the training rows
# showed it.

print("mean |magnetisation|   samples   enumerated")
for factor in (0.5, 1.0, 1.5):
    drawn = model.sample(5000, random_state=0, temperature=factor)
    learned = np.abs(drawn.mean(1)).mean()
    truth = enumerated(grid, [factor * T])[0, 0]
    print(f"  T = {factor * T:.1f} {learned:21.3f} {truth:12.3f}")
