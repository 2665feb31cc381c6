"""PianoRollDisplay and TrajectoryDisplay: what they store, draw and refuse."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from skebm import RBMEstimator, TemporalRBM
from skebm.inspection import PianoRollDisplay, TrajectoryDisplay
from skebm.inspection.sequences import MAX_LABELS, N_COLUMNS

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

ROLL = np.tile(np.eye(4), (30, 1))
SETTINGS = {"order": 1, "n_iter": 5, "random_state": 0}


@pytest.fixture(scope="module")
def song():
    return TemporalRBM(4, **SETTINGS).fit(ROLL)


def waves(n=150):
    t, rng = np.arange(n), np.random.default_rng(0)
    noise = rng.normal(size=n)
    columns = {f"angle {k}": np.sin(t / 7 + k) + 0.01 * rng.normal(size=n) for k in range(7)}
    return pd.DataFrame({"noise": noise} | columns)


@pytest.fixture(scope="module")
def walk():
    return TemporalRBM(4, **SETTINGS).fit(waves())


def draw(display, **kwargs):
    """Plot and render, and let no warning of the layout pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert display.plot(**kwargs) is display
        display.figure_.canvas.draw()
    return display.axes_


def test_rolls(song):
    display = PianoRollDisplay.from_estimator(
        song, ROLL, n_start=8, n_frames=20, first_pitch=59, random_state=0
    )
    assert_array_equal(display.real, ROLL[:28])
    assert_array_equal(display.generated[:8], ROLL[:8])
    assert_array_equal(display.generated[8:], song.sample(20, start=ROLL[:8], random_state=0))
    assert display.note_names == ["B3", "C4", "C#4", "D4"]
    axes = draw(display)
    assert list(axes) == ["real", "generated"]
    (image,) = axes["generated"].get_images()
    assert_array_equal(image.get_array(), display.generated.T)
    assert_array_equal(axes["real"].lines[0].get_xdata(), [7.5, 7.5])
    assert [text.get_text() for text in axes["real"].get_yticklabels()] == display.note_names
    assert axes["real"].get_xlim() == (-0.5, 27.5)


def test_rolls_of_many_notes_have_few_labels():
    X = (np.random.default_rng(0).random((60, 88)) < 0.1).astype(float)
    model = TemporalRBM(3, **SETTINGS).fit(X)
    display = PianoRollDisplay.from_estimator(model, X, n_frames=5, random_state=0)
    assert display.note_names[:2] == ["x0", "x1"]
    assert len(draw(display)["real"].get_yticklabels()) <= MAX_LABELS


def test_curves(walk):
    X = waves()[:30]
    display = TrajectoryDisplay.from_estimator(walk, X, n_start=10, n_frames=40, random_state=0)
    assert len(display.column_names) == N_COLUMNS
    assert "noise" not in display.column_names  # the least smooth one
    assert display.real.shape == (30, N_COLUMNS)
    assert display.generated.shape == (50, N_COLUMNS)
    axes = draw(display)
    assert list(axes) == display.column_names
    ax = axes[display.column_names[0]]
    data, model = ax.lines[:2]
    assert_array_equal(data.get_ydata(), display.real[:, 0])
    assert_array_equal(model.get_xdata(), np.arange(9, 50))
    assert_array_equal(model.get_ydata(), display.generated[9:, 0])
    assert [text.get_text() for text in axes["angle 0"].get_legend().get_texts()] == [
        "data",
        "model",
    ]


def test_columns_that_are_named(walk):
    display = TrajectoryDisplay.from_estimator(
        walk, waves(), columns=["noise", -1], n_frames=3, random_state=0
    )
    assert display.column_names == ["noise", "angle 6"]
    assert_array_equal(display.real[:, 0], waves()["noise"][:19])


def test_figures_that_are_given(song):
    import matplotlib.pyplot as plt

    figure = plt.figure(layout="constrained")
    display = PianoRollDisplay.from_estimator(song, ROLL, n_frames=3, random_state=0)
    draw(display, figure=figure)
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize("display", [PianoRollDisplay, TrajectoryDisplay])
def test_refusals(display, song, walk):
    for kwargs, match in (
        ({"n_start": 0}, "n_start"),
        ({"n_frames": 0}, "n_frames"),
        ({"n_start": 500}, "fewer than n_start=500"),
    ):
        with pytest.raises(ValueError, match=match):
            display.from_estimator(song, ROLL, **kwargs)
    with pytest.raises(TypeError, match="got RBMEstimator"):
        display.from_estimator(RBMEstimator(2, n_iter=1).fit(ROLL), ROLL)
    with pytest.raises(NotFittedError):
        display.from_estimator(TemporalRBM(), ROLL)
    with pytest.raises(ValueError, match="first_pitch"):
        PianoRollDisplay.from_estimator(song, ROLL, first_pitch=-1)
    with pytest.raises(ValueError, match="use TrajectoryDisplay"):
        PianoRollDisplay.from_estimator(walk, waves(), n_frames=2)
    for columns in (["knee"], [8], "angle 1", []):
        with pytest.raises(ValueError, match="columns"):
            TrajectoryDisplay.from_estimator(walk, waves(), columns=columns, n_frames=2)
