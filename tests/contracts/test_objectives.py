"""Every objective: its gradients are those of what it says it minimises, scaled as they should."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from skebm.base import (
    Batch,
    Binary,
    ChainState,
    Energy,
    Loss,
    Objective,
    Real,
    Sampler,
)
from skebm.noise import IndependentBernoulli
from skebm.objectives import (
    ContrastiveDivergence,
    ExactLikelihood,
    Offsets,
    Regulariser,
    pseudo_log_likelihood,
)
from skebm.objectives._means import weighted_mean
from skebm.samplers import Gibbs
from tests.discovery import without_case
from tests.oracle import (
    DOUBLE,
    P_FLOOR,
    Enumerated,
    bits,
    chi_square,
    count_states,
    finite_difference,
    joint_energy,
    make_rbm,
    mean_is,
    seeded,
)

D, H = 4, 3
N_CHAINS = 7  # not the size of any batch below


def uniform(energy):
    return IndependentBernoulli(torch.zeros_like(energy.visible_bias.detach()))


def cd(n_steps):
    def make(energy, centered=False, **kwargs):
        return ContrastiveDivergence(
            energy,
            Gibbs(),
            uniform(energy),
            **{"n_steps": n_steps, "persistent": False, "centered": centered, **kwargs},
        )

    return make


def pcd(n_steps):
    def make(energy, centered=False, **kwargs):
        settings = {"n_steps": n_steps, "n_chains": N_CHAINS, "centered": centered, **kwargs}
        return ContrastiveDivergence(energy, Gibbs(), uniform(energy), **settings)

    return make


def exact(energy, centered=False, **kwargs):
    return ExactLikelihood(energy, centered=centered, **kwargs)


class Case(NamedTuple):
    """How to make an objective of an energy, and what kind it is.

    `fixed` says that the gradient does not depend on the generator.
    """

    make: Callable[..., Objective]
    persistent: bool = False
    fixed: bool = False


CASES = {
    ContrastiveDivergence: {
        "CD-1": Case(cd(1)),
        "CD-3": Case(cd(3)),
        "PCD-1": Case(pcd(1), persistent=True),
        "PCD-2": Case(pcd(2), persistent=True),
        # Chains that stand still: what is left is the arithmetic of weights and counts.
        "PCD-0": Case(pcd(0), persistent=True, fixed=True),
    },
    ExactLikelihood: {"exact": Case(exact, fixed=True)},
}
ALL = {name: case for cases in CASES.values() for name, case in cases.items()}
FIXED = [name for name, case in ALL.items() if case.fixed]
PERSISTENT = [name for name, case in ALL.items() if case.persistent]

PENALTIES = {
    "none": Regulariser(),
    "l1": Regulariser(l1=0.3),
    "l2": Regulariser(l2=0.4),
    "sparsity": Regulariser(sparsity_target=0.2, sparsity_cost=0.7),
    "all": Regulariser(0.3, 0.4, 0.2, 0.7),
}


@pytest.fixture(params=ALL)
def case(request):
    return ALL[request.param]


@pytest.fixture
def energy():
    return make_rbm(D, H)


def data(n=6, seed=11):
    return (torch.rand(n, D, generator=seeded(seed), dtype=DOUBLE) < 0.35).to(DOUBLE)


def weights(kind, n=6):
    """Weights of a batch; their mean over the fit is 1, over a batch it is what it is."""
    if kind is None:
        return None
    w = torch.rand(n, generator=seeded(12), dtype=DOUBLE) + 0.1
    return w * {"of mean 1": 1.0, "light": 0.3, "heavy": 3.0}[kind] / w.mean()


def gradient(objective, batch, state, seed=0):
    """What :meth:`gradients` writes, by name of the parameter, and the loss it returns."""
    objective.zero_grad()
    with torch.no_grad():
        loss = objective.gradients(batch, state, seeded(seed))
    return {name: p.grad.clone() for name, p in objective.energy.named_parameters()}, loss


def later(objective, x, n_batches=2):
    """A state from the midst of training, with all that it may carry by then."""
    state = objective.start(Batch(x), seeded(1))
    for number in range(n_batches):
        _, loss = gradient(objective, Batch(x), state, seed=100 + number)
        state = loss.state
    return state


def with_chains(state, x, aux=None):
    return state._replace(chain=ChainState(x, aux=aux))


def flat(grads):
    return torch.cat([grads[name].flatten() for name in sorted(grads)])


def assert_same(grads, expected, **tolerance):
    assert grads.keys() == expected.keys()
    for name in grads:
        torch.testing.assert_close(grads[name], expected[name].detach(), **tolerance)


def parameters(energy):
    return dict(energy.named_parameters())


def log_weight(energy, x):
    """log sum_h exp(-E(x, h)) by enumeration, differentiable."""
    return (-joint_energy(energy, x, bits(H))).logsumexp(1)


def nll(energy, x, weight=None):
    """Mean negative log-likelihood by enumeration of both layers, differentiable."""
    log_z = log_weight(energy, bits(D)).logsumexp(0)
    weight = torch.ones(len(x), dtype=DOUBLE) if weight is None else weight
    return (weight * (log_z - log_weight(energy, x))).sum() / len(x)


def autograd(function, energy):
    names = parameters(energy)
    grads = torch.autograd.grad(function(energy), list(names.values()), materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def test_every_objective_has_a_case():
    assert without_case(Objective, CASES) == []


# ------------------------------------------------------------------------------
# gradients() and forward() agree
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "of mean 1", "light"])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("started", ["fresh", "running"])
def test_gradients_are_those_of_forward(case, energy, penalty, kind, started):
    objective = case.make(energy, regulariser=PENALTIES[penalty])
    x = data()
    state = objective.start(Batch(x), seeded(1)) if started == "fresh" else later(objective, x)
    batch = Batch(x, weight=weights(kind))
    grads, loss = gradient(objective, batch, state, seed=5)
    expected = autograd(lambda _: objective(batch, state, seeded(5)).value, energy)
    assert_same(grads, expected)
    if loss.value is not None:  # a line search looks at the value, too
        torch.testing.assert_close(loss.value, objective(batch, state, seeded(5)).value.detach())


@pytest.mark.parametrize("centered", [False, True])
def test_every_parameter_gets_a_gradient(case, energy, centered):
    objective = case.make(energy, centered)
    x = data(5)
    for state in (objective.start(Batch(x), seeded(1)), later(objective, x)):
        grads, _ = gradient(objective, Batch(x), state)
        for name, p in parameters(energy).items():
            assert grads[name].shape == p.shape
            assert grads[name].dtype == p.dtype
            assert torch.isfinite(grads[name]).all(), name
            assert (grads[name] != 0).any(), name
            assert not p.grad.requires_grad


def test_gradients_replace_what_was_there(case, energy):
    objective = case.make(energy)
    x = data()
    state = objective.start(Batch(x), seeded(1))
    once, _ = gradient(objective, Batch(x), state)
    with torch.no_grad():
        objective.gradients(Batch(x), state, seeded(0))
    assert_same({name: p.grad for name, p in parameters(energy).items()}, once)


def test_gradients_leave_rows_parameters_and_the_global_generator_alone(case, energy):
    objective = case.make(energy, True, regulariser=PENALTIES["all"])
    x, w = data(), weights("of mean 1")
    kept = x.clone(), w.clone()
    before = {name: p.detach().clone() for name, p in parameters(energy).items()}
    global_state = torch.get_rng_state()
    state = objective.start(Batch(x), seeded(1))
    gradient(objective, Batch(x, weight=w), state)
    assert torch.equal(x, kept[0])
    assert torch.equal(w, kept[1])
    assert_same(parameters(energy), before, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), global_state)


def test_the_generator_is_the_only_randomness(case, energy):
    objective = case.make(energy)
    x = data(40)
    state = objective.start(Batch(x), seeded(1))
    first, _ = gradient(objective, Batch(x), state, seed=5)
    torch.manual_seed(99)
    second, _ = gradient(objective, Batch(x), state, seed=5)
    other, _ = gradient(objective, Batch(x), state, seed=6)
    assert_same(first, second, atol=0, rtol=0)
    assert case.fixed == torch.equal(flat(first), flat(other))


@pytest.mark.parametrize("name", FIXED)
def test_single_precision_gradients_are_close(name, energy):
    x = data()
    objective = ALL[name].make(energy, True, regulariser=PENALTIES["all"])
    single = ALL[name].make(copy.deepcopy(energy).float(), True, regulariser=PENALTIES["all"])
    grads, _ = gradient(objective, Batch(x), objective.start(Batch(x), seeded(1)))
    state = objective.start(Batch(x), seeded(1))
    if ALL[name].persistent:
        state = with_chains(state, state.chain.x.float())
    state = state._replace(offsets=type(state.offsets)(*(o.float() for o in state.offsets)))
    rough, _ = gradient(single, Batch(x.float()), state)
    assert {g.dtype for g in rough.values()} == {torch.float32}
    assert_same({k: g.double() for k, g in rough.items()}, grads, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------
# The likelihood
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(D, H), (3, 5)])
@pytest.mark.parametrize("kind", [None, "of mean 1"])
def test_exact_likelihood_is_the_likelihood(shape, kind):
    energy = make_rbm(*shape)
    x = bits(shape[0])[[0, 1, 1, 5, 6, 6]]
    w = weights(kind)
    objective, batch = ExactLikelihood(energy), Batch(x, weight=w)
    share = torch.ones(6, dtype=DOUBLE) if w is None else w
    log_p = Enumerated(energy).p.log()
    expected = -(share * log_p[[0, 1, 1, 5, 6, 6]]).sum() / 6
    state = objective.start(Batch(x), seeded())
    _, loss = gradient(objective, batch, state)
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(objective(batch, state, seeded()).value, expected)


@pytest.mark.parametrize("kind", [None, "of mean 1", "heavy"])
def test_exact_gradient_equals_finite_differences(energy, kind):
    x, w = data(), weights(kind)
    objective = ExactLikelihood(energy)
    grads, _ = gradient(objective, Batch(x, weight=w), objective.start(Batch(x), seeded()))
    for name, p in parameters(energy).items():

        def at(value, p=p):
            kept = p.detach().clone()
            with torch.no_grad():
                p.copy_(value)
                out = nll(energy, x, w)
                p.copy_(kept)
            return out

        expected = finite_difference(at, p.detach())
        torch.testing.assert_close(grads[name], expected, atol=1e-7, rtol=1e-6)


def test_exact_likelihood_notices_that_weights_have_changed(energy):
    """It remembers log Z between calls: any change of any parameter must be seen."""
    objective, x = ExactLikelihood(energy), data()
    state = objective.start(Batch(x), seeded())
    for p in energy.parameters():
        gradient(objective, Batch(x), state)
        with torch.no_grad():
            p.view(-1)[0] += 0.5
        grads, loss = gradient(objective, Batch(x), state)
        assert_same(grads, autograd(lambda e: nll(e, x), energy))
        torch.testing.assert_close(loss.value, nll(energy, x).detach())


@pytest.mark.parametrize("name", [name for name in ALL if name != "exact"])
@pytest.mark.parametrize("kind", [None, "of mean 1", "heavy"])
def test_contrastive_gradient_is_data_minus_chains(name, kind, energy):
    """Data rows count by their weight, and so does the negative phase as a whole."""
    objective, x, w = ALL[name].make(energy), data(5), weights(kind, 5)
    batch, state = Batch(x, weight=w), objective.start(Batch(x), seeded(1))
    grads, _ = gradient(objective, batch, state, seed=5)
    rows = objective(batch, state, seeded(5)).state.chain.x  # the same seed, the same chains
    w = torch.ones(5, dtype=DOUBLE) if w is None else w
    of_chain = torch.full((N_CHAINS,), float(w.mean()), dtype=DOUBLE)
    of_chain = of_chain if ALL[name].persistent else w

    def contrast(energy):
        model = (of_chain * log_weight(energy, rows)).mean()
        return model - (w * log_weight(energy, x)).mean()

    assert_same(grads, autograd(contrast, energy))


# ------------------------------------------------------------------------------
# Penalties
# ------------------------------------------------------------------------------


def penalty_formula(regulariser, energy, x, weight):
    """The documented penalty, with Bernoulli Kullback-Leibler divergences spelled out."""
    value = regulariser.l1 * energy.weight.abs().sum()
    value = value + regulariser.l2 / 2 * (energy.weight**2).sum()
    if regulariser.sparsity_target is not None:
        weight = torch.ones(len(x), dtype=DOUBLE) if weight is None else weight
        h = (-joint_energy(energy, x, bits(H))).softmax(1) @ bits(H)
        mean = (weight[:, None] * h).sum(0) / weight.sum()
        rho = torch.distributions.Bernoulli(
            torch.full((H,), regulariser.sparsity_target, dtype=DOUBLE)
        )
        kl = torch.distributions.kl_divergence(rho, torch.distributions.Bernoulli(mean))
        value = value + regulariser.sparsity_cost * kl.sum()
    return value


@pytest.mark.parametrize("penalty", ["l1", "l2", "sparsity"])
@pytest.mark.parametrize("kind", [None, "of mean 1", "light", "heavy"])
def test_penalties_add_their_gradient(case, energy, penalty, kind):
    """The activation that sparsity looks at is a mean, whatever the batch weighs in the fit."""
    x, w, regulariser = data(), weights(kind), PENALTIES[penalty]
    batch = Batch(x, weight=w)
    plain = case.make(energy)
    state = plain.start(Batch(x), seeded(1))
    without, _ = gradient(plain, batch, state)
    grads, _ = gradient(case.make(energy, regulariser=regulariser), batch, state)
    added = {name: grads[name] - without[name] for name in grads}
    assert_same(added, autograd(lambda e: penalty_formula(regulariser, e, x, w), energy))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_penalties_add_their_value(case, energy, penalty):
    x, w, regulariser = data(), weights("of mean 1"), PENALTIES[penalty]
    batch = Batch(x, weight=w)
    plain = case.make(energy)
    state = plain.start(Batch(x), seeded(1))
    without = plain(batch, state, seeded(2)).value
    value = case.make(energy, regulariser=regulariser)(batch, state, seeded(2)).value
    expected = penalty_formula(regulariser, energy, x, w)
    torch.testing.assert_close(value - without, expected, rtol=1e-6, atol=1e-7)


def test_sparsity_of_dead_and_saturated_units_is_finite(case, energy):
    with torch.no_grad():
        energy.weight.zero_()
        energy.hidden_bias.copy_(torch.tensor([-80.0, 80.0, 0.0], dtype=DOUBLE))
    objective = case.make(energy, regulariser=PENALTIES["sparsity"])
    x = data()
    state = objective.start(Batch(x), seeded(1))
    grads, _ = gradient(objective, Batch(x), state)
    assert torch.isfinite(flat(grads)).all()
    assert torch.isfinite(objective(Batch(x), state, seeded()).value)


# ------------------------------------------------------------------------------
# Centring
# ------------------------------------------------------------------------------


def offset_state(objective, x):
    """A state whose offsets are far from any mean: a wrong use of them cannot cancel."""
    state = objective.start(Batch(x), seeded(1))
    visible = torch.tensor([0.9, -0.3, 0.2, 0.6], dtype=DOUBLE)
    hidden = torch.tensor([0.1, 0.8, -0.4], dtype=DOUBLE)
    return state._replace(offsets=type(state.offsets)(visible, hidden))


def descend_centred(plain, energy, offsets, rate=0.1):
    r"""A step of gradient descent on (W, b', c') of (h - lambda)' W (x - mu) + b' x + c' h.

    `plain` is the gradient for (W, b, c), so the loss is linear to first order. Returns the step in
    (W, b, c) over -rate, which is what a step along it does.
    """
    mu, lam = offsets

    def biases(W, b_, c_):
        return b_ - W.t() @ lam, c_ - W @ mu

    W = energy.weight.detach().clone()
    b_ = energy.visible_bias.detach() + W.t() @ lam
    c_ = energy.hidden_bias.detach() + W @ mu
    for p in (W, b_, c_):
        p.requires_grad_(True)
    b, c = biases(W, b_, c_)
    loss = (plain["weight"] * W).sum() + plain["visible_bias"] @ b + plain["hidden_bias"] @ c
    loss.backward()
    new = [(p - rate * p.grad).detach() for p in (W, b_, c_)]
    b_new, c_new = biases(*new)
    return {
        "weight": (energy.weight - new[0]).detach() / rate,
        "visible_bias": (energy.visible_bias - b_new).detach() / rate,
        "hidden_bias": (energy.hidden_bias - c_new).detach() / rate,
    }


@pytest.mark.parametrize("penalty", ["none", "all"])
def test_centring_descends_the_centred_model(case, energy, penalty):
    x, regulariser = data(), PENALTIES[penalty]
    plain = case.make(energy, regulariser=regulariser)
    centred = case.make(energy, True, offset_rate=0.0, regulariser=regulariser)
    state = offset_state(centred, x)
    without, _ = gradient(plain, Batch(x), state._replace(offsets=None), seed=5)
    grads, _ = gradient(centred, Batch(x), state, seed=5)
    assert_same(grads, descend_centred(without, energy, state.offsets))


def test_exact_centring_descends_the_enumerated_likelihood(energy):
    """The same without a plain gradient in between: autograd of the centred model itself."""
    x, rate = data(), 1e-3
    objective = ExactLikelihood(energy, centered=True, offset_rate=0.0)
    state = offset_state(objective, x)
    mu, lam = state.offsets
    grads, _ = gradient(objective, Batch(x), state)
    W = energy.weight.detach().clone().requires_grad_(True)
    b_ = (energy.visible_bias.detach() + W.detach().t() @ lam).requires_grad_(True)
    c_ = (energy.hidden_bias.detach() + W.detach() @ mu).requires_grad_(True)
    v, h = bits(D), bits(H)

    def log_p(x):
        pairs = torch.einsum("mj,ji,ni->nm", h - lam, W, x - mu)
        return (pairs + (x @ b_)[:, None] + (h @ c_)[None]).logsumexp(1)

    (log_p(v).logsumexp(0) - log_p(x).mean()).backward()
    new_W, new_b, new_c = ((p - rate * p.grad).detach() for p in (W, b_, c_))
    step = {
        "weight": energy.weight - new_W,
        "visible_bias": energy.visible_bias - (new_b - new_W.t() @ lam),
        "hidden_bias": energy.hidden_bias - (new_c - new_W @ mu),
    }
    assert_same(grads, {name: value / rate for name, value in step.items()}, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("kind", [None, "of mean 1"])
def test_offsets_follow_the_means_of_the_data(case, energy, rate, kind):
    objective, x, w = case.make(energy, True, offset_rate=rate), data(), weights(kind)
    h = (-joint_energy(energy, x, bits(H))).softmax(1) @ bits(H)
    share = torch.full((6,), 1 / 6, dtype=DOUBLE) if w is None else w / 6
    fresh = objective.start(Batch(x, weight=w), seeded(1)).offsets
    torch.testing.assert_close(fresh.visible, share @ x)
    torch.testing.assert_close(fresh.hidden, (share @ h).detach())
    old = offset_state(objective, x)
    kept = [o.clone() for o in old.offsets]
    _, loss = gradient(objective, Batch(x, weight=w), old)
    for new, before, mean in zip(loss.state.offsets, kept, (share @ x, share @ h), strict=True):
        torch.testing.assert_close(new, ((1 - rate) * before + rate * mean).detach())
    for now, before in zip(old.offsets, kept, strict=True):
        assert torch.equal(now, before)  # a roll-back returns to this state


# ------------------------------------------------------------------------------
# Expectations
# ------------------------------------------------------------------------------


def equilibrium(objective, state, target, n, seed):
    """The state with chains that are exact draws of the model, where it has chains."""
    if not hasattr(state, "chain") or not objective.persistent:
        return state
    x, h = target.draw_pair(n, seeded(seed))
    # Every other time the chains come with the hidden layer of their next step.
    return with_chains(state, x, aux=h if seed % 2 and objective.n_steps else None)


def replicates(case, energy, batch, centered, n=500, repeats=40):
    """Gradients of independent repetitions with exact chains, (repeats, n_parameters)."""
    objective = case.make(energy, centered, **({"n_chains": n} if case.persistent else {}))
    target, found = Enumerated(energy), []
    start = objective.start(batch, seeded(1))
    for seed in range(1 if objective.__class__ is ExactLikelihood else repeats):
        state = equilibrium(objective, start, target, n, 1000 + seed)
        found.append(flat(gradient(objective, batch, state, seed)[0]))
    return torch.stack(found)


def states_as_data(energy, repeat=1):
    """All rows there are, weighted by the model's probabilities (mean weight 1)."""
    p = Enumerated(energy).p.detach()
    return Batch(bits(D).repeat(repeat, 1), weight=(p * len(p)).repeat(repeat))


@pytest.mark.parametrize("name", PERSISTENT)
def test_persistent_gradient_is_the_likelihoods_in_expectation(name, energy):
    x, w = data(), weights("of mean 1")
    samples = replicates(ALL[name], energy, Batch(x, weight=w), centered=False)
    truth = flat(autograd(lambda e: nll(e, x, w), energy))
    assert mean_is(samples, truth) < 4.5
    assert mean_is(samples, 0.9 * truth) > 6  # so fine is the sieve


@pytest.mark.parametrize("centered", [False, True])
def test_the_truth_is_a_fixed_point(case, energy, centered):
    """At the parameters that made the data the expected gradient is zero, and only there."""
    samples = replicates(case, energy, states_as_data(energy, repeat=60), centered)
    other = make_rbm(D, H, seed=1)
    elsewhere = replicates(case, other, states_as_data(energy, repeat=60), centered)
    if len(samples) == 1:
        torch.testing.assert_close(samples[0], torch.zeros_like(samples[0]))
        assert elsewhere.abs().max() > 0.01
    else:
        assert mean_is(samples, 0) < 4.5
        assert mean_is(elsewhere, 0) > 10


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("name", PERSISTENT)
def test_persistent_chains_stay_exact_with_their_hidden_layer(name, centered, energy):
    """What a step leaves for the next one is a draw of p(x, h), not of x and of h."""
    target = Enumerated(energy)
    objective, x = ALL[name].make(energy, centered, n_chains=20_000), data()
    state = equilibrium(objective, objective.start(Batch(x), seeded(1)), target, 20_000, 2)
    for seed in range(3):
        _, loss = gradient(objective, Batch(x), state, seed)
        state = loss.state
        pair = torch.cat([state.chain.x, state.chain.aux], 1)
        assert chi_square(count_states(pair), target.joint.flatten()) > P_FLOOR


def test_the_bias_of_contrastive_divergence_shrinks_with_its_steps():
    energy = make_rbm(D, H, scale=2.0)  # slow enough to mix for one step to be too few
    rows = data().repeat(3000, 1)
    truth = flat(autograd(lambda e: nll(e, data()), energy))
    bias = []
    for n_steps in (1, 3, 30):
        objective = cd(n_steps)(energy)
        grads, _ = gradient(objective, Batch(rows), objective.start(Batch(rows), seeded(1)))
        bias.append(float((flat(grads) - truth).norm()))
    noise = (len(truth) * 0.25 / len(rows)) ** 0.5  # standard deviation of a mean of bits
    assert bias[0] > bias[1] + 4 * noise
    assert bias[1] > bias[2] + 4 * noise
    assert bias[2] < 2 * noise


# ------------------------------------------------------------------------------
# Weights and counts
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("centered", [False, True])
def test_a_short_batch_counts_for_itself(name, centered, energy):
    objective = ALL[name].make(energy, centered, regulariser=PENALTIES["all"])
    x = data(3)
    state = objective.start(Batch(x), seeded(1))
    short, _ = gradient(objective, Batch(x), state)
    full, _ = gradient(objective, Batch(x.repeat(4, 1)), state)
    assert_same(short, full)


def test_chains_like_the_data_leave_no_gradient(energy):
    """Five rows against ten chains: sums in place of means would leave half of the data."""
    objective = pcd(0)(energy, n_chains=10)
    x = data(5)
    state = with_chains(objective.start(Batch(x), seeded(1)), x.repeat(2, 1))
    grads, _ = gradient(objective, Batch(x), state)
    for grad in grads.values():
        torch.testing.assert_close(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("centered", [False, True])
def test_integer_weights_are_repeated_rows(name, centered, energy):
    objective = ALL[name].make(energy, centered, regulariser=PENALTIES["all"], offset_rate=0.5)
    x, w = data(4), torch.tensor([1, 3, 0, 2])
    state = objective.start(Batch(x), seeded(1))
    repeated, many = gradient(objective, Batch(x.repeat_interleave(w, 0)), state)
    weighted, few = gradient(objective, Batch(x, weight=w / w.to(DOUBLE).mean()), state)
    assert_same(weighted, repeated)
    for a, b in zip(few.state.offsets or (), many.state.offsets or (), strict=True):
        torch.testing.assert_close(a, b)


def test_equal_weights_are_no_weights(case, energy):
    objective = case.make(energy, True, regulariser=PENALTIES["all"])
    x = data()
    state = objective.start(Batch(x), seeded(1))
    plain, _ = gradient(objective, Batch(x), state)
    weighted, _ = gradient(objective, Batch(x, weight=torch.ones(6, dtype=DOUBLE)), state)
    assert_same(weighted, plain)


def test_a_batch_pulls_with_its_weight(case, energy):
    """Twice the weight, twice the gradient: a heavy batch of a fit is not normalised away."""
    objective, x, w = case.make(energy), data(), weights("of mean 1")
    state = objective.start(Batch(x), seeded(1))
    once, _ = gradient(objective, Batch(x, weight=w), state)
    twice, _ = gradient(objective, Batch(x, weight=2 * w), state)
    assert_same(twice, {name: 2 * grad for name, grad in once.items()})


@pytest.mark.parametrize("centered", [False, True])
def test_a_batch_without_weight_does_not_pull(case, energy, centered):
    x = data()
    batch = Batch(x, weight=torch.zeros(6, dtype=DOUBLE))
    objective = case.make(energy, centered)
    state = objective.start(batch, seeded(1))
    grads, loss = gradient(objective, batch, state)
    for grad in grads.values():
        torch.testing.assert_close(grad, torch.zeros_like(grad))
    for offset in loss.state.offsets or ():
        assert torch.isfinite(offset).all()
    logs = objective.monitor(batch, loss.state, seeded(0))
    assert objective.diverged({name: float(value) for name, value in logs.items()}) is None
    assert torch.isfinite(objective.held_out(batch, loss.state, seeded(0)))
    sparse = case.make(energy, centered, regulariser=PENALTIES["sparsity"])
    grads, _ = gradient(sparse, batch, sparse.start(batch, seeded(1)))
    assert torch.isfinite(flat(grads)).all()


def test_a_weighted_mean_repeats_rows():
    values, weight = torch.tensor([1.0, 5.0, 7.0]), torch.tensor([2.0, 0.0, 1.0])
    assert weighted_mean(values, weight).item() == pytest.approx((1 + 1 + 7) / 3)
    assert weighted_mean(values, 9 * weight).item() == pytest.approx((1 + 1 + 7) / 3)
    assert weighted_mean(values, None).item() == pytest.approx(13 / 3)
    assert torch.isfinite(weighted_mean(values, 0 * weight))


# ------------------------------------------------------------------------------
# State that is stored
# ------------------------------------------------------------------------------


def same(a, b):
    if a is None or b is None:
        return a is b
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("n_batches", [0, 2])
def test_a_stored_state_goes_on_as_if_nothing_had_happened(case, energy, centered, n_batches):
    objective = case.make(energy, centered)
    x = data()
    state = later(objective, x, n_batches)
    packed = objective.pack(state)
    assert all(value is None or isinstance(value, torch.Tensor) for value in packed.values())
    again = objective.unpack(packed)
    if again is None:  # allowed where a fresh state is the same: it then holds nothing
        assert not any(value is not None for value in packed.values())
        again = objective.start(Batch(x), seeded(1))
    assert same(state, again)
    first, one = gradient(objective, Batch(x), state, seed=5)
    second, two = gradient(objective, Batch(x), again, seed=5)
    assert_same(second, first, atol=0, rtol=0)
    assert same(one.state, two.state)


def test_no_state_can_be_stored(case, energy):
    """A net may be stored before its first batch."""
    objective = case.make(energy, True)
    assert objective.unpack(objective.pack(None)) is None


@pytest.mark.parametrize("centered", [False, True])
def test_a_stored_state_does_not_change_the_setting(case, energy, centered):
    """A warm start with another `centered` trains as that setting says."""
    x = data()
    before, after = case.make(energy, not centered), case.make(energy, centered)
    state = after.unpack(before.pack(later(before, x)))
    if state is None:
        state = after.start(Batch(x), seeded(1))
    assert (state.offsets is not None) == centered
    grads, _ = gradient(after, Batch(x), state, seed=5)
    if not centered:
        expected = autograd(lambda _: after(Batch(x), state, seeded(5)).value, energy)
        assert_same(grads, expected)


def test_chains_of_another_number_are_started_anew(energy):
    x = data()
    few, many = pcd(1)(energy), pcd(1)(energy, n_chains=2 * N_CHAINS)
    assert many.unpack(few.pack(later(few, x))) is None


def test_an_objective_can_be_copied_in_the_midst_of_training(case, energy):
    objective = case.make(energy, True)
    x = data()
    state = later(objective, x)
    twin = copy.deepcopy(objective)
    assert twin.energy is not objective.energy
    first, _ = gradient(objective, Batch(x), state, seed=5)
    second, _ = gradient(twin, Batch(x), state, seed=5)
    assert_same(second, first, atol=0, rtol=0)


def test_persistent_chains_go_on_and_others_start_at_the_data(energy):
    x = data()
    objective = pcd(1)(energy)
    state = later(objective, x)
    assert len(state.chain.x) == N_CHAINS
    assert energy.domain.contains(state.chain.x).all()
    still = pcd(0)(energy)
    fresh = still.start(Batch(x), seeded(1))
    assert torch.equal(gradient(still, Batch(x), fresh)[1].state.chain.x, fresh.chain.x)
    restarted = cd(0)(energy)
    loss = restarted(Batch(x), restarted.start(Batch(x), seeded(1)), seeded())
    assert torch.equal(loss.state.chain.x, x)


def test_chains_start_from_the_distribution_given(energy):
    logits = torch.tensor([30.0, -30.0, 30.0, 30.0], dtype=DOUBLE)
    objective = ContrastiveDivergence(energy, Gibbs(), IndependentBernoulli(logits), n_chains=9)
    x = objective.start(Batch(data()), seeded(1)).chain.x
    assert torch.equal(x, (logits > 0).to(DOUBLE).expand(9, -1))


# ------------------------------------------------------------------------------
# Monitor, held-out score, divergence
# ------------------------------------------------------------------------------


def look(objective, batch, state, seed=0):
    logs = objective.monitor(batch, state, seeded(seed))
    return {name: float(value) for name, value in logs.items()}


def test_looking_changes_nothing(case, energy):
    objective = case.make(energy, True, regulariser=PENALTIES["all"])
    x = data()
    state = later(objective, x)
    kept = copy.deepcopy(state)
    grads, _ = gradient(objective, Batch(x), state, seed=5)
    before = {name: p.detach().clone() for name, p in parameters(energy).items()}
    global_state, mode = torch.get_rng_state(), objective.training
    for look_at in (objective.monitor, objective.held_out):
        look_at(Batch(x), state, seeded(0))
    assert same(state, kept)
    assert_same(parameters(energy), before, atol=0, rtol=0)
    assert_same({name: p.grad for name, p in parameters(energy).items()}, grads, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert objective.training == mode
    assert_same(gradient(objective, Batch(x), state, seed=5)[0], grads, atol=0, rtol=0)


def test_the_monitor_sees_the_loss(case, energy):
    objective = case.make(energy)
    x = data()
    state = later(objective, x)
    logs = look(objective, Batch(x), state, seed=3)
    assert "loss" in logs
    if isinstance(objective, ExactLikelihood):
        assert logs["loss"] == pytest.approx(nll(energy, x).item())
        penalised = look(case.make(energy, regulariser=PENALTIES["all"]), Batch(x), state)
        penalty = penalty_formula(PENALTIES["all"], energy, x, None).item()
        assert penalised["loss"] - logs["loss"] == pytest.approx(penalty, rel=1e-6)
        return
    rows = state.chain.x if objective.persistent else None
    if rows is None:
        rows = objective(Batch(x), state, seeded(3)).state.chain.x
    gap = log_weight(energy, rows).mean() - log_weight(energy, x).mean()
    assert logs["loss"] == logs["energy_gap"] == pytest.approx(gap.item())


def test_the_monitor_reports_the_largest_weight(case, energy):
    objective, x = case.make(energy), data()
    with torch.no_grad():
        energy.weight[1, 2] = -17.0
    state = objective.start(Batch(x), seeded(1))
    assert look(objective, Batch(x), state)["largest_weight"] == 17.0


def test_reconstruction_error_is_that_of_a_mean_field_pass(energy):
    objective, x = pcd(1)(energy), data()
    with torch.no_grad():
        energy.hidden_bias.copy_(torch.tensor([80.0, -80.0, 80.0]))  # h is known
    h = torch.tensor([[1.0, 0.0, 1.0]], dtype=DOUBLE)
    p = (-joint_energy(energy, bits(D), h)).t().softmax(1) @ bits(D)
    logs = look(objective, Batch(x), objective.start(Batch(x), seeded(1)))
    assert logs["reconstruction_error"] == pytest.approx(((x - p) ** 2).mean().item())


@pytest.mark.parametrize("name", [*PERSISTENT, "exact"])
def test_rows_without_weight_do_not_show_in_the_monitor(name, energy):
    """Training does not see them; that they are unlikely must not look like a divergence."""
    objective, x = ALL[name].make(energy), data()
    state = objective.start(Batch(x), seeded(1))
    ignored = torch.ones(6, D, dtype=DOUBLE)
    w = torch.cat([torch.ones(6, dtype=DOUBLE), torch.zeros(6, dtype=DOUBLE)])
    alone = look(objective, Batch(x, weight=w[:6]), state)
    together = look(objective, Batch(torch.cat([x, ignored]), weight=w), state)
    assert together == pytest.approx(alone)


def test_the_monitor_weighs_chains_as_the_rows_they_started_from(energy):
    objective, x, w = cd(0)(energy), data(), weights("heavy")
    logs = look(objective, Batch(x, weight=w), objective.start(Batch(x), seeded(1)))
    assert logs["energy_gap"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("heaviness", [1.0, 10.0])
def test_a_heavy_batch_is_no_divergence(case, energy, heaviness):
    """The last, short batch of an epoch may hold the heaviest rows of a healthy fit."""
    objective, x = case.make(energy), data()
    batch = Batch(x, weight=torch.full((6,), heaviness, dtype=DOUBLE))
    state = later(objective, x)
    assert objective.diverged(look(objective, batch, state)) is None


def test_to_start_badly_is_not_to_diverge(case, energy):
    """Numbers no worse than before the epoch are no reason to take it back."""
    x = torch.ones(6, D, dtype=DOUBLE)
    with torch.no_grad():
        energy.weight.fill_(-200.0)
        energy.visible_bias.fill_(-5.0)
    objective = case.make(energy)
    state = objective.start(Batch(x), seeded(1))
    if case.persistent:
        state = with_chains(state, torch.zeros(N_CHAINS, D, dtype=DOUBLE))
    logs = look(objective, Batch(x), state)
    assert isinstance(objective.diverged(logs), str)
    assert objective.diverged(logs, before=logs) is None
    loss = "energy_gap" if "energy_gap" in logs else "loss"
    for name in (loss, "largest_weight"):  # each alone, if it has risen
        assert isinstance(objective.diverged(logs, logs | {name: logs[name] - 2}), str)


def test_numbers_that_are_not_finite_are_a_divergence(case, energy):
    objective, x = case.make(energy), data()
    logs = look(objective, Batch(x), later(objective, x))
    assert objective.diverged(logs) is None
    for name in logs:
        for bad in (float("nan"), float("inf"), -float("inf")):
            assert isinstance(objective.diverged(logs | {name: bad}), str), (name, bad)


def test_a_model_worse_than_chance_is_a_divergence(case, energy):
    """Data and chains stand where the model, with modest weights, puts no mass at all."""
    x = torch.ones(6, D, dtype=DOUBLE)
    with torch.no_grad():
        energy.weight.zero_()
        energy.visible_bias.fill_(-5.0)
    objective = case.make(energy)
    state = objective.start(Batch(x), seeded(1))
    if case.persistent:
        state = with_chains(state, torch.zeros(N_CHAINS, D, dtype=DOUBLE))
    assert isinstance(objective.diverged(look(objective, Batch(x), state)), str)
    with torch.no_grad():  # the same data under the uniform distribution are fine
        energy.visible_bias.zero_()
    state = objective.start(Batch(x), seeded(1))
    assert objective.diverged(look(objective, Batch(x), state)) is None


def test_a_step_that_chains_cannot_follow_is_a_divergence(case, energy):
    """The engine adds the energies' change in one step, in nats, to what the monitor says."""
    objective, x = case.make(energy), data()
    logs = look(objective, Batch(x), later(objective, x))
    assert objective.diverged(logs | {"energy_change": 0.01}) is None
    assert isinstance(objective.diverged(logs | {"energy_change": 1000.0}), str)


def test_runaway_weights_are_a_divergence(case, energy):
    objective, x = case.make(energy), data()
    with torch.no_grad():
        energy.weight.fill_(-1e4)  # silences the hidden units: no energy gap to see
    state = objective.start(Batch(x), seeded(1))
    if case.persistent:
        state = with_chains(state, x)
    reason = objective.diverged(look(objective, Batch(x), state))
    assert reason is not None


@pytest.mark.parametrize("kind", [None, "of mean 1", "heavy"])
def test_held_out_loss_is_a_mean_and_does_not_flicker(case, energy, kind):
    objective, x, w = case.make(energy, regulariser=PENALTIES["all"]), data(), weights(kind)
    state, batch = later(objective, x), Batch(x, weight=w)
    values = [objective.held_out(batch, state, seeded(seed)).item() for seed in (0, 1)]
    assert values[0] == values[1]
    w = torch.ones(6, dtype=DOUBLE) if w is None else w
    if isinstance(objective, ExactLikelihood):
        rows = log_weight(energy, bits(D)).logsumexp(0) - log_weight(energy, x)
    else:
        rows = -brute_pseudo_log_likelihood(energy, x)
    assert values[0] == pytest.approx(((w * rows).sum() / w.sum()).item())


class Unfit(Sampler):
    """Draws real rows."""

    domains = (Real,)

    def init(self, energy, x):
        raise AssertionError

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        raise AssertionError


def test_an_unfit_sampler_is_refused_at_once(energy):
    with pytest.raises(TypeError, match="Unfit"):
        ContrastiveDivergence(energy, Unfit(), uniform(energy))


# ------------------------------------------------------------------------------
# What an objective that writes no more than forward() gets
# ------------------------------------------------------------------------------


class MeanEnergy(Objective):
    """The mean energy of the batch."""

    def __init__(self, energy):
        super().__init__()
        self.energy = energy

    def forward(self, batch, state, generator):
        value = weighted_mean(self.energy(batch.x), batch.weight)
        return Loss(value, state, {"energy_gap": value.detach()})


def test_a_plain_objective_is_differentiated(energy):
    objective, x, w = MeanEnergy(energy), data(), weights("heavy")
    batch, state = Batch(x, weight=w), objective.start(Batch(x), seeded())
    expected = autograd(lambda e: -(w * log_weight(e, x)).sum() / w.sum(), energy)
    for _ in range(2):  # the second does not add to the first
        with torch.no_grad():
            loss = objective.gradients(batch, state, seeded())
        assert_same({name: p.grad for name, p in parameters(energy).items()}, expected)
    assert objective.unpack(objective.pack(loss.state)) is None
    logs = look(objective, batch, state)
    value = -(w @ log_weight(energy, x) / w.sum()).item()
    assert logs == pytest.approx({"loss": value, "energy_gap": value})
    assert objective.held_out(batch, state, seeded()).item() == pytest.approx(value)
    assert objective.diverged(logs) is None
    assert "energy_gap" in objective.diverged(logs | {"energy_gap": float("nan")})
    assert objective.work(20) == pytest.approx(2 * objective.work(10))


# ------------------------------------------------------------------------------
# Pseudo-likelihood
# ------------------------------------------------------------------------------


def brute_pseudo_log_likelihood(energy, x):
    """sum_i log p(x_i given the rest), the conditionals from the enumerated joint."""
    target, place = Enumerated(energy), 2 ** torch.arange(D - 1, -1, -1)
    total = []
    for row in x:
        log_p = 0.0
        for i in range(D):
            other = row.clone()
            other[i] = 1 - other[i]
            p, q = (target.p[int(r.long() @ place)] for r in (row, other))
            log_p = log_p + (p / (p + q)).log()
        total.append(log_p)
    return torch.stack(total).detach()


def test_pseudo_log_likelihood_equals_brute_force(energy):
    x = bits(D)
    expected = brute_pseudo_log_likelihood(energy, x)
    torch.testing.assert_close(pseudo_log_likelihood(energy, x).detach(), expected)


def test_pseudo_log_likelihood_does_not_see_the_order_of_rows(energy):
    x, order = data(9), torch.randperm(9, generator=seeded())
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


# ------------------------------------------------------------------------------
# Preconditioning
# ------------------------------------------------------------------------------


def conditioned(energy, power, rows, mu):
    """What PCD without moving chains writes, with visible offsets held at `mu`."""
    objective = pcd(0)(energy, centered=True, precondition=power, offset_rate=0.0)
    state = objective.start(Batch(rows), seeded(1))
    state = state._replace(offsets=Offsets(mu, torch.full((H,), 0.5, dtype=DOUBLE)))
    return gradient(objective, Batch(rows), state)[0]


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_fair_coins_are_not_preconditioned(energy, power):
    half = torch.full((D,), 0.5, dtype=DOUBLE)
    plain, scaled = (conditioned(energy, p, data(), half) for p in (0.0, power))
    for name in plain:
        torch.testing.assert_close(scaled[name], plain[name])


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_rare_columns_are_preconditioned_by_their_variance(energy, power):
    """In the centred model's own coordinates: weights, and biases before they are shifted back."""
    mu = torch.tensor([0.5, 0.1, 0.9, 0.01], dtype=DOUBLE)
    lam = torch.full((H,), 0.5, dtype=DOUBLE)
    plain, scaled = (conditioned(energy, p, data(), mu) for p in (0.0, power))
    scale = (4 * mu * (1 - mu)) ** power
    torch.testing.assert_close(scaled["weight"] * scale, plain["weight"])
    centred = [g["visible_bias"] + lam @ g["weight"] for g in (scaled, plain)]
    torch.testing.assert_close(centred[0] * scale, centred[1])
    centred = [g["hidden_bias"] + g["weight"] @ mu for g in (scaled, plain)]
    torch.testing.assert_close(centred[0], centred[1])
