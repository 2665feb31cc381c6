"""What fits cost as tables, columns and workers grow.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --part PART [arguments of the part]

The parts are the modules of this folder, and `python -m benchmarks.scale --part PART --help` says
what they take.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(argv: list[str]) -> None:
    """Run a part with its arguments."""
    parts = sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py"))
    if len(argv) < 2 or argv[0] != "--part" or argv[1] not in parts:
        raise SystemExit(f"{__doc__}\nParts: {', '.join(parts)}")
    importlib.import_module(f"benchmarks.scale.{argv[1]}").main(argv[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
