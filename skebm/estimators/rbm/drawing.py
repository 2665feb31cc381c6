"""Rows of trained models with hidden layers: draws, and imputations of missing entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import Binary, BipartiteEnergy, Clamp, Domain, Sampler
from skebm.base.domains import parts_of
from skebm.base.sampler import whole_number
from skebm.distributions import Distribution
from skebm.energies import Tilted
from skebm.estimators.base import CategoriesMixin, FeaturesMixin, PartitionMixin, chain_rows
from skebm.estimators.rbm.family import CHEAP_COST
from skebm.estimators.rbm.missing import hidden_means
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.bases import check_power
from skebm.estimators.tables.frames import as_given
from skebm.partition import exact_draws
from skebm.partition.exact import log_z_cost
from skebm.samplers import Persistent
from skebm.training.rows import Rows

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


class LayersMixin(FeaturesMixin, CategoriesMixin, PartitionMixin):
    """What models with layers of hidden units share, whose rows are drawn by Gibbs sampling."""

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


class LayersDensityMixin(LayersMixin):
    """Samples and imputations of a density, and settings that its fits resolved."""

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
        n_steps : int, default=1000
            Number of Gibbs steps of the chains, if they are needed.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        self._check_draws(n_samples, n_steps, temperature)
        drawn = self._draw(n_samples, self._generator(random_state), n_steps, temperature)
        return self._recipe.table.invert(drawn)

    @as_given
    def impute(
        self,
        X: Any,
        random_state: Any = None,
        *,
        how: str = "sample",
        n_draws: int | None = None,
        n_steps: int = 200,
    ) -> Any:
        """Replace missing entries by draws from the model given the known entries, or their means.

        The draws come from block Gibbs sampling with the known entries clamped, and are
        approximate because the chains are finite. A row without known entries becomes a sample of
        the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN marks missing entries.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        how : {"sample", "mean", "mode"}, default="sample"
            ``"sample"``: the imputations of a row are a joint draw, as in multiple imputation.
            ``"mean"``: the mean of a number and the probability of a bit, which have the least
            squared error; the most probable level of a category. ``"mode"``: the more probable
            value of a bit as well.
        n_draws : int >= 1 or None, default=None
            Number of imputed tables; with ``how="sample"`` only. None returns a single table, not
            in a list.
        n_steps : int, default=200
            Gibbs steps; means are taken over the second half.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features), or a list of `n_draws` of these
            A data frame with the index, columns and types of X if X is one, otherwise an array.
            Known entries are unchanged. In frames, columns of integers and booleans are rounded.
        """
        check_is_fitted(self)
        check_imputation(how, n_draws, n_steps)
        X = self._validate(X)
        rows, generator = self._rows_of(X), self._generator(random_state)
        made = [self._completions(rows, generator, how, n_steps) for _ in range(n_draws or 1)]
        tables = [self._recipe.table.with_imputations(X, x) for x in made]
        return tables[0] if n_draws is None else tables

    def _completions(
        self, rows: Rows, generator: torch.Generator, how: str, n_steps: int
    ) -> Tensor:
        """Rows of the energy with their missing entries filled in."""
        blocks = []
        for start in range(0, len(rows), BLOCK):
            x = self._with_all_entries(rows.block(start, start + BLOCK))
            blocks.append(self._impute(x, how, n_steps, generator).cpu())
        return torch.cat(blocks)

    def _with_all_entries(self, x: Tensor) -> Tensor:
        """Rows of the energy from rows of their columns of X, nan where entries are missing."""
        return x

    @torch.no_grad()
    def _impute(self, x: Tensor, how: str, n_steps: int, generator: torch.Generator) -> Tensor:
        """Rows x (n, d) of the energy whose missing entries, nan, are draws, means or modes."""
        energy, known = self.energy_, ~x.isnan()
        if how == "sample":
            guess = energy.base.sample(len(x), generator)
            clamp = Clamp(known, torch.nan_to_num(x))
            sampler = self._recipe.family.chains.layer_sampler
            state, _ = sampler.run(energy, guess, n_steps, generator, clamp=clamp)
            return state.x
        _, mean = hidden_means(energy, energy.base, x, known, max(n_steps, 2), generator)
        if how == "mode":
            bits = bits_of(energy.domain).to(x.device) & ~known
            mean = torch.where(bits, (mean > 0.5).to(mean), mean)
        return mean

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


def bits_of(domain: Domain) -> Tensor:
    """Which entries of a row are bits, (d,)."""
    parts = parts_of(domain)
    return torch.cat([torch.full((p.n_columns,), isinstance(p, Binary)) for p in parts])


def check_imputation(how: str, n_draws: int | None, n_steps: int) -> None:
    """Raise `ValueError` that names the argument of `impute` that is wrong."""
    whole_number("n_steps", n_steps, 1)
    if how not in ("sample", "mean", "mode"):
        raise ValueError(f'how must be "sample", "mean" or "mode", got {how!r}.')
    if n_draws is not None:
        whole_number("n_draws", n_draws, 1)
        if how != "sample":
            raise ValueError(f'n_draws={n_draws} is for how="sample": there is one {how}.')
