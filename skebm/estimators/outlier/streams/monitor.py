"""Monitoring of a stream by a fitted detector."""

from __future__ import annotations

import copy
import math
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import (
    Interval,
    check_constraints,
    check_is_fitted,
    check_random_state,
    draw_seed,
    n_rows,
    take_rows,
)
from skebm.estimators.outlier.detector import EnergyOutlierDetector
from skebm.estimators.outlier.streams.drift import ColumnDrift, PlainColumns, column_drift
from skebm.estimators.outlier.streams.evidence import Evidence
from skebm.estimators.outlier.streams.ranks import SortedScores, online_p_values, rounded
from skebm.estimators.outlier.thresholds import ClassThresholds, ConformalThreshold
from skebm.estimators.tables.columns import as_table
from skebm.estimators.tables.encoding.dates import Times, read_times
from skebm.training.streams import open_table


class StreamUpdate(NamedTuple):
    """What a :class:`skebm.StreamMonitor` found in the rows of one update.

    Attributes
    ----------
    p_values : ndarray of shape (n_samples,)
        Conformal p-value of each row among all rows so far, small for abnormal rows.
    evidence : ndarray of shape (n_samples,)
        Evidence of a change in nats after each row; an alarm is raised at ``monitor.threshold_``.
    alarms : ndarray of bool of shape (n_samples,)
        Whether there has been an alarm, up to and including each row.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.estimators import StreamUpdate
    >>> update = StreamUpdate(np.array([0.4]), np.array([-0.1]), np.array([False]))
    >>> bool(update.alarms.any())
    False
    """

    p_values: np.ndarray
    evidence: np.ndarray
    alarms: np.ndarray


class _State(NamedTuple):
    """All that an update changes; nothing in it is changed in place."""

    known: SortedScores
    evidence: Evidence
    random: Any  # state of the generator
    n_rows: int = 0
    begin: int = 0  # row from which on evidence is collected: the first of the current window
    n_windows: int = 1
    fresh: tuple[np.ndarray, ...] = ()  # scores since then
    alarm: int | None = None
    change: int | None = None
    recent: tuple[PlainColumns, ...] = ()  # the last rows


class StreamMonitor:
    r"""Alarms for a stream of rows that stay valid however often one asks, and drift by column.

    A fitted conformal detector gives each new row a p-value among all rows so far, calibration rows
    and earlier rows of the stream. As long as these are exchangeable, p-values are independent and
    uniform, and the capital of who bets against that is a martingale (Vovk et al. 2021): it ever
    grows to 1 / level with probability at most the level, at whichever row, for any detector and
    any distribution, with few calibration rows and with ties. Stakes are spread over when a change
    begins and over what it does to p-values: a few very small ones, many slightly smaller, or many
    larger ones.

    Parameters
    ----------
    detector : EnergyOutlierDetector
        A fitted one with ``method="conformal"`` and without weights, whose calibration rows come
        before the stream. A later fit of it does not change the monitor.
    reference : {array-like, sparse matrix, frame} of shape (n_samples, n_features), default=None
        Rows with which :meth:`drift` compares the columns of the stream, which may be those that
        the detector was fitted to.
    level : float in (0, 1) or None, default=0.01
        Bound on the probability that there is ever a false alarm.
    run_length : float or None, default=None
        Bound on the mean number of rows to a false alarm, at least 1, in place of the level, which
        must then be None: there will be false alarms in the end, but a change after many rows is
        found sooner (Shiryaev and Roberts).
    window : int or None, default=None
        Number of rows after which rows before are forgotten, so that a slow drift is followed: each
        window of the stream is compared with the one before it, the first with the calibration
        rows, of which there may not be more. None compares each row with all before it.
    n_recent : int, default=1000
        Number of the last rows of the stream that are kept for :meth:`drift`, with `reference`.
    random_state : int, RandomState instance or None, default=None
        Seed of the order among equal scores.

    Attributes
    ----------
    n_rows_ : int
        Number of rows of the stream so far.
    alarm_ : int or None
        Number of the row with the first alarm, from 0 on; None if there is none. To begin anew,
        fit the detector again or add rows to its calibration, and make another monitor.
    change_ : int or None
        Number of the row from which on the change is likeliest to have begun, as of the alarm.
    evidence_ : float
        Evidence of a change after the last row, in nats.
    threshold_ : float
        Evidence at which an alarm is raised: minus log level, or log run length.

    See Also
    --------
    EnergyOutlierDetector.p_values : Of single rows, without a statement on the stream.

    Notes
    -----
    **Guarantee.** It is for calibration rows and a stream that are exchangeable, such as
    independent rows of one distribution, given what the detector was fitted to. Seasons,
    autocorrelation and selected calibration rows are changes in this sense.

    **Power.** A change is seen as far as scores of the detector change. Rows after a change are
    soon part of what further rows are compared with, so that evidence is limited by the number of
    rows before it: with few calibration rows, a slight change at the beginning is not found.

    **With a window** evidence begins anew in each. The probability of ever a false alarm is still
    at most the level, of which window k has the fraction 1 / (k (k + 1)), added to `evidence` as
    minus its logarithm; with a run length, evidence is less by log 2. What is given up is that a
    change within the drift of one window is not found, and that evidence of several windows does
    not add up.

    **Time.** Besides the scores of the detector, about five microseconds per row in blocks of
    10,000 rows and 0.7 milliseconds for a row alone, and 8 bytes for each row that is not
    forgotten.

    References
    ----------
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman (2021), "Retrain or not retrain:
    conformal test martingales for change-point detection", COPA. Vovk, Gammerman and Shafer (2005),
    "Algorithmic Learning in a Random World", section 7.1 and theorem 8.1. Shiryaev (1963), "On
    optimum methods in quickest detection problems". Shin, Ramdas and Rinaldo (2024), "E-detectors:
    a nonparametric framework for sequential change detection".

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import EnergyOutlierDetector, StreamMonitor
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(400, 3))
    >>> detector = EnergyOutlierDetector(
    ...     GaussianMixture(random_state=0), method="conformal", random_state=0
    ... ).fit(X)
    >>> monitor = StreamMonitor(detector, X, level=0.01, random_state=0)
    >>> update = monitor.update(random.normal(size=(1000, 3)))
    >>> monitor.alarm_ is None
    True
    >>> update = monitor.update(random.normal(size=(200, 3)) + [0, 2, 0])
    >>> 1000 <= monitor.alarm_ < 1100
    True
    >>> monitor.drift().moved
    ['x1']
    """

    _parameter_constraints: dict = {
        "level": [Interval(Real, 0, 1, closed="neither"), None],
        "run_length": [Interval(Real, 1, None, closed="left"), None],
        "window": [Interval(Integral, 1, None, closed="left"), None],
        "n_recent": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        detector: EnergyOutlierDetector,
        reference: Any = None,
        *,
        level: float | None = 0.01,
        run_length: float | None = None,
        window: int | None = None,
        n_recent: int = 1000,
        random_state: Any = None,
    ):
        params = {
            "level": level,
            "run_length": run_length,
            "window": window,
            "n_recent": n_recent,
            "random_state": random_state,
        }
        check_constraints(self._parameter_constraints, params, type(self).__name__)
        if (level is None) == (run_length is None):
            raise ValueError(
                f"level={level} and run_length={run_length}: pass one of them, and None for the "
                "other, as by StreamMonitor(detector, level=None, run_length=100_000)."
            )
        scores = calibration_scores(detector)
        if window is not None and window < len(scores):
            raise ValueError(
                f"window={window} is shorter than the calibration, which has {len(scores)} rows: "
                f"pass a window of at least {len(scores)} rows, or fit the detector with a smaller "
                "calibration_fraction."
            )
        self.level, self.run_length, self.window = level, run_length, window
        self.n_recent = n_recent
        # Fits of the detector replace what it holds, and do not change it.
        self._detector = copy.copy(detector)
        self._reference, self._times = self._reference_of(reference)
        random = np.random.default_rng(draw_seed(check_random_state(random_state)))
        self._state = _State(
            SortedScores((np.sort(rounded(scores)),)),
            Evidence.none(renewed=level is None),
            random.bit_generator.state,
        )

    def __repr__(self) -> str:
        state = self._state
        alarm = "no alarm" if state.alarm is None else f"alarm at row {state.alarm}"
        return f"<StreamMonitor: {state.n_rows} rows, {alarm}>"

    def _reference_of(self, reference: Any) -> tuple[PlainColumns | None, Times | None]:
        if reference is None:
            return None, None
        self._detector._check_rows(reference)
        table, times = read_times(as_table(open_table(reference)[0]))
        if n_rows(table) == 0:
            raise ValueError("reference has no rows: pass at least one, or None.")
        return PlainColumns.of(table), times

    # ---------------------------------------------------------------- what there is so far

    @property
    def n_rows_(self) -> int:
        """Number of rows of the stream so far."""
        return self._state.n_rows

    @property
    def alarm_(self) -> int | None:
        """Number of the row with the first alarm; None if there is none."""
        return self._state.alarm

    @property
    def change_(self) -> int | None:
        """Number of the row from which on the change is likeliest to have begun."""
        return self._state.change

    @property
    def evidence_(self) -> float:
        """Evidence of a change after the last row, in nats."""
        value = self._state.evidence.value
        return value - self._cost(self._state)

    @property
    def threshold_(self) -> float:
        """Evidence at which an alarm is raised, in nats."""
        if self.level is None:
            assert self.run_length is not None
            return math.log(self.run_length)
        return -math.log(self.level)

    def _cost(self, state: _State) -> float:
        """What is subtracted from the evidence, as there are several windows."""
        if self.window is None:
            return 0.0
        if self.level is None:
            return math.log(2)
        return math.log(state.n_windows * (state.n_windows + 1))

    # ---------------------------------------------------------------- new rows

    def update(self, X: Any) -> StreamUpdate:
        """Take in further rows of the stream, in their order.

        The result for rows together is that for them one after the other. If rows are invalid or
        the call is interrupted, the monitor is as before it.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            With the columns of the rows that the detector was fitted to; of no rows, nothing
            changes.

        Returns
        -------
        StreamUpdate
            `p_values`, `evidence` and `alarms`, each of shape (n_samples,).
        """
        self._detector._check_rows(X)
        table = open_table(X)[0]
        n = n_rows(table)
        if n == 0:
            return StreamUpdate(np.empty(0), np.empty(0), np.empty(0, dtype=bool))
        (scores,) = self._detector._measure(table)
        scores = rounded(scores)
        random = np.random.default_rng()
        random.bit_generator.state = self._state.random
        u = 1 - random.random(n)
        state = self._state._replace(random=random.bit_generator.state)
        found, start = [], 0
        while start < n:
            stop = n if self.window is None else start + state.begin + self.window - state.n_rows
            state, update = self._within_window(state, scores[start:stop], u[start:stop])
            found.append(update)
            start += len(update.p_values)
            if self.window is not None and state.n_rows == state.begin + self.window:
                state = self._next_window(state)
        self._state = state._replace(recent=self._with_recent(table))
        return StreamUpdate(*map(np.concatenate, zip(*found, strict=True)))

    def _within_window(
        self, state: _State, scores: np.ndarray, u: np.ndarray
    ) -> tuple[_State, StreamUpdate]:
        """Take in rows that do not reach beyond the current window."""
        p, known = online_p_values(state.known, scores, u)
        evidence, value = state.evidence.with_p_values(p)
        value = value - self._cost(state)
        alarm, change = state.alarm, state.change
        reached = value >= self.threshold_
        if alarm is None and reached.any():
            first = int(reached.argmax())
            alarm = state.n_rows + first
            change = state.begin + state.evidence.with_p_values(p[: first + 1])[0].likeliest_change
        rows = state.n_rows + np.arange(len(p))
        alarms = rows >= (np.inf if alarm is None else alarm)
        fresh = () if self.window is None else (*state.fresh, scores)
        new = state._replace(
            known=known,
            evidence=evidence,
            n_rows=state.n_rows + len(p),
            fresh=fresh,
            alarm=alarm,
            change=change,
        )
        return new, StreamUpdate(p, value, alarms)

    def _next_window(self, state: _State) -> _State:
        """The rows of this window are those that the rows of the next are compared with."""
        return state._replace(
            known=SortedScores((np.sort(np.concatenate(state.fresh)),)),
            evidence=Evidence.none(renewed=self.level is None),
            begin=state.n_rows,
            n_windows=state.n_windows + 1,
            fresh=(),
        )

    def _with_recent(self, table: Any) -> tuple[PlainColumns, ...]:
        """The last rows of the stream, of which the first part may be longer than needed."""
        if self._times is None:
            return ()
        last = take_rows(table, np.arange(max(n_rows(table) - self.n_recent, 0), n_rows(table)))
        read = PlainColumns.of(read_times(as_table(last), self._times.text)[0])
        kept = [*self._state.recent, read.last(self.n_recent)]
        while sum(block.n_rows for block in kept[1:]) >= self.n_recent:
            del kept[0]
        return tuple(kept)

    # ---------------------------------------------------------------- columns

    def drift(self, *, level: float = 0.05) -> ColumnDrift:
        """Compare the columns of the last rows of the stream with those of the reference rows.

        Numbers and dates are compared by the test of Kolmogorov and Smirnov; levels of categories
        and text, of booleans and of numbers with up to 20 values, and the rate of missing entries
        by Fisher's exact test (of more levels, the 20 most frequent). p-values are adjusted by
        Holm's method for the number of tests, so that in one call, however columns depend on each
        other, any column that has not changed is named with probability at most `level`. Further
        calls are further chances: unlike alarms, this bound is for a single call, such as at an
        alarm.

        Parameters
        ----------
        level : float in (0, 1), default=0.05
            Bound on the probability that any column is named that has not changed.

        Returns
        -------
        ColumnDrift
            With the columns that have moved, in `moved`, and all tests, as by ``.to_frame()``.
        """
        kinds = {"level": [Interval(Real, 0, 1, closed="neither")]}
        check_constraints(kinds, {"level": level}, "StreamMonitor.drift")
        if self._reference is None:
            raise ValueError(
                "drift compares columns with those of reference rows: pass some, as by "
                "StreamMonitor(detector, X)."
            )
        if not self._state.recent:
            raise ValueError("There are no rows of the stream yet: call update first.")
        first, *blocks = self._state.recent
        n_later = sum(block.n_rows for block in blocks)
        blocks = [first.last(self.n_recent - n_later), *blocks]
        return column_drift(self._reference, blocks, float(level))


def calibration_scores(detector: Any) -> np.ndarray:
    """Scores of the calibration rows of a conformal detector; raises for any other."""
    if not isinstance(detector, EnergyOutlierDetector):
        raise TypeError(
            f"detector is {type(detector).__name__}, but a StreamMonitor takes a fitted "
            "EnergyOutlierDetector: pass EnergyOutlierDetector(estimator, "
            "method='conformal').fit(X), with any estimator that scores rows."
        )
    check_is_fitted(detector)
    threshold = detector._threshold
    if isinstance(threshold, ClassThresholds):
        raise ValueError(
            "by_class=True: a StreamMonitor ranks the rows of a stream among calibration rows of "
            "all classes together: fit the detector with by_class=False."
        )
    if not isinstance(threshold, ConformalThreshold) or len(threshold.parts) > 1:
        raise ValueError(
            f"method={detector._param('method')!r}: a StreamMonitor needs calibration rows that "
            "one model was not fitted to, as with EnergyOutlierDetector(method='conformal')."
        )
    if threshold.weight is not None:
        raise ValueError(
            "The calibration rows of the detector have unequal weights, and weighted rows are not "
            "exchangeable with those of a stream: fit it without sample_weight."
        )
    return threshold.parts[0]
