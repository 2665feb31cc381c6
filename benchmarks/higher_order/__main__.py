"""RBMs of higher order: each model at the task that a plain RBM fails at.

    OMP_NUM_THREADS=1 python -m benchmarks.higher_order PART [arguments of the part]

The parts are the modules of this folder, and `python -m benchmarks.higher_order PART --help` says
what they take.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(argv: list[str]) -> None:
    """Run a part with its arguments."""
    parts = sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py"))
    if not argv or argv[0] not in parts:
        raise SystemExit(f"{__doc__}\nParts: {', '.join(parts)}")
    importlib.import_module(f"benchmarks.higher_order.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
