"""Steps of flow contrastive estimation: what held-out rows gain over the flow, and seconds.

    OMP_NUM_THREADS=1 python -m benchmarks.flow_steps --data PATH [--half report] [--json F]

Tables, splits and halves of `benchmarks.clean_rows`, those of up to 20 columns, at most 1,000 rows
fitted. Default settings but for `n_iter`, from one fitted flow; gains are `score_samples`, on noisy
rows, less those of the estimator without training (`n_iter=0`), with the standard error over rows.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import machine, table, write
from benchmarks.clean_rows import half, split, tables
from skebm import FlowContrastiveDensity

STEPS = (250, 500, 1000)
MOST_ROWS, MOST_COLUMNS = 1000, 20


def measure(name: str, X: np.ndarray) -> dict[str, Any]:
    """One row of the table: gains by number of steps."""
    train, test = split(X, 0)
    train = train[:MOST_ROWS]
    started = time.perf_counter()
    base = FlowContrastiveDensity(n_iter=0, random_state=0).fit(train).score_samples(test)
    row: dict[str, Any] = {"set": name, "rows": len(train), "columns": X.shape[1]}
    row["flow, s"] = f"{time.perf_counter() - started:.0f}"
    for steps in STEPS:
        passes = math.ceil(steps / math.ceil(len(train) / 128))
        model = FlowContrastiveDensity(n_iter=passes, random_state=0)
        started = time.perf_counter()
        gain = model.fit(train).score_samples(test) - base
        row[f"{steps}, s"] = f"{time.perf_counter() - started:.0f}"
        row[f"{steps}"] = f"{gain.mean():+.3f} ({gain.std() / len(gain) ** 0.5:.3f})"
        print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--half", default="choose", choices=("choose", "report", "all"))
    parser.add_argument("--json", metavar="F")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {k: X for k, X in tables(arguments.data).items() if X.shape[1] <= MOST_COLUMNS}
    rows = [measure(name, found[name]) for name in half(list(found), arguments.half)]
    print(table(rows))
    print(machine())
    write(arguments.json, {"flow steps": rows})


if __name__ == "__main__":
    main()
