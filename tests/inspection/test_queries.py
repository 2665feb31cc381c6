"""ConditionalDisplay and PartialDisplay: what they store, draw and refuse."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import RBMEstimator, TractableDensity
from skebm.inspection import ConditionalDisplay, PartialDisplay
from skebm.inspection.queries import MAX_LEVELS

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

rng = np.random.default_rng(0)
NUMBERS = rng.normal(size=(300, 3)) @ np.array([[1.0, 0.8, 0.2], [0, 0.5, -0.4], [0, 0, 1.0]])
KIND = np.where(NUMBERS[:, 0] > 0, "high", "low")
KIND[::10] = "none"
MIXED = pd.DataFrame(NUMBERS[:, :2], columns=["a", "b"]).assign(kind=KIND, on=NUMBERS[:, 2] > 0)
BITS = (rng.random((200, 4)) < 0.4).astype(float)


@pytest.fixture(scope="module")
def normal():
    return TractableDensity("gaussian").fit(NUMBERS)


@pytest.fixture(scope="module")
def mixed():
    return TractableDensity(random_state=0).fit(MIXED)


@pytest.fixture(scope="module")
def bits():
    return RBMEstimator(3, n_iter=5, random_state=0).fit(BITS)


def draw(display, **kwargs):
    """Plot and render, and let no warning of the layout pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert display.plot(**kwargs) is display
        display.figure_.canvas.draw()
    return display.ax_


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def regression(model, condition, column):
    """Slope, intercept and standard deviation of a normal column given one other."""
    covariance = model.distribution_.covariance.numpy()
    mean = model.distribution_.mean.numpy()
    slope = covariance[column, condition] / covariance[condition, condition]
    variance = covariance[column, column] - slope * covariance[condition, column]
    return slope, mean[column] - slope * mean[condition], np.sqrt(variance)


# ------------------------------------------------------------------------------
# One row
# ------------------------------------------------------------------------------


def test_a_normal_column_has_its_density_and_its_quantiles(normal):
    row = np.array([[1.0, 2.0, np.nan]])
    display = ConditionalDisplay.from_estimator(normal, row, 1, quantiles=(0.1, 0.9))
    slope, intercept, scale = regression(normal, 0, 1)
    truth = stats.norm(slope * 1.0 + intercept, scale)
    np.testing.assert_allclose(display.p, truth.pdf(display.x), rtol=1e-9)
    np.testing.assert_allclose(list(display.quantiles.values()), truth.ppf([0.1, 0.9]))
    assert abs(integrate.trapezoid(display.p, display.x) - 1) < 0.01
    assert (display.name, display.observed, display.given) == ("x1", 2.0, {"x0": 1.0})
    ax = draw(display)
    assert ax.get_title(loc="left") == "given x0 = 1"
    assert legend(ax) == ["quantiles 10, 90 %", "observed: 2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x1", "density")


def test_narrow_peaks_are_not_missed():
    X = np.concatenate([rng.normal(0, 1e-3, 500), rng.normal(100, 1e-3, 500)])[:, None]
    model = TractableDensity("mixture", n_components=2, random_state=0).fit(np.c_[X, X * 0 + 1])
    display = ConditionalDisplay.from_estimator(model, [[np.nan, np.nan]], 0)
    found = model.conditional([[np.nan, np.nan]], 0)
    assert display.p.max() > 0.9 * found.pdf(found.ppf(np.linspace(0.01, 0.99, 999)[:, None])).max()


def test_levels_are_bars_and_the_observed_one_has_its_colour(mixed):
    row = MIXED.iloc[[3]]
    display = ConditionalDisplay.from_estimator(mixed, row, "kind")
    assert display.quantiles is None
    np.testing.assert_allclose(display.p, mixed.conditional(row, "kind").probabilities[0])
    ax = draw(display)
    heights = [bar.get_height() for bar in ax.patches[: len(display.x)]]
    np.testing.assert_allclose(heights, display.p)
    colours = [bar.get_facecolor() for bar in ax.patches[: len(display.x)]]
    assert len(set(colours)) == 2
    assert colours.count(colours[list(display.x).index(KIND[3])]) == 1
    assert [t.get_text() for t in ax.get_xticklabels()] == display.x.tolist()
    unknown = ConditionalDisplay.from_estimator(mixed, row.assign(kind=None), "kind")
    assert unknown.observed is None
    assert draw(unknown).get_legend() is None


def test_models_of_bits_and_searches(bits):
    display = ConditionalDisplay.from_estimator(bits, BITS[:1], 2)
    assert display.x.tolist() == [0, 1]
    search = GridSearchCV(TractableDensity("gaussian"), {"distribution": ["gaussian"]}, cv=2)
    search.fit(NUMBERS)
    assert ConditionalDisplay.from_estimator(search, NUMBERS[:1], 0).method == "exact"


def test_of_many_levels_the_most_probable_ones_are_drawn_in_their_order():
    p = np.r_[np.full(10, 0.01), np.full(10, 0.09)]
    display = ConditionalDisplay(name="c", x=np.arange(20.0), p=p)
    ax = draw(display)
    assert len(ax.patches) == MAX_LEVELS
    assert [bar.get_height() for bar in ax.patches][-10:] == [0.09] * 10


# ------------------------------------------------------------------------------
# As a condition changes
# ------------------------------------------------------------------------------


def test_a_normal_column_moves_along_its_regression(normal):
    values = np.linspace(-2, 2, 7)
    display = PartialDisplay.from_estimator(normal, 1, 0, values=values, X=NUMBERS)
    slope, intercept, scale = regression(normal, 0, 1)
    line = slope * values + intercept
    np.testing.assert_allclose(display.mean, line)
    np.testing.assert_allclose(display.quantiles[0.95], line + scale * stats.norm.ppf(0.95))
    np.testing.assert_array_equal(display.data, NUMBERS[:, :2])
    ax = draw(display)
    assert legend(ax) == ["quantiles 5 to 95 %", "median", "mean"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x0", "x1")
    assert ax.get_xlim() == (-2, 2)


def test_values_of_a_number_span_its_distribution_given_the_others(normal):
    free = PartialDisplay.from_estimator(normal, 1, 0).x
    mean, scale = normal.distribution_.mean[0], normal.distribution_.covariance[0, 0] ** 0.5
    np.testing.assert_allclose(free[[0, -1]], stats.norm(mean, scale).ppf([0.01, 0.99]))
    fixed = PartialDisplay.from_estimator(normal, 1, 0, given={2: 1.0}, grid_resolution=5)
    assert np.ptp(fixed.x) < np.ptp(free)
    rows = np.column_stack([fixed.x, np.full(5, np.nan), np.ones(5)])
    np.testing.assert_allclose(fixed.mean, normal.predict_column(rows, 1))
    assert draw(fixed).get_title(loc="left") == "given x2 = 1"


@pytest.mark.parametrize("column", ["a", "kind", "on"])
@pytest.mark.parametrize("condition", ["b", "kind", "on"])
def test_numbers_and_levels_given_numbers_and_levels(column, condition, mixed):
    if column == condition:
        return
    display = PartialDisplay.from_estimator(mixed, column, condition, grid_resolution=6, X=MIXED)
    rows = pd.DataFrame({condition: display.x}).reindex(columns=MIXED.columns)
    truth = mixed.conditional(rows, column)
    assert display.x_is_levels == (condition != "b")
    if column == "a":
        np.testing.assert_allclose(display.mean, truth.mean())
        np.testing.assert_allclose(display.quantiles[0.05], truth.ppf(0.05))
    else:
        shares = np.array(list(display.probabilities.values()))
        np.testing.assert_allclose(shares, truth.probabilities.T)
        np.testing.assert_allclose(shares.sum(0), 1)
    assert (display.data is not None) == (column == "a" and condition == "b")
    ax = draw(display)
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert condition == "b" or labels == [str(x) for x in display.x]


def test_bands_pair_quantiles_and_a_middle_one_is_a_line(normal):
    five = PartialDisplay.from_estimator(normal, 1, 0, quantiles=(0.95, 0.05, 0.25, 0.75, 0.4))
    names = legend(draw(five))
    assert names == ["quantiles 5 to 95 %", "quantiles 25 to 75 %", "quantile 40 %", "mean"]


def test_it_draws_in_axes_that_are_given(normal, mixed):
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    one = ConditionalDisplay.from_estimator(normal, NUMBERS[:1], 0, ax=axes[0])
    two = PartialDisplay.from_estimator(mixed, "kind", "a", ax=axes[1])
    assert (one.ax_, two.ax_) == tuple(axes)
    assert axes[1].get_legend() is not None


# ------------------------------------------------------------------------------
# What they refuse
# ------------------------------------------------------------------------------


def test_estimators_that_answer_no_questions(normal):
    with pytest.raises(NotFittedError):
        PartialDisplay.from_estimator(clone(normal), 1, 0)
    for other in (
        GaussianMixture().fit(NUMBERS),
        make_pipeline(StandardScaler(), TractableDensity("gaussian")).fit(NUMBERS),
    ):
        with pytest.raises(TypeError, match="density of the rows of X"):
            ConditionalDisplay.from_estimator(other, NUMBERS[:1], 0)


def test_arguments_that_make_no_sense(normal, mixed):
    with pytest.raises(ValueError, match="one row, got 300"):
        ConditionalDisplay.from_estimator(normal, NUMBERS, 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        ConditionalDisplay.from_estimator(normal, NUMBERS[:1], 0, quantiles=(0, 0.5))
    with pytest.raises(ValueError, match="must differ"):
        PartialDisplay.from_estimator(normal, 1, 1)
    with pytest.raises(ValueError, match="must differ"):
        PartialDisplay.from_estimator(normal, 1, 0, given={1: 3.0})
    with pytest.raises(ValueError, match="no column 'c'.*'kind'"):
        PartialDisplay.from_estimator(mixed, "a", "c")
    with pytest.raises(ValueError, match="Pass mean"):
        PartialDisplay(name="a", condition="b", x=np.zeros(2))
    with pytest.raises(ValueError, match="as long as each other"):
        ConditionalDisplay(name="a", x=np.zeros(2), p=np.zeros(3))
