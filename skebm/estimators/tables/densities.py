"""Estimators as bases: anything with ``fit``, ``score_samples`` and ``sample``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from torch import Tensor

from skebm._validation import check_is_fitted, set_seeds
from skebm.base import Binary, Domain, Real
from skebm.distributions import Distribution
from skebm.estimators.queries.densities import draw_rows, fit_weighted, log_density, score_function
from skebm.estimators.tables.units import Units
from skebm.training.rows import Rows

# What an estimator needs to be a base.
METHODS = ["fit", "score_samples", "sample"]


class EstimatorDensity(Distribution):
    """The density of a fitted estimator, as a distribution of rows in the units of an energy.

    Units are changed here, in double precision, as single precision is too little for large means.

    Its log-probabilities and draws are the estimator's, and as exact as these; the score is known
    where `queries/densities.py: score_function` knows it, and a `TypeError` elsewhere.

    Parameters
    ----------
    estimator : object
        Fitted; with ``score_samples`` in nats and ``sample``.
    domain : Domain
        Of the rows in the units of the energy.
    units : Units or None
        None for those of the data.
    """

    def __init__(self, estimator: Any, domain: Domain, units: Units | None = None):
        self.estimator, self.domain, self.units = estimator, domain, units
        self.like = torch.zeros(0, dtype=torch.float64)  # of the device and precision of draws

    def log_prob(self, x: Tensor) -> Tensor:
        value = torch.as_tensor(log_density(self.estimator, self._of_data(x))).to(x)
        return value if self.units is None else value + self.units.log_volume

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        seed = torch.randint(2**32 - 1, (), generator=generator, device=generator.device)
        try:
            drawn = draw_rows(self.estimator, n, np.random.RandomState(int(seed)))
        except NotImplementedError as error:  # kernels of scikit-learn that have no draws
            raise ValueError(
                f"base={self.estimator!r} has no draws, which training needs: pass one whose "
                "sample works, such as GaussianMixture() or "
                "KernelDensity(kernel='gaussian')."
            ) from error
        found = drawn if self.units is None else self.units.apply(drawn)
        return torch.as_tensor(found).to(self.like)

    def score(self, x: Tensor) -> Tensor:
        found = score_function(self.estimator, self._of_data(x))
        return torch.as_tensor(found if self.units is None else found * self.units.scale).to(x)

    def _of_data(self, x: Tensor) -> np.ndarray:
        """Rows in the units of the data, in double precision."""
        rows = x.detach().cpu().double().numpy()
        return rows if self.units is None else self.units.invert(rows)


def check_one_kind(base: Any, domain: Domain) -> None:
    """Raise `ValueError` where an estimator cannot be the base of rows of a domain."""
    plain = isinstance(domain, Real | Binary) and domain == type(domain)(domain.shape)
    if not plain:
        raise ValueError(
            f"base={type(base).__name__} is a density of numbers or of bits, but X has {domain}: "
            'name a base, as base="auto", or code the columns as numbers.'
        )


def fit_density(
    base: Any, rows: Rows, domain: Domain, units: Units | None, seed: int
) -> EstimatorDensity:
    """A clone of an estimator, fitted to rows in the units of the data; a frozen one as it is.

    `ValueError` for columns of several kinds, for bounds, and for rows of different weights where
    ``fit`` takes no ``sample_weight``.
    """
    check_one_kind(base, domain)
    x = rows.block(0, len(rows)).cpu().double().numpy()
    x = x if units is None else units.invert(x)
    model = base
    if isinstance(base, FrozenEstimator):
        check_is_fitted(base)
    else:
        model = clone(base)
        set_seeds(model, np.random.RandomState(seed))
        weight = None if rows.weight is None else rows.weight.cpu().double().numpy()
        if weight is not None and (weight == weight[0]).all():
            weight = None
        fit_weighted(model, x, weight)
    return EstimatorDensity(model, domain, units)
