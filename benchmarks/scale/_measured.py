"""A fit and its scores in a process of their own: seconds, and the memory that it had at most."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from skebm import EnergyOutlierDetector, NCEDensity, RBMEstimator, ScoreMatchingDensity

MODELS = {
    "EnergyOutlierDetector": EnergyOutlierDetector,
    "ScoreMatchingDensity": ScoreMatchingDensity,
    "NCEDensity": NCEDensity,
    "RBMEstimator": RBMEstimator,
}
# Seconds between two looks at the memory of the process.
POLL = 0.02
MB = 1024  # kB


def memory(pid: int | str, name: str) -> float:
    """A line of /proc/PID/status in MB; 0 once the process is over."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(s.split()[1]) / MB for s in lines if s.startswith(f"{name}:")), 0.0)


def run(
    model: str, params: dict[str, Any], path: str | Path, *, mode: str = "r"
) -> dict[str, float]:
    """Fit a model to the rows of an .npy file, opened as a memory map, and score them.

    With another `mode` than "r" the file is read into memory first.

    `cpu` are seconds of CPU time of both; `anonymous` is the most memory that no file stands
    behind, in MB, above that of the process after its imports; `resident` the most in all, with
    the pages of the map that were in memory.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale._measured",
        model,
        json.dumps(params),
        path,
        mode,
    ]
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    most = 0.0
    while child.poll() is None:
        most = max(most, memory(child.pid, "RssAnon"))
        time.sleep(POLL)
    assert child.stdout is not None
    lines = child.stdout.read().splitlines()
    if child.returncode:
        raise RuntimeError(f"{model} of {path} ended with {child.returncode}")
    found: dict[str, float] = json.loads(lines[-1])
    found["anonymous"] = most - found.pop("before")
    return found


def main(argv: list[str]) -> None:
    """In the process of its own: fit, score, and print the seconds."""
    model = MODELS[argv[0]](**json.loads(argv[1]))
    X = np.load(argv[2], mmap_mode="r" if argv[3] == "r" else None)
    before = memory("self", "RssAnon")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started, cpu = time.perf_counter(), time.process_time()
        model.fit(X)
        fitted = time.perf_counter()
        scores = model.score_samples(X)
    done = time.perf_counter()
    found = {
        "fit": fitted - started,
        "score": done - fitted,
        "cpu": time.process_time() - cpu,
        "mean": float(scores.mean()),
        "before": before,
        "resident": memory("self", "VmHWM"),
    }
    print(json.dumps(found))


def exponent(sizes: list[int], values: list[float]) -> float:
    """Exponent of the power of the size that is nearest to the values, by their logarithms."""
    if len(sizes) < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
