"""A Gaussian RBM, one new energy: exact by quadrature, trained, sampled, annealed and stored."""

import copy
import math

import pytest
import torch

from skebm.base import Batch, Clamp
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import GaussianRBM, annealing_path
from skebm.objectives import Centering, ContrastiveDivergence, Penalty
from skebm.partition import AIS, Exact
from skebm.samplers import FromData, Gibbs, ParallelTempering, Persistent
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows
from tests.objectives import (
    autograd,
    flat,
    gradient,
    later,
    look,
    penalty_formula,
    same,
    weights,
)
from tests.oracle import (
    DOUBLE,
    bits,
    joint_energy,
    make_gaussian_rbm,
    mean_is,
    seeded,
)
from tests.tiers import only_full

D, H = 2, 3
BETAS = [1.0, 0.4, 2.5]
# Largest |z| of a mean over independent noise, of a hundred numbers or so.
SIEVE = 5


@pytest.fixture
def energy():
    return make_gaussian_rbm(D, H)


def normal(*shape, seed=1):
    return torch.randn(shape, generator=seeded(seed), dtype=DOUBLE)


def line(n=161, reach=16.0):
    """Nodes of the trapezoidal rule, which is exact to rounding for analytic densities."""
    x = torch.linspace(-reach, reach, n, dtype=DOUBLE)
    return x, math.log(float(x[1] - x[0]))


def plane():
    x, log_width = line()
    return torch.cartesian_prod(x, x), 2 * log_width


def field_of(shape):
    return {None: None, "shared": normal(D), "one for each row": normal(2**H, D)}[shape]


def draw_pair(energy, n, seed):
    """Independent rows of the model with their hidden layers: h by enumeration, then x given h."""
    with torch.no_grad():
        h = bits(H)
        p = (-energy.hidden_energy(h)).softmax(0)
        h = h[torch.multinomial(p, n, replacement=True, generator=seeded(seed))]
        mean = energy.visible_bias + h @ energy.weight
        x = mean + (energy.log_variance / 2).exp() * normal(n, D, seed=seed + 10_000)
    return x, h


def log_likelihood(energy, x):
    """log p(x), by quadrature of everything."""
    nodes, log_area = plane()
    log_z = (-joint_energy(energy, nodes, bits(H))).flatten().logsumexp(0) + log_area
    return (-joint_energy(energy, x, bits(H))).logsumexp(1) - log_z


# ------------------------------------------------------------------------------
# Conditionals and normalisers, against quadrature
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [None, "shared", "one for each row"])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("annealed", [False, True])
def test_the_visible_conditional_has_the_density_of_the_joint(energy, beta, shape, annealed):
    model = energy.annealed(0.3) if annealed else energy
    h, x, field = bits(H), normal(50, D), field_of(shape)
    found = model.visible(h, beta, field)
    log_p = torch.distributions.Normal(
        found.mean[:, None], found.scale.expand_as(found.mean)[:, None]
    )
    log_p = log_p.log_prob(x).sum(2)  # (2**H, 50)
    expected = -beta * joint_energy(model, x, h).t()
    if field is not None:
        expected = expected + field.expand(len(h), -1) @ x.t()  # not scaled by beta
    difference = log_p - expected
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference))


def test_visible_draws_have_the_moments_of_the_conditional(energy):
    conditional = energy.visible(bits(H)[5].expand(40_000, -1), 0.7)
    z = (conditional.sample(seeded()) - conditional.mean) / conditional.scale
    assert mean_is(z, 0) < SIEVE
    assert mean_is(z.square(), 1) < SIEVE
    assert mean_is(z[:, :1] * z[:, 1:], 0) < SIEVE


@pytest.mark.parametrize("shape", [None, "shared", "one for each row"])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("annealed", [False, True])
def test_the_hidden_energy_integrates_the_rows_out(energy, beta, shape, annealed):
    model = energy.annealed(0.3) if annealed else energy
    h, (x, log_area), field = bits(H), plane(), field_of(shape)
    log_p = -beta * joint_energy(model, x, h)
    if field is not None:
        log_p = log_p + x @ field.expand(len(h), -1).t()
    expected = -(log_p.logsumexp(0) + log_area)
    torch.testing.assert_close(model.hidden_energy(h, beta, field), expected)


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("annealed", [False, True])
def test_the_hidden_energy_integrates_over_rows_that_agree(energy, beta, annealed, known):
    model = energy.annealed(0.3) if annealed else energy
    h, field, value = bits(H), normal(D), normal(2**H, D, seed=2)
    mask = (torch.arange(D) == known).expand(2**H, -1)
    found = model.hidden_energy(h, beta, field, Clamp(mask, value))
    nodes, log_width = line()
    for row, at, expected in zip(h, value, found, strict=True):
        x = at.repeat(len(nodes), 1)
        x[:, 1 - known] = nodes
        log_p = x @ field - beta * joint_energy(model, x, row[None])[:, 0]
        torch.testing.assert_close(expected, -(log_p.logsumexp(0) + log_width))


def test_the_hidden_energy_of_known_rows_is_the_joint_one(energy):
    h, x = bits(H), normal(2**H, D)
    clamp = Clamp(torch.ones_like(x, dtype=torch.bool), x)
    torch.testing.assert_close(
        energy.hidden_energy(h, clamp=clamp), joint_energy(energy, x, h).diagonal()
    )


def test_log_z_sums_over_the_hidden_layer(energy):
    x, log_area = plane()
    expected = float((-energy(x)).logsumexp(0).detach()) + log_area
    found = Exact().estimate(energy)
    assert found.value == pytest.approx(expected)
    assert found.bound_kind == "exact"


def test_without_weights_rows_are_normal():
    energy = GaussianRBM(3, 2, generator=seeded(), scale=0.0, sigma=2.0)
    assert Exact().estimate(energy).value == pytest.approx(
        2 * math.log(2) + 3 * math.log(2 * math.sqrt(2 * math.pi))
    )


def test_at_infinite_temperature_there_is_no_distribution(energy):
    with pytest.raises(ValueError, match="beta=0"):
        energy.visible(bits(H), 0.0)


# ------------------------------------------------------------------------------
# The path from the base
# ------------------------------------------------------------------------------


def test_the_path_runs_from_the_base_to_the_model(energy):
    x = normal(20, D)
    q = torch.distributions.Normal(energy.base.mean, energy.base.scale).log_prob(x).sum(1)
    torch.testing.assert_close(energy.annealed(0.0)(x), -q - H * math.log(2))
    torch.testing.assert_close(energy.annealed(1.0)(x), energy(x))
    twice = energy.annealed(0.5).annealed(0.4)
    torch.testing.assert_close(twice(x), energy.annealed(0.2)(x))
    path = annealing_path(energy, energy.base)
    expected = energy.annealed(0.3)(x) - energy.annealed(0.5)(x)
    torch.testing.assert_close(path.log_ratio(x, 0.3, 0.5), expected)
    assert path.log_z0 == pytest.approx(H * math.log(2))


def test_a_path_from_another_base_is_the_geometric_one(energy):
    other, x = Gaussian(torch.ones(D, dtype=DOUBLE), 2.0), normal(20, D)
    path = annealing_path(energy, other)
    expected = 0.3 * energy(x) - 0.7 * other.log_prob(x)
    torch.testing.assert_close(path.at(0.3)(x), expected)


def test_annealed_importance_sampling_knows_log_z(energy):
    exact = Exact().estimate(energy).value
    found = AIS(n_chains=500, n_betas=200).estimate(energy, generator=seeded())
    assert abs(found.value - exact) < 5 * found.std_error
    assert found.std_error < 0.05


# ------------------------------------------------------------------------------
# Sampling
# ------------------------------------------------------------------------------


def moments(x):
    """What tells mixtures of normal distributions apart."""
    return torch.cat([x, x.square(), x[:, :1] * x[:, 1:], x.tanh()], 1)


@pytest.mark.parametrize(
    ("sampler", "known"),
    [
        (Gibbs(), False),
        (Gibbs(), True),
        (Gibbs(n_collapsed=2), False),
        (Gibbs(n_collapsed=2), True),
        (ParallelTempering(3), False),  # its hot replicas are not exact given a column
    ],
    ids=str,
)
def test_chains_that_start_exact_stay_exact(energy, sampler, known):
    x, clamp = draw_pair(energy, 20_000, 1)[0], None
    if known:
        clamp = Clamp(torch.tensor([True, False]).expand_as(x), x)
    state, _ = sampler.run(energy, x, 3, seeded(2), clamp=clamp)
    assert (state.x[:, 1] != x[:, 1]).all()
    if known:
        assert torch.equal(state.x[:, 0], x[:, 0])
    difference = moments(state.x) - moments(draw_pair(energy, 20_000, 3)[0])
    assert mean_is(difference, 0) < SIEVE


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


def objective_of(energy, policy="persistent", **settings):
    chains = {
        "persistent": Persistent(n_chains=40, initial=energy.base),
        "data": FromData(),
        "persistent, many steps": Persistent(10, n_chains=100, initial=energy.base),
        "data, many steps": FromData(10),
    }
    return ContrastiveDivergence(energy, Gibbs(), chains[policy], **settings)


@pytest.mark.parametrize("policy", ["persistent", "data"])
@pytest.mark.parametrize("kind", [None, "of mean 1"])
def test_the_gradient_is_that_of_data_minus_chains(energy, policy, kind):
    objective, x, w = objective_of(energy, policy), normal(6, D), weights(kind)
    batch = Batch(x, weight=w)
    grads, loss = gradient(objective, batch, objective.start(batch, seeded(1)), 5)
    rows = loss.state.chain.x
    w = torch.ones(6, dtype=DOUBLE) if w is None else w
    of_chain = w if policy == "data" else torch.full((40,), float(w.mean()), dtype=DOUBLE)

    def contrast(energy):
        level = [-(-joint_energy(energy, at, bits(H))).logsumexp(1) for at in (x, rows)]
        return (w * level[0]).mean() - (of_chain * level[1]).mean()

    torch.testing.assert_close(flat(grads), flat(autograd(contrast, energy)))


@pytest.mark.parametrize("policy", ["persistent", "data"])
def test_the_truth_is_a_fixed_point(energy, policy):
    """At the parameters that made the data the expected gradient is zero, and only there."""
    objective, other = objective_of(energy, policy), make_gaussian_rbm(D, H, seed=1)
    found = []
    for seed in range(200):
        batch = Batch(draw_pair(energy, 40, seed)[0])
        state = objective.start(batch, seeded(seed))
        if policy == "persistent":
            chain = objective.sampler.init(energy, draw_pair(energy, 40, 500 + seed)[0])
            state = state._replace(chain=chain)
        found.append(flat(gradient(objective, batch, state, 1000 + seed)[0]))
    assert mean_is(torch.stack(found), 0) < SIEVE
    rows = draw_pair(other, 8000, 0)[0]
    grads, _ = gradient(objective, Batch(rows), later(objective, rows), 0)
    assert flat(grads).abs().max() > 0.2


def test_exact_chains_give_the_gradient_of_the_likelihood(energy):
    objective, x = objective_of(energy), normal(7, D)
    found = []
    for seed in range(200):
        rows = draw_pair(energy, 40, seed)[0]
        state = objective.start(Batch(x), seeded(seed))
        state = state._replace(chain=objective.sampler.init(energy, rows))
        found.append(flat(gradient(objective, Batch(x), state, seed)[0]))
    expected = flat(autograd(lambda e: -log_likelihood(e, x).mean(), energy))
    assert mean_is(torch.stack(found), expected) < SIEVE
    assert mean_is(torch.stack(found), 0.8 * expected) > SIEVE  # so fine is the sieve


# Distance of two components along each column; Gibbs sampling still finds from one to the other.
SHIFT = 1.2


def trained(policy, learn_sigma=True, n_epochs=45):
    """A net trained on rows of two components, held-out rows, and their log p by the truth."""
    component = torch.rand(2000, 1, generator=seeded(), dtype=DOUBLE) < 0.4
    x = component * SHIFT + 0.5 * normal(2000, D)
    energy = GaussianRBM(
        D, H, generator=seeded(1), scale=0.1, learn_sigma=learn_sigma, dtype=DOUBLE
    )
    net = EnergyNet(
        objective_of(energy, policy),
        generator=seeded(2),
        max_epochs=n_epochs,
        batch_size=100,
        optimizer=torch.optim.Adam,
        lr=0.02,
        verbose=0,
    ).initialize()
    net.fit(Rows(x[:1500], dtype=DOUBLE, device=torch.device("cpu")))
    of_each = torch.distributions.Normal(torch.tensor([[0.0], [SHIFT]], dtype=DOUBLE), 0.5)
    share = torch.tensor([0.6, 0.4], dtype=DOUBLE).log()
    log_p = (of_each.log_prob(x[1500:, None]).sum(2) + share).logsumexp(1).mean()
    return net, x[1500:], float(log_p)


@pytest.mark.parametrize("policy", ["persistent, many steps", only_full("data, many steps")])
def test_it_trains_by_the_engine_to_near_the_truth(policy):
    net, x, best = trained(policy)
    energy = net.module_.energy
    with torch.no_grad():
        found = float(-energy(x).mean()) - Exact().estimate(energy).value
    normal_alone = float(Gaussian.fit(x).log_prob(x).mean())
    assert found > best - 0.05
    assert found > (best + normal_alone) / 2
    assert net.n_restarts_ == 0
    width, half = (energy.log_variance / 2).exp(), torch.full((D,), 0.5, dtype=DOUBLE)
    torch.testing.assert_close(width.detach(), half, atol=0.06, rtol=0)


def test_known_widths_are_left_alone():
    net, _, _ = trained("persistent", learn_sigma=False, n_epochs=1)
    energy = net.module_.energy
    assert "log_variance" not in dict(energy.named_parameters())
    assert torch.equal(energy.log_variance, torch.zeros(D, dtype=DOUBLE))


@pytest.mark.parametrize("policy", ["persistent", "data"])
def test_the_monitor_measures_rows_by_the_base(energy, policy):
    """Nats above the base, by a bridge; and the error of a reconstruction, in units of x."""
    objective, x = objective_of(energy, policy), normal(30, D)
    state = later(objective, x)
    if policy == "persistent":
        chain = objective.sampler.init(energy, draw_pair(energy, 4000, 1)[0])
        state = state._replace(chain=chain)
    logs = look(objective, Batch(x), state)
    truth = (log_likelihood(energy, x) - energy.base.log_prob(x)).mean().detach()
    assert logs["gain_over_base"] == pytest.approx(float(truth), abs=5 * logs["gain_error"])
    with torch.no_grad():
        h = (-joint_energy(energy, x, bits(H))).softmax(1) @ bits(H)
        error = (x - energy.visible_bias - h @ energy.weight).square().mean()
    assert logs["reconstruction_error"] == pytest.approx(float(error))
    held_out = objective.held_out(Batch(x), state, seeded())
    assert float(held_out) == pytest.approx(-logs["gain_over_base"], abs=logs["gain_error"])


def test_weights_in_units_of_the_rows_are_no_divergence(energy):
    """A bound on log-odds says nothing where columns are in units of their own."""
    objective, x = objective_of(energy), draw_pair(energy, 60, 3)[0]
    logs = look(objective, Batch(x), later(objective, x))
    assert objective.diverged(logs | {"largest_weight": 1e4}) is None
    assert "energy gap" in objective.diverged(logs | {"energy_gap": -1e3})


@pytest.mark.parametrize("kind", ["l1", "sparsity"])
def test_penalties_are_added_by_autograd(energy, kind):
    penalty = {"l1": Penalty(0.3, 0.4), "sparsity": Penalty(0.0, 0.0, 0.2, 0.7)}[kind]
    x, w = normal(6, D), weights("of mean 1")
    batch, found = Batch(x, weight=w), []
    for term in (None, penalty):
        objective = objective_of(energy, penalty=term)
        found.append(gradient(objective, batch, objective.start(batch, seeded(1)), 5)[0])
    added = flat(found[1]) - flat(found[0])
    expected = flat(autograd(lambda e: penalty_formula(penalty, e, x, w), energy))
    torch.testing.assert_close(added, expected.detach())


def test_it_has_no_gradient_of_its_own_to_centre(energy):
    with pytest.raises(ValueError, match="GaussianRBM has none: pass centering=None"):
        objective_of(energy, centering=Centering())


@pytest.mark.parametrize("policy", ["persistent", "data"])
def test_training_goes_on_from_a_stored_state(energy, policy):
    objective, x = objective_of(energy, policy), normal(6, D)
    state, twin = later(objective, x), copy.deepcopy(objective)
    packed = objective.pack(state)
    assert all(part is None or isinstance(part, torch.Tensor) for part in packed.values())
    again = twin.unpack(packed)
    assert same(state, again)
    first, one = gradient(objective, Batch(x), state, 5)
    second, two = gradient(twin, Batch(x), again, 5)
    assert torch.equal(flat(first), flat(second))
    assert same(one.state, two.state)


def test_weights_are_stored_with_the_widths(energy):
    for model in (energy, make_gaussian_rbm(D, H, learn_sigma=False)):
        other = make_gaussian_rbm(D, H, seed=1, learn_sigma=model is energy)
        other.load_state_dict(model.state_dict())
        x = normal(5, D)
        assert torch.equal(other(x), model(x))


# ------------------------------------------------------------------------------
# Mistakes
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma": 0.0}, "sigma must be a positive number"),
        ({"sigma": torch.tensor([1.0, -1.0])}, "sigma must be a positive number"),
        ({"sigma": torch.ones(3)}, "sigma must be a positive number"),
        ({"base": IndependentBernoulli(torch.zeros(2))}, "must be a Gaussian"),
        ({"base": Gaussian(torch.zeros(2), covariance=torch.eye(2))}, "independent entries"),
        ({"base": Gaussian(torch.zeros(3), 1.0)}, "The base has rows of"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(ValueError, match=message):
        GaussianRBM(2, 3, generator=seeded(), **settings)
