"""When is a trained model better than its base? Criteria on held-out rows, counted.

A model gains g nats a row over its base on held-out rows, with a standard error s; a base that is
fitted to all rows, those that were held out included, is expected to gain a. The model is kept if
g > a + c s. This program fits models that are always kept, to samples of which the truth is known
(planted: bits whose best model gains 0, 0.5, 1 and 2 standard errors) or whose test rows are many
(halves of real sets), and counts for each c:

- false returns: the base is taken, but the model is better for new rows;
- missed returns: the model is kept, but is worse than the base of all rows;
- the mean of the nats that are lost to the better of the two, and the largest loss of a model that
  is kept.

Which c is the default was chosen on the even ones of the real sets; the odd ones report.

    python -m benchmarks.model_or_base --data PATH
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from skebm import ConditionalDensity, RBMEstimator, ScoreMatchingDensity
from skebm.estimators import recipe
from skebm.training import engine, guard
from skebm.training.selection import Gain

RBM = {"n_components": 8, "learning": "pcd", "n_iter": 60}
# Columns of the widest set: of more, few rows gain many standard errors or lose them.
WIDEST = 200
CRITERIA = (-1.0, 0.0, 0.5, 1.0, 2.0)
PLANTED = (0.0, 0.5, 1.0, 2.0)


class Case(NamedTuple):
    """A fit: gain on held-out rows, its error, that of a base of all rows; and the truth."""

    group: str
    name: str
    gain: float
    error: float
    more: float
    truth: float  # nats of new rows under the model, less those under the base of all rows


@contextlib.contextmanager
def models_kept(seen: list[tuple[float, float, float]]) -> Iterator[None]:
    """Fits keep what they trained, and note what held-out rows say of it."""

    def keep(found: Gain, of_all_rows: float = 0.0) -> bool:
        seen.append((*found, of_all_rows))
        return True

    before = recipe.is_kept
    recipe.is_kept = engine.is_kept = guard.is_kept = keep
    try:
        yield
    finally:
        recipe.is_kept = engine.is_kept = guard.is_kept = before


def case(group: str, name: str, make: Any, train: Any, new: Any) -> Case | None:
    """One fit, and its base; None where no rows were held out."""
    seen: list[tuple[float, float, float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with models_kept(seen):
            model = make().fit(train)
        plain = make(n_iter=0).fit(train)
        truth = float(np.mean(new(model) - new(plain)))
    return Case(group, name, *seen[-1], truth) if seen else None


# ------------------------------------------------------------------------------
# Samples
# ------------------------------------------------------------------------------


def planted(k: float, seed: int, n: int = 400, d: int = 10) -> tuple[np.ndarray, Any]:
    """Bits that gain k standard errors of 40 rows over independent columns, and new rows' mean."""
    rng = np.random.default_rng(seed)
    states = ((np.arange(2**d)[:, None] >> np.arange(d)) & 1).astype(float)
    own = states @ rng.normal(size=d)
    spins = 2 * states - 1
    pairs = np.einsum("ni,nj,ij->n", spins, spins, np.triu(rng.normal(size=(d, d)), 1))

    def law(strength: float) -> tuple[np.ndarray, float]:
        log_p = own + strength * pairs
        p = np.exp(log_p - log_p.max())
        p /= p.sum()
        mean = p @ states
        log_q = states @ np.log(mean) + (1 - states) @ np.log(1 - mean)
        ratio = np.log(p) - log_q
        gain = p @ ratio
        return p, gain / np.sqrt((p @ (ratio - gain) ** 2) / (n // 10) + 1e-30)

    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if law(middle)[1] < k else (low, middle)
    p, _ = law(0.0 if k == 0 else low)
    X = states[rng.choice(len(p), n, p=p)]
    return X, lambda model: len(p) * p * model.score_samples(states)


def fresh(kind: Any, how: dict[str, Any], **more: Any) -> Any:
    """An estimator with these parameters."""
    return kind(**how | more)


def scores(new: np.ndarray, model: Any) -> np.ndarray:
    """Log-likelihoods of new rows, (n,)."""
    return np.asarray(model.score_samples(new))


def debd_rows(path: Path, part: str) -> np.ndarray:
    """Rows of a part of a set of bits."""
    with np.load(path) as stored:
        return np.unpackbits(stored[part], axis=1)[:, : int(stored["d"])].astype(float)


def cases(data: Path, repeats: int) -> Iterator[Case | None]:
    """All fits."""
    for k in PLANTED:
        for seed in range(repeats):
            X, new = planted(k, seed)
            how = RBM | {"base": "independent", "random_state": seed}
            make = functools.partial(fresh, RBMEstimator, how)
            yield case(f"planted {k:g}", "rbm", make, X, new)
    for place, path in enumerate(sorted((data / "debd").glob("*.npz"))):
        train, test = debd_rows(path, "train"), debd_rows(path, "test")
        half = "choice" if place % 2 == 0 else "report"
        if train.shape[1] > WIDEST:
            continue
        for n in (200, 400):
            for seed in range(max(1, repeats // 8)):
                pick = np.random.default_rng(seed).permutation(len(train))[:n]
                for name in ("independent", "chow-liu"):
                    make = functools.partial(
                        fresh, RBMEstimator, RBM | {"base": name, "random_state": seed}
                    )
                    new = functools.partial(scores, test[:3000])
                    yield case(half, f"{path.stem} {n} {name}", make, train[pick], new)
    names = ("phoneme", "banknote", "wheat_seeds", "sonar")
    for place, name in enumerate(names):
        X = np.load(data / "tabular" / f"{name}.npz")["X"][:, :6]
        half = "choice" if place % 2 == 0 else "report"
        for n in (60, 120, 300):
            for seed in range(max(1, repeats // 8)):
                order = np.random.default_rng(seed).permutation(len(X))
                if len(X) < 1.3 * n:
                    continue
                for kind in ("linear", "auto"):
                    how = {"given": list(range(X.shape[1] - 1)), "base": kind, "random_state": seed}
                    make = functools.partial(fresh, ConditionalDensity, how)
                    new = functools.partial(scores, X[order[n : n + 2000]])
                    yield case(half, f"{name} {n} {kind}", make, X[order[:n]], new)
                how = {"base": "gaussian", "random_state": seed}
                make = functools.partial(fresh, ScoreMatchingDensity, how)
                yield case(f"{half}, neural", f"{name} {n}", make, X[order[:n]], new)


def table(found: list[Case], groups: list[str]) -> str:
    """Counts and losses by criterion and group."""
    lines = ["| fits | c | kept | false returns | missed returns | mean loss | largest loss kept |"]
    lines.append("|---|---|---|---|---|---|---|")
    for group in groups:
        some = [one for one in found if one.group == group]
        for c in CRITERIA:
            kept = np.array([one.gain > one.more + c * one.error for one in some])
            truth = np.array([one.truth for one in some])
            loss = np.where(kept, np.maximum(-truth, 0), np.maximum(truth, 0))
            worst = loss[kept].max(initial=0.0)
            lines.append(
                f"| {group} ({len(some)}) | {c:g} | {kept.sum()} | {(~kept & (truth > 0)).sum()} | "
                f"{(kept & (truth < 0)).sum()} | {loss.mean():.4f} | {worst:.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Case] = []
    for one in cases(args.data, 2 if args.quick else args.repeats):
        if one is not None:
            found.append(one)
            print(one, flush=True)
    print(
        table(
            found,
            [
                *(f"planted {k:g}" for k in PLANTED),
                "choice",
                "report",
                "choice, neural",
                "report, neural",
            ],
        )
    )


if __name__ == "__main__":
    main()
