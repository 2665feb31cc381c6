"""The detector of PyOD keeps the conventions of PyOD's base class, and works where it takes one."""

import doctest
import importlib
import pickle
import re
import sys

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from skebm import EnergyOutlierDetector, OutlierEnsemble


def test_without_pyod_the_import_names_the_extra(monkeypatch):
    for name in ("pyod", "pyod.models", "pyod.models.base"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "skebm.integrations.pyod", raising=False)
    with pytest.raises(ImportError, match=re.escape('pip install "skebm[pyod]"')):
        importlib.import_module("skebm.integrations.pyod")


def rows(n=200, n_far=20, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 3)) @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 2]])
    x[:n_far] += random.choice([-6, 6], size=(n_far, 3))
    return x, (np.arange(n) < n_far).astype(int)


X, y = rows()
X_NEW, Y_NEW = rows(100, 10, seed=1)


@pytest.fixture(scope="module")
def pyod():
    pytest.importorskip("numba", reason="a requirement of PyOD")
    return pytest.importorskip("pyod.models.base")


@pytest.fixture(scope="module")
def make(pyod):
    from skebm.integrations.pyod import EnergyDetector

    def of(estimator=None, **params):
        return EnergyDetector(estimator, **{"random_state": 0, **params})

    return of


@pytest.fixture(scope="module")
def fitted(make):
    return make(contamination=0.1).fit(X)


def test_it_is_a_detector_of_pyod(fitted, pyod):
    assert isinstance(fitted, pyod.BaseDetector)
    for name in ("decision_scores_", "labels_", "threshold_", "_mu", "_sigma"):
        assert getattr(fitted, name) is not None


def test_the_rows_of_fit_are_labelled(fitted):
    assert fitted.decision_scores_.shape == fitted.labels_.shape == (200,)
    assert set(fitted.labels_) == {0, 1}
    assert fitted.labels_.sum() == 20
    assert_array_equal(fitted.labels_, fitted.decision_scores_ > fitted.threshold_)
    assert_array_equal(fitted.labels_, fitted.predict(X))
    assert_allclose(fitted.decision_function(X), fitted.decision_scores_, atol=1e-9)
    assert roc_auc_score(y, fitted.decision_scores_) > 0.95


def test_scores_are_minus_log_densities_up_to_a_constant(fitted):
    detector = EnergyOutlierDetector(random_state=0).fit(X)
    difference = fitted.decision_function(X_NEW) + detector.score_samples(X_NEW)
    assert np.ptp(difference) < 1e-8
    assert roc_auc_score(Y_NEW, fitted.decision_function(X_NEW)) > 0.95


@pytest.mark.parametrize("method", ["linear", "unify"])
def test_probabilities(fitted, method):
    found = fitted.predict_proba(X_NEW, method=method)
    assert found.shape == (100, 2)
    assert found.min() >= 0
    assert_allclose(found.sum(1), 1)
    order = np.argsort(fitted.decision_function(X_NEW))
    assert (np.diff(found[order, 1]) >= 0).all()


def test_confidence_and_rejection(fitted):
    labels, confidence = fitted.predict(X_NEW, return_confidence=True)
    assert confidence.shape == labels.shape == (100,)
    assert (confidence >= 0).all()
    assert (confidence <= 1).all()
    assert_array_equal(confidence, fitted.predict_confidence(X_NEW))
    assert set(fitted.predict_with_rejection(X_NEW, c_r=0.1)) <= {-2, 0, 1}


@pytest.mark.parametrize("contamination", [0.01, 0.25, 0.5])
def test_contamination_is_the_share_of_the_rows_of_fit(make, contamination):
    found = make(GaussianMixture(random_state=0), contamination=contamination).fit(X)
    assert found.labels_.sum() == round(200 * contamination)


def test_contamination_out_of_range(make):
    for bad in (0.0, 0.6, -0.1):
        with pytest.raises(ValueError, match="contamination must be in"):
            make(contamination=bad)


class Thresholder:
    """As those of PyThresh: rows above a mean plus three halves of a standard deviation."""

    def fit(self, scores):
        self.thresh_ = scores.mean() + 1.5 * scores.std()
        self.labels_ = self.predict(scores)

    def predict(self, scores):
        return (scores > self.thresh_).astype(int)


def test_thresholders_of_pythresh(make):
    found = make(GaussianMixture(random_state=0), contamination=Thresholder()).fit(X)
    assert 5 < found.labels_.sum() < 40
    assert_array_equal(found.predict(X), found.labels_)


def test_it_is_cloned_pickled_and_set(make, fitted):
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    assert not hasattr(copied, "decision_scores_")
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict(X_NEW), fitted.predict(X_NEW))
    changed = make(GaussianMixture()).set_params(estimator__n_components=3, trim=0.1)
    assert changed.estimator.n_components == 3
    assert changed.fit(X).detector_.n_trimmed_ == 20


def test_trimming_finds_what_many_outliers_hide(make):
    crowd, label = rows(300, 60, seed=3)
    crowd[:60] = [6.0, -6.0, 6.0] + 0.3 * crowd[:60]
    mixture = GaussianMixture(1, random_state=0)
    plain, trimmed = (make(mixture, trim=trim).fit(crowd) for trim in (None, 0.3))
    aucs = [roc_auc_score(label, one.decision_scores_) for one in (plain, trimmed)]
    assert aucs[1] > max(0.98, aucs[0])


def test_frames_of_any_columns(make):
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
        kind=pd.Categorical(np.where(np.arange(200) % 3 == 0, "left", "right"))
    )
    frame.loc[3:5, "a"] = np.nan
    found = make().fit(frame)
    assert found.predict_proba(frame[:7]).shape == (7, 2)
    row = frame[100:101].assign(kind=pd.Categorical(["ghost"]))
    assert found.predict(row) == [1]
    assert found.explain(row).to_frame(1)["feature"].item() == "kind"
    with pytest.raises(ValueError, match="(?s)unseen at fit time.*- d"):
        found.predict(frame.rename(columns={"c": "d"}))


def test_it_is_a_member_of_ensembles_of_skebm(make):
    from pyod.models.ecod import ECOD

    members = [("energy", make(GaussianMixture(random_state=0))), ("ecod", ECOD())]
    ensemble = OutlierEnsemble(members, random_state=0).fit(X[20:])
    assert (ensemble.predict(X_NEW[:10]) == -1).all()


def test_it_is_a_member_of_ensembles_of_pyod(make):
    pytest.importorskip("combo", reason="an optional package, of which PyOD makes its ensembles")
    from pyod.models.ecod import ECOD
    from pyod.models.feature_bagging import FeatureBagging
    from pyod.models.lscp import LSCP

    inner = make(GaussianMixture(random_state=0))
    bagged = FeatureBagging(inner, n_estimators=3, random_state=0).fit(X)
    assert roc_auc_score(Y_NEW, bagged.decision_function(X_NEW)) > 0.9
    local = LSCP([clone(inner), ECOD(), ECOD()], local_region_size=30, random_state=0).fit(X)
    assert roc_auc_score(Y_NEW, local.decision_function(X_NEW)) > 0.9


def test_wrong_rows_and_calls(make, fitted):
    with pytest.raises(ValueError, match="not fitted"):
        make().decision_function(X)
    with pytest.raises(ValueError, match="not fitted"):
        make().explain(X[:1])
    with pytest.raises(ValueError, match="2 features"):
        fitted.predict(X_NEW[:, :2])
    with pytest.raises(ValueError, match="0 sample"):
        make().fit(X[:0])
    with pytest.raises(ValueError, match="'trim' parameter"):
        make(trim=2).fit(X)
    with pytest.warns(UserWarning, match="y should not be presented"):
        make(GaussianMixture(random_state=0)).fit(X, y)
    copied = pickle.loads(pickle.dumps(fitted))
    with pytest.raises(ValueError, match="0 sample"):
        copied.fit(X[:0])
    assert_array_equal(copied.predict(X_NEW), fitted.predict(X_NEW))


def test_the_example_of_the_docstring(make):
    module = sys.modules["skebm.integrations.pyod"]
    assert doctest.testmod(module) == (0, 6)
