"""Models as scorers of NumPy, and as ONNX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from skebm.export.graph import ExportError, Graph, Node, dependencies
from skebm.export.onnx_file import IR_VERSION, ML_OPSET, OPSET, Writer
from skebm.export.rules import description
from skebm.export.scorer import Scorer


def to_numpy(model: Any) -> Scorer:
    """A fitted model as arrays and operations on them, which NumPy alone evaluates.

    The result has the methods of the model: `score_samples`, `energy`, `decision_function`,
    `predict`, `predict_proba`, `p_values` and `transform`, where the model has them. Its method
    `save` writes one ``.npz`` file without pickled objects, which :func:`load_scorer` reads: that
    of skebm, or of a copy of the file ``skebm/export/scorer.py``, where skebm is not installed.

    It computes in float64, also for models of float32, with which results agree to about 1e-5; for
    models of float64 and densities of known form they agree to rounding. The constant log Z is that
    of the model, `log_partition_`. Statistics that differ from a threshold or a calibration row by
    less than the precision of the model (1e-6 of their size in float32) count as equal to it.

    Parameters
    ----------
    model : estimator
        A fitted density, classifier, detector or encoder of skebm, or a pipeline of them.

    Returns
    -------
    Scorer

    Raises
    ------
    sklearn.exceptions.NotFittedError
    ExportError
        If the model, or a part of it, has no translation; it says which, and what else to do.

    See Also
    --------
    to_onnx : The same as ONNX, for other languages.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import TractableDensity
    >>> from skebm.export import to_numpy
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = TractableDensity(random_state=0).fit(X)
    >>> scorer = to_numpy(model)
    >>> scorer.outputs
    ['log_density']
    >>> bool(np.allclose(scorer.score_samples(X), model.score_samples(X), atol=1e-9))
    True
    """
    graph, head = description(model)
    head |= {
        "width": graph.width,
        "n_columns": graph.n_columns,
        "columns": graph.columns,
        "nodes": graph.nodes,
    }
    return Scorer(json.loads(json.dumps(head)), graph.arrays)


def to_onnx(model: Any, outputs: Sequence[str] | None = None, *, dtype: str = "float64") -> Any:
    """A fitted model as an ONNX model, which runtimes of many languages evaluate.

    The inputs are the columns of the frame that the model was fitted to, by name, of shape (n, 1):
    numbers, with NaN where missing, and text of categories, with the empty text where missing. A
    model of arrays has one input ``X`` of shape (n, n_features). The outputs are `log_density`
    (`score_samples`), `energy`, `predict`, `proba`, `p_value`, `transform` and `decision`, where
    the model has them; log Z is a constant.

    What Python refuses is NaN: outputs for rows with missing entries, where these cannot be summed
    out exactly, with 0 or the empty text as prediction.

    Parameters
    ----------
    model : estimator
        As in :func:`to_numpy`.
    outputs : sequence of str or None, default=None
        Names of the outputs; None is all that the model has.
    dtype : {"float64", "float32"}, default="float64"
        Of numbers. Single precision is for hardware without double precision: log p has about six
        digits then. Detectors that compare a row with training rows need double precision.

    Returns
    -------
    onnx.ModelProto
        ``onnx.save(model, path)`` writes it.

    Raises
    ------
    ImportError
        If the package onnx is not installed.
    sklearn.exceptions.NotFittedError
    ExportError
        If the model, or a part of it, has no translation, or lacks an output that is asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import TractableDensity
    >>> from skebm.export import to_onnx
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> exported = to_onnx(TractableDensity("gaussian").fit(X))
    >>> [one.name for one in exported.graph.input], [one.name for one in exported.graph.output]
    (['X'], ['log_density'])
    """
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype={dtype!r} must be 'float64' or 'float32'.")
    graph, head = description(model, single=dtype == "float64")
    known = head["outputs"]
    asked = list(known) if outputs is None else list(outputs)
    for name in asked:
        if name not in known:
            raise ExportError(
                f"{head['estimator']} has no output {name!r}, only {sorted(known)}: pass outputs=."
            )
    if not asked:
        raise ExportError("outputs must hold at least one name.")
    try:
        writer = Writer(graph, dtype)
    except ImportError as error:
        raise ImportError('to_onnx needs the package onnx: pip install "skebm[onnx]".') from error
    if dtype == "float32" and graph.needs_double:
        raise ExportError(
            f"{head['estimator']} asks which training row is the nearest, for which single "
            "precision is not enough: use dtype='float64'."
        )
    nodes = {name: _output_node(graph, known[name]) for name in asked}
    for name, node in nodes.items():
        made = writer.result(node.number)
        writer.nodes.append(writer.onnx.helper.make_node("Identity", [made], [name]))
    return _model(writer, nodes, head)


def _output_node(graph: Graph, output: dict[str, Any]) -> Node:
    """An output, which is unknown for rows with missing entries if it is one of complete rows."""
    number = output["node"]
    node = Node(graph, number, graph.kinds[number])
    if output["missing"]:
        return node
    missing = None
    for k in dependencies(graph, [number]):
        op, _, given = graph.nodes[k]
        if op != "column":
            continue
        column = Node(graph, k, "f")
        if graph.width:
            here = column.isnan().reduce("any")
        else:
            of_levels = graph.columns[given["column"]]
            here = column.isnan()
            if of_levels["levels"] is not None and not of_levels["unseen"]:
                here = here | (column < 0.0)
        missing = here if missing is None else missing | here
    if missing is None:
        return node
    unknown: Any = {"f": np.nan, "i": np.int64(0), "s": "", "b": False}[node.kind]
    if output["wide"]:
        missing = graph.apply("unsqueeze", missing, axis=1)
    return graph.apply("where", missing, unknown, node)


def _model(writer: Writer, nodes: dict[str, Node], head: dict[str, Any]) -> Any:
    helper = writer.onnx.helper
    outputs = [
        writer.value_info(node, name, head["outputs"][name]["wide"]) for name, node in nodes.items()
    ]
    name = head["estimator"]
    graph = helper.make_graph(writer.nodes, name, writer.inputs, outputs, writer.initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    made = helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=IR_VERSION,
        producer_name="skebm",
        producer_version=head["skebm"],
    )
    writer.onnx.checker.check_model(made)
    return made
