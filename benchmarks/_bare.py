"""Chains by MALA written down in torch with nothing around them, for comparisons of cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def chain_steps(
    network: Any, base: Any, step_size: Tensor, scale: Tensor
) -> Callable[[Tensor, int], Tensor]:
    """A jump to draws of the base, and so many steps of MALA, of -log q + f."""
    h = step_size

    def look(x: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = network.value_and_input_grad(x)
        log_q, pull = base.log_prob_and_score(x)
        return value - log_q, slope - pull

    def move(x: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.randn_like(x)
        drift = scale * slope
        new = x + scale * ((2 * h).sqrt() * z - h * drift)
        new_value, new_slope = look(new)
        # The way back, in units of the scale.
        back = (x - new) / scale + h * scale * new_slope
        log_ratio = value - new_value - (back.square().sum(1) / (4 * h) - z.square().sum(1) / 2)
        taken = torch.rand(len(x)).log() < log_ratio
        keep = taken[:, None]
        return (
            torch.where(keep, new, x),
            torch.where(taken, new_value, value),
            torch.where(keep, new_slope, slope),
        )

    def walk(chains: Tensor, k: int) -> Tensor:
        n = len(chains)
        draws = base.sample(n, torch.default_generator)
        before, after = network(torch.cat([chains, draws])).chunk(2)
        taken = torch.rand(n).log() < before - after
        chains = torch.where(taken[:, None], draws, chains)
        value, slope = look(chains)
        for _ in range(k):
            chains, value, slope = move(chains, value, slope)
        return chains

    return walk
