"""What densities, classifiers and products of densities compute for rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import Clamp
from skebm.estimators.neural.jem import JEMClassifier, logits_of
from skebm.estimators.queries.densities import log_normaliser
from skebm.estimators.tables.blocks import NumberBlock
from skebm.estimators.tables.table import Table, is_far
from skebm.export.columns import EnergyRows, InputColumns, rows_of_table
from skebm.export.graph import ExportError, Graph, Node
from skebm.export.tracing import traced

# Entries of all hidden states, beside the columns of a row, up to which they are summed over.
MOST_ENTRIES = 1_000_000
# Values that differ by less, relative to their size, are equal: by the rounding of models in double
# and in single precision. Rows of few states are as likely as the threshold, which is that of one
# of them, and calibration rows as their own scores.
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-6}


# By how much sums of exponentials in single precision may change log p, in nats, and a statistic
# that follows from it, relative to its size.
OF_SINGLE, STATISTIC_OF_SINGLE = 2e-7, 1e-5


class Output(NamedTuple):
    """What is asked of rows.

    Attributes
    ----------
    node : Node
    missing : bool
        Whether rows with missing entries have it.
    wide : bool
        Whether it is an array with several columns.
    doubt : Node or None
        Of which rows single precision does not tell the class, the p-value or the statistic.
    """

    node: Node
    missing: bool = False
    wide: bool = False
    doubt: Node | None = None


Outputs = dict[str, Output]
# Names of what may be asked.
OUTPUTS = ("log_density", "energy", "predict", "proba", "p_value", "transform", "decision")


def energy_rows(graph: Graph, model: Any, frame: InputColumns) -> EnergyRows:
    """Rows of the energy of a model."""
    return rows_of_table(graph, model._recipe.table, vars(model).get("_coding"), frame)


def trace_rows(
    graph: Graph, model: Any, function: Callable[[Any, Tensor], Tensor], x: Node, energy: Any = None
) -> Node:
    """What ``function(energy, x)`` computes for rows x of the energy of a model."""
    energy = copy.deepcopy(model.energy_ if energy is None else energy).cpu()
    n, dtype = energy.domain.n_columns, next(energy.parameters()).dtype
    graph.rounding = max(graph.rounding, ROUNDING[dtype])
    row = torch.as_tensor(model._reference[0, :n], dtype=dtype, device="cpu")
    if dtype == torch.float32:  # on the same side of the splits of trees
        x = graph.apply("cast", x, to="single")
    return traced(graph, lambda x: function(energy, x), [(x, row)], type(model).__name__)


# ------------------------------------------------------------------------------
# Densities
# ------------------------------------------------------------------------------


def density_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """Energy, log-likelihood and the threshold of a density with one log Z."""
    rows, table = energy_rows(graph, model, frame), model._recipe.table
    energy = trace_rows(graph, model, table.row_energy, rows.x) + table.log_volume
    known = ~rows.x.isnan()
    summed = _energy_of_known(graph, model, rows.x, known)
    if summed is not None:
        energy = _by_completeness(graph, energy, summed, known)
    if rows.impossible is not None:
        energy = graph.apply("where", rows.impossible, np.inf, energy)
    missing = summed is not None
    found = {"energy": Output(energy, missing)}
    found |= threshold_outputs(graph, -energy, -model.threshold_, missing)
    found |= log_density_outputs(model, energy, missing)
    if missing and "log_density" in found and model.partition is not None:
        nothing = ~known.reduce("any")
        log_density = graph.apply("where", nothing, 0.0, found["log_density"].node)
        found["log_density"] = Output(log_density, missing)
    return found


def log_density_outputs(model: Any, energy: Node, missing: bool = False) -> Outputs:
    """Log-likelihoods by energies; nothing where log Z does not exist."""
    try:
        log_z = model.log_partition_
    except ValueError:  # which `score_samples` raises; energies and classes are known nevertheless
        return {}
    return {"log_density": Output(-energy - log_z, missing)}


def difference_node(graph: Graph, values: Node, reference: Any) -> Node:
    """values - reference; 0 where they are equal up to rounding, or equal infinities."""
    reference = graph.node(reference)
    same = graph.apply("abs", values - reference) <= rounding_of(graph, values)
    return graph.apply("where", values.equals(reference) | same, 0.0, values - reference)


def rounding_of(graph: Graph, values: Node) -> Node:
    """By how much a value and the one that a fit has kept of an equal row may differ."""
    size = graph.apply("maximum", graph.apply("abs", values), 1.0) * graph.rounding
    return graph.apply("where", graph.apply("isinf", values), 0.0, size)


def threshold_outputs(
    graph: Graph, values: Node, threshold: float, missing: bool = False
) -> Outputs:
    """By how much statistics exceed a threshold, and the classes that follow."""
    doubt = graph.apply("abs", values - threshold) <= error_of_single(graph, values)
    decision = difference_node(graph, values, threshold)
    return decision_outputs(graph, decision, missing, doubt)


def with_doubt(outputs: Outputs, doubt: Node) -> Outputs:
    """Outputs of rows of which more are in doubt."""
    return {
        name: one._replace(doubt=doubt if one.doubt is None else one.doubt | doubt)
        for name, one in outputs.items()
    }


def error_of_single(graph: Graph, values: Node) -> Node:
    """By how much statistics may be changed by sums in single precision."""
    return graph.apply("maximum", graph.apply("abs", values), 1.0) * STATISTIC_OF_SINGLE


def decision_outputs(graph: Graph, decision: Node, missing: bool, doubt: Node) -> Outputs:
    """The decision of a detector, and +1 for inliers, -1 for outliers."""
    predicted = graph.apply("where", decision >= 0.0, np.int64(1), np.int64(-1))
    found = {"decision": Output(decision, missing), "predict": Output(predicted, missing)}
    return {name: one._replace(doubt=doubt) for name, one in found.items()}


def rbm_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """The same, and the features of an RBM."""
    found = density_outputs(graph, model, frame)
    rows = energy_rows(graph, model, frame)
    means, n = model._recipe.family.units.means, model._n_features_out
    features = trace_rows(graph, model, lambda energy, x: means(energy, x)[:, :n], rows.x)
    return found | {"transform": Output(features, wide=True)}


def _by_completeness(graph: Graph, complete: Node, of_known: Callable[[Node], Node], known: Node):
    """Of complete rows one thing, of the others another, each computed for these alone."""
    holes = ~known.reduce("all")
    rest = graph.apply("compress", complete, ~holes)
    return graph.apply("merge", holes, of_known(holes), rest)


def _energy_of_known(
    graph: Graph, model: Any, x: Node, known: Node
) -> Callable[[Node], Node] | None:
    """The energy of the known entries of the rows of a mask; None where it has no exact sum."""
    energy, table = copy.deepcopy(model.energy_).cpu(), model._recipe.table
    dtype = next(energy.parameters()).dtype
    hidden = getattr(energy, "hidden_domain", None)  # of RBMs
    states = math.inf if hidden is None else hidden.n_states
    if states * energy.domain.n_columns > MOST_ENTRIES:
        return None
    (h,) = energy.hidden_domain.enumerate(int(states), dtype=dtype, device="cpu")

    def log_sum(x: Tensor, known: Tensor) -> Tensor:
        n, d = x.shape
        together = [one[:, None].expand(n, len(h), d).reshape(-1, d) for one in (known, x)]
        hidden = (x.new_zeros(n, 1, 1) + h).reshape(-1, h.shape[1])
        value = -energy.hidden_energy(hidden, clamp=Clamp(*together))
        return value.view(n, len(h)).logsumexp(1)

    def of_known(mask: Node) -> Node:
        at, of = graph.apply("compress", x, mask), graph.apply("compress", known, mask)
        row = torch.as_tensor(model._reference[0], dtype=h.dtype)
        some = [(graph.apply("where", of, at, 0.0), row), (of, row > -math.inf)]
        return log_volumes(table, of) - traced(graph, log_sum, some, type(model).__name__)

    try:
        of_known(graph.apply("isnan", x).reduce("any"))
    except ExportError:
        return None
    return of_known


def log_volumes(table: Table, known: Node) -> Any:
    """Log volume, in the units of the data, of the known entries of rows."""
    weight = np.zeros(sum(table.widths))
    for block, place in table.places():
        if isinstance(block, NumberBlock):
            weight[place] = np.log(block.units.scale)
    return known.cast("f") @ weight if weight.any() else 0.0


# ------------------------------------------------------------------------------
# Classifiers
# ------------------------------------------------------------------------------


def classifier_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """Energy, log-likelihood, class probabilities and classes of a classifier with log Z."""
    rows, table = energy_rows(graph, model, frame), model._recipe.table
    energy = trace_rows(graph, model, table.row_energy, rows.x) + table.log_volume
    if isinstance(model, JEMClassifier):
        logits = trace_rows(graph, model, logits_of, rows.x)
        total = graph.logsumexp(logits, keepdims=True)
        logits = logits - total * (1 - model.power_)
    else:
        trained = model._energy_of_net
        logits = trace_rows(graph, model, lambda e, x: e.class_logits(x), rows.x, trained)
    found = {"energy": Output(energy)} | log_density_outputs(model, energy)
    return found | class_outputs(graph, model.classes_, logits)


def class_outputs(graph: Graph, classes: np.ndarray, logits: Node) -> Outputs:
    """Probabilities and classes by logits, (n, K)."""
    total = graph.logsumexp(logits, keepdims=True)
    place = graph.apply("argmax", logits, axis=1)
    two = len(classes) == 2
    decision = logits.column(1) - logits.column(0) if two else logits
    return {
        "proba": Output(graph.apply("exp", logits - total), wide=True),
        "predict": Output(graph.apply("take", plain_classes(classes), place, axis=0)),
        "decision": Output(decision, wide=not two),
    }


def density_classifier_outputs(
    graph: Graph, model: Any, frame: InputColumns, outputs_of: Callable[..., Outputs]
) -> Outputs:
    """Class probabilities by a density for each class."""
    if model.densities_ is None:
        raise ExportError(
            "A density of rows beside their class is asked for each class: "
            'pass label="separate" for one density of each class.'
        )
    parts = [outputs_of(graph, one, frame) for one in model.densities_]
    if any("log_density" not in part for part in parts):
        raise ExportError("The density of a class has no log Z.")
    joint = graph.side_by_side([part["log_density"].node for part in parts])
    prior = np.log(model.class_prior_)
    logits = joint * float(model.power_) + prior
    known = ~(joint.isnan() | graph.apply("isinf", joint))
    logits = graph.apply("where", known.reduce("any", keepdims=True), logits, prior)
    found = class_outputs(graph, model.classes_, logits)
    first, second = (graph.apply("kth_largest", logits, k=k) for k in (1, 2))
    doubt = first - second <= error_of_single(graph, first)
    return {"proba": found["proba"], "predict": found["predict"]._replace(doubt=doubt)}


def plain_classes(classes: np.ndarray) -> np.ndarray:
    """Classes as an array that a file without pickles holds."""
    if classes.dtype.kind in "biufU":
        return classes
    if all(isinstance(one, str) for one in classes.tolist()):
        return classes.astype(str)
    raise ExportError("The classes are objects that are no text: use numbers or text as y.")


# ------------------------------------------------------------------------------
# Densities of known form, and their products
# ------------------------------------------------------------------------------


def tractable_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """Log p(x) of a distribution of known form."""
    coding, table = vars(model).get("_coding"), model._table
    if table.discrete:
        rows = rows_of_table(graph, table, coding, frame)
    else:
        rows = EnergyRows(frame.several(list(range(model.n_features_in_)), None), None)
    like = torch.zeros(sum(table.widths), dtype=torch.float64)
    for block, place in table.places():
        for start in np.cumsum([0, *block.widths])[:-1] if max(block.widths) > 1 else []:
            like[place.start + start] = 1.0  # a level
    distribution = copy.deepcopy(model.distribution_)
    found = traced(graph, distribution.log_prob, [(rows.x, like)], repr(distribution))
    far = traced(graph, is_far, [(rows.x, like)], type(model).__name__)
    found = graph.apply("where", found.isnan() & far, -np.inf, found) - table.log_volume
    if rows.impossible is not None:
        found = graph.apply("where", rows.impossible, -np.inf, found)
    return {"log_density": Output(found)}


def product_outputs(
    graph: Graph, model: Any, frame: InputColumns, outputs_of: Callable[..., Outputs]
) -> Outputs:
    """Energy and log-likelihood of a product of densities."""
    pairs = zip(model.weights_, model.experts_.values(), strict=True)
    parts = [
        relative_log_density_node(outputs_of(graph, expert, frame), expert) * float(w)
        for w, expert in pairs
        if w
    ]
    energy = -sum(parts[1:], parts[0])
    return {
        "energy": Output(energy),
        "log_density": Output(-energy - model.log_partition_),
    }


def relative_log_density_node(outputs: Outputs, model: Any) -> Node:
    """Log p(x) up to the constant that `queries/densities.py: relative_log_density` leaves out."""
    if "energy" in outputs:
        return -outputs["energy"].node
    found = outputs["log_density"].node
    constant = log_normaliser(model)
    return found + constant if constant else found


# ------------------------------------------------------------------------------
# Deep belief networks
# ------------------------------------------------------------------------------


def belief_outputs(graph: Graph, model: Any, frame: InputColumns) -> Outputs:
    """Features of a deep belief network, and the likelihood of one with a single layer."""
    first = model.rbms_[0]
    found = rbm_outputs(graph, first, frame)
    if len(model.rbms_) > 1:
        found = {"transform": found["transform"]}
    x = found["transform"].node
    for rbm in model.rbms_[1:]:
        x = rbm_outputs(graph, rbm, InputColumns(graph, rbm.n_features_in_, rows=x))[
            "transform"
        ].node
    keep = ("energy", "log_density") if len(model.rbms_) == 1 else ()
    return {name: found[name] for name in keep} | {"transform": Output(x, wide=True)}
