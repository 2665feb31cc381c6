"""Optimizers."""

import subprocess
import sys
from copy import deepcopy

import pytest
import torch

from skebm.base.torchtools import SGD, adamw
from tests.support.tiers import full

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


@pytest.mark.parametrize("settings", [{"lr": 0.001}, {"lr": 0.001, "momentum": 0.5}], ids=str)
def test_gradient_descent_is_that_of_torch(settings):
    ours = trained(lambda given: SGD(given, **settings))
    assert ours.isfinite().all()
    assert torch.equal(ours, trained(lambda given: torch.optim.SGD(given, **settings)))


def test_states_are_those_of_torch():
    """Each can go on from the state of the other."""
    w, v = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    ours, torchs = (make([p], lr=0.1, momentum=0.5) for make, p in ((SGD, w), (torch.optim.SGD, v)))
    for p, optimizer in ((w, ours), (v, torchs)):
        p.square().sum().backward()
        optimizer.step()
    torchs.load_state_dict(deepcopy(ours.state_dict()))
    ours.load_state_dict(deepcopy(torchs.state_dict()))
    ours.step()
    torchs.step()
    assert torch.equal(w, v)


FRESH = """
import sys
from copy import deepcopy
import numpy as np
from skebm import RBMEstimator, ScoreMatchingDensity

X = np.random.default_rng(0).random((60, 3))
ScoreMatchingDensity(n_iter=2, random_state=0).fit(X).partial_fit(X)
bits = (X > 0.5).astype(float)
for learning in ("exact", "pcd"):
    RBMEstimator(3, learning=learning, n_iter=2, random_state=0).fit(bits).partial_fit(bits)
assert "torch._dynamo" not in sys.modules
"""


@full
def test_a_first_fit_does_not_wait_for_the_compiler():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FRESH], check=True, timeout=300)
