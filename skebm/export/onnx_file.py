"""A graph as an ONNX model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from skebm.export.graph import ExportError, Graph, Node, dependencies

# Operators of the version 18 of ONNX, in files that runtimes since 2023 read.
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
# A place of a level that stands for a missing entry.
MISSING = -2.0
# Logarithm from which on numbers of single precision are denormal, with which runtimes are slow.
LEAST_LOG = -87.0
# Sums of single precision of which one in double precision is made: each is of fewer numbers.
N_SUMS = 16

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
    outside : Writer or None
        That of a graph of which this one is an operation: constants are those of it.
    single : bool
        Whether exponentials that are summed, relative to the largest one, are in single precision:
        those in double precision take runtimes ten times as long, and the logarithm of the sum of
        thousands is the same to about 1e-7.
    """

    def __init__(
        self, graph: Graph, dtype: str, outside: Writer | None = None, single: bool = False
    ):
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
        self.constants: dict[Any, str] = {} if outside is None else outside.constants
        self._tensors: dict[str, Any] = {} if outside is None else outside._tensors
        self._used: set[str] = set() if outside is None else outside._used
        self._numbers: Iterator[int] = itertools.count() if outside is None else outside._numbers
        self.inputs: list[Any] = []
        self.names: dict[int, str] = {}
        self.single, self.rests = single, dict[int, list[int]]()

    # ---------------------------------------------------------------- parts of a model

    def emit(self, op: str, *inputs: str, domain: str = "", **given: Any) -> str:
        """Add a node; the name of its first result."""
        return self.emit_several(op, 1, *inputs, domain=domain, **given)[0]

    def emit_several(
        self, op: str, n: int, *inputs: str, domain: str = "", **given: Any
    ) -> list[str]:
        """Add a node; the names of its results."""
        names = self.new_names(n)
        self._used.update(inputs)
        make = self.onnx.helper.make_node
        self.nodes.append(make(op, list(inputs), names, domain=domain, **given))
        return names

    def new_names(self, n: int) -> list[str]:
        """Names that nothing has."""
        return [f"t{next(self._numbers)}" for _ in range(n)]

    def constant(self, value: Any) -> str:
        """The name of a constant array."""
        array = np.asarray(value)
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):  # the largest number is infinite in single precision
                array = array.astype(self.dtype)
        elif array.dtype.kind == "U":
            array = array.astype(object)
        return self._as_constant(array)

    def _as_constant(self, array: np.ndarray) -> str:
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
        return [tensor for name, tensor in self._tensors.items() if name in self._used]

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
        if op == "exp" and self._are_single(number):
            return self._exp_in_single(self.names[self._exponent(number)])
        if op == "sum" and self._are_single(inputs[0]):
            return self._sums_of_single(names[0], self.rests[inputs[0]][-1], given["keepdims"])
        if op in PLAIN:
            return self.emit(PLAIN[op], *names)
        if op in REDUCTIONS:
            axes = self.ints(*given["axis"])
            return self.emit(REDUCTIONS[op], names[0], axes, keepdims=int(given["keepdims"]))
        kinds = [self.graph.kinds[k] for k in inputs]
        if op in ("searchsorted", "in_blocks"):
            known = [self.graph.constant_of(Node(self.graph, k, "")) for k in inputs]
            given = given | {"arrays": known}
        return COMPOSED[op](self, names, given, kinds)

    def _are_single(self, number: int) -> bool:
        """Whether exponentials of what is at most 0 are nothing but summed over the last axis."""
        nodes = self.graph.nodes
        if not self.single or nodes[number][0] != "exp":
            return False
        last = {"axis": [len(self.rests[number])]}
        readers = [(op, given | last == given) for op, inputs, given in nodes if number in inputs]
        op, inputs, _ = nodes[self._exponent(number)]
        if op != "subtract" or any(one != ("sum", True) for one in readers):
            return False
        top = inputs[1]
        while nodes[top][0] in ("unsqueeze", "reshape", "max", "where"):
            top = nodes[top][1][-1]
        return bool(top == inputs[0])

    def _exponent(self, number: int) -> int:
        """What an exponential is of, without a lower limit, as this writer sets one of its own."""
        argument = self.graph.nodes[number][1][0]
        op, inputs, _ = self.graph.nodes[argument]
        if op == "maximum" and self.names[inputs[1]] in self.constants.values():
            argument = inputs[0]
        return int(argument)

    def _exp_in_single(self, name: str) -> str:
        """Exponentials of numbers up to 0, in single precision."""
        small = self.emit("Cast", name, to=self.onnx.TensorProto.FLOAT)
        least = self._as_constant(np.array(LEAST_LOG, dtype=np.float32))
        return self.emit("Exp", self.emit("Clip", small, least))

    def _sums_of_single(self, name: str, n: int, keepdims: bool) -> str:
        """Sums over the last axis, of length n: of every sixteenth number, and then of these."""
        some = np.arange(n)[:, None] % N_SUMS == np.arange(min(n, N_SUMS))
        sums = self.emit("MatMul", name, self._as_constant(some.astype(np.float32)))
        sums = self.emit("Cast", sums, to=self.number)
        return self.emit("ReduceSum", sums, self.ints(-1), keepdims=int(keepdims))

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
    if given["to"] != "single":
        return to.emit("Cast", names[0], to=to.types[given["to"]])
    return to.emit("Cast", to.emit("Cast", names[0], to=to.onnx.TensorProto.FLOAT), to=to.number)


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


@composed("squeeze")
def _squeeze(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("Squeeze", names[0], to.ints(given["axis"]))


@composed("argmax")
def _argmax(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("ArgMax", names[0], axis=given["axis"], keepdims=0)


@composed("cumsum")
def _cumsum(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    return to.emit("CumSum", names[0], to.constant(np.int64(given["axis"])))


@composed("searchsorted")
def _searchsorted(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    """Number of edges below values, by halving what is left."""
    edges, x = given["arrays"][0], names[1]
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


@composed("in_blocks")
def _in_blocks(to: Writer, names: Sequence[str], given: Any, kinds: Any) -> str:
    """A scan of blocks of equal numbers of rows, for which the last row is repeated."""
    inner, body = _inner_writer(to, names, given)
    split = [(k, axis) for k, axis in enumerate(given["axes"]) if axis >= 0]
    like, axis = names[split[0][0]], split[0][1]
    n = to.emit("Slice", to.emit("Shape", like), to.ints(axis), to.ints(axis + 1))
    n_blocks = to.emit("Max", _quotient_up(to, n, to.ints(given["rows"])), to.ints(1))
    rows = _quotient_up(to, n, n_blocks)
    number = to.emit("Squeeze", to.emit("Mul", rows, n_blocks))
    zero, one = to.constant(np.int64(0)), to.constant(np.int64(1))
    place = to.emit("Min", to.emit("Range", zero, number, one), to.emit("Sub", n, one))
    sizes = to.emit("Concat", n_blocks, rows, axis=0)
    place = to.emit("Reshape", place, sizes, allowzero=1)
    blocks = [to.emit("Gather", names[k], place, axis=axis) for k, axis in split]
    axes = [axis for _, axis in split]
    graph = to.onnx.helper.make_graph(inner.nodes, "block", inner.inputs, [body])
    stacked = to.emit(
        "Scan", *blocks, body=graph, num_scan_inputs=len(blocks), scan_input_axes=axes
    )
    joined = to.emit("Reshape", stacked, to.ints(-1, *given["rests"][-1]))
    return to.emit("Slice", joined, to.ints(0), n, to.ints(0))


def _quotient_up(to: Writer, x: str, y: str) -> str:
    return to.emit("Div", to.emit("Sub", to.emit("Add", x, y), to.ints(1)), y)


def _inner_writer(to: Writer, names: Sequence[str], given: dict[str, Any]) -> tuple[Writer, Any]:
    """The operations on a block, written, and the description of their result."""
    graph, info = Graph(), to.onnx.helper.make_tensor_value_info
    inner = Writer(graph, str(to.dtype), to, given["single"] or to.dtype == np.float32)
    nodes: list[Node] = []
    for (op, read, settings), kind in zip(given["nodes"], given["kinds"], strict=True):
        k = len(nodes)
        if op != "column":
            nodes.append(graph.add(op, [nodes[i].number for i in read], settings, kind))
        elif given["arrays"][k] is not None:
            nodes.append(graph.node(given["arrays"][k]))
        else:
            nodes.append(graph.add(op, read, settings, kind))
            (inner.names[nodes[k].number],) = own = (
                [names[k]] if given["axes"][k] < 0 else to.new_names(1)
            )
            if given["axes"][k] >= 0:
                inner.inputs.append(info(own[0], to.types[kind], None))
    inner.rests = {node.number: rest for node, rest in zip(nodes, given["rests"], strict=True)}
    found = inner.result(nodes[-1].number)
    return inner, info(found, to.types[given["kinds"][-1]], None)
