"""Whether conformal detectors keep their promises on real tables, and what they cost.

    python -m benchmarks.conformal --data PATH [--part PART ...] [--quick] [--json F]

Protocol: `PATH/adbench/SET.npz` holds rows `X` and `y`, 1 for anomalies. Repeat i permutes the
normal rows by ``np.random.default_rng(i)``: 1,499 to train with, of which the detector fits its
estimator to 500 and holds 999 out, and 1,000 fresh ones. A detector that is fitted once serves all
levels, as `p_values` of at most alpha is what `predict` says at contamination alpha (checked on the
first repeat). Estimators: StandardScaler and GaussianMixture, StandardScaler and KernelDensity,
MinMaxScaler and a small RBM of a few passes; poor ones, as a guarantee does not need good ones.
`--models default` is the default of the detector.

False alarms: share of the 1,000 fresh rows. `select`: ten batches a repeat of 50 rows, 45 normal
and 5 anomalies, and ten of 50 normal rows; the false discovery rate is the mean over batches of the
share of normal rows among those picked, 0 where none is. *Power* is the share of anomalies found.

What is expected: of split conformal the rate floor(alpha (n + 1)) / (n + 1), which is alpha at
n = 999; of `select` fdr times the share of normal rows, as fdr (n + 1) / 50 is whole (Marandon,
Lei, Mary and Roquain 2024, "Adaptive novelty detection with false discovery rate guarantee"). Both
are equalities without ties of scores and bounds with them, so the test is sharp on both sides. Both
ask only that the normal rows are exchangeable, and a permutation of a finite table makes them so:
repeats are independent draws of a permutation, and standard errors over them are honest for the
mean over all permutations of that table, although repeats share rows. Another table of the same
source would give the same rates of split conformal; powers, and the rates of the other methods,
would differ by more than their standard errors. Cells of a set share permutations: pooled rows
average over cells in each repeat before the standard error is taken.

Contrast: the three methods on the same 499 training rows; "conformal" holds 199 of them out,
"cross-conformal" has 5 folds. Cost: processor time, which other running programs disturb less;
a timing is as many calls as fill 10 ms; contestants take turns in random order; medians of the
ratios to the fitted estimator's own `score_samples` in the same round, with quartiles. *Again* is
that same call a second time: the noise.

Classes: `by_class` of a detector over a classifier that is fitted to nine of ten digits, each left
out in turn, by `statistic="logit_energy"` at contamination 0.05, as measured by p-values of at most
0.05. Scikit-learn's digits: logistic regression of 500 rows, 600 for the calibration, all others
for the rates, repeats are permutations. MNIST: a perceptron of 64 units after ten passes through
5,000 of the training images, 5,000 more for the calibration, the test images for the rates. Rates
are of the fresh images that the classifier gives a class, whatever their digit, means over fits
that know it; *unseen* is the share of images of the digit left out that are called outliers.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from benchmarks._common import machine, spread, table, write
from skebm import EnergyOutlierDetector, RBMEstimator
from skebm._validation import set_seeds

# Ten physical columns; ints and the largest table; pixels; binary columns; many equal rows.
SETS = ("22_magic.gamma", "10_cover", "24_mnist", "8_celeba", "23_mammography")
PARTS = ("rates", "contrast", "cost", "classes")
CONFORMAL = ("conformal", "cross-conformal")
ALPHAS = (0.01, 0.05, 0.1)
FDRS = (0.05, 0.1, 0.2)
N_TRAIN, N_CALIBRATION, N_FRESH, N_ANOMALIES = 1499, 999, 1000, 200
N_SMALL, N_SMALL_CALIBRATION = 499, 199
N_BATCHES, N_NORMAL, N_MIXED = 10, 45, 5
N_BATCH = N_NORMAL + N_MIXED
LEAST_SECONDS = 0.01
CLASS_LEVEL, N_DIGITS = 0.05, 10
SLACK = 1 + 1e-9  # k / (n + 1) <= alpha is meant in exact arithmetic

MODELS = {
    "GaussianMixture": make_pipeline(StandardScaler(), GaussianMixture(3, reg_covar=1e-3)),
    "KernelDensity": make_pipeline(StandardScaler(), KernelDensity(bandwidth=0.5)),
    "RBM": make_pipeline(MinMaxScaler(clip=True), RBMEstimator(16, n_iter=5, device="cpu")),
    "default": None,
}
POOR = ("GaussianMixture", "KernelDensity", "RBM")

# What was measured of a cell: numbers of each repeat by their names.
Cell = dict[str, list[float]]


class Rows(NamedTuple):
    """What one repeat sees of a table."""

    train: np.ndarray
    fresh: np.ndarray
    anomalies: np.ndarray

    def batches(self, n_anomalies: int) -> list[np.ndarray]:
        """Fresh rows in batches, the last `n_anomalies` of each anomalies."""
        # Batches of normal rows come from those that mixed ones leave over.
        start, size = (0, N_NORMAL) if n_anomalies else (N_BATCHES * N_NORMAL, N_BATCH)
        normal = start + np.arange(N_BATCHES * size).reshape(N_BATCHES, -1)
        other = np.arange(N_BATCHES * n_anomalies).reshape(N_BATCHES, -1)
        return list(np.concatenate([self.fresh[normal], self.anomalies[other]], axis=1))


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows and anomalies."""
    with np.load(folder / "adbench" / f"{name}.npz") as data:
        X, y = data["X"].astype(float), data["y"].ravel()
    return X[y == 0], X[y == 1]


def draw(normal: np.ndarray, anomalies: np.ndarray, seed: int) -> Rows:
    """Rows of a repeat, no row twice."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(normal))
    fresh = order[N_TRAIN : N_TRAIN + N_FRESH]
    other = rng.permutation(len(anomalies))[:N_ANOMALIES]
    return Rows(normal[order[:N_TRAIN]], normal[fresh], anomalies[other])


def detector(name: str, method: str, n: int, n_held: int, seed: int, level: Any = "auto") -> Any:
    """A detector of `n` rows to come, `n_held` of them for the calibration."""
    settings = {"method": method, "contamination": level, "random_state": seed}
    return EnergyOutlierDetector(MODELS[name], calibration_fraction=n_held / n, **settings)


def discoveries(model: Any, batches: list[np.ndarray], n_anomalies: int, fdr: float) -> np.ndarray:
    """Means over batches of the false discovery proportion and of the share found."""
    picked = np.array([model.select(batch, fdr=fdr) for batch in batches])
    n_false, n_picked = picked[:, : N_BATCH - n_anomalies].sum(axis=1), picked.sum(axis=1)
    power = (n_picked - n_false) / max(n_anomalies, 1)
    return np.mean([n_false / np.maximum(n_picked, 1), power], axis=1)


def rates(name: str, rows: Rows, seed: int) -> dict[str, float]:
    """False alarms, false discoveries and power of one split conformal detector."""
    model = detector(name, "conformal", N_TRAIN, N_CALIBRATION, seed).fit(rows.train)
    known, other = model.p_values(rows.fresh), model.p_values(rows.anomalies)
    found: dict[str, float] = {}
    for alpha in ALPHAS:
        found[f"alarm {alpha}"] = np.mean(known <= alpha * SLACK)
        found[f"power {alpha}"] = np.mean(other <= alpha * SLACK)
    for n_anomalies in (N_MIXED, 0):
        batches = rows.batches(n_anomalies)
        for fdr in FDRS:
            false, power = discoveries(model, batches, n_anomalies, fdr)
            found[f"fdr {n_anomalies} {fdr}"], found[f"found {n_anomalies} {fdr}"] = false, power
    return found


def contrast(name: str, rows: Rows, seed: int) -> dict[str, float]:
    """Rates of the three methods on the same few rows."""
    train, sizes = rows.train[:N_SMALL], (N_SMALL, N_SMALL_CALIBRATION, seed)
    models = {method: detector(name, method, *sizes).fit(train) for method in CONFORMAL}
    found: dict[str, float] = {}
    for alpha in ALPHAS[1:]:
        quantile = detector(name, "quantile", *sizes, alpha).fit(train)
        found[f"alarm quantile {alpha}"] = np.mean(quantile.predict(rows.fresh) < 0)
        found[f"power quantile {alpha}"] = np.mean(quantile.predict(rows.anomalies) < 0)
        for method, model in models.items():
            for what, X in (("alarm", rows.fresh), ("power", rows.anomalies)):
                found[f"{what} {method} {alpha}"] = np.mean(model.p_values(X) <= alpha * SLACK)
    for n, fdr in product((N_MIXED, 0), FDRS[1:]):
        cross = models["cross-conformal"]
        found[f"fdr {n} {fdr}"] = discoveries(cross, rows.batches(n), n, fdr)[0]
    return found


def disagreements(name: str, rows: Rows) -> tuple[int, int]:
    """Rows that `predict` and `p_values` tell differently, and all rows looked at."""
    X, n_wrong, n_seen = np.concatenate([rows.fresh, rows.anomalies]), 0, 0
    for method in CONFORMAL:
        train, sizes = rows.train[:N_SMALL], (N_SMALL, N_SMALL_CALIBRATION, 0)
        p = detector(name, method, *sizes).fit(train).p_values(X)
        for alpha in ALPHAS:
            called = detector(name, method, *sizes, alpha).fit(train).predict(X) < 0
            n_wrong += int(np.sum(called != (p <= alpha * SLACK)))
            n_seen += len(X)
    return n_wrong, n_seen


def repeat(
    measure: Callable[[str, Rows, int], dict[str, float]], args: argparse.Namespace, n: int
) -> dict[tuple[str, str], Cell]:
    """Numbers of all repeats by set and estimator."""
    cells: dict[tuple[str, str], Cell] = {}
    for set_name in args.sets:
        normal, anomalies = load(args.data, set_name)
        for name in args.models:
            print(measure.__name__, set_name, name, file=sys.stderr, flush=True)
            cell = cells.setdefault((set_name, name), {})
            for seed in range(n):
                for key, value in measure(name, draw(normal, anomalies, seed), seed).items():
                    cell.setdefault(key, []).append(float(value))
    return cells


def pooled(cells: list[Cell]) -> Cell:
    """Averages over cells in each repeat."""
    return {key: np.mean([cell[key] for cell in cells], axis=0).tolist() for key in cells[0]}


def with_pooled(cells: dict[tuple[str, str], Cell]) -> dict[tuple[str, str], Cell]:
    """Cells, then averages over sets, and over everything."""
    names = dict.fromkeys(name for _, name in cells)
    parts = {name: [cell for (_, other), cell in cells.items() if other == name] for name in names}
    parts["all"] = list(cells.values())
    return cells | {("all", name): pooled(part) for name, part in parts.items()}


def mean_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def lines(cells: dict[tuple[str, str], Cell], columns: dict[str, list[str]]) -> str:
    """A table with a row for each cell and pooled rows; several keys share a column as means."""
    rows = []
    for names, cell in with_pooled(cells).items():
        row: dict[str, object] = dict(zip(("set", "estimator"), names, strict=True))
        for column, keys in columns.items():
            means = " / ".join(f"{np.mean(cell[key]):.2f}" for key in keys)
            mean, error = mean_error(cell[keys[0]])
            row[column] = means if len(keys) > 1 else f"{mean:.4f} ± {error:.4f}"
        rows.append(row)
    return table(rows)


def expected() -> dict[str, float]:
    """What split conformal should give without ties, by key."""
    n = N_CALIBRATION + 1
    found = {f"alarm {alpha}": math.floor(alpha * n * SLACK) / n for alpha in ALPHAS}
    kinds = product((N_MIXED, 0), FDRS)
    return found | {f"fdr {m} {fdr}": fdr * (1 - m / N_BATCH) for m, fdr in kinds}


def verdict(cells: dict[tuple[str, str], Cell]) -> list[dict[str, object]]:
    """Pooled rates against what is expected, and the cell that is worst."""
    rows, limit = [], NormalDist().inv_cdf(1 - 0.05 / len(cells))
    for key, value in expected().items():
        mean, error = mean_error(pooled(list(cells.values()))[key])
        each = [mean_error(cell[key]) for cell in cells.values()]
        z = [(m - value) / e if e else (m > value) * math.inf for m, e in each]
        row: dict[str, object] = {"rate": key, "expected": f"{value:g}"}
        row["measured"] = f"{mean:.5f} ± {error:.5f}"
        row["over expected"] = f"{mean / value:.3f} ± {error / value:.3f}"
        row["z"] = f"{(mean - value) / error if error else math.nan:.1f}"
        row["largest z of a cell"] = f"{max(z):.1f} (5 %: {limit:.1f})"
        rows.append(row | {"cells above 2": f"{sum(v > 2 for v in z)} of {len(z)}"})
    return rows


def spent(run: Callable[[], object], n_calls: int) -> float:
    """Processor time of a call, as the mean of some."""
    started = time.process_time()
    for _ in range(n_calls):
        run()
    return (time.process_time() - started) / n_calls


def cost(args: argparse.Namespace) -> list[dict[str, object]]:
    """Time of the detector's methods over that of the estimator's own scores."""
    normal, _ = load(args.data, args.sets[0])
    frame, rows, rng = pd.DataFrame(normal).add_prefix("x"), [], np.random.default_rng(0)
    for name, X, n in product(POOR, (normal, frame), args.sizes):
        model = detector(name, "conformal", N_TRAIN, N_CALIBRATION, 0).fit(X[:N_TRAIN])
        calls = {key: partial(model.estimator_.score_samples, X[-n:]) for key in ("own", "again")}
        for method in ("score_samples", "decision_function", "predict", "p_values"):
            calls[method] = partial(getattr(model, method), X[-n:])
        n_calls = max(1, round(LEAST_SECONDS / min(spent(calls["own"], 1) for _ in range(5))))
        times: dict[str, list[float]] = {key: [] for key in calls}
        for _ in range(args.pairs):
            for key in rng.permutation(list(calls)):
                times[key].append(spent(calls[key], n_calls))
        own = times.pop("own")
        row: dict[str, object] = {
            "estimator": name,
            "rows": f"{n} ({'array' if X is normal else 'frame'})",
            "own, ms": f"{1e3 * median(own):.3f}",
            "predict adds, ms": f"{1e3 * np.median(np.subtract(times['predict'], own)):.3f}",
        }
        rows.append(row | {key: spread(each, own) for key, each in times.items()})
        print(*rows[-1].values(), sep=" | ", file=sys.stderr, flush=True)
    return rows


class Images(NamedTuple):
    """Images of ten digits, a classifier for nine of them, and how many rows each step takes."""

    X: np.ndarray
    y: np.ndarray
    model: Any
    n_train: int
    n_calibration: int
    # Images of which rates are measured; None are those that are left over.
    fresh: tuple[np.ndarray, np.ndarray] | None


def images(folder: Path, name: str) -> Images:
    """Images with pixels from 0 to 1."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
        return Images(X / 16, y, model, 500, 600, None)
    with np.load(folder / "images" / "mnist.npz") as data:
        X, X_test = (data[key].reshape(-1, 784) / np.float32(255) for key in ("X_train", "X_test"))
        fresh = X_test, data["y_test"]
        model = MLPClassifier(64, max_iter=10)
        return Images(X, data["y_train"], model, 5000, 5000, fresh)


def rates_by_class(data: Images, unseen: int, seed: int) -> dict[str, np.ndarray]:
    """False alarms in each predicted class, in all, and the share of the unseen digit found."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(data.y != unseen))
    train, held, left = np.split(order, np.cumsum([data.n_train, data.n_calibration]))
    X, y = data.fresh or (data.X[left], data.y[left])
    other = data.X[data.y == unseen] if data.fresh is None else X[y == unseen]
    X, model = X[y != unseen], clone(data.model)
    set_seeds(model, np.random.RandomState(seed))
    model.fit(data.X[train], data.y[train])
    given, found = model.predict(X), {}
    for by_class in (False, True):
        judge = EnergyOutlierDetector(
            model, statistic="logit_energy", method="conformal", prefit=True, by_class=by_class
        ).fit(data.X[held])
        alarm = judge.p_values(X) <= CLASS_LEVEL * SLACK
        # A digit that is left out, or that no image is given, has no rate.
        rates = [alarm[given == k].mean() if k in given else np.nan for k in range(N_DIGITS)]
        detected = np.mean(judge.p_values(other) <= CLASS_LEVEL * SLACK)
        found[f"by_class={by_class}"] = np.array([*rates, alarm.mean(), detected])
    return found


def report_classes(args: argparse.Namespace) -> dict[str, object]:
    """Print false alarms by predicted class."""
    rows = []
    for name, repeats in (("digits", args.class_repeats), ("mnist", 1)):
        data = images(args.data, name)
        each = [
            rates_by_class(data, unseen, seed)
            for seed, unseen in product(range(repeats), range(N_DIGITS))
        ]
        for key in each[0]:
            values = np.array([one[key] for one in each])
            means = np.nanmean(values, axis=0)
            errors = np.nanstd(values, axis=0, ddof=1) / np.sqrt((~np.isnan(values)).sum(axis=0))
            row: dict[str, object] = {"images": name, "detector": key, "fits": len(each)}
            row |= {str(k): f"{means[k]:.3f}" for k in range(N_DIGITS)}
            row["largest error"] = f"{errors[:N_DIGITS].max():.3f}"
            row |= {
                k: f"{means[i]:.3f} ± {errors[i]:.3f}" for k, i in (("all", -2), ("unseen", -1))
            }
            rows.append(row)
        gain = np.array([one["by_class=True"][-1] - one["by_class=False"][-1] for one in each])
        mean, error = mean_error(gain.tolist())
        print(f"{name}: by_class finds {mean:+.4f} ± {error:.4f} more of the unseen digit.")
    print("\n" + table(rows), end="\n\n")
    return {"classes": rows}


def report_rates(args: argparse.Namespace) -> dict[str, object]:
    """Print what was measured of split conformal detectors."""
    cells = repeat(rates, args, args.repeats)
    columns = {f"alarms at {alpha}": [f"alarm {alpha}"] for alpha in ALPHAS}
    print(lines(cells, {**columns, "power": [f"power {alpha}" for alpha in ALPHAS]}), end="\n\n")
    columns = {f"FDR at {fdr}": [f"fdr {N_MIXED} {fdr}"] for fdr in FDRS}
    columns |= {"power": [f"found {N_MIXED} {fdr}" for fdr in FDRS]}
    columns |= {f"no anomalies, {fdr}": [f"fdr 0 {fdr}"] for fdr in FDRS}
    print(lines(cells, columns), end="\n\n")
    print(table(verdict(cells)), end="\n\n")
    return {"rates": summarised(cells), "summary": verdict(cells)}


def report_contrast(args: argparse.Namespace) -> dict[str, object]:
    """Print the three methods side by side."""
    tables = [draw(*load(args.data, set_name), 0) for set_name in args.sets]
    wrong = [disagreements(name, rows) for rows, name in product(tables, POOR)]
    n_wrong, n_seen = np.sum(wrong, axis=0).tolist()
    print(f"predict and p_values disagree on {n_wrong} of {n_seen} rows.\n")
    cells = repeat(contrast, args, args.contrast_repeats)
    methods = ("quantile", *CONFORMAL)
    columns = {f"{m}, {a}": [f"alarm {m} {a}"] for a, m in product(ALPHAS[1:], methods)}
    powers = [f"power {m} 0.1" for m in methods]
    print(lines(cells, columns | {"power at 0.1": powers}), end="\n\n")
    kinds = product((N_MIXED, 0), FDRS[1:])
    columns = {f"{n} anomalies, fdr {fdr}": [f"fdr {n} {fdr}"] for n, fdr in kinds}
    print("`select`, cross-conformal:", lines(cells, columns), sep="\n\n", end="\n\n")
    return {"contrast": summarised(cells), "disagreements": [n_wrong, n_seen]}


def summarised(cells: dict[tuple[str, str], Cell]) -> dict[str, dict[str, tuple[float, float]]]:
    """Means and standard errors by cell, for JSON."""
    every = with_pooled(cells).items()
    return {" ".join(k): {key: mean_error(v) for key, v in cell.items()} for k, cell in every}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=POOR)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--contrast-repeats", type=int, default=50)
    parser.add_argument("--class-repeats", type=int, default=10, help="of scikit-learn's digits")
    parser.add_argument("--pairs", type=int, default=51, help="timings of each contestant")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000], help="rows timed")
    parser.add_argument("--quick", action="store_true", help="few repeats on two sets")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.quick:
        args.sets, args.repeats, args.contrast_repeats = SETS[::4], 5, 3
        args.pairs, args.sizes, args.class_repeats = 5, [1000], 1
    torch.set_num_threads(1)
    # Both are expected here, and printing them would take longer than the calls that are timed.
    warnings.filterwarnings("ignore", "Nothing was selected")
    warnings.filterwarnings("ignore", ".*rows are not binary")
    warnings.filterwarnings("ignore", "Stochastic Optimizer: Maximum iterations")
    print(machine(), end="\n\n")
    used = {key: value for key, value in vars(args).items() if key not in ("data", "json")}
    result: dict[str, object] = {"arguments": used}
    if "rates" in args.part:
        result |= report_rates(args)
    if "contrast" in args.part:
        result |= report_contrast(args)
    if "cost" in args.part:
        result["cost"] = (times := cost(args))
        print(table(times), end="\n\n")
    if "classes" in args.part:
        result |= report_classes(args)
    write(args.json, result)


if __name__ == "__main__":
    main()
