"""Where chains of the negative phase stand, how that is stored, and steps that become smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import ChainState, Energy, Sampler
from skebm.base.state import leaves
from skebm.objectives._phases import resumed
from skebm.objectives.walkers import Walkers
from skebm.samplers._adaptation import StepSettings

# Batches for each lesson of a kernel that tunes itself.
ADAPT_EVERY = 4


class SampledState(NamedTuple):
    """Where chains stand and what is remembered of them.

    Attributes
    ----------
    pool : Tensor or None
        Rows of a chain policy that has a memory.
    chain : ChainState or None
        Chains after the last batch; persistent ones go on from there.
    walkers : Walkers or None
    acceptance : Tensor, scalar
        Mean acceptance of the last batch's steps.
    n_batches : int
    halvings : int
        How often the sampler's step was halved after a divergence.
    share : Tensor or None
        Weights of the rows of data that the chains started at.
    """

    pool: Tensor | None
    chain: ChainState | None
    walkers: Walkers | None = None
    acceptance: Any = 1.0
    n_batches: int = 0
    halvings: int = 0
    share: Tensor | None = None


def packed(state: SampledState) -> dict[str, Tensor | None]:
    """The state as named tensors."""
    chain, walkers = state.chain, state.walkers
    counts = [state.n_batches, state.halvings, float(state.acceptance)]
    return {
        "pool": state.pool,
        "chain": None if chain is None else chain.x,
        "share": state.share,
        "counts": torch.tensor(counts, dtype=torch.float64),
        "log_weight": walkers.log_weight if walkers else None,
        "log_z": walkers.log_z if walkers else None,
        "chain_energy": walkers.energy if walkers else None,
        **{f"aux_{i}": part for i, part in enumerate(leaves(chain.aux if chain else None))},
    }


def unpacked(
    packed: dict[str, Tensor | None], energy: Energy, kernel: Callable[[int], Sampler]
) -> SampledState | None:
    """The state that was packed, of chains that a kernel with its step so often halved moves."""
    counts, rows = packed.get("counts"), packed.get("chain")
    if counts is None:
        return None
    n_batches, halvings, acceptance = counts.tolist()
    chain = None
    if rows is not None:
        kept = [part for name, part in packed.items() if name.startswith("aux_")]
        chain = resumed(kernel(int(halvings)), energy, rows, kept)
    parts: Any = [packed.get(name) for name in ("log_weight", "log_z", "chain_energy")]
    walkers = None if parts[0] is None else Walkers(*parts)
    pool = packed.get("pool")
    share = packed.get("share")
    return SampledState(pool, chain, walkers, acceptance, int(n_batches), int(halvings), share)


def halved(sampler: Sampler, times: int) -> Sampler:
    """The sampler with its step halved so often, and noise that keeps its temperature."""
    powers = {"step_size": 1.0, "noise_scale": 0.5}
    changed = {}
    for name, value in sampler.get_params().items():
        power = powers.get(name.split("__")[-1])
        if power is not None and value is not None:
            changed[name] = value * 0.5 ** (power * times)
    return clone(sampler).set_params(**changed)


def walked(
    kernel: Sampler,
    energy: Energy,
    chain: ChainState,
    n_steps: int,
    generator: torch.Generator,
    n_batches: int,
) -> tuple[ChainState, Any]:
    """Chains after `n_steps`, and the mean acceptance.

    A kernel that tunes itself learns from the first step of every fourth batch and keeps its
    settings for all others: a lesson costs as much as a step of a small network.
    """
    step, n_adapting = kernel.step, int(n_batches % ADAPT_EVERY == 0)
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
