"""Default RBMs on the DEBD sets: is any model below its base?

    OMP_NUM_THREADS=1 python -m benchmarks.safety --data PATH [--sets dna ...] [--bases chow-liu]
    OMP_NUM_THREADS=1 python -m benchmarks.safety --data PATH --bases auto --n-components auto

PATH holds `debd/<set>.npz` with the published train, valid and test splits as packed bits.
Protocol: `RBMEstimator(n_components, base=..., random_state=0)`, 64 units where nothing is said,
otherwise with its defaults, fitted to train; valid is not used. The gain is the mean over test of
`score_samples` less the base's log-likelihood, with log Z at its pessimistic end as in `score`, and
with its standard error over rows.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from benchmarks._common import machine, seconds, table, write
from benchmarks.density import load
from skebm import RBMEstimator

BASES = ("independent", "chow-liu", "block-tree")


def measure(data: Path, name: str, base: str, n_components: int | str) -> dict[str, object]:
    """One row of the table."""
    train, _, test = load(data, name)
    model = RBMEstimator(n_components, base=base, random_state=0)
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
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    sets = args.sets or sorted(path.stem for path in (args.data / "debd").glob("*.npz"))
    found = []
    for base in args.bases:
        for name in sets:
            found.append(measure(args.data, name, base, args.n_components))
            print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), "safety": found})


if __name__ == "__main__":
    main()
