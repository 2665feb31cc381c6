"""When training has diverged, and to which weights it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean, median, variance
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import TrainingWarning
from skebm.base.processes import Notice
from skebm.training.selection import GAIN, WORTH_A_WARNING, Gain, is_kept

# Least loss on held-out rows, in nats per row, for which training returns to earlier weights.
MIN_LOSS = 0.01
# Training ends when held-out rows have not become more likely for this fraction of the epochs so
# far, this fraction of all, and as many epochs or steps, as the first ones may gain little. On 14
# tables of 225 to 250 rows this rule, among six, was the one that missed no later gain; it takes
# 0.37 of the epochs there.
PATIENCE, PATIENCE_OF_ALL, FEWEST_EPOCHS, FEWEST_STEPS = 0.5, 0.1, 30, 200
# Assessments in a fit, evenly spaced, of models that are too costly to assess after each epoch; and
# rows that are trained on for each of them where steps are given: each takes about as long as the
# training on 10,000 rows.
N_ASSESSMENTS, ROWS_OF_ASSESSMENT = 20, 50_000
# Nats that held-out rows of such a model may lose before training goes back.
MOST_LOST = 0.5
# Steps of a fit of an RBM by default; fewer may end before units of small weights differ.
ENOUGH_STEPS = 10_000
# Times the epochs of a default fit that it may have while held-out rows gain, and products of a row
# with the weights, in multiplications, that all steps may take: a minute or two on one core.
MOST_TIMES, MOST_WORK = 8, 2e11


def n_assessments(n_rows: int, n_epochs: int) -> int:
    """Assessments in a fit of given steps, in proportion to the rows that it trains on."""
    return min(N_ASSESSMENTS, max(1, n_rows * n_epochs // ROWS_OF_ASSESSMENT))


def still_rising(gains: list[float], n_quarters: int = 1) -> float | None:
    """Rise of the mean to the last quarter of the gains from one or two quarters before, in nats.

    None if it is less than 0.1 or two standard errors, or if there are fewer than 8 gains.
    """
    n = len(gains) // 4
    if n < 2:
        return None
    first = -(n_quarters + 1) * n
    before, last = gains[first : first + n], gains[-n:]
    rise = mean(last) - mean(before)
    error = math.sqrt((variance(before) + variance(last)) / n)
    return rise if rise > max(WORTH_A_WARNING, 2 * error) else None


def not_converged(n_iter: int, rise: float, part: str = "quarter") -> Notice:
    """What is said where held-out rows rose in the last part of so many epochs."""
    return Notice(
        f"Training has not converged: in the last {part} of {n_iter} epochs held-out rows "
        f"still became {rise:.2g} nats more likely.",
        TrainingWarning,
        ((f"Set n_iter to {2 * n_iter} or more.", "n_iter"),),
    )


def gain_of_a_pass(history: list[dict[str, Any]]) -> float | None:
    """Nats that held-out rows gained in a pass at the end of a history; None if that is unknown."""
    gains = [(number, row[GAIN]) for number, row in enumerate(history) if GAIN in row]
    if len(gains) < 2:
        return None
    (before, first), (last, end) = gains[-2:]
    return (end - first) / (last - before)


def weights_of(module: nn.Module) -> list[Tensor]:
    """Parameters as tensors that share their memory and need no gradient."""
    return [p.detach() for p in module.parameters()]


def copy_weights(source: list[Tensor], target: list[Tensor]) -> None:
    """Write one list of tensors into another."""
    for new, old in zip(source, target, strict=True):
        old.copy_(new)


class Best(NamedTuple):
    """The weights of the largest held-out log-likelihood gain over the base, in nats per row."""

    gain: float
    error: float
    epoch: int
    weights: list[Tensor]
    gains: Tensor | None = None

    @property
    def gains_nothing(self) -> bool:
        """Whether held-out rows are no more likely than under the base, to within two errors."""
        return self.gain <= max(2 * self.error, MIN_LOSS)

    def over(self, start: Best) -> Gain:
        """What was gained since other weights."""
        return Gain(self.gain - start.gain, self.error)


# Draws missing entries anew, of rows (n, d) whose known entries are a mask of that shape.
Completion = Callable[[Any, Tensor, Tensor, torch.Generator], Tensor]


class DivergenceError(FloatingPointError, ValueError):
    """With these settings, training diverges again after every roll-back."""


class NoFurtherGainError(Exception):
    """Held-out rows have not become more likely for a long time, so training ends."""


class Guard:
    """Keeps what the decisions to roll back and to return to earlier weights depend on.

    Attributes
    ----------
    seldom : bool
        Whether gains are computed only a few times per fit, and not after every epoch.
    first : str
        Where training diverged first, and why; empty if it did not.
    start, best : Best or None
        The first weights and the best so far, if there are held-out rows and a base.
    shown : dict of str to float
        Diagnostics of the weights between epochs: of their average if there is one, otherwise of
        the trained weights.
    gains : Tensor or None
        Gain of each held-out row in the last assessment, if gains are compared row by row.
    """

    def __init__(self, seldom: bool = False) -> None:
        self.seldom = seldom
        self.first = ""
        self.start: Best | None = None
        self.best: Best | None = None
        self.shown: dict[str, float] = {}
        self.gains: Tensor | None = None
        self._changes: list[float] = []

    def load(self, stored: dict[str, Any]) -> None:
        """Restore the attributes, of which files hold plain lists."""
        vars(self).update(stored)
        for name in ("start", "best"):
            kept = stored[name]
            setattr(self, name, None if kept is None else Best(*kept))

    def record_divergence(self, epoch: int, batch: int, reason: str) -> None:
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
            weights = [w.clone() for w in weights]
            self.best = Best(gain, logs["gain_error"], epoch, weights, self.gains)
            self.start = self.start or self.best

    def is_exhausted(self, n_epochs: int, n_before: int, max_epochs: int, n_batches: int) -> bool:
        """Whether the best weights are so old that better ones are not to be expected.

        There have been `n_epochs` epochs of `n_batches` each, of which `n_before` belong to earlier
        calls. The answer is always False if gains are seldom computed.
        """
        if self.best is None or self.seldom:
            return False
        done = n_epochs - n_before
        fewest = min(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / n_batches))
        patience = max(PATIENCE * done, PATIENCE_OF_ALL * max_epochs, fewest)
        return n_epochs - self.best.epoch >= patience

    @property
    def has_gained_nothing(self) -> bool:
        """Whether the best weights are still the first ones."""
        best, start = self.best, self.start
        return best is not None and start is not None and best.epoch == start.epoch

    def clearly_better(self) -> Best | None:
        """The best weights, if better than the last by more than two standard errors."""
        logs = self.shown
        if self.best is None or "gain_over_base" not in logs:
            return None
        loss, error = self.best.gain - logs["gain_over_base"], logs["gain_error"]
        if self.gains is not None and self.best.gains is not None:
            lost = self.best.gains - self.gains
            error = float(lost.std()) / math.sqrt(len(lost))
        return self.best if loss > max(2 * error, MIN_LOSS) else None

    def returns_to(self, ended_early: bool) -> Best | None:
        """The weights that training ends with, with the best gain; None if they are the last ones.

        They are the best weights if training ended early, if these are clearly better, or if the
        last ones are below the base. If the best have gained too little to be kept, they are the
        first weights instead, unless another judges them, as where gains are seldom computed.
        """
        best, start = self.best, self.start
        if best is None or not (ended_early or self.clearly_better() or self.below_base):
            return None
        judges = ended_early or not self.seldom
        if judges and start is not None and not is_kept(best.over(start)):
            return start._replace(gain=best.gain, error=best.error)
        return best

    @property
    def final_gain(self) -> Gain | None:
        """Gain of the weights that training ended with, where gains are seldom computed."""
        best = self.returns_to(False)
        if best is not None:
            return Gain(best.gain, best.error)
        found = self.shown.get("gain_over_base")
        return None if found is None else Gain(found, self.shown["gain_error"])

    @property
    def below_base(self) -> bool:
        """Whether the last gain is negative, or clearly less than that of the first weights.

        Of weights that no one else judges, by 0.1 nats: less is as good a model.
        """
        start = WORTH_A_WARNING if self.seldom or self.start is None else self.start.gain
        return self.shown.get("gain_over_base", math.inf) < start - WORTH_A_WARNING
