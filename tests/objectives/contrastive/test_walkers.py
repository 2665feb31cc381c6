"""Reweighted chains: samples of the present model, however fast it moves."""

import math

import pytest
import torch

from skebm.base import Batch, ChainState
from skebm.distributions import IndependentBernoulli
from skebm.objectives import ContrastiveDivergence, Walkers
from skebm.samplers import Gibbs, ParallelTempering, Persistent
from tests.support.oracle import DOUBLE, Enumerated, make_rbm, seeded

N = 20_000


def objective(energy, reweight=True):
    initial = IndependentBernoulli(torch.tensor([0.4, -0.3, 0.8, 0.1, -0.6], dtype=DOUBLE))
    chains = Persistent(n_chains=N, reweight=reweight, initial=initial)
    return ContrastiveDivergence(energy, Gibbs(), chains)


def hurried(n_updates, rate=0.5, seed=3, **kwargs):
    """An objective and its state after updates so large that chains lag behind."""
    energy, generator = make_rbm(5, 3, scale=0.1), seeded(seed)
    trained = objective(energy, **kwargs)
    rows = (torch.rand(40, 1, generator=generator, dtype=DOUBLE) < 0.3).to(DOUBLE).expand(-1, 5)
    with torch.no_grad():
        state = trained.start(Batch(rows), generator)
        for _ in range(n_updates):
            state = trained.gradients(Batch(rows), state, generator).state
            for p in energy.parameters():
                p -= rate * p.grad
    return trained, state


@pytest.mark.parametrize("n_updates", [0, 1, 60])
def test_weighted_chains_know_log_z(n_updates):
    trained, state = hurried(n_updates)
    with torch.no_grad():
        estimate = state.walkers.log_partition(trained.energy, state.chain.x)
    truth = float(Enumerated(trained.energy).log_z)
    assert abs(float(estimate) - truth) < 0.05


def test_weighted_chains_are_samples_where_others_lag():
    trained, state = hurried(10, rate=3.0)
    plain, lagging = hurried(10, rate=3.0, reweight=False)
    with torch.no_grad():
        chain, present = state.walkers.follow(trained.energy, state.chain, seeded(1))
    share = present.share
    truth = Enumerated(trained.energy)
    mean = truth.mean(truth.x)
    weighted = share @ chain.x
    torch.testing.assert_close(weighted, mean.detach(), atol=0.02, rtol=0)
    other = Enumerated(plain.energy)
    error = lagging.chain.x.mean(0) - other.mean(other.x)
    assert float(error.detach().abs().max()) > 0.08  # what the weights repair


def walkers(log_weight):
    n = len(log_weight)
    log_weight = torch.as_tensor(log_weight, dtype=DOUBLE)
    return Walkers(log_weight, torch.zeros((), dtype=DOUBLE), torch.zeros(n, dtype=DOUBLE))


class Flat(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(len(x), dtype=DOUBLE)


def test_resampling_copies_rows_by_their_weight_and_keeps_log_z():
    weight = torch.tensor([0.0, 5.0, 0.1, 0.1, 0.1, 0.0, 2.7, 0.0], dtype=DOUBLE)
    before = walkers(weight.log())
    x = torch.arange(8.0, dtype=DOUBLE)[:, None]
    chain, after = before.follow(Flat(), ChainState(x), seeded(0))
    copies = torch.bincount(chain.x[:, 0].long(), minlength=8)
    expected = 8 * weight / weight.sum()
    assert ((copies >= expected.floor()) & (copies <= expected.ceil())).all()
    assert torch.equal(after.log_weight, torch.zeros(8, dtype=DOUBLE))
    expected_z = math.log(float(weight.mean()))
    assert float(before.log_partition(Flat(), x)) == pytest.approx(expected_z)
    assert float(after.log_partition(Flat(), chain.x)) == pytest.approx(expected_z)


def test_even_weights_are_not_resampled():
    before = walkers([0.1, -0.1, 0.2, 0.0])
    x = torch.arange(4.0, dtype=DOUBLE)[:, None]
    chain, after = before.follow(Flat(), ChainState(x), seeded(0))
    assert torch.equal(chain.x, x)
    assert torch.equal(after.log_weight, before.log_weight)


def test_held_out_rows_are_judged_by_their_likelihood():
    trained, state = hurried(10)
    x = torch.eye(5, dtype=DOUBLE)
    with torch.no_grad():
        loss = trained.validation_loss(Batch(x), state, seeded())
        truth = (trained.energy(x) + Enumerated(trained.energy).log_z).mean()
        logs = trained.monitor(Batch(x), state, seeded())
    assert float(loss) == pytest.approx(float(truth), abs=0.05)
    assert float(logs["log_likelihood"]) == pytest.approx(-float(loss))


def test_only_chains_that_keep_to_themselves_are_weighed():
    initial = IndependentBernoulli(torch.zeros(5, dtype=DOUBLE))
    chains = Persistent(reweight=True, initial=initial)
    with pytest.raises(ValueError, match="reweight requires a sampler"):
        ContrastiveDivergence(make_rbm(5, 3), ParallelTempering(3), chains)
