"""Penalties of a Boltzmann machine that held-out rows choose, by fits of convex objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from skebm.base import Batch
from skebm.energies import BoltzmannMachine
from skebm.estimators.boltzmann.convex import TOLERANCE, line_search_plan, minimise, with_l1
from skebm.estimators.boltzmann.family import BoltzmannRecipe, cost_of_sum
from skebm.objectives.local import LOCAL_RULES
from skebm.training.rows import Rows

# Precisions of the normal prior of a coupling of bits, among which held-out rows choose; the
# first leaves columns independent, with the fields of the base. Rows for each coupling of a column
# from which the choice makes no difference, and the prior precision is then 1.
PRECISIONS, MANY_ROWS = (1e5, 300.0, 30.0, 10.0, 3.0, 0.3), 50
# Gain of nats at which the models that are compared have converged; terms of a sum over all states
# up to which it is quick.
ROUGH, QUICK_COST = 1e-4, 3e4


def with_rule(recipe: BoltzmannRecipe, learning: str) -> BoltzmannRecipe:
    """The same with another rule, by steps that use all rows."""
    new = recipe.with_settings(learning=learning, chains=None)
    return replace(new, plan=line_search_plan(recipe.plan))


def with_penalties(recipe: BoltzmannRecipe, l1: float, l2: float) -> BoltzmannRecipe:
    """The same with other penalties."""
    new = recipe.with_settings(l1=l1, l2=l2)
    return replace(new, plan=with_l1(recipe.plan, l1)) if recipe.plan.searches else new


def fit_convex(
    recipe: BoltzmannRecipe,
    rows: Rows,
    start: BoltzmannMachine | None = None,
    tol: float = TOLERANCE,
) -> Any:
    """An objective minimised on rows; from the weights of an energy with the same edges."""
    objective: Any = recipe.family.objective(recipe, torch.Generator(rows.device))
    if start is not None:
        objective.energy.load_state_dict(start.state_dict())
    minimise(objective, rows, recipe.family.l1, tol)
    return objective


def choose_ridge(
    recipe: BoltzmannRecipe, rows: Rows, generator: torch.Generator
) -> BoltzmannRecipe:
    """The recipe with the ridge penalty under which held-out rows are most likely.

    Precisions are compared from the largest to the smallest, each model starting at the one before.
    """
    n = float(rows.counts.sum())
    if n >= MANY_ROWS * rows.n_columns:
        return with_penalties(recipe, recipe.family.l1, 1.0 / n)
    # Parts of the rows, one of which is held out; rows below which each is in turn, as it says
    # little.
    n_parts, few_rows = 3, 1000
    if len(rows) < n_parts:
        return with_penalties(recipe, recipe.family.l1, PRECISIONS[1] / n)
    convex, factor = _quick(recipe)
    order = torch.randperm(len(rows), generator=generator, device=rows.device)
    parts = order.chunk(n_parts)[: n_parts if len(rows) < few_rows else 1]
    folds = [rows.without(part) for part in parts]
    last: list[Any] = [None for _ in folds]
    total: list[float] = []
    for precision in PRECISIONS:
        total.append(0.0)
        for fold, (train, held_out) in enumerate(folds):
            model = with_penalties(convex, 0.0, factor * precision / float(train.counts.sum()))
            if precision == PRECISIONS[0]:
                found = model.family.objective(model, generator)
            else:
                found = fit_convex(model, train, last[fold], ROUGH)
            last[fold] = found.energy
            total[-1] += loss_of(found, held_out)
        if len(total) > 2 and total[-1] > total[-2]:
            break  # weaker ones overfit more, and take the longest
    return with_penalties(recipe, recipe.family.l1, PRECISIONS[int(np.argmin(total))] / n)


def _quick(recipe: BoltzmannRecipe) -> tuple[BoltzmannRecipe, float]:
    """A convex rule that takes little time, and the penalty relative to that of the rule itself.

    The pseudo-likelihood has every coupling in two conditionals, and so twice the information.
    """
    learning = recipe.family.learning
    quick = cost_of_sum(recipe.table.domain) <= QUICK_COST and learning == "exact"
    if learning in LOCAL_RULES or quick:
        return with_rule(recipe, learning), 1.0
    return with_rule(recipe, "pseudo_likelihood"), 2.0


def loss_of(objective: Any, rows: Rows) -> float:
    """Sum of the loss over rows, without penalties."""
    batch = Batch(rows.block(0, len(rows)), None, rows.counts.to(rows.dtype))
    mean = objective.validation_loss(batch, None, torch.Generator())
    return float(mean) * float(rows.counts.sum())
