"""kill -9 at random times of fits and loops that store their state (docs/guide/saving.md)."""

import os
import pickle
import random
import signal
import time
import warnings

import joblib
import pytest

from skebm.training import Resume
from skebm.training.resume import from_bytes
from tests.support.interrupts import CASES, make, rows_of
from tests.support.tiers import about, full

pytestmark = [
    full,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # Nothing computes with threads of the parent: importing skebm sees to it.
    pytest.mark.filterwarnings("ignore"),
]
N_PASSES = 12
# Kills of each estimator.
TIMES = int(os.environ.get("SKEBM_KILLS", 4))


def train_by_passes(name, path):
    """Go on from the model in a file up to a number of passes, and store it after each."""
    model = pickle.loads(path.read_bytes()) if path.exists() else make(name)
    done = model.n_iter_ if path.exists() else 0
    for _ in range(done, N_PASSES):
        model.partial_fit(*rows_of(model))
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(model))
        os.replace(unfinished, path)
    return model


def train_by_fit(name, path):
    """One fit that goes on from its file."""
    model = make(name, n_iter=N_PASSES)
    model.set_params(net_params={"callbacks": [("resume", Resume(path))]})
    return model.fit(*rows_of(model)).set_params(net_params=None)


def passes_by_passes(path):
    """Passes that a file holds, which is whole whenever training was killed."""
    return pickle.loads(path.read_bytes()).n_iter_


def passes_by_fit(path):
    """Epochs that a file holds."""
    return len(from_bytes(path.read_bytes())["state"]["training"]["history"])


WAYS = {
    "partial_fit": (train_by_passes, passes_by_passes),
    "fit": (train_by_fit, passes_by_fit),
}


def fingerprint(model):
    """A hash of all that is learned, of draws and of another pass; not of how long it took."""
    history = [{k: v for k, v in row.items() if k != "dur"} for row in model.history_]
    drawn = model.sample(5, random_state=0)
    model.partial_fit(*rows_of(model))
    return joblib.hash([history, drawn, model.score_samples(rows_of(model)[0])])


def killed(train, name, path, after):
    """Train in a child that is killed after so many seconds; whether that was before its end."""
    child = os.fork()
    if not child:
        warnings.simplefilter("ignore")
        train(name, path)
        os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_training_that_is_killed_goes_on_bit_for_bit(name, way, tmp_path):
    train, passes_in = WAYS[way]
    random.seed(name)
    started = time.perf_counter()
    expected = fingerprint(train(name, tmp_path / "whole"))
    lasts, path, n_killed, n_passes = time.perf_counter() - started, tmp_path / "model", 0, 0
    for _ in range(TIMES):
        after = random.uniform(0, lasts / TIMES)
        n_killed += killed(train, name, path, after)
        if path.exists():
            with about(name, after):
                assert passes_in(path) >= n_passes  # nothing that was stored is lost
            n_passes = passes_in(path)
    assert n_killed > 0
    assert fingerprint(train(name, path)) == expected
