"""A graph as an ONNX model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skebm.export.graph import ExportError, Graph, Node, dependencies

# Operators of the version 18 of ONNX, in files that runtimes since 2023 read.
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
# A place of a level that stands for a missing entry.
MISSING = -2.0

PLAIN = {
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "isnan": "IsNaN",
    "isinf": "IsInf",
    "sin": "Sin",
    "cos": "Cos",
    "sign": "Sign",
    "floor": "Floor",
    "rint": "Round",
    "negative": "Neg",
    "logical_not": "Not",
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "matmul": "MatMul",
}
REDUCTIONS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


class Writer:
    """Operations of a graph as nodes of an ONNX model.

    Parameters
    ----------
    graph : Graph
    dtype : {"float64", "float32"}
        Of numbers.
    """

    def __init__(self, graph: Graph, dtype: str):
        import onnx

        self.onnx: Any = onnx
        self.graph, self.dtype = graph, np.dtype(dtype)
        self.number = onnx.TensorProto.DOUBLE if dtype == "float64" else onnx.TensorProto.FLOAT
        self.types = {
            "f": self.number,
            "i": onnx.TensorProto.INT64,
            "b": onnx.TensorProto.BOOL,
            "s": onnx.TensorProto.STRING,
        }
        self.nodes: list[Any] = []
        self.constants: dict[Any, str] = {}
        self._tensors: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.names: dict[int, str] = {}
        self.n_names = 0

    # ---------------------------------------------------------------- parts of a model

    def emit(self, op: str, *inputs: str, domain: str = "", **given: Any) -> str:
        """Add a node; the name of its first result."""
        return self.emit_several(op, 1, *inputs, domain=domain, **given)[0]

    def emit_several(
        self, op: str, n: int, *inputs: str, domain: str = "", **given: Any
    ) -> list[str]:
        """Add a node; the names of its results."""
        names = [f"t{self.n_names + k}" for k in range(n)]
        self.n_names += n
        make = self.onnx.helper.make_node
        self.nodes.append(make(op, list(inputs), names, domain=domain, **given))
        return names

    def constant(self, value: Any) -> str:
        """The name of a constant array."""
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype)
        elif array.dtype.kind == "U":
            array = array.astype(object)
        key = (
            array.dtype.str,
            array.shape,
            repr(array.tolist()) if array.dtype == object else array.tobytes(),
        )
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            self.constants[key] = name
            self._tensors[name] = self._tensor(name, array)
        return self.constants[key]

    def _tensor(self, name: str, array: np.ndarray) -> Any:
        if array.dtype == object:
            texts = [str(one).encode() for one in array.ravel()]
            kind = self.onnx.TensorProto.STRING
            return self.onnx.helper.make_tensor(name, kind, array.shape, texts)
        return self.onnx.numpy_helper.from_array(
            np.ascontiguousarray(array).reshape(array.shape), name
        )

    @property
    def initializers(self) -> list[Any]:
        """The constants that nodes read."""
        used = {name for node in self.nodes for name in node.input}
        return [tensor for name, tensor in self._tensors.items() if name in used]

    def ints(self, *values: int) -> str:
        """The name of a list of integers."""
        return self.constant(np.array(values, dtype=np.int64))

    # ---------------------------------------------------------------- columns

    def column(self, place: int) -> str:
        """The rows, or a column of them, (n,)."""
        info = self.onnx.helper.make_tensor_value_info
        if self.graph.width:
            self.inputs.append(info("X", self.number, ["n", self.graph.width]))
            return "X"
        column = self.graph.columns[place]
        name, levels = column["name"], column["levels"]
        text = levels is not None and all(isinstance(one, str) for one in levels)
        kind = self.types["s"] if text else self.number
        if name not in {one.name for one in self.inputs}:  # days are also those of the clock
            self.inputs.append(info(name, kind, ["n", 1]))
        flat = self.emit("Reshape", name, self.ints(-1))
        if levels is None:
            return flat
        return self._places_of_text(flat, levels) if text else self._places(flat, name, levels)

    def _places_of_text(self, flat: str, levels: list[str]) -> str:
        keys = [*levels, *([""] if "" not in levels else [])]
        values = [*map(float, range(len(levels))), MISSING][: len(keys)]
        given = {"keys_strings": keys, "values_floats": values, "default_float": -1.0}
        code = self.emit("LabelEncoder", flat, domain="ai.onnx.ml", **given)
        code = self.emit("Cast", code, to=self.number)
        is_missing = self.emit("Equal", code, self.constant(MISSING))
        return self.emit("Where", is_missing, self.constant(math.nan), code)

    def _places(self, flat: str, name: str, levels: list[Any]) -> str:
        if any(isinstance(one, str) for one in levels):
            raise ExportError(
                f"Column {name!r} has levels that are text beside others, of which ONNX has no "
                "column: make all of them text before the fit."
            )
        own = self.emit("Unsqueeze", flat, self.ints(1))
        same = self.emit("Equal", own, self.constant(np.array(levels, dtype=float)))
        same = self.emit("Cast", same, to=self.number)
        place = self.emit("Cast", self.emit("ArgMax", same, axis=1, keepdims=0), to=self.number)
        known = self.emit("ReduceMax", same, self.ints(1), keepdims=0)
        known = self.emit("Cast", known, to=self.types["b"])
        code = self.emit("Where", known, place, self.constant(-1.0))
        return self.emit("Where", self.emit("IsNaN", flat), self.constant(math.nan), code)

    # ---------------------------------------------------------------- operations

    def result(self, number: int) -> str:
        """The name of the result of a node; those that it needs are written first."""
        for k in dependencies(self.graph, [number]):
            if k not in self.names:
                self.names[k] = self._write(k)
        return self.names[number]

    def _write(self, number: int) -> str:
        op, inputs, given = self.graph.nodes[number]
        if op == "constant":
            return self.constant(self.graph.arrays[given["array"]])
        if op == "column":
            return self.column(given["column"])
        names = [self.names[k] for k in inputs]
        if op in PLAIN:
            return self.emit(PLAIN[op], *names)
        if op in REDUCTIONS:
            axes = self.ints(*given["axis"])
            return self.emit(REDUCTIONS[op], names[0], axes, keepdims=int(given["keepdims"]))
        kinds = [self.graph.kinds[k] for k in inputs]
        if op == "searchsorted":
            edges = self.graph.constant_of(Node(self.graph, inputs[0], kinds[0]))
            given = given | {"edges": edges}
        return COMPOSED[op](self, names, given, kinds)

    def value_info(self, node: Node, name: str, wide: bool) -> Any:
        """The description of an output, (n,), or (n, k) if `wide`."""
        shape = ["n", None] if wide else ["n"]
        return self.onnx.helper.make_tensor_value_info(name, self.types[node.kind], shape)


# ------------------------------------------------------------------------------
# Operations that ONNX has in other forms
# ------------------------------------------------------------------------------

Composed = Callable[[Writer, Sequence[str], dict[str, Any], Sequence[str]], str]
COMPOSED: dict[str, Composed] = {}


def composed(op: str) -> Callable[[Composed], Composed]:
    """Register how an operation is written."""

    def register(function: Composed) -> Composed:
        COMPOSED[op] = function
        return function

    return register


@composed("where")
def _where(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    mask, on, off = names
    if kinds[1] != "b":
        return to.emit("Where", *names)
    off = to.emit("And", to.emit("Not", mask), off)
    return to.emit("Or", to.emit("And", mask, on), off)


@composed("erf")
def _erf(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    """In single precision, in which runtimes have it."""
    small = to.emit("Cast", names[0], to=to.onnx.TensorProto.FLOAT)
    return to.emit("Cast", to.emit("Erf", small), to=to.number)


@composed("log1p")
def _log1p(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Log", to.emit("Add", names[0], to.constant(1.0)))


@composed("expm1")
def _expm1(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Sub", to.emit("Exp", names[0]), to.constant(1.0))


@composed("softplus")
def _softplus(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    away = to.emit("Exp", to.emit("Neg", to.emit("Abs", names[0])))
    rest = to.emit("Log", to.emit("Add", away, to.constant(1.0)))
    return to.emit("Add", to.emit("Max", names[0], to.constant(0.0)), rest)


@composed("mod")
def _mod(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    if kinds[0] == "i":
        return to.emit("Mod", *names)
    whole = to.emit("Floor", to.emit("Div", *names))
    return to.emit("Sub", names[0], to.emit("Mul", whole, names[1]))


@composed("cast")
def _cast(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Cast", names[0], to=to.types[given["to"]])


@composed("transpose")
def _transpose(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Transpose", names[0], perm=given["axes"])


@composed("reshape")
def _reshape(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Reshape", names[0], to.ints(*given["shape"]))


@composed("unsqueeze")
def _unsqueeze(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Unsqueeze", names[0], to.ints(given["axis"]))


def _sizes(to: Writer, like: str, shape: list[int]) -> str:
    n = to.emit("Slice", to.emit("Shape", like), to.ints(0), to.ints(1))
    sizes = [
        to.ints(size) if size >= 0 else n if size == -1 else to.emit("Mul", n, to.ints(-size))
        for size in shape
    ]
    return to.emit("Concat", *sizes, axis=0)


@composed("expand")
def _expand(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Expand", names[0], _sizes(to, names[1], given["shape"]))


@composed("fill")
def _fill(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Expand", to.constant(given["value"]), _sizes(to, names[0], given["shape"]))


@composed("concat")
def _concat(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Concat", *names, axis=given["axis"])


@composed("slice")
def _slice(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    ends = (to.ints(given[k]) for k in ("start", "stop", "axis"))
    return to.emit("Slice", names[0], *ends, to.ints(given.get("step", 1)))


@composed("take")
def _take(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Gather", *names, axis=given["axis"])


@composed("take_along")
def _take_along(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("GatherElements", *names, axis=given["axis"])


@composed("pad")
def _pad(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    starts, ends = zip(*given["widths"], strict=True)
    return to.emit("Pad", names[0], to.ints(*starts, *ends), to.constant(given["value"]))


def _of_truth(op: str) -> Composed:
    def reduce(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
        numbers = to.emit("Cast", names[0], to=to.number)
        axes, keep = to.ints(*given["axis"]), int(given["keepdims"])
        return to.emit("Cast", to.emit(op, numbers, axes, keepdims=keep), to=to.types["b"])

    return reduce


COMPOSED |= {"any": _of_truth("ReduceMax"), "all": _of_truth("ReduceMin")}


@composed("logsumexp")
def _logsumexp(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    axes = to.ints(given["axis"])
    top = to.emit("ReduceMax", names[0], axes, keepdims=1)
    top = to.emit("Where", to.emit("IsInf", top), to.constant(0.0), top)
    total = to.emit("Exp", to.emit("Sub", names[0], top))
    found = to.emit("Log", to.emit("ReduceSum", total, axes, keepdims=1))
    found = to.emit("Add", found, top)
    return found if given.get("keepdims") else to.emit("Squeeze", found, axes)


@composed("argmax")
def _argmax(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("ArgMax", names[0], axis=given["axis"], keepdims=0)


@composed("cumsum")
def _cumsum(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("CumSum", names[0], to.constant(np.int64(given["axis"])))


@composed("searchsorted")
def _searchsorted(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    """Number of edges below values, by halving what is left."""
    edges, x = given["edges"], names[1]
    below = "LessOrEqual" if given["right"] else "Less"
    whole = edges.dtype.kind == "i"
    if kinds[1] != kinds[0]:
        x = to.emit("Cast", x, to=to.types[kinds[0]])
    n_steps = math.ceil(math.log2(len(edges) + 1))
    most = np.iinfo(np.int64).max if whole else np.inf
    padded = np.full(2**n_steps - 1, most, dtype=edges.dtype)
    padded[: len(edges)] = edges
    name = to.constant(padded)
    place = to.emit("Cast", to.emit("Mul", x, to.constant(edges.dtype.type(0))), to=to.types["i"])
    place = to.emit("Mul", place, to.constant(np.int64(0)))
    for k in reversed(range(n_steps)):
        further = to.emit("Add", place, to.constant(np.int64(2**k)))
        at = to.emit("Gather", name, to.emit("Sub", further, to.constant(np.int64(1))), axis=0)
        place = to.emit("Where", to.emit(below, at, x), further, place)
    return to.emit("Min", place, to.constant(np.int64(len(edges))))


def _best(to: Writer, x: str, k: int, largest: int) -> list[str]:
    return to.emit_several("TopK", 2, x, to.ints(k), axis=1, largest=largest, sorted=1)


@composed("smallest")
def _smallest(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return _best(to, names[0], given["k"], 0)[1]


@composed("kth_largest")
def _kth_largest(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    values = _best(to, names[0], given["k"], 1)[0]
    return to.emit("Gather", values, to.constant(np.int64(given["k"] - 1)), axis=1)


@composed("compress")
def _compress(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Compress", *names, axis=0)


@composed("merge")
def _merge(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    """The rows of two arrays in their order, by their places in one after the other."""
    mask, on, off = names
    number = to.emit("Cast", mask, to=to.types["i"])
    zero, one = to.constant(np.int64(0)), to.constant(np.int64(1))
    of_on = to.emit("Sub", to.emit("CumSum", number, zero), one)
    others = to.emit("Sub", one, number)
    of_off = to.emit("Sub", to.emit("CumSum", others, zero), one)
    n_on = to.emit("ReduceSum", number, to.ints(0), keepdims=0)
    place = to.emit("Where", mask, of_on, to.emit("Add", of_off, n_on))
    return to.emit("Gather", to.emit("Concat", on, off, axis=0), place, axis=0)
