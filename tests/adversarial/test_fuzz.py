"""Constructor arguments and arrays at random: a clear error, or a model with finite scores.

Arguments come from the constraints that the estimators declare, and from values that fit none.
"""

import dis
import functools
import inspect
import itertools
import os
import traceback
import types
from numbers import Integral
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import ClassifierMixin

import skebm
from skebm import GatedRBM, JEMClassifier, RBMEstimator
from skebm._validation import HasMethods, Interval, Options, StrOptions
from skebm.base import Binary, Domain, PartitionEstimator, Real, Sampler
from skebm.distributions import Distribution, Gaussian, IndependentBernoulli
from skebm.energies import MLP
from skebm.estimators import SpikeSlab, Subspace
from skebm.estimators.rbm.hidden import HiddenLayer
from skebm.partition import (
    AIS,
    Bethe,
    BridgeSampling,
    ConditionalAIS,
    Exact,
    ImportanceSampling,
    PerturbAndMAP,
    Quadrature,
    TreeReweighted,
)
from skebm.samplers import (
    MALA,
    ChainPolicy,
    DiscreteLangevin,
    FromData,
    FromNoise,
    Gibbs,
    GibbsWithGradients,
    Langevin,
    ParallelTempering,
    Persistent,
    ReplayBuffer,
)
from tests.adversarial.hostile import classes
from tests.adversarial.invariants import scores_of
from tests.adversarial.test_sweep import CASES
from tests.support.tiers import full

pytestmark = [full, pytest.mark.filterwarnings("ignore")]
# Examples of each test and estimator; others than the first ones with SKEBM_FUZZ.
TIMES = os.environ.get("SKEBM_FUZZ")
fuzzed = settings(
    derandomize=TIMES is None,
    database=None,
    deadline=None,
    max_examples=int(TIMES or 6),
    suppress_health_check=list(HealthCheck),
)

_random = np.random.default_rng(0)
REALS = _random.standard_normal((30, 2))
BITS = (_random.random((30, 4)) < 0.4).astype(float)

# What stands for the classes that have no instance of their own or none without arguments.
INSTANCES = {
    Integral: [0, 1, -3],
    Sampler: [
        Gibbs(),
        MALA(),
        MALA(0.1),
        Langevin(),
        GibbsWithGradients(),
        DiscreteLangevin(),
        ParallelTempering(3),
    ],
    HiddenLayer: [Subspace(), Subspace(2), SpikeSlab(), SpikeSlab(features="slabs")],
    ChainPolicy: [Persistent(), Persistent(n_steps=2, n_chains=3), ReplayBuffer(), FromData()]
    + [FromNoise(n_steps=2), Persistent(n_steps=-1), ReplayBuffer(size=1)],
    PartitionEstimator: [
        Exact(),
        AIS(n_chains=20, n_betas=20),
        ImportanceSampling(500),
        BridgeSampling(500),
        Quadrature(),
        Bethe(),
        TreeReweighted(),
        PerturbAndMAP(5),
    ],
    ConditionalAIS: [ConditionalAIS(2, 20), ConditionalAIS(n_betas=1), ConditionalAIS(max_error=0)],
    Distribution: [
        Gaussian.fit(torch.as_tensor(REALS, dtype=torch.float32)),
        Gaussian.fit(torch.ones(3, 1).cumsum(0)),
        IndependentBernoulli(torch.zeros(4)),
    ],
    Domain: [Binary((4,)), Real((2,)), Real((2,), 0.0, 1.0), Binary((3,))],
    torch.nn.Module: [
        torch.nn.Linear(2, 1),
        torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)),
    ],
}
# Values for parameters whose constraint does not limit the time that a fit takes, or says little.
OWN = {
    "n_iter": [0, 1, 2],
    "n_flow_steps": [0, 1, 5],
    "n_components": [1, 5, 20],
    "n_bridges": ["auto", 1, 2, 3],
    "noise_ratio": [0.01, 1.0, 3],
    "network": [None, MLP((4,)), MLP(()), *INSTANCES[torch.nn.Module], lambda spec: None],
    "net_params": [None, {}, {"lr": 0.1}, {"nonsense": 1}, {"max_epochs": 1}, {"lr": "fast"}],
    "device": ["auto", "cpu", "nonsense", "cuda:99"],
    "estimator": [None, RBMEstimator(3, n_iter=1), JEMClassifier(n_iter=1)],
    "unlabeled": [None, -1, "nobody"],
    "class_weight": [None, "balanced", {0: 1.0, 1: 3.0}, {0: 1.0}, {0: -1.0, 1: 1.0}],
    "bounds": [None, (-9.0, 9.0), (None, 9.0), (-9.0, None), (0.0, 0.5), (1.0, 0.0), ([0], [1])],
    "statistic": ["log_density", "energy", "max_proba", lambda model, X: X[:, 0], lambda *_: 0.0],
    "cv": [2, 3, 100],
    "sigma": [None, "auto", "bandwidth", "kurtosis", 0.1, 5.0, [0.1, 0.2], [0.1], [0.0, 1.0]],
    "random_state": [None, 0, np.random.RandomState(0)],
}
HUGE = 10**12
WRONG = st.sampled_from(
    [None, True, -1, 0, 0.0, 1.5, HUGE, 1e300, np.nan, np.inf, "nonsense", "", b"auto", (), {}]
    + [[1, 2], object(), int, len, np.zeros(3), np.array(["a"]), Gibbs, 1 + 2j]
)
# Of these a huge number is allowed, and takes for ever.
LASTING = ("n_iter", "n_flow_steps")
CALLED = ("network", "statistic")


def values(name, constraints):
    """Values of a parameter that its constraints allow."""
    if name in OWN:
        return st.sampled_from(OWN[name])
    if constraints == "no_validation":
        return WRONG
    return st.one_of([allowed(constraint) for constraint in constraints])


def allowed(constraint):
    if isinstance(constraint, Options | StrOptions):
        return st.sampled_from(sorted(constraint.options, key=str))
    if isinstance(constraint, Interval):
        return within(constraint)
    if isinstance(constraint, HasMethods) or constraint in ("array-like", callable, dict):
        return WRONG
    if isinstance(constraint, type):
        found = INSTANCES.get(constraint)
        return st.sampled_from(found) if found else st.builds(constraint)
    simple = {None: [None], "boolean": [True, False], "verbose": [0, 1], "random_state": [0, None]}
    return st.sampled_from(simple.get(constraint, [None]))


def within(interval):
    """Numbers of an interval, also at its ends; of those with one end numbers near it."""
    left = interval.left
    if left is None:
        left = 0 if interval.right is None else interval.right - 10
    right = left + 10 if interval.right is None else interval.right
    if interval.type is Integral:
        inside = st.integers(left, right)
    else:
        inside = st.floats(left, right) | st.sampled_from([left + 1e-12, 1e-300])
    return inside.filter(interval.is_satisfied_by)


@st.composite
def arguments(draw, cls):
    """One to four arguments of a constructor, a third of them of no allowed kind."""
    constraints = cls._parameter_constraints
    known = [name for name in inspect.signature(cls).parameters if name in constraints]
    chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    found = {
        name: draw(WRONG if draw(st.integers(0, 2)) == 0 else values(name, constraints[name]))
        for name in chosen
    }
    assume(all(found.get(name) is not HUGE for name in LASTING))
    for name in CALLED:  # a function of Python's that takes no such arguments says so itself
        assume(not isinstance(found.get(name), type | types.BuiltinFunctionType))
    return found


ELEMENTS = st.floats(-1e3, 1e3) | st.sampled_from(
    [0.0, 1.0, np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-300, 4e38, 1e20]
)
SHAPES = st.tuples(st.integers(0, 12), st.integers(0, 3)) | hnp.array_shapes(max_dims=4, max_side=4)
TYPES = ["float64", "float32", "float16", "int64", "uint8", "bool", "complex128", "U3", "object"]


@st.composite
def arrays(draw, mostly_finite):
    """Arrays of any shape and type; half of them plain tables with one value that is extreme."""
    if mostly_finite and draw(st.booleans()):
        X = np.where(draw(st.booleans()), np.resize(REALS, (30, 2)), np.resize(BITS, (30, 2)))
        X = X[: draw(st.integers(1, 30))].copy()
        X[draw(st.integers(0, len(X) - 1)), draw(st.integers(0, 1))] = draw(ELEMENTS)
        return X
    dtype, shape = np.dtype(draw(st.sampled_from(TYPES))), draw(SHAPES)
    elements = ELEMENTS if dtype.kind == "f" and dtype.itemsize == 8 else None
    if dtype.kind == "O":
        elements = st.none() | st.text(max_size=2) | st.floats() | st.integers()
    return draw(hnp.arrays(dtype, shape, elements=elements))


def raised_clearly(error):
    """Whether a raise statement of skebm made the error, or scikit-learn did.

    Of training that diverges, `FloatingPointError` is the documented error.
    """
    if not isinstance(error, ValueError | TypeError | FloatingPointError) or not str(error):
        return False
    frame = error.__traceback__
    while frame.tb_next:
        frame = frame.tb_next
    file = Path(frame.tb_frame.f_code.co_filename)
    if file.is_relative_to(Path(sklearn.__file__).parent):
        return True
    code = frame.tb_frame.f_code.co_code
    raised = code[frame.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and file.is_relative_to(Path(skebm.__file__).parent)


def refused(call, *args):
    """Whether a call raised an error, which has to be a clear one."""
    try:
        return call(*args), False
    except (ValueError, TypeError, FloatingPointError) as error:
        if not raised_clearly(error):
            note("".join(traceback.format_exception(error)))
            raise
        return None, True


def assert_finite_or_refused(model, X, y=None):
    _, no = refused(model.fit, X, y)
    if not no:
        scores, no = refused(scores_of, model, X)
        assert no or np.isfinite(scores).all()


def unfitted(cls, **params):
    """A cheap estimator with some parameters of its own."""
    model = CASES[cls]()
    little = {"n_iter": 1, "network": MLP((8,)), "flow": "maf"}
    fitting = {name: value for name, value in little.items() if hasattr(model, name)}
    for name, value in (fitting | params).items():
        setattr(model, name, value)  # what a constructor does, which checks nothing
    return model


@fuzzed
@given(data=st.data())
@pytest.mark.parametrize("cls", CASES)
def test_arguments_are_refused_or_work(cls, data):
    params = data.draw(arguments(cls))
    X = BITS if cls is RBMEstimator else REALS
    needs_classes = issubclass(cls, ClassifierMixin) or isinstance(
        params.get("estimator"), JEMClassifier
    )
    assert_finite_or_refused(unfitted(cls, **params), X, classes(X) if needs_classes else None)


@fuzzed
@given(data=st.data())
@pytest.mark.parametrize("cls", CASES)
def test_arrays_are_refused_or_work(cls, data):
    X = data.draw(arrays(mostly_finite=True))
    y = None
    if issubclass(cls, ClassifierMixin):
        y = data.draw(arrays(mostly_finite=False) | st.just(np.arange(len(X)) % 2 if X.ndim else 0))
    assert_finite_or_refused(unfitted(cls), X, y)


KINDS = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "columns first": np.asfortranarray,
    "list": lambda X: X.tolist(),
    "objects": lambda X: X.astype(object),
    "read only": lambda X: np.broadcast_to(X, X.shape),
}


# Which arrays are read does not depend on the model: each kind with a few estimators, in turn.
IN_TURN = list(zip(CASES, itertools.cycle(KINDS)))


@pytest.mark.parametrize(("cls", "kind"), IN_TURN)
def test_plain_arrays_are_not_refused(cls, kind):
    """What the other tests allow to be refused is not everything."""
    X = KINDS[kind](BITS if cls is RBMEstimator else REALS)
    model = unfitted(cls).fit(X, classes(np.array(X, float)) if has_classes(cls) else X)
    assert np.isfinite(scores_of(model, X)).all()


def has_classes(cls):
    return issubclass(cls, ClassifierMixin)


@fuzzed
@given(data=st.data())
@pytest.mark.parametrize("cls", CASES)
def test_rows_are_refused_or_have_a_score(cls, data):
    """Of rows far away p may be zero, but nothing is nan."""
    scores, no = refused(scores_of, fitted(cls), data.draw(arrays(mostly_finite=True)))
    assert no or not np.isnan(scores).any()


@functools.cache
def fitted(cls):
    X = BITS[:, :2] if cls is RBMEstimator else REALS
    if cls is GatedRBM:
        return unfitted(cls).fit(X, X[:, ::-1])
    return unfitted(cls).fit(X, classes(X) if issubclass(cls, ClassifierMixin) else None)
