"""Columns of rows beside those of draws and of training rows, as numbers or codes of levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ks_2samp, rankdata

from skebm._validation import is_frame
from skebm.estimators.tables.columns import column_names, is_present

# Distinct numbers up to which a column is one of levels.
FEW_VALUES = 5


class SharedColumn(NamedTuple):
    """A column of several tables: numbers, or codes of its `levels`; nan where not finite.

    Attributes
    ----------
    name : str
    rows, draws : ndarray
    train : ndarray
        Empty where there are no training rows.
    levels : list of str or None
    """

    name: str
    rows: np.ndarray
    draws: np.ndarray
    train: np.ndarray
    levels: list[str] | None

    @property
    def distance(self) -> float:
        """Kolmogorov-Smirnov distance of numbers, total variation of levels."""
        ours, theirs = known(self.rows), known(self.draws)
        if not len(ours) or not len(theirs):
            return math.nan
        if self.levels is None:
            return float(ks_2samp(ours, theirs, method="asymp").statistic)
        return float(np.abs(self.fractions(ours) - self.fractions(theirs)).sum() / 2)

    @property
    def by_chance(self) -> float:
        """What the distance of equal distributions exceeds in about 5 % of the cases.

        The asymptotic quantile of Kolmogorov and Smirnov; for levels a bound by their number, from
        the mean of half of the absolute errors of shares and their spread.
        """
        n, m = (max(1, len(known(part))) for part in (self.rows, self.draws))
        factor = (
            1.36 if self.levels is None else 0.4 * math.sqrt(max(1, len(self.levels)) - 1) + 0.6
        )
        return factor * math.sqrt(1 / n + 1 / m)

    def fractions(self, codes: np.ndarray) -> np.ndarray:
        """Share of each level."""
        codes = known(codes)
        count = np.bincount(codes.astype(int), minlength=len(self.levels or ()))
        return count / max(1, len(codes))

    @property
    def has_order(self) -> bool:
        """Whether a rank correlation with it means something."""
        return (self.levels is None or len(self.levels) == 2) and len(
            np.unique(known(self.rows))
        ) > 1


def known(values: np.ndarray) -> np.ndarray:
    """The entries that are not missing."""
    return values[~np.isnan(values)]


def shared_columns(X: Any, draws: Any, train: Any = None) -> list[SharedColumn]:
    """Columns of rows, draws and training rows, with one coding of levels.

    Draws lack entries as rows do: each takes the pattern of a row at random.
    """
    tables = [X, draws] + ([] if train is None else [train])
    if is_frame(X):
        names = column_names(X)
        parts = [
            [_values(T, name) if is_frame(T) else np.asarray(T)[:, j] for T in tables]
            for j, name in enumerate(X.columns)
        ]
    else:
        flat = [_flat(T) for T in tables]
        names = column_names(flat[0])
        parts = [[T[:, j] for T in flat] for j in range(len(names))]
    found = [_shared(name, part) for name, part in zip(names, parts, strict=True)]
    holes = np.column_stack([np.isnan(one.rows) for one in found])
    if not holes.any():
        return found
    lacking = holes[np.random.RandomState(0).randint(len(holes), size=len(found[0].draws))]
    return [
        one._replace(draws=np.where(lacking[:, j], np.nan, one.draws))
        for j, one in enumerate(found)
    ]


def rank_correlations(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Rank correlations of columns, (d, d); missing entries count as the middle rank."""
    ranks = np.zeros((len(columns), len(columns[0])))
    for rank, values in zip(ranks, columns, strict=True):
        has = ~np.isnan(values)
        if has.any():
            rank[has] = rankdata(values[has])
            rank[has] -= rank[has].mean()
            rank /= math.sqrt(float(np.square(rank).sum())) or 1.0
    return np.asarray(ranks @ ranks.T)


def filled(columns: Sequence[np.ndarray], scale: Sequence[float]) -> np.ndarray:
    """Rows of scaled columns (n, d), with the mean where an entry is missing."""
    made = []
    for values, unit in zip(columns, scale, strict=True):
        has = known(values)
        mean = float(has.mean()) if len(has) else 0.0
        made.append(np.where(np.isnan(values), mean, values) / unit)
    return np.column_stack(made)


def _shared(name: str, parts: list[np.ndarray]) -> SharedColumn:
    if all(part.dtype.kind in "iufb" for part in parts):
        parts = [part.astype(float) for part in parts]
        parts = [np.where(np.isinf(part), np.nan, part) for part in parts]
        values = np.unique(known(np.concatenate(parts)))
        if len(values) > FEW_VALUES:
            return _column(name, parts, None)
        codes = [np.where(np.isnan(x), np.nan, np.searchsorted(values, x)) for x in parts]
        return _column(name, codes, [f"{value:g}" for value in values])
    if all(part.dtype.kind == "M" for part in parts):
        return _column(name, [_seconds(part) for part in parts], None)
    texts = [[str(v) if is_present(v) else None for v in part] for part in parts]
    levels = sorted({v for part in texts for v in part if v is not None})
    code = {level: float(k) for k, level in enumerate(levels)}
    codes = [np.array([np.nan if v is None else code[v] for v in part]) for part in texts]
    return _column(name, [part.astype(float) for part in codes], levels)


def _column(name: str, parts: list[np.ndarray], levels: list[str] | None) -> SharedColumn:
    train = parts[2] if len(parts) > 2 else np.empty(0)
    return SharedColumn(name, parts[0], parts[1], train, levels)


def _seconds(dates: np.ndarray) -> np.ndarray:
    """Dates as numbers of seconds; nan where they are missing."""
    found = dates.astype("datetime64[s]").astype(float)
    return np.where(np.isnat(dates), np.nan, found)


def _values(X: Any, name: Any) -> np.ndarray:
    """A column of a frame: numbers, dates, or objects."""
    column = X[name]
    values = np.asarray(column.to_numpy())
    if values.dtype.kind in "iufM":
        return values
    if values.dtype == object and str(column.dtype).lower().startswith(("int", "uint", "float")):
        return np.array([float(v) if is_present(v) else np.nan for v in values])
    return values.astype(object)


def _flat(X: Any) -> np.ndarray:
    dense = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    return dense.reshape(len(dense), -1)
