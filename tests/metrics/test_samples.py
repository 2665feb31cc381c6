"""Samples against modes of known masses, scores against those of known densities."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm.metrics import fisher_divergence, mode_mass_distance

MODES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


def samples(rng, counts, modes=MODES):
    """So many rows around each mode."""
    return modes.repeat(counts, axis=0) + 0.5 * rng.normal(size=(sum(counts), modes.shape[1]))


# ------------------------------------------------------------------------------
# Masses of modes
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "masses", "exact"),
    [
        ((25, 25, 25, 25), None, 0.0),
        ((100, 0, 0, 0), None, 0.75),
        ((50, 50, 0, 0), None, 0.5),
        ((40, 30, 20, 10), None, 0.2),
        ((40, 30, 20, 10), (0.4, 0.3, 0.2, 0.1), 0.0),
        ((0, 0, 0, 100), (0.5, 0.5, 0.0, 0.0), 1.0),
    ],
)
def test_the_distance_is_that_of_the_fractions(rng, counts, masses, exact):
    X = samples(rng, counts)
    assert_allclose(mode_mass_distance(X, MODES, masses), exact, atol=1e-12)
    assert_allclose(mode_mass_distance(rng.permutation(X), MODES, masses), exact, atol=1e-12)
    # Far from the origin and in other units nothing changes.
    assert_allclose(mode_mass_distance(X + 1e8, MODES + 1e8, masses), exact, atol=1e-12)
    assert_allclose(mode_mass_distance(1e-8 * X, 1e-8 * MODES, masses), exact, atol=1e-12)


@pytest.mark.parametrize("lost", [0, 10, 50, 100])
def test_samples_at_no_mode_are_missed_mass(rng, lost):
    n = (100 - lost) // 4
    X = np.append(samples(rng, (n, n, n, n)), np.full((4 * (25 - n), 2), 5.0), axis=0)
    share = 1 - n / 25
    assert_allclose(mode_mass_distance(X, MODES, max_distance=4.0), share)


def test_samples_at_the_maximum_distance_are_assigned():
    X = MODES + [3.0, 4.0]
    assert mode_mass_distance(X, MODES, max_distance=5.0) == 0
    assert mode_mass_distance(X, MODES, max_distance=4.999) == 1


def test_the_mean_over_exact_draws_of_two_modes_is_that_of_the_binomial(rng):
    n, mass = 30, 0.3
    k = np.arange(n + 1)
    exact = binom.pmf(k, n, mass) @ np.abs(k / n - mass)
    modes = np.array([[0.0], [10.0]])
    found = [
        mode_mass_distance(modes[(rng.random(n) > mass).astype(int)], modes, [mass, 1 - mass])
        for _ in range(400)
    ]
    assert abs(np.mean(found) - exact) < 4 * np.std(found) / np.sqrt(400)


@pytest.mark.parametrize(("n_modes", "n"), [(10, 1000), (4, 200)])
def test_the_bias_of_exact_draws_is_the_one_documented(rng, n_modes, n):
    modes = np.arange(float(n_modes))[:, None]
    found = [mode_mass_distance(modes[rng.integers(n_modes, size=n)], modes) for _ in range(300)]
    assert_allclose(np.mean(found), np.sqrt((n_modes - 1) / (2 * np.pi * n)), rtol=0.08)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"X": np.zeros((0, 2))}, "0 sample"),
        ({"X": np.zeros((3, 3))}, "X has 3 features, but modes have 2"),
        ({"X": np.zeros(3)}, "Expected 2D array"),
        ({"X": [[0.0, np.nan]]}, "Input X contains NaN"),
        ({"modes": [[0.0, np.inf]]}, "Input modes contains infinity"),
        ({"modes": np.zeros((0, 2))}, "0 sample"),
        ({"masses": [0.5, 0.5]}, "masses must be"),
        ({"masses": [0.5, 0.5, 0.5, 0.5]}, "sum to 1"),
        ({"masses": [1.5, -0.5, 0.0, 0.0]}, "non-negative"),
        ({"masses": [np.nan, 0.5, 0.5, 0.0]}, "masses contains NaN"),
        ({"max_distance": -1.0}, "max_distance must be"),
        ({"max_distance": np.nan}, "max_distance must be"),
        ({"max_distance": "1"}, "max_distance must be"),
    ],
)
def test_bad_samples_and_modes_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        mode_mass_distance(**({"X": MODES, "modes": MODES} | changed))


# ------------------------------------------------------------------------------
# Fisher divergence
# ------------------------------------------------------------------------------


class Normal:
    """Score of N(mean, covariance) at rows."""

    def __init__(self, mean, covariance):
        self.mean, self.precision = np.array(mean), np.linalg.inv(covariance)

    def __call__(self, X):
        return (self.mean - X) @ self.precision


class Density:
    """An estimator with a score of its own."""

    def __init__(self, field):
        self.field = field

    def fit(self, X, y=None):
        return self

    def score_function(self, X):
        return self.field(X)


MEAN, COVARIANCE = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 1.0]])
TRUTH = Normal(MEAN, COVARIANCE)
MODEL = Normal([0.5, -1.0], [[1.0, -0.2], [-0.2, 3.0]])
# The difference of the scores is A (x - mean) + b.
A = TRUTH.precision - MODEL.precision
B = (MODEL.mean - MEAN) @ MODEL.precision
EXACT = (np.trace(A @ COVARIANCE @ A.T) + B @ B) / 2


def test_divergence_of_two_normal_distributions_is_the_closed_form(rng):
    found = fisher_divergence(MODEL, TRUTH, rng.multivariate_normal(MEAN, COVARIANCE, 50_000))
    assert abs(found.value - EXACT) < 4 * found.std_error
    assert found.std_error < 0.02 * EXACT


def test_standard_errors_are_those_of_independent_rows(rng):
    z = []
    for _ in range(400):
        X = rng.multivariate_normal(MEAN, COVARIANCE, 400)
        found = fisher_divergence(MODEL, TRUTH, X)
        z.append((found.value - EXACT) / found.std_error)
    assert abs(np.mean(z)) < 0.25  # a skew that the sample shares with its error is left
    assert 0.9 < np.std(z) < 1.15


def test_scores_come_as_functions_estimators_or_values(rng):
    X = rng.multivariate_normal(MEAN, COVARIANCE, 100)
    expected = fisher_divergence(MODEL, TRUTH, X)
    assert fisher_divergence(MODEL(X), TRUTH(X).tolist(), X) == expected
    assert fisher_divergence(Density(MODEL), Density(TRUTH), X.tolist()) == expected
    assert fisher_divergence(TRUTH, TRUTH, X) == (0, 0)
    assert_allclose(fisher_divergence(TRUTH, MODEL, X), expected)  # the rows say whose mean it is


def test_scores_of_scikit_learn_densities_are_those_of_normal_distributions(rng):
    X = rng.multivariate_normal(MEAN, COVARIANCE, 300)
    mixture = GaussianMixture(random_state=0).fit(X)
    own = Normal(mixture.means_[0], mixture.covariances_[0])
    assert_allclose(fisher_divergence(mixture, own, X), (0, 0), atol=1e-12)
    kernel = KernelDensity(bandwidth=2.0).fit(X[:1])
    assert_allclose(fisher_divergence(kernel, Normal(X[0], 4 * np.eye(2)), X), (0, 0), atol=1e-12)


def test_an_estimator_sees_the_frame_it_was_fitted_with(rng, recwarn):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rng.normal(size=(50, 2)), columns=["a", "b"])
    scaled = make_pipeline(StandardScaler(), GaussianMixture(random_state=0)).fit(frame)
    standard = fisher_divergence(scaled, -StandardScaler().fit_transform(frame), frame)
    correlation = np.corrcoef(frame.T)[0, 1]
    assert standard.value < 2 * correlation**2 + 1e-6  # but for the correlation it is N(0, 1)
    assert not recwarn


def test_value_and_error_of_two_rows_by_hand():
    # Halves of squared norms of 1 and 4, so 1.25 with an error of half of what is between them.
    found = fisher_divergence([[3.0, 1.0], [2.0, 0.0]], [[3.0, 0.0], [0.0, 0.0]], MODES[:2])
    assert_allclose(found, (1.25, 0.75))


def test_the_standard_error_of_one_row_is_infinite():
    assert fisher_divergence(MODEL, TRUTH, [[0.0, 0.0]]).std_error == np.inf


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"score": np.zeros((3, 2))}, "score must be"),
        ({"score": np.zeros(4)}, "score must be"),
        ({"true_score": lambda x: x[:, :1]}, "true_score must be"),
        ({"score": np.full((4, 2), np.nan)}, "score contains NaN"),
        ({"true_score": lambda x: x + np.inf}, "true_score contains infinity"),
        ({"X": np.zeros((0, 2))}, "0 sample"),
        ({"X": [[np.nan, 0.0]]}, "Input X contains NaN"),
    ],
)
def test_bad_scores_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        fisher_divergence(**({"score": MODEL, "true_score": TRUTH, "X": MODES} | changed))


def test_estimators_without_a_score_are_refused(rng):
    with pytest.raises(TypeError, match="score_function"):
        fisher_divergence(StandardScaler().fit(MODES), TRUTH, MODES)
