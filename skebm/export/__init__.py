"""Fitted models as files that are scored without skebm and torch: by NumPy alone, or as ONNX."""

from __future__ import annotations

from typing import Any

from skebm.export.graph import ExportError
from skebm.export.rules import description
from skebm.export.scorer import Scorer, load

__all__ = ["ExportError", "Scorer", "load", "to_numpy"]

# Numbers that are held at a time.
MOST_NUMBERS = 4_000_000


def to_numpy(model: Any) -> Scorer:
    graph, head = description(model)
    head |= {
        "width": graph.width,
        "n_columns": graph.n_columns,
        "columns": graph.columns,
        "nodes": graph.nodes,
        "rows": 1000,
    }
    return Scorer(head, graph.arrays)
