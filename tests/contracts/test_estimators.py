"""The contract of every estimator: scikit-learn's own checks, then skebm's promises.

Every concrete estimator of the package must have cases here: configured instances, one for each
mode that it offers cheaply. What one estimator alone promises is in its own file.
"""

import copy
import inspect
import random
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch.callbacks import Callback
from torch import nn

from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
)
from skebm.base import Categorical, LogPartition, PartitionEstimator
from skebm.energies import MLP
from skebm.estimators.base import BaseDensity
from skebm.partition import AISBracket, Exact, ImportanceSampling
from skebm.samplers import (
    HMC,
    MALA,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    Langevin,
    ParallelTempering,
)
from tests.discovery import walk
from tests.storage import by_joblib, by_pickle, by_skops


def binary_rows(n=60, d=6, seed=0, noise=0.15):
    """Rows whose columns copy two hidden switches with noise: something to learn."""
    rng = np.random.default_rng(seed)
    switches = rng.integers(0, 2, (n, 2))
    rows = switches[:, np.arange(d) % 2]
    return np.where(rng.random((n, d)) < noise, 1 - rows, rows).astype(np.float64)


def real_rows(n=60, d=6, seed=0):
    """Rows of two clusters with columns that go together; multiples of 1/128, as float16 holds."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    rows = 0.7 * common + 0.5 * rng.normal(size=(n, d)) + rng.choice([-1.0, 1.0], (n, 1))
    return np.round(128 * rows) / 128


def one_hot_rows(n=60, d=6, seed=0):
    """Columns of three levels, d / 3 of them, that mostly copy a hidden one."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.integers(0, 3, (n, 1)), d // 3, axis=1)
    other = rng.integers(0, 3, levels.shape)
    return np.eye(3)[np.where(rng.random(levels.shape) < 0.3, other, levels)].reshape(n, -1)


class Tanh(nn.Sequential):
    """What a user might pass as a network."""

    def __init__(self, n_features):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            super().__init__(
                nn.Linear(n_features, 6), nn.Tanh(), nn.Linear(6, 1, bias=False), nn.Flatten(0)
            )


class AnyWidth:
    """The same for any number of columns; its name has no address, which test ids would show."""

    def __call__(self, spec):
        return Tanh(spec.shape[0])

    def __repr__(self):
        return "tanh"

    def __deepcopy__(self, memo):
        return self


tanh = AnyWidth()


quick = {"n_components": 3, "n_iter": 5, "random_state": 0}
small = {"network": MLP((8,)), "sigma": 0.3, "n_iter": 3, "random_state": 0}
probe = ImportanceSampling(500)
walls = {"bounds": (-1000, 1000), "standardize": False}
exact = small | {"objective": "exact", "batch_size": 20}
chased = small | {"n_steps": 2}
flowing = small | {"flow": "maf", "n_flow_steps": 3}
discriminated = {"network": MLP((8,)), "n_iter": 3, "random_state": 0, "domain": "binary"}
bits = discriminated | {"n_steps": 2}
levels = bits | {"domain": Categorical((3, 3))}

CASES = {
    RBMEstimator: {
        "auto": RBMEstimator(n_components=3, n_iter=20, random_state=0),
        "pcd": RBMEstimator(**quick, learning="pcd"),
        "cd": RBMEstimator(**quick, learning="cd"),
        "exact": RBMEstimator(**quick, learning="exact", learning_rate=0.05),
        "float64": RBMEstimator(**quick, learning="pcd", dtype="float64"),
        "early_stopping": RBMEstimator(**quick, learning="pcd", early_stopping=True),
        "no_partition": RBMEstimator(**quick, learning="pcd", partition=None),
        "tree": RBMEstimator(**quick, learning="pcd", base="chow-liu"),
        "exact_tree": RBMEstimator(**quick, base="chow-liu"),
        "reweight": RBMEstimator(**quick, learning="pcd", reweight=True, early_stopping=True),
        "tempering": RBMEstimator(**quick, learning="pcd", sampler=ParallelTempering(3)),
        "collapsed": RBMEstimator(**quick, learning="pcd", sampler=Gibbs(2)),
    },
    ScoreMatchingDensity: {
        "denoising": ScoreMatchingDensity(**small),
        "exact": ScoreMatchingDensity(**exact),
        "sliced": ScoreMatchingDensity(
            **small, objective="sliced", base="gaussian", partition=probe
        ),
        "multiscale": ScoreMatchingDensity(
            **small | {"sigma": (0.1, 2.0)}, objective="multiscale", partition=probe
        ),
        "kernel": ScoreMatchingDensity(**small, base="kernel", partition=probe),
        "walls": ScoreMatchingDensity(**exact, **walls, partition=probe),
        "no_base": ScoreMatchingDensity(
            **exact,
            **walls,
            base=None,
            partition=probe,
        ),
        "early_stopping": ScoreMatchingDensity(**small, early_stopping=True, partition=probe),
        "no_partition": ScoreMatchingDensity(**small, partition=None),
        "float64": ScoreMatchingDensity(**small, dtype="float64", base="mixture", partition=probe),
        "module": ScoreMatchingDensity(**small | {"network": tanh}, partition=probe),
    },
    ContrastiveDivergenceDensity: {
        "persistent": ContrastiveDivergenceDensity(**chased),
        "replay": ContrastiveDivergenceDensity(
            **chased, init="replay", buffer_size=128, partition=probe
        ),
        "data": ContrastiveDivergenceDensity(
            **chased, init="data", sampler=Langevin(0.01), partition=probe
        ),
        "noise": ContrastiveDivergenceDensity(**chased, init="noise", partition=probe),
        "reweight": ContrastiveDivergenceDensity(**chased, reweight=True, partition=probe),
        "kernel": ContrastiveDivergenceDensity(**chased, base="kernel", partition=probe),
        "walls": ContrastiveDivergenceDensity(**chased | {"sigma": None}, **walls, partition=probe),
        "no_base": ContrastiveDivergenceDensity(
            **chased | {"sigma": None}, base=None, bounds=(-1000, 1000), partition=probe
        ),
        "early_stopping": ContrastiveDivergenceDensity(
            **chased, early_stopping=True, validation_fraction=0.3, partition=probe
        ),
        "no_partition": ContrastiveDivergenceDensity(**chased, partition=None),
        "float64": ContrastiveDivergenceDensity(**chased, dtype="float64", partition=probe),
        "module": ContrastiveDivergenceDensity(**chased | {"network": tanh}, partition=probe),
        "refined": ContrastiveDivergenceDensity(
            **chased,
            kl_weight=0.1,
            entropy_weight=0.1,
            energy_l2=0.01,
            clip_norm=1.0,
            partition=probe,
        ),
        "binary": ContrastiveDivergenceDensity(**bits, base=None),
        "binary-tree": ContrastiveDivergenceDensity(**bits, base="chow-liu"),
        "binary-independent": ContrastiveDivergenceDensity(**bits, base="independent", init="data"),
        "binary-no_partition": ContrastiveDivergenceDensity(**bits, partition=None),
        "one-hot": ContrastiveDivergenceDensity(**levels),
        "one-hot-replay": ContrastiveDivergenceDensity(
            **levels, base=None, init="replay", buffer_size=128
        ),
    },
    FlowContrastiveDensity: {
        "maf": FlowContrastiveDensity(**flowing, partition=probe),
        "float64": FlowContrastiveDensity(
            **flowing, dtype="float64", early_stopping=True, partition=probe
        ),
    },
    NCEDensity: {
        "mixture": NCEDensity(**small),
        "kernel": NCEDensity(**small, noise="kernel", early_stopping=True, partition=probe),
        "bridges": NCEDensity(**small, noise="gaussian", n_bridges=2, partition=probe),
        "ranking": NCEDensity(**small, form="ranking", noise_ratio=3, partition=probe),
        "binary": NCEDensity(**discriminated),
        "one-hot": NCEDensity(**discriminated | {"domain": Categorical((3, 3))}),
    },
}


class Kind(NamedTuple):
    """How the estimators differ, as far as a contract of all must know."""

    rows: Callable  # of (n, d, seed)
    rounding: float  # relative, by which what is said of a row may depend on those beside it
    outputs: tuple[str, ...]  # methods of rows beside those of all estimators
    short: dict[str, Any]  # arguments that make sampling short
    numbers: tuple[Any, ...]  # types of the columns
    sampler: Any
    partition: Any
    wider: dict[str, Any]  # another number of weights
    searched: dict[str, list[Any]]
    later: tuple[dict[str, Any], ...]  # parameters set after a fit
    optimizers: tuple[dict[str, Any], ...]
    going_on: tuple[dict[str, Any], ...]  # parameters changed at a warm start
    discrete: bool = False  # of an estimator that takes real rows as well


KINDS = {
    RBMEstimator: Kind(
        rows=binary_rows,
        rounding=0,
        outputs=("transform", "reconstruct", "pseudo_likelihood"),
        short={},
        numbers=(bool, int, np.uint8, np.float16, np.float32, np.float64, list),
        sampler=Gibbs(),
        partition=Exact(),
        wider={"n_components": 4},
        searched={"n_components": [2, 4]},
        later=(
            {"n_components": 5},
            {"dtype": "float32"},
            {"dtype": "float64"},
            {"learning": "cd"},
            {"learning": "pcd"},
            {"n_chains": 3},
            {"momentum": 0.5},
            {"learning_rate": 0.3},
            {"early_stopping": True},
            {"averaging": 0.9},
            {"verbose": 1},
        ),
        optimizers=(
            {},
            {"momentum": 0.9},
            {"net_params": {"optimizer": torch.optim.Adam}},
        ),
        going_on=({"dtype": "float64"}, {"n_chains": 3}, {"learning": "cd"}, {"centered": False}),
    ),
    ScoreMatchingDensity: Kind(
        rows=real_rows,
        rounding=1e-4,  # products of few columns, which no padding evens out
        outputs=("score_function",),
        short={"n_steps": 5},
        numbers=(np.float16, np.float32, np.float64, list),
        sampler=HMC(),
        partition=ImportanceSampling(),
        wider={"network": MLP((9,))},
        searched={"network__hidden_sizes": [(4,), (8,)]},
        later=(
            {"network": MLP((5, 5))},
            {"dtype": "float32"},
            {"dtype": "float64"},
            {"objective": "exact"},
            {"objective": "denoising"},
            {"objective": "multiscale"},
            {"base": None, "sigma": 0.7, "standardize": False},
            {"bounds": (-50, 50)},
            {"bounds": None, "n_projections": 3, "early_stopping": True, "averaging": 0.9},
        ),
        optimizers=(
            {},
            {"net_params": {"optimizer": torch.optim.RMSprop}},
        ),
        going_on=(
            {"dtype": "float64"},
            {"objective": "exact"},
            {"objective": "denoising"},
            {"objective": "sliced"},
            {"objective": "multiscale"},
            {"base": "gaussian"},
            {"sigma": 0.7},
            {"weight_decay": 0.1},
        ),
    ),
    ContrastiveDivergenceDensity: Kind(
        rows=real_rows,
        rounding=1e-4,
        outputs=("score_function",),
        short={"n_steps": 5},
        numbers=(np.float16, np.float32, np.float64, list),
        sampler=MALA(0.2),
        partition=ImportanceSampling(),
        wider={"network": MLP((9,))},
        searched={"network__hidden_sizes": [(4,), (8,)]},
        later=(
            {"network": MLP((5, 5))},
            {"dtype": "float32"},
            {"dtype": "float64"},
            {"sampler": HMC(), "n_steps": 7, "n_chains": 5},
            {"init": "replay", "buffer_size": 1},
            {"init": "data", "reweight": True},
            {"base": None, "sigma": 0.7, "standardize": False},
            {"bounds": (-50, 50)},
            {"deconvolve": True},
            {"early_stopping": True, "averaging": 0.9, "n_independence_steps": 0, "clip_norm": 1.0},
        ),
        optimizers=(
            {},
            {"net_params": {"optimizer": torch.optim.RMSprop}},
        ),
        going_on=(
            {"dtype": "float64"},
            {"init": "persistent", "n_chains": 7},
            {"init": "replay", "buffer_size": 80},
            {"init": "data"},
            {"init": "noise"},
            {"sampler": HMC()},
            {"sampler": MALA(0.1)},
            {"n_steps": 4, "n_independence_steps": 0},
            {"base": "gaussian"},
            {"sigma": 0.7},
            {"weight_decay": 0.1},
        ),
    ),
}
KINDS[FlowContrastiveDensity] = KINDS[ScoreMatchingDensity]._replace(
    sampler=MALA(),
    later=(
        {"network": MLP((5, 5))},
        {"dtype": "float32"},
        {"dtype": "float64"},
        {"flow": "coupling", "flow_learning_rate": 0.01},
        {"sampler": HMC(), "n_flow_steps": 5},
        {"sigma": 0.7, "standardize": False},
        {"early_stopping": True, "averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"flow_learning_rate": 0.01},
        {"sampler": HMC()},
        {"sigma": 0.7},
        {"weight_decay": 0.1},
    ),
)
KINDS[NCEDensity] = KINDS[ContrastiveDivergenceDensity]._replace(
    later=(
        {"network": MLP((5, 5))},
        {"dtype": "float32"},
        {"dtype": "float64"},
        {"sampler": HMC(), "noise_ratio": 2.5},
        {"form": "ranking"},
        {"sigma": 0.7, "standardize": False},
        {"bounds": (-50, 50)},
        {"early_stopping": True, "averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"form": "ranking"},
        {"noise_ratio": 3},
        {"sampler": HMC()},
        {"noise": "gaussian"},
        {"sigma": 0.7},
        {"weight_decay": 0.1},
    ),
)
DISCRETE = KINDS[ContrastiveDivergenceDensity]._replace(
    discrete=True,
    outputs=(),
    numbers=(bool, int, np.uint8, np.float16, np.float32, np.float64, list),
    sampler=GibbsWithGradients(),
    partition=Exact(),
    later=(
        {"network": MLP((5, 5))},
        {"dtype": "float32"},
        {"dtype": "float64"},
        {"sampler": DiscreteLangevin(), "n_steps": 7, "n_chains": 5},
        {"init": "replay", "buffer_size": 1},
        {"init": "data", "reweight": True},
        {"base": "kernel", "sigma": 0.7},
        {"early_stopping": True, "averaging": 0.9, "n_independence_steps": 0, "clip_norm": 1.0},
    ),
    going_on=(
        {"dtype": "float64"},
        {"init": "persistent", "n_chains": 7},
        {"init": "replay", "buffer_size": 80},
        {"init": "data"},
        {"init": "noise"},
        {"sampler": DiscreteLangevin()},
        {"n_steps": 4, "n_independence_steps": 0},
        {"base": "independent"},
        {"base": None},
    ),
)
TOLD = DISCRETE._replace(
    later=(
        {"network": MLP((5, 5))},
        {"dtype": "float32"},
        {"dtype": "float64"},
        {"sampler": DiscreteLangevin(), "noise_ratio": 2.5},
        {"form": "ranking"},
        {"early_stopping": True, "averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"form": "ranking"},
        {"noise_ratio": 3},
        {"sampler": DiscreteLangevin()},
        {"noise": "independent"},
    ),
)

INSTANCES = [
    pytest.param(instance, id=f"{cls.__name__}-{name}")
    for cls, cases in CASES.items()
    for name, instance in cases.items()
]
each_case = pytest.mark.parametrize("case", INSTANCES)
# What the modes of an estimator cannot differ in, as it happens before or after them, is looked at
# in one or two of them.
LEADS = [
    p
    for p in INSTANCES
    if p.id.partition("-")[2]
    in ("auto", "pcd", "denoising", "persistent", "replay", "mixture", "maf", "binary")
]
each_lead = pytest.mark.parametrize("case", LEADS)
with_log_z = pytest.mark.parametrize(
    "case", [p for p in INSTANCES if p.values[0].partition is not None]
)


def each_case_and(field, cases=LEADS):
    """Cases with each of what their kind lists."""

    def name(value):
        if "net_params" in value if isinstance(value, dict) else False:
            return value["net_params"]["optimizer"].__name__
        return getattr(value, "__name__", None) or "-".join(
            f"{k}={getattr(v, '__name__', v)}" for k, v in value.items()
        )

    return pytest.mark.parametrize(
        ("case", field),
        [
            pytest.param(p.values[0], value, id=f"{p.id}-{name(value) or 'default'}")
            for p in cases
            for value in getattr(kind(p.values[0]), field)
        ],
    )


def each_case_at(*batches):
    """Every case at the second of three batches; some at all, with averaged weights as well."""
    chosen = [
        pytest.param(p.values[0], after, averaging, id=f"{p.id}-{after}-{averaging}")
        for p in INSTANCES
        for after in batches
        for averaging in (0.0, 0.9)
        if p in LEADS or (after, averaging) == (batches[1], 0.0)
    ]
    return pytest.mark.parametrize(("case", "after", "averaging"), chosen)


def kind(model):
    """What rows are decides, where an estimator takes several kinds."""
    domain = getattr(model, "domain", None)
    discrete = TOLD if isinstance(model, NCEDensity) else DISCRETE
    if isinstance(domain, Categorical):
        return discrete._replace(rows=one_hot_rows)
    return discrete._replace(rows=binary_rows) if domain == "binary" else KINDS[type(model)]


def of_columns(case, d):
    """The case for rows of d columns, of which many are not enumerated."""
    case = clone(case)
    if kind(case).rows is one_hot_rows:
        case.set_params(domain=Categorical((3,) * (d // 3)))
    if kind(case).discrete and d > 12 and case.partition is not None:
        case.set_params(partition=probe)
    return case


def data(model, n=60, d=6, seed=0):
    return kind(model).rows(n, d, seed)


def new_data(model):
    return data(model, 40, seed=1)


def fit(case, **params):
    return clone(case).set_params(**params).fit(data(case))


def net_weights(model):
    """Everything that is trained, and what is stored with it, by name."""
    return {name: w.double().numpy() for name, w in model.net_.module_.state_dict().items()}


def assert_same_model(one, other):
    a, b = net_weights(one), net_weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert_array_equal(a[name], b[name], err_msg=name)


def moved(one, other):
    """How far apart the weights of two models are."""
    a, b = net_weights(one), net_weights(other)
    return max(np.abs(a[name] - b[name]).max() for name in a)


def outputs(model, X):
    """All that a model says of rows, without chance."""
    names = ("energy", "score_samples", "decision_function", "predict", *kind(model).outputs)
    return {name: getattr(model, name)(X) for name in names}


def assert_same_outputs(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert_array_equal(one[name], other[name], err_msg=name)


def draw(model, n=9, seed=0):
    return model.sample(n, random_state=seed, **kind(model).short)


def fill(model, X, seed=0):
    return model.impute(X, random_state=seed, **kind(model).short)


def holes(model, X):
    """X with about every fourth number unknown; of one-hot columns all levels or none."""
    width = 3 if kind(model).rows is one_hot_rows else 1
    unknown = np.random.default_rng(5).random((len(X), X.shape[1] // width)) < 0.25
    return np.where(np.repeat(unknown, width, axis=1), np.nan, X)


def clean(model, X):
    """Noise taken off: by chance, by the level of training, or else by a given one."""
    if isinstance(model, RBMEstimator):
        return model.denoise(X, random_state=0)
    if not kind(model).outputs:
        return model.denoise(X, random_state=0, n_steps=5)
    return model.denoise(X, 0.3 if model.sigma_ is None else None)


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------


def test_every_estimator_has_cases():
    assert set(walk(BaseDensity)) == set(CASES) == set(KINDS)


def unequal_by_design(estimator):
    """Weights in mini-batches are not repeated rows; with one full batch they are (below)."""
    reason = "mini-batches and sampled negatives"
    name = "check_sample_weight_equivalence_on_{}_data"
    kinds = ("dense", "sparse") if get_tags(estimator).input_tags.sparse else ("dense",)
    return {name.format(kind): reason for kind in kinds}


# scikit-learn's checks fit real numbers. A neural energy of bits or of one-hot columns refuses
# these by design, as it has no probability for them; all other contracts below it must keep.
OF_ANY_NUMBERS = [p for p in INSTANCES if not kind(p.values[0]).discrete]


@pytest.mark.filterwarnings("ignore:RBMEstimator models values in")
@pytest.mark.filterwarnings("ignore:.*rows are not binary")
@pytest.mark.filterwarnings("ignore:X. columns")
@pytest.mark.filterwarnings("ignore:Columns .* (are constant|hold few distinct)")
@parametrize_with_checks(
    [clone(p.values[0]) for p in OF_ANY_NUMBERS],
    expected_failed_checks=unequal_by_design,
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


LEFT_OUT = [
    "check_dataframe_column_names_consistency",
    "check_n_features_in_after_fitting",
    "check_param_validation",
]
LEFT_OUT_OF_TRANSFORMERS = [
    "check_get_feature_names_out_error",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
]


@pytest.mark.filterwarnings("ignore:RBMEstimator models values in")
@pytest.mark.filterwarnings("ignore:X. columns")
@pytest.mark.parametrize(
    ("case", "check"),
    [
        pytest.param(p.values[0], check, id=f"{p.id}-{check}")
        for p in OF_ANY_NUMBERS
        for check in LEFT_OUT + LEFT_OUT_OF_TRANSFORMERS * hasattr(p.values[0], "transform")
    ],
)
def test_checks_that_check_estimator_leaves_out(case, check):
    getattr(estimator_checks, check)(type(case).__name__, clone(case))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------


machine = {"n_components": 3, "random_state": 0, "dtype": "float64"}
chains = {"learning": "pcd", "n_iter": 7, "batch_size": 1000, "n_chains": 50}
penalties = {"centered": False, "sparsity_target": 0.1, "l2": 0.01}
full = small | {"objective": "exact", "n_iter": 7, "batch_size": 1000, "dtype": "float64"}

# As many chains whatever the number of rows, and no noise in training, which two copies of a row
# would each get their own of.
chased_full = chased | {"sigma": None, "n_iter": 7, "batch_size": 1000, "dtype": "float64"}
chased_full |= {"n_chains": 50, "partition": probe}
chased_bits = bits | {"n_iter": 7, "batch_size": 1000, "n_chains": 50, "dtype": "float64"}
# One draw of the noise, however many rows there are.
told_full = small | {"sigma": None, "n_iter": 7, "batch_size": 1000, "dtype": "float64"}
told_full |= {"noise_ratio": 0.001, "partition": probe}

# In one full batch a weight is a number of rows; where the copies of a row start chains of their
# own, with init="noise", "replay" and, for samplers that draw anything, "data", only on average. So
# against flows, which make as many draws as there are rows: see tests/test_flow_contrastive.py.
WEIGHTED = {
    "exact-line-search": RBMEstimator(**machine, learning="exact", n_iter=7),
    "exact": RBMEstimator(
        **machine, learning="exact", n_iter=7, learning_rate=0.1, batch_size=1000
    ),
    "pcd": RBMEstimator(**machine, **chains),
    "pcd-penalties": RBMEstimator(**machine, **chains, **penalties),
    "score-gaussian": ScoreMatchingDensity(**full, base="gaussian"),
    "score-mixture": ScoreMatchingDensity(**full, base="mixture"),
    "score-kernel": ScoreMatchingDensity(**full, base="kernel"),
    "score-walls": ScoreMatchingDensity(**full, bounds=(-9, None)),
    "chains-gaussian": ContrastiveDivergenceDensity(**chased_full, base="gaussian"),
    "chains-mixture": ContrastiveDivergenceDensity(**chased_full, base="mixture"),
    "chains-kernel": ContrastiveDivergenceDensity(**chased_full, base="kernel"),
    "chains-walls": ContrastiveDivergenceDensity(**chased_full, bounds=(-9, None)),
    "chains-reweight": ContrastiveDivergenceDensity(**chased_full, base="gaussian", reweight=True),
    "chains-penalties": ContrastiveDivergenceDensity(
        **chased_full, base="gaussian", energy_l2=0.1, clip_norm=0.1, kl_weight=0.1
    ),
    "chains-data": ContrastiveDivergenceDensity(
        **chased_full,
        base="gaussian",
        init="data",
        n_independence_steps=0,
        sampler=Langevin(0.05, noise_scale=0.0),
        energy_l2=0.1,
    ),
    "told-mixture": NCEDensity(**told_full, noise="mixture"),
    "told-kernel": NCEDensity(**told_full, noise="kernel"),
    "told-bridges": NCEDensity(**told_full, noise="gaussian", n_bridges=2),
    "told-ranking": NCEDensity(**told_full, noise="gaussian", form="ranking"),
    "told-binary": NCEDensity(**told_full | discriminated | {"n_iter": 7, "sigma": "auto"}),
    "chains-binary": ContrastiveDivergenceDensity(**chased_bits),
    "chains-binary-no_base": ContrastiveDivergenceDensity(**chased_bits, base=None),
    "chains-one-hot": ContrastiveDivergenceDensity(**chased_bits | {"domain": Categorical((3, 3))}),
}
each_weighted = pytest.mark.parametrize("model", WEIGHTED.values(), ids=WEIGHTED.keys())


@pytest.mark.parametrize("sparse", [False, True])
@each_weighted
def test_integer_weights_are_repeated_rows(model, sparse):
    if sparse and not get_tags(model).input_tags.sparse:
        pytest.skip("takes no sparse rows")
    X, X_new = data(model), new_data(model)
    count = np.random.default_rng(3).integers(0, 5, len(X))
    shape = sp.csr_array if sparse else np.asarray
    weighted = clone(model).fit(shape(X), sample_weight=count)
    repeated = clone(model).fit(shape(np.repeat(X, count, axis=0)))
    assert_allclose(weighted.score_samples(X_new), repeated.score_samples(X_new), rtol=1e-7, atol=0)
    assert weighted.threshold_ == pytest.approx(repeated.threshold_, rel=1e-7)
    assert_array_equal(weighted.predict(X_new), repeated.predict(X_new))


@each_weighted
def test_the_scale_of_weights_does_not_matter(model):
    base = getattr(model, "base", getattr(model, "noise", None))
    counts_rows = base in ("gaussian", "mixture", "kernel")
    if counts_rows or kind(model).rows is one_hot_rows:
        pytest.skip("a base that counts rows: weights are numbers of rows")
    X = data(model)
    weight = np.random.default_rng(3).random(len(X))
    one = clone(model).fit(X, sample_weight=weight)
    other = clone(model).fit(X, sample_weight=8 * weight)
    assert_allclose(one.score_samples(X), other.score_samples(X), rtol=1e-7, atol=0)


@each_case
def test_rows_of_weight_zero_are_not_there(case):
    X = data(case)
    weight = np.ones(len(X))
    weight[::3] = 0
    with_zeros = clone(case).fit(X, sample_weight=weight)
    without = clone(case).fit(X[weight > 0], sample_weight=weight[weight > 0])
    assert_same_model(with_zeros, without)
    assert with_zeros.threshold_ == without.threshold_


@each_case
def test_equal_weights_are_no_weights(case):
    unweighted = fit(case, dtype="float64")
    case = clone(case).set_params(dtype="float64")
    # Twice as many rows are more to go by for a base that counts them.
    weight = 2.0 if kind(case).rows is binary_rows else 1.0
    weighted = case.fit(data(case), sample_weight=np.full(60, weight))
    expected = net_weights(unweighted)
    for name, found in net_weights(weighted).items():
        assert_allclose(found, expected[name], rtol=1e-6, atol=1e-9, err_msg=name)


# ------------------------------------------------------------------------------
# Names
# ------------------------------------------------------------------------------


@each_case
def test_no_parameter_shadows_a_method_or_attribute(case):
    for cls in type(case).__mro__:
        assert not set(case.get_params(deep=False)) & set(vars(cls)), cls


@each_case
def test_fit_sets_only_names_that_end_in_an_underscore(case):
    new = set(vars(fit(case))) - set(vars(clone(case)))
    assert {name for name in new if not name.endswith("_") and not name.startswith("_")} == set()


@each_case
def test_every_parameter_is_validated_and_documented(case):
    names = set(case.get_params(deep=False))
    assert set(case._parameter_constraints) == names
    documented = inspect.getdoc(type(case)).split("Attributes\n")[0]
    listed = re.findall(r"^([a-z_0-9, ]+) : ", documented, flags=re.MULTILINE)
    assert {name for line in listed for name in line.split(", ")} == names


# ------------------------------------------------------------------------------
# Randomness
# ------------------------------------------------------------------------------


@each_case
def test_the_seed_decides_everything(case):
    X, one, same, other = data(case), fit(case), fit(case), fit(case, random_state=1)
    assert_array_equal(one.score_samples(X), same.score_samples(X))
    assert not np.array_equal(one.score_samples(X), other.score_samples(X))
    assert_array_equal(draw(one, 20, 3), draw(same, 20, 3))
    assert not np.array_equal(draw(one, 20, 3), draw(one, 20, 4))
    assert_array_equal(fill(one, holes(case, X), 3), fill(same, holes(case, X), 3))
    assert not np.array_equal(fill(one, holes(case, X), 3), fill(one, holes(case, X), 4))


@each_lead
def test_a_random_state_instance_is_consumed(case):
    model = fit(case, random_state=np.random.RandomState(0))
    assert_same_model(model, fit(case, random_state=np.random.RandomState(0)))
    state = np.random.RandomState(0)
    assert not np.array_equal(draw(model, 20, state), draw(model, 20, state))


@each_case
def test_global_generators_are_not_touched(case):
    def states():
        name, keys, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()

    before, X = states(), data(case)
    model = fit(case)
    model.partial_fit(X)
    outputs(model, X)
    model.score(X)
    draw(model)
    fill(model, holes(case, X))
    clean(model, X)
    assert states() == before


@each_lead
def test_without_a_seed_numpys_global_generator_decides(case):
    case = clone(case).set_params(random_state=None)
    np.random.seed(0)  # noqa: NPY002
    one, other = fit(case), fit(case)
    np.random.seed(0)  # noqa: NPY002
    assert_same_model(one, fit(case))
    assert moved(one, other) > 0


# ------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------


SHAPES = [
    pytest.param(p.values[0], as_rows, d, id=f"{p.id}-{as_rows.__name__}-{d}")
    for p in INSTANCES
    for as_rows in [np.asarray, sp.csr_array]
    if as_rows is np.asarray or get_tags(p.values[0]).input_tags.sparse
    for d in ([3, 6, 33, 64] if kind(p.values[0]).rounding == 0 else [3, 33])
]


@pytest.mark.parametrize(("case", "as_rows", "d"), SHAPES)
def test_score_samples_of_a_row_does_not_depend_on_its_neighbours(case, as_rows, d):
    rows, case = data(case, 700, d), of_columns(case, d)
    if "n_components" in case.get_params():
        case.set_params(n_components=5)
    model = case.set_params(n_iter=1).fit(rows)
    expected = outputs(model, rows)
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 255, 256, 257, 700):
        pick = rng.permutation(700)[:size]
        for name, values in expected.items():
            found, rounding = getattr(model, name)(as_rows(rows[pick])), kind(case).rounding
            if name == "predict":
                assert (found == values[pick]).mean() >= 1 - rounding
            else:
                assert_allclose(found, values[pick], rtol=rounding, atol=rounding, err_msg=name)


@pytest.mark.parametrize("copies", [np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2]])
@each_lead
def test_memory_layout_does_not_matter(case, copies):
    X, X_new, model = data(case), new_data(case), fit(case)
    assert_same_outputs(outputs(model, copies(X_new)), outputs(model, X_new))
    assert_same_model(clone(case).fit(copies(X)), model)


class Refused(PartitionEstimator):
    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        raise RuntimeError("log Z was asked for")


class Counted(PartitionEstimator):
    calls = 0

    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        type(self).calls += 1
        return LogPartition(1.5, 0.0, 1.5, 1.5, "exact", 1.5)


@each_case
def test_only_likelihoods_compute_log_z(case):
    X, model = data(case), fit(case, partition=Refused())
    model.partial_fit(X)
    for name in ("energy", "decision_function", "predict", *kind(case).outputs):
        getattr(model, name)(X)
    draw(model, 2)
    fill(model, holes(case, X))
    clean(model, X)
    by_pickle(model).predict(X)
    for ask in (lambda: model.score_samples(X), lambda: model.score(X), lambda: model.offset_):
        with pytest.raises(RuntimeError, match="log Z was asked for"):
            ask()


@each_case
def test_log_z_is_computed_once_per_fit(case, monkeypatch):
    monkeypatch.setattr(Counted, "calls", 0)
    X, model = data(case), fit(case, partition=Counted())
    assert Counted.calls == 0
    for _ in range(2):
        model.score_samples(X)
        model.score(X)
        _ = model.offset_, model.log_partition_, model.log_partition_bounds_
    assert Counted.calls == 1
    by_pickle(model).score(X)
    assert Counted.calls == 1  # stored with the model
    model.fit(X).score(X)
    assert Counted.calls == 2
    model.partial_fit(X).score(X)
    assert Counted.calls == 3


@each_case
def test_using_a_model_leaves_its_attributes_alone(case):
    X, model = data(case), fit(case)
    before = dict(vars(model))
    stored = joblib.hash([model.history_, model.threshold_, net_weights(model)])
    outputs(model, X)
    model.score(X)
    draw(model, 3)
    fill(model, holes(case, X))
    clean(model, X)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert stored == joblib.hash([model.history_, model.threshold_, net_weights(model)])


@each_case
def test_decision_is_the_score_above_the_offset(case):
    X, X_new, model = data(case), new_data(case), fit(case)
    decision = model.decision_function(X_new)
    assert_allclose(decision, model.score_samples(X_new) - model.offset_, rtol=0, atol=1e-9)
    assert_array_equal(model.predict(X_new), np.where(decision >= 0, 1, -1))
    assert 0 < (model.predict(X) == -1).sum() <= 0.1 * len(X) + 1


@with_log_z
def test_score_is_the_mean_log_likelihood(case):
    """Or somewhat less, where log Z is estimated: by its largest credible value."""
    X, model = new_data(case), fit(case)
    log_z, (lower, upper) = model.log_partition_, model.log_partition_bounds_
    assert_allclose(model.score_samples(X), -model.energy(X) - log_z, rtol=0, atol=1e-9)
    assert lower <= log_z
    assert not upper < log_z  # nan where there is none
    assert model.score(X) <= model.score_samples(X).mean() + 1e-9


@each_case
def test_without_a_partition_no_log_z_enters(case):
    X, model = data(case), fit(case, partition=None)
    assert_array_equal(model.score_samples(X), -model.energy(X))
    assert model.log_partition_ == 0
    assert model.log_partition_method_ == "none"
    assert model.offset_ == -model.threshold_
    assert np.isfinite(model.score(X))


# ------------------------------------------------------------------------------
# Storage
# ------------------------------------------------------------------------------


each_storage = pytest.mark.parametrize(
    "store", [by_pickle, by_joblib, by_skops, copy.deepcopy], ids=lambda f: f.__name__
)
# joblib and deepcopy go by what pickle does; skops takes an object apart.
each_kind_of_storage = pytest.mark.parametrize(
    "store", [by_pickle, by_skops], ids=lambda f: f.__name__
)


def skip_what_skops_asks_about(store, *values):
    """A user's own functions and a torch optimizer are types that skops rightly asks about."""
    if store is by_skops and any(value is tanh or isinstance(value, type) for value in values):
        pytest.skip("skops asks about types of others")


@each_kind_of_storage
@each_case
def test_a_stored_model_is_the_same_model(case, store):
    skip_what_skops_asks_about(store, *case.get_params().values())
    X, model = new_data(case), fit(case)
    loaded = store(model)
    assert_same_model(model, loaded)
    assert_same_outputs(outputs(loaded, X), outputs(model, X))
    assert loaded.score(X) == model.score(X)
    assert_array_equal(draw(loaded), draw(model))
    assert_array_equal(fill(loaded, holes(case, X)), fill(model, holes(case, X)))
    assert loaded.history_ == model.history_
    assert loaded.get_params().keys() == model.get_params().keys()


@each_storage
@each_lead
def test_an_unfitted_model_is_stored(case, store):
    skip_what_skops_asks_about(store, *case.get_params().values())
    loaded = store(clone(case))
    with pytest.raises(NotFittedError):
        loaded.predict(data(case))
    assert_same_model(loaded.fit(data(case)), fit(case))


@each_kind_of_storage
@each_case_and("optimizers", INSTANCES)
def test_a_stored_stream_goes_on_as_if_it_had_not_stopped(case, store, optimizers):
    model = clone(case).set_params(learning_rate=0.05, batch_size=7, **optimizers)
    skip_what_skops_asks_about(store, *model.get_params().values())
    X, X_new = data(case), new_data(case)
    model.partial_fit(X).partial_fit(X_new)
    loaded = store(model)
    assert loaded.net_ is not model.net_
    for rows in (X_new, X, X_new):
        assert_same_model(model.partial_fit(rows), loaded.partial_fit(rows))
    assert loaded.n_iter_ == model.n_iter_


@each_storage
@each_lead
def test_a_stored_fit_is_the_start_of_the_same_stream(case, store):
    skip_what_skops_asks_about(store, *case.get_params().values())
    X, model = new_data(case), fit(case)
    loaded = store(model)
    assert_same_model(model.partial_fit(X), loaded.partial_fit(X))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
@pytest.mark.parametrize("store", [by_pickle, by_skops])
@each_lead
def test_a_model_from_a_missing_device_is_loaded_on_the_cpu(case, store):
    skip_what_skops_asks_about(store, *case.get_params().values())
    X, model = data(case), fit(case)
    expected = model.score_samples(X)
    model.device = "cuda"
    with pytest.warns(UserWarning, match="cuda.*not available"):
        loaded = store(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_array_equal(loaded.score_samples(X), expected)
        draw(loaded, 2)
        loaded.partial_fit(X)
    with pytest.raises(ValueError, match='cuda.*Pass device="auto"'):
        loaded.fit(X)


@each_lead
def test_a_clone_is_not_fitted(case):
    model = clone(fit(case, net_params={"callbacks": []}, sampler=kind(case).sampler))
    with pytest.raises(NotFittedError):
        model.score_samples(data(case))
    assert not [name for name in vars(model) if name.endswith("_")]


@each_case_and("later")
def test_a_parameter_set_after_fit_waits_for_the_next_fit(case, later):
    """As with every scikit-learn estimator: the fitted model stays what it is."""
    X, model = new_data(case), fit(case)
    expected, drawn, filled = outputs(model, X), draw(model, 2), fill(model, holes(case, X))
    model.set_params(**later)
    for same in (model, by_pickle(model)):
        assert_same_outputs(outputs(same, X), expected)
        assert_array_equal(draw(same, 2), drawn)
        assert_array_equal(fill(same, holes(case, X)), filled)


# ------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------


@each_case
def test_warm_start_goes_on(case):
    X, model = data(case), clone(case).set_params(warm_start=True)
    first = by_pickle(model.fit(X))
    second = by_pickle(model.fit(X))
    assert moved(first, second) > 0
    assert_same_model(by_pickle(first).set_params(n_iter=0).fit(X), first)
    cold = clone(model).set_params(warm_start=False)
    for _ in range(2):
        assert_same_model(cold.fit(X), first)


@each_lead
def test_warm_start_with_other_weights_is_refused(case):
    model = fit(case, warm_start=True).set_params(**kind(case).wider)
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(data(case))


@each_case_and("going_on")
def test_warm_start_with_other_settings_goes_on_or_says_why_not(case, going_on):
    model = fit(case, warm_start=True).set_params(**going_on)
    try:
        model.fit(data(case))
    except ValueError as error:
        if "warm_start" not in str(error):
            with pytest.raises(ValueError, match=re.escape(str(error))):  # nor without one
                clone(model).fit(data(case))
    else:
        assert np.isfinite(model.score(data(case)))


@each_case
def test_partial_fit_is_one_pass(case, monkeypatch):
    """One step of each batch: as many as there are batches."""
    monkeypatch.setattr(BatchCounter, "calls", 0)
    model = clone(case).set_params(batch_size=7, net_params={"callbacks": [BatchCounter()]})
    model.partial_fit(data(case))
    assert BatchCounter.calls == -(-60 // 7)
    assert model.n_iter_ == 1
    model.partial_fit(data(case)[:7])
    assert BatchCounter.calls == -(-60 // 7) + 1
    assert model.n_iter_ == 2


@each_case
def test_partial_fit_goes_on_from_fit(case):
    model = fit(case)
    before = by_pickle(model)
    model.partial_fit(data(case))
    largest = max(np.abs(w).max() for w in net_weights(before).values())
    assert 0 < moved(model, before) < 0.5 * largest + 0.2


@each_lead
def test_fit_forgets_the_stream(case):
    model = clone(case).partial_fit(new_data(case)).fit(data(case))
    assert_same_model(model, fit(case))


# ------------------------------------------------------------------------------
# The net
# ------------------------------------------------------------------------------


class BatchCounter(Callback):
    calls = 0

    def on_batch_end(self, net, training=True, **kwargs):
        type(self).calls += bool(training)


class EpochCounter(Callback):
    calls = 0

    def on_epoch_end(self, net, **kwargs):
        type(self).calls += 1


@each_lead
def test_callbacks_are_called(case, monkeypatch):
    monkeypatch.setattr(BatchCounter, "calls", 0)
    monkeypatch.setattr(EpochCounter, "calls", 0)
    callbacks = [("batches", BatchCounter()), ("epochs", EpochCounter())]
    model = fit(case, net__callbacks=callbacks, learning_rate=0.01, batch_size=10)
    n_train = 60 - round(case.validation_fraction * 60) * case.early_stopping
    assert EpochCounter.calls == model.n_iter_
    assert BatchCounter.calls == model.n_iter_ * -(-n_train // 10)


@each_lead
def test_watching_batches_does_not_change_training(case):
    watched = fit(case, net__callbacks=[BatchCounter()])
    assert_same_model(watched, fit(case))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD])
@each_lead
def test_the_optimizer_can_be_replaced(case, optimizer):
    model = clone(case).set_params(
        net__optimizer=optimizer, net__lr=0.01, learning_rate_decay="constant"
    )
    assert model.get_params()["net__optimizer"] is optimizer
    assert model.net_params == {"optimizer": optimizer, "lr": 0.01}
    model.fit(data(case))
    assert type(model.net_.optimizer_) is optimizer
    assert model.history_[0]["lr"] == 0.01
    assert moved(model, fit(case)) > 0


@each_lead
def test_optimizer_arguments_reach_the_optimizer(case):
    model = fit(case, net__optimizer__weight_decay=0.01, net__lr=0.02)
    assert model.net_.optimizer_.param_groups[-1]["weight_decay"] == 0.01


@each_lead
def test_net_lr_is_the_learning_rate(case):
    case = clone(case).set_params(learning_rate_decay="constant")
    by_net, by_name = fit(case, net__lr=0.03), fit(case, learning_rate=0.03)
    assert_same_model(by_net, by_name)
    assert by_net.history_[0]["lr"] == by_net.history_[-1]["lr"] == 0.03


@each_lead
def test_net_batch_size_is_the_batch_size(case):
    by_net = fit(case, net__batch_size=10, learning_rate=0.03)
    by_name = fit(case, batch_size=10, learning_rate=0.03)
    assert_same_model(by_net, by_name)
    assert by_net.net_.batch_size == 10


@each_lead
def test_setting_a_net_parameter_leaves_the_given_dict_alone(case):
    given = {"lr": 0.1}
    model = clone(case)
    model.net_params = given
    other = clone(model)
    model.set_params(net__lr=0.2)
    assert given == {"lr": 0.1}
    assert other.get_params()["net__lr"] == 0.1
    assert clone(model).get_params()["net__lr"] == 0.2


@pytest.mark.parametrize("name", ["optimiser", "modle", "module", "criterion", "learning_rate"])
@each_lead
def test_a_misspelt_net_parameter_is_answered_with_the_valid_ones(case, name):
    valid = f"{name}.*optimizer.*lr.*callbacks"
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(**{f"net__{name}": 1})
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(net_params={name: 1}).fit(data(case))
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(net_params={name: 1}).partial_fit(data(case))


@each_lead
def test_a_part_that_was_not_given_cannot_be_configured(case):
    with pytest.raises(ValueError, match="sampler__steps.*sampler=None.*Pass one as sampler="):
        clone(case).set_params(sampler=None).set_params(sampler__steps=3)
    model = clone(case).set_params(partition=AISBracket(), partition__n_betas=7)
    assert model.partition.n_betas == 7
    with pytest.raises(ValueError, match="Invalid parameter"):
        clone(case).set_params(sampler=kind(case).sampler, sampler__steps=3)
    with pytest.raises(ValueError, match="Invalid parameter 'n_iters'"):
        clone(case).set_params(n_iters=3)


@each_lead
def test_given_parts_are_cloned(case):
    sampler, partition = clone(kind(case).sampler), clone(kind(case).partition)
    model = fit(case, sampler=sampler, partition=partition)
    model.score(data(case))
    draw(model)
    assert model.sampler is sampler
    assert model.partition is partition
    assert model.sampler_ is not sampler
    assert vars(sampler) == vars(kind(case).sampler)
    assert vars(partition) == vars(kind(case).partition)


@each_lead
def test_a_grid_search_in_a_pipeline(case):
    if getattr(case, "network", None) is tanh:
        case = clone(case).set_params(network=MLP((8,)))
    name = type(case).__name__.lower()
    case = clone(case).set_params(learning_rate_decay="constant")
    (searched, values), *_ = kind(case).searched.items()
    grid = {f"{name}__{searched}": values, f"{name}__net__lr": [0.001, 0.1]}
    case.set_params(partition=clone(kind(case).partition))
    pipeline = make_pipeline(FunctionTransformer(), case)
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(data(case))
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_[-1]
    assert best.get_params()[searched] == search.best_params_[f"{name}__{searched}"]
    assert best.history_[0]["lr"] == search.best_params_[f"{name}__net__lr"]
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    assert case.net_params is None


# ------------------------------------------------------------------------------
# Inputs and outputs
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars"])
@each_lead
def test_frames(case, library):
    frames = pytest.importorskip(library)
    X, names = data(case), [f"column {i}" for i in range(6)]
    frame = frames.DataFrame(dict(zip(names, X.T, strict=True)))
    model, plain = clone(case).fit(frame), fit(case)
    assert_same_model(model, plain)
    assert list(model.feature_names_in_) == names
    expected = outputs(plain, X)
    found = outputs(model, frame)
    assert_same_outputs(found, expected)
    assert model.score(frame) == plain.score(X)
    missing = frames.DataFrame(dict(zip(names, holes(case, X).T, strict=True)))
    assert_array_equal(fill(model, missing), fill(plain, holes(case, X)))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[names[::-1]])


@each_case_and("numbers")
def test_every_kind_of_number_gives_the_same_model(case, numbers):
    X = data(case)
    rows = X.tolist() if numbers is list else X.astype(numbers)
    model, expected = clone(case).fit(rows), fit(case)
    assert_same_model(model, expected)
    assert model.threshold_ == expected.threshold_
    assert_array_equal(model.score_samples(rows), expected.score_samples(X))
    assert all(p.dtype == getattr(torch, model.dtype) for p in model.energy_.parameters())
    for method in ("score_samples", "energy", "decision_function"):
        assert getattr(model, method)(rows).dtype == np.float64


@each_lead
def test_input_is_not_changed(case):
    rows = data(case)
    unknown = holes(case, rows)
    before = rows.copy(), unknown.copy()
    rows.setflags(write=False)
    unknown.setflags(write=False)
    model = clone(case).fit(rows).partial_fit(rows)
    outputs(model, rows)
    fill(model, rows)
    fill(model, unknown)
    clean(model, rows)
    assert_array_equal(rows, before[0])
    assert_array_equal(unknown, before[1])


@each_case
def test_known_entries_are_returned_as_they_are(case):
    X, model = new_data(case), fit(case)
    unknown = holes(case, X)
    unknown[0], unknown[1] = X[0], np.nan
    filled = fill(model, unknown)
    assert_array_equal(filled[~np.isnan(unknown)], X[~np.isnan(unknown)])
    assert np.isfinite(filled).all()
    assert_array_equal(fill(model, X), X)


# ------------------------------------------------------------------------------
# What a fit says
# ------------------------------------------------------------------------------


@each_lead
def test_a_silent_fit_prints_nothing(case, capfd):
    model = fit(case, verbose=0).partial_fit(data(case))
    model.score(data(case))
    draw(model, 3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("verbose", [1, True])
@each_lead
def test_a_verbose_fit_shows_one_bar(case, verbose, capfd):
    model = fit(case, verbose=verbose)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1  # written over and over, ended once
    last = err.rstrip("\n").split("\r")[-1]
    assert f"{model.n_iter_}/" in last
    assert "train_loss" in last


@each_case
def test_the_history_has_a_dict_for_each_epoch(case):
    model = fit(case)
    assert isinstance(model.history_, list)
    assert len(model.history_) == model.n_iter_ > 0
    for number, row in enumerate(model.history_, 1):
        assert type(row) is dict
        assert row["epoch"] == number
        assert np.isfinite(row["train_loss"])
        assert row["lr"] > 0
        assert ("valid_loss" in row) == case.early_stopping
    assert fit(case, n_iter=0).history_ == []


class Silence(Callback):
    """Set every gradient to zero, as a callback that clips them would change them."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        for _, parameter in named_parameters:
            parameter.grad.zero_()


@each_lead
def test_a_callback_may_change_the_gradients(case):
    still = fit(case, net_params={"callbacks": [Silence()]})
    assert_same_model(still, fit(case, n_iter=0))


@each_lead
def test_averaging_gives_other_finite_weights(case):
    last, mean = fit(case), fit(case, averaging=0.9)
    assert all(np.isfinite(w).all() for w in net_weights(mean).values())
    # Early stopping may keep the first epoch, of which the mean is itself.
    losses = [row.get("valid_loss", -row["epoch"]) for row in mean.history_]
    assert moved(last, mean) > 0 or np.argmin(losses) == 0


# ------------------------------------------------------------------------------
# Interruptions
# ------------------------------------------------------------------------------


class Interrupt(Callback):
    """Ctrl-C after so many batches."""

    def __init__(self, after):
        self.after = after

    def on_train_begin(self, net, **kwargs):
        self.left_ = self.after

    def on_batch_end(self, net, training=True, **kwargs):
        self.left_ -= bool(training)
        if self.left_ == 0:
            raise KeyboardInterrupt


def assert_usable(model):
    X = data(model)
    assert all(np.isfinite(w).all() for w in net_weights(model).values())
    assert np.isfinite(model.score(X))
    assert set(model.predict(X)) <= {-1, 1}
    assert len(draw(model, 3)) == 3
    assert len(model.history_) == model.n_iter_
    same = by_pickle(model)
    assert_array_equal(same.predict(X), model.predict(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(net_params=None).partial_fit(X)
    assert moved(same, model) > 0


@each_case_at(1, 4, 10)
def test_an_interrupted_fit_leaves_a_usable_model(case, after, averaging):
    params = {"learning_rate": 0.01, "batch_size": 10, "averaging": averaging}
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = fit(case, net__callbacks=[Interrupt(after)], **params)
    assert model.n_iter_ <= 1 + after // 5
    assert_usable(model)


@each_lead
def test_an_interruption_is_reported_once(case):
    X, callback = data(case), Interrupt(3)
    model = clone(case).set_params(batch_size=10, net__callbacks=[callback])
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.partial_fit(X)
    callback.after = -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X)


# ------------------------------------------------------------------------------
# Divergence
# ------------------------------------------------------------------------------


class Poison(Callback):
    """Write NaN into the weights once, after a number of batches."""

    def __init__(self, after):
        self.after = after

    def on_batch_end(self, net, training=True, **kwargs):
        self.after -= bool(training)
        if self.after == 0:
            with torch.no_grad():
                next(net.module_.energy.parameters()).view(-1)[0] = np.nan


@each_case_at(1, 9, 12)
def test_nan_in_the_weights_is_rolled_back(case, after, averaging):
    poisoned = {
        "learning_rate": 0.05,
        "batch_size": 10,
        "averaging": averaging,
        "net_params": {"callbacks": [Poison(after)]},
    }
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times.*epoch.*batch"):
        model = fit(case, **poisoned)
    assert model.n_restarts_ == 1
    assert model.n_iter_ == case.n_iter
    assert all(np.isfinite(w).all() for w in net_weights(model).values())
    assert np.isfinite(model.score(data(case)))


@each_lead
def test_a_roll_back_in_a_stream_is_reported_once(case):
    X = data(case)
    model = clone(case).set_params(batch_size=10, net_params={"callbacks": [Poison(2)]})
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model.partial_fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X)


@each_lead
def test_without_restarts_divergence_is_an_error(case):
    model = clone(case).set_params(
        batch_size=10, max_restarts=0, net_params={"callbacks": [Poison(2)]}
    )
    with pytest.raises(FloatingPointError, match=r"epoch \d+, batch \d+.*learning_rate"):
        model.fit(data(case))
    with pytest.raises(NotFittedError):
        model.predict(data(case))


@each_case
def test_the_guard_leaves_good_training_alone(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(case).n_restarts_ == 0
