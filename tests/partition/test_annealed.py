"""Annealed importance sampling with any base, energy and kernel: paths, schedules, estimates."""

import math
import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm.base import Binary, Energy, Real
from skebm.distributions import ChowLiuTree, Gaussian, IndependentBernoulli, Uniform
from skebm.energies import (
    AnnealingPath,
    BernoulliRBM,
    BoltzmannMachine,
    Tilted,
    annealing_path,
    ising_grid,
)
from skebm.energies.path import GeometricPath
from skebm.partition import AIS, AISBracket, Exact, ReverseAIS, annealed
from skebm.partition.annealed import (
    Deadline,
    KernelSteps,
    Schedule,
    adaptive_schedule,
    anneal,
    fractions,
    in_stages,
)
from skebm.samplers import HMC, MALA, DiscreteLangevin, Gibbs, GibbsWithGradients, Langevin
from tests.support.oracle import (
    DOUBLE,
    bits,
    make_class_rbm,
    make_rbm,
    make_subspace,
    make_tree_rbm,
    seeded,
)
from tests.support.targets import Line, Normal, Quadratic, Valley, two_modes
from tests.support.tiers import full, leading

D = 6


def logits(d=D, seed=1):
    return torch.randn(d, generator=seeded(seed), dtype=DOUBLE)


def boltzmann_machine(d=D, seed=0, strength=0.7):
    W = strength * torch.randn(d, d, generator=seeded(seed), dtype=DOUBLE)
    return BoltzmannMachine(W, torch.randn(d, generator=seeded(seed + 1), dtype=DOUBLE), offset=0.4)


class Rugged(Energy):
    """Differentiable on bits, without tractable conditionals."""

    def __init__(self, d=D):
        super().__init__()
        self.domain = Binary((d,))
        self.weight = torch.nn.Parameter(torch.randn(3, d, generator=seeded(4), dtype=DOUBLE))

    def forward(self, x, cond=None):
        return (x @ self.weight.t()).tanh().square().sum(1) * 2 - x[:, 0] * x[:, 1]


def normal(d, seed=0):
    """A correlated normal energy, its exact log Z, and the distribution."""
    A = torch.randn(d, d, generator=seeded(seed), dtype=DOUBLE)
    cov = A @ A.t() / d + 0.1 * torch.eye(d, dtype=DOUBLE)
    mean = torch.randn(d, generator=seeded(seed + 1), dtype=DOUBLE)
    log_z = d / 2 * math.log(2 * math.pi) + float(torch.linalg.slogdet(cov)[1]) / 2
    return Quadratic(mean, cov), log_z, Normal(mean, cov)


# ------------------------------------------------------------------------------
# Paths
# ------------------------------------------------------------------------------

tree_rbm = make_tree_rbm(D, 4)
on_tree, on_bits = tree_rbm.base, IndependentBernoulli(logits(seed=3))
mixed = {"tree": make_class_rbm(on_tree).rbm, "bits": make_class_rbm(on_bits).rbm}
classes = {"tree": make_class_rbm(on_tree), "bits": make_class_rbm(on_bits)}
subspace = {"tree": make_subspace(on_tree), "bits": make_subspace(on_bits)}
DISCRETE = {
    "bipartite": (make_rbm(D, 4), IndependentBernoulli(logits())),
    "many hidden units": (make_rbm(D, 230), IndependentBernoulli(logits())),
    "tilted": (Tilted(make_rbm(D, 4), logits(seed=2), 0.7), IndependentBernoulli(logits())),
    "structured": (tree_rbm, tree_rbm.base),
    "structured, other base": (tree_rbm, IndependentBernoulli(logits())),
    "bipartite, other base": (make_rbm(D, 4), tree_rbm.base),
    "columns": (mixed["tree"], on_tree),
    "columns, wider base": (mixed["bits"], mixed["bits"].wider_base()),
    "classes": (classes["tree"], on_tree),
    "classes, wider base": (classes["bits"], classes["bits"].wider_base()),
    "subspace": (subspace["tree"], on_tree),
    "subspace, wider base": (subspace["bits"], subspace["bits"].wider_base()),
    "pairwise": (boltzmann_machine(), IndependentBernoulli(logits())),
    "pairwise, other base": (boltzmann_machine(), tree_rbm.base),
    "any": (Rugged(), IndependentBernoulli(logits())),
    "any, uniform": (Rugged(), Uniform(Binary((D,)), DOUBLE)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_a_path_leads_from_the_base_to_the_energy(name):
    energy, base = DISCRETE[name]
    path, x = annealing_path(energy, base), bits(D)
    assert isinstance(path, AnnealingPath)
    with torch.no_grad():
        first, last = (-path.at(beta)(x) for beta in (0.0, 1.0))
        # At 0 the marginal is the base, and log_z0 its normaliser.
        torch.testing.assert_close(first.log_softmax(0), base.log_prob(x))
        log_w = path.log_ratio(x, 0.0, 1.0)
        exact = (-energy(x)).logsumexp(0)
        # The mean weight of draws of the base is Z / Z0.
        mean = (base.log_prob(x) + log_w).logsumexp(0)
        assert float(path.log_z0 + mean) == pytest.approx(float(exact), abs=1e-9)
        torch.testing.assert_close(last.log_softmax(0), (-energy(x)).log_softmax(0))


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize(("old", "new"), [(0.0, 0.3), (0.3, 0.9), (0.9, 0.31), (1.0, 0.2)])
def test_log_ratios_are_differences_of_the_energies_on_the_path(name, old, new):
    path, x = annealing_path(*DISCRETE[name]), bits(D)
    with torch.no_grad():
        expected = path.at(old)(x) - path.at(new)(x)
        found = path.log_ratio(x, old, new)
    assert found.dtype == DOUBLE
    # The bases enter the energies with or without a normaliser.
    torch.testing.assert_close(found - found[0], expected - expected[0], atol=1e-9, rtol=1e-9)


def test_log_ratios_are_accurate_in_single_precision():
    """Large fields and a small step: a difference of free energies would cancel all digits."""
    double = make_rbm(40, 300, scale=3.0)
    x = (torch.rand(20, 40, generator=seeded(), dtype=DOUBLE) < 0.5).to(DOUBLE)
    base = IndependentBernoulli(torch.zeros(40, dtype=DOUBLE))
    with torch.no_grad():
        exact = annealing_path(double, base).log_ratio(x, 0.5, 0.5001)
        single = annealing_path(double.float(), base.to("cpu", torch.float32))
        found = single.log_ratio(x.float(), 0.5, 0.5001)
    assert exact.abs().min() > 0.01
    torch.testing.assert_close(found, exact, atol=2e-6, rtol=1e-5)


def test_hidden_layers_are_cached_for_the_last_rows_only():
    path = annealing_path(*DISCRETE["bipartite"])
    x = bits(D)
    with torch.no_grad():
        path.log_ratio(x, 0.1, 0.2)
        assert path.hidden_layer(x, 0.2, seeded()).shape == (len(x), 4)
        assert path.hidden_layer(x.clone(), 0.2, seeded()) is None


@pytest.mark.parametrize("name", ["bipartite", "classes, wider base", "subspace"])
def test_hidden_layers_are_drawn_at_the_given_temperature(name):
    energy, base = DISCRETE[name]
    path, x = annealing_path(energy, base), bits(D)[:1].expand(40_000, -1)
    with torch.no_grad():
        path.log_ratio(x, 0.1, 0.2)
        drawn = path.hidden_layer(x, 0.6, seeded()).mean(0)
        expected = path.at(0.6).hidden(x[:1]).mean[0]
    assert (drawn - expected).abs().max() < 0.015
    assert (drawn - energy.hidden(x[:1]).mean[0].detach()).abs().max() > 0.03


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_geometric_gradients_are_those_of_the_mixture(beta):
    energy, _, _ = normal(3)
    base = Gaussian(torch.ones(3, dtype=DOUBLE), 2.0)
    tempered = annealing_path(energy, base).at(beta)
    x = torch.randn(5, 3, generator=seeded(), dtype=DOUBLE)
    value, grad = tempered.value_and_grad(x)
    at = x.clone().requires_grad_(True)
    expected = beta * energy(at) - (1 - beta) * base.log_prob(at)
    (expected_grad,) = torch.autograd.grad(expected.sum(), at)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(grad, expected_grad)
    with torch.no_grad():
        torch.testing.assert_close(tempered(x.clone()), value)


def test_rows_are_evaluated_once_for_all_temperatures():
    calls = []

    class Counted(Quadratic):
        def forward(self, x, cond=None):
            calls.append(len(x))
            return super().forward(x)

    energy = Counted(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE))
    path = annealing_path(energy, Gaussian(torch.zeros(2, dtype=DOUBLE), 2.0))
    x = torch.ones(4, 2, dtype=DOUBLE)
    path.at(0.2).value_and_grad(x)
    path.log_ratio(x, 0.2, 0.3)
    path.at(0.3).value_and_grad(x)
    assert calls == [4]
    path.at(0.3).value_and_grad(x.clone())
    assert calls == [4, 4]


@pytest.mark.parametrize("kernel", [HMC(0.8, 3), MALA(0.8)])
def test_rows_that_a_kernel_has_accepted_are_not_evaluated_again(kernel):
    calls = []

    class Counted(Quadratic):
        def forward(self, x, cond=None):
            calls.append(len(x))
            return super().forward(x)

    class Forgetful(GeometricPath):
        def remember(self, x):
            return

    energy = Counted(torch.ones(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE))
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 2.0)
    schedule, found = Schedule([0.0, 0.2, 0.5, 0.7, 1.0], [], []), []
    for make in (annealing_path, Forgetful):
        calls.clear()
        with torch.no_grad():
            path = make(energy, base)
            x = base.sample(40, seeded())
            steps = KernelSteps(path, kernel, schedule, seeded())
            increments = [one for one, _ in anneal(steps, x, schedule.betas)]
            found.append(torch.stack(increments))
        steps = getattr(kernel, "n_leapfrog", 1)
        assert len(calls) == 1 + 3 * steps if make is annealing_path else 1 + 3 * (1 + steps)
    torch.testing.assert_close(*found)


# ------------------------------------------------------------------------------
# Estimates
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", leading(1, [None, GibbsWithGradients(), DiscreteLangevin(adapt=True)])
)
@pytest.mark.parametrize("name", DISCRETE)
def test_ais_is_accurate_from_any_base_for_any_binary_energy(name, sampler):
    energy, base = DISCRETE[name]
    truth = Exact(max_cost=1e12).estimate(energy).value
    found = AIS(100, 60).estimate(energy, base=base, sampler=sampler, generator=seeded())
    assert abs(found.value - truth) < 4 * found.std_error
    assert found.std_error < 0.4
    assert found.lower < truth


@pytest.mark.parametrize("coupling", leading(1, [0.44, 0.2, 0.7]))
def test_ais_on_an_ising_grid(coupling):
    energy = ising_grid(4, 4, coupling, dtype=DOUBLE)
    truth = Exact().estimate(energy).value
    found = AIS(100, 200).estimate(energy, generator=seeded())
    assert abs(found.value - truth) < max(4 * found.std_error, 0.01)
    assert found.std_error < 0.1


@full
def test_ais_in_many_dimensions_knows_its_error():
    energy, truth, _ = normal(10)
    runs = [AIS(40, 60).estimate(energy, generator=seeded(s)) for s in range(20)]
    z = torch.tensor([(one.value - truth) / one.std_error for one in runs])
    assert abs(z.mean()) < 0.6
    assert 0.5 < z.std() < 1.6
    assert max(one.std_error for one in runs) < 0.8
    assert sum(one.lower > truth for one in runs) <= 4  # of 20, where 1 is expected


@full
def test_reverse_ais_from_exact_draws_knows_its_error():
    energy, truth, target = normal(4)
    base = Gaussian(torch.zeros(4, dtype=DOUBLE), 1.5)
    estimator = ReverseAIS(60, exact_samples=True)
    runs = [
        estimator.estimate(
            energy, base=base, x=target.draw(40, seeded(90 + s)), generator=seeded(s)
        )
        for s in range(20)
    ]
    z = torch.tensor([(one.value - truth) / one.std_error for one in runs])
    assert abs(z.mean()) < 0.6
    assert 0.5 < z.std() < 1.6
    assert {one.bound_kind for one in runs} == {"probabilistic"}
    assert sum(one.upper < truth for one in runs) <= 4


def test_reverse_ais_does_not_anneal_rows_that_the_base_was_fitted_to():
    """Half of the rows are used for each: with the same rows reverse AIS would be biased."""
    energy, _, target = normal(3)
    seen = []

    class Recorder(HMC):
        def init(self, energy, x):
            seen.append(len(x))
            return super().init(energy, x)

    ReverseAIS(30).estimate(
        energy, x=target.draw(40, seeded()), sampler=Recorder(0.3), generator=seeded()
    )
    assert seen[-1] == 20


@pytest.mark.parametrize("sampler", leading(1, [MALA(adapt=True, scale="auto"), None, HMC(0.3)]))
def test_separate_modes_and_walls(sampler):
    unbounded, bounded = Valley(two_modes), Valley(two_modes, -4.0, 3.0)
    exact = math.log(2 * math.pi) / 2  # a mixture times sqrt(2 pi)
    line = Line(bounded, -4.0, 3.0)
    weight = (-bounded(torch.from_numpy(line.grid)[:, None])).exp()
    inside = math.log(float(torch.trapezoid(weight, torch.from_numpy(line.grid))))
    for energy, truth in ((unbounded, exact), (bounded, inside)):
        found = AIS(200, 60).estimate(energy, sampler=sampler, generator=seeded())
        assert abs(found.value - truth) < 4 * found.std_error
        assert found.std_error < 0.2


@pytest.mark.parametrize("scale", leading(1, [1e3, 1e-3]))
def test_units_do_not_matter_where_there_are_rows(scale):
    energy, truth, target = normal(3)
    unit = Quadratic(energy.mean.detach() * scale, torch.linalg.inv(energy.precision) * scale**2)
    rows = target.draw(200, seeded()) * scale
    found = AIS(100, 30).estimate(unit, x=rows, generator=seeded())
    assert abs(found.value - truth - 3 * math.log(scale)) < 4 * found.std_error
    assert found.std_error < 0.2
    bracket = AISBracket(30, 40, n_steps=10).estimate(unit, x=rows, generator=seeded())
    assert bracket.lower < truth + 3 * math.log(scale) < bracket.upper


@full
def test_energies_are_in_eval_mode_during_estimation_only():
    class Dropped(Quadratic):
        def __init__(self):
            super().__init__(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE))
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x, cond=None):
            assert not self.training
            return super().forward(x) + self.drop(x.square()).sum(1)

    energy = Dropped().train()
    found = AIS(100, 60).estimate(energy, generator=seeded())
    assert abs(found.value - math.log(2 * math.pi / 3)) < 4 * found.std_error < 0.3
    assert energy.training
    assert energy.drop.training
    assert energy.mean.grad is None


def far_modes(d=12, gap=2.0):
    """Modes of mostly zeros and of mostly ones, with exp(gap) times the mass; one hidden unit."""
    energy = BernoulliRBM(d, 1, generator=seeded(), dtype=DOUBLE)
    with torch.no_grad():
        energy.weight.fill_(6.0)
        energy.visible_bias.fill_(-3.0)
        energy.hidden_bias.fill_(gap - 3.0 * d)
    return energy


@pytest.mark.parametrize("seed", leading(1, range(5)))
def test_a_bracket_finds_the_mode_that_rows_and_base_are_far_from(seed):
    energy = far_modes()
    rows = (torch.rand(200, 12, generator=seeded(50 + seed), dtype=DOUBLE) < 0.05).to(DOUBLE)
    base, truth = IndependentBernoulli.fit(rows), Exact().estimate(energy).value
    bracket = AISBracket(100, 200, n_steps=20)
    with pytest.warns(ConvergenceWarning, match="missed modes far from its base") as caught:
        found = bracket.estimate(energy, base=base, x=rows, generator=seeded(seed))
    assert caught[0].filename == __file__
    plain = AIS(100, 200).estimate(energy, base=base, generator=seeded(seed))
    assert plain.value < truth - 1.0  # the mode is missed, and the error does not show it
    assert plain.std_error < 0.2
    assert abs(found.value - truth) < max(4 * found.std_error, 0.05)
    assert found.lower < truth
    assert found.upper >= found.value + 2 * found.std_error
    assert found.parts["AIS"][0] == pytest.approx(plain.value)
    assert found.lower == pytest.approx(found.value + math.log(0.05 / 2))


@full
def test_a_bracket_looks_further_on_real_rows_too():
    """Two wells; rows and the base that is fitted to them sit in the shallow one."""

    def two_wells(x):
        lighter = math.log(0.3) - x.square() / 2
        return -torch.logaddexp(lighter, math.log(0.7) - (x - 12).square() / 2)

    rows = torch.randn(200, 1, generator=seeded(), dtype=DOUBLE)
    truth = math.log(2 * math.pi) / 2
    with pytest.warns(ConvergenceWarning, match="missed modes far from its base"):
        found = AISBracket(100, 100, n_steps=5).estimate(
            Valley(two_wells), x=rows, generator=seeded()
        )
    assert found.parts["AIS"][0] < truth - 1.0
    assert abs(found.value - truth) < 4 * found.std_error


def test_a_bracket_with_a_wide_base_runs_no_wider_one():
    energy, x = make_rbm(D, 4), bits(D)
    for base, names in ((torch.zeros(D), False), (torch.ones(D), True)):
        base = IndependentBernoulli(base.to(DOUBLE))
        found = AISBracket(20, 40, n_steps=5).estimate(energy, base=base, x=x, generator=seeded())
        assert ("AIS from a wider base" in found.parts) == names


# ------------------------------------------------------------------------------
# Schedules
# ------------------------------------------------------------------------------


def test_kernels_adapt_at_each_temperature():
    """From a wide base to a narrow model the step sizes of the pilot run decrease, and are used."""
    narrow = Quadratic(torch.zeros(3, dtype=DOUBLE), 1e-4 * torch.eye(3, dtype=DOUBLE))
    path = annealing_path(narrow, Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0))
    kernel, used = MALA(adapt=True), []

    class Recorder(MALA):
        def step(self, energy, state, *args, **kwargs):
            used.append(float(state.aux.step_size))
            new, info = super().step(energy, state, *args, **kwargs)
            assert new.aux is state.aux  # no adaptation any more
            return new, info

    with torch.no_grad():
        schedule = adaptive_schedule(path, kernel, 100, 400, seeded())
        step_sizes = [float(one.step_size) for one in schedule.settings]
        assert step_sizes[0] > 20 * step_sizes[-1]
        assert all(one.adaptation is None for one in schedule.settings)
        x = path.base.sample(50, seeded(1))
        steps = KernelSteps(path, Recorder(adapt=True), schedule, seeded(2))
        list(anneal(steps, x, schedule.betas))
    assert set(used) <= set(step_sizes)
    assert used[-1] == step_sizes[-1]


def test_settings_are_those_of_the_next_higher_temperature():
    schedule = Schedule([0.0, 1.0], [0.2, 0.5, 0.9], ["a", "b", "c"])
    assert [schedule.settings_at(beta) for beta in (0.1, 0.2, 0.21, 0.6, 0.95)] == [
        "a",
        "a",
        "b",
        "c",
        "c",
    ]
    assert Schedule([0.0, 1.0], [], []).settings_at(0.5) is None


def test_temperatures_are_dense_where_chains_mix_slowly():
    """Two hidden units that the visible ones fix: near 1 the autocorrelation time is long."""
    energy = BernoulliRBM(12, 2, generator=seeded(), dtype=DOUBLE)
    with torch.no_grad():
        energy.weight[0], energy.weight[1] = 1.5, -1.5
        energy.hidden_bias.copy_(torch.tensor([-9.0, 9.0]))
    path = annealing_path(energy, IndependentBernoulli(torch.zeros(12, dtype=DOUBLE)))
    with torch.no_grad():
        slow = adaptive_schedule(path, Gibbs(), 200, 1000, seeded()).betas
        fast = adaptive_schedule(path, Gibbs(n_collapsed=2), 200, 1000, seeded()).betas
    late = [sum(beta > 0.7 for beta in betas) / 1000 for betas in (slow, fast)]
    assert late[0] > 0.36
    assert late[0] > late[1]


def test_pilot_runs_cost_a_tenth_of_any_budget():
    for n_chains, n_betas in ((100, 100), (100, 1000), (20, 400), (400, 300)):
        moved = []

        class Counting(Gibbs):
            def step(self, energy, state, *args, **kwargs):
                moved.append(len(state.x))  # noqa: B023
                return super().step(energy, state, *args, **kwargs)

        path = annealing_path(*DISCRETE["bipartite"])
        with torch.no_grad():
            adaptive_schedule(path, Counting(), n_chains, n_betas, seeded())
        assert 0 < sum(moved) <= 0.1 * n_chains * n_betas


# ------------------------------------------------------------------------------
# Limits
# ------------------------------------------------------------------------------


class Clock:
    """Stands still but for one second a reading."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(annealed, "time", found)
    return found


@pytest.mark.parametrize(
    ("max_seconds", "expected"),
    # Each run takes ten seconds for a sixteenth.
    [(None, [1 / 16, 1 / 4, 1.0]), (15.0, [1 / 16]), (70.0, [1 / 16, 1 / 4])],
)
def test_a_run_is_begun_where_there_is_time_for_it(clock, max_seconds, expected):
    deadline, done = Deadline(max_seconds), []

    def run(fraction):
        done.append(fraction)
        clock.now += 160 * fraction
        return fraction

    found, limited = in_stages(fractions(2000), run, deadline)
    assert done == expected
    assert found == expected[-1]
    assert limited == (max_seconds is not None)


def test_few_temperatures_have_one_run():
    assert fractions(100) == [1.0]
    assert fractions(500) == [1 / 4, 1.0]


def test_an_unfinished_run_gives_way_to_a_finished_one():
    deadline = Deadline(1e9)

    def run(fraction):
        deadline.cut = fraction == 1.0
        return fraction

    assert in_stages([0.25, 1.0], run, deadline) == (0.25, True)
    assert in_stages([1.0], run, deadline) == (1.0, True)


@pytest.mark.parametrize("name", ["bipartite", "any"])
def test_ais_out_of_time_leaves_out_temperatures(clock, name):
    energy, base = DISCRETE[name]
    truth = Exact(max_cost=1e12).estimate(energy).value
    starts = {"data": bits(D)}
    for estimator in (
        AIS(400, 60, max_seconds=20.0),
        ReverseAIS(60, max_seconds=20.0),
        AISBracket(100, 60, n_steps=10, max_seconds=20.0),
    ):
        clock.now = 0.0
        with pytest.warns(ConvergenceWarning, match=r"limit has ended.*max_seconds=20") as caught:
            found = estimator.estimate(energy, base=base, x=starts, generator=seeded())
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert clock.now < 40  # of sixty temperatures
        if isinstance(estimator, AIS):
            assert abs(found.value - truth) < 4 * found.std_error
            assert found.lower < truth


@pytest.mark.parametrize("make", [AIS, ReverseAIS, AISBracket])
def test_enough_time_is_no_limit(make):
    energy, x = make_rbm(D, 4), bits(D)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = make(n_betas=60, max_seconds=1e6).estimate(energy, x=x, generator=seeded())
        plain = make(n_betas=60).estimate(energy, x=x, generator=seeded())
    assert found == plain


@full
def test_weights_stay_unbiased_where_time_runs_out(clock):
    """Mean of Z-hat / Z over runs that are cut at a fixed temperature."""
    energy, base = DISCRETE["bipartite"]
    truth = Exact().estimate(energy).value
    ratios = []
    for seed in range(200):
        clock.now = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = AIS(50, 40, max_seconds=12.0).estimate(
                energy, base=base, generator=seeded(seed)
            )
        ratios.append(math.exp(found.value - truth))
    ratios = torch.tensor(ratios)
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / len(ratios) ** 0.5
    assert ratios.std() < 0.5


def far_rows():
    """An energy with a mode far from rows and base: runs do not agree."""
    energy = far_modes()
    return energy, (torch.rand(50, 12, generator=seeded(50), dtype=DOUBLE) < 0.05).to(DOUBLE)


@full
def test_a_bracket_ends_before_the_step_that_takes_too_many_evaluations():
    energy, rows = far_rows()
    base = IndependentBernoulli.fit(rows)
    inputs = {"base": base, "x": rows}
    few = AISBracket(50, 125, n_steps=5)
    with pytest.warns(ConvergenceWarning, match="missed modes far"):
        expected = few.estimate(energy, **inputs, generator=seeded())
    # A forward run, one from a wider base and two reverse runs of 50 chains, and 5 steps.
    cost = 125 * 200 + 5 * 50
    for most, n_betas in ((4 * cost - 1, 125), (4 * cost, 500)):
        long = AISBracket(50, 500, n_steps=20, max_evaluations=most)
        with pytest.warns(ConvergenceWarning, match="missed modes far") as caught:
            found = long.estimate(energy, **inputs, generator=seeded())
        assert len(caught) == 1
        assert (found == expected) == (n_betas == 125)


def test_a_limit_is_told_where_the_error_is_large():
    easy = make_rbm(D, 4)
    told = AISBracket(20, 500, n_steps=4, tol=1e-3, max_evaluations=1e3)
    with pytest.warns(ConvergenceWarning, match=r"limit has ended.*max_evaluations=1e\+03"):
        found = told.estimate(easy, x=bits(D), generator=seeded())
    assert found.std_error > 4e-3
    quiet = AISBracket(20, 500, n_steps=4, tol=0.02, max_evaluations=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quiet.estimate(easy, x=bits(D), generator=seeded())
    assert 0.02 < found.std_error < 0.08


@pytest.mark.parametrize("limit", ["max_seconds", "max_evaluations"])
@pytest.mark.parametrize("value", [0, -1.0, "1", math.nan])
def test_invalid_limits_are_refused(limit, value):
    makes = [AISBracket] if limit == "max_evaluations" else [AIS, ReverseAIS, AISBracket]
    for make in makes:
        with pytest.raises(ValueError, match=limit):
            make(**{limit: value}).estimate(make_rbm(D, 4), x=bits(D))


# ------------------------------------------------------------------------------
# Invalid input
# ------------------------------------------------------------------------------


class Flat(Energy):
    """Improper: the same everywhere."""

    domain = Real((2,))

    def forward(self, x, cond=None):
        return 0 * x.sum(1)


ROWS = torch.zeros(8, 2, dtype=DOUBLE)


@pytest.mark.parametrize("make", [AIS, ReverseAIS, AISBracket])
def test_improper_energies_are_refused_with_the_fix(make):
    with pytest.raises(ValueError, match=r"no finite integral(.|\n)*base"):
        make().estimate(Flat(), x=ROWS)


@pytest.mark.parametrize("make", [AIS, ReverseAIS, AISBracket])
def test_biased_and_unsuitable_kernels_are_refused(make):
    energy, _, target = normal(2)
    rows = target.draw(8, seeded())
    with pytest.raises(ValueError, match="biased"):
        make().estimate(energy, x=rows, sampler=Langevin(0.1))
    with pytest.raises(TypeError, match="samples Binary"):
        make().estimate(energy, x=rows, sampler=GibbsWithGradients())
    with pytest.raises(TypeError, match="Gibbs needs"):
        make().estimate(energy, x=rows, sampler=Gibbs())


@pytest.mark.parametrize(
    ("domain", "base", "match"),
    [
        (Real((1,)), Uniform(Real((1,), -1.0, 1.0), DOUBLE), "leaves out"),
        (Real((1,), -1.0, 1.0), Gaussian(torch.zeros(1, dtype=DOUBLE), 1.0), "outside"),
        (Real((1,), 0.0), None, "outside"),
        (Real((1,)), IndependentBernoulli(torch.zeros(1)), "leaves out"),
        (Real((1,)), Gaussian(torch.zeros(2), 1.0), "shape"),
    ],
)
def test_a_base_has_the_domain_of_the_energy(domain, base, match):
    energy = Valley(lambda x: x.square())
    energy.domain = domain
    with pytest.raises(ValueError, match=match):
        AIS().estimate(energy, base=base)


def test_a_base_without_probability_where_the_rows_are_is_refused():
    base = IndependentBernoulli(torch.tensor([0.0, -math.inf] + [0.0] * (D - 2), dtype=DOUBLE))
    with pytest.raises(ValueError, match="no probability"):
        AIS().estimate(make_rbm(D, 4), base=base)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_chains": 0}, "n_chains"),
        ({"n_chains": 2.5}, "n_chains"),
        ({"n_betas": 1}, "n_betas"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"delta": "0.1"}, "delta"),
    ],
)
@pytest.mark.parametrize("make", [AIS, AISBracket])
def test_invalid_parameters_are_refused(make, settings, match):
    with pytest.raises(ValueError, match=match):
        make(**settings).estimate(make_rbm(D, 4), x=bits(D))


@pytest.mark.parametrize("x", [torch.zeros(3, D + 1), torch.full((3, D), 0.5), torch.zeros(0, D)])
@pytest.mark.parametrize("make", [ReverseAIS, AISBracket])
def test_rows_outside_the_domain_are_refused(make, x):
    with pytest.raises(ValueError, match=r"shape|not in|two rows"):
        make().estimate(make_rbm(D, 4), x=x.to(DOUBLE))


def test_what_is_no_energy_is_refused():
    with pytest.raises(TypeError, match="not an Energy"):
        AIS().estimate(torch.nn.Linear(2, 1))


def test_nan_energies_are_refused():
    energy, _, _ = normal(2)
    energy.mean.data.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="nan"):
        AIS().estimate(energy)


def test_ais_from_a_chow_liu_base_to_an_rbm_without_one():
    rows = (torch.rand(60, D, generator=seeded(), dtype=DOUBLE) < 0.4).to(DOUBLE)
    base = ChowLiuTree.fit(rows, smoothing=0.1)
    energy = make_rbm(D, 4)
    found = AIS(100, 60).estimate(energy, base=base, generator=seeded())
    assert abs(found.value - Exact().estimate(energy).value) < 4 * found.std_error
