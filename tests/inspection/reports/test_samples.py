"""Draws beside rows: distances, pairs, a classifier, copies."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from skebm.inspection.reports.columns import filled, rank_correlations, shared_columns
from skebm.inspection.reports.page import NotSaidError
from skebm.inspection.reports.samples import nearest_training_rows, two_sample_test

rng = np.random.default_rng(0)
ROWS, DRAWS, TRAIN = rng.normal(size=(3, 400, 3))


def test_distances_are_those_of_scipy_and_of_shares():
    kinds = np.random.default_rng(3).choice(["a", "b", "c"], (2, 400), p=[0.6, 0.3, 0.1])
    frames = [
        pd.DataFrame({"number": X[:, 0], "kind": kind})
        for X, kind in zip((ROWS, DRAWS + 0.3), kinds, strict=True)
    ]
    number, kind = shared_columns(*frames)
    assert number.distance == pytest.approx(stats.ks_2samp(ROWS[:, 0], DRAWS[:, 0] + 0.3).statistic)
    shares = [[(one == level).mean() for level in "abc"] for one in kinds]
    assert kind.distance == pytest.approx(np.abs(np.subtract(*shares)).sum() / 2)
    assert number.distance > number.by_chance
    assert kind.levels == ["a", "b", "c"]


@pytest.mark.parametrize("n_levels", [0, 2, 5, 20])
def test_equal_distributions_are_beyond_chance_in_a_twentieth_of_the_cases_at_most(n_levels):
    random = np.random.default_rng(1)
    draw = random.normal if not n_levels else lambda size: random.integers(n_levels, size=size)
    found = [
        shared_columns(
            pd.DataFrame({"x": _as_column(draw(size=200), n_levels)}),
            pd.DataFrame({"x": _as_column(draw(size=300), n_levels)}),
        )[0]
        for _ in range(200)
    ]
    assert sum(one.distance > one.by_chance for one in found) <= 20  # 18 with probability 0.02


def _as_column(values, n_levels):
    return values.astype(str) if n_levels else values


def test_correlations_are_those_of_scipy():
    X = ROWS @ np.array([[1, 0.5, 0], [0, 1, 0.2], [0, 0, 1]])
    np.testing.assert_allclose(rank_correlations(list(X.T)), stats.spearmanr(X).statistic)


def test_missing_entries_of_rows_are_missing_in_draws():
    holes = np.random.default_rng(2).random(ROWS.shape) < [0.5, 0.1, 0.0]
    found = shared_columns(np.where(holes, np.nan, ROWS), DRAWS)
    shares = [np.isnan(one.draws).mean() for one in found]
    np.testing.assert_allclose(shares, holes.mean(0), atol=0.1)  # four standard errors
    together = filled([one.rows for one in found], [1.0, 1.0, 1.0])
    assert np.isfinite(together).all()


def test_a_column_of_nothing_is_no_trouble():
    X = np.column_stack([ROWS[:, 0], np.full(400, np.nan)])
    found = shared_columns(X, DRAWS[:, :2], TRAIN[:, :2])
    assert np.isnan(found[1].distance)
    assert np.isfinite(found[1].by_chance)
    assert np.isfinite(filled([one.rows for one in found], [1.0, 1.0])).all()


def test_a_classifier_tells_what_differs_and_only_that():
    same = two_sample_test(shared_columns(ROWS, DRAWS), 0)
    assert abs(same.auroc - 0.5) < 3 * same.error
    other = two_sample_test(shared_columns(ROWS, DRAWS + [0, 3, 0]), 0)
    assert other.auroc > 0.95
    assert other.columns[0][0] == "x1"


def test_a_sorted_table_is_told_from_draws_no_better():
    rows = np.random.default_rng(4).normal(size=(1200, 2))
    found = two_sample_test(shared_columns(rows[rows[:, 0].argsort()], DRAWS[:, :2]), 0)
    assert abs(found.auroc - 0.5) < 3 * found.error


def test_few_rows_tell_nothing():
    with pytest.raises(NotSaidError, match="20"):
        two_sample_test(shared_columns(ROWS[:5], DRAWS), 0)


def test_copies_of_training_rows_are_found():
    fresh = nearest_training_rows(shared_columns(ROWS, DRAWS, TRAIN))
    assert fresh.of_draws == pytest.approx(fresh.of_rows, rel=0.25)
    assert fresh.share_of_draws == 0
    copied = nearest_training_rows(shared_columns(ROWS, TRAIN[:100], TRAIN))
    assert copied.share_of_draws == 1
    assert copied.of_draws == 0
    assert copied.share_of_rows == 0


def test_levels_have_one_code_in_all_tables():
    frames = [pd.DataFrame({"kind": values}) for values in (["b", "c"], ["c", "c"], ["a", "b"])]
    one = shared_columns(*frames)[0]
    assert one.levels == ["a", "b", "c"]
    assert [part.tolist() for part in (one.rows, one.draws, one.train)] == [[1, 2], [2, 2], [0, 1]]


def test_dates_booleans_and_nullable_numbers_are_columns():
    frame = pd.DataFrame(
        {
            "when": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
            "yes": [True, False, True],
            "n": pd.array([1, None, 3], dtype="Int64"),
        }
    )
    when, yes, n = shared_columns(frame, frame)
    assert yes.levels == ["False", "True"]
    assert np.isnan(when.rows[1])
    assert np.isnan(n.rows[1])
    assert when.distance in (0, pytest.approx(0)) or np.isnan(when.distance)
