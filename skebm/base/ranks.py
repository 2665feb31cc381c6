"""Averages over the processes of a data-parallel step, for objectives that need them within it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor


class Reduction(Protocol):
    """What averages over the processes of a step; every process has to ask for the same."""

    def mean(self, *values: Tensor) -> list[Tensor]:
        """Means of tensors over the processes, weighted by their numbers of rows."""

    def gradients(self, value: Tensor | None) -> None:
        """Replace the gradients, and keep the loss, by their means over the processes."""


# Not an argument: it would pass through every signature between the engine and a moving average.
_REDUCTION: ContextVar[Reduction | None] = ContextVar("reduction", default=None)


@contextlib.contextmanager
def reducing(reduction: Reduction) -> Iterator[None]:
    """Average by `reduction` within the block."""
    token = _REDUCTION.set(reduction)
    try:
        yield
    finally:
        _REDUCTION.reset(token)


def mean_over_ranks(*values: Tensor) -> list[Tensor]:
    """Means of statistics of a batch over all its rows, of which each process has a part.

    In a single process, and outside of a step, the values themselves.
    """
    reduction = _REDUCTION.get()
    return list(values) if reduction is None else reduction.mean(*values)


def reduce_gradients(value: Tensor | None) -> None:
    """Make ``.grad`` that of all rows of the batch, for what depends on it within a step.

    `value` is the loss of a process's own rows, None where it is not known.
    """
    reduction = _REDUCTION.get()
    if reduction is not None:
        reduction.gradients(value)
