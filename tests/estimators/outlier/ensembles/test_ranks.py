"""p-values of merged ranks: by their definition, uniform, and the scores that order rows."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skebm.estimators.outlier.ensembles.merging import MEANS
from skebm.estimators.outlier.ensembles.ranks import RankCalibration, ScoreTail


def scores_of(kind, n, random):
    x = random.normal(size=(n, 3)) + random.normal(size=(n, 1))
    if kind == "ties":
        x = x.round()
        x[random.random((n, 3)) < 0.1] = -np.inf
        x[random.random((n, 3)) < 0.1] = np.inf
    return x


def by_definition(calibration, scores, merge):
    found = []
    for row in scores:
        rows = np.concatenate([calibration, row[None]])
        ranks = (rows[:, None] >= rows[None]).sum(1)
        value = MEANS[merge](ranks.astype(float))
        found.append(np.sum(value <= value[-1]))
    return np.array(found)


@pytest.mark.parametrize("kind", ["numbers", "ties"])
@pytest.mark.parametrize("merge", MEANS)
def test_counts_are_those_of_the_definition(kind, merge):
    random = np.random.default_rng(0)
    calibration, scores = scores_of(kind, 60, random), 1.3 * scores_of(kind, 200, random)
    found = RankCalibration.fit(calibration, merge).n_at_or_below(scores)
    assert_array_equal(found, by_definition(calibration, scores, merge))


@pytest.mark.parametrize("merge", MEANS)
def test_every_order_of_exchangeable_rows_gives_exact_levels(merge):
    """All orders of five rows are equally likely; four calibrate, the last is new."""
    rows = np.random.default_rng(1).normal(size=(5, 3))
    p = []
    for order in itertools.permutations(range(5)):
        calibration = RankCalibration.fit(rows[list(order[:4])], merge)
        p.append(calibration.n_at_or_below(rows[[order[4]]])[0] / 5)
    for level in (0.2, 0.4, 0.6, 0.8):
        assert np.mean(np.array(p) <= level + 1e-12) <= level + 1e-12
    if merge == "geometric":  # means without ties
        assert_allclose(np.unique(p), [0.2, 0.4, 0.6, 0.8, 1])


@pytest.mark.parametrize("kind", ["numbers", "ties"])
@pytest.mark.parametrize("merge", MEANS)
def test_scores_order_rows_as_p_values_do(kind, merge):
    random = np.random.default_rng(2)
    calibration = RankCalibration.fit(scores_of(kind, 50, random), merge)
    scores = 2 * scores_of(kind, 400, random)
    k, value = calibration.n_at_or_below(scores), calibration.log_p_values(scores)
    assert np.isfinite(value).all()
    assert (value <= np.log(k / 51) + 1e-12).all()
    inside = k > 1
    assert (value[inside] > np.log((k[inside] - 1) / 51)).all()
    assert (k < 51).any()


@pytest.mark.parametrize("merge", MEANS)
def test_rows_beyond_all_others_are_ordered_by_how_far_they_are(merge):
    random = np.random.default_rng(3)
    calibration = RankCalibration.fit(random.normal(size=(30, 3)), merge)
    far = -np.arange(4.0, 40)[:, None] * np.ones(3)
    assert (calibration.n_at_or_below(far) == 1).all()
    assert (np.diff(calibration.log_p_values(far)) < 0).all()


def test_the_tail_is_that_of_an_exponential_distribution():
    scores = -np.random.default_rng(0).exponential(3.0, 20_000)
    tail = ScoreTail.fit(scores)
    assert tail.scale == pytest.approx(3, rel=0.1)
    values = np.array([-1.0, -5.0, -15.0])
    assert_allclose(tail.log_rates(values), values / 3, atol=0.15)
    beyond = scores.min() - 30
    assert tail.log_rates(np.array([beyond]))[0] == pytest.approx(beyond / 3, abs=3)


@pytest.mark.parametrize(
    "scores", [np.full(9, 2.0), np.full(9, -np.inf), np.array([1e308, -1e308]), np.zeros(1)]
)
def test_tails_of_scores_without_a_spread(scores):
    tail = ScoreTail.fit(scores)
    new = np.array([-np.inf, -1e308, 0.0, 1e308, np.inf])
    found = tail.log_rates(new)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()
    assert found.max() <= 0
