"""Rows drawn from a trained restricted Boltzmann machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, Sampler
from skebm.energies import Tilted
from skebm.estimators.rbm.blueprint import CHEAP_COST
from skebm.partition import exact_draws
from skebm.partition.exact import log_z_cost

# Rows per Gibbs run, which limits its memory.
BLOCK = 4096
# Chains of a row's start, gives (n_starts, d) rows at a temperature.
Starts = Callable[[int, torch.Generator, float], Tensor]


@torch.no_grad()
def draw(
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

    Exact and independent where a layer can be enumerated; otherwise final states of chains.

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
    base, beta, blocks = energy.base, 1 / temperature, []
    if temperature != 1 and base is not None and not base.has_powers:
        raise ValueError(
            f"temperature={temperature} needs a power of the base {base!r}, which has no closed "
            "form: use temperature=1.0, or fit the model with another base."
        )
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


def spread_starts(energy: BipartiteEnergy, n: int, generator: torch.Generator) -> Tensor:
    """Rows from which chains at a temperature start: draws of the base, or uniform rows."""
    like = next(energy.parameters())
    if energy.base is None:
        return energy.domain.uniform(n, generator, dtype=like.dtype).to(like.device)
    found: Tensor = energy.base.sample(n, generator).to(like)
    return found
