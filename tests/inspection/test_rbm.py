"""RBMDisplay: what it stores, what it draws, and what it refuses."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import make_pipeline

from skebm import RBMEstimator
from skebm.inspection import RBMDisplay
from skebm.inspection.boltzmann.rbm import N_ROWS
from tests.support.tiers import full

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

SHAPE = (8, 8)


@pytest.fixture(scope="module")
def digits():
    return (load_digits().data[:300] > 7).astype(float)


@pytest.fixture(scope="module")
def rbm(digits):
    return RBMEstimator(30, base="independent", n_iter=50, random_state=0).fit(digits)


@pytest.fixture(scope="module")
def display(rbm, digits):
    return RBMDisplay.from_estimator(rbm, digits, image_shape=SHAPE, random_state=0)


@pytest.fixture(scope="module")
def table():
    """Six binary columns, learned exactly, with rows held out."""
    X = np.random.RandomState(0).randint(0, 2, (80, 6)).astype(float)
    return RBMEstimator(n_components=1, n_iter=4, early_stopping=True, random_state=0).fit(X), X


def images(ax):
    return [image.get_array() for image in ax.get_images()]


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def draw(display, *args, **kwargs):
    """Plot and render, and let no warning of the layout pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.plot(*args, **kwargs)
        display.figure_.canvas.draw()
    return display.axes_


# ------------------------------------------------------------------------------
# What is stored
# ------------------------------------------------------------------------------


def test_filters_are_those_of_largest_norm(rbm, display):
    norms = np.linalg.norm(rbm.components_, axis=1)
    assert display.filters.shape == (25, 64)
    np.testing.assert_array_equal(display.filters, rbm.components_[display.filter_index])
    np.testing.assert_array_equal(norms[display.filter_index], np.sort(norms)[::-1][:25])


def test_rows_reconstructions_and_samples(rbm, digits, display):
    np.testing.assert_array_equal(display.rows, digits[:N_ROWS])
    np.testing.assert_array_equal(display.reconstructions, rbm.reconstruct(digits[:N_ROWS]))
    np.testing.assert_array_equal(display.samples, rbm.sample(25, random_state=0))


def test_the_history_is_converted_to_arrays(rbm, display):
    for name in ("energy_gap", "reconstruction_error", "lr"):
        expected = [epoch[name] for epoch in rbm.history_]
        np.testing.assert_array_equal(display.history[name], expected)
    assert "batches" not in display.history


def test_a_number_missing_in_some_epochs_is_nan(rbm):
    rbm = RBMEstimator(n_components=2, n_iter=3, random_state=0).fit(np.eye(4))
    del rbm.history_[1]["train_loss"]
    rbm.history_[2]["flag"] = True
    history = RBMDisplay.from_estimator(rbm).history
    np.testing.assert_array_equal(np.isnan(history["train_loss"]), [False, True, False])
    assert "flag" not in history


def test_the_model_is_not_changed(rbm, digits):
    before = set(vars(rbm))
    display = RBMDisplay.from_estimator(rbm, digits, n_samples=1, random_state=0)
    display.filters[:] = 0
    assert set(vars(rbm)) == before
    assert rbm.components_.any()


@pytest.mark.parametrize("kind", ["list", "csr", "pandas", "polars"])
def test_every_table_that_the_estimator_takes(rbm, digits, display, kind):
    if kind == "list":
        X = digits.tolist()
    elif kind == "csr":
        X = sparse.csr_matrix(digits)
    else:
        X = pytest.importorskip(kind).DataFrame(digits)
    if hasattr(X, "columns"):
        rbm = RBMEstimator(n_components=3, n_iter=1, random_state=0)
        X.columns = [f"pixel {i}" for i in range(64)]
        rbm.fit(X)
    found = RBMDisplay.from_estimator(rbm, X, n_samples=1)
    np.testing.assert_array_equal(found.rows, digits[:N_ROWS])
    assert found.reconstructions.shape == (N_ROWS, 64)
    assert (found.feature_names is not None) == hasattr(X, "columns")


# ------------------------------------------------------------------------------
# What is drawn
# ------------------------------------------------------------------------------


def test_all_of_images(display):
    axes = draw(display)
    training = ["energy_gap", "reconstruction_error"]
    assert list(axes) == ["filters", "samples", "reconstructions", *training]
    n_colour_bars = 2
    assert len(display.figure_.axes) == len(axes) + n_colour_bars
    for name, rows in {
        "filters": display.filters,
        "samples": display.samples,
        "reconstructions": np.concatenate([display.rows, display.reconstructions]),
    }.items():
        np.testing.assert_array_equal(images(axes[name]), rows.reshape(-1, *SHAPE))
    for ax in axes.values():
        assert ax.get_title()
    assert axes["filters"].get_title() == "Filters: 25 of 30 hidden units,\nlargest norm first"
    assert axes["samples"].get_title() == "25 samples\ndrawn from the model"
    for name in training:
        assert axes[name].get_xlabel() == "epoch"
        assert axes[name].get_ylabel()
        assert all(tick == round(tick) for tick in axes[name].get_xticks())


def test_tiles_do_not_overlap_and_lie_inside(display):
    axes = draw(display)
    for name in ("filters", "samples", "reconstructions"):
        ax = axes[name]
        boxes = [image.get_window_extent() for image in ax.get_images()]
        assert all(ax.get_window_extent().padded(1).contains(*box.p0) for box in boxes)
        assert all(ax.get_window_extent().padded(1).contains(*box.p1) for box in boxes)
        assert not any(boxes[0].padded(-1).overlaps(box) for box in boxes[1:])


def test_filters_have_colours_centred_at_zero(display):
    (low, high), *others = [i.get_clim() for i in draw(display, "filters")["filters"].get_images()]
    assert -low == high == np.abs(display.filters).max()
    assert all(limits == (low, high) for limits in others)


@full
def test_data_and_reconstructions_share_colours(display):
    axes = draw(display)
    limits = {i.get_clim() for k in ("reconstructions", "samples") for i in axes[k].get_images()}
    assert limits == {(0.0, 1.0)}


def test_one_part_alone(display):
    for kind in ("filters", "samples", "reconstructions"):
        assert list(draw(display, kind)) == [kind]
    assert list(draw(display, "training")) == ["energy_gap", "reconstruction_error"]


def test_plot_returns_itself_and_draws_into_a_given_figure(display):
    import matplotlib.pyplot as plt

    figure = plt.figure(layout="constrained")
    left, right = figure.subfigures(1, 2)
    assert display.plot("filters", figure=left) is display
    assert display.figure_ is left
    draw(display, "samples", figure=right)
    assert display.figure_ is right
    assert plt.get_fignums() == [figure.number]


def test_the_energy_gap_has_a_line_at_zero_and_a_running_mean(display):
    axes = draw(display, "training")
    raw, zero, mean = axes["energy_gap"].lines
    np.testing.assert_array_equal(raw.get_ydata(), display.history["energy_gap"])
    assert set(zero.get_ydata()) == {0}
    np.testing.assert_allclose(mean.get_ydata()[0], display.history["energy_gap"][:2].mean())
    np.testing.assert_allclose(mean.get_xdata()[[0, -1]], [1.5, 49.5])
    assert labels(axes["energy_gap"]) == ["each epoch", "mean of 2 epochs"]
    (line,) = axes["reconstruction_error"].lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 51))


def test_exact_learning_shows_its_loss_on_training_and_held_out_rows(table):
    rbm, _ = table
    display = RBMDisplay.from_estimator(rbm)
    assert "energy_gap" not in display.history
    axes = draw(display, "training")
    assert list(axes) == ["loss"]
    train, held_out = axes["loss"].lines
    np.testing.assert_array_equal(train.get_ydata(), display.history["train_loss"])
    np.testing.assert_array_equal(held_out.get_ydata(), display.history["valid_loss"])
    assert labels(axes["loss"]) == ["training rows", "validation rows"]
    assert axes["loss"].get_ylabel() == "nats per row"


@full
def test_a_contrastive_loss_is_not_drawn_twice(digits):
    rbm = RBMEstimator(
        n_components=30, base="independent", n_iter=2, early_stopping=True, random_state=0
    ).fit(digits)
    axes = draw(RBMDisplay.from_estimator(rbm, n_samples=0), "training")
    assert list(axes) == ["loss", "energy_gap", "reconstruction_error"]
    assert labels(axes["loss"]) == ["validation rows"]


def test_one_epoch_is_a_point(digits):
    rbm = RBMEstimator(30, base="independent", n_iter=1, random_state=0).fit(digits)
    axes = draw(RBMDisplay.from_estimator(rbm, n_samples=0), "training")
    assert axes["energy_gap"].lines[0].get_marker() == "o"
    assert axes["energy_gap"].get_legend() is None


def test_without_rows_there_are_no_reconstructions(rbm):
    display = RBMDisplay.from_estimator(rbm, image_shape=SHAPE, n_samples=1)
    assert display.rows is None
    assert display.reconstructions is None
    assert "reconstructions" not in draw(display)
    with pytest.raises(ValueError, match="no reconstructions to draw: pass X"):
        display.plot("reconstructions")


def test_without_samples_or_epochs(rbm, digits):
    untrained = RBMEstimator(n_components=3, base="independent", n_iter=0, random_state=0).fit(
        digits
    )
    display = RBMDisplay.from_estimator(untrained, n_samples=0)
    assert list(draw(display)) == ["filters"]
    with pytest.raises(ValueError, match="n_samples"):
        display.plot("samples")
    with pytest.raises(ValueError, match="no training to draw: .* no epochs"):
        display.plot("training")


def test_one_filter_and_one_row_of_a_table(table):
    rbm, X = table
    display = RBMDisplay.from_estimator(rbm, X[:1], n_samples=1, random_state=0)
    axes = draw(display)
    np.testing.assert_array_equal(images(axes["filters"]), [rbm.components_])
    np.testing.assert_array_equal(images(axes["samples"]), [display.samples])
    rows, reconstructions = images(axes["reconstructions"])
    np.testing.assert_array_equal(rows, X[:1])
    np.testing.assert_array_equal(reconstructions, rbm.reconstruct(X[:1]))
    assert axes["filters"].get_xlabel() == "column"
    assert axes["filters"].get_ylabel() == "hidden unit"
    assert axes["samples"].get_title() == "1 sample\ndrawn from the model"


@full
def test_one_filter_as_an_image(table):
    rbm, X = table
    display = RBMDisplay.from_estimator(rbm, X, image_shape=(2, 3), n_samples=2, random_state=0)
    axes = draw(display)
    np.testing.assert_array_equal(images(axes["filters"]), rbm.components_.reshape(1, 2, 3))


def test_weights_of_zero_are_drawn(table):
    rbm, _ = table
    display = RBMDisplay.from_estimator(rbm, n_samples=0)
    display.filters = np.zeros_like(display.filters)
    (image,) = draw(display, "filters")["filters"].get_images()
    assert image.get_clim() == (-1.0, 1.0)


def test_column_names_are_written():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(4), columns=list("abcd"))
    rbm = RBMEstimator(n_components=2, n_iter=1, random_state=0).fit(frame)
    axes = draw(RBMDisplay.from_estimator(rbm, frame, n_samples=3, random_state=0))
    for name in ("filters", "samples", "reconstructions"):
        assert [tick.get_text() for tick in axes[name].get_xticklabels()] == list("abcd")
    ticks = [tick.get_text() for tick in axes["reconstructions"].get_yticklabels()]
    assert ticks == ["data", "recon-\nstructed"]


@full
def test_columns_in_their_own_units_stretch_the_scale():
    X = np.array([[-3.0, 0.0], [5.0, 1.0], [1.0, 0.0]])
    with pytest.warns(UserWarning, match="min-max scaled"):
        rbm = RBMEstimator(2, visible="bernoulli", n_iter=1, random_state=0).fit(X)
    display = RBMDisplay.from_estimator(rbm, X, random_state=0)
    for image in draw(display, "reconstructions")["reconstructions"].get_images():
        assert image.get_clim() == (-3.0, 5.0)


# ------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------


def test_an_unknown_kind(display):
    with pytest.raises(ValueError, match="kind must be"):
        display.plot("weights")


def test_an_image_shape_of_other_size(rbm):
    with pytest.raises(ValueError, match=r"\(8, 9\) has 72 pixels, but the model has 64 columns"):
        RBMDisplay.from_estimator(rbm, image_shape=(8, 9))


@pytest.mark.parametrize("shape", [64, (64,), (8, 8, 1), (8.0, 8.0), (-8, -8), "ab"])
def test_an_image_shape_that_is_none(rbm, shape):
    with pytest.raises(ValueError, match="image_shape must be"):
        RBMDisplay.from_estimator(rbm, image_shape=shape)


@pytest.mark.parametrize("argument", [{"n_filters": 0}, {"n_filters": 2.5}, {"n_samples": -1}])
def test_numbers_of_tiles(rbm, argument):
    with pytest.raises(ValueError, match="must be an integer of at least"):
        RBMDisplay.from_estimator(rbm, **argument)


def test_other_estimators(rbm):
    with pytest.raises(TypeError, match=r"got Pipeline.*pipeline\[-1\]"):
        RBMDisplay.from_estimator(make_pipeline(rbm))
    with pytest.raises(TypeError, match="got BernoulliRBM"):
        RBMDisplay.from_estimator(BernoulliRBM())


def test_an_estimator_that_is_not_fitted():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="not fitted"):
        RBMDisplay.from_estimator(RBMEstimator())


# ------------------------------------------------------------------------------
# matplotlib stays optional
# ------------------------------------------------------------------------------


def test_without_matplotlib_the_error_says_what_to_install(display, monkeypatch):
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install skebm\[plot\]"):
        display.plot()


@full
def test_matplotlib_is_imported_only_to_draw():
    program = """
import sys
import numpy as np, skebm
from skebm.inspection import RBMDisplay
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None  # importing it fails
rbm = skebm.RBMEstimator(n_components=2, n_iter=1, random_state=0).fit(np.eye(4))
assert RBMDisplay.from_estimator(rbm, np.eye(4), random_state=0).filters.shape == (2, 4)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
