"""Functions that torch rounds more than 64 bits do."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from skebm.base.torchtools import distinct_masks, softplus


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_has_the_precision_of_its_numbers(dtype):
    x = torch.linspace(-80, 100, 3601, dtype=dtype).requires_grad_(True)
    value = softplus(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    exact = np.logaddexp(x.detach().double().numpy(), 0)
    rounding = 8 * torch.finfo(dtype).eps
    assert_allclose(value.detach().double().numpy(), exact, rtol=rounding)
    assert_allclose(slope.double().numpy(), np.exp(x.detach().double().numpy() - exact), rtol=1e-5)


def test_softplus_of_huge_numbers_is_finite():
    x = torch.tensor([-math.inf, -1e30, 1e30, math.inf], requires_grad=True)
    value = softplus(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert value.tolist() == [0, 0, x[2].item(), math.inf]
    assert slope.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("shape", [(0, 3), (40, 1), (500, 5), (60, 62), (60, 63)])
def test_distinct_masks_are_those_of_torch_in_the_same_order(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[: len(mask) // 2] = mask[len(mask) - len(mask) // 2 :]
    ours, theirs = distinct_masks(mask), mask.unique(dim=0, return_inverse=True)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
