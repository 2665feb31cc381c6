"""Adaptive quadrature of densities that are known up to a constant, against mixtures of normals."""

import numpy as np
import pytest
import torch

from skebm.distributions.conditionals import NormalMixtures
from skebm.estimators.queries.quadrature import density_in_cells


@pytest.fixture(scope="module")
def truth():
    generator = torch.Generator().manual_seed(0)
    log_weight, mean, scale = (torch.randn(5, 4, generator=generator) for _ in range(3))
    return NormalMixtures(log_weight, 3 * mean, scale.abs() / 2 + 0.01)


@pytest.fixture(scope="module")
def found(truth):
    edges = torch.linspace(-30, 30, 20, dtype=torch.float64).expand(5, -1)
    return density_in_cells(lambda rows, x: truth.of_rows(rows).log_prob(x) + 3, edges, 1e-10)


def test_moments_and_normaliser(found, truth):
    np.testing.assert_allclose(found.mean, truth.mean, atol=1e-8)
    np.testing.assert_allclose(found.std, truth.std, atol=1e-8)
    np.testing.assert_allclose(found.log_normaliser, 3, atol=1e-9)


def test_probabilities_and_quantiles(found, truth):
    x = truth.sample(50, torch.Generator().manual_seed(1)).t()
    np.testing.assert_allclose(found.cdf(x), truth.cdf(x), atol=1e-7)
    np.testing.assert_allclose(found.log_prob(x), truth.log_prob(x), atol=1e-4)
    np.testing.assert_allclose(found.ppf(found.cdf(x)), x, atol=1e-8)
    outside = torch.tensor([[-31.0, 31.0]]).double().expand(5, -1)
    np.testing.assert_allclose(found.cdf(outside), [[0.0, 1.0]] * 5, atol=1e-12)
    assert found.log_prob(outside).isinf().all()


def test_steps_are_found_by_halving():
    """A density that is 3 below 0.3 and 1 above, as of a tree; its mean is 0.7 / 1.6 - ..."""
    edges = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    step = density_in_cells(
        lambda rows, x: torch.where(x < 0.3, 3.0, 1.0).double().log(), edges, 1e-6
    )
    mean = (3 * 0.3**2 / 2 + (1 - 0.3**2) / 2) / (3 * 0.3 + 0.7)
    assert float(step.mean) == pytest.approx(mean, abs=1e-5)
    assert float(step.cdf(torch.tensor([[0.3]]).double())) == pytest.approx(0.9 / 1.6, abs=1e-5)


def test_density_that_is_nowhere_in_some_cells():
    edges = torch.tensor([[-2.0, -1.0, 0.0, 1.0]], dtype=torch.float64)
    half = density_in_cells(
        lambda rows, x: torch.where(x < 0, -torch.inf, 0.0).double(), edges, 1e-9
    )
    assert float(half.mean) == pytest.approx(0.5)


def test_a_narrow_component_between_the_nodes_of_a_base_is_found():
    """Weight 0.01 at 3.21, 1e-3 wide, in cells of two: the base misses a part without it."""
    base = NormalMixtures(
        torch.tensor([[0.99, 0.01]]).log(), torch.tensor([[0.0, 3.21]]), torch.tensor([[1.0, 1e-3]])
    )
    edges = torch.linspace(-8, 8, 9, dtype=torch.float64)[None]
    found = density_in_cells(
        lambda rows, x: torch.zeros_like(x),
        edges,
        1e-6,
        lambda rows, x: base.log_prob(x, rows),
    )
    assert float(found.mean) == pytest.approx(0.0321, abs=1e-6)
