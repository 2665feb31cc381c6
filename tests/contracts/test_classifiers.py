"""The contract of classifiers that are densities: scikit-learn's checks, then skebm's promises."""

import copy
import inspect
import random
import re

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch.callbacks import Callback

from skebm import JEMClassifier
from skebm.energies import MLP
from skebm.estimators.base import BaseDensity, BaseEBM
from skebm.partition import ImportanceSampling
from skebm.samplers import MALA, Langevin
from tests.discovery import walk
from tests.storage import by_joblib, by_pickle, by_skops

# A learning rate at which a few passes of a small network tell classes apart, as scikit-learn asks.
small = {"network": MLP((16,)), "chains__n_steps": 2, "n_iter": 12, "learning_rate": 0.03}
small |= {"sigma": 0.3, "random_state": 0}

CASES = {
    JEMClassifier: {
        "factored": JEMClassifier().set_params(**small),
        "joint": JEMClassifier().set_params(**small, objective="joint", generative_weight=0.5),
        "plain": JEMClassifier().set_params(**small, generative_weight=0.0),
        "replay": JEMClassifier().set_params(
            **small,
            chains="replay",
            chains__size=150,
            sampler=Langevin(0.01),
            objective__sharpness=0.05,
        ),
        "no_partition": JEMClassifier().set_params(
            **small, partition=None, dtype="float64", optimizer__averaging=0.5
        ),
    }
}
INSTANCES = [
    pytest.param(instance, id=f"{cls.__name__}-{name}")
    for cls, cases in CASES.items()
    for name, instance in cases.items()
]
each_case = pytest.mark.parametrize("case", INSTANCES)


def table(n=80, d=4, seed=0):
    """Three clusters and their names."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 3, n)
    X = rng.normal(size=(3, d))[place] * 2 + rng.normal(size=(n, d))
    return np.round(128 * X) / 128, np.array(["ash", "beech", "cedar"])[place]


X, Y = table()
X_NEW, Y_NEW = table(40, seed=0)


def fit(case, **params):
    return clone(case).set_params(n_iter=3, **params).fit(X, Y)


def net_weights(model):
    return {name: w.double().numpy().copy() for name, w in model.net_.module_.state_dict().items()}


def assert_same_model(one, other):
    a, b = net_weights(one), net_weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert_array_equal(a[name], b[name], err_msg=name)


def outputs(model, X):
    names = ("logits", "predict_proba", "decision_function", "predict", "energy", "score_samples")
    return {name: getattr(model, name)(X) for name in names}


def assert_same_outputs(one, other):
    for name in one:
        assert_array_equal(one[name], other[name], err_msg=name)


def holes(X):
    return np.where(np.random.default_rng(5).random(X.shape) < 0.25, np.nan, X)


def drawn(model, seed=0):
    """Everything that is by chance."""
    return [
        model.sample(5, random_state=seed, n_steps=2),
        model.sample(3, y=["ash", "cedar", "ash"], random_state=seed, n_steps=2),
        model.impute(holes(X_NEW), random_state=seed, n_steps=2),
    ]


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------


def test_every_estimator_has_cases():
    assert set(walk(BaseEBM)) - set(walk(BaseDensity)) == set(CASES)


def unequal_by_design(estimator):
    """Weights in mini-batches are not repeated rows; with one full batch they are (below)."""
    return {"check_sample_weight_equivalence_on_dense_data": "mini-batches and sampled negatives"}


@pytest.mark.filterwarnings("ignore:Columns .* are constant")
@parametrize_with_checks(
    [clone(p.values[0]) for p in INSTANCES],
    expected_failed_checks=unequal_by_design,
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        "check_dataframe_column_names_consistency",
        "check_n_features_in_after_fitting",
        "check_param_validation",
    ],
)
@each_case
def test_checks_that_check_estimator_leaves_out(case, check):
    getattr(estimator_checks, check)(type(case).__name__, clone(case))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------

full = {"network": MLP((8,)), "n_iter": 7, "batch_size": 1000, "dtype": "float64"}
full |= {"random_state": 0, "chains__n_steps": 2, "partition": ImportanceSampling(500)}
full |= {"sigma": None, "chains__n_chains": 50, "base": "gaussian"}
WEIGHTED = {
    "plain": JEMClassifier().set_params(**full, generative_weight=0.0),
    "balanced": JEMClassifier().set_params(**full, generative_weight=0.0, class_weight="balanced"),
    "sharp": JEMClassifier().set_params(**full, generative_weight=0.0, objective__sharpness=0.1),
    "factored": JEMClassifier().set_params(**full),
    "joint": JEMClassifier().set_params(**full | {"base": "mixture"}, objective="joint"),
    "unlabelled": JEMClassifier().set_params(**full, unlabeled="cedar"),
}
each_weighted = pytest.mark.parametrize("model", WEIGHTED.values(), ids=WEIGHTED.keys())


@each_weighted
def test_integer_weights_are_repeated_rows(model):
    count = np.random.default_rng(3).integers(0, 5, len(X))
    weighted = clone(model).fit(X, Y, sample_weight=count)
    repeated = clone(model).fit(np.repeat(X, count, axis=0), np.repeat(Y, count))
    for name in ("logits", "score_samples"):
        one, other = (getattr(m, name)(X_NEW) for m in (weighted, repeated))
        assert_allclose(one, other, rtol=1e-7, atol=1e-7, err_msg=name)


@each_case
def test_rows_of_weight_zero_are_not_there(case):
    weight = np.ones(len(X))
    weight[::3] = 0
    case = clone(case).set_params(n_iter=3)
    with_zeros = clone(case).fit(X, Y, sample_weight=weight)
    live = weight > 0
    assert_same_model(with_zeros, clone(case).fit(X[live], Y[live], sample_weight=weight[live]))


# ------------------------------------------------------------------------------
# Names, randomness, scores
# ------------------------------------------------------------------------------


@each_case
def test_names(case):
    params = set(case.get_params(deep=False))
    for cls in type(case).__mro__:
        assert not params & set(vars(cls)), cls
    new = set(vars(fit(case))) - set(vars(clone(case)))
    assert {name for name in new if not name.endswith("_") and not name.startswith("_")} == set()
    assert set(case._parameter_constraints) == params
    documented = inspect.getdoc(type(case)).split("Attributes\n")[0]
    listed = re.findall(r"^([a-z_0-9, ]+) : ", documented, flags=re.MULTILINE)
    assert {name for line in listed for name in line.split(", ")} == params
    assert is_classifier(case)


@each_case
def test_the_seed_decides_everything(case):
    one, same, other = fit(case), fit(case), fit(case, random_state=1)
    assert_same_outputs(outputs(one, X), outputs(same, X))
    assert not np.array_equal(one.logits(X), other.logits(X))
    for a, b, c in zip(drawn(one), drawn(same), drawn(one, 1), strict=True):
        assert_array_equal(a, b)
        assert not np.array_equal(a, c)


@each_case
def test_global_generators_are_not_touched(case):
    def states():
        name, keys, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()

    before, model = states(), fit(case)
    model.partial_fit(X, Y)
    outputs(model, X)
    drawn(model)
    assert states() == before


@each_case
def test_rows_do_not_depend_on_their_neighbours(case):
    model, rng = fit(case), np.random.default_rng(0)
    expected = outputs(model, X)
    for size in (1, 2, 7, 80):
        pick = rng.permutation(80)[:size]
        for name, found in outputs(model, X[pick]).items():
            if found.dtype.kind == "U":
                assert_array_equal(found, expected[name][pick])
            else:
                assert_allclose(found, expected[name][pick], rtol=1e-5, atol=1e-5, err_msg=name)


@each_case
def test_energies_and_classes_are_one_model(case):
    model = fit(case)
    logits, proba = model.logits(X), model.predict_proba(X)
    assert_allclose(proba.sum(1), 1)
    assert_array_equal(model.predict(X), model.classes_[logits.argmax(1)])
    by_class = np.stack([model.joint_energy(X, name) for name in model.classes_], 1)
    assert_allclose(np.exp(-by_class).sum(1), np.exp(-model.energy(X)), rtol=1e-5)
    assert_allclose(np.exp(-by_class + model.energy(X)[:, None]), proba, rtol=1e-4, atol=1e-6)
    assert_allclose(model.joint_energy(X, Y), by_class[np.arange(len(X)), model._codes(Y, 80)])
    found = model.score_samples(X)
    assert_allclose(found, -model.energy(X) - model.log_partition_, atol=1e-9)
    assert model.score(X, Y) == (model.predict(X) == Y).mean()


@each_case
def test_using_a_model_leaves_it_alone(case):
    model, kept = fit(case), X.copy()
    before = dict(vars(model))
    outputs(model, X)
    drawn(model)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert_array_equal(X, kept)


# ------------------------------------------------------------------------------
# Storage, streams, the engine
# ------------------------------------------------------------------------------


each_storage = pytest.mark.parametrize(
    "store", [by_pickle, by_joblib, by_skops, copy.deepcopy], ids=lambda f: f.__name__
)


@each_storage
@each_case
def test_a_stored_model_is_the_same_model_and_goes_on(case, store):
    model = fit(case)
    loaded = store(model)
    assert_same_model(model, loaded)
    assert_same_outputs(outputs(loaded, X_NEW), outputs(model, X_NEW))
    for a, b in zip(drawn(loaded), drawn(model), strict=True):
        assert_array_equal(a, b)
    stream = clone(case).partial_fit(X, Y).partial_fit(X_NEW, Y_NEW)
    stored = store(stream)
    assert_same_model(stream.partial_fit(X, Y), stored.partial_fit(X, Y))


@each_case
def test_partial_fit_goes_on(case):
    model = clone(case).partial_fit(X[:40], Y[:40], classes=["ash", "beech", "cedar", "oak"])
    assert model.classes_.tolist() == ["ash", "beech", "cedar", "oak"]
    first = net_weights(model)
    model.partial_fit(X[40:], Y[40:])
    assert model.n_iter_ == 2
    assert any(not np.array_equal(first[name], w) for name, w in net_weights(model).items())
    with pytest.raises(ValueError, match="classes"):
        model.partial_fit(X, np.where(Y == "ash", "yew", Y))
    with pytest.raises(ValueError, match="not those of the first call"):
        model.partial_fit(X, Y, classes=["ash", "beech"])


@each_case
def test_warm_start_goes_on(case):
    model = fit(case, warm_start=True)
    before = model.logits(X)
    again = clone(case).set_params(n_iter=0, warm_start=True)
    vars(again).update(vars(model) | {"n_iter": 0})
    assert_allclose(again.fit(X, Y).logits(X), before, rtol=1e-5, atol=1e-6)


@each_case
def test_a_silent_fit_prints_nothing_and_a_verbose_one_a_bar(case, capfd):
    fit(case)
    assert capfd.readouterr() == ("", "")
    fit(case, verbose=1)
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/3" in err


class Interrupt(Callback):
    def on_batch_end(self, net, **kwargs):
        if len(net.history) == 2:
            raise KeyboardInterrupt


class Poison(Callback):
    """Puts nan into the weights once."""

    done = False

    def on_batch_begin(self, net, **kwargs):
        if len(net.history) == 2 and not self.done:
            self.done = True
            next(net.module_.parameters()).data.fill_(torch.nan)


@each_case
def test_an_interrupted_fit_leaves_a_usable_model(case):
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = fit(case, net__callbacks=[("interrupt", Interrupt())])
    assert np.isfinite(model.logits(X)).all()
    assert np.isfinite(model.score_samples(X)).all()


@each_case
def test_nan_in_the_weights_is_rolled_back(case):
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model = fit(case, net__callbacks=[("poison", Poison())])
    assert model.n_restarts_ == 1
    assert np.isfinite(model.logits(X)).all()


@each_case
def test_a_grid_search_in_a_pipeline(case):
    sampler = MALA(0.1) if case.sampler is None else case.sampler
    model = clone(case).set_params(sampler=sampler, n_iter=2)
    grid = {
        "jemclassifier__sampler__step_size": [0.05, 0.2],
        "jemclassifier__sampler__n_steps": [1, 2],
        "jemclassifier__generative_weight": [0.1, 1.0],
        "jemclassifier__network__hidden_sizes": [(8,)],
    }
    search = GridSearchCV(make_pipeline(StandardScaler(), model), grid, cv=2).fit(X, Y)
    assert len(search.cv_results_["params"]) == 8
    assert search.predict(X).shape == (80,)
    assert search.best_estimator_[-1].score_samples(X).shape == (80,)


@each_case
def test_frames(case):
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = clone(case).set_params(n_iter=3).fit(frame, pd.Series(Y))
    assert model.feature_names_in_.tolist() == list("abcd")
    assert_same_model(model, fit(case))


def test_an_unfitted_model_says_so():
    for name in ("logits", "predict", "predict_proba", "decision_function", "score_samples"):
        with pytest.raises(NotFittedError):
            getattr(JEMClassifier(), name)(X)
    with pytest.raises(NotFittedError):
        JEMClassifier().sample(y="ash")
