"""Properties of each sampler beyond the contract: steps, schedules, adaptation, bounds, errors."""

import math
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skebm.base import (
    Binary,
    ChainState,
    Clamp,
    Energy,
    Real,
    SamplingError,
    SamplingWarning,
)
from skebm.diagnostics import effective_sample_size
from skebm.samplers import (
    HMC,
    MALA,
    AnnealedLangevin,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    Langevin,
    MetropolisHastings,
    ParallelTempering,
)
from skebm.samplers._adaptation import DenseScale
from tests.support.oracle import DOUBLE, P_FLOOR, make_rbm, seeded
from tests.support.targets import Line, LinearInABox, Normal, Quadratic, Valley, two_modes
from tests.support.tiers import full, leading

D = 3
WIDE = torch.tensor([0.1, 1.0, 30.0], dtype=DOUBLE)
ADAPTIVE = [MALA(adapt=True), MetropolisHastings(adapt=True), HMC(0.1, 4, adapt=True)]


def unit(d=D):
    return Quadratic(torch.zeros(d, dtype=DOUBLE), torch.eye(d, dtype=DOUBLE))


def uneven():
    return Quadratic(torch.zeros(D, dtype=DOUBLE), torch.diag(WIDE.square()))


def normal_rows(n, d=D, seed=1):
    return torch.randn(n, d, generator=seeded(seed), dtype=DOUBLE)


# ------------------------------------------------------------------------------
# Langevin: the arithmetic of a step
# ------------------------------------------------------------------------------


def noise_of(x, seed):
    return torch.randn(x.shape, generator=seeded(seed), dtype=x.dtype)


def moved(sampler, energy, x, n_steps=1, **kwargs):
    return sampler.run(energy, x, n_steps, seeded(5), **kwargs)[0].x


def test_the_three_parametrisations_of_langevin():
    energy, x = unit(), normal_rows(20)
    grad, z = x, noise_of(x, 5)
    eps, lam, alpha, sigma = 0.3, 0.2, 0.4, 0.05
    score = x - eps * grad + math.sqrt(2 * eps) * z
    half = x - lam / 2 * grad + math.sqrt(lam) * z
    apart = x - alpha * grad + sigma * z
    for sampler, expected in (
        (Langevin(eps), score),
        (Langevin(lam / 2), half),
        (Langevin(alpha, noise_scale=sigma), apart),
    ):
        assert torch.allclose(moved(sampler, energy, x), expected)


def test_one_leapfrog_step_proposes_as_langevin_dynamics_does():
    x, h, generator = normal_rows(200), 0.5, seeded(5)
    torch.rand(200, 1, generator=generator, dtype=DOUBLE)  # the jitter of step sizes, here none
    z = torch.randn(x.shape, generator=generator, dtype=DOUBLE)
    moves = moved(HMC(h, n_leapfrog=1, jitter=0.0), unit(), x)
    accepted = (moves != x).any(1)
    assert accepted.double().mean() > 0.9
    torch.testing.assert_close(moves[accepted], (x - h**2 / 2 * x + h * z)[accepted])


def test_langevin_without_noise_descends():
    x = normal_rows(5)
    got = moved(Langevin(0.1, noise_scale=0.0), unit(), x, 10, beta=2.0)
    assert torch.allclose(got, x * (1 - 0.1 * 2.0) ** 10)


def test_langevin_steps_decrease_as_scheduled():
    """Of Welling and Teh's a (b + t)^-gamma, a b^-gamma being the first step."""
    x, h, b, gamma = normal_rows(5), 0.3, 4.0, 0.55
    got = moved(Langevin(h, noise_scale=0.0, decay=gamma, decay_delay=b), unit(), x, 6)
    for t in range(6):
        x = x * (1 - h * b**gamma * (b + t) ** -gamma)
    assert torch.allclose(got, x)


def test_the_noise_of_langevin_shrinks_with_its_steps():
    x, flat = torch.zeros(1, D, dtype=DOUBLE), unit()
    sampler = Langevin(1e-12, noise_scale=1.0, decay=1.0, decay_delay=1.0)
    generator = seeded(5)
    expected = sum(
        torch.randn(1, D, generator=generator, dtype=DOUBLE) / math.sqrt(1 + t) for t in range(4)
    )
    assert torch.allclose(moved(sampler, flat, x, 4), expected)


def test_clipped_gradients_are_clipped_entry_by_entry():
    x = torch.tensor([[100.0, -100.0, 0.5]], dtype=DOUBLE)
    got = moved(Langevin(1.0, noise_scale=0.0, clip_grad=2.0), unit(), x)
    assert torch.equal(got, torch.tensor([[98.0, -98.0, 0.0]], dtype=DOUBLE))
    got = moved(Langevin(1.0, noise_scale=0.0, clip_grad=2.0), unit(), x, beta=10.0)
    assert torch.equal(got, torch.tensor([[98.0, -98.0, -1.5]], dtype=DOUBLE))


def test_a_scale_is_a_change_of_units():
    """In units of their scale, columns of an uneven Gaussian move as those of an even one."""
    x = normal_rows(20)
    for sampler in (Langevin(0.1), MALA(0.3), HMC(0.3, 3), MetropolisHastings(0.8)):
        wide = clone(sampler).set_params(scale=WIDE.tolist())
        got = moved(wide, uneven(), x * WIDE, 5)
        assert torch.allclose(got / WIDE, moved(sampler, unit(), x, 5))


def test_bounds_reflect_or_clip():
    x = torch.tensor([[1.9, 0.0], [-0.9, 1.0]], dtype=DOUBLE)
    energy = LinearInABox()  # in [-1, 2], gradients -1.5 and 0.3 + 2 x
    with torch.no_grad():
        energy.slope.copy_(torch.tensor([-3.0, 0.0]))
    step = torch.tensor([[1.5, 0.0], [1.5, -1.0]], dtype=DOUBLE)  # what half a step asks for
    reflected = moved(Langevin(0.5, noise_scale=0.0), energy, x)
    clipped = moved(Langevin(0.5, noise_scale=0.0, bounds="clip"), energy, x)
    assert torch.allclose(clipped, (x + step).clamp(-1, 2))
    assert torch.allclose(reflected, torch.tensor([[2 - 1.4, 0.0], [0.6, 0.0]], dtype=DOUBLE))
    far = moved(Langevin(500.0), energy, x, 3)  # many times across the box
    assert energy.domain.contains(far).all()


@pytest.mark.parametrize("sign", leading(1, [-1.0, 1.0]))
def test_one_bound_reflects(sign):
    """An exponential distribution on either half line."""
    low, high = (0.0, None) if sign > 0 else (None, 0.0)
    energy = Valley(lambda x: sign * x, low, high)
    target = Line(energy, *((0, 40) if sign > 0 else (-40, 0)))
    for sampler in (HMC(0.5, 4), MALA(0.5), MetropolisHastings(1.0)):
        x = target.draw(20_000, seeded(1))
        state, _ = sampler.run(energy, x, 20, seeded(2))
        assert (sign * state.x >= 0).all()
        assert target.p_value(state.x) > P_FLOOR
    reflected = Langevin(0.01).run(energy, target.draw(20_000, seeded(1)), 50, seeded(2))[0].x
    assert (sign * reflected >= 0).all()
    assert abs(float(reflected.mean()) - sign) < 0.05


# ------------------------------------------------------------------------------
# Adaptation
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", leading(1, [50.0, 1e-4, 1.0]))
@pytest.mark.parametrize("sampler", leading(1, ADAPTIVE), ids=lambda s: type(s).__name__)
def test_the_warm_up_reaches_the_target_acceptance(sampler, first):
    sampler = clone(sampler).set_params(step_size=first)
    for target in (sampler.target_acceptance, 0.4):
        sampler.set_params(target_acceptance=target)
        energy = unit(10)
        _, info = sampler.run(energy, normal_rows(200, 10), 100, seeded(2), n_warmup=300)
        assert abs(float(info.acceptance) - target) < 0.06


@full
@pytest.mark.parametrize("first", leading(1, [5.0, 0.02]))
def test_discrete_langevin_reaches_the_target_acceptance(first):
    energy = make_rbm(40, 20, scale=1.0)
    x = energy.domain.uniform(200, seeded(1), dtype=DOUBLE)
    sampler = DiscreteLangevin(first, adapt=True)
    _, info = sampler.run(energy, x, 100, seeded(2), n_warmup=400)
    assert abs(float(info.acceptance) - 0.574) < 0.06


@full
@pytest.mark.parametrize("n_chains", leading(1, [200, 1]))
@pytest.mark.parametrize("sampler", leading(1, ADAPTIVE), ids=lambda s: type(s).__name__)
def test_the_warm_up_estimates_the_scale_of_each_column(sampler, n_chains):
    sampler = clone(sampler).set_params(scale="auto")
    x = torch.full((n_chains, D), 0.1, dtype=DOUBLE)
    state, _ = sampler.run(uneven(), x, 1, seeded(2), n_warmup=1200)
    slack = 0.15 if n_chains > 1 else 0.5
    ratio = state.aux.scale / WIDE
    assert ((ratio / ratio.mean()).log().abs() < slack).all()


@full
@pytest.mark.parametrize("sampler", leading(1, ADAPTIVE), ids=lambda s: type(s).__name__)
def test_the_warm_up_estimates_the_covariance(sampler):
    """Two columns of correlation 0.99, and a third that is thirty times as wide."""
    cov = torch.tensor([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 900.0]], dtype=DOUBLE)
    energy = Quadratic(torch.zeros(D, dtype=DOUBLE), cov)
    sampler = clone(sampler).set_params(scale="dense")
    state, _ = sampler.run(energy, normal_rows(50), 1, seeded(2), n_warmup=1500)
    found = state.aux.scale.scale_tril @ state.aux.scale.scale_tril.T
    assert torch.allclose(found / cov.diagonal().mean(), cov / cov.diagonal().mean(), atol=0.2)
    assert float(found[0, 1] / (found[0, 0] * found[1, 1]).sqrt()) > 0.97
    one, _ = sampler.run(energy, normal_rows(1), 1, seeded(2), n_warmup=100)  # a single chain
    assert one.x.isfinite().all()


def test_a_dense_scale_is_a_change_of_units():
    """Chains of a correlated Gaussian move as those of an even one, turned."""
    root = torch.tensor([[1.0, 0, 0], [0.9, 0.3, 0], [-5.0, 2.0, 7.0]], dtype=DOUBLE)
    turned = Quadratic(torch.zeros(D, dtype=DOUBLE), root @ root.T)
    x = normal_rows(20)
    for sampler in (Langevin(0.1), MALA(0.3), HMC(0.3, 3), MetropolisHastings(0.8)):
        state = clone(sampler).set_params(scale="dense").init(turned, x @ root.T)
        scale = DenseScale(root)
        aux = (0, scale, None) if isinstance(sampler, Langevin) else state.aux._replace(scale=scale)
        start = state._replace(aux=aux)
        got = sampler.run(turned, start, 5, seeded(5))[0].x
        assert torch.allclose(got, moved(sampler, unit(), x, 5) @ root.T)


def test_a_dense_scale_is_refused_with_bounds():
    with pytest.raises(ValueError, match='scale="dense"'):
        MALA(scale="dense").run(LinearInABox(), torch.zeros(5, 2, dtype=DOUBLE), 1, seeded())


def test_scales_are_those_of_the_rows_that_chains_start_from():
    x = normal_rows(500) * WIDE
    state = MALA(scale="auto").init(uneven(), x)
    assert torch.allclose(state.aux.scale, x.std(0))
    x[:, 1] = 7.0  # a column that does not vary has no scale
    assert MALA(scale="auto").init(uneven(), x).aux.scale[1] == 1


@pytest.mark.parametrize("sampler", ADAPTIVE, ids=lambda s: type(s).__name__)
def test_adapted_chains_are_frozen_and_exact(sampler):
    """Settings adapted on some chains are used by others that start exact."""
    energy = unit()
    warm, _ = clone(sampler).set_params(scale="auto").run(energy, normal_rows(50), 5, seeded(2))
    assert warm.aux.adaptation is None
    target = Normal(torch.zeros(D, dtype=DOUBLE), torch.eye(D, dtype=DOUBLE))
    state = sampler.init(energy, target.draw(20_000, seeded(3)))._replace(aux=warm.aux)
    after, _ = sampler.run(energy, state, 30, seeded(4))
    assert after.aux.step_size == warm.aux.step_size
    assert target.p_value(after.x) > P_FLOOR


def test_steps_change_only_while_adapting():
    sampler, energy = MALA(adapt=True), unit()
    state, generator, seen = sampler.init(energy, normal_rows(20)), seeded(2), []
    with torch.no_grad():
        for _ in range(5):
            state, _ = sampler.step(energy, state, generator)
            seen.append(float(state.aux.step_size))
        assert len(set(seen)) == 5
        state = sampler.freeze(state)
        found = state.aux.step_size
        for _ in range(5):
            state, _ = sampler.step(energy, state, generator)
            assert state.aux.step_size == found


def test_adaptation_is_bounded_where_nothing_is_rejected():
    """Everything is clamped, so nothing is ever rejected."""
    x = normal_rows(4)
    clamp = Clamp(torch.ones_like(x, dtype=torch.bool), x)
    state, _ = MALA(adapt=True).run(unit(), x, 10, seeded(2), clamp=clamp, n_warmup=500)
    assert 0 < float(state.aux.step_size) < 1e8
    assert torch.equal(state.x, x)


@full
def test_replicas_adapt_separately():
    energy, x = Valley(two_modes), torch.zeros(100, 1, dtype=DOUBLE)
    sampler = ParallelTempering(4, MALA(adapt=True), max_temperature=20.0)
    state, _ = sampler.run(energy, x, 5, seeded(2), n_warmup=300)
    found = [float(one.aux.step_size) for one in state.aux]
    assert found == sorted(found, reverse=True)
    assert all(one.aux.adaptation is None for one in state.aux)


def test_replicas_that_hardly_exchange_rows_are_warned_of_once():
    """Two temperatures of a normal distribution in forty columns have no rows in common."""
    energy = Quadratic(torch.zeros(40, dtype=DOUBLE), torch.eye(40, dtype=DOUBLE))
    x = torch.randn(50, 40, generator=seeded(), dtype=DOUBLE)
    with pytest.warns(SamplingWarning, match="Rungs 0 and 1 of 2 .* n_temperatures") as caught:
        ParallelTempering(2, MALA(0.5), max_temperature=1e4).run(energy, x, 20, seeded(1))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ParallelTempering(4, MALA(0.5), max_temperature=1.5).run(energy, x, 20, seeded(1))


# ------------------------------------------------------------------------------
# Runs
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [MALA(0.2, adapt=True), HMC(0.2, 2), Langevin(0.1, decay=0.6)])
def test_a_run_continues_from_a_state(sampler):
    energy, x, generator = unit(), normal_rows(10), seeded(2)
    whole, _ = sampler.run(energy, x, 9, seeded(2), n_warmup=4)
    half, _ = sampler.run(energy, x, 5, generator, n_warmup=4)
    rest, _ = sampler.run(energy, half, 4, generator)
    assert torch.equal(whole.x, rest.x)


def test_a_schedule_of_temperatures_is_followed():
    energy, x = unit(), normal_rows(10)
    betas, generator = [0.1, 0.5, 2.0], seeded(5)
    state = MALA(0.3).init(energy, x)
    with torch.no_grad():
        for beta in betas:
            state, _ = MALA(0.3).step(energy, state, generator, beta)
    for schedule in (betas, torch.tensor(betas, dtype=DOUBLE), np.array(betas)):
        assert torch.equal(moved(MALA(0.3), energy, x, 3, beta=schedule), state.x)


@full
def test_annealing_finds_the_deeper_well():
    """From the shallow one, where chains at the last temperature stay."""
    energy = Valley(lambda x: 2 * (x.square() - 1).square() - 0.6 * x)
    x = torch.full((200, 1), -1.0, dtype=DOUBLE)
    betas = torch.linspace(0.1, 6, 1000)
    annealed = MALA(0.05).run(energy, x, 1000, seeded(2), betas)[0].x
    stuck = MALA(0.05).run(energy, x, 1000, seeded(2), 6.0)[0].x
    assert float((stuck > 0).double().mean()) < 0.1
    assert float((annealed > 0).double().mean()) > 0.7


def test_a_trace_holds_every_kept_step():
    energy, x = unit(), normal_rows(6)
    trace = MALA(0.3).trace(energy, x, 10, seeded(2), thin=3)
    assert trace.x.shape == (10, 6, D)
    assert trace.energy.shape == (10, 6)
    assert trace.acceptance.shape == (10,)
    assert trace.n_steps == 30
    assert trace.thin == 3
    assert trace.converged is None
    state, info = MALA(0.3).run(energy, x, 30, seeded(2))
    assert torch.equal(trace.x[-1], state.x)
    assert torch.equal(trace.state.x, state.x)
    assert torch.allclose(trace.energy, energy(trace.x.flatten(0, 1)).detach().view(10, 6))
    assert float(trace.acceptance.mean()) == pytest.approx(float(info.acceptance))
    assert trace.ess().shape == trace.r_hat().shape == (D,)


def test_traces_have_energies_that_the_sampler_does_not_need():
    energy, x = make_rbm(5, 3), torch.zeros(4, 5, dtype=DOUBLE)
    trace = Gibbs().trace(energy, x, 8, seeded(2))
    assert torch.allclose(trace.energy, energy(trace.x.flatten(0, 1)).detach().view(8, 4))


def test_a_trace_is_summed_up_by_column():
    trace = MALA(0.3).trace(unit(), normal_rows(6), 50, seeded(2))
    found, draws = trace.summary(), trace.x.flatten(0, 1).double()
    assert {values.shape for values in found.values()} == {(D,)}
    assert found["mean"].tolist() == draws.mean(0).tolist()
    error = found["sd"] / np.sqrt(trace.ess("mean"))
    assert found["mcse"].tolist() == error.tolist()
    assert found["r_hat"].tolist() == trace.r_hat().tolist()


def test_a_trace_of_images_has_an_entry_for_each_pixel():
    trace = Gibbs().trace(make_rbm(6, 3), torch.zeros(4, 6, dtype=DOUBLE), 8, seeded(2))
    images = trace._replace(x=trace.x.unflatten(2, (2, 3)))
    for name, values in images.summary().items():
        np.testing.assert_array_equal(values, trace.summary()[name])


def test_a_trace_goes_to_arviz(monkeypatch):
    """As chains of draws, with minus the energies; its packages are optional."""
    trace = MALA(0.3).trace(unit(), normal_rows(6), 10, seeded(2))
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install arviz"):
        trace.to_arviz()
    old, new = {"arviz": lambda **groups: groups}, {"arviz_base": lambda groups: groups}
    for package, call in (old | new).items():
        monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(from_dict=call))
        groups = trace.to_arviz("z")
        assert groups["posterior"]["z"].shape == (6, 10, D)
        assert groups["sample_stats"]["lp"].tolist() == (-trace.energy.t()).tolist()


def test_run_until_stops_at_convergence():
    x = 5 * normal_rows(8)
    trace = MALA(0.5).run_until(unit(), x, seeded(2), r_hat=1.05, max_steps=20_000)
    assert trace.converged
    assert trace.n_steps < 20_000
    assert abs(float(trace.x.var()) - 1) < 0.3  # the way there is left out
    assert len(trace.x) * trace.thin <= trace.n_steps // 2 + trace.thin


def test_run_until_stops_at_its_budget():
    energy = Valley(lambda x: 50 * (x.square() - 4).square())
    x = torch.tensor([[-2.0], [2.0]], dtype=DOUBLE).repeat(4, 1)
    with pytest.warns(ConvergenceWarning, match="R-hat is .* after 400 steps"):
        trace = MALA(1e-3).run_until(energy, x, seeded(2), max_steps=400)
    assert trace.converged is False
    assert trace.n_steps == 400
    with pytest.warns(ConvergenceWarning):
        trace = MALA(1e-3).run_until(energy, x, seeded(2), max_steps=10**9, max_seconds=0.01)
    assert trace.n_steps == 100


def test_chains_that_do_not_move_have_not_converged():
    energy = Valley(lambda x: 1e9 * x.square())
    x = torch.zeros(4, 1, dtype=DOUBLE)
    with pytest.warns(ConvergenceWarning, match="R-hat is nan"):
        assert not MALA(10.0).run_until(energy, x, seeded(), max_steps=100).converged


@full
def test_long_runs_are_thinned():
    energy = Valley(lambda x: 50 * (x.square() - 4).square())
    x = torch.tensor([[-2.0], [2.0]], dtype=DOUBLE)
    with pytest.warns(ConvergenceWarning):
        trace = MALA(1e-3).run_until(energy, x, seeded(2), max_steps=2500)
    assert trace.n_steps == 2500
    assert 500 <= len(trace.x) <= 1000
    assert trace.acceptance.shape == (len(trace.x),)


def test_an_adaptive_run_warms_up_as_long_as_it_runs():
    steps = []

    class Counting(MALA):
        def step(self, energy, state, generator, beta=1.0, clamp=None):
            steps.append(state.aux.adaptation is not None)
            return super().step(energy, state, generator, beta, clamp)

    Counting(adapt=True).run(unit(), normal_rows(5), 7, seeded())
    assert steps == [True] * 7 + [False] * 7
    steps.clear()
    Counting(adapt=True).run(unit(), normal_rows(5), 7, seeded(), n_warmup=0)
    assert steps == [False] * 7


# ------------------------------------------------------------------------------
# Long chains
# ------------------------------------------------------------------------------


def banana(x):
    return x[:, 0].square() / 8 + (x[:, 1] - x[:, 0].square() / 2).square()


class Banana(Energy):
    """x0 ~ N(0, 4); x1 given x0 ~ N(x0^2 / 2, 1 / 2)."""

    domain = Real((2,))

    def forward(self, x, cond=None):
        return banana(x)


@full
@pytest.mark.parametrize(
    ("sampler", "n_steps"),
    [(MetropolisHastings(1.5), 10_000), (MALA(0.3), 5000), (HMC(0.15, 6), 2000)],
    ids=["MetropolisHastings", "MALA", "HMC"],
)
def test_moments_are_stable_over_a_hundred_thousand_steps(sampler, n_steps):
    """Moments of both halves agree with the truth within five standard errors by their ESS.

    Steps are small enough for the banana's tails: HMC of steps of 0.4 hardly ever enters them, and
    no diagnostic of its draws can tell.
    """
    cases = [
        (Valley(two_modes), torch.zeros(40, 1, dtype=DOUBLE), lambda x: x, [0.8]),
        (Valley(two_modes), torch.zeros(40, 1, dtype=DOUBLE), torch.square, [4.808]),
        (Banana(), torch.zeros(40, 2, dtype=DOUBLE), lambda x: x, [0.0, 2.0]),
    ]
    for energy, x, function, truth in cases:
        trace = sampler.trace(energy, x, n_steps, seeded(2), n_warmup=0)
        for half in trace.x.split(n_steps // 2):
            values = function(half)
            error = values.std((0, 1)) / torch.as_tensor(effective(values)).sqrt()
            off = (values.mean((0, 1)) - torch.tensor(truth, dtype=DOUBLE)).abs()
            assert (off < 5 * error).all()


def effective(values):
    return effective_sample_size(values, kind="mean")


# ------------------------------------------------------------------------------
# Crossing
# ------------------------------------------------------------------------------


@full  # tests/contracts/test_samplers.py has it for Gibbs
def test_tempering_changes_modes_where_langevin_does_not():
    far = Valley(lambda x: -torch.logaddexp(-((x - 8) ** 2) / 2, -((x + 8) ** 2) / 2))
    x = torch.full((1000, 1), 8.0, dtype=DOUBLE)
    stuck = MALA(0.5).run(far, x, 300, seeded(1))[0].x
    sampler = ParallelTempering(8, MALA(adapt=True), max_temperature=60.0)
    free, info = sampler.run(far, x, 600, seeded(1), n_warmup=200)
    assert float((stuck < 0).double().mean()) == 0
    assert abs(float((free.x < 0).double().mean()) - 0.5) < 5 * (0.25 / 1000) ** 0.5
    assert 0.2 < float(info.acceptance) < 1


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------

ON_REAL = [MetropolisHastings(0.5), Langevin(0.1), MALA(0.1), HMC(0.1, 3), AnnealedLangevin()]
ON_BITS = [GibbsWithGradients(), DiscreteLangevin()]
BY_GRADIENT = [*ON_REAL[1:], *ON_BITS]


class Given(Energy):
    """An energy given by a function of x."""

    def __init__(self, function, domain):
        super().__init__()
        self.function, self.domain = function, domain
        self.calls = 0

    def forward(self, x, cond=None):
        self.calls += 1
        return self.function(self, x)


def domain_for(sampler):
    return (
        Binary((D,)) if isinstance(sampler, GibbsWithGradients | DiscreteLangevin) else Real((D,))
    )


def zeros(n=4):
    return torch.zeros(n, D, dtype=DOUBLE)


@pytest.mark.parametrize("sampler", [*ON_REAL, *ON_BITS], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "shape",
    [lambda e, x: x.square().sum(), lambda e, x: x.square(), lambda e, x: x.sum(1)[:, None]],
)
def test_energies_of_a_wrong_shape(sampler, shape):
    with pytest.raises(ValueError, match=r"Given must return one energy per row, of shape \(4,\)"):
        sampler.run(Given(shape, domain_for(sampler)), zeros(), 3, seeded())


@pytest.mark.parametrize("sampler", BY_GRADIENT, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "function", [lambda e, x: x.detach().sum(1), lambda e, x: x.new_ones(len(x)), None]
)
def test_energies_without_a_gradient(sampler, function):
    energy = Given(function or by_numpy, domain_for(sampler))
    with pytest.raises(TypeError, match="Given is not differentiable with respect to x"):
        sampler.run(energy, zeros(), 3, seeded())


def by_numpy(energy, x):
    return torch.from_numpy(x.detach().numpy().sum(1))


def test_metropolis_needs_no_gradient():
    energy = Given(lambda e, x: by_numpy(e, x).square(), Real((D,)))
    state, _ = MetropolisHastings().run(energy, zeros(), 3, seeded())
    assert state.x.isfinite().all()


@pytest.mark.parametrize("sampler", [*ON_REAL, *ON_BITS], ids=lambda s: type(s).__name__)
def test_an_energy_that_turns_nan_names_the_chain_and_keeps_the_state(sampler):
    def spoilt(energy, x):
        value = x.square().sum(1)
        if energy.calls > 5:
            value = value + torch.tensor([0.0, 0.0, math.nan, 0.0])
        return value

    energy = Given(spoilt, domain_for(sampler))
    with pytest.raises(SamplingError, match="chain 2") as e:
        sampler.run(energy, zeros(), 50, seeded())
    state = e.value.state
    assert isinstance(state, ChainState)
    assert state.x.shape == (4, D)
    assert state.x.isfinite().all()
    assert energy.domain.contains(state.x).all()
    assert "At step" in e.value.__notes__[0]
    # Chains go on from there under an energy that is sound.
    energy.function = lambda energy, x: x.square().sum(1)
    on, _ = sampler.run(energy, sampler.refresh(energy, state), 3, seeded())
    assert on.x.isfinite().all()


def test_a_state_before_a_failing_step_is_untouched():
    energy = Given(lambda e, x: x.square().sum(1) / (e.calls < 4), Real((D,)))
    sampler, generator = MALA(), seeded()
    state = sampler.init(energy, zeros())
    with torch.no_grad():
        state, _ = sampler.step(energy, state, generator)
        kept = state.x.clone()
        energy.function = lambda e, x: x.sum(1) * math.nan
        with pytest.raises(SamplingError):
            sampler.step(energy, state, generator)
    assert torch.equal(state.x, kept)


def test_diverging_langevin_chains_raise():
    energy = Given(lambda e, x: x.pow(4).sum(1), Real((D,)))
    with pytest.raises(SamplingError, match=r"smaller\s+step_size, or a sampler that rejects") as e:
        Langevin(1.0).run(energy, zeros() + 1, 100, seeded())
    assert e.value.state.x.isfinite().all()


@pytest.mark.parametrize("sampler", [MALA(50.0), HMC(50.0, 20), MetropolisHastings(1e200)])
@pytest.mark.parametrize("power", [2, 4])
def test_steps_that_are_too_large_are_rejected(sampler, power):
    """Also where powers of x overflow and their difference is nan."""
    energy = Given(lambda e, x: (x.pow(power) - 1e-3 * x.pow(power - 1)).sum(1), Real((D,)))
    state, info = sampler.run(energy, zeros() + 0.5, 20, seeded())
    assert state.x.isfinite().all()
    assert state.energy.isfinite().all()
    assert 0 <= float(info.acceptance) <= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampler", [*ON_REAL, *ON_BITS], ids=lambda s: type(s).__name__)
def test_chains_cannot_start_at_nan_or_inf(sampler, bad):
    energy = Given(lambda e, x: x.square().sum(1), domain_for(sampler))
    x = zeros()
    x[2, 1] = bad
    with pytest.raises(ValueError, match="row 2 is not in it"):
        sampler.run(energy, x, 3, seeded())


def test_chains_cannot_start_outside_the_bounds():
    with pytest.raises(ValueError, match="cannot start outside of"):
        MALA().run(LinearInABox(), torch.full((2, 2), 3.0, dtype=DOUBLE), 1, seeded())
    with pytest.raises(ValueError, match="cannot start outside of"):
        GibbsWithGradients().run(make_rbm(3, 2), zeros() + 0.5, 1, seeded())


def test_chains_cannot_start_where_the_energy_is_infinite():
    energy = Given(lambda e, x: torch.where(x[:, 0] > 0, x.sum(1), math.inf), Real((D,)))
    with pytest.raises(ValueError, match="row 0"):
        MALA().run(energy, zeros(), 1, seeded())
    state, _ = MALA().run(energy, zeros() + 1, 30, seeded())  # a wall of the energy's own
    assert (state.x[:, 0] > 0).all()


@pytest.mark.parametrize("n_steps", [0, -1, 1.5, True, None, "3"])
def test_invalid_numbers_of_steps_are_refused(n_steps):
    for run in (MALA().run, Langevin().run):
        with pytest.raises(ValueError, match="n_steps must be"):
            run(unit(), zeros(), n_steps, seeded())


BAD_SETTINGS = [
    (sampler, "step_size", value)
    for sampler in (*ON_REAL, DiscreteLangevin())
    for value in (0, 0.0, -0.1, math.nan, "small", None)
] + [
    (Langevin(), "noise_scale", -1.0),
    (Langevin(), "decay", 1.5),
    (Langevin(), "decay_delay", 0),
    (Langevin(), "clip_grad", 0),
    (Langevin(), "bounds", "bounce"),
    (MALA(), "target_acceptance", 1.0),
    (MALA(), "adapt", "yes"),
    (MALA(), "scale", "data"),
    (HMC(), "n_leapfrog", 0),
    (HMC(), "n_leapfrog", 2.5),
    (HMC(), "jitter", 1.0),
    (AnnealedLangevin(), "n_levels", 1),
    (AnnealedLangevin(), "n_steps_per_level", 0),
    (AnnealedLangevin(), "sigma_min", 2.0),
    (ParallelTempering(4, MALA()), "max_temperature", 1.0),
    (DiscreteLangevin(), "adjust", None),
]


@pytest.mark.parametrize(
    ("sampler", "name", "value"),
    BAD_SETTINGS,
    ids=lambda v: type(v).__name__ if hasattr(v, "get_params") else str(v),
)
def test_bad_settings(sampler, name, value):
    energy = Given(lambda e, x: x.square().sum(1), domain_for(sampler))
    sampler = clone(sampler).set_params(**{name: value})
    with pytest.raises((ValueError, TypeError), match=name):
        sampler.run(energy, zeros(), 2, seeded())


@pytest.mark.parametrize(
    "scale",
    [[1.0, 2.0], [[1.0, 1.0, 1.0]], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, math.nan, 1.0]],
)
def test_bad_scales(scale):
    with pytest.raises(ValueError, match="scale must be"):
        MALA(scale=scale).run(unit(), zeros(), 2, seeded())


def test_a_scale_of_one_row_is_refused():
    with pytest.raises(ValueError, match='scale="auto"'):
        MALA(scale="auto").run(unit(), zeros(1), 2, seeded())


def test_unadjusted_discrete_langevin_cannot_adapt():
    with pytest.raises(ValueError, match="always 1 with adjust=False"):
        DiscreteLangevin(adjust=False, adapt=True).run(make_rbm(3, 2), zeros(), 1, seeded())


def test_clamps_of_a_wrong_shape():
    x = zeros()
    mask = torch.zeros(4, D, dtype=torch.bool)
    for clamp in (
        Clamp(mask[0], x),
        Clamp(mask[:, :2], x[:, :2]),
        Clamp(mask, x[0]),
        Clamp(mask.double(), x),
        Clamp(mask, x.float()),
    ):
        with pytest.raises(ValueError, match=r"clamp\.(mask|value) must be .*like the chains"):
            MALA().run(unit(), x, 1, seeded(), clamp=clamp)


@pytest.mark.parametrize(
    "x", [torch.zeros(4), torch.zeros(4, 2), torch.zeros(4, 3, 1), torch.zeros(4, 3).long()]
)
def test_rows_of_a_wrong_shape_or_kind(x):
    with pytest.raises(ValueError, match=r"floating-point rows of shape \(n, 3\)"):
        MALA().run(unit(), x, 1, seeded())


def test_arguments_of_a_wrong_type():
    with pytest.raises(TypeError, match="torch.as_tensor"):
        MALA().run(unit(), zeros().numpy(), 1, seeded())
    with pytest.raises(TypeError, match="torch.Generator"):
        MALA().run(unit(), zeros(), 1, 0)
    with pytest.raises(TypeError, match="skebm.base.Energy"):
        MALA().run(torch.nn.Linear(3, 1), zeros(), 1, seeded())


@pytest.mark.parametrize("beta", [-1.0, math.nan, math.inf, [1.0], [1.0, -2.0]])
def test_invalid_temperatures_are_refused(beta):
    with pytest.raises(ValueError, match="beta must be"):
        MALA().run(unit(), zeros(), 2, seeded(), beta)


def test_a_generator_of_another_device():
    class Elsewhere:
        device = torch.device("cuda:0")

    with pytest.raises(ValueError, match="generator is on cuda:0, the chains are on cpu"):
        MALA().run(unit(), zeros(), 1, Elsewhere())


def test_other_wrong_arguments_of_runs():
    with pytest.raises(ValueError, match="start at least two"):
        MALA().run_until(unit(), zeros(1), seeded())
    with pytest.raises(ValueError, match="r_hat must be above 1"):
        MALA().run_until(unit(), zeros(), seeded(), r_hat=1.0)
    with pytest.raises(ValueError, match="max_steps must be"):
        MALA().run_until(unit(), zeros(), seeded(), max_steps=10)
    with pytest.raises(ValueError, match="thin must be"):
        MALA().trace(unit(), zeros(), 5, seeded(), thin=0)
    with pytest.raises(ValueError, match="n_warmup must be"):
        MALA().run(unit(), zeros(), 5, seeded(), n_warmup=-1)


def test_tempering_names_suitable_samplers():
    with pytest.raises(TypeError, match="ParallelTempering.*MALA.*adapt="):
        ParallelTempering().run(unit(), zeros(), 1, seeded())
    with pytest.raises(ValueError, match="must be a kernel of the present row alone"):
        ParallelTempering(3, ParallelTempering(3)).run(make_rbm(3, 2), zeros(), 1, seeded())


# ------------------------------------------------------------------------------
# Rare draws and odd places
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", BY_GRADIENT, ids=lambda s: type(s).__name__)
def test_a_gradient_that_is_nan_at_a_finite_energy_is_an_error(sampler):
    """The trap of torch.where: values are finite, and the branch not taken spoils the gradient."""

    def trap(energy, x):
        y = 0.5 - x
        return torch.where(y > 0, y * y.log(), 0.0).sum(1)

    x = zeros()
    x[2] = 1.0
    energy = Given(trap, domain_for(sampler))
    assert energy(x).isfinite().all()
    with pytest.raises(SamplingError, match="The gradient of Given is nan at 1 of 4 chains"):
        sampler.run(energy, x, 3, seeded())


@pytest.fixture
def all_zeros(monkeypatch):
    """Uniform numbers are 0, as one in 2^24 is."""
    rand = torch.rand

    def zero(*size, **kwargs):
        return rand(*size, **kwargs) * 0

    monkeypatch.setattr(torch, "rand", zero)


def test_a_uniform_number_of_zero_does_not_accept_all(all_zeros):
    energy, x = unit(), zeros()
    state, info = MetropolisHastings(1e3).run(energy, x, 20, seeded())
    assert torch.equal(state.x, x)
    assert float(info.acceptance) < 1e-6


@pytest.mark.parametrize("adjust", [True, False])
def test_a_uniform_number_of_zero_leaves_clamped_coordinates(all_zeros, adjust):
    energy = make_rbm(D, 2)
    x = torch.ones(4, D, dtype=DOUBLE)
    clamp = Clamp(torch.ones_like(x, dtype=torch.bool), x)
    sampler = DiscreteLangevin(adjust=adjust)
    state, info = sampler.run(energy, x, 3, seeded(), clamp=clamp)
    assert torch.equal(state.x, x)
    assert float(info.acceptance) == 1


def test_states_that_differ_from_the_clamp_are_refused():
    for sampler, energy in (
        (MALA(), unit()),
        (ParallelTempering(3, MALA()), unit()),
        (GibbsWithGradients(), make_rbm(D, 2)),
    ):
        state, _ = sampler.run(energy, zeros(), 2, seeded())
        mask = torch.zeros_like(state.x, dtype=torch.bool)
        mask[:, 0] = True
        held = Clamp(mask, 1 - state.x.round().clamp(0, 1))
        with pytest.raises(ValueError, match="does not have the clamped values"):
            sampler.run(energy, state, 2, seeded(), clamp=held)
        on, _ = sampler.run(energy, state.x, 2, seeded(), clamp=held)
        assert torch.equal(on.x[:, 0], held.value[:, 0])


def test_an_energy_of_nan_at_a_bound_is_allowed():
    """x log x on the positive half line, whose own formula fails at 0."""
    energy = Given(lambda e, x: (x * x.log() + x).sum(1), Real((D,), 0.0, None))
    for sampler in (MetropolisHastings(0.5), MALA(0.1)):
        state, _ = sampler.run(energy, zeros() + 0.3, 300, seeded())
        assert (state.x > 0).all()


def test_energies_may_be_whole_numbers():
    energy = Given(lambda e, x: x.round().abs().long().sum(1), Real((D,)))
    trace = MetropolisHastings(1.0).trace(energy, zeros(), 50, seeded())
    _, info = MetropolisHastings(1.0).run(energy, zeros(), 50, seeded())
    assert float(trace.acceptance.mean()) == pytest.approx(float(info.acceptance))
    assert 0.2 < float(info.acceptance) < 1


def test_annealed_chains_are_traced_at_their_noise_level():
    def convolved(energy, x):
        raise AssertionError("asked without a level")

    class Point(Given):
        def forward(self, x, cond=None):
            return (x / cond[:, None]).square().sum(1) / 2

    ladder = AnnealedLangevin(n_levels=2, n_steps_per_level=3, sigma_max=1.0, sigma_min=0.1)
    trace = ladder.trace(Point(convolved, Real((D,))), zeros() + 1, 6, seeded())
    scale = torch.tensor([1.0, 1, 1, 0.1, 0.1, 0.1], dtype=DOUBLE)[:, None]
    assert torch.allclose(trace.energy, trace.x.square().sum(2) / scale.square() / 2)
    with pytest.raises(ValueError, match="must be a kernel of the present row alone"):
        ParallelTempering(3, ladder).run(Point(convolved, Real((D,))), zeros(), 2, seeded())


def test_a_budget_of_a_billion_steps_costs_nothing_before_they_are_taken():
    with pytest.warns(ConvergenceWarning) as caught:
        MALA(1e-9).run_until(unit(), normal_rows(4), seeded(), max_steps=10**9, max_seconds=0.0)
    assert caught[0].filename == __file__  # the warning points here


def test_other_invalid_arguments():
    with pytest.raises(TypeError, match="function is not an Energy"):
        MALA().run(lambda x: x.sum(1), zeros(), 1, seeded())
    with pytest.raises(TypeError, match="clamp must be"):
        MALA().run(unit(), zeros(), 1, seeded(), clamp=(zeros() > 0, zeros()))
    with pytest.raises(ValueError, match="n_draws must be"):
        MALA().trace(unit(), zeros(), 0, seeded())
    with torch.inference_mode(), pytest.raises(RuntimeError, match="use no_grad"):
        MALA().run(unit(), zeros(), 1, seeded())
    with pytest.raises(ValueError, match="row 1"):
        Gibbs().run(make_rbm(D, 2), torch.tensor([[0.5] * D, [7.0] * D]).double(), 1, seeded())
    MALA().run(unit(), zeros(), 2, seeded(), torch.tensor(0.5))
