"""Ten programs as a user writes them from the guide: each of at most twenty lines, none warns."""

import inspect
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.special import logsumexp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris, make_moons
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split

from skebm import (
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    JEMClassifier,
    RBMClassifier,
    RBMEstimator,
    TractableDensity,
)
from skebm.base import Energy, Real
from skebm.energies import Conv
from skebm.partition import Quadrature
from skebm.samplers import HMC, MALA
from tests.support.tiers import full

pytestmark = [full, pytest.mark.filterwarnings("error")]
MOST_LINES = 20


def test_frame_to_anomalies_with_reasons():
    random = np.random.default_rng(0)
    height = random.normal(170, 8, 300)
    frame = pd.DataFrame(
        {
            "height": height,  # cm
            "weight": 0.9 * height - 85 + random.normal(0, 5, 300),  # kg
            "city": random.choice(["Paris", "Rome"], 300),
        }
    )
    frame.loc[::9, "city"] = None
    frame.loc[5, "weight"] = 190.0
    detector = EnergyOutlierDetector(random_state=0).fit(frame)
    assert detector.score_samples(frame).argmin() == 5
    reason = detector.explain(frame.loc[[5]]).to_frame(1).iloc[0]
    assert (reason["feature"], reason["value"]) == ("weight", 190.0)
    assert reason["expected"] == pytest.approx(68, abs=25)


def test_search_over_a_sampler():
    X, _ = make_moons(600, noise=0.1, random_state=0)
    model = ContrastiveDivergenceDensity(base="gaussian", n_iter=10, random_state=0)
    grid = {"sampler": [MALA(), HMC(n_leapfrog=2)], "sampler__step_size": [0.1]}
    search = GridSearchCV(model, grid, cv=2).fit(X)
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()
    best = search.best_estimator_
    assert type(best.sampler_) is type(search.best_params_["sampler"])
    assert best.sampler_.step_size == 0.1
    assert best.sample(3, random_state=0).shape == (3, 2)


def test_stacking():
    X, y = load_iris(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    rbm = RBMClassifier(8, n_iter=50, random_state=0)
    forms = [("rbm", rbm), ("linear", LogisticRegression(max_iter=500))]
    stack = StackingClassifier(forms, LogisticRegression(), cv=2).fit(X_train, y_train)
    assert stack.final_estimator_.n_features_in_ == 6  # three probabilities of each
    assert stack.score(X_test, y_test) > 0.85


def test_calibrated_classifier():
    X, y = load_iris(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    model = JEMClassifier(base="gaussian", n_iter=20, random_state=0)
    calibrated = CalibratedClassifierCV(model, cv=2).fit(X_train, y_train)
    probability = calibrated.predict_proba(X_test)
    np.testing.assert_allclose(probability.sum(1), 1)
    assert log_loss(y_test, probability) < 0.7 * np.log(3)


def test_image_energy():
    images = load_digits().images[:300, None] / 8 - 1  # (n, channels, height, width), -1 to 1
    how = {"chains": "replay", "sigma": 0.2, "standardize": False, "partition": None}
    model = ContrastiveDivergenceDensity(Conv((8, 16)), n_iter=1, random_state=0, **how).fit(images)
    noise = np.random.default_rng(0).uniform(-1, 1, (20, 1, 8, 8))
    assert model.energy(images[:20]).max() < model.energy(noise).min()
    assert model.sample(2, random_state=0).shape == (2, 1, 8, 8)


def test_save_load_elsewhere_resume(tmp_path):
    X = (np.random.default_rng(0).random((100, 6)) < 0.3).astype(float)
    rbm = RBMEstimator(3, learning_rate=0.1, n_iter=5, random_state=0).fit(X)
    joblib.dump(rbm, tmp_path / "rbm.joblib")
    np.save(tmp_path / "X.npy", X)
    elsewhere = (
        "import joblib, numpy as np; rbm = joblib.load('rbm.joblib'); X = np.load('X.npy');"
        "np.save('scores.npy', rbm.score_samples(X));"
        "joblib.dump(rbm.partial_fit(X), 'further.joblib')"
    )
    subprocess.run([sys.executable, "-c", elsewhere], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), rbm.score_samples(X))
    further = joblib.load(tmp_path / "further.joblib")
    np.testing.assert_array_equal(further.components_, rbm.partial_fit(X).components_)
    assert further.n_iter_ == 6


def test_weights():
    X, _ = make_moons(100, noise=0.1, random_state=0)
    weight = np.where(X[:, 0] > 0, 2, 1)
    weighted = TractableDensity("gaussian").fit(X, sample_weight=weight)
    repeated = TractableDensity("gaussian").fit(np.repeat(X, weight, axis=0))
    np.testing.assert_allclose(weighted.score_samples(X), repeated.score_samples(X), rtol=1e-6)


def test_missing_values():
    iris = load_iris(as_frame=True).data
    missing = np.random.default_rng(0).random(iris.shape) < 0.1
    holes = iris.mask(missing)
    rbm = RBMEstimator(4, base="gaussian", n_iter=60, batch_size=50, random_state=0).fit(holes)
    filled = rbm.impute(holes, how="mean", random_state=0).to_numpy()
    assert (filled[~missing] == iris.to_numpy()[~missing]).all()  # what is known stays
    error = (filled - iris.to_numpy())[missing]
    mean_error = (iris - holes.mean()).to_numpy()[missing]
    assert np.sqrt(np.mean(error**2)) < 0.6 * np.sqrt(np.mean(mean_error**2))
    assert np.isfinite(rbm.score_samples(holes)).all()


def test_text_categories():
    random = np.random.default_rng(0)
    city = random.choice(["Oslo", "Paris", "Rome"], 150)
    language = np.where(city == "Oslo", "no", np.where(city == "Paris", "fr", "it"))
    frame = pd.DataFrame({"city": city, "language": language})
    rbm = RBMEstimator(4, base="chow-liu", n_iter=20, random_state=0).fit(frame)
    pairs = [(c, k) for c in ("Oslo", "Paris", "Rome") for k in ("no", "fr", "it")]
    table = pd.DataFrame(pairs, columns=["city", "language"])
    log_p = rbm.score_samples(table)
    assert logsumexp(log_p) == pytest.approx(0, abs=1e-4)  # probabilities of all rows
    assert {pairs[i] for i in log_p.argsort()[-3:]} == {*zip(city, language, strict=True)}
    assert set(rbm.sample(20, random_state=0)["city"]) <= {"Oslo", "Paris", "Rome"}


class Ring(Energy):
    """Rows near the unit circle."""

    domain = Real((2,))

    def forward(self, x, cond=None):
        return 10 * (x.norm(dim=1) - 1).square()


def test_custom_energy():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(200, 2, generator=generator)
    state, info = MALA(adapt=True).run(Ring(), start, 200, generator)
    assert 0.3 < info.acceptance < 0.95
    estimate = Quadrature().estimate(Ring())
    # In polar coordinates, Z is 2 pi times the integral of r exp(-10 (r - 1)^2).
    integral, _ = quad(lambda r: r * np.exp(-10 * (r - 1) ** 2), 0, 10)
    assert estimate.value == pytest.approx(np.log(2 * np.pi * integral), abs=1e-3)
    assert state.x.norm(dim=1).mean() == pytest.approx(1.05, abs=0.05)


def test_programs_are_short():
    programs = [f for name, f in globals().items() if name.startswith("test_")]
    lengths = {f.__name__: len(inspect.getsource(f).splitlines()) - 1 for f in programs}
    assert len(lengths) == 11  # ten programs and this one
    assert max(lengths.values()) <= MOST_LINES
