"""Score matching, of neural densities of real rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, clone
from torch import Tensor

from skebm._validation import Interval, StrOptions, as_numbers, draw_seed
from skebm.base import Domain, Sampler
from skebm.distributions import Distribution
from skebm.energies import NeuralEnergy
from skebm.estimators.neural.family import Rule, hmc_of
from skebm.estimators.neural.objectives.base import REAL_ROWS, NeuralObjective, TrainingStart
from skebm.estimators.tables.bases import (
    REAL_BASES,
    Bases,
    MixtureBase,
    fit_real_bases,
    gap_noise,
    noise_level,
)
from skebm.estimators.tables.table import Table
from skebm.objectives import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
)
from skebm.objectives.log_partition import LogPartitionMonitor
from skebm.objectives.score_matching import Rowwise
from skebm.training.rows import Rows


class Sliced(BaseEstimator):
    """Settings of sliced score matching, ``objective="sliced"``.

    Parameters
    ----------
    n_projections : int, default=1
        Number of directions per row and step.
    projection : {"rademacher", "gaussian"}, default="rademacher"
        Distribution of the directions.

    Examples
    --------
    >>> from skebm import ScoreMatchingDensity
    >>> from skebm.estimators import Sliced
    >>> ScoreMatchingDensity(objective=Sliced(n_projections=4)).objective
    Sliced(n_projections=4)
    """

    _parameter_constraints: dict = {
        "n_projections": [Interval(Integral, 1, None, closed="left")],
        "projection": [StrOptions({"rademacher", "gaussian"})],
    }

    def __init__(self, *, n_projections=1, projection="rademacher"):
        self.n_projections = n_projections
        self.projection = projection


@dataclass(frozen=True)
class MatchingRule(Rule):
    """Training by score matching.

    Attributes
    ----------
    sampler : Sampler
    name : {"denoising", "exact", "sliced", "multiscale"}
    sliced : Sliced
    leaves_out : bool
        Whether the kernel centred on a row is left out at that row.
    levels : tuple of float or None
        Smallest and largest noise level of ``"multiscale"``.
    """

    sampler: Sampler
    name: str
    sliced: Sliced
    leaves_out: bool
    levels: tuple[float, float] | None = None
    has_ceiling = True

    @property
    def holds_out(self) -> bool:  # type: ignore[override]
        """Rows of training are numbers of kernels if these are left out."""
        return self.levels is None and not self.leaves_out

    @property
    def knows_noise(self) -> bool:  # type: ignore[override]
        return self.name in ("denoising", "multiscale")

    def default_sampler(self, domain: Domain) -> Sampler:
        return hmc_of(None, set())

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> Rowwise:
        found = self._matching(energy, sigma)
        found.leaves_out = self.leaves_out
        if self.holds_out:
            found.log_partition_monitor = LogPartitionMonitor.of(energy)
        return found

    def _matching(self, energy: NeuralEnergy, sigma: Any) -> Rowwise:
        if self.levels is not None:
            return MultiscaleScoreMatching(energy, *self.levels)
        if self.name == "denoising":
            return DenoisingScoreMatching(energy, sigma)
        if self.name == "exact":
            return ExactScoreMatching(energy, sigma)
        sliced = self.sliced
        return SlicedScoreMatching(energy, sliced.n_projections, sliced.projection, sigma)

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        if "sigma" in asked and self.name in ("exact", "sliced"):
            return {"sigma": f'objective="{self.name}" adds no noise (objective="denoising" does)'}
        return {}


class ScoreMatching(NeuralObjective):
    """Score matching, without sampling in training; of real rows.

    See :class:`skebm.ScoreMatchingDensity` for the method and its references.

    Parameters
    ----------
    form : {"denoising", "exact", "sliced", "multiscale"} or Sliced, default="denoising"
        ``"denoising"`` fits the density of rows with the noise `sigma`, ``"exact"`` that of rows as
        they are, by the exact trace of the Hessian, ``"sliced"`` by an unbiased estimate of it
        (settings in :class:`Sliced`), ``"multiscale"`` those of rows at a range of noise levels.

    Examples
    --------
    >>> from skebm import NeuralDensity
    >>> from skebm.estimators import ScoreMatching
    >>> model = NeuralDensity(objective=ScoreMatching(form="sliced"))
    >>> model.set_params(objective__form__n_projections=4).objective
    ScoreMatching(form=Sliced(n_projections=4))
    """

    FORMS: ClassVar[tuple[str, ...]] = ("denoising", "exact", "sliced", "multiscale")
    _parameter_constraints: dict = {"form": [StrOptions(set(FORMS)), Sliced]}
    _configs = {"form": lambda value, names: Sliced() if value == "sliced" else None}
    takes = REAL_ROWS | {
        "base": [StrOptions({"auto", *REAL_BASES}), MixtureBase, Distribution, None],
        "sigma": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto", "bandwidth", "kurtosis"}),
            "array-like",
        ],
    }

    def __init__(self, *, form="denoising"):
        self.form = form

    @property
    def name(self) -> str:
        """Name of the form."""
        return "sliced" if isinstance(self.form, Sliced) else self.form

    def check(self, model: Any) -> None:
        check_bounds_are_kept(self.name, model.bounds)

    def sampler_of_names(self, value: Any, names: set[str]) -> Sampler:
        return hmc_of(value, names)

    def fit_bases(
        self, model: Any, base: Any, rows: Rows, table: Table
    ) -> tuple[Bases, np.ndarray | None]:
        levels = levels_of(self.name, model.sigma, rows.n_columns)
        seed, noise = draw_seed(model.random_state_), None
        if self.name == "denoising":
            noise = noise_level(model.sigma, rows)
        elif self.name != "multiscale":
            noise = gap_noise(rows, getattr(model, "feature_names_in_", None))
        kind: dict[str, Any] = {
            "deconvolve": model.deconvolve,
            "several": levels is not None,
            "stacks": "all",
            "verbose": int(model.verbose),
        }
        bases = fit_real_bases(base, rows, table.units, noise, seed, **kind)
        return bases, None if noise is None else noise.cpu().numpy()

    def rule(self, model: Any, start: TrainingStart) -> MatchingRule:
        rows, name = start.rows, self.name
        if start.rule is None:
            levels = levels_of(name, model.sigma, rows.n_columns)
            leaves_out = start.base == "kernel" and len(rows) == rows.n_table > 2
            # Kernels stand at distinct rows; those that recur are known from their copies anyway.
            clean: Any = start.bases.clean
            leaves_out = leaves_out and len(clean.centres) == len(rows)
        else:
            check_objective_stays(start.rule.name, name)
            levels, leaves_out = start.rule.levels, False
        sliced = clone(self.form) if isinstance(self.form, Sliced) else Sliced()
        sampler = hmc_of(None, set()) if model.sampler is None else clone(model.sampler)
        return MatchingRule(sampler, name, sliced, leaves_out, levels)


def check_bounds_are_kept(objective: str, bounds: Any) -> None:
    """Raise `ValueError` for bounds with an objective that adds noise."""
    if objective in ("denoising", "multiscale") and bounds is not None:
        raise ValueError(
            f"objective={objective!r} adds noise, which would move rows out of `bounds`: use "
            'objective="exact" or "sliced", whose weights vanish at the bounds.'
        )


def check_objective_stays(before: str, now: str) -> None:
    """Raise `ValueError` if training would continue with an objective for another density."""
    clean = ("exact", "sliced")
    if before != now and not (before in clean and now in clean):
        raise ValueError(
            f"warm_start and partial_fit continue with weights trained by objective={before!r}, "
            f"which cannot be used for {now!r}: clone the estimator to start anew."
        )


def levels_of(objective: str, sigma: Any, n_columns: int) -> tuple[float, float] | None:
    """Smallest and largest noise level of a multi-scale model; None for other objectives."""
    if objective != "multiscale":
        return None
    # Smallest noise level of a multi-scale model, in standard deviations of the columns.
    least_level = 0.05
    if isinstance(sigma, str):
        if sigma != "auto":
            raise ValueError(
                f'sigma={sigma!r} is a single level; objective="multiscale" takes "auto" or a pair '
                "(smallest, largest)."
            )
        # Noise of half the distance between rows connects all modes.
        return least_level, max(2.0, math.sqrt(n_columns / 2))
    pair = as_numbers("sigma", sigma).ravel()
    if len(pair) != 2 or not 0 < pair[0] < pair[1] < math.inf:
        raise ValueError(
            f'objective="multiscale" needs sigma=(smallest, largest), 0 < smallest < largest, got '
            f"{sigma!r}."
        )
    return float(pair[0]), float(pair[1])
