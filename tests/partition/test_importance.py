"""log Z by importance and bridge sampling: accuracy, calibrated errors, warnings and refusals."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm.base import Binary, Categorical, Mixed, Real
from skebm.distributions import ChowLiuTree, Gaussian, IndependentBernoulli, Uniform
from skebm.energies import BoltzmannMachine
from skebm.partition.bridge import BridgeSampling, bridge
from skebm.partition.checks import check_base, check_proper, default_base, default_sampler
from skebm.partition.importance import ImportanceSampling, log_weights, pareto_k
from skebm.samplers import HMC, MALA, Blocks, Gibbs, GibbsWithGradients, Langevin
from tests.support.oracle import (
    DOUBLE,
    Enumerated,
    assert_calibrated,
    bits,
    make_rbm,
    make_tree_rbm,
    seeded,
    z_scores,
)
from tests.support.targets import (
    FunctionEnergy,
    LinearInABox,
    Normal,
    OneHot,
    Polynomial,
    Quadratic,
    spelled_out,
)
from tests.support.tiers import full, leading

REPEATS = 100


# ------------------------------------------------------------------------------
# Models whose log Z is known
# ------------------------------------------------------------------------------


def normal(d=50):
    generator = seeded(5)
    factor = torch.randn(d, d, generator=generator, dtype=DOUBLE) / d**0.5
    cov = factor @ factor.t() + 0.3 * torch.eye(d, dtype=DOUBLE)
    return Normal(torch.randn(d, generator=generator, dtype=DOUBLE), cov)


NORMAL = normal()
NORMAL_ENERGY = Quadratic(NORMAL.mean, NORMAL.cov)
NORMAL_LOG_Z = float(torch.logdet(2 * math.pi * NORMAL.cov)) / 2

CENTRES = torch.tensor([[-3.0, 0.0], [2.0, 1.0], [0.0, -2.5]], dtype=DOUBLE)


def mixture(x):
    """Energy of a mixture of three normal distributions in the plane."""
    distance = (x[:, None] - CENTRES.to(x)).square().sum(2)
    width, height = x.new_tensor([1.0, 0.5, 0.8]), x.new_tensor([0.0, 1.0, -0.5])
    return -(height - distance / (2 * width.square())).logsumexp(1)


def grid_log_z(energy, reach=12.0, n=1201):
    """By quadrature over a square."""
    at = torch.linspace(-reach, reach, n, dtype=DOUBLE)
    with torch.no_grad():
        total = (-energy(torch.cartesian_prod(at, at))).logsumexp(0)
    return float(total) + 2 * math.log(2 * reach / (n - 1))


MIXTURE = FunctionEnergy(mixture, Real((2,)))
MIXTURE_LOG_Z = grid_log_z(MIXTURE, n=401)
MIXTURE_BASE = Gaussian(torch.zeros(2, dtype=DOUBLE), 3.0)


def draw_mixture(n, seed):
    """Exact draws, by rejection sampling from a wider normal distribution."""
    x = MIXTURE_BASE.sample(40 * n, seeded(seed))
    log_ratio = -mixture(x) - MIXTURE_BASE.log_prob(x)
    u = torch.rand(len(x), generator=seeded(seed + 10_000), dtype=DOUBLE)
    accepted = x[u.log() < log_ratio - 5.4]
    assert log_ratio.max() < 5.4
    assert len(accepted) >= n
    return accepted[:n]


@pytest.fixture(scope="module")
def rbm():
    return make_rbm(9, 6, scale=0.8)


@pytest.fixture(scope="module")
def states(rbm):
    with torch.no_grad():
        return Enumerated(rbm)


@pytest.fixture
def _unchecked(monkeypatch):
    monkeypatch.setattr("skebm.partition.checks.check_proper", lambda *args, **kwargs: None)


# Of many runs on one energy, which others find proper: a check takes longer than many estimates.
once_checked = pytest.mark.usefixtures("_unchecked")


def importance_runs(energy, n=REPEATS, n_samples=1000, **kwargs):
    estimator = ImportanceSampling(n_samples)
    return [estimator.estimate(energy, generator=seeded(s), **kwargs) for s in range(n)]


@full
@once_checked
def test_importance_knows_its_error_in_fifty_columns():
    wide = Gaussian(NORMAL.mean, covariance=1.15 * NORMAL.cov)
    runs = importance_runs(NORMAL_ENERGY, base=wide)
    assert_calibrated(z_scores(runs, NORMAL_LOG_Z))
    assert all(one.std_error < 0.05 for one in runs)


@full
@once_checked
def test_importance_sampling_fits_its_base_to_rows():
    runs = [
        ImportanceSampling(1000).estimate(
            NORMAL_ENERGY, x=NORMAL.draw(2000, seeded(s + 1000)), generator=seeded(s)
        )
        for s in range(30)
    ]
    z = z_scores(runs, NORMAL_LOG_Z)
    assert z.abs().max() < 4.5
    assert all(one.std_error < 0.1 for one in runs)


@full
@once_checked
def test_importance_sampling_is_calibrated_on_a_mixture():
    assert_calibrated(z_scores(importance_runs(MIXTURE, base=MIXTURE_BASE), MIXTURE_LOG_Z))


@pytest.mark.filterwarnings("ignore:The importance weights are uneven")
def test_importance_sampling_is_calibrated_on_bits(rbm, states):
    truth = states.log_z.item()
    assert_calibrated(z_scores(importance_runs(rbm, 60), truth))
    base = IndependentBernoulli(torch.linspace(-1, 1, 9, dtype=DOUBLE))
    assert_calibrated(z_scores(importance_runs(rbm, 60, base=base), truth))


@pytest.mark.parametrize(
    "energy",
    leading(
        1, [OneHot(), Polynomial(Binary((6,))), Polynomial(Binary((2, 3))), make_tree_rbm(6, 4)]
    ),
    ids=["levels", "bits", "image", "tree"],
)
@pytest.mark.parametrize("cls", [ImportanceSampling, BridgeSampling])
def test_any_discrete_energy_is_accepted(cls, energy):
    every = torch.cat(list(energy.domain.enumerate(dtype=DOUBLE)))
    with torch.no_grad():
        truth = (-energy(every)).logsumexp(0).item()
    estimator = cls(4000) if cls is ImportanceSampling else cls(500, n_steps=100)
    found = estimator.estimate(energy, generator=seeded(3))
    assert abs(found.value - truth) < 4 * found.std_error < 0.5


@pytest.mark.parametrize("cls", [ImportanceSampling, BridgeSampling])
def test_mass_outside_the_bounds_does_not_count(cls):
    """The energy is defined outside of the bounds as well, and must not contribute."""
    kwargs = {} if cls is ImportanceSampling else {"n_steps": 50}
    energy = LinearInABox()
    coefficient = energy.slope.detach()
    at = torch.linspace(-1, 2, 3001, dtype=DOUBLE)
    truth = sum(
        math.log(torch.trapezoid((-value).exp(), at))
        for value in (coefficient[0] * at, coefficient[1] * at + at.square())
    )
    found = cls(1000, **kwargs).estimate(energy, generator=seeded())
    assert abs(found.value - truth) < 4 * found.std_error < 0.5
    half = FunctionEnergy(lambda x: (x - 1).square().sum(1), Real((2,), lower=1.0))
    found = cls(1000, **kwargs).estimate(half, generator=seeded())
    assert abs(found.value - math.log(math.pi / 4)) < 4 * found.std_error < 0.5


# ------------------------------------------------------------------------------
# Importance sampling
# ------------------------------------------------------------------------------


@full
@once_checked
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of so few draws
def test_importance_is_unbiased_for_z():
    runs = importance_runs(MIXTURE, 400, 50, base=MIXTURE_BASE)
    ratio = torch.tensor([one.value - MIXTURE_LOG_Z for one in runs]).exp()
    error = float(ratio.std()) / len(ratio) ** 0.5
    assert error < 0.02
    assert abs(float(ratio.mean()) - 1) < 4 * error


@pytest.mark.parametrize("delta", leading(1, [0.05, 0.3]))
def test_the_lower_bound_fails_no_more_often_than_promised(delta, monkeypatch):
    """From a base so far off that most estimates are far too small."""
    monkeypatch.setattr("skebm.partition.checks.check_proper", lambda *args, **kwargs: None)
    base, n = Gaussian(torch.tensor([-2.0, -1.0], dtype=DOUBLE), 1.5), 300
    estimator = ImportanceSampling(4, delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        runs = [estimator.estimate(MIXTURE, base=base, generator=seeded(s)) for s in range(n)]
    slack = 3 * (delta * (1 - delta) / n) ** 0.5
    assert sum(one.lower > MIXTURE_LOG_Z for one in runs) / n <= delta + slack
    assert sum(one.value > MIXTURE_LOG_Z for one in runs) / n > 0.1  # the bound is needed
    for one in runs:
        assert one.lower == pytest.approx(one.value + math.log(delta))
        assert one.bound_kind == "probabilistic"
        assert math.isnan(one.upper)
        assert "mode" in one.reason


def test_importance_sampling_from_the_model_itself_is_exact():
    base = Gaussian(NORMAL.mean, covariance=NORMAL.cov)
    found = ImportanceSampling(100).estimate(NORMAL_ENERGY, base=base)
    assert found.value == pytest.approx(NORMAL_LOG_Z, abs=1e-9)
    assert found.std_error < 1e-9
    assert found.ess == pytest.approx(100)


def test_importance_sampling_is_the_mean_weight_for_any_chunk_size():
    x = MIXTURE_BASE.sample(64, seeded(1))
    with torch.no_grad():
        log_w = -MIXTURE(x) - MIXTURE_BASE.log_prob(x)
    whole = ImportanceSampling(64).estimate(MIXTURE, base=MIXTURE_BASE, generator=seeded(1))
    assert whole.value == pytest.approx(float(log_w.exp().mean().log()))
    for chunk in (1, 7, 64):
        parts = ImportanceSampling(64, chunk=chunk)
        found = parts.estimate(MIXTURE, base=MIXTURE_BASE, generator=seeded(1))
        assert abs(found.value - MIXTURE_LOG_Z) < 5 * found.std_error
        torch.testing.assert_close(log_weights(MIXTURE, MIXTURE_BASE, x, chunk), log_w)


def test_draws_of_infinite_energy_have_zero_weight():
    def half_plane(x):
        return torch.where(x[:, 0] > 0, x.square().sum(1) / 2, math.inf)

    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    found = ImportanceSampling(2000).estimate(FunctionEnergy(half_plane, Real((2,))), base=base)
    truth = math.log(math.pi)
    assert abs(found.value - truth) < 4 * found.std_error
    assert found.std_error == pytest.approx(2000**-0.5, rel=0.1)  # weights 0 or 2: s = 1 at mean 1
    assert found.ess == pytest.approx(1000, rel=0.1)


def test_a_narrow_base_gives_a_warning_of_heavy_tails():
    narrow = Gaussian(NORMAL.mean[:8], covariance=0.3 * NORMAL.cov[:8, :8])
    energy = Quadratic(NORMAL.mean[:8], NORMAL.cov[:8, :8])
    with pytest.warns(ConvergenceWarning, match="uneven.*Pareto") as caught:
        ImportanceSampling(1000).estimate(energy, base=narrow)
    assert caught[0].filename == __file__
    wide = narrow.with_covariance_times(5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImportanceSampling(1000).estimate(energy, base=wide)


def test_a_small_effective_sample_size_gives_a_warning():
    """The draws are of few states, so that weights have ties."""
    energy = make_rbm(10, 8, scale=60.0, bias=60.0)
    with pytest.warns(ConvergenceWarning, match="effective sample size.*Pareto index"):
        found = ImportanceSampling(3000).estimate(energy, generator=seeded())
    assert 1 < found.ess < 10


def test_weights_without_a_mean_give_no_estimate():
    log_w = -2 * torch.rand(4000, generator=seeded(), dtype=DOUBLE).log()
    with pytest.warns(ConvergenceWarning, match="log Z is nan.*wider"):
        found = ImportanceSampling()._estimate_of_weights(log_w, unbounded=True)
    assert math.isnan(found.value)
    assert math.isnan(found.std_error)
    assert math.isnan(found.pessimistic)
    assert "Pareto index" in found.reason
    with pytest.warns(ConvergenceWarning, match="far above this estimate"):
        assert math.isfinite(
            ImportanceSampling()._estimate_of_weights(log_w, unbounded=False).value
        )


@pytest.mark.parametrize("unbounded", [True, False])
def test_a_heavy_tail_that_carries_little_gives_no_warning(unbounded):
    """Weights of which 1 in 50 have a Pareto tail, of large effective sample size."""
    log_w = 0.05 * torch.randn(20_000, generator=seeded(), dtype=DOUBLE)
    u = torch.rand(424, generator=seeded(1), dtype=DOUBLE)
    log_w[:424] = (1.2 + 0.05 * u.pow(-1.2)).log()
    assert pareto_k(log_w) > 0.7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ImportanceSampling()._estimate_of_weights(log_w, unbounded)
    assert found.ess > 0.5 * len(log_w)
    assert found.std_error < 0.02


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9, 1.3])
def test_the_pareto_index_is_that_of_the_distribution_and_of_arviz_stats(k):
    u = torch.rand(20_000, generator=seeded(), dtype=DOUBLE)
    assert pareto_k(-k * u.log()) == pytest.approx(k, abs=0.15)
    array_stats = pytest.importorskip("arviz_stats.base", reason="needs numpy 2").array_stats
    log_w = -k * u[:1000].log() - 700  # of any size
    _, truth = array_stats.psislw(-log_w.numpy())  # takes log-likelihoods
    assert pareto_k(log_w) == pytest.approx(float(np.asarray(truth)), abs=0.02)


def test_the_pareto_index_of_equal_and_of_few_weights():
    assert pareto_k(torch.zeros(1000, dtype=DOUBLE)) == -math.inf
    assert math.isnan(pareto_k(torch.randn(24, dtype=DOUBLE, generator=seeded())))
    few = torch.tensor([0.0, 1.0, 2.0], dtype=DOUBLE).repeat(200)  # many weights are equal
    assert pareto_k(few) < 0.7


# ------------------------------------------------------------------------------
# Bridge sampling
# ------------------------------------------------------------------------------


def bridge_runs(draw, energy, n=REPEATS, n_samples=300, **kwargs):
    estimator = BridgeSampling(n_samples, exact_samples=True)
    return [
        estimator.estimate(energy, x=draw(n_samples, s + 1000), generator=seeded(s), **kwargs)
        for s in range(n)
    ]


def draw_normal(n, seed):
    return NORMAL.draw(n, seeded(seed))


@full
@once_checked
@pytest.mark.parametrize("factor", leading(1, [2.0, 0.5, 1.15]))
def test_bridge_knows_its_error_in_fifty_columns(factor):
    """From bases that are too narrow or too wide for importance sampling."""
    base = Gaussian(NORMAL.mean, covariance=factor * NORMAL.cov)
    runs = bridge_runs(draw_normal, NORMAL_ENERGY, base=base)
    assert_calibrated(z_scores(runs, NORMAL_LOG_Z))
    assert all(one.std_error < 0.4 for one in runs)


@full
@once_checked
def test_bridge_sampling_does_not_reuse_draws_that_the_base_was_fitted_to():
    """Used twice they would be too probable under the base, and log Z too small."""
    runs = bridge_runs(draw_normal, NORMAL_ENERGY)
    assert_calibrated(z_scores(runs, NORMAL_LOG_Z))
    assert all(one.std_error < 0.4 for one in runs)


@full
@once_checked
def test_bridge_knows_its_error_on_hills():
    runs = bridge_runs(draw_mixture, MIXTURE, base=MIXTURE_BASE)
    assert_calibrated(z_scores(runs, MIXTURE_LOG_Z))


@full
def test_bridge_sampling_is_calibrated_on_bits(rbm, states):
    truth = states.log_z.item()
    runs = bridge_runs(lambda n, s: states.draw(n, seeded(s)), rbm)
    assert_calibrated(z_scores(runs, truth))
    estimator = BridgeSampling(300, n_steps=30)
    chains = [estimator.estimate(rbm, generator=seeded(s)) for s in range(30)]
    assert_calibrated(z_scores(chains, truth))


@full
@once_checked
def test_bridge_sampling_runs_chains_from_the_rows():
    """All chains start near the mean, none at a draw of the model."""
    start = {"one": NORMAL.mean[None], "other": NORMAL.mean[None] + 0.1}
    sampler = HMC(0.3, n_leapfrog=5)
    base = Gaussian(NORMAL.mean, covariance=1.15 * NORMAL.cov)
    estimator = BridgeSampling(200, n_steps=25)
    runs = [
        estimator.estimate(NORMAL_ENERGY, base=base, sampler=sampler, x=start, generator=seeded(s))
        for s in range(15)
    ]
    assert all(abs(z) < 4 for z in z_scores(runs, NORMAL_LOG_Z))
    stuck = BridgeSampling(200, n_steps=1).estimate(
        NORMAL_ENERGY, base=base, sampler=HMC(1e-4), x=start, generator=seeded()
    )
    assert abs(stuck.value - NORMAL_LOG_Z) > 1  # without enough steps


def test_bridge_sampling_needs_only_the_energy():
    found = BridgeSampling(300, n_steps=40).estimate(
        FunctionEnergy(mixture, Real((2,))), generator=seeded()
    )
    assert abs(found.value - MIXTURE_LOG_Z) < 4 * found.std_error < 0.4
    assert math.isnan(found.lower)
    assert math.isnan(found.upper)
    assert found.bound_kind == "heuristic"
    assert found.reason
    assert found.pessimistic == pytest.approx(found.value + 2 * found.std_error)
    assert 10 < found.ess <= 300


@pytest.mark.parametrize("counts", [(50, 50), (20, 300), (300, 20)])
def test_the_bridge_is_the_fixed_point_of_meng_and_wong(counts):
    generator = seeded(2)
    model, base = (
        torch.randn(n, generator=generator, dtype=DOUBLE) + shift
        for n, shift in zip(counts, (1.0, -1.0), strict=True)
    )
    s1, s2 = counts[0] / sum(counts), counts[1] / sum(counts)
    r = 1.0
    for _ in range(500):
        above = (base.exp() / (s1 * base.exp() + s2 * r)).mean()
        r = float(above / (1 / (s1 * model.exp() + s2 * r)).mean())
    found = bridge(model, base)
    assert found.value == pytest.approx(math.log(r), abs=1e-10)
    f, g = base.exp() / (s1 * base.exp() + s2 * r), 1 / (s1 * model.exp() + s2 * r)
    variance = sum(float(one.var() / one.mean() ** 2) / len(one) for one in (f, g))
    assert found.std_error == pytest.approx(variance**0.5)
    assert found.ess == pytest.approx(
        min(float(one.sum() ** 2 / one.square().sum()) for one in (f, g))
    )


def test_the_bridge_is_solved_without_overlap():
    """Log weights symmetric about 3, two thousand nats apart: every term underflows."""
    model = torch.tensor([1003.0, 1004.0, 1005.0], dtype=DOUBLE)
    base = 6 - model
    assert bridge(model, base).value == pytest.approx(3.0)
    assert bridge(model, base).ess < 2


def test_bridge_sampling_from_the_model_itself_is_exact():
    base = Gaussian(NORMAL.mean, covariance=NORMAL.cov)
    (found,) = bridge_runs(draw_normal, NORMAL_ENERGY, 1, 50, base=base)
    assert found.value == pytest.approx(NORMAL_LOG_Z, abs=1e-9)
    assert found.std_error < 1e-9
    assert found.ess == pytest.approx(50)


def test_too_little_overlap_gives_a_warning():
    far = Gaussian(NORMAL.mean, covariance=6 * NORMAL.cov)
    with pytest.warns(ConvergenceWarning, match="hardly overlap") as caught:
        BridgeSampling(300, exact_samples=True).estimate(
            NORMAL_ENERGY, base=far, x=draw_normal(300, 0)
        )
    assert caught[0].filename == __file__


# ------------------------------------------------------------------------------
# Both
# ------------------------------------------------------------------------------

BOTH = {"importance": ImportanceSampling(500), "bridge": BridgeSampling(200, n_steps=20)}


@pytest.fixture(params=BOTH)
def estimator(request):
    return BOTH[request.param]


def test_log_z_shifts_with_a_constant_and_scales_with_the_unit(estimator):
    def estimate(function, unit):
        base = Gaussian(torch.zeros(2, dtype=DOUBLE), 2.5 * unit)
        energy = FunctionEnergy(function, Real((2,)))
        return estimator.estimate(energy, base=base, sampler=MALA(0.1 * unit), generator=seeded())

    plain = estimate(mixture, 1.0)
    higher = estimate(lambda x: mixture(x) + 321.5, 1.0)
    assert higher.value == pytest.approx(plain.value - 321.5, abs=1e-8)
    assert higher.std_error == pytest.approx(plain.std_error)
    # Powers of 2 are exact in floating point.
    if isinstance(estimator, ImportanceSampling):
        wider = estimate(lambda x: mixture(x / 1024), 1024.0)
        assert wider.value == pytest.approx(plain.value + 20 * math.log(2), abs=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # few draws
def test_single_precision_is_accurate(estimator):
    energy = FunctionEnergy(mixture, Real((2,)), torch.float32)
    found = estimator.estimate(energy, base=MIXTURE_BASE, generator=seeded())  # a base in double
    assert abs(found.value - MIXTURE_LOG_Z) < 4 * found.std_error < 1
    again = estimator.estimate(energy, x=draw_mixture(50, 1), generator=seeded())
    assert abs(again.value - MIXTURE_LOG_Z) < 4 * again.std_error < 1


def test_the_generator_is_the_only_randomness(estimator):
    def value(seed):
        return estimator.estimate(MIXTURE, base=MIXTURE_BASE, generator=seeded(seed)).value

    before = torch.get_rng_state()
    first = value(1)
    torch.manual_seed(99)
    second = value(1)
    torch.set_rng_state(before)
    assert first == second != value(2)
    assert torch.equal(torch.get_rng_state(), before)
    repeated = {estimator.estimate(MIXTURE, base=MIXTURE_BASE).value for _ in range(2)}
    assert len(repeated) == 1


def test_energy_rows_base_and_parameters_are_not_modified(estimator):
    network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5)).double()

    def confined(x):
        return network(x).tanh().sum(1) + x.square().sum(1) / 2

    energy = FunctionEnergy(confined, Real((2,)))
    energy.network = network
    energy.train()
    network[1].eval()
    energy.zero.grad = torch.full_like(energy.zero, 3.0)
    x = draw_mixture(20, 0)
    rows, params, base = x.clone(), dict(vars(estimator)), copy_of(MIXTURE_BASE)
    estimator.estimate(energy, base=MIXTURE_BASE, x=x, generator=seeded())
    assert energy.training
    assert network.training
    assert not network[1].training
    assert energy.zero.grad == 3.0
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert torch.equal(x, rows)
    assert vars(estimator) == params
    assert all(torch.equal(vars(MIXTURE_BASE)[name], value) for name, value in base.items())


def copy_of(base):
    return {k: v.clone() for k, v in vars(base).items() if isinstance(v, torch.Tensor)}


def test_dropout_is_off(estimator):
    """In training mode energies would be random."""
    drop = torch.nn.Dropout(0.5)
    energy = FunctionEnergy(lambda x: drop(x).square().sum(1) / 2, Real((2,)))
    energy.drop = drop
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    found = estimator.estimate(energy, base=base, generator=seeded())
    assert found.value == pytest.approx(math.log(2 * math.pi), abs=1e-9)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"base": "uniform"}, TypeError, r"skebm\.distributions\.Gaussian"),
        ({"base": Gaussian(torch.zeros(3), 1.0)}, ValueError, r"shape \(3,\)"),
        ({"base": Uniform(Real((2,), -9.0, 9.0))}, ValueError, "leaves out"),
        ({"base": IndependentBernoulli(torch.zeros(2))}, ValueError, "leaves out"),
        ({"x": torch.zeros(5, 3)}, ValueError, r"shape \(n, 2\)"),
        ({"x": torch.zeros(2)}, ValueError, r"shape \(n, 2\)"),
        ({"x": torch.zeros(0, 2)}, ValueError, "at least 1"),
        ({"x": {"data": torch.zeros(0, 2)}}, ValueError, "data"),
        ({"x": {}}, ValueError, "no rows"),
        ({"x": np.zeros((5, 2))}, TypeError, "tensor"),
        ({"x": torch.tensor([[0.0, 0.0], [math.nan, 0.0]])}, ValueError, "Row 1"),
    ],
)
def test_bad_arguments_are_refused(estimator, kwargs, error, message):
    with pytest.raises(error, match=message):
        estimator.estimate(MIXTURE, **kwargs)


def test_nan_energies_are_refused(estimator):
    for domain in (Real((2,)), Real((2,), -1.0, 1.0), Binary((2,))):
        energy = FunctionEnergy(lambda x: x.sum(1) * math.nan, domain)
        with pytest.raises(FloatingPointError, match="nan"):
            estimator.estimate(energy)


def test_energies_of_a_wrong_shape_are_refused(estimator):
    for domain in (Real((2,)), Binary((2,))):
        with pytest.raises(ValueError, match="one energy per row"):
            estimator.estimate(FunctionEnergy(lambda x: x.square(), domain))


def test_what_is_no_energy_is_refused(estimator):
    with pytest.raises(TypeError, match="not an Energy"):
        estimator.estimate(torch.nn.Linear(2, 1))


def test_improper_energies_are_refused_by_check_and_estimate(estimator):
    energy = FunctionEnergy(lambda x: x.sum(1), Real((2,)))
    for call in (estimator.check, estimator.estimate):
        with pytest.raises(ValueError, match="no finite integral"):
            call(energy)
    estimator.check(MIXTURE)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ImportanceSampling(1), "n_samples"),
        (ImportanceSampling(10.0), "n_samples"),
        (ImportanceSampling(10, delta=0.0), "delta"),
        (ImportanceSampling(10, delta=1.1), "delta"),
        (ImportanceSampling(10, chunk=0), "chunk"),
        (BridgeSampling(1), "n_samples"),
        (BridgeSampling(10, n_steps=0), "n_steps"),
        (BridgeSampling(10, exact_samples=True), "exact_samples"),
    ],
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        bad.estimate(MIXTURE)


def test_bridge_sampling_refuses_unsuitable_samplers(rbm):
    quick = BridgeSampling(10, n_steps=2)
    with pytest.raises(ValueError, match="biased"):
        quick.estimate(MIXTURE, sampler=Langevin(0.1))
    with pytest.raises(TypeError, match="samples Binary or Categorical"):
        quick.estimate(MIXTURE, sampler=GibbsWithGradients())
    with pytest.raises(TypeError, match="samples Real"):
        quick.estimate(rbm, sampler=HMC())


def test_a_base_without_draws_near_the_model_is_refused():
    ring = FunctionEnergy(
        lambda x: torch.where(x[:, 0].abs() > 50, x.square().sum(1), math.inf), Real((2,))
    )
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    with pytest.raises(ValueError, match="The model has no mass at any"):
        ImportanceSampling(100).estimate(ring, base=base)
    x = torch.tensor([[51.0, 0.0]], dtype=DOUBLE).repeat(4, 1)
    with pytest.raises(ValueError, match="The model has no mass at any"):
        BridgeSampling(100, exact_samples=True).estimate(ring, base=base, x=x)


# ------------------------------------------------------------------------------
# Propriety
# ------------------------------------------------------------------------------


def student(nu):
    return lambda x: (nu + x.shape[1]) / 2 * torch.log1p(x.square().sum(1) / nu)


def naive_mixture(x):
    """Far from the modes it is minus the logarithm of an underflow to 0."""
    return -sum((-(x - m).square().sum(1) / 2).exp() for m in (-5.0, 7.0)).log()


def funnel(x):
    v, rest = x[:, 0], x[:, 1:]
    return v.square() / 18 + rest.square().sum(1) / (2 * v.exp()) + rest.shape[1] * v / 2


PROPER = {
    "narrow": lambda x: 5e5 * x.square().sum(1),
    "wide": lambda x: x.square().sum(1) / 2e8,
    "far": lambda x: (x - 1e3).square().sum(1) / 2,
    "narrow and far": lambda x: 5e5 * (x - 1e3).square().sum(1),
    "student": student(3.0),
    "heavy student": student(0.5),
    "cauchy": student(1.0),
    "cauchy columns": lambda x: x.square().log1p().sum(1),
    "laplace": lambda x: x.abs().sum(1),
    "mixture": lambda x: -torch.stack([-(x - m).square().sum(1) for m in (-5, 7)]).logsumexp(0),
    "naive mixture": naive_mixture,
    "quartic": lambda x: x.pow(4).sum(1),
    "overflowing powers": lambda x: (x.pow(8) - x.pow(6)).sum(1),
}
PLANE = {
    "banana": lambda x: x[:, 0] ** 2 / 8 + (x[:, 1] - x[:, 0] ** 2 / 2) ** 2,
    "funnel": funnel,
    "mixture": mixture,
}


def network(activation, d, seed):
    generator = seeded(seed)

    def weight(*shape):
        return torch.randn(shape, generator=generator, dtype=DOUBLE) / shape[0] ** 0.5

    first, second, last = weight(d, 64), weight(64, 64), weight(64)
    return lambda x: activation(activation(x.to(DOUBLE) @ first) @ second) @ last


def antisymmetric(f, x):
    """Decreases along -x where it increases along x."""
    return f(x) - f(-x)


IMPROPER = {
    "constant": lambda x: 0 * x.sum(1),
    "linear": lambda x: x.sum(1),
    "negative quadratic": lambda x: -x.square().sum(1),
    "decreases far out": lambda x: (x.pow(6) - x.pow(8)).sum(1),
    "waves": lambda x: x.sin().sum(1),
    "slow": lambda x: 0.99 * x.shape[1] * x.square().sum(1).log1p() / 2,
    "half": lambda x: x.relu().square().sum(1),
    "kernel with a floor": lambda x: -((-x.square().sum(1)).exp() + 1e-30).log(),
    "tanh": lambda x: network(torch.tanh, x.shape[1], 0)(x),
    "relu": lambda x: antisymmetric(network(torch.relu, x.shape[1], 1), x),
}


@pytest.mark.parametrize("dtype", leading(1, [torch.float32, DOUBLE]))
@pytest.mark.parametrize("seeds", leading(1, [range(2), range(2, 5)]))
@pytest.mark.parametrize("name", PROPER)
def test_proper_energies_pass(name, dtype, seeds):
    for shape in ((1,), (2,), (100,)):
        for seed in seeds:
            check_proper(FunctionEnergy(PROPER[name], Real(shape), dtype), seeded(seed))


@pytest.mark.parametrize("dtype", leading(1, [torch.float32, DOUBLE]))
@pytest.mark.parametrize("seeds", leading(1, [range(5), range(5, 20)]))
@pytest.mark.parametrize("name", PLANE)
def test_proper_energies_of_the_plane_pass(name, dtype, seeds):
    for seed in seeds:
        check_proper(FunctionEnergy(PLANE[name], Real((2,)), dtype), seeded(seed))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("name", IMPROPER)
def test_improper_energies_are_refused(name, dtype):
    for d in (2, 100):
        energy = FunctionEnergy(IMPROPER[name], Real((d,)), dtype)
        for seed in range(3):
            with pytest.raises(ValueError, match=r"of 128 rays.*bounds.*base.*confinement"):
                check_proper(energy, seeded(seed))
        check_proper(FunctionEnergy(IMPROPER[name], Real((d,), -2.0, 2.0), dtype))


def cone(x):
    """Zero in a cone of one degree around the first axis."""
    along, across = x[:, 0], (x[:, 1:].square().sum(1) + 1e-30).sqrt()
    return (across - 0.0175 * along).relu().square() + (-along).relu().square()


def sector(x):
    """Zero in a sector of one degree, with a jump: no gradient points to it."""
    angle = torch.atan2(x[:, 1], x[:, 0])
    return torch.where((angle - 1).abs() < math.radians(0.5), 0 * angle, x.square().sum(1))


OBLIQUE = {
    "valley": (lambda x: (x[:, 0] - x[:, 1]).square() + x[:, 2:].square().sum(1), 2),
    "valley of five": (lambda x: (3 * x[:, 0] - x[:, 1]).square() + x[:, 2:].square().sum(1), 5),
    "cone": (cone, 3),
    "sector": (sector, 2),
    "logarithm": (lambda x: x.square().sum(1).log1p() / 2, 1),
    "logarithm of five": (lambda x: 5 * x.square().sum(1).log1p() / 2, 5),
}


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("name", OBLIQUE)
def test_energies_that_are_flat_in_an_oblique_direction_are_refused(name, dtype):
    f, d = OBLIQUE[name]
    with pytest.raises(ValueError, match="no finite integral"):
        check_proper(FunctionEnergy(f, Real((d,)), dtype))


def test_directions_of_the_rows_are_checked():
    """A valley in more columns than curvatures are computed for."""
    direction = torch.randn(300, generator=seeded(), dtype=DOUBLE)
    direction /= direction.norm()

    def valley(x):
        along = x.to(DOUBLE) @ direction
        return (x.square().sum(1) - along.square()).clamp_min(0).sqrt()

    x = torch.randn(10, 1, generator=seeded(1), dtype=DOUBLE) * direction
    with pytest.raises(ValueError, match="no finite integral"):
        check_proper(FunctionEnergy(valley, Real((300,))), x=x)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_oblique_normal_distributions_of_large_condition_number_pass(dtype):
    for d in (2, 30):
        q = torch.linalg.qr(torch.randn(d, d, dtype=DOUBLE, generator=seeded(d)))[0]
        scale = torch.logspace(0, 3, d, dtype=DOUBLE)
        domain = Real((d,))

        def normal(x, q=q, scale=scale):
            return (x.to(DOUBLE) @ q / scale).square().sum(1)

        check_proper(FunctionEnergy(normal, domain, dtype))


@pytest.mark.parametrize("free", [0, 7])
def test_an_energy_that_ignores_a_column_is_refused(free):
    mask = torch.arange(30) != free
    energy = FunctionEnergy(lambda x: x[:, mask].square().sum(1), Real((30,)))
    with pytest.raises(ValueError, match="no finite integral"):
        check_proper(energy)


def test_a_network_is_proper_with_a_base():
    f, q = network(torch.relu, 5, 1), Gaussian(torch.zeros(5, dtype=DOUBLE), 1.0)
    check_proper(FunctionEnergy(lambda x: f(x) - q.log_prob(x), Real((5,))))
    images = FunctionEnergy(lambda x: x.square().sum((1, 2, 3)), Real((2, 3, 3)))
    check_proper(images)


@pytest.mark.parametrize("bounds", [(0.0, None), (None, 0.0), (5.0, None)])
def test_half_bounded_domains_are_tested_inside_only(bounds):
    towards = 1.0 if bounds[0] is not None else -1.0
    check_proper(FunctionEnergy(lambda x: towards * x.sum(1), Real((3,), *bounds)))
    with pytest.raises(ValueError, match="no finite integral"):
        check_proper(FunctionEnergy(lambda x: -towards * x.sum(1), Real((3,), *bounds)))


def test_propriety_of_mixed_rows_depends_on_the_unbounded_part():
    domain = Mixed((Binary((3,)), Real((2,)), Real((2,), 0.0, 1.0)))
    check_proper(FunctionEnergy(lambda x: x[:, 3:5].square().sum(1), domain))
    with pytest.raises(ValueError, match="no finite integral"):
        check_proper(FunctionEnergy(lambda x: x[:, :3].sum(1) + x[:, 5:].square().sum(1), domain))
    check_proper(
        FunctionEnergy(lambda x: 0 * x.sum(1), Mixed((Binary((3,)), Real((2,), 0.0, 1.0))))
    )


def test_check_proper_does_not_modify_the_energy_or_global_generator():
    energy = FunctionEnergy(mixture, Real((2,))).train()
    before = torch.get_rng_state()
    check_proper(energy)
    assert energy.training
    assert energy.zero.grad is None
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------
# Bases and samplers
# ------------------------------------------------------------------------------


def test_the_base_of_the_energy_is_the_default():
    tree = make_tree_rbm(5, 3)
    assert default_base(tree) is tree.base
    assert isinstance(default_base(tree), ChowLiuTree)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    ("domain", "kind"),
    [
        (Binary((4,)), IndependentBernoulli),
        (Binary((2, 2)), Uniform),
        (Categorical((2, 3)), Uniform),
        (Real((2, 2), 0.0, 1.0), Uniform),
        (Mixed((Binary((2,)), Real((1,), 0.0, 1.0))), Uniform),
        (Real((3,)), Gaussian),
        (Real((2, 2), lower=4.0), Gaussian),
    ],
)
def test_every_domain_has_a_base_that_covers_it(domain, kind, dtype):
    energy = FunctionEnergy(lambda x: x.flatten(1).square().sum(1), domain, dtype)
    base = default_base(energy)
    assert type(base) is kind
    assert base.sample(2, seeded()).dtype == dtype
    check_base(energy, base)
    x = base.sample(400, seeded())
    assert domain.contains(x).any()
    check_base(energy, base, x[domain.contains(x)])


def test_unbounded_mixed_rows_have_no_default_base():
    energy = FunctionEnergy(lambda x: x.square().sum(1), Mixed((Binary((2,)), Real((1,)))))
    with pytest.raises(ValueError, match="pass one"):
        default_base(energy)
    assert isinstance(default_sampler(energy), Blocks)


def test_a_fitted_base_is_wider_than_the_rows():
    x = NORMAL.draw(50_000, seeded())
    fitted = default_base(NORMAL_ENERGY, {"one": x[:25_000], "other": x[25_000:].float()})
    torch.testing.assert_close(fitted.mean, NORMAL.mean, atol=0.03, rtol=0)
    ratio = fitted.covariance.diagonal() / NORMAL.cov.diagonal()
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1 + 50**-0.5), atol=0.03, rtol=0)
    image = default_base(FunctionEnergy(mixture, Real((1, 2, 1))), x[:, :2].view(-1, 1, 2, 1))
    assert image.domain == Real((1, 2, 1))
    torch.testing.assert_close(
        image.scale.flatten().square() / NORMAL.cov.diagonal()[:2],
        torch.full((2,), 1.5, dtype=DOUBLE),
        atol=0.03,
        rtol=0,
    )


def test_bases_must_cover_the_domain_of_the_energy():
    box = FunctionEnergy(lambda x: x.sum(1), Real((2,), -1.0, 1.0))
    for good in (Uniform(Real((2,), -1.0, 1.0)), Uniform(Real((2,), -2.0, 1.0))):
        check_base(box, good)
    check_base(box, Gaussian(torch.zeros(2), 1.0))
    for low, high in ((-1.0, 0.9), (-0.9, 1.0)):
        with pytest.raises(ValueError, match="leaves out"):
            check_base(box, Uniform(Real((2,), low, high)))
    levels = OneHot((2, 3))
    check_base(levels, Uniform(Categorical((2, 3))))
    with pytest.raises(ValueError, match="leaves out"):
        check_base(levels, Uniform(Categorical((3, 2))))
    mixed = FunctionEnergy(lambda x: x.sum(1), Mixed((Binary((2,)), Real((1,), 0.0, 1.0))))
    check_base(mixed, Uniform(Mixed((Binary((2,)), Real((1,), 0.0, 2.0)))))
    for parts in ((Binary((2,)), Real((1,), 0.0, 0.5)), (Binary((1,)), Real((2,), 0.0, 1.0))):
        with pytest.raises(ValueError, match="leaves out"):
            check_base(mixed, Uniform(Mixed(parts)))


def test_a_base_without_probability_where_the_model_has_some_is_refused(rbm):
    never = torch.zeros(9, dtype=DOUBLE)
    never[4] = -math.inf
    base = IndependentBernoulli(never)
    with pytest.raises(ValueError, match="uniform draw"):
        check_base(rbm, base)
    with pytest.raises(ValueError, match="no probability"):
        ImportanceSampling(10).estimate(rbm, base=base)
    x = torch.zeros(3, 9, dtype=DOUBLE)
    x[2, 4] = 1
    with pytest.raises(ValueError, match="row 2 of x"):
        check_base(rbm, base, x)
    # The model may have no mass there either.
    restricted = FunctionEnergy(
        lambda x: torch.where(x[:, 4] > 0, math.inf, x.sum(1)), Binary((9,))
    )
    check_base(restricted, base)


def test_default_samplers_are_exact_and_fit_the_energy(rbm):
    pairs = BoltzmannMachine(torch.ones(4, 4))
    kinds = {rbm: Gibbs, pairs: Gibbs, OneHot(): GibbsWithGradients, MIXTURE: HMC}
    for energy, kind in kinds.items():
        sampler = default_sampler(energy)
        assert type(sampler) is kind
        assert sampler.exact
        sampler.check(energy)


@full
def test_targets_have_the_stated_distributions():
    """Exact draws have the masses of the three components."""
    x = draw_mixture(2000, 7)
    nearest = (x[:, None] - CENTRES).square().sum(2).argmin(1).bincount() / len(x)
    at = torch.linspace(-12, 12, 801, dtype=DOUBLE)
    grid = torch.cartesian_prod(at, at)
    p = (-mixture(grid)).softmax(0)
    where = (grid[:, None] - CENTRES).square().sum(2).argmin(1)
    truth = torch.zeros(3, dtype=DOUBLE).index_add_(0, where, p)
    assert (nearest - truth).abs().max() < 0.04
    assert spelled_out(OneHot()).p.sum() == pytest.approx(1.0)
    assert len(bits(3)) == 8
