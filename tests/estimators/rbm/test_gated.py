"""Gated restricted Boltzmann machines: exact answers, learning of relations, bad input."""

import copy
import itertools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from skebm import GatedRBM
from skebm.base import Batch, Binary, Clamp
from skebm.distributions import ChowLiuTree, Gaussian, IndependentBernoulli
from skebm.energies import BernoulliRBM, GatedEnergy
from skebm.estimators.rbm.gated import given as said
from skebm.objectives import ConditionalDivergence
from skebm.partition import ConditionalAIS
from skebm.partition.given import (
    GatedSteps,
    annealed_log_z,
    gated_gains,
    log_mean_of_chains,
    uniforms_of,
)
from skebm.samplers import Gibbs
from tests.support.checks import parametrize_with_checks
from tests.support.oracle import DOUBLE, seeded
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import full, leading, only_full

F, H, DX = 5, 3, 4


def field(n, seed):
    return torch.randn(n, generator=seeded(seed), dtype=DOUBLE)


def make(kind="bits", dy=3, n_hidden=H, scale=1.5, seed=0):
    """An energy whose every parameter and offset matters."""
    base = IndependentBernoulli(field(dy, 8))
    if kind == "real":
        base = Gaussian(field(dy, 8), 0.5 + torch.rand(dy, generator=seeded(4), dtype=DOUBLE))
    energy = GatedEnergy(
        base, Binary((DX,)), F, n_hidden, generator=seeded(seed), scale=scale, dtype=DOUBLE
    )
    with torch.no_grad():
        energy.mapping.mul_(0.7)
        for number, p in enumerate((energy.hidden_bias, energy.visible_bias, energy.log_precision)):
            p.add_(0.4 * field(len(p), number))
        energy.given_offset.copy_(field(DX, 5).abs())
        energy.offset.copy_(field(dy, 6))
    return energy


def given_rows(n=6):
    return torch.randn(n, DX, generator=seeded(3), dtype=DOUBLE)


def states(n):
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=DOUBLE)


def joint(energy, x, y, h):
    """-E(y, h given x) of single rows, term by term."""
    e, total = energy, 0.0
    for f in range(len(e.mapping)):
        u = sum(e.given_filters[f, i] * (x[i] - e.given_offset[i]) for i in range(len(x)))
        v = sum(e.filters[f, i] * (y[i] - e.offset[i]) for i in range(len(y)))
        w = sum(e.mapping[f, j] * h[j] for j in range(len(h)))
        total = total + u * v * w
    total = total + (e.visible_bias * y).sum() + (e.hidden_bias * h).sum()
    if len(e.log_precision):
        total = total - (e.log_precision.exp() * y * y).sum() / 2
    return float(total)


def table(energy, x, y):
    """exp of the joint over all h, (n_y, 2^H), for one x."""
    h = states(len(energy.hidden_bias))
    return torch.tensor([[joint(energy, x, row, one) for one in h] for row in y], dtype=DOUBLE)


# ------------------------------------------------------------------------------
# The energy, against enumeration and quadrature
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bits", "real"])
def test_free_energies_and_mapping_units_sum_the_joint(kind):
    energy, x = make(kind), given_rows(3)
    y = states(3) if kind == "bits" else torch.randn(8, 3, generator=seeded(9), dtype=DOUBLE)
    for row in x:
        log_p = table(energy, row, y)
        rbm = energy.given(row)
        assert_allclose(rbm(y).detach(), -log_p.logsumexp(1), atol=1e-10)
        assert_allclose(energy.given(row)(y).detach(), rbm.free_energies(y)[0].detach(), atol=1e-10)
        assert_allclose(rbm.hidden(y).mean.detach(), log_p.softmax(1) @ states(H), atol=1e-10)
        pairs = torch.cat([row.expand(len(y), -1), y], 1)
        assert_allclose(energy(pairs).detach(), rbm(y).detach(), atol=1e-12)


def test_bits_of_y_given_the_mapping_units():
    energy, x = make(), given_rows(3)
    for row in x:
        log_p, h, rbm = table(energy, row, states(3)), states(H), energy.given(row)
        mean = log_p.t().softmax(1) @ states(3)
        assert_allclose(rbm.visible(h).mean.detach(), mean, atol=1e-10)
        assert_allclose(rbm.hidden_energy(h).detach(), -log_p.logsumexp(0), atol=1e-10)
        assert_allclose(rbm.hidden_energies(h)[0].detach(), -log_p.logsumexp(0), atol=1e-10)


def test_numbers_of_y_given_the_mapping_units():
    """By quadrature over two columns."""
    energy, row = make("real", dy=2), given_rows(1)[0]
    rbm, h = energy.given(row), states(H)[5:6]
    nodes = torch.linspace(-12, 12, 401, dtype=DOUBLE)
    y = torch.cartesian_prod(nodes, nodes)
    weights = rbm.weights[0].t() @ h[0]
    log_p = y @ (energy.visible_bias + weights) - weights @ energy.offset
    log_p = log_p + h[0] @ energy.hidden_bias - (energy.log_precision.exp() * y**2).sum(1) / 2
    assert_allclose(
        log_p[::40_000].detach(), [joint(energy, row, one, h[0]) for one in y[::40_000]]
    )
    p = log_p.softmax(0)
    given = rbm.visible(h)
    assert_allclose(given.mean[0].detach(), (p @ y).detach(), atol=1e-8)
    variance = (p @ y**2 - (p @ y) ** 2).detach()
    assert_allclose(given.scale.detach() ** 2, variance, atol=1e-8)
    log_z = log_p.logsumexp(0) + 2 * (nodes[1] - nodes[0]).log()
    assert_allclose(-rbm.hidden_energy(h).item(), log_z.item(), atol=1e-8)


@pytest.mark.parametrize("kind", ["bits", "real"])
def test_a_batch_of_pairs_is_each_of_its_rows(kind):
    energy, x = make(kind), given_rows()
    y = field(18, 2).view(6, 3)
    h = states(H)[:6]
    together = energy.given(x)
    for place in range(6):
        alone, own = energy.given(x[place]), slice(place, place + 1)
        for name, rows in (("forward", y), ("hidden_field", y), ("hidden_energy", h)):
            found = getattr(together, name)(rows)[own]
            assert_allclose(found.detach(), getattr(alone, name)(rows[own]).detach(), atol=1e-12)
    assert_allclose(
        together.of_chains(2)(y.repeat(2, 1)).detach(), together(y).repeat(2).detach(), atol=1e-12
    )


@pytest.mark.parametrize("kind", ["bits", "real"])
@pytest.mark.parametrize("beta", [0.4, only_full(1.7)])
def test_fields_clamps_and_temperatures(kind, beta):
    """p(y given h) is tilted, tempered and clamped as the joint is."""
    energy, row = make(kind, dy=2), given_rows(1)[0]
    rbm, h = energy.given(row), states(H)
    tilt = torch.tensor([0.3, -0.8], dtype=DOUBLE)
    if kind == "bits":
        y, volume = states(2), 0.0
    else:
        nodes = torch.linspace(-25, 25, 301, dtype=DOUBLE)
        y, volume = torch.cartesian_prod(nodes, nodes), 2 * math.log(50 / 300)
    log_p = beta * torch.stack([-_energies(energy, row, y, one) for one in h], 1)
    log_p = log_p + (y @ tilt)[:, None]
    found = rbm.visible(h, beta, tilt)
    assert_allclose(found.mean.detach(), (log_p.softmax(0).t() @ y).detach(), atol=1e-7)
    expected = -(log_p.logsumexp(0) + volume)
    assert_allclose(rbm.hidden_energy(h, beta, tilt).detach(), expected.detach(), atol=1e-7)
    value = y[len(y) // 3].expand(len(h), -1)
    clamp = Clamp(torch.ones_like(value, dtype=torch.bool), value)
    at = log_p[len(y) // 3]
    assert_allclose(rbm.hidden_energy(h, beta, tilt, clamp).detach(), -at.detach(), atol=1e-9)
    betas = torch.tensor([[beta], [1.0]], dtype=DOUBLE)
    many = rbm.free_energy(y, betas)
    assert_allclose(many[0].detach(), rbm.free_energy(y, beta).detach(), atol=1e-9)
    assert_allclose(rbm.free_energies(y, beta)[0].detach(), many[0].detach(), atol=1e-9)


def _energies(energy, row, y, h):
    """E(y, h given x) of rows y, from the coupling matrix of x and h."""
    gate = energy.given_filters @ (row - energy.given_offset)
    pull = energy.filters.t() @ (gate * (energy.mapping @ h))
    value = y @ energy.visible_bias + (y - energy.offset) @ pull + h @ energy.hidden_bias
    if len(energy.log_precision):
        value = value - y.square() @ energy.log_precision.exp() / 2
    return -value


@pytest.mark.parametrize("kind", ["bits", "real"])
def test_bridge_distributions_lead_from_the_base_to_the_model(kind):
    energy, x = make(kind), given_rows()
    y = field(18, 2).view(6, 3)
    rbm = energy.given(x)
    assert_allclose(rbm.annealed(1.0)(y).detach(), rbm(y).detach(), atol=1e-12)
    start = rbm.annealed(0.0)
    log_q = energy.base.log_prob(y)
    difference = (start(y) + log_q).detach()
    assert_allclose(difference - difference[0], torch.zeros(6), atol=1e-12)
    mean = start.visible(states(H)[:6]).mean.detach()
    assert_allclose(mean, energy.base.mean.expand(6, -1), atol=1e-12)
    alone = energy.without_filters()
    found = alone(torch.cat([x, y], 1)) + log_q
    assert_allclose(found - found[0], torch.zeros(6), atol=1e-12)


def test_dependent_columns_are_no_base():
    tree = ChowLiuTree.fit(states(3))
    with pytest.raises(ValueError, match="independent bits or numbers"):
        GatedEnergy(tree, Binary((DX,)), F, H, generator=seeded())


# ------------------------------------------------------------------------------
# Learning
# ------------------------------------------------------------------------------


def exact_gradient(energy, x, y):
    """Of the mean negative log-likelihood of y given x, by enumeration."""
    loss = 0.0
    for row, target in zip(x, y, strict=True):
        rbm = energy.given(row)
        loss = loss + rbm(target[None])[0] + (-rbm(states(len(target)))).logsumexp(0)
    parameters = [p for p in energy.parameters() if p.numel()]
    return torch.autograd.grad(loss / len(x), parameters)


def test_long_chains_follow_the_gradient_of_the_likelihood():
    energy = make(scale=0.8)
    x = given_rows(3).repeat(4000, 1)
    y = states(3)[[1, 6, 3]].repeat(4000, 1)
    objective = ConditionalDivergence(energy, n_steps=20)
    objective.gradients(Batch(torch.cat([x, y], 1)), None, seeded(1))
    found = [p.grad for p in energy.parameters() if p.numel()]
    expected = exact_gradient(energy, x[:3], y[:3])
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, atol=0.03)


@pytest.mark.parametrize("kind", ["bits", "real"])
def test_the_gradient_by_hand_is_that_of_autograd(kind):
    energy, x = make(kind), given_rows()
    rows = torch.cat([x, field(18, 2).view(6, 3)], 1)
    weight = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5, 1.0], dtype=DOUBLE)
    objective = ConditionalDivergence(energy, n_steps=2)
    batch = Batch(rows, weight=weight)
    objective.gradients(batch, None, seeded(7))
    by_hand = [p.grad.clone() for p in energy.parameters()]
    energy.zero_grad()
    objective(batch, None, seeded(7)).value.backward()
    for one, p in zip(by_hand, energy.parameters(), strict=True):
        if p.numel():
            assert_allclose(one, p.grad, atol=1e-10)


def test_the_model_s_own_rows_have_no_gradient():
    """y are exact draws of p(y given x): data and chains are alike."""
    energy = make(scale=0.8)
    x = given_rows(3).repeat(5000, 1)
    y = said.draws(energy, x, seeded(2), 1, 1.0)
    ConditionalDivergence(energy).gradients(Batch(torch.cat([x, y], 1)), None, seeded(1))
    for p in energy.parameters():
        if p.numel():
            assert p.grad.abs().max() < 0.03


def test_only_gated_energies_are_learned_so():
    with pytest.raises(TypeError, match="GatedEnergy"):
        ConditionalDivergence(BernoulliRBM(3, 2, generator=seeded()))
    with pytest.raises(ValueError, match="n_steps"):
        ConditionalDivergence(make(), 0)


# ------------------------------------------------------------------------------
# Normalisers
# ------------------------------------------------------------------------------


def exact_log_z(energy, x):
    return torch.stack([-energy.given(row).hidden_energies(states(H))[0] for row in x]).logsumexp(1)


@pytest.mark.parametrize("kind", leading(1, ["bits", "real"]))
def test_annealing_finds_the_normaliser_of_each_row(kind):
    energy, x = make(kind, scale=1.0), given_rows(3)
    n = 3000
    rbm = energy.given(x).of_chains(n)
    generator = seeded(1)
    steps = GatedSteps(rbm, uniforms_of(generator, (3 * n, H + 3), x))
    expected = exact_log_z(energy, x).detach()
    forward, y = annealed_log_z(steps, 30)
    assert_allclose(log_mean_of_chains(forward, n), expected, atol=0.05)
    state, _ = Gibbs().run(rbm, y, 20, generator)
    backward, _ = annealed_log_z(steps, 30, state.x)
    assert_allclose(-log_mean_of_chains(-backward, n), expected, atol=0.05)


def test_the_normaliser_of_numbers_by_quadrature():
    energy = make("real", dy=1)
    row = given_rows(1)[0]

    def density(y):
        return math.exp(-energy.given(row)(torch.tensor([[y]], dtype=DOUBLE)).item())

    value, _ = scipy.integrate.quad(density, -30, 30, epsabs=0, epsrel=1e-9, limit=200)
    assert_allclose(exact_log_z(energy, row[None]).item(), math.log(value), atol=1e-8)


@pytest.mark.parametrize(("n_hidden", "dy"), [(14, 4), (14, 13), only_full(3, 4)])
def test_what_is_said_of_y_given_x(n_hidden, dy, monkeypatch):
    """Over hidden states, over y, and by chains, where the answers are compared with the sums."""
    energy, x = make(dy=dy, n_hidden=n_hidden, scale=0.7), given_rows(4)
    monkeypatch.setattr(said, "N_CHAINS", 40)
    y = states(dy)
    log_p = -torch.stack([energy.given(row)(y) for row in x]).detach()  # (n, 2^dy)
    hidden = torch.stack([energy.given(row).hidden(y).mean for row in x]).detach()
    rows = torch.cat([x, y[:4]], 1)
    found = said.log_z_of_pairs(energy, rows, 0, ConditionalAIS(400, 50))
    p = log_p.softmax(1)
    exact = said.enumerates_layer(energy)
    assert exact == (n_hidden < 13 or dy < 13)
    assert (found.exact == exact).all()
    assert (found.std_error == 0).all() == exact
    assert_allclose(found.value, log_p.logsumexp(1), atol=1e-8 if exact else 0.1)
    assert_allclose(found.upper, log_p.logsumexp(1), atol=1e-8 if exact else 0.1)
    of_hidden, of_y = said.means(energy, x, 0)
    assert_allclose(of_y, p @ y, atol=1e-8 if exact else 0.03)
    assert_allclose(of_hidden, (p[:, None] @ hidden)[:, 0], atol=1e-8 if exact else 0.03)
    many = said.draws(energy, x.repeat_interleave(1500, 0), seeded(3), 20, 1.0)
    assert_allclose(many.view(4, 1500, dy).mean(1), p @ y, atol=0.06)
    cold = said.draws(energy, x.repeat_interleave(1500, 0), seeded(3), 20, 2.0)
    if n_hidden == 3:
        both = [2 * table(energy, row, y) for row in x]
        tempered = torch.stack([t.logsumexp(1) for t in both]).softmax(1)
        assert_allclose(cold.view(4, 1500, dy).mean(1), tempered.detach() @ y, atol=0.06)


def test_a_row_has_the_same_chains_beside_any_others():
    energy, x = make(dy=13, n_hidden=14), given_rows(3)
    rows = torch.cat([x, states(13)[:3]], 1)
    settings = ConditionalAIS(3, 100, max_error=0.1)  # more temperatures for some rows
    together = said.log_z_of_pairs(energy, rows, 0, settings)
    alone = [said.log_z_of_pairs(energy, row[None], 0, settings) for row in rows]
    assert_allclose(together.value, torch.cat([one.value for one in alone]), atol=1e-9)
    assert_allclose(together.upper, torch.cat([one.upper for one in alone]), atol=1e-9)


def test_gains_are_those_of_the_exact_likelihood():
    energy, x = make(scale=0.8), given_rows(4)
    y = states(3)[:4]
    log_p = -energy(torch.cat([x, y], 1)) - exact_log_z(energy, x)
    expected = log_p - energy.base.log_prob(y)
    found = gated_gains(energy, torch.cat([x, y], 1), seeded(), 500, 40)
    assert_allclose(found, expected.detach(), atol=0.1)


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------

SHIFTS = np.array([-1, 0, 1])


def pairs(n=1500, d=8, seed=0, noise=0.0):
    """Rows of bits, shifted around by -1, 0 or 1, and the number of the shift."""
    rng = np.random.default_rng(seed)
    X = (rng.random((n, d)) < 0.4).astype(float)
    which = rng.integers(0, 3, n)
    Y = np.stack([np.roll(x, SHIFTS[k]) for x, k in zip(X, which, strict=True)])
    return X, np.where(rng.random(Y.shape) < noise, 1 - Y, Y), which


def real_pairs(n=1500, d=8, seed=0):
    rng = np.random.default_rng(seed)
    X, which = rng.normal(3, 5, (n, d)), rng.integers(0, 3, n)
    Y = np.stack([np.roll(x, SHIFTS[k]) for x, k in zip(X, which, strict=True)])
    return X, Y + rng.normal(0, 0.5, Y.shape), which


@pytest.fixture(scope="module")
def of_bits():
    X, Y, _ = pairs()
    return GatedRBM(8, 40, n_iter=45, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def briefly_trained():
    X, Y, _ = real_pairs(100)
    return GatedRBM(3, 6, n_iter=3, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def of_numbers():
    X, Y, _ = real_pairs(1000)
    return GatedRBM(8, 40, n_iter=60, random_state=0).fit(X, Y)


@pytest.mark.parametrize(
    ("which", "draw"), [("of_bits", pairs), only_full("of_numbers", real_pairs)]
)
def test_mapping_units_tell_the_relation_of_new_rows(which, draw, request):
    model = request.getfixturevalue(which)
    X, Y, shift = draw(1000, seed=1)
    H = model.transform(X, Y)
    assert H.shape == (1000, 8)
    read_out = LogisticRegression(C=10, max_iter=1000).fit(H[:500], shift[:500])
    assert read_out.score(H[500:], shift[500:]) > 0.97
    assert model.density_ == "model"
    # Applied to other rows: a : b = c : ?
    same = np.flatnonzero(shift == 2)
    analogy = model.predict(X[same], H[np.roll(same, 1)])
    error = np.square(analogy - Y[same]).mean() / Y.var()
    assert error < 0.25
    assert_allclose(model.predict(X[same], H[same[0]]), model.predict(X[same], H[same[:1]]))


def test_the_likelihood_is_near_the_truth(of_bits):
    """log p(y given x) of a rolled row is that of three outcomes, of which some are equal."""
    X, Y, _ = pairs(500, seed=1)
    options = np.stack([np.roll(X, shift, axis=1) for shift in SHIFTS])
    truth = np.log((options == Y).all(2).mean(0)).mean()
    found = of_bits.log_conditional(X, Y)
    assert found.exact.all()
    assert_array_equal(found.lower, found.upper)
    assert_allclose(found.log_prob, of_bits.score_samples(X, Y))
    assert of_bits.score(X, Y) == pytest.approx(found.lower.mean())
    assert truth - 1.5 < found.log_prob.mean() < truth
    base = of_bits.base_.log_prob(torch.as_tensor(Y)).mean().item()
    assert found.log_prob.mean() > base + 2


def test_probabilities_sum_to_one(of_bits):
    x, y = pairs(1, seed=3)[0], states(8).numpy()
    assert np.exp(of_bits.score_samples(x.repeat(len(y), 0), y)).sum() == pytest.approx(1, abs=1e-5)


def test_densities_are_in_the_units_of_y():
    X, Y, _ = real_pairs(200, d=2)
    model = GatedRBM(3, 6, n_iter=5, random_state=0).fit(X, Y[:, :1])
    grid = np.linspace(-60, 60, 1001)[:, None]
    p = np.exp(model.score_samples(X[:1].repeat(len(grid), 0), grid))
    assert p.sum() * (grid[1, 0] - grid[0, 0]) == pytest.approx(1, abs=1e-4)
    mean = (p @ grid / p.sum()).item()
    assert model.predict(X[:1])[0, 0] == pytest.approx(mean, abs=1e-3)


def annealed(model, n_chains, n_betas):
    """The model with other settings of log Z, beside the one that other tests use."""
    return copy.copy(model).set_params(partition=ConditionalAIS(n_chains, n_betas))


@full
def test_brackets_hold_the_truth_and_narrow(of_bits, monkeypatch):
    X, Y, _ = pairs(40, seed=5)
    exact = of_bits.score_samples(X, Y)
    monkeypatch.setattr(said, "SUMMED_UNITS", 0)
    found = annealed(of_bits, 40, 100).log_conditional(X, Y)
    assert not found.exact.any()
    assert (found.lower <= found.log_prob).all()
    assert (found.log_prob <= found.upper).all()
    assert_allclose(found.log_prob.mean(), exact.mean(), atol=0.1)
    assert_allclose(found.upper.mean(), exact.mean(), atol=0.1)
    assert found.lower.mean() < exact.mean()
    rough = annealed(of_bits, 2, 10).log_conditional(X, Y)
    assert (rough.upper - rough.lower).mean() > (found.upper - found.lower).mean()
    assert of_bits.score(X, Y) < exact.mean()
    alone = [of_bits.score_samples(X[k : k + 1], Y[k : k + 1])[0] for k in range(5)]
    assert_allclose(alone, of_bits.score_samples(X, Y)[:5], rtol=1e-6)


def test_without_a_pair_mapping_units_are_means(of_bits):
    X, Y, _ = pairs(5, seed=6)
    every = states(8).numpy()
    for k in range(3):
        rows = X[k : k + 1].repeat(len(every), 0)
        p = np.exp(of_bits.score_samples(rows, every))
        assert_allclose(of_bits.predict(X[k : k + 1])[0], p @ every, atol=1e-5)
        mean = p @ of_bits.transform(rows, every)
        assert_allclose(of_bits.transform(X[k : k + 1])[0], mean, atol=1e-5)


def test_samples_follow_the_model(of_bits):
    x = pairs(1, seed=7)[0]
    draws = of_bits.sample(x.repeat(3000, 0), random_state=0)
    assert set(np.unique(draws)) == {0.0, 1.0}
    assert_allclose(draws.mean(0), of_bits.predict(x)[0], atol=0.05)
    assert_array_equal(draws[:50], of_bits.sample(x.repeat(3000, 0), random_state=0)[:50])
    hot = of_bits.sample(x.repeat(500, 0), random_state=0, temperature=50.0)
    assert_allclose(hot.mean(0), np.full(8, 0.5), atol=0.12)


def test_without_training_the_model_is_the_base():
    X, Y, _ = pairs(300)
    model = GatedRBM(4, 10, n_iter=0, random_state=0).fit(X, Y)
    assert model.density_ == "base"
    log_q = model.base_.log_prob(torch.as_tensor(Y, dtype=torch.float32))
    assert_allclose(model.score_samples(X, Y), log_q, atol=1e-4)
    assert_allclose(model.predict(X)[0], model.base_.mean, atol=1e-5)


@pytest.mark.parametrize("n", leading(1, [40, 400]))
def test_a_model_that_gains_nothing_is_the_base(n):
    """y does not depend on x; a large rate makes the trained model worse than the base."""
    rng = np.random.default_rng(0)
    X, Y = (rng.integers(0, 2, (n, 6)).astype(float) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GatedRBM(10, 20, n_iter=10, learning_rate=0.2, random_state=0).fit(X, Y)
    if n == 400:
        other = rng.integers(0, 2, (2000, 12)).astype(float)
        log_p = model.score_samples(other[:, :6], other[:, 6:])
        log_q = model.base_.log_prob(torch.as_tensor(other[:, 6:], dtype=torch.float32)).numpy()
        assert log_p.mean() > log_q.mean() - 0.15
    assert model.transform(X, Y).std() > 0


def test_weights_are_repetitions_for_the_base_and_zero_leaves_out():
    X, Y, _ = pairs(60)
    w = np.arange(60) % 3
    model = GatedRBM(3, 5, n_iter=0, random_state=0, dtype="float64")
    weighted = clone(model).fit(X, Y, w)
    repeated = clone(model).fit(X.repeat(w, 0), Y.repeat(w, 0))
    assert_allclose(weighted.base_.logits, repeated.base_.logits)
    trained = clone(model).set_params(n_iter=3)
    assert_allclose(
        trained.fit(X, Y, w > 0).components_, trained.fit(X[w > 0], Y[w > 0]).components_
    )


def test_one_column_of_y_stays_one_column():
    X, Y, _ = pairs(200)
    model = GatedRBM(3, 6, n_iter=3, random_state=0).fit(X, Y[:, 0])
    assert model.predict(X[:5]).shape == (5,)
    assert model.predict(X[:5], model.transform(X[:5], Y[:5, 0])).shape == (5,)
    assert model.sample(X[:5], random_state=0).shape == (5,)
    assert model.n_outputs_ == 1


def test_a_fit_goes_on():
    X, Y, _ = pairs(300)
    model = GatedRBM(3, 6, n_iter=2, random_state=0, warm_start=True).fit(X, Y)
    before = model.components_.copy()
    assert model.fit(X, Y).n_iter_ == 4
    assert np.abs(model.components_ - before).max() > 0
    stream = GatedRBM(3, 6, random_state=0).partial_fit(X[:150], Y[:150]).partial_fit(X, Y)
    assert stream.n_iter_ == 2
    assert np.isfinite(stream.score(X, Y))


def test_early_stopping_ends_with_the_best_weights():
    X, Y, _ = pairs(200, noise=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GatedRBM(8, 30, n_iter=8, early_stopping=True, random_state=0).fit(X, Y)
    assert "valid_loss" in model.history_[0]
    assert model.n_iter_ <= 8


@pytest.mark.parametrize("store", [by_pickle, only_full(by_joblib), by_skops])
def test_stored_models_are_the_same(briefly_trained, store):
    X, Y, _ = real_pairs(20, seed=2)
    again = store(briefly_trained)
    assert_array_equal(again.score_samples(X, Y), briefly_trained.score_samples(X, Y))
    assert_array_equal(again.transform(X, Y), briefly_trained.transform(X, Y))


def test_searches_and_frames():
    X, Y, _ = pairs(80)
    frame, target = pd.DataFrame(X).add_prefix("a"), pd.DataFrame(Y)
    model = GatedRBM(3, n_iter=1, partition=ConditionalAIS(5, 20), random_state=0)
    search = GridSearchCV(model, {"n_factors": [4, 8]}, cv=2)
    search.fit(frame, target)
    best = search.best_estimator_
    assert list(best.feature_names_in_) == list(frame.columns)
    assert_array_equal(best.get_feature_names_out(), [f"gatedrbm{j}" for j in range(3)])
    with pytest.raises(ValueError, match="feature names"):
        best.transform(frame.iloc[:, ::-1], target)


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------

X, Y, _ = pairs(60)
BAD = {
    "other lengths": ((X, Y[:-1]), "inconsistent numbers of samples"),
    "a single pair": ((X[:1], Y[:1]), "minimum of 2"),
    "no pairs": ((X[:0], Y[:0]), "minimum of 2"),
    "no y": ((X, None), "requires y"),
    "nan in x": ((np.where(X == 1, np.nan, X), Y), "X contains NaN"),
    "nan in y": ((X, np.where(Y == 1, np.nan, Y)), "y contains NaN"),
    "infinite y": ((X, np.where(Y == 1, np.inf, Y)), "y contains infinity"),
    "text in y": ((X, np.full((60, 2), "a")), "numbers only"),
    "flat x": ((X[:, 0], Y), "Expected 2D array"),
    "three dimensions of y": ((X, Y[:, :, None]), "dim 3|shape"),
    "no columns of y": ((X, Y[:, :0]), "at least one number|0 feature"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pairs_are_refused(name):
    (x, y), match = BAD[name]
    model = GatedRBM(3, 4, n_iter=1, random_state=0)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=match):
        model.fit(x, y)
    assert not hasattr(model, "net_")


@pytest.mark.parametrize(
    "params", [{"n_components": 0}, {"n_factors": 0}, {"n_gibbs": 0}, {"visible": "real"}]
)
def test_bad_parameters_are_refused_by_name(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        GatedRBM(**params).fit(X, Y)


def test_new_rows_are_checked(of_bits):
    with pytest.raises(ValueError, match="y has 7 columns"):
        of_bits.transform(X, Y[:, :7])
    with pytest.raises(ValueError, match="features"):
        of_bits.transform(X[:, :7], Y)
    with pytest.raises(ValueError, match="inconsistent"):
        of_bits.score_samples(X, Y[:3])
    with pytest.raises(ValueError, match="requires y"):
        of_bits.score_samples(X)
    with pytest.raises(ValueError, match="mapping has shape"):
        of_bits.predict(X, np.zeros((2, 8)))
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        of_bits.predict(X, np.full(8, np.nan))
    with pytest.raises(ValueError, match="n_chains"):
        annealed(of_bits, 0, 10).log_conditional(X, Y)
    with pytest.raises(NotFittedError):
        GatedRBM().transform(X, Y)


def test_numbers_in_a_model_of_bits(of_bits):
    with pytest.warns(UserWarning, match="clipped"):
        of_bits.transform(X * 3, Y)
    with pytest.warns(UserWarning, match="min-max scaled"):
        GatedRBM(3, 4, n_iter=1, visible="bernoulli", random_state=0).fit(3 * X, Y)
    with pytest.warns(UserWarning, match="not binary"):
        of_bits.score_samples(X, 0.5 * Y)


@full
def test_constant_columns():
    A, B, _ = real_pairs(100, d=4)
    A[:, 0], B[:, 1] = 2.0, 3.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = GatedRBM(3, 6, n_iter=10, random_state=0).fit(A, B)
    assert any("Columns [1] of y are constant" in str(w.message) for w in caught)
    assert np.isfinite(model.score(A, B))
    assert_allclose(model.predict(A)[:, 1], 3.0, atol=0.2)
    C, D, _ = pairs(80)
    C[:, 0] = D[:, 1] = 1.0
    assert np.isfinite(GatedRBM(3, 6, n_iter=2, random_state=0).fit(C, D).score(C, D))


def test_a_variance_that_collapses_is_floored_with_a_warning():
    """y is x: nothing is left of its variance."""
    A = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.warns(ConvergenceWarning, match=r"columns \[0\]"):
        GatedRBM(2, 4, n_iter=40, learning_rate=0.3, random_state=0).fit(
            A, np.column_stack([np.full(200, 7.0), A[:, 0]])
        )


def test_far_rows_have_an_error_or_no_density(briefly_trained):
    A, B, _ = real_pairs(3, seed=4)
    assert briefly_trained.score_samples(A, B + 1e60)[0] == -np.inf
    with pytest.raises(ValueError, match="too far"):
        briefly_trained.score_samples(A * 1e60, B)


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------

QUICK = {"n_components": 3, "n_factors": 4, "n_iter": 3, "random_state": 0}


def without_pairs(estimator):
    """Checks that call score_samples(X), which has no answer without y."""
    alone = "log p(y given x) needs y"
    return {
        "check_methods_sample_order_invariance": alone,
        "check_methods_subset_invariance": alone,
        "check_array_api_input": alone,
    }


@parametrize_with_checks(
    {"default": GatedRBM(**QUICK), "float64": GatedRBM(**QUICK, dtype="float64")},
    without_pairs,
    modes=["float64"],
)
def test_sklearn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


@full
def test_rotations_of_images_are_recognised():
    """Quarter turns of random dots, which move pixels farther than shifts do."""
    rng = np.random.default_rng(0)
    images = (rng.random((8000, 9, 9)) < 0.15).astype(float)
    turns = rng.integers(0, 4, 8000)
    turned = np.stack([np.rot90(x, k) for x, k in zip(images, turns, strict=True)])
    A, B = images.reshape(8000, -1), turned.reshape(8000, -1)
    model = GatedRBM(40, 120, random_state=0).fit(A[:6000], B[:6000])
    H = model.transform(A, B)
    read_out = LogisticRegression(max_iter=1000).fit(H[6000:7000], turns[6000:7000])
    assert read_out.score(H[7000:], turns[7000:]) > 0.95
