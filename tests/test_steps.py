"""Optimizers."""

import pytest
import torch

from skebm.base.torchtools import adamw

DECAY = {"lr": 0.01, "weight_decay": 0.1}


def trained(make, groups=False):
    """Weights after some steps down a bowl."""
    torch.manual_seed(0)
    a, b = torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(()))
    given = [{"params": [a]}, {"params": [b], "weight_decay": 0.0}] if groups else [a, b]
    optimizer = make(given)
    for _ in range(50):
        optimizer.zero_grad()
        (a.square().sum() * b).square().backward()
        optimizer.step()
    return torch.cat([a.detach().flatten(), b.detach()[None]])


@pytest.mark.parametrize("groups", [False, True])
def test_adamw_is_that_of_torch(groups):
    fast = trained(lambda given: adamw(iter(given), **DECAY), groups)
    plain = trained(lambda given: torch.optim.AdamW(given, **DECAY), groups)
    torch.testing.assert_close(fast, plain)


def test_adamw_does_not_fuse_where_torch_cannot():
    p = torch.nn.Parameter(torch.empty(2, device="meta"))
    assert not adamw([p], lr=0.1).defaults["fused"]
    q = torch.nn.Parameter(torch.zeros(2))
    assert adamw([q], lr=0.1).defaults["fused"]
    assert not adamw([q], lr=0.1, fused=False).defaults["fused"]
