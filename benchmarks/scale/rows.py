"""Rows: a fit of one pass and its scores, from memory maps of 10^3 to 10^7 rows.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --part rows [--most 6] [--json F] [--quick]
        [--models ScoreMatchingDensity RBMEstimator] [--folder F]

Tables of 20 float32 columns, normal with correlated neighbours, and for the RBM of 100 bits stored
as bytes, which are signs of such columns; seed 0. Each fit (``n_iter=1``, all else by default, one
thread) and ``score_samples`` of all its rows is a process of its own. `fit` and `score` are seconds
of the clock, `cpu` those of the CPU, of both; `anonymous` the most memory, in MB, without the pages
of the file, above the memory of the process before the fit, polled from RssAnon of
/proc/PID/status; `resident` is VmHWM, which counts pages of the file that the system keeps.
Each table ends with the exponent of the CPU time by rows from 10^5 on, and with the seconds for
each million rows between the two largest tables: up to 20,000 rows a map is read whole, and the
base of a larger one is fitted to a sample of 20,000, so that part of the time does not grow.
`--quick` has batches of 8,192 rows, plain bases and no log Z: what reading, shuffling, checking and
scoring take, with little of the time that training takes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._common import machine, table, write
from benchmarks.scale._measured import MODELS, exponent, run

N_COLUMNS, N_BITS = 20, 100
# Rows that are written at once.
BLOCK = 100_000
# Rows from which on time and memory are judged.
JUDGED = 100_000


def write_table(path: Path, n: int, *, bits: bool) -> None:
    """Write `n` rows to an .npy file, a block at a time."""
    d, kind = (N_BITS, np.uint8) if bits else (N_COLUMNS, np.float32)
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((N_COLUMNS, N_BITS))
    found = np.lib.format.open_memmap(path, "w+", kind, (n, d))
    for start in range(0, n, BLOCK):
        x = rng.standard_normal((min(BLOCK, n - start), N_COLUMNS), dtype=np.float32)
        x[:, 1:] += 0.5 * x[:, :-1]
        found[start : start + BLOCK] = x @ loadings > 0 if bits else x
    found.flush()


# What makes training a small part of the time.
QUICK = {
    "ScoreMatchingDensity": {"base": "gaussian", "sigma": 0.3},
    "NCEDensity": {"noise": "gaussian", "sigma": None},
    "RBMEstimator": {"base": "independent"},
}


def parameters(model: str, *, quick: bool) -> dict[str, object]:
    """One pass over the rows, where a model makes several."""
    found: dict[str, object] = {"random_state": 0}
    if model == "EnergyOutlierDetector":
        return found
    found["n_iter"] = 1
    return found | {"batch_size": 8192, "partition": None} | QUICK[model] if quick else found


def results(
    models: list[str], powers: list[int], folder: str | None, *, quick: bool
) -> list[dict[str, object]]:
    """A row for each model and table."""
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for power in powers:
            paths = {bits: Path(place) / f"{power}_{bits}.npy" for bits in (False, True)}
            for bits in {model == "RBMEstimator" for model in models}:
                write_table(paths[bits], 10**power, bits=bits)
            for model in models:
                measured = run(
                    model, parameters(model, quick=quick), paths[model == "RBMEstimator"]
                )
                found.append({"model": model, "rows": 10**power} | measured)
                print(found[-1], flush=True)
            for path in paths.values():
                path.unlink(missing_ok=True)
    return found


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """How time and memory of one model grow from 10^5 rows on."""
    some = [row for row in rows if row["rows"] >= JUDGED]
    sizes, seconds = [row["rows"] for row in some], [row["cpu"] for row in some]
    memory = [row["anonymous"] for row in some]
    each = np.nan
    if len(some) > 1:
        each = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) * 1e6
    return {
        "model": rows[0]["model"],
        "exponent": exponent(sizes, seconds),
        "seconds per 10^6 more": float(each),
        "largest anonymous": max(memory, default=np.nan),
        "growth": max(memory, default=np.nan) - min(memory, default=np.nan),
    }


def main(argv: list[str] | None = None) -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--least", type=int, default=3, help="smallest power of ten of rows")
    parser.add_argument("--most", type=int, default=7, help="largest power of ten of rows")
    parser.add_argument("--folder", help="for the memory maps (1.8 GB for 10^7 rows)")
    parser.add_argument("--quick", action="store_true", help="large batches and plain bases")
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    print(machine())
    found = results(
        args.models, list(range(args.least, args.most + 1)), args.folder, quick=args.quick
    )
    print("\n" + table(found))
    growth = [summary([row for row in found if row["model"] == m]) for m in args.models]
    print("\n" + table(growth), flush=True)
    write(args.json, {"rows": found, "growth": growth})


if __name__ == "__main__":
    main()
