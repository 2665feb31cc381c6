"""Which rule makes a graph of which estimator, and which estimators have none."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from sklearn.frozen import FrozenEstimator
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import skebm.estimators as ours
from skebm._validation import check_is_fitted
from skebm.estimators.storage import package_version
from skebm.estimators.tables.encoding.dates import DATES, DURATIONS
from skebm.estimators.tables.table import shown_names
from skebm.export.blocks import has_single_sums, in_blocks
from skebm.export.columns import InputColumns
from skebm.export.detectors import detector_outputs, surprise_outputs
from skebm.export.encoder import encoder_outputs
from skebm.export.graph import ExportError, Graph, Node
from skebm.export.models import (
    OUTPUTS,
    Output,
    Outputs,
    belief_outputs,
    classifier_outputs,
    density_classifier_outputs,
    density_outputs,
    product_outputs,
    rbm_outputs,
    tractable_outputs,
)
from skebm.export.others import mixture_outputs, scaler_outputs

# Estimators that cannot be exported: why, and what to do instead.
REFUSED = {
    ours.ConditionalDensity: "each condition has a log Z of its own, which is estimated by chains",
    ours.DeepBoltzmannMachine: "its hidden layers are found by steps until they converge",
    ours.DensityImputer: "it draws what is missing",
    ours.DensityRegressor: "it integrates a density over each row's values of y",
    ours.GatedRBM: "it takes pairs of rows",
    ours.HopfieldMemory: "it recalls patterns by steps until they converge",
    ours.OutlierEnsemble: "it merges detectors of any package: export these one by one",
    ours.SequenceOutlierDetector: "it scores sequences, not rows",
    ours.StreamMonitor: "it learns from the rows that it scores",
    ours.TemporalRBM: "it scores sequences, not rows",
    ours.TemporalRBMClassifier: "it scores sequences, not rows",
    ours.Windows: "it makes rows of a series, whose neighbours no row has",
}


def outputs_of(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """What a model computes for the rows of a frame, by name."""
    model = plain_model(model)
    check_has_rule(model)
    check_is_fitted(model)
    for kind, rule in RULES.items():
        if isinstance(model, kind):
            return rule(graph, model, frame)
    raise AssertionError


def plain_model(model: Any) -> Any:
    """The model that a frozen estimator or a search holds, or the model itself."""
    while isinstance(model, FrozenEstimator) or hasattr(model, "best_estimator_"):
        model = model.estimator if isinstance(model, FrozenEstimator) else model.best_estimator_
    return model


def check_has_rule(model: Any) -> None:
    """Raise `ExportError` for a model without a rule."""
    for kind, why in REFUSED.items():
        if isinstance(model, kind):
            raise ExportError(
                f"{type(model).__name__} cannot be exported, as {why}. Score rows in Python, with "
                "a model stored by skops or pickle."
            )
    if not isinstance(model, tuple(RULES)):
        raise ExportError(
            f"{type(model).__name__} has no rule of export: it is for estimators of skebm, and "
            "pipelines of them, StandardScaler and GaussianMixture. Score rows in Python, with a "
            "model stored by skops or pickle."
        )


def _pipeline_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """The last step, of what the steps before make of rows."""
    before = [step for _, step in model.steps[:-1] if step not in (None, "passthrough")]
    missing = True
    for step in before:
        found = outputs_of(graph, step, frame)
        if "transform" not in found:
            raise ExportError(f"{type(step).__name__} has no transform in a graph.")
        rows, missing = found["transform"].node, missing and found["transform"].missing
        frame = InputColumns(graph, len(step.get_feature_names_out()), rows=rows)
    found = outputs_of(graph, model.steps[-1][1], frame)
    return {k: v._replace(missing=missing) for k, v in found.items()} if before else found


RULES: dict[Any, Callable[[Graph, Any, InputColumns], Outputs]] = {
    Pipeline: _pipeline_outputs,
    StandardScaler: scaler_outputs,
    GaussianMixture: mixture_outputs,
    ours.TableEncoder: encoder_outputs,
    ours.RBMEstimator: rbm_outputs,
    ours.NeuralDensity: density_outputs,
    ours.BoltzmannMachineDensity: density_outputs,
    ours.JEMClassifier: classifier_outputs,
    ours.RBMClassifier: classifier_outputs,
    ours.TractableDensity: tractable_outputs,
    ours.ProductOfDensities: functools.partial(product_outputs, outputs_of=outputs_of),
    ours.RowSurprise: functools.partial(surprise_outputs, outputs_of=outputs_of),
    ours.EnergyOutlierDetector: functools.partial(detector_outputs, outputs_of=outputs_of),
    ours.DeepBeliefNetwork: belief_outputs,
    ours.DensityClassifier: functools.partial(density_classifier_outputs, outputs_of=outputs_of),
}


def _reads_columns(model: Any) -> bool:
    """Whether a model, or its first step, takes each column by itself: text, categories, dates."""
    model = plain_model(model)
    if isinstance(model, Pipeline):
        return _reads_columns(model.steps[0][1])
    if isinstance(model, ours.EnergyOutlierDetector):
        return _reads_columns(model.estimators_[0])
    if isinstance(model, ours.DensityClassifier):
        return model.densities_ is not None and _reads_columns(model.densities_[0])
    has_dates = isinstance(model, ours.TableEncoder) and any(
        note.kind in (DATES, DURATIONS) for note in model._notes
    )
    return has_dates or getattr(model, "_coding", None) is not None


def description(model: Any, single: bool = False) -> tuple[Graph, dict[str, Any]]:
    """The graph of a fitted model, and the rest of what a scorer needs, as plain values.

    With `single` wide sums of exponentials may be in single precision, but of rows whose class or
    p-value depends on what that leaves out.

    Raises
    ------
    NotFittedError
    ExportError
        If the model, or a part of it, has no translation.
    """
    model = plain_model(model)
    check_has_rule(model)
    check_is_fitted(model)
    graph = Graph()
    names = getattr(model, "feature_names_in_", None)
    n_columns = int(model.n_features_in_)
    if names is None and _reads_columns(model):
        names = shown_names(None, n_columns)
    names = None if names is None else [str(name) for name in names]
    found, exact = outputs_of(graph, model, InputColumns(graph, n_columns, names)), None
    doubts = {one.doubt for one in found.values() if one.doubt is not None}
    if single and doubts:
        exact = functools.reduce(operator.or_, doubts)
        again = outputs_of(graph, model, InputColumns(graph, n_columns, names, mask=exact))
        found = {
            name: one if one.doubt is None else _exact_where(graph, exact, one, again[name])
            for name, one in found.items()
        }
    nodes = [one.node.number for one in found.values()]
    graph, numbers, rows = in_blocks(graph, nodes, None if exact is None else exact.number)
    if exact is not None and not has_single_sums(graph):
        return description(model)
    head = {
        "format": 1,
        "skebm": package_version(),
        "estimator": type(model).__name__,
        "rows": rows,
        "outputs": {
            name: {
                "node": numbers[one.node.number],
                "missing": one.missing,
                "wide": one.wide,
            }
            for name in OUTPUTS
            if (one := found.get(name))
        },
    }
    return graph, head


def _exact_where(graph: Graph, mask: Node, one: Output, exact: Output) -> Output:
    """An output, of some rows as it was computed for these alone."""
    others = graph.apply("compress", one.node, ~mask)
    return one._replace(node=graph.apply("merge", mask, exact.node, others))
