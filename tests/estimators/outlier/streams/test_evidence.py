"""Bets are densities, and their evidence is what the formula says, with its levels."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skebm.estimators.outlier.streams.evidence import (
    N_BETS,
    Evidence,
    log_bets,
    weight_from,
)
from skebm.estimators.outlier.streams.ranks import SortedScores, online_p_values
from tests.support.tiers import full


def test_bets_are_densities():
    # Substituting p = x**20 and 1 - p = x**20 on each half makes the poles harmless.
    x = (np.arange(400_000) + 0.5) / 400_000 * 0.5 ** (1 / 20)
    weight = 20 * x**19 * 0.5 ** (1 / 20) / 400_000
    mass = [np.sum(np.exp(log_bets(p)) * weight, axis=1) for p in (x**20, 1 - x**20)]
    assert len(mass[0]) == N_BETS
    assert_allclose(sum(mass), 1, atol=2e-3)
    assert np.isfinite(log_bets(np.array([0.0, 5e-324, 1e-9, 0.5, 1.0]))).all()


def test_weights_of_all_rows_sum_to_one():
    assert weight_from(np.array(0)) == 1
    rows = np.arange(10_000)
    assert (np.diff(weight_from(rows)) < 0).all()
    assert weight_from(np.array(2.0**1000)) < 0.0011


def by_definition(p, *, renewed):
    """The sum over rows at which a change may begin, term by term."""
    bets, found = np.exp(log_bets(p)), []
    for t in range(1, len(p) + 1):
        weights = [1.0] * t
        if not renewed:
            weights = [
                float(weight_from(np.array(r)) - weight_from(np.array(r + 1))) for r in range(t)
            ]
        terms = [w * bets[:, r:t].prod(1).mean() for r, w in enumerate(weights)]
        found.append(sum(terms) + (0 if renewed else float(weight_from(np.array(t)))))
    return np.log(found)


@pytest.mark.parametrize("renewed", [False, True])
def test_evidence_is_the_sum_over_rows_at_which_a_change_may_begin(renewed):
    p = np.random.default_rng(0).random(40) ** 2
    evidence, value = Evidence.none(renewed=renewed).with_p_values(p)
    assert_allclose(value, by_definition(p, renewed=renewed), rtol=1e-9)
    assert evidence.value == pytest.approx(value[-1])
    parts, state = [], Evidence.none(renewed=renewed)
    for rows in np.split(p, [1, 1, 7, 30]):
        state, found = state.with_p_values(rows)
        parts.append(found)
    assert_allclose(np.concatenate(parts), value, rtol=1e-9)
    assert_array_equal(state.change, evidence.change)
    assert state.likeliest_change == evidence.likeliest_change


@pytest.mark.parametrize("renewed", [False, True])
def test_evidence_is_a_martingale(renewed):
    """The mean of the next value over p on a grid is the value, plus one if it is renewed."""
    for p in (np.array([0.9, 0.001, 0.3]), np.array([0.5] * 20)):
        state, value = Evidence.none(renewed=renewed).with_p_values(p)
        u = (np.arange(1000) + 0.5) / 1000
        grid = np.concatenate([u**20 / 2, 1 - u**20 / 2])
        weight = np.tile(10 * u**19 / 1000, 2)
        after = np.exp([state.with_p_values(q[None])[1][0] for q in grid])
        assert np.sum(after * weight) == pytest.approx(np.exp(value[-1]) + renewed, rel=5e-3)


def test_a_late_change_costs_its_logarithm():
    """A thousand small p-values after ten thousand others, and where they begin."""
    random = np.random.default_rng(1)
    p = np.concatenate([random.random(10_000), random.random(1000) ** 4])
    state, value = Evidence.none(renewed=False).with_p_values(p)
    first = int(np.argmax(value > np.log(100)))
    assert 10_000 < first < 10_060
    assert abs(state.likeliest_change - 10_000) < 40


def share_of_alarms(n_streams, n_known, level, scores_of, seed):
    random = np.random.default_rng(seed)
    found = 0
    for _ in range(n_streams):
        scores = scores_of(random, n_known + 10_000)
        known = SortedScores((np.sort(scores[:n_known]),))
        p, _ = online_p_values(known, scores[n_known:], 1 - random.random(10_000))
        found += Evidence.none(renewed=False).with_p_values(p)[1].max() >= -np.log(level)
    return found / n_streams


def few_values(random, n):
    return random.choice([0.0, 1.0, 5.0], p=[0.7, 0.25, 0.05], size=n)


@pytest.mark.parametrize("n_known", [50, pytest.param(1000, marks=full)])
@pytest.mark.parametrize(
    ("scores_of", "n_streams"),
    [
        (few_values, 25),
        pytest.param(few_values, 300, marks=full),
        pytest.param(lambda random, n: random.standard_cauchy(n), 300, marks=full),
    ],
)
def test_false_alarms_over_ten_thousand_rows(scores_of, n_streams, n_known):
    level = 0.2
    share = share_of_alarms(n_streams, n_known, level, scores_of, seed=n_known)
    assert share <= level + 3 * np.sqrt(level * (1 - level) / n_streams)


def test_false_alarms_with_uniform_p_values():
    """Many more streams: an alarm at any of 10,000 rows, and not much rarer than allowed."""
    random, level, n_streams = np.random.default_rng(0), 0.2, 100
    alarms = 0
    for _ in range(n_streams):
        p = random.random(10_000)
        alarms += Evidence.none(renewed=False).with_p_values(p)[1].max() >= -np.log(level)
    share = alarms / n_streams
    assert share <= level + 3 * np.sqrt(level * (1 - level) / n_streams)
    assert share > 0.02


def test_known_scores_that_do_not_grow_have_too_many_false_alarms():
    """Why rows join those that are known: 50 fixed ones are a biased sample for all rows."""
    random, level, n_streams = np.random.default_rng(0), 0.2, 40
    alarms = 0
    for _ in range(n_streams):
        known, scores = np.sort(random.normal(size=50)), random.normal(size=10_000)
        p = (np.searchsorted(known, scores) + 1 - random.random(10_000)) / 51
        alarms += Evidence.none(renewed=False).with_p_values(p)[1].max() >= -np.log(level)
    assert alarms / n_streams > 0.5


def test_the_mean_run_length_is_at_least_the_threshold():
    random, threshold, n_streams = np.random.default_rng(0), 100, 250
    lengths = []
    for _ in range(n_streams):
        value = Evidence.none(renewed=True).with_p_values(random.random(2000))[1]
        reached = np.flatnonzero(value >= np.log(threshold))
        lengths.append(reached[0] + 1 if len(reached) else 2000)
    error = np.std(lengths) / np.sqrt(n_streams)
    assert np.mean(lengths) >= threshold - 3 * error
    assert np.mean(lengths) < 10 * threshold
