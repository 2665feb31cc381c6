"""Models kept along the training of an RBM, and what they are for."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone

import skebm
from skebm import BoltzmannMachineDensity, DeepBoltzmannMachine, RBMClassifier, RBMEstimator
from skebm.base import SamplingWarning
from skebm.partition import Exact, TrajectoryAIS
from skebm.partition import trajectory as recording
from skebm.samplers import Gibbs, TrajectoryTempering
from skebm.training import SGD, DivergenceError, Resume, Trajectory
from tests.support.oracle import seeded

SETTINGS = {
    "n_components": 8,
    "base": "independent",
    "learning": "pcd",
    "learning_rate": 0.1,
    "batch_size": 50,
    "n_iter": 60,
    "random_state": 0,
}


def clusters(n=600, d=60, seed=0):
    """Bits of four distant rows, some of which are flipped."""
    rng = np.random.default_rng(seed)
    rows = rng.random((4, d)) < 0.5
    return (rows[rng.integers(4, size=n)] ^ (rng.random((n, d)) < 0.1)).astype(float)


def model(trajectory=None, **settings):
    trajectory = Trajectory() if trajectory is None else trajectory
    return RBMEstimator(**(SETTINGS | settings), optimizer=SGD(trajectory=trajectory))


@pytest.fixture(scope="module")
def fitted():
    return model().fit(clusters())


def rates(fitted):
    recorder = fitted.net_.trajectory_
    return recorder.rates(fitted.energy_, (*recorder.trail.kept, recorder.trail.last))


# ------------------------------------------------------------------------------
# What is kept
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{}, {"learning": "cd"}, {"learning": "pcd", "chains__n_steps": 2}], ids=str
)
def test_training_is_the_same_with_a_trajectory(more):
    X = clusters()
    with_it = model(n_iter=6).set_params(**more).fit(X)
    without = RBMEstimator(**SETTINGS | {"n_iter": 6}).set_params(**more).fit(X)
    np.testing.assert_array_equal(with_it.components_, without.components_)
    np.testing.assert_array_equal(with_it.intercept_visible_, without.intercept_visible_)


def test_neighbours_exchange_rows_at_the_rate_that_was_asked_for(fitted):
    *inner, last = rates(fitted)
    assert len(inner) >= 3
    assert min(inner) > 0.25
    assert max(inner) <= 0.4
    assert last > 0.25


def test_rates_are_those_of_the_sampler(fitted):
    """Of chains in equilibrium, which the recorder's weighted draws stand for."""
    energy, n = fitted.trajectory_, 400
    start = torch.as_tensor(clusters(n), dtype=torch.float32)
    sampler, generator = TrajectoryTempering(), seeded(1)
    state, _ = sampler.run(energy, start, 200, generator)
    _, info = sampler.run(energy, state, 100, generator)
    found = info.rates[1:].numpy()  # the first pair is the base and the first model
    expected = np.array(rates(fitted))[: len(found)]
    assert np.abs(found - expected).max() < 0.12


def test_the_last_model_is_the_energy(fitted):
    energy = fitted.trajectory_
    assert energy.last is fitted.energy_
    assert energy.temperatures == ()
    first = energy.models[0]
    assert bool(first.weight.abs().max() < energy.weight.abs().max())


@pytest.mark.filterwarnings("ignore::skebm.base.SamplingWarning")
@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_full_trajectory_is_thinned(n):
    found = model(Trajectory(n=n, acceptance=0.8)).fit(clusters())
    assert 2 <= len(found.trajectory_.models) <= n + 1
    first = found.net_.trajectory_.trail.kept[0]
    untrained = found._recipe.family.objective(found._recipe, seeded()).energy
    assert float(first.weights[0].std()) < 1.5 * float(untrained.weight.std())


def test_a_trajectory_of_one_model_is_refused():
    with pytest.raises(ValueError, match="'n' parameter of Trajectory"):
        model(Trajectory(n=1)).fit(clusters())


@pytest.mark.parametrize("name", ["acceptance", "n_chains", "n_steps"])
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' parameter of Trajectory"):
        model(Trajectory(**{name: 0})).fit(clusters())


@pytest.mark.parametrize(
    "other",
    [
        RBMClassifier(n_components=2, n_iter=1),
        DeepBoltzmannMachine((4, 2), n_iter=1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_other_models_refuse_to_keep_a_trajectory(other):
    X = clusters(60)
    other = clone(other).set_params(optimizer=SGD(trajectory=Trajectory()))
    with pytest.raises(ValueError, match="keeps no models along training"):
        other.fit(X, X[:, 0].astype(int))


# ------------------------------------------------------------------------------
# Fits that end early, go on, or go back
# ------------------------------------------------------------------------------


def test_a_fit_that_goes_on_goes_on_with_its_trajectory():
    X = clusters()
    found = model(n_iter=10, warm_start=True).fit(X)
    before = [one.weights[0].clone() for one in found.net_.trajectory_.trail.kept]
    found.set_params(n_iter=30).fit(X)
    after = [one.weights[0] for one in found.net_.trajectory_.trail.kept]
    assert len(after) >= len(before)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=False))
    assert abs(found.net_.trajectory_.log_z - Exact().estimate(found.energy_).value) < 0.5


@pytest.mark.filterwarnings("ignore::skebm.base.SettingWarning")
def test_a_stream_keeps_a_trajectory():
    found = model()
    for part in np.array_split(clusters(1200), 12) * 3:
        found.partial_fit(part)
    energy = found.trajectory_
    assert len(energy.models) >= 2
    truth = Exact().estimate(found.energy_).value
    estimate = TrajectoryAIS().estimate(energy)
    assert abs(estimate.value - truth) < 4 * estimate.std_error + 0.02


def test_a_trajectory_that_begins_late_comes_through_temperatures():
    X = clusters()
    found = RBMEstimator(**SETTINGS, warm_start=True).fit(X)
    found.set_params(optimizer=SGD(trajectory=Trajectory()), n_iter=5).fit(X)
    energy = found.trajectory_
    assert len(energy.temperatures) >= 2
    truth, estimate = Exact().estimate(found.energy_).value, TrajectoryAIS().estimate(energy)
    assert abs(estimate.value - truth) < 4 * estimate.std_error + 0.02


class Interrupt(skebm.training.Resume):
    """Ctrl-C at the end of an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_begin(self, net, **kwargs):
        self.n = 0

    def on_batch_end(self, net, **kwargs):
        self.n += 1
        if self.n == self.epoch * 11 + 5:
            raise KeyboardInterrupt

    def on_epoch_end(self, net, **kwargs):
        pass


def test_an_interrupted_fit_keeps_its_trajectory():
    found = model().set_params(net__callbacks=[("ctrl-c", Interrupt(10))])
    with pytest.raises(KeyboardInterrupt):
        found.fit(clusters())
    energy = found.trajectory_
    assert len(energy.models) >= 2
    truth, estimate = Exact().estimate(found.energy_).value, TrajectoryAIS().estimate(energy)
    assert abs(estimate.value - truth) < 4 * estimate.std_error + 0.02


def test_a_resumed_fit_has_the_same_trajectory(tmp_path):
    X = clusters()
    whole = model(n_iter=8).fit(X)
    path = tmp_path / "fit.state"
    part = model(n_iter=8).set_params(
        net__callbacks=[("resume", Resume(path)), ("ctrl-c", Interrupt(4))]
    )
    with pytest.raises(KeyboardInterrupt):
        part.fit(X)
    part = model(n_iter=8).set_params(net__callbacks=[("resume", Resume(path))]).fit(X)
    mine, its = whole.net_.trajectory_.trail.kept, part.net_.trajectory_.trail.kept
    assert len(mine) == len(its)
    for one, other in zip(mine, its, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))
        assert torch.equal(one.draws.x, other.draws.x)


def test_weights_that_go_back_shorten_the_trajectory(fitted):
    recorder = fitted.net_.copy().trajectory_
    kept = recorder.trail.kept
    energy = recorder.energy(fitted.energy_).models[2]
    recorder.finish(energy)
    assert len(recorder.trail.kept) == 3
    assert recorder.trail.kept[2] is kept[2]
    assert recorder.trail.last.draws.log_z == pytest.approx(kept[2].draws.log_z, abs=0.2)


def test_weights_that_are_not_finite_leave_the_trajectory_alone(fitted):
    recorder, energy = fitted.net_.copy().trajectory_, pickle.loads(pickle.dumps(fitted)).energy_
    before = recorder.trail
    with torch.no_grad():
        energy.weight[0, 0] = torch.nan
    recorder.follow(energy)
    assert recorder.trail is before


def test_a_diverging_fit_says_so():
    with pytest.raises(DivergenceError):
        model(learning_rate=1e6, n_iter=3).fit(clusters())


def test_a_copy_goes_on_alone(fitted):
    other = fitted.net_.copy().trajectory_
    before = fitted.net_.trajectory_.trail
    other.count()
    other.follow(model(n_iter=0).fit(clusters()).energy_)
    assert fitted.net_.trajectory_.trail is before
    assert other.trail is not before


def test_neighbours_that_never_exchange_rows_are_warned_of():
    X = clusters(d=100)
    with pytest.warns(SamplingWarning, match="exchange rows at a rate of"):
        model(Trajectory(n=2), learning_rate=0.3).fit(X)


# ------------------------------------------------------------------------------
# log Z
# ------------------------------------------------------------------------------


def test_log_z_along_training_is_near_the_exact_one(fitted):
    """The history of a fit that ends there has the numbers of the fit that goes on."""
    for n_iter in (5, 20, 60):
        one = fitted if n_iter == 60 else model(n_iter=n_iter).fit(clusters())
        truth = Exact().estimate(one.energy_).value
        assert abs(one.net_.trajectory_.log_z - truth) < 0.3
    shown = [row for row in fitted.history_ if "log_z" in row]
    assert 5 <= len(shown) < 60
    assert shown[-1]["trajectory_gain"] > shown[0]["trajectory_gain"] + 2


def test_the_last_gain_is_that_of_the_model(fitted):
    rows, recorder = fitted.net_.held_out_, fitted.net_.trajectory_
    x, energy = rows.block(0, len(rows)), fitted.energy_
    with torch.no_grad():
        ratio = float((-energy(x) - energy.base.log_prob(x)).mean())
    last = fitted.history_[-1]
    assert last["log_z"] == recorder.log_z
    assert last["trajectory_gain"] == pytest.approx(ratio - recorder.log_z, abs=1e-4)


@pytest.mark.parametrize("trajectory", [True, False])
def test_partition_takes_the_trajectory_or_says_that_there_is_none(trajectory):
    kept = Trajectory() if trajectory else None
    found = RBMEstimator(**SETTINGS, optimizer=SGD(trajectory=kept), partition=TrajectoryAIS()).fit(
        clusters()
    )
    if not trajectory:
        with pytest.raises(TypeError, match="kept along training"):
            found.log_partition_  # noqa: B018
        with pytest.raises(AttributeError, match="no trajectory_"):
            found.trajectory_  # noqa: B018
        return
    truth = Exact().estimate(found.energy_).value
    assert abs(found.log_partition_ - truth) < 4 * found.log_partition_std_ + 0.02
    assert found.log_partition_kind_ == "probabilistic"
    assert found.log_partition_bounds_[0] < truth


def test_reverse_chains_bound_log_z_from_above(fitted):
    truth = Exact().estimate(fitted.energy_).value
    found = clone(fitted).set_params(partition=TrajectoryAIS(reverse=True)).fit(clusters())
    lower, upper = found.log_partition_bounds_
    assert lower < truth < upper + 0.1
    assert set(found.log_partition_parts_) > {"AIS", "reverse AIS from data"}


def test_other_models_say_that_they_have_no_trajectory():
    found = BoltzmannMachineDensity(partition=TrajectoryAIS(), n_iter=5).fit(clusters(100, 24))
    with pytest.raises(TypeError, match="kept along training"):
        found.log_partition_  # noqa: B018


# ------------------------------------------------------------------------------
# Storage, samplers
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pickle", "skops"])
def test_stored_models_have_their_trajectory(fitted, how):
    if how == "skops":
        skops = pytest.importorskip("skops.io")
        again = skebm.load(skops.dumps(fitted))
    else:
        again = pickle.loads(pickle.dumps(fitted))
    mine, its = fitted.trajectory_, again.trajectory_
    assert len(mine.models) == len(its.models)
    for one, other in zip(mine.models, its.models, strict=True):
        assert torch.equal(one.weight, other.weight)
    estimates = [TrajectoryAIS().estimate(energy).value for energy in (mine, its)]
    assert estimates[0] == estimates[1]


def test_chains_pass_between_modes(fitted):
    """All chains start in one of four modes; those of the model alone stay there longer."""
    found = model(n_iter=150, learning_rate=0.1, n_components=6).fit(clusters(d=60))
    rows = torch.as_tensor(np.unique(clusters(n=2000, d=60), axis=0)[:1], dtype=torch.float32)
    x, generator = rows.expand(100, -1), seeded(3)
    state, _ = TrajectoryTempering().run(found.trajectory_, x, 200, generator)
    alone, _ = Gibbs().run(found.energy_, x, 200, generator)
    exact = torch.as_tensor(found.sample(4000, random_state=0), dtype=torch.float32).mean(0)
    near, far = ((one.x.mean(0) - exact).square().mean().sqrt() for one in (state, alone))
    assert float(near) < 0.1
    assert float(near) < float(far)


def test_training_refuses_the_sampler_of_trajectories():
    with pytest.raises(ValueError, match="training that has ended"):
        RBMEstimator(**SETTINGS, sampler=TrajectoryTempering()).fit(clusters())


def test_the_sampler_needs_a_trajectory(fitted):
    with pytest.raises(TypeError, match="kept along training"):
        TrajectoryTempering().run(fitted.energy_, torch.zeros(2, 60), 1, seeded())


def test_the_sampler_warns_where_rows_do_not_pass(fitted):
    energy = fitted.trajectory_
    far = type(energy)(
        [
            energy.models[0],
            recording.with_weights(energy.last, [8 * p for p in energy.last.parameters()]),
        ]
    )
    with pytest.warns(SamplingWarning, match="at a rate of"):
        TrajectoryTempering().run(far, torch.zeros(50, 60), 20, seeded())
