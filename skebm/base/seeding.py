"""Randomness of code that knows torch's global generator alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


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
