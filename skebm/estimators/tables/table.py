"""The table of an estimator: conversion of columns of X to rows of its energy, and back."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skebm._validation import column_ranges, warn
from skebm.base import Binary, Categorical, DataWarning, Domain, Mixed, Real, Sampler
from skebm.base.domains import parts_of
from skebm.distributions import Distribution
from skebm.estimators.tables.bases import fit_base, fit_column_base
from skebm.estimators.tables.blocks import (
    BETWEEN,
    BitBlock,
    ColumnBlock,
    LevelBlock,
    NumberBlock,
    ProbabilityBlock,
    StateBlock,
    are_narrow,
    check_known,
    check_states,
    entries_are_bits,
    has_only_bits,
    in_unit_interval,
    warn_of_scaling,
)
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.units import Units, learn_units, list_columns
from skebm.training.mapped import MappedArray, array_blocks, some_columns
from skebm.training.rows import Rows

B = TypeVar("B", bound=ColumnBlock)

# Standard deviations between its inverse and itself are not what makes training diverge.
USUAL_SCALE = 100.0


class Layout(abc.ABC):
    """What rows of the energy have besides the entries of X: hidden entries, or frames before.

    Attributes
    ----------
    n_entries : int
        Number of entries that training rows have after those of X.
    is_ordered : bool
        Whether rows have an order, so that equal ones are no copies of one.
    """

    n_entries = 0
    is_ordered = False

    def rows(self, rows: Rows) -> Rows:
        """New rows of X alone in this layout."""
        return rows

    @abc.abstractmethod
    def prepare(self, rows: Rows) -> None:
        """Lay training rows out, in place."""


class Table:
    """Fitted conversion of validated input to rows of the energy, which are blocks side by side.

    Parameters
    ----------
    blocks : sequence of ColumnBlock
        In the order of their entries.
    n_given : int or None
        Number of blocks, the first ones, that are conditions, which have no part in densities and
        are not returned in the units of the data. None is a table of a model without conditions.
    coding : Coding or None
        The categorical columns of X; with it, rows in the units of the data are tables as in `fit`.
    row_shape : tuple of int or None
        Shape of a row of X; images have more than one dimension. None is the number of columns.
    by_column : bool, default=False
        Whether the kind of each column was chosen by its values.
    merges_copies : bool, default=True
        Whether equal rows of numbers are copies of one.
    layout : Layout or None
    domain : Domain or None
        Of the rows of the energy; None is those of the blocks side by side.

    Attributes
    ----------
    log_volume : float
        Log volume, in the units of the data, of a unit cube in the units of the energy.
    """

    def __init__(
        self,
        blocks: Sequence[ColumnBlock],
        *,
        n_given: int | None = None,
        coding: Coding | None = None,
        row_shape: tuple[int, ...] | None = None,
        by_column: bool = False,
        merges_copies: bool = True,
        layout: Layout | None = None,
        domain: Domain | None = None,
    ):
        self.blocks, self.coding, self.layout = list(blocks), coding, layout
        self.is_conditional, n_given = n_given is not None, n_given or 0
        self.given, self.targets = self.blocks[:n_given], self.blocks[n_given:]
        self.by_column, self.merges_copies = by_column, merges_copies
        n_columns = sum(len(block.columns) for block in self.blocks)
        self.row_shape = (n_columns,) if row_shape is None else row_shape
        parts: list[Domain] = [part for block in self.blocks for part in parts_of(block.domain)]
        if domain is None:
            domain = parts[0] if len(parts) == 1 else Mixed(tuple(parts))
        self.domain: Domain = domain
        self.log_volume = sum(block.log_volume for block in self.targets)

    def in_layout(self, layout: Layout | None, further: Sequence[ColumnBlock] = ()) -> Table:
        """The same columns, and further blocks, of rows in a layout, or of plain rows."""
        blocks = [*self.blocks, *further]
        return Table(blocks, coding=self.coding, by_column=self.by_column, layout=layout)

    # ---------------------------------------------------------------- what rows are

    def encodes_as(self, other: Table) -> bool:
        """Whether rows of X are the same entries, in the same units, by both."""
        own, its = ((t.coding and (t.coding.levels, t.coding.names)) for t in (self, other))
        if own != its or len(self.blocks) != len(other.blocks):
            return False
        for a, b in zip(self.blocks, other.blocks, strict=True):
            if type(a) is not type(b) or (list(a.columns), a.domain) != (list(b.columns), b.domain):
                return False
            probe, before = np.eye(2, len(a.columns)), np.zeros((2, len(self.widths)))
            if not np.array_equal(a.to_energy(probe, before), b.to_energy(probe, before)):
                return False
        return True

    def block(self, kind: type[B]) -> B | None:
        """The first block of a kind; None if there is none."""
        return next((block for block in self.blocks if isinstance(block, kind)), None)

    def names_of_numbers(self, places: Sequence[int]) -> list[str]:
        """Names of columns of numbers, by their places among these."""
        numbers = self.block(NumberBlock)
        assert numbers is not None
        assert numbers.names is not None
        return [numbers.names[place] for place in places]

    def places(self) -> Iterator[tuple[ColumnBlock, slice]]:
        """Blocks, and where their entries are in a row."""
        start = 0
        for block in self.blocks:
            stop = start + block.domain.n_columns
            yield block, slice(start, stop)
            start = stop

    @property
    def n_columns(self) -> int:
        """Number of columns of X."""
        return sum(len(block.columns) for block in self.blocks)

    def entries_of(self, column: int) -> tuple[ColumnBlock, slice]:
        """Block of a column of X, and its entries in a row of the energy."""
        for block, place in self.places():
            if column in block.columns:
                before = block.columns.index(column)
                start = place.start + sum(block.widths[:before])
                return block, slice(start, start + block.widths[before])
        raise IndexError(column)

    @property
    def n_conditions(self) -> int:
        """Number of entries of a row that are conditions."""
        return sum(block.domain.n_columns for block in self.given)

    @property
    def units(self) -> Any:
        """Units of the first block of numbers; None if there is none."""
        return next((block.units for block in self.blocks if block.units is not None), None)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of entries of each column, in the order of a row."""
        return tuple(width for block in self.blocks for width in block.widths)

    @property
    def groups(self) -> tuple[int, ...]:
        """The same of a training row, with 1 for each entry besides those of X."""
        return self.widths + (1,) * (0 if self.layout is None else self.layout.n_entries)

    @property
    def copies_are_one(self) -> bool:
        """Whether equal rows are copies of one: where there are numbers.

        Rows of bits and levels recur, as there are few of them, and each says as much.
        """
        if self.layout is not None and self.layout.is_ordered:
            return False
        return self.merges_copies and any(isinstance(p, Real) for p in parts_of(self.domain))

    @property
    def discrete(self) -> bool:
        """Whether some columns are bits or categories."""
        return any(not isinstance(part, Real) for part in parts_of(self.domain))

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Shape of an image, or None for flat rows."""
        return self.row_shape if len(self.row_shape) > 1 else None

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Shape in which a network takes a row."""
        return self.image_shape or self.domain.row_shape

    def column_at(self, entry: int) -> Any:
        """Number, place or name of the column of an entry of a row of the energy."""
        if self.image_shape is not None:
            return tuple(int(i) for i in np.unravel_index(entry, self.image_shape))
        block, place = next(found for found in self.places() if entry < found[1].stop)
        return block.name_of(entry - place.start)

    def log_volumes(self, known: np.ndarray) -> np.ndarray:
        """`log_volume` of the known entries alone, (n,); `known` (n, d) in rows of the energy."""
        found = np.zeros(len(known))
        for block, place in self.places():
            found += block.log_volumes(known[:, place])
        return found

    # ---------------------------------------------------------------- X to rows

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        """Rows of the energy for validated X."""
        if X.shape[1:] != self.row_shape:
            raise ValueError(
                f"X has rows of shape {X.shape[1:]}, but the model was fitted on rows of shape "
                f"{self.row_shape}."
            )
        X = X if self.image_shape is None else flat_rows(X)
        for block in self.blocks:
            block.check(_columns_of_block(X, block))
        found = Rows.of(X, self.to_energy, dtype=dtype, device=device, weight=weight)
        return found if self.layout is None else self.layout.rows(found)

    def to_energy(self, X: np.ndarray) -> np.ndarray:
        """Dense rows of X as rows of the energy; nan where missing."""
        return _entries(self.blocks, X)

    def conditions(self, X: np.ndarray) -> np.ndarray:
        """The first entries of `to_energy`, those of the conditions."""
        return _entries(self.given, X)

    def prepare(self, rows: Rows) -> None:
        """Complete rows for training; `ValueError` for rows that cannot be used."""
        rows.complete(self.widths)
        if self.layout is not None:
            self.layout.prepare(rows)
        elif self.is_conditional:
            self._check_far(rows)
        else:
            for block, place in self.places():
                if isinstance(block, NumberBlock):
                    self._check_domain(block, place, rows)

    def _check_domain(self, block: NumberBlock, place: slice, rows: Rows) -> None:
        """`ValueError` for rows whose numbers are outside of bounds, or too large."""
        outside = ~rows.map(lambda x: block.domain.contains(x[:, place]))
        if outside.any():
            first = int(outside.nonzero()[0, 0])
            raise ValueError(
                f"{int(outside.sum())} rows of X, first row {first}, {block.what_is_outside()}"
            )

    def _check_far(self, rows: Rows) -> None:
        """`ValueError` for a row whose powers overflow."""
        far = rows.map(is_far)
        if far.any():
            row = int(far.nonzero()[0, 0])
            self.refuse_row(rows.block(row, row + 1), row, "it cannot be trained on")

    # ---------------------------------------------------------------- rows to X

    def invert(self, x: Tensor) -> Any:
        """Rows of the energy in the units, the shape and the kind of the data."""
        found = self.to_units(x).reshape(len(x), *(self.image_shape or (-1,)))
        return found if self.coding is None else self.coding.decode(found)

    def to_units(self, x: Tensor) -> np.ndarray:
        """As `invert`, as an array of numbers and codes, without columns that are conditions."""
        rows = x.detach().cpu().double().numpy()
        order = sorted(j for block in self.targets for j in block.columns)
        found = np.empty((len(rows), len(order)))
        for block, place in self.places():
            if block in self.targets and block.columns:
                made = block.to_units(rows[:, place], rows[:, : place.start])
                found[:, np.searchsorted(order, block.columns)] = made
        return found if self.coding is None else self.coding.within_ranges(found, order)

    def with_imputations(self, X: Any, x: Tensor) -> Any:
        """Validated X with its nan replaced by the entries of rows x of the energy."""
        X = X.toarray() if sp.issparse(X) else X
        found = np.where(np.isnan(X), self.to_units(x).reshape(X.shape), X)
        return found.astype(X.dtype) if self.coding is None else self.coding.decode(found)

    # ---------------------------------------------------------------- energies

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        """Energies of a block of rows, (n,), up to `log_volume`; infinite outside the domain."""
        value: Tensor = energy(x)
        numbers = [found for found in self.places() if isinstance(found[0], NumberBlock)]
        if not numbers:
            return value
        for block, place in numbers:
            value = value.masked_fill(~block.domain.contains(x[:, place]), torch.inf)
        # NaN from inf - inf where powers of x overflow counts as an infinite energy.
        return value.masked_fill(value.isnan() & is_far(x), torch.inf)

    def energies(self, mapped: Callable[..., Tensor], *, likely: bool = False) -> np.ndarray:
        """Energies in the units of the data, (n,); `mapped` applies a function to all rows.

        With `likely`, warn of rows that have an energy but no likelihood.
        """
        bits = [
            place
            for block, place in self.places()
            if isinstance(block, ProbabilityBlock) and block in self.targets and not block.is_said
        ]
        if not (likely and bits):
            found = mapped(self.row_energy).double().numpy()
            found += self.log_volume
            return found

        def both(energy: Any, x: Tensor) -> Tensor:  # in one pass over the rows
            value, x = self.row_energy(energy, x), x[:, bits[0]]
            return torch.stack([value, Binary(x.shape[1:]).contains(x).to(value)], 1)

        value, inside = mapped(both).double().numpy().T
        if not inside.all():
            n, of_y = int((inside == 0).sum()), " of y" if self.given else ""
            warn(f"{n} of {len(value)} rows{of_y} are not binary. {BETWEEN}", DataWarning)
        return value + self.log_volume

    # ---------------------------------------------------------------- what is wrong with rows

    def divergence_advice(self, rows: Rows) -> str:
        """Point to `standardize` where the energy sees columns of very different scales."""
        numbers = self.block(NumberBlock)
        if numbers is None or numbers.standardized:
            return ""
        scale = rows.subsample(0).block(0, len(rows)).double().std(0)
        low, high = float(scale[scale > 0].min()), float(scale.max())
        if low > 1 / USUAL_SCALE and high < USUAL_SCALE:
            return ""
        return (
            f"The columns have standard deviations between {low:.2g} and {high:.2g}; "
            "standardize=True scales them to 1."
        )

    def check_finite(self, found: np.ndarray, rows: Rows, what: str) -> np.ndarray:
        """Return the numbers found for each row; `ValueError` naming a row where one is not finite.

        An energy may be infinite far away, but a difference or a ratio of infinities is not
        defined.
        """
        wrong = ~np.isfinite(found.reshape(len(found), -1)).all(1)
        if wrong.any():
            row = int(wrong.argmax())
            self.refuse_row(rows.block(row, row + 1), row, f"{what} cannot be computed")
        return found

    def refuse_row(self, x: Tensor, row: int, what: str) -> NoReturn:
        """Raise the `ValueError` for row number `row` of X, x as a row of the energy (1, d)."""
        if not is_far(x).item():
            raise ValueError(
                f"Row {row} of X: {what}, although its entries are of ordinary size. The network "
                "or the base returns numbers there that are not finite."
            )
        flat = int(x.abs().nan_to_num(0.0, posinf=torch.inf).argmax())
        dtype = str(x.dtype).removeprefix("torch.")
        wider = ' or pass dtype="float64"' if x.dtype == torch.float32 else " or rescale X"
        raise ValueError(
            f"Row {row} of X: {what}, because its column {self.column_at(flat)} "
            f"lies too far from the training rows for {dtype}. Correct or drop the row,{wider}."
        )


def is_far(x: Tensor) -> Tensor:
    """Rows with an entry whose powers overflow, (n,); NaN, which is unknown, counts for nothing."""
    return x.abs().nan_to_num(0.0, posinf=torch.inf).amax(1) > torch.finfo(x.dtype).max ** 0.25


def impossible_if_far(log_prob: Tensor, x: Tensor) -> Tensor:
    """Log-likelihoods (n,) of rows x; minus infinity for nan where powers of the row overflow."""
    return log_prob.masked_fill(log_prob.isnan() & is_far(x), -torch.inf)


def flat_rows(X: Any) -> Any:
    """Flat rows in C order, as another memory layout would change the rounding."""
    if isinstance(X, MappedArray):
        return X.flat()
    return np.ascontiguousarray(X.reshape(len(X), -1))


def _entries(blocks: Sequence[ColumnBlock], X: np.ndarray) -> np.ndarray:
    """Entries of blocks for dense X, side by side, in the precision of X if there is one block.

    They are in C order, as another memory layout would change the rounding.
    """
    found = np.zeros((len(X), 0), dtype=X.dtype)
    for block in blocks:
        entries = block.to_energy(_columns_of_block(X, block), found)
        found = entries if found.shape[1] == 0 else np.concatenate([found, entries], 1)
    return np.ascontiguousarray(found)


def _columns_of_block(X: Any, block: ColumnBlock) -> Any:
    """Columns of a block; X itself if the block is all of it."""
    return X if block.columns == list(range(X.shape[1])) else some_columns(X, block.columns)


# ------------------------------------------------------------------------------
# Learning tables
# ------------------------------------------------------------------------------

# Added to the warning of scaled columns by estimators that have `visible`.
SCALING_ADVICE = ' (visible="probabilities" raises an error instead)'


def probability_table(X: Any, scales: bool = True, names: Any = None, advice: str = "") -> Table:
    """The table of bits and probabilities; warn of columns that are scaled, with advice."""
    block = ProbabilityBlock.learn(X, scales, names)
    warn_of_scaling([block], advice)
    return Table([block])


def one_kind_table(
    X: Any,
    weight: np.ndarray | None,
    *,
    domain: Domain | None = None,
    bounds: Any = None,
    standardize: bool = True,
    names: Sequence[str] | None = None,
) -> Table:
    """Scales and bounds of real columns, or of images; a discrete `domain` is checked."""
    if domain is not None and not isinstance(domain, Real):
        for place, block in array_blocks(X):
            check_states(block, domain, place.start)
        return Table([StateBlock(domain)])
    flat = flat_rows(X)
    own = names if len(X.shape) == 2 else None
    units = learn_units(flat, weight, standardize, bounds, own)
    if len(X.shape) == 2:  # pixels cannot be dropped
        _warn_of_constants(flat, units, names)
    columns, bounded = range(flat.shape[1]), bounds is not None
    numbers = NumberBlock(columns, units, names, standardized=standardize, bounded=bounded)
    return Table([numbers], row_shape=X.shape[1:])


def column_table(X: Any, weight: np.ndarray | None, coding: Coding | None, names: Any) -> Table:
    """The table of columns whose kinds are chosen by their values."""
    return Table(column_blocks(X, weight, coding, names), coding=coding, by_column=True)


def number_table(units: Units, names: Sequence[str]) -> Table:
    """The table of columns that are all numbers."""
    return Table([NumberBlock(range(len(names)), units, names)], by_column=True)


def plain_number_table(names: Sequence[str]) -> Table:
    """The table of columns of numbers that are entries of a row as they are."""
    n = len(names)
    return number_table(Units(np.zeros(n), np.ones(n), Real((n,))), names)


def column_blocks(
    X: Any, weight: np.ndarray | None, coding: Coding | None, names: Any
) -> list[ColumnBlock]:
    """Which columns are bits, categories and numbers, and the units of the latter."""
    names = shown_names(names, X.shape[1])
    check_known(X, names)
    sizes_of = {} if coding is None else {j: len(v) for j, v in sorted(coding.levels.items())}
    flags_of = [j for j, size in sizes_of.items() if size == 2]  # whose codes are bits
    levels = [j for j in sizes_of if j not in set(flags_of)]
    others = [j for j in range(X.shape[1]) if j not in sizes_of]
    binary = np.all([entries_are_bits(block).all(0) for _, block in array_blocks(X)], axis=0)
    bits = [j for j in others if binary[j]]
    if len(bits) < len(others):
        # Beside numbers, zeros alone may be a number that did not vary: as a bit, all other
        # values of new rows would be refused.
        low, high = column_ranges(X)
        bits = [j for j in bits if low[j] != high[j]]
    bits = sorted([*bits, *flags_of])
    real = sorted({*others, *flags_of} - set(bits))

    def of(columns: list[int]) -> list[str]:
        return [names[j] for j in columns]

    found: list[ColumnBlock] = [BitBlock(bits, of(bits))] if bits else []
    if levels:
        found.append(LevelBlock(levels, [sizes_of[j] for j in levels], of(levels)))
    if real:
        units = learn_units(some_columns(X, real), weight, True, None, of(real))
        found.append(NumberBlock(real, units, of(real)))
    return found


def shown_names(names: Any, n: int) -> list[str]:
    """Names of n columns, or ``x0``, ``x1``, ... if they have none."""
    return [f"x{j}" for j in range(n)] if names is None else [str(name) for name in names]


def learn_columns(
    estimator: Any, X: Any, weight: np.ndarray | None, *, narrow_are_numbers: bool = False
) -> Table:
    """The columns of validated X, according to the parameter `visible` of an estimator.

    They are probabilities of bits if `visible` is ``"bernoulli"`` or ``"probabilities"``, X is
    sparse or all values are in [0, 1]. Otherwise columns have bits, categories or numbers. With
    ``"probabilities"``, values outside [0, 1] are an error; they are scaled otherwise.

    Parameters
    ----------
    estimator : object
        Has the attributes `visible`, `_coding` and, for frames, `feature_names_in_`.
    X : {ndarray, sparse matrix} of shape (n_samples, n_features)
    weight : ndarray of shape (n_samples,) or None
    narrow_are_numbers : bool, default=False
        Whether values in [0, 1] that vary too little for probabilities of bits are numbers, which
        they otherwise are only beside other numbers.
    """
    names = getattr(estimator, "feature_names_in_", None)
    bits = estimator.visible != "auto" or sp.issparse(X)
    if estimator._coding is None and (
        bits or (in_unit_interval(X) and not (narrow_are_numbers and are_narrow(X, weight)))
    ):
        scales = estimator.visible != "probabilities"
        return probability_table(X, scales, names, SCALING_ADVICE)
    return column_table(X, weight, estimator._coding, names)


def fit_table_base(base: Any, rows: Rows, table: Table) -> Distribution:
    """Fit the named base to rows of a table, or check that a given one covers them."""
    return fit_column_base(base, rows, table.domain) if table.by_column else fit_base(base, rows)


def choose_domain(X: Any, domain: Any, sampler: Sampler | None, bounds: Any) -> Domain:
    """Domain of the rows of X: that given, or one chosen from the sampler and the values of X.

    Pixels of images are numbers, also where all of them are zero or one.
    """
    n = math.prod(X.shape[1:])
    if len(X.shape) > 2:
        if domain == "binary" or isinstance(domain, Binary | Categorical):
            raise ValueError(
                f"domain={domain!r} takes rows of shape (n_samples, {n}), and images of shape "
                f"{tuple(X.shape[1:])} are numbers: reshape X and pass a network of rows such as "
                'MLP(), or set domain="real".'
            )
        domain = "real" if isinstance(domain, str) else domain
    if isinstance(domain, Domain):
        if isinstance(domain, Real) and domain != Real(domain.shape):
            raise ValueError(f"Pass the bounds of {domain} as bounds=, in units of X.")
        if domain.n_columns != n:
            raise ValueError(f"domain={domain} has {domain.n_columns} columns, X has {n}.")
        if isinstance(domain, Binary | Categorical | Real):
            return domain if not isinstance(domain, Binary) else Binary((n,))
        raise ValueError(f"domain={domain} is not supported: use real, binary or one-hot rows.")
    if domain == "binary" or sp.issparse(X):
        return Binary((n,))
    if domain == "real" or bounds is not None:
        return Real((n,))
    if sampler is not None:
        kinds = sampler.kernel.domains
        real, bits = (any(issubclass(k, d) for d in kinds) for k in (Real, Binary))
        if real != bits:
            return Real((n,)) if real else Binary((n,))
    return Binary((n,)) if has_only_bits(X) else Real((n,))


def _warn_of_constants(X: Any, units: Units, names: Sequence[str] | None) -> None:
    lowest, highest = units.apply(np.stack(column_ranges(X)))
    constant = (lowest == highest) & (X.shape[0] > 1)
    if constant.any():
        warn(
            f"Columns {list_columns(constant, names)} are constant. They are modelled as varying "
            "around their value by the training noise: drop them if they cannot vary in new rows.",
            DataWarning,
        )
