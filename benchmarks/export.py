"""Seconds to score rows by an estimator, by its NumPy scorer and by onnxruntime.

    python -m benchmarks.export [--rows 100000] [--columns 20] [--runs 5] [--cases nce] [--json F]

Each model is fitted to 2,000 rows of correlated columns of a normal distribution, every third of
which is squared, or, the RBM, of bits. Networks are trained for few steps, as scores take as long
after many. New rows are scored by `score_samples`, by `to_numpy` and by `to_onnx`, alternately in
one process on one thread, after one call that is not counted. Times are medians; `NumPy` and `ONNX`
are the medians of the ratios to the estimator, with quartiles: below 1 is faster. `difference` is
the largest one of scores, relative to their size and at least to 1; `other` counts rows whose
prediction or p-value is another one, of the first 20,000. `MiB` is by how much the peak of resident
memory rises, which a run of each in a fresh process with ``--peak numpy``, ``onnx`` or ``python``
says.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.mixture import GaussianMixture

from benchmarks._common import machine, seconds, shown, spread, write
from skebm import (
    BoostedDensity,
    EnergyOutlierDetector,
    JEMClassifier,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.export import to_numpy, to_onnx

N_TRAIN, N_COMPARED = 2000, 20_000
SEED, STEPS = {"random_state": 0}, {"n_iter": 50, "random_state": 0}
MODELS: dict[str, Callable[[], Any]] = {
    "tractable": lambda: TractableDensity(**SEED),
    "detector": lambda: EnergyOutlierDetector(**SEED),
    "conformal": lambda: EnergyOutlierDetector(method="conformal", **SEED),
    "rbm": lambda: RBMEstimator(16, base="independent", **STEPS),
    "score-matching": lambda: ScoreMatchingDensity(**STEPS),
    "nce": lambda: NCEDensity(**STEPS),
    "boosted": lambda: BoostedDensity(**SEED),
    "jem": lambda: JEMClassifier(**STEPS),
    "mixture": lambda: GaussianMixture(5, **SEED),
}


def numbers(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Correlated columns, every third squared, (n, d)."""
    mixed = np.eye(d) + 0.3 * np.random.default_rng(0).standard_normal((d, d))
    X = rng.standard_normal((n, d)) @ mixed
    X[:, ::3] = np.square(X[:, ::3])
    return X


def bits(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Columns of bits that agree with a common one with probability 0.8, (n, d)."""
    return ((rng.random((n, 1)) < 0.5) ^ (rng.random((n, d)) < 0.2)).astype(float)


class Case(NamedTuple):
    """A fitted model, and rows to score."""

    model: Any
    X: np.ndarray


def fitted(name: str, n: int, d: int) -> Case:
    """A model fitted to rows, and new rows."""
    rows, rng = bits if name == "rbm" else numbers, np.random.default_rng(1)
    X = rows(N_TRAIN, d, rng)
    y = (X[:, 1] > np.median(X[:, 1])).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name]().fit(X, y if name == "jem" else None)
        model.score_samples(X[:10])  # log Z
    return Case(model, rows(n, d, rng))


def onnx_scores(model: Any, outputs: list[str]) -> Callable[[np.ndarray], list[np.ndarray]]:
    """A function of rows that onnxruntime computes on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        to_onnx(model, outputs).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda X: session.run(outputs, {"X": X})


def n_others(case: Case) -> int:
    """Rows whose prediction or p-value by ONNX is not that of the model."""
    known = to_numpy(case.model).outputs
    asked = [name for name in ("predict", "p_value") if name in known]
    X = case.X[:N_COMPARED]
    found = onnx_scores(case.model, asked)(X) if asked else []
    methods = {"predict": "predict", "p_value": "p_values"}
    others = np.zeros(len(X), dtype=bool)
    for name, values in zip(asked, found, strict=True):
        expected = getattr(case.model, methods[name])(X)
        others |= values != expected if name == "predict" else ~np.isclose(values, expected)
    return int(others.sum())


def measure(name: str, n: int, d: int, runs: int) -> dict[str, Any]:
    """Times of one model."""
    case = fitted(name, n, d)
    scorer, by_onnx = to_numpy(case.model), onnx_scores(case.model, ["log_density"])
    ways = {
        "estimator": case.model.score_samples,
        "NumPy": scorer.score_samples,
        "ONNX": lambda X: by_onnx(X)[0],
    }
    scores = {way: score(case.X) for way, score in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, score in ways.items():
            times[way].append(seconds(lambda score=score: score(case.X)))
    size = np.maximum(1, np.abs(scores["estimator"]))
    differences = {
        f"difference, {way}": float(np.max(np.abs(scores[way] - scores["estimator"]) / size))
        for way in ("NumPy", "ONNX")
    }
    ratios = {way: spread(times[way], times["estimator"]) for way in ("NumPy", "ONNX")}
    middle = round(float(np.median(times["estimator"])), 3)
    return {"model": name, "s": middle, **ratios, **differences, "other": n_others(case)}


def peak(name: str, way: str, n: int, d: int) -> dict[str, Any]:
    """By how much the peak of memory rises when rows are scored in one way."""
    case = fitted(name, n, d)
    scorer = to_numpy(case.model)
    score: Callable[[np.ndarray], Any] = {
        "python": lambda: case.model.score_samples,
        "numpy": lambda: scorer.score_samples,
        "onnx": lambda: onnx_scores(case.model, ["log_density"]),
    }[way]()
    score(case.X[:10])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    score(case.X)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"model": name, "way": way, "MiB": round((after - before) / 1024)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--peak", choices=["python", "numpy", "onnx"])
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    if args.peak:
        found = shown(peak(name, args.peak, args.rows, args.columns) for name in args.cases)
    else:
        found = shown(measure(name, args.rows, args.columns, args.runs) for name in args.cases)
    print(machine(), f"{time.perf_counter() - started:.0f} s")
    write(args.json, {"rows": found})


if __name__ == "__main__":
    main()
