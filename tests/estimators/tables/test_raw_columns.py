"""Columns as they occur in files: wide categories, dates, ids, text that is something else."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from skebm import EnergyOutlierDetector, ProductOfDensities, TableEncoder, TractableDensity
from skebm.estimators.tables.encoding.levels import (
    UNSEEN,
    by_frequency,
    n_own_columns,
    rarity_of_levels,
)
from skebm.estimators.tables.encoding.numbers import scale_of_log
from tests.support.storage import by_skops
from tests.support.tiers import full, named

N = 400


def trips(n=N, seed=0):
    """Trips with a number, two dates, a zone of many, a fare, a payment and a remark."""
    random = np.random.default_rng(seed)
    start = pd.Timestamp("2024-03-01") + pd.to_timedelta(random.integers(0, 60 * 86400, n), "s")
    minutes = np.exp(random.normal(2.7, 0.6, n))
    share = 1 / np.arange(1, 201)
    return pd.DataFrame(
        {
            "trip": random.permutation(n) + 1000,
            "start": start,
            "end": start + pd.to_timedelta((60 * minutes).round(), "s"),
            "zone": [f"zone {k}" for k in random.choice(200, n, p=share / share.sum())],
            "fare": np.round(3 + 1.5 * minutes * np.exp(random.normal(0, 0.1, n)), 2),
            "paid": random.choice(["cash", "card"], n),
            "remark": [f"{k} of {seed}" for k in range(n)],
        }
    )


def fitted(X, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TableEncoder(**parameters).fit(X)


@pytest.fixture(scope="module")
def detector():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EnergyOutlierDetector(method="conformal", random_state=0).fit(trips())


# ------------------------------------------------------------------------------
# What became of the columns
# ------------------------------------------------------------------------------


def test_ids_are_left_out(capsys):
    """Without a warning, as nothing is lost by it; `verbose` prints what became of all columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = TableEncoder(verbose=1).fit(trips())
    printed = capsys.readouterr().out
    said = encoder.columns_.set_index("column")["becomes"]
    assert said.index.tolist() == trips().columns.tolist()
    assert said[said == "left out"].index.tolist() == ["trip", "remark"]
    assert "rarity" in said["zone"]
    assert "end_minus_start" in said["end"]
    assert all(f"{name!r}, " in printed for name in said.index)
    names = encoder.get_feature_names_out()
    assert len(names) == encoder.transform(trips(3)).shape[1]
    assert not any(name.startswith(("trip", "remark")) for name in names)


def test_one_warning_names_what_is_lost():
    X = trips()
    X["author"] = [f"author {k}" for k in np.minimum(np.arange(N), N - 1 - np.arange(N)) % 300]
    X["author"] = np.where(np.arange(N) % 3 == 0, X["author"], X["remark"])
    X["cabin"] = X["author"]
    with pytest.warns(UserWarning, match="'author', 'cabin': most texts occur once") as caught:
        TableEncoder().fit(X)
    assert len(caught) == 1


def test_a_frame_of_ids_alone_is_an_error():
    with pytest.raises(ValueError, match="No column is left.*'remark', text: left out"):
        TableEncoder().fit(trips()[["remark"]])


def test_diagrams_show_the_columns(detector):
    pytest.importorskip("sklearn", minversion="1.9")
    encoder = fitted(trips())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(TableEncoder(), TractableDensity("gaussian")).fit(trips())
    for shown in (encoder, model, detector):
        assert "rarity of the level" in shown._repr_html_()
    assert "<summary>Columns" not in TableEncoder()._repr_html_()


def test_storage(detector):
    encoder, new = fitted(trips()), trips(50, seed=1)
    again = by_skops(encoder)
    np.testing.assert_array_equal(again.transform(new), encoder.transform(new))
    assert again.columns_.equals(encoder.columns_)
    scores = by_skops(detector).score_samples(new)
    np.testing.assert_array_equal(scores, detector.score_samples(new))


def test_texts_that_are_left_out_are_not_stored():
    encoder = fitted(trips())
    assert "7 of 0" not in repr(encoder._coding)


# ------------------------------------------------------------------------------
# Wide categories
# ------------------------------------------------------------------------------


def labels(counts):
    return np.repeat(np.arange(len(counts)), counts)


COUNTS = {
    "zipf": np.maximum(1500 / np.arange(1, 301) / 6, 1).astype(int),
    "even": np.full(100, 15),
    "one half and many": np.r_[700, np.full(80, 9), np.ones(40, int)],
    "a third once": np.r_[np.full(40, 25), np.ones(500, int)],
}


@pytest.mark.parametrize("name", COUNTS)
def test_rarity_orders_levels(name):
    counts = COUNTS[name]
    rarity = np.abs(rarity_of_levels(counts))
    order = np.argsort(counts, kind="stable")
    assert (np.diff(rarity[order]) <= 1e-12).all()
    assert rarity[-1] > rarity[:-1].max()
    rows = rarity_of_levels(counts)[labels(counts)]
    assert abs(rows.mean()) < 0.2 * max(rows.std(), 1e-9)
    assert (rows == 0).mean() > 0.5


@full
@pytest.mark.parametrize("density", ["kernel", "mixture", "product"])
@pytest.mark.parametrize("name", COUNTS)
def test_a_rarer_level_is_never_more_normal(name, density):
    counts = COUNTS[name]
    z = by_frequency("k", tuple(range(len(counts))), counts, 19)
    if z is None:
        return
    x = z.rows(labels(counts).astype(float))
    model = {
        "kernel": TractableDensity("kernel", random_state=0),
        "mixture": TractableDensity("mixture", regularisation=0.1, random_state=0),
        "product": ProductOfDensities(random_state=0),
    }[density].fit(x)
    scores = -model.energy(z.codes) if density == "product" else model.score_samples(z.codes)
    for size in np.unique(counts):
        rarer = counts < size
        if rarer.any():
            # The sides of a group differ by the noise of the fit.
            assert scores[:-1][rarer].max() <= scores[:-1][counts == size].min() + 0.05
    assert scores[-1] <= scores[:-1].min() + 0.05


def test_levels_of_their_own_are_commoner_than_the_rest():
    assert n_own_columns(np.array([50, 30, 15, 3, 2]), 19) == 5
    assert n_own_columns(np.array([50, 30, 10, 10, 10]), 2) == 2
    assert n_own_columns(np.full(100, 5), 19) == 0
    assert n_own_columns(np.array([30, 10, 10, 10, 10, 10]), 3) == 0


def test_unseen_levels_are_far_where_they_are_rare():
    often = by_frequency("k", tuple(range(540)), COUNTS["a third once"], 19)
    rarely = by_frequency("k", tuple(range(100)), COUNTS["even"], 19)
    assert often is None or often.codes[-1, -1] == 0
    assert rarely.codes[-1, -1] == UNSEEN


def test_new_rare_levels_score_as_rarer(detector):
    row = trips(1, seed=3)
    common = trips()["zone"].value_counts().index[0]
    scores = detector.score_samples(
        pd.concat([row.assign(zone=common), row.assign(zone="zone 1000")])
    )
    assert scores[0] > scores[1]


def test_numbers_are_compared_with_their_means_in_levels():
    """Where these explain most of the variance; a fare of another zone is then anomalous."""
    random = np.random.default_rng(0)
    zone, usual = random.integers(0, 30, 900), random.permutation(30) * 4.0
    X = pd.DataFrame(
        {
            "zone": [f"z{k}" for k in zone],
            "fare": usual[zone] + random.normal(size=900),
            "tip": random.normal(size=900),
        }
    )
    encoder = TableEncoder().fit(X)
    names = encoder.get_feature_names_out().tolist()
    assert "fare_given_zone" in names
    assert "tip_given_zone" not in names
    assert "fare_given_zone" in encoder.columns_["becomes"][0]
    z = encoder.transform(X)[:, names.index("fare_given_zone")]
    assert np.corrcoef(z, X["fare"] - usual[zone])[0, 1] > 0.9
    new = X[:2].assign(zone=["z new", None])
    assert np.isfinite(encoder.transform(new)).all()
    np.testing.assert_array_equal(by_skops(encoder).transform(X), encoder.transform(X))
    detector = EnergyOutlierDetector(random_state=0).fit(X[:600])
    odd = X[600:].assign(fare=random.permutation(X["fare"][600:]))
    scores = np.concatenate([detector.score_samples(part) for part in (X[600:], odd)])
    assert roc_auc_score(np.repeat([1, 0], 300), scores) > 0.9


# ------------------------------------------------------------------------------
# Dates
# ------------------------------------------------------------------------------


FAULTS = {
    "amount": (0.65, lambda X: X.assign(fare=X["fare"].to_numpy()[::-1])),
    "unit": (0.98, lambda X: X.assign(fare=100 * X["fare"])),
    "level": (0.8, lambda X: X.assign(zone=X["zone"] + "?")),
    "order": (0.98, lambda X: X.assign(end=X["start"] - pd.Timedelta("3h"))),
    "duration": (0.98, lambda X: X.assign(end=X["start"] + 8 * (X["end"] - X["start"]))),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_of_five_kinds(detector, kind):
    least, planted = FAULTS[kind]
    new = trips(200, seed=1)
    scores = np.concatenate([detector.score_samples(part) for part in (new, planted(new))])
    assert roc_auc_score(np.repeat([1, 0], 200), scores) >= least
    if kind == "order":
        named = detector.explain(planted(new)[:3]).to_frame(1)["feature"]
        assert named.isin(["start", "end"]).all()


def test_text_of_dates_is_dates():
    X = trips()
    written = X.assign(
        start=X["start"].dt.strftime("%Y-%m-%d %H:%M:%S"),
        end=X["end"].dt.strftime("%Y-%m-%dT%H:%M:%S"),
    )
    encoder, expected = fitted(written), fitted(X)
    np.testing.assert_allclose(encoder.transform(written), expected.transform(X))
    with pytest.raises(ValueError, match="'start' held dates in fit, and holds 'soon'"):
        encoder.transform(written.assign(start="soon"))
    assert np.isfinite(encoder.transform(written.assign(start=None))).all()
    listed = fitted(written[["start", "fare"]], categorical_features=["start"])
    assert listed.columns_["kind"][0] != "dates"


def test_time_zones_count():
    """The days are those of one instant, the hours those of the clocks there."""
    X = trips()[["start", "end", "fare"]]
    X["start"] = X["start"].dt.normalize() + pd.Timedelta("9h") + (X["end"] - X["start"])
    zoned = X.assign(start=X["start"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    names = fitted(X).get_feature_names_out().tolist()
    assert fitted(zoned).get_feature_names_out().tolist() == names
    day, hour = names.index("start"), names.index("start_hour_cos")
    plain, moved = fitted(X).transform(X), fitted(zoned).transform(zoned)
    np.testing.assert_allclose(plain[:, day], moved[:, day])
    assert np.abs(plain[:, hour] - moved[:, hour]).max() > 0.1


def test_hours_and_weekdays_where_they_say_something():
    X = trips()
    assert not any("hour" in name or "week" in name for name in fitted(X).get_feature_names_out())
    weekdays = X[X["start"].dt.day_of_week < 5]
    assert "start_weekday_sin" in fitted(weekdays).get_feature_names_out()
    assert "end_weekday_sin" not in fitted(weekdays).get_feature_names_out()  # nearly the start's
    at_noon = X.assign(start=X["start"].dt.normalize() + pd.Timedelta("12h"))
    assert "start_hour_sin" not in fitted(at_noon).get_feature_names_out()


def test_many_dates_have_differences_of_neighbours():
    X = trips()[["start"]]
    for k in range(1, 6):
        X = X.assign(**{f"step {k}": X["start"] + pd.to_timedelta(k + np.arange(N) % 7, "h")})
    made = [name for name in fitted(X).get_feature_names_out() if "minus" in name]
    assert len(made) == 5


def test_dates_of_any_kind_are_the_same_dates():
    pl = pytest.importorskip("polars")
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(int(k)) for k in np.arange(90) ** 2 % 97]
    expected = TableEncoder().fit_transform(pd.DataFrame({"d": pd.to_datetime(days)}))
    kinds = {
        "objects": pd.DataFrame({"d": pd.Series(days, dtype=object)}),
        "seconds": pd.DataFrame({"d": np.array(days, dtype="M8[s]")}),
        "array": np.array(days, dtype="M8[D]")[:, None],
        "polars": pl.DataFrame({"d": days}),
        "text": pd.DataFrame({"d": [day.isoformat() for day in days]}),
    }
    for kind, X in kinds.items():
        encoder = TableEncoder()
        np.testing.assert_allclose(encoder.fit_transform(X), expected, err_msg=kind)
        np.testing.assert_allclose(encoder.transform(X), expected, err_msg=kind)


def test_dates_of_early_years():
    X = pd.DataFrame({"d": [datetime.date(14 + k % 9, 1, 1 + k % 28) for k in range(60)]})
    z = TableEncoder().fit_transform(X)[:, 0]
    expected = np.array([day.toordinal() for day in X["d"]])
    assert np.corrcoef(z, expected)[0, 1] == pytest.approx(1)


def test_dates_with_and_without_time_zone_in_one_column():
    mixed = [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02", tz="UTC")] * 20
    for written in (mixed, [one.isoformat() for one in mixed]):
        X = pd.DataFrame({"when": pd.Series(written, dtype=object)})
        with pytest.raises(ValueError, match="'when' mixes dates.*to_datetime"):
            TableEncoder().fit(X)


def test_dates_of_other_forms_are_said():
    X = trips()
    X["day"] = X["start"].dt.strftime("%d/%m/%Y")
    with pytest.warns(UserWarning, match="'day': the texts are dates; use pandas.to_datetime"):
        TableEncoder().fit(X)


# ------------------------------------------------------------------------------
# Numbers, and what is none
# ------------------------------------------------------------------------------


def test_log_scales_by_held_out_rows():
    random = np.random.default_rng(0)
    assert scale_of_log(np.exp(random.normal(3, 1, 500))) > 0
    assert scale_of_log(random.poisson(np.exp(random.normal(2, 1, 500)))) > 0
    assert scale_of_log(random.normal(50, 10, 500)) == 0
    assert scale_of_log(random.integers(0, 2, 500).astype(float)) == 0
    unit = scale_of_log(1e300 * np.exp(random.normal(-5, 1, 500)))
    assert 0 < unit < np.inf


def test_log_scale_keeps_zeros_and_signs():
    random = np.random.default_rng(0)
    x = np.exp(random.normal(3, 1.5, N)) * random.choice([-1, 0, 1], N, p=[0.05, 0.15, 0.8])
    X = pd.DataFrame({"balance": x, "other": random.normal(size=N)})
    encoder = TableEncoder(log_scale=True).fit(X)
    assert encoder.get_feature_names_out().tolist() == ["balance_log", "other"]
    z = encoder.transform(X)[:, 0]
    order = np.argsort(x, kind="stable")
    assert (np.diff(z[order]) >= 0).all()
    assert np.ptp(z[x == 0]) == 0


def test_numbers_among_texts_are_said():
    random = np.random.default_rng(0)
    texts = np.where(random.random(N) < 0.1, "?", random.normal(size=N).round(4).astype(str))
    with pytest.warns(UserWarning, match="'x'.*to_numeric"):
        TableEncoder().fit(pd.DataFrame({"x": texts, "y": np.arange(N) / 7}))


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, pd.DataFrame({"a": [1]})])
def test_columns_of_containers_are_refused(value):
    X = pd.DataFrame({"y": np.arange(30.0), "x": pd.Series([value] * 30, dtype=object)})
    with pytest.raises((TypeError, ValueError), match="'x'.*drop it"):
        TableEncoder().fit(X)


def test_types_of_pandas_and_arrow():
    X = trips()[["start", "zone", "fare", "paid"]]
    expected = TableEncoder().fit_transform(X)
    nullable = X.convert_dtypes()
    np.testing.assert_allclose(TableEncoder().fit_transform(nullable), expected)
    pytest.importorskip("pyarrow")
    of_arrow = X.convert_dtypes(dtype_backend="pyarrow")
    np.testing.assert_allclose(TableEncoder().fit_transform(of_arrow), expected)
    days = X["start"].dt.normalize().where(np.arange(N) % 9 > 0)
    of_days = days.astype("date32[day][pyarrow]")
    found = [TableEncoder().fit_transform(pd.DataFrame({"d": d})) for d in (days, of_days)]
    np.testing.assert_allclose(*found)


def test_one_row_and_constant_columns():
    X = trips().assign(fare=3.0, paid="cash", start=pd.Timestamp("2024-01-01"))
    z = fitted(X).transform(X)
    assert np.isfinite(z).all()
    assert "constant" in fitted(X).columns_.set_index("column")["why"]["fare"]
    one = trips(1)[["start", "end", "fare"]]
    assert np.isfinite(fitted(one).transform(one)).all()


@pytest.mark.parametrize(
    "kind", named(["tz", "text", "polars"], ["ns", "us", "tz", "text", "polars"])
)
def test_reasons_are_dates(kind):
    """Of whatever resolution, with a time zone, as text, and in polars."""
    X = trips(300)[["start", "end", "fare"]]
    odd = X[:2].assign(end=X["start"][:2] - pd.Timedelta("3h"))

    def written(rows):
        if kind == "polars":
            return pytest.importorskip("polars").DataFrame(
                {name: rows[name].to_list() for name in rows}
            )
        change = {
            "ns": lambda x: x.astype("M8[ns]"),
            "us": lambda x: x.astype("M8[us]"),
            "tz": lambda x: x.dt.tz_localize("Asia/Tokyo"),
            "text": lambda x: x.dt.strftime("%Y-%m-%d %H:%M:%S"),
        }[kind]
        return rows.assign(start=change(rows["start"]), end=change(rows["end"]))

    detector = EnergyOutlierDetector(random_state=0).fit(written(X))
    reasons = detector.explain(written(odd)).to_frame(1)
    assert reasons["feature"].isin(["start", "end"]).all()
    assert (reasons["contribution"] > 20).all()
    expected = pd.to_datetime(reasons["expected"])
    near = X["start"][:2] - pd.Timedelta("9h" if kind == "tz" else "0h")
    assert (abs(expected - near) < pd.Timedelta("12h")).all()


def test_expected_dates_have_the_unit_of_those_of_fit():
    random = np.random.default_rng(0)
    day = pd.Timestamp("2025-01-01") + pd.to_timedelta(random.integers(0, 200, 300), "D")
    minutes = pd.to_timedelta(2880 + random.integers(0, 9, 300), "min")
    frame = pd.DataFrame({"day": day, "end": day + minutes, "took": minutes})
    detector = EnergyOutlierDetector(random_state=0).fit(frame)
    odd = frame[:9].assign(day=frame["day"][:9] - pd.Timedelta("365D"))
    expected = pd.DataFrame(detector.explain(odd).expected, columns=list(frame))
    assert (pd.to_datetime(expected["day"]).dt.normalize() == expected["day"]).all()
    for name in ("end", "took"):
        assert (expected[name].dt.round("min") == expected[name]).all()
    assert not (expected["end"].dt.normalize() == expected["end"]).all()


def test_days_go_on_after_those_of_fit():
    random = np.random.default_rng(0)
    day = pd.Timestamp("2026-01-01") + pd.to_timedelta(random.integers(0, 60, 300), "D")
    frame = pd.DataFrame({"day": day, "x": random.normal(size=300)})
    detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(frame)
    later = frame.assign(day=frame["day"] + pd.Timedelta("50D"))
    assert (detector.predict(later) == -1).mean() < 0.25
    wrong_year = frame[:20].assign(day=pd.Timestamp("2062-01-15"))
    assert (detector.predict(wrong_year) == -1).all()
    missing = frame[:5].assign(day=pd.NaT)
    assert np.isfinite(detector.score_samples(missing)).all()
