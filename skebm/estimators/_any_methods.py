"""What a fitted density does whose rows are real, bits or one-hot columns."""

from __future__ import annotations

import math
from numbers import Real as Number
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import Categorical, Energy, Sampler
from skebm.base.checks import whole_number
from skebm.estimators._contrastive_settings import SampledRule, default_sampler
from skebm.estimators._real_methods import RealMethods
from skebm.objectives import pseudo_log_likelihood
from skebm.training.rows import Rows

# Rows whose chains are averaged at a time: all their draws are held.
BLOCK = 256


class AnyMethods(RealMethods):
    """Methods of real rows, with those of discrete rows where they differ."""

    n_chains: Any
    net_: Any
    _discrete: Any
    _settings: Any

    def score_function(self, X: Any) -> np.ndarray:
        r"""Gradient of log p with respect to the row, :math:`-\nabla E(x)`; needs no log Z.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Real rows; those of bits and of one-hot columns have no slopes: `ValueError`.

        Returns
        -------
        ndarray of the shape of X
            In nats per unit of each column. Zero beyond walls.
        """
        check_is_fitted(self)
        if self._discrete:
            raise ValueError(
                f"There are no slopes of log p over {self.units_.domain}: score_function is one "
                "of real rows."
            )
        return super().score_function(X)

    def denoise(
        self,
        X: Any,
        noise_level: float | None = None,
        random_state: Any = None,
        *,
        n_steps: int = 200,
    ) -> np.ndarray:
        r"""Posterior mean of the clean row, given a noisy one.

        Real rows: Tweedie's formula, :math:`x + \sigma^2 \nabla \log p_\sigma(x)`, exact for the
        model at its own level of noise and of the first order in :math:`\sigma^2` for one that was
        trained without noise. Discrete rows: each column was changed with probability
        `noise_level`; the mean over the second half of chains from the noisy rows, unbiased up to
        their burn-in.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        noise_level : float or None, default=None
            Standard deviation of the noise in standard deviations of each column; None is the
            level of training. Discrete rows: probability of a change; None is 0.1.
        random_state : int, RandomState instance or None, default=None
            Of discrete rows alone; None draws from NumPy's global generator.
        n_steps : int, default=200
            Sampler steps of discrete rows.

        Returns
        -------
        ndarray of the shape of X
            Of discrete rows probabilities.
        """
        check_is_fitted(self)
        if not self._discrete:
            return super().denoise(X, noise_level)
        whole_number("n_steps", n_steps, 2)
        level = 0.1 if noise_level is None else noise_level
        domain = self.units_.domain
        if not (isinstance(level, Number) and 0 < level < 0.5):
            raise ValueError(f"noise_level must lie in (0, 0.5), got {noise_level}.")
        rows, generator = self._fitted_rows(X), self._generator(random_state)
        if isinstance(domain, Categorical):
            others = torch.cat([torch.full((k,), k - 1.0) for k in domain.groups])
            fields = others.clamp_min(1).log() + math.log((1 - level) / level)
        else:
            fields = torch.full((rows.n_columns,), math.log((1 - level) / level))
        means = []
        for start in range(0, len(rows), BLOCK):
            x = rows.block(start, start + BLOCK)
            sign = x if isinstance(domain, Categorical) else 2 * x - 1
            noisy = Noisy(self.energy_, sign * fields.to(x))
            trace = self.sampler_.trace(noisy, x, n_steps, generator, n_warmup=0)
            means.append(trace.x[n_steps // 2 :].mean(0).cpu())
        return torch.cat(means).double().numpy().reshape(-1, *self.row_shape_)

    def _partition_inputs(self) -> dict[str, Any]:
        energy = self.energy_
        like = next(energy.parameters())
        starts = {"data": self._reference, "training chains": self._chains()}
        x = {k: torch.as_tensor(v).to(like) for k, v in starts.items() if v is not None}
        generator = torch.Generator(like.device).manual_seed(self.net_.seed_)
        sampler = self.sampler_
        if not sampler.exact or sampler.kernel is not sampler:
            sampler = default_sampler(energy.domain)
        return {"base": self._proposal(energy), "sampler": sampler, "x": x, "generator": generator}

    def _chains(self) -> Tensor | None:
        """Rows of the training chains, where those are the model's."""
        state = self.net_.state_
        if state is None or state.chain is None or not self.net_.module_.persistent:
            return None
        return state.chain.x

    def _count_chains(self, going_on: bool) -> None:
        """Remember how many chains there are: they go on, however many rows there are now."""
        chains = self._chains() if going_on else None
        self._n_chains = None if chains is None else len(chains)

    def _with_chains(self, rule: SampledRule) -> SampledRule:
        """The rule with as many chains as there are already, unless their number is asked for."""
        if self.n_chains == "auto" and self._n_chains:
            return rule._replace(n_chains=self._n_chains)
        return rule

    def _known_rows(self) -> Tensor:
        state, chains = self.net_.state_, self._chains()
        if chains is None and state is not None:
            chains = state.pool  # of a replay buffer
        return super()._known_rows() if chains is None else chains

    @property
    def sampler_(self) -> Sampler:
        """What moves chains: a copy of what training had, or had come down to."""
        state = self.net_.state_
        if state is None:
            return clone(self._settings.rule.sampler)
        return clone(self.net_.module_.kernel(state.halvings))

    def _proper_score(self, rows: Rows) -> Tensor:
        if self._discrete:
            return self._map(rows, pseudo_log_likelihood)
        return super()._proper_score(rows)


class Noisy(Energy):
    """Energy of clean rows, given noisy ones of which each entry tells something on its own."""

    def __init__(self, energy: Energy, field: Tensor):
        super().__init__()
        self.energy, self.field, self.domain = energy, field, energy.domain

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """E(x) - field' x, (n,)."""
        return self.energy(x) - (self.field * x).sum(1)
