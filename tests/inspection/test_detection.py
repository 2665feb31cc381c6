"""Displays of detectors: what they draw of what they are given, and what they refuse."""

from datetime import datetime
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import EnergyOutlierDetector, Explanation, RBMEstimator
from skebm.estimators.outlier.reasons.explanations import Contradiction
from skebm.inspection import (
    DetectorROCDisplay,
    EnergyHistogramDisplay,
    ExplanationDisplay,
    PValueDisplay,
)
from skebm.inspection.detection.band import CountDistribution, chance_band, levels_up_to
from skebm.inspection.explanations import short
from skebm.metrics import roc_auc_bootstrap

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def no_figure_is_left():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


class Scores:
    """Scores a row by its only column."""

    def score_samples(self, X):
        return np.asarray(X, dtype=float)[:, 0]


def normal_rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 2))


@pytest.fixture(scope="module")
def mixture():
    return make_pipeline(StandardScaler(), GaussianMixture(random_state=0)).fit(normal_rows(200))


@pytest.fixture(scope="module")
def detector():
    return EnergyOutlierDetector(GaussianMixture(), method="conformal", random_state=0).fit(
        pd.DataFrame(normal_rows(300), columns=["length", "width"])
    )


@pytest.fixture(scope="module")
def rbm():
    X = np.random.default_rng(0).random((100, 6)) < 0.3
    return RBMEstimator(4, base="independent", n_iter=2, random_state=0).fit(X.astype(float))


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def displays(detector, X):
    y = np.where(np.arange(len(X)) < len(X) // 2, 1, -1)
    return [
        EnergyHistogramDisplay.from_estimator(detector, X, X),
        PValueDisplay.from_estimator(detector, X),
        DetectorROCDisplay.from_estimators({"it": detector}, X, y),
        ExplanationDisplay.from_estimator(detector, X[:1]),
    ]


def test_they_draw_in_axes_that_are_given_and_leave_pyplot_alone(detector, ax):
    import matplotlib.pyplot as plt

    X = pd.DataFrame(normal_rows(20), columns=["length", "width"])
    for display in displays(detector, X):
        assert display.plot(ax) is display
        assert display.figure_ is ax.figure
        ax.figure.canvas.draw()
    assert plt.get_fignums() == []


def test_they_make_a_figure_of_their_own(detector):
    X = pd.DataFrame(normal_rows(20), columns=["length", "width"])
    for display in displays(detector, X):
        first = display.plot().figure_
        assert display.plot().figure_ is not first
        display.figure_.canvas.draw()


# ------------------------------------------------------------------------------
# Histograms
# ------------------------------------------------------------------------------


def bars(ax):
    """Heights and edges of the filled histograms."""
    from matplotlib.patches import StepPatch

    found = [patch for patch in ax.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    return [patch.get_data()[:2] for patch in found]


def test_bars_are_fractions_in_common_bins(mixture, ax):
    X_in, X_out = normal_rows(80, 1), normal_rows(50, 2) + 3
    names = ("old", "new")
    display = EnergyHistogramDisplay.from_estimator(mixture, X_in, X_out, names=names)
    energies = [-mixture.score_samples(X) for X in (X_in, X_out)]
    assert np.allclose(display.energy_in, energies[0])
    assert display.plot(ax, n_bins=12, clip=0).beyond_ == {"old": (0, 0), "new": (0, 0)}
    drawn = bars(ax)
    assert len(drawn) == 2
    for (height, edges), energy in zip(drawn, energies, strict=True):
        assert len(edges) == 13
        assert np.array_equal(edges, display.edges_)
        assert np.allclose(height, np.histogram(energy, edges)[0] / len(energy))
        assert height.sum() == pytest.approx(1)
    assert labels(ax) == ["old, 80 rows", "new, 50 rows"]
    area = roc_auc_score(np.repeat([0, 1], [80, 50]), np.concatenate(energies))
    assert display.auroc == pytest.approx(area)
    assert ax.get_legend().get_title().get_text() == f"AUROC {area:.3f}"
    assert ax.get_xlabel() == "minus score_samples"


def test_extreme_and_infinite_rows_are_counted_not_drawn(ax):
    energy = np.concatenate([np.linspace(0, 1, 200), [1e9, np.inf, np.inf, -np.inf]])
    display = EnergyHistogramDisplay(energy_in=energy, energy_out=np.array([0.5, 2e9, np.inf]))
    display.plot(ax)
    assert display.edges_[0] < 0
    assert 1 < display.edges_[-1] < 2
    assert display.beyond_ == {"in distribution": (1, 3), "out of distribution": (0, 2)}
    texts = {text.get_text() for text in ax.texts}
    assert texts == {"◀ 1 in distribution", "3 in distribution, 2 out of distribution ▶"}
    assert bars(ax)[0][0].sum() == pytest.approx(200 / 204)
    ranks = np.clip(energy, -1, 1e10), [0.5, 2e9, 1e10]
    area = roc_auc_score(np.repeat([0, 1], [204, 3]), np.concatenate(ranks))
    assert display.auroc == pytest.approx(area)


def test_the_axis_ends_where_others_spread_far_but_reaches_those_that_are_far():
    normal = np.linspace(0, 1, 100)
    spread = EnergyHistogramDisplay(energy_in=normal, energy_out=np.geomspace(1, 100, 100)).plot()
    assert 5 < spread.edges_[-1] < 20
    assert spread.beyond_["out of distribution"][1] == np.sum(spread.energy_out > spread.edges_[-1])
    far = EnergyHistogramDisplay(energy_in=normal, energy_out=100 + normal).plot()
    assert far.beyond_ == {"in distribution": (0, 0), "out of distribution": (0, 0)}


def test_equal_energies_and_a_single_row_are_drawn():
    for energy in ([3.0] * 10, [0.0], [1e12, 1e12]):
        display = EnergyHistogramDisplay(energy_in=np.array(energy)).plot()
        assert display.beyond_ == {"in distribution": (0, 0)}
        assert display.auroc is None
        display.figure_.canvas.draw()


def test_thresholds_and_energies_of_each_kind(mixture, detector, rbm, monkeypatch):
    X = normal_rows(30, 3)
    frame = pd.DataFrame(X, columns=["length", "width"])
    make = EnergyHistogramDisplay.from_estimator
    assert make(mixture, X).threshold is None

    found = make(detector, frame)
    assert found.threshold == 0
    assert np.array_equal(found.energy_in, -detector.decision_function(frame))
    search = GridSearchCV(detector, {"contamination": [0.1]}, scoring=lambda *_: 0.0).fit(frame)
    assert np.array_equal(make(search, frame).energy_in, -search.decision_function(frame))

    forest = make_pipeline(StandardScaler(), IsolationForest(random_state=0)).fit(X)
    assert make(forest, X).threshold == pytest.approx(-forest[-1].offset_)
    neighbours = LocalOutlierFactor(novelty=True).fit(X)
    assert make(neighbours, X).threshold == pytest.approx(-neighbours.offset_)

    V = (np.random.default_rng(1).random((40, 6)) < 0.5).astype(float)
    with monkeypatch.context() as patch:
        patch.setattr(RBMEstimator, "score_samples", None)  # log Z is not asked for
        found = make(rbm, V)
    assert np.array_equal(found.energy_in, rbm.energy(V))
    assert found.energy_name == "energy, nats"
    flagged = rbm.predict(V) == -1
    assert np.array_equal(found.energy_in > found.threshold + 1e-4, flagged)
    found.plot()
    line = found.ax_.get_lines()[0]
    assert line.get_label() == "threshold"
    assert list(line.get_xdata()) == [found.threshold] * 2


@pytest.mark.filterwarnings("error")
def test_thresholds_where_scores_are_infinite():
    class Detector(OutlierMixin, Scores, BaseEstimator):
        def __sklearn_is_fitted__(self):
            return True

        def fit(self, X, y=None):
            return self

        def decision_function(self, X):
            return self.shape * (self.score_samples(X) - 2.0)

        shape = 1.0

    make = EnergyHistogramDisplay.from_estimator
    assert make(Detector(), [[0.0], [np.inf], [-np.inf], [5.0]]).threshold == -2
    assert make(Detector(), [[np.inf]]).threshold is None
    Detector.shape = 3.0  # another scale: no line on this axis
    assert make(Detector(), [[0.0], [1.0]]).threshold is None


def test_invalid_arguments_of_histograms(mixture):
    X = normal_rows(5)
    make = EnergyHistogramDisplay.from_estimator
    with pytest.raises(NotFittedError):
        make(GaussianMixture(), X)
    with pytest.raises(TypeError, match="LogisticRegression has no score_samples"):
        make(LogisticRegression().fit(X, [0, 0, 1, 1, 1]), X)
    with pytest.raises(ValueError, match="X_out has no rows"):
        make(mixture, X, X[:0])
    with pytest.raises(ValueError, match="NaN"):
        make(mixture, np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match="Scores gives nan for 1 of the 2 rows of X_in"):
        make(Scores(), [[np.nan], [1.0]])
    with pytest.raises(ValueError, match="energy_in"):
        EnergyHistogramDisplay(energy_in=np.array([0, np.nan]))
    with pytest.raises(ValueError, match="energy_out must be"):
        EnergyHistogramDisplay(energy_in=np.zeros(3), energy_out=np.zeros((3, 1)))
    with pytest.raises(ValueError, match="two different names"):
        make(mixture, X, names=("a", "a"))
    with pytest.raises(ValueError, match="All energies are infinite"):
        EnergyHistogramDisplay(energy_in=np.full(3, np.inf)).plot()
    display = make(mixture, X)
    with pytest.raises(ValueError, match="n_bins must be"):
        display.plot(n_bins=0)
    with pytest.raises(ValueError, match="clip must be"):
        display.plot(clip=0.5)


# ------------------------------------------------------------------------------
# P-values
# ------------------------------------------------------------------------------


def test_coverage_is_that_of_all_orders():
    m, n, k = 4, 5, np.array([1, 2, 4])  # levels may be left out
    band = chance_band(m, n, k, 0.6, simultaneous=False)
    inside, total = 0, 0
    for places in combinations(range(m + n), n):
        below = np.array(places)[k - 1] - (k - 1)
        inside += bool(((below >= band.lower) & (below <= band.upper)).all())
        total += 1
    assert 0 < inside < total
    assert CountDistribution(m, n, k).coverage(band) == pytest.approx(inside / total)


def test_pointwise_ends_are_quantiles():
    m, n = 70, 40
    k = levels_up_to(n)
    assert np.array_equal(k, np.arange(1, n + 1))
    band = chance_band(m, n, k, 0.9, simultaneous=False)
    assert np.array_equal(band.lower, betabinom.ppf(0.05, m, k, n + 1 - k))
    assert np.array_equal(band.upper, betabinom.ppf(0.95, m, k, n + 1 - k))


def drawn_p_values(m, n, rng):
    """Of uniform statistics, calibration rows drawn anew."""
    known, new = np.sort(rng.random(n)), rng.random(m)
    return (1 + np.searchsorted(known, new)) / (n + 1)


@pytest.mark.parametrize(("m", "n"), [(60, 30), (50, 400), (500, 40)])
def test_bands_hold_by_simulation(m, n):
    rng, repeats = np.random.default_rng(0), 1500
    k = levels_up_to(n)
    bands = [chance_band(m, n, k, 0.9, simultaneous=s) for s in (True, False)]
    inside = np.empty((repeats, 2, len(k)), dtype=bool)
    for i in range(repeats):
        p = np.sort(drawn_p_values(m, n, rng))
        count = np.searchsorted(p, (k + 0.5) / (n + 1))
        for j, band in enumerate(bands):
            inside[i, j] = (count >= band.lower) & (count <= band.upper)
    error = 4 * np.sqrt(0.09 / repeats)
    together = inside[:, 0].all(1).mean()
    exact = CountDistribution(m, n, k).coverage(bands[0])
    assert exact >= 0.9
    assert abs(together - exact) < error
    assert exact < 0.93
    each = inside[:, 1].mean(0)
    assert each.min() > 0.9 - error


def test_levels_are_selected_where_there_are_many():
    k = levels_up_to(20_000)
    assert len(k) <= 300
    assert (k[:10] == np.arange(1, 11)).all()
    assert k[-1] == 20_000
    counts = CountDistribution(5000, 20_000, k)
    band = chance_band(5000, 20_000, k, 0.95, simultaneous=True)
    assert 0.95 <= counts.coverage(band) < 0.952


def test_the_curve_is_the_distribution_function(detector, ax):
    X = pd.DataFrame(normal_rows(90, 4), columns=["length", "width"])
    display = PValueDisplay.from_estimator(detector, X).plot(ax)
    p, n = detector.p_values(X), detector.n_calibration_
    assert np.allclose(display.p_values, np.sort(p))
    assert display.n_calibration == n
    assert np.allclose(display.levels, np.arange(1, n + 1) / (n + 1))
    curve = next(line for line in ax.get_lines() if line.get_label() == "90 rows")
    x, y = curve.get_xdata(), curve.get_ydata()
    assert np.allclose(y, [(p <= level + 1e-9).mean() for level in x])
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    flagged = (detector.predict(X) == -1).mean()
    dot = ax.get_lines()[-1]
    assert dot.get_xdata() == [detector.contamination_]
    assert dot.get_ydata() == [pytest.approx(flagged)]
    assert dot.get_label() == f"flagged at 0.1: {100 * flagged:.3g} %"
    assert display.n_outside == 0
    assert "95 % of calibrated curves" in labels(ax)
    # The band that is drawn is the one that is stored.
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    for edge in (display.lower, display.upper):
        assert {tuple(point) for point in np.column_stack([display.levels, edge])} <= {
            tuple(point) for point in corners
        }


def test_logarithmic_axes_show_all_levels(detector):
    display = PValueDisplay.from_p_values(np.arange(1, 21) / 20, 19, simultaneous=False)
    assert display.n_outside == 0
    ax = display.plot(log=True).ax_
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlim()[0] < 1 / 20
    assert 0 < ax.get_ylim()[0] < 1 / 20
    assert "95 % of calibrated curves, at each level" in labels(ax)
    assert not any(label.startswith(("flagged", "outside")) for label in labels(ax))
    display.figure_.canvas.draw()


def test_too_many_anomalies_leave_the_band(ax):
    p = np.concatenate([np.full(20, 1 / 100), np.arange(1, 81) / 100])
    display = PValueDisplay.from_p_values(p, 99).plot(ax)
    share = np.array([(p <= level + 1e-9).mean() for level in display.levels])
    out = (share > display.upper) | (share < display.lower)
    assert display.n_outside == out.sum() > 0
    assert f"outside at {out.sum()} of 99 levels" in labels(ax)
    marks = next(line for line in ax.get_lines() if line.get_label().startswith("outside"))
    assert np.allclose(marks.get_xdata(), display.levels[out])
    assert np.allclose(marks.get_ydata(), share[out])


def test_cross_conformal_has_what_is_proven(ax):
    X = normal_rows(60)
    detector = EnergyOutlierDetector(GaussianMixture(), method="cross-conformal", cv=3).fit(X)
    display = PValueDisplay.from_estimator(detector, normal_rows(20, 1)).plot(ax)
    assert display.lower is None
    assert display.n_outside is None
    at = np.searchsorted(display.levels, detector.contamination_ + 1e-9) - 1
    assert display.bound[at] == pytest.approx(detector.false_alarm_bound_)
    line = next(line for line in ax.get_lines() if line.get_label().startswith("proven"))
    assert np.allclose(line.get_ydata()[:-1], display.bound)
    assert len(ax.collections) == 0


def test_invalid_arguments_of_p_values(detector):
    X = normal_rows(30)
    make = PValueDisplay.from_estimator
    with pytest.raises(ValueError, match="method='quantile' gives no p-values"):
        make(EnergyOutlierDetector(GaussianMixture()).fit(X), X)
    with pytest.raises(NotFittedError):
        make(EnergyOutlierDetector(method="conformal"), X)
    with pytest.raises(TypeError, match="PValueDisplay shows a fitted EnergyOutlierDetector"):
        make(GaussianMixture().fit(X), X)
    with pytest.raises(ValueError, match="X has no rows"):
        make(detector, X[:0])
    take = PValueDisplay.from_p_values
    for p in ([], [[0.5]], 0.5):
        with pytest.raises(ValueError, match="p_values must be of shape"):
            take(p, 9)
    for p in ([np.nan], [0.0], [1.1]):
        with pytest.raises(ValueError, match=r"must lie in \(0, 1\]"):
            take(p, 9)
    with pytest.raises(ValueError, match=r"multiples of 1 / \(n_calibration \+ 1\).*=8"):
        take([0.1, 0.2], 8)
    with pytest.raises(ValueError, match="n_calibration must be an integer"):
        take([0.1], 0)
    with pytest.raises(ValueError, match="n_folds must be an integer"):
        take([0.1], 9, n_folds=1.5)
    with pytest.raises(ValueError, match="confidence must be in"):
        take([0.1], 9, confidence=95)
    with pytest.raises(ValueError, match="alarm_level must be in"):
        take([0.1], 9, alarm_level=0)


# ------------------------------------------------------------------------------
# ROC curves
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return np.concatenate([normal_rows(60, 5), normal_rows(40, 6) * 2 + 1])


IS_ANOMALY = np.repeat([False, True], [60, 40])


def test_curves_areas_and_the_points_of_predict(mixture, rows, ax):
    forest = IsolationForest(random_state=0).fit(rows)
    given = EnergyOutlierDetector(mixture, prefit=True, method="conformal").fit(normal_rows(50, 7))
    display = DetectorROCDisplay.from_estimators(
        {"forest": forest, "detector": given, "mixture": mixture},
        rows,
        np.where(IS_ANOMALY, -1, 1),
        random_state=0,
        n_bootstraps=50,
    ).plot(ax)
    score = -mixture.score_samples(rows)
    curve = display.curves["mixture"]
    assert curve.operating_point is None  # its predict says components
    for false, true in zip(curve.false_rate, curve.true_rate, strict=True):
        # Each point is a threshold: some score has these shares at or above it.
        shares = [
            ((score[~IS_ANOMALY] >= t).mean(), (score[IS_ANOMALY] >= t).mean()) for t in score
        ]
        assert (false, true) == (0, 0) or np.isclose(shares, (false, true)).all(1).any()
    found = roc_auc_bootstrap(IS_ANOMALY, score, n_bootstraps=50, pos_label=True, random_state=0)
    assert np.allclose(curve.auroc, found)
    assert np.allclose(display.curves["detector"].auroc.value, found.value)
    called = given.predict(rows) == -1
    rates = called[~IS_ANOMALY].mean(), called[IS_ANOMALY].mean()
    assert display.curves["detector"].operating_point == pytest.approx(rates)
    for name in ("forest", "detector"):
        false, true = display.curves[name].operating_point
        low, high = (
            np.interp(false + step, display.curves[name].false_rate, display.curves[name].true_rate)
            for step in (-1e-9, 1e-9)
        )
        assert low - 1e-6 <= true <= high + 1e-6
    expected = f"mixture: {found.value:.3f} ± {found.std_error:.3f}"
    assert labels(ax)[2:] == [expected, "threshold of predict"]
    dots = [line for line in ax.get_lines() if line.get_marker() == "o" and len(line.get_xdata())]
    assert [dot.get_xydata()[0].tolist() for dot in dots] == [
        list(display.curves[name].operating_point) for name in ("forest", "detector")
    ]
    drawn = next(line for line in ax.get_lines() if line.get_label() == expected)
    assert np.array_equal(drawn.get_xydata().T, [curve.false_rate, curve.true_rate])


def test_infinite_scores_are_ranked():
    y = [1, 1, -1, -1]
    X = [[np.inf], [0.0], [-1.0], [-np.inf]]
    display = DetectorROCDisplay.from_estimators({"it": Scores()}, X, y, n_bootstraps=2)
    assert display.curves["it"].auroc.value == 1


@pytest.mark.parametrize(
    ("y", "pos_label"),
    [
        (np.where(IS_ANOMALY, -1, 1), None),
        (np.where(IS_ANOMALY, -1.0, 1.0), None),
        (np.where(IS_ANOMALY, -1, 1), -1),
        (np.where(IS_ANOMALY, 1, -1), 1),
        (IS_ANOMALY, True),
        (~IS_ANOMALY, False),
        (IS_ANOMALY.astype(int), 1),
        (pd.Series(np.where(IS_ANOMALY, "bad", "good")), "bad"),
    ],
)
def test_labels_determine_the_anomalies(mixture, rows, y, pos_label):
    display = DetectorROCDisplay.from_estimators(
        {"it": mixture}, rows, y, pos_label=pos_label, n_bootstraps=2
    )
    score = -mixture.score_samples(rows)
    assert display.curves["it"].auroc.value == pytest.approx(roc_auc_score(IS_ANOMALY, score))


@pytest.mark.parametrize(
    ("y", "pos_label", "message"),
    [
        (IS_ANOMALY, None, "do not determine which rows are anomalies"),
        (IS_ANOMALY.astype(int), None, "pos_label=1"),
        (np.where(IS_ANOMALY, "bad", "good"), None, "do not determine which rows"),
        (np.ones(100), None, r"must have normal rows and anomalies; its labels are 1.0\."),
        (np.arange(100), None, "its labels are 0, 1, 2, 3, 4, ..."),
        (np.where(IS_ANOMALY, -1, 1), 0, "pos_label=0"),
        (np.where(IS_ANOMALY, np.nan, 1), None, "y contains NaN"),
        (np.ones((100, 2)), None, "y must be of shape"),
        (np.where(IS_ANOMALY, -1, 1)[1:], None, "inconsistent numbers of samples"),
        ([], None, "0 sample"),
    ],
)
def test_ambiguous_labels_are_refused(mixture, rows, y, pos_label, message):
    with pytest.raises(ValueError, match=message):
        DetectorROCDisplay.from_estimators({"it": mixture}, rows, y, pos_label=pos_label)


def test_invalid_arguments_of_roc_curves(mixture, rows):
    y = np.where(IS_ANOMALY, -1, 1)
    with pytest.raises(ValueError, match="dict of fitted detectors by name.*got Pipeline"):
        DetectorROCDisplay.from_estimators(mixture, rows, y)
    with pytest.raises(ValueError, match="got dict without any"):
        DetectorROCDisplay.from_estimators({}, rows, y)
    with pytest.raises(NotFittedError):
        DetectorROCDisplay.from_estimators({"it": IsolationForest()}, rows, y)
    with pytest.raises(ValueError, match="at least one curve"):
        DetectorROCDisplay({})


def test_many_curves_differ_in_colour_or_line(mixture, rows):
    y = np.where(IS_ANOMALY, -1, 1)
    many = {f"number {i}": mixture for i in range(8)}
    display = DetectorROCDisplay.from_estimators(many, rows, y, n_bootstraps=2).plot()
    lines = [line for line in display.ax_.get_lines() if line.get_label().startswith("number")]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8


# ------------------------------------------------------------------------------
# Explanations
# ------------------------------------------------------------------------------


def explanation(**changes):
    parts = {
        "contributions": np.array([[0.5, 4.0, -1.0], [np.inf, 2.0, np.nan]]),
        "values": np.array([[14.8, "red", 1234.56], [np.nan, None, 3.0]], dtype=object),
        "expected": np.array([[12.9, "blue", 0.000123], [7.0, "blue", 1.0]], dtype=object),
        "feature_names": ["alcohol", "colour", "weight"],
        "unit": "nats",
    }
    return Explanation(**(parts | changes))


def test_bars_are_the_contributions_in_descending_order():
    display = ExplanationDisplay(explanation()).plot()
    first, second = display.axes_
    assert [bar.get_width() for bar in first.patches] == [4.0, 0.5, -1.0]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first at the top
    assert [tick.get_text() for tick in first.get_yticklabels()] == [
        "colour = red\nexpected blue",
        "alcohol = 14.8\nexpected 12.9",
        "weight = 1235\nexpected 0.000123",
    ]
    assert first.get_xlabel() == "contribution, nats"
    assert first.get_title() == "row 0"
    # Bars that point the other way have another colour.
    colours = [bar.get_facecolor() for bar in first.patches]
    assert colours[0] == colours[1] != colours[2]

    widths = [bar.get_width() for bar in second.patches]
    assert widths == [2.5, 2.0, 0.0]
    assert [text.get_text().strip() for text in second.texts] == ["∞"]
    assert [tick.get_text() for tick in second.get_yticklabels()] == [
        "alcohol = missing\nexpected 7",
        "colour = missing\nexpected blue",
        "weight = 3\nnot explained",
    ]
    for ax in display.axes_:
        low, high = ax.get_xlim()
        assert all(low <= bar.get_width() <= high for bar in ax.patches)
    display.figure_.canvas.draw()


def test_what_is_expected_is_as_precise_as_the_value():
    pd = pytest.importorskip("pandas")
    day, second = pd.Timestamp("2025-01-03"), pd.Timestamp("2024-12-16 13:33:54.157")
    display = ExplanationDisplay(
        explanation(
            contributions=np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]),
            values=np.array([[day, True, second], [pd.NaT, False, day]], dtype=object),
            expected=np.array([[second, 0.2, second], [second, np.nan, pd.NaT]], dtype=object),
        )
    ).plot()
    labels = [[tick.get_text() for tick in ax.get_yticklabels()] for ax in display.axes_]
    assert labels == [
        [
            "alcohol = 2025-01-03\nexpected 2024-12-16",
            "colour = True\nexpected False",
            "weight = 2024-12-16 13:33\nexpected 2024-12-16 13:33",
        ],
        [
            "alcohol = missing\nexpected 2024-12-16 13:33",
            "colour = False\nexpected missing",
            "weight = 2025-01-03\nexpected missing",
        ],
    ]


def test_only_infinite_contributions_and_none_expected():
    given = np.array([[-np.inf, np.inf, 0.0]])
    values = np.zeros((1, 3))
    display = ExplanationDisplay(
        explanation(contributions=given, values=values, expected=None, unit=""), n_features=2
    ).plot()
    (ax,) = display.axes_
    assert [bar.get_width() for bar in ax.patches] == [1.25, 0.0]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["colour = 0", "weight = 0"]
    assert ax.get_xlabel() == "contribution, units of the statistic"
    whole = explanation(contributions=given, values=values, expected=None)
    all_three = ExplanationDisplay(whole).plot().axes_[0]
    assert [bar.get_width() for bar in all_three.patches] == [1.25, 0.0, -1.25]


def test_pairs_are_beside_their_bars():
    pairs = [Contradiction(0, "alcohol", "weight", 2.0)]
    first, second = ExplanationDisplay(explanation(pairs=pairs)).plot().axes_
    assert [tick.get_text() for tick in first.get_yticklabels()] == [
        "colour = red\nexpected blue",
        "alcohol = 14.8\nexpected 12.9, contradicts weight",
        "weight = 1235\nexpected 0.000123, contradicts alcohol",
    ]
    assert not any("contradicts" in tick.get_text() for tick in second.get_yticklabels())


def test_an_explanation_plots_itself(ax):
    one = explanation(
        contributions=np.array([[0.5, 4.0, -1.0]]), values=np.ones((1, 3)), expected=np.ones((1, 3))
    )
    display = one.plot(ax, n_features=2, row_names=["today"])
    assert isinstance(display, ExplanationDisplay)
    assert [bar.get_width() for bar in ax.patches] == [4.0, 0.5]
    assert ax.get_title() == "today"
    with pytest.raises(ValueError, match="n_features"):
        one.plot(n_features=0)


@pytest.mark.parametrize("method", ["auto", "imputation", "score"])
def test_a_detector_explains_rows_by_name(detector, method):
    X = pd.DataFrame([[9.0, 0.0], [0.0, -7.0]], columns=["length", "width"], index=["a", "b"])
    display = ExplanationDisplay.from_estimator(detector, X, method=method, n_features=1).plot()
    table = detector.explain(X, method=method).to_frame(1)
    widths = [ax.patches[0].get_width() for ax in display.axes_]
    assert np.allclose(widths, table["contribution"])
    names = [ax.get_yticklabels()[0].get_text() for ax in display.axes_]
    assert names[0].startswith("length = 9")
    assert names[1].startswith("width = -7")
    assert ("expected" in names[0]) == (method != "score")
    p = detector.p_values(X)
    assert [ax.get_title() for ax in display.axes_] == [
        f"row {name}, p = {value:.2g}" for name, value in zip("ab", p, strict=True)
    ]


def test_axes_for_every_row():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    display = ExplanationDisplay(explanation(), row_names=["x", "y"]).plot(axes)
    assert display.axes_ == list(axes)
    assert [ax.get_title() for ax in axes] == ["x", "y"]
    with pytest.raises(ValueError, match="There are 2 rows to draw: pass as many axes, not 1"):
        display.plot(axes[0])
    odd = ExplanationDisplay(explanation(contributions=np.zeros((3, 3)))).row_names
    assert odd == ["row 0", "row 1", "row 2"]


@pytest.mark.full
def test_no_text_overlaps(detector):
    X = pd.DataFrame(normal_rows(6) * 1e3, columns=["length", "width"])
    display = ExplanationDisplay.from_estimator(detector, X).plot()
    display.figure_.canvas.draw()
    boxes = [
        text.get_window_extent()
        for ax in display.axes_
        for text in (ax.title, ax.xaxis.label, *ax.get_yticklabels(), *ax.get_xticklabels())
        if text.get_text()
    ]
    assert len(boxes) > 30
    for one, other in combinations(boxes, 2):
        assert not one.padded(-1.5).overlaps(other.padded(-1.5))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (14.84, "14.8"),
        (3.0, "3"),
        (np.float32(0.125), "0.125"),
        (-1234.5, "-1234"),
        (12345678.0, "1.23e+07"),
        (23_400.4, "23,400"),
        (pd.NA, "missing"),
        (np.inf, "inf"),
        (np.nan, "missing"),
        (None, "missing"),
        (True, "True"),
        ("a name", "a name"),
        ("x" * 60, "x" * 27 + "…"),
        (datetime(2025, 1, 3), "2025-01-03"),
        (datetime(2025, 1, 3, 14, 5, 59), "2025-01-03 14:05"),
    ],
)
def test_short_values(value, text):
    assert short(value) == text


def test_invalid_arguments_of_explanations(detector):
    X = pd.DataFrame(normal_rows(7), columns=["length", "width"])
    make = ExplanationDisplay.from_estimator
    with pytest.raises(ValueError, match="At most 6 rows are drawn, got 7: pick"):
        make(detector, X)
    with pytest.raises(ValueError, match="There are no rows"):
        make(detector, X[:0])
    with pytest.raises(NotFittedError):
        make(EnergyOutlierDetector(), X[:1])
    with pytest.raises(TypeError, match="got GaussianMixture. Wrap the estimator"):
        make(GaussianMixture().fit(X), X[:1])
    with pytest.raises(ValueError, match="method='lime' must be"):
        make(detector, X[:1], method="lime")
    with pytest.raises(ValueError, match="n_features must be an integer"):
        make(detector, X[:1], n_features=0)
    with pytest.raises(ValueError, match="row_names"):
        ExplanationDisplay(explanation(), row_names=["a"])
    with pytest.raises(TypeError, match="EnergyOutlierDetector"):
        ExplanationDisplay(np.zeros((1, 2)))
