"""Convex objectives of Boltzmann machines, and their minimum by steps that use all rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, Objective
from skebm.energies import BoltzmannMachine
from skebm.objectives import EnumeratedLikelihood
from skebm.objectives.local import LOCAL_RULES
from skebm.training.owlqn import OWLQN
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows

CONVEX = ("exact", *LOCAL_RULES)
# Iterations of the quasi-Newton method at most, and those without a gain of nats that end it.
MOST_ITERATIONS, PATIENCE, TOLERANCE = 1000, 3, 1e-7


def convex_objective(learning: str, energy: BoltzmannMachine, l1: float, l2: float) -> Objective:
    """The objective of a rule without chains."""
    rule = EnumeratedLikelihood if learning == "exact" else LOCAL_RULES[learning]
    return rule(energy, l1=l1, l2=l2)


def minimise(objective: Any, rows: Rows, l1: float, tol: float = TOLERANCE) -> None:
    """Minimise a convex objective of rows, to where it no longer falls by `tol`."""
    rows = rows.without_duplicates()
    batch = Batch(rows.block(0, len(rows)), None, rows.weight)
    energy, generator = objective.energy, torch.Generator(batch.x.device)
    groups = [{"params": [energy.weight], "l1": l1}, {"params": [energy.bias], "l1": 0.0}]
    optimizer: Any = OWLQN(groups)
    optimizer.coordinates = objective.coordinates(batch)

    def closure() -> Tensor:
        value: Tensor = objective.gradients(batch, None, generator).value
        return value

    last, stale = math.inf, 0
    for _ in range(MOST_ITERATIONS):
        value = float(optimizer.step(closure))
        stale = stale + 1 if value > last - tol else 0
        if stale == PATIENCE:
            return
        last = min(last, value)


def line_search_plan(plan: TrainingPlan) -> TrainingPlan:
    """The plan for steps that use all rows."""
    return replace(
        plan,
        optimizer="owlqn",
        optimizer_settings={},
        learning_rate=1.0,
        n_iter=MOST_ITERATIONS,
        batch_size=2**31,
        schedule="constant",
        averaging=0.0,
        patience=PATIENCE,
        tol=TOLERANCE,
        judged_by_training=True,
    )


def with_l1(plan: TrainingPlan, l1: float) -> TrainingPlan:
    """The plan whose optimizer has an l1 penalty on the couplings."""
    groups = {"param_groups": [("energy.weight", {"l1": l1})]} if l1 else {}
    return replace(plan, optimizer_settings=groups)
