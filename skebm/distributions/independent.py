"""Independent columns: binary ones, one-hot ones, and blocks of different kinds side by side."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import Binary, Categorical, Clamp, Conditional, Domain, Mixed
from skebm.base.domains import parts_of
from skebm.base.sampler import whole_numbers
from skebm.base.torchtools import softplus
from skebm.distributions.base import Distribution, Tilt
from skebm.distributions.conditionals import Given


def log_sum(logits: Tensor, known: Clamp | None) -> Tensor:
    """log of the sum of exp(logits' x) over the binary x that agree with `known`, (n,)."""
    terms = softplus(logits)
    if known is not None:
        terms = torch.where(known.mask, logits * known.value, terms)
    return terms.sum(1)


class IndependentTilt(Tilt):
    """Independent binary columns with log-odds `logits`, (n, d), unnormalised.

    `log_normaliser` (n,) or a scalar is subtracted from the log of the sum over x.
    """

    def __init__(self, logits: Tensor, log_normaliser: Tensor, known: Clamp | None = None):
        self.logits, self.offset, self.known = logits, log_normaliser, known

    def given(self, clamp: Clamp) -> IndependentTilt:
        """The tilt given known columns; the others are independent of them."""
        return IndependentTilt(self.logits, self.offset, clamp)

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Probability of a one, (n, d)."""
        mean = self.logits.sigmoid()
        return mean if self.known is None else self.known.apply(mean)

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        """log of the sum over all x that agree with the known columns, (n,)."""
        return log_sum(self.logits, self.known) - self.offset

    def sample(self, generator: torch.Generator) -> Tensor:
        p = self.mean
        return torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device).lt_(p)


class IndependentBernoulli(Distribution):
    r"""Independent binary columns, :math:`q(x) = \prod_i \sigma(a_i)^{x_i} \sigma(-a_i)^{1-x_i}`.

    Parameters
    ----------
    logits : Tensor of shape (d,)
        Log-odds a of a one in each column; zeros give the uniform distribution.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import IndependentBernoulli
    >>> q = IndependentBernoulli.fit(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    >>> q.mean
    tensor([0.1667, 0.5000])
    """

    def __init__(self, logits: Tensor):
        self.logits = logits
        self.domain = Binary(tuple(logits.shape))

    @classmethod
    def fit(
        cls, x: Tensor, weight: Tensor | None = None, pseudo_count: float = 1.0
    ) -> IndependentBernoulli:
        """Estimate the means of the columns with additive (Laplace) smoothing.

        The smoothing keeps the log-odds of constant columns finite.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Binary rows.
        weight : Tensor of shape (n,) or None, default=None
            A row of weight 2 counts as two rows.
        pseudo_count : float, default=1.0
            Number of added rows whose entries all are one half.
        """
        n = x.shape[0] if weight is None else weight.double().sum()
        ones = x.double().sum(0) if weight is None else weight.double() @ x.double()
        half = pseudo_count / 2
        # A difference of logarithms, because a mean rounded to 1 would have infinite log-odds.
        return cls((torch.log(ones + half) - torch.log(n - ones + half)).to(x.dtype))

    @property
    def mean(self) -> Tensor:
        """Probability of a one in each column, (d,)."""
        return self.logits.sigmoid()

    @property
    def log_normaliser(self) -> Tensor:
        """log sum_x exp(a' x), a scalar."""
        return softplus(self.logits).sum()

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        a = self.logits
        u = torch.rand(n, len(a), generator=generator, dtype=a.dtype, device=a.device)
        return u.lt_(self.mean)

    def log_prob(self, x: Tensor) -> Tensor:
        # Not a matrix product: a column that is never 1 has log-odds of minus infinity.
        never = self.logits.isinf() & (x == 0)
        return torch.where(never, 0.0, x * self.logits).sum(1) - self.log_normaliser

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        return (1 - 2 * x) * self.logits

    def tilted(self, field: Tensor, power: float = 1.0) -> IndependentTilt:
        """Independent columns with log-odds power * a + field."""
        return IndependentTilt(power * self.logits + field, power * self.log_normaliser)


class IndependentCategorical(Distribution):
    r"""Independent categorical columns in one-hot coding.

    .. math:: q(x) = \prod_i \prod_k \mathrm{softmax}(a_i)_k^{x_{ik}}

    Parameters
    ----------
    logits : Tensor of shape (sum(groups),)
        a, of the levels of all columns in order; within a column only differences matter. A level
        with a logit of minus infinity never occurs.
    groups : sequence of int
        Number of levels of each column.

    Attributes
    ----------
    logits : Tensor of shape (sum(groups),)
        Normalised within each column: log-probabilities.
    mean : Tensor of shape (sum(groups),)
        Probability of each level.

    Examples
    --------
    Three colours in two sizes; one pseudo-count is divided among the levels of a column:

    >>> import torch
    >>> from skebm.distributions import IndependentCategorical
    >>> x = torch.tensor([[1.0, 0, 0, 1, 0], [0, 0, 1, 1, 0]])
    >>> IndependentCategorical.fit(x, (3, 2)).mean
    tensor([0.4444, 0.1111, 0.4444, 0.8333, 0.1667])
    """

    domain: Categorical

    def __init__(self, logits: Tensor, groups: Sequence[int]):
        groups = whole_numbers("groups", groups, 1)
        if not groups:
            raise ValueError("groups must hold the number of levels of at least one column.")
        if logits.shape != (sum(groups),):
            raise ValueError(
                f"logits must be of shape ({sum(groups)},), one for each level of the groups "
                f"{groups}, not {tuple(logits.shape)}."
            )
        self.domain = Categorical(groups)
        self.logits = by_column(logits[None], groups)[0]
        if self.logits.isnan().any():  # also for infinite logits or a column without a level
            raise ValueError(
                "logits must be numbers below infinity, and each column needs a level above minus "
                "infinity."
            )

    @classmethod
    def fit(
        cls,
        x: Tensor,
        groups: Sequence[int],
        weight: Tensor | None = None,
        pseudo_count: float = 1.0,
    ) -> IndependentCategorical:
        """Estimate the probabilities of the levels with additive (Laplace) smoothing.

        The smoothing keeps the logits of levels that do not occur finite.

        Parameters
        ----------
        x : Tensor of shape (n, sum(groups))
            One-hot columns side by side.
        groups : sequence of int
            Number of levels of each column.
        weight : Tensor of shape (n,) or None, default=None
            A row of weight 2 counts as two rows.
        pseudo_count : float, default=1.0
            Number of added rows with equal probabilities of all levels.
        """
        counts = x.double().sum(0) if weight is None else weight.double() @ x.double()
        levels = counts.new_tensor([k for k in groups for _ in range(k)])
        if levels.shape != counts.shape:
            raise ValueError(
                f"The groups {tuple(groups)} have {len(levels)} levels, but rows of x have "
                f"{len(counts)} entries."
            )
        return cls((counts + pseudo_count / levels).log().to(x.dtype), groups)

    @property
    def mean(self) -> Tensor:
        """Probability of each level, (sum(groups),)."""
        return self.logits.exp()

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return draw_one_hot(self.logits.expand(n, -1), self.domain.groups, generator)

    def log_prob(self, x: Tensor) -> Tensor:
        # Not a matrix product, because the product of minus infinity and 0 is nan.
        never = self.logits.isinf() & (x == 0)
        return torch.where(never, 0.0, x * self.logits).sum(1)

    def given(self, clamp: Clamp) -> CategoricalGiven:
        """Exact conditionals; the levels not known to be 0 are renormalised."""
        return CategoricalGiven(self, clamp)

    def tilted(self, field: Tensor, power: float = 1.0) -> CategoricalTilt:
        """Independent columns with logits power * a + field; power 0 is uniform over all levels."""
        logits = field if power == 0 else power * self.logits + field
        return CategoricalTilt(logits, Levels.of(self.domain.groups, field.device))


class Levels:
    """Positions of the levels of one-hot columns in a row, to process all columns at once.

    Attributes
    ----------
    index : Tensor of shape (G, K) or None
        Entry of each level; one past the end of the row for levels that a column with fewer than K
        levels lacks. None if all columns have the same number of levels.
    first : Tensor of shape (G,)
        Entry of each column's first level.
    """

    def __init__(self, groups: tuple[int, ...], device: torch.device):
        self.shape = len(groups), max(groups)
        sizes = torch.tensor(groups, device=device)
        self.first = sizes.cumsum(0) - sizes
        level = torch.arange(self.shape[1], device=device)
        index = torch.where(level < sizes[:, None], self.first[:, None] + level, int(sizes.sum()))
        self.index = None if bool((sizes == self.shape[1]).all()) else index
        self.column = torch.repeat_interleave(torch.arange(len(groups), device=device), sizes)

    @classmethod
    def of(cls, groups: tuple[int, ...], device: torch.device) -> Levels:
        """The same object for the same columns."""
        return _levels_of_groups(groups, str(device))

    def apart(self, x: Tensor, fill: float) -> Tensor:
        """Rows (n, d) as levels of columns, (n, G, K), with `fill` where a column has fewer."""
        if self.index is None:
            return x.view(len(x), *self.shape)
        return nn.functional.pad(x, (0, 1), value=fill)[:, self.index]

    def together(self, x: Tensor) -> Tensor:
        """Levels of columns (n, G, K) as rows (n, d)."""
        if self.index is None:
            return x.reshape(len(x), -1)
        return x[:, self.index < len(self.column)]

    def one_hot(self, level: Tensor, like: Tensor) -> Tensor:
        """Rows (n, d) of the levels (n, G), in the dtype of `like`."""
        rows = like.new_zeros(len(level), len(self.column))
        return rows.scatter_(1, level + self.first, 1.0)


@functools.lru_cache(maxsize=64)
def _levels_of_groups(groups: tuple[int, ...], device: str) -> Levels:
    return Levels(groups, torch.device(device))


class CategoricalTilt(Tilt):
    """Independent categorical columns with unnormalised log-probabilities `logits`, (n, d)."""

    def __init__(self, logits: Tensor, levels: Levels):
        self.logits, self.levels = logits, levels

    def given(self, clamp: Clamp) -> CategoricalTilt:
        """The tilt given known entries, which may leave a column several levels.

        A column without a possible level has a log-normaliser of minus infinity.
        """
        logits = self.logits.masked_fill(clamp.mask & (clamp.value == 0), -math.inf)
        # A level that is known to be 1 rules out the others of its column.
        on = (clamp.mask & (clamp.value == 1)).to(logits.dtype)
        decided = on.new_zeros(len(on), self.levels.shape[0])
        decided.index_add_(1, self.levels.column, on)
        ruled_out = (decided[:, self.levels.column] > 0) & (on == 0)
        return CategoricalTilt(logits.masked_fill(ruled_out, -math.inf), self.levels)

    @functools.cached_property
    def _apart(self) -> Tensor:
        return self.levels.apart(self.logits, -math.inf)

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Probability of each level, (n, d)."""
        return self.levels.together(self._apart.softmax(2))

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        """log of the sum over all rows that agree with the known entries, (n,)."""
        return self._apart.logsumexp(2).sum(1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw by the Gumbel-max trick: -log of an exponential variable is a Gumbel variable."""
        noise = torch.empty_like(self._apart).uniform_(generator=generator)
        # -log of a uniform variable is exponential, faster than `exponential_`; 0 has no logarithm.
        noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_().neg_().log_().neg_()
        return self.levels.one_hot(noise.add_(self._apart).argmax(2), self.logits)


class CategoricalGiven(Given):
    """One-hot columns of which some levels are known to be 1 or 0."""

    def __init__(self, distribution: IndependentCategorical, clamp: Clamp):
        super().__init__(distribution, clamp)
        mask, value = self.clamp
        groups = distribution.domain.groups
        on, off = mask & (value == 1), mask & (value == 0)
        if not (on | off | ~mask).all():
            raise ValueError("Known values of one-hot rows must be 0 or 1.")
        # A level known to be 1 may have had a probability of zero.
        logits = distribution.logits.to(value).masked_fill(off, -math.inf).masked_fill(on, 0.0)
        decided = torch.cat(
            [part.any(1, keepdim=True).expand_as(part) for part in on.split(groups, 1)], 1
        )
        self._logits = by_column(logits.masked_fill(decided & ~on, -math.inf), groups)
        several = torch.stack([part.sum(1) > 1 for part in on.split(groups, 1)], 1)
        if several.any() or self._logits.isnan().any():
            raise ValueError(
                "The known values of a one-hot column must leave it one level: two are known to be "
                "1, or all possible ones to be 0."
            )

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._logits.exp()

    def sample(self, generator: torch.Generator) -> Tensor:
        return draw_one_hot(self._logits, self.distribution.domain.groups, generator)


def by_column(logits: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Log-softmax within each column, (n, d); nan where no level is possible."""
    return torch.cat([part.log_softmax(1) for part in logits.split(groups, 1)], 1)


def draw_one_hot(logits: Tensor, groups: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """One-hot rows of independent columns with log-probabilities (n, d)."""
    u = torch.rand(logits.shape, generator=generator, dtype=logits.dtype, device=logits.device)
    # The Gumbel-max trick; u = 0 would give noise of minus infinity.
    noisy = logits - (-u.clamp_(min=torch.finfo(u.dtype).tiny).log()).log()
    levels = torch.stack([part.argmax(1) for part in noisy.split(groups, 1)], 1)
    return Categorical(groups).one_hot(levels, logits.dtype)


# ------------------------------------------------------------------------------
# Blocks of columns
# ------------------------------------------------------------------------------


class Columns(Distribution):
    r"""Independent blocks of columns, each with a distribution of its own.

    .. math:: q(x) = \prod_k q_k(x_k)

    For example, the bits, one-hot columns and real columns of a table can each have a suitable one.

    Parameters
    ----------
    parts : sequence of Distribution
        Distributions of the blocks, in the order of their columns.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Columns, Gaussian, IndependentBernoulli
    >>> q = Columns([IndependentBernoulli(torch.zeros(2)), Gaussian(torch.zeros(1), 1.0)])
    >>> q.log_prob(torch.tensor([[0.0, 1.0, 0.0]]))  # -2 log 2 - log(2 pi) / 2
    tensor([-2.3052])
    """

    domain: Mixed
    blocks: Mixed

    def __init__(self, parts: Sequence[Distribution]):
        self.parts = list(parts)
        if not self.parts:
            raise ValueError("Columns needs at least one distribution.")
        for part in self.parts:
            if len(part.domain.row_shape) != 1:
                raise ValueError(f"The rows of {part!r} are not flat.")
        self.blocks = Mixed(tuple(part.domain for part in self.parts))
        # A distribution of several kinds of columns is one block, but its kinds are parts of a row.
        self.domain = Mixed(tuple(itertools.chain(*map(parts_of, self.blocks.parts))))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.cat([part.sample(n, generator) for part in self.parts], 1)

    def log_prob(self, x: Tensor) -> Tensor:
        blocks = zip(self.parts, self.blocks.split(x), strict=True)
        return torch.stack([part.log_prob(block) for part, block in blocks]).sum(0)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-probability, block by block."""
        blocks = zip(self.parts, self.blocks.split(x), strict=True)
        return torch.cat([part.score(block) for part, block in blocks], 1)

    def tilted(self, field: Tensor, power: float = 1.0) -> ColumnsTilt:
        """The tilts of the blocks."""
        blocks = zip(self.parts, self.blocks.split(field), strict=True)
        return ColumnsTilt([part.tilted(block, power) for part, block in blocks], self)

    def given(self, clamp: Clamp) -> Conditional:
        """Exact conditionals, where each block has them."""
        conditionals = [
            part.given(known) for part, known in zip(self.parts, self.cut(clamp), strict=True)
        ]
        return JoinedConditional(conditionals, self.blocks.parts)

    @property
    def has_given(self) -> bool:
        """Whether each block has exact conditionals."""
        return all(part.has_given for part in self.parts)

    @property
    def has_powers(self) -> bool:
        return all(part.has_powers for part in self.parts)

    def cut(self, clamp: Clamp) -> list[Clamp]:
        """The clamp of each block."""
        blocks = zip(self.blocks.split(clamp.mask), self.blocks.split(clamp.value), strict=True)
        return [Clamp(mask, value) for mask, value in blocks]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Columns:
        """A copy on a device, its floating-point tensors in the given precision."""
        return Columns([part.to(device, dtype) for part in self.parts])


def blocks_of(distribution: Distribution) -> list[Any]:
    """The independent blocks of :class:`Columns`; any other distribution is a single block."""
    return distribution.parts if isinstance(distribution, Columns) else [distribution]


class JoinedConditional(Conditional):
    """Conditionals of independent blocks, side by side."""

    def __init__(self, parts: Sequence[Conditional], domains: Sequence[Domain]):
        self.parts, self.domains = parts, domains

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return torch.cat([part.mean for part in self.parts], 1)

    def sample(self, generator: torch.Generator) -> Tensor:
        return torch.cat([part.sample(generator) for part in self.parts], 1)

    def column(self, entry: int) -> Any:
        """The distribution of an unknown entry, by that of its block; None where it has none."""
        for part, domain in zip(self.parts, self.domains, strict=True):
            if entry < domain.n_columns:
                return part.column(entry) if hasattr(part, "column") else None
            entry -= domain.n_columns
        return None


class ColumnsTilt(JoinedConditional, Tilt):
    """Tilts of independent blocks."""

    parts: Sequence[Tilt]

    def __init__(self, parts: Sequence[Tilt], owner: Columns):
        super().__init__(parts, owner.blocks.parts)
        self.owner = owner

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        return torch.stack([part.log_normaliser for part in self.parts]).sum(0)

    def given(self, clamp: Clamp) -> ColumnsTilt:
        """The tilts given known entries."""
        pairs = zip(self.parts, self.owner.cut(clamp), strict=True)
        return ColumnsTilt([part.given(known) for part, known in pairs], self.owner)
