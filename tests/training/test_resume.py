"""Fits that go on from a file: bit for bit those that were never interrupted."""

import copy
import os
import signal
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch.callbacks import Callback

from skebm import (
    BoltzmannMachineDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TemporalRBM,
)
from skebm.energies import MLP
from skebm.training import SGD, AdamW, EarlyStopping, Resume
from tests.support.interrupts import BITS, CASES, REALS, make, rows_of
from tests.support.tiers import full, only_full

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
STOPPED = {
    "quasi-Newton": BoltzmannMachineDensity(n_iter=6, l2=0.01, random_state=0),
    "early stopping": ScoreMatchingDensity(
        network=MLP((8,)),
        base="gaussian",
        n_iter=12,
        early_stopping=EarlyStopping(n_iter_no_change=3, validation_fraction=0.3),
        optimizer=AdamW(averaging=0.5),
        learning_rate=0.1,
        partition=None,
        random_state=0,
    ),
}


class Stop(Callback):
    """Ends the process's part of the work after an epoch, as a crash would."""

    def __init__(self, after):
        self.after = after

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == self.after:
            raise MemoryError("the end")


def case(name):
    if name == "quasi-Newton":
        return copy.deepcopy(STOPPED[name]), (BITS,)
    if name in STOPPED:
        return copy.deepcopy(STOPPED[name]), (np.concatenate([REALS, REALS[::-1] ** 2]),)
    model = make(name)
    return model, rows_of(model)


def fingerprint(model, rows):
    """A hash of the weights, the chains, the generator, the history and another pass."""
    # How long an epoch took is chance, and callbacks for batches have more of them recorded.
    found = [
        {k: v for k, v in row.items() if k not in ("dur", "batches")} for row in model.history_
    ]
    state = {k: v for k, v in model.__getstate__()["net_"].items() if k != "history"}
    model.set_params(net_params=None).partial_fit(*rows)
    return joblib.hash([found, state, model.energy(rows[0])])


def callbacks(path, *others):
    return {"callbacks": [*others, ("resume", Resume(path))]}


FEW = ["pcd", "contrastive", "early stopping", "quasi-Newton"]


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(name, marks=full) for name in CASES if name not in FEW)]
)
@pytest.mark.parametrize("after", [2, pytest.param(3, marks=full)])
def test_a_fit_goes_on_bit_for_bit(name, after, tmp_path):
    model, rows = case(name)
    expected = fingerprint(model.fit(*rows), rows)
    stopped = callbacks(tmp_path / "state", ("stop", Stop(after)))
    with pytest.raises(MemoryError, match="the end"):
        case(name)[0].set_params(net_params=stopped).fit(*rows)
    again = case(name)[0].set_params(net_params=callbacks(tmp_path / "state")).fit(*rows)
    assert again.n_iter_ > after - 1
    found = fingerprint(again, rows)
    assert found == expected
    # The file is that of the end: the same fit has nothing left to do.
    begun = []

    class Count(Callback):
        def on_epoch_begin(self, net, **kwargs):
            begun.append(len(net.history))

    whole = callbacks(tmp_path / "state", ("count", Count()))
    done = case(name)[0].set_params(net_params=whole).fit(*rows)
    assert len(begun) <= (name == "early stopping")  # whose last epoch ended training
    assert fingerprint(done, rows) == expected


def test_ctrl_c_loses_the_epoch_in_which_it_comes(tmp_path, ctrl_c):
    model, rows = case("pcd")
    expected = fingerprint(model.fit(*rows), rows)

    class Press(Callback):
        def on_grad_computed(self, net, **kwargs):
            if len(net.history) == 3:
                os.kill(os.getpid(), signal.SIGINT)

    pressed = callbacks(tmp_path / "state", ("press", Press()))
    with pytest.raises(KeyboardInterrupt):
        case("pcd")[0].set_params(net_params=pressed).fit(*rows)
    again = case("pcd")[0].set_params(net_params=callbacks(tmp_path / "state")).fit(*rows)
    assert again.n_iter_ == 4
    assert fingerprint(again, rows) == expected


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"random_state": 1}, "random_state"),
        ({"n_iter": 9}, "n_iter"),
        ({"learning_rate": 0.5}, "learning_rate"),
        ({"batch_size": 7}, "batch_size"),
        ({"optimizer": SGD(momentum=0.5)}, "optimizer"),
        ({"n_components": 4}, "shapes of the weights"),
        ({}, "the rows"),
    ],
)
def test_the_file_of_another_fit_is_refused(change, named, tmp_path):
    rbm = RBMEstimator(3, learning="pcd", n_iter=2, learning_rate=0.1, random_state=0)
    rbm.set_params(net_params=callbacks(tmp_path / "state")).fit(BITS)
    with pytest.raises(ValueError, match=f"belongs to another fit, which differs in .*{named}"):
        rbm.set_params(**change).fit(BITS if change else BITS[::-1])


def test_files_that_are_none_and_missing_folders_are_named(tmp_path):
    rbm = RBMEstimator(3, n_iter=2, random_state=0)
    (tmp_path / "state").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is not a file that Resume wrote"):
        rbm.set_params(net_params=callbacks(tmp_path / "state")).fit(BITS)
    torch.save({"other": 1}, tmp_path / "state")
    with pytest.raises(ValueError, match="is not a file that Resume wrote"):
        rbm.set_params(net_params=callbacks(tmp_path / "state")).fit(BITS)
    with pytest.raises(ValueError, match="no folder"):
        rbm.set_params(net_params=callbacks(tmp_path / "absent" / "state")).fit(BITS)
    with pytest.raises(ValueError, match="seconds of Resume"):
        rbm.set_params(net_params={"callbacks": [("r", Resume(tmp_path / "s", -1))]}).fit(BITS)


def test_a_file_is_written_at_most_so_often_and_at_the_end(tmp_path):
    written = []

    class Counted(Resume):
        def _write(self, net, rows):
            written.append(len(net.history))
            super()._write(net, rows)

    rbm = RBMEstimator(3, learning="pcd", n_iter=5, random_state=0)
    often, seldom = Counted(tmp_path / "often"), Counted(tmp_path / "seldom", seconds=1000)
    rbm.set_params(net_params={"callbacks": [("resume", often)]}).fit(BITS)
    assert written == [1, 2, 3, 4, 5]
    written.clear()
    rbm.set_params(net_params={"callbacks": [("resume", seldom)]}).fit(BITS)
    assert written == [5]


def test_partial_fit_says_that_it_is_not_for_it(tmp_path):
    rbm = RBMEstimator(3, random_state=0, net_params=callbacks(tmp_path / "state"))
    with pytest.warns(UserWarning, match="no effect on partial_fit"):
        rbm.partial_fit(BITS)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "model",
    [
        RBMEstimator(3, learning="pcd", optimizer=SGD(momentum=0.5, schedule="constant")),
        ScoreMatchingDensity(
            MLP((8,)), base="gaussian", optimizer=AdamW(schedule="constant"), partition=None
        ),
    ],
    ids=["pcd", "score matching"],
)
def test_three_warm_passes_and_three_are_six_at_a_constant_rate(model, tmp_path):
    X = BITS if isinstance(model, RBMEstimator) else REALS
    model.set_params(random_state=0, batch_size=20, learning_rate=0.01, warm_start=True)
    six = copy.deepcopy(model).set_params(n_iter=6).fit(X)
    model.set_params(n_iter=3).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X)
    assert model.n_iter_ == 6
    assert np.array_equal(model.energy(X), six.energy(X))


def test_warm_starts_hold_out_the_same_rows():
    model, (X,) = case("early stopping")
    first = model.set_params(warm_start=True).fit(X).net_.validation.x
    assert torch.equal(model.fit(X).net_.validation.x, first)


HOLES = np.where(np.random.default_rng(1).random(BITS.shape) < 0.2, np.nan, BITS)


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (RBMEstimator(3, learning="pcd", n_iter=8, random_state=0), HOLES),
        pytest.param(DeepBoltzmannMachine((3, 2), n_iter=8, random_state=0), BITS, marks=full),
        pytest.param(TemporalRBM(3, n_iter=8, random_state=0), BITS, marks=full),
    ],
    ids=["missing entries", "deep machine", "sequences"],
)
def test_drawn_entries_go_on_bit_for_bit(model, rows, tmp_path):
    """Imputations of missing entries, and hidden entries beside the columns, are chains."""
    expected = clone(model).fit(rows)
    stopped = callbacks(tmp_path / "state", ("stop", Stop(3)))
    with pytest.raises(MemoryError, match="the end"):
        clone(model).set_params(net_params=stopped).fit(rows)
    for _ in range(2):  # and once more on the finished file
        again = clone(model).set_params(net_params=callbacks(tmp_path / "state")).fit(rows)
        assert np.array_equal(again.energy(BITS), expected.energy(BITS))


@pytest.mark.parametrize(
    "model",
    [
        only_full(ScoreMatchingDensity(random_state=4)),
        only_full(NCEDensity(random_state=4)),
        only_full(ContrastiveDivergenceDensity(random_state=4)),
        ConditionalDensity(base="linear", n_iter=8, random_state=4),
    ],
    ids=lambda model: type(model).__name__,
)
def test_fits_that_end_early_and_return_to_first_weights_go_on(model, tmp_path):
    rows = np.random.default_rng(91).normal(size=(200, 2))
    expected = clone(model).fit(rows)
    stopped = callbacks(tmp_path / "state", ("stop", Stop(3)))
    with pytest.raises(MemoryError, match="the end"):
        clone(model).set_params(net_params=stopped).fit(rows)
    for _ in range(2):
        again = clone(model).set_params(net_params=callbacks(tmp_path / "state")).fit(rows)
        assert again.n_iter_ == expected.n_iter_
        assert np.array_equal(again.energy(rows), expected.energy(rows))


def resumed(path, **params):
    rbm = RBMEstimator(3, learning="pcd", n_iter=4, random_state=0, **params)
    return rbm.set_params(net_params=callbacks(path))


def test_damage_anywhere_is_found_and_the_state_before_is_kept(tmp_path):
    path, random = tmp_path / "state", np.random.default_rng(0)
    expected = resumed(path).fit(BITS)
    good = path.read_bytes()
    for _ in range(10):
        bad, place = bytearray(good), int(random.integers(len(good) - 64))
        bit = bytearray(good)
        bit[place] ^= 1 << int(random.integers(8))
        bad[place : place + 64] = bytes(64)
        for data in (good[:place], bytes(bit), bytes(bad)):
            if data == good:  # zeros in the place of zeros
                continue
            path.write_bytes(data)
            with pytest.raises(ValueError, match=r"state is not a file that Resume wrote.*rename"):
                resumed(path).fit(BITS)
            assert path.read_bytes() == data
    # What the message advises.
    os.replace(tmp_path / "state.previous", path)
    assert np.array_equal(resumed(path).fit(BITS).energy(BITS), expected.energy(BITS))


def test_no_link_is_followed_and_only_the_owner_reads(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("state", "state.part", "state.previous"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(ValueError, match="is not a file that Resume wrote"):
        resumed(tmp_path / "state").fit(BITS)
    (tmp_path / "state").unlink()
    (tmp_path / "state.previous").unlink()
    resumed(tmp_path / "state").fit(BITS)
    assert victim.read_text() == "precious"
    for name in ("state", "state.previous"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_second_fit_on_a_file_is_told_and_writes_after_the_first(tmp_path):
    path, expected = tmp_path / "state", resumed(tmp_path / "other").fit(BITS)

    class Second(Callback):
        """Another fit on the same file, while the first has trained one epoch of four."""

        def on_epoch_end(self, net, **kwargs):
            if len(net.history) == 1:
                before = path.read_bytes()
                with pytest.warns(UserWarning, match="Another fit in this process writes"):
                    found.append(resumed(path).fit(BITS))
                assert path.read_bytes() == before

    found = []
    first = resumed(path)
    first.net_params["callbacks"].append(("second", Second()))
    found.append(first.fit(BITS))
    for model in found:
        assert np.array_equal(model.energy(BITS), expected.energy(BITS))
    assert not (tmp_path / "state.lock").exists()


@full
def test_a_process_that_writes_a_file_is_named_and_its_death_frees_it(tmp_path):
    path = tmp_path / "state.lock"
    code = (
        "import sys, pathlib, time\n"
        "from skebm.training.resume import Lock\n"
        "print(Lock(pathlib.Path(sys.argv[1])).acquire(), flush=True)\n"
        "time.sleep(600)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "True\n"
        with pytest.warns(UserWarning, match=f"Process {other.pid} writes"):
            resumed(tmp_path / "state").fit(BITS)
        assert not (tmp_path / "state").exists()
    finally:
        other.kill()
        other.wait()
    resumed(tmp_path / "state").fit(BITS)
    assert (tmp_path / "state").exists()
