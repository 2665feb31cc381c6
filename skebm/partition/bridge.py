"""log Z by a bridge between draws of a distribution that is known and draws of the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.base.bridge import Bridge, bridge
from skebm.base.sampler import whole_number
from skebm.partition.checks import (
    WeighingMethod,
    check_base,
    default_base,
    default_sampler,
    generator_for,
    is_fitted,
    like,
    rows_of,
)
from skebm.partition.importance import log_weights

# Rows that are held at a time.
CHUNK = 4096
NO_BOUNDS = "bridge sampling is consistent and bounds neither side"


class BridgeSampling(WeighingMethod):
    r"""The optimal bridge between draws of a base q and draws of the model.

    .. math:: \hat Z = \frac{n_q^{-1} \sum_{x \sim q} l(x) / \bigl(s_p l(x) + s_q \hat Z\bigr)}
        {n_p^{-1} \sum_{x \sim p} 1 / \bigl(s_p l(x) + s_q \hat Z\bigr)}, \qquad
        l(x) = \frac{e^{-E(x)}}{q(x)}

    with :math:`s_p, s_q` the shares of the draws. Terms are bounded, so that tails do no harm, and
    less overlap of q with the model is needed than for importance sampling.

    Direction: consistent, and neither a lower nor an upper bound (both ``nan``), because the draws
    of the model come from chains. Chains that have missed a mode leave it out of log Z; chains that
    stand where they started make it wrong on either side. ``std_error`` is the asymptotic one of
    independent draws from both sides: it holds if the chains have converged. ``ess`` is the number
    of terms that carry the smaller of the two sums, from 1 to the number of draws.

    Warns where the two sides hardly overlap.

    Parameters
    ----------
    n_samples : int, default=1000
        Draws from either side, 2 or more: so many chains, of which the last state counts. Where a
        base is fitted to them, half of those of the model are used for it and the other half here.
    n_steps : int, default=200
        Sampler steps of each chain (and as many of warm-up, if it tunes itself).
    exact_samples : bool, default=False
        Whether the rows `x` given to :meth:`estimate` are independent draws of the model, and used
        as they are, all of them.

    References
    ----------
    Meng and Wong (1996), "Simulating ratios of normalizing constants via a simple identity",
    Statistica Sinica 6, eq. 4.1. Bennett (1976), "Efficient estimation of free energy differences
    from Monte Carlo data", Journal of Computational Physics 22(2). Geyer (1994), "Estimating
    normalizing constants and reweighting mixtures". Fruehwirth-Schnatter (2004), "Estimating
    marginal likelihoods for mixture and Markov switching models using bridge sampling techniques",
    Econometrics Journal 7(1), eq. 18 (the error). Overstall and Forster (2010), "Default Bayesian
    model determination methods for generalised linear mixed models", CSDA 54(12) (draws that were
    fitted to are not used again).

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
    >>> found = BridgeSampling(n_steps=30).estimate(Wide())
    >>> abs(found.value - math.log(8 * math.pi)) < 4 * found.std_error < 0.2
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
        """Bridge `base` and the model.

        Chains start at rows drawn from `x`, a tensor or several by name, or at draws of the base.
        The default `base` is the energy's, or uniform, or on unbounded real rows a normal
        distribution fitted to half of the model's draws. The default `sampler` is Gibbs where
        there are blocks, GibbsWithGradients on other discrete rows, and HMC that tunes itself.
        """
        whole_number("n_samples", self.n_samples, 2)
        self.check(energy)
        rows = rows_of(energy, x)
        kind = like(energy, rows)
        generator = generator_for(generator, kind.device)
        first = default_base(energy) if base is None else base
        check_base(energy, first, rows)
        first = first.to(kind.device, kind.dtype)
        draws = self._model_draws(energy, first, sampler, rows, generator)
        if is_fitted(energy, base):
            first, draws = default_base(energy, draws[::2]), draws[1::2]
        ends = log_weights(energy, first, draws, CHUNK)
        if ends.min() == -math.inf:
            raise ValueError("Some of the model's draws have infinite energy: they are no draws.")
        others = log_weights(energy, first, first.sample(self.n_samples, generator), CHUNK)
        if others.max() == -math.inf:
            raise ValueError("No draw of the base is where the model has mass: pass another base.")
        found = bridge(ends, others)
        _warn_unless_overlapping(found, min(len(ends), len(others)))
        nan = math.nan
        return LogPartition(
            found.value, found.std_error, nan, nan, "heuristic", found.ess, reason=NO_BOUNDS
        )

    def _model_draws(
        self,
        energy: Energy,
        base: Any,
        sampler: Sampler | None,
        rows: Tensor | None,
        generator: torch.Generator,
    ) -> Tensor:
        """Rows as they are, or the ends of chains from them."""
        if self.exact_samples:
            if rows is None or len(rows) < 4:
                raise ValueError("exact_samples=True needs 4 draws of the model or more, as x.")
            return rows
        sampler = default_sampler(energy) if sampler is None else sampler
        if not sampler.exact:
            raise ValueError(
                f"Bridge sampling needs draws of the model, and {sampler} is biased. Pass one that "
                "accepts or rejects its steps."
            )
        if rows is None:
            rows = base.sample(self.n_samples, generator)
            rows = rows[energy.domain.contains(rows)]
            if len(rows) == 0:
                raise ValueError("No draw of the base is inside the energy's domain: pass rows x.")
        index = torch.randint(
            len(rows), (self.n_samples,), generator=generator, device=generator.device
        )
        with torch.no_grad():
            state, _ = sampler.run(energy, rows[index], self.n_steps, generator)
        return state.x


def _warn_unless_overlapping(found: Bridge, n: int) -> None:
    if found.ess < min(10, n / 10):
        warnings.warn(
            f"Base and model hardly overlap: {found.ess:.1f} of {n} draws carry the estimate, and "
            "its std_error is too small. Pass a base nearer to the model, or use AIS.",
            ConvergenceWarning,
            stacklevel=3,  # the caller of `estimate`
        )
