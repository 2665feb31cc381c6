"""Default RBMs on the DEBD sets: is any model below its base?

    OMP_NUM_THREADS=1 python -m benchmarks.safety --data PATH [--sets dna ...] [--bases chow-liu]
    OMP_NUM_THREADS=1 python -m benchmarks.safety --data PATH --bases auto --n-components auto
    OMP_NUM_THREADS=1 python -m benchmarks.safety --data PATH --guard 4 [--sets plants ...]

PATH holds `debd/<set>.npz` with the published train, valid and test splits as packed bits.
Protocol: `RBMEstimator(n_components, base=..., random_state=0)`, 64 units where nothing is said,
otherwise with its defaults, fitted to train; valid is not used. The gain is the mean over test of
`score_samples` less the base's log-likelihood, with log Z at its pessimistic end as in `score`, and
with its standard error over rows.

With `--guard N`, is the gain that the guard believes the gain on new rows? N fits for each set and
base, with 32 units and 1,500 steps, to 1,000 rows of train that are drawn with seeds 0, 1, ...; the
gain at the end of training by the guard's own rows and short annealing, and on 2,000 rows of test
with log Z by 100 chains and up to 2,000 temperatures; and the error of the guard's log Z.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch

from benchmarks._common import machine, seconds, table, write
from benchmarks.density import load
from skebm import RBMEstimator
from skebm.base import sampling
from skebm.estimators.rbm.safety import rbm_log_ratios
from skebm.partition import AISBracket, Exact
from skebm.partition.exact import log_z_cost

BASES = ("independent", "chow-liu", "block-tree")


def measure(
    data: Path, name: str, base: str, n_components: int | str, settings: dict[str, float]
) -> dict[str, object]:
    """One row of the table."""
    train, _, test = load(data, name)
    model = RBMEstimator(n_components, base=base, random_state=0, **settings)
    took = seconds(lambda: model.fit(train))
    rows = model._rows(test)
    of_base = rows.map(lambda x: model.base_.log_prob(x).double(), model.base_.domain.n_columns)
    began = seconds(lambda: model.score(test[:2]))
    pessimistic = model.log_partition_bounds_[1]
    gain = model.score_samples(test) + model.log_partition_ - pessimistic - of_base.numpy()
    return {
        "set": f"{name}, {train.shape[1]} columns",
        "rows": len(train),
        "base": model.base_name_,
        "units": model.n_components_,
        "of the base": f"{float(of_base.mean()):.2f}",
        "gain": f"{gain.mean():+.2f} ({gain.std() / len(gain) ** 0.5:.2f})",
        "score": f"{float(of_base.mean()) + gain.mean():.3f}",
        "upper - value": f"{pessimistic - model.log_partition_:.2f}",
        "halvings": round(float(-np.log2(model.net_.lr_scale_))),
        "fit, s": took,
        "log Z, s": began,
    }


def log_z_of(energy: object, near: torch.Tensor) -> float:
    """log Z by enumeration, or by a bracket from rows near the model."""
    if log_z_cost(energy) <= 1e8:
        return Exact().estimate(energy).value
    bracket = AISBracket(n_betas=2000, n_steps=200)
    return bracket.estimate(energy, x=near[:100], generator=torch.Generator().manual_seed(0)).value


def ratio_of(energy: object, x: torch.Tensor) -> np.ndarray:
    """Log-likelihood ratios of rows to the base, without log Z."""
    with torch.no_grad(), sampling(energy):
        return (-energy(x) - energy.base.log_prob(x)).double().numpy()


def measure_guard(data: Path, name: str, base: str, seed: int) -> dict[str, object]:
    """What the guard believes at the end of a fit, and what is true."""
    train, _, test = load(data, name)
    rng = np.random.default_rng(seed)
    X, new = (part[rng.permutation(len(part))[:n]] for part, n in ((train, 1000), (test, 2000)))
    model = RBMEstimator(32, base=base, learning="pcd", n_iter=167, random_state=seed).fit(X)
    energy, held_out = model.net_.module_.energy.eval(), model.net_.held_out_
    x = held_out.block(0, len(held_out))
    log_z = log_z_of(energy, x)
    short = rbm_log_ratios(energy, x, torch.Generator().manual_seed(seed))
    guard, true = model.net_.guard_.final_gain, ratio_of(energy, model._rows(new).x)
    error = float(np.hypot(guard.error, true.std() / len(true) ** 0.5))
    return {
        "set": name,
        "base": base,
        "seed": seed,
        "guard": guard.gain,
        "true": true.mean() - log_z,
        "error": error,
        "z": (guard.gain - true.mean() + log_z) / error,
        "log Z, guard - long": short.log_z - log_z,
        "its error": short.log_z_error,
    }


def guards(data: Path, sets: list[str], n: int) -> list[dict[str, object]]:
    """All rows of the table, and a last one of means."""
    found = []
    for name in sets:
        for base in BASES[:2]:
            for seed in range(n):
                found.append(measure_guard(data, name, base, seed))
                print(table(found[-1:]).splitlines()[-1], flush=True)
    for column in ("z", "log Z, guard - long"):
        values = np.array([row[column] for row in found])
        error = values.std() / len(values) ** 0.5
        largest = abs(values).max()
        print(f"mean of {column}: {values.mean():+.3f} ({error:.3f}), largest {largest:.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--bases", nargs="+", default=list(BASES))
    parser.add_argument(
        "--n-components", type=lambda given: given if given == "auto" else int(given), default=64
    )
    for name, kind in (("learning-rate", float), ("batch-size", int), ("n-iter", int)):
        parser.add_argument(f"--{name}", type=kind, help="by default that of the estimator")
    parser.add_argument("--guard", type=int, metavar="N")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    sets = args.sets or sorted(path.stem for path in (args.data / "debd").glob("*.npz"))
    if args.guard:
        write(args.json, {"machine": machine(), "guard": guards(args.data, sets, args.guard)})
        return
    given = {name: getattr(args, name) for name in ("learning_rate", "batch_size", "n_iter")}
    given = {name: value for name, value in given.items() if value is not None}
    found = []
    for base in args.bases:
        for name in sets:
            found.append(measure(args.data, name, base, args.n_components, given))
            print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), "safety": found})


if __name__ == "__main__":
    main()
