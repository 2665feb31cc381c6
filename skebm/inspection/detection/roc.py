"""Display of ROC curves of anomaly detectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_curve
from sklearn.utils import check_consistent_length

from skebm._validation import n_rows
from skebm.inspection._drawing import NAVY, ORANGE, axes_of
from skebm.inspection.detection.abnormality import abnormality, finite_ranks, outlier_mask
from skebm.metrics import Estimate, roc_auc_bootstrap
from skebm.metrics._checks import in_short, labels_of

SIZE = (5.4, 5.0)  # inches
SMALL = 9  # points
# Colour-blind safe colours (Okabe and Ito), and line styles for more curves than colours.
COLOURS = (NAVY, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "0.35")
LINES = ("-", "--", ":", "-.")


class ROCCurve(NamedTuple):
    """The ROC curve of a detector, with anomalies as the positives.

    Attributes
    ----------
    false_rate, true_rate : ndarray of shape (n_thresholds,)
        False and true positive rate at each threshold: fractions of the normal rows, and of the
        anomalies, that are flagged.
    auroc : Estimate
        Area under the curve, with its bootstrap standard error.
    operating_point : tuple of (float, float) or None
        False and true positive rate of `predict`.
    """

    false_rate: np.ndarray
    true_rate: np.ndarray
    auroc: Estimate
    operating_point: tuple[float, float] | None


@dataclass(eq=False, repr=False)
class DetectorROCDisplay:
    """ROC curves of detectors on the same rows, with anomalies as the positives.

    Each legend entry shows the area under the curve with its standard error. The areas of two
    detectors on the same rows are dependent, so their difference needs a paired test, see
    :func:`skebm.metrics.roc_auc_difference`. A dot marks the operating point of the detector's
    `predict`.

    Parameters
    ----------
    curves : dict of str to ROCCurve
        The curves by the name of the detector, each with ``false_rate``, ``true_rate``,
        ``auroc`` (an ``Estimate`` of :mod:`skebm.metrics`) and ``operating_point``, the two rates
        at the detector's threshold, or None.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    ax_ : matplotlib.axes.Axes
        Its axes.

    See Also
    --------
    skebm.metrics.roc_auc_bootstrap : The areas and their standard errors.
    EnergyHistogramDisplay : Histograms of the scores of one detector.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.ensemble import IsolationForest
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm.inspection import DetectorROCDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> train, test = X[y == 1][::2], np.concatenate([X[y == 1][1::2], X[y == 2]])
    >>> label = np.repeat([1, -1], [len(test) - sum(y == 2), sum(y == 2)])
    >>> detectors = {
    ...     "forest": IsolationForest(random_state=0).fit(train),
    ...     "mixture": GaussianMixture(covariance_type="diag", random_state=0).fit(train),
    ... }
    >>> display = DetectorROCDisplay.from_estimators(detectors, test, label, random_state=0)
    >>> round(display.curves["mixture"].auroc.value, 2)
    0.99

    ``display.plot()`` draws it.
    """

    curves: dict[str, ROCCurve]
    figure_: Any = field(default=None, init=False)
    ax_: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.curves, Mapping) or not self.curves:
            raise ValueError("curves must be a dict of at least one curve by name.")

    @classmethod
    def from_estimators(
        cls,
        estimators: Mapping[str, Any],
        X: Any,
        y: Any,
        *,
        pos_label: Any = None,
        n_bootstraps: int = 1000,
        random_state: Any = None,
    ) -> DetectorROCDisplay:
        """Compute the curves.

        Parameters
        ----------
        estimators : dict of str to fitted estimator
            Detectors and densities by name. They are ranked by the ``decision_function`` of an
            :class:`~skebm.EnergyOutlierDetector`, by minus ``energy`` of other estimators of skebm
            (equivalent to log p without log Z), and else by ``score_samples``.
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            Held-out rows of both classes.
        y : array-like of shape (n_samples,)
            Labels of two classes.
        pos_label : int, float, bool or str, default=None
            The label of anomalies. None is -1 if the labels are +1 (normal) and -1, as `predict` of
            detectors returns them. Other labels, such as 0 and 1, have no common convention, so
            `pos_label` is then required.
        n_bootstraps : int, default=1000
            Resamples for the standard error of an area.
        random_state : int, RandomState instance or None, default=None
            Draws the resamples; None uses NumPy's global generator.

        Returns
        -------
        DetectorROCDisplay
        """
        if not isinstance(estimators, Mapping) or not estimators:
            raise ValueError(
                "estimators must be a dict of fitted detectors by name, such as "
                f"{{'forest': forest}}; got {type(estimators).__name__}"
                + (" without any." if isinstance(estimators, Mapping) else ".")
            )
        anomaly = anomalies(y, pos_label)
        if n_rows(X) != len(anomaly):
            check_consistent_length(X, anomaly)
        curves = {}
        for name, estimator in estimators.items():
            rank = finite_ranks(abnormality(estimator, X).values)
            false_rate, true_rate, _ = roc_curve(anomaly, rank)
            auroc = roc_auc_bootstrap(
                anomaly, rank, n_bootstraps=n_bootstraps, pos_label=True, random_state=random_state
            )
            point, outlier = None, outlier_mask(estimator, X)
            if outlier is not None:
                point = float(outlier[~anomaly].mean()), float(outlier[anomaly].mean())
            curves[str(name)] = ROCCurve(false_rate, true_rate, auroc, point)
        return cls(curves)

    def plot(self, ax: Any = None) -> DetectorROCDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            None makes a new figure.

        Returns
        -------
        DetectorROCDisplay
            Itself, with `figure_` and `ax_` set.
        """
        ax = axes_of("DetectorROCDisplay", ax, SIZE)
        self.figure_, self.ax_ = ax.figure, ax
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        for place, (name, curve) in enumerate(self.curves.items()):
            colour, line = COLOURS[place % len(COLOURS)], LINES[place // len(COLOURS) % len(LINES)]
            area = f"{name}: {curve.auroc.value:.3f} ± {curve.auroc.std_error:.3f}"
            style = {"color": colour, "linestyle": line, "linewidth": 1.6, "label": area}
            ax.plot(curve.false_rate, curve.true_rate, **style)
        for place, curve in enumerate(self.curves.values()):
            if curve.operating_point is not None:
                colour = COLOURS[place % len(COLOURS)]
                dot: dict[str, Any] = {"markeredgecolor": "white", "markersize": 8, "zorder": 4}
                ax.plot(*curve.operating_point, "o", color=colour, **dot)
        if any(curve.operating_point for curve in self.curves.values()):
            dot = {"linestyle": "none", "marker": "o", "color": "0.35", "markersize": 7}
            ax.plot([], [], label="threshold of predict", **dot)
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        ax.set(xlabel="false positive rate", ylabel="true positive rate")
        ax.set_aspect("equal", adjustable="box")
        ax.spines[["top", "right"]].set_visible(False)
        box = {"edgecolor": "none", "framealpha": 0.8, "fontsize": SMALL, "alignment": "left"}
        ax.legend(loc="lower right", title="AUROC ± standard error", **box)
        return self


def anomalies(y: Any, pos_label: Any) -> np.ndarray:
    """Mask of the anomalies; `ValueError` for labels that do not determine them."""
    labels = labels_of(y, "y")
    distinct = np.unique(labels).tolist()
    shown = in_short(distinct)
    if len(distinct) != 2:
        raise ValueError(f"y must have normal rows and anomalies; its labels are {shown}.")
    if pos_label is None:
        if distinct != [-1, 1]:
            raise ValueError(
                f"The labels {shown} do not determine which rows are anomalies: pass the label of "
                f"anomalies as pos_label, such as pos_label={distinct[1]!r}."
            )
        pos_label = -1
    if pos_label not in distinct:
        raise ValueError(f"pos_label={pos_label!r} is not one of the labels {shown} in y.")
    return np.asarray(labels == pos_label)
