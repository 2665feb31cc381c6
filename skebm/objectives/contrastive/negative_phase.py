"""Negative phase of contrastive divergence: how chains start, move and are stored."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import (
    Batch,
    Binary,
    BipartiteEnergy,
    ChainState,
    Energy,
    Offsets,
    Sampler,
    sampling,
)
from skebm.base.state import leaves, rebuilt
from skebm.distributions._fitting import draw_index
from skebm.objectives.contrastive.walkers import Walkers
from skebm.samplers import AnnealedLangevin, ChainPolicy, FromData, Gibbs, Persistent
from skebm.samplers._adaptation import Adaptation, DenseScale, StepSettings
from skebm.samplers._moves import accepts, by_row

# Adaptation steps before training.
WARM_UP = 50
# Draws of the base per chain, from which new chains are resampled after a divergence.
N_PROPOSALS = 20


class ContrastiveState(NamedTuple):
    """State of contrastive divergence between batches.

    Attributes
    ----------
    pool : Tensor or None
        Stored rows of a chain policy with a buffer.
    chain : ChainState or None
        Chains after the last batch, from which persistent ones continue.
    walkers : Walkers or None
        Weights of reweighted chains.
    acceptance : Tensor, scalar
        Mean acceptance rate in the last batch.
    n_batches : int
        Number of batches so far.
    halvings : int
        How often the sampler's step size was halved after a divergence.
    share : Tensor or None
        Weights of the data rows at which the chains started.
    offsets : Offsets or None
        Offsets of the units in a centred gradient.
    """

    pool: Tensor | None
    chain: ChainState | None
    walkers: Walkers | None = None
    acceptance: Any = 1.0
    n_batches: int = 0
    halvings: int = 0
    share: Tensor | None = None
    offsets: Offsets | None = None


class NegativePhase:
    """Negative phase: a chain policy and a sampler, as configuration without state.

    Parameters
    ----------
    energy : Energy
        Energy against which sampler and chains are checked; every call takes it as an argument.
    sampler : Sampler
    chains : ChainPolicy

    Attributes
    ----------
    n_steps, n_independence_steps : int
        Steps of the sampler and independence proposals per batch, as the policy sets them for this
        energy.
    persistent, reweight : bool
        Whether chains continue from batch to batch, and whether they are reweighted.
    weighs_equally : bool
        Whether all chains of the batch have the same weight; otherwise each has the weight of the
        row it started at.
    draws_hidden : bool
        Whether a step ends by drawing the hidden layer at which the next one starts. It is False
        for reweighted chains, whose next step has to start under the new parameters.
    """

    def __init__(self, energy: Energy, sampler: Sampler, chains: ChainPolicy):
        sampler.check(energy)
        self.sampler, self.chains = sampler, chains
        self.n_steps, self.n_independence_steps = chains.steps(energy, sampler)
        self.persistent = isinstance(chains, Persistent)
        self.reweight = isinstance(chains, Persistent) and chains.reweight
        self.weighs_equally = not isinstance(chains, FromData)
        layers = isinstance(energy, BipartiteEnergy)
        self.draws_hidden = (
            layers and type(sampler) is Gibbs and self.persistent and not self.reweight
        )
        # Rows of an RBM may be probabilities of bits. Block Gibbs sampling can start from them;
        # single-bit-flip samplers need bits.
        self._draws_bits = (
            layers
            and isinstance(energy.domain, Binary)
            and isinstance(chains, FromData)
            and not sampler.accepts_relaxed_rows
        )
        self._kernels = {0: sampler}
        self._check(energy)

    def _check(self, energy: Energy) -> None:
        """Raise `ValueError` if sampler, chain policy and energy are incompatible."""
        sampler, domain = self.sampler, energy.domain
        if isinstance(sampler, AnnealedLangevin):
            raise ValueError(
                f"{sampler} needs an energy with several noise levels, which this one does not "
                "have: use Langevin or MALA."
            )
        initial = getattr(self.chains, "initial", None)
        if initial is not None and (
            type(initial.domain) is not type(domain) or initial.domain.row_shape != domain.row_shape
        ):
            raise ValueError(
                f"The chains' initial distribution is on {initial.domain}, the energy on {domain}."
            )
        alone = sampler.kernel is sampler
        if self.reweight and not (sampler.exact and alone):
            raise ValueError(
                "reweight requires a sampler that leaves the model invariant, such as Gibbs or "
                f"MALA, got {sampler}."
            )
        if self.reweight and initial is None:
            raise ValueError(
                "reweight requires a density from which chains start: pass "
                "Persistent(initial=...) with the base of the energy."
            )
        if not self.persistent and not alone:
            raise ValueError(
                f"{sampler} keeps more than the current rows: use it with persistent chains."
            )

    @property
    def takes_one_block_step(self) -> bool:
        """Whether persistent chains take a step of plain block Gibbs sampling and nothing else."""
        collapsed = getattr(self.sampler, "n_collapsed", 0)
        alone = not collapsed and not self.n_independence_steps
        return self.draws_hidden and self.n_steps == 1 and alone

    def kernel(self, halvings: int) -> Sampler:
        """The sampler with its step size halved `halvings` times, at the same temperature."""
        if halvings not in self._kernels:
            self._kernels[halvings] = halve_step_size(self.sampler, halvings)
        return self._kernels[halvings]

    # ---------------------------------------------------------------- start

    def start(
        self, energy: Energy, x: Tensor, generator: torch.Generator, halvings: int = 0
    ) -> ContrastiveState:
        """Initialise pool and chains before a batch; expects eval mode without gradients.

        After a divergence, chains start from draws of the base resampled by their likelihood under
        the model: plain draws of the base would bias the model away from it.
        """
        pool: Any = self.chains.start(energy, x, generator)
        if halvings and pool is not None:
            pool = _resample_base(energy, pool, generator)
        kernel, walkers = self.kernel(halvings), None
        if not self.persistent:
            chain = _warm_up(kernel, energy, x, generator) if kernel.adapts else None
            return ContrastiveState(pool, chain, halvings=halvings)
        if self.reweight:
            initial = self.chains.initial
            chain, walkers = Walkers.start(energy, pool, initial, kernel, generator)
        else:
            chain = kernel.init(energy, pool)
        if kernel.adapts:
            aux = _warm_up(kernel, energy, chain.x, generator).aux
            chain = kernel.refresh(energy, chain._replace(aux=aux))
        return ContrastiveState(None, chain, walkers, halvings=halvings)

    # ---------------------------------------------------------------- a batch

    def move(
        self,
        energy: Energy,
        x: Tensor,
        weight: Tensor | None,
        state: ContrastiveState,
        generator: torch.Generator,
    ) -> ContrastiveState:
        """State after the chains of a batch with rows x, (n, ...), have taken `n_steps` steps."""
        pool, chain, walkers, _, n_batches, halvings, _, offsets = state
        kernel, place, share = self.kernel(halvings), None, None
        if self.persistent:
            assert chain is not None
            if walkers is not None:  # reweighted where they are, before anything moves them
                chain = kernel.refresh(energy, chain)
                chain, walkers = walkers.follow(energy, chain, generator)
            if self.n_independence_steps:
                chain = self._propose(energy, chain, generator)
            chain = kernel.refresh(energy, chain)  # the parameters have moved
        else:
            rows, place = self._rows(energy, pool, x, generator)
            adapted, chain = chain, kernel.init(energy, rows)
            if kernel.adapts and adapted is not None:
                chain = chain._replace(aux=adapted.aux)
            if not self.weighs_equally:
                share = weight
        chain, accepted = run_chains(kernel, energy, chain, self.n_steps, generator, n_batches)
        if walkers is not None:
            walkers = walkers.after_move(energy, chain)
        if place is not None:
            pool = self.chains.keep(pool, place, chain.x)
        return ContrastiveState(
            pool, chain, walkers, accepted, n_batches + 1, halvings, share, offsets
        )

    def _rows(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Rows at which the chains of a batch start, and their positions in the pool."""
        rows, place = self.chains.draw(energy, pool, x, generator)
        if self._draws_bits:
            rows = torch.bernoulli(rows, generator=generator)
        if self.n_independence_steps:
            rows = self._propose(energy, ChainState(rows), generator).x
        return rows, place

    def _propose(self, energy: Energy, chain: ChainState, generator: torch.Generator) -> ChainState:
        """Chains after independence Metropolis-Hastings steps with draws of the base as proposals.

        They can move between modes that local steps do not connect, and are accepted the more
        often the closer the base is to the model.
        """
        base: Any = energy.base
        for _ in range(self.n_independence_steps):
            draws = base.sample(len(chain.x), generator).to(chain.x)
            before, after = energy.correction(torch.cat([chain.x, draws])).chunk(2)
            taken = accepts(before - after, generator)
            chain = chain._replace(x=torch.where(by_row(taken, draws), draws, chain.x))
        return chain

    def signs(self, batch: Batch, chain: Tensor, walkers: Walkers | None) -> tuple[Tensor, Tensor]:
        """Signed weights of data and chains: a statistic weighted by them sums to model - data.

        The n data rows have the signed weights -weight / n; weight / n is returned as well. The
        chains share the total weight of the batch, or each has the weight of the data row at which
        it started.
        """
        if batch.weight is None:
            # shape[0], not len(): a microsecond each, twenty times as slow.
            sign, share = _plain_signs(batch.x.shape[0], chain.shape[0], chain.dtype, chain.device)
            if walkers is None:
                return sign, share
        else:
            share = batch.weight / len(batch.x)
        if walkers is not None:
            model = share.sum() * walkers.share.to(share.dtype)
        elif self.weighs_equally:
            model = (share.sum() / len(chain)).expand(len(chain))
        else:
            model = share
        return torch.cat([-share, model]), share

    # ---------------------------------------------------------------- rolling back

    def state_after_roll_back(
        self,
        energy: Energy,
        state: ContrastiveState,
        x: Tensor,
        generator: torch.Generator,
        tries: int,
    ) -> ContrastiveState:
        """Earlier chains with half the step size; new chains from the second attempt on.

        Reweighted chains always continue, as their weights keep them consistent.
        """
        halvings = state.halvings + 1
        if tries > 1 and state.walkers is None:
            anew = self.start(energy, x, generator, halvings)
            return anew._replace(n_batches=state.n_batches, offsets=state.offsets)
        chain = state.chain
        # Adaptive samplers set their own step size; block Gibbs has none, only a drawn layer.
        if chain is not None and not self.sampler.adapts and not self.draws_hidden:
            chain = self.kernel(halvings).init(energy, chain.x)
        return state._replace(chain=chain, halvings=halvings)

    def state_with_draws(
        self,
        energy: Energy,
        state: ContrastiveState,
        draws: Tensor,
        generator: torch.Generator,
        share: float = 0.5,
    ) -> ContrastiveState:
        """State in which a share of the persistent chains, at random, continue from the draws.

        Chains that local steps have kept near the data can then reach modes elsewhere. Reweighted
        chains, whose weights would be wrong, and those of samplers with replicas are unchanged.
        """
        chain = state.chain
        alone = self.sampler.kernel is self.sampler
        if not (self.persistent and alone) or self.reweight or chain is None:
            return state
        n = min(len(draws), int(share * len(chain.x)))
        place = torch.randperm(len(chain.x), generator=generator, device=draws.device)[:n]
        moved = self.kernel(state.halvings).init(energy, chain.x.index_copy(0, place, draws[:n]))
        if isinstance(chain.aux, StepSettings):
            moved = moved._replace(aux=chain.aux)
        return state._replace(chain=moved)

    # ---------------------------------------------------------------- storage

    def unpack(self, packed: dict[str, Tensor | None], energy: Energy) -> ContrastiveState | None:
        """Rebuild a state from :func:`packed`; None if it does not fit these chains."""
        counts, rows = packed.get("counts"), packed.get("chain")
        if counts is None or (packed.get("log_weight") is not None) != self.reweight:
            return None
        if not self.chains.fits(packed.get("pool"), rows):
            return None
        n_batches, halvings, acceptance = counts.tolist()
        kept = [part for name, part in packed.items() if name.startswith("aux_")]
        chain = None if rows is None else self._resume(energy, rows, kept, int(halvings))
        parts: Any = [packed.get(name) for name in ("log_weight", "log_z", "chain_energy")]
        centres: Any = [packed.get(name) for name in ("visible_offset", "hidden_offset")]
        return ContrastiveState(
            None if self.persistent else packed.get("pool"),
            chain,
            Walkers(*parts) if self.reweight else None,
            acceptance,
            int(n_batches),
            int(halvings),
            packed.get("share"),
            None if centres[0] is None else Offsets(*centres),
        )

    def _resume(self, energy: Energy, x: Tensor, kept: list[Any], halvings: int) -> ChainState:
        """Chains at x with the stored auxiliary state, if it fits this sampler."""
        kernel = self.kernel(halvings)
        with torch.no_grad(), sampling(energy):
            fresh, parts = kernel.init(energy, x), iter(kept)
            if self.draws_hidden:  # chains may or may not come with a hidden layer
                assert isinstance(energy, BipartiteEnergy)
                layer = (len(x), *energy.hidden_domain.row_shape)
                fits = [tuple(part.shape) for part in kept] == [layer]
                return fresh._replace(aux=kept[0]) if fits else fresh
            try:
                aux = rebuilt(fresh.aux, parts)
            except ValueError:
                return fresh
            if next(parts, None) is not None:
                return fresh
            return kernel.refresh(energy, fresh._replace(aux=aux))  # replicas are at other rows


def pack_state(state: ContrastiveState) -> dict[str, Tensor | None]:
    """State as named tensors."""
    chain, walkers, offsets = state.chain, state.walkers, state.offsets
    counts = [state.n_batches, state.halvings, float(state.acceptance)]
    return {
        "pool": state.pool,
        "chain": None if chain is None else chain.x,
        "share": state.share,
        "counts": torch.tensor(counts, dtype=torch.float64),
        "log_weight": walkers.log_weight if walkers else None,
        "log_z": walkers.log_z if walkers else None,
        "chain_energy": walkers.energy if walkers else None,
        "visible_offset": offsets.visible if offsets else None,
        "hidden_offset": offsets.hidden if offsets else None,
        **{f"aux_{i}": part for i, part in enumerate(leaves(chain.aux if chain else None))},
    }


def over_ranks(
    state: ContrastiveState, rows: Callable[[Tensor], Tensor], mean: Callable[[Any], Any]
) -> ContrastiveState:
    """State with `rows` applied to all chains, and `mean` to the settings that they share."""
    pool, chain, walkers, acceptance, _, _, share, _ = state
    if walkers is not None:  # log Z of each process becomes a part of the weights of its chains
        log_weight = rows(walkers.log_weight + walkers.log_z)
        walkers = Walkers(log_weight, torch.zeros_like(walkers.log_z), rows(walkers.energy))
    return state._replace(
        pool=None if pool is None else rows(pool),
        chain=None if chain is None else _chains_over_ranks(chain, chain.x, rows, mean),
        walkers=walkers,
        acceptance=mean(acceptance),
        share=None if share is None else rows(share),
    )


def _chains_over_ranks(
    part: Any, x: Tensor, rows: Callable[[Tensor], Tensor], mean: Callable[[Any], Any]
) -> Any:
    """A part of the state of chains at rows x."""
    if isinstance(part, ChainState):
        value, grad = (None if t is None else rows(t) for t in (part.energy, part.grad))
        return ChainState(
            rows(part.x), value, grad, _chains_over_ranks(part.aux, part.x, rows, mean)
        )
    if isinstance(part, StepSettings | DenseScale | Adaptation):  # of all chains together
        rows = mean
    if isinstance(part, tuple):
        parts = [_chains_over_ranks(one, x, rows, mean) for one in part]
        return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
    if isinstance(part, Tensor) and part.dim() == x.dim() and len(part) == len(x):
        return rows(part)
    return mean(part)


def halve_step_size(sampler: Sampler, times: int) -> Sampler:
    """The sampler with its step size halved `times` times and its noise scaled to match."""
    powers = {"step_size": 1.0, "noise_scale": 0.5}
    changed = {}
    for name, value in sampler.get_params().items():
        power = powers.get(name.split("__")[-1])
        if power is not None and value is not None:
            changed[name] = value * 0.5 ** (power * times)
    return clone(sampler).set_params(**changed)


def run_chains(
    kernel: Sampler,
    energy: Energy,
    chain: ChainState,
    n_steps: int,
    generator: torch.Generator,
    n_batches: int,
) -> tuple[ChainState, Any]:
    """Chains after `n_steps`, and their mean acceptance rate.

    An adaptive sampler adapts in the first step of every fourth batch and keeps its settings in
    all others: an adaptation step costs as much as a step of a small network.
    """
    # Batches per adaptation step of an adaptive sampler, as one costs as much as a step of a small
    # network.
    adapt_every = 4
    step, n_adapting = kernel.step, int(n_batches % adapt_every == 0)
    adapting: StepSettings | None = None
    accepted: Any = 0.0
    for number in range(n_steps):
        if number == n_adapting and isinstance(chain.aux, StepSettings):
            adapting, chain = chain.aux, kernel.freeze(chain)
        chain, info = step(energy, chain, generator)
        accepted = accepted + info.acceptance
    if adapting is not None:
        chain = chain._replace(aux=adapting)
    return chain, accepted / n_steps


def _warm_up(kernel: Sampler, energy: Energy, x: Tensor, generator: torch.Generator) -> ChainState:
    """Chains with a warmed-up step size, so that training does not start with the first guesses."""
    chain = kernel.init(energy, x)
    for _ in range(WARM_UP):
        chain, _ = kernel.step(energy, chain, generator)
    return chain


def _resample_base(energy: Energy, rows: Tensor, generator: torch.Generator) -> Tensor:
    """As many draws of the base, resampled by their importance weights under the model."""
    base: Any = getattr(energy, "base", None)
    if base is None:
        return rows
    draws = base.sample(N_PROPOSALS * len(rows), generator).to(rows)
    weight = (-energy.correction(draws)).double().softmax(0)
    if not weight.isfinite().all():
        return rows
    u = torch.rand(len(rows), generator=generator, dtype=weight.dtype, device=weight.device)
    return draws[draw_index(weight, u)]


@functools.lru_cache(maxsize=16)
def _plain_signs(n: int, m: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Signs of unweighted rows, which are the same for all batches of a size."""
    sign = torch.full((n + m,), 1.0 / m, dtype=dtype, device=device)
    sign[:n] = -1.0 / n
    return sign, -sign[:n]
