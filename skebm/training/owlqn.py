"""Limited-memory quasi-Newton steps for a smooth function plus an l1 penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base.torchtools import without_compiler

# Decrease of the function that a step must have, relative to what the gradient promises; curvature
# along a step below which it says nothing.
ARMIJO, LEAST_CURVATURE = 1e-4, 1e-10


class _OWLQN(torch.optim.Optimizer):
    r"""Orthant-wise limited-memory quasi-Newton method: L-BFGS with an l1 penalty.

    Minimises :math:`f(w) + \sum_k \lambda_k \lVert w_k \rVert_1`. A step searches along the L-BFGS
    direction within the orthant of the weights; weights that would change their sign become zero.
    Without a penalty it is L-BFGS with a backtracking line search.

    Parameters
    ----------
    params : iterable
    lr : float, default=1.0
        First factor of the direction that a search tries.
    l1 : float, default=0
        :math:`\lambda_k` of a group of parameters, which are in the value that the closure returns,
        and with the subgradient :math:`\lambda_k \mathrm{sign}(w)` in the gradient that it writes.
    history_size : int, default=20
    max_eval : int, default=20
        Most evaluations of a step.

    References
    ----------
    Andrew and Gao (2007), "Scalable training of L1-regularized log-linear models", ICML.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        *,
        l1: float = 0.0,
        history_size: int = 20,
        max_eval: int = 20,
    ):
        super().__init__(params, {"lr": lr, "l1": l1})
        self.history_size, self.max_eval = history_size, max_eval
        self._pairs: list[tuple[Tensor, Tensor]] = []  # steps and changes of the gradient
        self._last: tuple[Tensor, float, Tensor] | None = None  # weights, value, gradient

    def _flat(self, of: Callable[[Any], Tensor]) -> Tensor:
        return torch.cat([of(p).flatten() for group in self.param_groups for p in group["params"]])

    def _write(self, x: Tensor) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        for p, part in zip(params, x.split([p.numel() for p in params]), strict=True):
            p.copy_(part.view_as(p))

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """One step; `closure` writes the gradients and returns the value."""

        l1 = torch.cat(
            [
                torch.full_like(p, group["l1"]).flatten()
                for group in self.param_groups
                for p in group["params"]
            ]
        )

        def evaluated(x: Tensor) -> tuple[float, Tensor]:
            """The value, and the gradient of its smooth part."""
            self._write(x)
            value = float(closure())
            return value, self._flat(lambda p: p.grad) - l1 * x.sign()

        x = self._flat(lambda p: p.detach())
        try:
            return self._searched(x, l1, evaluated)
        except BaseException:  # Ctrl-C too: trial weights are not to be kept
            self._write(x)
            raise

    def _searched(
        self, x: Tensor, l1: Tensor, evaluated: Callable[[Tensor], tuple[float, Tensor]]
    ) -> Tensor:
        """The value at the end of a line search from weights x."""
        if self._last is None or not torch.equal(self._last[0], x):
            self._pairs = []
            self._last = x, *evaluated(x)
        _, value, grad = self._last
        subgradient = _pseudo_gradient(x, grad, l1)
        direction = _direction(subgradient, self._pairs)
        penalised = l1 > 0
        direction = direction.masked_fill(penalised & (direction * subgradient >= 0), 0)
        orthant = torch.where(x == 0, -subgradient.sign(), x.sign())
        size = float(self.param_groups[0]["lr"])
        if not self._pairs:
            size *= min(1.0, 1.0 / max(float(subgradient.norm()), 1e-12))
        for _ in range(self.max_eval):
            new = x + size * direction
            new = new.masked_fill(penalised & (new * orthant < 0), 0)
            new_value, new_grad = evaluated(new)
            if new_value <= value + ARMIJO * float(subgradient @ (new - x)):
                self._remember(new - x, new_grad - grad)
                self._last = new, new_value, new_grad
                return torch.tensor(new_value)
            size *= 0.5
        self._pairs = []  # the next step goes down the gradient
        self._last = x, *evaluated(x)
        return torch.tensor(value)

    def _remember(self, step: Tensor, change: Tensor) -> None:
        if float(step @ change) > LEAST_CURVATURE * float(step @ step):
            self._pairs = [*self._pairs, (step, change)][-self.history_size :]


def _pseudo_gradient(x: Tensor, grad: Tensor, l1: Tensor) -> Tensor:
    """The subgradient of least norm of the penalised function."""
    low, high = grad - l1, grad + l1
    at_zero = torch.where(low > 0, low, torch.where(high < 0, high, torch.zeros_like(grad)))
    return torch.where(x == 0, at_zero, grad + l1 * x.sign())


def _direction(gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Minus the inverse Hessian of L-BFGS times the gradient, by the two-loop recursion."""
    d, scales = -gradient, []
    for step, change in reversed(pairs):
        scale = (step @ d) / (step @ change)
        scales.append(scale)
        d = d - scale * change
    if pairs:
        step, change = pairs[-1]
        d = d * ((step @ change) / (change @ change))
    for (step, change), scale in zip(pairs, reversed(scales), strict=True):
        d = d + (scale - (change @ d) / (step @ change)) * step
    return d


OWLQN = without_compiler(_OWLQN)


def searches_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer evaluates the objective several times a step, in a line search."""
    return isinstance(optimizer, torch.optim.LBFGS | _OWLQN)
