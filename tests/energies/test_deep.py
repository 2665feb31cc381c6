"""Deep Boltzmann machines as energies: layers, conditionals, gradients, bounds, by enumeration."""

import itertools

import pytest
import torch

from skebm.base import Centering
from skebm.distributions import Columns, Gaussian, IndependentBernoulli, IndependentCategorical
from skebm.energies import BernoulliDBM, BernoulliRBM, MixedDBM
from skebm.energies.deep import HiddenGiven, Layers
from skebm.estimators.deep.meanfield import (
    MeanField,
    bound_of,
    importance_bound,
    means_after_steps,
    recognition_maps,
    solve,
    variational_bound,
)
from skebm.estimators.deep.module import sigmoid_network
from skebm.partition import Exact
from tests.support.oracle import DOUBLE, bits, seeded
from tests.support.tiers import leading

SHAPES = leading(2, [(4, 3, 2), (3, 2, 2, 2), (4, 3), (2, 3, 2, 2, 2)])


def with_biases(energy, seed=1, scale=0.7):
    generator = seeded(seed)
    with torch.no_grad():
        for p in (energy.visible_bias, energy.hidden_bias):
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=DOUBLE))
    return energy


def make_dbm(sizes, scale=1.0, seed=0):
    energy = BernoulliDBM(sizes, generator=seeded(seed), scale=scale, dtype=DOUBLE)
    return with_biases(energy, seed + 1)


def make_mixed(hidden=(3, 2), scale=0.8):
    base = Columns(
        [
            IndependentBernoulli(torch.tensor([0.4, -0.3], dtype=DOUBLE)),
            IndependentCategorical(torch.tensor([0.1, 0.2, -0.5], dtype=DOUBLE), (3,)),
            Gaussian(torch.zeros(2, dtype=DOUBLE), 1.3),
        ]
    )
    energy = with_biases(MixedDBM(base, hidden, generator=seeded(), scale=scale, dtype=DOUBLE))
    with torch.no_grad():
        energy.log_precision.copy_(torch.tensor([0.3, -0.2]))
    return energy


def all_layers(sizes):
    """All states of all layers, a tensor (S, units) for each."""
    return bits(sum(sizes)).split(sizes, 1)


def minus_energy(energy, states):
    """-E(x, h1, ..., hL) in its own spelling."""
    total = sum(s @ b for s, b in zip(states, energy.biases, strict=True))
    for w, below, above in zip(energy.weights, states, states[1:], strict=False):
        total = total + torch.einsum("ni,ji,nj->n", below, w, above)
    return total


@pytest.mark.parametrize("sizes", SHAPES)
def test_joint_marginal_and_log_z_are_those_of_the_layers(sizes):
    energy = make_dbm(sizes)
    states = all_layers(sizes)
    log_joint = minus_energy(energy, states).detach()
    assert Exact().estimate(energy).value == pytest.approx(float(log_joint.logsumexp(0)))
    row = torch.cat(states[::2], 1)
    given_row = log_joint.view(-1).clone()
    # The free energy of a row sums over h1, h3, ...
    keys = {tuple(r): [] for r in row.tolist()}
    for r, value in zip(row.tolist(), given_row, strict=True):
        keys[tuple(r)].append(value)
    rows = torch.tensor(list(keys), dtype=DOUBLE)
    expected = torch.stack([torch.stack(values).logsumexp(0) for values in keys.values()])
    torch.testing.assert_close(-energy(rows).detach(), expected)
    # And all hidden layers are summed out of x.
    x = bits(sizes[0])
    marginal = log_joint.view(2 ** sizes[0], -1).logsumexp(1)
    found = HiddenGiven(energy, energy.layers, x).log_marginal()
    torch.testing.assert_close(found.detach(), marginal)


@pytest.mark.parametrize("sizes", SHAPES)
def test_conditionals_of_every_layer_equal_enumeration(sizes):
    energy = make_dbm(sizes)
    states = all_layers(sizes)
    p = minus_energy(energy, states).detach()
    row = torch.cat(states[::2], 1)
    between = torch.cat(states[1::2], 1)
    generator = seeded(3)
    r = energy.domain.uniform(1, generator, dtype=DOUBLE)
    same = (row == r).all(1)
    torch.testing.assert_close(energy.hidden(r).mean[0], p[same].softmax(0) @ between[same])
    h = energy.hidden_domain.uniform(1, generator, dtype=DOUBLE)
    same = (between == h).all(1)
    torch.testing.assert_close(energy.visible(h).mean[0], p[same].softmax(0) @ row[same])


def test_layers_have_their_places():
    layers = Layers((5, 4, 3, 2))
    assert (layers.n_row, layers.n_between, layers.n_beside) == (8, 6, 3)
    assert [layers.place(k) for k in range(4)] == [
        slice(0, 5),
        slice(0, 4),
        slice(5, 8),
        slice(4, 6),
    ]
    assert int(layers.mask().sum()) == 5 * 4 + 4 * 3 + 3 * 2
    assert Layers((5, 4, 3)).mask() is None
    for sizes in ((5,), (5, 0), (0, 2)):
        with pytest.raises(ValueError, match="at least"):
            Layers(sizes)


@pytest.mark.parametrize(
    "centering", leading(2, [Centering(0.2), None, Centering(0.1, precondition=0.5)])
)
@pytest.mark.parametrize("sizes", [(4, 3, 2), (3, 2, 3, 2)])
def test_gradient_is_that_of_the_contrast(sizes, centering):
    energy = make_dbm(sizes)
    n, m = 7, 5
    x = torch.rand(n, energy.layers.n_row, generator=seeded(5), dtype=DOUBLE)
    chain = energy.domain.uniform(m, seeded(6), dtype=DOUBLE)
    sign = torch.cat(
        [torch.full((n,), -1 / n, dtype=DOUBLE), torch.full((m,), 1 / m, dtype=DOUBLE)]
    )
    share = -sign[:n]
    own = energy.contrast_gradient(centering, None)
    offsets = own.start(x, None)
    with torch.no_grad():
        own.write(x, chain, sign, share, offsets, None)
    found = [p.grad.clone() for p in energy.tensors]
    energy.zero_grad()
    (-(sign @ energy(torch.cat([x, chain])))).backward()
    plain = [p.grad for p in energy.tensors]
    mask = energy.layers.mask()
    if mask is None:
        mask = torch.ones_like(energy.weight, dtype=torch.bool)
    if centering is None:
        expected = [plain[0] * mask, plain[1], plain[2]]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-6)
        return
    assert not found[0][~mask].any()
    if centering.precondition:
        return
    # That of the weights of centred units, by the chain rule.
    at = own.start(x, None).moving_average(x, energy.hidden(x).mean.detach(), share, centering.rate)
    weight = (plain[0] - plain[2][:, None] * at.visible - at.hidden[:, None] * plain[1]) * mask
    torch.testing.assert_close(found[0], weight, atol=1e-10, rtol=1e-6)
    torch.testing.assert_close(found[1], plain[1] - weight.t() @ at.hidden, atol=1e-10, rtol=1e-6)
    torch.testing.assert_close(found[2], plain[2] - weight @ at.visible, atol=1e-10, rtol=1e-6)


@pytest.mark.parametrize("scale", leading(1, [1.5, 0.3, 4.0]))
@pytest.mark.parametrize("sizes", SHAPES)
def test_bounds_are_below_the_marginal_and_in_their_order(sizes, scale):
    energy = make_dbm(sizes, scale)
    given = HiddenGiven(energy, energy.layers, bits(sizes[0]))
    exact = given.log_marginal().detach()
    with torch.no_grad():
        for tol, steps in ((1e-8, 500), (1e-3, 1)):  # converged or not
            logit = solve(given, tol, steps).logit
            bound = variational_bound(given, logit)
            assert (bound <= exact + 1e-9).all()
            # The mean of the log-weights has h1, h3, ... summed out: it lies in between.
            weights = [importance_bound(given, logit, 1)]
            many = importance_bound(given, logit, 2000)
            assert (many >= bound - 0.05).all()
            assert (many <= exact + 0.4).all()
            assert weights[0].shape == exact.shape
        if energy.layers.depth == 1:
            torch.testing.assert_close(bound, exact)


def test_importance_weights_are_unbiased():
    energy = make_dbm((4, 3, 4), 1.0)
    with torch.no_grad():
        given = HiddenGiven(energy, energy.layers, bits(4))
        logit = solve(given, 1e-6, 300).logit
        states = bits(4)
        log_q = states @ logit.t() - torch.nn.functional.softplus(logit).sum(1)  # (S, n)
        log_w = torch.stack([given.log_joint(s.expand(16, -1)) for s in states]) - log_q
        exact = given.log_marginal()
        torch.testing.assert_close((log_w + log_q).logsumexp(0), exact)
        mean_of_logs = (log_q.exp() * log_w).sum(0)
        assert (mean_of_logs >= variational_bound(given, logit) - 1e-9).all()
        estimate = importance_bound(given, logit, 5000)
        torch.testing.assert_close(estimate, exact, atol=0.05, rtol=0)


def test_mean_field_steps_raise_the_bound():
    energy = make_dbm((4, 3, 3, 2), 2.0)
    with torch.no_grad():
        given = HiddenGiven(energy, energy.layers, bits(4))
        bounds = [
            variational_bound(given, solve(given, 1e-12, steps).logit) for steps in range(1, 12)
        ]
        for before, after in itertools.pairwise(bounds):
            assert (after >= before - 1e-10).all()
        found = solve(given, 1e-6, 1000)
        assert float(found.residual.max()) <= 1e-6
        assert (found.n_steps > 0).all()
        row = torch.cat([bits(4), found.logit.sigmoid()], 1)
        again = means_after_steps(energy, energy.layers, row, 3)
        torch.testing.assert_close(again, row[:, 4:], atol=1e-5, rtol=0)


def test_gradient_at_mean_field_is_that_of_the_bound():
    """Of -E(x, mu2) and so of the variational bound, whose entropy has no parameters."""
    energy = make_dbm((4, 3, 2), 1.0)
    x = bits(4)[::3]
    given = HiddenGiven(energy, energy.layers, x)
    logit = solve(given, 1e-10, 2000).logit.detach()
    energy.zero_grad()
    energy(torch.cat([x, logit.sigmoid()], 1)).mean().backward()
    found = energy.weight.grad.clone()
    step, moved = 1e-5, []
    for delta in (step, -step):
        with torch.no_grad():
            energy.weight[1, 2] += delta
            new = HiddenGiven(energy, energy.layers, x)
            moved.append(float(variational_bound(new, solve(new, 1e-10, 2000).logit).mean()))
            energy.weight[1, 2] -= delta
    slope = (moved[0] - moved[1]) / (2 * step)
    assert -float(found[1, 2]) == pytest.approx(slope, abs=1e-5)


def test_one_hidden_layer_is_the_rbm():
    energy = make_dbm((5, 3))
    rbm = BernoulliRBM(5, 3, generator=seeded(), dtype=DOUBLE)
    rbm.load_state_dict(energy.state_dict())
    x = bits(5)
    assert torch.equal(energy(x), rbm(x))
    with torch.no_grad():
        found = bound_of(HiddenGiven(energy, energy.layers, x), MeanField())
    torch.testing.assert_close(found, -rbm(x).detach())


@pytest.mark.parametrize("hidden", leading(1, [(3, 2), (3,), (2, 2, 2)]))
def test_mixed_rows_sum_their_hidden_layers_out(hidden):
    energy = make_mixed(hidden)
    layers = energy.layers
    x = energy.base.sample(6, seeded(2))[:, : layers.n_visible]
    found = HiddenGiven(energy, layers, x).log_marginal().detach()
    beside = bits(layers.n_beside) if layers.n_beside else torch.zeros(1, 0, dtype=DOUBLE)
    every = [-energy(torch.cat([x, b.expand(6, -1)], 1)) for b in beside]
    torch.testing.assert_close(found, torch.stack(every).logsumexp(0).detach())
    with torch.no_grad():
        padded = HiddenGiven(energy.with_padding(), layers, x, padded=True)
        torch.testing.assert_close(padded.log_marginal(), found)
        logit = solve(padded, 1e-6, 300).logit
        assert (variational_bound(padded, logit) <= found + 1e-9).all()


def test_recognition_is_the_pass_upwards():
    energy = make_dbm((4, 3, 2), 1.0)
    x = bits(4)
    module = sigmoid_network(recognition_maps(energy, energy.layers), None)
    given = HiddenGiven(energy, energy.layers, x)
    expected = given.bottom_up().sigmoid().float()
    torch.testing.assert_close(module(x.float()), expected)
    mixed = make_mixed((3, 2))
    x = mixed.base.sample(6, seeded(2))[:, : mixed.layers.n_visible]
    given = HiddenGiven(mixed, mixed.layers, x)
    module = sigmoid_network(recognition_maps(mixed, mixed.layers), None)
    expected = given.bottom_up().sigmoid().float()
    torch.testing.assert_close(module(x.float()), expected)
