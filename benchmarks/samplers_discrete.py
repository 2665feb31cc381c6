r"""Effective samples per second of the discrete samplers, and who crosses between modes.

    OMP_NUM_THREADS=1 python -m benchmarks.samplers_discrete --data PATH [--quick] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.samplers_discrete --data PATH --tune [--models NAME]

PATH is the folder of data sets; only `images/mnist.npz` is read.

Protocol. One thread, float32, CPU. Seconds are of the process's CPU: those of the wall where
nothing else runs, but the same where something does. Every sampler of a model gets the same seconds
for its kept steps, after a warm-up of as many steps, not counted; how many that are is measured
before. Seeds 0, 1, 2, samplers in turn. Ladders are those of the largest ESS/s of `--tune`, seed
1000, up to twice the seconds, among those whose worst pair exchanges in more than a tenth and all
pairs together in less than nine; only that of temperatures on *small* has as many replicas as the
path there, 18, where 25 were a third better and as far off.

Models, seconds, and the statistics that are watched:

- *critical* (2.5 s), *ordered* (1.2 s): Ising model on a torus of 20 x 20 at the critical coupling
  and at 0.6, 16 chains, half of which start all up and the others all down: magnetisation m, |m|,
  energy. A mode is the sign of m; draws with |m| < 0.5 belong to the mode before. The exact mean
  energy is Kaufman's (1949).
- *planted* (0.5 s): 64-8, the first hidden unit chooses a template (a share of 0.3) or its
  complement, the others are N(0, 0.3) couplings. 200 chains, all at the complement: free energy,
  and the template. The exact share is by enumeration, z by the chains' last draws of all seeds.
- *small* (1.2 s) and *mnist* (2.5 s): `RBMEstimator(n, random_state=0)`, n = 16 and 100, else
  defaults, on the first 20,000 training pictures, thresholded at 128. 32 chains, all at training
  pictures of a one: free energy, and whether a picture is a one. A mode is the digit by a logistic
  regression on pixels (first 5,000 training pictures, C=0.01). "distance" is the total variation
  between the digits of all kept draws of all seeds and those of a reference; "ones" and "free
  energy" are shares in the last draws and means of all, of the reference in brackets. With 16 units
  that is 20,000 exact draws, by enumeration of the hidden rows. With 100 it is parallel tempering
  of 25 replicas along the path, 64 chains, 12 s and as much warm-up, half of them from pictures of
  all digits and half from coins; the distance between the halves is printed: it is no truth.

ESS: `skebm.diagnostics.effective_sample_size(kind="mean")` of the slowest statistic over all
chains, about 1,000 draws each (others are thinned); 0 where it never changed. Median of the seeds,
and their range. R-hat: the largest of statistics and seeds. An ESS/s is marked * where the smallest
ESS is below 5 a chain, R-hat above 1.05 or |z| above 4: chains that have not seen all of the model,
whose ESS is meaningless, mostly far too large. Changes of mode are between kept draws. Acceptance
is of exchanges for parallel tempering, "least" that of its worst pair, by the chains' last draws.
`--quick`: a tenth of all seconds, one seed, 5 epochs; a smoke test.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks._common import machine, table, write
from skebm import RBMEstimator
from skebm.base import BipartiteEnergy, Energy, Sampler, Trace
from skebm.diagnostics import effective_sample_size, r_hat
from skebm.energies import BernoulliRBM, ising_grid
from skebm.samplers import DiscreteLangevin, Gibbs, GibbsWithGradients, ParallelTempering

SIDE, CRITICAL = 20, math.log(1 + math.sqrt(2)) / 2
SMALL, REFERENCE = 16, 12.0  # hidden units that are enumerated; seconds
KEPT, TUNING_SEED = 1000, 1000
Values = dict[str, np.ndarray]


class Model(NamedTuple):
    """A distribution, where chains start, what is watched.

    Attributes
    ----------
    start : function of a seed
        Rows of all chains.
    watch : function of a trace
        Statistics (n_draws, n_chains) by name.
    modes : function of a trace
        A number for the mode of every draw, (n_draws, n_chains).
    check : function of all runs of a sampler
        Columns that compare with the truth.
    budget : float
        Seconds.
    ladders : tuple of (n_temperatures, max_temperature)
        The first one goes with single flips as well.
    """

    name: str
    energy: Energy
    start: Callable[[int], Tensor]
    watch: Callable[[Trace], Values]
    modes: Callable[[Trace], np.ndarray]
    check: Callable[[list[Run]], dict[str, object]]
    budget: float
    ladders: tuple[tuple[int, float | None], ...]


class Run(NamedTuple):
    """What is left of a run; `last` are the acceptances of pairs at its end."""

    steps: int
    seconds: float
    acceptance: float
    last: list[float]
    values: Values
    modes: np.ndarray
    ess: dict[str, float]
    r_hat: float


def contestants(model: Model) -> dict[str, Sampler]:
    """All samplers by name."""
    found: dict[str, Sampler] = {
        "Gibbs": Gibbs(),
        "GWG": GibbsWithGradients(),
        "DMALA": DiscreteLangevin(adapt=True),
    }
    if SMALL in getattr(model.energy, "weight", torch.empty(0)).shape:
        found["Gibbs, collapsed"] = Gibbs(SMALL)
    for number, (k, top) in enumerate(model.ladders):
        where = f"{k}, path" if top is None else f"{k}, T={top:g}"
        found[f"PT({where}) Gibbs"] = ParallelTempering(k, max_temperature=top)
        if number == 0:
            gradients = ParallelTempering(k, GibbsWithGradients(), max_temperature=top)
            found[f"PT({where}) GWG"] = gradients
    return found


def n_steps(sampler: Sampler, model: Model, budget: float) -> int:
    """Steps that take `budget` seconds."""
    generator = torch.Generator().manual_seed(TUNING_SEED)
    state, _ = sampler.run(model.energy, model.start(TUNING_SEED), 5, generator)
    n, spent = 5, 0.0
    while spent < 0.1 * budget:
        n *= 2
        started = time.process_time()
        state, _ = sampler.run(model.energy, state, n, generator)
        spent = time.process_time() - started
    return max(int(budget * n / spent), 20)


def attempt(sampler: Sampler, model: Model, steps: int, seed: int) -> Run:
    """One run with its warm-up."""
    generator = torch.Generator().manual_seed(seed)
    thin = max(steps // KEPT, 1)
    # The warm-up's last step is not one of it: `run` takes at least one.
    state, _ = sampler.run(model.energy, model.start(seed), 1, generator, n_warmup=steps - 1)
    started = time.process_time()
    trace = sampler.trace(model.energy, state, steps // thin, generator, thin=thin)
    spent = time.process_time() - started
    values = model.watch(trace)
    ess = {name: effective(draws) for name, draws in values.items()}
    rates = exchange_rates(sampler, model.energy, trace.state)
    accepted = float(trace.acceptance.mean())
    # What is the same in all draws has no R-hat: its ESS of 0 says so.
    apart = max((float(r_hat(d)) for d in values.values() if np.ptp(d) > 0), default=np.nan)
    return Run(trace.n_steps, spent, accepted, rates, values, model.modes(trace), ess, apart)


def effective(draws: np.ndarray) -> float:
    """Effective sample size; none where chains are stuck, which the diagnostic cannot tell."""
    return float(effective_sample_size(draws, kind="mean")) if np.ptp(draws) > 0 else 0.0


def exchange_rates(sampler: Sampler, energy: Any, state: Any) -> list[float]:
    """Acceptance of exchanges between neighbours at a state."""
    if not isinstance(sampler, ParallelTempering):
        return []
    last, top = sampler.n_temperatures - 1, sampler.max_temperature

    def level(k: int, x: Tensor) -> Tensor:
        if top is None:
            return energy.annealed(k / last).free_energy(x)
        beta = top ** (k / last - 1)
        return (
            energy.free_energy(x, beta) if isinstance(energy, BipartiteEnergy) else beta * energy(x)
        )

    rates = []
    with torch.no_grad():
        for k in range(last):
            a, b = state.aux[k].x, state.aux[k + 1].x
            gain = level(k, a) + level(k + 1, b) - level(k, b) - level(k + 1, a)
            rates.append(float(gain.clamp(max=0).exp().mean()))
    return rates


def changes(modes: np.ndarray) -> int:
    """Changes of mode of all chains."""
    return int((np.diff(modes, axis=0) != 0).sum())


def summary(model: Model, name: str, runs: list[Run]) -> dict[str, object]:
    """A line of the table."""
    n_chains = runs[0].modes.shape[1]
    slowest = [min(run.ess, key=run.ess.__getitem__) for run in runs]
    least = [min(run.ess.values()) for run in runs]
    rates = [ess / run.seconds for ess, run in zip(least, runs, strict=True)]
    apart = max(run.r_hat for run in runs)
    truth = model.check(runs)
    # Chains that all start at one mode agree while they leave it, at which z is not deceived.
    off = abs(float(str(truth.get("z", 0)))) > 4
    mark = "*" if off or min(least) < 5 * n_chains or not apart <= 1.05 else ""
    steps = sum(run.steps for run in runs)
    crossed = sum(changes(run.modes) for run in runs)
    pairs = np.mean([run.last for run in runs], 0)
    return {
        "model": model.name,
        "sampler": name,
        "steps": runs[0].steps,
        "us a step": round(1e6 * sum(run.seconds for run in runs) / steps),
        "ESS / s": f"{median(rates):.3g} ({min(rates):.3g} to {max(rates):.3g}){mark}",
        "slowest": max(slowest, key=slowest.count),
        "ESS / 1000 steps": 1000 * sum(least) / (steps * n_chains),
        "R-hat": f"{apart:.3f}" if apart < 1e6 else "inf",  # up to rounding
        "acceptance": f"{np.mean([run.acceptance for run in runs]):.2f}",
        "least": f"{pairs.min():.2f}" if len(pairs) else "",
        "changes / 1000 steps": 1000 * crossed / (steps * n_chains),
        "changes / s": crossed / sum(run.seconds for run in runs),
        **truth,
    }


def measure(model: Model, seeds: range, scale: float) -> list[dict[str, object]]:
    """Lines of a model."""
    samplers = contestants(model)
    steps = {name: n_steps(one, model, scale * model.budget) for name, one in samplers.items()}
    runs: dict[str, list[Run]] = {name: [] for name in samplers}
    for seed in seeds:
        for name, one in samplers.items():
            runs[name].append(attempt(one, model, steps[name], seed))
    rows = [summary(model, name, found) for name, found in runs.items()]
    print(table(rows), flush=True)
    return rows


def tune(model: Model, scale: float) -> None:
    """Print what other ladders would do."""
    paths = isinstance(model.energy, BipartiteEnergy)
    tops: Iterable[float | None] = (None, 2.0, 4.0) if paths else (1.2, 1.35, 1.6, 2.0)
    for top in tops:
        rows = []
        for k in (5, 8, 12, 18, 25):
            sampler = ParallelTempering(k, max_temperature=top)
            steps = n_steps(sampler, model, scale * model.budget)
            run = attempt(sampler, model, steps, TUNING_SEED)
            rows.append(summary(model, f"PT({k}, {top})", [run]))
        print(table(rows), flush=True)


def exact_energy(n: int, m: int, coupling: float) -> float:
    r"""Mean energy :math:`-K \partial \log Z / \partial K` a site of a torus, Kaufman (1949)."""
    K = torch.tensor(coupling, dtype=torch.float64, requires_grad=True)
    angles = torch.arange(1, 2 * n, dtype=torch.float64) * (math.pi / n)
    gamma = torch.acosh((2 * K).cosh() / (2 * K).tanh() - angles.cos())
    first = 2 * K + K.tanh().log()  # with its sign; 0 at the critical coupling
    odd, even = m / 2 * gamma[::2], m / 2 * torch.cat([first[None], gamma[1::2]])
    products = [(2 * odd.cosh()), (2 * odd.sinh()), (2 * even.cosh()), (2 * even.sinh())]
    log_z = n * m / 2 * (2 * (2 * K).sinh()).log() + sum(p.prod() for p in products).log()
    (slope,) = torch.autograd.grad(log_z, K)
    return -coupling * float(slope) / (n * m)


def grid(name: str, coupling: float, budget: float, ladder: tuple[int, float]) -> Model:
    """Ising model on a torus."""
    energy, truth = ising_grid(SIDE, SIDE, coupling), exact_energy(SIDE, SIDE, coupling)

    def start(seed: int) -> Tensor:
        return (torch.arange(16) % 2).float()[:, None].expand(-1, SIDE**2).clone()

    def watch(trace: Trace) -> Values:
        m = (2 * trace.x.mean(2) - 1).numpy()
        return {"m": m, "|m|": np.abs(m), "energy": trace.energy.numpy() / SIDE**2}

    def modes(trace: Trace) -> np.ndarray:
        sign = np.sign(m := watch(trace)["m"])
        for k in range(1, len(m)):
            sign[k] = np.where(np.abs(m[k]) < 0.5, sign[k - 1], sign[k])
        return sign

    def check(runs: list[Run]) -> dict[str, object]:
        draws = [run.values["energy"] for run in runs]
        errors = [d.var() / effective(d) for d in draws]
        mean = float(np.mean([d.mean() for d in draws]))
        error = math.sqrt(sum(errors)) / len(draws)
        shown = f"{mean:.5f} +- {error:.5f}"
        return {
            "energy a site": shown,
            "exact": f"{truth:.5f}",
            "z": round((mean - truth) / error, 2),
        }

    return Model(name, energy, start, watch, modes, check, budget, (ladder,))


def planted() -> Model:
    """A template and its complement, and a few couplings."""
    generator = torch.Generator().manual_seed(0)
    energy = BernoulliRBM(64, 8, generator=generator, scale=0.3)
    signs = 2.0 * torch.randint(2, (64,), generator=generator) - 1
    with torch.no_grad():
        energy.weight[0] = 3 * signs
        energy.visible_bias.copy_(-1.5 * signs)
        energy.hidden_bias[0] = -1.5 * signs.sum()
        energy.hidden_bias[0] += math.log(0.3 / 0.7) - torch.logit(energy.moments().h[0])
        truth = float(energy.moments().h[0])

    def start(seed: int) -> Tensor:
        return (signs < 0).float().expand(200, -1).clone()

    def modes(trace: Trace) -> np.ndarray:
        return (trace.x @ energy.weight[0].detach() + energy.hidden_bias[0].detach() > 0).numpy()

    def watch(trace: Trace) -> Values:
        return {"energy": trace.energy.numpy(), "side": modes(trace).astype(float)}

    def check(runs: list[Run]) -> dict[str, object]:
        last = np.concatenate([run.modes[-1] for run in runs])
        z = (last.mean() - truth) / math.sqrt(truth * (1 - truth) / len(last))
        return {"share": f"{last.mean():.3f}", "exact": f"{truth:.3f}", "z": round(z, 2)}

    return Model("planted 64-8", energy, start, watch, modes, check, 0.5, LADDERS["planted"])


class Pictures:
    """Training pictures, and a judge of others."""

    def __init__(self, data: Path):
        parts = np.load(data / "images/mnist.npz")
        self.X = (parts["X_train"][:20_000].reshape(-1, 784) >= 128).astype(np.float32)
        self.y = parts["y_train"][: len(self.X)]
        self.judge = LogisticRegression(C=0.01, max_iter=300).fit(self.X[:5000], self.y[:5000])
        score = self.judge.score(self.X[5000:], self.y[5000:])
        print(f"judge's accuracy on other pictures: {score:.3f}")

    def start(self, seed: int) -> Tensor:
        """Ones."""
        ones = np.flatnonzero(self.y == 1)
        return torch.as_tensor(self.X[np.random.default_rng(seed).choice(ones, 32, replace=False)])

    def far_start(self, seed: int) -> Tensor:
        """A reference that is right agrees between digits (even chains) and coins (odd ones)."""
        rows = torch.as_tensor(self.X[np.random.default_rng(seed).choice(len(self.X), 32)])
        generator = torch.Generator().manual_seed(seed)
        coins = torch.bernoulli(torch.full_like(rows, 0.5), generator=generator)
        return torch.stack([rows, coins], 1).flatten(0, 1)

    def modes(self, trace: Trace) -> np.ndarray:
        """Digits of all draws."""
        return self.name(trace.x.flatten(0, 1)).reshape(trace.energy.shape)

    def name(self, x: Tensor) -> np.ndarray:
        """Digits of rows."""
        return self.judge.predict(x.numpy()).astype(int)

    def watch(self, trace: Trace) -> Values:
        """The free energy, and who is a one."""
        return {"free energy": trace.energy.numpy(), "one": (self.modes(trace) == 1).astype(float)}


def mnist(data: Path, n_hidden: int, scale: float) -> Model:
    """A trained machine."""
    pictures = Pictures(data)
    started = time.process_time()
    brief = {} if scale == 1 else {"n_iter": 5}
    fitted = RBMEstimator(n_hidden, random_state=0, **brief).fit(pictures.X)
    print(f"trained for {fitted.n_iter_} epochs by {fitted.learning_}, ", end="")
    print(f"{time.process_time() - started:.0f} s", flush=True)
    model = Model(
        f"mnist 784-{n_hidden}",
        fitted.energy_,
        pictures.start,
        pictures.watch,
        pictures.modes,
        lambda runs: {},
        *((1.2, LADDERS["small"]) if n_hidden == SMALL else (2.5, LADDERS["mnist"])),
    )
    truth, level = (enumerated if n_hidden == SMALL else tempered)(model, pictures, scale)
    print("digits of the reference:", truth.round(3), flush=True)

    def check(runs: list[Run]) -> dict[str, object]:
        found = digits(np.stack([run.modes for run in runs]))
        last = digits(np.stack([run.modes[-1] for run in runs]))
        far, ones = f"{distance(found, truth):.3f}", f"{last[1]:.2f} ({truth[1]:.2f})"
        mean = np.mean([run.values["free energy"].mean() for run in runs])
        return {"distance": far, "ones": ones, "free energy": f"{mean:.1f} ({level:.1f})"}

    return model._replace(check=check)


def enumerated(model: Model, pictures: Pictures, scale: float) -> tuple[np.ndarray, float]:
    """Digits and mean free energy of exact draws: hidden rows by enumeration, then pictures."""
    energy: Any = model.energy
    generator = torch.Generator().manual_seed(TUNING_SEED)
    with torch.no_grad():
        h = torch.cat(list(energy.hidden_domain.enumerate(4096, dtype=torch.float32)))
        log_p = torch.cat([-energy.hidden_energy(part).double() for part in h.split(4096)])
        rows = torch.multinomial(log_p.softmax(0), 20_000, True, generator=generator)
        x = energy.visible(h[rows]).sample(generator)
        level = float(energy.free_energy(x).mean())
    found = pictures.name(x)
    apart = distance(digits(found[::2]), digits(found[1::2]))
    print(f"reference: 20,000 exact draws, halves apart by {apart:.3f}")
    return digits(found), level


def tempered(model: Model, pictures: Pictures, scale: float) -> tuple[np.ndarray, float]:
    """Digits and mean free energy by a long run of parallel tempering."""
    model = model._replace(start=pictures.far_start)
    sampler = ParallelTempering(25)
    run = attempt(sampler, model, n_steps(sampler, model, scale * REFERENCE), TUNING_SEED)
    print(table([summary(model, "reference", [run])]))
    halves = [digits(run.modes[:, part::2]) for part in (0, 1)]
    print(f"halves of the reference are apart by {distance(*halves):.3f}")
    return np.mean(halves, 0), float(run.values["free energy"].mean())


def digits(modes: np.ndarray) -> np.ndarray:
    """Shares of the ten digits."""
    return np.bincount(modes.astype(int).ravel(), minlength=10) / modes.size


def distance(p: np.ndarray, q: np.ndarray) -> float:
    """Total variation."""
    return float(np.abs(p - q).sum() / 2)


# By --tune, seed 1000.
LADDERS: dict[str, Any] = {
    "critical": (18, 1.35),
    "ordered": (12, 1.6),
    "planted": ((5, None), (5, 4.0)),
    "small": ((18, None), (18, 2.0)),
    "mnist": ((25, None), (25, 2.0)),
}


def make(name: str, data: Path, scale: float) -> Model:
    """The model of a name."""
    if name in ("small", "mnist"):
        return mnist(data, SMALL if name == "small" else 100, scale)
    if name == "planted":
        return planted()
    if name == "critical":
        return grid("critical 20 x 20", CRITICAL, 2.5, LADDERS[name])
    return grid("ordered 20 x 20, K=0.6", 0.6, 1.2, LADDERS[name])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(LADDERS), choices=list(LADDERS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    scale, rows = 0.1 if args.quick else 1.0, []
    for name in args.models:
        model = make(name, args.data, scale)
        if args.tune:
            tune(model, scale)
        else:
            rows += measure(model, range(1 if args.quick else 3), scale)
    print(machine())
    if rows:
        write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
