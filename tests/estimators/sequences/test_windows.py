"""Rows of series: residuals of forecasts, their means, windows, gaps and the first values."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline

from skebm import EnergyOutlierDetector, SequenceOutlierDetector, TractableDensity, Windows
from skebm.estimators.sequences.series.windows import spans
from tests.support.checks import parametrize_with_checks
from tests.support.storage import by_joblib, by_pickle, by_skops

N = 400


def hours(n=N, **kwargs):
    return pd.date_range("2024-01-01", periods=n, freq="h", **kwargs)


def load(n=N, seed=0):
    """A day and an autocorrelated rest."""
    rng = np.random.default_rng(seed)
    e = 0.3 * rng.normal(size=n)
    for t in range(1, n):
        e[t] += 0.6 * e[t - 1]
    return pd.Series(np.sin(np.arange(n) * np.pi / 12) + e, hours(n), name="load")


# ------------------------------------------------------------------------------
# What rows hold
# ------------------------------------------------------------------------------


def test_residuals_of_a_process_are_its_innovations():
    """Of variance one, uncorrelated, and the same from any level and in any unit."""
    rng = np.random.default_rng(0)
    e, x = rng.normal(size=3000), np.zeros(3000)
    for t in range(2, 3000):
        x[t] = 1.2 * x[t - 1] - 0.5 * x[t - 2] + e[t]
    model = Windows(4).fit(x[:, None])
    z = model.transform(x[:, None])
    assert np.corrcoef(z[10:, 0], e[10:])[0, 1] > 0.99
    assert np.abs(z[10:].std(0) - 1).max() < 0.1
    moved = 1000 + 50 * x[:, None]
    np.testing.assert_allclose(clone(model).fit(moved).transform(moved), z, atol=1e-6)


def test_means_are_those_of_the_residuals():
    x = load().to_numpy()[:, None]
    model = Windows(8).fit(x)
    z, names = model.transform(x), model.get_feature_names_out()
    assert spans(8) == [1, 2, 3, 4, 8]
    assert names.tolist() == ["x0_residual", *(f"x0_residual_mean_{s}" for s in (2, 3, 4, 8))]
    for j, span in enumerate(spans(8)):
        t = 200
        assert z[t, j] == pytest.approx(z[t - span + 1 : t + 1, 0].sum() / np.sqrt(span))
    assert z.shape[1] == len(names)


def test_values_are_windows_and_the_calendar():
    x = load()
    model = Windows(3, features="values").set_output(transform="pandas").fit(x)
    z = model.transform(x)
    assert z.columns.tolist() == [
        *("load", "load_lag_1", "load_lag_2", "load_lag_3"),
        *("hour_sin", "hour_cos", "weekday_sin", "weekday_cos"),
    ]
    np.testing.assert_allclose(z.iloc[100, :4], x.to_numpy()[[100, 99, 98, 97]])
    at = z.loc["2024-01-03 06:00"]
    np.testing.assert_allclose(at[["hour_sin", "hour_cos"]], [1, 0], atol=1e-12)
    angle = 2 * np.pi * 2 / 7  # a Wednesday
    np.testing.assert_allclose(at[["weekday_sin", "weekday_cos"]], [np.sin(angle), np.cos(angle)])
    without = Windows(3, features="values", calendar=False).fit(x)
    np.testing.assert_array_equal(without.transform(x), z.iloc[:, :4])


def test_the_calendar_explains_what_lags_do_not():
    """A peak at nine on Mondays is expected; one on Thursdays is not."""
    x = load(2400)
    monday = (x.index.day_of_week == 0) & (x.index.hour == 9)
    x[monday] += 4.0
    model = Windows(24).fit(x)
    new = load(2400, seed=1)
    new[monday] += 4.0
    new["2024-03-07 09:00"] += 4.0
    z = pd.Series(model.transform(new)[:, 0], new.index)
    assert z["2024-03-07 09:00"] > 5
    assert z[monday].iloc[2:].mean() < 2.5
    alone = pd.Series(clone(model).set_params(calendar=False).fit(x).transform(new)[:, 0], x.index)
    assert alone[monday].iloc[2:].mean() > 4


@pytest.mark.parametrize(
    ("freq", "season", "lags"),
    [("h", 5, 24), ("D", 5, 7), ("B", 4, 5), ("MS", 5, 12), ("s", 17, 17), (None, 17, 17)],
)
def test_lags_are_a_season(freq, season, lags):
    rng = np.random.default_rng(0)
    x = np.sin(2 * np.pi * np.arange(200) / season) + 0.1 * rng.normal(size=200)
    index = None if freq is None else pd.date_range("2020-01-01", periods=200, freq=freq)
    model = Windows().fit(pd.DataFrame({"x": x}, index))
    assert model.lags_ == lags
    assert (model.step_ is None) == (freq is None)


# ------------------------------------------------------------------------------
# Time
# ------------------------------------------------------------------------------


def test_rows_are_in_the_order_of_the_series():
    x = load()
    model = Windows().fit(x)
    truth = pd.DataFrame(model.transform(x), x.index)
    mixed = x.sample(frac=1, random_state=0)
    again = Windows().set_output(transform="pandas").fit(mixed)
    pd.testing.assert_index_equal(again.transform(mixed).index, mixed.index)
    np.testing.assert_allclose(again.transform(mixed).loc[x.index], truth)


def test_later_values_do_not_matter_but_at_the_beginning():
    """The first values have the rows of the windows that begin with them."""
    x = load()
    model = Windows(24).fit(x)
    z = model.transform(x)
    np.testing.assert_array_equal(z[:24], z[24:48])
    np.testing.assert_allclose(model.transform(x[:300])[24:], z[24:300])
    np.testing.assert_allclose(model.transform(x[-72:])[-24:], z[-24:])


def test_gaps_and_missing_values_cost_what_is_missing():
    """They are alike, taken as expected, and all other rows are about what they would be."""
    x = load()
    model = Windows().fit(x)
    truth = model.transform(x)
    lost = np.array([100, 101, 250])
    missing = x.copy()
    missing.iloc[lost] = np.nan
    z, kept = model.transform(missing), np.setdiff1d(np.arange(N), lost)
    np.testing.assert_allclose(model.transform(missing.iloc[kept]), z[kept])
    assert np.isfinite(z).all()
    assert (z[lost, 0] == 0).all()
    assert np.corrcoef(z[kept, 0], truth[kept, 0])[0, 1] > 0.98
    assert np.isfinite(Windows().fit_transform(missing.iloc[kept])).all()


def test_one_gross_value_does_not_spoil_those_after_it():
    x = load()
    model = Windows().fit(x)
    truth, wrong = model.transform(x)[:, 0], x.copy()
    wrong.iloc[200] = 1e6
    z = model.transform(wrong)[:, 0]
    assert z[200] > 1e5
    np.testing.assert_allclose(z[201:], truth[201:], atol=1.5)
    fitted = Windows().fit(wrong).transform(x)[:, 0]
    assert np.corrcoef(fitted, truth)[0, 1] > 0.95


def test_several_columns_and_zones():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=N), "b": 0.0}, hours(tz="Europe/Berlin"))
    X.loc[X.index[1:], "b"] = X["a"].to_numpy()[:-1]  # as a was an hour before
    z = Windows(3, calendar=False).set_output(transform="pandas").fit_transform(X)
    assert z.columns[:2].tolist() == ["a_residual", "b_residual"]
    wrong = X.copy()
    wrong.iloc[200, 1] += 0.5
    model = Windows(3, calendar=False).fit(X)
    assert model.transform(wrong)[200, 1] > 5
    assert (X.index.tz, len(z)) == (z.index.tz, N)


def test_clocks_that_are_set():
    """An hour that is left out is a gap; one that occurs twice needs its zone."""
    for first in ("2024-03-20", "2024-10-20"):
        x = load()
        x.index = pd.date_range(first, periods=N, freq="h", tz="Europe/Berlin")
        z = Windows(24, calendar=False).fit_transform(x)
        np.testing.assert_array_equal(z, Windows(24).fit_transform(x.to_numpy()[:, None]))
        local = x.tz_localize(None)
        if first == "2024-10-20":
            with pytest.raises(ValueError, match="10-27 02:00:00 occurs .* clocks were set back"):
                Windows(24).fit(local)
            local = local.tz_localize("Europe/Berlin", ambiguous="infer")
            np.testing.assert_array_equal(Windows(24, calendar=False).fit_transform(local), z)
        else:
            assert np.isfinite(Windows(24).fit_transform(local)).all()


# ------------------------------------------------------------------------------
# Panels
# ------------------------------------------------------------------------------


def panel(**kwargs):
    """Two series below each other, the second with another level, unit and time."""
    other = 1000 + 50 * load(300, seed=1)
    other.index = pd.date_range("2024-01-09 05:00", periods=300, freq="h")
    table = pd.concat({"a": load(), "b": other}, names=["sensor", "time"]).reset_index()
    return table.assign(**kwargs)


@pytest.mark.parametrize("features", ["residuals", "values"])
def test_rows_of_a_panel_are_those_of_its_series(features):
    """In any order of the rows, in arrays and in frames of polars."""
    X, z = panel(), []
    model = Windows(24, features=features, sequence_column="sensor").fit(X)
    together = model.transform(X)
    for _, rows in X.groupby("sensor"):
        series = rows.set_index("time")["load"]
        z.append(Windows(24, features=features).fit(series).transform(series))
    np.testing.assert_array_equal(together, np.concatenate(z))
    mixed = X.sample(frac=1, random_state=0)
    np.testing.assert_array_equal(model.transform(mixed), together[mixed.index])
    pl = pytest.importorskip("polars")
    again = clone(model).fit(pl.DataFrame(X.to_dict("list")))
    np.testing.assert_array_equal(again.transform(pl.DataFrame(X.to_dict("list"))), together)
    numbers = np.column_stack([X["sensor"] == "b", X["load"]]).astype(float)
    plain = Windows(24, features=features, calendar=False, sequence_column=0).fit(numbers)
    timed = clone(model).set_params(calendar=False).fit(X)
    np.testing.assert_array_equal(plain.transform(numbers), timed.transform(X))


def test_a_fault_is_found_in_a_panel():
    X = panel()
    model = make_pipeline(Windows(sequence_column="sensor"), TractableDensity("gaussian")).fit(X)
    assert model[0].lags_ == 24
    wrong = X.copy()
    wrong.loc[600, "load"] += 150  # of series b, whose unit is 50
    assert model.score_samples(wrong).argmin() == 600
    only = X[X["sensor"] == "b"]
    np.testing.assert_array_equal(model.score_samples(only), model.score_samples(X)[N:])
    with pytest.raises(ValueError, match="rows of several series, .* a detector to each"):
        SequenceOutlierDetector(model, random_state=0).fit(X)


BAD_PANELS = {
    "unknown": (lambda X: X.assign(sensor="c"), "'c' did not occur in fit.*of fit: 'a'; 'b'"),
    "short": (lambda X: X[:410], "Series 'b': n_samples=10: no value"),
    "no name": (lambda X: X.drop(columns="sensor"), "'sensor', which is no column of X: use one"),
    "a missing name": (lambda X: X.assign(sensor=X["sensor"].where(X.index != 3)), "has missing"),
    "lists": (lambda X: X.assign(sensor=[[1]] * len(X)), "holds lists"),
    "one series": (lambda X: X["load"], "A Series is one series: leave out"),
    "levels": (lambda X: X.set_index(["sensor", "time"]), "level of the index: pass X.reset"),
}


@pytest.mark.parametrize("fault", BAD_PANELS)
def test_bad_panels(fault):
    change, match = BAD_PANELS[fault]
    model = Windows(24, sequence_column="sensor").fit(panel())
    with pytest.raises(ValueError, match=match):
        model.transform(change(panel()))


# ------------------------------------------------------------------------------
# Detectors
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "detector",
    [
        EnergyOutlierDetector(random_state=0),
        EnergyOutlierDetector(GaussianMixture(2, random_state=0)),
        TractableDensity("gaussian"),
        IsolationForest(random_state=0),
    ],
    ids=lambda detector: type(detector).__name__,
)
def test_any_detector_takes_a_series(detector):
    x = load(800)
    rng = np.random.default_rng(0)
    wrong = np.sort(rng.choice(np.arange(420, 780, 24), 8, replace=False))
    new = x.iloc[400:].copy()
    new.iloc[wrong - 400] += rng.choice([-2, 2], 8)
    labels = np.isin(np.arange(400, 800), wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_pipeline(Windows(), detector).fit(x[:400])
        scores = pd.Series(model.score_samples(new), new.index)
    assert roc_auc_score(labels, -scores) > 0.93


@pytest.mark.parametrize("method", ["quantile", "conformal", "cross-conformal"])
def test_a_detector_holds_no_single_rows_of_a_series_out(method):
    model = make_pipeline(Windows(24), TractableDensity("gaussian"))
    with pytest.raises(TypeError, match="Windows makes rows.*put it before.*SequenceOutlierDet"):
        EnergyOutlierDetector(model, method=method).fit(load())


def of_blocks(**kwargs):
    return SequenceOutlierDetector(
        make_pipeline(Windows(24), TractableDensity("gaussian")), random_state=0, **kwargs
    )


def test_p_values_by_blocks_of_a_series():
    """They are nearly uniform over the values of new series; a wrong one has the smallest."""
    rates = []
    for seed in range(5):
        x = load(1400, seed)
        detector = of_blocks().fit(x[:1000])
        new = x[1000:].copy()
        rates.append((detector.p_values(new) <= 0.1).mean())
        new.iloc[300] += 3
        assert detector.p_values(new)[300] == 1 / (detector.n_calibration_ + 1)
    assert detector.n_calibration_ == 500 // 25
    error = np.std(rates) / np.sqrt(len(rates))
    assert np.mean(rates) < 0.1 + 2 * error
    table = pd.DataFrame({"time": x.index, "load": x.to_numpy()})
    np.testing.assert_array_equal(
        of_blocks().fit(table[:1000]).p_values(table[1000:]), detector.p_values(x[1000:])
    )


def test_blocks_take_one_series_in_order():
    x = load(300)
    with pytest.raises(ValueError, match="one series: leave out lengths"):
        of_blocks().fit(x, lengths=[100, 200])
    with pytest.raises(ValueError, match="one series: leave out lengths and lists"):
        of_blocks().fit([x[:100], x[100:]])
    with pytest.raises(ValueError, match=r"not in the order of time: sort it.*sort_index"):
        of_blocks().fit(x[::-1])
    with pytest.raises(ValueError, match="score_in_context, which Pipeline has not"):
        of_blocks(use_next=True).fit(x)


@pytest.mark.parametrize("store", [by_pickle, by_joblib, by_skops])
@pytest.mark.parametrize("features", ["residuals", "values"])
def test_stored_windows_say_the_same(features, store):
    x = load(100)
    model = Windows(features=features).fit(x)
    np.testing.assert_array_equal(store(model).transform(x), model.transform(x))


# ------------------------------------------------------------------------------
# scikit-learn, and bad input
# ------------------------------------------------------------------------------

ORDERED = dict.fromkeys(
    ("check_methods_sample_order_invariance", "check_methods_subset_invariance"),
    "A row depends on the rows before it.",
)


@parametrize_with_checks(
    {"default": Windows(), "values": Windows(features="values")},
    lambda estimator: ORDERED,
    first=("default",),
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def frame(x):
    return pd.DataFrame({"time": x.index, "load": x.to_numpy()})


BAD = {
    "text": (lambda x: frame(x).assign(kind="a"), "'kind' holds text.*sequence_column='kind'"),
    "levels": (lambda x: frame(x).assign(k=1).set_index(["k", "time"]), "'k', 'time'.*reset_index"),
    "times as text": (lambda x: frame(x).assign(time=x.index.astype(str)), "'time'.*to_datetime"),
    "two times": (lambda x: frame(x).assign(end=x.index), "'time', 'end' hold dates. Drop"),
    "nothing else": (lambda x: frame(x)[["time"]], "no column beside its time stamps: pass"),
    "twice": (lambda x: pd.concat([x, x[:2]]), "occurs more than once.*Average"),
    "irregular": (
        lambda x: x.set_axis(x.index + pd.to_timedelta(np.arange(N) ** 2 % 50, unit="min")),
        "irregular, with steps between .* Make the series regular first",
    ),
    "far apart": (
        lambda x: x.set_axis(x.index + pd.to_timedelta(9999.0 * (np.arange(N) > 20), unit="D")),
        "at 400 of 240376 steps of 1 hour only.*Pass what is before or after",
    ),
    "a missing time": (
        lambda x: frame(x).assign(time=x.index.where(np.arange(N) != 3)),
        "row 3 in column 'time' is missing: drop",
    ),
    "missing": (lambda x: x * np.nan, "'load' is missing in all rows: drop"),
    "infinite": (lambda x: x.where(x < 1, np.inf), "infinity"),
    "short": (lambda x: x[:24], "n_samples=24: no value has lags=24.*fewer lags"),
    "empty": (lambda x: x[:0], "0 sample"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_series(fault):
    change, match = BAD[fault]
    with pytest.raises(ValueError, match=match):
        Windows(24).fit(change(load()))


def test_series_unlike_that_of_the_fit():
    x = load()
    model = Windows(24).fit(x)
    with pytest.raises(ValueError, match="not at the steps of fit, 1 hour: resample"):
        model.transform(x.set_axis(pd.date_range("2024-01-01", periods=N, freq="30min")))
    with pytest.raises(ValueError, match="X has no time stamps, and that of fit had them"):
        model.transform(x.to_frame().reset_index(drop=True))
    with pytest.raises(ValueError, match="X has time stamps, and that of fit had none"):
        Windows(24).fit(pd.DataFrame({"load": x.to_numpy()})).transform(x)
    with pytest.raises(ValueError, match="n_samples=24: .*those before the ones of interest"):
        model.transform(x[:24])
    with pytest.raises(ValueError, match="lags"):
        Windows(0).fit(x)


def test_constant_huge_and_tiny_series():
    x = load()
    for scale in (0.0, 1e-300, 1e300):
        z = Windows().fit_transform(x * scale)
        assert np.isfinite(z).all()
        new = Windows().fit(x * scale).transform(x * scale + (scale or 1.0))
        assert np.isfinite(new).all()
