"""Subspace RBMs against sums over all gates, units and rows."""

import math

import pytest
import torch

from skebm.base import Batch, ChainState
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    LatentClasses,
)
from skebm.energies import MixedRBM, SubspaceEnergy
from skebm.objectives import (
    CenteredObjective,
    Centering,
    ContrastiveDivergence,
    Penalty,
    PseudoLikelihood,
)
from skebm.partition import AIS, Exact, exact_draws
from skebm.samplers import FromData, Gibbs, Persistent
from tests.oracle import DOUBLE, joint_energy, make_subspace, seeded


def normal(n, seed=5):
    return torch.randn(n, generator=seeded(seed), dtype=DOUBLE)


def bases():
    bits = IndependentBernoulli(normal(4))
    levels = IndependentCategorical(torch.zeros(5, dtype=DOUBLE), (2, 3))
    real = Gaussian(torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))
    x = (torch.rand(50, 4, generator=seeded(5), dtype=DOUBLE) < 0.4).to(DOUBLE)
    return {
        "bits": bits,
        "tree": ChowLiuTree.fit(x, torch.ones(50, dtype=DOUBLE)),
        "levels": Columns([bits, levels]),
        "real": Columns([levels, real]),
    }


def energy_on(name, n_gates=2, n_subspace=2):
    return make_subspace(bases()[name], n_gates, n_subspace)


def rows_of(energy, n=6):
    return energy.base.sample(n, seeded(2)).to(DOUBLE)


def states_of(domain):
    return torch.cat(list(domain.enumerate(dtype=DOUBLE)))


names = pytest.mark.parametrize("name", list(bases()))
discrete = pytest.mark.parametrize("name", ["bits", "tree", "levels"])


# ------------------------------------------------------------------------------
# The energy: conditionals on bits are in tests/contracts/test_energies.py
# ------------------------------------------------------------------------------


@names
def test_free_energy_is_the_formula_and_the_sum(name):
    energy = energy_on(name, 2, 3)
    x, layers = rows_of(energy), states_of(energy.hidden_domain)
    with torch.no_grad():
        summed = -(-joint_energy(energy, x, layers)).logsumexp(1)
        torch.testing.assert_close(energy(x), summed)
        field = (energy.rbm.statistics(x) @ energy.weight.t() + energy.rbm.hidden_bias).view(
            6, 2, 3
        )
        inside = energy.gate_bias + (1 + field.exp()).log().sum(2)
        hidden = (2**3 + inside.exp()).log().sum(1)
        torch.testing.assert_close(energy(x), energy.rbm.visible_energy(x) - hidden)


@names
def test_a_closed_gate_leaves_its_units_fair_coins(name):
    energy = energy_on(name)
    layer = energy.hidden(rows_of(energy, 1).expand(40_000, -1)).sample(seeded())
    closed = layer[layer[:, 0] == 0]
    assert len(closed) > 2000
    torch.testing.assert_close(
        closed[:, 2:4].mean(0), torch.full((2,), 0.5, dtype=DOUBLE), atol=0.05, rtol=0
    )


@discrete
def test_log_z_is_that_of_all_rows(name):
    energy = energy_on(name)
    with torch.no_grad():
        states = states_of(energy.domain)
        log_z = float((-energy(states)).logsumexp(0))
        assert Exact().estimate(energy).value == pytest.approx(log_z, abs=1e-8)
        layers = states_of(energy.hidden_domain)
        assert len(layers) == 2**6
        assert float((-energy.hidden_energy(layers)).logsumexp(0)) == pytest.approx(log_z)
    ais = AIS(n_chains=200, n_betas=50).estimate(energy, generator=seeded())
    assert ais.value == pytest.approx(log_z, abs=5 * ais.std_error + 0.02)


def test_real_columns_have_the_log_z_of_quadrature():
    energy = make_subspace(Gaussian(torch.zeros(1, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)))
    x = torch.linspace(-40, 40, 20_001, dtype=DOUBLE)[:, None]
    with torch.no_grad():
        integral = float((-energy(x)).logsumexp(0)) + math.log(80 / 20_000)
    log_z = Exact().estimate(energy).value
    assert log_z == pytest.approx(integral, abs=1e-6)
    wide = AIS(n_chains=500, n_betas=100).estimate(
        energy, base=energy.wider_base(), generator=seeded()
    )
    assert wide.value == pytest.approx(log_z, abs=5 * wide.std_error + 0.02)


@discrete
def test_gibbs_draws_the_marginal(name):
    energy = energy_on(name)
    with torch.no_grad():
        states = states_of(energy.domain)
        mean = (-energy(states)).softmax(0) @ states
        start = exact_draws(energy, 20_000, seeded())
        torch.testing.assert_close(start.mean(0), mean, atol=0.02, rtol=0)
        for kernel in (Gibbs(), Gibbs(n_collapsed=2)):
            state, _ = kernel.step(energy, ChainState(start), seeded(1))
            torch.testing.assert_close(state.x.mean(0), mean, atol=0.02, rtol=0)


@names
def test_padding_changes_nothing(name):
    energy = energy_on(name)
    x, padded = rows_of(energy), energy.padded()
    layer = energy.hidden(x).sample(seeded())
    with torch.no_grad():
        torch.testing.assert_close(padded(x), energy(x))
        torch.testing.assert_close(padded.hidden(x).mean, energy.hidden(x).mean)
        torch.testing.assert_close(padded.visible(layer).mean, energy.visible(layer).mean)


@names
def test_a_subspace_of_one_gate_that_is_always_open_is_a_plain_rbm(name):
    """Whatever c is, the units of open gates are those of an RBM."""
    energy = energy_on(name, 1, 4)
    x = rows_of(energy)
    with torch.no_grad():
        energy.gate_bias.fill_(60.0)
        torch.testing.assert_close(energy(x) + 60, energy.rbm(x))


@discrete
def test_differences_and_pseudo_likelihoods_are_those_of_the_energy(name):
    energy = energy_on(name)
    states = states_of(energy.domain)
    with torch.no_grad():
        found = energy.level_difference(states)
        expected = (
            super(SubspaceEnergy, energy).level_difference(states)
            if name == "levels"
            else (super(SubspaceEnergy, energy).flip_difference(states))
        )
        torch.testing.assert_close(found, expected)
        # Of column 0, a bit: its two states among all.
        other = states.clone()
        other[:, 0] = 1 - other[:, 0]
        one = torch.stack([-energy(states), -energy(other)]).log_softmax(0)[0]
        rest = energy.pseudo_log_likelihood(states) - one
        assert (rest < 0).all()


def of_each_real_column(energy, x):
    """log p(x_i given the others) of real columns, (n,), by quadrature."""
    grid, total = torch.linspace(-40, 40, 20_001, dtype=DOUBLE), 0.0
    for row in x:
        here = float(-energy(row[None]))
        for i in energy.is_real.nonzero().ravel():
            line = row.expand(len(grid), -1).clone()
            line[:, i] = grid
            total += here - float((-energy(line)).logsumexp(0)) - math.log(80 / 20_000)
    return total


@pytest.mark.parametrize("kind", ["gaussian", "latent classes"])
def test_pseudo_likelihoods_of_real_columns_are_integrals(kind):
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), torch.tensor([1.0, 1.5], dtype=DOUBLE))
    if kind == "latent classes":
        x = base.sample(200, seeded(3)).to(DOUBLE)
        base = LatentClasses.fit(x, base.domain, n_classes=2, generator=seeded())
    energy = make_subspace(base)
    x = rows_of(energy, 4)
    with torch.no_grad():
        found = float(energy.pseudo_log_likelihood(x).sum())
        assert found == pytest.approx(of_each_real_column(energy, x), abs=1e-5)


def test_k_0_and_units_that_do_not_fill_subspaces_are_refused():
    rbm = MixedRBM(bases()["bits"], 4, generator=seeded())
    for k in (0, 3, -1):
        with pytest.raises(ValueError, match=f"n_subspace={k}"):
            SubspaceEnergy(rbm, k)


# ------------------------------------------------------------------------------
# Gradients
# ------------------------------------------------------------------------------


def grads(energy):
    return {name: p.grad.clone() for name, p in energy.named_parameters() if p.numel()}


@names
@pytest.mark.parametrize("n_subspace", [2, 101])  # by two formulas
def test_the_written_gradient_is_that_of_the_contrast(name, n_subspace):
    energy = energy_on(name, 2, n_subspace)
    x, share = rows_of(energy, 8), torch.linspace(0.5, 1.5, 8, dtype=DOUBLE) / 8
    chain = energy.base.sample(5, seeded(8)).to(DOUBLE)
    sign = torch.cat([-share, torch.full((5,), float(share.sum()) / 5, dtype=DOUBLE)])
    energy.contrast_gradient(None, Penalty(l1=0.01, l2=0.1)).write(
        x, chain, sign, share, None, None
    )
    written = grads(energy)
    energy.zero_grad(set_to_none=True)
    loss = -(sign @ energy(torch.cat([x, chain])))
    (loss + Penalty(l1=0.01, l2=0.1).value(energy.weight, x, share)).backward()
    for key, value in grads(energy).items():
        torch.testing.assert_close(written[key], value, rtol=1e-8, atol=1e-10)


def test_the_exact_gradient_is_that_of_chains_at_the_model():
    energy = energy_on("bits")
    states = states_of(energy.domain)
    x = states[[1, 5, 9, 14]]
    (energy(x).mean() + (-energy(states)).logsumexp(0)).backward()
    exact = grads(energy)
    energy.zero_grad(set_to_none=True)
    n = 40_000
    objective = ContrastiveDivergence(energy, Gibbs(), Persistent(n_steps=1, n_chains=n))
    state = objective.start(Batch(x), seeded())
    state = state._replace(chain=ChainState(exact_draws(energy, n, seeded())))
    with torch.no_grad():
        objective.gradients(Batch(x), state, seeded(1))
    for key, value in exact.items():
        torch.testing.assert_close(grads(energy)[key], value, atol=0.02, rtol=0)


@names
@pytest.mark.parametrize("centering", [Centering(0.0), Centering(0.0, precondition=0.5)])
def test_centring_is_that_of_the_rbm_of_the_products(name, centering):
    """Weights of u - l and x - m: the gates' biases have the plain gradient, up to a factor."""
    energy = energy_on(name)
    x, share = rows_of(energy, 8), torch.full((8,), 1 / 8, dtype=DOUBLE)
    chain = energy.base.sample(8, seeded(8)).to(DOUBLE)
    sign = torch.cat([-share, share])
    own = energy.contrast_gradient(centering, None)
    offsets = own.start(x, None)
    new, layer = own.write(x, chain, sign, share, offsets, seeded())
    found = grads(energy)
    rows = torch.cat([x, chain])
    with torch.no_grad():
        layers = states_of(energy.hidden_domain)
        p = (-joint_energy(energy, rows, layers)).softmax(1)
        u, gate = p @ energy.products(layers), p @ layers[:, :2]
    torch.testing.assert_close(new.hidden, torch.cat([u[:8].mean(0), gate[:8].mean(0)]))
    inner = energy.rbm.contrast_gradient(centering, None)
    inner.write_means(rows, u.clone(), x, sign, share, new._replace(hidden=new.hidden[:4]))
    for key, value in grads(energy).items():
        if key != "gate_bias":
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9)
    variance = 4 * new.hidden[4:] * (1 - new.hidden[4:])
    torch.testing.assert_close(
        found["gate_bias"], sign @ gate / variance.pow(centering.precondition)
    )
    assert energy.hidden_domain.contains(layer).all()


@pytest.mark.parametrize("name", ["bits", "levels"])
def test_local_objectives_have_the_gradient_of_their_value(name):
    energy = energy_on(name)
    x = rows_of(energy, 8)
    objective = CenteredObjective(PseudoLikelihood(energy), penalty=Penalty(l2=0.1))
    state = objective.start(Batch(x), seeded())
    objective.gradients(Batch(x), state, seeded())
    written = grads(energy)
    energy.zero_grad(set_to_none=True)
    objective(Batch(x), state, seeded()).value.backward()
    for key, value in grads(energy).items():
        torch.testing.assert_close(written[key], value)
    # A step along the centred gradient descends.
    centred = CenteredObjective(PseudoLikelihood(energy), centering=Centering(precondition=0.5))
    state = centred.start(Batch(x), seeded())
    before = centred(Batch(x), state, seeded()).value.item()
    centred.gradients(Batch(x), state, seeded())
    with torch.no_grad():
        for p in energy.parameters():
            if p.numel():
                p.sub_(0.01 * p.grad)
    assert centred(Batch(x), state, seeded()).value.item() < before


def test_a_target_of_sparsity_is_refused():
    with pytest.raises(ValueError, match="sparsity_target"):
        ContrastiveDivergence(
            energy_on("bits"), Gibbs(), FromData(), penalty=Penalty(sparsity_target=0.1)
        )
