"""Distributions made of whole others: stacks, weighted by held-out rows, and changes of units."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm._validation import sample_that_varies, that_vary
from skebm.base import Clamp, Domain, Real
from skebm.distributions._fitting import (
    draw_index,
    positive_weight_rows,
    share_of_a_row,
    weights_at_temperature,
)
from skebm.distributions.base import Distribution, Envelope
from skebm.distributions.bounded import TruncatedGaussian, Uniform
from skebm.distributions.classes import CorrelatedClasses, LatentClasses
from skebm.distributions.classes.latent import entries_by_kind
from skebm.distributions.conditionals import Given
from skebm.distributions.conditionals.column import NormalMixtures
from skebm.distributions.gaussian import Gaussian
from skebm.distributions.kernel import KernelDensity
from skebm.distributions.low_rank import LowRankMixture
from skebm.distributions.mixture import GaussianMixture

# Numbers of components of the mixtures, rows that a component has at least on average, and most
# multiplications of an EM step (rows times components times squared columns).
SIZES = (1, 4, 16, 64)
ROWS_PER_COMPONENT, MOST_WORK = 8, 3e7
# EM without a prior, whose mixtures are sharp, and with one, whose mixtures are smooth; EM may end
# early, as neighbours in the stack make up for what a mixture lacks.
PRIORS: tuple[dict[str, Any], ...] = ({"regularisation": 1e-5, "prior_rows": 0.0}, {})
TOLERANCE = 1e-3
# Numbers of components and ranks where covariances are of low rank, in the order of their cost.
SHAPES = ((1, 16), (1, 64), (4, 8), (4, 16), (1, 128), (2, 64), (1, 256), (4, 64), (16, 16))
LOW_PRIORS: tuple[dict[str, Any], ...] = (
    {"regularisation": 1e-5, "prior_rows": 0.0},
    {"regularisation": 1e-2, "prior_rows": 5.0},
)
# Most multiplications for the density of a row, about those of a network, and of an EM step; and
# the number of factors whose cost is that of a component without any.
MOST_PER_ROW, MOST_LOW_WORK, OVERHEAD = 8e4, 4e8, 8
# Multiplications for each column that wide rows may take instead, by one shape, and by all parts of
# a stack: those of 64 factors, and of independent columns beside them. A network takes hundreds.
WIDE_SHAPE, WIDE_STACK = 64 + OVERHEAD, 64 + 2 * OVERHEAD
# Scales of the kernel density, most of its centres, and most rows for the mixtures.
N_SCALES, MOST_CENTRES, MOST_ROWS = 4, 2000, 5000
# Folds, and the number of held-out rows that is enough, so that some folds need not be fitted.
N_FOLDS, ENOUGH, ENOUGH_LOW = 3, 1000, 300
# Fewest distinct rows that are divided into folds.
FEWEST_ROWS = 20
# Nats per held-out row that may be lost where parts are left out, and that a part of low rank has
# to gain for each column. Steps of EM for the weights.
MOST_LOST, LEAST_GAIN, N_STEPS = 0.005, 0.001, 300


class Candidate(NamedTuple):
    """A distribution of a stack before it is fitted; its density costs `cost` multiplications."""

    name: str
    fit: Callable[[Tensor, Tensor], Distribution]
    cost: float = 0.0


class Stack(Distribution):
    r"""A mixture of whole distributions, such as Gaussian mixtures and kernel densities.

    .. math:: q(x) = \sum_{m=1}^{M} a_m \, q_m(x)

    Parameters
    ----------
    parts : sequence of Distribution
        :math:`q_m`, of flat rows of the same columns, whose numbers are unbounded.
    weights : Tensor of shape (M,)
        a, positive; they sum to 1.

    Attributes
    ----------
    parts : tuple of Distribution
    weights : Tensor of shape (M,)

    References
    ----------
    Smyth and Wolpert (1999), "Linearly combining density estimators via stacking", Machine
    Learning 36.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Gaussian, Stack
    >>> parts = [Gaussian(torch.zeros(1), 1.0), Gaussian(torch.zeros(1), 3.0)]
    >>> q = Stack(parts, torch.tensor([0.5, 0.5]))
    >>> q.log_prob(torch.zeros(1, 1))  # log(2 / 3 / sqrt(2 pi))
    tensor([-1.3244])
    >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).cumsum(1)
    >>> Stack.fit(x[:300]).log_prob(x[300:]).mean() > -3.2  # nats
    tensor(True)
    """

    def __init__(self, parts: Sequence[Distribution], weights: Tensor):
        self.parts = tuple(parts)
        if not self.parts or not all(isinstance(part, Distribution) for part in self.parts):
            raise ValueError("parts must be distributions, at least one.")
        self.domain = self.parts[0].domain
        flat = len(self.domain.row_shape) == 1
        bounded = isinstance(self.domain, Real) and self.domain != Real(self.domain.row_shape)
        if not flat or bounded or any(part.domain != self.domain for part in self.parts):
            raise ValueError(
                "parts must be distributions of flat rows of the same columns, whose numbers are "
                f"unbounded, got {', '.join(str(part.domain) for part in self.parts)}."
            )
        if not isinstance(weights, Tensor) or weights.shape != (len(self.parts),):
            raise ValueError(
                f"weights must be a tensor of shape ({len(self.parts)},), one for each part."
            )
        total = float(weights.double().sum())
        if not (weights > 0).all() or not abs(total - 1) < 1e-3:
            raise ValueError("weights must be positive and sum to 1: divide them by their sum.")
        self.weights = (weights.detach().double() / total).to(weights)

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        domain: Domain | None = None,
        kernels: bool = True,
        low_rank: bool = False,
        generator: torch.Generator | None = None,
        progress: Callable[[Sequence[Any]], Iterator[Any]] = iter,
    ) -> Stack:
        r"""Fit Gaussian mixtures of several sizes and a kernel density, weighted by held-out rows.

        One part is a single normal distribution, which weighs as much as one row at least, so that
        no row is much less likely than under it.

        The weights maximise, by expectation-maximisation, the likelihood of rows under parts that
        were fitted without these rows:

        .. math:: \hat a = \arg\max_a \sum_i \log \sum_m a_m \, q_m^{(-i)}(x_i)

        so that parts that overfit have no weight. Parts are left out as long as held-out rows lose
        no more than 0.005 nats, kernels first, because they take longest. The mixtures have 1, 4,
        16 and 64 components, of 8 rows or more on average, each without a prior and with that of
        :meth:`GaussianMixture.fit`; the kernel density has four scales. There are three folds; with
        many rows, one or two of them are enough. Then the parts are fitted again to all rows.
        Repeated rows are one row of larger weight. If there are more than 5,000 distinct rows, the
        mixtures are fitted to 5,000 of them at random; if there are more than 2,000, the kernels
        are centred at 2,000 of them.

        With `low_rank` the parts are mixtures of up to 16 components of rank up to 256, and
        independent columns. They are added one at a time, each time the part that increases the
        held-out log-likelihood most, as long as the gain is at least 0.001 nats per column and all
        parts together take at most 80,000 multiplications per row, or 80 per column if these are
        more.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero: the importance of rows, on any scale. Equal rows are one row
            of their total weight.
        domain : Domain or None, default=None
            Binary, categorical and real columns, in this order; None is real ones alone.
        kernels : bool, default=True
            Whether there is a kernel density, which takes several times as long as the mixtures.
        low_rank : bool, default=False
            Whether the parts are mixtures of low rank plus diagonal covariances instead, for many
            columns: fits and densities then cost a multiple of the columns and not of their
            square. There are no kernels then, whatever `kernels` is.
        generator : torch.Generator or None, default=None
            Draws the folds and the initial clusters; None is one of seed 0.
        progress : callable, default=iter
            Wraps the list of the distributions to be fitted, as tqdm does.

        Returns
        -------
        Stack
            A stack in the precision and on the device of x.
        """
        kind: dict[str, Any] = {"domain": domain, "low_rank": low_rank, "generator": generator}
        validation = _cross_validate(x, weight, kernels=kernels, progress=progress, **kind)
        return cls(*validation.parts_and_weights()).to(x.device, x.dtype)

    @classmethod
    def fit_pair(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        progress: Callable[[Sequence[Any]], Iterator[Any]] = iter,
    ) -> tuple[Stack, Stack]:
        """The stacks of :meth:`fit` with and without kernels, at the cost of the former.

        The second is for chains, which evaluate it ten times as often as everything else does.
        """
        validation = _cross_validate(
            x, weight, kernels=True, low_rank=False, generator=generator, progress=progress
        )
        pair = validation, validation.without_kernels()
        both, mixtures = (cls(*v.parts_and_weights()).to(x.device, x.dtype) for v in pair)
        return both, mixtures

    # ---------------------------------------------------------------- the distribution

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Stack:
        moved: Stack = super().to(device, dtype)
        moved.parts = tuple(part.to(device, dtype) for part in self.parts)
        return moved

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(n, dtype=torch.float64, generator=generator, device=generator.device)
        chosen = draw_index(self.weights.double(), u.to(self.weights.device))
        x = self.weights.new_empty(n, *self.domain.row_shape)
        for m, part in enumerate(self.parts):
            rows = (chosen == m).nonzero()[:, 0]
            if len(rows):
                x[rows] = part.sample(len(rows), generator).to(x)
        return x

    def log_prob(self, x: Tensor) -> Tensor:
        values = torch.stack([part.log_prob(x) for part in self.parts], 1)
        return (values + self.weights.log().to(values)).logsumexp(1)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density: scores of the parts weighted by their responsibilities."""
        return self.log_prob_and_score(x)[1]

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one."""
        pairs = [part.log_prob_and_score(x) for part in self.parts]
        values = torch.stack([value for value, _ in pairs], 1)
        values = values + self.weights.log().to(values)
        total = values.logsumexp(1)
        share = (values - total[:, None]).exp()
        score = share[:, :1] * pairs[0][1]
        for m, (_, other) in enumerate(pairs[1:], 1):
            score = torch.addcmul(score, share[:, m : m + 1], other)
        return total, score

    def tempered(self, temperature: float) -> Envelope:
        """The parts at a temperature, weighted to lie above the power of the stack."""
        envelopes = [part.tempered(temperature) for part in self.parts]
        bounds = torch.tensor([one.log_bound for one in envelopes], dtype=torch.float64)
        bounds = bounds.to(self.weights.device)
        if not bounds.isfinite().all():
            return Envelope(Stack([one.distribution for one in envelopes], self.weights), math.inf)
        weights, log_bound = weights_at_temperature(self.weights.log(), bounds, temperature)
        weights = weights.to(self.weights)
        used = [k for k, weight in enumerate(weights) if weight > 0]  # others have underflowed
        wider = Stack([envelopes[k].distribution for k in used], weights[used])
        return Envelope(wider, log_bound)

    @property
    def has_tempered(self) -> bool:
        return all(part.has_tempered for part in self.parts)

    def convolved(self, sigma: float | Tensor) -> Stack:
        """The convolution with normal noise: that of each part."""
        return Stack([part.convolved(sigma) for part in self.parts], self.weights)

    @property
    def has_convolved(self) -> bool:
        return all(part.has_convolved for part in self.parts)

    @property
    def has_given(self) -> bool:
        return all(part.has_given for part in self.parts) and self.has_log_marginal

    @property
    def has_log_marginal(self) -> bool:
        return all(part.has_log_marginal for part in self.parts)

    def _log_marginal(self, known: Clamp) -> Tensor:
        return self._log_marginals(known).logsumexp(1)

    def _log_marginals(self, clamp: Clamp) -> Tensor:
        """Log of the weight of each part times its density of the known entries, (n, M)."""
        found = torch.stack([part.log_marginal(clamp) for part in self.parts], 1)
        return found + self.weights.log().to(found)

    @property
    def has_marginal(self) -> bool:
        return all(part.has_marginal for part in self.parts)

    def marginal(self, columns: Tensor) -> Stack:
        """The marginal distribution of some columns: that of each part."""
        return Stack([part.marginal(columns) for part in self.parts], self.weights)

    def given(self, clamp: Clamp) -> Given:
        """Exact conditional distributions given the clamped entries, one for each row."""
        return StackGiven(self, clamp)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{float(a):.2g} {part}" for a, part in zip(self.weights, self.parts, strict=True)
        )
        return f"Stack({parts})"


class StackGiven(Given):
    """Stacks, whose parts are weighted by their density of the known entries."""

    @functools.cached_property
    def _parts(self) -> list[Given]:
        return [part.given(self.clamp) for part in self.distribution.parts]

    @functools.cached_property
    def _shares(self) -> Tensor:
        """Conditional weights of the parts, (n, M), in float64."""
        clamp = Clamp(self.clamp.mask, self.clamp.value.double())
        exact = self.distribution.to(clamp.value.device, clamp.value.dtype)
        found: Tensor = exact._log_marginals(clamp).softmax(1)
        return found

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        means = torch.stack([part.mean for part in self._parts])
        shape = (-1,) + (1,) * (means.dim() - 2)
        shares = self._shares.to(means).t().reshape(len(means), *shape)
        return self.clamp.apply((shares * means).sum(0))

    def sample(self, generator: torch.Generator) -> Tensor:
        value = self.clamp.value
        u = torch.rand(
            len(value), dtype=torch.float64, generator=generator, device=generator.device
        )
        chosen = draw_index(self._shares, u.to(value.device))
        draws = torch.stack([part.sample(generator) for part in self._parts])
        return draws[chosen, torch.arange(len(value), device=value.device)]

    def column(self, entry: int) -> NormalMixtures | None:
        found = [part.column(entry) for part in self._parts]
        known = [part for part in found if part is not None]
        if len(known) < len(found):
            return None
        return NormalMixtures.together(known, self._shares.log())


# ------------------------------------------------------------------------------
# Units
# ------------------------------------------------------------------------------


class Affine(Distribution):
    r"""A distribution of real rows after a change of units, :math:`z = (x - c) / s` with x from q.

    .. math:: \log q_z(z) = \log q(s \odot z + c) + \textstyle\sum_i \log s_i

    Parameters
    ----------
    distribution : Distribution
        q, on unbounded real rows.
    centre, scale : Tensor of shape (d,)
        c and s > 0, in the units of x.

    Raises
    ------
    TypeError
        If the rows of q are not real.
    ValueError
        If q is bounded, or a scale is not positive.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Affine, Gaussian
    >>> q = Gaussian(torch.tensor([3.0]), 2.0)
    >>> z = Affine(q, torch.tensor([3.0]), torch.tensor([2.0]))  # a standard normal distribution
    >>> z.log_prob(torch.zeros(1, 1))
    tensor([-0.9189])
    """

    def __init__(self, distribution: Distribution, centre: Tensor, scale: Tensor):
        if not isinstance(distribution.domain, Real):
            raise TypeError(f"Only real rows have units to change, not {distribution.domain}.")
        if isinstance(distribution, TruncatedGaussian | Uniform) or distribution.domain != Real(
            distribution.domain.shape
        ):
            raise ValueError("The units of a bounded distribution cannot be changed.")
        if not (scale > 0).all():
            raise ValueError("scale must be positive.")
        self.distribution, self.domain = distribution, distribution.domain
        self.centre, self.scale = centre, scale

    def _inverse(self, z: Tensor) -> Tensor:
        return z * self.scale + self.centre

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return (self.distribution.sample(n, generator) - self.centre) / self.scale

    def log_prob(self, x: Tensor) -> Tensor:
        return self.distribution.log_prob(self._inverse(x)) + self.scale.log().sum()

    def score(self, x: Tensor) -> Tensor:
        return self.distribution.score(self._inverse(x)) * self.scale

    @property
    def has_convolved(self) -> bool:
        return self.distribution.has_convolved

    @property
    def has_given(self) -> bool:
        return self.distribution.has_given

    @property
    def has_tempered(self) -> bool:
        return self.distribution.has_tempered

    def tempered(self, temperature: float) -> Envelope:
        inner, log_bound = self.distribution.tempered(temperature)
        change = (1 / temperature - 1) * float(self.scale.log().sum())
        return Envelope(Affine(inner, self.centre, self.scale), log_bound + change)

    def convolved(self, sigma: Tensor | float) -> Affine:
        return Affine(self.distribution.convolved(sigma * self.scale), self.centre, self.scale)

    def given(self, clamp: Clamp) -> AffineGiven:
        return AffineGiven(self, clamp)

    @property
    def has_marginal(self) -> bool:
        return self.distribution.has_marginal

    def marginal(self, columns: Tensor) -> Affine:
        inner = self.distribution.marginal(columns)
        return Affine(inner, self.centre[columns], self.scale[columns])


class AffineGiven(Given):
    """Conditionals in other units."""

    @functools.cached_property
    def _inner(self) -> Any:
        q, mask = self.distribution, self.clamp.mask
        value = torch.where(mask, q._inverse(self.clamp.value), 0)
        return q.distribution.given(Clamp(mask, value))

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.clamp.apply(
            (self._inner.mean - self.distribution.centre) / self.distribution.scale
        )

    def sample(self, generator: torch.Generator) -> Tensor:
        drawn = self._inner.sample(generator)
        return self.clamp.apply((drawn - self.distribution.centre) / self.distribution.scale)

    def column(self, entry: int) -> NormalMixtures | None:
        q, found = self.distribution, self._inner.column(entry)
        return None if found is None else found.in_units(q.centre[entry], q.scale[entry])


# ------------------------------------------------------------------------------
# Fitting
# ------------------------------------------------------------------------------


class CrossValidation(NamedTuple):
    """Fitted parts, and log-densities (n, M) of rows under parts that were fitted without them."""

    parts: list[Distribution]
    log_density: Tensor
    weight: Tensor
    costs: list[float]
    low_rank: bool

    def without_kernels(self) -> CrossValidation:
        """The same for the mixtures alone; there is always at least one."""
        kept = [m for m, part in enumerate(self.parts) if not isinstance(part, KernelDensity)]
        return self._replace(
            parts=[self.parts[m] for m in kept],
            log_density=self.log_density[:, kept],
            costs=[self.costs[m] for m in kept],
        )

    def parts_and_weights(self) -> tuple[list[Distribution], Tensor]:
        """The parts that held-out rows need, and their weights."""
        if len(self.parts) == 1:
            return self.parts, self.weight.new_ones(1)
        if self.low_rank:
            n_columns = self.parts[0].domain.n_columns
            least, most = LEAST_GAIN * n_columns, max(MOST_PER_ROW, WIDE_STACK * n_columns)
            kept, a = _affordable(self.log_density, self.weight, self.costs, least, most)
        else:
            kept, a = _select_parts(self.log_density, self.weight)
        broad, share = self._broad_part(), share_of_a_row(len(self.weight))
        if broad not in kept:
            kept, a = [*kept, broad], torch.cat([(1 - share) * a, a.new_tensor([share])])
        return [self.parts[m] for m in kept], a

    def _broad_part(self) -> int:
        """Number of the part of one component under which held-out rows are most likely.

        It has the moments of all rows: without it, a row beside all narrow components would be as
        good as impossible.
        """
        single = [m for m, part in enumerate(self.parts) if getattr(part, "n_components", 0) == 1]
        return max(single, key=lambda m: float(self.weight @ self.log_density[:, m]))


def _cross_validate(
    x: Tensor,
    weight: Tensor | None,
    *,
    kernels: bool,
    low_rank: bool,
    generator: torch.Generator | None,
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    domain: Domain | None = None,
) -> CrossValidation:
    """Fit the candidates to all rows, and to all but each fold, whose rows judge them."""
    rows, w = _in_order(*positive_weight_rows(x, weight))
    if generator is None:
        generator = torch.Generator(x.device).manual_seed(0)
    order = torch.randperm(len(rows), generator=generator, device=generator.device)
    rows, w = _sample_of_rows(rows, w, order)
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    if domain is not None:
        candidates = _mixed_candidates(len(rows), domain, seed)
    elif low_rank:
        candidates = _low_rank_candidates(len(rows), rows.shape[1], seed)
    else:
        candidates = _candidates(len(rows), rows.shape[1], seed, kernels=kernels)
    if len(rows) < FEWEST_ROWS:
        # One Gaussian, shrunk: there is nothing to choose by.
        only = candidates[-1].fit(rows, w)
        return CrossValidation([only], rows.new_zeros(len(rows), 1), w, [0.0], low_rank)
    fold = torch.arange(len(rows), device=rows.device) % N_FOLDS
    enough = ENOUGH_LOW if low_rank else ENOUGH
    n_folds = min(N_FOLDS, math.ceil(enough * N_FOLDS / len(rows)))
    for k in range(n_folds):
        others = (fold != k).nonzero()[:, 0].cpu().numpy()
        # A row without which a column would be constant is in no fold.
        fold[torch.from_numpy(that_vary(rows.cpu().numpy(), others)).to(fold.device)] = N_FOLDS
    by = fold < n_folds
    parts: list[Distribution] = []
    densities = []
    for candidate in progress(candidates):
        part = candidate.fit(rows, w)
        density = rows.new_full((len(rows),), -math.inf)
        for k in range(n_folds):
            out = fold == k
            density[out] = _without(candidate, part, rows, w, out).log_prob(rows[out])
        parts.append(part)
        densities.append(density[by])
    costs = [candidate.cost for candidate in candidates]
    return CrossValidation(parts, torch.stack(densities, 1), w[by], costs, low_rank)


def _sample_of_rows(x: Tensor, w: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The first rows of a random order, among which, and the centres, all columns vary."""
    table = x.cpu().numpy()
    some = order[:MOST_ROWS].cpu().numpy()
    index, weight = sample_that_varies(table, w.cpu().numpy(), some)
    first = that_vary(table[index], np.arange(min(MOST_CENTRES, len(index))))
    if len(first):
        front = np.concatenate([first, np.delete(np.arange(len(index)), first)])
        index, weight = index[front], weight[front]
    return x[torch.from_numpy(index).to(x.device)], torch.from_numpy(weight).to(w)


def _in_order(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows in ascending order and their weights, whatever the order of the table."""
    rows, member = x.unique(dim=0, return_inverse=True)
    return rows, torch.empty_like(w).index_copy_(0, member, w)


def with_seed(
    fit: Callable[..., Distribution], seed: int, **settings: Any
) -> Callable[[Tensor, Tensor], Distribution]:
    """A fit to rows and weights with these settings and draws of a seed."""

    def fit_rows(x: Tensor, w: Tensor) -> Distribution:
        return fit(x, w, generator=torch.Generator(x.device).manual_seed(seed), **settings)

    return fit_rows


def _candidates(n: int, d: int, seed: int, *, kernels: bool) -> list[Candidate]:
    """The distributions of a stack of n rows with d columns; last a single shrunk Gaussian."""

    most = min(n * (N_FOLDS - 1) / N_FOLDS / ROWS_PER_COMPONENT, MOST_WORK / (n * d * d))
    candidates = [Candidate("kernel", _kernels)] if kernels else []
    for size in reversed(SIZES):
        if size <= max(1, most):
            kinds = [{"n_components": size, "tol": TOLERANCE} | prior for prior in PRIORS]
            candidates += [
                Candidate(f"mixture of {size}", with_seed(GaussianMixture.fit, seed, **kind))
                for kind in kinds
            ]
    return candidates


def _mixed_candidates(n: int, domain: Domain, seed: int) -> list[Candidate]:
    """The distributions of n rows of several kinds of columns; last a single class."""
    chosen: list[int] = []  # number of latent classes of all rows, which are fitted first

    def classes(x: Tensor, w: Tensor, *, generator: torch.Generator) -> Distribution:
        n_classes = chosen[0] if chosen else "auto"
        found = LatentClasses.fit(x, domain, w, n_classes, generator=generator)
        chosen.append(found.n_classes)
        return found

    def correlated(x: Tensor, w: Tensor, **kind: Any) -> Distribution:
        return CorrelatedClasses.fit(x, domain, w, **kind)

    n_real = entries_by_kind(domain)[1]
    work = n * (n_real**2 + domain.n_columns)
    most = min(n * (N_FOLDS - 1) / N_FOLDS / ROWS_PER_COMPONENT, MOST_WORK / work)
    sizes = [size for size in reversed(SIZES) if size <= max(1, most)]
    kinds = [{"n_components": size, "tol": TOLERANCE} | prior for size in sizes for prior in PRIORS]
    return [
        Candidate("latent classes", with_seed(classes, seed)),
        *(
            Candidate(f"{kind['n_components']} classes", with_seed(correlated, seed, **kind))
            for kind in kinds
        ),
    ]


def _low_rank_candidates(n: int, d: int, seed: int) -> list[Candidate]:
    """Mixtures of low rank for n rows of d columns; last one of rank 0."""

    # Nats per column and row below which a step of EM ends it.
    low_tolerance = 1e-3
    low_rank = functools.partial(with_seed, LowRankMixture.fit, seed, tol=low_tolerance * d)
    candidates = []
    most = max(min(MOST_PER_ROW, MOST_LOW_WORK / n), WIDE_SHAPE * d)
    for size, rank in reversed(SHAPES):
        cost = size * (rank + OVERHEAD) * d
        rows = n * (N_FOLDS - 1) / N_FOLDS / size
        if rank < d and rows >= ROWS_PER_COMPONENT and cost <= most:
            # One component has no small variances that only few rows show.
            for prior in LOW_PRIORS[size == 1 :]:
                fit = low_rank(n_components=size, rank=rank, **prior)
                candidates.append(Candidate(f"{size} of rank {rank}", fit, cost))
    independent = low_rank(n_components=1, rank=0, **LOW_PRIORS[-1])
    return [*candidates, Candidate("independent", independent, OVERHEAD * d)]


def _kernels(x: Tensor, w: Tensor) -> KernelDensity:
    """Kernels at rows in random order, whose scales do not depend on the weights."""
    x, w = x[:MOST_CENTRES], w[:MOST_CENTRES]
    fitted = KernelDensity.fit(x, n_scales=N_SCALES)
    return KernelDensity(
        x, None, w, covariances=fitted.covariances, mixing_weights=fitted.mixing_weights
    )


def _without(
    candidate: Candidate, part: Distribution, x: Tensor, w: Tensor, out: Tensor
) -> Distribution:
    """The candidate fitted without some rows; for kernels, with the same scales."""
    if not isinstance(part, KernelDensity):
        return candidate.fit(x[~out], w[~out])
    kept = ~out[: len(part.centres)]
    scales = {"covariances": part.covariances, "mixing_weights": part.mixing_weights}
    return KernelDensity(part.centres[kept], None, part.weights[kept], **scales)


def _select_parts(log_density: Tensor, weight: Tensor) -> tuple[list[int], Tensor]:
    """Numbers and weights of the parts that held-out rows need.

    The first is left out first, the others by their weights.
    """
    kept = list(range(log_density.shape[1]))
    a, most = _weights_and_score(log_density, weight, kept)
    for m in [0, *(a[1:].argsort() + 1).tolist()]:
        rest = [k for k in kept if k != m]
        if rest:
            fewer, value = _weights_and_score(log_density, weight, rest)
            if most - value < MOST_LOST:
                kept, a = rest, fewer
    return kept, a


def _affordable(
    log_density: Tensor, weight: Tensor, costs: Sequence[float], least_gain: float, most: float
) -> tuple[list[int], Tensor]:
    """Numbers and weights of parts whose densities together cost at most `most`.

    They are added one at a time, each time the part that increases the held-out log-likelihood
    most, as long as the gain is at least `least_gain` nats.
    """
    kept: list[int] = []
    a, before = log_density.new_zeros(0), -math.inf
    while True:
        left = most - sum(costs[k] for k in kept)
        possible = [k for k in range(len(costs)) if k not in kept and costs[k] <= left]
        extensions = [(*_weights_and_score(log_density, weight, [*kept, k]), k) for k in possible]
        if not extensions:
            return kept, a
        shares, value, k = max(extensions, key=lambda one: one[1])
        if value - before < least_gain:
            return kept, a
        kept, a, before = [*kept, k], shares, value


def _weights_and_score(
    log_density: Tensor, weight: Tensor, parts: list[int]
) -> tuple[Tensor, float]:
    """Weights of some parts, and the mean log-density of held-out rows."""
    some = log_density[:, parts]
    a = stacking_weights(some, weight)
    return a, float(weight @ (some + a.log()).logsumexp(1) / weight.sum())


def with_broad_part(
    q: Distribution, x: Tensor, weight: Tensor | None = None, share: float | None = None
) -> Distribution:
    """A distribution of real rows, mixed with a normal one that has the moments of rows (n, d).

    No row is then much less likely than it is under one normal distribution, however narrow the
    components of `q` are: by -log `share` nats at most, and by a few more for the width of the
    broad part (:func:`covering_normal`), d / 2 with kernels of several scales. By default the
    normal distribution weighs as much as one row, 1 / (n + 1).
    """
    if isinstance(q, GaussianMixture):
        return q.with_broad_component(x, weight, share=share)
    rows, w = positive_weight_rows(x, weight)
    share = share_of_a_row(len(rows)) if share is None else share
    broad = covering_normal(rows, w)
    if isinstance(q, KernelDensity) and q.mixing_weights is not None:
        return q.with_broad_scale(broad.covariance, share)
    shares = torch.tensor([1 - share, share], dtype=torch.float64, device=x.device)
    return Stack([q, broad.to(x.device, x.dtype)], shares).to(x.device, x.dtype)


def covering_normal(x: Tensor, weight: Tensor, *, diagonal: bool = False) -> Gaussian:
    """A normal distribution whose covariance is in no direction less than that of rows (n, d).

    Shrunk correlations alone make a row far out along correlated columns much less likely than the
    moments of heavy-tailed rows do, and so do independent columns, if it is `diagonal`.
    """
    fitted, rows, w = Gaussian.fit(x, weight, diagonal=diagonal), x.double(), weight.double()
    centred = rows - w @ rows / w.sum()
    covariance = (centred * w[:, None]).t() @ centred / w.sum()
    scale_tril = torch.linalg.cholesky(fitted.covariance.double())
    half = torch.linalg.solve_triangular(scale_tril, covariance, upper=False)
    relative = torch.linalg.solve_triangular(scale_tril, half.t(), upper=False)
    largest = float(torch.linalg.eigvalsh((relative + relative.t()) / 2)[-1])
    return fitted.with_covariance_times(max(1.0, largest))


def stacking_weights(log_density: Tensor, weight: Tensor) -> Tensor:
    """Weights (M,) of largest likelihood, given log-densities (n, M) of rows of weights (n,).

    A prior of one row in all is divided evenly among the parts.
    """
    n_parts = log_density.shape[1]
    weight = weight * (len(weight) / weight.sum())
    # Relative to the best part of each row: the prior keeps all weights, and so all sums, above 0.
    density = (log_density - log_density.amax(1, keepdim=True)).exp()
    a = log_density.new_full((n_parts,), 1 / n_parts)
    for _ in range(N_STEPS):
        a = (a * ((weight / (density @ a)) @ density) + 1 / n_parts) / (len(weight) + 1)
    return a
