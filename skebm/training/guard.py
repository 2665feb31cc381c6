"""Detection of divergence during a fit, and the best weights to return to."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from torch import Tensor

# Least loss on held-out rows, in nats per row, for which training returns to earlier weights.
MIN_LOSS = 0.01


class Best(NamedTuple):
    """The weights of the largest held-out log-likelihood gain over the base, in nats per row."""

    gain: float
    epoch: int
    weights: list[Tensor]


class Guard:
    """Keeps what the decisions to roll back and to return to earlier weights depend on.

    Attributes
    ----------
    first : str
        Where training diverged first, and why; empty if it did not.
    best : Best or None
        The best weights so far, where there are held-out rows and a base.
    shown : dict of str to float
        Diagnostics of the weights between epochs: the average where there is one, or the trained
        ones.
    """

    def __init__(self) -> None:
        self.first = ""
        self.best: Best | None = None
        self.shown: dict[str, float] = {}
        self._changes: list[float] = []

    def diverged(self, epoch: int, batch: int, reason: str) -> None:
        """Record a divergence; the first one is kept for the report."""
        self.first = self.first or f"epoch {epoch}, batch {batch}: {reason}"
        self._changes.clear()

    def smooth(self, logs: dict[str, float]) -> dict[str, float]:
        """Replace the energy change by the median of the last five, or a fifth of it if larger.

        A batch with outliers may cause one large step that the next ones correct.
        """
        if "energy_change" not in logs:
            return logs
        self._changes.append(logs["energy_change"])
        recent = self._changes[-5:]
        usual = median(recent) if len(recent) > 2 else 0.0
        return logs | {"energy_change": max(usual, logs["energy_change"] / 5)}

    def keep_best(self, logs: dict[str, float], epoch: int, weights: list[Tensor]) -> None:
        """Copy the weights if their gain over the base on held-out rows is the largest so far."""
        gain = logs.get("gain_over_base")
        if gain is None:  # without a base there is no estimate of log Z
            return
        if self.best is None or gain > self.best.gain:
            self.best = Best(gain, epoch, [w.clone() for w in weights])

    def clearly_better(self) -> Best | None:
        """The best weights, if better than the last by more than two standard errors."""
        logs = self.shown
        if self.best is None or "gain_over_base" not in logs:
            return None
        loss = self.best.gain - logs["gain_over_base"]
        return self.best if loss > max(2 * logs["gain_error"], MIN_LOSS) else None
