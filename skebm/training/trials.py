"""Trials: trainings on a part of the rows, by which the others decide on settings of a fit."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from skebm.base import SamplingError
from skebm.training.guard import MOST_LOST, DivergenceError
from skebm.training.rows import Rows
from skebm.training.selection import ERROR, GAIN, Gain, LogRatioOf

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


def trial_net(
    recipe: Any,
    rows: Rows,
    held_out: Rows,
    log_ratios: LogRatioOf,
    generator: torch.Generator,
    *,
    n_iter: int,
    n_times: int,
    net_params: dict[str, Any] | None,
) -> EnergyNet | None:
    """A net trained on some rows and assessed by others; None if it diverges.

    Parameters
    ----------
    recipe : Recipe
        Settings of a fit, of which the trial has fewer epochs and another optimizer at most.
    rows, held_out : Rows
        The rows that are trained on, and those that assess.
    log_ratios : callable
        What they assess.
    generator : torch.Generator
    n_iter, n_times : int
        Epochs, and assessments after the one at the start.
    net_params : dict or None
        Arguments of the net that users gave; those of the optimizer take effect.
    """
    net = untrained_net(recipe, rows, generator, n_iter=n_iter, net_params=net_params)
    try:
        held_out = recipe.family.complete_copies(recipe, held_out, generator)
        net.hold_out(held_out, log_ratios, n_times)
        train_on(net, recipe.family.deduplicate(recipe, rows.with_own_imputations()))
    except (DivergenceError, SamplingError):
        return None
    return net


def untrained_net(
    recipe: Any,
    rows: Rows,
    generator: torch.Generator,
    *,
    n_iter: int,
    net_params: dict[str, Any] | None,
) -> EnergyNet:
    """A net as :func:`trial_net` trains it, at its start."""
    own = {k: v for k, v in (net_params or {}).items() if k.startswith("optimizer")}
    net = replace(recipe.plan, n_iter=n_iter, most_epochs=0).net(
        recipe.family.objective(recipe, generator), generator, streaming=False, net_params=own
    )
    net.initialize()
    net.completion_ = functools.partial(recipe.family.complete, recipe)
    recipe.family.initialise(recipe, net.module_.energy, rows)
    return net


def train_on(net: EnergyNet, rows: Rows) -> None:
    """Train a net for as many epochs as it has; `KeyboardInterrupt` where it was interrupted."""
    net.partial_fit(rows)
    if net.interrupted_:
        raise KeyboardInterrupt("fit was interrupted when it compared settings.")


def gains_by_epoch(net: EnergyNet | None) -> dict[int, Gain]:
    """Gains of held-out rows in a trial after epochs; none where it diverged."""
    history = [] if net is None else net.history
    return {row["epoch"]: Gain(row[GAIN], row[ERROR]) for row in history if GAIN in row}


def until_loss(gains: dict[int, Gain]) -> dict[int, Gain]:
    """Gains to the first clear loss.

    After it a trial continues from better weights at half the learning rate, which a fit without
    held-out rows does not do.
    """
    found: dict[int, Gain] = {}
    most = 0.0
    for epoch, one in gains.items():
        found[epoch] = one
        most = max(most, one.gain)
        if most - one.gain > max(MOST_LOST, 2 * one.error):
            break
    return found
