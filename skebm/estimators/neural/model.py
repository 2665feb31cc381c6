"""What fitted neural models share: samples, imputations, gradients, denoising."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import Mixed, Sampler
from skebm.base.sampler import number_in, whole_number
from skebm.distributions import Distribution
from skebm.estimators.base import PartitionMixin
from skebm.estimators.neural.family import NeuralRecipe, derivatives
from skebm.estimators.neural.sampling import (
    BLOCK,
    LEAST_CHAINS,
    Chains,
    chains_at_temperature,
    discrete_posterior_mean,
    draw_by_chains,
    impute_rows,
)
from skebm.estimators.queries.models import ModelQueriesMixin
from skebm.estimators.tables.frames import as_given
from skebm.estimators.tables.units import Units

# Steps of the chains of imputations, after as many adaptation steps.
N_STEPS = 100


class NeuralMixin(ModelQueriesMixin, PartitionMixin):
    """Methods of a model that is a network beside a base, density or classifier."""

    _recipe: NeuralRecipe
    _takes_images = True  # of networks for them

    # ---------------------------------------------------------------- gradients

    def score_function(self, X: Any) -> np.ndarray:
        r"""Score of each row, the gradient of log p(x), :math:`-\nabla E(x)`; needs no log Z.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Real rows. Binary and one-hot rows, which have no gradient, raise a `ValueError`, and so
            do rows so far from the training rows that the gradient overflows.

        Returns
        -------
        ndarray of the shape of X
            In nats per unit of each column; zero outside the bounds.
        """
        check_is_fitted(self)
        table = self._recipe.table
        if table.discrete:
            raise ValueError(
                f"There are no gradients of log p over {table.domain}: score_function needs real "
                "rows."
            )
        rows, domain = self._rows(X), table.domain

        def score(energy: Any, x: Tensor) -> Tensor:
            # What is not finite lies outside bounds only by its size: it is left to the check.
            outside = ~domain.contains(x) & x.isfinite().all(1)
            return -energy.value_and_grad(x)[1].masked_fill(outside[:, None], 0.0)

        found = self._map(rows, score).double().numpy() / table.units.scale
        found = table.check_finite(found, rows, "the gradient of log p")
        return found.reshape(len(rows), *table.row_shape)

    def _score_and_laplacian(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Laplacian of log p, for :mod:`skebm.estimators.queries.densities`."""
        rows, energy = self._rows(X), self._scoring_energy()
        grad, second = derivatives(self._recipe.table, rows, energy, weighted=False)
        return -grad, -second

    # ---------------------------------------------------------------- rows

    def _draw_rows(
        self, n_samples: int, random_state: Any, temperature: float, given: Any, n_steps: int
    ) -> np.ndarray:
        """Rows of the model at a temperature, or given some of their columns."""
        self._check_draws(n_samples, temperature, n_steps=n_steps)
        generator, n = self._generator(random_state), max(n_samples, LEAST_CHAINS)
        energy, table = self.energy_, self._recipe.table
        chains = chains_at_temperature(self._chains(), energy, temperature)
        if given is None:
            return table.invert(draw_by_chains(energy, chains, n, generator, n_steps)[:n_samples])
        X = self._query_input(self._given_rows(given, n_samples))
        x = self._rows_of_input(X)
        x = x[torch.arange(n) % n_samples]
        self._check_near(x)
        drawn = impute_rows(energy, chains, x, generator, n_steps)[:n_samples]
        return table.with_imputations(X, drawn)

    def _fill(
        self, x: Tensor, how: str, n_draws: int, n_steps: int | None, generator: torch.Generator
    ) -> list[Tensor]:
        if how != "draw":
            return super()._fill(x, how, n_draws, n_steps, generator)
        incomplete = x.isnan().any(1).nonzero().ravel()
        energy, chains = self.energy_, self._chains()
        made = []
        for _ in range(n_draws):
            full = x.clone()
            for some in incomplete.split(BLOCK) if len(incomplete) else ():
                steps = N_STEPS if n_steps is None else n_steps
                full[some] = impute_rows(energy, chains, x[some], generator, steps)
            made.append(full)
        return made

    def _chains(self) -> Chains:
        """Sampler and starting points of the chains of the fitted model."""
        rule, net = self._recipe.family.rule, self.net_
        known = rule.rows_near_model(net)
        if known is None:
            known = torch.as_tensor(self._reference)
        proposal = rule.proposal(self.energy_, net)
        is_default = rule.has_default_sampler(self._recipe.table.domain)
        return Chains(rule.final_sampler(net), proposal, known, is_default=is_default)

    # ---------------------------------------------------------------- denoising

    @as_given(means=True)
    def denoise(
        self,
        X: Any,
        noise_level: float | None = None,
        random_state: Any = None,
        *,
        n_steps: int = 200,
    ) -> np.ndarray:
        r"""Posterior mean of the clean row, given a noisy one.

        For real rows with Gaussian noise it is given by Tweedie's formula [1]_,
        :math:`x + \sigma^2 \nabla \log p_\sigma(x)`, with the density of noisy rows. It is exact
        for the model at its training noise level (the smallest of several), and accurate to first
        order in :math:`\sigma^2` if the model was trained without noise. For discrete rows, each
        column is assumed to have been changed with probability `noise_level`. The mean is then that
        of the second half of chains that start at the noisy rows; it is unbiased if they have
        converged by then.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        noise_level : float or None, default=None
            Standard deviation of the noise in standard deviations of each column (in units of X
            with ``standardize=False``); None is the level of training (the smallest of several).
            Discrete rows: probability of a change; None is 0.1.
        random_state : int, RandomState instance or None, default=None
            Used for discrete rows only; None draws from NumPy's global generator.
        n_steps : int, default=200
            Number of sampler steps for discrete rows.

        Returns
        -------
        ndarray of the shape of X
            Probabilities, for discrete rows; the likeliest levels of categories of a frame.

        References
        ----------
        .. [1] Efron (2011), "Tweedie's formula and selection bias", JASA 106(496), equation 2.8.
        """
        check_is_fitted(self)
        table = self._recipe.table
        if isinstance(table.domain, Mixed):
            raise ValueError(
                "denoise is for rows of one kind of columns, numbers, bits or categories, and "
                "these have several: fit the columns of one kind alone, or use impute for single "
                "entries."
            )
        if not table.discrete:
            return self._denoise_real(X, noise_level)
        whole_number("n_steps", n_steps, 2)
        level = number_in("noise_level", 0.1 if noise_level is None else noise_level, "(0, 0.5)")
        rows, generator = self._rows(X), self._generator(random_state)
        sampler, x = self.sampler_, rows.block(0, len(rows))
        mean = discrete_posterior_mean(self.energy_, sampler, x, level, generator, n_steps)
        if table.by_column:
            return table.invert(mean)
        return mean.cpu().double().numpy().reshape(-1, *self.row_shape_)

    def _denoise_real(self, X: Any, noise_level: float | None) -> np.ndarray:
        """Posterior mean by Tweedie's formula, with the density of noisy rows."""
        rows, table = self._rows(X), self._recipe.table
        recipe = self._recipe
        noisy = recipe.family.noisy_energy(recipe, self._energy_of_net)
        several = getattr(noisy, "noise_levels", None) is not None
        sigma = self._noise_to_remove(noise_level)

        def denoise(x: Tensor) -> Tensor:
            cond = sigma.to(x).expand(len(x)) if several else None
            return x - sigma.to(x).square() * noisy.value_and_grad(x, cond)[1]

        z = rows.map(denoise)
        table.check_finite(z.numpy(), rows, "the posterior mean")
        return table.invert(z)

    def _noise_to_remove(self, noise_level: float | None) -> Tensor:
        """Noise to remove, in units of the energy; `ValueError` for a level not trained on."""
        levels, sigma = self._recipe.family.rule.levels, self._noise_of_model()
        if noise_level is None:
            if sigma is None:
                raise ValueError(
                    "This model was trained without noise: pass the noise level of the rows as "
                    "noise_level, in standard deviations of the columns."
                )
            return sigma
        if not (isinstance(noise_level, Real) and 0 < float(noise_level) < math.inf):
            raise ValueError(f"noise_level must be a positive number, got {noise_level!r}.")
        if levels is not None and not levels[0] <= noise_level <= levels[1]:
            raise ValueError(
                f"noise_level={noise_level} is outside the levels of training, {levels}."
            )
        if levels is None and sigma is not None:
            raise ValueError(
                "This model was trained at a single noise level: omit noise_level, or use "
                'objective="multiscale" for several levels.'
            )
        return torch.tensor(float(noise_level), dtype=torch.float64)

    def _noise_of_model(self) -> Tensor | None:
        """The noise level of the density that the model is; the smallest of several."""
        family = self._recipe.family
        if family.rule.levels is not None:
            return torch.tensor(family.rule.levels[0], dtype=torch.float64)
        return family.sigma if family.rule.knows_noise else None

    # ---------------------------------------------------------------- attributes

    @property
    def sampler_(self) -> Sampler:
        """Sampler of the chains."""
        check_is_fitted(self)
        return self._recipe.family.rule.final_sampler(self.net_)

    @property
    def sigma_(self) -> Any:
        """Noise level of training, in the units of `sigma`; smallest and largest of several."""
        check_is_fitted(self)
        family = self._recipe.family
        if family.rule.levels is not None:
            return family.rule.levels
        return None if family.noise is None else family.noise.astype(np.float64)

    @property
    def base_(self) -> Distribution | None:
        """The fitted base, in the units of the energy."""
        check_is_fitted(self)
        return self._recipe.base.clean

    @property
    def units_(self) -> Units:
        """Centres and scales of the columns."""
        check_is_fitted(self)
        return self._recipe.table.units

    @property
    def row_shape_(self) -> tuple[int, ...]:
        """Shape of a row."""
        check_is_fitted(self)
        return self._recipe.table.row_shape
