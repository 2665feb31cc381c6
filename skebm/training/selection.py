"""What held-out rows decide: whether a model is kept, and for how long others are trained.

One criterion for all families. Held-out rows, which neither the base nor the model has seen, gain g
nats a row under the model, with a standard error s; a base that is fitted to all rows is expected
to gain a. The model is kept if g > a + s / 2, and is its base otherwise. The gain that is assessed
is that of the best of many weights for the same rows, so that it is positive on average where
nothing can be gained; `benchmarks.model_or_base` counts what other criteria do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import TrainingWarning
from skebm.base.objective import effective_count, weighted_mean, weighted_variance
from skebm.training.rows import Rows

# Standard errors by which held-out rows must gain more than a base of all rows does.
LEAST_ERRORS = 0.5
# Nats a row from which on a gain, a loss or a rise of held-out rows is worth a warning.
WORTH_A_WARNING = 0.1
# Names of the gain of held-out rows in the history, and of its error.
GAIN, ERROR = "gain_over_base", "gain_error"
# What it is a gain over, where it is not something else.
THE_BASE = "the base"
# Rows from which on some are held out, and how many of these there are of few.
FEWEST_ROWS, FEWEST_HELD_OUT = 20, 20


class Gain(NamedTuple):
    """Mean log-likelihood ratio of held-out rows to the base, in nats, and its standard error."""

    gain: float
    error: float


class LogRatios(NamedTuple):
    """Log-likelihood ratios of rows to the base, in nats: all that a model says of held-out rows.

    Attributes
    ----------
    ratio : Tensor of shape (n,)
        Without log Z where all rows share it.
    log_z : float or None
        log Z that the rows share; None where each ratio has its own.
    log_z_error : float
        Standard error of the shared log Z.
    draws : Tensor or None
        Draws of the model that were made on the way.
    """

    ratio: Tensor
    log_z: float | None = None
    log_z_error: float = 0.0
    draws: Tensor | None = None


# Log-likelihood ratios of rows x (n, ...) under an energy, which may be estimates.
LogRatioOf = Callable[[Any, Tensor, torch.Generator], LogRatios]


class Assessment(NamedTuple):
    """Assessment of a model by held-out rows (n, ...).

    Attributes
    ----------
    gain : float
        Mean log-likelihood ratio to the base, in nats; minus infinity where it is not finite.
    error : float
        Its standard error, that of log Z included.
    draws : Tensor or None
        Draws of the model, if there are any.
    gains : Tensor of shape (n,) or None
        Gain of each row, where these have a log Z of their own, so that two assessments are
        compared row by row.
    """

    gain: float
    error: float
    draws: Tensor | None = None
    gains: Tensor | None = None


def assess(
    log_ratios: LogRatioOf,
    energy: Any,
    x: Tensor,
    weight: Tensor | None,
    generator: torch.Generator,
    n_completions: int = 1,
) -> Assessment:
    """Assessment of an energy by held-out rows x (n, ...) of weights (n,).

    With `n_completions`, that many successive rows complete a row of which entries are missing by
    draws of the base; its gain is that of its known entries, by importance sampling: low on
    average.
    """
    found = log_ratios(energy, x, generator)
    ratio, share = found.ratio.double(), None if weight is None else weight.double()
    ratio = mean_over_completions(ratio, n_completions)
    share = None if share is None else share[::n_completions]
    gain = float(weighted_mean(ratio, share)) - (found.log_z or 0.0)
    gains = ratio if found.log_z is None and len(ratio) > 1 else None
    if not math.isfinite(gain):
        return Assessment(-math.inf, 0.0, found.draws, gains)
    error = weighted_variance(ratio, share) / effective_count(ratio, share)
    return Assessment(
        gain, math.hypot(math.sqrt(float(error)), found.log_z_error), found.draws, gains
    )


def mean_over_completions(log_ratio: Tensor, n: int) -> Tensor:
    """Log of the mean ratio over the `n` successive completions of each row."""
    return log_ratio if n == 1 else log_ratio.view(-1, n).logsumexp(1) - math.log(n)


def paired_gain(new: Tensor, old: Tensor, weight: Tensor | None) -> Gain:
    """Mean gain of the same rows of weights (n,) by one model over another, and its error.

    No gain, minus infinity, where the new log-likelihoods (n,) are not all finite, and infinity
    where the old ones are not.
    """
    if not bool(new.isfinite().all()):
        return Gain(-math.inf, 0.0)
    if not bool(old.isfinite().all()):
        return Gain(math.inf, 0.0)
    gain, share = new - old, None if weight is None else weight.to(new)
    error = weighted_variance(gain, share) / effective_count(gain, share)
    return Gain(float(weighted_mean(gain, share)), math.sqrt(float(error)))


def is_kept(found: Gain, of_all_rows: float = 0.0) -> bool:
    """Whether a model is kept, given what a base of all rows gains; False where nan."""
    return found.gain > of_all_rows + LEAST_ERRORS * found.error


def is_worth_a_warning(found: Gain) -> bool:
    """Whether a gain, or a loss, is of a size worth a warning, to within its standard error."""
    return abs(found.gain) + found.error >= WORTH_A_WARNING


def gain_by_more_rows(
    mean_log_prob: Callable[[Rows], float], fitted: Rows, held_out: Rows
) -> float:
    """Nats of a new row that a base gains if it is fitted to held-out rows as well.

    With k parameters and n rows, rows that were fitted are more likely than new ones by k / n and
    new ones are less likely than by the best parameters by k / (2 n): asymptotically, for maximum
    likelihood (Akaike 1974). So the gain is half of the difference of the mean log-likelihoods of
    both, times the share of rows that were held out.
    """
    share = len(held_out) / (len(fitted) + len(held_out))
    return share * max(mean_log_prob(fitted) - mean_log_prob(held_out), 0.0) / 2


def warn_of_base(found: Gain, what: str = "The model", reference: str = THE_BASE) -> None:
    """Say that a model, or the part of it that is named, is its base or start, and why.

    Nothing is said where it is as good as any model that these rows may have, to within 0.1 nats.
    """
    if not is_worth_a_warning(found):
        return
    warn(
        f"{what} is {'its base, fitted to all rows' if reference == THE_BASE else reference}: "
        f"held-out rows gain {found.gain:.2g} nats by training, with a standard error of "
        f"{found.error:.2g}.",
        TrainingWarning,
        ("More rows, a larger n_iter or another base may help.", "n_iter", "base"),
        ("More rows or a larger n_iter may help.", "n_iter"),
        ("More rows may help.",),
    )


def mean_gain(gains: Sequence[Gain]) -> Gain:
    """Mean of independent gains, and its error."""
    n = len(gains)
    return Gain(sum(one.gain for one in gains) / n, math.hypot(*(one.error for one in gains)) / n)


def most_likely_epoch(curves: Sequence[dict[int, Gain]]) -> tuple[int, Gain] | None:
    """Epoch after which models of parts of the rows are best for the rows that were left out.

    With the mean gain over all curves, as far as all of them extend; None without curves.
    """
    common = sorted(set.intersection(*map(set, curves))) if curves else []
    means = {epoch: mean_gain([curve[epoch] for curve in curves]) for epoch in common}
    best = max(means, key=lambda epoch: means[epoch].gain, default=None)
    return None if best is None else (best, means[best])


def epochs_by_halves(
    gains: Callable[[Rows, Rows], dict[int, Gain]],
    rows: Rows,
    generator: torch.Generator,
    most: int,
) -> int:
    """Number of epochs after which models of one half of few rows are best for the other half.

    It is chosen by the mean over both halves. It is 0 if the model would not be kept, or if
    training diverges, and `most` if the halves gained to the end.

    Parameters
    ----------
    gains : callable
        Trains on the first rows, and returns the gains of the second ones by epoch.
    rows : Rows
        Training rows.
    generator : torch.Generator
        Draws the halves.
    most : int
        Epochs of a fit that nothing ends.
    """
    halves = rows.split(len(rows) // 2, generator)
    curves = [gains(*halves), gains(*halves[::-1])]
    best = most_likely_epoch(curves)
    if best is None or not is_kept(best[1]):
        return 0
    return most if best[0] == min(map(max, curves)) else best[0]


def rows_apart(rows: Rows, most: int, seed: int) -> tuple[Rows, Rows]:
    """Rows that are trained on, and those that are held out, `most` of them at most."""
    generator = torch.Generator(rows.device).manual_seed(seed)
    return rows.split(n_held_out(len(rows), most), generator)


def n_held_out(n_rows: int, most: int) -> int:
    """Number of rows that are held out: a tenth, or up to a fifth of few; none of fewer than 20."""
    if n_rows < FEWEST_ROWS:
        return 0
    return min(most, max(n_rows // 10, min(n_rows // 5, FEWEST_HELD_OUT)))
