"""A call that fails or is interrupted leaves the model before it, or a usable one."""

import copy
import functools
import pickle
import signal

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from skebm.estimators import base
from skebm.training.engine import EnergyNet
from tests.support.callbacks import Interrupt
from tests.support.interrupts import (
    BITS,
    CASES,
    REALS,
    assert_usable,
    fingerprint,
    interrupted_at,
    make,
    mass,
    rows_of,
)
from tests.support.tiers import about, full, leading, named

pytestmark = pytest.mark.usefixtures("ctrl_c")


class FailAt(Callback):
    """Raise an error, or have Ctrl-C arrive if it is None, when `place` is reached `after` times.

    One class with each hook: the engine notifies of batches only who listens to them.
    """

    def __init__(self, place="on_batch_end", error=MemoryError, after=1):
        self.place, self.error, self.after = place, error, after

    def reach(self, place, training=True):
        self.after -= place == self.place and bool(training)
        if self.after == 0 and place == self.place:
            self.after = -1
            if self.error is None:
                signal.raise_signal(signal.SIGINT)
            else:
                raise self.error

    def on_train_begin(self, net, **kwargs):
        self.reach("on_train_begin")

    def on_train_end(self, net, **kwargs):
        self.reach("on_train_end")

    def on_epoch_begin(self, net, **kwargs):
        self.reach("on_epoch_begin")

    def on_epoch_end(self, net, **kwargs):
        self.reach("on_epoch_end")

    def on_batch_begin(self, net, training=True, **kwargs):
        self.reach("on_batch_begin", training)

    def on_batch_end(self, net, training=True, **kwargs):
        self.reach("on_batch_end", training)

    def on_grad_computed(self, net, training=True, **kwargs):
        self.reach("on_grad_computed", training)


PLACES = [name for name in vars(FailAt) if name.startswith("on_")]


def armed(model, *args):
    """The model with a callback that does nothing until it is told where to fail."""
    callback = FailAt(*args) if args else FailAt(after=-1)
    return model.set_params(net__callbacks=[callback]), callback


def stream(name):
    """A model whose net goes on where it is, with log Z known, and its callback."""
    model, callback = armed(make(name))
    for _ in range(2):
        model.partial_fit(*rows_of(model))
    mass(model)
    return model, callback


@pytest.fixture(scope="module")
def streamed():
    model, _ = stream("exact")
    return pickle.dumps(model)


@pytest.mark.parametrize("error", [MemoryError, None])
@pytest.mark.parametrize("place", PLACES)
def test_a_stream_that_fails_anywhere_is_as_before(place, error, streamed):
    model, twin = pickle.loads(streamed), pickle.loads(streamed)
    callback = dict(model.net_.callbacks_)["FailAt"]
    before = fingerprint(model)
    callback.place, callback.error, callback.after = place, error, 1
    with pytest.raises(error or KeyboardInterrupt):
        model.partial_fit(BITS[::-1])
    assert callback.after == -1
    assert fingerprint(model) == before
    assert mass(model)[0] == pytest.approx(1, abs=1e-5)
    model.partial_fit(BITS)
    twin.partial_fit(BITS)
    np.testing.assert_array_equal(model.energy(BITS), twin.energy(BITS))
    assert mass(model)[0] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", named({"line search", "replay"}, CASES))
def test_a_failed_call_leaves_every_estimator_as_it_was(name):
    """Weights, momentum, chains, generators, history, log Z; of nets that go on or start anew."""
    model, callback = stream(name)
    before = fingerprint(model)
    callback.place, callback.after = "on_train_end", 1
    with pytest.raises(MemoryError):
        model.partial_fit(*rows_of(model))
    assert fingerprint(model) == before
    for warm in (True, False):
        armed(model.set_params(warm_start=warm), "on_train_end")
        before = fingerprint(model)
        with about(warm), pytest.raises(MemoryError):
            model.fit(*rows_of(model))
        assert fingerprint(model) == before


@pytest.mark.parametrize("name", named({"pcd", "line search"}, CASES))
def test_a_pass_after_a_failed_one_is_what_it_would_have_been(name):
    """Averages of weights and the coordinates of line searches are no part of what is stored."""
    (model, callback), (twin, _) = stream(name), stream(name)
    callback.place, callback.after = "on_train_end", 1
    with pytest.raises(MemoryError):
        model.partial_fit(*rows_of(model))
    for one in (model, twin):
        one.partial_fit(*rows_of(one))
    X = rows_of(model)[0]
    np.testing.assert_array_equal(model.energy(X), twin.energy(X))


def test_a_failure_after_training_undoes_it(monkeypatch):
    model, _ = stream("pcd")
    before = fingerprint(model)

    def full(*args):
        raise MemoryError

    monkeypatch.setattr(base, "upper_quantile", full)
    with pytest.raises(MemoryError):
        model.partial_fit(BITS)
    assert fingerprint(model) == before
    assert mass(model)[0] == pytest.approx(1, abs=1e-5)


class InAContext(Callback):
    """Ctrl-C as a context of torch begins, which is then never left."""

    def on_epoch_begin(self, net, **kwargs):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_settings_of_torch_survive_ctrl_c(method):
    model = make("flow", net__callbacks=[InAContext()])
    with torch.enable_grad():
        with pytest.raises(KeyboardInterrupt):
            getattr(model, method)(REALS)
        assert torch.is_grad_enabled()


def test_settings_of_torch_survive_a_failure_after_training(monkeypatch):
    def full(*args):
        torch.set_grad_enabled(False)
        raise MemoryError

    monkeypatch.setattr(base, "upper_quantile", full)
    with torch.enable_grad():
        with pytest.raises(MemoryError):
            make("pcd").fit(BITS)
        assert torch.is_grad_enabled()


def test_random_states_are_turned_back():
    """Those of the estimator, so that the next fit draws what this one did."""
    random = np.random.RandomState(3)
    model = make("pcd")
    armed(model, "on_batch_end")
    with pytest.raises(MemoryError):
        model.set_params(random_state=random).fit(BITS)
    assert copy.deepcopy(random).random() == np.random.RandomState(3).random()
    model.set_params(net_params=None).fit(BITS)
    twin = make("pcd", random_state=np.random.RandomState(3)).fit(BITS)
    np.testing.assert_array_equal(model.energy(BITS), twin.energy(BITS))


def test_a_first_call_that_fails_leaves_an_unfitted_estimator():
    calls = [("fit", MemoryError), ("partial_fit", MemoryError), ("partial_fit", None)]
    for method, error in calls:
        model, _ = armed(make("pcd"), "on_batch_end", error)
        with about(method), pytest.raises(error or KeyboardInterrupt):
            getattr(model, method)(BITS)
        with pytest.raises(NotFittedError):
            model.energy(BITS)


@pytest.mark.parametrize("warm", leading(1, [True, False]))
@pytest.mark.parametrize("name", named({"pcd", "joint"}, CASES))
def test_an_interrupted_fit_is_usable_and_raises(name, warm):
    model = make(name, warm_start=warm)
    model.fit(*rows_of(model))
    mass(model)
    before = fingerprint(model)
    armed(model, "on_batch_end", None, 6)
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch.*usable"):
        model.fit(*rows_of(model))
    assert fingerprint(model) != before
    assert_usable(model)


class Spoil(Callback):
    """Ctrl-C between a step that goes wrong and the check that notices it."""

    def on_batch_end(self, net, **kwargs):
        if len(net.history) == 2:
            with torch.no_grad():
                next(net.module_.energy.parameters()).fill_(torch.nan)
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", leading(2, ["pcd", "score matching", "exact", "contrastive"]))
def test_weights_that_diverged_as_ctrl_c_came_are_not_kept(name):
    model = make(name, net__callbacks=[Spoil()])
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch 2"):
        model.fit(*rows_of(model))
    assert_usable(model)


def test_ctrl_c_at_the_end_of_an_epoch_raises_and_a_callback_that_stops_does_not():
    """skorch's callbacks end training by the same exception."""
    model, _ = armed(make("exact"), "on_epoch_end", None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(BITS)
    assert_usable(model)
    model, _ = armed(make("exact"), "on_epoch_end", KeyboardInterrupt)
    assert model.fit(BITS).n_iter_ == 1
    assert_usable(model)


def test_ctrl_c_while_an_interrupted_fit_is_finished_brings_back_the_model_before(monkeypatch):
    model = make("pcd").fit(BITS)
    before = fingerprint(model)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "upper_quantile", interrupted)
    armed(model, "on_batch_end", None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(BITS)
    assert fingerprint(model) == before


def test_an_interrupted_candidate_ends_a_search():
    model, _ = armed(make("pcd"), "on_batch_end", KeyboardInterrupt, 3)
    search = GridSearchCV(model, {"n_components": [2, 3]}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(BITS)
    assert not hasattr(search, "cv_results_")


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_an_interruption_can_be_kept_quiet(method):
    model = make("pcd", net__callbacks=[Interrupt(3)], net__on_interrupt="return")
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch 1.*usable"):
        assert getattr(model, method)(BITS) is model
    assert_usable(model)
    with pytest.raises(ValueError, match="on_interrupt.*'raise'.*'return'"):
        model.set_params(net__on_interrupt="quiet")


def test_an_interrupted_detector_is_as_before():
    detector = make("detector").fit(BITS)
    before = fingerprint(detector)
    armed(estimator := detector.estimator, "on_batch_end", None)
    with pytest.raises(KeyboardInterrupt):
        detector.fit(BITS)
    estimator.set_params(net_params=None)
    assert fingerprint(detector) == before
    assert_usable(detector)


@pytest.mark.parametrize("seed", leading(1, [None, 0]))
def test_history_goes_on(seed):
    model = make("pcd", warm_start=True, random_state=seed).fit(BITS)
    first = model.history_
    model.fit(BITS)
    assert model.history_[:4] == first
    for _ in range(2):
        model.partial_fit(BITS)
    assert [row["epoch"] for row in model.history_] == list(range(1, 11))
    assert model.n_iter_ == 10
    rates = [row["lr"] for row in model.history_]
    assert rates[:4] == rates[4:8]  # each fit has the schedule of its own passes
    again = pickle.loads(pickle.dumps(model)).fit(BITS)
    assert [row["epoch"] for row in again.history_] == list(range(1, 15))
    assert len(model.set_params(warm_start=False).fit(BITS).history_) == 4


BUILDING = {base.positions_of_random_states.__code__, EnergyNet.copy.__code__}


def builds(code):
    return code in BUILDING or code.co_name == "build"


@full
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("method", ["partial_fit", "set_params"])
def test_ctrl_c_at_any_instruction_leaves_the_old_model_or_the_whole_new_one(method, fails):
    start = make("pcd", n_components=1).partial_fit(BITS)
    mistaken = {"n_iter": 2, "chains__none": 1} if fails else {"n_iter": 2}

    def call(model):
        if method == "partial_fit":
            model.partial_fit(BITS[:20])
        else:
            model.set_params(**mistaken)

    if fails and method == "partial_fit":
        armed(start, "on_batch_end")
    number, outcomes = 0, set()
    while True:
        number += 1
        model = copy.deepcopy(start)
        old, error = fingerprint(model), None
        try:
            found = interrupted_at(number, functools.partial(call, model), builds)
        except (KeyboardInterrupt, MemoryError, ValueError) as raised:
            error = raised
            found = isinstance(raised, KeyboardInterrupt)
        outcomes.add(type(error))
        if fingerprint(model) != old:  # one assignment has made it the new one
            assert error is None or (found and not fails), number
            assert (model.n_iter_, model.n_iter) == ((2, 4) if method == "partial_fit" else (1, 2))
            assert_usable(model)
        else:
            assert error is not None, number
        if not found:
            break
    assert number > 50
    assert KeyboardInterrupt in outcomes
