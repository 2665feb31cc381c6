"""NeuralDensity: any objective by one body, and the estimators that fix one."""

import inspect
import pickle
from types import FunctionType

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import skebm
from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ScoreMatchingDensity,
)
from skebm.energies import MLP
from skebm.estimators import (
    ContrastiveDivergenceLearning,
    FlowContrastiveEstimation,
    NoiseContrastiveEstimation,
    ScoreMatching,
    Sliced,
)
from skebm.estimators.neural.model import NeuralMixin
from skebm.estimators.neural.objectives import BY_NAME, objective_of
from skebm.partition import ImportanceSampling
from skebm.samplers import FromData, Persistent
from tests.support.storage import by_skops
from tests.support.tiers import named

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(60, 3)) + RNG.choice([-1.0, 1.0], (60, 1))
BITS = (REAL > 0).astype(float)
MIXED = pd.DataFrame({"x": REAL[:, 0], "kind": RNG.choice(list("abc"), 60)})

small = {"network": MLP((4,)), "n_iter": 2, "random_state": 0}
little = small | {"partition": ImportanceSampling(200)}


def neural(objective, **params):
    return NeuralDensity(objective=objective, **little | params)


# A density of each objective, the same of its own estimator, and what both are fitted to.
SAME = {
    "denoising": (
        neural("score_matching", base="gaussian"),
        ScoreMatchingDensity(**little, base="gaussian"),
        REAL,
    ),
    "exact": (
        neural(ScoreMatching(form="exact"), bounds=(-9, 9)),
        ScoreMatchingDensity(**little, objective="exact", bounds=(-9, 9)),
        REAL,
    ),
    "nce": (
        neural(NoiseContrastiveEstimation(noise_ratio=2), base="mixture"),
        NCEDensity(**little, noise="mixture", noise_ratio=2),
        REAL,
    ),
    "nce-bits": (neural("nce"), NCEDensity(**little), BITS),
    "likelihood": (
        neural(ContrastiveDivergenceLearning(chains=Persistent(n_steps=2)), base="gaussian"),
        ContrastiveDivergenceDensity(**little, base="gaussian", chains=Persistent(n_steps=2)),
        REAL,
    ),
    "mixed": (neural("likelihood"), ContrastiveDivergenceDensity(**little), MIXED),
    "local": (
        neural("ratio_matching"),
        ContrastiveDivergenceDensity(**little, objective="ratio_matching"),
        BITS,
    ),
    "flow": (
        neural(FlowContrastiveEstimation(flow="maf", n_flow_steps=2)),
        FlowContrastiveDensity(**little, flow="maf", n_flow_steps=2),
        REAL,
    ),
}


@pytest.mark.parametrize("name", named(set(SAME) - {"flow", "mixed"}, SAME))
def test_the_estimator_of_an_objective_is_the_same_model(name):
    model, own, X = (clone(part) if part is not SAME[name][2] else part for part in SAME[name])
    model.fit(X)
    own.fit(X)
    assert_array_equal(model.score_samples(X), own.score_samples(X))
    assert_array_equal(model.predict(X), own.predict(X))
    kind = {"random_state": 1, "n_steps": 3}
    rows, expected = model.sample(4, **kind), own.sample(4, **kind)
    assert_array_equal(np.asarray(rows), np.asarray(expected))
    assert_array_equal(by_skops(model).energy(X), model.energy(X))
    assert_array_equal(pickle.loads(pickle.dumps(model)).energy(X), model.energy(X))


@pytest.mark.parametrize(
    ("cls", "own"),
    [
        (ScoreMatchingDensity, set()),
        (ContrastiveDivergenceDensity, set()),
        (NCEDensity, {"n_bridges_", "log_partition_learned_", "noise_posterior"}),
        (FlowContrastiveDensity, {"flow_", "log_partition_learned_"}),
    ],
)
def test_an_estimator_of_one_objective_is_a_constructor_and_what_it_alone_says(cls, own):
    assert cls.__bases__ == (NeuralDensity,)
    found = {name for name, part in vars(cls).items() if isinstance(part, property | FunctionType)}
    assert found - {"__init__"} == own


@pytest.mark.parametrize("cls", [NeuralDensity, ScoreMatchingDensity, JEMClassifier])
def test_help_shows_the_methods_of_all(cls):
    for name in ("impute", "denoise", "score_function", "sampler_", "base_", "row_shape_"):
        found = inspect.getattr_static(cls, name)
        assert found is inspect.getattr_static(NeuralMixin, name)
        assert inspect.getdoc(found)


# ------------------------------------------------------------------------------
# The objective as a parameter
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_each_name_stands_for_an_objective(name):
    kind, params = BY_NAME[name]
    found = objective_of(name)
    assert type(found) is kind
    assert found.get_params(deep=False).items() >= params.items()
    model = NeuralDensity(objective=name)
    changed = {f"objective__{own}": 1 for own in found.get_params(deep=False)}
    assert model.set_params(**changed).get_params().items() >= changed.items()


def test_names_that_stand_for_nothing_are_refused():
    with pytest.raises(ValueError, match="objective='noise'.*'score_matching'.*'nce'"):
        NeuralDensity(objective="noise").set_params(objective__form="ranking")
    with pytest.raises(ValueError, match="'objective'.*NeuralDensity"):
        neural("noise").fit(REAL)


def test_a_search_goes_over_objectives_and_their_parameters():
    grid = [
        {"objective": ["score_matching"], "objective__form": ["denoising", Sliced()]},
        {"objective": ["nce"], "objective__noise_ratio": [1, 2]},
    ]
    search = GridSearchCV(neural("nce", base="gaussian"), grid, cv=2, refit=False).fit(REAL)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(
    ("objective", "params", "said"),
    [
        ("nce", {"base": None}, "'base' parameter of NeuralDensity with objective=Noise"),
        ("nce", {"sigma": "kurtosis"}, "'sigma' parameter .* with objective=Noise"),
        ("nce", {"domain": "mixed"}, "'domain' parameter .* with objective=Noise"),
        ("score_matching", {"sigma": None}, "'sigma' parameter .* with objective=ScoreM"),
        ("score_matching", {"domain": "binary"}, "'domain' parameter .* with objective=ScoreM"),
        ("exact", {"base": "chow-liu"}, "'base' parameter .* with objective=ScoreM"),
        ("exact", {"categorical_features": [0]}, "'categorical_features' parameter .*ScoreM"),
        ("flow_contrastive", {"base": "gaussian"}, "'base' parameter .* with objective=FlowC"),
        ("flow_contrastive", {"bounds": (0, 1)}, "'bounds' parameter .* with objective=FlowC"),
        ("likelihood", {"base": "maf"}, "'base' parameter .* objective=ContrastiveDivergenceL"),
        ("denoising", {"bounds": (-9, 9)}, "adds noise, which would move rows out of `bounds`"),
        (ScoreMatching(form=Sliced(n_projections=0)), {}, "'n_projections' parameter of Sliced"),
        (NoiseContrastiveEstimation(form="x"), {}, "'form' parameter of NoiseContrastiveEst"),
        (
            ContrastiveDivergenceLearning(chains=FromData(n_steps=-1)),
            {},
            "'n_steps' parameter of FromData",
        ),
    ],
)
def test_what_an_objective_does_not_take_is_refused(objective, params, said):
    with pytest.raises(ValueError, match=said):
        neural(objective, **params).fit(REAL)


@pytest.mark.parametrize(
    ("objective", "params", "X", "said"),
    [
        ("exact", {"sigma": 0.3}, REAL, 'sigma, because objective="exact" adds no noise'),
        (
            ContrastiveDivergenceLearning(form="pseudo_likelihood", chains="data"),
            {},
            BITS,
            'objective__chains, because objective="pseudo_likelihood" has no chains',
        ),
        (
            FlowContrastiveEstimation(flow="maf", n_flow_steps=2),
            {"deconvolve": False},
            REAL,
            "deconvolve, because NormalizingFlow",
        ),
    ],
)
def test_parameters_without_effect_are_named(objective, params, X, said):
    with pytest.warns(UserWarning, match=f"Without effect on this fit: {said}"):
        neural(objective, **params).fit(X)


# ------------------------------------------------------------------------------
# Another objective after a fit
# ------------------------------------------------------------------------------


def test_a_model_is_of_the_objective_of_its_fit():
    model = neural("likelihood").fit(MIXED)
    before = model.energy(MIXED)
    for objective in ("exact", "nonsense"):
        assert_array_equal(model.set_params(objective=objective).energy(MIXED), before)
        assert_array_equal(by_skops(model).energy(MIXED), before)
    kind = {"objective": "exact", "base": "gaussian"}
    again = model.set_params(**kind).fit(REAL)
    assert_array_equal(again.energy(REAL), neural(**kind).fit(REAL).energy(REAL))


@pytest.mark.parametrize(
    ("first", "now", "said"),
    [
        ("nce", "exact", r"objective was NoiseC.* is now ScoreMatching\(form='exact'\)"),
        ("nce", NoiseContrastiveEstimation(n_bridges=2), "n_bridges of objective was 'auto'"),
        ("denoising", "exact", "trained by objective='denoising'"),
        (
            FlowContrastiveEstimation(flow="maf", n_flow_steps=1),
            FlowContrastiveEstimation(flow="coupling"),
            "flow of objective was 'maf'",
        ),
    ],
)
def test_training_does_not_go_on_with_another_objective(first, now, said):
    model = neural(first, warm_start=True).fit(REAL)
    before = model.energy(REAL)
    with pytest.raises(ValueError, match=said):
        model.set_params(objective=now).fit(REAL)
    assert_array_equal(model.energy(REAL), before)


@pytest.mark.parametrize(
    ("first", "now"),
    [
        ("nce", NoiseContrastiveEstimation(noise_ratio=3)),
        ("exact", "sliced"),
        ("likelihood", ContrastiveDivergenceLearning(chains="data")),
    ],
)
def test_training_goes_on_with_other_settings_of_the_objective(first, now):
    model = neural(first, base="gaussian", warm_start=True).fit(REAL)
    assert model.set_params(objective=now).fit(REAL).n_iter_ == 4


# ------------------------------------------------------------------------------
# Subclasses of users
# ------------------------------------------------------------------------------


class Narrow(ScoreMatchingDensity):
    """A subclass with few parameters, whose constructor passes others on."""

    def __init__(self, sigma="auto", n_iter=2):
        super().__init__(MLP((4,)), base="gaussian", sigma=sigma, n_iter=n_iter, random_state=0)


def test_a_subclass_passes_parameters_on():
    params = {"base": "gaussian", "random_state": 0, "n_iter": 2, "sigma": 0.3}
    expected = ScoreMatchingDensity(MLP((4,)), **params).fit(REAL)
    model = clone(Narrow(sigma=0.3)).fit(REAL)
    assert_array_equal(model.energy(REAL), expected.energy(REAL))
    with pytest.raises(ValueError, match="'sigma' parameter of Narrow"):
        Narrow(sigma="x").fit(REAL)


def test_the_densities_are_public():
    assert skebm.NeuralDensity is NeuralDensity
