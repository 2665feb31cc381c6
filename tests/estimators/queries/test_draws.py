"""Draws given the known entries of each row are those of the conditional distributions."""

import pytest
import torch
from scipy.stats import kstest

from skebm.base import Clamp
from skebm.distributions import (
    Gaussian,
    GaussianMixture,
    KernelDensity,
    LowRankMixture,
    SignedLog,
    Stack,
)
from skebm.distributions.stack import Affine
from skebm.estimators.queries.draws import draws_given, index_by_row

N_DRAWS = 2000


def rows(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    x[:, 1] += x[:, 0] ** 2
    return x


def mixture():
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    root = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return GaussianMixture(weights, rows()[:3], root @ root.mT + 0.1 * torch.eye(3))


def low_rank():
    weights = torch.tensor([0.6, 0.4], dtype=torch.float64)
    factors = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return LowRankMixture(weights, rows()[:2], factors, torch.full((2, 3), 0.2).double())


def scales():
    covariances = torch.stack([torch.eye(3).double() * 0.1, rows().t().cov() * 0.2])
    weight = torch.tensor([0.7, 0.3], dtype=torch.float64)
    return KernelDensity(rows(), None, None, covariances=covariances, mixing_weights=weight)


centre, scale = torch.tensor([1.0, -2.0, 0.0]).double(), torch.tensor([0.5, 2.0, 3.0]).double()
OF_NUMBERS = {
    "independent columns": Gaussian(centre, scale),
    "mixture": mixture(),
    "low rank": low_rank(),
    "kernels": KernelDensity(rows(), torch.tensor([0.3, 0.5, 0.2]).double()),
    "kernels of several scales": scales(),
    "stack": Stack([mixture(), scales(), low_rank()], torch.tensor([0.5, 0.3, 0.2]).double()),
    "other units": Affine(mixture(), centre, scale),
    "logarithms": SignedLog(mixture(), centre, scale),
}
KNOWN = torch.tensor([[1, 0, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
COUNTS = torch.tensor([N_DRAWS, N_DRAWS + 7, 0, 30, 2, 40])


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_draws_against_conditional_distribution_functions(name):
    """Rosenblatt's transform: of the first missing entry, and of the second given it."""
    q = OF_NUMBERS[name]
    value = torch.where(KNOWN, rows()[:6], torch.nan)
    clamp = Clamp(KNOWN, torch.where(KNOWN, value, 0.0))
    drawn = draws_given(q, clamp, COUNTS, torch.Generator().manual_seed(0))
    assert drawn.shape == (int(COUNTS.sum()), 3)
    parts = drawn.split(COUNTS.tolist())
    for row, part in enumerate(parts):
        known = KNOWN[row].expand(len(part), -1)
        torch.testing.assert_close(part[known], clamp.value[row].expand_as(part)[known])
    for row, first, second in ((0, 1, 2), (1, 0, 1)):
        for entry, given in ((first, KNOWN[row]), (second, ~torch.eye(3).bool()[second])):
            u = of_inner(q, given, parts[row], entry)
            assert kstest(u.numpy(), "uniform").pvalue > 1e-3, (row, entry)


def of_inner(q, known, x, entry):
    """Distribution functions of an entry at rows x given their known entries."""
    if isinstance(q, SignedLog):
        q, x = q.distribution, q.logs(x)
    found = q.given(Clamp(known.expand(len(x), -1), x)).column(entry)
    return found.cdf(x[:, entry, None])[:, 0]


def test_bits_are_drawn_as_well():
    from skebm.distributions import IndependentBernoulli

    q = IndependentBernoulli(torch.tensor([0.2, 0.7]).double().logit())
    clamp = Clamp(torch.tensor([[True, False]]), torch.tensor([[1.0, 0.0]]).double())
    drawn = draws_given(q, clamp, torch.tensor([N_DRAWS]), torch.Generator().manual_seed(0))
    assert (drawn[:, 0] == 1).all()
    assert abs(float(drawn[:, 1].mean()) - 0.7) < 0.04


def test_an_index_of_weight_zero_is_not_drawn():
    weight = torch.tensor([[0.0, 2.0, 0.0, 2.0], [1.0, 0.0, 0.0, 0.0]]).double()
    u = torch.tensor([0.0, 0.4999, 0.5, 0.9999, 0.0, 0.9999]).double()
    found = index_by_row(weight, torch.tensor([0, 0, 0, 0, 1, 1]), u)
    assert found.tolist() == [1, 1, 3, 3, 0, 0]
