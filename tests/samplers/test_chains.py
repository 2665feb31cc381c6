"""Chain policies: where chains start, and what is kept of them."""

import pytest
import torch
from sklearn.base import clone

from skebm.base import Binary, Categorical, Real
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.samplers import (
    MALA,
    ChainPolicy,
    FromData,
    FromNoise,
    Gibbs,
    Langevin,
    ParallelTempering,
    Persistent,
    ReplayBuffer,
)
from tests.support.discovery import walk
from tests.support.oracle import DOUBLE, P_FLOOR, make_rbm, seeded
from tests.support.targets import LinearInABox, Normal, Quadratic

POLICIES = [FromData(), FromNoise(), Persistent(), Persistent(n_chains=7), ReplayBuffer(size=50)]


def plain(d=2):
    return Quadratic(torch.zeros(d, dtype=DOUBLE), torch.eye(d, dtype=DOUBLE))


def energy_on(domain):
    energy = plain()
    energy.domain = domain
    return energy


def data(n=8, d=2):
    return torch.randn(n, d, generator=seeded(9), dtype=DOUBLE)


def test_every_policy_is_tried_here():
    assert {type(policy) for policy in POLICIES} == set(walk(ChainPolicy))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_policy_is_its_parameters_and_its_pool(policy):
    before, energy = dict(vars(policy)), plain()
    runs = []
    for one in (policy, clone(policy)):
        generator, x = seeded(1), data()
        pool = one.start(energy, x, generator)
        for _ in range(3):
            rows, place = one.draw(energy, pool, x, generator)
            assert rows.dtype == DOUBLE
            assert energy.domain.contains(rows).all()
            state, _ = Langevin(0.1).run(energy, rows, 2, generator)
            pool = one.keep(pool, place, state.x)
        runs.append(rows)
    assert torch.equal(*runs)
    assert vars(policy) == before


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize(
    "domain", [Binary((4,)), Categorical((2, 3)), Real((3,)), Real((1, 2, 2)), Real((2,), 0.0, 1.0)]
)
def test_rows_are_of_the_domain(policy, domain):
    energy, generator = energy_on(domain), seeded(1)
    if domain == Real((3,)) or domain == Real((1, 2, 2)):
        x = torch.randn(6, *domain.shape, generator=generator, dtype=DOUBLE)
    else:
        x = domain.uniform(6, generator, dtype=DOUBLE)
    pool = policy.start(energy, x, generator)
    rows, place = policy.draw(energy, pool, x, generator)
    assert rows.shape[1:] == x.shape[1:]
    assert domain.contains(rows).all()
    pool = policy.keep(pool, place, rows)
    assert pool is None or domain.contains(pool).all()


def test_data_starts_at_the_data():
    x = data()
    rows, place = FromData().draw(plain(), None, x, seeded())
    assert torch.equal(rows, x)
    assert place is None
    noisy, _ = FromData(noise_scale=0.1).draw(plain(), None, x.repeat(2000, 1), seeded())
    off = (noisy - x.repeat(2000, 1)) / 0.1
    assert Normal(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)).p_value(off) > P_FLOOR


def test_noisy_data_stay_in_their_box():
    x = torch.full((500, 2), 2.0, dtype=DOUBLE)
    rows, _ = FromData(noise_scale=3.0).draw(LinearInABox(), None, x, seeded())
    assert LinearInABox().domain.contains(rows).all()


def test_noise_is_uniform_or_normal_or_given():
    generator, x = seeded(), torch.zeros(20_000, 2, dtype=DOUBLE)
    rows, _ = FromNoise().draw(plain(), None, x, generator)
    assert Normal(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)).p_value(rows) > P_FLOOR
    rows, _ = FromNoise().draw(LinearInABox(), None, x, generator)
    assert abs(float(rows.mean()) - 0.5) < 0.03
    given = IndependentBernoulli(torch.tensor([2.0, -2.0, 0.0], dtype=DOUBLE))
    rows, _ = FromNoise(initial=given).draw(make_rbm(3, 2), None, torch.zeros(20_000, 3), generator)
    assert torch.allclose(
        rows.double().mean(0), torch.tensor([2.0, -2.0, 0.0]).sigmoid().double(), atol=0.02
    )


def test_persistent_chains_go_on():
    energy, generator, policy = plain(), seeded(), Persistent(n_chains=5)
    pool = policy.start(energy, data(), generator)
    assert pool.shape == (5, 2)
    moved = pool + 1
    pool = policy.keep(pool, None, moved)
    rows, _ = policy.draw(energy, pool, data(3), generator)  # a short batch
    assert torch.equal(rows, moved)
    assert len(Persistent().start(energy, data(8), generator)) == 8


def test_rows_are_written_back_where_they_were_read():
    energy, generator = plain(), seeded()
    policy = ReplayBuffer(size=20, restart=0.0)
    pool = policy.start(energy, data(), generator)
    before = pool.clone()
    rows, place = policy.draw(energy, pool, data(), generator)
    assert len(set(place.tolist())) == 8
    assert torch.equal(rows, before[place])
    after = policy.keep(pool, place, rows + 100)
    assert torch.equal(after[place], before[place] + 100)
    others = torch.ones(20, dtype=torch.bool)
    others[place] = False
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("restart", [0.0, 0.05, 1.0])
def test_a_share_of_the_chains_starts_anew(restart):
    energy, generator, n = plain(), seeded(), 10_000
    policy = ReplayBuffer(size=n, restart=restart)
    x = torch.zeros(n, 2, dtype=DOUBLE)
    pool = policy.keep(policy.start(energy, x, generator), torch.arange(n), x + 50)
    rows, place = policy.draw(energy, pool, x, generator)
    fresh = rows[:, 0] < 25
    assert abs(float(fresh.double().mean()) - restart) <= 5 * (restart * (1 - restart) / n) ** 0.5
    assert torch.equal(policy.keep(pool, place, rows)[place][fresh], rows[fresh])


@pytest.mark.parametrize("policy", [FromData(), FromNoise(), ReplayBuffer(size=50)], ids=repr)
def test_rows_on_which_chains_start_are_augmented(policy):
    """The pool keeps the places that the rows were read from."""
    energy, x, runs = plain(), data(), []
    for augmentation in (None, lambda rows, generator: rows + 100):
        generator, one = seeded(1), clone(policy).set_params(augmentation=augmentation)
        pool = one.start(energy, x, generator)
        runs.append(one.draw(energy, pool, x, generator))
    (rows, place), (shifted, there) = runs
    torch.testing.assert_close(shifted, rows + 100)
    assert (place is None and there is None) or torch.equal(place, there)


# ------------------------------------------------------------------------------
# Steps
# ------------------------------------------------------------------------------


def with_base():
    energy = plain()
    energy.base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    return energy


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_default_steps_go_by_the_energy(policy):
    energy = make_rbm(3, 2)
    energy.base = IndependentBernoulli(torch.zeros(3, dtype=DOUBLE))
    assert policy.steps(energy, Gibbs()) == (1, 0)  # whole layers are drawn anew
    assert policy.steps(plain(), Langevin(0.1)) == (10, 0)
    assert policy.steps(with_base(), Langevin(0.1)) == (10, 1)
    # Replicas exchange rows, and are not proposed any.
    assert policy.steps(with_base(), ParallelTempering(3, MALA(0.1))) == (10, 0)
    asked = clone(policy).set_params(n_steps=3, n_independence_steps=2)
    for one, sampler in ((energy, Gibbs()), (with_base(), Langevin(0.1))):
        assert asked.steps(one, sampler) == (3, 2)
        assert asked.set_params(n_independence_steps=0).steps(one, sampler) == (3, 0)
        asked.set_params(n_independence_steps=2)


def test_proposals_that_cannot_be_made_are_refused():
    policy = Persistent(n_independence_steps=1)
    with pytest.raises(ValueError, match="n_independence_steps=0"):
        policy.steps(plain(), Langevin(0.1))
    with pytest.raises(ValueError, match="exchanges them: pass n_independence_steps=0"):
        policy.steps(with_base(), ParallelTempering(3, MALA(0.1)))


def test_bad_policies():
    energy, generator = plain(), seeded()
    for policy, name in (
        (ReplayBuffer(size=0), "size"),
        (ReplayBuffer(restart=1.5), "restart"),
        (Persistent(n_chains=0), "n_chains"),
        (Persistent(reweight="yes"), "reweight"),
        (FromData(noise_scale=-1.0), "noise_scale"),
        (FromNoise(initial="normal"), "initial"),
        (FromNoise(augmentation="flip"), "augmentation"),
        (FromData(0), "n_steps"),
        (ReplayBuffer(n_independence_steps=-1), "n_independence_steps"),
    ):
        with pytest.raises(ValueError, match=name):
            policy.start(energy, data(), generator)
    pool = ReplayBuffer(size=4).start(energy, data(), generator)
    with pytest.raises(ValueError, match="A batch of 8 rows needs a buffer of at least as many"):
        ReplayBuffer(size=4).draw(energy, pool, data(), generator)
    with pytest.raises(ValueError, match="Gaussian noise leaves"):
        FromData(noise_scale=0.1).start(make_rbm(2, 2), data(), generator)
    half = energy_on(Real((2,), 0.0, None))
    with pytest.raises(ValueError, match="initial="):
        FromNoise().draw(half, None, data(), generator)
