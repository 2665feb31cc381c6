"""log Z by importance sampling from a tractable distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import Energy, LikelihoodWarning, LogPartition, Sampler, sampling
from skebm.base.sampler import number_in, whole_number
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.partition.checks import (
    NO_UPPER,
    MonteCarloEstimator,
    check_base,
    default_base,
    generator_for,
    has_uniform,
    row_energies,
    rows_of,
    template_for,
)

# Largest Pareto index assumed for the weights: at 1 the mean ceases to exist.
MAX_TAIL = 1.0
JITTER = 1e-3  # standard deviation of noise that breaks ties of log weights


def log_weights(
    energy: Energy,
    base: Distribution,
    x: Tensor,
    chunk: int,
    *,
    corrected: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """-E(x) / T - log q(x), (n,) in float64; minus infinity outside the domain of the energy.

    Of an energy that is `corrected`, log q cancels at T = 1 and is not computed.

    They are computed in chunks of `chunk` rows, in ``eval()`` mode and without gradients. Raises
    `FloatingPointError` if an energy is nan or minus infinity.
    """
    parts = []
    with sampling(energy), torch.no_grad():
        for part in x.split(chunk):
            if corrected and temperature == 1:
                value = -energy.correction(part).double()
            else:
                value = -row_energies(energy, part) / temperature - base.log_prob(part).double()
            parts.append(value.masked_fill(~energy.domain.contains(part), -math.inf))
    log_w = torch.cat(parts)
    invalid = log_w.isnan() | (log_w == math.inf)
    if invalid.any():
        raise FloatingPointError(
            f"The energy is not finite (nan, or minus infinity) at {int(invalid.sum())} of "
            f"{len(x)} rows: check the model's parameters for infinities and nan, or compute in "
            "float64."
        )
    return log_w


class WeightSummary(NamedTuple):
    """Summary of n weights: log of their mean, its standard error, effective sample size."""

    log_mean: float
    std_error: float
    ess: float


def summarise(log_w: Tensor) -> WeightSummary:
    r"""Mean of the weights with a standard error that accounts for an unobserved tail.

    The standard error of the delta method, s / sqrt(n) for weights of mean 1, is too small where
    few weights dominate the mean, because still larger ones are rare and were not drawn. Its square
    is therefore increased by the second moment of the weights that are expected once in n to 10 n
    draws, under a Pareto distribution through the largest weight, m:

    .. math:: \frac{s^2}{n} + \Bigl(\frac{m - 1}{n}\Bigr)^2 \int_{0.1}^1 u^{-2k} du,

    with k Hill's estimate of the Pareto index from the min(n / 5, 3 sqrt(n)) largest weights, at
    most 1. Raises `FloatingPointError` for log weights (n,) that are not finite.

    References
    ----------
    Hill (1975), "A simple general approach to inference about the tail of a distribution". Vehtari,
    Simpson, Gelman, Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR 25(72) (the
    size of the tail, and k as a diagnostic).
    """
    if not bool(log_w.isfinite().all()):
        raise FloatingPointError(
            "The energies are not finite at some of the draws: check the model's parameters for "
            "infinities and nan, or compute in float64."
        )
    n = len(log_w)
    # Relative to the largest: log n would be lost by rounding beside very large logarithms.
    relative = log_w - log_w.max()
    log_mean = float(torch.logsumexp(relative, 0)) - math.log(n)
    w = (relative - log_mean).exp()  # mean 1
    log_mean += float(log_w.max())
    ess = float(w.sum() ** 2 / w.square().sum())
    if n == 1:
        return WeightSummary(log_mean, math.inf, ess)
    n_tail = max(1, int(min(n / 5, 3 * math.sqrt(n))))
    tail = log_w.topk(n_tail + 1).values
    k = min(float((tail[:-1] - tail[-1]).mean()), MAX_TAIL)
    power = 1 - 2 * k
    integral = (1 - 0.1**power) / power if abs(power) > 1e-6 else math.log(10)
    excess = (float(w.max()) - 1) / n
    return WeightSummary(log_mean, math.sqrt(float(w.var()) / n + integral * excess**2), ess)


class Tail(NamedTuple):
    """A generalised Pareto distribution fitted to the largest of n weights, relative to their max.

    Index `k`, scale, the weight that the tail starts at, the number of weights in the tail.
    """

    k: float
    scale: float
    start: float
    n_tail: int


def fit_tail(log_w: Tensor) -> Tail:
    r"""Fit a generalised Pareto distribution to the largest weights, given log weights (n,).

    The tail consists of the min(n / 5, 3 sqrt(n)) largest of the n weights, and the fit uses a weak
    prior at k = 1/2. k is minus infinity if the tail weights are all equal, and ``nan`` for fewer
    than 25 weights. As draws from few discrete states have ties, which no density fits, noise with
    a standard deviation of 0.001 is added to the log weights.

    References
    ----------
    Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
    distribution", Technometrics 51(3). Vehtari, Simpson, Gelman, Yao and Gabry (2024), "Pareto
    smoothed importance sampling", JMLR 25(72), section 2 and appendix C (the prior).
    """
    n = len(log_w)
    n_tail = int(min(n / 5, 3 * math.sqrt(n)))
    if n_tail < 5:
        return Tail(math.nan, math.nan, math.nan, n_tail)
    largest = log_w.topk(n_tail + 1).values
    if largest[0] - largest[-1] <= 1e-10:
        return Tail(-math.inf, 0.0, 1.0, n_tail)
    generator = torch.Generator(log_w.device).manual_seed(0)
    noise = torch.randn(n, generator=generator, dtype=log_w.dtype, device=log_w.device)
    top = (log_w + JITTER * noise).topk(n_tail + 1).values
    top = (top - top[0]).exp()
    x = (top[:-1] - top[-1]).flip(0)  # increasing
    quartile = x[int(n_tail / 4 + 0.5) - 1]
    m = 30 + int(math.sqrt(n_tail))
    grid = 1 - (m / (torch.arange(m, dtype=x.dtype, device=x.device) + 0.5)).sqrt()
    theta = 1 / x[-1] + grid / (3 * quartile)
    k = torch.log1p(-theta[:, None] * x).mean(1)
    log_likelihood = n_tail * ((-theta / k).log() - k - 1)
    posterior_mean = (log_likelihood.softmax(0) * theta).sum()
    fitted = float(torch.log1p(-posterior_mean * x).mean())
    k_regular = (n_tail * fitted + 10 * 0.5) / (n_tail + 10)
    return Tail(k_regular, -fitted / float(posterior_mean), float(top[-1]), n_tail)


def pareto_k(log_w: Tensor) -> float:
    """Index k of the generalised Pareto distribution that `fit_tail` fits to the largest weights.

    The weights have about 1 / k finite moments.
    """
    return fit_tail(log_w).k


def tail_correction(log_w: Tensor, tail: Tail) -> float:
    """How much Pareto smoothing changes log of the mean weight, in nats; 0 without a fitted tail.

    The n_tail largest weights are replaced by the expected order statistics of the fitted
    distribution, at most the largest weight. The standard error accounts for weights that were not
    drawn.
    """
    if not math.isfinite(tail.k):
        return 0.0
    u = (torch.arange(tail.n_tail, dtype=torch.float64) + 0.5) / tail.n_tail
    k = tail.k if abs(tail.k) > 1e-6 else 1e-6
    fitted = float((tail.start + tail.scale / k * (u.pow(-k) - 1)).clamp_max(1).sum())
    w = (log_w - log_w.max()).exp()
    drawn = float(w.topk(tail.n_tail).values.sum())
    # The other weights are not replaced, so their sum bounds the argument from below.
    return math.log(max(1 + (fitted - drawn) / float(w.sum()), 1e-300))


# Vehtari et al. (2024): above it effective sample sizes and standard errors are unreliable.
MAX_PARETO_K = 0.7
# Effective sample size below which the mean of weights is unreliable too: at 60 of 10,000 draws,
# intervals of two standard errors for a trained RBM covered log Z in 80 of 100 runs.
MIN_ESS = 100


class ImportanceSampling(MonteCarloEstimator):
    r"""Importance sampling: the mean weight of draws from a tractable base q.

    .. math:: \hat Z = \frac1n \sum_{i=1}^n \frac{e^{-E(x_i)}}{q(x_i)}, \qquad x_i \sim q

    Direction: :math:`\hat Z` is unbiased, so :math:`\log \hat Z` is on average below log Z.
    ``lower`` = :math:`\log \hat Z - \log(1 / \delta)` is a lower bound that holds with probability
    at least :math:`1 - \delta` (Markov's inequality). There is no upper bound (``nan``): the
    weights do not show a mode that all draws have missed. ``std_error`` is that of the delta
    method, increased by an estimate of the unobserved tail of the weights. Sums are accumulated in
    float64. The method is suited to few columns, or to a base fitted to the model: the variance
    grows exponentially with the number of columns in which q and the model differ.

    A warning is issued if log Z may be wrong by more than `std_error`: if the effective sample size
    is below a hundred (or a tenth of the draws, if that is less), or if the weights have such a
    heavy tail (Pareto index k above 0.7) that smoothing it changes the estimate by more than
    `std_error`. The base is then narrower than the model, or far from it. If, on unbounded rows, k
    is at least 1 and the effective sample size is below a twentieth of the draws, the weights are
    treated as draws from a distribution without a mean: ``value`` and ``std_error`` are ``nan``,
    ``reason`` says why, and ``lower`` remains, because it holds for any weights.

    Parameters
    ----------
    n_samples : int, default=10000
        Draws of the base, 2 or more.
    delta : float in (0, 1], default=0.05
        Probability with which the bound may fail.
    chunk : int, default=4096
        Number of draws that are held in memory at a time.

    References
    ----------
    Owen (2013), "Monte Carlo theory, methods and examples", chapter 9. Vehtari, Simpson, Gelman,
    Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR 25(72), section 3 (the
    threshold).

    Examples
    --------
    Two columns of standard deviation 2, from a base of standard deviation 3: log Z = log(8 pi)

    >>> import math
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.distributions import Gaussian
    >>> from skebm.partition import ImportanceSampling
    >>> class Wide(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 8
    >>> base = Gaussian(torch.zeros(2, dtype=torch.float64), 3.0)
    >>> estimate = ImportanceSampling().estimate(Wide(), base=base)
    >>> abs(estimate.value - math.log(8 * math.pi)) < 4 * estimate.std_error < 0.1
    True
    """

    uses = ("base", "x")
    x_fits_base = True

    def __init__(self, n_samples: int = 10_000, delta: float = 0.05, chunk: int = 4096):
        self.n_samples = n_samples
        self.delta = delta
        self.chunk = chunk

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Estimate log Z from `n_samples` draws of `base`.

        The default base is that of the energy. Without one it is uniform or, on unbounded real
        rows, a normal distribution, fitted to `x` if this is given and otherwise standard. The base
        must have positive density at the rows `x`.
        """
        whole_number("n_samples", self.n_samples, 2)
        whole_number("chunk", self.chunk, 1)
        number_in("delta", self.delta, "(0, 1]")
        self.check(energy, x)
        rows = rows_of(energy, x)
        base = default_base(energy, rows) if base is None else base
        check_base(energy, base, rows)
        template = template_for(energy, rows)
        check_memory(f"n_samples={self.n_samples}", self.n_samples, torch.float64)
        corrected = energy.corrects(base)
        base = base.to(template.device, template.dtype)
        generator = generator_for(generator, template.device)
        parts, n_remaining = [], self.n_samples
        while n_remaining:
            draws = base.sample(min(self.chunk, n_remaining), generator)
            n_remaining -= len(draws)
            parts.append(log_weights(energy, base, draws, self.chunk, corrected=corrected))
        return self._estimate_of_weights(torch.cat(parts), not has_uniform(energy.domain))

    def _estimate_of_weights(self, log_w: Tensor, unbounded: bool) -> LogPartition:
        """The estimate from log weights (n,); warns where it is unreliable."""
        largest = log_w.max()
        if largest == -math.inf:
            raise ValueError(
                f"The model has no mass at any of {len(log_w)} draws of the base. Pass a base "
                "nearer to the model, or rows of the model as x."
            )
        # Draws of no mass count as draws; clamped, their weights underflow to zero as they should.
        log_w = log_w.clamp_min(float(largest) - 1e3)
        log_mean, std_error, ess = summarise(log_w)
        lower = log_mean - math.log(1 / self.delta)
        n, tail, reason = len(log_w), fit_tail(log_w), NO_UPPER
        # The effective sample size of n weights without a mean is of the order of log(n)^2, below
        # 3 % of a thousand draws. With more of them a Pareto index above 1 describes a tail that
        # carries little.
        max_ess_without_mean = 0.05
        # Weights on bounded rows have a mean whatever their index.
        if unbounded and tail.k >= MAX_TAIL and ess < max_ess_without_mean * n:
            reason = (
                f"no estimate: the weights have a Pareto index of {tail.k:.2f}, so that their mean "
                "does not exist or is far from that of the draws"
            )
            log_mean = std_error = math.nan
        off = abs(tail_correction(log_w, tail))
        heavy = tail.k > MAX_PARETO_K and off > std_error
        if reason != NO_UPPER or heavy or ess < min(MIN_ESS, n / 10):
            _warn_of_weights(ess, n, tail.k, math.isnan(log_mean))
        return LogPartition(
            log_mean, std_error, lower, math.nan, "probabilistic", ess, reason=reason
        )


def _warn_of_weights(ess: float, n: int, k: float, no_estimate: bool) -> None:
    """Warn that log Z may be wrong by more than its standard error."""
    effect = (
        "log Z is nan"
        if no_estimate
        else ("log Z may be far above this estimate, and std_error too small")
    )
    warn(
        f"The importance weights are uneven (effective sample size {ess:.1f} of {n} draws; Pareto "
        f"index {k:.2f}, reliable up to {MAX_PARETO_K}): {effect}.",
        LikelihoodWarning,
        ("Pass a wider base, or use AIS or BridgeSampling.", "n_samples"),
        ("Pass partition=AISBracket().", "partition"),
    )
