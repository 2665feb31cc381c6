"""Weights of draws: their logarithms, their mean with its error, and the tail they promise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import Energy, sampling
from skebm.noise import Noise
from skebm.partition.support import row_energies

# Heaviest tail assumed of the weights: the mean of a Pareto law of index 1 does not exist.
MAX_TAIL = 1.0
SPACING = 1e-3  # standard deviation of what tells equal log weights apart


def log_weights(energy: Energy, base: Noise, x: Tensor, chunk: int) -> Tensor:
    """-E(x) - log q(x), (n,) in float64; minus infinity outside the domain of the energy.

    Rows are taken `chunk` at a time, in ``eval()`` mode and without gradients.
    """
    found = []
    with sampling(energy), torch.no_grad():
        for part in x.split(chunk):
            value = -row_energies(energy, part) - base.log_prob(part).double()
            found.append(value.masked_fill(~energy.domain.contains(part), -math.inf))
    log_w = torch.cat(found)
    lost = log_w.isnan() | (log_w == math.inf)
    if lost.any():
        raise FloatingPointError(
            f"The energy is not finite (nan, or minus infinity) at {int(lost.sum())} of {len(x)} "
            "rows: check the model's parameters for infinities and nan, or compute in float64."
        )
    return log_w


class Weights(NamedTuple):
    """Summary of n log weights: log of their mean, its standard error, effective sample size."""

    log_mean: float
    std_error: float
    ess: float


def summarise(log_w: Tensor) -> Weights:
    r"""Mean of the weights with a standard error that allows for a tail not seen.

    The delta method, s / sqrt(n) for weights of mean 1, is too small where few weights carry the
    mean: those that would matter most were not drawn. To its square is added the second moment of
    the weights expected once in n to 10 n draws, under a Pareto law through the largest one, m:

    .. math:: \frac{s^2}{n} + \Bigl(\frac{m - 1}{n}\Bigr)^2 \int_{0.1}^1 u^{-2k} du,

    with k Hill's estimate from the min(n / 5, 3 sqrt(n)) largest weights, at most 1.

    References
    ----------
    Hill (1975), "A simple general approach to inference about the tail of a distribution". Vehtari,
    Simpson, Gelman, Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR 25(72), for
    the tail's size and k as a measure of trust.
    """
    if not bool(log_w.isfinite().all()):
        raise FloatingPointError(
            "The weights met energies that are not finite: check the model's parameters for "
            "infinities and NaN, or compute in float64."
        )
    n = len(log_w)
    # Relative to the largest: logarithms may be so large that log n is lost beside them.
    relative = log_w - log_w.max()
    log_mean = float(torch.logsumexp(relative, 0)) - math.log(n)
    w = (relative - log_mean).exp()  # mean 1
    log_mean += float(log_w.max())
    ess = float(w.sum() ** 2 / w.square().sum())
    if n == 1:
        return Weights(log_mean, math.inf, ess)
    n_tail = max(1, int(min(n / 5, 3 * math.sqrt(n))))
    tail = log_w.topk(n_tail + 1).values
    k = min(float((tail[:-1] - tail[-1]).mean()), MAX_TAIL)
    power = 1 - 2 * k
    unseen = (1 - 0.1**power) / power if abs(power) > 1e-6 else math.log(10)
    excess = (float(w.max()) - 1) / n
    return Weights(log_mean, math.sqrt(float(w.var()) / n + unseen * excess**2), ess)


def pareto_k(log_w: Tensor) -> float:
    r"""Index k of the generalised Pareto law of the largest weights; they have about 1 / k moments.

    The tail is the min(n / 5, 3 sqrt(n)) largest, and the fit has a weak prior at 1/2. Minus
    infinity where all are the same; ``nan`` of less than 25 weights. Weights of states that come
    again have no density to fit, so all are told apart by a thousandth.

    References
    ----------
    Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
    distribution", Technometrics 51(3). Vehtari, Simpson, Gelman, Yao and Gabry (2024), "Pareto
    smoothed importance sampling", JMLR 25(72), section 2 and appendix C (the prior).
    """
    n = len(log_w)
    n_tail = int(min(n / 5, 3 * math.sqrt(n)))
    if n_tail < 5:
        return math.nan
    largest = log_w.topk(n_tail + 1).values
    if largest[0] - largest[-1] <= 1e-10:
        return -math.inf
    apart = torch.Generator(log_w.device).manual_seed(0)
    noise = torch.randn(n, generator=apart, dtype=log_w.dtype, device=log_w.device)
    top = (log_w + SPACING * noise).topk(n_tail + 1).values
    top = (top - top[0]).exp()
    x = (top[:-1] - top[-1]).flip(0)  # rising
    quartile = x[int(n_tail / 4 + 0.5) - 1]
    m = 30 + int(math.sqrt(n_tail))
    grid = 1 - (m / (torch.arange(m, dtype=x.dtype, device=x.device) + 0.5)).sqrt()
    theta = 1 / x[-1] + grid / (3 * quartile)
    k = torch.log1p(-theta[:, None] * x).mean(1)
    likelihood = n_tail * ((-theta / k).log() - k - 1)
    best = (likelihood.softmax(0) * theta).sum()
    found = float(torch.log1p(-best * x).mean())
    return (n_tail * found + 10 * 0.5) / (n_tail + 10)
