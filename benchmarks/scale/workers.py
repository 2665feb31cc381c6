"""Searches and scoring that workers share, and the sizes of the models that are sent to them.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --part workers [--what search scoring sizes]
        [--rounds 3] [--epochs 60] [--rows 10000000] [--json F]

Protocol. One thread in each process. All workers are started, and have imported skebm, before any
time is taken. The ways are run in turn, `--rounds` times, each round in another order; ratios are
those within a round, and tables have medians and extremes. `load` is the number of processes that
were ready to run, averaged over the minute before: above the number of processors, ratios of wall
times are those of a busy machine. `CPU` is what the busiest process computed, in seconds: where the
machine is quiet, a way takes about that long, whatever the load is now.

*search*: 24 settings of `RBMEstimator` on the binarised digits of scikit-learn, three folds, 72
fits. *scoring*: an array of Dask, 20 columns in float32, made block by block from its block's seed,
scored by `ScoreMatchingDensity` with a 64 x 64 network, whose log Z is computed before. `growth` is
how far the largest resident memory of a worker rose after a first block. *sizes*: bytes of pickles,
after fits to 1,000 and to 10,000 rows of 20 columns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import random
import resource
import statistics
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import joblib
import numpy as np
import psutil
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from benchmarks._common import seconds, table, write
from skebm import (
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    NCEDensity,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
)
from skebm.energies import MLP

D = 20
GRID = {
    "n_components": [16, 32, 64, 128],
    "learning_rate": [0.01, 0.03, 0.1],
    "batch_size": [20, 50],
}


# ------------------------------------------------------------------------------
# Ways to compute
# ------------------------------------------------------------------------------


@contextlib.contextmanager
def dask_cluster(n_workers: int) -> Iterator[Any]:
    """A client of Dask with workers of one thread each."""
    from distributed import Client, LocalCluster

    shape = {"n_workers": n_workers, "threads_per_worker": 1}
    with LocalCluster(dashboard_address=":0", **shape) as cluster, Client(cluster) as client:
        client.run(_import)
        yield client


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """Ray with two workers, registered with joblib."""
    import ray
    from ray.util.joblib import register_ray

    size = {"num_cpus": 2, "object_store_memory": 200_000_000}
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", **size)
    try:
        register_ray()
        yield
    finally:
        ray.shutdown()


def _import() -> int:
    import skebm

    return len(skebm.__all__)


class Watch(threading.Thread):
    """Processor time of this process and of all that it started, read twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first, self.last = self._read(), {}
        self.over = threading.Event()

    @staticmethod
    def _read() -> dict[int, float]:
        found, here = {}, psutil.Process()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[process.pid] = sum(process.cpu_times()[:2])
        return found

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.last |= self._read()

    def busiest(self) -> float:
        """Seconds of the process that computed most since the start."""
        self.over.set()
        self.join()
        self.last |= self._read()
        return max(spent - self.first.get(pid, 0.0) for pid, spent in self.last.items())


class Run(NamedTuple):
    """Wall and processor seconds of a run, and its result."""

    wall: float
    cpu: float
    load: float
    result: Any


def in_rounds(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Run]]:
    """Run each way once a round, each round in another order."""
    order, runs = random.Random(0), {name: [] for name in ways}
    for _ in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            found: list[Any] = []
            load, watch = os.getloadavg()[0], Watch()
            watch.start()
            wall = seconds(lambda name=name, found=found: found.append(ways[name]()))
            run = Run(wall, watch.busiest(), load, found[0])
            print(f"{name}: {wall:.1f} s, CPU {run.cpu:.1f} s, load {load:.1f}", flush=True)
            runs[name].append(run)
    return runs


def summary(runs: dict[str, list[Run]], base: str, ratio: str) -> list[dict[str, object]]:
    """Median times and, within rounds, ratios to those of the way `base`."""
    rows: list[dict[str, object]] = []
    for name, own in runs.items():
        row: dict[str, object] = {"way": name}
        for kind in ("wall", "cpu"):
            spent, others = ([getattr(run, kind) for run in each] for each in (own, runs[base]))
            ratios = [one / other for one, other in zip(spent, others, strict=True)]
            shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            label = "CPU" if kind == "cpu" else "wall"
            row |= {f"{label}, s": f"{statistics.median(spent):.1f}", f"{label} {ratio}": shown}
        rows.append(row | {"load": f"{statistics.median(run.load for run in own):.0f}"})
    return rows


# ------------------------------------------------------------------------------
# Parts
# ------------------------------------------------------------------------------


def search(rounds: int, n_iter: int) -> list[dict[str, object]]:
    """A grid search by one process, by loky, Dask and Ray with two workers."""
    X = (load_digits().data > 7).astype(np.float64)
    model = RBMEstimator(n_iter=n_iter, learning="pcd", partition=None, random_state=0)

    def found(n_jobs: int | None, backend: str | None = None) -> dict[str, Any]:
        grid = GridSearchCV(model, GRID, cv=3, n_jobs=n_jobs)
        with warnings.catch_warnings(), joblib.parallel_config(backend or "loky"):
            warnings.simplefilter("ignore")
            return grid.fit(X).cv_results_

    ways = {
        "one process": lambda: found(1),
        "loky, two workers": lambda: found(2),
        "Dask, two workers": lambda: found(-1, "dask"),
        "Ray, two workers": lambda: found(-1, "ray"),
    }
    with dask_cluster(2), ray_cluster(), joblib.parallel_config("loky"):
        joblib.Parallel(n_jobs=2)(joblib.delayed(_import)() for _ in range(2))
        runs = in_rounds(ways, rounds)
    rows = summary(runs, "loky, two workers", "over loky")
    expected = _scores(runs["one process"][0].result)
    for row, own in zip(rows, runs.values(), strict=True):
        row["same scores"] = all(np.array_equal(_scores(run.result), expected) for run in own)
    return rows


def _scores(results: dict[str, Any]) -> np.ndarray:
    names = [name for name in results if "score" in name and "time" not in name]
    return np.stack([np.asarray(results[name], dtype=float) for name in sorted(names)])


def block_of(number: int, size: int) -> np.ndarray:
    """Rows of two clusters, from the seed of their block, in float32."""
    rng = np.random.default_rng(number)
    side = rng.choice(np.float32([-1, 1]), (size, 1))
    return side + rng.standard_normal((size, D), dtype=np.float32)


def _made(block_info: Any = None) -> np.ndarray:
    where = block_info[None]
    return block_of(where["chunk-location"][0], where["chunk-shape"][0])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def scoring(rounds: int, n_rows: int, block: int) -> list[dict[str, object]]:
    """A Dask array scored by one worker and by two."""
    import dask.array as da

    model = ScoreMatchingDensity(network=MLP((64, 64)), base="gaussian", n_iter=5, random_state=0)
    model.fit(block_of(10**6, 5000))
    print(f"log Z: {model.log_partition_:.4f}")  # before the model is sent
    sizes = tuple(min(block, n_rows - start) for start in range(0, n_rows, block))
    array = da.map_blocks(_made, chunks=(sizes, (D,)), dtype=np.float32)
    scores = array.map_blocks(model.score_samples, drop_axis=1, dtype=np.float64)
    with dask_cluster(1) as one, dask_cluster(2) as two:
        ways = {
            "one worker": lambda: one.compute(scores, sync=True),
            "two workers": lambda: two.compute(scores, sync=True),
        }
        few = array[:block].map_blocks(model.score_samples, drop_axis=1, dtype=np.float64)
        for client in (one, two):
            client.compute(few, sync=True)
        before = {name: _peaks(client) for name, client in zip(ways, (one, two), strict=True)}
        runs = in_rounds(ways, rounds)
        rows = summary(runs, "two workers", "over two workers")
        some = np.concatenate([model.score_samples(block_of(k, sizes[k])) for k in range(3)])
        expected = runs["one worker"][0].result
        for row, client, own in zip(rows, (one, two), runs.values(), strict=True):
            growth = _peaks(client) - before[str(row["way"])]
            row["peak of a worker, MB"] = f"{_peaks(client):.0f}"
            row["growth, MB"] = f"{growth:.0f}"
            row["same scores"] = np.array_equal(expected[: len(some)], some) and all(
                np.array_equal(run.result, expected) for run in own
            )
    return rows


def _peaks(client: Any) -> float:
    return max(client.run(_peak).values())


def sizes() -> list[dict[str, object]]:
    """Sizes of pickles after fits to few and to many rows."""
    models = {
        "RBMEstimator(64)": RBMEstimator(64, n_iter=1),
        "ScoreMatchingDensity()": ScoreMatchingDensity(n_iter=1),
        "ContrastiveDivergenceDensity()": ContrastiveDivergenceDensity(n_iter=1),
        "NCEDensity()": NCEDensity(n_iter=1),
        "ProductOfDensities()": ProductOfDensities(),
        "EnergyOutlierDetector()": EnergyOutlierDetector(),
        'EnergyOutlierDetector(RBMEstimator(64), method="conformal")': EnergyOutlierDetector(
            RBMEstimator(64, n_iter=1), method="conformal"
        ),
    }
    rows = []
    for name, model in models.items():
        row: dict[str, object] = {"model": name}
        for n in (1000, 10_000):
            X = block_of(0, n)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = model.set_params(random_state=0).fit(X > 0 if "RBM" in name else X)
            row[f"kB, {n:,} rows"] = f"{len(pickle.dumps(fitted)) / 1000:.0f}"
        print(row, flush=True)
        rows.append(row)
    return rows


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = ("search", "scoring", "sizes")
    parser.add_argument("--what", nargs="+", choices=what, default=what)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60, help="of each fit of the search")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--block", type=int, default=250_000)
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], list[dict[str, object]]]] = {
        "search": lambda: search(args.rounds, args.epochs),
        "scoring": lambda: scoring(args.rounds, args.rows, args.block),
        "sizes": sizes,
    }
    found = {name: parts[name]() for name in args.what}
    for name, rows in found.items():
        print(f"\n{name}\n\n{table(rows)}", flush=True)
    write(args.json, {"load": os.getloadavg(), **found})
