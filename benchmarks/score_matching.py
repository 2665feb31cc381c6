"""What a fit of ScoreMatchingDensity costs, and whether it always comes out finite.

    python -m benchmarks.score_matching --speed [--json F]
    python -m benchmarks.score_matching --robust --data PATH [--json F]

`--speed`: one step of denoising score matching (an MLP of two layers on a normal base, 128 rows and
their pairs of noisy copies, AdamW), in microseconds, medians of 7 rounds of 200 steps in which
contestants take turns. `engine` is an epoch of the estimator's own net over its steps; `bare`
writes the same arithmetic down in torch with nothing around it; `naive` lets autograd differentiate
twice. Then the exact trace of the Hessian: `forward` is ours (all directions go forward together),
`naive` d passes of autograd over its own gradient.

`--robust`: defaults on 1,000 rows (or what there are) of the normal rows of ten sets of
`PATH/adbench`, seeds 0 to 3; wall time of `fit`, and whether energies of all other rows are finite.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import machine, seconds, spread, table, write
from benchmarks.anomaly import load
from skebm import ScoreMatchingDensity
from skebm.base import Batch
from skebm.base.energy import autograd_grad, second_derivative_of_grad
from skebm.energies import MLP, NeuralEnergy
from skebm.objectives import ExactScoreMatching

SHAPES = ((2, (128, 128)), (11, (128, 128)), (30, (128, 128)), (30, (256, 256)))
N_ROWS, N_STEPS, N_ROUNDS = 128, 200, 7
SETS = (
    "2_annthyroid",
    "4_breastw",
    "12_fault",
    "18_Ionosphere",
    "20_letter",
    "22_magic.gamma",
    "23_mammography",
    "26_optdigits",
    "32_shuttle",
    "38_thyroid",
)


def denoising(energy: NeuralEnergy, x: Tensor, sigma: Tensor, slope: Callable) -> Tensor:
    """The loss, by one way to the gradient of the energy."""
    noise = torch.randn_like(x)
    off = sigma * noise
    there, back = (sigma * slope(energy, torch.cat([x + off, x - off]))).chunk(2)
    half = (there.square() + back.square()).sum(1) / 4
    return (half - ((there - back) * noise).sum(1) / 2).mean()


def explicit(energy: NeuralEnergy, x: Tensor) -> Tensor:
    """Gradient as the network works it out itself."""
    return energy.network.value_and_input_grad(x).grad - energy.base.score(x)


def twice(energy: NeuralEnergy, x: Tensor) -> Tensor:
    """Gradient by autograd, which is then differentiated by autograd."""
    x = x.requires_grad_(True)
    value = energy.network(x) - energy.base.log_prob(x)
    (found,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return found


def step_of(model: ScoreMatchingDensity, rows: Tensor, slope: Callable) -> Callable[[], None]:
    """A bare step on the network of a fitted model."""
    objective = model.net_.module_
    energy, sigma = objective.energy, objective.sigma
    optimizer = torch.optim.AdamW(energy.parameters(), lr=1e-4, weight_decay=0.0)

    def step() -> None:
        optimizer.zero_grad()
        denoising(energy, rows, sigma, slope).backward()
        optimizer.step()

    return step


def measure_step(d: int, sizes: tuple[int, ...]) -> dict[str, object]:
    """Paired rounds of the three contestants."""
    X = np.random.default_rng(0).standard_normal((N_ROWS * N_STEPS, d))
    settings = {"sigma": 0.3, "base": "gaussian", "random_state": 0, "n_iter": 1, "device": "cpu"}
    model = ScoreMatchingDensity(MLP(sizes), **settings).fit(X)
    rows = torch.as_tensor(X[:N_ROWS], dtype=torch.float32)
    found: dict[str, list[float]] = {"engine": [], "bare": [], "naive": []}
    steps = {"bare": step_of(model, rows, explicit), "naive": step_of(model, rows, twice)}
    for _ in range(N_ROUNDS):
        model.partial_fit(X)
        found["engine"].append(model.history_[-1]["dur"] / N_STEPS * 1e6)
        for name, step in steps.items():
            spent = seconds(lambda step=step: [step() for _ in range(N_STEPS)])
            found[name].append(spent / N_STEPS * 1e6)
    middle = statistics.median(found["engine"])
    return {
        "d": d,
        "layers": " x ".join(map(str, sizes)),
        "engine, us": round(middle),
        "engine / bare": spread(found["engine"], found["bare"]),
        "naive / engine": spread(found["naive"], found["engine"]),
    }


def measure_trace(d: int, sizes: tuple[int, ...]) -> dict[str, object]:
    """The exact objective and its gradient, by both ways to the trace."""
    X = np.random.default_rng(0).standard_normal((1000, d))
    settings = {"objective": "exact", "base": "gaussian", "random_state": 0, "n_iter": 1}
    model = ScoreMatchingDensity(MLP(sizes), device="cpu", **settings).fit(X)
    objective: ExactScoreMatching = model.net_.module_
    energy, x = objective.energy, torch.as_tensor(X[:N_ROWS], dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)

    def forward() -> None:
        with torch.no_grad():
            objective.gradients(Batch(x), None, generator)

    def naive() -> None:
        objective.zero_grad()
        at = x.clone().requires_grad_(True)
        slope = autograd_grad(energy(at), at)
        bend = second_derivative_of_grad(slope, at, torch.eye(d))
        (slope.square().sum(1) / 2 - bend).mean().backward()

    pairs = [
        (
            seconds(lambda: [naive() for _ in range(5)]),
            seconds(lambda: [forward() for _ in range(5)]),
        )
        for _ in range(N_ROUNDS)
    ]
    slow, fast = (list(one) for one in zip(*pairs, strict=True))
    layers = " x ".join(map(str, sizes))
    return {"d": d, "layers": layers, "naive / forward": spread(slow, fast)}


def robust(data: Path) -> list[dict[str, object]]:
    """A line for each set: are all fits finite, and how long did the slowest take?"""
    rows = []
    for name in SETS:
        X, y = load(data, name)
        spent, finite, n = [], True, 0
        for seed in range(4):
            order = np.random.default_rng(seed).permutation(np.flatnonzero(y == 0))
            train = X[order[:1000]]
            n = len(train)
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of constant columns
                model = ScoreMatchingDensity(random_state=seed, device="cpu").fit(train)
            spent.append(time.perf_counter() - began)
            finite &= bool(np.isfinite(model.energy(X)).all()) and model.n_restarts_ == 0
        row = {"set": name, "rows": n, "columns": X.shape[1], "finite, no roll-back": finite}
        row |= {"fit, s": f"{statistics.median(spent):.1f}", "slowest, s": f"{max(spent):.1f}"}
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--robust", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.robust and args.data is None:
        parser.error("--robust needs --data")
    print(machine())
    result: dict[str, object] = {}
    if args.speed:
        result["steps"] = [measure_step(*shape) for shape in SHAPES]
        print(table(result["steps"]))
        result["traces"] = [measure_trace(*shape) for shape in SHAPES]
        print(table(result["traces"]))
    if args.robust:
        result["robust"] = robust(args.data)
        print(table(result["robust"]))
    write(args.json, result)


if __name__ == "__main__":
    main()
