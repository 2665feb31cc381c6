"""What is computed for rows by detectors: surprise, thresholds, conformal p-values."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from skebm.estimators.outlier.bulk import FARTHEST, RESOLUTION, TINY, Bulk, windows_of
from skebm.estimators.outlier.product import ProductOfDensities
from skebm.estimators.outlier.surprise import (
    RELATIVE_TOLERANCE,
    NearestRow,
    RankTail,
    UnseenValues,
)
from skebm.estimators.outlier.thresholds import ClassThresholds, ConformalThreshold
from skebm.estimators.queries.densities import last_step, log_normaliser
from skebm.export.columns import InputColumns
from skebm.export.graph import ExportError, Graph, Node
from skebm.export.models import (
    OF_SINGLE,
    STATISTIC_OF_SINGLE,
    Output,
    Outputs,
    decision_outputs,
    difference_node,
    error_of_single,
    relative_log_density_node,
    rounding_of,
    threshold_outputs,
    with_doubt,
)

OutputsOf = Callable[[Graph, Any, InputColumns], Outputs]
# Entries of a table of pairs of values, up to which it is one.
MOST_PAIRS = 100_000

# ------------------------------------------------------------------------------
# Surprise
# ------------------------------------------------------------------------------


def surprise_outputs(
    graph: Graph, model: Any, frame: InputColumns, outputs_of: OutputsOf
) -> Outputs:
    """Minus the surprise of rows, and its threshold."""
    density = model.density_
    experts = (
        list(density.experts_.values()) if isinstance(density, ProductOfDensities) else [density]
    )
    views = [
        relative_log_density_node(outputs_of(graph, expert, frame), expert) for expert in experts
    ]
    x = frame.several(list(range(model.n_features_in_)), None)
    distance, itself = _nearest(graph, model._nearest, x)
    views.append(-graph.apply("log", distance + model._nearest.offset))
    n = len(views)
    if model._bulk is not None:
        views += [-one for one in _distances_from_bulk(graph, model._bulk, x)]

    def mean(tails: list[RankTail]) -> Node:
        pairs = zip(tails, views, strict=True)
        nats = [_tail_surprise(graph, tail, view) for tail, view in pairs]
        found = functools.reduce(operator.add, nats[:n]) / float(n)
        if len(nats) > n:
            far = _mean_of_two_highest(graph, nats[n:])
            mixed = found + (far - found) * model._weight_of_bulk
            found = graph.apply("where", graph.apply("isinf", found), found, mixed)
        return found

    surprise = graph.apply("where", itself, mean(model._own_tails), mean(model._tails))
    surprise = surprise + _unseen(graph, model._unseen, x, itself)
    found = {"log_density": Output(-surprise)}
    found |= threshold_outputs(graph, -surprise, model.offset_)
    steep = [
        functools.reduce(operator.or_, map(functools.partial(_are_steep, graph), tails, views))
        for tails in (model._own_tails[: n - 1], model._tails[: n - 1])  # of sums: not of distances
    ]
    return with_doubt(found, (itself & steep[0]) | (~itself & steep[1]))


def _nearest(graph: Graph, nearest: NearestRow, x: Node) -> tuple[Node, Node]:
    """Distance to the nearest row, and whether a row is one of them, (n,) each."""
    graph.needs_double = True
    rows = nearest.rows
    scaled = (x - nearest.centre) / nearest.unit
    n = min(2, len(rows))
    # In one product of matrices: sums of wide arrays take as long as these.
    ones = graph.apply("fill", scaled, shape=[-1, 1], value=1.0)
    by = np.concatenate([rows.T * -2.0, np.square(rows).sum(1)[None]])
    score = graph.apply("concat", scaled, ones, axis=1) @ by
    place = graph.apply("smallest", score, k=n)
    near = graph.apply("take", rows, place, axis=0)  # (n, 2, d)
    difference = near - graph.apply("unsqueeze", scaled, axis=1)
    distance = graph.apply("sqrt", (difference * difference).reduce("sum", 2))
    low, high = distance.reduce("min"), distance.reduce("max")
    alone = high > 0.0 if len(rows) > 1 else graph.node(np.array(True))
    itself = low.equals(0.0) & alone
    return graph.apply("where", itself, high, low), itself


def _distances_from_bulk(graph: Graph, bulk: Bulk, x: Node) -> list[Node]:
    """Logs of the distances of rows from clusters, windows and core, as :meth:`Bulk.distances`."""
    z = graph.apply("minimum", (x - bulk.centre) / bulk.unit, FARTHEST)
    z = graph.apply("maximum", z, -FARTHEST)
    core = (z - bulk.middle) @ bulk.axes
    core = (core * core).reduce("sum")
    own, square = (z * z).reduce("sum", keepdims=True), []
    for centres in bulk.clusters:
        apart = own + (z @ (centres.T * -2.0) + np.square(centres).sum(1))
        square.append(graph.apply("sqrt", graph.apply("maximum", apart.reduce("min"), 0.0)))
    clusters = functools.reduce(operator.add, square) / float(len(square))
    widths = [_log_width(graph, column, z.column(j)) for j, column in enumerate(bulk.columns.T)]
    logs = (graph.apply("log", one + TINY) for one in (clusters, core))
    return [next(logs), functools.reduce(operator.add, widths), next(logs)]


def _log_width(graph: Graph, column: np.ndarray, x: Node) -> Node:
    """Log of the narrowest window of the values of a column around each value, (n,)."""
    size, begins = windows_of(len(column))
    place = graph.apply("searchsorted", column, x, right=False)
    low = graph.apply("unsqueeze", place, axis=1) - begins
    low = graph.apply("minimum", graph.apply("maximum", low, 0), len(column) - size - 1)
    own = graph.apply("unsqueeze", x, axis=1)
    first, last = (graph.apply("take", column, at, axis=0) for at in (low, low + np.int64(size)))
    reach = graph.apply("maximum", own - first, last - own)
    return graph.apply("log", reach.reduce("min") + RESOLUTION)


def _mean_of_two_highest(graph: Graph, nats: list[Node]) -> Node:
    least = functools.reduce(lambda a, b: graph.apply("minimum", a, b), nats)
    return (functools.reduce(operator.add, nats) - least) / 2.0


def _tail_surprise(graph: Graph, tail: RankTail, values: Node) -> Node:
    """Nats of each value, as :meth:`RankTail.surprise`."""
    beyond = graph.apply("maximum", float(tail.values[0]) - values, 0.0) / tail.scale
    return _interpolate(graph, values, tail.values, tail.nats) + beyond


def _are_steep(graph: Graph, tail: RankTail, values: Node) -> Node:
    """Whether nats of values, or of those beside, depend on what single precision lacks, (n,)."""
    nats_a_unit = np.concatenate(
        [[-1 / tail.scale], np.diff(tail.nats) / np.diff(tail.values), [0.0]]
    )
    steep = np.abs(nats_a_unit) * OF_SINGLE > STATISTIC_OF_SINGLE
    near = np.convolve(steep, [True, True, True], mode="same")
    place = graph.apply("searchsorted", tail.values, values, right=True)
    return graph.apply("take", near, place, axis=0)


def _interpolate(graph: Graph, x: Node, at: np.ndarray, values: np.ndarray) -> Node:
    """Piecewise linear interpolation, as :func:`numpy.interp`."""
    if len(at) == 1:
        return graph.apply("where", x.isnan(), np.nan, float(values[0]))
    place = graph.apply("searchsorted", at, x, right=True) - np.int64(1)
    place = graph.apply("minimum", graph.apply("maximum", place, 0), len(at) - 2)
    slope = np.diff(values) / np.diff(at)
    start, nats, rise = (
        graph.apply("take", one, place, axis=0) for one in (at[:-1], values[:-1], slope)
    )
    found = rise * (x - start) + nats
    found = graph.apply("where", x <= float(at[0]), float(values[0]), found)
    return graph.apply("where", x >= float(at[-1]), float(values[-1]), found)


def _unseen(graph: Graph, unseen: UnseenValues, x: Node, itself: Node) -> Node:
    """Nats of the rarest thing of each row that the table does not hold, (n,)."""
    codes = {j: _code(graph, x.column(j), levels) for j, levels in unseen.levels.items()}
    known: dict[int, Node] = {}
    found = graph.apply("fill", itself, shape=[-1], value=0.0)
    for event in unseen.events:
        seen = _are_seen(graph, [codes[j] for j in event.columns], event, unseen, itself)
        if len(event.columns) == 1:
            known[event.columns[0]] = seen
            new = ~seen
        else:
            new = ~seen & functools.reduce(lambda a, b: a & b, [known[j] for j in event.columns])
        if event.nats:
            nats = graph.apply("where", new, float(event.nats), 0.0)
            found = graph.apply("maximum", found, nats)
    return found


def _code(graph: Graph, column: Node, levels: np.ndarray) -> Node:
    """Number of each value among the levels of its column, -1 where it is none of them, (n,)."""
    n = len(levels)
    place = graph.apply("searchsorted", levels, column, right=False)
    above = graph.apply("minimum", graph.apply("maximum", place, 1), max(n - 1, 1))
    below = above - np.int64(1)
    lower = graph.apply("take", levels, below, axis=0)
    upper = graph.apply("take", levels, graph.apply("minimum", above, n - 1), axis=0)
    nearest = graph.apply("where", (column - lower) <= (upper - column), below, above)
    nearest = graph.apply("minimum", nearest, n - 1)
    most = RELATIVE_TOLERANCE * float(np.abs(levels[[0, -1]]).max())
    apart = graph.apply("abs", graph.apply("take", levels, nearest, axis=0) - column)
    return graph.apply("where", apart <= most, nearest, np.int64(-1))


def _are_seen(
    graph: Graph, codes: list[Node], event: Any, unseen: UnseenValues, itself: Node
) -> Node:
    """Whether another row than the one that a row may be has its values, (n,)."""
    place = codes[0] + np.int64(1)
    known = event.known[:, 0] + 1
    size = len(unseen.levels[event.columns[0]]) + 1
    for k, j in enumerate(event.columns[1:], 1):
        # Places among the beginnings of combinations, so that numbers stay small.
        size_j = len(unseen.levels[j]) + 1
        place = place * np.int64(size_j) + (codes[k] + np.int64(1))
        known = known * size_j + event.known[:, k] + 1
        size *= size_j
        if k < len(event.columns) - 1:
            distinct, known = np.unique(known, return_inverse=True)
            place = _place_among(graph, place, distinct)
            size = len(distinct) + 1
            place, known = place + np.int64(1), known + 1
    if size <= MOST_PAIRS:
        seen = np.zeros((2, size), dtype=bool)
        seen[0, known], seen[1, known[event.repeated]] = True, True
        of_all, of_others = (graph.apply("take", one, place, axis=0) for one in seen)
    else:
        of_all, of_others = (
            _place_among(graph, place, np.unique(one)) >= np.int64(0)
            for one in (known, known[event.repeated])
        )
    return graph.apply("where", itself, of_others, of_all)


def _place_among(graph: Graph, values: Node, distinct: np.ndarray) -> Node:
    """Places of values among distinct ones, in order; -1 where they are none of them."""
    if not len(distinct):
        return graph.apply("where", values.equals(values), np.int64(-1), np.int64(-1))
    place = graph.apply("searchsorted", distinct, values, right=False)
    place = graph.apply("minimum", place, len(distinct) - 1)
    same = graph.apply("take", distinct, place, axis=0).equals(values)
    return graph.apply("where", same, place, np.int64(-1))


# ------------------------------------------------------------------------------
# Detectors
# ------------------------------------------------------------------------------


def detector_outputs(
    graph: Graph, model: Any, frame: InputColumns, outputs_of: OutputsOf
) -> Outputs:
    """The statistic, its threshold, and p-values of a detector."""
    statistic = model._param("statistic")
    if isinstance(model._threshold, ClassThresholds):
        raise ExportError(
            "Thresholds by class have no translation: fit the detector with by_class=False, or "
            "score rows in Python."
        )
    outputs = [outputs_of(graph, one, frame) for one in model.estimators_]
    pairs = list(zip(outputs, model.estimators_, strict=True))
    values = [_statistic(statistic, found, one) for found, one in pairs]
    threshold, missing = model._threshold, all(one.missing for one in values)
    nodes = [one.node for one in values]
    if isinstance(threshold, ConformalThreshold):
        doubt = _p_value_doubt(graph, threshold, nodes)
        found = decision_outputs(graph, _margin(graph, threshold, nodes), missing, doubt)
        found["p_value"] = Output(_p_values(graph, threshold, nodes), missing, doubt=doubt)
    else:
        found = threshold_outputs(graph, nodes[0], threshold.value, missing)
    if len(nodes) > 1:
        score = found["decision"].node + model.offset_
    else:
        constant = log_normaliser(model.estimators_[0]) if statistic == "log_density" else 0.0
        score = nodes[0] - constant if constant else nodes[0]
    found["log_density"] = Output(score, missing)
    steep = [one.doubt for one in values if one.doubt is not None]
    return with_doubt(found, functools.reduce(operator.or_, steep)) if steep else found


def _statistic(statistic: Any, outputs: Outputs, model: Any) -> Output:
    """The statistic of a detector, higher for normal rows."""
    if statistic == "surprise":
        return outputs["log_density"]
    if statistic == "log_density":
        name = "energy" if "energy" in outputs else "log_density"
        return Output(
            relative_log_density_node(outputs, last_step(model)[1]), outputs[name].missing
        )
    if statistic == "max_proba" and "proba" in outputs:
        return Output(outputs["proba"].node.reduce("max"), outputs["proba"].missing)
    raise ExportError(
        f"statistic={statistic!r} has no translation: use 'log_density', or score rows in Python."
    )


def _p_values(graph: Graph, threshold: ConformalThreshold, values: list[Node]) -> Node:
    # Equal values count as at most this one, which rounding must not tell apart.
    values = [one + rounding_of(graph, one) for one in values]
    if threshold.weight is not None:
        place = graph.apply("searchsorted", threshold.parts[0], values[0], right=True)
        below = graph.apply("take", threshold._weight_below, place, axis=0)
        return (below + 1.0) / (threshold.n_effective + 1)
    pairs = zip(threshold.parts, values, strict=True)
    places = [graph.apply("searchsorted", part, value, right=True) for part, value in pairs]
    below = functools.reduce(lambda a, b: a + b, places).cast("f")
    return (below + 1.0) / float(threshold.n_rows + 1)


def _p_value_doubt(graph: Graph, threshold: ConformalThreshold, values: list[Node]) -> Node:
    """Whether a calibration row is so near that single precision does not tell which is higher."""
    near = []
    for part, value in zip(threshold.parts, values, strict=True):
        error = error_of_single(graph, value)
        ends = [
            graph.apply("searchsorted", part, end, right=True)
            for end in (value - error, value + error)
        ]
        near.append(ends[0] < ends[1])
    return functools.reduce(lambda a, b: a | b, near)


def _margin(graph: Graph, threshold: ConformalThreshold, values: list[Node]) -> Node:
    """How far the statistic of each row lies above the threshold, (n,)."""
    n_below = threshold.n_below
    if len(threshold.parts) == 1:
        return difference_node(graph, values[0], float(threshold.parts[0][n_below]))
    pairs = zip(threshold.parts, values, strict=True)
    together = [
        difference_node(graph, graph.apply("unsqueeze", value, axis=1), part[: n_below + 1])
        for part, value in pairs
    ]
    both = graph.apply("concat", *together, axis=1)
    return graph.apply("kth_largest", both, k=n_below + 1)
