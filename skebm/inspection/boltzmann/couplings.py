"""Display of couplings between columns: a signed matrix, or a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import as_numbers, check_is_fitted, warn
from skebm.base import SettingWarning
from skebm.base.sampler import whole_number
from skebm.inspection._drawing import NAVY, ORANGE, axes_of
from skebm.inspection.boltzmann.layout import circle, spring

# Most labels of an axis, or of a graph.
MAX_LABELS = 30
KINDS, LAYOUTS = ("matrix", "graph"), ("circle", "spring")
MATRIX_COLOURS = "RdBu_r"  # colour-blind safe, white at zero
# Colour and label of an edge by its sign; couplings of categories have several.
SIGNS = {1: (ORANGE, "positive"), -1: (NAVY, "negative"), 0: ("0.5", "of categories")}
WIDEST, NARROWEST = 5.0, 0.4  # lines of edges, in points


class CoupledColumns(NamedTuple):
    """Couplings between pairs of columns of a model.

    Attributes
    ----------
    values : ndarray of shape (k, k)
        Signed couplings of the entries.
    strengths : ndarray of shape (d, d)
        Non-negative strengths of the pairs of columns.
    entries : list of (str, object)
        Column and level of each entry; the level is None where a column is one entry.
    unit : str
        What the values are.
    """

    values: np.ndarray
    strengths: np.ndarray
    entries: list[tuple[str, Any]]
    unit: str

    @property
    def columns(self) -> np.ndarray:
        """Number of the column of each entry, (k,)."""
        names = [None, *(name for name, _ in self.entries)]
        starts = [
            level is None or name != before
            for (name, level), before in zip(self.entries, names, strict=False)
        ]
        return np.cumsum(starts) - 1


@dataclass(kw_only=True, eq=False, repr=False)
class CouplingDisplay:
    """Couplings between columns, as a signed matrix or as a graph.

    Create it with :meth:`from_estimator`, which computes everything; :meth:`plot` only draws, and
    can be called repeatedly. All data are stored as plain arrays.

    Parameters
    ----------
    couplings : ndarray of shape (n_entries, n_entries)
        Signed couplings, symmetric; zero for pairs of columns that are not shown. An entry is a
        column, or a level of a category.
    entry_names : list of str
        Names of the entries, such as ``"colour=red"`` for levels.
    entry_columns : ndarray of int of shape (n_entries,)
        The column of each entry.
    column_names : list of str
        Names of the columns, which are the nodes of the graph.
    edges : ndarray of int of shape (n_edges, 2)
        Pairs i < j of columns that are shown, strongest first.
    strengths : ndarray of shape (n_edges,)
        Their strengths: absolute values, or Frobenius norms over the levels of categories.
    signs : ndarray of int of shape (n_edges,)
        Signs of their couplings; 0 if at least one of the two is a category.
    n_pairs : int
        Number of coupled pairs of the model, including those that are not shown.
    unit : str
        What the numbers are: couplings or partial correlations.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    skebm.BoltzmannMachineDensity : Learns couplings of discrete columns, and which are zero.
    skebm.HopfieldMemory : Has couplings that store rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import BoltzmannMachineDensity
    >>> from skebm.inspection import CouplingDisplay
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.integers(0, 2, (2, 500))
    >>> noisy = np.where(rng.random(500) < 0.1, 1 - a, a)
    >>> model = BoltzmannMachineDensity().fit(np.column_stack([a, noisy, b]))
    >>> display = CouplingDisplay.from_estimator(model, threshold=1.0)
    >>> display.edges, display.signs
    (array([[0, 1]]), array([1]))

    ``display.plot()`` draws the matrix, ``display.plot("graph")`` the graph.
    """

    couplings: np.ndarray
    entry_names: list[str]
    entry_columns: np.ndarray
    column_names: list[str]
    edges: np.ndarray
    strengths: np.ndarray
    signs: np.ndarray
    n_pairs: int
    unit: str
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, threshold: float = 0.0, n_edges: int | None = None
    ) -> CouplingDisplay:
        r"""Compute the display of a fitted model.

        Parameters
        ----------
        estimator : BoltzmannMachineDensity, HopfieldMemory, or an estimator with `precision_`
            Fitted model. For a precision matrix P, such as that of
            :class:`sklearn.covariance.GraphicalLasso`, partial correlations are shown:
            :math:`-P_{ij} / \sqrt{P_{ii} P_{jj}}`.
        threshold : float, default=0.0
            Smallest strength of the pairs of columns that are shown; non-negative.
        n_edges : int or None, default=None
            Largest number of pairs to show, the strongest ones; None for all.

        Returns
        -------
        CouplingDisplay
        """
        if not isinstance(threshold, Real) or not 0 <= threshold < np.inf:
            raise ValueError(f"threshold must be a non-negative number, got {threshold!r}.")
        if n_edges is not None:
            whole_number("n_edges", n_edges, 0)
        coupled = _couplings_of(estimator)
        columns, single = coupled.columns, np.bincount(coupled.columns) == 1
        first, second = np.triu_indices(len(coupled.strengths), 1)
        strengths = coupled.strengths[first, second]
        order = np.argsort(-strengths, kind="stable")
        order = order[(strengths[order] > 0) & (strengths[order] >= threshold)][:n_edges]
        edges = np.column_stack([first[order], second[order]])
        entry = np.searchsorted(columns, edges)  # the first entry of each column
        signs = np.sign(coupled.values[entry[:, 0], entry[:, 1]]).astype(int)
        shown = np.zeros(coupled.strengths.shape, dtype=bool)
        shown[edges[:, 0], edges[:, 1]] = shown[edges[:, 1], edges[:, 0]] = True
        return cls(
            couplings=np.where(shown[columns[:, None], columns], coupled.values, 0.0),
            entry_names=[
                name if level is None else f"{name}={level}" for name, level in coupled.entries
            ],
            entry_columns=columns,
            column_names=[coupled.entries[k][0] for k in np.unique(columns, return_index=True)[1]],
            edges=edges,
            strengths=strengths[order],
            signs=np.where(single[edges].all(1), signs, 0),
            n_pairs=int((strengths > 0).sum()),
            unit=coupled.unit,
        )

    def plot(self, kind: str = "matrix", *, layout: Any = None, ax: Any = None) -> CouplingDisplay:
        """Draw the matrix or the graph.

        Parameters
        ----------
        kind : {"matrix", "graph"}, default="matrix"
            ``"matrix"``: entries by entries, red where positive and blue where negative; pairs that
            are not shown are white. ``"graph"``: columns are nodes, hollow if they have no edge;
            stronger edges are wider, and their colour shows the sign.
        layout : {"circle", "spring"} or array-like of shape (n_columns, 2) or None, default=None
            Places of the nodes. ``"spring"``: coupled columns are near each other. None is
            ``"circle"``, in the order of the columns.
        ax : matplotlib.axes.Axes or None, default=None
            Axes to draw in; None makes a new figure.

        Returns
        -------
        CouplingDisplay
            Itself, with `figure_` and `ax_` set.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
        if kind == "matrix" and layout is not None:
            warn('layout has no effect: it is for kind="graph".', SettingWarning)
        places = None if kind == "matrix" else self._places(layout)
        self.ax_ = axes_of("CouplingDisplay", ax, (5.5, 4.6))
        self.figure_ = self.ax_.figure
        if places is None:
            self._draw_matrix()
        else:
            self._draw_graph(places)
        shown = f"{len(self.edges)} coupled pair{'s' * (len(self.edges) != 1)} of columns"
        if len(self.edges) < self.n_pairs:
            shown = f"The {len(self.edges)} strongest of {self.n_pairs} coupled pairs of columns"
        self.ax_.set_title(shown)
        return self

    # ---------------------------------------------------------------- the matrix

    def _draw_matrix(self) -> None:
        ax, names = self.ax_, self.entry_names
        largest = float(np.abs(self.couplings).max(initial=0.0)) or 1.0
        image = ax.imshow(self.couplings, cmap=MATRIX_COLOURS, vmin=-largest, vmax=largest)
        step = -(-len(names) // MAX_LABELS)
        ticks = np.arange(0, len(names), step)
        labels = [names[k] for k in ticks]
        ax.set_xticks(ticks, labels, rotation=90, fontsize="x-small")
        ax.set_yticks(ticks, labels, fontsize="x-small")
        if len(names) > len(self.column_names):  # lines between columns
            ends = np.flatnonzero(np.diff(self.entry_columns)) + 0.5
            for line in (ax.axhline, ax.axvline):
                for end in ends:
                    line(end, color="0.8", lw=0.5)
        self.figure_.colorbar(image, ax=ax, label=self.unit, shrink=0.8)

    # ---------------------------------------------------------------- the graph

    def _places(self, layout: Any) -> np.ndarray:
        n = len(self.column_names)
        if layout is None or isinstance(layout, str):
            if layout not in (None, *LAYOUTS):
                raise ValueError(
                    f"layout must be one of {', '.join(map(repr, LAYOUTS))} or places of the "
                    f"nodes, got {layout!r}."
                )
            return spring(n, self.edges) if layout == "spring" else circle(n)
        places = as_numbers("layout", layout)
        if places.shape != (n, 2) or not np.isfinite(places).all():
            raise ValueError(
                f"layout must have shape ({n}, 2), finite places of the {n} columns, got "
                f"{places.shape}."
            )
        return places

    def _draw_graph(self, places: np.ndarray) -> None:
        ax = self.ax_
        width = NARROWEST + (WIDEST - NARROWEST) * self.strengths / self.strengths.max(
            initial=1e-300
        )
        for k in reversed(range(len(self.edges))):  # the strongest on top
            ends = places[self.edges[k]]
            colour = SIGNS[int(self.signs[k])][0]
            ax.plot(*ends.T, color=colour, lw=width[k], solid_capstyle="round", zorder=1)
        coupled = np.isin(np.arange(len(places)), self.edges)
        colours = np.where(coupled, "0.25", "white")
        ax.scatter(*places.T, s=40, c=colours, edgecolors="0.25", zorder=2)
        if len(places) <= MAX_LABELS:
            self._label(places)
        for sign in sorted(set(self.signs.tolist()), reverse=True):
            colour, label = SIGNS[sign]
            ax.plot([], [], color=colour, lw=2.5, label=label)
        if len(self.edges):
            ax.legend(
                title=f"{self.unit}, up to {self.strengths[0]:.2g}",
                loc="upper center",
                bbox_to_anchor=(0.5, 0.0),
                ncols=3,
                edgecolor="none",
                fontsize="small",
                title_fontsize="small",
            )
        ax.set_aspect("equal")
        ax.margins(0.12)
        ax.set_axis_off()

    def _label(self, places: np.ndarray) -> None:
        """Names beside the nodes, on the side that faces away from the centre."""
        centre = (places.max(0) + places.min(0)) / 2
        away = places - centre
        length = np.linalg.norm(away, axis=1, keepdims=True)
        away = np.divide(away, length, out=np.zeros_like(away), where=length > 0)
        for place, (right, up), name in zip(places, away, self.column_names, strict=True):
            self.ax_.annotate(
                name,
                place,
                (9 * right, 9 * up if length.any() else 9),
                textcoords="offset points",
                ha="center" if abs(right) < 0.1 else "left" if right > 0 else "right",
                va="center" if abs(up) < 0.3 else "bottom" if up > 0 else "top",
                fontsize="small",
            )


def _couplings_of(estimator: Any) -> CoupledColumns:
    """Couplings of a fitted model, or partial correlations; `TypeError` where it has none."""
    if not hasattr(estimator, "fit"):
        raise TypeError(_REFUSAL.format(type(estimator).__name__))
    check_is_fitted(estimator)
    if hasattr(type(estimator), "couplings_"):
        unit = f"coupling of {estimator.coding_} columns"
        return CoupledColumns(estimator.couplings_, estimator.strengths_, estimator.entries_, unit)
    if hasattr(type(estimator), "coupling_"):
        if not hasattr(estimator, "coupling_"):
            raise ValueError(
                f'{estimator} has no couplings: use a quadratic rule, such as rule="pseudoinverse".'
            )
        values, unit = np.array(estimator.coupling_), "coupling of spins"
    elif np.ndim(precision := np.asarray(getattr(estimator, "precision_", 0.0))) == 2:
        scale = np.sqrt(np.diag(precision))
        values, unit = -precision / np.outer(scale, scale), "partial correlation"
    else:
        raise TypeError(_REFUSAL.format(type(estimator).__name__))
    np.fill_diagonal(values, 0.0)
    names = getattr(estimator, "feature_names_in_", [f"x{k}" for k in range(len(values))])
    return CoupledColumns(values, np.abs(values), [(str(name), None) for name in names], unit)


_REFUSAL = (
    "CouplingDisplay shows a fitted BoltzmannMachineDensity, a HopfieldMemory or an estimator with "
    "a precision_ matrix, got {}. Of a pipeline or a search pass the final step: pipeline[-1]."
)
