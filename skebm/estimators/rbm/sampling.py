"""Rows of a trained RBM: draws, and imputations of missing entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm.base import Clamp
from skebm.energies import Tilted
from skebm.estimators.base import chain_rows
from skebm.estimators.rbm.blueprint import CHEAP_COST, RBMBlueprint
from skebm.estimators.rbm.missing import hidden_means
from skebm.partition import exact_draws
from skebm.training.engine import EnergyNet

# Rows per Gibbs run, which limits its memory.
BLOCK = 4096


@torch.no_grad()
def draws(
    energy: Any,
    blueprint: RBMBlueprint,
    net: EnergyNet,
    reference: Tensor,
    n: int,
    generator: torch.Generator,
    n_steps: int = 1000,
    temperature: float = 1.0,
) -> Tensor:
    """Rows of the model at a temperature, exact if the states can be enumerated.

    Otherwise the last states of Gibbs chains from the persistent chains or the `reference` rows.
    """
    beta, blocks = 1 / temperature, []
    if temperature != 1 and energy.base is not None and not energy.base.has_powers:
        raise ValueError(
            f"temperature={temperature} needs a power of the base {energy.base!r}, which has "
            "no closed form: use temperature=1.0, or fit the model with another base."
        )
    if energy.enumeration_cost() <= CHEAP_COST:
        field = energy.weight.new_zeros(energy.domain.n_columns)
        tempered = energy if temperature == 1 else Tilted(energy, field, beta)
        return exact_draws(tempered, n, generator)
    starts = _starts(energy, blueprint, net, reference, n, generator, temperature)
    for done in range(0, n, BLOCK):
        size = (min(BLOCK, n - done),)
        pick = torch.randint(len(starts), size, generator=generator, device=starts.device)
        state, _ = blueprint.layer_sampler.run(energy, starts[pick], n_steps, generator, beta=beta)
        blocks.append(state.x)
    return torch.cat(blocks)


def _starts(
    energy: Any,
    blueprint: RBMBlueprint,
    net: EnergyNet,
    reference: Tensor,
    n: int,
    generator: torch.Generator,
    temperature: float,
) -> Tensor:
    """Rows from which chains of the model start: near it, or spread out at a temperature."""
    like = energy.weight
    if temperature != 1:
        if energy.base is None:
            return energy.domain.uniform(n, generator, dtype=like.dtype).to(like.device)
        spread: Tensor = energy.base.sample(n, generator).to(like)
        return spread
    start = chain_rows(net)
    if start is not None:
        return start
    data: Tensor = blueprint.partition_input("x", energy, net, reference)["data"]
    return data


@torch.no_grad()
def imputed(
    energy: Any,
    blueprint: RBMBlueprint,
    x: Tensor,
    how: str,
    n_steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Rows x (n, d) of the energy whose missing entries, nan, are draws, means or modes."""
    known = ~x.isnan()
    if how == "sample":
        guess = energy.base.sample(len(x), generator)
        clamp = Clamp(known, torch.nan_to_num(x))
        state, _ = blueprint.layer_sampler.run(energy, guess, n_steps, generator, clamp=clamp)
        return state.x
    _, mean = hidden_means(energy, energy.base, x, known, max(n_steps, 2), generator)
    if how == "mode":
        bits = blueprint.bits.to(x.device) & ~known
        mean = torch.where(bits, (mean > 0.5).to(mean), mean)
    return mean
