"""Independence sampling of an energy that corrects its proposals: exact, log q once a step."""

import pytest
import torch

from skebm.base import Binary
from skebm.distributions import IndependentBernoulli
from skebm.energies import NeuralEnergy, TreeSum
from skebm.energies.trees import Bins, Growth, grow_tree
from skebm.samplers import IndependenceSampler
from tests.support.oracle import DOUBLE, seeded

STATES = Binary((3,)).states(0, 8, dtype=DOUBLE, device="cpu")


class Counted(IndependentBernoulli):
    """Independent bits that count the rows at which log q is evaluated."""

    n_rows = 0

    def log_prob(self, x):
        type(self).n_rows += len(x)
        return super().log_prob(x)


def corrected():
    """Three bits whose base is corrected by a tree."""
    bins, values = Bins.of_samples(STATES), torch.randn(8, generator=seeded(3), dtype=DOUBLE)
    codes = bins.codes(STATES).t().contiguous()
    tree = grow_tree(codes, -values, torch.ones(8, dtype=DOUBLE), Growth(8, 0.0, 1))
    network = TreeSum.of_trees([tree], [bins], DOUBLE)
    base = Counted(torch.tensor([0.5, -1.0, 0.0], dtype=DOUBLE))
    return NeuralEnergy(network, Binary((3,)), base)


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_an_energy_that_corrects_its_proposals_is_sampled(beta):
    energy = corrected()
    p = (-beta * energy(STATES)).softmax(0)
    n = 40_000
    start = STATES[torch.multinomial(p, n, replacement=True, generator=seeded(0))]
    state, _ = IndependenceSampler().run(energy, start, 4, seeded(1), beta=beta)
    place = (state.x * torch.tensor([4.0, 2.0, 1.0], dtype=DOUBLE)).sum(1).long()
    order = (STATES * torch.tensor([4.0, 2.0, 1.0], dtype=DOUBLE)).sum(1).long()
    found = place.bincount(minlength=8)[order] / n
    z = (found - p) / (p * (1 - p) / n).sqrt()
    assert float(z.abs().max()) < 4
    torch.testing.assert_close(state.energy, energy(state.x))


def test_log_q_is_evaluated_at_proposals_once():
    energy = corrected()
    sampler = IndependenceSampler(whole_rows=True)
    state = sampler.init(energy, STATES)
    Counted.n_rows = 0
    sampler.step(energy, state, seeded(0))
    assert Counted.n_rows == len(STATES)
