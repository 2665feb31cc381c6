"""Whole fits with the arguments of a `BernoulliRBM` program, each in a process of its own.

    OMP_NUM_THREADS=1 python -m benchmarks.whole_fit [--repeats 3] [--sizes 64x64x10 ...] [--json F]

Protocol: random binary rows, 30 % ones, the same for all; `n_components`, `batch_size`,
`learning_rate=0.1`, `n_iter` and `random_state=0` are given, everything else is the default of
either. One process fits both, one after the other (which is first alternates), and nothing before
that; imports are not counted. scikit-learn computes in the precision of its rows, skebm in float32.
Medians over processes; a ratio above 1 is the time of scikit-learn over that of skebm, once of wall
clock and once of processor time, which other processes disturb less (one thread only).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from statistics import median

import numpy as np
from sklearn.neural_network import BernoulliRBM

from benchmarks._common import machine, seconds, table, write
from skebm import RBMEstimator

# d x H x batch: rows.
SIZES = {
    "16x60x200": 2000,
    "64x64x10": 2000,
    "64x64x100": 10_000,
    "64x64x500": 10_000,
    "784x256x10": 2000,
    "784x256x100": 5000,
    "784x256x500": 5000,
    "784x1024x10": 1000,
    "784x1024x100": 5000,
    "784x1024x500": 5000,
}
PASSES = (3, 30)
ESTIMATORS = {"skebm": RBMEstimator, "scikit-learn": BernoulliRBM}


def one_process(size: str, n_iter: int, dtype: str, first: int) -> None:
    """Fit both, and print the seconds of each."""
    warnings.simplefilter("ignore")
    d, n_hidden, batch = map(int, size.split("x"))
    X = (np.random.default_rng(0).random((SIZES[size], d)) < 0.3).astype(dtype)
    given = {"batch_size": batch, "learning_rate": 0.1, "n_iter": n_iter, "random_state": 0}
    found = {}
    for name in list(ESTIMATORS)[:: 1 if first else -1]:
        model = ESTIMATORS[name](n_hidden, **given)
        began = time.process_time()
        wall = seconds(lambda model=model: model.fit(X))
        found[name] = wall, time.process_time() - began
    print(json.dumps(found))


def measure(size: str, n_iter: int, dtype: str, repeats: int) -> dict[str, object]:
    """One row of the table."""
    runs = []
    for k in range(repeats):
        call = [sys.executable, "-m", "benchmarks.whole_fit", "--one", size, str(n_iter), dtype]
        done = subprocess.run([*call, str(k % 2)], check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    return {
        "size x batch": size,
        "rows": SIZES[size],
        "passes": n_iter,
        "input": dtype,
        **{f"{name}, s": median(run[name][0] for run in runs) for name in ESTIMATORS},
        **{
            label: median(run["scikit-learn"][k] / run["skebm"][k] for run in runs)
            for k, label in enumerate(("ratio", "ratio of processor time"))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--passes", nargs="+", type=int, default=list(PASSES))
    parser.add_argument("--json", metavar="F")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        size, n_iter, dtype, first = args.one
        one_process(size, int(n_iter), dtype, int(first))
        return
    found = []
    for size in args.sizes:
        for n_iter in args.passes:
            for dtype in ("float64", "float32"):
                found.append(measure(size, n_iter, dtype, args.repeats))
                print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), "whole fits": found})


if __name__ == "__main__":
    main()
