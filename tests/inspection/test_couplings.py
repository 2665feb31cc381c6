"""CouplingDisplay: the pairs that it keeps, where it draws them, and what it refuses."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.covariance import GraphicalLasso
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skebm import BoltzmannMachineDensity, HopfieldMemory
from skebm.inspection import CouplingDisplay
from skebm.inspection.boltzmann.couplings import MAX_LABELS, SIGNS, WIDEST
from skebm.inspection.boltzmann.layout import circle, spring
from tests.support.tiers import full

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def noisy(random, column, share):
    return np.where(random.random(len(column)) < share, 1 - column, column)


@pytest.fixture(scope="module")
def frame():
    """b is a copy of a, c the opposite of b with more noise, d on its own."""
    random = np.random.default_rng(0)
    a = random.integers(0, 2, 1000)
    b = noisy(random, a, 0.05)
    c = 1 - noisy(random, b, 0.2)
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": random.integers(0, 2, 1000)})


@pytest.fixture(scope="module")
def chain(frame):
    """A model of which only the pairs of the chain may be coupled."""
    edges = np.zeros((4, 4), dtype=bool)
    edges[0, 1] = edges[1, 0] = edges[1, 2] = edges[2, 1] = True
    return BoltzmannMachineDensity(edges=edges).fit(frame)


@pytest.fixture(scope="module")
def mixed(frame):
    """A category that the first column determines nearly, among bits."""
    random = np.random.default_rng(1)
    level = np.where(random.random(1000) < 0.8, 2 * frame["a"], random.integers(0, 3, 1000))
    kind = pd.Categorical(np.array(["x", "y", "z"])[level])
    return BoltzmannMachineDensity().fit(pd.DataFrame({"a": frame["a"], "kind": kind}))


def draw(display, *args, **kwargs):
    """Plot and render, and let no warning of the layout pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert display.plot(*args, **kwargs) is display
        display.figure_.canvas.draw()
    return display.ax_


def drawn_edges(ax):
    """Ends, width and colour of the lines between nodes."""
    lines = [line for line in ax.lines if len(line.get_xdata())]
    return [(line.get_xydata(), line.get_linewidth(), line.get_color()) for line in lines]


# ------------------------------------------------------------------------------
# What is stored
# ------------------------------------------------------------------------------


def test_pairs_are_sorted_by_strength(chain):
    display = CouplingDisplay.from_estimator(chain)
    assert_array_equal(display.edges, [[0, 1], [1, 2]])
    assert_array_equal(display.strengths, [chain.strengths_[0, 1], chain.strengths_[1, 2]])
    assert_array_equal(display.signs, [1, -1])
    assert_array_equal(display.couplings, chain.couplings_)
    assert display.column_names == display.entry_names == ["a", "b", "c", "d"]
    assert display.n_pairs == 2
    assert display.unit == "coupling of binary columns"


@pytest.mark.parametrize("limit", [{"n_edges": 1}, {"threshold": 3.0}])
def test_weak_pairs_are_left_out(chain, limit):
    assert chain.strengths_[0, 1] > 3.0 > chain.strengths_[1, 2]
    display = CouplingDisplay.from_estimator(chain, **limit)
    assert_array_equal(display.edges, [[0, 1]])
    assert display.n_pairs == 2
    expected = chain.couplings_.copy()
    expected[1, 2] = expected[2, 1] = 0
    assert_array_equal(display.couplings, expected)


def test_a_threshold_keeps_pairs_of_exactly_this_strength(chain):
    display = CouplingDisplay.from_estimator(chain, threshold=float(chain.strengths_[1, 2]))
    assert len(display.edges) == 2


def test_no_pairs(chain):
    display = CouplingDisplay.from_estimator(chain, n_edges=0)
    assert display.edges.shape == (0, 2)
    assert not display.couplings.any()
    assert draw(display).get_title() == "The 0 strongest of 2 coupled pairs of columns"
    assert drawn_edges(draw(display, "graph")) == []


def test_levels_of_categories(mixed):
    display = CouplingDisplay.from_estimator(mixed)
    assert display.column_names == ["a", "kind"]
    assert display.entry_names == ["a", "kind=x", "kind=y", "kind=z"]
    assert_array_equal(display.entry_columns, [0, 1, 1, 1])
    assert_array_equal(display.couplings, mixed.couplings_)
    assert_array_equal(display.signs, [0])  # several couplings have no common sign
    assert_allclose(display.strengths, np.linalg.norm(mixed.couplings_[0]))


def test_spins_and_columns_without_names(frame):
    model = BoltzmannMachineDensity().fit(2 * frame.to_numpy() - 1)
    display = CouplingDisplay.from_estimator(model)
    assert display.unit == "coupling of spin columns"
    assert display.column_names == ["x0", "x1", "x2", "x3"]


def test_a_memory_of_rows():
    patterns = np.array([[1.0, 1.0, -1.0, -1.0]])
    memory = HopfieldMemory("hebb").fit(patterns)
    display = CouplingDisplay.from_estimator(memory)
    expected = patterns.T @ patterns / 4
    np.fill_diagonal(expected, 0)
    assert_allclose(display.couplings, expected)
    assert len(display.edges) == 6
    assert_array_equal(sorted(display.signs), [-1, -1, -1, -1, 1, 1])


def test_a_memory_without_couplings():
    memory = HopfieldMemory("dense").fit(np.array([[1.0, -1.0], [-1.0, -1.0]]))
    with pytest.raises(ValueError, match="has no couplings"):
        CouplingDisplay.from_estimator(memory)


def test_partial_correlations():
    """Of three columns, against the textbook formula from correlations."""
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 3)) @ np.array([[1, 0.5, 0], [0, 1, -0.7], [0, 0, 1]])
    model = GraphicalLasso(alpha=1e-8).fit(X)
    r = np.corrcoef(X.T)
    expected = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    display = CouplingDisplay.from_estimator(model)
    assert display.unit == "partial correlation"
    assert_allclose(display.couplings[0, 1], expected, atol=1e-4)
    assert_array_equal(np.diag(display.couplings), 0)


def test_the_model_is_not_changed():
    X = np.random.default_rng(0).normal(size=(50, 3))
    model = GraphicalLasso().fit(X)
    before = model.precision_.copy()
    CouplingDisplay.from_estimator(model).couplings[:] = 7
    assert_array_equal(model.precision_, before)


# ------------------------------------------------------------------------------
# What is drawn
# ------------------------------------------------------------------------------


def test_the_matrix_is_centred_at_zero(chain):
    display = CouplingDisplay.from_estimator(chain)
    ax = draw(display)
    (image,) = ax.get_images()
    assert_array_equal(image.get_array(), chain.couplings_)
    assert image.get_clim() == pytest.approx((-display.strengths[0], display.strengths[0]))
    assert image.get_cmap()(0.5)[:3] == pytest.approx((0.97, 0.97, 0.97), abs=0.01)  # white
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b", "c", "d"]
    assert ax.get_title() == "2 coupled pairs of columns"
    assert ax.lines[:] == []


def test_levels_of_a_column_are_separated_from_other_columns(mixed):
    ax = draw(CouplingDisplay.from_estimator(mixed))
    across, down = ax.lines
    assert_array_equal(across.get_ydata(), 0.5)
    assert_array_equal(down.get_xdata(), 0.5)


@full
def test_many_columns_have_few_labels():
    memory = HopfieldMemory("hebb").fit(np.sign(np.random.default_rng(0).normal(size=(2, 100))))
    ax = draw(CouplingDisplay.from_estimator(memory, n_edges=50))
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels[:2] == ["x0", "x4"]
    assert len(labels) <= MAX_LABELS
    assert not draw(CouplingDisplay.from_estimator(memory, n_edges=50), "graph").texts


def test_edges_of_the_graph(chain):
    display = CouplingDisplay.from_estimator(chain)
    ax, places = draw(display, "graph"), circle(4)
    weak, strong = drawn_edges(ax)  # the strongest is drawn last, above the others
    assert_array_equal(strong[0], places[[0, 1]])
    assert_array_equal(weak[0], places[[1, 2]])
    assert strong[1] == WIDEST > weak[1]
    assert (strong[2], weak[2]) == (SIGNS[1][0], SIGNS[-1][0])
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["positive", "negative"]


def test_nodes_without_edges_are_hollow(chain):
    ax = draw(CouplingDisplay.from_estimator(chain), "graph")
    (nodes,) = ax.collections
    assert_array_equal(nodes.get_offsets(), circle(4))
    hollow = (nodes.get_facecolors()[:, :3] == 1).all(1)
    assert_array_equal(hollow, [False, False, False, True])
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c", "d"]


def test_edges_of_categories_are_grey(mixed):
    ax = draw(CouplingDisplay.from_estimator(mixed), "graph")
    ((_, _, colour),) = drawn_edges(ax)
    assert colour == SIGNS[0][0]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["of categories"]


def test_given_places(chain):
    places = [[0, 0], [1, 0], [1, 1], [0, 1]]
    ax = draw(CouplingDisplay.from_estimator(chain), "graph", layout=places)
    assert_array_equal(ax.collections[0].get_offsets(), places)


@pytest.mark.parametrize("kind", ["matrix", "graph"])
def test_axes_that_are_given(chain, kind):
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    display = CouplingDisplay.from_estimator(chain)
    assert draw(display, kind, ax=ax) is ax
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]


# ------------------------------------------------------------------------------
# Layouts
# ------------------------------------------------------------------------------


def test_circles_are_clockwise_from_the_top():
    assert_allclose(circle(4), [[0, 1], [1, 0], [0, -1], [-1, 0]], atol=1e-12)
    assert circle(0).shape == (0, 2)


def distances(places):
    return np.linalg.norm(places[:, None] - places, axis=2)


def test_springs_straighten_a_path():
    """Nodes of a path can have the distances of the graph: evenly spaced on a line."""
    edges = np.array([[0, 3], [3, 1], [1, 4], [4, 2]])
    place = np.array([0, 2, 4, 1, 3])  # along the path
    expected = np.abs(place[:, None] - place) / 2  # within the unit circle
    assert_allclose(distances(spring(5, edges)), expected, atol=0.02)


def test_springs_keep_nodes_without_edges_apart():
    places = spring(7, np.array([[0, 1], [1, 2], [2, 0], [3, 4]]))
    apart = distances(places)
    np.fill_diagonal(apart, np.inf)
    joined = apart[[0, 1, 0, 3], [1, 2, 2, 4]]
    assert apart[[0, 0, 0, 3, 5], [3, 5, 6, 5, 6]].min() > joined.max()
    assert np.linalg.norm(places, axis=1).max() == pytest.approx(1)
    assert_array_equal(places, spring(7, np.array([[0, 1], [1, 2], [2, 0], [3, 4]])))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_springs_of_few_nodes(n):
    places = spring(n, np.empty((0, 2), dtype=int))
    assert places.shape == (n, 2)
    assert np.isfinite(places).all()


# ------------------------------------------------------------------------------
# Refusals
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"threshold": -1}, "threshold must be"),
        ({"threshold": np.nan}, "threshold must be"),
        ({"threshold": "weak"}, "threshold must be"),
        ({"n_edges": -1}, "n_edges must be"),
        ({"n_edges": 1.5}, "n_edges must be an integer"),
    ],
)
def test_invalid_limits(chain, limits, message):
    with pytest.raises(ValueError, match=message):
        CouplingDisplay.from_estimator(chain, **limits)


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ({"kind": "tree"}, "kind must be"),
        ({"kind": "graph", "layout": "square"}, "layout must be"),
        ({"kind": "graph", "layout": [[0, 0]]}, r"layout must have shape \(4, 2\)"),
        ({"kind": "graph", "layout": [[0, np.nan]] * 4}, "finite places"),
    ],
)
def test_invalid_drawings(chain, drawing, message):
    with pytest.raises(ValueError, match=message):
        CouplingDisplay.from_estimator(chain).plot(**drawing)


def test_a_layout_of_a_matrix_has_no_effect(chain):
    with pytest.warns(UserWarning, match='layout has no effect.*kind="graph"'):
        CouplingDisplay.from_estimator(chain).plot(layout="circle")


def test_other_estimators(chain, frame):
    pipeline = make_pipeline(chain)
    with pytest.raises(TypeError, match=r"got Pipeline.*pipeline\[-1\]"):
        CouplingDisplay.from_estimator(pipeline)
    other = LogisticRegression().fit(frame, frame["a"])
    with pytest.raises(TypeError, match="got LogisticRegression"):
        CouplingDisplay.from_estimator(other)
    with pytest.raises(TypeError, match="got ndarray"):
        CouplingDisplay.from_estimator(np.eye(3))
    with pytest.raises(NotFittedError):
        CouplingDisplay.from_estimator(BoltzmannMachineDensity())
