"""Tables that come in blocks: data sets of torch, Arrow and Parquet, arrays and frames of Dask.

They are recognised by the module of their class, so that none of these packages is imported here.
At the end is the door of estimators for tables of any kind.
"""

from __future__ import annotations

import errno
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import get_tags
from torch.utils.data import IterableDataset

from skebm._validation import (
    check_columns,
    check_random_state,
    draw_seed,
    names_compared,
    take_rows,
)
from skebm.training.distributed import common_seed
from skebm.training.mapped import (
    as_mapped,
    block_size,
    check_finite_block,
    distinct_numbers,
    is_large,
    sample_size,
)

# Rows that are asked for at once, where the number of columns is not known yet.
AT_ONCE = 65_536
# Classes of Arrow that are tables; those of data sets are found by their base.
ARROW = {"Table", "RecordBatch", "RecordBatchReader", "ParquetFile", "Dataset", "Scanner"}
DASK = {"Array", "DataFrame"}
REMEDY = (
    "Streams take columns of numbers without missing entries: fill them in or encode them first, "
    "or pass a pandas or polars frame to RBMEstimator, which takes categories and missing entries."
)


class Part(NamedTuple):
    """Rows of a stream, and their labels if it has any."""

    x: np.ndarray
    y: np.ndarray | None = None


class Spool(NamedTuple):
    """A stream that was written to a file.

    Attributes
    ----------
    table : memmap of shape (n, ...)
    header : frame without rows, or None
        The names of the columns, if they have any.
    y : ndarray of shape (n,) or None
    """

    table: np.memmap
    header: Any
    y: np.ndarray | None


# ------------------------------------------------------------------------------
# What is a stream
# ------------------------------------------------------------------------------


def _classes(X: Any, package: str) -> set[str]:
    """Names of the classes of X that belong to a package."""
    return {kind.__name__ for kind in type(X).__mro__ if kind.__module__.split(".")[0] == package}


def is_stream(X: Any) -> bool:
    """Whether X is a table that is read in blocks, by one of the readers of this module."""
    if type(X) is np.ndarray:
        return False
    return _reader(X) is not None


def _reader(X: Any) -> Callable[[Any], Iterator[Part]] | None:
    if isinstance(X, torch.utils.data.Dataset):
        return _torch_parts
    if _classes(X, "pyarrow") & ARROW:
        return _arrow_parts
    found = (_classes(X, "dask") | _classes(X, "dask_expr")) & DASK
    if found:
        return _dask_array_parts if "Array" in found else _dask_frame_parts
    return None


def _n_rows_known(X: Any) -> int | None:
    """Number of rows that a stream says it has, if it knows."""
    if _classes(X, "pyarrow"):
        if hasattr(X, "metadata") and hasattr(X.metadata, "num_rows"):
            return int(X.metadata.num_rows)
        found = getattr(X, "num_rows", None)
        return None if found is None else int(found)
    shape = getattr(X, "shape", None)
    if shape is not None and not isinstance(X, torch.utils.data.Dataset):
        n = shape[0]  # of Dask: nan, or an object to be computed, where it is unknown
        return int(n) if isinstance(n, int) else None
    try:
        return len(X)
    except (TypeError, NotImplementedError):
        return None


def header_of(X: Any) -> Any:
    """A frame without rows that has the names of a stream's columns; None where they have none."""
    if _classes(X, "pyarrow"):
        schema = next(
            getattr(X, name)
            for name in ("schema_arrow", "projected_schema", "schema")
            if hasattr(X, name)
        )
        return schema.empty_table()
    return getattr(X, "_meta", None) if hasattr(X, "columns") else None


# ------------------------------------------------------------------------------
# Readers
# ------------------------------------------------------------------------------


def _torch_parts(X: Any) -> Iterator[Part]:
    """Rows of a data set of torch: its items, each a row or a row and its label."""
    if isinstance(X, IterableDataset):
        items: Iterable[Any] = iter(X)
    else:
        items = _items(X)
    rows: list[np.ndarray] = []
    labels: list[Any] = []
    size = AT_ONCE
    for item in items:
        pair = isinstance(item, tuple | list) and len(item) in (1, 2)
        row = np.asarray(item[0] if pair else item)
        if not rows:
            size = min(AT_ONCE, block_size(row.size))
        elif row.shape != rows[0].shape:
            raise ValueError(
                f"An item of the data set has a row of shape {row.shape}, after rows of shape "
                f"{rows[0].shape}: all rows need the same columns."
            )
        rows.append(row)
        if pair and len(item) == 2:
            labels.append(item[1].item() if hasattr(item[1], "item") else item[1])
        if len(rows) == size:
            yield Part(np.stack(rows), np.array(labels) if labels else None)
            rows, labels = [], []
    if rows:
        yield Part(np.stack(rows), np.array(labels) if labels else None)


def _items(X: Any) -> Iterator[Any]:
    """Items 0 to n - 1 of a data set, up to the first that it does not have."""
    for number in range(len(X)):
        try:
            item = X[number]
        except IndexError:
            return
        yield item


def _arrow_parts(X: Any) -> Iterator[Part]:
    """Rows of a table, reader, Parquet file or data set of Arrow, in its order."""
    if hasattr(X, "iter_batches"):
        batches = X.iter_batches(batch_size=AT_ONCE)
    elif hasattr(X, "scanner"):  # a data set, of which few batches are read ahead
        batches = X.to_batches(batch_size=AT_ONCE, batch_readahead=1, fragment_readahead=1)
    elif hasattr(X, "to_batches"):
        batches = X.to_batches()
    elif hasattr(X, "read_next_batch"):
        batches = X
    else:
        batches = [X]
    first, seen = None, 0
    for batch in batches:
        first = batch.schema if first is None else first
        if not batch.schema.equals(first):
            raise ValueError(
                f"The columns of the stream changed at row {seen}: from {_as_text(first)} to "
                f"{_as_text(batch.schema)}."
            )
        for start in range(0, batch.num_rows, AT_ONCE):
            yield Part(_arrow_array(batch.slice(start, AT_ONCE), seen + start))
        seen += batch.num_rows


def _as_text(schema: Any) -> str:
    return ", ".join(f"{one.name} ({one.type})" for one in schema)


def _arrow_array(batch: Any, first: int) -> np.ndarray:
    """Numbers of a batch; `ValueError` that names a column of others, or a missing entry."""
    from pyarrow import types

    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = field.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise ValueError(f"Column {field.name!r} of the stream is {field.type}. {REMEDY}")
        if column.null_count:
            missing = np.flatnonzero(np.asarray(column.is_null()))
            raise ValueError(
                f"Column {field.name!r} has no value in row {first + missing[0]}. {REMEDY}"
            )
        columns.append(column.to_numpy(zero_copy_only=False))
    if not columns:
        return np.empty((batch.num_rows, 0))
    return np.stack(columns, 1)


def _dask_array_parts(X: Any) -> Iterator[Part]:
    """Rows of a Dask array, one chunk of rows after the other."""
    if X.ndim > 1:
        X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    for number in range(X.numblocks[0]):
        yield Part(np.asarray(X.blocks[number].compute()))


def _dask_frame_parts(X: Any) -> Iterator[Part]:
    """Rows of a Dask frame, one partition after the other, whose sizes need not be known."""
    seen = 0
    for number in range(X.npartitions):
        frame = X.get_partition(number).compute()
        if list(frame.columns) != list(X.columns):
            raise ValueError(
                f"The columns of the stream changed at row {seen}: from {list(X.columns)} to "
                f"{list(frame.columns)}."
            )
        columns = []
        for name in frame.columns:
            column = frame[name]
            if getattr(column.dtype, "kind", "O") not in "biuf":
                raise ValueError(f"Column {name!r} of the stream is {column.dtype}. {REMEDY}")
            missing = np.flatnonzero(column.isna())
            if len(missing):
                raise ValueError(
                    f"Column {name!r} has no value in row {seen + missing[0]}. {REMEDY}"
                )
            columns.append(column.to_numpy())
        seen += len(frame)
        yield Part(np.stack(columns, 1) if columns else np.empty((len(frame), 0)))


def parts(X: Any) -> Iterator[Part]:
    """Checked blocks of a stream: finite numbers, with the columns and the type of the first block.

    Raises `ValueError` that names the row at which a block fails the check. Raises it also at the
    end, if the stream had no rows, or not as many as its length.
    """
    reader = _reader(X)
    assert reader is not None
    n, seen, first = _n_rows_known(X), 0, None
    for part in reader(X):
        x = part.x
        if x.dtype.kind not in "biuf":
            raise ValueError(f"Rows of the stream are of type {x.dtype}. {REMEDY}")
        kind = _dtype_on_disk(x.dtype)
        if first is None:
            first = x.shape[1:], kind
            _check_shape(x)
        if x.shape[1:] != first[0] or not np.can_cast(x.dtype, first[1], "safe"):
            raise ValueError(
                f"The stream changed at row {seen}: from rows of shape {first[0]} and type "
                f"{first[1]} to {x.shape[1:]} and {x.dtype}."
            )
        for start in range(0, len(x), AT_ONCE):
            check_finite_block(x[start : start + AT_ONCE], seen + start)
        seen += len(x)
        if len(x):
            yield part._replace(x=x.astype(first[1], copy=False))
    if n is not None and seen != n:
        raise ValueError(
            f"The stream ended after {seen} rows, although it has a length of {n}."
            if seen < n
            else f"The stream gave {seen} rows, although it has a length of {n}."
        )
    if not seen:
        raise ValueError("Found array with 0 sample(s): the stream is empty.")


def _check_shape(x: np.ndarray) -> None:
    if x.ndim < 2:
        raise ValueError(
            "Expected 2D array, got rows that are single numbers: each row of a stream needs an "
            "array of its columns."
        )
    if not x.shape[1]:
        raise ValueError("Found array with 0 feature(s): the stream has no columns.")


def _dtype_on_disk(dtype: np.dtype) -> np.dtype:
    """Type in which numbers are written: float32 where it holds them all, otherwise float64."""
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32, "safe") else np.float64)


# ------------------------------------------------------------------------------
# Reading once for many passes
# ------------------------------------------------------------------------------


def spool(X: Any) -> Spool:
    """Write a stream to a temporary file and open it as a memory map.

    The file is in the folder that ``tempfile`` chooses (``TMPDIR``). It has no name if the system
    supports such files, and is removed when the map is no longer used, also after an error.

    If the disk is full, raises `OSError` that names the folder and the number of bytes needed.
    """
    found = _write_blocks((part for part in parts(X)), _n_rows_known(X))
    return Spool(found[0], header_of(X), found[1])


def some_rows(X: Any, rows: np.ndarray) -> Any:
    """Rows with the given numbers; many rows of a large array become a memory map of their own."""
    if not is_large(X) or len(rows) <= sample_size(math.prod(X.shape[1:])):
        return take_rows(X, rows)
    chosen = as_mapped(X).subset(rows)
    return _write_blocks((Part(block) for _, block in chosen.blocks()), len(rows))[0]


def _write_blocks(blocks: Iterator[Part], n: int | None) -> tuple[np.memmap, np.ndarray | None]:
    """Blocks in a temporary file, as a memory map, and their labels; `n` of them, if known."""
    labels, seen, first = [], 0, None
    with tempfile.TemporaryFile(prefix="skebm-") as file:
        for part in blocks:
            first = part.x if first is None else first
            try:
                file.write(np.ascontiguousarray(part.x).data.cast("B"))
                file.flush()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise _full(first, seen + len(part.x), n) from error
            seen += len(part.x)
            if part.y is not None:
                labels.append(part.y)
        assert first is not None
        table = np.memmap(file, dtype=first.dtype, mode="r", shape=(seen, *first.shape[1:]))
    return table, np.concatenate(labels) if labels else None


def _full(first: np.ndarray, seen: int, n: int | None) -> OSError:
    """The error of a disk that is full, which says how much is needed."""
    each = first[0].nbytes
    needed = f"{n * each:,} bytes" if n is not None else f"more than {seen * each:,} bytes"
    return OSError(
        errno.ENOSPC,
        f"No space left in {tempfile.gettempdir()}, where fit keeps the rows of a stream: they "
        f"need {needed}. Set the environment variable TMPDIR to a folder with more space",
    )


def table_and_labels(X: Any, y: Any) -> tuple[Any, Any]:
    """A table and its labels; those of the stream if none are given."""
    if not is_stream(X):
        return X, y
    found = spool(X)
    return found, found.y if y is None else y


# ------------------------------------------------------------------------------
# The door of estimators, which do not ask what X is
# ------------------------------------------------------------------------------


class SourceMixin:
    """Of an estimator whose X may be larger than memory, and which several processes may fit."""

    random_state: Any

    def _over_blocks(self, X: Any, function: Callable[[Any], np.ndarray]) -> np.ndarray:
        """Results of a function that treats rows independently, for all rows of X.

        Of a stream or a large array it is given one block after the other.
        """
        if is_stream(X):
            return self._over_stream(X, function)
        # Only blocks are checked by tags, which take longer than a small density needs for a row.
        takes_missing = not is_large(X) or get_tags(self).input_tags.allow_nan
        return map_blocks(X, function, takes_missing=takes_missing)

    def _over_stream(self, X: Any, function: Callable[[Any], np.ndarray]) -> np.ndarray:
        header = header_of(X)
        if header is not None and hasattr(self, "n_features_in_"):
            check_columns(self, header, reset=False)
        found = []
        with names_compared():
            for part in parts(X):
                for start in range(0, len(part.x), AT_ONCE):
                    found.append(function(part.x[start : start + AT_ONCE]))
        return np.concatenate(found)

    def _in_memory(self, X: Any, *others: Any) -> tuple[Any, ...]:
        """Rows to which a model that needs them in memory is fitted, and the header of a stream.

        For a large table they are a uniform sample of its rows. Each of `others` has a value for
        each row, or is None.

        Returns
        -------
        tuple
            X, the header or None, and the `others`.
        """
        X, header, _ = open_table(X)
        some = sample_of(X, common_seed(getattr(self, "random_state", 0)))  # no parameter of all
        if some is None:
            return X, header, *others
        return np.array(X[some]), header, *(v if v is None else take_rows(v, some) for v in others)

    def _common_random(self) -> np.random.RandomState:
        """The random numbers of a fit, which are the same on all processes."""
        found: np.random.RandomState = check_random_state(common_seed(self.random_state))
        return found


def open_table(X: Any, y: Any = None) -> tuple[Any, Any, Any]:
    """A table whose rows can be taken by their numbers, the header of a stream, and the labels.

    These are those of the stream if none are given.
    """
    X, y = table_and_labels(X, y)
    return (X.table, X.header, y) if isinstance(X, Spool) else (X, None, y)


def table_or_header(X: Any) -> Any:
    """What has the columns of X: itself, or the header of a stream, None where it has no names."""
    return header_of(X) if is_stream(X) else X


def map_blocks(
    X: Any, function: Callable[[Any], np.ndarray], *, takes_missing: bool = True
) -> np.ndarray:
    """What a function computes for each row of X, of a large array one block after the other."""
    if not is_large(X):
        return function(X)
    table, found = as_mapped(X), None
    for place, block in table.blocks():
        if not takes_missing:
            check_finite_block(block, place.start)
        part = function(block)
        if found is None:
            found = np.empty((len(table), *part.shape[1:]), dtype=part.dtype)
        found[place] = part
    assert found is not None
    return found


def sample_of(X: Any, random_state: Any, rows: np.ndarray | None = None) -> np.ndarray | None:
    """Numbers, in order, of a uniform sample of the rows of a large array; otherwise of `rows`.

    None stands for all rows.
    """
    if not is_large(X):
        return rows
    n, most = len(X) if rows is None else len(rows), sample_size(math.prod(X.shape[1:]))
    if n <= most:
        return rows
    some = distinct_numbers(n, most, draw_seed(random_state))
    return some if rows is None else rows[some]
