"""The description of a scoring computation: arrays, and operations on them, one after the other.

A :class:`Graph` says how numbers follow from columns of rows. It is written once for each part of a
model, and read by each backend: the NumPy :class:`~skebm.export.scorer.Scorer` evaluates it, and
:func:`~skebm.export.to_onnx` translates it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

# Kinds of the entries of an array: numbers, integers, truth values, text.
KINDS = {"f": "f", "i": "i", "u": "i", "b": "b", "U": "s"}
# Operations whose results are truth values, and integers.
OF_TRUTH = {
    "isnan",
    "isinf",
    "logical_not",
    "equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_or",
    "any",
    "all",
}
OF_INTEGERS = {"argmax", "searchsorted", "smallest"}
ARITHMETIC = {
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "mod",
    "maximum",
    "minimum",
    "matmul",
    "equal",
}
ARITHMETIC |= {"less", "less_equal"}


class ExportError(ValueError):
    """A model, or a part of one, that cannot be exported; the message says which and what else."""


class Node:
    """An array of a graph: the result of an operation. Operators make further ones."""

    def __init__(self, graph: Graph, number: int, kind: str):
        self.graph, self.number, self.kind = graph, number, kind

    def _binary(self, op: str, other: Any, swapped: bool = False) -> Node:
        other = self.graph.node(other)
        return self.graph.apply(op, *((other, self) if swapped else (self, other)))

    def __add__(self, other: Any) -> Node:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Node:
        return self._binary("add", other, True)

    def __sub__(self, other: Any) -> Node:
        return self._binary("subtract", other)

    def __rsub__(self, other: Any) -> Node:
        return self._binary("subtract", other, True)

    def __mul__(self, other: Any) -> Node:
        return self._binary("multiply", other)

    def __rmul__(self, other: Any) -> Node:
        return self._binary("multiply", other, True)

    def __truediv__(self, other: Any) -> Node:
        return self._binary("divide", other)

    def __rtruediv__(self, other: Any) -> Node:
        return self._binary("divide", other, True)

    def __matmul__(self, other: Any) -> Node:
        return self._binary("matmul", other)

    def __neg__(self) -> Node:
        return self.graph.apply("negative", self)

    def __lt__(self, other: Any) -> Node:
        return self._binary("less", other)

    def __le__(self, other: Any) -> Node:
        return self._binary("less_equal", other)

    def __gt__(self, other: Any) -> Node:
        return self._binary("less", other, True)

    def __ge__(self, other: Any) -> Node:
        return self._binary("less_equal", other, True)

    def __and__(self, other: Any) -> Node:
        return self._binary("logical_and", other)

    def __or__(self, other: Any) -> Node:
        return self._binary("logical_or", other)

    def __invert__(self) -> Node:
        return self.graph.apply("logical_not", self)

    def equals(self, other: Any) -> Node:
        """Where two arrays are equal."""
        return self._binary("equal", other)

    def isnan(self) -> Node:
        """Where entries are NaN."""
        return self.graph.apply("isnan", self)

    def cast(self, kind: str) -> Node:
        """The entries as numbers "f", integers "i" or truth values "b"."""
        if kind == self.kind:
            return self
        constant = self.graph.constant_of(self)
        if constant is not None:
            return self.graph.node(constant.astype({"f": float, "i": np.int64, "b": bool}[kind]))
        return self.graph.apply("cast", self, to=kind)

    def column(self, j: int) -> Node:
        """Column j, (n,)."""
        return self.graph.apply("take", self, self.graph.node(np.int64(j)), axis=1)

    def columns(self, places: Sequence[int]) -> Node:
        """Some columns, (n, k)."""
        places = list(places)
        if places == list(range(places[0], places[0] + len(places))):
            stop = places[0] + len(places)
            return self.graph.apply("slice", self, axis=1, start=places[0], stop=stop)
        return self.graph.apply("take", self, self.graph.node(np.array(places)), axis=1)

    def reduce(self, op: str, axis: int = 1, keepdims: bool = False) -> Node:
        """Sum, max, any and so on over one axis."""
        return self.graph.apply(op, self, axis=[axis], keepdims=keepdims)

    def __hash__(self) -> int:
        return hash((id(self.graph), self.number))


class Graph:
    """Operations in their order, the columns that they read, and the arrays of constants.

    Attributes
    ----------
    nodes : list of [operation, numbers of its inputs, settings]
    arrays : list of ndarray
    columns : list of dict
        What :meth:`column` was called with, of each column that is read.
    width : int
        Number of columns of a model of arrays, which are one input; else 0.
    rounding : float
        Differences of values, relative to their size, that are of the precision of the model.
    needs_double : bool
        Whether single precision would find other results, and not the same ones less precisely.
    """

    def __init__(self) -> None:
        self.nodes: list[list[Any]] = []
        self.kinds: list[str] = []
        self.arrays: list[np.ndarray] = []
        self.columns: list[dict[str, Any]] = []
        self.width, self.n_columns, self.rounding = 0, 0, 1e-10
        self.needs_double = False
        self._known: dict[Any, int] = {}

    # ---------------------------------------------------------------- inputs

    def matrix(self, width: int) -> Node:
        """The input of a model of arrays, (n, width)."""
        self.width = width
        return self.add("column", [], {"column": 0}, "f")

    def column(self, name: str, number: int, **kind: Any) -> Node:
        """A column by name, (n,): numbers, NaN where missing.

        Parameters
        ----------
        name : str
        number : int
            Place of the column in an array of rows.
        **kind : dict
            ``levels``, a list of values, of which the numbers are the places, -1 for others, and
            ``unseen``, whether these are no missing entries; or ``time``: "days" since 1970 of
            dates, in UTC, "clock" by the clocks of their time zone, or "duration", in days.
        """
        found = {"name": name, "number": number, "levels": None, "unseen": False, "time": None}
        found |= kind
        if found not in self.columns:
            self.columns.append(found)
        return self.add("column", [], {"column": self.columns.index(found)}, "f")

    # ---------------------------------------------------------------- operations

    def node(self, value: Any) -> Node:
        """A constant as a node; a node as it is."""
        if isinstance(value, Node):
            return value
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64)
        kind = KINDS[array.dtype.kind]
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self.arrays.append(np.ascontiguousarray(array).reshape(array.shape))
            made = self.add("constant", [], {"array": len(self.arrays) - 1}, kind)
            self._known[key] = made.number
        return Node(self, self._known[key], kind)

    def constant_of(self, node: Node) -> np.ndarray | None:
        """The array of a constant; None for other nodes."""
        op, _, given = self.nodes[node.number]
        return self.arrays[given["array"]] if op == "constant" else None

    def apply(self, op: str, *inputs: Any, **given: Any) -> Node:
        """The result of an operation on nodes, arrays and numbers."""
        found = [self.node(x) for x in inputs]
        if op in ARITHMETIC or (op == "where" and len({x.kind for x in found[1:]}) > 1):
            skip = 1 if op == "where" else 0
            found[skip:] = self._alike(found[skip:])
        if op in ("sum", "prod", "max", "min") and found[0].kind == "b":
            found[0] = found[0].cast("f")
        if op in ("concat", "merge"):
            skip = 1 if op == "merge" else 0
            found[skip:] = self._alike(found[skip:])
        return self.add(op, [x.number for x in found], given, self._kind(op, found, given))

    @staticmethod
    def _alike(inputs: list[Node]) -> list[Node]:
        kinds = {x.kind for x in inputs}
        if len(kinds) == 1 and kinds != {"b"}:
            return inputs
        to = "f" if kinds & {"f", "b"} else "i"
        return inputs if kinds == {"s"} else [x.cast(to) for x in inputs]

    @staticmethod
    def _kind(op: str, inputs: list[Node], given: dict[str, Any]) -> str:
        if op in OF_TRUTH:
            return "b"
        if op in OF_INTEGERS:
            return "i"
        if op == "cast":
            return "f" if given["to"] == "single" else str(given["to"])
        if op == "in_blocks":
            return str(given["kinds"][-1])
        if op == "fill":
            return {bool: "b", int: "i"}.get(type(given["value"]), "f")
        return inputs[1 if op in ("where", "merge") else 0].kind

    def logsumexp(self, x: Node, axis: int = 1, keepdims: bool = False) -> Node:
        """Logarithm of the sum of the exponentials along an axis."""
        top = x.reduce("max", axis, keepdims=True)
        top = self.apply("where", self.apply("isinf", top), 0.0, top)
        total = self.apply("exp", x - top).reduce("sum", axis, keepdims=True)
        found = self.apply("log", total) + top
        return found if keepdims else self.apply("squeeze", found, axis=axis)

    def side_by_side(self, columns: Sequence[Node]) -> Node:
        """Columns (n,) as an array (n, k)."""
        parts = [self.apply("unsqueeze", one, axis=1) for one in columns]
        return parts[0] if len(parts) == 1 else self.apply("concat", *parts, axis=1)

    def pruned(self, outputs: Sequence[int]) -> tuple[Graph, dict[int, int]]:
        """The graph with nothing but what outputs need, and the new numbers of its nodes."""
        found, numbers = Graph(), dict[int, int]()
        found.width, found.n_columns = self.width, self.n_columns
        found.needs_double = self.needs_double
        for k in dependencies(self, outputs):
            op, inputs, given = self.nodes[k]
            if op == "constant":
                made = found.node(self.arrays[given["array"]])
            elif op == "column" and not self.width:
                made = found.column(**self.columns[given["column"]])
            else:
                made = found.add(op, [numbers[i] for i in inputs], given, self.kinds[k])
            numbers[k] = made.number
        return found, numbers

    def add(self, op: str, inputs: list[int], given: dict[str, Any], kind: str) -> Node:
        """The result of an operation on nodes of given numbers, of a known kind."""
        key = (op, tuple(inputs), json.dumps(given, sort_keys=True))
        number = self._known.get(key)
        if number is None:
            number = len(self.nodes)
            self.nodes.append([op, inputs, given])
            self.kinds.append(kind)
            self._known[key] = number
        return Node(self, number, kind)


def dependencies(graph: Graph, outputs: Sequence[int]) -> list[int]:
    """Numbers of the nodes that some need, these among them, in order."""
    found, left = set(outputs), list(outputs)
    while left:
        for k in graph.nodes[left.pop()][1]:
            if k not in found:
                found.add(k)
                left.append(k)
    return sorted(found)
