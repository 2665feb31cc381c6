"""Targets of `benchmarks.samplers`, as torch energies and JAX log-densities, and what draws say.

All in float64. Moments are exact but those of the logistic regression (see `logistic`). Both
versions leave out the normaliser.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from skebm.base import Energy, Real
from skebm.diagnostics import effective_sample_size

Floats = np.ndarray


class Target(NamedTuple):
    """A distribution to draw from.

    Attributes
    ----------
    name : str
    energy : Energy
    log_density : function of one row
        In JAX; it imports JAX only when called.
    draw : function of (n, rng)
        Independent draws, where chains start.
    mean, sd : ndarray of shape (d,)
    watched : int
        The first so many columns are those whose moments are compared.
    work : float
        Share of the steps that is taken: less where an evaluation is dear.
    """

    name: str
    energy: Energy
    log_density: Callable[[Any], Any]
    draw: Callable[[int, np.random.Generator], Floats]
    mean: Floats
    sd: Floats
    watched: int
    work: float = 1.0


class Run(NamedTuple):
    """What a sampler leaves: rows (draws, chains, d) after warm-up, and what they cost."""

    x: np.ndarray
    evaluations: int  # of all chains
    seconds: float
    acceptance: float


class Length(NamedTuple):
    """Steps of a run; of one evaluation each, or of one path each."""

    steps: int
    thin: int
    warmup: int


class Quality(NamedTuple):
    """What the draws of a run are worth."""

    ess: float
    mean: np.ndarray  # error in reference standard deviations, and its standard error
    mean_error: np.ndarray
    variance: np.ndarray  # relative error, and its standard error
    variance_error: np.ndarray


class Gaussian(Energy):
    """-log N(0, W^-1 W^-T) for a whitening matrix W, or a vector where it is diagonal."""

    def __init__(self, whiten: Floats):
        super().__init__()
        self.domain = Real((len(whiten),))
        self.whiten = torch.from_numpy(whiten)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Half the squared Mahalanobis distance."""
        z = x * self.whiten if self.whiten.dim() == 1 else x @ self.whiten.T
        return z.square().sum(1) / 2


class Banana(Energy):
    """x1 ~ N(0, 10^2), x2 ~ N(0.03 (x1^2 - 100), 1): the twisted Gaussian of Haario et al."""

    domain = Real((2,))

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Energy."""
        a, b = x.unbind(1)
        return (a / 10).square() / 2 + (b - 0.03 * (a.square() - 100)).square() / 2


class Funnel(Energy):
    """v ~ N(0, 3^2), nine x_i ~ N(0, exp(v)): Neal's funnel."""

    domain = Real((10,))

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Energy."""
        v, rest = x[:, 0], x[:, 1:]
        return v.square() / 18 + rest.square().sum(1) * torch.exp(-v) / 2 + 4.5 * v


class Logistic(Energy):
    """Posterior of a logistic regression, coefficients ~ N(0, I); rows are (intercept, slopes)."""

    def __init__(self, features: Floats, sign: Floats):
        super().__init__()
        self.domain = Real((features.shape[1],))
        self.signed = torch.from_numpy(features * sign[:, None])

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Negative log posterior."""
        return F.softplus(-(x @ self.signed.T)).sum(1) + x.square().sum(1) / 2


def gaussian(rotated: bool, d: int = 50) -> Target:
    """Variances from 1e-2 to 1e2; `rotated` by a random matrix, which no diagonal scale undoes."""
    sd = np.logspace(-1, 1, d)
    if rotated:
        normal = np.random.default_rng(0).normal(size=(d, d))
        turn, upper = np.linalg.qr(normal)
        turn = turn * np.sign(np.diag(upper))
        whiten = (turn / sd).T
        marginal = np.sqrt((turn**2) @ sd**2)
    else:
        turn, whiten, marginal = np.eye(d), 1 / sd, sd

    def log_density(x: Any) -> Any:
        z = whiten @ x if rotated else whiten * x
        return -(z @ z) / 2

    def draw(n: int, rng: np.random.Generator) -> Floats:
        return (rng.normal(size=(n, d)) * sd) @ turn.T

    name = "gaussian, rotated" if rotated else "gaussian, diagonal"
    return Target(name, Gaussian(whiten), log_density, draw, np.zeros(d), marginal, d)


def banana() -> Target:
    """E x2 = 0; var x2 = 1 + 0.03^2 var(x1^2) = 1 + 0.0009 * 2 * 100^2 = 19."""

    def log_density(x: Any) -> Any:
        return -((x[0] / 10) ** 2) / 2 - (x[1] - 0.03 * (x[0] ** 2 - 100)) ** 2 / 2

    def draw(n: int, rng: np.random.Generator) -> Floats:
        a, b = rng.normal(size=(2, n))
        return np.stack([10 * a, b + 0.03 * (100 * a**2 - 100)], 1)

    sd = np.array([10.0, math.sqrt(19)])
    return Target("banana", Banana(), log_density, draw, np.zeros(2), sd, 2)


def funnel() -> Target:
    """Only v is watched: var x_i = exp(4.5), but its estimate has hardly a variance."""

    def log_density(x: Any) -> Any:
        import jax.numpy as jnp

        v, rest = x[0], x[1:]
        return -(v**2) / 18 - (rest @ rest) * jnp.exp(-v) / 2 - 4.5 * v

    def draw(n: int, rng: np.random.Generator) -> Floats:
        v = 3 * rng.normal(size=(n, 1))
        return np.concatenate([v, np.exp(v / 2) * rng.normal(size=(n, 9))], 1)

    sd = np.array([3.0] + [math.exp(2.25)] * 9)
    return Target("funnel", Funnel(), log_density, draw, np.zeros(10), sd, 1)


def logistic(data: Path) -> Target:
    """Banknote authentication: 1,372 rows, four standardised columns and an intercept.

    Moments and starts come by importance sampling, which needs no chain to be trusted: 200,000
    draws from a Student t with 8 degrees of freedom around the mode, weighted. They amount to
    more than 100,000 independent ones (asserted: a half), so moments are right to 0.4 % of a
    standard deviation.
    """
    table = np.load(data / "tabular" / "banknote.npz")
    X, y = np.asarray(table["X"], dtype=np.float64), table["y"]
    features = np.column_stack([np.ones(len(X)), (X - X.mean(0)) / X.std(0)])
    sign = np.where(y == np.unique(y)[1], 1.0, -1.0)
    energy, signed = Logistic(features, sign), features * sign[:, None]

    def log_density(x: Any) -> Any:
        import jax

        return -jax.nn.softplus(-(signed @ x)).sum() - (x @ x) / 2

    rows, weight = _importance(energy, features.shape[1])
    mean = weight @ rows
    sd = np.sqrt(weight @ (rows - mean) ** 2)

    def draw(n: int, rng: np.random.Generator) -> Floats:
        return rows[rng.choice(len(rows), n, p=weight)]

    return Target("logistic", energy, log_density, draw, mean, sd, len(mean), work=0.5)


def _importance(energy: Energy, d: int, n: int = 200_000, df: int = 8) -> tuple[Floats, Floats]:
    """Draws around the mode of an energy, and weights that make them draws from it."""
    x = torch.zeros(1, d, dtype=torch.float64)

    def level(row: Tensor) -> Tensor:
        return energy(row[None])[0]

    for _ in range(50):  # Newton
        _, grad = energy.value_and_grad(x)
        curvature = torch.autograd.functional.hessian(level, x[0])
        x = x - torch.linalg.solve(curvature, grad[0])
    root = np.linalg.cholesky(np.linalg.inv(curvature.numpy()))
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(df, size=(n, 1)) / df)
    rows = x.numpy() + z @ root.T
    log_proposal = -(df + d) / 2 * np.log1p((z**2).sum(1) / df)
    parts = [-energy(part).numpy() for part in torch.from_numpy(rows).split(2000)]
    log_weight = np.concatenate(parts) - log_proposal
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > n / 2, "importance sampling of the reference has failed"
    return rows, weight


def judge(target: Target, run: Run) -> Quality | None:
    """Effective sample size and errors of the moments; None for a run that has run off."""
    x = run.x[:, :, : target.watched]
    if not np.isfinite(x).all() or np.abs(x).max() > 1e6:
        return None
    z = (x - target.mean[: target.watched]) / target.sd[: target.watched]
    n_mean, n_square = effective_sample_size(z), effective_sample_size(z**2)
    spread_of_squares = (z**2).std((0, 1))
    return Quality(
        float(min(n_mean.min(), n_square.min())),
        z.mean((0, 1)),
        z.std((0, 1)) / np.sqrt(n_mean),
        (z**2).mean((0, 1)) - 1,
        spread_of_squares / np.sqrt(n_square),
    )


class Network(Energy):
    """An MLP 64-128-128-1."""

    domain = Real((64,))

    def __init__(self) -> None:
        super().__init__()
        sizes, act = (64, 128, 128, 1), torch.nn.SiLU
        layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.layers = torch.nn.Sequential(layers[0], act(), layers[1], act(), layers[2])

    def forward(self, x: torch.Tensor, cond: Any = None) -> torch.Tensor:
        """Energy."""
        return self.layers(x).squeeze(1)


def agree(target: Target) -> None:
    """Raise where torch and JAX do not compute the same function, up to a constant.

    A call for each row: a function of one row is what JAX has.
    """
    rng = np.random.default_rng(1)
    x = target.draw(20, rng) + 0.3 * target.sd * rng.normal(size=(20, len(target.sd)))
    value, grad = target.energy.value_and_grad(torch.from_numpy(x))
    import jax

    found, slope = jax.vmap(jax.value_and_grad(target.log_density))(x)
    for ours, theirs in ((value.numpy(), -np.asarray(found)), (grad.numpy(), -np.asarray(slope))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9, err_msg=target.name)
