"""Every sampler: exact draws stay exact, and the same seed draws the same chain."""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from sklearn.base import clone

from skebm.base import (
    Binary,
    Categorical,
    ChainState,
    Clamp,
    Energy,
    Mixed,
    Real,
    Sampler,
    StepInfo,
)
from skebm.distributions import Gaussian, IndependentBernoulli, IndependentCategorical
from skebm.energies import BernoulliRBM, BoltzmannMachine, Tilted, ising_grid
from skebm.samplers import (
    HMC,
    MALA,
    AnnealedLangevin,
    Blocks,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    IndependenceSampler,
    Langevin,
    MetropolisHastings,
    ParallelTempering,
    PerturbedMAP,
    TrajectoryTempering,
)
from tests.support.discovery import without_case
from tests.support.oracle import (
    DOUBLE,
    P_FLOOR,
    Enumerated,
    chi_square,
    count_states,
    joint_energy,
    make_rbm,
    make_tree_rbm,
    seeded,
    through,
)
from tests.support.targets import (
    Box,
    Discrete,
    Line,
    LinearInABox,
    MixedRows,
    MixedTarget,
    NoisyPointCloud,
    Normal,
    OneHot,
    Polynomial,
    Quadratic,
    Valley,
    spelled_out,
    two_modes,
)
from tests.support.tiers import full, leading, named, only_full

N_CHAINS = 10_000


class Case(NamedTuple):
    """A sampler, an energy it draws from, and the exact answer for that energy at a beta.

    `pair` makes an exact draw of (x, aux) usable as a chain's state, where the sampler takes one.
    `ladder` are the (energy, inverse temperature) of a chain's replicas, all of which have to start
    exact.
    """

    sampler: Sampler
    energy: Callable[[], Energy]
    target: Callable[..., Any] = Enumerated
    pair: bool = False
    ladder: Callable[[Any], list[tuple[Any, float]]] | None = None


def tilted():
    field = torch.tensor([1.0, -0.5, 0.3, -1.0], dtype=DOUBLE)
    return Tilted(make_rbm(4, 3, scale=2.0), field, beta=0.7)


def wide_rbm():
    return make_rbm(4, 3, scale=2.0)


def coupled():
    """Five columns, some of which are coupled."""
    J = torch.randn(5, 5, generator=seeded(8), dtype=DOUBLE)
    J[torch.rand(5, 5, generator=seeded(9)) < 0.5] = 0
    return BoltzmannMachine(2 * J, torch.linspace(-1, 1, 5, dtype=DOUBLE))


def grid():
    return ising_grid(2, 3, 0.4, 0.1, periodic=False).double()


MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
COV = torch.tensor([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]], dtype=DOUBLE)


def gaussian():
    return Quadratic(MEAN, COV)


def normal(energy, beta=1.0):
    return Normal(MEAN, COV, beta)


def valley():
    return Valley(two_modes)


def line(energy, beta=1.0):
    return Line(energy, -12, 12, beta)


def path(k):
    """The rungs of a bipartite energy on the path from its base."""
    return lambda energy: [(energy.annealed(i / (k - 1)), 1.0) for i in range(k)]


def hotter(k, top):
    """Rungs of any energy, temperatures in geometric progression."""
    return lambda energy: [(energy, top ** (i / (k - 1) - 1)) for i in range(k)]


def rungs(energy):
    """The rungs of a trajectory."""
    return [(rung, 1.0) for rung in energy.rungs]


def on_real_rows(sampler, scaled=True):
    """Cases of a sampler of the real line, of planes and of boxes."""
    name = type(sampler).__name__
    cases = {
        name: Case(sampler, gaussian, normal),
        f"{name} two modes": Case(sampler, valley, line),
        f"{name} box": Case(sampler, LinearInABox, Box),
    }
    if scaled:
        wide = clone(sampler).set_params(scale=[1.0, 1.5, 0.6])
        cases[f"{name} scaled"] = Case(wide, gaussian, normal)
        cases[f"{name} dense"] = Case(clone(sampler).set_params(scale="dense"), gaussian, normal)
    return cases


def on_discrete_rows(sampler, name):
    return {
        name: Case(sampler, wide_rbm),
        f"{name} cubic": Case(sampler, lambda: Polynomial(Binary((5,))), spelled_out),
        f"{name} picture": Case(sampler, lambda: Polynomial(Binary((2, 2))), spelled_out),
        f"{name} one-hot": Case(sampler, OneHot, spelled_out),
    }


CASES = {
    Gibbs: {
        "Gibbs": Case(Gibbs(), wide_rbm, pair=True),
        "Gibbs tall": Case(Gibbs(), lambda: make_rbm(3, 5, seed=1, scale=1.5), pair=True),
        "Gibbs tilted": Case(Gibbs(), tilted, pair=True),
        "Gibbs tree": Case(Gibbs(), lambda: make_tree_rbm(4, 3, scale=2.0), pair=True),
        "Gibbs collapsed": Case(Gibbs(2), wide_rbm, pair=True),
        "Gibbs collapsed, all": Case(Gibbs(9), lambda: make_rbm(3, 5, seed=1, scale=1.5)),
        "Gibbs collapsed, tilted": Case(Gibbs(2), tilted, pair=True),
        "Gibbs collapsed, tree": Case(Gibbs(2), lambda: make_tree_rbm(4, 3, scale=2.0)),
        "Gibbs pairwise": Case(Gibbs(), coupled, spelled_out),
        "Gibbs grid": Case(Gibbs(), grid, spelled_out),
    },
    ParallelTempering: {
        "PT": Case(ParallelTempering(3), wide_rbm, ladder=path(3)),
        "PT two": Case(ParallelTempering(2), tilted, ladder=path(2)),
        "PT tree": Case(
            ParallelTempering(3), lambda: make_tree_rbm(4, 3, scale=2.0), ladder=path(3)
        ),
        "PT hot": Case(ParallelTempering(3, max_temperature=4.0), wide_rbm, ladder=hotter(3, 4.0)),
        "PT pairwise": Case(ParallelTempering(3), coupled, spelled_out, ladder=hotter(3, 10.0)),
        "PT gradients": Case(ParallelTempering(3, GibbsWithGradients()), wide_rbm, ladder=path(3)),
        "PT real": Case(
            ParallelTempering(3, MALA(0.3), max_temperature=5.0),
            valley,
            line,
            ladder=hotter(3, 5.0),
        ),
    },
    TrajectoryTempering: {
        "TT": Case(TrajectoryTempering(), lambda: through(wide_rbm()), ladder=rungs),
        "TT steps": Case(
            TrajectoryTempering(2), lambda: through(wide_rbm(), (0.7,), (0.2, 0.6)), ladder=rungs
        ),
        "TT tree": Case(
            TrajectoryTempering(), lambda: through(make_tree_rbm(4, 3, scale=2.0)), ladder=rungs
        ),
        "TT gradients": Case(
            TrajectoryTempering(sampler=GibbsWithGradients()),
            lambda: through(wide_rbm()),
            ladder=rungs,
        ),
    },
    PerturbedMAP: {
        "perturb and MAP": Case(PerturbedMAP(), grid, spelled_out),
        "perturb and MAP, frustrated": Case(PerturbedMAP(), coupled, spelled_out),
    },
    GibbsWithGradients: on_discrete_rows(GibbsWithGradients(), "GWG"),
    DiscreteLangevin: {
        **on_discrete_rows(DiscreteLangevin(1.0), "DMALA"),
        "DULA": Case(DiscreteLangevin(adjust=False), wide_rbm),
    },
    Blocks: {
        "blocks": Case(Blocks(MALA(0.3)), MixedRows, MixedTarget),
        "blocks scaled": Case(
            Blocks(HMC(0.4, 3, scale=[1.5]), DiscreteLangevin(1.0)), MixedRows, MixedTarget
        ),
    },
    IndependenceSampler: {
        "independence": Case(
            IndependenceSampler(Gaussian(torch.zeros(3, dtype=DOUBLE), 2.0)), gaussian, normal
        ),
        "independence, rows": Case(
            IndependenceSampler(Gaussian(torch.zeros(1, dtype=DOUBLE), 4.0), whole_rows=True),
            valley,
            line,
        ),
        "independence, bits": Case(
            IndependenceSampler(IndependentBernoulli(torch.zeros(4, dtype=DOUBLE))), wide_rbm
        ),
        "independence, one-hot": Case(
            IndependenceSampler(IndependentCategorical(torch.zeros(9, dtype=DOUBLE), (3, 2, 4))),
            OneHot,
            spelled_out,
        ),
    },
    MetropolisHastings: on_real_rows(MetropolisHastings(1.0)),
    MALA: on_real_rows(MALA(0.3)),
    HMC: on_real_rows(HMC(0.4, 3)),
    Langevin: {
        **on_real_rows(Langevin(0.01)),
        "Langevin decaying": Case(
            Langevin(0.05, decay=0.5, clip_grad=5.0, bounds="clip"), LinearInABox, Box
        ),
        "Langevin averaged": Case(Langevin(0.05, averaged=True), gaussian, normal),
    },
    AnnealedLangevin: {"annealed": Case(AnnealedLangevin(0.01, n_levels=3), NoisyPointCloud, line)},
}
ALL = {name: case for cases in CASES.values() for name, case in cases.items()}
EXACT = [name for name, case in ALL.items() if case.sampler.exact]
FIRST = {next(iter(cases)) for cases in CASES.values()}  # one of each sampler
# And of each kind of energy and of steps, where it is a matter of manners and not of the law.
MANNERS = FIRST | {
    "Gibbs tree",
    "Gibbs collapsed",
    "Gibbs pairwise",
    "PT real",
    "GWG picture",
    "DMALA one-hot",
    "DULA",
    "MALA box",
    "HMC scaled",
    "MALA dense",
    "Langevin decaying",
    "Langevin averaged",
}


@pytest.fixture(params=named(MANNERS, ALL))
def case(request):
    return ALL[request.param]


@pytest.fixture(params=EXACT)
def exact(request):
    return ALL[request.param]


def test_every_sampler_has_a_case():
    missing = without_case(Sampler, CASES, "CASES in tests/contracts/test_samplers.py")
    assert not missing, "\n".join(missing)
    for cls, cases in CASES.items():
        assert {type(case.sampler) for case in cases.values()} == {cls}


# ------------------------------------------------------------------------------
# It draws from exp(-beta E)
# ------------------------------------------------------------------------------


def stays(case, n_steps, beta=1.0, sampler=None, n=N_CHAINS):
    """p-value that chains which start exact are exact after `n_steps`."""
    sampler, energy, generator = sampler or case.sampler, case.energy(), seeded(1)
    target = case.target(energy, beta)
    state = sampler.init(energy, target.draw(n, generator))
    if case.ladder:
        rungs = [(rung, case.target(rung, beta * cold)) for rung, cold in case.ladder(energy)]
        states = [sampler.kernel.init(rung, t.draw(n, generator)) for rung, t in rungs]
        state = states[-1]._replace(aux=tuple(states))
    return target.p_value(steps(sampler, energy, state, n_steps, seeded(2), beta).x)


def steps(sampler, energy, state, n_steps, generator, beta=1.0):
    with torch.no_grad():
        for _ in range(n_steps):
            state, _ = sampler.step(energy, state, generator, beta)
    return state


# What many steps add up to is in the chains that converge from any start, too.
@pytest.mark.parametrize(("beta", "n_steps"), [(0.5, 10), only_full(1.0, 1), only_full(1.0, 30)])
def test_exact_draws_stay_exact(exact, beta, n_steps):
    assert stays(exact, n_steps, beta) > P_FLOOR


# Without replicas a chain hardly ever crosses from one mode to the other.
MIXING = [name for name in EXACT if ALL[name].target is not line or ALL[name].ladder]


@pytest.mark.parametrize(
    "name", named(FIRST & set(MIXING) - {"PT", "blocks", "DMALA", "HMC"}, MIXING)
)
def test_chains_converge_from_any_start(name):
    exact = ALL[name]
    energy = exact.energy()
    target = exact.target(energy, 1.0)
    start = target.rarest if isinstance(target, Discrete) else target.draw(1, seeded())[0]
    x = start.expand(N_CHAINS, *start.shape)
    n_steps = 200 if isinstance(target, Line) else 100  # modes that replicas alone connect
    state, _ = exact.sampler.run(energy, x, n_steps, seeded(3))
    assert target.p_value(state.x) > P_FLOOR


def test_chains_of_a_batch_are_independent(case):
    """Neighbouring chains share no random numbers: their sums do not correlate."""
    energy = case.energy()
    x = case.target(energy, 1.0).draw(1, seeded(1))
    state, _ = case.sampler.run(energy, x.expand(N_CHAINS, *x.shape[1:]), 5, seeded(2))
    rows = state.x.flatten(1)
    total = rows @ torch.linspace(1, 2, rows.shape[1], dtype=DOUBLE)
    for lag in (1, 2, len(total) // 2):
        r = torch.corrcoef(torch.stack([total[lag:], total[:-lag]]))[0, 1]
        assert abs(float(r)) < 4.5 / len(total[lag:]) ** 0.5


# ------------------------------------------------------------------------------
# What is known to be biased, and what the check must catch
# ------------------------------------------------------------------------------


def test_samplers_with_a_known_bias_are_listed():
    biased = {name for name, case in ALL.items() if not case.sampler.exact}
    assert {type(ALL[name].sampler) for name in biased} == {
        Langevin,  # unadjusted, of any noise
        AnnealedLangevin,
        DiscreteLangevin,  # without acceptance
        PerturbedMAP,  # with couplings
    }
    assert "DULA" in biased
    assert not biased & {"DMALA", "DMALA one-hot"}
    assert not ParallelTempering(3, Langevin()).exact
    # What adapts is biased while it does: none of those tested as exact is doing so.
    assert not any(ALL[name].sampler.adapts for name in EXACT)


def excess_variance(sampler, n_steps):
    """Variance of unit Gaussian chains that start exact, minus 1."""
    energy = Quadratic(torch.zeros(1, dtype=DOUBLE), torch.ones(1, 1, dtype=DOUBLE))
    x = torch.randn(40_000, 1, generator=seeded(1), dtype=DOUBLE)
    state, _ = sampler.run(energy, x, n_steps, seeded(2))
    return float(state.x.var()) - 1


@pytest.mark.parametrize("h", leading(1, [0.4, 0.1, 0.02]))
def test_the_bias_of_langevin_is_the_known_one(h):
    """x' = (1 - h) x + sigma z has variance sigma^2 / (2h - h^2) in the end."""
    n, error = int(8 / h), 5 * (2 / 40_000) ** 0.5
    assert abs(excess_variance(Langevin(h), n) - (1 / (1 - h / 2) - 1)) < error
    sigma = 0.5 * (2 * h) ** 0.5
    expected = sigma**2 / (2 * h - h**2) - 1
    assert abs(excess_variance(Langevin(h, noise_scale=sigma), n) - expected) < error


@pytest.mark.parametrize("h", [0.8, 0.3])
def test_averaged_noise_has_no_bias_on_gaussians(h):
    assert abs(excess_variance(Langevin(h, averaged=True), 30)) < 5 * (2 / 40_000) ** 0.5


@full
def test_averaged_noise_has_a_smaller_bias_elsewhere():
    """Mean square under a density with exponential tails, against quadrature."""
    energy = Valley(lambda x: 3 * (1 + x.square()).sqrt())
    target = Line(energy, -15, 15)
    x, truth = target.draw(100_000, seeded(1)), 0.5115

    def off(h, averaged):
        moved = Langevin(h, averaged=averaged).run(energy, x, int(6 / h), seeded(2))[0].x
        return abs(float(moved.square().mean()) - truth)

    grid = torch.from_numpy(target.grid)
    assert abs(float(grid[1:].square() @ torch.from_numpy(target.cdf).diff()) - truth) < 1e-3
    assert off(0.05, False) < off(0.2, False) / 3
    assert off(0.2, True) < off(0.2, False) / 10


@full
def test_the_bias_of_langevin_vanishes_as_its_step_decays():
    first = excess_variance(Langevin(0.4), 40)
    last = excess_variance(Langevin(0.4, decay=0.9, decay_delay=2.0), 400)
    assert first > 0.2
    assert abs(last) < 0.05


@full
@pytest.mark.parametrize(
    ("large", "small"), [((1.0, 50), (0.3, 200)), only_full((0.3, 200), (0.15, 1000))]
)
def test_the_bias_of_unadjusted_discrete_langevin_falls_with_its_step(large, small):
    """Down to nothing, as the energy is linear in every bit."""
    energy = coupled()
    target, off = spelled_out(energy), []
    for h, n in (large, small):
        sampler = DiscreteLangevin(h, adjust=False)
        x = sampler.run(energy, target.draw(N_CHAINS, seeded(1)), n, seeded(2))[0].x
        off.append(target.distance(x))
    assert off[0] > 2 * off[1]


def test_the_bias_of_annealed_langevin_falls_with_its_step():
    """On N(1, 1 + level squared), with enough steps at the last level."""
    off = []
    for h in (0.8, 0.2):
        ladder = AnnealedLangevin(h, sigma_max=2.0, sigma_min=1.0, n_levels=3)
        x = torch.zeros(40_000, 1, dtype=DOUBLE)
        state, _ = ladder.run(NoisyPointCloud(), x, int(30 / h), seeded(2))
        off.append(abs(float(state.x.var()) - 2))
        assert abs(float(state.x.mean()) - 1) < 0.05
    assert off[0] > 0.3
    assert off[1] < 0.12


def test_annealed_langevin_visits_its_levels_in_turn():
    seen = []

    class Noting(NoisyPointCloud):
        def forward(self, x, cond=None):
            seen.append(float(cond[0]))
            return super().forward(x, cond)

    ladder = AnnealedLangevin(sigma_max=4.0, sigma_min=1.0, n_levels=3, n_steps_per_level=2)
    ladder.run(Noting(), torch.zeros(2, 1, dtype=DOUBLE), 8, seeded())
    assert seen == pytest.approx([4, 4, 2, 2, 1, 1, 1, 1])


class Hot(Gibbs):
    """Draws one layer at a wrong temperature."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        return super().step(energy, state, generator, 0.8 * beta, clamp)


class Noisy(Gibbs):
    """Flips one hidden unit in ten."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        h = energy.hidden(state.x, beta).sample(generator)
        aux = torch.where(torch.rand(h.shape, generator=generator) < 0.1, 1 - h, h)
        return super().step(energy, state._replace(aux=aux), generator, beta, clamp)


class Sticky(Gibbs):
    """Keeps the old row whenever the new one is less likely: a wrong acceptance rule."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        new, info = super().step(energy, state, generator, beta, clamp)
        worse = energy(new.x) > energy(state.x) + 2
        return new._replace(x=torch.where(worse[:, None], state.x, new.x)), info


@pytest.mark.parametrize("biased", [Hot, Noisy, Sticky])
@pytest.mark.parametrize("n_steps", leading(1, [10, 1, 100]))
def test_the_check_catches_a_biased_kernel(biased, n_steps):
    case = ALL["Gibbs"]
    assert stays(case, n_steps) > P_FLOOR
    assert stays(case, n_steps, sampler=biased()) < P_FLOOR


class AcceptsAlways(MALA):
    """A broken accept rule."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        moved = Langevin(self.step_size)
        new, info = moved.step(energy, moved.init(energy, state.x), generator, beta, clamp)
        return self.init(energy, new.x), info


class IgnoresTheReverseProposal(MALA):
    """A wrong proposal density: judges by energies alone, as if proposals were symmetric."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        new, _ = AcceptsAlways(self.step_size).step(energy, state, generator, beta, clamp)
        u = torch.rand(len(state.x), generator=generator, dtype=DOUBLE)
        keep = u.log() > beta * (state.energy - new.energy)
        x = torch.where(keep[:, None], state.x, new.x)
        return self.init(energy, x), StepInfo(1.0)


def stale(sampler_class, field):
    """The sampler, with what its state caches at x never renewed."""

    class Stale(sampler_class):
        def step(self, energy, state, generator, beta=1.0, clamp=None):
            new, info = super().step(energy, state, generator, beta, clamp)
            return new._replace(**{field: getattr(state, field)}), info

    return Stale


BROKEN = {
    "accepts always": ("MALA", AcceptsAlways(0.3)),
    "wrong proposal density": ("MALA", IgnoresTheReverseProposal(0.3)),
    "MALA with a stale gradient": ("MALA", stale(MALA, "grad")(0.3)),
    "MALA with a stale energy": ("MALA", stale(MALA, "energy")(0.3)),
    "HMC with a stale gradient": ("HMC", stale(HMC, "grad")(0.4, 3)),
    "Metropolis with a stale energy": (
        "MetropolisHastings",
        stale(MetropolisHastings, "energy")(1.0),
    ),
    "GWG with a stale gradient": ("GWG", stale(GibbsWithGradients, "grad")()),
    "DMALA with a stale gradient": ("DMALA", stale(DiscreteLangevin, "grad")(1.0)),
    "DMALA that accepts always": ("DMALA", DiscreteLangevin(1.0, adjust=False)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_catches_a_broken_rule(name):
    """Ten steps from exact draws are enough."""
    honest, broken = BROKEN[name]
    assert stays(ALL[honest], 10, sampler=broken, n=20_000) < P_FLOOR


@full
@pytest.mark.parametrize("name", sorted({honest for honest, _ in BROKEN.values()}))
def test_the_check_of_as_many_rows_passes_honest_rules(name):
    assert stays(ALL[name], 10, n=20_000) > P_FLOOR


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.pair])
def test_a_hidden_layer_drawn_before_is_used(name):
    """The state's x is arbitrary: only chains that continue from `aux` are exact."""
    case = ALL[name]
    energy = case.energy()
    for beta in (1.0, 0.5):
        target = case.target(energy, beta)
        x, h = target.draw_pair(N_CHAINS, seeded(1))
        state = ChainState(torch.zeros_like(x), aux=h)
        generator = seeded(2)
        with torch.no_grad():
            for _ in range(3):
                state, _ = case.sampler.step(energy, state, generator, beta)
                assert target.p_value(state.x) > P_FLOOR


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.pair])
def test_a_used_hidden_layer_is_not_used_again(name):
    case = ALL[name]
    energy = case.energy()
    x = torch.zeros(3, *energy.domain.row_shape, dtype=DOUBLE)
    h = torch.ones(3, *energy.hidden_domain.row_shape, dtype=DOUBLE)
    state, _ = case.sampler.step(energy, ChainState(x, aux=h), seeded())
    assert state.aux is None or not torch.equal(state.aux, h)


def test_blocks_that_cannot_be_are_refused():
    energy, x = MixedRows(), torch.zeros(2, 5, dtype=DOUBLE)
    x[:, 1] = 1
    for sampler, match in (
        (Blocks(GibbsWithGradients()), "does not sample Real"),
        (Blocks(discrete=MALA()), "does not sample Binary"),
        (Blocks(ParallelTempering(3, MALA())), "replicas"),
        (Blocks(discrete=DiscreteLangevin(adapt=True)), "only `real` may"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            sampler.run(energy, x, 1, seeded())
    several = MixedRows()
    several.domain = Mixed((Real((2,)), Real((3,))))
    with pytest.raises(ValueError, match="several blocks of real columns"):
        Blocks().run(several, x, 1, seeded())


@full
def test_blocks_adapt_the_steps_of_their_numbers():
    energy, generator = MixedRows(), seeded()
    x = MixedTarget(energy).draw(500, generator)
    state, _ = Blocks(MALA(10.0, adapt=True)).run(energy, x, 20, generator, n_warmup=200)
    assert 0.02 < state.aux.step_size < 1
    assert Blocks(MALA(0.3)).with_step_size(0.1).real.step_size == 0.1


# ------------------------------------------------------------------------------
# Clamping
# ------------------------------------------------------------------------------


def halves(energy):
    """Two sets of coordinates and the values to clamp them to, a row each."""
    domain = energy.domain
    column = torch.arange(domain.n_columns).view(domain.row_shape)
    one, zero = (torch.full(domain.row_shape, v, dtype=DOUBLE) for v in (1.0, 0.0))
    return [(column < 1, one), (column >= domain.n_columns - 2 + (column.numel() < 3), zero)]


def clamped_runs():
    """Names of cases, where their chains start, and the inverse temperature and steps of a run."""
    for name in EXACT:
        case = ALL[name]
        if case.energy().domain.n_columns == 1:
            continue  # nothing is left free
        if not case.ladder:  # of a ladder only the coldest replicas would start exact
            first = pytest.param if name in MANNERS else only_full
            yield first(name, "exact", 0.5, 10)
            yield only_full(name, "exact", 0.5, 1)
            yield only_full(name, "exact", 1.0, 30)
        # Two places to start from have no covariance to speak of.
        if getattr(case.sampler, "scale", None) != "dense":
            yield only_full(name, "elsewhere", 1.0, 100)


@pytest.mark.parametrize(("name", "start", "beta", "n_steps"), list(clamped_runs()))
def test_free_coordinates_follow_their_conditional(name, start, beta, n_steps):
    """Two halves of the chains are clamped at different places and values."""
    exact = ALL[name]
    energy = exact.energy()
    target = exact.target(energy, beta)
    n, generator = N_CHAINS // 2, seeded(4)
    given = [target.given(mask, value) for mask, value in halves(energy)]
    masks = torch.cat([mask.expand(n, *mask.shape) for mask, _ in halves(energy)])
    x = torch.cat([one.draw(n, generator) for one in given])
    clamp = Clamp(masks, x.clone())
    if start == "elsewhere":
        x = torch.cat([x[:1].expand(n, *x.shape[1:]), x[-1:].expand(n, *x.shape[1:])])
    state, _ = exact.sampler.run(energy, x, n_steps, generator, beta, clamp)
    assert torch.equal(state.x[masks], clamp.value[masks])
    for part, one in zip(state.x.split(n), given, strict=True):
        assert one.p_value(part) > P_FLOOR


def test_clamped_coordinates_hold_at_every_step(case):
    energy = case.energy()
    target = case.target(energy, 1.0)
    value = target.draw(50, seeded(6))
    mask = torch.rand(value.shape, generator=seeded(5)) < 0.5
    clamp = Clamp(mask, value)
    state = case.sampler.init(energy, value)
    generator = seeded(7)
    with torch.no_grad():
        for _ in range(20):
            state, _ = case.sampler.step(energy, state, generator, clamp=clamp)
            assert torch.equal(state.x[mask], clamp.value[mask])
            assert energy.domain.contains(state.x).all()


def test_a_clamp_of_everything_and_of_nothing(case):
    energy = case.energy()
    target = case.target(energy, 1.0)
    x, other = target.draw(100, seeded(1)), target.draw(100, seeded(9))
    everything = Clamp(torch.ones_like(x, dtype=torch.bool), x)
    state, _ = case.sampler.run(energy, other, 3, seeded(2), clamp=everything)
    assert torch.equal(state.x, x)
    if getattr(case.sampler, "scale", None) == "dense":
        return  # beside clamped coordinates its steps are upright
    nothing = Clamp(torch.zeros_like(x, dtype=torch.bool), other)
    state, _ = case.sampler.run(energy, x, 3, seeded(2), clamp=nothing)
    free, _ = case.sampler.run(energy, x, 3, seeded(2))
    assert torch.equal(state.x, free.x)


# ------------------------------------------------------------------------------
# Randomness, shapes and manners
# ------------------------------------------------------------------------------


def test_the_generator_is_the_only_randomness(case):
    energy = case.energy()
    x = case.target(energy, 1.0).draw(200, seeded(1))
    before = torch.get_rng_state()
    first, _ = case.sampler.run(energy, x, 4, seeded(2))
    torch.manual_seed(99)
    second, _ = case.sampler.run(energy, x, 4, seeded(2))
    torch.set_rng_state(before)
    other, _ = case.sampler.run(energy, x, 4, seeded(3))
    assert torch.equal(first.x, second.x)
    assert not torch.equal(first.x, other.x)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_in_two_parts_equals_one_run(case):
    """A state is all that the next step needs."""
    energy = case.energy()
    x = case.target(energy, 1.0).draw(200, seeded(1))
    whole, _ = case.sampler.run(energy, x, 5, seeded(2))
    generator = seeded(2)
    half, _ = case.sampler.run(energy, x, 3, generator)
    assert torch.equal(whole.x, steps(case.sampler, energy, half, 2, generator).x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_chains(case, dtype):
    from_rows = isinstance(getattr(case.sampler, "scale", None), str)
    energy = case.energy()
    rows = case.target(energy, 1.0).draw(33, seeded(1)).to(dtype)
    energy = energy.to(dtype)
    if isinstance(energy, Tilted):
        energy.field = energy.field.to(dtype)
    if getattr(energy, "base", None) is not None:
        base = energy.base.to("cpu", dtype)
        for one in getattr(energy, "models", [energy]):
            one.base = one.structure = base
    for n in (2, 33) if from_rows else (0, 1, 2, 33):  # one row has no scale
        x = rows[:n].clone()
        state, info = case.sampler.run(energy, x, 3, seeded(2))
        assert state.x.shape == (n, *energy.domain.row_shape)
        assert state.x.dtype == dtype
        assert not state.x.requires_grad
        assert energy.domain.contains(state.x).all()
        assert torch.equal(x, rows[:n])  # chains do not write over the rows they started from
        assert n == 0 or 0 <= float(info.acceptance) <= 1


def test_a_step_leaves_the_state_before_it_alone(case):
    energy = case.energy()
    x = case.target(energy, 1.0).draw(20, seeded(1))
    state = case.sampler.init(energy, x)
    copies = [part.clone() for part in leaves(state)]
    steps(case.sampler, energy, state, 3, seeded(2))
    assert all(torch.equal(*pair) for pair in zip(leaves(state), copies, strict=True))


def leaves(state):
    """All tensors of a state."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [t for part in state for t in leaves(part)] if isinstance(state, tuple) else []


def test_cached_values_belong_to_the_rows(case):
    """Also where the energy has changed meanwhile and the state is refreshed."""
    energy = case.energy()
    x = case.target(energy, 1.0).draw(50, seeded(1))
    state = steps(case.sampler, energy, case.sampler.init(energy, x), 4, seeded(2))

    def agrees(state, energy):
        for cached, now in zip(state[1:3], energy.value_and_grad(state.x), strict=True):
            assert cached is None or torch.allclose(cached, now, rtol=1e-12, atol=1e-12)

    agrees(state, energy)
    with torch.no_grad():
        next(energy.parameters()).mul_(1.5)
    fresh = case.sampler.refresh(energy, state)
    agrees(fresh, energy)
    assert torch.equal(fresh.x, state.x)


def test_acceptance_is_a_mean_over_steps(case):
    energy = case.energy()
    x = case.target(energy, 1.0).draw(100, seeded(1))
    generator, each = seeded(2), []
    state = case.sampler.init(energy, x)
    with torch.no_grad():
        for _ in range(6):
            state, info = case.sampler.step(energy, state, generator)
            each.append(float(info.acceptance))
    assert all(0 <= one <= 1 for one in each)
    _, info = case.sampler.run(energy, x, 6, seeded(2))
    assert float(info.acceptance) == pytest.approx(sum(each) / 6)


def watched(energy):
    """Make every method of an energy that a sampler may call note the mode it is called in."""
    seen = []

    def note(method):
        def call(*args, **kwargs):
            seen.append((energy.training, energy.probe.training))
            return method(*args, **kwargs)

        return call

    for name in ("forward", "hidden", "visible", "free_energy", "value_and_grad", "logits"):
        if hasattr(energy, name):
            object.__setattr__(energy, name, note(getattr(energy, name)))
    return seen


@pytest.mark.parametrize("fails", [False, True])
def test_sampling_is_in_eval_mode_and_restores_the_modes(case, fails):
    energy = case.energy()
    energy.probe = torch.nn.Dropout()
    energy.train()
    energy.probe.eval()  # a frozen part in a network that trains
    modes = [module.training for module in energy.modules()]
    x = case.target(energy, 1.0).draw(5, seeded(1))
    seen = watched(energy)
    if fails:
        with pytest.raises(ValueError, match="Chains start at"):
            case.sampler.run(energy, x[:, :-1], 2, seeded(2))
    else:
        case.sampler.run(energy, x, 2, seeded(2))
    assert seen or fails
    assert not any(any(pair) for pair in seen)
    assert [module.training for module in energy.modules()] == modes


def test_sampling_leaves_parameters_and_their_gradients_alone(case):
    energy = case.energy()
    before = [p.detach().clone() for p in energy.parameters()]
    first, *others = energy.parameters()
    first.grad = torch.full_like(first, 3.0)
    x = case.target(energy, 1.0).draw(20, seeded(1))
    case.sampler.run(energy, x, 3, seeded(2))
    assert torch.equal(first.grad, torch.full_like(first, 3.0))
    assert all(p.grad is None for p in others)
    for p, value in zip(energy.parameters(), before, strict=True):
        assert torch.equal(p, value)
        assert p.requires_grad


# ------------------------------------------------------------------------------
# Configuration
# ------------------------------------------------------------------------------


def test_a_sampler_is_its_parameters(case):
    """No energy, no chain, no generator is kept: not before a run, not after one."""
    sampler, energy = clone(case.sampler), case.energy()
    names = set(inspect.signature(type(sampler).__init__).parameters)
    names -= {"self", "args", "kwargs"}
    before = dict(vars(sampler))
    assert set(before) == names == set(sampler.get_params(deep=False))
    sampler.run(energy, case.target(energy, 1.0).draw(5, seeded(1)), 3, seeded(2))
    assert vars(sampler) == before
    for value in vars(sampler).values():
        assert not isinstance(value, torch.Tensor | torch.nn.Module | torch.Generator)


def test_a_sampler_clones(case):
    copy = clone(case.sampler)
    assert copy is not case.sampler
    assert repr(copy) == repr(case.sampler)
    assert copy.get_params(False).keys() == case.sampler.get_params(False).keys()
    energy = case.energy()
    x = case.target(energy, 1.0).draw(50, seeded(1))
    runs = [s.run(energy, x, 3, seeded(2))[0].x for s in (case.sampler, copy)]
    assert torch.equal(*runs)


class Bowl(Energy):
    """x' x on any domain; has no conditionals."""

    def __init__(self, domain):
        super().__init__()
        self.domain = domain

    def forward(self, x, cond=None):
        return x.square().flatten(1).sum(1)


def coupled_levels():
    """Pairwise, but of categories."""
    return BoltzmannMachine(torch.eye(3).flip(0), domain=Categorical((3,)))


# Energies that a sampler must refuse.
NO_CONDITIONALS = [Bowl(Real((3,))), Bowl(Binary((3,)))]
UNSUITABLE = {
    Gibbs: NO_CONDITIONALS,
    ParallelTempering: NO_CONDITIONALS,
    TrajectoryTempering: [*NO_CONDITIONALS, make_rbm(3, 2)],
    PerturbedMAP: [*NO_CONDITIONALS, make_rbm(3, 2), coupled_levels()],
    GibbsWithGradients: [Bowl(Real((3,)))],
    DiscreteLangevin: [Bowl(Real((3,)))],
    Blocks: [Bowl(Binary((3,))), Bowl(Real((3,)))],
    IndependenceSampler: [Bowl(Real((3,)))],
    MetropolisHastings: [Bowl(Binary((3,)))],
    MALA: [Bowl(Binary((3,)))],
    HMC: [Bowl(Binary((3,)))],
    Langevin: [Bowl(Binary((3,)))],
    AnnealedLangevin: [Bowl(Binary((3,)))],
}


def test_every_sampler_lists_unsuitable_energies():
    missing = without_case(Sampler, UNSUITABLE, "UNSUITABLE in tests/contracts/test_samplers.py")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_unsuitable_energies_are_refused(cls):
    for energy in UNSUITABLE[cls]:
        with pytest.raises(TypeError, match=cls.__name__):
            cls().run(energy, torch.zeros(2, 3), 1, seeded())


class OnlyReal(Sampler):
    """Stands still."""

    domains = (Real,)

    def init(self, energy, x):
        return ChainState(x)

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        raise AssertionError("took a step in a domain it does not sample")


def test_a_wrong_domain_is_refused_in_one_place():
    OnlyReal().check(Bowl(Real((3,))))
    with pytest.raises(TypeError, match="OnlyReal.*shape="):
        OnlyReal().run(Bowl(Binary((3,))), torch.zeros(2, 3), 1, seeded())


def test_gibbs_accepts_always():
    energy = make_rbm(4, 3, scale=2.0)
    _, info = Gibbs().run(energy, torch.zeros(3, 4, dtype=DOUBLE), 7, seeded())
    assert float(info.acceptance) == 1


def test_gibbs_draws_both_layers_from_the_joint():
    """x after a step and the hidden layer it was drawn from are a draw of p(x, h)."""
    energy = make_rbm(3, 2)
    kept = []

    class Noting(BernoulliRBM):
        def visible(self, h, beta=1.0, field=None):
            kept.append(h)
            return super().visible(h, beta, field)

    energy.__class__ = Noting
    target = Enumerated(energy)
    state, _ = Gibbs().run(energy, target.draw(N_CHAINS, seeded(1)), 2, seeded(2))
    pair = torch.cat([state.x, kept[-1]], 1)
    p = (-joint_energy(energy, target.x, target.h)).flatten().softmax(0)
    assert chi_square(count_states(pair), p) > P_FLOOR


# ------------------------------------------------------------------------------
# Parallel tempering
# ------------------------------------------------------------------------------


def two_wells():
    """All columns agree or all disagree with a template: Gibbs chains do not change modes."""
    energy = make_rbm(6, 1, scale=0.0, bias=0.0)
    with torch.no_grad():
        energy.weight.fill_(14.0)
        energy.visible_bias.fill_(-7.0)
        energy.hidden_bias.fill_(-42.0)
    return energy


@full
def test_tempering_changes_modes_where_gibbs_does_not():
    energy, n = two_wells(), 2000
    x = torch.zeros(n, 6, dtype=DOUBLE)
    stuck, _ = Gibbs().run(energy, x, 200, seeded(1))
    free, info = ParallelTempering(8).run(energy, x, 200, seeded(1))
    truth = float((Enumerated(energy).p @ Enumerated(energy).x[:, 0]).detach())  # one half
    assert float(stuck.x[:, 0].mean()) < 0.05
    assert abs(float(free.x[:, 0].mean()) - truth) < 4.5 * (0.25 / n) ** 0.5
    assert 0.1 < float(info.acceptance) < 1


def test_exchanges_permute_the_rows():
    """Between replicas that do not move, every row of a ladder stays in it."""

    class Still(Gibbs):
        def step(self, energy, state, generator, beta=1.0, clamp=None):
            return state, StepInfo(1.0)

    energy, n = make_rbm(4, 3), 50
    sampler = ParallelTempering(4, Still())
    rows = energy.domain.uniform(4 * n, seeded(1), dtype=DOUBLE).view(4, n, 4)
    state = ChainState(rows[3], aux=tuple(map(ChainState, rows)))
    state = steps(sampler, energy, state, 5, seeded(2))
    after = torch.stack([one.x for one in state.aux])
    assert torch.equal(state.x, after[3])
    assert not torch.equal(after, rows)
    place = 2 ** torch.arange(4)
    before, after = (ladder.long() @ place for ladder in (rows, after))
    assert torch.equal(before.sort(0).values, after.sort(0).values)


def test_a_ladder_of_one_temperature_is_refused():
    with pytest.raises(ValueError, match="n_temperatures must be"):
        ParallelTempering(1).run(make_rbm(4, 3), torch.zeros(2, 4, dtype=DOUBLE), 1, seeded())


@pytest.mark.parametrize("n", [-1, 0.5, "all", None, True])
def test_unusable_numbers_of_collapsed_units(n):
    with pytest.raises(ValueError, match="n_collapsed must be"):
        Gibbs(n).run(make_rbm(4, 3), torch.zeros(2, 4, dtype=DOUBLE), 1, seeded())


def held_by_columns():
    """One hidden unit that is determined by forty columns, and is 1 in half of all rows."""
    energy = make_rbm(40, 1)
    with torch.no_grad():
        energy.weight.fill_(4.0)
        energy.visible_bias.fill_(-2.0)
        energy.hidden_bias.fill_(-40 * math.log((1 + math.exp(2.0)) / (1 + math.exp(-2.0))))
    return energy


def test_collapsed_draws_leave_a_mode_that_block_gibbs_does_not():
    energy, start = held_by_columns(), torch.zeros(2000, 40, dtype=DOUBLE)
    on = {
        n: (Gibbs(n).run(energy, start, 5, seeded())[0].x.mean(1) > 0.5).double().mean()
        for n in (0, 1)
    }
    assert on[0] == 0
    assert abs(on[1] - 0.5) < 5 * 0.5 / 2000**0.5


def test_collapsed_draws_respect_the_clamp():
    """Ten columns clamped to 1 determine the mode."""
    energy, start = held_by_columns(), torch.zeros(200, 40, dtype=DOUBLE)
    mask = torch.zeros_like(start, dtype=torch.bool)
    mask[:, :10] = True
    clamp = Clamp(mask, torch.ones_like(start))
    x = Gibbs(1).run(energy, start, 2, seeded(), clamp=clamp)[0].x
    assert (x.mean(1) > 0.5).all()
