"""What a fitted RBM does with rows: features, samples, imputation, denoising."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import BipartiteEnergy, Clamp, Sampler
from skebm.energies import Tilted
from skebm.estimators._rbm_settings import CHEAP_COST
from skebm.partition import cheaper_side
from skebm.samplers import Gibbs

# Rows that one Gibbs run holds in memory.
BLOCK = 4096


class RBMMethods(TransformerMixin, BaseEstimator):
    """Methods of a fitted RBM; mixed into its estimator."""

    def transform(self, X: Any) -> np.ndarray:
        """Probability that each hidden unit is on, p(h_j = 1 given x).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            In the precision of X.
        """
        check_is_fitted(self)
        X = self._validate(X)
        rows = self._rows_like_energy(X)
        features = self._map(rows, lambda energy, x: energy.hidden(x).mean)
        return features[:, : self._n_features_out].numpy().astype(X.dtype, copy=False)

    def pseudo_likelihood(self, X: Any) -> np.ndarray:
        """Pseudo-log-likelihood of each row, every bit, exact and deterministic.

        The sum over columns of log p(x_i given the other columns), in nats. Neither a lower nor an
        upper bound of log p(x).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)

        References
        ----------
        Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).
        """
        return self._proper_score(self._fitted_rows(X)).double().numpy()

    def reconstruct(self, X: Any) -> np.ndarray:
        """Mean-field reconstruction: the mean of x given the mean of h given x.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        rows = self._fitted_rows(X)
        mean = self._map(rows, lambda energy, x: energy.visible(energy.hidden(x).mean).mean)
        return self._to_units(mean[:, : self.n_features_in_])

    def gibbs(self, v: Any) -> np.ndarray:
        """One Gibbs step from v: h given v, then v given h. Each call draws anew.

        Parameters
        ----------
        v : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Booleans as in scikit-learn; in the units of the data where columns were scaled.
        """
        rows = self._fitted_rows(v)
        generator = self._generator(self.random_state_)
        state, _ = self._blocks.run(self.energy_, rows.block(0, len(rows)), 1, generator)
        if len(self.scaling_.columns):
            return self._to_units(state.x.cpu())
        return state.x.cpu().numpy().astype(bool)

    @property
    def _blocks(self) -> Sampler:
        """What draws whole layers, for annealing and :meth:`gibbs`, whatever trains the model.

        Nothing that moves single bits forgets as fast where there are two layers.
        """
        return self._layers.kernel

    @property
    def _layers(self) -> Sampler:
        """What fills in and draws rows: the sampler, tempered or not, if it draws whole layers."""
        return self.sampler_ if isinstance(self.sampler_.kernel, Gibbs) else Gibbs()

    def sample(
        self, n_samples: int = 1, random_state: Any = None, *, n_steps: int = 1000
    ) -> np.ndarray:
        """Draw rows from the model.

        Exact and independent where the states can be enumerated (at most 1e7 terms). Otherwise the
        last rows of Gibbs chains of `n_steps`, started at the persistent chains or training rows:
        approximate, the better the faster the model mixes.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        n_steps : int, default=1000
            Length of the chains, where they are needed.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        check_is_fitted(self)
        _check_count("n_samples", n_samples)
        _check_count("n_steps", n_steps)
        return self._to_units(self._draw(n_samples, self._generator(random_state), n_steps))

    def _draw(self, n: int, generator: torch.Generator, n_steps: int = 1000) -> Tensor:
        """Binary rows of the model, exact where the states can be enumerated."""
        energy = self.energy_
        with torch.no_grad():
            if energy.enumeration_cost() <= CHEAP_COST:
                return _exact_sample(energy, n, generator)
            start = self._chains()
            if start is None:
                start = (torch.as_tensor(self._reference) > 0.5).to(energy.weight)
            blocks = []
            for done in range(0, n, BLOCK):
                size = (min(BLOCK, n - done),)
                pick = torch.randint(len(start), size, generator=generator, device=start.device)
                blocks.append(self._layers.run(energy, start[pick], n_steps, generator)[0].x)
            return torch.cat(blocks)

    def impute(self, X: Any, random_state: Any = None, *, n_steps: int = 200) -> np.ndarray:
        """Fill NaN entries by a draw from the model given the entries that are known.

        Block Gibbs sampling with the known entries clamped; the fill-ins of a row are one joint
        draw, approximate as the chains are finite. A row of NaN alone is a sample of the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN marks what is unknown.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        n_steps : int, default=200
            Gibbs steps.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Known entries are returned as they are.
        """
        check_is_fitted(self)
        _check_count("n_steps", n_steps)
        X = self._validate(X, ensure_all_finite="allow-nan")
        rows, generator, energy = (
            self._rows_like_energy(X),
            self._generator(random_state),
            self.energy_,
        )
        blocks = []
        for start in range(0, len(rows), BLOCK):
            x = rows.block(start, start + BLOCK)
            known = ~torch.isnan(x)
            guess = energy.base.sample(len(x), generator)
            clamp = Clamp(known, torch.nan_to_num(x))
            state, _ = self._layers.run(energy, guess, n_steps, generator, clamp=clamp)
            blocks.append(state.x.cpu())
        filled = self._to_units(torch.cat(blocks))
        X = X.toarray() if hasattr(X, "toarray") else X
        return np.where(np.isnan(X), filled, X).astype(X.dtype)

    def denoise(
        self, X: Any, noise_level: float = 0.1, random_state: Any = None, *, n_steps: int = 200
    ) -> np.ndarray:
        r"""Posterior mean of the clean row, given that each bit was flipped with `noise_level`.

        The posterior :math:`p(x \mid \tilde x)` is the same RBM with visible biases shifted by
        :math:`(2 \tilde x - 1) \log\frac{1 - \epsilon}{\epsilon}`: the Bayes-optimal denoiser under
        the model. Its mean is an average of p(x given h) over the second half of `n_steps` Gibbs
        steps: unbiased up to the chains' burn-in.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        noise_level : float in (0, 0.5), default=0.1
            Probability that a bit was flipped.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        n_steps : int, default=200
            Gibbs steps.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Probabilities, in the units of the data where columns were scaled.
        """
        if not 0 < noise_level < 0.5:
            raise ValueError(f"noise_level must lie in (0, 0.5), got {noise_level}.")
        _check_count("n_steps", n_steps)
        rows = self._fitted_rows(X)
        generator, energy = self._generator(random_state), self.energy_
        strength = float(np.log((1 - noise_level) / noise_level))
        blocks = []
        for start in range(0, len(rows), BLOCK):
            x = rows.block(start, start + BLOCK)
            posterior = Tilted(energy, strength * (2 * x - 1))
            blocks.append(_posterior_mean(posterior, x, n_steps, generator).cpu())
        return self._to_units(torch.cat(blocks))

    def _to_units(self, x: Tensor) -> np.ndarray:
        return self.scaling_.invert(x.detach().cpu().double().numpy())


def at_least_two(x: Tensor) -> Tensor:
    """Rows, a single one twice: reverse annealing needs two for an error."""
    return x if len(x) > 1 else x.expand(2, -1)


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be at least 1 and an integer, got {value!r}.")


def _exact_sample(energy: Any, n: int, generator: torch.Generator) -> Tensor:
    """Independent exact draws: a state of the cheaper layer by its probability, then the other."""
    _, domain, function = cheaper_side(energy)
    kind = {"dtype": energy.weight.dtype, "device": energy.weight.device}
    states = domain.states(0, round(domain.n_states), **kind)
    cumulative = torch.softmax(-function(states).double(), 0).cumsum(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=kind["device"])
    pick = torch.searchsorted(cumulative, u * cumulative[-1]).clamp_(max=len(states) - 1)
    if domain is energy.domain:
        return states[pick]
    return energy.visible(states[pick]).sample(generator)


def _posterior_mean(
    energy: BipartiteEnergy, x: Tensor, n_steps: int, generator: torch.Generator
) -> Tensor:
    """Mean of x under a bipartite energy, by conditional means along a Gibbs chain from x."""
    total, burn_in = torch.zeros_like(x), n_steps // 2
    with torch.no_grad():
        for step in range(n_steps):
            conditional = energy.visible(energy.hidden(x).sample(generator))
            x = conditional.sample(generator)
            if step >= burn_in:
                total += conditional.mean
    return total / (n_steps - burn_in)
