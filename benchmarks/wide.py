"""Tables of many columns: time and memory of default fits, and their bases against others.

    OMP_NUM_THREADS=1 python -m benchmarks.wide --data PATH [--part fits] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.wide --data PATH --part bases [--half report] [--json F]

PATH holds `images/mnist.npz`, `images/kmnist_test.npz`, `images/freyfaces.npz`, `adbench/<set>.npz`
(normal rows) and `tabular/sonar.npz`.

`fits`: 1,000 MNIST images of 784 pixels (their digits as classes), and draws of four normal
distributions of covariance W W' + I with W of eight columns, 2,000 x 1,555 and 5,000 x 512. Default
settings; rows for `RBMEstimator` and `BoltzmannMachineDensity` are binary, above the median of each
column (above 127 for pixels). Each fit has a fresh process of one thread. `fit` and `first score`
(100 rows, with log Z) are seconds of the processor's time, `wall` those of the clock for both; `MB`
is ru_maxrss.

`bases`: mean log-likelihood of held-out rows in nats with standard errors, of at most 1,000 rows
fitted and as many scored, standardised by the former; images and faces dequantised uniformly.
`new` is the stack of low rank (also on tables of up to 100 columns, where "auto" does not use it),
`old` the mixture of full covariances that "auto" was before; gains are paired. Peers are
scikit-learn's: `mixture, BIC` of 1 to 16 components, diagonal, tied or (up to 200 columns) full;
`factors` and `PCA`, of 1 to 128 factors by three folds. `--half` is a random half of the tables:
settings were chosen on `choose`, and `report` was not looked at for that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold

from benchmarks._common import table, write
from benchmarks.clean_rows import error_of
from benchmarks.memory import peak
from skebm import (
    BoltzmannMachineDensity,
    ContrastiveDivergenceDensity,
    JEMClassifier,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
)
from skebm.distributions import Stack

ESTIMATORS: tuple[Any, ...] = (
    ScoreMatchingDensity,
    ContrastiveDivergenceDensity,
    NCEDensity,
    JEMClassifier,
    RBMEstimator,
    BoltzmannMachineDensity,
)
OF_BITS = (RBMEstimator, BoltzmannMachineDensity)
BY_NAME = {cls.__name__: cls for cls in ESTIMATORS}
FITS = ("mnist 1000 x 784", "synthetic 2000 x 1555", "synthetic 5000 x 512")
ADBENCH = ("musk", "mnist", "optdigits", "SpamBase", "letter")
CHOSEN_ON = ("pixels", "six normals", "freyfaces", "one normal", "SpamBase", "curved")
MOST_ROWS, MOST_FULL = 1000, 200


def images(path: Path, key: str, n: int) -> np.ndarray:
    """The first n images, flat."""
    x = np.load(path)[key][:n]
    return x.reshape(len(x), -1).astype(float)


def synthetic(n: int, d: int, k: int, rank: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws of k normal distributions of covariance W W' + I, and which one each is from."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, k, n)
    factors, means = rng.normal(size=(k, d, rank)), rng.normal(size=(k, d))
    hidden = rng.normal(size=(n, rank))
    x = means[which] + rng.normal(size=(n, d))
    for number in range(k):
        x[which == number] += hidden[which == number] @ factors[number].T
    return x, which


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def fit_rows(name: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows and classes of a table of the first part."""
    if name.startswith("mnist"):
        path = data / "images" / "mnist.npz"
        return images(path, "X_train", 1000), np.load(path)["y_train"][:1000]
    n, d = (int(part) for part in name.split()[1::2])
    return synthetic(n, d, 4, 8)


def measure_fit(name: str, label: str, data: Path) -> dict[str, object]:
    """A line of the table; to be called in a fresh process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    X, y = fit_rows(name, data)
    cls = BY_NAME[label]
    if cls in OF_BITS:
        X = ((127 if name.startswith("mnist") else np.median(X, 0)) < X).astype(float)
    model = cls(random_state=0)
    started, wall = time.process_time(), time.perf_counter()
    model.fit(X, y) if cls is JEMClassifier else model.fit(X)
    fitted = time.process_time()
    model.score_samples(X[:100])
    return {
        "table": name,
        "estimator": label,
        "fit": f"{fitted - started:.0f}",
        "first score": f"{time.process_time() - fitted:.0f}",
        "wall": f"{time.perf_counter() - wall:.0f}",
        "MB": f"{peak() / 1e6:.0f}",
        "log Z": f"{model.log_partition_:.2f} ({model.log_partition_std_:.2f})",
    }


def fits(args: argparse.Namespace) -> list[dict[str, object]]:
    """Every estimator on every table, each in a fresh process."""
    found = []
    context = multiprocessing.get_context("spawn")
    for name in args.sets or FITS:
        for label in args.estimators:
            with context.Pool(1) as pool:
                found.append(pool.apply(measure_fit, (name, label, args.data)))
            print(table(found[-1:]).splitlines()[-1], flush=True)
    return found


# ------------------------------------------------------------------------------
# Bases
# ------------------------------------------------------------------------------


def tables(data: Path) -> dict[str, np.ndarray]:
    """Tables of the second part by name."""
    rng, found = np.random.default_rng(0), {}
    for path in sorted((data / "adbench").glob("*.npz")):
        name = path.stem.partition("_")[2]
        if name in ADBENCH:
            content = np.load(path)
            found[name] = np.unique(content["X"][content["y"] == 0].astype(float), axis=0)
    found["sonar"] = np.load(data / "tabular" / "sonar.npz", allow_pickle=True)["X"].astype(float)
    for name, file, key in (
        ("pixels", "mnist", "X_train"),
        ("kmnist", "kmnist_test", "X"),
        ("freyfaces", "freyfaces", "X"),
    ):
        x = images(data / "images" / f"{file}.npz", key, 4000)
        found[name] = x + rng.random(x.shape)
    found["six normals"] = synthetic(4000, 512, 6, 12)[0]
    found["one normal"] = synthetic(4000, 200, 1, 40)[0]
    hidden, maps = rng.normal(size=(4000, 6)), rng.normal(size=(6, 150))
    found["curved"] = np.sin(hidden @ maps) + 0.2 * rng.standard_t(4, (4000, 150))
    return found


def split(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Train and test rows, standardised by the former."""
    X = X[np.random.default_rng(0).permutation(len(X))]
    n = min(MOST_ROWS, len(X) // 2)
    train, test = X[:n], X[n : n + MOST_ROWS]
    scale = train.std(0)
    scale[scale == 0] = 1.0
    return (train - train.mean(0)) / scale, (test - train.mean(0)) / scale


def low_rank(train: np.ndarray) -> Any:
    """The stack of "auto" for many columns."""
    return Stack.fit(torch.as_tensor(train), low_rank=True)


def full(train: np.ndarray) -> Any:
    """The mixture of full covariances, in units of the standardised columns."""
    settings: dict[str, Any] = {"base": "mixture", "standardize": False, "dtype": "float64"}
    return ScoreMatchingDensity(n_iter=0, random_state=0, **settings).fit(train).base_


def mixture(train: np.ndarray) -> Any:
    """scikit-learn's mixture of least BIC."""
    kinds = ("diag", "tied", "full") if train.shape[1] <= MOST_FULL else ("diag",)
    models = [
        GaussianMixture(k, covariance_type=kind, random_state=0, reg_covar=1e-3).fit(train)
        for kind in kinds
        for k in (1, 2, 4, 8, 16)
    ]
    return min(models, key=lambda model: model.bic(train))


def searched(model: Any) -> Callable[[np.ndarray], Any]:
    """scikit-learn's model with the number of factors of the best held-out likelihood."""

    def fit(train: np.ndarray) -> Any:
        most = min(train.shape[1] - 1, len(train) // 2)
        grid = {"n_components": [k for k in (1, 4, 16, 64, 128) if k <= most]}
        folds = KFold(3, shuffle=True, random_state=0)
        return GridSearchCV(model, grid, cv=folds).fit(train).best_estimator_

    return fit


METHODS: dict[str, Callable[[np.ndarray], Any]] = {
    "new": low_rank,
    "old": full,
    "mixture, BIC": mixture,
    "factors": searched(FactorAnalysis(random_state=0)),
    "PCA": searched(PCA(random_state=0)),
}


def measure_bases(name: str, X: np.ndarray) -> dict[str, object]:
    """A line of the table."""
    train, test = split(X)
    rows, took = {}, {}
    for label, fit in METHODS.items():
        started = time.process_time()
        model = fit(train)
        if hasattr(model, "score_samples"):
            rows[label] = model.score_samples(test)
        else:
            rows[label] = model.log_prob(torch.as_tensor(test)).numpy()
        took[label] = time.process_time() - started
    found: dict[str, object] = {"set": f"{name}, {len(train)} x {train.shape[1]}"}
    found["new"] = error_of(rows["new"])
    for label in list(METHODS)[1:]:
        found[f"above {label}"] = error_of(rows["new"] - rows[label])
    found["seconds, new / old"] = f"{took['new']:.1f} / {took['old']:.1f}"
    return found


def bases(args: argparse.Namespace) -> list[dict[str, object]]:
    """Every base on the tables of a half."""
    everything, found = tables(args.data), []
    wanted = {"choose": (True,), "report": (False,), "all": (True, False)}[args.half]
    for name in args.sets or [name for name in everything if (name in CHOSEN_ON) in wanted]:
        found.append(measure_bases(name, everything[name]))
        print(table(found[-1:]).splitlines()[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", choices=("fits", "bases"), default="fits")
    parser.add_argument("--half", choices=("choose", "report", "all"), default="report")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--estimators", nargs="+", default=list(BY_NAME), choices=BY_NAME)
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = fits(args) if args.part == "fits" else bases(args)
    print("\n" + table(found))
    write(args.json, {"wide": found, "part": args.part})


if __name__ == "__main__":
    main()
