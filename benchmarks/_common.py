"""What every benchmark needs: a header that makes it reproducible, tables, JSON."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable
from operator import truediv
from pathlib import Path
from statistics import quantiles
from typing import Any

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


def spread(slow: list[float], fast: list[float]) -> str:
    """Median of the paired ratios, with their quartiles."""
    low, middle, high = quantiles(map(truediv, slow, fast), n=4, method="inclusive")
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def table(rows: list[dict[str, object]]) -> str:
    """Markdown table of dicts with the same keys."""
    names = list(rows[0])

    def line(cells: list[object]) -> str:
        shown = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
        return "| " + " | ".join(shown) + " |"

    body = [line([row[name] for name in names]) for row in rows]
    return "\n".join([line(list(names)), "|" + "---|" * len(names), *body])


def shown(rows: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The rows, each printed when it is there, and their table at the end; None are left out."""
    found = []
    for row in rows:
        if row is not None:
            found.append(row)
            print(row, flush=True)
    print("\n" + table(found), flush=True)
    return found


def write(path: str | None, result: dict[str, object]) -> None:
    """Write a result with its machine as JSON, where a path is given."""
    if path:
        Path(path).write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
        print(f"wrote {path}")
