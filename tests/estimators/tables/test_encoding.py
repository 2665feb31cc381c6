"""Tables of any columns as numbers, and the default detector on them."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import EnergyOutlierDetector, ProductOfDensities, TableEncoder, TractableDensity
from tests.support.checks import parametrize_with_checks

UNSEEN = 10.0


def frame(n=120, seed=0):
    """Numbers, text, booleans, dates, categories, and a column of numbers and text; no holes."""
    rng = np.random.default_rng(seed)
    day = pd.to_timedelta(rng.integers(0, 100, n), "D")
    return pd.DataFrame(
        {
            "age": rng.normal(40, 10, n),
            "city": rng.choice(["Rome", "Oslo", "Bonn"], n, p=[0.6, 0.3, 0.1]),
            "member": rng.random(n) < 0.5,
            "since": pd.Timestamp("2024-01-01", tz="UTC") + day,
            "kind": pd.Categorical(rng.integers(0, 3, n), categories=[2, 1, 0, 9]),
            "mixed": rng.choice(np.array([1, "a"], dtype=object), n),
        }
    )


def test_numbers_are_standardised_as_by_scikit_learn():
    X = load_wine().data
    assert np.array_equal(TableEncoder().fit_transform(X), StandardScaler().fit_transform(X))


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_numbers_of_extreme_size(unit):
    X = load_wine().data[:, :3]
    assert np.allclose(TableEncoder().fit_transform(X * unit), StandardScaler().fit_transform(X))


def test_columns_by_their_types():
    X = frame()
    encoder = TableEncoder().fit(X)
    names = encoder.get_feature_names_out().tolist()
    assert names[:7] == [
        *("age", "member", "since", "city_Rome", "city_Oslo", "city_Bonn", "city_unseen")
    ]
    assert sorted(names[7:11]) == ["kind_0", "kind_1", "kind_2", "kind_unseen"]
    assert sorted(names[11:]) == ["mixed_1", "mixed_a", "mixed_unseen"]
    z = pd.DataFrame(encoder.transform(X), columns=names)
    assert np.allclose(z[["age", "member", "since"]].mean(), 0)
    assert np.allclose(z[["age", "member", "since"]].std(ddof=0), 1)
    for level in ("Rome", "Oslo", "Bonn"):
        assert np.array_equal(z[f"city_{level}"], (X["city"] == level).astype(float))
    assert not z.filter(like="unseen").to_numpy().any()
    days = (X["since"] - X["since"].min()) / pd.Timedelta(days=1)
    assert np.corrcoef(z["since"], days)[0, 1] == pytest.approx(1)


def test_new_and_declared_levels_that_fit_did_not_meet_are_far():
    encoder = TableEncoder().fit(frame())
    new = frame(3, seed=1)
    new.loc[0, "city"], new.loc[1, "kind"] = "Paris", 9
    z = pd.DataFrame(encoder.transform(new), columns=encoder.get_feature_names_out())
    assert z["city_unseen"].tolist() == [UNSEEN, 0, 0]
    assert z["kind_unseen"].tolist() == [0, UNSEEN, 0]
    assert z.filter(like="city_").iloc[0, :3].tolist() == [0, 0, 0]


def test_missing_entries_are_those_of_the_nearest_row():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    X = np.hstack([x, 2 * x + 0.01 * rng.normal(size=(300, 1))])
    encoder = TableEncoder().fit(X)
    holes = X.copy()
    holes[:50, 1] = np.nan
    whole, filled = encoder.transform(X), encoder.transform(holes)
    assert np.abs(filled[:50] - whole[:50]).max() < 0.2
    assert np.array_equal(filled[50:], whole[50:])
    nearest = np.abs(whole[:50, :1] - whole[50:, 0]).argmin(1)
    alone = TableEncoder().fit(X[50:])
    assert np.array_equal(alone.transform(holes[:50])[:, 1], alone.transform(X[50:])[nearest, 1])
    fitted = TableEncoder().fit(holes)
    assert np.isfinite(fitted.transform(holes)).all()


def test_missing_levels_stay_levels():
    X = frame(200)
    X.loc[::7, "city"] = None
    z = pd.DataFrame(TableEncoder().fit_transform(X)).to_numpy()
    assert set(z[:, 3:6].sum(1)) == {1.0}


def test_polars_and_object_arrays_give_what_pandas_gives():
    pl = pytest.importorskip("polars")
    X = frame().drop(columns=["mixed", "kind"])
    made = pl.DataFrame(
        {
            "age": X["age"].tolist(),
            "city": X["city"].tolist(),
            "member": X["member"].tolist(),
            "since": [one.to_pydatetime().replace(tzinfo=None) for one in X["since"]],
        }
    )
    expected = TableEncoder().fit_transform(X)
    assert np.allclose(TableEncoder().fit_transform(made), expected)
    part = X[["age", "city"]]
    array = part.to_numpy(dtype=object)
    assert np.array_equal(TableEncoder().fit_transform(array), TableEncoder().fit_transform(part))


def test_periods_and_durations_are_days():
    X = pd.DataFrame(
        {
            "month": pd.period_range("2020-01", periods=24, freq="M"),
            "took": pd.to_timedelta(np.arange(24), "h"),
        }
    )
    z = TableEncoder().fit_transform(X)
    assert (np.diff(z, axis=0) > 0).all()
    assert np.corrcoef(z[:, 1], np.arange(24))[0, 1] == pytest.approx(1)


def test_texts_that_are_all_distinct_have_a_finite_log_density():
    X = pd.DataFrame({"id": [f"row {i}" for i in range(80)], "x": np.arange(80.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = EnergyOutlierDetector(random_state=0).fit(X)
        assert np.isfinite(detector.score_samples(X)).all()


def test_chosen_categories():
    X = np.column_stack([np.tile([0.0, 1, 2], 10), np.arange(30.0)])
    encoder = TableEncoder(categorical_features=[0]).fit(X)
    assert encoder.get_feature_names_out().tolist() == [
        *("x1", "x0_0.0", "x0_1.0", "x0_2.0", "x0_unseen")
    ]
    text = pd.DataFrame({"a": ["x", "y"] * 5})
    with pytest.raises(ValueError, match="could not convert string"):
        TableEncoder(categorical_features=None).fit(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": np.inf}, "infinity, in column 'age'"),
        ({"age": np.nan}, "'age'"),
        ({"city": None}, "'city'"),
        ({"since": pd.NaT}, "'since'"),
    ],
)
def test_bad_columns_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        TableEncoder().fit(frame().assign(**change))


def test_new_rows_of_other_tables():
    encoder = TableEncoder().fit(frame())
    new = frame(5, seed=1)
    with pytest.raises(ValueError, match="same order"):
        encoder.transform(new[new.columns[::-1]])
    with pytest.raises(ValueError, match="Age"):
        encoder.transform(new.rename(columns={"age": "Age"}))
    with pytest.raises(ValueError, match="'age'"):
        encoder.transform(new.assign(age="old"))
    with pytest.raises(ValueError, match="infinity, in column 'age'"):
        encoder.transform(new.assign(age=-np.inf))
    assert np.isfinite(encoder.transform(new.assign(age=np.nan, city=None))).all()
    with pytest.raises(ValueError, match="0 sample"):
        encoder.transform(new[:0])


def test_a_failed_fit_keeps_the_fitted_encoder():
    encoder = TableEncoder().fit(frame())
    before = encoder.transform(frame(5, seed=1))
    with pytest.raises(ValueError, match="infinity"):
        encoder.fit(frame().assign(age=np.inf))
    assert np.array_equal(encoder.transform(frame(5, seed=1)), before)


@parametrize_with_checks({"table": TableEncoder()}, first=("table",))
def test_sklearn_checks(estimator, check):
    check(estimator)


# ------------------------------------------------------------------------------
# The detector
# ------------------------------------------------------------------------------


def test_a_frame_as_it_is_goes_into_the_detector():
    X = frame(200)
    X.loc[:19, "age"], X.loc[10:29, "city"], X.loc[25:34, "since"] = np.nan, None, pd.NaT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(X)
        assert (detector.predict(frame(200, seed=1)) == 1).mean() > 0.75
    new = frame(8, seed=2).assign(age=40.0)
    new.loc[0, "city"], new.loc[1, "age"] = "Paris", 400.0
    new.loc[2, "since"] = pd.Timestamp("1990-01-01", tz="UTC")
    assert (detector.predict(new)[:3] == -1).all()
    assert np.isfinite(detector.score_samples(new)).all()
    named = detector.explain(new[:3]).to_frame(1)["feature"].tolist()
    assert named == ["city", "age", "since"]


@pytest.mark.full
def test_holes_cost_less_than_with_means_in_their_place():
    """AUROC where 10 % of the entries are missing, in training and in new rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3)) @ rng.normal(size=(3, 6)) + 0.3 * rng.normal(size=(600, 6))
    odd = np.stack([rng.permutation(column) for column in x[:200].T], 1)
    train, test = x[200:400], np.vstack([x[400:], odd])
    labels = np.repeat([1, -1], 200)

    def auroc(*steps):
        detector = EnergyOutlierDetector(make_pipeline(*steps, ProductOfDensities(random_state=0)))
        lost = [rng.random(rows.shape) < 0.1 for rows in (train, test)]
        detector.fit(np.where(lost[0], np.nan, train))
        return roc_auc_score(labels, detector.decision_function(np.where(lost[1], np.nan, test)))

    assert auroc(TableEncoder()) > auroc(SimpleImputer(), StandardScaler()) + 0.02


def test_sparse_tables_are_refused_with_a_remedy():
    import scipy.sparse as sp

    with pytest.raises(ValueError, match="toarray"):
        TableEncoder().fit(sp.csr_array(np.eye(4)))


def test_parameters_reach_the_encoder():
    detector = EnergyOutlierDetector(random_state=0).fit(frame())
    encoder = clone(detector.estimator_[0]).set_params(max_levels=2)
    names = encoder.fit(frame()).get_feature_names_out().tolist()
    assert names[3:6] == ["city_rarity", "city_Rome", "city_unseen"]


def test_no_level_is_more_abnormal_than_rarer_ones():
    """Of 300 levels, in every density: the commoner, the more likely, and unseen ones the least."""
    share = 1 / np.arange(1, 301)
    codes = np.random.default_rng(0).choice(300, 1500, p=share / share.sum())
    X = pd.DataFrame({"k": [f"l{code}" for code in codes]})
    counts = X["k"].value_counts()
    levels = pd.DataFrame({"k": [*counts.index, "new"]})
    for distribution in ("kernel", "mixture"):
        density = TractableDensity(distribution, random_state=0)
        model = make_pipeline(TableEncoder(), density).fit(X)
        *found, unseen = model.score_samples(levels)
        groups = pd.Series(found).groupby(pd.cut(counts.to_numpy(), [0, 1, 3, 9, 49, 1500]))
        means = groups.mean().to_numpy()
        assert (np.diff(means) >= 0).all(), means
        assert np.ptp(means) > 0.5, means
        assert unseen <= min(found)
