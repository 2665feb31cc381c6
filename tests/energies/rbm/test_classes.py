"""Classification RBMs against sums over all classes, hidden units and rows."""

import itertools

import pytest
import torch

from skebm.base import Batch, ChainState, Clamp
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
)
from skebm.energies import ClassRBM, MixedRBM
from skebm.objectives import Centering, ClassLikelihood, Penalty
from skebm.partition import AIS, AISBracket, Exact, exact_draws
from skebm.samplers import FromData, Gibbs, Persistent
from tests.support.oracle import seeded
from tests.support.tiers import full, only_full

F64 = torch.float64
N_CLASSES, N_HIDDEN = 3, 2


def bases():
    g = seeded(5)
    bits = IndependentBernoulli(torch.randn(4, generator=g, dtype=F64))
    levels = IndependentCategorical(torch.zeros(5, dtype=F64), (2, 3))
    real = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    x = (torch.rand(50, 4, generator=g, dtype=F64) < 0.4).to(F64)
    tree = ChowLiuTree.fit(x, torch.ones(50, dtype=F64))
    return {
        "bits": bits,
        "tree": tree,
        "levels": Columns([bits, levels]),
        "real": Columns([levels, real]),
    }


def machine_of(name, scale=0.7):
    base, g = bases()[name], seeded(1)
    rows = MixedRBM(base, N_HIDDEN, generator=g, scale=scale, dtype=F64)
    energy = ClassRBM(rows, N_CLASSES, generator=g, scale=scale)
    with torch.no_grad():
        for p in energy.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g, dtype=F64))
    return energy


def rows_of(energy, n=6):
    g = seeded(2)
    return energy.base.sample(n, g).to(F64)


def joint(energy, x, y, h):
    """E(x, y, h) by the formula."""
    m = energy.rbm
    return (
        -m.structure().log_prob(x)
        - m.statistics(x) @ m.visible_bias
        - h @ m.hidden_bias
        - (m.statistics(x) * (h @ m.weight)).sum(1)
        - energy.class_bias[y]
        - h @ energy.class_weight[:, y]
    )


def hidden_states():
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=N_HIDDEN)), dtype=F64)


def all_energies(energy, x):
    """(n, K, states)."""
    found = [
        [joint(energy, x, y, h.expand(len(x), -1)) for h in hidden_states()]
        for y in range(N_CLASSES)
    ]
    return torch.stack([torch.stack(of_class, 1) for of_class in found], 1)


names = pytest.mark.parametrize("name", list(bases()))
discrete = pytest.mark.parametrize("name", ["bits", "tree", "levels"])


@names
def test_class_probabilities_and_free_energies_are_sums(name):
    energy = machine_of(name)
    x = rows_of(energy)
    with torch.no_grad():
        every = all_energies(energy, x)
        of_class = -(-every).logsumexp(2)
        torch.testing.assert_close(energy.joint_free_energy(x), of_class)
        torch.testing.assert_close(energy(x), -(-of_class).logsumexp(1))
        torch.testing.assert_close(energy.log_class_proba(x), (-of_class).log_softmax(1))
        for beta in (0.0, 0.6):
            tempered = -(-beta * every).flatten(1).logsumexp(1)
            torch.testing.assert_close(energy.free_energy(x, beta), tempered)
        several = energy.free_energy(x, torch.tensor([[0.0], [0.6]], dtype=F64))
        torch.testing.assert_close(several[1], energy.free_energy(x, 0.6))


@names
def test_conditionals_of_the_layer(name):
    energy = machine_of(name)
    x = rows_of(energy)
    with torch.no_grad():
        p = (-all_energies(energy, x)).flatten(1).softmax(1).view(len(x), N_CLASSES, -1)
        units = torch.einsum("nks,sh->nh", p, hidden_states())
        mean = energy.hidden(x).mean
        torch.testing.assert_close(mean, torch.cat([p.sum(2), units], 1))
        # Draws have these means, and the class of a draw is one of them.
        many = energy.hidden(x[:1].expand(20_000, -1)).sample(seeded())
        assert energy.hidden_domain.contains(many).all()
        torch.testing.assert_close(many.mean(0), mean[0], atol=0.02, rtol=0)
        # The correlation of class and units is that of the model.
        pair = (many[:, 0] * many[:, N_CLASSES]).mean()
        exact = (p[0, 0] * hidden_states()[:, 0]).sum()
        assert pair == pytest.approx(float(exact), abs=0.02)


@discrete
def test_energy_of_a_layer_sums_over_rows(name):
    energy = machine_of(name)
    states = torch.cat(list(energy.domain.enumerate()))
    with torch.no_grad():
        layers = torch.cat(list(energy.hidden_domain.enumerate()))
        assert len(layers) == N_CLASSES * 2**N_HIDDEN
        for layer in layers:
            y, h = int(layer[:N_CLASSES].argmax()), layer[N_CLASSES:]
            every = joint(energy, states, y, h.expand(len(states), -1))
            found = energy.hidden_energy(layer[None])
            assert float(found) == pytest.approx(float(-(-every).logsumexp(0)))
            share = (-every).softmax(0)
            torch.testing.assert_close(energy.visible(layer[None]).mean[0], share @ states)
        clamp = Clamp(torch.zeros_like(states[:1], dtype=torch.bool), states[:1])
        clamp.mask[:, 0] = True
        agree = states[states[:, 0] == states[0, 0]]
        y, h = int(layers[0, :N_CLASSES].argmax()), layers[0, N_CLASSES:]
        every = joint(energy, agree, y, h.expand(len(agree), -1))
        found = energy.hidden_energy(layers[:1], clamp=clamp)
        assert float(found) == pytest.approx(float(-(-every).logsumexp(0)))


@pytest.mark.parametrize("name", ["bits", only_full("tree"), only_full("levels")])
def test_log_z_is_that_of_all_rows_and_classes(name):
    energy = machine_of(name)
    with torch.no_grad():
        states = torch.cat(list(energy.domain.enumerate()))
        log_z = float((-energy(states)).logsumexp(0))
        assert Exact().estimate(energy).value == pytest.approx(log_z)
        ais = AIS(n_chains=200, n_betas=50).estimate(energy, generator=seeded())
        assert ais.value == pytest.approx(log_z, abs=5 * ais.std_error + 0.02)
        bracket = AISBracket(n_chains=100, n_betas=100, n_steps=20).estimate(
            energy, x=states[:50], generator=seeded()
        )
        assert bracket.lower - 0.1 < log_z < bracket.upper + 0.1
        # Given a class, the RBM has the rest of log Z.
        parts = [
            Exact().estimate(energy.given(k)).value + energy.class_bias[k].item()
            for k in range(N_CLASSES)
        ]
        assert float(torch.tensor(parts).logsumexp(0)) == pytest.approx(log_z)


@full
def test_real_columns_have_the_log_z_of_the_sum_over_layers():
    energy = machine_of("real")
    log_z = Exact().estimate(energy).value
    parts = [
        Exact().estimate(energy.given(k)).value + energy.class_bias[k].item()
        for k in range(N_CLASSES)
    ]
    assert float(torch.tensor(parts).logsumexp(0)) == pytest.approx(log_z)
    wide = AIS(n_chains=1000, n_betas=200).estimate(
        energy, base=energy.wider_base(), generator=seeded()
    )
    assert wide.value == pytest.approx(log_z, abs=5 * wide.std_error + 0.02)


@discrete
def test_gibbs_draws_the_marginal(name):
    energy = machine_of(name)
    with torch.no_grad():
        states = torch.cat(list(energy.domain.enumerate()))
        mean = (-energy(states)).softmax(0) @ states
        start = exact_draws(energy, 20_000, seeded())
        torch.testing.assert_close(start.mean(0), mean, atol=0.02, rtol=0)
        state, _ = Gibbs().step(energy, ChainState(start), seeded(1))
        torch.testing.assert_close(state.x.mean(0), mean, atol=0.02, rtol=0)
    with pytest.raises(ValueError, match="n_collapsed"):
        Gibbs(n_collapsed=1).check(energy)


def test_padding_changes_no_energy():
    energy = machine_of("levels")
    x = rows_of(energy)
    padded = energy.with_padding()
    with torch.no_grad():
        torch.testing.assert_close(padded(x), energy(x))
        torch.testing.assert_close(padded.log_class_proba(x), energy.log_class_proba(x))


# ------------------------------------------------------------------------------
# Learning
# ------------------------------------------------------------------------------


def grads(energy):
    return {name: p.grad.clone() for name, p in energy.named_parameters() if p.grad is not None}


@names
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_written_gradient_is_that_of_the_loss(name, weight):
    energy = machine_of(name)
    x = rows_of(energy, 8)
    y = torch.tensor([0, 1, 2, -1, 1, -1, 0, 0])
    batch = Batch(x, y, torch.linspace(0.5, 1.5, 8, dtype=F64))
    objective = ClassLikelihood(
        energy,
        Gibbs(),
        FromData(n_steps=2),
        generative_weight=weight,
        class_weight=torch.tensor([1.0, 2.0, 0.5], dtype=F64),
        penalty=Penalty(l1=0.01, l2=0.1),
    )
    state = objective.start(batch, seeded())
    with torch.no_grad():
        objective.gradients(batch, state, seeded(3))
    written = grads(energy)
    energy.zero_grad(set_to_none=True)
    objective(batch, state, seeded(3)).value.backward()
    for key, value in grads(energy).items():
        torch.testing.assert_close(written[key], value, rtol=1e-8, atol=1e-10)


def test_the_gradient_of_labelled_rows_is_that_of_the_joint_likelihood():
    energy = machine_of("bits")
    states = torch.cat(list(energy.domain.enumerate()))
    x, y = states[[1, 5, 9, 14]], torch.tensor([0, 1, 2, 1])
    loss = energy.joint_free_energy(x).gather(1, y[:, None]).mean() + (-energy(states)).logsumexp(0)
    loss.backward()
    exact = grads(energy)
    energy.zero_grad(set_to_none=True)
    chains = Persistent(n_steps=1, n_chains=40_000)
    objective = ClassLikelihood(energy, Gibbs(), chains, generative_weight=1.0)
    state = objective.start(Batch(x, y), seeded())
    start = exact_draws(energy, 40_000, seeded())
    state = state._replace(chain=ChainState(start))
    with torch.no_grad():
        objective.gradients(Batch(x, y), state, seeded(1))
    for key, value in exact.items():
        torch.testing.assert_close(grads(energy)[key], value, atol=0.02, rtol=0)


@names
def test_centred_steps_keep_the_fixed_points_and_descend(name):
    """The centred gradient is a positive definite matrix times the plain one."""
    energy = machine_of(name)
    x, y = rows_of(energy, 8), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    plain, inner = None, []
    for centering in (None, Centering(), Centering(precondition=0.5)):
        objective = ClassLikelihood(
            energy, Gibbs(), FromData(), generative_weight=0.0, centering=centering
        )
        state = objective.start(Batch(x, y), seeded())
        with torch.no_grad():
            objective.gradients(Batch(x, y), state, seeded(3))
        found = torch.cat([g.flatten() for g in grads(energy).values()])
        plain = found if plain is None else plain
        inner.append(float(found @ plain))
    assert min(inner) > 0
    assert inner[1] != pytest.approx(inner[0])


def test_centring_is_that_of_a_machine_with_classes_among_its_columns():
    """Rows and classes side by side are the visible layer of one RBM."""
    energy = machine_of("bits")
    x, y = rows_of(energy, 8), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    one_hot = torch.nn.functional.one_hot(y, N_CLASSES).to(F64)
    both = MixedRBM(
        Columns([energy.base, IndependentCategorical(torch.zeros(3, dtype=F64), (3,))]),
        N_HIDDEN,
        generator=seeded(),
        dtype=F64,
    )
    with torch.no_grad():
        both.weight.copy_(torch.cat([energy.rbm.weight, energy.class_weight], 1))
        both.visible_bias.copy_(torch.cat([energy.rbm.visible_bias, energy.class_bias]))
        both.hidden_bias.copy_(energy.rbm.hidden_bias)
    # Chains that are the rows themselves, with the classes summed out.
    centering = Centering(rate=0.0, precondition=0.5)
    own = energy.contrast_gradient(centering, None)
    offsets = own.start(x, None)
    share = torch.full((8,), 1 / 8, dtype=F64)
    own.write_supervised(
        x, x, torch.cat([-share, share]), share, share[:, None] * one_hot, offsets, None
    )
    found = grads(energy)
    # The same contrast: labelled rows against rows with each class in proportion to p(y given x).
    with torch.no_grad():
        p = energy.log_class_proba(x).exp()
    every = torch.cat(
        [torch.cat([x, torch.eye(3, dtype=F64)[k].expand(8, -1)], 1) for k in range(3)]
    )
    sign = torch.cat([-share, (share[:, None] * p).t().flatten()])
    theirs = both.contrast_gradient(centering, None)
    theirs.write(torch.cat([x, one_hot], 1), every, sign, share, offsets, None)
    torch.testing.assert_close(
        torch.cat([found["rbm.weight"], found["class_weight"]], 1), both.weight.grad
    )
    torch.testing.assert_close(found["rbm.hidden_bias"], both.hidden_bias.grad)
    torch.testing.assert_close(
        torch.cat([found["rbm.visible_bias"], found["class_bias"]]), both.visible_bias.grad
    )


@pytest.mark.parametrize("centering", [Centering(), Centering(precondition=0.5)])
def test_centred_precisions_have_the_plain_gradient(centering):
    """Centring moves weights and biases; precisions are as they were."""
    energy = machine_of("real")
    x, share = rows_of(energy, 8), torch.full((8,), 1 / 8, dtype=F64)
    target = share[:, None] * torch.nn.functional.one_hot(torch.arange(8) % 3, 3).to(F64)
    found = []
    for how in (None, centering):
        own = energy.contrast_gradient(how, None)
        signs = torch.cat([-0.3 * share, 0.3 * share])
        own.write_supervised(x, x.flip(0) * 0.5, signs, share, target, own.start(x, None), None)
        found.append(energy.rbm.log_precision.grad.clone())
    torch.testing.assert_close(found[0], found[1])
