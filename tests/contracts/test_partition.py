"""All estimates of log Z: accurate on models that can be enumerated, with calibrated errors."""

import inspect
import math
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skebm.base import Binary, Categorical, Energy, LogPartition, PartitionEstimator, Real
from skebm.distributions import IndependentBernoulli
from skebm.energies import BernoulliRBM, Tilted, annealing_path
from skebm.partition import (
    AIS,
    AISBracket,
    Bethe,
    BridgeSampling,
    Exact,
    ImportanceSampling,
    PerturbAndMAP,
    Quadrature,
    ReverseAIS,
    TrajectoryAIS,
    TreeReweighted,
    annealed,
    log_z_cost,
)
from skebm.partition.annealed import KernelSteps, Schedule, adaptive_schedule, anneal
from skebm.partition.bracket import Runs
from skebm.partition.importance import summarise
from skebm.samplers import MALA, Gibbs
from tests.support.discovery import without_case
from tests.support.oracle import (
    DOUBLE,
    Enumerated,
    assert_calibrated,
    bits,
    joint_energy,
    make_rbm,
    seeded,
    through,
    z_scores,
)
from tests.support.tiers import full, leading

D, H = 10, 8


class Case(NamedTuple):
    """An estimator with small settings; `make` takes its parameters."""

    make: Callable[..., PartitionEstimator]
    anneals: bool = False
    samples: bool | None = True  # None: starts are random, the result is not
    converges: bool = True  # to log Z, not to a bound or an approximation
    binary: bool = True  # or takes real rows only, and is tested in a file of its own

    def tolerance(self, found, least):
        """Largest error of an estimate for these small models."""
        return max(4 * found.std_error, least) if self.converges else 6.0


def small(cls, **defaults):
    return lambda **kwargs: cls(**(defaults | kwargs))


class ThroughModels(TrajectoryAIS):
    """Through models with a part of the weights of an RBM, to it."""

    def estimate(self, energy, **kwargs):
        return super().estimate(through(energy), **kwargs)


CASES = {
    Exact: Case(Exact, samples=False),
    AIS: Case(small(AIS, n_chains=50, n_betas=60), anneals=True),
    ReverseAIS: Case(small(ReverseAIS, n_betas=60, exact_samples=True), anneals=True),
    AISBracket: Case(small(AISBracket, n_chains=50, n_betas=60, n_steps=20), anneals=True),
    ImportanceSampling: Case(small(ImportanceSampling, n_samples=2000)),
    BridgeSampling: Case(small(BridgeSampling, n_samples=500, n_steps=20)),
    TrajectoryAIS: Case(small(ThroughModels, n_chains=100, n_betas=60, reverse=True)),
    Bethe: Case(Bethe, samples=None, converges=False),
    TreeReweighted: Case(TreeReweighted, samples=False, converges=False),
    PerturbAndMAP: Case(PerturbAndMAP, converges=False),
    Quadrature: Case(Quadrature, samples=False, binary=False),  # tests/partition/test_quadrature.py
}
ANNEALING = [cls for cls, case in CASES.items() if case.anneals]


@pytest.fixture(params=[cls for cls in CASES if CASES[cls].binary], ids=lambda cls: cls.__name__)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def energy():
    """An RBM of trained size; tests must not modify it."""
    return make_rbm(D, H)


@pytest.fixture(scope="module")
def target(energy):
    with torch.no_grad():
        return Enumerated(energy)


def exact_rows(target, n=50, seed=1):
    return target.draw(n, seeded(seed))


def test_every_partition_estimator_has_a_case():
    assert (
        without_case(PartitionEstimator, CASES, "CASES in tests/contracts/test_partition.py") == []
    )


# ------------------------------------------------------------------------------
# All of them
# ------------------------------------------------------------------------------


def test_estimates_are_close_to_log_z_and_well_formed(case, energy, target):
    truth = target.log_z.item()
    found = case.make().estimate(energy, x=exact_rows(target), generator=seeded())
    assert isinstance(found, LogPartition)
    assert all(type(number) is float for number in (*found[:4], found.ess))
    assert abs(found.value - truth) <= case.tolerance(found, 1e-9)
    assert not found.std_error >= 0.6
    assert found.bound_kind in ("exact", "certain", "probabilistic", "heuristic")
    if found.bound_kind == "exact":
        assert found.lower == found.value == found.upper
    assert not found.lower > min(truth, found.value)
    assert not found.upper < max(truth, found.value)
    assert math.isnan(found.lower) + math.isnan(found.upper) <= bool(found.reason) * 2
    assert not found.ess <= 1
    assert not found.pessimistic < found.value


def test_the_generator_is_the_only_randomness(case, energy, target):
    def estimate(seed):
        return case.make().estimate(energy, x=exact_rows(target), generator=seeded(seed))

    before = torch.get_rng_state()
    first = estimate(1)
    torch.manual_seed(99)
    second = estimate(1)
    torch.set_rng_state(before)
    other = estimate(2)
    assert first[:6] == pytest.approx(second[:6], abs=0, nan_ok=True)
    assert first.parts == second.parts
    if case.samples is not None:
        assert (first.value != other.value) == case.samples
    assert torch.equal(torch.get_rng_state(), before)


def test_estimates_without_a_generator_are_reproducible(case, energy, target):
    values = [case.make().estimate(energy, x=exact_rows(target)).value for _ in range(2)]
    assert values[0] == values[1]


def test_estimation_does_not_modify_energy_rows_or_parameters(case, target):
    energy, x = make_rbm(D, H), exact_rows(target)
    kept = x.clone(), [p.detach().clone() for p in energy.parameters()]
    energy.weight.grad = torch.full_like(energy.weight, 3.0)
    estimator = case.make()
    before = dict(vars(estimator))
    energy.train()
    estimator.estimate(energy, x=x, generator=seeded())
    assert torch.equal(x, kept[0])
    for p, value in zip(energy.parameters(), kept[1], strict=True):
        assert torch.equal(p, value)
        assert p.requires_grad
    assert torch.equal(energy.weight.grad, torch.full_like(energy.weight, 3.0))
    assert energy.visible_bias.grad is None
    assert energy.training
    assert vars(estimator) == before


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_estimators_hold_only_their_parameters(cls):
    estimator = CASES[cls].make()
    names = set(inspect.signature(cls.__init__).parameters) - {"self", "args", "kwargs"}
    assert set(vars(estimator)) == names
    assert clone(estimator).get_params() == estimator.get_params()


def test_single_precision_energies_are_accurate(case, target):
    energy = make_rbm(D, H).float()
    x = exact_rows(target).float()
    found = case.make().estimate(energy, x=x, generator=seeded())
    assert abs(found.value - target.log_z.item()) <= case.tolerance(found, 1e-4)


def test_estimates_are_exact_from_the_model_as_base(case):
    """Without weights, from a base with the biases of the model, all path weights are equal."""
    energy = make_rbm(6, 5, scale=0.0)
    b, c = energy.visible_bias.detach(), energy.hidden_bias.detach()
    base = IndependentBernoulli(b)
    x = (torch.rand(20, 6, generator=seeded(), dtype=DOUBLE) < b.sigmoid()).to(DOUBLE)
    found = case.make().estimate(energy, base=base, x=x, generator=seeded())
    truth = (b.exp().log1p().sum() + c.exp().log1p().sum()).item()
    if case.make is PerturbAndMAP:  # a mean of random maxima even here
        assert abs(found.value - truth) < 4 * found.std_error
        return
    assert found.value == pytest.approx(truth)
    assert found.std_error < 1e-10
    assert found.ess == math.inf or found.ess > 19.999


def test_a_unit_without_weights_adds_log_2(case, energy, target):
    """A hidden unit without weights or bias doubles Z, for every method."""
    wider = BernoulliRBM(D, H + 1, generator=seeded(), dtype=DOUBLE)
    with torch.no_grad():
        wider.weight.zero_()
        wider.weight[:H] = energy.weight
        wider.visible_bias.copy_(energy.visible_bias)
        wider.hidden_bias[:H] = energy.hidden_bias
    found = case.make().estimate(wider, x=exact_rows(target), generator=seeded())
    truth = target.log_z.item() + math.log(2)
    assert abs(found.value - truth) <= case.tolerance(found, 1e-9)


# ------------------------------------------------------------------------------
# LogPartition
# ------------------------------------------------------------------------------


def test_pessimistic_is_the_upper_end_or_two_standard_errors():
    bounded = LogPartition(5.0, 0.1, 4.0, 5.7, "heuristic", 10.0)
    assert bounded.pessimistic == 5.7
    assert bounded._replace(upper=math.nan).pessimistic == pytest.approx(5.2)
    assert LogPartition(5.0, 0.0, 5.0, 5.0, "exact", math.inf).pessimistic == 5.0


# ------------------------------------------------------------------------------
# Exact
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 6), (6, 3), (5, 5), (1, 4), (4, 1)])
def test_exact_equals_brute_force(shape):
    energy = make_rbm(*shape)
    found = Exact().estimate(energy)
    truth = (-joint_energy(energy, bits(shape[0]), bits(shape[1]))).flatten().logsumexp(0)
    assert found.value == pytest.approx(truth.item(), abs=1e-10)
    assert found.lower == found.upper == found.value == found.pessimistic
    assert (found.std_error, found.bound_kind, found.ess) == (0.0, "exact", math.inf)


def test_exact_sums_chunks_of_states():
    """More states than a chunk holds, with biases only."""
    energy = make_rbm(40, 17, scale=0.0, bias=2.0)
    b, c = energy.visible_bias, energy.hidden_bias
    truth = b.exp().log1p().sum() + c.exp().log1p().sum()
    assert Exact().estimate(energy).value == pytest.approx(truth.item(), abs=1e-9)


def test_exact_without_parameters_counts_the_states():
    energy = make_rbm(7, 4, scale=0.0, bias=0.0)
    assert Exact().estimate(energy).value == pytest.approx(11 * math.log(2), abs=1e-12)


@pytest.mark.parametrize("shape", [(3, 6), (6, 3)])
def test_exact_refuses_more_terms_than_max_cost(shape):
    energy = make_rbm(*shape)
    cost = 2**3 * 6  # states of the small layer times units of the other
    assert log_z_cost(energy) == pytest.approx(cost)
    assert Exact(max_cost=cost + 1).estimate(energy).std_error == 0
    with pytest.raises(ValueError, match="max_cost"):
        Exact(max_cost=cost - 1).estimate(energy)


@pytest.mark.parametrize("shape", [(2000, 60), (60, 2000), (2000, 2000), (24, 784)])
def test_exact_refuses_large_layers_by_default(shape):
    assert log_z_cost(BernoulliRBM(*shape, generator=seeded())) > Exact().max_cost


@pytest.mark.parametrize("shape", [(1500, 3), (3, 1500)])
def test_exact_accepts_one_wide_layer(shape):
    energy = make_rbm(*shape, scale=0.0)
    truth = energy.visible_bias.exp().log1p().sum() + energy.hidden_bias.exp().log1p().sum()
    assert Exact().estimate(energy).value == pytest.approx(truth.item())


def test_exact_does_not_overflow():
    energy = make_rbm(6, 4, scale=300.0, bias=300.0)
    truth = Enumerated(energy).log_z.item()
    assert truth > 710  # exp(710) overflows float64
    assert Exact().estimate(energy).value == pytest.approx(truth)


class Table(Energy):
    """Linear in the row; log Z over a domain of groups is a sum of log-sum-exps."""

    def __init__(self, domain, slope, *, trained=True):
        super().__init__()
        self.domain = domain
        if trained:
            self.slope = torch.nn.Parameter(slope)
        else:
            self.register_buffer("slope", slope)

    def forward(self, x, cond=None):
        return x @ self.slope


@pytest.mark.parametrize("trained", [True, False])
def test_exact_accepts_any_energy_that_can_be_enumerated(trained):
    """Including one without parameters, such as a spin glass with fixed couplings."""
    slope = torch.tensor([0.5, -1.0, 2.0, 0.3, 0.0], dtype=DOUBLE)
    energy = Table(Categorical((3, 2)), slope, trained=trained)
    truth = (-slope[:3]).logsumexp(0) + (-slope[3:]).logsumexp(0)
    assert Exact().estimate(energy).value == pytest.approx(truth.item())


def test_exact_refuses_a_continuous_domain():
    with pytest.raises(ValueError, match=r"max_cost|too many states"):
        Exact().estimate(Table(Real((2,)), torch.ones(2)))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_exact_accepts_a_tilted_energy(shape):
    """Its visible layer can be enumerated, whatever the cost of the hidden one."""
    field = torch.randn(shape[0], generator=seeded(3), dtype=DOUBLE)
    energy = Tilted(make_rbm(*shape), field, beta=0.6)
    truth = Enumerated(energy).log_z.item()
    assert Exact().estimate(energy).value == pytest.approx(truth)


# ------------------------------------------------------------------------------
# AIS
# ------------------------------------------------------------------------------

REPEATS = 40


@pytest.fixture(scope="module")
def forward_runs(energy):
    return [CASES[AIS].make().estimate(energy, generator=seeded(s)) for s in range(REPEATS)]


@full
def test_ais_knows_its_error(forward_runs, target):
    assert_calibrated(z_scores(forward_runs, target.log_z.item()))


def test_ais_is_unbiased_for_z(forward_runs, target):
    ratio = torch.tensor([one.value - target.log_z.item() for one in forward_runs]).exp()
    error = (ratio.std() / len(ratio) ** 0.5).item()
    assert error < 0.05
    assert abs(ratio.mean().item() - 1) < 4 * error


def test_ais_effective_sample_size_is_that_of_its_weights(forward_runs):
    """The variance of the delta method is (n / ess - 1) / (n - 1); the tail adds a little."""
    for one in forward_runs[:5]:
        assert 1 <= one.ess <= 50
        assert 1 < one.std_error**2 / ((50 / one.ess - 1) / 49) < 2


@pytest.mark.parametrize("seed", leading(1, range(4)))
def test_ais_is_accurate_for_other_models_and_bases(seed):
    energy = make_rbm(9, 7, seed=seed, scale=1.2)
    truth = Enumerated(energy).log_z.item()
    logits = torch.randn(9, generator=seeded(seed), dtype=DOUBLE)
    for base in (None, IndependentBernoulli(logits)):
        found = AIS(100, 100).estimate(energy, base=base, generator=seeded(seed))
        assert abs(found.value - truth) < 4 * found.std_error
        assert found.std_error < 0.3


def test_ais_improves_with_more_temperatures(energy):
    errors = [AIS(100, n).estimate(energy, generator=seeded()).std_error for n in (2, 10, 100)]
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]


@pytest.mark.parametrize("delta", leading(1, [0.05, 0.2]))
def test_ais_lower_bound_fails_no_more_often_than_promised(delta):
    """With so few chains and temperatures that the estimate itself is often above log Z."""
    energy = make_rbm(8, 6, scale=1.5)
    truth, n = Enumerated(energy).log_z.item(), 100
    runs = [AIS(3, 8, delta).estimate(energy, generator=seeded(s)) for s in range(n)]
    slack = 3 * (delta * (1 - delta) / n) ** 0.5
    assert sum(one.lower > truth for one in runs) / n <= delta + slack
    assert sum(one.value > truth for one in runs) / n > delta + slack  # the bound is needed
    for one in runs:
        assert math.isnan(one.upper)
        assert one.bound_kind == "probabilistic"
        assert one.lower == pytest.approx(one.value - math.log(1 / delta))


class Recording(IndependentBernoulli):
    """Keeps its draws."""

    def __init__(self, logits):
        super().__init__(logits)
        self.drawn = []  # shared by copies

    def sample(self, n, generator):
        x = super().sample(n, generator)
        self.drawn.append(x.clone())
        return x


def base_of(d, seed=5):
    return Recording(0.5 * torch.randn(d, generator=seeded(seed), dtype=DOUBLE))


def importance(energy, base, x):
    """log of exp(-F(x)) / q(x), each by its definition."""
    log_q = (x * base.logits - base.logits.exp().log1p()).sum(1)
    return ((-joint_energy(energy, x, bits(H))).logsumexp(1) - log_q).detach()


def test_ais_without_intermediate_temperatures_is_importance_sampling(energy):
    base = base_of(D)
    with pytest.warns(ConvergenceWarning, match="effective sample size of 40 annealing runs"):
        found = AIS(40, 2).estimate(energy, base=base, generator=seeded())
    (drawn,) = base.drawn
    log_w = importance(energy, base, drawn)
    w = (log_w - log_w.max()).exp()
    assert found.value == pytest.approx((log_w.logsumexp(0) - math.log(40)).item())
    assert found.ess == pytest.approx((w.sum() ** 2 / (w**2).sum()).item())
    assert found.std_error > (w.std() / w.mean() / 40**0.5).item()


@pytest.mark.parametrize("cls", ANNEALING, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("n_betas", [0, 1])
def test_fewer_than_two_temperatures_are_refused(cls, n_betas, energy, target):
    """A single temperature is that of the base, whose log Z is not that of the model."""
    with pytest.raises(ValueError, match="n_betas"):
        CASES[cls].make(n_betas=n_betas).estimate(energy, x=exact_rows(target), generator=seeded())


def test_a_single_chain_has_an_infinite_standard_error(energy):
    found = AIS(1, 20).estimate(energy, generator=seeded())
    assert math.isfinite(found.value)
    assert found.std_error == found.pessimistic == math.inf


def steep(d=10, h=8):
    """Large weights: from a uniform base, most of the length is at small inverse temperatures."""
    return make_rbm(d, h, seed=3, scale=3.0)


@full
def test_ais_is_unbiased_where_its_schedule_is_uneven():
    energy, n = steep(), 200
    truth = Enumerated(energy).log_z.item()
    runs = [AIS(20, 40).estimate(energy, generator=seeded(s)) for s in range(n)]
    ratio = torch.tensor([one.value - truth for one in runs]).exp()
    error = (ratio.std() / n**0.5).item()
    assert error < 0.1
    assert abs(ratio.mean().item() - 1) < 4 * error


@full
def test_intervals_cover_as_often_as_they_say():
    """With weights that spread over several nats."""
    energy, n = steep(12, 9), 100
    truth = Exact().estimate(energy).value
    runs = [AIS(50, 50).estimate(energy, generator=seeded(s)) for s in range(n)]
    z = z_scores(runs, truth)
    assert sum(one.std_error for one in runs) / n > 0.1
    assert (z.abs() <= 1.96).double().mean() >= 0.9
    assert 0.5 < z.std() < 1.3
    assert abs(z.mean()) < 0.5


# ------------------------------------------------------------------------------
# Standard errors
# ------------------------------------------------------------------------------


def delta_method(log_w):
    w = (log_w - log_w.max()).exp()
    return (w.std() / w.mean() / len(w) ** 0.5).item()


def test_equal_weights_have_no_error():
    found = summarise(torch.full((50,), 700.0, dtype=DOUBLE))
    assert found == pytest.approx((700.0, 0.0, 50.0))


def test_standard_errors_do_not_depend_on_the_scale_of_weights():
    log_w = torch.randn(50, generator=seeded(), dtype=DOUBLE)
    plain = summarise(log_w)
    assert summarise(log_w + 1e6) == pytest.approx(
        (plain.log_mean + 1e6, plain.std_error, plain.ess), rel=1e-6
    )
    huge = torch.tensor([-1e27, -2e27, -3e27, -4e27], dtype=DOUBLE)
    assert summarise(huge).ess == 1.0
    assert summarise(huge).std_error >= 1.0


def test_light_tails_give_the_error_of_the_delta_method():
    log_w = 0.3 * torch.randn(2000, generator=seeded(), dtype=DOUBLE)
    assert summarise(log_w).std_error == pytest.approx(delta_method(log_w), rel=0.05)


def test_standard_errors_account_for_unobserved_heavy_tails():
    """The variance of Pareto weights of index 1.5 does not exist; their mean does."""
    index, n = 1.5, 200
    u = torch.rand(n, 300, generator=seeded(), dtype=DOUBLE)
    log_w = -u.log() / index
    truth = math.log(index / (index - 1))
    covered = {"plain": 0, "ours": 0}
    for column in log_w.t():
        found = summarise(column)
        covered["plain"] += abs(found.log_mean - truth) <= 1.96 * delta_method(column)
        covered["ours"] += abs(found.log_mean - truth) <= 1.96 * found.std_error
    assert covered["plain"] < 0.8 * 300
    assert covered["ours"] > 0.82 * 300


@pytest.mark.parametrize("cls", ANNEALING, ids=lambda cls: cls.__name__)
def test_extreme_weights_give_finite_estimates_and_a_warning(cls):
    energy = make_rbm(D, H, scale=300.0, bias=300.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = (
            CASES[cls]
            .make()
            .estimate(
                energy,
                x=(torch.rand(20, D, generator=seeded()) < 0.5).to(DOUBLE),
                generator=seeded(),
            )
        )
    assert math.isfinite(found.value)
    assert math.isfinite(found.std_error)
    assert any(issubclass(w.category, ConvergenceWarning) for w in caught)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("cls", ANNEALING, ids=lambda cls: cls.__name__)
def test_energies_that_are_not_finite_are_refused(cls, bad, target):
    energy = make_rbm(D, H)
    with torch.no_grad():
        energy.visible_bias[2] = bad
    with pytest.raises(FloatingPointError, match="not finite"):
        CASES[cls].make().estimate(energy, x=exact_rows(target), generator=seeded())


# ------------------------------------------------------------------------------
# The schedule
# ------------------------------------------------------------------------------


def temperatures(energy, n_betas, n_chains=100):
    path = annealing_path(energy, IndependentBernoulli(torch.zeros(D, dtype=DOUBLE)))
    with torch.no_grad():
        return path, adaptive_schedule(path, Gibbs(), n_chains, n_betas, seeded()).betas


@pytest.mark.parametrize("n_betas", [2, 3, 19, 20, 100, 2000])
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_schedules_increase_from_zero_to_one(scale, n_betas):
    _, betas = temperatures(make_rbm(D, H, scale=scale), n_betas)
    assert len(betas) == n_betas
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    assert all(a < b for a, b in zip(betas, betas[1:], strict=False))


def test_a_path_without_length_has_an_even_schedule():
    _, betas = temperatures(make_rbm(D, H, scale=0.0, bias=0.0), 50)
    assert betas == pytest.approx(torch.linspace(0, 1, 50).tolist())


def test_temperatures_are_dense_where_the_variance_is_large():
    """The largest increment of log weights and their variance are less than with even spacing."""
    path, betas = temperatures(steep(), 100)
    assert betas[50] < 0.4
    even = torch.linspace(0, 1, 100).tolist()
    largest, variance = [], []
    for spacing in (betas, even):
        x = path.base.sample(400, seeded(1))
        with torch.no_grad():
            steps_of_path = KernelSteps(path, Gibbs(), Schedule(spacing, [], []), seeded(2))
            run = anneal(steps_of_path, x, spacing)
            steps = torch.stack([increment for increment, _ in run])
        largest.append(steps.std(1).max())
        variance.append(steps.sum(0).var())
    assert largest[0] < 0.8 * largest[1]
    assert variance[0] < 0.9 * variance[1]


def test_pilot_runs_cost_a_tenth():
    rows = []

    class Recorder(Gibbs):
        def step(self, energy, state, *args, **kwargs):
            rows.append(len(state.x))
            return super().step(energy, state, *args, **kwargs)

    AIS(50, 300).estimate(make_rbm(D, H), sampler=Recorder(), generator=seeded())
    assert sum(rows) <= 1.1 * 50 * 300
    assert rows.count(50) == 298


class Counting(Gibbs):
    """Gibbs that counts its steps."""

    steps = 0

    def step(self, *args, **kwargs):
        Counting.steps += 1
        return super().step(*args, **kwargs)


@pytest.mark.parametrize("cls", ANNEALING, ids=lambda cls: cls.__name__)
def test_the_sampler_passed_is_used(cls, energy, target):
    Counting.steps = 0
    found = (
        CASES[cls]
        .make()
        .estimate(energy, sampler=Counting(), x=exact_rows(target), generator=seeded())
    )
    usual = CASES[cls].make().estimate(energy, x=exact_rows(target), generator=seeded())
    assert Counting.steps >= 58  # one at every temperature between the ends
    assert found.value == usual.value


@pytest.mark.parametrize("cls", ANNEALING, ids=lambda cls: cls.__name__)
def test_annealing_refuses_unsuitable_samplers_and_bases(cls, energy, target):
    estimator, x = CASES[cls].make(), exact_rows(target)
    with pytest.raises(TypeError, match="Gibbs needs"):
        estimator.estimate(Table(Binary((D,)), torch.ones(D, dtype=DOUBLE)), sampler=Gibbs(), x=x)
    with pytest.raises(TypeError, match="MALA samples Real rows"):
        estimator.estimate(energy, sampler=MALA(), x=x)
    with pytest.raises(TypeError, match="IndependentBernoulli"):
        estimator.estimate(energy, base="uniform", x=x)


# ------------------------------------------------------------------------------
# Reverse AIS
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reverse_runs(energy, target):
    make = CASES[ReverseAIS].make
    return [
        make().estimate(energy, x=exact_rows(target, seed=500 + s), generator=seeded(s))
        for s in range(REPEATS)
    ]


@full
def test_reverse_ais_from_exact_samples_is_calibrated(reverse_runs, target):
    assert_calibrated(z_scores(reverse_runs, target.log_z.item()))


def test_reverse_ais_from_exact_samples_is_unbiased_for_one_over_z(reverse_runs, target):
    ratio = torch.tensor([target.log_z.item() - one.value for one in reverse_runs]).exp()
    error = (ratio.std() / len(ratio) ** 0.5).item()
    assert error < 0.05
    assert abs(ratio.mean().item() - 1) < 4 * error


@pytest.mark.parametrize("delta", leading(1, [0.05, 0.2]))
def test_reverse_upper_bound_fails_no_more_often_than_promised(delta):
    energy = make_rbm(8, 6, scale=1.5)
    target, n = Enumerated(energy), 100
    truth, estimator = target.log_z.item(), ReverseAIS(8, delta, exact_samples=True)
    runs = [
        estimator.estimate(energy, x=target.draw(3, seeded(500 + s)), generator=seeded(s))
        for s in range(n)
    ]
    slack = 3 * (delta * (1 - delta) / n) ** 0.5
    assert sum(one.upper < truth for one in runs) / n <= delta + slack
    assert sum(one.value < truth for one in runs) / n > delta + slack  # the bound is needed
    for one in runs:
        assert math.isnan(one.lower)
        assert one.upper == one.pessimistic == pytest.approx(one.value + math.log(1 / delta))


def test_reverse_ais_without_intermediate_temperatures_is_importance_sampling(energy, target):
    base, x = base_of(D), exact_rows(target, 30)
    found = ReverseAIS(2).estimate(energy, base=base, x=x, generator=seeded())
    log_w = -importance(energy, base, x)
    assert found.value == pytest.approx(math.log(30) - log_w.logsumexp(0).item())


def test_reverse_ais_reports_whether_samples_were_exact(energy, target):
    kinds = [
        ReverseAIS(5, exact_samples=exact).estimate(energy, x=exact_rows(target)).bound_kind
        for exact in (True, False)
    ]
    assert kinds == ["probabilistic", "heuristic"]


@full
@pytest.mark.filterwarnings("ignore:The effective sample size")
def test_forward_and_reverse_enclose_the_truth(energy, target):
    """On average, and by more the fewer the temperatures: the sandwich."""
    truth, n, gaps = target.log_z.item(), 150, []
    for n_betas in (3, 30):
        below, above = [], []
        for s in range(n):
            x = exact_rows(target, 20, seed=500 + s)
            below.append(AIS(20, n_betas).estimate(energy, generator=seeded(s)).value)
            above.append(ReverseAIS(n_betas).estimate(energy, x=x, generator=seeded(s)).value)
        below, above = torch.tensor(below), torch.tensor(above)
        assert below.mean() - 4.5 * below.std() / n**0.5 < truth
        assert above.mean() + 4.5 * above.std() / n**0.5 > truth
        gap = above - below
        gaps.append((gap.mean().item(), gap.std().item() / n**0.5))
    (coarse, error), (fine, _) = gaps
    assert coarse > 3 * error
    assert fine < coarse


@pytest.mark.parametrize("cls", [ReverseAIS, AISBracket], ids=lambda cls: cls.__name__)
def test_reverse_annealing_requires_rows(cls, energy):
    with pytest.raises(ValueError, match="x"):
        cls().estimate(energy, generator=seeded())
    with pytest.raises(ValueError, match=r"(?i)\bx\b|row|sample"):
        CASES[cls].make().estimate(energy, x=torch.zeros(0, D, dtype=DOUBLE), generator=seeded())


# ------------------------------------------------------------------------------
# The bracket
# ------------------------------------------------------------------------------


def two_modes(d=10, gap=4.0):
    """Modes at all zeros and all ones; the latter has exp(gap) times the mass of the former."""
    energy = BernoulliRBM(d, 1, generator=seeded(), dtype=DOUBLE)
    with torch.no_grad():
        energy.weight.fill_(4.0)
        energy.visible_bias.fill_(-2.0)
        energy.hidden_bias.fill_(gap - 2.0 * d)  # softplus(2) - softplus(-2) = 2
    return energy


def quiet(energy, x, seed, **settings):
    """An estimate of AISBracket, and the messages of its convergence warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = CASES[AISBracket].make(**settings).estimate(energy, x=x, generator=seeded(seed))
    return found, [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


@pytest.mark.parametrize("model", leading(1, [(7, 9, 1, 1.3), (10, 8, 0, 1.0), (9, 4, 2, 0.3)]))
def test_the_bracket_encloses_the_truth(model):
    d, h, model_seed, scale = model
    energy = make_rbm(d, h, seed=model_seed, scale=scale)
    target = Enumerated(energy)
    truth, missed, warned = target.log_z.item(), 0, 0
    for seed in range(20):
        found, messages = quiet(energy, target.draw(50, seeded(500 + seed)), seed)
        missed += not found.lower <= truth <= found.upper
        warned += bool(messages)
        assert found.bound_kind == "heuristic"
        assert found.upper == found.pessimistic
    assert missed <= 1
    assert warned <= 1  # exact samples give no reason for a warning


def test_the_bracket_has_the_value_and_lower_bound_of_ais(energy, target):
    """Same seed, same forward run: its numbers come out unchanged."""
    found, _ = quiet(energy, exact_rows(target), seed=3)
    forward = CASES[AIS].make().estimate(energy, generator=seeded(3))
    assert found[:3] == forward[:3]
    assert found.ess == forward.ess
    assert found.upper >= forward.value + 2 * forward.std_error


@pytest.mark.parametrize("seed", leading(1, range(3)))
def test_the_bracket_warns_of_modes_it_has_not_explored(seed):
    energy = two_modes()
    wrong, right = torch.zeros(60, 10, dtype=DOUBLE), torch.ones(60, 10, dtype=DOUBLE)
    stuck, crossed = quiet(energy, wrong, seed, n_steps=1)
    assert any("crossed" in message for message in crossed)
    assert stuck.upper >= stuck.value  # the forward run still counts
    settings = {"n_chains": 100, "n_steps": 300}
    _, moved = quiet(energy, wrong, seed, **settings)
    assert any("depends on its start" in message for message in moved)
    _, fine = quiet(energy, right, seed, **settings)
    assert fine == []


def test_the_upper_end_covers_a_mode_that_only_the_rows_are_in():
    """Forward annealing misses a mode that is a single state of twenty bits; the rows are in it.

    All other states have a mass of 2**20 together, the mode exp(5) times as much.
    """
    d = 20
    energy = BernoulliRBM(d, 1, generator=seeded(), dtype=DOUBLE)
    sign = 1.0 - 2.0 * (torch.arange(d, dtype=DOUBLE) % 2)
    with torch.no_grad():
        energy.weight.copy_(12 * sign[None])
        energy.visible_bias.zero_()
        energy.hidden_bias.fill_(5 + d * math.log(2) - 12 * d / 2)
    truth = Exact().estimate(energy).value
    rows = (sign > 0).to(DOUBLE).expand(50, -1)
    found, messages = quiet(energy, rows, seed=0)
    assert any("has missed modes" in message for message in messages)
    assert (
        found.value + 10 * found.std_error < truth - 3
    )  # the mode is missed, and the error does not show it
    assert found.upper > truth
    assert found.pessimistic > truth


@pytest.mark.parametrize(
    ("wide", "value", "upper", "decided"),
    [
        ((19.7, 0.5), 19.68, 19.71, True),  # says nothing of where log Z ends
        ((16.0, 3.0), 19.68, 19.71, True),
        ((19.72, 0.006), 19.68, 19.732, False),  # as precise as the others
        ((20.3, 0.5), 19.68, 21.3, False),  # larger by more than chance
        ((24.0, 0.5), 24.0, 25.0, False),  # a mode that the others miss
    ],
)
def test_a_run_of_large_error_raises_the_upper_end_where_its_value_does(
    wide, value, upper, decided
):
    def run(value, error):
        return LogPartition(value, error, value - 3, math.nan, "probabilistic", 50.0)

    forward, data, chains = run(19.68, 0.005), run(19.70, 0.005), run(19.6, 1.0)
    found = Runs(forward, {"data": data, "chains": chains}, run(*wide)).result()
    assert found.upper == pytest.approx(upper)
    assert found.value == value
    # Otherwise more temperatures are to decide whether there is a mode far away.
    assert Runs(forward, {"data": data}, run(*wide)).agree(0.05) == decided


def test_a_wide_interval_is_told():
    one = LogPartition(3.0, 0.6, 0.0, math.nan, "probabilistic", 50.0)
    (notice,) = Runs(one, {"data": one}, None).notices(100)
    assert "1.2 nats above its value, 3.00" in notice.message
    small = one._replace(std_error=0.4)
    assert Runs(small, {"data": small}, None).notices(100) == []


def test_named_starts_get_a_reverse_run_each():
    """Rows of both modes are one start when pooled; by name they are two, which disagree."""
    energy = two_modes(gap=0.0)
    zeros, ones = torch.zeros(40, 10, dtype=DOUBLE), torch.ones(40, 10, dtype=DOUBLE)
    energy.hidden_bias.data += 3.0
    settings = {"n_chains": 80, "n_steps": 0}
    _, mixed = quiet(energy, torch.cat([zeros, ones]), 0, **settings)
    _, named = quiet(energy, {"data": zeros, "chains": ones}, 0, **settings)
    assert not any("depends on its start" in message for message in mixed)
    (message,) = [message for message in named if "depends on its start" in message]
    assert "from data" in message
    assert "from chains" in message


@pytest.mark.parametrize("cls", [ReverseAIS, AISBracket], ids=lambda cls: cls.__name__)
def test_a_tensor_is_one_unnamed_start(cls, energy, target):
    rows, make = exact_rows(target), CASES[cls].make
    plain, named = (make().estimate(energy, x=x) for x in (rows, {"data": rows}))
    assert plain[:6] == pytest.approx(named[:6], abs=0, nan_ok=True)
    assert list(plain.parts.values()) == list(named.parts.values())


def test_warnings_state_the_estimates_and_a_remedy():
    _, messages = quiet(two_modes(), torch.zeros(60, 10, dtype=DOUBLE), 0, n_steps=1)
    for message in messages:
        assert len(re.findall(r"\d\.\d\d", message)) >= 2
        assert re.search("Train with|Use more", message)
    assert messages


@pytest.mark.parametrize("x", [{}, {"data": torch.zeros(1, D, dtype=DOUBLE)}])
def test_every_named_start_needs_two_rows(energy, x):
    with pytest.raises(ValueError, match="at least two rows"):
        AISBracket().estimate(energy, x=x)


@pytest.mark.parametrize("n_steps", [-1, 0.5, None])
def test_invalid_numbers_of_sampler_steps_are_refused(energy, n_steps):
    with pytest.raises(ValueError, match="n_steps must be"):
        AISBracket(n_steps=n_steps).estimate(energy, x=torch.zeros(2, D, dtype=DOUBLE))


def test_a_single_row_is_refused_or_warned_of():
    """A reverse run of one chain has no standard error to compare with.

    Here it starts in the mode that has two per cent of the mass.
    """
    row = torch.zeros(1, 10, dtype=DOUBLE)
    try:
        found, messages = quiet(two_modes(), row, seed=0, n_steps=1)
    except ValueError:
        return
    assert messages, f"no warning, upper = {found.upper}"


def test_reverse_runs_anneal_at_most_n_chains_rows(energy, target):
    """Further rows take no time; those kept are drawn at random. Both starts move together."""
    seen = []

    class Recorder(Gibbs):
        def step(self, energy, state, *args, **kwargs):
            seen.append(len(state.x))
            return super().step(energy, state, *args, **kwargs)

    CASES[AISBracket].make(n_chains=30).estimate(
        energy, sampler=Recorder(), x=exact_rows(target, 300), generator=seeded()
    )
    assert max(seen) == 2 * 30


def test_the_bracket_stops_at_the_tolerance(energy, target):
    """An easy model takes a sixteenth of the temperatures, a small tolerance all of them."""
    x = exact_rows(target)
    few, all_of_them = AISBracket(50, 125, n_steps=7), AISBracket(50, 2000, n_steps=100, tol=0.3)
    assert all_of_them.estimate(energy, x=x)[:6] == few.estimate(energy, x=x)[:6]
    n_moves = 0

    class Counting(Gibbs):
        def step(self, *args, **kwargs):
            nonlocal n_moves
            n_moves += 1
            return super().step(*args, **kwargs)

    bracket = AISBracket(10, 500, n_steps=0)
    counts = []
    for tol in (1.0, 1e-4, None):
        n_moves = 0
        bracket.set_params(tol=tol).estimate(energy, sampler=Counting(), x=x)
        counts.append(n_moves)
    assert 3.5 < counts[2] / counts[0] < 4.5
    assert counts[1] == counts[0] + counts[2]


@pytest.mark.parametrize("tol", [0, -1.0, "small", math.nan])
def test_invalid_tolerances_are_refused(energy, tol):
    with pytest.raises(ValueError, match="tol must be"):
        AISBracket(tol=tol).estimate(energy, x=torch.zeros(2, D, dtype=DOUBLE))


def test_progress_is_shown_after_two_seconds(energy, target, monkeypatch, capsys):
    x, settings = exact_rows(target), {"n_chains": 10, "n_betas": 30, "n_steps": 5}
    AISBracket(**settings, verbose=1).estimate(energy, x=x)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(annealed, "PROGRESS_DELAY", 0)
    AISBracket(**settings).estimate(energy, x=x)
    assert capsys.readouterr().err == ""
    AISBracket(**settings, verbose=1).estimate(energy, x=x)
    shown = capsys.readouterr().err
    assert "log Z: AIS" in shown
    assert "log Z: reverse AIS" in shown
