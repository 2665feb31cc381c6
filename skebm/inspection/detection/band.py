r"""Pointwise and simultaneous bands of the empirical distribution of conformal p-values.

Under exchangeability all orders of n calibration rows and m test rows are equally likely. Hence the
number of test rows with :math:`p \le k / (n + 1)`, those below the k-th calibration row, has a
beta-binomial distribution; and the numbers at all k jointly are sums of independent geometric
variables, one for each gap between calibration rows, given that all n + 1 gaps contain m rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import beta, betabinom, binom, nbinom

# Most levels at which a band is computed; up to so many calibration rows, all of them.
MAX_LEVELS = 300
# Tail probability at which the range of counts is truncated.
TINY = 1e-10
BISECTIONS = 16


class Band(NamedTuple):
    """Counts of test rows at each level: at least `lower`, at most `upper`."""

    lower: np.ndarray
    upper: np.ndarray


def levels_up_to(n: int) -> np.ndarray:
    """Integers from 1 to n, all or a selection that is dense near 1."""
    if n <= MAX_LEVELS:
        return np.arange(1, n + 1)
    half = MAX_LEVELS // 2
    selected = np.concatenate([np.geomspace(1, n, half), np.linspace(1, n, half)])
    return np.unique(selected.round().astype(int))


def chance_band(
    m: int, n: int, levels: np.ndarray, confidence: float, *, simultaneous: bool
) -> Band:
    """Band of the counts of m exchangeable test rows at each of `levels`.

    A pointwise band has the exact quantiles of the beta-binomial distribution. A simultaneous band
    has such quantiles at one tail probability for all levels, the largest for which all counts are
    jointly inside with probability `confidence` or more.
    """
    counts = CountDistribution(m, n, levels)
    tail = (1 - confidence) / 2
    band = counts.quantiles(tail)
    if not simultaneous or counts.coverage(band) >= confidence:
        return band
    small, large = tail / len(levels), tail  # that of Bonferroni, and one that is too large
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(small * large))
        if counts.coverage(counts.quantiles(middle)) >= confidence:
            small = middle
        else:
            large = middle
    return counts.quantiles(small)


class CountDistribution:
    """Joint distribution of the numbers of m test rows below some of n calibration rows."""

    def __init__(self, m: int, n: int, levels: np.ndarray) -> None:
        self.m, self.n, self.levels = m, n, levels
        rates = [f(TINY, levels, n + 1 - levels) for f in (beta.ppf, beta.isf)]
        self.first = binom.ppf(TINY, m, rates[0]).clip(0, m).astype(int)
        self.last = binom.isf(TINY, m, rates[1]).clip(0, m).astype(int)
        self.cdf = [
            betabinom.pmf(np.arange(first, last + 1), m, k, n + 1 - k).cumsum()
            for k, first, last in zip(levels, self.first, self.last, strict=True)
        ]
        # The result does not depend on this probability, but its rounding errors do.
        self.success = (n + 1) / (n + 1 + m)
        steps = np.diff(levels, prepend=0)
        widest = self.last - np.concatenate([[0], self.first[:-1]])
        self.increments = [
            nbinom.pmf(np.arange(wide + 1), step, self.success)
            for step, wide in zip(steps, widest, strict=True)
        ]

    def quantiles(self, tail: float) -> Band:
        """The band above, and below, which a count lies with probability at most `tail` each."""
        lower = [np.searchsorted(cdf, tail) for cdf in self.cdf]
        upper = [np.searchsorted(cdf, 1 - tail) for cdf in self.cdf]
        return Band(
            np.minimum(self.first + lower, self.last), np.minimum(self.first + upper, self.last)
        )

    def coverage(self, band: Band) -> float:
        """Probability that all counts are jointly inside the band."""
        start, inside = 0, np.ones(1)  # probabilities of the counts start, start + 1, ...
        # Product of the lengths above which a convolution uses the Fourier transform.
        max_direct = 250_000
        for increment, low, high in zip(self.increments, band.lower, band.upper, strict=True):
            increment = increment[: high - start + 1]
            direct = len(inside) * len(increment) <= max_direct
            total = np.convolve(inside, increment) if direct else fftconvolve(inside, increment)
            inside, start = total[low - start : high - start + 1].clip(min=0), low
        rest = self.m - start - np.arange(len(inside))
        last = nbinom.pmf(rest, self.n + 1 - self.levels[-1], self.success)
        return float(inside @ last / nbinom.pmf(self.m, self.n + 1, self.success))
