r"""Learning of restricted Boltzmann machines of rows and classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from skebm.base import Batch, Centering, Loss, Penalty, Sampler
from skebm.energies import ClassRBM
from skebm.energies.rbm.classes import ClassGradient
from skebm.objectives.contrastive.divergence import ContrastiveDivergence
from skebm.objectives.joint.likelihood import UNKNOWN, ClassObjective
from skebm.objectives.likelihood import (
    LikelihoodState,
    pack_offsets,
    share_of,
    unpack_offsets,
)
from skebm.samplers import ChainPolicy


class ClassLikelihood(ClassObjective):
    r"""Cross-entropy plus the negative log-likelihood of rows, for a classification RBM.

    .. math:: L = -\mathbb E \log p(y \mid x) - \lambda\, \mathbb E \log p(x)

    The first term and its gradient are exact; the gradient of the second is that of contrastive
    divergence, with the bias of its chains. With :math:`\lambda = 0` training is discriminative,
    and no chains are run. With :math:`\lambda = 1` the loss of labelled rows is
    :math:`-\log p(x, y)`, that is, training is generative. Values in between give a hybrid [1]_:
    with :math:`\lambda = \alpha / (1 + \alpha)` the loss is
    :math:`-\log p(y \mid x) - \alpha \log p(x, y)` divided by :math:`1 + \alpha`. Rows with target
    -1 are unlabelled and contribute to the second term alone.

    Parameters
    ----------
    energy : ClassRBM
    sampler : Sampler
    chains : ChainPolicy
    generative_weight : float, default=1
        :math:`\lambda \ge 0`.
    class_weight : Tensor of shape (K,) or None, default=None
        Weights of the classes in the cross-entropy.
    centering : Centering or None, default=None
    penalty : Penalty or None, default=None
        Penalty on the weights of rows and classes, without a sparsity target.

    References
    ----------
    .. [1] Larochelle, Mandel, Pascanu and Bengio (2012), "Learning algorithms for the
       classification restricted Boltzmann machine", JMLR 13, equations 4, 7, 10 and 12.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import ClassRBM, MixedRBM
    >>> from skebm.objectives import ClassLikelihood
    >>> from skebm.samplers import Gibbs, Persistent
    >>> generator = torch.Generator().manual_seed(0)
    >>> rbm = MixedRBM(IndependentBernoulli(torch.zeros(4)), 2, generator=generator)
    >>> energy = ClassRBM(rbm, 3, generator=generator, scale=0.0)
    >>> objective = ClassLikelihood(energy, Gibbs(), Persistent(n_chains=5))
    >>> batch = Batch(torch.eye(4), torch.tensor([0, 1, 2, -1]))
    >>> state = objective.start(batch, generator)
    >>> logs = objective.monitor(batch, state, generator)
    >>> round(logs["cross_entropy"].item(), 4)  # log 3 of three of the four rows
    0.824
    """

    def __init__(
        self,
        energy: ClassRBM,
        sampler: Sampler,
        chains: ChainPolicy,
        *,
        generative_weight: float = 1.0,
        class_weight: Tensor | None = None,
        centering: Centering | None = None,
        penalty: Penalty | None = None,
    ):
        if not isinstance(energy, ClassRBM):
            raise TypeError(f"The energy must be a ClassRBM, got {type(energy).__name__}.")
        how: dict[str, Any] = {"centering": centering, "penalty": penalty}
        of_rows = ContrastiveDivergence(energy, sampler, chains, **how)
        super().__init__(of_rows, generative_weight, class_weight)
        self.centering, self.penalty = centering, penalty
        self._gradient: ClassGradient = energy.contrast_gradient(centering, penalty)

    def logits(self, x: Tensor) -> Tensor:
        """log p(x, y) up to a function of x, (n, K)."""
        logits: Tensor = self.energy.class_logits(x)
        return logits

    # ---------------------------------------------------------------- the loss

    def start(self, batch: Batch, generator: torch.Generator) -> Any:
        """Initialise the offsets and, if chains are run, the chains."""
        if self.generative_weight:
            return self.generative.start(batch, generator)
        with torch.no_grad():
            return LikelihoodState(self._gradient.start(batch.x, batch.weight))

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch, after its chains have moved."""
        value = self.cross_entropy_of(self.logits(batch.x), batch) + self._penalty()
        if self.generative_weight:
            x, state = self.generative.phases(batch, state, generator)
            assert state.chain is not None
            f = self.energy.parametric_energy(torch.cat([x, state.chain.x]))
            contrast = self.generative.contrast(f, batch, state)
            value = value + self.generative_weight * contrast
        return Loss(value, state)

    def _penalty(self) -> Tensor | float:
        if self.penalty is None:
            return 0.0
        nothing = self.energy.weight.new_zeros(0)
        both = (self.energy.weight, self.energy.class_weight)
        return sum(self.penalty.value(weight, nothing, nothing) for weight in both)

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write the gradient of rows, classes and chains, from one matrix product."""
        x, energy, target = batch.x, self.energy, self._targets(batch)
        negatives, source = self.generative.negatives, None
        if self.generative_weight:
            state = negatives.move(energy, x, batch.weight, state, generator)
            assert state.chain is not None
            chain = state.chain.x
            sign, share = negatives.signs(batch, chain, None)
            sign = self.generative_weight * sign
            source = generator if negatives.draws_hidden else None
        else:
            chain, share = x[:0], share_of(batch)
            sign = torch.zeros_like(share)
        offsets, layer, log_share = self._gradient.write_supervised(
            x, chain, sign, share, target, state.offsets, source
        )
        state = state._replace(offsets=offsets)  # of either kind of state
        if layer is not None:
            assert state.chain is not None
            state = state._replace(chain=state.chain._replace(aux=layer))
        value = None
        if not self.generative_weight and target is not None:
            value = -(target * log_share).sum() + self._penalty()
        return Loss(value, state)

    def _targets(self, batch: Batch) -> Tensor | None:
        """Weights of rows and classes in the cross-entropy, (n, K)."""
        if batch.y is None:
            return None
        known = batch.y != UNKNOWN
        weight = share_of(batch) * known
        if self.class_weight is not None:
            weight = weight * self.class_weight[batch.y.clamp_min(0)]
        targets: Tensor = weight[:, None] * one_hot(batch.y.clamp_min(0), self.energy.n_classes)
        return targets

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Cross-entropy of the labelled rows, exact, without the likelihood of rows."""
        return self.cross_entropy_of(self.logits(batch.x), batch)

    # ---------------------------------------------------------------- state without chains

    def snapshot(self, state: Any) -> Any:
        return super().snapshot(state) if self.generative_weight else state

    def state_after_roll_back(
        self, state: Any, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> Any:
        if not self.generative_weight:
            return state
        return super().state_after_roll_back(state, batch, generator, tries)

    def over_ranks(self, state: Any, rows: Any, mean: Any) -> Any:
        return super().over_ranks(state, rows, mean) if self.generative_weight else state

    def advice(self, state: Any) -> str:
        return super().advice(state) if self.generative_weight else ""

    def pack(self, state: Any) -> dict[str, Tensor | None]:
        return super().pack(state) if self.generative_weight else pack_offsets(state)

    def unpack(self, packed: dict[str, Tensor | None]) -> Any:
        if self.generative_weight:
            return super().unpack(packed)
        return unpack_offsets(packed, self.centering)
