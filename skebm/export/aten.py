"""Operations of torch as those of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.export.graph import ExportError, Graph, Node


class TorchCall:
    """A call of an operation of torch.

    Attributes
    ----------
    graph : Graph
    args, kwargs
        Arguments; those that depend on rows are nodes, others tensors and plain values.
    shape : list of int
        Of the result; -k is k times the number of rows.
    shapes : list
        The same of each argument, None where it is no array.
    like : Node
        An array with a row for each row.
    """

    def __init__(
        self,
        graph: Graph,
        args: list[Any],
        kwargs: dict[str, Any],
        shape: list[int],
        shapes: list[Any],
        like: Node,
    ):
        self.graph, self.args, self.kwargs = graph, args, kwargs
        self.shape, self.shapes, self.like = shape, shapes, like

    def given(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by place or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def node(self, place: int) -> Node:
        """An argument that is an array, as a node."""
        return self.as_node(self.args[place])

    def as_node(self, value: Any) -> Node:
        """A value as a node."""
        if isinstance(value, Node):
            return value
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            return self.graph.node((value.double() if value.is_floating_point() else value).numpy())
        return self.graph.node(value)

    def axis(self, value: int, n: int | None = None) -> int:
        """An axis counted from the first."""
        return value % (len(self.shapes[0]) if n is None else n)

    def apply(self, op: str, *inputs: Any, **given: Any) -> Node:
        """The result of an operation of the graph."""
        return self.graph.apply(op, *map(self.as_node, inputs), **given)


Rule = Callable[[TorchCall], Any]
OPERATIONS: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the translation of some operations."""

    def register(function: Rule) -> Rule:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _plain(op: str, n: int) -> Rule:
    return lambda call: call.apply(op, *(call.node(k) for k in range(n)))


UNARY = "abs exp expm1 log log1p sqrt sigmoid tanh isnan isinf sin cos sign floor erf"
for _name in UNARY.split():
    OPERATIONS[_name] = _plain(_name, 1)
for _theirs, _ours in (
    ("round", "rint"),
    ("bitwise_not", "logical_not"),
    ("logical_not", "logical_not"),
    ("neg", "negative"),
):
    OPERATIONS[_theirs] = _plain(_ours, 1)
for _theirs, _ours in (
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("mm", "matmul"),
    ("mv", "matmul"),
    ("bmm", "matmul"),
    ("matmul", "matmul"),
    ("dot", "matmul"),
    ("logical_and", "logical_and"),
    ("logical_or", "logical_or"),
    ("eq", "equal"),
    ("lt", "less"),
    ("le", "less_equal"),
    ("remainder", "mod"),
):
    OPERATIONS[_theirs] = _plain(_ours, 2)
OPERATIONS["where"] = _plain("where", 3)


# ------------------------------------------------------------------------------
# Entry by entry
# ------------------------------------------------------------------------------


@rule("alias", "clone", "detach", "lift_fresh", "contiguous", "alias_copy")
def _same(call: TorchCall) -> Node:
    return call.node(0)


@rule("mul")
def _times(call: TorchCall) -> Node:
    x, y = call.node(0), call.node(1)
    return call.apply("logical_and", x, y) if x.kind == y.kind == "b" else x * y


@rule("add")
def _sum_of_two(call: TorchCall) -> Node:
    other, alpha = call.node(1), call.kwargs.get("alpha", 1)
    return call.node(0) + (other if alpha == 1 else other * float(alpha))


@rule("sub")
def _difference(call: TorchCall) -> Node:
    other, alpha = call.node(1), call.kwargs.get("alpha", 1)
    return call.node(0) - (other if alpha == 1 else other * float(alpha))


@rule("div")
def _quotient(call: TorchCall) -> Node:
    if call.kwargs.get("rounding_mode") is not None:
        raise ExportError("Quotients that are rounded have no translation.")
    return call.node(0).cast("f") / call.node(1).cast("f")


@rule("rsub")
def _reversed_difference(call: TorchCall) -> Node:
    return call.node(1) - call.node(0)


@rule("bitwise_and")
def _bitwise_and(call: TorchCall) -> Node:
    return _bits(call, "and")


@rule("bitwise_or")
def _bitwise_or(call: TorchCall) -> Node:
    return _bits(call, "or")


def _bits(call: TorchCall, op: str) -> Node:
    x, y = call.node(0), call.node(1)
    return call.apply(f"logical_{op}" if x.kind == "b" else f"bitwise_{op}", x, y)


@rule("ne")
def _unequal(call: TorchCall) -> Node:
    return ~call.apply("equal", call.node(0), call.node(1))


@rule("gt")
def _greater(call: TorchCall) -> Node:
    return call.apply("less", call.node(1), call.node(0))


@rule("ge")
def _greater_or_equal(call: TorchCall) -> Node:
    return call.apply("less_equal", call.node(1), call.node(0))


@rule("hypot")
def _hypot(call: TorchCall) -> Node:
    x, y = (call.apply("abs", call.node(k)) for k in (0, 1))
    top, low = call.apply("maximum", x, y), call.apply("minimum", x, y)
    ratio = call.apply("where", top.equals(0.0), 0.0, low / top)
    return top * call.apply("sqrt", 1.0 + ratio * ratio)


@rule("asinh")
def _asinh(call: TorchCall) -> Node:
    x = call.node(0)
    size = call.apply("abs", x)
    squared = size * size
    near = call.apply("log1p", size + squared / (1.0 + call.apply("sqrt", 1.0 + squared)))
    far = call.apply("log", size) + math.log(2)  # where squares overflow
    return call.apply("sign", x) * call.apply("where", size > 1e8, far, near)


@rule("log2")
def _log2(call: TorchCall) -> Node:
    return call.apply("log", call.node(0)) / math.log(2)


@rule("square")
def _square(call: TorchCall) -> Node:
    return call.node(0) * call.node(0)


@rule("pow")
def _power(call: TorchCall) -> Node:
    x, power = call.node(0), call.args[1]
    if power == 2:
        return x * x
    return call.apply("sqrt", x) if power == 0.5 else call.apply("power", x, power)


@rule("rsqrt")
def _inverse_root(call: TorchCall) -> Node:
    return 1.0 / call.apply("sqrt", call.node(0))


@rule("reciprocal")
def _inverse(call: TorchCall) -> Node:
    return 1.0 / call.node(0).cast("f")


@rule("softplus")
def _softplus(call: TorchCall) -> Node:
    x, beta, threshold = call.node(0), call.given(1, "beta", 1), call.given(2, "threshold", 20)
    scaled = x if beta == 1 else x * float(beta)
    smooth = call.apply("softplus", scaled)
    smooth = smooth if beta == 1 else smooth / float(beta)
    return call.apply("where", scaled > float(threshold), x, smooth)


@rule("silu")
def _silu(call: TorchCall) -> Node:
    return call.node(0) * call.apply("sigmoid", call.node(0))


@rule("relu")
def _relu(call: TorchCall) -> Node:
    return call.apply("maximum", call.node(0), 0.0)


@rule("leaky_relu")
def _leaky_relu(call: TorchCall) -> Node:
    x = call.node(0)
    return call.apply("where", x > 0.0, x, x * float(call.given(1, "negative_slope", 0.01)))


@rule("elu")
def _elu(call: TorchCall) -> Node:
    x, alpha = call.node(0), float(call.given(1, "alpha", 1))
    scale, inner = float(call.given(2, "scale", 1)), float(call.given(3, "input_scale", 1))
    return call.apply("where", x > 0.0, x * scale, call.apply("expm1", x * inner) * alpha * scale)


@rule("gelu")
def _gelu(call: TorchCall) -> Node:
    x = call.node(0)
    if call.given(1, "approximate", "none") != "none":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (call.apply("tanh", inner) + 1.0)
    return x * 0.5 * (call.apply("erf", x * math.sqrt(0.5)) + 1.0)


@rule("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(call: TorchCall) -> Node:
    x, low, high = call.node(0), call.given(1, "min"), call.given(2, "max")
    if low is not None:
        x = call.apply("maximum", x, low)
    return x if high is None else call.apply("minimum", x, high)


@rule("clamp_max")
def _clamp_max(call: TorchCall) -> Node:
    return call.apply("minimum", call.node(0), call.given(1, "max"))


@rule("isfinite")
def _isfinite(call: TorchCall) -> Node:
    x = call.node(0)
    return ~(x.isnan() | call.apply("isinf", x))


@rule("masked_fill")
def _masked_fill(call: TorchCall) -> Node:
    return call.apply("where", call.node(1), call.args[2], call.node(0))


@rule("nan_to_num")
def _nan_to_num(call: TorchCall) -> Node:
    x, most = call.node(0), torch.finfo(torch.float64).max
    for place, name, at, default in (
        (1, "nan", None, 0.0),
        (2, "posinf", math.inf, most),
        (3, "neginf", -math.inf, -most),
    ):
        value = call.given(place, name)
        where = x.isnan() if at is None else x.equals(at)
        x = call.apply("where", where, default if value is None else float(value), x)
    return x


@rule("_to_copy", "to")
def _convert(call: TorchCall) -> Node:
    dtype = call.kwargs.get("dtype")
    if dtype is None:
        return call.node(0)
    kind = "f" if dtype.is_floating_point else "b" if dtype == torch.bool else "i"
    return call.node(0).cast(kind)


@rule("addcmul")
def _addcmul(call: TorchCall) -> Node:
    return call.node(0) + call.node(1) * call.node(2) * float(call.kwargs.get("value", 1))


@rule("logaddexp")
def _logaddexp(call: TorchCall) -> Node:
    x, y = call.node(0), call.node(1)
    top = call.apply("maximum", x, y)
    low = call.apply("minimum", x, y)
    away = call.apply("isinf", top)
    rest = call.apply("log1p", call.apply("exp", low - top))
    return call.apply("where", away, top, top + rest)


# ------------------------------------------------------------------------------
# Products of matrices
# ------------------------------------------------------------------------------


@rule("addmm", "addmv", "baddbmm")
def _product_and_sum(call: TorchCall) -> Node:
    product, total = call.node(1) @ call.node(2), call.node(0)
    alpha, beta = float(call.kwargs.get("alpha", 1)), float(call.kwargs.get("beta", 1))
    product = product if alpha == 1 else product * alpha
    return product + (total if beta == 1 else total * beta)


@rule("linalg_solve_triangular")
def _solve_triangular(call: TorchCall) -> Node:
    matrix = call.args[0]
    if isinstance(matrix, Node) or not call.kwargs.get("left", True):
        raise ExportError("An equation whose matrix depends on rows has no translation.")
    matrix = matrix.double()
    kind = {k: call.kwargs[k] for k in ("upper", "unitriangular") if k in call.kwargs}
    eye = torch.eye(matrix.shape[-1], dtype=torch.float64)
    return call.apply("matmul", torch.linalg.solve_triangular(matrix, eye, **kind), call.node(1))


# ------------------------------------------------------------------------------
# Shapes
# ------------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", "squeeze", "flatten", "unflatten")
def _view(call: TorchCall) -> Node:
    shape = [max(size, -1) for size in call.shape]
    if shape.count(-1) > 1:
        raise ExportError("An array of two dimensions of rows has no translation.")
    return call.apply("reshape", call.node(0), shape=shape)


@rule("unsqueeze")
def _unsqueeze(call: TorchCall) -> Node:
    return call.apply("unsqueeze", call.node(0), axis=call.axis(call.args[1], len(call.shape)))


@rule("expand")
def _expand(call: TorchCall) -> Node:
    return call.apply("expand", call.node(0), call.like, shape=call.shape)


@rule("t")
def _t(call: TorchCall) -> Node:
    return (
        call.apply("transpose", call.node(0), axes=[1, 0]) if len(call.shape) == 2 else _same(call)
    )


@rule("transpose")
def _transpose(call: TorchCall) -> Node:
    axes = list(range(len(call.shape)))
    i, j = (call.axis(a) for a in call.args[1:3])
    axes[i], axes[j] = j, i
    return call.apply("transpose", call.node(0), axes=axes)


@rule("permute")
def _permute(call: TorchCall) -> Node:
    return call.apply("transpose", call.node(0), axes=[call.axis(a) for a in call.args[1]])


@rule("cat")
def _cat(call: TorchCall) -> Node:
    axis = call.given(1, "dim", 0) % len(call.shape)
    return call.apply("concat", *call.args[0], axis=axis)


@rule("stack")
def _stack(call: TorchCall) -> Node:
    axis = call.given(1, "dim", 0) % len(call.shape)
    parts = [call.apply("unsqueeze", part, axis=axis) for part in call.args[0]]
    return call.apply("concat", *parts, axis=axis)


def _part(call: TorchCall, axis: int, start: int, stop: int, step: int = 1) -> Node:
    return call.apply("slice", call.node(0), axis=axis, start=start, stop=stop, step=step)


def _ends(call: TorchCall, axis: int, start: Any, stop: Any) -> tuple[int, int] | None:
    """First and last place of a part of an axis; None for all rows."""
    size = call.shapes[0][axis]
    start, stop = 0 if start is None else start, size if stop is None else stop
    if size < 0:
        if start == 0:
            return None
        raise ExportError("A part of the rows has no translation.")
    return start % size if start < 0 else start, min(stop % size if stop < 0 else stop, size)


@rule("slice")
def _slice(call: TorchCall) -> Node:
    axis = call.axis(call.given(1, "dim", 0))
    ends = _ends(call, axis, call.given(2, "start"), call.given(3, "end"))
    return _same(call) if ends is None else _part(call, axis, *ends, call.given(4, "step", 1))


@rule("narrow")
def _narrow(call: TorchCall) -> Node:
    axis, start, length = call.axis(call.args[1]), call.args[2], call.args[3]
    return _part(call, axis, start, start + length)


@rule("select")
def _select(call: TorchCall) -> Node:
    axis, index = call.axis(call.args[1]), call.args[2]
    size = call.shapes[0][axis]
    if size < 0:
        raise ExportError("A single row has no translation.")
    return call.apply("take", call.node(0), torch.tensor(index % size), axis=axis)


@rule("split", "split_with_sizes", "chunk")
def _split(call: TorchCall) -> list[Node]:
    axis = call.axis(call.given(2, "dim", 0))
    total, sizes = call.shapes[0][axis], call.args[1]
    if total < 0:
        return [_same(call)]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, max(total, 1), sizes)]
    ends = np.cumsum([0, *sizes]).tolist()
    return [_part(call, axis, a, b) for a, b in zip(ends, ends[1:], strict=False)]


@rule("unbind")
def _unbind(call: TorchCall) -> list[Node]:
    axis = call.axis(call.given(1, "dim", 0))
    n = range(call.shapes[0][axis])
    return [call.apply("take", call.node(0), torch.tensor(k), axis=axis) for k in n]


@rule("select_scatter", "slice_scatter")
def _scatter(call: TorchCall) -> Node:
    whole, part, axis = call.node(0), call.node(1), call.axis(call.given(2, "dim", 0))
    size = call.shapes[0][axis]
    if len(call.shapes[1]) < len(call.shapes[0]):  # one place
        start = call.args[3] % size
        stop, part = start + 1, call.apply("unsqueeze", part, axis=axis)
    else:
        ends = _ends(call, axis, call.given(3, "start"), call.given(4, "end"))
        if ends is None:
            return part
        start, stop = ends
    parts = [_part(call, axis, 0, start)] if start else []
    after = [call.apply("slice", whole, axis=axis, start=stop, stop=size)] if stop < size else []
    return call.apply("concat", *parts, part, *after, axis=axis)


@rule("constant_pad_nd")
def _pad(call: TorchCall) -> Node:
    pads, value = call.args[1], call.given(2, "value", 0.0)
    n = len(call.shape)
    widths = [[0, 0] for _ in range(n)]
    for k in range(len(pads) // 2):
        widths[n - 1 - k] = [pads[2 * k], pads[2 * k + 1]]
    return call.apply("pad", call.node(0), widths=widths, value=float(value))


@rule("new_zeros", "zeros", "zeros_like", "new_empty", "empty_like", "empty")
def _zeros(call: TorchCall) -> Node:
    return _fill(call, 0.0)


@rule("new_ones", "ones", "ones_like")
def _ones(call: TorchCall) -> Node:
    return _fill(call, 1.0)


@rule("new_full", "full", "full_like")
def _full(call: TorchCall) -> Node:
    value = next(v for v in reversed(call.args) if isinstance(v, bool | int | float))
    return _fill(call, value if isinstance(value, bool) else float(value))


def _fill(call: TorchCall, value: Any) -> Node:
    dtype = call.kwargs.get("dtype")
    if dtype == torch.bool:
        value = bool(value)
    if min(call.shape, default=0) >= 0:
        return call.graph.node(np.full(call.shape, value))
    return call.apply("fill", call.like, shape=call.shape, value=value)


@rule("copy")
def _copy(call: TorchCall) -> Node:
    source = call.node(1).cast(call.node(0).kind)
    if call.shapes[1] == call.shape:
        return source
    return call.apply("expand", source, call.like, shape=call.shape)


# ------------------------------------------------------------------------------
# Places
# ------------------------------------------------------------------------------


@rule("index_select")
def _index_select(call: TorchCall) -> Node:
    return call.apply("take", call.node(0), call.args[2], axis=call.axis(call.args[1]))


@rule("embedding")
def _embedding(call: TorchCall) -> Node:
    return call.apply("take", call.node(0), call.args[1], axis=0)


@rule("index")
def _index(call: TorchCall) -> Node:
    used = [(axis, index) for axis, index in enumerate(call.args[1]) if index is not None]
    if len(used) != 1 or _is_mask(used[0][1]):
        raise ExportError("Places of several dimensions, and masks, have no translation.")
    ((axis, index),) = used
    return call.apply("take", call.node(0), index, axis=axis)


def _is_mask(index: Any) -> bool:
    return index.kind == "b" if isinstance(index, Node) else index.dtype == torch.bool


@rule("index_add")
def _index_add(call: TorchCall) -> Node:
    axis, index = call.axis(call.args[1]), call.args[2]
    if axis != len(call.shape) - 1 or not isinstance(index, Tensor):
        raise ExportError("Sums by places of rows have no translation.")
    to = torch.eye(call.shape[axis], dtype=torch.float64)[index]
    return call.node(0) + call.apply("matmul", call.args[3], to) * float(
        call.kwargs.get("alpha", 1)
    )


@rule("gather")
def _gather(call: TorchCall) -> Node:
    return call.apply("take_along", call.node(0), call.node(2), axis=call.axis(call.args[1]))


@rule("searchsorted")
def _places(call: TorchCall) -> Node:
    right = bool(call.kwargs.get("right", False)) or call.kwargs.get("side") == "right"
    edges = call.args[0]
    if isinstance(edges, Node):
        raise ExportError("A search in values of rows has no translation.")
    if edges.dim() == 1:
        return call.apply("searchsorted", edges, call.node(1), right=right)
    if not len(edges):
        return call.apply("fill", call.like, shape=call.shape, value=0)
    x = call.node(1)
    found = [
        call.apply("searchsorted", own, call.apply("take", x, torch.tensor(k), axis=0), right=right)
        for k, own in enumerate(edges)
    ]
    return call.apply("concat", *(call.apply("unsqueeze", one, axis=0) for one in found), axis=0)


@rule("bucketize")
def _buckets(call: TorchCall) -> Node:
    right = bool(call.kwargs.get("right", False))
    return call.apply("searchsorted", call.args[1], call.node(0), right=right)


# ------------------------------------------------------------------------------
# Reductions
# ------------------------------------------------------------------------------


def _axes(call: TorchCall, dims: Any) -> list[int]:
    n = len(call.shapes[0])
    dims = range(n) if dims is None or dims == [] else dims
    found = sorted(d % n for d in ([dims] if isinstance(dims, int) else dims))
    if any(call.shapes[0][axis] < 0 for axis in found):
        raise ExportError("A sum over rows has no translation.")
    return found


def _reduction(op: str) -> Rule:
    def reduce(call: TorchCall) -> Node:
        keep = bool(call.given(2, "keepdim", False))
        axes = _axes(call, call.given(1, "dim"))
        x = call.node(0)
        x = x.cast("i") if op in ("sum", "prod") and x.kind == "b" else x
        return call.apply(op, x, axis=axes, keepdims=keep)

    return reduce


for _theirs, _ours in (
    ("sum", "sum"),
    ("amax", "max"),
    ("amin", "min"),
    ("prod", "prod"),
    ("any", "any"),
    ("all", "all"),
):
    OPERATIONS[_theirs] = _reduction(_ours)


@rule("cumsum")
def _cumsum(call: TorchCall) -> Node:
    axis = call.axis(call.args[1])
    if call.shapes[0][axis] < 0:
        raise ExportError("A sum over rows has no translation.")
    return call.apply("cumsum", call.node(0), axis=axis)


@rule("linalg_vector_norm")
def _norm(call: TorchCall) -> Node:
    if call.given(1, "ord", 2) != 2:
        raise ExportError("Norms other than the Euclidean one have no translation.")
    axes = _axes(call, call.given(2, "dim"))
    squares = call.node(0) * call.node(0)
    keep = bool(call.given(3, "keepdim", False))
    return call.apply("sqrt", call.apply("sum", squares, axis=axes, keepdims=keep))


@rule("mean")
def _mean(call: TorchCall) -> Node:
    axes = _axes(call, call.given(1, "dim"))
    n = math.prod(call.shapes[0][axis] for axis in axes)
    keep = bool(call.given(2, "keepdim", False))
    return call.apply("sum", call.node(0), axis=axes, keepdims=keep) / float(n)


@rule("max")
def _max(call: TorchCall) -> Any:
    if len(call.args) < 2:
        raise ExportError("A maximum over rows has no translation.")
    axis, keep = call.axis(call.args[1]), bool(call.given(2, "keepdim", False))
    return [call.apply("max", call.node(0), axis=[axis], keepdims=keep), _argmax(call)]


@rule("argmax")
def _argmax(call: TorchCall) -> Node:
    axis = call.axis(call.args[1])
    found = call.apply("argmax", call.node(0), axis=axis)
    return call.apply("unsqueeze", found, axis=axis) if call.given(2, "keepdim", False) else found


def _log_sum(call: TorchCall, axis: int, keepdims: bool) -> Node:
    return call.graph.logsumexp(call.node(0), axis, keepdims)


@rule("logsumexp")
def _logsumexp(call: TorchCall) -> Node:
    (axis,) = _axes(call, call.args[1])
    return _log_sum(call, axis, bool(call.given(2, "keepdim", False)))


@rule("_log_softmax", "log_softmax")
def _log_softmax(call: TorchCall) -> Node:
    (axis,) = _axes(call, call.args[1])
    return call.node(0) - _log_sum(call, axis, True)


@rule("_softmax", "softmax")
def _softmax(call: TorchCall) -> Node:
    return call.apply("exp", _log_softmax(call))


@rule("native_layer_norm")
def _layer_norm(call: TorchCall) -> Sequence[Any]:
    x, shape, weight, bias, eps = call.args[:5]
    n = len(call.shapes[0])
    axes = list(range(n - len(shape), n))
    size = float(math.prod(shape))
    x = call.as_node(x)
    centred = x - call.apply("sum", x, axis=axes, keepdims=True) / size
    variance = call.apply("sum", centred * centred, axis=axes, keepdims=True) / size
    found = centred / call.apply("sqrt", variance + float(eps))
    if weight is not None:
        found = found * call.as_node(weight)
    return [found if bias is None else found + call.as_node(bias), None, None]
