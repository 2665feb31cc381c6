r"""Ranks of rows by several scores at once: exact p-values, and what orders rows of equal ones.

Ranks of a new row and of the n calibration rows are among all n + 1 of them. They are symmetric in
these rows, and so is any mean of the ranks of a row by several scores: if rows are exchangeable, so
are means of ranks, and the fraction of them that is at most that of the new row is a p-value,
however scores depend on each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skebm.estimators.outlier.ensembles.merging import MEANS

# Fraction of the calibration rows whose scores set the scale of the lower tail.
TAIL = 0.1
# Lowest logarithm of what continues a p-value.
LOWEST = -1e6
# How far, in units of 1 / (n + 1), a row is at least above those of the next lower p-value.
LEAST_STEP = 1e-6


class ScoreTail(NamedTuple):
    """A continuous version of the p-value by one score, which goes on beyond calibration rows.

    Attributes
    ----------
    scores : ndarray
        Distinct finite scores of calibration rows, ascending.
    rates : ndarray
        Of each, the fraction of n + 1 rows that are at or below it.
    scale : float
        The mean excess of the lowest scores below a quantile: an exponential tail.
    """

    scores: np.ndarray
    rates: np.ndarray
    scale: float

    @classmethod
    def fit(cls, calibration: np.ndarray) -> ScoreTail:
        """That of scores, of which some may be infinite."""
        finite = np.sort(calibration[np.isfinite(calibration)])
        if not len(finite):
            return cls(np.zeros(1), np.ones(1), 1.0)
        scores, counts = np.unique(finite, return_counts=True)
        below = np.sum(calibration == -np.inf) + np.cumsum(counts)
        lowest = finite[: 1 + int(TAIL * len(finite))]
        excess = lowest[-1] - lowest[:-1] if len(lowest) > 1 else np.zeros(1)
        with np.errstate(over="ignore"):
            spreads = (float(excess.mean()), float(finite[-1] - finite[0]), 1.0)
        scale = next(spread for spread in spreads if spread > 0 and np.isfinite(spread))
        return cls(scores, below / (len(calibration) + 1), scale)

    def log_rates(self, scores: np.ndarray) -> np.ndarray:
        """Log of the interpolated rate, linear in the score below all calibration rows."""
        inside = np.log(np.interp(scores, self.scores, self.rates))
        with np.errstate(over="ignore"):
            beyond = np.minimum(0.0, (scores - self.scores[0]) / self.scale)
        found: np.ndarray = np.maximum(inside + beyond, LOWEST)
        return found


class RankCalibration(NamedTuple):
    """Calibration rows by several scores, ordered by the mean of their ranks among themselves.

    Attributes
    ----------
    merge : str
        One of `MEANS`.
    scores : ndarray of shape (n, K)
        Those of calibration rows.
    columns : ndarray of shape (K, n)
        Each score in ascending order.
    ranks : ndarray of shape (n, K)
        How many calibration rows are at or below each, by each score.
    least, most : ndarray of shape (n,)
        Mean of ranks if a new row is above in all of them, ascending; and the largest mean of ranks
        up to each row if a new row is at or below in all of them.
    tails : tuple of ScoreTail
    """

    merge: str
    scores: np.ndarray
    columns: np.ndarray
    ranks: np.ndarray
    least: np.ndarray
    most: np.ndarray
    tails: tuple[ScoreTail, ...]

    @classmethod
    def fit(cls, scores: np.ndarray, merge: str) -> RankCalibration:
        """That of the scores of calibration rows, (n, K), higher for normal ones."""
        columns = np.sort(scores, axis=0).T
        ranks = cls._counts(columns, scores)
        least = MEANS[merge](ranks.astype(float))
        order = np.argsort(least, kind="stable")
        scores, ranks = scores[order], ranks[order]
        most = np.maximum.accumulate(MEANS[merge](ranks + 1.0))
        tails = tuple(ScoreTail.fit(column) for column in columns)
        return cls(merge, scores, columns, ranks, least[order], most, tails)

    @staticmethod
    def _counts(columns: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """How many of the values of each column are at or below each score, (n, K)."""
        found = [
            np.searchsorted(c, s, side="right") for c, s in zip(columns, scores.T, strict=True)
        ]
        return np.stack(found, axis=1)

    @property
    def n_rows(self) -> int:
        """Number of calibration rows."""
        return len(self.scores)

    def own_ranks(self, scores: np.ndarray) -> np.ndarray:
        """Rank of new rows among the calibration rows and itself, by each score, (m, K)."""
        return 1 + self._counts(self.columns, scores)

    def n_at_or_below(self, scores: np.ndarray) -> np.ndarray:
        """Of how many rows, a new row itself included, the mean of ranks is at most its own, (m,).

        Ranks are among the calibration rows and the new row. It adds one to the rank of each
        calibration row that it is not above, so that only rows whose mean may be on either side
        are compared one by one.
        """
        own = MEANS[self.merge](self.own_ranks(scores).astype(float))
        start = np.searchsorted(self.most, own, side="right")
        stop = np.searchsorted(self.least, own, side="right")
        found = 1 + start
        for i in np.flatnonzero(stop > start):
            between = slice(start[i], stop[i])
            raised = self.ranks[between] + (self.scores[between] >= scores[i])
            found[i] += np.sum(MEANS[self.merge](raised.astype(float)) <= own[i])
        return found

    def log_continuous(self, scores: np.ndarray) -> np.ndarray:
        """Log of the merged continuous p-values, at most 0, (m,)."""
        columns = zip(self.tails, scores.T, strict=True)
        log_rates = np.stack([tail.log_rates(column) for tail, column in columns], axis=1)
        if self.merge == "geometric":
            return log_rates.mean(1)
        if self.merge == "minimum":
            return log_rates.min(1)
        sign = 1 if self.merge == "mean" else -1
        lowest = np.logaddexp.reduce(sign * log_rates, axis=1)
        found: np.ndarray = sign * (lowest - np.log(log_rates.shape[1]))
        return found

    def log_p_values(self, scores: np.ndarray) -> np.ndarray:
        """Log p-values whose ties are broken by continuous ones, (m,).

        A row whose p-value is k / (n + 1) is above log((k - 1) / (n + 1)) and at most at its log
        p-value, and below all calibration rows it goes on without bounds.
        """
        k, finer = self.n_at_or_below(scores), self.log_continuous(scores)
        inside = np.log(k - 1 + LEAST_STEP + (1 - LEAST_STEP) * np.exp(finer))
        return np.where(k > 1, inside, finer) - np.log(self.n_rows + 1)
