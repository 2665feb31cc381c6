"""Conditional densities: the next frame of motion given the last ones, numbers given a class.

    OMP_NUM_THREADS=1 python -m benchmarks.conditional --data PATH --part motion [--open-test]
    OMP_NUM_THREADS=1 python -m benchmarks.conditional --data PATH --part classes [--open-test]

PATH holds `mocap/mit_mocap.npz` and `tabular/*.npz`. Both parts take `--quick`, a smoke test.
Mean log-likelihoods of held-out rows in nats, in units of the columns, and their standard errors:
`lower` of `log_conditional`, exact without a network; and what rows gain over the first model, with
the standard error of the difference.

`motion`: MIT motion capture, 29 of the 35 training sequences to train and 6 to choose; frames given
the last frames, whose number (1 or 3) the linear base chooses. Test sequences with `--open-test`.
Standard errors are over sequences. Every fifth frame of the validation sequences and every second
of the test sequences count.

`classes`: phoneme and banknote, columns given one of two classes; half of the rows to train, a
quarter to choose, a quarter to test.

Rows: *linear regression* with normal errors, its *residuals* as a Gaussian mixture, the conditional
of the joint *mixture* of conditions and columns (numbers of components by held-out rows, and by the
Bayesian information criterion), and networks on the base that `base="auto"` takes, by the three
objectives: as many optimizer steps as `--steps` says, of which the validation rows choose.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._common import shown, write
from skebm import ConditionalDensity
from skebm.distributions import GaussianMixture
from skebm.estimators import lagged

BASES = {"linear regression": "linear", "its residuals": "residuals", "joint mixture": "mixture"}
OBJECTIVES = ("nce", "score_matching", "contrastive_divergence")


def with_error(value: np.ndarray, groups: np.ndarray) -> str:
    """A mean, and its standard error over groups."""
    means = np.array([value[groups == one].mean() for one in np.unique(groups)])
    return f"{value.mean():.2f} ({means.std(ddof=1) / len(means) ** 0.5:.2f})"


def summary(values: Any, first: Any, parts: Any) -> dict[str, str]:
    """Means of each part, and what they gain over the first model."""
    found = {}
    for part, own in values.items():
        groups = parts[part][1]
        found[part] = with_error(own, groups)
        found[f"{part}, gain"] = with_error(own - first[part], groups)
    return found


def by_criterion(train: np.ndarray, n_given: int) -> Callable[[np.ndarray], np.ndarray]:
    """log p given the first columns, of the joint Gaussian mixture of least BIC."""
    x = torch.as_tensor(train)
    tries = [GaussianMixture.fit(x, None, k) for k in (1, 2, 3, 5, 8, 16, 32)]
    best = min(tries, key=lambda one: one.bic(x))
    conditions = best.marginal(torch.arange(n_given))

    def log_prob(X: np.ndarray) -> np.ndarray:
        rows = torch.as_tensor(X)
        found = best.log_prob(rows) - conditions.log_prob(rows[:, :n_given])
        return found.numpy()

    return log_prob


def compared(
    parts: dict[str, tuple[np.ndarray, np.ndarray]], given: Any, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """All models; `parts` are train, valid and, where it is open, test, each with its groups."""
    train, steps = parts["train"][0], (20,) if args.quick else args.steps
    first: dict[str, np.ndarray] = {}
    tries: list[tuple[str, list[dict[str, Any]]]] = [
        (name, [{"base": base, "n_iter": 0}]) for name, base in BASES.items()
    ]
    batches = -(-len(train) // 128)
    for objective in OBJECTIVES:
        kinds = [{"objective": objective, "n_iter": -(-n // batches)} for n in steps]
        tries.append((objective, kinds))
    for name, kinds in tries:
        if name in args.skip:
            continue
        best: tuple[np.ndarray, Any, int] | None = None
        for kind in kinds:
            started = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = ConditionalDensity(given, random_state=0, **kind).fit(train)
            took = round(time.process_time() - started)
            value = model.log_conditional(parts["valid"][0]).lower
            if best is None or value.mean() > best[0].mean():
                best = value, model, took
        assert best is not None
        value, model, took = best
        row = {"model": name, "base": f"{model.base_name_}, {len(model.base_.covariances)}"}
        row |= {"epochs": model.n_iter_, "fit, s": took}
        values = {"valid": value}
        if "test" in parts:
            values["test"] = model.log_conditional(parts["test"][0]).lower
        first = first or values
        yield row | summary(values, first, parts)
        if name == list(BASES)[-1]:
            peer = by_criterion(train, len(given) if isinstance(given, range) else 1)
            values = {part: peer(parts[part][0]) for part in values}
            row |= {"model": "joint mixture by BIC", "base": "", "fit, s": ""}
            yield row | summary(values, first, parts)


def motion(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Frames of motion given the last ones."""
    stored = np.load(args.data / "mocap/mit_mocap.npz")
    place = np.random.default_rng(0).permutation(len(stored["train"]))
    sequences = [stored["train"][i].astype(float) for i in place]
    split = {"valid": sequences[:6], "train": sequences[6:]}
    if args.open_test:
        ends = np.cumsum(stored["test_len"])[:-1]
        split["test"] = np.split(stored["test"].astype(float), ends)
    if args.quick:
        split = {name: [x[:30, :5] for x in part[:4]] for name, part in split.items()}
    found: dict[int, Any] = {}
    for order in (1, 3):
        parts = {}
        for name, part in split.items():
            # From the fourth frame on, whatever the order: the same frames for both.
            tables = [lagged(x[3 - order :], order) for x in part]
            if name != "train":  # annealing of all frames of all tries would take an hour
                tables = [table[:: 5 if name == "valid" else 2] for table in tables]
            groups = np.repeat(np.arange(len(part)), [len(table) for table in tables])
            parts[name] = np.concatenate(tables), groups
        given = range(order * split["train"][0].shape[1])
        base = ConditionalDensity(given, base="linear", n_iter=0).fit(parts["train"][0])
        found[order] = float(base.score_samples(parts["valid"][0]).mean()), parts, given
    order = max(found, key=lambda one: found[one][0])
    _, parts, given = found[order]
    for row in compared(parts, given, args):
        yield {"given": f"last {order}", **row}


def classes(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Columns given the class."""
    for name in ("phoneme", "banknote"):
        stored = np.load(args.data / f"tabular/{name}.npz", allow_pickle=True)
        _, label = np.unique(stored["y"], return_inverse=True)
        X = np.column_stack([label, stored["X"].astype(float)])
        X = X[np.random.default_rng(0).permutation(len(X))][: 200 if args.quick else None]
        n = len(X)
        cuts = {"train": X[: n // 2], "valid": X[n // 2 : 3 * n // 4]}
        if args.open_test:
            cuts["test"] = X[3 * n // 4 :]
        parts = {part: (rows, np.arange(len(rows))) for part, rows in cuts.items()}
        for row in compared(parts, 0, args):
            yield {"set": name, "rows": len(cuts["train"]), **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", choices=("motion", "classes"), required=True)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000])
    parser.add_argument("--skip", nargs="*", default=[], help="rows that are left out")
    parser.add_argument("--open-test", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    rows = shown({"motion": motion, "classes": classes}[args.part](args))
    write(args.json, {"part": args.part, "rows": rows})


if __name__ == "__main__":
    main()
