"""Distributions after a change of units z = (x - c) / s."""

import pytest
import torch

from skebm.base import Clamp
from skebm.distributions import (
    Affine,
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    KernelDensity,
    Stack,
    TruncatedGaussian,
)
from tests.support.distributions import assert_distribution
from tests.support.oracle import DOUBLE, mean_is, seeded

CENTRE = torch.tensor([3.0, -1.0, 0.5], dtype=DOUBLE)
SCALE = torch.tensor([2.0, 0.1, 5.0], dtype=DOUBLE)
ROWS = torch.randn(30, 3, generator=seeded(1), dtype=DOUBLE) * SCALE + CENTRE
NOISES = {
    "normal": Gaussian.fit(ROWS),
    "mixture": GaussianMixture.fit(ROWS, n_components=2),
    "kernels": KernelDensity.fit(ROWS, bandwidth=0.5),
    "stack": Stack.fit(ROWS),
}


@pytest.fixture(params=NOISES)
def pair(request):
    noise = NOISES[request.param]
    return noise, Affine(noise, CENTRE, SCALE)


def standardised(x):
    return (x - CENTRE) / SCALE


def test_the_density_has_the_jacobian(pair):
    noise, moved = pair
    expected = noise.log_prob(ROWS) + SCALE.log().sum()
    torch.testing.assert_close(moved.log_prob(standardised(ROWS)), expected)


def test_the_score_is_the_gradient(pair):
    _, moved = pair
    z = standardised(ROWS).requires_grad_(True)
    (expected,) = torch.autograd.grad(moved.log_prob(z).sum(), z)
    torch.testing.assert_close(moved.score(z), expected)


def test_samples_are_transformed_draws(pair):
    noise, moved = pair
    expected = standardised(noise.sample(50, seeded(2)))
    torch.testing.assert_close(moved.sample(50, seeded(2)), expected)


def test_convolution_is_in_the_new_units(pair):
    noise, moved = pair
    z, sigma = standardised(ROWS), torch.tensor([0.3, 0.1, 1.0], dtype=DOUBLE)
    expected = noise.convolved(sigma * SCALE).log_prob(ROWS) + SCALE.log().sum()
    torch.testing.assert_close(moved.convolved(sigma).log_prob(z), expected)
    even = moved.convolved(0.3).log_prob(z)
    torch.testing.assert_close(even, moved.convolved(torch.full((3,), 0.3).to(z)).log_prob(z))


def test_conditionals_are_transformed(pair):
    noise, moved = pair
    mask = torch.tensor([[True, False, True]]).expand(4000, -1)
    x = ROWS[:1].expand(4000, -1)
    inner = noise.given(Clamp(mask, x))
    found = moved.given(Clamp(mask, standardised(x)))
    torch.testing.assert_close(found.mean, standardised(inner.mean))
    draws = found.sample(seeded(3))
    torch.testing.assert_close(draws[:, 0], standardised(x)[:, 0])
    assert mean_is(draws[:, 1:2], found.mean[0, 1:2]) < 5


def test_the_distribution_satisfies_the_contract(pair):
    assert_distribution(pair[1])


def test_discrete_and_bounded_distributions_are_refused():
    one = torch.ones(3, dtype=DOUBLE)
    with pytest.raises(TypeError, match="real rows"):
        Affine(IndependentBernoulli(torch.zeros(3)), CENTRE, one)
    with pytest.raises(ValueError, match="bounded"):
        Affine(TruncatedGaussian(one, one, lower=0.0), CENTRE, one)
    with pytest.raises(ValueError, match="positive"):
        Affine(NOISES["normal"], CENTRE, 0 * one)
