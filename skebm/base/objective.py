"""Objectives: what is minimised."""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base.energy import Energy


class Batch(NamedTuple):
    """What an objective sees: rows, targets, weights (mean 1 over the fit) and row numbers."""

    x: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    row_index: Tensor | None = None


class Loss(NamedTuple):
    """What an objective returns for a batch.

    Attributes
    ----------
    value : Tensor, scalar, or None
        What is minimised; None from an objective that writes gradients and has no use for it.
    state : object
        State for the next batch.
    logs : dict of str to Tensor
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
    """What is minimised; holds the energy (and so is the module that skorch trains).

    Chains and running offsets live in the state that is passed through, never in buffers, which
    distributed training would overwrite. An objective whose update is not the gradient of a scalar,
    or for which autograd is waste, overrides :meth:`gradients`.
    """

    energy: Energy

    def start(self, batch: Batch, generator: torch.Generator) -> Any:
        """State before the first batch, made from rows that stand for all; None without one."""
        return None

    def work(self, n_rows: int) -> float:
        """Multiplications of a step on a batch of `n_rows`, roughly: decides on threads."""
        return float(n_rows * sum(p.numel() for p in self.parameters()))

    @abc.abstractmethod
    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch, differentiable with respect to the parameters."""

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write ``.grad`` of every parameter, here by autograd. Called under ``no_grad``."""
        trained = self.cleared()
        with torch.enable_grad():
            loss = self(batch, state, generator)
            loss.value.backward()
        fill_missing(trained)
        return loss

    def cleared(self) -> list[nn.Parameter]:
        """Parameters that are trained, without the gradients that they had."""
        trained = [p for p in self.parameters() if p.requires_grad]
        for p in trained:
            p.grad = None
        return trained

    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Numbers that tell whether training works, at the end of an epoch; has no side effect.

        ``"loss"`` is what the history records; ``"energy_gap"`` = mean E(data) - mean E(model).
        """
        loss = self(batch, state, generator)
        return {"loss": loss.value.detach(), **loss.logs}

    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Mean loss of held-out rows: lower is better, comparable between epochs.

        The engine seeds the generator alike at every call, or early stopping would stop on noise.
        """
        return self(batch, state, generator).value.detach()

    def snapshot(self, state: Any) -> Any:
        """A state that later batches leave as it is; copies what they write in place, here none."""
        return state

    def rolled_back(
        self, state: Any, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> Any:
        """State to go on from, more carefully, after training has gone back to it.

        `tries` is how often in a row it has.
        """
        return state

    def advice(self, state: Any) -> str:
        """What to set besides the learning rate after roll-backs, to go behind it."""
        return ""

    def pack(self, state: Any) -> dict[str, Tensor | None]:
        """Take the state apart into named tensors, for storage; overridden with :meth:`start`."""
        return {}

    def unpack(self, packed: dict[str, Tensor | None]) -> Any:
        """Rebuild a state that :meth:`pack` took apart."""
        return None

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Why training has run away, judged by the monitor's numbers on `n_rows`, or None.

        `before` are the numbers before the epoch: to start badly is not to diverge.
        """
        bad = [name for name, value in logs.items() if not math.isfinite(value)]
        return f"{', '.join(bad)} not finite" if bad else None


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
