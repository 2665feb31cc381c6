"""What belongs to the user's program: torch's modes, generators, filters of warnings, threads.

Whatever is set around a call, its numbers are the same, bit for bit; and nothing is set after it
that was not set before. Every public estimator must have a case.
"""

import ast
import contextlib
import functools
import inspect
import io
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sklearn
import torch
import torch.fx.experimental.symbolic_shapes  # sympy, which torch imports late, adds a filter
from numpy.testing import assert_array_equal
from sklearn.base import clone
from skorch.callbacks import Callback
from torch import nn

import skebm
from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    GatedRBM,
    JEMClassifier,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.base.processes import (
    collect_warnings,
    lock_of,
    n_threads,
    own_modes,
    repeat,
    seed_modules,
    threads,
    warn,
)
from tests.support.estimators import BITS, FITS, RBM, REAL, small
from tests.support.sources import modules, parsed
from tests.support.tiers import full

DROPPING = nn.Sequential(
    nn.Linear(3, 8), nn.Dropout(0.5), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0)
)
CLASSIFYING = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.SiLU(), nn.Linear(8, 2))


FIRST_TIER = (RBMEstimator, NCEDensity, TractableDensity)
all_estimators = pytest.mark.parametrize(
    "cls",
    [cls if cls in FIRST_TIER else pytest.param(cls, marks=full) for cls in FITS],
    ids=lambda cls: cls.__name__,
)


def fitted(cls):
    model, *data = FITS[cls]
    return clone(model).fit(*data)


def numbers_of(model):
    """What the methods of a fitted model return for its own rows, in the order of this list."""
    _, X, *y = FITS[type(model)]
    found = []
    for name in ("score_samples", "energy", "transform", "predict", "score"):
        if not hasattr(model, name):
            continue
        method = getattr(model, name)
        takes_y = name != "predict" and "y" in inspect.signature(method).parameters
        found.append(np.asarray(method(X, *y) if takes_y else method(X)))
    if hasattr(model, "sample"):
        given = (X[:5],) if isinstance(model, ConditionalDensity | GatedRBM) else (5,)
        found.append(np.asarray(model.sample(*given, random_state=0)))
    if hasattr(model, "log_partition_"):
        found.append(np.asarray(model.log_partition_))
    return found


@functools.cache
def right(cls):
    """The numbers of a fit with nothing else set, in one thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numbers_of(fitted(cls))


def state():
    """What belongs to the program, in a form that can be compared."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": pickle.dumps(np.random.mtrand._rand.get_state()),
        "filters": list(warnings.filters),
        "showwarning": (warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)),
        "type": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "threads": (torch.get_num_threads(), in_thread(torch.get_num_threads)),
        "numpy errors": np.geterr(),
    }


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@contextlib.contextmanager
def default_type(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES = {
    "float64": lambda: default_type(torch.float64),
    "bfloat16": lambda: default_type(torch.bfloat16),
    "meta": lambda: default_device("meta"),
    "with_meta": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dispatch": lambda: sklearn.config_context(array_api_dispatch=True),
}


@contextlib.contextmanager
def all_but_inference():
    with contextlib.ExitStack() as stack:
        for name in ("float64", "meta", "no_grad", "autocast", "dispatch"):
            stack.enter_context(MODES[name]())
        yield


# Each estimator under most at once and in inference mode, some under those that are left, and two
# under each alone.
NETWORKS = (NCEDensity, ConditionalDensity)
CASES_OF_MODES = [
    *[(cls, mode) for cls in (RBMEstimator, TractableDensity) for mode in MODES],
    *[(cls, mode) for cls in NETWORKS for mode in ("bfloat16", "with_meta")],
    *[(cls, mode) for cls in FITS for mode in ("all", "inference")],
]
MODES["all"] = all_but_inference
IN_FIRST_TIER = [
    *[(RBMEstimator, mode) for mode in ("float64", "meta", "inference", "autocast")],
    (TractableDensity, "all"),
]


def test_every_estimator_has_a_case():
    public = {getattr(skebm, name) for name in skebm.__all__}
    estimators = {one for one in public if isinstance(one, type) and hasattr(one, "get_params")}
    assert set(FITS) == estimators


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("cls", "mode"),
    [
        pytest.param(
            cls,
            mode,
            id=f"{cls.__name__}-{mode}",
            marks=[] if (cls, mode) in IN_FIRST_TIER else full,
        )
        for cls, mode in dict.fromkeys(CASES_OF_MODES)
    ],
)
def test_a_mode_of_torch_changes_no_number(cls, mode, monkeypatch):
    """Around the fit and the scores, around the scores alone, and around loading."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    expected = right(cls)
    alone = fitted(cls)
    with MODES[mode]():
        within = fitted(cls)
        found = [
            numbers_of(within),
            numbers_of(alone),
            numbers_of(pickle.loads(pickle.dumps(alone))),
        ]
    found.append(numbers_of(within))  # of a model that was fitted there
    for numbers in found:
        for one, other in zip(expected, numbers, strict=True):
            assert_array_equal(one, other)


UNTYPED = {
    "bits times a number": lambda: torch.tensor([True, False]) * 1.001,
    "a choice between numbers": lambda: torch.where(torch.tensor([True, False]), 1.001, 0.1),
    "a choice of integers": lambda: torch.where(torch.ones(2) > 0, torch.arange(2), 0.1),
    "a ratio of integers": lambda: torch.arange(1, 7) / 7,
    "a ratio of bits": lambda: torch.tensor([True, True]) / 3,
    "a root of integers": lambda: torch.arange(7).sqrt(),
    "numbers": lambda: torch.tensor([1.001, 0.1]),
    "a number": lambda: torch.full((3,), 1.001),
    "a grid": lambda: torch.linspace(0, 1, 7),
}


@pytest.mark.parametrize("value", UNTYPED.values(), ids=UNTYPED)
def test_another_default_type_rounds_nothing(value):
    expected = value()
    for mode in ("bfloat16", "float64"):
        with MODES[mode](), own_modes():
            found = value()
        assert found.dtype is torch.float32
        assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore")
@all_estimators
def test_nothing_of_the_program_changes(cls):
    before = state()
    numbers_of(fitted(cls))
    assert state() == before


@full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", FITS, ids=lambda cls: cls.__name__)
def test_threads_find_the_same_numbers(cls):
    """Fits side by side, and the first scores of one model by all threads at once."""
    expected, before = right(cls), state()
    shared, gate = fitted(cls), threading.Barrier(3, timeout=60)

    def work(_):
        gate.wait()
        return numbers_of(shared), numbers_of(fitted(cls))

    with ThreadPoolExecutor(3) as pool:
        found = [numbers for pair in pool.map(work, range(3)) for numbers in pair]
    for numbers in found:
        for one, other in zip(expected, numbers, strict=True):
            assert_array_equal(one, other)
    assert state() == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "cls",
    [
        NCEDensity,
        *[
            pytest.param(one, marks=full)
            for one in (
                ConditionalDensity,
                ContrastiveDivergenceDensity,
                FlowContrastiveDensity,
                JEMClassifier,
                ScoreMatchingDensity,
            )
        ],
    ],
)
def test_random_state_decides_dropout(cls):
    model, *data = FITS[cls]
    network = DROPPING if cls is not JEMClassifier else CLASSIFYING
    model, before = clone(model).set_params(network=network), torch.get_rng_state()
    one, two = (model.fit(*data).energy(REAL) for _ in range(2))
    assert_array_equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


class Rough(nn.Module):
    """Random layers of several kinds, of torch and of the user's own."""

    def __init__(self):
        super().__init__()
        self.first, self.rrelu, self.last = nn.Linear(3, 8), nn.RReLU(), nn.Linear(8, 1)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.3)

    def forward(self, x):
        hidden = self.rrelu(self.first(x))
        hidden = nn.functional.dropout(hidden, 0.2, self.training)
        hidden = self.lstm(hidden[None])[0][0]
        if self.training:
            hidden = hidden + 0.1 * torch.randn_like(hidden) + 0.1 * torch.rand(len(hidden), 1)
        return self.last(hidden)[:, 0]


@full
def test_every_random_layer_draws_from_the_generator():
    model, before = NCEDensity(**small, noise="gaussian"), torch.get_rng_state()
    model.set_params(network=lambda spec: Rough())
    one, two = (model.fit(REAL).energy(REAL) for _ in range(2))
    assert_array_equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_are_those_of_the_global_generator():
    """Layers find the numbers that they would find after `torch.manual_seed`."""

    def make():
        return [*nn.Linear(3, 4).parameters(), torch.randperm(9), torch.randn(3), torch.rand(2)]

    generator = torch.Generator().manual_seed(7)
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(7)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = make()
    with seed_modules(generator):
        found = make()
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))


def test_warnings_are_collected_in_one_thread_alone():
    def other():
        with pytest.warns(UserWarning, match="other"):
            warn("the other thread")

    with collect_warnings() as caught:
        warn("mine")
        in_thread(other)
        with collect_warnings() as inner:
            warn("inner")
        repeat(inner)
    assert [one.message for one in caught] == ["mine", "inner"]


def test_threads_are_those_of_this_thread():
    torch.set_num_threads(3)
    try:
        with threads(1):
            assert n_threads() == 1
            assert in_thread(n_threads) == 3
            with threads(1e9):  # larger steps of a small call
                assert n_threads() == 3
            assert n_threads() == 1
        assert n_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_a_fit_sets_the_threads_of_no_other():
    seen = []

    class Look(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append((torch.get_num_threads(), in_thread(torch.get_num_threads)))

    torch.set_num_threads(2)
    try:
        clone(RBM).set_params(net_params={"callbacks": [Look()]}).fit(BITS)
        assert seen == [(1, 2)] * 2
        assert torch.get_num_threads() == in_thread(torch.get_num_threads) == 2
    finally:
        torch.set_num_threads(1)


def test_a_lock_is_not_stored():
    model = fitted(RBMEstimator)
    lock_of(model._log_z)
    copied = pickle.loads(pickle.dumps(model))
    assert lock_of(copied._log_z) is not lock_of(model._log_z)


class Broken(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Broken()], ids=["none", "pipe"])
def test_a_fit_needs_no_stderr(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    clone(RBM).set_params(verbose=1).fit(BITS)
    later = threading.Thread(target=clone(RBM).set_params(verbose=1).fit, args=(BITS,), daemon=True)
    later.start()
    later.join(60)
    assert not later.is_alive()


# Calls that change what belongs to the program, and the only places that may have them.
CHANGES = {
    "catch_warnings": (),
    "simplefilter": (),
    "filterwarnings": (),
    "set_rng_state": (),
    "fork_rng": (),
    "set_default_dtype": (),
    "set_default_device": (),
    "set_default_tensor_type": (),
    "seterr": (),
    "putenv": (),
    "set_num_threads": ("base/processes/threads.py",),
    "set_num_interop_threads": (),
    "set_flush_denormal": (),
}


GLOBAL = ("os.environ", "torch.seed", "np.random.seed", "random.seed")


def test_no_module_changes_what_belongs_to_the_program():
    found, told = [], {*CHANGES, "environ", "seed"}
    for place, source in modules().items():
        if not any(name in source for name in told):
            continue
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Attribute) and node.attr in told:
                whole = ast.unparse(node)
                allowed = CHANGES.get(node.attr, () if whole in GLOBAL else (place,))
                found += [] if place in allowed else [f"{place}:{node.lineno} {whole}"]
            elif isinstance(node, ast.Name | ast.alias):  # imported by its name
                name = getattr(node, "id", getattr(node, "name", ""))
                found += [f"{place}: {name}"] * (name in CHANGES)
        found += [f"{place} torch.manual_seed"] * ("torch.manual_seed(" in source)
    assert not found
