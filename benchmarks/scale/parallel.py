"""Data-parallel training on two processes against one, each with one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --part parallel [--repeats 7] [--models NAME ...]

Protocol. *Time*: two processes are started once. In turn rank 0 fits alone while rank 1 waits
without computing, and both fit together; what is compared is the time of the epochs, and that of
the whole call of `fit`. Medians with quartiles over the repetitions; a ratio above 1 is the time of
one process over that of two. Processor time of the epochs (of all threads of the busier process,
those that communicate included) is what other programs on the machine disturb less: its ratio is
the speed-up of the epochs where nobody waits. *Loss curves*: objectives without random numbers, in
float64, by one process and by two with the same batches; the largest difference of anything in the
history.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from skorch.callbacks import Callback

from benchmarks._common import shown, spread, write
from benchmarks.scale._ranks import fingerprint, on_ranks
from skebm import RBMEstimator, ScoreMatchingDensity
from skebm.energies import MLP
from skebm.training import single_process

SMALLEST = {"partition": None, "random_state": 0}


def real_rows(n: int) -> np.ndarray:
    """A mixture of five normal distributions in 20 columns."""
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(5, 20))
    rows: np.ndarray = centres[random.integers(5, size=n)] + random.normal(size=(n, 20))
    return rows.astype(np.float32)


def bits(n: int) -> np.ndarray:
    """Bits of 784 columns, 30 % ones."""
    return (np.random.default_rng(0).random((n, 784)) < 0.3).astype(np.float32)


def mlp(batch: int, **params: Any) -> ScoreMatchingDensity:
    """The network of 512 x 512 units."""
    return ScoreMatchingDensity(
        MLP((512, 512)), base="gaussian", batch_size=batch, **(SMALLEST | {"sigma": 0.3} | params)
    )


def rbm(learning: str, batch: int, **params: Any) -> RBMEstimator:
    """784 x 1024 units."""
    return RBMEstimator(
        1024, learning=learning, learning_rate=0.05, batch_size=batch, **(SMALLEST | params)
    )


# Model and rows of a timed fit.
MODELS = {
    "MLP 512x512, batch 256": lambda: (mlp(256, n_iter=1), real_rows(100_000)),
    "MLP 512x512, batch 1024": lambda: (mlp(1024, n_iter=1), real_rows(100_000)),
    "MLP 512x512, batch 4096": lambda: (mlp(4096, n_iter=1), real_rows(100_000)),
    "RBM 784x1024, PCD, batch 100": lambda: (rbm("pcd", 100, n_iter=1), bits(10_000)),
    "RBM 784x1024, PCD, batch 500": lambda: (rbm("pcd", 500, n_iter=1), bits(20_000)),
    "RBM 784x1024, CD, batch 500": lambda: (rbm("cd", 500, n_iter=1), bits(20_000)),
    "RBM 784x1024, PCD, batch 2000": lambda: (rbm("pcd", 2000, n_iter=1), bits(20_000)),
    "RBM 784x1024, PCD, batch 5000": lambda: (rbm("pcd", 5000, n_iter=1), bits(40_000)),
}
# Of which no step needs a random number.
EXACT = {
    "MLP 512x512, exact score matching": lambda: (
        mlp(256, n_iter=3, objective="exact", sigma="auto", dtype="float64"),
        real_rows(1500),
    ),
    "RBM 784x1024, pseudo-likelihood": lambda: (
        rbm("pseudo_likelihood", 50, n_iter=2, dtype="float64"),
        bits(300),
    ),
}


class Clock(Callback):
    """Wall and processor time of the epochs, checks at their ends included."""

    wall = processor = 0.0

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter(), time.process_time()

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        self.wall += time.perf_counter() - self.began[0]
        self.processor += time.process_time() - self.began[1]


def fitted(make: Any) -> tuple[Any, dict[str, float]]:
    """A model, and seconds of its epochs, of the processor in these, and of the whole call."""
    model, X = make()
    clock = Clock()
    model.set_params(net__callbacks=[("clock", clock)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        model.fit(X)
        call = time.perf_counter() - began
    return model, {"epochs": clock.wall, "call": call, "processor": clock.processor}


def timed(rank: int, name: str, repeats: int) -> dict[str, Any]:
    """Seconds of fits alone and together, in turn."""
    found: dict[str, Any] = {"one": [], "two": [], "weights": ""}
    for _ in range(repeats):
        dist.barrier()
        if rank == 0:
            with single_process():
                found["one"].append(fitted(MODELS[name])[1])
        dist.barrier()
        model, seconds = fitted(MODELS[name])
        found["two"].append(seconds)
        found["weights"] = fingerprint(model)
    return found


def speed_up(name: str, repeats: int) -> dict[str, Any]:
    """One row of the table of times."""
    before = os.getloadavg()[0]
    first, second = on_ranks(timed, name, repeats)
    assert first["weights"] == second["weights"], "the processes have different models"
    pairs = zip(first["two"], second["two"], strict=True)
    busier = [max(a["processor"], b["processor"]) for a, b in pairs]
    one = {k: [row[k] for row in first["one"]] for k in ("epochs", "call", "processor")}
    two = {k: [row[k] for row in first["two"]] for k in ("epochs", "call")}
    return {
        "model": name,
        "one process, s": median(one["epochs"]),
        "two, s": median(two["epochs"]),
        "ratio of epochs": spread(one["epochs"], two["epochs"]),
        "best over best": min(one["epochs"]) / min(two["epochs"]),
        "ratio of calls": spread(one["call"], two["call"]),
        "ratio of processor time": spread(one["processor"], busier),
        "load": f"{before:.1f} to {os.getloadavg()[0]:.1f}",
    }


def history(rank: int, name: str) -> list[dict[str, float]]:
    """What a fit recorded, without times."""
    model, _ = fitted(EXACT[name])
    return [{k: v for k, v in row.items() if k not in ("dur", "batches")} for row in model.history_]


def difference(name: str) -> dict[str, Any]:
    """One row of the table of loss curves."""
    torch.set_num_threads(1)
    alone, together = history(0, name), on_ranks(history, name)
    pairs = [
        (row[key], found[key])
        for row, found in zip(alone, together[0], strict=True)
        for key in row
        if isinstance(row[key], float)
    ]
    return {
        "model": name,
        "epochs": len(alone),
        "last loss": alone[-1]["train_loss"],
        "largest relative difference": max(abs(a - b) / max(1.0, abs(a)) for a, b in pairs),
        "same on both": together[0] == together[1],
    }


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.scale --part parallel")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    curves = shown(difference(name) for name in EXACT)
    times = shown(speed_up(name, args.repeats) for name in args.models)
    write(args.json, {"loss curves": curves, "times": times})
