"""Effective samples per gradient of the continuous samplers, against blackjax and torchebm.

    OMP_NUM_THREADS=1 python -m benchmarks.samplers --data PATH [--quick] [--json F]
        [--methods METHOD ...]
    python -m benchmarks.samplers --speed [--threads 2]

PATH is the folder of data sets; only `tabular/banknote.npz` is read.

Protocol. Targets: `benchmarks._sampler_targets`, in float64, one thread (XLA's too), on a CPU; that
torch and JAX compute the same is asserted first. 16 chains start at independent draws from the
target, the same for all contestants: this compares efficiency, not burn-in. Every contestant gets
4,000 evaluations a chain (2,000 on the logistic regression) after its warm-up; NUTS and dynamic HMC
get a twentieth as many paths. A warm-up is as many steps as are kept, 400 paths where a step is
one; it is not counted. `--quick`: fewer of all, one target; a smoke test, no result.

Evaluations: gradients (a random walk's: energies) of all chains in the kept phase; see
`benchmarks._sampler_peers` for those of peers, skebm's are counted at the energy. Energies without
a gradient that a Langevin trace asks for its record are not counted.

Effective sample size: `skebm.diagnostics.effective_sample_size` of 16 x 1,000 draws at most (those
of one-evaluation steps are thinned), of every column and of its squared distance from the mean, the
smallest of all: antithetic draws make that of the mean alone look too good. In the funnel only v is
watched. ESS below 80 is marked *: five a chain, hardly more than the 16 starts, so an upper bound.

Settings: what does not adapt gets its step from a grid (half decades, then four steps around the
best), HMC its number of leapfrog steps from 2, 3, 5, 10, 20, 40, 80, by ESS per evaluation of a
third of the budget with seed 1000. For unadjusted Langevin only steps count whose variances are off
by no more than 10 % and two standard errors. Then each runs once with seeds 0 to 4: median, range.

skebm adapts its step and, where it says auto or dense, its scale. The acceptance that a warm-up
aims at is chosen from 0.1, 0.15, 0.234, 0.4 (random walk), 0.3, 0.574, 0.8 (MALA) and 0.8, 0.85,
0.9, 0.95 (HMC and NUTS, blackjax's too). Peers without adaptation get what a patient user would
give them, and more: the exact standard deviations as scale or mass. So does skebm's Langevin.
blackjax's HMC and NUTS run `window_adaptation` with a diagonal mass (or a dense one, where it says
so) in every chain on its own, as its documentation does; dynamic HMC runs `chees_adaptation`, whose
chains learn together.

z: the largest |error of a mean or a second moment| in standard errors, over columns, all seeds
together. Up to 3.5 is expected with 50 columns. Seconds: the kept phase, compiled before.

Speed: 20 Langevin steps on an MLP 64-128-128-1 (SiLU, float32), batch 100; medians of paired ratios
with their quartiles, contestants in turn.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks import _sampler_peers as peers
from benchmarks import _sampler_targets as known
from benchmarks._common import machine, seconds, spread, table, write
from benchmarks._sampler_targets import Length, Network, Quality, Run, Target, judge
from skebm.base import SamplingError
from skebm.samplers import HMC, MALA, Langevin, MetropolisHastings

CHAINS, KEPT, PATHS = 16, 1000, 400
STEPS = [10 ** (k / 2) for k in range(-8, 1)]  # 1e-4 to 1
STEPS_OF_PATHS = [10 ** (k / 2) for k in range(-4, 1)]
FINER = [10**k for k in (-0.25, -0.125, 0.125, 0.25)]
LEAPFROG = [2, 3, 5, 10, 20, 40, 80]


COLUMNS = (
    *("ESS / 1000", "ESS / s", "s", "evaluations", "acceptance"),
    *("z of means", "z of squares", "variance off, %", "rate", "weak"),
)


class Contestant(NamedTuple):
    """A sampler and the settings it is tried with.

    Attributes
    ----------
    run : function of (target, x0, length, seed, **settings)
    grid : dict of lists
        ``step`` is refined.
    per_step : float
        Evaluations a step is planned with, where settings do not say.
    paths : bool
        Whether a step is a path.
    """

    method: str
    name: str
    run: Callable[..., Run]
    grid: dict[str, list[Any]]
    per_step: int = 1
    paths: bool = False


def contestants() -> list[Contestant]:
    """All that can run here."""
    aims = {"target_acceptance": [0.8, 0.85, 0.9, 0.95]}
    grid: dict[str, list[Any]] = {"n_leapfrog": LEAPFROG, **aims}
    makers: list[tuple[str, Callable[..., Any], dict[str, list[Any]]]] = [
        ("random walk", MetropolisHastings, {"target_acceptance": [0.1, 0.15, 0.234, 0.4]}),
        ("MALA", MALA, {"target_acceptance": [0.3, 0.574, 0.8]}),
        ("HMC", HMC, grid),
    ]
    entries = [
        (method, f"scale={scale}", adapting(make, scale), settings)
        for method, make, settings in makers
        for scale in (None, "auto", "dense")
        if method != "HMC" or scale
    ]
    entries += [
        ("Langevin", how, unadjusted(averaged), {"step": STEPS})
        for how, averaged in (("", False), ("averaged", True))
    ]
    found = [
        Contestant(method, f"skebm {how}".strip(), peers.ours(make), grid, paths=method == "HMC")
        for method, how, make, grid in entries
    ]
    if peers.have("blackjax"):
        for method, short in [("random walk", "rwm"), ("MALA", "mala"), ("Langevin", "sgld")]:
            run = named(peers.simple, short)
            found.append(Contestant(method, "blackjax", run, {"step": STEPS}))
        found += [
            Contestant("HMC", "blackjax", named(peers.paths, "hmc"), grid, paths=True),
            Contestant("HMC", "blackjax, dense", named(peers.paths, "dense"), grid, paths=True),
            Contestant("HMC", "blackjax, ChEES", peers.chees, {}, 20, paths=True),
            Contestant("NUTS", "blackjax", named(peers.paths, "nuts"), aims, 20, paths=True),
        ]
    if peers.have("torchebm"):
        grid = {"step": STEPS_OF_PATHS, "n_leapfrog": LEAPFROG}
        found += [
            Contestant("HMC", "torchebm", named(peers.torchebm, "hmc"), grid, paths=True),
            Contestant("Langevin", "torchebm", named(peers.torchebm, "langevin"), {"step": STEPS}),
        ]
    return found


def adapting(make: Callable[..., Any], scale: str | None) -> Callable[..., Any]:
    """A sampler of skebm that tunes itself, for a target and settings."""
    return lambda target, **settings: make(adapt=True, scale=scale, **settings)


def unadjusted(averaged: bool) -> Callable[..., Any]:
    """Langevin dynamics with the target's own scale."""
    return lambda target, step: Langevin(step, averaged=averaged, scale=target.sd)


def named(run: Callable[..., Run], method: str) -> Callable[..., Run]:
    """A peer's `run` for one of its methods."""
    return lambda *args, **settings: run(method, *args, **settings)


def length(one: Contestant, settings: dict[str, Any], budget: int) -> Length:
    """Steps of a run that takes about `budget` evaluations of every chain."""
    if not one.paths:
        thin = max(budget // KEPT, 1)
        return Length(budget // thin * thin, thin, budget)
    steps = max(budget // settings.get("n_leapfrog", one.per_step), 10)
    return Length(steps, 1, min(PATHS, budget))


def attempt(
    one: Contestant, target: Target, settings: dict[str, Any], budget: int, warmup: int, seed: int
) -> tuple[Run, Quality] | None:
    """One run, judged; None where the step is too large for the sampler."""
    x0 = target.draw(CHAINS, np.random.default_rng(seed))
    plan = length(one, settings, budget)
    plan = plan._replace(warmup=min(PATHS, warmup) if one.paths else warmup)
    try:
        run = one.run(target, x0, plan, seed, **settings)
    except SamplingError:
        return None
    quality = judge(target, run)
    return None if quality is None else (run, quality)


def tune(one: Contestant, target: Target, budget: int, quick: bool) -> dict[str, Any]:
    """The best settings of a grid."""
    grid = {k: v[::2] if quick else v for k, v in one.grid.items()}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    scores: dict[int, float] = {}

    def score(number: int) -> float:
        found = attempt(one, target, points[number], budget // 3, budget, 1000)
        if found is None:
            return -np.inf
        run, q = found
        if one.method == "Langevin":  # a bias has to be paid for
            noise = np.minimum(2 * q.variance_error, 1)
            excess = np.max(np.abs(q.variance) - noise - 0.1)
            if excess > 0:
                return -float(excess)
        return q.ess / run.evaluations

    def best() -> int:
        for number in range(len(points)):
            if number not in scores:
                scores[number] = score(number)
        return max(scores, key=scores.__getitem__)

    if len(points) == 1:
        return points[0]
    place = best()
    if "step" in grid and not quick:
        points += [points[place] | {"step": points[place]["step"] * k} for k in FINER]
        place = best()
    return points[place]


def measure(
    one: Contestant, target: Target, budget: int, seeds: range, quick: bool
) -> dict[str, object]:
    """A line of the table: all seeds with the best settings."""
    budget = int(budget * target.work)
    started = time.perf_counter()
    settings = tune(one, target, budget, quick)
    tries = [attempt(one, target, settings, budget, budget, seed) for seed in seeds]
    found = [t for t in tries if t is not None]
    spent = time.perf_counter() - started
    line = summary(found) if len(found) == len(tries) else dict.fromkeys(COLUMNS, "ran off")
    shown = " ".join(f"{k}={v:.3g}" if k == "step" else f"{k}={v}" for k, v in settings.items())
    head = {"target": target.name, "method": one.method, "sampler": one.name, "settings": shown}
    print({**head, **line, "in all, s": round(spent, 1)}, flush=True)
    return head | line


def summary(found: list[tuple[Run, Quality]]) -> dict[str, object]:
    """What the seeds of a contestant say together."""
    rates = [1000 * q.ess / run.evaluations for run, q in found]
    weak = min(q.ess for _, q in found) < 5 * CHAINS
    per_second = median(q.ess / run.seconds for run, q in found)
    n = len(found)

    def together(value: str) -> tuple[np.ndarray, np.ndarray]:
        errors = [getattr(q, f"{value}_error") ** 2 for _, q in found]
        return np.mean([getattr(q, value) for _, q in found], 0), np.sqrt(np.sum(errors, 0)) / n

    (mean, mean_error), (variance, variance_error) = together("mean"), together("variance")
    worst = variance[np.abs(variance).argmax()]
    shown = f"{median(rates):.3g} ({min(rates):.3g} to {max(rates):.3g})"
    values = (
        shown + ("*" if weak else ""),
        per_second,
        median(run.seconds for run, _ in found),
        found[0][0].evaluations,
        round(median(run.acceptance for run, _ in found), 2),
        round(float(np.max(np.abs(mean) / mean_error)), 1),
        round(float(np.max(np.abs(variance) / variance_error)), 1),
        round(100 * float(worst), 1),
        median(rates),
        weak,
    )
    return dict(zip(COLUMNS, values, strict=True))


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Best of skebm over the best peer, for each target and method; and HMC over NUTS."""
    out = []
    rows = [r for r in rows if r["rate"] != "ran off"]
    for target, method in dict.fromkeys((r["target"], r["method"]) for r in rows):
        group = [r for r in rows if r["target"] == target and r["method"] == method]
        if method == "NUTS":
            group += [r for r in rows if r["target"] == target and r["method"] == "HMC"]
            group = [r for r in group if "skebm" in r["sampler"] or r["method"] == "NUTS"]
        mine = [r for r in group if "skebm" in r["sampler"]]
        others = [r for r in group if "skebm" not in r["sampler"]]
        if mine and others:
            own, peer = (max(part, key=lambda r: r["rate"]) for part in (mine, others))
            mark = "*" if own["weak"] or peer["weak"] else ""
            names = {"ours": own["sampler"], "best peer": peer["sampler"]}
            what = "HMC, NUTS" if method == "NUTS" else method
            ratio = f"{own['rate'] / peer['rate']:.2f}{mark}"
            out.append({"target": target, "method": what, **names, "ours / peer": ratio})
    return out


def bare(energy: Network, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Twenty Langevin steps with nothing around them."""
    for _ in range(20):
        x = x.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(energy(x).sum(), x)
        with torch.no_grad():
            x = x - 0.01 * grad + 0.1 * torch.randn(x.shape, generator=generator)
    return x


def speed(threads: int, repetitions: int) -> list[dict[str, object]]:
    """Wall time of one batch of Langevin steps."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    energy, generator = Network(), torch.Generator().manual_seed(0)
    x, sampler = torch.randn(100, 64), Langevin(0.01, noise_scale=0.1)
    runs: dict[str, Callable[[], Any]] = {
        "skebm": lambda: sampler.run(energy, x, 20, generator),
        "bare loop": lambda: bare(energy, x, generator),
    }
    if peers.have("torchebm"):
        from torchebm.samplers import LangevinDynamics

        model = peers.torchebm_model(energy, None, torch.float32)
        other = LangevinDynamics(model, 0.01, 0.1 / 0.02**0.5, device="cpu")
        runs["torchebm"] = lambda: other.sample(x, n_steps=20, generator=generator)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(repetitions):
        order = list(runs)
        for name in order[k % len(order) :] + order[: k % len(order)]:
            times[name].append(seconds(runs[name]))
    mine = times["skebm"]
    return [
        {
            "threads": threads,
            "contestant": name,
            "us per step": 1e6 * median(values) / 20,
            "skebm's time over its": spread(mine, values),
        }
        for name, values in times.items()
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="of --speed")
    parser.add_argument("--json")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only these")
    args = parser.parse_args()
    if args.speed:
        rows = speed(args.threads, 40 if args.quick else 300)
        print(machine(), table(rows), sep="\n")
        write(args.json, {"rows": rows})
        return
    if args.data is None:
        parser.error("--data is required for the comparison of samplers")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        compare(args.data, args.quick, args.json, args.methods)


def compare(data: Path, quick: bool, json: str | None, methods: list[str] | None) -> None:
    """All targets, all contestants of the methods."""
    budget, seeds = (600, range(2)) if quick else (4000, range(5))
    entrants = [one for one in contestants() if not methods or one.method in methods]
    targets = [known.banana()]
    if not quick:
        targets = [known.gaussian(False), known.gaussian(True), *targets]
        targets += [known.funnel(), known.logistic(data)]
    rows: list[dict[str, Any]] = []
    for target in targets:
        peers.register(target)
        if any("blackjax" in one.name for one in entrants):
            known.agree(target)
        rows += [measure(one, target, budget, seeds, quick) for one in entrants]
    compared = ratios(rows)
    shown = [{k: v for k, v in r.items() if k not in ("rate", "weak")} for r in rows]
    print(machine(), table(shown), table(compared), sep="\n\n")
    write(json, {"rows": rows, "ratios": compared})


if __name__ == "__main__":
    main()
