"""Contrastive divergence, against enumeration of bits and closed forms of normal rows."""

import copy
import math

import pytest
import torch
from torch import nn

from skebm.base import Batch, ChainState, Energy, Real
from skebm.distributions import Gaussian, GaussianMixture, IndependentBernoulli
from skebm.energies import MLP, BernoulliRBM, Conv, NeuralEnergy
from skebm.objectives import ContrastiveDivergence, ContrastiveState, Refinement
from skebm.objectives.contrastive import walkers
from skebm.samplers import (
    HMC,
    MALA,
    FromData,
    FromNoise,
    GibbsWithGradients,
    Langevin,
    ParallelTempering,
    Persistent,
    ReplayBuffer,
)
from tests.support.networks import binary, build, neural
from tests.support.objectives import autograd, flat, gradient, look, same
from tests.support.oracle import (
    DOUBLE,
    P_FLOOR,
    bits,
    finite_difference,
    make_tree_rbm,
    mean_is,
    seeded,
    standard_normal,
)
from tests.support.targets import spelled_out
from tests.support.tiers import full, leading, only_full

# Largest |z| of a mean over independent noise, of a hundred numbers or so.
SIEVE = 5
# Bits of the energies that are enumerated.
D = 4


class Bell(Energy):
    """A normal distribution with a free mean and free logarithms of its precisions."""

    def __init__(self, mean=(0.7, -0.4, 0.2), log_precision=(0.5, -0.3, 1.0)):
        super().__init__()
        self.domain = Real((len(mean),))
        self.mean = nn.Parameter(torch.tensor(mean, dtype=DOUBLE))
        self.log_precision = nn.Parameter(torch.tensor(log_precision, dtype=DOUBLE))

    def forward(self, x, cond=None):
        return (self.log_precision.exp() * (x - self.mean).square()).sum(1) / 2

    def model(self):
        """The same distribution as one to draw from."""
        return Gaussian(self.mean.detach(), (-self.log_precision.detach() / 2).exp())

    def loss(self, x):
        """Mean of -log p, less a constant."""
        return self(x).mean() - self.log_precision.sum() / 2


class Enumeration:
    """The exact answers for a small discrete energy."""

    def __init__(self, energy):
        self.energy, self.target = energy, spelled_out(energy)
        with torch.no_grad():
            self.log_z = (-energy(self.target.x)).logsumexp(0)

    def loss(self, x, weight=None):
        """Mean of -log p over rows, by the sum over all states."""
        weight = torch.ones(len(x), dtype=DOUBLE) if weight is None else weight
        log_z = (-self.energy(self.target.x)).logsumexp(0)
        return (weight * (self.energy(x) + log_z)).sum() / len(x)

    def gradient(self, x, weight=None):
        return flat(autograd(lambda _: self.loss(x, weight), self.energy))


def some_bits(n=6, seed=11):
    return (torch.rand(n, D, generator=seeded(seed), dtype=DOUBLE) < 0.3).to(DOUBLE)


def standing(objective, x, **more):
    """A state of chains at rows x."""
    with torch.no_grad():
        return ContrastiveState(None, objective.sampler.init(objective.energy, x), **more)


def gradients(objective, batch, state, repeats, first=0):
    """Gradients by independent generators, (repeats, parameters); rows and states may depend."""
    found = []
    for seed in range(first, first + repeats):
        rows = batch(seed) if callable(batch) else batch
        start = state(seed) if callable(state) else state
        found.append(flat(gradient(objective, rows, start, seed)[0]))
    return torch.stack(found)


def train(objective, batch, state, n_batches, first=0, rate=0.05):
    """Steps of gradient descent, and the state after them."""
    for seed in range(first, first + n_batches):
        _, loss = gradient(objective, batch, state, seed)
        state = loss.state
        with torch.no_grad():
            for p in objective.parameters():
                p -= rate * p.grad
    return state


# ------------------------------------------------------------------------------
# Chains that are draws of the model: the gradient of the likelihood
# ------------------------------------------------------------------------------


@full
@pytest.mark.parametrize(
    ("base", "n_independence_steps"),
    [
        ("tree", 2),
        *(only_full(*pair) for pair in (("tree", 0), ("independent", 2), ("independent", 0))),
    ],
)
def test_chains_that_are_draws_give_the_gradient_of_bits(base, n_independence_steps):
    energy = binary(base, D)
    exact, x = Enumeration(energy), some_bits()
    objective = ContrastiveDivergence(
        energy,
        GibbsWithGradients(),
        Persistent(3, n_chains=200, n_independence_steps=n_independence_steps),
    )

    def state(seed):
        return standing(objective, exact.target.draw(200, seeded(1000 + seed)))

    found = gradients(objective, Batch(x), state, 150)
    assert mean_is(found, exact.gradient(x)) < SIEVE


@pytest.mark.parametrize("policy", leading(1, ["replay", "persistent", "noise"]))
def test_chains_that_are_draws_give_the_gradient_of_a_normal_distribution(policy):
    energy = Bell()
    x, model, n = standard_normal(7, 3, seed=5), energy.model(), 100
    policies = {
        "persistent": Persistent(3, n_chains=n, initial=model),
        "noise": FromNoise(3, initial=model),
        "replay": ReplayBuffer(3, size=n, restart=0.3, initial=model),
    }
    objective = ContrastiveDivergence(energy, MALA(0.5), policies[policy])
    batch = Batch(x.repeat(n, 1) if policy == "noise" else x)

    def state(seed):
        return objective.start(batch, seeded(1000 + seed))

    expected = flat(autograd(lambda _: energy.loss(x), energy))
    assert mean_is(gradients(objective, batch, state, 150), expected) < SIEVE


@pytest.mark.parametrize("n_steps", leading(1, [1, 4]))
def test_rows_that_are_draws_of_the_model_do_not_pull(n_steps):
    energy = Bell()
    objective = ContrastiveDivergence(energy, MALA(0.5), FromData(n_steps))

    def rows(seed):
        return Batch(energy.model().sample(100, seeded(1000 + seed)))

    state = objective.start(rows(0), seeded())
    assert mean_is(gradients(objective, rows, state, 150), 0) < SIEVE


@full
def test_the_bias_of_contrastive_divergence_falls_with_its_steps():
    energy = binary("tree", D)
    exact, x = Enumeration(energy), some_bits()
    batch, bias = Batch(x.repeat(500, 1)), []
    for n_steps in (1, 3, 9, 50):
        objective = ContrastiveDivergence(
            energy, GibbsWithGradients(), FromData(n_steps, n_independence_steps=0)
        )
        found = gradients(objective, batch, objective.start(batch, seeded()), 8)
        bias.append(float((found.mean(0) - exact.gradient(x)).norm()))
    noise = float((found.var(0).sum() / len(found)).sqrt())  # the expected norm without a bias
    assert bias[0] > 20 * noise
    assert bias[1] < 0.8 * bias[0]
    assert bias[2] < 0.8 * bias[1]
    assert bias[3] < 3 * noise

    def rows(seed):
        return Batch(exact.target.draw(500, seeded(1000 + seed)))

    one = ContrastiveDivergence(energy, GibbsWithGradients(), FromData(1, n_independence_steps=0))
    found = gradients(one, rows, one.start(batch, seeded()), 100)
    assert mean_is(found, 0) < SIEVE


# ------------------------------------------------------------------------------
# Weighted chains
# ------------------------------------------------------------------------------


@pytest.fixture
def fewer_rungs(monkeypatch):
    """A shorter path to a model that is far from its base; weights are right for any length."""
    monkeypatch.setattr(walkers, "START_STEPS", 8)


def far_model():
    """Bits whose base is far from them."""
    energy = binary("independent", D)
    with torch.no_grad():
        for p in energy.parameters():
            p *= 2.0
    return energy


def reweighted(energy, n_chains=300, **steps):
    settings = {"n_chains": n_chains, "reweight": True, "initial": energy.base}
    chains = Persistent(**{"n_steps": 1, "n_independence_steps": 0} | settings | steps)
    return ContrastiveDivergence(energy, GibbsWithGradients(), chains)


@pytest.mark.parametrize("n_independence_steps", leading(1, [1, 0]))
def test_weights_make_draws_of_the_base_draws_of_the_model(n_independence_steps, fewer_rungs):
    energy, x = far_model(), some_bits()
    exact, objective = (
        Enumeration(energy),
        reweighted(far_model(), n_independence_steps=n_independence_steps),
    )
    energy = exact.energy = objective.energy
    start = objective.chains.start(energy, x, seeded())
    assert walkers.Walkers.of(energy, start, energy.base).degenerate  # draws alone would not do

    states = {seed: objective.start(Batch(x), seeded(1000 + seed)) for seed in range(25)}
    with torch.no_grad():
        found = [s.walkers.log_partition(energy, s.chain.x) for s in states.values()]
    ratio = (torch.stack(found) - exact.log_z).exp()
    assert any(s.walkers.log_z != 0 for s in states.values())  # some were resampled
    assert mean_is(ratio[:, None], 1) < 4  # unbiased
    assert ratio.std() < 0.5  # and of use
    found = gradients(objective, Batch(x), states.get, 25)
    assert mean_is(found, exact.gradient(x)) < SIEVE + 1  # of 25: a heavier tail


@full
@pytest.mark.parametrize("n_independence_steps", [0, only_full(2)])
def test_weights_follow_a_model_that_moves(n_independence_steps):
    """The path of the parameters does not depend on the chains, and so Z is unbiased."""
    energy, x = binary("tree", D), some_bits()
    goal = [p.detach().clone() for p in energy.parameters()]
    objective = reweighted(energy, n_chains=100, n_independence_steps=n_independence_steps)

    def move(share):
        with torch.no_grad():
            for p, end in zip(energy.parameters(), goal, strict=True):
                p.copy_(share * end)

    ratios, found = [], []
    for seed in range(60):
        move(0.0)
        state = objective.start(Batch(x), seeded(1000 + seed))
        for k in range(1, 11):
            move(k / 10)
            grads, loss = gradient(objective, Batch(x), state, 100 * seed + k)
            state = loss.state
        found.append(flat(grads))
        with torch.no_grad():
            ratios.append(state.walkers.log_partition(energy, state.chain.x))
    exact = Enumeration(energy)
    ratio = (torch.stack(ratios) - exact.log_z).exp()
    assert mean_is(ratio[:, None], 1) < 4
    assert ratio.std() < 0.3
    assert mean_is(torch.stack(found), exact.gradient(x)) < SIEVE


def test_weighted_chains_of_a_standing_model_gain_no_weight():
    """Kernels and proposals leave the model invariant: they are no work done."""
    energy, x = binary("tree", D), some_bits()
    objective = reweighted(energy, n_independence_steps=3, n_steps=2)
    exact = Enumeration(energy)
    level = torch.full((50,), -math.log(50), dtype=DOUBLE)
    with torch.no_grad():
        rows = exact.target.draw(50, seeded(1))
        chain = GibbsWithGradients().init(energy, rows)
        weights = walkers.Walkers(torch.zeros_like(level), exact.log_z, energy(rows))
        state = ContrastiveState(None, chain, weights)
        for seed in range(3):
            state = objective(Batch(x), state, seeded(seed)).state
        assert not torch.equal(state.chain.x, rows)
        torch.testing.assert_close(state.walkers.log_weight, torch.zeros_like(level))
        estimate = state.walkers.log_partition(energy, state.chain.x)
    torch.testing.assert_close(estimate, exact.log_z)


def test_chains_that_had_far_to_go_tune_themselves_all_the_same(monkeypatch):
    monkeypatch.setattr(walkers, "START_STEPS", 20)
    energy = neural(3)
    objective = ContrastiveDivergence(
        energy,
        MALA(adapt=True, scale="auto"),
        Persistent(n_chains=50, reweight=True, initial=energy.base),
    )
    batch = Batch(standard_normal(6, 3))
    state = objective.start(batch, seeded())
    assert walkers.Walkers.of(energy, energy.base.sample(50, seeded()), energy.base).degenerate
    before = state.chain.aux.adaptation.n_steps
    after = gradient(objective, batch, state)[1].state
    assert after.chain.aux.adaptation.n_steps > before


def test_chains_cannot_be_weighed_without_a_density_they_start_from():
    energy = binary("none", D)
    with pytest.raises(ValueError, match="initial"):
        ContrastiveDivergence(energy, GibbsWithGradients(), Persistent(reweight=True))


def test_only_chains_that_keep_to_themselves_are_weighed():
    energy = binary("tree", D)
    chains = Persistent(reweight=True, initial=energy.base)
    with pytest.raises(ValueError, match="reweight requires a sampler"):
        ContrastiveDivergence(energy, ParallelTempering(3, GibbsWithGradients()), chains)


def test_only_kernels_that_are_exact_are_weighed():
    energy = Bell()
    chains = Persistent(reweight=True, initial=energy.model())
    with pytest.raises(ValueError, match="reweight requires a sampler"):
        ContrastiveDivergence(energy, Langevin(), chains)


def test_replicas_need_chains_that_go_on():
    with pytest.raises(ValueError, match="use it with persistent chains"):
        ContrastiveDivergence(Bell(), ParallelTempering(3, MALA()), FromData())


# ------------------------------------------------------------------------------
# Weighted rows
# ------------------------------------------------------------------------------


def two_means_agree(a, b):
    """Largest |z| of the difference between two means of independent rows."""
    error = ((a.var(0) / len(a)) + (b.var(0) / len(b))).sqrt().clamp_min(1e-12)
    return float(((a.mean(0) - b.mean(0)).abs() / error).max())


@full
def test_a_row_of_weight_two_is_two_rows():
    energy = binary("tree", D)
    x, w = some_bits(4), torch.tensor([1, 3, 0, 2])
    few, many = Batch(x, weight=w / w.to(DOUBLE).mean()), Batch(x.repeat_interleave(w, 0))
    policies = (
        FromData(1),
        FromNoise(1, initial=energy.base),
        ReplayBuffer(1, size=50, restart=0.1, initial=energy.base),
    )
    for policy in policies:
        objective = ContrastiveDivergence(energy, GibbsWithGradients(), policy)
        found = [
            gradients(objective, batch, objective.snapshot(state), 120, first)
            for first, batch in ((0, few), (5000, many))
            for state in [objective.start(many, seeded())]
        ]
        assert two_means_agree(*found) < SIEVE, policy


def test_a_row_of_weight_two_is_two_rows_where_nothing_is_drawn():
    energy = neural(3)
    x, w = standard_normal(4, 3), torch.tensor([1, 3, 0, 2])
    few, many = Batch(x, weight=w / w.to(DOUBLE).mean()), Batch(x.repeat_interleave(w, 0))
    objective = ContrastiveDivergence(
        energy, Langevin(0.05, 0.0), FromData(n_independence_steps=0), energy_l2=0.3
    )
    state = objective.start(few, seeded())
    found = [flat(gradient(objective, batch, state)[0]) for batch in (few, many)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "policy",
    [FromData(n_independence_steps=0), Persistent(n_independence_steps=0, n_chains=7)],
    ids=["data", "persistent"],
)
def test_a_short_batch_counts_for_itself(policy):
    energy = neural(3)
    objective = ContrastiveDivergence(energy, Langevin(0.05, 0.0), policy)
    x = standard_normal(3, 3)
    state = objective.start(Batch(x), seeded())
    found = [flat(gradient(objective, Batch(x.repeat(n, 1)), state)[0]) for n in (1, 4)]
    torch.testing.assert_close(*found)


# ------------------------------------------------------------------------------
# Proposals of the base
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["independent", "tree"])
def test_proposals_leave_the_model_as_it_is(base):
    energy = binary(base, D)
    target, n = spelled_out(energy), 20_000
    objective = ContrastiveDivergence(
        energy, GibbsWithGradients(), Persistent(1, n_independence_steps=3, n_chains=n)
    )
    rows = target.draw(n, seeded(1))
    state = objective(Batch(some_bits()), standing(objective, rows), seeded(2)).state
    changed = (state.chain.x != rows).sum(1)
    assert float((changed > 1).double().mean()) > 0.2  # more than the step flips
    assert target.p_value(state.chain.x) > P_FLOOR


@pytest.mark.parametrize("policy", [Persistent(5), FromData(5)], ids=["persistent", "data"])
def test_proposals_find_the_masses_of_far_modes(policy):
    """The base has two far modes of equal mass, and the network shifts it from one to the other."""

    class Tilt(nn.Module):
        def __init__(self):
            super().__init__()
            self.pull = nn.Parameter(torch.tensor(0.4, dtype=DOUBLE))

        def forward(self, x):
            return self.pull * x[:, 0].tanh()

    means = torch.tensor([[-8.0, 0.0], [8.0, 0.0]], dtype=DOUBLE)
    one = torch.eye(2, dtype=DOUBLE)
    base = GaussianMixture(torch.tensor([0.5, 0.5], dtype=DOUBLE), means, torch.stack([one, one]))
    energy = NeuralEnergy(Tilt(), Real((2,)), base)
    rows = means[1] + standard_normal(4000, 2)
    share = 1 / (1 + math.exp(-0.8))  # of the mode on the left
    for n_independence_steps, expected in ((0, 0.0), (25, share)):
        policy.set_params(n_independence_steps=n_independence_steps)
        objective = ContrastiveDivergence(energy, MALA(0.3), policy)
        state = standing(objective, rows)
        chain = objective(Batch(rows), state, seeded(3)).state.chain
        left = float((chain.x[:, 0] < 0).double().mean())
        assert abs(left - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000) + 1e-9


@pytest.mark.parametrize("base", ["tree", "independent"])
def test_proposals_know_the_base_of_an_rbm(base):
    """Its energy holds -log q, as a part of its own or as fields among its biases."""
    energy = make_tree_rbm(5, 3)
    if base == "independent":
        q = IndependentBernoulli(torch.tensor([1.0, -2.0, 0.3, 0.0, 0.7], dtype=DOUBLE))
        energy = BernoulliRBM(5, 3, generator=seeded(), scale=1.0, dtype=DOUBLE, base=q)
    target, n = spelled_out(energy), 20_000
    chains = Persistent(1, n_independence_steps=3, n_chains=n)
    objective = ContrastiveDivergence(energy, GibbsWithGradients(), chains)
    rows = target.draw(n, seeded(1))
    state = objective(Batch(bits(5)), standing(objective, rows), seeded(2)).state
    changed = (state.chain.x != rows).sum(1)
    assert float((changed > 1).double().mean()) > 0.2  # more than the step flips
    assert target.p_value(state.chain.x) > P_FLOOR
    x = bits(5)
    torch.testing.assert_close(energy.correction(x), energy(x) + energy.base.log_prob(x))


# ------------------------------------------------------------------------------
# Noise on rows
# ------------------------------------------------------------------------------


class Squares(Energy):
    """Energies whose gradient is the mean square of each column."""

    def __init__(self):
        super().__init__()
        self.domain = Real((3,))
        self.scale = nn.Parameter(torch.ones(3, dtype=DOUBLE))

    def forward(self, x, cond=None):
        return x.square() @ self.scale


NOISE = torch.tensor([0.5, 1.0, 0.0], dtype=DOUBLE)


@pytest.mark.parametrize(
    ("anneal", "n_batches", "factor"),
    [
        ((1.0, 0), 0, 1.0),
        ((1.0, 0), 50, 1.0),
        ((9.0, 10), 0, 9.0),
        ((9.0, 10), 5, 3.0),
        ((9.0, 10), 10, 1.0),
        ((9.0, 10), 25, 1.0),
    ],
    ids=str,
)
def test_noise_of_rows_has_the_variance_that_is_due(anneal, n_batches, factor):
    objective = ContrastiveDivergence(
        Squares(), Langevin(0.1, 0.0), Persistent(n_chains=1), sigma=NOISE, anneal=anneal
    )
    n = 20_000
    nought = torch.zeros(1, 3, dtype=DOUBLE)  # which gradient descent does not leave
    state = standing(objective, nought, n_batches=n_batches)
    grads, loss = gradient(objective, Batch(nought.expand(n, -1)), state)
    expected = (factor * NOISE).square()
    error = expected * math.sqrt(2 / n)
    assert ((grads["scale"] - expected).abs() <= 5 * error).all()
    assert loss.state.n_batches == n_batches + 1


def test_chains_start_at_the_rows_with_their_noise():
    objective = ContrastiveDivergence(Squares(), Langevin(1e-12, 0.0), FromData(1), sigma=NOISE)
    batch = Batch(standard_normal(50, 3))
    grads, loss = gradient(objective, batch, objective.start(batch, seeded()))
    torch.testing.assert_close(grads["scale"], torch.zeros(3, dtype=DOUBLE), atol=1e-9, rtol=0)
    moved = loss.state.chain.x - batch.x
    assert (moved[:, :2].std(0) > 0.3).all()


def test_noise_is_for_real_rows():
    energy, sigma = binary("tree", D), torch.ones(D)
    with pytest.raises(ValueError, match="pass sigma=None"):
        ContrastiveDivergence(energy, GibbsWithGradients(), FromData(), sigma=sigma)


# ------------------------------------------------------------------------------
# Penalties
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("policy", [FromData(), Persistent(n_chains=9)], ids=["data", "persistent"])
def test_squares_of_f_are_penalised_at_data_and_chains(policy, weighted):
    energy, x = neural(3), standard_normal(6, 3)
    w = torch.tensor([0.5, 2.0, 0.0, 1.0, 1.5, 1.0], dtype=DOUBLE) if weighted else None
    batch, found = Batch(x, weight=w), {}
    for alpha in (0.0, 0.3):
        objective = ContrastiveDivergence(energy, MALA(0.1), policy, energy_l2=alpha)
        state = objective.start(batch, seeded())
        found[alpha] = *gradient(objective, batch, state, 5), objective
    chain = found[0.3][1].state.chain.x
    share = torch.full((len(chain),), 1 / len(chain), dtype=DOUBLE)
    if weighted and isinstance(policy, FromData):
        share = w / 6
    w = torch.ones(6, dtype=DOUBLE) if w is None else w

    def penalty(energy):
        f, g = energy.network(x), energy.network(chain)
        return 0.3 * ((w * f**2).sum() / 6 + (share * g**2).sum())

    difference = found[0.3][1].value - found[0.0][1].value
    torch.testing.assert_close(difference.detach(), penalty(energy).detach())
    expected = flat(autograd(penalty, energy)).detach()
    torch.testing.assert_close(flat(found[0.3][0]) - flat(found[0.0][0]), expected)


def test_the_gradient_is_clipped_by_the_norm_of_all():
    energy, batch = neural(3), Batch(standard_normal(6, 3))

    def found(clip):
        objective = ContrastiveDivergence(energy, MALA(0.1), FromData(), clip_norm=clip)
        return flat(gradient(objective, batch, objective.start(batch, seeded()), 5)[0])

    whole = found(None)
    assert whole.norm() > 0.1
    torch.testing.assert_close(found(0.01), whole * 0.01 / whole.norm(), rtol=1e-4, atol=0)
    torch.testing.assert_close(found(1e6), whole)


# ------------------------------------------------------------------------------
# Refinement: the sample as a function of the parameters
# ------------------------------------------------------------------------------


def last_step(energy, x, z, h, sigma, scale):
    """One Langevin step, differentiable with respect to the weights as well."""
    x = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
    return x - h * scale**2 * slope + sigma * scale * z


def reflected(domain, x):
    """A step that is not so wide that it crosses the box."""
    if domain.lower is not None:
        x = torch.where(x < domain.lower, 2 * domain.lower - x, x)
    if domain.upper is not None:
        x = torch.where(x > domain.upper, 2 * domain.upper - x, x)
    return x


def clipped(domain, x):
    return x.clamp(domain.lower, domain.upper)


def kl_term(energy, held, x, z, wall=lambda domain, x: x, h=0.05, sigma=None, scale=1.0):
    """Mean energy, as it was, of where the last step ends."""
    sigma = math.sqrt(2 * h) if sigma is None else sigma
    return held(wall(energy.domain, last_step(energy, x, z, h, sigma, scale))).mean()


def entropy_term(energy, x, z, h=0.05):
    """Mean log-distance of where each row ends to the nearest of the other rows."""
    moved, logs = last_step(energy, x, z, h, math.sqrt(2 * h), 1.0), []
    for i, row in enumerate(moved):
        others = torch.cat([x[:i], x[i + 1 :]])
        logs.append((row - others).square().sum(1).sqrt().min().log())
    return torch.stack(logs).mean()


def by_differences(function, energy):
    """Gradient of a function of the energy's weights by finite differences."""
    found = {}
    for name, p in energy.named_parameters():
        kept = p.detach().clone()

        def at(value, p=p):
            with torch.no_grad():
                p.copy_(value)
            return function().detach()

        found[name] = finite_difference(at, kept)
        with torch.no_grad():
            p.copy_(kept)
    return flat(found)


def refined(energy, refinement, sampler, x, seed=4, chain=None):
    """Gradient of the terms, and the noise of their step."""
    with torch.no_grad():
        chain = sampler.init(energy, x) if chain is None else chain
    value = refinement.value(energy, sampler, chain, seeded(seed))
    grads = autograd(lambda _: value, energy)
    z = torch.randn(x.shape, generator=seeded(seed), dtype=DOUBLE)
    return flat(grads).detach(), z


KL_CASES = {
    "Langevin": (Langevin(0.05), None, {}),
    "Langevin of another temperature": (Langevin(0.05, noise_scale=0.7), None, {"sigma": 0.7}),
    "Langevin with scales": (
        Langevin(0.05, scale=[0.5, 1.0, 2.0]),
        None,
        {"scale": torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE)},
    ),
    "MALA": (MALA(0.05), None, {}),
    "between reflecting walls": (Langevin(0.05), (0.0, 1.5), {"wall": reflected}),
    "between clipping walls": (Langevin(0.05, bounds="clip"), (0.0, 1.5), {"wall": clipped}),
    "above a wall": (Langevin(0.05), (0.0, None), {"wall": reflected}),
    "MALA between walls": (MALA(0.05), (0.0, 1.5), {"wall": reflected}),
}


@pytest.mark.parametrize("name", KL_CASES)
def test_the_gradient_goes_through_the_last_step_alone(name):
    sampler, walls, step = KL_CASES[name]
    energy = neural(3) if walls is None else neural(3, base=None, lower=walls[0], upper=walls[1])
    x = (
        standard_normal(8, 3)
        if walls is None
        else torch.rand(8, 3, generator=seeded(2), dtype=DOUBLE)
    )
    found, z = refined(energy, Refinement(kl_weight=0.7), sampler, x)
    held = copy.deepcopy(energy)
    expected = by_differences(lambda: 0.7 * kl_term(energy, held, x, z, **step), energy)
    if walls is not None:  # some rows end at a wall
        free = last_step(energy, x, z, 0.05, math.sqrt(0.1), 1.0)
        assert not torch.equal(free, step["wall"](energy.domain, free))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)


def test_the_last_step_is_as_long_as_the_chains_found_it_should_be():
    energy, sampler = neural(3), MALA(0.05, adapt=True, scale="auto")
    chain, _ = sampler.run(energy, standard_normal(8, 3), 20, seeded(), n_warmup=20)
    h, scale = float(chain.aux.step_size), chain.aux.scale
    assert abs(h - 0.05) > 0.01
    found, z = refined(energy, Refinement(1.0), sampler, chain.x, chain=chain)
    held = copy.deepcopy(energy)
    term = {"h": h, "scale": scale}
    expected = by_differences(lambda: kl_term(energy, held, chain.x, z, **term), energy)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)


def test_entropy_pushes_rows_apart():
    energy, x = neural(3), 0.3 * standard_normal(8, 3)
    found, z = refined(energy, Refinement(0.0, 0.4), Langevin(0.05), x)
    expected = autograd(lambda e: -0.4 * entropy_term(e, x, z), energy)
    torch.testing.assert_close(found, flat(expected).detach())
    before = entropy_term(energy, x, z)
    with torch.no_grad():  # downhill
        start = 0
        for name in sorted(dict(energy.named_parameters())):
            p = dict(energy.named_parameters())[name]
            p -= 1e-3 * found[start : start + p.numel()].view_as(p)
            start += p.numel()
    assert entropy_term(energy, x, z) > before


@pytest.mark.parametrize("n_rows", [1, 2])
def test_few_rows_have_terms_that_are_finite(n_rows):
    energy, x = neural(3), standard_normal(n_rows, 3)
    x[-1] = x[0]  # nor do copies of a row divide by zero
    value = Refinement(0.5, 0.5).value(
        energy, Langevin(0.05), Langevin(0.05).init(energy, x), seeded()
    )
    assert torch.isfinite(value)
    assert torch.isfinite(flat(autograd(lambda _: value, energy))).all()


def test_the_terms_are_added_to_the_loss():
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    sampler, refinement = Langevin(0.05, noise_scale=0.0), Refinement(0.6, 0.2)  # draws nothing
    found = []
    for terms in (None, refinement):
        objective = ContrastiveDivergence(energy, sampler, FromData(), refinement=terms)
        state = objective.start(batch, seeded())
        grads, loss = gradient(objective, batch, state)
        found.append(flat(grads))
    chain = loss.state.chain
    alone = autograd(lambda e: refinement.value(e, sampler, chain, seeded()), energy)
    torch.testing.assert_close(found[1] - found[0], flat(alone).detach())


@pytest.mark.parametrize(
    ("energy", "sampler"),
    [
        (lambda: Bell(), HMC()),
        (lambda: Bell(), ParallelTempering(3, MALA())),
        (lambda: binary("tree", D), GibbsWithGradients()),
    ],
    ids=["HMC", "tempering", "bits"],
)
def test_there_has_to_be_a_step_to_differentiate(energy, sampler):
    policy = Persistent(n_chains=7)
    with pytest.raises(ValueError, match="use Langevin or MALA"):
        ContrastiveDivergence(energy(), sampler, policy, refinement=Refinement(1.0))


# ------------------------------------------------------------------------------
# Monitoring
# ------------------------------------------------------------------------------


def watched(kind, energy, n=4000):
    """An objective with a state whose chains are draws of the model, by enumeration."""
    target, kernel = spelled_out(energy), GibbsWithGradients()
    rows = target.draw(n, seeded(1))
    policy = {
        "persistent": Persistent(n_chains=n, initial=energy.base),
        "reweighted": Persistent(n_chains=n, reweight=True, initial=energy.base),
        "replay": ReplayBuffer(size=n, restart=0.0, initial=energy.base),
        "data": FromData(),
    }[kind]
    objective = ContrastiveDivergence(energy, kernel, policy)
    state = standing(objective, rows)
    if kind == "replay":
        state = state._replace(pool=rows.clone())
    if kind == "reweighted":
        rows = energy.base.sample(n, seeded(1))
        with torch.no_grad():
            chain = kernel.init(energy, rows)
            state = ContrastiveState(None, chain, walkers.Walkers.of(energy, rows, energy.base))
    return objective, state


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["persistent", "replay", "data", "reweighted"])
def test_the_monitor_knows_the_gap_and_the_gain(kind, weighted):
    energy, x = binary("tree", D), some_bits(30)
    objective, state = watched(kind, energy)
    w = torch.rand(30, generator=seeded(2), dtype=DOUBLE) if weighted else None
    share = torch.full((30,), 1 / 30, dtype=DOUBLE) if w is None else w / w.sum()
    target, weight = spelled_out(energy), None
    if kind == "data":  # chains belong to the rows of a batch, which need not be those watched
        weight = torch.rand(20, generator=seeded(3), dtype=DOUBLE) if weighted else None
        batch = Batch(some_bits(20, seed=3), weight=weight)
        state = gradient(objective, batch, objective.start(batch, seeded()))[1].state
    logs = look(objective, Batch(x, weight=w), state)
    with torch.no_grad():
        level = energy(state.chain.x)
        chains = target.mean(energy(target.x))  # in which weighted ones agree, too
        if kind == "data":
            chains = level.mean() if weight is None else (weight @ level) / weight.sum()
        gap = float(share @ energy(x) - chains)
        f, q = energy.network(target.x), energy.base.log_prob(target.x).exp()
        log_z = (q * (-f).exp()).sum().log()
        # Standard error of the mean weight of draws of the base; a bridge is better.
        error = ((q * (-f - log_z).exp().square()).sum() - 1).sqrt() / math.sqrt(1000)
        gain = -(share @ energy.network(x)) - log_z
    noise = 0 if kind == "data" else 6 * float(level.std()) / math.sqrt(4000)
    assert logs["loss"] == logs["energy_gap"] == pytest.approx(gap, abs=noise + 1e-9)
    assert logs["gain_over_base"] == pytest.approx(float(gain), abs=5 * float(error))
    held_out = objective.validation_loss(Batch(x, weight=w), state, seeded())
    assert float(held_out) == pytest.approx(-float(gain), abs=5 * float(error))


def test_without_a_base_bits_are_measured_by_the_uniform_distribution():
    energy = binary("none", D)
    x, exact = some_bits(30), Enumeration(energy)
    objective = ContrastiveDivergence(energy, GibbsWithGradients(), Persistent(n_chains=4000))
    state = standing(objective, exact.target.draw(4000, seeded(1)))
    truth = float(-exact.loss(x).detach()) + D * math.log(2)
    assert look(objective, Batch(x), state)["gain_over_base"] == pytest.approx(truth, abs=0.1)


def test_noise_counts_for_the_rows_that_are_watched():
    """A linear f: its mean over noisy rows is that of the rows, and log Z is known."""
    slope = torch.tensor([0.3, -0.5], dtype=DOUBLE)
    network = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Flatten(0)).to(DOUBLE)
    with torch.no_grad():
        network[0].weight.copy_(slope)
    energy = NeuralEnergy(network, Real((2,)), Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0))
    noise = torch.tensor([0.4, 0.2], dtype=DOUBLE)
    objective = ContrastiveDivergence(energy, MALA(0.3), Persistent(n_chains=2000), sigma=noise)
    state = standing(objective, standard_normal(2000, 2) - slope)
    x = standard_normal(50, 2, seed=3)
    truth = float(-(x @ slope).mean() - slope.square().sum() / 2)
    found = torch.stack(
        [objective.validation_loss(Batch(x), state, seeded(seed)) for seed in range(20)]
    )
    assert abs(float(found.mean()) + truth) < 0.06
    one_look = float((slope * noise).norm()) / math.sqrt(50)
    assert float(found.std()) < one_look / 2  # many looks


@pytest.mark.parametrize("kind", ["persistent", "replay", "data", "reweighted"])
def test_watching_leaves_buffer_and_chains_alone(kind):
    energy, x = binary("tree", D), some_bits()
    objective, state = watched(kind, energy, 50)
    state = gradient(objective, Batch(x), state)[1].state
    kept, before = copy.deepcopy(state), torch.get_rng_state()
    first = look(objective, Batch(x), state)
    assert look(objective, Batch(x), state) == first
    objective.validation_loss(Batch(x), state, seeded(1))
    assert same(state, kept)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_are_watched_before_the_first_batch_and_without_a_base():
    """There are no chains yet, nor draws to measure log Z by."""
    energy = neural(3, base=None)
    batch = Batch(standard_normal(12, 3))
    objective = ContrastiveDivergence(energy, MALA(0.1), FromData())
    state = objective.start(batch, seeded())
    logs = look(objective, batch, state)
    assert logs["energy_gap"] == 0
    assert objective.divergence_reason(logs) is None
    assert torch.isfinite(objective.validation_loss(batch, state, seeded()))


def test_acceptance_is_the_mean_of_the_steps():
    """Langevin proposals of a flat energy are all accepted; those of a huge step are not."""
    energy, batch = Bell(), Batch(standard_normal(200, 3))
    for step, low, high in ((1e-6, 0.99, 1.0), (50.0, 0.0, 0.05)):
        objective = ContrastiveDivergence(energy, MALA(step), FromData())
        state = gradient(objective, batch, objective.start(batch, seeded()))[1].state
        assert low <= look(objective, batch, state)["acceptance"] <= high


# ------------------------------------------------------------------------------
# Storage
# ------------------------------------------------------------------------------

POLICIES = {
    "data": lambda base, **more: FromData(**more),
    "noise": lambda base, **more: FromNoise(initial=base, **more),
    "persistent": lambda base, **more: Persistent(n_chains=7, initial=base, **more),
    "replay": lambda base, **more: ReplayBuffer(size=20, restart=0.2, initial=base, **more),
}
SAMPLERS = {
    "MALA": MALA(0.1),
    "tuned MALA": MALA(0.1, adapt=True, scale="auto"),
    "dense MALA": MALA(0.1, adapt=True, scale="dense"),
    "Langevin": Langevin(0.05, decay=0.6, scale="auto"),
    "averaged Langevin": Langevin(0.05, averaged=True),
    "HMC": HMC(0.1, 3, adapt=True),
}
STORED = {
    **{f"{p}, {s}": (p, s, {}, {}) for p in POLICIES for s in SAMPLERS},
    "weighed": ("persistent", "tuned MALA", {"reweight": True}, {}),
    "noisy": ("persistent", "MALA", {}, {"sigma": NOISE, "anneal": (5.0, 6)}),
}


def stored_case(name):
    policy, sampler, of_chains, settings = STORED[name]
    energy = neural(3)
    chains = POLICIES[policy](energy.base, n_steps=2, **of_chains)
    return ContrastiveDivergence(energy, SAMPLERS[sampler], chains, **settings)


def assert_goes_on(objective, batch):
    """Training goes on from a stored state bit for bit."""
    state = train(objective, batch, objective.start(batch, seeded(1)), 3)
    twin = copy.deepcopy(objective)
    packed = copy.deepcopy(objective.pack(state))
    assert all(part is None or isinstance(part, torch.Tensor) for part in packed.values())
    again = twin.unpack(packed)
    assert again is not None
    end, other = (train(one, batch, s, 3, 50) for one, s in ((objective, state), (twin, again)))
    assert same(end, other)
    assert same(list(objective.parameters()), list(twin.parameters()))
    assert end.n_batches == 6


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("policy", ["data", "persistent"])
def test_a_sampler_learns_at_every_fourth_batch(policy, n_steps):
    """It has learned before training; what it has learned by then is what it uses in between."""
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    chains = POLICIES[policy](energy.base, n_steps=n_steps)
    objective = ContrastiveDivergence(energy, SAMPLERS["tuned MALA"], chains)
    state = objective.start(batch, seeded(1))
    count = int(state.chain.aux.adaptation.n_steps)
    assert count > 20
    for number in range(9):
        step = state.chain.aux.adaptation.log_step
        state = train(objective, batch, state, 1)
        search = state.chain.aux.adaptation
        assert int(search.n_steps) == count + 1 + number // 4
        assert (search.log_step == step) == (number % 4 > 0)


@pytest.mark.parametrize("name", STORED)
def test_training_goes_on_from_a_stored_state(name, fewer_rungs):
    assert_goes_on(stored_case(name), Batch(standard_normal(6, 3)))


@pytest.mark.parametrize("kernel", [MALA(0.1), MALA(0.1, adapt=True)], ids=["plain", "tuned"])
def test_training_goes_on_from_stored_replicas(kernel):
    energy = neural(3)
    sampler = ParallelTempering(4, kernel)
    objective = ContrastiveDivergence(
        energy, sampler, POLICIES["persistent"](energy.base, n_steps=2)
    )
    assert_goes_on(objective, Batch(standard_normal(6, 3)))


def test_storage_leaves_a_network_in_training_alone():
    """One with a running norm, which a look at it in training mode would change."""
    energy = neural(3, MLP((6, 5), spectral_norm=True)).train()
    objective = ContrastiveDivergence(energy, MALA(0.1), POLICIES["persistent"](energy.base))
    state = objective.start(Batch(standard_normal(6, 3)), seeded())
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    objective.unpack(objective.pack(state))
    assert all(torch.equal(v, before[name]) for name, v in objective.state_dict().items())
    assert energy.network.training


def test_a_state_of_other_chains_starts_anew(fewer_rungs):
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    base = energy.base
    policies = {
        "data": FromData(),
        "persistent": Persistent(n_chains=6, initial=base),
        "more": Persistent(n_chains=8, initial=base),
        "replay": ReplayBuffer(size=20, restart=0.2, initial=base),
        "larger": ReplayBuffer(size=30, restart=0.2, initial=base),
    }
    for name, policy in policies.items():
        objective = ContrastiveDivergence(energy, MALA(0.1), policy)
        state = gradient(objective, batch, objective.start(batch, seeded()))[1].state
        for other, there in policies.items():
            if {name, other} == {"persistent", "data"} or other == "data":
                continue  # rows of the last batch may well be chains; and "data" needs none
            again = ContrastiveDivergence(energy, MALA(0.1), there).unpack(objective.pack(state))
            assert (again is None) == (name != other), (name, other)
    plain, weighed = (
        ContrastiveDivergence(
            energy, MALA(0.1), Persistent(n_chains=6, reweight=reweight, initial=base)
        )
        for reweight in (False, True)
    )
    state = weighed.start(batch, seeded())
    assert plain.unpack(weighed.pack(state)) is None
    assert weighed.unpack(plain.pack(plain.start(batch, seeded()))) is None
    assert plain.unpack({}) is None
    assert plain.pack(None) == {}


def test_chains_of_another_sampler_go_on_with_its_own_settings():
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    tuned, plain = (
        ContrastiveDivergence(energy, sampler, POLICIES["persistent"](energy.base))
        for sampler in (MALA(0.1, adapt=True), Langevin(0.05))
    )
    state = train(tuned, batch, tuned.start(batch, seeded()), 2)
    again = plain.unpack(tuned.pack(state))
    assert torch.equal(again.chain.x, state.chain.x)
    assert again.chain.aux == (0, None, None)
    gradient(plain, batch, again)


# ------------------------------------------------------------------------------
# Snapshots and roll-backs
# ------------------------------------------------------------------------------


def test_a_snapshot_is_not_written_on():
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    objective = ContrastiveDivergence(energy, MALA(0.1), POLICIES["replay"](energy.base))
    state = objective.start(batch, seeded())
    kept = objective.snapshot(state)
    pool = state.pool.clone()
    after = gradient(objective, batch, state)[1].state
    assert torch.equal(kept.pool, pool)
    assert not torch.equal(after.pool, pool)
    moved = (after.pool != pool).any(1)
    assert 0 < int(moved.sum()) <= 6  # those that the batch's chains were read from


@pytest.mark.parametrize("policy", POLICIES)
def test_a_roll_back_halves_the_step_and_a_second_one_starts_anew(policy):
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    sampler = Langevin(0.08, noise_scale=0.2)
    objective = ContrastiveDivergence(energy, sampler, POLICIES[policy](energy.base))
    state = gradient(objective, batch, objective.start(batch, seeded()))[1].state
    after = objective.state_after_roll_back(state, batch, seeded(3))
    assert (after.halvings, after.n_batches) == (1, 1)
    assert torch.equal(after.chain.x, state.chain.x)  # they were well
    assert same(after.pool, state.pool)
    again = objective.state_after_roll_back(after, batch, seeded(3), tries=2)
    assert again.halvings == 2
    for rows in ("pool", "chain"):
        old, new = getattr(state, rows), getattr(again, rows)
        old, new = (part.x if isinstance(part, ChainState) else part for part in (old, new))
        if new is not None:
            assert not (old == new).all(1).any()
    kernel = objective.kernel(2)
    assert kernel.step_size == pytest.approx(0.02)
    # Of the same temperature, noise squared over twice the step.
    assert kernel.noise_scale**2 / kernel.step_size == pytest.approx(0.2**2 / 0.08)
    assert (sampler.step_size, sampler.noise_scale) == (0.08, 0.2)
    assert gradient(objective, batch, again)[1].state.halvings == 2


def test_new_chains_are_rows_that_the_model_likes():
    """Under a model far from its base, draws of that would teach it the wrong lesson."""
    energy = neural(3)
    with torch.no_grad():
        energy.network.last.mul_(0.5)
    objective = ContrastiveDivergence(
        energy, MALA(0.08), Persistent(n_chains=500, initial=energy.base)
    )
    state = objective.start(Batch(standard_normal(6, 3)), seeded())
    again = objective.state_after_roll_back(state, Batch(standard_normal(6, 3)), seeded(3), tries=2)
    with torch.no_grad():
        draws = energy.base.sample(200_000, seeded(4))
        f = energy.correction(draws)
        expected = float((-f).softmax(0) @ f)
        found, error = energy.correction(again.chain.x), float(f.std()) / 500**0.5
    assert float(f.mean()) - expected > 10 * error
    # As 20 draws for each chain carry it, which is not all of the way.
    assert float(found.mean()) < expected + 0.2 * (float(f.mean()) - expected)


def test_a_step_that_the_noise_follows_is_halved_alone():
    energy = neural(3)
    objective = ContrastiveDivergence(energy, Langevin(0.08), FromData())
    assert objective.kernel(3).get_params() == Langevin(0.01).get_params()
    inner = ParallelTempering(3, MALA(0.08))
    objective = ContrastiveDivergence(energy, inner, Persistent())
    assert objective.kernel(1).sampler.step_size == 0.04
    assert inner.sampler.step_size == 0.08
    gibbs = ContrastiveDivergence(binary("tree", D), GibbsWithGradients(), FromData())
    assert isinstance(gibbs.kernel(5), GibbsWithGradients)


def test_the_halved_step_is_the_one_that_chains_take(fewer_rungs):
    """Persistent ones with a scale of their own carry their step with them."""
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    for reweight in (False, True):
        objective = ContrastiveDivergence(
            energy, MALA(0.08, scale="auto"), POLICIES["persistent"](energy.base, reweight=reweight)
        )
        state = objective.start(batch, seeded())
        after = objective.state_after_roll_back(state, batch, seeded(3))
        assert float(after.chain.aux.step_size) == pytest.approx(0.04), f"reweight={reweight}"


def test_weighed_chains_are_right_where_they_were(fewer_rungs):
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    objective = ContrastiveDivergence(
        energy, MALA(0.08), POLICIES["persistent"](energy.base, reweight=True)
    )
    state = gradient(objective, batch, objective.start(batch, seeded()))[1].state
    after = objective.state_after_roll_back(state, batch, seeded(3))
    assert torch.equal(after.chain.x, state.chain.x)
    assert same(after.walkers, state.walkers)
    assert after.halvings == 1


def test_rows_on_which_chains_start_are_augmented():
    energy, batch = neural(3), Batch(standard_normal(6, 3))
    seen = []

    def shifted(rows, generator):
        seen.append(rows)
        return rows + 100.0

    objective = ContrastiveDivergence(
        energy,
        Langevin(1e-12, 0.0),
        FromData(1, n_independence_steps=0, augmentation=shifted),
    )
    state = gradient(objective, batch, objective.start(batch, seeded()))[1].state
    torch.testing.assert_close(state.chain.x, batch.x + 100)
    assert torch.equal(seen[0], batch.x)


def test_networks_that_know_images_are_trained_as_well():
    """Through the derivatives of a convolution, whose rows are flat to everybody else."""
    base = Gaussian(torch.zeros(12, dtype=DOUBLE), 1.0)
    network = build(Conv((3, 4)), (1, 3, 4))
    energy = NeuralEnergy(network, Real((12,)), base, image_shape=(1, 3, 4))
    objective = ContrastiveDivergence(
        energy, MALA(0.1), Persistent(n_chains=7, initial=base), refinement=Refinement(0.5, 0.1)
    )
    batch = Batch(standard_normal(6, 12))
    grads, _ = gradient(objective, batch, objective.start(batch, seeded()))
    assert torch.isfinite(flat(grads)).all()
