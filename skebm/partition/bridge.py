"""log Z by bridge sampling between draws of a tractable base and draws of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import Energy, LikelihoodWarning, LogPartition, Sampler
from skebm.base.bridge import Bridge, bridge
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.partition.checks import (
    MonteCarloEstimator,
    check_base,
    default_base,
    default_sampler,
    fits_base,
    generator_for,
    rows_of,
    template_for,
)
from skebm.partition.importance import log_weights

CHUNK = 4096  # rows held in memory at a time
NO_BOUNDS = "bridge sampling is consistent and gives no bound on either side"


class BridgeSampling(MonteCarloEstimator):
    r"""Bridge sampling: the optimal bridge between draws of a base q and draws of the model.

    .. math:: \hat Z = \frac{n_q^{-1} \sum_{x \sim q} l(x) / \bigl(s_p l(x) + s_q \hat Z\bigr)}
        {n_p^{-1} \sum_{x \sim p} 1 / \bigl(s_p l(x) + s_q \hat Z\bigr)}, \qquad
        l(x) = \frac{e^{-E(x)}}{q(x)}

    with :math:`s_p, s_q` the fractions of the draws from the model and from q. The terms are
    bounded, so that tails are harmless, and less overlap of q with the model is needed than for
    importance sampling.

    Direction: the estimate is consistent, and is neither a lower nor an upper bound (both ``nan``),
    because the draws of the model come from chains. Modes that all chains have missed are missing
    from log Z; chains that have not moved away from their starts can make it wrong in either
    direction. ``std_error`` is the asymptotic one for independent draws from both distributions: it
    is valid if the chains have converged. ``ess`` is the smaller of the effective sample sizes of
    the two means, from 1 to the number of draws.

    A warning is issued if the two distributions hardly overlap.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of draws from each distribution, 2 or more. The draws of the model are the last
        states of as many chains. If the base is fitted to draws of the model, half of these are
        used for the fit and the other half for the bridge.
    n_steps : int, default=200
        Sampler steps of each chain (and as many warm-up steps, if the sampler adapts).
    exact_samples : bool, default=False
        Whether the rows `x` passed to :meth:`estimate` are independent draws of the model. If so,
        all of them are used unchanged.

    References
    ----------
    Meng and Wong (1996), "Simulating ratios of normalizing constants via a simple identity",
    Statistica Sinica 6, eq. 4.1. Bennett (1976), "Efficient estimation of free energy differences
    from Monte Carlo data", Journal of Computational Physics 22(2). Geyer (1994), "Estimating
    normalizing constants and reweighting mixtures". Fruehwirth-Schnatter (2004), "Estimating
    marginal likelihoods for mixture and Markov switching models using bridge sampling techniques",
    Econometrics Journal 7(1), eq. 18 (the error). Overstall and Forster (2010), "Default Bayesian
    model determination methods for generalised linear mixed models", CSDA 54(12) (draws used for
    fitting are not used again).

    Examples
    --------
    Two columns of standard deviation 2: log Z = log(8 pi)

    >>> import math
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.partition import BridgeSampling
    >>> class Wide(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 8
    >>> estimate = BridgeSampling(n_steps=30).estimate(Wide())
    >>> abs(estimate.value - math.log(8 * math.pi)) < 4 * estimate.std_error < 0.2
    True
    """

    def __init__(self, n_samples: int = 1000, n_steps: int = 200, exact_samples: bool = False):
        self.n_samples = n_samples
        self.n_steps = n_steps
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
        """Estimate log Z by a bridge between `base` and the model.

        Chains start at rows drawn from `x`, a tensor or several by name, or at draws of the base.
        The default `base` is that of the energy. Without one it is uniform or, on unbounded real
        rows, a normal distribution fitted to half of the draws of the model. The default `sampler`
        is Gibbs for bipartite and pairwise energies, GibbsWithGradients on other discrete rows, and
        HMC with adaptation on real ones.
        """
        whole_number("n_samples", self.n_samples, 2)
        self.check(energy)
        rows = rows_of(energy, x)
        template = template_for(energy, rows)
        n_numbers = self.n_samples * energy.domain.n_columns
        check_memory(f"n_samples={self.n_samples}", n_numbers, template.dtype, template.device)
        generator = generator_for(generator, template.device)
        q = default_base(energy) if base is None else base
        check_base(energy, q, rows)
        q = q.to(template.device, template.dtype)
        draws = self._model_draws(energy, q, sampler, rows, generator)
        if fits_base(energy, base):
            q, draws = default_base(energy, draws[::2]), draws[1::2]
        of_model = log_weights(energy, q, draws, CHUNK)
        if of_model.min() == -math.inf:
            raise ValueError(
                "Some draws of the model have infinite energy, so they are not samples of it: pass "
                "other rows as x."
            )
        of_base = log_weights(energy, q, q.sample(self.n_samples, generator), CHUNK)
        if of_base.max() == -math.inf:
            raise ValueError("The model has no mass at any draw of the base: pass another base.")
        result = bridge(of_model, of_base)
        _warn_unless_overlapping(result, min(len(of_model), len(of_base)))
        nan = math.nan
        return LogPartition(
            result.value, result.std_error, nan, nan, "heuristic", result.ess, reason=NO_BOUNDS
        )

    def _model_draws(
        self,
        energy: Energy,
        base: Any,
        sampler: Sampler | None,
        rows: Tensor | None,
        generator: torch.Generator,
    ) -> Tensor:
        """Draws of the model: the rows as they are, or last states of chains started at them."""
        if self.exact_samples:
            if rows is None or len(rows) < 4:
                raise ValueError("exact_samples=True needs at least 4 draws of the model as x.")
            return rows
        sampler = default_sampler(energy) if sampler is None else sampler
        if not sampler.exact:
            raise ValueError(
                f"Bridge sampling needs draws of the model, and {sampler} is biased. Pass a "
                "sampler that accepts or rejects its steps."
            )
        if rows is None:
            rows = base.sample(self.n_samples, generator)
            rows = rows[energy.domain.contains(rows)]
            if len(rows) == 0:
                raise ValueError("No draw of the base is in the domain of the energy: pass rows x.")
        index = torch.randint(
            len(rows), (self.n_samples,), generator=generator, device=generator.device
        )
        with torch.no_grad():
            state, _ = sampler.run(energy, rows[index], self.n_steps, generator)
        return state.x


def _warn_unless_overlapping(result: Bridge, n: int) -> None:
    if result.ess < min(10, n / 10):
        warn(
            f"Base and model hardly overlap (effective sample size {result.ess:.1f} of {n} draws), "
            "and std_error is too small.",
            LikelihoodWarning,
            ("Pass a base nearer to the model, or use AIS.", "n_samples"),
            ("Pass partition=AISBracket().", "partition"),
        )
