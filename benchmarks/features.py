"""Features of RBMs for a logistic regression, beside scikit-learn's `BernoulliRBM`.

    OMP_NUM_THREADS=1 python -m benchmarks.features --part example [--seeds 5] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.features --data PATH --part sets [--seeds 3]
        [--sets NAME ...] [--json F]

PATH holds `images/*.npz` and `debd/*.npz`. `--quick` is a smoke test.

`example`: scikit-learn's example of `BernoulliRBM`, 1,797 digits and their copies shifted in four
directions, a fifth of them for tests (copies of one digit are in both parts, as there), logistic
regression with C = 6000. `RBMEstimator()` without an argument, beside `BernoulliRBM()`
and with the learning rate of the example, 0.06. Seconds of the processor for the features of the
training rows, of fits that take turns.

`sets`: digits (half of them for tests), 14 x 14 bits of 1,400 characters of KMNIST in place of
binary alphadigits, the first 5,000 images of MNIST and 5,000 test images, and two sets of DEBD,
nltcs and mushrooms, up to 3,000 rows, of which the column with a mean nearest to one half is the
label. `BernoulliRBM` has the learning rate of 0.01, 0.03, 0.06 and 0.1 that is best on a quarter of
the training rows; `RBMEstimator()` has no argument. C is 0.1, 1, 10 or 100, chosen on these rows
for both. Gains are over seeds and test rows, with the standard error of paired rows.

What the default for features is was chosen on the example and on other sets: 4,000 other
characters of KMNIST, 14 x 14 grey values of MNIST, dna, plants, accidents and jester of DEBD.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import shift
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import BernoulliRBM

from benchmarks._common import shown, write
from skebm import RBMEstimator

RATES, PENALTIES = (0.01, 0.03, 0.06, 0.1), (0.1, 1.0, 10.0, 100.0)


class Split(NamedTuple):
    """Training and test rows with their classes."""

    X: np.ndarray
    X_test: np.ndarray
    y: np.ndarray
    y_test: np.ndarray


# ------------------------------------------------------------------------------
# Rows
# ------------------------------------------------------------------------------


def shifted_digits() -> Split:
    """Digits and their copies shifted by a pixel to four sides, as in scikit-learn's example."""
    pixels, digit = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8) / 16
    sides = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]
    X = np.concatenate([shift(images, (0, *side), order=0) for side in sides]).reshape(-1, 64)
    return Split(*train_test_split(X, np.tile(digit, 5), test_size=0.2, random_state=0))


def digits() -> Split:
    """Half of the digits for training, by class."""
    X, y = load_digits(return_X_y=True)
    return Split(*train_test_split(X / 16, y, test_size=0.5, random_state=0, stratify=y))


def characters(data: Path) -> Split:
    """Few binary images of characters."""
    stored, (n, n_test) = np.load(data / "images/kmnist_test.npz"), (1400, 3000)
    order = np.random.default_rng(0).permutation(len(stored["X"]))[: n + n_test]
    means = stored["X"][order].reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
    X, y = (means > 127).astype(float), stored["y"][order]
    return Split(X[:n], X[n:], y[:n], y[n:])


def mnist(data: Path) -> Split:
    """Grey values of the first images."""
    stored, n = np.load(data / "images/mnist.npz"), 5000
    X, X_test = (stored[f"X_{part}"][:n].reshape(n, -1) / 255 for part in ("train", "test"))
    return Split(X, X_test, stored["y_train"][:n], stored["y_test"][:n])


def bits(data: Path, name: str) -> Split:
    """Bits without the one that is the label."""
    stored, rng = np.load(data / f"debd/{name}.npz"), np.random.default_rng(0)
    d = int(stored["d"])
    train, test = (
        rng.permutation(np.unpackbits(stored[part], axis=1)[:, :d])[:3000]
        for part in ("train", "test")
    )
    label = int(np.abs(train.mean(0) - 0.5).argmin())
    X, X_test = (np.delete(part, label, axis=1).astype(float) for part in (train, test))
    return Split(X, X_test, train[:, label], test[:, label])


SETS = {
    "digits": lambda data: digits(),
    "characters": characters,
    "MNIST": mnist,
    "nltcs": lambda data: bits(data, "nltcs"),
    "mushrooms": lambda data: bits(data, "mushrooms"),
}


# ------------------------------------------------------------------------------
# Features and classifiers
# ------------------------------------------------------------------------------


def features(model: Any, X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Features of the rows that a model is fitted to, and of others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [model.fit_transform(X), *(model.transform(other) for other in others)]


def logistic(C: float, X: np.ndarray, y: np.ndarray, n_iter: int = 300) -> LogisticRegression:
    """A logistic regression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegression(C=C, max_iter=n_iter).fit(X, y)


def tuned(models: list[Any], rows: Split) -> tuple[Any, np.ndarray]:
    """The model that is best on a quarter of the training rows; and which test rows are right."""
    X, X_valid, y, y_valid = train_test_split(
        rows.X, rows.y, test_size=0.25, random_state=0, stratify=rows.y
    )
    best, best_model, best_C = -1.0, models[0], 1.0
    for model in models:
        found, valid = features(clone(model), X, X_valid)
        for C in PENALTIES:
            score = logistic(C, found, y).score(valid, y_valid)
            if score > best:
                best, best_model, best_C = score, model, C
    found, test = features(clone(best_model), rows.X, rows.X_test)
    return best_model, logistic(best_C, found, rows.y).predict(test) == rows.y_test


def of_sets(data: Path, n_seeds: int, names: list[str], quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each set."""
    for name in names:
        rows = SETS[name](data)
        if quick:
            rows = Split(*(part[:300] for part in rows))
        ours, theirs, rates = [], [], []
        for seed in range(n_seeds):
            peers = [BernoulliRBM(learning_rate=rate, random_state=seed) for rate in RATES]
            peer, right = tuned(peers, rows)
            theirs.append(right)
            rates.append(peer.learning_rate)
            ours.append(tuned([RBMEstimator(random_state=seed)], rows)[1])
        _, pixels = tuned([_Columns()], rows)
        gain = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
        yield {
            "set": name,
            "rows": len(rows.X),
            "columns": rows.X.shape[1],
            "columns alone, %": 100 * float(pixels.mean()),
            "BernoulliRBM tuned, %": 100 * float(np.mean(theirs)),
            "its rates": sorted(set(rates)),
            "RBMEstimator(), %": 100 * float(np.mean(ours)),
            "gain": 100 * float(gain.mean()),
            "error": 100 * float(gain.std(ddof=1) / len(gain) ** 0.5),
        }


class _Columns(LogisticRegression):
    """Columns as they are, as features."""

    def fit_transform(self, X: np.ndarray, y: Any = None) -> np.ndarray:
        return X

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X


def of_example(n_seeds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each model of the example."""
    rows = shifted_digits()
    if quick:
        rows = Split(*(part[:300] for part in rows))
    score = logistic(100.0, rows.X, rows.y, 1000).score(rows.X_test, rows.y_test)
    yield {"features": "pixels", "accuracy": score, "error": 0.0, "processor, s": 0.0}
    models = {
        "BernoulliRBM()": BernoulliRBM(),
        "BernoulliRBM(learning_rate=0.06)": BernoulliRBM(learning_rate=0.06),
        "RBMEstimator()": RBMEstimator(),
    }
    scores: dict[str, list[float]] = {name: [] for name in models}
    took: dict[str, list[float]] = {name: [] for name in models}
    for seed in range(n_seeds):
        for name, model in models.items():
            start = time.process_time()
            (found,) = features(model.set_params(random_state=seed), rows.X)
            took[name].append(time.process_time() - start)
            fitted = logistic(6000.0, found, rows.y, 1000)
            scores[name].append(fitted.score(model.transform(rows.X_test), rows.y_test))
    for name in models:
        yield {
            "features": name,
            "accuracy": float(np.mean(scores[name])),
            "error": float(np.std(scores[name], ddof=1) / n_seeds**0.5),
            "processor, s": float(np.median(took[name])),
        }


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--part", choices=["example", "sets"], default="sets")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.part == "example":
        found = shown(of_example(args.seeds, args.quick))
    else:
        found = shown(of_sets(args.data, args.seeds, args.sets, args.quick))
    write(args.json, {"part": args.part, "rows": found})


if __name__ == "__main__":
    main()
