"""Processes that are forked after torch used several threads."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch

from skebm.base.processes.threads import threads
from tests.support.tiers import full

PROGRAM = """
import multiprocessing
import numpy as np
import torch
from skebm import RBMEstimator

torch.set_num_threads(2)
large = torch.ones(1000, 1000)
large @ large  # from here on there are two threads
X = (np.random.default_rng(0).random((300, 200)) < 0.4).astype(float)
model = RBMEstimator(256, n_iter=0, base="independent", partition=None, random_state=0).fit(X)
expected = model.score_samples(X)


def scored(_):
    return torch.get_num_threads(), np.abs(model.score_samples(X) - expected).max()


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for n_threads, error in pool.map(scored, range(1)):
            assert n_threads == 1, n_threads
            assert error < 1e-3, error
    assert torch.get_num_threads() == 2
"""


can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("of_thread", [True, False], ids=["OpenMP", "torch alone"])
def test_blocks_give_the_threads_back(of_thread, monkeypatch):
    """Also where only the number of the whole process can be set."""
    if not of_thread:
        module = importlib.import_module("skebm.base.processes.threads")
        monkeypatch.setattr(module, "_setter", lambda: None)
    with threads(work=1):
        assert torch.get_num_threads() == 1
        with threads(work=1e9):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@can_fork
def test_forked_processes_have_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = multiprocessing.get_context("fork").Process(target=_exit_with_threads)
            child.start()
        child.join(60)
        assert child.exitcode == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def _exit_with_threads():
    sys.exit(torch.get_num_threads())


@full
@can_fork
def test_forked_processes_score_rows(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(program)],
        env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children wait for threads that were not forked
        pytest.fail("A forked process hangs.")
    assert process.returncode == 0, said
