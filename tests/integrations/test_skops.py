"""Model cards say of a fit what it says of itself, and no more."""

import doctest
import importlib
import re
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import skebm
from skebm import (
    DensityClassifier,
    EnergyOutlierDetector,
    RBMEstimator,
    RowSurprise,
    TableEncoder,
    TractableDensity,
)
from skebm.integrations.skops import facts, model_card

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2))
Y = (X[:, 0] > 0).astype(int)
BITS = (X > 0).astype(float)
FRAME = pd.DataFrame(X, columns=["size", "a|b"]).assign(kind=RNG.choice(["x", "y"], 80))
GAUSSIAN = TractableDensity("gaussian", random_state=0)


def values_of(section):
    """The second column of a table by the first."""
    first, second, *_ = section.values()
    return dict(zip(first, second, strict=True))


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_without_skops_the_import_names_the_extra(monkeypatch):
    for name in ("skops", "skops.card"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "skebm.integrations.skops", raising=False)
    with pytest.raises(ImportError, match=re.escape('pip install "skebm[share]"')):
        importlib.import_module("skebm.integrations.skops")


def test_a_card_has_the_facts_of_an_rbm():
    rbm = RBMEstimator(2, n_iter=3, random_state=0).fit(BITS[:60])
    found = facts(rbm, BITS[60:])
    assert values_of(found["Parameters"]) == {
        "n_components": "2",
        "n_iter": "3",
        "random_state": "0",
    }
    assert values_of(found["Chosen by the fit"])["learning"] == rbm.learning_
    said = values_of(found["Normalisation"])
    assert_allclose(numbers_in(said["log Z"]), [rbm.log_partition_, 0.0], atol=6e-5)
    assert said["method"] == rbm.log_partition_method_
    assert "exact" in said["bounds"]
    log_p = rbm.score_samples(BITS[60:])
    said = values_of(found["Held-out rows"])
    error = log_p.std(ddof=1) / np.sqrt(20)
    assert said["rows"] == "20"
    assert_allclose(numbers_in(said["mean log-likelihood"]), [log_p.mean(), error], atol=6e-4)
    assert values_of(found["Versions"])["skebm"] == skebm.__version__
    assert values_of(found["Versions"])["scikit-learn"] == sklearn.__version__


def test_a_card_of_a_frame_has_its_columns():
    detector = EnergyOutlierDetector(random_state=0).fit(FRAME)
    found = facts(detector, FRAME)
    assert found["Columns"]["column"] == ["size", r"a\|b", "kind"]
    assert found["Columns"]["kind"] == ["numbers", "numbers", "categories"]
    flagged = np.mean(detector.predict(FRAME) == -1)
    assert values_of(found["Held-out rows"]) == {"rows": "80", "flagged": f"{flagged:.1%}"}
    found = facts(TractableDensity(random_state=0).fit(FRAME))
    assert found["Columns"]["kind"] == ["number", "number", "bit"]
    assert "Held-out rows" not in found


def test_a_surprise_and_an_energy_are_no_log_likelihoods():
    surprise = make_pipeline(TableEncoder(), RowSurprise(random_state=0)).fit(FRAME)
    found = facts(surprise, FRAME)
    assert set(values_of(found["Held-out rows"])) == {"rows", "flagged"}
    assert "Normalisation" not in found
    energy = RBMEstimator(2, n_iter=2, partition=None, random_state=0).fit(BITS)
    found = facts(energy, BITS)
    assert "mean log-likelihood" not in values_of(found["Held-out rows"])


def test_a_card_of_a_search_is_that_of_its_best_pipeline():
    pipeline = make_pipeline(TableEncoder(), GAUSSIAN)
    grid = {"tractabledensity__distribution": ["gaussian", "mixture"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(FRAME)
    said = values_of(facts(search)["Parameters"])
    assert said["tractabledensity__random_state"] == "0"
    best = search.best_params_["tractabledensity__distribution"]
    assert said["tractabledensity__distribution"] == repr(best)
    text = model_card(search, file="best.skops").render()
    assert "TractableDensity" in text
    assert 'skebm.load("best.skops")' in text


def test_classes_of_rows_are_for_classifiers():
    classifier = DensityClassifier(GAUSSIAN).fit(X, Y)
    said = values_of(facts(classifier, X, Y)["Held-out rows"])
    assert said["accuracy"] == f"{classifier.score(X, Y):.1%}"
    with pytest.raises(ValueError, match="y_test is for classifiers"):
        facts(GAUSSIAN.fit(X), X, Y)
    with pytest.raises(ValueError, match="y_test is for classifiers"):
        facts(classifier, y_test=Y)


def test_a_model_that_is_not_fitted_has_no_card():
    for model in (RBMEstimator(), make_pipeline(TableEncoder(), LogisticRegression())):
        with pytest.raises(NotFittedError):
            model_card(model)


def test_a_card_is_written_and_goes_on(tmp_path):
    card = model_card(GAUSSIAN.fit(X), X[:1])
    card.add(**{"Intended use": "To try cards."})
    card.save(tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text()
    assert text == card.render()
    assert "To try cards." in text
    assert "nan nats" in text  # one row has no standard error
    for heading in ("Parameters", "Held-out rows", "Columns", "Versions", "How to load the model"):
        assert f"# {heading}\n" in text


def test_the_example_runs():
    module = sys.modules["skebm.integrations.skops"]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0
