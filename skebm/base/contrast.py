"""Gradients of a contrast of data and chains that an energy writes itself; centring, penalties."""

from __future__ import annotations

import abc
from numbers import Real
from typing import NamedTuple

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_scalar
from torch import Tensor

from skebm.base.processes import mean_over_ranks


class Offsets(NamedTuple):
    """Centres of the visible (d,) and hidden (H,) units, moving averages over the data."""

    visible: Tensor
    hidden: Tensor

    def moving_average(self, x: Tensor, h: Tensor, share: Tensor, rate: float) -> Offsets:
        """Moved towards the batch's weighted means; `share` = weight / batch size, (n,)."""
        visible, hidden = mean_over_ranks(share @ x, share @ h)
        return Offsets(visible.lerp_(self.visible, 1 - rate), hidden.lerp_(self.hidden, 1 - rate))


class ContrastGradient(abc.ABC):
    r"""How an energy writes the gradient of a contrast itself, where autograd would be wasteful.

    The contrast is :math:`-\sum_i s_i E(x_i)` over the rows of a batch and of the chains. The signs
    :math:`s_i` sum to zero: that of a row of data is minus its weight in the mean over the data,
    and that of a chain is its weight in the mean over the model. An energy returns an instance from
    :meth:`Energy.contrast_gradient`. Results must be the same in training and in eval mode, because
    nobody sets the mode for it.
    """

    @abc.abstractmethod
    def start(self, x: Tensor, weight: Tensor | None) -> Offsets | None:
        """Offsets before the first batch, from representative rows (n, d); None if unused."""

    @abc.abstractmethod
    def write(
        self,
        x: Tensor,
        chain: Tensor,
        sign: Tensor,
        share: Tensor,
        offsets: Offsets | None,
        generator: torch.Generator | None,
    ) -> tuple[Offsets | None, Tensor | None]:
        """Write ``.grad`` of every parameter: the centred gradient of contrast plus penalties.

        Parameters
        ----------
        x, chain : Tensor of shape (n, d) and (m, d)
            Rows of the data and of the chains; not changed.
        sign : Tensor of shape (n + m,)
            Signs of the rows and of the chains, in this order.
        share : Tensor of shape (n,)
            Weights of the data, divided by the size of the batch.
        offsets : Offsets or None
            Offsets so far; not changed.
        generator : torch.Generator or None
            Generator for a hidden layer that is drawn given the chains, from which their next
            Gibbs step can start; None if no such layer is needed.

        Returns
        -------
        tuple of (Offsets or None, Tensor of shape (m, H) or None)
            Offsets for the next batch; the hidden layer.
        """


class Centering(BaseEstimator):
    r"""Centre the units of a restricted Boltzmann machine in its gradient.

    Gradient descent then follows the weights of :math:`(h - \lambda)^\top W (x - \mu)`, which has
    the same fixed points, is better conditioned, and treats data with zeros and ones exchanged in
    the same way. The offsets :math:`\mu` and :math:`\lambda` are moving averages of the units'
    means over the data.

    Parameters
    ----------
    rate : float in [0, 1], default=0.01
        Rate of the moving averages, per batch.
    precondition : float in [0, 1], default=0
        Exponent p: the centred gradient is divided by :math:`(4 v)^p` of its unit, that of a weight
        by the factors of both of its units, where :math:`4 v = 4 \mu (1 - \mu)` is the variance of
        a unit relative to that of a fair coin. 1 is a diagonal natural gradient, 1/2 the same with
        less noise at units that are rarely on.

    References
    ----------
    Melchior, Fischer and Wiskott (2016), "How to center deep Boltzmann machines", JMLR 17(99),
    algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.objectives import Centering, ContrastiveDivergence
    >>> from skebm.samplers import FromData, Gibbs
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(3, 2, generator=generator)
    >>> objective = ContrastiveDivergence(energy, Gibbs(), FromData(), centering=Centering(0.05))
    >>> objective.start(Batch(torch.eye(3)), generator).offsets.visible
    tensor([0.3333, 0.3333, 0.3333])
    """

    def __init__(self, rate: float = 0.01, precondition: float = 0.0):
        self.rate = rate
        self.precondition = precondition

    def check(self) -> None:
        """Raise `TypeError` or `ValueError` unless the parameters are numbers in [0, 1]."""
        for name in ("rate", "precondition"):
            check_scalar(getattr(self, name), f"{name} of Centering", Real, min_val=0, max_val=1)


class Penalty(BaseEstimator):
    r"""Penalties added to the loss of a restricted Boltzmann machine.

    .. math::
        l_1 \lVert W \rVert_1 + \tfrac{l_2}{2} \lVert W \rVert^2
        + \gamma \sum_j \mathrm{KL}(\rho \,\Vert\, \bar h_j)

    with W the weights and :math:`\bar h_j` the mean activation of hidden unit j over the batch.

    The loss is the mean negative log-likelihood of a row, in nats, whatever the learning rule,
    learning rate and number of rows: penalties have the scale of the likelihood of one row, so that
    ``l2 = s / n`` is a normal prior of precision s on every weight. Centring and preconditioning
    multiply the gradient of loss and penalties alike, which keeps the optimum. Biases are not
    penalised.

    Parameters
    ----------
    l1, l2 : float, default=0
        Non-negative.
    sparsity_target : float in (0, 1) or None, default=None
        :math:`\rho`; None switches the last term off.
    sparsity_cost : float, default=0.1
        :math:`\gamma`, non-negative.

    References
    ----------
    Hinton (2012), "A practical guide to training restricted Boltzmann machines", sections 10-11.
    Lee, Ekanadham and Ng (2008), "Sparse deep belief net model for visual area V2", NeurIPS.

    Examples
    --------
    >>> import torch
    >>> from skebm.objectives import Penalty
    >>> weight, h = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5], [0.7]])
    >>> Penalty(l1=0.1, l2=1.0).value(weight, h, torch.ones(2))
    tensor(2.8000)
    """

    def __init__(
        self,
        l1: float = 0.0,
        l2: float = 0.0,
        sparsity_target: float | None = None,
        sparsity_cost: float = 0.1,
    ):
        self.l1 = l1
        self.l2 = l2
        self.sparsity_target = sparsity_target
        self.sparsity_cost = sparsity_cost

    def check(self) -> None:
        """Raise `TypeError` or `ValueError` for numbers out of their range."""
        for name in ("l1", "l2", "sparsity_cost"):
            check_scalar(getattr(self, name), f"{name} of Penalty", Real, min_val=0)
        if self.sparsity_target is not None:
            inside = {"min_val": 0, "max_val": 1, "include_boundaries": "neither"}
            check_scalar(self.sparsity_target, "sparsity_target of Penalty", Real, **inside)

    def value(self, weight: Tensor, h: Tensor, share: Tensor) -> Tensor:
        """The penalty, a differentiable scalar.

        Parameters
        ----------
        weight : Tensor of shape (H, d)
        h : Tensor of shape (n, H)
            Means of the hidden units.
        share : Tensor of shape (n,)
            Weights of the rows on any scale.
        """
        value = self.l1 * weight.abs().sum() + 0.5 * self.l2 * weight.square().sum()
        if self.sparsity_target is not None:
            mean, target = _inside(_normalise(share) @ h), self.sparsity_target
            entropy = torch.xlogy(torch.as_tensor(target), target) + torch.xlogy(
                torch.as_tensor(1 - target), 1 - target
            )
            cross = target * mean.log() + (1 - target) * torch.log1p(-mean)
            value = value + self.sparsity_cost * (entropy - cross).sum()
        return value

    def gradient(
        self, weight: Tensor, x: Tensor, h: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Gradient of the penalty with respect to the weights (H, d) and the hidden biases (H,).

        The means h of binary hidden units belong to the rows x (n, d); they are the logistic
        function of W x plus a bias. None stands for a gradient of zero.
        """
        grad = self.l2 * weight + self.l1 * weight.sign()
        of_logits = self.gradient_of_logits(h, share)
        if of_logits is None:
            return grad, None
        return grad.addmm_(of_logits.t(), x), of_logits.sum(0)

    def gradient_of_logits(self, h: Tensor, share: Tensor) -> Tensor | None:
        """The gradient with respect to the log-odds of hidden means h, (n, H); None where it is 0.

        `share` are the weights of the rows on any scale.
        """
        if self.sparsity_target is None:
            return None
        share = _normalise(share)
        (mean,) = mean_over_ranks(share @ h)
        mean, target = _inside(mean), self.sparsity_target
        outer = self.sparsity_cost * ((1 - target) / (1 - mean) - target / mean)  # (H,)
        return share[:, None] * h * (1 - h) * outer


def means_of(weight: Tensor | None, *layers: Tensor) -> list[Tensor]:
    """Weighted means of the rows of (n, ...) tensors; 0 where all weights are."""
    if weight is None:
        weight = layers[0].new_ones(len(layers[0]))
    share = _normalise(weight)
    return [share @ layer for layer in layers]


def _normalise(share: Tensor) -> Tensor:
    """Weights that sum to 1, or to 0 where all are 0."""
    return share / share.sum().clamp_min(torch.finfo(share.dtype).tiny)


def _inside(p: Tensor) -> Tensor:
    """Keep a mean activation off 0 and 1, where the Kullback-Leibler divergence is infinite."""
    return p.clamp(1e-6, 1 - 1e-6)
