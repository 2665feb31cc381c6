"""The contract of classifiers that are densities: scikit-learn's checks, then skebm's promises."""

import copy
import functools

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from skebm import (
    ConditionalDensity,
    GatedRBM,
    JEMClassifier,
    RBMClassifier,
    TemporalRBM,
    TemporalRBMClassifier,
)
from skebm.energies import MLP
from skebm.estimators import Adversarial, Attack, Hybrid
from skebm.estimators.base import BaseDensity, BaseEBM
from skebm.objectives import Centering, Penalty
from skebm.partition import ImportanceSampling
from skebm.samplers import MALA, FromData, Langevin, Persistent, ReplayBuffer
from skebm.training import SGD, AdamW
from tests.contracts.test_estimators import (
    assert_same_model,
    assert_same_outputs,
    global_generators,
    moved,
)
from tests.support.callbacks import Interrupt, Poison
from tests.support.checks import parametrize_with_checks
from tests.support.discovery import walk
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import full, named

few_draws = {"partition": ImportanceSampling(500)}
small = {"network": MLP((16,)), "n_iter": 3, "learning_rate": 0.03, "sigma": 0.3}
small |= few_draws | {"random_state": 0}
sampled = small | {"chains": Persistent(n_steps=2)}
fixed_step = sampled | {"sampler": MALA(0.3)}  # the default one is adapted first

# The weight where a mode is about something else: to choose one takes fits of halves of the rows.
weighed = {"generative_weight": 0.5}
machine = {"n_components": 6, "n_iter": 3, "learning_rate": 0.3, "random_state": 0}

CASES = {
    JEMClassifier: {
        "factored": JEMClassifier(**fixed_step, base="gaussian", objective=Hybrid(power=0.5)),
        "adapted": JEMClassifier(**sampled, **weighed, base="gaussian"),
        "joint": JEMClassifier(**fixed_step, **weighed, objective="joint", base="mixture"),
        "plain": JEMClassifier(**sampled, generative_weight=0.0),
        "replay": JEMClassifier(
            **small,
            **weighed,
            base="gaussian",
            chains=ReplayBuffer(n_steps=2, size=150),
            sampler=Langevin(0.01),
            objective=Hybrid(sharpness=0.05),
        ),
        "adversarial": JEMClassifier(
            **small,
            base="gaussian",
            objective=Hybrid(negatives=Adversarial(n_steps=2), attack=Attack(0.05, n_steps=2)),
        ),
        "no_partition": JEMClassifier(
            **fixed_step | {"partition": None},
            **weighed,
            base="gaussian",
            dtype="float64",
            optimizer=AdamW(averaging=0.5),
        ),
    },
    RBMClassifier: {
        "hybrid": RBMClassifier(**machine),
        "discriminative": RBMClassifier(**machine, objective="discriminative"),
        "generative": RBMClassifier(**machine, objective="generative", base="gaussian"),
        "plain": RBMClassifier(
            **machine, **weighed, centering=None, chains=FromData(), optimizer=SGD(momentum=0.5)
        ),
        "penalised": RBMClassifier(**machine, **weighed, penalty=Penalty(l1=1e-3, l2=1e-2)),
        "no_partition": RBMClassifier(
            **machine, **weighed, partition=None, dtype="float64", optimizer=SGD(averaging=0.5)
        ),
    },
}
INSTANCES = {
    f"{cls.__name__}-{name}": instance
    for cls, cases in CASES.items()
    for name, instance in cases.items()
}
FIRST = ["JEMClassifier-factored", "RBMClassifier-hybrid"]


def tiered(first):
    """All cases, of which the first tier has those in `first`."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=name, marks=() if name in first else full)
            for name, case in INSTANCES.items()
        ],
    )


each_case = tiered(FIRST)


def table(n=80, d=4, seed=0):
    """Three clusters and their names."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 3, n)
    X = rng.normal(size=(3, d))[place] * 2 + rng.normal(size=(n, d))
    return np.round(128 * X) / 128, np.array(["ash", "beech", "cedar"])[place]


X, Y = table()
X_NEW, Y_NEW = table(40, seed=0)


def fit(case, **params):
    return clone(case).set_params(**params).fit(X, Y)


@functools.cache
def _fitted(case):
    return fit(case)


def fitted(case):
    """A copy of the case after one fit, which is shared."""
    return copy.deepcopy(_fitted(case))


def outputs_of(cls):
    names = ["logits", "predict_proba", "predict_log_proba", "decision_function", "predict"]
    names += ["energy", "score_samples", "joint_log_proba"]
    return names + ["transform"] * hasattr(cls, "transform")


def outputs(model, X):
    return {name: getattr(model, name)(X) for name in outputs_of(type(model))}


def with_missing(X):
    return np.where(np.random.default_rng(5).random(X.shape) < 0.25, np.nan, X)


def drawn(model, seed=0):
    """Everything that is random."""
    found = [
        model.sample(5, random_state=seed, n_steps=2),
        model.sample(3, y=["ash", "cedar", "ash"], random_state=seed, n_steps=2),
    ]
    if hasattr(model, "impute"):
        found.append(model.impute(with_missing(X_NEW), random_state=seed, n_steps=2))
    return found


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------


def test_every_estimator_has_cases():
    # Those of pairs and of sequences are in their own files.
    elsewhere = {ConditionalDensity, GatedRBM, TemporalRBM, TemporalRBMClassifier}
    of_rows = set(walk(BaseEBM)) - set(walk(BaseDensity)) - elsewhere
    assert of_rows == set(CASES)


def unequal_by_design(estimator):
    """Weights in mini-batches are not repeated rows; with one full batch they are (below)."""
    # scikit-learn 1.6 asks for both of estimators that take no sparse rows, too.
    both = not isinstance(estimator, JEMClassifier) or sklearn.__version__.startswith("1.6.")
    kinds = ["dense", "sparse"] if both else ["dense"]
    return {
        f"check_sample_weight_equivalence_on_{kind}_data": "mini-batches and sampled negatives"
        for kind in kinds
    }


# The defaults, made small, at a learning rate at which a few passes classify as well as
# scikit-learn asks.
quick = {"learning_rate": 0.1, "n_iter": 6}
quick_machine = {"learning_rate": 1.0, "n_iter": 6}
DEFAULTS = {
    "JEMClassifier": JEMClassifier(
        MLP((16,)),
        **quick,
        **few_draws,
        base="gaussian",
        chains=Persistent(n_steps=1),
        sampler=MALA(0.3),
        random_state=0,
    ),
    "RBMClassifier": RBMClassifier(4, **quick_machine, random_state=0),
}
CHECKED_FIRST = ("JEMClassifier",)  # whose fits are the quicker ones
MODES = {
    name: clone(case).set_params(**(quick if isinstance(case, JEMClassifier) else quick_machine))
    for name, case in INSTANCES.items()
    if name not in FIRST
}


@pytest.mark.filterwarnings("ignore:Columns .* are constant")
@parametrize_with_checks(DEFAULTS | MODES, unequal_by_design, first=CHECKED_FIRST, modes=MODES)
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
@pytest.mark.parametrize("name", named(CHECKED_FIRST, DEFAULTS))
def test_checks_that_check_estimator_leaves_out(name, check):
    getattr(estimator_checks, check)(name, clone(DEFAULTS[name]))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------

double = small | {"n_iter": 3, "batch_size": 1000, "dtype": "float64", "sigma": None}
double |= {"chains": Persistent(n_steps=2, n_chains=50), "base": "gaussian"}
double |= {"network": MLP((8,)), "learning_rate": 2e-3}
full_batch = machine | {"n_iter": 3, "batch_size": 1000, "dtype": "float64"}
full_batch |= {"chains": Persistent(n_chains=50)}
WEIGHTED = {
    "plain": JEMClassifier(**double, generative_weight=0.0),
    "balanced": JEMClassifier(**double, generative_weight=0.0, class_weight="balanced"),
    "sharp": JEMClassifier(**double, generative_weight=0.0, objective=Hybrid(sharpness=0.1)),
    "factored": JEMClassifier(**double),
    "joint": JEMClassifier(**double | {"base": "mixture"}, objective="joint"),
    "adversarial": JEMClassifier(
        **double, objective=Hybrid(negatives=Adversarial(n_steps=0), augmentation=None)
    ),
    "unlabelled": JEMClassifier(**double, unlabeled="cedar"),
    "machine": RBMClassifier(**full_batch),
    "machine, balanced": RBMClassifier(
        **full_batch, class_weight="balanced", objective="discriminative"
    ),
    "machine, generative": RBMClassifier(**full_batch, objective="generative"),
    "machine, preconditioned": RBMClassifier(**full_batch, centering=Centering(precondition=0.5)),
}


@pytest.mark.parametrize("model", WEIGHTED.values(), ids=WEIGHTED.keys())
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
    with_zeros = clone(case).fit(X, Y, sample_weight=weight)
    live = weight > 0
    assert_same_model(with_zeros, clone(case).fit(X[live], Y[live], sample_weight=weight[live]))


# ------------------------------------------------------------------------------
# Names, randomness, scores
# ------------------------------------------------------------------------------


@each_case
def test_fit_sets_only_names_that_end_in_an_underscore(case):
    new = set(vars(fitted(case))) - set(vars(clone(case)))
    assert {name for name in new if not name.endswith("_") and not name.startswith("_")} == set()
    assert is_classifier(case)


@each_case
def test_the_seed_decides_everything(case):
    one, same, other = fitted(case), fit(case), fit(case, random_state=1)
    assert_same_outputs(outputs(one, X), outputs(same, X))
    assert not np.array_equal(one.logits(X), other.logits(X))
    for a, b, c in zip(drawn(one), drawn(same), drawn(one, 1), strict=True):
        assert_array_equal(a, b)
        assert not np.array_equal(a, c)


@each_case
def test_global_generators_are_not_touched(case):
    before, model = global_generators(), fit(case)
    model.partial_fit(X, Y)
    outputs(model, X)
    drawn(model)
    assert global_generators() == before


@each_case
def test_rows_do_not_depend_on_their_neighbours(case):
    model, rng = fitted(case), np.random.default_rng(0)
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
    model = fitted(case)
    logits, proba = model.logits(X), model.predict_proba(X)
    assert_allclose(proba.sum(1), 1)
    assert_allclose(model.predict_log_proba(X), np.log(proba))
    assert_array_equal(model.predict(X), model.classes_[logits.argmax(1)])
    by_class = np.stack([model.joint_energy(X, name) for name in model.classes_], 1)
    assert_allclose(np.exp(-by_class).sum(1), np.exp(-model.energy(X)), rtol=1e-5)
    assert_allclose(np.exp(-by_class + model.energy(X)[:, None]), proba, rtol=1e-4, atol=1e-6)
    places = np.searchsorted(model.classes_, Y)
    assert_allclose(model.joint_energy(X, Y), by_class[np.arange(len(X)), places])
    found = model.score_samples(X)
    assert_allclose(found, -model.energy(X) - model.log_partition_, atol=1e-9)
    assert_allclose(model.joint_log_proba(X), -by_class - model.log_partition_, atol=1e-6)
    assert model.score(X, Y) == (model.predict(X) == Y).mean()


@each_case
def test_using_a_model_leaves_it_alone(case):
    model, kept = fitted(case), X.copy()
    before = dict(vars(model))
    outputs(model, X)
    drawn(model)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert_array_equal(X, kept)


# ------------------------------------------------------------------------------
# Storage, streams, the engine
# ------------------------------------------------------------------------------


@each_case
def test_a_stored_model_is_the_same_model(case):
    model = _fitted(case)  # itself, as copies have been stored
    expected = outputs(model, X_NEW)
    for store in (by_pickle, by_skops):
        loaded = store(model)
        assert_same_model(model, loaded)
        assert_same_outputs(outputs(loaded, X_NEW), expected, store.__name__)
    for a, b in zip(drawn(loaded), drawn(model), strict=True):
        assert_array_equal(a, b)


@each_case
def test_a_stored_stream_goes_on_as_if_it_had_not_stopped(case):
    stream = clone(case).partial_fit(X, Y).partial_fit(X_NEW, Y_NEW)
    loaded = [store(stream) for store in (by_pickle, by_joblib, by_skops, copy.deepcopy)]
    stream.partial_fit(X, Y)
    for other in loaded:
        assert_same_model(stream, other.partial_fit(X, Y))


@each_case
def test_partial_fit_goes_on(case):
    model = clone(case).partial_fit(X[:40], Y[:40], classes=["ash", "beech", "cedar", "oak"])
    assert model.classes_.tolist() == ["ash", "beech", "cedar", "oak"]
    first = by_pickle(model)
    model.partial_fit(X[40:], Y[40:])
    assert model.n_iter_ == 2
    assert moved(model, first) > 0
    with pytest.raises(ValueError, match="classes"):
        model.partial_fit(X, np.where(Y == "ash", "yew", Y))
    with pytest.raises(ValueError, match="not those of the first call"):
        model.partial_fit(X, Y, classes=["ash", "beech"])


@each_case
def test_warm_start_goes_on(case):
    model = fitted(case).set_params(warm_start=True)
    before = model.logits(X)
    assert_allclose(
        by_pickle(model).set_params(n_iter=0).fit(X, Y).logits(X), before, rtol=1e-5, atol=1e-6
    )
    assert moved(by_pickle(model).fit(X, Y), model) > 0


@each_case
def test_a_silent_fit_prints_nothing_and_a_verbose_one_a_bar(case, capfd):
    fit(case)
    assert capfd.readouterr() == ("", "")
    fit(case, verbose=1)
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/3" in err


@each_case
def test_an_interrupted_fit_leaves_a_usable_model(case):
    model = clone(case).set_params(batch_size=20, net__callbacks=[Interrupt(6)])
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        model.fit(X, Y)
    assert np.isfinite(model.logits(X)).all()
    assert np.isfinite(model.score_samples(X)).all()


@each_case
def test_nan_in_the_weights_is_rolled_back(case):
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model = fit(case, batch_size=20, net__callbacks=[Poison(6)])
    assert model.n_restarts_ == 1
    assert np.isfinite(model.logits(X)).all()


SEARCHED = {
    JEMClassifier: {
        "sampler__step_size": [0.05],
        "objective__energy_l2": [0.01],
        "network__hidden_sizes": [(8,)],
    },
    RBMClassifier: {
        "n_components": [3],
        "centering__rate": [0.05],
        "penalty__l2": [0.01],
        "optimizer__momentum": [0.3],
    },
}


@pytest.mark.filterwarnings("ignore:Without effect")
@each_case
def test_a_grid_search_in_a_pipeline(case):
    """Also over parameters of objects that defaults stand for."""
    name = type(case).__name__.lower()
    inner = SEARCHED[type(case)] | {"chains__n_steps": [1, 2], "generative_weight": [0.1, 0.5]}
    grid = {f"{name}__{key}": value for key, value in inner.items()}
    pipeline = make_pipeline(StandardScaler(), clone(case).set_params(n_iter=1))
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, Y)
    assert len(search.cv_results_["params"]) == 4
    assert search.predict(X).shape == (80,)
    best = search.best_estimator_[-1]
    assert best.chains.n_steps == search.best_params_[f"{name}__chains__n_steps"]
    for key, (value,) in SEARCHED[type(case)].items():
        assert best.get_params()[key] == value
    assert best.score_samples(X).shape == (80,)


@each_case
def test_frames(case):
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = clone(case).fit(frame, pd.Series(Y))
    assert model.feature_names_in_.tolist() == list("abcd")
    assert_same_model(model, fitted(case))


def test_an_unfitted_model_says_so():
    for cls in CASES:
        for name in outputs_of(cls):
            with pytest.raises(NotFittedError):
                getattr(cls(), name)(X)
        with pytest.raises(NotFittedError):
            cls().sample(y="ash")
