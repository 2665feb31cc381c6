"""Derivatives of networks with respect to rows, differentiable with respect to the weights.

A network may have cheaper methods of the same names; other modules use autograd.
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
        Values.
    grad : Tensor of the shape of the rows
        Gradients.
    """

    value: Tensor
    grad: Tensor


class DirectionalDerivatives(NamedTuple):
    """A function's gradient with respect to rows and its second derivatives along directions.

    Attributes
    ----------
    grad : Tensor of the shape of the rows
        Gradients.
    second_derivative : Tensor of shape (n,)
        Sum over directions v of the second derivatives v' H v.
    """

    grad: Tensor
    second_derivative: Tensor


def value_and_input_grad_of(
    network: Any, x: Tensor, *cond: Tensor, **more: Any
) -> ValueAndInputGrad:
    """Value and gradient of a network; differentiable unless under ``no_grad``."""
    if callable(getattr(network, "value_and_input_grad", None)):
        return network.value_and_input_grad(x, *cond, **more)
    return value_and_input_grad_by_autograd(network, x, *cond)


def value_and_input_grad_by_autograd(network: Any, x: Tensor, *cond: Tensor) -> ValueAndInputGrad:
    """Value and gradient of any module, by autograd."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value = network(x, *cond)
        return ValueAndInputGrad(
            value, autograd_grad(value, x, type(network).__name__, graph=graph)
        )


def input_grad_of(network: Any, x: Tensor, *cond: Tensor, **more: Any) -> Tensor:
    """The gradient of a network with respect to rows, without its value where that is cheaper."""
    if callable(getattr(network, "input_grad", None)):
        return network.input_grad(x, *cond, **more)
    return value_and_input_grad_of(network, x, *cond, **more).grad


def second_derivatives_of(
    network: Any, x: Tensor, directions: Tensor, *cond: Tensor, **more: Any
) -> DirectionalDerivatives:
    """Gradient and second derivatives along directions, (k, d) or k for each row, (n, k, d)."""
    if callable(getattr(network, "second_derivatives", None)):
        return network.second_derivatives(x, directions, *cond, **more)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        grad = autograd_grad(network(x, *cond), x, type(network).__name__)
        return DirectionalDerivatives(grad, second_derivative_of_grad(grad, x, directions))


def second_derivative_of_grad(grad: Tensor, x: Tensor, directions: Tensor) -> Tensor:
    """Sum of v' H v over directions, (n,), from a gradient with a graph to x."""
    total = x.new_zeros(len(x))
    if not grad.requires_grad:
        return total
    for v in directions.unbind(-2):
        v = v.reshape(-1, *x.shape[1:])
        hessian_vector = autograd_grad((grad * v).sum(), x)
        total = total + (hessian_vector * v).flatten(1).sum(1)
    return total


def autograd_grad(
    value: Tensor, x: Tensor, name: str = "The network", *, graph: bool = True
) -> Tensor:
    """Gradient with respect to x, differentiable with `graph`; zero if x is not used."""
    if not value.requires_grad:
        raise TypeError(
            f"{name} is not differentiable with respect to x: its values are not computed from x "
            "by differentiable torch operations."
        )
    (grad,) = torch.autograd.grad(value.sum(), x, create_graph=graph, allow_unused=True)
    return torch.zeros_like(x) if grad is None else grad
