"""Display of the history of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm._validation import check_is_fitted
from skebm.estimators.queries.densities import last_step
from skebm.inspection._drawing import NAVY, ORANGE, pyplot
from skebm.inspection.boltzmann.rbm import _columns

PANEL = (6.4, 1.9)  # inches
TITLE_HEIGHT = 0.6  # inches, for the title and the label of the epochs

# Labels and colours of the losses, which are drawn in the same axes.
LOSSES = {"train_loss": ("training rows", NAVY), "valid_loss": ("validation rows", ORANGE)}
# Labels of the other names; the name itself where it is not listed.
LABELS = {
    "energy_gap": "energy gap, nats",
    "gain_over_base": "gain over the base,\nnats per row",
    "log_likelihood": "log-likelihood, nats",
    "log_partition": "log Z, nats",
    "lr": "learning rate",
    "dur": "seconds",
    "energy_change": "change of energies\nin a step, nats",
}
# Drawn only on request.
ON_REQUEST = (
    "dur",
    "energy_change",
    "energy_spread",
    "gain_error",
    "largest_weight",
    "log_partition",
)


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingDisplay:
    """Curves of training: losses, and below them the other values recorded after each epoch.

    Parameters
    ----------
    history : dict of str to ndarray of shape (n_epochs,)
        Values of each epoch by name; nan where an epoch lacks one.
    names : list of str or None, default=None
        The values to draw. None leaves out the time, the standard deviation of energies and their
        change in a step, the standard error of the gain over the base, the largest weight, log Z,
        and a training loss that equals the energy gap.
    n_restarts : int, default=0
        Number of roll-backs.
    estimator_name : str, default="Training"
        Name in the title.

    Attributes
    ----------
    best_epoch : int or None
        The epoch, counted from 1, of the lowest ``valid_loss``; None where there is none.
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    axes_ : dict of str to matplotlib.axes.Axes
        Its axes by name: ``"loss"`` and the names of the other values.

    See Also
    --------
    RBMDisplay : Weights, samples and training of an RBM.

    Notes
    -----
    Losses are those of the objective. Unless this is minus the log-likelihood, they can be used to
    compare epochs of one fit, but not to compare models.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skebm import RBMEstimator
    >>> from skebm.inspection import TrainingDisplay
    >>> X = (load_digits().data > 7).astype(float)
    >>> rbm = RBMEstimator(32, n_iter=3, early_stopping=True, random_state=0).fit(X)
    >>> display = TrainingDisplay.from_estimator(rbm)
    >>> display.names
    ['valid_loss', 'energy_gap', 'acceptance', 'reconstruction_error', 'lr']
    >>> display.best_epoch
    3

    ``display.plot()`` draws it.
    """

    history: dict[str, np.ndarray]
    names: list[str] | None = None
    n_restarts: int = 0
    estimator_name: str = "Training"
    best_epoch: int | None = field(default=None, init=False)
    figure_: Any = field(default=None, init=False)
    axes_: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        known = [name for name in self.history if name != "epoch"]
        if not known or not len(self.history[known[0]]):
            raise ValueError("There are no epochs in the history, so there is nothing to draw.")
        names = _default_names(self.history) if self.names is None else list(self.names)
        unknown = [name for name in names if name not in known]
        if unknown or not names or isinstance(self.names, str):
            raise ValueError(
                f"names must be some of {', '.join(map(repr, known))}, got {self.names!r}."
            )
        losses = [name for name in LOSSES if name in names]
        self.names = losses + [name for name in dict.fromkeys(names) if name not in LOSSES]
        validation = self.history.get("valid_loss")
        if validation is not None and not np.isnan(validation).all():
            self.best_epoch = int(np.nanargmin(validation)) + 1

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, names: Any = None, ax: Any = None
    ) -> TrainingDisplay:
        """Take the history of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            An estimator of skebm with a ``history_``, or a pipeline or search that ends in one.
        names : sequence of str or None, default=None
            The values to draw; None for the default ones.
        ax : matplotlib.axes.Axes, array-like of them, or None, default=None
            Axes to draw in immediately; None leaves drawing to :meth:`plot`.

        Returns
        -------
        TrainingDisplay
        """
        check_is_fitted(estimator)
        _, final = last_step(estimator)
        if not hasattr(final, "history_"):
            raise TypeError(
                f"{type(final).__name__} has no history_: TrainingDisplay shows the estimators of "
                "skebm that train in epochs."
            )
        if not final.history_:
            raise ValueError(
                f"history_ of {type(final).__name__} has no epochs, so there is nothing to draw: "
                "fit it with a positive n_iter."
            )
        display = cls(
            history=_columns(final.history_),
            names=names,
            n_restarts=final.n_restarts_,
            estimator_name=type(final).__name__,
        )
        return display if ax is None else display.plot(ax)

    def plot(self, ax: Any = None) -> TrainingDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, array-like of them, or None, default=None
            One axes for the losses and one for each other name. None makes a new figure.

        Returns
        -------
        TrainingDisplay
            Itself, with `figure_` and `axes_` set.
        """
        panels: dict[str, list[str]] = {}
        for name in self.names or ():
            panels.setdefault("loss" if name in LOSSES else name, []).append(name)
        axes = self._new_axes(len(panels)) if ax is None else np.ravel(np.array(ax, dtype=object))
        if len(axes) != len(panels):
            raise ValueError(f"There are {len(panels)} panels: pass as many axes, not {len(axes)}.")
        self.figure_, self.axes_ = axes[0].figure, dict(zip(panels, axes, strict=True))
        for panel, names in panels.items():
            self._draw(self.axes_[panel], panel, names)
        axes[0].set_title(self._title(), fontsize="medium")
        if ax is None:
            for inner in axes[:-1]:
                inner.set_xlabel("")
        self.figure_.align_ylabels(list(axes))
        return self

    def _new_axes(self, n: int) -> Any:
        size = (PANEL[0], n * PANEL[1] + TITLE_HEIGHT)
        figure = pyplot("TrainingDisplay").figure(figsize=size, layout="constrained")
        return np.ravel(figure.subplots(n, 1, sharex=True))

    def _draw(self, ax: Any, panel: str, names: list[str]) -> None:
        for name in names:
            label, colour = LOSSES.get(name, (name, NAVY))
            values = np.asarray(self.history[name], dtype=float)
            recorded = np.flatnonzero(~np.isnan(values))
            # Values that only some epochs have are points that lines join.
            marker = "o" if len(recorded) < max(2, len(values)) else None
            points = recorded + 1, values[recorded]
            ax.plot(*points, color=colour, label=label, lw=1.3, marker=marker, ms=4)
        if self.best_epoch is not None:
            label = f"best: epoch {self.best_epoch}"
            ax.axvline(self.best_epoch, color="0.4", lw=1, ls="--", zorder=0, label=label)
        if panel == "energy_gap":
            ax.axhline(0, color="0.4", lw=0.8, ls=":", zorder=0)
        if panel == "loss":
            ax.legend(frameon=False, fontsize="small")
        ax.set(xlabel="epoch", ylabel=LABELS.get(panel, panel.replace("_", " ")))
        ax.locator_params("x", integer=True)
        ax.spines[["top", "right"]].set_visible(False)

    def _title(self) -> str:
        n, k = len(next(iter(self.history.values()))), self.n_restarts
        title = f"{self.estimator_name}: {n} epoch{'s' * (n > 1)}"
        return title + (f", rolled back {k} time{'s' * (k > 1)}" if k else "")


def _default_names(history: dict[str, np.ndarray]) -> list[str]:
    """Names that are drawn by default."""
    names = [name for name in history if name != "epoch" and name not in ON_REQUEST]
    loss, gap = history.get("train_loss"), history.get("energy_gap")
    if loss is not None and gap is not None and np.array_equal(loss, gap, equal_nan=True):
        names.remove("train_loss")  # the loss of contrastive divergence is the energy gap
    return names
