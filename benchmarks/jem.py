"""Joint energy models next to the same network by cross-entropy alone.

    OMP_NUM_THREADS=1 python -m benchmarks.jem PART --data PATH

Contenders, all of one network (`MLP`, two layers of 128; two layers of filters for MNIST) and one
optimizer:

- `JEM`: `JEMClassifier` with its defaults;
- `plain`: ``generative_weight=0``, the same number of passes;
- `plain, stopped`: the same, stopped by a tenth of the training rows;
- `plain, noisy`: the same number of passes, on rows with the noise that `JEM` adds to them;
- `JEM, sharp` (digits): ``Hybrid(sharpness=0.1)``.

Settings of the classifier were chosen by cross-validation within the training rows of digits and
phoneme (split 0 below), before rows of the tests were looked at.

Parts:

`classify`: digits (797 rows to train on, 1,000 to test), phoneme (4,000 and 1,404) and banknote
(372 and 1,000), stratified splits of seeds 0 to 4; wheat seeds and sonar, 10 x 5 cross-validation
(stratified, the same folds for all). Accuracy, mean negative log-likelihood, and where 1,000 rows
are tested the debiased calibration error of the confidence, `expected_calibration_error` with
``norm="l2"``, over the test rows of all splits together; its standard error by draws of these rows.
Differences to `JEM` are paired by split; as splits share rows, their variance counts 1/n +
test/train (Nadeau and Bengio, 2003).

`ood`: AUROC of usual rows against odd ones, by log p(x) of `JEM`, and by the largest probability of
`JEM` and of `plain`; split 0 to 2. Odd are test rows each column of which is shuffled by itself;
for digits also uniform noise, inverted images and images whose pixels are shuffled, each image by
itself. Isolation forest and kNN (k = 5, standardised columns, mean distance) beside it.

`few`: six tables of at most 600 rows, of which 0.3 are for the test; five labelled rows a class,
all other training rows without labels; ten draws of split and labels. Accuracy. `JEM, alone` and
`logistic` have the labelled rows alone. Beside them are scikit-learn's `LabelSpreading` and
`LabelPropagation` (seven neighbours) and `SelfTrainingClassifier` (logistic regression), on
standardised columns. Base and chains of `JEM` are short ones, which save nine tenths of the time
and hardly enter the class probabilities. The threshold and the weight of pseudo-labels are those of
the literature; all tables but vertebral were looked at before, with a network in plain torch, and
vertebral when steps for each label were chosen.

`robust`: digits and the four tables, seeds 0 to 19, defaults: how many end finite and within two
points of the median, the worst, roll-backs. A split for each seed; of wheat seeds and sonar, where
a row of the test is worth more than two points, split 0 for all. `plain` stands beside it.

`weights`: what `generative_weight` costs: digits and phoneme, splits 0 to 2.

`mnist`: 60,000 images of 28 x 28 and 10,000 to test, at most ten minutes a fit, pixels from -1
to 1; odd images are the 10,000 of KMNIST's test set. The network, its passes, the noise and the
steps of the chains were set once by what fits into the time; of the weights 0.01, 0.003 and
0.001 (six passes, 50,000 images) the last was best on the other 10,000: `"auto"`, 1/784.

`defaults`: twelve tables; settings were chosen by one random half of them, `--half choose`, and
`report` is the other one. At most 600 rows, stratified 5 x 2 cross-validation (folds of equal size,
so test/train is 1), defaults. Negative log-likelihood of classes by `JEM`, by `plain`, and by
scikit-learn's logistic regression (standardised columns) and random forest (500 trees), as they are
and with a temperature, which is fitted to one half of the test rows for the other; calibration
error of the test rows of all splits, `expected_calibration_error`. AUROC of test rows against rows
whose columns are shuffled, by p(x), by its base, and by p(x) at power 1; nats that p(x) gives test
rows above the base.

`cost`: seconds of an epoch of 100 batches against a bare loop of the same arithmetic, nine
alternating rounds.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import RepeatedStratifiedKFold, train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier
from torch import nn

from benchmarks._bare import chain_steps
from benchmarks._common import machine, seconds, spread, table, write
from benchmarks.clean_rows import half
from skebm import JEMClassifier
from skebm.estimators import Hybrid
from skebm.metrics import expected_calibration_error
from skebm.partition import ImportanceSampling
from skebm.samplers import Persistent
from skebm.training import EarlyStopping


class Blur:
    """Normal noise, as an augmentation."""

    def __init__(self, sigma: np.ndarray):
        self.sigma = torch.as_tensor(sigma, dtype=torch.float32)

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + self.sigma * torch.randn(x.shape, generator=generator)


class Small(nn.Sequential):
    """Logits of images of 28 x 28: two layers of filters, each halving the image."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 5, 2, 2),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 10),
        )


TABLES = ("digits", "phoneme", "banknote", "wheat_seeds", "sonar")
TESTED = {"digits": 1000, "phoneme": 1404, "banknote": 1000}
N_SPLITS = 5
PLAIN = {"generative_weight": 0.0}
WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0)
MNIST: dict[str, Any] = {
    "base": "gaussian",
    "sigma": 0.2,
    "standardize": False,
    "chains": Persistent(n_steps=5, n_chains=64),
    "n_iter": 6,
    "partition": None,
    "random_state": 0,
}
MNIST_METHODS: dict[str, dict[str, Any]] = {
    "JEM": {},
    "plain": PLAIN,
    "plain, stopped": PLAIN | {"n_iter": 40, "early_stopping": EarlyStopping(n_iter_no_change=3)},
    "plain, noisy": PLAIN | {"objective": Hybrid(augmentation=Blur(np.full(1, 0.2)))},
}


def load(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and classes from 0."""
    if name == "digits":
        return load_digits(return_X_y=True)
    file = np.load(data / "tabular" / f"{name}.npz", allow_pickle=True)
    return file["X"].astype(np.float64), np.unique(file["y"], return_inverse=True)[1]


def splits(name: str, X: np.ndarray, y: np.ndarray, n: int | None = None) -> Iterator[Any]:
    """Numbers of training and of test rows."""
    if name in TESTED:
        for seed in range(N_SPLITS if n is None else n):
            rows = np.arange(len(X))
            yield train_test_split(rows, test_size=TESTED[name], random_state=seed, stratify=y)
        return
    folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=10, random_state=0).split(X, y)
    for number, fold in enumerate(folds):
        if n is None or number % 5 == 0 and number < 5 * n:
            yield fold


def jem(seed: int, **params: Any) -> JEMClassifier:
    return JEMClassifier(partition=None, random_state=seed, **params)


def fitted(model: Any, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of constant pixels, and of roll-backs
        return model.fit(X, y)


def contenders(X: np.ndarray, y: np.ndarray, seed: int, sharp: bool) -> dict[str, JEMClassifier]:
    """All, fitted to the same rows."""
    found = {"JEM": fitted(jem(seed), X, y), "plain": fitted(jem(seed, **PLAIN), X, y)}
    noisy = jem(seed, **PLAIN, objective=Hybrid(augmentation=Blur(found["JEM"].sigma_)))
    found["plain, stopped"] = fitted(jem(seed, **PLAIN, early_stopping=True), X, y)
    found["plain, noisy"] = fitted(noisy, X, y)
    if sharp:
        found["JEM, sharp"] = fitted(jem(seed, objective=Hybrid(sharpness=0.1)), X, y)
    return found


def calibration(p: np.ndarray, y: np.ndarray) -> str:
    """The error, and its standard error by 200 draws of the rows."""
    rng = np.random.default_rng(0)

    def error(rows: np.ndarray) -> float:
        return expected_calibration_error(y[rows], p[rows], norm="l2", labels=range(p.shape[1]))

    drawn = [error(rng.integers(len(y), size=len(y))) for _ in range(200)]
    return f"{error(np.arange(len(y))):.4f} ({np.std(drawn):.4f})"


def difference(ours: np.ndarray, theirs: np.ndarray, share: float) -> str:
    """Mean paired difference and its standard error, for splits that share rows."""
    gap = ours - theirs
    error = math.sqrt(gap.var(ddof=1) * (1 / len(gap) + share))
    return f"{gap.mean():+.4f} ({error:.4f})"


def classify(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    rows = []
    for name in names:
        X, y = load(data, name)
        scores: dict[str, list[tuple[float, float]]] = {}
        discriminated: dict[str, list[np.ndarray]] = {}
        classes, share = [], 0.0
        for seed, (train, test) in enumerate(splits(name, X, y)):
            share = len(test) / len(train)
            classes.append(y[test])
            for method, model in contenders(X[train], y[train], seed, name == "digits").items():
                p = model.predict_proba(X[test])
                found = (p.argmax(1) == y[test]).mean(), log_loss(y[test], p, labels=np.unique(y))
                scores.setdefault(method, []).append(found)
                discriminated.setdefault(method, []).append(p)
        ours = np.array(scores["JEM"])
        for method, found in scores.items():
            these = np.array(found)
            row: dict[str, object] = {"table": name, "method": method}
            for column, what in enumerate(("accuracy", "NLL")):
                row[what] = f"{these[:, column].mean():.4f}"
                row[f"JEM's {what} less its"] = (
                    "" if method == "JEM" else difference(ours[:, column], these[:, column], share)
                )
            row["worst"] = f"{these[:, 0].min():.4f}, {these[:, 1].max():.3f}"
            together = np.concatenate(discriminated[method]), np.concatenate(classes)
            row["calibration error"] = calibration(*together) if name in TESTED else ""
            rows.append(row)
            print(row, flush=True)
    return rows


def odd_rows(name: str, X: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    found = {"columns shuffled": np.stack([rng.permutation(column) for column in X.T], 1)}
    if name == "digits":
        found["uniform noise"] = rng.uniform(0, 16, X.shape)
        found["inverted"] = 16 - X
        found["pixels shuffled"] = rng.permuted(X, axis=1)
    return found


def area(usual: np.ndarray, odd: np.ndarray) -> float:
    known = np.repeat([1, 0], [len(usual), len(odd)])
    return float(roc_auc_score(known, np.concatenate([usual, odd])))


def ood(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name in names:
        X, y = load(data, name)
        for seed, (train, test) in enumerate(splits(name, X, y, 3)):
            model, plain = fitted(jem(seed), X[train], y[train]), jem(seed, **PLAIN)
            fitted(plain, X[train], y[train])
            scaler = StandardScaler().fit(X[train])
            near = NearestNeighbors(n_neighbors=5).fit(scaler.transform(X[train]))
            scores: dict[str, Callable[[np.ndarray], np.ndarray]] = {
                "log p(x)": lambda x, m=model: -m.energy(x),
                "JEM, max p": lambda x, m=model: m.predict_proba(x).max(1),
                "plain, max p": lambda x, m=plain: m.predict_proba(x).max(1),
                "IForest": IsolationForest(random_state=seed).fit(X[train]).score_samples,
                "kNN": lambda x, s=scaler, n=near: -n.kneighbors(s.transform(x))[0].mean(1),
            }
            for kind, odd in odd_rows(name, X[test], np.random.default_rng(seed)).items():
                areas = {how: area(score(X[test]), score(odd)) for how, score in scores.items()}
                found.setdefault((name, kind), []).append(areas)
    return [
        {"table": name, "odd rows": kind}
        | {how: f"{np.mean([row[how] for row in rows]):.3f}" for how in rows[0]}
        for (name, kind), rows in found.items()
    ]


FEW = ("digits", "wheat_seeds", "breast_cancer", "wine", "phoneme", "vertebral")
N_LABELS = 5
SHORT: dict[str, Any] = {"base": "gaussian", "chains": Persistent(n_steps=1, n_chains=32)}


def few_task(data: Path, name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Training rows, their labels (-1 for unknown), test rows and their classes."""
    X, y = untuned(data, name)
    y = np.unique(y, return_inverse=True)[1]
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    rng = np.random.default_rng(seed)
    labels = np.full_like(y, -1)
    for code in np.unique(y):
        labels[rng.choice(np.flatnonzero(y == code), N_LABELS, replace=False)] = code
    return X, labels, X_test, y_test


def few_methods(seed: int) -> dict[str, tuple[Any, bool]]:
    """Classifiers, and whether they are given the rows without labels."""
    spread: dict[str, Any] = {"kernel": "knn", "n_neighbors": 7, "max_iter": 1000}
    linear = LogisticRegression(max_iter=5000)
    return {
        "JEM": (jem(seed, unlabeled=-1, **SHORT), True),
        "JEM, alone": (jem(seed, **SHORT), False),
        "logistic": (make_pipeline(StandardScaler(), linear), False),
        "self-training": (make_pipeline(StandardScaler(), SelfTrainingClassifier(linear)), True),
        "spreading": (make_pipeline(StandardScaler(), LabelSpreading(**spread)), True),
        "propagation": (make_pipeline(StandardScaler(), LabelPropagation(**spread)), True),
    }


def few(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    rows = []
    for name in FEW:
        scores: dict[str, list[float]] = {}
        for seed in range(10):
            X, labels, X_test, y_test = few_task(data, name, seed)
            known = labels >= 0
            for method, (model, takes_all) in few_methods(seed).items():
                some = np.full(len(X), True) if takes_all else known
                fitted(model, X[some], labels[some])
                scores.setdefault(method, []).append(
                    float(np.mean(model.predict(X_test) == y_test))
                )
        means = {method: f"{np.mean(some):.4f}" for method, some in scores.items()}
        gap = difference(np.array(scores["JEM"]), np.array(scores["JEM, alone"]), 0.0)
        size = f"{name}, {len(X)} x {X.shape[1]}"
        rows.append({"table": size} | means | {"JEM - alone": gap})
        print(rows[-1], flush=True)
    return rows


def robust(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    rows = []
    for name in names:
        X, y = load(data, name)
        test_size = TESTED.get(name, 0.2)
        for method, params in (("JEM", {}), ("plain", PLAIN)):
            scores, restarts, finite = [], 0, 0
            for seed in range(20):
                split = seed if name in TESTED else 0
                train, test = train_test_split(
                    np.arange(len(X)), test_size=test_size, random_state=split, stratify=y
                )
                model = fitted(jem(seed, **params), X[train], y[train])
                scores.append(model.score(X[test], y[test]))
                restarts += model.n_restarts_
                finite += bool(np.isfinite(model.energy(X[test])).all())
            found = np.array(scores)
            near = int((found > np.median(found) - 0.02).sum())
            rows.append(
                {
                    "table": name,
                    "method": method,
                    "finite": f"{finite} of 20",
                    "within 2 points": f"{near} of 20",
                    "median": f"{np.median(found):.4f}",
                    "worst": f"{found.min():.4f}",
                    "standard deviation": f"{found.std(ddof=1):.4f}",
                    "roll-backs": restarts,
                }
            )
            print(rows[-1], flush=True)
    return rows


def weights(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    rows = []
    for name in ("digits", "phoneme"):
        X, y = load(data, name)
        for weight in (0.0, *WEIGHTS):
            found = []
            for seed, (train, test) in enumerate(splits(name, X, y, 3)):
                model = fitted(jem(seed, generative_weight=weight), X[train], y[train])
                p = model.predict_proba(X[test])
                odd = odd_rows(name, X[test], np.random.default_rng(seed))["columns shuffled"]
                right = (p.argmax(1) == y[test]).mean()
                separated = area(-model.energy(X[test]), -model.energy(odd))
                found.append((right, log_loss(y[test], p), separated))
            means = np.mean(found, 0)
            columns = ("accuracy", "NLL", "AUROC by log p(x)")
            row = {"table": name, "generative_weight": weight}
            rows.append(row | {c: f"{m:.4f}" for c, m in zip(columns, means, strict=True)})
            print(rows[-1], flush=True)
    return rows


BUNDLED = {"wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}
ANOMALIES = {"Pima": 29, "vertebral": 39, "yeast": 47, "Ionosphere": 18}
UNTUNED = (*BUNDLED, *ANOMALIES, "phoneme", "wheat_seeds", "banknote", "sonar", "redwine")
MOST_UNTUNED = 600


def untuned(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """At most 600 rows, and their classes; of red wines whether their grade is 6 or more."""
    if name in BUNDLED:
        X, y = BUNDLED[name](return_X_y=True)
    elif name in ANOMALIES:
        file = np.load(data / "adbench" / f"{ANOMALIES[name]}_{name}.npz")
        X, y = file["X"].astype(np.float64), file["y"].astype(int)
    elif name == "redwine":
        wine = np.load(data / "uci" / "wine.npz")["redwine"].astype(np.float64)
        X, y = wine[:, :-1], (wine[:, -1] >= 6).astype(int)
    else:
        X, y = load(data, name)
    kept = np.random.default_rng(0).permutation(len(X))[:MOST_UNTUNED]
    return X[kept], y[kept]


def loss_at(log_p: np.ndarray, y: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Negative log-likelihood of each row at a temperature, (n,)."""
    found: np.ndarray = -log_softmax(log_p / temperature, axis=1)[np.arange(len(y)), y]
    return found


def tempered(log_p: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """Log-probabilities at the temperature that is best for the other half of the rows."""
    place = np.random.default_rng(seed).permutation(len(y))
    halves, found = (place[::2], place[1::2]), np.empty_like(log_p)
    for here, other in (halves, halves[::-1]):
        best = minimize_scalar(
            lambda log_t, rows=other: loss_at(log_p[rows], y[rows], math.exp(log_t)).mean(),
            bounds=(-3, 3),
            method="bounded",
        )
        found[here] = log_softmax(log_p[here] / math.exp(best.x), axis=1)
    return found


def densities(model: JEMClassifier, X: np.ndarray) -> dict[str, np.ndarray]:
    """log p(x), that of the base, and log p(x) at power 1 up to a constant."""
    units, energy = model.units_, model.energy_
    z = torch.as_tensor((X - units.centre) / units.scale, dtype=torch.float32)
    with torch.no_grad():
        base = energy.base.log_prob(z).double().numpy()
        total = energy.network.classifier(z).logsumexp(1).double().numpy()
    of_x = model.score_samples(X) + np.log(units.scale).sum()
    return {"p(x)": of_x, "base": base, "power 1": base + total}


def measured(X: np.ndarray, y: np.ndarray, fold: Any, seed: int) -> tuple[dict, dict, float]:
    """Log-probabilities of the classes of test rows by method, AUROCs by density, and the power."""
    train, test = fold
    models: dict[str, Any] = {
        "JEM": JEMClassifier(partition=ImportanceSampling(4000), random_state=seed),
        "plain": jem(seed, **PLAIN),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
        "forest": RandomForestClassifier(500, random_state=seed),
    }
    log_p = {}
    for method, model in models.items():
        p = fitted(model, X[train], y[train]).predict_proba(X[test])
        # A forest is certain where all of its trees are: half a tree for each class.
        log_p[method] = (
            np.log(p + 1 / 1000) if method == "forest" else model.predict_log_proba(X[test])
        )
    odd = odd_rows("", X[test], np.random.default_rng(seed))["columns shuffled"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        usual, unusual = densities(models["JEM"], X[test]), densities(models["JEM"], odd)
    areas = {name: area(usual[name], unusual[name]) for name in usual}
    areas["nats above base"] = float((usual["p(x)"] - usual["base"]).mean())
    return log_p, areas, models["JEM"].power_


def defaults(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    rows = []
    for name in names:
        X, y = untuned(data, name)
        folds = RepeatedStratifiedKFold(n_splits=2, n_repeats=5, random_state=0).split(X, y)
        losses: dict[str, list[float]] = {}
        pooled: dict[str, list[np.ndarray]] = {}
        areas, powers, truth = [], [], []
        for seed, fold in enumerate(folds):
            log_p, of_density, power = measured(X, y, fold, seed)
            truth.append(y[fold[1]])
            for method, found in log_p.items():
                at_best = tempered(found, truth[-1], seed)
                for label, some in ((method, found), (f"{method}, tempered", at_best)):
                    losses.setdefault(label, []).append(loss_at(some, truth[-1]).mean())
                    pooled.setdefault(label, []).append(np.exp(log_softmax(some, axis=1)))
            areas.append(of_density)
            powers.append(power)
        row: dict[str, object] = {"table": f"{name}, {len(X)} x {X.shape[1]}"}
        nll = {method: np.array(found) for method, found in losses.items()}
        row |= {f"NLL, {method}": f"{found.mean():.3f}" for method, found in nll.items()}
        row["JEM less plain"] = difference(nll["JEM"], nll["plain"], 1.0)
        row["tempered"] = difference(nll["JEM, tempered"], nll["plain, tempered"], 1.0)
        classes = np.concatenate(truth)
        for method, found in pooled.items():
            error = expected_calibration_error(classes, np.concatenate(found), labels=np.unique(y))
            row[f"ECE, {method}"] = f"{error:.3f}"
        column = {what: np.array([found[what] for found in areas]) for what in areas[0]}
        for what in ("p(x)", "base", "power 1"):
            row[f"AUROC, {what}"] = f"{column[what].mean():.3f}"
        row["p(x) less base"] = difference(column["p(x)"], column["base"], 1.0)
        row["nats above base"] = difference(column["nats above base"], np.zeros(len(powers)), 1.0)
        row["power"] = f"{np.mean(powers):.2f}"
        rows.append(row)
        print(row, flush=True)
    return rows


def images(file: Path, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 28, 28) from -1 to 1, and their classes."""
    found = np.load(file)
    return (found[x] / 127.5 - 1).astype(np.float32)[:, None], found[y]


def mnist(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    file = data / "images" / "mnist.npz"
    X, y = images(file, "X_train", "y_train")
    X_test, y_test = images(file, "X_test", "y_test")
    odd = images(data / "images" / "kmnist_test.npz", "X", "y")[0]
    rows: list[dict[str, object]] = []
    discriminated: list[np.ndarray] = []
    torch.manual_seed(0)
    network = Small()  # copied by each fit
    for method, params in MNIST_METHODS.items():
        began = time.perf_counter()
        model = fitted(JEMClassifier(network, **MNIST | params), X, y)
        spent = time.perf_counter() - began
        p, q = model.predict_proba(X_test), model.predict_proba(odd)
        discriminated.append(
            np.stack([p.argmax(1) == y_test, -np.log(p[np.arange(len(p)), y_test])])
        )
        pairs = zip(discriminated[0], discriminated[-1], strict=True)
        better, less = [difference(*pair, 0.0) if rows else "" for pair in pairs]
        rows.append(
            {
                "method": method,
                "passes": model.n_iter_,
                "fit, s": f"{spent:.0f}",
                "accuracy": f"{discriminated[-1][0].mean():.4f}",
                "JEM's accuracy less its": better,
                "NLL": f"{discriminated[-1][1].mean():.4f}",
                "JEM's NLL less its": less,
                "calibration error": calibration(p, y_test),
                "KMNIST by log p(x)": f"{area(-model.energy(X_test), -model.energy(odd)):.4f}",
                "KMNIST by max p": f"{area(p.max(1), q.max(1)):.4f}",
                "roll-backs": model.n_restarts_,
            }
        )
        print(rows[-1], flush=True)
    return rows


def bare_step(model: JEMClassifier, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """The arithmetic of a batch, on the network of a fitted model."""
    objective = model.net_.module_
    generative, weight = objective.generative, objective.generative_weight
    network: Any = objective.energy.network
    aux, k = model.net_.state_.chain.aux, generative.negatives.n_steps
    walk = chain_steps(network, objective.energy.base, aux.step_size, aux.scale)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.0)
    chains, n = model.net_.state_.chain.x.clone(), len(x)

    def step() -> None:
        nonlocal chains
        with torch.no_grad():
            noisy = x + generative.sigma * torch.randn_like(x)
            chains = walk(chains, k)
        optimizer.zero_grad()
        logits = network.classifier(torch.cat([noisy, chains]))
        f = -logits.logsumexp(1)
        loss = torch.nn.functional.cross_entropy(logits[:n], y)
        (loss + weight * (f[:n].mean() - f[n:].mean())).backward()
        optimizer.step()

    return step


def cost(data: Path, names: tuple[str, ...]) -> list[dict[str, object]]:
    rows, n_batches = [], 100
    for d, k, n_classes in ((8, 5, 3), (8, 20, 3), (64, 5, 10), (64, 20, 10)):
        X = np.random.default_rng(0).standard_normal((128 * n_batches, d))
        y = np.arange(len(X)) % n_classes
        model = jem(0, base="gaussian", sigma=0.3, chains=Persistent(n_steps=k), n_iter=1).fit(X, y)
        batch = torch.as_tensor(X[:128], dtype=torch.float32), torch.as_tensor(y[:128])
        step, engine, bare = bare_step(model, *batch), [], []
        for _ in range(9):
            model.partial_fit(X, y)
            engine.append(model.history_[-1]["dur"])
            bare.append(seconds(lambda step=step: [step() for _ in range(n_batches)]))
        batch_us = f"{1e6 * float(np.median(engine)) / n_batches:.0f}"
        row = {"columns": d, "steps": k, "classes": n_classes, "a batch, us": batch_us}
        rows.append(row | {"engine / bare": spread(engine, bare)})
    return rows


PARTS = {
    "classify": classify,
    "defaults": defaults,
    "ood": ood,
    "few": few,
    "robust": robust,
    "weights": weights,
    "mnist": mnist,
    "cost": cost,
}
OF_TABLES = ("classify", "ood", "robust")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", choices=TABLES)
    parser.add_argument("--half", choices=("choose", "report", "all"), default="all")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.tables and args.part not in OF_TABLES:
        parser.error(f"{args.part} has tables of its own: --tables is for {', '.join(OF_TABLES)}.")
    torch.set_num_threads(1)
    began = time.perf_counter()
    names = tuple(args.tables or TABLES)
    if args.part == "defaults":
        names = tuple(half(list(UNTUNED), args.half))
    rows = PARTS[args.part](args.data, names)
    print(machine(), f"{time.perf_counter() - began:.0f} s")
    print(table(rows))
    write(args.out, {"part": args.part, "rows": rows})


if __name__ == "__main__":
    main()
