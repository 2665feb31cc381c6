"""Calibration of predicted probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf
from sklearn.utils import check_array, check_consistent_length

from skebm.base.sampler import whole_number
from skebm.metrics._checks import Floats, labels_of

STRATEGIES = ("quantile", "uniform")
NORMS = ("l1", "l2")


def expected_calibration_error(
    y_true: Any,
    y_prob: Any,
    *,
    n_bins: int = 15,
    strategy: str = "quantile",
    norm: str = "l1",
    debiased: bool = True,
    labels: Any = None,
) -> float:
    r"""Expected calibration error: distance of predicted probabilities from observed frequencies.

    .. math:: \Bigl(\sum_b w_b \bigl|\bar y_b - \bar p_b\bigr|^q\Bigr)^{1/q}

    with :math:`w_b` the fraction of the rows in bin b, :math:`\bar y_b` the frequency of the
    predicted event among them, and :math:`\bar p_b` its mean probability; q is 1 or 2. This is the
    plug-in estimate (``debiased=False``). It is biased upward, and positive even for a perfectly
    calibrated model; the bias increases with the number of bins and decreases with that of rows.

    The debiased estimates, with :math:`d_b = \bar y_b - \bar p_b` and :math:`v_b` its estimated
    variance, which is the sample variance of y - p in the bin over the number of its rows:

    - ``"l2"`` is the square root of the positive part of :math:`\sum_b w_b (d_b^2 - v_b)`. The sum
      is unbiased, for quantile bins nearly so. The positive part has an upward bias, which matters
      for well calibrated models; the square root has a small downward bias for others.
    - ``"l1"`` is the positive part of :math:`\sum_b w_b (2 |d_b| - m_b)`, where :math:`m_b` is the
      mean of the absolute value of a normal variable,

      .. math:: m_b = \sqrt{2 v_b / \pi}\, e^{-d_b^2 / (2 v_b)}
          + |d_b| \operatorname{erf}\bigl(|d_b| / \sqrt{2 v_b}\bigr),

      so that :math:`m_b - |d_b|` is the bias if :math:`d_b` were the true value. The remaining bias
      is, in standard deviations of :math:`d_b`, 0.47 upward in a bin without error (0.80 for the
      plug-in estimate), at most 0.1 downward where the error is one to three standard deviations,
      and none beyond. No estimate of an absolute value is unbiased: use ``"l2"`` to test whether
      there is an error at all.

    All of these estimate the error of the bins. It is at most the error of the probabilities
    themselves, because errors of opposite sign cancel within a bin, and does not decrease when bins
    are split.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels.
    y_prob : array-like of shape (n_samples,) or (n_samples, n_classes)
        Probabilities of the positive class; or of all classes, in which case the largest in each
        row (the first, in a tie) is compared with the accuracy. The two errors differ, even with
        two classes.
    n_bins : int, default=15
        Number of bins, at least 1. Empty bins are left out.
    strategy : {"quantile", "uniform"}, default="quantile"
        Bins with equal numbers of rows, up to ties, or bins of equal width in [0, 1].
    norm : {"l1", "l2"}, default="l1"
        Mean absolute error, or root of the mean squared error.
    debiased : bool, default=True
        Whether to subtract the estimated bias. A variance needs two rows, so a bin of one row is
        merged with the next one (the last with the one before).
    labels : array-like of shape (n_classes,) or None, default=None
        Classes in the order of the columns, as in ``classes_`` of a classifier; if `y_prob` has one
        column, the negative and the positive class. None takes the classes of `y_true`, sorted.

    Returns
    -------
    float
        In [0, 1], a probability; lower is better.

    Notes
    -----
    Kumar et al. use :math:`v_b = \bar y_b (1 - \bar y_b) / (n_b - 1)`. This is the same if all rows
    of a bin have the same probability. Otherwise it counts the differences between probabilities as
    noise, subtracts too much, and can hide an error.

    References
    ----------
    Kumar, Liang and Ma (2019), "Verified uncertainty calibration", NeurIPS 32: section 5 and
    definition 5.2 (the debiased estimate), proposition 3.3 (bins underestimate); the l1 estimate
    is that of their library, its simulation replaced by the mean in closed form. Guo, Pleiss, Sun
    and Weinberger (2017), "On calibration of modern neural networks", ICML, section 2 (plug-in).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import expected_calibration_error
    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(1000)
    >>> y = rng.random(1000) < p  # perfectly calibrated
    >>> round(expected_calibration_error(y, p, debiased=False), 2)
    0.04
    >>> round(expected_calibration_error(y, p, norm="l2"), 2)
    0.0
    >>> round(expected_calibration_error(y, p**2, norm="l2"), 2)
    0.19
    """
    _check_options(n_bins, strategy, norm)
    event, probability = _events(y_true, y_prob, labels)
    order = np.argsort(probability, kind="stable")
    probability = probability[order]
    residual = event[order] - probability
    starts = _bin_starts(probability, n_bins, strategy)
    if debiased:
        total = _total_without_bias(residual, _merge_bins(starts, len(residual)), norm)
    else:
        size, gap = _gaps(residual, starts)
        total = float(size @ np.abs(gap) ** (1 if norm == "l1" else 2)) / len(residual)
    return max(total, 0.0) ** (1.0 if norm == "l1" else 0.5)


def _check_options(n_bins: Any, strategy: Any, norm: Any) -> None:
    whole_number("n_bins", n_bins, 1)
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}; got {strategy!r}.")
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}; got {norm!r}.")


def _events(y_true: Any, y_prob: Any, labels: Any) -> tuple[NDArray[np.bool_], Floats]:
    """Whether the predicted event occurred, and its probability, (n,) each."""
    truth = labels_of(y_true, "y_true")
    prob = check_array(y_prob, ensure_2d=False, dtype=np.float64, input_name="y_prob")
    check_consistent_length(truth, prob)
    if not ((prob >= 0) & (prob <= 1)).all():
        raise ValueError("y_prob must be probabilities in [0, 1].")
    classes = np.unique(truth) if labels is None else labels_of(labels, "labels")
    _check_classes(truth, classes, 2 if prob.ndim == 1 else prob.shape[1])
    if prob.ndim == 1:
        return truth == classes[1], prob
    # Rows of probabilities sum to one up to this: enough for half precision, not for logits.
    sum_tolerance = 1e-3
    if np.abs(prob.sum(1) - 1).max() > sum_tolerance:
        raise ValueError("Rows of y_prob must sum to 1, one column for each class.")
    top = prob.argmax(1)
    return truth == classes[top], prob[np.arange(len(prob)), top]


def _check_classes(truth: np.ndarray, classes: np.ndarray, n_classes: int) -> None:
    if n_classes < 2:
        raise ValueError("y_prob needs a column for each of two or more classes, or no columns.")
    if len(np.unique(classes)) != len(classes) or len(classes) != n_classes:
        raise ValueError(
            f"y_prob is of {n_classes} classes, but the labels are {classes.tolist()}: pass all "
            "classes in the order of the columns as `labels`, such as the classifier's classes_."
        )
    unknown = np.setdiff1d(truth, classes)
    if len(unknown):
        raise ValueError(f"y_true contains {unknown[:5].tolist()}, but `labels` does not.")


def _bin_starts(probability: Floats, n_bins: int, strategy: str) -> NDArray[np.intp]:
    """First row of each nonempty bin, for probabilities in ascending order."""
    edges = np.linspace(0, 1, n_bins + 1)
    if strategy == "quantile":
        edges = np.quantile(probability, edges)
    # Equal probabilities are in one bin, which includes its upper edge, as in calibration_curve.
    bins = np.searchsorted(edges[1:-1], probability)
    return np.flatnonzero(np.diff(bins, prepend=-1))


def _merge_bins(starts: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """The first rows of the bins after merging bins of a single row with their neighbours."""
    if n < 2:
        raise ValueError("One row has no variance: pass two or more, or debiased=False.")
    kept = [0]
    for start in starts[1:]:
        if start - kept[-1] > 1:
            kept.append(start)
    if n - kept[-1] == 1:
        kept.pop()
    return np.array(kept)


def _gaps(residual: Floats, starts: NDArray[np.intp]) -> tuple[NDArray[np.intp], Floats]:
    """Number of rows and mean of y - p in each bin."""
    size = np.diff(starts, append=len(residual))
    return size, np.add.reduceat(residual, starts) / size


def _total_without_bias(residual: Floats, starts: NDArray[np.intp], norm: str) -> float:
    """Mean over rows of the absolute or squared error of their bin, less its estimated bias.

    The result may be negative, as an unbiased estimate of a small number has to be.
    """
    size, gap = _gaps(residual, starts)
    centred = residual - np.repeat(gap, size)
    variance = np.add.reduceat(centred**2, starts) / (size - 1) / size
    if norm == "l2":
        return float(size @ (gap**2 - variance)) / len(residual)
    gap, std_error = np.abs(gap), np.sqrt(variance)
    return float(size @ (2 * gap - _mean_absolute(gap, std_error))) / len(residual)


def _mean_absolute(mean: Floats, std: Floats) -> Floats:
    """Mean of the folded normal distribution, E|d| of d ~ N(mean, std^2), for a mean >= 0."""
    z = np.divide(mean, std, out=np.full_like(mean, np.inf), where=std > 0)
    return math.sqrt(2 / math.pi) * std * np.exp(-(z**2) / 2) + mean * erf(z / math.sqrt(2))
