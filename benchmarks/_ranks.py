"""Mean ranks of detectors over data sets, which of them do not differ, and a picture of both.

After Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", JMLR 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import studentized_range

LEVEL = 0.05


def critical_difference(n_methods: int, n_sets: int) -> float:
    """Nemenyi's: mean ranks that differ by more are different at the level of 5 %."""
    q = float(studentized_range.ppf(1 - LEVEL, n_methods, np.inf)) / 2**0.5
    return q * (n_methods * (n_methods + 1) / (6 * n_sets)) ** 0.5


def groups(ranks: list[float], difference: float) -> list[tuple[int, int]]:
    """First and last of each largest group of sorted ranks that differ by at most so much."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(i for i, other in enumerate(ranks) if other - rank <= difference)
        # A group that ends where the one before it does is a part of that one.
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def draw_ranks(mean_ranks: Mapping[str, float], n_sets: int, path: Path) -> None:
    """Write a picture of the ranks, better ones to the left; bars join what does not differ."""
    import matplotlib.pyplot as plt

    pairs = sorted(mean_ranks.items(), key=lambda pair: pair[1])
    names, ranks = [name for name, _ in pairs], [rank for _, rank in pairs]
    n, difference = len(ranks), critical_difference(len(ranks), n_sets)
    bars = groups(ranks, difference)
    half = (n + 1) // 2
    depth = 0.6 + 0.35 * len(bars)
    bottom = depth + half
    figure, ax = plt.subplots(figsize=(8, 0.8 + 0.3 * (bottom + 1.5)), layout="constrained")
    ax.set(xlim=(-0.9, n + 1.9), ylim=(bottom, -1.9))
    ax.axis("off")
    _draw_axis(ax, n, difference)
    for level, (first, last) in enumerate(bars):
        y = 0.5 + 0.35 * level
        ends = (ranks[first] - 0.05, ranks[last] + 0.05)
        ax.plot(ends, (y, y), color="#d55e00", linewidth=4, solid_capstyle="butt", zorder=3)
    for index, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        left = index < half
        # Lines do not cross: the outermost labels are those of the extreme ranks, at the top.
        y = depth + 0.4 + (index if left else n - 1 - index)
        end = 0.9 if left else n + 0.1
        ax.plot((rank, rank, end), (0, y, y), color="0.3", linewidth=0.9)
        text = f"{name}  {rank:.1f} " if left else f" {rank:.1f}  {name}"
        ax.text(end, y, text, ha="right" if left else "left", va="center")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_axis(ax: Any, n: int, difference: float) -> None:
    """The axis of ranks 1 to n, and above it the critical difference as a length."""
    ax.plot((1, n), (0, 0), color="black", linewidth=1)
    for rank in range(1, n + 1):
        ax.plot((rank, rank), (0, -0.15), color="black", linewidth=1)
        ax.text(rank, -0.25, str(rank), ha="center", va="bottom")
    ends = {"arrowstyle": "|-|,widthA=0.25,widthB=0.25", "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (1, -1.15), (1 + difference, -1.15), arrowprops=ends)
    label = f"critical difference {difference:.2f}"
    ax.text(1 + difference / 2, -1.3, label, ha="center", va="bottom")
    ax.text(n, -1.3, "mean rank by AUROC, 1 is best", ha="right", va="bottom")
