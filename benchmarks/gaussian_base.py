"""A Gaussian as the base of two columns: what random Fourier features are worth.

    OMP_NUM_THREADS=1 python -m benchmarks.gaussian_base [--sets moons ...] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.gaussian_base --data PATH [--json F]

2,000 rows of a two-dimensional density (`_toys.py`, seed 0) are fitted by each objective with a
Gaussian as base, by the default network and by one with 32 Fourier features; KL(truth, model) by
quadrature, nats. The stack is the base that estimators take by default, alone. With `--data`: the
first two columns of the normal rows of tables of `PATH/adbench`, shuffled (seed 0), with noise of a
thousandth of their standard deviations against ties; held-out nats a row with the features less
those without, over 1,000 rows, with the standard error over these.

The number of frequencies was chosen among 16, 32 and 64 by NCE, contrastive divergence and score
matching on moons and rings; pinwheel, checkerboard and the tables were not looked at.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.base import clone

from benchmarks._common import machine, seconds, shown, write
from benchmarks._toys import kl_divergence, sample
from skebm import (
    ContrastiveDivergenceDensity,
    NCEDensity,
    ScoreMatchingDensity,
    TractableDensity,
)

N_ROWS, N_SIDE = 2000, 160
TABLES, SIZES, N_TEST = ("22_magic.gamma", "2_annthyroid", "23_mammography"), (500, 2000), 1000
SETS = ("moons", "rings", "pinwheel", "checkerboard")
MODELS = {
    "NCE": NCEDensity(noise="gaussian", random_state=0),
    "contrastive divergence": ContrastiveDivergenceDensity(base="gaussian", random_state=0),
    "score matching": ScoreMatchingDensity(base="gaussian", random_state=0),
}
NUMBERS = {"default": 0, "features": 32}


def measure_set(name: str) -> list[dict[str, object]]:
    """Divergences of all models of a density."""
    X = sample(name, N_ROWS, 0)
    stack = TractableDensity("stack", random_state=0).fit(X)
    of_stack = kl_divergence(name, stack.score_samples, N_SIDE)
    found = []
    for objective, model in MODELS.items():
        row: dict[str, object] = {"set": name, "objective": objective}
        for label, n in NUMBERS.items():
            fitted = clone(model).set_params(network__n_frequencies=n)
            row[f"{label}, s"] = seconds(lambda fitted=fitted: fitted.fit(X))
            row[label] = kl_divergence(name, lambda x, fitted=fitted: -fitted.energy(x), N_SIDE)
        found.append(row | {"stack": of_stack})
    return found


def measure_table(data: Path, name: str, n: int) -> dict[str, object]:
    """Held-out gains by the features, of the objectives that take seconds."""
    X = normal_rows(data, name)[:, :2]
    rng = np.random.default_rng(0)
    X = X[rng.permutation(len(X))[: n + N_TEST]]
    X = X + 1e-3 * X.std(0) * rng.normal(size=X.shape)
    row: dict[str, object] = {"set": name, "rows": n}
    for objective in ("NCE", "score matching"):
        without, with_features = (
            clone(MODELS[objective])
            .set_params(network__n_frequencies=k)
            .fit(X[:n])
            .score_samples(X[n:])
            for k in NUMBERS.values()
        )
        gain = with_features - without
        row[objective] = f"{gain.mean():+.3f} ({gain.std() / len(gain) ** 0.5:.3f})"
    return row


def normal_rows(data: Path, name: str) -> np.ndarray:
    """The normal rows of a table."""
    found = np.load(data / "adbench" / f"{name}.npz")
    rows: np.ndarray = found["X"][found["y"] == 0].astype(float)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.data:
        found = shown(measure_table(args.data, name, n) for n in SIZES for name in TABLES)
    else:
        found = shown(row for name in args.sets for row in measure_set(name))
    write(args.json, {"machine": machine(), "rows": found})


if __name__ == "__main__":
    main()
