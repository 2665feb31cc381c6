"""What contrasts of data and chains share: signed weights, chains that were stored."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, ChainState, Energy, Sampler, sampling
from skebm.base.state import rebuilt
from skebm.objectives.walkers import Walkers


def signs(
    batch: Batch, chain: Tensor, persistent: bool, walkers: Walkers | None
) -> tuple[Tensor, Tensor]:
    """Signed weights of data and chain rows, whose sum over a statistic is model - data.

    The n data rows count -weight / n (their negative, the share, is returned as well); persistent
    chains share the batch's total weight, chains that started at the data have their row's.
    """
    if batch.weight is None:
        # shape[0], not len(): a microsecond each, twenty times as slow.
        sign, share = _plain_signs(batch.x.shape[0], chain.shape[0], chain.dtype, chain.device)
        if walkers is None:
            return sign, share
    else:
        share = batch.weight / len(batch.x)
    if walkers is not None:
        model = share.sum() * walkers.share.to(share.dtype)
    else:
        model = (share.sum() / len(chain)).expand(len(chain)) if persistent else share
    return torch.cat([-share, model]), share


@functools.lru_cache(maxsize=16)
def _plain_signs(n: int, m: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Without weights they are the same for every batch of a size."""
    sign = torch.full((n + m,), 1.0 / m, dtype=dtype, device=device)
    sign[:n] = -1.0 / n
    return sign, -sign[:n]


def resumed(sampler: Sampler, energy: Energy, x: Tensor, kept: list[Any]) -> ChainState:
    """Chains at x with what was kept beside them, where that is of this sampler."""
    with torch.no_grad(), sampling(energy):
        fresh, parts = sampler.init(energy, x), iter(kept)
        try:
            aux = rebuilt(fresh.aux, parts)
        except ValueError:
            return fresh
        if next(parts, None) is not None:
            return fresh
        return sampler.refresh(energy, fresh._replace(aux=aux))  # replicas stand at other rows
