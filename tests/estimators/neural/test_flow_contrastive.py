"""Flow contrastive estimation: on flows whose training is known, and its estimator."""

import math
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose
from scipy import integrate
from sklearn.base import clone
from sklearn.datasets import make_moons
from torch import nn
from torch.distributions import Independent, Normal
from zuko.flows import NICE

from skebm import FlowContrastiveDensity, NCEDensity
from skebm.base import Batch, Real
from skebm.distributions import Gaussian, NormalizingFlow
from skebm.energies import MLP, Confined, NeuralEnergy, Spec
from skebm.estimators.neural.objectives.flow_contrastive import flow_of
from skebm.objectives import FlowContrastive
from skebm.objectives.flow_contrastive import CHECK_EVERY, FlowState
from skebm.partition import ImportanceSampling
from skebm.training import AdamW
from tests.support.objectives import gradient
from tests.support.oracle import DOUBLE, mean_is, seeded
from tests.support.storage import by_pickle
from tests.support.tables import real_rows
from tests.support.tiers import full, only_full

SIEVE = 5
X, X_NEW = real_rows(60, 3), real_rows(20, 3, seed=1)


def small_flow(d):
    """A flow that takes one pass through small networks to draw from."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return NICE(d, transforms=2, hidden_features=(16,))


quick = {"network": MLP((16,)), "n_flow_steps": 20, "n_iter": 3, "random_state": 0}
by_name = quick | {"flow": "maf", "partition": ImportanceSampling(2000)}
small = quick | {"flow": small_flow(3)}


class Shift(nn.Module):
    """The simplest flow: a normal distribution that learns its mean and its deviation."""

    def __init__(self, mean=0.0, sd=1.0):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([mean], dtype=DOUBLE))
        self.log_sd = nn.Parameter(torch.tensor([sd], dtype=DOUBLE).log())

    def forward(self):
        return Independent(Normal(self.mean, self.log_sd.exp()), 1)


class Linear(nn.Module):
    """A network that is linear in the row."""

    def __init__(self, weight=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight], dtype=DOUBLE))

    def forward(self, x):
        return x @ self.weight


def contrast(network=None, mean=0.0, sd=1.0, **kwargs):
    flow = NormalizingFlow(Shift(mean, sd), 1)
    base = Gaussian(torch.zeros(1, dtype=DOUBLE), 1.0)
    energy = NeuralEnergy(Linear() if network is None else network, Real((1,)), base)
    return FlowContrastive(energy, flow, **kwargs)


def batch(n, seed, mean=0.0):
    return Batch(mean + torch.randn(n, 1, generator=seeded(seed), dtype=DOUBLE))


def gradients(objective, mean=0.0, n=200, repeats=300):
    """Of the energy, of c and of the flow, at independent batches."""
    found = []
    for seed in range(repeats):
        state = FlowState(torch.tensor(1.0, dtype=DOUBLE), 0, True)
        gradient(objective, batch(n, seed, mean), state, 10_000 + seed)
        found.append(torch.cat([p.grad.flatten() for p in objective.parameters()]))
    return torch.stack(found)


# ------------------------------------------------------------------------------
# The objective
# ------------------------------------------------------------------------------


def test_the_value_is_the_entropy_of_the_classifier():
    """Against quadrature: data N(0.3, 1), flow N(-0.2, 1.5), energy of N(0.4, 1)."""
    objective = contrast(Linear(-0.4), -0.2, 1.5)
    grid = np.linspace(-12, 12, 20_001)
    p, q = scipy.stats.norm(0.3).pdf(grid), scipy.stats.norm(-0.2, 1.5)
    ratio = scipy.stats.norm.logpdf(grid) + 0.4 * grid - q.logpdf(grid)
    loss = p * np.logaddexp(0, -ratio) + q.pdf(grid) * np.logaddexp(0, ratio)
    values = [
        objective(batch(500, seed, 0.3), None, seeded(1000 + seed)).value.detach()[None]
        for seed in range(100)
    ]
    assert mean_is(torch.stack(values), integrate.trapezoid(loss, grid)) < SIEVE


def test_the_flow_ascends_the_objective_that_the_energy_descends():
    """The expected gradient of the flow's mean and deviation is that of -J, by quadrature."""
    objective = contrast(Linear(-0.4), -0.2, 1.5)
    grid = np.linspace(-14, 14, 20_001)
    p = scipy.stats.norm(0.3).pdf(grid)

    def loss(mean, log_sd):
        q = scipy.stats.norm(mean, math.exp(log_sd))
        ratio = scipy.stats.norm.logpdf(grid) + 0.4 * grid - q.logpdf(grid)
        both = p * np.logaddexp(0, -ratio) + q.pdf(grid) * np.logaddexp(0, ratio)
        return integrate.trapezoid(both, grid)

    at, h = (-0.2, math.log(1.5)), 1e-4
    truth = [
        -(loss(at[0] + h, at[1]) - loss(at[0] - h, at[1])) / (2 * h),
        -(loss(at[0], at[1] + h) - loss(at[0], at[1] - h)) / (2 * h),
    ]
    found = []
    for seed in range(200):
        state = FlowState(torch.tensor(1.0, dtype=DOUBLE), 0, True)
        gradient(objective, batch(200, seed, 0.3), state, 10_000 + seed)
        flow = objective.flow
        found.append(torch.cat([flow.mean.grad, flow.log_sd.grad]))
    for one, expected in zip(torch.stack(found).t(), truth, strict=True):
        assert mean_is(one[:, None], expected) < SIEVE


@full
def test_the_expected_gradient_vanishes_where_all_three_agree():
    assert mean_is(gradients(contrast()), 0.0) < SIEVE
    assert mean_is(gradients(contrast(), mean=0.5), 0.0) > 2 * SIEVE


def test_both_find_the_data():
    objective, generator = contrast(), seeded(0)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.02)
    state = objective.start(batch(10, 0), generator)
    for step in range(250):
        with torch.no_grad():
            state = objective.gradients(batch(500, step, 0.7), state, generator).state
        optimizer.step()
    assert float(objective.flow.mean.detach()) == pytest.approx(0.7, abs=0.1)
    assert float(objective.energy.network.weight.detach()) == pytest.approx(-0.7, abs=0.1)
    # E = -log N(x; 0, 1) - 0.7 x, so that Z = exp(0.7^2 / 2)
    assert float(objective.log_partition.detach()) == pytest.approx(0.245, abs=0.1)


def test_a_flow_that_cannot_be_discriminated_is_not_trained():
    objective, generator = contrast(), seeded(0)
    state = objective.start(batch(10, 0), generator)
    with torch.no_grad():
        for seed in range(CHECK_EVERY):
            state = objective.gradients(batch(100, seed), state, generator).state
        assert not state.moves  # the energy is still the base, and classifies nothing
        objective.gradients(batch(100, 99), state, generator)
    assert objective.flow.mean.grad is None
    assert objective.energy.network.weight.grad is not None
    discriminated = contrast(Linear(-3.0))
    state = objective.start(batch(10, 0), generator)
    with torch.no_grad():
        for seed in range(CHECK_EVERY):
            state = discriminated.gradients(batch(100, seed, 3.0), state, generator).state
    assert state.moves
    assert state.discriminated > 0.65


def test_states_are_packed():
    objective = contrast()
    state = FlowState(torch.tensor(0.6), 17, False)
    again = objective.unpack(objective.pack(state))
    assert (float(again.discriminated), *again[1:]) == (float(state.discriminated), 17, False)
    assert objective.unpack(objective.pack(None)) is None


def test_the_flow_that_is_given_is_not_touched():
    flow = NormalizingFlow(Shift(), 1)
    energy = NeuralEnergy(Linear(), Real((1,)), flow)
    objective = FlowContrastive(energy, flow)
    with torch.no_grad():
        objective.flow.mean += 1
    assert float(flow.flow.mean) == 0
    assert not any(p.requires_grad for p in flow.flow.parameters())


def test_what_does_not_fit():
    flow = NormalizingFlow(Shift(), 1)
    network = MLP((4,)).build(Spec((2,), seeded(0), DOUBLE))
    with pytest.raises(ValueError, match="flow and energy must have the same domain"):
        FlowContrastive(NeuralEnergy(network, Real((2,)), flow), flow)
    with pytest.raises(ValueError, match="needs a base"):
        FlowContrastive(NeuralEnergy(Linear(), Real((1,))), flow)
    with pytest.raises(TypeError, match="must be a skebm.distributions.NormalizingFlow"):
        FlowContrastive(NeuralEnergy(Linear(), Real((1,)), flow), Shift())
    with pytest.raises(ValueError, match="cannot leave out kernel centres"):
        contrast().rowwise(torch.zeros(2, 1), seeded(0), torch.arange(2))


def test_beyond_the_rows_a_confined_network_is_constant():
    inner = MLP((4,)).build(Spec((3,), seeded(0), DOUBLE))
    with torch.no_grad():
        inner.last += 1
    network = Confined(inner, 2.0)
    x = torch.randn(9, 3, generator=seeded(1), dtype=DOUBLE)
    x = x / x.norm(dim=1, keepdim=True)
    torch.testing.assert_close(network(x), inner(x))
    torch.testing.assert_close(network(2 * x), inner(2 * x))
    torch.testing.assert_close(network(1e6 * x), inner(2 * x))
    with pytest.raises(ValueError, match="radius must be positive"):
        Confined(inner, 0.0)


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moons():
    rows, _ = make_moons(1000, noise=0.1, random_state=0)
    return rows[:500], rows[500:]


@pytest.fixture(scope="module")
def model(moons):
    params = {"n_flow_steps": 40, "flow_learning_rate": 1e-3, "n_iter": 8, "learning_rate": 0.02}
    model = FlowContrastiveDensity(MLP((32, 32)), flow=small_flow(2), random_state=0, **params)
    return model.fit(moons[0])


@full
def test_the_energy_is_better_than_the_flow_alone(model, moons):
    alone, model = (clone(model).set_params(n_iter=n).fit(moons[0]) for n in (0, 25))
    assert model.score(moons[1]) > alone.score(moons[1]) + 0.1
    assert model.history_[-1]["gain_over_base"] > 0.1
    assert abs(model.log_partition_learned_ - model.log_partition_) < 0.1
    assert "NormalizingFlow" in model.log_partition_method_


@pytest.mark.parametrize("flow", ["maf", only_full("coupling"), only_full("nsf")])
def test_before_training_it_is_the_flow(flow):
    """Of every name."""
    model = FlowContrastiveDensity(**quick | {"n_iter": 0}, flow=flow).fit(X)
    expected = model.flow_.log_prob(torch.as_tensor(X_NEW).float()).double()
    assert_allclose(model.score_samples(X_NEW), expected, atol=1e-3)
    assert model.log_partition_learned_ == 0


def test_the_flow_is_normalised_in_units_of_the_data(model):
    side = np.linspace(-2.5, 3.5, 300)
    points = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    log_q = model.flow_.log_prob(torch.as_tensor(points).float()).double()
    assert float(log_q.exp().sum()) * (side[1] - side[0]) ** 2 == pytest.approx(1, abs=0.02)


def test_the_flow_has_moved(model):
    x = torch.as_tensor(model.units_.apply(X[:, :2])).float()
    moved = flow_of(model.net_).log_prob(x) - model.base_.log_prob(x)
    assert float(moved.abs().max()) > 0.01
    drawn = model.flow_.sample(2000, seeded(0)).numpy()
    assert_allclose(drawn.mean(0), [0.5, 0.25], atol=0.15)


def test_the_flow_is_noise_for_others(model, moons):
    other = NCEDensity(noise=model.flow_, network=MLP((16,)), n_iter=2, sigma=None, random_state=0)
    assert np.isfinite(other.fit(moons[0]).score(moons[1]))


def test_samples_are_those_of_the_energy(model, moons):
    drawn = model.sample(300, random_state=0, n_steps=5)
    assert_allclose(drawn.mean(0), moons[0].mean(0), atol=0.15)
    given = model.sample(100, random_state=0, given=[np.nan, 0.9], n_steps=20)
    assert (given[:, 1] == 0.9).all()
    filled = model.impute([[np.nan, 0.9], [0.1, 0.2]], random_state=0, n_steps=5)
    assert filled[1].tolist() == [0.1, 0.2]
    assert np.isfinite(filled).all()


def test_two_learning_rates():
    """By one schedule; weight decay is for the network alone."""
    optimizer = AdamW(schedule="constant", weight_decay=0.1)
    model = FlowContrastiveDensity(
        **small, learning_rate=0.01, flow_learning_rate=0.003, optimizer=optimizer
    )
    groups = model.fit(X).net_.optimizer_.param_groups
    assert sorted(g["lr"] for g in groups) == [0.003, 0.01, 0.01]
    assert [g["weight_decay"] for g in groups] == [0.0, 0.0, 0.1]
    assert model.history_[-1]["lr"] == 0.01
    model.set_params(optimizer__schedule="cosine").fit(X)
    slow, _, fast = (g["lr"] for g in model.net_.optimizer_.param_groups)
    assert slow / fast == pytest.approx(0.3)


def test_it_goes_on_where_it_was():
    model = FlowContrastiveDensity(**by_name, warm_start=True).fit(X)
    again = by_pickle(model)
    assert_allclose(again.score_samples(X), model.score_samples(X))
    x = torch.as_tensor(X).float()
    assert torch.equal(again.flow_.log_prob(x), model.flow_.log_prob(x))
    assert again.net_.state_ == model.net_.state_
    assert again.net_.state_ is not None
    for one in (model, again):
        one.partial_fit(X)
    assert_allclose(again.energy(X), model.energy(X))


@full
def test_weights_are_repeated_rows_but_for_the_draws():
    """Which are as many as rows, and so others."""
    count = np.random.default_rng(3).integers(0, 5, len(X))
    params = small | {"batch_size": 1000, "n_iter": 7, "sigma": None, "dtype": "float64"}
    plain, weighted, repeated = (
        FlowContrastiveDensity(**params, partition=None).fit(rows, sample_weight=weight)
        for rows, weight in ((X, None), (X, count), (np.repeat(X, count, axis=0), None))
    )
    apart = np.abs(weighted.energy(X_NEW) - repeated.energy(X_NEW)).mean()
    assert apart < np.abs(weighted.energy(X_NEW) - plain.energy(X_NEW)).mean() / 3


def test_a_flow_of_a_user_is_copied():
    flow = small_flow(3)
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    model = FlowContrastiveDensity(**quick | {"flow": flow}).fit(X)
    assert np.isfinite(model.score(X_NEW))
    assert model.base_.flow is not flow
    for name, value in flow.state_dict().items():
        assert torch.equal(value, before[name])


def test_few_rows_one_column_a_line():
    assert np.isfinite(FlowContrastiveDensity(**by_name).fit([[0.2], [1.4]]).score([[0.5]]))
    line = np.repeat(np.random.default_rng(0).normal(size=(60, 1)), 3, axis=1)
    model = FlowContrastiveDensity(**small).fit(line)  # noise in training keeps it finite
    assert np.isfinite(model.score_samples(line)).all()


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"flow": "glow"}, "flow"),
        ({"flow": None}, "flow"),
        ({"n_flow_steps": 0}, "n_flow_steps"),
        ({"flow_learning_rate": 0.0}, "flow_learning_rate"),
        ({"sigma": -1.0}, "sigma"),
        ({"optimizer": AdamW(schedule="linear")}, "schedule"),
    ],
    ids=str,
)
def test_parameters_out_of_range(params, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter of"):
        FlowContrastiveDensity(**by_name | params).fit(X)


def test_settings_are_set_on_what_none_stands_for():
    model = FlowContrastiveDensity(**small | {"network": None}).set_params(
        network__hidden_sizes=(4,), optimizer__averaging=0.5, sampler__step_size=0.1
    )
    assert model.network.hidden_sizes == (4,)
    assert model.fit(X).sampler_.step_size == 0.1
    assert model.net_.averaging == 0.5
    with pytest.raises(ValueError, match="flow__transforms cannot be set"):
        FlowContrastiveDensity().set_params(flow__transforms=3)


def test_without_zuko(monkeypatch):
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ImportError, match=r"skebm\[flows\]"):
        FlowContrastiveDensity(**by_name).fit(X)
