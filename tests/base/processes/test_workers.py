"""Searches, folds and experts that workers share: the numbers of one process, bit for bit."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, cross_val_score

from skebm import (
    EnergyOutlierDetector,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.base.processes import Workers, in_worker, progress_bar
from skebm.energies import MLP
from skebm.training import DivergenceError
from tests.support.tiers import full, named


def bits(n=200, d=12):
    rng = np.random.default_rng(0)
    return (rng.random((n, d)) < rng.random((n, 1))).astype(np.float64)


@functools.cache
def reals(n=200, d=5):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, d)) + rng.choice([-2.0, 2.0], (n, 1))


NETWORK = MLP((4,))
RBM = RBMEstimator(n_iter=4, learning="pcd", base="independent", random_state=0)
NEURAL = ScoreMatchingDensity(
    network=NETWORK, base="gaussian", n_iter=2, batch_size=50, random_state=0
)
GRID = {"n_components": [2, 4], "learning_rate": [0.01, 0.1]}
EXPERTS = [("kernels", TractableDensity("kernel")), ("normal", TractableDensity("gaussian"))]


def numbers_of(search):
    """What a search found, without times."""
    names = [name for name in search.cv_results_ if "time" not in name and "param" not in name]
    return np.stack([search.cv_results_[name] for name in sorted(names)])


def grid_search(n_jobs):
    return numbers_of(GridSearchCV(RBM, GRID, cv=2, n_jobs=n_jobs).fit(bits()))


def halving_search(n_jobs):
    search = HalvingGridSearchCV(RBM, GRID, cv=2, random_state=0, n_jobs=n_jobs)
    return numbers_of(search.fit(bits()))


def cross_validation(n_jobs):
    return cross_val_score(NEURAL, reals(), cv=2, n_jobs=n_jobs)


def large_table(n_jobs):
    """More than a megabyte, from where on joblib's processes get read-only memory maps."""
    model = clone(RBM).set_params(n_iter=1, batch_size=1000)
    X = bits(15_000)
    assert X.nbytes > 2**20
    return cross_val_score(model, X, cv=2, n_jobs=n_jobs)


def folds(n_jobs):
    inner = RBMEstimator(3, n_iter=4, learning="pcd", base="independent")
    detector = EnergyOutlierDetector(
        inner, method="cross-conformal", cv=2, trim=0.1, random_state=0, n_jobs=n_jobs
    ).fit(bits())
    return np.append(detector.decision_function(bits(50)), detector.n_trimmed_)


def experts(n_jobs):
    model = ProductOfDensities(EXPERTS, random_state=0, n_jobs=n_jobs).fit(reals()[:150])
    return np.append(model.weights_, model.score_samples(reals()[150:200]))


def default_detector(n_jobs):
    detector = EnergyOutlierDetector(random_state=0, n_jobs=n_jobs).fit(reals()[:150])
    return detector.score_samples(reals()[150:200])


PROGRAMS = [
    grid_search,
    halving_search,
    cross_validation,
    large_table,
    folds,
    experts,
    default_detector,
]


@functools.cache
def alone(program):
    """The numbers of a program that shares nothing."""
    return program(None)


# ------------------------------------------------------------------------------
# Workers
# ------------------------------------------------------------------------------


@contextlib.contextmanager
def dask(**cluster):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(dashboard_address=":0", **cluster) as found,
        distributed.Client(found),
        joblib.parallel_config("dask"),
    ):
        yield


@contextlib.contextmanager
def ray():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    register_ray()
    size = {"num_cpus": 2, "object_store_memory": 100_000_000}
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", **size)
    try:
        with joblib.parallel_config("ray"):
            yield
    finally:
        ray.shutdown()


BACKENDS = {
    "loky": lambda: joblib.parallel_config("loky"),
    "threading": lambda: joblib.parallel_config("threading"),
    "multiprocessing": lambda: joblib.parallel_config("multiprocessing"),
    "dask": lambda: dask(n_workers=2, threads_per_worker=1),
    "dask-threads": lambda: dask(n_workers=1, threads_per_worker=2, processes=False),
    "ray": ray,
}


# Threads in the first tier: a process imports torch before it works.
@pytest.fixture(scope="module", params=named(["threading"], BACKENDS))
def workers(request):
    """A backend of joblib with two workers."""
    with BACKENDS[request.param]():
        yield request.param


@pytest.mark.parametrize("program", PROGRAMS)
def test_workers_find_the_numbers_of_one_process(program, workers):
    assert_array_equal(program(2), alone(program))


def test_bars_appear_in_the_parent_alone(workers, capfd):
    assert not in_worker()
    call = joblib.delayed(in_worker)
    assert joblib.Parallel(n_jobs=2)(call() for _ in range(4)) == [True] * 4
    bar = joblib.delayed(_is_hidden)
    assert joblib.Parallel(n_jobs=2)(bar() for _ in range(2)) == [True] * 2
    detector = EnergyOutlierDetector(
        TractableDensity("gaussian"), method="cross-conformal", cv=3, n_jobs=2, verbose=1
    )
    detector.fit(reals()[:90])
    lines = [part for part in capfd.readouterr().err.replace("\n", "\r").split("\r") if part]
    assert {line.split(":")[1].strip() for line in lines} == {"fit", "threshold"}
    assert "3/3" in lines[-1]


@pytest.mark.parametrize("has_task", [True, False])
def test_tasks_of_dask_are_workers(has_task, monkeypatch):
    def get_worker():
        if not has_task:
            raise ValueError("No worker found")

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(get_worker=get_worker))
    assert in_worker() is has_task


def _is_hidden():
    with progress_bar(total=1) as bar:
        return bar.disable


def test_warnings_of_workers_reach_the_parent(workers):
    """Once for all folds, as in one process; and the parent's filters apply to them."""
    steep = clone(RBM).set_params(learning_rate=50.0)
    detector = EnergyOutlierDetector(steep, method="cross-conformal", cv=2, random_state=0)
    said = {}
    for n_jobs in (None, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            detector.set_params(n_jobs=n_jobs).fit(bits())
        said[n_jobs] = sorted(str(one.message) for one in caught)
    assert said[2] == said[None]
    assert "diverged" in "".join(said[2])


def test_read_only_rows_are_copied():
    """As those are which joblib's processes get; torch has no tensors that cannot be written."""
    model, rows, weight = clone(NEURAL).fit(reals()), reals().copy(), np.ones(len(reals()))
    rows.flags.writeable = weight.flags.writeable = False
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = clone(NEURAL).fit(rows, sample_weight=weight)
    finally:
        torch.set_warn_always(False)
    assert_array_equal(again.energy(rows), model.energy(reals()))


def test_an_error_of_a_worker_is_that_of_one_process(workers):
    wild = RBMEstimator(3, n_iter=2, learning="pcd", base="independent", learning_rate=1e9)
    detector = EnergyOutlierDetector(wild, method="cross-conformal", cv=2, n_jobs=2).fit
    with pytest.raises(DivergenceError, match="Training diverged"):
        detector(bits())


# ------------------------------------------------------------------------------
# Parameters, interrupts
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [0, True, 2.0, "two"])
@pytest.mark.parametrize(
    "model",
    [ProductOfDensities(EXPERTS), EnergyOutlierDetector(method="cross-conformal", cv=2)],
    ids=["product", "detector"],
)
def test_numbers_of_workers_that_are_none(model, n_jobs):
    with pytest.raises(ValueError, match="'n_jobs' parameter"):
        clone(model).set_params(n_jobs=n_jobs).fit(reals())


@pytest.mark.parametrize("method", ["quantile", "conformal"])
def test_workers_without_anything_to_share(method):
    detector = EnergyOutlierDetector(TractableDensity("gaussian"), method=method, random_state=0)
    with pytest.warns(UserWarning, match="n_jobs, because"):
        detector.set_params(n_jobs=2).fit(reals())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector.set_params(n_jobs=1).fit(reals())


def test_the_default_estimator_has_the_workers_where_folds_do_not():
    detector = EnergyOutlierDetector(n_jobs=-1, random_state=0)
    with joblib.parallel_config("threading", n_jobs=1):
        assert detector.set_params(n_jobs=2).fit(reals()).estimator_[-1].n_jobs == 2
    detector.set_params(method="cross-conformal", cv=2, n_jobs=1).fit(reals())
    assert [model[-1].n_jobs for model in detector.estimators_] == [None, None]


def test_results_are_in_the_order_of_the_calls():
    with progress_bar(total=5, disable=True) as bar, joblib.parallel_config("threading"):
        assert Workers(2, bar).results((_late, k) for k in range(5)) == list(range(5))


def _late(k):
    time.sleep(0.02 * (5 - k))
    return k


SLEEPING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in background
import numpy as np
from sklearn.base import BaseEstimator
from skebm import EnergyOutlierDetector


class Sleeping(BaseEstimator):
    def fit(self, X, y=None):
        open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
        time.sleep(120)

    def score_samples(self, X):
        return np.zeros(len(X))


detector = EnergyOutlierDetector(Sleeping(), method="cross-conformal", cv=2, n_jobs=2)
before = dict(vars(detector))
try:
    detector.fit(np.zeros((20, 2)))
except KeyboardInterrupt:
    print("as before:", vars(detector) == before)
"""


@full  # starts three processes
@pytest.mark.skipif(os.name != "posix", reason="signals differ")
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["parent", "all"])
def test_ctrl_c_ends_all_workers(send, tmp_path):
    program, started = tmp_path / "program.py", tmp_path / "started"
    program.write_text(SLEEPING)
    started.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(program), str(started)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(list(started.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [int(path.name) for path in started.iterdir()]
    assert len(workers) == 2
    send(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == "as before: True\n"
    deadline = time.monotonic() + 10
    while any(map(_runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_runs, workers))


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
