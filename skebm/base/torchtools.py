"""What torch lacks: an exact softplus, a fused AdamW, seeds for its global generator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) to the last bit: torch draws a straight line from 20 on, off by 2e-9.

    From 40 on the line is exact in double precision, and exp(40) is finite in single precision.

    >>> import torch
    >>> x = torch.tensor([0.0, 21.0, 1000.0], dtype=torch.float64)
    >>> (softplus(x) - torch.logaddexp(x, torch.zeros(()))).abs().max() < 1e-14
    tensor(True)
    """
    return F.softplus(x, threshold=40.0)


@contextlib.contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Let what draws from torch's global generator draw from another one, and leave it as it was.

    Layers of torch initialise themselves from the global one, and distributions draw from it.
    """
    draw = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    gpu = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpu):
        # Not torch.manual_seed, which would seed the GPUs that are not forked, too.
        torch.default_generator.manual_seed(draw)
        if gpu:
            with torch.cuda.device(generator.device):
                torch.cuda.manual_seed(draw)
        yield


def adamw(parameters: Iterable[Any], **settings: Any) -> torch.optim.AdamW:
    """AdamW as one operation where torch has that: for small networks, less than half the time."""
    parameters = list(parameters)
    groups = [group["params"] if isinstance(group, dict) else [group] for group in parameters]
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group)
    return torch.optim.AdamW(parameters, **{"fused": fused} | settings)
