"""What every estimator warns of: in a few words, of one kind once, in a category of ours."""

import ast
import warnings

import numpy as np
import pytest

from skebm import ProductOfDensities, TractableDensity
from skebm.base import SkebmWarning, TrainingWarning
from skebm.estimators.base import BaseEBM
from skebm.metrics import converged_score
from tests.adversarial.hostile import Split
from tests.adversarial.invariants import (
    MAX_LINES,
    MAX_TEXT,
    MAX_WARNINGS,
    scores_of,
    target_of,
)
from tests.adversarial.test_sweep import CASES
from tests.support.sources import modules, parsed
from tests.support.tables import real_rows
from tests.support.tiers import full, named

# Those that are not in the sweep, as no table breaks them in new ways.
SIMPLE = {TractableDensity: TractableDensity, ProductOfDensities: ProductOfDensities}
SHORT = CASES | SIMPLE
NAMES = {cls.__name__: cls for cls in SHORT}
# One of each family.
LEADING = ["RBMEstimator", "BoltzmannMachineDensity", "DeepBeliefNetwork", "ScoreMatchingDensity"]
LEADING += ["EnergyOutlierDetector", "TemporalRBM", "RBMClassifier", "ProductOfDensities"]


def warnings_of_fit_and_scores(model, X):
    """Warnings of `fit` and of the first scores of the same rows."""
    table = Split(X, (X[:, 0] > np.median(X[:, 0])).astype(int), X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, target_of(model, table))
        n_fit = len(caught)
        scores_of(model, X)
    return caught[:n_fit], caught[n_fit:]


def check_brief(caught):
    """A few warnings, of our categories, whose texts a reader sees at a glance."""
    texts = [str(one.message) for one in caught]
    assert len(texts) <= MAX_WARNINGS, texts
    assert len(set(texts)) == len(texts)
    for one, text in zip(caught, texts, strict=True):
        assert issubclass(one.category, SkebmWarning), text
        assert one.category is not SkebmWarning, text
        assert one.filename == __file__, text
        assert len(text.splitlines()) <= MAX_LINES, text
        assert len(text) <= MAX_TEXT, text


@pytest.mark.parametrize("name", named(LEADING, NAMES))
def test_a_short_fit_to_ordinary_rows_warns_briefly(name):
    X = real_rows(120, 4)
    X[:, 3] = 2.0  # a column that a reader has to be told of
    model = SHORT[NAMES[name]]()
    of_fit, of_scores = warnings_of_fit_and_scores(model, X)
    check_brief(of_fit)
    check_brief(of_scores)
    if isinstance(model, BaseEBM):
        of_training = [str(one.message) for one in of_fit if one.category is TrainingWarning]
        # That of a classifier is fine where a trial has found that its p(x) is the base.
        of_training = [text for text in of_training if not text.startswith("p(x) is its base")]
        assert model.converged_ == (not of_training)
        assert converged_score(model) == model.converged_


# How long it trains is chosen by all that have hidden units as by an RBMEstimator, which has no
# number here: each choice takes thousands of steps. So does a flow, whose own steps say nothing.
LATENT = ["SpikeSlabRBM", "SubspaceRBM", "DeepBoltzmannMachine", "RBMClassifier", "GatedRBM"]
GIVEN = {name: {"n_iter": 30} for name in LATENT}
GIVEN["DeepBoltzmannMachine"] |= {"hidden_layer_sizes": (8, 4)}  # whose log Z is enumerated
GIVEN["FlowContrastiveDensity"] = {"flow": "maf", "n_flow_steps": 100}


@full
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_with_defaults_to_ordinary_rows_warns_briefly(name):
    model = SHORT[NAMES[name]]()
    model = type(model)(random_state=0) if hasattr(model, "random_state") else type(model)()
    model.set_params(**GIVEN.get(name, {}))
    for caught in warnings_of_fit_and_scores(model, real_rows(80, 3)):
        check_brief(caught)


def test_every_warning_has_a_category():
    for path, source in modules().items():
        if "warn(" not in source and "Notice(" not in source:
            continue
        for node in ast.walk(parsed(source)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id in ("warn", "Notice"):
                assert len(node.args) > 1, f"{path}:{node.lineno} has no category"
