"""Limited-memory quasi-Newton steps for a smooth function plus an l1 penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base.objective import Reparametrisation
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
    max_eval : int, default=10
        Most evaluations of a step.

    References
    ----------
    Andrew and Gao (2007), "Scalable training of L1-regularized log-linear models", ICML.
    """

    searches_steps = True

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        *,
        l1: float = 0.0,
        history_size: int = 20,
        max_eval: int = 10,
    ):
        super().__init__(params, {"lr": lr, "l1": l1})
        self.history_size, self.max_eval = history_size, max_eval
        self.coordinates: Reparametrisation | None = None  # None are the parameters, in order
        self._pairs: list[tuple[Tensor, Tensor]] = []  # steps and changes of the gradient
        self._last: Point | None = None

    def state_dict(self) -> dict[str, Any]:
        """The state of torch's optimizers, and that of the search under "search"."""
        last = None if self._last is None else list(self._last)
        return super().state_dict() | {"search": {"pairs": [*self._pairs], "last": last}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        state = dict(state_dict)
        search = state.pop("search")
        super().load_state_dict(state)
        self._pairs = [(step, change) for step, change in search["pairs"]]
        self._last = None if search["last"] is None else Point(*search["last"])

    def _flat(self, of: Callable[[Any], Tensor]) -> Tensor:
        return torch.cat([of(p).flatten() for group in self.param_groups for p in group["params"]])

    def _write(self, flat: Tensor) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.copy_(part.view_as(p))

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """One step; `closure` writes the gradients and returns the value."""
        change = self.coordinates
        l1 = torch.cat(
            [
                torch.full_like(p, group["l1"]).flatten()
                for group in self.param_groups
                for p in group["params"]
            ]
        )

        def at(x: Tensor) -> Point:
            """The value at coordinates x, and the gradient of its smooth part."""
            flat = x if change is None else change.outside(x)
            self._write(flat)
            value, grad = float(closure()), self._flat(lambda p: p.grad)
            grad = grad - l1 * flat.sign()
            return Point(flat, x, value, grad if change is None else change.gradient(grad))

        flat, done = self._flat(lambda p: p.detach()), False
        try:
            if self._last is None or not torch.equal(self._last.flat, flat):
                self._pairs = []
                self._last = at(flat if change is None else change.inside(flat))
            end = self._line_search(self._last, l1, at)
            done = True
        finally:
            if not done:  # trial weights are not to be kept, whatever ended the search
                self._write(flat)
        return torch.tensor(end.value)

    def _line_search(self, start: Point, l1: Tensor, at: Callable[[Tensor], Point]) -> Point:
        """Where a line search ends; at its start if no step is good enough."""
        x, penalised = start.x, l1 > 0
        gradient = _pseudo_gradient(x, start.grad, l1)
        curvature = None if self.coordinates is None else self.coordinates.curvature
        direction = _direction(gradient, self._pairs, curvature)
        direction = direction.masked_fill(penalised & (direction * gradient >= 0), 0)
        orthant = torch.where(x == 0, -gradient.sign(), x.sign())
        size = float(self.param_groups[0]["lr"])
        if not self._pairs and curvature is None:
            size *= min(1.0, 1.0 / max(float(gradient.norm()), 1e-12))
        for _ in range(self.max_eval):
            new = x + size * direction
            end = at(new.masked_fill(penalised & (new * orthant < 0), 0))
            if end.value <= start.value + ARMIJO * float(gradient @ (end.x - x)):
                self._remember(end.x - x, end.grad - start.grad)
                self._last = end
                return end
            size *= 0.5
        self._pairs = []  # the next step goes down the gradient
        self._last = at(x)
        return self._last

    def _remember(self, step: Tensor, change: Tensor) -> None:
        if float(step @ change) > LEAST_CURVATURE * float(step @ step):
            self._pairs = [*self._pairs, (step, change)][-self.history_size :]


class Point(NamedTuple):
    """Parameters side by side, their coordinates, the value, and its smooth part's gradient."""

    flat: Tensor
    x: Tensor
    value: float
    grad: Tensor


def _pseudo_gradient(x: Tensor, grad: Tensor, l1: Tensor) -> Tensor:
    """The subgradient of least norm of the penalised function."""
    low, high = grad - l1, grad + l1
    at_zero = torch.where(low > 0, low, torch.where(high < 0, high, torch.zeros_like(grad)))
    return torch.where(x == 0, at_zero, grad + l1 * x.sign())


def _direction(
    gradient: Tensor, pairs: list[tuple[Tensor, Tensor]], curvature: Tensor | None
) -> Tensor:
    """Minus the inverse Hessian of L-BFGS times the gradient, by the two-loop recursion."""
    d, scales = -gradient, []
    for step, change in reversed(pairs):
        scale = (step @ d) / (step @ change)
        scales.append(scale)
        d = d - scale * change
    d = d if curvature is None else d / curvature
    if pairs:
        step, change = pairs[-1]
        usual = change if curvature is None else change / curvature
        d = d * ((step @ change) / (change @ usual))
    for (step, change), scale in zip(pairs, reversed(scales), strict=True):
        d = d + (scale - (change @ d) / (step @ change)) * step
    return d


OWLQN = without_compiler(_OWLQN)
