"""Ranks of scores among all scores so far, one after the other, and their conformal p-values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Rows that are compared with each other at a time; the others are found by bisection.
AT_ONCE = 256
# Significant bits of a score. The score of a row changes in its last bits with the number of rows
# that are scored at once, which would decide ties between equal rows.
BITS = 32


def rounded(scores: np.ndarray) -> np.ndarray:
    """Scores with BITS significant bits, a relative error of at most 2**-BITS."""
    mantissa, exponent = np.frexp(scores)
    found: np.ndarray = np.ldexp(np.round(mantissa * 2.0**BITS) / 2.0**BITS, exponent)
    return found


class SortedScores(NamedTuple):
    """A collection of scores as sorted arrays, each at least twice as long as the next.

    Values are added by merging the short ones, a logarithmic number of times each. Nothing is
    changed in place.
    """

    parts: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def counts(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each value, how many scores are below it, and how many are equal to it."""
        below = np.zeros(len(values), dtype=np.int64)
        up_to = below.copy()
        for part in self.parts:
            below += np.searchsorted(part, values, side="left")
            up_to += np.searchsorted(part, values, side="right")
        return below, up_to - below

    def with_values(self, values: np.ndarray) -> SortedScores:
        """The collection with further scores."""
        parts, last = list(self.parts), np.sort(values)
        while parts and len(parts[-1]) < 2 * len(last):
            last = np.sort(np.concatenate([parts.pop(), last]), kind="stable")
        return SortedScores((*parts, last) if len(last) else self.parts)


def online_p_values(
    known: SortedScores, scores: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, SortedScores]:
    r"""Conformal p-values of scores that are added to the known ones, one after the other.

    .. math::
        p_t = \frac{\#\{i < t : s_i < s_t\} + u_t (1 + \#\{i < t : s_i = s_t\})}{t},

    where t counts the known scores as well, and u_t are uniform draws from (0, 1]. If all scores
    are exchangeable, p-values are independent and uniform (Vovk, Gammerman and Shafer 2005, theorem
    8.1): the rank of the last of t exchangeable scores is independent of the order of those before
    it, of which alone earlier p-values are functions. A p-value with a fixed set of known scores is
    uniform as well, but then p-values depend on each other by the set that they share.

    Parameters
    ----------
    known : SortedScores
    scores, u : ndarray of shape (n,)

    Returns
    -------
    p_values : ndarray of shape (n,)
    known : SortedScores
        With the scores added.
    """
    found = np.empty(len(scores))
    for start in range(0, len(scores), AT_ONCE):
        some = scores[start : start + AT_ONCE]
        below, equal = known.counts(some)
        before = np.tri(len(some), k=-1, dtype=bool)
        below += ((some < some[:, None]) & before).sum(1)
        equal += ((some == some[:, None]) & before).sum(1)
        position = len(known) + 1 + np.arange(len(some))
        of_ties = u[start : start + AT_ONCE] * (1 + equal)
        found[start : start + AT_ONCE] = (below + of_ties) / position
        known = known.with_values(some)
    return found, known
