"""Classification RBMs: MNIST, few labels, class probabilities of tables, the cost of steps.

    OMP_NUM_THREADS=1 python -m benchmarks.class_rbm --data PATH --part mnist
        [--only NAME ...] [--open-test] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.class_rbm --data PATH --part semi [--seeds 5] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.class_rbm --data PATH --part five [--seeds 10]
    OMP_NUM_THREADS=1 python -m benchmarks.class_rbm --data PATH --part tables [--seeds 10]
    OMP_NUM_THREADS=1 python -m benchmarks.class_rbm --data PATH --part density [--seeds 3]
    OMP_NUM_THREADS=1 python -m benchmarks.class_rbm --part steps

PATH holds `images/mnist.npz`, `tabular/*.npz` and `adbench/*.npz`. `semi`, `five`, `tables` and
`density` take `--sets NAME ...`, all parts `--quick`, a smoke test.

`mnist`: the first 50,000 training images, grey values in [0, 1] as probabilities of bits; the other
10,000 for validation, on which the settings of `MNIST` were chosen, beside them the 10,000 test
images, opened with `--open-test`. Larochelle et al. (2012) report 3.39 % (generative, 6,000 hidden
units), 1.81 % (discriminative, 500) and 1.28 % (hybrid, 1,500).

`semi`: 10 and 100 labels of each class of digits and of the first 10,000 images of MNIST, all
other training rows without a label; defaults. Beside the same classifier fitted to the labelled
rows alone (discriminative and hybrid), `JEMClassifier` and `LabelSpreading` (neighbours,
`n_neighbors` of 3, 7 or 15 chosen on the test rows, in its favour). Errors of test rows: 500 of
digits, the 10,000 of MNIST. Mean and standard error over seeds that draw the labels, and the mean
paired difference to the discriminative one.

`five`: five labels of each class of digits and of two tables, 70 % of whose rows are trained on;
about 600 steps of the default classifier with and without the rows that have no label, beside
`LabelSpreading` as above, on standardised columns of the tables. The weight was chosen on seed 0 of
these three and three more tables, which is among the ten.

`tables`: five tables, 70 % training rows by class; mean negative log-likelihood of the classes of
the other rows, error, and calibration error (15 bins), over seeds. Beside `LogisticRegression`
(standardised columns, C of five powers of ten by `LogisticRegressionCV`, 5 folds),
`HistGradientBoostingClassifier` and `JEMClassifier`. No settings of `RBMClassifier` were chosen on
these splits; its default learning rates, `generative_weight` and number of epochs were chosen on
other splits of wheat_seeds, sonar, wine, banknote, digits and on 10,000 images of MNIST.

`density`: what p(x) is worth: AUROC of test rows against the same rows with each column shuffled by
itself, by p(x) of the default classifier, by p(x) with `generative_weight=0.03` and by their base;
with the negative log-likelihood of the classes and the error. Six tables of ADBench, of which 2,000
rows at most are taken, 70 % of them to train on by class. The weights among which held-out rows
choose, the nats of cross-entropy that a likely p(x) may cost, and from which variance on values in
[0, 1] are bits were chosen on the other tables here, sonar, red wine, and WPBC, breastw and
SpamBase of ADBench.

`steps`: time of an epoch of the default hybrid beside its matrix products, sigmoids and random
numbers alone, medians of paired ratios.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading

from benchmarks._common import seconds, shown, spread, write
from skebm import JEMClassifier, RBMClassifier
from skebm.metrics import expected_calibration_error
from skebm.training import SGD

UNKNOWN = -1
MNIST: dict[str, dict[str, Any]] = {
    "generative": {"n_components": 2000, "objective": "generative", "n_iter": 20},
    "discriminative": {"n_components": 500, "objective": "discriminative", "n_iter": 40},
    "hybrid": {
        "n_components": 1500,
        "generative_weight": 0.03,
        "n_iter": 40,
        "optimizer": SGD(averaging=0.8, schedule="linear"),
    },
}
PUBLISHED = {"generative": 3.39, "discriminative": 1.81, "hybrid": 1.28}


def mnist(data: Path) -> tuple[np.ndarray, ...]:
    """Training and test images as rows of [0, 1], and their labels."""
    stored = np.load(data / "images/mnist.npz")
    X, X_test = (
        stored[name].reshape(len(stored[name]), -1).astype(np.float32) / 255
        for name in ("X_train", "X_test")
    )
    return X, stored["y_train"].astype(int), X_test, stored["y_test"].astype(int)


def tables(data: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name, rows and classes of the five tables."""
    found = {}
    for name in ("banknote", "phoneme", "wheat_seeds"):
        stored = np.load(data / f"tabular/{name}.npz", allow_pickle=True)
        found[name] = stored["X"], stored["y"]
    for name, load in (("cancer", load_breast_cancer), ("wine", load_wine)):
        found[name] = load(return_X_y=True)
    return found


def chosen(sets: dict[str, Any], only: list[str] | None) -> dict[str, Any]:
    """The sets of these names, or all."""
    return sets if only is None else {name: sets[name] for name in only}


def percent(found: np.ndarray, y: np.ndarray) -> float:
    """Error in percent."""
    return 100 * float((found != y).mean())


def fitted(model: Any, X: np.ndarray, y: np.ndarray) -> tuple[Any, float]:
    """The model and the seconds of its fit, without warnings of convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, seconds(lambda: model.fit(X, y))


# ------------------------------------------------------------------------------
# MNIST
# ------------------------------------------------------------------------------


def of_mnist(data: Path, only: list[str], open_test: bool, n: int | None) -> Iterator[dict]:
    """A row for each objective."""
    X, y, X_test, y_test = mnist(data)
    for name in only:
        settings = MNIST[name] | ({"n_components": 20, "n_iter": 2} if n else {})
        model = RBMClassifier(partition=None, random_state=0, **settings)
        model, took = fitted(model, X[:50_000][:n], y[:50_000][:n])
        error = percent(model.predict(X[50_000:]), y[50_000:])
        row = {
            "objective": name,
            "hidden units": settings["n_components"],
            "epochs": model.n_iter_,
            "valid error, %": error,
            "valid NLL": nll(model, X[50_000:], y[50_000:]),
            "published, %": PUBLISHED[name],
            "fit, s": round(took),
        }
        if open_test:
            error = percent(model.predict(X_test), y_test)
            row["test error, %"] = round(error, 2)
            row["binomial error"] = math.sqrt(error * (100 - error) / len(y_test))
        yield row


def nll(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Mean negative log-likelihood of the classes."""
    p = np.maximum(model.predict_proba(X), 1e-300)
    place = np.searchsorted(model.classes_, y)
    return -float(np.log(p[np.arange(len(y)), place]).mean())


# ------------------------------------------------------------------------------
# Few labels
# ------------------------------------------------------------------------------


def few_labels(
    data: Path, n_seeds: int, quick: bool, only: list[str] | None
) -> Iterator[dict[str, Any]]:
    """A row for each data set and number of labels."""
    pixels, digit = load_digits(return_X_y=True)
    pixels = pixels / 16
    X, y, X_test, y_test = mnist(data)
    sets = {
        "digits": (pixels[:1297], digit[:1297], pixels[1297:], digit[1297:]),
        "MNIST": (X[:10_000], y[:10_000], X_test, y_test),
    }
    for name, (X, y, X_test, y_test) in chosen(sets, only).items():
        for n_labels in (10, 100):
            errors: dict[str, list[float]] = {}
            for seed in range(n_seeds):
                if quick:
                    X, y = X[:500], y[:500]
                for model, error in errors_of(X, y, X_test, y_test, n_labels, seed):
                    errors.setdefault(model, []).append(error)
            plain = np.array(errors["discriminative"])
            row: dict[str, Any] = {"data": name, "labels a class": n_labels}
            for model, values in errors.items():
                mean, error = mean_error(np.array(values))
                row[model] = f"{mean:.2f} ({error:.2f})"
            mean, error = mean_error(plain - np.array(errors["hybrid, unlabelled too"]))
            row["gain on discriminative"] = f"{mean:.2f} ({error:.2f})"
            yield row


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def errors_of(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, n_labels: int, seed: int
) -> Iterator[tuple[str, float]]:
    """Test errors of every contender."""
    few = labels_of_few(y, n_labels, seed)
    known = few != UNKNOWN
    same: dict[str, Any] = {"partition": None, "random_state": seed}
    alone = {
        "discriminative": RBMClassifier(objective="discriminative", **same),
        "hybrid, labelled alone": RBMClassifier(**same),
    }
    for name, model in alone.items():
        yield name, percent(fitted(model, X[known], few[known])[0].predict(X_test), y_test)
    semi = {
        "hybrid, unlabelled too": RBMClassifier(unlabeled=UNKNOWN, **same),
        "JEMClassifier": JEMClassifier(unlabeled=UNKNOWN, **same),
    }
    for name, model in semi.items():
        yield name, percent(fitted(model, X, few)[0].predict(X_test), y_test)
    yield "LabelSpreading", error_of_spreading(X, few, X_test, y_test)


# Epochs of about 600 steps.
EPOCHS_OF_FIVE = {"digits": 32, "banknote": 40, "cancer": 100}
# Rows of a table of ADBench, at most.
MOST_ROWS = 2000


def five_labels(
    data: Path, n_seeds: int, quick: bool, only: list[str] | None
) -> Iterator[dict[str, Any]]:
    """A row for each data set: five labels of each class."""
    pixels, digit = load_digits(return_X_y=True)
    sets = {"digits": (pixels / 16, digit)} | tables(data)
    for name, n_iter in chosen(EPOCHS_OF_FIVE, only).items():
        errors: dict[str, list[float]] = {}
        X, y = sets[name]
        for seed in range(n_seeds):
            split = StratifiedShuffleSplit(1, test_size=0.3, random_state=seed)
            train, test = next(split.split(X, y))
            few = labels_of_few(y[train], 5, seed)
            known = few != UNKNOWN
            same: dict[str, Any] = {"partition": None, "random_state": seed}
            alone = RBMClassifier(n_iter=10 if quick else 600, **same)
            both = RBMClassifier(unlabeled=UNKNOWN, n_iter=1 if quick else n_iter, **same)
            scaler = StandardScaler(with_mean=name != "digits", with_std=name != "digits")
            rows, new = (scaler.fit(X[train]).transform(X[part]) for part in (train, test))
            for model_name, model, own in (
                ("labelled alone", alone, (X[train][known], few[known], X[test])),
                ("unlabelled too", both, (X[train], few, X[test])),
            ):
                model = fitted(model, *own[:2])[0]
                errors.setdefault(model_name, []).append(percent(model.predict(own[2]), y[test]))
            found = error_of_spreading(rows, few, new, y[test])
            errors.setdefault("LabelSpreading", []).append(found)
        gain = np.array(errors["labelled alone"]) - np.array(errors["unlabelled too"])
        values = {k: np.array(v) for k, v in errors.items()} | {"gain": gain}
        yield {"data": name} | {
            k: "{:.2f} ({:.2f})".format(*mean_error(v)) for k, v in values.items()
        }


def labels_of_few(y: np.ndarray, n: int, seed: int) -> np.ndarray:
    """`n` labels of each class, drawn at random, and the mark of all others."""
    rng, few = np.random.default_rng(seed), np.full_like(y, UNKNOWN)
    for label in np.unique(y):
        few[rng.permutation(np.flatnonzero(y == label))[:n]] = label
    return few


def error_of_spreading(X: np.ndarray, few: np.ndarray, X_test: np.ndarray, y: np.ndarray) -> float:
    """Error of `LabelSpreading` with the number of neighbours that is best for the test rows."""
    spreads = (LabelSpreading(kernel="knn", n_neighbors=k, max_iter=100) for k in (3, 7, 15))
    return min(percent(fitted(model, X, few)[0].predict(X_test), y) for model in spreads)


# ------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------


def contenders(seed: int) -> dict[str, Any]:
    """The classifiers of a seed."""
    logistic = LogisticRegressionCV(Cs=np.logspace(-2, 2, 5), max_iter=3000, scoring="neg_log_loss")
    return {
        "RBMClassifier": RBMClassifier(random_state=seed, partition=None),
        "discriminative": RBMClassifier(
            objective="discriminative", random_state=seed, partition=None
        ),
        "LogisticRegressionCV": make_pipeline(StandardScaler(), logistic),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
        "JEMClassifier": JEMClassifier(random_state=seed, partition=None),
    }


def of_tables(
    data: Path, n_seeds: int, quick: bool, only: list[str] | None
) -> Iterator[dict[str, Any]]:
    """A row for each table and classifier."""
    for name, (X, y) in chosen(tables(data), only).items():
        found: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(n_seeds):
            split = StratifiedShuffleSplit(1, test_size=0.3, random_state=seed)
            train, test = next(split.split(X, y))
            train = train[:100] if quick else train
            for model_name, model in contenders(seed).items():
                model, took = fitted(model, X[train], y[train])
                proba = model.predict_proba(X[test])
                calibration = expected_calibration_error(y[test], proba)
                values = nll(model, X[test], y[test]), percent(model.predict(X[test]), y[test])
                found.setdefault(model_name, []).append((*values, float(calibration), took))
        logistic = np.array(found["LogisticRegressionCV"])[:, 0]
        for model_name, several in found.items():
            values = np.array(several)
            gain, error = mean_error(logistic - values[:, 0])
            yield {
                "table": name,
                "model": model_name,
                "NLL": "{:.4f} ({:.4f})".format(*mean_error(values[:, 0])),
                "gain on logistic": f"{gain:.4f} ({error:.4f})",
                "error, %": "{:.2f} ({:.2f})".format(*mean_error(values[:, 1])),
                "calibration": "{:.4f} ({:.4f})".format(*mean_error(values[:, 2])),
                "fit, s": float(np.median(values[:, 3])),
            }


# ------------------------------------------------------------------------------
# What p(x) is worth
# ------------------------------------------------------------------------------

# Tables of ADBench for the report.
REPORTED = (
    "12_fault",
    "18_Ionosphere",
    "22_magic.gamma",
    "29_Pima",
    "39_vertebral",
    "47_yeast",
)


def reported_tables(data: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name, rows and classes of the six tables."""
    found = {}
    for name in REPORTED:
        stored = np.load(data / f"adbench/{name}.npz")
        kept = np.random.default_rng(0).permutation(len(stored["X"]))[:MOST_ROWS]
        found[name.split("_")[1]] = stored["X"][kept].astype(float), stored["y"][kept].astype(int)
    return found


def auroc_of_p(model: Any, X: np.ndarray, seed: int) -> float:
    """AUROC of rows against the same rows with each column shuffled by itself, by p(x)."""
    rng = np.random.default_rng(seed)
    shuffled = np.column_stack([rng.permutation(column) for column in X.T])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = np.concatenate([model.score_samples(X), model.score_samples(shuffled)])
    return float(roc_auc_score(np.repeat([1, 0], len(X)), scores))


def of_densities(
    data: Path, n_seeds: int, quick: bool, only: list[str] | None
) -> Iterator[dict[str, Any]]:
    """A row for each table and weight."""
    for name, (X, y) in chosen(reported_tables(data), only).items():
        found: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(n_seeds):
            split = StratifiedShuffleSplit(1, test_size=0.3, random_state=seed)
            train, test = next(split.split(X, y))
            train = train[:100] if quick else train
            same: dict[str, Any] = {"partition": None, "random_state": seed}
            base, _ = fitted(RBMClassifier(n_iter=0, **same), X[train], y[train])
            of_base = auroc_of_p(base, X[test], seed)
            for weight in ("auto", 0.03):
                model = RBMClassifier(generative_weight=weight, **same)
                model, took = fitted(model, X[train], y[train])
                values = nll(model, X[test], y[test]), percent(model.predict(X[test]), y[test])
                of_p = auroc_of_p(model, X[test], seed)
                kind = float(model.density_ == "model"), model.generative_weight_
                found.setdefault(str(weight), []).append((*values, of_p, of_base, *kind, took))
        for weight_name, several in found.items():
            values = np.array(several)
            yield {
                "table": name,
                "weight": weight_name,
                "NLL": values[:, 0].mean(),
                "error, %": values[:, 1].mean(),
                "AUROC of p(x)": values[:, 2].mean(),
                "of its base": values[:, 3].mean(),
                "p(x) is the model": values[:, 4].mean(),
                "mean weight": values[:, 5].mean(),
                "fit, s": float(np.median(values[:, 6])),
            }


# ------------------------------------------------------------------------------
# The cost of steps
# ------------------------------------------------------------------------------


def steps(n_repeats: int = 7) -> Iterator[dict[str, Any]]:
    """An epoch of 20,000 rows of 784 columns beside its products alone."""
    rng = np.random.default_rng(0)
    X = (rng.random((20_000, 784)) < 0.2).astype(np.float32)
    y = rng.integers(0, 10, len(X))
    for objective, n_hidden in (("hybrid", 500), ("hybrid", 1500), ("discriminative", 500)):
        settings: dict[str, Any] = {"objective": objective, "partition": None, "random_state": 0}
        warm = RBMClassifier(n_hidden, n_iter=1, warm_start=True, **settings)
        fitted(warm, X, y)
        ours, alone = [], []
        for _ in range(n_repeats):
            ours.append(sum(row["dur"] for row in fitted(warm, X, y)[0].history_[-1:]))
            alone.append(seconds(lambda h=n_hidden, o=objective: products(X, h, o)))
        yield {
            "objective": objective,
            "hidden units": n_hidden,
            "epoch, s": float(np.median(ours)),
            "over products": spread(ours, alone),
        }


@torch.no_grad()
def products(X: np.ndarray, n_hidden: int, objective: str, n_classes: int = 10) -> None:
    """What a step cannot do without, in torch: the products, and units of every class.

    Rows and chains up to the hidden units, for every class a sigmoid and a logarithm of each, down
    to the visible units of the chains, draws of both layers, and the product of the gradient.
    """
    x = torch.from_numpy(X)
    weight, units = torch.randn(n_hidden, X.shape[1]), torch.randn(n_classes, n_hidden)
    rows = torch.empty(200 if objective == "hybrid" else 100, X.shape[1])
    chain = torch.rand(100, X.shape[1])
    for batch in x.split(100):
        rows[: len(batch)] = batch
        if objective == "hybrid":
            rows[100:] = chain
        field = rows @ weight.t()
        total = torch.zeros_like(field)
        for own in units:
            h = (field + own).sigmoid_()
            h.log().sum(1)
            total += h
        total.t() @ rows
        if objective == "hybrid":
            layer = (torch.rand(100, n_hidden) < total[100:] / n_classes).float()
            p = (layer @ weight).sigmoid_()
            chain = (torch.rand(p.shape) < p).float()


def main() -> None:
    """Parse the arguments and print the table of a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument(
        "--part", choices=("mnist", "semi", "five", "tables", "density", "steps"), required=True
    )
    parser.add_argument("--only", nargs="+", choices=list(MNIST), default=list(MNIST))
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--open-test", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    started = time.perf_counter()
    if args.part == "mnist":
        rows = of_mnist(args.data, args.only, args.open_test, 500 if args.quick else None)
    elif args.part == "semi":
        rows = few_labels(args.data, args.seeds or (2 if args.quick else 5), args.quick, args.sets)
    elif args.part == "tables":
        rows = of_tables(args.data, args.seeds or (2 if args.quick else 10), args.quick, args.sets)
    elif args.part == "five":
        rows = five_labels(
            args.data, args.seeds or (2 if args.quick else 10), args.quick, args.sets
        )
    elif args.part == "density":
        n_seeds = args.seeds or (2 if args.quick else 3)
        rows = of_densities(args.data, n_seeds, args.quick, args.sets)
    else:
        rows = steps(2 if args.quick else 7)
    found = shown(rows)
    print(f"{time.perf_counter() - started:.0f} s")
    write(args.json, {"part": args.part, "rows": found})


if __name__ == "__main__":
    main()
