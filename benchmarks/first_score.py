"""Seconds to the first `score_samples` after `fit`: what log Z costs with the default settings.

    python -m benchmarks.first_score [--cases 3 7] [--json F]

Sixteen settings of the estimators with ``partition="auto"``, on 200 to 2,000 rows, seed 0, one
thread. `fit` and `score` are seconds of CPU time, of `fit` and of the first `score_samples` after
it; `wall` those of the clock, of both. `ratio` is score / fit. A row passes where `score` is at
most 5 s or at most twice `fit`. `std` is `log_partition_std_`, in nats, `method` how log Z was
found (none where rows are ranked without it).
The tables: `digits` are 1,797 images of 64 pixels, above 7 or not; `bars` binary columns that copy
their neighbour with probability 0.8; `moons` two columns; `normal` correlated columns of a normal
distribution, a third of them squared. Warnings of log Z are counted.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning

from benchmarks._common import machine, table, write
from skebm import (
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
)


def digits() -> np.ndarray:
    """Binary images, (1797, 64)."""
    return (load_digits().data > 7).astype(float)


def bars(n: int, d: int) -> np.ndarray:
    """Binary rows (n, d) in which neighbours agree with probability 0.8."""
    rng = np.random.default_rng(0)
    changes = rng.random((n, d)) < 0.2
    changes[:, 0] = rng.random(n) < 0.5
    return (changes.cumsum(1) % 2).astype(float)


def moons(n: int) -> np.ndarray:
    """Two columns."""
    return make_moons(n, noise=0.1, random_state=0)[0]


def normal(n: int, d: int) -> np.ndarray:
    """Correlated columns, of which every third is squared."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d)))
    X[:, ::3] = X[:, ::3] ** 2
    return X


class Case(NamedTuple):
    """A setting: its name, the model, and the rows."""

    name: str
    model: Any
    rows: Callable[[], np.ndarray]


def cases() -> list[Case]:
    """The sixteen settings."""
    cd, seed = ContrastiveDivergenceDensity, {"random_state": 0}
    return [
        Case("RBM 16 hidden, bars 500 x 30", RBMEstimator(16, **seed), lambda: bars(500, 30)),
        Case("RBM 64 hidden, digits (README)", RBMEstimator(64, **seed), digits),
        Case("RBM 32, tree base, digits", RBMEstimator(32, base="chow-liu", **seed), digits),
        Case("RBM 256 hidden, bars 2000 x 100", RBMEstimator(256, **seed), lambda: bars(2000, 100)),
        Case("CD, moons 200 x 2", cd(**seed), lambda: moons(200)),
        Case("CD, normal 2000 x 8", cd(**seed), lambda: normal(2000, 8)),
        Case("CD without base, moons 2000 x 2", cd(base=None, **seed), lambda: moons(2000)),
        Case("CD without base, normal 200 x 8", cd(base=None, **seed), lambda: normal(200, 8)),
        Case("CD without base, normal 2000 x 8", cd(base=None, **seed), lambda: normal(2000, 8)),
        Case(
            "score matching, normal 500 x 8", ScoreMatchingDensity(**seed), lambda: normal(500, 8)
        ),
        Case(
            "multiscale, moons 500 x 2",
            ScoreMatchingDensity(objective="multiscale", **seed),
            lambda: moons(500),
        ),
        Case(
            "multiscale, normal 200 x 8",
            ScoreMatchingDensity(objective="multiscale", **seed),
            lambda: normal(200, 8),
        ),
        Case("NCE, normal 1000 x 8", NCEDensity(**seed), lambda: normal(1000, 8)),
        Case("flow contrast, moons 500 x 2", FlowContrastiveDensity(**seed), lambda: moons(500)),
        Case("JEM, normal 500 x 8", JEMClassifier(**seed), lambda: normal(500, 8)),
        Case(
            "outlier detector, normal 500 x 8",
            EnergyOutlierDetector(**seed),
            lambda: normal(500, 8),
        ),
    ]


class Spent(NamedTuple):
    """Seconds of CPU time and of the clock."""

    cpu: float
    wall: float


def spent(run: Callable[[], object]) -> Spent:
    """Seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return Spent(time.process_time() - cpu, time.perf_counter() - wall)


def measure(case: Case) -> dict[str, object]:
    """Fit, then score."""
    X = case.rows()
    y = (X[:, 0] > np.median(X[:, 0]),) if isinstance(case.model, JEMClassifier) else ()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        fit = spent(lambda: case.model.fit(X, *y))
        n_before = len(raised)
        score = spent(lambda: case.model.score_samples(X))
    late = [one for one in raised[n_before:] if issubclass(one.category, ConvergenceWarning)]
    known = hasattr(case.model, "log_partition_method_")
    return {
        "setting": case.name,
        "fit, s": round(fit.cpu, 2),
        "score, s": round(score.cpu, 2),
        "wall, s": round(fit.wall + score.wall, 2),
        "ratio": round(score.cpu / fit.cpu, 2),
        "passes": "yes" if score.cpu <= max(5.0, 2 * fit.cpu) else "NO",
        "log Z": round(case.model.log_partition_, 3) if known else "",
        "std": round(case.model.log_partition_std_, 4) if known else "",
        "method": case.model.log_partition_method_.partition(":")[0] if known else "none",
        "warnings": len(late),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", type=int, help="numbers of the settings, from 1")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = cases()
    # The first fit of a process imports and initialises more.
    ScoreMatchingDensity(n_iter=1, random_state=0).fit(moons(50)).score_samples(moons(50))
    rows = []
    for number in args.cases or range(1, len(settings) + 1):
        rows.append({"n": number, **measure(settings[number - 1])})
        print(rows[-1], flush=True)
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
