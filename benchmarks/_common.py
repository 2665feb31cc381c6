"""What every benchmark needs: a header that makes it reproducible, tables, JSON."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import sklearn
import torch

import skebm


def machine() -> dict[str, object]:
    """Versions and threads a result depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
        "skebm": skebm.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def paired(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Times of several contestants, taken in turn so that the machine's moods hit all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return times


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median of the paired ratios."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def table(rows: list[dict[str, object]]) -> str:
    """Markdown table of dicts with the same keys."""
    names = list(rows[0])

    def line(cells: list[object]) -> str:
        shown = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
        return "| " + " | ".join(shown) + " |"

    body = [line([row[name] for name in names]) for row in rows]
    return "\n".join([line(list(names)), "|" + "---|" * len(names), *body])


def write(path: str | None, result: dict[str, object]) -> None:
    """Write a result with its machine as JSON, where a path is given."""
    if path:
        Path(path).write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
        print(f"wrote {path}")
