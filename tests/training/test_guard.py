"""Divergence of training with sampled negatives: detection, roll-back, reports and errors."""

import math
import warnings
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from skorch.callbacks import Callback

from skebm import ContrastiveDivergenceDensity, NCEDensity, ScoreMatchingDensity
from skebm.base import SamplingError
from skebm.energies import MLP
from skebm.estimators.storage.nets import pack, unpack
from skebm.objectives import ContrastiveDivergence
from skebm.partition import ImportanceSampling
from skebm.samplers import MALA, FromData, GibbsWithGradients, Langevin, Persistent, ReplayBuffer
from skebm.training.engine import EnergyNet
from skebm.training.guard import Guard
from skebm.training.rows import Rows
from tests.support.networks import binary, neural
from tests.support.objectives import same
from tests.support.oracle import DOUBLE, make_rbm, seeded
from tests.support.tiers import full, leading

N_ROWS, BATCH = 60, 20  # three batches an epoch
STEP = 0.08


class Fused(MALA):
    """Fails once for each number in `fuses`: first at that step, then at that of half the size."""

    def __init__(self, step_size=STEP, fuses=()):
        super().__init__(step_size)
        self.fuses = fuses
        self.count = 0  # of this copy

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        self.count += 1
        halvings = round(math.log2(STEP / self.step_size))
        if self.fuses[halvings : halvings + 1] == (self.count,):
            raise SamplingError("The fuse has blown.")
        return super().step(energy, state, generator, beta, clamp)


class Hopeless(MALA):
    """Fails whatever its step."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        raise SamplingError("It never works.")


class Diary(ContrastiveDivergence):
    """Records the states it was rolled back to."""

    def state_after_roll_back(self, state, batch, generator, tries=1):
        self.weights = weights(self)
        self.given, self.seed = state, generator.initial_seed()
        self.after = super().state_after_roll_back(state, batch, generator, tries)
        return self.after


class Epochs(Callback):
    """The weights and the chains at the start of every epoch."""

    def on_train_begin(self, net, **kwargs):
        self.weights, self.states = [], []

    def on_epoch_begin(self, net, **kwargs):
        self.weights.append(weights(net.module_))
        self.states.append(net.state_)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def notes(net):
    """What the net warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net.report()
    assert all(issubclass(w.category, ConvergenceWarning) for w in caught)
    return " ".join(str(w.message) for w in caught)


def training_rows(n=N_ROWS):
    x = 1.5 * torch.randn(n, 3, generator=seeded(3), dtype=DOUBLE)
    return Rows(x, dtype=DOUBLE, device=torch.device("cpu"))


def net_of(sampler, policy=None, epochs=4, cls=Diary, **settings):
    """An untrained net whose every batch takes two steps of a sampler."""
    energy = neural(3)
    with torch.no_grad():
        for p in energy.parameters():
            p *= 0.3
    policy = Persistent(n_chains=BATCH, initial=energy.base) if policy is None else policy
    objective = cls(energy, sampler, clone(policy).set_params(n_steps=2))
    net = EnergyNet(
        objective,
        generator=seeded(7),
        max_epochs=epochs,
        batch_size=BATCH,
        optimizer=torch.optim.Adam,
        lr=1e-3,
        verbose=0,
        **{"callbacks": [("epochs", Epochs())]} | settings,
    )
    return net.initialize()


# ------------------------------------------------------------------------------
# Roll-back
# ------------------------------------------------------------------------------


def test_a_state_that_is_loaded_is_that_of_a_net_that_was_rolled_back():
    """The next divergence takes another seed and a smaller step, as if there were one net."""
    net, other = net_of(Fused(fuses=(10, 3))), net_of(MALA(STEP))
    net.fit(training_rows())
    assert net.n_restarts_ == 2
    assert joblib.hash(pack(net)) != joblib.hash(pack(other))
    unpack(other, pack(net))
    assert joblib.hash(pack(net)) == joblib.hash(pack(other))


@pytest.mark.parametrize("policy", leading(1, [ReplayBuffer(size=60), None, FromData()]), ids=repr)
def test_a_failing_sampler_is_rolled_back_to_the_start_of_the_epoch(policy):
    # Six steps an epoch: the tenth is the second of the second batch of the second.
    net = net_of(Fused(fuses=(10,)), policy)
    net.fit(training_rows())
    assert net.n_restarts_ == 1
    assert "rolled back 1 times (first at epoch 2, batch 2: The fuse has blown.)" in notes(net)
    assert len(net.history) == 4
    epochs, diary = dict(net.callbacks_)["epochs"], net.module_
    assert torch.equal(diary.weights, epochs.weights[1])
    assert not torch.equal(diary.weights, epochs.weights[0])
    assert diary.given.n_batches == epochs.states[1].n_batches == 3
    assert torch.isfinite(weights(net.module_)).all()
    assert net.lr_scale_ == 0.5
    assert net.history[-1]["lr"] == pytest.approx(5e-4)
    assert net.state_.halvings == 1
    assert diary.kernel(1).step_size == pytest.approx(STEP / 2)
    assert diary.seed != net.seed_  # the same noise would fail in the same way
    assert net.state_.n_batches == 12  # an epoch that was repeated counts once


def test_chains_before_the_divergence_continue():
    for policy in (None, ReplayBuffer(size=60)):
        net = net_of(Fused(fuses=(10,)), policy)
        net.fit(training_rows())
        given, after = net.module_.given, net.module_.after
        old, new = (s.chain.x if policy is None else s.pool for s in (given, after))
        assert torch.equal(old, new)
        if policy is None:
            epoch = dict(net.callbacks_)["epochs"].states[1]
            assert torch.equal(given.chain.x, epoch.chain.x)


def test_each_divergence_halves_again():
    net = net_of(Fused(fuses=(2, 9)))
    net.fit(training_rows())
    assert net.n_restarts_ == 2
    assert net.lr_scale_ == 0.25
    assert net.state_.halvings == 2
    assert "rolled back 2 times (first at epoch 1, batch 1: The fuse has blown.)" in notes(net)


@pytest.mark.parametrize(("n_more", "start"), [(2, 1), (3, 0)])
def test_an_epoch_that_diverges_again_and_again_goes_back_to_the_first_weights(n_more, start):
    """Its own may be so near to divergence that no rate is small enough."""
    net = net_of(Fused(fuses=(10, *[1] * n_more)))
    net.fit(training_rows())
    assert net.n_restarts_ == 1 + n_more
    assert torch.equal(net.module_.weights, dict(net.callbacks_)["epochs"].weights[start])
    assert len(net.history) == 4


def test_hopeless_training_raises_with_the_last_good_weights():
    net = net_of(Hopeless(STEP), max_restarts=3)
    start = weights(net.module_)
    message = "diverged 4 times, first at epoch 1, batch 1: It never works.*max_restarts=3"
    with pytest.raises(FloatingPointError, match=message):
        net.fit(training_rows())
    assert torch.equal(weights(net.module_), start)


def test_a_healthy_run_is_left_alone():
    net = net_of(MALA(STEP), epochs=6)
    net.fit(training_rows())
    assert net.n_restarts_ == 0
    assert notes(net) == ""


def test_the_same_seed_diverges_in_the_same_way():
    found = []
    for _ in range(2):
        net = net_of(Fused(fuses=(10,)), ReplayBuffer(size=60))
        net.fit(training_rows())
        found.append(net)
    assert torch.equal(*(weights(net.module_) for net in found))
    assert same(*(net.state_ for net in found))


def test_a_roll_back_does_not_leave_the_averaged_weights():
    net = net_of(Fused(fuses=(10,)), averaging=0.5)
    net.fit(training_rows())
    assert net.n_restarts_ == 1
    assert torch.isfinite(weights(net.module_)).all()


class Sizes(ContrastiveDivergence):
    """Records the size of the weights that are judged, and of those they are compared with."""

    def monitor(self, batch, state, generator):
        return super().monitor(batch, state, generator) | {"size": weights(self).norm()}

    def divergence_reason(self, logs, before=None, n_rows=100):
        self.judged = [*getattr(self, "judged", []), (before["size"], logs["size"])]
        return super().divergence_reason(logs, before, n_rows)


def test_divergence_is_judged_by_the_trained_weights():
    """Not by their average, compared with which every step may be worse."""
    net = net_of(MALA(STEP), averaging=0.9, cls=Sizes)
    net.fit(training_rows())
    before, after = zip(*net.module_.judged, strict=True)
    assert before[1:] == after[:-1]
    assert net.history[-1]["size"] != after[-1]  # what is shown is the average


# ------------------------------------------------------------------------------
# Why: each reason by its numbers
# ------------------------------------------------------------------------------

HEALTHY = {
    "loss": 0.1,
    "energy_gap": 0.1,
    "energy_spread": 1.0,
    "acceptance": 0.6,
    "gain_over_base": 0.2,
    "energy_change": 0.05,
}


def judged(n_rows=100, before=None, sampler=None, **changed):
    objective = ContrastiveDivergence(neural(3), sampler or MALA(STEP), FromData())
    return objective.divergence_reason(HEALTHY | changed, before, n_rows)


def test_healthy_numbers_are_no_divergence():
    assert judged() is None
    assert judged(before=HEALTHY) is None


REASONS = {
    "acceptance": ({"acceptance": 0.001}, "accepts 0.001"),
    "gap": ({"energy_gap": 30.0}, "energy gap 30"),
    "gap the other way": ({"energy_gap": -30.0}, "energy gap -30"),
    "gain": ({"gain_over_base": -2.0}, "2 nats less likely than under the base"),
    "change": ({"energy_change": 8.0}, "one step changed the rows' energies by 8"),
    "nan": ({"gain_over_base": math.nan}, "gain_over_base not finite"),
    "infinity": ({"energy_gap": math.inf}, "energy_gap not finite"),
}


@pytest.mark.parametrize("name", REASONS)
def test_each_number_alone_is_a_reason(name):
    changed, reason = REASONS[name]
    assert reason in judged(**changed)
    assert reason in judged(before=HEALTHY, **changed)


@pytest.mark.parametrize("name", ["gap", "gap the other way", "gain", "change"])
def test_few_rows_are_judged_leniently(name):
    changed, _ = REASONS[name]
    assert judged(n_rows=9, **changed) is None
    assert judged(n_rows=10, **changed) is not None


def test_to_start_badly_is_not_to_diverge():
    assert judged(energy_gap=30.0, before=HEALTHY | {"energy_gap": 30.0}) is None
    # One that grows slowly does not set its own limit.
    assert "energy gap 30" in judged(energy_gap=30.0, before=HEALTHY | {"energy_gap": 25.0})
    assert judged(gain_over_base=-2.0, before=HEALTHY | {"gain_over_base": -2.0}) is None


def test_the_energy_gap_is_relative_to_the_standard_deviation_of_rows():
    """A few outliers, or many columns: energies of rows differ, and so may those of chains."""
    assert judged(energy_gap=80.0, energy_spread=30.0) is None


def test_only_samplers_that_reject_can_collapse():
    changed, _ = REASONS["acceptance"]
    assert judged(sampler=Langevin(0.1), **changed) is None


def test_rejections_of_deterministic_bits_are_no_collapse():
    """Flips are rejected there, and there is no step to halve."""
    objective = ContrastiveDivergence(binary("tree", 4), GibbsWithGradients(), FromData())
    assert objective.divergence_reason(HEALTHY | {"acceptance": 0.0}, None, 100) is None


@pytest.mark.parametrize("energy", [lambda: binary("tree", 40), lambda: make_rbm(40, 3)])
def test_finite_domains_have_limits_of_their_own(energy):
    """Forty bits: 27.7 nats are those of the uniform distribution, and 3 % of them are 0.83."""
    uniform = 40 * math.log(2)
    objective = ContrastiveDivergence(energy(), GibbsWithGradients(), FromData())

    def judged(before=None, n_rows=100, **changed):
        return objective.divergence_reason(HEALTHY | changed, before, n_rows)

    assert judged() is None
    assert judged(energy_gap=uniform + 0.9) is None
    assert "worse than a uniform distribution" in judged(energy_gap=uniform + 1.1)
    assert judged(energy_gap=40.0, before=HEALTHY | {"energy_gap": 39.5}) is None
    assert judged(energy_gap=40.0, before=HEALTHY | {"energy_gap": 38.5}) is not None
    # Chains far above the data: by ten standard deviations and ten nats, and by more than those.
    assert judged(energy_gap=-27.0) is None
    assert judged(energy_gap=-30.0, energy_spread=2.1) is None
    assert "energy gap -30" in judged(energy_gap=-30.0)
    assert judged(energy_gap=-30.0, before=HEALTHY | {"energy_gap": -30.0}) is None
    assert judged(energy_change=0.99) is None
    assert "more than 1" in judged(energy_change=1.01)
    assert judged(energy_gap=99.0, energy_change=99.0, n_rows=9) is None
    assert "largest weight 101" in judged(largest_weight=101.0, n_rows=9)


def test_numbers_that_are_missing_are_no_reason():
    """Without a base there is no gain, before the first batch no acceptance."""
    objective = ContrastiveDivergence(neural(3, base=None), MALA(STEP), FromData())
    logs = {name: HEALTHY[name] for name in ("loss", "energy_gap", "energy_spread")}
    assert objective.divergence_reason(logs, {}, 100) is None


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


def table(n=300):
    return np.random.default_rng(0).normal(size=(n, 2)) * [1.0, 3.0]


def fitted(X, sample_weight=None, **params):
    """A small model, and the warnings that its training was rolled back."""
    settings = {"network": MLP((8,)), "n_iter": 4, "base": "gaussian", "random_state": 0}
    settings |= {"chains__n_steps": 10, "partition": ImportanceSampling(500)}
    model = ContrastiveDivergenceDensity().set_params(**settings | params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, sample_weight=sample_weight)
    caught = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    return model, [str(w.message) for w in caught if "rolled back" in str(w.message)]


def assert_usable(model, X):
    """Finite, and hardly worse than its base."""
    assert np.isfinite(model.score_samples(X)).all()
    floor = ContrastiveDivergenceDensity(base="gaussian", n_iter=0, random_state=0).fit(X)
    assert model.score(X) > floor.score(X) - 0.5


@pytest.mark.parametrize("init", leading(1, ["persistent", "data", "replay", "noise"]))
def test_steps_a_hundred_times_too_large_end_well(init):
    """Chains of unadjusted Langevin dynamics explode from twice the variance on."""
    X = table()
    model, caught = fitted(X, sampler=Langevin(200.0), chains=init)
    assert model.n_restarts_ > 0
    assert len(caught) == 1
    assert f"rolled back {model.n_restarts_} times" in caught[0]
    assert len(model.history_) == model.n_iter_ == 4
    assert_usable(model, X)


def test_samples_are_drawn_by_the_steps_that_training_ended_with():
    model, _ = fitted(table(), sampler=Langevin(200.0))
    assert np.isfinite(model.sample(5, random_state=0)).all()


@full
def test_a_learning_rate_a_thousand_times_too_large_ends_well():
    X = table()
    model, caught = fitted(X, learning_rate=20.0)
    assert model.n_restarts_ > 0
    assert len(caught) == 1
    assert_usable(model, X)


@pytest.mark.parametrize("reweight", leading(1, [True, False]))
def test_a_sampler_that_accepts_nothing_gets_a_smaller_step(reweight):
    X = table()
    model, caught = fitted(
        X, sampler=MALA(100.0, scale="auto"), chains=Persistent(reweight=reweight)
    )
    assert model.n_restarts_ > 0
    assert "accepts" in caught[0]
    assert model.history_[-1]["acceptance"] > 0.01
    assert_usable(model, X)


def test_training_that_keeps_diverging_raises():
    with pytest.raises(FloatingPointError, match="epoch 1, batch .*max_restarts=2"):
        fitted(table(), sampler=Langevin(1e12), optimizer__max_restarts=2)


def test_an_error_of_divergence_names_the_columns_that_were_not_scaled():
    X = 1e12 * table()
    message = "its size is not the cause.*standardize=True"
    with pytest.raises(ValueError, match=message):
        fitted(X, standardize=False)
    with pytest.raises(ValueError, match="Lower learning_rate") as caught:
        fitted(table(), sampler=Langevin(1e12), optimizer__max_restarts=2)
    assert "standardize" not in str(caught.value)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_few_rows_are_no_divergence(n):
    X = table(300)[:n]
    model, caught = fitted(X, base="gaussian", sigma=0.3)
    assert model.n_restarts_ == 0
    assert caught == []


@full
def test_a_buffer_may_be_smaller_than_the_monitoring_batch():
    """The monitoring batch has more rows, and is not one of the batches."""
    model, _ = fitted(table(1200), chains=ReplayBuffer(size=40), batch_size=32)
    assert model.n_restarts_ == 0


def test_columns_that_never_change_are_no_divergence():
    """The base is certain of them, so flips are rightly rejected."""
    X = np.zeros((200, 4))
    model, caught = fitted(X, base="chow-liu")
    assert model.n_restarts_ == 0
    assert caught == []
    assert model.score(X) > -0.2


@pytest.mark.parametrize("init", leading(2, ["persistent", "replay", "data", "noise"]))
def test_ordinary_rows_are_learned_without_a_roll_back(init):
    model, caught = fitted(table(), chains=init)
    assert model.n_restarts_ == 0
    assert caught == []


@pytest.mark.parametrize("init", leading(2, ["data", "replay", "persistent", "noise"]))
def test_weighted_rows_are_monitored(init):
    """The monitored rows and their weights are not those of the last batch."""
    X = np.concatenate([table(400), 60 + table(100)])
    weight = np.random.default_rng(1).random(500) + 0.1
    weight[400:] = 1e-6
    model, caught = fitted(X, weight, chains=init, standardize=False)
    assert model.n_restarts_ == 0
    assert caught == []
    assert np.isfinite(model.score_samples(X[:400])).all()


# ------------------------------------------------------------------------------
# Nothing gained
# ------------------------------------------------------------------------------


def test_training_that_gains_nothing_ends_early_and_says_so_once():
    """A normal base is the truth here, so that all that is learned is noise."""
    X = np.random.default_rng(0).normal(size=(300, 10))
    kind = {"base": "gaussian", "chains": Persistent(n_steps=5), "random_state": 0}
    model = ContrastiveDivergenceDensity(**kind, n_iter=100)
    with pytest.warns(ConvergenceWarning, match="no more likely than under the base") as caught:
        model.fit(X)
    assert len(caught) == 1
    assert 30 <= model.n_iter_ <= 60
    base = GaussianMixture(reg_covar=0).fit(X)
    assert model.score(X) > base.score(X) - 0.3


@pytest.mark.parametrize(
    ("best", "n_epochs", "n_before", "max_epochs", "n_batches", "ends"),
    [
        (0, 29, 0, 60, 2, False),  # at least thirty epochs
        (0, 30, 0, 60, 2, True),
        (0, 7, 0, 40, 25, False),  # or two hundred steps
        (0, 8, 0, 40, 25, True),
        (0, 49, 0, 500, 2, False),  # and a tenth of all
        (0, 50, 0, 500, 2, True),
        (100, 199, 0, 500, 2, False),  # and half of those so far
        (100, 200, 0, 500, 2, True),
        (100, 129, 100, 60, 2, False),  # of this call
        (100, 130, 100, 60, 2, True),
    ],
)
def test_patience_grows_with_the_epochs(best, n_epochs, n_before, max_epochs, n_batches, ends):
    guard = Guard()
    assert not guard.is_exhausted(n_epochs, n_before, max_epochs, n_batches)  # no held-out rows
    guard.keep_best({"gain_over_base": 1.0, "gain_error": 0.1}, best, [])
    assert guard.is_exhausted(n_epochs, n_before, max_epochs, n_batches) is ends


@pytest.mark.parametrize("estimator", leading(1, [ScoreMatchingDensity, NCEDensity]))
def test_a_network_that_gains_less_than_its_error_is_left_out(estimator):
    X = np.random.default_rng(0).normal(size=(300, 6))
    kind = {"noise" if estimator is NCEDensity else "base": "gaussian", "random_state": 0}
    model = estimator(n_iter=100, **kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a gain of 0.01 nats at most is none of a reader's business
        model.fit(X)
    assert model.n_iter_ < 100
    base = estimator(n_iter=0, **kind).fit(X)
    np.testing.assert_allclose(model.score_samples(X), base.score_samples(X), rtol=1e-5)


def guarded(gains, error, *, ended_early=True):
    """The epoch of the weights that a net returns to after these gains."""
    guard = Guard()
    for epoch, gain in enumerate(gains):
        guard.shown = {"gain_over_base": gain, "gain_error": error}
        guard.keep_best(guard.shown, epoch, [])
    found = guard.returns_to(ended_early)
    return None if found is None else found.epoch


@pytest.mark.parametrize(
    ("gains", "error", "ended_early", "epoch"),
    [
        ([0.0, 0.1, 0.2, 0.1], 0.35, True, 2),  # the best, where it is kept
        ([0.0, 0.1, 0.2, 0.1], 0.45, True, 0),  # else the start
        ([0.3, 0.4, 0.5], 0.35, True, 2),  # which may have been above the base
        ([0.3, 0.4, 0.4], 0.25, True, 0),
        ([0.0, 0.1, 0.2, 0.1], 0.25, False, None),
        ([0.0, 0.1, 0.2, -0.15], 0.35, False, 2),  # below the start
        ([0.0, 0.1, 0.1, -0.15], 0.35, False, 0),  # so that the best is kept, or else the start
        ([0.0, 0.5, 0.1], 0.15, False, 1),  # clearly better than the last
        ([0.0, -0.5], 0.1, False, 0),
        ([], 0.1, True, None),
    ],
)
def test_the_weights_at_the_end(gains, error, ended_early, epoch):
    assert guarded(gains, error, ended_early=ended_early) == epoch


@pytest.mark.parametrize(
    ("gains", "done", "weight"),
    [
        ([0.0, 1.0, 0.2], 8, 1.0),  # to the best
        ([0.0, 1.0, 0.7], 8, 2.0),  # little was lost
        ([0.0, -1.4], 5, 0.0),  # to the first, while there is time to learn anew
        ([0.0, -1.4], 6, 1.0),
        ([0.0, 1.0, -1.4], 10, 2.0),  # the end is judged elsewhere
    ],
)
def test_training_that_loses_goes_back_while_that_helps(gains, done, weight):
    """Gains of weights 0, 1, ...; the learning rate is halved wherever much was lost."""
    guard, module, halved = Guard(seldom=True), torch.nn.Linear(1, 1, bias=False), []
    for epoch, gain in enumerate(gains):
        torch.nn.init.constant_(module.weight, epoch)
        guard.shown = {"gain_over_base": gain, "gain_error": 0.1}
        guard.keep_best(guard.shown, epoch, [module.weight.detach()])
    net = SimpleNamespace(
        guard_=guard,
        module_=module,
        history=[None] * done,
        n_before_=0,
        max_epochs=10,
        average_=SimpleNamespace(restart=lambda: None),
        trajectory_=None,
        _halve_rate=lambda: halved.append(1),
    )
    with torch.no_grad():
        EnergyNet._mend(net)
    assert float(module.weight) == weight
    assert bool(halved) == (done < 10 and max(gains) - gains[-1] > 0.5)
