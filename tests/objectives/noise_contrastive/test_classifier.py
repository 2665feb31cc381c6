"""Noise contrastive estimation against integrals, sums over all states, and closed forms."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from numpy import log1p
from scipy import integrate
from torch import nn

from skebm.base import Batch, Energy, Real
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import MLP, NeuralEnergy, Spec
from skebm.objectives import NoiseContrastive
from tests.support.networks import neural
from tests.support.objectives import autograd, flat, gradient
from tests.support.oracle import DOUBLE, make_rbm, mean_is, seeded
from tests.support.tiers import full, leading

SIEVE = 5
FORMS = ("logistic", "ranking")
each_form = pytest.mark.parametrize("form", FORMS)


class Bell(Energy):
    """A normal energy of one column that learns its mean and its precision; log Z is known."""

    domain = Real((1,))

    def __init__(self, mean=0.3, variance=0.8):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean, dtype=DOUBLE))
        self.log_precision = nn.Parameter(-torch.tensor(variance, dtype=DOUBLE).log())

    def forward(self, x, cond=None):
        return (x[:, 0] - self.mean).square() * self.log_precision.exp() / 2

    @property
    def log_z(self):
        return (math.log(2 * math.pi) - float(self.log_precision.detach())) / 2

    def draw(self, n, seed):
        z = torch.randn(n, 1, generator=seeded(seed), dtype=DOUBLE)
        return (self.mean + z * (-self.log_precision / 2).exp()).detach()


def wide(mean=0.0, sd=1.5):
    return Gaussian(torch.tensor([mean], dtype=DOUBLE), sd)


def contrast(energy, noise, log_partition=0.0, **kwargs):
    objective = NoiseContrastive(energy, noise, **kwargs)
    with torch.no_grad():
        objective.shift += log_partition / 10
    return objective


def values(objective, n, repeats, draw):
    """Losses and gradients, that by c last, at independent batches."""
    found = []
    for seed in range(repeats):
        grads, loss = gradient(objective, Batch(draw(n, seed)), None, 10_000 + seed)
        parts = [loss.value.detach()[None], flat(grads)]
        if objective.form == "logistic":
            parts.append(objective.shift.grad[None].clone())
        found.append(torch.cat(parts))
    return torch.stack(found)


# ------------------------------------------------------------------------------
# The value
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_the_logistic_loss_is_the_cross_entropy_of_the_classifier(ratio):
    energy, c = Bell(), 0.7
    grid = np.linspace(-12, 12, 4001)
    p = scipy.stats.norm(0.1, 1.2).pdf(grid)
    q = scipy.stats.norm(0, 1.5)
    odds = np.exp(-((grid - 0.3) ** 2) / 1.6 - c) / (ratio * q.pdf(grid))
    loss = p * log1p(1 / odds) + ratio * q.pdf(grid) * log1p(odds)
    truth = integrate.trapezoid(loss, grid)

    def draw(n, seed):
        return 0.1 + 1.2 * torch.randn(n, 1, generator=seeded(seed), dtype=DOUBLE)

    objective = contrast(energy, wide(), c, noise_ratio=ratio)
    found = values(objective, 400, 200, draw)[:, :1]
    assert mean_is(found, truth) < SIEVE
    assert found.std() / 200**0.5 < 0.005  # the sieve is fine


@full
def test_the_ranking_loss_of_one_draw_is_that_of_a_pair():
    energy, q = Bell(), scipy.stats.norm(0, 1.5)
    grid = np.linspace(-9, 9, 801)
    log_ratio = -((grid - 0.3) ** 2) / 1.6 - q.logpdf(grid)
    pair = np.logaddexp(0, log_ratio[None] - log_ratio[:, None])  # row, draw
    p = scipy.stats.norm(0.1, 1.2).pdf(grid)
    truth = integrate.trapezoid(integrate.trapezoid(pair * q.pdf(grid), grid) * p, grid)

    def draw(n, seed):
        return 0.1 + 1.2 * torch.randn(n, 1, generator=seeded(seed), dtype=DOUBLE)

    objective = contrast(energy, wide(), form="ranking")
    assert mean_is(values(objective, 1, 2000, draw)[:, :1], truth) < SIEVE


@each_form
def test_weights_are_repeated_rows(form):
    energy, noise = Bell(), wide()
    x = energy.draw(6, 0)
    count = torch.tensor([1.0, 3, 0, 2, 1, 1], dtype=DOUBLE)
    repeated = x.repeat_interleave(count.long(), 0)
    few = contrast(energy, noise, form=form, noise_ratio=0.1)  # one draw for either
    by_weight, _ = gradient(few, Batch(x, weight=count * 6 / 8), None, 0)
    by_rows, _ = gradient(few, Batch(repeated), None, 0)
    torch.testing.assert_close(flat(by_weight), flat(by_rows))


@each_form
def test_where_the_noise_is_the_base_the_network_is_the_classifier(form):
    noise = Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0)
    energy = neural(base=noise)
    shared, apart = (
        NoiseContrastive(energy, q, form=form, noise_ratio=2.0)
        for q in (noise, Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0))
    )
    x, weight = (
        torch.randn(9, 3, generator=seeded(1), dtype=DOUBLE),
        torch.arange(9.0, dtype=DOUBLE),
    )
    batch = Batch(x, weight=weight)
    one, loss = gradient(shared, batch, None, 3)
    other, expected = gradient(apart, batch, None, 3)
    torch.testing.assert_close(loss.value, expected.value)
    torch.testing.assert_close(flat(one), flat(other))


@each_form
@pytest.mark.parametrize("ratio", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_the_loss(form, ratio, weighted):
    energy = neural(base=Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0))
    objective = contrast(energy, energy.base, 0.8, form=form, noise_ratio=ratio)
    x = torch.randn(7, 3, generator=seeded(1), dtype=DOUBLE)
    batch = Batch(x, weight=torch.arange(7.0, dtype=DOUBLE) / 3 if weighted else None)
    _, loss = gradient(objective, batch, None, 3)
    found = [p.grad.clone() for p in objective.parameters()]
    expected = objective(batch, None, seeded(3)).value
    by_autograd = torch.autograd.grad(expected, list(objective.parameters()), allow_unused=True)
    torch.testing.assert_close(loss.value, expected.detach())
    for one, other in zip(found, by_autograd, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_a_network_that_is_frozen_still_learns_log_z():
    energy = neural(base=Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0)).requires_grad_(False)
    objective = contrast(energy, energy.base, 0.8)
    x = torch.randn(50, 3, generator=seeded(1), dtype=DOUBLE)
    with torch.no_grad():
        objective.gradients(Batch(x), None, seeded(3))
    assert objective.shift.grad > 0  # c = 0.8 is too large where f is next to zero
    assert all(p.grad is None for p in energy.parameters())


# ------------------------------------------------------------------------------
# The minimum
# ------------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("ratio", leading(1, [4.0, 0.3, 1.0]))
def test_the_expected_gradient_vanishes_at_the_truth(form, ratio):
    energy = Bell()
    objective = contrast(energy, wide(), energy.log_z, form=form, noise_ratio=ratio)
    at_truth = values(objective, 60, 400, energy.draw)[:, 1:]
    assert mean_is(at_truth, 0.0) < SIEVE
    off = contrast(Bell(0.5, 0.8), wide(), energy.log_z, form=form, noise_ratio=ratio)
    assert mean_is(values(off, 60, 400, energy.draw)[:, 1:], 0.0) > 2 * SIEVE


@full
@each_form
def test_the_expected_gradient_vanishes_at_the_truth_on_bits(form):
    energy = make_rbm(4, 3)
    states = energy.domain.states(0, 16, dtype=DOUBLE, device="cpu")
    log_z = (-energy(states).detach()).logsumexp(0)
    p = (-energy(states).detach() - log_z).exp()
    noise = IndependentBernoulli(torch.tensor([0.5, -0.5, 0.2, 0.0], dtype=DOUBLE))

    def draw(n, seed):
        return states[torch.multinomial(p, n, replacement=True, generator=seeded(seed))]

    objective = contrast(energy, noise, float(log_z), form=form, noise_ratio=2.0)
    assert mean_is(values(objective, 60, 400, draw)[:, 1:], 0.0) < SIEVE


@full
def test_many_draws_give_the_gradient_of_the_likelihood():
    """At c = log Z the gradient is off by the order of 1 / ratio."""
    energy, x = Bell(0.6, 0.5), Bell().draw(50, 0)
    objective = contrast(energy, wide(), energy.log_z, noise_ratio=2000.0)
    found = values(objective, 50, 100, lambda n, seed: x)[:, 1:-1]

    def likelihood(bell):
        return bell(x).mean() - bell.log_precision / 2

    truth = flat(autograd(likelihood, energy))
    assert float((found.mean(0) - truth).norm() / truth.norm()) < 0.03


def test_training_finds_the_parameters_and_log_z():
    truth = Bell(0.4, 0.6)
    energy = Bell(0.0, 1.5)
    objective = contrast(energy, wide(0.0, 2.0), noise_ratio=2.0)
    x, generator = truth.draw(20_000, 0), seeded(1)
    optimizer = torch.optim.LBFGS(
        objective.parameters(), max_iter=50, line_search_fn="strong_wolfe"
    )
    fixed = objective.noise.sample(40_000, generator)
    objective.noise = Fixed(fixed)

    def closure():
        optimizer.zero_grad()
        loss = objective(Batch(x), None, generator).value
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(energy.mean.detach()) == pytest.approx(0.4, abs=0.03)
    assert float(energy.log_precision.detach().exp()) == pytest.approx(1 / 0.6, rel=0.04)
    assert float(objective.log_partition.detach()) == pytest.approx(energy.log_z, abs=0.02)


class Fixed:
    """The same draws of the noise, whenever they are asked for."""

    def __init__(self, rows):
        self.rows = rows

    def sample(self, n, generator):
        assert n == len(self.rows)
        return self.rows

    def log_prob(self, x):
        return wide(0.0, 2.0).log_prob(x)


# ------------------------------------------------------------------------------
# What is watched, what is refused
# ------------------------------------------------------------------------------


def test_the_monitor_knows_how_far_the_noise_is():
    """Of a true model: Bayes' accuracy, and KL(p, q)."""
    energy = Bell(0.0, 0.04)
    objective = contrast(energy, wide(), energy.log_z)
    logs = objective.monitor(Batch(energy.draw(20_000, 0)), None, seeded(1))
    ratio = 0.04 / 2.25
    assert float(logs["gain_over_base"]) == pytest.approx(
        (ratio - 1 - math.log(ratio)) / 2, abs=6 * float(logs["gain_error"])
    )
    edge = math.sqrt(math.log(1 / ratio) / (1 / 0.04 - 1 / 2.25))
    inside, beyond = scipy.stats.norm(0, 0.2), scipy.stats.norm(0, 1.5)
    right = (1 - 2 * inside.sf(edge) + 2 * beyond.sf(edge)) / 2
    assert float(logs["accuracy"]) == pytest.approx(right, abs=0.01)


def test_row_noise_is_added_to_the_data_alone():
    """Data at a point, with noise as wide as the noise: nothing can be told."""
    energy = NeuralEnergy(
        MLP((4,)).build(Spec((1,), seeded(0), DOUBLE)), Real((1,)), noise := wide()
    )
    objective = NoiseContrastive(energy, noise, sigma=torch.tensor([1.5], dtype=DOUBLE))
    with torch.no_grad():
        for p in energy.parameters():
            p += 0.3
    point = Batch(torch.zeros(5000, 1, dtype=DOUBLE))
    data, draws = objective._pair(point.x, seeded(1))
    assert float(data.std()) == pytest.approx(1.5, rel=0.05)
    assert float(draws.std()) == pytest.approx(1.5, rel=0.05)


def test_centres_of_kernels_are_not_left_out():
    with pytest.raises(ValueError, match="cannot leave out kernel centres"):
        NoiseContrastive(Bell(), wide()).rowwise(torch.zeros(2, 1), seeded(0), torch.arange(2))


@pytest.mark.parametrize("ratio", [0, -1.0, math.nan, math.inf])
def test_ratios_that_are_none(ratio):
    with pytest.raises(ValueError, match="noise_ratio must be positive"):
        NoiseContrastive(Bell(), wide(), noise_ratio=ratio)


def test_other_mistakes():
    with pytest.raises(ValueError, match="form must be one of"):
        NoiseContrastive(Bell(), wide(), form="pairwise")
    with pytest.raises(ValueError, match="noise and energy must have the same domain"):
        NoiseContrastive(Bell(), Gaussian(torch.zeros(2), 1.0))
