"""Ctrl-C at random times: every model is usable and normalised afterwards, or as before."""

import os
import random
import signal
import time

import pytest
import sklearn

from tests.support.interrupts import CASES, assert_usable, fingerprint, make, mass, rows_of
from tests.support.tiers import about, full

pytestmark = [
    full,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs the timers of POSIX"),
    pytest.mark.filterwarnings("ignore"),  # a model of half a fit may well warn
]
# Interruptions of each call of each estimator.
TIMES = int(os.environ.get("SKEBM_INTERRUPTS", 4))


@pytest.fixture
def alarm():
    """Have timers do what Ctrl-C does.

    One that arrives while scikit-learn enters or leaves its ``config_context`` leaves the
    configuration of the caller changed: parameters of later tests would not be validated.
    """
    before, config = signal.signal(signal.SIGALRM, signal.default_int_handler), sklearn.get_config()
    yield
    signal.signal(signal.SIGALRM, before)
    sklearn.set_config(**config)


def interrupted(call, args, after):
    """Whether Ctrl-C after so many seconds came before the call was over."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        try:
            call(*args)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def progress(model):
    """A number that is larger after every complete `partial_fit`."""
    return model.n_iter_ if hasattr(model, "n_iter_") else model.n_calibration_


def duration(call, args):
    started = time.perf_counter()
    call(*args)
    return time.perf_counter() - started


def known(name, method):
    """A model whose log Z is known, before a warm `fit` or a pass of a stream."""
    model = make(name)
    getattr(model, method)(*rows_of(model))
    if name != "detector":
        model.set_params(warm_start=method == "fit")
    mass(model)
    return model


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", [*CASES, "detector"])
def test_ctrl_c_at_any_time(name, method, alarm):
    random.seed(f"{name} {method}")
    model = known(name, method)
    args = rows_of(model) if name != "detector" else rows_of(CASES["exact"])
    call = getattr(model, method)
    lasts, n_raised = duration(call, args), 0
    for _ in range(TIMES):
        mass(model)
        before, done, after = fingerprint(model), progress(model), random.uniform(0, lasts)
        raised = interrupted(call, args, after)
        n_raised += raised
        with about(name, method, after):
            # A pass has not happened, or was complete when Ctrl-C came.
            same = fingerprint(model) == before
            assert same or method == "fit" or progress(model) > done
            assert_usable(model)
    assert n_raised > 0
    call(*args)
    assert_usable(model)


@pytest.mark.parametrize("name", CASES)
def test_ctrl_c_in_a_first_fit(name, alarm):
    random.seed(name)
    args = rows_of(CASES[name])
    lasts = duration(make(name).fit, args)
    for _ in range(TIMES):
        model, after = make(name), random.uniform(0, lasts)
        before = fingerprint(model)
        with about(name, after):
            if interrupted(model.fit, args, after) and not model.__sklearn_is_fitted__():
                assert fingerprint(model) == before
            else:
                assert_usable(model)
