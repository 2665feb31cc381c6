"""Fitted models as files that are scored without skebm and torch: by NumPy alone, or as ONNX."""

from __future__ import annotations

from skebm.export.graph import ExportError
from skebm.export.scorer import Scorer, load_scorer
from skebm.export.writing import to_numpy, to_onnx

__all__ = ["ExportError", "Scorer", "load_scorer", "to_numpy", "to_onnx"]
