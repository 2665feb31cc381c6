"""Display of estimates and bounds of log Z by several methods."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm.inspection._drawing import NAVY, ORANGE, axes_of
from skebm.partition import compare

NEEDED = ("value", "std_error", "lower", "upper", "bound_kind", "seconds", "reason", "warning")
# The axis extends to the next point as long as that is at most so many times as far as the last.
MAX_RATIO = 8.0
MIN_EXTENT = 0.01  # nats to either side, however well the methods agree
MARGIN = 0.06  # to either side, relative to the extent
SKY, GREY = "#56a0d3", "0.55"
# Colour, line style and width of the bounds, by their kind.
STYLES: dict[str, tuple[str, str, float]] = {
    "exact": (NAVY, "-", 2.6),
    "certain": (NAVY, "-", 2.6),
    "probabilistic": (SKY, "-", 1.4),
    "heuristic": (GREY, ":", 1.4),
}
BOUND_LABELS = {
    "exact": "certain bound",
    "certain": "certain bound",
    "probabilistic": "bound with high probability",
    "heuristic": "heuristic bound",
}
# Brackets that open towards the inside of the interval.
BRACKETS = {
    "lower": [(0.6, -1.0), (0.0, -1.0), (0.0, 1.0), (0.6, 1.0)],
    "upper": [(-0.6, -1.0), (0.0, -1.0), (0.0, 1.0), (-0.6, 1.0)],
}
BEYOND, WARNED = "outside the axis", "the method warned"
EXACT, ESTIMATE = "exact log Z", "value ± two standard errors"
PLAIN = "value without standard error"
LEGEND = (EXACT, ESTIMATE, PLAIN, *dict.fromkeys(BOUND_LABELS.values()), BEYOND, WARNED)
MAX_REASON = 70  # letters
SMALL = 8  # points


@dataclass(eq=False, repr=False)
class PartitionDisplay:
    """Estimates and bounds of log Z by several methods, a line for each.

    A dot is an estimate, with two standard errors to either side. A hollow dot is the value of a
    method without a standard error: an approximation or a one-sided bound. Brackets are the bounds:
    dark if they are certain, light if they hold with high probability, dotted if they are
    heuristic.
    Values far from the others are shown as arrows at the edge, labelled with the value. The time in
    seconds is at the right, with an exclamation mark where the method warned.

    Parameters
    ----------
    frame : pandas.DataFrame
        As :func:`skebm.partition.compare` returns it.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    skebm.partition.compare : The table that is drawn.

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.inspection import PartitionDisplay
    >>> from skebm.partition import Bethe, Exact, TreeReweighted
    >>> energy = ising_grid(4, 4, coupling=0.3)
    >>> methods = [Exact(), Bethe(), TreeReweighted()]
    >>> display = PartitionDisplay.from_estimator(energy, methods)
    >>> list(display.frame.index)
    ['Exact', 'Bethe', 'TreeReweighted']

    ``display.plot()`` draws it.
    """

    frame: Any
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        missing = [name for name in NEEDED if name not in getattr(self.frame, "columns", ())]
        if missing:
            raise ValueError(
                f"The frame lacks {', '.join(missing)}: pass the result of skebm.partition.compare."
            )
        if not len(self.frame):
            raise ValueError("The frame has no rows, so there is nothing to draw.")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        methods: Any = None,
        *,
        base: Any = None,
        sampler: Any = None,
        x: Any = None,
        random_state: Any = None,
    ) -> PartitionDisplay:
        """Compare methods; the parameters are those of :func:`skebm.partition.compare`.

        Parameters
        ----------
        estimator : fitted estimator or Energy
            The model.
        methods : iterable or dict of str to PartitionEstimator, default=None
            None is all applicable methods.
        base, sampler, x : default=None
            Base, sampler and rows of the methods, in place of the estimator's own.
        random_state : int, RandomState instance or None, default=None
            None is the estimator's own seed.

        Returns
        -------
        PartitionDisplay
        """
        return cls(
            compare(estimator, methods, base=base, sampler=sampler, x=x, random_state=random_state)
        )

    def plot(self, ax: Any = None, *, exact: float | None = None) -> PartitionDisplay:
        """Draw the methods from top to bottom.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.
        exact : float or None, default=None
            log Z where it is known, drawn as a vertical line; None takes that of an exact method.

        Returns
        -------
        PartitionDisplay
            Itself, with `figure_` and `ax_` set.
        """
        ax = axes_of("PartitionDisplay", ax, (8.0, 1.5 + 0.38 * len(self.frame)))
        self.figure_, self.ax_ = ax.figure, ax
        known = self._exact_value() if exact is None else float(exact)
        low, high = window(self.frame, known)
        ax.set(xlim=(low, high), ylim=(len(self.frame) - 0.4, -0.6), xlabel="log Z, nats")
        ax.ticklabel_format(axis="x", useOffset=False, style="plain")
        if known is not None:
            ax.axvline(known, color=ORANGE, linewidth=1.2, zorder=1, label=EXACT)
        for place, (_, row) in enumerate(self.frame.iterrows()):
            Line(ax, place, row, low, high).draw()
        names = [str(name) for name in self.frame.index]
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(axis="y", length=0, pad=9)
        for tick, value in zip(ax.get_yticklabels(), self.frame["value"], strict=True):
            tick.set_color(GREY if math.isnan(value) else "black")
        ax.text(1.02, -0.7, "seconds", transform=ax.get_yaxis_transform(), fontsize=SMALL)
        for place in range(1, len(names)):
            ax.axhline(place - 0.5, color="0.93", linewidth=0.8, zorder=0)
        for side in ("left", "right", "top"):
            ax.spines[side].set_visible(False)
        self._draw_legend()
        return self

    def _exact_value(self) -> float | None:
        """log Z of an exact method, if there is one."""
        frame = self.frame
        exact = frame[frame["bound_kind"] == "exact"]
        return float(exact["value"].iloc[0]) if len(exact) else None

    def _draw_legend(self) -> None:
        """Draw a legend of the kinds of marks in use below the axes."""
        from matplotlib.transforms import ScaledTranslation

        handles, labels = self.ax_.get_legend_handles_labels()
        handle_of = dict(zip(labels, handles, strict=True))
        order = [name for name in LEGEND if name in handle_of]
        if not order:
            return
        below = ScaledTranslation(0, -0.45, self.figure_.dpi_scale_trans)  # inches
        self.ax_.legend(
            [handle_of[name] for name in order],
            order,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            bbox_transform=self.ax_.transAxes + below,
            ncols=3,
            frameon=False,
            fontsize=SMALL,
            markerscale=0.7,
        )


def window(frame: Any, known: float | None) -> tuple[float, float]:
    """Limits of the axis around log Z, without values much farther away than the others."""
    value = frame["value"].to_numpy(float)
    error = frame["std_error"].to_numpy(float)
    value = np.where(np.isfinite(value), value, np.nan)
    if known is None:
        sampled = value[np.isfinite(error) & np.isfinite(value)]
        usable = sampled if len(sampled) else value[np.isfinite(value)]
        known = float(np.median(usable)) if len(usable) else 0.0
    bars = (value - 2 * error, value + 2 * error)
    points = [value, *bars, frame["lower"].to_numpy(float), frame["upper"].to_numpy(float)]
    offsets = np.concatenate(points)
    offsets = offsets[np.isfinite(offsets)] - known
    errors = np.abs(value - known)
    errors = errors[np.isfinite(errors)]
    extent = max(MIN_EXTENT, float(np.median(errors)) if len(errors) else 1.0)
    for distance in np.sort(np.abs(offsets)):
        if distance > MAX_RATIO * extent:
            break
        extent = max(extent, float(distance))
    near = offsets[np.abs(offsets) <= extent]
    low, high = min(near.min(initial=0), -MIN_EXTENT), max(near.max(initial=0), MIN_EXTENT)
    margin = MARGIN * (high - low)
    return known + low - margin, known + high + margin


def format_seconds(seconds: float) -> str:
    """Seconds as short text."""
    if seconds < 0.01:
        return "<0.01"
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"


@dataclass
class Line:
    """The line of one method, drawn at its place from the top."""

    ax: Any
    place: int
    row: Mapping[str, Any]
    low: float
    high: float

    def draw(self) -> None:
        """Draw bounds, error bar, value and time; or the reason why there is no value."""
        row = self.row
        value = float(row["value"])
        if math.isnan(value):
            self._draw_reason(str(row["reason"]))
            return
        beside = self.ax.get_yaxis_transform()
        seconds = format_seconds(row["seconds"])
        self.ax.text(1.02, self.place, seconds, transform=beside, va="center", fontsize=SMALL)
        if isinstance(row["warning"], str) and row["warning"]:
            style: dict[str, Any] = {"linestyle": "none", "color": ORANGE, "label": WARNED}
            self.ax.plot(
                1.09,
                self.place,
                marker="$!$",
                transform=beside,
                clip_on=False,
                markersize=9,
                **style,
            )
        for side in ("lower", "upper"):
            self._end(side, float(row[side]), value)
        self._value(value, float(row["std_error"]))

    def _inside(self, number: float) -> bool:
        return self.low <= number <= self.high

    def _cut(self, number: float) -> float:
        return min(max(number, self.low), self.high)

    def _end(self, side: str, end: float, value: float) -> None:
        from matplotlib.path import Path

        if not math.isfinite(end) or self.row["lower"] == self.row["upper"]:
            return
        kind = str(self.row["bound_kind"])
        color, style, width = STYLES.get(kind, STYLES["heuristic"])
        span = sorted((self._cut(end), self._cut(value)))
        self.ax.plot(span, [self.place] * 2, style, color=color, linewidth=width, zorder=2)
        if not self._inside(end):
            self._arrow(end, color)
            return
        self.ax.plot(
            end,
            self.place,
            linestyle="none",
            marker=Path(BRACKETS[side]),
            markersize=13,
            fillstyle="none",
            color=color,
            markeredgewidth=width,
            zorder=3,
            label=BOUND_LABELS.get(kind, BOUND_LABELS["heuristic"]),
        )

    def _value(self, value: float, error: float) -> None:
        hollow = not math.isfinite(error)
        if not self._inside(value):
            side = "lower" if value < self.low else "upper"
            end = float(self.row[side])
            if math.isnan(end) or self._cut(end) != self._cut(value):  # else the bound has an arrow
                self._arrow(value, "black")
            return
        self.ax.errorbar(
            value,
            self.place,
            xerr=None if hollow else 2 * error,
            fmt="o",
            color="black",
            markerfacecolor="white" if hollow else "black",
            markersize=5,
            elinewidth=1.4,
            capsize=2.5,
            zorder=4,
            label=PLAIN if hollow else ESTIMATE,
        )

    def _arrow(self, number: float, color: str) -> None:
        """Draw an arrow at the edge with a number outside the axis."""
        left = number < self.low
        self.ax.plot(
            self.low if left else self.high,
            self.place,
            linestyle="none",
            marker="<" if left else ">",
            color=color,
            markersize=7,
            clip_on=False,
            zorder=3,
            label=BEYOND,
        )
        self.ax.annotate(
            f"{number:.1f}",
            (self.low if left else self.high, self.place),
            xytext=(6 if left else -6, 3),
            textcoords="offset points",
            ha="left" if left else "right",
            va="bottom",
            fontsize=SMALL - 1,
            color=color,
        )

    def _draw_reason(self, reason: str) -> None:
        short = textwrap.shorten(reason, MAX_REASON, placeholder=" ...")
        self.ax.text(
            0.01,
            self.place,
            short,
            transform=self.ax.get_yaxis_transform(),
            va="center",
            fontsize=SMALL,
            style="italic",
            color=GREY,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
