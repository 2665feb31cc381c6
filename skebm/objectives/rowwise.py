"""Objectives that are a mean over rows, each with a value of its own."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, Loss, Objective, sampling
from skebm.objectives._means import weighted_mean

# Noisy copies at which held-out rows are looked at: a look is then worth comparing.
HELD_OUT_DRAWS = 16


class Rowwise(Objective, abc.ABC):
    """What objectives without chains share: one value for each row, and the mean of them.

    Attributes
    ----------
    passes : int
        How often a step goes over the network, roughly. Score matching: forward and back for the
        slope, and both of these back again.
    leaves_out : bool
        Whether row i of the data is centre i of a base of kernels, to be left out where the base
        is evaluated at that row or near it: the kernel on the row itself says nothing of new rows.
    """

    passes: int = 6
    leaves_out: bool = False

    @abc.abstractmethod
    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,); `without` are the centres of the base to be left out, (n,)."""

    def _left_out(self, batch: Batch) -> Tensor | None:
        return batch.row_index if self.leaves_out else None

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        value = self.rowwise(batch.x, generator, self._left_out(batch))
        if batch.weight is not None:
            value = batch.weight * value  # a heavy batch of a fit pulls harder
        return Loss(value.mean(), state)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Mean loss of the batch; without a step of spectral norms."""
        with sampling(self):
            value = self.rowwise(batch.x, generator, self._left_out(batch))
        return {"loss": weighted_mean(value, batch.weight).detach()}

    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        looks = [self.rowwise(batch.x, generator).detach() for _ in range(self.n_looks)]
        return weighted_mean(torch.stack(looks).mean(0), batch.weight)

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        reason = super().diverged(logs, before, n_rows)
        if reason or not before:
            return reason
        was, now = before["loss"], logs["loss"]
        if now > was + 10 * (1 + abs(was)):
            return f"the loss rose from {was:.3g} to {now:.3g}"
        return None

    @property
    def n_looks(self) -> int:
        """How often held-out rows are looked at, each time with other noise."""
        return HELD_OUT_DRAWS

    def work(self, n_rows: int) -> float:
        return self.passes * super().work(n_rows)
