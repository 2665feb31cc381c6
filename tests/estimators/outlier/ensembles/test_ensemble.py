"""Ensembles of detectors of any package: exact levels, consistent scores, clear errors."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LinearRegression
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity, LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from skebm import EnergyOutlierDetector, OutlierEnsemble, TractableDensity
from skebm.estimators.outlier.ensembles.members import StorableNeighbours
from tests.support.checks import parametrize_with_checks
from tests.support.storage import by_skops
from tests.support.tables import correlated_rows
from tests.support.tiers import full

MEMBERS = [
    ("mixture", GaussianMixture(random_state=0)),
    ("neighbours", LocalOutlierFactor(novelty=True, n_neighbors=10)),
    ("svm", make_pipeline(StandardScaler(), OneClassSVM())),
]


class BaseDetector(BaseEstimator):
    """As that of PyOD, which is known by its name and module."""

    __module__ = "pyod.models.base"


class Distance(BaseDetector):
    """A detector of PyOD: scores are higher for outliers."""

    def fit(self, X, y=None):
        self.mean_ = np.mean(X, axis=0)
        return self

    def decision_function(self, X):
        return np.linalg.norm(np.asarray(X) - self.mean_, axis=1)


@parametrize_with_checks(
    {
        "two": OutlierEnsemble(
            [
                ("kernel", KernelDensity()),
                ("mixture", GaussianMixture(init_params="random_from_data", random_state=0)),
            ]
        ),
        "mean": OutlierEnsemble([("svm", OneClassSVM())], merge="mean"),
    },
    first=("two",),
    modes=("mean",),
)
@pytest.mark.filterwarnings("ignore:level='auto' means 0.1")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def ensemble():
    return OutlierEnsemble(MEMBERS, random_state=0).fit(correlated_rows(300, 0))


def test_predictions_scores_and_p_values_agree(ensemble):
    X = np.concatenate([correlated_rows(200, 1), 3 * correlated_rows(50, 2)])
    p, score = ensemble.p_values(X), ensemble.score_samples(X)
    assert_array_equal(ensemble.predict(X) == -1, p <= ensemble.level_)
    assert_array_equal(ensemble.predict(X) == -1, ensemble.decision_function(X) < 0)
    assert (score <= np.log(p) + 1e-12).all()
    assert len(np.unique(score)) == len(X)  # ties of p-values are broken
    assert p.min() >= 1 / (ensemble.n_calibration_ + 1)
    assert ensemble.member_p_values(X).shape == (250, 3)


def test_one_member_alone_has_the_p_values_of_the_detector():
    X, new = correlated_rows(200, 0), 1.5 * correlated_rows(100, 1)
    mixture = GaussianMixture(random_state=0)
    one = OutlierEnsemble([("mixture", mixture)], random_state=0).fit(X)
    detector = EnergyOutlierDetector(mixture, method="conformal", random_state=0).fit(X)
    assert_array_equal(one.p_values(new), detector.p_values(new))
    assert_array_equal(one.predict(new), detector.predict(new))
    assert_array_equal(one.member_p_values(new)[:, 0], one.p_values(new))


@pytest.mark.parametrize("merge", ["geometric", pytest.param("minimum", marks=full)])
def test_false_alarms_are_at_the_level(merge):
    """Over fits and rows, with members that depend on each other, one of them worthless."""
    level, rates = 0.1, []
    for seed in range(60):
        rows = correlated_rows(300, seed + 10)
        ensemble = OutlierEnsemble(
            [
                ("kernel", KernelDensity(bandwidth=0.05)),
                ("mixture", GaussianMixture(random_state=0)),
                ("far", Distance()),
            ],
            merge=merge,
            level=level,
            random_state=seed,
        ).fit(rows[:100])
        rates.append(np.mean(ensemble.predict(rows[100:]) == -1))
    error = np.std(rates) / np.sqrt(len(rates))
    assert np.mean(rates) <= level + 3 * error
    assert np.mean(rates) >= level - 0.025 - 3 * error  # 50 held-out rows: at most 5 / 51


def test_detectors_of_every_package():
    X = correlated_rows(200, 0)
    members = [
        *MEMBERS,
        ("pyod", Distance()),
        ("scaled pyod", make_pipeline(StandardScaler(), Distance())),
        ("forest", IsolationForest(random_state=0)),
        ("ellipse", EllipticEnvelope(random_state=0)),
        ("ours", EnergyOutlierDetector(TractableDensity("gaussian"))),
        ("density", TractableDensity("gaussian")),
    ]
    ensemble = OutlierEnsemble(members, random_state=0).fit(X)
    far = X[:20] + 30
    assert list(ensemble.members_) == [name for name, _ in members]
    assert (ensemble.member_p_values(far) == 1 / (ensemble.n_calibration_ + 1)).all()
    assert (ensemble.predict(far) == -1).all()


def test_a_detector_of_pyod_is_ranked_by_minus_its_scores():
    pyod = pytest.importorskip("pyod.models.ecod")
    X = correlated_rows(200, 0)
    ensemble = OutlierEnsemble([("ecod", pyod.ECOD())], random_state=0).fit(X)
    new = 2 * correlated_rows(50, 1)
    scores = ensemble.members_["ecod"].decision_function(new)
    p = ensemble.p_values(new)
    order = np.argsort(scores)
    assert (np.diff(p[order]) <= 0).all()
    assert p.min() < 0.05


def test_frames_go_to_members_as_they_are():
    X = pd.DataFrame(correlated_rows(200, 0), columns=["a", "b", "c"]).assign(
        kind=lambda t: pd.Categorical(np.where(t.a > 1, "high", "low"))
    )
    members = [
        ("one", EnergyOutlierDetector(random_state=0)),
        ("two", EnergyOutlierDetector(trim=0.1, random_state=0)),
    ]
    ensemble = OutlierEnsemble(members, random_state=0).fit(X)
    wrong = X[:3].assign(kind=pd.Categorical(["ghost"] * 3))
    assert (ensemble.predict(wrong) == -1).all()
    assert ensemble.explain(wrong).to_frame(1)["feature"].tolist() == ["kind"] * 3
    with pytest.raises(ValueError, match="(?s)unseen at fit time.*- d"):
        ensemble.predict(X.rename(columns={"c": "d"}))
    parts = [member.explain(wrong).contributions for member in ensemble.members_.values()]
    assert_allclose(ensemble.explain(wrong).contributions, np.mean(parts, axis=0))


def test_explanations_name_the_column_that_is_wrong(ensemble):
    """By the density among the members, or by all of them if there is none."""
    rows = correlated_rows(4, 5)
    rows[:, 2] = 25
    by_density = ensemble.explain(rows)
    assert by_density.to_frame(1)["feature"].tolist() == ["x2"] * 4
    assert by_density.unit == "nats"
    detector = EnergyOutlierDetector(ensemble.members_["mixture"], prefit=True)
    expected = detector.fit(correlated_rows(300, 0)).explain(rows)
    assert_allclose(by_density.contributions, expected.contributions, rtol=1e-6, atol=1e-6)
    without = OutlierEnsemble([*MEMBERS[1:], ("far", Distance())], random_state=0)
    found = without.fit(correlated_rows(300, 0)).explain(rows)
    assert found.to_frame(1)["feature"].tolist() == ["x2"] * 4
    assert found.unit == ""


def test_results_depend_on_the_seed_alone(ensemble):
    X = correlated_rows(40, 3)
    with joblib.parallel_config("threading"):
        again = clone(ensemble).set_params(n_jobs=2).fit(correlated_rows(300, 0))
    assert_array_equal(again.score_samples(X), ensemble.score_samples(X))
    copied = pickle.loads(pickle.dumps(ensemble))
    assert_array_equal(copied.score_samples(X), ensemble.score_samples(X))
    alone = np.concatenate([ensemble.score_samples(row[None]) for row in X])
    assert_allclose(alone, ensemble.score_samples(X), atol=1e-9)


def test_the_default_members_take_any_frame():
    X = pd.DataFrame(correlated_rows(200, 0), columns=["a", "b", "c"]).assign(
        kind=["left", "right"] * 100
    )
    X.loc[3:9, "b"] = None
    ensemble = OutlierEnsemble(random_state=0).fit(X)
    assert list(ensemble.members_) == ["surprise", "mixture", "neighbours"]
    far = X[:5].assign(c=100.0)
    assert (ensemble.predict(far) == -1).all()
    assert set(ensemble.explain(far).to_frame(1)["feature"]) == {"c"}
    assert ensemble.get_params()["estimators"] is None
    changed = clone(ensemble).set_params(neighbours__localoutlierfactor__n_neighbors=5)
    assert changed.fit(X).members_["neighbours"][-1].n_neighbors_ == 5


def test_parameters_of_members_are_parameters_of_the_ensemble():
    ensemble = OutlierEnsemble(MEMBERS).set_params(mixture__n_components=3)
    assert dict(ensemble.estimators)["mixture"].n_components == 3
    ensemble.set_params(mixture=KernelDensity())
    assert isinstance(dict(ensemble.estimators)["mixture"], KernelDensity)


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([], ValueError, r"a list of at least one \(name, estimator\)"),
        ([GaussianMixture()], ValueError, r"a list of at least one \(name, estimator\)"),
        ([("a", KernelDensity()), ("a", KernelDensity())], ValueError, "not unique"),
        ([("a", LinearRegression())], TypeError, "'a', LinearRegression, does not score new rows"),
        ([("a", LocalOutlierFactor())], TypeError, r"LocalOutlierFactor\(novelty=True\)"),
    ],
)
def test_what_are_no_members(members, error, message):
    with pytest.raises(error, match=message):
        OutlierEnsemble(members).fit(correlated_rows(50, 0))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"merge": "median"}, "'merge' parameter"),
        ({"level": 0.7}, "'level' parameter"),
        ({"calibration_fraction": 1.0}, "'calibration_fraction' parameter"),
        ({"level": 0.001}, "50 held-out rows are too few for level=0.001.*At least 999"),
        ({"calibration_fraction": 0.99}, "leaves 1 to fit the members to"),
    ],
)
def test_parameters_out_of_range(params, message):
    with pytest.raises(ValueError, match=message):
        OutlierEnsemble(MEMBERS, **params).fit(correlated_rows(100, 0))


def test_few_rows_raise_the_level_with_a_warning():
    with pytest.warns(UserWarning, match="8 held-out rows allow no level below 0.111"):
        ensemble = OutlierEnsemble(MEMBERS[:1], random_state=0).fit(correlated_rows(16, 0))
    assert ensemble.level_ == pytest.approx(1 / 9)


class Missing(KernelDensity):
    def score_samples(self, X):
        return np.full(len(X), np.nan)


def test_wrong_rows_and_scores():
    with pytest.raises(ValueError, match="Missing is nan for"):
        OutlierEnsemble([("a", Missing())]).fit(correlated_rows(50, 0))
    ensemble = OutlierEnsemble(MEMBERS[:1], random_state=0).fit(correlated_rows(50, 0))
    bad = correlated_rows(3, 1)
    bad[1, 1] = np.nan
    for rows, message in [
        (bad, "NaN"),
        (correlated_rows(3, 1)[:, :2], "2 features"),
        (correlated_rows(3, 1)[0], "Reshape your data"),
        (correlated_rows(3, 1)[:0], "0 sample"),
    ]:
        with pytest.raises(ValueError, match=message):
            ensemble.predict(rows)
    before = ensemble.score_samples(correlated_rows(5, 1))
    with pytest.raises(ValueError, match="NaN"):
        ensemble.fit(bad.repeat(30, axis=0) + np.arange(90)[:, None])
    assert_array_equal(ensemble.score_samples(correlated_rows(5, 1)), before)


@pytest.mark.parametrize("n_columns", [2, 20])  # a tree, and distances to all rows
def test_neighbours_are_stored_without_their_tree_and_score_as_before(n_columns):
    random = np.random.default_rng(0)
    X, new = random.normal(size=(100, n_columns)), random.normal(size=(30, n_columns))
    neighbours = StorableNeighbours(novelty=True).fit(X)
    expected = LocalOutlierFactor(novelty=True).fit(X).score_samples(new)
    for again in (neighbours, pickle.loads(pickle.dumps(neighbours)), by_skops(neighbours)):
        assert_array_equal(again.score_samples(new), expected)
    assert "_tree" not in neighbours.__getstate__()
    assert pickle.loads(pickle.dumps(StorableNeighbours())).n_neighbors == 20  # unfitted
