r"""Errors of the estimates of log Z, their stated errors, and their cost.

    OMP_NUM_THREADS=1 python -m benchmarks.partition --data PATH [--only TABLE] [--quick] [--json F]

PATH holds `images/binarized_mnist.npz` and `debd/<set>.npz` with train parts as packed bits.
Protocol: CPU, one thread, errors in nats, against exact values. Seconds are CPU seconds of one
estimate, which depend little on other processes; for *cost* wall-clock seconds.

- *calibration*: 100 estimates, seeds 0 to 99, of a normal distribution (50 columns, variances from
  0.1 to 10 along random directions), of mixtures of two normal distributions in the plane (mixing
  weights 0.3 and 0.7, scales 1 and 0.6; log Z checked by quadrature), in float64, and of
  `RBMEstimator(20, random_state=0)` on nltcs, plants and jester (by enumeration), in float32. AIS
  starts from the standard normal distribution (100 chains x 500) or the columns' means of the train
  part (100 x 2,000, the default). "rows" are exact draws, fresh each time: 200 for reverse AIS,
  half of which fit the base where it is normal, else 100; 1,000 for importance sampling of
  continuous rows, to fit the base; 1,000 for bridge sampling, or, as "chains", the ends of 200
  steps from training rows. z = (estimate - exact) / std_error; coverage of +- 1.96; "wrong" is the
  fraction of bounds on the wrong side, nominally 0.05 at most.
- *ising*: 10 x 10 spins, open boundaries, no field; couplings 0.1 to 0.6, or random ones (one
  instance each), float64, against a transfer matrix. Default settings. The bracket and reverse AIS
  get 100 rows, the states of `ParallelTempering(16)` after 1,000 steps from uniform bits (their
  time is not counted). AIS: means over seeds 0 to 9 and the largest error; where that exceeds 0.1,
  larger budgets follow. Others: seed 0.
- *random*: 100 models of 12 spins each, half of all pairs coupled, fields N(0, 1), couplings
  N(0, 1) (their absolute values where attractive) times a scale between 0.1 and 2.
- *schedule*: AIS(100, 1000), with a tenth of the cost for its pilot runs, against 1,100 evenly
  spaced temperatures without them, RBMs 784-16 on MNIST (PCD, 20 passes) and on jester (20 units),
  from the columns' means, 800 seeds from 10,000; ratio of mean squared errors with a bootstrap
  standard error.
- *cost*: AIS(100, 1000) at 784-500 over its matrix products alone, interleaved, paired ratios.
- *warnings*: `AISBracket()` from 200 rows, on 25 models a group: how often each of its warnings is
  issued; how many values are off by more than 0.5, how many upper ends are too low, and how many of
  these come without a warning; the distance of the upper end to the value. Bases of the rows' means
  (as in the estimators), or normal ones fitted to them, and wide ones. Good: rows are exact draws;
  30-20 RBMs with N(0, scale) weights, scales 0.1 to 0.5, or trained by PCD, five passes over 30
  columns of plants; two normal distributions 6 to 20 apart (100 chains x 500, 200 steps). Bad: rows
  are exact draws of the lighter of two distant modes only (its mass 0.05 to 0.4 in RBMs, 0.3 in the
  plane); or CD-1 with learning rates of 5 to 20 on two clusters, kept if the training rows are less
  likely than under independent columns.

`--quick`: a tenth of the repetitions.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from benchmarks import _partition_models as models
from benchmarks._common import machine, seconds, spread, table, write
from benchmarks._partition_models import Suspect, Target, seeded
from skebm.base import LogPartition
from skebm.distributions import IndependentBernoulli
from skebm.energies import BernoulliRBM, annealing_path
from skebm.partition import (
    AIS,
    AISBracket,
    Bethe,
    BridgeSampling,
    Exact,
    ImportanceSampling,
    PerturbAndMAP,
    ReverseAIS,
    TreeReweighted,
)
from skebm.partition.annealed import AnnealingPlan, Schedule
from skebm.samplers import Gibbs, ParallelTempering

Rows = list[dict[str, object]]
Run = Callable[[int], LogPartition]


class Timed(NamedTuple):
    """An estimate, its CPU seconds, and its convergence warnings."""

    estimate: LogPartition
    seconds: float
    messages: list[str]


def timed(run: Callable[[], LogPartition]) -> Timed:
    """Run with warnings collected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        started = time.process_time()
        estimate = run()
        spent = time.process_time() - started
    messages = [str(one.message) for one in caught if issubclass(one.category, ConvergenceWarning)]
    return Timed(estimate, spent, messages)


# ------------------------------------------------------------------------------
# calibration
# ------------------------------------------------------------------------------


def methods(target: Target) -> dict[str, Run]:
    """Estimates of a model as functions of a seed."""
    common = {"energy": target.energy, "base": target.base}
    trained = target.rows is not None

    def run(method: Any, n_rows: int, seed: int, x: Tensor | None = None) -> LogPartition:
        generator = seeded(seed)
        x = target.draw(n_rows, generator) if n_rows else x
        return method.estimate(**common, x=x, generator=generator)

    n_betas = 2000 if trained else 500
    reverse = ReverseAIS(n_betas, exact_samples=True)
    runs = {
        f"AIS 100 x {n_betas}": partial(run, AIS(100, n_betas), 0),
        "reverse AIS, rows": partial(run, reverse, 100 if trained else 200),
        "importance" if trained else "importance, rows": partial(
            run, ImportanceSampling(), 0 if trained else 1000
        ),
        "bridge, rows": partial(run, BridgeSampling(exact_samples=True), 1000),
    }
    if trained:
        runs["bridge, chains"] = partial(run, BridgeSampling(), 0, x=target.rows)
    return runs


def calibration(data: Path, quick: bool) -> Rows:
    """z-scores of repeated estimates."""
    rows = []
    targets: Iterable[Callable[[], Target]] = [
        *(lambda one=one: one for one in models.continuous()),
        *(partial(models.trained_rbm, data, name) for name in ("nltcs", "plants", "jester")),
    ]
    for make in targets:
        target = make()
        for name, run in methods(target).items():
            results = [timed(partial(run, seed)) for seed in range(10 if quick else 100)]
            rows.append(calibrated(target, name, results))
        print(table(rows[-len(methods(target)) :]), flush=True)
    return rows


def calibrated(target: Target, name: str, results: list[Timed]) -> dict[str, object]:
    """A row of the table."""
    value, std_error, lower, upper = (
        np.array([one.estimate[i] for one in results], dtype=float) for i in range(4)
    )
    error = value - target.exact
    z = error / std_error
    bounded = not np.isnan(np.r_[lower, upper]).all()
    wrong = (lower > target.exact) | (upper < target.exact)
    return {
        "model": target.name,
        "exact": f"{target.exact:.3f}",
        "method": name,
        "mean error": f"{error.mean():+.4f}",
        "mean abs": f"{np.abs(error).mean():.4f}",
        "mean std_error": f"{std_error.mean():.4f}",
        "mean z": f"{z.mean():+.2f}",
        "sd of z": f"{z.std(ddof=1):.2f}",
        "coverage": f"{np.mean(np.abs(z) <= 1.96):.2f}",
        "wrong": f"{wrong.mean():.2f}" if bounded else "",
        "warned": f"{np.mean([bool(one.messages) for one in results]):.2f}",
        "s": float(np.mean([one.seconds for one in results])),
    }


# ------------------------------------------------------------------------------
# ising
# ------------------------------------------------------------------------------

BUDGETS = ((100, 5000), (100, 10_000), (1000, 2000), (100, 20_000), (1000, 10_000))
TARGET = 0.1


def ising(data: Path, quick: bool) -> Rows:
    """All methods on grids."""
    models.check_transfer()
    rows, more = [], []
    n_seeds = 3 if quick else 10
    for grid in models.grids():
        energy, exact = grid.energy, grid.exact
        start = energy.domain.uniform(100, seeded(1), dtype=torch.float64)
        chains = ParallelTempering(16)
        state, _ = chains.run(energy, start, 200 if quick else 1000, seeded(2))
        single = {
            "AISBracket": (AISBracket(), state.x),
            "reverse AIS": (ReverseAIS(), state.x),
            "importance": (ImportanceSampling(), None),
            "bridge": (BridgeSampling(), None),
            "Bethe": (Bethe(), None),
            "TreeReweighted": (TreeReweighted(), None),
            "PerturbAndMAP": (PerturbAndMAP(), None),
        }
        first = len(rows)
        worst, line = repeated(AIS(), energy, exact, n_seeds)
        rows.append({"model": grid.name, "exact": f"{exact:.3f}", "method": "AIS", **line})
        for name, (method, x) in single.items():
            estimate = partial(method.estimate, energy, x=x, generator=seeded(0))
            line = errors(exact, [timed(estimate)])
            rows.append({"model": grid.name, "exact": f"{exact:.3f}", "method": name, **line})
        print(table(rows[first:]), flush=True)
        for n_chains, n_betas in BUDGETS[: 1 if quick else None]:
            if worst <= TARGET:
                break
            worst, line = repeated(AIS(n_chains, n_betas), energy, exact, n_seeds)
            name = f"AIS {n_chains} x {n_betas}"
            more.append({"model": grid.name, "exact": f"{exact:.3f}", "method": name, **line})
    if more:
        print(table(more), flush=True)
    return rows + more


def repeated(method: AIS, energy: Any, exact: float, n: int) -> tuple[float, dict[str, object]]:
    """The largest error of seeds 0 to n - 1, and a row of the table."""
    results = [timed(partial(method.estimate, energy, generator=seeded(seed))) for seed in range(n)]
    return max(abs(one.estimate.value - exact) for one in results), errors(exact, results)


def errors(exact: float, results: list[Timed]) -> dict[str, object]:
    """Mean errors, and the largest one."""
    value, std_error, lower, upper = np.array([one.estimate[:4] for one in results], dtype=float).T
    error = value - exact
    shown = {
        "value - exact": error.mean(),
        "worst": error[np.abs(error).argmax()],
        "std_error": std_error.mean(),
        "lower - exact": (lower - exact).max(),
        "upper - exact": (upper - exact).min(),
    }
    return {
        **{name: "" if math.isnan(one) else f"{one:+.4f}" for name, one in shown.items()},
        "bound": results[0].estimate.bound_kind,
        "warned": f"{np.mean([bool(one.messages) for one in results]):.2f}",
        "s": float(np.mean([one.seconds for one in results])),
    }


# ------------------------------------------------------------------------------
# random
# ------------------------------------------------------------------------------


def random_models(data: Path, quick: bool) -> Rows:
    """Distances of the bounds from log Z, on small random models."""
    rows = []
    for method, attractive, side in (
        (Bethe(), True, -1),
        (Bethe(), False, 0),
        (TreeReweighted(), True, 1),
        (TreeReweighted(), False, 1),
        (PerturbAndMAP(), True, 1),
        (PerturbAndMAP(), False, 1),
    ):
        gaps, results = [], []
        for seed in range(10 if quick else 100):
            energy = models.random_spins(seed, attractive)
            one = timed(partial(method.estimate, energy, generator=seeded(seed)))
            estimate, exact = one.estimate, Exact().estimate(energy).value
            end = {-1: estimate.lower, 0: estimate.value, 1: estimate.upper}[side]
            gaps.append(end - exact)
            results.append(one)
        gap = np.array(gaps)
        rows.append(
            {
                "method": f"{type(method).__name__} {['value', 'upper', 'lower'][side]}",
                "couplings": "attractive" if attractive else "random",
                "mean gap": f"{gap.mean():+.4f}",
                "median gap": f"{np.median(gap):+.4f}",
                "smallest": f"{gap.min():+.4f}",
                "largest": f"{gap.max():+.4f}",
                "wrong side": int((side * gap < 0).sum()) if side else "",
                "warned": sum(bool(one.messages) for one in results),
                "s": float(np.mean([one.seconds for one in results])),
            }
        )
    print(table(rows), flush=True)
    return rows


# ------------------------------------------------------------------------------
# schedule
# ------------------------------------------------------------------------------


def schedule(data: Path, quick: bool) -> Rows:
    """The adapted schedule against an even one at equal cost."""
    rows = []
    seeds = range(10_000, 10_020 if quick else 10_800)
    for name, n_hidden, settings in (
        ("jester", 20, {}),
        ("mnist", 16, {"learning": "pcd", "n_iter": 2 if quick else 20}),
    ):
        energy, x = models.trained(data, name, n_hidden, **settings)
        base = IndependentBernoulli.fit(x)
        path = annealing_path(energy, base)
        exact = Exact().estimate(energy).value
        even = Schedule(np.linspace(0, 1, 1100).tolist(), [], [])
        runs: dict[str, Run] = {
            "adapted, 1000": lambda seed, e=energy, b=base: AIS(100, 1000).estimate(
                e, base=b, generator=seeded(seed)
            ),
            "even, 1100": lambda seed, p=path, s=even: along(p, s, seed),
        }
        results: dict[str, list[Timed]] = {spacing: [] for spacing in runs}
        for seed in seeds:
            for spacing, run in runs.items():
                results[spacing].append(timed(partial(run, seed)))
        errors_of = {
            spacing: np.array([one.estimate.value - exact for one in some])
            for spacing, some in results.items()
        }
        ratio = mse_ratio(*errors_of.values())
        for spacing, error in errors_of.items():
            rows.append(
                {
                    "model": f"{name} {energy.domain.n_columns}-{n_hidden}",
                    "schedule": spacing,
                    "exact": f"{exact:.3f}",
                    "rmse": f"{np.sqrt(np.mean(error**2)):.4f}",
                    "mean error": f"{error.mean():+.4f}",
                    "sd": f"{error.std(ddof=1):.4f}",
                    "mse, adapted / even": ratio if spacing.startswith("adapted") else "",
                    "s": float(np.mean([one.seconds for one in results[spacing]])),
                }
            )
    print(table(rows), flush=True)
    return rows


@torch.no_grad()
def along(path: Any, even: Schedule, seed: int) -> LogPartition:
    """AIS along a schedule."""
    return AnnealingPlan(path, Gibbs(), even, 0.05, seeded(seed)).forward(100)


def mse_ratio(first: np.ndarray, second: np.ndarray) -> str:
    """Ratio of mean squares, with the standard deviation of 2,000 resamples."""
    rng = np.random.default_rng(0)

    def means(error: np.ndarray) -> np.ndarray:
        return np.mean(rng.choice(error**2, (2000, len(error))), 1)

    ratio = np.mean(first**2) / np.mean(second**2)
    return f"{ratio:.2f} +- {np.std(means(first) / means(second)):.2f}"


# ------------------------------------------------------------------------------
# cost
# ------------------------------------------------------------------------------


def cost(data: Path, quick: bool) -> Rows:
    """Time of AIS over that of its matrix products."""
    n_chains, n_betas = 100, 1000
    energy = BernoulliRBM(784, 500, generator=seeded(0), scale=0.03)
    W = energy.weight.detach()

    def products(n: int, times: int) -> None:
        x, h = torch.rand(n, 784), torch.rand(n, 500)
        for _ in range(times):
            torch.mm(x, W.t())
            torch.mm(h, W)

    def estimate() -> None:
        AIS(n_chains, n_betas).estimate(energy, generator=seeded(0))

    spent: dict[str, list[float]] = {"AIS": [], "products": [], "pilots' products": []}
    for _ in range(3 if quick else 9):
        spent["AIS"].append(seconds(estimate))
        spent["products"].append(seconds(lambda: products(n_chains, n_betas - 1)))
        # A quarter of the chains, 400 temperatures: a tenth of the cost.
        spent["pilots' products"].append(seconds(lambda: products(n_chains // 4, 400)))
    with_pilots = [a + b for a, b in zip(spent["products"], spent["pilots' products"], strict=True)]
    rows: Rows = [
        {
            "model": "784-500",
            "AIS, s": float(np.median(spent["AIS"])),
            "products, s": float(np.median(spent["products"])),
            "pilots' products, s": float(np.median(spent["pilots' products"])),
            "AIS / products": spread(spent["AIS"], spent["products"]),
            "AIS / products with the pilots'": spread(spent["AIS"], with_pilots),
        }
    ]
    print(table(rows), flush=True)
    return rows


# ------------------------------------------------------------------------------
# warnings
# ------------------------------------------------------------------------------

KINDS = {
    "crossed": "have crossed",
    "depends on start": "depends on its start",
    "missed modes": "missed modes",
    "wide": "The upper end of the interval",
}


def warned(data: Path, quick: bool) -> Rows:
    """How often AISBracket warns of good models and of bad ones."""
    n = 5 if quick else 25
    groups: dict[str, Iterable[Suspect]] = {
        "good: random 30-20": models.random_rbms(n),
        "good: trained 30-20": models.trained_rbms(data, n),
        "bad: lighter mode 30-20": models.one_sided_rbms(n),
        "bad: CD-1, large steps 30-20": models.badly_trained(n),
        "good: two modes, all rows": models.far_mixtures(n, one_sided=False),
        "bad: two modes, rows of one": models.far_mixtures(n, one_sided=True),
    }
    rows = []
    for name, group in groups.items():
        first = len(rows)
        discrete = "30-20" in name
        suspects = list(group)
        for base in ("rows' means", "uniform") if discrete else ("fitted", "N(0, 1)"):
            results = [bracketed(one, base) for one in suspects]
            rows.append({"models": name, "base": base, **rates(suspects, results)})
        print(table(rows[first:]), flush=True)
    return rows


def bracketed(one: Suspect, base: str) -> Timed:
    """AISBracket from the rows of a model."""
    fitted: Any = None
    if base == "rows' means":
        fitted = IndependentBernoulli.fit(one.rows)
    elif base == "N(0, 1)":
        fitted = models.standard_normal(one.rows)
    method = AISBracket() if base in ("rows' means", "uniform") else AISBracket(100, 500, 200)
    return timed(partial(method.estimate, one.energy, base=fitted, x=one.rows, generator=seeded(0)))


def rates(suspects: list[Suspect], results: list[Timed]) -> dict[str, object]:
    """Fractions of the models."""
    pairs = list(zip(suspects, results, strict=True))
    error = np.array([one.estimate.value - suspect.exact for suspect, one in pairs])
    below = np.array([one.estimate.upper < suspect.exact for suspect, one in pairs])
    warned_of = {
        kind: np.array([any(text in message for message in one.messages) for one in results])
        for kind, text in KINDS.items()
    }
    any_warning = np.any(list(warned_of.values()), 0)
    width = np.array([one.estimate.upper - one.estimate.value for one in results])
    return {
        "n": len(results),
        "warned": f"{any_warning.mean():.2f}",
        **{kind: f"{of_kind.mean():.2f}" for kind, of_kind in warned_of.items()},
        "mean abs error": float(np.abs(error).mean()),
        "off by 0.5": f"{np.mean(np.abs(error) > 0.5):.2f}",
        "off, silent": f"{np.mean((np.abs(error) > 0.5) & ~any_warning):.2f}",
        "upper < exact": f"{below.mean():.2f}",
        "so, silent": f"{np.mean(below & ~any_warning):.2f}",
        "median width": float(np.median(width)),
        "largest": float(width.max()),
        "s": float(np.mean([one.seconds for one in results])),
    }


TABLES: dict[str, Callable[[Path, bool], Rows]] = {
    "calibration": calibration,
    "ising": ising,
    "random": random_models,
    "schedule": schedule,
    "cost": cost,
    "warnings": warned,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    tables = {}
    for name in args.only:
        print(f"\n{name}\n", flush=True)
        tables[name] = TABLES[name](args.data, args.quick)
    write(args.json, tables)


if __name__ == "__main__":
    main()
