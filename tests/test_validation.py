"""Rows that occur several times: exact equality, what is left out with a row, samples of rows."""

import numpy as np
import pytest
import torch

from skebm import (
    BoltzmannMachineDensity,
    EnergyOutlierDetector,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm._validation import distinct_numbers_of, distinct_pairs, sample_that_varies, that_vary
from skebm.distributions import Gaussian, GaussianMixture, KernelDensity, LowRankMixture
from skebm.estimators.outlier import product
from skebm.estimators.queries import tractable
from tests.support.tiers import full, leading, only_full

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(300, 3)), RNG.normal(size=(1000, 3))
TRUTH = -4.26


def by_dictionary(rows):
    seen = {}
    keys = [tuple("nan" if v != v else v + 0.0 for v in row) for row in rows.tolist()]
    member = [seen.setdefault(key, len(seen)) for key in keys]
    return [member.index(k) for k in range(len(seen))], member


@pytest.mark.parametrize("n_columns", [0, 1, 3])
def test_equal_rows_are_found_exactly(n_columns):
    rows = np.random.default_rng(1).choice([0.0, -0.0, 1.0, np.nan, 1 + 2**-52], (60, n_columns))
    first, member = distinct_numbers_of(rows)
    expected = by_dictionary(rows)
    assert first.tolist() == expected[0]
    assert member.tolist() == expected[1]


def test_rows_of_one_hash_are_compared(monkeypatch):
    rows = np.random.default_rng(1).integers(0, 2, (40, 3))
    expected = by_dictionary(rows)
    monkeypatch.setattr("skebm._validation._next_hash", lambda code, bits: code)
    first, member = distinct_numbers_of(rows)
    assert (first.tolist(), member.tolist()) == (expected[0], expected[1])


def test_copies_are_merged_unless_rows_recur_as_values_do():
    weight = np.arange(1.0, 5)
    rows, y = np.array([[0.0], [1.0], [0.0], [0.0]]), np.array([0, 0, 0, 1])
    found = distinct_pairs(rows, y, weight)
    assert found[0].ravel().tolist() == [0, 1, 0]
    assert found[1].tolist() == [0, 0, 1]
    assert found[2].tolist() == [4, 2, 4]
    assert distinct_pairs(np.repeat(rows[:2], 3, axis=0), None, None)[2] is None
    few_values = np.repeat([[0.0], [1.0]], [1, 40], axis=0)
    assert distinct_pairs(few_values, None, None)[0] is few_values


def test_samples_have_a_row_for_each_column_that_varies():
    rows = np.zeros((100, 3))
    rows[70, 0] = rows[70, 1] = rows[80, 1] = 1.0
    some = np.arange(10)
    assert that_vary(rows, some).tolist() == [70]
    index, weight = sample_that_varies(rows, np.full(100, 2.0), some)
    assert index.tolist() == [*range(10), 70]
    np.testing.assert_allclose(weight[-1], 0.2)
    assert not len(that_vary(rows, np.array([0, 70])))


# ------------------------------------------------------------------------------
# Densities
# ------------------------------------------------------------------------------


def with_copies(kind):
    if kind == "twice":
        return np.repeat(X, 2, axis=0)
    if kind == "a third twice":
        return np.concatenate([X, X[:100]])
    return np.concatenate([X, np.repeat(X[:1], 100, axis=0)])


@pytest.mark.parametrize("kind", ["twice", "a third twice", "one a hundred times"])
@pytest.mark.parametrize("name", ["kernel", "mixture", "gaussian", only_full("stack")])
def test_copies_take_no_likelihood_from_new_rows(name, kind):
    model = TractableDensity(name, random_state=0).fit(with_copies(kind))
    # A row that was seen a hundred times of four hundred has a quarter of the probability.
    assert model.score(NEW) > TRUTH - (0.5 if kind.startswith("one") else 0.2)
    if kind == "twice":
        once = TractableDensity(name, random_state=0).fit(X)
        np.testing.assert_allclose(model.score_samples(NEW), once.score_samples(NEW), atol=1e-9)


@pytest.mark.parametrize("method", ["quantile", pytest.param("conformal", marks=full)])
def test_the_default_detector_of_copied_rows(method):
    for kind in ("twice", "a third twice"):
        found = EnergyOutlierDetector(method=method, random_state=0).fit(with_copies(kind))
        assert np.mean(found.predict(NEW) == -1) < 0.17


def test_copies_are_one_row_for_the_calibration():
    once, twice = (
        EnergyOutlierDetector(TractableDensity("kernel"), method=method, random_state=0).fit(rows)
        for method in ("cross-conformal",)
        for rows in (X, np.repeat(X, 2, axis=0))
    )
    assert once.n_calibration_ == twice.n_calibration_ == 300
    np.testing.assert_allclose(once.p_values(NEW), twice.p_values(NEW))


@full
def test_copies_of_rows_under_a_kernel_base():
    twice = ScoreMatchingDensity(base="kernel", n_iter=0, random_state=0).fit(with_copies("twice"))
    assert twice.score(NEW) > TRUTH - 0.2


@pytest.mark.parametrize("scale", [1e-3, 0.5, 7.0])
def test_distributions_of_numbers_have_no_scale_of_weights(scale):
    x, at = torch.from_numpy(X[:60]), torch.from_numpy(NEW[:20])
    fits = [lambda w: KernelDensity.fit(x, w), lambda w: KernelDensity.fit(x, w, n_scales=2)]
    fits += [lambda w: GaussianMixture.fit(x, w, 3), lambda w: LowRankMixture.fit(x, w, 2, 1)]
    fits += [lambda w: KernelDensity.fit(x, w, n_neighbours=4)]
    fits += [lambda w: Gaussian.fit(x.repeat(2, 1), w.repeat(2))] if scale >= 0.5 else []
    for fit in fits:
        found, truth = (fit(torch.full((60,), c, dtype=x.dtype)) for c in (scale, 1.0))
        torch.testing.assert_close(found.log_prob(at), truth.log_prob(at))


@full
def test_the_number_of_rows_and_not_their_weight_decides_on_edges():
    bits = (X[:80] + X[:80, :1] > 0).astype(float)
    one, other = (
        BoltzmannMachineDensity(l1="ebic", random_state=0).fit(bits, sample_weight=w)
        for w in (None, np.full(80, 9.0))
    )
    np.testing.assert_array_equal(one.couplings_, other.couplings_)


# ------------------------------------------------------------------------------
# Rare values
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", leading(1, range(3)))
def test_a_flag_that_few_rows_have(seed, monkeypatch):
    """Standardised, so that the mean of equal numbers is not one of them."""
    monkeypatch.setattr(tractable, "MOST_ROWS", 100)
    monkeypatch.setattr(product, "MOST_ROWS", 60)
    rows = np.random.default_rng(5).normal(size=(500, 3))
    rows[:, 2] = 0
    rows[[5, 200, 400], 2] = 1
    rows = (rows - rows.mean(0)) / rows.std(0)
    found = EnergyOutlierDetector(random_state=seed).fit(rows)
    assert (found.predict(rows[rows[:, 2] > 1]) == -1).all()
    assert np.mean(found.predict(rows) == -1) < 0.12
    for name in ("stack", "mixture")[seed == 0 :]:
        assert np.isfinite(TractableDensity(name, random_state=seed).fit(rows).score(rows))


def test_equal_numbers_are_constant_whatever_their_mean():
    value = np.float64(-0.012248410659)
    rows = torch.from_numpy(np.column_stack([RNG.normal(size=5000), np.full(5000, value)]))
    for q in (KernelDensity.fit(rows[:500]), Gaussian.fit(rows), GaussianMixture.fit(rows)):
        at = torch.tensor([[0.0, value], [0.0, value + 1]], dtype=rows.dtype)
        low, high = q.log_prob(at).flip(0)
        assert float(high - low) == pytest.approx(0.5, rel=1e-6)
