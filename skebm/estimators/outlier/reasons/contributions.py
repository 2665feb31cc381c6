"""Contributions of the columns to the anomaly of a row: evidence, imputation or the score."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from skebm._validation import take_rows
from skebm.estimators.outlier.columns import (
    Column,
    as_table,
    column_names,
    column_of,
    with_column,
)
from skebm.estimators.outlier.reasons.explanations import (
    LEAST_NATS,
    NATS,
    Contradiction,
    Explanation,
)
from skebm.estimators.outlier.thresholds import difference
from skebm.estimators.queries.densities import input_of_last_step, last_step, score_function
from skebm.estimators.tables.columns import is_present

# Points outside the range of a column, points that each round of refinement adds in the region of
# its conditional density, and maximum number of rounds.
N_OUTSIDE, N_ADDED, MAX_ROUNDS = 12, 24, 5
# Nats below the mode beyond which a conditional density is neglected.
DEPTH = 12.0
# Rows scored at a time.
MAX_ROWS = 50_000

# Columns of a row that may be part of a pair, the most anomalous ones; and how much more evidence
# there may be for one of the two: with odds of more than 20 to 1, that one is wrong.
MOST_IN_PAIRS, MOST_APART = 3, 3.0
# Wrong entries of a row that others are freed from, one after the other; and nats in favour of an
# entry that are due to a wrong one rather than to entries that agree.
MOST_WRONG, CERTAIN = 3, 20.0
# Distance of quantiles in units of the standard deviation, of a normal distribution.
SPREADS = ((0.25, 0.75, 1.35), (0.05, 0.95, 3.29), (0.0, 1.0, 4.0))
# Bandwidth of the density of a column alone, in units of its spread: that of a thousand rows by
# Silverman's rule.
BANDWIDTH = 0.27
# Share of wrong entries of a discrete column that are levels which did not occur in `fit`.
NEW_LEVEL = 0.1

Statistic = Callable[[Any], np.ndarray]


class ColumnEvidence(NamedTuple):
    """Evidence in nats that the entries of a column are wrong, (n,), and what is expected there.

    `expected` is the mean of a continuous column, `mode` its most probable value; both are in the
    numbers of the grid.
    """

    contribution: np.ndarray
    expected: np.ndarray
    mode: np.ndarray


def explain_by_evidence(
    statistics: list[Statistic], X: Any, columns: list[Column] | None
) -> Explanation:
    """Log Bayes factors that an entry is wrong, means over log densities, and pairs of columns.

    What is expected is by the last log density.
    """
    X, columns = as_table(X), check_summarised(columns)
    found = [evidence(statistics, X, j, column) for j, column in enumerate(columns)]
    contributions = np.column_stack([column.contribution for column in found])
    modes = [column.mode for column in found]
    expected = [column.expected for column in found]
    free_of_wrong_entries(statistics, X, columns, contributions, expected, modes, ())
    pairs = contradictions(statistics, X, columns, contributions, modes)
    return explanation_of(X, columns, contributions, expected, NATS, pairs)


def explain_by_imputation(
    statistic: Statistic, X: Any, columns: list[Column] | None, *, conditional: bool
) -> Explanation:
    """Expected rise of the statistic when a column is drawn anew given the others.

    With `conditional` the statistic is a log density, which determines the conditional distribution
    of the column. Otherwise the column is drawn from its marginal distribution in the rows of
    `fit`.
    """
    X, columns = as_table(X), check_summarised(columns)
    own = statistic(X)
    contributions, expected = np.empty((len(own), len(columns))), []
    for j, column in enumerate(columns):
        grid = ConditionalGrid(statistic, X, j, column, weighted=conditional)
        contributions[:, j] = difference(grid.mean_statistic(), own)
        expected.append(grid.expected())
    return explanation_of(X, columns, contributions, expected, NATS if conditional else "", [])


def check_summarised(columns: list[Column] | None) -> list[Column]:
    """The columns; raises for a detector of other data than tables."""
    if columns is None:
        raise ValueError("explain needs a detector that was fitted to a two-dimensional table.")
    return columns


def explanation_of(
    X: Any,
    columns: list[Column],
    contributions: np.ndarray,
    expected: list[np.ndarray],
    unit: str,
    pairs: list[Contradiction],
) -> Explanation:
    """The explanation of rows of a table, with expected values in the units of the columns."""
    values = [as_objects(np.asarray(column_of(X, j))) for j in range(len(columns))]
    in_units = [
        as_objects(column.as_expected(numbers))
        for column, numbers in zip(columns, expected, strict=True)
    ]
    return Explanation(
        contributions,
        as_floats(np.column_stack(values)),
        as_floats(np.column_stack(in_units)),
        [column.name for column in columns],
        unit,
        pairs,
    )


# ------------------------------------------------------------------------------
# Evidence that an entry is wrong
# ------------------------------------------------------------------------------


def evidence(statistics: list[Statistic], X: Any, j: int, column: Column) -> ColumnEvidence:
    """Evidence that entries of column `j` are wrong: the mean over several log densities."""
    of_column = discrete_evidence if column.discrete else continuous_evidence
    missing = ~present(column_of(X, j))
    found = []
    for statistic in statistics:
        grid = ConditionalGrid(statistic, X, j, column, weighted=True)
        own = statistic(X)
        value = of_column(grid, own)
        if missing.any():  # nothing is known of how often entries are missing given the others
            value = np.where(missing, difference(grid.mean_statistic(), own), value)
        found.append(value)
    with np.errstate(invalid="ignore"):  # plus infinity by one, minus by the other
        mean = np.mean(found, axis=0)
    return ColumnEvidence(np.where(np.isnan(mean), 0.0, mean), grid.expected(), grid.mode())


def present(column: Any) -> np.ndarray:
    """Which entries of a column are not missing, (n,)."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        known: np.ndarray = ~np.isnan(values)
        return known
    if values.dtype.kind in "mM":
        return ~np.isnat(values)
    return np.array([is_present(value) for value in values.tolist()], dtype=bool)


def continuous_evidence(grid: ConditionalGrid, own: np.ndarray) -> np.ndarray:
    """log q(x_j) - log p(x_j | others), where q is the density of a wrong entry."""
    v, marginal = grid.column.numbers_of(grid.X, grid.j), LogMarginal.of(grid.column)
    v = np.where(np.isnan(v), marginal.centre, v)  # missing entries are treated elsewhere
    log_q, total = marginal.of_wrong_entry(v), logsumexp(grid.log_weight, axis=1)
    alone = log_q - marginal(v)
    with np.errstate(invalid="ignore"):
        # Others that are impossible whatever the entry say nothing of it.
        return np.where(np.isneginf(np.maximum(total, own)), alone, log_q - (own - total))


def discrete_evidence(grid: ConditionalGrid, own: np.ndarray) -> np.ndarray:
    """Log odds that the entry is another level, which was replaced by this one.

    A wrong entry in place of level u is a level v with a probability in proportion to the frequency
    m of v among other levels, or, with probability `NEW_LEVEL`, one that did not occur.
    """
    place, counts = places_of_levels(grid), grid.column.counts
    frequency = counts / counts.sum()
    unseen = place < 0
    log_p = grid.log_weight
    other = np.arange(len(frequency)) != place[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        # Of one level, which no other can have replaced, the difference is not used.
        replaced = np.where(other, log_p - np.log1p(-frequency), -np.inf)
        seen = np.log1p(-NEW_LEVEL) + np.log(frequency[place]) + logsumexp(replaced, axis=1)
        new = np.log(NEW_LEVEL) + logsumexp(log_p, axis=1)
        found = np.where(unseen, new, seen) - own
    impossible = np.isneginf(np.maximum(log_p.max(1), own))
    alone = np.where(unseen, np.log(NEW_LEVEL) + np.log(counts.sum() + 1), 0.0)
    found = np.where(impossible, alone, found)
    return np.where(other.any(1), found, 0.0)  # of one level, no other value is known


def places_of_levels(grid: ConditionalGrid) -> np.ndarray:
    """Number of the level that each row has in the column; -1 for one that did not occur."""
    column = grid.column
    if column.times or column.levels.dtype.kind in "biuf":
        own = column.numbers_of(grid.X, grid.j).tolist()
    else:
        own = np.asarray(column_of(grid.X, grid.j)).tolist()
    known = {level: k for k, level in enumerate(column.levels.tolist())}
    return np.array([known.get(v, -1) if isinstance(v, Hashable) else -1 for v in own], dtype=int)


class LogMarginal(NamedTuple):
    """Log density of a continuous column alone, with kernels at its quantiles."""

    levels: np.ndarray
    centre: float
    spread: float

    @classmethod
    def of(cls, column: Column) -> LogMarginal:
        """The density of a column, whose spread is that of its middle, if this is not constant."""
        levels = column.levels
        with np.errstate(over="ignore"):
            spreads = [
                (np.quantile(levels, high) - np.quantile(levels, low)) / width
                for low, high, width in SPREADS
            ]
        spread = next((float(found) for found in spreads if found > 0), 1.0)
        return cls(levels, float(np.median(levels)), spread)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        """Log density at v, (n,)."""
        weight = np.ones(len(self.levels))
        weight[[0, -1]] = 0.5  # the extremes are quantiles of half of the mass
        width = BANDWIDTH * self.spread
        with np.errstate(over="ignore"):
            z = (v[:, None] - self.levels) / width
            logs = np.log(weight / weight.sum()) - z**2 / 2
        found: np.ndarray = logsumexp(logs, axis=1) - np.log(width) - np.log(2 * np.pi) / 2
        return found

    def of_wrong_entry(self, v: np.ndarray) -> np.ndarray:
        """Log density of a wrong entry: half another row's, half from anywhere.

        The latter has the density of Student's t with two degrees of freedom.
        """
        with np.errstate(over="ignore"):
            z = (v - self.centre) / self.spread
            anywhere = -3 * np.log(np.hypot(np.sqrt(2), z)) - np.log(self.spread)
        found: np.ndarray = np.logaddexp(self(v), anywhere) - np.log(2)
        return found


# ------------------------------------------------------------------------------
# Entries that are anomalous because of others
# ------------------------------------------------------------------------------


def with_mode(X: Any, k: int, column: Column, mode: np.ndarray) -> Any:
    """The rows with the most probable value in column `k`."""
    return with_column(X, k, column.in_own_units(mode)[:, None], keep_dtype=column.discrete)


def free_of_wrong_entries(
    statistics: list[Statistic],
    X: Any,
    columns: list[Column],
    contributions: np.ndarray,
    expected: list[np.ndarray],
    modes: list[np.ndarray],
    done: tuple[int, ...],
) -> None:
    """Replace contributions that are due to a wrong entry by those of the row without it.

    Given a wrong entry k, others are anomalous as well, or seem certain. Where there is so much
    more evidence against k, these are computed again with the most probable value in place of k,
    and then without the next wrong entry. Changes `contributions` and what is `expected`; columns
    that are `done` have been replaced in X.
    """
    left = contributions.copy()
    left[:, list(done)] = -np.inf
    top = left.argmax(1)
    wrong = left.max(1) >= LEAST_NATS
    for k in np.unique(top[wrong]).tolist():
        rows = np.flatnonzero(wrong & (top == k))
        healed = with_mode(take_rows(X, rows), k, columns[k], modes[k][rows])
        own = contributions[rows]
        means, tops = ([values[rows] for values in each] for each in (expected, modes))
        gap = difference(own[:, [k]], own)
        again = (gap > MOST_APART) & ((own >= LEAST_NATS) | (own <= -CERTAIN))
        again[:, list(done)] = False
        for j in np.flatnonzero(again.any(0)).tolist():
            some = np.flatnonzero(again[:, j])
            found = evidence(statistics, take_rows(healed, some), j, columns[j])
            own[some, j], means[j][some], tops[j][some] = found
        if again.any() and len(done) + 1 < MOST_WRONG:
            both = (*done, k)
            free_of_wrong_entries(statistics, healed, columns, own, means, tops, both)
        contributions[rows] = own
        for values, mean in zip(expected, means, strict=True):
            values[rows] = mean


# ------------------------------------------------------------------------------
# Pairs
# ------------------------------------------------------------------------------


def contradictions(
    statistics: list[Statistic],
    X: Any,
    columns: list[Column],
    contributions: np.ndarray,
    modes: list[np.ndarray],
) -> list[Contradiction]:
    """Pairs of columns of which each is anomalous because of the other.

    With the most probable value in column k, the contribution of column j falls by at least
    `LEAST_NATS` and by half, and the other way round; and neither contribution is by far the
    larger. A column is in one pair at most, that with the largest fall.
    """
    anomalous = contributions >= LEAST_NATS
    rank = np.argsort(np.argsort(-contributions, axis=1, kind="stable"), axis=1)
    asked = anomalous & (rank < MOST_IN_PAIRS)
    asked &= asked.sum(1, keepdims=True) > 1
    falls: dict[tuple[int, int, int], float] = {}
    for k in np.flatnonzero(asked.any(0)).tolist():
        rows = np.flatnonzero(asked[:, k])
        healed = with_mode(take_rows(X, rows), k, columns[k], modes[k][rows])
        gap = np.abs(difference(contributions[rows], contributions[rows][:, [k]]))
        close = asked[rows] & (gap <= MOST_APART)
        close[:, k] = False
        for j in np.flatnonzero(close.any(0)).tolist():
            some = np.flatnonzero(close[:, j])
            left = evidence(statistics, take_rows(healed, some), j, columns[j]).contribution
            before = contributions[rows[some], j]
            fall = difference(before, left)
            enough = (fall >= LEAST_NATS) & (left <= before / 2)
            places = zip(rows[some][enough].tolist(), fall[enough].tolist(), strict=True)
            falls |= {(row, j, k): value for row, value in places}
    return disjoint_pairs(falls, [column.name for column in columns])


def disjoint_pairs(
    falls: dict[tuple[int, int, int], float], names: list[str]
) -> list[Contradiction]:
    """Pairs (row, j, k) that are there both ways, by their smaller value, without common columns.

    In the order of the rows, and in a row the largest first.
    """
    both = [
        (row, -min(value, falls[row, k, j]), j, k)
        for (row, j, k), value in falls.items()
        if j < k and (row, k, j) in falls
    ]
    found: list[Contradiction] = []
    taken: set[tuple[int, int]] = set()
    for row, value, j, k in sorted(both):
        if not {(row, j), (row, k)} & taken:
            taken |= {(row, j), (row, k)}
            found.append(Contradiction(row, names[j], names[k], -value))
    return found


# ------------------------------------------------------------------------------
# The score, and the conditional distribution of a column
# ------------------------------------------------------------------------------


def explain_by_score(models: list[Any], X: Any) -> Explanation:
    """Squared components of grad log p, averaged over models, in the input of their last step."""
    score = np.mean([score_function(model, X) for model in models], axis=0)
    before, final = last_step(models[0])
    seen = input_of_last_step(before, X)
    names = list(getattr(final, "feature_names_in_", [])) or _names_of_last_step(before, seen)
    return Explanation(np.square(score), np.asarray(seen), None, names, "squared gradient of log p")


def _names_of_last_step(before: list[Any], X: Any) -> list[str]:
    """Names of the input columns of the last step."""
    if before and hasattr(before[-1], "get_feature_names_out"):
        return [str(name) for name in before[-1].get_feature_names_out()]
    return column_names(X)


def as_objects(values: np.ndarray) -> np.ndarray:
    """Values as objects of Python; dates in microseconds, as others would be whole numbers."""
    if values.dtype.kind in "Mm":
        values = values.astype(f"{values.dtype.kind}8[us]")
    return values.astype(object)


def as_floats(values: np.ndarray) -> np.ndarray:
    """Values as floats if every entry is a number, otherwise unchanged."""
    try:
        return values.astype(float)
    except (TypeError, ValueError):
        return values


class ConditionalGrid:
    """Conditional distribution of a column on a grid: points, statistic and log weights."""

    def __init__(
        self, statistic: Statistic, X: Any, j: int, column: Column, *, weighted: bool
    ) -> None:
        self.statistic, self.X, self.j, self.column = statistic, X, j, column
        levels, self.discrete = column.levels, column.discrete
        if len(levels) == 0:
            raise ValueError(f"Column {column.name} has no values to impute from.")
        self.points = np.broadcast_to(levels, (X.shape[0], len(levels)))
        if weighted and not self.discrete:
            self.points = np.sort(np.column_stack([self.points, self._outside(levels)]), axis=1)
        self.value = self._evaluate(self.points)
        if not weighted:
            self.log_weight = np.broadcast_to(np.log(column.counts), self.points.shape)
        elif self.discrete:
            self.log_weight = self.value
        else:
            self._refine()

    def _outside(self, levels: np.ndarray) -> np.ndarray:
        """Points towards and beyond a row's own value if it lies outside the levels.

        Given other anomalous columns, the conditional density may be high there; otherwise the grid
        has to extend to where the density vanishes.
        """
        own = self.column.numbers_of(self.X, self.j)
        own = np.where(np.isfinite(own), own, levels[0])[:, None]
        edge = own.clip(levels[0], levels[-1])
        return edge + 1.5 * (own - edge) * 0.5 ** np.arange(N_OUTSIDE)

    def _evaluate(self, points: np.ndarray) -> np.ndarray:
        """Statistic of the rows with the column at each point, (n, m)."""
        step = max(1, MAX_ROWS // points.shape[1])
        found = []
        for start in range(0, len(points), step):
            rows = slice(start, start + step)
            values = self.column.in_own_units(points[rows])
            table = with_column(self.X[rows], self.j, values, keep_dtype=self.discrete)
            found.append(self.statistic(table))
        return np.concatenate(found).reshape(points.shape)

    def _refine(self) -> None:
        """Add points where a continuous column's density is high; trapezoidal weights."""
        for done in range(MAX_ROUNDS):
            log_weight = self.value + log_width(self.points)
            kept = log_weight >= log_weight.max(1, keepdims=True) - DEPTH
            if done and kept.sum(1).min() >= N_ADDED / 2:
                break
            last = kept.shape[1] - 1
            first = np.maximum(kept.argmax(1) - 1, 0)
            final = np.minimum(last - kept[:, ::-1].argmax(1) + 1, last)
            rows = np.arange(len(kept))
            ends = self.points[rows, first], self.points[rows, final]
            added = np.linspace(*ends, N_ADDED + 2, axis=1)[:, 1:-1]
            points = np.concatenate([self.points, added], axis=1)
            value = np.concatenate([self.value, self._evaluate(added)], axis=1)
            order = np.argsort(points, axis=1, kind="stable")
            self.points = np.take_along_axis(points, order, 1)
            self.value = np.take_along_axis(value, order, 1)
        self.log_weight = self.value + log_width(self.points)

    def _weights(self) -> np.ndarray:
        """Probabilities of the points; nan if all of them have probability zero."""
        top = self.log_weight.max(1, keepdims=True)
        with np.errstate(invalid="ignore"):
            weight = np.exp(self.log_weight - top)
            return weight / weight.sum(1, keepdims=True)

    def mean_statistic(self) -> np.ndarray:
        """Mean of the statistic over the conditional distribution of the column, (n,)."""
        weight = self._weights()
        with np.errstate(invalid="ignore"):
            mean = np.where(weight > 0, weight * self.value, 0.0).sum(1)
        return np.where(np.isnan(weight).any(1), self.log_weight.max(1), mean)

    def mode(self) -> np.ndarray:
        """Most probable point, (n,)."""
        found: np.ndarray = self.points[np.arange(len(self.points)), self.value.argmax(1)]
        return found

    def expected(self) -> np.ndarray:
        """Mean of a continuous column, most probable value of a discrete one, (n,)."""
        if self.discrete:
            return self.points[np.arange(len(self.points)), self.log_weight.argmax(1)]
        return (self._weights() * self.points).sum(1)


def log_width(points: np.ndarray) -> np.ndarray:
    """Log of the weights of sorted points in the trapezoidal rule."""
    gap = np.diff(points, axis=1)
    edge = np.zeros((len(points), 1))
    width = (np.concatenate([edge, gap], axis=1) + np.concatenate([gap, edge], axis=1)) / 2
    with np.errstate(divide="ignore"):
        return np.log(width)
