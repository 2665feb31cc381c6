"""Steps of an optimizer, and copies and moving averages of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from skebm.base import Batch, Loss, Objective


class Run:
    """State that changes at every batch; not on the net, whose attributes are slow to set."""

    state: Any = None


def weights_of(module: nn.Module) -> list[Tensor]:
    """Parameters as tensors that share their memory and need no gradient."""
    return [p.detach() for p in module.parameters()]


def copy_weights(source: list[Tensor], target: list[Tensor]) -> None:
    """Write one list of tensors into another."""
    for new, old in zip(source, target, strict=True):
        old.copy_(new)


class WeightAverage:
    """Average of the weights over epochs: the mean at first, then exponential with `decay`.

    Between epochs the module holds the average, so that validation, early stopping and an
    interrupted fit use it; training resumes from the trained weights.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.module, self.decay = module, decay
        self.trained: list[Tensor] | None = None
        self.mean: AveragedModel | None = None

    def resume(self) -> None:
        """Restore the trained weights."""
        if self.trained is not None:
            copy_weights(self.trained, weights_of(self.module))

    def show(self) -> None:
        """Add the trained weights to the average, and write the average into the module."""
        if not self.decay:
            return
        if self.mean is None:
            least = 1 - self.decay
            self.mean = AveragedModel(
                self.module,
                avg_fn=lambda mean, new, n: mean + (new - mean) * max(least, 1 / (float(n) + 1)),
            )
        self.trained = [w.clone() for w in weights_of(self.module)]
        self.mean.update_parameters(self.module)
        copy_weights(weights_of(self.mean.module), weights_of(self.module))


def plain_step(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """Plain gradient descent without torch's bookkeeping: 3 instead of 13 microseconds a step.

    None if the optimizer does anything else.
    """
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    if any(group[name] for name in ("momentum", "weight_decay", "maximize", "differentiable")):
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    params = group["params"]

    def step() -> None:
        torch._foreach_add_(params, [p.grad for p in params], alpha=-group["lr"])

    return step


def line_search(
    module: Objective,
    optimizer: torch.optim.Optimizer,
    run: Run,
    generator: torch.Generator,
    notify: Callable[[Batch], None],
) -> Callable[[Batch], Loss]:
    """An update whose optimizer evaluates the objective several times, as L-BFGS does."""

    def update(batch: Batch) -> Loss:
        last: dict[str, Any] = {}

        def closure() -> Tensor:
            with torch.no_grad():
                loss = module.gradients(batch, run.state, generator)
            if loss.value is None:
                raise TypeError(
                    f"{type(module).__name__} has no value for a line search; "
                    "use an optimizer that needs the gradient alone."
                )
            notify(batch)
            last["loss"] = loss
            return loss.value

        optimizer.step(closure)  # type: ignore[arg-type]
        run.state = last["loss"].state
        return last["loss"]

    return update
