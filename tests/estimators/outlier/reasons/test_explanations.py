"""Explanations of anomalies by column, against closed forms and enumeration."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.ensemble import IsolationForest
from sklearn.impute import SimpleImputer
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from skebm import EnergyOutlierDetector, Explanation, RBMEstimator
from skebm.estimators.outlier.reasons.explanations import Contradiction
from tests.estimators.outlier.reasons.test_contributions import gaussian
from tests.support.tables import binary_rows


def conditional(normal, x):
    """Means, standard deviations and z-scores of each column of a Gaussian given the others."""
    precision = np.linalg.inv(normal.covariances_[0])
    sd = 1 / np.sqrt(np.diag(precision))
    score = -(x - normal.means_[0]) @ precision
    return x + score * sd**2, sd, score * sd


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("scaled", [False, True])
def test_gaussians_in_closed_form(spread, scaled):
    X = gaussian(spread=spread)
    normal = GaussianMixture(reg_covar=0)
    model = make_pipeline(StandardScaler(), normal) if scaled else normal
    # Columns are drawn within the range of the rows of fit, which holds the conditional densities.
    wide = X.mean(0) + 4 * (X - X.mean(0))
    detector = EnergyOutlierDetector(model.fit(X), prefit=True).fit(wide)
    rows = np.concatenate([X[:4], X[4:6] * 3, X[6:7] + [0, 2, 0, 0]])
    mean, sd, z = conditional(GaussianMixture(reg_covar=0).fit(X), rows)
    found = detector.explain(rows, method="imputation")
    assert found.unit == "nats"
    inside = (mean - 5 * sd > wide.min(0)) & (mean + 5 * sd < wide.max(0))
    assert inside.sum() >= 20
    assert_allclose(found.contributions[inside], ((z**2 - 1) / 2)[inside], rtol=1e-3, atol=0.03)
    assert np.max((np.abs(found.expected - mean) / sd)[inside]) < 0.05
    assert_array_equal(found.values, rows)


def test_anomalies_that_agree_with_each_other():
    # Given one value outside of the range of fit, the other is expected outside of it, too.
    X = gaussian(spread=0.1)
    normal = GaussianMixture(reg_covar=0).fit(X)
    rows = X[:2] + [[8, 8, 0, 0], [-8, -8.5, 0, 0]]
    mean, sd, z = conditional(normal, rows)
    found = EnergyOutlierDetector(normal, prefit=True).fit(X).explain(rows, method="imputation")
    assert (np.abs(mean[:, :2]) > np.abs(X[:, :2]).max(0)).all()
    assert np.max(np.abs(found.expected - mean)[:, :2] / sd[:2]) < 0.05
    assert_allclose(found.contributions[:, :2], ((z**2 - 1) / 2)[:, :2], rtol=0.01, atol=0.05)


def test_mixtures_by_quadrature():
    # Two modes far apart: given the others, a column has both modes or one of them.
    random = np.random.default_rng(1)
    X = np.concatenate([random.normal(-5, 1, (300, 2)), random.normal(5, 0.1, (300, 2))])
    model = GaussianMixture(2, random_state=0).fit(X)
    rows = np.array([[5, -5], [0, 0], [5, 5.0]])
    found = EnergyOutlierDetector(model, prefit=True).fit(X).explain(rows, method="imputation")
    grid = np.linspace(-12, 12, 200_001)
    for i, row in enumerate(rows):
        line = np.column_stack([grid, np.full(len(grid), row[1])])
        log_p = model.score_samples(line)
        weight = np.exp(log_p - log_p.max())
        weight /= weight.sum()
        own = model.score_samples(row[None])[0]
        assert found.contributions[i, 0] == pytest.approx(weight @ log_p - own, abs=0.02)
        assert found.expected[i, 0] == pytest.approx(weight @ grid, abs=0.02)


def test_bits_by_enumeration():
    X = binary_rows(200, 6)
    model = RBMEstimator(3, n_iter=30, random_state=0, dtype="float64").fit(X)
    rows = np.array([[1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]], dtype=float)
    found = EnergyOutlierDetector(model, prefit=True).fit(X).explain(rows, method="imputation")
    for i, j in np.ndindex(rows.shape):
        pair = np.repeat(rows[i][None], 2, axis=0)
        pair[:, j] = 0, 1
        log_p = model.score_samples(pair)
        p = np.exp(log_p) / np.exp(log_p).sum()
        here = log_p[int(rows[i, j])]
        assert found.contributions[i, j] == pytest.approx(p @ log_p - here, abs=1e-9)
        assert found.expected[i, j] == p.argmax()
    assert found.contributions[0].argmax() == 5  # the one bit that breaks the pattern


def people(n=400, seed=0):
    random = np.random.default_rng(seed)
    tall = random.random(n) < 0.5
    return pd.DataFrame(
        {
            "height": np.where(tall, 185, 165) + random.normal(0, 3, n),
            "size": pd.Categorical(np.where(tall, "L", "S"), categories=["S", "L"]),
            "children": random.integers(0, 4, n),
        }
    )


def for_people():
    columns = make_column_transformer(
        (StandardScaler(), ["height", "children"]),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["size"]),
    )
    return EnergyOutlierDetector(make_pipeline(columns, KernelDensity(bandwidth=0.3)))


def test_explanations_in_the_columns_of_a_frame():
    detector = for_people().fit(people())
    anomalies = people(3, 1)
    anomalies["height"] = 185.0
    anomalies["size"] = pd.Categorical(["S"] * 3)  # of fewer categories than in fit
    found = detector.explain(anomalies)
    assert found.feature_names == ["height", "size", "children"]
    assert_array_equal(found.expected[:, 1], ["L"] * 3)
    assert_allclose(found.expected[:, 0].astype(float), 165, atol=3)
    assert (found.contributions[:, :2] > 3).all()
    assert (found.contributions[:, 2] < 2).all()
    frame = found.to_frame(2)
    assert list(frame.columns) == ["row", "feature", "value", "expected", "contribution"]
    assert_array_equal(frame["row"], [0, 0, 1, 1, 2, 2])
    assert set(frame["feature"]) == {"height", "size"}
    assert frame["contribution"].dtype == float
    assert len(found.to_frame()) == 9


def test_frames_of_both_libraries_agree():
    X, new = people(), people(4, 2)
    columns = make_column_transformer(
        (StandardScaler(), ["height", "children"]), (OrdinalEncoder(), ["size"])
    )
    detector = EnergyOutlierDetector(make_pipeline(columns, KernelDensity(bandwidth=0.3)))
    plain = X.astype({"size": str}), new.astype({"size": str})
    one = detector.fit(plain[0]).explain(plain[1])
    other = detector.fit(pl.DataFrame(plain[0].to_dict("list")))
    other = other.explain(pl.DataFrame(plain[1].to_dict("list")))
    assert_allclose(one.contributions, other.contributions)
    assert_array_equal(one.expected, other.expected)


def test_integers_with_many_values_are_integrated_over():
    X = people().assign(children=np.random.default_rng(0).integers(0, 500, 400))[
        ["height", "children"]
    ]
    model = make_pipeline(StandardScaler(), KernelDensity(bandwidth=0.3))
    one = EnergyOutlierDetector(model).fit(X).explain(X[:3])
    other = EnergyOutlierDetector(model).fit(X.astype(float)).explain(X[:3].astype(float))
    assert_allclose(one.contributions, other.contributions)


@pytest.mark.parametrize("kind", ["U", object])
def test_arrays_of_strings(kind):
    random = np.random.default_rng(0)
    first = random.choice(["a", "long name"], 200)
    X = np.column_stack([first, np.where(first == "a", "x", "y")]).astype(kind)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    detector = EnergyOutlierDetector(make_pipeline(encoder, KernelDensity(bandwidth=0.3))).fit(X)
    found = detector.explain(np.array([["a", "y"], ["a", "x"]], dtype=kind))
    assert_array_equal(found.expected, [["long name", "x"], ["a", "x"]])
    assert (found.contributions[0] > 3).all()
    assert (found.contributions[1] < 0).all()


def test_missing_and_unseen_values():
    X = people()
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["height", "children"]),
        (OneHotEncoder(handle_unknown="ignore"), ["size"]),
    )
    detector = EnergyOutlierDetector(make_pipeline(columns, KernelDensity(bandwidth=0.3)))
    incomplete = X.assign(height=X["height"].where(X.index % 5 > 0))
    anomalies = people(2, 1).assign(height=np.nan, size=["XXL", None])
    found = detector.fit(incomplete).explain(anomalies)
    assert np.isfinite(found.contributions).all()
    assert (found.contributions[:, 1] > 1).all()
    assert set(found.expected[:, 1]) <= {"S", "L"}
    empty = incomplete.assign(height=np.nan)
    with pytest.raises(ValueError, match="Column height has no values to impute from"):
        detector.fit(empty).explain(anomalies)


def test_folds_are_averaged():
    X = gaussian(spread=1.0)
    detector = EnergyOutlierDetector(
        GaussianMixture(reg_covar=0), method="cross-conformal", random_state=0
    ).fit(X)
    alone = EnergyOutlierDetector(GaussianMixture(reg_covar=0)).fit(X)
    rows = X[:3] + [3, 0, 0, 0]
    assert_allclose(
        detector.explain(rows).contributions, alone.explain(rows).contributions, atol=0.2
    )


def test_squared_gradients_of_log_p():
    X = gaussian(spread=1.0)
    scaler, normal = StandardScaler(), GaussianMixture()
    detector = EnergyOutlierDetector(make_pipeline(scaler, normal), statistic="score_norm")
    frame = pd.DataFrame(X, columns=list("abcd"))
    detector.fit(frame)
    found = detector.explain(frame[:5], method="score")
    assert_allclose(
        np.sqrt(found.contributions.sum(1)), -detector.score_samples(frame[:5]), rtol=1e-12
    )
    assert found.feature_names == list("abcd")
    assert found.expected is None
    assert found.unit == "squared gradient of log p"
    assert_allclose(found.values, scaler.fit_transform(X)[:5])
    assert list(found.to_frame(1).columns) == ["row", "feature", "value", "contribution"]


@pytest.mark.parametrize(
    "statistic", ["log_density", lambda forest, X: forest.score_samples(X)], ids=["own", "function"]
)
def test_other_statistics_draw_columns_from_the_rows_of_fit(statistic):
    X = gaussian(spread=1.0)
    detector = EnergyOutlierDetector(IsolationForest(random_state=0), statistic=statistic).fit(X)
    anomalies = X[:2].copy()
    anomalies[:, 2] = 900.0
    found = detector.explain(anomalies)
    assert_array_equal(found.contributions.argmax(1), [2, 2])
    assert found.unit == ""
    assert_allclose(found.expected[:, 2].astype(float), np.median(X[:, 2]), rtol=0.05)


def test_other_statistics_weigh_values_by_their_frequency():
    random = np.random.default_rng(0)
    X = np.column_stack([random.normal(size=200), np.arange(200) >= 30])
    forest = IsolationForest(n_estimators=20, random_state=0).fit(X)
    found = EnergyOutlierDetector(forest, prefit=True).fit(X).explain([[0.5, 0]])
    here, there = forest.score_samples([[0.5, 0], [0.5, 1]])
    assert found.contributions[0, 1] == pytest.approx(0.15 * here + 0.85 * there - here)
    assert found.expected[0, 1] == 1


def test_rows_of_density_zero_whatever_the_column():
    X = np.random.default_rng(0).random((200, 2)) * 5
    detector = EnergyOutlierDetector(KernelDensity(kernel="tophat", bandwidth=0.5)).fit(X)
    found = detector.explain(np.array([[50.0, 2.0], [50.0, 50.0]]), method="imputation")
    assert_array_equal(found.contributions, [[np.inf, 0], [0, 0]])
    assert np.isnan(found.expected[1]).all()


def test_what_explain_refuses():
    X = gaussian(spread=1.0)
    detector = EnergyOutlierDetector(GaussianMixture()).fit(X)
    with pytest.raises(ValueError, match="method='shap'.*'auto', 'imputation' or 'score'"):
        detector.explain(X[:1], method="shap")
    with pytest.raises(ValueError, match="X has 2 features"):
        detector.explain(X[:1, :2])
    bits = EnergyOutlierDetector(RBMEstimator(2, n_iter=1)).fit(binary_rows())
    with pytest.raises(TypeError, match="No derivatives of log p are known"):
        bits.explain(binary_rows()[:1], method="score")


# ------------------------------------------------------------------------------
# Sentences
# ------------------------------------------------------------------------------


def explanation(**changes):
    parts = {
        "contributions": np.array([[8.21, 5.3, 4.9, 0.2], [1.9, -3.0, 0.5, 0.0]]),
        "values": np.array([[91_000.0, 31, 25, None], [1.0, 2, 3, "red"]], dtype=object),
        "expected": np.array([[23_400.2, 50, 5, "blue"], [1.0, 2, 3, "red"]], dtype=object),
        "feature_names": ["income", "age", "tenure", "colour"],
        "unit": "nats",
    }
    return Explanation(**(parts | changes))


def test_sentences_name_columns_by_their_contribution():
    assert explanation().sentences() == [
        "income is 91,000 where 23,400 is expected given the other columns (+8.2 nats); "
        "age is 31 where 50 is expected given the other columns (+5.3 nats); "
        "tenure is 25 where 5 is expected given the other columns (+4.9 nats)",
        "no column stands out",
    ]
    (first, _) = explanation().sentences(1)
    assert first == "income is 91,000 where 23,400 is expected given the other columns (+8.2 nats)"
    with pytest.raises(ValueError, match="n_reasons"):
        explanation().sentences(0)


def test_a_pair_replaces_its_columns():
    pairs = [Contradiction(0, "age", "tenure", 4.42)]
    assert explanation(pairs=pairs).sentences()[0] == (
        "income is 91,000 where 23,400 is expected given the other columns (+8.2 nats); "
        "age (31) and tenure (25) contradict each other (+4.4 nats)"
    )
    assert explanation(pairs=pairs).sentences()[1] == "no column stands out"
    assert pd.DataFrame(pairs).columns.tolist() == ["row", "first", "second", "contribution"]


@pytest.mark.parametrize(
    ("value", "expected", "text"),
    [
        (None, 23_400.0, "x is missing where 23,400 is expected given the other columns"),
        (pd.NA, "blue", "x is missing where blue is expected given the other columns"),
        (1.23456, 1.23402, "x is 1.2346 where 1.234 is expected given the other columns"),
        (2019.0, 2024.4, "x is 2019 where 2024 is expected given the other columns"),
        (True, 0.2, "x is True where False is expected given the other columns"),
        ("red", "red", "x is red"),
        (5.0, np.nan, "x is 5"),
        (
            pd.Timestamp("2025-01-03"),
            pd.Timestamp("2024-12-16 13:33"),
            "x is 2025-01-03 where 2024-12-16 is expected given the other columns",
        ),
    ],
)
def test_values_in_sentences(value, expected, text):
    parts = {"values": np.empty((1, 1), dtype=object), "expected": np.empty((1, 1), dtype=object)}
    parts["values"][0, 0], parts["expected"][0, 0] = value, expected
    found = explanation(contributions=np.array([[1234.5]]), feature_names=["x"], **parts)
    assert found.sentences() == [f"{text} (+1,234 nats)"]


def test_sentences_of_other_units():
    contributions = np.array([[0.2, 0.15, 0.05, -1.0], [-1.0, -2.0, 0.0, np.nan]])
    other = explanation(contributions=contributions, unit="")
    assert other.sentences() == [
        "income is 91,000 where 23,400 is usual (contribution 0.2); "
        "age is 31 where 50 is usual (contribution 0.15)",
        "no column stands out",
    ]
    squared = explanation(contributions=contributions, unit="squared gradient", expected=None)
    assert squared.sentences(1)[0] == "income is 91,000 (contribution 0.2)"
    infinite = explanation(contributions=np.array([[np.inf, 1.0, 1.0, 1.0]] * 2))
    assert infinite.sentences()[0].endswith("given the other columns (impossible)")
