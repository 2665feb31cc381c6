"""Scorers: closed forms, enumeration, and searches of scikit-learn that use them."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LinearRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skebm import ConditionalDensity, RBMClassifier, RBMEstimator, TemporalRBM
from skebm.metrics import (
    fisher_divergence,
    hyvarinen_score,
    log_likelihood_score,
    pessimistic_log_likelihood_score,
    pseudo_log_likelihood_score,
)
from skebm.partition import AISBracket
from tests.support.tiers import only_full

CONTINUOUS = {
    "log_likelihood": log_likelihood_score,
    "pessimistic": pessimistic_log_likelihood_score,
    "hyvarinen": hyvarinen_score,
}
DISCRETE = {
    "log_likelihood": log_likelihood_score,
    "pessimistic": pessimistic_log_likelihood_score,
    "pseudo": pseudo_log_likelihood_score,
}
ALL = CONTINUOUS | DISCRETE

# The middle of each of a hundred thousand equally likely parts of N(0, 1).
NORMAL = norm.ppf((np.arange(100_000) + 0.5) / 100_000)[:, None]
BITS = np.array(list(itertools.product((0.0, 1.0), repeat=5)))


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(0)
    X = rng.random((120, 5)) < 0.4
    X[:, 1] = X[:, 0] ^ (rng.random(120) < 0.1)
    return X.astype(float)


@pytest.fixture(scope="module")
def rbm(binary):
    return RBMEstimator(n_components=3, n_iter=5, dtype="float64", random_state=0).fit(binary)


def gaussian(mean, std):
    """A fitted mixture of one component, N(mean, std^2)."""
    mixture = GaussianMixture().fit([[-1.0], [1.0]])
    mixture.means_ = np.array([[mean]])
    mixture.covariances_ = np.array([[[std**2]]])
    mixture.precisions_cholesky_ = np.array([[[1 / std]]])
    return mixture


# ------------------------------------------------------------------------------
# Values
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.5, 2.0), (-1.0, 0.7)])
def test_scores_of_a_normal_model_over_normal_rows_are_the_closed_forms(mean, std):
    model, second = gaussian(mean, std), 1 + mean**2  # E (x - mean)^2
    likelihood = -np.log(2 * np.pi * std**2) / 2 - second / (2 * std**2)
    hyvarinen = 1 / std**2 - second / (2 * std**4)
    assert_allclose(log_likelihood_score(model, NORMAL), likelihood, rtol=1e-4)
    assert_allclose(pessimistic_log_likelihood_score(model, NORMAL), likelihood, rtol=1e-4)
    assert_allclose(hyvarinen_score(model, NORMAL), hyvarinen, rtol=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.5, 2.0), (-1.0, 0.7)])
def test_the_regret_of_the_hyvarinen_score_is_the_fisher_divergence(mean, std):
    truth, model = gaussian(0.0, 1.0), gaussian(mean, std)
    gain = hyvarinen_score(truth, NORMAL) - hyvarinen_score(model, NORMAL)
    assert_allclose(gain, fisher_divergence(model, truth, NORMAL).value, rtol=1e-3)


def test_means_not_sums_whatever_the_estimator_calls_its_score(rng):
    X = rng.normal(size=(50, 2))
    kernel, mixture = KernelDensity().fit(X), GaussianMixture(random_state=0).fit(X)
    assert_allclose(log_likelihood_score(kernel, X) * 50, kernel.score(X))
    assert_allclose(log_likelihood_score(mixture, X), mixture.score(X))
    for estimator, scorer in itertools.product((kernel, mixture), CONTINUOUS.values()):
        found = scorer(estimator, X)
        assert isinstance(found, float)
        assert_allclose(scorer(estimator, np.tile(X, (2, 1))), found)  # not twice as much


def test_scores_of_an_rbm_are_those_of_its_distribution_by_enumeration(binary, rbm):
    log_p = rbm.score_samples(BITS)
    assert_allclose(np.exp(log_p).sum(), 1)
    row = (binary @ 2 ** np.arange(5)[::-1]).astype(int)  # of BITS
    exact = log_p[row].mean()
    assert_allclose(log_likelihood_score(rbm, binary), exact)
    assert_allclose(pessimistic_log_likelihood_score(rbm, binary), exact)
    flipped = log_p[row[:, None] ^ 2 ** np.arange(5)]
    given_others = log_p[row][:, None] - np.logaddexp(log_p[row][:, None], flipped)
    assert_allclose(pseudo_log_likelihood_score(rbm, binary), given_others.sum(1).mean())


def test_uncertainty_of_log_z_lowers_only_the_pessimistic_score(binary):
    bracket = AISBracket(10, 20, 5)
    model = RBMEstimator(n_components=3, n_iter=5, partition=bracket, random_state=0).fit(binary)
    _, upper = model.log_partition_bounds_
    doubt = upper - model.log_partition_
    assert doubt > 0
    lost = log_likelihood_score(model, binary) - pessimistic_log_likelihood_score(model, binary)
    assert_allclose(lost, doubt, rtol=1e-3)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nan_stays_nan(value):
    class Broken(BaseEstimator):
        def fit(self, X, y=None):
            return self

        def score_samples(self, X):
            return np.append(value, np.zeros(len(X) - 1))

        pseudo_likelihood = score_samples

    model = Broken().fit(BITS)
    for scorer in DISCRETE.values():
        assert_allclose(scorer(model, BITS), value)


# ------------------------------------------------------------------------------
# Cross-validation
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_search_finds_a_bandwidth_between_the_extremes(rng, name):
    X = rng.normal(size=(150, 1))
    grid = {"bandwidth": [0.01, 0.4, 10.0]}
    search = GridSearchCV(KernelDensity(), grid, scoring=CONTINUOUS[name], cv=3).fit(X)
    assert search.best_params_ == {"bandwidth": 0.4}
    assert_allclose(
        log_likelihood_score(search, X), log_likelihood_score(search.best_estimator_, X)
    )


@pytest.mark.parametrize(
    ("scorers", "refit"), [(CONTINUOUS, "hyvarinen"), only_full(DISCRETE, "pseudo")]
)
def test_several_scores_in_one_search(rng, binary, scorers, refit):
    if scorers is CONTINUOUS:
        estimator, X = KernelDensity(), rng.normal(size=(60, 2))
        grid = {"bandwidth": [0.3, 1.0]}
    else:
        estimator = RBMEstimator(n_components=2, n_iter=20, batch_size=10, random_state=0)
        X, grid = binary, {"learning_rate": [1e-6, 1.0]}
    search = GridSearchCV(estimator, grid, scoring=scorers, refit=refit, cv=2).fit(X)
    for name, scorer in scorers.items():
        for i, params in enumerate(search.cv_results_["params"]):
            by_hand = [
                scorer(estimator.set_params(**params).fit(X[train]), X[test])
                for train, test in KFold(2).split(X)
            ]
            assert_allclose(search.cv_results_[f"mean_test_{name}"][i], np.mean(by_hand))
    if scorers is DISCRETE:
        assert search.best_params_ == {"learning_rate": 1.0}  # the other has learnt nothing


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_pipeline_is_scored_after_its_scaler(rng, name):
    scorer = CONTINUOUS[name]
    X = [100.0, 1e-3] * rng.normal(size=(80, 2)) + 5
    scaled = make_pipeline(StandardScaler(), GaussianMixture(random_state=0)).fit(X)
    expected = scorer(scaled[-1], scaled[0].transform(X))
    assert_allclose(scorer(scaled, X), expected)
    found = cross_val_score(scaled, X, scoring=scorer, cv=4)
    assert np.isfinite(found).all()
    # The labels of a search over a classification set are handed in, and are no matter.
    assert_allclose(cross_val_score(scaled, X, np.ones(80), scoring=scorer, cv=4), found)


@pytest.mark.parametrize("name", DISCRETE)
def test_a_pipeline_of_binary_rows_is_scored_by_its_last_step(binary, rbm, name):
    pipeline = make_pipeline(FunctionTransformer(lambda X: 1 - X), rbm)
    assert_allclose(DISCRETE[name](pipeline, 1 - binary), DISCRETE[name](rbm, binary))


# ------------------------------------------------------------------------------
# Estimators that have no such score
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_estimators_without_a_density_are_refused(name):
    model = LinearRegression().fit(BITS, BITS[:, 0])
    with pytest.raises(TypeError, match="LinearRegression"):
        ALL[name](model, BITS)


def test_scores_of_anomaly_are_no_likelihood():
    forest = make_pipeline(StandardScaler(), IsolationForest(n_estimators=2)).fit(BITS)
    for scorer in (log_likelihood_score, pessimistic_log_likelihood_score):
        with pytest.raises(TypeError, match="score_samples.*IsolationForest"):
            scorer(forest, BITS)


def test_a_continuous_density_has_no_pseudo_likelihood(rng):
    with pytest.raises(TypeError, match="KernelDensity.*pseudo_likelihood"):
        pseudo_log_likelihood_score(KernelDensity().fit(BITS), BITS)


def test_a_discrete_density_has_no_derivatives(binary, rbm):
    with pytest.raises(TypeError, match="RBMEstimator"):
        hyvarinen_score(rbm, binary)


@pytest.mark.parametrize(
    "model",
    [
        ConditionalDensity([0], base="linear", n_iter=2, random_state=0),
        TemporalRBM(2, n_iter=2, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_density_given_conditions_is_ranked_by_the_end_of_its_score(model):
    X = np.random.default_rng(0).normal(size=(60, 3))
    model.fit(X)
    assert pessimistic_log_likelihood_score(model, X) == model.score(X)
    assert_allclose(log_likelihood_score(model, X), model.score_samples(X).mean())


def test_a_classifier_is_ranked_by_the_upper_end_of_log_z(binary):
    y = binary[:, 0].astype(int)
    model = RBMClassifier(3, partition=AISBracket(5, n_betas=20), n_iter=3, random_state=0)
    model.fit(binary, y)
    excess = model.log_partition_bounds_[1] - model.log_partition_
    lower = log_likelihood_score(model, binary) - excess
    assert_allclose(pessimistic_log_likelihood_score(model, binary), lower)
    assert lower < log_likelihood_score(model, binary)


def test_a_model_without_log_z_has_no_likelihood_but_a_pseudo_likelihood(binary, rbm):
    model = RBMEstimator(
        n_components=3, n_iter=5, partition=None, dtype="float64", random_state=0
    ).fit(binary)
    for scorer in (log_likelihood_score, pessimistic_log_likelihood_score):
        with pytest.raises(ValueError, match="partition=None"):
            scorer(make_pipeline(FunctionTransformer(), model), binary)
    found = pseudo_log_likelihood_score(model, binary)
    assert_allclose(found, pseudo_log_likelihood_score(rbm, binary))
