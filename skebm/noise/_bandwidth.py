"""The bandwidth under which rows are likeliest, each left out of the kernels in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Factors that are looked at first: each twice the one before.
FACTORS = tuple(0.01 * 2**k for k in range(9))

# Rows that are left out in turn.
MAX_ROWS = 2000

# Pairs of rows at once: few enough for the processor's cache.
PAIRS = 2**18

# The factor is found to two percent.
TOLERANCE = 0.02


def best_factor(z: Tensor, w: Tensor, max_rows: int | None = None) -> float:
    """Bandwidth, from the least to the largest of `FACTORS`, for standardised rows z (n, d).

    Rows are counted by their weights w (n,): one of weight 2 leaves a copy in place.
    """
    index, count = left_out(w, max_rows)
    usable = w.sum() - w[index].clamp(max=1) > 0
    index, count = index[usable], count[usable]
    if not len(index) or not z.shape[1]:  # a single row, or no column
        return 1.0
    scores = _grid(z, w, index, count)
    top = max(range(len(FACTORS)), key=scores.__getitem__)
    low, high = FACTORS[max(top - 1, 0)], FACTORS[min(top + 1, len(FACTORS) - 1)]

    def score(log_factor: float) -> float:
        return log_likelihood(z, w, index, count, math.exp(log_factor))

    return math.exp(_golden(score, math.log(low), math.log(high)))


def left_out(w: Tensor, max_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows to leave out and how often each: all, or some evenly spaced over the weights."""
    total, n = float(w.sum()), MAX_ROWS if max_rows is None else max_rows
    if max(total, len(w)) <= n:
        return torch.arange(len(w), device=w.device), w
    place = (torch.arange(n, dtype=w.dtype, device=w.device) + 0.5) * (total / n)
    chosen = torch.searchsorted(w.cumsum(0), place, right=True).clamp_(max=len(w) - 1)
    index, count = chosen.unique_consecutive(return_counts=True)
    return index, count.to(w.dtype)


def log_likelihood(z: Tensor, w: Tensor, index: Tensor, count: Tensor, factor: float) -> float:
    """Sum over the rows of `count` times the log-density under the kernels of all others."""
    total = 0.0
    for rows, distance, nearest, own in _distances(z, w, index):
        kernel = distance.mul_(-0.5 / factor**2).exp_()
        total += _score(kernel @ w + own, nearest, w, index[rows], count[rows], z, factor)
    return total


def _grid(z: Tensor, w: Tensor, index: Tensor, count: Tensor) -> list[float]:
    """The same for all of `FACTORS`: half the bandwidth is the kernel to the fourth power."""
    scores = [0.0] * len(FACTORS)
    for rows, distance, nearest, own in _distances(z, w, index):
        kernel = distance.mul_(-0.5 / FACTORS[-1] ** 2).exp_()
        for k in reversed(range(len(FACTORS))):
            scores[k] += _score(
                kernel @ w + own, nearest, w, index[rows], count[rows], z, FACTORS[k]
            )
            kernel.square_().square_()
    return scores


def _distances(
    z: Tensor, w: Tensor, index: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Chunks of rows: squared distances to all less that to the nearest, and what is left of each.

    A row is infinitely far from itself; the copies that stay are counted apart, `own`.
    """
    squared = z.square().sum(1)
    size = max(1, PAIRS // len(z))
    for start in range(0, len(index), size):
        rows = slice(start, start + size)
        part = index[rows]
        distance = torch.addmm(squared, z[part], z.t(), alpha=-2).add_(squared[part][:, None])
        here = torch.arange(len(part), device=z.device)
        distance[here, part] = math.inf
        own = (w[part] - 1).clamp_(min=0)
        nearest = torch.where(own > 0, 0.0, distance.amin(1).clamp_(min=0))
        yield rows, distance.sub_(nearest[:, None]), nearest, own


def _score(
    density: Tensor, nearest: Tensor, w: Tensor, index: Tensor, count: Tensor, z: Tensor, h: float
) -> float:
    others = w.sum() - w[index].clamp(max=1)
    value = density.log() - nearest / (2 * h**2) - others.log() - z.shape[1] * math.log(h)
    return float(count @ value)


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one maximum is largest, by golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > TOLERANCE:
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return (low + high) / 2
