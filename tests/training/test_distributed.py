"""Data-parallel fits: those of one process, with their rows and chains on several."""

import functools
import os
import signal
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
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
from skebm.base.processes import mean_over_ranks, reduce_gradients
from skebm.energies import MLP
from skebm.objectives import Penalty
from skebm.samplers import MALA, ParallelTempering, Persistent
from skebm.training import (
    AdamW,
    EarlyStopping,
    RankStoppedError,
    Resume,
    distributed,
    engine,
    single_process,
)
from skebm.training.rows import Batches, Rows
from tests.support.interrupts import CASES, make, rows_of
from tests.support.ranks import DiedError, on_ranks
from tests.support.tiers import full

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
    return joblib.hash([state, curve(model), getattr(model, "threshold_", None)])


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
        found["curves"][name].append({"threshold": model.threshold_})
    keep = Keep()
    pcd = clone(PCD).set_params(net__callbacks=[("keep", keep)]).fit(BITS)
    found["chains"], found["united"] = keep.rows, pcd.net_.state_.chain.x
    found["same"]["pcd"] = fingerprint(pcd)
    pcd.partial_fit(BITS)
    found["same"]["pcd again"] = fingerprint(pcd.partial_fit(BITS))
    found["same"]["no seed"] = fingerprint(clone(PCD).set_params(random_state=None).fit(BITS))
    with single_process():
        found["alone"] = fingerprint(clone(PCD).set_params(n_iter=rank + 1).fit(BITS))
    bars = clone(PCD).set_params(verbose=1, n_iter=0).fit(BITS).net_._default_callbacks
    found["bar"] = [name for name, _ in bars]
    refused = {
        "seed": lambda: clone(PCD).set_params(random_state=rank).fit(BITS),
        "rows": lambda: clone(PCD).fit(BITS[rank:]),
        "entries": lambda: clone(PCD).fit(BITS[:: 1 - 2 * rank]),
        "units": lambda: ScoreMatchingDensity(n_iter=1, random_state=0).fit(REALS * 10.0**rank),
        "levels": lambda: clone(PCD).fit(pd.DataFrame(BITS).astype(str) + "abc"[rank]),
        "empty": lambda: clone(PCD).fit(BITS[: 100 * (1 - rank)]),
        "weights": lambda: clone(PCD).fit(BITS, sample_weight=np.arange(103) % (rank + 2)),
        "callback": lambda: clone(PCD).set_params(net__callbacks=[Fail(rank)]).fit(BITS),
        "resume": lambda: (
            clone(PCD).set_params(net__callbacks=[Resume("fit.state")] * rank).fit(BITS)
        ),
        "stop": lambda: clone(PCD).set_params(net__callbacks=[Stop(rank)]).fit(BITS),
    }
    found["refused"] = {name: refusal(call) for name, call in refused.items()}
    pressed = clone(PCD).set_params(net__callbacks=[Press(rank)], verbose=rank)
    found["ctrl-c"] = refusal(lambda: pressed.fit(BITS)), hasattr(pressed, "net_")
    found["same"]["after errors"] = fingerprint(clone(PCD).fit(BITS))
    return found


def refusal(call):
    try:
        call()
    except (ValueError, RuntimeError, OSError, KeyboardInterrupt) as error:
        return error
    return None


class Fail(Callback):
    """Fails on rank 1 after its second epoch."""

    def __init__(self, rank):
        self.rank = rank

    def on_epoch_end(self, net, **kwargs):
        if self.rank and len(net.history) == 2:
            raise OSError("the disk is full")


class Press(Callback):
    """Presses Ctrl-C on rank 1 in its second epoch."""

    def __init__(self, rank):
        self.rank = rank

    def on_grad_computed(self, net, **kwargs):
        if self.rank and len(net.history) == 2:
            signal.raise_signal(signal.SIGINT)


class Stop(Callback):
    """Stops on rank 1 after its second epoch, as a limit of time might."""

    def __init__(self, rank):
        self.rank = rank

    def on_epoch_end(self, net, **kwargs):
        if self.rank and len(net.history) == 2:
            raise KeyboardInterrupt


FEW = ["exact score matching", "exact likelihood, centred", "pseudo-likelihood"]


@functools.cache
def found_on_ranks(*names, size):
    return on_ranks(results, names, size=size)


@pytest.mark.parametrize(
    ("names", "size"), [(FEW, 2), pytest.param(list(DETERMINISTIC), 3, marks=full)]
)
def test_processes_train_the_model_of_one(names, size):
    found = found_on_ranks(*names, size=size)
    first = found[0]
    for other in found:
        if isinstance(other, Exception):
            raise other
        assert other["same"] == first["same"]  # weights, chains and history, bit for bit
    for name in names:
        expected = fitted(name)
        whole = [*curve(expected), {"threshold": expected.threshold_}]
        assert_same_curve(whole, first["curves"][name])
    # Each has chains of its own; the model has all of them.
    chains = [one["chains"] for one in found]
    assert sorted(map(len, chains)) == ([3, 4] if size == 2 else [2, 2, 3])
    assert torch.equal(torch.cat(chains), first["united"])
    assert first["same"]["no seed"] != first["same"]["pcd"] == first["same"]["after errors"]
    alone = [fingerprint(clone(PCD).set_params(n_iter=n + 1).fit(BITS)) for n in range(size)]
    assert [one["alone"] for one in found] == alone
    assert [one["bar"] for one in found] == [["progress"], *[[]] * (size - 1)]


def test_what_ranks_do_not_share_is_refused_by_all():
    both = found_on_ranks(*FEW, size=2)
    found = [one["refused"] for one in both]
    expected = {
        "seed": (ValueError, "its parameters .*rank 1"),
        "rows": (ValueError, r"the shape of X \(\(103, 6\) on rank 0, \(102, 6\) on rank 1\)"),
        "entries": (ValueError, "the entries of X of rank 1 are not those of rank 0"),
        "units": (ValueError, "the entries of X of rank 1 are not those of rank 0"),
        "levels": (ValueError, "the levels of columns"),
        "empty": (ValueError, r"\(100, 6\) on rank 0, \(0, 6\) on rank 1"),
        "resume": (ValueError, r"Resume callbacks \(0 on rank 0, 1 on rank 1\)"),
        "weights": (ValueError, "the number of rows|the entries of"),
    }
    for name, (kind, message) in expected.items():
        for errors in found:
            with pytest.raises(kind, match=message):
                raise errors[name]
    with pytest.raises(OSError, match="^the disk is full$"):
        raise found[1]["callback"]
    with pytest.raises(RankStoppedError, match="Rank 1"):
        raise found[0]["callback"]
    for errors in found:
        with pytest.raises(RankStoppedError, match="rank 0.*epoch 3.*rank 1"):
            raise errors["stop"]
    (other, fitted_there), (own, fitted_here) = (one["ctrl-c"] for one in both)
    assert isinstance(own, KeyboardInterrupt)
    with pytest.raises(RankStoppedError, match=r"Rank 1 of 2 has stopped \(KeyboardInterrupt\)"):
        raise other
    assert [fitted_there, fitted_here] == [False, False]


# ------------------------------------------------------------------------------
# What happens to one process
# ------------------------------------------------------------------------------

SLOW = RBMEstimator(64, learning="pcd", n_iter=20, batch_size=50, random_state=0, partition=None)
WIDE = (np.random.default_rng(1).random((4000, 64)) < 0.3).astype(float)


def resumed(rank, path):
    """A fit that stores its epochs, from what another one stored."""
    model = clone(SLOW).set_params(net__callbacks=[("resume", Resume(path))])
    return fingerprint(model.fit(WIDE))


@full
def test_a_killed_rank_is_named_and_the_fit_goes_on_bit_for_bit(tmp_path):
    expected = on_ranks(resumed, tmp_path / "whole")
    assert expected[0] == expected[1]
    for rank, seconds in ((1, 0.05), (0, 0.3)):
        path = tmp_path / f"killed{rank}{seconds}"
        started = []

        def reached(path=path, started=started, seconds=seconds):
            if path.exists():
                started.append(time.monotonic())
            return started and time.monotonic() - started[0] > seconds

        found = on_ranks(resumed, path, kill=(rank, reached))
        assert isinstance(found[rank], DiedError)
        with pytest.raises(RankStoppedError, match=f"Rank {rank} of 2 has stopped or hangs.*Start"):
            raise found[1 - rank]
        assert on_ranks(resumed, path) == expected


@full
def test_a_rank_that_does_not_come_is_named():
    found = on_ranks(lone, timeout=1)
    with pytest.raises(RankStoppedError, match="Rank 1"):
        raise found[0]


def lone(rank):
    """Rank 0 alone fits, as in a script that forgets the other."""
    if rank == 0:
        clone(PCD).fit(BITS)
    time.sleep(1.5 * rank)


@full
def test_a_rank_that_hangs_is_named_after_the_timeout():
    found = on_ranks(hanging, timeout=2)
    with pytest.raises(RankStoppedError, match="Rank 1"):
        raise found[0]


def hanging(rank):
    class Hang(Callback):
        def on_epoch_end(self, net, **kwargs):
            time.sleep(9 * rank)

    clone(PCD).set_params(net__callbacks=[Hang()]).fit(BITS)


def stored(rank, path, **params):
    model = clone(PCD).set_params(net__callbacks=[("resume", Resume(path))], **params)
    return fingerprint(model.fit(BITS))


def without_room(rank, path):
    """Rank 0 has no room for the file after its second epoch."""
    written = []

    def fsync(number):
        written.append(number)
        if len(written) == 2:
            raise OSError(28, "No space left on device")

    os.fsync = fsync
    return stored(rank, path)


@full
def test_files_of_several_processes(tmp_path):
    path = tmp_path / "fit.state"
    expected = on_ranks(stored, tmp_path / "whole")
    found = on_ranks(without_room, path)
    with pytest.raises(OSError, match="could not write .* is that of an earlier epoch.*No space"):
        raise found[0]
    with pytest.raises(RankStoppedError, match="Rank 0"):
        raise found[1]
    with pytest.raises(ValueError, match="another fit, which differs in the number of processes"):
        stored(0, path)
    assert on_ranks(stored, path) == expected  # from the epoch that had room
    assert not list(tmp_path.glob("*.part"))
    path.write_bytes(path.read_bytes()[:1000])
    for error in on_ranks(stored, path):
        with pytest.raises(ValueError, match="is not a file that Resume wrote"):
            raise error


def own_files(rank, folder):
    """Each rank has a disk of its own; that of rank 0 is empty."""
    path = Path(folder, str(rank), "fit.state")
    path.parent.mkdir(exist_ok=True)
    return stored(rank, path)


@full
def test_any_rank_may_have_the_file(tmp_path):
    expected = on_ranks(stored, tmp_path / "fit.state")
    (tmp_path / "1").mkdir()
    (tmp_path / "fit.state").rename(tmp_path / "1" / "fit.state")
    assert on_ranks(own_files, tmp_path) == expected


def failing_sampler(rank):
    """The energy becomes nan in the chains of rank 1, in one step of the second epoch."""
    model = ContrastiveDivergenceDensity(
        MLP((8,)), n_iter=4, batch_size=20, random_state=0, partition=None, base="gaussian"
    )
    step, calls = MALA.step, []

    def fails(self, energy, state, generator, *args, **kwargs):
        calls.append(generator)
        if rank == 1 and len(calls) == 150:
            raise SamplingError("the energy is nan")
        return step(self, energy, state, generator, *args, **kwargs)

    MALA.step = fails
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(REALS)
    return fingerprint(model), model.n_restarts_, [str(w.message) for w in caught]


@full
def test_all_roll_back_where_sampling_fails_on_one():
    (first, restarts, said), (second, *_) = on_ranks(failing_sampler)
    assert first == second
    assert restarts == 1
    assert any("rolled back 1 times (first at epoch 2" in message for message in said)


@full
@pytest.mark.parametrize("name", list(CASES))
def test_every_objective_has_one_model_on_all_processes(name):
    found = on_ranks(of_case, name, size=3)
    assert found[0] == found[1] == found[2]


def of_case(rank, name):
    model = make(name)
    return fingerprint(model.fit(*rows_of(model)))


class Kept:
    """A callback of scikit-learn that is given the model of each epoch."""

    def __init__(self):
        self.epochs = []

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.epochs.append(fitted_estimator.n_iter_)


@full
def test_one_process_alone_may_ask_for_the_models_of_epochs():
    pytest.importorskip("sklearn.callback")
    (first, epochs), (second, none) = on_ranks(followed)
    assert first == second == on_ranks(of_case, "pcd")[0]
    assert (epochs, none) == ([1, 2, 3, 4, 4], [])


def followed(rank):
    model, kept = make("pcd"), Kept()
    if not rank:
        model.set_callbacks(kept)
    model.fit(*rows_of(model)).set_callbacks()
    return fingerprint(model), kept.epochs


def undivided(rank):
    missing = BITS.copy()
    missing[::7, 2] = np.nan
    fits = {
        "line search": (make("line search"), BITS),
        "missing ones": (clone(PCD), missing),
        "hidden": (DeepBoltzmannMachine((3, 2), n_iter=2, random_state=0), BITS),
        "too small": (clone(PCD).set_params(batch_size=1), BITS),
        "each window": (
            TemporalRBM(2, order=1, learning="pcd", n_iter=2, random_state=0),
            BITS,
        ),
    }
    found = {}
    for name, (model, X) in fits.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X)
        told = [str(w.message) for w in caught if "processes trains on all rows" in str(w.message)]
        found[name] = fingerprint_of_net(model), told
    return found


def fingerprint_of_net(model):
    net = model.__getstate__()["net_"]
    return joblib.hash([net["weights"], net["generator"]])


@full
def test_what_cannot_be_divided_is_the_fit_of_one_process():
    expected = undivided(0)
    first, second = on_ranks(undivided)
    for name, (model, told) in expected.items():
        assert not told
        assert first[name][0] == second[name][0] == model, name
        assert len(first[name][1]) == 1, name
        assert name in first[name][1][0]
        assert not second[name][1]  # rank 0 tells


def tempered(rank):
    model = clone(PCD).set_params(sampler=ParallelTempering(), learning="pcd")
    return fingerprint(model.fit(BITS)), [len(one.x) for one in model.net_.state_.chain.aux]


@full
def test_replicas_are_divided_with_their_chains():
    (first, sizes), (second, _) = on_ranks(tempered)
    assert first == second
    assert set(sizes) == {7}


# ------------------------------------------------------------------------------
# In one process
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [7, 100])
def test_parts_of_a_batch_are_the_batch(batch_size):
    x = torch.arange(50.0).view(25, 2)
    rows = Rows(x, x[:, 0] + 1, y=torch.arange(25), dtype=x.dtype, device=x.device)

    def batches(part=None):
        found = Batches(rows, batch_size, torch.Generator().manual_seed(0))
        found.part = part
        return list(found)

    for whole, *parts in zip(batches(), *(batches((rank, 3)) for rank in range(3)), strict=True):
        sizes = [len(part.x) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for field, of_parts in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(torch.cat(of_parts), field)
    assert Batches(rows, 3, None).divisible(2)
    assert not Batches(rows, 3, None).divisible(3)


def test_one_process_reduces_nothing():
    values = torch.ones(2), torch.zeros(3)
    assert [a is b for a, b in zip(values, mean_over_ranks(*values), strict=True)] == [True, True]
    reduce_gradients(None)
    assert distributed.current_group() is distributed.ALONE
    assert distributed.ALONE.gather(3) == [3]
    assert distributed.ALONE.mean({"loss": 2.0}) == {"loss": 2.0}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_sums_are_in_place_where_the_backend_reads_gpus_alone_too(device, monkeypatch):
    """NCCL is given a copy on the GPU, others the tensor, wherever it is."""
    values, elsewhere, reduced = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), []

    def double_(tensor, **settings):
        reduced.append(tensor.mul_(2))

    ranks = object.__new__(distributed.Ranks)
    ranks.device, ranks.processes = torch.device(device), "two"
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: elsewhere)
    monkeypatch.setattr(dist, "all_reduce", double_)
    assert ranks.sum_(values) is values
    assert reduced[0] is (elsewhere if device == "cuda" else values)
    assert values.tolist() == [2.0, 4.0]


def of_one(rank, device, backend):
    """Fits by the steps of several processes, of which there is one."""
    if backend != "gloo":
        dist.destroy_process_group()
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group(backend, rank=0, world_size=1)
    plain = {name: fitted_on(name, device) for name in FEW[1:]}
    ranks = distributed.Ranks(0)
    engine.current_group = lambda: ranks
    assert ranks.gather("a") == ["a"]
    assert ranks.broadcast("b", 0) == "b"
    assert ranks.mean_of(torch.ones(2)).tolist() == [1, 1]
    assert ranks.whole(torch.arange(6).view(3, 2)).tolist() == [[0, 1], [2, 3], [4, 5]]
    return plain, {name: fitted_on(name, device) for name in FEW[1:]}


def fitted_on(name, device):
    model, rows = DETERMINISTIC[name]
    return curve(clone(model).set_params(device=device).fit(*rows))


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "gloo"),
        pytest.param(
            "cuda",
            "nccl",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_the_steps_of_several_processes_are_those_of_one(device, backend):
    (found,) = on_ranks(of_one, device, backend, size=1)
    for name, expected in found[0].items():
        assert_same_curve(expected, found[1][name])
