r"""A model as a base and its correction, and what follows from both of rows with missing entries.

.. math:: \sum_{x_m} e^{-E(x_k, x_m)} = q(x_k)\, E_{q(x_m \mid x_k)} \frac{e^{-E(x)}}{q(x)}

for known entries k and missing ones m. A base that models are to be asked about has exact marginals
and conditionals; without a correction, all answers are exact.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Binary, Clamp, Real
from skebm.base.domains import parts_of
from skebm.base.torchtools import distinct_masks
from skebm.distributions import Distribution, GaussianMixture
from skebm.distributions._fitting import draw_index
from skebm.distributions.conditionals.column import NormalMixtures
from skebm.distributions.stack import with_broad_part
from skebm.estimators.queries.columns import ByRows, NumberDistribution, WeightedDraws
from skebm.estimators.queries.draws import draws_given
from skebm.estimators.queries.quadrature import CellDensities, density_in_cells
from skebm.partition.given import LogZGiven

# Completions of a row up to which these are summed, if no numbers are missing.
MOST_COMPLETIONS = 1024
# Draws of the base for each row, more as long as the standard error of log p is above the
# tolerance, in nats.
N_DRAWS, MAX_ERROR = (200, 1000, 5000), 0.05
# Draws of all rows of a call at most, beyond the first ones.
MOST_DRAWS = 4_000_000
# Effective number of draws, of fewer than which nothing is known of the error of a mean weight.
LEAST_EFFECTIVE = 10
# Components at most of the mixture that stands in for a base without conditionals.
N_COMPONENTS = 10
# Weight of its broad component.
BROAD_SHARE = 0.1
# Tolerance of integrals over one missing number.
TIGHT = 1e-9
# First cells of the density of a number, and rows whose densities are found together.
N_CELLS, ROWS = 8, 500
# Weight of components of a base that are left out of quadrature, relative to its tolerance.
NEGLIGIBLE = 1e-2
# Relative errors that rounding of energies leaves of quadrature.
ROUNDING = {torch.float32: 1e-6}
# Tolerance above which the base is computed in float32.
ROUNDED = 1e-5
# Numbers that are computed at once, and rows: those of a network stay in the cache of a core.
CHUNK, BLOCK = 2_000_000, 1024


class Joint(NamedTuple):
    """A density of rows as a base, whose marginals are exact, and a correction of it.

    Attributes
    ----------
    base : Distribution
    groups : tuple of int
        Numbers of entries of the columns: 1 of a bit or number, k of one of k levels.
    energy : callable or None
        ``energy(x) -> (n,)``, -log p(x) up to a constant; None is a model that is its base.
    correction : callable or None
        E(x) + log q(x) without log q(x), where that cancels.
    exact_sums : callable or None
        ``exact_sums(x, known) -> (n,)``: log of sums over missing entries that the energy has in
        closed form; it returns None where these have too many terms.
    discontinuities : callable or None
        ``discontinuities(entry) -> (k,)``: values of an entry at which it is not continuous.
    """

    base: Distribution
    groups: tuple[int, ...]
    energy: Callable[[Tensor], Tensor] | None = None
    correction: Callable[[Tensor], Tensor] | None = None
    exact_sums: Callable[[Tensor, Tensor], Tensor | None] | None = None
    discontinuities: Callable[[int], Tensor] | None = None

    @property
    def is_real(self) -> Tensor:
        """Which entries are numbers, (d,)."""
        parts = parts_of(self.base.domain)
        return torch.cat([torch.full((p.n_columns,), isinstance(p, Real)) for p in parts])

    # ---------------------------------------------------------------- densities

    def log_density(self, x: Tensor) -> Tensor:
        """-E(x), (n,) in float64."""
        evaluate = self.base.log_prob if self.energy is None else self.energy
        sign = 1.0 if self.energy is None else -1.0
        return sign * self._by_chunks(evaluate, x)

    def log_ratio(self, x: Tensor) -> Tensor:
        """-E(x) - log q(x), (n,) in float64."""
        if self.energy is None:
            return torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if self.correction is not None:
            return -self._by_chunks(self.correction, x)
        return self.log_density(x) - self._by_chunks(self.base.log_prob, x)

    @staticmethod
    def _by_chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        size = max(1, min(BLOCK, CHUNK // max(1, x.shape[1])))
        return torch.cat([function(part).double() for part in x.split(size)])

    # ---------------------------------------------------------------- marginals

    def log_sums(self, x: Tensor, known: Tensor, generator: torch.Generator) -> LogZGiven:
        r"""Log of the sum (integral) of :math:`e^{-E}` over the missing entries of rows.

        Direction: exact without a correction, for rows with few completions, and by quadrature for
        rows that miss one number. Otherwise unbiased for the sum, so that its log is low on
        average, by about half of the squared standard error; this is infinite, and the log may be
        far too low, where few draws of the base are near the model.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Entries that are missing may be anything, nan included.
        known : Tensor of shape (n, d), bool
        generator : torch.Generator
        """
        x = torch.where(known, x, 0.0)
        if self.energy is None:
            return LogZGiven.exactly(self.base.log_marginal(Clamp(known, x)))
        exact = None if self.exact_sums is None else self.exact_sums(x, known)
        if exact is not None:
            return LogZGiven.exactly(exact)
        found = LogZGiven.unknown(len(x), x.device)
        for rows, states in few_completions(known, self.groups, self.is_real):
            sums = log_sums_over(self.log_density, states, known[rows[0]], x[rows])
            found.put(rows, LogZGiven.exactly(sums))

        for rows, entry in self._rows_missing_a_number(known, ~found.exact):
            integrals = self._integrals(x[rows], known[rows], entry)
            if integrals is not None:
                found.put(rows, LogZGiven.exactly(integrals))

        left = max(1, int((~found.exact).sum()))
        numbers = [n for n in N_DRAWS if n == N_DRAWS[0] or n * left <= MOST_DRAWS]

        def estimate(index: Tensor, n_draws: int) -> LogZGiven:
            part = LogZGiven.unknown(len(index), x.device)
            for some in blocks_alike(known[index], n_draws * x.shape[1]):
                at = index[some]
                part.put(some, self._by_importance(x[at], known[at], n_draws, generator))
            return part

        found.refine(estimate, numbers, MAX_ERROR)
        return found

    def _rows_missing_a_number(self, known: Tensor, which: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Those rows of some that miss one number alone, and the entry."""
        one = which & ((~known).sum(1) == 1)
        for entry in self.is_real.nonzero()[:, 0].tolist():
            rows = (one & ~known[:, entry]).nonzero()[:, 0]
            yield from ((some, entry) for some in blocks_of_index(rows, CHUNK // ROWS))

    def _integrals(self, x: Tensor, known: Tensor, entry: int) -> Tensor | None:
        """Log of integrals over a number by quadrature; None if the base has no such mixture."""
        of_base = self.base_column(x, known, entry, TIGHT) if self.correction is not None else None
        if of_base is None:
            return None
        found = self._number_in_cells(_Column(x, known, entry, of_base), x[:0, entry], TIGHT)
        return found.log_normaliser + self.base.log_marginal(Clamp(known, x)).double()

    def _by_importance(
        self, x: Tensor, known: Tensor, n_draws: int, generator: torch.Generator
    ) -> LogZGiven:
        """Importance sampling from the base given the known entries."""
        _, log_w = self.weighted_draws(x, known, n_draws, generator)
        top = log_w.amax(1, keepdim=True)
        w = (log_w - top).exp()
        mean = w.mean(1)
        value = mean.log() + top[:, 0] + self.base.log_marginal(Clamp(known, x)).double()
        error = w.std(1) / mean / math.sqrt(n_draws)
        n_effective = w.sum(1).square() / w.square().sum(1)
        error = error.masked_fill(n_effective < LEAST_EFFECTIVE, math.inf)
        return LogZGiven(value, error, value.clone(), torch.zeros_like(value, dtype=torch.bool))

    # ---------------------------------------------------------------- draws

    def weighted_draws(
        self, x: Tensor, known: Tensor, n_draws: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Rows (n, n_draws, d) of the base given the known entries, and log-weights (n, n_draws).

        The weights are density ratios of the model to the base, without a constant.
        """
        counts = torch.full((len(x),), n_draws, device=x.device)
        drawn = draws_given(self.base, Clamp(known, x), counts, generator)
        return drawn.view(len(x), n_draws, -1), self.log_ratio(drawn).view(len(x), n_draws)

    def completions(
        self, x: Tensor, known: Tensor, n_each: int, generator: torch.Generator
    ) -> Tensor:
        """Draws of rows given their known entries, (n_each, n, d).

        Exact without a correction; otherwise draws of the base are resampled by their weights,
        which is exact in the limit of many.
        """
        made = torch.empty(n_each, *x.shape, dtype=x.dtype, device=x.device)
        n_draws = n_each if self.energy is None else max(N_DRAWS[0], 2 * n_each)
        for rows in blocks_alike(known, n_draws * x.shape[1]):
            drawn, log_w = self.weighted_draws(x[rows], known[rows], n_draws, generator)
            if self.energy is None:
                made[:, rows] = drawn.transpose(0, 1)
                continue
            weight, own = log_w.softmax(1), torch.arange(len(drawn), device=x.device)
            for one in made:
                u = torch.rand(len(drawn), generator=generator, dtype=torch.float64)
                one[rows] = drawn[own, draw_index(weight, u.to(x.device))]
        return made

    def means(self, x: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """Rows with means in place of missing entries, probabilities of bits and levels, (n, d).

        Exact without a correction and for few completions, and otherwise means of weighted draws.
        """
        if self.energy is None:
            mean: Tensor = self.base.given(Clamp(known, x)).mean
            return mean
        found = self.expectations(x, known, lambda rows: rows, x.shape[1], generator)
        return torch.where(known, x, found.to(x))

    def expectations(
        self,
        x: Tensor,
        known: Tensor,
        of_rows: Callable[[Tensor], Tensor],
        width: int,
        generator: torch.Generator,
    ) -> Tensor:
        """Expectations of functions of rows given their known entries, (n, width), in float64.

        Sums over completions where these are few, and otherwise means of weighted draws.

        Parameters
        ----------
        x : Tensor of shape (n, d)
        known : Tensor of shape (n, d), bool
        of_rows : callable
            ``of_rows(x (N, d)) -> (N, width)``.
        width : int
        generator : torch.Generator
        """
        found = torch.empty(len(x), width, dtype=torch.float64, device=x.device)
        left = torch.ones(len(x), dtype=torch.bool, device=x.device)

        def put(rows: Tensor, full: Tensor, log_weight: Tensor) -> None:
            values = of_rows(full).double().view(*log_weight.shape, width)
            found[rows] = torch.einsum("nm,nmd->nd", log_weight.softmax(1), values)

        for rows, states in few_completions(known, self.groups, self.is_real):
            left[rows] = False
            for some in blocks_of_rows(len(rows), len(states) * x.shape[1]):
                at = rows[some]
                full = _with_states(x[at], known[at[0]], states)
                put(at, full, self.log_density(full).view(len(at), -1))
        rest = left.nonzero()[:, 0]
        for some in blocks_alike(known[rest], N_DRAWS[1] * x.shape[1]):
            index = rest[some]
            drawn, log_w = self.weighted_draws(x[index], known[index], N_DRAWS[1], generator)
            put(index, drawn.flatten(0, 1), log_w)
        return found

    def modes(self, mean: Tensor, known: Tensor) -> Tensor:
        """Rows with the more probable value of bits in place of their means."""
        parts = parts_of(self.base.domain)
        bits = torch.cat([torch.full((p.n_columns,), isinstance(p, Binary)) for p in parts])
        return torch.where(bits.to(mean.device) & ~known, (mean > 0.5).to(mean), mean)

    # ---------------------------------------------------------------- one column

    def levels(
        self, x: Tensor, known: Tensor, entries: slice, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, str]:
        """Log-probabilities of the levels of a column, (n, k), given the other known entries.

        Also their standard errors before they are normalised, and how they were found. Levels of
        bits are 0 and 1.
        """
        states = states_of_column(entries.stop - entries.start).to(x)
        found = torch.empty(len(x), len(states), dtype=torch.float64, device=x.device)
        error, here = torch.zeros_like(found), _with(known, entries)
        for some in blocks_of_rows(len(x), len(states) * x.shape[1]):
            rows = x[some].repeat_interleave(len(states), 0)
            rows[:, entries] = states.repeat(len(some), 1)
            mask = here[some].repeat_interleave(len(states), 0)
            sums = self.log_sums(rows, mask, generator)
            found[some] = sums.value.view(len(some), -1)
            error[some] = sums.std_error.view(len(some), -1)
        exact = bool(self._rows_with_exact_sums(x, here).all())
        return found.log_softmax(1), error, "exact" if exact else "sampling"

    def _rows_with_exact_sums(self, x: Tensor, known: Tensor) -> Tensor:
        """Which sums over the missing entries of rows are exact, (n,)."""
        if self.energy is None or (
            self.exact_sums is not None and self.exact_sums(x, known) is not None
        ):
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        patterns, member = distinct_masks(known)
        exact = [
            bool(one.all()) or completions_of(one, self.groups, self.is_real) is not None
            for one in patterns
        ]
        return torch.tensor(exact, device=x.device)[member]

    def number(
        self,
        x: Tensor,
        known: Tensor,
        entry: int,
        reference: Tensor,
        generator: torch.Generator,
        tolerance: float,
    ) -> tuple[NumberDistribution, str]:
        """The distribution of an entry that is a number, given the other known entries.

        Parameters
        ----------
        x : Tensor of shape (n, d)
        known : Tensor of shape (n, d), bool
        entry : int
        reference : Tensor of shape (m,)
            Values of the entry in training rows, between and around which its density is looked
            for if the base does not say where it is.
        generator : torch.Generator
        tolerance : float
            Of quadrature.

        Returns
        -------
        found : NumberDistribution
        method : str
        """
        column = slice(entry, entry + 1)
        others = _without(known, column)
        x = torch.where(others, x, 0.0)
        here = _with(others, column)
        exact = self._rows_with_exact_sums(x, here)
        parts: list[tuple[Tensor, NumberDistribution]] = []
        methods = set()
        for is_exact, numbers in ((True, exact.nonzero()[:, 0]), (False, (~exact).nonzero()[:, 0])):
            for some in blocks_alike(others[numbers], CHUNK // ROWS):
                rows = numbers[some]
                of_rows = self.base_column(x[rows], others[rows], entry, tolerance)
                one = _Column(x[rows], others[rows], entry, of_rows)
                found: NumberDistribution
                if self.energy is None and of_rows is not None:
                    found, method = of_rows, "exact"
                elif is_exact:
                    found, method = self._number_in_cells(one, reference, tolerance), "quadrature"
                else:
                    found, method = self._number_by_draws(one, generator), "sampling"
                parts.append((rows, found))
                methods.add(method)
        method = max(methods)  # the least exact one, which is the last of the alphabet
        in_order = len(parts) == 1 and bool((parts[0][0].diff() > 0).all())
        return parts[0][1] if in_order else ByRows(parts), method

    def _number_in_cells(
        self, column: _Column, reference: Tensor, tolerance: float
    ) -> CellDensities:
        """The distribution of a number by quadrature."""
        x, known, entry, of_base = column
        edges = self._edges(of_base, entry, reference, len(x))
        tolerance = max(tolerance, ROUNDING.get(x.dtype, 0.0))
        complete = bool(_with(known, slice(entry, entry + 1)).all())
        if complete and of_base is not None and self.correction is not None:
            density = functools.partial(self._log_ratio_of, column)
            log_base = lambda rows, values: of_base.log_prob(values, rows)  # noqa: E731
            return density_in_cells(density, edges, tolerance, log_base)
        return density_in_cells(functools.partial(self._log_density_of, column), edges, tolerance)

    def _log_ratio_of(self, column: _Column, rows: Tensor, values: Tensor) -> Tensor:
        """Log-ratios of complete rows to the base, for values (N, k) in rows (N,)."""
        parts = []
        for some in blocks_of_rows(len(rows), values.shape[1] * column.x.shape[1]):
            full = column.x[rows[some]].repeat_interleave(values.shape[1], 0)
            full[:, column.entry] = values[some].flatten().to(full)
            parts.append(self.log_ratio(full).view(len(some), -1))
        return torch.cat(parts)

    def _log_density_of(self, column: _Column, rows: Tensor, values: Tensor) -> Tensor:
        """Log-densities of values (N, k) of a column in rows (N,), up to constants of the rows."""
        x, known, entry, _ = column
        here = _with(known, slice(entry, entry + 1))
        parts = []
        for some in blocks_of_rows(len(rows), values.shape[1] * x.shape[1]):
            full = x[rows[some]].repeat_interleave(values.shape[1], 0)
            full[:, entry] = values[some].flatten().to(x)
            if not bool(here.all()):
                mask = here[rows[some]].repeat_interleave(values.shape[1], 0)
                found = self.log_sums(full, mask, torch.Generator(x.device)).value
            else:
                found = self.log_density(full)
            parts.append(found.view(len(some), -1))
        return torch.cat(parts)

    def base_column(
        self, x: Tensor, known: Tensor, entry: int, tolerance: float
    ) -> NormalMixtures | None:
        """The distribution of an entry by the base; None where that is no mixture of normals.

        Without components that are negligible beside a relative error `tolerance`.
        """
        if not self.base.has_given:
            return None
        given: Any = self.base.given(Clamp(known, x))
        found = given.column(entry) if hasattr(given, "column") else None
        if found is None or self.energy is None:
            return found and found.without_small_weights()
        found = found.without_small_weights(tolerance * NEGLIGIBLE)
        return found.to(torch.float32 if tolerance > ROUNDED else torch.float64)

    def _edges(
        self, of_base: NormalMixtures | None, entry: int, reference: Tensor, n: int
    ) -> Tensor:
        """Edges of the first cells, (n, m + 1), outside of which there is next to nothing."""
        found = self._plain_edges(of_base, entry, reference, n)
        if self.discontinuities is None:
            return found
        discontinuities = self.discontinuities(entry).to(found).expand(n, -1)
        low, high = found[:, :1], found[:, -1:]
        inside = torch.minimum(torch.maximum(discontinuities, low), high)
        return torch.cat([found, inside], 1).sort(1).values

    def _plain_edges(
        self, of_base: NormalMixtures | None, entry: int, reference: Tensor, n: int
    ) -> Tensor:
        near = None if of_base is None else of_base.spread(N_CELLS).double()
        if near is not None and self.correction is not None:
            return near
        low, high = self._bounds(entry)
        values = reference.double()
        width = float((values.max() - values.min()).clamp_min(1e-3))
        steps = torch.tensor([16.0, 4.0, 1.0, 0.25], dtype=torch.float64) * width
        inner = torch.linspace(float(values.min()), float(values.max()), 17, dtype=torch.float64)
        edges = torch.cat([inner[0] - steps, inner, inner[-1] + steps.flip(0)]).clamp(low, high)
        ends = [edge for edge in (low, high) if math.isfinite(edge)]
        edges = torch.cat([edges, edges.new_tensor(ends)]).sort().values.expand(n, -1)
        # The model may be where a distribution that stands in for its base is not.
        return (
            edges if near is None else torch.cat([edges, near.clamp(low, high)], 1).sort(1).values
        )

    def _bounds(self, entry: int) -> tuple[float, float]:
        """Smallest and largest value of an entry."""
        for part in parts_of(self.base.domain):
            if entry < part.n_columns:
                lower, upper = getattr(part, "lower", None), getattr(part, "upper", None)
                return (-math.inf if lower is None else lower, math.inf if upper is None else upper)
            entry -= part.n_columns
        raise IndexError(entry)

    def _number_by_draws(self, column: _Column, generator: torch.Generator) -> WeightedDraws:
        """Draws of the base given the known entries, weighted by the model."""
        x, known, entry, of_base = column
        values = torch.empty(len(x), N_DRAWS[1], dtype=torch.float64)
        log_weight = torch.empty_like(values)
        for some in blocks_of_rows(len(x), N_DRAWS[1] * x.shape[1]):
            drawn, weight = self.weighted_draws(x[some], known[some], N_DRAWS[1], generator)
            values[some], log_weight[some] = drawn[:, :, entry].double(), weight
        expected = None if of_base is None else of_base.mean
        log_prob = functools.partial(self._log_density_by_draws, column)
        return WeightedDraws(values, log_weight, expected, log_prob)

    @torch.no_grad()
    def _log_density_by_draws(self, column: _Column, values: Tensor) -> Tensor:
        """Log-densities (n, k) of values: the ratio of two sums over missing entries."""
        x, known, entry, _ = column
        n, k = values.shape
        generator = torch.Generator(x.device).manual_seed(0)
        full = x.repeat_interleave(k, 0)
        full[:, entry] = values.flatten().to(x)
        mask = _with(known, slice(entry, entry + 1)).repeat_interleave(k, 0)
        joint = self.log_sums(full, mask, generator).value.view(n, k)
        return joint - self.log_sums(x, known, generator).value[:, None]


class _Column(NamedTuple):
    """An entry of rows that is asked for, given others, and its distribution by the base."""

    x: Tensor
    known: Tensor
    entry: int
    of_base: NormalMixtures | None


def mixture_near(x: Tensor) -> Distribution:
    """A mixture of normals fitted to rows of a model whose base has no conditionals.

    Its broad component bounds what rows of the model are more likely than by it.
    """
    size = max(1, min(N_COMPONENTS, len(x) // (5 * x.shape[1])))
    generator, weight = torch.Generator().manual_seed(0), torch.ones(len(x), dtype=torch.float64)
    found = GaussianMixture.fit(x.double(), weight, size, generator=generator)
    return with_broad_part(found, x.double(), weight, BROAD_SHARE)


def states_of_column(width: int) -> Tensor:
    """Entries of a column at each of its levels, (k, width): a bit has one entry, 0 or 1."""
    return torch.eye(width) if width > 1 else torch.tensor([[0.0], [1.0]])


def few_completions(
    known: Tensor, groups: Sequence[int], is_real: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that miss the same few levels, and all completions of these, (number, missing)."""
    patterns, member = distinct_masks(known)
    for number, pattern in enumerate(patterns):
        states = completions_of(pattern, groups, is_real)
        if states is not None:
            yield (member == number).nonzero()[:, 0], states


def completions_of(known: Tensor, groups: Sequence[int], is_real: Tensor) -> Tensor | None:
    """All values of the missing entries of a row; None where they are many, or numbers."""
    starts = torch.tensor([0, *groups]).cumsum(0)[:-1]
    missing = [g for g, start in zip(groups, starts, strict=True) if not known[start]]
    if bool((is_real.to(known.device) & ~known).any()):
        return None
    if sum(math.log(max(size, 2)) for size in missing) > math.log(MOST_COMPLETIONS):
        return None
    kinds = [states_of_column(size).tolist() for size in missing]
    rows = [list(itertools.chain(*state)) for state in itertools.product(*kinds)]
    return torch.tensor(rows, device=known.device)


def log_sums_over(
    log_density: Callable[[Tensor], Tensor], states: Tensor, known: Tensor, x: Tensor
) -> Tensor:
    """Log of the sum over given values of the missing entries of rows that miss the same, (n,)."""
    found = torch.empty(len(x), dtype=torch.float64, device=x.device)
    for some in blocks_of_rows(len(x), len(states) * x.shape[1]):
        full = _with_states(x[some], known, states)
        found[some] = log_density(full).double().view(len(some), -1).logsumexp(1)
    return found


def _with_states(x: Tensor, known: Tensor, states: Tensor) -> Tensor:
    """Rows with each of the states in place of their missing entries, row by row, (n k, d)."""
    full = x.repeat_interleave(len(states), 0)
    full[:, ~known] = states.to(full).repeat(len(x), 1)
    return full


def _without(known: Tensor, entries: slice) -> Tensor:
    """The known entries without those of a column."""
    found = known.clone()
    found[:, entries] = False
    return found


def _with(known: Tensor, entries: slice) -> Tensor:
    """The known entries and those of a column."""
    found = known.clone()
    found[:, entries] = True
    return found


def blocks_of_rows(n: int, numbers_each: int) -> list[Tensor]:
    """Numbers of n rows in blocks that have few enough numbers; none of no rows."""
    return blocks_of_index(torch.arange(n), numbers_each)


def blocks_alike(known: Tensor, numbers_each: int) -> list[Tensor]:
    """Numbers of the rows of a mask (n, d) in blocks, those with the same known entries together.

    What is known of rows given the same entries is computed once for a block.
    """
    return blocks_of_index(distinct_masks(known)[1].argsort(stable=True), numbers_each)


def blocks_of_index(index: Tensor, numbers_each: int) -> list[Tensor]:
    """The same of some numbers of rows."""
    return list(index.split(max(1, CHUNK // max(1, numbers_each)))) if len(index) else []
