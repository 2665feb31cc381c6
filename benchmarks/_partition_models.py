"""Models of `benchmarks.partition` with their exact log Z."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.log_z import load
from skebm import RBMEstimator
from skebm.base import Energy, Real
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import BernoulliRBM, BoltzmannMachine, ising_grid
from skebm.objectives import Centering
from skebm.partition import Exact, cheaper_side
from skebm.training import SGD

DOUBLE = torch.float64
SIDE = 10


class Target(NamedTuple):
    """A model whose log Z is known, exact draws of it, and rows near it where it was trained."""

    name: str
    energy: Energy
    exact: float
    draw: Callable[[int, torch.Generator], Tensor]
    rows: Tensor | None = None

    @property
    def base(self) -> IndependentBernoulli | None:
        """The columns' means of the rows; None is the library's choice."""
        return None if self.rows is None else IndependentBernoulli.fit(self.rows)


def seeded(seed: int) -> torch.Generator:
    """A CPU generator of that seed."""
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------
# Continuous
# ------------------------------------------------------------------------------


class Mixture(Energy):
    """Minus the log of a sum of normal densities in d columns, plus a constant, which is log Z.

    Parameters
    ----------
    weights : Tensor of shape (k,)
        Mixing weights.
    mean : Tensor of shape (k, d)
    scale_tril : Tensor of shape (k, d, d)
        A factor L of each covariance, L L'.
    log_z : float
    """

    def __init__(self, weights: Tensor, mean: Tensor, scale_tril: Tensor, log_z: float = 0.0):
        super().__init__()
        self.domain = Real((mean.shape[1],))
        self.log_z = log_z
        log_det = torch.linalg.det(scale_tril).abs().log()
        log_norm = mean.shape[1] / 2 * math.log(2 * math.pi) + log_det
        self.register_buffer("height", weights.log() - log_norm + log_z)
        self.register_buffer("mean", mean)
        self.register_buffer("scale_tril", scale_tril)
        whiten = torch.linalg.inv(scale_tril)
        self.register_buffer("whiten", whiten.flatten(0, 1).t().contiguous())  # (d, k d)
        self.register_buffer("shift", -torch.einsum("kij,kj->ki", whiten, mean).flatten())
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        z = torch.addmm(self.shift, x, self.whiten).view(len(x), *self.mean.shape)
        return -torch.logsumexp(self.height - z.square().sum(2) / 2, 1)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Exact draws (n, d)."""
        k = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        z = torch.randn(n, self.mean.shape[1], generator=generator, dtype=DOUBLE)
        return self.mean[k] + torch.einsum("nij,nj->ni", self.scale_tril[k], z)


def rotated_gaussian() -> Target:
    """50 columns, variances from 0.1 to 10 along random directions, standard normal mean."""
    generator, d = seeded(0), 50
    Q = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=DOUBLE))[0]
    mean = torch.randn(1, d, generator=generator, dtype=DOUBLE)
    scale = Q * torch.logspace(-1, 1, d, dtype=DOUBLE).sqrt()
    energy = Mixture(torch.ones(1, dtype=DOUBLE), mean, scale[None], 7.0)
    return Target("Gaussian, d=50", energy, 7.0, energy.draw)


def mixture(half_distance: float, weight: float = 0.3, log_z: float = 3.0) -> Mixture:
    """Two normal distributions in the plane, of scales 1 and 0.6, centres on either side of 0."""
    mean = torch.tensor([[-1.0, -0.5], [1.0, 0.5]], dtype=DOUBLE) * half_distance / 1.25**0.5
    scale = torch.stack([torch.eye(2, dtype=DOUBLE), 0.6 * torch.eye(2, dtype=DOUBLE)])
    return Mixture(torch.tensor([weight, 1 - weight], dtype=DOUBLE), mean, scale, log_z)


def by_quadrature(energy: Energy, edge: float = 15.0, n: int = 1501) -> float:
    """log Z of two columns by the trapezium rule on a square."""
    line = torch.linspace(-edge, edge, n, dtype=DOUBLE)
    total = [torch.logsumexp(-energy(torch.stack([v.expand(n), line], 1)), 0).item() for v in line]
    return float(np.logaddexp.reduce(total)) + 2 * math.log(2 * edge / (n - 1))


def continuous() -> list[Target]:
    """The Gaussian, and mixtures whose log Z is checked by quadrature."""
    found = [rotated_gaussian()]
    for distance in (1.0, 2.5, 5.0):
        energy = mixture(distance)
        assert abs(by_quadrature(energy) - energy.log_z) < 1e-6
        found.append(Target(f"mixture, +-{distance:g}", energy, energy.log_z, energy.draw))
    return found


# ------------------------------------------------------------------------------
# RBMs
# ------------------------------------------------------------------------------


def exact_draws(energy: Any) -> Callable[[int, torch.Generator], Tensor]:
    """Independent draws: a state of the cheaper layer by its probability, then the other layer."""
    _, domain, function = cheaper_side(energy)
    kind = {"dtype": energy.weight.dtype, "device": energy.weight.device}
    with torch.no_grad():
        states = domain.states(0, round(domain.n_states), **kind)
        cumulative = torch.softmax(-function(states).double(), 0).cumsum(0)

    @torch.no_grad()
    def draw(n: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(n, generator=generator, dtype=DOUBLE) * cumulative[-1]
        picked = states[torch.searchsorted(cumulative, u).clamp_(max=len(states) - 1)]
        return picked if domain is energy.domain else energy.visible(picked).sample(generator)

    return draw


def trained_rbm(data: Path, name: str) -> Target:
    """An RBM of 20 hidden units trained on a table, small enough to enumerate."""
    energy, rows = trained(data, name, 20)
    exact = Exact().estimate(energy).value
    return Target(f"RBM, {name}", energy, exact, exact_draws(energy), rows)


def trained(data: Path, name: str, n_hidden: int, **settings: Any) -> tuple[Any, Tensor]:
    """An RBM trained with seed 0 on a table of DEBD, or on MNIST, and its rows."""
    folder = "images/binarized_mnist" if name == "mnist" else f"debd/{name}"
    X = load(data / f"{folder}.npz")
    energy = RBMEstimator(n_hidden, random_state=0, **settings).fit(X).energy_
    return energy, torch.as_tensor(X).to(energy.weight)


# ------------------------------------------------------------------------------
# Grids of spins
# ------------------------------------------------------------------------------


class Grid(NamedTuple):
    """Couplings of each site with the next in its row, (r, c - 1), and column, (r - 1, c)."""

    name: str
    across: np.ndarray
    down: np.ndarray

    @property
    def energy(self) -> BoltzmannMachine:
        """Of zeros and ones, in float64; with log Z of the spins."""
        rows, columns = len(self.across), self.down.shape[1]
        site = np.arange(rows * columns).reshape(rows, columns)
        J = np.zeros((site.size, site.size))
        J[site[:, :-1], site[:, 1:]] = self.across
        J[site[:-1], site[1:]] = self.down
        return BoltzmannMachine.from_spins(torch.as_tensor(J + J.T))

    @property
    def exact(self) -> float:
        """log Z, by adding a site at a time to the weights of all states of the last row."""
        n = self.down.shape[1]
        log_w = np.zeros((2,) * n)
        for r, across in enumerate(self.across):
            for c in range(n):
                if r:
                    up, off, J = log_w.take(1, c), log_w.take(0, c), self.down[r - 1, c]
                    same = [np.logaddexp(off + J, up - J), np.logaddexp(off - J, up + J)]
                    log_w = np.stack(same, c)
                if c:
                    pair = across[c - 1] * np.array([[1.0, -1.0], [-1.0, 1.0]])
                    log_w = log_w + pair.reshape((1,) * (c - 1) + (2, 2) + (1,) * (n - c - 1))
        return float(np.logaddexp.reduce(log_w, None))


def uniform_grid(coupling: float, rows: int = SIDE, columns: int = SIDE) -> Grid:
    """The ferromagnet."""
    across, down = np.ones((rows, columns - 1)), np.ones((rows - 1, columns))
    return Grid(f"Ising {coupling:g}", coupling * across, coupling * down)


def glass(name: str, draw: Callable[..., Any], rows: int = SIDE, columns: int = SIDE) -> Grid:
    """Couplings by a function of a shape."""
    return Grid(name, draw(size=(rows, columns - 1)), draw(size=(rows - 1, columns)))


def check_transfer() -> None:
    """Check the transfer matrix by enumeration, and the grid by :func:`ising_grid`."""
    for grid in (
        glass("", np.random.default_rng(0).normal, 4, 4),
        glass("", np.random.default_rng(1).normal, 3, 5),
        uniform_grid(0.4, 4, 5),
    ):
        assert abs(grid.exact - Exact().estimate(grid.energy).value) < 1e-9
    ours = uniform_grid(0.4, 4, 5).energy
    theirs = ising_grid(4, 5, 0.4, periodic=False, dtype=DOUBLE)
    assert torch.allclose(ours.coupling, theirs.coupling)
    assert torch.allclose(ours.bias, theirs.bias)
    assert abs(float(ours.offset - theirs.offset)) < 1e-12


def grids() -> list[Grid]:
    """Ferromagnets and spin glasses of 10 x 10, open boundaries, no field."""
    found = [uniform_grid(k / 10) for k in range(1, 7)]
    for scale in (0.3, 0.6, 1.0):
        rng = np.random.default_rng(int(10 * scale))
        found.append(glass(f"glass {scale:g} N(0, 1)", partial(rng.normal, 0.0, scale)))
    rng = np.random.default_rng(5)
    found.append(glass("glass +-0.5", partial(rng.choice, [-0.5, 0.5])))
    return found


def random_spins(seed: int, attractive: bool, n: int = 12) -> BoltzmannMachine:
    """Half of all pairs coupled, normal numbers times a scale of 0.1 to 2; fields N(0, 1)."""
    rng = np.random.default_rng(seed)
    J = np.triu(rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.5), 1) * rng.uniform(0.1, 2)
    J = np.abs(J) if attractive else J
    return BoltzmannMachine.from_spins(torch.as_tensor(J + J.T), rng.normal(size=n))


# ------------------------------------------------------------------------------
# Good and bad models, with rows to start from
# ------------------------------------------------------------------------------


class Suspect(NamedTuple):
    """A model with the rows that a bracket starts from."""

    energy: Energy
    exact: float
    rows: Tensor


def random_rbms(n: int) -> Iterator[Suspect]:
    """30-20 RBMs with N(0, scale) weights, scales 0.1 to 0.5, and exact draws."""
    for seed in range(n):
        scale = 0.1 + 0.4 * seed / max(n - 1, 1)
        energy = BernoulliRBM(30, 20, generator=seeded(seed), scale=scale)
        yield _with_draws(energy, seed)


def trained_rbms(data: Path, n: int) -> Iterator[Suspect]:
    """30-20 RBMs by PCD, five passes over 30 columns of plants; exact draws."""
    X = load(data / "debd/plants.npz")
    for seed in range(n):
        columns = np.random.default_rng(seed).choice(X.shape[1], 30, replace=False)
        model = RBMEstimator(20, learning="pcd", n_iter=5, random_state=seed)
        yield _with_draws(model.fit(X[:, columns]).energy_, seed)


def _with_draws(energy: Any, seed: int) -> Suspect:
    rows = exact_draws(energy)(200, seeded(seed))
    return Suspect(energy, Exact().estimate(energy).value, rows)


def one_sided_rbms(n: int) -> Iterator[Suspect]:
    """30-20 RBMs with two complementary modes; rows are draws of the lighter (mass 0.05 to 0.4)."""
    for seed in range(n):
        generator = seeded(seed)
        energy = BernoulliRBM(30, 20, generator=generator, scale=0.1)
        signs = 2.0 * torch.randint(2, (30,), generator=generator) - 1
        mass = 0.05 + 0.35 * seed / max(n - 1, 1)
        with torch.no_grad():
            energy.weight[0] = 4 * signs
            energy.visible_bias.copy_(-2 * signs)
            energy.hidden_bias[0] = -2 * signs.sum()
            for _ in range(3):  # the unit is on in the lighter mode
                on = energy.moments().h[0].clamp(1e-6, 1 - 1e-6)
                energy.hidden_bias[0] += math.log(mass / (1 - mass)) - torch.logit(on)
        draws = exact_draws(energy)(20_000, generator)
        light = draws[draws @ signs > signs.clamp(min=0).sum() - 15]
        yield Suspect(energy, Exact().estimate(energy).value, light[:200])


def badly_trained(n: int) -> Iterator[Suspect]:
    """30-20 RBMs by CD-1 with learning rates of 5 to 20 on two clusters.

    Kept if worse than independent columns.
    """
    found, seed = 0, 0
    while found < n:
        rng = np.random.default_rng(seed)
        centres = rng.random((2, 30)) < 0.5
        X = centres[rng.choice(2, 2000, p=(0.7, 0.3))] ^ (rng.random((2000, 30)) < 0.05)
        model = RBMEstimator(
            20,
            learning="cd",
            learning_rate=rng.uniform(5, 20),
            optimizer=SGD(schedule="constant"),
            centering=Centering(precondition=0.0),
            n_iter=5,
            random_state=seed,
        )
        energy: Any = model.fit(X.astype(np.float32)).energy_
        x, exact = torch.as_tensor(X).to(energy.weight), Exact().estimate(energy).value
        with torch.no_grad():
            mean = float(-energy(x).double().mean()) - exact
        seed += 1
        if mean < float(IndependentBernoulli.fit(x).log_prob(x).double().mean()):
            found += 1
            yield Suspect(energy, exact, x[:200])


def standard_normal(x: Tensor) -> Gaussian:
    """A standard normal distribution over rows like x."""
    return Gaussian(torch.zeros_like(x[0]), 1.0)


def far_mixtures(n: int, one_sided: bool) -> Iterator[Suspect]:
    """Two modes in the plane 6 to 20 apart, exact rows of both or of the lighter one."""
    for seed in range(n):
        energy = mixture(3 + 7 * seed / max(n - 1, 1), weight=0.3)
        x = energy.draw(2000, seeded(seed))
        near = (x[:, None] - energy.mean).square().sum(2).argmin(1)
        yield Suspect(energy, energy.log_z, (x[near == 0] if one_sided else x)[:200])
