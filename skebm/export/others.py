"""Estimators of scikit-learn that stand beside those of skebm: scaled columns, normal mixtures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skebm.estimators.queries.densities import precision_factors
from skebm.export.columns import InputColumns
from skebm.export.graph import Graph
from skebm.export.models import Output, Outputs


def scaler_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """Columns as :class:`sklearn.preprocessing.StandardScaler` makes them; NaN stays."""
    x = frame.several(list(range(model.n_features_in_)), None)
    if model.with_mean:
        x = x - model.mean_
    if model.with_std:
        x = x / model.scale_
    return {"transform": Output(x, wide=True)}


def mixture_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """Log p(x), components and their probabilities of a mixture of normal distributions."""
    x = frame.several(list(range(model.n_features_in_)), None)
    logs = []
    for k, factor in enumerate(precision_factors(model)):
        z = x @ factor - model.means_[k] @ factor
        log_det = float(np.linalg.slogdet(factor)[1])
        constant = log_det - len(factor) / 2 * math.log(2 * math.pi)
        logs.append((z * z).reduce("sum") * -0.5 + (constant + math.log(model.weights_[k])))
    together = graph.side_by_side(logs)
    total = graph.logsumexp(together, keepdims=True)
    return {
        "log_density": Output(graph.logsumexp(together)),
        "predict": Output(graph.apply("argmax", together, axis=1)),
        "proba": Output(graph.apply("exp", together - total), wide=True),
    }
