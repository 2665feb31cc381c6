"""Figures of all displays: no text is cut off, and no labels collide."""

from functools import cache
from itertools import chain, combinations, pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.mixture import GaussianMixture

import skebm.inspection as inspection
from skebm import EnergyOutlierDetector, RBMEstimator, TractableDensity
from skebm.energies import ising_grid
from skebm.partition import AIS, Bethe, Exact, compare
from skebm.samplers import Gibbs
from tools.gallery import use_style

pytest.importorskip("matplotlib")

rng = np.random.default_rng(0)
COLUMNS = ["length, in centimetres", "width", "height of the flower"]


def table(n=60):
    return pd.DataFrame(rng.normal(1e4, 1, (n, 3)), columns=COLUMNS)


@cache
def detector():
    return EnergyOutlierDetector(GaussianMixture(), method="conformal", random_state=0).fit(table())


@cache
def density():
    return TractableDensity("gaussian").fit(table())


def chains():
    energy, generator = ising_grid(3, 3, coupling=0.3), torch.Generator().manual_seed(0)
    x = energy.domain.uniform(4, generator, dtype=torch.float32)
    return Gibbs().trace(energy, x, 30, generator)


def rbm():
    X = (rng.random((60, 12)) < 0.3).astype(float)
    model = RBMEstimator(9, base="independent", n_iter=3, random_state=0).fit(X)
    return inspection.RBMDisplay.from_estimator(model, X, random_state=0)


def partition():
    frame = compare(ising_grid(3, 3, coupling=0.3), [Exact(), Bethe(), AIS(n_betas=10)])
    return inspection.PartitionDisplay(frame)


def continuation(kind, name, n_columns):
    real, generated = (rng.integers(0, 2, (n, n_columns)).astype(float) for n in (40, 60))
    names = {name: [f"column {k}" for k in range(n_columns)]}
    return kind(real=real, generated=generated, n_start=8, **names)


def history(n=30):
    names = ("train_loss", "valid_loss", "energy_gap", "gain_over_base", "lr")
    return {name: 1e-3 * rng.normal(size=n) for name in names}


DISPLAYS = {
    "ChainDisplay": lambda: inspection.ChainDisplay.from_trace(chains()),
    "ConditionalDisplay": lambda: inspection.ConditionalDisplay.from_estimator(
        density(), table(1), 2, grid_resolution=20
    ),
    "CouplingDisplay": lambda: inspection.CouplingDisplay.from_estimator(
        EmpiricalCovariance().fit(table())
    ),
    "DetectorROCDisplay": lambda: inspection.DetectorROCDisplay.from_estimators(
        {"a detector of a long name": detector()}, table(40), np.repeat([1, -1], 20)
    ),
    "EnergyDisplay": lambda: inspection.EnergyDisplay.from_estimator(
        GaussianMixture(random_state=0).fit(table()), table(), columns=(0, 1), grid_resolution=9
    ),
    "EnergyHistogramDisplay": lambda: inspection.EnergyHistogramDisplay.from_estimator(
        detector(), table(), table() + 4.0
    ),
    "ExplanationDisplay": lambda: inspection.ExplanationDisplay.from_estimator(
        detector(), table(4) + 4.0
    ),
    "PValueDisplay": lambda: inspection.PValueDisplay.from_estimator(detector(), table()),
    "PartialDisplay": lambda: inspection.PartialDisplay.from_estimator(
        density(), 2, 0, X=table(), given={"width": 1e4}
    ),
    "PartitionDisplay": partition,
    "PianoRollDisplay": lambda: continuation(inspection.PianoRollDisplay, "note_names", 24),
    "RBMDisplay": rbm,
    "TrainingDisplay": lambda: inspection.TrainingDisplay(history=history(), n_restarts=2),
    "TrajectoryDisplay": lambda: continuation(inspection.TrajectoryDisplay, "column_names", 3),
}


@cache
def display_of(name):
    return DISPLAYS[name]()


def test_every_display_is_here():
    assert set(DISPLAYS) == {name for name in inspection.__all__ if name.endswith("Display")}


def boxes(texts):
    """Boxes in pixels of the texts that are drawn."""
    return [t.get_window_extent() for t in texts if t.get_visible() and t.get_text().strip()]


def texts_of(figure):
    """Boxes of tick labels, a list for each axis, and of all other texts."""
    from matplotlib.text import Text

    every, of_axes = set(figure.findobj(Text)), []
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            every -= {label for tick in ticks for label in (tick.label1, tick.label2)}
            inside = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
            of_axes.append(boxes(inside) if ax.axison else [])
    return of_axes, boxes(every)


@pytest.mark.parametrize("name", DISPLAYS)
def test_texts_are_whole_and_do_not_collide(name):
    import matplotlib
    import matplotlib.pyplot as plt

    with matplotlib.rc_context():
        use_style({}, None)
        figure = display_of(name).plot().figure_
        figure.canvas.draw()
        ticks, others = texts_of(figure)
        plt.close("all")
    width, height = figure.get_size_inches() * figure.dpi
    for box in [*chain(*ticks), *others]:
        assert -1 <= box.x0 <= box.x1 <= width + 1, box
        assert -1 <= box.y0 <= box.y1 <= height + 1, box
    neighbours = chain(*map(pairwise, ticks), combinations(others, 2))
    assert not [pair for pair in neighbours if pair[0].padded(-1).overlaps(pair[1].padded(-1))]


def straight_lines(figure):
    """The lines across a whole panel: the axis, and the value on it."""
    found = set()
    for line in chain(*(ax.get_lines() for ax in figure.axes)):
        x, y = map(np.ravel, line.get_data())
        for axis, values, others in (("x", x, y), ("y", y, x)):
            if list(others) == [0, 1] and values[0] == values[-1]:
                found.add((axis, float(values[0])))
    return found


LINES = {
    "ChainDisplay": lambda display: {("y", 0)},
    "ConditionalDisplay": lambda display: {("x", display.observed)},
    "ExplanationDisplay": lambda display: {("x", 0)},
    "PartitionDisplay": lambda display: {
        *(("y", place) for place in (0.5, 1.5)),  # between three methods
        ("x", display.frame["value"].iloc[0]),  # the exact one is the first
    },
    "PianoRollDisplay": lambda display: {("x", display.n_start - 0.5)},
    "TrainingDisplay": lambda display: {("x", display.best_epoch), ("y", 0)},
    "TrajectoryDisplay": lambda display: {("x", display.n_start - 1)},
}


@pytest.mark.parametrize("name", DISPLAYS)
def test_straight_lines_are_at_zero_or_at_what_they_mark(name):
    import matplotlib.pyplot as plt

    display = display_of(name)
    assert straight_lines(display.plot().figure_) == LINES.get(name, lambda _: set())(display)
    plt.close("all")
