"""The contract of constructors: of every public estimator, and of the objects they take.

Few parameters, each validated, documented and of a name of its own; ``<parameter>__<name>`` also
where the parameter is None or a string; a bad setting of an object is refused by its name.
"""

import inspect
import re

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone

import skebm
from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    energies,
    estimators,
    objectives,
    partition,
    samplers,
    training,
)
from skebm._validation import check_constraints
from skebm.energies import MLP
from skebm.estimators import (
    ContrastiveDivergenceLearning,
    Discrepancy,
    FlowContrastiveEstimation,
    Hybrid,
    Likelihood,
    MixtureBase,
    NeuralObjective,
    NoiseContrastiveEstimation,
    ScoreMatching,
    Sliced,
    SpikeSlab,
    Subspace,
)
from skebm.estimators.base import BaseEBM
from skebm.objectives import Centering, Penalty
from skebm.partition import AISBracket
from skebm.samplers import (
    HMC,
    MALA,
    FromData,
    FromNoise,
    Gibbs,
    GibbsWithGradients,
    Persistent,
    ReplayBuffer,
)
from skebm.training import SGD, AdamW, EarlyStopping
from tests.contracts.test_estimators import assert_same_model, data
from tests.support.discovery import walk
from tools.trace_fit import own_classes

MOST_PARAMETERS = 24  # as many as the largest estimator of scikit-learn has
# Classes of skebm above an estimator, beside mixins; and one more where it is another public
# estimator with some of its parameters fixed.
MOST_ABOVE = 2


def public(module):
    """Classes with parameters that a module lists in ``__all__``."""
    found = [getattr(module, name) for name in module.__all__]
    return [c for c in found if inspect.isclass(c) and issubclass(c, BaseEstimator)]


ESTIMATORS = public(skebm)
CONFIGS = [
    cls
    for module in (energies, estimators, objectives, partition, samplers, training)
    for cls in public(module)
    if cls not in ESTIMATORS and not inspect.isabstract(cls)
]


def names(classes):
    return [cls.__name__ for cls in classes]


each_estimator = pytest.mark.parametrize("cls", ESTIMATORS, ids=names(ESTIMATORS))


def documented(cls):
    """Names that the Parameters section of a docstring lists."""
    section = inspect.getdoc(cls).split("Parameters\n")[1]
    section = re.split(r"\n[A-Z][a-z ]+\n-+\n", section)[0]
    listed = re.findall(r"^\*?([a-z_0-9A-Z, ]+) : ", section, flags=re.MULTILINE)
    return {name for line in listed for name in line.split(", ")}


# ------------------------------------------------------------------------------
# Names, numbers, docstrings
# ------------------------------------------------------------------------------


def test_the_public_estimators_are_all_here():
    assert set(walk(BaseEBM)) <= set(ESTIMATORS)
    assert {"EarlyStopping", "Hybrid", "Persistent", "Gibbs"} <= set(names(CONFIGS))


@each_estimator
def test_constructors_can_be_read(cls):
    assert len(cls._get_param_names()) <= MOST_PARAMETERS
    above = [c for c in own_classes(cls)[1:] if not c.__name__.endswith("Mixin")]
    public_ones = [c for c in above if c in ESTIMATORS]
    assert len(above) <= MOST_ABOVE + len(public_ones), above
    assert len(public_ones) <= 1, above


@each_estimator
def test_every_parameter_is_validated_and_documented(cls):
    parameters = set(cls._get_param_names())
    assert set(cls._parameter_constraints) == parameters
    assert documented(cls) == parameters


def test_every_parameter_of_a_config_object_is_documented():
    missing = {
        cls.__name__: sorted(set(cls._get_param_names()) - documented(cls))
        for cls in CONFIGS
        if cls._get_param_names() and set(cls._get_param_names()) - documented(cls)
    }
    assert missing == {}


def test_no_parameter_has_the_name_of_a_method_or_attribute():
    shadowed = {
        cls.__name__: found
        for cls in (*ESTIMATORS, *CONFIGS)
        if (
            found := {name for c in cls.__mro__ for name in cls._get_param_names() & vars(c).keys()}
        )
    }
    assert shadowed == {}


def test_defaults_are_plain_values():
    """scikit-learn's own checks refuse objects in signatures; None and strings stand for them."""

    def plain(value):
        if isinstance(value, tuple):
            return all(map(plain, value))
        return value is None or isinstance(value, str | bool | int | float)

    found = [
        f"{cls.__name__}({name}={parameter.default!r})"
        for cls in (*ESTIMATORS, *CONFIGS)
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is not inspect.Parameter.empty and not plain(parameter.default)
    ]
    assert found == []


# ------------------------------------------------------------------------------
# <parameter>__<name>
# ------------------------------------------------------------------------------

CD, SM, JEM = ContrastiveDivergenceDensity, ScoreMatchingDensity, JEMClassifier


def neural(objective="contrastive_divergence"):
    return NeuralDensity(objective=objective)


STANDS_FOR = [
    (RBMEstimator(), "chains__n_steps", 3, Persistent(n_steps=3)),
    (RBMEstimator(learning="cd"), "chains__n_steps", 3, FromData(n_steps=3)),
    (SpikeSlabRBM(), "chains__n_chains", 3, Persistent(n_steps=5, n_chains=3)),
    (SpikeSlabRBM(learning="cd"), "chains__noise_scale", 0.1, FromData(n_steps=5, noise_scale=0.1)),
    (RBMEstimator(), "sampler__n_collapsed", 2, Gibbs(2)),
    (RBMEstimator(), "centering__precondition", 0.3, Centering(precondition=0.3)),
    (RBMEstimator(), "penalty__l2", 0.1, Penalty(l2=0.1)),
    (RBMEstimator(), "optimizer__momentum", 0.5, SGD(momentum=0.5)),
    (RBMEstimator(), "early_stopping__tol", 0.1, EarlyStopping(tol=0.1)),
    (CD(), "network__hidden_sizes", (4,), MLP((4,))),
    # One that is given is not to be adapted.
    (CD(), "sampler__step_size", 0.2, MALA(0.2, adapt=False, scale="auto")),
    (CD(), "sampler__scale", None, MALA(adapt=True, scale=None)),
    (CD(), "objective__clip_norm", 1.0, Likelihood(clip_norm=1.0)),
    (CD(objective="discrepancy"), "objective__n_negatives", 4, Discrepancy(n_negatives=4)),
    (CD(), "chains__reweight", True, Persistent(reweight=True)),
    (CD(chains="replay"), "chains__size", 99, ReplayBuffer(size=99)),
    (CD(chains="data"), "chains__noise_scale", 0.1, FromData(noise_scale=0.1)),
    (CD(chains="noise"), "chains__n_steps", 3, FromNoise(n_steps=3)),
    (CD(), "base__n_components", 2, MixtureBase(n_components=2)),
    (CD(base="mixture"), "base__n_components", 2, MixtureBase(n_components=2)),
    (CD(), "optimizer__weight_decay", 0.1, AdamW(weight_decay=0.1)),
    (CD(early_stopping=True), "early_stopping__tol", 0.1, EarlyStopping(tol=0.1)),
    (
        SM(objective="sliced"),
        "objective__n_projections",
        3,
        Sliced(n_projections=3),
    ),
    (SM(), "sampler__n_leapfrog", 3, HMC(n_leapfrog=3, adapt=True, scale="auto")),
    (FlowContrastiveDensity(), "optimizer__averaging", 0.5, AdamW(averaging=0.5)),
    (NCEDensity(), "noise__n_components", 2, MixtureBase(n_components=2)),
    (JEM(), "objective__noisy", False, Hybrid(noisy=False)),
    (
        JEM(objective="joint"),
        "objective__noisy",
        False,
        Hybrid(form="joint", noisy=False),
    ),
    (JEM(), "chains__n_chains", 5, Persistent(n_chains=5)),
    (neural("nce"), "objective__noise_ratio", 4, NoiseContrastiveEstimation(noise_ratio=4)),
    (neural("flow_contrastive"), "objective__flow", "maf", FlowContrastiveEstimation(flow="maf")),
    (neural("exact"), "objective__form", "sliced", ScoreMatching(form="sliced")),
    (
        neural("sliced"),
        "objective__form__n_projections",
        3,
        ScoreMatching(form=Sliced(n_projections=3)),
    ),
    (
        neural(),
        "objective__chains__n_steps",
        3,
        ContrastiveDivergenceLearning(chains=Persistent(n_steps=3)),
    ),
    (
        neural("score_matching"),
        "sampler__n_leapfrog",
        3,
        HMC(n_leapfrog=3, adapt=True, scale="auto"),
    ),
    (neural("nce"), "sampler__step_size", 0.2, MALA(0.2, adapt=False, scale="auto")),
]


@pytest.mark.parametrize(
    ("model", "name", "value", "expected"),
    STANDS_FOR,
    ids=[f"{type(model).__name__}-{name}-{value}" for model, name, value, _ in STANDS_FOR],
)
def test_the_object_that_a_default_stands_for_is_made(model, name, value, expected):
    owner = name.partition("__")[0]
    given = clone(model)
    found = given.set_params(**{name: value})
    assert found is given
    made = found.get_params(deep=False)[owner]
    assert type(made) is type(expected)
    assert repr(made.get_params()) == repr(expected.get_params())
    assert repr(found.get_params()[name]) == repr(value)
    assert repr(clone(found)) == repr(found)
    others = found.get_params(deep=False).items() - {(owner, made)}
    assert others == model.get_params(deep=False).items() - {(owner, getattr(model, owner))}


@pytest.mark.parametrize("cls", sorted(walk(BaseEBM), key=str), ids=names(walk(BaseEBM)))
def test_every_parameter_that_takes_an_object_stands_for_one(cls):
    """A parameter of settings without a maker would ask for an object that users cannot guess."""
    settings = {AdamW, SGD, EarlyStopping, Likelihood, Hybrid, Sliced, Penalty, Centering}
    settings |= {NeuralObjective}
    for owner, kinds in cls._parameter_constraints.items():
        if settings & {kind for kind in kinds if isinstance(kind, type)}:
            assert owner in cls._configs, owner


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (RBMEstimator(), "base__n_components"),
        (CD(base="kernel"), "base__n_components"),
        (CD(network=max), "network__hidden_sizes"),
        (CD(), "partition__n_betas"),
        (CD(), "n_iter__n"),
        (SM(), "objective__n_projections"),  # "denoising" has no settings
        (NCEDensity(noise="nsf"), "noise__n_components"),
    ],
)
def test_a_part_that_a_default_does_not_stand_for_is_asked_for(model, name):
    owner = name.partition("__")[0]
    before = repr(clone(model))
    with pytest.raises(ValueError, match=f"{name} cannot be set.*{owner}=.*an object as {owner}="):
        model.set_params(**{name: 3})
    assert repr(model) == before


def test_an_object_that_is_given_is_set_itself():
    model = CD(partition=AISBracket()).set_params(partition__n_betas=7)
    assert model.partition.n_betas == 7
    model.set_params(partition=AISBracket(n_betas=9), partition__n_chains=5)
    assert (model.partition.n_betas, model.partition.n_chains) == (9, 5)
    model.set_params(chains="replay", chains__size=50)  # in one call, in any order
    model.set_params(chains__n_steps=4, chains="data")
    assert repr(model.chains) == "FromData(n_steps=4)"


@pytest.mark.parametrize("cls", list(walk(BaseEBM)), ids=names(walk(BaseEBM)))
def test_a_name_that_nobody_takes_is_refused(cls):
    for name in ("n_iters", "sampler__steps", "early_stopping__patience", "optimizer__lr"):
        if "__" in name and name.partition("__")[0] not in cls._get_param_names():
            continue
        wrong = name.partition("__")[2] or name
        with pytest.raises(ValueError, match=f"Invalid parameter '{wrong}'"):
            cls().set_params(**{name: 3})


def test_settings_by_name_are_settings_by_object():
    common = {"n_iter": 2, "random_state": 0, "network": MLP((4,)), "partition": None}
    model = CD(**common, chains="replay").set_params(
        chains__n_steps=1, sampler__step_size=0.1, objective__energy_l2=0.1, base__n_components=1
    )
    same = CD(
        **common,
        chains=ReplayBuffer(n_steps=1),
        sampler=MALA(0.1, scale="auto"),
        objective=Likelihood(energy_l2=0.1),
        base=MixtureBase(n_components=1),
    )
    X = data(model)
    assert_same_model(model.fit(X), same.fit(X))
    assert model.get_params(deep=False).keys() == same.get_params(deep=False).keys()


# ------------------------------------------------------------------------------
# Settings that are refused
# ------------------------------------------------------------------------------

REFUSED = [
    RBMEstimator(chains=Persistent(n_steps=0)),
    RBMEstimator(chains=Persistent(n_chains=0)),
    RBMEstimator(chains=Persistent(reweight="yes")),
    RBMEstimator(chains=FromData(n_steps=1.5)),
    RBMEstimator(learning="pcd", centering=Centering(rate=-0.1)),
    RBMEstimator(learning="pcd", centering=Centering(precondition=-1)),
    RBMEstimator(penalty=Penalty(l1=-1)),
    RBMEstimator(penalty=Penalty(l2=-1)),
    RBMEstimator(penalty=Penalty(sparsity_target=2)),
    RBMEstimator(penalty=Penalty(sparsity_cost=-1)),
    RBMEstimator(optimizer=SGD(momentum=1)),
    RBMEstimator(optimizer=SGD(schedule="cosine")),
    RBMEstimator(optimizer=SGD(averaging=1)),
    RBMEstimator(optimizer=SGD(max_restarts=-1)),
    RBMEstimator(early_stopping=EarlyStopping(validation_fraction=1)),
    RBMEstimator(early_stopping=EarlyStopping(n_iter_no_change=0)),
    RBMEstimator(early_stopping=EarlyStopping(tol=-1)),
    CD(chains=Persistent(n_steps=0)),
    CD(chains=Persistent(n_independence_steps=-1)),
    CD(chains=ReplayBuffer(size=0)),
    CD(chains=ReplayBuffer(restart=2)),
    CD(chains=FromData(noise_scale=-1)),
    CD(chains=FromNoise(n_steps=0)),
    CD(objective=Likelihood(sigma_anneal=0.5)),
    CD(objective=Likelihood(energy_l2=-1)),
    CD(objective=Likelihood(clip_norm=0)),
    CD(objective=Likelihood(kl_weight=-1)),
    CD(objective=Likelihood(entropy_weight=-1)),
    CD(objective=Discrepancy(perturbation=0)),
    CD(objective=Discrepancy(n_negatives=0)),
    CD(base=MixtureBase(n_components=0)),
    CD(optimizer=AdamW(weight_decay=-1)),
    CD(optimizer=AdamW(schedule="linear")),
    SM(objective=Sliced(n_projections=0)),
    SM(objective=Sliced(projection="uniform")),
    SM(early_stopping=EarlyStopping(tol=-1)),
    FlowContrastiveDensity(flow="maf", n_flow_steps=1, optimizer=AdamW(averaging=-1)),
    NCEDensity(noise=MixtureBase(n_components=0)),
    JEM(objective=Hybrid(form="both")),
    JEM(objective=Hybrid(noisy="always")),
    JEM(objective=Hybrid(augmentation=3)),
    JEM(objective=Hybrid(sharpness=-1)),
    JEM(objective=Hybrid(sigma_anneal=0)),
    JEM(objective=Hybrid(energy_l2=-1)),
    JEM(objective=Hybrid(clip_norm=0)),
    JEM(objective=Hybrid(negatives="noise")),
    JEM(objective=Hybrid(attack=0.1)),
    JEM(chains=Persistent(n_steps=0)),
    RBMEstimator(hidden=Subspace(0)),
    RBMEstimator(hidden=Subspace(features="spikes")),
    RBMEstimator(hidden=SpikeSlab(features="gates")),
]


def set_config(model):
    """The one object of settings that a model has, and the one of its parameters that is set."""
    given = model.get_params(deep=False).values()
    (config,) = [value for value in given if isinstance(value, BaseEstimator)]
    default = type(config)().get_params()
    (name,) = [name for name, value in config.get_params().items() if value != default[name]]
    return config, name


@pytest.mark.parametrize(
    "model",
    REFUSED,
    ids=[f"{type(model).__name__}-{set_config(model)[0]!r}" for model in REFUSED],
)
def test_a_bad_setting_of_an_object_is_refused_by_its_name(model):
    config, name = set_config(model.set_params(n_iter=1))  # short, where it is not refused
    X = (np.arange(24).reshape(12, 2) % 5 > 1).astype(float)
    X = X if isinstance(model, RBMEstimator) else X + np.random.default_rng(0).normal(size=X.shape)
    with pytest.raises(ValueError, match=f"{name}.*{type(config).__name__}"):
        model.fit(X, np.arange(12) % 2)
    assert not [attribute for attribute in vars(model) if attribute.endswith("_")]


@pytest.mark.parametrize(
    ("model", "owner"),
    [
        (RBMEstimator(chains="persistent"), "chains"),
        (RBMEstimator(chains=Gibbs()), "chains"),
        (RBMEstimator(optimizer=AdamW()), "optimizer"),
        (RBMEstimator(hidden="subspace"), "hidden"),
        (RBMEstimator(hidden=Subspace), "hidden"),
        (CD(optimizer=SGD()), "optimizer"),
        (CD(objective=Hybrid()), "objective"),
        (CD(objective=Likelihood), "objective"),
        (CD(chains=GibbsWithGradients()), "chains"),
        (CD(early_stopping="yes"), "early_stopping"),
        (SM(objective=Likelihood()), "objective"),
        (JEM(objective=Likelihood()), "objective"),
    ],
)
def test_an_object_of_another_kind_is_refused(model, owner):
    with pytest.raises(ValueError, match=f"'{owner}' parameter of {type(model).__name__} must be"):
        model.fit(np.eye(4), [0, 0, 1, 1])


# ------------------------------------------------------------------------------
# What scikit-learn, NumPy and torch call things
# ------------------------------------------------------------------------------


@each_estimator
def test_the_html_of_an_estimator_links_to_its_page(cls):
    link = object.__new__(cls)._get_doc_link()
    assert link == f"https://skebm.readthedocs.io/en/latest/generated/skebm.{cls.__name__}.html"


def test_an_estimator_of_a_user_has_no_page_here():
    class Mine(ScoreMatchingDensity):
        pass

    assert Mine()._get_doc_link() == ""


@pytest.mark.parametrize("cls", list(walk(BaseEBM)), ids=names(walk(BaseEBM)))
def test_devices_and_precisions_have_their_usual_names(cls):
    kinds = {name: cls._parameter_constraints[name] for name in ("device", "dtype")}
    for params in (
        {"device": "gpu", "dtype": np.float64},
        {"device": 0, "dtype": torch.float32},
        {"device": "cuda:1", "dtype": np.dtype("float64")},
    ):
        check_constraints(kinds, params, cls.__name__)
    for params in ({"device": True, "dtype": "float64"}, {"device": "cpu", "dtype": np.float16}):
        with pytest.raises(ValueError, match=cls.__name__):
            check_constraints(kinds, params, cls.__name__)


@pytest.mark.parametrize("dtype", [np.float64, np.dtype("float64"), torch.float64], ids=str)
def test_a_precision_is_that_of_its_name(dtype):
    common = {"n_iter": 2, "random_state": 0, "network": MLP((4,)), "base": "gaussian"}
    common["partition"] = None
    named, typed = CD(**common, dtype="float64"), CD(**common, dtype=dtype)
    X = data(named)
    assert_same_model(named.fit(X), typed.fit(X))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["gpu", 0, "cuda:1"])
def test_a_gpu_that_is_not_there_is_said_so(device):
    with pytest.raises(ValueError, match=f"device={device!r} cannot be used.*no CUDA device"):
        CD(device=device).fit(np.eye(4))


def test_packages_of_skebm_are_attributes():
    assert skebm.metrics.__name__ == "skebm.metrics"
    assert {"metrics", "inspection"} <= set(dir(skebm))
    with pytest.raises(AttributeError, match="no attribute 'metric'"):
        _ = skebm.metric
