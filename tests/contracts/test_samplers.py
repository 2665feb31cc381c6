"""Every sampler: what starts exact stays exact, and the same seed draws the same chain."""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from sklearn.base import clone

from skebm.base import Binary, ChainState, Clamp, Energy, Real, Sampler, StepInfo
from skebm.energies import BernoulliRBM, Tilted
from skebm.samplers import Gibbs, ParallelTempering
from tests.discovery import without_case
from tests.oracle import (
    DOUBLE,
    P_FLOOR,
    Enumerated,
    chi_square,
    count_states,
    joint_energy,
    make_rbm,
    make_tree_rbm,
    seeded,
)

N_CHAINS = 20_000


class Case(NamedTuple):
    """A sampler, an energy it draws from, and how to enumerate that energy at a beta.

    `pair` makes an exact draw of (x, aux) usable as a chain's state, where the sampler takes one.
    `replicas` says that a chain is a ladder of replicas, all of which have to start exact.
    """

    sampler: Sampler
    energy: Callable[[], Energy]
    target: Callable[..., Any] = Enumerated
    pair: bool = False
    replicas: bool = False


def tilted():
    field = torch.tensor([1.0, -0.5, 0.3, -1.0], dtype=DOUBLE)
    return Tilted(make_rbm(4, 3, scale=2.0), field, beta=0.7)


CASES = {
    Gibbs: {
        "Gibbs": Case(Gibbs(), lambda: make_rbm(4, 3, scale=2.0), pair=True),
        "Gibbs tall": Case(Gibbs(), lambda: make_rbm(3, 5, seed=1, scale=1.5), pair=True),
        "Gibbs tilted": Case(Gibbs(), tilted, pair=True),
        "Gibbs tree": Case(Gibbs(), lambda: make_tree_rbm(4, 3, scale=2.0), pair=True),
        "Gibbs collapsed": Case(Gibbs(2), lambda: make_rbm(4, 3, scale=2.0), pair=True),
        "Gibbs collapsed, all": Case(Gibbs(9), lambda: make_rbm(3, 5, seed=1, scale=1.5)),
        "Gibbs collapsed, tilted": Case(Gibbs(2), tilted, pair=True),
        "Gibbs collapsed, tree": Case(Gibbs(2), lambda: make_tree_rbm(4, 3, scale=2.0)),
    },
    ParallelTempering: {
        "PT": Case(ParallelTempering(3), lambda: make_rbm(4, 3, scale=2.0), replicas=True),
        "PT two": Case(ParallelTempering(2), tilted, replicas=True),
        "PT tree": Case(
            ParallelTempering(3), lambda: make_tree_rbm(4, 3, scale=2.0), replicas=True
        ),
    },
}
ALL = {name: case for cases in CASES.values() for name, case in cases.items()}


@pytest.fixture(params=ALL)
def case(request):
    return ALL[request.param]


def test_every_sampler_has_a_case():
    assert without_case(Sampler, CASES) == []
    for cls, cases in CASES.items():
        assert {type(case.sampler) for case in cases.values()} == {cls}


# ------------------------------------------------------------------------------
# It draws from exp(-beta E)
# ------------------------------------------------------------------------------


def stays(sampler, energy, target, n_steps, beta, replicas=False):
    """p-value that chains which start exact are exact after `n_steps`."""
    generator = seeded(1)
    state = sampler.init(energy, target.draw(N_CHAINS, generator))
    if replicas:
        n = len(state.aux)
        hot = [Enumerated(energy.annealed(k / n), beta) for k in range(n)]
        state = state._replace(aux=torch.stack([one.draw(N_CHAINS, generator) for one in hot]))
    return target.p_value(steps(sampler, energy, state, n_steps, seeded(2), beta).x)


def steps(sampler, energy, state, n_steps, generator, beta=1.0):
    with torch.no_grad():
        for _ in range(n_steps):
            state, _ = sampler.step(energy, state, generator, beta)
    return state


@pytest.mark.parametrize("n_steps", [1, 10, 100])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_exact_draws_stay_exact(case, beta, n_steps):
    energy = case.energy()
    target = case.target(energy, beta)
    assert stays(case.sampler, energy, target, n_steps, beta, case.replicas) > P_FLOOR


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_chains_forget_where_they_started(case, beta):
    energy = case.energy()
    target = case.target(energy, beta)
    rarest = target.x[target.p.argmin()]
    state, _ = case.sampler.run(energy, rarest.expand(N_CHAINS, -1), 200, seeded(3), beta)
    assert target.p_value(state.x) > P_FLOOR


def test_chains_of_a_batch_are_independent(case):
    """Neighbouring chains share no random numbers: their sums do not correlate."""
    energy = case.energy()
    x = case.target(energy, 1.0).draw(1, seeded(1)).expand(N_CHAINS, -1)
    state, _ = case.sampler.run(energy, x, 5, seeded(2))
    total = state.x.sum(1)
    for lag in (1, 2, len(total) // 2):
        r = torch.corrcoef(torch.stack([total[lag:], total[:-lag]]))[0, 1]
        assert abs(float(r)) < 4.5 / len(total[lag:]) ** 0.5


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
    """Keeps the old row whenever the new one is less likely: an acceptance rule gone wrong."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        new, info = super().step(energy, state, generator, beta, clamp)
        worse = energy(new.x) > energy(state.x) + 2
        return new._replace(x=torch.where(worse[:, None], state.x, new.x)), info


@pytest.mark.parametrize("biased", [Hot, Noisy, Sticky])
@pytest.mark.parametrize("n_steps", [1, 10, 100])
def test_the_check_catches_a_biased_kernel(biased, n_steps):
    energy = make_rbm(4, 3, scale=2.0)
    target = Enumerated(energy)
    assert stays(Gibbs(), energy, target, n_steps, 1.0) > P_FLOOR
    assert stays(biased(), energy, target, n_steps, 1.0) < P_FLOOR


def test_a_hidden_layer_drawn_before_is_used(case):
    """The state's x is rubbish here: only chains that go on from `aux` are exact."""
    if not case.pair:
        pytest.skip("its chains carry no hidden layer")
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


def test_a_used_hidden_layer_is_not_used_again(case):
    if not case.pair:
        pytest.skip("its chains carry no hidden layer")
    energy = case.energy()
    x = torch.zeros(3, *energy.domain.row_shape, dtype=DOUBLE)
    h = torch.ones(3, *energy.hidden_domain.row_shape, dtype=DOUBLE)
    state, _ = case.sampler.step(energy, ChainState(x, aux=h), seeded())
    assert state.aux is None or not torch.equal(state.aux, h)


# ------------------------------------------------------------------------------
# Clamping
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("start", ["exact", "elsewhere"])
def test_free_coordinates_follow_their_conditional(case, beta, start):
    """Two halves of the chains are clamped at different places and values."""
    if case.replicas and start == "exact":
        pytest.skip("only its coldest replicas would start exact")
    energy = case.energy()
    target, d = case.target(energy, beta), energy.domain.n_columns
    first, last = torch.arange(d) < 1, torch.arange(d) >= d - 2
    halves = [(first, torch.ones(d, dtype=DOUBLE)), (last, torch.zeros(d, dtype=DOUBLE))]
    n, generator = N_CHAINS // 2, seeded(4)
    x, masks, values = [], [], []
    for mask, value in halves:
        given = target.given(mask, value)
        number = target.draw_index(given, n, generator)
        x.append(target.x[number] if start == "exact" else (1 - value).expand(n, -1))
        masks.append(mask.expand(n, -1))
        values.append(value.expand(n, -1))
    clamp = Clamp(torch.cat(masks), torch.cat(values))
    for n_steps in (1, 30) if start == "exact" else (200,):
        state, _ = case.sampler.run(energy, torch.cat(x), n_steps, generator, beta, clamp)
        assert torch.equal(state.x[clamp.mask], clamp.value[clamp.mask])
        for part, (mask, value) in zip(state.x.split(n), halves, strict=True):
            assert chi_square(count_states(part), target.given(mask, value)) > P_FLOOR


def test_clamped_coordinates_hold_at_every_step(case):
    energy = case.energy()
    d = energy.domain.n_columns
    mask = torch.rand(50, d, generator=seeded(5)) < 0.5
    clamp = Clamp(mask, energy.domain.uniform(50, seeded(6), dtype=DOUBLE))
    state = case.sampler.init(energy, clamp.apply(torch.zeros(50, d, dtype=DOUBLE)))
    generator = seeded(7)
    with torch.no_grad():
        for _ in range(20):
            state, _ = case.sampler.step(energy, state, generator, clamp=clamp)
            assert torch.equal(state.x[mask], clamp.value[mask])
            assert energy.domain.contains(state.x).all()


def test_a_clamp_of_everything_and_of_nothing(case):
    energy = case.energy()
    x = case.target(energy, 1.0).draw(100, seeded(1))
    everything = Clamp(torch.ones_like(x, dtype=torch.bool), x)
    state, _ = case.sampler.run(energy, 1 - x, 0, seeded(2), clamp=everything)
    assert torch.equal(state.x, x)  # also before the first step
    state, _ = case.sampler.run(energy, 1 - x, 3, seeded(2), clamp=everything)
    assert torch.equal(state.x, x)
    nothing = Clamp(torch.zeros_like(x, dtype=torch.bool), 1 - x)
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


def test_runs_can_be_cut_in_two(case):
    """A state is all that the next step needs."""
    energy = case.energy()
    x = case.target(energy, 1.0).draw(200, seeded(1))
    whole, _ = case.sampler.run(energy, x, 5, seeded(2))
    generator = seeded(2)
    half, _ = case.sampler.run(energy, x, 3, generator)
    assert torch.equal(whole.x, steps(case.sampler, energy, half, 2, generator).x)


@pytest.mark.parametrize("n", [0, 1, 2, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_chains(case, n, dtype):
    energy = case.energy().to(dtype)
    if isinstance(energy, Tilted):
        energy.field = energy.field.to(dtype)
    if energy.base is not None:
        energy.base = energy.structure = energy.base.to("cpu", dtype)
    x = energy.domain.uniform(n, seeded(1), dtype=dtype)
    kept = x.clone()
    state, info = case.sampler.run(energy, x, 3, seeded(2))
    assert state.x.shape == (n, *energy.domain.row_shape)
    assert state.x.dtype == dtype
    assert not state.x.requires_grad
    assert energy.domain.contains(state.x).all()
    assert torch.equal(x, kept)  # chains do not write over the rows they started from
    if n:
        assert 0 <= float(info.acceptance) <= 1


def test_no_steps_leave_the_chains_where_they_are(case):
    energy = case.energy()
    x = case.target(energy, 1.0).draw(10, seeded(1))
    state, info = case.sampler.run(energy, x, 0, seeded(2))
    assert torch.equal(state.x, x)
    assert 0 <= float(info.acceptance) <= 1


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

    for name in ("forward", "hidden", "visible", "free_energy", "value_and_grad"):
        if hasattr(energy, name):
            object.__setattr__(energy, name, note(getattr(energy, name)))
    return seen


@pytest.mark.parametrize("fails", [False, True])
def test_the_network_samples_in_eval_and_gets_its_modes_back(case, fails):
    energy = case.energy()
    energy.probe = torch.nn.Dropout()
    energy.train()
    energy.probe.eval()  # a frozen part in a network that trains
    seen = watched(energy)
    modes = [module.training for module in energy.modules()]
    x = case.target(energy, 1.0).draw(5, seeded(1))
    if fails:
        with pytest.raises(RuntimeError):
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
    assert copy.get_params() == case.sampler.get_params()
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


# Energies that a sampler must refuse.
NO_CONDITIONALS = [Bowl(Real((3,))), Bowl(Binary((3,)))]
UNSUITABLE = {Gibbs: NO_CONDITIONALS, ParallelTempering: NO_CONDITIONALS}


def test_every_sampler_names_what_it_refuses():
    assert without_case(Sampler, UNSUITABLE) == []


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
    with pytest.raises(TypeError, match=r"OnlyReal samples Real rows.*Binary\(shape=\(3,\)\)"):
        OnlyReal().run(Bowl(Binary((3,))), torch.zeros(2, 3), 1, seeded())


def test_gibbs_accepts_always():
    energy = make_rbm(4, 3, scale=2.0)
    _, info = Gibbs().run(energy, torch.zeros(3, 4, dtype=DOUBLE), 7, seeded())
    assert float(info.acceptance) == 1


def test_gibbs_visits_the_joint():
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
    """All columns agree or all disagree with a template: Gibbs chains never cross over."""
    energy = make_rbm(6, 1, scale=0.0, bias=0.0)
    with torch.no_grad():
        energy.weight.fill_(14.0)
        energy.visible_bias.fill_(-7.0)
        energy.hidden_bias.fill_(-42.0)
    return energy


def test_tempering_crosses_where_gibbs_is_stuck():
    energy, n = two_wells(), 2000
    x = torch.zeros(n, 6, dtype=DOUBLE)
    stuck, _ = Gibbs().run(energy, x, 200, seeded(1))
    free, info = ParallelTempering(8).run(energy, x, 200, seeded(1))
    truth = float((Enumerated(energy).p @ Enumerated(energy).x[:, 0]).detach())  # one half
    assert float(stuck.x[:, 0].mean()) < 0.05
    assert abs(float(free.x[:, 0].mean()) - truth) < 4.5 * (0.25 / n) ** 0.5
    assert 0.1 < float(info.acceptance) < 1


def test_replicas_exchange_rows_but_lose_none():
    """Between replicas that do not move, every row of a ladder stays in it."""

    class Still(Gibbs):
        def step(self, energy, state, generator, beta=1.0, clamp=None):
            return state, StepInfo(1.0)

    energy, n = make_rbm(4, 3), 50
    sampler = ParallelTempering(4, Still())
    ladder = energy.domain.uniform(4 * n, seeded(1), dtype=DOUBLE).view(4, n, 4)
    state = steps(sampler, energy, ChainState(ladder[3], aux=ladder[:3]), 5, seeded(2))
    after = torch.cat([state.aux, state.x[None]])
    assert not torch.equal(after, ladder)
    place = 2 ** torch.arange(4)
    before, after = (rows.long() @ place for rows in (ladder, after))
    assert torch.equal(before.sort(0).values, after.sort(0).values)


def test_one_temperature_is_no_ladder():
    with pytest.raises(ValueError, match="n_temperatures must be at least 2"):
        ParallelTempering(1).run(make_rbm(4, 3), torch.zeros(2, 4, dtype=DOUBLE), 1, seeded())


@pytest.mark.parametrize("n", [-1, 0.5, "all", None, True])
def test_unusable_numbers_of_collapsed_units(n):
    with pytest.raises(ValueError, match="n_collapsed must be an integer of at least 0"):
        Gibbs(n).run(make_rbm(4, 3), torch.zeros(2, 4, dtype=DOUBLE), 1, seeded())


def held_by_columns():
    """One hidden unit that forty columns hold in its place, on in half of all rows."""
    energy = make_rbm(40, 1)
    with torch.no_grad():
        energy.weight.fill_(4.0)
        energy.visible_bias.fill_(-2.0)
        energy.hidden_bias.fill_(-40 * math.log((1 + math.exp(2.0)) / (1 + math.exp(-2.0))))
    return energy


def test_collapsed_units_leave_a_mode_that_blocks_do_not():
    energy, start = held_by_columns(), torch.zeros(2000, 40, dtype=DOUBLE)
    on = {
        n: (Gibbs(n).run(energy, start, 5, seeded())[0].x.mean(1) > 0.5).double().mean()
        for n in (0, 1)
    }
    assert on[0] == 0
    assert abs(on[1] - 0.5) < 5 * 0.5 / 2000**0.5


def test_collapsed_units_know_of_the_clamp():
    """Ten columns that are known to be on decide for the mode."""
    energy, start = held_by_columns(), torch.zeros(200, 40, dtype=DOUBLE)
    mask = torch.zeros_like(start, dtype=torch.bool)
    mask[:, :10] = True
    clamp = Clamp(mask, torch.ones_like(start))
    x = Gibbs(1).run(energy, start, 2, seeded(), clamp=clamp)[0].x
    assert (x.mean(1) > 0.5).all()
