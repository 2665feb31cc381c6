"""Histograms of energies of normal and of other rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from skebm.base.sampler import number_in, whole_number
from skebm.inspection._drawing import NAVY, ORANGE, axes_of
from skebm.inspection.detection.abnormality import abnormality, finite_ranks, threshold_of

SIZE = (6.0, 3.8)  # inches
SMALL = 8  # points
# A tail is cut off where it would make the axis longer by more than this share.
TAIL = 0.25
# The axis extends beyond nine tenths of the normal rows by at most REACH times their range, if at
# least the share WITHIN of the other rows is drawn.
REACH, WITHIN = 10.0, 0.5


@dataclass(kw_only=True, eq=False, repr=False)
class EnergyHistogramDisplay:
    """Histograms of energies: of rows in distribution, and of others.

    Both histograms have the same bins, and heights are shares of the rows of their kind. Rows
    beyond an end of the axis, among them those of infinite energy, are counted above that end.

    Parameters
    ----------
    energy_in : ndarray of shape (n_in,)
        Energies of rows in distribution, higher for more abnormal rows; may be infinite.
    energy_out : ndarray of shape (n_out,) or None, default=None
        Energies of other rows.
    threshold : float or None, default=None
        Energy above which a row is classified as an outlier, drawn as a line.
    energy_name : str, default="energy"
        Label of the axis of energies.
    names : tuple of (str, str), default=("in distribution", "out of distribution")
        Labels of the two kinds of rows.

    Attributes
    ----------
    auroc : float or None
        Probability that a row of the second kind has the higher energy, ties counted half; None
        without such rows.
    edges_ : ndarray of shape (n_bins + 1,)
        Edges of the bins last drawn.
    beyond_ : dict of str to tuple of (int, int)
        For each label, the numbers of rows below and above the axis last drawn.
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        The figure that :meth:`plot` last drew in.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    DetectorROCDisplay : ROC curves of several detectors.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm.inspection import EnergyHistogramDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> train, test = X[y == 1][::2], X[y == 1][1::2]
    >>> density = GaussianMixture(covariance_type="diag", random_state=0).fit(train)
    >>> display = EnergyHistogramDisplay.from_estimator(density, test, X[y == 2])
    >>> round(display.auroc, 2)
    0.99

    ``display.plot()`` draws it.
    """

    energy_in: np.ndarray
    energy_out: np.ndarray | None = None
    threshold: float | None = None
    energy_name: str = "energy"
    names: tuple[str, str] = ("in distribution", "out of distribution")
    auroc: float | None = field(default=None, init=False)
    edges_: Any = field(default=None, init=False)
    beyond_: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.energy_in = _check_energies(self.energy_in, "energy_in")
        if len(self.names) != 2 or isinstance(self.names, str) or self.names[0] == self.names[1]:
            raise ValueError(f"names must be two different names, got {self.names!r}.")
        if self.energy_out is not None:
            self.energy_out = _check_energies(self.energy_out, "energy_out")
            both = finite_ranks(np.concatenate([self.energy_in, self.energy_out]))
            other = np.arange(len(both)) >= len(self.energy_in)
            self.auroc = float(roc_auc_score(other, both))

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X_in: Any,
        X_out: Any = None,
        *,
        names: tuple[str, str] = ("in distribution", "out of distribution"),
    ) -> EnergyHistogramDisplay:
        """Compute the energies.

        Parameters
        ----------
        estimator : fitted estimator
            An estimator, or a pipeline or search that ends in one. For an
            :class:`~skebm.EnergyOutlierDetector`, minus its ``decision_function`` is drawn, with
            the threshold at 0; for another estimator of skebm, ``energy(X)``, which needs no log Z;
            for any other estimator, minus ``score_samples(X)``.
        X_in : {array-like, sparse matrix, frame} of shape (n_in, n_features)
            Rows in distribution, preferably ones that the estimator was not fitted to.
        X_out : {array-like, sparse matrix, frame} of shape (n_out, n_features), default=None
            Other rows.
        names : tuple of (str, str), default=("in distribution", "out of distribution")
            Labels of the two kinds of rows.

        Returns
        -------
        EnergyHistogramDisplay
        """
        normal = abnormality(estimator, X_in, name="X_in")
        other = None if X_out is None else abnormality(estimator, X_out, name="X_out").values
        return cls(
            energy_in=normal.values,
            energy_out=other,
            threshold=threshold_of(estimator, X_in, normal.values),
            energy_name=normal.name,
            names=names,
        )

    def plot(
        self, ax: Any = None, *, n_bins: int = 50, clip: float = 0.01
    ) -> EnergyHistogramDisplay:
        """Draw the histograms.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.
        n_bins : int, default=50
        clip : float in [0, 0.5), default=0.01
            Largest share of the rows of each kind beyond either end of the axis; rows are left out
            only where they are far away. The axis is also shortened if rows of the other kind would
            squeeze those in distribution together. 0 draws all rows of finite energy.

        Returns
        -------
        EnergyHistogramDisplay
            Itself, with `figure_`, `ax_`, `edges_` and `beyond_` set.
        """
        whole_number("n_bins", n_bins, 1)
        low, high = self._window(number_in("clip", clip, "[0, 0.5)"))
        ax = axes_of("EnergyHistogramDisplay", ax, SIZE)
        self.figure_, self.ax_ = ax.figure, ax
        self.edges_ = np.linspace(low, high, n_bins + 1)
        self.beyond_ = {
            name: (int((values < low).sum()), int((values > high).sum()))
            for name, values in self._kinds()
        }
        highest = max(self._draw(i, *kind) for i, kind in enumerate(self._kinds()))
        if self.threshold is not None:
            top = 1.06 * highest
            style = {"color": "black", "linestyle": "--", "linewidth": 1.2}
            ax.plot([self.threshold] * 2, [0, top], label="threshold", **style)
        # The highest bar leaves room for the legend above it.
        headroom = 1.6
        ax.set(xlim=(low, high), ylim=(0, headroom * highest), xlabel=self.energy_name)
        ax.set_ylabel("share of rows")
        ax.spines[["top", "right"]].set_visible(False)
        self._count_beyond()
        title = None if self.auroc is None else f"AUROC {self.auroc:.3f}"
        style = {"frameon": False, "fontsize": SMALL + 1, "alignment": "left"}
        ax.legend(loc="upper right", title=title, **style)
        return self

    def _kinds(self) -> list[tuple[str, np.ndarray]]:
        both = zip(self.names, (self.energy_in, self.energy_out), strict=True)
        return [(name, values) for name, values in both if values is not None]

    def _draw(self, place: int, name: str, values: np.ndarray) -> float:
        """Bars of one kind of rows; the height of the highest."""
        low, high = self.edges_[[0, -1]]
        inside = values[(values >= low) & (values <= high)]
        share = np.histogram(inside, self.edges_)[0] / len(values)
        colour = (NAVY, ORANGE)[place]
        label = f"{name}, {len(values)} row{'s' * (len(values) > 1)}"
        self.ax_.stairs(share, self.edges_, fill=True, color=colour, alpha=0.35, label=label)
        self.ax_.stairs(share, self.edges_, color=colour, linewidth=1.3)
        return float(share.max())

    def _window(self, clip: float) -> tuple[float, float]:
        """Ends of the axis: most rows of each kind, and the threshold."""
        finite = [values[np.isfinite(values)] for _, values in self._kinds()]
        finite = [values for values in finite if len(values)]
        # `lower` and `higher` leave out at least one row, however few there are.
        ends = [
            (
                np.quantile(values, clip, method="higher"),
                np.quantile(values, 1 - clip, method="lower"),
            )
            for values in finite
        ]
        if not ends:
            raise ValueError("All energies are infinite, so there is nothing to draw.")
        low, high = min(end[0] for end in ends), max(end[1] for end in ends)
        if clip:
            low, high = _within_reach(finite[0], finite[-1], low, high)
        if self.threshold is not None and np.isfinite(self.threshold):
            low, high = min(low, self.threshold), max(high, self.threshold)
        lowest, highest = min(v.min() for v in finite), max(v.max() for v in finite)
        room = TAIL * (high - low)
        low = lowest if low - room <= lowest < low else low
        high = highest if high < highest <= high + room else high
        pad = 0.02 * (high - low) or max(0.5, 1e-6 * abs(high))
        return float(low - pad), float(high + pad)

    def _count_beyond(self) -> None:
        """Write above either end how many rows lie beyond it."""
        for side, place, sign in ((0, "left", "◀ {}"), (1, "right", "{} ▶")):
            counts = [(name, number[side]) for name, number in self.beyond_.items()]
            numbers = ", ".join(f"{number} {name}" for name, number in counts if number)
            if numbers:
                self.ax_.text(
                    side,
                    1.01,
                    sign.format(numbers),
                    transform=self.ax_.transAxes,
                    ha=place,
                    va="bottom",
                    fontsize=SMALL,
                )


def _within_reach(
    normal: np.ndarray, other: np.ndarray, low: float, high: float
) -> tuple[float, float]:
    """Ends of the axis, nearer where other rows would squeeze the normal ones together."""
    ends = np.quantile(normal, [0.05, 0.95])
    reach = REACH * (ends[1] - ends[0])
    near, far = max(low, ends[0] - reach), min(high, ends[1] + reach)
    if reach > 0 and np.mean((other >= near) & (other <= far)) >= WITHIN:
        return near, far
    return low, high


def _check_energies(energy: Any, name: str) -> np.ndarray:
    energy = np.asarray(energy, dtype=float)
    if energy.ndim != 1 or not len(energy):
        raise ValueError(f"{name} must be of shape (n_rows,), got {energy.shape}.")
    if np.isnan(energy).any():
        raise ValueError(f"{name} has {int(np.isnan(energy).sum())} rows that are nan.")
    return energy
