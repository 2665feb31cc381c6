"""Rows of a trained restricted Boltzmann machine: draws, and imputations of missing entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, Clamp, Sampler
from skebm.energies import Tilted
from skebm.estimators.base import chain_rows
from skebm.estimators.rbm.blueprint import CHEAP_COST, RBMBlueprint
from skebm.estimators.rbm.missing import hidden_means
from skebm.estimators.tables.bases import check_power
from skebm.partition import exact_draws
from skebm.partition.exact import log_z_cost

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Rows per Gibbs run, which limits its memory.
BLOCK = 4096
# Rows (n_starts, d) from which chains at a temperature start.
Starts = Callable[[int, torch.Generator, float], Tensor]


@torch.no_grad()
def draw_visible(
    energy: BipartiteEnergy,
    sampler: Sampler,
    starts: Starts,
    n: int,
    generator: torch.Generator,
    *,
    n_steps: int = 1000,
    temperature: float = 1.0,
) -> Tensor:
    """Rows of a bipartite energy at a temperature, (n, d).

    They are exact and independent if a layer can be enumerated, and otherwise the final states of
    chains.

    Parameters
    ----------
    energy : BipartiteEnergy
    sampler : Sampler
        Draws whole layers.
    starts : callable
        ``starts(n, generator, temperature)``: rows from which chains start.
    n : int
    generator : torch.Generator
    n_steps : int, default=1000
        Steps of the chains.
    temperature : float, default=1.0
        `ValueError` for others than 1 where powers of the base have no closed form.
    """
    beta, blocks = 1 / temperature, []
    check_power(energy.base, temperature)
    if log_z_cost(energy) <= CHEAP_COST:
        field = next(energy.parameters()).new_zeros(energy.domain.n_columns)
        return exact_draws(energy if beta == 1 else Tilted(energy, field, beta), n, generator)
    rows = starts(n, generator, temperature)
    for done in range(0, n, BLOCK):
        size = (min(BLOCK, n - done),)
        pick = torch.randint(len(rows), size, generator=generator, device=rows.device)
        state, _ = sampler.run(energy, rows[pick], n_steps, generator, beta=beta)
        blocks.append(state.x)
    return torch.cat(blocks)


def starts_of(energy: Any, blueprint: Any, net: EnergyNet, reference: Tensor) -> Starts:
    """Where chains of a trained machine start: near the model, or spread out at a temperature.

    They start at the persistent chains, or at the `reference` rows (n, d) of the training data; at
    temperatures other than 1, at draws of the base or at uniform rows.
    """

    def starts(n: int, generator: torch.Generator, temperature: float) -> Tensor:
        if temperature != 1:
            if energy.base is None:
                uniform: Tensor = energy.domain.uniform(n, generator, dtype=reference.dtype)
                return uniform.to(reference.device)
            spread: Tensor = energy.base.sample(n, generator).to(reference)
            return spread
        chains = chain_rows(net)
        if chains is not None:
            return chains
        data: Tensor = blueprint.partition_input("x", energy, net, reference)["data"]
        return data

    return starts


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
