"""Displays of the columns that make rows anomalous."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm._validation import check_is_fitted, n_rows
from skebm.base.sampler import whole_number
from skebm.estimators import Explanation
from skebm.estimators.outlier.reasons.text import as_precise, short, shorten
from skebm.inspection._drawing import NAVY, ORANGE, pyplot

# More rows than this belong in a table.
MAX_ROWS = 6
N_SIDE = 2  # panels side by side
# Inches: the width of a panel; the height of a bar, and of a panel without bars.
WIDTH, BAR, FRAME = 4.6, 0.42, 0.95
SMALL = 9  # points
# Length of the bar of an infinite contribution in units of the longest finite one.
INFINITE = 1.25


@dataclass(eq=False, repr=False)
class ExplanationDisplay:
    """Bar charts of the columns that make rows anomalous, a panel for each row.

    Beside a bar are the name of the column, the value in the row, the value that the model expects
    given the other columns, and the column that it contradicts, if they are a pair (under
    ``method="score"`` the value that the last step of a pipeline sees, without an expected one).
    Bars of columns that are more anomalous than typical point to the right. Each panel has its own
    axis. A bar with ∞ in it stands for an infinite contribution: the row has density zero.

    Parameters
    ----------
    explanation : Explanation
        Of at most six rows, as :meth:`skebm.EnergyOutlierDetector.explain` returns it.
    n_features : int, default=8
        Largest number of columns to draw for each row, the most anomalous ones.
    row_names : sequence of str or None, default=None
        Titles of the panels; None counts the rows from 0.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        The figure that :meth:`plot` last drew in.
    axes_ : list of matplotlib.axes.Axes
        Its axes, one for each row.

    See Also
    --------
    skebm.EnergyOutlierDetector.explain : Computes the contributions and defines them.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import EnergyOutlierDetector
    >>> from skebm.inspection import ExplanationDisplay
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> density = GaussianMixture(covariance_type="diag", random_state=0)
    >>> detector = EnergyOutlierDetector(density).fit(X[y == 0])
    >>> display = ExplanationDisplay.from_estimator(detector, X[y == 1][:2])
    >>> display.explanation.to_frame(1)["feature"].tolist()
    ['flavanoids', 'flavanoids']

    ``display.plot()`` draws it.
    """

    explanation: Explanation
    n_features: int = 8
    row_names: Sequence[str] | None = None
    figure_: Any = field(default=None, init=False)
    axes_: list[Any] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.explanation, Explanation):
            raise TypeError(
                "ExplanationDisplay takes what EnergyOutlierDetector.explain returns, got "
                f"{type(self.explanation).__name__}."
            )
        whole_number("n_features", self.n_features, 1)
        n = len(self.explanation.contributions)
        _check_number(n)
        if self.row_names is None:
            self.row_names = [f"row {i}" for i in range(n)]
        if len(self.row_names) != n:
            raise ValueError(f"{len(self.row_names)} row_names do not fit {n} rows.")

    @classmethod
    def from_estimator(
        cls, detector: Any, X: Any, *, method: str = "auto", n_features: int = 8
    ) -> ExplanationDisplay:
        """Explain rows by a fitted detector.

        Parameters
        ----------
        detector : EnergyOutlierDetector
            Fitted.
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            At most six rows. The titles of the panels are the index of a pandas frame, and show
            the p-values of a conformal detector.
        method : {"auto", "imputation", "score"}, default="auto"
            As in :meth:`skebm.EnergyOutlierDetector.explain`.
        n_features : int, default=8
            Largest number of columns to draw for each row, the most anomalous ones.

        Returns
        -------
        ExplanationDisplay
        """
        if not hasattr(type(detector), "explain"):
            raise TypeError(
                f"ExplanationDisplay shows a fitted EnergyOutlierDetector, got "
                f"{type(detector).__name__}. Wrap the estimator in one (prefit=True where it is "
                "fitted); of a pipeline or a search pass the step itself."
            )
        check_is_fitted(detector)
        _check_number(n_rows(X))
        explanation = detector.explain(X, method=method)
        index = getattr(X, "index", None)  # a list has a method of that name
        labels = range(n_rows(X)) if index is None or callable(index) else index
        names = [f"row {label}" for label in labels]
        if hasattr(detector, "p_values"):
            p_values = detector.p_values(X)
            names = [f"{name}, p = {p:.2g}" for name, p in zip(names, p_values, strict=True)]
        return cls(explanation, n_features, names)

    def plot(self, ax: Any = None) -> ExplanationDisplay:
        """Draw the bars.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, array-like of them, or None, default=None
            As many as there are rows. None makes a new figure.

        Returns
        -------
        ExplanationDisplay
            Itself, with `figure_` and `axes_` set.
        """
        n = len(self.explanation.contributions)
        axes = self._new_axes(n) if ax is None else list(np.ravel(np.array(ax, dtype=object)))
        if len(axes) != n:
            raise ValueError(f"There are {n} rows to draw: pass as many axes, not {len(axes)}.")
        self.figure_, self.axes_ = axes[0].figure, axes
        for row, panel in enumerate(axes):
            self._draw(panel, row)
        return self

    def _new_axes(self, n: int) -> list[Any]:
        side = min(n, N_SIDE)
        down = math.ceil(n / side)
        n_bars = min(self.n_features, self.explanation.contributions.shape[1])
        figure = pyplot("ExplanationDisplay").figure(
            figsize=(WIDTH * side, down * (FRAME + BAR * n_bars)), layout="constrained"
        )
        axes = list(np.ravel(figure.subplots(down, side, squeeze=False)))
        for spare in axes[n:]:
            spare.remove()
        return axes[:n]

    def _draw(self, ax: Any, row: int) -> None:
        """The bars of one row, the most anomalous column at the top."""
        contributions = self.explanation.contributions[row]
        shown = np.argsort(-contributions, kind="stable")[: self.n_features]  # nan comes last
        length = contributions[shown]
        finite = np.isfinite(length)
        longest = float(np.abs(length[finite]).max(initial=0.0)) or 1.0
        longest *= INFINITE
        drawn = np.nan_to_num(length, nan=0.0, posinf=longest, neginf=-longest)
        colours = [ORANGE if value > 0 else NAVY for value in drawn]
        places = np.arange(len(shown))
        ax.barh(places, drawn, color=colours, height=0.62)
        for place in places[np.isinf(length)]:
            style = {"ha": "right" if drawn[place] > 0 else "left", "va": "center_baseline"}
            ax.text(drawn[place], place, " ∞ ", color="white", fontsize=14, **style)
        ax.axvline(0, color="0.3", linewidth=0.8)
        low, high = drawn.min(initial=0.0), drawn.max(initial=0.0)
        room = 0.05 * (high - low or 1.0)
        ax.set(xlim=(low - room if low else 0.0, high + room), ylim=(len(shown) - 0.4, -0.6))
        ax.set_yticks(places, [self._label(row, j) for j in shown], fontsize=SMALL)
        ax.tick_params("y", length=0)
        ax.locator_params("x", nbins=4)
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
        ax.spines[["top", "right", "left"]].set_visible(False)
        unit = self.explanation.unit
        ax.set_xlabel("contribution, " + (unit or "units of the statistic"))
        names = self.row_names or ()
        ax.set_title(names[row], fontsize=SMALL + 1)

    def _label(self, row: int, j: int) -> str:
        """Name of a column and its value, and below the expected value and what it contradicts."""
        explanation = self.explanation
        value, own = explanation.values[row, j], str(explanation.feature_names[j])
        name = f"{shorten(own)} = {short(value)}"
        if np.isnan(explanation.contributions[row, j]):
            return f"{name}\nnot explained"
        if explanation.expected is None:
            return name
        expected = short(as_precise(explanation.expected[row, j], value))
        others = [
            shorten(str(pair.second if pair.first == own else pair.first))
            for pair in explanation.pairs
            if pair.row == row and own in (pair.first, pair.second)
        ]
        return f"{name}\nexpected {expected}" + "".join(f", contradicts {o}" for o in others)


def _check_number(n: int) -> None:
    if not n:
        raise ValueError("There are no rows to explain.")
    if n > MAX_ROWS:
        raise ValueError(
            f"At most {MAX_ROWS} rows are drawn, got {n}: pick those of interest, such as "
            "X[detector.score_samples(X).argsort()[:6]], or use explain(X).to_frame()."
        )
