"""Epochs and generative weight of JEMClassifier, which labelled rows choose."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from torch import nn

from skebm import JEMClassifier
from skebm.base import Real
from skebm.distributions import Gaussian
from skebm.energies import MLP, ClassMarginal, Conv, NeuralEnergy
from skebm.estimators import Hybrid
from skebm.estimators.neural import jem, joint_choice
from skebm.estimators.neural.joint_choice import (
    labelled_folds,
    numbers_of_epochs,
    work_of_a_row,
)
from skebm.samplers import Persistent
from skebm.training import EarlyStopping
from skebm.training.rows import Rows
from tests.support.tiers import full

CPU = torch.device("cpu")
quick = {"network": MLP((16,)), "base": "gaussian", "sigma": 0.3, "partition": None}
quick |= {"chains": Persistent(n_steps=1, n_chains=8), "learning_rate": 0.02, "random_state": 0}
without_chains = {name: value for name, value in quick.items() if name not in ("chains", "sigma")}


def rows_with(y, x=None):
    x = torch.arange(3.0 * len(y)).view(-1, 3) if x is None else x
    return Rows(x, y=torch.as_tensor(y), dtype=torch.float32, device=CPU)


def work_of(network, shape):
    base = Gaussian(torch.zeros(math.prod(shape)), 1.0)
    energy = NeuralEnergy(
        ClassMarginal(network),
        Real((math.prod(shape),)),
        base,
        image_shape=shape if len(shape) > 1 else None,
    )
    rows = Rows(torch.zeros(4, math.prod(shape)), dtype=torch.float32, device=CPU)
    return work_of_a_row(energy, rows)


def folds_of(rows, seed=0, together=True):
    return labelled_folds(rows, torch.Generator().manual_seed(seed), together=together)


# ------------------------------------------------------------------------------
# What is left out
# ------------------------------------------------------------------------------


def test_folds_hold_each_labelled_row_once_and_all_classes_alike():
    y = np.repeat([0, 1, 2, -1], [30, 15, 6, 40])
    folds = folds_of(rows_with(y))
    assert sorted(torch.cat(folds).tolist()) == list(range(51))
    for code, n in ((0, 10), (1, 5), (2, 2)):
        assert [int((y[fold] == code).sum()) for fold in folds] == [n] * 3


def test_equal_rows_are_in_one_fold_unless_they_are_states():
    x = torch.arange(20.0).repeat(3)[:, None].expand(-1, 3).clone()
    rows = rows_with(np.arange(60) % 2, x)
    part = np.zeros(60, dtype=int)
    for number, fold in enumerate(folds_of(rows)):
        part[fold] = number
    assert (part.reshape(3, 20) == part[:20]).all()
    assert len(torch.cat(folds_of(rows, together=False))) == 60


def test_a_row_that_is_alone_of_its_class_is_never_left_out():
    y = np.repeat([0, 1, 2], [20, 20, 1])
    assert 40 not in torch.cat(folds_of(rows_with(y)))


@pytest.mark.parametrize("y", [np.arange(29) % 2, np.repeat([0, 1, -1], [20, 20, 100])])
def test_few_labelled_rows_choose_nothing(y):
    assert folds_of(rows_with(y)) == []


def test_of_many_rows_one_tenth_is_left_out():
    (fold,) = folds_of(rows_with(np.arange(3000) % 2))
    assert len(fold) == 300


def test_numbers_of_epochs_double():
    assert numbers_of_epochs(100, 5) == [7, 13, 25, 50, 100]
    assert numbers_of_epochs(10, 3) == [3, 5, 10]
    assert numbers_of_epochs(1, 5) == [1]


def test_multiplications_of_layers_and_of_networks_without_any():
    linear = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
    assert work_of(linear, (3,)) == 3 * 16 + 16 * 2 + 16 + 2  # no fewer than parameters
    conv = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.Flatten(), nn.Linear(72, 2))
    assert work_of(conv, (1, 6, 6)) == 9 * 9 * 8 + 72 * 2
    assert not any(layer._forward_hooks for layer in conv)


# ------------------------------------------------------------------------------
# What is chosen
# ------------------------------------------------------------------------------


def test_labels_by_chance_end_training_early():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(220, 4)), rng.integers(0, 2, 220)
    kind = without_chains | {"generative_weight": 0.0}
    model = JEMClassifier(**kind).fit(rows[:120], labels[:120])
    assert model.n_iter_ < 25
    known = model.predict_log_proba(rows[120:])[np.arange(100), labels[120:]]
    assert -known.mean() < math.log(2) + 0.2


@full
def test_a_seed_determines_what_is_chosen():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    first, second = (JEMClassifier(**quick).fit(rows, labels) for _ in range(2))
    assert first.n_iter_ == second.n_iter_
    assert (first.predict_proba(rows) == second.predict_proba(rows)).all()


def test_noise_that_hides_the_classes_is_left_out_with_the_density():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 45)
    rows = np.stack([0.4 * labels + 0.05 * rng.normal(size=45), rng.normal(size=45)], 1)
    model = JEMClassifier(**without_chains, standardize=False, sigma=1.0).fit(rows, labels)
    assert model.generative_weight_ == 0
    assert model.score(rows, labels) > 0.95


def test_nothing_is_tried_where_epochs_are_given_or_rows_are_held_out(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a trial was trained")

    monkeypatch.setattr(joint_choice, "trial_net", refuse)
    rows, labels = make_blobs(60, centers=2, random_state=0)
    stopping = EarlyStopping(n_iter_no_change=1)
    kind = quick | {"network": MLP((4,)), "learning_rate": 0.1}
    assert JEMClassifier(**kind, n_iter=3).fit(rows, labels).n_iter_ == 3
    assert JEMClassifier(**kind, early_stopping=stopping).fit(rows, labels).n_iter_ <= 100
    model = JEMClassifier(**kind).partial_fit(rows, labels)
    assert model.n_iter_ == 1


def test_a_fit_that_goes_on_keeps_what_was_chosen():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    model = JEMClassifier(**quick, warm_start=True).fit(rows, labels)
    weight, n_iter = model.generative_weight_, model.n_iter_
    model.fit(rows, labels)
    assert (model.generative_weight_, model.n_iter_) == (weight, 2 * n_iter)


def test_a_costly_network_has_few_epochs_and_short_chains(monkeypatch):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(40, 1, 6, 6)), np.arange(40) % 2
    images[labels == 1] += 1
    monkeypatch.setattr(jem, "MOST_WORK", 1e6)
    kind = {"base": "gaussian", "partition": None, "random_state": 0}
    model = JEMClassifier(Conv((8, 8)), **kind).fit(images, labels)
    assert model.n_iter_ <= 4
    chains = model.net_.module_.generative.chains
    assert (chains.n_steps, chains.n_chains) == (1, 10)
    assert np.isfinite(model.score_samples(images)).all()


# ------------------------------------------------------------------------------
# Rows without labels
# ------------------------------------------------------------------------------


def test_pseudo_labels_move_the_boundary_between_clusters():
    rows, labels = make_blobs(200, centers=[[-2, 0], [2, 0]], cluster_std=0.7, random_state=0)
    shown = np.full(200, -1)
    # One row of each class, so that the line between them is oblique to that between the clusters.
    shown[[(rows[:, 1] - 9 * labels).argmax(), (rows[:, 1] - 9 * labels).argmin()]] = 0, 1
    kind = without_chains | {"sigma": 0.3, "n_iter": 40, "generative_weight": 0.0}
    model, alone = (
        JEMClassifier(**kind, unlabeled=-1, objective=Hybrid(unlabeled_weight=w)).fit(rows, shown)
        for w in (1.0, 0.0)
    )
    assert model.score(rows, labels) > alone.score(rows, labels) + 0.02


def test_few_labels_are_not_learnt_by_heart():
    rows, labels = make_blobs(300, centers=2, random_state=0)
    shown = np.where(np.arange(300) < 20, labels, -1)
    model = JEMClassifier(**quick, unlabeled=-1).fit(rows, shown)
    # 280 rows, and 20 that are used seven times: 4 batches, of 100 steps.
    assert model.n_iter_ == 25


@full
def test_a_class_that_is_only_among_rows_without_labels_is_none():
    rows, labels = make_blobs(90, centers=3, random_state=0)
    shown = np.where((labels == 2) | (np.arange(90) > 60), -1, labels)
    model = JEMClassifier(**quick, n_iter=5, unlabeled=-1).fit(rows, shown)
    assert model.classes_.tolist() == [0, 1]
    assert np.isfinite(model.predict_proba(rows)).all()


def test_pseudo_labels_need_rows_without_labels():
    rows, labels = make_blobs(40, centers=2, random_state=0)
    asked = Hybrid(unlabeled_weight=0.5)
    with pytest.warns(UserWarning, match="all rows are labelled"):
        JEMClassifier(**quick, n_iter=1, objective=asked).fit(rows, labels)
