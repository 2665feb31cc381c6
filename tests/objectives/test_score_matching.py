"""Score matching against closed forms: normal models, walls by quadrature, noise in expectation."""

import copy
import math

import pytest
import torch
from torch import nn

from skebm.base import Batch, Binary, Energy, Real
from skebm.base.energy import value_and_input_grad_of
from skebm.distributions import TruncatedGaussian
from skebm.energies import MLP, NeuralEnergy
from skebm.objectives import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
    boundary_weight,
    score_matching,
)
from tests.support.networks import LEVELS, build, neural, walled
from tests.support.objectives import autograd, closed_form, flat, gradient
from tests.support.oracle import (
    DOUBLE,
    finite_difference,
    make_rbm,
    mean_is,
    seeded,
    standard_normal,
)
from tests.support.tiers import leading, named

# Largest |z| of a mean over independent noise: five standard errors.
SIEVE = 5


class Bowl(Energy):
    """(x - m)' L (x - m) / 2, L the symmetric part of a parameter; or of each level's variance.

    With `levels` the parameter is a covariance, to which the square of the level is added.
    """

    def __init__(self, mean, matrix, lower=None, upper=None, levels=False):
        super().__init__()
        self.domain, self.levels = Real((len(mean),), lower, upper), levels
        self.mean, self.matrix = nn.Parameter(mean.clone()), nn.Parameter(matrix.clone())

    def precision(self, sigma=None):
        """L, or one for each level."""
        matrix = (self.matrix + self.matrix.t()) / 2
        if not self.levels:
            return matrix
        eye = torch.eye(len(matrix), dtype=DOUBLE)
        return torch.linalg.inv(matrix + sigma[..., None, None].square() * eye)

    def forward(self, x, cond=None):
        off = x - self.mean
        if self.levels:
            return torch.einsum("ni,nij,nj->n", off, self.precision(cond), off) / 2
        return (off @ self.precision() * off).sum(1) / 2


def bowl(d, diagonal=False, **kwargs):
    root = standard_normal(d, d, seed=2) / d**0.5
    matrix = root @ root.t() + 0.5 * torch.eye(d, dtype=DOUBLE)
    matrix = matrix.diagonal().diag() if diagonal else matrix + 0.3 * standard_normal(d, d, seed=3)
    return Bowl(0.5 * standard_normal(d, seed=4), matrix, **kwargs)


def rows(d, n=50):
    """Rows with moments that are not those of any model here."""
    return standard_normal(n, d, seed=5) @ (
        standard_normal(d, d, seed=6) / d**0.5
    ) + standard_normal(d, seed=7)


def second_moment(energy, x):
    off = x - energy.mean
    return off.t() @ off / len(x)


def with_value(objective, batch, seed):
    """The loss and its gradient, in one vector."""
    grads, loss = gradient(objective, batch, None, seed)
    return torch.cat([loss.value.detach()[None], flat(grads)])


def replicates(objective, x, repeats=60, times=20):
    """Losses with gradients under independent noise, each of rows repeated, (repeats, ...)."""
    batch = Batch(x.repeat(times, 1))
    return torch.stack([with_value(objective, batch, seed) for seed in range(repeats)])


def assert_mean(samples, truth):
    """Their mean is the truth, as finely as a tenth of its size can be told."""
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.9 * truth) > SIEVE


# ------------------------------------------------------------------------------
# Second derivatives
# ------------------------------------------------------------------------------


def hyvarinen(x, noise=0.0):
    """tr(L (S + noise) L) / 2 - tr L."""

    def value(energy):
        L = energy.precision()
        return (L @ (second_moment(energy, x) + noise) @ L).trace() / 2 - L.trace()

    return value


@pytest.mark.parametrize("d", range(1, 11))
def test_the_exact_objective_has_its_closed_form(d):
    energy, x = bowl(d), rows(d)
    found = with_value(ExactScoreMatching(energy), Batch(x), 0)
    torch.testing.assert_close(found, closed_form(hyvarinen(x), energy))


def test_the_exact_objective_is_least_at_the_moments():
    x = rows(4)
    energy = Bowl(x.mean(0), torch.linalg.inv(torch.cov(x.t(), correction=0)))
    found = with_value(ExactScoreMatching(energy), Batch(x), 0)[1:]
    torch.testing.assert_close(found, torch.zeros_like(found))


def test_the_exact_objective_of_a_network_is_that_of_its_hessian():
    energy, x = neural(), rows(3, 7)
    half = energy.value_and_grad(x)[1].square().sum(1) / 2
    trace = [torch.autograd.functional.hessian(lambda y: energy(y[None])[0], r).trace() for r in x]
    value = ExactScoreMatching(energy)(Batch(x), None, seeded()).value
    torch.testing.assert_close(value, (half - torch.stack(trace)).mean())


def test_rows_may_have_any_shape():
    """An energy of images, of which autograd knows no more than of flat rows."""

    class Images(Energy):
        domain = Real((1, 2, 3))

        def __init__(self):
            super().__init__()
            self.flat = bowl(6)

        def forward(self, x, cond=None):
            return self.flat(x.flatten(1))

    images, x = Images(), rows(6)
    for make in (
        ExactScoreMatching,
        SlicedScoreMatching,
        lambda energy: DenoisingScoreMatching(energy, 0.4),
    ):
        found = make(images)(Batch(x.view(-1, 1, 2, 3)), None, seeded()).value
        torch.testing.assert_close(found, make(images.flat)(Batch(x), None, seeded()).value)


@pytest.mark.parametrize("projection", ["rademacher", "gaussian"])
@pytest.mark.parametrize("n_projections", leading(1, [3, 1]))
@pytest.mark.parametrize("d", leading(1, [5, 1]))
def test_slices_are_exact_in_expectation(d, n_projections, projection):
    energy, x = bowl(d), rows(d, 10)
    samples = replicates(SlicedScoreMatching(energy, n_projections, projection), x)
    assert_mean(samples, closed_form(hyvarinen(x), energy))


def test_signs_are_exact_where_columns_do_not_interact():
    energy, x = bowl(6, diagonal=True), rows(6)
    signs, normals = (SlicedScoreMatching(energy, 1, p) for p in ("rademacher", "gaussian"))
    expected = closed_form(hyvarinen(x), energy)
    torch.testing.assert_close(signs(Batch(x), None, seeded()).value, expected[0])
    assert (normals(Batch(x), None, seeded()).value - expected[0]).abs() > 1e-3


@pytest.mark.full
def test_more_projections_have_less_variance():
    energy, x = bowl(6), rows(6)
    spread = {
        (n, p): replicates(SlicedScoreMatching(energy, n, p), x, 100, 1)[:, 0].var()
        for n, p in ((1, "rademacher"), (8, "rademacher"), (1, "gaussian"))
    }
    assert spread[8, "rademacher"] < spread[1, "rademacher"] / 4
    assert spread[1, "rademacher"] < spread[1, "gaussian"]


@pytest.mark.parametrize("build_energy", [neural, lambda: walled(3, 0.0, 1.5)])
def test_slices_of_networks_are_exact_in_expectation(build_energy):
    energy = build_energy()
    x = rows(3, 10) if energy.base.domain.lower is None else energy.base.sample(10, seeded())
    truth = with_value(ExactScoreMatching(energy), Batch(x), 0)
    samples = replicates(SlicedScoreMatching(energy, 2), x)
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.8 * truth) > SIEVE


def test_jitter_blurs_the_data():
    energy, x = bowl(3), rows(3, 10)
    jitter = torch.tensor([0.5, 0.0, 1.0], dtype=DOUBLE)
    truth = closed_form(hyvarinen(x, jitter.square().diag()), energy)
    assert_mean(replicates(ExactScoreMatching(energy, jitter), x, times=200), truth)
    assert_mean(replicates(SlicedScoreMatching(energy, jitter=jitter), x, times=200), truth)


# ------------------------------------------------------------------------------
# Noise
# ------------------------------------------------------------------------------


def convolved(x, sigma):
    """tr(s L (S + s) L) / 2 - tr(s L), s the variances of the noise."""

    def value(energy):
        L, s = energy.precision(), sigma.square().expand(x.shape[1]).diag()
        return (s @ L @ (second_moment(energy, x) + s) @ L).trace() / 2 - (s @ L).trace()

    return value


@pytest.mark.parametrize("sigma", [0.05, 0.7, [0.2, 1.0, 0.6]])
def test_denoising_has_its_closed_form_in_expectation(sigma):
    energy, x, sigma = bowl(3), rows(3, 10), torch.tensor(sigma, dtype=DOUBLE)
    samples = replicates(DenoisingScoreMatching(energy, sigma), x, times=100)
    assert_mean(samples, closed_form(convolved(x, sigma), energy))


@pytest.mark.parametrize("sigma", [0.3, [0.2, 1.0, 0.6]])
def test_denoising_is_at_rest_at_the_blurred_moments(sigma):
    x, sigma = rows(3, 10), torch.tensor(sigma, dtype=DOUBLE)
    noisy = torch.cov(x.t(), correction=0) + sigma.square().expand(3).diag()
    energy = Bowl(x.mean(0), torch.linalg.inv(noisy))
    assert mean_is(replicates(DenoisingScoreMatching(energy, sigma), x)[:, 1:], 0) < SIEVE
    energy = Bowl(x.mean(0), torch.linalg.inv(torch.cov(x.t(), correction=0)))
    assert mean_is(replicates(DenoisingScoreMatching(energy, sigma), x)[:, 1:], 0) > SIEVE


def test_denoising_is_exact_at_small_levels():
    """Over the square of the level, up to its square: here a millionth."""
    energy, x, sigma = neural(), rows(3, 10), 1e-3
    truth = with_value(ExactScoreMatching(energy), Batch(x), 0)
    samples = replicates(DenoisingScoreMatching(energy, sigma), x, times=100) / sigma**2
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.8 * truth) > SIEVE


def test_pairs_do_not_drown_in_their_noise():
    """Without a partner the loss of a row varies as one over the level."""
    energy, x = neural(), rows(3, 1).expand(2000, 3)

    def alone(sigma, noise):
        slope = energy.value_and_input_grad(x + sigma * noise).grad
        return sigma * slope.square().sum(1) / 2 - (slope * noise).sum(1)  # over sigma

    paired, unpaired = {}, {}
    for sigma in (0.1, 0.001):
        loss = DenoisingScoreMatching(energy, sigma).rowwise(x, seeded())
        paired[sigma] = (loss / sigma**2).std().item()
        unpaired[sigma] = (alone(sigma, standard_normal(2000, 3)) / sigma).std().item()
    assert paired[0.001] == pytest.approx(paired[0.1], rel=0.2)
    assert unpaired[0.001] > 50 * unpaired[0.1]
    assert paired[0.001] < unpaired[0.001] / 100


def test_a_pair_is_the_mean_of_its_halves():
    energy, x, sigma = neural(), rows(3), torch.tensor([0.2, 1.0, 0.6], dtype=DOUBLE)
    noise = torch.randn(50, 3, generator=seeded(), dtype=DOUBLE)
    halves = []
    for z in (noise, -noise):
        slope = energy.value_and_grad(x + sigma * z)[1]
        halves.append(((sigma * slope - z).square() - z.square()).sum(1) / 2)
    found = DenoisingScoreMatching(energy, sigma).rowwise(x, seeded())
    torch.testing.assert_close(found, sum(halves) / 2)


# ------------------------------------------------------------------------------
# Noise of many levels
# ------------------------------------------------------------------------------


def over_levels(x, n=2000):
    """s^2 tr(L (S + s^2) L) / 2 - s^2 tr L, L of each level, over the logarithms of levels."""
    low, high = (math.log(level) for level in LEVELS)
    sigma = (low + (high - low) * (torch.arange(n, dtype=DOUBLE) + 0.5) / n).exp()
    s2 = sigma.square()[:, None, None]

    def value(energy):
        L, eye = energy.precision(sigma), torch.eye(x.shape[1], dtype=DOUBLE)
        full = L @ (second_moment(energy, x) + s2 * eye) @ L / 2 - L
        return (s2[:, 0, 0] * full.diagonal(dim1=1, dim2=2).sum(1)).mean()

    return value


def test_multiscale_has_its_closed_form_in_expectation():
    energy, x = bowl(3, levels=True), rows(3, 10)
    samples = replicates(MultiscaleScoreMatching(energy, *LEVELS), x, times=200)
    truth = closed_form(over_levels(x), energy)
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.8 * truth) > SIEVE


def test_multiscale_is_at_rest_at_the_moments():
    x = rows(3, 10)
    energy = Bowl(x.mean(0), torch.cov(x.t(), correction=0), levels=True)
    objective = MultiscaleScoreMatching(energy, *LEVELS)
    at_rest = closed_form(over_levels(x), energy)[1:]
    torch.testing.assert_close(at_rest, torch.zeros_like(at_rest))
    assert mean_is(replicates(objective, x)[:, 1:], 0) < SIEVE
    with torch.no_grad():
        energy.matrix.mul_(1.5)
    assert mean_is(replicates(objective, x)[:, 1:], 0) > SIEVE


def test_levels_are_spread_evenly_and_regardless_of_the_row():
    class Recorder(Energy):
        domain = Real((2,))

        def forward(self, x, cond=None):
            self.seen = cond
            return x.square().sum(1) * cond

    energy = Recorder()
    objective = MultiscaleScoreMatching(energy, *LEVELS)
    found = []
    for seed in range(200):
        objective.rowwise(rows(2, 20), seeded(seed))
        level, again = energy.seen.chunk(2)
        assert torch.equal(level, again)  # both rows of a pair have the same
        found.append(level)
    share = (torch.stack(found) / LEVELS[0]).log() / math.log(LEVELS[1] / LEVELS[0])
    assert torch.equal((20 * share.sort(1).values).floor(), torch.arange(20.0).expand(200, 20))
    # Each row has them all, log-uniform.
    assert mean_is(share, 0.5) < SIEVE
    assert mean_is(share.square(), 1 / 3) < SIEVE


# ------------------------------------------------------------------------------
# Walls
# ------------------------------------------------------------------------------

WALLS = {
    "above": (0.0, None),
    "below": (None, 0.5),
    "narrow": (0.0, 1.5),
    "wide": (-1.0, 3.0),
}


@pytest.fixture(params=named(["narrow"], WALLS))
def walls(request):
    return WALLS[request.param]


@pytest.mark.parametrize("cls", [ExactScoreMatching, SlicedScoreMatching])
@pytest.mark.parametrize("model", ["normal", "network"])
def test_the_objective_is_a_weighted_distance_of_scores(walls, model, cls):
    """J - J(truth) = E h (s - s_data)^2 / 2 on the line, by quadrature."""
    lower, upper = walls
    data = TruncatedGaussian(torch.tensor([0.4], dtype=DOUBLE), 0.7, lower, upper)
    low, high = -4.5 if lower is None else lower, 5.0 if upper is None else upper
    n = 20_000  # the kinks of h are between cells
    x = low + (high - low) * (torch.arange(n, dtype=DOUBLE)[:, None] + 0.5) / n
    p = data.log_prob(x).exp() * (high - low) / n
    assert p.sum().item() == pytest.approx(1, abs=1e-6)
    if model == "normal":
        parameters = [torch.tensor([-0.2], dtype=DOUBLE), torch.tensor([[1.1]], dtype=DOUBLE)]
        energy = Bowl(*parameters, lower, upper)
    else:
        energy = NeuralEnergy(build(MLP((4,)), (1,)), Real((1,), lower, upper), data)
    truth = Bowl(data.mean, 1 / data.scale.square()[:, None], lower, upper)
    inf = math.inf
    h = torch.minimum(x - (-inf if lower is None else lower), (inf if upper is None else upper) - x)
    h = h.clamp_max(1)[:, 0]

    def value(energy):
        return cls(energy)(Batch(x, weight=n * p), None, seeded()).value

    def distance(energy):
        off = value_and_input_grad_of(energy, x).grad + data.score(x)
        return (p * h * off[:, 0].square()).sum() / 2

    torch.testing.assert_close(value(energy) - value(truth), distance(energy), rtol=1e-6, atol=1e-7)
    found, expected = (flat(autograd(function, energy)) for function in (value, distance))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert expected.abs().max() > 1e-3


def truth_inside(lower, upper):
    """Draws of a truncated normal distribution, and the energy that they come from."""
    mean = torch.tensor([0.3, -0.2, 0.8], dtype=DOUBLE)
    scale = torch.tensor([0.5, 0.9, 1.3], dtype=DOUBLE)
    noise = TruncatedGaussian(mean, scale, lower, upper)
    return noise, Bowl(mean, (1 / scale.square()).diag(), lower, upper)


def gradients_at(objective, noise, repeats=60, n=1000):
    """Gradients of independent batches, (repeats, n_parameters)."""
    draws = [noise.sample(n, seeded(1000 + seed)) for seed in range(repeats)]
    return torch.stack([with_value(objective, Batch(x), i)[1:] for i, x in enumerate(draws)])


@pytest.mark.parametrize("cls", leading(1, [ExactScoreMatching, SlicedScoreMatching]))
def test_the_truth_inside_walls_is_a_fixed_point(walls, cls):
    noise, energy = truth_inside(*walls)
    assert mean_is(gradients_at(cls(energy), noise), 0) < SIEVE
    with torch.no_grad():
        energy.mean.add_(0.2)
    assert mean_is(gradients_at(cls(energy), noise), 0) > SIEVE


@pytest.mark.parametrize("mistake", leading(1, ["no slope of the weights", "no weights"]))
def test_without_walls_in_mind_the_truth_is_no_fixed_point(walls, mistake, monkeypatch):
    noise, energy = truth_inside(*walls)
    if mistake == "no weights":
        energy.domain = Real((3,))
    else:
        right = boundary_weight
        monkeypatch.setattr(
            score_matching, "boundary_weight", lambda x, domain: (right(x, domain)[0], 0 * x)
        )
    assert mean_is(gradients_at(ExactScoreMatching(energy), noise), 0) > SIEVE


def test_weights_vanish_at_walls_and_beyond(walls):
    lower, upper = walls
    x = torch.linspace(-3.02, 5.03, 400, dtype=DOUBLE)[:, None]
    h, slope = boundary_weight(x, Real((1,), lower, upper))
    expected = torch.ones_like(x)
    if lower is not None:
        expected = torch.minimum(expected, x - lower)
    if upper is not None:
        expected = torch.minimum(expected, upper - x)
    torch.testing.assert_close(h, expected.clamp_min(0))
    numeric = finite_difference(lambda y: boundary_weight(y, Real((1,), lower, upper))[0].sum(), x)
    torch.testing.assert_close(slope, numeric, atol=1e-6, rtol=0)


def test_noise_beyond_the_walls_counts_for_nothing(walls):
    """Jitter carries rows there; what the model is there is nobody's concern."""
    lower, upper = walls
    energy = walled(3, lower, upper)
    beyond = -2.0 if lower is not None else 2.0
    value = ExactScoreMatching(energy).rowwise(torch.full((2, 3), beyond, dtype=DOUBLE), seeded())
    assert torch.equal(value, torch.zeros_like(value))
    at_wall = torch.full((2, 3), lower if lower is not None else upper, dtype=DOUBLE)
    assert ExactScoreMatching(energy).rowwise(at_wall, seeded()).isfinite().all()


# ------------------------------------------------------------------------------
# In training
# ------------------------------------------------------------------------------


def test_looks_take_no_step_of_spectral_norms():
    """The power method goes on with training, and only with that."""
    energy = neural(network=MLP((5, 4), spectral_norm=True))
    objective, x = SlicedScoreMatching(energy).train(), rows(3)
    before = copy.deepcopy(objective.state_dict())

    def moved():
        return [
            key for key, value in objective.state_dict().items() if not value.equal(before[key])
        ]

    objective.monitor(Batch(x), None, seeded())
    assert moved() == []
    assert objective.training
    assert energy.network.layers[0].training
    objective.eval().validation_loss(Batch(x), None, seeded())
    assert moved() == []
    objective.train()(Batch(x), None, seeded())
    assert moved()


@pytest.mark.parametrize("batch", [1, 7])
def test_batches_of_any_size(batch):
    for objective in (
        ExactScoreMatching(neural()),
        SlicedScoreMatching(neural()),
        DenoisingScoreMatching(neural(), 0.3),
        MultiscaleScoreMatching(neural(noise_levels=LEVELS), *LEVELS),
    ):
        value = objective(Batch(rows(3, batch)), None, seeded()).value
        assert value.shape == ()
        assert value.isfinite()
        torch.testing.assert_close(value, objective.rowwise(rows(3, batch), seeded()).mean())


def test_work_grows_with_rows_and_directions():
    energy = neural()
    objectives = [
        SlicedScoreMatching(energy),
        SlicedScoreMatching(energy, 2),
        ExactScoreMatching(energy),
    ]
    work = [objective.work(10) for objective in objectives]
    assert sorted(work) == work
    assert work[0] > 10 * sum(p.numel() for p in energy.parameters())
    for objective in (*objectives, DenoisingScoreMatching(energy, 0.3)):
        assert objective.work(20) == pytest.approx(2 * objective.work(10))


def test_sigma_has_the_precision_of_the_energy():
    for energy in (neural(), neural().float()):
        like = next(energy.parameters())
        for sigma in (0.3, torch.full((3,), 0.3), torch.full((3,), 0.3, dtype=DOUBLE)):
            objective = DenoisingScoreMatching(energy, sigma)
            assert objective.sigma.dtype == like.dtype
            loss = objective(Batch(rows(3).to(like)), None, seeded())
            assert loss.value.dtype == like.dtype
    assert "sigma" not in objective.state_dict()  # a setting, no weight


# ------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.0, -0.3, math.nan, math.inf, [0.3, 0.0, 0.2]])
def test_noise_is_positive(sigma):
    with pytest.raises(ValueError, match="sigma must be"):
        DenoisingScoreMatching(neural(), torch.tensor(sigma, dtype=DOUBLE))


@pytest.mark.parametrize(
    "levels", [(0.5, 0.5), (0.5, 0.1), (0.0, 1.0), (-1.0, 1.0), (0.1, math.inf), (math.nan, 1.0)]
)
def test_levels_are_in_order(levels):
    with pytest.raises(ValueError, match="0 < sigma_min < sigma_max"):
        MultiscaleScoreMatching(neural(noise_levels=LEVELS), *levels)


OBJECTIVES = {
    "exact": ExactScoreMatching,
    "sliced": SlicedScoreMatching,
    "denoising": lambda energy: DenoisingScoreMatching(energy, 0.3),
    "multiscale": lambda energy: MultiscaleScoreMatching(energy, *LEVELS),
}


@pytest.mark.parametrize("name", ["denoising", "multiscale"])
def test_noise_does_not_know_walls(walls, name):
    with pytest.raises(ValueError, match="out of the bounds.*exact or sliced"):
        OBJECTIVES[name](walled(3, *walls))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_binary_rows_have_no_score(name):
    energy = make_rbm(3, 2)
    assert isinstance(energy.domain, Binary)
    with pytest.raises(TypeError, match="Score matching needs real rows"):
        OBJECTIVES[name](energy)
