"""Blocks: columns of X of one kind, and the entries that they have in a row of an energy."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from skebm._validation import MinMax, column_ranges, warn
from skebm.base import Binary, Categorical, DataWarning, Domain, Real
from skebm.estimators.tables.units import Units
from skebm.training.mapped import MappedArray, array_blocks

BETWEEN = (
    "Values between 0 and 1 are taken as probabilities of bits: log-likelihoods of such rows are "
    "lower bounds on the means of their random binarisations. Pass bits, as by X > 0.5, for "
    "likelihoods of their own."
)


class ColumnBlock(abc.ABC):
    """Columns of X of one kind, and their entries in a row of the energy.

    Parameters
    ----------
    columns : sequence of int
        Numbers of the columns in X, in the order of the entries.
    domain : Domain
        Of the entries.
    names : sequence of str or None
        Of the columns, for messages; None shows their numbers.

    Attributes
    ----------
    units : Units or None
        Of columns of numbers.
    """

    units: Units | None = None

    def __init__(self, columns: Sequence[int], domain: Domain, names: Sequence[str] | None = None):
        self.columns, self.domain = list(columns), domain
        self.names = None if names is None else list(names)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of entries of each column."""
        return (1,) * self.domain.n_columns

    @property
    def clips(self) -> bool:
        """Whether values outside of a range are taken for its ends."""
        return False

    @property
    def log_volume(self) -> float:
        """Log volume, in the units of the data, of a unit cube in the units of the energy."""
        return 0.0

    def log_volumes(self, known: np.ndarray) -> np.ndarray:
        """`log_volume` of the known entries alone, (n,)."""
        return np.zeros(len(known))

    def check(self, X: Any) -> None:
        """Raise `ValueError` for values that columns X cannot have, or warn of them."""
        return

    @abc.abstractmethod
    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Entries of dense columns X, (n, k); `before` holds those of the blocks before it."""

    def to_units(self, x: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
        """Columns in the units of the data, (n, d), of entries x."""
        return x

    def scaling_of_columns(self) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Columns whose entries are (x - low) / width, with `low` and `width`."""
        return [], np.zeros(0), np.ones(0)

    def name_of(self, entry: int) -> Any:
        """Number or name of the column of an entry, for messages."""
        place = int(np.searchsorted(np.cumsum(self.widths), entry, side="right"))
        return self.columns[place] if self.names is None else repr(self.names[place])


# ------------------------------------------------------------------------------
# Bits
# ------------------------------------------------------------------------------


class ProbabilityBlock(ColumnBlock):
    """Bits and probabilities in [0, 1]; columns with other values are min-max scaled.

    Parameters
    ----------
    scaling : MinMax
        Scaling of the columns with values outside [0, 1].
    n_columns : int
        The block is all columns of X from number `first` on.
    scales : bool
        Whether columns with values outside [0, 1] are scaled and clipped, or raise an error.
    names : sequence of str or None
    first : int

    Attributes
    ----------
    is_said : bool
        Whether a warning said that values are taken as probabilities.
    """

    def __init__(
        self,
        scaling: MinMax,
        n_columns: int,
        scales: bool,
        names: Sequence[str] | None,
        first: int = 0,
    ):
        super().__init__(range(first, first + n_columns), Binary((n_columns,)), names)
        self.scaling, self.scales, self.is_said = scaling, scales, False

    @property
    def clips(self) -> bool:
        return True

    @classmethod
    def learn(
        cls, X: Any, scales: bool = True, names: Any = None, first: int = 0
    ) -> ProbabilityBlock:
        """Learn the ranges of columns; `ValueError` if some must be scaled and may not."""
        names = None if names is None else [str(name) for name in names]
        check_known(X, names)
        found = cls(MinMax.fit(*column_ranges(X)), X.shape[1], scales, names, first)
        if len(found.scaling.columns):
            if not scales:
                raise ValueError(
                    f"X: columns {found.shown(found.scaling.columns)} have values outside [0, 1], "
                    'and visible="probabilities". Binarise or scale them to [0, 1], or pass '
                    'visible="bernoulli", which scales them.'
                )
            found.is_said = not sp.issparse(X) and not all(
                has_only_bits(found.scaling.apply(block)) for _, block in array_blocks(X)
            )
        return found

    def check(self, X: Any) -> None:
        """Warn of values outside the range of the training data, which are clipped, or raise."""
        outside = self.scaling.outside(*column_ranges(X))
        if not len(outside):
            return
        what = f"columns {self.shown(outside)} have values outside the range of the training data"
        if not self.scales:
            raise ValueError(f'X: {what} ([0, 1]), and visible="probabilities".')
        warn(f"X: {what}; they are clipped to it.", DataWarning)

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        return self.scaling.apply(X)

    def to_units(self, x: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
        return self.scaling.invert(x)

    def scaling_of_columns(self) -> tuple[list[int], np.ndarray, np.ndarray]:
        scaling = self.scaling
        return [self.columns[j] for j in scaling.columns], scaling.low, scaling.width

    def shown(self, places: np.ndarray) -> str:
        """Names or numbers of the first ten columns, for a message."""
        shown = [str(i) if self.names is None else repr(self.names[i]) for i in places[:10]]
        return ", ".join(shown) + (f" and {len(places) - 10} more" if len(places) > 10 else "")


class SpinBlock(ProbabilityBlock):
    """Spins, -1 and 1, as bits 0 and 1."""

    def __init__(self, n_columns: int, names: Any = None):
        scaling = MinMax(np.arange(n_columns), np.full(n_columns, -1.0), np.full(n_columns, 1.0))
        names = None if names is None else [str(name) for name in names]
        super().__init__(scaling, n_columns, False, names)

    def check(self, X: Any) -> None:
        """Raise for values other than -1 and 1; missing ones are left to others."""
        values = X.toarray() if sp.issparse(X) else X
        wrong = ~(np.isnan(values) | (np.abs(values) == 1)).all(0)
        if wrong.any():
            raise ValueError(
                f"X: columns {self.shown(np.flatnonzero(wrong))} have values other than -1 and 1, "
                'which are spins. Pass coding="binary" to `fit` bits.'
            )


class BitBlock(ColumnBlock):
    """Bits beside columns of other kinds, which never have other values.

    Parameters
    ----------
    columns, names : sequence
    is_condition : bool
        Whether rows are given these columns, so that other values have no less probability.
    """

    def __init__(self, columns: Sequence[int], names: Sequence[str], is_condition: bool = False):
        super().__init__(columns, Binary((len(columns),)), names)
        self.is_condition = is_condition

    def check(self, X: Any) -> None:
        if self.is_condition:
            return
        wrong = ~np.all([entries_are_bits(block).all(0) for _, block in array_blocks(X)], axis=0)
        if wrong.any():
            raise ValueError(
                f"Column {self.name_of(int(wrong.argmax()))} was binary in fit and has values "
                "other than 0 and 1: such rows have no probability. Drop them, or refit with them."
            )

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        return X.astype(np.float64)


class StateBlock(ColumnBlock):
    """Columns that are entries of a discrete domain already, as bits and one-hot columns."""

    def __init__(self, domain: Domain):
        n = domain.n_columns
        super().__init__(range(n), domain)
        self.units = Units(np.zeros(n), np.ones(n), domain)

    def check(self, X: Any) -> None:
        for place, block in array_blocks(X):
            check_states(block, self.domain, place.start)

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        return X


# ------------------------------------------------------------------------------
# Levels and numbers
# ------------------------------------------------------------------------------


class LevelBlock(ColumnBlock):
    """Codes of categories, one-hot in a row of the energy; as columns, the likeliest level.

    Parameters
    ----------
    columns, names : sequence
    sizes : sequence of int
        Numbers of levels.
    """

    def __init__(self, columns: Sequence[int], sizes: Sequence[int], names: Sequence[str]):
        super().__init__(columns, Categorical(tuple(sizes)), names)
        self.sizes = tuple(sizes)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.sizes

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        found = []
        for codes, size in zip(X.T, self.sizes, strict=True):
            one_hot = (codes[:, None] == np.arange(size)).astype(np.float64)
            found.append(np.where(np.isnan(codes[:, None]), np.nan, one_hot))
        return np.concatenate(found, 1)

    def to_units(self, x: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
        ends = np.cumsum(self.sizes)[:-1]
        return np.stack([part.argmax(1) for part in np.split(x, ends, axis=1)], 1)


class NumberBlock(ColumnBlock):
    """Numbers, standardised unless they are to stay as they are, perhaps with bounds.

    Parameters
    ----------
    columns : sequence of int
    units : Units
    names : sequence of str or None
    standardized : bool
    bounded : bool
        Whether the user gave bounds.
    """

    units: Units

    def __init__(
        self,
        columns: Sequence[int],
        units: Units,
        names: Sequence[str] | None = None,
        *,
        standardized: bool = True,
        bounded: bool = False,
    ):
        super().__init__(columns, units.domain, names)
        self.units, self.standardized, self.bounded = units, standardized, bounded

    @property
    def clips(self) -> bool:
        domain = self.units.domain
        return isinstance(domain, Real) and not (domain.lower is domain.upper is None)

    @property
    def log_volume(self) -> float:
        return self.units.log_volume

    def log_volumes(self, known: np.ndarray) -> np.ndarray:
        found: np.ndarray = known @ np.log(self.units.scale)
        return found

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        return self.units.apply(X)

    def to_units(self, x: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
        domain: Any = self.units.domain
        if self.clips:
            x = np.clip(x, domain.lower, domain.upper)
        return self.units.invert(x)

    def scaling_of_columns(self) -> tuple[list[int], np.ndarray, np.ndarray]:
        return self.columns, self.units.centre, self.units.scale

    def what_is_outside(self) -> str:
        """What is wrong with rows outside of the domain, and the remedy."""
        if not self.bounded:
            return "have values that are too large."
        return "lie outside `bounds`: drop them, or refit with wider bounds."


# ------------------------------------------------------------------------------
# Values of columns
# ------------------------------------------------------------------------------


def has_only_bits(X: Any) -> bool:
    """Whether all known values are 0 or 1."""
    if sp.issparse(X):  # what it leaves out is 0
        return bool(entries_are_bits(X.data).all())
    return all(bool(entries_are_bits(block).all()) for _, block in array_blocks(X))


def entries_are_bits(X: np.ndarray) -> np.ndarray:
    """Which entries are 0 or 1, or missing."""
    return np.isnan(X) | (X == 0) | (X == 1)


def in_unit_interval(X: np.ndarray) -> bool:
    """Whether all known values are in [0, 1]."""
    low, high = column_ranges(X)
    return bool(np.nanmin(low) >= 0 and np.nanmax(high) <= 1)


def are_narrow(X: np.ndarray | MappedArray, weight: np.ndarray | None) -> bool:
    """Whether columns in [0, 1] vary too little for probabilities of bits.

    What counts is their variance relative to that of bits with the same means. Columns of nothing
    but bits do not count.
    """
    # A little less than the third that uniform values have. Grey values of digits have 0.5 to 0.8,
    # those of faces 0.05, and the columns of eleven of twelve tables of numbers, min-max scaled,
    # 0.07 to 0.28.
    least = 0.3
    total, between, n = np.zeros(X.shape[1]), np.zeros(X.shape[1]), 0.0
    for place, block in array_blocks(X):
        x = block.astype(np.float64)
        share = np.ones(len(x)) if weight is None else weight[place]
        total += share @ x
        between += share @ (x * (1 - x))
        n += share.sum()
    mean = total / n
    of_bits = (mean * (1 - mean))[between > 0].sum()
    return bool(of_bits > 0 and 1 - between.sum() / n / of_bits < least)


def holds_spins(X: Any) -> bool:
    """Whether all values are -1 or 1, and some are -1."""
    if sp.issparse(X):
        return False
    known = X[~np.isnan(X)]
    return bool((np.abs(known) == 1).all() and (known < 0).any())


def check_known(X: Any, names: Sequence[str] | None) -> None:
    """Raise `ValueError` that names a column without known values."""
    missing = np.flatnonzero(np.isnan(column_ranges(X)[0]))
    if len(missing):
        name = missing[0] if names is None else repr(names[missing[0]])
        raise ValueError(f"Column {name} is missing in all rows: drop it.")


def check_states(X: Any, domain: Domain, first_row: int = 0) -> None:
    """Raise `ValueError` for rows that are no states, of a table from row `first_row` on.

    nan marks missing entries.
    """
    values = X.data if sp.issparse(X) else X
    known = ~np.isnan(values)
    wrong = known & (values != 0) & (values != 1)
    if wrong.any():
        columns = "" if sp.issparse(X) else f", first in column {int(wrong.any(0).argmax())}"
        kind = "Sparse X, which must be binary," if sp.issparse(X) else "X"
        raise ValueError(
            f"{kind} has {int(wrong.sum())} values other than 0 and 1{columns}, but the model is "
            f'for {type(domain).__name__.lower()} rows: binarise X, or use domain="real".'
        )
    if not isinstance(domain, Categorical):
        return
    first = 0
    for group, size in enumerate(domain.groups):
        part = X[:, first : first + size]
        first += size
        missing = np.isnan(part)
        invalid = (missing.any(1) & ~missing.all(1)) | (~missing.any(1) & (part.sum(1) != 1))
        if invalid.any():
            row = first_row + int(invalid.argmax())
            raise ValueError(
                f"Row {row} of X is not one-hot in group {group}, columns "
                f"{first - size} to {first - 1}: each group needs one 1, or nan throughout."
            )


def warn_of_scaling(blocks: Sequence[ColumnBlock], advice: str = "") -> None:
    """Warn once of the columns that blocks scale to [0, 1], with advice."""
    scaled = [b for b in blocks if isinstance(b, ProbabilityBlock) and len(b.scaling.columns)]
    if scaled:
        shown = ", ".join(block.shown(block.scaling.columns) for block in scaled)
        warn(
            f"Bits take values in [0, 1], but columns {shown} have values outside [0, 1]: they "
            f"are min-max scaled{advice}."
            + (f" {BETWEEN}" if any(block.is_said for block in scaled) else ""),
            DataWarning,
        )
