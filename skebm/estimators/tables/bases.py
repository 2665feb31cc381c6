"""Base distributions q that energies correct: how ``base=`` is resolved and fitted.

Also the noise level of training, with which bases of real rows are convolved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import Interval, StrOptions, as_numbers, distinct_numbers_of, warn
from skebm.base import Batch, Binary, Categorical, Clamp, DataWarning, Domain, Mixed, Real
from skebm.base.domains import parts_of
from skebm.base.processes import progress_bar
from skebm.distributions import (
    Affine,
    BlockTree,
    CategoricalTree,
    ChowLiuTree,
    Columns,
    Distribution,
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    IndependentCategorical,
    KernelDensity,
    LatentClasses,
    NormalizingFlow,
    Stack,
    TruncatedGaussian,
)
from skebm.distributions.stack import covering_normal, with_broad_part
from skebm.distributions.transformed.flow import FLOWS
from skebm.estimators.tables.densities import METHODS, check_one_kind, fit_density
from skebm.estimators.tables.units import Units, list_columns
from skebm.objectives.joint.likelihood import UNKNOWN
from skebm.training.distributed import shows_progress
from skebm.training.rows import Rows

REAL_BASES = ("gaussian", "mixture", "kernel", "stack")
TREES = ("chow-liu", "block-tree")
DISCRETE_BASES = ("independent", *TREES)
# Of rows of bits, categories and numbers side by side.
LATENT = "latent-classes"
COLUMN_BASES = (*DISCRETE_BASES, "gaussian", LATENT)


class MixtureBase(BaseEstimator):
    """Settings of a Gaussian mixture as the base, ``base="mixture"``; fitted by EM.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of components. ``"auto"`` is one per hundred rows, at most 40 (128 for few columns),
        and fewer if EM would take long (one for 60,000 images of 28 x 28). If there are two or
        more, a broad one of the weight of one row joins them.

    Examples
    --------
    >>> from skebm import ScoreMatchingDensity
    >>> from skebm.estimators import MixtureBase
    >>> ScoreMatchingDensity(base=MixtureBase(n_components=3)).base
    MixtureBase(n_components=3)
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    def __init__(self, n_components="auto"):
        self.n_components = n_components


# ------------------------------------------------------------------------------
# Binary and one-hot rows
# ------------------------------------------------------------------------------

# Shrinkage of the means of independent columns towards 1/2.
SHRINKAGE = 1e-3
# Minimum number of binary rows drawn from a table of probabilities.
N_DRAWS = 20_000


# Columns of numbers up to which a base covers heavy tails, and standard deviations from which on a
# value is in one.
MOST_COVERED, FAR = 100, 8.0
# Rounds of fitting a base to completed rows and completing them by it: the more, the fewer entries
# these have in all. Few rows are completed several times, up to so many rows.
MOST_ROUNDS, FEWEST_ROUNDS, MOST_ENTRIES = 20, 3, 30_000_000
N_COMPLETED, MOST_COPIES = 20_000, 10
# Numbers that are drawn at once.
NUMBERS = 2_000_000
BY_NAME = {"independent": IndependentBernoulli, "chow-liu": ChowLiuTree, "block-tree": BlockTree}


def check_base_stays(base: Any, fitted: Distribution, name: str | None) -> None:
    """Raise `ValueError` if the base changes while training continues.

    `name` is that of the fitted base, or None if it was passed. ``"auto"`` keeps the fitted base.
    """
    if isinstance(base, str) and base in ("auto", name):
        return
    if isinstance(base, str) or type(base) is not type(fitted):
        raise ValueError(
            f"The weights correct the base of the first fit, {fitted}, and not base={base!r}: with "
            "warm_start and partial_fit it must not change. Clone the estimator to start anew."
        )
    if isinstance(base, Distribution) and not same_distribution(base, fitted):
        raise ValueError(
            f"The weights correct the base of the first fit, and base={base!r} is another one: "
            "with warm_start and partial_fit it must not change. Clone the estimator to start anew."
        )


def same_distribution(base: Distribution, fitted: Distribution) -> bool:
    """Whether two bases of one class have the same arrays, up to the rounding of float32."""
    ours, theirs = base.__getstate__(), fitted.__getstate__()
    arrays = [k for k, value in ours.items() if isinstance(value, np.ndarray)]
    return all(
        ours[k].shape == theirs[k].shape and np.allclose(ours[k], theirs[k], rtol=1e-5)
        for k in arrays
    )


def check_power(base: Distribution | None, temperature: float) -> None:
    """Raise `ValueError` if a temperature requires a power of a base that has none."""
    if temperature != 1 and base is not None and not base.has_powers:
        raise ValueError(
            f"temperature={temperature} needs a power of the base {base!r}, which has no closed "
            "form: use temperature=1.0, or fit the model with another base."
        )


def fit_base(base: Any, rows: Rows) -> Distribution:
    """Fit the named base to the rows, or check that a given one covers them.

    Means are shrunk by a fixed fraction, so that log-odds of constant columns are finite.
    Pseudo-counts would make the result depend on the scale of the weights.
    """
    if isinstance(base, Distribution):
        return _covering(base, rows)
    if base == LATENT:
        raise ValueError(
            f'base="{LATENT}" is for tables with columns of numbers or categories: of bits alone '
            'use "chow-liu" or "block-tree".'
        )
    # Shrinkage of the pairwise tables of a tree towards uniform ones: best or within 0.05 nats of
    # it on the validation parts of six DEBD sets of 1,600 to 29,000 rows.
    pair_shrinkage = 1e-4
    if base == "chow-liu":
        second = _accumulate(rows, lambda x, weight: (x * weight[:, None]).t() @ x)
        second.diagonal().copy_(column_means(rows))  # of probabilities, not of their squares
        return ChowLiuTree.from_moments(second, pair_shrinkage, rows.dtype, rows.device)
    if base == "block-tree":
        return BlockTree.fit(*_binary(rows))
    mean = column_means(rows) * (1 - SHRINKAGE) + SHRINKAGE / 2
    return IndependentBernoulli(torch.logit(mean).to(rows.dtype))


def fit_column_base(base: Any, rows: Rows, domain: Domain) -> Distribution:
    """Fit the named base to rows of bits, one-hot columns and real numbers, block by block.

    Trees are fitted to bits and categories, and ``"gaussian"`` has all covariances of the real
    columns; all other columns are independent. As categories are blocks already, a block tree is a
    Chow-Liu tree if there are any. ``"latent-classes"`` is one mixture of all columns.
    """
    if isinstance(base, Distribution):
        return _covering(base, rows)
    parts = parts_of(domain)
    x, weight, first = rows.block(0, len(rows)).double(), rows.counts, 0
    found: list[Distribution] = []
    if base == LATENT:
        classes = LatentClasses.fit(x, domain, weight, known=rows.known)
        far, n_discrete = x.clone(), classes.n_discrete
        known = None if rows.known is None else rows.known[:, n_discrete:].to(x.device)
        far[:, n_discrete:] = in_units_of_all(x[:, n_discrete:], weight, known)
        return classes.with_broad_class(far, weight, rows.known).to(rows.device, rows.dtype)
    if base in TREES and any(isinstance(part, Categorical) for part in parts):
        discrete = tuple(part for part in parts if not isinstance(part, Real))
        joined = Mixed(discrete) if len(discrete) > 1 else discrete[0]
        first, parts = joined.n_columns, parts[len(discrete) :]
        found.append(CategoricalTree.fit(x[:, :first], joined, weight))
    for part in parts:
        block = x[:, first : first + part.n_columns]
        first += part.n_columns
        if isinstance(part, Real):
            found.append(fit_normal(block, weight, diagonal=base != "gaussian"))
        elif isinstance(part, Categorical):
            found.append(_independent_levels(block, weight, part.groups))
        else:
            own = Rows(block.to(rows.dtype), weight, dtype=rows.dtype, device=rows.device)
            found.append(fit_base("independent" if base == "gaussian" else base, own))
    made: list[Distribution] = [part.to(rows.device, rows.dtype) for part in found]
    return made[0] if len(made) == 1 else Columns(made)


def fit_normal(x: Tensor, weight: Tensor, *, diagonal: bool) -> Gaussian:
    """A normal distribution of numbers (n, d) in the units of a table.

    Where tails are heavy it is in no direction narrower than the rows, and stays as wide in
    training: under one that is a little narrower a new row farther out is hundreds of nats less
    likely than under the normal distribution with the moments of the rows.
    """
    fitted = Gaussian.fit(x, weight, diagonal=diagonal)
    if not 0 < x.shape[1] <= MOST_COVERED:
        return fitted
    scale = fitted.covariance.diagonal().sqrt()
    if not bool(((x - fitted.mean).abs() > FAR * scale).any()):
        return fitted
    covering = covering_normal(in_units_of_all(x, weight), weight, diagonal=diagonal)
    covering.covers_tails = True
    return covering


def in_units_of_all(x: Tensor, weight: Tensor, known: Tensor | None = None) -> Tensor:
    """Standardised numbers (n, d), moved away from their means where they vary by less.

    In the units of a table standard deviations are 1. If those of some rows are less, others, which
    the base is not fitted to, are so far out that they set the units.
    """
    share = weight[:, None] * (1.0 if known is None else known.to(x))
    total = share.sum(0).clamp_min(1e-300)
    centre = (share * x).sum(0) / total
    variance = (share * (x - centre).square()).sum(0) / total
    is_narrow = (variance > 0) & (variance < 1)
    return centre + (x - centre) * torch.where(is_narrow, variance.rsqrt(), 1.0)


def fit_completed(fit: Callable[[Rows], Distribution], rows: Rows, base: Any) -> Distribution:
    """A base, by name or given, fitted to rows with missing entries, which become draws from it.

    In turn, rows are completed by draws from the base given the known entries, and the base is
    fitted to the completed rows. This is maximum likelihood by stochastic EM if entries are missing
    at random. Latent classes maximise the likelihood of the known entries themselves.
    """
    if rows.known is None:
        return fit(rows)
    generator = torch.Generator(rows.device).manual_seed(0)
    if isinstance(base, str) and base == LATENT:
        fitted = fit(rows)
        redraw(fitted, rows, generator)
        return fitted
    n_copies = max(1, min(MOST_COPIES, N_COMPLETED // len(rows)))
    copies = rows.copies(n_copies)
    affordable = MOST_ENTRIES // (len(copies) * copies.n_columns)
    for _ in range(min(MOST_ROUNDS, max(FEWEST_ROUNDS, affordable))):
        redraw(fit(copies), copies, generator)
    first = torch.arange(0, len(copies), n_copies, device=rows.device)
    every = torch.arange(len(rows), device=rows.device)
    rows.impute(Batch(copies.take(first), row_index=every))
    return fit(copies)


# Rounds of stochastic EM by a mixture of normals, and rows for each of its components.
MIXTURE_ROUNDS, ROWS_PER_COMPONENT, MOST_COMPONENTS = 10, 100, 10


@torch.no_grad()
def complete_numbers(
    x: Tensor, known: Tensor, weight: Tensor, generator: torch.Generator
) -> Tensor:
    """Rows of numbers whose missing entries are draws from a mixture of normals given the known.

    In turn, a mixture is fitted to completed rows, and these are completed by it.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Completed in some way.
    known : Tensor of shape (n, d), bool
    weight : Tensor of shape (n,)
    generator : torch.Generator
    """
    size = max(1, min(len(x) // ROWS_PER_COMPONENT, MOST_COMPONENTS))
    for _ in range(MIXTURE_ROUNDS):
        mixture = GaussianMixture.fit(x, weight, size, generator=generator)
        clamp = Clamp(known, x)
        x = clamp.apply(mixture.given(clamp).sample(generator))
    return x


def complete_in_units(rows: Rows, seed: int) -> None:
    """Complete rows of numbers by :func:`complete_numbers`; columns of few values stay so."""
    assert rows.known is not None
    generator = torch.Generator(rows.device).manual_seed(seed)
    with_observed_values(
        rows,
        lambda x, known: complete_numbers(x.double(), known, rows.counts.double(), generator),
    )


def with_observed_values(
    rows: Rows, complete: Callable[[Tensor, Tensor], Tensor], first: int = 0
) -> None:
    """Complete rows in another way; columns of few values have no others than the known ones.

    `complete` maps rows (n, d) that are completed by known values, and which entries are known, to
    rows. Columns before `first` are no numbers, and take what it returns.
    """
    assert rows.known is not None
    x, known = rows.block(0, len(rows)).clone(), rows.known.to(rows.device)
    gaps = resolution(x, first)
    found = complete(x, known).to(x).clone()
    for j in gaps.nonzero().ravel().tolist():
        values = x[known[:, j], j].unique()
        middle = (values[1:] + values[:-1]) / 2
        nearest = values[torch.bucketize(found[:, j].contiguous(), middle)]
        found[:, j] = torch.where(known[:, j], x[:, j], nearest)
    rows.impute(Batch(found, row_index=torch.arange(len(rows), device=rows.device)))


@torch.no_grad()
def redraw(base: Distribution, rows: Rows, generator: torch.Generator) -> None:
    """Complete rows anew by draws of the base given the known entries."""
    assert rows.known is not None
    size = max(1, NUMBERS // rows.n_columns)
    for index in torch.arange(len(rows), device=rows.device).split(size):
        x = rows.take(index)
        clamp = Clamp(rows.known[index.to(rows.known.device)].to(x.device), x)
        given = conditional(base, clamp) if base.has_tilted else base.given(clamp)
        drawn = clamp.apply(given.sample(generator).to(x))
        rows.impute(Batch(drawn, row_index=index))


def conditional(base: Distribution, clamp: Clamp) -> Any:
    """The base given known entries; `log_normaliser` is their log-probability."""
    return base.tilted(torch.zeros_like(clamp.value)).given(clamp)


def log_prob_of(base: Distribution, rows: Rows) -> Tensor:
    """Log-likelihood of each row, of its known entries, under a base; float64 (n,)."""
    x = rows.block(0, len(rows))
    with torch.no_grad():
        if rows.known is None:
            return base.log_prob(x).double()
        return conditional(base, Clamp(rows.known, x)).log_normaliser.double()


def mean_log_prob(base: Distribution, rows: Rows) -> float:
    """Mean log-likelihood of rows, of their known entries, under a base."""
    counts = rows.counts
    return float(counts / counts.sum() @ log_prob_of(base, rows))


def _independent_levels(x: Tensor, weight: Tensor, groups: tuple[int, ...]) -> Distribution:
    """Probabilities of levels, shrunk to equal ones by the fixed fraction."""
    mean = weight @ x / weight.sum()
    even = torch.cat([mean.new_full((k,), 1 / k) for k in groups])
    return IndependentCategorical(((1 - SHRINKAGE) * mean + SHRINKAGE * even).log(), groups)


def _binary(rows: Rows) -> tuple[Tensor, Tensor]:
    """Rows and their counts; probabilities are replaced by draws with a fixed seed."""
    x = rows.block(0, len(rows))
    if torch.equal(x, x.round()):
        return x, rows.counts
    copies = -(-N_DRAWS // len(x))
    x = x.repeat(copies, 1)
    u = torch.empty_like(x).uniform_(generator=torch.Generator(x.device).manual_seed(0))
    return (u < x).to(x.dtype), rows.counts.repeat(copies)


def column_means(rows: Rows) -> Tensor:
    """Weighted means of the columns, in float64."""
    return _accumulate(rows, lambda x, weight: weight @ x)


def _accumulate(rows: Rows, statistic: Any) -> Tensor:
    """Weighted mean of a statistic over the rows, in blocks and in float64."""
    counts, total = rows.counts, 0.0
    size = max(1, 2_000_000 // rows.n_columns)  # sparse rows become dense: 16 MB at a time
    for start in range(0, len(rows), size):
        x = rows.block(start, start + size).double()
        total = total + statistic(x, counts[start : start + size])
    return total / counts.sum()


def _covering(base: Distribution, rows: Rows) -> Distribution:
    """A copy of a given base on the rows' device, checked for compatibility with the rows."""
    if not base.has_tilted:
        raise ValueError(
            f"base={base!r} has no exact conditionals under unary fields, which block Gibbs "
            "sampling needs. Use a Chow-Liu tree or independent columns."
        )
    if base.domain.n_columns != rows.n_columns:
        raise ValueError(
            f"The base has {base.domain.n_columns} columns, but X has {rows.n_columns}."
        )
    base = copy.deepcopy(base).to(rows.device, rows.dtype)
    log_prob = rows.map(base.log_prob)
    if log_prob.isnan().any():
        raise ValueError(
            "The base gives rows of X the probability NaN: check that its parameters are finite."
        )
    impossible = ~log_prob.isfinite()
    if impossible.any():
        row = int(impossible.nonzero()[0, 0])
        raise ValueError(
            f"The base gives probability zero to {int(impossible.sum())} rows of X, first to row "
            f"{row}, which no energy can correct. Smooth the base."
        )
    if isinstance(base, IndependentBernoulli) and not base.logits.isfinite().all():
        columns = (~base.logits.isfinite()).nonzero().ravel().tolist()
        raise ValueError(f"The base has infinite log-odds in columns {columns}: smooth them.")
    return base


def fit_discrete_base(base: Any, rows: Rows, domain: Domain, seed: int) -> Distribution | None:
    """Fit the named base of discrete rows or an estimator, or check a given distribution."""
    if base is None:
        return None
    if isinstance(base, MixtureBase) or base in (*REAL_BASES, *FLOWS, "classes"):
        here = DISCRETE_BASES if isinstance(domain, Binary) else DISCRETE_BASES[:1]
        names = ", ".join(map(repr, here))
        raise ValueError(f"{base!r} is a distribution of real columns; on {domain} use {names}.")
    if is_density(base):
        base = fit_density(base, rows, domain, None, seed)
    if isinstance(base, Distribution):
        if base.domain != domain:
            raise ValueError(f"The base is on {base.domain}, but the rows are {domain}.")
        base = base.to(rows.device, rows.dtype)
        lost = ~rows.map(base.log_prob).isfinite()
        if lost.any():
            raise ValueError(
                f"The base gives probability zero to {int(lost.sum())} rows of X, first to row "
                f"{int(lost.nonzero()[0, 0])}, which no energy can correct. Smooth the base."
            )
        return base
    if isinstance(domain, Categorical):
        if base not in ("auto", "independent"):
            raise ValueError(
                f"{base!r} is a distribution of bits; on one-hot rows use 'independent'."
            )
        x = rows.block(0, len(rows))
        return IndependentCategorical.fit(x, domain.groups, rows.counts)
    return fit_base("chow-liu" if base == "auto" else base, rows)


def fit_mixed_base(base: Any, rows: Rows, domain: Domain) -> Distribution:
    """Fit the named base of rows of several kinds of columns, or check a given one."""
    if base is None:
        raise ValueError(
            f"base=None is not possible on {domain}: numbers need a base that keeps them from "
            f'infinity. Use "auto", which is "{LATENT}".'
        )
    if is_density(base):
        check_one_kind(base, domain)
    if base != "auto" and not isinstance(base, Distribution) and base not in COLUMN_BASES:
        names = ", ".join(map(repr, COLUMN_BASES))
        raise ValueError(f"{base!r} is a distribution of real columns; on {domain} use {names}.")
    return fit_column_base(LATENT if base == "auto" else base, rows, domain)


def is_density(base: Any) -> bool:
    """Whether a base is an estimator of a density."""
    named = isinstance(base, str | Distribution | type)
    return not named and all(hasattr(base, method) for method in METHODS)


def check_base_kind(base: Any, domain: Domain) -> None:
    """Raise `ValueError` for a discrete base of real rows, and `TypeError` for a class."""
    if isinstance(base, type):
        raise TypeError(f"base={base.__name__} is a class: pass base={base.__name__}().")
    if isinstance(base, str) and base in BY_NAME and isinstance(domain, Real):
        names = ", ".join(map(repr, REAL_BASES))
        raise ValueError(f"{base!r} is a distribution of bits; on real rows use {names}.")
    if (
        isinstance(base, Distribution)
        and isinstance(domain, Real)
        and not isinstance(base.domain, Real)
    ):
        raise ValueError(f"The base is on {base.domain}, but the rows are {domain}.")


# ------------------------------------------------------------------------------
# Real rows
# ------------------------------------------------------------------------------

# Rows per component of a mixture, up to a limit that falls with the number of columns, as the cost
# of a component grows with their square; and least weight of a component, in rows.
ROWS_PER_COMPONENT = 100
LEAST_ROWS = 2.5
# Number of columns above which the parts of a stack have covariances of low rank plus diagonal; and
# seconds after which the progress of its fit is shown.
MOST_STACKED, PATIENCE = 100, 2.0
# Maximum cost of an EM iteration: rows times components times squared columns.
MOST_WORK = 2.5e10
# Initialisations of EM, of which the best is kept, and number of rows above which there is one.
N_STARTS, MANY_ROWS = 4, 5000
# Scales of a kernel density base.
N_SCALES = 4
# Number of columns above which a Gaussian base has a diagonal covariance.
MAX_DENSE = 1000
# Smallest and largest noise level that is chosen automatically, in standard deviations.
LEVELS = (0.05, 1.0)
# A column is treated as discrete if its number of distinct values is below this fraction of the
# number of distinct rows.
DISTINCT = 0.5
# Rows at most that stand for those of few values, if weights are large.
MOST_SPREAD = 20_000


class Bases(NamedTuple):
    """Base that the network corrects in training, and base of the trained model."""

    noisy: Distribution | None
    clean: Distribution | None


def fit_real_bases(
    base: Any,
    rows: Rows,
    units: Units,
    sigma: Tensor | None,
    seed: int,
    *,
    deconvolve: bool = False,
    several: bool = False,
    stacks: str = "no",
    verbose: int = 0,
) -> Bases:
    """Fit a base to rows, with and without the noise of training.

    Parameters
    ----------
    base : str, MixtureBase, Distribution or None
        Parameter of an estimator; a distribution is in the units of the data.
    rows : Rows
    units : Units
    sigma : Tensor of shape (d,) or None
        Noise level of training, in units of the energy.
    seed : int
    deconvolve : bool
        Whether the trained model has the base of clean rows.
    several : bool
        Whether the energy has several noise levels, which needs a Gaussian base.
    stacks : {"no", "mixtures", "all"}
        Whether ``"auto"`` is a stack where the trained model is that of clean rows, and of what in
        training: that of the trained model has kernels as well.
    verbose : int
        1 shows a progress bar for a stack that takes over two seconds.
    """
    if base is None:
        return Bases(None, None)
    noisy: Distribution | None = None
    clean: Distribution
    domain: Any = units.domain
    unbounded = domain == Real(domain.shape)
    mixture = base if isinstance(base, MixtureBase) else MixtureBase()
    name = "mixture" if isinstance(base, MixtureBase) else base
    usual = name == "auto" and unbounded and not several
    wide, for_chains = rows.n_columns > MOST_STACKED, False
    if usual and (wide or stacks != "no" and (deconvolve or sigma is None)):
        name, for_chains = "stack", stacks != "all"
    if is_density(base):
        clean = fit_density(base, rows, domain, units, seed)
    elif isinstance(base, Distribution):
        clean = _in_units(base, rows, units)
    elif name == "stack" and unbounded:
        clean, trained = _stack(rows, seed, for_chains, deconvolve, verbose)
        if trained is not clean:
            noisy = trained if sigma is None else trained.convolved(sigma)
    elif name == "auto" and several:
        clean = _fit_named("gaussian", rows, domain)  # which is Gaussian at all noise levels
    elif name in ("auto", "mixture") and unbounded:
        # EM with the noise variance included fits components at its scale.
        noise = None if deconvolve else sigma
        clean = _mixture(rows, noise, seed, mixture.n_components)
        noisy = None if noise is None else clean
    elif name in FLOWS and unbounded:
        # A flow convolved with noise has no closed form, so it is fitted to noisy rows.
        clean = fit_flow(name, rows, sigma, seed)
    else:
        clean = _fit_named(name, rows, domain)
    clean = clean.to(rows.device, rows.dtype)
    if noisy is None and sigma is not None and clean.has_convolved:
        noisy = clean.convolved(sigma)
    noisy = clean if noisy is None else noisy.to(rows.device, rows.dtype)
    found = Bases(noisy, clean if deconvolve else noisy)
    _check_density(found.clean, rows)
    return found


def _mixture(rows: Rows, sigma: Tensor | None, seed: int, n_components: Any) -> GaussianMixture:
    """A Gaussian mixture with one component per hundred rows, or fewer if EM would be slow."""
    x, counts = rows.block(0, len(rows)), rows.counts
    total = len(distinct_numbers_of(x.cpu().numpy())[0])
    if n_components == "auto":
        most = min(128, max(40, 2000 // x.shape[1]), total // ROWS_PER_COMPONENT)
        n_components = int(max(1, min(most, MOST_WORK // (len(x) * x.shape[1] ** 2))))
    more: dict[str, Any] = {"generator": torch.Generator(x.device).manual_seed(seed)}
    if sigma is not None:
        more |= {"regularisation": 1e-5, "sigma": sigma, "prior_rows": 0.0}
    n_init = N_STARTS if total <= MANY_ROWS else 1
    found = GaussianMixture.fit(x, counts, n_components, n_init=n_init, **more)
    # A component with one or two rows is fitted to outliers, which would then be likely.
    keep = found.weights * total > LEAST_ROWS
    if not keep.all() and keep.any():
        weights = found.weights[keep] / found.weights[keep].sum()
        found = GaussianMixture(weights, found.means[keep], found.covariances[keep])
    return found.with_broad_component(x, counts, 0.0 if sigma is None else sigma)


def _stack(
    rows: Rows, seed: int, for_chains: bool, deconvolve: bool, verbose: int
) -> tuple[Stack, Stack]:
    """Stacks of the trained model and for training, with a progress bar.

    Chains take one without kernels, which the trained model has as well if it is `deconvolve`.
    """

    def progress(parts: Any) -> Any:
        shown = {"desc": "base", "unit": "part", "delay": PATIENCE, "leave": False}
        return progress_bar(parts, disable=not shows_progress(verbose), **shown)

    x, generator = rows.block(0, len(rows)), torch.Generator(rows.device).manual_seed(seed)
    kind: dict[str, Any] = {"generator": generator, "progress": progress}
    wide = x.shape[1] > MOST_STACKED
    if for_chains and deconvolve and not wide:
        return Stack.fit_pair(x, rows.counts, **kind)
    found = Stack.fit(x, rows.counts, kernels=not for_chains, low_rank=wide, **kind)
    return found, found


def fit_flow(
    flow: Any, rows: Rows, sigma: Tensor | None, seed: int, **more: Any
) -> NormalizingFlow:
    """Fit a flow to noisy rows by maximum likelihood."""
    x, generator = rows.block(0, len(rows)), torch.Generator(rows.device).manual_seed(seed)
    noise = 0.0 if sigma is None else sigma
    return NormalizingFlow.fit(x, rows.counts, flow, sigma=noise, generator=generator, **more)


def _fit_named(base: str, rows: Rows, domain: Real) -> Distribution:
    x, counts = rows.block(0, len(rows)), rows.counts
    if domain.lower is not None or domain.upper is not None:
        if base not in ("auto", "gaussian"):
            raise ValueError(
                f'{base!r} has mass outside `bounds`. Use "gaussian", whose '
                "columns are truncated there, or a distribution on the same domain."
            )
        return TruncatedGaussian.fit(x, counts, domain.lower, domain.upper)
    if base == "gaussian":
        return Gaussian.fit(x, counts, diagonal=x.shape[1] > MAX_DENSE)
    if base == "classes":
        assert rows.y is not None
        known = rows.y != UNKNOWN
        return GaussianMixture.from_labels(x[known], rows.y[known], counts[known])
    return with_broad_part(KernelDensity.fit(x, counts, n_scales=N_SCALES), x, counts)


def _in_units(base: Distribution, rows: Rows, units: Units) -> Distribution:
    """Transform a distribution in the units of the data to the units of the energy."""
    if base.domain.n_columns != rows.n_columns:
        raise ValueError(
            f"The base has {base.domain.n_columns} columns, but X has {rows.n_columns}."
        )
    kind: dict[str, Any] = {"dtype": rows.dtype, "device": rows.device}
    base = base.to(rows.device, rows.dtype)
    if (units.scale == 1).all() and (units.centre == 0).all():
        return base
    if any(getattr(base.domain, side, None) is not None for side in ("lower", "upper")):
        raise ValueError(
            f"{base!r} is bounded and cannot be standardised with the columns: use "
            "standardize=False, with its bounds as bounds=."
        )
    return Affine(base, torch.as_tensor(units.centre, **kind), torch.as_tensor(units.scale, **kind))


def _check_density(base: Any, rows: Rows) -> None:
    lost = ~rows.map(base.log_prob).isfinite()
    if lost.any():
        row = int(lost.nonzero()[0, 0])
        raise ValueError(
            f"The base has no density at {int(lost.sum())} rows of X, first at row {row}, which no "
            "energy can correct. Pass a base that covers the data."
        )


def gap_noise(rows: Rows, names: Sequence[str] | None = None) -> Tensor | None:
    """Noise level for columns with few distinct values, (d,), in units of the energy, or None.

    Without noise, score matching is unbounded below on repeated values.
    """
    discrete, gaps = _few_valued_columns(rows.block(0, len(rows)))
    if not discrete.any():
        return None
    columns = list_columns(discrete.cpu().numpy(), names)
    warn(
        f"Columns {columns} have few distinct values, on which score matching by second "
        "derivatives is unbounded: Gaussian noise of half the gap between values is added to them "
        "in training.",
        DataWarning,
        ('objective="denoising" does not need this.', "objective"),
    )
    return torch.where(discrete, gaps / 2, 0.0)


def _few_valued_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Which columns have few distinct values among the distinct rows, and their median gaps.

    Repeated rows count once, as they may represent weights.
    """
    n_rows = len(torch.unique(x, dim=0))
    found, gaps = [], []
    for column in x.t():
        values = torch.unique(column)
        found.append(len(values) < DISTINCT * n_rows and n_rows > 2)
        gaps.append(values.diff().median() if len(values) > 1 else column.new_tensor(1.0))
    return torch.tensor(found, device=x.device), torch.stack(gaps)


def resolution(x: Tensor, first: int = 0) -> Tensor:
    """Median gap between the values of each column of few distinct ones, (d,); 0 for others.

    Columns before `first` are no numbers.
    """
    few, gaps = _few_valued_columns(x)
    several = (x != x[:1]).any(0)
    several[:first] = False
    return torch.where(few & several, gaps, 0.0)


def spread_ties(rows: Rows, seed: int, first: int = 0) -> Rows:
    """Rows whose columns of few distinct numbers have uniform noise; others as they are.

    It spreads each value over the half of the way to its neighbours, or of the median gap if this
    is less, so that no density fitted to the rows is a spike at a value. Rows of large weights are
    several ones, each with its noise: those that stand for copies were so before. Columns before
    `first` are no numbers.
    """
    x = rows.block(0, len(rows))
    gaps = resolution(x, first)
    if not gaps.any():
        return rows
    weight = rows.counts
    copies = (weight / weight[weight > 0].min()).round().clamp_min(1)
    copies = (copies * min(1.0, MOST_SPREAD / float(copies.sum()))).ceil().long()
    x, weight = (one.repeat_interleave(copies, 0) for one in (x, weight / copies))
    generator = torch.Generator(rows.device).manual_seed(seed)
    for j in gaps.nonzero().ravel().tolist():
        values, place = x[:, j].unique(return_inverse=True)
        outer = gaps[j : j + 1]
        gap = torch.cat([outer, values.diff(), outer]).clamp_max(float(gaps[j]))
        u = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype) - 0.5
        x[:, j] += u * gap[place + (u > 0)]
    return Rows(x, weight, dtype=rows.dtype, device=rows.device)


def noise_level(sigma: Any, rows: Rows) -> Tensor:
    """Standard deviations of the noise given by `sigma`, (d,), in units of the energy."""
    x = rows.block(0, len(rows))
    if not isinstance(sigma, str):
        found = as_numbers("sigma", sigma)
        if found.ndim > 1 or (found.ndim == 1 and len(found) != rows.n_columns):
            raise ValueError(
                f"sigma must be a positive number, or one for each of {rows.n_columns} columns, "
                f"got {sigma!r}."
            )
        if not (np.isfinite(found) & (found > 0)).all():
            raise ValueError(f"sigma must be positive and finite, got {sigma!r}.")
        return torch.as_tensor(found).to(x).expand(rows.n_columns).clone()
    if sigma == "kurtosis":
        return _by_kurtosis(x)
    if len(x) < 3:
        return torch.ones_like(x[0])
    # Distinct rows only, as duplicates would draw the bandwidth to zero.
    width: Tensor = KernelDensity.fit(torch.unique(x, dim=0)).bandwidth
    if sigma == "auto":
        spread = x.std(0, correction=0).clamp_min(1e-6)
        factor = (0.75 * (width / spread).median()).clamp(*LEVELS)
        width = torch.where(spread > 1e-6, factor * spread, factor)
    return width


def _by_kurtosis(x: Tensor) -> Tensor:
    """Half a standard deviation, more in columns with heavy tails and less with light ones.

    The kurtosis is computed after clipping 2 % of the rows at either end (Livernoche et al., 2026).
    """
    low, high = torch.quantile(x.double(), torch.tensor([0.02, 0.98]).to(x).double(), dim=0)
    off = x.double().clamp(low, high)
    off = off - off.mean(0)
    variance = off.square().mean(0).clamp_min(1e-12)
    kurtosis = off.pow(4).mean(0) / variance.square()
    spread = x.std(0, correction=0).clamp_min(1e-6)
    return (0.5 * (1 + 0.33 * (kurtosis - 3))).clamp(0.1, 3.0).to(x) * spread
