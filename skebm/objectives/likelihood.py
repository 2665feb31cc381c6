"""The likelihood itself, where the model's states can be enumerated."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, Loss, Objective
from skebm.base.objective import weighted_mean
from skebm.energies import BernoulliRBM, Moments
from skebm.objectives.rbm_gradient import (
    Gradient,
    Offsets,
    Regulariser,
    center,
    runaway,
    write_gradient,
)


class LikelihoodState(NamedTuple):
    """Running offsets, or None without centring."""

    offsets: Offsets | None


class ExactLikelihood(Objective):
    r"""Negative log-likelihood of a Bernoulli RBM, log Z by enumeration of the cheaper layer.

    Value and gradient are exact: the mean free energy of the batch plus log Z.

    Parameters
    ----------
    energy : BernoulliRBM
    centered : bool, default=False
        Precondition the gradient by centring. Off for line-search optimizers, which need the
        gradient of the value.
    offset_rate : float in [0, 1], default=0.01
        Rate of the offsets' moving averages, per batch.
    regulariser : Regulariser
        Penalties.

    References
    ----------
    Tomczak (2022), "Deep Generative Modeling", eq. 6.41.
    """

    energy: BernoulliRBM

    def __init__(
        self,
        energy: BernoulliRBM,
        *,
        centered: bool = False,
        offset_rate: float = 0.01,
        regulariser: Regulariser = Regulariser(),  # noqa: B008 - frozen
    ):
        super().__init__()
        self.energy, self.centered, self.offset_rate = energy, centered, offset_rate
        self.regulariser = regulariser
        self._seen: tuple[list[Tensor], Moments] | None = None

    def work(self, n_rows: int) -> float:
        """Multiplications of a step: enumeration dwarfs the rows."""
        smaller = min(self.energy.weight.shape)
        return super().work(n_rows) + self.energy.enumeration_cost() * smaller

    def _moments(self) -> Moments:
        """Moments at the present weights; looking twice at the same weights costs nothing."""
        weights = [p.detach() for p in self.energy.parameters()]
        if self._seen is None or not all(map(torch.equal, self._seen[0], weights)):
            self._seen = [w.clone() for w in weights], self.energy.moments()
        return self._seen[1]

    def start(self, batch: Batch, generator: torch.Generator) -> LikelihoodState:
        """Offsets at the means of the rows."""
        with torch.no_grad():
            return LikelihoodState(Offsets.of(self.energy, batch) if self.centered else None)

    def _value(self, batch: Batch, model: Moments) -> Tensor:
        share = _share(batch)
        value = (share @ self.energy(batch.x)).double() + share.sum() * model.log_z
        return value + self.regulariser.value(self.energy, batch.x, share)

    def forward(self, batch: Batch, state: LikelihoodState, generator: torch.Generator) -> Loss:
        """Weighted mean of F(x) + log Z, plus the penalties."""
        return Loss(self._value(batch, self.energy.moments()), state)

    def gradients(self, batch: Batch, state: LikelihoodState, generator: torch.Generator) -> Loss:
        """Write the gradient in closed form; the value comes with it."""
        energy, x, share = self.energy, batch.x, _share(batch)
        model, total = self._moments(), share.sum()
        h = energy.hidden(x).mean
        offsets = state.offsets
        if offsets is not None:
            offsets = offsets.drift(x, h, share, self.offset_rate)
        weight = total * model.hx - (h * share[:, None]).t() @ x
        visible, hidden = total * model.x - share @ x, total * model.h - share @ h
        penalty = self.regulariser.gradient(energy, x, h, share)
        gradient = center(Gradient(weight, visible, hidden), offsets)
        write_gradient(energy, gradient, penalty, offsets)
        return Loss(self._value(batch, model), LikelihoodState(offsets))

    def pack(self, state: LikelihoodState | None) -> dict[str, Tensor | None]:
        """Offsets."""
        offsets = state.offsets if state else None
        return {
            "visible_offset": offsets.visible if offsets else None,
            "hidden_offset": offsets.hidden if offsets else None,
        }

    def unpack(self, packed: dict[str, Tensor | None]) -> LikelihoodState | None:
        """Rebuild the state; None, to start anew, without offsets or without centring."""
        mu, lam = packed["visible_offset"], packed["hidden_offset"]
        if mu is None or lam is None or not self.centered:
            return None
        return LikelihoodState(Offsets(mu, lam))

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: LikelihoodState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the batch plus penalties, and the largest weight."""
        loss = weighted_mean(self.energy(batch.x) + self._moments().log_z, batch.weight)
        loss = loss + self.regulariser.value(self.energy, batch.x, _share(batch))
        return {"loss": loss, "largest_weight": self.energy.weight.abs().max()}

    @torch.no_grad()
    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log-likelihood, exact."""
        return weighted_mean(self.energy(batch.x), batch.weight) + self._moments().log_z

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Judge by the likelihood, the largest weight and the size of a step."""
        why = runaway(logs, before, n_rows, self.energy.domain, "loss")
        return why or super().diverged(logs)


def _share(batch: Batch) -> Tensor:
    """Weight of each row in the batch's mean, (n,)."""
    n = len(batch.x)
    if batch.weight is None:
        return torch.full((n,), 1.0 / n, dtype=batch.x.dtype, device=batch.x.device)
    return batch.weight / n
