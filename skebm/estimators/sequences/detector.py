"""Outlier detection in sequences, with conformal thresholds over whole sequences."""

from __future__ import annotations

import inspect
import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, OutlierMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, indexable

from skebm._validation import (
    HasMethods,
    Interval,
    StrOptions,
    check_columns,
    check_is_fitted,
    fit_context,
    n_rows,
    set_seeds,
    take_rows,
)
from skebm.base.processes import TasksMixin, fit_of, parts_of_fit
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import (
    atomic,
    non_default_parameters,
    set_nested_params,
    warn_without_effect,
)
from skebm.estimators.outlier.fitting import n_calibration_rows
from skebm.estimators.outlier.statistics import measure
from skebm.estimators.outlier.thresholds import (
    DEFAULT_LEVEL,
    ConformalThreshold,
    warn_of_raised_level,
)
from skebm.estimators.sequences.estimator import TemporalRBM
from skebm.estimators.sequences.series.windows import Windows
from skebm.estimators.sequences.table import (
    check_no_gaps,
    check_one_series,
    first_frames,
    in_sequences,
    join_sequences,
    sequence_column_of,
)
from skebm.training.streams import SourceMixin


class SequenceOutlierDetector(
    DocLinkMixin, SourceMixin, TasksMixin, OutlierMixin, MetaEstimatorMixin, BaseEstimator
):
    r"""Detector of anomalous frames of sequences, with conformal p-values over whole sequences.

    Frames of a sequence are not exchangeable, so that thresholds over held-out *frames* guarantee
    nothing. Sequences may be. The statistic of a sequence is that of its most anomalous frame,

    .. math::
        s(x_{1..T}) = \min_t a(x_t), \qquad
        p_t = \frac{1 + \#\{i : s(x^{(i)}) \le a(x_t)\}}{n + 1},

    where a is log p of a frame given its past and, with `use_next`, the next frame, and i runs
    over n whole sequences that were held out from the fit. For a new sequence that is exchangeable
    with them, :math:`P(\min_t p_t \le \alpha) \le \alpha`: with probability at least
    :math:`1 - \alpha` **none** of its frames is a false alarm, whatever the distribution of the
    sequences, their lengths and the dependence of their frames, and however poor the estimator.

    Parameters
    ----------
    estimator : estimator or None, default=None
        Model of sequences, whose ``fit`` and ``score_samples`` take `lengths`; the latter returns a
        number for each frame, higher for normal ones. It is cloned. None is :class:`TemporalRBM`
        with its default settings. If the estimator has a `sequence_column`, the detector uses it.
        A pipeline of :class:`Windows` and a density takes one series of numbers and its time
        stamps.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Upper bound, on average over fits, on the fraction of new normal **sequences** in which
        `predict` finds anomalous frames. ``"auto"`` is 0.1 or, with a warning, the lowest
        attainable level above 0.1 if there are few calibration sequences.
    calibration_fraction : float in (0, 1) or "auto", default="auto"
        Fraction of the sequences that are held out. ``"auto"`` is a quarter, or more (at most a
        half) if that is fewer than ``10 / contamination`` sequences. With a single sequence, this
        fraction of its frames is held out at the end; ``"auto"`` is then a half.
    block_length : int or "auto", default="auto"
        With a **single** sequence, its end is divided into blocks, which take the place of
        sequences; this is the number of frames of a block. ``"auto"``: as many as make
        ``3 / contamination`` blocks, at least 1.
    gap : int or "auto", default="auto"
        Number of frames that are left out between blocks, and before the first one. ``"auto"`` is
        the `order` of the estimator, or its lags with `Windows`, or 1 if it has none.
    use_next : bool or "auto", default="auto"
        Whether the next frame is used to judge a frame, by `score_in_context` of the estimator:
        frames of other songs among chorales are then found with an area under the curve of 0.93
        instead of 0.86. ``"auto"`` is True if the estimator has that method. Use False if frames
        are judged as they arrive.
    random_state : int, RandomState instance or None, default=None
        Seed of the split, and of every ``random_state`` of the estimator that is None.

    Attributes
    ----------
    estimator_ : estimator
        Fitted to the sequences that were not held out.
    offset_ : float
        Threshold of `predict` in the units of `score_samples`.
    contamination_ : float
        The level in use.
    n_calibration_ : int
        Number of sequences or blocks that new frames are compared with.
    block_length_ : int or None
        Number of frames of a block; None if whole sequences are held out.
    false_alarm_bound_ : float
        Proven bound on the probability that a frame of a new normal sequence is flagged; nan with
        blocks.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    EnergyOutlierDetector : Rows without an order.

    Notes
    -----
    The guarantee is for the rate averaged over fits and new sequences. If log Z is estimated, the
    error of the estimate is part of the statistic, as noise that affects all sequences alike.

    **Blocks of a single sequence are not exchangeable.** The guarantee is then only approximate: if
    the sequence is stationary and its dependence does not extend beyond the `gap`, blocks are
    nearly independent and identically distributed, and the level is nearly that of a new block of
    `block_length_` frames. A longer sequence has more false alarms, in proportion to its length,
    and drift increases them, too. Nothing is proven.

    References
    ----------
    Vovk, Gammerman and Shafer (2005), "Algorithmic learning in a random world", section 2.2.
    Chernozhukov, Wüthrich and Zhu (2018), "Exact and robust conformal inference methods for
    predictive machine learning with dependent data", COLT (blocks).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import SequenceOutlierDetector, TemporalRBM
    >>> rng = np.random.default_rng(0)
    >>> X = [np.eye(3)[(np.arange(30) + k) % 3] for k in rng.integers(0, 3, 60)]
    >>> model = TemporalRBM(4, order=1, n_iter=30, random_state=0)
    >>> detector = SequenceOutlierDetector(model, random_state=0).fit(X)
    >>> detector.n_calibration_, round(detector.false_alarm_bound_, 3)
    (30, 0.097)
    >>> new = np.eye(3)[np.arange(12) % 3]
    >>> new[6] = [0, 1, 0]  # the right bits at the wrong time
    >>> int(detector.predict(new)[6])
    -1
    """

    block_length_: int | None
    _threshold: ConformalThreshold

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit", "get_params", "score_samples"]), None],
        "contamination": [Interval(Real, 0, 0.5, closed="right"), StrOptions({"auto"})],
        "calibration_fraction": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "block_length": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "gap": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "use_next": ["boolean", StrOptions({"auto"})],
        "random_state": ["random_state"],
    }
    _has_tasks = True

    def __init__(
        self,
        estimator=None,
        *,
        contamination="auto",
        calibration_fraction="auto",
        block_length="auto",
        gap="auto",
        use_next="auto",
        random_state=None,
    ):
        self.estimator = estimator
        self.contamination = contamination
        self.calibration_fraction = calibration_fraction
        self.block_length = block_length
        self.gap = gap
        self.use_next = use_next
        self.random_state = random_state

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, ``estimator__<name>`` included."""
        set_nested_params(self, params)
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._model()).input_tags
        return tags

    def _model(self) -> Any:
        return TemporalRBM() if self.estimator is None else self.estimator

    # ---------------------------------------------------------------- fitting

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, lengths: Any = None) -> Any:
        """Fit the estimator to some of the sequences, and set the threshold by the others.

        A call that fails or is interrupted leaves the detector as it was before it.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
            Normal frames in order of time, the sequences one below the other, or a list.
        y : None
            Not used; present by convention.
        lengths : array-like of int, default=None
            Number of frames of each sequence. None is one sequence, unless X is a list or the
            estimator has a `sequence_column`.

        Returns
        -------
        self : SequenceOutlierDetector
        """
        self._check_uses_next(self._model())
        if self._keeps_time:
            check_one_series(X, lengths, self._model().steps[0][1].sequence_column)
        else:
            _check_takes_lengths(self._model())
            if lengths is None and sequence_column_of(self) is None:
                check_no_gaps(X)
        self._fit_in_order(X, lengths)
        return self

    @in_sequences
    def _fit_in_order(self, X: Any, lengths: Any) -> None:
        X, lengths = self._join(X, lengths, reset=True)
        single = lengths is None or len(lengths) == 1
        random = self._common_random()
        model = clone(self._model())
        if self.random_state is not None:
            set_seeds(model, random)
        if getattr(model, "sequence_column", None) is not None:
            model.set_params(sequence_column=None)
        warn_without_effect(self._without_effect(single))
        (task,) = parts_of_fit(["fit-estimator"])
        if single:
            found = self._fit_blocks(task, model, X)
        else:
            found = self._fit_sequences(task, model, X, lengths, random)
        self.estimator_ = model
        self._threshold = ConformalThreshold.fit([found], self.contamination)
        self.contamination_ = self._threshold.level
        what = f"{len(found)} calibration sequences or blocks"
        warn_of_raised_level("contamination", self.contamination, self.contamination_, what)

    def _without_effect(self, single: bool) -> dict[str, str]:
        """Parameters that are not used, each with the reason."""
        asked = non_default_parameters(self)
        names = () if single else ("block_length", "gap")
        return {name: "whole sequences are held out" for name in names if name in asked}

    @property
    def _keeps_time(self) -> bool:
        """Whether the estimator makes rows of a series: a pipeline that begins with `Windows`."""
        model = self._model()
        return isinstance(model, Pipeline) and isinstance(model.steps[0][1], Windows)

    @property
    def _level(self) -> float:
        """The level that is asked for."""
        return DEFAULT_LEVEL if self.contamination == "auto" else float(self.contamination)

    def _check_enough(self, n: int, what: str) -> None:
        """Raise unless so many calibration sequences or blocks attain the level."""
        need = math.ceil(1 / self._level - 1e-9) - 1
        if n < 1 or (self.contamination != "auto" and n < need):
            raise ValueError(
                f"{n} calibration {what} are too few for contamination={self._level:g}: the "
                f"smallest p-value is 1 / ({n} + 1). At least {max(1, need)} are needed: use more "
                "frames or sequences, another calibration_fraction or block_length, or a larger "
                "contamination."
            )

    def _fit_sequences(
        self, task: Any, model: Any, X: Any, lengths: np.ndarray, random: np.random.RandomState
    ) -> np.ndarray:
        """Fit to some sequences; the statistics of the others."""
        n = len(lengths)
        n_held = n_calibration_rows(self.calibration_fraction, n, self._level)
        self._check_enough(min(n_held, n - 1), "sequences")
        out = np.zeros(n, dtype=bool)
        out[random.permutation(n)[: min(n_held, n - 1)]] = True
        of_frame = np.repeat(out, lengths)
        with fit_of(task, model):
            model.fit(take_rows(X, np.flatnonzero(~of_frame)), lengths=lengths[~out])
        self.block_length_ = None
        held_out = take_rows(X, np.flatnonzero(of_frame))
        return least_of(self._scores(model, held_out, lengths[out]), lengths[out])

    def _fit_blocks(self, task: Any, model: Any, X: Any) -> np.ndarray:
        """Fit to the beginning of a sequence; the statistics of blocks of its end."""
        n = n_rows(X)
        fraction = 0.5 if self.calibration_fraction == "auto" else self.calibration_fraction
        n_train = max(min(2, n - 1), n - round(float(fraction) * n))
        train = take_rows(X, np.arange(n_train))
        gap = self._gap(model, train)
        n_left = n - n_train
        length = self.block_length
        # Blocks of a single sequence with "auto", in units of 1 / level.
        enough_blocks = 3
        if length == "auto":
            length = max(1, n_left // math.ceil(enough_blocks / self._level) - gap)
        # With the frames before it, which the model was fitted to, as its past.
        starts = np.arange(n_train + gap, n - length + 1, length + gap)
        self._check_enough(
            len(starts), f"blocks of {length} frames (of n_samples={n}, {gap} apart)"
        )
        with fit_of(task, model):
            model.fit(train, **({} if self._keeps_time else {"lengths": [n_train]}))
        self.block_length_ = int(length)
        value = self._scores(model, X, np.array([n]))
        return value[starts[:, None] + np.arange(length)].min(1)

    def _gap(self, model: Any, train: Any) -> int:
        """Number of frames between blocks."""
        if self.gap != "auto":
            return int(self.gap)
        if self._keeps_time:
            return int(clone(model.steps[0][1]).fit(train).lags_)
        return int(getattr(model, "order", 1))

    def _check_uses_next(self, model: Any) -> None:
        """Raise `ValueError` for a next frame that the estimator takes no note of."""
        if self.use_next is True and not hasattr(model, "score_in_context"):
            raise ValueError(
                f"use_next=True needs an estimator with score_in_context, which "
                f'{type(model).__name__} has not: use "auto", or TemporalRBM.'
            )

    def __sklearn_is_fitted__(self) -> bool:
        return "_threshold" in self.__dict__

    def _join(self, X: Any, lengths: Any, *, reset: bool) -> tuple[Any, np.ndarray | None]:
        """All frames below each other, and the lengths of the sequences."""
        X, lengths = join_sequences(X, lengths, sequence_column_of(self))
        (X,) = indexable(X)
        if n_rows(X) == 0:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        if getattr(X, "ndim", 2) > 1:  # the estimator has the better message for a vector
            check_columns(self, X, reset=reset)
        return X, lengths

    # ---------------------------------------------------------------- fitted attributes

    @property
    def n_calibration_(self) -> int:
        """Number of sequences or blocks that new frames are compared with."""
        check_is_fitted(self)
        return self._threshold.n_rows

    @property
    def false_alarm_bound_(self) -> float:
        """Proven bound on the probability that a frame of a new normal sequence is flagged."""
        check_is_fitted(self)
        return math.nan if self.block_length_ is not None else self._threshold.false_alarm_bound

    @property
    def offset_(self) -> float:
        """Threshold of `predict` in the units of `score_samples`."""
        check_is_fitted(self)
        return self._threshold.offset([0.0])

    # ---------------------------------------------------------------- frames and sequences

    @in_sequences
    def score_samples(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Score of each frame by the estimator, higher for normal ones.

        For :class:`TemporalRBM` it is `score_in_context`, or `score_samples` without `use_next`.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        return self._scores_and_lengths(X, lengths)[0]

    def _scores(self, model: Any, X: Any, lengths: np.ndarray) -> np.ndarray:
        """Scores of frames, checked: a number for each frame."""
        ahead = self.use_next
        if ahead == "auto":
            ahead = hasattr(model, "score_in_context")
        name = "score_in_context" if ahead else "score_samples"
        given = {} if self._keeps_time else {"lengths": lengths}
        return measure(lambda estimator, X: getattr(estimator, name)(X, **given), model, X)

    def _scores_and_lengths(self, X: Any, lengths: Any) -> tuple[np.ndarray, np.ndarray]:
        """Scores of frames, and the lengths of their sequences."""
        check_is_fitted(self)
        X, lengths = self._join(X, lengths, reset=False)
        lengths = np.array([n_rows(X)]) if lengths is None else lengths
        return self._scores(self.estimator_, X, lengths), lengths

    @in_sequences
    def decision_function(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Score of each frame minus the threshold: negative for anomalous frames.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        value = self.score_samples(X, lengths)  # checks that the detector is fitted
        return self._threshold.margin([value])

    @in_sequences
    def predict(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Classify frames as normal (+1) or anomalous (-1).

        Anomalous frames are those whose p-value is at most `contamination_`. In a new normal
        sequence, all frames are classified as normal with probability at least
        ``1 - contamination_``; for blocks see the notes of the class.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        return np.where(self.decision_function(X, lengths) >= 0, 1, -1)

    @in_sequences
    def p_values(self, X: Any, lengths: Any = None) -> np.ndarray:
        """p-value of each frame against the most anomalous frames of the calibration sequences.

        The smallest p-value of a new normal sequence is at most t with probability at most t: these
        p-values are corrected for the number of frames.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        value = self.score_samples(X, lengths)  # checks that the detector is fitted
        return self._threshold.p_values([value])

    @in_sequences
    def sequence_p_values(self, X: Any, lengths: Any = None) -> np.ndarray:
        """p-value of each sequence, that of its most anomalous frame.

        For a new normal sequence it is at most t with probability at most t. With blocks this holds
        approximately, for sequences of up to `block_length_` frames.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_sequences,)
        """
        value, lengths = self._scores_and_lengths(X, lengths)
        return self._threshold.p_values([least_of(value, lengths)])


def least_of(value: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The least value of each sequence, (n_sequences,)."""
    starts = np.unique(first_frames(len(value), lengths))
    found: np.ndarray = np.minimum.reduceat(value, starts)
    return found


def _check_takes_lengths(model: Any) -> None:
    """Raise `TypeError` for an estimator of rows without an order."""
    for name in ("fit", "score_samples"):
        if "lengths" not in inspect.signature(getattr(model, name)).parameters:
            raise TypeError(
                f"{type(model).__name__}.{name} takes no lengths, so it knows no sequences: pass a "
                "model of sequences, such as TemporalRBM, or use EnergyOutlierDetector for rows "
                "without an order."
            )
