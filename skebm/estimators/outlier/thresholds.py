"""Thresholds of a statistic: a quantile of the training rows, or conformal calibration.

Higher values of a statistic are more normal. Values come as a list with an array for each fitted
model: one, or as many as there are folds in cross-conformal calibration.
"""

from __future__ import annotations

import math
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


def difference(values: np.ndarray, reference: np.ndarray | float) -> np.ndarray:
    """``values - reference``, where equal infinities are equal."""
    with np.errstate(invalid="ignore"):
        return np.where(values == reference, 0.0, values - reference)


def effective_rows(weight: np.ndarray) -> float:
    """How many calibration rows of equal weight have the same smallest p-value."""
    return float(weight.sum() / weight.max()) if weight.any() else 0.0


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
            f"{math.ceil(1 / level - 1e-9) - 1} are needed: use more rows, a larger "
            f"calibration_fraction, or {remedy}."
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
        self, values: np.ndarray, contamination: float | str
    ) -> QuantileThreshold:
        """The threshold with further reference rows of weight 1."""
        weight = self.weight
        if weight is not None:
            weight = np.concatenate([weight, np.ones(len(values))])
        return self.fit(np.concatenate([self.reference, values]), contamination, weight)

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
        if weight is None:
            level = attainable_level(contamination, sum(map(len, parts)))
            return cls(level, [np.sort(part) for part in parts])
        (part,) = parts
        order = np.argsort(part, kind="stable")
        level = attainable_level(contamination, effective_rows(weight))
        return cls(level, [part[order]], weight[order])

    def with_reference_rows(
        self, values: np.ndarray, contamination: float | str
    ) -> ConformalThreshold:
        """The threshold with further calibration rows of weight 1, for a single part."""
        (part,) = self.parts
        weight = self.weight
        if weight is not None:
            weight = np.concatenate([weight, np.ones(len(values))])
        return self.fit([np.concatenate([part, values])], contamination, weight)

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
        return np.concatenate([[0.0], np.cumsum(self.weight)]) / self.weight.max()

    @property
    def n_below(self) -> int:
        """Maximum number of calibration rows at or below an outlier; -1 if none can be one."""
        if self.weight is not None:
            most = self.level * (self.n_effective + 1) - 1 + 1e-9
            return int(np.searchsorted(self._weight_below, most, side="right")) - 1
        return int(np.floor(self.level * (self.n_rows + 1) + 1e-9)) - 1  # 0.29 * 100 is below 29

    @property
    def largest_p_value(self) -> float:
        """The largest p-value of an outlier: `level`, rounded down to a possible p-value."""
        below = self.n_below if self.weight is None else self._weight_below[self.n_below]
        return float((below + 1) / (self.n_effective + 1))

    @property
    def false_alarm_bound(self) -> float:
        """Proven bound on the probability that a new normal row is called an outlier."""
        if self.weight is not None:
            return self.largest_p_value
        n, n_parts = self.n_rows, len(self.parts)
        bound = float(p_value_bound(self.n_below + 1, n, n_parts))
        if len(set(map(len, self.parts))) > 1:
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
        returned. It is negative exactly if the p-value is at most `level`.
        """
        n_below = self.n_below
        if len(self.parts) == 1:
            return difference(values[0], self.parts[0][n_below])
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
        """The (n_below + 1)-th lowest calibration statistic, minus the constant of its model."""
        shifted = [part - constant for part, constant in zip(self.parts, constants, strict=True)]
        return float(np.sort(np.concatenate(shifted))[self.n_below])


Threshold = QuantileThreshold | ConformalThreshold


def check_fdr(fdr: float, n_calibration: float) -> None:
    """Raise `ValueError` for a false discovery rate that so few calibration rows cannot reach."""
    number_in("fdr", fdr, "(0, 1)")
    if fdr * (n_calibration + 1) < 1 - 1e-9:
        raise ValueError(
            f"{n_calibration:g} calibration rows are too few for fdr={fdr:g}: the smallest p-value "
            f"is 1 / ({n_calibration:g} + 1), so nothing could ever be selected. At least "
            f"{math.ceil(1 / fdr - 1e-9) - 1} are needed."
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
