"""Partition functions: what log Z is, and how far to trust it."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm.base.energy import Energy, check_energy
from skebm.base.sampler import Sampler


class LogPartition(NamedTuple):
    r"""An estimate of log Z with what is known about it.

    Attributes
    ----------
    value : float
        The estimate, in nats.
    std_error : float
        Standard error of `value`; 0 when exact, ``nan`` where the error is not one of sampling.
    lower, upper : float
        Interval for log Z; ``nan`` where the method gives no bound on that side.
    bound_kind : {"exact", "probabilistic", "heuristic"}
        Whether the ends that are not ``nan`` hold for certain, with stated probability, or are
        guesses.
    ess : float
        Effective sample size of the weights; ``inf`` when exact, ``nan`` where there are none.
    parts : dict of str to (float, float)
        The estimates that the interval was made of, each with its standard error.
    reason : str
        Why an end of the interval is ``nan``, where the premises of a bound failed.
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
        """Largest credible log Z: the upper end, or two standard errors where there is none.

        ``nan`` where neither is known.
        """
        return self.value + 2 * self.std_error if math.isnan(self.upper) else self.upper


class PartitionEstimator(BaseEstimator, abc.ABC):
    """A way to compute log Z of any energy it supports; holds configuration and nothing else.

    `uses` names the arguments that :meth:`estimate` looks at, so that others need not be made.
    """

    uses: ClassVar[tuple[str, ...]] = ("base", "sampler", "x")

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for a kind of energy, `ValueError` for one, that this cannot take."""
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
        """Estimate log Z, accumulating in float64; `x` are rows near the model, by origin."""
