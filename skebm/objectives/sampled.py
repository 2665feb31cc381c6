"""Maximum likelihood of any energy, with samples of the model for what cannot be summed over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, ChainState, Energy, Loss, Objective, Real, Sampler, sampling
from skebm.base.objective import weighted_mean, weighted_variance
from skebm.distributions._fitting import draw_index
from skebm.objectives._phases import signs
from skebm.objectives._sampled_checks import check_parts
from skebm.objectives._sampled_state import SampledState, halved, packed, unpacked, walked
from skebm.objectives.monitor import LogPartitionMonitor, gains, why_diverged
from skebm.objectives.refinement import Refinement
from skebm.objectives.walkers import Walkers
from skebm.samplers import ChainPolicy, FromData, Persistent
from skebm.samplers._moves import accepts, by_row, standard_normal

# Noisy copies by which held-out rows are judged.
N_COPIES = 16
# Steps by which a sampler tunes itself before training.
WARM_UP = 50
# Draws of the base for each chain that starts anew under a model that has moved away from it.
N_PROPOSALS = 20


class SampledLikelihood(Objective):
    r"""Maximum likelihood with sampled negatives: contrastive divergence of any energy.

    .. math:: \nabla_\theta \bigl(-\mathbb E_{data} \log p(x)\bigr)
        = \mathbb E_{data} \nabla_\theta E(x) - \mathbb E_{p} \nabla_\theta E(x)

    with the second mean taken over chains that `n_steps` of the sampler have moved. Unbiased where
    chains are draws of the model: those that started as such, and reweighted ones up to their
    number. Else biased by what the steps have not undone of where the chains came from: the rows of
    the batch, noise, or the model as it was some batches ago.

    Parameters
    ----------
    energy : Energy
    sampler : Sampler
        Kernel of the negative phase.
    chains : ChainPolicy
        Where chains start: :class:`~skebm.samplers.FromData`, ``FromNoise``, ``Persistent`` or
        ``ReplayBuffer``.
    n_steps : int, default=10
        Sampler steps for each batch, k.
    n_independence_steps : int, default=1
        How often chains are offered a draw of the energy's base, before the steps [3]_.
    noise : Tensor of shape (d,) or None, default=None
        Standard deviation of normal noise added to real rows of the data, in units of x.
    anneal : tuple of (float, int), default=(1.0, 0)
        Factor of the noise at first, and number of batches over which it falls to 1 geometrically.
    energy_l2 : float, default=0
        :math:`\alpha` of the penalty :math:`\alpha\, \mathbb E[f(x)^2]` over data and chains [2]_,
        f the part of the energy that is trained.
    clip_norm : float or None, default=None
        Largest norm of the gradient of all parameters together.
    refinement : Refinement or None, default=None
        Terms of improved contrastive divergence.
    augmentation : callable or None, default=None
        ``augmentation(rows, generator)``, applied to rows on which chains start.
    reweight : bool, default=False
        Weigh persistent chains by Jarzynski's equality; see :class:`Walkers`. For samplers that
        accept or reject.

    References
    ----------
    .. [1] Hinton (2002), "Training products of experts by minimizing contrastive divergence",
       Neural Computation 14(8), equation 5. Tieleman (2008), ICML (persistent chains).
    .. [2] Du and Mordatch (2019), "Implicit generation and modeling with energy based models",
       NeurIPS, section 3.
    .. [3] Tierney (1994), "Markov chains for exploring posterior distributions", Annals of
       Statistics 22(4), section 2.3.3 (independence chains). Gabrie, Rotskoff and Vanden-Eijnden
       (2022), "Adaptive Monte Carlo augmented with normalizing flows", PNAS 119(10).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import SampledLikelihood
    >>> from skebm.samplers import MALA, FromData
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = MLP((16,)).build(Spec((2,), generator))
    >>> energy = NeuralEnergy(network, Real((2,)), Gaussian(torch.zeros(2), 1.0))
    >>> objective = SampledLikelihood(energy, MALA(0.5), FromData())
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
        n_steps: int = 10,
        n_independence_steps: int = 1,
        noise: Tensor | None = None,
        anneal: tuple[float, int] = (1.0, 0),
        energy_l2: float = 0.0,
        clip_norm: float | None = None,
        refinement: Refinement | None = None,
        augmentation: Any = None,
        reweight: bool = False,
    ):
        super().__init__()
        sampler.check(energy)
        self.energy, self.sampler, self.chains = energy, sampler, chains
        self.n_steps, self.n_independence_steps, self.energy_l2 = (
            n_steps,
            n_independence_steps,
            energy_l2,
        )
        self.anneal = anneal
        self.clip_norm, self.refinement, self.reweight = clip_norm, refinement, reweight
        self.augmentation = augmentation
        self.noise: Tensor | None
        self.register_buffer("noise", noise, persistent=False)
        self.persistent = isinstance(chains, Persistent)
        check_parts(self)
        self._kernels = {0: sampler}
        self._log_partition_monitor = LogPartitionMonitor.of(energy)

    # ---------------------------------------------------------------- chains

    def start(self, batch: Batch, generator: torch.Generator) -> SampledState:
        """Pool of the policy; persistent chains."""
        return self._started(batch.x, generator, 0, 0)

    def _started(
        self, x: Tensor, generator: torch.Generator, n_batches: int, halvings: int
    ) -> SampledState:
        with torch.no_grad(), sampling(self.energy):
            pool: Any = self.chains.start(self.energy, x, generator)
            if halvings and pool is not None:
                pool = self._likely(pool, generator)
            kernel, walkers = self.kernel(halvings), None
            if not self.persistent:
                chain = self._tuned(kernel, x, generator) if kernel.adapts else None
                return SampledState(pool, chain, None, 1.0, n_batches, halvings)
            if self.reweight:
                chain, walkers = Walkers.start(
                    self.energy, pool, self.chains.initial, kernel, generator
                )
            else:
                chain = kernel.init(self.energy, pool)
            if kernel.adapts:
                tuned = self._tuned(kernel, chain.x, generator)
                chain = kernel.refresh(self.energy, chain._replace(aux=tuned.aux))
        return SampledState(None, chain, walkers, 1.0, n_batches, halvings)

    def _likely(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """As many draws of the base, resampled by how much more likely the model finds them."""
        base: Any = getattr(self.energy, "base", None)
        if base is None:
            return rows
        draws = base.sample(N_PROPOSALS * len(rows), generator).to(rows)
        weight = (-self.energy.correction(draws)).double().softmax(0)
        if not weight.isfinite().all():
            return rows
        u = torch.rand(len(rows), generator=generator, dtype=weight.dtype, device=weight.device)
        return draws[draw_index(weight, u)]

    def _tuned(self, kernel: Sampler, x: Tensor, generator: torch.Generator) -> ChainState:
        """Chains that have found a step: its first tries say nothing of the training."""
        chain = kernel.init(self.energy, x)
        for _ in range(WARM_UP):
            chain, _ = kernel.step(self.energy, chain, generator)
        return chain

    def kernel(self, halvings: int) -> Sampler:
        """The sampler, its step halved so many times; of the same temperature."""
        if halvings not in self._kernels:
            self._kernels[halvings] = halved(self.sampler, halvings)
        return self._kernels[halvings]

    def _negatives(self, x: Tensor, state: SampledState, generator: torch.Generator) -> Any:
        """The state after the chains have moved by `n_steps`."""
        energy, kernel = self.energy, self.kernel(state.halvings)
        pool, place, walkers = state.pool, None, state.walkers
        if self.persistent:
            chain: Any = state.chain
            if walkers is not None:  # weighed where they stood, before anything moves them
                chain = kernel.refresh(energy, chain)
                chain, walkers = walkers.follow(energy, chain, generator)
            chain = kernel.refresh(energy, self._independence_steps(chain, generator))
        else:
            rows, place = self.chains.draw(energy, pool, x, generator)
            if self.augmentation is not None:
                rows = self.augmentation(rows, generator)
            chain = kernel.init(energy, self._independence_steps(ChainState(rows), generator).x)
            if kernel.adapts and state.chain is not None:
                chain = chain._replace(aux=state.chain.aux)
        chain, accepted = walked(kernel, energy, chain, self.n_steps, generator, state.n_batches)
        if walkers is not None:
            walkers = walkers.moved(energy, chain)
        if place is not None:
            pool = self.chains.keep(pool, place, chain.x)
        return SampledState(pool, chain, walkers, accepted, state.n_batches + 1, state.halvings)

    def _independence_steps(self, chain: Any, generator: torch.Generator) -> ChainState:
        """Chains that were offered draws of the base, by the Metropolis-Hastings rule.

        Between modes that no short steps connect; the better the nearer the base is to the model.
        """
        base: Any = getattr(self.energy, "base", None)
        if base is None or self.sampler.kernel is not self.sampler:  # replicas jump by themselves
            return chain
        for _ in range(self.n_independence_steps):
            draws = base.sample(len(chain.x), generator).to(chain.x)
            before, after = self.energy.correction(torch.cat([chain.x, draws])).chunk(2)
            taken = accepts(before - after, generator)
            chain = chain._replace(x=torch.where(by_row(taken, draws), draws, chain.x))
        return chain

    def _noisy(self, x: Tensor, n_batches: int, generator: torch.Generator) -> Tensor:
        """Rows of the data with the noise that is due."""
        if self.noise is None:
            return x
        factor, span = self.anneal
        left = max(0.0, 1 - n_batches / span) if span else 0.0
        return x + factor**left * self.noise * standard_normal(x, generator)

    # ---------------------------------------------------------------- the loss

    def forward(self, batch: Batch, state: SampledState, generator: torch.Generator) -> Loss:
        """Mean energy of the data minus that of the chains, with the penalties."""
        x, state = self.phases(batch, state, generator)
        chain: Any = state.chain
        f = self.energy.trained(torch.cat([x, chain.x]))
        value = self.contrast(f, batch, state)
        if self.refinement is not None:
            kernel = self.kernel(state.halvings)
            value = value + self.refinement.value(self.energy, kernel, chain, generator)
        return Loss(value, state)

    def phases(
        self, batch: Batch, state: SampledState, generator: torch.Generator
    ) -> tuple[Tensor, SampledState]:
        """Rows with their noise, and the state after the chains have moved."""
        with torch.no_grad(), sampling(self.energy):
            x = self._noisy(batch.x, state.n_batches, generator)
            state = self._negatives(x, state, generator)
        if not self._apart:
            state = state._replace(share=batch.weight)
        return x, state

    @property
    def _apart(self) -> bool:
        """Whether chains share the weight of a batch; else they weigh what their row does."""
        return not isinstance(self.chains, FromData)

    def contrast(self, f: Tensor, batch: Batch, state: SampledState) -> Tensor:
        """Mean of f over the rows minus that over the chains, f being of both, with its penalty."""
        chain: Any = state.chain
        sign, _ = signs(batch, chain.x, self._apart, state.walkers)
        value = -(sign @ f)
        if self.energy_l2:
            value = value + self.energy_l2 * (sign.abs() @ f.square())
        return value

    def gradients(self, batch: Batch, state: SampledState, generator: torch.Generator) -> Loss:
        """Write the gradient, clipped."""
        loss = super().gradients(batch, state, generator)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip_norm)
        return loss

    def work(self, n_rows: int) -> float:
        """Passes over the rows of both phases, and there and back at each step of the chains."""
        return (6 + 2 * (self.n_steps + 1)) * super().work(n_rows)

    # ---------------------------------------------------------------- watching

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: SampledState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Energy gap, acceptance, nats a row above the base; of the rows with their noise."""
        energy = self.energy
        with sampling(energy):
            x = self._noisy(batch.x, state.n_batches, generator)
            rows = x if state.chain is None else state.chain.x
            share = state.share
            if state.walkers is not None:
                share = state.walkers.share.to(x.dtype)
            level = energy(torch.cat([x, rows]))
            data, model = level[: len(x)], level[len(x) :]
            gap = weighted_mean(data, batch.weight) - weighted_mean(model, share)
            spread = weighted_variance(data, batch.weight).sqrt()
            logs = {"loss": gap, "energy_gap": gap, "energy_spread": spread}
            if state.chain is not None:
                logs["acceptance"] = torch.as_tensor(state.acceptance)
            if self._log_partition_monitor is not None:
                f = energy.correction(x)
                log_z, error = self._log_partition(state, generator)
                logs |= gains(f, log_z, error, batch.weight)
        return logs

    def _log_partition(
        self, state: SampledState, generator: torch.Generator
    ) -> tuple[Tensor, float]:
        """Estimate of log Z relative to the base with its error, in eval mode.

        Not that of reweighted chains: weights shrink where the parameters move because of the very
        chains that they belong to, and theirs falls behind.
        """
        assert self._log_partition_monitor is not None
        if state.chain is None or isinstance(self.chains, FromData):
            return self._log_partition_monitor.log_partition(self.energy, None)
        rows = state.chain.x
        if state.walkers is not None:
            rows = rows[state.walkers.drawn(generator)]
        return self._log_partition_monitor.log_partition(self.energy, rows)

    @torch.no_grad()
    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the nats a row above the base; without one, the energy gap.

        As good as the estimate of log Z: by draws of the base and the chains, a bridge.
        """
        n_copies = 1 if self.noise is None else N_COPIES
        looks = [self._noisy(batch.x, state.n_batches, generator) for _ in range(n_copies)]
        with sampling(self.energy):
            f = torch.stack([self.energy.correction(x) for x in looks]).mean(0)
            data = weighted_mean(f, batch.weight)
            if self._log_partition_monitor is not None:
                return data + self._log_partition(state, generator)[0]
            if state.chain is None:
                return data.new_zeros(())
            return data - self.energy.correction(state.chain.x).mean()

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Judge by the energy gap, the acceptance, the likelihood and the size of a step."""
        reason = super().diverged(logs, before, n_rows)
        # Of discrete rows hardly any change may be acceptable, and what tunes itself has tried all.
        steps = isinstance(self.energy.domain, Real) and not self.sampler.adapts
        rejects = self.sampler.exact and steps
        return reason or why_diverged(logs, before or {}, n_rows, rejects)

    def snapshot(self, state: SampledState) -> SampledState:
        """A copy of the buffer, which is written in place."""
        pool = state.pool
        return state if pool is None else state._replace(pool=pool.clone())

    def rolled_back(
        self, state: SampledState, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> SampledState:
        """The chains that were well, with half the step; new ones where that was tried before.

        These start at draws of the base that the model likes: those that it does not would teach it
        a lesson for the base. Weighed chains go on, as they are right anywhere.
        """
        halvings = state.halvings + 1
        if tries > 1 and state.walkers is None:
            return self._started(batch.x, generator, state.n_batches, halvings)
        chain = state.chain
        if chain is not None and not self.sampler.adapts:  # what tunes itself has a step of its own
            with torch.no_grad(), sampling(self.energy):
                chain = self.kernel(halvings).init(self.energy, chain.x)
        return state._replace(chain=chain, halvings=halvings)

    def advice(self, state: SampledState) -> str:
        """The sampler's step, where it was halved and does not find its own."""
        step = getattr(self.kernel(state.halvings), "step_size", None)
        if not state.halvings or step is None or self.sampler.adapts:
            return ""
        return f" and sampler__step_size to about {step:.2g}"

    # ---------------------------------------------------------------- storage

    def pack(self, state: SampledState | None) -> dict[str, Tensor | None]:
        """Pool, chains with what the sampler keeps beside them, weights, counts."""
        return {} if state is None else packed(state)

    def unpack(self, packed: dict[str, Tensor | None]) -> SampledState | None:
        """Rebuild the state; None, to start anew, where it is not one of this objective."""
        if (packed.get("log_weight") is not None) != self.reweight:
            return None
        if not self.chains.fits(packed.get("pool"), packed.get("chain")):
            return None
        if self.persistent:
            packed = packed | {"pool": None}
        return unpacked(packed, self.energy, self.kernel)
