"""The sharp density of the training rows that reasons of the default detector take beside its own.

The densities of the default detector are smooth, which ranks rows well. Which entry of a row is
wrong, the correlations of the columns say better, and these are in a stack of mixtures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline, make_pipeline

from skebm._validation import draw_seed, n_rows, take_rows
from skebm.base.processes import lock_of
from skebm.estimators.outlier.statistics import measure
from skebm.estimators.queries.tractable import TractableDensity

# Most rows of the table, and most entries of its encoded columns, that the density is fitted to.
MOST_ROWS, MOST_ENTRIES = 2000, 400_000
# Share of them, the least likely by the model, that it is fitted without: those are the rows of the
# table whose reasons are asked for, and a kernel at such a row would find it normal.
LEFT_OUT = 0.05


def encode_sample(
    model: Pipeline,
    X: Any,
    weight: np.ndarray | None,
    trimmed: float,
    random: np.random.RandomState,
) -> dict[str, Any]:
    """A sample of the rows as the encoder of a fitted default model gives them, to fit to later.

    Without those that are least likely by the model, the fraction `LEFT_OUT` or that `trimmed`.
    """
    possible = np.arange(n_rows(X)) if weight is None else np.flatnonzero(weight)
    order = random.permutation(len(possible))[:MOST_ROWS]
    index = np.sort(possible[order])
    some = take_rows(X, index)
    rows = np.asarray(model[:-1].transform(some), dtype=np.float64)
    value = measure("log_density", model[-1], rows)
    kept = np.argsort(np.argsort(value, kind="stable")) >= int(max(trimmed, LEFT_OUT) * len(value))
    rows, index = rows[kept], index[kept]
    most = max(1, MOST_ENTRIES // max(1, rows.shape[1]))
    rows, index = rows[:: -(-len(rows) // most)], index[:: -(-len(rows) // most)]
    return {
        "rows": rows,
        "weight": None if weight is None else np.asarray(weight, dtype=np.float64)[index],
        "seed": draw_seed(random),
        "density": None,
    }


def sharp_density(detector: Any, stored: dict[str, Any], model: Pipeline) -> Pipeline:
    """A pipeline of the encoder of a model and a stack, fitted to stored rows on first need."""
    with lock_of(detector):
        if stored["density"] is None:
            density = TractableDensity(random_state=stored["seed"])
            stored["density"] = density.fit(stored["rows"], sample_weight=stored["weight"])
            stored["rows"] = stored["weight"] = None
    return make_pipeline(*model[:-1], stored["density"])
