"""Exported detectors: frames of any columns, thresholds and p-values."""

import datetime
import functools

import numpy as np
import pandas as pd
import pytest
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

from skebm import (
    EnergyOutlierDetector,
    JEMClassifier,
    RBMEstimator,
    RowSurprise,
    TableEncoder,
    TractableDensity,
)
from skebm.energies import MLP
from skebm.export import ExportError, to_numpy, to_onnx
from skebm.partition import ImportanceSampling
from tests.support.exports import METHODS, assert_equal_scores, assert_scores_like, onnx_scores
from tests.support.tiers import full, leading


def frame(n, seed):
    """Numbers, counts, text of few and of many levels, booleans, and holes in all of them."""
    random = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "city": random.choice(["Rome", "Oslo", "Bonn"], n),
            "age": random.normal(40, 9, n),
            "children": random.integers(0, 5, n),
            "smokes": random.integers(0, 2, n).astype(bool),
            "street": [f"street {k}" for k in random.integers(0, 40, n)],
            "size": pd.Categorical(random.choice(["S", "M"], n), ["S", "M", "L"]),
        }
    )
    found.loc[::11, "age"] = np.nan
    found.loc[3::13, "city"] = None
    return found


def odd_frame():
    """New rows: unseen levels, extreme numbers, rows with nothing in them."""
    found = frame(120, 1)
    found.loc[::9, "city"] = "Paris"
    found.loc[1::10, "street"] = "nowhere"
    found.loc[4::20, "age"] = 1e9
    found.loc[5::20, "age"] = -1e155
    found = found.astype({"children": float, "smokes": object})
    found.loc[6::30, "children"] = 2.5
    found.loc[7::40, :] = None
    return found.astype({"age": float, "children": float})


def dated_frame(n, seed, zone=None):
    random = np.random.default_rng(seed)
    hours = pd.to_timedelta(24 * random.integers(0, 300, n) + random.integers(8, 18, n), unit="h")
    start = pd.Timestamp("2024-01-01") + hours
    found = pd.DataFrame(
        {
            "start": start.tz_localize(zone),
            "end": start + pd.to_timedelta(random.exponential(9, n), unit="D"),
            "lasts": pd.to_timedelta(random.exponential(3, n), unit="D"),
            "written": [str(day.date()) for day in start],
            "cost": random.lognormal(size=n),
        }
    )
    found.loc[::17, "end"] = pd.NaT
    return found


DETECTORS = {
    "conformal": EnergyOutlierDetector(method="conformal", random_state=0),
    "cross-conformal": EnergyOutlierDetector(method="cross-conformal", cv=3, random_state=0),
    "quantile": EnergyOutlierDetector(random_state=0),
    "trimmed": EnergyOutlierDetector(trim="auto", random_state=0),
    "encoder": TableEncoder(max_levels=10, log_scale=True),
}


@functools.cache
def fitted(name):
    return DETECTORS[name].fit(frame(300, 0))


@pytest.mark.parametrize("name", leading(2, DETECTORS))
def test_scores_of_frames_are_those_of_the_detector(name):
    model = fitted(name)
    for X in (odd_frame(), frame(300, 0)):  # of which the latter are those of the fit
        assert_scores_like(to_numpy(model), model, X)


@pytest.mark.parametrize("name", leading(1, DETECTORS))
def test_onnx_scores_of_frames_are_those_of_the_detector(name):
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model, X = fitted(name), odd_frame()
    found = onnx_scores(to_onnx(model), X)
    assert found
    for output, values in found.items():
        assert_equal_scores(values, getattr(model, METHODS[output])(X), 1e-6)


def test_single_precision_is_not_enough_for_distances_to_training_rows():
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    for name in ("conformal", "encoder"):
        with pytest.raises(ExportError, match="asks which training row .*float64"):
            to_onnx(fitted(name), dtype="float32")


@pytest.mark.parametrize("zone", leading(1, [None, "America/New_York"]))
def test_dates_and_durations_are_days(zone):
    encoder = TableEncoder().fit(dated_frame(300, 0, zone))
    kinds = {getattr(feature, "kind", "") for feature in encoder._features}
    assert kinds == {"number", "cycle", "difference", "order"}
    scorer, X = to_numpy(encoder), dated_frame(50, 1, zone)
    X.loc[3, "written"] = None
    X["start"] = X["start"] + pd.Timedelta(days=200)
    expected = encoder.transform(X)
    assert_equal_scores(scorer.transform(X), expected, 1e-12)
    objects = {name: X[name].tolist() for name in X}
    assert_equal_scores(scorer.transform(objects), expected, 1e-12)
    if zone is None:
        objects["start"] = X["start"].to_numpy()
        days = [None if pd.isna(w) else datetime.date.fromisoformat(w) for w in X["written"]]
        objects["written"] = days
        assert_equal_scores(scorer.transform(objects), expected, 1e-12)


def test_rows_at_the_threshold_are_inliers_in_each_form():
    """Rows of few states have the log density of the threshold itself."""
    random = np.random.default_rng(0)
    X = (random.random((200, 3)) < 0.5).astype(float)
    rbm = RBMEstimator(2, base="independent", n_iter=2, random_state=0).fit(X)
    scorer = to_numpy(rbm)
    states = np.array(np.meshgrid(*[[0.0, 1.0]] * 3)).reshape(3, -1).T
    assert (rbm.predict(states) == scorer.predict(states)).all()
    assert (scorer.decision_function(states) == 0).any()


def test_p_values_with_weights():
    X = np.random.default_rng(0).normal(size=(200, 2))
    weight = np.linspace(1, 3, 200)
    model = EnergyOutlierDetector(
        TractableDensity("gaussian"), method="conformal", random_state=0
    ).fit(X, sample_weight=weight)
    assert_scores_like(to_numpy(model), model, X * 1.1 + 0.01)


@full
def test_a_classifier_detects_by_its_largest_probability():
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = (X[:, 0] > 0).astype(int)
    jem = JEMClassifier(
        MLP((4,)), base="gaussian", n_iter=2, partition=ImportanceSampling(100), random_state=0
    )
    model = EnergyOutlierDetector(jem, statistic="max_proba", random_state=0).fit(X, y)
    assert_scores_like(to_numpy(model), model, X + 0.1, 1e-5)


def test_a_statistic_or_a_density_without_translation_is_refused():
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = EnergyOutlierDetector(
        TractableDensity("gaussian"), statistic=lambda model, X: X[:, 0], random_state=0
    ).fit(X)
    with pytest.raises(ExportError, match="statistic="):
        to_numpy(model)
    kernels = EnergyOutlierDetector(KernelDensity(), random_state=0).fit(X)
    with pytest.raises(ExportError, match="KernelDensity has no rule"):
        to_numpy(kernels)


def test_a_detector_with_a_mixture_of_scikit_learn():
    X = np.random.default_rng(0).normal(size=(200, 2))
    mixture = GaussianMixture(2, random_state=0)
    model = EnergyOutlierDetector(mixture, method="conformal", random_state=0).fit(X)
    assert_scores_like(to_numpy(model), model, X * 1.2)


def test_few_rows_have_a_nearest_row_and_values():
    X = np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 1.0], [1.0, 2.0]] * 8 + [[0.5, 1.0]])
    model = RowSurprise(random_state=0).fit(X)
    assert_scores_like(to_numpy(model), model, np.concatenate([X[-6:], X[-3:] + 0.25]))


def test_missing_entries_of_a_column_that_no_donor_has():
    from skebm.estimators.tables.encoding.donors import complete_by_donors

    donors = np.array([[1.0, np.nan, 3.0], [2.0, np.nan, np.nan]])
    z = np.array([[np.nan, np.nan, 5.0], [2.1, 7.0, np.nan], [np.nan, 1.0, np.nan]])
    found = complete_by_donors(z, donors)
    assert np.array_equal(found, [[1.0, 0.0, 5.0], [2.1, 7.0, 3.0], [1.5, 1.0, 3.0]])


def test_a_completed_row_does_not_depend_on_the_others():
    """Of equally near donors the first one gives, whatever rounding a batch has."""
    X = odd_frame()
    encoder = fitted("encoder")
    one_by_one = np.concatenate([encoder.transform(X[i : i + 1]) for i in range(len(X))])
    assert np.allclose(encoder.transform(X), one_by_one, rtol=1e-12, atol=1e-12)
