"""log Z by annealing between a distribution that is known and the model."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import (
    ChainState,
    Energy,
    LogPartition,
    PartitionEstimator,
    Sampler,
)
from skebm.energies import AnnealingPath
from skebm.noise import IndependentBernoulli
from skebm.samplers import Gibbs


def _betas(n: int) -> list[float]:
    """Inverse temperatures from 0 to 1, denser at both ends, where the path bends most."""
    if n < 2:
        raise ValueError(f"n_betas must be at least 2, the two ends of the path; got {n}.")
    t = torch.linspace(-4, 4, n, dtype=torch.float64).sigmoid()
    return ((t - t[0]) / (t[-1] - t[0])).tolist()


def _weights(log_w: Tensor) -> tuple[float, float, float]:
    """log of the mean weight, its standard error (delta method) and the effective sample size."""
    n = len(log_w)
    log_mean = float(torch.logsumexp(log_w, 0)) - math.log(n)
    w = (log_w - log_mean).exp()  # mean 1
    std_error = float(w.std() / math.sqrt(n)) if n > 1 else math.inf
    return log_mean, std_error, float(w.sum() ** 2 / w.square().sum())


class AIS(PartitionEstimator):
    r"""Annealed importance sampling, from a base whose log Z is known to the model.

    Direction: :math:`\hat Z` is unbiased, so :math:`\log \hat Z` is on average below log Z.
    ``lower`` = :math:`\log \hat Z - \log(1 / \delta)` is a lower bound that holds with probability
    at least :math:`1 - \delta` (Markov's inequality). There is no upper bound (``nan``): weights
    that missed a mode look as good as any. Accumulates in float64.

    Parameters
    ----------
    n_chains : int, default=200
        Independent annealing runs.
    n_betas : int, default=1000
        Inverse temperatures of the path.
    delta : float, default=0.05
        Probability with which the bound may fail.

    References
    ----------
    Neal (2001), "Annealed importance sampling", Statistics and Computing 11(2). Salakhutdinov and
    Murray (2008), "On the quantitative analysis of deep belief networks", ICML, section 4.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import AIS, Exact
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(8, 4, generator=generator, scale=0.5)
    >>> estimate = AIS().estimate(energy, generator=generator)
    >>> abs(estimate.value - Exact().estimate(energy).value) < 0.1
    True
    """

    def __init__(self, n_chains: int = 200, n_betas: int = 1000, delta: float = 0.05):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.delta = delta

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Anneal `n_chains` draws of `base` (default: uniform); `x` is not used."""
        base, sampler, generator = _defaults(energy, base, sampler, generator)
        path, betas = AnnealingPath(energy, base), _betas(self.n_betas)
        with torch.no_grad():
            rows = base.sample(self.n_chains, generator)
            log_w = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
            for old, new in zip(betas, betas[1:], strict=False):
                log_w += path.log_ratio(rows, old, new)
                if new < 1:
                    rows = sampler.step(path.at(new), ChainState(rows), generator)[0].x
        log_mean, std_error, ess = _weights(log_w)
        value = path.log_z0 + log_mean
        lower = value + math.log(self.delta)
        return LogPartition(value, std_error, lower, math.nan, "probabilistic", ess)


class ReverseAIS(PartitionEstimator):
    r"""Annealing from samples of the model back to the base.

    Direction: from **exact** model samples :math:`1 / \hat Z` is unbiased, so :math:`\log \hat Z`
    is on average above log Z and ``upper`` = :math:`\log \hat Z + \log(1 / \delta)` holds with
    probability at least :math:`1 - \delta`. From data or training chains it is a guess that can
    lie on either side; say which by `exact_samples`. There is no lower bound (``nan``).

    Parameters
    ----------
    n_betas : int, default=1000
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
    """

    def __init__(self, n_betas: int = 1000, delta: float = 0.05, exact_samples: bool = False):
        self.n_betas = n_betas
        self.delta = delta
        self.exact_samples = exact_samples

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Anneal the rows of `x` (n, d) from the model to the base."""
        if x is None or len(x) == 0:
            raise ValueError("ReverseAIS starts from model samples: pass rows of them as x.")
        base, sampler, generator = _defaults(energy, base, sampler, generator)
        path, betas = AnnealingPath(energy, base), _betas(self.n_betas)[::-1]
        with torch.no_grad():
            log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
            for old, new in zip(betas, betas[1:], strict=False):
                # The reversal of the forward run: move at `old`, then weigh.
                if old < 1:
                    x = sampler.step(path.at(old), ChainState(x), generator)[0].x
                log_w += path.log_ratio(x, old, new)
        log_mean, std_error, ess = _weights(log_w)
        value = path.log_z0 - log_mean
        kind = "probabilistic" if self.exact_samples else "heuristic"
        upper = value - math.log(self.delta)
        return LogPartition(value, std_error, math.nan, upper, kind, ess)


class AISBracket(PartitionEstimator):
    r"""AIS from below and reverse AIS from several starts: the value with a pessimistic end.

    ``value`` and ``std_error`` are those of AIS and ``lower`` its probabilistic bound. ``upper`` is
    the largest credible log Z: the largest of the estimates, AIS and every reverse run, plus two of
    its standard errors. Direction: heuristic, because the reverse runs start at rows that are not
    exact samples. Warns when forward and reverse estimates cross, or when the reverse ones depend
    on where they start: the chains have not mixed and no value is to be trusted.

    Parameters
    ----------
    n_chains : int, default=200
        Forward runs, and at most so many rows for each reverse run.
    n_betas : int, default=1000
        Inverse temperatures of the path.
    n_steps : int, default=1000
        Sampler steps from the rows of `x` for a second reverse start.
    delta : float, default=0.05
        Probability with which the lower bound may fail.

    References
    ----------
    Burda, Grosse and Salakhutdinov (2015), AISTATS.
    """

    def __init__(
        self, n_chains: int = 200, n_betas: int = 1000, n_steps: int = 1000, delta: float = 0.05
    ):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.n_steps = n_steps
        self.delta = delta

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Bracket log Z; `x` are rows near the model: data, training chains, or both stacked."""
        if x is None or len(x) < 2:
            raise ValueError(
                "AISBracket needs two rows or more to start its reverse runs from: pass them as x."
            )
        base, sampler, generator = _defaults(energy, base, sampler, generator)
        parts = {"base": base, "sampler": sampler, "generator": generator}
        forward = AIS(self.n_chains, self.n_betas, self.delta).estimate(energy, **parts)
        keep = torch.randperm(len(x), generator=generator, device=x.device)[: self.n_chains]
        near = x[keep]
        far = sampler.run(energy, near, self.n_steps, generator)[0].x
        backward = ReverseAIS(self.n_betas, self.delta)
        reverse = [backward.estimate(energy, x=start, **parts) for start in (near, far)]
        _warn_unless_consistent(forward, reverse)
        upper = max(one.value + 2 * one.std_error for one in (forward, *reverse))
        return forward._replace(upper=upper, bound_kind="heuristic")


def _warn_unless_consistent(forward: LogPartition, reverse: list[LogPartition]) -> None:
    """Warn when estimates cross, or the reverse ones disagree by more than their noise."""
    lowest = min(reverse, key=lambda one: one.value)
    if lowest.value < forward.value - 3 * math.hypot(forward.std_error, lowest.std_error):
        warnings.warn(
            f"Forward AIS gives log Z = {forward.value:.2f} and reverse AIS {lowest.value:.2f}, "
            "below it: the two have crossed, so the reverse chains do not start from samples of "
            "the model. The likelihoods are not to be trusted; train with more Gibbs steps or a "
            "smaller learning rate.",
            ConvergenceWarning,
            stacklevel=3,
        )
    near, far = reverse
    if abs(near.value - far.value) > max(0.5, 3 * math.hypot(near.std_error, far.std_error)):
        warnings.warn(
            f"Reverse AIS depends on where it starts: log Z = {near.value:.2f} from the given rows "
            f"and {far.value:.2f} after more sampler steps. The model's modes are not explored; "
            "the pessimistic end of the bracket is the larger.",
            ConvergenceWarning,
            stacklevel=3,
        )


def _defaults(
    energy: Energy, base: Any, sampler: Sampler | None, generator: torch.Generator | None
) -> tuple[Any, Sampler, torch.Generator]:
    """Uniform base, block Gibbs and a generator of seed 0 where nothing was passed."""
    like = next(energy.parameters())
    if base is None:
        base = IndependentBernoulli(like.new_zeros(energy.domain.n_columns))
    if sampler is None:
        sampler = Gibbs()
    if generator is None:
        generator = torch.Generator(like.device).manual_seed(0)
    return base, sampler, generator
