"""Means over rows that carry weights."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (n,) values under non-negative weights; 0 where all weights are."""
    if weight is None:
        return values.mean()
    return (weight @ values) / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)


def weighted_variance(values: Tensor, weight: Tensor | None) -> Tensor:
    """Variance of (n,) values under such weights."""
    return weighted_mean((values - weighted_mean(values, weight)).square(), weight)


def effective_count(values: Tensor, weight: Tensor | None) -> Tensor | int:
    """How many values of equal weight would tell as much; at least 1."""
    if weight is None:
        return len(values)
    squares = weight.square().sum().clamp_min(torch.finfo(values.dtype).tiny)
    return (weight.sum().square() / squares).clamp_min(1)
