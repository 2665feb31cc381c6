"""kill -9 of one of two processes at random moments of a fit, and the fit that goes on.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --part recovery [--moments 20] [--seed 0]

Protocol. A persistent-chain RBM (64 x 64 bits, 2,000 rows, 30 epochs, momentum, weight averaging)
is trained on two processes with `Resume`. At a moment that is uniform over the time that a whole
fit takes, one of the two, at random, gets SIGKILL; the other has to end with an error that names
it. Then both are started again, and are killed again half of the time; the last run finishes. Its
weights, chains, random generator, optimizer and history must be those of the fit that nobody
disturbed, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._common import shown, write
from benchmarks.scale._ranks import fingerprint, on_ranks
from skebm import RBMEstimator
from skebm.training import SGD, RankStoppedError, Resume


def fit(rank: int, path: Path) -> tuple[str, int]:
    """Fingerprint of the fitted model, and the epochs that were left to this run."""
    X = (np.random.default_rng(0).random((2000, 64)) < 0.3).astype(np.float32)
    model = RBMEstimator(
        64,
        learning="pcd",
        n_iter=30,
        batch_size=50,
        optimizer=SGD(momentum=0.5, averaging=0.5),
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(net__callbacks=[("resume", Resume(path))]).fit(X)
    return fingerprint(model), len(model.history_)


def trial(path: Path, random: np.random.Generator, span: float, expected: str) -> dict[str, Any]:
    """One row of the table: kill once or twice, then finish."""
    wanted, killed, named = random.integers(1, 3), [], []
    while len(killed) < wanted:
        rank, moment = int(random.integers(2)), float(random.uniform(0, span))
        found = on_ranks(fit, path, kill=(rank, moment), minutes=0.5)
        if found[rank] is not None:  # it had ended before
            path.unlink()
            killed, named = [], []
            continue
        killed.append(f"rank {rank} after {moment:.2f} s")
        other = found[1 - rank]
        # After the last epoch nothing is left to be done together, and the other ends as well.
        said = isinstance(other, RankStoppedError) and f"ank {rank}" in str(other)
        named.append(said or isinstance(other, tuple))
    first, second = on_ranks(fit, path)
    return {
        "trial": path.stem,
        "killed": "; ".join(killed),
        "the other named it": all(named),
        "bit for bit": first == second and first[0] == expected,
    }


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.scale --part recovery")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    random = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, second = on_ranks(fit, folder / "whole.state")
        began = time.perf_counter()
        assert on_ranks(fit, folder / "again.state") == [first, second]
        span = time.perf_counter() - began
        assert first == second, (first, second)
        paths = [folder / f"{number}.state" for number in range(1, args.moments + 1)]
        rows = shown(trial(path, random, span, first[0]) for path in paths)
    good = sum(row["bit for bit"] and row["the other named it"] for row in rows)
    print(f"{good} of {len(rows)} trials: bit for bit, and the rank that was killed was named")
    write(args.json, {"trials": rows, "seconds of a whole fit": span})
