"""Hopfield memories: rules by their definitions, energies, recall, capacity, bad input."""

import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import hadamard
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skebm import HopfieldMemory
from skebm.energies import BoltzmannMachine
from skebm.estimators import Recall
from skebm.estimators.boltzmann import hopfield
from skebm.partition import Exact
from skebm.samplers import Gibbs
from tests.support.checks import parametrize_with_checks
from tests.support.tiers import full, leading

QUADRATIC = ("hebb", "pseudoinverse", "storkey")
RULES = (*QUADRATIC, "dense")
each_rule = pytest.mark.parametrize("rule", RULES)
each_quadratic = pytest.mark.parametrize("rule", QUADRATIC)
crowded = pytest.mark.filterwarnings("ignore:.*(a load of|end in a cycle):UserWarning")


def spins(n, d, seed=0):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (n, d))


def flipped(x, share, seed=1):
    return np.where(np.random.default_rng(seed).random(x.shape) < share, -x, x)


def all_spins(d):
    return np.array(list(itertools.product([-1.0, 1.0], repeat=d)))


def bits(x):
    return (x + 1) / 2


def reals(n=8, d=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


# ------------------------------------------------------------------------------
# The rules by their definitions
# ------------------------------------------------------------------------------


def test_the_rule_of_hebb_is_a_sum_of_products():
    X = spins(3, 30)
    J = sum(np.outer(x, x) for x in X) / 30
    assert_allclose(HopfieldMemory("hebb").fit(X).coupling_, J - np.diag(np.diag(J)))


def test_the_pseudoinverse_is_a_projection():
    X = spins(4, 12)
    J = np.linalg.pinv(X) @ X
    assert_allclose(
        HopfieldMemory("pseudoinverse").fit(X).coupling_, J - np.diag(np.diag(J)), atol=1e-12
    )


def storkey_by_loops(X):
    """The rule as Storkey (1997) states it."""
    d = X.shape[1]
    J = np.zeros((d, d))
    for x in X:
        h = np.zeros((d, d))
        for i, j in itertools.product(range(d), repeat=2):
            h[i, j] = sum(J[i, k] * x[k] for k in range(d) if k not in (i, j))
        change = [
            [x[i] * x[j] - x[i] * h[j, i] - h[i, j] * x[j] if i != j else 0 for j in range(d)]
            for i in range(d)
        ]
        J = J + np.array(change) / d
    return J


@crowded
def test_the_rule_of_storkey_is_a_loop_over_patterns():
    X = spins(6, 9)
    assert_allclose(HopfieldMemory("storkey").fit(X).coupling_, storkey_by_loops(X), atol=1e-12)
    # The first pattern alone is Hebb's rule.
    one = HopfieldMemory("storkey").fit(X[:1]).coupling_
    assert_allclose(one, HopfieldMemory("hebb").fit(X[:1]).coupling_)


@crowded
@pytest.mark.parametrize("n", [1, 3, 20])
def test_dependent_and_repeated_patterns_are_one(n):
    X = spins(3, 40)
    product = X[0] * X[1] * X[2]  # not in the span
    majority = np.sign(X.sum(0))  # (x0 + x1 + x2 - product) / 2: it is, with the product
    independent = np.vstack([X, product])
    dependent = np.vstack([np.repeat(independent, n, axis=0), -X, majority])
    memory = HopfieldMemory("pseudoinverse").fit(dependent)
    expected = HopfieldMemory("pseudoinverse").fit(independent)
    assert_allclose(memory.coupling_, expected.coupling_, atol=1e-12)


@crowded
def test_a_dense_update_is_a_softmax_of_products():
    X, x = reals(), reals(3, seed=1)
    memory = HopfieldMemory(beta=0.7, similarity="dot", max_steps=1).fit(X)
    with pytest.warns(ConvergenceWarning, match="3 of 3 rows still changed after 1 steps"):
        new = memory.transform(x)
    assert_allclose(new, softmax(0.7 * x @ X.T, axis=1) @ X)
    assert_allclose(
        memory.energy(x), -logsumexp(0.7 * x @ X.T, axis=1) + 0.35 * (x**2).sum(1), rtol=1e-12
    )


def test_distances_are_a_sum_of_normal_kernels():
    X, x = reals(), reals(3, seed=1)
    half = ((x[:, None] - X) ** 2).sum(2) / 2
    memory = HopfieldMemory(beta=3.0, max_steps=1).fit(X)
    assert_allclose(memory.energy(x), -logsumexp(-3 * half, axis=1))
    assert_allclose(memory.recall(x).rows, softmax(-3 * half, axis=1) @ X)


def test_both_similarities_agree_where_norms_are_equal():
    X = reals()
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    x = reals(4, seed=1)
    one, other = (HopfieldMemory(similarity=s, beta=9).fit(X) for s in ("dot", "euclidean"))
    assert_allclose(one.recall(x).rows, other.recall(x).rows, atol=1e-5)
    assert_allclose(one.energy(x) - other.energy(x), -4.5)  # beta / 2 for the norm of the patterns


@pytest.mark.parametrize("beta", [0.1, 1.0, 2.5])
@crowded
def test_a_dense_energy_of_spins_is_that_of_demircigil(beta):
    X, s = spins(5, 7), all_spins(7)
    memory = HopfieldMemory(beta=beta).fit(X)
    assert_allclose(memory.energy(s), -logsumexp(beta * s @ X.T, axis=1))
    repeated = HopfieldMemory(beta=beta).fit(np.repeat(X, 3, axis=0))
    assert_allclose(repeated.energy(s), memory.energy(s) - np.log(3))


# ------------------------------------------------------------------------------
# Energies and updates
# ------------------------------------------------------------------------------


class Traced:
    """A memory that hands on every step and keeps the energies."""

    def __init__(self, memory):
        self.memory, self.energies = memory, []

    def __getattr__(self, name):
        return getattr(self.memory, name)

    def next_rows(self, rows, order):
        self.energies.append(self.memory.energy(rows))
        return self.memory.next_rows(rows, order)


@crowded
@pytest.mark.parametrize("seed", leading(1, range(5)))
@each_rule
def test_an_asynchronous_sweep_flips_what_lowers_the_energy(rule, seed):
    """Column by column, by differences of energies."""
    X, s = spins(5, 9, seed), spins(40, 9, seed + 1)
    memory = HopfieldMemory(rule).fit(X)
    order = np.random.default_rng(seed).permutation(9)
    expected = s.copy()
    for i in order:
        other = expected.copy()
        other[:, i] *= -1
        lower = memory.energy(other) < memory.energy(expected) - 1e-9
        expected[lower] = other[lower]
    assert_array_equal(memory._memory.next_rows(s, order), expected)
    assert_array_equal(memory._memory.next_rows(s[:3], order), expected[:3])


@crowded
@each_rule
def test_all_at_once_flips_what_alone_lowers_the_energy(rule):
    X, s = spins(4, 8), all_spins(8)
    memory = HopfieldMemory(rule, update="synchronous").fit(X)
    expected = s.copy()
    for i in range(8):
        other = s.copy()
        other[:, i] *= -1
        expected[:, i] = np.where(memory.energy(other) < memory.energy(s) - 1e-9, -s[:, i], s[:, i])
    assert_array_equal(memory._memory.next_rows(s, None), expected)


@crowded
@pytest.mark.parametrize("coding", [spins, reals])
@each_rule
def test_the_energy_never_rises(rule, coding):
    """On many columns, so that sweeps take several blocks."""
    if coding is reals and rule != "dense":
        return
    X, x = coding(60, 150), coding(30, 150, seed=1)
    memory = HopfieldMemory(rule, random_state=0).fit(X)
    traced = Traced(memory._memory)
    found = hopfield.iterate(traced, memory._states(x), memory._orders(), 100)
    last = memory.energy(memory.recall(x).rows)
    assert found.converged.all()
    energies = [e for e in traced.energies if len(e) == len(x)]
    assert (np.diff(energies, axis=0) <= 1e-8).all()
    assert (last <= energies[-1] + 1e-8).all()


@crowded
@each_rule
def test_what_is_recalled_is_a_local_minimum(rule):
    s = all_spins(8)
    memory = HopfieldMemory(rule, random_state=0).fit(spins(3, 8))
    found = memory.recall(s)
    assert found.converged.all()
    for i in range(8):
        other = found.rows.copy()
        other[:, i] *= -1
        assert (memory.energy(other) >= memory.energy(found.rows) - 1e-9).all()
    assert_array_equal(found.n_steps == 0, (found.rows == s).all(1))


@pytest.mark.parametrize("rule", ["pseudoinverse", "dense"])
def test_stored_patterns_are_the_ground_states(rule):
    """By enumeration: those of a projection at its patterns and their mirror images."""
    X, s = hadamard(8)[[1, 3, 5]].astype(float), all_spins(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = HopfieldMemory(rule).fit(X)
    energies = memory.energy(s)
    lowest = s[energies < energies.min() + 1e-9]
    expected, least = X, -np.log(np.exp(8) + 2)
    if rule == "pseudoinverse":
        expected, least = np.vstack([X, -X]), (3 - 8) / 2  # (rank - d) / 2
    assert energies.min() == pytest.approx(least)
    assert set(map(tuple, lowest)) == set(map(tuple, expected))


@crowded
@pytest.mark.parametrize("load", [0.1, 0.5, 0.95])
def test_patterns_of_the_pseudoinverse_are_fixed(load):
    X = spins(round(100 * load), 100)
    found = HopfieldMemory("pseudoinverse").fit(X).recall(X)
    assert_array_equal(found.rows, X)
    assert (found.n_steps == 0).all()


@crowded
def test_ties_stay():
    memory = HopfieldMemory("hebb").fit([[1, 1, 0, 0], [1, 1, 1, 1]])  # J couples 0-1 and 2-3
    assert_allclose(memory.coupling_[:2, 2:], 0)
    assert_array_equal(memory.transform([[1, 1, 0, 0]]), [[1, 1, 0, 0]])
    full_rank = HopfieldMemory("pseudoinverse")
    with pytest.warns(UserWarning, match="a load of 1, and the limit of .* is 0.5"):
        full_rank.fit(np.where(np.eye(8), -1, 1))
    x = all_spins(8)
    assert_array_equal(full_rank.transform(x), x)  # J is zero: nothing changes


@crowded
def test_large_betas_decide_as_limits():
    """From exp(2 beta) = 4 n on, nothing depends on beta."""
    X, s = spins(30, 10), all_spins(10)
    rows = [HopfieldMemory(beta=b, random_state=0).fit(X).recall(s).rows for b in (2.4, 5, 1e6)]
    assert_array_equal(rows[0], rows[1])
    assert_array_equal(rows[0], rows[2])
    assert np.isfinite(HopfieldMemory(beta=1e6).fit(X).energy(s)).all()


# ------------------------------------------------------------------------------
# Cycles and steps
# ------------------------------------------------------------------------------


@crowded
def test_a_cycle_of_two_by_hand():
    """Two spins that follow each other: J = [[0, 1/2], [1/2, 0]] for the pattern (1, 1)."""
    memory = HopfieldMemory("hebb", update="synchronous").fit([[-1, -1], [1, 1]])
    found = memory.recall([[1, -1], [1, 1]])
    assert isinstance(found, Recall)
    assert_array_equal(found.cycle_length, [2, 1])
    assert_array_equal(found.converged, [False, True])
    assert found.n_steps[1] == 0
    with pytest.warns(UserWarning, match="1 of 2 rows end in a cycle of length 2"):
        memory.transform([[1, -1], [1, 1]])
    still = clone(memory).set_params(update="asynchronous").fit([[-1, -1], [1, 1]])
    assert still.recall([[1, -1]]).converged.all()


class Turning(hopfield.Memory):
    """All spins move on by a place: cycles of the length of the period of a row."""

    def energy(self, rows):
        return np.zeros(len(rows))

    def next_rows(self, rows, order):
        return np.roll(rows, 1, axis=1)


def test_the_length_of_any_cycle_is_found():
    rows = np.ones((4, 12))
    for period, row in zip((2, 3, 12), rows[1:], strict=True):
        row[::period] = -1
    found = hopfield.iterate(Turning(), rows, itertools.repeat(None), 100)
    assert_array_equal(found.cycle_length, [1, 2, 3, 12])
    short = hopfield.iterate(Turning(), rows, itertools.repeat(None), 5)
    assert_array_equal(short.cycle_length, [1, 2, 0, 0])
    assert_array_equal(short.converged, [True, False, False, False])
    assert short.n_steps[3] == 5


@crowded
def test_cycles_under_couplings_have_length_two():
    """Goles (1985): symmetric couplings have no longer ones."""
    memory = HopfieldMemory("hebb", update="synchronous").fit(spins(9, 10))
    assert set(memory.recall(all_spins(10)).cycle_length) == {1, 2}


def test_a_row_is_recalled_alike_in_any_company():
    X = spins(6, 70)
    memory = HopfieldMemory("hebb").fit(X)  # without a seed: one is drawn in fit
    x = flipped(np.repeat(X, 4, axis=0), 0.4)
    rows = memory.transform(x)
    assert_array_equal(memory.transform(x), rows)
    assert_array_equal(memory.transform(x[7:9]), rows[7:9])


def test_rows_are_recalled_in_batches(monkeypatch):
    for X in (spins(9, 30), reals(9, 30)):
        x = X[:5]
        expected = HopfieldMemory(random_state=0).fit(X)
        monkeypatch.setattr(hopfield, "MOST_ENTRIES", 60)
        small = HopfieldMemory(random_state=0).fit(X)
        assert small._memory.batch == 2
        assert_allclose(small.recall(-x).rows, expected.recall(-x).rows, atol=1e-12)
        assert_allclose(small.energy(x), expected.energy(x))
        assert small.score(-x) == pytest.approx(expected.score(-x))
        monkeypatch.undo()


# ------------------------------------------------------------------------------
# Capacity
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "n", "d"),
    [("hebb", 20, 300), ("pseudoinverse", 60, 300), ("storkey", 45, 300), ("dense", 1000, 100)],
)
def test_patterns_are_recalled_below_the_limit(rule, n, d):
    """Loads of 0.07, 0.2, 0.15 and 10; benchmarks/results/hopfield.md has the curves."""
    X = spins(n, d)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = HopfieldMemory(rule, random_state=0).fit(X)
    assert memory.load_ == n / d
    rows = memory.transform(flipped(X[:60], 0.2))
    assert ((rows * X[:60]).mean(1) > 0.95).mean() >= 0.95
    assert memory.score(flipped(X[:60], 0.2), X[:60]) > 0.95


@full
def test_hebb_loses_its_patterns_at_the_limit():
    """Amit, Gutfreund and Sompolinsky (1985): an overlap of 0.967 at a load of 0.138."""
    X = spins(276, 2000, 0)
    assert HopfieldMemory("hebb").fit(X[:240]).score(X[:240], X[:240]) > 0.97
    with pytest.warns(UserWarning, match="load of 0.2, and the limit .* is 0.138"):
        over = HopfieldMemory("hebb").fit(spins(400, 2000, 0))
    assert over.score(over.patterns_, over.patterns_) < 0.7


@pytest.mark.parametrize(
    ("rule", "limit"), [("hebb", "0.138"), ("storkey", "0.33"), ("pseudoinverse", "0.5")]
)
def test_too_many_patterns_are_announced(rule, limit):
    with pytest.warns(UserWarning, match=f"60 patterns of 100 .* a load of 0.6, .* is {limit}"):
        HopfieldMemory(rule).fit(spins(60, 100))


def test_more_spins_than_the_dense_rule_can_hold_are_announced():
    with pytest.warns(UserWarning, match=r"16 patterns of 4 .* a load of 4, .* is 1 \(Demircigil"):
        HopfieldMemory().fit(all_spins(4))


def test_dependent_patterns_take_no_room():
    X = np.repeat(spins(5, 20), 10, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = HopfieldMemory("pseudoinverse").fit(X)
    assert memory.load_ == 2.5


@pytest.mark.parametrize(
    ("memory", "X"),
    [
        (HopfieldMemory("hebb"), np.where(np.arange(100) < 80, 1, spins(4, 100))),  # much alike
        (HopfieldMemory(beta=1e-3), spins(20, 50)),
        (HopfieldMemory(beta=1e-3), reals()),
    ],
    ids=["hebb", "spins", "real"],
)
def test_lost_patterns_are_announced(memory, X):
    with pytest.warns(UserWarning, match=r"of the patterns are lost in the first step"):
        memory.fit(X)


# ------------------------------------------------------------------------------
# Real rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("unit", [1e-40, 1.0, 1e40])
def test_real_patterns_are_recalled_in_any_unit(unit, shift):
    X = reals(50, 10)
    x = X + 0.3 * reals(50, 10, seed=1)
    memory = HopfieldMemory().fit(unit * (X + shift))
    assert memory.coding_ == "real"
    rows = memory.transform(unit * (x + shift)) / unit - shift
    assert (np.abs(rows - X).max(1) < 0.05).mean() > 0.9
    if not shift:
        same = HopfieldMemory().fit(X)
        assert memory.beta_ * unit**2 == pytest.approx(same.beta_)
        assert_allclose(memory.energy(unit * x), same.energy(x))


def test_the_automatic_beta_gives_each_pattern_its_weight():
    X = reals(20, 3)
    memory = HopfieldMemory().fit(X)
    half = ((X[:, None] - X) ** 2).sum(2) / 2
    weight = softmax(-memory.beta_ * half, axis=1).diagonal()
    assert weight.min() >= 0.99
    repeated = HopfieldMemory().fit(np.vstack([X, X[:7]]))
    assert repeated.beta_ == pytest.approx(memory.beta_, rel=0.1)
    with pytest.warns(UserWarning, match="are lost"):  # not all are closest to themselves
        HopfieldMemory(similarity="dot").fit(X)
    jittered = np.vstack([X, X + 1e-9])  # the same but for rounding
    with pytest.warns(UserWarning, match="are lost"):  # their weights are halves
        again = HopfieldMemory().fit(jittered)
    assert again.beta_ == pytest.approx(memory.beta_, rel=0.2)


@pytest.mark.parametrize("beta", [10.0, 1e6, 1e20])
def test_repetitions_decide_between_patterns_at_the_same_distance(beta):
    memory = HopfieldMemory(beta=beta).fit([[0.0], [0.0], [2.0], [10.0]])
    assert_allclose(memory.transform([[1.0]]), [[0.0]], atol=1e-6)


def test_patterns_that_nothing_separates_are_refused(monkeypatch):
    """A product is larger with a longer row; among few of many, there may be no longest."""
    monkeypatch.setattr(hopfield, "MOST_CHECKED", 1)
    X = np.arange(1.0, 5)[:, None] * [[0.5, 1.0]]
    with pytest.raises(ValueError, match='similarity="dot" separates no pattern'):
        HopfieldMemory(similarity="dot").fit(X)
    HopfieldMemory().fit(X)


@pytest.mark.parametrize("X", [[[2.5, -3.0]], [[2.5, -3.0]] * 4, [[0.5]], [[2.0, 2.0], [2.0, 2.0]]])
def test_one_real_pattern_is_all_that_is_recalled(X):
    memory = HopfieldMemory().fit(X)
    assert_allclose(memory.transform(np.array(X)[:1] + 7), X[:1])
    assert np.isfinite(memory.energy(X)).all()


# ------------------------------------------------------------------------------
# As a part of skebm
# ------------------------------------------------------------------------------


@crowded
@pytest.mark.parametrize("coding", ["bits", "spins"])
@each_quadratic
def test_the_energy_is_a_boltzmann_machine(rule, coding):
    X = spins(3, 10)
    memory = HopfieldMemory(rule).fit(bits(X) if coding == "bits" else X)
    energy, s = memory.energy_, all_spins(10)
    assert isinstance(energy, BoltzmannMachine)
    assert memory.coding_ == coding
    rows = torch.tensor(bits(s))
    expected = memory.energy(bits(s) if coding == "bits" else s)
    assert_allclose(energy(rows).detach(), expected, atol=1e-10)
    assert_allclose(expected, -((s @ memory.coupling_) * s).sum(1) / 2)
    log_z = Exact().estimate(energy).value
    assert float(log_z) == pytest.approx(logsumexp(-expected))


def test_a_sampler_takes_the_energy():
    X = spins(1, 30)
    memory = HopfieldMemory("hebb").fit(bits(X))
    generator = torch.Generator().manual_seed(0)
    energy = memory.energy_.requires_grad_(False)
    state, _ = Gibbs().run(
        energy, energy.domain.uniform(50, generator, dtype=torch.float64), 50, generator
    )
    overlap = np.abs((2 * state.x.numpy() - 1) @ X[0]) / 30
    assert overlap.mean() > 0.3  # of fair coins 0.15


def test_a_dense_memory_has_no_couplings():
    memory = HopfieldMemory().fit(spins(2, 5))
    for name in ("coupling_", "energy_"):
        assert not hasattr(memory, name)
    with pytest.raises(AttributeError, match="by this rule has no coupling"):
        _ = memory.coupling_
    assert memory.beta_ == 1
    memory.set_params(rule="hebb").fit(spins(2, 30))
    assert not hasattr(memory, "beta_")
    assert hasattr(memory, "coupling_")


# ------------------------------------------------------------------------------
# As an estimator
# ------------------------------------------------------------------------------


@parametrize_with_checks(
    {"default": HopfieldMemory(), "beta": HopfieldMemory(beta=100.0)},
    first=("default",),
    modes=("beta",),
)
def test_sklearn_checks(estimator, check):
    check(estimator)


@each_rule
def test_bits_and_spins_are_the_same(rule):
    X = spins(3, 40)
    x = flipped(X, 0.1)
    one, other = HopfieldMemory(rule, random_state=0), HopfieldMemory(rule, random_state=0)
    rows = one.fit(X).transform(x)
    assert_array_equal(other.fit(bits(X)).transform(bits(x)), bits(rows))
    assert_allclose(one.energy(x), other.energy(bits(x)))
    assert one.score(x, X) == other.score(bits(x), bits(X))
    for kind in (bool, int, np.float32):
        assert_array_equal(other.transform(bits(x).astype(kind)), bits(rows))


def test_scores_are_overlaps():
    X = spins(3, 60)
    memory = HopfieldMemory("pseudoinverse").fit(X)
    assert memory.score(X) == memory.score(X, X) == 1
    assert memory.score(X, [0, 1, 1]) == 1  # labels are not used
    assert memory.score(X, flipped(X, 0.5)) == pytest.approx((flipped(X, 0.5) * X).mean())
    with pytest.raises(ValueError, match="y has 2 rows and X 3"):
        memory.score(X, X[:2])
    with pytest.raises(ValueError, match="the patterns are spins"):
        memory.score(X, bits(X))
    X = [[3.0, 4.0], [0.0, 0.0], [9.0, 5.0]]
    real = HopfieldMemory(beta=100).fit(X)  # its mean is (4, 3)
    assert real.score(X, X) == real.score(X) == pytest.approx(1)
    expected = 2 * (-4 * 5 - 3 * 2) / (25 + 29)  # of (-4, -3) and (5, 2)
    assert real.score(X[1:2], X[2:]) == pytest.approx(expected)


def test_a_pipeline_denoises_before_it_classifies():
    X, y = load_digits(return_X_y=True)
    X, y = (X[:200] > 7).astype(float), y[:200]
    rows = np.abs(X - (np.random.default_rng(0).random(X.shape) < 0.2))
    plain = LogisticRegression(max_iter=500).fit(X, y)
    pipeline = make_pipeline(HopfieldMemory(random_state=0), clone(plain)).fit(X, y)
    assert pipeline.score(rows, y) > plain.score(rows, y) + 0.05


@crowded
def test_a_search_takes_a_memory():
    search = GridSearchCV(HopfieldMemory(), {"beta": [0.1, 10.0]}, cv=2).fit(reals(30))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@each_rule
def test_memories_are_copied(rule):
    X = spins(3, 40)
    memory = HopfieldMemory(rule).fit(X)
    again = pickle.loads(pickle.dumps(memory))
    x = flipped(X, 0.4)
    assert_array_equal(again.transform(x), memory.transform(x))
    with pytest.raises(NotFittedError):
        clone(memory).transform(x)
    with pytest.raises(NotFittedError):
        _ = clone(memory).coupling_


def test_frames_go_in_and_out():
    X = pd.DataFrame(bits(spins(2, 4)), columns=list("abcd"), index=["one", "two"])
    memory = HopfieldMemory().set_output(transform="pandas").fit(X)
    rows = memory.transform(X)
    pd.testing.assert_frame_equal(rows, X)
    assert memory.get_feature_names_out().tolist() == list("abcd")
    with pytest.raises(ValueError, match="Column 'c'"):
        memory.transform(X.assign(c=0.5))
    with pytest.raises(ValueError, match="NaN, in column 'b'"):
        memory.fit(X.assign(b=[np.nan, 1]))
    pd.testing.assert_frame_equal(memory.transform(X), rows)  # as before the fit that failed


@pytest.mark.parametrize(
    ("memory", "X", "reason"),
    [
        (HopfieldMemory("hebb", beta=2.0), spins(2, 40), "beta, because"),
        (HopfieldMemory("storkey", similarity="dot"), spins(2, 40), "similarity, because rule"),
        (HopfieldMemory(similarity="dot"), spins(2, 40), "all spins have the same norm"),
        (HopfieldMemory(update="asynchronous"), reals(), "real rows are updated as a whole"),
        (HopfieldMemory(beta=2.0), [[0.5, 0.25]], "all patterns are alike"),
    ],
)
def test_settings_without_effect_are_announced(memory, X, reason):
    with pytest.warns(UserWarning, match=f"Without effect on this fit: .*{reason}"):
        memory.fit(X)


@pytest.mark.parametrize(
    "params", [{"beta": 0}, {"beta": True}, {"rule": "Hebb"}, {"max_steps": 0}, {"update": None}]
)
def test_bad_parameters_are_refused(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        HopfieldMemory(**params).fit(spins(2, 5))


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


def with_entry(value):
    X = bits(spins(3, 4))
    X[1, 2] = value
    return X


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (with_entry(np.nan), "NaN, in column 'x2'"),
        (with_entry(np.inf), "infinity, in column 'x2'"),
        (with_entry(-np.inf), "infinity, in column 'x2'"),
        (with_entry(1e300), "Column 'x2' has values above 1e\\+100"),
        (with_entry(7), "column 'x2' holds 7"),
        (with_entry(-1), "column 'x2'"),
        (np.ones((3, 1)), "n_features = 1"),
        (np.empty((0, 4)), "0 sample"),
        (np.empty((4, 0)), "0 feature"),
        (np.ones(4), "1D array"),
        ([["a", "b"]], "could not convert"),
        (sp.csr_array(np.eye(4)), "Sparse data was passed"),
    ],
)
@each_quadratic
def test_rows_that_cannot_be_stored_are_refused(X, message, rule):
    with pytest.raises((ValueError, TypeError), match=message):
        HopfieldMemory(rule).fit(X)


def test_the_dense_rule_takes_any_finite_numbers():
    for value in (7, -1, 0.5):
        memory = HopfieldMemory().fit(with_entry(value))
        assert memory.coding_ == "real"
        assert_allclose(memory.transform(with_entry(value)), with_entry(value), atol=0.05)
    with pytest.raises(ValueError, match="All values are below 1e-100"):
        HopfieldMemory().fit([[1e-150, 0.0], [0.0, 1e-150]])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0, 1, 1]], "3 features, but HopfieldMemory is expecting 4"),
        ([[0, 1, 1, 2]], "Column 'x3'"),
        ([[0, -1, 1, 1]], "Column 'x1'"),
        ([[0, np.nan, 1, 1]], "NaN, in column 'x1'"),
        (np.empty((0, 4)), "0 sample"),
    ],
)
@pytest.mark.parametrize("method", ["transform", "recall", "energy", "score"])
def test_rows_that_cannot_be_recalled_are_refused(method, x, message):
    memory = HopfieldMemory("pseudoinverse").fit([[0, 1, 1, 0]])
    with pytest.raises(ValueError, match=message):
        getattr(memory, method)(x)


@each_rule
@pytest.mark.parametrize(
    "X",
    [
        np.ones((1, 6)),
        np.ones((5, 6)),
        np.zeros((5, 6)),
        -np.ones((5, 6)),
        np.hstack([np.ones((2, 3)), bits(spins(2, 30))]),
    ],
    ids=["one", "ones", "zeros", "minus", "constant columns"],
)
@crowded
def test_unusual_tables_are_stored(rule, X):
    memory = HopfieldMemory(rule, random_state=0).fit(X)
    assert_array_equal(memory.transform(X), X)
    assert memory.score(X, X) == 1
    other = X[:1].copy()
    other[0, 0] = 1 - other[0, 0] if memory.coding_ == "bits" else -other[0, 0]
    assert_array_equal(memory.transform(other), X[:1])


def test_couplings_that_overflow_are_refused():
    with pytest.raises(ValueError, match="couplings of rule='storkey' overflow"):
        HopfieldMemory("storkey").fit(spins(6000, 8))


@crowded
def test_the_dense_rule_takes_one_column():
    memory = HopfieldMemory().fit([[1], [1]])
    assert_array_equal(memory.transform([[0], [1]]), [[1], [1]])
