"""The contract of detectors: scikit-learn's checks, then the guarantees of each threshold."""

import copy
import functools
import io
import math
import pickle
import warnings
from itertools import permutations, product

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import skops.io
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import (
    BaseEstimator,
    DensityMixin,
    MetaEstimatorMixin,
    clone,
    is_outlier_detector,
)
from sklearn.compose import make_column_transformer
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, cross_val_score
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skebm
from skebm import (
    EnergyOutlierDetector,
    OutlierEnsemble,
    RBMEstimator,
    RowSurprise,
    ScoreMatchingDensity,
    SequenceOutlierDetector,
)
from skebm.base import PartitionEstimator
from skebm.estimators.outlier.fitting import random_split
from skebm.estimators.outlier.thresholds import ConformalThreshold, check_fdr
from tests.support.checks import parametrize_with_checks
from tests.support.discovery import walk
from tests.support.tables import correlated_rows
from tests.support.tiers import full, leading, only_full

METHODS = ("quantile", "conformal", "cross-conformal")
INNER = {
    # By default it starts with k-means, which raises in one of scikit-learn's own checks.
    "mixture": GaussianMixture(init_params="random_from_data", random_state=0),
    "kernel": KernelDensity(bandwidth=0.6),
    "rbm": RBMEstimator(4, base="independent", learning="pcd", n_iter=1),
    "pipeline": make_pipeline(StandardScaler(), KernelDensity(bandwidth=0.5)),
}
# Each method and each inner estimator, of which a method knows nothing but its scores.
FIRST = {
    ("quantile", "mixture"),
    ("quantile", "rbm"),
    ("conformal", "mixture"),
    ("conformal", "kernel"),
    ("cross-conformal", "pipeline"),
}
DETECTORS = [
    pytest.param(
        EnergyOutlierDetector(inner, method=method, cv=3, random_state=0),
        id=f"{method}-{name}",
        marks=() if (method, name) in FIRST else full,
    )
    for method, (name, inner) in product(METHODS, INNER.items())
]
CONFORMAL = [param for param in DETECTORS if param.values[0].method != "quantile"]
each_detector = pytest.mark.parametrize("detector", DETECTORS)
each_conformal = pytest.mark.parametrize("detector", CONFORMAL)

# Warnings of the RBM about rows that are not binary; here it is given such rows on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Bits take values in"),
    pytest.mark.filterwarnings("ignore:.*rows are not binary"),
    pytest.mark.filterwarnings("ignore:X. columns"),
    pytest.mark.filterwarnings("ignore:.*clipped"),
    # Few rows, and batches without outliers.
    pytest.mark.filterwarnings("ignore:contamination='auto' means 0.1"),
    pytest.mark.filterwarnings("ignore:Nothing was selected"),
]


X, X_NEW = correlated_rows(), correlated_rows(80, seed=1)


@functools.cache
def fitted_once(detector, **params):
    return clone(detector).set_params(**params).fit(X)


def fitted(detector, **params):
    """A copy of the detector fitted to X; the fit itself is shared between tests."""
    return copy.deepcopy(fitted_once(detector, **params))


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------


def test_every_meta_estimator_is_here():
    # Those of sequences, of several estimators and of the default's last step have their own files.
    others = {OutlierEnsemble, RowSurprise, SequenceOutlierDetector}
    assert set(walk(MetaEstimatorMixin)) == {EnergyOutlierDetector, *others}


def other_by_design(detector):
    """Two checks demand that the share of *training* rows called outliers be the contamination."""
    if detector.method == "quantile":
        return {}
    names = ("check_outliers_train", "check_outliers_fit_predict")
    return dict.fromkeys(names, "a conformal level is a rate among new rows")


# Each inner estimator (the default is a pipeline), each statistic of a density, each method once.
@parametrize_with_checks(
    {
        "default": EnergyOutlierDetector(),
        "kernel": EnergyOutlierDetector(INNER["kernel"]),
        "rbm": EnergyOutlierDetector(INNER["rbm"]),
        "mixture": EnergyOutlierDetector(INNER["mixture"], statistic="score_norm"),
        "conformal": EnergyOutlierDetector(INNER["mixture"], method="conformal"),
        "cross-conformal": EnergyOutlierDetector(INNER["mixture"], method="cross-conformal", cv=3),
    },
    other_by_design,
    first=("conformal",),
    modes=("kernel", "rbm", "mixture", "cross-conformal"),
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# ------------------------------------------------------------------------------
# Thresholds
# ------------------------------------------------------------------------------


@each_detector
def test_predictions_scores_and_threshold_agree(detector):
    detector = fitted(detector, contamination=0.07)
    decision = detector.decision_function(X_NEW)
    assert is_outlier_detector(detector)
    assert_array_equal(detector.predict(X_NEW), np.where(decision >= 0, 1, -1))
    assert_allclose(decision, detector.score_samples(X_NEW) - detector.offset_, atol=1e-6)
    if not isinstance(detector.estimator, RBMEstimator):  # which clips all rows far off to the same
        assert (detector.predict(X_NEW - 20) == -1).all()


@each_conformal
@pytest.mark.parametrize("level", leading(1, [0.29, 0.02, 0.5]))
def test_outliers_are_the_rows_with_small_p_values(detector, level):
    detector = fitted(detector, contamination=level)
    rows = np.concatenate([X, X_NEW, 3 * X_NEW])
    p = detector.p_values(rows)
    assert_array_equal(detector.predict(rows) == -1, p <= level + 1e-12)
    assert p.min() >= 1 / (detector.n_calibration_ + 1)
    assert p.max() <= 1


@each_detector
def test_a_row_does_not_depend_on_its_neighbours(detector):
    detector, rows = fitted(detector), X_NEW[:20]
    whole = detector.decision_function(rows)
    alone = np.concatenate([detector.decision_function(row[None]) for row in rows])
    assert_allclose(alone, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("share", leading(2, [0.0126, 0.25, 0.1, 0.5]))
@pytest.mark.parametrize("name", INNER)
def test_the_quantile_flags_that_share_of_the_training_rows(name, share):
    detector = EnergyOutlierDetector(INNER[name], contamination=share, random_state=0).fit(X)
    assert np.sum(detector.predict(X) == -1) == round(share * len(X))
    assert np.isnan(detector.false_alarm_bound_)
    assert detector.n_calibration_ == len(X)


def test_the_scores_are_those_of_the_estimator():
    detector = EnergyOutlierDetector(GaussianMixture(2, random_state=0)).fit(X)
    assert_array_equal(detector.score_samples(X_NEW), detector.estimator_.score_samples(X_NEW))
    assert detector.score(X_NEW) == pytest.approx(detector.estimator_.score(X_NEW))
    kernel = EnergyOutlierDetector(KernelDensity()).fit(X)  # whose own score is a sum
    assert kernel.score(X_NEW) == pytest.approx(kernel.score_samples(X_NEW).mean())


class Refuses(PartitionEstimator):
    """Raises where log Z is asked for."""

    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        raise AssertionError("log Z is not needed here")


@pytest.mark.parametrize("method", METHODS)
def test_predictions_and_p_values_need_no_log_z(method):
    bits = (X > 1).astype(float)
    inner = RBMEstimator(3, learning="pcd", n_iter=3, partition=Refuses())
    detector = EnergyOutlierDetector(make_pipeline("passthrough", inner), method=method, cv=2)
    detector.fit(bits)
    detector.predict(bits), detector.explain(bits[:2])
    if method != "quantile":
        detector.p_values(bits), detector.select(bits)
    with pytest.raises(AssertionError, match="not needed"):
        detector.score_samples(bits)


# ------------------------------------------------------------------------------
# Conformal p-values, exactly
# ------------------------------------------------------------------------------


def by_definition(parts, values):
    """Cross-conformal p-values by their definition, row by row."""
    n = sum(map(len, parts))
    return np.array(
        [
            (1 + sum((part <= v).sum() for part, v in zip(parts, row, strict=True))) / (n + 1)
            for row in zip(*values, strict=True)
        ]
    )


def test_every_order_of_exchangeable_rows_gives_exact_levels():
    # All orders of five distinct scores are equally likely; four calibrate, the last is new.
    found = []
    for order in permutations(range(5)):
        threshold = ConformalThreshold.fit([np.array(order[:4], dtype=float)], 0.2)
        found.append(threshold.p_values([np.array([order[4]], dtype=float)])[0])
    levels, counts = np.unique(np.round(found, 12), return_counts=True)
    assert_allclose(levels, [0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(counts) == {24}


@pytest.mark.parametrize("n_parts", [1, 2, 5])
@pytest.mark.parametrize("level", [0.05, 0.2, 0.5])
def test_margins_are_negative_exactly_where_p_values_are_small(n_parts, level):
    # Few distinct values and both infinities: ties of every kind.
    random = np.random.default_rng(n_parts)
    pool = np.array([-np.inf, -1.5, -1, 0, 0.25, 1, 2, np.inf])
    parts = [np.sort(random.choice(pool, size=9)) for _ in range(n_parts)]
    values = [random.choice(pool, size=400) for _ in range(n_parts)]
    threshold = ConformalThreshold(level, parts)
    p = threshold.p_values(values)
    assert_allclose(p, by_definition(parts, values))
    if threshold.n_below < 0:
        assert p.min() > level
        return
    assert_array_equal(threshold.margin(values) < 0, p <= level + 1e-12)
    assert threshold.largest_p_value <= level + 1e-12


def test_rounding_does_not_lower_a_level():
    assert 0.29 * 100 < 29
    assert ConformalThreshold(0.29, [np.zeros(99)]).n_below == 28


def test_the_margin_is_the_distance_to_the_threshold():
    random = np.random.default_rng(3)
    parts = [np.sort(random.normal(size=20)) for _ in range(3)]
    values = [random.normal(size=30) for _ in range(3)]
    threshold = ConformalThreshold(8 / 61, parts)
    assert threshold.n_below == 7
    margin = threshold.margin(values)
    nudge = 1e-9
    lower = threshold.p_values([v - margin - nudge for v in values])
    upper = threshold.p_values([v - margin + nudge for v in values])
    assert (lower <= threshold.largest_p_value).all()
    assert (upper > threshold.largest_p_value).all()


def false_alarm_rate(n_folds, per_fold, level, repeats):
    """Share of new rows called outliers, where the models depend on the rows they are fitted to.

    Model k depends on the rows left out of its fit only through their order, as the theory
    requires, and on the other rows in any way.
    """
    random = np.random.default_rng(0)
    n, alarms = n_folds * per_fold, 0
    for _ in range(repeats):
        u = random.random(n + 1)  # exchangeable rows, the last one is new
        values, parts = [], []
        for k in range(n_folds):
            inside = np.arange(k * per_fold, (k + 1) * per_fold)
            outside = np.delete(np.arange(n), inside)
            # A model that gives rows near those it was fitted to the higher scores.
            centre = u[outside].mean()
            parts.append(np.sort(-np.abs(u[inside] - centre)))
            values.append(-np.abs(u[[n]] - centre))
        alarms += ConformalThreshold(level, parts).margin(values)[0] < 0
    return alarms / repeats


def test_cross_conformal_rates_stay_below_the_bound():
    level, repeats = 5 / 25, 1000
    bound = ConformalThreshold(level, [np.zeros(6)] * 4).false_alarm_bound
    assert bound == pytest.approx(2 * 5 / 25 + (1 - 4 / 24) / 5)
    unequal = ConformalThreshold(5 / 24, [np.zeros(5), *[np.zeros(6)] * 3])
    assert unequal.false_alarm_bound == 2 * 8 / 27
    rate = false_alarm_rate(4, 6, level, repeats)
    assert rate <= bound + 3 * np.sqrt(bound / repeats)
    assert rate == pytest.approx(level, abs=0.05)  # far from the worst case: near the level


def test_the_bound_of_leaving_one_out_is_twice_the_level():
    detector = EnergyOutlierDetector(KernelDensity(), method="cross-conformal", cv=40)
    detector.set_params(contamination=0.1).fit(X[:40])
    assert detector.false_alarm_bound_ == pytest.approx(2 * 4 / 41)


def rates_of_fresh_rows(method, repeats):
    # A kernel density that overfits: far higher at the rows it was fitted to than at new ones.
    for seed in range(repeats):
        rows = correlated_rows(300, seed=seed + 10)
        detector = EnergyOutlierDetector(
            KernelDensity(bandwidth=0.05), method=method, contamination=0.1, random_state=seed
        ).fit(rows[:100])
        yield np.mean(detector.predict(rows[100:]) == -1)


@pytest.mark.parametrize(("method", "repeats"), [("conformal", 60), ("cross-conformal", 30)])
def test_false_alarms_of_fresh_rows(method, repeats):
    rates = list(rates_of_fresh_rows(method, repeats))
    error = np.std(rates) / np.sqrt(repeats)
    assert np.mean(rates) <= 0.1 + 3 * error


def test_a_quantile_of_an_overfitted_density_has_more_false_alarms():
    assert np.mean(list(rates_of_fresh_rows("quantile", 5))) > 0.5


def test_ties_make_p_values_conservative():
    bits = (np.random.default_rng(0).random((300, 2)) < 0.5).astype(float)
    detector = EnergyOutlierDetector(
        RBMEstimator(2, n_iter=5), method="conformal", random_state=0, contamination=0.1
    ).fit(bits[:150])
    assert np.mean(detector.predict(bits[150:]) == -1) <= 0.1 + 3 * np.sqrt(0.09 / 75)


# ------------------------------------------------------------------------------
# Batches
# ------------------------------------------------------------------------------


def benjamini_hochberg(p, fdr):
    order, m = np.argsort(p), len(p)
    passed = np.flatnonzero(p[order] <= fdr * np.arange(1, m + 1) / m + 1e-12)
    found = np.zeros(m, dtype=bool)
    found[order[: passed[-1] + 1 if len(passed) else 0]] = True
    return found


@each_conformal
@pytest.mark.parametrize("fdr", [0.05, 0.2, 0.5])
def test_selection_is_by_benjamini_and_hochberg(detector, fdr):
    detector = fitted(detector)
    rows = np.concatenate([X_NEW, X_NEW[:30] - 15])
    assert_array_equal(
        detector.select(rows, fdr=fdr), benjamini_hochberg(detector.p_values(rows), fdr)
    )


def test_too_few_calibration_rows_for_a_selection_are_refused():
    detector = EnergyOutlierDetector(INNER["mixture"], method="conformal", random_state=0)
    detector.set_params(calibration_fraction=0.1).fit(X)  # 20 rows
    with pytest.raises(ValueError, match=r"fdr=0\.01"):
        detector.select(X_NEW, fdr=0.01)
    with pytest.warns(UserWarning, match="at least 39 of the 80 rows must be more abnormal"):
        assert not detector.select(X_NEW, fdr=0.1).any()
    with pytest.raises(ValueError, match=r"fdr must be in \(0, 1\), got 0"):
        detector.select(X_NEW, fdr=0)
    check_fdr(0.1, 9)
    with pytest.raises(ValueError, match="At least 9 are needed"):
        check_fdr(0.1, 8)


# ------------------------------------------------------------------------------
# Calibration rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "level", "n", "held"),
    [
        ("auto", 0.1, 1000, 250),
        ("auto", 0.1, 240, 100),
        ("auto", 0.1, 100, 50),
        ("auto", 0.01, 3000, 1000),
        (0.3, 0.1, 100, 30),
    ],
)
def test_how_many_rows_are_held_out(fraction, level, n, held):
    detector = EnergyOutlierDetector(
        INNER["mixture"], method="conformal", calibration_fraction=fraction, contamination=level
    ).fit(correlated_rows(n))
    assert detector.n_calibration_ == held
    assert detector.false_alarm_bound_ == np.floor(level * (held + 1) + 1e-9) / (held + 1)


def test_too_few_rows_for_the_level_are_refused():
    detector = EnergyOutlierDetector(INNER["mixture"], method="conformal", contamination=0.01)
    with pytest.raises(ValueError, match="n_samples=50"):
        detector.fit(X[:100])
    with pytest.warns(UserWarning, match=r"6 calibration rows allow no level below 0\.143"):
        detector.set_params(contamination="auto").fit(X[:12])
    assert detector.contamination_ == pytest.approx(1 / 7)
    with pytest.raises(ValueError, match="n_samples=1: holding 0 out"):
        detector.fit(X[:1])


def test_partial_fit_joins_calibration_rows():
    first = EnergyOutlierDetector(INNER["mixture"].fit(X), prefit=True, method="conformal")
    both = clone(first).set_params(estimator=first.estimator).fit(X_NEW)
    first.fit(X_NEW[:30]).partial_fit(X_NEW[30:50]).partial_fit(X_NEW[50:])
    assert_array_equal(first.p_values(X), both.p_values(X))
    assert first.offset_ == both.offset_
    assert first.n_calibration_ == 80


def test_partial_fit_of_a_quantile_moves_the_threshold():
    detector = EnergyOutlierDetector(GaussianMixture(), contamination=0.1).fit(X)
    model = detector.estimator_
    detector.partial_fit(X + 3)
    assert detector.estimator_ is model
    assert np.sum(detector.predict(np.concatenate([X, X + 3])) == -1) == 40
    cross = EnergyOutlierDetector(GaussianMixture(), method="cross-conformal").fit(X)
    with pytest.raises(AttributeError) as error:
        cross.partial_fit(X)
    assert "cannot take further rows" in str(error.value.__cause__)


def test_what_holds_of_every_fold_is_said_once():
    rows = np.column_stack([X[:60, 0], np.ones(60), np.arange(60) == 0])  # rare in the third
    inner = ScoreMatchingDensity(n_iter=1)
    detector = EnergyOutlierDetector(inner, method="cross-conformal", cv=3, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector.fit(rows)
    said = [str(one.message) for one in caught if "are constant" in str(one.message)]
    assert len(said) == 1


def test_weights_weigh_the_quantile():
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = EnergyOutlierDetector(KernelDensity(bandwidth=0.5)).fit(X, sample_weight=weight)
    repeated = EnergyOutlierDetector(KernelDensity(bandwidth=0.5)).fit(np.repeat(X, weight, axis=0))
    assert weighted.offset_ == pytest.approx(repeated.offset_)
    pipe = make_pipeline(StandardScaler(), KernelDensity(bandwidth=0.5))
    inside = EnergyOutlierDetector(pipe).fit(X, kerneldensity__sample_weight=weight)
    assert inside.offset_ != pytest.approx(EnergyOutlierDetector(pipe).fit(X).offset_)


@pytest.mark.parametrize("method", ["conformal", "cross-conformal"])
def test_equal_weights_are_none(method):
    detector = EnergyOutlierDetector(KernelDensity(), method=method, random_state=0)
    plain = clone(detector).fit(X)
    equal = clone(detector).fit(X, sample_weight=np.full(len(X), 2.0))
    assert equal.offset_ == pytest.approx(plain.offset_)
    assert equal.false_alarm_bound_ == plain.false_alarm_bound_


def test_cross_conformal_thresholds_take_equal_weights():
    detector = EnergyOutlierDetector(KernelDensity(), method="cross-conformal", random_state=0)
    with pytest.raises(ValueError, match="takes equal weights only"):
        detector.fit(X, sample_weight=np.arange(len(X)))


def test_conformal_p_values_weigh_the_calibration_rows():
    """By the formula, with ties; outliers are exactly the rows of p-values up to the level."""
    rng = np.random.default_rng(1)
    values, w = rng.integers(0, 8, 40).astype(float), rng.integers(0, 4, 40) / 2
    threshold = ConformalThreshold.fit([values], 0.2, w)
    new = np.arange(-1.0, 9.0)
    expected = [(w.max() + w[values <= v].sum()) / (w.max() + w.sum()) for v in new]
    p = threshold.p_values([new])
    assert p == pytest.approx(expected)
    assert np.array_equal(threshold.margin([new]) < 0, p <= 0.2)
    assert threshold.false_alarm_bound == pytest.approx(max(p[p <= 0.2]))
    more = threshold.with_reference_rows([np.array([3.0, 3.0])], 0.2)
    again = ConformalThreshold.fit([np.append(values, [3.0, 3.0])], 0.2, np.append(w, [1, 1]))
    assert more.p_values([new]) == pytest.approx(again.p_values([new]))


def test_integer_weights_are_those_of_repeated_rows_but_for_the_new_one():
    values, w = np.arange(30.0), np.tile([1, 2, 3], 10)
    weighted = ConformalThreshold.fit([values], 0.1, w.astype(float)).p_values([values])
    repeated = ConformalThreshold.fit([np.repeat(values, w)], 0.1).p_values([values])
    # The new row counts three times in the first, once in the second.
    assert weighted * 63 - 3 == pytest.approx(repeated * 61 - 1)


def test_weighted_conformal_levels_hold_under_a_shift():
    """Calibration rows are uniform, new ones have density 2 x: outliers at the level or below."""
    rng = np.random.default_rng(0)
    level, n_fits = 0.2, 4000
    rate, unweighted = 0.0, 0.0
    for _ in range(n_fits):
        x, new = rng.random(50), np.sqrt(rng.random(1))
        rate += float(ConformalThreshold.fit([-x], level, 2 * x).p_values([-new])[0] <= level)
        unweighted += float(ConformalThreshold.fit([-x], level).p_values([-new])[0] <= level)
    error = math.sqrt(level * (1 - level) / n_fits)
    assert rate / n_fits <= level + 3 * error
    assert rate / n_fits >= level - 0.05  # not by being too cautious
    assert unweighted / n_fits > level + 10 * error


def test_weights_that_leave_too_few_calibration_rows():
    detector = EnergyOutlierDetector(KernelDensity(), method="conformal", random_state=0)
    weight = np.where(np.arange(len(X)) == 0, 1.0, 1e-6)
    held_out = random_split(len(X), 100, np.random.RandomState(0)).held_out
    weight = np.roll(weight, held_out[0])
    with pytest.raises(ValueError, match="n_samples="):
        detector.set_params(contamination=0.1).fit(X, sample_weight=weight)
    nothing = np.ones(len(X))
    nothing[held_out] = 0
    with pytest.raises(ValueError, match="held out for the calibration have weight 0"):
        detector.fit(X, sample_weight=nothing)


@pytest.mark.parametrize("method", ["quantile", "conformal"])
def test_the_default_detector_takes_weights(method):
    """A row of weight 0 has no say in the fit or the threshold, however far it lies."""
    rows = np.random.default_rng(0).normal(size=(60, 2))
    far = np.vstack([rows, np.full((1, 2), 1e6)])
    weight = np.append(np.random.default_rng(1).integers(1, 4, 60), 0).astype(float)
    detector = EnergyOutlierDetector(method=method, contamination=0.2, random_state=0)
    with_far = clone(detector).fit(far, sample_weight=weight)
    assert with_far.predict(rows).sum() > 20
    assert with_far.predict(far[-1:]).item() == -1
    if method == "quantile":
        without = clone(detector).fit(rows, sample_weight=weight[:-1])
        assert with_far.decision_function(rows) == pytest.approx(without.decision_function(rows))
    assert with_far.score_samples(rows) != pytest.approx(
        clone(detector).fit(rows).score_samples(rows)
    )


@pytest.mark.parametrize(
    "cv", [3, np.int64(3), KFold(4), [(np.arange(100), np.arange(100, 200))] * 1]
)
def test_folds(cv):
    detector = EnergyOutlierDetector(INNER["mixture"], method="cross-conformal", cv=cv)
    if isinstance(cv, list):
        with pytest.raises(ValueError, match="leaves 100 rows out where X has 200"):
            detector.fit(X)
        return
    detector.fit(X)
    assert len(detector.estimators_) == (4 if isinstance(cv, KFold) else cv)
    assert detector.n_calibration_ == len(X)
    with pytest.raises(AttributeError, match="estimators_, one for each fold"):
        _ = detector.estimator_
    with pytest.raises(ValueError, match="every row out exactly once"):
        detector.set_params(cv=ShuffleSplit(3, random_state=0)).fit(X)


# ------------------------------------------------------------------------------
# Fitted estimators
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["quantile", "conformal"])
def test_fitted_estimators_stay_as_they_are(method):
    inner = GaussianMixture(2, random_state=0).fit(X)
    before = copy.deepcopy(vars(inner))
    detector = EnergyOutlierDetector(inner, prefit=True, method=method).fit(X_NEW)
    frozen = EnergyOutlierDetector(FrozenEstimator(inner), method=method).fit(X_NEW)
    assert detector.estimator_ is inner
    assert detector.n_calibration_ == len(X_NEW)
    assert_array_equal(detector.decision_function(X), frozen.decision_function(X))
    assert vars(inner).keys() == before.keys()
    assert_array_equal(inner.means_, before["means_"])


def test_fitted_estimators_that_are_refused():
    with pytest.raises(NotFittedError, match="GaussianMixture"):
        EnergyOutlierDetector(GaussianMixture(), prefit=True).fit(X)
    with pytest.raises(ValueError, match="prefit=True needs a fitted estimator"):
        EnergyOutlierDetector(prefit=True).fit(X)
    inner = GaussianMixture().fit(X)
    with pytest.raises(ValueError, match="use method='conformal'"):
        EnergyOutlierDetector(inner, prefit=True, method="cross-conformal").fit(X)
    with pytest.raises(ValueError, match=r"\['init'\]"):
        EnergyOutlierDetector(inner, prefit=True).fit(X, init=3)


# ------------------------------------------------------------------------------
# Statistics
# ------------------------------------------------------------------------------


def test_classes_go_to_classifiers_only():
    y = (X[:, 0] > 1).astype(int)
    inner = LogisticRegression()
    detector = EnergyOutlierDetector(inner, statistic="max_proba", method="conformal")
    detector.set_params(random_state=0).fit(X, y)
    assert_allclose(
        detector.score_samples(X_NEW), detector.estimator_.predict_proba(X_NEW).max(axis=1)
    )
    assert len(detector.estimator_.classes_) == 2
    with pytest.raises(ValueError, match="LogisticRegression needs classes"):
        detector.fit(X)
    with pytest.raises(AttributeError) as error:
        detector.score(X)
    assert "is not a log-likelihood" in str(error.value.__cause__)


def test_outlier_labels_do_not_reach_a_density():
    class Curious(DensityMixin, BaseEstimator):
        def fit(self, X, y=None):
            assert y is None
            self.n_ = len(X)
            return self

        def score_samples(self, X):
            return -np.abs(X).sum(1)

    EnergyOutlierDetector(Curious()).fit(X, np.ones(len(X)))


def test_any_function_of_the_estimator_is_a_statistic():
    def depth(estimator, X):
        return estimator.score_samples(X) * 2

    plain = EnergyOutlierDetector(INNER["mixture"]).fit(X)
    twice = EnergyOutlierDetector(INNER["mixture"], statistic=depth).fit(X)
    assert_allclose(twice.decision_function(X_NEW), 2 * plain.decision_function(X_NEW))
    assert_array_equal(twice.score_samples(X_NEW), depth(twice.estimator_, X_NEW))


def test_outlier_detectors_of_scikit_learn_are_taken():
    detector = EnergyOutlierDetector(IsolationForest(n_estimators=10), method="conformal")
    detector.set_params(random_state=0).fit(X)
    assert (detector.predict(X + 50) == -1).all()


def column(estimator, X):
    return X[:, :1]


def lost(estimator, X):
    return np.where(np.arange(len(X)) % 3 == 1, np.nan, 1.0)


def test_statistics_that_cannot_be_compared():
    with pytest.raises(ValueError, match=r"column.*has shape \(200, 1\) for 200 rows"):
        EnergyOutlierDetector(INNER["mixture"], statistic=column).fit(X)
    with pytest.raises(ValueError, match="row 1"):
        EnergyOutlierDetector(INNER["mixture"], statistic=lost).fit(X)


def test_estimators_that_lack_the_statistic():
    with pytest.raises(TypeError, match="score_samples"):
        EnergyOutlierDetector(LogisticRegression()).fit(X, X[:, 0] > 0)
    with pytest.raises(TypeError, match="predict_proba"):
        EnergyOutlierDetector(KernelDensity(), statistic="max_proba").fit(X)
    with pytest.raises(TypeError, match="RBMEstimator"):
        EnergyOutlierDetector(INNER["rbm"], statistic="score_norm").fit(X)
    with pytest.raises(TypeError, match="score_samples"):
        EnergyOutlierDetector(LogisticRegression().fit(X, X[:, 0] > 0), prefit=True).fit(X)


def test_a_density_of_zero_is_an_outlier_without_nan():
    detector = EnergyOutlierDetector(KernelDensity(kernel="tophat"), contamination=0.1).fit(X)
    assert_array_equal(detector.decision_function(X[:2] + 99), [-np.inf, -np.inf])
    narrow = KernelDensity(kernel="tophat", bandwidth=1e-3)
    conformal = EnergyOutlierDetector(narrow, method="conformal", random_state=0)
    with pytest.warns(UserWarning, match="The threshold is -inf"):
        conformal.fit(X)
    assert_array_equal(
        conformal.decision_function(X_NEW), 0
    )  # none can be discriminated from normal rows
    assert_array_equal(conformal.p_values(X_NEW), 1)


# ------------------------------------------------------------------------------
# Together with scikit-learn
# ------------------------------------------------------------------------------


def labelled():
    rows = np.concatenate([X, X[:20] * [1, -1, 1] * 3])
    label = np.r_[np.ones(len(X)), -np.ones(20)]
    order = np.random.default_rng(0).permutation(len(rows))
    return rows[order], label[order]


@each_detector
def test_scores_by_labels(detector):
    rows, label = labelled()
    found = cross_val_score(clone(detector), rows, label, scoring="roc_auc", cv=2)
    assert np.isfinite(found).all()
    if not isinstance(detector.estimator, RBMEstimator):
        assert (found > 0.6).all()


def test_searches_with_and_without_labels():
    rows, label = labelled()
    detector = EnergyOutlierDetector(KernelDensity(), method="conformal", random_state=0)
    grid = {"estimator__bandwidth": [0.01, 0.3, 30], "method": ["quantile", "conformal"]}
    by_label = GridSearchCV(detector, grid, scoring="roc_auc", cv=3).fit(rows, label)
    by_likelihood = GridSearchCV(detector, grid, cv=3).fit(X)
    assert by_likelihood.best_params_["estimator__bandwidth"] == 0.3
    assert by_label.best_estimator_.predict(X_NEW).shape == (80,)


def test_a_search_may_be_the_estimator():
    search = GridSearchCV(KernelDensity(), {"bandwidth": [0.01, 0.3, 30]})
    detector = EnergyOutlierDetector(search, statistic="score_norm", method="conformal").fit(X)
    assert detector.estimator_.best_params_ == {"bandwidth": 0.3}
    assert np.isfinite(detector.decision_function(X_NEW)).all()


@pytest.mark.parametrize(("n", "n_components"), [(30, 1), (1000, 10), only_full(4100, 40)])
def test_the_default_has_a_product_for_tables_of_numbers(n, n_components):
    rows = correlated_rows(n) * [1e6, 1, 1e-6]
    detector = EnergyOutlierDetector(random_state=0).fit(rows)
    experts = detector.estimator_[-1].density_.experts_
    assert len(experts["mixture"].distribution_.weights) <= n_components + 1
    assert len(experts["kernels_by_range"].distribution_.parts[0].centres) == n
    assert len(experts["kernels_of_logs"].distribution_.parts[0].distribution.centres) == n
    far = rows[:5] + 20 * rows.std(0)
    assert (detector.predict(far) == -1).all()
    by_score = EnergyOutlierDetector(detector.estimator_, prefit=True, statistic="score_norm")
    assert by_score.fit(rows).predict(far).max() == -1


def test_a_seed_makes_everything_repeatable():
    for method in METHODS:
        detector = EnergyOutlierDetector(
            make_pipeline(StandardScaler(), INNER["rbm"]), method=method, cv=2, random_state=3
        )
        one, other = clone(detector).fit(X), clone(detector).fit(X)
        assert_array_equal(one.decision_function(X_NEW), other.decision_function(X_NEW))
        assert detector.estimator[-1].random_state is None
    own = EnergyOutlierDetector(RBMEstimator(2, n_iter=2, random_state=5), random_state=3).fit(X)
    assert own.estimator_.random_state == 5
    assert EnergyOutlierDetector(GaussianMixture()).fit(X).estimator_.random_state is None


@each_detector
def test_pickles_and_clones(detector):
    detector = fitted(detector)
    file = io.BytesIO()
    joblib.dump(detector, file)
    file.seek(0)
    for copied in (pickle.loads(pickle.dumps(detector)), joblib.load(file)):
        assert_array_equal(copied.decision_function(X_NEW), detector.decision_function(X_NEW))
    for name in ("predict", "explain", *["p_values", "select"] * (detector.method != "quantile")):
        with pytest.raises(NotFittedError):
            getattr(clone(detector), name)(X)


@pytest.mark.parametrize("method", METHODS)
def test_skops_stores_detectors_of_frames(method):
    detector = EnergyOutlierDetector(mixed_pipeline(), method=method, cv=2, random_state=0)
    detector.fit(frame())
    stored = skops.io.dumps(detector)  # with a tree of scikit-learn, which skops asks about
    with pytest.raises(ValueError, match="KDTree"):
        skebm.load(stored)
    loaded = skops.io.loads(stored, trusted=skops.io.get_untrusted_types(data=stored))
    new = frame(3, 1)
    assert_array_equal(loaded.decision_function(new), detector.decision_function(new))
    assert_array_equal(loaded.explain(new).contributions, detector.explain(new).contributions)


def test_parameters_of_no_estimator_say_what_to_pass():
    with pytest.raises(ValueError, match="estimator__n_components.*estimator=No"):
        EnergyOutlierDetector().set_params(estimator__n_components=3)


class Interrupted(GaussianMixture):
    def fit(self, X, y=None):
        raise KeyboardInterrupt


def test_a_failed_fit_leaves_the_fitted_detector():
    detector = EnergyOutlierDetector(GaussianMixture(random_state=0), method="conformal").fit(X)
    before = detector.decision_function(X_NEW)
    with pytest.raises(KeyboardInterrupt):
        detector.set_params(estimator=Interrupted()).fit(X[:, :2])
    assert_array_equal(detector.decision_function(X_NEW), before)


# ------------------------------------------------------------------------------
# Tables of every kind, and bad ones
# ------------------------------------------------------------------------------


def frame(n=120, seed=0):
    rows = correlated_rows(n, seed)
    kind = np.where(rows[:, 2] > 1, "long", "short")
    return pd.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "kind": kind})


def mixed_pipeline():
    columns = make_column_transformer(
        (StandardScaler(), ["a", "b"]), (OneHotEncoder(handle_unknown="ignore"), ["kind"])
    )
    return make_pipeline(columns, KernelDensity(bandwidth=0.5))


@pytest.mark.parametrize("method", METHODS)
def test_frames_of_mixed_types(method):
    detector = EnergyOutlierDetector(mixed_pipeline(), method=method, random_state=0).fit(frame())
    assert_array_equal(detector.feature_names_in_, ["a", "b", "kind"])
    normal, unseen = frame(5, 1), frame(5, 1).assign(kind="never seen")
    assert (detector.decision_function(unseen) < detector.decision_function(normal)).all()


@pytest.mark.parametrize("method", METHODS)
def test_frames_with_other_columns(method):
    detector = EnergyOutlierDetector(INNER["mixture"], method=method).fit(frame()[["a", "b"]])
    for wrong in (["b", "a"], ["a", "kind"], ["a"]):
        with pytest.raises(ValueError, match="feature names"):
            detector.predict(frame()[wrong])
    with pytest.raises(ValueError, match="X has 3 features"):
        detector.predict(X)


@each_detector
@pytest.mark.parametrize("bad", leading(2, [np.nan, np.inf, -np.inf]))
def test_rows_that_are_not_finite(detector, bad):
    rows = X_NEW.copy()
    rows[3, 1] = bad
    if np.isnan(bad) and isinstance(detector.estimator, RBMEstimator):  # takes missing entries
        found = clone(detector).fit(rows)
        assert np.isfinite(found.score_samples(rows)).all()
        assert set(found.predict(rows)) <= {-1, 1}
        return
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        clone(detector).fit(rows)
    detector = fitted(detector)
    for call in (detector.predict, detector.score_samples, detector.explain):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            call(rows)


@each_detector
def test_one_row_no_row_and_a_vector(detector):
    detector = fitted(detector)
    assert detector.predict(X[:1]).shape == (1,)
    for call in (detector.predict, detector.score_samples):
        with pytest.raises(ValueError, match="0 sample"):
            call(X[:0])
        with pytest.raises(ValueError, match="Reshape your data"):
            call(X[0])
    with pytest.raises(ValueError, match=r"0 sample|n_samples=0"):
        clone(detector).fit(X[:0])


@pytest.mark.parametrize(
    "bad",
    [
        {"contamination": 0.6},
        {"contamination": 0},
        {"contamination": -0.1},
        {"contamination": "low"},
        {"method": "bootstrap"},
        {"statistic": "energy"},
        {"calibration_fraction": 1.0},
        {"calibration_fraction": 5},
        {"cv": 1},
        {"prefit": "yes"},
        {"estimator": "mixture"},
    ],
)
def test_parameters_out_of_range(bad):
    with pytest.raises(ValueError, match=f"The '{next(iter(bad))}' parameter"):
        EnergyOutlierDetector(**{"estimator": INNER["mixture"], **bad}).fit(X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "kind", [sp.csr_array, only_full(sp.csc_matrix), only_full(sp.coo_array), np.ndarray.tolist]
)
def test_sparse_tables_and_lists(method, kind):
    bits = (X > 1).astype(float)
    detector = EnergyOutlierDetector(INNER["rbm"], method=method, cv=2, random_state=0)
    other = clone(detector).fit(kind(bits))
    assert_allclose(
        other.decision_function(kind(bits[:9])), detector.fit(bits).decision_function(bits[:9])
    )
    assert other.explain(kind(bits[:2])).contributions.shape == (2, 3)


def test_changed_parameters_wait_for_the_next_fit():
    detector = EnergyOutlierDetector(INNER["mixture"]).fit(X)
    decision = detector.decision_function(X_NEW)
    detector.set_params(method="conformal", statistic="score_norm")
    assert not hasattr(detector, "p_values")  # they would be of rows that it was fitted to
    assert_array_equal(detector.decision_function(X_NEW), decision)
    assert detector.partial_fit(X_NEW).n_calibration_ == len(X) + len(X_NEW)
    assert hasattr(detector.fit(X), "p_values")
    assert detector.set_params(contamination=0.3).partial_fit(X_NEW).contamination_ == 0.1


def test_p_values_of_a_quantile_are_refused():
    detector = EnergyOutlierDetector(INNER["mixture"]).fit(X)
    for name in ("p_values", "select"):
        assert not hasattr(detector, name)
        with pytest.raises(AttributeError) as error:
            getattr(detector, name)
        assert "use method='conformal'" in str(error.value.__cause__)


def test_groups_stay_together_where_a_splitter_knows_them():
    groups = np.repeat(np.arange(4), 50)
    cv = list(GroupKFold(4).split(X, groups=groups))
    detector = EnergyOutlierDetector(INNER["mixture"], method="cross-conformal", cv=cv).fit(X)
    assert len(detector.estimators_) == 4
