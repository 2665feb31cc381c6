"""Subspace RBMs: likelihoods beside plain RBMs, features of shifted images, the cost of steps.

    OMP_NUM_THREADS=1 python -m benchmarks.higher_order subspace --data PATH --part nats
        [--sets NAME ...] [--seeds 3] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.higher_order subspace --part invariance [--seeds 5]
    OMP_NUM_THREADS=1 python -m benchmarks.higher_order subspace --part steps

PATH holds `images/binarized_mnist.npz`, `images/freyfaces.npz` and `debd/jester.npz`. All parts
take `--quick`, a smoke test.

`nats`: `SubspaceRBM` beside `RBMEstimator` with as many weights, both on independent columns and
with 10,000 steps of 100 rows, float32, defaults otherwise. MNIST and jester with their published
parts; Frey faces binarised at 0.5, a random 80, 10 and 10 % (seed 0). The initial biases of
`SubspaceRBM` were chosen on held-out training rows of Frey faces, and the units of a gate on
images, two or four, on the validation rows of seed 0 (`CHOSEN`). Mean log-likelihood of test rows
by the pessimistic end of log Z (brackets of 5,000 temperatures), with the standard error over
seeds, which draw weights, batches and chains; and the mean difference to the plain RBM with the
standard error over rows and seeds.

`invariance`: digits of scikit-learn binarised at half, padded to 12 x 12 pixels and shifted by up
to 2 pixels in each direction, five times each. Half of the images (not of their shifts) train, half
are test images, drawn by the seed; the initial biases were chosen on a third of the training images
of seed 0. Features of the gates, of plain RBMs with as many features, and of plain RBMs with as
many weights; and the pixels themselves: logistic regression on standardised features, its C of five
powers of ten by 3 folds of the training images. Accuracy on test rows, and the mean paired
difference of the gates to each over seeds, with its standard error.

`steps`: time of an epoch beside its matrix products alone, and beside these with the units and
random numbers that a step draws, medians of paired ratios.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._common import seconds, shown, spread, write
from skebm import RBMEstimator, SubspaceRBM
from skebm.partition import AISBracket

N_STEPS, BATCH, N_BETAS = 10_000, 100, 5000
# Number of weights over columns, and units of a gate.
CHOSEN = {"binarized_mnist": (128, 4), "freyfaces": (128, 2), "jester": (64, 2)}
SIZE, SHIFT, N_COPIES = 12, 2, 5
N_FEATURES, N_SUBSPACE = 100, 4


def fitted(model: Any, X: np.ndarray) -> Any:
    """The model, fitted without warnings of convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X)


# ------------------------------------------------------------------------------
# Likelihoods
# ------------------------------------------------------------------------------


def parts_of(data: Path, name: str) -> tuple[np.ndarray, ...]:
    """Training, validation and test rows of bits."""
    if name == "freyfaces":
        X = np.load(data / "images/freyfaces.npz")["X"].reshape(-1, 560) / 255 > 0.5
        X = X[np.random.default_rng(0).permutation(len(X))].astype(np.float32)
        first, second = int(0.8 * len(X)), int(0.9 * len(X))
        return X[:first], X[first:second], X[second:]
    folder = "images" if name == "binarized_mnist" else "debd"
    packed = np.load(data / f"{folder}/{name}.npz")
    d = int(packed["d"])
    names = ("train", "valid", "test")
    return tuple(np.unpackbits(packed[n], axis=1)[:, :d].astype(np.float32) for n in names)


def models_of(name: str, n_rows: int, n_iter: int | None, seed: int) -> dict[str, Any]:
    """A plain RBM and one of subspaces, with as many weights and 10,000 steps of 100 rows."""
    n_weights, k = CHOSEN[name]
    if n_iter is None:
        n_iter = -(-N_STEPS * BATCH // n_rows)
    how: dict[str, Any] = {
        "base": "independent",
        "n_iter": n_iter,
        "random_state": seed,
        "partition": AISBracket(n_betas=N_BETAS),
    }
    return {
        "RBMEstimator": RBMEstimator(n_weights, **how),
        "SubspaceRBM": SubspaceRBM(n_weights // k, k, **how),
    }


def nats(data: Path, sets: list[str], n_seeds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each set and model."""
    for name in sets:
        train, _, test = parts_of(data, name)
        if quick:
            train, test = train[:300], test[:50]
        found: dict[str, list[tuple[np.ndarray, float, float]]] = {}
        for seed in range(n_seeds):
            for kind, model in models_of(name, len(train), 1 if quick else None, seed).items():
                took = seconds(lambda model=model, train=train: fitted(model, train))
                log_p = model.score_samples(test)
                low = log_p - log_p.mean() + model.score(test)  # by the pessimistic log Z
                width = float(np.diff(model.log_partition_bounds_)[0])
                found.setdefault(kind, []).append((low, width, took))
                print(name, kind, seed, f"{low.mean():.2f}", f"{took:.0f} s", flush=True)
        plain = np.array([low for low, _, _ in found["RBMEstimator"]])
        for kind, runs in found.items():
            low = np.array([one for one, _, _ in runs])
            gain = low - plain
            # Of rows, which are the same for all seeds, and of seeds.
            error = np.hypot(gain.mean(0).std(ddof=1) / len(test) ** 0.5, error_of(gain.mean(1)))
            yield {
                "set": name,
                "model": kind,
                "units": "{} x {}".format(*units_of(kind, name)),
                "test nats": f"{low.mean():.2f} ({error_of(low.mean(1)):.2f})",
                "gain on the plain RBM": f"{gain.mean():.2f} ({error:.2f})",
                "width of log Z": float(np.median([width for _, width, _ in runs])),
                "fit, s": float(np.median([took for _, _, took in runs])),
            }


def units_of(kind: str, name: str) -> tuple[int, int]:
    """Gates, and units of each; of a plain RBM one."""
    n_weights, k = CHOSEN[name]
    return (n_weights, 1) if kind == "RBMEstimator" else (n_weights // k, k)


def error_of(values: np.ndarray) -> float:
    """Standard error of a mean over seeds, 0 of one seed."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


# ------------------------------------------------------------------------------
# Features of shifted digits
# ------------------------------------------------------------------------------


def shifted_digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of bits, classes, and the image that each row shows."""
    X, y = load_digits(return_X_y=True)
    rng, first = np.random.default_rng(seed), (SIZE - 8) // 2
    rows = np.zeros((N_COPIES, len(X), SIZE, SIZE), dtype=np.float32)
    for copy in rows:
        for image, place in zip(copy, X.reshape(-1, 8, 8) >= 8, strict=True):
            i, j = first + rng.integers(-SHIFT, SHIFT + 1, 2)
            image[i : i + 8, j : j + 8] = place
    flat = rows.reshape(-1, SIZE * SIZE)
    return flat, np.tile(y, N_COPIES), np.tile(np.arange(len(X)), N_COPIES)


def encoders(quick: bool, seed: int) -> dict[str, Any]:
    """Features by name; None are the pixels."""
    n_iter: int | str = 2 if quick else "auto"
    how: dict[str, Any] = {"base": "independent", "n_iter": n_iter, "random_state": seed}
    return {
        "RBM, as many features": RBMEstimator(N_FEATURES, **how),
        "RBM, as many weights": RBMEstimator(N_FEATURES * N_SUBSPACE, **how),
        "gates and units": SubspaceRBM(N_FEATURES, N_SUBSPACE, features="all", **how),
        "pixels": None,
    }


def accuracy(train: np.ndarray, test: np.ndarray, y: Any, y_test: Any, groups: Any) -> float:
    """Accuracy of a logistic regression on features."""
    model = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        {"logisticregression__C": np.logspace(-4, 0, 5)},
        cv=GroupKFold(3),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train, y, groups=groups)
    return 100 * float(model.score(test, y_test))


def invariance(n_seeds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each kind of features."""
    found: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for seed in range(n_seeds):
        X, y, image = shifted_digits(seed)
        chosen = np.random.default_rng(seed).permutation(image.max() + 1)
        train = np.isin(image, chosen[: len(chosen) // 2])
        for name, encoder in encoders(quick, seed).items():
            codes = X
            if encoder is not None:
                codes = fitted(encoder, X[train]).transform(X)
            kinds = {name: codes}
            if name == "gates and units":
                kinds["gates"] = codes[:, :N_FEATURES]
            for kind, one in kinds.items():
                value = accuracy(one[train], one[~train], y[train], y[~train], image[train])
                found.setdefault(kind, []).append(value)
                sizes[kind] = one.shape[1]
                print(kind, seed, f"{value:.2f}", flush=True)
    gates = np.array(found["gates"])
    for name, values in found.items():
        gain = gates - np.array(values)
        yield {
            "features": name,
            "number": sizes[name],
            "accuracy, %": f"{np.mean(values):.2f} ({error_of(np.array(values)):.2f})",
            "gates are better by": f"{gain.mean():.2f} ({error_of(gain):.2f})",
        }


# ------------------------------------------------------------------------------
# The cost of steps
# ------------------------------------------------------------------------------


def steps(n_repeats: int) -> Iterator[dict[str, Any]]:
    """An epoch of 20,000 rows of 784 columns beside its products alone."""
    rng = np.random.default_rng(0)
    X = (rng.random((20_000, 784)) < 0.2).astype(np.float32)
    for n_gates, k in ((64, 2), (64, 8), (250, 2)):
        warm = SubspaceRBM(
            n_gates,
            k,
            base="independent",
            n_iter=1,
            batch_size=BATCH,
            warm_start=True,
            partition=None,
            random_state=0,
        )
        fitted(warm, X)
        ours, alone, drawn = [], [], []
        for _ in range(n_repeats):
            ours.append(sum(row["dur"] for row in fitted(warm, X).history_[-1:]))
            alone.append(seconds(lambda n=n_gates * k: products(X, n)))
            drawn.append(seconds(lambda n=n_gates * k: products(X, n, draws=True)))
        yield {
            "gates": n_gates,
            "units of each": k,
            "epoch, s": float(np.median(ours)),
            "over products": spread(ours, alone),
            "over products and units": spread(ours, drawn),
        }


@torch.no_grad()
def products(X: np.ndarray, n_units: int, draws: bool = False) -> None:
    """The products of every step of PCD: up, down and of the gradient; with sigmoids and draws."""
    x = torch.from_numpy(X)
    weight, rows = torch.randn(n_units, X.shape[1]) / 30, torch.empty(2 * BATCH, X.shape[1])
    chain, layer = torch.rand(BATCH, X.shape[1]), torch.rand(BATCH, n_units)
    for batch in x.split(BATCH):
        rows[:BATCH], rows[BATCH:] = batch, chain
        h = rows @ weight.t()
        if draws:
            h.sigmoid_()
            layer = (torch.rand(BATCH, n_units) < h[BATCH:]).float()
        p = layer @ weight
        if draws:
            chain = (torch.rand(p.shape) < p.sigmoid_()).float()
        h.t() @ rows


def main(argv: list[str]) -> None:
    """Parse the arguments and print the table of a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--part", choices=("nats", "invariance", "steps"), required=True)
    parser.add_argument("--sets", nargs="+", choices=list(CHOSEN), default=list(CHOSEN))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    started = time.perf_counter()
    if args.part == "nats":
        rows = nats(args.data, args.sets, args.seeds or (1 if args.quick else 3), args.quick)
    elif args.part == "invariance":
        rows = invariance(args.seeds or (2 if args.quick else 5), args.quick)
    else:
        rows = steps(2 if args.quick else 7)
    found = shown(rows)
    print(f"{time.perf_counter() - started:.0f} s")
    write(args.json, {"part": args.part, "rows": found})
