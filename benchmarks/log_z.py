"""How far annealed importance sampling is from the exact log Z, and whether it knows.

    python -m benchmarks.log_z --data PATH [--models nltcs] [--quick] [--json F]

PATH holds `images/binarized_mnist.npz` and `debd/<set>.npz` with train parts as packed bits.
Protocol: three RBMs small enough to be enumerated, trained with seed 0: 784-16 on binarised MNIST
(PCD, 20 epochs), 20 hidden units on nltcs (exact learning) and on plants (PCD, 100 epochs). AIS
from the columns' means of the train part, with seeds 0 to 99, one thread: by block Gibbs alone, 100
chains x 2,000 temperatures, and with every hidden unit redrawn with the columns summed out, 100 x
500, at about the same cost. z is (estimate - exact) / std_error; the interval is the estimate +-
1.96 std_error. Errors in nats. One further run of 1,000 chains x 10,000 temperatures. `--quick`: 20
seeds, half the temperatures, no large run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks._common import machine, seconds, table, write
from skebm import RBMEstimator
from skebm.base import Energy
from skebm.distributions import IndependentBernoulli
from skebm.partition import AIS, Exact
from skebm.samplers import Gibbs


class Case(NamedTuple):
    """A table, and the model that is trained on it."""

    file: str
    model: RBMEstimator


CASES = {
    "mnist": Case(
        "images/binarized_mnist.npz",
        RBMEstimator(16, learning="pcd", n_iter=20, random_state=0),
    ),
    "nltcs": Case("debd/nltcs.npz", RBMEstimator(20, random_state=0)),
    "plants": Case("debd/plants.npz", RBMEstimator(20, learning="pcd", n_iter=100, random_state=0)),
}


def load(path: Path) -> np.ndarray:
    """Train rows, float32."""
    packed = np.load(path)
    return np.unpackbits(packed["train"], axis=1)[:, : int(packed["d"])].astype(np.float32)


def repeat(
    partition: AIS, sampler: Gibbs, energy: Energy, base: IndependentBernoulli, seeds: range
) -> tuple[np.ndarray, np.ndarray, float]:
    """Estimates, their standard errors and seconds for each."""
    found = []

    def run() -> None:
        for seed in seeds:
            generator = torch.Generator(base.logits.device).manual_seed(seed)
            found.append(
                partition.estimate(energy, base=base, sampler=sampler, generator=generator)
            )

    spent = seconds(run)
    value, error = (np.array([one[i] for one in found]) for i in (0, 1))
    return value, error, spent / len(seeds)


def measure(data: Path, name: str, *, quick: bool) -> list[dict[str, object]]:
    """Train, enumerate, repeat with either kernel."""
    case = CASES[name]
    train = load(data / case.file)
    energy = case.model.fit(train).energy_
    base = IndependentBernoulli.fit(torch.as_tensor(train).to(energy.weight))
    exact = Exact().estimate(energy).value
    rows = []
    for n_collapsed, n_betas in ((0, 2000), (case.model.n_components, 500)):
        sampler = Gibbs(n_collapsed)
        budget = AIS(100, n_betas // 2 if quick else n_betas)
        seeds = range(20 if quick else 100)
        rows.append(row(name, exact, budget, sampler, energy, base, seeds))
        if not quick:
            value, error, spent = repeat(AIS(1000, 10_000), sampler, energy, base, range(1))
            rows[-1]["1000 x 10000"] = f"{value[0] - exact:+.3f} +- {error[0]:.3f}, {spent:.0f} s"
    return rows


def row(
    name: str,
    exact: float,
    budget: AIS,
    sampler: Gibbs,
    energy: Energy,
    base: IndependentBernoulli,
    seeds: range,
) -> dict[str, object]:
    """Errors of an estimator with one kernel."""
    value, error, spent = repeat(budget, sampler, energy, base, seeds)
    z = (value - exact) / error
    return {
        "model": f"{name} {energy.domain.n_columns}-{energy.hidden_domain.n_columns}",
        "redrawn": sampler.n_collapsed,
        "budget": f"{budget.n_chains} x {budget.n_betas}",
        "exact": f"{exact:.3f}",
        "mean error": f"{(value - exact).mean():+.3f}",
        "sd of error": f"{value.std(ddof=1):.3f}",
        "mean std_error": f"{error.mean():.3f}",
        "mean z": f"{z.mean():+.2f}",
        "sd of z": f"{z.std(ddof=1):.2f}",
        "coverage": f"{np.mean(np.abs(z) <= 1.96):.2f}",
        "s": round(spent, 2),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.models:
        rows += measure(args.data, name, quick=args.quick)
        print(table(rows[-2:]), flush=True)
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
