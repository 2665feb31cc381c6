"""Diagnostics of Markov chains: R-hat, effective sample sizes and autocorrelations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor, bfloat16

__all__ = ["autocorrelation", "effective_sample_size", "r_hat"]
KINDS = ("bulk", "tail", "mean")
TAILS = (0.05, 0.95)  # quantiles of the tail effective sample size, as in the paper
CHUNK = 2**20  # values processed at a time: 8 MiB in double precision
Floats = NDArray[np.float64]


def effective_sample_size(draws: Tensor | np.ndarray, *, kind: str = "bulk") -> Floats:
    """Number of independent draws that would estimate as precisely as these dependent ones.

    Each chain is split in half, so that a drift within it counts as a difference between chains.
    The value for n antithetic draws is at most n log10(n).

    Parameters
    ----------
    draws : Tensor or ndarray of shape (n_draws, n_chains, ...)
        Real, integer or boolean. At least four draws; of an odd number the middle one is left out.
    kind : {"bulk", "tail", "mean"}, default="bulk"
        What is to be estimated: the centre of the distribution, by the normal scores of the ranks
        (ties share their average rank); the worse of the 5% and 95% quantiles; or the mean.

    Returns
    -------
    ndarray of shape (...)
        Draws, of all chains together. In a column that never changes every draw counts.

    Raises
    ------
    ValueError
        Where draws are not real numbers, not finite, too few or of a wrong shape, or `kind` is
        unknown.

    References
    ----------
    Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-
    normalization, folding, and localization: an improved R-hat. Bayesian Analysis, 16(2), 667-718.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.diagnostics import effective_sample_size
    >>> draws = np.random.default_rng(0).normal(size=(1000, 4, 2))
    >>> draws[1:, :, 1] += draws[:-1, :, 1]  # a moving average
    >>> effective_sample_size(draws).round(-3)
    array([4000., 2000.])
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
    return _by_column(functools.partial(_ess, kind=kind), draws, min_chains=1)


def r_hat(draws: Tensor | np.ndarray) -> Floats:
    """R-hat, the potential scale reduction factor: above 1.01 the chains have not converged.

    The square root of the variance over all chains relative to that within each chain: the larger
    of the R-hat of the ranks, which detects chains in different places, and the R-hat of the ranks
    of distances from the median, which detects chains of different scale. Each chain is split in
    half.

    Parameters
    ----------
    draws : Tensor or ndarray of shape (n_draws, n_chains, ...)
        Real, integer or boolean. At least four draws of at least two chains, which should start
        far apart.

    Returns
    -------
    ndarray of shape (...)
        nan for a column that never changes, as this may also be chains that are all stuck.
        Infinite, up to rounding, for chains that do not move from different values.

    Raises
    ------
    ValueError
        Where draws are not real numbers, not finite, too few or of a wrong shape.

    References
    ----------
    Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-
    normalization, folding, and localization: an improved R-hat. Bayesian Analysis, 16(2), 667-718.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.diagnostics import r_hat
    >>> draws = np.random.default_rng(0).normal(size=(1000, 4, 2))
    >>> draws[:, 0, 1] += 2  # one chain around another mean
    >>> r_hat(draws).round(1)
    array([1. , 1.3])
    """
    return _by_column(_r_hat, draws, min_chains=2)


def autocorrelation(draws: Tensor | np.ndarray, n_lags: int) -> Floats:
    """Autocorrelation of the draws at lags 0 to ``n_lags - 1``.

    The mean and the variance are those of all chains together, so chains that have not mixed stay
    correlated at any lag.

    Parameters
    ----------
    draws : Tensor or ndarray of shape (n_draws, n_chains, ...)
        Real, integer or boolean.
    n_lags : int
        From 1 to `n_draws`.

    Returns
    -------
    ndarray of shape (n_lags, ...)
        Correlations; nan for a column that never changes.

    Raises
    ------
    ValueError
        Where there are fewer draws than lags, or no axis of chains.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.diagnostics import autocorrelation
    >>> draws = np.random.default_rng(0).normal(size=(5000, 4))
    >>> draws[1:] += draws[:-1]  # a moving average
    >>> (autocorrelation(draws, 3) + 0.0).round(1)
    array([1. , 0.5, 0. ])
    """
    if isinstance(draws, Tensor):
        draws = draws.detach().cpu().double().numpy()
    x = np.asarray(draws, dtype=np.float64)
    if x.ndim < 2 or not 1 <= n_lags <= len(x):
        raise ValueError(
            "n_lags must be from 1 to n_draws, for draws of shape (n_draws, n_chains, ...); got "
            f"n_lags={n_lags} and draws of shape {x.shape}."
        )
    columns = x.reshape(*x.shape[:2], -1).transpose(2, 1, 0)
    columns = columns - columns.mean((1, 2), keepdims=True)
    variance = columns.var((1, 2))[:, None]
    products = _products_at_lags(columns)[:, :n_lags] / (len(x) - np.arange(n_lags))
    found = products / np.where(variance > 0, variance, np.nan)
    return found.T.reshape(n_lags, *x.shape[2:])


def _by_column(statistic: Callable[[Floats], Floats], draws: Any, min_chains: int) -> Floats:
    """Apply a function of (n_columns, n_chains, n_draws) to a few columns at a time."""
    if isinstance(draws, Tensor):
        draws = draws.detach().cpu()
        draws = (
            draws.float() if draws.dtype == bfloat16 else draws
        ).numpy()  # NumPy has no bfloat16
    draws = np.asarray(draws)
    if draws.dtype.kind not in "biuf":
        raise ValueError(f"draws must be real, integer or boolean; got {draws.dtype}.")
    hint = "Draws are on the first axis and chains on the second, even if it is only one."
    if draws.ndim < 2:
        raise ValueError(f"draws need shape (n_draws, n_chains, ...); got {draws.shape}. {hint}")
    (n_draws, n_chains), trailing = draws.shape[:2], draws.shape[2:]
    if n_draws < 4:  # half of a chain needs two draws to have a variance
        raise ValueError(f"Each chain needs at least 4 draws; got {n_draws}. {hint}")
    if n_chains < min_chains:
        raise ValueError(f"At least {min_chains} chains are needed; got {n_chains}. {hint}")
    out = np.empty(trailing)
    flat = out.reshape(-1)
    columns = draws.reshape(n_draws, n_chains, flat.size)
    step = max(1, CHUNK // (n_draws * n_chains))
    for start in range(0, flat.size, step):
        x = columns[..., start : start + step].transpose(2, 1, 0).astype(np.float64, order="C")
        if not np.isfinite(x).all():
            raise ValueError("draws contain NaN or infinity. Leave out the chains that diverged.")
        flat[start : start + step] = statistic(x)
    return out


def _halve_chains(x: Floats) -> Floats:
    """Halves of the chains as chains: (columns, chains, n) -> (columns, 2 chains, n // 2)."""
    half = x.shape[2] // 2
    return np.concatenate([x[..., :half], x[..., -half:]], axis=1)


def _normal_scores(x: Floats) -> Floats:
    """Normal quantiles of each column's ranks, by Blom's formula; of the shape of x."""
    rank = rankdata(x.reshape(len(x), -1), axis=1)
    return ndtri((rank - 3 / 8) / (rank.shape[1] + 1 / 4)).reshape(x.shape)


def _r_hat(x: Floats) -> Floats:
    """R-hat of the columns of x (columns, chains, n): (columns,)."""
    x = _halve_chains(x)
    folded = np.abs(x - np.median(x, axis=(1, 2), keepdims=True))
    scores = (_normal_scores(x), _normal_scores(folded))
    # Chains that do not move have no variance: nan or infinity are the documented answers.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = [z.mean(2).var(1, ddof=1) / z.var(2, ddof=1).mean(1) for z in scores]
    # fmax ignores nan: folded draws may be constant where draws are not, as in a balanced binary
    # column.
    return np.sqrt(np.fmax(*ratio) + 1 - 1 / x.shape[2])


def _ess(x: Floats, kind: str) -> Floats:
    """Effective sample sizes of the columns of x (columns, chains, n): (columns,)."""
    if kind == "mean":  # in one scale, so that squares neither underflow nor overflow
        x = x / np.abs(x).max((1, 2), keepdims=True).clip(np.finfo(np.float64).tiny)
    if kind == "tail":
        tails = np.quantile(x, TAILS, axis=(1, 2), keepdims=True)
        return np.minimum(*(_ess((x <= q).astype(np.float64), "mean") for q in tails))
    x = _normal_scores(_halve_chains(x)) if kind == "bulk" else _halve_chains(x)
    n, total = x.shape[2], x.shape[1] * x.shape[2]
    mean = x.mean(2, keepdims=True)
    covariance = _products_at_lags(x - mean) / n
    within = covariance[:, :1] * n / (n - 1)
    variance = covariance[:, :1] + mean.var(1, ddof=1)
    constant = np.ptp(x, axis=(1, 2)) < 1e-15  # up to rounding
    rho = 1 - (within - covariance) / np.where(constant[:, None], 1, variance)
    rho[:, 0] = 1
    time = np.maximum(_autocorrelation_time(rho), 1 / np.log10(total))
    return np.where(constant, total, total / time)


def _products_at_lags(x: Floats) -> Floats:
    """Sum over t of x[t] x[t + lag], the mean over chains: (columns, chains, n) -> (columns, n)."""
    n = x.shape[2]
    size = fft.next_fast_len(2 * n, real=True)  # zero-padded: no products around the end
    spectrum = fft.rfft(x, size)
    # The mean over chains is taken before the inverse transform, which is then one per column.
    return fft.irfft((spectrum.real**2 + spectrum.imag**2).mean(1), size)[:, :n]


def _autocorrelation_time(rho: Floats) -> Floats:
    """Sum of rho (n_columns, n) over Geyer's (1992) initial monotone positive sequence."""
    n_columns, n = rho.shape
    pairs = rho[:, : n // 2 * 2].reshape(n_columns, -1, 2).sum(2)
    kept = max((n - 1) // 2 - 1, 0)  # the last lags are means of too few products
    positive = np.logical_and.accumulate(pairs[:, :kept] > 0, axis=1)
    monotone = np.minimum.accumulate(pairs[:, :kept], axis=1)
    # Where the sequence ends, one more even lag counts once: less bias for antithetic chains.
    column, end = np.arange(n_columns), positive.sum(1)
    even = rho[column, 2 * end]
    even = np.where((even > 0) | (pairs[column, end] >= 0), even, 0)
    return 2 * monotone.sum(1, where=positive) - 1 + even
