"""The state of Markov chains and the diagnostics of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class ChainState(NamedTuple):
    """What the next step of a chain needs; fields that a sampler does not use are None.

    Attributes
    ----------
    x : Tensor of shape (n, ...)
        Rows of the n chains.
    energy : Tensor of shape (n,) or None
        Energy of each row.
    grad : Tensor of shape (n, ...) or None
        Gradient of the energy with respect to x.
    aux : object or None
        Further state: a hidden layer already drawn at this x, adaptation of the step size,
        replicas.
    """

    x: Tensor
    energy: Tensor | None = None
    grad: Tensor | None = None
    aux: Any = None


def leaves(part: Any) -> list[Tensor]:
    """Tensors and counts of a chain's ``aux``, without what a sampler recomputes from the rows."""
    if isinstance(part, ChainState):
        return [part.x, *leaves(part.aux)]
    if isinstance(part, tuple):
        return [leaf for one in part for leaf in leaves(one)]
    return [] if part is None else [torch.as_tensor(part)]


def rebuilt(like: Any, stored: Iterator[Tensor]) -> Any:
    """An ``aux`` with the structure of `like` and the values of stored :func:`leaves`.

    `ValueError` where the shapes differ.
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
        raise ValueError("The stored chains belong to another sampler.")
    return leaf.to(like) if isinstance(like, Tensor) else type(like)(leaf.item())


class StepInfo(NamedTuple):
    """Diagnostics of a step.

    Attributes
    ----------
    acceptance : float or Tensor
        Mean acceptance rate in [0, 1], 1 for a Gibbs step.
    rates : Tensor of shape (k - 1,) or None
        Of k replicas that exchange rows, the rate at which each pair of neighbours does.
    """

    acceptance: float | Tensor
    rates: Tensor | None = None


class SamplingError(FloatingPointError):
    """The energy became nan while sampling.

    Attributes
    ----------
    state : ChainState or None
        State of the chains before the step that failed; None where they had not started.
    """

    state: ChainState | None = None


class StartError(SamplingError, ValueError):
    """The energy is not finite at a row where a chain starts."""
