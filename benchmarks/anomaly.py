"""Anomaly detection on tables, next to the usual detectors and published numbers.

    python -m benchmarks.anomaly --data PATH [--suite adbench | macrodata | contaminated]
        [--sets NAME ...] [--seeds N] [--methods NAME ...] [--limit SECONDS] [--quick] [--one-class]
        [--ranks PICTURE] [--json F]

PATH holds `adbench/<set>.npz` (22 sets of ADBench: `X`, and `y` with 1 for an anomaly) and
`published/adbench_oneclass.csv`.

Protocol ("clean"), for each seed: `rng = np.random.default_rng(seed)`; of more than 50,000 rows
50,000 drawn by `rng.choice` without replacement; normal rows shuffled by `rng.permutation`; the
first half of them is for training, the others and every anomaly for the test; `StandardScaler` of
the training rows; AUROC and average precision in percent, anomalies positive. Means over seeds
0, 1, 2; over seed 0 alone for sets with more than 20,000 rows, as published. No anomaly is seen in
training; settings are the same for all sets, or chosen from the training rows alone.

Protocol of `macrodata`: `macrodata/<set>.npz`, 160 tables of the OddBench part of macrOData (2026)
with the split that is stored: training rows all normal. Medians of the training rows for missing
entries and `StandardScaler` of the training rows. The nearest row, `kNN-1`, is what others are
compared with.

Protocol of `contaminated` (unsupervised): the rows of a set of ADBench with its own anomalies, at
most 5,000 drawn at random, are fitted and scored themselves, by `OF_ONE_TABLE`: detectors of PyOD
with their defaults, whose scores are `decision_scores_`, and ours with and without `trim="auto"`.
Columns are in units of their standard deviations. One seed. Differences are to the latter.

The settings of the published columns are not written down; these were found by trying. Those that
give them on most sets to the last digit: IForest with 100 trees and `random_state=seed`, LOF with
20 neighbours, the distance to the 5th neighbour, a Gaussian kernel density with exact sums whose
bandwidth `GridSearchCV(cv=3)` chooses by likelihood among 0.2, 0.5, 0.7, 1, 2. Close, but not the
same: a Gaussian mixture of 1, 5, 10 or 20 components chosen in the same way, full covariances,
`reg_covar=1e-3`, `n_init=2`.

All others: `OneClassSVM` with its defaults on at most 10,000 training rows (the first of the
shuffled ones), as its time grows with their square; ECOD, COPOD, AutoEncoder, VAE and DeepSVDD with
their defaults, where PyOD is installed. `detector` is `EnergyOutlierDetector` with its defaults, a
product of kernels in two metrics and a smooth mixture, decided on after a look at some thirty
combinations on all these sets, seed 0 (`benchmarks.products` has what choosing on half of them
does). `--one-class` is a look at further sets, which were among those looked at: a class of a
classification set in `PATH/tabular` is normal, the others are anomalies, for each class.
`score matching` is
`ScoreMatchingDensity` with its defaults, chosen in the same way; `contrastive divergence` and
`noise contrastive` are those estimators with theirs; `kernels` has noise of kernels on the rows,
and ends when rows that had no kernels gain nothing more; `flow contrastive` is that estimator with
its defaults, ended by held-out rows in the same way. `RBM` is `RBMEstimator` with
its defaults on the standardised rows, whose columns it scales to [0, 1] by their range in training
and clips beyond; `tree` has `base="chow-liu"`; `bins` has ten quantile bins (`even bins`: of equal
width) a column as one-hot codes, 64 hidden units and a penalty of 20 / rows; `chosen` takes units
and penalty from the pseudo-likelihood of a fifth of the training rows. RBMs score by their energy,
which needs no log Z.

Every fit has a forked process, libraries loaded before; `fit, s` and `score, s` are medians over
sets, of wall time, the search for settings included. `growth` is that of ru_maxrss from before
`fit` until after the scoring (the largest over sets of means over seeds): what the process holds
above interpreter, libraries, data set and rows. Free memory that it inherits hides some growth.
What takes more than `--limit` seconds has no result, and the reason is printed. `--ranks` draws
mean ranks by AUROC, over the sets where all methods have a result, and their critical difference.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import multiprocessing
import resource
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from benchmarks._anomaly_methods import METHODS, OF_ONE_TABLE, Method
from benchmarks._common import machine, table, write
from benchmarks._ranks import draw_ranks

MOST_ROWS = 50_000
ONE_SEED = 20_000  # sets with more rows get one seed, as in the published columns
COMPARED = ("IForest", "kNN", "kNN-1", "trimmed")
MOST_OF_ONE_TABLE = 5000
QUICK = ["4_breastw", "18_Ionosphere", "40_vowels"]
# A result without numbers keeps the columns.
NOTHING = dict.fromkeys(("auroc", "ap", "fit_s", "score_s", "growth_mb"), float("nan"))


def load(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and 1 for anomalies: of a set of ADBench, or ``set/class`` of a classification set."""
    name, _, normal = name.partition("/")
    if not normal:
        stored = np.load(data / "adbench" / f"{name}.npz")
        return stored["X"], stored["y"]
    stored = np.load(data / "tabular" / f"{name}.npz")
    return stored["X"], (stored["y"].astype(str) != normal).astype(int)


def one_class(data: Path) -> list[str]:
    """Every class of every classification set."""
    found = []
    for file in sorted((data / "tabular").glob("*.npz")):
        found += [f"{file.stem}/{label}" for label in np.unique(np.load(file)["y"])]
    return found


def split(X: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows, test rows and labels of the test rows."""
    rng = np.random.default_rng(seed)
    if len(X) > MOST_ROWS:
        kept = rng.choice(len(X), MOST_ROWS, replace=False)
        X, y = X[kept], y[kept]
    X = X.astype(np.float64)
    normal = X[y == 0]
    normal = normal[rng.permutation(len(normal))]
    half = len(normal) // 2
    scaler = StandardScaler().fit(normal[:half])
    test = np.concatenate([normal[half:], X[y == 1]])
    labels = np.repeat([0, 1], [len(normal) - half, len(test) - len(normal) + half])
    return scaler.transform(normal[:half]), scaler.transform(test), labels


def split_of_set(data: Path, name: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `split`, of a set by name; ``macrodata/<set>`` is split already.

    All rows of ``contaminated/<set>`` are for training and for the test.
    """
    if name.startswith("contaminated/"):
        X, y = load(data, name.partition("/")[2])
        some = np.random.default_rng(seed).permutation(len(X))[:MOST_OF_ONE_TABLE]
        X = StandardScaler().fit_transform(X[some].astype(np.float64))
        return X, X, y[some].astype(int)
    if not name.startswith("macrodata/"):
        return split(*load(data, name), seed)
    stored = np.load(data / f"{name}.npz", allow_pickle=True)
    train, test = (stored[kind].astype(np.float64) for kind in ("train", "test"))
    middle = np.nanmedian(train, axis=0)
    train, test = (np.where(np.isnan(rows), middle, rows) for rows in (train, test))
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test), stored["test_labels"].astype(int)


def n_seeds(data: Path, name: str, most: int) -> int:
    """How many splits of a set there are."""
    if name.startswith(("macrodata/", "contaminated/")):
        return 1
    return 1 if len(load(data, name)[0]) > ONE_SEED else most


def part(
    data: Path, name: str, most: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `split` with seed 0, of at most so many training rows, normal test rows and anomalies."""
    train, test, labels = split(*load(data, name), 0)
    n_train, n_normal, n_anomalies = most
    anomalies = np.random.default_rng(0).permutation(np.flatnonzero(labels))[:n_anomalies]
    kept = np.concatenate([np.flatnonzero(labels == 0)[:n_normal], anomalies])
    return train[:n_train], test[kept], labels[kept]


def peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(
    sender: Connection,
    name: str,
    train: np.ndarray,
    test: np.ndarray,
    labels: np.ndarray,
    seed: int,
) -> None:
    """Fit and score in a process of its own."""
    method = METHODS[name]
    model = method.make(train, seed)
    before = peak()
    started = time.perf_counter()
    model.fit(train)
    fitted = time.perf_counter()
    scores = method.score(model, test)
    scored = time.perf_counter()
    sender.send(
        {
            "auroc": 100 * roc_auc_score(labels, scores),
            "ap": 100 * average_precision_score(labels, scores),
            "fit_s": fitted - started,
            "score_s": scored - fitted,
            "growth_mb": (peak() - before) / 1e6,
            "reason": "",
        }
    )


def missing(method: Method) -> bool:
    """Whether an optional package is not there."""
    return method.needs is not None and importlib.util.find_spec(method.needs) is None


def run(name: str, data: tuple, seed: int, limit: float) -> dict[str, object]:
    """The result of a detector, or why there is none."""
    method = METHODS[name]
    if missing(method):
        return NOTHING | {"reason": f"{method.needs} is not installed"}
    train, test, labels = data
    # The rows are in random order already, so the first are a sample.
    train = train[: method.most_rows]
    # A forked child shares the rows and the imports, and its peak starts at what it has.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=measure, args=(sender, name, train, test, labels, seed))
    child.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            return NOTHING | {"reason": f"over {limit:g} s"}
        return receiver.recv()
    except EOFError:
        child.join()
        return NOTHING | {"reason": f"failed, exit code {child.exitcode}"}
    finally:
        child.kill()
        child.join()


def warm_up(methods: list[str]) -> None:
    """Load what is loaded on first use, so that no fit pays for it."""
    torch.set_num_threads(1)
    X = np.random.default_rng(0).standard_normal((60, 3))
    for name in methods:
        method = METHODS[name]
        if not missing(method):
            method.score(method.make(X, 0).fit(X), X)


def collect(args: argparse.Namespace) -> list[dict[str, object]]:
    """Results of all sets, seeds and methods."""
    results = []
    for name in args.sets:
        for seed in range(n_seeds(args.data, name, args.seeds)):
            data = split_of_set(args.data, name, seed)
            for method in args.methods:
                result = run(method, data, seed, args.limit)
                results.append({"set": name, "seed": seed, "method": method} | result)
                shown = f"{result['auroc']:.2f} {result['ap']:.2f} {result['fit_s']:.1f} s"
                print(f"{name} {seed} {method}: {shown} {result['reason']}", flush=True)
    return results


def per_set(results: list[dict], column: str) -> dict[str, dict[str, float]]:
    """Means over seeds: method to set to value."""
    values: dict[str, dict[str, list]] = {}
    for row in results:
        values.setdefault(row["method"], {}).setdefault(row["set"], []).append(row[column])
    return {
        method: {name: float(np.mean(found)) for name, found in sets.items()}
        for method, sets in values.items()
    }


def by_set(results: list[dict], column: str) -> str:
    """A line for each set, a column for each method."""
    values = per_set(results, column)
    names = dict.fromkeys(row["set"] for row in results)
    rows = [
        {"set": name} | {method: f"{found[name]:.1f}" for method, found in values.items()}
        for name in names
    ]
    return table(rows)


def difference(ours: dict[str, float], theirs: dict[str, float]) -> str:
    """Mean over sets with its standard error."""
    gaps = np.array([ours[name] - theirs[name] for name in ours])
    gaps = gaps[np.isfinite(gaps)]
    if len(gaps) < 2:
        return ""
    return f"{gaps.mean():+.1f} ± {gaps.std(ddof=1) / len(gaps) ** 0.5:.1f}"


def mean_ranks(results: list[dict]) -> tuple[dict[str, float], int]:
    """Ranks by AUROC of the methods that ran at all, over sets where all of these have a result."""
    auroc = {
        method: list(sets.values())
        for method, sets in per_set(results, "auroc").items()
        if np.isfinite(list(sets.values())).any()
    }
    grid = np.array(list(auroc.values()))
    complete = np.isfinite(grid).all(axis=0)
    ranks = rankdata(-grid[:, complete], axis=0).mean(axis=1)
    return dict(zip(auroc, ranks.tolist(), strict=True)), int(complete.sum())


def summary(results: list[dict]) -> str:
    """Means over sets, ranks, differences to two baselines, costs."""
    auroc, ap = per_set(results, "auroc"), per_set(results, "ap")
    fits, scores, growth = (per_set(results, key) for key in ("fit_s", "score_s", "growth_mb"))
    rows = []
    for method, rank in mean_ranks(results)[0].items():
        values = list(auroc[method].values())
        row = {
            "method": method,
            "sets": int(np.isfinite(values).sum()),
            "AUROC": f"{np.nanmean(values):.1f}",
            "AP": f"{np.nanmean(list(ap[method].values())):.1f}",
            "mean rank": f"{rank:.1f}",
        }
        for other in COMPARED:
            same = other == method or other not in auroc
            row[f"AUROC - {other}"] = "" if same else difference(auroc[method], auroc[other])
        if "trimmed" in auroc:
            same = method == "trimmed"
            row["AP - trimmed"] = "" if same else difference(ap[method], ap["trimmed"])
        if "kNN-1" in auroc:
            gaps = [value - auroc["kNN-1"][name] for name, value in auroc[method].items()]
            row["AP - kNN-1"] = difference(ap[method], ap["kNN-1"])
            row["worst - kNN-1"] = f"{np.nanmin(gaps):.1f}"
            row["5 below kNN-1"] = int((np.array(gaps) < -5).sum())
        row["fit, s"] = float(np.nanmedian(list(fits[method].values())))
        row["score, s"] = float(np.nanmedian(list(scores[method].values())))
        row["growth, MB"] = f"{np.nanmax(list(growth[method].values())):.0f}"
        rows.append(row)
    return table(rows)


def to_published(data: Path, results: list[dict]) -> str:
    """Differences of the baselines to the published columns, over sets."""
    with open(data / "published" / "adbench_oneclass.csv", newline="") as file:
        published = {row["dataset"]: row for row in csv.DictReader(file)}
    rows = []
    for method in dict.fromkeys(row["method"] for row in results):
        column = METHODS[method].published
        if column is None:
            continue
        row: dict[str, object] = {"method": method}
        for key, ending in (("auroc", "auroc"), ("ap", "aupr")):
            gaps = {
                name: value - float(published[name][f"clean_{column}_{ending}"])
                for name, value in per_set(results, key)[method].items()
                if np.isfinite(value) and name in published
            }
            if not gaps:
                continue
            worst = max(gaps, key=lambda name: abs(gaps[name]))
            row["sets"] = len(gaps)
            row[f"{key}, mean abs"] = f"{np.mean(np.abs(list(gaps.values()))):.2f}"
            row[f"{key}, largest"] = f"{gaps[worst]:+.2f} ({worst})"
        if "sets" in row:
            rows.append(row)
    return table(rows) if rows else "no baselines"


def plain(row: dict[str, object]) -> dict[str, object]:
    """A result for JSON, which knows no nan."""
    return {key: None if value != value else value for key, value in row.items()}


def show(data: Path, results: list[dict]) -> None:
    """All tables."""
    print(f"\n{machine()}")
    for title, column in (("AUROC", "auroc"), ("Average precision", "ap")):
        print(f"\n{title}, percent\n\n{by_set(results, column)}")
    print(f"\nOver sets\n\n{summary(results)}")
    print(f"\nHere minus published, points\n\n{to_published(data, results)}\n")
    for row in results:
        if row["reason"]:
            print(f"no result: {row['set']}, seed {row['seed']}, {row['method']}: {row['reason']}")


def parse() -> argparse.Namespace:
    """Arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--suite", choices=("adbench", "macrodata", "contaminated"), default="adbench"
    )
    parser.add_argument("--sets", nargs="+", help="all, smallest files first, by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--limit", type=float, default=600, help="seconds for a fit and its scores")
    parser.add_argument("--quick", action="store_true", help="three small sets, one seed")
    parser.add_argument("--one-class", action="store_true", help="classes of `tabular` as sets")
    parser.add_argument("--ranks", type=Path, metavar="PICTURE")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.quick:
        args.sets, args.seeds = args.sets or QUICK, 1
    if args.one_class:
        args.sets = one_class(args.data)
    if args.methods is None:
        of_table = args.suite == "contaminated"
        args.methods = [name for name in METHODS if (name in OF_ONE_TABLE) == of_table]
    if args.sets is None:
        folder = args.data / ("adbench" if args.suite == "contaminated" else args.suite)
        files = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_size)
        prefix = "" if args.suite == "adbench" else f"{args.suite}/"
        args.sets = [f"{prefix}{file.stem}" for file in files]
    return args


def main() -> None:
    """Print the tables."""
    args = parse()
    # Clipped columns, merged bins, mixtures that have not converged: they would fill the screen.
    warnings.simplefilter("ignore")
    warm_up(args.methods)
    results = collect(args)
    show(args.data, results)
    if args.ranks:
        draw_ranks(*mean_ranks(results), args.ranks)
    write(args.json, {"results": [plain(row) for row in results]})


if __name__ == "__main__":
    main()
