"""Densities of clean rows and of noisy ones: bases, gains over them, held-out rows."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from skebm import ContrastiveDivergenceDensity, NCEDensity, ScoreMatchingDensity
from skebm.base import Batch, Real
from skebm.distributions import (
    Gaussian,
    GaussianMixture,
    KernelDensity,
    LowRankMixture,
    Stack,
    TruncatedGaussian,
    stack,
)
from skebm.energies import NeuralEnergy
from skebm.estimators.tables import bases
from skebm.objectives import ContrastiveDivergence, DenoisingScoreMatching, NoiseContrastive
from skebm.objectives.log_partition import LogPartitionMonitor
from skebm.samplers import MALA, Persistent
from skebm.training.rows import Rows
from tests.support.oracle import DOUBLE, seeded
from tests.support.tiers import full, leading

ESTIMATORS = (ScoreMatchingDensity, NCEDensity, ContrastiveDivergenceDensity)
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
one_estimator = pytest.mark.parametrize(
    "estimator", leading(1, ESTIMATORS), ids=lambda cls: cls.__name__
)
still = {"n_iter": 0, "random_state": 0}


def clusters(n=300, d=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * 0.1 + rng.integers(0, 3, (n, 1))


def base_of(estimator, rows, **params):
    base = estimator(**still, **params).fit(rows).base_
    return getattr(base, "distribution", base)  # in the units of the columns


# ------------------------------------------------------------------------------
# Bases
# ------------------------------------------------------------------------------


@one_estimator
def test_clean_rows_have_a_stack(estimator):
    found = base_of(estimator, clusters())
    assert isinstance(found, Stack)
    assert isinstance(base_of(estimator, clusters(), sigma=0.1), Stack)


@each_estimator
def test_noisy_rows_have_a_mixture(estimator):
    assert isinstance(base_of(estimator, clusters(), deconvolve=False), GaussianMixture)


@one_estimator
def test_many_columns_have_a_stack_of_low_rank(estimator, monkeypatch):
    """Also with the noise of training, whose variance is on the diagonals, and by name."""
    monkeypatch.setattr(stack, "SHAPES", ((1, 4),))
    name = "noise" if estimator is NCEDensity else "base"
    for kind in ({}, {"deconvolve": False}, {name: "stack"}):
        found = base_of(estimator, clusters(60, 101), **kind)
        assert isinstance(found, Stack)
        assert all(isinstance(part, LowRankMixture) for part in found.parts)


def test_other_rows_have_a_gaussian():
    bounded = {"objective": "exact", "bounds": (0, None)}
    assert isinstance(
        base_of(ScoreMatchingDensity, np.abs(clusters()), **bounded), TruncatedGaussian
    )
    assert isinstance(base_of(ScoreMatchingDensity, clusters(), objective="multiscale"), Gaussian)


def test_chains_do_not_evaluate_kernels():
    rows = np.random.default_rng(0).standard_t(2, (120, 3))
    model = ContrastiveDivergenceDensity(**still).fit(rows)
    by_use = {"model": model.base_, "chains": model.net_.module_.energy.base}
    has = {k: any(isinstance(part, KernelDensity) for part in q.parts) for k, q in by_use.items()}
    assert has == {"model": True, "chains": False}


@full
@one_estimator
def test_the_switch_is_the_noise_of_the_base(estimator):
    """The base of noisy rows is that of clean rows with the noise of training."""
    x = clusters(400)
    at = torch.as_tensor(clusters(50, seed=1))
    kind = {"noise" if estimator is NCEDensity else "base": "stack", "sigma": 0.3}
    model = estimator(**still, **kind, standardize=False, dtype="float64").fit(x)
    noisy = estimator(**still, **kind, standardize=False, dtype="float64", deconvolve=False).fit(x)
    assert_allclose(model.score_samples(at.numpy()), model.base_.log_prob(at), atol=1e-6)
    expected = model.base_.convolved(0.3).log_prob(at)
    assert_allclose(noisy.score_samples(at.numpy()), expected, atol=1e-6)


def test_a_flow_has_the_noise_in_it(monkeypatch):
    """It has no closed form under noise, so that there is only one density."""

    class Flow(Gaussian):
        has_convolved = False

    monkeypatch.setattr(bases, "fit_flow", lambda *args: Flow(torch.zeros(2), 1.0))
    model = NCEDensity(**still, noise="nsf").fit(clusters())
    assert model._recipe.base.clean is model._recipe.base.noisy
    with pytest.warns(UserWarning, match="deconvolve, because"):
        NCEDensity(**still, noise="nsf", deconvolve=False).fit(clusters())


# ------------------------------------------------------------------------------
# Gains over the base
# ------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """f(x) = a |x|^2 / 2."""

    def __init__(self, a):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=DOUBLE))

    def forward(self, x):
        return self.a * x.square().sum(1) / 2


A, SIGMA, N_COLUMNS = 0.5, 0.7, 2


def objective_of(name):
    """An objective whose clean model is N(0, 1 / (1 + a)) on a base of clean rows, N(0, 1)."""
    clean = Gaussian(torch.zeros(N_COLUMNS, dtype=DOUBLE), 1.0)
    energy = NeuralEnergy(Quadratic(A), Real((N_COLUMNS,)), clean.convolved(SIGMA))
    sigma = torch.full((N_COLUMNS,), SIGMA, dtype=DOUBLE)
    if name == "score matching":
        found = DenoisingScoreMatching(energy, sigma)
        found.log_partition_monitor = LogPartitionMonitor.of(energy)
    elif name == "NCE":
        found = NoiseContrastive(energy, energy.base, sigma=sigma)
    else:
        chains = Persistent(n_chains=10, initial=energy.base)
        found = ContrastiveDivergence(energy, MALA(0.5), chains, sigma=sigma)
    return found, LogPartitionMonitor(clean, energy.domain)


@pytest.mark.parametrize("name", ["score matching", "NCE", "contrastive divergence"])
def test_gains_are_those_of_the_model_that_is_left(name):
    """Of clean rows where the noise is taken off, else of rows with the noise of training."""
    objective, clean_monitor = objective_of(name)
    x = torch.randn(5000, N_COLUMNS, generator=seeded(), dtype=DOUBLE)
    squares = x.square().sum(1).mean() / 2
    cases = [(clean_monitor, 1.0)]
    if name != "contrastive divergence":  # whose chains would have to be draws of the model
        cases.append((None, 1 + SIGMA**2))
    for monitor, variance in cases:
        objective.clean_monitor = monitor
        state = objective.start(Batch(x), seeded(1))
        logs = objective.monitor(Batch(x), state, seeded(2))
        added = N_COLUMNS * (variance - 1) / 2
        expected = -A * (squares + added) + N_COLUMNS / 2 * math.log(1 + A * variance)
        assert float(logs["gain_over_base"]) == pytest.approx(float(expected), abs=0.06)
        assert 0 < float(logs["gain_error"]) < 0.05


# ------------------------------------------------------------------------------
# Held-out rows
# ------------------------------------------------------------------------------


def test_copies_of_held_out_rows_are_held_out():
    x = torch.as_tensor(clusters(120))
    rows = Rows(x.repeat(3, 1), None, dtype=DOUBLE, device="cpu")
    recipe = ScoreMatchingDensity(**still).fit(clusters(60))._recipe
    train, held_out = recipe.family.hold_out(recipe, rows, seeded())
    assert (len(train), len(held_out)) == (324, 36)
    seen = {tuple(row) for row in train.block(0, 324).tolist()}
    assert not seen & {tuple(row) for row in held_out.block(0, 36).tolist()}


def test_few_distinct_rows_are_not_held_out():
    x = torch.as_tensor(clusters(49)).repeat(3, 1)
    rows = Rows(x, None, dtype=DOUBLE, device="cpu")
    recipe = ScoreMatchingDensity(**still).fit(clusters(60))._recipe
    train, held_out = recipe.family.hold_out(recipe, rows, seeded())
    assert train is rows
    assert held_out is None
