"""Contrastive objectives: push energy down at the data and up at samples of the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, ChainState, Loss, Objective, Sampler
from skebm.base.objective import weighted_mean
from skebm.base.state import leaves
from skebm.distributions import Distribution
from skebm.energies import BernoulliRBM
from skebm.energies.bipartite import Bernoulli
from skebm.objectives._phases import resumed, signs
from skebm.objectives.pseudo_likelihood import pseudo_log_likelihood
from skebm.objectives.rbm_gradient import (
    Offsets,
    Regulariser,
    runaway,
    signed_products,
    write_gradient,
)
from skebm.objectives.walkers import Walkers
from skebm.samplers import Gibbs

# Share of a fair coin in the first offsets: a column that is constant in the first rows of a stream
# may wake up, and a variance next to zero would send it far away.
START_SHRINKAGE = 0.01


class ContrastiveState(NamedTuple):
    """Chains of the negative phase (None where they restart at the data), offsets, weights."""

    chain: ChainState | None
    offsets: Offsets | None
    walkers: Walkers | None = None


class ContrastiveDivergence(Objective):
    r"""Contrastive divergence of a Bernoulli RBM, restarted at the data (CD) or persistent (PCD).

    The likelihood's gradient is the mean of :math:`-\nabla F` over the data minus its mean over the
    model; the latter is taken over chains advanced by `n_steps` of the sampler. Hidden means, not
    samples, enter both phases. The estimate is biased: k-step CD by the distance of k steps from
    the data to the model, PCD by how far the chains lag behind the parameters.

    Parameters
    ----------
    energy : BernoulliRBM
    sampler : Sampler
        Kernel of the negative phase.
    start_from : Distribution
        Where persistent chains start.
    n_steps : int, default=1
        Sampler steps for each batch, k.
    n_chains : int, default=100
        Number of persistent chains; unused by CD, whose chains are the rows of the batch.
    persistent : bool, default=True
        PCD if true, CD otherwise.
    centered : bool, default=True
        Centre visible and hidden units (a preconditioner: same fixed points).
    offset_rate : float in [0, 1], default=0.01
        Rate of the offsets' moving averages, per batch.
    precondition : float, default=0
        Exponent of the units' variances that the centred gradient is divided by: 1 is a diagonal
        natural gradient, 1/2 the same with less of its noise at rare units.
    reweight : bool, default=False
        Weigh the persistent chains by Jarzynski's equality; see :class:`Walkers`. Not with a
        sampler whose chains exchange rows.
    regulariser : Regulariser
        Penalties.

    References
    ----------
    Hinton (2002), "Training products of experts by minimizing contrastive divergence".
    Tieleman (2008), "Training restricted Boltzmann machines using approximations to the likelihood
    gradient". Melchior, Fischer and Wiskott (2016), JMLR 17(99).
    """

    energy: BernoulliRBM

    def __init__(
        self,
        energy: BernoulliRBM,
        sampler: Sampler,
        start_from: Distribution,
        *,
        n_steps: int = 1,
        n_chains: int = 100,
        persistent: bool = True,
        centered: bool = True,
        offset_rate: float = 0.01,
        precondition: float = 0.0,
        reweight: bool = False,
        regulariser: Regulariser = Regulariser(),  # noqa: B008 - frozen
    ):
        super().__init__()
        sampler.check(energy)
        self.energy, self.sampler, self.start_from = energy, sampler, start_from
        self.n_steps, self.n_chains, self.persistent = n_steps, n_chains, persistent
        self.centered, self.offset_rate = centered, offset_rate
        self.precondition, self.reweight = precondition, reweight
        self.regulariser = regulariser
        if precondition and not centered:
            raise ValueError("precondition takes the variances from the offsets: centre as well.")
        if not persistent and sampler.kernel is not sampler:
            raise ValueError(f"{sampler} is not exact from rows alone, where CD restarts it.")
        if not persistent and sampler.adapts:
            raise ValueError(
                f"{sampler} tunes itself while its chains go on, and CD restarts them at every "
                "batch. Pass a step_size with adapt=False, or go on with the chains (PCD)."
            )
        if reweight and not (persistent and isinstance(sampler, Gibbs)):
            raise ValueError(
                "reweight follows persistent chains that keep to themselves: pass persistent=True "
                "and a Gibbs sampler."
            )

    def start(self, batch: Batch, generator: torch.Generator) -> ContrastiveState:
        """Chains drawn from the starting distribution, offsets near the means of the rows."""
        chain, walkers = None, None
        with torch.no_grad():
            if self.persistent:
                rows = self.start_from.sample(self.n_chains, generator)
                if not self.reweight:
                    chain = self.sampler.init(self.energy, rows)
                else:
                    chain, walkers = Walkers.start(
                        self.energy, rows, self.start_from, self.sampler, generator
                    )
            offsets = Offsets.of(self.energy, batch) if self.centered else None
            if offsets is not None and self.precondition:
                cautious = offsets.visible * (1 - START_SHRINKAGE) + START_SHRINKAGE / 2
                offsets = offsets._replace(visible=cautious)
        return ContrastiveState(chain, offsets, walkers)

    def _negatives(
        self, energy: BernoulliRBM, x: Tensor, state: ContrastiveState, generator: Any
    ) -> tuple[ChainState, Walkers | None]:
        """Advance the chains by `n_steps`."""
        chain, walkers, step = state.chain, state.walkers, self.sampler.step
        if chain is None:
            # Blocks may start from means of bits; what flips one bit needs bits.
            between = self.sampler.accepts_relaxed_rows
            rows = x if between else torch.bernoulli(x, generator=generator)
            chain = self.sampler.init(energy, rows)
        else:
            chain = self.sampler.refresh(energy, chain)  # the parameters have moved
        if walkers is not None:
            chain, walkers = walkers.follow(energy, chain, generator)
        for _ in range(self.n_steps):
            chain, _ = step(energy, chain, generator)
        return chain, None if walkers is None else walkers.moved(energy, chain)

    def forward(self, batch: Batch, state: ContrastiveState, generator: torch.Generator) -> Loss:
        """Mean free energy of the data minus that of the chains, whose gradient is CD's."""
        with torch.no_grad():
            chain, walkers = self._negatives(self.energy, batch.x, state, generator)
        sign, share = signs(batch, chain.x, self.persistent, walkers)
        gap = -(sign @ self.energy(torch.cat([batch.x, chain.x])))
        value = gap + self.regulariser.value(self.energy, batch.x, share)
        state = ContrastiveState(chain, state.offsets, walkers)
        return Loss(value, state, {"energy_gap": gap.detach()})

    def gradients(self, batch: Batch, state: ContrastiveState, generator: torch.Generator) -> Loss:
        """Write the (centred) gradient from one matrix product over data and chains together."""
        energy, x, offsets = self.energy, batch.x, state.offsets
        chain, walkers = self._negatives(energy, x, state, generator)
        n = x.shape[0]
        rows = torch.cat([x, chain.x])  # (n + m, d)
        h = energy.hidden(rows).mean  # (n + m, H)
        h_data = h[:n]
        sign, share = signs(batch, chain.x, self.persistent, walkers)
        penalty = self.regulariser.gradient(energy, x, h_data, share)
        kept = self._kept(chain, h[n:], walkers, generator)
        if offsets is not None:
            offsets = offsets.drift(x, h_data, share, self.offset_rate)
        gradient = signed_products(sign, rows, h, offsets)  # overwrites rows and h
        write_gradient(energy, gradient, penalty, offsets, self.precondition)
        return Loss(None, ContrastiveState(kept, offsets, walkers))

    def _kept(
        self, chain: ChainState, h: Tensor, walkers: Walkers | None, generator: torch.Generator
    ) -> ChainState | None:
        """Chains for the next batch; the hidden layer of a Gibbs step is drawn from means at hand.

        Not for reweighted ones, whose next step starts under the new parameters.
        """
        if not self.persistent:
            return None
        if walkers is not None or type(self.sampler) is not Gibbs:
            return chain
        return ChainState(chain.x, aux=Bernoulli(h).sample(generator))

    def pack(self, state: ContrastiveState | None) -> dict[str, Tensor | None]:
        """Chains with what the sampler keeps beside them, offsets, weights."""
        chain, offsets, walkers = state or (None, None, None)
        return {
            "chain": chain.x if chain else None,
            "visible_offset": offsets.visible if offsets else None,
            "hidden_offset": offsets.hidden if offsets else None,
            "log_weight": walkers.log_weight if walkers else None,
            "log_z": walkers.log_z if walkers else None,
            "chain_energy": walkers.energy if walkers else None,
            **{f"aux_{i}": part for i, part in enumerate(leaves(chain.aux if chain else None))},
        }

    def unpack(self, packed: dict[str, Tensor | None]) -> ContrastiveState | None:
        """Rebuild the state; None, to start anew, where it is not one of this objective."""
        x, mu, lam = packed["chain"], packed["visible_offset"], packed["hidden_offset"]
        log_weight, log_z, level = (packed[k] for k in ("log_weight", "log_z", "chain_energy"))
        n_chains = 0 if x is None else len(x)
        if n_chains != self.n_chains * self.persistent or (mu is None) == self.centered:
            return None
        if (log_weight is None) == self.reweight:
            return None
        kept = [part for name, part in packed.items() if name.startswith("aux_")]
        chain = None if x is None else self._resumed(x, kept)
        offsets = None if mu is None or lam is None else Offsets(mu, lam)
        if log_weight is None or log_z is None or level is None:
            return ContrastiveState(chain, offsets)
        return ContrastiveState(chain, offsets, Walkers(log_weight, log_z, level))

    def _resumed(self, x: Tensor, kept: list[Any]) -> ChainState:
        """Chains at x with what was kept beside them, where that is of this sampler."""
        if type(self.sampler) is Gibbs:  # whose chains may or may not bring a hidden layer
            fresh = self.sampler.init(self.energy, x)
            layer = (len(x), len(self.energy.hidden_bias))
            fits = [part.shape for part in kept] == [layer]
            return fresh._replace(aux=kept[0]) if fits else fresh
        return resumed(self.sampler, self.energy, x, kept)

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: ContrastiveState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Energy gap, squared reconstruction error, largest weight."""
        energy, x = self.energy, batch.x
        chain = state.chain or self._negatives(energy, x, state, generator)[0]
        level = energy(torch.cat([x, chain.x]))
        # Chains that started at the data weigh what their row does.
        share = None if self.persistent else batch.weight
        logs = {}
        data = weighted_mean(level[: len(x)], batch.weight)
        if state.walkers is not None:
            share = state.walkers.share.to(level.dtype)
            logs["log_partition"] = state.walkers.log_partition(energy, chain.x)
            logs["log_likelihood"] = -data - logs["log_partition"]
        gap = data - weighted_mean(level[len(x) :], share)
        error = (x - energy.visible(energy.hidden(x).mean).mean).square().mean(1)
        error = weighted_mean(error, batch.weight)
        return {
            "loss": gap,
            "energy_gap": gap,
            "reconstruction_error": error,
            "largest_weight": energy.weight.abs().max(),
            **logs,
        }

    @torch.no_grad()
    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean pseudo-log-likelihood; minus the log-likelihood by reweighted chains.

        The first is exact, the second too low on average, as log Z is.
        """
        if state is not None and state.walkers is not None:
            log_z = state.walkers.log_partition(self.energy, state.chain.x)
            return weighted_mean(self.energy(batch.x), batch.weight) + log_z
        return -weighted_mean(pseudo_log_likelihood(self.energy, batch.x), batch.weight)

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Judge by the energy gap, the largest weight and the size of a step."""
        why = runaway(logs, before, n_rows, self.energy.domain, "energy_gap")
        return why or super().diverged(logs)
