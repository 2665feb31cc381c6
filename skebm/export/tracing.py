"""Functions of torch as operations of a graph.

What an energy, a distribution or a network computes is not written twice: its own code is recorded
as it treats rows, and each operation of torch is translated (`aten.py`). Rows are independent, so
that operations may depend on no value, and on no number of rows: they are recorded for two numbers
of rows, and sizes that differ are those of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize
from torch.utils._python_dispatch import TorchDispatchMode

from skebm.export.aten import OPERATIONS, TorchCall
from skebm.export.graph import ExportError, Graph, Node

# Numbers of rows for which operations are recorded.
N_ROWS = (11, 13)


class RowCount(NamedTuple):
    """A size that is so many times the number of rows."""

    times: int


class Record(NamedTuple):
    """One operation on rows: what was called with what, and what came of it."""

    function: Any
    args: Any
    kwargs: dict[str, Any]
    results: Any


class RowRecorder(TorchDispatchMode):
    """Records operations on tensors that follow from rows; others are constants.

    Parameters
    ----------
    rows : sequence of Tensor
    what : str
        Name of the part, for errors.
    """

    def __init__(self, rows: Sequence[Tensor], what: str):
        super().__init__()
        self.what, self.records = what, list[Record]()
        # Numbers of tensors by identity; they are kept, so that no other takes their place.
        self.kept, self.numbers = list(rows), {id(row): k for k, row in enumerate(rows)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.equal.default and self._is_rounded(*args):
            # Whole numbers have a shortcut: what is recorded is the way of all numbers.
            return False
        found = func(*args, **kwargs)
        inputs = [self._describe(one) for one in (list(args), *kwargs.values())]
        if not any(_holds(one, Place) for one in inputs):
            return found
        if func in VALUES:
            raise ExportError(
                f"{self.what}: what it computes for a row depends on values of others, or on "
                "conditions of its own, which no graph has. Score it in Python."
            )
        results = list(found) if isinstance(found, list | tuple) else found
        for one in results if isinstance(results, list) else [results]:
            if isinstance(one, Tensor):
                self.numbers[id(one)] = len(self.kept)
                self.kept.append(one)
        settings = dict(zip(kwargs, inputs[1:], strict=True))
        self.records.append(Record(func, inputs[0], settings, self._describe(results)))
        return found

    def _is_rounded(self, x: Tensor, other: Tensor) -> bool:
        """Whether another tensor is x rounded."""
        place = self._describe(other)
        made = [record for record in self.records if record.results == place]
        is_round = bool(made) and made[-1].function is torch.ops.aten.round.default
        return is_round and made[-1].args[0] == self._describe(x)

    def _describe(self, value: Any) -> Any:
        """Arguments with tensors that follow from rows replaced by their numbers."""
        if isinstance(value, Tensor):
            number = self.numbers.get(id(value))
            if number is None:
                return value.detach()
            return Place(number, tuple(value.shape))
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return [self._describe(one) for one in value]
        return list(value) if isinstance(value, torch.Size) else value


class Place(NamedTuple):
    """A recorded tensor, by its number, and its shape."""

    number: int
    shape: tuple[int, ...]


VALUES = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
}


def traced(
    graph: Graph, function: Callable[..., Tensor], inputs: Sequence[tuple[Node, Tensor]], what: str
) -> Node:
    """What a function of rows computes, as a node.

    Parameters
    ----------
    graph : Graph
    function : callable
        Of tensors whose first dimension is that of rows; treats rows independently.
    inputs : sequence of (Node, Tensor)
        Its arguments, and for each a possible row.
    what : str
        Name of the part, for errors.

    Raises
    ------
    ExportError
        If the operations depend on values or on the number of rows, or one has no translation.
    """
    runs = [_record(function, [row for _, row in inputs], n, what) for n in N_ROWS]
    (first, result), (second, other) = runs
    if [r.function for r in first] != [r.function for r in second]:
        raise ExportError(f"{what}: its operations depend on the number of rows.")
    values: dict[int, Any] = {k: node for k, (node, _) in enumerate(inputs)}
    translation = _Translation(graph, values, inputs[0][0], what)
    for pair in zip(first, second, strict=True):
        translation.add(*pair)
    found = translation.resolved(result, other)
    return graph.node(found)


def _record(
    function: Callable[..., Tensor], rows: Sequence[Tensor], n: int, what: str
) -> tuple[list[Record], Any]:
    """The operations for n equal rows, and a description of what they result in."""
    example = [row.expand(n, *row.shape).clone() for row in rows]
    with torch.no_grad():
        function(*[row.clone() for row in example])  # what is kept for later calls is made
        try:
            with RowRecorder(example, what) as recorder:
                found = functionalize(function, remove="mutations_and_views")(*example)
        except RuntimeError as error:
            if "functional" not in str(error):
                raise
            raise ExportError(
                f"{what}: it changes an array in place in a way that cannot be recorded. Write "
                "x = x & y instead of x &= y, and so on."
            ) from error
    return recorder.records, recorder._describe(found)


class _Translation:
    """Recorded operations as nodes, one after the other."""

    def __init__(self, graph: Graph, values: dict[int, Any], like: Node, what: str):
        self.graph, self.values, self.like, self.what = graph, values, like, what

    def add(self, record: Record, other: Record) -> None:
        """Translate an operation, recorded for both numbers of rows."""
        args = self.resolved(record.args, other.args)
        kwargs = {k: self.resolved(v, other.kwargs[k]) for k, v in record.kwargs.items()}
        name = record.function.overloadpacket.__name__
        known = name if name in OPERATIONS else name.removesuffix("_copy")
        if known not in OPERATIONS:
            raise ExportError(
                f"{self.what}: the operation {name} of torch has no translation. Score it in "
                "Python, or write the part with other operations."
            )
        shapes = [self.shape(a, b) for a, b in zip(record.args, other.args, strict=True)]
        of_result = self.shape(record.results, other.results)
        try:
            found = OPERATIONS[known](
                TorchCall(self.graph, args, kwargs, of_result, shapes, self.like)
            )
        except ExportError as error:
            raise ExportError(f"{self.what}: {error}") from error
        several = isinstance(record.results, list)
        for place, value in zip(
            record.results if several else [record.results],
            found if several else [found],
            strict=True,
        ):
            if isinstance(place, Place):
                self.values[place.number] = value

    def resolved(self, one: Any, other: Any) -> Any:
        """Arguments with nodes for recorded tensors, and `RowCount` for sizes of rows."""
        if isinstance(one, Place):
            return self.values[one.number]
        if isinstance(one, Tensor):
            return one if one.shape == other.shape else self._fill(one, other)
        if isinstance(one, list):
            if len(one) != len(other):
                raise ExportError(f"{self.what}: its operations depend on the number of rows.")
            return [self.resolved(a, b) for a, b in zip(one, other, strict=True)]
        if isinstance(one, int) and not isinstance(one, bool) and one != other:
            return self._row_count(one, other)
        return one

    def _row_count(self, one: int, other: int) -> RowCount:
        times, rest = divmod(one, N_ROWS[0])
        if rest or other != times * N_ROWS[1]:
            raise ExportError(f"{self.what}: a size depends on the number of rows otherwise.")
        return RowCount(times)

    def _fill(self, one: Tensor, other: Tensor) -> Node:
        """A constant array that is the same for all rows."""
        shape = self.shape(one, other)
        row, same = (self._first_row(constant, shape) for constant in (one, other))
        if not (torch.equal(row.expand_as(one), one) and torch.equal(row, same)):
            raise ExportError(f"{self.what}: its operations number the rows.")
        array = row.double() if row.is_floating_point() else row
        return self.graph.apply("expand", array.cpu().numpy(), self.like, shape=shape)

    @staticmethod
    def _first_row(constant: Tensor, shape: list[int]) -> Tensor:
        for axis in range(len(shape)):
            if shape[axis] < 0:
                constant = constant.narrow(axis, 0, 1)
        return constant

    def shape(self, one: Any, other: Any) -> Any:
        """Shape of an array, -k for k times the number of rows; None of other things."""
        if isinstance(one, list):
            return [self.shape(a, b) for a, b in zip(one, other, strict=True)]
        if not isinstance(one, Place | Tensor):
            return None
        pairs = zip(one.shape, other.shape, strict=True)
        return [a if a == b else -self._row_count(a, b).times for a, b in pairs]


def _holds(args: Any, kind: type) -> bool:
    if isinstance(args, list):
        return any(_holds(one, kind) for one in args)
    return isinstance(args, kind)
