"""Metrics of detection: definitions by brute force, exact bootstraps, DeLong, coverage."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score

from skebm import metrics
from skebm.metrics import (
    average_precision_bootstrap,
    fpr_at_tpr,
    roc_auc_bootstrap,
    roc_auc_difference,
)
from skebm.metrics.detection import _average_precision, _roc_auc
from tests.support.tiers import full, leading

BOOTSTRAPS = {"auc": roc_auc_bootstrap, "precision": average_precision_bootstrap}
SCORES = {"auc": roc_auc_score, "precision": average_precision_score}
every_bootstrap = pytest.mark.parametrize("name", BOOTSTRAPS)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


def binormal(rng, n_positive, n_negative, distance=1.0):
    """Labels of two classes, and a score with variance one in each."""
    y = np.repeat([1, -1], [n_positive, n_negative])
    return y, (y > 0) * distance + rng.normal(size=len(y))


def test_every_public_name_is_there():
    assert sorted(metrics.__all__) == metrics.__all__
    for name in metrics.__all__:
        assert getattr(metrics, name).__doc__


# ------------------------------------------------------------------------------
# False positive rate
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_levels", [2, 5, 1000])
@pytest.mark.parametrize("tpr", [0.05, 0.5, 0.95, 1.0])
def test_fpr_is_the_least_of_all_thresholds_by_brute_force(rng, n_levels, tpr):
    for _ in range(20):
        y = rng.permutation(np.repeat([1, -1], rng.integers(1, 30, 2)))
        score = rng.integers(n_levels, size=len(y))
        accepted = [score >= t for t in np.unique(score)]
        rates = [a[y < 0].mean() for a in accepted if a[y > 0].mean() >= tpr]
        assert fpr_at_tpr(y, score, tpr=tpr) == min(rates)


def test_fpr_of_two_normal_distributions_is_the_closed_form(rng):
    n = 40_000
    found = fpr_at_tpr(*binormal(rng, n, n, distance=2.0))
    threshold = norm.ppf(0.05, loc=2)
    exact = norm.sf(threshold)
    # Of the rate above a fixed threshold, and of the threshold, a quantile of the other class.
    slope = norm.pdf(threshold) / norm.pdf(threshold, loc=2)
    error = np.sqrt((exact * (1 - exact) + slope**2 * 0.05 * 0.95) / n)
    assert abs(found - exact) < 4 * error


def test_fpr_with_anomalies_as_positives_differs():
    y = np.repeat([1, -1], 20)
    log_p = np.append(np.arange(20.0), np.full(20, -1.0))
    log_p[-1] = 19.5  # one anomaly above all normal rows
    assert fpr_at_tpr(y, log_p) == 1 / 20
    assert fpr_at_tpr(y, -log_p, pos_label=-1) == 0
    assert fpr_at_tpr(y, -log_p, pos_label=-1, tpr=1.0) == 1


@pytest.mark.parametrize("n", [20, 40, 60, 100, 140])
def test_a_true_positive_rate_that_is_just_reached_is_enough(n):
    y = np.repeat([1, -1], [n, 1])
    score = np.append(np.arange(n, 0, -1.0), n // 20 + 0.5)  # below 95 % of the positives
    for tpr in (0.95, 1 - 0.05, np.linspace(0, 1, 21)[19], 19 * 0.05):
        assert fpr_at_tpr(y, score, tpr=tpr) == 0
    assert fpr_at_tpr(y, score, tpr=0.951) == 1


# ------------------------------------------------------------------------------
# The statistics of a resample
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_levels", leading(2, [7, 1, 2, 1000]))
@pytest.mark.parametrize("statistic", ["auc", "precision"])
def test_a_statistic_of_any_counts_is_that_of_scikit_learn(rng, statistic, n_levels):
    mine = {"auc": _roc_auc, "precision": _average_precision}[statistic]
    for _ in range(50):
        y = np.append([True, False], rng.random(40) < rng.uniform(0.1, 0.9))
        score = rng.integers(n_levels, size=len(y)) / 7
        weight = rng.poisson(0.7, len(y))
        weight[:2] += 1
        level = np.unique(score, return_inverse=True)[1]
        counts = [
            np.bincount(level[rows], weights=weight[rows], minlength=level.max() + 1)
            for rows in (y, ~y)
        ]
        assert_allclose(mine(*counts), SCORES[statistic](y, score, sample_weight=weight))


# ------------------------------------------------------------------------------
# Bootstraps
# ------------------------------------------------------------------------------


@every_bootstrap
def test_the_value_is_that_of_scikit_learn(rng, name):
    y, score = binormal(rng, 70, 40)
    for s in (score, score.round(), np.zeros(110)):
        found = BOOTSTRAPS[name](y, s, n_bootstraps=2)
        assert_allclose(found.value, SCORES[name](y > 0, s))
        negated = BOOTSTRAPS[name](y, -s, n_bootstraps=2, pos_label=-1)
        assert_allclose(negated.value, SCORES[name](y < 0, -s))


@full
@pytest.mark.parametrize("name", leading(1, BOOTSTRAPS))
def test_errors_are_those_of_all_resamples_by_enumeration(name):
    # Three rows of each class, two of them tied: 27 * 27 resamples, all as likely.
    positive, negative = np.array([3.0, 1.0, 0.0]), np.array([2.0, 1.0, -1.0])
    y, rows = np.repeat([1, 0], 3), list(itertools.product(range(3), repeat=3))
    every = [
        SCORES[name](y, np.append(positive[list(a)], negative[list(b)]))
        for a, b in itertools.product(rows, rows)
    ]
    found = BOOTSTRAPS[name](
        y, np.append(positive, negative), n_bootstraps=3000, confidence=0.8, random_state=0
    )
    assert_allclose(found.std_error, np.std(every), rtol=0.05)
    ends = np.quantile(every, [0.1, 0.9], method="inverted_cdf")
    assert_allclose([found.lower, found.upper], ends)


def test_errors_of_a_difference_are_those_of_all_resamples_by_enumeration():
    a = np.array([3.0, 1.0, 0.0, 2.0, 1.0, -1.0])
    b = np.array([2.0, 2.0, 0.0, 2.0, 3.0, 1.0])
    y, rows = np.repeat([1, 0], 3), list(itertools.product(range(3), repeat=3))
    # Whether a positive beats a negative, for all pairs; the area of a resample is a mean of them.
    wins = [(np.sign(s[:3, None] - s[3:]) + 1) / 2 for s in (a, b)]
    every = [
        (wins[0] - wins[1])[np.ix_(above, below)].mean()
        for above, below in itertools.product(rows, rows)
    ]
    found = roc_auc_difference(y, a, b, n_bootstraps=6000, random_state=0)
    assert_allclose(found.value, roc_auc_score(y, a) - roc_auc_score(y, b))
    assert_allclose(found.std_error, np.std(every), rtol=0.05)


def delong(y, *scores):
    """Covariance of areas under ROC curves of scores of the same rows (DeLong et al. 1988)."""
    parts = []
    for score in scores:
        pairs = score[y > 0][:, None] - score[y < 0]
        order = (pairs > 0) + (pairs == 0) / 2
        parts.append((order.mean(1), order.mean(0)))
    of_positives, of_negatives = (np.array(part) for part in zip(*parts, strict=True))
    n_positive, n_negative = of_positives.shape[1], of_negatives.shape[1]
    return np.cov(of_positives) / n_positive + np.cov(of_negatives) / n_negative


@pytest.mark.parametrize("decimals", [0, 6])
@pytest.mark.parametrize("counts", leading(1, [(300, 200), (1000, 60)]))
def test_error_of_an_area_is_that_of_delong(rng, counts, decimals):
    y, score = binormal(rng, *counts)
    score = score.round(decimals)
    found = roc_auc_bootstrap(y, score, n_bootstraps=4000, random_state=0)
    exact = float(np.sqrt(delong(y, score)))
    # A standard deviation of 4000 draws has an error of 1.1 %; the bootstrap divides by n.
    assert_allclose(found.std_error, exact, rtol=0.045)
    assert_allclose(found.upper - found.lower, 2 * 1.96 * exact, rtol=0.1)


def test_error_of_a_difference_is_that_of_delong(rng):
    y, a = binormal(rng, 300, 200)
    b = a + 0.5 * rng.normal(size=500)
    found = roc_auc_difference(y, a, b, n_bootstraps=4000, random_state=0)
    covariance = delong(y, a, b)
    exact = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert_allclose(found.std_error, exact, rtol=0.045)
    assert found.std_error < 0.7 * np.sqrt(np.trace(covariance))  # unpaired it would be larger


@full
def test_intervals_of_an_area_cover_the_true_one(rng):
    exact, hits = norm.cdf(1 / np.sqrt(2)), []
    for seed in range(200):
        y, score = binormal(rng, 60, 60)
        found = roc_auc_bootstrap(y, score, n_bootstraps=200, confidence=0.9, random_state=seed)
        hits.append(found.lower <= exact <= found.upper)
    # 2 % is the error of the share; the percentile interval is a little too short.
    assert 0.82 < np.mean(hits) < 0.97


@full
def test_error_of_average_precision_is_the_spread_over_new_samples(rng):
    new = [binormal(rng, 150, 150) for _ in range(600)]
    spread = np.std([average_precision_score(y > 0, score) for y, score in new])
    errors = [average_precision_bootstrap(*new[i], n_bootstraps=200).std_error for i in range(40)]
    assert_allclose(np.mean(errors), spread, rtol=0.1)


@every_bootstrap
def test_errors_of_separated_classes_are_zero(name):
    y = np.repeat([1, -1], [5, 7])
    assert BOOTSTRAPS[name](y, 3.0 * y) == (1, 0, 1, 1)


def test_a_difference_of_equal_rankings_is_zero(rng):
    y, score = binormal(rng, 30, 20)
    assert roc_auc_difference(y, score, np.exp(score) + 5, n_bootstraps=20) == (0, 0, 0, 0)


def test_a_difference_changes_sign_with_the_order(rng):
    y, a = binormal(rng, 30, 20)
    b = rng.normal(size=50)
    one = roc_auc_difference(y, a, b, n_bootstraps=50, random_state=0)
    other = roc_auc_difference(y, b, a, n_bootstraps=50, random_state=0)
    assert_allclose([-other.value, other.std_error], one[:2])
    assert_allclose([-other.upper, -other.lower], one[2:])


@every_bootstrap
def test_a_wider_confidence_gives_a_wider_interval(rng, name):
    y, score = binormal(rng, 30, 20)
    found = [BOOTSTRAPS[name](y, score, confidence=c, random_state=0) for c in (0.5, 0.9, 0.99)]
    assert found[2].lower < found[1].lower < found[0].lower
    assert found[0].upper < found[1].upper < found[2].upper
    assert found[0].std_error == found[2].std_error


@every_bootstrap
def test_two_resamples_have_the_standard_deviation_of_two(rng, name):
    found = BOOTSTRAPS[name](*binormal(rng, 30, 20), n_bootstraps=2, confidence=0.5)
    between = 2 * (found.upper - found.lower)
    assert_allclose(found.std_error, between / np.sqrt(2))


@every_bootstrap
def test_random_states_are_those_of_scikit_learn(rng, name):
    def draw(random_state):
        return BOOTSTRAPS[name](y, score, n_bootstraps=10, random_state=random_state)

    y, score = binormal(rng, 30, 20)
    state = np.random.RandomState(0)
    assert draw(0) == draw(0) == draw(state) != draw(state)
    np.random.seed(0)  # noqa: NPY002 (None stands for the global generator)
    assert draw(None) == draw(0)


@every_bootstrap
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_and_scores_of_any_kind_give_the_same(rng, name, dtype):
    pandas = pytest.importorskip("pandas")
    y, score = binormal(rng, 30, 20)
    score = score.astype(dtype)
    expected = BOOTSTRAPS[name](y, score, n_bootstraps=5, random_state=0)
    names = np.where(y > 0, "in", "out")
    for labels, positive in (
        ((y > 0).astype(int), 1),
        (y > 0, True),
        (y.astype(float), 1),
        (y.tolist(), 1),
        (names, "in"),
        (names.astype(object), "in"),
        (pandas.Series(y, index=np.arange(50)[::-1]), 1),
    ):
        found = BOOTSTRAPS[name](
            labels, score.tolist(), n_bootstraps=5, pos_label=positive, random_state=0
        )
        assert found == expected
        assert fpr_at_tpr(labels, score, pos_label=positive) == fpr_at_tpr(y, score)


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------

Y, S = [1, -1, 1, -1], [0.3, 0.1, 0.2, 0.4]
FUNCTIONS = {"fpr": fpr_at_tpr, **BOOTSTRAPS}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize(
    ("y", "score", "message"),
    [
        (Y, S[:3], "inconsistent numbers of samples"),
        ([1, 1, 1, 1], S, "two classes.*labels are 1"),
        ([-1, -1, -1, -1], S, r"two classes.*labels are -1"),
        ([0, 1, 2, 1], S, "two classes.*labels are 0, 1, 2"),
        (["a", "b", "a", "b"], S, "pos_label=1.*'a'.*'b'"),
        ([[1], [-1], [1], [-1]], S, "y_true must be"),
        ([1, -1, np.nan, 1], S, "y_true contains NaN"),
        (Y, [[0.3], [0.1], [0.2], [0.4]], "y_score must be"),
        (Y, [0.3, np.nan, 0.2, 0.4], "y_score contains NaN"),
        (Y, [0.3, -np.inf, 0.2, 0.4], "y_score contains infinity"),
        ([], [], "0 sample"),
    ],
)
def test_bad_rows_are_refused(function, y, score, message):
    with pytest.raises(ValueError, match=message):
        function(y, score)


def test_errors_name_the_invalid_score():
    with pytest.raises(ValueError, match="score_a contains NaN"):
        roc_auc_difference(Y, [0.3, np.nan, 0.2, 0.4], S)
    with pytest.raises(ValueError, match="score_b contains infinity"):
        roc_auc_difference(Y, S, [0.3, np.inf, 0.2, 0.4])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        roc_auc_difference(Y, S, S[:3])


@pytest.mark.parametrize("tpr", [0, -0.1, 1.01, np.nan, "0.95", None])
def test_invalid_rates_are_refused(tpr):
    with pytest.raises(ValueError, match=r"tpr must be in \(0, 1\]"):
        fpr_at_tpr(Y, S, tpr=tpr)


@every_bootstrap
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("n_bootstraps", 1),
        ("n_bootstraps", 10.0),
        ("confidence", 0),
        ("confidence", 1),
        ("confidence", 95),
        ("confidence", np.nan),
    ],
)
def test_bad_settings_of_a_bootstrap_are_refused(name, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be"):
        BOOTSTRAPS[name](Y, S, **{setting: value})
