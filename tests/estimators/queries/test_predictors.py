"""Regression and classification by densities, against closed forms."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV

from skebm import (
    DensityClassifier,
    DensityImputer,
    DensityRegressor,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.base.processes import collect_warnings

X, Y = load_diabetes(return_X_y=True)
X = X[:, 2:6]
NORMAL = TractableDensity("gaussian")


def test_a_normal_density_is_linear_regression():
    model = DensityRegressor(NORMAL).fit(X, Y)
    line = LinearRegression().fit(X, Y)
    np.testing.assert_allclose(model.predict(X), line.predict(X), atol=6)  # covariances are shrunk
    spread = model.conditional(X[:5]).std()
    assert spread == pytest.approx(np.std(Y - line.predict(X)), rel=0.03)
    np.testing.assert_allclose(
        model.log_likelihood(X[:5], Y[:5]), np.log(model.conditional(X[:5]).pdf(Y[:5])), atol=1e-9
    )


def test_intervals_and_quantiles():
    model = DensityRegressor(NORMAL).fit(X, Y)
    low, middle, high = model.predict_quantiles(X, [0.05, 0.5, 0.95]).T
    assert (low < middle).all()
    assert (middle < high).all()
    np.testing.assert_allclose(model.predict_interval(X, 0.9), np.stack([low, high], 1))
    assert 0.85 < ((low <= Y) & (high >= Y)).mean() < 0.95
    assert model.predict_quantiles(X, 0.5).shape == (len(X),)


def test_conformal_intervals_hold_their_level_for_a_wrong_density():
    random = np.random.default_rng(0)
    x = random.normal(size=(1500, 1))
    y = x[:, 0] + (random.standard_t(2, 1500) ** 3)  # far from normal
    model = DensityRegressor(NORMAL, conformal=0.5, random_state=0).fit(x[:1000], y[:1000])
    inside = model.predict_interval(x[1000:], 0.9)
    share = ((y[1000:] >= inside[:, 0]) & (y[1000:] <= inside[:, 1])).mean()
    assert share == pytest.approx(0.9, abs=0.04)
    few = DensityRegressor(NORMAL, conformal=0.01, random_state=0).fit(x[:300], y[:300])
    assert np.isinf(few.predict_interval(x[:2], 0.9)).all()


def test_missing_entries_are_integrated_out():
    holes = X.copy()
    holes[::3, 0] = np.nan
    model = DensityRegressor(NORMAL).fit(X, Y)
    without = DensityRegressor(NORMAL).fit(X[:, 1:], Y)
    np.testing.assert_allclose(model.predict(holes)[::3], without.predict(X[::3, 1:]), atol=3)
    nothing = model.conditional(np.full((1, 4), np.nan))
    assert nothing.mean()[0] == pytest.approx(Y.mean())


def test_held_out_rows_choose_the_distribution():
    model = DensityRegressor(random_state=0).fit(X[:150], Y[:150])
    assert model.density_.distribution in ("stack", "mixture", "gaussian")
    assert model.score(X[:150], Y[:150]) > 0.3


def test_copies_of_rows_with_missing_entries_are_held_out_together():
    rows = np.where(np.random.default_rng(0).random((60, 2)) < 0.3, np.nan, X[:60, :2])
    twice, y = np.repeat(rows, 2, axis=0), np.repeat(Y[:60], 2)
    held_out = []

    def loss(name, train, judges):
        held_out.append(judges)
        return 0.0

    DensityRegressor()._choose(twice, y, loss)
    assert (held_out[0].reshape(-1, 2) // 2 == (held_out[0] // 2)[::2, None]).all()
    assert len(held_out[0]) == 24


def test_classes_of_normal_densities_are_quadratic_discriminants():
    data, labels = load_wine(return_X_y=True)
    data = data[:, :4]
    model = DensityClassifier(NORMAL).fit(data, labels)
    truth = QuadraticDiscriminantAnalysis().fit(data, labels)
    agree = (model.predict(data) == truth.predict(data)).mean()
    assert agree > 0.93
    np.testing.assert_allclose(model.predict_proba(data).sum(1), 1)
    far = model.predict_proba(np.full((1, 4), 1e9))
    assert np.isfinite(far).all()


def test_the_class_as_a_column_of_a_frame():
    data = load_wine(as_frame=True)
    frame = data.data[["alcohol", "hue"]].assign(old=data.data["proline"] > 700)
    names = np.array(["barolo", "grignolino", "barbera"])[data.target]
    model = DensityClassifier(label="column", random_state=0).fit(frame, names)
    assert model.score(frame, names) > 0.75
    density = RBMEstimator(3, base="latent-classes", n_iter=3, random_state=0)
    with collect_warnings():
        rbm = DensityClassifier(density, random_state=0).fit(frame, names)
    assert rbm.score(frame, names) > 0.75
    assert rbm.densities_ is None
    assert list(rbm.classes_) == sorted(set(names))


def test_classes_are_compared_without_log_z():
    bits = (np.median(X, axis=0) < X).astype(float)
    few = {"n_components": 2, "n_iter": 5, "random_state": 0}
    with collect_warnings():
        exact, without = (
            DensityClassifier(RBMEstimator(**few, **kind)).fit(bits, Y > 140)
            for kind in ({}, {"partition": None})
        )
    holes = np.where([[True, False, True, True]], bits, np.nan)[:20]
    np.testing.assert_allclose(without.predict_proba(holes), exact.predict_proba(holes), atol=1e-6)
    both = [
        exact.density_.log_marginal(np.column_stack([holes, np.full(20, k)])).log_prob
        for k in (0.0, 1.0)
    ]
    expected = 1 / (1 + np.exp(both[0] - both[1]))
    np.testing.assert_allclose(without.predict_proba(holes)[:, 1], expected, atol=1e-6)


def test_searches_reach_the_density():
    search = GridSearchCV(
        DensityRegressor(NORMAL), {"density__distribution": ["gaussian", "kernel"]}, cv=2
    )
    assert search.fit(X[:150], Y[:150]).best_params_["density__distribution"]


def test_frames_of_nullable_numbers():
    rows = np.round(X[:60, :2] * 1000)
    plain = pd.DataFrame(np.where(rows == rows[3], np.nan, rows))
    plain.columns = list("ab")
    frame = plain.astype({"a": "Float64", "b": "Int64"})
    model = DensityRegressor(NORMAL, random_state=0)
    expected, found = (model.fit(one, Y[:60]).predict(one) for one in (plain, frame))
    np.testing.assert_array_equal(found, expected)


def test_targets_that_are_no_numbers():
    with pytest.raises(ValueError, match="DensityClassifier"):
        DensityRegressor(NORMAL).fit(X[:4], ["a", "b", "a", "b"])
    with pytest.raises(ValueError, match="1 class"):
        DensityClassifier(NORMAL).fit(X[:4], ["a"] * 4)


# ------------------------------------------------------------------------------
# Imputation
# ------------------------------------------------------------------------------


def with_holes(share=0.2):
    return np.where(np.random.default_rng(0).random(X.shape) < share, np.nan, X)


def test_means_are_those_of_the_conditionals():
    holes = with_holes()
    imputer = DensityImputer(NORMAL).fit(X)
    found = imputer.transform(holes)
    row = int(np.isnan(holes[:, 1]).argmax())
    expected = imputer.density_.conditional(holes[row : row + 1], 1).mean()
    assert found[row, 1] == pytest.approx(expected[0])
    np.testing.assert_array_equal(found[~np.isnan(holes)], holes[~np.isnan(holes)])


def test_indicators_follow_the_columns():
    holes = with_holes()
    holes[:, 0] = X[:, 0]
    frame = pd.DataFrame(holes, columns=list("abcd"))
    imputer = DensityImputer(NORMAL, add_indicator=True).set_output(transform="pandas")
    found = imputer.fit_transform(frame)
    names = [*"abcd", *(f"missingindicator_{name}" for name in "bcd")]
    assert list(found.columns) == names
    assert (found["missingindicator_b"] == frame["b"].isna()).all()


def test_frames_with_categories_stay_frames():
    frame = pd.DataFrame({"x": X[:, 0], "kind": np.where(X[:, 0] > 0, "a", "b")})
    frame.loc[::5, "kind"] = None
    filled = DensityImputer(random_state=0).fit_transform(frame)
    assert (filled["kind"] == np.where(X[:, 0] > 0, "a", "b")).mean() > 0.9
    with pytest.raises(ValueError, match="MissingIndicator"):
        DensityImputer(add_indicator=True).fit(frame)


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


def test_wrong_targets_and_coverages_are_named():
    model = DensityRegressor(NORMAL).fit(X, Y)
    for match, ask in {
        r"y must be a number, or one for each of the 5 rows.*\(2,\)": lambda: model.log_likelihood(
            X[:5], [1.0, 2.0]
        ),
        "y must be numbers: .*'a'": lambda: model.log_likelihood(X[:2], ["a", "b"]),
        r"coverage must be in \(0, 1\), got 'a'": lambda: model.predict_interval(X, "a"),
        "q must be probabilities": lambda: model.predict_quantiles(X, [0.5, 2.0]),
    }.items():
        with pytest.raises(ValueError, match=match):
            ask()
    found = model.log_likelihood(X[:2], [Y[0], np.nan])
    assert found[1] == 0  # of a target that is not known


@pytest.mark.parametrize("cls", [DensityRegressor, DensityClassifier])
def test_a_row_without_a_target_is_named(cls):
    y = np.where(Y > 150, 1, 0).astype(object)
    y[3] = None
    with pytest.raises(ValueError, match="row 3 has no label"):
        cls(NORMAL).fit(X, y)


@pytest.mark.parametrize("cls", [DensityRegressor, DensityClassifier, DensityImputer])
def test_frames_without_rows_or_columns(cls):
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = cls(NORMAL).fit(frame, *(() if cls is DensityImputer else ((Y > 150).astype(int),)))
    ask = model.transform if cls is DensityImputer else model.predict
    with pytest.raises(ValueError, match=rf"0 sample\(s\) \(shape=\(0, 4\)\).*{cls.__name__}"):
        ask(frame.iloc[:0])
    with pytest.raises(ValueError, match="X has no columns"):
        ask(frame[[]])
    with pytest.raises(ValueError, match="infinity.*in column 'b'"):
        ask(frame.assign(b=np.inf))


def test_columns_too_far_away_are_named_as_in_the_frame():
    frame = pd.DataFrame(X[:60], columns=list("abcd"))
    model = ScoreMatchingDensity(n_iter=2, random_state=0).fit(frame)
    with pytest.raises(ValueError, match="column 'c' lies too far"):
        model.predict_column(frame.assign(c=1e300), "a")


def test_an_empty_column_of_categories_is_filled_in():
    frame = pd.DataFrame({"x": X[:, 0], "kind": np.where(X[:, 0] > 0, "high", "low")})
    model = DensityImputer(random_state=0).fit(frame)
    filled = model.transform(frame.assign(kind=np.nan))
    assert set(filled["kind"]) <= {"high", "low"}
