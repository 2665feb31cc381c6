"""Displays of the calibration of conformal p-values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm._validation import check_is_fitted, n_rows
from skebm.base.sampler import number_in, whole_number
from skebm.estimators.outlier.thresholds import p_value_bound
from skebm.inspection._drawing import NAVY, ORANGE, axes_of
from skebm.inspection.detection.band import chance_band, levels_up_to

SIZE = (5.4, 4.6)  # inches
SMALL = 9  # points
GREY = "0.55"


@dataclass(kw_only=True, eq=False, repr=False)
class PValueDisplay:
    r"""Calibration of conformal p-values: the distribution of those of normal rows.

    The curve is the share of fresh normal rows with p <= t, for every level t; for calibrated
    p-values it follows the diagonal. At the level of the detector a dot marks the share of the rows
    that is flagged. Squares mark levels at which the curve is outside the band.

    The band accounts for both sources of randomness: the fresh rows, and the rows that the detector
    was calibrated with. The number of m fresh rows with :math:`p \le k / (n + 1)` is beta-binomial,
    binomial with a rate drawn from Beta(k, n + 1 - k), whatever the data and the estimator. The
    curve of a calibrated detector stays inside the band with probability `confidence`, at all
    levels together if `simultaneous`, else at each level. A curve above the band means too many
    false alarms: the rows are not drawn from the distribution of the calibration rows, or the
    estimator was fitted to those. A curve below the band means large p-values, which anomalies
    among the calibration rows cause. Tied scores have the same effect, which is harmless: p-values
    count tied rows as no less abnormal.

    For ``"cross-conformal"`` the distribution of that number is not known. Instead of the band, a
    line shows the proven bound on the expected share, about 2 t; the curve may cross it by chance.

    Parameters
    ----------
    p_values : ndarray of shape (n_rows,)
        P-values of the rows, sorted.
    n_calibration : int
        Number of calibration rows.
    levels : ndarray of shape (n_levels,)
        Levels :math:`k / (n + 1)` of the band: all, or a selection if there are more than 300.
    lower, upper : ndarray of shape (n_levels,) or None
        Ends of the band; None under ``"cross-conformal"``.
    bound : ndarray of shape (n_levels,) or None
        Proven bound on the expected share under ``"cross-conformal"``, else None.
    confidence : float
        Probability that the curve of a calibrated detector stays inside the band.
    simultaneous : bool
        Whether `confidence` is the probability for all levels together, or for each of them.
    alarm_level : float or None, default=None
        Level at which the detector flags rows.

    Attributes
    ----------
    n_outside : int or None
        Number of levels at which the curve lies outside the band; None without a band.
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        The figure that :meth:`plot` last drew in.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    skebm.EnergyOutlierDetector : Computes the p-values.

    References
    ----------
    Bates, Candès, Lei, Romano and Sesia (2023), "Testing for outliers with conformal p-values",
    Annals of Statistics 51 (rates given the calibration rows). Gazin, Blanchard and Roquain (2024),
    "Transductive conformal inference with adaptive scores", AISTATS (all p-values together). The
    probability that all levels are inside is exact, by convolution over the levels; the band has
    one tail probability at each of them, as in Aldor-Noiman, Brown, Buja, Rolke and Stine (2013),
    "The power to see: a new graphical test of normality", The American Statistician 67.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import EnergyOutlierDetector
    >>> from skebm.inspection import PValueDisplay
    >>> X = np.random.default_rng(0).normal(size=(1000, 2))
    >>> detector = EnergyOutlierDetector(GaussianMixture(), method="conformal", random_state=0)
    >>> display = PValueDisplay.from_estimator(detector.fit(X[:500]), X[500:])
    >>> display.n_outside
    0

    ``display.plot()`` draws it, ``display.plot(log=True)`` shows the small levels.
    """

    p_values: np.ndarray
    n_calibration: int
    levels: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None
    bound: np.ndarray | None
    confidence: float
    simultaneous: bool
    alarm_level: float | None = None
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    @classmethod
    def from_estimator(
        cls, detector: Any, X: Any, *, confidence: float = 0.95, simultaneous: bool = True
    ) -> PValueDisplay:
        """Compute the p-values of rows.

        Parameters
        ----------
        detector : EnergyOutlierDetector
            Fitted, with a conformal `method` and without `by_class`.
        X : {array-like, sparse matrix, frame} of shape (n_rows, n_features)
            Normal rows that were not passed to `fit`.
        confidence : float in (0, 1), default=0.95
            Probability that the curve of a calibrated detector stays inside the band.
        simultaneous : bool, default=True
            Whether `confidence` is the probability for all levels together, or for each of them.

        Returns
        -------
        PValueDisplay
        """
        if not hasattr(type(detector), "p_values"):
            raise TypeError(
                f"PValueDisplay shows a fitted EnergyOutlierDetector, got "
                f"{type(detector).__name__}. Of a pipeline or a search pass the step itself; "
                "for p-values from elsewhere there is PValueDisplay.from_p_values."
            )
        check_is_fitted(detector)
        if not hasattr(detector, "p_values"):
            raise ValueError(
                "method='quantile' gives no p-values: fit the detector with method='conformal' or "
                "'cross-conformal'."
            )
        if np.ndim(detector.n_calibration_):
            raise ValueError(
                "by_class=True compares rows of each class with others: pass the p-values of the "
                "rows of one class, and its n_calibration_, to PValueDisplay.from_p_values."
            )
        if not n_rows(X):
            raise ValueError("X has no rows.")
        return cls.from_p_values(
            detector.p_values(X),
            detector.n_calibration_,
            n_folds=len(detector.estimators_),
            alarm_level=detector.contamination_,
            confidence=confidence,
            simultaneous=simultaneous,
        )

    @classmethod
    def from_p_values(
        cls,
        p_values: Any,
        n_calibration: int,
        *,
        n_folds: int = 1,
        alarm_level: float | None = None,
        confidence: float = 0.95,
        simultaneous: bool = True,
    ) -> PValueDisplay:
        """Make the display from p-values.

        Parameters
        ----------
        p_values : array-like of shape (n_rows,)
            Conformal p-values of normal rows: multiples of ``1 / (n_calibration + 1)``.
        n_calibration : int
            Number of calibration rows that each was compared with.
        n_folds : int, default=1
            1 for split conformal; the number of folds for cross-conformal, which has a proven bound
            instead of the band.
        alarm_level : float in (0, 1) or None, default=None
            Level at which rows are flagged.
        confidence : float in (0, 1), default=0.95
            Probability that the curve of a calibrated detector stays inside the band.
        simultaneous : bool, default=True
            Whether `confidence` is the probability for all levels together, or for each of them.

        Returns
        -------
        PValueDisplay
        """
        whole_number("n_calibration", n_calibration, 1)
        whole_number("n_folds", n_folds, 1)
        number_in("confidence", confidence, "(0, 1)")
        if alarm_level is not None:
            number_in("alarm_level", alarm_level, "(0, 1)")
        p, n = _check_p_values(p_values, n_calibration), n_calibration
        k = levels_up_to(n)
        lower = upper = bound = None
        if n_folds > 1:
            bound = p_value_bound(k, n, n_folds)
        else:
            band = chance_band(len(p), n, k, confidence, simultaneous=simultaneous)
            lower, upper = band.lower / len(p), band.upper / len(p)
        return cls(
            p_values=p,
            n_calibration=n,
            levels=k / (n + 1),
            lower=lower,
            upper=upper,
            bound=bound,
            confidence=confidence,
            simultaneous=simultaneous,
            alarm_level=alarm_level,
        )

    @property
    def n_outside(self) -> int | None:
        """Number of levels at which the curve lies outside the band."""
        return None if self.lower is None else int(self._outside().sum())

    def _outside(self) -> np.ndarray:
        """Whether the curve lies outside the band, at each level."""
        if self.lower is None or self.upper is None:
            return np.zeros(len(self.levels), dtype=bool)
        share = self._share(self.levels)
        return (share < self.lower - 1e-9) | (share > self.upper + 1e-9)

    def plot(self, ax: Any = None, *, log: bool = False) -> PValueDisplay:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.
        log : bool, default=False
            Whether both axes are logarithmic, to show the small levels that detectors use.

        Returns
        -------
        PValueDisplay
            Itself, with `figure_` and `ax_` set.
        """
        ax = axes_of("PValueDisplay", ax, SIZE)
        self.figure_, self.ax_ = ax.figure, ax
        first = float(self.levels[0])
        least = 0.7 / len(self.p_values)  # a logarithmic axis has to end, here below one row
        ends = np.array([first if log else 0.0, 1.0])
        ax.plot(ends, ends, color=GREY, linestyle="--", linewidth=1, label="share = level")
        self._draw_guarantee(least if log else 0.0)
        rows = f"{len(self.p_values)} row{'s' * (len(self.p_values) > 1)}"
        places = np.unique(np.concatenate([ends, self.p_values]))
        heights = self._share(places).clip(min=least if log else 0.0)
        ax.step(places, heights, where="post", color=NAVY, linewidth=1.6, label=rows)
        if (out := self._outside()).any():
            points = self.levels[out], self._share(self.levels[out]).clip(min=least if log else 0.0)
            label = f"outside at {out.sum()} of {len(out)} levels"
            ax.plot(*points, "s", color=ORANGE, markersize=3.5, label=label)
        if self.alarm_level is not None:
            flagged = self._share(np.array([self.alarm_level]))[0]
            label = f"flagged at {self.alarm_level:.3g}: {100 * flagged:.3g} %"
            place = (self.alarm_level, max(flagged, least) if log else flagged)
            ax.plot(*place, "o", color=NAVY, markeredgecolor="white", markersize=8, label=label)
        if log:
            ax.set(xscale="log", yscale="log", xlim=(first / 1.1, 1.1), ylim=(least, 1.3))
        else:
            ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        ax.set(xlabel="level t", ylabel="share of rows with p-value ≤ t")
        ax.spines[["top", "right"]].set_visible(False)
        narrow = {"handlelength": 1.2, "borderaxespad": 0.2}  # right of the curve
        ax.legend(loc="lower right", frameon=False, fontsize=SMALL, **narrow)
        return self

    def _draw_guarantee(self, least: float) -> None:
        """The band, or the proven bound where there is none."""
        levels = np.append(self.levels, 1.0)
        steps = {"step": "post"} if len(self.levels) == self.n_calibration else {}
        if self.lower is not None and self.upper is not None:
            curves = "calibrated curves" + ("" if self.simultaneous else ", at each level")
            self.ax_.fill_between(
                levels,
                np.append(self.lower, 1.0).clip(min=least),
                np.append(self.upper, 1.0).clip(min=least),
                color=GREY,
                alpha=0.35,
                linewidth=0,
                label=f"{100 * self.confidence:.3g} % of {curves}",
                **steps,
            )
        if self.bound is not None:
            style = "steps-post" if steps else "default"
            self.ax_.plot(
                levels,
                np.append(self.bound, 1.0),
                color=ORANGE,
                linewidth=1.4,
                drawstyle=style,
                label="proven for the mean curve",
            )

    def _share(self, levels: np.ndarray) -> np.ndarray:
        """Share of the p-values at or below each level, up to rounding."""
        below = np.searchsorted(self.p_values, levels + 0.1 / (self.n_calibration + 1), "right")
        return below / len(self.p_values)


def _check_p_values(p_values: Any, n: int) -> np.ndarray:
    """P-values, sorted, each the nearest multiple of 1 / (n + 1)."""
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not len(p):
        raise ValueError(f"p_values must be of shape (n_rows,), got {p.shape}.")
    if not ((p > 0) & (p <= 1)).all():
        raise ValueError("p_values must lie in (0, 1] and not be nan.")
    count = p * (n + 1)
    if (np.abs(count - count.round()) > 0.01).any():
        raise ValueError(
            f"Conformal p-values are multiples of 1 / (n_calibration + 1), which those given are "
            f"not for n_calibration={n}."
        )
    return np.sort(count.round() / (n + 1))
