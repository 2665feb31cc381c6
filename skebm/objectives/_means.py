"""Means over rows that carry weights."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (n,) values under non-negative weights; 0 where all weights are."""
    if weight is None:
        return values.mean()
    return (weight @ values) / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)
