"""Sixty densities of one to three columns integrate to one, within their stated errors."""

import functools
import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    ScoreMatchingDensity,
)
from skebm.energies import MLP
from skebm.partition import AIS, BridgeSampling, ImportanceSampling
from tests.support.tiers import full

pytestmark = [full, pytest.mark.filterwarnings("ignore")]

few = {"network": MLP((16,)), "n_iter": 20, "learning_rate": 0.01, "random_state": 0}
flow = few | {"n_iter": 5, "flow": "maf", "n_flow_steps": 30}
bases = ("gaussian", "mixture", "kernel")
MODELS = {
    **{f"cd {b}": ContrastiveDivergenceDensity(**few, base=b) for b in (*bases, None)},
    **{f"score {b}": ScoreMatchingDensity(**few, base=b) for b in (*bases, None)},
    **{f"nce {b}": NCEDensity(**few, noise=b) for b in bases},
    "score multiscale": ScoreMatchingDensity(**few, objective="multiscale"),
    "flow": FlowContrastiveDensity(**flow),
    "joint": JEMClassifier(**few),
    "cd importance": ContrastiveDivergenceDensity(
        **few, base="gaussian", partition=ImportanceSampling(4000)
    ),
    "cd bridge": ContrastiveDivergenceDensity(**few, base="gaussian", partition=BridgeSampling()),
    "cd annealed": ContrastiveDivergenceDensity(**few, base="gaussian", partition=AIS(n_betas=200)),
    "nce importance": NCEDensity(**few, noise="gaussian", partition=ImportanceSampling(4000)),
    "score annealed": ScoreMatchingDensity(**few, base="gaussian", partition=AIS(n_betas=200)),
    "flow importance": FlowContrastiveDensity(**flow, partition=ImportanceSampling(4000)),
}
# Points of a grid along each column, and the half of its width.
GRIDS = {1: (3001, 30.0), 2: (241, 12.0)}
# Standard deviations of the proposals around each row, in those of the rows.
WIDTHS = (0.05, 0.3, 1.0, 3.0)


def table(d):
    rng = np.random.default_rng(d)
    return np.where(rng.random((200, 1)) < 0.4, -1.5, 1.0) + 0.5 * rng.normal(size=(200, d))


def by_grid(model, d):
    """Log of the integral of the density; no error, as these densities are smooth."""
    n, half = GRIDS[d]
    axis = np.linspace(-half, half, n)
    points = np.stack(np.meshgrid(*[axis] * d), -1).reshape(-1, d)
    return logsumexp(model.score_samples(points)) + d * math.log(axis[1] - axis[0]), 0.0


@functools.cache
def proposals(d):
    """Draws from t distributions of four widths around the rows, and their log densities."""
    rng, X, n = np.random.default_rng(0), table(d), 8_000
    parts = [multivariate_t(np.zeros(d), h**2 * np.cov(X.T), df=3) for h in WIDTHS]
    drawn = [X[rng.integers(0, len(X), n)] + part.rvs(n, random_state=rng) for part in parts]
    points = np.concatenate(drawn)
    log_q = np.concatenate(
        [
            logsumexp([part.logpdf(block[:, None] - X) for part in parts], axis=(0, 2))
            for block in np.array_split(points, 160)
        ]
    )
    return points, log_q - math.log(len(X) * len(parts))


def by_proposals(model, d):
    """Log of the integral by importance sampling, which shares nothing with skebm's."""
    points, log_q = proposals(d)
    weights = np.exp(model.score_samples(points) - log_q)
    return math.log(weights.mean()), weights.std() / weights.mean() / math.sqrt(len(weights))


@functools.cache
def errors():
    """Of each model: log of the integral, its error, and the stated standard error of log Z."""
    found = {}
    for d in (1, 2, 3):
        X = table(d)
        for name, model in MODELS.items():
            model = model.fit(X, X[:, 0] > 0) if name == "joint" else model.fit(X)
            mass = by_grid(model, d) if d in GRIDS else by_proposals(model, d)
            found[name, d] = (*mass, model.log_partition_std_)
    return found


def test_integrals_are_one_within_their_errors():
    z = {
        case: mass / (math.hypot(error, stated) + 1e-4)
        for case, (mass, error, stated) in errors().items()
    }
    assert len(z) == 60
    assert {case: value for case, value in z.items() if abs(value) > 4} == {}


def test_stated_errors_are_neither_too_small_nor_too_large():
    """Of those that are large enough to be seen beside the error of the integral."""
    found = [
        mass / math.hypot(error, stated)
        for mass, error, stated in errors().values()
        if stated > max(1e-3, error)
    ]
    assert len(found) > 15
    assert 0.6 < math.sqrt(np.square(found).mean()) < 1.4
