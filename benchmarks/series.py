"""Faults in series: windows with any detector, PyOD on windows, and a model of sequences.

    OMP_NUM_THREADS=1 python -m benchmarks.series [--half choose report] [--seeds 3]
        [--only NAME ...] [--fit clean faulty] [--json F]

Ten kinds of synthetic series of seven hundred to a thousand values (three hundred of the monthly
one), with a time index: seasons of several shapes, trends, random walks, counts, noise that is
white, autocorrelated, heavy-tailed or of a changing scale, one or two columns. In the first column
are planted, in a series for each: single wrong values, shifts of the level, straight lines, and
seasons that are late (see `planted`). AUROC over time stamps; those in the season after a fault,
whose windows are faulty, are left out. Means over seeds, with standard errors over kinds of series.

A detector is fitted to a series without faults (`--fit clean`), or to the one it judges (`faulty`).
All take a row for each time stamp. Ours are `Windows` and `EnergyOutlierDetector`, as they are.
Detectors of PyOD, as they are, take standardised windows of the value and those of the season
before it, whose length they are given; those of scikit-learn stand in where PyOD is missing. *On
residuals* they take the rows of `Windows`.

`--half choose` are the five kinds on which features and spans of `Windows` were chosen, `report`
the other five (random halves).
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._common import table, write
from skebm import EnergyOutlierDetector, SequenceOutlierDetector, TemporalRBM, Windows

FAULTS = ("point", "level", "shape", "season")


class Kind(NamedTuple):
    """How a series is made.

    Attributes
    ----------
    freq : str
        Step between time stamps, as pandas has it.
    season : int
        Number of steps of the main season; of series without one, the length of planted faults.
    n_train, n_test : int
        Numbers of values to fit and to test.
    values : callable
        ``(n, rng) -> (n,) or (n, d)``
    """

    freq: str
    season: int
    n_train: int
    n_test: int
    values: Callable[[int, np.random.Generator], np.ndarray]


def autoregression(n: int, coefficients: list[float], rng: np.random.Generator) -> np.ndarray:
    """A stationary autoregressive process with normal innovations of unit variance."""
    order, extra = len(coefficients), 200
    x, e = np.zeros(n + extra), rng.normal(size=n + extra)
    for t in range(order, n + extra):
        x[t] = np.dot(coefficients, x[t - order : t][::-1]) + e[t]
    return x[extra:]


def sinusoid(n: int, season: float, phase: float = 0.0) -> np.ndarray:
    """A sine wave at n steps."""
    return np.sin(2 * np.pi * (np.arange(n) / season + phase))


def _daily(n: int, rng: np.random.Generator) -> np.ndarray:
    wave = 4 * sinusoid(n, 24) + 1.5 * sinusoid(n, 12, rng.random())
    return 20 + wave + rng.normal(size=n)


def _weekly(n: int, rng: np.random.Generator) -> np.ndarray:
    hour, day = np.arange(n) % 24, np.arange(n) // 24 % 7
    rush = 5 * np.exp(-0.5 * ((hour - 8) / 1.5) ** 2) + 6 * np.exp(-0.5 * ((hour - 18) / 2) ** 2)
    return 10 + rush * np.where(day < 5, 1.0, 0.4) + 0.6 * autoregression(n, [0.7], rng)


def _trend(n: int, rng: np.random.Generator) -> np.ndarray:
    week = np.array([0.0, 0.5, 0.3, 0.6, 1.5, -3.0, -4.0])[np.arange(n) % 7]
    return 100 + 0.01 * np.arange(n) + week + 0.7 * rng.normal(size=n)


def _monthly(n: int, rng: np.random.Generator) -> np.ndarray:
    level = np.exp(0.002 * np.arange(n))
    return 50 * level * np.exp(0.15 * sinusoid(n, 12) + 0.03 * autoregression(n, [0.6], rng))


def _walk(n: int, rng: np.random.Generator) -> np.ndarray:
    return 0.25 * np.cumsum(rng.normal(size=n)) + 3 * sinusoid(n, 24) + 0.5 * rng.normal(size=n)


def _cycles(n: int, rng: np.random.Generator) -> np.ndarray:
    return autoregression(n, [1.7, -0.85], rng)


def _pulses(n: int, rng: np.random.Generator) -> np.ndarray:
    on = ((np.arange(n) % 24 >= 7) & (np.arange(n) % 24 < 19)).astype(float)
    return 8 * on + rng.standard_t(4, size=n)


def _sawtooth(n: int, rng: np.random.Generator) -> np.ndarray:
    part = np.arange(n) % 40 / 40
    return 10 * part + (0.3 + 0.7 * part) * rng.normal(size=n)


def _counts(n: int, rng: np.random.Generator) -> np.ndarray:
    rate = np.exp(2.0 + 0.9 * sinusoid(n, 24) + 0.1 * autoregression(n, [0.8], rng))
    return rng.poisson(rate).astype(float)


def _pair(n: int, rng: np.random.Generator) -> np.ndarray:
    shared = 3 * sinusoid(n, 24) + autoregression(n, [0.8], rng)
    other = 0.8 * np.roll(shared, 2) + 0.5 * rng.normal(size=n)
    return np.stack([shared + 0.5 * rng.normal(size=n), other], 1)


KINDS = {
    "daily wave": Kind("h", 24, 1000, 1000, _daily),
    "rush hours": Kind("h", 24, 1000, 1000, _weekly),
    "weekly, trend": Kind("D", 7, 700, 700, _trend),
    "monthly, growth": Kind("MS", 12, 300, 240, _monthly),
    "random walk": Kind("h", 24, 1000, 1000, _walk),
    "cycles, no season": Kind("min", 15, 1000, 1000, _cycles),
    "pulses, heavy tails": Kind("h", 24, 1000, 1000, _pulses),
    "sawtooth": Kind("s", 40, 1000, 1000, _sawtooth),
    "counts": Kind("h", 24, 1000, 1000, _counts),
    "two columns": Kind("h", 24, 1000, 1000, _pair),
}


def series(name: str, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A series without faults, its beginning to fit and its end to test."""
    kind = KINDS[name]
    rng = np.random.default_rng([seed, list(KINDS).index(name)])
    n = kind.n_train + kind.n_test
    values = kind.values(n, rng).reshape(n, -1)
    index = pd.date_range("2000-01-01", periods=n, freq=kind.freq)
    columns = ["value", "other"][: values.shape[1]]
    frame = pd.DataFrame(values, index=index, columns=columns)
    return frame[: kind.n_train], frame[kind.n_train :]


def planted(
    X: pd.DataFrame, fault: str, season: int, seed: int
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A series with faults in its first column.

    Parameters
    ----------
    X : DataFrame
        A series without faults.
    fault : {"point", "level", "shape", "season"}
        One value that is five to seven standard deviations off; a season that is three standard
        deviations higher or lower; a straight line in place of half a season or more; a season
        that is late by a quarter to a half. Standard deviations are those of what a season does
        not explain.
    season : int
        Length of a season.
    seed : int
        Seed of places and sizes.

    Returns
    -------
    X, labels, known : DataFrame, ndarray of bool of shape (n,), ndarray of bool of shape (n,)
        Labels are of faulty values. Values in the season after a fault, whose pasts are faulty, are
        neither normal nor faulty: they are not `known`.
    """
    rng = np.random.default_rng([seed, FAULTS.index(fault)])
    clean = X.iloc[:, 0].to_numpy()
    x, labels, known = clean.copy(), np.zeros(len(X), bool), np.ones(len(X), bool)
    sigma = 1.4826 * np.median(np.abs(clean[season:] - clean[:-season])) / np.sqrt(2)
    every = max(5 * season, 60)
    for begin in range(2 * season, len(x) - every + 1, every):
        t = begin + int(rng.integers(0, every - 3 * season))
        sign = rng.choice([-1, 1])
        length = 1 if fault == "point" else season
        if fault == "shape":
            length = int(rng.integers(season // 2, season + 1))
        part = slice(t, t + length)
        if fault == "point":
            x[t] += sign * rng.uniform(5, 7) * sigma
        elif fault == "level":
            x[part] += sign * 3 * sigma
        elif fault == "shape":
            line = np.linspace(clean[t], clean[t + length - 1], length)
            x[part] = line + 0.5 * sigma * rng.normal(size=length)
        else:
            late = int(rng.integers(season // 4, season // 2 + 1))
            x[part] = clean[t - late : t - late + length]
        labels[part], known[t : t + length + season] = True, False
    known |= labels
    made = X.copy()
    made.iloc[:, 0] = x
    return made, labels, known


# ------------------------------------------------------------------------------
# Detectors
# ------------------------------------------------------------------------------

PYOD = {
    "KNN": "knn",
    "LOF": "lof",
    "IForest": "iforest",
    "OCSVM": "ocsvm",
    "PCA": "pca",
    "MCD": "mcd",
    "GMM": "gmm",
    "KDE": "kde",
    "HBOS": "hbos",
    "ECOD": "ecod",
}


class OfPyod(BaseEstimator):
    """A detector of PyOD as the end of a pipeline; its scores are higher for normal rows."""

    def __init__(self, name: str):
        self.name = name

    def fit(self, X: np.ndarray, y: object = None) -> OfPyod:
        """Fit to rows."""
        cls = getattr(importlib.import_module(f"pyod.models.{PYOD[self.name]}"), self.name)
        self.model_ = cls(random_state=0) if self.name == "IForest" else cls()
        self.model_.fit(X)
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Minus the scores of PyOD."""
        return -np.asarray(self.model_.decision_function(X))


def detectors(season: int) -> dict[str, Any]:
    """Detectors of series, not fitted."""
    made: dict[str, Any] = {
        "Windows": make_pipeline(Windows(), EnergyOutlierDetector(random_state=0)),
        "Windows, values": make_pipeline(
            Windows(season, features="values", calendar=False),
            EnergyOutlierDetector(random_state=0),
        ),
        "SequenceOutlierDetector": SequenceOutlierDetector(
            TemporalRBM(order=season, random_state=0), random_state=0
        ),
    }
    for name in PYOD:
        windows = Windows(season, features="values", calendar=False)
        made[f"PyOD {name}"] = make_pipeline(windows, StandardScaler(), OfPyod(name))
        made[f"PyOD {name} on residuals"] = make_pipeline(Windows(), StandardScaler(), OfPyod(name))
    for name in ("KNN", "IForest", "PCA", "GMM"):
        on_residuals = make_pipeline(Windows(), StandardScaler(), OfPyod(name))
        made[f"PyOD {name} on residuals"] = on_residuals
    return made


def halves() -> dict[str, list[str]]:
    """Kinds of series to choose on and to report on."""
    chosen = set(np.random.default_rng(0).permutation(len(KINDS))[: len(KINDS) // 2])
    names = list(KINDS)
    return {
        "choose": [name for i, name in enumerate(names) if i in chosen],
        "report": [name for i, name in enumerate(names) if i not in chosen],
    }


def measured(name: str, seed: int, only: list[str], fit: str) -> Iterator[dict[str, Any]]:
    """AUROC of each fault and detector on a series."""
    season = KINDS[name].season
    train, test = series(name, seed)
    faulty = {fault: planted(test, fault, season, seed) for fault in FAULTS}
    for label, detector in detectors(season).items():
        if label not in only:
            continue
        row: dict[str, Any] = {"series": name, "seed": seed, "detector": label}
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if fit == "clean":
                detector.fit(train)
            for fault, (X, labels, known) in faulty.items():
                model = detector if fit == "clean" else detector.fit(X)
                row[fault] = roc_auc_score(labels[known], -model.score_samples(X)[known])
        row["mean"] = float(np.mean([row[fault] for fault in FAULTS]))
        row["seconds"] = time.perf_counter() - started
        yield row


def summary(rows: list[dict[str, Any]]) -> str:
    """A row for each detector: means over series, and of each fault."""
    frame = pd.DataFrame(rows)
    by_series = frame.groupby(["detector", "series"], sort=False)[[*FAULTS, "mean"]].mean()
    made = []
    for label, part in by_series.groupby("detector", sort=False):
        error = part["mean"].std() / np.sqrt(len(part)) if len(part) > 1 else np.nan
        cells = {fault: f"{part[fault].mean():.3f}" for fault in FAULTS}
        mean = f"{part['mean'].mean():.3f} ({error:.3f})"
        made.append({"detector": label, **cells, "mean": mean})
    made.sort(key=lambda row: row["mean"], reverse=True)
    return table(made)


def main() -> None:
    """Print a table for each half and way to fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", nargs="+", choices=["choose", "report"], default=["report"])
    parser.add_argument("--fit", nargs="+", choices=["clean", "faulty"], default=["clean"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(detectors(24)))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    result: dict[str, object] = {}
    for half in arguments.half:
        for fit in arguments.fit:
            rows = []
            for name in halves()[half]:
                for seed in range(100, 100 + arguments.seeds):
                    for row in measured(name, seed, arguments.only, fit):
                        rows.append(row)
                        print(row, flush=True)
            print(f"\n{half}, fitted to {fit} series\n\n{summary(rows)}\n", flush=True)
            result[f"{half}, {fit}"] = rows
    write(arguments.json, result)


if __name__ == "__main__":
    main()
