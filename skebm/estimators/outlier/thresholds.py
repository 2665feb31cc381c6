"""Thresholds of a statistic: a quantile of the training rows, or conformal calibration.

Higher values of a statistic are more normal. Values come as a list with an array for each fitted
model: one, or as many as there are folds in cross-conformal calibration. Thresholds by class take
the statistic of one model and the number of the class that it gives to each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import false_discovery_control

from skebm._validation import warn
from skebm.base import DataWarning, SettingWarning
from skebm.base.sampler import number_in
from skebm.estimators.base import upper_quantile
from skebm.estimators.tables.gross import gross_of

# What contamination="auto" stands for.
DEFAULT_LEVEL = 0.1
# Differences held in memory at a time when rows are compared with calibration rows.
MAX_PAIRS = 4_000_000
# Classes that a warning names.
MOST_NAMED = 5


def difference(values: np.ndarray, reference: np.ndarray | float) -> np.ndarray:
    """``values - reference``, where equal infinities are equal."""
    with np.errstate(invalid="ignore"):
        return np.where(values == reference, 0.0, values - reference)


def effective_rows(weight: np.ndarray) -> float:
    """How many calibration rows of equal weight have the same smallest p-value."""
    return float(weight.sum() / weight.max()) if weight.any() else 0.0


def rows_needed(level: float) -> int:
    """Number of calibration rows of which the smallest p-value is at most `level`."""
    return math.ceil(1 / level - 1e-9) - 1


def attainable_level(
    asked: float | str,
    n: float,
    name: str = "contamination",
    rows: str = "calibration rows",
    remedy: str = "method='cross-conformal', which calibrates with all",
) -> float:
    """The level to use; raises `ValueError` if `n` calibration rows are too few to attain it."""
    if n == 0:
        raise ValueError("All rows that were held out for the calibration have weight 0.")
    least = 1 / (n + 1)
    if asked == "auto":
        return max(DEFAULT_LEVEL, least)
    level = float(asked)
    if level < least * (1 - 1e-9):
        raise ValueError(
            f"n_samples={n:g} {rows} are too few for {name}={level:g}: the smallest p-value is "
            f"1 / ({n:g} + 1) = {least:.3g}, so no row could ever be called an outlier. At least "
            f"{rows_needed(level)} are needed: use more rows, a larger calibration_fraction, or "
            f"{remedy}."
        )
    return level


def warn_of_raised_level(name: str, asked: float | str, level: float, rows: str) -> None:
    """Warn if the level is above what "auto" means, as so many calibration rows allow no other."""
    if asked == "auto" and level > DEFAULT_LEVEL:
        warn(
            f"{name}='auto' means {DEFAULT_LEVEL}, but {rows} allow no level below {level:.3g}, "
            "which is used instead.",
            SettingWarning,
        )


def p_value_bound(k: Any, n: int, n_parts: int) -> Any:
    """Bound on P(p <= k / (n + 1)) for a new normal row, with n calibration rows.

    With several parts, each gives a p-value for the row. Twice a weighted mean of p-values is a
    p-value again (Vovk and Wang 2020), and the cross-conformal p-value is such a mean up to
    rounding.
    """
    if n_parts == 1:
        return k / (n + 1)
    return np.minimum(1.0, 2 * (k - 1 + n_parts) / (n + n_parts))


def with_ones(weight: np.ndarray | None, n: int) -> np.ndarray | None:
    """Weights of rows and of `n` further ones of weight 1; None is 1 for all."""
    return None if weight is None else np.concatenate([weight, np.ones(n)])


class QuantileThreshold(NamedTuple):
    """A quantile of the statistic of the rows that the estimator was fitted to.

    A `weight` of None is 1 for each of them.
    """

    level: float
    value: float
    reference: np.ndarray
    weight: np.ndarray | None

    @classmethod
    def fit(
        cls, reference: np.ndarray, contamination: float | str, weight: np.ndarray | None = None
    ) -> QuantileThreshold:
        """Threshold below which a fraction `contamination` of the weight lies."""
        level = DEFAULT_LEVEL if contamination == "auto" else float(contamination)
        judged, far = reference, gross_of(reference, weight)
        if far is not None:
            # Half-way to a row that is far from all others would be beyond most that are far.
            judged = np.maximum(reference, reference[~far.entries].min())
        return cls(level, -upper_quantile(-judged, level, weight), reference, weight)

    def with_reference_rows(
        self, values: list[np.ndarray], contamination: float | str
    ) -> QuantileThreshold:
        """The threshold with further reference rows of weight 1."""
        (value,) = values
        weight = with_ones(self.weight, len(value))
        return self.fit(np.concatenate([self.reference, value]), contamination, weight)

    @property
    def n_rows(self) -> int:
        """Number of rows that new ones are compared with."""
        return len(self.reference)

    @property
    def false_alarm_bound(self) -> float:
        """NaN, as nothing is proven about the rate among new normal rows."""
        return math.nan

    def margin(self, values: list[np.ndarray]) -> np.ndarray:
        """How far each row lies above the threshold, (n,)."""
        return difference(values[0], self.value)

    def offset(self, constants: list[float]) -> float:
        """The threshold minus the constant of the model."""
        return self.value - constants[0]


class ConformalThreshold(NamedTuple):
    """Sorted statistics of the rows that each model was not fitted to, one part per model.

    A single part is split-conformal, several are cross-conformal. Only a single part may have
    weights, (n,) in the order of the sorted statistics.
    """

    level: float
    parts: list[np.ndarray]
    weight: np.ndarray | None = None

    @classmethod
    def fit(
        cls, parts: list[np.ndarray], contamination: float | str, weight: np.ndarray | None = None
    ) -> ConformalThreshold:
        """Calibrate with the rows of all parts at the level `contamination`."""
        found = cls.of_rows(parts, weight)
        return found._replace(level=attainable_level(contamination, found.n_effective))

    @classmethod
    def of_rows(
        cls, parts: list[np.ndarray], weight: np.ndarray | None = None
    ) -> ConformalThreshold:
        """Calibrate with the rows of all parts, at a level that is still to be set."""
        if weight is None:
            return cls(math.nan, [np.sort(part) for part in parts])
        (part,) = parts
        order = np.argsort(part, kind="stable")
        return cls(math.nan, [part[order]], weight[order])

    def with_reference_rows(
        self, values: list[np.ndarray], contamination: float | str
    ) -> ConformalThreshold:
        """The threshold with further calibration rows of weight 1, for a single part."""
        (part,), (value,) = self.parts, values
        weight = with_ones(self.weight, len(value))
        return self.fit([np.concatenate([part, value])], contamination, weight)

    @property
    def n_rows(self) -> int:
        """Number of calibration rows."""
        return sum(len(part) for part in self.parts)

    @property
    def n_effective(self) -> float:
        """Number of calibration rows of equal weight with the same smallest p-value."""
        return self.n_rows if self.weight is None else effective_rows(self.weight)

    @property
    def _weight_below(self) -> np.ndarray:
        """Weight of the first 0, 1, ... rows in the order of the statistic, the largest being 1."""
        assert self.weight is not None
        largest = self.weight.max(initial=0.0) or 1.0  # no rows, or none that counts
        return np.concatenate([[0.0], np.cumsum(self.weight)]) / largest

    @property
    def n_below(self) -> int:
        """Maximum number of calibration rows at or below an outlier; -1 if none can be one."""
        if self.weight is not None:
            most = self.level * (self.n_effective + 1) - 1 + 1e-9
            return int(np.searchsorted(self._weight_below, most, side="right")) - 1
        return int(np.floor(self.level * (self.n_rows + 1) + 1e-9)) - 1  # 0.29 * 100 is below 29

    @property
    def largest_p_value(self) -> float:
        """The largest p-value of an outlier: `level`, rounded down to a possible p-value, or 0."""
        if self.n_below < 0:
            return 0.0
        below = self.n_below if self.weight is None else self._weight_below[self.n_below]
        return float((below + 1) / (self.n_effective + 1))

    @property
    def false_alarm_bound(self) -> float:
        """Proven bound on the probability that a new normal row is called an outlier."""
        if self.weight is not None:
            return self.largest_p_value
        n, n_parts = self.n_rows, len(self.parts)
        bound = float(p_value_bound(self.n_below + 1, n, n_parts))
        if n_parts == 1 or len(set(map(len, self.parts))) > 1:
            return bound
        # For folds of equal size, a bound that is better with many (Barber et al. 2021, theorem 4).
        return min(bound, 2 * self.largest_p_value + (1 - n_parts / n) / (n_parts + 1))

    def p_values(self, values: list[np.ndarray]) -> np.ndarray:
        """For each row, the fraction of calibration rows and itself that are at least as abnormal.

        The row itself counts with the largest weight of a calibration row.
        """
        if self.weight is not None:
            n_below = np.searchsorted(self.parts[0], values[0], side="right")
            return (1 + self._weight_below[n_below]) / (self.n_effective + 1)
        below = np.zeros(len(values[0]))
        for part, value in zip(self.parts, values, strict=True):
            order = np.argsort(value)  # searching in order is three times as fast
            below[order] += np.searchsorted(part, value[order], side="right")
        return (1 + below) / (self.n_rows + 1)

    def margin(self, values: list[np.ndarray]) -> np.ndarray:
        """How far the statistic of each row lies above the threshold, (n,).

        The statistic of a row minus that of each calibration row, by the model that was not fitted
        to the calibration row, gives `n_rows` differences. The (n_below + 1)-th largest of them is
        returned. It is negative exactly if the p-value is at most `level`, and infinite where no
        row can be an outlier.
        """
        n_below = self.n_below
        if len(self.parts) == 1:
            return difference(values[0], self.parts[0][n_below] if n_below >= 0 else -math.inf)
        lowest = [part[: n_below + 1] for part in self.parts]
        step = max(1, MAX_PAIRS // sum(map(len, lowest)))
        found = np.empty(len(values[0]))
        for start in range(0, len(found), step):
            rows = slice(start, start + step)
            pairs = zip(lowest, values, strict=True)
            together = np.concatenate(
                [difference(value[rows, None], part) for part, value in pairs], axis=1
            )
            place = together.shape[1] - 1 - n_below
            found[rows] = np.partition(together, place, axis=1)[:, place]
        return found

    def offset(self, constants: list[float]) -> float:
        """The (n_below + 1)-th lowest calibration statistic, minus the constant of its model.

        It is -inf where no row can be an outlier.
        """
        if self.n_below < 0:
            return -math.inf
        shifted = [part - constant for part, constant in zip(self.parts, constants, strict=True)]
        return float(np.sort(np.concatenate(shifted))[self.n_below])


class ClassThresholds(NamedTuple):
    """A conformal threshold for each class that the estimator gives to rows, in their order.

    All have one level. A class with too few rows for it has no outliers: its p-values are larger.
    """

    of_class: list[ConformalThreshold]

    @classmethod
    def fit(
        cls,
        values: list[np.ndarray],
        n_classes: int,
        contamination: float | str,
        weight: np.ndarray | None = None,
    ) -> ClassThresholds:
        """Calibrate each class with its rows at the level `contamination`."""
        statistic, number = values
        found = []
        for k in range(n_classes):
            rows = number == k
            own = None if weight is None else weight[rows]
            found.append(ConformalThreshold.of_rows([statistic[rows]], own))
        most = max(one.n_effective for one in found)
        of_largest = {"rows": "calibration rows in the largest class", "remedy": "by_class=False"}
        level = attainable_level(contamination, most, **of_largest)
        return cls([one._replace(level=level) for one in found])

    def with_reference_rows(
        self, values: list[np.ndarray], contamination: float | str
    ) -> ClassThresholds:
        """The thresholds with further calibration rows of weight 1."""
        statistic, number = values
        old = [one.parts[0] for one in self.of_class]
        weights = [one.weight for one in self.of_class if one.weight is not None]
        weight = np.concatenate(weights) if weights else None
        numbers = np.repeat(np.arange(len(old)), self.n_rows)
        together = [np.concatenate([*old, statistic]), np.concatenate([numbers, number])]
        return self.fit(together, len(old), contamination, with_ones(weight, len(number)))

    @property
    def level(self) -> float:
        """The level of all classes."""
        return self.of_class[0].level

    @property
    def n_rows(self) -> np.ndarray:
        """Number of calibration rows of each class, (n_classes,)."""
        return np.array([one.n_rows for one in self.of_class])

    @property
    def n_effective(self) -> float:
        """That of the class in which the smallest p-value is smallest."""
        return max(one.n_effective for one in self.of_class)

    @property
    def false_alarm_bound(self) -> float:
        """Proven bound on the probability of a false alarm in any class."""
        return max(one.false_alarm_bound for one in self.of_class)

    @property
    def have_outliers(self) -> np.ndarray:
        """Whether rows of a class can be outliers, (n_classes,)."""
        return np.array([one.n_below >= 0 for one in self.of_class])

    def p_values(self, values: list[np.ndarray]) -> np.ndarray:
        """The p-value of each row among the calibration rows of its class, (n,)."""
        return self._each(values, ConformalThreshold.p_values)

    def margin(self, values: list[np.ndarray]) -> np.ndarray:
        """How far each row lies above the threshold of its class, (n,)."""
        return self._each(values, ConformalThreshold.margin)

    def _each(
        self,
        values: list[np.ndarray],
        function: Callable[[ConformalThreshold, list[np.ndarray]], np.ndarray],
    ) -> np.ndarray:
        statistic, number = values
        found = np.empty(len(statistic))
        for k, threshold in enumerate(self.of_class):
            rows = number == k
            found[rows] = function(threshold, [statistic[rows]])
        return found

    def offset(self, constants: list[float]) -> np.ndarray:
        """The threshold of each class minus the constant of the model, (n_classes,)."""
        return np.array([one.offset(constants) for one in self.of_class])

    def warn_of_few_rows(self, classes: list[Any]) -> None:
        """Warn of classes without outliers, by their names."""
        few = np.flatnonzero(~self.have_outliers)
        if not len(few):
            return
        found = [f"{classes[k]!r} has {self.of_class[k].n_effective:g}" for k in few[:MOST_NAMED]]
        more = f" and {len(few) - MOST_NAMED} others too few" if len(few) > MOST_NAMED else ""
        warn(
            f"No row of some predicted classes can be an outlier: level {self.level:.3g} needs "
            f"{rows_needed(self.level)} calibration rows of a class, and {', '.join(found)}{more}. "
            "Give more normal rows, as by partial_fit.",
            DataWarning,
        )


Threshold = QuantileThreshold | ConformalThreshold | ClassThresholds


def check_fdr(fdr: float, n_calibration: float) -> None:
    """Raise `ValueError` for a false discovery rate that so few calibration rows cannot reach."""
    number_in("fdr", fdr, "(0, 1)")
    if fdr * (n_calibration + 1) < 1 - 1e-9:
        raise ValueError(
            f"{n_calibration:g} calibration rows are too few for fdr={fdr:g}: the smallest p-value "
            f"is 1 / ({n_calibration:g} + 1), so nothing could ever be selected. At least "
            f"{rows_needed(fdr)} are needed."
        )


def benjamini_hochberg(p_values: np.ndarray, n_calibration: float, fdr: float) -> np.ndarray:
    """Rows selected at a false discovery rate of `fdr`; warns if a large batch prevents any."""
    found = false_discovery_control(p_values) <= fdr * (1 + 1e-9)
    at_once = math.ceil(len(p_values) / ((n_calibration + 1) * fdr) - 1e-9)
    if at_once > 1 and not found.any():
        warn(
            f"Nothing was selected: with {n_calibration:g} calibration rows and fdr={fdr:g}, at "
            f"least {at_once} of the {len(p_values)} rows must be more abnormal than all of these "
            "at once. With smaller batches or more calibration rows, fewer outliers suffice.",
            DataWarning,
        )
    return found
