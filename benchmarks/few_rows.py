"""Passes over tables of a few dozen rows: what the network gains over its base.

    OMP_NUM_THREADS=1 python -m benchmarks.few_rows --data PATH [--sets 29_Pima ...] [--json F]

PATH holds `adbench/<set>.npz`. Protocol: of the normal rows, shuffled (seed 0), the first 20, 50 or
100 are fitted and 500 others scored; columns that are constant in the former are left out. Each
estimator with its defaults but for `n_iter`; the gain is the mean of `score_samples` less that of
the same estimator without training (a learning rate of 1e-12), with the standard error over rows.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from benchmarks._common import machine, seconds, table, write
from skebm import ContrastiveDivergenceDensity, NCEDensity, ScoreMatchingDensity

SETS = ("2_annthyroid", "18_Ionosphere", "29_Pima", "35_SpamBase", "40_vowels", "43_WDBC")
ESTIMATORS = (ContrastiveDivergenceDensity, ScoreMatchingDensity, NCEDensity)
SIZES, PASSES_PER_ROW, MOST_PASSES = (20, 50, 100), (5, 10), 1000


def rows(data: Path, name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit and to score."""
    found = np.load(data / "adbench" / f"{name}.npz")
    X = found["X"][found["y"] == 0].astype(float)
    X = X[np.random.default_rng(0).permutation(len(X))]
    train, test = X[:n], X[n : n + 500]
    varies = train.std(0) > 0
    return train[:, varies], test[:, varies]


def measure(data: Path, name: str, n: int, estimator: type) -> dict[str, object]:
    """One row of the table: gains by number of passes."""
    train, test = rows(data, name, n)
    base = estimator(n_iter=1, learning_rate=1e-12, random_state=0).fit(train).score_samples(test)
    row: dict[str, object] = {
        "set": f"{name.split('_')[1]}, {train.shape[1]} columns",
        "rows": n,
        "estimator": estimator.__name__,
    }
    measured: dict[int, tuple[str, float]] = {}
    labels = {f"{k} a row": k * n for k in PASSES_PER_ROW} | {"1,000": MOST_PASSES}
    for label, passes in labels.items():
        if passes not in measured:
            model = estimator(n_iter=passes, random_state=0)
            took = seconds(lambda model=model: model.fit(train))
            gain = model.score_samples(test) - base
            error = gain.std() / len(gain) ** 0.5
            measured[passes] = f"{gain.mean():+.2f} ({error:.2f})", took
        row[label], row[f"{label}, s"] = measured[passes]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for name in args.sets:
        for n in SIZES:
            for estimator in ESTIMATORS:
                found.append(measure(args.data, name, n, estimator))
                print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), "few rows": found})


if __name__ == "__main__":
    main()
