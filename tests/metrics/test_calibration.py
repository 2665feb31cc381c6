"""Calibration error: the literature's plug-in, and biases by exact enumeration of outcomes."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom
from sklearn.calibration import calibration_curve

from skebm.metrics import expected_calibration_error
from skebm.metrics.calibration import _mean_absolute, _merge_bins, _total_without_bias
from tests.support.tiers import leading

STRATEGIES = ("quantile", "uniform")
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_norm = pytest.mark.parametrize("norm", ["l1", "l2"])


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


def plug_in(y, p, **kwargs):
    return expected_calibration_error(y, p, debiased=False, **kwargs)


# ------------------------------------------------------------------------------
# The plug-in estimate
# ------------------------------------------------------------------------------


@every_strategy
@pytest.mark.parametrize("n_bins", [1, 4, 15])
@pytest.mark.parametrize("n_levels", [3, 10_000])
def test_plug_in_is_the_area_between_curve_and_diagonal_of_scikit_learn(
    rng, strategy, n_bins, n_levels
):
    p = rng.integers(n_levels + 1, size=2000) / n_levels
    y = (rng.random(2000) < p**2).astype(int)
    frequency, mean = calibration_curve(y, p, n_bins=n_bins, strategy=strategy)
    edges = np.linspace(0, 1, n_bins + 1)
    edges = np.quantile(p, edges) if strategy == "quantile" else edges
    share = np.bincount(np.searchsorted(edges[1:-1], p)) / 2000
    share = share[share > 0]
    found = [plug_in(y, p, n_bins=n_bins, strategy=strategy, norm=norm) for norm in ("l1", "l2")]
    gap = np.abs(frequency - mean)
    assert_allclose(found, [share @ gap, np.sqrt(share @ gap**2)])


def test_plug_in_by_hand():
    y, p = [0, 1, 1, 1], [0.2, 0.4, 0.7, 0.9]
    # Bins {0.2, 0.4} and {0.7, 0.9}: frequencies 1/2 and 1, means 0.3 and 0.8.
    assert_allclose(plug_in(y, p, n_bins=2), 0.2)
    assert_allclose(plug_in(y, p, n_bins=1), 0.75 - 0.55)
    assert_allclose(plug_in(y, p, n_bins=4), (0.2 + 0.6 + 0.3 + 0.1) / 4)
    assert_allclose(plug_in(y, p, n_bins=10, strategy="uniform"), (0.2 + 0.6 + 0.3 + 0.1) / 4)
    # (0, 1/2] and (1/2, 1]: an upper edge is in its bin.
    assert_allclose(plug_in([1, 0], [0.5, 0.6], n_bins=2, strategy="uniform"), 0.55)


# ------------------------------------------------------------------------------
# Bias
# ------------------------------------------------------------------------------


def expectation(statistic, truth):
    """Exact mean over all outcomes of independent rows that come true with these chances."""
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=len(truth)):
        chance = np.prod(np.where(outcome, truth, 1 - truth))
        total += chance * statistic(np.array(outcome, float))
    return total


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.25])
def test_squared_error_without_bias_is_exact_by_enumeration(shift):
    # Probabilities that differ within their bins, too low by as much in all rows of a bin.
    p = np.array([0.3, 0.35, 0.5, 0.4, 0.5, 0.6, 0.65])
    starts = np.array([0, 3])
    truth = p + np.array([shift, -shift / 2]).repeat([3, 4])
    found = expectation(lambda y: _total_without_bias(y - p, starts, "l2"), truth)
    assert_allclose(found, (3 * shift**2 + 4 * (shift / 2) ** 2) / 7, atol=1e-14)


def test_squared_error_of_equal_probabilities_is_that_of_kumar_et_al(rng):
    p, size = np.array([0.2, 0.5, 0.9]), np.array([20, 30, 50])
    y = rng.random(100) < p.repeat(size) - 0.2
    mean = np.array([part.mean() for part in np.split(y, size.cumsum()[:-1])])
    total = size / 100 @ ((mean - p) ** 2 - mean * (1 - mean) / (size - 1))
    found = expected_calibration_error(y, p.repeat(size), norm="l2", n_bins=100, strategy="uniform")
    assert_allclose(found**2, total)


@pytest.mark.parametrize("strategy", leading(1, STRATEGIES))
def test_squared_error_of_a_known_miscalibration_is_the_closed_form(rng, strategy):
    # P uniform, true chance p^2. Over a bin [a, b] the mean of p^2 - p is a cubic over its width.
    def integral(p):
        return p**3 / 3 - p**2 / 2

    edges = np.linspace(0, 1, 6)
    exact = np.mean((np.diff(integral(edges)) * 5) ** 2)
    squares = {True: [], False: []}
    for _ in range(500):
        p = rng.random(200)
        y = rng.random(200) < p**2
        for debiased in squares:
            squares[debiased].append(
                expected_calibration_error(
                    y, p, n_bins=5, strategy=strategy, norm="l2", debiased=debiased
                )
                ** 2
            )
    mean = {key: np.mean(found) for key, found in squares.items()}
    error = np.std(squares[True]) / np.sqrt(500)
    assert abs(mean[True] - exact) < 4 * error
    assert mean[False] - exact > 4 * error  # the plug-in is biased upward


def test_absolute_error_of_a_known_miscalibration_is_the_closed_form(rng):
    # Every bin errs to one side by far: the integral of p - p^2, whatever the bins.
    p = rng.random(40_000)
    y = rng.random(40_000) < p**2
    assert_allclose(expected_calibration_error(y, p, n_bins=4), 1 / 6, atol=0.01)
    assert_allclose(plug_in(y, p, n_bins=4), 1 / 6, atol=0.01)


def test_the_remaining_bias_for_a_calibrated_model_is_small(rng):
    p = rng.random((40, 4000))
    outcomes = rng.random(p.shape) < p

    def mean(**kwargs):
        found = [
            expected_calibration_error(y, q, n_bins=40, **kwargs)
            for y, q in zip(outcomes, p, strict=True)
        ]
        return np.mean(found)

    # Of the absolute error the share that its docstring promises; 3 % is three standard errors.
    assert_allclose(mean() / mean(debiased=False), 2 - np.sqrt(2), atol=0.03)
    # Of the squared one a sum around zero, of which the root of the positive part is shown.
    assert mean(norm="l2") < 0.35 * mean(norm="l2", debiased=False)


@pytest.mark.parametrize(("error", "left"), [(0.0, 0.467), (1.5, -0.092), (3.0, -0.016), (5.0, 0)])
def test_the_remaining_bias_in_a_bin_is_the_documented_one(error, left):
    # One bin of a thousand rows with the probability 0.4; its error in standard deviations.
    n, p = 1000, 0.4
    truth = p + error * np.sqrt(p * (1 - p) / n)
    spread = np.sqrt(truth * (1 - truth) / n)
    counts = np.arange(n + 1)
    found = [_total_without_bias((np.arange(n) < k) - p, np.array([0]), "l1") for k in counts]
    mean = binom.pmf(counts, n, truth) @ found
    assert_allclose((mean - (truth - p)) / spread, left, atol=0.01)


def test_the_mean_of_a_folded_normal_is_the_integral():
    x, step = np.linspace(-20, 20, 200_001, retstep=True)
    for mean, std in ((0.0, 1.0), (0.5, 1.0), (2.0, 0.3), (3.0, 2.0)):
        density = np.exp(-(((x - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
        integral = (np.abs(x) * density).sum() * step
        found = _mean_absolute(np.array([mean]), np.array([std]))
        assert_allclose(found, integral, rtol=1e-5)
    assert_allclose(_mean_absolute(np.array([0.0, 0.7]), np.zeros(2)), [0.0, 0.7])


@every_strategy
@every_norm
def test_debiasing_never_increases_the_estimate(rng, strategy, norm):
    for n in (2, 3, 10, 100):
        p = rng.random(n)
        y = np.append([0, 1], rng.random(n - 2) < p[2:])
        for n_bins in (1, 2, n // 2):
            # Bins of two rows and more, the same for both.
            if np.bincount((p * n_bins).astype(int), minlength=n_bins).min() < 2:
                continue
            kwargs = {"n_bins": n_bins, "strategy": strategy, "norm": norm}
            found = expected_calibration_error(y, p, **kwargs)
            assert 0 <= found <= plug_in(y, p, **kwargs) <= 1


# ------------------------------------------------------------------------------
# Bins
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "n", "merged"),
    [
        ([0, 2, 4], 6, [0, 2, 4]),
        ([0, 1, 4], 6, [0, 4]),  # the first with the next
        ([0, 3, 5], 6, [0, 3]),  # the last with the one before
        ([0, 1, 2, 3, 4], 5, [0, 2]),  # singles in pairs, the odd one with the last pair
        ([0, 1], 2, [0]),
        ([0], 2, [0]),
    ],
)
def test_bins_of_one_row_are_merged(starts, n, merged):
    assert _merge_bins(np.array(starts), n).tolist() == merged


@every_norm
def test_more_bins_than_pairs_of_rows_are_merged_to_pairs(rng, norm):
    p = np.sort(rng.random(20))
    y = rng.random(20) < p**3
    many = expected_calibration_error(y, p, n_bins=20, norm=norm)
    assert_allclose(many, expected_calibration_error(y, p, n_bins=10, norm=norm))


@every_strategy
@every_norm
@pytest.mark.parametrize("debiased", [True, False])
def test_the_order_of_rows_does_not_matter(rng, strategy, norm, debiased):
    p = rng.integers(20, size=200) / 20
    y = rng.random(200) < p**2
    order = rng.permutation(200)
    kwargs = {"strategy": strategy, "norm": norm, "debiased": debiased}
    found = expected_calibration_error(y, p, **kwargs)
    assert found > 0.05
    assert_allclose(expected_calibration_error(y[order], p[order], **kwargs), found)


# ------------------------------------------------------------------------------
# Classes
# ------------------------------------------------------------------------------


def test_the_largest_probability_is_compared_with_the_accuracy(rng):
    prob = rng.dirichlet(np.ones(4), size=500)
    y = np.array([rng.choice(4, p=row) for row in prob])
    right = y == prob.argmax(1)
    found = expected_calibration_error(y, prob)
    assert_allclose(found, expected_calibration_error(right, prob.max(1)))


def test_columns_may_be_in_any_order_and_have_any_names(rng):
    prob = rng.dirichlet(np.ones(3), size=200)
    y = rng.integers(3, size=200)
    found = expected_calibration_error(y, prob)
    assert found > 0.1
    order, names = [2, 0, 1], np.array(["b", "a", "c"])
    assert expected_calibration_error(y, prob[:, order], labels=order) == found
    assert expected_calibration_error(names[y], prob, labels=names) == found
    assert expected_calibration_error(y, prob.astype(np.float32)) == pytest.approx(found, abs=1e-6)


def test_missing_classes_are_given_by_the_labels(rng):
    prob = rng.dirichlet(np.ones(3), size=50)
    y = np.zeros(50, int)
    with pytest.raises(ValueError, match="y_prob"):
        expected_calibration_error(y, prob)
    found = expected_calibration_error(y, prob, labels=range(3))
    assert found == expected_calibration_error(prob.argmax(1) == 0, prob.max(1))
    assert expected_calibration_error(y, prob[:, 0], labels=(1, 0)) > 0  # one class, named


def test_one_column_is_of_the_second_label(rng):
    p = rng.random(300)
    y = np.where(rng.random(300) < p**2, 1, -1)
    found = expected_calibration_error(y, p)
    assert_allclose(expected_calibration_error(y, 1 - p, labels=(1, -1)), found)
    assert expected_calibration_error(np.where(y > 0, "yes", "no"), p) == found
    assert expected_calibration_error(y > 0, p) == found


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------

Y, P = [0, 1, 1, 0], [0.1, 0.9, 0.4, 0.3]


@pytest.mark.parametrize(
    ("y", "p", "message"),
    [
        (Y, P[:3], "inconsistent numbers of samples"),
        ([1, 1, 1, 1], P, "2 classes, but the labels are"),
        ([0, 1, 2, 0], P, "2 classes, but the labels are"),
        ([0, 1, np.nan, 0], P, "y_true contains NaN"),
        (Y, [0.1, np.nan, 0.4, 0.3], "y_prob contains NaN"),
        (Y, [0.1, np.inf, 0.4, 0.3], "y_prob contains infinity"),
        (Y, [0.1, 1.1, 0.4, 0.3], r"probabilities in \[0, 1\]"),
        (Y, [0.1, -0.1, 0.4, 0.3], r"probabilities in \[0, 1\]"),
        (Y, [[p] for p in P], "two or more classes"),
        (Y, [[p, p] for p in P], "must sum to 1"),
        ([[0], [1], [1], [0]], P, "y_true must be"),
        ([], [], "0 sample"),
    ],
)
def test_bad_rows_are_refused(y, p, message):
    with pytest.raises(ValueError, match=message):
        expected_calibration_error(y, p)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_bins": 0}, "n_bins must be"),
        ({"n_bins": 2.5}, "n_bins must be"),
        ({"strategy": "kmeans"}, "strategy must be"),
        ({"norm": "max"}, "norm must be"),
        ({"labels": [0, 0]}, "the labels are"),
        ({"labels": [0, 1, 2]}, "the labels are"),
        ({"labels": [0, 2]}, r"y_true contains \[1\]"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        expected_calibration_error(Y, P, **settings)


def test_one_row_has_no_variance():
    with pytest.raises(ValueError, match="debiased=False"):
        expected_calibration_error([1], [0.4], labels=(0, 1))
    assert_allclose(plug_in([1], [0.4], labels=(0, 1)), 0.6)
