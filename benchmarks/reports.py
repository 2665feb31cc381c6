"""Reports of ten estimators on ten real tables: seconds, sections, recommendations.

Protocol: at most 4,000 rows of each table (1,500 of images), three quarters to fit the default
estimator of a seed, the others as test rows. A report is timed as a whole; what it says of the
model beside simple densities is listed. With ``--pages`` each page is written to a folder, to be
looked at in a browser.

    python -m benchmarks.reports --data PATH [--pages DIR] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks._common import shown
from benchmarks.mixed_columns import frame, load
from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    DeepBoltzmannMachine,
    EnergyOutlierDetector,
    JEMClassifier,
    NCEDensity,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.inspection import report

MOST_ROWS, MOST_IMAGES = 4000, 1500


class Case(NamedTuple):
    """An unfitted estimator, and what makes rows and labels of a folder."""

    model: Any
    rows: Callable[[Path], tuple[Any, Any]]


def numbers(name: str) -> Callable[[Path], tuple[Any, Any]]:
    """Rows of a table without labels."""
    return lambda data: (load(data, name)[:MOST_ROWS], None)


def labelled(name: str) -> Callable[[Path], tuple[Any, Any]]:
    """Rows of a set of ADBench, and which are anomalies, as classes."""

    def of(data: Path) -> tuple[Any, Any]:
        found = np.load(data / "adbench" / f"{name}.npz")
        order = np.random.default_rng(0).permutation(len(found["X"]))[:MOST_ROWS]
        return found["X"][order].astype(float), found["y"][order].astype(int)

    return of


def images(data: Path) -> tuple[Any, Any]:
    """Bits of handwritten digits, and the digits."""
    found = np.load(data / "images" / "mnist.npz")
    X = found["X_train"][:MOST_IMAGES].reshape(MOST_IMAGES, -1)
    return (X > 127).astype(float), found["y_train"][:MOST_IMAGES]


CASES = {
    "nltcs": Case(RBMEstimator(random_state=0), numbers("nltcs")),
    "plants": Case(DeepBoltzmannMachine((32, 16), random_state=0), numbers("plants")),
    "jester": Case(BoltzmannMachineDensity(random_state=0), numbers("jester")),
    "redwine": Case(BoostedDensity(random_state=0), numbers("redwine")),
    "magic": Case(ScoreMatchingDensity(random_state=0), numbers("22_magic.gamma")),
    "vowels": Case(NCEDensity(random_state=0), numbers("40_vowels")),
    "annthyroid, mixed": Case(
        TractableDensity(random_state=0), lambda data: (frame(data, "2_annthyroid"), None)
    ),
    "mammography": Case(
        EnergyOutlierDetector(method="conformal", random_state=0), labelled("23_mammography")
    ),
    "Pima": Case(JEMClassifier(random_state=0), labelled("29_Pima")),
    "images": Case(RBMClassifier(64, n_iter=50, random_state=0), images),
}


def measure(name: str, data: Path, pages: Path | None) -> dict[str, Any]:
    """Seconds of a fit and of its report, and what the report says."""
    model, rows = CASES[name]
    X, y = rows(data)
    parts = train_test_split(X, *([] if y is None else [y]), random_state=0)
    train, test, y_train, y_test = [*parts, None, None][:4]
    is_detector = isinstance(model, EnergyOutlierDetector)
    if is_detector:  # which is fitted to normal rows
        train, y_train, y_test = train[y_train == 0], None, np.where(y_test == 1, -1, 1)
    start = time.perf_counter()
    model = model.fit(train) if y_train is None else model.fit(train, y_train)
    took = time.perf_counter() - start
    found = report(model, train, test, y_test)
    if pages is not None:
        pages.mkdir(parents=True, exist_ok=True)
        found.save(pages / f"{name.replace(', ', '_')}.html")
    rivals = found.facts.get("likelihood", {}).get("rivals", [])
    return {
        "table": name,
        "estimator": type(model).__name__,
        "fit, s": took,
        "report, s": found.seconds,
        "sections": len(found.facts),
        "not said": len(found.not_said),
        "least nats above a simple density": min((one["gain"] for one in rivals), default=np.nan),
        "recommended": "; ".join(one.program for one in found.recommendations) or "nothing",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    given = parser.parse_args()
    shown(measure(name, given.data, given.pages) for name in given.only)


if __name__ == "__main__":
    main()
