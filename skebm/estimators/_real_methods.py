"""What a fitted density of real rows does: slopes, samples, imputation, denoising."""

from __future__ import annotations

import math
from numbers import Real as RealNumber
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import Clamp, Sampler
from skebm.base.checks import whole_number
from skebm.distributions import Distribution
from skebm.distributions._fitting import draw_index
from skebm.objectives import boundary_weight
from skebm.samplers import HMC, AnnealedLangevin
from skebm.training.rows import Rows

# Rows that chains hold at a time.
BLOCK = 4096
# Draws of the base for each row that is wanted: those that the model likes are kept.
N_PROPOSALS = 20
# Draws of the base that carry the weight, below which it is too far from the model to start at.
FEWEST_CARRIERS = 10
# Second derivatives that are worked out at once.
AT_ONCE = 32
# Chains that tune a sampler together, at least.
LEAST_CHAINS = 64


class RealMethods(BaseEstimator):
    """Methods of a fitted density of real rows; mixed into its estimator."""

    energy_: Any
    _noisy_energy: Any
    sampler: Any
    units_: Any
    row_shape_: tuple[int, ...]
    _fitted_rows: Any
    _rows_like_energy: Any
    _map: Any
    _validate: Any
    _generator: Any
    _to_units: Any
    _trained_noise: Any
    _reference: np.ndarray
    net_: Any

    def score_function(self, X: Any) -> np.ndarray:
        r"""Gradient of log p with respect to the row, :math:`-\nabla E(x)`; needs no log Z.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of the shape of X
            In nats per unit of each column. Zero beyond walls.
        """
        rows, domain = self._fitted_rows(X), self.units_.domain

        def score(energy: Any, x: Tensor) -> Tensor:
            return -energy.value_and_grad(x)[1] * domain.contains(x)[:, None]

        found = self._map(rows, score).double().numpy() / self.units_.scale
        return found.reshape(len(rows), *self.row_shape_)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Any = None,
        n_steps: int = 100,
    ) -> np.ndarray:
        """Draw rows from the model, or from what it says of some columns given others.

        Draws of the base are resampled by how much more likely the model finds them (so all modes
        of the base get their share), then moved by `n_steps` of the sampler: approximate, exact as
        both grow. Without a base, or far from it, chains start at rows that training knew; a model
        of several noise levels comes down these from normal noise.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        given : array-like of shape (n_features,) or None, default=None
            A row whose numbers are held, and whose NaN are drawn.
        n_steps : int, default=100
            Steps of the chains, after as many that tune the sampler.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        check_is_fitted(self)
        whole_number("n_samples", n_samples, 1)
        whole_number("n_steps", n_steps, 1)
        generator, n = self._generator(random_state), max(n_samples, LEAST_CHAINS)
        if given is None:
            return self._to_units(self._draw(self.energy_, n, generator, n_steps)[:n_samples])
        row = np.asarray(given, dtype=np.float64)[None]
        if row.shape[1:] != self.row_shape_ or np.isinf(row).any():
            raise ValueError(
                f"given must be one row of shape {self.row_shape_} of finite numbers and NaN, got "
                f"{given!r}."
            )
        x = self._rows_like_energy(row).block(0, 1).expand(n, -1)
        z = self._to_units(self._fill(self.energy_, x, generator, n_steps)[:n_samples])
        return np.where(np.isnan(row), z, row)

    def impute(self, X: Any, random_state: Any = None, *, n_steps: int = 100) -> np.ndarray:
        """Fill NaN entries by a draw from the model given the entries that are known.

        Draws of the base given the known entries are resampled by the model, then moved by the
        sampler with the known entries clamped. The fill-ins of a row are one joint draw,
        approximate as the chains are finite. A row of NaN alone is a sample of the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            NaN marks what is unknown.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        n_steps : int, default=100
            Steps of the chains, after as many that tune the sampler.

        Returns
        -------
        ndarray of the shape of X
            Known entries are returned as they are.
        """
        check_is_fitted(self)
        whole_number("n_steps", n_steps, 1)
        X = self._validate(X, ensure_all_finite="allow-nan")
        self._rows_like_energy(X)  # that those without a hole are rows, too
        filled, unknown = X.copy(), np.isnan(X)
        some = np.flatnonzero(unknown.reshape(len(X), -1).any(1))
        if len(some):
            generator, rows = self._generator(random_state), self._rows_like_energy(X[some])
            blocks = [
                self._fill(self.energy_, rows.block(start, start + BLOCK), generator, n_steps)
                for start in range(0, len(rows), BLOCK)
            ]
            filled[unknown] = self._to_units(torch.cat(blocks))[unknown[some]]
        return filled

    def denoise(self, X: Any, noise_level: float | None = None) -> np.ndarray:
        r"""Posterior mean of the clean row, given that normal noise was added to it.

        Tweedie's formula [1]_, :math:`x + \sigma^2 \nabla \log p_\sigma(x)` with the density of
        noisy rows. A model that was trained at levels of noise knows that density: the formula is
        then exact for the model. One trained by exact or sliced score matching knows the density of
        clean rows, and the result holds to the first order in :math:`\sigma^2`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        noise_level : float or None, default=None
            Standard deviation of the noise in standard deviations of each column (in units of X
            with ``standardize=False``). None is the level of training (of several the smallest).

        Returns
        -------
        ndarray of the shape of X

        References
        ----------
        .. [1] Efron (2011), "Tweedie's formula and selection bias", JASA 106(496), equation 2.8.
        """
        rows = self._fitted_rows(X)
        sigma = self._noise_of(noise_level)

        def moved(energy: Any, x: Tensor) -> Tensor:
            several = getattr(energy, "noise_levels", None) is not None
            cond = sigma.to(x).expand(len(x)) if several else None
            return x - sigma.to(x).square() * energy.value_and_grad(x, cond)[1]

        noisy = self._noisy_energy
        return self._to_units(rows.map(lambda x: moved(noisy, x)))

    # ---------------------------------------------------------------- without log Z

    def _proper_score(self, rows: Rows) -> Tensor:
        """Minus the Hyvärinen score in the units of X, inside walls with weights; (n,)."""
        h, slope_of_h = (part.numpy() for part in self._boundary(rows))
        slope, second_derivative = self._bends(rows)
        turn = slope_of_h / self.units_.scale
        return torch.as_tensor(second_derivative - ((h * slope / 2 - turn) * slope).sum(1))

    def _score_and_laplacian(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Laplacian of log p, for :mod:`skebm._densities`."""
        slope, second_derivative = self._bends(self._fitted_rows(X), weighted=False)
        return -slope, -second_derivative

    def _boundary(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Weights of entries near walls, (n, d), and their slopes."""
        both = rows.map(lambda x: torch.stack(boundary_weight(x, self.units_.domain), 2))
        return both[:, :, 0].double(), both[:, :, 1].double()

    def _bends(self, rows: Rows, weighted: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Gradient of E (n, d) and the sum of its second derivatives (n,), in units of X."""
        scale = torch.as_tensor(self.units_.scale)

        def found(energy: Any, x: Tensor) -> Tensor:
            h = boundary_weight(x, energy.domain)[0] if weighted else torch.ones_like(x)
            axes = (h.sqrt() / scale.to(x)).diag_embed()
            parts = [energy.second_derivatives(x, some) for some in axes.split(AT_ONCE, 1)]
            second_derivative = torch.stack([part.second_derivative for part in parts]).sum(0)
            return torch.cat([parts[0].grad / scale.to(x), second_derivative[:, None]], 1).detach()

        both = self._map(rows, found).double().numpy()
        return both[:, :-1], both[:, -1]

    def _partition_inputs(self) -> dict[str, Any]:
        energy = self.energy_
        like = next(energy.parameters())
        x = torch.as_tensor(self._reference, dtype=like.dtype, device=like.device)
        generator = torch.Generator(like.device).manual_seed(self.net_.seed_)
        return {
            "base": self._proposal(energy),
            "sampler": self.sampler_,
            "x": x,
            "generator": generator,
        }

    # ---------------------------------------------------------------- chains

    @property
    def sampler_(self) -> Sampler:
        """What moves chains: a copy of `sampler`, or HMC that tunes itself."""
        if self.sampler is not None:
            return clone(self.sampler)
        return HMC(n_leapfrog=5, adapt=True, scale="auto")

    def _draw(self, energy: Any, n: int, generator: torch.Generator, n_steps: int) -> Tensor:
        """Rows drawn from an energy of the model."""
        blocks = []
        for done in range(0, n, BLOCK):
            size = min(BLOCK, n - done)
            start = self._starts(energy, size, generator)
            blocks.append(self.sampler_.run(energy, start, n_steps, generator)[0].x)
        return torch.cat(blocks)

    def _starts(self, energy: Any, n: int, generator: torch.Generator) -> Tensor:
        if energy.noise_levels is not None:
            low, high = energy.noise_levels
            like = next(energy.parameters())
            kind = {"dtype": like.dtype, "device": like.device}
            x = torch.randn(n, energy.domain.n_columns, generator=generator, **kind)
            ladder = AnnealedLangevin(sigma_max=high, sigma_min=low, n_levels=20)
            return ladder.run(energy, x * math.hypot(1, high), 200, generator)[0].x
        proposal = self._proposal(energy)
        if proposal is not None:
            proposals = proposal.sample(N_PROPOSALS * n, generator)
            log_w = _log_weights(energy, proposal, proposals)
            share = log_w.softmax(0)
            if float(share.square().sum()) * FEWEST_CARRIERS < 1:
                return proposals[_picked(share, n, generator)]
        known = self._known_rows().to(next(energy.parameters()))
        return known[_picked(self._shares(energy, known), n, generator)]

    def _shares(self, energy: Any, known: Tensor) -> Tensor:
        """Shares of rows that training knew among the starts of chains, (n,)."""
        return torch.ones(len(known), dtype=torch.float64, device=known.device)

    def _known_rows(self) -> Tensor:
        """Rows from which chains may start."""
        return torch.as_tensor(self._reference)

    def _fill(self, energy: Any, x: Tensor, generator: torch.Generator, n_steps: int) -> Tensor:
        """Rows whose NaN are drawn given the other entries."""
        known = ~x.isnan()
        clamp = Clamp(known, torch.nan_to_num(x))
        start = self._fill_starts(energy, clamp, generator)
        return self.sampler_.run(energy, start, n_steps, generator, clamp=clamp)[0].x

    def _fill_starts(self, energy: Any, clamp: Clamp, generator: torch.Generator) -> Tensor:
        n = len(clamp.mask)
        exact = energy.base is not None and energy.base.has_given
        if not exact or energy.noise_levels is not None:
            return clamp.apply(self._starts(energy, n, generator))
        # All of a row at once: what depends on which entries are known is then done once.
        repeated = Clamp(*(part.repeat_interleave(N_PROPOSALS, 0) for part in clamp))
        draws = energy.base.given(repeated).sample(generator)
        log_w = _log_weights(energy, energy.base, draws).view(n, N_PROPOSALS)
        picked = _picked(log_w.softmax(1), n, generator)
        return draws.unflatten(0, (n, N_PROPOSALS))[torch.arange(n), picked]

    def _proposal(self, energy: Any) -> Distribution | None:
        """What draws are weighed by the model: the base, which it corrects."""
        return energy.base

    def _noise_of(self, noise_level: float | None) -> Tensor:
        """Noise to take off, in units of the energy; `ValueError` for a level not learned."""
        trained = self._trained_noise
        if noise_level is None:
            if trained is None:
                raise ValueError(
                    "This model was trained without noise: pass the level that the rows have as "
                    "noise_level, in standard deviations of the columns."
                )
            return trained
        if not (isinstance(noise_level, RealNumber) and 0 < float(noise_level) < math.inf):
            raise ValueError(f"noise_level must be a positive number, got {noise_level!r}.")
        levels = self.energy_.noise_levels
        if levels is not None and not levels[0] <= noise_level <= levels[1]:
            raise ValueError(
                f"noise_level={noise_level} is outside the levels of training, {levels}."
            )
        if levels is None and trained is not None:
            raise ValueError(
                "This model knows one level of noise, that of its training: leave noise_level "
                'away, or use objective="multiscale" for a choice of levels.'
            )
        return torch.tensor(float(noise_level), dtype=torch.float64)


def _log_weights(energy: Any, proposal: Distribution, x: Tensor) -> Tensor:
    """log of the model over a proposal, up to a constant, (n,) in float64."""

    def log_weight(x: Tensor) -> Tensor:
        if proposal is energy.base:
            return -energy.correction(x).double()
        return -energy(x).double() - proposal.log_prob(x).double()

    with torch.no_grad():
        return torch.cat([log_weight(part) for part in x.split(BLOCK)])


def _picked(share: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Numbers of n draws by their shares, (k,), or of one draw by each row's own, (n, k)."""
    u = torch.rand(n, generator=generator, dtype=share.dtype, device=share.device)
    return draw_index(share, u)
