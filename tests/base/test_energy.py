"""Sums, products with numbers, and mixtures of energies."""

import copy

import pytest
import torch

from skebm.base import Binary, EnergyMixture, EnergySum, PairwiseSum, Real
from skebm.distributions import Gaussian
from skebm.energies import BoltzmannMachine, MixedRBM, NeuralEnergy, ising_grid
from skebm.objectives import pseudo_log_likelihood
from skebm.partition import AIS, Bethe, Exact
from skebm.samplers import Gibbs, Langevin
from tests.support.oracle import (
    DOUBLE,
    P_FLOOR,
    bits,
    chi_square,
    count_states,
    make_rbm,
    seeded,
)
from tests.support.targets import Quadratic


def machine(d, seed):
    W = torch.randn(d, d, generator=seeded(seed), dtype=DOUBLE)
    return BoltzmannMachine(W, torch.randn(d, generator=seeded(seed + 1), dtype=DOUBLE), offset=0.3)


def probabilities(energy):
    """Of all states of binary rows."""
    return (-energy(bits(energy.domain.n_columns))).softmax(0).detach()


def test_sums_are_taken_apart():
    a, b, c = make_rbm(5, 3), machine(5, 0), machine(5, 2)
    energy = 2.0 * (a + 0.5 * b) + c * 3
    assert type(energy) is EnergySum
    assert energy.weights == (2.0, 1.0, 3.0)
    assert list(energy.energies) == [a, b, c]
    x = bits(5)
    torch.testing.assert_close(energy(x), 2 * a(x) + b(x) + 3 * c(x))
    assert len(list((a + a).parameters())) == len(list(a.parameters()))


def test_the_sum_of_machines_is_the_machine_of_the_summed_couplings():
    a, b = machine(5, 0), machine(5, 2)
    energy = a + 0.5 * b
    assert type(energy) is PairwiseSum
    whole = BoltzmannMachine(a.coupling + 0.5 * b.coupling, a.bias + 0.5 * b.bias, offset=0.45)
    x = bits(5)
    torch.testing.assert_close(energy(x), whole(x))
    torch.testing.assert_close(energy.logits(x), whole.logits(x))
    torch.testing.assert_close(energy.flip_difference(x), whole.flip_difference(x))
    for method in (Exact(), Bethe()):
        found, truth = method.estimate(energy).value, method.estimate(whole).value
        assert found == pytest.approx(truth, rel=1e-8)


def test_the_product_of_two_normal_distributions():
    """Precisions add, and means are weighted by them: the closed form."""
    mean = torch.tensor([[1.0, -2.0], [0.0, 3.0]], dtype=DOUBLE)
    precision = torch.tensor([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 3.0]]], dtype=DOUBLE)
    covariance = torch.linalg.inv(precision)
    energy = Quadratic(mean[0], covariance[0]) + 2.0 * Quadratic(mean[1], covariance[1])
    total = precision[0] + 2 * precision[1]
    centre = torch.linalg.solve(total, precision[0] @ mean[0] + 2 * precision[1] @ mean[1])
    x = torch.randn(20, 2, generator=seeded(0), dtype=DOUBLE)
    truth = -Gaussian(centre, covariance=torch.linalg.inv(total)).log_prob(x)
    found = energy(x)
    torch.testing.assert_close(found - found[0], truth - truth[0])
    value, grad = energy.value_and_grad(x)
    torch.testing.assert_close(value, found)
    torch.testing.assert_close(grad, (x - centre) @ total)


def test_colours_have_no_couplings_inside():
    energy = ising_grid(2, 4, 0.5, periodic=False) + ising_grid(1, 8, 0.3)
    coupling = energy.coupling
    groups = energy.colours
    assert sorted(torch.cat(groups).tolist()) == list(range(8))
    assert not any(coupling[group][:, group].any() for group in groups)


def test_gibbs_draws_follow_a_sum_of_machines():
    d = 4
    energy = machine(d, 0) + machine(d, 2)
    start = Binary((d,)).uniform(4000, seeded(0), dtype=DOUBLE)
    state, _ = Gibbs().run(energy, start, 50, seeded(1))
    truth = probabilities(energy)
    assert chi_square(count_states(state.x), truth) > P_FLOOR


def test_annealing_of_a_sum_knows_log_z():
    energy = 0.7 * make_rbm(5, 3) + machine(5, 0)
    truth = Exact().estimate(energy).value
    found = AIS(n_chains=200, n_betas=100).estimate(energy, generator=seeded(0))
    assert abs(found.value - truth) < 4 * found.std_error + 1e-3


def test_gradients_reach_the_parameters_of_the_parts():
    a, b = make_rbm(5, 3), machine(5, 0)
    energy = 0.5 * a + b
    energy(bits(5)).sum().backward()
    alone = copy.deepcopy(a)
    alone.zero_grad()
    alone(bits(5)).sum().backward()
    torch.testing.assert_close(a.weight.grad, 0.5 * alone.weight.grad)
    assert b.weight.grad is not None


def test_mixtures_are_mixtures():
    a, b = make_rbm(5, 3), machine(5, 0)
    shares = torch.tensor([0.3, 0.7], dtype=DOUBLE)
    logs = [Exact().estimate(one).value for one in (a, b)]
    weights = (shares.log() - torch.tensor(logs, dtype=DOUBLE)).tolist()
    energy = EnergyMixture([a, b], weights)
    assert Exact().estimate(energy).value == pytest.approx(0, abs=1e-8)
    truth = shares[0] * probabilities(a) + shares[1] * probabilities(b)
    torch.testing.assert_close(probabilities(energy), truth)
    assert pseudo_log_likelihood(energy, bits(5)).isfinite().all()


def test_sums_of_numbers_are_sampled():
    energy = Quadratic(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE))
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    energy = energy + MixedRBM(base, 2, generator=seeded(0), dtype=DOUBLE)
    state, _ = Langevin(0.1).run(energy, torch.zeros(50, 2, dtype=DOUBLE), 20, seeded(1))
    assert state.x.isfinite().all()


def test_bad_terms_are_refused():
    a = make_rbm(5, 3)
    with pytest.raises(ValueError, match="same domain"):
        a + make_rbm(4, 3)
    with pytest.raises(ValueError, match="same domain"):
        NeuralEnergy(torch.nn.Linear(5, 1), Real((5,))) + a
    for bad in (1.0, "a", None):
        with pytest.raises(TypeError):
            a + bad
    for bad in ("a", None, True, torch.ones(2)):
        with pytest.raises(TypeError):
            a * bad
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            bad * a
    with pytest.raises(ValueError, match="finite numbers, one for each"):
        EnergySum([a, a], [1.0])
    with pytest.raises(ValueError, match="At least one"):
        EnergyMixture([])
    with pytest.raises(TypeError, match="not an Energy"):
        EnergySum([a, torch.nn.Linear(5, 1)])
    with pytest.raises(TypeError, match="use EnergySum"):
        PairwiseSum([a])
