"""How well a score tells two classes apart, with the error that so many rows leave."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.utils import check_consistent_length, check_random_state

from skebm.base.sampler import whole_number
from skebm.metrics._checks import Floats, numbers_of, positives

# Takes the number of positive and of negative rows at each level of the score, from the lowest up.
Statistic = Callable[[np.ndarray, np.ndarray], float]


class Estimate(NamedTuple):
    """A value measured on a sample of rows, and how far another sample may lie from it.

    Attributes
    ----------
    value : float
        On the rows given.
    std_error : float
        Standard deviation over bootstrap resamples.
    lower, upper : float
        Ends of the percentile interval of the resamples.
    """

    value: float
    std_error: float
    lower: float
    upper: float


def fpr_at_tpr(y_true: Any, y_score: Any, *, tpr: float = 0.95, pos_label: Any = 1) -> float:
    """Smallest false positive rate of all thresholds that find a share `tpr` of the positives.

    With ``score_samples`` as the score and +1 for rows in distribution it is the FPR95 of the
    literature on out-of-distribution detection: the share of anomalies that pass for normal when
    95 % of the normal rows do. With anomalies as positives (``pos_label=-1`` and the score
    negated) it is another number: the share of normal rows flagged when 95 % of the anomalies are.

    Rows with one score are on one side of every threshold; there is no interpolation between
    thresholds, so that the rate is one that can be had, and at least the interpolated one.

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
    if not isinstance(tpr, Real) or not 0 < tpr <= 1:
        raise ValueError(f"tpr must be in (0, 1], got {tpr!r}.")
    positive, score = _checked(y_true, pos_label, y_score=y_score)
    false_rate, true_rate, _ = roc_curve(positive, score, drop_intermediate=False)
    # Both rates rise together: the first threshold that finds enough has the fewest false ones.
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
    """Area under the ROC curve, and its error by a bootstrap within each class.

    The area is an unbiased estimate of the probability that a new positive row scores above a new
    negative one, ties counting half. The errors are those of drawing so many rows of either class
    again; they leave out that the model was fitted to one training set. They are approximate, too
    small with few rows, and zero where the classes are told apart without an error.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of two classes.
    y_score : array-like of shape (n_samples,)
        Finite; higher for the positive class.
    n_bootstraps : int, default=1000
        Resamples, at least 2.
    confidence : float in (0, 1), default=0.95
        Share of the resamples in the interval.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.
    random_state : int, RandomState instance or None, default=None
        Draws the resamples; None takes NumPy's global generator.

    Returns
    -------
    Estimate
        Whose value is that of :func:`sklearn.metrics.roc_auc_score`.

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
    >>> found = roc_auc_bootstrap(y_true, y_true + rng.normal(size=400), random_state=0)
    >>> round(found.value, 2), round(found.std_error, 2)
    (0.93, 0.01)
    """
    positive, score = _checked(y_true, pos_label, y_score=y_score)
    drawn = _bootstrap(_roc_auc, positive, [score], n_bootstraps, confidence, random_state)
    return _estimate(float(roc_auc_score(positive, score)), drawn[0], confidence)


def average_precision_bootstrap(
    y_true: Any,
    y_score: Any,
    *,
    n_bootstraps: int = 1000,
    confidence: float = 0.95,
    pos_label: Any = 1,
    random_state: Any = None,
) -> Estimate:
    """Average precision, and its error by a bootstrap within each class.

    The errors are those at the shares of the classes in `y_true`, which average precision depends
    on. In small samples it is biased upward, the more the nearer to chance, and resamples, whose
    rows repeat, add to that: with 30 rows of each class an interval of 90 % lies too high and holds
    the true value about 80 % of the time.

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
        Share of the resamples in the interval.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.
    random_state : int, RandomState instance or None, default=None
        Draws the resamples; None takes NumPy's global generator.

    Returns
    -------
    Estimate
        Whose value is that of :func:`sklearn.metrics.average_precision_score`.

    References
    ----------
    Efron and Tibshirani (1993), "An introduction to the bootstrap", chapters 8 and 13. Boyd, Eng
    and Page (2013), "Area under the precision-recall curve: point estimates and confidence
    intervals", ECML PKDD (intervals compared).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import average_precision_bootstrap
    >>> rng = np.random.default_rng(0)
    >>> y_true = np.repeat([1, -1], [300, 100])
    >>> log_p = y_true + rng.normal(size=400)
    >>> found = average_precision_bootstrap(y_true, -log_p, pos_label=-1, random_state=0)
    >>> round(found.value, 2), round(found.std_error, 2)
    (0.83, 0.03)
    """
    positive, score = _checked(y_true, pos_label, y_score=y_score)
    drawn = _bootstrap(
        _average_precision, positive, [score], n_bootstraps, confidence, random_state
    )
    return _estimate(float(average_precision_score(positive, score)), drawn[0], confidence)


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
    """Area under the ROC curve of one score minus that of another, on the same rows.

    Every resample is scored by both, so that what rows have in common cancels: the error is that
    of the difference, mostly far below those of the two areas. Unbiased.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of two classes.
    score_a, score_b : array-like of shape (n_samples,)
        Of the same rows; finite, higher for the positive class, each in units of its own.
    n_bootstraps : int, default=1000
        Resamples, at least 2.
    confidence : float in (0, 1), default=0.95
        Share of the resamples in the interval.
    pos_label : int, float, bool or str, default=1
        Label of the positive class; the default fits -1 / +1 and 0 / 1.
    random_state : int, RandomState instance or None, default=None
        Draws the resamples; None takes NumPy's global generator.

    Returns
    -------
    Estimate
        Positive where `score_a` is the better one.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or more correlated
    receiver operating characteristic curves", Biometrics 44(3) (the same by a formula for large
    samples).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import roc_auc_difference
    >>> rng = np.random.default_rng(0)
    >>> y_true = np.repeat([1, -1], [300, 100])
    >>> a = y_true + rng.normal(size=400)
    >>> b = a + rng.normal(size=400)  # the same with more noise
    >>> found = roc_auc_difference(y_true, a, b, random_state=0)
    >>> found.lower > 0
    True
    """
    positive, a, b = _checked(y_true, pos_label, score_a=score_a, score_b=score_b)
    drawn = _bootstrap(_roc_auc, positive, [a, b], n_bootstraps, confidence, random_state)
    value = float(roc_auc_score(positive, a) - roc_auc_score(positive, b))
    return _estimate(value, drawn[0] - drawn[1], confidence)


def _checked(y_true: Any, pos_label: Any, **scores: Any) -> tuple[Any, ...]:
    """Which rows are positive, then the scores as float64, all of one length."""
    positive = positives(y_true, pos_label)
    found = [numbers_of(score, name) for name, score in scores.items()]
    check_consistent_length(positive, *found)
    return positive, *found


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
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}.")
    rng = check_random_state(random_state)
    ranked = []
    for score in scores:  # sorted once; rows with one score are one level
        values, level = np.unique(score, return_inverse=True)
        ranked.append((level[positive], level[~positive], len(values)))
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    drawn = np.empty((len(scores), n_bootstraps))
    for resample in range(n_bootstraps):
        rows = rng.randint(n_positive, size=n_positive), rng.randint(n_negative, size=n_negative)
        for which, (above, below, n_levels) in enumerate(ranked):
            drawn[which, resample] = statistic(
                np.bincount(above[rows[0]], minlength=n_levels),
                np.bincount(below[rows[1]], minlength=n_levels),
            )
    return drawn


def _estimate(value: float, drawn: Floats, confidence: float) -> Estimate:
    lower, upper = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(drawn.std(ddof=1)), float(lower), float(upper))


def _roc_auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Weight of pairs in the right order, and half of that of ties."""
    below = negative.cumsum() - negative / 2
    return float(positive @ below / (positive.sum() * negative.sum()))


def _average_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    """Mean over positives of the precision when everything down to their level is found."""
    positive, negative = positive[::-1], negative[::-1]
    found = positive.cumsum()
    flagged = found + negative.cumsum()
    # Levels above all rows of a resample flag nothing, and no positive is on them.
    precision = found / np.where(flagged > 0, flagged, 1)
    return float(positive @ precision / found[-1])
