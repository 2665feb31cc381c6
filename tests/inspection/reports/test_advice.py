"""Recommendations: followed, they make models better that were set badly."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.model_selection import train_test_split

from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    EnergyOutlierDetector,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.inspection import report
from tests.support.tiers import full

BITS = (load_digits().data > 7).astype(float)
MOONS = make_moons(1000, noise=0.1, random_state=0)[0]
CELLS = load_breast_cancer().data[:, :10]

# Models that a setting spoils, and the parameter that is to be named.
SPOILT = {
    "one epoch": (RBMEstimator(n_iter=1), BITS, "n_iter"),
    "one hidden unit": (RBMEstimator(1, base="independent"), BITS, "base"),
    "a base that is far": (ScoreMatchingDensity(base="gaussian", n_iter=3), MOONS, "n_iter"),
    "one normal": (TractableDensity("gaussian"), MOONS, "distribution"),
    "a learning rate of 10": (NCEDensity(noise="gaussian", learning_rate=10.0), MOONS, "noise"),
    "one round": (BoostedDensity(base="gaussian", n_iter=1), CELLS, "n_iter"),
    "a penalty of 1": (BoltzmannMachineDensity(l1=1.0), BITS[:, 16:48], "l1"),
}
QUICK = ("one normal",)


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=full) for one in SPOILT]
)
def test_what_is_recommended_makes_new_rows_more_likely(name):
    model, X, parameter = SPOILT[name]
    train, test = train_test_split(X, test_size=0.4, random_state=0)
    spoilt = clone(model).set_params(random_state=0).fit(train)
    first = report(spoilt, train, test).recommendations[0]
    assert list(first.change) == [parameter]
    better = clone(spoilt).set_params(**first.change).fit(train)
    gain = better.score_samples(test) - spoilt.score_samples(test)
    assert gain.mean() > 2 * gain.std() / len(gain) ** 0.5


@full
def test_a_learning_rate_that_diverged_is_named():
    model = ScoreMatchingDensity(base="gaussian", learning_rate=30.0, n_iter=30, random_state=0)
    with pytest.warns(UserWarning, match="diverged"):
        model.fit(MOONS)
    assert any("learning_rate" in one.change for one in report(model, MOONS).recommendations)


def test_defaults_that_are_good_are_left_alone():
    train, test = train_test_split(MOONS, random_state=0)
    model = TractableDensity(random_state=0).fit(train)
    found = report(model, train, test)
    assert found.recommendations == []
    assert "Nothing that was measured speaks for a change" in found.html


def test_training_rows_are_not_taken_for_new_ones():
    model = TractableDensity("kernel", metric="range").fit(MOONS)
    found = report(model, MOONS)
    assert not found.facts["likelihood"]["is_test"]
    assert all("New rows" not in one.why for one in found.recommendations)


def test_a_detector_that_flags_too_many_normal_rows_is_to_be_calibrated():
    X = np.random.default_rng(0).normal(size=(260, 12))
    train, test = X[:60], X[60:]
    detector = EnergyOutlierDetector(TractableDensity("kernel"), contamination=0.05).fit(train)
    rate = (detector.predict(test) == -1).mean()
    assert rate > 0.15
    found = report(detector, train, test, np.ones(200))
    assert found.recommendations[0].change == {"method": "conformal"}
    again = clone(detector).set_params(**found.recommendations[0].change, random_state=0)
    assert (again.fit(train).predict(test) == -1).mean() < rate


def test_at_most_three_and_each_a_line_that_runs():
    train, test = train_test_split(BITS, test_size=0.4, random_state=0)
    model = RBMEstimator(1, n_iter=1, base="independent", batch_size=500, random_state=0).fit(train)
    found = report(model, train, test).recommendations
    assert 1 <= len(found) <= 3
    for one in found:
        exec(one.program, {"model": clone(model)})
