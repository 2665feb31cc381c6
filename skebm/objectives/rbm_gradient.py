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


class Gradient(NamedTuple):
    """With respect to the weights (H, d), the visible (d,) and the hidden (H,) biases."""

    weight: Tensor
    visible: Tensor
    hidden: Tensor


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
            (pull @ x).lerp_(self.visible, 1 - rate), (pull @ h).lerp_(self.hidden, 1 - rate)
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
        self, energy: BernoulliRBM, x: Tensor, h: Tensor, share: Tensor
    ) -> Gradient | None:
        """Plain gradient of the penalties, or None without any."""
        if not (self.l1 or self.l2 or self.sparsity_target is not None):
            return None
        weight = energy.weight
        grad = self.l2 * weight + self.l1 * weight.sign()
        visible = torch.zeros_like(weight[0])
        if self.sparsity_target is None:
            return Gradient(grad, visible, torch.zeros_like(weight[:, 0]))
        share = _unit(share)
        mean, target = _inside(share @ h), self.sparsity_target
        slope = self.sparsity_cost * ((1 - target) / (1 - mean) - target / mean)  # (H,)
        delta = share[:, None] * h * (1 - h) * slope  # (n, H): gradient of the hidden logits
        return Gradient(grad.addmm_(delta.t(), x), visible, delta.sum(0))


def _unit(share: Tensor) -> Tensor:
    """Weights that sum to 1, or to 0 where all are 0."""
    return share / share.sum().clamp_min(torch.finfo(share.dtype).tiny)


def _inside(p: Tensor) -> Tensor:
    """Keep a mean activation off 0 and 1, where the Kullback-Leibler divergence is infinite."""
    return p.clamp(1e-6, 1 - 1e-6)


def center(gradient: Gradient, offsets: Offsets | None) -> Gradient:
    r"""Turn a plain gradient, in place, into that of the centred weights.

    :math:`\tilde G = G - g_c \mu^\top - \lambda g_b^\top`: what gradient descent on
    :math:`(h - \lambda)^\top W (x - \mu)` induces. The biases follow the reparametrisation:
    :math:`\tilde g_b = g_b - \tilde G^\top \lambda` and :math:`\tilde g_c = g_c - \tilde G \mu`.

    References
    ----------
    Melchior, Fischer and Wiskott (2016), "How to center deep Boltzmann machines", JMLR 17, alg. 1.
    """
    if offsets is None:
        return gradient
    weight, visible, hidden = gradient
    left = torch.stack([hidden, offsets.hidden], 1)  # (H, 2)
    weight.addmm_(left, torch.stack([offsets.visible, visible]), alpha=-1)
    visible.addmv_(weight.t(), offsets.hidden, alpha=-1)
    hidden.addmv_(weight, offsets.visible, alpha=-1)
    return gradient


def signed_products(sign: Tensor, rows: Tensor, h: Tensor, offsets: Offsets | None) -> Gradient:
    """Sum of signs (n,) times products of hidden means (n, H) and rows (n, d), both overwritten.

    The signs sum to 0. Centred where there are offsets, as by :func:`center`; to centre the factors
    is cheaper than to centre their products, and does not cancel.
    """
    if offsets is None:
        visible, hidden = sign @ rows, sign @ h
        return Gradient(h.t().mul_(sign) @ rows, visible, hidden)
    rows.sub_(offsets.visible)
    left = h.sub_(offsets.hidden).t().mul_(sign)  # (H, n)
    # Associated so that the vectors meet the n rows and not the H x d gradient.
    visible = torch.addmv(sign, h, offsets.hidden, alpha=-1) @ rows
    hidden = left @ torch.addmv(torch.ones_like(sign), rows, offsets.visible, alpha=-1)
    return Gradient(left @ rows, visible, hidden)


def write_gradient(
    energy: BernoulliRBM,
    gradient: Gradient,
    penalty: Gradient | None,
    offsets: Offsets | None,
    power: float = 0.0,
) -> None:
    """Write ``.grad``: a gradient already centred, plus a plain one of penalties that is not.

    Preconditioned by `power` where that is not 0.
    """
    if penalty is not None:
        for total, part in zip(gradient, center(penalty, offsets), strict=True):
            total += part
    if power and offsets is not None:
        gradient = preconditioned(gradient, offsets, power)
    weight, visible_bias, hidden_bias = energy.tensors
    weight.grad = gradient.weight.contiguous()  # L-BFGS flattens it
    visible_bias.grad = gradient.visible
    hidden_bias.grad = gradient.hidden


def preconditioned(gradient: Gradient, offsets: Offsets, power: float) -> Gradient:
    r"""Divide a centred gradient by powers of the units' variances.

    With :math:`v = \mu (1 - \mu)` the variance of a unit of mean :math:`\mu`, its offset, that of
    the weights is divided by :math:`(4 v_j)^p (4 v_i)^p`, that of centred biases by
    :math:`(4 v)^p`. Fair coins are left as they are; 1 is a diagonal natural gradient, 1/2 the same
    with less of its noise at rare units.
    """
    weight, visible, hidden = gradient
    mu, lam = offsets
    columns, rows = _spread(mu) ** -power, _spread(lam) ** -power
    visible = torch.addmv(visible, weight.t(), lam) * columns
    hidden = torch.addmv(hidden, weight, mu) * rows
    weight.mul_(columns).mul_(rows[:, None])
    visible.addmv_(weight.t(), lam, alpha=-1)
    hidden.addmv_(weight, mu, alpha=-1)
    return Gradient(weight, visible, hidden)


def _spread(mean: Tensor) -> Tensor:
    """Variance of binary units over that of a fair coin, at least that of a mean of 1e-4."""
    return (4 * mean * (1 - mean)).clamp_min(4e-4)


def runaway(
    logs: dict[str, float], before: dict[str, float] | None, n_rows: int, domain: Binary, loss: str
) -> str | None:
    """Why the training of a binary model has run away, or None.

    Three signs. `loss`, the energy gap or the negative log-likelihood, above the logarithm of the
    number of states, and risen by a nat: samples have log p <= 0, so the data are then less likely
    than under a uniform distribution (under ten rows may just be rare ones, and chains that move
    change what a bad start looks like). A weight that no finite table supports. A single step that
    changes the energies of rows against each other so much that chains cannot follow: on digits and
    MNIST likelihoods fell below those of independent columns from 3 % of that logarithm on.
    """
    uniform, before = domain.log_n_states, before or {}
    if n_rows >= 10 and logs[loss] > max(uniform, before.get(loss, -math.inf)) + 1:
        name = loss.replace("_", " ")
        return f"{name} {logs[loss]:.3g} nats, worse than a uniform distribution"
    if logs["largest_weight"] > max(LARGEST_WEIGHT, before.get("largest_weight", 0.0)):
        return f"largest weight {logs['largest_weight']:.3g}"
    limit = max(1.0, 0.03 * uniform)
    change = logs.get("energy_change", 0.0)
    if change > limit:
        return f"one step changed the rows' energies by {change:.3g} nats, more than {limit:.3g}"
    return None
