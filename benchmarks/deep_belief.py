"""Deep belief networks on MNIST: the bound of log p(x), features, pre-training, the cost of steps.

    OMP_NUM_THREADS=1 python -m benchmarks.deep_belief --data PATH --part bound
        [--n-steps 120000] [--tops NAME ...] [--bracket CHAINS TEMPERATURES] [--keep DIR]
        [--open-test] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.deep_belief --data PATH --part features
        [--sizes 500 1000] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.deep_belief --data PATH --part pretraining
        [--labels 100 1000 10000] [--seeds 5] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.deep_belief --part steps [--json F]

PATH holds `images/binarized_mnist.npz` and `images/mnist.npz`. All parts take `--quick`, a smoke
test on few rows.

`bound`: 784-500-1000 on the fixed binarised MNIST of 50,000 training rows, each RBM with PCD, 100
chains, batches of 100, a learning rate that falls linearly to a hundredth; the first has a learning
rate of 0.05 and an l1 penalty of 0.0003, the settings of the second are in `TOPS`: what it is
fitted to, and whether it starts from new weights or from those of the first RBM upside down, with
new ones of the further units. The candidate with the best `score` of the 10,000 validation rows is
the one whose test rows are opened, once, with `--open-test`. Bounds are by 100 draws of the hidden
layer of each row, and by the pessimistic end of log Z: the largest of forward annealing and reverse
annealing from three starts, plus two standard errors. `bracket` is the distance from the lower to
the upper end. The first RBM alone is beside it. `--keep` stores the fitted RBMs there and goes on
from them.

`features`: error of `LogisticRegression` on the 10,000 test images (grey values in [0, 1]), fitted
to the first 50,000 training images, its C and what it is fitted to chosen on the other 10,000.

`pretraining`: a network 784-500-1000-10 of sigmoids, trained with labels of the first n rows of a
permutation of the 50,000 by AdamW, from random weights (those of torch) and from the weights of a
deep belief network that was fitted to all 50,000 images without labels. Both with the same grid of
learning rates and weight decays, of which each takes the best for n labels on validation images,
as many as labels, and stops early by these. Error of the 10,000 test images: mean over seeds (of
rows, order of batches and random weights), and the mean paired difference with its standard error.

`steps`: time of an epoch of each RBM beside its matrix products, sigmoids and random numbers alone.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from benchmarks._common import seconds, shown, spread, write
from benchmarks.rbm_speed import floor_steps
from skebm import DeepBeliefNetwork, RBMEstimator
from skebm.objectives import Centering, Penalty
from skebm.partition import AISBracket
from skebm.samplers import Persistent
from skebm.training import SGD

BATCH = 100
FIRST = {"penalty": Penalty(l1=0.0003), "learning_rate": 0.05}
# The second RBM of the candidates, and what it is fitted to.
TOPS: dict[str, dict[str, Any]] = {
    "states": {"upper_input": "states", "n_steps": 10_000, "learning_rate": 0.05},
    "states, upside down": {"upper_input": "states", "n_steps": 5000, "learning_rate": 0.02},
    "probabilities, upside down": {
        "upper_input": "probabilities",
        "n_steps": 5000,
        "learning_rate": 0.02,
    },
}
N_DRAWS = 100

FEATURE_EPOCHS = 15
COSTS = (0.01, 0.1, 1.0, 10.0)
RATES, DECAYS = (0.001, 0.003), (0.0, 0.1)
PATIENCE, MOST_STEPS, MOST_EPOCHS = 15, 2000, 200


# ------------------------------------------------------------------------------
# The bound
# ------------------------------------------------------------------------------


def binarised(data: Path, n: int | None) -> tuple[np.ndarray, ...]:
    """Train, valid and test rows, float32; the first n of each."""
    packed = np.load(data / "images/binarized_mnist.npz")
    parts = (np.unpackbits(packed[part], axis=1)[:n, :784] for part in ("train", "valid", "test"))
    return tuple(part.astype(np.float32) for part in parts)


def machine_of(n_hidden: int, n_rows: int, n_steps: int, **params: Any) -> RBMEstimator:
    """An RBM with the settings that the tables of densities use, and so many steps."""
    settings = {
        "base": "independent",
        "batch_size": BATCH,
        "n_iter": max(1, round(n_steps * BATCH / n_rows)),
        "chains": Persistent(n_chains=100),
        "centering": Centering(precondition=0.5),
        "optimizer": SGD(schedule="linear"),
        "random_state": 0,
    }
    return RBMEstimator(n_hidden, **settings | params)


def kept(folder: Path | None, name: str, make: Any) -> Any:
    """What `make` returns, or what an earlier run stored under the name."""
    if folder is None:
        return make()
    path = folder / f"{name}.pkl"
    if path.exists():
        return pickle.loads(path.read_bytes())
    found = make()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(found))
    return found


def on_top(
    first: RBMEstimator, top: RBMEstimator, X: np.ndarray, upper_input: str, upside_down: bool
) -> Any:
    """The network that `fit` would make of these settings, of a first RBM that is fitted already.

    A small network is fitted for a step, and its RBMs are then replaced.
    """
    small = RBMEstimator(n_iter=1)
    model = DeepBeliefNetwork((13, 1), rbm=small, upper_input=upper_input, random_state=0)
    model.set_params(n_draws=N_DRAWS).fit(X[:100])
    rows = model._upper_rows(first.transform(X), np.random.RandomState(0))
    model.rbms_ = [first, top]
    if not upside_down:
        top.fit(rows)
        return model
    n_iter = top.n_iter
    top.set_params(n_iter=0).fit(rows)
    weight, bias = np.array(top.components_), np.array(top.intercept_hidden_)
    weight[: X.shape[1]], bias[: X.shape[1]] = first.components_.T, first.intercept_visible_
    top.components_, top.intercept_hidden_ = weight, bias
    top.intercept_visible_ = first.intercept_hidden_
    top.set_params(n_iter=n_iter, warm_start=True).fit(rows)
    return model


def entry(name: str, model: Any, X: np.ndarray, took: float) -> dict[str, Any]:
    """A row of the table."""
    started = time.perf_counter()
    low, high = model.log_partition_bounds_
    bound = -model.energy(X)
    return {
        "model": name,
        "score": f"{bound.mean() - high:.3f}",
        "std. error": f"{bound.std() / len(X) ** 0.5:.3f}",
        "with log Z itself": f"{bound.mean() - model.log_partition_:.3f}",
        "log Z": f"{model.log_partition_:.2f}",
        "bracket": f"{high - low:.2f}",
        "fit, s": round(took),
        "score, s": round(time.perf_counter() - started),
    }


def bound(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows for the RBM alone and for each candidate; with the test rows, of the best one."""
    train, valid, test = binarised(args.data, 2000 if args.quick else None)
    sizes, n_steps = ((20, 800), 200) if args.quick else ((500, 1000), args.n_steps)
    chains, temperatures = (20, 200) if args.quick else args.bracket
    bracket = AISBracket(n_chains=chains, n_betas=temperatures)
    started = time.perf_counter()
    first = kept(
        args.keep,
        f"rbm-{sizes[0]}-{n_steps}",
        lambda: machine_of(sizes[0], len(train), n_steps, **FIRST).fit(train),
    ).set_params(partition=bracket)
    took = time.perf_counter() - started
    models = {f"RBM {sizes[0]}": first}
    yield {"rows": "valid"} | entry(f"RBM {sizes[0]}", first, valid, took)
    for name in args.tops:
        params, started = dict(TOPS[name]), time.perf_counter()
        upper_input = params.pop("upper_input")
        more = 100 if args.quick else params["n_steps"]
        top = machine_of(sizes[1], len(train), more, learning_rate=params["learning_rate"])
        label = f"DBN {sizes[0]}-{sizes[1]}, {name}"
        model = kept(
            args.keep,
            f"dbn-{sizes[1]}-{more}-{name}".replace(", ", "-").replace(" ", "-"),
            lambda top=top, upper_input=upper_input, name=name: on_top(
                first, top, train, upper_input, "upside down" in name
            ),
        )
        model.rbms_[-1].set_params(partition=bracket)
        models[label] = model
        yield {"rows": "valid"} | entry(label, model, valid, time.perf_counter() - started)
    if args.open_test:
        best = max(list(models)[1:], key=lambda name: models[name].score(valid))
        for name in (f"RBM {sizes[0]}", best):
            yield {"rows": "test"} | entry(name, models[name], test, 0.0)


# ------------------------------------------------------------------------------
# Features and pre-training
# ------------------------------------------------------------------------------


def images(data: Path, quick: bool) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Rows of grey values in [0, 1] and labels: 50,000 to train, 10,000 to choose, 10,000 test."""
    found = np.load(data / "images/mnist.npz")
    X = found["X_train"].reshape(-1, 784).astype(np.float32) / 255
    test = found["X_test"].reshape(-1, 784).astype(np.float32) / 255
    y, y_test = found["y_train"].astype(int), found["y_test"].astype(int)
    n = 1000 if quick else 50_000
    few = slice(50_000, 50_500 if quick else None)
    return (X[:n], y[:n]), (X[few], y[few]), (test, y_test)


def network_of_features(args: argparse.Namespace, X: np.ndarray) -> DeepBeliefNetwork:
    """The network whose features are classified, and from which training starts."""
    sizes, n_epochs = ((30, 30), 2) if args.quick else (tuple(args.sizes), FEATURE_EPOCHS)
    rbm = RBMEstimator(
        base="independent",
        learning_rate=0.05,
        batch_size=BATCH,
        n_iter=n_epochs,
        chains=Persistent(n_chains=100),
        centering=Centering(precondition=0.5),
        optimizer=SGD(schedule="linear"),
        penalty=Penalty(l1=0.0001),
        partition=None,
    )
    name = f"features-{'-'.join(map(str, sizes))}-{n_epochs}"
    network = DeepBeliefNetwork(sizes, rbm=rbm, random_state=0)
    return kept(args.keep, name, lambda: network.fit(X))


def features(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Errors of logistic regressions."""
    (X, y), (X_valid, y_valid), (X_test, y_test) = images(args.data, args.quick)
    started = time.perf_counter()
    model = network_of_features(args, X)
    took = time.perf_counter() - started
    layers = [[rows, *model.transform_layers(rows)] for rows in (X, X_valid, X_test)]
    kinds = {
        "pixels": [0],
        "RBM": [1],
        "DBN": [2],
        "RBM and DBN": [1, 2],
    }
    for name, places in kinds.items():
        train, valid, test = ([rows[k] for k in places] for rows in layers)
        train, valid, test = (np.concatenate(rows, 1) for rows in (train, valid, test))
        best = None
        for cost in COSTS:
            classifier = LogisticRegression(C=cost, max_iter=60 if args.quick else 150)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 150 iterations are enough for a comparison
                error = 100 - 100 * classifier.fit(train, y).score(valid, y_valid)
            if best is None or error < best[0]:
                best = (error, cost, classifier)
        error, cost, classifier = best
        yield {
            "features": name,
            "columns": train.shape[1],
            "C": cost,
            "valid error, %": f"{error:.2f}",
            "test error, %": f"{100 - 100 * classifier.score(test, y_test):.2f}",
            "fit of the network, s": round(took),
        }


def random_network(like: nn.Sequential, seed: int) -> nn.Sequential:
    """A network of the same layers with the random weights of torch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made: list[nn.Module] = [
            nn.Linear(layer.in_features, layer.out_features)
            if isinstance(layer, nn.Linear)
            else nn.Sigmoid()
            for layer in like
        ]
    return nn.Sequential(*made)


def error_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of wrong labels in percent."""
    with torch.no_grad():
        wrong = [
            (network(a).argmax(1) != b).sum()
            for a, b in zip(x.split(1000), y.split(1000), strict=True)
        ]
    return 100 * float(sum(wrong)) / len(y)


def trained(
    network: nn.Module, parts: Any, rate: float, decay: float, seed: int
) -> tuple[float, nn.Module]:
    """The lowest error of the validation rows during training, and the network at it."""
    (x, y), (x_valid, y_valid) = parts
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=decay)
    size = min(BATCH, max(10, len(x) // 10))
    n_epochs = min(MOST_EPOCHS, MOST_STEPS * size // len(x))
    best, at, since = 101.0, network, 0
    for _ in range(n_epochs):
        for index in torch.randperm(len(x), generator=generator).split(size):
            loss = nn.functional.cross_entropy(network(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = error_of(network, x_valid, y_valid)
        since += 1
        if error < best:
            best, at, since = error, copy.deepcopy(network), 0
        if since >= PATIENCE and best < 60:
            break
    return best, at


def pretraining(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of labels."""
    (X, y), valid, test = images(args.data, args.quick)
    model = network_of_features(args, X)
    X, y, *rest = (torch.as_tensor(part) for part in (X, y, *valid, *test))
    x_valid, y_valid, x_test, y_test = rest
    for n in args.labels:
        starts = {
            "random": lambda seed: random_network(model.to_module(10), seed),
            "pre-trained": lambda seed: model.to_module(10),
        }
        chosen: dict[str, tuple[float, float]] = {}
        errors: dict[str, list[float]] = {name: [] for name in starts}
        for seed in range(args.seeds):
            index = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:n]
            parts = (X[index], y[index]), (x_valid[:n], y_valid[:n])
            for name, start in starts.items():
                if name not in chosen:
                    grid = itertools.product(RATES, DECAYS)
                    tries = {g: trained(start(seed), parts, *g, seed)[0] for g in grid}
                    chosen[name] = min(tries, key=lambda g: tries[g])
                _, network = trained(start(seed), parts, *chosen[name], seed)
                errors[name].append(error_of(network, x_test, y_test))
        gain = np.subtract(errors["random"], errors["pre-trained"])
        yield {
            "labels": n,
            **{f"{name}, test error %": f"{np.mean(e):.2f}" for name, e in errors.items()},
            "gain": f"{gain.mean():.2f} +- {gain.std(ddof=1) / len(gain) ** 0.5:.2f}",
            **{f"rate, decay: {name}": f"{r}, {d}" for name, (r, d) in chosen.items()},
        }


# ------------------------------------------------------------------------------
# Steps
# ------------------------------------------------------------------------------


def steps(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time of an epoch of each layer over that of its products."""
    random = np.random.default_rng(0)
    n = 2000 if args.quick else 10_000
    for d, n_hidden in ((784, 500), (500, 1000), (1000, 1000)):
        X = (random.random((n, d)) < 0.3).astype(np.float32)
        ours: list[float] = []
        floor: list[float] = []

        def epochs(k: int, X: np.ndarray = X, n_hidden: int = n_hidden) -> None:
            machine_of(n_hidden, len(X), k * len(X) // BATCH, penalty=Penalty(l1=3e-4)).fit(X)

        for _ in range(5):
            extra = seconds(lambda epochs=epochs: epochs(3)) - seconds(
                lambda epochs=epochs: epochs(1)
            )
            ours.append(extra / 2)
            floor.append(seconds(lambda d=d, h=n_hidden: floor_steps(d, h, BATCH, n // BATCH)))
        yield {
            "d x H": f"{d} x {n_hidden}",
            "ms per step": round(1e3 * float(np.median(ours)) / (n // BATCH), 2),
            "over products alone": spread(ours, floor),
        }


PARTS = {"bound": bound, "features": features, "pretraining": pretraining, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--n-steps", type=int, default=120_000)
    parser.add_argument("--bracket", type=int, nargs=2, default=(200, 20_000))
    parser.add_argument("--tops", nargs="+", default=list(TOPS), choices=list(TOPS))
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 1000])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--open-test", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    write(args.json, {"rows": shown(PARTS[args.part](args))})


if __name__ == "__main__":
    main()
