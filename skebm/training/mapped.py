"""Arrays in files that are larger than memory: read in blocks, as their rows are needed."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Rows, and numbers, that are read whole from a memory map: a map of so many is an array like any
# other, and of a larger one so many are the sample that bases are fitted to. With 100,000 rows of
# 20 columns the base of a density takes a hundred seconds, with 20,000 twenty.
MOST_ROWS, MOST_NUMBERS, FEWEST_ROWS = 20_000, 10_000_000, 1000
# Numbers of a block that is read at once: 8 MB in float32.
BLOCK = 2**21
# Chunks of this many rows are scored together, so that blocks are multiples of it.
CHUNK = 256
# Folder into which joblib writes arrays that it shares with its workers.
SHARED = "joblib_memmapping_folder"


def sample_size(n_columns: int) -> int:
    """Largest number of rows of `n_columns` columns that are read into memory whole."""
    return min(MOST_ROWS, max(FEWEST_ROWS, MOST_NUMBERS // max(1, n_columns)))


def memory_map(X: Any) -> np.memmap | None:
    """The memory map that an array is or is a view of, if any."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return X
        X = X.base
    return None


def is_large(X: Any) -> bool:
    """Whether X is a memory map that is not read whole.

    Arrays that joblib maps to share them with its workers were in memory before, and do not count
    as large.
    """
    if isinstance(X, MappedArray):
        return True
    found = memory_map(X)
    if found is None or X.ndim < 2 or len(X) <= sample_size(math.prod(X.shape[1:])):
        return False
    folder = "" if found.filename is None else os.path.basename(os.path.dirname(found.filename))
    return not folder.startswith(SHARED)


def distinct_numbers(n: int, k: int, seed: int) -> np.ndarray:
    """k of the numbers 0 to n - 1, drawn uniformly without replacement, in ascending order."""
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False, shuffle=False))


class MappedArray:
    """Rows of a memory map as floating-point numbers, which are copied when they are taken.

    Parameters
    ----------
    array : ndarray of shape (n, ...)
        A memory map or a view of one.
    rows : ndarray of int or None
        Numbers of the rows that are included, in ascending order; None for all.
    columns : ndarray of int or None
        Numbers of the columns that are included; None for all.

    Attributes
    ----------
    dtype : dtype
        The dtype of the map if it is float32 or float64; float64 otherwise, as for arrays.
    shape, ndim : tuple of int, int
    """

    def __init__(
        self,
        array: np.ndarray,
        rows: np.ndarray | None = None,
        columns: np.ndarray | None = None,
    ):
        self.array, self.rows, self.columns = array, rows, columns
        single = array.dtype in (np.float32, np.float64)
        self.dtype = array.dtype if single else np.dtype(np.float64)
        n = len(array) if rows is None else len(rows)
        self.shape = (n, *array.shape[1:]) if columns is None else (n, len(columns))
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """A copy of the rows of a slice, or of the numbers in an array."""
        found = self.array[index if self.rows is None else self.rows[index]]
        found = found if self.columns is None else found[:, self.columns]
        return np.array(found, dtype=self.dtype)

    def subset(self, index: np.ndarray) -> MappedArray:
        """Rows of the given numbers, in ascending order, which stay in the file."""
        rows = index if self.rows is None else self.rows[index]
        small = len(self.array) <= np.iinfo(np.int32).max
        return MappedArray(self.array, rows.astype(np.int32 if small else np.int64), self.columns)

    def of_columns(self, columns: Any) -> MappedArray:
        """Columns of the given numbers of flat rows."""
        columns = np.asarray(columns, dtype=np.int64)
        return MappedArray(
            self.array, self.rows, columns if self.columns is None else self.columns[columns]
        )

    def flat(self) -> MappedArray:
        """The same array with one-dimensional rows."""
        if self.ndim == 2:
            return self
        return MappedArray(self.array.reshape(len(self.array), -1), self.rows)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Iterate over blocks: the place of each, a slice, and its rows."""
        size = block_size(math.prod(self.shape[1:]))
        for start in range(0, len(self), size):
            place = slice(start, min(start + size, len(self)))
            yield place, self[place]

    @functools.cached_property
    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest value of each column, by one pass over the file."""
        low: Any = np.inf
        high: Any = -np.inf
        for _, block in self.blocks():
            low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
        return low.astype(self.dtype), high.astype(self.dtype)

    def has_missing(self) -> bool:
        """Whether there is a missing entry, nan."""
        return any(bool(np.isnan(block).any()) for _, block in self.blocks())

    def check_finite(self) -> None:
        """Raise `ValueError` that names the first row with NaN or infinity."""
        for place, block in self.blocks():
            check_finite_block(block, place.start)


def as_mapped(X: Any) -> MappedArray:
    """A large array as a `MappedArray`, whose rows are read when they are needed."""
    return X if isinstance(X, MappedArray) else MappedArray(np.asarray(X))


def block_size(n_columns: int) -> int:
    """Number of rows of a block of `n_columns` columns, a multiple of those scored together."""
    return max(1, BLOCK // max(1, n_columns) // CHUNK) * CHUNK


def check_finite_block(block: np.ndarray, first: int) -> None:
    """Raise `ValueError` that names the row with NaN or infinity, numbered from `first`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(block.sum(dtype=np.float64)):  # as scikit-learn does: one pass, no copy
            return
    wrong = ~np.isfinite(block.reshape(len(block), -1))
    if not wrong.any():
        return
    row = int(wrong.any(1).argmax())
    column = int(wrong[row].argmax())
    value = "NaN" if np.isnan(block.reshape(len(block), -1)[row, column]) else "infinity"
    raise ValueError(
        f"Input X contains {value}: row {first + row}, column {column}. Drop such rows, or fill "
        "them in. RBMEstimator takes missing entries."
    )


def array_blocks(X: Any) -> Iterator[tuple[slice, Any]]:
    """Places and rows of the blocks of a large array; of any other array all rows as they are."""
    if isinstance(X, MappedArray):
        yield from X.blocks()
    else:
        yield slice(0, X.shape[0]), X


def some_columns(X: Any, columns: Any) -> Any:
    """Columns of the given numbers of a table."""
    return X.of_columns(columns) if isinstance(X, MappedArray) else X[:, columns]


def moments_of_map(
    X: MappedArray, weight: np.ndarray | None, factor: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and variance of each column, times its `factor`, by one pass in float64.

    The moments of blocks are merged as by Chan, Golub and LeVeque (1979), which loses no digits to
    large means.
    """
    total, mean, scatter = 0.0, np.zeros(X.shape[1:]), np.zeros(X.shape[1:])
    for place, block in X.blocks():
        x, w = block.astype(np.float64), None if weight is None else weight[place]
        x = x if factor is None else x * factor
        n = float(len(x)) if w is None else float(w.sum())
        if not n:
            continue
        centre = np.average(x, axis=0, weights=w)
        within = np.average(np.square(x - centre), axis=0, weights=w) * n
        shift, total = centre - mean, total + n
        mean = mean + shift * (n / total)
        scatter = scatter + within + np.square(shift) * (n * (total - n) / total)
    return mean, scatter / total


# ------------------------------------------------------------------------------
# Shuffling
# ------------------------------------------------------------------------------

# Rows up to which a map is shuffled whole, at random places of the file.
SHUFFLED_WHOLE = 1_000_000
# Numbers of the rows that are in memory, and shuffled with each other; blocks of rows that follow
# each other in the file: at most so many rows, and at least so many blocks in memory.
WINDOW, BLOCK_ROWS, FEWEST_BLOCKS = 2**22, 1024, 64


class BlockOrder:
    """An order of n rows in which blocks of neighbours stay together, as they lie in a file.

    Parameters
    ----------
    n, n_columns : int
    generator : torch.Generator or None
        Shuffles the blocks; None leaves all rows in their order.

    Attributes
    ----------
    window : int
        Number of rows that are to be in memory together.
    """

    def __init__(self, n: int, n_columns: int, generator: torch.Generator | None):
        self.window = max(1, WINDOW // n_columns)
        size = max(1, min(BLOCK_ROWS, self.window // FEWEST_BLOCKS))
        first = torch.arange(0, n, size)
        if generator is not None:
            device = generator.device
            first = first[torch.randperm(len(first), generator=generator, device=device).cpu()]
        self.first = first
        self.ends = (n - first).clamp_(max=size).cumsum(0)

    def numbers(self, start: int, stop: int) -> Tensor:
        """Numbers of the rows at the places `start` to `stop - 1` of the order."""
        place = torch.arange(start, stop)
        block = torch.searchsorted(self.ends, place, right=True)
        before = torch.nn.functional.pad(self.ends, (1, 0))
        return self.first[block] + place - before[block]
