"""Where chains stand, and what a step of them says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class ChainState(NamedTuple):
    """What the next step of a chain needs; a sampler leaves None what it does not need.

    Attributes
    ----------
    x : Tensor of shape (n, ...)
    energy : Tensor of shape (n,) or None
    grad : Tensor of shape (n, ...) or None
        Gradient of the energy with respect to x.
    aux : object or None
        Further state: a hidden layer already drawn at this x, a step size being tuned, replicas.
    """

    x: Tensor
    energy: Tensor | None = None
    grad: Tensor | None = None
    aux: Any = None


def leaves(part: Any) -> list[Tensor]:
    """Tensors and counts of a chain's ``aux``, without what a sampler computes from rows anew."""
    if isinstance(part, ChainState):
        return [part.x, *leaves(part.aux)]
    if isinstance(part, tuple):
        return [leaf for one in part for leaf in leaves(one)]
    return [] if part is None else [torch.as_tensor(part)]


def rebuilt(like: Any, stored: Iterator[Tensor]) -> Any:
    """An ``aux`` of the same structure as another, from its :func:`leaves`.

    `ValueError` where they do not fit.
    """
    if isinstance(like, ChainState):
        return like._replace(x=rebuilt(like.x, stored), aux=rebuilt(like.aux, stored))
    if isinstance(like, tuple):
        parts = [rebuilt(one, stored) for one in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if like is None:
        return None
    leaf = next(stored, None)
    if leaf is None or leaf.shape != torch.as_tensor(like).shape:
        raise ValueError("The stored chains are of another sampler.")
    return leaf.to(like) if isinstance(like, Tensor) else type(like)(leaf.item())


class StepInfo(NamedTuple):
    """Diagnostics of a step: the mean acceptance in [0, 1] (a Gibbs step accepts always)."""

    acceptance: float | Tensor


class SamplingError(FloatingPointError):
    """An energy that is not a number, met while sampling.

    Attributes
    ----------
    state : ChainState or None
        Where the chains stood before the step that failed; None when they had not started.
    """

    state: ChainState | None = None


class StartError(SamplingError, ValueError):
    """An energy that is not finite where a chain was to start."""
