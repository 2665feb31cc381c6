"""Test log-likelihood of binary tables next to the published ones.

    python -m benchmarks.density --data PATH [--sets nltcs] [--components 16 24 32 48] [--json F]

PATH holds `debd/<set>.npz` with the published train, valid and test splits as packed bits, and
`published/debd_test_ll.csv`. Protocol: one fit on `train` for each number of hidden units, default
settings, seed 0, all threads that torch finds; the number of units is chosen on `valid`; `test` is
opened once. Mean log-likelihood in nats with its standard error over rows. With an estimated log Z
the pessimistic end is compared.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from benchmarks._common import machine, seconds, table, write
from skebm import RBMEstimator


def load(data: Path, name: str) -> tuple[np.ndarray, ...]:
    """Train, valid and test rows of a set, float32."""
    packed = np.load(data / "debd" / f"{name}.npz")
    d = int(packed["d"])
    parts = (packed[part] for part in ("train", "valid", "test"))
    return tuple(np.unpackbits(part, axis=1)[:, :d].astype(np.float32) for part in parts)


def published(data: Path, name: str) -> dict[str, str]:
    """References for a set."""
    with open(data / "published" / "debd_test_ll.csv", newline="") as file:
        rows = {row["dataset"]: row for row in csv.DictReader(file)}
    return rows[name]


def measure(data: Path, name: str, components: list[int]) -> dict[str, object]:
    """Fit each size, choose on valid, open test once."""
    train, valid, test = load(data, name)
    fits = {}
    for n_components in components:
        model = RBMEstimator(n_components, random_state=0)
        spent = seconds(lambda model=model: model.fit(train))
        fits[n_components] = (model.score(valid), spent, model)
        print(f"{name}: H = {n_components}, valid {fits[n_components][0]:.4f}, {spent:.1f} s")
    best = max(fits, key=lambda n_components: fits[n_components][0])
    score, spent, model = fits[best]
    per_row = model.score_samples(test)
    reference = published(data, name)
    return {
        "set": name,
        "H": best,
        "rule": model.learning_,
        "log Z": model.log_partition_kind_,
        "valid": f"{score:.4f}",
        "test": f"{model.score(test):.4f}",
        "standard error": f"{per_row.std() / len(per_row) ** 0.5:.4f}",
        "n": len(test),
        "fit, s": round(spent, 1),
        "all fits, s": round(sum(fit[1] for fit in fits.values()), 1),
        "HCLT": reference["hclt_2021"],
        "Chow-Liu": reference["chow_liu_tree"],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["nltcs"])
    parser.add_argument("--components", type=int, nargs="+", default=[16, 24, 32, 48])
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = [measure(args.data, name, args.components) for name in args.sets]
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
