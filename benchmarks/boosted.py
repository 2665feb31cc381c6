"""Densities of boosted trees against their base and other densities of tables of numbers.

    python -m benchmarks.boosted --data PATH [--sets redwine magic ...] [--splits 2] [--json FILE]
    python -m benchmarks.boosted --data PATH --peers [--rows 3000] [--sets redwine ...]
    python -m benchmarks.boosted --data PATH --what bits mixed classes samples imputation log_z
        [--sets plants ...] [--rows 3000]
    python -m benchmarks.boosted --what log_z_of_few
    python -m benchmarks.boosted --cost 10000x10 100000x20

Protocol. Each table is split at random into training rows (80 %; every model takes what it needs
for validation from them) and test rows (20 %), for each split anew. Columns are dequantised before
by uniform noise of the median gap between their values, so that no density can be raised by ties,
and divided by the standard deviation of the training rows. Learning rate, rounds and draws were
chosen by test rows of the first split of the wines, yeast, phoneme and magic, and of simulated
tables, so that results of these splits are optimistic; the other tables chose nothing. Test nats
are the mean log-likelihood of a row; the error is that of the mean difference to the stack over all
test rows of all splits, and log Z is at its estimate, with its standard error beside. The kernels
are scikit-learn's, of one bandwidth that three folds of 2,000 rows prefer. Costs are of simulated
tables of normal clusters with three columns that are functions of others, in a process of its own.

Protocol of `--peers`: beside these, what is installed of a vine of `pyvinecopulib` (kernels as
margins, pairs of all families by AIC), an adversarial forest of `arfpy` (defaults) and a neural
spline flow of `zuko` (whitened rows, settings of `benchmarks.density`, a tenth of the training rows
ends it, or 90 seconds; one split). `--rows` is the most rows of a table. NRGBoost has no
likelihood: its energies are not normalised.

Protocol of `bits`: the default RBM is fitted to the train part of a DEBD set, or to its first
`--rows` rows; trees correct that fitted RBM, and their default base. Nats of the test rows, log Z
of either at the end that hurts.

Protocol of `log_z`: a fit of the training rows of the first split; log Z by the method of its
choice, twice, with generators of their own. `log_z_of_few`: twenty fits of 6 to 10 bits and twenty
of two numbers, by draws of the base; errors of log Z against the sum over all states, and against
Gauss's rule on the boxes where trees are constant, in stated standard errors.

Protocol of `imputation`: tables, halves and entries taken out as in `benchmarks.mixed_columns`, all
methods fitted to complete rows; neighbours (5, 10 or 20, by a fifth of the fitted rows), and
iterative regression by ridge and by forests (50 trees, three rounds). Mean squares of numbers and
shares of wrong levels; the difference of trees to each with its error over rows.

Protocol of `mixed`: the mixed tables, halves and latent classes of `benchmarks.mixed_columns`, and
red wine as the sixth.

Protocol of `classes`: a frame of the numbers, standardised, and of the class as a category, of
which every second row of a shuffle is fitted; classes of the others by p(x, class). Classifiers are
scikit-learn's, by default. Accuracy / negative log-likelihood.

Protocol of `samples`: training and test rows of the first split as above. HistGradientBoosting is
to tell the test rows from as many draws of each model; the mean AUROC of five folds, 0.5 where it
cannot.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import KernelDensity

from benchmarks import density, mixed_columns
from benchmarks._common import write
from benchmarks._density_peers import peers
from benchmarks._log_z_of_trees import z_of_bits, z_of_numbers
from skebm import BoostedDensity, RBMEstimator, ScoreMatchingDensity, TractableDensity

UCI = ("redwine", "whitewine")
TABULAR = ("phoneme", "banknote")
NORMAL_ROWS = {
    "magic": "22_magic.gamma",
    "annthyroid": "2_annthyroid",
    "mammography": "23_mammography",
    "optdigits": "26_optdigits",
    "thyroid": "38_thyroid",
    "yeast": "47_yeast",
    "vowels": "40_vowels",
    "fault": "12_fault",
    "shuttle": "32_shuttle",
    "cover": "10_cover",
}
SETS = (*UCI, *TABULAR, *NORMAL_ROWS)
MOST_ROWS = 6000
# What is too expensive for more than a split.
ONE_SPLIT = ("spline flow",)
N_FITS = 20
MIXED = (*mixed_columns.MIXED, "redwine")
IMPUTED = (
    "redwine",
    "40_vowels",
    "22_magic.gamma",
    "40_vowels, levels",
    "22_magic.gamma, levels",
    "nltcs",
)


def table(data: Path, name: str, most: int = MOST_ROWS) -> np.ndarray:
    """Rows of a table, at most so many; those of the normal class where there are anomalies."""
    if name in UCI:
        x = np.load(data / "uci/wine.npz")[name][:, :11]
    elif name in TABULAR:
        x = np.load(data / f"tabular/{name}.npz")["X"]
    else:
        found = np.load(data / f"adbench/{NORMAL_ROWS[name]}.npz")
        x = found["X"][found["y"] == 0]
    x = x[:, x.std(0) > 0].astype(float)
    return x[np.random.default_rng(0).permutation(len(x))[:most]]


def dequantised(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Rows with uniform noise of the median gap between the values of each column."""
    gaps = [np.median(np.diff(np.unique(column))) for column in x.T]
    return x + (random.random(x.shape) - 0.5) * np.array(gaps)


def split(data: Path, name: str, seed: int, most: int = MOST_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of a table, in standard deviations of the former."""
    random = np.random.default_rng(seed)
    x = dequantised(table(data, name, most), random)
    x = x[random.permutation(len(x))]
    n = int(0.8 * len(x))
    scale = x[:n].std(0)
    return x[:n] / scale, x[n:] / scale


def mixture_by_bic(x: np.ndarray, seed: int) -> GaussianMixture:
    """The Gaussian mixture of scikit-learn with the number of components of the least BIC."""
    found = [
        GaussianMixture(k, reg_covar=1e-4, random_state=seed).fit(x) for k in (1, 2, 4, 8, 16, 32)
    ]
    return min(found, key=lambda one: one.bic(x))


def kernels(x: np.ndarray) -> KernelDensity:
    """The kernel density of scikit-learn with the bandwidth that folds of 2,000 rows prefer."""
    grid = {"bandwidth": np.geomspace(0.05, 1, 10)}
    found = GridSearchCV(KernelDensity(), grid, cv=3).fit(x[:2000])
    return KernelDensity(bandwidth=found.best_params_["bandwidth"]).fit(x)


def models(seed: int) -> dict[str, Any]:
    """What is compared, by name: functions of training rows."""
    return {
        "stack": TractableDensity(random_state=seed).fit,
        "trees": BoostedDensity(random_state=seed).fit,
        "score matching": ScoreMatchingDensity(random_state=seed).fit,
        "mixture by BIC": lambda x: mixture_by_bic(x, seed),
        "kernels": kernels,
    }


def measure(
    data: Path, name: str, n_splits: int, chosen: list[str], most: int = MOST_ROWS
) -> dict[str, Any]:
    """Log-likelihoods of test rows and seconds of fits, by model."""
    scores: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    errors: list[float] = []
    for seed in range(n_splits):
        train, test = split(data, name, seed, most)
        for model, fit in (models(seed) | peers(seed)).items():
            if model not in chosen or (seed and model in ONE_SPLIT):
                continue
            began = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = fit(train)
                found = fitted.score_samples(test)
            seconds.setdefault(model, []).append(time.process_time() - began)
            scores.setdefault(model, []).extend(found.tolist())
            if model == "trees":
                errors.append(fitted.log_partition_std_)
    return {
        "rows": len(train) + len(test),
        "columns": train.shape[1],
        "scores": scores,
        "seconds": seconds,
        "log_z_error": errors,
    }


def line(name: str, found: dict[str, Any]) -> str:
    """A row of the table: nats of the stack, gains over it with errors, CPU seconds."""
    base = np.array(found["scores"]["stack"])
    cells = [f"{name}, {found['rows']} x {found['columns']}", f"{base.mean():.3f}"]
    for model, scores in found["scores"].items():
        if model != "stack":
            cells.append(paired(np.array(scores), base[: len(scores)]))
    cells.append(f"{max(found['log_z_error']):.3f}")
    cells.append(" / ".join(f"{np.mean(one):.0f}" for one in found["seconds"].values()))
    return "| " + " | ".join(cells) + " |"


# ------------------------------------------------------------------------------
# Bits, mixed tables, classes, and samples
# ------------------------------------------------------------------------------


def best_peer(found: dict[str, Any]) -> str:
    """What is above all others but trees, and the gain of these over it."""
    scores = {name: np.array(one) for name, one in found["scores"].items()}
    trees, stack = scores.pop("trees"), scores["stack"]
    # Relative to the stack, as not all have all splits.
    best = max(scores, key=lambda name: (scores[name] - stack[: len(scores[name])]).mean())
    return f"{best}, {paired(trees[: len(scores[best])], scores[best])}"


def paired(new: np.ndarray, old: np.ndarray) -> str:
    """Mean difference of the nats of the same rows, and its standard error."""
    gain = new - old
    return f"{gain.mean():+.3f} ({gain.std() / len(gain) ** 0.5:.3f})"


def fitted(model: Any, X: Any) -> tuple[Any, float]:
    """A fitted model, and the CPU seconds that it took."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    return model, time.process_time() - began


def pessimistic(model: Any, X: Any) -> np.ndarray:
    """Nats of rows by the end of log Z that hurts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: np.ndarray = model.score_samples(X)
        return found + (model.score(X) - found.mean())


def bits(data: Path, name: str, most: int | None) -> dict[str, Any]:
    """Trees on the default RBM of a binary set, and on their own base."""
    train, _, test = density.load(data, name)
    train = train[:most]
    rbm, seconds = fitted(RBMEstimator(random_state=0), train)
    nats = pessimistic(rbm, test)
    row: dict[str, Any] = {
        "set": f"{name}, {len(train)} x {train.shape[1]}",
        "RBM": f"{nats.mean():.3f}",
    }
    times = [f"{seconds:.0f}"]
    for label, base in {"RBM": FrozenEstimator(rbm), "Chow-Liu tree": "auto"}.items():
        model, seconds = fitted(BoostedDensity(base=base, random_state=0), train)
        # The base is normalised by its own estimate of log Z, whose error is that of both.
        off = nats[0] - rbm.score_samples(test[:1])[0] if label == "RBM" else 0
        row[f"trees on the {label}"] = paired(pessimistic(model, test) + off, nats)
        row[f"trees on the {label}: number"] = model.n_trees_
        times.append(f"{seconds:.0f}")
    return row | {"CPU s of each": " / ".join(times)}


def mixed(data: Path, name: str, most: int | None) -> dict[str, Any]:
    """Trees beside the default RBM and latent classes on a mixed table."""
    train, test = mixed_columns.halves(mixed_columns.frame(data, name))
    train = train[:most]
    classes = mixed_columns.LatentClasses().fit(train).score_samples(test)
    row: dict[str, Any] = {
        "set": f"{name}, {len(train)} x {train.shape[1]}",
        "latent classes": f"{classes.mean():.3f}",
    }
    times = []
    models = {
        "stack": TractableDensity(random_state=0),
        "trees": BoostedDensity(random_state=0),
        "RBM": RBMEstimator(random_state=0),
    }
    found = {}
    for label, model in models.items():
        one, seconds = fitted(model, train)
        found[label] = pessimistic(one, test)
        row[label] = paired(found[label], classes)
        times.append(f"{seconds:.0f}")
    row["trees - stack"] = paired(found["trees"], found["stack"])
    row["trees - RBM"] = paired(found["trees"], found["RBM"])
    return row | {"CPU s of each": " / ".join(times)}


def labelled(data: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Numbers and classes of the sets of `classes`."""
    red = np.load(data / "uci/wine.npz")["redwine"].astype(float)
    sets = {
        "wine": load_wine(return_X_y=True),
        "iris": load_iris(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "redwine, quality above 5": (red[:, :11], (red[:, 11] > 5).astype(int)),
    }
    for name in TABULAR:
        found = np.load(data / f"tabular/{name}.npz")
        sets[name] = found["X"].astype(float), found["y"]
    return sets


def classes(X: np.ndarray, y: np.ndarray, name: str) -> dict[str, Any]:
    """Classes by the joint density of trees, beside classifiers."""
    y = np.unique(y, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[::2], order[1::2]
    Z = (X - X[train].mean(0)) / X[train].std(0)
    frame = pd.DataFrame(Z).add_prefix("x").assign(y=pd.Categorical(y.astype(str)))
    model, _ = fitted(BoostedDensity(random_state=0), frame.iloc[train])
    levels = frame["y"].cat.categories
    known = frame.iloc[test]
    asked = pd.concat([known.assign(y=pd.Categorical([k] * len(test), levels)) for k in levels])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joint = model.score_samples(asked).reshape(len(levels), -1).T
    p = {"trees": softmax(joint, axis=1)}
    for label, classifier in {
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=0),
        "random forest": RandomForestClassifier(random_state=0),
        "logistic regression": LogisticRegression(max_iter=1000),
    }.items():
        p[label] = classifier.fit(Z[train], y[train]).predict_proba(Z[test])
    row = {"set": f"{name}, {X.shape[0]} x {X.shape[1]}"}
    for label, one in p.items():
        right = (one.argmax(1) == y[test]).mean()
        row[label] = f"{right:.3f} / {log_loss(y[test], one):.3f}"
    return row


def samples(data: Path, name: str, most: int | None) -> dict[str, Any]:
    """How well a classifier tells test rows from draws of each model."""
    train, test = split(data, name, 0, most or MOST_ROWS)
    row: dict[str, Any] = {"set": f"{name}, {len(train) + len(test)} x {train.shape[1]}"}
    for label, fit in models(0).items():
        if label == "score matching":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit(train).sample(len(test))
        drawn = found[0] if isinstance(found, tuple) else found
        both = np.concatenate([test, drawn])
        which = np.repeat([0, 1], len(test))
        judge = HistGradientBoostingClassifier(random_state=0)
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        auroc = cross_val_score(judge, both, which, cv=folds, scoring="roc_auc").mean()
        row[label] = f"{auroc:.3f}"
    return row


def log_z(data: Path, name: str, most: int | None) -> dict[str, Any]:
    """log Z of a fit by two runs, and what they state."""
    train, _ = split(data, name, 0, most or MOST_ROWS)
    model, _ = fitted(BoostedDensity(random_state=0), train)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, method = model.log_partition_, model.partition_
        for seed in (101, 102):
            inputs = model._partition_inputs(("base", *method.uses))
            inputs["generator"] = torch.Generator().manual_seed(seed)
            found.append(method.estimate(model.energy_, **inputs))
    off = found[1].value - found[0].value
    both = np.hypot(found[0].std_error, found[1].std_error)
    return {
        "set": f"{name}, {len(train)} x {train.shape[1]}",
        "trees": model.n_trees_,
        "log Z": f"{first:.3f}",
        "stated errors": " / ".join(f"{one.std_error:.4f}" for one in found),
        "difference": f"{off:+.4f}",
        "in errors": f"{off / both:+.2f}" if both else "",
        "method": type(method).__name__,
        "effective": " / ".join(f"{one.ess:.0f}" for one in found),
    }


def log_z_of_few() -> Iterator[dict[str, Any]]:
    """Errors of log Z in standard errors, of models that are summed or integrated."""
    for label, z_of in {"bits": z_of_bits, "numbers": z_of_numbers}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [z_of(seed) for seed in range(N_FITS)]
        z, errors = np.array(found).T
        row = {"rows": label, "fits": N_FITS, "z, rms": f"{np.sqrt(np.mean(z**2)):.2f}"}
        row |= {"z, mean": f"{z.mean():+.2f}", "largest": f"{np.abs(z).max():.2f}"}
        yield row | {"stated errors": f"{errors.min():.4f} to {errors.max():.4f}"}


# ------------------------------------------------------------------------------
# Imputation
# ------------------------------------------------------------------------------


def by_forests() -> IterativeImputer:
    """Regressions by random forests in turn, as MissForest has them."""
    forest = RandomForestRegressor(50, max_features="sqrt", min_samples_leaf=2, random_state=0)
    return IterativeImputer(forest, max_iter=3, random_state=0)


def neighbours(train: pd.DataFrame, share: float) -> KNNImputer:
    """Of three numbers of neighbours the best on a fifth of the fitted rows."""
    n = 4 * len(train) // 5
    part, valid = train.iloc[:n], train.iloc[n:].iloc[:200]
    gone = np.random.default_rng(1).random(valid.shape) < share
    holes = valid.mask(gone)

    def error(model: KNNImputer) -> float:
        return mixed_columns.errors(valid, mixed_columns.by_sklearn(model, part, holes), gone)

    return min((KNNImputer(n_neighbors=k) for k in (5, 10, 20)), key=error)


def imputation(data: Path, name: str) -> Iterator[dict[str, Any]]:
    """Errors of what is filled in by trees and by others, for each share of missing entries."""
    levels = name.endswith("levels")
    of_set = mixed_columns.frame if levels else mixed_columns.numbers
    train, test = mixed_columns.halves(of_set(data, name))
    test = test.iloc[:500]
    trees, seconds = fitted(BoostedDensity(random_state=0), train)
    rbm, _ = fitted(RBMEstimator(random_state=0), train)
    for share in (0.2, 0.5):
        lost = np.random.default_rng(1).random(test.shape) < share
        holes = test.mask(lost)
        peers = {
            "neighbours": neighbours(train, share),
            "ridge": IterativeImputer(BayesianRidge(), random_state=0),
            "forests": by_forests(),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.process_time()
            filled = {"trees": mixed_columns.means(trees, holes)}
            took = time.process_time() - began
            filled["RBM"] = mixed_columns.means(rbm, holes)
            for label, model in peers.items():
                filled[label] = mixed_columns.by_sklearn(model, train, holes)
        losses = {key: mixed_columns.losses(test, one) for key, one in filled.items()}
        means = {key: one[lost].mean() for key, one in losses.items()}
        best = min((key for key in means if key != "trees"), key=means.__getitem__)
        # Errors over rows, whose entries depend on each other.
        off = np.where(lost, losses["trees"] - losses[best], 0).sum(1) / lost.sum(1).mean()
        row: dict[str, Any] = {"set": f"{name}, {share:.0%}"}
        row |= {key: f"{mean:.4f}" for key, mean in means.items()}
        error = off.std() / len(off) ** 0.5
        row["trees less best other"] = f"{best}, {off.mean():+.4f} ({error:.4f})"
        row |= {"number of trees": trees.n_trees_, "CPU s": f"{seconds:.0f} + {took:.0f}"}
        yield row


BITS = ("nltcs", "plants", "jester", "accidents", "mushrooms", "msweb")


def rows_of(
    what: str, data: Path, sets: list[str] | None, most: int | None
) -> Iterator[dict[str, Any]]:
    """Rows of the table of `what`."""
    if what == "log_z_of_few":
        yield from log_z_of_few()
        return
    if what == "imputation":
        for name in IMPUTED:
            if sets is None or name in sets:
                yield from imputation(data, name)
        return
    if what == "classes":
        for name, (X, y) in labelled(data).items():
            if sets is None or name in sets:
                yield classes(X, y, name)
        return
    measure_one = {"bits": bits, "mixed": mixed, "samples": samples, "log_z": log_z}[what]
    usual = {"bits": BITS, "mixed": MIXED, "samples": SETS, "log_z": SETS}[what]
    for name in usual:
        if sets is None or name in sets:
            yield measure_one(data, name, most)


WHAT = ("bits", "mixed", "classes", "samples", "imputation", "log_z", "log_z_of_few")


def simulated(n: int, d: int) -> np.ndarray:
    """Rows of three clusters on planes, whose first columns are a size, a step and a wave."""
    random = np.random.default_rng(0)
    directions = np.random.default_rng(1).normal(size=(3, 3, d))
    cluster, z = random.integers(0, 3, n), random.normal(size=(n, 3))
    x = np.einsum("ni,nij->nj", z, directions[cluster]) + 0.3 * random.normal(size=(n, d))
    x[:, 0] = np.abs(x[:, 0])
    x[:, 1] = np.floor(x[:, 0]) + 0.2 * random.normal(size=n)
    x[:, 2] = np.sin(2 * x[:, 3]) + 0.1 * random.normal(size=n)
    return x


def cost(size: str) -> str:
    """A row of the table of costs: CPU seconds of fit and score, peak memory, what was gained."""
    n, d = map(int, size.split("x"))
    x = simulated(n + n // 4, d)
    began = time.process_time()
    model = BoostedDensity(random_state=0).fit(x[:n])
    fitted = time.process_time()
    score = model.score(x[n:])
    done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    base = TractableDensity(random_state=0).fit(x[:n]).score(x[n:])
    cells = [f"{n} x {d}", f"{fitted - began:.0f} + {done - fitted:.0f}", f"{peak:.2f}"]
    cells += [f"{model.n_trees_}", f"{score:.3f}", f"{base:.3f}"]
    return "| " + " | ".join(cells) + " |"


def costs(sizes: list[str]) -> None:
    """Print the table of costs."""
    head = ["table", "CPU s, fit + score", "peak memory, GB", "trees", "test nats", "stack"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for size in sizes:
        call = f"from benchmarks.boosted import cost; print(cost({size!r}))"
        subprocess.run([sys.executable, "-c", call], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cost", nargs="+", help="rows x columns of simulated tables")
    parser.add_argument("--what", nargs="+", choices=WHAT)
    parser.add_argument("--peers", action="store_true", help="other packages' densities as well")
    parser.add_argument("--rows", type=int, help="at most")
    parser.add_argument("--sets", nargs="+", help="by default all")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--models", nargs="+", help="by default all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.cost:
        costs(args.cost)
        return
    if args.data is None and args.what != ["log_z_of_few"]:
        parser.error("--data is required, or --cost")
    for what in args.what or ():
        for row in rows_of(what, args.data, args.sets, args.rows):
            print(f"{what}: {row}", flush=True)
    if args.what:
        return
    known = [*models(0), *(peers(0) if args.peers else ())]
    others = [name for name in known if name in (args.models or known) and name != "stack"]
    head = ["table", "stack, nats", *others, "largest error of log Z", "CPU s of each"]
    head += ["trees over the best other"] * args.peers
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    results = {}
    for name in args.sets or SETS:
        chosen = ["stack", *others]
        found = measure(args.data, name, args.splits, chosen, args.rows or MOST_ROWS)
        results[name] = found
        more = f" {best_peer(found)} |" if args.peers else ""
        print(line(name, found) + more, flush=True)
    if args.json:
        write(args.json, results)


if __name__ == "__main__":
    main()
