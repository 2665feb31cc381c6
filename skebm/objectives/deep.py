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

    Of a deep Boltzmann machine the rows are (x, h2, h4, ...), of which x alone is known. Where the
    hidden entries are their means by mean field, the gradient is that of the variational bound of
    log p(x), with the expectation under the model from chains; what held-out rows say is a bound as
    well, which only the function knows.

    Parameters
    ----------
    energy : Energy
    sampler : Sampler
    chains : ChainPolicy
    assess : callable
        ``assess(energy, x, weight, generator)`` has the mean log-likelihood ratio of rows to the
        base as ``gain``, in nats.
    **options
        Those of :class:`ContrastiveDivergence`.

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
    >>> objective.held_out(Batch(torch.ones(4, 5)), None, generator)
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
    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log-likelihood ratio of rows to the base, as the function estimates it."""
        found = self.assess(self.energy, batch.x, batch.weight, generator)
        return batch.x.new_tensor(-found.gain)
