"""Fitted densities: log p, its derivatives, the last step of a pipeline."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator
from sklearn.ensemble import IsolationForest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skebm import EnergyOutlierDetector, RBMEstimator
from skebm.estimators.queries.densities import (
    hyvarinen,
    last_step,
    log_density,
    log_normaliser,
    pessimistic_log_likelihood,
    relative_log_density,
    score_function,
)

X = np.random.default_rng(0).normal(size=(60, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0], [0, 0, 3.0]])
ROWS = np.concatenate([X[:4], X[:2] * 4 + 1])
BITS = (X > 0).astype(float)

SMOOTH = {
    **{
        f"mixture-{kind}": GaussianMixture(3, covariance_type=kind, random_state=0)
        for kind in ("full", "tied", "diag", "spherical")
    },
    "bayesian": BayesianGaussianMixture(n_components=3, random_state=0, max_iter=500),
    "kernel": KernelDensity(bandwidth=0.7),
    "kernel-scott": KernelDensity(bandwidth="scott", rtol=1e-12),
}
each_density = pytest.mark.parametrize("density", SMOOTH.values(), ids=SMOOTH)


def differences(function, x, step=1e-3):
    """First and second central differences of a function of rows, (n, d) each."""
    first, second = np.empty(x.shape), np.empty(x.shape)
    for j in range(x.shape[1]):
        nudge = step * np.eye(x.shape[1])[j]
        up, down, here = function(x + nudge), function(x - nudge), function(x)
        first[:, j] = (up - down) / (2 * step)
        second[:, j] = (up - 2 * here + down) / step**2
    return first, second


@each_density
def test_derivatives_are_those_of_score_samples(density):
    density = density.fit(X)
    first, second = differences(density.score_samples, ROWS)
    assert_allclose(score_function(density, ROWS), first, rtol=1e-4, atol=1e-5)
    expected = second.sum(1) + np.square(first).sum(1) / 2
    assert_allclose(hyvarinen(density, ROWS), expected, rtol=1e-3, atol=1e-3)


def test_scores_of_a_weighted_kernel_density_far_from_the_origin():
    weight = np.random.default_rng(1).integers(0, 5, len(X))
    weight[:2] = 0
    density = KernelDensity(bandwidth=0.7).fit(
        X[weight > 0] + 1e6, sample_weight=weight[weight > 0]
    )
    first, _ = differences(density.score_samples, ROWS + 1e6)
    assert_allclose(score_function(density, ROWS + 1e6), first, rtol=1e-3, atol=1e-4)


def test_scores_in_parts_are_the_same(monkeypatch):
    density = KernelDensity(bandwidth=0.7).fit(X)
    whole = score_function(density, ROWS)
    monkeypatch.setattr("skebm.estimators.queries.densities.MAX_PAIRS", 1)
    assert_allclose(score_function(density, ROWS), whole, rtol=1e-12)


def test_derivatives_of_a_gaussian():
    normal = GaussianMixture(reg_covar=0).fit(X)
    precision = np.linalg.inv(normal.covariances_[0])
    score = -(ROWS - normal.means_[0]) @ precision
    assert_allclose(score_function(normal, ROWS), score)
    expected = np.square(score).sum(1) / 2 - np.trace(precision)
    assert_allclose(hyvarinen(normal, ROWS), expected)
    # Of its own rows the mean is minus half of the trace: what integration by parts says.
    assert hyvarinen(normal, X).mean() == pytest.approx(-np.trace(precision) / 2)


class WithScore(BaseEstimator):
    def fit(self, X, y=None):
        self.n_ = len(X)
        return self

    def score_samples(self, X):
        return -np.square(X).sum(1) / 2

    def score_function(self, X):
        return -X


def test_a_score_function_of_its_own_comes_first():
    assert_array_equal(score_function(WithScore().fit(X), ROWS), -ROWS)


@pytest.mark.parametrize(
    "density", [KernelDensity(kernel="tophat"), KernelDensity(metric="manhattan"), RBMEstimator(2)]
)
def test_unknown_derivatives_are_refused(density):
    density = density.set_params(**({"n_iter": 1} if isinstance(density, RBMEstimator) else {}))
    with pytest.raises(TypeError, match=f"known for {type(density).__name__}"):
        score_function(density.fit(BITS), BITS)


def test_the_last_step():
    normal = GaussianMixture()
    pipe = make_pipeline(StandardScaler(), FunctionTransformer(np.tanh), normal).fit(X)
    before, final = last_step(make_pipeline("passthrough", pipe).fit(X))
    assert isinstance(final, GaussianMixture)
    assert len(before) == 2
    search = GridSearchCV(pipe, {"gaussianmixture__n_components": [1]}).fit(X)
    nested = EnergyOutlierDetector(FrozenEstimator(search)).fit(X)
    assert last_step(nested)[1] is search.best_estimator_[-1]
    inner = np.tanh((ROWS - X.mean(0)) / X.std(0))
    assert_allclose(score_function(nested, ROWS), score_function(search.best_estimator_[-1], inner))


def test_relative_densities_lack_only_log_z():
    rbm = RBMEstimator(3, n_iter=5, random_state=0)
    pipe = make_pipeline("passthrough", rbm).fit(BITS)
    relative = relative_log_density(pipe, BITS)
    assert_array_equal(relative, -rbm.fit(BITS).energy(BITS))
    assert_allclose(relative - log_normaliser(pipe), pipe.score_samples(BITS))
    normal = GaussianMixture().fit(X)
    assert log_normaliser(normal) == 0
    assert_array_equal(relative_log_density(normal, X), normal.score_samples(X))


def test_pessimistic_likelihoods():
    rbm = RBMEstimator(3, n_iter=5, random_state=0).fit(BITS)
    assert pessimistic_log_likelihood(make_pipeline(rbm), BITS) == rbm.score(BITS)
    kernel = KernelDensity().fit(X)
    assert pessimistic_log_likelihood(kernel, X) == pytest.approx(kernel.score_samples(X).mean())
    without = RBMEstimator(3, n_iter=5, partition=None).fit(BITS)
    with pytest.raises(ValueError, match="partition=None"):
        pessimistic_log_likelihood(without, BITS)


def test_what_is_no_density():
    forest = IsolationForest(n_estimators=5).fit(X)
    with pytest.raises(TypeError, match="score_samples.*IsolationForest"):
        pessimistic_log_likelihood(forest, X)
    with pytest.raises(TypeError, match="score_samples.*IsolationForest"):
        EnergyOutlierDetector(forest, prefit=True).fit(X).score(X)
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    with pytest.raises(TypeError, match="LogisticRegression has no score_samples"):
        log_density(model, X)
