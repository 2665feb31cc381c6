"""Exact maximum likelihood for models whose states can be enumerated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, BipartiteEnergy, Centering, Energy, Loss, Objective, Offsets, Penalty
from skebm.base.objective import fill_missing, penalty_of, weighted_mean, why_diverged
from skebm.energies import BernoulliRBM, Moments
from skebm.energies.rbm.gradient import Gradient

# Numbers of a block of states: 16 MB of float32.
CHUNK = 4_000_000


class LikelihoodState(NamedTuple):
    """Running offsets of the centred gradient; None without centring."""

    offsets: Offsets | None


def pack_offsets(state: LikelihoodState | None) -> dict[str, Tensor | None]:
    """The state as named tensors."""
    offsets = state.offsets if state else None
    return {
        "visible_offset": offsets.visible if offsets else None,
        "hidden_offset": offsets.hidden if offsets else None,
    }


def unpack_offsets(
    packed: dict[str, Tensor | None], centering: Centering | None
) -> LikelihoodState | None:
    """Inverse of `pack_offsets`; None, to start anew, without offsets or centring."""
    mu, lam = packed["visible_offset"], packed["hidden_offset"]
    if mu is None or lam is None or centering is None:
        return None
    return LikelihoodState(Offsets(mu, lam))


class CenteredLikelihood(Objective):
    """Objectives of an RBM without chains, whose gradient in closed form is centred."""

    energy: Any

    def _center(self, energy: Any, centering: Centering | None, penalty: Penalty | None) -> None:
        """Set the energy, the centring and the penalties on weights and hidden units."""
        for config in (centering, penalty):
            if config is not None:
                config.check()
        self.energy, self.centering, self.penalty = energy, centering, penalty
        self._gradient = energy.contrast_gradient(centering, penalty)

    def start(self, batch: Batch, generator: torch.Generator) -> LikelihoodState:
        """Offsets at the means of the rows."""
        with torch.no_grad():
            return LikelihoodState(self._gradient.start(batch.x, batch.weight))

    def _penalty(self, batch: Batch) -> Tensor | float:
        if self.penalty is None:
            return 0.0
        energy = self.energy
        return self.penalty.value(energy.weight, energy.hidden(batch.x).mean, share_of(batch))

    def pack(self, state: LikelihoodState | None) -> dict[str, Tensor | None]:
        """Offsets."""
        return pack_offsets(state)

    def unpack(self, packed: dict[str, Tensor | None]) -> LikelihoodState | None:
        """Rebuild the state; None, to start anew, if there are no offsets or no centring."""
        return unpack_offsets(packed, self.centering)


class ExactLikelihood(CenteredLikelihood):
    r"""Negative log-likelihood of a Bernoulli RBM, with log Z by enumeration of the smaller layer.

    The value, the mean free energy of the batch plus log Z, and its gradient are exact.

    Parameters
    ----------
    energy : BernoulliRBM
    centering : Centering or None, default=None
        Centred and preconditioned gradient. Use None with line-search optimizers, which need the
        exact gradient of the value.
    penalty : Penalty or None, default=None
        Penalties on weights and hidden units.

    References
    ----------
    Tomczak (2022), "Deep Generative Modeling", eq. 6.41.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.objectives import ExactLikelihood
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(3, 2, generator=generator, scale=0.0)
    >>> round(ExactLikelihood(energy)(Batch(torch.eye(3)), None, generator).value.item(), 4)
    2.0794
    """

    energy: BernoulliRBM

    def __init__(
        self,
        energy: BernoulliRBM,
        *,
        centering: Centering | None = None,
        penalty: Penalty | None = None,
    ):
        super().__init__()
        self._center(energy, centering, penalty)
        self._seen: tuple[list[Tensor], Moments] | None = None

    def work(self, n_rows: int) -> float:
        """Multiplications of a step, which enumeration dominates."""
        smaller = min(self.energy.weight.shape)
        return super().work(n_rows) + self.energy.enumeration_cost() * smaller

    def _moments(self) -> Moments:
        """Moments at the current weights, cached until the weights change."""
        weights = [p.detach() for p in self.energy.parameters()]
        if self._seen is None or not all(map(torch.equal, self._seen[0], weights)):
            self._seen = [w.clone() for w in weights], self.energy.moments()
        return self._seen[1]

    def _value(self, batch: Batch, model: Moments) -> Tensor:
        share = share_of(batch)
        value = (share @ self.energy(batch.x)).double() + share.sum() * model.log_z
        return value + self._penalty(batch)

    def forward(self, batch: Batch, state: LikelihoodState, generator: torch.Generator) -> Loss:
        """Weighted mean of F(x) + log Z, plus the penalties."""
        return Loss(self._value(batch, self.energy.moments()), state)

    def gradients(self, batch: Batch, state: LikelihoodState, generator: torch.Generator) -> Loss:
        """Write the gradient in closed form, and return the loss."""
        energy, x, share = self.energy, batch.x, share_of(batch)
        model, total = self._moments(), share.sum()
        h = energy.hidden(x).mean
        weight = total * model.hx - (h * share[:, None]).t() @ x
        visible, hidden = total * model.x - share @ x, total * model.h - share @ h
        gradient = Gradient(weight, visible, hidden)
        offsets = self._gradient.write_plain(gradient, x, h, share, state.offsets)
        return Loss(self._value(batch, model), LikelihoodState(offsets))

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: LikelihoodState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the batch plus penalties, and the largest weight."""
        loss = weighted_mean(self.energy(batch.x) + self._moments().log_z, batch.weight)
        loss = loss + self._penalty(batch)
        return {"loss": loss, "largest_weight": self.energy.weight.abs().max()}

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Exact mean negative log-likelihood."""
        return weighted_mean(self.energy(batch.x), batch.weight) + self._moments().log_z

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Check for non-finite values, then apply `skebm.base.objective.why_diverged`."""
        reason = super().divergence_reason(logs, before, n_rows)
        return reason or why_diverged(logs, before, n_rows, self.energy.domain)


class EnumeratedLikelihood(Objective):
    r"""Negative log-likelihood of any energy on few states, with log Z by a sum over all of them.

    .. math:: \mathbb E_{data}\, E(x) + \log \sum_{x'} e^{-E(x')}

    Value and gradient are exact. The sum runs over blocks of states, in the precision of the
    energy; if the energy has a hidden layer with fewer states, it runs over these. The objective is
    convex in parameters in which the energy is linear.

    Parameters
    ----------
    energy : Energy
        Energy on bits, one-hot columns, or both, with few enough states.
    l1, l2 : float, default=0
        Penalties :math:`\lambda_1 \sum |w| + \lambda_2 \sum w^2 / 2` on ``energy.weight``.

    References
    ----------
    Ackley, Hinton and Sejnowski (1985), "A learning algorithm for Boltzmann machines", Cognitive
    Science 9.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.energies import ising_grid
    >>> from skebm.objectives import EnumeratedLikelihood
    >>> batch, generator = Batch(torch.ones(1, 9)), torch.Generator()
    >>> loss = EnumeratedLikelihood(ising_grid(3, 3, 0.0))(batch, None, generator).value
    >>> round(loss.item(), 4)  # 9 log 2
    6.2383
    """

    def __init__(self, energy: Energy, *, l1: float = 0.0, l2: float = 0.0):
        super().__init__()
        self.energy, self.l1, self.l2 = energy, l1, l2
        self._domain, self._width, self._of_hidden = energy.domain, energy.domain.n_columns, False
        if isinstance(energy, BipartiteEnergy):
            layer = energy.hidden_domain
            self._width = max(self._width, layer.n_columns)
            # Sums over rows of a tree are in the precision of the tree, whatever the energy's is.
            plain = getattr(energy, "structure", None) is None
            self._of_hidden = plain and layer.log_n_states < energy.domain.log_n_states
            self._domain = layer if self._of_hidden else energy.domain

    def work(self, n_rows: int) -> float:
        """Multiplications of a step, which the enumeration dominates."""
        return super().work(n_rows) + self._domain.n_states * self._width

    def _states(self) -> Iterator[Tensor]:
        like = next(self.energy.parameters())
        chunk = max(1, CHUNK // self._width)
        return self._domain.enumerate(chunk, dtype=like.dtype, device=like.device)

    def _energy_of(self, states: Tensor) -> Tensor:
        """Energies of rows, or of hidden layers with the rows summed out."""
        energy: Any = self.energy
        value: Tensor = energy.hidden_energy(states) if self._of_hidden else energy(states)
        return value

    @torch.no_grad()
    def _log_z(self) -> Tensor:
        parts = [(-self._energy_of(states)).double().logsumexp(0) for states in self._states()]
        return torch.stack(parts).logsumexp(0)

    def _data_term(self, batch: Batch) -> Tensor:
        return share_of(batch) @ self.energy(batch.x)

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Weighted mean of E(x), plus log Z and the penalties; the states are kept for backward."""
        parts = [(-self._energy_of(states)).logsumexp(0) for states in self._states()]
        log_z = torch.stack(parts).logsumexp(0)
        share = share_of(batch).sum()
        return Loss(
            self._data_term(batch) + share * log_z + penalty_of(self.energy, self.l1, self.l2),
            state,
        )

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write the gradient, accumulated over blocks of states, and return the loss."""
        trained, log_z, share = self.clear_gradients(), self._log_z(), share_of(batch).sum()
        with torch.enable_grad():
            value = self._data_term(batch) + penalty_of(self.energy, self.l1, self.l2)
            value.backward()
            for states in self._states():
                energy = self._energy_of(states)
                p = torch.exp(-energy.detach() - log_z.to(energy)) * share
                (-(p @ energy)).backward()
        fill_missing(trained)
        return Loss(value.detach().double() + share * log_z, state)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the batch, plus the penalties."""
        return {
            "loss": self.validation_loss(batch, state, generator)
            + penalty_of(self.energy, self.l1, self.l2)
        }

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Exact mean negative log-likelihood."""
        return weighted_mean(self.energy(batch.x), batch.weight) + self._log_z()


def share_of(batch: Batch) -> Tensor:
    """Weight of each row in the batch mean, (n,)."""
    n = len(batch.x)
    if batch.weight is None:
        return torch.full((n,), 1.0 / n, dtype=batch.x.dtype, device=batch.x.device)
    return batch.weight / n
