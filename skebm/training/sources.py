"""One door for what users pass as X: arrays and frames, memory maps, streams, on several processes.

Estimators ask it, and not what X is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import get_tags

from skebm._validation import (
    check_columns,
    check_random_state,
    draw_seed,
    names_compared,
    take_rows,
)
from skebm.training.distributed import shared_seed
from skebm.training.mapped import (
    as_mapped,
    check_finite_block,
    distinct_numbers,
    is_large,
    sample_size,
)
from skebm.training.streams import AT_ONCE, header_of, is_stream, parts, spooled


class SourceMixin:
    """Of an estimator whose X may be larger than memory, and which several processes may fit."""

    random_state: Any = 0  # where it is no parameter

    def _over_blocks(self, X: Any, function: Callable[[Any], np.ndarray]) -> np.ndarray:
        """Results of a function that treats rows independently, for all rows of X.

        Of a stream or a large array it is given one block after the other.
        """
        if is_stream(X):
            return self._over_stream(X, function)
        return map_blocks(X, function, takes_missing=get_tags(self).input_tags.allow_nan)

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
        some = sample_of(X, shared_seed(self.random_state))
        if some is None:
            return X, header, *others
        return np.array(X[some]), header, *(v if v is None else take_rows(v, some) for v in others)

    def _shared_random(self) -> np.random.RandomState:
        """The random numbers of a fit, which are the same on all processes."""
        found: np.random.RandomState = check_random_state(shared_seed(self.random_state))
        return found


def open_table(X: Any, y: Any = None) -> tuple[Any, Any, Any]:
    """A table whose rows can be taken by their numbers, the header of a stream, and the labels.

    These are those of the stream if none are given.
    """
    if not is_stream(X):
        return X, None, y
    found = spooled(X)
    return found.table, found.header, found.y if y is None else y


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
