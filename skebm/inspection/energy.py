"""Display of a density over two columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm._validation import check_is_fitted
from skebm.base.sampler import whole_number
from skebm.estimators.queries import densities
from skebm.inspection._drawing import ORANGE, axes_of
from skebm.inspection._plane import draw_from_model, grid_axes, plane, repeat_row
from skebm.inspection.explanations import short

SIZE = (6.2, 4.9)  # inches
SMALL = 9  # points
MAX_LETTERS = 60  # of the title
RESPONSES = {"energy": "energy above the minimum", "log_density": "log density"}
# From low to high energies by lightness alone, which is colour-blind safe.
LIKELY, UNLIKELY = np.array([247, 251, 255]) / 255, np.array([8, 64, 129]) / 255


@dataclass(kw_only=True, eq=False, repr=False)
class EnergyDisplay:
    """Contours of a density over two columns, with rows of data and samples of the model.

    Create it with :meth:`from_estimator`, which computes everything; :meth:`plot` only draws.

    Parameters
    ----------
    x, y : ndarray of shape (n_x,), (n_y,)
        Values of the first and of the second column on the grid.
    values : ndarray of shape (n_y, n_x)
        Energy (up to a constant) or log density there; infinite where the density is zero.
    response : {"energy", "log_density"}, default="energy"
        What `values` are.
    names : tuple of (str, str), default=("x0", "x1")
        Names of the two columns.
    data, samples : ndarray of shape (n_rows, 2) or None, default=None
        Rows of data, and rows drawn from the model.
    fixed : dict of str to object or None, default=None
        For a slice, the other columns and the values at which they are fixed.
    conditional : bool, default=False
        Whether `samples` are drawn given `fixed`; else they are projected, as `data` are.
    unit : str, default="nats"
        Unit of `values`.

    Attributes
    ----------
    levels_ : ndarray
        Levels of the contours of the last :meth:`plot`.
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    EnergyHistogramDisplay : Energies of rows, whatever their number of columns.

    Notes
    -----
    A slice is the conditional density of two columns given the others, up to a constant, not their
    marginal density. Projected rows have other values in the other columns, and may be where the
    slice has a low density. For a pipeline the density is that of the rows that reach its last
    step.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm.inspection import EnergyDisplay
    >>> X = load_iris(as_frame=True).data
    >>> columns = ["petal length (cm)", "petal width (cm)"]
    >>> density = GaussianMixture(3, random_state=0).fit(X[columns])
    >>> display = EnergyDisplay.from_estimator(density, X[columns], n_samples=50, random_state=0)
    >>> display.values.shape, display.data.shape, display.samples.shape
    ((100, 100), (150, 2), (50, 2))

    ``display.plot()`` draws it. For more columns two are shown, the others fixed at their medians:

    >>> density = GaussianMixture(3, random_state=0).fit(X)
    >>> EnergyDisplay.from_estimator(density, X, columns=columns).fixed
    {'sepal length (cm)': 5.8, 'sepal width (cm)': 3.0}
    """

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    response: str = "energy"
    names: tuple[str, str] = ("x0", "x1")
    data: np.ndarray | None = None
    samples: np.ndarray | None = None
    fixed: dict[str, Any] | None = None
    conditional: bool = False
    unit: str = "nats"
    levels_: Any = field(default=None, init=False)
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.response not in RESPONSES:
            raise ValueError(f"response must be one of {list(RESPONSES)}, got {self.response!r}.")
        self.values, shape = np.asarray(self.values, dtype=float), (len(self.y), len(self.x))
        if self.values.shape != shape:
            raise ValueError(f"values must be of shape {shape}, got {self.values.shape}.")
        if n_nan := int(np.isnan(self.values).sum()):
            raise ValueError(f"{n_nan} of the {self.values.size} values on the grid are nan.")
        if not np.isfinite(self.values).any():
            raise ValueError("The density is zero on the whole grid: choose other limits.")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any = None,
        *,
        columns: Any = None,
        n_samples: int = 0,
        response: str = "energy",
        grid_resolution: int = 100,
        limits: Any = None,
        given: Any = None,
        random_state: Any = None,
        ax: Any = None,
    ) -> EnergyDisplay:
        """Compute the density on a grid.

        Parameters
        ----------
        estimator : fitted estimator
            An estimator of skebm, or any other with ``score_samples``; also a pipeline or search
            that ends in one.
        X : {array-like, sparse matrix, frame} of shape (n_rows, n_features) or None, default=None
            Rows that are drawn as dots, and determine the range of the grid.
        columns : pair of int or str, or None, default=None
            Numbers or names of the columns to draw; None if there are two.
        n_samples : int, default=0
            Number of samples to draw, by the model's ``sample``. With more than two columns, an
            estimator of skebm draws them given the fixed columns, by ``impute``.
        response : {"energy", "log_density"}, default="energy"
            The energy of an estimator of skebm needs no log Z; that of others is minus
            ``score_samples``. ``"log_density"`` is ``score_samples``.
        grid_resolution : int, default=100
            Points of the grid along each axis.
        limits : ((float, float), (float, float)) or None, default=None
            Lowest and highest value of both columns. None is the range of X, else of the samples,
            with a margin.
        given : array-like of shape (n_features,) or None, default=None
            Row with the values at which the columns that are not drawn are fixed. None is the
            (lower) median of each column of X, or the most frequent value of columns that are not
            numeric.
        random_state : int, RandomState instance or None, default=None
            Seed of the samples; None draws from NumPy's global generator.
        ax : matplotlib.axes.Axes or None, default=None
            Axes to draw in immediately; None leaves drawing to :meth:`plot`.

        Returns
        -------
        EnergyDisplay
        """
        check_is_fitted(estimator)
        whole_number("n_samples", n_samples, 0)
        whole_number("grid_resolution", grid_resolution, 2)
        if response == "log_density":
            densities.check_normalised(estimator)
        columns, row, shown = plane(estimator, X, columns, given)
        before, final = densities.last_step(estimator)
        conditional = bool(shown["fixed"]) and not before and densities.is_energy_based(final)
        samples = None
        if n_samples:
            unknown = repeat_row(row, columns, *np.full((2, n_samples), np.nan))
            samples = draw_from_model(estimator, unknown, conditional, random_state)[:, columns]
        x, y = grid_axes(
            estimator, limits, samples if X is None else shown["data"], grid_resolution
        )
        table = repeat_row(row, columns, *np.reshape(np.meshgrid(x, y), (2, -1)))
        energy = response == "energy"
        score = densities.relative_log_density if energy else densities.log_density
        display = cls(
            x=x,
            y=y,
            values=(1 - 2 * energy) * score(estimator, table).reshape(len(y), len(x)),
            response=response,
            samples=samples,
            conditional=conditional,
            unit="nats" if densities.scores_are_nats(estimator) else "score_samples",
            **shown,
        )
        return display if ax is None else display.plot(ax)

    def plot(self, ax: Any = None, *, levels: Any = 12) -> EnergyDisplay:
        """Draw filled contours and the rows.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.
        levels : int or array-like, default=12
            Number of colours, or increasing levels between them. For a number, the levels are
            quantiles under the average of the uniform distribution over the area and the model's
            distribution, so that neither a sharp peak nor high energies take up all colours. Grey
            marks where the density is zero.

        Returns
        -------
        EnergyDisplay
            Itself, with `figure_`, `ax_` and `levels_` set.
        """
        drawn, self.levels_, extend = self._layers(levels)
        ax = axes_of("EnergyDisplay", ax, SIZE)
        self.figure_, self.ax_ = ax.figure, ax
        n_colours = len(self.levels_) - 1 + {"neither": 0, "both": 2}.get(extend, 1)
        colours = LIKELY + np.linspace(0, 1, n_colours)[:, None] * (UNLIKELY - LIKELY)
        style = {"colors": colours[:: 1 if self.response == "energy" else -1], "extend": extend}
        filled = ax.contourf(self.x, self.y, drawn, self.levels_, **style)
        ax.contour(self.x, self.y, drawn, self.levels_, colors="0.35", linewidths=0.4)
        label = f"{RESPONSES[self.response]}, {self.unit}"
        bar = self.figure_.colorbar(filled, ax=ax, ticks=self.levels_, label=label)
        bar.ax.set_yticklabels([f"{level:.3g}" for level in self.levels_])
        if np.ma.is_masked(drawn):
            ax.set_facecolor("0.8")
        self._draw_rows()
        ax.set(xlim=self.x[[0, -1]], ylim=self.y[[0, -1]])
        ax.set(xlabel=self.names[0], ylabel=self.names[1])
        if fixed := self.fixed:
            where = ", ".join(f"{name} = {short(fixed[name])}" for name in fixed)
            if len(where) > MAX_LETTERS:
                where = f"fixed values of {len(fixed)} other columns"
            style = {"fontsize": SMALL + 1, "loc": "left", "pad": 22 if ax.get_legend() else 6}
            ax.set_title(f"slice at {where}", **style)
        return self

    def _layers(self, levels: Any) -> tuple[Any, np.ndarray, str]:
        """Values to draw, their levels, and `extend` of the contours."""
        drawn, energy = np.ma.masked_invalid(self.values), self.response == "energy"
        drawn = drawn - drawn.min() if energy else drawn
        if np.ndim(levels):
            chosen = np.asarray(levels, dtype=float)
            if chosen.ndim != 1 or len(chosen) < 2 or not (np.diff(chosen) > 0).all():
                raise ValueError(f"levels must be a number, or increasing numbers, got {levels!r}.")
            return drawn, chosen, "both"
        whole_number("levels", levels, 2)
        highest = drawn.max()
        depth = (drawn if energy else highest - drawn).compressed()
        chosen = _quantiles(depth, levels, rounding=1e-6 * (1 + np.abs(self.values).min()))
        extend = ("max" if energy else "min") if depth.max() > chosen[-1] else "neither"
        return drawn, chosen if energy else (highest - chosen)[::-1], extend

    def _draw_rows(self) -> None:
        """Draw rows of data and samples, with their numbers in the legend."""
        where = ", projected" if self.fixed else ""
        drawn = " of the slice" if self.conditional else where
        for rows, label, style in (
            (self.data, f"row{{}} of X{where}", {"marker": "o", "s": 9, "color": "black"}),
            (self.samples, f"sample{{}}{drawn}", {"marker": "^", "s": 20, "color": ORANGE}),
        ):
            if rows is None or not len(rows):
                continue
            low, high = (self.x[0], self.y[0]), (self.x[-1], self.y[-1])
            inside = int(((rows >= low) & (rows <= high)).all(1).sum())
            number = f"{len(rows)}" if inside == len(rows) else f"{inside} of {len(rows)}"
            label = f"{number} " + label.format("s" * (len(rows) > 1))
            edge = {"edgecolors": "white", "linewidths": 0.35, "zorder": 3}
            self.ax_.scatter(rows[:, 0], rows[:, 1], label=label, **style, **edge)
        if self.ax_.get_legend_handles_labels()[1]:
            place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.1}
            self.ax_.legend(ncols=2, frameon=False, fontsize=SMALL, handletextpad=0.1, **place)


def _quantiles(depth: np.ndarray, n: int, rounding: float) -> np.ndarray:
    """Levels from 0 at `n` quantiles of energies, weighted half by area, half by probability."""
    depth = np.sort(depth)
    mass = np.exp(depth[0] - depth)
    cdf = np.cumsum(mass / mass.sum() + 1 / len(depth)) / 2
    quantiles = depth[np.searchsorted(cdf, np.arange(1, n) / n).clip(max=len(depth) - 1)]
    levels = np.unique([0.0, *(float(f"{level:.2g}") for level in quantiles if level > rounding)])
    return levels if len(levels) > 1 else np.array([0.0, max(1.0, depth[-1])])
