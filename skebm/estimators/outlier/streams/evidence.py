r"""Evidence against exchangeable rows: bets on p-values that are independent and uniform.

A bet is a density f on [0, 1]. If p-values are independent and uniform, the products of bets from
row r on are martingales with mean 1, and so is their mean over r and over bets,

.. math::
    M_t = \sum_{r \le t} w_r \frac 1 K \sum_k \prod_{i=r}^t f_k(p_i) + \sum_{r > t} w_r ,
    \qquad \sum_r w_r = 1 ,

for weights of when a change begins. By Ville's inequality it ever reaches 1 / level with
probability at most the level. With all weights 1 and without the last sum it is the statistic of
Shiryaev and Roberts, minus t a martingale, whose first time at or above c is at least c on average.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Powers of the bets kappa p**(kappa - 1) on small p-values, the smaller the rarer and smaller
# these are, and on large ones.
LOW_POWERS, HIGH_POWERS = (0.1, 0.25, 0.5, 0.75), (0.5,)
# Coefficients a of linear bets 1 + a (2 p - 1) on slight changes.
COEFFICIENTS = (-0.5, 0.5, 0.9)
# Power of the bet on small and large p-values, of which half the stake is on each.
TWO_SIDED = 0.5
N_BETS = len(LOW_POWERS) + len(HIGH_POWERS) + len(COEFFICIENTS) + 1


def log_bets(p_values: np.ndarray) -> np.ndarray:
    """Logarithms of all bets at p-values in (0, 1], (N_BETS, n)."""
    p = np.clip(p_values, np.finfo(float).tiny, 1 - 2.0**-53)
    low, high = np.log(p), np.log1p(-p)

    def power(kappa: float, value: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.log(kappa) + (kappa - 1) * value
        return found

    both = np.logaddexp(power(TWO_SIDED, low), power(TWO_SIDED, high)) - np.log(2)
    bets = [power(kappa, low) for kappa in LOW_POWERS]
    bets += [power(kappa, high) for kappa in HIGH_POWERS]
    bets += [np.log1p(a * (2 * p - 1)) for a in COEFFICIENTS]
    return np.array([*bets, both])


def weight_from(row: np.ndarray) -> np.ndarray:
    """Weight of all changes at a row or after it, of rows 0, 1, ...: 1 / log2(row + 2).

    It decreases as slowly as the weights of this form can: a change after n rows costs about
    log n + 2 log log n nats more than one at the beginning.
    """
    found: np.ndarray = 1 / np.log2(row + 2.0)
    return found


class Evidence(NamedTuple):
    """Evidence of rows so far. Nothing is changed in place.

    Attributes
    ----------
    n_rows : int
    gain : ndarray of shape (N_BETS,)
        Log of the product of each bet over all rows.
    stake : ndarray of shape (N_BETS,)
        Log of the sum of weights over products up to their rows: plus `gain`, log capital.
    best, change : ndarray of shape (N_BETS,)
        The largest term of that sum, and its row.
    renewed : bool
        Whether each row has the weight 1 (Shiryaev-Roberts).
    """

    n_rows: int
    gain: np.ndarray
    stake: np.ndarray
    best: np.ndarray
    change: np.ndarray
    renewed: bool

    @classmethod
    def none(cls, *, renewed: bool) -> Evidence:
        """Before the first row."""
        lowest = np.full(N_BETS, -np.inf)
        return cls(0, np.zeros(N_BETS), lowest, lowest, np.zeros(N_BETS, np.int64), renewed)

    def with_p_values(self, p_values: np.ndarray) -> tuple[Evidence, np.ndarray]:
        """The evidence with further p-values, and its logarithm after each of them, (n,)."""
        if not len(p_values):
            return self, np.empty(0)
        rows = self.n_rows + np.arange(len(p_values))
        weight = np.ones(len(rows))
        if not self.renewed:
            weight = weight_from(rows) - weight_from(rows + 1)
        gain = self.gain[:, None] + np.cumsum(log_bets(p_values), axis=1)
        before = np.concatenate([self.gain[:, None], gain[:, :-1]], axis=1)
        begun = np.log(weight) - before
        stake = np.concatenate([self.stake[:, None], begun - np.log(N_BETS)], axis=1)
        stake = np.logaddexp.accumulate(stake, axis=1)[:, 1:]
        value = np.logaddexp.reduce(gain + stake, axis=0)
        if not self.renewed:
            value = np.logaddexp(value, np.log(weight_from(rows + 1)))
        last = begun.argmax(1)
        most = begun.max(1)
        later = most > self.best
        change = np.where(later, rows[last], self.change)
        best = np.where(later, most, self.best)
        new = Evidence(len(p_values) + self.n_rows, gain[:, -1], stake[:, -1], best, change, False)
        return new._replace(renewed=self.renewed), value

    @property
    def value(self) -> float:
        """Log of the evidence after the last row."""
        value = float(np.logaddexp.reduce(self.gain + self.stake))
        if self.renewed:
            return value
        return float(np.logaddexp(value, np.log(weight_from(np.array(self.n_rows)))))

    @property
    def likeliest_change(self) -> int:
        """The row from which on the best bet gained most: where a change is likeliest to begin."""
        return int(self.change[np.argmax(self.gain + self.best)])
