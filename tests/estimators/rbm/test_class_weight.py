"""What rows decide of a classification RBM: kinds of columns, weight of -log p(x), few labels."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from skebm import RBMClassifier
from skebm.base import Binary, Real
from skebm.base.domains import parts_of
from skebm.estimators.rbm import class_family
from skebm.estimators.rbm.class_family import WEIGHT, WEIGHTS, weight_by_trials
from skebm.estimators.tables.blocks import are_narrow
from skebm.training.guard import Best
from tests.support.tiers import leading

# Three epochs are too few for p(x).
pytestmark = pytest.mark.filterwarnings("ignore:p.x. is its base")
quick = {"n_iter": 3, "partition": None, "random_state": 0}


def clusters(n=120, seed=0, n_columns=4):
    """Two clusters far apart, whose columns are numbers."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = rng.normal(size=(n, n_columns)) + 4 * y[:, None] * np.resize([1, -1], n_columns)
    return np.round(64 * X) / 64, y


def kinds(X, y, **settings):
    model = RBMClassifier(3, **quick | settings).fit(X, y)
    return {type(part) for part in parts_of(model._recipe.table.domain)}


# ------------------------------------------------------------------------------
# Values in [0, 1]
# ------------------------------------------------------------------------------


def test_the_units_of_numbers_have_no_effect():
    X, y = clusters()
    in_unit_interval = (X + 16) / 32
    one, other = (RBMClassifier(3, **quick).fit(rows, y) for rows in (X, in_unit_interval))
    assert_allclose(one.logits(X), other.logits(in_unit_interval), rtol=1e-4, atol=1e-4)


def test_only_values_that_vary_like_those_of_bits_are_probabilities():
    X, y = clusters()
    fractions = (X + 16) / 32
    assert kinds(fractions, y) == {Real}
    assert kinds(fractions, y, visible="probabilities") == {Binary}
    flags = (np.random.default_rng(0).random((len(X), 9)) < 0.5).astype(float)
    assert kinds(np.hstack([fractions, flags]), y) == {Binary, Real}
    assert kinds(flags, y) == {Binary}
    images, digit = load_digits(n_class=2, return_X_y=True)
    assert kinds(images[:50] / 16, digit[:50]) == {Binary}


def test_weighted_rows_vary_like_repeated_ones():
    rng = np.random.default_rng(0)
    # Near the variance at which the answer changes, and by weights on either side of it.
    X = np.concatenate([rng.beta(1, 1, (200, 2)), rng.beta(2, 2, (200, 2))])
    for weight in (np.repeat([3, 0], 200), np.repeat([0, 3], 200), np.repeat([1, 2], 200)):
        repeated = np.repeat(X, weight, axis=0)
        assert are_narrow(X, weight.astype(float)) == are_narrow(repeated, None)
    assert not are_narrow(X[:200], None)
    assert are_narrow(X[200:], None)


def test_columns_without_variance_are_no_numbers():
    assert not are_narrow(np.zeros((5, 2)), None)
    assert are_narrow(np.full((5, 2), 0.5), None)


# ------------------------------------------------------------------------------
# The weight of -log p(x)
# ------------------------------------------------------------------------------


def trials(monkeypatch, of_classes, of_rows):
    """Trials with these gains of rows by p(y given x), and by p(x), in the order of the weights."""
    curves, gains = iter(of_classes), iter(of_rows)

    def net(*args, **settings):
        best = Best(0.0, 0.0, 1, [], torch.as_tensor(next(curves), dtype=torch.float64))
        return SimpleNamespace(guard_=SimpleNamespace(best=best))

    monkeypatch.setattr(class_family, "trial_net", net)
    monkeypatch.setattr(class_family, "gain_of_rows", lambda *args: next(gains))


@pytest.mark.parametrize(
    ("of_classes", "of_rows", "place"),
    [
        ((-0.3, -0.3, -0.3), (1.0, 3.0, 2.0), 1),  # the likeliest
        ((-0.3, -0.305, -0.309), (1.0, 2.0, 3.0), 2),  # at a small price
        ((-0.3, -0.311, -0.309), (1.0, 4.0, 3.0), 2),  # and at no larger one
        ((-0.3, -0.5, -0.4), (1.0, 2.0, 3.0), 0),
        ((-0.3, -0.3, -0.3), (-np.inf, -1.0, -np.inf), 1),
    ],
)
def test_the_weight_is_of_the_likeliest_rows_that_classes_allow(
    monkeypatch, of_classes, of_rows, place
):
    X, y = clusters()
    recipe = RBMClassifier(3, **quick).fit(X, y)._recipe
    rows = recipe.table.rows(X, device=torch.device("cpu"), dtype=torch.float32)
    rows.y = torch.as_tensor(y)
    n = len(y) // 3
    trials(monkeypatch, [[value] * n for value in of_classes], of_rows)
    assert weight_by_trials(lambda weight: recipe, rows, 0, None) == WEIGHTS[place]


def test_a_price_that_is_not_known_well_is_too_large():
    usual = 0.005 + 0.1 * torch.tensor([1.0, -1.0] * 20).double()
    for n, cheap in ((1, False), (100, True)):
        lost = usual.repeat(n)
        assert class_family.is_cheap(lost, torch.zeros_like(lost), None) is cheap
    ends = torch.cat([usual[:2], torch.tensor([9.0]).double()])
    counts = torch.tensor([4000.0, 4000.0, 40.0])  # in single precision, as those of rows are
    assert not class_family.is_cheap(ends, torch.zeros_like(ends), counts)


def test_where_all_trials_diverge_the_weight_is_the_usual_one(monkeypatch):
    monkeypatch.setattr(class_family, "trial_net", lambda *args, **settings: None)
    X, y = clusters()
    assert RBMClassifier(3, **quick).fit(X, y).generative_weight_ == WEIGHT


def test_what_is_asked_for_is_not_chosen(monkeypatch):
    def fail(*args):
        raise AssertionError

    monkeypatch.setattr("skebm.estimators.rbm.classifier.weight_by_trials", fail)
    X, y = clusters()
    for settings, weight in (
        ({"generative_weight": 0.2}, 0.2),
        ({"objective": "generative"}, 1.0),
        ({"objective": "discriminative"}, 0.0),
    ):
        assert RBMClassifier(3, **quick | settings).fit(X, y).generative_weight_ == weight
    few = RBMClassifier(3, **quick).fit(X[:40], y[:40])
    assert few.generative_weight_ == WEIGHT
    RBMClassifier(3, **quick).partial_fit(X, y)


def test_rows_that_occur_twice_choose_a_weight():
    X, y = clusters()
    X, y = np.concatenate([X, X[:50]]), np.concatenate([y, y[:50]])
    assert RBMClassifier(3, **quick).fit(X, y).generative_weight_ in WEIGHTS


def test_training_that_goes_on_keeps_its_weight(monkeypatch):
    monkeypatch.setattr(
        "skebm.estimators.rbm.classifier.weight_by_trials", lambda *args: WEIGHTS[-1]
    )
    X, y = clusters()
    model = RBMClassifier(3, **quick, warm_start=True).fit(X, y)
    monkeypatch.undo()
    assert model.fit(X, y).generative_weight_ == WEIGHTS[-1]
    assert model.partial_fit(X, y).generative_weight_ == WEIGHTS[-1]


# ------------------------------------------------------------------------------
# Few labels
# ------------------------------------------------------------------------------


def few_labels(y, n):
    """The first `n` labels of each class, and -1."""
    found = np.full_like(y, -1)
    for label in np.unique(y):
        found[np.flatnonzero(y == label)[:n]] = label
    return found


def test_the_fewer_labels_the_larger_the_weight():
    X, y = clusters()
    bits = (X > 1).astype(float)
    for rows, weight in ((X, 0.1), (bits, 0.03)):
        model = RBMClassifier(3, **quick, unlabeled=-1).fit(rows, few_labels(y, 2))
        assert_allclose(model.generative_weight_, weight)
    most = RBMClassifier(3, **quick, unlabeled=-1).fit(X, few_labels(y, 50))
    assert most.generative_weight_ in WEIGHTS


@pytest.mark.full
def test_rows_without_labels_help():
    X, y = load_wine(return_X_y=True)
    settings = {"random_state": 0, "partition": None, "n_iter": 150}
    few = few_labels(y, 5)
    both = RBMClassifier(**settings, unlabeled=-1).fit(X, few)
    alone = RBMClassifier(**settings).fit(X[few >= 0], few[few >= 0])
    assert log_loss(y, both.predict_proba(X)) < log_loss(y, alone.predict_proba(X)) - 0.05


@pytest.mark.parametrize("n_labels", leading(1, [1, 2]))
def test_one_label_of_each_class_is_enough_to_fit(n_labels):
    X, y = clusters(60)
    few = few_labels(y, n_labels)
    model = RBMClassifier(3, random_state=0, unlabeled=-1, n_iter=30).fit(X, few)
    assert np.isfinite(model.score_samples(X)).all()
    assert_array_equal(model.classes_, [0, 1])
    assert model.score(X, y) > 0.8


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


def refused(match, X, y, **settings):
    with pytest.raises(ValueError, match=match):
        RBMClassifier(3, **quick | settings).fit(X, y)


def test_labels_that_are_none():
    X, y = clusters(40)
    refused("at least two.*RBMEstimator", X, np.zeros(40))
    refused("All rows are unlabelled.*RBMEstimator", X, np.full(40, -1), unlabeled=-1)
    refused("at least two", X, np.where(y == 1, 1, -1), unlabeled=-1)
    refused("must be one label", X, y, unlabeled=[-1, 0])
    model = RBMClassifier(3, **quick, unlabeled=-1).partial_fit(X, few_labels(y, 2))
    with pytest.raises(ValueError, match="classes"):
        model.partial_fit(X, np.full(40, 7))


def test_rows_that_are_none():
    X, y = clusters(40)
    refused("contains NaN", np.where(X > 3, np.nan, X), y)
    refused("contains infinity", np.where(X > 3, np.inf, X), y)
    refused("minimum of 2", X[:1], y[:1])


@pytest.mark.parametrize("n", [2, 10])
@pytest.mark.parametrize("kind", ["numbers", "fractions", "constant", "bits"])
def test_few_rows_and_constant_columns(n, kind):
    X, y = clusters(n)
    X = {
        "numbers": X,
        "fractions": (X + 16) / 32,
        "constant": np.column_stack([X, np.full(n, 5.0)]),
        "bits": (X > 1).astype(float),
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = RBMClassifier(3, random_state=0, n_iter=20).fit(X, y)
    assert np.isfinite(model.predict_log_proba(X)).all()
    assert np.isfinite(model.score_samples(X)).all()
