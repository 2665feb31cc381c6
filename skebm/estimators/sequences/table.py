"""Sequences of frames: what users pass, and rows of an energy with their sequence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import (
    check_container,
    check_is_fitted,
    is_frame,
    mask_as_missing,
    take_rows,
)
from skebm.estimators.base import BaseEBM
from skebm.estimators.sequences.series.panels import names_of_sequences, without_column
from skebm.estimators.sequences.series.stamps import Grid, Stamps, is_series, without_stamps
from skebm.estimators.tables.table import Layout
from skebm.training.rows import Rows
from skebm.training.segments import Segments


def join_sequences(X: Any, lengths: Any, sequence_column: Any) -> tuple[Any, np.ndarray | None]:
    """All frames below each other, and the lengths of the sequences; None is one sequence.

    Parameters
    ----------
    X : array-like of shape (n_frames, n_features), or list of such
    lengths : array-like of int or None
        Number of frames of each sequence; they add up to the number of all frames.
    sequence_column : str, int or None
        Column that identifies the sequence of each frame, and is left out; sequences are runs of
        equal values (:func:`in_sequences` makes runs of panels in the order of time).

    Raises
    ------
    ValueError
        For empty sequences, sequences that differ in their numbers of columns, lengths that do not
        add up, and lengths given twice.
    """
    check_container(X)
    if isinstance(X, list | tuple) and X and all(np.ndim(one) == 2 for one in X):
        if lengths is not None or sequence_column is not None:
            raise ValueError(
                "A list of sequences has its lengths: leave out lengths and sequence_column."
            )
        return _stack_sequences(X)
    if sequence_column is not None:
        if lengths is not None:
            raise ValueError("lengths and sequence_column both say where sequences end: pass one.")
        return _split_by(X, sequence_column)
    if lengths is None:
        return X, None
    lengths = np.asarray(lengths)
    whole = lengths.ndim == 1 and lengths.size and lengths.dtype.kind in "iu"
    lengths = lengths.astype(np.int64) if whole else lengths
    if not whole or (lengths < 1).any():
        raise ValueError(
            "lengths must be the numbers of frames of the sequences, whole numbers of at least 1, "
            f"got {lengths!r}."
        )
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    if lengths.sum() != n:
        raise ValueError(f"lengths add up to {lengths.sum()}, and X has {n} frames.")
    return X, lengths


def join_labels(X: Any, y: Any) -> Any:
    """Labels of all frames below each other; of a list of sequences they may be a list, too.

    Raises `ValueError` for a sequence whose numbers of labels and frames differ.
    """
    is_list = isinstance(y, list | tuple) and isinstance(X, list | tuple)
    if not is_list or not y or any(np.ndim(one) != 1 for one in y):
        return y
    if len(y) != len(X):
        raise ValueError(f"X has {len(X)} sequences, and y has labels of {len(y)}.")
    for number, (frames, labels) in enumerate(zip(X, y, strict=True)):
        if len(frames) != len(labels):
            raise ValueError(
                f"Sequence {number} has {len(frames)} frames and {len(labels)} labels."
            )
    return np.concatenate([np.asarray(one) for one in y])


def _stack_sequences(X: Sequence[Any]) -> tuple[Any, np.ndarray]:
    """The frames of several sequences."""
    widths = [np.shape(one)[1] for one in X]
    if len(set(widths)) > 1:
        other = next(i for i, width in enumerate(widths) if width != widths[0])
        raise ValueError(
            f"Sequence 0 has {widths[0]} columns and sequence {other} has {widths[other]}."
        )
    lengths = np.array([len(one) for one in X])
    if (lengths == 0).any():
        raise ValueError(f"Sequence {int((lengths == 0).argmax())} has no frames: leave it out.")
    if all(hasattr(one, "iloc") for one in X):
        import pandas as pd

        return pd.concat(X), lengths
    if all(is_frame(one) for one in X):
        import polars as pl

        return pl.concat(X), lengths
    return np.concatenate([np.asarray(mask_as_missing(one)) for one in X]), lengths


def _split_by(X: Any, column: Any) -> tuple[Any, np.ndarray]:
    """X without a column, and the lengths of the runs of its values."""
    values = _numbers_of_sequences(X, column)
    rest = without_column(X, column)
    if not len(values):
        return rest, np.zeros(0, dtype=int)
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    return rest, np.diff(ends, prepend=-1)


def _numbers_of_sequences(X: Any, column: Any) -> np.ndarray:
    """Number of the sequence of each frame, in the order in which they begin, (n_frames,)."""
    place: dict[Any, int] = {}
    names = names_of_sequences(X, column)
    return np.array([place.setdefault(name, len(place)) for name in names], dtype=int)


def in_sequences(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method take series and panels whose sequences are not runs of rows in order of time.

    The frames of each sequence are put below each other, in their order, with the labels and
    weights that belong to them; results of frames come back in the order of X. Frames with time
    stamps (`without_stamps`) are put into the order of time, and a gap in time begins a new
    sequence.
    """
    parameters = inspect.signature(method)

    @functools.wraps(method)
    def in_order(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_keeps_time", False):  # its estimator has a use for time stamps
            return method(self, *args, **kwargs)
        bound = parameters.bind(self, *args, **kwargs).arguments
        column = sequence_column_of(self)
        bound["X"], bound["lengths"], order = arrange(bound["X"], bound.get("lengths"), column)
        for name in ("y", "sample_weight"):
            if order is not None and bound.get(name) is not None:
                bound[name] = take_rows(np.asarray(bound[name]), order)
        bound = {name: value for name, value in bound.items() if name != "self"}
        kept = bound.pop("kwargs", {})
        result = method(self, **bound, **kept)
        return result if order is None else _put_back(result, np.argsort(order))

    return in_order


def arrange(X: Any, lengths: Any, column: Any) -> tuple[Any, Any, np.ndarray | None]:
    """Sequences as runs of frames in the order of time, without time stamps.

    Parameters
    ----------
    X : array-like, Series or frame of shape (n_frames, n_features), or list of such
    lengths, column : object
        As in :func:`join_sequences`.

    Returns
    -------
    X, lengths : object
        As in :func:`join_sequences`; a gap in time ends a sequence.
    order : ndarray of int of shape (n_frames,) or None
        Numbers of the frames in their new order; None is the given one.
    """
    if isinstance(X, list | tuple):
        if any(is_series(one) or is_frame(one) for one in X):
            X = [_in_order(one, number) for number, one in enumerate(X)]
        return X, lengths, None
    X, stamps = without_stamps(X)
    if not _is_one_table(X) or column is None and stamps is None:
        return X, lengths, None
    if column is None:
        checked = join_sequences(X, lengths, None)[1]
        sequence = first_frames(len(X), checked)
    elif lengths is None:
        sequence = _numbers_of_sequences(X, column)
    else:
        return X, lengths, None  # join_sequences refuses both
    time = np.arange(len(X)) if stamps is None else stamps.instant
    order = np.lexsort((time, sequence))
    same = (np.diff(order) == 1).all()
    X = X if same else take_rows(mask_as_missing(X), order)
    if stamps is not None:
        X, lengths = _end_at_gaps(X, lengths, column, stamps.take(order), sequence[order])
    return X, lengths, None if same else order


def check_one_series(X: Any, lengths: Any, sequence_column: Any) -> None:
    """Raise `ValueError` for other than one series whose rows are in the order of time."""
    if sequence_column is not None:
        raise ValueError(
            f"Windows(sequence_column={sequence_column!r}) makes rows of several series, and "
            "blocks are held out of one: fit a detector to each series."
        )
    if lengths is not None or (isinstance(X, list | tuple) and any(np.ndim(one) for one in X)):
        raise ValueError(
            "Windows make rows of one series: leave out lengths and lists, or use a model of "
            "sequences, such as TemporalRBM."
        )
    stamps = without_stamps(X)[1]
    if stamps is not None and (np.diff(stamps.instant.view("int64")) < 0).any():
        raise ValueError("X is not in the order of time: sort it, as by X.sort_index().")


def check_no_gaps(X: Any) -> None:
    """Raise `ValueError` for one series with gaps in time, whose parts are not exchangeable."""
    if isinstance(X, list | tuple):
        return
    lengths = arrange(X, None, None)[1]
    if lengths is not None:
        raise ValueError(
            f"There are {len(lengths) - 1} gaps in time, the first one after {lengths[0]} frames. "
            "Fill them in, as by X.asfreq(...).interpolate(), or pass lengths of sequences that "
            "are alike, some of which are held out."
        )


def _in_order(X: Any, number: int) -> Any:
    """A sequence of a list without its time stamps, which must be in order and without gaps."""
    X, stamps = without_stamps(X)
    if stamps is not None:
        same = np.zeros(len(X), dtype=int)
        step = np.diff(stamps.instant.view("int64"))
        if (step < 0).any():
            raise ValueError(
                f"Sequence {number} is not in the order of time: sort it, as by sort_index()."
            )
        gaps = np.flatnonzero(np.diff(Grid.learn(stamps, same).places(stamps, same)) > 1)
        if len(gaps):
            raise ValueError(
                f"Sequence {number} has a gap in time after its frame {gaps[0]}: fill it in, or "
                "pass what is before and after as two sequences."
            )
    return X


def _end_at_gaps(
    X: Any, lengths: Any, column: Any, stamps: Stamps, sequence: np.ndarray
) -> tuple[Any, Any]:
    """Frames in order and the lengths of their sequences, which end at gaps in time."""
    places = Grid.learn(stamps, sequence).places(stamps, sequence)
    ends = (np.diff(sequence) != 0) | (np.diff(places) != 1)
    if ends.sum() == (np.diff(sequence) != 0).sum():
        return X, lengths
    part = np.concatenate([[0], np.cumsum(ends)])
    if column is None:
        return X, np.bincount(part)
    if hasattr(X, "iloc"):
        X = X.copy(deep=False)
        X[column] = part
        return X, lengths
    import polars as pl

    return X.with_columns(pl.Series(column, part)), lengths


def sequence_column_of(estimator: BaseEstimator) -> Any:
    """The parameter `sequence_column`, of the estimator of a detector where it is one."""
    if hasattr(estimator, "sequence_column"):
        return estimator.sequence_column
    return getattr(estimator._model(), "sequence_column", None)


def _is_one_table(X: Any) -> bool:
    """Whether X is a table of frames, and no list of sequences."""
    return len(getattr(X, "shape", ())) == 2


def _put_back(found: Any, place: np.ndarray) -> Any:
    """Results of frames in another order; anything else unchanged."""
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*(_put_back(part, place) for part in found))
    if isinstance(found, list):
        return [_put_back(part, place) for part in found]
    shape: tuple[int, ...] = getattr(found, "shape", ())
    return take_rows(found, place) if shape[:1] == (len(place),) else found


def first_frames(n_frames: int, lengths: np.ndarray | None) -> np.ndarray:
    """Number of the first frame of the sequence of each frame, (n_frames,)."""
    lengths = np.array([n_frames]) if lengths is None else lengths
    return np.repeat(np.cumsum(lengths) - lengths, lengths)


def first_without(first: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`first_frames` of the frames that are left without some, a mask, which end sequences."""
    kept = ~rows
    # Frames that no other was taken from between follow each other.
    parts = np.stack([first, np.cumsum(rows)], 1)[kept]
    begins = np.ones(len(parts), dtype=bool)
    begins[1:] = (parts[1:] != parts[:-1]).any(1)
    found: np.ndarray = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return found


def check_complete(X: np.ndarray, names: Any, *, fitted: bool, coded: bool) -> None:
    """Raise `ValueError` that names a frame and a column with a missing entry.

    `coded` says whether levels that are unseen are missing, too.
    """
    missing = np.isnan(X)
    if not missing.any():
        return
    frame, column = (int(one[0]) for one in missing.nonzero())
    name = column if names is None else repr(str(names[column]))
    advice = (
        "fill missing entries in by impute"
        if fitted
        else "train on complete stretches of the sequences (lengths), then fill the others in by "
        "impute"
    )
    what = " is missing or a level unseen in fit" if coded else ""
    raise ValueError(f"Input X contains NaN: frame {frame}, column {name}{what}; {advice}.")


def new_frames(estimator: BaseEBM, X: Any, lengths: Any, **kwargs: Any) -> tuple[Segments, Any]:
    """Frames of new sequences as a fitted estimator sees them, and X validated."""
    check_is_fitted(estimator)
    X, _ = without_stamps(X)
    X, lengths = join_sequences(X, lengths, estimator.sequence_column)
    X = estimator._validate(X, **kwargs)
    rows = estimator._rows_of(X)
    assert isinstance(rows, Segments)
    first = torch.as_tensor(first_frames(len(rows.x), lengths), device=rows.x.device)
    rows.cut(first, estimator.energy_.order, 1)
    return rows, X


class FrameWindows(Layout):
    """Frames in order of time, of which training rows are windows.

    Parameters
    ----------
    n_context, n_targets : int
        Number of frames of a window before those that are trained on, and number of the latter.
    """

    is_ordered = True

    def __init__(self, n_context: int, n_targets: int):
        self.n_context, self.n_targets = n_context, n_targets

    def rows(self, rows: Rows) -> Rows:
        return Segments(rows)

    def prepare(self, rows: Rows) -> None:
        """Cut the frames into windows; the targets y are the first frames of their sequences."""
        assert isinstance(rows, Segments)
        assert rows.y is not None
        first, rows.y = rows.y.to(rows.x.device), None
        rows.cut(first, self.n_context, self.n_targets)


def check_numbers(found: np.ndarray) -> np.ndarray:
    """What was computed of frames, (n_frames, ...); `ValueError` names the first nan."""
    bad = np.isnan(found.reshape(len(found), -1)).any(1)
    if bad.any():
        raise ValueError(
            f"What is said of frame {int(bad.argmax())} given the past is not a number: it or a "
            "frame before it is too far from those of fit. Drop such frames, or fill them in by "
            "impute."
        )
    return found


@torch.no_grad()
def walk(
    energy: Any, rows: Segments, n_targets: int, n_windows: int
) -> Iterator[tuple[Tensor, Any, Tensor]]:
    """All frames in order of time, many sequences side by side, with what their past adds.

    Parameters
    ----------
    energy : TemporalEnergy
    rows : Segments
        Of which the frames and their sequences are used.
    n_targets, n_windows : int
        Numbers of frames and of sequences that are computed at once.

    Yields
    ------
    tuple
        Frames x (m, d), their :class:`~skebm.energies.Biases` and their numbers (m,); the frames of
        a sequence are in order.
    """
    starts, ends = rows.sequences()
    order = (ends - starts).argsort(descending=True)
    for group in order.split(n_windows):
        state, begin, end = None, starts[group], ends[group]
        for offset in range(0, int((end - begin).max()) + 1, n_targets):
            here = begin + offset <= end
            begin, end = begin[here], end[here]
            state = None if state is None else state[here]
            steps = torch.arange(-energy.order, n_targets, device=begin.device)
            place = begin[:, None] + offset + steps
            missing = (place < begin[:, None]) | (place > end[:, None])
            found = energy.of_windows(rows.at(place, missing), n_targets, state)
            state = found.state
            yield found.x, found.biases, place[:, energy.order :][found.there]
