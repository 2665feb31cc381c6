"""Series and frames with time stamps, in every estimator of sequences."""

import warnings
from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest

from skebm import SequenceOutlierDetector, TemporalRBM, TemporalRBMClassifier
from skebm.estimators.sequences.series.stamps import Grid, without_stamps
from skebm.estimators.sequences.table import arrange
from tests.support.tiers import leading

N = 60
little = {"n_iter": 2, "random_state": 0}
CASES = {
    "TemporalRBM": (TemporalRBM(2, order=1, **little), "score_samples"),
    "TemporalRBMClassifier": (TemporalRBMClassifier(2, order=1, **little), "predict_proba"),
    "SequenceOutlierDetector": (
        SequenceOutlierDetector(TemporalRBM(2, order=1, **little), random_state=0),
        "score_samples",
    ),
}
each = pytest.mark.parametrize("name", CASES)
each_fit = pytest.mark.parametrize("name", leading(1, list(CASES)))


def values(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return np.sin(np.arange(n) / 3) + 0.2 * rng.normal(size=n)


def hours(n=N, **kwargs):
    return pd.date_range("2024-01-01", periods=n, freq="h", **kwargs)


def series(n=N, **kwargs):
    return pd.Series(values(n), hours(n, **kwargs), name="load")


def said(name, X, labels=None, **kwargs):
    """What a model that is fitted to X says of X."""
    model, method = CASES[name]
    y = (np.arange(N) % 2,) if name.endswith("Classifier") else (None,)
    y = y if labels is None or y[0] is None else (labels,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, *y, **kwargs)
        return getattr(model, method)(X, **kwargs)


@each
def test_a_series_is_a_table_of_one_column(name):
    np.testing.assert_array_equal(said(name, series()), said(name, values()[:, None]))


@each
def test_an_index_of_several_levels_is_no_series(name):
    X = series().to_frame().assign(sensor="a").set_index("sensor", append=True)
    with pytest.raises(ValueError, match=r"several levels.*reset_index\(\).*sequence_column"):
        said(name, X)


def test_kinds_of_time_stamps():
    pl = pytest.importorskip("polars")
    frame = pd.DataFrame({"time": hours(), "load": values()})
    given = [
        series(tz="Europe/Berlin"),
        series().to_period("h"),
        series().set_axis(hours() - hours()[0]),
        series().rename(None),
        series().to_frame(),
        frame,
        frame.assign(time=[date(2024, 1, 1) + timedelta(days=k) for k in range(N)]),
        pl.Series("load", values()),
        pl.DataFrame({"time": hours().to_numpy(), "load": values()}),
    ]
    for X in given:
        table, lengths, order = arrange(X, None, None)
        np.testing.assert_array_equal(table.to_numpy(), values()[:, None])
        assert lengths is None
        assert order is None


@each_fit
def test_rows_in_any_order_are_put_into_that_of_time(name):
    order = np.random.default_rng(1).permutation(N)
    labels = (np.arange(N) % 2)[order]
    found = said(name, series().iloc[order], labels)
    np.testing.assert_array_equal(found, said(name, series())[order])


@pytest.mark.parametrize("name", leading(1, ["TemporalRBM", "TemporalRBMClassifier"]))
def test_a_gap_begins_a_new_sequence(name):
    """Also in the sequences of a panel; one alone has no end that others could take."""
    gap = series().set_axis([*hours(20), *(hours(40) + pd.Timedelta("30h"))])
    truth = said(name, values()[:, None], lengths=[20, 40])
    np.testing.assert_array_equal(said(name, gap), truth)
    model = CASES[name][0]
    panel = gap.to_frame().assign(of=np.repeat([1, 2], 30))
    try:
        model.set_params(sequence_column="of")
        found = said(name, panel)
    finally:
        model.set_params(sequence_column=None)
    np.testing.assert_array_equal(found, said(name, values()[:, None], lengths=[20, 10, 30]))


def test_lists_of_series():
    parts = [series()[:20], series()[20:]]
    truth = said("TemporalRBM", [values()[:20, None], values()[20:, None]])
    np.testing.assert_array_equal(said("TemporalRBM", parts), truth)
    with pytest.raises(ValueError, match="Sequence 1 is not in the order of time: sort it"):
        said("TemporalRBM", [parts[0], parts[1][::-1]])
    with pytest.raises(ValueError, match=r"Sequence 1 has a gap .* frame 4: .*two sequences"):
        said("TemporalRBM", [parts[0], parts[1].drop(parts[1].index[5])])


def test_results_have_the_index_of_the_series():
    model = TemporalRBM(2, order=1, **little).fit(series())
    holes = series().iloc[::-1].mask(np.arange(N) == 5)
    made = model.impute(holes, random_state=0, n_steps=10)
    pd.testing.assert_index_equal(made.index, holes.index)
    assert made.notna().all(axis=None)
    pd.testing.assert_index_equal(model.expected(series(), n_steps=5).index, hours())
    assert model.predict_next(series()).shape == (1, 1)
    assert model.sample(3, start=series(), random_state=0).shape == (3, 1)
    assert model.stream(start=series()).n_frames == N


BAD = {
    "twice": (lambda x: pd.concat([x, x[:1]]), "2024-01-01 occurs more than once in the index"),
    "irregular": (
        lambda x: x.set_axis(hours() + pd.to_timedelta(np.arange(N) ** 2 % 50, unit="min")),
        "irregular.*resample",
    ),
    "two columns": (
        lambda x: pd.DataFrame({"from": hours(), "to": hours(), "x": values()}),
        "'from', 'to' hold dates. Drop all but one",
    ),
    "beside the index": (lambda x: x.to_frame().assign(to=hours()), "'to' beside the index"),
    "missing": (
        lambda x: pd.DataFrame({"time": hours().where(np.arange(N) != 3), "x": values()}),
        "row 3 in column 'time' is missing: drop",
    ),
}


@each
@pytest.mark.parametrize("fault", BAD)
def test_bad_time_stamps(name, fault):
    change, match = BAD[fault]
    with pytest.raises(ValueError, match=match):
        said(name, change(series()), np.arange(len(change(series()))) % 2)


def test_blocks_of_a_series_with_gaps():
    with pytest.raises(ValueError, match="1 gaps in time, the first one after 20 frames. Fill"):
        said("SequenceOutlierDetector", series().drop(hours()[20:23]))


# ------------------------------------------------------------------------------
# Grids
# ------------------------------------------------------------------------------

STEPS = {
    "s": "1 second",
    "10min": "10 minutes",
    "h": "1 hour",
    "D": "1 day",
    "B": "1 workday",
    "W": "7 days",
    "MS": "1 month",
    "ME": "1 month",
    "QS": "3 months",
    "YS": "12 months",
}


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("freq", STEPS)
def test_grids_count_steps(freq, zone):
    """Those of the time that a clock shows, too, where a day may have 23 hours."""
    index = pd.date_range("2023-01-01", periods=120, freq=freq, tz=zone)
    sequence = np.zeros(120, dtype=int)
    _, stamps = without_stamps(pd.Series(0.0, index))
    grid = Grid.learn(stamps, sequence)
    assert str(grid) == STEPS[freq]
    np.testing.assert_array_equal(grid.places(stamps, sequence), np.arange(120))
    kept = np.setdiff1d(np.arange(120), [7, 8, 50])
    with_gaps = stamps.take(kept)
    again = Grid.learn(with_gaps, sequence[kept])
    np.testing.assert_array_equal(again.places(with_gaps, sequence[kept]), kept)


def test_steps_may_be_inexact():
    index = hours() + pd.to_timedelta(np.random.default_rng(0).integers(0, 9, N), unit="s")
    _, stamps = without_stamps(pd.Series(0.0, index))
    grid = Grid.learn(stamps, np.zeros(N, dtype=int))
    np.testing.assert_array_equal(grid.places(stamps, np.zeros(N, dtype=int)), np.arange(N))
