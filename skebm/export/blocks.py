"""Operations on wide arrays, computed for few rows at a time.

A kernel density has an array of rows by kernels, of which no row needs but a sum. Operations from
where an array is wide to where what follows from it is narrow again become one, which goes through
the rows in blocks that caches hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from skebm.export.graph import Graph, dependencies
from skebm.export.scorer import OPERATIONS

# Numbers of an array that are computed together, of a wide one and of others, and numbers of a row
# from which an array is wide.
WIDE_NUMBERS, NUMBERS, WIDE = 2**17, 2**19, 256
# Operations that are computed for all rows.
OF_ALL_ROWS = {"column", "constant", "compress", "merge", "in_blocks"}
# Numbers of rows of the examples by which shapes are known.
EXAMPLES = (2, 3)


class RowShape(NamedTuple):
    """Shape of an array.

    Attributes
    ----------
    size : int
        Numbers for each row.
    axis : int or None
        The axis of rows; None if there is none, or it is one of several times as many.
    rest : list of int
        Sizes of the other axes.
    masks : tuple of int
        Which rows they are: the masks by which these were selected, one after the other.
    """

    size: int
    axis: int | None
    rest: list[int]
    masks: tuple[int, ...]


def row_shapes(graph: Graph) -> list[RowShape]:
    """Shapes of the results of all operations."""
    few, more = (_shapes_of_example(graph, n) for n in EXAMPLES)
    found: list[RowShape] = []
    for (op, inputs, _), one, other in zip(graph.nodes, few, more, strict=True):
        size = int(np.prod(other) - np.prod(one)) // (EXAMPLES[1] - EXAMPLES[0])
        differ = [a for a, sizes in enumerate(zip(one, other, strict=True)) if sizes == EXAMPLES]
        axis = differ[0] if len(differ) == 1 and size else None
        masks = next((found[k].masks for k in inputs if found[k].size), ())
        if op == "compress":
            masks = (*found[inputs[1]].masks, inputs[1])
        rest = [] if axis is None else [s for a, s in enumerate(one) if a != axis]
        found.append(RowShape(size, axis, rest, masks))
    return found


def _shapes_of_example(graph: Graph, n: int) -> list[tuple[int, ...]]:
    """Shapes for n rows of zeros, as if masks held all of them."""
    last = {k: node for node, (_, inputs, _) in enumerate(graph.nodes) for k in inputs}
    values: dict[int, Any] = {}
    shapes = []
    for node, (op, inputs, given) in enumerate(graph.nodes):
        if op == "constant":
            values[node] = graph.arrays[given["array"]]
        elif op == "column":
            values[node] = np.zeros((n, graph.width) if graph.width else n)
        elif op in ("compress", "merge"):
            values[node] = values[inputs[0 if op == "compress" else 1]]
        else:
            with np.errstate(all="ignore"):
                values[node] = OPERATIONS[op](*[values[k] for k in inputs], **given)
        shapes.append(np.shape(values[node]))
        for k in inputs:
            if last[k] == node:
                values.pop(k, None)
    return shapes


def rows_at_once(shapes: Iterable[RowShape], numbers: int, fewest: int) -> int:
    """How many rows are computed together, by the numbers that the widest array then has."""
    return max(fewest, min(8192, numbers // max([1, *(one.size for one in shapes)])))


def in_blocks(
    graph: Graph, outputs: Sequence[int], exact: int | None = None
) -> tuple[Graph, dict[int, int], int]:
    """The graph with operations on wide arrays in one, new numbers of its nodes, rows at once.

    `exact` is the mask of rows for which sums of exponentials are in double precision.
    """
    shapes = row_shapes(graph)
    through = _next_of_all(graph, outputs)
    covered: set[int] = set()
    for first in dependencies(graph, outputs):
        if first in covered or shapes[first].size < WIDE or _is_of_all_rows(graph, first):
            continue
        last = through[first]
        while last is not None and not _can_end(shapes[first], shapes[last]):
            last = through[last]
        members = set() if last is None else _members(graph, first, last, shapes)
        if last is not None and _can_be_one(graph, members, shapes):
            graph.nodes[last] = _as_one(graph, sorted(members), shapes, exact)
            covered |= members
    found, numbers = graph.pruned(outputs)
    return found, numbers, rows_at_once((shapes[k] for k in numbers), NUMBERS, 64)


def _is_of_all_rows(graph: Graph, node: int) -> bool:
    return graph.nodes[node][0] in OF_ALL_ROWS


def _can_end(first: RowShape, last: RowShape) -> bool:
    return last.size < WIDE and last.axis == 0 and last.masks == first.masks


def _next_of_all(graph: Graph, outputs: Sequence[int]) -> list[int | None]:
    """For each node the first one that all depends on which depends on it; None if there is none.

    These are immediate postdominators, by Cooper, Harvey and Kennedy (2001), "A simple, fast
    dominance algorithm": of a graph without cycles one pass finds them.
    """
    end = len(graph.nodes)
    found = [end] * end
    readers: list[list[int]] = [[] for _ in range(end)]
    for node in dependencies(graph, outputs):
        for k in graph.nodes[node][1]:
            readers[k].append(node)
    for node in outputs:
        readers[node].append(end)
    for node in reversed(range(end)):
        meeting = None
        for one in readers[node]:
            other = one if meeting is None else meeting
            while one != other:
                one, other = (found[one], other) if one < other else (one, found[other])
            meeting = one
        found[node] = end if meeting is None else meeting
    return [None if one == end else one for one in found]


def _members(graph: Graph, first: int, last: int, shapes: list[RowShape]) -> set[int]:
    """What leads to `last` and is wide, or follows from what is."""
    wide = {first}
    while True:
        after = set(wide)
        for node in range(min(wide), last + 1):
            if any(k in after for k in graph.nodes[node][1]):
                after.add(node)
        members, left = {last}, [last]
        while left:
            for k in graph.nodes[left.pop()][1]:
                belongs = k in after or shapes[k].size >= WIDE
                if belongs and k not in members and not _is_of_all_rows(graph, k):
                    members.add(k)
                    left.append(k)
        more = {k for k in members if shapes[k].size >= WIDE}
        if more <= wide:
            return members
        wide |= more


def _inputs(graph: Graph, members: Iterable[int]) -> list[int]:
    inside = set(members)
    return sorted({k for node in inside for k in graph.nodes[node][1]} - inside)


def _can_be_one(graph: Graph, members: set[int], shapes: list[RowShape]) -> bool:
    """Whether all is about the same rows, and arrays that are read have one axis of them."""
    read = [shapes[k] for k in _inputs(graph, members)]
    rows = {shapes[k].masks for k in members} | {one.masks for one in read if one.size}
    plain = not any(_is_of_all_rows(graph, k) for k in members)
    return len(rows) == 1 and plain and all(one.axis is not None or not one.size for one in read)


def _as_one(
    graph: Graph, members: list[int], shapes: list[RowShape], exact: int | None
) -> list[Any]:
    """The operation of several; what they read are its columns."""
    inputs = _inputs(graph, members)
    place = {node: k for k, node in enumerate([*inputs, *members])}
    nodes: list[Any] = [["column", [], {"column": k}] for k in range(len(inputs))]
    for node in members:
        op, read, given = graph.nodes[node]
        nodes.append([op, [place[k] for k in read], given])
    return [
        "in_blocks",
        inputs,
        {
            "nodes": nodes,
            "kinds": [graph.kinds[k] for k in place],
            "axes": [-1 if shapes[k].axis is None else shapes[k].axis for k in inputs],
            "rests": [shapes[k].rest for k in place],
            "single": exact not in shapes[members[-1]].masks,
            "rows": rows_at_once((shapes[k] for k in members), WIDE_NUMBERS, 1),
        },
    ]


def has_single_sums(graph: Graph) -> bool:
    """Whether an operation on blocks has sums of exponentials that may be in single precision."""
    return any(
        op == "in_blocks" and given["single"] and any(one == "exp" for one, _, _ in given["nodes"])
        for op, _, given in graph.nodes
    )
