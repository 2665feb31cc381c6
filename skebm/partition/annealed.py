"""log Z by annealing between a distribution that is known and the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, PartitionEstimator, Sampler
from skebm.energies import AnnealingPath
from skebm.partition.schedule import anneal, constant_speed
from skebm.samplers import Gibbs

# Heaviest tail assumed of the weights: the mean of a Pareto law of index 1 does not exist.
MAX_TAIL = 1.0


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
            "Annealing met energies that are not finite; check the model's parameters for "
            "infinities and NaN, or compute in float64."
        )
    n = len(log_w)
    log_mean = float(torch.logsumexp(log_w, 0)) - math.log(n)
    w = (log_w - log_mean).exp()  # mean 1
    ess = float(w.sum() ** 2 / w.square().sum())
    if n == 1:
        return Weights(log_mean, math.inf, ess)
    if ess < min(2, n / 10):
        warnings.warn(
            f"One of {n} annealing runs carries almost all weight (effective sample size "
            f"{ess:.2f}): log Z is known to within some nats at best. Use more n_betas.",
            ConvergenceWarning,
            stacklevel=4,  # the caller of `estimate`
        )
    n_tail = max(1, int(min(n / 5, 3 * math.sqrt(n))))
    tail = log_w.topk(n_tail + 1).values
    k = min(float((tail[:-1] - tail[-1]).mean()), MAX_TAIL)
    power = 1 - 2 * k
    unseen = (1 - 0.1**power) / power if abs(power) > 1e-6 else math.log(10)
    excess = (float(w.max()) - 1) / n
    return Weights(log_mean, math.sqrt(float(w.var()) / n + unseen * excess**2), ess)


def forward(
    path: AnnealingPath,
    sampler: Sampler,
    betas: Sequence[float],
    n_chains: int,
    delta: float,
    generator: torch.Generator,
) -> LogPartition:
    """AIS over given inverse temperatures, 0 to 1."""
    x = path.base.sample(n_chains, generator)
    log_w = torch.zeros(n_chains, dtype=torch.float64, device=x.device)
    for step in anneal(path, sampler, x, betas, generator):
        log_w += step
    log_mean, std_error, ess = summarise(log_w)
    value = path.log_z0 + log_mean
    return LogPartition(value, std_error, value + math.log(delta), math.nan, "probabilistic", ess)


def backward(
    path: AnnealingPath,
    sampler: Sampler,
    betas: Sequence[float],
    x: Tensor,
    delta: float,
    generator: torch.Generator,
) -> LogPartition:
    """Reverse AIS from rows x over given inverse temperatures, 0 to 1: a guess."""
    log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for step in anneal(path, sampler, x, betas[::-1], generator):
        log_w += step
    log_mean, std_error, ess = summarise(log_w)
    value = path.log_z0 - log_mean
    return LogPartition(value, std_error, math.nan, value - math.log(delta), "heuristic", ess)


def defaults(
    energy: Energy, sampler: Sampler | None, generator: torch.Generator | None
) -> tuple[Sampler, torch.Generator]:
    """Block Gibbs and a generator of seed 0 where nothing was passed."""
    if generator is None:
        generator = torch.Generator(next(energy.parameters()).device).manual_seed(0)
    sampler = Gibbs() if sampler is None else sampler
    if not sampler.kernel.exact:
        raise ValueError(
            f"Annealed importance sampling is unbiased only along exact kernels, and "
            f"{sampler.kernel} is biased. Pass one that accepts or rejects its steps."
        )
    return sampler, generator


class AIS(PartitionEstimator):
    r"""Annealed importance sampling, from a base whose log Z is known to the model.

    Direction: :math:`\hat Z` is unbiased, so :math:`\log \hat Z` is on average below log Z.
    ``lower`` = :math:`\log \hat Z - \log(1 / \delta)` is a lower bound that holds with probability
    at least :math:`1 - \delta` (Markov's inequality). There is no upper bound (``nan``): weights
    that missed a mode look as good as any. ``std_error`` is the delta method's, enlarged by what
    the tail of the weights promises; of a mode that no chain came near it knows nothing.
    Accumulates in float64. Warns when one chain carries almost all weight.

    A pilot run of at most a tenth of the cost places the temperatures where the path is long. Its
    chains are not used again, so that the estimate is unbiased given the schedule.

    Parameters
    ----------
    n_chains : int, default=100
        Independent annealing runs.
    n_betas : int, default=2000
        Inverse temperatures of the path. The error falls faster in these than in `n_chains`.
    delta : float, default=0.05
        Probability with which the bound may fail.

    References
    ----------
    Neal (2001), "Annealed importance sampling", Statistics and Computing 11(2). Salakhutdinov and
    Murray (2008), "On the quantitative analysis of deep belief networks", ICML, section 4. Grosse,
    Maddison and Salakhutdinov (2013), "Annealing between distributions by averaging moments",
    NeurIPS, section 3 (the schedule).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import AIS, Exact
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(8, 4, generator=generator, scale=0.5)
    >>> estimate = AIS(n_betas=200).estimate(energy, generator=generator)
    >>> abs(estimate.value - Exact().estimate(energy).value) < 0.1
    True
    """

    def __init__(self, n_chains: int = 100, n_betas: int = 2000, delta: float = 0.05):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.delta = delta

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Anneal `n_chains` draws of `base` (default: the energy's, or uniform); `x` is unused."""
        sampler, generator = defaults(energy, sampler, generator)
        path = AnnealingPath(energy, base)
        with torch.no_grad():
            betas = constant_speed(path, sampler, self.n_chains, self.n_betas, generator)
            return forward(path, sampler, betas, self.n_chains, self.delta, generator)


class ReverseAIS(PartitionEstimator):
    r"""Annealing from samples of the model back to the base.

    Direction: from **exact** model samples :math:`1 / \hat Z` is unbiased, so :math:`\log \hat Z`
    is on average above log Z and ``upper`` = :math:`\log \hat Z + \log(1 / \delta)` holds with
    probability at least :math:`1 - \delta`. From data or training chains it is a guess that can
    lie on either side; say which by `exact_samples`. There is no lower bound (``nan``). The
    schedule and ``std_error`` are made as by :class:`AIS`.

    Parameters
    ----------
    n_betas : int, default=2000
        Inverse temperatures of the path.
    delta : float, default=0.05
        Probability with which the bound may fail, given exact samples.
    exact_samples : bool, default=False
        Whether the rows `x` given to :meth:`estimate` are exact samples of the model.

    References
    ----------
    Burda, Grosse and Salakhutdinov (2015), "Accurate and conservative estimates of MRF
    log-likelihood using reverse annealing", AISTATS. Grosse, Ghahramani and Adams (2015),
    "Sandwiching the marginal likelihood using bidirectional Monte Carlo".

    Examples
    --------
    Without weights every row is an exact sample of the uniform distribution, and Z is known:

    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import ReverseAIS
    >>> energy = BernoulliRBM(4, 2, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> estimate = ReverseAIS(50, exact_samples=True).estimate(energy, x=torch.eye(4))
    >>> round(estimate.value, 4), estimate.bound_kind  # 6 log 2
    (4.1589, 'probabilistic')
    """

    def __init__(self, n_betas: int = 2000, delta: float = 0.05, exact_samples: bool = False):
        self.n_betas = n_betas
        self.delta = delta
        self.exact_samples = exact_samples

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Anneal the rows of `x` (n, d), or of several by name, from the model to the base."""
        if isinstance(x, Mapping):
            x = torch.cat(list(x.values()))
        if x is None or len(x) == 0:
            raise ValueError("ReverseAIS starts from model samples: pass rows of them as x.")
        sampler, generator = defaults(energy, sampler, generator)
        path = AnnealingPath(energy, base)
        with torch.no_grad():
            betas = constant_speed(path, sampler, len(x), self.n_betas, generator)
            found = backward(path, sampler, betas, x, self.delta, generator)
        return found._replace(bound_kind="probabilistic") if self.exact_samples else found
