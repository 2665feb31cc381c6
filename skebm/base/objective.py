"""Objectives: the loss that training minimises."""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base.energy import Energy


class Batch(NamedTuple):
    """A mini-batch: rows, targets, weights (mean 1 over the fit) and row numbers."""

    x: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    row_index: Tensor | None = None


class Loss(NamedTuple):
    """What an objective returns for a batch.

    Attributes
    ----------
    value : Tensor, scalar, or None
        The loss; None from an objective that writes gradients without computing it.
    state : object
        State for the next batch.
    logs : dict of str to Tensor
        Further scalars for the history.
    """

    value: Tensor | None
    state: Any
    logs: dict[str, Tensor] = {}


def fill_missing(parameters: list[nn.Parameter]) -> None:
    """Zero gradients where the loss does not depend on a parameter, such as a last bias."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)


class Objective(nn.Module, abc.ABC):
    """A loss that holds the energy; the module that skorch trains.

    Chains and running offsets are kept in the state that is passed through, never in buffers, which
    distributed training would overwrite. An objective whose update is not the gradient of a scalar,
    or whose gradient is cheaper without autograd, overrides :meth:`gradients`.
    """

    energy: Energy

    def start(self, batch: Batch, generator: torch.Generator) -> Any:
        """State before the first batch, made from representative rows; None if there is none."""
        return None

    def work(self, n_rows: int) -> float:
        """Approximate multiplications of a step on `n_rows` rows; sets the number of threads."""
        return float(n_rows * sum(p.numel() for p in self.parameters()))

    @abc.abstractmethod
    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch, differentiable with respect to the parameters."""

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write ``.grad`` of every trained parameter, by default with autograd.

        Called under ``no_grad``.
        """
        trained = self.cleared()
        with torch.enable_grad():
            loss = self(batch, state, generator)
            loss.value.backward()
        fill_missing(trained)
        return loss

    def cleared(self) -> list[nn.Parameter]:
        """Trainable parameters, their gradients set to None."""
        trained = [p for p in self.parameters() if p.requires_grad]
        for p in trained:
            p.grad = None
        return trained

    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Diagnostics of training on a fixed monitoring batch; has no side effect.

        ``"loss"`` is recorded in the history; ``"energy_gap"`` is mean E(data) - mean E(model).
        """
        loss = self(batch, state, generator)
        return {"loss": loss.value.detach(), **loss.logs}

    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Mean loss of held-out rows: lower is better, comparable between epochs.

        The engine seeds the generator identically at every call; otherwise early stopping would
        react to noise.
        """
        return self(batch, state, generator).value.detach()

    def snapshot(self, state: Any) -> Any:
        """A state that later batches do not change: copies what they write in place, here none."""
        return state

    def rolled_back(
        self, state: Any, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> Any:
        """State to continue from after a roll-back to `state`.

        `tries` counts the consecutive roll-backs of this epoch.
        """
        return state

    def advice(self, state: Any) -> str:
        """Settings to recommend beside the learning rate after roll-backs, appended to it."""
        return ""

    def pack(self, state: Any) -> dict[str, Tensor | None]:
        """Convert the state to named tensors for storage; overridden with :meth:`start`."""
        return {}

    def unpack(self, packed: dict[str, Tensor | None]) -> Any:
        """The inverse of :meth:`pack`."""
        return None

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Why training has diverged, judged by the monitor's values on `n_rows` rows; or None.

        `before` are the values before the epoch, so that a poor start is not taken for divergence.
        """
        bad = [name for name, value in logs.items() if not math.isfinite(value)]
        return f"{', '.join(bad)} not finite" if bad else None


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (n,) values under non-negative weights; 0 where all weights are 0."""
    if weight is None:
        return values.mean()
    return (weight @ values) / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)


def weighted_variance(values: Tensor, weight: Tensor | None) -> Tensor:
    """Variance of (n,) values under non-negative weights."""
    return weighted_mean((values - weighted_mean(values, weight)).square(), weight)


def effective_count(values: Tensor, weight: Tensor | None) -> Tensor | int:
    """Kish's effective sample size, (sum w)^2 / sum w^2; at least 1."""
    if weight is None:
        return len(values)
    squares = weight.square().sum().clamp_min(torch.finfo(values.dtype).tiny)
    return (weight.sum().square() / squares).clamp_min(1)
