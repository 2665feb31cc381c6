"""Data-parallel fits: those of one process, with their rows and chains on several."""

import os
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
import torch.distributed as dist
from sklearn.base import clone
from skorch.callbacks import Callback

from skebm import (
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    RBMEstimator,
    ScoreMatchingDensity,
    TemporalRBM,
)
from skebm.base import SamplingError
from skebm.base.ranks import mean_over_ranks, reduce_gradients
from skebm.energies import MLP
from skebm.objectives import Penalty
from skebm.samplers import MALA, ParallelTempering, Persistent
from skebm.training import AdamW, EarlyStopping, RankStoppedError, Resume, single_process
from skebm.training import distributed
from tests.interrupts import CASES, make, rows_of
from tests.ranks import Died, on_ranks
from tests.tiers import full

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

random = np.random.default_rng(0)
REALS = random.normal(size=(151, 3))
BITS = (random.random((103, 6)) < 0.3).astype(float)
WEIGHTS = random.random(103)

double = {"n_iter": 4, "batch_size": 20, "random_state": 0, "dtype": "float64"}
rbm = double | {"n_components": 4, "learning_rate": 0.1}
# Whose gradient needs no random numbers.
DETERMINISTIC = {
    "exact score matching": (
        ScoreMatchingDensity(MLP((8, 8)), objective="exact", partition=None, **double),
        (REALS,),
    ),
    "exact likelihood, centred": (RBMEstimator(learning="exact", **rbm), (BITS,)),
    "with weights": (RBMEstimator(learning="exact", **rbm), (BITS, None, WEIGHTS)),
    "sparse hidden units": (
        RBMEstimator(
            learning="exact", penalty=Penalty(l1=0.01, l2=0.1, sparsity_target=0.2), **rbm
        ),
        (BITS,),
    ),
    "pseudo-likelihood": (RBMEstimator(learning="pseudo_likelihood", **rbm), (BITS,)),
    "early stopping and averaging": (
        ScoreMatchingDensity(
            MLP((8,)),
            objective="exact",
            partition=None,
            early_stopping=EarlyStopping(n_iter_no_change=3, validation_fraction=0.3),
            optimizer=AdamW(averaging=0.5),
            **double,
        ),
        (REALS,),
    ),
    "few batches": (RBMEstimator(learning="exact", **(rbm | {"batch_size": 1000})), (BITS,)),
}
PCD = RBMEstimator(
    4,
    learning="pcd",
    chains=Persistent(n_chains=7),
    n_iter=3,
    batch_size=20,
    random_state=0,
)


def curve(model):
    """What was recorded, without times."""
    return [{k: v for k, v in row.items() if k not in ("dur", "batches")} for row in model.history_]


def fingerprint(model):
    """A hash of everything that was learned."""
    state = {k: v for k, v in model.__getstate__()["net_"].items() if k != "history"}
    return joblib.hash([state, curve(model), model.threshold_])


def assert_same_curve(one, other):
    assert len(one) == len(other)
    for row, found in zip(one, other, strict=True):
        assert row.keys() == found.keys()
        for name, value in row.items():
            assert found[name] == pytest.approx(value, rel=1e-10, abs=1e-10), name


def fitted(name):
    model, rows = DETERMINISTIC[name]
    return clone(model).fit(*rows)


class Keep(Callback):
    """Keeps the chains of this process after the last batch."""

    def on_batch_end(self, net, **kwargs):
        if net.module_.training:
            self.rows = net.state_.chain.x.clone()


def results(rank, names):
    """Of one launch: loss curves, chains, models with another seed, and what is refused."""
    found = {"curves": {}, "same": {}}
    for name in names:
        model = fitted(name)
        found["curves"][name], found["same"][name] = curve(model), fingerprint(model)
    keep = Keep()
    pcd = clone(PCD).set_params(net__callbacks=[("keep", keep)]).fit(BITS)
    found["chains"], found["united"] = keep.rows, pcd.net_.state_.chain.x
    found["same"]["pcd"] = fingerprint(pcd)
    pcd.partial_fit(BITS)
    found["same"]["pcd again"] = fingerprint(pcd.partial_fit(BITS))
    found["same"]["no seed"] = fingerprint(clone(PCD).set_params(random_state=None).fit(BITS))
    with single_process():
        found["alone"] = fingerprint(clone(PCD).set_params(n_iter=rank + 1).fit(BITS))
    refused = {
        "seed": lambda: clone(PCD).set_params(random_state=rank).fit(BITS),
        "rows": lambda: clone(PCD).fit(BITS[rank:]),
        "entries": lambda: clone(PCD).fit(BITS[:: 1 - 2 * rank]),
        "empty": lambda: clone(PCD).fit(BITS[: 100 * (1 - rank)]),
        "weights": lambda: clone(PCD).fit(BITS, sample_weight=np.arange(103) % (rank + 2)),
        "callback": lambda: clone(PCD).set_params(net__callbacks=[Fail(rank)]).fit(BITS),
        "stop": lambda: clone(PCD).set_params(net__callbacks=[Stop(rank)]).fit(BITS),
    }
    found["refused"] = {name: refusal(call) for name, call in refused.items()}
    found["same"]["after errors"] = fingerprint(clone(PCD).fit(BITS))
    return found


def refusal(call):
    try:
        call()
    except (ValueError, RuntimeError, OSError) as error:
        return error
    return None


class Fail(Callback):
    """Fails on rank 1 after its second epoch."""

    def __init__(self, rank):
        self.rank = rank

    def on_epoch_end(self, net, **kwargs):
        if self.rank and len(net.history) == 2:
            raise OSError("the disk is full")


class Stop(Callback):
    """Stops on rank 1 after its second epoch, as a limit of time might."""

    def __init__(self, rank):
        self.rank = rank

    def on_epoch_end(self, net, **kwargs):
        if self.rank and len(net.history) == 2:
            raise KeyboardInterrupt


FEW = ["exact score matching", "exact likelihood, centred", "pseudo-likelihood"]


@pytest.mark.parametrize(
    ("names", "size"), [(FEW, 2), pytest.param(list(DETERMINISTIC), 3, marks=full)]
)
def test_processes_train_the_model_of_one(names, size):
    found = on_ranks(results, names, size=size)
    first = found[0]
    for other in found:
        if isinstance(other, Exception):
            raise other
        assert other["same"] == first["same"]  # weights, chains and history, bit for bit
    for name in names:
        assert_same_curve(curve(fitted(name)), first["curves"][name])
    # Each has chains of its own; the model has all of them.
    chains = [one["chains"] for one in found]
    assert sorted(map(len, chains)) == ([3, 4] if size == 2 else [2, 2, 3])
    assert torch.equal(torch.cat(chains), first["united"])
    assert first["same"]["no seed"] != first["same"]["pcd"] == first["same"]["after errors"]
    alone = [fingerprint(clone(PCD).set_params(n_iter=n + 1).fit(BITS)) for n in range(size)]
    assert [one["alone"] for one in found] == alone


def test_what_ranks_do_not_share_is_refused_by_all():
    found = [one["refused"] for one in on_ranks(results, [])]
    expected = {
        "seed": (ValueError, "its parameters .*rank 1"),
        "rows": (ValueError, r"the shape of X \(\(103, 6\) on rank 0, \(102, 6\) on rank 1\)"),
        "entries": (ValueError, "the entries of X of rank 1 are not those of rank 0"),
        "empty": (ValueError, r"\(100, 6\) on rank 0, \(0, 6\) on rank 1"),
        "weights": (ValueError, "the number of rows|the entries of"),
    }
    for name, (kind, message) in expected.items():
        for errors in found:
            with pytest.raises(kind, match=message):
                raise errors[name]
    with pytest.raises(OSError, match="^the disk is full$"):
        raise found[1]["callback"]
    with pytest.raises(RankStoppedError, match=r"Rank 1 of 2 has stopped \(OSError: the disk is fu"):
        raise found[0]["callback"]
    for errors in found:
        with pytest.raises(RankStoppedError, match="rank 0: epoch 3; rank 1: the end of training"):
            raise errors["stop"]
