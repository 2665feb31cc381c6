"""Contrastive divergence of models whose rows have hidden entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, Energy, Sampler
from skebm.objectives.contrastive.divergence import ContrastiveDivergence
from skebm.samplers import ChainPolicy


class AssessedDivergence(ContrastiveDivergence):
    r"""Contrastive divergence whose held-out rows are judged by a given function.

    For a deep Boltzmann machine, the rows are (x, h2, h4, ...), of which only x is observed. If the
    hidden entries are set to their mean-field means, the gradient is that of the variational bound
    on log p(x), with the expectation under the model estimated from chains. The value for held-out
    rows is then a bound as well, which only `assess` can compute.

    Parameters
    ----------
    energy : Energy
    sampler : Sampler
    chains : ChainPolicy
    assess : callable
        ``assess(energy, x, weight, generator)`` returns an object whose ``gain`` is the mean
        log-likelihood ratio of the rows to the base, in nats.
    **options
        Further arguments of :class:`ContrastiveDivergence`.

    References
    ----------
    Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from types import SimpleNamespace
    >>> from skebm.base import Batch
    >>> from skebm.energies import BernoulliDBM
    >>> from skebm.objectives import AssessedDivergence
    >>> from skebm.samplers import Gibbs, Persistent
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliDBM((3, 2, 2), generator=generator)
    >>> def assess(energy, x, weight, generator):
    ...     return SimpleNamespace(gain=0.5)
    >>> objective = AssessedDivergence(energy, Gibbs(), Persistent(n_steps=1), assess)
    >>> objective.validation_loss(Batch(torch.ones(4, 5)), None, generator)
    tensor(-0.5000)
    """

    def __init__(
        self,
        energy: Energy,
        sampler: Sampler,
        chains: ChainPolicy,
        assess: Callable[..., Any],
        **options: Any,
    ):
        super().__init__(energy, sampler, chains, **options)
        self.assess = assess

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log-likelihood ratio of rows to the base, as `assess` estimates it."""
        assessment = self.assess(self.energy, batch.x, batch.weight, generator)
        return batch.x.new_tensor(-assessment.gain)
