"""Reports of all estimators, and of rows that are no use."""

import pickle
import threading

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skebm
from skebm import (
    DensityClassifier,
    DensityRegressor,
    EnergyOutlierDetector,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.inspection import TrainingDisplay, report
from skebm.partition import AIS
from tests.contracts.test_shared_state import all_estimators, fitted
from tests.support.estimators import FITS
from tests.support.tiers import full

WINE = load_wine(as_frame=True)
TRAIN, TEST, Y_TRAIN, Y_TEST = train_test_split(WINE.data, WINE.target, random_state=0)


@pytest.fixture(scope="module")
def density():
    return TractableDensity("gaussian").fit(TRAIN)


@all_estimators
def test_every_estimator_has_one(cls):
    _, X, *_ = FITS[cls]
    model = fitted(cls)
    before = pickle.dumps(model.__dict__.get("history_"))
    found = report(model, X, X)
    assert {"fit", "cost"} <= set(found.facts)
    assert found.html.count("<h2>") == len(found.facts) + 2 + bool(found.not_said) + (
        "Warnings while" in found.html
    )
    assert cls.__name__ in found.html
    assert all(found.not_said.values())
    assert pickle.dumps(model.__dict__.get("history_")) == before


def test_every_public_estimator_has_a_case():
    public = (getattr(skebm, name) for name in skebm.__all__)
    public = {one for one in public if isinstance(one, type) and issubclass(one, BaseEstimator)}
    assert public == set(FITS)


def test_the_sections_of_a_density(density):
    found = report(density, TRAIN, TEST)
    expected = {"likelihood", "detection", "anomalies", "samples", "fit", "columns", "answers"}
    assert set(found.facts) == expected | {"cost"}
    assert found.not_said == {}
    mean = density.score(TEST)
    assert found.facts["likelihood"]["mean"] == pytest.approx(mean)
    worst = found.facts["anomalies"]["rows"][0]
    scores = pd.Series(density.score_samples(TEST), TEST.index)
    assert worst["row"] == str(scores.idxmin())
    assert worst["score"] == pytest.approx(scores.min())
    assert found.facts["answers"]["answers"]["log-likelihood of a row"] == "exact"
    assert "TractableDensity(distribution=&#x27;gaussian&#x27;)" in found.html


def test_a_classifier_with_labels():
    model = DensityClassifier(TractableDensity("gaussian"), random_state=0).fit(TRAIN, Y_TRAIN)
    found = report(model, TRAIN, TEST, Y_TEST).facts["predictions"]
    assert found["accuracy"] == pytest.approx(model.score(TEST, Y_TEST))
    proba = model.predict_proba(TEST)
    loss = -np.log(proba[np.arange(len(proba)), Y_TEST])
    assert found["nll"] == pytest.approx(loss.mean())


def test_a_regressor_with_numbers():
    X, y = TRAIN.drop(columns="hue"), TRAIN["hue"]
    model = DensityRegressor(TractableDensity("gaussian"), random_state=0).fit(X, y)
    found = report(model, X, TEST.drop(columns="hue"), TEST["hue"]).facts["predictions"]
    error = np.abs(model.predict(TEST.drop(columns="hue")) - TEST["hue"])
    assert found["mae"] == pytest.approx(error.mean())
    assert 0.3 < found["coverage_0.5"] < 0.8
    assert found["coverage_0.95"] > 0.85


def test_a_detector_with_labels():
    y = np.where(Y_TEST == 2, -1, 1)
    detector = EnergyOutlierDetector(
        TractableDensity("gaussian"), method="conformal", random_state=0
    ).fit(TRAIN[Y_TRAIN < 2])
    found = report(detector, TRAIN[Y_TRAIN < 2], TEST, y).facts["detection"]
    assert found["auroc"] > 0.95
    assert found["rate"] == pytest.approx((detector.predict(TEST[y == 1]) == -1).mean())


def test_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), TractableDensity("gaussian"))
    search = GridSearchCV(pipeline, {"tractabledensity__distribution": ["gaussian"]}, cv=2)
    found = report(search.fit(TRAIN), TRAIN, TEST)
    assert found.facts["likelihood"]["mean"] == pytest.approx(search.score(TEST))
    assert "StandardScaler" in found.html


def test_a_density_of_scikit_learn_draws_as_well():
    model = GaussianMixture(2, covariance_type="diag", random_state=0).fit(TRAIN)
    found = report(model, TRAIN, TEST)
    assert {"likelihood", "samples", "detection", "anomalies"} <= set(found.facts)


def test_log_z_is_that_of_the_model():
    X = (TRAIN.median() < TRAIN).to_numpy(float)
    model = RBMEstimator(30, n_iter=5, partition=AIS(n_betas=50), random_state=0).fit(X)
    found = report(model, X).facts["log_z"]
    assert found["log_z"] == model.log_partition_
    assert found["std_error"] == model.log_partition_std_


def test_a_model_without_rows(density):
    found = report(density)
    assert {"fit", "columns", "cost"} <= set(found.facts)
    assert "pass X_test=" in found.not_said["likelihood"]
    assert "There are no rows to judge the model by" in found.html


@full
def test_two_reports_are_equal_but_for_times(density):
    one, other = (report(density, TRAIN, TEST).facts for _ in range(2))
    for facts in (one, other):
        del facts["cost"]
    assert one == other


@full
def test_the_user_sees_no_warnings_and_the_page_has_them(recwarn):
    X = np.random.default_rng(0).normal(size=(200, 2))
    model = ScoreMatchingDensity(base="gaussian", n_iter=1, sigma=0.1, random_state=0).fit(X)
    recwarn.clear()
    report(model, X)
    assert [str(one.message) for one in recwarn] == []


def test_saved_and_shown(density, tmp_path):
    found = report(density)
    path = found.save(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == found.html
    assert found._repr_html_().startswith("<iframe")
    assert "sections" in repr(found)


def test_many_rows_are_sampled_and_that_is_said():
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    model = TractableDensity("gaussian").fit(X)
    found = report(model, X, X)
    assert "20,000 training rows (5,000 of them, at random)" in found.html
    assert "20,000 test rows (2,000 of them, at random)" in found.html


def test_sorted_tables_are_sampled_at_random():
    """The first rows of a sorted table are no sample of it: rivals would be fitted to a part."""
    X = np.sort(np.random.default_rng(0).normal(size=(6000, 1)), axis=0)
    model = TractableDensity("gaussian").fit(X)
    found = report(model, X).facts["likelihood"]
    assert found["mean"] == pytest.approx(model.score(X), abs=0.05)
    (rival,) = found["rivals"]
    assert rival["gain"] == pytest.approx(0, abs=0.02)


@full
def test_threads_report_at_the_same_time(density):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(report(density, TRAIN, TEST).facts))
        for _ in range(3)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for facts in found:
        del facts["cost"]
    assert len(found) == 3
    assert found[0] == found[1] == found[2]


# ------------------------------------------------------------------------------
# Rows that are no use
# ------------------------------------------------------------------------------


def test_an_unfitted_model():
    with pytest.raises(NotFittedError):
        report(TractableDensity(), TRAIN)


def test_rows_that_cannot_be_looked_at(density):
    with pytest.raises(ValueError, match="X_test has no rows"):
        report(density, TRAIN, TEST[:0])
    with pytest.raises(ValueError, match="12 columns"):
        report(density, TRAIN, TEST.iloc[:, 1:])
    with pytest.raises(TypeError, match="X_test must be an array or a frame"):
        report(density, TRAIN, iter([1, 2]))


def test_labels_that_do_not_fit(density):
    with pytest.raises(ValueError, match="pass X_test="):
        report(density, TRAIN, y=Y_TRAIN)
    with pytest.raises(ValueError, match="one label for each"):
        report(density, TRAIN, TEST, Y_TEST[:3])
    detector = EnergyOutlierDetector(TractableDensity("gaussian")).fit(TRAIN)
    assert "+1 for normal" in report(detector, TRAIN, TEST, Y_TEST).not_said["detection"]
    model = DensityClassifier(TractableDensity("gaussian")).fit(TRAIN, Y_TRAIN)
    strange = np.where(Y_TEST == 0, 9, Y_TEST)
    assert "9" in report(model, TRAIN, TEST, strange).not_said["predictions"]
    assert "labels" in report(model, TRAIN, TEST).not_said["predictions"]


HOSTILE = {
    "one row": TEST[:1],
    "zeros": TEST * 0,
    "holes": TEST.mask(TEST.median() < TEST),
    "far": TEST * 1e6,
    "objects": TEST.astype(object),
    "a list": TEST.to_numpy().tolist(),
    "copies": pd.concat([TEST[:1]] * 30),
    "a column of nothing": TEST.assign(hue=np.nan),
    "infinite": TEST.replace(TEST.iloc[0, 0], np.inf),
}
QUICK = ("one row", "a column of nothing", "infinite")


@pytest.mark.parametrize(
    "X",
    [pytest.param(X, id=name, marks=() if name in QUICK else full) for name, X in HOSTILE.items()],
)
def test_hostile_rows_give_a_page(X, density):
    found = report(density, TRAIN, X)
    assert "fit" in found.facts
    assert "nan" not in found.html.split("</style>")[1].replace("nano", "")
    assert found.facts.get("likelihood") or found.not_said["likelihood"]


@full
def test_sparse_rows_and_frames_of_polars():
    X = sp.csr_array((np.random.default_rng(0).random((100, 6)) < 0.3).astype(float))
    model = RBMEstimator(2, n_iter=2, base="independent", random_state=0).fit(X)
    assert "samples" in report(model, X, X).facts
    polars = pytest.importorskip("polars")
    frame = polars.from_pandas(TRAIN)
    found = report(TractableDensity("gaussian").fit(frame), frame, polars.from_pandas(TEST))
    assert found.facts["likelihood"]["is_test"]


@full
def test_an_argument_that_is_a_random_state(density):
    found = report(density, TRAIN, random_state=np.random.RandomState(3))
    again = report(density, TRAIN, random_state=np.random.RandomState(3))
    assert found.facts["samples"] == again.facts["samples"]


def test_a_curve_of_some_epochs_is_drawn():
    """A deep machine is assessed a few times; nan of the other epochs would hide the values."""
    history = {"train_loss": np.arange(5.0), "gain_over_base": np.array([np.nan, 1, np.nan, 2, 3])}
    display = TrainingDisplay(history=history).plot()
    (line,) = display.axes_["gain_over_base"].lines
    np.testing.assert_array_equal(line.get_xydata(), [[2, 1], [4, 2], [5, 3]])
