"""Fixtures shared by all tests, and what makes their collection cheaper."""

import gc
import os
import signal

import pytest
import sklearn
import torch

# The objects of a collection are millions, and live to the end: the garbage collector would go
# through them again and again.
gc.disable()


def pytest_configure(config):
    """Hide a GPU from all but its own tests, ``-m gpu``: the others have the numbers of a CPU."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    gc.freeze()
    gc.enable()


@pytest.fixture
def generator():
    """The test's own random generator, seeded."""
    return torch.Generator().manual_seed(20240229)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """One torch thread: the arrays here are small, and pytest-xdist shares the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt; processes started in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def same_config():
    """No test leaves the configuration of scikit-learn to the next one."""
    before = sklearn.get_config()
    yield
    after = sklearn.get_config()
    sklearn.set_config(**before)
    assert after == before
