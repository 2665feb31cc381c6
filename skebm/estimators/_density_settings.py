"""What ``"auto"`` means in the training of a neural density."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from torch import nn

from skebm._validation import HasMethods, Interval, StrOptions
from skebm.base import PartitionEstimator, Sampler
from skebm.base.torchtools import adamw
from skebm.distributions import Distribution
from skebm.energies import MLP

# Optimizer steps of a fit, and passes at most and at least.
N_STEPS = 1000
FEWEST_PASSES, MOST_PASSES = 4, 1000
BATCH = 128
# Share of the passes in which the learning rate rises to what it is.
WARM_UP = 0.05

OBJECTIVES = ("denoising", "exact", "sliced", "multiscale")
# Smallest noise level of a multi-scale model, in standard deviations of the columns.
LEAST_LEVEL = 0.05

COMMON: dict[str, list[Any]] = {
    "network": [HasMethods("build"), nn.Module, callable, None],
    "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "deconvolve": ["boolean"],
    "bounds": ["array-like", tuple, None],
    "standardize": ["boolean"],
    "learning_rate": [Interval(RealNumber, 0, None, closed="neither")],
    "learning_rate_decay": [StrOptions({"cosine", "constant"})],
    "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "n_iter": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
    "weight_decay": [Interval(RealNumber, 0, None, closed="left")],
    "averaging": [Interval(RealNumber, 0, 1, closed="left")],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(RealNumber, 0, 1, closed="neither")],
    "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(RealNumber, 0, None, closed="left")],
    "warm_start": ["boolean"],
    "contamination": [Interval(RealNumber, 0, 0.5, closed="right"), StrOptions({"auto"})],
    "partition": [StrOptions({"auto"}), PartitionEstimator, None],
    "sampler": [Sampler, None],
    "max_restarts": [Interval(Integral, 0, None, closed="left")],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "device": [str],
    "dtype": [StrOptions({"float32", "float64"})],
    "net_params": [dict, None],
}

SCORE_MATCHING = COMMON | {
    "objective": [StrOptions(set(OBJECTIVES))],
    "base": [StrOptions({"auto", "gaussian", "mixture", "kernel"}), Distribution, None],
    "sigma": [
        Interval(RealNumber, 0, None, closed="neither"),
        StrOptions({"auto", "bandwidth", "kurtosis"}),
        "array-like",
    ],
    "n_projections": [Interval(Integral, 1, None, closed="left")],
    "projection": [StrOptions({"rademacher", "gaussian"})],
}


@dataclass(frozen=True)
class Settings:
    """Resolved hyper-parameters of the optimizer.

    Attributes
    ----------
    dtype : str
    batch_size, n_iter : int
    decay : bool
        Whether the learning rate falls along a cosine.
    network : object
        A copy: parameters that are set after a fit wait for the next one.
    rule : object
        What is minimised, with the settings of that.
    """

    dtype: str
    batch_size: int
    n_iter: int
    decay: bool
    network: Any
    rule: Any


class MatchingRule(NamedTuple):
    """What score matching minimises."""

    objective: str
    n_projections: int
    projection: str


def default_network(network: Any) -> Any:
    """The network that is given, or an MLP."""
    return MLP() if network is None else network


def cosine_decay(done: float) -> float:
    """Factor of the learning rate after a fraction of the epochs: up quickly, down to 0.01."""
    rise = min(1.0, (done + 0.2 * WARM_UP) / WARM_UP)
    return rise * (0.505 + 0.495 * math.cos(math.pi * done))


def matching_rule(estimator: Any) -> MatchingRule:
    """What an estimator minimises; `ValueError` where that adds noise inside walls."""
    if estimator.objective in ("denoising", "multiscale") and estimator.bounds is not None:
        raise ValueError(
            f"objective={estimator.objective!r} adds noise, which leaves the walls of `bounds`: "
            'use objective="exact" or "sliced", whose weights vanish there.'
        )
    return MatchingRule(estimator.objective, estimator.n_projections, estimator.projection)


def resolve(
    estimator: Any, n_rows: int, rule: Any, *, streaming: bool, most_passes: int = MOST_PASSES
) -> Settings:
    """Resolve every ``"auto"`` of an estimator for a table of the given size."""
    net = estimator.net_params or {}
    size = net.get("batch_size", estimator.batch_size)
    n_iter = net.get("max_epochs", estimator.n_iter)
    if size == "auto":
        size = min(BATCH, n_rows)
    if n_iter == "auto":
        passes = math.ceil(N_STEPS / math.ceil(n_rows / size))
        n_iter = min(most_passes, max(FEWEST_PASSES, passes))
    if streaming:
        n_iter = 1
    decay = estimator.learning_rate_decay == "cosine" and not streaming
    return Settings(
        estimator.dtype,
        int(size),
        int(n_iter),
        decay,
        clone(default_network(estimator.network), safe=False),
        rule,
    )


def check_objective_stays(before: str, now: str) -> None:
    """Raise `ValueError` where warm weights would be trained for another density."""
    clean = ("exact", "sliced")
    if before != now and not (before in clean and now in clean):
        raise ValueError(
            f"The weights are those of objective={before!r}, on which warm_start and partial_fit "
            f"go on, not of {now!r}: clone the estimator to start anew."
        )


def levels_of(estimator: Any, n_columns: int) -> tuple[float, float] | None:
    """Smallest and largest noise level of a multi-scale model, None for one without levels."""
    if estimator.objective != "multiscale":
        return None
    sigma = estimator.sigma
    if isinstance(sigma, str):
        if sigma != "auto":
            raise ValueError(
                f'sigma={sigma!r} is one level; objective="multiscale" takes "auto" or a pair '
                "(smallest, largest)."
            )
        # Noise of half the distance between rows joins whatever modes there are.
        return LEAST_LEVEL, max(2.0, math.sqrt(n_columns / 2))
    pair = np.asarray(sigma, dtype=float).ravel()
    if len(pair) != 2 or not 0 < pair[0] < pair[1] < math.inf:
        raise ValueError(
            f'objective="multiscale" needs sigma=(smallest, largest), 0 < smallest < largest, got '
            f"{sigma!r}."
        )
    return float(pair[0]), float(pair[1])


def net_kwargs(estimator: Any, settings: Settings) -> dict[str, Any]:
    """Arguments of the engine."""
    return {
        "max_epochs": settings.n_iter,
        "batch_size": settings.batch_size,
        "optimizer": adamw,
        "optimizer__weight_decay": estimator.weight_decay,
        "lr": estimator.learning_rate,
        "schedule": cosine_decay if settings.decay else None,
        "verbose": int(estimator.verbose),
    }
