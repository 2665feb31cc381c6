"""Smooth activations with the derivatives that score matching asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from skebm.base.numerics import softplus


class Activation(NamedTuple):
    """An activation: its value, with its slope, and with slope and curvature."""

    value: Callable[[Tensor], Tensor]
    pair: Callable[[Tensor], tuple[Tensor, Tensor]]
    triple: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class SiluPair(torch.autograd.Function):
    """z sigmoid(z) and its slope; both ways in a handful of operations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.sigmoid(z)
        value = z * share
        slope = (1 + z - value).mul_(share)
        ctx.save_for_backward(share, slope)
        return value, slope

    @staticmethod
    @once_differentiable  # a second time would take `share` for a constant, and be wrong
    def backward(ctx: Any, from_value: Tensor, from_slope: Tensor) -> Tensor:
        share, slope = ctx.saved_tensors
        curvature = (share + slope).addcmul_(share, slope, value=-2)
        return (from_value * slope).addcmul_(from_slope, curvature)


def _silu_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    share = torch.sigmoid(z)
    value = z * share
    slope = share * (1 + z - value)
    return value, slope, share + slope - 2 * share * slope


def _softplus_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    share = torch.sigmoid(z)
    return softplus(z), share, share * (1 - share)


def _tanh_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = torch.tanh(z)
    slope = 1 - value.square()
    return value, slope, -2 * value * slope


def _gelu_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    share = torch.special.ndtr(z)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return z * share, share + z * density, density * (2 - z.square())


def _of(value: Callable[[Tensor], Tensor], triple: Any) -> Activation:
    return Activation(value, lambda z: triple(z)[:2], triple)


# Those without a second derivative, such as ReLU, have no Hessian to match.
ACTIVATIONS = {
    "silu": Activation(F.silu, SiluPair.apply, _silu_triple),
    "softplus": _of(softplus, _softplus_triple),
    "tanh": _of(torch.tanh, _tanh_triple),
    "gelu": _of(F.gelu, _gelu_triple),
}
