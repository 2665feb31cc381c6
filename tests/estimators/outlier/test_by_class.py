"""Conformal thresholds by the class that a classifier gives to rows."""

import pickle

import numpy as np
import pytest
import skops.io
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skebm
from skebm import EnergyOutlierDetector, JEMClassifier, StreamMonitor
from skebm.base import DataWarning, SettingWarning
from skebm.energies import MLP
from skebm.estimators.outlier.thresholds import ClassThresholds, ConformalThreshold
from skebm.export import ExportError, to_numpy
from skebm.inspection import DetectorROCDisplay, PValueDisplay, report
from skebm.partition import ImportanceSampling
from tests.support.tiers import full

NAMES = np.array(["bird", "cat", "dog"])
LEVEL = 0.1


class ByColumn(ClassifierMixin, BaseEstimator):
    """The class is that of the first column, the confidence the second one."""

    def __init__(self, names=NAMES):
        self.names = names

    def fit(self, X, y):
        self.classes_ = np.asarray(NAMES)
        return self

    def predict(self, X):
        return np.asarray(self.names)[np.asarray(X)[:, 0].astype(int)]


def confidence(estimator, X):
    return X[:, 1]


def rows(counts, seed=0):
    """Rows in random order; the statistic of each class is lower than that of the one before."""
    rng = np.random.default_rng(seed)
    number = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return np.column_stack([number, rng.normal(size=len(number)) - 2 * number])


def detector(by_class=True, names=NAMES, **params):
    model = ByColumn(names).fit(None, None)
    params = {"contamination": LEVEL, "prefit": True, "method": "conformal"} | params
    return EnergyOutlierDetector(model, statistic=confidence, by_class=by_class, **params)


# ------------------------------------------------------------------------------
# Rates
# ------------------------------------------------------------------------------


def test_rates_hold_in_each_predicted_class():
    """They are exact given the number of calibration rows; those of one threshold are far off."""
    n_fits, rng = 500, np.random.default_rng(0)
    errors, plain = np.zeros((n_fits, 3)), np.zeros((n_fits, 3))
    for i in range(n_fits):
        number, x = rows(rng.multinomial(120, [0.5, 0.3, 0.2]), seed=rng).T
        new_number, new = rows([100, 100, 100], seed=rng).T
        by_class = ClassThresholds.fit([x, number], 3, LEVEL)
        exact = np.floor(LEVEL * (by_class.n_rows + 1)) / (by_class.n_rows + 1)
        assert by_class.false_alarm_bound == max(exact) <= LEVEL
        alarm = by_class.margin([new, new_number]) < 0
        plain_alarm = ConformalThreshold.fit([x], LEVEL).margin([new]) < 0
        for k in range(3):
            errors[i, k] = alarm[new_number == k].mean() - exact[k]
            plain[i, k] = plain_alarm[new_number == k].mean()
    assert np.all(np.abs(errors.mean(0)) < 3.5 * errors.std(0) / np.sqrt(n_fits))
    assert plain.mean(0)[0] < LEVEL / 10  # nearly all alarms of one threshold are of the last class
    assert plain.mean(0)[2] > 3 * LEVEL


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("more", [False, True], ids=["fit", "partial_fit"])
def test_each_class_has_the_detector_of_its_rows(weighted, more):
    known, later, new = rows([60, 40, 50]), rows([5, 6, 7], seed=1), rows([30, 30, 30], seed=2)
    weight = np.random.default_rng(3).integers(0, 4, len(known)) if weighted else None
    fitted = detector().fit(known, sample_weight=weight)
    fitted = fitted.partial_fit(later) if more else fitted
    bounds = []
    for k in range(3):
        own, mine = known[:, 0] == k, new[:, 0] == k
        alone = detector(False).fit(known[own], sample_weight=weight[own] if weighted else None)
        alone = alone.partial_fit(later[later[:, 0] == k]) if more else alone
        for name in ("p_values", "decision_function", "predict", "score_samples"):
            found = getattr(fitted, name)(new)[mine]
            assert_allclose(found, getattr(alone, name)(new[mine]), atol=1e-12)
        assert fitted.n_calibration_[k] == alone.n_calibration_
        assert fitted.offset_[k] == alone.offset_
        bounds.append(alone.false_alarm_bound_)
    assert fitted.false_alarm_bound_ == max(bounds)
    assert fitted.contamination_ == LEVEL
    place = new[:, 0].astype(int)
    assert_allclose(fitted.decision_function(new), new[:, 1] - fitted.offset_[place])
    assert_array_equal(fitted.predict(new) == -1, fitted.p_values(new) <= LEVEL + 1e-12)


def test_one_class_has_the_plain_threshold():
    known, new = rows([50]), rows([30], seed=1)
    with pytest.warns(DataWarning, match="'cat' has 0, 'dog' has 0"):
        fitted = detector().fit(known)
    plain = detector(False).fit(known)
    new[:8, 1] = -9
    for name in ("p_values", "decision_function", "predict", "select"):
        assert_array_equal(getattr(fitted, name)(new), getattr(plain, name)(new))
    found, expected = (one.explain(new[:3]).contributions for one in (fitted, plain))
    assert_array_equal(found, expected)
    assert fitted.false_alarm_bound_ == plain.false_alarm_bound_


def test_selection_is_among_the_rows_of_each_class():
    known, new = rows([200, 200, 200]), rows([50, 50, 50], seed=1)
    new[:10] = [0, -5]  # odd for the first class, and usual for the last
    picked = detector().fit(known).select(new, fdr=0.2)
    assert picked[:10].all()
    assert picked[10:].mean() < 0.1
    with pytest.warns(DataWarning, match="Nothing was selected"):
        detector(False).fit(known).select(new, fdr=0.2)


# ------------------------------------------------------------------------------
# Few rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("contamination", ["auto", 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_of_few_rows_have_no_outliers(contamination, weighted):
    known = rows([30, 8, 0])
    weight = np.random.default_rng(0).uniform(1, 1.1, len(known)) if weighted else None
    message = r"level 0.1 needs 9 calibration rows of a class, and 'cat' has \S+, 'dog' has 0. "
    with pytest.warns(DataWarning, match=message):
        fitted = detector(contamination=contamination).fit(known, sample_weight=weight)
    assert fitted.contamination_ == 0.1
    assert_array_equal(fitted.n_calibration_, [30, 8, 0])
    assert_array_equal(np.isneginf(fitted.offset_), [False, True, True])
    far = np.array([[0, -99.0], [1, -99.0], [2, -99.0], [2, -np.inf], [2, np.inf]])
    assert_array_equal(fitted.predict(far), [-1, 1, 1, 1, 1])
    assert_array_equal(fitted.decision_function(far)[1:], [np.inf, np.inf, 0, np.inf])
    p = fitted.p_values(far)
    assert p[1] == pytest.approx(1 / 9, rel=0.1)
    assert_array_equal(p[2:], 1)
    assert 0 < fitted.false_alarm_bound_ <= 0.1
    fitted.partial_fit(rows([0, 20, 20]))
    assert_array_equal(fitted.predict(far[:3]), -1)


def test_many_classes_of_few_rows_are_counted():
    model = KNeighborsClassifier(1).fit(np.arange(20.0)[:, None], np.arange(20))
    known = np.repeat(np.arange(20.0), [9] + [1] * 19)[:, None]
    with pytest.warns(DataWarning, match=r"1 has 1, .*5 has 1 and 14 others too few"):
        EnergyOutlierDetector(
            model, statistic="max_proba", prefit=True, by_class=True, method="conformal"
        ).fit(known)


def test_too_few_rows_in_all_classes():
    with pytest.raises(ValueError, match=r"n_samples=50 .*in the largest class .* 99 are needed"):
        detector(contamination=0.01).fit(rows([50, 50, 50]))
    with (
        pytest.warns(SettingWarning, match="5 calibration rows allow no level below 0.167"),
        pytest.warns(DataWarning, match="level 0.167 needs 5 .* 'cat' has 4, 'dog' has 4"),
    ):
        fitted = detector(contamination="auto").fit(rows([5, 4, 4]))
    assert fitted.contamination_ == pytest.approx(1 / 6)


# ------------------------------------------------------------------------------
# Estimators
# ------------------------------------------------------------------------------

X, y = load_iris(return_X_y=True)
Y = NAMES[y]
PIPELINE = make_pipeline(StandardScaler(), LogisticRegression())


def test_a_classifier_is_fitted_frozen_or_given():
    settings = {"statistic": "logit_energy", "method": "conformal", "by_class": True}
    fitted = EnergyOutlierDetector(PIPELINE, random_state=0, **settings).fit(X, Y)
    assert_array_equal(np.isfinite(fitted.offset_), True)
    model = clone(PIPELINE).fit(X[::2], Y[::2])
    given = EnergyOutlierDetector(model, prefit=True, **settings).fit(X[1::2])
    frozen = EnergyOutlierDetector(FrozenEstimator(model), **settings).fit(X[1::2])
    assert_array_equal(given.p_values(X), frozen.p_values(X))
    predicted = model.predict(X[1::2])
    assert_array_equal(given.n_calibration_, [np.sum(predicted == name) for name in NAMES])


def test_more_rows_are_held_out_for_more_classes():
    rng = np.random.default_rng(0)
    new = rng.normal(size=(800, 2))
    labels = NAMES[rng.integers(0, 3, 800)]
    model = EnergyOutlierDetector(
        ByColumn(), statistic=confidence, method="conformal", random_state=0
    )
    new[:, 0] = rng.integers(0, 3, 800)
    assert model.fit(new, labels).n_calibration_ == 200
    assert model.set_params(by_class=True).fit(new, labels).n_calibration_.sum() == 300


@full  # training and log Z, of which the threshold knows nothing
def test_a_joint_model_by_its_density():
    partition = ImportanceSampling(200)
    jem = JEMClassifier(MLP((8,)), base="gaussian", n_iter=4, partition=partition, random_state=0)
    jem.fit(X[::2], y[::2])
    fitted = EnergyOutlierDetector(jem, method="conformal", prefit=True, by_class=True)
    fitted.fit(X[1::2])
    margin = fitted.score_samples(X) - fitted.offset_[jem.predict(X)]
    assert np.isfinite(margin).all()
    assert_allclose(fitted.decision_function(X), margin, atol=1e-5)


def test_estimators_without_classes_are_refused():
    with pytest.raises(TypeError, match="by_class=True .* GaussianMixture is none"):
        EnergyOutlierDetector(GaussianMixture(), method="conformal", by_class=True).fit(X)
    with pytest.raises(TypeError, match="by_class=True .* Pipeline is none"):
        EnergyOutlierDetector(method="conformal", by_class=True).fit(X)
    mixture = GaussianMixture().fit(X)
    with pytest.raises(TypeError, match="by_class=True .* GaussianMixture is none"):
        EnergyOutlierDetector(mixture, prefit=True, method="conformal", by_class=True).fit(X)


def test_labels_that_are_no_class_are_refused():
    with pytest.raises(ValueError, match="the class 'cow', which is none of its classes_"):
        detector(names=["bird", "cow", "dog"]).fit(rows([20, 20, 20]))
    two = KNeighborsClassifier().fit(X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match=r"several labels, shape \(150, 2\)"):
        detector().set_params(estimator=two).fit(X)
    with pytest.raises(ValueError, match="by_class"):
        detector(by_class="cat").fit(rows([20, 20, 20]))


@pytest.mark.parametrize("method", ["quantile", "cross-conformal"])
def test_other_methods_have_no_thresholds_by_class(method):
    known = GaussianMixture(random_state=0)
    model = EnergyOutlierDetector(known, method=method, by_class=True, random_state=0)
    with pytest.warns(SettingWarning, match="by_class.* does not use it"):
        model.fit(X)
    plain = clone(model).set_params(by_class=False).fit(X)
    assert_array_equal(model.decision_function(X), plain.decision_function(X))


# ------------------------------------------------------------------------------
# What is done with detectors
# ------------------------------------------------------------------------------


def of_iris(**params):
    model = EnergyOutlierDetector(
        PIPELINE, statistic="max_proba", method="conformal", by_class=True, random_state=0
    )
    return model.set_params(**params).fit(X, Y)


def test_storage_copies_and_searches():
    fitted = of_iris()
    stored = (pickle.loads(pickle.dumps(fitted)), skebm.load(skops.io.dumps(fitted)))
    for copied in stored:
        assert_array_equal(copied.p_values(X), fitted.p_values(X))
        assert_array_equal(copied.decision_function(X), fitted.decision_function(X))
        copied.partial_fit(X[:30])
    fitted.set_params(by_class=False)  # waits for the next fit
    assert_array_equal(fitted.p_values(X), of_iris().p_values(X))
    assert np.ndim(fitted.fit(X, Y).n_calibration_) == 0

    def sharpest(model, X, y):
        return -abs(np.mean(model.predict(X) == -1) - LEVEL)

    search = clone(fitted).set_params(contamination=0.2)
    search = GridSearchCV(search, {"by_class": [False, True]}, scoring=sharpest, cv=2)
    assert np.isfinite(search.fit(X, Y).cv_results_["mean_test_score"]).all()


def test_what_knows_one_threshold_alone_says_so():
    fitted = of_iris()
    with pytest.raises(ValueError, match="by_class=True: a StreamMonitor"):
        StreamMonitor(fitted)
    with pytest.raises(ExportError, match="Thresholds by class have no translation"):
        to_numpy(fitted)
    with pytest.raises(ValueError, match="of one class, and its n_calibration_"):
        PValueDisplay.from_estimator(fitted, X)
    mine = fitted.estimator_.predict(X) == "cat"
    PValueDisplay.from_p_values(fitted.p_values(X[mine]), fitted.n_calibration_[1])


@full
def test_a_report_tells_of_several_thresholds():
    fitted = of_iris()
    found = report(fitted, X, X)
    assert not found.not_said
    p = fitted.p_values(X)
    for level, share in found.facts["detection"]["p_values"].items():
        assert share == pytest.approx(np.mean(p <= float(level) + 1e-12), abs=1e-3)


def test_curves_of_margins_that_are_infinite():
    with pytest.warns(DataWarning, match="'dog' has 0"):
        fitted = detector().fit(rows([30, 30]))
    new = rows([20, 20, 20], seed=1)
    display = DetectorROCDisplay.from_estimators(
        {"by class": fitted}, new, np.where(new[:, 1] < -3, -1, 1), n_bootstraps=20, random_state=0
    )
    assert np.isfinite(display.curves["by class"].true_rate).all()
