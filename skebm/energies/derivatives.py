"""Derivatives of networks with respect to rows, which are then differentiated by the weights.

A network that knows a cheaper way has a method of the same name; any other module is left to
autograd.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Slopes(NamedTuple):
    """A function's values and its gradient with respect to rows.

    Attributes
    ----------
    value : Tensor of shape (n,)
    slope : Tensor of the shape of the rows
    """

    value: Tensor
    slope: Tensor


class Bends(NamedTuple):
    """A function's gradient with respect to rows, and how much it bends along directions.

    Attributes
    ----------
    slope : Tensor of the shape of the rows
    bend : Tensor of shape (n,)
        Sum over directions v of the second derivatives v' H v.
    """

    slope: Tensor
    bend: Tensor


def slopes_of(network: Any, x: Tensor, *cond: Tensor, **more: Any) -> Slopes:
    """Value and gradient of a network, differentiable by its weights unless under ``no_grad``."""
    if callable(getattr(network, "slopes", None)):
        return network.slopes(x, *cond, **more)
    return slopes_by_autograd(network, x, *cond)


def slopes_by_autograd(network: Any, x: Tensor, *cond: Tensor) -> Slopes:
    """The same of any module."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value = network(x, *cond)
        return Slopes(value, gradient(value, x, type(network).__name__, graph=graph))


def slope_of(network: Any, x: Tensor, *cond: Tensor, **more: Any) -> Tensor:
    """The gradient alone, where that is less work."""
    if callable(getattr(network, "slope", None)):
        return network.slope(x, *cond, **more)
    return slopes_of(network, x, *cond, **more).slope


def bends_of(network: Any, x: Tensor, directions: Tensor, *cond: Tensor, **more: Any) -> Bends:
    """Gradient and bend of a network along directions, (k, d) or k for each row, (n, k, d)."""
    if callable(getattr(network, "bends", None)):
        return network.bends(x, directions, *cond, **more)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        slope = gradient(network(x, *cond), x, type(network).__name__)
        return Bends(slope, bend_of_slope(slope, x, directions))


def bend_of_slope(slope: Tensor, x: Tensor, directions: Tensor) -> Tensor:
    """Sum of second derivatives along directions, (n,), from a gradient that has a graph to x."""
    total = x.new_zeros(len(x))
    if not slope.requires_grad:
        return total
    for v in directions.unbind(-2):
        v = v.reshape(-1, *x.shape[1:])
        turned = gradient((slope * v).sum(), x)
        total = total + (turned * v).flatten(1).sum(1)
    return total


def gradient(value: Tensor, x: Tensor, name: str = "The network", *, graph: bool = True) -> Tensor:
    """Gradient, with a `graph` of its own; zero where the value does not depend on x."""
    if not value.requires_grad:
        raise TypeError(
            f"{name} is not differentiable with respect to x: its values do not come from x by "
            "differentiable torch operations."
        )
    (found,) = torch.autograd.grad(value.sum(), x, create_graph=graph, allow_unused=True)
    return torch.zeros_like(x) if found is None else found
