"""Score rows with a model that skebm exported, by NumPy alone.

This file may be copied, as it imports nothing but NumPy and the standard library. Rows are
scored by ``load_scorer("model.npz").score_samples({"city": ["Rome", None], "rain": [10.0, 3.5]})``.
"""

from __future__ import annotations

import datetime
import json
import math
import zipfile
from typing import Any

import numpy as np

FORMAT = 1  # files of other numbers mean other things


def load_scorer(file: Any) -> Scorer:
    """The model in a file of :meth:`Scorer.save`; `ValueError` for other files and versions."""
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        graph = json.loads(arrays.pop("graph").tobytes())
        form, version = graph["format"], graph["skebm"]
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is no file of skebm.export.to_numpy.") from error
    if form != FORMAT:
        raise ValueError(
            f"{file} has format {form}, written by skebm {version}, and this scorer reads format "
            f"{FORMAT}: use scorer.py of that version, or export the model again."
        )
    return Scorer(graph, [arrays[f"a{k}"] for k in range(len(arrays))])


class Scorer:
    """A fitted model as arrays and the operations on them, in float64.

    It has the methods of the model that was exported. Rows are data frames, dicts of columns by
    name, or arrays with the columns of `fit`; missing entries are NaN or None. Values that a column
    of bits cannot have make a row impossible.

    Attributes
    ----------
    estimator, version : str
        Class of the model, and version of skebm that exported it.
    columns : list of str or None
        Columns that are used; None for a model of arrays.
    outputs : list of str
    """

    def __init__(self, graph: dict[str, Any], arrays: list[np.ndarray]):
        self._graph, self._arrays = graph, arrays
        self.estimator, self.version = graph["estimator"], graph["skebm"]
        names = dict.fromkeys(column["name"] for column in graph["columns"])
        self.columns = None if graph["width"] else list(names)
        self.outputs = list(graph["outputs"])

    def __repr__(self) -> str:
        return f"Scorer({self.estimator}, outputs={self.outputs})"

    def save(self, file: Any) -> None:
        """Write the model to an ``.npz`` file without pickled objects."""
        text = np.frombuffer(json.dumps(self._graph).encode(), dtype=np.uint8)
        arrays: dict[str, Any] = {f"a{k}": a for k, a in enumerate(self._arrays)}
        np.savez_compressed(file, graph=text, **arrays)

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

    def _output(self, name: str, X: Any) -> np.ndarray:
        if name not in self._graph["outputs"]:
            raise AttributeError(f"This {self.estimator} was exported with {self.outputs} alone.")
        asked = self._graph["outputs"][name]
        columns = self._read(X, asked["missing"])
        nodes, rows = self._graph["nodes"][: asked["node"] + 1], self._graph["rows"]
        with np.errstate(all="ignore"):
            return self._in_blocks(*columns, nodes=nodes, axes=[0] * len(columns), rows=rows)

    def _in_blocks(
        self, *inputs: np.ndarray, nodes: list[Any], axes: list[int], rows: int, **_: Any
    ) -> np.ndarray:
        """The last of some operations, for so many rows at a time of the axes of their inputs."""
        steps, found, pairs = _steps(nodes), [], list(zip(inputs, axes, strict=True))
        n = next(x.shape[axis] for x, axis in pairs if axis >= 0)
        for i in range(0, max(n, 1), rows):
            block = [x if a < 0 else _slice(x, a, i, i + rows) for x, a in pairs]
            found.append(self._evaluate(steps, block))
        return np.concatenate(found)

    def _evaluate(self, steps: list[Any], columns: list[np.ndarray]) -> np.ndarray:
        values: dict[int, np.ndarray] = {}
        for node, op, inputs, given, done, free in steps:
            args = [values[k] for k in inputs]
            if op == "constant":
                values[node] = self._arrays[given["array"]]
            elif op == "column":
                values[node] = columns[given["column"]]
            elif op == "in_blocks":
                values[node] = self._in_blocks(*args, **given)
            elif free:
                shape = np.broadcast(*args).shape
                fits = (args[i] for i in free if args[i].shape == shape and args[i].dtype == float)
                values[node] = OPERATIONS[op](*args, out=next(fits, None))
            else:
                values[node] = OPERATIONS[op](*args, **given)
            for k in done:
                del values[k]
        return values[node]

    def _read(self, X: Any, missing: bool) -> list[np.ndarray]:
        """The columns as arrays of numbers."""
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
        return found

    def _read_column(self, X: Any, column: dict[str, Any], missing: bool) -> np.ndarray:
        name, levels = column["name"], column["levels"]
        values = _column_of(X, name, column["number"], self._graph["n_columns"])
        if levels is not None:
            place = {level: float(code) for code, level in enumerate(levels)}
            objects = _objects(values)
            found = np.array([math.nan if _is_missing(v) else place.get(v, -1.0) for v in objects])
            unknown = (found < 0) & (not column["unseen"])
            self._check(np.where(unknown, math.nan, found), name, missing)
            return found
        try:
            found = _days(values, column["time"]) if column["time"] else _numbers(values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Column {name!r}: {error}.") from error
        self._check(found, name, missing)
        return found

    def _check(self, numbers: np.ndarray, name: str, missing: bool) -> None:
        if np.isinf(numbers).any():
            raise ValueError(f"{name} contains infinity: drop such rows.")
        if not missing and np.isnan(numbers).any():
            raise ValueError(
                f"{name} has missing entries, or levels that did not occur in fit, and this output "
                f"of {self.estimator} was exported for complete rows alone: fill them in first."
            )


def _steps(nodes: list[Any]) -> list[Any]:
    """The operations that the last one needs, what none reads later, and may be overwritten."""
    last = {len(nodes) - 1: len(nodes)}
    for node in reversed(range(len(nodes))):
        for k in nodes[node][1] if node in last else ():
            last.setdefault(k, node)
    shared = {k for k in last if nodes[k][0] in _SHARING.split()}
    shared |= {k for node in shared for k in nodes[node][1]}
    steps = []
    for node in sorted(last):
        op, inputs, given = nodes[node]
        done = {k for k in inputs if last[k] == node}
        free = [i for i, k in enumerate(inputs) if k in done - shared and op in _IN_PLACE.split()]
        steps.append((node, op, inputs, given, done, free))
    return steps


def _column_of(X: Any, name: str, number: int, n_columns: int) -> Any:
    names = X.keys() if hasattr(X, "keys") else getattr(X, "columns", None)
    if names is not None:
        if name not in list(names):
            raise ValueError(f"X lacks the column {name!r}.")
        return X[name]
    rows = X if hasattr(X, "ndim") else np.array([list(row) for row in X], dtype=object)
    if rows.ndim != 2 or rows.shape[1] != n_columns:
        raise ValueError(f"X must have {n_columns} columns.")
    return rows[:, number]


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _objects(values: Any) -> list[Any]:
    method = getattr(values, "to_list", None) or getattr(values, "tolist", None)
    return method() if method else list(values)


def _numbers(values: Any) -> np.ndarray:
    """A column as float64, NaN where missing."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return np.asarray(values, dtype=np.float64)
    return np.array([math.nan if _is_missing(v) else float(v) for v in _objects(values)])


def _days(values: Any, what: str) -> np.ndarray:
    """Dates as days since 1970, in UTC or by the clock; durations as days; NaN where missing."""
    unit = "m8[us]" if what == "duration" else "M8[us]"
    plain = isinstance(values, np.ndarray) and values.dtype.kind in "mM"
    found = np.array(values if plain else [_instant(v, what) for v in _objects(values)], dtype=unit)
    since = found if what == "duration" else found - np.datetime64(0, "D")
    return np.where(np.isnat(found), np.nan, since / np.timedelta64(1, "D"))


def _instant(value: Any, what: str) -> Any:
    if _is_missing(value):
        return "NaT"
    if isinstance(value, str):
        value, what = datetime.datetime.fromisoformat(value.strip()), "days"
    if getattr(value, "tzinfo", None) is not None:
        value = value if what == "clock" else value.astimezone(datetime.UTC)
        value = value.replace(tzinfo=None)
    return value.to_numpy() if hasattr(value, "to_numpy") else value  # of pandas


def _reduction(function: Any) -> Any:
    return lambda x, axis, keepdims: function(x, axis=tuple(axis), keepdims=keepdims)


def _merge(mask: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts)[np.argsort(np.argsort(~mask, kind="stable"))]


def _slice(x: np.ndarray, axis: int, start: int, stop: int, step: int = 1) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _smallest(x: np.ndarray, k: int) -> np.ndarray:
    """Places of the one or two smallest entries of each row."""
    first = x.argmin(axis=1)[:, None]
    others = x.copy()
    np.put_along_axis(others, first, np.inf, axis=1)
    return np.concatenate([first, others.argmin(axis=1)[:, None]], axis=1)[:, :k]


def _sizes(like: np.ndarray, shape: list[int]) -> tuple[int, ...]:
    """A shape whose -k is k times the number of rows."""
    return tuple(-size * len(like) if size < 0 else size for size in shape)


_SAME = "abs exp expm1 log log1p sqrt tanh isnan isinf sin cos sign floor rint where matmul mod "
_SAME += "maximum minimum negative logical_not add subtract multiply divide power equal less "
_SAME += "less_equal logical_and logical_or bitwise_and bitwise_or cumsum squeeze take transpose"
# Those whose results may stand where their arguments were, and those whose results share memory.
_IN_PLACE = "abs exp expm1 log log1p sqrt tanh add subtract multiply divide negative"
_SHARING = "constant column expand squeeze unsqueeze reshape transpose slice"

OPERATIONS: dict[str, Any] = {
    **{name: getattr(np, name) for name in _SAME.split()},
    **{name: _reduction(getattr(np, name)) for name in ("sum", "max", "min", "prod", "any", "all")},
    "erf": np.vectorize(math.erf, otypes=[float]),
    "softplus": lambda x: np.logaddexp(0.0, x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "cast": lambda x, to: x.astype({"f": "f8", "single": "f4", "i": "i8", "b": "?"}[to]),
    "reshape": lambda x, shape: x.reshape(shape),
    "unsqueeze": lambda x, axis: np.expand_dims(x, axis),
    "expand": lambda x, like, shape: np.broadcast_to(x, _sizes(like, shape)),
    "fill": lambda like, shape, value: np.full(_sizes(like, shape), value),
    "concat": lambda *parts, axis: np.concatenate(parts, axis),
    "slice": _slice,
    "take_along": lambda x, index, axis: np.take_along_axis(x, index, axis),
    "pad": lambda x, widths, value: np.pad(x, widths, constant_values=value),
    "argmax": lambda x, axis: x.argmax(axis),
    "searchsorted": lambda edges, x, right: np.searchsorted(edges, x, "right" if right else "left"),
    "smallest": _smallest,
    "kth_largest": lambda x, k: np.partition(x, x.shape[1] - k, axis=1)[:, x.shape[1] - k],
    "compress": lambda x, mask: x[mask],
    "merge": _merge,
}
