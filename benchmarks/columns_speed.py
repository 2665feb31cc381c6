"""Seconds of RBMs by type of column, and what choosing the base and the size costs.

    OMP_NUM_THREADS=1 python -m benchmarks.columns_speed --data PATH [--table steps] [--json F]

`steps`: an epoch of `RBMEstimator` with independent columns and its default learning on random
rows: bits (30 % ones), numbers (normal), categories (of four levels each, one-hot inside), and all
three side by side. An epoch is the difference between fits of 1 + k and 1 passes. `products` are
the three matrix products of a step, `floor` these with the random numbers and the sigmoids,
exponentials or normal draws that each type of unit needs, in float32. Medians of paired ratios of
five rounds with quartiles, one thread.

`choice`: seconds of the clock of a default fit, and of the fit that has its base, number of units
and everything else as that one found them. PATH holds `debd/<set>.npz`, `adbench/<set>.npz` and
`uci/wine.npz`.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import density, mixed_columns
from benchmarks._common import machine, seconds, shown, spread, write
from skebm import RBMEstimator

KINDS = ("bits", "numbers", "categories", "mixed")
SIZES = ((64, 64), (784, 256))
PASSES = {(64, 64): 20, (784, 256): 4}
LEVELS = 4
CHOICES = ("nltcs", "jester", "plants", "22_magic.gamma, mixed", "40_vowels", "redwine")


def entries(kind: str, d: int) -> dict[str, int]:
    """Number of entries of each type in a row of d entries."""
    if kind != "mixed":
        return {kind: d}
    part = d // 3 // LEVELS * LEVELS
    return {"bits": d - 2 * part, "numbers": part, "categories": part}


def rows(kind: str, d: int, n: int) -> pd.DataFrame:
    """Random rows as users have them."""
    rng = np.random.default_rng(0)
    blocks = []
    for name, k in entries(kind, d).items():
        if name == "bits":
            block = pd.DataFrame((rng.random((n, k)) < 0.3).astype(float))
        elif name == "numbers":
            block = pd.DataFrame(rng.standard_normal((n, k)))
        else:
            codes = rng.integers(LEVELS, size=(n, k // LEVELS))
            block = pd.DataFrame(np.array(list("abcd"))[codes]).astype("category")
        blocks.append(block.add_prefix(f"{name}_"))
    return pd.concat(blocks, axis=1)


def floor_steps(kind: str, d: int, n_hidden: int, batch: int, n_steps: int, draws: bool) -> None:
    """Matrix products of so many steps, with the draws of each type of unit or without."""
    g = torch.Generator().manual_seed(0)
    w, grad = torch.zeros(n_hidden, d), torch.empty(n_hidden, d)
    x, h = torch.zeros(2 * batch, d), torch.zeros(2 * batch, n_hidden)
    x_chain, h_chain = x[batch:], h[batch:]
    parts = x_chain.split(list(entries(kind, d).values()), dim=1)
    for _ in range(n_steps):
        torch.mm(h_chain, w, out=x_chain)
        if draws:
            for name, part in zip(entries(kind, d), parts, strict=True):
                if name == "bits":
                    part.sigmoid_()
                    torch.empty(part.shape).uniform_(generator=g)
                elif name == "numbers":
                    torch.empty(part.shape).normal_(generator=g)
                else:
                    part.exp_()
                    torch.empty(len(part), part.shape[1] // LEVELS).uniform_(generator=g)
        torch.mm(x, w.t(), out=h)
        if draws:
            h.sigmoid_()
            h_chain.uniform_(generator=g)
        torch.mm(h.t(), x, out=grad)
        x_chain.zero_()
        h_chain.zero_()


def steps(kind: str, d: int, n_hidden: int, repeats: int) -> dict[str, Any]:
    """A row of the table of steps."""
    batch, k, n = 100, PASSES[d, n_hidden], 5000
    X = rows(kind, d, n)
    common = {"base": "independent", "batch_size": batch, "random_state": 0, "learning_rate": 1e-3}

    def fit(n_iter: int) -> object:
        return RBMEstimator(n_hidden, n_iter=n_iter, **common).fit(X)

    found: dict[str, list[float]] = {"skebm": [], "products": [], "floor": []}
    fit(1)
    n_steps = n // batch
    for _ in range(repeats):
        extra = seconds(lambda: fit(1 + k)) - seconds(lambda: fit(1))
        found["skebm"].append(extra / k)
        for name, draws in (("products", False), ("floor", True)):
            took = seconds(lambda d_=draws: floor_steps(kind, d, n_hidden, batch, k * n_steps, d_))
            found[name].append(took / k)
    return {
        "columns": kind,
        "entries x H": f"{d} x {n_hidden}",
        "step, us": round(1e6 * float(np.median(found["skebm"])) / n_steps),
        "over the products": spread(found["skebm"], found["products"]),
        "over the floor": spread(found["skebm"], found["floor"]),
    }


def training_rows(data: Path, name: str) -> Any:
    """Rows of a set, as a table of `benchmarks.mixed_columns` or of bits."""
    if name.endswith(", mixed"):
        return mixed_columns.halves(mixed_columns.frame(data, name.removesuffix(", mixed")))[0]
    if (data / "debd" / f"{name}.npz").is_file():
        return density.load(data, name)[0]
    return mixed_columns.halves(mixed_columns.numbers(data, name))[0]


def choice(data: Path, name: str) -> dict[str, Any]:
    """A row of the table of choices."""
    X = training_rows(data, name)
    started = time.perf_counter()
    model = RBMEstimator(random_state=0).fit(X)
    chosen = time.perf_counter() - started
    same = RBMEstimator(model.n_components_, base=model.base_name_, random_state=0)
    given = seconds(lambda: same.fit(X))
    return {
        "set": name,
        "rows": len(X),
        "chosen": f"{model.base_name_}, {model.n_components_}",
        "default, s": f"{chosen:.1f}",
        "the same settings, s": f"{given:.1f}",
        "ratio": f"{chosen / given:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", default="all", choices=("steps", "choice", "all"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="F")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine()}
    if arguments.table in ("steps", "all"):
        cells = itertools.product(SIZES, KINDS)
        found["steps"] = shown(steps(kind, *size, arguments.repeats) for size, kind in cells)
    if arguments.table in ("choice", "all"):
        found["choice"] = shown(choice(arguments.data, name) for name in CHOICES)
    write(arguments.json, found)


if __name__ == "__main__":
    main()
