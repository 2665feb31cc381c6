"""Display of restricted Boltzmann machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from skebm._validation import check_is_fitted
from skebm.base.sampler import whole_number
from skebm.inspection._drawing import NAVY, ORANGE, pyplot

# Rows of X that are reconstructed.
N_ROWS = 10
# Most labels of an axis.
MAX_LABELS = 30

# The parts of the whole figure, row by row, with the height of the row in inches.
LAYOUT = ((("filters", "samples"), 4.2), (("reconstructions",), 2.6), (("training",), 2.6))
KINDS = ("all", "filters", "reconstructions", "samples", "training")
WIDTH = 9.0

# The axes of the training: title, unit, and the label of each curve.
CURVES = {
    "loss": (
        "Loss",
        "nats per row",
        {"train_loss": "training rows", "valid_loss": "validation rows"},
    ),
    "energy_gap": (
        "Energy gap: data minus chains",
        "nats per row",
        {"energy_gap": "each epoch"},
    ),
    "reconstruction_error": (
        "Reconstruction error",
        "squared error per column",
        {"reconstruction_error": "each epoch"},
    ),
}
WEIGHTS, VALUES = "RdBu_r", "gray_r"  # colour-blind safe colour maps


@dataclass(kw_only=True, eq=False, repr=False)
class RBMDisplay:
    """Filters, reconstructions, samples and training curves of a restricted Boltzmann machine.

    Create it with :meth:`from_estimator`, which computes everything; :meth:`plot` only draws, and
    can be called repeatedly. All data are stored as plain arrays.

    Parameters
    ----------
    filters : ndarray of shape (n_filters, n_features)
        Weights of the hidden units shown: the change of the log-odds of each column, in nats, when
        the unit becomes 1.
    filter_index : ndarray of shape (n_filters,)
        Their row numbers in `components_`.
    n_components : int
        Number of hidden units of the model.
    samples : ndarray of shape (n_samples, n_features)
        Rows drawn from the model, in the units of the data.
    history : dict of str to ndarray of shape (n_epochs,)
        Values of each epoch by name; nan where an epoch lacks one.
    rows : ndarray of shape (n_rows, n_features) or None, default=None
        Rows of data.
    reconstructions : ndarray of shape (n_rows, n_features) or None, default=None
        Their mean-field reconstructions.
    image_shape : tuple of (int, int) or None, default=None
        Height and width of a row drawn as an image; None draws heat maps of rows by columns.
    feature_names : ndarray of shape (n_features,) or None, default=None
        Names of the columns, written below the heat maps.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    axes_ : dict of str to matplotlib.axes.Axes
        Its axes: ``"filters"``, ``"samples"``, ``"reconstructions"``, and for the training
        ``"loss"``, ``"energy_gap"``, ``"reconstruction_error"``.

    See Also
    --------
    skebm.RBMEstimator : The model that is shown.

    Notes
    -----
    Filters that look like noise have not been trained, and equal filters are redundant. The energy
    gap is the mean energy of the data minus that of the chains: near 0 where the chains represent
    the data, and decreasing where the chains mix badly or the model overfits. Neither it nor the
    reconstruction error is the likelihood, which is `score`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skebm import RBMEstimator
    >>> from skebm.inspection import RBMDisplay
    >>> X = (load_digits().data > 7).astype(float)
    >>> rbm = RBMEstimator(n_components=32, n_iter=2, random_state=0).fit(X)
    >>> display = RBMDisplay.from_estimator(rbm, X, image_shape=(8, 8), random_state=0)
    >>> display.filters.shape, display.samples.shape, display.reconstructions.shape
    ((25, 64), (25, 64), (10, 64))
    >>> len(display.history["energy_gap"])
    2

    ``display.plot()`` draws all parts, ``display.plot("filters")`` one of them.
    """

    filters: np.ndarray
    filter_index: np.ndarray
    n_components: int
    samples: np.ndarray
    history: dict[str, np.ndarray]
    rows: np.ndarray | None = None
    reconstructions: np.ndarray | None = None
    image_shape: tuple[int, int] | None = None
    feature_names: np.ndarray | None = None
    figure_: Any = field(init=False)
    axes_: dict[str, Any] = field(init=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any = None,
        *,
        image_shape: tuple[int, int] | None = None,
        n_filters: int = 25,
        n_samples: int = 25,
        random_state: Any = None,
    ) -> RBMDisplay:
        """Compute the display of a fitted model.

        Parameters
        ----------
        estimator : RBMEstimator
            Fitted model.
        X : {array-like, sparse matrix} of shape (n_samples, n_features) or None, default=None
            Data whose first ten rows are reconstructed, preferably held-out rows. None leaves the
            reconstructions out.
        image_shape : tuple of (int, int) or None, default=None
            Height and width where a row is an image.
        n_filters : int, default=25
            Largest number of hidden units to show, in descending order of the Euclidean norm of
            their weights.
        n_samples : int, default=25
            Rows to draw from the model; 0 for none.
        random_state : int, RandomState instance or None, default=None
            Seed of the samples; None draws from NumPy's global generator.

        Returns
        -------
        RBMDisplay
        """
        if not all(hasattr(type(estimator), name) for name in ("reconstruct", "sample")):
            raise TypeError(
                f"RBMDisplay shows a fitted RBMEstimator, got {type(estimator).__name__}. "
                "Of a pipeline or a search pass the final step, as in pipeline[-1]."
            )
        check_is_fitted(estimator)
        whole_number("n_filters", n_filters, 1)
        whole_number("n_samples", n_samples, 0)
        weights = np.array(estimator.components_)
        order = np.argsort(-np.linalg.norm(weights, axis=1), kind="stable")[:n_filters]
        rows = reconstructions = None
        shape = _check_image_shape(image_shape, weights.shape[1])
        if X is not None:
            first = X.head(N_ROWS) if hasattr(X, "head") else X[:N_ROWS]
            reconstructions = np.asarray(estimator.reconstruct(first), dtype=float)
            rows = np.asarray(first.toarray() if hasattr(first, "toarray") else first, dtype=float)
        samples = np.empty((0, weights.shape[1]))
        if n_samples:
            drawn = estimator.sample(n_samples, random_state=random_state)
            samples = np.asarray(drawn, dtype=float)
        return cls(
            filters=weights[order],
            filter_index=order,
            n_components=len(weights),
            samples=samples,
            history=_columns(estimator.history_),
            rows=rows,
            reconstructions=reconstructions,
            image_shape=shape,
            feature_names=getattr(estimator, "feature_names_in_", None),
        )

    def plot(self, kind: str = "all", *, figure: Any = None) -> RBMDisplay:
        """Draw all parts or one of them.

        Parameters
        ----------
        kind : {"all", "filters", "reconstructions", "samples", "training"}, default="all"
            ``"all"`` leaves out parts without data: reconstructions without X, curves without
            epochs.
        figure : Figure, SubFigure or None, default=None
            Figure to draw in, such as ``pyplot.figure(layout="constrained")``; None makes a new
            one.

        Returns
        -------
        RBMDisplay
            Itself, with `figure_` and `axes_` set.
        """
        layout = self._layout(kind)
        plt = pyplot("RBMDisplay")
        heights = [height for _, height in layout]
        if figure is None:
            width = WIDTH if kind in ("all", "training", "reconstructions") else 5.0
            figure = plt.figure(figsize=(width, sum(heights)), layout="constrained")
        self.figure_, self.axes_ = figure, {}
        grid = figure.add_gridspec(len(layout), 1, height_ratios=heights)
        for line, (names, _) in zip(grid, layout, strict=True):
            for cell, name in zip(line.subgridspec(1, len(names)), names, strict=True):
                getattr(self, f"_draw_{name}")(cell)
        return self

    def _layout(self, kind: str) -> list[tuple[list[str], float]]:
        """Names of the parts to draw, row by row, with the height of each row."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
        missing = {
            "reconstructions": self.rows is None and "pass X to from_estimator",
            "samples": not len(self.samples) and "pass a positive n_samples to from_estimator",
            "training": not self._curves() and "the model's history_ has no epochs",
        }
        if missing.get(kind):
            raise ValueError(f"There is no {kind} to draw: {missing[kind]}.")
        drawn = [name for name in KINDS[1:] if kind in ("all", name) and not missing.get(name)]
        layout = [([n for n in names if n in drawn], height) for names, height in LAYOUT]
        return [(names, height) for names, height in layout if names]

    # ---------------------------------------------------------------- the parts

    def _draw_filters(self, cell: Any) -> None:
        largest = float(np.abs(self.filters).max()) or 1.0
        style = {"cmap": WEIGHTS, "vmin": -largest, "vmax": largest}
        ax, n = self._axes("filters", cell), len(self.filters)
        image = self._show(ax, [self.filters], math.ceil(math.sqrt(n)), style)
        if self.image_shape is None:
            ax.set_ylabel("hidden unit")
            if n <= MAX_LABELS:
                ax.set_yticks(np.arange(n) + 0.5, self.filter_index, fontsize="x-small")
        self.figure_.colorbar(image, ax=ax, label="weight (nats of log-odds)", shrink=0.8)
        ax.set_title(f"Filters: {n} of {self.n_components} hidden units,\nlargest norm first")

    def _draw_samples(self, cell: Any) -> None:
        ax, n = self._axes("samples", cell), len(self.samples)
        image = self._show(ax, [self.samples], math.ceil(math.sqrt(n)), self._value_style())
        if self.image_shape is None:
            ax.set_ylabel("sample")
            self.figure_.colorbar(image, ax=ax, label="value", shrink=0.8)
        ax.set_title(f"{n} sample{'s' * (n > 1)}\ndrawn from the model")

    def _draw_reconstructions(self, cell: Any) -> None:
        ax, style = self._axes("reconstructions", cell), self._value_style()
        both = [np.asarray(self.rows), np.asarray(self.reconstructions)]
        n = len(both[0])
        image = self._show(ax, both, n, style)
        height = self.image_shape[0] if self.image_shape else n
        ax.set_yticks([0.5 * height, 1.6 * height], ["data", "recon-\nstructed"])
        ax.tick_params("y", length=0)
        self.figure_.colorbar(image, ax=ax, label="value", shrink=0.6, aspect=12)
        ax.set_title(f"{n} row{'s' * (n > 1)} of data and mean-field reconstructions")

    def _draw_training(self, cell: Any) -> None:
        curves = self._curves()
        for part, name in zip(cell.subgridspec(1, len(curves)), curves, strict=True):
            ax, (title, unit, _), lines = self._axes(name, part), CURVES[name], curves[name]
            for (label, values), colour in zip(lines.items(), (NAVY, ORANGE), strict=False):
                epochs = np.arange(1, len(values) + 1)
                marker = "o" if len(values) == 1 else None
                ax.plot(epochs, values, color=colour, label=label, lw=1.2, marker=marker)
                if name == "energy_gap":
                    self._smooth(ax, values)
            if name == "loss" or len(ax.get_legend_handles_labels()[1]) > 1:
                ax.legend(edgecolor="none", fontsize="small")
            ax.set(title=title, xlabel="epoch", ylabel=unit)
            ax.locator_params("x", integer=True, nbins=6)
            ax.spines[["top", "right"]].set_visible(False)

    def _smooth(self, ax: Any, values: np.ndarray) -> None:
        """Add a running mean to the energy gap, and a line at 0."""
        ax.axhline(0, color="0.4", lw=0.8, ls=":", zorder=0)
        (line,) = ax.lines[:1]
        span = len(values) // 20
        if span < 2:
            return
        line.set(color="0.75", lw=0.8)
        mean = np.convolve(values, np.ones(span) / span, "valid")
        middle = (span + 1) / 2 + np.arange(len(mean))
        ax.plot(middle, mean, color=NAVY, lw=1.8, label=f"mean of {span} epochs")

    def _curves(self) -> dict[str, dict[str, np.ndarray]]:
        """The curves of each axes of the training by their labels, as far as recorded."""
        values = dict(self.history)
        if np.array_equal(values.get("train_loss", 0), values.get("energy_gap", 1), equal_nan=True):
            del values["train_loss"]  # the loss of contrastive divergence is the energy gap
        curves = {
            name: {label: values[key] for key, label in lines.items() if key in values}
            for name, (_, _, lines) in CURVES.items()
        }
        return {name: lines for name, lines in curves.items() if lines}

    # ---------------------------------------------------------------- drawing

    def _axes(self, name: str, cell: Any) -> Any:
        self.axes_[name] = self.figure_.add_subplot(cell)
        return self.axes_[name]

    def _value_style(self) -> dict[str, Any]:
        """One grey scale for data, reconstructions and samples."""
        arrays = (self.rows, self.reconstructions, self.samples)
        shown = [a for a in arrays if a is not None and a.size]
        low, high = min(a.min() for a in shown), max(a.max() for a in shown)
        return {"cmap": VALUES, "vmin": min(0.0, low), "vmax": max(1.0, high)}

    def _show(self, ax: Any, tables: list[np.ndarray], n_columns: int, style: dict) -> Any:
        """Draw every row as an image in a grid, with gaps of a tenth of the image."""
        if self.image_shape is None:
            return self._heat_maps(ax, tables, style)
        (height, width), rectangle = self.image_shape, pyplot("RBMDisplay").Rectangle
        rows = np.concatenate(tables)
        for k, row in enumerate(rows):
            top, left = 1.1 * height * (k // n_columns), 1.1 * width * (k % n_columns)
            extent = (left, left + width, top + height, top)
            image = ax.imshow(row.reshape(height, width), extent=extent, **style)
            frame = {"fill": False, "edgecolor": "0.8", "lw": 0.5}
            ax.add_patch(rectangle((left, top), width, height, **frame))
        n_lines = math.ceil(len(rows) / n_columns)
        ax.set_xlim(-0.05 * width, (1.1 * min(n_columns, len(rows)) - 0.05) * width)
        ax.set_ylim((1.1 * n_lines - 0.05) * height, -0.05 * height)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        return image

    def _heat_maps(self, ax: Any, tables: list[np.ndarray], style: dict) -> Any:
        """Draw tables of rows by columns below each other."""
        top, (n_rows, width) = 0.0, tables[0].shape
        for table in tables:
            extent = (0, width, top + n_rows, top)
            image = ax.imshow(table, extent=extent, aspect="auto", interpolation="nearest", **style)
            top += 1.1 * n_rows
        ax.set_ylim(top - 0.1 * n_rows, 0)
        ax.spines[:].set_visible(False)
        if self.feature_names is None or width > MAX_LABELS:
            ax.set_xlabel("column")
        else:
            names = [str(name) for name in self.feature_names]
            ax.set_xticks(np.arange(width) + 0.5, names, rotation=90, fontsize="x-small")
        return image


def _check_image_shape(image_shape: Any, n_features: int) -> tuple[int, int] | None:
    """Height and width as integers; `ValueError` unless they give `n_features` pixels."""
    if image_shape is None:
        return None
    shape = tuple(np.atleast_1d(image_shape).tolist())
    if len(shape) != 2 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"image_shape must be (height, width), got {image_shape!r}.")
    height, width = shape
    if height * width != n_features:
        raise ValueError(
            f"image_shape={height, width} has {height * width} pixels, but the model has "
            f"{n_features} columns."
        )
    return height, width


def _columns(history: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Convert a list of epochs to an array for each numeric value."""
    names = {
        name: None  # a dict preserves the order
        for epoch in history
        for name, value in epoch.items()
        if isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    }
    return {name: np.array([e.get(name, np.nan) for e in history], float) for name in names}
