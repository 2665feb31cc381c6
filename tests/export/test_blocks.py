"""Operations on wide arrays go through rows in blocks, and ONNX sums in single precision."""

import functools

import numpy as np
import pytest

from skebm import EnergyOutlierDetector, TractableDensity
from skebm.export import Scorer, blocks, to_numpy, to_onnx
from skebm.export.graph import Graph
from skebm.export.rules import description
from tests.support.exports import assert_equal_scores, assert_scores_like, onnx_scores
from tests.support.tiers import only_full

random = np.random.default_rng(0)
NUMBERS = random.normal(size=(600, 4)) @ random.normal(size=(4, 4))
NUMBERS[:, 0] **= 2
NEW = np.concatenate([NUMBERS[:300], NUMBERS * 1.1 + 0.01, NUMBERS[:3] * 1e5, -NUMBERS[:3] * 1e200])
density = TractableDensity(random_state=0)
MODELS = {
    "density": density,
    "default": EnergyOutlierDetector(random_state=0),
    "conformal": EnergyOutlierDetector(density, method="conformal", random_state=0),
    "cross-conformal": EnergyOutlierDetector(
        density, method="cross-conformal", cv=2, random_state=0
    ),
}


@functools.cache
def fitted(name):
    return MODELS[name].fit(NUMBERS)


def scorer_of(graph, outputs):
    """The scorer of a graph, of whose nodes the outputs are called energy and log_density."""
    head = {"estimator": "", "skebm": "", "width": graph.width, "n_columns": graph.width}
    found, numbers, rows = blocks.in_blocks(graph, [one.number for one in outputs])
    named = zip(("energy", "log_density"), outputs, strict=False)
    asked = {name: {"node": numbers[one.number], "missing": False} for name, one in named}
    settings = {"columns": [], "nodes": found.nodes, "rows": rows, "outputs": asked}
    return Scorer(head | settings, found.arrays)


def weights(n=blocks.WIDE):
    return np.random.default_rng(1).normal(size=(3, n))


@pytest.mark.parametrize("name", ["density", only_full("default")])
def test_wide_arrays_are_in_blocks(name):
    graph, head = description(fitted(name))
    of_blocks = [given for op, _, given in graph.nodes if op == "in_blocks"]
    assert of_blocks
    assert all(given["rows"] * blocks.WIDE <= blocks.WIDE_NUMBERS for given in of_blocks)
    assert head["rows"] * blocks.WIDE > blocks.NUMBERS  # as no wide array is left


@pytest.mark.parametrize("name", ["density", *map(only_full, ["default", "cross-conformal"])])
@pytest.mark.parametrize("n", [1, 300])
def test_numbers_of_rows_do_not_matter(name, n):
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model, X = fitted(name), NEW[:n]
    assert_scores_like(to_numpy(model), model, X)
    (found,) = onnx_scores(to_onnx(model, ["log_density"]), X).values()
    assert_equal_scores(found, model.score_samples(X), 1e-6)


@pytest.mark.parametrize("name", ["conformal", *map(only_full, ["cross-conformal", "default"])])
def test_single_sums_change_no_prediction_and_no_p_value(name):
    """Rows of the fit have the statistics of calibration rows, and of the threshold."""
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model = fitted(name)
    found = onnx_scores(to_onnx(model), NEW)
    assert np.array_equal(found["predict"], model.predict(NEW))
    if "p_value" in found:
        assert_equal_scores(found["p_value"], model.p_values(NEW), 1e-12)
    assert_equal_scores(found["log_density"], model.score_samples(NEW), 1e-6)
    errors = np.abs(found["log_density"][:300] - model.score_samples(NEW[:300]))
    assert np.median(errors) > 1e-10  # as sums are in single precision


def test_single_precision_of_everything_is_near():
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model = fitted("density")
    (found,) = onnx_scores(to_onnx(model, dtype="float32"), NEW[:900]).values()
    expected = model.score_samples(NEW[:900])
    errors = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    assert np.quantile(errors, 0.99) < 1e-5
    assert errors.max() < 1e-4  # far from a narrow component, squared distances have six digits


def test_what_is_read_again_is_not_overwritten():
    graph = Graph()
    x = graph.matrix(2)
    y = x + 1.0
    squared = y * y
    view = graph.apply("reshape", squared, shape=[-1, 2])
    negative, exponential = -squared, graph.apply("exp", y)
    found = (negative + view + exponential).reduce("sum")
    X = random.normal(size=(5, 2))
    assert np.allclose(scorer_of(graph, [found]).energy(X), np.exp(X + 1).sum(1))


def test_branches_of_wide_arrays_end_where_they_meet():
    graph = Graph()
    x = graph.matrix(3)
    wide = x @ weights()
    other = (x * 2.0) @ weights(blocks.WIDE + 1)
    low, high = wide.reduce("min"), (wide - graph.apply("unsqueeze", other.reduce("max"), axis=1))
    found = low + high.reduce("sum")
    scorer = scorer_of(graph, [found])
    assert [op for op, _, _ in scorer._graph["nodes"]].count("in_blocks") == 2
    X = random.normal(size=(700, 3))
    W, V = X @ weights(), 2 * X @ weights(blocks.WIDE + 1)
    assert np.allclose(scorer.energy(X), W.min(1) + (W - V.max(1)[:, None]).sum(1))


def test_a_wide_array_that_two_outputs_need_is_computed_for_each():
    graph = Graph()
    wide = graph.matrix(3) @ weights()
    scorer = scorer_of(graph, [wide.reduce("sum"), wide.reduce("max")])
    X = random.normal(size=(300, 3))
    W = X @ weights()
    assert np.allclose(scorer.energy(X), W.sum(1))
    assert np.allclose(scorer.score_samples(X), W.max(1))


def test_rows_of_a_mask_have_blocks_of_their_own():
    graph = Graph()
    x = graph.matrix(3)
    mask = x.column(0) > 0.0
    parts = [graph.apply("compress", x, one) for one in (mask, ~mask)]
    parts = [(part @ weights()).reduce(op) for part, op in zip(parts, ("max", "sum"), strict=True)]
    scorer = scorer_of(graph, [graph.apply("merge", mask, *parts)])
    X = random.normal(size=(300, 3))
    W = X @ weights()
    assert np.allclose(scorer.energy(X), np.where(X[:, 0] > 0, W.max(1), W.sum(1)))
    assert [op for op, _, _ in scorer._graph["nodes"]].count("in_blocks") == 2
    assert np.allclose(scorer.energy(np.abs(X)), (np.abs(X) @ weights()).max(1))
