"""What a fit remembers, to tell when it runs away and to go back to where it was well."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from torch import Tensor

# Nats a row that are worth going back for.
LEAST_LOSS = 0.01


class Best(NamedTuple):
    """The weights that rows withheld from training liked best."""

    gain: float
    epoch: int
    weights: list[Tensor]


class Guard:
    """Judges the numbers of a fit.

    Attributes
    ----------
    first : str
        Where training ran away first, and why; empty if it did not.
    shown : dict
        Numbers of the weights that are shown, which are an average of those that step, or these.
    """

    def __init__(self) -> None:
        self.first = ""
        self.best: Best | None = None
        self.shown: dict[str, float] = {}
        self._changes: list[float] = []

    def diverged(self, epoch: int, batch: int, reason: str) -> None:
        """Remember where it happened first."""
        self.first = self.first or f"epoch {epoch}, batch {batch}: {reason}"
        self._changes.clear()

    def smooth(self, logs: dict[str, float]) -> dict[str, float]:
        """Judge steps by the median of the last five; a single one counts a fifth.

        A batch of odd rows makes a large step now and then, and the next ones mend it.
        """
        if "energy_change" not in logs:
            return logs
        self._changes.append(logs["energy_change"])
        recent = self._changes[-5:]
        usual = median(recent) if len(recent) > 2 else 0.0
        return logs | {"energy_change": max(usual, logs["energy_change"] / 5)}

    def keep(self, logs: dict[str, float], epoch: int, weights: list[Tensor]) -> None:
        """Keep the weights if withheld rows gain more from them than from any before."""
        gain = logs.get("gain_over_base")
        if gain is None:  # there is no base to measure log Z by
            return
        if self.best is None or gain > self.best.gain:
            self.best = Best(gain, epoch, [w.clone() for w in weights])

    def better(self) -> Best | None:
        """What was better than the last weights, by more than two standard errors."""
        logs = self.shown
        if self.best is None or "gain_over_base" not in logs:
            return None
        far = self.best.gain - logs["gain_over_base"] > max(2 * logs["gain_error"], LEAST_LOSS)
        return self.best if far else None
