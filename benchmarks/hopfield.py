"""Hopfield memories: how many patterns each rule recalls, and from how many flipped bits.

    OMP_NUM_THREADS=1 python -m benchmarks.hopfield [--only threshold recall dense settings
        digits real] [--seeds 5] [--json F]

Protocol: random spins as patterns, each rule with its defaults (asynchronous updates). A row is a
pattern (one of at most 200 random ones) with every spin flipped with the given probability; it is
recalled if the overlap with the pattern, 1 less twice the share of wrong entries, is above 0.95.
Means and standard errors over seeds, each with its own patterns. The threshold is the load at which
the mean overlap after recall from the patterns themselves falls through 0.97, interpolated. Digits
are those of scikit-learn, as bits (grey value above 7) or grey values.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import pairwise_distances_argmin

from benchmarks._common import shown, write
from skebm import HopfieldMemory

SIZES, LOADS = (250, 500, 1000, 2000), np.arange(0.10, 0.1651, 0.005)
OVERLAP, RECALLED, MOST_ROWS = 0.97, 0.95, 200
# Rule, share of flips, loads; of 1,000 columns.
GRID = (
    ("hebb", 0.2, (0.06, 0.08, 0.1, 0.11, 0.12, 0.13)),
    ("pseudoinverse", 0.2, (0.2, 0.25, 0.28, 0.3, 0.35, 0.4)),
    ("pseudoinverse", 0.05, (0.4, 0.5, 0.55, 0.6, 0.65, 0.7)),
    ("storkey", 0.2, (0.15, 0.2, 0.22, 0.25, 0.3)),
    ("storkey", 0.05, (0.2, 0.25, 0.3, 0.35, 0.4)),
)
# Columns, and patterns for each.
DENSE = ((50, (1, 10, 30)), (100, (1, 10, 100)), (200, (1, 10, 100)))


def spins(n: int, d: int, random: np.random.RandomState) -> np.ndarray:
    """Random patterns."""
    return random.choice([-1.0, 1.0], (n, d))


def flipped(x: np.ndarray, share: float, random: np.random.RandomState) -> np.ndarray:
    """Spins, each flipped with a probability."""
    return np.where(random.uniform(size=x.shape) < share, -x, x)


def corrupted(n: int, d: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random patterns, and the first of them with flips."""
    random = np.random.RandomState(seed)
    patterns = spins(n, d, random)
    return patterns, flipped(patterns[:MOST_ROWS], share, random)


def overlaps(rule: str, n: int, d: int, share: float, seed: int) -> np.ndarray:
    """Overlaps of recalled rows with their patterns."""
    patterns, rows = corrupted(n, d, share, seed)
    memory = HopfieldMemory(rule, random_state=seed).fit(patterns)
    found: np.ndarray = (memory.recall(rows).rows * patterns[:MOST_ROWS]).mean(1)
    return found


def nearest(patterns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The nearest pattern of each row, by a search."""
    found: np.ndarray = patterns[pairwise_distances_argmin(rows, patterns)]
    return found


def digit_spins() -> np.ndarray:
    """Digits as spins."""
    return np.where(load_digits().data > 7, 1.0, -1.0)


def shown_mean(values: Any) -> str:
    """Mean over seeds and its standard error."""
    values = np.asarray(values)
    return f"{values.mean():.3f} ({values.std(ddof=1) / len(values) ** 0.5:.3f})"


def crossing(x: np.ndarray, y: np.ndarray, level: float) -> float:
    """Where a falling line through points first goes through a level; nan if it does not."""
    below = np.flatnonzero(y < level)
    if not len(below) or not below[0]:
        return float("nan")
    k = below[0]
    return float(x[k - 1] + (x[k] - x[k - 1]) * (y[k - 1] - level) / (y[k - 1] - y[k]))


def threshold(seeds: range) -> Iterator[dict[str, Any]]:
    """Loads at which Hebb's rule loses its patterns."""
    for d in SIZES:
        curves = np.array(
            [[overlaps("hebb", round(a * d), d, 0, seed).mean() for a in LOADS] for seed in seeds]
        )
        found = [crossing(LOADS, curve, OVERLAP) for curve in curves]
        at = {f"overlap at {LOADS[k]:.2f}": shown_mean(curves[:, k]) for k in (0, 4, 8, 12)}
        yield {"columns": d, **at, "threshold": shown_mean(found)}


def recall(seeds: range) -> Iterator[dict[str, Any]]:
    """Share of the patterns that the quadratic rules recall, by load."""
    for rule, share, loads in GRID:
        for load in loads:
            found = [overlaps(rule, round(1000 * load), 1000, share, seed) for seed in seeds]
            yield {
                "rule": rule,
                "flipped": share,
                "load": load,
                "recalled": shown_mean([(m > RECALLED).mean() for m in found]),
                "without an error": shown_mean([(m == 1).mean() for m in found]),
            }


def dense(seeds: range) -> Iterator[dict[str, Any]]:
    """Share of the patterns that the dense rule recalls from 20 % flips."""
    for d, multiples in DENSE:
        for multiple in multiples:
            n = multiple * d
            found = [overlaps("dense", n, d, 0.2, seed) for seed in seeds]
            by_search = []
            for seed in seeds:
                patterns, rows = corrupted(n, d, 0.2, seed)
                by_search.append((nearest(patterns, rows) == patterns[:MOST_ROWS]).all(1).mean())
            yield {
                "columns": d,
                "patterns": n,
                "recalled": shown_mean([(m > RECALLED).mean() for m in found]),
                "without an error": shown_mean([(m == 1).mean() for m in found]),
                "nearest pattern": shown_mean(by_search),
            }


def settings(seeds: range) -> Iterator[dict[str, Any]]:
    """Overlaps of the dense rule by beta and update, and the share of rows in cycles."""
    for n, d in ((500, 50), (1500, 50), (300, 64), (1000, 64)):
        for update in ("asynchronous", "synchronous"):
            found: dict[float, list[float]] = {beta: [] for beta in (0.5, 0.7, 1.0, 2.0, 10.0)}
            cycles = []
            for seed in seeds:
                random = np.random.RandomState(seed)
                patterns = spins(n, d, random) if d == 50 else random.permutation(digit_spins())[:n]
                clean = patterns[:MOST_ROWS]
                rows = flipped(clean, 0.2 if d == 50 else 0.1, random)
                for beta, overlap in found.items():
                    memory = HopfieldMemory(beta=beta, update=update, random_state=seed)
                    recalled = memory.fit(patterns).recall(rows)
                    overlap.append((recalled.rows * clean).mean())
                    if beta == 1:
                        cycles.append((recalled.cycle_length > 1).mean())
            yield {
                "patterns": f"{n} random ones" if d == 50 else f"{n} digits",
                "update": update,
                **{f"beta {beta:g}": shown_mean(m) for beta, m in found.items()},
                "in cycles (beta 1)": shown_mean(cycles),
            }


def digits(seeds: range) -> Iterator[dict[str, Any]]:
    """Overlaps of recalled digits, stored as bits, by rule; 10 % of the bits are flipped."""
    images = digit_spins()
    for n in (5, 10, 30, 100, 300, 1000):
        found: dict[str, list[float]] = {}
        for seed in seeds:
            random = np.random.RandomState(seed)
            patterns = images[random.permutation(len(images))[:n]]
            rows = flipped(patterns[:MOST_ROWS], 0.1, random)
            recalled = {
                rule: HopfieldMemory(rule, random_state=seed).fit(patterns).recall(rows).rows
                for rule in ("hebb", "storkey", "pseudoinverse", "dense")
            }
            recalled["nearest pattern"] = nearest(patterns, rows)
            for name, x in recalled.items():
                found.setdefault(name, []).append((x * patterns[:MOST_ROWS]).mean())
        yield {"patterns": n, **{name: shown_mean(m) for name, m in found.items()}}


def real(seeds: range) -> Iterator[dict[str, Any]]:
    """Root mean squared errors of recalled grey values, with normal noise of the digits' spread."""
    images = load_digits().data / 16
    for n in (10, 100, 1000):
        found: dict[str, list[float]] = {}
        for seed in seeds:
            random = np.random.RandomState(seed)
            patterns = images[random.permutation(len(images))[:n]]
            clean = patterns[:MOST_ROWS]
            rows = clean + patterns.std() * random.standard_normal(clean.shape)
            centre = patterns.mean(0)
            of = {
                "noisy rows": rows,
                "euclidean": HopfieldMemory().fit(patterns).recall(rows).rows,
                "dot": HopfieldMemory(similarity="dot").fit(patterns).recall(rows).rows,
                "dot, centred": HopfieldMemory(similarity="dot")
                .fit(patterns - centre)
                .recall(rows - centre)
                .rows
                + centre,
                "nearest pattern": nearest(patterns, rows),
            }
            for name, x in of.items():
                found.setdefault(name, []).append(((x - clean) ** 2).mean() ** 0.5)
        yield {"patterns": n, **{name: shown_mean(error) for name, error in found.items()}}


PARTS = {
    "threshold": threshold,
    "recall": recall,
    "dense": dense,
    "settings": settings,
    "digits": digits,
    "real": real,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # loads above the limits are the point
    result = {name: shown(PARTS[name](range(args.seeds))) for name in args.only}
    write(args.json, result)


if __name__ == "__main__":
    main()
