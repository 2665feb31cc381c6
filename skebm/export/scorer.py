"""Score rows with a model that skebm exported, by NumPy alone.

This file may be copied: it imports nothing but NumPy and the standard library.

>>> import scorer  # doctest: +SKIP
>>> model = scorer.load("model.npz")  # doctest: +SKIP
>>> model.score_samples({"city": ["Rome", None], "rain": [10.0, 3.5]})  # doctest: +SKIP
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# Files of other numbers mean other things.
FORMAT = 1


def load(file: Any) -> Scorer:
    """The model in a file that :meth:`Scorer.save` wrote; nothing in it is executed.

    Parameters
    ----------
    file : str, path or binary file

    Returns
    -------
    Scorer

    Raises
    ------
    ValueError
        If the file is none of these, or of another version of the format.
    """
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        graph = json.loads(arrays.pop("graph").tobytes())
        arrays = [arrays[f"a{k}"] for k in range(len(arrays))]
    except (ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError("This is no file of skebm.export.to_numpy.") from error
    if graph["format"] != FORMAT:
        raise ValueError(
            f"The file has format {graph['format']}, written by skebm {graph['skebm']}, and this "
            f"scorer reads format {FORMAT}: take scorer.py of that version, or export again."
        )
    return Scorer(graph, arrays)


class Scorer:
    """A fitted model as arrays and the operations on them, in float64.

    It has the methods of the model that was exported, with the same results. Rows are data frames,
    dicts of columns by name or arrays with the columns of `fit`, in their order; missing entries
    are NaN or None.

    Parameters
    ----------
    graph : dict
        The operations, as in the file.
    arrays : list of ndarray
        Constants of the operations.

    Attributes
    ----------
    estimator : str
        Name of the class of the model.
    version : str
        Version of skebm that exported it.
    columns : list of str, or None
        Names of the columns that are used; None for a model of arrays.
    outputs : list of str
        What can be asked.
    """

    def __init__(self, graph: dict[str, Any], arrays: list[np.ndarray]):
        self._graph, self._arrays = graph, arrays
        self.estimator, self.version = graph["estimator"], graph["skebm"]
        self.columns = None if graph["width"] else [c["name"] for c in graph["columns"]]
        self.outputs = list(graph["outputs"])

    def __repr__(self) -> str:
        return f"Scorer({self.estimator}, outputs={self.outputs})"

    def save(self, file: Any) -> None:
        """Write the model to one ``.npz`` file without pickled objects.

        Parameters
        ----------
        file : str, path or binary file
        """
        text = np.frombuffer(json.dumps(self._graph).encode(), dtype=np.uint8)
        np.savez_compressed(file, graph=text, **{f"a{k}": a for k, a in enumerate(self._arrays)})

    # ---------------------------------------------------------------- what is asked

    def score_samples(self, X: Any) -> np.ndarray:
        """Log p(x) of each row in nats, or the statistic of a detector, (n,)."""
        return self._output("log_density", X)

    def energy(self, X: Any) -> np.ndarray:
        """Energy of each row in nats, (n,)."""
        return self._output("energy", X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Negative for outliers, (n,); logits of classifiers."""
        return self._output("decision", X)

    def predict(self, X: Any) -> np.ndarray:
        """Classes, or +1 for inliers and -1 for outliers, (n,)."""
        return self._output("predict", X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (n, n_classes)."""
        return self._output("proba", X)

    def p_values(self, X: Any) -> np.ndarray:
        """Conformal p-values, (n,)."""
        return self._output("p_value", X)

    def transform(self, X: Any) -> np.ndarray:
        """Features of each row, (n, n_features)."""
        return self._output("transform", X)

    # ---------------------------------------------------------------- how it is computed

    def _output(self, name: str, X: Any) -> np.ndarray:
        if name not in self._graph["outputs"]:
            raise AttributeError(f"This {self.estimator} was exported with {self.outputs} alone.")
        asked, step = self._graph["outputs"][name], self._graph["rows"]
        columns, n = self._read(X, asked["missing"])
        used = self._used(asked["node"])
        parts = [
            self._evaluate(asked["node"], used, [c[start : start + step] for c in columns])
            for start in range(0, n, step)
        ]
        return np.concatenate(parts)

    def _used(self, last: int) -> dict[int, int]:
        """The nodes that one depends on, in order, each with the last node that reads it."""
        readers, left = {last: last}, [last]
        while left:
            node = left.pop()
            for k in self._graph["nodes"][node][1]:
                if k not in readers:
                    left.append(k)
                readers[k] = max(readers.get(k, 0), node)
        return dict(sorted(readers.items()))

    def _evaluate(self, last: int, used: dict[int, int], columns: list[np.ndarray]) -> np.ndarray:
        values: dict[int, np.ndarray] = {}
        done: dict[int, list[int]] = {}
        for node, reader in used.items():
            done.setdefault(reader, []).append(node)
        with np.errstate(all="ignore"):
            for node in used:
                op, inputs, given = self._graph["nodes"][node]
                if op == "constant":
                    values[node] = self._arrays[given["array"]]
                elif op == "column":
                    values[node] = columns[given["column"]]
                else:
                    values[node] = OPERATIONS[op](*[values[k] for k in inputs], **given)
                for k in done.get(node, ()):
                    if k != last:
                        del values[k]
        return values[last]

    # ---------------------------------------------------------------- rows

    def _read(self, X: Any, missing: bool) -> tuple[list[np.ndarray], int]:
        """The columns as arrays of numbers, and the number of rows."""
        width = self._graph["width"]
        if width:
            rows = np.asarray(X, dtype=np.float64)
            if rows.ndim != 2 or rows.shape[1] != width:
                raise ValueError(f"X must have shape (n, {width}), not {rows.shape}.")
            found = [rows]
            self._check(rows, "X", missing)
        else:
            found = [self._read_column(X, column, missing) for column in self._graph["columns"]]
        sizes = {len(one) for one in found}
        if len(sizes) > 1 or 0 in sizes:
            raise ValueError("X needs at least one row, and columns of one length.")
        return found, sizes.pop()

    def _read_column(self, X: Any, column: dict[str, Any], missing: bool) -> np.ndarray:
        name, levels = column["name"], column["levels"]
        values = _column_of(X, name, column["number"], self._graph["n_columns"])
        if levels is None:
            found = _numbers(values, name)
        else:
            found = _codes(values, levels)
        unknown = found < 0 if levels is not None and not column["unseen"] else False
        self._check(np.where(unknown, math.nan, found), name, missing)
        return found

    def _check(self, numbers: np.ndarray, name: str, missing: bool) -> None:
        if np.isinf(numbers).any():
            raise ValueError(f"{name} contains infinity: drop such rows.")
        if not missing and np.isnan(numbers).any():
            raise ValueError(
                f"{name} has missing entries, or levels that did not occur in fit, and this output "
                f"of {self.estimator} was exported for complete rows alone: fill them in first."
            )


def _column_of(X: Any, name: str, number: int, n_columns: int) -> Any:
    if hasattr(X, "keys") or hasattr(X, "columns"):
        names = list(X.keys() if hasattr(X, "keys") else X.columns)
        if name not in names:
            raise ValueError(f"X lacks the column {name!r}.")
        return X[name]
    rows = X if hasattr(X, "ndim") else np.array([list(row) for row in X], dtype=object)
    if rows.ndim != 2 or rows.shape[1] != n_columns:
        raise ValueError(f"X must have {n_columns} columns.")
    return rows[:, number]


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _objects(values: Any) -> list[Any]:
    for method in ("to_list", "tolist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def _numbers(values: Any, name: str) -> np.ndarray:
    """A column as float64, NaN where missing."""
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if isinstance(values, np.ndarray) and kind in "biuf":
        return values.astype(np.float64)
    try:
        return np.array([math.nan if _is_missing(v) else float(v) for v in _objects(values)])
    except (TypeError, ValueError) as error:
        raise ValueError(f"Column {name!r} must hold numbers: {error}.") from error


def _codes(values: Any, levels: list[Any]) -> np.ndarray:
    """Places of the levels, -1 where a value is none of them, NaN where missing."""
    place = {level: float(code) for code, level in enumerate(levels)}
    return np.array([math.nan if _is_missing(v) else place.get(v, -1.0) for v in _objects(values)])


# ------------------------------------------------------------------------------
# Operations
# ------------------------------------------------------------------------------


def _merge(mask: np.ndarray, on: np.ndarray, off: np.ndarray) -> np.ndarray:
    found = np.empty((len(mask), *on.shape[1:]), dtype=on.dtype)
    found[mask], found[~mask] = on, off
    return found


def _logsumexp(x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isinf(top), 0.0, top)
    found = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return found if keepdims else found.squeeze(axis)


def _slice(x: np.ndarray, axis: int, start: int, stop: int, step: int = 1) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _sizes(like: np.ndarray, shape: list[int]) -> tuple[int, ...]:
    """A shape whose -1 is the number of rows."""
    return tuple(len(like) if size == -1 else size for size in shape)


def _smallest(x: np.ndarray, k: int) -> np.ndarray:
    """Places of the k smallest entries of each row."""
    return np.argpartition(x, k - 1, axis=1)[:, :k]


def _unary() -> Iterator[tuple[str, Callable[..., np.ndarray]]]:
    """Functions of one array that NumPy has under the same name."""
    for name in "abs exp expm1 log log1p sqrt tanh isnan isinf sin cos sign floor rint".split():
        yield name, getattr(np, name)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict(_unary()),
    "neg": np.negative,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "not": np.logical_not,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "sigmoid": lambda x: np.exp(-np.logaddexp(0.0, -x)),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "where": np.where,
    "cast": lambda x, to: x.astype({"f": np.float64, "i": np.int64, "b": np.bool_}[to]),
    "matmul": np.matmul,
    "transpose": np.transpose,
    "reshape": lambda x, shape: x.reshape(shape),
    "unsqueeze": lambda x, axis: np.expand_dims(x, axis),
    "expand": lambda x, like, shape: np.broadcast_to(x, _sizes(like, shape)),
    "fill": lambda like, shape, value: np.full(_sizes(like, shape), value),
    "concat": lambda *parts, axis: np.concatenate(parts, axis),
    "slice": _slice,
    "take": lambda x, index, axis: np.take(x, index, axis),
    "take_along": lambda x, index, axis: np.take_along_axis(x, index, axis),
    "pad": lambda x, widths, value: np.pad(x, widths, constant_values=value),
    "sum": lambda x, axis, keepdims=False: x.sum(axis=tuple(axis), keepdims=keepdims),
    "max": lambda x, axis, keepdims=False: x.max(axis=tuple(axis), keepdims=keepdims),
    "min": lambda x, axis, keepdims=False: x.min(axis=tuple(axis), keepdims=keepdims),
    "prod": lambda x, axis, keepdims=False: x.prod(axis=tuple(axis), keepdims=keepdims),
    "any": lambda x, axis, keepdims=False: x.any(axis=tuple(axis), keepdims=keepdims),
    "all": lambda x, axis, keepdims=False: x.all(axis=tuple(axis), keepdims=keepdims),
    "logsumexp": _logsumexp,
    "cumsum": lambda x, axis: np.cumsum(x, axis),
    "argmax": lambda x, axis: x.argmax(axis),
    "searchsorted": lambda edges, x, right: np.searchsorted(edges, x, "right" if right else "left"),
    "smallest": _smallest,
    "kth_largest": lambda x, k: np.partition(x, x.shape[1] - k, axis=1)[:, x.shape[1] - k],
    "compress": lambda x, mask: x[mask],
    "merge": _merge,
}
