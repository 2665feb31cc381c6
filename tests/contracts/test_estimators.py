"""The contract of every estimator: scikit-learn's own checks, then skebm's promises.

Every concrete estimator of the package must have cases here: configured instances, one for each
mode that it offers cheaply.
"""

import copy
import inspect
import io
import pickle
import random
import re
import warnings

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import skops.io
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch.callbacks import Callback

from skebm import RBMEstimator
from skebm._rows import Rows
from skebm.base import PartitionEstimator
from skebm.estimators.base import BaseEBM
from skebm.objectives import ExactLikelihood
from skebm.partition import (
    AIS,
    AISBracket,
    Bethe,
    BridgeSampling,
    Exact,
    ImportanceSampling,
    ReverseAIS,
)
from skebm.samplers import Gibbs, ParallelTempering
from tests.discovery import walk

quick = {"n_components": 3, "n_iter": 5, "random_state": 0}

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
    }
}

INSTANCES = [
    pytest.param(instance, id=f"{cls.__name__}-{name}")
    for cls, cases in CASES.items()
    for name, instance in cases.items()
]
each_case = pytest.mark.parametrize("case", INSTANCES)
with_log_z = pytest.mark.parametrize(
    "case", [p for p in INSTANCES if p.values[0].partition is not None]
)
each_rule = pytest.mark.parametrize("learning", ["auto", "pcd", "cd", "exact"])


def binary_rows(n=60, d=6, seed=0, noise=0.15):
    """Rows whose columns copy two hidden switches with noise: something to learn."""
    rng = np.random.default_rng(seed)
    switches = rng.integers(0, 2, (n, 2))
    rows = switches[:, np.arange(d) % 2]
    return np.where(rng.random((n, d)) < noise, 1 - rows, rows).astype(np.float64)


X = binary_rows()
X_NEW = binary_rows(40, seed=1)
X_CLEAR = binary_rows(400, 8, noise=0.05)  # learned within 40 passes at a learning rate of 0.1


def fit(case, **params):
    return clone(case).set_params(**params).fit(X)


def weights(model):
    return [model.components_, model.intercept_hidden_, model.intercept_visible_]


def assert_same_model(one, other):
    for a, b in zip(weights(one), weights(other), strict=True):
        assert_array_equal(a, b)


def independent_score(X):
    """Mean log-likelihood of the columns' own frequencies: the best model without interactions."""
    p = np.clip(X.mean(0), 1e-12, 1 - 1e-12)
    return float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------


def test_every_estimator_has_cases():
    assert set(walk(BaseEBM)) == set(CASES)


def unequal_by_design(estimator):
    """Weights in mini-batches are not repeated rows; with one full batch they are (below)."""
    reason = "mini-batches and sampled negatives"
    name = "check_sample_weight_equivalence_on_{}_data"
    return {name.format(kind): reason for kind in ("dense", "sparse")}


@pytest.mark.filterwarnings("ignore:RBMEstimator models values in")
@pytest.mark.filterwarnings("ignore:.*rows are not binary")
@pytest.mark.filterwarnings("ignore:X. columns")
@parametrize_with_checks(
    [clone(p.values[0]) for p in INSTANCES],
    expected_failed_checks=unequal_by_design,
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:RBMEstimator models values in")
@pytest.mark.filterwarnings("ignore:X. columns")
@pytest.mark.parametrize(
    "check",
    [
        "check_dataframe_column_names_consistency",
        "check_get_feature_names_out_error",
        "check_n_features_in_after_fitting",
        "check_param_validation",
        "check_set_output_transform",
        "check_set_output_transform_pandas",
        "check_set_output_transform_polars",
        "check_global_output_transform_pandas",
        "check_global_set_output_transform_polars",
        "check_transformer_get_feature_names_out",
        "check_transformer_get_feature_names_out_pandas",
    ],
)
@each_case
def test_checks_that_check_estimator_leaves_out(case, check):
    getattr(estimator_checks, check)(type(case).__name__, clone(case))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------

WEIGHTED = [
    pytest.param({"learning": "exact", "n_iter": 7}, id="exact-line-search"),
    pytest.param(
        {"learning": "exact", "n_iter": 7, "learning_rate": 0.1, "batch_size": 1000}, id="exact"
    ),
    pytest.param({"learning": "pcd", "n_iter": 7, "batch_size": 1000, "n_chains": 50}, id="pcd"),
    pytest.param(
        {
            "learning": "pcd",
            "n_iter": 7,
            "batch_size": 1000,
            "n_chains": 50,
            "centered": False,
            "sparsity_target": 0.1,
            "l2": 0.01,
        },
        id="pcd-penalties",
    ),
]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("params", WEIGHTED)
def test_integer_weights_are_repeated_rows(params, sparse):
    count = np.random.default_rng(3).integers(0, 5, len(X))
    shape = sp.csr_array if sparse else np.asarray
    model = RBMEstimator(n_components=3, random_state=0, dtype="float64", **params)
    weighted = clone(model).fit(shape(X), sample_weight=count)
    repeated = clone(model).fit(shape(np.repeat(X, count, axis=0)))
    assert_allclose(weighted.score_samples(X_NEW), repeated.score_samples(X_NEW), rtol=1e-7, atol=0)
    assert weighted.threshold_ == pytest.approx(repeated.threshold_, rel=1e-7)
    assert_array_equal(weighted.predict(X_NEW), repeated.predict(X_NEW))


@pytest.mark.parametrize("params", WEIGHTED)
def test_the_scale_of_weights_does_not_matter(params):
    weight = np.random.default_rng(3).random(len(X))
    model = RBMEstimator(n_components=3, random_state=0, dtype="float64", **params)
    one = clone(model).fit(X, sample_weight=weight)
    other = clone(model).fit(X, sample_weight=8 * weight)
    assert_allclose(one.score_samples(X), other.score_samples(X), rtol=1e-7, atol=0)


@each_case
def test_rows_of_weight_zero_are_not_there(case):
    weight = np.ones(len(X))
    weight[::3] = 0
    with_zeros = clone(case).fit(X, sample_weight=weight)
    without = clone(case).fit(X[weight > 0], sample_weight=weight[weight > 0])
    assert_same_model(with_zeros, without)
    assert with_zeros.threshold_ == without.threshold_


@each_case
def test_equal_weights_are_no_weights(case):
    weighted = fit(case, dtype="float64")
    case = clone(case).set_params(dtype="float64")
    assert_allclose(
        case.fit(X, sample_weight=np.full(len(X), 2.0)).components_,
        weighted.components_,
        rtol=1e-6,
        atol=1e-9,
    )


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
    one, same, other = fit(case), fit(case), fit(case, random_state=1)
    assert_array_equal(one.score_samples(X), same.score_samples(X))
    assert not np.array_equal(one.score_samples(X), other.score_samples(X))
    assert_array_equal(one.sample(20, random_state=3), same.sample(20, random_state=3))
    assert not np.array_equal(one.sample(20, random_state=3), one.sample(20, random_state=4))


@each_case
def test_a_random_state_instance_is_consumed(case):
    state = np.random.RandomState(0)
    one = clone(case).set_params(random_state=state).fit(X)
    again = clone(case).set_params(random_state=np.random.RandomState(0)).fit(X)
    assert_same_model(one, again)
    model = fit(case)
    state = np.random.RandomState(0)
    assert not np.array_equal(
        model.sample(20, random_state=state), model.sample(20, random_state=state)
    )


@each_case
def test_global_generators_are_not_touched(case):
    def states():
        name, keys, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()

    before = states()
    model = fit(case)
    model.partial_fit(X)
    model.score_samples(X)
    model.score(X)
    model.predict(X)
    model.sample(3, random_state=0)
    model.impute(np.where(X == 1, np.nan, X), random_state=0)
    model.denoise(X, random_state=0)
    model.gibbs(X)
    assert states() == before


def test_annealing_does_not_touch_global_generators():
    model = RBMEstimator(**quick, partition=AISBracket(20, 50, 10)).fit(X)
    before = torch.get_rng_state()
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    model.score(X)
    assert torch.equal(before, torch.get_rng_state())
    assert np.random.random() == expected  # noqa: NPY002


@each_case
def test_without_a_seed_numpys_global_generator_decides(case):
    case = clone(case).set_params(random_state=None)
    np.random.seed(0)  # noqa: NPY002
    one = clone(case).fit(X)
    other = clone(case).fit(X)
    np.random.seed(0)  # noqa: NPY002
    same = clone(case).fit(X)
    assert_same_model(one, same)
    assert not np.array_equal(one.components_, other.components_)


# ------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [3, 6, 33, 64])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@each_case
def test_score_samples_of_a_row_does_not_depend_on_its_neighbours(case, kind, d):
    rows = binary_rows(700, d)
    model = clone(case).set_params(n_iter=1, n_components=5).fit(rows)
    expected = model.score_samples(rows)
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 255, 256, 257, 700):
        pick = rng.permutation(700)[:size]
        assert_array_equal(model.score_samples(kind(rows[pick])), expected[pick])
        assert_array_equal(model.energy(kind(rows[pick])), model.energy(rows)[pick])
        assert_array_equal(model.transform(kind(rows[pick])), model.transform(rows)[pick])


@pytest.mark.parametrize("copies", [np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2]])
@each_case
def test_memory_layout_does_not_matter(case, copies):
    model = fit(case)
    assert_array_equal(model.score_samples(copies(X_NEW)), model.score_samples(X_NEW))
    assert_same_model(clone(case).fit(copies(X)), model)


class Refused(PartitionEstimator):
    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        raise RuntimeError("log Z was asked for")


class Counted(Exact):
    calls = 0

    def estimate(self, *args, **kwargs):
        type(self).calls += 1
        return super().estimate(*args, **kwargs)


@each_case
def test_only_likelihoods_compute_log_z(case):
    model = fit(case, partition=Refused())
    model.partial_fit(X)
    model.energy(X)
    model.decision_function(X)
    model.predict(X)
    model.transform(X)
    model.sample(2, random_state=0)
    model.impute(X, random_state=0)
    pickle.loads(pickle.dumps(model)).predict(X)
    for ask in (lambda: model.score_samples(X), lambda: model.score(X), lambda: model.offset_):
        with pytest.raises(RuntimeError, match="log Z was asked for"):
            ask()


@each_case
def test_log_z_is_computed_once_per_fit(case, monkeypatch):
    monkeypatch.setattr(Counted, "calls", 0)
    model = fit(case, partition=Counted())
    assert Counted.calls == 0
    for _ in range(2):
        model.score_samples(X)
        model.score(X)
        _ = model.offset_, model.log_partition_, model.log_partition_bounds_
    assert Counted.calls == 1
    pickle.loads(pickle.dumps(model)).score(X)
    assert Counted.calls == 1  # stored with the model
    model.fit(X).score(X)
    assert Counted.calls == 2
    model.partial_fit(X).score(X)
    assert Counted.calls == 3


@with_log_z
@pytest.mark.parametrize("name", ["components_", "intercept_hidden_", "intercept_visible_"])
def test_assigning_weights_forgets_log_z(case, name):
    model = fit(case)
    before = model.log_partition_
    setattr(model, name, getattr(model, name) + 1)
    assert model.log_partition_ > before + 0.1
    exact = Exact().estimate(model.energy_).value
    assert model.log_partition_ == pytest.approx(exact, abs=1e-9)


@each_case
def test_using_a_model_leaves_its_attributes_alone(case):
    model = fit(case)
    before = dict(vars(model))
    stored = joblib.hash([model.history_, model.threshold_, *weights(model)])
    for method in ("score_samples", "score", "energy", "decision_function", "predict"):
        getattr(model, method)(X)
    for method in ("transform", "reconstruct", "pseudo_likelihood"):
        getattr(model, method)(X)
    model.sample(3)
    model.impute(X)
    model.denoise(X)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert stored == joblib.hash([model.history_, model.threshold_, *weights(model)])


@each_case
def test_decision_is_the_score_above_the_offset(case):
    model = fit(case)
    decision = model.decision_function(X_NEW)
    assert_allclose(decision, model.score_samples(X_NEW) - model.offset_, rtol=0, atol=1e-9)
    assert_array_equal(model.predict(X_NEW), np.where(decision >= 0, 1, -1))
    assert 0 < (model.predict(X) == -1).sum() <= 0.1 * len(X) + 1


@with_log_z
def test_score_is_the_mean_log_likelihood(case):
    model = fit(case)
    assert model.log_partition_kind_ == "exact"
    assert model.log_partition_std_ == 0
    assert model.score(X_NEW) == pytest.approx(model.score_samples(X_NEW).mean(), abs=1e-9)
    assert_allclose(
        model.score_samples(X_NEW), -model.energy(X_NEW) - model.log_partition_, rtol=0, atol=1e-9
    )


@with_log_z
def test_score_with_an_estimated_log_z_is_pessimistic(case):
    model = fit(case, partition=AISBracket(n_chains=50, n_betas=100, n_steps=20))
    lower, upper = model.log_partition_bounds_
    assert model.log_partition_kind_ == "heuristic"
    assert lower < model.log_partition_ < upper
    assert model.score(X) < model.score_samples(X).mean()
    assert model.score(X) == pytest.approx(-model.energy(X).mean() - upper, abs=1e-9)
    exact = Exact().estimate(model.energy_).value
    assert model.log_partition_ == pytest.approx(exact, abs=10 * model.log_partition_std_ + 1e-3)


METHODS = {
    AIS: AIS(50, 100),
    ReverseAIS: ReverseAIS(100),
    AISBracket: AISBracket(50, 100, 20),
    BridgeSampling: BridgeSampling(n_steps=20),
    ImportanceSampling: ImportanceSampling(n_samples=20_000),
}


@with_log_z
@pytest.mark.parametrize("cls", list(walk(PartitionEstimator)), ids=lambda cls: cls.__name__)
@pytest.mark.filterwarnings("ignore:score is nan")
def test_every_method_of_log_z_is_a_parameter(case, cls):
    model = fit(case, partition=METHODS.get(cls, cls()))
    exact = Exact().estimate(model.energy_).value
    found, (lower, upper) = model.log_partition_, model.log_partition_bounds_
    if cls in METHODS:
        assert found == pytest.approx(exact, abs=5 * model.log_partition_std_ + 1e-3)
    else:
        assert found == pytest.approx(exact, abs=4.0)
    if model.log_partition_kind_ != "heuristic":
        assert not lower > exact + 1e-4
        assert not upper < exact - 1e-4
    assert np.isfinite(model.score_samples(X)).all()
    assert not model.score(X) > (-model.energy(X).mean() - exact) + 3 * model.log_partition_std_
    assert model.log_partition_method_.startswith(f"as given: {cls.__name__}")


def test_a_score_without_a_credible_log_z_is_nan_and_says_why():
    """A machine with couplings of both signs has no bound by Bethe."""
    model = RBMEstimator(**quick, partition=Bethe()).fit(X)
    with pytest.warns(UserWarning, match="no credible upper end: couplings are frustrated"):
        assert np.isnan(model.score(X))
    assert np.isfinite(model.log_partition_)


@each_case
def test_without_a_partition_the_score_is_a_pseudo_likelihood(case):
    model = fit(case, partition=None)
    assert_array_equal(model.score_samples(X), -model.energy(X))
    assert model.log_partition_ == 0
    assert model.score(X) == pytest.approx(model.pseudo_likelihood(X).mean(), abs=1e-9)
    assert model.offset_ == -model.threshold_


# ------------------------------------------------------------------------------
# Storage
# ------------------------------------------------------------------------------


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model):
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def by_skops(model):
    data = skops.io.dumps(model)
    unknown = skops.io.get_untrusted_types(data=data)
    assert all(name.startswith("skebm.") for name in unknown), unknown
    return skops.io.loads(data, trusted=unknown)


each_storage = pytest.mark.parametrize(
    "store", [by_pickle, by_joblib, by_skops, copy.deepcopy], ids=lambda f: f.__name__
)


@each_storage
@each_case
def test_a_stored_model_is_the_same_model(case, store):
    model = fit(case)
    loaded = store(model)
    assert_same_model(model, loaded)
    for method in ("score_samples", "decision_function", "predict", "transform"):
        assert_array_equal(getattr(loaded, method)(X_NEW), getattr(model, method)(X_NEW))
    assert loaded.score(X_NEW) == model.score(X_NEW)
    assert_array_equal(loaded.sample(9, random_state=0), model.sample(9, random_state=0))
    assert_array_equal(loaded.gibbs(X), model.gibbs(X))
    assert loaded.history_ == model.history_
    assert loaded.get_params().keys() == model.get_params().keys()


@each_storage
@each_case
def test_an_unfitted_model_is_stored(case, store):
    loaded = store(clone(case))
    with pytest.raises(NotFittedError):
        loaded.predict(X)
    assert_same_model(loaded.fit(X), fit(case))


OPTIMIZERS = [
    pytest.param({}, id="sgd"),
    pytest.param({"momentum": 0.9}, id="momentum"),
    pytest.param({"net_params": {"optimizer": torch.optim.Adam}}, id="adam"),
]


@pytest.mark.parametrize("params", OPTIMIZERS)
@each_storage
@each_case
def test_a_stored_stream_goes_on_as_if_it_had_not_stopped(case, store, params):
    if store is by_skops and "net_params" in params:
        pytest.skip("a torch optimizer class is a type that skops rightly asks about")
    model = clone(case).set_params(learning_rate=0.05, batch_size=7, **params)
    model.partial_fit(X).partial_fit(X_NEW)
    loaded = store(model)
    assert loaded.net_ is not model.net_
    for rows in (X_NEW, X, X_NEW):
        assert_same_model(model.partial_fit(rows), loaded.partial_fit(rows))
    assert loaded.n_iter_ == model.n_iter_


@each_storage
@each_case
def test_a_stored_fit_is_the_start_of_the_same_stream(case, store):
    model = fit(case)
    loaded = store(model)
    assert_same_model(model.partial_fit(X_NEW), loaded.partial_fit(X_NEW))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
@pytest.mark.parametrize("store", [by_pickle, by_skops])
@each_case
def test_a_model_from_a_missing_device_is_loaded_on_the_cpu(case, store):
    model = fit(case)
    expected = model.score_samples(X)
    model.device = "cuda"
    with pytest.warns(UserWarning, match="cuda.*not available"):
        loaded = store(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_array_equal(loaded.score_samples(X), expected)
        loaded.sample(2, random_state=0)
        loaded.partial_fit(X)
    with pytest.raises(ValueError, match='cuda.*Pass device="auto"'):
        loaded.fit(X)


@each_case
def test_a_clone_is_not_fitted(case):
    model = clone(fit(case, net_params={"callbacks": []}, sampler=Gibbs()))
    with pytest.raises(NotFittedError):
        model.score_samples(X)
    assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize(
    "params",
    [
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
    ],
    ids=lambda params: "-".join(f"{k}={v}" for k, v in params.items()),
)
@each_case
def test_a_parameter_set_after_fit_waits_for_the_next_fit(case, params):
    """As with every scikit-learn estimator: the fitted model stays what it is."""
    model = fit(case)
    expected = model.score_samples(X_NEW), model.transform(X_NEW)
    model.set_params(**params)
    for same in (model, by_pickle(model)):
        assert_array_equal(same.score_samples(X_NEW), expected[0])
        assert_array_equal(same.transform(X_NEW), expected[1])
        assert len(same.get_feature_names_out()) == 3
        assert len(same.sample(2, random_state=0)) == 2


# ------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------


@each_case
def test_warm_start_goes_on(case):
    short = clone(case).set_params(
        warm_start=True, n_iter=10, learning_rate=0.1, batch_size=10, partition="auto"
    )
    scores = [short.fit(X_CLEAR).score(X_CLEAR) for _ in range(3)]
    if case.base == "independent":
        assert scores[2] > scores[0] + 0.5
    else:  # a tree says all there is to say about two switches before the first step
        assert abs(scores[2] - scores[0]) < 0.05
        assert scores[2] != scores[0]
    cold = clone(short).set_params(warm_start=False)
    assert cold.fit(X_CLEAR).score(X_CLEAR) == cold.fit(X_CLEAR).score(X_CLEAR) == scores[0]


def test_warm_start_keeps_the_chains():
    model = RBMEstimator(**quick, learning="pcd", warm_start=True, n_chains=8).fit(X)
    before = model.h_samples_.copy()
    model.set_params(n_iter=0).fit(X)
    assert_array_equal(model.h_samples_, before)


@each_case
def test_warm_start_with_other_hidden_units_is_refused(case):
    model = fit(case, warm_start=True).set_params(n_components=4)
    with pytest.raises(ValueError, match="n_components"):
        model.fit(X)


@pytest.mark.parametrize(
    "params", [{"dtype": "float64"}, {"n_chains": 3}, {"learning": "cd"}, {"centered": False}]
)
@each_case
def test_warm_start_with_other_settings_goes_on_or_says_why_not(case, params):
    model = fit(case, warm_start=True).set_params(**params)
    try:
        model.fit(X)
    except ValueError as error:
        assert "warm_start" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(model.score(X))


@each_case
def test_partial_fit_is_one_pass(case):
    """One step of each batch: as many as there are batches."""
    BatchCounter.calls = 0
    model = clone(case).set_params(batch_size=7, net_params={"callbacks": [BatchCounter()]})
    model.partial_fit(X)
    assert BatchCounter.calls == -(-len(X) // 7)
    assert model.n_iter_ == 1
    model.partial_fit(X[:7])
    assert BatchCounter.calls == -(-len(X) // 7) + 1
    assert model.n_iter_ == 2


@each_case
def test_partial_fit_goes_on_from_fit(case):
    model = fit(case)
    before = model.components_.copy()
    model.partial_fit(X)
    step = np.abs(model.components_ - before).max()
    assert 0 < step < 0.5 * np.abs(before).max() + 0.2


@each_case
def test_fit_forgets_the_stream(case):
    model = clone(case).partial_fit(X_NEW).fit(X)
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


@each_case
def test_callbacks_are_called(case, monkeypatch):
    monkeypatch.setattr(BatchCounter, "calls", 0)
    monkeypatch.setattr(EpochCounter, "calls", 0)
    callbacks = [("batches", BatchCounter()), ("epochs", EpochCounter())]
    model = fit(case, net__callbacks=callbacks, learning_rate=0.01, batch_size=10)
    n_train = len(X) - round(0.1 * len(X)) * case.early_stopping
    assert EpochCounter.calls == model.n_iter_
    assert BatchCounter.calls == model.n_iter_ * -(-n_train // 10)


@each_case
def test_watching_batches_does_not_change_training(case):
    watched = fit(case, net__callbacks=[BatchCounter()])
    assert_same_model(watched, fit(case))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD])
@each_case
def test_the_optimizer_can_be_replaced(case, optimizer):
    model = clone(case).set_params(net__optimizer=optimizer, net__lr=0.01)
    assert model.get_params()["net__optimizer"] is optimizer
    assert model.net_params == {"optimizer": optimizer, "lr": 0.01}
    model.fit(X)
    assert type(model.net_.optimizer_) is optimizer
    assert model.history_[0]["lr"] == 0.01
    assert model.learning_rate_ == 0.01
    assert not np.array_equal(model.components_, fit(case).components_)


@each_case
def test_optimizer_arguments_reach_the_optimizer(case):
    model = fit(case, net__optimizer__weight_decay=0.01, net__lr=0.02)
    assert model.net_.optimizer_.param_groups[0]["weight_decay"] == 0.01


@each_case
def test_net_lr_is_the_learning_rate(case):
    by_net = fit(case, net__lr=0.03, learning_rate_decay="constant")
    by_name = fit(case, learning_rate=0.03)
    assert_same_model(by_net, by_name)


@each_case
def test_net_batch_size_is_the_batch_size(case):
    by_net = fit(case, net__batch_size=10, learning_rate=0.03)
    by_name = fit(case, batch_size=10, learning_rate=0.03)
    assert_same_model(by_net, by_name)
    assert by_net.batch_size_ == by_name.batch_size_ == 10


@each_case
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
@each_case
def test_a_misspelt_net_parameter_is_answered_with_the_valid_ones(case, name):
    valid = f"{name}.*optimizer.*lr.*callbacks"
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(**{f"net__{name}": 1})
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(net_params={name: 1}).fit(X)
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(net_params={name: 1}).partial_fit(X)


@each_case
def test_a_part_that_was_not_given_cannot_be_configured(case):
    with pytest.raises(ValueError, match="sampler__steps.*sampler=None.*Pass one as sampler="):
        clone(case).set_params(sampler=None).set_params(sampler__steps=3)
    model = clone(case).set_params(partition=AISBracket(), partition__n_betas=7)
    assert model.partition.n_betas == 7
    with pytest.raises(ValueError, match="Invalid parameter"):
        clone(case).set_params(sampler=Gibbs(), sampler__steps=3)
    with pytest.raises(ValueError, match="Invalid parameter 'n_component'"):
        clone(case).set_params(n_component=3)


@each_case
def test_given_parts_are_cloned(case):
    sampler, partition = Gibbs(), Exact()
    model = fit(case, sampler=sampler, partition=partition)
    model.score(X)
    assert model.sampler is sampler
    assert model.partition is partition
    assert model.sampler_ is not sampler
    assert vars(sampler) == vars(Gibbs())


@each_case
def test_a_grid_search_in_a_pipeline(case):
    name = type(case).__name__.lower()
    case = clone(case).set_params(learning_rate_decay="constant")
    grid = {f"{name}__n_components": [2, 4], f"{name}__net__lr": [0.001, 0.1]}
    search = GridSearchCV(make_pipeline(Binarizer(), case), grid, cv=2, error_score="raise").fit(X)
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_[-1]
    assert best.components_.shape[0] == search.best_params_[f"{name}__n_components"]
    assert best.history_[0]["lr"] == search.best_params_[f"{name}__net__lr"]
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    assert case.net_params is None


# ------------------------------------------------------------------------------
# Inputs and outputs
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars"])
@each_case
def test_frames(case, library):
    frames = pytest.importorskip(library)
    names = [f"bit {i}" for i in range(X.shape[1])]
    frame = frames.DataFrame(dict(zip(names, X.T, strict=True)))
    model = clone(case).set_output(transform=library)
    out = model.fit_transform(frame)
    assert_same_model(model, fit(case))
    assert isinstance(out, frames.DataFrame)
    assert isinstance(model.transform(frame), frames.DataFrame)
    assert list(model.feature_names_in_) == names
    prefix = type(case).__name__.lower()
    assert (
        list(out.columns)
        == [f"{prefix}{i}" for i in range(3)]
        == list(model.get_feature_names_out())
    )
    assert_array_equal(model.score_samples(frame), fit(case).score_samples(X))


@pytest.mark.parametrize(
    "kind", [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.coo_array], ids=lambda k: k.__name__
)
@each_case
def test_sparse_rows_are_the_same_rows(case, kind):
    dense, sparse = fit(case), clone(case).fit(kind(X))
    assert_allclose(sparse.components_, dense.components_, rtol=0, atol=1e-6)
    for method in ("score_samples", "transform", "predict", "reconstruct", "pseudo_likelihood"):
        assert_array_equal(getattr(dense, method)(kind(X)), getattr(dense, method)(X))
    missing = X_NEW.copy()
    missing[:, 2] = np.nan
    assert_array_equal(
        dense.impute(kind(missing), random_state=0), dense.impute(missing, random_state=0)
    )
    assert_array_equal(dense.denoise(kind(X), random_state=0), dense.denoise(X, random_state=0))
    assert_same_model(clone(case).partial_fit(kind(X)), clone(case).partial_fit(X))


@pytest.mark.parametrize("kind", [bool, int, np.uint8, np.float16, np.float32, np.float64, list])
@each_case
def test_every_kind_of_number_gives_the_same_model(case, kind):
    rows = X.tolist() if kind is list else X.astype(kind)
    model = clone(case).fit(rows)
    assert_same_model(model, fit(case))
    assert_array_equal(model.score_samples(rows), model.score_samples(X))
    expected = np.float32 if kind is np.float32 else np.float64
    assert model.transform(rows).dtype == expected
    assert model.components_.dtype == model.dtype
    for method in ("score_samples", "energy", "decision_function"):
        assert getattr(model, method)(rows).dtype == np.float64


@each_case
def test_input_is_not_changed(case):
    rows = np.where(X_NEW == 1, 3.0, X_NEW)
    before = rows.copy()
    rows.setflags(write=False)
    with pytest.warns(UserWarning, match="min-max scaled"):
        model = clone(case).fit(rows)
    for method in ("score_samples", "transform", "gibbs", "reconstruct", "impute", "denoise"):
        getattr(model, method)(rows)
    assert_array_equal(rows, before)


# ------------------------------------------------------------------------------
# What a fit says
# ------------------------------------------------------------------------------


@each_case
def test_a_silent_fit_prints_nothing(case, capfd):
    model = fit(case, verbose=0).partial_fit(X)
    model.score(X)
    model.sample(3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("verbose", [1, True])
@each_case
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


@pytest.mark.parametrize("params", [{}, {"learning_rate": 0.3}, {"momentum": 0.9}])
@each_rule
def test_early_stopping_keeps_the_best_weights(learning, params):
    rng = np.random.default_rng(0)
    rows = (rng.random((60, 8)) < 0.5).astype(float)  # nothing to learn: it must overfit
    model = RBMEstimator(
        6,
        learning=learning,
        n_iter=400,
        early_stopping=True,
        validation_fraction=0.3,
        random_state=0,
        **params,
    ).fit(rows)
    assert model.n_iter_ < 400
    losses = [row["valid_loss"] for row in model.history_]
    held_out = model.net_.validation.block(0, len(rows)).numpy()
    assert len(held_out) == 18
    if model.learning_ == "exact":
        loss = -model.score(held_out)
    else:
        loss = -model.pseudo_likelihood(held_out).mean()
    assert min(losses) - 1e-5 <= loss <= min(losses) + model.tol + 1e-5
    assert losses[-1] > min(losses)


@each_rule
def test_early_stopping_does_not_train_on_the_held_out_rows(learning):
    seen = []

    class Keep(Callback):
        def on_batch_end(self, net, batch=None, training=True, **kwargs):
            seen.extend(batch.x[:, :7].tolist())

    number = (np.arange(50)[:, None] >> np.arange(6)) & 1  # each row says which it is
    rows = np.hstack([np.ones((50, 1)), number])
    model = RBMEstimator(**quick, learning=learning, early_stopping=True)
    model.set_params(net_params={"callbacks": [Keep()]}).fit(rows)
    validation = model.net_.validation
    assert isinstance(validation, Rows)
    held_out = set(map(tuple, validation.block(0, 50).tolist()))
    seen = set(map(tuple, seen))
    assert len(held_out) == 5
    assert len(seen) == 45
    assert not seen & held_out


# ------------------------------------------------------------------------------
# What hyper-parameters do
# ------------------------------------------------------------------------------

plain = {
    "n_components": 4,
    "random_state": 0,
    "learning_rate": 0.1,
    "n_iter": 40,
    "batch_size": 10,
}


@each_rule
def test_averaging_gives_other_finite_weights(learning):
    last = RBMEstimator(**plain, learning=learning).fit(X_CLEAR)
    mean = RBMEstimator(**plain, learning=learning, averaging=0.9).fit(X_CLEAR)
    assert np.isfinite(mean.components_).all()
    difference = np.abs(mean.components_ - last.components_).max()
    assert 0 < difference < np.abs(last.components_).max()
    assert mean.score(X_CLEAR) > independent_score(X_CLEAR) + 2


def test_averaging_is_the_mean_of_the_epochs():
    """The first epochs enter with equal weight, whatever the decay."""
    seen = []

    class Keep(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append(net.module_.energy.weight.detach().clone())

    kwargs = {"n_components": 4, "random_state": 0, "learning": "exact", "learning_rate": 0.1}
    RBMEstimator(**kwargs, n_iter=5, net_params={"callbacks": [Keep()]}).fit(X)
    mean = RBMEstimator(**kwargs, n_iter=5, averaging=0.99).fit(X)
    assert_allclose(mean.components_, torch.stack(seen).mean(0), rtol=1e-4, atol=1e-6)


@each_rule
def test_momentum_is_faster(learning):
    slow = {**plain, "learning_rate": 0.02, "n_iter": 30}
    without = RBMEstimator(**slow, learning=learning).fit(X_CLEAR)
    with_momentum = RBMEstimator(**slow, learning=learning, momentum=0.9).fit(X_CLEAR)
    assert with_momentum.score(X_CLEAR) > without.score(X_CLEAR) + 0.1


@pytest.mark.parametrize("line_search", [False, True])
@each_rule
def test_penalties_shrink_the_weights(learning, line_search):
    if line_search and learning in ("pcd", "cd"):
        pytest.skip("no line search without a likelihood")
    params = {"n_components": 4, "random_state": 0} if line_search else plain
    free = RBMEstimator(**params, learning=learning).fit(X_CLEAR).components_
    l2 = RBMEstimator(**params, learning=learning, l2=0.02).fit(X_CLEAR).components_
    l1 = RBMEstimator(**params, learning=learning, l1=0.02).fit(X_CLEAR).components_
    assert 0 < np.linalg.norm(l2) < np.linalg.norm(free)
    assert (np.abs(l1) < 0.02).sum() > (np.abs(free) < 0.02).sum()
    assert np.abs(l1).sum() < np.abs(free).sum()


@pytest.mark.parametrize("target", [0.1, 0.8])
@each_rule
def test_sparsity_moves_the_activations(learning, target):
    free = RBMEstimator(**plain, learning=learning).fit(X_CLEAR)
    sparse = {"sparsity_target": target, "sparsity_cost": 1.0}
    held = RBMEstimator(**plain, **sparse, learning=learning).fit(X_CLEAR)

    def distance(model):
        return np.abs(model.transform(X_CLEAR).mean(0) - target).mean()

    assert distance(held) < 0.8 * distance(free)


class Silence(Callback):
    """Set every gradient to zero, as a callback that clips them would change them."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        for _, parameter in named_parameters:
            parameter.grad.zero_()


@each_case
def test_a_callback_may_change_the_gradients(case):
    still = fit(case, net_params={"callbacks": [Silence()]})
    assert_array_equal(still.components_, fit(case, n_iter=0).components_)


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
    assert all(np.isfinite(w).all() for w in weights(model))
    assert np.isfinite(model.score(X))
    assert model.score(X) > independent_score(X) - 0.1
    assert set(model.predict(X)) <= {-1, 1}
    assert len(model.sample(3)) == 3
    assert len(model.history_) == model.n_iter_
    assert_array_equal(by_pickle(model).predict(X), model.predict(X))
    before = model.components_.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(net_params=None).partial_fit(X)
    assert not np.array_equal(before, model.components_)


@pytest.mark.parametrize("after", [1, 4, 10])
@pytest.mark.parametrize("averaging", [0.0, 0.9])
@each_case
def test_an_interrupted_fit_leaves_a_usable_model(case, after, averaging):
    params = {"learning_rate": 0.01, "batch_size": 10, "averaging": averaging, "partition": "auto"}
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = fit(case, net__callbacks=[Interrupt(after)], **params)
    assert model.n_iter_ <= 1 + after // 5
    assert_usable(model)


@pytest.mark.parametrize("learning", ["pcd", "cd"])
@pytest.mark.parametrize("after", [1, 8])
def test_an_interrupted_sampler_leaves_a_usable_model(learning, after, monkeypatch):
    step, calls = Gibbs.step, []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(Gibbs, "step", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = RBMEstimator(**quick, learning=learning, batch_size=10).fit(X)
    assert_usable(model)


@pytest.mark.parametrize("after", [*range(1, 12), 25, 40])
def test_an_interrupted_line_search_leaves_a_usable_model(after, monkeypatch):
    """Ctrl-C lands at a trial point of the line search, which may be far off."""
    gradients, calls = ExactLikelihood.gradients, []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            raise KeyboardInterrupt
        return gradients(*args, **kwargs)

    monkeypatch.setattr(ExactLikelihood, "gradients", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = RBMEstimator(n_components=4, n_iter=100, tol=0, random_state=0).fit(X)
    assert_usable(model)


@each_case
def test_an_interruption_is_reported_once(case):
    callback = Interrupt(3)
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

DIGITS = (load_digits().data > 8).astype(np.float32)


def fit_or_say_why(model, X):
    """Fitted model with its convergence warnings, or None after a FloatingPointError."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X)
        except FloatingPointError as error:
            assert re.search(r"epoch \d+, batch \d+", str(error))  # noqa: PT017
            return None, []
    return model, [str(w.message) for w in caught if w.category is ConvergenceWarning]


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("learning", ["pcd", "cd", "exact"])
def test_a_learning_rate_of_ten_does_not_pass_in_silence(learning, centered):
    model = RBMEstimator(
        10, learning=learning, learning_rate=10, n_iter=12, centered=centered, random_state=0
    )
    model, messages = fit_or_say_why(model, DIGITS)
    if learning == "pcd":
        assert model is None or messages
    if model is None:
        return
    assert all(np.isfinite(w).all() for w in weights(model))
    if messages:
        assert "learning_rate" in messages[0]
        assert model.n_restarts_ > 0
    # Plain gradients couple weights and biases, so steps still large shake the biases about.
    # A few passes with what is left of the rate are noisy: half a nat.
    floor = independent_score(DIGITS) - 0.5 if centered else -64 * np.log(2)
    assert model.score(DIGITS) > floor


@pytest.mark.parametrize("learning", ["pcd", "exact"])
def test_without_restarts_divergence_is_an_error(learning):
    model = RBMEstimator(
        10, learning=learning, learning_rate=100, n_iter=4, max_restarts=0, random_state=0
    )
    with pytest.raises(FloatingPointError, match=r"epoch \d+, batch \d+.*learning_rate"):
        model.fit(DIGITS)
    with pytest.raises(NotFittedError):
        model.predict(DIGITS)


@pytest.mark.parametrize("learning", ["pcd", "exact"])
def test_a_stream_that_diverges_keeps_its_last_good_weights(learning):
    model = RBMEstimator(10, learning=learning, batch_size=100, max_restarts=0, random_state=0)
    before = model.partial_fit(DIGITS).score(DIGITS)
    for group in model.net_.optimizer_.param_groups:
        group["lr"] = 1e4
    with pytest.raises(FloatingPointError, match=r"batch \d+"):
        model.partial_fit(DIGITS)
    assert model.score(DIGITS) == pytest.approx(before, abs=1e-9)


class Poison(Callback):
    """Write NaN into the weights once, after a number of batches."""

    def __init__(self, after):
        self.after = after

    def on_batch_end(self, net, training=True, **kwargs):
        self.after -= bool(training)
        if self.after == 0:
            with torch.no_grad():
                net.module_.energy.weight[0, 0] = np.nan


@pytest.mark.parametrize("averaging", [0.0, 0.9])
@pytest.mark.parametrize("after", [1, 9, 12])
@pytest.mark.parametrize("learning", ["pcd", "cd", "exact"])
def test_nan_in_the_weights_is_rolled_back(learning, after, averaging):
    model = RBMEstimator(
        **quick,
        learning=learning,
        learning_rate=0.05,
        batch_size=10,
        averaging=averaging,
        net_params={"callbacks": [Poison(after)]},
    )
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times.*epoch.*batch"):
        model.fit(X)
    assert model.n_restarts_ == 1
    assert model.n_iter_ == 5
    assert all(np.isfinite(w).all() for w in weights(model))
    assert model.score(X) > independent_score(X) - 0.1


@pytest.mark.parametrize("learning", ["pcd", "exact"])
def test_a_roll_back_in_a_stream_is_reported_once(learning):
    model = RBMEstimator(
        **quick,
        learning=learning,
        batch_size=10,
        net_params={"callbacks": [Poison(2)]},
    )
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model.partial_fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X)


def test_the_guard_leaves_good_training_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RBMEstimator(10, learning="pcd", n_iter=3, random_state=0).fit(DIGITS)
    assert model.n_restarts_ == 0
