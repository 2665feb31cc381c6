"""Rows of trained models with hidden layers: draws, and imputations of missing entries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import BipartiteEnergy, Clamp, Sampler
from skebm.distributions import Distribution
from skebm.energies import Tilted
from skebm.estimators.base import CategoriesMixin, FeaturesMixin, PartitionMixin, chain_rows
from skebm.estimators.queries.models import ModelQueriesMixin
from skebm.estimators.rbm.family import CHEAP_COST
from skebm.estimators.rbm.missing import exact_log_sums, hidden_means, log_sums
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.bases import check_power
from skebm.partition import exact_draws
from skebm.partition.exact import log_z_cost
from skebm.partition.given import LogZGiven
from skebm.samplers import Persistent
from skebm.training.rows import Rows

# Rows per Gibbs run, which limits its memory.
BLOCK = 4096
# Gibbs steps of imputations.
N_STEPS = 200
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


class LayersMixin(ModelQueriesMixin, FeaturesMixin, CategoriesMixin, PartitionMixin):
    """What models with layers of hidden units share: draws by Gibbs sampling, and queries."""

    _recipe: Recipe[Any]

    def _draw(
        self, n: int, generator: torch.Generator, n_steps: int = 1000, temperature: float = 1.0
    ) -> Tensor:
        """Rows of the model at a temperature, exact if the states can be enumerated."""
        sampler, starts = self._recipe.family.chains.layer_sampler, self._starts()
        how: dict[str, Any] = {"n_steps": n_steps, "temperature": temperature}
        return draw_visible(self.energy_, sampler, starts, n, generator, **how)

    def _starts(self) -> Starts:
        """Where chains of the trained model start: near it, or spread out at a temperature.

        They start at the persistent chains, or at training rows; at temperatures other than 1, at
        draws of the base or at uniform rows.
        """

        def starts(n: int, generator: torch.Generator, temperature: float) -> Tensor:
            energy = self.energy_
            like = next(energy.parameters())
            if temperature != 1:
                if energy.base is None:
                    uniform: Tensor = energy.domain.uniform(n, generator, dtype=like.dtype)
                    return uniform.to(like.device)
                spread: Tensor = energy.base.sample(n, generator).to(like)
                return spread
            chains = chain_rows(self.net_)
            if chains is not None:
                return chains
            data: Tensor = self._partition_inputs(("x",))["x"]["data"]
            return data

        return starts

    @property
    def base_(self) -> Distribution:
        """The fitted base of rows."""
        check_is_fitted(self)
        return self._recipe.base

    # ---------------------------------------------------------------- queries

    def _rows_of_input(self, X: Any) -> Tensor:
        return self._with_all_entries(super()._rows_of_input(X))

    def _sums_of(self, x: Tensor) -> LogZGiven:
        x = self._with_all_entries(x)
        energy, known = self.energy_, ~x.isnan()
        generator = torch.Generator(x.device).manual_seed(self.net_.seed_)
        groups = self._recipe.table.groups
        return log_sums(energy, energy.base, x.nan_to_num(), known, groups, generator)

    def _exact_sums(self) -> Any:
        return functools.partial(exact_log_sums, self.energy_)

    def _fill(
        self, x: Tensor, how: str, n_draws: int, n_steps: int | None, generator: torch.Generator
    ) -> list[Tensor]:
        n_steps = N_STEPS if n_steps is None else n_steps
        made = []
        for _ in range(n_draws):
            parts = [self._impute(part, how, n_steps, generator) for part in x.split(BLOCK)]
            made.append(torch.cat(parts).cpu())
        return made

    def _with_all_entries(self, x: Tensor) -> Tensor:
        """Rows of the energy from rows of their columns of X, nan where entries are missing."""
        return x

    @torch.no_grad()
    def _impute(self, x: Tensor, how: str, n_steps: int, generator: torch.Generator) -> Tensor:
        """Rows x (n, d) of the energy whose missing entries, nan, are draws, means or modes."""
        energy, known = self.energy_, ~x.isnan()
        if how == "draw":
            guess = energy.base.sample(len(x), generator)
            clamp = Clamp(known, torch.nan_to_num(x))
            sampler = self._recipe.family.chains.layer_sampler
            state, _ = sampler.run(energy, guess, n_steps, generator, clamp=clamp)
            return state.x
        _, mean = hidden_means(energy, energy.base, x, known, max(n_steps, 2), generator)
        return self._joint().modes(mean, known) if how == "mode" else mean


class LayersDensityMixin(LayersMixin):
    """Samples of a density, and settings that its fits resolved."""

    def _complete_rows(self, X: Any, method: str) -> Rows:
        """Rows of new X; `ValueError` for missing entries."""
        rows = self._rows(X)
        if rows.has_missing():
            raise ValueError(
                f"X contains NaN, and {method} needs complete rows: call impute first."
            )
        return rows

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
        n_steps: int = 1000,
    ) -> np.ndarray:
        r"""Draw rows from the model, the marginal of :math:`p(x, h)^{1/T}` normalised.

        Samples are exact and independent if the states of one layer, or of the even or the odd ones
        of several, can be enumerated (at most 1e7 terms). Otherwise they are the final states of
        Gibbs chains of `n_steps` steps, and approximate if the chains have not converged. The
        chains start from the persistent chains or training rows; for temperatures other than 1,
        from draws of the base, or from uniform rows if there is none.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy of all layers, E(x, h), is divided: above 1 rows are more
            random, below 1 they are closer to the most probable ones. Temperatures other than 1
            raise `ValueError` if the base has latent classes, whose powers have no closed form.
        given : array-like, data frame, dict or None, default=None
            A row whose known entries are fixed, and whose missing entries, NaN, are drawn; frames
            and dicts may leave columns out. Or `n_samples` such rows. Draws are then from chains of
            `n_steps` steps with these entries clamped.
        n_steps : int, default=1000
            Number of Gibbs steps of the chains, if they are needed.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        return self._draw_rows(n_samples, random_state, temperature, given, n_steps)

    @property
    def sampler_(self) -> Sampler:
        """Sampler of the chains."""
        check_is_fitted(self)
        found: Sampler = self._recipe.family.chains.training_sampler
        return found

    @property
    def learning_rate_(self) -> float:
        """Initial learning rate; nan with L-BFGS."""
        check_is_fitted(self)
        plan = self._recipe.plan
        return float("nan") if plan.searches else plan.learning_rate

    @property
    def batch_size_(self) -> int:
        """Rows per step."""
        check_is_fitted(self)
        return self._recipe.plan.batch_size

    @property
    def n_chains_(self) -> int:
        """Number of persistent chains."""
        check_is_fitted(self)
        chains = self._recipe.family.chains.policy
        return int(chains.n_chains or 0) if isinstance(chains, Persistent) else self.batch_size_
