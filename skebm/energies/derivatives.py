"""Derivatives of networks with respect to rows, which are then differentiated by the weights.

A network that knows a cheaper way has a method of the same name; any other module is left to
autograd.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class ValueAndInputGrad(NamedTuple):
    """A function's values and its gradient with respect to rows.

    Attributes
    ----------
    value : Tensor of shape (n,)
    grad : Tensor of the shape of the rows
    """

    value: Tensor
    grad: Tensor


class DirectionalDerivatives(NamedTuple):
    """A function's gradient with respect to rows, and how much it bends along directions.

    Attributes
    ----------
    grad : Tensor of the shape of the rows
    second_derivative : Tensor of shape (n,)
        Sum over directions v of the second derivatives v' H v.
    """

    grad: Tensor
    second_derivative: Tensor


def value_and_input_grad_of(
    network: Any, x: Tensor, *cond: Tensor, **more: Any
) -> ValueAndInputGrad:
    """Value and gradient of a network, differentiable by its weights unless under ``no_grad``."""
    if callable(getattr(network, "value_and_input_grad", None)):
        return network.value_and_input_grad(x, *cond, **more)
    return value_and_input_grad_by_autograd(network, x, *cond)


def value_and_input_grad_by_autograd(network: Any, x: Tensor, *cond: Tensor) -> ValueAndInputGrad:
    """The same of any module."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value = network(x, *cond)
        return ValueAndInputGrad(
            value, autograd_grad(value, x, type(network).__name__, graph=graph)
        )


def input_grad_of(network: Any, x: Tensor, *cond: Tensor, **more: Any) -> Tensor:
    """The gradient alone, where that is less work."""
    if callable(getattr(network, "input_grad", None)):
        return network.input_grad(x, *cond, **more)
    return value_and_input_grad_of(network, x, *cond, **more).grad


def second_derivatives_of(
    network: Any, x: Tensor, directions: Tensor, *cond: Tensor, **more: Any
) -> DirectionalDerivatives:
    """Gradient and bend of a network along directions, (k, d) or k for each row, (n, k, d)."""
    if callable(getattr(network, "second_derivatives", None)):
        return network.second_derivatives(x, directions, *cond, **more)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        grad = autograd_grad(network(x, *cond), x, type(network).__name__)
        return DirectionalDerivatives(grad, second_derivative_of_grad(grad, x, directions))


def second_derivative_of_grad(grad: Tensor, x: Tensor, directions: Tensor) -> Tensor:
    """Sum of second derivatives along directions, (n,), from a gradient that has a graph to x."""
    total = x.new_zeros(len(x))
    if not grad.requires_grad:
        return total
    for v in directions.unbind(-2):
        v = v.reshape(-1, *x.shape[1:])
        curved = autograd_grad((grad * v).sum(), x)
        total = total + (curved * v).flatten(1).sum(1)
    return total


def autograd_grad(
    value: Tensor, x: Tensor, name: str = "The network", *, graph: bool = True
) -> Tensor:
    """Gradient, with a `graph` of its own; zero where the value does not depend on x."""
    if not value.requires_grad:
        raise TypeError(
            f"{name} is not differentiable with respect to x: its values do not come from x by "
            "differentiable torch operations."
        )
    (found,) = torch.autograd.grad(value.sum(), x, create_graph=graph, allow_unused=True)
    return torch.zeros_like(x) if found is None else found
