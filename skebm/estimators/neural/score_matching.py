"""Neural densities trained by score matching."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from torch import Tensor

from skebm._validation import Interval, StrOptions, as_numbers, draw_seed
from skebm.base import Sampler
from skebm.distributions import Distribution
from skebm.energies import MLP, NeuralEnergy
from skebm.estimators._docs import shared_docs
from skebm.estimators.base import DENSITY_CONSTRAINTS, BaseDensity
from skebm.estimators.neural import methods
from skebm.estimators.neural.blueprint import (
    CONFIGS,
    HMC_CONFIG,
    NEURAL_CONSTRAINTS,
    NeuralBlueprint,
    Rule,
    network_of,
    neural_plan,
)
from skebm.estimators.tables.bases import (
    REAL_BASES,
    Bases,
    MixtureBase,
    fit_real_bases,
    gap_noise,
    noise_level,
)
from skebm.estimators.tables.table import FlatTable, Table
from skebm.objectives import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
)
from skebm.objectives.log_partition import LogPartitionMonitor
from skebm.objectives.score_matching import Rowwise
from skebm.samplers import HMC
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

OBJECTIVES = ("denoising", "exact", "sliced", "multiscale")
# Smallest noise level of a multi-scale model, in standard deviations of the columns.
LEAST_LEVEL = 0.05


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
    levels : tuple of float or None
        Smallest and largest noise level of ``"multiscale"``.
    leaves_out : bool
        Whether the kernel centred on a row is left out at that row.
    """

    sampler: Sampler
    name: str
    sliced: Sliced
    levels: tuple[float, float] | None
    leaves_out: bool

    @property
    def holds_out(self) -> bool:  # type: ignore[override]
        """Rows of training are numbers of kernels if these are left out."""
        return self.levels is None and not self.leaves_out

    @property
    def knows_noise(self) -> bool:  # type: ignore[override]
        return self.name in ("denoising", "multiscale")

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


@shared_docs
class ScoreMatchingDensity(BaseDensity):
    r"""Neural density of continuous columns by score matching, without sampling in training.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad E(x) = -\log q(x) + f(x)

    A base q is fitted first, and a network f that corrects it is trained by score matching: the
    gradient of log p is fitted to that of the data, which needs neither Z nor samples. The model
    starts as its base. log Z is estimated after training, when it is first needed, by importance
    sampling from the base, which is cheap as the base is near the model. If there are 50 rows or
    more, a tenth, at most 100, are held out from the network to monitor training; if they do not
    become more likely than under the base, training ends early, and the model is the base.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        Network f, which maps rows (n, ...) to one number per row, (n,), and must be twice
        differentiable for the objectives with second derivatives. None is
        :class:`skebm.energies.MLP`, whose parameters can be searched over by ``network__<name>``.
        :class:`skebm.energies.Conv` takes images (n, C, H, W). A callable builds a module from a
        :class:`skebm.energies.Spec`; a module is copied with its weights.
    objective : {"denoising", "exact", "sliced", "multiscale"} or Sliced, default="denoising"
        ``"denoising"``: denoising score matching [2]_, which fits the density of rows with noise of
        level `sigma`; it is the cheapest, and bounded below on any data. ``"exact"``: score
        matching with the exact trace of the Hessian [1]_, for up to about 64 columns. ``"sliced"``:
        with an unbiased estimate of the trace along random directions [3]_; settings in
        :class:`Sliced`.
        ``"multiscale"``: denoising score matching at a range of noise levels, for images and for
        annealed sampling; its density at the smallest level is less accurate.
    base : str, MixtureBase, Distribution or None, default="auto"
        Base distribution q: ``"gaussian"`` (with shrunk covariance, or truncated at `bounds`),
        ``"mixture"`` (a Gaussian mixture; settings in :class:`MixtureBase`), ``"kernel"``
        (Gaussian kernels of several scales, fitted by leave-one-out; the kernel of a row is also
        left out in training) or ``"stack"`` (Gaussian mixtures of several sizes and kernels,
        weighted by held-out rows: :class:`skebm.distributions.Stack`; with more than 100 columns,
        only mixtures whose covariances are low-rank plus diagonal). ``"auto"`` is the stack for
        clean rows and for more than 100 columns, the mixture for other rows, and the Gaussian if
        there are bounds or several noise levels; the attribute `base_` shows what was chosen. A
        distribution of :mod:`skebm.distributions` is used as it is, in the units of X. None is no
        base; log Z then exists only if columns are bounded on both sides.
    sigma : float, array-like, "auto", "bandwidth" or "kurtosis", default="auto"
        Standard deviation of the noise, or one for each column, in standard deviations of the
        columns (in units of X with ``standardize=False``). ``"bandwidth"`` is the bandwidth that
        maximises the leave-one-out likelihood of a kernel density; ``"auto"`` is 0.75 times that
        bandwidth, between 0.05 and 1; ``"kurtosis"`` is the rule of [4]_, which adds more noise to
        columns with heavy tails. For several levels it is a pair (smallest, largest); ``"auto"`` is
        then 0.05 to half the distance between rows. Exact and sliced score matching add noise only
        to columns with few distinct values.
    <<deconvolve>>
    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Bounds (lower, upper) of the columns, with None for an unbounded side; all columns are
        bounded on the same sides. Only for exact and sliced score matching, whose weights vanish at
        the bounds.
    <<standardize, learning_rate, batch_size, n_iter, optimizer, early_stopping, warm_start>>
    <<contamination, partition>>
    sampler : Sampler or None, default=None
        Sampler of real rows for samples and imputations; None is adaptive
        :class:`skebm.samplers.HMC`.
    <<compute>>

    Attributes
    ----------
    sigma_ : ndarray of shape (n_features,), tuple of float or None
        Noise level of training, in the units of `sigma`; smallest and largest of several levels.
    <<base_, units_, row_shape_, log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses (0 for a flat energy); ``gain_over_base``, the estimated mean
        log-likelihood ratio to the base, in nats; learning rate, seconds.
    <<n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    EnergyOutlierDetector : Outlier detection with a bounded rate of false alarms.
    skebm.inspection.EnergyDisplay : Contours of the energy with data and samples.

    References
    ----------
    .. [1] Hyvärinen (2005), "Estimation of non-normalized statistical models by score matching",
       JMLR 6.
    .. [2] Vincent (2011), "A connection between score matching and denoising autoencoders", Neural
       Computation 23(7).
    .. [3] Song, Garg, Shi and Ermon (2019), "Sliced score matching", UAI.
    .. [4] Livernoche, Zan and Rabbany (2026), arXiv 2605.06955 (levels from the kurtosis).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_moons
    >>> from skebm import ScoreMatchingDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = ScoreMatchingDensity(random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> model.sample(3, random_state=0).shape
    (3, 2)
    >>> model.predict([[0.0, 1.0], [10.0, 10.0]])
    array([ 1, -1])
    >>> model.impute([[np.nan, 1.0]], random_state=0).shape
    (1, 2)
    """

    _reads_files = True
    _parameter_constraints: dict = (
        DENSITY_CONSTRAINTS
        | NEURAL_CONSTRAINTS
        | {
            "objective": [StrOptions(set(OBJECTIVES)), Sliced],
            "base": [StrOptions({"auto", *REAL_BASES}), MixtureBase, Distribution, None],
            "sigma": [
                Interval(Real, 0, None, closed="neither"),
                StrOptions({"auto", "bandwidth", "kurtosis"}),
                "array-like",
            ],
            "deconvolve": ["boolean"],
        }
    )
    _configs = (
        CONFIGS
        | HMC_CONFIG
        | {"objective": lambda value, names: Sliced() if value == "sliced" else None}
    )
    _blueprint: NeuralBlueprint

    def __init__(
        self,
        network=None,
        *,
        objective="denoising",
        base="auto",
        sigma="auto",
        deconvolve=True,
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        batch_size="auto",
        n_iter="auto",
        optimizer=None,
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.objective = objective
        self.base = base
        self.sigma = sigma
        self.deconvolve = deconvolve
        self.bounds = bounds
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.sampler = sampler
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _accepted_input(self, *, reset: bool) -> dict[str, Any]:
        return {"allow_nd": not isinstance(self.network, MLP | None)}  # others may take images

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> FlatTable:
        return FlatTable.learn(X, weight, bounds=self.bounds, standardize=self.standardize)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralBlueprint:
        assert isinstance(table, FlatTable)
        sliced = self.objective if isinstance(self.objective, Sliced) else Sliced()
        name = "sliced" if isinstance(self.objective, Sliced) else self.objective
        check_bounds_are_kept(name, self.bounds)
        leaves_out = before is None and self.base == "kernel" and len(rows) == rows.n_table > 2
        if before is None:
            levels = levels_of(name, self.sigma, rows.n_columns)
            bases, noise = self._fit_bases(rows, table, name, several=levels is not None)
            # Kernels stand at distinct rows; those that recur are known from their copies anyway.
            clean: Any = bases.clean
            leaves_out = leaves_out and len(clean.centres) == len(rows)
        else:
            known: Any = self._blueprint
            check_objective_stays(known.rule.name, name)
            levels, bases, noise = known.levels, known.bases, known.noise
        sampler = self.sampler
        if sampler is None:
            sampler = HMC(n_leapfrog=5, adapt=True, scale="auto")
        return NeuralBlueprint(
            table=table,
            plan=neural_plan(self, rows.n_table, streaming=streaming),
            rule=MatchingRule(clone(sampler), name, clone(sliced), levels, leaves_out),
            network_config=network_of(self),
            bases=bases,
            noise=noise,
            levels=levels,
        )

    def _fit_bases(
        self, rows: Rows, table: FlatTable, name: str, *, several: bool
    ) -> tuple[Bases, np.ndarray | None]:
        """The base, and the noise level of training."""
        seed, noise = draw_seed(self.random_state_), None
        if name == "denoising":
            noise = noise_level(self.sigma, rows)
        elif name != "multiscale":
            noise = gap_noise(rows)
        kind: dict[str, Any] = {
            "deconvolve": self.deconvolve,
            "several": several,
            "stacks": "all",
            "verbose": int(self.verbose),
        }
        bases = fit_real_bases(self.base, rows, table.units, noise, seed, **kind)
        return bases, None if noise is None else noise.cpu().numpy()

    # ---------------------------------------------------------------- methods

    sample, impute, denoise = methods.sample, methods.impute, methods.denoise_real
    score_function = methods.score_function
    _score_and_laplacian = methods._score_and_laplacian
    sampler_, sigma_, base_ = methods.sampler_, methods.sigma_, methods.base_
    units_, row_shape_ = methods.units_, methods.row_shape_


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
    if isinstance(sigma, str):
        if sigma != "auto":
            raise ValueError(
                f'sigma={sigma!r} is a single level; objective="multiscale" takes "auto" or a pair '
                "(smallest, largest)."
            )
        # Noise of half the distance between rows connects all modes.
        return LEAST_LEVEL, max(2.0, math.sqrt(n_columns / 2))
    pair = as_numbers("sigma", sigma).ravel()
    if len(pair) != 2 or not 0 < pair[0] < pair[1] < math.inf:
        raise ValueError(
            f'objective="multiscale" needs sigma=(smallest, largest), 0 < smallest < largest, got '
            f"{sigma!r}."
        )
    return float(pair[0]), float(pair[1])
