"""Contrastive divergence and the likelihood of machines: gradients, penalties, centring, chains."""

import pytest
import torch

from skebm.base import Batch, Real, Sampler
from skebm.distributions import IndependentBernoulli
from skebm.objectives import (
    Centering,
    ContrastiveDivergence,
    ExactLikelihood,
    Offsets,
    Penalty,
)
from skebm.samplers import MALA, FromData, Gibbs, Persistent
from tests.support.networks import neural
from tests.support.objectives import (
    N_CHAINS,
    PENALTIES,
    PERSISTENT,
    RBM_ALL,
    D,
    H,
    assert_same,
    autograd,
    cd,
    data,
    flat,
    gradient,
    later,
    log_weight,
    nll,
    parameters,
    pcd,
    penalty_formula,
    uniform,
    weights,
    with_chains,
)
from tests.support.oracle import (
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


@pytest.fixture(params=RBM_ALL)
def case(request):
    return RBM_ALL[request.param]


@pytest.fixture
def energy():
    return make_rbm(D, H)


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


@pytest.mark.parametrize("name", [name for name in RBM_ALL if name != "exact"])
@pytest.mark.parametrize("kind", [None, "of mean 1", "heavy"])
def test_contrastive_gradient_is_data_minus_chains(name, kind, energy):
    """Data rows count by their weight, and so does the negative phase as a whole."""
    objective, x, w = RBM_ALL[name].make(energy), data(5), weights(kind, 5)
    batch, state = Batch(x, weight=w), objective.start(Batch(x), seeded(1))
    grads, _ = gradient(objective, batch, state, seed=5)
    rows = objective(batch, state, seeded(5)).state.chain.x  # the same seed, the same chains
    w = torch.ones(5, dtype=DOUBLE) if w is None else w
    of_chain = torch.full((N_CHAINS,), float(w.mean()), dtype=DOUBLE)
    of_chain = of_chain if RBM_ALL[name].persistent else w

    def contrast(energy):
        model = (of_chain * log_weight(energy, rows)).mean()
        return model - (w * log_weight(energy, x)).mean()

    assert_same(grads, autograd(contrast, energy))


def test_chains_like_the_data_leave_no_gradient(energy):
    """Five rows against ten chains: sums in place of means would leave half of the data."""
    objective = pcd(0)(energy, n_chains=10)
    x = data(5)
    state = with_chains(objective.start(Batch(x), seeded(1)), x.repeat(2, 1))
    grads, _ = gradient(objective, Batch(x), state)
    for grad in grads.values():
        torch.testing.assert_close(grad, torch.zeros_like(grad))


# ------------------------------------------------------------------------------
# Penalties
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["l1", "l2", "sparsity"])
@pytest.mark.parametrize("kind", [None, "of mean 1", "light", "heavy"])
def test_penalties_add_their_gradient(case, energy, penalty, kind):
    """The activation that sparsity looks at is a mean, whatever the batch weighs in the fit."""
    x, w, penalty = data(), weights(kind), PENALTIES[penalty]
    batch = Batch(x, weight=w)
    plain = case.make(energy)
    state = plain.start(Batch(x), seeded(1))
    without, _ = gradient(plain, batch, state)
    grads, _ = gradient(case.make(energy, penalty=penalty), batch, state)
    added = {name: grads[name] - without[name] for name in grads}
    assert_same(added, autograd(lambda e: penalty_formula(penalty, e, x, w), energy))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_penalties_add_their_value(case, energy, penalty):
    x, w, penalty = data(), weights("of mean 1"), PENALTIES[penalty]
    batch = Batch(x, weight=w)
    plain = case.make(energy)
    state = plain.start(Batch(x), seeded(1))
    without = plain(batch, state, seeded(2)).value
    value = case.make(energy, penalty=penalty)(batch, state, seeded(2)).value
    expected = penalty_formula(penalty, energy, x, w)
    torch.testing.assert_close(value - without, expected, rtol=1e-6, atol=1e-7)


def test_sparsity_of_dead_and_saturated_units_is_finite(case, energy):
    with torch.no_grad():
        energy.weight.zero_()
        energy.hidden_bias.copy_(torch.tensor([-80.0, 80.0, 0.0], dtype=DOUBLE))
    objective = case.make(energy, penalty=PENALTIES["sparsity"])
    x = data()
    state = objective.start(Batch(x), seeded(1))
    grads, _ = gradient(objective, Batch(x), state)
    assert torch.isfinite(flat(grads)).all()
    assert torch.isfinite(objective(Batch(x), state, seeded()).value)


def test_sparsity_of_a_batch_without_weight_is_finite(case, energy):
    batch = Batch(data(), weight=torch.zeros(6, dtype=DOUBLE))
    objective = case.make(energy, True, penalty=PENALTIES["sparsity"])
    grads, _ = gradient(objective, batch, objective.start(batch, seeded(1)))
    assert torch.isfinite(flat(grads)).all()


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
    x, penalty = data(), PENALTIES[penalty]
    plain = case.make(energy, penalty=penalty)
    centred = case.make(energy, Centering(0.0), penalty=penalty)
    state = offset_state(centred, x)
    without, _ = gradient(plain, Batch(x), state._replace(offsets=None), seed=5)
    grads, _ = gradient(centred, Batch(x), state, seed=5)
    assert_same(grads, descend_centred(without, energy, state.offsets))


def test_exact_centring_descends_the_enumerated_likelihood(energy):
    """The same without a plain gradient in between: autograd of the centred model itself."""
    x, rate = data(), 1e-3
    objective = ExactLikelihood(energy, centering=Centering(0.0))
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
    objective, x, w = case.make(energy, Centering(rate)), data(), weights(kind)
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
# Preconditioning
# ------------------------------------------------------------------------------


def conditioned(energy, power, rows, mu):
    """What PCD without moving chains writes, with visible offsets held at `mu`."""
    objective = pcd(0)(energy, Centering(0.0, precondition=power))
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


# ------------------------------------------------------------------------------
# Expectations
# ------------------------------------------------------------------------------


def equilibrium(objective, state, target, n, seed):
    """The state with chains that are exact draws of the model, where it has chains."""
    if not hasattr(state, "chain") or not objective.persistent:
        return state
    x, h = target.draw_pair(n, seeded(seed))
    # Every other time the chains come with the hidden layer of their next step.
    return with_chains(state, x, aux=h if seed % 2 else None)


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
    samples = replicates(RBM_ALL[name], energy, Batch(x, weight=w), centered=False)
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
@pytest.mark.parametrize("name", ["PCD-1", "PCD-2"])
def test_persistent_chains_stay_exact_with_their_hidden_layer(name, centered, energy):
    """What a step leaves for the next one is a draw of p(x, h), not of x and of h."""
    target = Enumerated(energy)
    objective, x = RBM_ALL[name].make(energy, centered, n_chains=20_000), data()
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
# Chains
# ------------------------------------------------------------------------------


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
    chains = Persistent(n_chains=9, initial=IndependentBernoulli(logits))
    objective = ContrastiveDivergence(energy, Gibbs(), chains)
    x = objective.start(Batch(data()), seeded(1)).chain.x
    assert torch.equal(x, (logits > 0).to(DOUBLE).expand(9, -1))


def test_a_roll_back_keeps_chains_and_offsets_and_a_second_one_the_offsets(energy):
    """Chains that were well go on from the hidden layer that they had drawn."""
    objective, x = pcd(1)(energy, centered=True), data()
    energy.base = uniform(energy)
    state = later(objective, x)
    after = objective.state_after_roll_back(state, Batch(x), seeded(3))
    assert torch.equal(after.chain.x, state.chain.x)
    assert torch.equal(after.chain.aux, state.chain.aux)
    again = objective.state_after_roll_back(after, Batch(x), seeded(3), tries=2)
    assert again.chain.aux is None
    assert energy.domain.contains(again.chain.x).all()
    assert again.n_batches == state.n_batches == 2
    for offset, before in zip(again.offsets, state.offsets, strict=True):
        assert torch.equal(offset, before)


@pytest.mark.parametrize("centered", [False, True])
def test_the_gradient_is_clipped_by_the_norm_of_all(energy, centered):
    centering, batch = Centering() if centered else None, Batch(data())

    def found(clip):
        objective = ContrastiveDivergence(
            energy, Gibbs(), FromData(), clip_norm=clip, centering=centering
        )
        return flat(gradient(objective, batch, objective.start(batch, seeded()), 5)[0])

    whole = found(None)
    torch.testing.assert_close(found(0.01), whole * 0.01 / whole.norm(), rtol=1e-4, atol=0)
    torch.testing.assert_close(found(1e6), whole)


class Unfit(Sampler):
    """Draws real rows."""

    domains = (Real,)

    def init(self, energy, x):
        raise AssertionError

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        raise AssertionError


def test_an_unfit_sampler_is_refused_at_once(energy):
    with pytest.raises(TypeError, match="Unfit"):
        ContrastiveDivergence(energy, Unfit(), FromData())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"centering": Centering()}, "NeuralEnergy.*centering=None"),
        ({"penalty": Penalty(0.1)}, "NeuralEnergy.*penalty=None"),
    ],
)
def test_networks_have_no_units_to_centre_or_to_penalise(settings, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveDivergence(neural(3), MALA(0.1), FromData(), **settings)


def one_step(energy, **settings):
    return ContrastiveDivergence(energy, Gibbs(), FromData(), **settings)


@pytest.mark.parametrize("make", [one_step, ExactLikelihood])
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"centering": Centering(1.5)}, "rate"),
        ({"centering": Centering(precondition=-0.1)}, "precondition"),
        ({"penalty": Penalty(-1.0)}, "l1"),
        ({"penalty": Penalty(l2=-1.0)}, "l2"),
        ({"penalty": Penalty(sparsity_target=1.0)}, "sparsity_target"),
        ({"penalty": Penalty(sparsity_target=0.1, sparsity_cost=-1.0)}, "sparsity_cost"),
    ],
)
def test_numbers_out_of_their_range(energy, make, settings, name):
    with pytest.raises(ValueError, match=name):
        make(energy, **settings)


def test_other_terms_have_no_centred_gradient(energy):
    with pytest.raises(ValueError, match="energy_l2 and refinement have none"):
        ContrastiveDivergence(energy, Gibbs(), FromData(), energy_l2=0.1, centering=Centering())


def test_squares_of_an_energy_with_a_gradient_of_its_own_are_penalised(energy):
    """By autograd, which takes all terms; the chains are the same."""
    batch, found = Batch(data()), {}
    for alpha in (0.0, 0.3):
        objective = ContrastiveDivergence(energy, Gibbs(), FromData(), energy_l2=alpha)
        state = objective.start(batch, seeded())
        found[alpha] = *gradient(objective, batch, state, 5), objective
    rows = torch.cat([batch.x, found[0.3][1].state.chain.x])
    assert torch.equal(rows[6:], found[0.0][1].state.chain.x)
    expected = autograd(lambda e: 0.3 * log_weight(e, rows).square().sum() / 6, energy)
    torch.testing.assert_close(flat(found[0.3][0]) - flat(found[0.0][0]), flat(expected))
