"""Operations of torch are those of graphs, in both backends."""

import numpy as np
import pytest
import torch
from torch import nn

from skebm.export import ExportError, Scorer
from skebm.export.graph import Graph
from skebm.export.tracing import traced

D = 6
TABLE = torch.linspace(-1, 1, D).repeat(3, 1) + torch.arange(3.0)[:, None]
TRIL = torch.tensor(np.tril(np.random.default_rng(0).normal(size=(D, D))) + 3 * np.eye(D))
EDGES = torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
MATRIX = torch.tensor(np.random.default_rng(1).normal(size=(D, 4)))


def with_places(x):
    found = x.new_zeros(len(x), D)
    found[:, 2] = x[:, 0]
    found[:, 3:5] += x[:, 1:3]
    return found.div_(2.0)


def with_counts(x):
    place = (x[:, :1] > EDGES).sum(1)
    return EDGES.index_select(0, place.clamp(max=3))


def with_bits_in_place(x):
    positive = x > 0
    positive &= x < 1
    return positive.double()


FUNCTIONS = {
    "arithmetic": lambda x: (2 * x + 1 - x / 3) ** 2 - 1 / (2 + x.abs()) + (3 - x) % 2,
    "activations": lambda x: sum(
        f(x)
        for f in (
            nn.functional.silu,
            nn.functional.relu,
            nn.functional.elu,
            nn.functional.leaky_relu,
            nn.functional.softplus,
            torch.sigmoid,
            torch.tanh,
        )
    ),
    "gelu": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "erf": lambda x: nn.functional.gelu(x),
    "softplus": lambda x: nn.functional.softplus(100 * x, beta=0.5, threshold=30),
    "functions": lambda x: x.exp() + x.abs().log1p() + x.abs().sqrt() + x.asinh() + x.expm1(),
    "asinh far": lambda x: (x * 1e200).asinh() + torch.hypot(x * 1e200, x),
    "roots": lambda x: x.square().add(1).rsqrt() + x.square().add(1).reciprocal() + x.sign(),
    "clamp": lambda x: x.clamp(min=-0.5) + x.clamp(max=0.5) + x.clamp(-0.1, 0.2),
    "truth": lambda x: ((x > 0) & ~(x >= 1) | (x == x) & (x < -1) | (x != x)).double(),
    "finite": lambda x: ((x * 1e308).isfinite() & (x > 0)).double(),
    "reductions": lambda x: x.sum(1) + x.mean(1) + x.amax(1) + x.amin(1) + x.prod(1),
    "max and place": lambda x: x.max(1).values + x.max(1).indices + x.argmax(1),
    "log sums": lambda x: x.logsumexp(1) + x.log_softmax(1)[:, 0] + x.softmax(1)[:, 1],
    "infinite log sum": lambda x: x.masked_fill(x > 0, -torch.inf).logsumexp(1),
    "logaddexp": lambda x: torch.logaddexp(x[:, 0], x[:, 1]),
    "products": lambda x: (
        torch.addmm(MATRIX[0], x, MATRIX, alpha=2.0) + x @ MATRIX + (MATRIX.t() @ x.t()).t()
    ),
    "triangular": lambda x: torch.linalg.solve_triangular(TRIL, x.t(), upper=False).t(),
    "batches": lambda x: torch.einsum("nd,kdh->nkh", x, MATRIX.view(2, 3, 4).repeat(1, 2, 1)),
    "shapes": lambda x: x.view(-1, 2, 3).transpose(1, 2).reshape(len(x), -1).flatten(1),
    "parts": lambda x: torch.cat([*x.split([2, 4], 1), x[:, 1:5:2], x[:, -1:]], 1),
    "stacks": lambda x: torch.stack([x, x + 1], 1).unbind(1)[1].unsqueeze(2).squeeze(2),
    "chunks": lambda x: torch.stack(x.chunk(3, 1)).sum(0),
    "pad": lambda x: nn.functional.pad(x, (1, 2), value=3.0),
    "expand": lambda x: x[:, :1].expand(-1, 4) + torch.ones(len(x), 4) * x.new_full((1,), 2.0),
    "rows beside": lambda x: (x[:, None] - TABLE).square().sum(2).neg().logsumexp(1),
    "all pairs": lambda x: (x[:, None].expand(-1, 3, -1).reshape(-1, D) * 2).view(len(x), 3, D),
    "columns": lambda x: x[:, torch.tensor([3, 1, 1])] + x.index_select(1, torch.tensor([0, 2, 4])),
    "gather": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "index_add": lambda x: x.new_zeros(len(x), 2).index_add(1, torch.tensor([0, 1, 0, 1, 1, 0]), x),
    "searchsorted": lambda x: torch.searchsorted(EDGES, x) + torch.bucketize(x, EDGES, right=True),
    "counts": with_counts,
    "cumsum": lambda x: x.cumsum(1),
    "shortcut": lambda x: x.long() * 2.0 if torch.equal(x, x.round()) else x * 2,
    "bits": lambda x: ((x > 0).long() | 4) & ((x < 1).long() * 5),
    "nan": lambda x: torch.where(x > 0, x, torch.nan).nan_to_num(2.0) + x.isnan() + x.isfinite(),
    "infinite": lambda x: (x / 0.0).nan_to_num(0.0, posinf=5.0, neginf=-torch.inf).exp(),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1) + x.norm(dim=1),
    "layer norm": lambda x: nn.functional.layer_norm(x, (D,), MATRIX[:, 0], MATRIX[:, 1]),
    "in place": with_places,
    "round": lambda x: x.round() + x.floor() + x.long(),
    "constant": lambda x: torch.zeros(len(x), dtype=x.dtype) + MATRIX[0, 0],
}
ROWS = np.random.default_rng(2).normal(size=(7, D)) * 2


def graph_of(function, missing=True):
    graph = Graph()
    x = graph.matrix(D)
    row = torch.linspace(-1, 1, D, dtype=torch.float64)
    node = traced(graph, function, [(x, row)], "part")
    outputs = {"transform": {"node": node.number, "missing": missing, "wide": True}}
    head = {"format": 1, "skebm": "0", "estimator": "part", "outputs": outputs}
    return graph, node, head


def scorer_of(function):
    graph, _, head = graph_of(function)
    rest = {"width": D, "n_columns": D, "columns": [], "nodes": graph.nodes, "rows": 4}
    return Scorer(head | rest, graph.arrays)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_torch_is_that_of_its_graph(name):
    found = scorer_of(FUNCTIONS[name]).transform(ROWS)
    expected = FUNCTIONS[name](torch.tensor(ROWS)).numpy()
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_torch_is_that_of_onnx(name):
    onnx = pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    runtime = pytest.importorskip("onnxruntime")
    from skebm.export.onnx_file import Writer

    graph, node, _ = graph_of(FUNCTIONS[name])
    writer = Writer(graph, "float64")
    result = writer.result(node.cast("f").number)
    shapes = ["n", *[None] * (FUNCTIONS[name](torch.tensor(ROWS)).dim() - 1)]
    info = onnx.helper.make_tensor_value_info(result, writer.number, shapes)
    made = onnx.helper.make_graph(writer.nodes, "g", writer.inputs, [info], writer.initializers)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(made, opset_imports=opsets, ir_version=8)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"X": ROWS})
    expected = FUNCTIONS[name](torch.tensor(ROWS)).double().numpy()
    tolerance = 1e-6 if name == "erf" else 1e-12  # which runtimes have in single precision
    assert np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x * (2 if x.sum() > 0 else 1), "values of others"),
        (lambda x: x if torch.equal(x, x.abs()) else -x, "values of others"),
        (lambda x: x - x.mean(0), "sum over rows"),
        (lambda x: x + torch.arange(len(x))[:, None], "number the rows"),
        (lambda x: x[x[:, 0] > 0], "masks"),
        (lambda x: x[1:], "depends on the number of rows otherwise"),
        (lambda x: torch.cat([x] * len(x)), "number of rows"),
        (with_bits_in_place, "in place"),
        (lambda x: torch.special.i0(x), "i0 of torch"),
    ],
)
def test_what_rows_do_not_determine_is_refused(function, why):
    with pytest.raises(ExportError, match=f"(?s)part.*{why}"):
        scorer_of(function)


def test_operations_without_rows_are_constants():
    graph, _, _ = graph_of(lambda x: x @ (MATRIX @ MATRIX.t()).exp().inverse())
    assert [op for op, _, _ in graph.nodes] == ["column", "constant", "matmul"]


def test_in_place_operations_leave_the_input_alone():
    found = scorer_of(lambda x: (x + 0).mul_(3) - x).transform(ROWS)
    assert np.allclose(found, 2 * ROWS)
