"""Peak memory of fitting sparse rows.

    python -m benchmarks.memory [--rows 10000 40000] [--bases independent chow-liu] [--json F]

Protocol: a CSR matrix in float32, 1,500 columns, 2 % ones; 1,000 hidden units, one pass in batches
of 100 rows, one thread, on a CPU. Every fit has a fresh process. `growth` is that of ru_maxrss, the
largest resident memory of the process so far, from after imports and the making of the data until
`fit` returns. It includes what does not depend on the rows: weights, gradients, chains, the base,
libraries loaded on first use. `slack` is how far below its mark the process was before `fit`, and
so how much growth the mark can miss (Linux; `?` elsewhere). `dense` is one copy of the rows as a
float32 array. Sizes in MB of 10^6 bytes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks._common import machine, seconds, table, write
from skebm import RBMEstimator

D, H, ONES = 1500, 1000, 0.02
BASES = ("independent", "chow-liu", "block-tree")


def sparse_rows(n: int, d: int) -> sp.csr_array:
    """Independent ones, made in blocks so that no dense copy was ever there."""
    rng = np.random.default_rng(0)
    blocks = []
    for start in range(0, n, 500):
        ones = rng.random((min(500, n - start), d), dtype=np.float32) < ONES
        blocks.append(sp.csr_array(ones, dtype=np.float32))
    return sp.vstack(blocks, format="csr")


def peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident() -> int | None:
    """Resident memory now, in bytes, where Linux tells."""
    path = Path("/proc/self/statm")
    if not path.exists():
        return None
    return int(path.read_text().split()[1]) * resource.getpagesize()


def measure(n: int, d: int, n_hidden: int, base: str) -> dict[str, object]:
    """A line of the table; to be called in a fresh process."""
    torch.set_num_threads(1)
    X = sparse_rows(n, d)
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    model = RBMEstimator(
        n_hidden, n_iter=1, batch_size=100, base=base, random_state=0, device="cpu"
    )
    before, now = peak(), resident()
    spent = seconds(lambda: model.fit(X))
    return {
        "rows": n,
        "d x H": f"{d} x {n_hidden}",
        "base": base,
        "growth, MB": f"{(peak() - before) / 1e6:.1f}",
        "slack, MB": "?" if now is None else f"{max(before - now, 0) / 1e6:.1f}",
        "CSR, MB": f"{size / 1e6:.1f}",
        "dense, MB": f"{n * d * 4 / 1e6:.1f}",
        "before fit, MB": f"{before / 1e6:.1f}",
        "fit, s": f"{spent:.1f}",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 40_000])
    parser.add_argument("--bases", nargs="+", choices=BASES, default=["independent", "chow-liu"])
    parser.add_argument("--columns", type=int, default=D)
    parser.add_argument("--hidden", type=int, default=H)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [(n, args.columns, args.hidden, base) for base in args.bases for n in args.rows]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = pool.starmap(measure, jobs, chunksize=1)
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
