"""Objectives for discrete rows: pseudo-likelihoods against enumeration."""

import pytest
import torch

from skebm.base import Binary, Energy, Real
from skebm.objectives import pseudo_log_likelihood
from tests.oracle import DOUBLE, Enumerated, bits, brute_pseudo_log_likelihood, make_rbm, seeded

D, H = 4, 3


@pytest.fixture
def energy():
    return make_rbm(D, H)


def test_pseudo_log_likelihood_equals_brute_force(energy):
    x = bits(D)
    expected = brute_pseudo_log_likelihood(energy, x)
    torch.testing.assert_close(pseudo_log_likelihood(energy, x).detach(), expected)


def test_pseudo_log_likelihood_does_not_see_the_order_of_rows(energy):
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
    with pytest.raises(ValueError, match="binary"):
        pseudo_log_likelihood(Pairs(Real((D,))), x)
