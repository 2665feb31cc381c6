"""Displays of what a density says of a column: given a row, and as one other column changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm._validation import check_is_fitted, n_rows
from skebm.base.sampler import whole_number
from skebm.estimators.outlier import columns as tables
from skebm.estimators.queries.columns import ColumnConditional, LevelConditional
from skebm.estimators.queries.densities import last_step
from skebm.inspection._drawing import NAVY, ORANGE, axes_of
from skebm.inspection.explanations import short

SIZE, SMALL = (5.6, 3.8), 9  # inches, and points
MAX_LETTERS = 48  # of the title
MAX_LEVELS = 12  # levels that are drawn, the most probable ones
QUANTILES = (0.05, 0.5, 0.95)
# Ends of the range of values that are drawn, of a column and of a condition, as quantiles.
ENDS, ENDS_OF_CONDITION = (0.002, 0.998), (0.01, 0.99)


@dataclass(kw_only=True, eq=False, repr=False)
class ConditionalDisplay:
    """Distribution of a column of a row given what is known of its other columns.

    It is a density with quantiles for a column of numbers, and bars for one of levels. Create it
    with :meth:`from_estimator`, which computes everything; :meth:`plot` only draws.

    Parameters
    ----------
    name : str
        Of the column.
    x : ndarray of shape (m,)
        Values of a number, increasing, or levels.
    p : ndarray of shape (m,)
        Density at `x`, per unit of the column, or probabilities of the levels.
    quantiles : dict of float to float or None, default=None
        Values of a number by their probabilities; None for levels.
    observed : object or None, default=None
        Value of the column in the row, which is not used for `p`.
    given : dict of str to object or None, default=None
        What is known of the other columns.
    method : {"exact", "quadrature", "sampling"}, default="exact"
        As of the :class:`~skebm.estimators.queries.columns.ColumnConditional`.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    PartialDisplay : How the distribution changes with another column.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skebm import TractableDensity
    >>> from skebm.inspection import ConditionalDisplay
    >>> X = load_iris(as_frame=True).data
    >>> model = TractableDensity("mixture", random_state=0).fit(X)
    >>> column = "petal length (cm)"
    >>> display = ConditionalDisplay.from_estimator(model, X.iloc[[0]], column)
    >>> display.observed, display.method
    (1.4, 'exact')

    ``display.plot()`` draws it.
    """

    name: str
    x: np.ndarray
    p: np.ndarray
    quantiles: Mapping[float, float] | None = None
    observed: Any = None
    given: Mapping[str, Any] | None = None
    method: str = "exact"
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.x, self.p = np.asarray(self.x), np.asarray(self.p, dtype=float)
        if self.p.ndim != 1 or self.x.shape != self.p.shape or not len(self.p):
            raise ValueError(
                "x and p must be as long as each other, and one-dimensional, got shapes "
                f"{self.x.shape} and {self.p.shape}."
            )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        column: str | int,
        *,
        quantiles: Sequence[float] = QUANTILES,
        grid_resolution: int = 200,
        ax: Any = None,
    ) -> ConditionalDisplay:
        """Compute the distribution by ``estimator.conditional(X, column)``.

        Parameters
        ----------
        estimator : fitted estimator
            A density of rows with ``conditional``, such as :class:`~skebm.TractableDensity`, or a
            search over its parameters.
        X : {array-like, data frame} of shape (1, n_features)
            A row; NaN marks what is not known of it.
        column : str or int
            Name or number.
        quantiles : sequence of float in (0, 1), default=(0.05, 0.5, 0.95)
            Probabilities of the values that are marked, of a column of numbers.
        grid_resolution : int, default=200
            Evenly spaced values at which the density is computed; as many quantiles are added.
        ax : matplotlib.axes.Axes or None, default=None
            Axes to draw in immediately; None leaves drawing to :meth:`plot`.

        Returns
        -------
        ConditionalDisplay
        """
        whole_number("grid_resolution", grid_resolution, 2)
        model, table = _density_of_rows(estimator), tables.as_table(X)
        if n_rows(table) != 1:
            raise ValueError(
                f"X must be one row, got {n_rows(table)}: pass one, such as X[:1] or X.iloc[[3]]."
            )
        found = model.conditional(X, column)
        row = {
            name: np.asarray(tables.column_of(table, j), dtype=object).tolist()[0]
            for j, name in enumerate(_names_of(model))
        }
        known = {name: value for name, value in row.items() if short(value) != "missing"}
        observed = known.pop(found.name, None)
        shown: dict[str, Any] = {"name": found.name, "given": known, "observed": observed}
        if isinstance(found, LevelConditional):
            display = cls(x=found.levels, p=found.probabilities[0], method=found.method, **shown)
        else:
            levels = _checked_quantiles(quantiles)
            x = _values_to_draw(found, grid_resolution, observed)
            display = cls(
                x=x,
                p=found.pdf(x[:, None])[:, 0],
                quantiles=dict(zip(levels.tolist(), found.ppf(levels[:, None])[:, 0], strict=True)),
                method=found.method,
                **shown,
            )
        return display if ax is None else display.plot(ax)

    def plot(self, ax: Any = None) -> ConditionalDisplay:
        """Draw the density or the bars, the quantiles and the value that was observed.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.

        Returns
        -------
        ConditionalDisplay
            Itself, with `figure_` and `ax_` set.
        """
        ax = axes_of("ConditionalDisplay", ax, SIZE)
        self.figure_, self.ax_ = ax.figure, ax
        if self.quantiles is None:
            self._draw_bars()
        else:
            self._draw_density(self.quantiles)
        draws = ", from draws" if self.method == "sampling" else ""
        kind = "probability" if self.quantiles is None else "density"
        ax.set(xlabel=self.name, ylabel=kind + draws)
        ax.set_title(_given_text(self.given), fontsize=SMALL + 1, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        return self

    def _draw_density(self, quantiles: Mapping[float, float]) -> None:
        ax = self.ax_
        ax.plot(self.x, self.p, color=NAVY, lw=1.5)
        ax.fill_between(self.x, self.p, color=NAVY, alpha=0.15, lw=0)
        places = np.array(list(quantiles.values()))
        label = "quantiles " + ", ".join(f"{100 * q:.3g}" for q in quantiles) + " %"
        heights = np.interp(places, self.x, self.p)
        ax.vlines(places, 0, heights, color=NAVY, lw=1, label=label)
        if self.observed is not None:
            value = float(self.observed)
            ax.axvline(value, color=ORANGE, ls="--", lw=1.3, label=f"observed: {short(value)}")
        ax.set(xlim=self.x[[0, -1]], ylim=(0, 1.35 * self.p.max()))
        ax.legend(frameon=False, fontsize=SMALL, loc="upper right")

    def _draw_bars(self) -> None:
        shown = _most_probable(self.p)
        own = [self.x[k] == self.observed for k in shown]
        self.ax_.bar(range(len(shown)), self.p[shown], color=[ORANGE if o else NAVY for o in own])
        _label_levels(self.ax_, self.x[shown])
        if any(own):
            self.ax_.bar([0], [0], color=ORANGE, label="observed")
            top = 1.2 * float(self.p.max())
            self.ax_.set_ylim(0, top)
            self.ax_.legend(frameon=False, fontsize=SMALL, loc="upper right")


@dataclass(kw_only=True, eq=False, repr=False)
class PartialDisplay:
    """How the distribution of a column changes with the value of another one, the condition.

    Mean and quantiles of a column of numbers, or probabilities of the levels of one, at each value
    of the condition. Columns that are not given are integrated out, by their distribution given
    the condition, so that no row is asked about that the data do not have. Create it with
    :meth:`from_estimator`.

    Parameters
    ----------
    name, condition : str
        Of the column, and of the condition.
    x : ndarray of shape (m,)
        Values of the condition: increasing numbers, or levels.
    x_is_levels : bool, default=False
        Whether the condition has levels.
    mean : ndarray of shape (m,) or None, default=None
        Means of a column of numbers.
    quantiles : dict of float to ndarray of shape (m,) or None, default=None
        Quantiles of a column of numbers by their probabilities.
    probabilities : dict of object to ndarray of shape (m,) or None, default=None
        Those of the levels of a column, in place of mean and quantiles.
    data : ndarray of shape (n_rows, 2) or None, default=None
        Rows of condition and column, if both are numbers.
    given : dict of str to object or None, default=None
        Values of other columns.
    method : {"exact", "quadrature", "sampling"}, default="exact"

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    ConditionalDisplay : The distribution of a column of a single row.
    EnergyDisplay : The density of two columns.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skebm import TractableDensity
    >>> from skebm.inspection import PartialDisplay
    >>> X = load_iris(as_frame=True).data
    >>> model = TractableDensity("mixture", random_state=0).fit(X)
    >>> names = ("petal length (cm)", "petal width (cm)")
    >>> display = PartialDisplay.from_estimator(model, *names, X=X)
    >>> display.mean.shape, list(display.quantiles)
    ((50,), [0.05, 0.5, 0.95])

    ``display.plot()`` draws it.
    """

    name: str
    condition: str
    x: np.ndarray
    x_is_levels: bool = False
    mean: np.ndarray | None = None
    quantiles: Mapping[float, np.ndarray] | None = None
    probabilities: Mapping[Any, np.ndarray] | None = None
    data: np.ndarray | None = None
    given: Mapping[str, Any] | None = None
    method: str = "exact"
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if (self.mean is None) == (not self.probabilities):
            raise ValueError("Pass mean, of a column of numbers, or probabilities, of levels.")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        column: str | int,
        condition: str | int,
        *,
        X: Any = None,
        values: Any = None,
        given: Mapping[Any, Any] | None = None,
        quantiles: Sequence[float] = QUANTILES,
        grid_resolution: int = 50,
        ax: Any = None,
    ) -> PartialDisplay:
        """Compute the distributions by ``estimator.conditional``.

        Parameters
        ----------
        estimator : fitted estimator
            A density of rows with ``conditional``, such as :class:`~skebm.TractableDensity`, or a
            search over its parameters.
        column, condition : str or int
            Names or numbers of two columns.
        X : {array-like, data frame} of shape (n_rows, n_features) or None, default=None
            Rows that are drawn as dots if both columns are numbers.
        values : array-like of shape (m,) or None, default=None
            Values of the condition. None: the levels of the model, or evenly spaced numbers over
            98 % of the distribution of the condition.
        given : dict of str or int to object, or None, default=None
            Names or numbers of other columns, and values that they have. The rest is unknown.
        quantiles : sequence of float in (0, 1), default=(0.05, 0.5, 0.95)
            Probabilities of the quantiles.
        grid_resolution : int, default=50
            Number of values of a condition of numbers.
        ax : matplotlib.axes.Axes or None, default=None
            Axes to draw in immediately; None leaves drawing to :meth:`plot`.

        Returns
        -------
        PartialDisplay
        """
        whole_number("grid_resolution", grid_resolution, 2)
        model = _density_of_rows(estimator)
        names = _names_of(model)
        fixed = {names[_number(names, key)]: value for key, value in (given or {}).items()}
        place, target = _number(names, condition), _number(names, column)
        if len({names[place], names[target], *fixed}) < 2 + len(fixed):
            raise ValueError(
                f"column {names[target]!r}, condition {names[place]!r} and the columns of given, "
                f"{list(fixed)}, must differ."
            )
        of_condition = model.conditional(_rows(model, fixed, {}, 1), place)
        is_levels = isinstance(of_condition, LevelConditional)
        if values is None and isinstance(of_condition, LevelConditional):
            values = of_condition.levels
        elif values is None:
            values = np.linspace(*_ends(of_condition, ENDS_OF_CONDITION), grid_resolution)
        values = np.asarray(values)
        found = model.conditional(_rows(model, fixed, {names[place]: values}, len(values)), target)
        shown: dict[str, Any] = {"name": found.name, "condition": of_condition.name}
        shown |= {"x": values, "x_is_levels": is_levels, "given": fixed, "method": found.method}
        if isinstance(found, LevelConditional):
            levels = found.levels.tolist()
            display = cls(
                probabilities=dict(zip(levels, found.probabilities.T, strict=True)), **shown
            )
        else:
            p = _checked_quantiles(quantiles)
            display = cls(
                mean=found.mean(),
                quantiles=dict(zip(p.tolist(), found.ppf(p[:, None]), strict=True)),
                data=None if X is None or is_levels else _pairs(X, place, target),
                **shown,
            )
        return display if ax is None else display.plot(ax)

    def plot(self, ax: Any = None) -> PartialDisplay:
        """Draw mean and quantiles, or the probabilities of levels.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.

        Returns
        -------
        PartialDisplay
            Itself, with `figure_` and `ax_` set.
        """
        ax = axes_of("PartialDisplay", ax, SIZE)
        self.figure_, self.ax_ = ax.figure, ax
        draws = ", from draws" if self.method == "sampling" else ""
        if self.probabilities is not None:
            self._draw_probabilities(self.probabilities)
            ax.set(ylabel=f"probability of {self.name}{draws}", ylim=(0, 1))
        elif self.mean is not None:
            self._draw_numbers(self.mean, self.quantiles or {})
            ax.set(ylabel=self.name + draws)
        ax.set_xlabel(self.condition)
        if self.x_is_levels:
            _label_levels(ax, self.x)
            ax.set_xlim(-0.6, len(self.x) - 0.4)
        else:
            ax.set_xlim(self.x[[0, -1]])
        ax.set_title(_given_text(self.given), fontsize=SMALL + 1, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        covers = self.mean is None or self.x_is_levels
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if covers else {}
        ax.legend(frameon=False, fontsize=SMALL, **beside)
        return self

    def _draw_numbers(self, mean: np.ndarray, quantiles: Mapping[float, np.ndarray]) -> None:
        ax, levels = self.ax_, sorted(quantiles)
        if self.data is not None:
            ax.scatter(*self.data.T, s=7, color="0.55", lw=0, zorder=0)
        x = np.arange(len(self.x)) if self.x_is_levels else self.x
        pairs = [(q, r) for q, r in zip(levels, levels[::-1], strict=True) if q < r]
        for q, r in pairs:
            low, high = quantiles[q], quantiles[r]
            label = f"quantiles {100 * q:.3g} to {100 * r:.3g} %"
            if self.x_is_levels:
                ax.vlines(x, low, high, color=NAVY, alpha=0.35, lw=5, label=label)
            else:
                ax.fill_between(x, low, high, color=NAVY, alpha=0.2, lw=0, label=label)
        line: dict[str, Any] = {"ls": "none"} if self.x_is_levels else {}
        if len(levels) % 2:
            middle, marker = levels[len(levels) // 2], "_" if self.x_is_levels else None
            name = "median" if middle == 0.5 else f"quantile {100 * middle:.3g} %"
            style: dict[str, Any] = {"color": NAVY, "label": name, "marker": marker}
            ax.plot(x, quantiles[middle], lw=1.5, markersize=12, **style | line)
        style = {"color": ORANGE, "ls": "--", "lw": 1.3, "label": "mean"}
        ax.plot(x, mean, marker="o" if self.x_is_levels else None, **style | line)

    def _draw_probabilities(self, probabilities: Mapping[Any, np.ndarray]) -> None:
        levels, shares = list(probabilities), np.array(list(probabilities.values()))
        shown = _most_probable(shares.mean(1))
        colours = _colours(len(shown))
        x, below = np.arange(len(self.x)) if self.x_is_levels else self.x, np.zeros(len(self.x))
        for k, colour in zip(shown, colours, strict=True):
            style = {"color": colour, "label": short(levels[k]), "lw": 0}
            if self.x_is_levels:
                self.ax_.bar(x, shares[k], bottom=below, **style)
            else:
                self.ax_.fill_between(x, below, below + shares[k], **style)
            below = below + shares[k]


def _colours(n: int) -> np.ndarray:
    """Colours of n levels, from one of those of all displays to the other, (n, 3)."""
    ends = [[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in (NAVY, ORANGE)]
    corners, t = np.array([ends[0], [0.93, 0.93, 0.9], ends[1]]), np.linspace(0, 1, n)
    return np.column_stack([np.interp(t, [0, 0.5, 1], part) for part in corners.T])


# ------------------------------------------------------------------------------
# Rows and columns
# ------------------------------------------------------------------------------


def _density_of_rows(estimator: Any) -> Any:
    """The fitted model with `conditional`; `TypeError` where there is none."""
    check_is_fitted(estimator)
    before, final = last_step(estimator)
    if before or not hasattr(final, "predict_column"):
        raise TypeError(
            f"{type(estimator).__name__} is no density of the rows of X: pass a fitted density "
            "with conditional(X, column), such as TractableDensity or RBMEstimator."
        )
    return final


def _names_of(model: Any) -> list[str]:
    names = getattr(model, "feature_names_in_", None)
    names = [f"x{k}" for k in range(model.n_features_in_)] if names is None else names
    return [str(name) for name in names]


def _number(names: list[str], asked: Any) -> int:
    """Number of a column that is asked for by name or number."""
    if asked in names:
        return names.index(asked)
    if isinstance(asked, (int, np.integer)) and -len(names) <= asked < len(names):
        return int(asked) % len(names)
    listed = ", ".join(map(repr, names[:20])) + ", ..." * (len(names) > 20)
    raise ValueError(f"There is no column {asked!r}: the columns are {listed}.")


def _rows(model: Any, fixed: Mapping[str, Any], column: Mapping[str, Any], n: int) -> Any:
    """Rows of which nothing is known but columns with one value, and one with n values."""
    known = {name: [value] * n for name, value in fixed.items()} | dict(column)
    if hasattr(model, "feature_names_in_"):
        import pandas as pd

        return pd.DataFrame(known, index=range(n)).reindex(columns=_names_of(model))
    table = np.full((n, model.n_features_in_), np.nan, dtype=object)
    for name, values in known.items():
        table[:, _names_of(model).index(name)] = values
    every = [value for values in known.values() for value in values]
    is_numeric = all(isinstance(value, (int, float, np.number)) for value in every)
    return table.astype(float) if is_numeric else table


def _pairs(X: Any, condition: int, column: int) -> np.ndarray:
    """Known values of two columns of numbers, (n, 2)."""
    table = tables.as_table(X)
    pair = [np.asarray(tables.column_of(table, j), dtype=float) for j in (condition, column)]
    found = np.column_stack(pair)
    return found[~np.isnan(found).any(1)]


def _checked_quantiles(quantiles: Sequence[float]) -> np.ndarray:
    found = np.unique(np.asarray(quantiles, dtype=float))
    if not found.size or not ((found > 0) & (found < 1)).all():
        raise ValueError(f"quantiles must be probabilities between 0 and 1, got {quantiles!r}.")
    return found


def _ends(found: ColumnConditional, quantiles: tuple[float, float]) -> tuple[float, float]:
    """Ends of the range of a number in one row."""
    low, high = found.ppf(np.array(quantiles)[:, None])[:, 0].tolist()
    return low, high


def _values_to_draw(found: ColumnConditional, n: int, observed: Any) -> np.ndarray:
    """Even values and quantiles, among which narrow peaks are found, and what was observed."""
    ends = [*_ends(found, ENDS), *([] if observed is None else [float(observed)])]
    room = 0.03 * (max(ends) - min(ends))
    even = np.linspace(min(ends) - room, max(ends) + room, n)
    return np.unique(np.concatenate([even, found.ppf(np.linspace(*ENDS, n)[:, None])[:, 0]]))


def _most_probable(p: np.ndarray) -> np.ndarray:
    """Numbers of the levels to draw, in their order."""
    return np.sort(np.argsort(-p, kind="stable")[:MAX_LEVELS])


def _label_levels(ax: Any, levels: np.ndarray) -> None:
    labels = [short(level) for level in levels.tolist()]
    style = {"rotation": 45, "ha": "right"} if sum(map(len, labels)) > 40 else {}
    ax.set_xticks(range(len(labels)), labels, **style)
    ax.tick_params("x", length=0)


def _given_text(given: Mapping[str, Any] | None) -> str:
    given = given or {}
    text = ", ".join(f"{name} = {short(value)}" for name, value in given.items())
    if len(text) > MAX_LETTERS:
        text = f"{len(given)} other columns"
    return "given " + text if text else "others unknown"
