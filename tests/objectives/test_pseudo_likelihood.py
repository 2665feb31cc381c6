"""Objectives for discrete rows: pseudo-likelihoods against enumeration."""

import pytest
import torch

from skebm.base import Binary, Categorical, Energy, Real
from skebm.distributions import IndependentCategorical
from skebm.energies import NeuralEnergy
from skebm.objectives import pseudo_log_likelihood
from tests.support.networks import one_hot
from tests.support.oracle import (
    DOUBLE,
    Enumerated,
    bits,
    brute_pseudo_log_likelihood,
    make_rbm,
    seeded,
)
from tests.support.targets import OneHot

D, H = 4, 3


@pytest.fixture
def energy():
    return make_rbm(D, H)


def test_pseudo_log_likelihood_equals_brute_force(energy):
    x = bits(D)
    expected = brute_pseudo_log_likelihood(energy, x)
    torch.testing.assert_close(pseudo_log_likelihood(energy, x).detach(), expected)


def test_pseudo_log_likelihood_is_invariant_to_the_order_of_rows(energy):
    x, order = bits(D)[:9], torch.randperm(9, generator=seeded())
    value = pseudo_log_likelihood(energy, x)
    torch.testing.assert_close(pseudo_log_likelihood(energy, x[order]), value[order])
    torch.testing.assert_close(pseudo_log_likelihood(energy, x[4:5]), value[4:5])


def test_pseudo_log_likelihood_of_independent_columns_is_the_likelihood(energy):
    with torch.no_grad():
        energy.weight.zero_()
    x = bits(D)
    log_p = Enumerated(energy).p.log()
    torch.testing.assert_close(pseudo_log_likelihood(energy, x), log_p)


class Pairs(Energy):
    """An energy of binary rows that is no RBM: neighbours attract."""

    def __init__(self, domain):
        super().__init__()
        self.domain = domain

    def forward(self, x, cond=None):
        return -1.3 * (x[:, 1:] * x[:, :-1]).sum(1) + 0.4 * x.sum(1)


def test_pseudo_log_likelihood_takes_any_binary_energy():
    energy, x = Pairs(Binary((D,))), bits(D)
    log_p = (-energy(x)).log_softmax(0)
    place = 2 ** torch.arange(D - 1, -1, -1)
    expected = torch.zeros(len(x), dtype=DOUBLE)
    for i in range(D):
        other = x.clone()
        other[:, i] = 1 - other[:, i]
        both = torch.stack([log_p, log_p[other.long() @ place]])
        expected += log_p - both.logsumexp(0)
    torch.testing.assert_close(pseudo_log_likelihood(energy, x), expected)
    with pytest.raises(ValueError, match="bits and categories"):
        pseudo_log_likelihood(Pairs(Real((D,))), x)


# ------------------------------------------------------------------------------
# One-hot rows
# ------------------------------------------------------------------------------


def brute_of_levels(energy):
    """sum_i log p(level of column i given the others) of all states, from their probabilities."""
    domain = energy.domain
    x = torch.cat(list(domain.enumerate(dtype=DOUBLE)))
    p = (-energy(x)).detach().softmax(0)
    total = torch.zeros(len(x), dtype=DOUBLE)
    levels = domain.levels(x)
    for i in range(len(domain.groups)):
        others = torch.cat([levels[:, :i], levels[:, i + 1 :]], 1)
        same = (others[:, None] == others).all(2).to(DOUBLE)  # all but column i agree
        total += (p / (same @ p)).log()
    return x, total


@pytest.mark.parametrize("groups", [(3, 2, 4), (2,), (1, 3), (4, 4)], ids=str)
def test_pseudo_log_likelihood_of_levels_equals_brute_force(groups):
    for energy in (OneHot(groups), one_hot(groups)):
        x, expected = brute_of_levels(energy)
        found = pseudo_log_likelihood(energy, x)
        torch.testing.assert_close(found.detach(), expected)
        order = torch.randperm(len(x), generator=seeded())
        torch.testing.assert_close(pseudo_log_likelihood(energy, x[order]), found[order])


def test_pseudo_log_likelihood_of_independent_levels_is_the_likelihood():
    class Nothing(torch.nn.Module):
        def forward(self, x):
            return x.new_zeros(len(x))

    groups = (3, 2, 4)
    base = IndependentCategorical(torch.randn(9, generator=seeded(), dtype=DOUBLE), groups)
    x = base.sample(20, seeded(1))
    found = pseudo_log_likelihood(NeuralEnergy(Nothing(), Categorical(groups), base), x)
    torch.testing.assert_close(found, base.log_prob(x))


def test_pairs_of_levels_are_bits():
    class Coded(Energy):
        """An energy of bits, each of which is written in two levels."""

        def __init__(self, inner):
            super().__init__()
            self.inner, self.domain = inner, Categorical((2,) * D)

        def forward(self, x, cond=None):
            return self.inner(x[:, 1::2])

    energy, x = make_rbm(D, H), bits(D)
    coded = torch.stack([1 - x, x], 2).flatten(1)
    expected = pseudo_log_likelihood(energy, x)
    torch.testing.assert_close(pseudo_log_likelihood(Coded(energy), coded), expected)


def test_pseudo_log_likelihood_of_levels_trains():
    energy = one_hot()
    x, _ = brute_of_levels(energy)
    pseudo_log_likelihood(energy, x).mean().backward()
    for name, p in energy.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all()
        assert p.grad.any(), name
