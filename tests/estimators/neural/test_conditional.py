"""Conditional densities against closed forms, quadrature, and truths that they have to recover."""

import functools
import itertools
import math
import pickle
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ConditionalDensity
from skebm.base import Batch
from skebm.distributions import GaussianMixture, RegressionMixture
from skebm.energies import MLP, ConditionalEnergy, Spec
from skebm.energies.conditional import target_whitening
from skebm.estimators import lagged
from skebm.estimators.neural.conditional import normalisers
from skebm.estimators.neural.conditional.normalisers import (
    Annealing,
    log_z_of_conditions,
    means_of_conditions,
    pilot_step,
)
from skebm.estimators.neural.conditional.quadrature import by_quadrature
from skebm.estimators.tables.columns import column_numbers
from skebm.estimators.tables.regression import ridge
from skebm.objectives import (
    ClampedDivergence,
    DenoisingScoreMatching,
    GivenConditions,
    RankedConditional,
)
from skebm.objectives.contrastive.given import draw_by_importance
from skebm.partition.given import ConditionalAIS, LangevinSteps, annealed_log_z, uniforms_of
from tests.support.checks import parametrize_with_checks
from tests.support.oracle import row_gradients, seeded
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import full

F64 = torch.float64
OBJECTIVES = ("nce", "score_matching", "contrastive_divergence")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SMALL = {"network": MLP((16,)), "base": "linear", "n_iter": 3, "random_state": 0}


def mixture(n_given, dx, n_components=3, seed=0):
    """A conditional base of components that differ."""
    d, g = n_given + dx, seeded(seed)
    A = torch.randn(n_components, d, d, generator=g, dtype=F64)
    covariances = A @ A.mT / d + 0.3 * torch.eye(d, dtype=F64)
    weights = torch.rand(n_components, generator=g, dtype=F64) + 0.3
    means = torch.randn(n_components, d, generator=g, dtype=F64)
    return RegressionMixture(GaussianMixture(weights / weights.sum(), means, covariances), dx)


def energy_of(n_given=2, dx=1, scale=0.4, base=None):
    """A conditional energy with a network that does something."""
    base = mixture(n_given, dx) if base is None else base
    whitening = target_whitening(base, n_given)
    spec = Spec((n_given + dx,), seeded(1), F64, whitening=whitening)
    network = MLP((8,), activation="tanh").build(spec)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(scale * torch.randn(p.shape, generator=seeded(2), dtype=F64))
    return ConditionalEnergy(network, base, n_given)


def rows_of(energy, n=5, seed=3):
    return torch.randn(n, energy.domain.n_columns, generator=seeded(seed), dtype=F64)


# ------------------------------------------------------------------------------
# The base
# ------------------------------------------------------------------------------


def test_the_base_is_the_conditional_of_its_joint_distribution():
    base, rows = mixture(2, 2), torch.randn(6, 4, generator=seeded(), dtype=F64)
    given = base.given(rows[:, :2])
    marginal = base.joint.marginal(torch.arange(2))
    expected = base.joint.log_prob(rows) - marginal.log_prob(rows[:, :2])
    torch.testing.assert_close(given.log_prob(rows[:, 2:]), expected)
    log_q, score = given.log_prob_and_score(rows[:, 2:])
    torch.testing.assert_close(log_q, expected)
    torch.testing.assert_close(score, base.joint.score(rows)[:, 2:])


def test_draws_have_the_moments_of_the_base_and_belong_to_their_rows():
    base, c = mixture(1, 2), torch.tensor([[-1.0], [2.0]], dtype=F64)
    given = base.given(c)
    draws = given.draws(20_000, seeded()).view(20_000, 2, 2)
    assert (draws.mean(0) - given.mean).abs().max() < 0.03
    assert given.sample(seeded()).shape == (2, 2)


def test_noise_leaves_the_weights_and_the_means_of_the_base():
    base, c = mixture(2, 2), torch.randn(4, 2, generator=seeded(), dtype=F64)
    sigma = torch.tensor([0.5, 1.0], dtype=F64)
    before, after = base.given(c), base.convolved(sigma).given(c)
    torch.testing.assert_close(after.log_weight, before.log_weight)
    torch.testing.assert_close(after.means, before.means)
    added = base.convolved(sigma).covariances - base.covariances
    torch.testing.assert_close(added, sigma.square().diag().expand_as(added))


def test_a_base_of_x_alone_ignores_the_conditions():
    joint = mixture(0, 2).joint
    given = RegressionMixture(joint, 2).given(torch.randn(3, 5, dtype=F64))
    x = torch.randn(3, 2, generator=seeded(), dtype=F64)
    torch.testing.assert_close(given.log_prob(x), joint.log_prob(x))
    with pytest.raises(ValueError, match="n_columns"):
        RegressionMixture(joint, 3)
    with pytest.raises(ValueError, match="n_conditions"):
        ConditionalEnergy(torch.nn.Identity(), mixture(2, 1), 1)


def test_ridge_regression_recovers_a_line_and_gives_way_to_none():
    Z = torch.randn(200, 3, generator=seeded(), dtype=F64)
    Y = Z @ torch.tensor([[1.0], [2.0], [0.0]], dtype=F64) + 3
    found = ridge(Z, Y + 0.01 * torch.randn(200, 1, generator=seeded(1), dtype=F64))
    assert (found.weight.ravel() - torch.tensor([1.0, 2.0, 0.0], dtype=F64)).abs().max() < 0.01
    assert abs(float(found.error) - 1e-4) < 5e-5
    weight = torch.arange(200, dtype=F64) % 3  # as rows that are there so often
    index = torch.arange(200).repeat_interleave(weight.long())
    ours, theirs = ridge(Z, Y + Z[:, :1] ** 2, weight), ridge(Z[index], (Y + Z[:, :1] ** 2)[index])
    torch.testing.assert_close(ours.weight, theirs.weight)
    few = ridge(torch.randn(3, 50, dtype=F64), torch.randn(3, 1, dtype=F64))
    assert few.weight.shape == (50, 1)


# ------------------------------------------------------------------------------
# The energy and its gradients
# ------------------------------------------------------------------------------


def test_gradients_with_respect_to_x_are_finite_differences():
    energy = energy_of(2, 2)
    c, x = energy.split(rows_of(energy))
    given = energy.given(c)
    value, grad = given.value_and_grad(x)
    torch.testing.assert_close(value, energy(x, c))
    torch.testing.assert_close(grad, row_gradients(lambda z: energy(z, c), x), atol=1e-5, rtol=0)


def test_rows_repeat_their_conditions_in_turn():
    energy = energy_of(2, 2)
    c, x = energy.split(rows_of(energy, 6))
    given = energy.given(c[:3])
    torch.testing.assert_close(given(x), energy(x, c[:3].repeat(2, 1)))


def gradient_of(objective, rows, seed=4):
    for p in objective.parameters():
        p.grad = None
    objective(Batch(rows), objective.start(Batch(rows), seeded()), seeded(seed)).value.backward()
    return torch.cat([p.grad.ravel() for p in objective.energy.network.parameters()])


def exact_gradient(energy, rows):
    """Of the mean of -log p(x | c), by quadrature."""
    c, x = energy.split(rows)
    grid = torch.linspace(-25, 25, 4001, dtype=F64)
    z = grid.repeat_interleave(len(c))[:, None]
    given = energy.given(c)
    log_z = (-given(z)).view(len(grid), -1).logsumexp(0) + math.log(50 / 4000)
    loss = (given(x) + log_z).mean()
    grads = torch.autograd.grad(loss, list(energy.network.parameters()))
    return torch.cat([g.ravel() for g in grads])


def test_ranking_among_many_draws_has_the_gradient_of_the_likelihood():
    energy = energy_of(1, 1)
    rows = rows_of(energy, 4)
    exact = exact_gradient(energy, rows)
    many = RankedConditional(energy, 100_000)
    assert (gradient_of(many, rows) - exact).norm() < 0.05 * exact.norm()
    with pytest.raises(ValueError, match="kernel"):
        many.rowwise(rows, seeded(), torch.zeros(4))


@full
def test_chains_at_clamped_conditions_have_the_gradient_of_the_likelihood():
    energy = energy_of(1, 1)
    rows = rows_of(energy, 4)
    exact = exact_gradient(energy, rows)
    objective = ClampedDivergence(energy, n_steps=5, n_draws=100)
    found = gradient_of(objective, rows.repeat(2500, 1))
    assert (found - exact).norm() < 0.1 * exact.norm()


def test_choosing_by_importance_leaves_the_model_invariant():
    energy, n = energy_of(1, 1), 40_000
    given = energy.given(torch.tensor([[0.5]], dtype=F64).repeat(n, 1))
    grid = torch.linspace(-15, 15, 3001, dtype=F64)[:, None]
    one = energy.given(torch.tensor([[0.5]], dtype=F64))
    p = (-one(grid)).softmax(0)
    x = grid[torch.multinomial(p, n, replacement=True, generator=seeded())]
    moved = draw_by_importance(given, x, 3, seeded(1))
    assert (moved != x).double().mean() > 0.3
    for power in (1, 2):
        mean = float((p @ grid[:, 0] ** power).detach())
        assert abs(float((moved**power).mean()) - mean) < 0.05 * (1 + abs(mean))


@pytest.mark.parametrize("inner", [functools.partial(DenoisingScoreMatching, sigma=0.5)])
def test_any_objective_of_rows_trains_given_conditions(inner):
    """The loss of a row given its condition is that of an energy of x alone with c plugged in."""
    energy = energy_of(2, 2)
    rows = rows_of(energy, 1)
    c, _ = energy.split(rows)

    class Plugged(ConditionalEnergy):
        def __init__(self):
            super().__init__(energy.network, energy.base, 2)
            self.domain = self.target_domain

        def forward(self, x, cond=None):
            return energy(x, c.expand(len(x), -1))

        value_and_input_grad = None

    _, x = energy.split(rows)
    ours = GivenConditions(energy, inner).rowwise(rows, seeded())
    theirs = inner(Plugged()).rowwise(x, seeded())
    torch.testing.assert_close(ours, theirs)


# ------------------------------------------------------------------------------
# log Z
# ------------------------------------------------------------------------------


def brute_log_z(energy, c, n=1201, width=15.0):
    dx = energy.target_domain.n_columns
    axis = torch.linspace(-width, width, n, dtype=F64)
    grid = torch.stack([g.ravel() for g in torch.meshgrid(*[axis] * dx, indexing="ij")], 1)
    found = []
    for row in c:
        value = (-energy(grid, row.expand(len(grid), -1))).logsumexp(0)
        found.append(float(value) + dx * math.log(2 * width / (n - 1)))
    return torch.tensor(found, dtype=F64)


@pytest.mark.parametrize("dx", [1, 2])
def test_quadrature_and_annealing_agree_with_a_fine_grid(dx):
    energy, c = energy_of(2, dx), torch.randn(3, 2, generator=seeded(5), dtype=F64)
    with torch.no_grad():
        exact = brute_log_z(energy, c, 1201 if dx == 1 else 301)
        found = by_quadrature(energy, c)
        assert found.exact.all()
        torch.testing.assert_close(found.value, exact, atol=1e-5, rtol=0)
        given = energy.given(c)
        step = pilot_step(given, given.mean if dx > 9 else given.base.mean, seeded())
        size = (500 * 3, dx + 1)
        steps = LangevinSteps(given, uniforms_of(seeded_stream, size, c), step)
        log_weight, ends = annealed_log_z(steps, 30)
    value = log_weight.view(500, 3).logsumexp(0) - math.log(500)
    assert (value - exact).abs().max() < 0.05
    share = log_weight.view(500, 3).softmax(0)
    mean = (share[..., None] * ends.view(500, 3, dx)).sum(0)
    assert (mean - found.mean).abs().max() < 0.15


seeded_stream = seeded(11)


# ------------------------------------------------------------------------------
# Means
# ------------------------------------------------------------------------------


def means(energy, c, factor=None, **settings):
    dx = energy.target_domain.n_columns
    factor = torch.eye(dx, dtype=F64) if factor is None else factor
    return means_of_conditions(energy, c, Annealing(ConditionalAIS(**settings), 0.2, 0), factor)


@torch.no_grad()
def dense_means(energy, c, n):
    """By sums over n^dx nodes around each component of the base."""
    t = torch.linspace(-9, 9, n, dtype=F64)
    z = torch.cartesian_prod(*[t] * energy.target_domain.n_columns).view(
        n**energy.base.n_columns, -1
    )
    found = []
    for row in c:
        base = energy.given(row[None]).base
        x = base.means[0][:, None] + z @ base.scale_tril.mT  # (K, N, dx)
        rows = torch.cat([row.expand(*x.shape[:2], -1), x], 2).flatten(0, 1)
        log_q = base.log_weight[0][:, None] - z.square().sum(1) / 2
        log_p = log_q.flatten() - energy.parametric_energy(rows)
        found.append(log_p.softmax(0) @ x.flatten(0, 1))
    return torch.stack(found)


def narrow_mixture(dx):
    """Components of standard deviations of 0.01, as far apart from each other, and a wide one."""
    means = torch.tensor([[0.0, 0.0, 0.0], [0.2, 0.01, 0.02], [-0.2, -0.01, 0.05], [0.0, 0.5, 0.0]])
    scales = torch.tensor([1.0, 0.01, 0.01]).repeat(4, 1)
    scales[3, 1:] = 1.0
    part = slice(0, 1 + dx)
    covariances = scales[:, part].square().double().diag_embed()
    joint = GaussianMixture(torch.full((4,), 0.25, dtype=F64), means[:, part].double(), covariances)
    return RegressionMixture(joint, dx)


@pytest.mark.parametrize(("dx", "n"), [(1, 801), (2, 161)])
@pytest.mark.parametrize("base", [mixture, narrow_mixture])
def test_means_of_one_and_two_columns_are_by_quadrature(dx, n, base):
    base = narrow_mixture(dx) if base is narrow_mixture else mixture(1, dx)
    energy, c = energy_of(1, dx, base=base), torch.randn(4, 1, generator=seeded(5), dtype=F64)
    found = means(energy, c)
    assert found.exact.all()
    assert not found.mean_error.any()
    torch.testing.assert_close(found.mean, dense_means(energy, c, n), atol=1e-4, rtol=0)


def test_sampled_means_are_as_far_off_as_their_errors_say():
    scores = []
    factor = torch.tensor([[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [3.0, 1.0, -1.0]], dtype=F64)
    for seed in range(3):
        energy = energy_of(1, 3, 0.2, base=mixture(1, 3, 2, seed))
        c = torch.randn(8, 1, generator=seeded(seed), dtype=F64)
        found, exact = means(energy, c, factor), dense_means(energy, c, 33)
        assert not found.exact.any()
        scores.append((found.mean - exact) @ factor.T / found.mean_error)
    assert 0.8 < float(torch.cat(scores).square().mean().sqrt()) < 1.3  # 72 numbers


def test_draws_continue_until_means_are_precise_and_start_from_the_mean_of_the_base():
    energy, c = energy_of(1, 3, 0.05), torch.randn(6, 1, generator=seeded(), dtype=F64)
    found, draws = means(energy, c), energy.given(c).base.draws(2000, seeded())
    deviation = draws.view(2000, 6, 3).std(0)
    # Plain means of 4,000 draws would be off by 0.016 standard deviations.
    assert (found.mean_error / deviation).mean() < 0.01
    strong = means(energy_of(1, 3, 0.2), c)
    assert (strong.mean_error <= 0.032 * deviation).all()
    alone = means(energy, c[2:3])
    torch.testing.assert_close(alone.mean, found.mean[2:3])
    torch.testing.assert_close(alone.mean_error, found.mean_error[2:3])


@pytest.mark.parametrize("dx", [1, 3])
def test_a_model_that_is_its_base_has_the_mean_of_the_base_exactly(dx):
    energy, c = energy_of(1, dx), torch.randn(5, 1, generator=seeded(), dtype=F64)
    energy.network_share.zero_()
    energy.eval()
    assert energy.is_base
    found = means(energy, c)
    torch.testing.assert_close(found.mean, energy.base.given(c).mean, rtol=0, atol=0)
    assert found.exact.all()
    assert not found.mean_error.any()
    assert not found.value.any()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_expected_is_in_the_units_of_x_and_has_their_errors():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(150, 1))
    left = rng.normal(size=(150, 3)) @ np.array([[1.0, -0.9, 5.0], [0, 0.1, 2.0], [0, 0, 1.0]])
    X = np.c_[c, 100 * (c + left) + 7]
    model = ConditionalDensity(0, **SMALL).fit(X).partial_fit(X)
    model.energy_.network_share.fill_(1.0)
    mean, error = model.expected(c[:4], return_std_error=True)
    np.testing.assert_array_equal(model.expected(c[:4]), mean)
    assert (error > 0).all()
    # Errors are of linear maps of u: those of the whitened rows would ignore that they cancel.
    table = model._recipe.table
    rows = model._conditions(c[:1]).double()
    apart = np.eye(3)
    zero = table.invert(torch.cat([rows, torch.zeros(1, 3, dtype=F64)], 1))
    moved = table.invert(torch.cat([rows.expand(3, -1), torch.from_numpy(apart)], 1))
    np.testing.assert_allclose(moved - zero, table.targets[0].of_differences.T, rtol=1e-9)


def test_log_z_of_three_columns_is_bracketed_by_both_directions_of_annealing():
    energy, c = energy_of(1, 3, 0.2), torch.tensor([[-0.5], [0.5]], dtype=F64)
    settings = Annealing(ConditionalAIS(20, 120), 0.2, 0)
    with torch.no_grad():
        exact = brute_log_z(energy, c, 61, 9.0)
        found = log_z_of_conditions(energy, c, settings)
    assert not found.exact.any()
    assert ((found.value - exact).abs() < 4 * found.std_error + 0.02).all()
    assert ((found.upper - exact).abs() < 0.15).all()
    alone = log_z_of_conditions(energy, c[1:], settings)
    torch.testing.assert_close(alone.value, found.value[1:])


def test_log_z_of_many_draws_is_preferred_to_annealing_where_it_will_be_precise(monkeypatch):
    """Standard errors of 400 draws are too large, those of 8,000 are not."""
    energy, c = energy_of(1, 3, 0.2), torch.linspace(-0.5, 0.5, 5, dtype=F64)[:, None]
    few = log_z_of_conditions(energy, c, Annealing(ConditionalAIS(20, 1, 1e3), 0.2, 0))
    most = 0.5 * float(few.std_error.max())
    annealed = Mock(wraps=normalisers.annealed_log_z)
    monkeypatch.setattr(normalisers, "annealed_log_z", annealed)
    settings = Annealing(ConditionalAIS(20, 120, most), 0.2, 0)
    found = log_z_of_conditions(energy, c, settings, upper=False)
    assert not annealed.called
    assert (found.std_error <= most).all()
    with torch.no_grad():
        exact = brute_log_z(energy, c, 61, 9.0)
    assert ((found.value - exact).abs() < 4 * found.std_error).all()
    hard = settings._replace(ais=ConditionalAIS(20, 120, 0.01 * most))
    log_z_of_conditions(energy, c, hard, upper=False)
    assert annealed.called


# ------------------------------------------------------------------------------
# Estimators recover what is known
# ------------------------------------------------------------------------------


def branches(n, seed=0):
    """x is sin c and one of two branches; and log p(x | c)."""
    rng = np.random.default_rng(seed)
    c, side = rng.uniform(-3, 3, n), rng.choice([-1, 1], n)
    x = np.sin(c) + 0.6 * side + 0.25 * rng.normal(size=n)
    off = (x - np.sin(c))[:, None] + np.array([-0.6, 0.6])
    p = np.exp(-0.5 * (off / 0.25) ** 2).mean(1) / 0.25 / math.sqrt(2 * math.pi)
    return np.column_stack([c, x]), np.log(p)


@full
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_branches_around_a_curve_are_recovered(objective):
    X, _ = branches(3000)
    new, truth = branches(400, 1)
    kind = {"network": MLP((32, 32)), "n_iter": 30, "n_draws": 4}
    kind |= {} if objective != "score_matching" else {"n_draws": 8}
    model = ConditionalDensity(0, objective, **kind, random_state=0).fit(X)
    assert model.score(new) > truth.mean() - 0.05
    assert model.log_conditional(new).exact.all()
    mean = model.expected(new[:50, :1])[:, 0]
    assert np.abs(mean - np.sin(new[:50, 0])).mean() < 0.12


@full
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_network_repairs_a_wrong_base(objective):
    X, _ = branches(3000)
    new, truth = branches(1000, 1)
    kind = {"base": "linear", "random_state": 0, "n_iter": 80}
    model = ConditionalDensity(0, objective, **kind).fit(X)
    base = ConditionalDensity(0, objective, **kind | {"n_iter": 0}).fit(X)
    assert model.score(new) > truth.mean() - 0.12
    assert model.score(new) > base.score(new) + 0.3


@full
def test_densities_of_classes_are_those_of_the_classes():
    rng = np.random.default_rng(0)
    label = rng.choice(["a", "b", "c"], 1500)
    centre, width = label == "a", np.where(label == "b", 0.5, 1.0)
    x = 3.0 * centre + width * rng.normal(size=1500)
    frame = pd.DataFrame({"label": label, "x": x})
    kind = {"network": MLP((16,)), "n_iter": 20, "random_state": 0}
    model = ConditionalDensity("label", **kind).fit(frame[:1200])
    new = frame[1200:]
    truth = -0.5 * ((new.x - 3.0 * (new.label == "a")) / width[1200:]) ** 2 - np.log(
        width[1200:] * math.sqrt(2 * math.pi)
    )
    assert abs(model.score_samples(new).mean() - truth.mean()) < 0.05
    drawn = model.sample(pd.DataFrame({"label": ["a"] * 500 + ["b"] * 500}), random_state=0)["x"]
    assert abs(drawn[:500].mean() - 3.0) < 0.2
    assert abs(drawn[500:].std() - 0.5) < 0.1


def test_p_of_x_given_c_integrates_to_one():
    X, _ = branches(400)
    model = ConditionalDensity(0, **SMALL | {"n_iter": 10}).fit(X)
    x = np.linspace(-6, 6, 4001)
    for c in (-2.0, 1.0, 9.0):
        p = np.exp(model.score_samples(np.column_stack([np.full(4001, c), x + np.sin(c)])))
        mass = integrate.trapezoid(p, x)
        assert c == 9.0 or abs(mass - 1) < 1e-3


def tables():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(300, 4))
    heavy = rng.standard_t(2, size=(300, 3))
    curve = np.column_stack([noise[:, 0], noise[:, 0] ** 2 + 0.1 * noise[:, 1]])
    grid = rng.integers(0, 4, (300, 3)).astype(float)
    few = rng.normal(size=(60, 6))
    return {"noise": noise, "heavy": heavy, "curve": curve, "grid": grid, "few": few}


# The guard is that of every objective: each table with one of them, in turn, few rows with all.
GUARDED = list(zip(tables(), itertools.cycle(OBJECTIVES)))
GUARDED += [("few", objective) for objective in OBJECTIVES if ("few", objective) not in GUARDED]


@full
@pytest.mark.parametrize(("name", "objective"), GUARDED)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_model_ends_below_its_base(name, objective):
    X = tables()[name]
    n = len(X) * 2 // 3
    kind = {"network": MLP((32,)), "random_state": 0, "learning_rate": 0.01, "n_iter": 40}
    model = ConditionalDensity(0, objective, **kind).fit(X[:n])
    base = ConditionalDensity(0, objective, **kind | {"n_iter": 0}).fit(X[:n])
    ours, theirs = model.log_conditional(X[n:]), base.score_samples(X[n:])
    gain = ours.lower - theirs
    assert gain.mean() > -0.05 - 2 * gain.std() / math.sqrt(len(gain))


# ------------------------------------------------------------------------------
# The surface
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame():
    X, _ = branches(300)
    rng = np.random.default_rng(1)
    kind = rng.choice(["u", "v"], 300)
    return pd.DataFrame(
        {"x": X[:, 1], "kind": kind, "c": X[:, 0], "z": X[:, 1] + rng.normal(size=300)}
    )


@full
def test_columns_by_name_are_columns_by_number(frame):
    by_name = ConditionalDensity(["c", "kind"], **SMALL).fit(frame)
    assert by_name.given_ == [2, 1]
    by_number = ConditionalDensity([2, 1], **SMALL).fit(frame)
    mask = ConditionalDensity([False, True, True, False], **SMALL).fit(frame)
    assert by_name.score(frame) == by_number.score(frame)
    assert mask.given_ == [1, 2]
    assert by_name.sample(frame[["kind", "c"]].head(3), random_state=0).shape == (3, 2)
    every = by_name.expected(frame.head(3))
    np.testing.assert_allclose(every, by_name.expected(frame[["kind", "c"]].head(3)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("q", "no column"),
        (7, "n_features=4"),
        ([0, 0], "twice"),
        (range(4), "at least one"),
        ([0.5], "names or numbers"),
        ([True, False], "mask"),
        ("c", "kind.*categories"),
    ],
)
def test_conditions_that_make_no_sense(given, said, frame):
    with pytest.raises(ValueError, match=said):
        ConditionalDensity(given, **SMALL).fit(frame)


def test_column_numbers_count_from_the_end_too():
    assert column_numbers("given", -1, None, 3) == [2]
    assert column_numbers("given", np.int64(1), None, 3) == [1]
    assert column_numbers("given", [], None, 3) == []


def test_without_conditions_it_is_a_density():
    X = np.random.default_rng(0).normal(size=(200, 2))
    model = ConditionalDensity([], **SMALL).fit(X)
    assert model.given_ == []
    assert abs(model.score(X) + math.log(math.tau * math.e)) < 0.2
    assert model.sample(np.empty((3, 0)), random_state=0).shape == (3, 2)


def test_conditions_for_draws_that_do_not_fit(frame):
    model = ConditionalDensity(["c", "kind"], **SMALL).fit(frame)
    with pytest.raises(ValueError, match=r"lacks the columns \['c'\]"):
        model.sample(frame[["kind"]])
    with pytest.raises(ValueError, match="must hold the 2 columns"):
        model.sample(np.zeros((2, 3)))
    unseen = pd.DataFrame({"c": [0.0], "kind": ["w"]})
    with pytest.warns(UserWarning, match="did not occur"), pytest.raises(ValueError, match="NaN"):
        model.expected(unseen)


@full
def test_pipelines_and_searches(frame):
    X = frame[["c", "x"]].to_numpy()
    kind = {"n_iter": 2, "random_state": 0}
    model = make_pipeline(StandardScaler(), ConditionalDensity(0, **kind))
    grid = {
        "conditionaldensity__objective": ["nce", "contrastive_divergence"],
        "conditionaldensity__network__hidden_sizes": [(8,)],
    }
    found = GridSearchCV(model, grid, cv=2).fit(X)
    assert np.isfinite(found.best_score_)
    assert found.score_samples(X).shape == (300,)


def test_settings_without_effect_are_said(frame):
    X = frame[["c", "x"]].to_numpy()
    with pytest.warns(UserWarning, match='sigma, because.*"nce".*n_steps'):
        ConditionalDensity(0, sigma=0.1, n_steps=3, **SMALL).fit(X)
    with pytest.warns(UserWarning, match="n_draws"):
        ConditionalDensity(0, "score_matching", n_draws=3, **SMALL).fit(X)


@full
def test_anomalies_are_judged_given_their_conditions():
    X, _ = branches(600)
    model = ConditionalDensity(0, random_state=0, n_iter=10, contamination=0.05).fit(X)
    usual, odd = [0.0, 0.6], [3.0, 3.0]  # 3 is never far from x = 0.14
    assert model.predict([usual, odd]).tolist() == [1, -1]
    np.testing.assert_allclose(
        model.decision_function([usual]), model.score_samples([usual]) - model.offset_
    )
    for name in ("log_partition_", "log_partition_method_"):
        assert not hasattr(model, name)  # each condition has a log Z of its own


def test_each_objective_streams_and_goes_on(frame):
    X = frame[["c", "x", "z"]].to_numpy()
    for objective in OBJECTIVES:
        model = ConditionalDensity(0, objective, **SMALL).partial_fit(X).partial_fit(X)
        stored = pickle.loads(pickle.dumps(model)).partial_fit(X)
        model.partial_fit(X)
        assert np.array_equal(model.score_samples(X[:20]), stored.score_samples(X[:20]))
        other = OBJECTIVES[OBJECTIVES.index(objective) - 1]
        with pytest.raises(ValueError, match="must not change"):
            model.set_params(objective=other, warm_start=True).fit(X)


def test_a_row_does_not_depend_on_its_neighbours(frame):
    X = frame[["c", "x", "z"]].to_numpy()
    X = np.column_stack([X, X[:, 1] + 1])
    model = ConditionalDensity(0, **SMALL).fit(X)
    whole = model.log_conditional(X)
    for part, alone in zip(whole, model.log_conditional(X[::-1][:40]), strict=True):
        np.testing.assert_allclose(part[::-1][:40], alone, rtol=1e-9, atol=1e-9)
    assert (whole.lower <= whole.log_prob).all()


@full
@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_temperatures_widen_normal_draws_by_their_root(temperature):
    rng = np.random.default_rng(0)
    c = rng.normal(size=(400, 1))
    X = np.hstack([c, c + rng.normal(size=(400, 3))])
    model = ConditionalDensity(0, base="linear", n_iter=0, random_state=0).fit(X)
    drawn = model.sample(np.zeros((1000, 1)), random_state=0, temperature=temperature, n_steps=30)
    np.testing.assert_allclose(
        drawn.std(0) / X[:, 1:].std(0).mean() * 2**0.5, temperature**0.5, rtol=0.15
    )
    with pytest.raises(ValueError, match="temperature"):
        model.sample(c, temperature=0)


# ------------------------------------------------------------------------------
# scikit-learn, storage
# ------------------------------------------------------------------------------

UNEQUAL = {
    f"check_sample_weight_equivalence_on_{kind}_data": "batches, bases and guards are drawn by row"
    for kind in ("dense", "sparse")
}
TINY = ConditionalDensity(0, network=MLP((4,)), base="linear", n_iter=2, random_state=0)


@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    {
        "default": TINY,
        "score_matching": clone(TINY).set_params(objective="score_matching", base="residuals"),
        "chains": clone(TINY).set_params(
            objective="contrastive_divergence", base="auto", early_stopping=True
        ),
    },
    lambda estimator: UNEQUAL,
    modes=["score_matching", "chains"],
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@full
@pytest.mark.parametrize(
    ("store", "objective"),
    [*[(by_skops, one) for one in OBJECTIVES], (by_pickle, "nce"), (by_joblib, "nce")],
)
def test_stored_models_go_on(store, objective, frame):
    X = frame[["x", "c", "z"]].to_numpy()
    model = ConditionalDensity(1, objective, **SMALL).fit(X)
    other = store(model)
    np.testing.assert_array_equal(other.score_samples(X), model.score_samples(X))
    for one in (model, other):
        one.partial_fit(X)
    np.testing.assert_array_equal(other.score_samples(X), model.score_samples(X))


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_entries_that_are_no_numbers(bad):
    X, _ = branches(60)
    X[3, 1] = bad
    with pytest.raises(ValueError, match="NaN|infinity"):
        ConditionalDensity(**SMALL).fit(X)


@full
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tables_at_the_edge():
    X, _ = branches(60)
    for rows in (X[:1], X[:0], X[:, :1], X[:, 0]):
        with pytest.raises(ValueError, match=r"minimum|n_features=1|2D"):
            ConditionalDensity(**SMALL).fit(rows)
    model = ConditionalDensity(**SMALL).fit(X[:2])
    assert np.isfinite(model.score_samples(X[:2])).all()
    for column in (0, 1):
        constant = X.copy()
        constant[:, column] = 3.0
        model = ConditionalDensity(**SMALL).fit(constant)
        assert np.isfinite(model.score_samples(constant)).all()
    with pytest.raises(ValueError, match="features"):
        model.score_samples(np.zeros((2, 5)))
    double = np.column_stack([X, X])  # x is what c is
    assert np.isfinite(ConditionalDensity(**SMALL).fit(double).score_samples(double)).all()
    huge = X * 1e30
    assert np.isfinite(ConditionalDensity(**SMALL).fit(huge).score_samples(huge)).all()
    integers = (X * 10).astype(int)
    assert np.isfinite(ConditionalDensity(**SMALL).fit(integers).score(integers))


def test_rows_far_away_are_unlikely_or_refused_by_name():
    X, _ = branches(200)
    model = ConditionalDensity(**SMALL).fit(X)
    assert model.score_samples([[0.0, 1e6]]) < -1e6
    with pytest.raises(ValueError, match="Row 0"):
        model.score_samples([[1e300, 0.0]])


# ------------------------------------------------------------------------------
# Sequences
# ------------------------------------------------------------------------------


def test_lagged_frames_stay_within_their_sequences():
    X = np.arange(12.0).reshape(6, 2)
    found = lagged(X, 2, lengths=[4, 2])
    np.testing.assert_array_equal(found, [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]])
    named = lagged(pd.DataFrame(X, columns=["a", "b"], index=list("pqrstu")), 1, [3, 3])
    assert list(named.columns) == ["a(t-1)", "b(t-1)", "a", "b"]
    assert list(named.index) == ["q", "r", "t", "u"]
    np.testing.assert_array_equal(named.loc["t"], [6, 7, 8, 9])
    for arguments in ((X, 0), (X, 1, [3, 2]), (X[0], 1)):
        with pytest.raises(ValueError, match="order|lengths|two-dimensional"):
            lagged(*arguments)


@full
def test_a_density_of_the_next_frame():
    rng = np.random.default_rng(0)
    X = np.zeros((800, 1))
    for t in range(1, 800):
        X[t] = 0.8 * X[t - 1] + rng.choice([-1.0, 1.0]) + 0.2 * rng.normal()
    table = lagged(X, 1)
    kind = {"network": MLP((16,)), "n_iter": 20, "random_state": 0}
    model = ConditionalDensity(range(1), **kind).fit(table[:600])
    truth = math.log(0.5) - 0.5 * math.log(math.tau * math.e * 0.04)
    assert model.score(table[600:]) > truth - 0.12


def test_any_network_is_silent_where_the_model_is_its_base_and_trains_when_it_goes_on():
    X = np.random.default_rng(0).normal(size=(80, 2))
    model = ConditionalDensity([0], **SMALL).fit(X)
    energy = model.energy_
    rows = torch.as_tensor(X, dtype=torch.float32)
    assert energy.network_share == 0
    assert not energy.correction(rows).any()
    assert energy.network.layers[0].weight.any()
    assert model.log_conditional(X).exact.all() or np.allclose(
        model.log_conditional(X).std_error, 0
    )
    before = model.energy(X)
    assert model.partial_fit(X).energy_.network_share == 1
    assert (model.energy(X) != before).any()
