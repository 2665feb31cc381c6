"""skorch's checkpoints: written as skorch documents, and loaded again."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Checkpoint, TrainEndCheckpoint

from skebm import RBMEstimator, ScoreMatchingDensity
from skebm.energies import MLP

_random = np.random.default_rng(0)
REALS = _random.normal(size=(60, 2))
BITS = np.where(REALS[:, [0, 1, 0, 1]] + 0.3 * _random.normal(size=(60, 4)) > 0, 1.0, 0.0)

MODELS = {
    "pcd": (RBMEstimator(3, learning="pcd", n_iter=4, random_state=0), BITS),
    "exact": (RBMEstimator(3, n_iter=4, random_state=0), BITS),
    "score matching": (
        ScoreMatchingDensity(
            MLP((8,)),
            base="gaussian",
            n_iter=4,
            early_stopping=True,
            partition=None,
            random_state=0,
        ),
        REALS,
    ),
}


def fitted(name, *callbacks):
    model, X = MODELS[name]
    named = [(f"callback{i}", callback) for i, callback in enumerate(callbacks)]
    return model.set_params(net_params={"callbacks": named}).fit(X)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("monitor", ["train_loss_best", None, lambda net: len(net.history) == 2])
def test_a_checkpoint_holds_the_weights_of_its_epoch(name, monitor, tmp_path):
    saved = []

    class Watched(Checkpoint):
        def save_model(self, net):
            super().save_model(net)
            saved.append((len(net.history), [p.clone() for p in net.module_.parameters()]))

    checkpoint = Watched(monitor=monitor, dirname=str(tmp_path), load_best=False)
    model = fitted(name, checkpoint)
    best = [row["epoch"] for row in model.history_ if row["train_loss_best"]]
    expected = {None: [1, 2, 3, 4], "train_loss_best": best}.get(monitor, [2])
    assert [epoch for epoch, _ in saved] == expected
    net = model.net_
    net.load_params(checkpoint=checkpoint)
    for found, kept in zip(net.module_.parameters(), saved[-1][1], strict=True):
        assert torch.equal(found, kept)


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_at_the_end_holds_the_model(name, tmp_path):
    checkpoint = TrainEndCheckpoint(dirname=str(tmp_path))
    model = fitted(name, checkpoint)
    kept = [p.clone() for p in model.net_.module_.parameters()]
    with torch.no_grad():
        for p in model.net_.module_.parameters():
            p.zero_()
    model.net_.load_params(f_params=tmp_path / "train_end_params.pt")
    assert all(map(torch.equal, model.net_.module_.parameters(), kept))
    assert (tmp_path / "train_end_history.json").exists()


def test_losses_are_marked_where_they_are_the_least_so_far():
    history = fitted("score matching").history_
    for name in ("train_loss", "valid_loss"):
        losses = [row[name] for row in history]
        least = [loss < min(losses[:i], default=np.inf) for i, loss in enumerate(losses)]
        assert [row[f"{name}_best"] for row in history] == least
