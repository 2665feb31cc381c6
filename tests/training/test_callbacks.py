"""Callbacks of skorch and optimizers of torch: those that work, and what to pass instead."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring

from skebm import RBMEstimator, ScoreMatchingDensity
from skebm.energies import MLP
from tests.support.tables import real_rows

X = real_rows(60, 2)


def density(callback=None, **params):
    net = {} if callback is None else {"callbacks": [callback]}
    kind = {"network": MLP((4,)), "base": "gaussian", "n_iter": 4, "random_state": 0}
    return ScoreMatchingDensity(**kind | params).set_params(net_params=net)


def mean_energy(net, rows, y):
    return float(net.module_.energy(rows.block(0, len(rows))).mean())


def test_callbacks_of_validation_rows_work_with_early_stopping(tmp_path):
    for callback in (EarlyStopping(patience=1), Checkpoint(dirname=str(tmp_path))):
        density(callback, early_stopping=True).fit(X)
    model = density(EpochScoring(mean_energy, name="energy"), early_stopping=True).fit(X)
    assert np.isfinite([epoch["energy"] for epoch in model.history_]).all()


def test_callbacks_of_the_training_loss_work_in_any_fit():
    stopping = EarlyStopping("train_loss", threshold=1e9, threshold_mode="abs", patience=1)
    assert density(stopping).fit(X).n_iter_ < 4
    watched = EarlyStopping("gain_over_base", lower_is_better=False, patience=1)
    assert density(watched).fit(X).n_iter_ <= 4


@pytest.mark.parametrize(
    ("callback", "params", "match"),
    [
        (EarlyStopping(), {}, "EarlyStopping monitors 'valid_loss'.*early_stopping=True"),
        (Checkpoint(), {}, "Checkpoint monitors 'valid_loss_best'.*early_stopping=True"),
        (EpochScoring(mean_energy), {}, "no.*early_stopping=True|has none: set early_stopping"),
        (EpochScoring("accuracy"), {"early_stopping": True}, r"pass a function scoring\("),
        (EpochScoring(mean_energy, on_train=True), {"early_stopping": True}, "on_epoch_end"),
    ],
    ids=["stopping", "checkpoint", "scoring", "of predictions", "of training rows"],
)
def test_callbacks_that_a_fit_cannot_serve_name_the_remedy(callback, params, match):
    model = density(callback, **params)
    with pytest.raises(ValueError, match=match):
        model.fit(X)
    assert not hasattr(model, "net_")


@pytest.mark.parametrize("name", ["adam", "Adam", "SGD", "rprop"])
def test_optimizers_have_names(name):
    model = density().set_params(net__optimizer=name).fit(X)
    assert type(model.net_.optimizer_).__name__.lower() == name.lower()
    assert isinstance(model.net_.optimizer_, torch.optim.Optimizer)


@pytest.mark.parametrize("model", [density(), RBMEstimator(2, n_iter=1)], ids=["neural", "rbm"])
def test_an_unknown_optimizer_is_refused_with_those_there_are(model):
    with pytest.raises(ValueError, match=r"optimizer='adm' in net_params.*adam, .*or a class"):
        model.set_params(net_params={"optimizer": "adm"}).fit((X > 0).astype(float))
