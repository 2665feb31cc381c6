"""Detection metrics of scores for two classes, with bootstrap standard errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.utils import check_consistent_length, check_random_state

from skebm.base.sampler import number_in, whole_number
from skebm.metrics._checks import Floats, numbers_of, positives

# A function of the numbers of positive and of negative rows at each distinct score, ascending.
Statistic = Callable[[np.ndarray, np.ndarray], float]


class Estimate(NamedTuple):
    """A metric on a sample of rows, with its bootstrap standard error and interval.

    Attributes
    ----------
    value : float
        Value on the given rows.
    std_error : float
        Standard deviation over bootstrap resamples.
    lower, upper : float
        Percentile interval of the resamples.
    """

    value: float
    std_error: float
    lower: float
    upper: float


def fpr_at_tpr(y_true: Any, y_score: Any, *, tpr: float = 0.95, pos_label: Any = 1) -> float:
    """Smallest false positive rate at a true positive rate of at least `tpr`.

    With ``score_samples`` as the score and +1 for in-distribution rows it is the FPR95 of the
    literature on out-of-distribution detection: the fraction of anomalies classified as normal when
    95 % of the normal rows are. With anomalies as positives (``pos_label=-1`` and the negated
    score) it is a different number: the fraction of normal rows flagged when 95 % of the anomalies
    are.

    Rows with equal scores are on the same side of every threshold, and there is no interpolation
    between thresholds: the returned rate is attained by a threshold, and is at least as large as
    the interpolated one.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of two classes.
    y_score : array-like of shape (n_samples,)
        Finite; higher for the positive class.
    tpr : float in (0, 1], default=0.95
        Least true positive rate, up to rounding.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.

    Returns
    -------
    float
        In [0, 1]; lower is better.

    References
    ----------
    Hendrycks and Gimpel (2017), "A baseline for detecting misclassified and out-of-distribution
    examples in neural networks", ICLR (the task). Liang, Li and Srikant (2018), "Enhancing the
    reliability of out-of-distribution image detection in neural networks", ICLR, section 4.

    Examples
    --------
    >>> from skebm.metrics import fpr_at_tpr
    >>> y_true = [1, 1, 1, 1, -1, -1, -1, -1]
    >>> log_p = [-1.0, -2.0, -3.0, -7.0, -6.0, -8.0, -9.0, -9.5]
    >>> fpr_at_tpr(y_true, log_p)  # the threshold that keeps -7 keeps the anomaly at -6
    0.25
    >>> fpr_at_tpr(y_true, log_p, tpr=0.75)
    0.0
    """
    number_in("tpr", tpr, "(0, 1]")
    positive, score = _check_scores(y_true, pos_label, y_score=y_score)
    false_rate, true_rate, _ = roc_curve(positive, score, drop_intermediate=False)
    # Both rates are nondecreasing, so the first threshold with enough true positives is the best.
    return float(false_rate[np.argmax(true_rate >= tpr * (1 - 1e-12))])


def roc_auc_bootstrap(
    y_true: Any,
    y_score: Any,
    *,
    n_bootstraps: int = 1000,
    confidence: float = 0.95,
    pos_label: Any = 1,
    random_state: Any = None,
) -> Estimate:
    """Area under the ROC curve, with a standard error by a stratified bootstrap.

    The area is an unbiased estimate of the probability that a new positive row scores above a new
    negative one, ties counting half. The standard error is that of drawing the same numbers of rows
    of each class again; it does not include the variation of the training set. It is approximate,
    too small with few rows, and zero if the classes are perfectly separated.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of two classes.
    y_score : array-like of shape (n_samples,)
        Finite; higher for the positive class.
    n_bootstraps : int, default=1000
        Resamples, at least 2.
    confidence : float in (0, 1), default=0.95
        Coverage of the interval among the resamples.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.
    random_state : int, RandomState instance or None, default=None
        Draws the resamples; None uses NumPy's global generator.

    Returns
    -------
    Estimate
        Its value is that of :func:`sklearn.metrics.roc_auc_score`.

    References
    ----------
    Efron and Tibshirani (1993), "An introduction to the bootstrap", chapters 8 (two samples) and 13
    (the percentile interval).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import roc_auc_bootstrap
    >>> rng = np.random.default_rng(0)
    >>> y_true = np.repeat([1, -1], [300, 100])
    >>> auroc = roc_auc_bootstrap(y_true, y_true + rng.normal(size=400), random_state=0)
    >>> round(auroc.value, 2), round(auroc.std_error, 2)
    (0.93, 0.01)
    """
    positive, score = _check_scores(y_true, pos_label, y_score=y_score)
    resampled = _bootstrap(_roc_auc, positive, [score], n_bootstraps, confidence, random_state)
    return _estimate(float(roc_auc_score(positive, score)), resampled[0], confidence)


def average_precision_bootstrap(
    y_true: Any,
    y_score: Any,
    *,
    n_bootstraps: int = 1000,
    confidence: float = 0.95,
    pos_label: Any = 1,
    random_state: Any = None,
) -> Estimate:
    """Average precision, with a standard error by a stratified bootstrap.

    The standard error is for the class proportions of `y_true`, on which average precision depends.
    In small samples average precision is biased upward, most strongly near chance level, and
    resampling adds to the bias because it repeats rows: with 30 rows of each class, a 90 % interval
    is too high and covers the true value with a probability of about 80 %.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of two classes.
    y_score : array-like of shape (n_samples,)
        Finite; higher for the positive class. For anomalies as positives, ``-score_samples(X)``
        with ``pos_label=-1``.
    n_bootstraps : int, default=1000
        Resamples, at least 2.
    confidence : float in (0, 1), default=0.95
        Coverage of the interval among the resamples.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.
    random_state : int, RandomState instance or None, default=None
        Draws the resamples; None uses NumPy's global generator.

    Returns
    -------
    Estimate
        Its value is that of :func:`sklearn.metrics.average_precision_score`.

    References
    ----------
    Efron and Tibshirani (1993), "An introduction to the bootstrap", chapters 8 and 13. Boyd, Eng
    and Page (2013), "Area under the precision-recall curve: point estimates and confidence
    intervals", ECML PKDD (comparison of intervals).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import average_precision_bootstrap
    >>> rng = np.random.default_rng(0)
    >>> y_true = np.repeat([1, -1], [300, 100])
    >>> log_p = y_true + rng.normal(size=400)
    >>> precision = average_precision_bootstrap(y_true, -log_p, pos_label=-1, random_state=0)
    >>> round(precision.value, 2), round(precision.std_error, 2)
    (0.83, 0.03)
    """
    positive, score = _check_scores(y_true, pos_label, y_score=y_score)
    resampled = _bootstrap(
        _average_precision, positive, [score], n_bootstraps, confidence, random_state
    )
    return _estimate(float(average_precision_score(positive, score)), resampled[0], confidence)


def roc_auc_difference(
    y_true: Any,
    score_a: Any,
    score_b: Any,
    *,
    n_bootstraps: int = 1000,
    confidence: float = 0.95,
    pos_label: Any = 1,
    random_state: Any = None,
) -> Estimate:
    """Difference of the areas under the ROC curves of two scores of the same rows.

    Both scores are evaluated on the same resamples (a paired bootstrap), so that the standard error
    is that of the difference, usually far below those of the two areas. The value is unbiased.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of two classes.
    score_a, score_b : array-like of shape (n_samples,)
        Scores of the same rows; finite, higher for the positive class, each in its own units.
    n_bootstraps : int, default=1000
        Resamples, at least 2.
    confidence : float in (0, 1), default=0.95
        Coverage of the interval among the resamples.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.
    random_state : int, RandomState instance or None, default=None
        Draws the resamples; None uses NumPy's global generator.

    Returns
    -------
    Estimate
        Positive where `score_a` is the better one.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or more correlated
    receiver operating characteristic curves", Biometrics 44(3) (an asymptotic standard error of the
    same difference).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import roc_auc_difference
    >>> rng = np.random.default_rng(0)
    >>> y_true = np.repeat([1, -1], [300, 100])
    >>> a = y_true + rng.normal(size=400)
    >>> b = a + rng.normal(size=400)  # the same score with more noise
    >>> difference = roc_auc_difference(y_true, a, b, random_state=0)
    >>> difference.lower > 0
    True
    """
    positive, a, b = _check_scores(y_true, pos_label, score_a=score_a, score_b=score_b)
    resampled = _bootstrap(_roc_auc, positive, [a, b], n_bootstraps, confidence, random_state)
    value = float(roc_auc_score(positive, a) - roc_auc_score(positive, b))
    return _estimate(value, resampled[0] - resampled[1], confidence)


def _check_scores(y_true: Any, pos_label: Any, **scores: Any) -> tuple[Any, ...]:
    """Mask of the positive rows, then the scores as float64, all of one length."""
    positive = positives(y_true, pos_label)
    arrays = [numbers_of(score, name) for name, score in scores.items()]
    check_consistent_length(positive, *arrays)
    return positive, *arrays


def _bootstrap(
    statistic: Statistic,
    positive: NDArray[np.bool_],
    scores: list[Floats],
    n_bootstraps: int,
    confidence: float,
    random_state: Any,
) -> Floats:
    """Statistic of every score on the same resamples, (n_scores, n_bootstraps)."""
    whole_number("n_bootstraps", n_bootstraps, 2)
    number_in("confidence", confidence, "(0, 1)")
    rng = check_random_state(random_state)
    ranked = []
    for score in scores:  # ranked once; rows with equal scores have one rank
        values, rank = np.unique(score, return_inverse=True)
        ranked.append((rank[positive], rank[~positive], len(values)))
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    resampled = np.empty((len(scores), n_bootstraps))
    for resample in range(n_bootstraps):
        rows = rng.randint(n_positive, size=n_positive), rng.randint(n_negative, size=n_negative)
        for which, (of_positive, of_negative, n_ranks) in enumerate(ranked):
            resampled[which, resample] = statistic(
                np.bincount(of_positive[rows[0]], minlength=n_ranks),
                np.bincount(of_negative[rows[1]], minlength=n_ranks),
            )
    return resampled


def _estimate(value: float, resampled: Floats, confidence: float) -> Estimate:
    lower, upper = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(resampled.std(ddof=1)), float(lower), float(upper))


def _roc_auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Fraction of pairs in the right order, ties counting half."""
    below = negative.cumsum() - negative / 2
    return float(positive @ below / (positive.sum() * negative.sum()))


def _average_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    """Mean over the positives of the precision at the threshold of their score."""
    positive, negative = positive[::-1], negative[::-1]
    true_positives = positive.cumsum()
    flagged = true_positives + negative.cumsum()
    # Scores above all rows of a resample flag nothing, and have no positives.
    precision = true_positives / np.where(flagged > 0, flagged, 1)
    return float(positive @ precision / true_positives[-1])
