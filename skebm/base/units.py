"""Conditionals of a layer whose units are independent given the other layer."""

from __future__ import annotations

import torch
from torch import Tensor

from skebm.base.energy import Conditional


class Bernoulli(Conditional):
    """Independent units that are 1 with probability `mean`."""

    def __init__(self, mean: Tensor):
        self.mean = mean

    def sample(self, generator: torch.Generator) -> Tensor:
        p = self.mean
        # In place: three times as fast as torch.bernoulli on a CPU, and torch.rand starts slower.
        return torch.empty_like(p).uniform_(generator=generator).lt_(p)


class Normal(Conditional):
    """Independent units with normal distributions of the given means and standard deviations.

    Parameters
    ----------
    mean : Tensor of shape (n, d)
    scale : Tensor of shape (d,) or (n, d)
    """

    def __init__(self, mean: Tensor, scale: Tensor):
        self.mean, self.scale = mean, scale

    def sample(self, generator: torch.Generator) -> Tensor:
        z = torch.empty_like(self.mean).normal_(generator=generator)
        return z.mul_(self.scale).add_(self.mean)
