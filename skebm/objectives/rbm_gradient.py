"""The gradient of a Bernoulli RBM written by hand: centring and penalties, shared by objectives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, Binary
from skebm.energies import BernoulliRBM

# No finite table supports log-odds of this size: a weight beyond it is a runaway.
LARGEST_WEIGHT = 100.0


class Offsets(NamedTuple):
    """Centres of the visible (d,) and hidden (H,) units, moving averages over the data."""

    visible: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, energy: BernoulliRBM, batch: Batch) -> Offsets:
        """Means of a batch."""
        weight = batch.x.new_ones(len(batch.x)) if batch.weight is None else batch.weight
        share = _unit(weight)
        return cls(share @ batch.x, share @ energy.hidden(batch.x).mean)

    def drift(self, x: Tensor, h: Tensor, pull: Tensor, rate: float) -> Offsets:
        """Move towards the batch's weighted means; `pull` = weight / batch size, (n,)."""
        return Offsets(
            torch.addmv(self.visible, x.t(), pull, beta=1 - rate, alpha=rate),
            torch.addmv(self.hidden, h.t(), pull, beta=1 - rate, alpha=rate),
        )


@dataclass(frozen=True)
class Regulariser:
    r"""Penalties added to the loss of an RBM.

    .. math::
        l_1 \lVert W \rVert_1 + \tfrac{l_2}{2} \lVert W \rVert^2
        + \lambda \sum_j \mathrm{KL}(\rho \,\Vert\, \bar h_j)

    with :math:`\bar h_j` the mean activation of hidden unit j over the batch.

    Parameters
    ----------
    l1, l2 : float, default=0
    sparsity_target : float in (0, 1) or None, default=None
        :math:`\rho`; None switches the last term off.
    sparsity_cost : float, default=0
        :math:`\lambda`.

    References
    ----------
    Hinton (2012), "A practical guide to training restricted Boltzmann machines", sections 10-11.
    Lee, Ekanadham and Ng (2008), "Sparse deep belief net model for visual area V2".
    """

    l1: float = 0.0
    l2: float = 0.0
    sparsity_target: float | None = None
    sparsity_cost: float = 0.0

    def value(self, energy: BernoulliRBM, x: Tensor, share: Tensor) -> Tensor:
        """Penalty, a differentiable scalar; `share` (n,) are the rows' weights on any scale."""
        weight = energy.weight
        value = self.l1 * weight.abs().sum() + 0.5 * self.l2 * weight.square().sum()
        if self.sparsity_target is not None:
            mean, target = _inside(_unit(share) @ energy.hidden(x).mean), self.sparsity_target
            entropy = torch.xlogy(torch.as_tensor(target), target) + torch.xlogy(
                torch.as_tensor(1 - target), 1 - target
            )
            cross = target * mean.log() + (1 - target) * torch.log1p(-mean)
            value = value + self.sparsity_cost * (entropy - cross).sum()
        return value

    def gradient(
        self, weight: Tensor, x: Tensor, h: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Gradient for the weights (H, d) and the hidden biases (H,), or None without penalties."""
        if not (self.l1 or self.l2 or self.sparsity_target is not None):
            return None
        grad = self.l2 * weight + self.l1 * weight.sign()
        if self.sparsity_target is None:
            return grad, torch.zeros_like(grad[:, 0])
        share = _unit(share)
        mean, target = _inside(share @ h), self.sparsity_target
        slope = self.sparsity_cost * ((1 - target) / (1 - mean) - target / mean)  # (H,)
        delta = share[:, None] * h * (1 - h) * slope  # (n, H): gradient of the hidden logits
        return grad.addmm_(delta.t(), x), delta.sum(0)


def _unit(share: Tensor) -> Tensor:
    """Weights that sum to 1, or to 0 where all are 0."""
    return share / share.sum().clamp_min(torch.finfo(share.dtype).tiny)


def _inside(p: Tensor) -> Tensor:
    """Keep a mean activation off 0 and 1, where the Kullback-Leibler divergence is infinite."""
    return p.clamp(1e-6, 1 - 1e-6)


def center(weight: Tensor, visible: Tensor, hidden: Tensor, offsets: Offsets | None) -> Tensor:
    r"""Turn a plain gradient for the weights, in place, into that of the centred weights.

    :math:`\tilde G = G - g_c \mu^\top - \lambda g_b^\top`: what gradient descent on
    :math:`(h - \lambda)^\top W (x - \mu)` induces. The same comes out of centred products.
    """
    if offsets is None:
        return weight
    left = torch.stack([hidden, offsets.hidden], 1)  # (H, 2)
    return weight.addmm_(left, torch.stack([offsets.visible, visible]), alpha=-1)


def write_gradient(
    energy: BernoulliRBM,
    weight: Tensor,
    visible: Tensor,
    hidden: Tensor,
    offsets: Offsets | None,
    penalty: tuple[Tensor, Tensor] | None,
    precondition: float = 0.0,
) -> None:
    r"""Write ``.grad``, centred where there are offsets.

    The biases follow the reparametrisation: :math:`\tilde g_b = g_b - \tilde G^\top \lambda` and
    :math:`\tilde g_c = g_c - \tilde G \mu`.

    Parameters
    ----------
    energy : BernoulliRBM
    weight : Tensor of shape (H, d)
        Gradient for the weights, already centred; overwritten.
    visible, hidden : Tensor of shape (d,) and (H,)
        Plain gradients for the biases; overwritten.
    offsets : Offsets or None
        None writes the plain gradient.
    penalty : tuple of Tensor or None
        What :meth:`Regulariser.gradient` returned.
    precondition : float, default=0
        Exponent p: the centred gradients are divided by :math:`(4 v_j)^p (4 v_i)^p` and those of
        the biases by :math:`(4 v_i)^p`, with :math:`v = \mu (1 - \mu)` the variance of a unit of
        mean :math:`\mu`, its offset. Fair coins are left as they are; 1 is a diagonal natural
        gradient, 1/2 the same without its noise at rare units.

    References
    ----------
    Melchior, Fischer and Wiskott (2016), "How to center deep Boltzmann machines", JMLR 17, alg. 1.
    """
    if penalty is not None:
        weight += center(penalty[0], torch.zeros_like(visible), penalty[1], offsets)
        hidden += penalty[1]
    if precondition and offsets is not None:
        rows, columns = (_spread(offset) ** -precondition for offset in offsets[::-1])
        weight.mul_(columns).mul_(rows[:, None])
        visible, hidden = visible * columns, hidden * rows
    if offsets is not None:
        visible = torch.addmv(visible, weight.t(), offsets.hidden, alpha=-1)
        hidden = torch.addmv(hidden, weight, offsets.visible, alpha=-1)
    energy.weight.grad = weight.contiguous()  # L-BFGS flattens it
    energy.visible_bias.grad = visible
    energy.hidden_bias.grad = hidden


def _spread(mean: Tensor) -> Tensor:
    """Variance of binary units over that of a fair coin, at least that of a mean of 1e-4."""
    return (4 * mean * (1 - mean)).clamp_min(4e-4)


def runaway(
    logs: dict[str, float], before: dict[str, float] | None, n_rows: int, domain: Binary, loss: str
) -> str | None:
    """Why the training of a binary model has run away, or None.

    Three signs. `loss`, the energy gap or the negative log-likelihood, above the logarithm of the
    number of states, and risen: samples have log p <= 0, so the data are then less likely than
    under a uniform distribution (under ten rows may just be rare ones). A weight that no finite
    table supports. A single step that changes the energies of rows against each other so much that
    chains cannot follow: on digits and MNIST likelihoods fell below those of independent columns
    from 3 % of that logarithm on.
    """
    uniform, before = domain.log_n_states, before or {}
    if n_rows >= 10 and logs[loss] > max(uniform + 1, before.get(loss, -math.inf)):
        name = loss.replace("_", " ")
        return f"{name} {logs[loss]:.3g} nats, worse than a uniform distribution"
    if logs["largest_weight"] > max(LARGEST_WEIGHT, before.get("largest_weight", 0.0)):
        return f"largest weight {logs['largest_weight']:.3g}"
    limit = max(1.0, 0.03 * uniform)
    change = logs.get("energy_change", 0.0)
    if change > limit:
        return f"one step changed the rows' energies by {change:.3g} nats, more than {limit:.3g}"
    return None
