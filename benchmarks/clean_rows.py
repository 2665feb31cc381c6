"""Held-out likelihood of tables nobody tuned on: neural densities, their base, and two baselines.

    OMP_NUM_THREADS=1 python -m benchmarks.clean_rows --data PATH [--half report] [--json F]

PATH holds `adbench/<set>.npz` (normal rows), `tabular/<set>.npz` and `uci/wine.npz`; two tables are
scikit-learn's. Protocol: distinct rows; columns of 30 or fewer values, or with a fifth of the rows
at one value, are left out; of the others, those with fewer distinct values than half the rows are
dequantised uniformly; tables of 4 to 60 columns and 60 rows or more. At most 4,000 rows are fitted
(four fifths of smaller tables) and 4,000 others scored, standardised by the former. `--half` is a
random half of the tables: settings were chosen on `choose`, `report` was not looked at for that.

`mixture, BIC`: scikit-learn's, 1 to 40 components of 5 rows a column, full, tied or diagonal.
`kernels, CV`: scikit-learn's, bandwidth by five folds. `base`: ours without training (`n_iter=0`).
`--tractable`: `TractableDensity` alone, one split: gains over `mixture, BIC`, and after the stroke
the worst of the test rows, the least difference to one normal distribution with the moments of the
fitted rows. Estimators with their defaults, by `score`, which takes the largest credible log Z.
Nats a row, mean over splits; gains over the base with the standard error over rows; seconds of a
fit with the first scores.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity

from benchmarks._common import shown as rows_shown
from benchmarks._common import table, write
from skebm import (
    ContrastiveDivergenceDensity,
    NCEDensity,
    ScoreMatchingDensity,
    TractableDensity,
)

MOST_ROWS = 4000
ESTIMATORS = {
    "score matching": ScoreMatchingDensity,
    "NCE": NCEDensity,
    "contrastive divergence": ContrastiveDivergenceDensity,
}
TRACTABLE = {
    "stack": TractableDensity(random_state=0),
    "mixture": TractableDensity("mixture", random_state=0),
    "kernels": TractableDensity("kernel", random_state=0),
    "kernels, 5 neighbours": TractableDensity("kernel", n_neighbors=5, random_state=0),
    "kernels of logs": TractableDensity("kernel", metric="log", random_state=0),
}


def continuous(X: np.ndarray) -> np.ndarray:
    """Distinct rows of the columns of many values, dequantised."""
    X = np.unique(np.asarray(X, float), axis=0)
    rng, kept = np.random.default_rng(0), []
    for column in X.T:
        values, counts = np.unique(column, return_counts=True)
        if len(values) < min(len(X) / 2, 30) or counts.max() > len(X) / 5:
            continue
        if len(values) <= len(X) / 2:
            column = column + np.median(np.diff(values)) * rng.uniform(-0.5, 0.5, len(X))
        kept.append(column)
    return np.stack(kept, 1) if kept else X[:, :0]


def tables(data: Path) -> dict[str, np.ndarray]:
    """Tables by name."""
    found = {}
    for path in sorted((data / "adbench").glob("*.npz")):
        content = np.load(path)
        found[path.stem.partition("_")[2]] = content["X"][content["y"] == 0]
    for path in sorted((data / "tabular").glob("*.npz")):
        found[path.stem] = np.load(path, allow_pickle=True)["X"]
    for name in ("redwine", "whitewine"):
        found[name] = np.load(data / "uci" / "wine.npz")[name][:, :-1]
    found["cancer"], found["diabetes"] = load_breast_cancer().data, load_diabetes().data
    found = {name: continuous(X) for name, X in found.items()}
    return {name: X for name, X in found.items() if 4 <= X.shape[1] <= 60 and len(X) >= 60}


def half(names: list[str], which: str) -> list[str]:
    """Half of the tables at random, or all."""
    order = np.random.default_rng(1).permutation(sorted(names)).tolist()
    middle = len(order) // 2
    return {"choose": order[:middle], "report": order[middle:], "all": order}[which]


def split(X: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Train and test rows, standardised by the former."""
    X = X[np.random.default_rng(seed).permutation(len(X))]
    n = MOST_ROWS if len(X) >= 2 * MOST_ROWS else int(0.8 * len(X[: 2 * MOST_ROWS]))
    train, test = X[:n], X[n : n + MOST_ROWS]
    mean, scale = train.mean(0), train.std(0)
    return (train - mean) / scale, (test - mean) / scale


def mixture(train: np.ndarray) -> Any:
    """scikit-learn's mixture of least BIC."""
    # Smaller components are singular, and then BIC prefers them.
    most = max(1.0, len(train) / train.shape[1] / 5)
    sizes = [k for k in (1, 2, 3, 5, 8, 12, 20, 30, 40) if k <= most]
    models = [
        GaussianMixture(k, covariance_type=kind, random_state=0).fit(train)
        for kind in ("full", "tied", "diag")
        for k in sizes
    ]
    return min(models, key=lambda model: model.bic(train))


def kernels(train: np.ndarray) -> Any:
    """scikit-learn's kernel density of the bandwidth that five folds prefer."""
    grid = {"bandwidth": np.geomspace(0.02, 2, 20)}
    folds = KFold(5, shuffle=True, random_state=0)
    return GridSearchCV(KernelDensity(leaf_size=len(train)), grid, cv=folds).fit(train)


def log_likelihoods(model: Any, test: np.ndarray) -> np.ndarray:
    """Of each row, by the end of log Z that hurts."""
    found: np.ndarray = getattr(model, "best_estimator_", model).score_samples(test)
    if isinstance(model, tuple(ESTIMATORS.values())):
        found = found + (model.score(test) - found.mean())
    return found


def measure(name: str, X: np.ndarray, seeds: int, estimators: list[str]) -> dict[str, Any]:
    """Log-likelihoods of the test rows of all splits, (n,), and seconds, by method."""
    fits: dict[str, Callable[[np.ndarray], Any]] = {"mixture, BIC": mixture, "kernels, CV": kernels}
    fits["base"] = lambda train: ScoreMatchingDensity(n_iter=0, random_state=0).fit(train)
    for label in estimators:
        fits[label] = lambda train, cls=ESTIMATORS[label]: cls(random_state=0).fit(train)
    rows: dict[str, list[np.ndarray]] = {label: [] for label in fits}
    took: dict[str, list[float]] = {label: [] for label in fits}
    for seed in range(seeds):
        train, test = split(X, seed)
        for label, fit in fits.items():
            started = time.perf_counter()
            rows[label].append(log_likelihoods(fit(train), test))
            took[label].append(time.perf_counter() - started)
    return {
        "set": name,
        "train": len(train),
        "columns": X.shape[1],
        "rows": {label: np.concatenate(found) for label, found in rows.items()},
        "seconds": {label: float(np.mean(found)) for label, found in took.items()},
    }


def shown(found: dict[str, Any], estimators: list[str]) -> dict[str, object]:
    """One row of the table."""
    rows, base = found["rows"], found["rows"]["base"]
    row: dict[str, object] = {"set": f"{found['set']}, {found['train']} x {found['columns']}"}
    for label in ("mixture, BIC", "kernels, CV", "base"):
        row[label] = f"{rows[label].mean():.2f}"
    for label in ("mixture, BIC", "kernels, CV"):
        gap = base - rows[label]
        row[f"base above {label.split(',')[0]}"] = error_of(gap)
    for label in estimators:
        row[label] = error_of(rows[label] - base)
    row["seconds"] = " / ".join(
        f"{found['seconds'][label]:.1f}" for label in ("mixture, BIC", "base", *estimators)
    )
    return row


def tractable(name: str, X: np.ndarray) -> dict[str, object]:
    """Gains over the mixture by BIC, and worst rows, of the densities without a network."""
    train, test = split(X, 0)
    peer = mixture(train).score_samples(test)
    normal = GaussianMixture(reg_covar=1e-9).fit(train).score_samples(test)
    row: dict[str, object] = {"set": f"{name}, {len(train)} x {X.shape[1]}"}
    row["mixture, BIC"] = f"{peer.mean():.2f} / {(peer - normal).min():.1f}"
    for label, model in TRACTABLE.items():
        found = model.fit(train).score_samples(test)
        row[label] = f"{error_of(found - peer)} / {(found - normal).min():.1f}"
    return row


def error_of(values: np.ndarray) -> str:
    """Mean with its standard error."""
    return f"{values.mean():+.2f} ({values.std(ddof=1) / len(values) ** 0.5:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--half", choices=("choose", "report", "all"), default="report")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS), choices=ESTIMATORS)
    parser.add_argument("--tractable", action="store_true")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    all_tables = tables(args.data)
    names = args.sets or half(list(all_tables), args.half)
    if args.tractable:
        write(args.json, {"tractable": rows_shown(tractable(k, all_tables[k]) for k in names)})
        return
    found = []
    for name in names:
        measured = measure(name, all_tables[name], args.seeds, args.estimators)
        found.append(shown(measured, args.estimators))
        print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"clean rows": found})


if __name__ == "__main__":
    main()
