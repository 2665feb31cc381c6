"""Displays of sequences: piano rolls and columns in time, of data and of a temporal model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import as_numbers, check_is_fitted
from skebm.base.sampler import whole_number
from skebm.estimators.tables.columns import column_numbers
from skebm.inspection._drawing import NAVY, ORANGE, pyplot

# Labels of an axis of notes, at most, and inches of a panel.
MAX_LABELS, ROLL, CURVE = 14, (8.0, 2.4), (8.0, 1.2)
# Columns whose curves are drawn unless they are named.
N_COLUMNS = 6
PITCHES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class Pair(NamedTuple):
    """A sequence of data, and its first frames continued by a model.

    Attributes
    ----------
    real, generated : ndarray of shape (n, d), (n_start + n_frames, d)
    names : list of str
        Names of the columns.
    """

    real: np.ndarray
    generated: np.ndarray
    names: list[str]


@dataclass(kw_only=True, eq=False, repr=False)
class PianoRollDisplay:
    """A piano roll, and below it the continuation of its first frames by a temporal model.

    Create it with :meth:`from_estimator`, which computes everything; :meth:`plot` only draws, and
    can be called repeatedly. All data are stored as plain arrays.

    Parameters
    ----------
    real : ndarray of shape (n, n_notes)
        Frames of the data, 1 where a note sounds.
    generated : ndarray of shape (n_start + n_frames, n_notes)
        The first of these frames, followed by those that the model generated.
    n_start : int
        Number of frames that both begin with.
    note_names : list of str
        Names of the columns.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    axes_ : dict of str to matplotlib.axes.Axes
        Its axes, ``"real"`` and ``"generated"``.

    See Also
    --------
    TrajectoryDisplay : Real columns.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import TemporalRBM
    >>> from skebm.inspection import PianoRollDisplay
    >>> X = np.tile(np.eye(3), (40, 1))
    >>> model = TemporalRBM(4, order=1, n_iter=20, random_state=0).fit(X)
    >>> display = PianoRollDisplay.from_estimator(model, X, n_start=6, n_frames=12, random_state=0)
    >>> display.generated.shape
    (18, 3)
    """

    real: np.ndarray
    generated: np.ndarray
    n_start: int
    note_names: list[str]
    figure_: Any = field(default=None, init=False)
    axes_: dict[str, Any] = field(default_factory=dict, init=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        n_start: int = 16,
        n_frames: int = 48,
        first_pitch: int | None = None,
        random_state: Any = None,
        n_steps: int = 50,
    ) -> PianoRollDisplay:
        """Compute the display of a fitted model.

        Parameters
        ----------
        estimator : TemporalRBM
            Fitted model of bits.
        X : array-like of shape (n, n_notes)
            A sequence of at least `n_start` frames of bits; frames beyond the first `n_start` +
            `n_frames` are left out.
        n_start : int, default=16
            Number of frames of X after which the model continues.
        n_frames : int, default=48
            Number of frames that it generates.
        first_pitch : int or None, default=None
            MIDI number of the first column, such as 60 for middle C: columns are then named as
            notes, such as C4. None keeps the names of the columns.
        random_state : int, RandomState instance or None, default=None
            As in :meth:`skebm.TemporalRBM.sample`.
        n_steps : int, default=50
            As in :meth:`skebm.TemporalRBM.sample`.

        Returns
        -------
        PianoRollDisplay
        """
        if first_pitch is not None:
            whole_number("first_pitch", first_pitch, 0)
        lengths = n_start, n_frames
        pair = _continuation("PianoRollDisplay", estimator, X, lengths, random_state, n_steps)
        if not np.isin(pair.real, (0, 1)).all():
            raise ValueError("A piano roll has bits, 0 and 1: use TrajectoryDisplay for numbers.")
        names = pair.names
        if first_pitch is not None:
            pitches = range(first_pitch, first_pitch + len(names))
            names = [f"{PITCHES[k % 12]}{k // 12 - 1}" for k in pitches]
        real = pair.real[: n_start + n_frames]
        return cls(real=real, generated=pair.generated, n_start=n_start, note_names=names)

    def plot(self, *, figure: Any = None) -> PianoRollDisplay:
        """Draw both rolls, with a line where the model begins.

        Parameters
        ----------
        figure : Figure, SubFigure or None, default=None
            Figure to draw in; None makes a new one.

        Returns
        -------
        PianoRollDisplay
            Itself, with `figure_` and `axes_` set.
        """
        axes = _panels("PianoRollDisplay", figure, 2, ROLL)
        self.figure_, self.axes_ = axes[0].figure, {"real": axes[0], "generated": axes[1]}
        titles = "data", f"its first {self.n_start} frames, continued by the model"
        step = -(-len(self.note_names) // MAX_LABELS)
        ticks = np.arange(0, len(self.note_names), step)
        for ax, roll, title in zip(axes, (self.real, self.generated), titles, strict=True):
            ax.imshow(
                roll.T, cmap="Greys", vmin=0, vmax=1, origin="lower", aspect="auto",
                interpolation="nearest",
            )  # fmt: skip
            ax.axvline(self.n_start - 0.5, color=ORANGE, lw=1)
            ax.set_yticks(ticks, [self.note_names[k] for k in ticks], fontsize="x-small")
            ax.set_title(title, fontsize="medium")
            ax.set_xlim(-0.5, max(len(self.real), len(self.generated)) - 0.5)
        axes[1].set_xlabel("frame")
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class TrajectoryDisplay:
    """Real columns of a sequence in time, and the continuation of its start by a temporal model.

    For motion capture, it draws joint angles as curves, one below the other, which show whether a
    generated walk remains a walk. (A stick figure would need the lengths of the bones, which the
    columns do not contain.)

    Create it with :meth:`from_estimator`, which computes everything; :meth:`plot` only draws, and
    can be called repeatedly. All data are stored as plain arrays.

    Parameters
    ----------
    real : ndarray of shape (n, k)
        Columns of the data that are shown.
    generated : ndarray of shape (n_start + n_frames, k)
        Their first frames, followed by those that the model generated.
    n_start : int
        Number of frames that both begin with.
    column_names : list of str
        Names of the k columns.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    axes_ : dict of str to matplotlib.axes.Axes
        Its axes by the name of the column.

    See Also
    --------
    PianoRollDisplay : Bits.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import TemporalRBM
    >>> from skebm.inspection import TrajectoryDisplay
    >>> t = np.arange(300)[:, None]
    >>> X = np.sin(t / [5.0, 9.0]) + 0.05 * np.random.default_rng(0).normal(size=(300, 2))
    >>> model = TemporalRBM(4, order=2, n_iter=20, random_state=0).fit(X)
    >>> display = TrajectoryDisplay.from_estimator(model, X, n_frames=100, random_state=0)
    >>> display.column_names
    ['x0', 'x1']
    """

    real: np.ndarray
    generated: np.ndarray
    n_start: int
    column_names: list[str]
    figure_: Any = field(default=None, init=False)
    axes_: dict[str, Any] = field(default_factory=dict, init=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        columns: Sequence[int | str] | None = None,
        n_start: int = 16,
        n_frames: int = 300,
        random_state: Any = None,
        n_steps: int = 50,
    ) -> TrajectoryDisplay:
        """Compute the display of a fitted model.

        Parameters
        ----------
        estimator : TemporalRBM
            Fitted model.
        X : array-like of shape (n, n_features)
            A sequence of at least `n_start` frames of numbers; frames beyond the first `n_start` +
            `n_frames` are left out.
        columns : sequence of int or str, or None, default=None
            Numbers or names of the columns to show; None shows the six that vary most in X
            relative to their changes from frame to frame, which are the smoothest ones.
        n_start : int, default=16
            Number of frames of X after which the model continues.
        n_frames : int, default=300
            Number of frames that it generates.
        random_state : int, RandomState instance or None, default=None
            As in :meth:`skebm.TemporalRBM.sample`.
        n_steps : int, default=50
            As in :meth:`skebm.TemporalRBM.sample`.

        Returns
        -------
        TrajectoryDisplay
        """
        lengths = n_start, n_frames
        pair = _continuation("TrajectoryDisplay", estimator, X, lengths, random_state, n_steps)
        if isinstance(columns, str) or (columns is not None and not len(columns)):
            raise ValueError(f"columns must be a list of numbers or names, got {columns!r}.")
        shown: Any = _smoothest(pair.real)
        if columns is not None:
            shown = column_numbers("columns", columns, pair.names, len(pair.names))
        return cls(
            real=pair.real[: n_start + n_frames, shown],
            generated=pair.generated[:, shown],
            n_start=n_start,
            column_names=[pair.names[k] for k in shown],
        )

    def plot(self, *, figure: Any = None) -> TrajectoryDisplay:
        """Draw the curves, with a line where the model begins.

        Parameters
        ----------
        figure : Figure, SubFigure or None, default=None
            Figure to draw in; None makes a new one.

        Returns
        -------
        TrajectoryDisplay
            Itself, with `figure_` and `axes_` set.
        """
        axes = _panels("TrajectoryDisplay", figure, len(self.column_names), CURVE)
        self.figure_ = axes[0].figure
        self.axes_ = dict(zip(self.column_names, axes, strict=True))
        for k, ax in enumerate(axes):
            ax.plot(self.real[:, k], color=NAVY, lw=1.2, label="data")
            later = np.arange(self.n_start - 1, len(self.generated))
            ax.plot(later, self.generated[later, k], color=ORANGE, lw=1, label="model")
            ax.axvline(self.n_start - 1, color="0.6", lw=0.8)
            ax.set_ylabel(self.column_names[k], fontsize="small")
            ax.tick_params(labelsize="small")
            ax.spines[["top", "right"]].set_visible(False)
        above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
        axes[0].legend(ncols=2, frameon=False, fontsize="small", **above)
        axes[-1].set_xlabel("frame")
        return self


def _continuation(
    display: str,
    estimator: Any,
    X: Any,
    lengths: tuple[int, int],
    random_state: Any,
    n_steps: int,
) -> Pair:
    """A sequence and its first frames, continued by a model; `n_start` and `n_frames` of them."""
    if not hasattr(estimator, "predict_next"):
        raise TypeError(
            f"{display} shows a fitted TemporalRBM, got {type(estimator).__name__}; of a pipeline "
            "pass the last step, pipeline[-1], and the rows that it sees."
        )
    check_is_fitted(estimator)
    n_start, n_frames = lengths
    whole_number("n_start", n_start, 1)
    whole_number("n_frames", n_frames, 1)
    if len(X) < n_start:
        raise ValueError(f"X has {len(X)} frames, fewer than n_start={n_start}.")
    how = {"random_state": random_state, "n_steps": n_steps}
    drawn = estimator.sample(n_frames, start=X[:n_start], **how)
    real = as_numbers("X", X)
    names = getattr(estimator, "feature_names_in_", [f"x{k}" for k in range(real.shape[1])])
    generated = np.concatenate([real[:n_start], as_numbers("drawn frames", drawn)])
    return Pair(real, generated, [str(name) for name in names])


def _smoothest(x: np.ndarray) -> np.ndarray:
    """Numbers of a few columns that vary most relative to their changes, in order."""
    if len(x) < 2:
        return np.arange(min(N_COLUMNS, x.shape[1]))
    change = np.square(np.diff(x, axis=0)).mean(0)
    share = np.divide(x.var(0), change, out=np.zeros_like(change), where=change > 0)
    return np.sort(np.argsort(-share, kind="stable")[:N_COLUMNS])


def _panels(display: str, figure: Any, n: int, size: tuple[float, float]) -> list[Any]:
    """Axes one below the other with the same frames."""
    if figure is None:
        height = size[1] * n + 0.4
        figure = pyplot(display).figure(figsize=(size[0], height), layout="constrained")
    return list(figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0])
