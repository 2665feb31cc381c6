"""log Z of small boosted densities against the sum over all states and quadrature."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import logsumexp

from skebm import BoostedDensity
from skebm.partition import ImportanceSampling

N_TREES = 20


def z_of_bits(seed: int) -> tuple[float, float]:
    """Error of log Z of bits by draws of the base, in standard errors, and the latter."""
    random = np.random.default_rng(seed)
    d = 6 + 2 * (seed % 3)
    first = random.random((400, d // 2)) < 0.4
    flips = random.random((400, d // 2)) < 0.15
    parity = first ^ np.roll(first, 1, 1)  # of which neither base knows anything
    x = np.c_[first, parity ^ flips].astype(float)
    base = "chow-liu" if seed % 2 else "independent"
    kind = {"n_iter": N_TREES, "partition": ImportanceSampling(), "random_state": seed}
    model = BoostedDensity(base, **kind).fit(x)
    states = np.array(list(itertools.product([0.0, 1.0], repeat=d)))
    return in_errors(model, float(logsumexp(model.score_samples(states))))


def z_of_numbers(seed: int) -> tuple[float, float]:
    """The same of two numbers, against Gauss's rule on boxes where trees are constant."""
    base = "mixture" if seed % 2 else "gaussian"
    model = BoostedDensity(base, n_iter=N_TREES, random_state=seed).fit(board(400, seed))
    units, nodes, weights = model._recipe.table.units, [], []
    for j in range(2):
        edges = model.energy_.discontinuities(j).double().numpy()
        sides = np.concatenate(
            [np.linspace(-12, 16, 141), edges * units.scale[j] + units.centre[j]]
        )
        at, w = np.polynomial.legendre.leggauss(4)
        sides = np.unique(sides)
        half = np.diff(sides)[:, None] / 2
        nodes.append(((sides[:-1] + sides[1:])[:, None] / 2 + half * at).ravel())
        weights.append((half * w).ravel())
    points = np.stack(np.meshgrid(*nodes), -1).reshape(-1, 2)
    total = logsumexp(model.score_samples(points), b=np.outer(*weights[::-1]).ravel())
    return in_errors(model, float(total))


def board(n: int, seed: int) -> np.ndarray:
    """Rows of a checkerboard of four by four squares of side one, half of which are empty."""
    random = np.random.default_rng(seed)
    x = random.random((4 * n, 2)) * 4
    return x[(x.astype(int).sum(1) % 2) == 0][:n]


def in_errors(model: BoostedDensity, log_total: float) -> tuple[float, float]:
    """An error of log Z in standard errors, and the latter."""
    error = model.log_partition_std_
    return log_total / error if error else 0.0, error
