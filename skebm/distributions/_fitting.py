"""Helpers of the fits of continuous distributions: weights, scales, evaluation in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real as RealNumber
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from skebm._validation import distinct_numbers_of

# Most numbers computed at once for a chunk of rows: 32 MB in float64.
CHUNK = 4_000_000
# Numbers computed at once where few rows are as fast: 4 MB in float64, which caches hold. Larger
# chunks have a multiple of ROWS, so that a row is not rounded otherwise in another block of a file.
AT_ONCE, ROWS = 2**19, 256


def check_row_weights(x: Any, weight: Tensor | None) -> Tensor:
    """Weights in float64, ones where there are none; `ValueError` for unusable rows or weights."""
    if not isinstance(x, Tensor) or x.dim() < 2 or len(x) == 0 or not x.is_floating_point():
        raise ValueError("x must be floating-point rows, (n, ...) with n of at least 1.")
    if not x.isfinite().all():
        row = int((~x.isfinite().flatten(1).all(1)).nonzero()[0])
        raise ValueError(f"x must be finite, but row {row} is not.")
    if weight is None:
        return x.new_ones(len(x), dtype=torch.float64)
    if weight.shape != x.shape[:1] or not (weight.isfinite() & (weight >= 0)).all():
        raise ValueError("weight must be one finite, non-negative number per row.")
    if not weight.any():
        raise ValueError("weight must contain a number above zero.")
    return weight.detach().to(x.device).double()


def positive_weight_rows(x: Any, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The distinct flat rows of positive weight and their weights, of mean 1, in float64."""
    w = check_row_weights(x, weight)
    if x.dim() != 2:
        raise ValueError(f"x must be flat rows, (n, d), not of shape {tuple(x.shape)}.")
    rows, w = x.detach().double()[w > 0], w[w > 0]
    index, w = distinct_weights(rows, w)
    return rows[index], w * (len(w) / w.sum())


def distinct_weights(rows: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the distinct rows, in their order, and the weights of all copies of each.

    Copies of a row say no more than one of them about what lies between rows of numbers, so the
    total is at most the number of distinct rows: priors are worth as much beside a table that is
    given twice. It is less for rows that are completed in several ways, which count as one.
    """
    first, member = distinct_numbers_of(rows.cpu().numpy())
    if len(first) == len(rows):
        index, total = torch.arange(len(rows), device=rows.device), w
    else:
        index = torch.from_numpy(first).to(rows.device)
        total = w.new_zeros(len(first)).index_add_(0, torch.from_numpy(member).to(w.device), w)
    return index, total * min(1.0, len(first) / float(total.sum()))


def share_of_a_row(n: int) -> float:
    """Weight of a broad component beside those that are fitted to n rows: that of one row more."""
    return 1 / (n + 1)


def usable_scale(variance: Tensor, varying: Tensor) -> Tensor:
    """Standard deviations, 1 where a column does not vary."""
    return torch.where(varying, variance, 1.0).sqrt()


def varies(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Which columns of float64 rows vary by more than the rounding errors of rows in `dtype`.

    This is said by the largest and the smallest number: a standard deviation of equal numbers need
    not be zero, as their mean is rounded. A range of a few units in the last place counts as
    rounding; a larger one is the variation of a column with a large mean.
    """
    low, high = rows.aminmax(dim=0)
    rounding = max(100 * torch.finfo(torch.float64).eps, 4 * torch.finfo(dtype).eps)
    return high - low > rounding * torch.maximum(low.abs(), high.abs())


def moments(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each column of weighted float64 rows."""
    mean = w @ x / w.sum()
    return mean, w @ (x - mean).square() / w.sum()


def positive(value: Any, like: Tensor, name: str, zero: bool = False) -> Tensor:
    """A positive number for each entry of `like`, in its precision; a single number is expanded."""
    if isinstance(value, RealNumber):
        value = torch.full_like(like, float(value))
    if not isinstance(value, Tensor) or value.shape not in (like.shape, ()):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{name} must be a number or a tensor of shape {tuple(like.shape)}, one for each "
            f"entry of a row, not {shape}."
        )
    if not (value.isfinite() & ((value >= 0) if zero else (value > 0))).all():
        raise ValueError(f"{name} must be {'non-negative' if zero else 'positive'} and finite.")
    return value.detach().to(like).expand(like.shape).clone()


def map_chunks(
    function: Callable[..., Any], x: Tensor, per_row: int, at_once: int | None = None
) -> Any:
    """function(x) row by row, a tensor or a tuple of them, in chunks of at most `at_once` numbers.

    `per_row` is how many a row takes; `at_once` is `AT_ONCE` by default.
    """
    size = max(1, (AT_ONCE if at_once is None else at_once) // max(per_row, 1))
    size = size // ROWS * ROWS or size
    if len(x) <= size:
        return function(x)
    return join_parts((function(part) for part in x.split(size)), len(x))


def join_parts(parts: Iterable[Any], n: int) -> Any:
    """Tensors, or tuples of them, one below the other, `n` rows in all.

    Rows are written where they belong as they come. Small results that waited for
    :func:`torch.cat` would lie between the large temporaries of the chunks, whose memory the
    allocator then could not use again: hundreds of MB for a hundred thousand rows.
    """
    wholes: list[Tensor] | None = None
    start = 0
    for part in parts:
        single = isinstance(part, Tensor)
        values = (part,) if single else part
        if len(values[0]) == n:
            return part
        if wholes is None:
            wholes = [value.new_empty((n, *value.shape[1:])) for value in values]
        for whole, value in zip(wholes, values, strict=True):
            whole[start : start + len(value)] = value
        start += len(values[0])
    assert wholes is not None
    return wholes[0] if single else tuple(wholes)


def check_sigma(sigma: Tensor | float, rows: Tensor) -> Tensor:
    """Noise levels of rows (n, d), on their device and in their precision; checked."""
    value = torch.as_tensor(sigma).to(rows)
    if value.shape not in ((), rows.shape[1:]) or not (value.isfinite() & (value >= 0)).all():
        raise ValueError(
            f"sigma must be a non-negative number, or one for each of {rows.shape[1]} columns, got "
            f"{value.tolist()}."
        )
    return value


def draw_index(weight: Tensor, u: Tensor) -> Tensor:
    """Categorical draws by the inverse CDF at uniform numbers u, (n,) in [0, 1).

    `weight` are unnormalised probabilities: (K,) for all draws, or (n, K) for each. Numbers u of
    shape (n, m) give m draws from each of n weights.
    """
    cumulative = weight.cumsum(-1)
    # To the right of equal sums, so that u = 0 selects no index of weight zero.
    if weight.dim() == 1:
        index = torch.searchsorted(cumulative, u * cumulative[-1], right=True)
    else:
        height = (u if u.dim() == 2 else u[:, None]) * cumulative[:, -1:]
        index = torch.searchsorted(cumulative, height, right=True).view(u.shape)
    return index.clamp_(max=weight.shape[-1] - 1)


def weighted_quantiles(x: Tensor, w: Tensor, levels: Sequence[float]) -> list[Tensor]:
    """For each level, the least value of each column up to which this fraction of weight lies.

    `x` are columns (n, d), or one (n,).
    """
    x, order = x.sort(0)
    up_to = w[order].cumsum(0)
    quantiles = []
    for level in levels:
        place = (up_to < level * w.sum() * (1 - 1e-12)).sum(0, keepdim=True)
        quantiles.append(x.gather(0, place.clamp_(max=len(x) - 1))[0])
    return quantiles


def weights_at_temperature(
    log_weights: Tensor, log_bounds: Tensor, temperature: float
) -> tuple[Tensor, float]:
    r"""Weights, and the log bound, of an envelope of the power 1 / T of a mixture.

    With :math:`q_k^{1/T} \le M_k r_k` for its parts,
    :math:`(\sum_k \pi_k q_k)^{1/T} \le \sum_k \pi_k^{\min(1/T, 1)} M_k r_k`: powers below 1 are
    subadditive, and those above 1 are convex.

    Parameters
    ----------
    log_weights : Tensor of shape (K,)
        Log of :math:`\pi`, which sums to 1.
    log_bounds : Tensor of shape (K,)
        Log of M.
    temperature : float
        T, positive.
    """
    logits = min(1 / temperature, 1.0) * log_weights.double() + log_bounds.double()
    return logits.softmax(0), float(logits.logsumexp(0))


def log_integrals_at_temperature(
    log_normalisers: Tensor, n_columns: int, temperature: float
) -> Tensor:
    r"""Log of the integrals of :math:`N(x; \mu, \Sigma)^{1/T}`, a multiple of a normal density.

    Parameters
    ----------
    log_normalisers : Tensor of shape (K,)
        :math:`\log \det(2 \pi \Sigma) / 2`.
    n_columns : int
    temperature : float
        T, positive.
    """
    return (1 - 1 / temperature) * log_normalisers + n_columns / 2 * math.log(temperature)


def k_means(x: Tensor, w: Tensor, n_clusters: int, seed: int, **settings: Any) -> np.ndarray:
    """Labels (n,) of rows by k-means from k-means++, in at most one cluster per distinct row."""
    rows, n = x.cpu().numpy(), min(n_clusters, len(x))
    if len(np.unique(rows[: 4 * n], axis=0)) < n:
        n = min(n, len(np.unique(rows, axis=0)))
    means = KMeans(n, n_init=1, random_state=seed, **settings)
    labels: np.ndarray = means.fit_predict(rows, sample_weight=w.cpu().numpy())
    return labels
