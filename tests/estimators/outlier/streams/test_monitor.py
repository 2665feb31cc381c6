"""Monitors of streams: alarms at changes and at no others, whatever the rows and blocks are."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture

from skebm import EnergyOutlierDetector, StreamMonitor
from tests.support.tiers import full

COLUMNS = ["load", "heat", "flow"]


def rows(n, seed, shift=0.0):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    x[:, 2] += 0.8 * x[:, 0]
    x[:, 1] += shift
    return x


def detector_of(X, **params):
    mixture = GaussianMixture(random_state=0, reg_covar=1e-3)
    return EnergyOutlierDetector(mixture, method="conformal", random_state=0, **params).fit(X)


@pytest.fixture(scope="module")
def detector():
    return detector_of(rows(400, 0))


def test_a_change_is_found_and_its_beginning(detector):
    monitor = StreamMonitor(detector, random_state=0)
    quiet = monitor.update(rows(3000, 1))
    assert monitor.alarm_ is None
    assert monitor.change_ is None
    assert not quiet.alarms.any()
    update = monitor.update(rows(300, 2, shift=3))
    first = int(np.flatnonzero(update.alarms)[0])
    assert monitor.alarm_ == 3000 + first
    assert first < 60
    assert update.alarms[first:].all()
    assert abs(monitor.change_ - 3000) < 20
    assert update.evidence[first] >= monitor.threshold_ > update.evidence[first - 1]
    assert monitor.threshold_ == pytest.approx(np.log(100))
    assert monitor.n_rows_ == 3300
    assert monitor.evidence_ == pytest.approx(update.evidence[-1])
    assert "alarm at row 30" in repr(monitor)


@pytest.mark.parametrize(
    "params", [{}, {"window": 150}, {"level": None, "run_length": 500}], ids=["", "window", "mean"]
)
def test_rows_together_are_rows_one_after_the_other(detector, params):
    X = np.concatenate([rows(380, 3), rows(120, 4, shift=3)])
    whole = StreamMonitor(detector, random_state=0, **params)
    expected = whole.update(X)
    parts = StreamMonitor(detector, random_state=0, **params)
    found = [parts.update(X[r]) for r in np.split(np.arange(500), [1, 2, 3, 3, 150, 299, 300])]
    for name in expected._fields:
        together = np.concatenate([getattr(update, name) for update in found])
        assert_allclose(together, getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert (parts.alarm_, parts.change_) == (whole.alarm_, whole.change_)
    assert whole.alarm_ is not None


def test_equal_rows_are_ties_however_many_are_scored_at_once():
    """The default's scores differ in the last bits; their order would then be that of blocks."""
    bits = np.random.default_rng(0).integers(0, 3, (500, 3)).astype(float)
    detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(bits[:300])
    one, together = (StreamMonitor(detector, random_state=0) for _ in range(2))
    found = [one.update(bits[i : i + 1]).p_values[0] for i in range(300, 360)]
    assert_array_equal(found, together.update(bits[300:360]).p_values)


def drifting(n, per_row, seed):
    x = rows(n, seed)
    x[:, 1] += per_row * np.arange(n)
    return x


def test_a_window_follows_a_slow_drift_and_finds_a_step():
    detector = detector_of(rows(400, 0), calibration_fraction=0.5)
    X = drifting(8000, 1.5 / 8000, seed=5)
    fixed = StreamMonitor(detector, random_state=0)
    fixed.update(X)
    followed = StreamMonitor(detector, window=500, random_state=0)
    followed.update(X)
    assert fixed.alarm_ is not None
    assert followed.alarm_ is None
    followed.update(X[-200:] + [0, 4, 0])
    assert 8000 <= followed.alarm_ < 8100


def with_zeros(n, seed):
    x = rows(n, seed)
    x[np.random.default_rng(seed + 500).random(n) < 0.3] = 0
    return x


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_recur_are_calibrated_as_often_as_they_occur(seed):
    monitor = StreamMonitor(detector_of(with_zeros(600, seed)), random_state=seed)
    monitor.update(with_zeros(1500, 10 + seed))
    assert monitor.alarm_ is None
    monitor.update(rows(200, 5, shift=4))
    assert monitor.alarm_ >= 1500


def test_a_window_does_not_keep_older_scores(detector):
    monitor = StreamMonitor(detector, window=200, random_state=0)
    for seed in range(20):
        monitor.update(rows(500, seed))
        assert len(monitor._state.known) <= 400
        assert sum(map(len, monitor._state.fresh)) < 200
    assert monitor._state.n_windows == 51


@full
@pytest.mark.parametrize("params", [{}, {"window": 500}])
def test_false_alarms_of_detectors_with_few_calibration_rows(params):
    """Each stream with a detector of its own and 50 calibration rows; over 10,000 rows."""
    level, n_streams, alarms = 0.2, 100, 0
    for seed in range(n_streams):
        X = rows(10_100, 1000 + seed)
        detector = detector_of(X[:100], calibration_fraction=0.5)
        monitor = StreamMonitor(detector, level=level, random_state=seed, **params)
        monitor.update(X[100:])
        alarms += monitor.alarm_ is not None
    assert alarms / n_streams <= level + 3 * np.sqrt(level * (1 - level) / n_streams)


def test_a_fit_of_the_detector_does_not_change_the_monitor():
    detector = detector_of(rows(400, 0))
    one, other = (StreamMonitor(detector, random_state=0) for _ in range(2))
    expected = one.update(rows(50, 1))
    detector.fit(rows(300, 7) * 5)
    assert_array_equal(other.update(rows(50, 1)).p_values, expected.p_values)


def test_a_monitor_is_pickled_with_its_stream(detector):
    monitor = StreamMonitor(detector, rows(100, 3), random_state=0)
    monitor.update(rows(50, 1))
    copied = pickle.loads(pickle.dumps(monitor))
    again = [one.update(rows(50, 2, shift=3)) for one in (monitor, copied)]
    assert_array_equal(again[0].evidence, again[1].evidence)
    assert copied.drift().moved == monitor.drift().moved


# ------------------------------------------------------------------------------
# Rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda x, columns: pl.DataFrame(x, columns)])
def test_frames(frame):
    train = frame(rows(300, 0), columns=COLUMNS)
    monitor = StreamMonitor(detector_of(train), train, random_state=0)
    for seed in range(3):
        update = monitor.update(frame(rows(40, seed, shift=2), columns=COLUMNS))
        assert update.p_values.shape == (40,)
    monitor.update(frame(rows(1, 8), columns=COLUMNS))
    assert monitor.drift().moved == ["heat"]
    state = monitor._state
    with pytest.raises(ValueError, match="(?s)unseen at fit time.*- oil"):
        monitor.update(frame(rows(2, 1), columns=["load", "heat", "oil"]))
    with pytest.raises(ValueError, match="(?s)missing.*- flow"):
        monitor.update(frame(rows(2, 1)[:, :2], columns=["load", "heat"]))
    assert monitor._state is state


def test_wrong_rows_leave_the_monitor_as_it_was(detector):
    monitor = StreamMonitor(detector, random_state=0)
    monitor.update(rows(10, 1))
    bad = rows(5, 1)
    bad[3, 1] = np.nan
    for X, message in [
        (bad, "NaN"),
        (np.where(np.isnan(bad), np.inf, bad), "infinity"),
        (rows(5, 1)[:, :2], "2 features"),
        (rows(1, 1)[0], "Reshape your data"),
    ]:
        with pytest.raises(ValueError, match=message):
            monitor.update(X)
    assert monitor.n_rows_ == 10
    other = StreamMonitor(detector, random_state=0)
    other.update(rows(10, 1))
    following = rows(30, 2)
    assert_array_equal(monitor.update(following).p_values, other.update(following).p_values)


def test_no_rows_change_nothing(detector):
    monitor = StreamMonitor(detector, random_state=0)
    update = monitor.update(np.empty((0, 3)))
    assert [part.shape for part in update] == [(0,)] * 3
    assert update.alarms.dtype == bool
    with pytest.raises(ValueError, match="2 features"):
        monitor.update(np.empty((0, 2)))
    assert monitor.n_rows_ == 0
    assert monitor.evidence_ == 0


def test_missing_entries_where_the_detector_takes_them():
    X = rows(300, 0)
    X[::7, 1] = np.nan
    detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(X[:200])
    monitor = StreamMonitor(detector, X[:200], random_state=0)
    assert np.isfinite(monitor.update(X[200:]).evidence).all()
    assert "rate of missing entries" in monitor.drift().what


def test_far_rows_and_rows_that_are_all_alike():
    detector = detector_of(np.full((60, 2), 3.0))
    monitor = StreamMonitor(detector, random_state=0)
    p = monitor.update(np.full((500, 2), 3.0)).p_values
    assert monitor.alarm_ is None
    assert 0.4 < p.mean() < 0.6
    monitor.update(np.full((60, 2), 1e150))
    assert 500 < monitor.alarm_ < 560


# ------------------------------------------------------------------------------
# Arguments
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"level": 0}, "'level' parameter"),
        ({"level": 1.5}, "'level' parameter"),
        ({"window": 0}, "'window' parameter"),
        ({"window": 99}, "window=99 is shorter than the calibration, which has 100 rows"),
        ({"n_recent": 0}, "'n_recent' parameter"),
        ({"run_length": 1000}, "pass one of them"),
        ({"level": None}, "pass one of them"),
        ({"level": None, "run_length": 0.5}, "'run_length' parameter"),
        ({"random_state": "now"}, "'random_state' parameter"),
    ],
)
def test_parameters_out_of_range(detector, bad, message):
    with pytest.raises(ValueError, match=message):
        StreamMonitor(detector, **bad)


def test_detectors_without_calibration_rows_are_refused():
    X = rows(200, 0)
    mixture = GaussianMixture(random_state=0)
    with pytest.raises(TypeError, match="IsolationForest.*method='conformal'"):
        StreamMonitor(IsolationForest().fit(X))
    with pytest.raises(ValueError, match="not fitted"):
        StreamMonitor(EnergyOutlierDetector(mixture, method="conformal"))
    for method in ("quantile", "cross-conformal"):
        with pytest.raises(ValueError, match=f"method='{method}': a StreamMonitor needs"):
            StreamMonitor(EnergyOutlierDetector(mixture, method=method).fit(X))


def test_weighted_calibration_rows_are_refused():
    X = rows(200, 0)
    prefit = EnergyOutlierDetector(
        GaussianMixture(random_state=0).fit(X), method="conformal", prefit=True
    ).fit(rows(100, 1), sample_weight=np.arange(100) + 1)
    with pytest.raises(ValueError, match="unequal weights"):
        StreamMonitor(prefit)


def test_drift_needs_reference_rows_and_rows_of_the_stream(detector):
    with pytest.raises(ValueError, match=r"pass some, as by StreamMonitor\(detector, X\)"):
        StreamMonitor(detector).drift()
    monitor = StreamMonitor(detector, rows(50, 1))
    with pytest.raises(ValueError, match="call update first"):
        monitor.drift()
    monitor.update(rows(5, 1))
    with pytest.raises(ValueError, match="'level' parameter"):
        monitor.drift(level=2)
    with pytest.raises(ValueError, match="2 features"):
        StreamMonitor(detector, rows(50, 1)[:, :2])
    with pytest.raises(ValueError, match="reference has no rows"):
        StreamMonitor(detector, np.empty((0, 3)))


def test_drift_is_of_the_last_rows(detector):
    monitor = StreamMonitor(detector, rows(300, 1), n_recent=200)
    monitor.update(rows(1000, 2, shift=2))
    assert monitor.drift().n_recent == 200
    assert monitor.drift().moved == ["x1"]
    for seed in range(40):
        monitor.update(rows(7, 50 + seed))
    found = monitor.drift()
    assert found.n_recent == 200
    assert found.moved == []
    assert len(monitor._state.recent) < 40


def test_rows_that_the_caller_writes_over_are_kept_as_they_were(detector):
    """Streams reuse the memory of their batches."""
    new = rows(60, 1)
    batch = new.copy()
    one, other = (StreamMonitor(detector, rows(100, 3), random_state=0) for _ in range(2))
    one.update(new)
    other.update(batch)
    batch[:] = 1e6
    assert_array_equal(one.drift().p_values, other.drift().p_values)
