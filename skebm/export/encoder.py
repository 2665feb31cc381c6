"""What :class:`~skebm.TableEncoder` makes of rows, in a graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skebm.estimators.tables.encoding.dates import DATES, DURATIONS
from skebm.estimators.tables.encoding.donors import TIES, donors_by_column
from skebm.estimators.tables.encoding.levels import UNSEEN, LevelCodes
from skebm.estimators.tables.encoding.numbers import Deviation, Feature
from skebm.export.columns import InputColumns
from skebm.export.graph import Graph, Node
from skebm.export.models import Output, Outputs


def encoder_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """The rows of an encoder as numbers, missing entries as those of the nearest row."""
    codes = _Codes(graph, model, frame)
    parts = []
    if model._scaler is not None:
        numbers = [codes.feature(feature) for feature in model._features]
        x = graph.apply("concat", *numbers, axis=1) if len(numbers) > 1 else numbers[0]
        parts.append((x * model._factor - model._scaler.mean_) / model._scaler.scale_)
    for j, level in model._levels.items():
        parts.append(codes.level(j, level))
    z = graph.apply("concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return {"transform": Output(_complete(graph, z, model._donors), True, True)}


class _Codes:
    """Columns of a table as numbers and codes, each read when it is asked for."""

    def __init__(self, graph: Graph, model: Any, frame: InputColumns):
        self.graph, self.frame, self.model = graph, frame, model
        coding = model._coding
        self.levels = {} if coding is None else coding.levels

    def column(self, j: int, clock: bool = False) -> Node:
        """Numbers, or codes of levels, (n,): NaN where missing, -1 of unseen levels."""
        if j in self.levels:
            return self.frame.codes(j, self.levels[j], unseen=True)
        kind = self.model._notes[j].kind
        if kind in (DATES, DURATIONS):
            what = "duration" if kind == DURATIONS else "clock" if clock else "days"
            return self.frame.times(j, what)
        return self.frame.numbers(j)

    def feature(self, feature: Feature | Deviation) -> Node:
        """The numbers of a feature, (n, k)."""
        graph = self.graph
        if isinstance(feature, Deviation):
            code = self.column(feature.category)
            last = len(feature.means) - 1
            place = graph.apply("where", code.isnan() | (code < 0.0), float(last), code)
            mean = graph.apply("take", feature.means, place.cast("i"), axis=0)
            return self.feature(feature.feature) - graph.apply("unsqueeze", mean, axis=1)
        if feature.kind == "cycle":
            local = self.column(feature.columns[0], clock=True)
            part = graph.apply("mod", local, feature.period) * (2 * np.pi / feature.period)
            return graph.side_by_side([graph.apply(op, part) for op in ("cos", "sin")])
        x = self.column(feature.columns[0])
        if feature.kind != "number":
            x = self.column(feature.columns[1]) - x
        if feature.kind == "order":
            return graph.side_by_side([graph.apply("where", x < 0.0, UNSEEN, 0.0)])
        if feature.span is not None:
            x = self._days_of_fit(x, *feature.span)
        if feature.scale:
            logs = graph.apply("log1p", graph.apply("abs", x) / feature.scale)
            x = graph.apply("sign", x) * logs
        return graph.side_by_side([x])

    def _days_of_fit(self, days: Node, first: float, last: float) -> Node:
        """Days that go on before the first or after the last one, as :func:`days_of_fit`."""
        reach = last - first
        before = (days < first) & (days >= first - reach)
        after = (days > last) & (days <= last + reach)
        return self.graph.apply("where", before | after, (first + last) / 2, days)

    def level(self, j: int, level: LevelCodes) -> Node:
        """The columns of a level, (n, k)."""
        graph, code, last = self.graph, self.column(j), len(level.codes) - 1
        missing = np.full((1, level.codes.shape[1]), np.nan)
        missing[0, -1] = 0.0
        rows = np.concatenate([level.codes, missing])
        place = graph.apply("where", code < 0.0, float(last), code)
        place = graph.apply("where", code.isnan(), float(last + 1), place)
        return graph.apply("take", rows, place.cast("i"), axis=0)


def _complete(graph: Graph, z: Node, donors: np.ndarray) -> Node:
    """Rows whose missing entries are those of the nearest donor, as :func:`complete_by_donors`."""
    graph.needs_double = True
    holes = z.isnan().reduce("any")
    found = _from_donors(graph, graph.apply("compress", z, holes), donors)
    return graph.apply("merge", holes, found, graph.apply("compress", z, ~holes))


def _from_donors(graph: Graph, z: Node, donors: np.ndarray) -> Node:
    have = (~np.isnan(donors)).astype(float)
    y = np.where(have, donors, 0.0)
    missing = z.isnan()
    x, has = graph.apply("where", missing, 0.0, z), (~missing).cast("f")
    total = (x * x) @ have.T - (x @ y.T) * 2.0 + has @ np.square(y).T
    common = has @ have.T
    mean = graph.apply("maximum", total, 0.0) / graph.apply("maximum", common, 1.0)
    distance = graph.apply("where", common.equals(0.0), math.inf, mean)
    parts, order = [], []
    for having, columns in donors_by_column(donors):
        order += columns.tolist()
        if not len(having):
            parts.append(graph.apply("fill", z, shape=[-1, len(columns)], value=0.0))
            continue
        here = distance.columns(having.tolist())
        least = here.reduce("min", keepdims=True)
        near = (here <= least + (least + 1.0) * TIES).cast("f")
        given = donors[np.ix_(having, columns)]
        values = graph.apply("take", given, graph.apply("argmax", near, axis=1), axis=0)
        alone = graph.apply("isinf", least)
        parts.append(graph.apply("where", alone, given.mean(0), values))
    whole = graph.apply("concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return graph.apply("where", missing, whole.columns(np.argsort(order).tolist()), z)
