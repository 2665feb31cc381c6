"""log Z by importance sampling from a distribution that is known."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler, sampling
from skebm.base.sampler import whole_number
from skebm.distributions import Distribution
from skebm.partition.checks import (
    NO_UPPER,
    WeighingMethod,
    check_base,
    check_delta,
    default_base,
    generator_for,
    like,
    row_energies,
    rows_of,
)

# Heaviest tail assumed of the weights: the mean of a Pareto law of index 1 does not exist.
MAX_TAIL = 1.0
SPACING = 1e-3  # standard deviation of what tells equal log weights apart


def log_weights(energy: Energy, base: Distribution, x: Tensor, chunk: int) -> Tensor:
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


# Vehtari et al. (2024): beyond it sample sizes and standard errors promise more than they keep.
MAX_PARETO_K = 0.7
# Effective draws below which the mean of weights is not trusted either: at 60 of 10,000, intervals
# of two standard errors for a trained machine held log Z in 80 of 100 runs.
FEW = 100


class ImportanceSampling(WeighingMethod):
    r"""Importance sampling: the mean weight of draws from a base q that is known.

    .. math:: \hat Z = \frac1n \sum_{i=1}^n \frac{e^{-E(x_i)}}{q(x_i)}, \qquad x_i \sim q

    Direction: :math:`\hat Z` is unbiased, so :math:`\log \hat Z` is on average below log Z.
    ``lower`` = :math:`\log \hat Z - \log(1 / \delta)` is a lower bound that holds with probability
    at least :math:`1 - \delta` (Markov's inequality). There is no upper bound (``nan``): weights
    that missed a mode look as good as any. ``std_error`` is the delta method's, enlarged by what
    the tail of the weights promises. Accumulates in float64.

    Warns where less than a hundred draws (or a tenth of them) carry the mean, and where the tail of
    the weights is so heavy (Pareto index above 0.7) that neither ``ess`` nor ``std_error`` can be
    trusted: the base is narrower than the model, or far from it. For a few columns, or a base that
    was trained to be near; the variance grows exponentially with the columns that q gets wrong.

    Parameters
    ----------
    n_samples : int, default=10000
        Draws of the base, 2 or more.
    delta : float in (0, 1], default=0.05
        Probability with which the bound may fail.
    chunk : int, default=4096
        Draws that are held at a time.

    References
    ----------
    Owen (2013), "Monte Carlo theory, methods and examples", chapter 9. Vehtari, Simpson, Gelman,
    Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR 25(72), section 3 (the
    threshold).

    Examples
    --------
    Two columns of standard deviation 2, from a base of 3: log Z = log(8 pi)

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
    >>> found = ImportanceSampling().estimate(Wide(), base=base)
    >>> abs(found.value - math.log(8 * math.pi)) < 4 * found.std_error < 0.1
    True
    """

    uses = ("base", "x")

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
        """Weigh `n_samples` draws of `base`.

        The default is the energy's base, or uniform, or on unbounded real rows a normal
        distribution: fitted to `x`, or standard. At the rows `x` the base must have probability.
        """
        whole_number("n_samples", self.n_samples, 2)
        whole_number("chunk", self.chunk, 1)
        check_delta(self.delta)
        self.check(energy)
        rows = rows_of(energy, x)
        base = default_base(energy, rows) if base is None else base
        check_base(energy, base, rows)
        kind = like(energy, rows)
        base = base.to(kind.device, kind.dtype)
        generator = generator_for(generator, kind.device)
        found, left = [], self.n_samples
        while left:
            draws = base.sample(min(self.chunk, left), generator)
            left -= len(draws)
            found.append(log_weights(energy, base, draws, self.chunk))
        return self._summarised(torch.cat(found))

    def _summarised(self, log_w: Tensor) -> LogPartition:
        heaviest = log_w.max()
        if heaviest == -math.inf:
            raise ValueError(
                f"None of {len(log_w)} draws of the base is where the model has mass. Pass a base "
                "nearer to it, or rows of it as x."
            )
        # Draws without mass count as draws; their weight underflows to the 0 that it is.
        log_mean, std_error, ess = summarise(log_w.clamp_min(float(heaviest) - 1e3))
        k, n = pareto_k(log_w), len(log_w)
        if k > MAX_PARETO_K or ess < min(FEW, n / 10):
            warnings.warn(
                f"The weights are uneven ({ess:.1f} of {n} draws carry the mean; Pareto "
                f"index {k:.2f}, to be trusted up to {MAX_PARETO_K}): log Z may be far above this "
                "estimate, and std_error too small. The base is narrower than the model, or far "
                "from it: pass one that is wider, or rows x to fit it to, or use AIS or "
                "BridgeSampling.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of `estimate`
            )
        lower = log_mean - math.log(1 / self.delta)
        return LogPartition(
            log_mean, std_error, lower, math.nan, "probabilistic", ess, reason=NO_UPPER
        )
