"""Columns: default fits of 10^4 rows and their scores, with 10 to 5,000 columns.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --part columns [--columns 10 100] [--json F]
        [--models ScoreMatchingDensity RBMEstimator] [--rows 10000]

Rows of eight factors with normal loadings and unit noise, float32, in memory; for the RBM their
signs. Each fit with default settings and ``score_samples`` of all its rows is a process of its own
with one thread. `fit` and `score` are seconds of the clock, `cpu` those of the CPU, of both;
`anonymous` the most memory in MB above that of the process with the table in it.
The table ends with the power of the columns that CPU time and memory follow, of all tables and of
the largest two.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._common import machine, table, write
from benchmarks.scale._measured import MODELS, exponent, run

N_FACTORS = 8


def rows_of(n: int, d: int) -> np.ndarray:
    """Rows of a normal distribution with a covariance of low rank plus one."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((n, N_FACTORS), dtype=np.float32)
    loadings = rng.standard_normal((N_FACTORS, d), dtype=np.float32)
    return factors @ loadings + rng.standard_normal((n, d), dtype=np.float32)


def results(models: list[str], columns: list[int], n: int) -> list[dict[str, object]]:
    """A row for each number of columns and model."""
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        real, bits = Path(folder) / "real.npy", Path(folder) / "bits.npy"
        for d in columns:
            x = rows_of(n, d)
            np.save(real, x)
            np.save(bits, (x > 0).astype(np.float32))
            for model in models:
                path = bits if model == "RBMEstimator" else real
                measured = run(model, {"random_state": 0}, path, mode="memory")
                found.append({"model": model, "columns": d} | measured)
                print(found[-1], flush=True)
    return found


def powers(rows: list[dict[str, object]]) -> dict[str, object]:
    """The powers of the columns that CPU time and memory of one model follow."""
    sizes = [row["columns"] for row in rows]
    found: dict[str, object] = {"model": rows[0]["model"]}
    for name in ("cpu", "anonymous"):
        values = [max(1.0, row[name]) for row in rows]
        found[name] = exponent(sizes, values)
        found[f"{name}, largest"] = exponent(sizes[-2:], values[-2:])
    return found


def main(argv: list[str] | None = None) -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--columns", nargs="+", type=int, default=[10, 100, 1000, 5000])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    print(machine())
    found = results(args.models, args.columns, args.rows)
    print("\n" + table(found))
    growth = [powers([row for row in found if row["model"] == m]) for m in args.models]
    print("\n" + table(growth), flush=True)
    write(args.json, {"columns": found, "powers": growth})


if __name__ == "__main__":
    main()
