"""Additions to torch: an exact softplus, a fused AdamW, a context that seeds its generator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) to machine precision: torch returns x from 20 on, which is off by 2e-9.

    From 40 on x is exact in double precision, and exp(40) is finite in single precision.

    >>> import torch
    >>> x = torch.tensor([0.0, 21.0, 1000.0], dtype=torch.float64)
    >>> (softplus(x) - torch.logaddexp(x, torch.zeros(()))).abs().max() < 1e-14
    tensor(True)
    """
    return F.softplus(x, threshold=40.0)


@contextlib.contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's global generator from another one, and restore its state afterwards.

    Layers of torch initialise their weights from the global generator, and its distributions draw
    from it.
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
    """Fused AdamW where torch has it: less than half the time of the default for small networks."""
    parameters = list(parameters)
    groups = [group["params"] if isinstance(group, dict) else [group] for group in parameters]
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group)
    return torch.optim.AdamW(parameters, **{"fused": fused} | settings)
