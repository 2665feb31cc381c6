"""What p(x) of a classification RBM is: the model, or its base where held-out rows gain nothing."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm import RBMClassifier
from skebm.training.engine import EnergyNet
from skebm.training.selection import Gain


def bits(n, *, copied, seed=0):
    """Fair bits, of which the second half copies the first; classes are the first bit."""
    X = np.random.default_rng(seed).integers(0, 2, (n, 8)).astype(float)
    if copied:
        X[:, 4:] = X[:, :4]
    return X, X[:, 0].astype(int)


def classifier(**settings):
    return RBMClassifier(6, objective="generative", n_iter=30, random_state=0).set_params(
        **settings
    )


def base_mean(model, X):
    return float(model.base_.log_prob(torch.tensor(X).float()).mean())


def test_rows_that_gain_nothing_leave_the_base():
    X, y = bits(300, copied=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # who asks for classes is told of clear losses only
        model = classifier().fit(X, y)
    assert model.density_ == "base"
    trained = replace(model._recipe.family, p_is_base=False)
    assert trained.judged(Gain(-0.1, 0.2)).p_is_base
    with pytest.warns(ConvergenceWarning, match=r"p\(x\) is its base"):
        assert trained.judged(Gain(-0.3, 0.2)).p_is_base
    np.testing.assert_allclose(
        model.score_samples(X), model.base_.log_prob(torch.tensor(X).float()), rtol=1e-4
    )


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}], ids=["trial", "validation"])
def test_rows_that_gain_keep_the_model(settings):
    X, y = bits(300, copied=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = classifier(**settings).fit(X, y)
    assert model.density_ == "model"
    assert model.score_samples(X).mean() > base_mean(model, X) + 0.1
    assert model._recipe.guard_seed is None


def test_a_trial_takes_no_rows_from_the_fit(monkeypatch):
    X, y = bits(300, copied=True)
    judged = classifier().fit(X, y)
    monkeypatch.setattr(
        "skebm.estimators.rbm.classifier.p_by_trial", lambda recipe, *others: recipe
    )
    np.testing.assert_array_equal(judged.logits(X), classifier().fit(X, y).logits(X))


@pytest.mark.parametrize(("n", "n_judges"), [(30, 10), (120, 40), (300, 60), (1000, 100)])
def test_few_rows_do_not_judge(n, n_judges, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "skebm.estimators.rbm.class_family.trial_net",
        lambda recipe, train, held_out, *others, **more: seen.append(len(held_out)),
    )
    with pytest.warns(ConvergenceWarning, match=r"p\(x\) is its base"):  # as trials diverge
        classifier(n_iter=1).fit(*bits(n, copied=True))
    assert seen == [n_judges]


@pytest.mark.parametrize("copied", [True, False])
def test_of_many_rows_some_are_left_out_of_the_fit(copied, monkeypatch):
    monkeypatch.setattr("skebm.estimators.rbm.class_family.MOST_IN_TRIALS", 299)
    seen = []
    fit = EnergyNet.partial_fit
    monkeypatch.setattr(
        EnergyNet,
        "partial_fit",
        lambda net, rows, **more: seen.append(len(rows)) or fit(net, rows, **more),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = classifier().fit(*bits(300, copied=copied))
    assert seen == [270]
    assert model.density_ == ("model" if copied else "base")


def test_without_training_the_base_is_left():
    X, y = bits(300, copied=True)
    with pytest.warns(ConvergenceWarning, match=r"p\(x\) is its base"):
        model = classifier(n_iter=0).fit(X, y)
    assert model.density_ == "base"
