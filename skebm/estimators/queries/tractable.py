"""Tractable distributions of table rows as density estimators, without a network."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin
from torch import Tensor

from skebm._validation import (
    Interval,
    StrOptions,
    boolean_columns,
    check_columns,
    check_is_fitted,
    check_random_state,
    check_weight,
    column_ranges,
    distinct_rows,
    draw_seed,
    fit_context,
    mask_as_missing,
    sample_that_varies,
    validate_data,
    warn,
)
from skebm.base import SamplingWarning
from skebm.base.processes import TasksMixin
from skebm.distributions import (
    Affine,
    Distribution,
    Gaussian,
    GaussianMixture,
    KernelDensity,
    SignedLog,
    Stack,
)
from skebm.distributions._fitting import usable_scale
from skebm.distributions.stack import with_broad_part
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic, non_default_parameters, warn_without_effect
from skebm.estimators.queries.joint import Joint
from skebm.estimators.queries.mixin import QueriesMixin
from skebm.estimators.tables.bases import complete_numbers
from skebm.estimators.tables.blocks import check_known
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.completions import FitsOfCompletions, fit_column_stack
from skebm.estimators.tables.gross import without_gross_rows
from skebm.estimators.tables.table import (
    Table,
    column_table,
    impossible_if_far,
    plain_number_table,
    shown_names,
)
from skebm.estimators.tables.units import extreme_factors
from skebm.training.rows import Rows
from skebm.training.streams import SourceMixin

# Rows for each component of a mixture, and most components.
ROWS_PER_COMPONENT, MOST_COMPONENTS = 100, 40
# Most rows that kernels are placed at and mixtures are fitted to: scoring a row takes time for
# each kernel. Most products of an EM step: rows times components times squared columns.
MOST_ROWS, MOST_WORK = 5000, 4e8
# Draws that stand in for training rows where a density is looked for.
N_REFERENCE = 1000
# Rows that are scored at a time, a multiple of those of a chunk.
BLOCK = 20_480
# Regularisation from which components need no prior, and nats per row at which EM ends.
SMOOTH, TOLERANCE = 0.01, 1e-3
# Weight of the normal component that keeps rows beside narrow components and kernels possible. With
# that of one row, held-out rows of many columns would be more likely, by the normal component in
# place of the distances to others, which rank anomalies better: of optdigits 0.99, and then 0.95.
BROAD_SHARE = math.exp(-40)
# Proposals at a time, and fewest for each sample; where fewer are accepted, samples are resampled.
CHUNK, MOST_PROPOSALS = 1000, 200
# Parameters that only some distributions use.
USED_BY = {
    "n_components": ("mixture",),
    "regularisation": ("mixture",),
    "metric": ("kernel",),
    "n_neighbors": ("kernel",),
}


class TractableDensity(
    QueriesMixin, DocLinkMixin, SourceMixin, TasksMixin, DensityMixin, BaseEstimator
):
    r"""Density of the rows of a table by a distribution with a closed form, exactly normalised.

    These are the distributions that neural densities correct. They take a fraction of the time of
    neural densities, and their log-likelihoods have no error. Marginals and conditionals of any
    columns are exact as well: scores of rows with missing entries, predictions of a column from
    others with their quantiles, imputations.

    Columns of text, categories and booleans of a frame are levels and bits; a table of these alone
    is modelled by latent classes (:class:`skebm.distributions.LatentClasses`). With numbers beside
    them, the stack has latent classes and mixtures whose numbers are correlated within a class
    (:class:`skebm.distributions.CorrelatedClasses`). Entries may be missing in `fit`, too. Latent
    classes are fitted to the known ones by expectation-maximisation. Where there are numbers,
    missing entries are drawn in turn from a mixture and from the distribution itself, given the
    known ones, and these are fitted to the completed rows (stochastic EM); the model is the average
    of three such fits. These draws, and imputations by a model that was fitted to such rows, are
    without its kernels, as a kernel at a completed row returns its completion (of ``"kernel"``,
    they are of one Gaussian), and with the covariances of components widened by what few rows
    leave open. Both assume that entries are missing at random.

    Parameters
    ----------
    distribution : {"stack", "kernel", "mixture", "gaussian"}, default="stack"
        ``"stack"``: Gaussian mixtures of several sizes and kernels, weighted by the likelihood of
        held-out rows (:meth:`skebm.distributions.Stack.fit`). ``"kernel"``: a normal kernel at each
        row, with the bandwidth that maximises the leave-one-out likelihood, at most 2.56 units of
        `metric`. ``"mixture"``: a Gaussian mixture by EM. ``"gaussian"``: one Gaussian, whose
        covariance is shrunk. Kernels and mixtures are fitted to 5,000 random rows if there are
        more. A normal component with the moments of all rows, whose covariance is shrunk, joins
        them, so that no row is much less likely than under one normal distribution: by 40 nats at
        most with kernels and mixtures, and by log(n + 1) nats with a stack.
    n_components : int or "auto", default="auto"
        Number of components of a mixture. ``"auto"`` is one for every hundred rows, at most 40, or
        fewer if a step of EM would take more than 4e8 products.
    regularisation : float in [0, 1), default=1e-3
        Minimum variance of a component of a mixture, relative to that of its column. A value of 0.1
        makes a mixture smooth, and similar to a kernel density with few kernels; below 0.01,
        covariances also have the prior of :meth:`skebm.distributions.GaussianMixture.fit`.
    metric : {"standard", "range", "log"}, default="standard"
        Unit in which the bandwidth of ``"kernel"`` is the same for all columns: the standard
        deviation of a column, or its range over :math:`\sqrt{12}`, which is the standard deviation
        if values are uniform in that range. ``"log"``: kernels are in signed logarithms of the
        columns, linear within their interquartile range (:class:`~skebm.distributions.SignedLog`).
    n_neighbors : int or None, default=None
        With ``"kernel"``, the bandwidth at a row is proportional to the distance to its
        `n_neighbors`-th nearest other distinct row. None: all bandwidths are equal.
    categorical_features : {"from_dtype"}, array-like or None, default="from_dtype"
        Names, numbers or a mask of the columns of categories. ``"from_dtype"``: those of text and
        categories in frames, and of objects other than numbers in arrays.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    distribution_ : Distribution
        The fitted distribution, in float64: of columns of numbers in their own units; of bits,
        levels and standardised numbers where there are several kinds.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    ScoreMatchingDensity : Such a distribution and a network that corrects it.
    ProductOfDensities : Several of them multiplied, which ranks anomalies well.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skebm import TractableDensity
    >>> X = load_wine().data[:, :4]
    >>> model = TractableDensity(random_state=0).fit(X[::2])
    >>> bool(model.score(X[1::2]) > TractableDensity("gaussian").fit(X[::2]).score(X[1::2]) - 0.1)
    True
    >>> model.sample(3, random_state=0).shape
    (3, 4)
    """

    _parameter_constraints: dict = {
        "distribution": [StrOptions({"stack", "kernel", "mixture", "gaussian"})],
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "regularisation": [Interval(Real, 0, 1, closed="left")],
        "metric": [StrOptions({"standard", "range", "log"})],
        "n_neighbors": [Interval(Integral, 1, None, closed="left"), None],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        distribution="stack",
        *,
        n_components="auto",
        regularisation=1e-3,
        metric="standard",
        n_neighbors=None,
        categorical_features="from_dtype",
        random_state=None,
    ):
        self.distribution = distribution
        self.n_components = n_components
        self.regularisation = regularisation
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.categorical_features = categorical_features
        self.random_state = random_state

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TractableDensity:
        """Fit the distribution to the rows of X.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            Numbers, in any units; in frames also text, categories and booleans. NaN marks missing
            entries.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale. Equal rows are one row of their total
            weight.

        Returns
        -------
        self : TractableDensity
        """
        X, header, sample_weight = self._in_memory(X, sample_weight)
        X, mixed = self._learn_columns(X)
        if header is not None:
            check_columns(self, header, reset=True)
        weight = check_weight(sample_weight, X)
        X, weight = without_gross_rows(self, X, weight)
        warn_without_effect(self._without_effect(mixed))
        generator = torch.Generator().manual_seed(draw_seed(self._common_random()))
        if weight is not None:
            X, weight = X[weight > 0], weight[weight > 0]
        names = shown_names(getattr(self, "feature_names_in_", None), X.shape[1])
        if mixed:
            self._table = column_table(X, weight, self._coding, names)
            rows = self._table.rows(
                X, device=torch.device("cpu"), dtype=torch.float64, weight=weight
            )
            rows.complete(self._table.widths)
            found = fit_column_stack(rows, self._table.domain, generator)
            self.distribution_, self._imputer = found
            return self
        self._table = plain_number_table(names)
        X, weight = distinct_rows(X, weight)
        x = torch.tensor(X)  # a copy, as X may be read-only
        w = torch.ones(len(x), dtype=x.dtype) if weight is None else torch.tensor(weight)
        factor = extreme_factors(*column_ranges(X))
        if factor is None:
            self.distribution_, self._imputer = self._fit_known(x, w.double(), generator)
            return self
        # Variances of such columns are no numbers: only the scale knows of their size.
        scale = torch.tensor(factor)
        both = self._fit_known(x * scale, w.double(), generator)
        self.distribution_, self._imputer = (
            Affine(found, torch.zeros_like(scale), scale) for found in both
        )
        return self

    def _learn_columns(self, X: Any) -> tuple[np.ndarray, bool]:
        """Validated X, its categories as codes, and whether columns are not all numbers."""
        X = mask_as_missing(X)
        has_bits = bool(boolean_columns(X))
        self._coding = Coding.learn(X, self.categorical_features)
        if self._coding is not None:
            check_columns(self, X, reset=True)
            found = self._coding.encode(X, 1, type(self).__name__)
            self._coding.warn_of_identifiers(found)
            return found, True
        kind: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        found = validate_data(self, X, **kind)
        check_known(found, getattr(self, "feature_names_in_", None))
        return found, has_bits

    def _without_effect(self, mixed: bool) -> dict[str, str]:
        """Parameters that were set and are not used, and why."""
        if mixed and self.distribution != "stack":
            raise ValueError(
                f'distribution="{self.distribution}" is one of numbers, and these columns are of '
                'several kinds: leave distribution="stack", which takes classes for them, '
                "or encode them as numbers (TableEncoder)."
            )
        return {
            name: f'distribution="{self.distribution}" does not use it'
            for name in non_default_parameters(self)
            if self.distribution not in USED_BY.get(name, (self.distribution,))
        }

    def _fit_known(
        self, x: Tensor, w: Tensor, generator: torch.Generator
    ) -> tuple[Distribution, Distribution]:
        """The distribution of numbers, some missing, nan, and what draws missing entries."""
        known = ~x.isnan()
        if bool(known.all()):
            found = self._fit_distribution(x, w, generator)
            return found, found
        rows = Rows(x, w, dtype=x.dtype, device=x.device)
        rows.complete((1,) * x.shape[1])
        x = complete_numbers(rows.block(0, len(rows)), known, w, generator)
        fit = functools.partial(self._fit_distribution, w=w, generator=generator)
        fits = FitsOfCompletions.of(x, known, w, fit, generator)
        if self.distribution == "gaussian":
            one = Gaussian.fit(torch.cat(fits.rows), w.repeat(len(fits.rows)))
            return one, one
        return fits.averages(independent_normal(x, known, w))

    def _fit_distribution(self, x: Tensor, w: Tensor, generator: torch.Generator) -> Distribution:
        if self.distribution == "gaussian":
            return Gaussian.fit(x, w)
        if self.distribution == "stack":
            return Stack.fit(x, w, generator=generator)
        return with_broad_part(self._fit_local(x, w, generator), x, w, BROAD_SHARE)

    def _fit_local(self, x: Tensor, w: Tensor, generator: torch.Generator) -> Distribution:
        """A mixture or kernels, whose components may all be narrow."""
        size: float = min(len(x) // ROWS_PER_COMPONENT, MOST_COMPONENTS)
        if len(x) > MOST_ROWS:
            some = torch.randperm(len(x), generator=generator)[:MOST_ROWS]
            index, weight = sample_that_varies(x.numpy(), w.numpy(), some.numpy())
            x, w = x[index], torch.from_numpy(weight)
        if self.distribution == "mixture":
            size = min(size, MOST_WORK // (len(x) * x.shape[1] ** 2))
            n_components = max(1, int(size)) if self.n_components == "auto" else self.n_components
            kind: dict[str, Any] = {"regularisation": self.regularisation, "tol": TOLERANCE}
            if self.regularisation >= SMOOTH:  # no other prior is needed
                kind["prior_rows"] = 0.0
            return GaussianMixture.fit(x, w, n_components, generator=generator, **kind)
        if self.metric == "log":
            kernels = functools.partial(KernelDensity.fit, n_neighbours=self.n_neighbors)
            return SignedLog.fit(x, w, kernels)
        unit = None if self.metric == "standard" else (x.amax(0) - x.amin(0)) / 12**0.5
        return KernelDensity.fit(x, w, unit=unit, n_neighbours=self.n_neighbors)

    # ---------------------------------------------------------------- fitted models

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _joint(self) -> Joint:
        return Joint(self.distribution_, self._table.groups)

    def _joint_of_imputations(self) -> Joint:
        return Joint(self._imputer, self._table.groups)

    def _query_input(self, X: Any) -> Any:
        X = mask_as_missing(X)
        if self._coding is not None:
            check_columns(self, X, reset=False)
            return self._coding.encode(X, 1, type(self).__name__)
        kind: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return validate_data(self, X, reset=False, **kind)

    def _rows_of_input(self, X: Any) -> Tensor:
        if not self._table.discrete:  # numbers are rows as they are
            return torch.tensor(X)
        found = self._table.rows(X, device=torch.device("cpu"), dtype=torch.float64)
        return found.block(0, len(found))

    @property
    def _query_table(self) -> Table:
        return self._table

    def _log_z_ends(self) -> tuple[float, float]:
        return 0.0, 0.0

    def _query_reference(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return self.distribution_.sample(N_REFERENCE, generator)

    def _check_rows(self, X: Any) -> Tensor:
        """Complete rows of new X; `ValueError` for missing entries."""
        check_is_fitted(self)
        x = self._rows_with_holes(X)
        if x.isnan().any():
            raise ValueError("Input X contains NaN: fill it in by impute.")
        return x

    def _log_densities(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        x = self._rows_with_holes(X)
        if x.isnan().any():
            return self._log_marginals(x).log_prob
        found = impossible_if_far(torch.from_numpy(self._by_blocks(x, "log_prob")), x)
        return found.numpy() - self._table.log_volume

    def _by_blocks(self, x: Tensor, method: str) -> np.ndarray:
        """A method of the distribution on rows, some at a time to save memory."""
        evaluate = getattr(self.distribution_, method)
        with torch.no_grad():
            found: np.ndarray = torch.cat([evaluate(rows) for rows in x.split(BLOCK)]).numpy()
        return found

    def score_samples(self, X: Any) -> np.ndarray:
        """Log p(x) of each row in nats, or of its known entries; exact.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._log_densities)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows in nats; exact.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
        """
        return float(self.score_samples(X).mean())

    def score_function(self, X: Any) -> np.ndarray:
        """Score of each row: the gradient of log p(x), in nats per unit of the columns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        if self._table.discrete:
            raise ValueError("There are no gradients of log p over bits and levels.")
        return self._by_blocks(self._check_rows(X), "score")

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
    ) -> Any:
        r"""Draw independent rows from the model, :math:`p(x)^{1/T}` normalised.

        Draws are exact at temperature 1. For a normal distribution they are exact at all other
        temperatures as well: its covariance is multiplied by T. For the other distributions,
        proposals come from their components at T, which give a bound on
        :math:`p(x)^{1/T}`, and draws are exact if at least one in 200 is accepted. Otherwise, and
        above 1 with ``metric="log"``, which has no such bound, proposals are resampled by their
        importance weights, with a warning: rows may then be repeated, and are approximate.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
        temperature : float, default=1.0
            T > 0, by which -log p is divided: above 1 rows are more random, below 1 nearer to the
            most probable ones.
        given : array-like, data frame, dict or None, default=None
            A row whose known entries are fixed, and whose missing entries, NaN, are drawn; frames
            and dicts may leave columns out. Or `n_samples` such rows. Draws are exact.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features)
            A data frame if `fit` was given one with categories.
        """
        self._check_draws(n_samples, temperature, given)
        if given is not None:
            return self._sample_given(given, int(n_samples), random_state)
        random = check_random_state(random_state)
        if temperature == 1:
            generator = torch.Generator().manual_seed(draw_seed(random))
            return self._table.invert(self.distribution_.sample(int(n_samples), generator))
        if not self.distribution_.has_tempered:
            raise ValueError(
                f"temperature={temperature} needs a power of a mixture of classes, which has no "
                "closed form: use temperature=1.0."
            )
        proposal, log_bound = tempered(self, temperature)
        bounded = math.isfinite(log_bound)

        def propose(n: int) -> tuple[np.ndarray, np.ndarray]:
            x = proposal.sample(n, draw_seed(random))
            log_p = self._by_blocks(torch.tensor(x), "log_prob") / temperature
            log_r = proposal._by_blocks(torch.tensor(x), "log_prob")
            return x, log_p - log_r - (log_bound if bounded else 0.0)

        if bounded:
            return draw_by_rejection(propose, int(n_samples), random)
        why = f'have unbounded weights at temperature {temperature} with metric="log"'
        return resample_proposals(propose, int(n_samples), random, why)


def independent_normal(x: Tensor, known: Tensor, weight: Tensor) -> Gaussian:
    """Independent normal columns with the moments of their known entries."""
    share = known * weight[:, None]
    share = share / share.sum(0)
    mean = (share * x).sum(0)
    variance = (share * (x - mean).square()).sum(0)
    return Gaussian(mean, usable_scale(variance, variance > 0))


def tempered(density: TractableDensity, temperature: float) -> tuple[TractableDensity, float]:
    r"""A density r near the power 1 / T of another one, and the log of a bound of their ratio.

    The bound M has :math:`p(x)^{1/T} \le M r(x)`; its log is infinite where there is none.
    """
    found, log_bound = density.distribution_.tempered(temperature)
    copied = copy.copy(density)
    copied.distribution_ = found
    return copied, log_bound


Propose = Callable[[int], tuple[np.ndarray, np.ndarray]]


def draw_by_rejection(
    propose: Propose, n_samples: int, random: np.random.RandomState
) -> np.ndarray:
    """Rows by rejection sampling, exact; resampled, with a warning, if too few are accepted.

    Parameters
    ----------
    propose : callable
        Maps a number of proposals to their rows and to the log ratios of the density to the
        proposals, which are at most 0.
    n_samples : int
    random : RandomState
    """
    rows, ratios, accepted, n = [], [], [], 0
    while n < max(MOST_PROPOSALS * n_samples, CHUNK):
        x, log_ratio = propose(CHUNK)
        keep = np.log(random.random_sample(CHUNK)) < log_ratio
        rows.append(x)
        ratios.append(log_ratio)
        accepted.append(x[keep])
        n += CHUNK
        if sum(map(len, accepted)) >= n_samples:
            return np.concatenate(accepted)[:n_samples]
    x, log_ratio = np.concatenate(rows), np.concatenate(ratios)
    return _resample(x, log_ratio, n_samples, random, "are accepted seldom")


def resample_proposals(
    propose: Propose, n_samples: int, random: np.random.RandomState, why: str
) -> np.ndarray:
    """Rows among proposals by their importance weights, with a warning that says `why`."""
    n_chunks = math.ceil(max(MOST_PROPOSALS * n_samples, CHUNK) / CHUNK)
    found = [propose(CHUNK) for _ in range(n_chunks)]
    x, log_ratio = (np.concatenate(part) for part in zip(*found, strict=True))
    return _resample(x, log_ratio, n_samples, random, why)


def _resample(
    x: np.ndarray, log_ratio: np.ndarray, n_samples: int, random: np.random.RandomState, why: str
) -> np.ndarray:
    share = np.exp(log_ratio - logsumexp(log_ratio))
    ess = 1 / float(np.square(share).sum())
    warn(
        f"Proposals {why}: the samples are resampled from {len(x)} of them, with an effective "
        f"sample size of {ess:.0f}, and are approximate.",
        SamplingWarning,
    )
    found: np.ndarray = x[random.choice(len(x), n_samples, p=share)]
    return found
