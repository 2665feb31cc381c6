"""The gradient of a binary RBM written by hand: centred, preconditioned, with its penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from skebm.base import Centering, Conditional, ContrastGradient, Offsets, Penalty
from skebm.base.contrast import means_of
from skebm.base.units import Bernoulli

# Variance of a unit, relative to a fair coin's, below which it counts as this: a mean of 1e-4.
LEAST_VARIANCE = 4e-4


class Gradient(NamedTuple):
    """Gradient with respect to the weights (H, d), visible (d,) and hidden (H,) biases."""

    weight: Tensor
    visible: Tensor
    hidden: Tensor


class BinaryLayers(Protocol):
    """What the gradient needs from its energy."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (H, d), visible (d,) and hidden (H,) biases: all parameters there are."""

    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x) of binary units."""


class RBMGradient(ContrastGradient):
    r"""Gradient of a contrast of free energies, from one matrix product over data and chains.

    For :math:`E(x, h) = A(x) - b^\top x - c^\top h - h^\top W x` with A fixed, the gradient of a
    signed sum of free energies is a signed sum of products of rows and hidden means, which are
    centred before they are multiplied.

    Parameters
    ----------
    energy : BernoulliRBM
    centering : Centering or None
    penalty : Penalty or None
    """

    def __init__(self, energy: BinaryLayers, centering: Centering | None, penalty: Penalty | None):
        self.energy, self.centering, self.penalty = energy, centering, penalty
        self._rows: Tensor | None = None

    def start(self, x: Tensor, weight: Tensor | None) -> Offsets | None:
        """Means of the rows, if units are centred.

        If the gradient is divided by variances, the means are shifted away from 0 and 1 a little.
        """
        if self.centering is None:
            return None
        return self.start_at(x, weight, self.energy.hidden(x).mean)

    def start_at(self, x: Tensor, weight: Tensor | None, h: Tensor) -> Offsets:
        """The same, from rows x and their hidden means h (n, H)."""
        assert self.centering is not None
        visible, hidden = means_of(weight, x, h)
        # Share of a fair coin in the first offsets: a column that is constant in the first rows of
        # a stream may wake up, and a variance next to zero would send it far away.
        start_shrinkage = 0.01
        if self.centering.precondition:
            visible = visible * (1 - start_shrinkage) + start_shrinkage / 2
        return Offsets(visible, hidden)

    @torch.no_grad()
    def write(
        self,
        x: Tensor,
        chain: Tensor,
        sign: Tensor,
        share: Tensor,
        offsets: Offsets | None,
        generator: torch.Generator | None,
    ) -> tuple[Offsets | None, Tensor | None]:
        rows, layer = self.rows_and_chains(x, chain), None
        h = self.energy.hidden(rows).mean  # (n + m, H)
        if generator is not None:
            layer = Bernoulli(h[x.shape[0] :]).sample(generator)
        return self.write_means(rows, h, x, sign, share, offsets), layer

    @torch.no_grad()
    def write_means(
        self,
        rows: Tensor,
        h: Tensor,
        x: Tensor,
        sign: Tensor,
        share: Tensor,
        offsets: Offsets | None,
    ) -> Offsets | None:
        """Write the gradient for hidden means h (n + m, H) of data and chains (n + m, d).

        Both are overwritten. `x` are the data, the first n rows; new offsets are returned.
        """
        rest = self.contrast_of_rest(sign, rows, h)
        h_data = h[: x.shape[0]]
        penalty = None if self.penalty is None else self._penalty_gradient(x, h_data, share)
        if offsets is not None:
            assert self.centering is not None
            offsets = offsets.moving_average(x, h_data, share, self.centering.rate)
        at = self.at_statistics(offsets)
        gradient = sum_of_signed_products(
            sign, self.statistics(rows), h, at, self.energy.tensors[0].grad
        )
        self.write_rest(rest, gradient, at)
        self._write(gradient, penalty, at)
        return offsets

    def rows_and_chains(self, x: Tensor, chain: Tensor) -> Tensor:
        """Data and chains, in the same memory at every step, because allocating it is slow."""
        self._rows = memory(self._rows, (len(x) + len(chain), x.shape[1]), x)
        return torch.cat([x, chain], out=self._rows)

    # ---------------------------------------------------------------- other visible units than bits

    def statistics(self, x: Tensor) -> Tensor:
        """What the weights multiply, (n, d); may be overwritten. By default the rows themselves."""
        return x

    def relative_variance(self, mean: Tensor) -> Tensor:
        """Variances of visible units relative to that of a fair coin, bounded below, (d,)."""
        return relative_variance(mean)

    def contrast_of_rest(self, sign: Tensor, x: Tensor, h: Tensor) -> Any:
        """What :meth:`write_rest` needs of the rows; by default nothing."""
        return None

    def write_rest(self, rest: Any, gradient: Gradient, at: Offsets | None) -> None:
        """Write ``.grad`` of parameters besides weights and biases; by default there are none.

        `gradient` is that of the weights and biases, centred at the offsets `at`.
        """

    def at_statistics(self, offsets: Offsets | None) -> Offsets | None:
        """Offsets of the statistics instead of those of the rows."""
        if offsets is None:
            return None
        return Offsets(self.statistics(offsets.visible), offsets.hidden)

    def write_plain(
        self, gradient: Gradient, x: Tensor, h: Tensor, share: Tensor, offsets: Offsets | None
    ) -> Offsets | None:
        """Centre and write a plain gradient, plus that of the penalties; return new offsets.

        `h` are the hidden means of the rows x, and `share` their weights over the batch size.
        """
        if offsets is not None:
            assert self.centering is not None
            offsets = offsets.moving_average(x, h, share, self.centering.rate)
        penalty = self._penalty_gradient(x, h, share)
        self._write(center_gradient(gradient, offsets), penalty, offsets)
        return offsets

    def _penalty_gradient(self, x: Tensor, h: Tensor, share: Tensor) -> Gradient | None:
        if self.penalty is None:
            return None
        weight, visible_bias, hidden_bias = self.energy.tensors
        of_weight, of_hidden = self.penalty.gradient(weight, self.statistics(x), h, share)
        if of_hidden is None:
            of_hidden = torch.zeros_like(hidden_bias)
        return Gradient(of_weight, torch.zeros_like(visible_bias), of_hidden)

    def _write(self, gradient: Gradient, penalty: Gradient | None, at: Offsets | None) -> None:
        """Write ``.grad``: a gradient already centred, plus one of penalties that is not yet.

        `at` are the offsets of the statistics.
        """
        if penalty is not None:
            for total, part in zip(gradient, center_gradient(penalty, at), strict=True):
                total += part
        if at is not None:
            assert self.centering is not None
            if self.centering.precondition:
                columns = self.relative_variance(at.visible)
                gradient = precondition_gradient(gradient, at, columns, self.centering.precondition)
        weight, visible_bias, hidden_bias = self.energy.tensors
        weight.grad = gradient.weight.contiguous()  # L-BFGS flattens it
        visible_bias.grad = gradient.visible
        hidden_bias.grad = gradient.hidden


def memory(kept: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor to write to: the one that was kept, if it is of the shape and the kind of `like`."""
    if kept is None or kept.shape != torch.Size(shape):
        return like.new_empty(shape)
    same = kept.dtype == like.dtype and kept.device == like.device
    return kept if same else like.new_empty(shape)


def center_gradient(gradient: Gradient, offsets: Offsets | None) -> Gradient:
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


def sum_of_signed_products(
    sign: Tensor, rows: Tensor, h: Tensor, offsets: Offsets | None, out: Tensor | None = None
) -> Gradient:
    """Sum of signs (n,) times products of hidden means (n, H) and rows (n, d), both overwritten.

    The gradient of the weights is written to `out` (H, d), because allocating memory for it costs
    as much as the product if the weights are large. The signs sum to 0. With offsets the result is
    centred as by :func:`center_gradient`; centring the factors is cheaper than centring their
    products, and avoids cancellation.
    """
    if offsets is None:
        visible, hidden = sign @ rows, sign @ h
        return Gradient(torch.mm(h.t().mul_(sign), rows, out=out), visible, hidden)
    rows.sub_(offsets.visible)
    left = h.sub_(offsets.hidden).t().mul_(sign)  # (H, n)
    # Associated so that the vectors meet the n rows and not the H x d gradient.
    visible = torch.addmv(sign, h, offsets.hidden, alpha=-1) @ rows
    hidden = left @ torch.addmv(torch.ones_like(sign), rows, offsets.visible, alpha=-1)
    return Gradient(torch.mm(left, rows, out=out), visible, hidden)


def precondition_gradient(
    gradient: Gradient, offsets: Offsets, variance: Tensor, power: float
) -> Gradient:
    r"""Divide a centred gradient by powers of the units' variances.

    Let :math:`v = \mu (1 - \mu)` be the variance of a unit with mean :math:`\mu`, its offset, and p
    the `power`. The gradient of the weights is divided by :math:`(4 v_j)^p (4 v_i)^p`, that of
    centred biases by :math:`(4 v)^p`; `variance` (d,) holds the :math:`4 v_i` of the visible units.
    For fair coins nothing changes. The power 1 is a diagonal natural gradient, 1/2 the same with
    less noise at units that are rarely on.
    """
    weight, visible, hidden = gradient
    mu, lam = offsets
    columns, rows = variance.pow(-power), relative_variance(lam).pow_(-power)
    visible = torch.addmv(visible, weight.t(), lam) * columns
    hidden = torch.addmv(hidden, weight, mu) * rows
    weight.mul_(columns).mul_(rows[:, None])
    visible.addmv_(weight.t(), lam, alpha=-1)
    hidden.addmv_(weight, mu, alpha=-1)
    return Gradient(weight, visible, hidden)


def relative_variance(mean: Tensor) -> Tensor:
    """Variance of binary units over that of a fair coin, bounded below."""
    # rsub and pow_ as such: the operators go through a wrapper in Python.
    return (4 * mean).mul_(torch.rsub(mean, 1)).clamp_min_(LEAST_VARIANCE)
