"""Comparisons of models with what was exported of them."""

import numpy as np
import pytest

METHODS = {
    "log_density": "score_samples",
    "energy": "energy",
    "decision": "decision_function",
    "predict": "predict",
    "proba": "predict_proba",
    "p_value": "p_values",
    "transform": "transform",
}


def assert_equal_scores(found, expected, rtol):
    """Finite numbers agree to `rtol` of their size, at least 1; all else exactly."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    if expected.dtype.kind != "f":
        assert np.array_equal(found, expected)
        return
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    found, expected = found[finite], expected[finite]
    error = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    assert error.max(initial=0) <= rtol


def assert_scores_like(scorer, model, X, rtol=1e-9, outputs=None):
    """All outputs of a scorer are those of the methods of a model."""
    for name in scorer.outputs if outputs is None else outputs:
        asked = getattr(model, METHODS[name])(X)
        assert_equal_scores(getattr(scorer, METHODS[name])(X), asked, rtol)


def onnx_scores(exported, X):
    """Outputs by name of an ONNX model for the rows of a frame or array."""
    runtime = pytest.importorskip("onnxruntime", reason='needs pip install "skebm[onnx,test]"')
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = runtime.InferenceSession(
        exported.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rows = {one.name: _input(X, one) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, rows), strict=True))


def _input(X, wanted):
    if not hasattr(X, "columns"):
        return np.asarray(X, dtype=np.float32 if "float" in wanted.type else np.float64)
    column = X[wanted.name]
    if "string" in wanted.type:
        texts = [one if isinstance(one, str) else "" for one in column]
        return np.array(texts, dtype=object)[:, None]
    dtype = np.float32 if "float" in wanted.type else np.float64
    return column.to_numpy(dtype=dtype, na_value=np.nan)[:, None]
