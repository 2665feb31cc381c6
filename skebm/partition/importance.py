"""log Z by importance sampling from a distribution that is known."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler
from skebm.base.checks import whole_number
from skebm.partition.proper import WeighingMethod
from skebm.partition.support import (
    NO_UPPER,
    check_base,
    check_delta,
    default_base,
    generator_for,
    like,
    rows_of,
)
from skebm.partition.weights import log_weights, pareto_k, summarise

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
    >>> from skebm.noise import Gaussian
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
