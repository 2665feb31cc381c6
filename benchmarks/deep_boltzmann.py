"""Deep Boltzmann machines: likelihood bounds beside RBMs, cost of an epoch, MNIST.

    OMP_NUM_THREADS=1 python -m benchmarks.deep_boltzmann [--only small speed mnist]
        [--data PATH] [--sets digits nltcs plants mnist5k] [--epochs 40 20] [--json F]

Protocols.

- *small*: digits of scikit-learn, binarised at 8 of 16 (a random fifth each for validation and
  test, seed 0), DEBD sets with their published splits, and the first 5,000 training rows of
  binarised MNIST. Hidden layers of 128 and 64 units with each start, and RBMs of 128 units, which
  are the first layers of the machines, and of 192; all other settings are defaults. Bounds are at
  the largest credible log Z, those of deep machines by 100 importance weights; ``+-`` is the
  standard error of the mean over the test rows, and "gain" the mean difference to the RBM of 128
  units, row by row, with its standard error. Independent columns and Chow-Liu trees are exact.
- *speed*: seconds of an epoch of 5,000 random rows of 784 bits with layers of 500 and 1,000 units,
  batches of 100 and two mean-field steps, and of its matrix products alone, medians of 5.
- *mnist*: binarised MNIST, an RBM of 500 units, and layers of 500 and 1,000 units that start at
  it; bounds of 2,000 validation rows and, once, of the test rows. `epochs` are those of the RBM and
  of the joint training that follows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator

from benchmarks._common import shown, write
from benchmarks.density import load
from skebm import DeepBoltzmannMachine, RBMEstimator
from skebm.distributions import ChowLiuTree, IndependentBernoulli
from skebm.objectives import Penalty
from skebm.partition import AISBracket
from skebm.samplers import Persistent

SETS = ("digits", "nltcs", "plants", "mnist5k")
STARTS = ("auto", None, "layerwise")
LAYERS = (128, 64)
SIZES, N_ROWS, BATCH, N_REPEATS = (784, 500, 1000), 5_000, 100, 5


def rows_of(name: str, data: Path) -> tuple[np.ndarray, ...]:
    """Training, validation and test rows of a set."""
    if name == "digits":
        X = (load_digits().data >= 8).astype(np.float32)
        X = X[np.random.default_rng(0).permutation(len(X))]
        n = len(X) // 5
        return X[2 * n :], X[:n], X[n : 2 * n]
    return load(data, name)


# ------------------------------------------------------------------------------
# Small sets
# ------------------------------------------------------------------------------


def exact(name: str, q: Any, valid: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Log-likelihoods by a tractable distribution."""
    with torch.no_grad():
        values = [q.log_prob(torch.from_numpy(part)).double().numpy() for part in (valid, test)]
    return {
        "model": name,
        "valid": f"{values[0].mean():.3f}",
        "test": f"{values[1].mean():.3f}",
        "gain": "",
        "+-": f"{values[1].std() / np.sqrt(len(test)):.3f}",
        "mean field": "",
        "bracket": "exact",
        "fit, s": "",
        "score, s": "",
    }


def estimated(
    name: str, model: Any, train: Any, valid: Any, test: Any, first: list[Any] | None = None
) -> dict[str, Any]:
    """Bounds by a fitted model, at the pessimistic end of log Z, and gains over those of `first`.

    Where that is empty, these bounds are added to it.
    """
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train)
        fitted = time.perf_counter()
        held_out, values = model.score(valid), model.score_samples(test)
    low, high = model.log_partition_bounds_
    values = values + model.log_partition_ - high
    gain = ""
    if first:
        more = values - first[0]
        gain = f"{more.mean():.3f} ({more.std() / np.sqrt(len(test)):.3f})"
    elif first is not None:
        first.append(values)
    field = ""
    if isinstance(model, DeepBoltzmannMachine):
        field = f"{model.posterior_means(test).bound.mean() - high:.3f}"
    return {
        "model": name,
        "valid": f"{held_out:.3f}",
        "test": f"{values.mean():.3f}",
        "gain": gain,
        "+-": f"{values.std() / np.sqrt(len(test)):.3f}",
        "mean field": field,
        "bracket": f"{high - low:.2f}",
        "fit, s": f"{fitted - started:.0f}",
        "score, s": f"{time.perf_counter() - fitted:.0f}",
    }


def small(data: Path, sets: list[str]) -> Iterator[dict[str, Any]]:
    """Every model on every set."""
    for name in sets:
        train, valid, test = rows_of(name, data)
        x = torch.from_numpy(train)
        about = {"set": name, "test rows": len(test)}
        yield about | exact("independent", IndependentBernoulli.fit(x), valid, test)
        yield about | exact("Chow-Liu", ChowLiuTree.fit(x, smoothing=1e-4), valid, test)
        first: list[Any] = []
        for n in (LAYERS[0], sum(LAYERS)):
            rbm = RBMEstimator(n, random_state=0)
            yield about | estimated(f"RBM of {n} units", rbm, train, valid, test, first)
        for start in STARTS:
            model = DeepBoltzmannMachine(LAYERS, pretraining=start, random_state=0)
            name = f"DBM, {start or 'random'} start"
            yield about | estimated(name, model, train, valid, test, first)


# ------------------------------------------------------------------------------
# Cost of an epoch
# ------------------------------------------------------------------------------


def products(n_batches: int) -> float:
    """Seconds of the matrix products of an epoch."""
    d, h, b = SIZES
    x, row = torch.rand(BATCH, d), torch.rand(2 * BATCH, d + b)
    hidden, beside, both = torch.rand(BATCH, h), torch.rand(BATCH, b), torch.rand(2 * BATCH, h)
    weight, out = torch.rand(h, d + b), torch.empty(h, d + b)
    up, first = weight[:, d:], weight[:, :d]
    started = time.perf_counter()
    for _ in range(n_batches):
        torch.mm(x, first.t())
        for _ in range(2):  # mean field
            torch.mm(beside, up.t())
            torch.mm(hidden, up)
        torch.mm(hidden, weight)  # chains
        torch.mm(row, weight.t())
        torch.mm(both.t(), row, out=out)
    return time.perf_counter() - started


def speed() -> Iterator[dict[str, Any]]:
    """Time of an epoch over that of its products."""
    X = (np.random.default_rng(0).random((N_ROWS, SIZES[0])) < 0.2).astype(np.float32)
    model = DeepBoltzmannMachine(
        SIZES[1:], batch_size=BATCH, learning_rate=0.01, n_iter=N_REPEATS + 1, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    epoch = median(row["dur"] for row in model.history_[1:])
    alone = median(products(N_ROWS // BATCH) for _ in range(N_REPEATS))
    yield {
        "epoch, s": f"{epoch:.2f}",
        "products, s": f"{alone:.2f}",
        "ratio": f"{epoch / alone:.2f}",
    }


# ------------------------------------------------------------------------------
# MNIST
# ------------------------------------------------------------------------------


def mnist(data: Path, epochs: tuple[int, int], l1: float) -> Iterator[dict[str, Any]]:
    """An RBM of 500 units, and layers of 500 and 1,000 units that start at it."""
    train, valid, test = rows_of("mnist", data)
    settings: dict[str, Any] = {
        "batch_size": 100,
        "learning_rate": 0.05,
        "penalty": Penalty(l1=l1) if l1 else None,
        "partition": AISBracket(n_chains=200, n_betas=20_000, n_steps=2000),
        "random_state": 0,
    }
    rbm = RBMEstimator(SIZES[1], n_iter=epochs[0], base="independent", **settings)
    rbm.set_params(chains=Persistent(n_chains=100))
    deep = DeepBoltzmannMachine(SIZES[1:], n_iter=epochs[1], **settings)
    deep.set_params(pretraining=FrozenEstimator(rbm))
    first: list[Any] = []
    for name, n, model in (("RBM 500", epochs[0], rbm), ("DBM 500-1000", epochs[1], deep)):
        found = estimated(name, model, train, valid[:2000], test, first)
        yield {"epochs": n, "l1": l1} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=["small", "speed"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--epochs", type=int, nargs=2, default=(40, 20))
    parser.add_argument("--l1", type=float, default=0.0)
    parser.add_argument("--json")
    args = parser.parse_args()
    parts = {
        "small": lambda: small(args.data, args.sets),
        "speed": speed,
        "mnist": lambda: mnist(args.data, args.epochs, args.l1),
    }
    write(args.json, {name: shown(parts[name]()) for name in args.only})


if __name__ == "__main__":
    main()
