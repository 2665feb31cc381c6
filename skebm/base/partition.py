"""Partition functions: estimates of log Z with their errors and bounds."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm.base.energy import Energy, check_energy
from skebm.base.sampler import Sampler


class LogPartition(NamedTuple):
    r"""An estimate of log Z with its standard error, bounds and diagnostics, in nats.

    Attributes
    ----------
    value : float
        The estimate, in nats.
    std_error : float
        Standard error of `value`; 0 when exact, ``nan`` where there is no sampling error to state.
    lower, upper : float
        Interval for log Z; ``nan`` where the method gives no bound on that side.
    bound_kind : {"exact", "certain", "probabilistic", "heuristic"}
        ``"exact"``: `lower`, `upper` and `value` are log Z itself. Otherwise whether the bounds
        that are not ``nan`` hold with certainty, with a stated probability, or without a guarantee.
    ess : float
        Effective sample size of the weights; ``inf`` when exact, ``nan`` where there are none.
    parts : dict of str to (float, float)
        The estimates from which the interval was made, each with its standard error.
    reason : str
        Why a bound is ``nan``, if its assumptions failed.
    """

    value: float
    std_error: float
    lower: float
    upper: float
    bound_kind: str
    ess: float
    parts: dict[str, tuple[float, float]] = {}
    reason: str = ""

    @property
    def pessimistic(self) -> float:
        """Largest credible log Z: `upper`, or without it `value` plus two standard errors.

        ``nan`` where neither is known.
        """
        return self.value + 2 * self.std_error if math.isnan(self.upper) else self.upper


class LogLikelihoods(NamedTuple):
    """Log-likelihoods of rows, in nats, whose log Z or sum over missing entries may be estimated.

    Attributes
    ----------
    log_prob : ndarray of shape (n_samples,)
        With the estimate itself, in the units of the data.
    std_error : ndarray of shape (n_samples,)
        Standard error of each by that of its own sums; 0 where they are exact.
    lower : ndarray of shape (n_samples,)
        Pessimistic end. For models of rows given conditions, log Z is by annealing from draws of
        the model back to the base: low on average if these are from the model. Equal to `log_prob`
        where it is exact.
    upper : ndarray of shape (n_samples,)
        Optimistic end. With log Z by annealing from the base, which is low on average, it is high
        on average.
    exact : ndarray of shape (n_samples,), bool
        Whether the value is exact: a sum over all states, or quadrature to 1e-4 nats or better.
    """

    log_prob: np.ndarray
    std_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    exact: np.ndarray

    def pessimistic_mean(self, std_error: float = 0.0) -> float:
        """Mean of `lower`, or of `log_prob` if that is smaller, minus two errors of the mean."""
        return min(float(self.lower.mean()), float(self.log_prob.mean())) - 2 * std_error


class PartitionEstimator(BaseEstimator, abc.ABC):
    """A method of computing log Z; holds its configuration and nothing else.

    `uses` names the arguments that :meth:`estimate` reads, so that others need not be made;
    `x_fits_base` says that it reads x only where no base is passed, to fit one; `along_training`
    that it takes an energy with the models that led to it.
    """

    uses: ClassVar[tuple[str, ...]] = ("base", "sampler", "x")
    x_fits_base: ClassVar[bool] = False
    along_training: ClassVar[bool] = False

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an unsupported class, `ValueError` for an unsupported energy."""
        check_energy(energy)

    @abc.abstractmethod
    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Estimate log Z in nats, accumulating in float64.

        `x` are rows distributed approximately like the model, or a dict of them by their origin.
        """
