"""Contrastive divergence: maximum likelihood with expectations estimated from model samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base import (
    Batch,
    BipartiteEnergy,
    Centering,
    ChainState,
    ContrastGradient,
    Energy,
    Loss,
    Objective,
    PairwiseEnergy,
    Penalty,
    Real,
    Sampler,
    sampling,
)
from skebm.base.objective import weighted_mean, weighted_variance, why_diverged
from skebm.base.processes import reduce_gradients
from skebm.energies import BernoulliRBM
from skebm.objectives.contrastive.fused import FusedPCD
from skebm.objectives.contrastive.negative_phase import (
    ContrastiveState,
    NegativePhase,
    over_ranks,
    pack_state,
)
from skebm.objectives.contrastive.refinement import Refinement
from skebm.objectives.local import pseudo_log_likelihood
from skebm.objectives.log_partition import LogPartitionMonitor, gains
from skebm.samplers import ChainPolicy
from skebm.samplers._moves import standard_normal

# Noisy copies of each held-out row over which its score is averaged.
N_COPIES = 16


class ContrastiveDivergence(Objective):
    r"""Contrastive divergence for any energy: maximum likelihood with sampled negatives.

    .. math:: \nabla_\theta \bigl(-\mathbb E_{data} \log p(x)\bigr)
        = \mathbb E_{data} \nabla_\theta E(x) - \mathbb E_{p} \nabla_\theta E(x)

    where the second expectation is estimated from Markov chains after a few steps of a sampler
    [1]_. The estimate is unbiased if the chains are distributed as the model, which holds if they
    start from its distribution; with reweighted chains it is consistent as their number grows.
    Otherwise it is biased towards the distribution that the chains started from: the rows of the
    batch (CD), noise, or an earlier version of the model (persistent chains, PCD [2]_).

    An energy may compute this gradient in closed form. Binary restricted Boltzmann machines do,
    from the conditional means of the hidden units, with optional centring, and their persistent
    chains keep the hidden layer for the next step. For other energies autograd computes it.

    Parameters
    ----------
    energy : Energy
    sampler : Sampler
        Transition kernel of the negative phase.
    chains : ChainPolicy
        Where chains start, how many steps they take, whether they are reweighted, and whether
        draws from the base are proposed to them [3]_: :class:`~skebm.samplers.FromData`,
        ``FromNoise``, ``Persistent`` or ``ReplayBuffer``.
    sigma : Tensor of shape (d,) or None, default=None
        Standard deviation of Gaussian noise added to real-valued training rows, in units of x.
    anneal : tuple of (float, int), default=(1.0, 0)
        Initial factor on the noise, and number of batches over which it decays geometrically to 1.
    energy_l2 : float, default=0
        :math:`\alpha` of the penalty :math:`\alpha\, \mathbb E[f(x)^2]` over data and chains [4]_,
        where f is the trained part of the energy.
    clip_norm : float or None, default=None
        Maximum norm of the gradient, over all parameters.
    refinement : Refinement or None, default=None
        Additional terms of improved contrastive divergence.
    centering : Centering or None, default=None
        Centred and preconditioned gradient; only for energies with a closed-form gradient.
    penalty : Penalty or None, default=None
        Penalties on weights and hidden units of bipartite energies, or on the couplings of a
        Boltzmann machine.
    judges_steps : bool, default=True
        Whether a step that changes energies by more than chains can follow counts as divergence. A
        likelihood suffers from such steps, features do not.

    Raises
    ------
    ValueError
        If the arguments are incompatible; the message says what to pass instead.

    See Also
    --------
    ExactLikelihood : The exact gradient, by enumeration.

    References
    ----------
    .. [1] Hinton (2002), "Training products of experts by minimizing contrastive divergence",
       Neural Computation 14(8), equation 5.
    .. [2] Tieleman (2008), "Training restricted Boltzmann machines using approximations to the
       likelihood gradient", ICML.
    .. [3] Tierney (1994), "Markov chains for exploring posterior distributions", Annals of
       Statistics 22(4), section 2.3.3 (independence chains). Gabrie, Rotskoff and Vanden-Eijnden
       (2022), "Adaptive Monte Carlo augmented with normalizing flows", PNAS 119(10).
    .. [4] Du and Mordatch (2019), "Implicit generation and modeling with energy based models",
       NeurIPS, section 3.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import ContrastiveDivergence
    >>> from skebm.samplers import MALA, FromData
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = MLP((16,)).build(Spec((2,), generator))
    >>> energy = NeuralEnergy(network, Real((2,)), Gaussian(torch.zeros(2), 1.0))
    >>> objective = ContrastiveDivergence(energy, MALA(0.5), FromData(n_steps=5))
    >>> batch = Batch(torch.randn(20, 2, generator=generator))
    >>> loss = objective(batch, objective.start(batch, generator), generator)
    >>> abs(loss.value.item())  # the network starts at zero
    0.0
    """

    def __init__(
        self,
        energy: Energy,
        sampler: Sampler,
        chains: ChainPolicy,
        *,
        sigma: Tensor | None = None,
        anneal: tuple[float, int] = (1.0, 0),
        energy_l2: float = 0.0,
        clip_norm: float | None = None,
        refinement: Refinement | None = None,
        centering: Centering | None = None,
        penalty: Penalty | None = None,
        judges_steps: bool = True,
    ):
        super().__init__()
        self.energy = energy
        self.negatives = NegativePhase(energy, sampler, chains)
        self.anneal, self.energy_l2, self.clip_norm = anneal, energy_l2, clip_norm
        self.refinement, self.centering, self.penalty = refinement, centering, penalty
        self.judges_steps = judges_steps
        self.sigma: Tensor | None
        self.register_buffer("sigma", sigma, persistent=False)
        self._adds_noise = sigma is not None
        self._check()
        self._own_gradient = self._gradient_of(energy)
        self._has_layers = isinstance(energy, BipartiteEnergy)
        # For these the pseudo-likelihood is exact and cheap, and draws from the base say little
        # about log Z.
        self._has_finite_layers = self._has_layers and math.isfinite(energy.domain.log_n_states)
        self._log_partition_monitor = (
            None if self._has_finite_layers else LogPartitionMonitor.of(energy)
        )

    def _check(self) -> None:
        """Raise `ValueError` for options that do not apply to the energy or the sampler."""
        energy = self.energy
        if self._adds_noise and not isinstance(energy.domain, Real):
            raise ValueError(f"Gaussian noise cannot be added on {energy.domain}: pass sigma=None.")
        if self.refinement is not None:
            self.refinement.check(energy, self.sampler)
        if self.centering is not None:
            self.centering.check()
        if self.penalty is not None:
            self.penalty.check()
            couplings = isinstance(energy, PairwiseEnergy) and self.penalty.sparsity_target is None
            if not isinstance(energy, BipartiteEnergy) and not couplings:
                raise ValueError(
                    f"{self.penalty} applies to weights and hidden units, which "
                    f"{type(energy).__name__} does not have: pass penalty=None."
                )

    def _gradient_of(self, energy: Energy) -> ContrastGradient | None:
        """The energy's closed-form gradient, if it has one and there are no other terms."""
        other_terms = bool(self.energy_l2) or self.refinement is not None
        own = None if other_terms else energy.contrast_gradient(self.centering, self.penalty)
        if own is None and self.centering is not None:
            why = (
                "energy_l2 and refinement have none"
                if other_terms
                else f"{type(energy).__name__} has none"
            )
            raise ValueError(
                f"Only a closed-form gradient can be centred, and {why}: pass centering=None."
            )
        return own

    @property
    def sampler(self) -> Sampler:
        """Transition kernel of the negative phase."""
        return self.negatives.sampler

    @property
    def chains(self) -> ChainPolicy:
        """Policy that says where chains start."""
        return self.negatives.chains

    @property
    def persistent(self) -> bool:
        """Whether chains continue from batch to batch."""
        return self.negatives.persistent

    def kernel(self, halvings: int) -> Sampler:
        """The sampler with its step size halved `halvings` times, at the same temperature."""
        return self.negatives.kernel(halvings)

    # ---------------------------------------------------------------- the loss

    def start(self, batch: Batch, generator: torch.Generator) -> ContrastiveState:
        """Initialise chains, pool and offsets before the first batch."""
        own = self._own_gradient
        with torch.no_grad(), sampling(self.energy):
            state = self.negatives.start(self.energy, batch.x, generator)
            offsets = None if own is None else own.start(batch.x, batch.weight)
        return state._replace(offsets=offsets)

    def forward(self, batch: Batch, state: ContrastiveState, generator: torch.Generator) -> Loss:
        """Mean energy of the data minus that of the chains, plus the penalties."""
        x, state = self.phases(batch, state, generator)
        chain: Any = state.chain
        f = self.energy.parametric_energy(torch.cat([x, chain.x]))
        value = self.contrast(f, batch, state)
        if self.penalty is not None:
            energy: Any = self.energy
            _, share = self.negatives.signs(batch, chain.x, None)
            h = energy.hidden(x).mean if self._has_layers else x[:, :0]
            value = value + self.penalty.value(energy.weight, h, share)
        if self.refinement is not None:
            kernel = self.kernel(state.halvings)
            value = value + self.refinement.value(self.energy, kernel, chain, generator)
        return Loss(value, state)

    def phases(
        self, batch: Batch, state: ContrastiveState, generator: torch.Generator
    ) -> tuple[Tensor, ContrastiveState]:
        """Noisy rows, and the state after the chains have moved."""
        with torch.no_grad(), sampling(self.energy):
            x = self._noisy(batch.x, state.n_batches, generator)
            return x, self.negatives.move(self.energy, x, batch.weight, state, generator)

    def contrast(self, f: Tensor, batch: Batch, state: ContrastiveState) -> Tensor:
        """Mean of f over the rows minus that over the chains, plus the penalty on f.

        `f` holds the values at the rows, then those at the chains.
        """
        chain: Any = state.chain
        sign, _ = self.negatives.signs(batch, chain.x, state.walkers)
        value = -(sign @ f)
        if self.energy_l2:
            value = value + self.energy_l2 * (sign.abs() @ f.square())
        return value

    def gradients(self, batch: Batch, state: ContrastiveState, generator: torch.Generator) -> Loss:
        """Write the clipped gradient: in closed form if the energy has one, else by autograd."""
        own = self._own_gradient
        if own is None:
            loss = super().gradients(batch, state, generator)
        else:
            loss = self._write_gradient(own, batch, state, generator)
        if self.clip_norm is not None:
            reduce_gradients(loss.value)
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip_norm)
        return loss

    def fused_steps(
        self, state: ContrastiveState, n_batches: int, generator: torch.Generator
    ) -> FusedPCD | None:
        """Fused steps for PCD-1 of a binary RBM by block Gibbs sampling.

        None where they do not apply, as for an RBM with a base that is not a field.
        """
        energy = self.energy
        # Subclasses of either may have gradients of their own.
        if type(self) is not ContrastiveDivergence or type(energy) is not BernoulliRBM:
            return None
        applies = (
            energy.structure is None
            and self.negatives.takes_one_block_step
            and self._own_gradient is not None
            and self.penalty is None
            and not self._adds_noise
            and self.clip_norm is None
        )
        if not applies:
            return None
        return FusedPCD(energy, state, self.centering, n_batches, generator)

    def _write_gradient(
        self,
        own: ContrastGradient,
        batch: Batch,
        state: ContrastiveState,
        generator: torch.Generator,
    ) -> Loss:
        """Let the energy write its gradient; it may also draw the next step's hidden layer."""
        negatives = self.negatives
        x = self._noisy(batch.x, state.n_batches, generator)
        state = negatives.move(self.energy, x, batch.weight, state, generator)
        pool, chain, walkers, accepted, n_batches, halvings, weight, offsets = state
        assert chain is not None
        sign, share = negatives.signs(batch, chain.x, walkers)
        source = generator if negatives.draws_hidden else None
        offsets, layer = own.write(x, chain.x, sign, share, offsets, source)
        if layer is not None:
            chain = ChainState(chain.x, aux=layer)
        # Not _replace, which takes as long as a matrix product of a small RBM.
        return Loss(
            None,
            ContrastiveState(pool, chain, walkers, accepted, n_batches, halvings, weight, offsets),
        )

    def _noisy(self, x: Tensor, n_batches: int, generator: torch.Generator) -> Tensor:
        """Rows with noise at its current, annealed level."""
        if self.sigma is None:
            return x
        factor, span = self.anneal
        left = max(0.0, 1 - n_batches / span) if span else 0.0
        return x + factor**left * self.sigma * standard_normal(x, generator)

    def work(self, n_rows: int) -> float:
        """Forward and backward passes over both phases and at each step of the chains.

        Closed-form gradients are small matrix products, for which one thread is enough.
        """
        rows = super().work(n_rows)
        return rows if self._own_gradient else (6 + 2 * (self.negatives.n_steps + 1)) * rows

    # ---------------------------------------------------------------- monitoring

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: ContrastiveState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Energy gap between noisy rows and chains, acceptance rate and likelihood estimates.

        For bipartite energies, the largest weight and the mean squared reconstruction error are
        monitored as well.
        """
        energy = self.energy
        with sampling(energy):
            x = self._noisy(batch.x, state.n_batches, generator)
            rows = x if state.chain is None else state.chain.x
            share = batch.weight if state.chain is None else state.share
            if state.walkers is not None:
                share = state.walkers.share.to(x.dtype)
            level = energy(torch.cat([x, rows]))
            data, model = level[: len(x)], level[len(x) :]
            gap = weighted_mean(data, batch.weight) - weighted_mean(model, share)
            spread = weighted_variance(data, batch.weight).sqrt()
            logs = {"loss": gap, "energy_gap": gap, "energy_spread": spread}
            if state.chain is not None:
                logs["acceptance"] = torch.as_tensor(state.acceptance)
            if self.clean_monitor is not None:
                logs |= self.clean_monitor.gains(energy, batch.x, batch.weight)
            elif self._log_partition_monitor is not None:
                log_z, error = self._log_partition(state, generator)
                logs |= gains(energy.correction(x), log_z, error, batch.weight)
            elif state.walkers is not None:
                log_z = state.walkers.log_partition(energy, rows)
                likelihood = -weighted_mean(data, batch.weight) - log_z
                logs |= {"log_partition": log_z, "log_likelihood": likelihood}
            if self._has_layers:
                logs |= _of_layers(energy, x, batch.weight)
        return logs

    def _log_partition(
        self, state: ContrastiveState, generator: torch.Generator
    ) -> tuple[Tensor, float]:
        """Estimate of log Z relative to the base with its standard error, in eval mode.

        Reweighted chains are resampled first and their own estimate is not used: the parameters
        are updated to lower the probability of these very chains, so their weights shrink and the
        estimate falls behind.
        """
        assert self._log_partition_monitor is not None
        if state.chain is None or not self.negatives.weighs_equally:
            return self._log_partition_monitor.log_partition(self.energy, None)
        rows = state.chain.x
        if state.walkers is not None:
            rows = rows[state.walkers.indices_by_weight(generator)]
        return self._log_partition_monitor.log_partition(self.energy, rows)

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log-likelihood ratio to the base, with log Z from bridge sampling.

        For discrete models with a hidden layer it is minus the mean pseudo-log-likelihood, which
        is exact, or, with reweighted chains, minus the mean log-likelihood with their estimate of
        log Z, which is low on average. If there is no base to draw from, it is the energy gap.
        """
        energy = self.energy
        with sampling(energy):
            if self._has_finite_layers:
                return self._validation_loss_in_layers(batch, state)
            n_copies = N_COPIES if self._adds_noise else 1
            copies = [self._noisy(batch.x, state.n_batches, generator) for _ in range(n_copies)]
            f = torch.stack([energy.correction(x) for x in copies]).mean(0)
            data = weighted_mean(f, batch.weight)
            if self._log_partition_monitor is not None:
                return data + self._log_partition(state, generator)[0]
            if state.chain is None:
                return data.new_zeros(())
            return data - energy.correction(state.chain.x).mean()

    def _validation_loss_in_layers(self, batch: Batch, state: ContrastiveState | None) -> Tensor:
        if state is None or state.walkers is None:
            return -weighted_mean(pseudo_log_likelihood(self.energy, batch.x), batch.weight)
        assert state.chain is not None
        log_z = state.walkers.log_partition(self.energy, state.chain.x)
        return weighted_mean(self.energy(batch.x), batch.weight) + log_z

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Check for non-finite values, then apply `skebm.base.objective.why_diverged`."""
        domain, sampler = self.energy.domain, self.sampler
        # On discrete rows low acceptance can be legitimate, and adaptive samplers set their step.
        rejects = sampler.exact and isinstance(domain, Real) and not sampler.adapts
        reason = super().divergence_reason(logs, before, n_rows)
        if not self.judges_steps:
            logs = {name: value for name, value in logs.items() if name != "energy_change"}
        return reason or why_diverged(logs, before, n_rows, domain, rejects)

    # ---------------------------------------------------------------- state

    def snapshot(self, state: ContrastiveState) -> ContrastiveState:
        """State with a copy of the pool, which is updated in place."""
        pool = state.pool
        return state if pool is None else state._replace(pool=pool.clone())

    def state_after_roll_back(
        self, state: ContrastiveState, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> ContrastiveState:
        """Earlier chains with half the step size; new chains from the second attempt on."""
        with torch.no_grad(), sampling(self.energy):
            return self.negatives.state_after_roll_back(
                self.energy, state, batch.x, generator, tries
            )

    def state_with_draws(
        self,
        state: ContrastiveState,
        draws: Tensor,
        generator: torch.Generator,
        share: float = 0.5,
    ) -> ContrastiveState:
        """State in which a share of the persistent chains continue from draws of the model."""
        with torch.no_grad(), sampling(self.energy):
            return self.negatives.state_with_draws(self.energy, state, draws, generator, share)

    def over_ranks(
        self,
        state: ContrastiveState,
        rows: Callable[[Tensor], Tensor],
        mean: Callable[[Any], Any],
    ) -> ContrastiveState:
        """State whose chains, weights and buffer are divided among processes, or united."""
        return over_ranks(state, rows, mean)

    def advice(self, state: ContrastiveState) -> str:
        """Suggest the halved step size, unless the sampler adapts its own."""
        step = getattr(self.kernel(state.halvings), "step_size", None)
        if not state.halvings or step is None or self.sampler.adapts:
            return ""
        return f" and sampler__step_size to about {step:.2g}"

    def pack(self, state: ContrastiveState | None) -> dict[str, Tensor | None]:
        """Pool, chains with the sampler's auxiliary state, weights, offsets and counters."""
        return {} if state is None else pack_state(state)

    def unpack(self, packed: dict[str, Tensor | None]) -> ContrastiveState | None:
        """Rebuild the state; None, to start anew, if it does not belong to this objective."""
        if (packed.get("visible_offset") is None) != (self.centering is None):
            return None
        return self.negatives.unpack(packed, self.energy)


def _of_layers(energy: Any, x: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
    """Mean squared error of mean-field reconstructions, and the largest weight."""
    error = (x - energy.reconstruct(x)).square().mean(1)
    return {
        "reconstruction_error": weighted_mean(error, weight),
        "largest_weight": energy.weight.abs().max(),
    }
