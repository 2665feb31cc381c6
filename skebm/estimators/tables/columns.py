"""Columns of frames and arrays: categories as codes, and the table of mixed rows of an energy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils import check_array
from torch import Tensor

from skebm._validation import (
    advice_for,
    check_container,
    check_two_dimensions,
    column_of,
    column_ranges,
    is_frame,
    kind_of,
    no_column,
    unmasked,
    warn,
)
from skebm.base import Binary, Categorical, Domain, Mixed, Real
from skebm.base.domains import columns_of
from skebm.distributions import Distribution
from skebm.estimators.tables.bases import fit_base, fit_column_base
from skebm.estimators.tables.dtypes import dtype_of, plain_dtype
from skebm.estimators.tables.table import (
    Table,
    UnitIntervalTable,
    check_known,
    entries_are_bits,
    learn_units,
)
from skebm.training.mapped import array_blocks, some_columns
from skebm.training.rows import Rows

# ------------------------------------------------------------------------------
# Any table
# ------------------------------------------------------------------------------


def as_table(X: Any) -> Any:
    """Data frames and dense arrays unchanged, anything else as a two-dimensional dense array."""
    if is_frame(X):
        return X
    check_two_dimensions(X)
    return X.toarray() if sp.issparse(X) else np.asarray(unmasked(X))


def column_names(X: Any) -> list[str]:
    """Names of the columns, or ``x0``, ``x1``, ... if they have none."""
    if is_frame(X):
        return [str(name) for name in X.columns]
    return [f"x{j}" for j in range(X.shape[1])]


def present_values(column: Any) -> np.ndarray:
    """Values of a column without the missing ones: floats, or objects if it is not numeric."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        values = values.astype(float)
        return values[~np.isnan(values)]
    # A missing entry is None, pandas.NA (whose comparisons are NA) or not equal to itself.
    return np.array([v for v in values.tolist() if is_present(v)], dtype=object)


def is_present(value: Any) -> bool:
    """Whether a value is not missing: neither None, nor nan, nor that of pandas."""
    same = value == value
    return value is not None and isinstance(same, (bool, np.bool_)) and bool(same)


# ------------------------------------------------------------------------------
# Categories
# ------------------------------------------------------------------------------


class Coding(NamedTuple):
    """The categorical columns of a table and their levels.

    Attributes
    ----------
    levels : dict of int to tuple
        Levels of each categorical column, by its number; codes are their places.
    names : list of str
        Names of all columns, for messages.
    dtypes : list
        Of the columns, as plain values.
    kind : {"pandas", "polars", "array"}
        Of the table that was fitted; samples are such tables.
    booleans : list of int
        Columns of other types that hold booleans, and may have missing entries.
    """

    levels: dict[int, tuple[Hashable, ...]]
    names: list[str]
    dtypes: list[Any]
    kind: str
    booleans: list[int]

    @classmethod
    def learn(cls, X: Any, categorical_features: Any) -> Coding | None:
        """The categorical columns of a table; None where there are none.

        `ValueError` for columns with one level or none, and for numbers of columns out of range.
        """
        check_container(X)
        if sp.issparse(X):
            if categorical_features not in (None, "from_dtype"):
                raise ValueError(
                    "Sparse X has no categorical columns: pass a dense array or frame."
                )
            return None
        X = X if is_frame(X) else np.asarray(X)
        if not is_frame(X) and X.ndim != 2:
            return None  # validation says what is wrong
        names = column_names(X)
        picked = _categorical(X, names, categorical_features)
        if not picked:
            return None
        levels = {j: _levels_of_column(column_of(X, j), names[j]) for j in picked}
        kind = "pandas" if hasattr(X, "iloc") else "polars" if is_frame(X) else "array"
        dtypes = [
            plain_dtype(t, kind) for t in (X.dtypes if is_frame(X) else [X.dtype] * len(names))
        ]
        booleans = [
            j
            for j in range(len(names))
            if j not in levels and dtypes[j][0].lower() == "object" and _is_boolean(column_of(X, j))
        ]
        return cls(levels, names, dtypes, kind, booleans)

    def codes(self, X: Any, estimator: str = "RBMEstimator") -> np.ndarray:
        """Numbers and codes of levels, (n, d) float64.

        nan is missing, -1 a level that did not occur in `fit`.
        """
        X = as_table(X)
        found = np.empty(X.shape)
        for j in range(X.shape[1]):
            column = column_of(X, j)
            if j not in self.levels:
                found[:, j] = _as_numbers(column, self.names[j], estimator)
                continue
            place = {level: code for code, level in enumerate(self.levels[j])}
            found[:, j] = [
                place.get(_plain(v, self.names[j]), -1) if is_present(v) else np.nan
                for v in _objects(column)
            ]
        return found

    def encode(self, X: Any, min_samples: int = 1, estimator: str = "RBMEstimator") -> np.ndarray:
        """Columns as numbers, categories as codes, (n, d) float64; nan where missing.

        Levels that did not occur in `fit` are missing, too, with a warning. `ValueError` for
        infinite numbers.
        """
        found, unseen = self.codes(X, estimator), []
        for j in self.levels:
            new = found[:, j] < 0
            if new.any():
                unseen.append(self.names[j])
                found[new, j] = np.nan
        if unseen:
            warn(
                f"Columns {unseen} have levels that did not occur in fit: they count as missing.",
                UserWarning,
            )
        check_array(
            found,
            ensure_all_finite="allow-nan",
            ensure_min_samples=min_samples,
            estimator=estimator,
            input_name="X",
        )
        return found

    def decode(self, x: np.ndarray) -> Any:
        """Numbers and codes as a table of the kind that was fitted."""
        columns = [
            _object_array([self.levels[j][round(code)] for code in x[:, j]])
            if j in self.levels
            else x[:, j].round().astype(bool).astype(object)
            if j in self.booleans
            else x[:, j]
            for j in range(x.shape[1])
        ]
        if self.kind == "pandas":
            import pandas as pd

            frame = pd.DataFrame(dict(enumerate(columns)))
            for j, dtype in enumerate(dtype_of(t, self.kind) for t in self.dtypes):
                if j in self.levels:
                    frame[j] = frame[j].astype(dtype)
                elif getattr(dtype, "kind", "O") in "biu":
                    frame[j] = frame[j].round().astype(dtype)
            frame.columns = self.names
            return frame
        if self.kind == "polars":
            import polars as pl

            made = [
                pl.Series(name, column.tolist())
                for name, column in zip(self.names, columns, strict=True)
            ]
            dtypes = [dtype_of(t, self.kind) for t in self.dtypes]
            return pl.DataFrame(made).cast(dict(zip(self.names, dtypes, strict=True)))
        return np.stack([column.astype(object) for column in columns], 1)


def _object_array(values: list[Any]) -> np.ndarray:
    """Values as an array of objects, of one dimension also where they are sequences themselves."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _categorical(X: Any, names: list[str], asked: Any) -> list[int]:
    """Numbers of the categorical columns."""
    d = len(names)
    if asked is None:
        return []
    if isinstance(asked, str):
        if is_frame(X):
            return [j for j in range(d) if _is_categorical(column_of(X, j))]
        if X.dtype.kind in "US":
            return list(range(d))
        return [j for j in range(d) if X.dtype == object and _holds_other_than_numbers(X[:, j])]
    asked = list(asked)
    if len(asked) == d and all(isinstance(one, bool | np.bool_) for one in asked):
        return [j for j in range(d) if asked[j]]
    found = []
    for one in asked:
        if isinstance(one, str):
            if one not in names:
                raise no_column("categorical_features", one, names)
            found.append(names.index(one))
            continue
        if isinstance(one, bool | np.bool_) or not -d <= int(one) < d:
            raise ValueError(
                f"categorical_features={asked!r} must hold names or numbers of columns, or be a "
                f"mask of {d} booleans."
            )
        found.append(int(one) % d)
    return sorted(set(found))


def _is_categorical(column: Any) -> bool:
    """Whether a column of a frame holds text or categories, or other objects than numbers."""
    name = str(column.dtype).lower()
    if name.startswith(("categor", "string", "str", "utf8", "large_string", "enum", "interval")):
        return name != "struct" and not name.startswith("struct")
    return name == "object" and _holds_other_than_numbers(column)


def _is_boolean(column: Any) -> bool:
    """Whether a column of objects holds booleans besides missing entries."""
    return all(isinstance(v, bool | np.bool_) for v in _objects(column) if is_present(v))


def _holds_other_than_numbers(column: Any) -> bool:
    numbers = (int, float, np.number, np.bool_, complex, Decimal)
    return not all(isinstance(v, numbers) for v in _objects(column) if is_present(v))


def _objects(column: Any) -> list[Any]:
    return list(column.to_list() if hasattr(column, "to_list") else column.tolist())


def _plain(value: Any, name: str) -> Hashable:
    """A level of a column of that name that compares and hashes alike in arrays and in frames."""
    value = value.item() if isinstance(value, np.generic) else value
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(
            f"Column {name!r} holds values that are no levels of a category: the argument must be "
            f"a string or a number, not {type(value).__name__!r}. Make columns of their entries "
            "first, or drop it."
        ) from error
    return value


def _levels_of_column(column: Any, name: str) -> tuple[Hashable, ...]:
    """Levels of a column: those a category declares, or those that occur, in order."""
    categories = getattr(getattr(column, "cat", None), "categories", None)
    found = dict.fromkeys(_plain(v, name) for v in _objects(column) if is_present(v))
    declared = (
        [] if categories is None or callable(categories) else [_plain(v, name) for v in categories]
    )
    levels = list(dict.fromkeys([*declared, *found]))
    if not found:
        raise ValueError(f"Column {name!r} is missing in all rows: drop it.")
    if not declared:
        # By type and value, so that numbers and strings may be mixed.
        levels.sort(key=lambda v: (type(v).__name__, v) if not isinstance(v, bool) else ("", v))
    return tuple(levels)


def _as_numbers(column: Any, name: str, estimator: str) -> np.ndarray:
    """A column as float64, nan where missing; `ValueError` that names one with text."""
    what = kind_of(column) if hasattr(column, "dtype") and hasattr(column, "name") else None
    if what not in (None, "text", "categories"):
        raise ValueError(f"Column {name!r} holds {what}. {advice_for(what, estimator)}")
    try:
        return np.array([float(v) if is_present(v) else np.nan for v in _objects(column)])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Column {name!r} holds values that are no numbers ({error}): list it in "
            "categorical_features, or convert it."
        ) from error


# ------------------------------------------------------------------------------
# The table
# ------------------------------------------------------------------------------


class ColumnTable(Table):
    """Binary, categorical and real columns as blocks of one row: bits, one-hot codes, numbers.

    Real columns are standardised; energies are in the units of the data.

    Parameters
    ----------
    coding : Coding or None
        The categorical columns.
    bits, levels, real : list of int
        Numbers of the columns of each kind, in the order of their blocks. A category of two levels
        is a bit, which is 1 for the second one.
    sizes : tuple of int
        Numbers of levels of the categorical columns.
    """

    def __init__(
        self,
        coding: Coding | None,
        bits: Sequence[int],
        levels: Sequence[int],
        sizes: Sequence[int],
        units: Any,
        real: Sequence[int],
        names: list[str],
    ):
        self.coding, self.names, self.units = coding, names, units
        self.bits, self.levels, self.real = list(bits), list(levels), list(real)
        self.sizes = tuple(sizes)
        self.log_volume = 0.0 if units is None else units.log_volume
        parts: list[Domain] = []
        if self.bits:
            parts.append(Binary((len(self.bits),)))
        if self.levels:
            parts.append(Categorical(self.sizes))
        if self.real:
            parts.append(Real((len(self.real),)))
        self.domain = parts[0] if len(parts) == 1 else Mixed(tuple(parts))

    @classmethod
    def learn(
        cls, X: Any, weight: np.ndarray | None, coding: Coding | None, names: Any
    ) -> ColumnTable:
        """Which columns are of which kind, and the units of the real ones."""
        names = [f"x{j}" for j in range(X.shape[1])] if names is None else [str(n) for n in names]
        check_known(X, names)
        sizes_of = {} if coding is None else {j: len(v) for j, v in sorted(coding.levels.items())}
        flags_of = [j for j, size in sizes_of.items() if size == 2]  # whose codes are bits
        levels = [j for j in sizes_of if j not in set(flags_of)]
        sizes = [sizes_of[j] for j in levels]
        others = [j for j in range(X.shape[1]) if j not in sizes_of]
        flags = [entries_are_bits(block).all(0) for _, block in array_blocks(X)]
        binary = np.all(flags, axis=0)
        bits = [j for j in others if binary[j]]
        if len(bits) < len(others):
            # Beside numbers, zeros alone may be a number that did not vary: as a bit, all other
            # values of new rows would be refused.
            low, high = column_ranges(X)
            bits = [j for j in bits if low[j] != high[j]]
        bits = sorted([*bits, *flags_of])
        others = sorted([*others, *flags_of])
        real = [j for j in others if j not in set(bits)]
        units = None
        if real:
            numbers = some_columns(X, real)
            units = learn_units(numbers, weight, True, None, [names[j] for j in real])
        return cls(coding, bits, levels, sizes, units, real, names)

    def log_volumes(self, known: np.ndarray) -> np.ndarray:
        if not self.real:
            return super().log_volumes(known)
        found: np.ndarray = known[:, -len(self.real) :] @ np.log(self.units.scale)
        return found

    @property
    def groups(self) -> tuple[int, ...]:
        """Number of entries of each column in a row: 1 for bits and numbers, k for k levels."""
        return columns_of(self.domain)

    @property
    def discrete(self) -> bool:
        """Whether some columns are bits or categories."""
        return bool(self.bits or self.levels)

    image_shape = None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row of X."""
        return (self.n_columns,)

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Shape in which a network takes a row."""
        return self.domain.row_shape

    def column_at(self, entry: int) -> str:
        """Name of the column of an entry of a row of the energy."""
        order = [*self.bits, *self.levels, *self.real]
        ends = np.cumsum(self.groups)
        return repr(self.names[order[int(np.searchsorted(ends, entry, side="right"))]])

    @property
    def n_columns(self) -> int:
        """Number of columns of X."""
        return len(self.bits) + len(self.levels) + len(self.real)

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        self._check_bits(X)
        return Rows.of(X, self.convert, dtype=dtype, device=device, weight=weight)

    def _check_bits(self, X: Any) -> None:
        flags = [entries_are_bits(block[:, self.bits]).all(0) for _, block in array_blocks(X)]
        wrong = ~np.all(flags, axis=0)
        if wrong.any():
            name = self.names[self.bits[int(wrong.argmax())]]
            raise ValueError(
                f"Column {name!r} was binary in fit and has values other than 0 and 1: such rows "
                "have no probability. Drop them, or refit with them."
            )

    def convert(self, X: np.ndarray) -> np.ndarray:
        """Numbers and codes as rows of the energy, float64; nan where missing."""
        blocks = [X[:, self.bits].astype(np.float64)]
        for j, size in zip(self.levels, self.sizes, strict=True):
            one_hot = (X[:, j, None] == np.arange(size)).astype(np.float64)
            blocks.append(np.where(np.isnan(X[:, j, None]), np.nan, one_hot))
        if self.real:
            blocks.append(self.units.apply(X[:, self.real]))
        return np.concatenate(blocks, 1)

    def prepare(self, rows: Rows) -> None:
        rows.complete(self.groups)

    def invert(self, x: Tensor) -> Any:
        """Rows of the energy as a table of the kind that was fitted; levels are the likeliest."""
        found = self.columns(x.detach().cpu().double().numpy())
        return found if self.coding is None else self.coding.decode(found)

    def filled(self, X: np.ndarray, x: Tensor) -> Any:
        """Validated X with its nan replaced by the entries of rows x of the energy."""
        rows = self.columns(x.detach().cpu().double().numpy())
        found = np.where(np.isnan(X), rows, X)
        return found.astype(X.dtype) if self.coding is None else self.coding.decode(found)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """As `invert`, as an array; probabilities of levels become the code of the largest."""
        found = np.empty((len(x), self.n_columns))
        found[:, self.bits], at = x[:, : len(self.bits)], len(self.bits)
        for j, size in zip(self.levels, self.sizes, strict=True):
            found[:, j] = x[:, at : at + size].argmax(1)
            at += size
        if self.real:
            found[:, self.real] = self.units.invert(x[:, at:])
        return found

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        value: Tensor = energy(x)
        return value.masked_fill(value.isnan(), torch.inf)


def in_unit_interval(X: np.ndarray) -> bool:
    """Whether all known values are in [0, 1]."""
    low, high = column_ranges(X)
    return bool(np.nanmin(low) >= 0 and np.nanmax(high) <= 1)


# Added to the warning of scaled columns by estimators that have `rescale`.
RESCALE_ADVICE = " (rescale=False raises an error instead)"


def learn_columns(
    estimator: Any, X: Any, weight: np.ndarray | None
) -> UnitIntervalTable | ColumnTable:
    """The columns of validated X, according to the parameter `visible` of an estimator.

    They are probabilities of bits if `visible` is ``"bernoulli"``, X is sparse or all values are in
    [0, 1]. Otherwise each column has bits, categories or numbers.

    Parameters
    ----------
    estimator : object
        Has the attributes `visible`, `_coding` and, for frames, `feature_names_in_`. If it has
        `rescale`, which says what to do with values outside [0, 1] of probabilities of bits, the
        warning of scaled columns names it; they are scaled otherwise.
    X : {ndarray, sparse matrix} of shape (n_samples, n_features)
    weight : ndarray of shape (n_samples,) or None
    """
    names = getattr(estimator, "feature_names_in_", None)
    bits = estimator.visible == "bernoulli" or sp.issparse(X)
    if estimator._coding is None and (bits or in_unit_interval(X)):
        advice = RESCALE_ADVICE if hasattr(estimator, "rescale") else ""
        return UnitIntervalTable.learn(X, getattr(estimator, "rescale", "auto"), names, advice)
    return ColumnTable.learn(X, weight, estimator._coding, names)


def fit_table_base(base: Any, rows: Rows, table: UnitIntervalTable | ColumnTable) -> Distribution:
    """Fit the named base to rows of a table, or check that a given one covers them."""
    if isinstance(table, ColumnTable):
        return fit_column_base(base, rows, table.domain)
    return fit_base(base, rows)
