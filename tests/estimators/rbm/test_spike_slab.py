"""SpikeSlabEnergy and SpikeSlabRBM: conditionals, energies, gradients and log Z are exact."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from skebm import RBMEstimator, SpikeSlabRBM
from skebm.base import Batch, Clamp
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import SpikeSlabEnergy, annealing_path
from skebm.energies.rbm.mixed import MAX_LOG_PRECISION
from skebm.energies.rbm.spike_slab import MAX_PRECISION, MIN_LOG_PRECISION
from skebm.objectives import Centering, ContrastiveDivergence, Penalty
from skebm.partition import AIS, AISBracket, Exact, Quadrature
from skebm.partition.checks import wide_base
from skebm.partition.exact import exact_draws
from skebm.samplers import Gibbs, Persistent
from skebm.training import SGD
from tests.support.oracle import DOUBLE, finite_difference, joint_energy, make_spike_slab, seeded
from tests.support.tiers import full, leading

TIGHT = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(params=["covariance", "independent"])
def energy(request):
    return make_spike_slab(3, 4, independent=request.param == "independent")


def rows(energy, n=7, seed=5):
    return 1.5 * energy.base.sample(n, seeded(seed))


def spikes(energy):
    return torch.cat(list(energy.hidden_domain.enumerate()))


def grid(energy, n=91, reach=14.0):
    """Nodes in the coordinates of the base as rows, (n^d, d), and the volume of one."""
    axis = torch.linspace(-reach, reach, n, dtype=DOUBLE)
    d = energy.domain.n_columns
    nodes = torch.stack(torch.meshgrid(*[axis] * d, indexing="ij"), -1).flatten(0, -2)
    L = energy.frame.matrix().double()
    return nodes @ L.t() + energy.base.mean.double(), float(axis[1] - axis[0]) ** d * float(L.det())


def test_slabs_integrate_out_of_the_joint_energy(energy):
    """By quadrature of exp(-E(x, h, s)) over each slab, as the docstring has it."""
    x, h = rows(energy), spikes(energy)
    z = energy.projections(x)[1].detach()[:, None]  # (n, 1, H)
    s = torch.linspace(-30, 30, 1001, dtype=DOUBLE)[:, None, None, None]
    terms = z.square() / 2 - h * z * s + s.square() / 2 + math.log(2 * math.pi) / 2
    integral = torch.logsumexp(-terms, 0) + math.log(60 / 1000)
    linear = h * (energy.hidden_bias + energy.slab_mean * z)
    visible = joint_energy(energy, x, torch.ones(1, 4, dtype=DOUBLE))
    visible = visible + (energy.hidden_bias + energy.slab_mean * z).sum(-1)  # spikes on take z away
    expected = visible - (linear + integral).sum(-1)
    torch.testing.assert_close(joint_energy(energy, x, h), expected, **TIGHT)


def test_conditionals_of_rows_have_the_moments_of_their_definition(energy):
    h = spikes(energy)
    field = torch.randn(len(h), 3, generator=seeded(3), dtype=DOUBLE)
    given = energy.visible(h, 0.7, field)
    # log p(x | h) is quadratic: its derivatives are the moments.
    for row in (0, 3, 6, 15):

        def log_p(x, row=row):
            joint = joint_energy(energy, x[None], h[row : row + 1])
            return -0.7 * joint[0, 0] + field[row] @ x

        zero = torch.zeros(3, dtype=DOUBLE)
        precision = -torch.autograd.functional.hessian(log_p, zero)
        linear = torch.autograd.functional.jacobian(log_p, zero)
        assert torch.linalg.eigvalsh(precision).min() > 0
        torch.testing.assert_close(given.mean[row], torch.linalg.solve(precision, linear), **TIGHT)
        covariance = given._covariance[row]
        torch.testing.assert_close(covariance, torch.linalg.inv(precision), **TIGHT)


@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_hidden_energy_equals_quadrature(beta):
    energy = make_spike_slab(2, 3)
    h, (x, volume) = spikes(energy), grid(energy, 401)
    field = torch.tensor([0.4, -0.3], dtype=DOUBLE)
    log_p = -beta * joint_energy(energy, x, h) + (x @ field)[:, None]
    expected = -(torch.logsumexp(log_p, 0) + math.log(volume))
    torch.testing.assert_close(energy.hidden_energy(h, beta, field), expected, **TIGHT)


def test_hidden_energy_with_known_entries_equals_quadrature():
    energy = make_spike_slab(2, 3)
    h = spikes(energy)
    mask = torch.tensor([[True, False], [False, True]]).repeat(4, 1)
    value = torch.randn(8, 2, generator=seeded(2), dtype=DOUBLE)
    axis = torch.linspace(-25, 25, 8001, dtype=DOUBLE)
    expected = []
    for row in range(8):
        x = torch.where(mask[row], value[row], axis[:, None])
        log_p = -joint_energy(energy, x, h[row : row + 1])[:, 0]
        expected.append(-(torch.logsumexp(log_p, 0) + math.log(50 / 8000)))
    found = energy.hidden_energy(h, clamp=Clamp(mask, value))
    torch.testing.assert_close(found, torch.stack(expected), **TIGHT)
    everything = Clamp(torch.ones(8, 2, dtype=torch.bool), value)
    expected = joint_energy(energy, value, h).diagonal()
    torch.testing.assert_close(energy.hidden_energy(h, clamp=everything), expected, **TIGHT)
    nothing = Clamp(torch.zeros(8, 2, dtype=torch.bool), value)
    torch.testing.assert_close(energy.hidden_energy(h, clamp=nothing), energy.hidden_energy(h))


@full
def test_known_entries_stay_and_others_follow_their_conditional(generator):
    energy = make_spike_slab(3, 2)
    h = torch.tensor([[1.0, 0.0]], dtype=DOUBLE).expand(40_000, -1)
    mask = torch.tensor([True, False, False]).expand(40_000, -1)
    clamp = Clamp(mask, torch.full((40_000, 3), 0.7, dtype=DOUBLE))
    free = energy.visible(h[:1])
    mean, cov = free.mean[0], free._covariance[0]
    gain = cov[1:, 0] / cov[0, 0]
    expected, spread = mean[1:] + gain * (0.7 - mean[0]), cov[1:, 1:] - cov[1:, :1] * gain
    given = energy.visible(h, 1.0).given(clamp)
    torch.testing.assert_close(given.mean[0, 1:], expected)
    x = given.sample(generator)
    assert (x[:, 0] == 0.7).all()
    error = spread.diagonal().sqrt() / 200
    assert ((x[:, 1:].mean(0) - expected).abs() < 5 * error).all()
    torch.testing.assert_close(x[:, 1:].t().cov(), spread, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("beta", [1.0, 0.6])
@pytest.mark.parametrize("known", [False, True])
def test_steps_with_slabs_leave_the_rows_given_spikes_as_they_are(generator, beta, known):
    """From exact draws of p(x | h), one step of the slabs and rows, moments up to order four."""
    energy, n = make_spike_slab(2, 3), 60_000
    h = torch.tensor([[1.0, 0.0, 1.0]], dtype=DOUBLE).expand(n, -1)
    exact = energy.visible(h, beta)
    clamp = None
    if known:
        clamp = Clamp(torch.tensor([True, False]).expand(n, -1), torch.full((n, 2), 0.4).double())
        exact = exact.given(clamp)
    before = exact.sample(generator)
    step = energy.next_visible(before, h, beta, generator)
    after = (step if clamp is None else step.given(clamp)).sample(generator)
    after = after if clamp is None else clamp.apply(after)
    for moment in (
        lambda x: x,
        lambda x: x.square(),
        lambda x: x[:, :1] * x[:, 1:],
        lambda x: x**4,
    ):
        difference = moment(after) - moment(before)
        error = (moment(after).var(0) + moment(before).var(0)).div(n).sqrt() + 1e-12
        assert (difference.mean(0).abs() < 4.5 * error).all()


def test_gibbs_leaves_exact_draws_exact(generator):
    energy, n = make_spike_slab(2, 3), 40_000
    x = exact_draws(energy, n, generator)
    state, _ = Gibbs().run(energy, x, 5, generator)
    again = exact_draws(energy, n, generator)
    for moment in (
        lambda x: x,
        lambda x: x.square(),
        lambda x: x.abs().sqrt(),
        energy.hidden_field,
    ):
        one, other = moment(state.x).detach(), moment(again).detach()
        error = ((one.var(0) + other.var(0)) / n).sqrt()
        assert ((one.mean(0) - other.mean(0)).abs() < 4.5 * error).all()


# ------------------------------------------------------------------------------
# log Z
# ------------------------------------------------------------------------------


def test_log_z_by_spikes_and_by_quadrature_agree(energy):
    by_spikes = Exact().estimate(energy).value
    x, volume = grid(energy)
    with torch.no_grad():
        by_rows = float(torch.logsumexp(-energy(x), 0)) + math.log(volume)
    assert by_spikes == pytest.approx(by_rows, abs=1e-5)


def test_log_z_by_the_library_s_quadrature():
    energy = make_spike_slab(2, 4)
    expected = Exact().estimate(energy).value
    assert Quadrature().estimate(energy).value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("start", ["base", "wide"])
def test_annealing_finds_the_exact_log_z(start):
    energy = make_spike_slab(4, 5)
    base = energy.base if start == "base" else wide_base(energy, energy.base)
    expected = Exact().estimate(energy).value
    found = AIS(n_chains=200, n_betas=300).estimate(
        energy, base=base, sampler=Gibbs(), generator=seeded(1)
    )
    assert abs(found.value - expected) < 4 * found.std_error + 0.01
    assert found.std_error < (0.1 if start == "base" else 0.3)


@full
def test_the_bracket_holds_the_exact_log_z():
    energy = make_spike_slab(4, 5)
    x = exact_draws(energy, 100, seeded(3))
    found = AISBracket(n_betas=200, n_steps=50).estimate(
        energy, sampler=Gibbs(), x=x, generator=seeded(1)
    )
    assert found.lower <= Exact().estimate(energy).value <= found.upper


@pytest.mark.parametrize("start", ["base", "wide"])
def test_the_path_goes_from_the_start_to_the_model(energy, start):
    base = energy.base if start == "base" else wide_base(energy, energy.base)
    path, x = annealing_path(energy, base), rows(energy)
    log_q = base.parts[0].log_prob(x) if start == "wide" else base.log_prob(x)
    torch.testing.assert_close(-path.at(0.0)(x), log_q + path.log_z0)
    torch.testing.assert_close(path.at(1.0)(x), energy(x))
    half = path.at(0.5)
    ratio = (half(x) - energy(x)).detach()
    torch.testing.assert_close(path.log_ratio(x, 0.5, 1.0), ratio)


def test_half_way_from_the_base_energies_are_means(energy):
    x, h = rows(energy), spikes(energy)
    half = annealing_path(energy, energy.base).at(0.5)
    log_q = energy.base.log_prob(x)[:, None]
    expected = 0.5 * joint_energy(energy, x, h) - 0.5 * log_q
    torch.testing.assert_close(joint_energy(half, x, h), expected)


def test_far_rows_have_no_more_mass_than_under_the_base(energy):
    """Proper for every W: the correction grows no faster than linearly."""
    with torch.no_grad():
        energy.weight.mul_(1e3)
        energy.slab_mean.mul_(1e3)
    u = torch.randn(50, 3, generator=seeded(2), dtype=DOUBLE)
    far = energy.frame.rows(1e8 * u)
    assert (energy(far) / (1e8 * u).square().sum(1) > 0.1 * energy.log_precision.exp().min()).all()


# ------------------------------------------------------------------------------
# Gradients, padding, limits
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "penalty", [None, Penalty(l1=0.02, l2=0.03, sparsity_target=0.1, sparsity_cost=0.4)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_by_hand_equals_autograd(energy, penalty, weighted):
    objective = ContrastiveDivergence(energy, Gibbs(), Persistent(n_chains=6), penalty=penalty)
    x = rows(energy, 8)
    weight = torch.rand(8, generator=seeded(1), dtype=DOUBLE) if weighted else None
    batch, generator = Batch(x, weight=weight), seeded(4)
    state = objective.start(batch, generator)
    objective.gradients(batch, state, seeded(6))
    by_hand = {name: p.grad.clone() for name, p in energy.named_parameters()}
    objective.zero_grad()
    objective(batch, state, seeded(6)).value.backward()
    for name, p in energy.named_parameters():
        torch.testing.assert_close(by_hand[name], p.grad, **TIGHT)


def test_free_energy_differentiates_to_finite_differences_of_parameters(energy):
    x = rows(energy)
    energy(x).sum().backward()
    for p in energy.parameters():
        value = p.detach().clone()

        def total(moved, p=p):
            with torch.no_grad():
                p.copy_(moved[0])
                return energy(x).sum()

        expected = finite_difference(total, value[None])[0]
        with torch.no_grad():
            p.copy_(value)
        torch.testing.assert_close(p.grad, expected, atol=1e-5, rtol=1e-5)


def test_filling_up_changes_nothing(energy):
    x = rows(energy)
    padded = energy.with_padding()
    assert padded.weight.shape == (16, 16)
    torch.testing.assert_close(padded(x), energy(x))
    torch.testing.assert_close(padded.hidden(x).mean[:, :4], energy.hidden(x).mean)
    torch.testing.assert_close(padded.slabs(x)[:, :4], energy.slabs(x))
    torch.testing.assert_close(padded.reconstruct(x)[:, :3], energy.reconstruct(x))


def test_reconstruction_is_the_mean_given_means_of_spikes_and_slabs(energy):
    x = rows(energy)
    u, z = energy.projections(x)
    p = energy.hidden(x).mean
    linear = energy.visible_bias + (p * (z + energy.slab_mean)) @ energy.weight
    P = energy.log_precision.exp().diag() + energy.weight.t() @ energy.weight
    expected = energy.frame.rows(torch.linalg.solve(P, linear.t()).t())
    torch.testing.assert_close(energy.reconstruct(x), expected)


def test_single_precision_survives_large_weights():
    """A precision of 1e8 and one of 1e-1 side by side: factorised in double precision."""
    energy = make_spike_slab(3, 4).float()
    energy.base = energy.base.to("cpu", torch.float32)
    with torch.no_grad():
        energy.weight.mul_(1e4)
        energy.log_precision.fill_(math.log(0.1))
    x = energy.base.sample(10, seeded())
    state, _ = Gibbs().run(energy, x, 20, seeded())
    assert state.x.isfinite().all()
    assert energy(state.x).isfinite().all()


def test_the_factor_follows_the_weights(energy):
    x, generator = rows(energy), seeded()
    with torch.no_grad():
        before = energy.next_visible(x, torch.ones(7, 4, dtype=DOUBLE), 1.0, generator).factor
        energy.weight.mul_(2)
        after = energy.next_visible(x, torch.ones(7, 4, dtype=DOUBLE), 1.0, generator).factor
    P = energy.log_precision.exp().diag() + energy.weight.t() @ energy.weight
    torch.testing.assert_close(after @ after.t(), P)
    assert not torch.equal(before, after)


def test_bad_bases_and_settings_are_refused():
    how = {"generator": seeded()}
    for base in (IndependentBernoulli(torch.zeros(3)), Gaussian(torch.zeros(2, 2), 1.0)):
        with pytest.raises(ValueError, match="Gaussian of flat rows"):
            SpikeSlabEnergy(base, 2, **how)
    energy = make_spike_slab(3, 4)
    with pytest.raises(ValueError, match="centering=None"):
        energy.contrast_gradient(Centering(), None)
    h = torch.ones(2, 4, dtype=DOUBLE)
    with pytest.raises(ValueError, match="beta=0"):
        energy.visible(h, 0.0)
    with pytest.raises(ValueError, match="beta=0"):
        energy.next_visible(rows(energy, 2), h, 0.0, seeded())


def test_derivatives_of_the_log_density_equal_finite_differences(energy):
    x = rows(energy)
    gradient, second = energy.derivatives(x)
    torch.testing.assert_close(gradient, -energy.value_and_grad(x)[1])
    step = 1e-5 * torch.eye(3, dtype=DOUBLE)
    for i in range(3):
        forward, back = (-energy.value_and_grad(x + sign * step[i])[1][:, i] for sign in (1, -1))
        torch.testing.assert_close(second[:, i], (forward - back) / 2e-5, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


def scale_mixture(n=600, seed=0):
    """Columns that are uncorrelated, but large together; in other units."""
    rng = np.random.default_rng(seed)
    wide = rng.random((n, 1)) < 0.3
    z = rng.normal(size=(n, 3)) * np.where(wide, [1, 3, 3], [1, 0.3, 0.3])
    return z * [1, 10, 100] + [5, 0, -70]


QUICK = {
    "n_iter": 50,
    "batch_size": 60,
    "learning_rate": 0.05,
    "optimizer": SGD(schedule="linear"),
    "random_state": 0,
}


@pytest.fixture(scope="module")
def model():
    return SpikeSlabRBM(6, **QUICK).fit(scale_mixture())


def test_a_covariance_that_varies_is_learned(model):
    """A Gaussian RBM of equal size, on the same base, hardly sees it."""
    new = scale_mixture(400, 1)
    normal = GaussianMixture().fit(scale_mixture()).score(new)
    rbm = RBMEstimator(6, base="gaussian", **QUICK).fit(scale_mixture())
    assert model.log_partition_kind_ == "exact"
    assert model.score(new) > normal + 0.7
    assert model.score(new) > rbm.score(new) + 0.5


def test_the_density_integrates_to_one_in_the_units_of_x(model):
    x, volume = grid(model.energy_, 51, 11.0)
    table = model._recipe.table
    p = np.exp(model.score_samples(table.invert(x)))
    assert p.sum() * volume * table.units.scale.prod() == pytest.approx(1, abs=1e-3)


def test_samples_have_the_moments_of_the_model(model):
    x, _ = grid(model.energy_, 51, 11.0)
    X = model._recipe.table.invert(x)
    p = np.exp(model.score_samples(X))
    drawn, p = model.sample(4000, random_state=0), p / p.sum()
    for moment in (lambda X: X, np.square, lambda X: X[:, 1:2] ** 2 * X[:, 2:] ** 2):
        found, expected = moment(drawn), p @ moment(X)
        assert (abs(found.mean(0) - expected) < 4.5 * found.std(0) / 4000**0.5).all()


def test_features_are_spikes_or_slabs():
    X, table = scale_mixture(50, 3), scale_mixture(100)
    model = SpikeSlabRBM(6, **QUICK | {"n_iter": 3}).fit(table)
    slabs = clone(model).set_params(features="slabs").fit(table)
    energy, x = model.energy_, model._rows(X).block(0, 50)
    with torch.no_grad():
        p, z = energy.hidden(x).mean, energy.projections(x)[1]
    np.testing.assert_allclose(model.transform(X), p, atol=1e-5)
    expected = p * (z + energy.slab_mean.detach())
    np.testing.assert_allclose(slabs.transform(X), expected, atol=1e-4)
    holes = X.copy()
    holes[::2, 1] = np.nan
    for one in (model, slabs):
        found = one.transform(holes)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[1::2], one.transform(X)[1::2], rtol=1e-6)
    assert model.filters_.shape == model.components_.shape == (6, 3)
    assert list(model.get_feature_names_out())[:2] == ["spikeslabrbm0", "spikeslabrbm1"]


def test_missing_entries_are_integrated_out(model):
    X = scale_mixture(5, 4)
    X[:, 1] = np.nan
    found = model.log_marginal(X)
    assert found.exact.all()
    axis = np.linspace(-200, 200, 20001)
    for row, value in zip(X, found.log_prob, strict=True):
        filled = np.repeat(row[None], len(axis), 0)
        filled[:, 1] = axis
        expected = np.logaddexp.reduce(model.score_samples(filled)) + np.log(axis[1] - axis[0])
        assert value == pytest.approx(expected, abs=2e-3)
    imputed = model.impute(X, random_state=0)
    assert np.isfinite(imputed).all()
    np.testing.assert_array_equal(imputed[:, [0, 2]], X[:, [0, 2]])


@full
def test_score_without_log_z_is_the_hyvarinen_score_in_the_units_of_x(model):
    X, other = scale_mixture(30, 5), clone(model).set_params(partition=None, dtype="float64")
    other.fit(scale_mixture())
    step, total = np.array([1e-3, 1e-2, 1e-1]), 0.0
    for i in range(3):
        move = np.where(np.arange(3) == i, step, 0.0)
        up, here, down = (other.score_samples(X + k * move) for k in (1, 0, -1))
        first, second = (up - down) / (2 * step[i]), (up - 2 * here + down) / step[i] ** 2
        total = total + first**2 / 2 + second
    assert other.score(X) == pytest.approx(-total.mean(), rel=1e-3)


@full
def test_a_normal_distribution_is_left_as_it_is():
    """Never below the base on held-out rows: here there is nothing beside it."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 5))
    X, new = (rng.normal(size=(n, 5)) @ A for n in (800, 3000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SpikeSlabRBM(8, n_iter=10, random_state=0).fit(X)
    z = model._rows(new).block(0, len(new))
    base = model.base_.log_prob(z).mean() - model._recipe.table.log_volume
    assert model.score(new) > float(base) - 0.1


@full
def test_few_rows_choose_the_number_of_epochs():
    rng = np.random.default_rng(0)
    with pytest.warns(ConvergenceWarning, match="base is left as it is"):
        # Of noise alone, with a rate at which a model of one half is bad for the other.
        model = SpikeSlabRBM(8, random_state=0).fit(rng.normal(size=(20, 4)))
    assert model.n_iter_ == 0
    z = model._rows(rng.normal(size=(500, 4))).block(0, 500)
    with torch.no_grad():
        difference = -model.energy_(z) - model.base_.log_prob(z) - model.log_partition_
    assert abs(float(difference.mean())) < 0.1


def test_collapsing_columns_are_held_with_a_warning_that_names_them():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X[:, 2] = rng.integers(0, 2, 300)  # two values: any precision is too small
    base = Gaussian(torch.zeros(3), 1.0)
    how = QUICK | {"learning_rate": 0.3, "base": base, "n_iter": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SpikeSlabRBM(6, **how).fit(X)
    energy = model.energy_
    with torch.no_grad():  # as after more steps than a test can take
        energy.weight[0] = torch.tensor([0.0, 0.0, 101.0])
    message = model._recipe.family.units.narrow(energy, model._recipe.table)
    assert "'x2'" in message


@pytest.mark.parametrize("seed", leading(1, range(3)))
def test_large_steps_leave_no_parameter_beyond_its_limits(seed):
    """Two constant columns of bits, and steps that would leap over every limit."""
    X = np.random.default_rng(seed).binomial(1, [0, 1, 0.01, 0.99, 0.5, 0.03], (200, 6)) * 1.0
    model = SpikeSlabRBM(8, learning_rate=1.0, n_iter=10, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)
    energy = model.energy_
    assert float(energy.log_precision.min()) >= MIN_LOG_PRECISION - 1e-6
    assert float(energy.log_precision.max()) <= MAX_LOG_PRECISION + 1e-6
    assert float(energy.weight.square().sum(1).max()) <= MAX_PRECISION * (1 + 1e-5)
    assert np.isfinite(model.score_samples(X)).all()


def test_limits_shorten_weights_and_keep_their_direction():
    energy = SpikeSlabEnergy(Gaussian(torch.zeros(3), 1.0), 2, generator=seeded())
    with torch.no_grad():
        energy.weight[0] = torch.tensor([0.0, 300.0, 400.0])
        energy.log_precision[:2] = torch.tensor([-20.0, 30.0])
    before = energy.weight[1].clone()
    energy.hold_within_limits()
    assert energy.weight[0].tolist() == pytest.approx([0.0, 60.0, 80.0])
    assert torch.equal(energy.weight[1], before)
    expected = [MIN_LOG_PRECISION, MAX_LOG_PRECISION, 0.0]
    assert energy.log_precision.tolist() == pytest.approx(expected)


def test_going_on_keeps_base_and_weights():
    X = scale_mixture(300)
    model = SpikeSlabRBM(4, **QUICK | {"n_iter": 5, "warm_start": True}).fit(X)
    before, base = model.components_.copy(), model.base_
    model.set_params(n_iter=1).fit(X)
    assert model.base_ is base
    assert model.n_iter_ == 6
    assert 0 < np.abs(model.components_ - before).max() < 0.5
    model.partial_fit(X[:50])
    assert model.n_iter_ == 7
    with pytest.raises(ValueError, match="must not change"):
        model.set_params(base="independent").fit(X)


BAD = {
    "one row": (np.ones((1, 3)), "minimum of 2"),
    "no row": (np.ones((0, 3)), "minimum of 2"),
    "infinite": (np.array([[1.0, 2], [np.inf, 0]]), "infinity"),
    "all missing": (np.array([[1.0, np.nan], [2.0, np.nan]]), "x1"),
    "one dimension": (np.ones(5), "2D"),
    "images": (np.ones((5, 2, 2)), "dim 3"),
    "text": (np.array([["a", "b"], ["c", "d"]]), r"\['x0', 'x1'\] hold categories"),
    "complex": (np.ones((4, 2)) * 1j, "[Cc]omplex"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_clear_error(name):
    X, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        SpikeSlabRBM(2, n_iter=1).fit(X)


def test_categories_of_frames_are_refused_by_name():
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame({"size": [1.0, 2, 3], "colour": ["red", "blue", "red"]})
    with pytest.raises(ValueError, match=r"\['colour'\] hold categories.*RBMEstimator"):
        SpikeSlabRBM(2, n_iter=1).fit(X)


@full
def test_constant_duplicated_and_coarse_columns_have_finite_densities():
    X = scale_mixture(300)
    X = np.column_stack([X, X[:, 0], np.ones(300), X[:, 1].round(-1), np.full(300, 1e9)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SpikeSlabRBM(4, n_iter=20, random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.sample(20, random_state=0)).all()
    far = X[:3].copy()
    far[:, 1] = 1e6
    assert (model.score_samples(far) < -1e6).all()


@pytest.mark.parametrize(
    "params",
    [
        {"n_components": 0},
        {"learning": "exact"},
        {"features": "gates"},
        {"base": "chow-liu"},
        {"base": IndependentBernoulli(torch.zeros(3))},
        {"base": Gaussian(torch.zeros(2), 1.0)},
    ],
)
def test_bad_settings_are_a_clear_error(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        SpikeSlabRBM(**{"n_iter": 1} | params).fit(scale_mixture(50))
