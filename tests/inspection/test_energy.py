"""EnergyDisplay and TrainingDisplay: what they store, what they draw, and what they refuse."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_moons
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skebm import EnergyOutlierDetector, RBMEstimator, ScoreMatchingDensity
from skebm.energies import MLP
from skebm.inspection import EnergyDisplay, TrainingDisplay
from skebm.inspection.energy import _quantiles
from tests.support.tiers import full, leading

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

NAMES = list("abcde")


def fast(**kwargs):
    kwargs = {"base": "gaussian", "network": MLP((32,))} | kwargs
    return ScoreMatchingDensity(n_iter=10, random_state=0, sigma=0.2, **kwargs)


def quickly_sampled(model):
    """Draws of short chains, which displays ask for without a number of steps."""
    model.sample = functools.partial(model.sample, n_steps=10)
    return model


@pytest.fixture(scope="module")
def moons():
    return make_moons(200, noise=0.1, random_state=0)[0]


@pytest.fixture(scope="module")
def density(moons):
    return quickly_sampled(fast(early_stopping=True).fit(moons))


@pytest.fixture(scope="module")
def table():
    X = np.random.default_rng(0).normal(size=(101, 5))
    return pd.DataFrame(X @ np.linalg.cholesky(0.5 * np.eye(5) + 0.5).T, columns=NAMES)


@pytest.fixture(scope="module")
def wide(table):
    return fast().fit(table)


@pytest.fixture(scope="module")
def rbm():
    X = (np.random.default_rng(0).random((100, 30)) < 0.3).astype(float)
    return RBMEstimator(20, base="independent", n_iter=3, early_stopping=True, random_state=0).fit(
        X
    )


def draw(display, *args, **kwargs):
    """Plot and render, and let no warning of the layout pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.plot(*args, **kwargs)
        display.figure_.canvas.draw()
    return display


def grid(display):
    return np.column_stack([part.ravel() for part in np.meshgrid(display.x, display.y)])


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def colour_bar(display):
    return display.figure_.axes[-1]


# ------------------------------------------------------------------------------
# What the plane holds
# ------------------------------------------------------------------------------


def test_the_grid_has_the_energy_of_its_points(density, moons):
    display = EnergyDisplay.from_estimator(density, moons, grid_resolution=30)
    assert display.values.shape == (30, 30)
    np.testing.assert_allclose(display.values.ravel(), density.energy(grid(display)), rtol=1e-6)
    # the first column is x: one row of the picture is one value of y
    np.testing.assert_allclose(
        display.values[3, 7], density.energy([[display.x[7], display.y[3]]])[0], rtol=1e-5
    )
    assert display.x[0] < moons[:, 0].min() < moons[:, 0].max() < display.x[-1]
    assert display.y[0] < moons[:, 1].min() < moons[:, 1].max() < display.y[-1]
    np.testing.assert_array_equal(display.data, moons)
    assert display.names == ("x0", "x1")
    assert display.samples is None
    assert display.fixed is None


@full
def test_no_log_z_is_needed_for_the_energy(moons):
    density = fast(partition=None).fit(moons)
    EnergyDisplay.from_estimator(density, moons, grid_resolution=5)
    with pytest.raises(ValueError, match="partition=None"):
        EnergyDisplay.from_estimator(density, moons, response="log_density")


@full
def test_the_log_density_is_score_samples(density, moons):
    display = EnergyDisplay.from_estimator(
        density, moons, response="log_density", grid_resolution=8, limits=((-1, 2), (-1, 1))
    )
    np.testing.assert_allclose(display.values.ravel(), density.score_samples(grid(display)))
    assert (display.x[0], display.x[-1], display.y[0], display.y[-1]) == (-1, 2, -1, 1)


@pytest.mark.parametrize(
    "estimator",
    [
        GaussianMixture(3, random_state=0),
        KernelDensity(bandwidth=0.2),
        make_pipeline(StandardScaler(), GaussianMixture(3, random_state=0)),
        GridSearchCV(KernelDensity(), {"bandwidth": [0.1, 0.3]}, cv=2),
        EnergyOutlierDetector(GaussianMixture(3, random_state=0), random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_any_estimator_with_score_samples(estimator, moons):
    estimator.fit(moons)
    display = EnergyDisplay.from_estimator(
        estimator, moons, grid_resolution=9, n_samples=200, random_state=0
    )
    np.testing.assert_allclose(display.values.ravel(), -estimator.score_samples(grid(display)))
    assert display.unit == "nats"
    # samples are in the units of X
    np.testing.assert_allclose(display.samples.mean(0), moons.mean(0), atol=0.25)
    np.testing.assert_allclose(display.samples.std(0), moons.std(0), rtol=0.4)


@full
def test_a_pipeline_that_ends_in_an_estimator_of_skebm(moons):
    pipeline = make_pipeline(StandardScaler(), fast()).fit(100 + 10 * moons)
    quickly_sampled(pipeline[-1])
    display = EnergyDisplay.from_estimator(
        pipeline, 100 + 10 * moons, grid_resolution=9, n_samples=64, random_state=0
    )
    energy = pipeline[-1].energy(pipeline[0].transform(grid(display)))
    np.testing.assert_allclose(display.values.ravel(), energy, rtol=1e-5, atol=1e-5)
    assert 80 < display.samples[:, 0].mean() < 120


def test_a_score_that_is_no_density_has_no_nats(moons):
    forest = IsolationForest(n_estimators=10, random_state=0).fit(moons)
    display = draw(EnergyDisplay.from_estimator(forest, moons, grid_resolution=9))
    assert colour_bar(display).get_ylabel() == "energy above the minimum, score_samples"
    with pytest.raises(TypeError, match="no log-likelihood"):
        EnergyDisplay.from_estimator(forest, moons, response="log_density")


@pytest.mark.parametrize(
    "mixture", [GaussianMixture(2, random_state=0), BayesianGaussianMixture(n_components=2)]
)
def test_samples_of_mixtures_are_those_of_the_seed(mixture, moons):
    before = mixture.fit(moons).random_state
    first, same, other = (
        EnergyDisplay.from_estimator(
            mixture, moons, grid_resolution=2, n_samples=20, random_state=seed
        ).samples
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert mixture.random_state is before


def test_samples_are_those_of_the_estimator(density, moons):
    display = EnergyDisplay.from_estimator(
        density, moons, grid_resolution=2, n_samples=20, random_state=1
    )
    np.testing.assert_array_equal(display.samples, density.sample(20, random_state=1))


@full
def test_without_rows_samples_or_limits_set_the_range(density):
    display = EnergyDisplay.from_estimator(density, n_samples=64, random_state=0)
    assert (display.samples.min(0) > [display.x[0], display.y[0]]).all()
    assert (display.samples.max(0) < [display.x[-1], display.y[-1]]).all()
    assert display.data is None
    display = EnergyDisplay.from_estimator(density, limits=[[0, 1], [2, 3]], grid_resolution=3)
    np.testing.assert_array_equal(display.y, [2, 2.5, 3])


def test_a_constant_column_and_rows_with_gaps(moons):
    X = moons.copy()
    X[:, 1] = 5.0
    density = GaussianMixture(random_state=0).fit(X)
    X[3, 0] = np.nan
    display = draw(EnergyDisplay.from_estimator(density, X, grid_resolution=5))
    assert (display.y[0], display.y[-1]) == (4.5, 5.5)
    assert len(display.data) == len(X) - 1


# ------------------------------------------------------------------------------
# Slices and frames
# ------------------------------------------------------------------------------


def test_a_slice_fixes_the_other_columns_at_their_medians(wide, table):
    display = EnergyDisplay.from_estimator(wide, table, columns=("d", 1), grid_resolution=7)
    rows = pd.DataFrame([table.median()] * 49)
    rows[["d", "b"]] = grid(display)
    np.testing.assert_allclose(display.values.ravel(), wide.energy(rows), rtol=1e-5)
    assert display.names == ("d", "b")
    assert display.fixed == table[["a", "c", "e"]].median().to_dict()
    np.testing.assert_array_equal(display.data, table[["d", "b"]])


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, "rows"])
def test_a_slice_through_a_row(wide, table, kind):
    given = table.iloc[[4]] if kind == "rows" else kind(table.iloc[4])
    display = EnergyDisplay.from_estimator(
        wide, table, columns=("a", "e"), given=given, grid_resolution=7
    )
    rows = pd.concat([table.iloc[[4]]] * 49)
    rows[["a", "e"]] = grid(display)
    np.testing.assert_allclose(display.values.ravel(), wide.energy(rows), rtol=1e-5)
    assert display.fixed == table[["b", "c", "d"]].iloc[4].to_dict()


@full
def test_samples_of_a_slice_are_conditional_on_the_fixed_columns(wide, table):
    given = np.full(5, 2.0)
    here, there = (
        EnergyDisplay.from_estimator(
            wide,
            table,
            columns=("a", "b"),
            given=sign * given,
            n_samples=64,
            grid_resolution=2,
            random_state=0,
        )
        for sign in (1, -1)
    )
    assert here.conditional
    assert (here.samples.mean(0) > 0.5).all()
    assert (there.samples.mean(0) < -0.5).all()


def test_samples_of_others_are_projected(table):
    density = GaussianMixture(random_state=0).fit(table)
    display = EnergyDisplay.from_estimator(
        density, table, columns=(4, 0), n_samples=30, random_state=0
    )
    assert not display.conditional
    assert legend(draw(display).ax_) == ["101 rows of X, projected", "30 samples, projected"]


@pytest.mark.parametrize("kind", ["list", "array", "csr", "pandas", "polars"])
def test_every_table_that_the_estimator_takes(table, kind):
    X = table.to_numpy()
    rbm = RBMEstimator(2, n_iter=1, random_state=0)
    X = (X > 0).astype(float)
    if kind == "list":
        X = X.tolist()
    elif kind == "csr":
        X = sparse.csr_matrix(X)
    elif kind != "array":
        X = pytest.importorskip(kind).DataFrame(X)
        X.columns = NAMES
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = EnergyDisplay.from_estimator(
            rbm.fit(X), X, columns=(1, 3), n_samples=5, grid_resolution=4, random_state=0
        )
    assert display.names == (("b", "d") if hasattr(X, "columns") else ("x1", "x3"))
    # nothing beyond 0 and 1 is asked of a binary domain
    assert (display.x[0], display.x[-1]) == (0, 1)
    assert set(np.unique(display.samples)) <= {0, 1}


def test_columns_that_are_not_numeric_are_fixed_at_the_most_frequent_value():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "length": rng.normal(size=60),
            "count": rng.integers(0, 5, 60),
            "kind": ["u", "v", "v"] * 20,
            "colour": pd.Categorical(["red", "red", "green"] * 20),
            "left": [True, False, False] * 20,
        }
    )
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["kind", "colour"]), remainder="passthrough"
    )
    pipeline = make_pipeline(encoder, GaussianMixture(random_state=0)).fit(X)
    display = EnergyDisplay.from_estimator(
        pipeline, X, columns=("length", "count"), grid_resolution=4
    )
    assert display.fixed == {"kind": "v", "colour": "red", "left": False}
    rows = pd.DataFrame(grid(display), columns=["length", "count"])
    rows = rows.assign(kind="v", colour="red", left=False)
    np.testing.assert_allclose(display.values.ravel(), -pipeline.score_samples(rows))
    turned = EnergyDisplay.from_estimator(  # whole numbers are a column as any on both axes
        pipeline, X, columns=("count", "length"), grid_resolution=4
    )
    np.testing.assert_allclose(turned.values, display.values.T)
    with pytest.raises(ValueError, match="'kind' is not numeric"):
        EnergyDisplay.from_estimator(pipeline, X, columns=("length", "kind"))


# ------------------------------------------------------------------------------
# What is drawn
# ------------------------------------------------------------------------------


@full
def test_labels_and_legend(density, moons):
    limits = ((-9, 9), (-9, 9))
    display = draw(
        EnergyDisplay.from_estimator(density, moons, n_samples=7, limits=limits, random_state=0)
    )
    ax = display.ax_
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title("left")) == ("x0", "x1", "")
    assert legend(ax) == ["200 rows of X", "7 samples"]
    dots, marks = (c for c in ax.collections if c.get_label() in legend(ax))
    np.testing.assert_array_equal(dots.get_offsets(), moons)
    np.testing.assert_array_equal(marks.get_offsets(), display.samples)
    assert ax.get_xlim() == (display.x[0], display.x[-1])
    assert ax.get_ylim() == (display.y[0], display.y[-1])
    assert colour_bar(display).get_ylabel() == "energy above the minimum, nats"
    assert display.levels_[0] == 0
    again = display.figure_
    assert display.plot().figure_ is not again


def test_the_title_names_the_fixed_columns(wide, table):
    display = draw(
        EnergyDisplay.from_estimator(wide, table, columns=("a", "b"), given=np.arange(5))
    )
    assert display.ax_.get_title("left") == "slice at c = 2, d = 3, e = 4"
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("a", "b")
    X = np.random.default_rng(0).normal(size=(50, 12))
    display = EnergyDisplay.from_estimator(GaussianMixture().fit(X), X, columns=(0, 11))
    title = draw(display).ax_.get_title("left")
    assert title == "slice at fixed values of 10 other columns"


def test_rows_outside_the_axes_are_counted(density, moons):
    display = EnergyDisplay.from_estimator(density, moons, limits=((0, 3), (-2, 2)))
    inside = int((moons[:, 0] >= 0).sum())
    assert legend(draw(display).ax_) == [f"{inside} of 200 rows of X"]


def test_it_draws_in_axes_that_are_given_and_leaves_pyplot_alone(density, moons, ax):
    import matplotlib.pyplot as plt

    display = EnergyDisplay.from_estimator(density, moons, ax=ax, grid_resolution=9)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    assert EnergyDisplay.from_estimator(density, moons, grid_resolution=9).ax_ is None
    assert plt.get_fignums() == []


def test_the_log_density_is_drawn_with_the_same_colours(moons):
    density = GaussianMixture(3, random_state=0).fit(moons)
    energy, log_density = (
        draw(EnergyDisplay.from_estimator(density, moons, response=response))
        for response in ("energy", "log_density")
    )
    assert colour_bar(log_density).get_ylabel() == "log density, nats"
    np.testing.assert_allclose(log_density.levels_[::-1], log_density.values.max() - energy.levels_)
    low, high = (display.ax_.collections[0] for display in (energy, log_density))
    np.testing.assert_array_equal(low.get_facecolor(), high.get_facecolor()[::-1])


def test_levels_resolve_the_mass_whatever_the_range_of_the_energy():
    x, y = np.meshgrid(np.linspace(-4, 4, 80), np.linspace(-4, 4, 80))
    near = (x**2 + y**2) / 2
    far = np.where(near > 8, 1e3 * near, near)
    for energy in (near, far):
        levels = _quantiles(energy.ravel(), 12, rounding=0.0)
        assert 3 <= ((levels > 0) & (levels < 3)).sum() <= 9
    # a spike of the density does not take all levels either
    spike = near.copy()
    spike[40, 40] = -50.0
    levels = _quantiles(spike.ravel() + 50, 12, rounding=0.0)
    assert ((levels > 50) & (levels < 58)).sum() >= 4


@full
def test_levels_are_increasing_and_as_many_as_asked(density, moons):
    display = EnergyDisplay.from_estimator(density, moons)
    for n in (2, 5, 30):
        levels = draw(display, levels=n).levels_
        assert (np.diff(levels) > 0).all()
        assert 2 <= len(levels) <= n
    np.testing.assert_array_equal(draw(display, levels=[0, 1, 10]).levels_, [0, 1, 10])
    for wrong in (1, 2.5, [3, 2], [[1, 2]], [1]):
        with pytest.raises(ValueError, match="levels must be"):
            display.plot(levels=wrong)


@pytest.mark.parametrize("response", leading(1, ["log_density", "energy"]))
def test_a_flat_and_a_bounded_density_are_drawn(response):
    x = np.arange(3.0)
    flat = np.full((3, 3), 7.0)
    draw(EnergyDisplay(x=x, y=x, values=flat, response=response))
    flat[0] = np.inf if response == "energy" else -np.inf
    display = draw(EnergyDisplay(x=x, y=x, values=flat + np.eye(3), response=response))
    assert display.ax_.get_facecolor()[:3] == (0.8, 0.8, 0.8)


# ------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------


def test_one_column_is_refused(moons):
    with pytest.raises(ValueError, match="EnergyHistogramDisplay"):
        EnergyDisplay.from_estimator(KernelDensity().fit(moons[:, :1]), moons[:, :1])


def test_more_columns_need_a_choice(wide, table):
    with pytest.raises(ValueError, match="columns="):
        EnergyDisplay.from_estimator(wide, table)
    with pytest.raises(ValueError, match="Pass X"):
        EnergyDisplay.from_estimator(wide, columns=(0, 1), limits=((0, 1), (0, 1)))


@pytest.mark.parametrize(
    "columns", [(0, 0), (0, 5), (-1, 0), ("a", "z"), ("a",), (0, 1, 2), (0, "a")]
)
def test_wrong_columns(wide, table, columns):
    with pytest.raises(ValueError, match="columns must be"):
        EnergyDisplay.from_estimator(wide, table, columns=columns)


def test_images_are_refused(density):
    with pytest.raises(ValueError, match="not images"):
        EnergyDisplay.from_estimator(density, np.zeros((3, 1, 2, 2)))


@pytest.mark.parametrize(
    "limits", [((0, 1),), ((0, np.inf), (0, 1)), ((np.nan, 1), (0, 1)), ((1, 1), (0, 1)), (0, 1)]
)
def test_wrong_limits(density, moons, limits):
    with pytest.raises(ValueError, match="limits must be"):
        EnergyDisplay.from_estimator(density, moons, limits=limits)


def test_estimators_without_samples_are_refused(moons):
    forest = IsolationForest(n_estimators=5, random_state=0).fit(moons)
    with pytest.raises(TypeError, match="IsolationForest has no method sample"):
        EnergyDisplay.from_estimator(forest, moons, n_samples=3)
    with pytest.raises(TypeError, match="has no score_samples"):
        EnergyDisplay.from_estimator(StandardScaler().fit(moons), moons)


def test_other_misuse(density, wide, moons, table):
    make = EnergyDisplay.from_estimator
    with pytest.raises(NotFittedError):
        make(fast(), moons)
    with pytest.raises(ValueError, match="range of the grid"):
        make(density)
    with pytest.raises(ValueError, match="X has no rows"):
        make(density, moons[:0])
    with pytest.raises(ValueError, match="response must be one of"):
        make(density, moons, response="score")
    with pytest.raises(ValueError, match="given must be"):
        make(wide, table, columns=(0, 1), given=[1, 2])
    with pytest.raises(ValueError, match="grid_resolution"):
        make(density, moons, grid_resolution=1)
    with pytest.raises(ValueError, match="n_samples"):
        make(density, moons, n_samples=-1)
    x = np.arange(3.0)
    with pytest.raises(ValueError, match="shape"):
        EnergyDisplay(x=x, y=x, values=np.ones((3, 2)))
    with pytest.raises(ValueError, match="9 of the 9 values on the grid are nan"):
        EnergyDisplay(x=x, y=x, values=np.full((3, 3), np.nan))
    with pytest.raises(ValueError, match="zero on the whole grid"):
        EnergyDisplay(x=x, y=x, values=np.full((3, 3), np.inf))


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


def column(estimator, name):
    return [epoch[name] for epoch in estimator.history_]


def test_lines_have_the_numbers_of_the_history(density):
    display = draw(TrainingDisplay.from_estimator(density))
    assert list(display.axes_) == ["loss", "gain_over_base", "lr"]
    lines = {line.get_label(): line for line in display.axes_["loss"].get_lines()}
    for label, name in (("training rows", "train_loss"), ("validation rows", "valid_loss")):
        np.testing.assert_array_equal(lines[label].get_ydata(), column(density, name))
        np.testing.assert_array_equal(lines[label].get_xdata(), np.arange(density.n_iter_) + 1)
    np.testing.assert_array_equal(
        display.axes_["lr"].get_lines()[0].get_ydata(), column(density, "lr")
    )
    best = int(np.argmin(column(density, "valid_loss"))) + 1
    assert display.best_epoch == best
    mark = lines[f"best: epoch {best}"]
    np.testing.assert_array_equal(mark.get_xdata(), [best, best])
    assert set(legend(display.axes_["loss"])) == set(lines)


@full
def test_axes_share_the_epochs(rbm):
    display = draw(TrainingDisplay.from_estimator(rbm))
    assert list(display.axes_) == ["loss", "energy_gap", "acceptance", "reconstruction_error", "lr"]
    axes = list(display.axes_.values())
    assert [ax.get_xlabel() for ax in axes] == ["", "", "", "", "epoch"]
    assert len({ax.get_xlim() for ax in axes}) == 1
    assert axes[0].get_title() == "RBMEstimator: 3 epochs"
    gap = display.axes_["energy_gap"]
    assert gap.get_ylabel() == "energy gap, nats"
    np.testing.assert_array_equal(gap.get_lines()[0].get_ydata(), column(rbm, "energy_gap"))


def test_a_loss_that_is_the_energy_gap_is_drawn_once(rbm):
    assert column(rbm, "train_loss") == column(rbm, "energy_gap")
    assert "train_loss" not in TrainingDisplay.from_estimator(rbm).names
    exact = RBMEstimator(2, n_iter=2, random_state=0).fit(np.eye(4))
    display = draw(TrainingDisplay.from_estimator(exact))
    assert display.names[0] == "train_loss"
    assert display.best_epoch is None


def test_names_select_the_curves(rbm):
    names = ["dur", "valid_loss", "largest_weight", "train_loss", "dur"]
    display = draw(TrainingDisplay.from_estimator(rbm, names=names))
    assert display.names == ["train_loss", "valid_loss", "dur", "largest_weight"]
    assert list(display.axes_) == ["loss", "dur", "largest_weight"]
    assert display.axes_["largest_weight"].get_ylabel() == "largest weight"


def test_roll_backs_are_in_the_title():
    history = {"train_loss": np.array([1.0])}
    for n, title in (
        (1, "It: 1 epoch, rolled back 1 time"),
        (2, "It: 1 epoch, rolled back 2 times"),
    ):
        display = draw(TrainingDisplay(history=history, n_restarts=n, estimator_name="It"))
        assert display.axes_["loss"].get_title() == title
    assert display.axes_["loss"].get_lines()[0].get_marker() == "o"


def test_gaps_in_the_history():
    history = {"train_loss": np.array([3.0, np.nan, 1.0]), "valid_loss": np.array([np.nan, 2, 3])}
    assert draw(TrainingDisplay(history=history)).best_epoch == 2
    history["valid_loss"][:] = np.nan
    assert draw(TrainingDisplay(history=history)).best_epoch is None


@full
def test_pipelines_searches_and_detectors(moons):
    pipeline = make_pipeline(StandardScaler(), fast()).fit(moons)
    search = GridSearchCV(fast(), {"optimizer__weight_decay": [0.0]}, cv=2).fit(moons)
    detector = EnergyOutlierDetector(fast(), random_state=0).fit(moons)
    for estimator in (pipeline, search, detector):
        display = TrainingDisplay.from_estimator(estimator)
        assert display.estimator_name == "ScoreMatchingDensity"
        assert len(display.history["train_loss"]) == fast().n_iter


def test_training_is_drawn_in_axes_that_are_given(density, ax):
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    display = TrainingDisplay.from_estimator(density, names=["lr"], ax=ax)
    assert display.axes_ == {"lr": ax}
    axes = Figure().subplots(1, 3)
    assert TrainingDisplay.from_estimator(density, ax=axes).figure_ is axes[0].figure
    assert [one.get_xlabel() for one in axes] == ["epoch"] * 3
    with pytest.raises(ValueError, match="3 panels: pass as many axes, not 1"):
        TrainingDisplay.from_estimator(density, ax=ax)
    assert plt.get_fignums() == []


def test_training_that_cannot_be_drawn(density, moons):
    with pytest.raises(NotFittedError):
        TrainingDisplay.from_estimator(fast())
    with pytest.raises(NotFittedError):
        TrainingDisplay.from_estimator(GridSearchCV(fast(), {}))
    with pytest.raises(TypeError, match="GaussianMixture has no history_"):
        TrainingDisplay.from_estimator(GaussianMixture().fit(moons))
    with pytest.raises(ValueError, match="no epochs"):
        TrainingDisplay.from_estimator(RBMEstimator(2, n_iter=0).fit(np.eye(4)))
    with pytest.raises(ValueError, match="no epochs"):
        TrainingDisplay(history={})
    for names in (["loss"], "lr", []):
        with pytest.raises(ValueError, match="names must be"):
            TrainingDisplay.from_estimator(density, names=names)
