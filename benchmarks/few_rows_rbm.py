"""RBMs of 20 to 190 rows: epochs chosen by halves of them, against 500 epochs and none.

    OMP_NUM_THREADS=1 python -m benchmarks.few_rows_rbm [--data PATH] [--seeds 3] [--json F]

Protocol: `RBMEstimator(64, random_state=seed)` fitted to a random draw of rows (by the same seed)
and scored on 500 others, by the end of log Z that hurts. PATH holds `debd/<set>.npz`, of which the
training part of mushrooms and plants is used; the other tables are those of scikit-learn, and noise
of 40 columns. "gain" is the log-likelihood per row above the base (`n_iter=0`) in nats, a mean over
seeds with its standard error; "500" has `n_iter=500`, which takes no part in the choice.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from benchmarks._common import table, write
from benchmarks.density import load
from skebm import RBMEstimator

N_ROWS = (20, 60, 120, 190)


def tables(path: str | None) -> dict[str, np.ndarray]:
    """All rows of each table."""
    random = np.random.default_rng(0)
    found = {
        "wine": load_wine().data,
        "breast cancer": load_breast_cancer().data,
        "digits": (load_digits().data > 7).astype(float),
        "noise": random.standard_normal((700, 40)),
        "noise, bits": (random.random((700, 40)) < 0.3).astype(float),
    }
    if path is not None:
        found |= {name: load(Path(path), name)[0].astype(float) for name in ("mushrooms", "plants")}
    return found


def fitted(train: np.ndarray, test: np.ndarray, seed: int, **params: int) -> tuple[float, ...]:
    """Mean log-likelihood of test rows, seconds of `fit`, and epochs."""
    start = time.perf_counter()
    model = RBMEstimator(64, random_state=seed, **params).fit(train)
    seconds = time.perf_counter() - start
    return model.score(test), seconds, model.n_iter_


def compared(name: str, X: np.ndarray, n: int, n_seeds: int) -> dict[str, object]:
    """A row of the table."""
    chosen, always = [], []
    for seed in range(n_seeds):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = X[order[:n]], X[order[n : n + 500]]
        base, _, _ = fitted(train, test, seed, n_iter=0)
        for found, params in ((chosen, {}), (always, {"n_iter": 500})):
            score, seconds, epochs = fitted(train, test, seed, **params)
            found.append((score - base, seconds, epochs))
    shown: dict[str, object] = {"rows": n, "table": name}
    for label, found in (("halves", chosen), ("500", always)):
        gain, seconds, _ = np.mean(found, axis=0)
        error = np.std([row[0] for row in found], ddof=1) / np.sqrt(n_seeds)
        shown |= {f"gain, {label}": f"{gain:+.2f} ({error:.2f})", f"{label}, s": f"{seconds:.1f}"}
    return shown | {"epochs": ", ".join(str(row[2]) for row in chosen)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, all_tables = [], tables(args.data)
    for n in N_ROWS:
        for name, X in all_tables.items():
            if len(X) >= n + 60:
                rows.append(compared(name, X, n, args.seeds))
                print(rows[-1], flush=True)
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
