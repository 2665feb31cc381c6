"""Which columns are coupled: a path over the l1 penalty, and the choice of one of its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skebm._validation import Interval, StrOptions
from skebm.base import Batch
from skebm.base.domains import columns_of
from skebm.base.processes import progress_bar
from skebm.energies import BoltzmannMachine
from skebm.estimators.boltzmann.family import CONVEX, BoltzmannRecipe
from skebm.estimators.boltzmann.penalties import (
    ROUGH,
    fit_convex,
    loss_of,
    with_penalties,
    with_rule,
    without,
)
from skebm.training.distributed import shows_progress
from skebm.training.rows import Rows

# Values without a better one after which a path ends.
PATIENCE = 4


class SparsityPath(BaseEstimator):
    r"""How the graph of a Boltzmann machine is chosen from a path over the l1 penalty.

    Models are trained from the largest useful penalty downwards, each starting from the weights of
    the previous one. Each model gives a graph, on which the couplings are trained again without the
    l1 penalty, so that the final model is free of its shrinkage.

    Parameters
    ----------
    criterion : {"ebic", "cv"}, default="ebic"
        ``"ebic"``: the extended Bayesian information criterion,
        :math:`-2 n \ell + c\, k (\log n + 4 \gamma \log d)`, of the graph's own fit, with k free
        couplings, (a - 1)(b - 1) for an edge between columns of a and b levels, and :math:`\ell`
        the mean log-likelihood of a row (c = 1) or pseudo-likelihood (c = 2: it counts every
        coupling in the conditionals of both of its columns). ``"cv"``: the loss of held-out rows,
        which finds graphs that predict well but have false edges.
    n_values : int, default=20
        Number of penalties, evenly spaced on a logarithmic scale.
    ratio : float in (0, 1), default=0.01
        Smallest penalty divided by the largest, at which no columns are coupled.
    gamma : float, default=0.5
        Weight of the prior on sparse graphs of the ``"ebic"``; 0 is the BIC.
    n_folds : int, default=5
        Number of folds for ``"cv"``.

    References
    ----------
    Ravikumar, Wainwright and Lafferty (2010), "High-dimensional Ising model selection using
    l1-regularized logistic regression", Annals of Statistics 38(3). Foygel and Drton (2010),
    "Extended Bayesian information criteria for Gaussian graphical models", NeurIPS, eq. 2.

    Examples
    --------
    >>> from skebm import BoltzmannMachineDensity
    >>> from skebm.estimators import SparsityPath
    >>> BoltzmannMachineDensity(l1=SparsityPath(gamma=0.25)).get_params()["l1__gamma"]
    0.25
    """

    _parameter_constraints: dict = {
        "criterion": [StrOptions({"ebic", "cv"})],
        "n_values": [Interval(Integral, 2, None, closed="left")],
        "ratio": [Interval(Real, 0, 1, closed="neither")],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "n_folds": [Interval(Integral, 2, None, closed="left")],
    }

    def __init__(self, *, criterion="ebic", n_values=20, ratio=0.01, gamma=0.5, n_folds=5):
        self.criterion = criterion
        self.n_values = n_values
        self.ratio = ratio
        self.gamma = gamma
        self.n_folds = n_folds


@dataclass(frozen=True)
class PathResult:
    """What was compared on a path over the l1 penalty.

    Attributes
    ----------
    l1 : ndarray of shape (n_values,)
        Penalties, in decreasing order.
    criterion : ndarray of shape (n_values,)
        EBIC, or mean loss of held-out rows; the lowest was chosen.
    n_edges : ndarray of shape (n_values,)
        Numbers of coupled pairs of columns.
    chosen : int
        Index of the choice.
    """

    l1: np.ndarray
    criterion: np.ndarray
    n_edges: np.ndarray
    chosen: int


def choose_graph(
    recipe: BoltzmannRecipe, rows: Rows, asked: Any, generator: torch.Generator
) -> tuple[BoltzmannRecipe, PathResult]:
    """The recipe on the chosen graph without an l1 penalty, and what was compared."""
    rule = recipe.family.learning if recipe.family.learning in CONVEX else "pseudo_likelihood"
    convex = with_rule(recipe, rule)
    largest = largest_penalty(convex, rows, generator)
    # At the largest penalty itself, rounding decides.
    values = np.geomspace(1.001, asked.ratio, asked.n_values) * largest
    if largest == 0:  # no edges, or no row tells of any
        none = np.zeros(1)
        result = PathResult(none, none, none.astype(int), 0)
        return recipe.with_settings(edges=np.zeros_like(recipe.family.edges)), result
    walk = _by_folds if asked.criterion == "cv" else _by_ebic
    graphs, criterion = walk(convex, rows, asked, generator, values)
    chosen = int(np.argmin(criterion))
    n_edges = np.array([n_pairs(graph, recipe) for graph in graphs])
    result = PathResult(values[: len(criterion)], np.array(criterion), n_edges, chosen)
    return recipe.with_settings(edges=graphs[chosen]), result


def _by_ebic(
    convex: BoltzmannRecipe,
    rows: Rows,
    asked: SparsityPath,
    generator: torch.Generator,
    values: np.ndarray,
) -> tuple[list[np.ndarray], list[float]]:
    """Graphs of a path, to where the criterion no longer falls, and the criterion of each."""
    n, d = float(rows.counts.sum()), len(columns_of(convex.table.domain))
    twice = 1 if convex.family.learning == "exact" else 2
    price = twice * (np.log(n) + 4 * asked.gamma * np.log(d))
    last: BoltzmannMachine | None = None
    graphs: list[np.ndarray] = []
    found: list[float] = []
    for l1 in progress_bar(values, desc="graphs", disable=not shows_progress(convex.plan.verbose)):
        last = fit_convex(with_penalties(convex, l1, 0.0), rows, last, ROUGH).energy
        graphs.append(support(last, convex))
        if len(graphs) > 1 and np.array_equal(graphs[-1], graphs[-2]):
            found.append(found[-1])
            continue
        relaxed = with_penalties(convex.with_settings(edges=graphs[-1]), 0.0, 1.0 / n)
        again = fit_convex(relaxed, rows, on_edges(last, graphs[-1]), ROUGH)
        found.append(2 * loss_of(again, rows) + price * n_free(graphs[-1], convex))
        if len(found) - 1 - int(np.argmin(found)) >= PATIENCE:
            break
    return graphs, found


def on_edges(energy: BoltzmannMachine, edges: np.ndarray) -> BoltzmannMachine:
    """An energy with the couplings of the edges that are given."""
    kept = energy.coupling.detach() * torch.as_tensor(edges, device=energy.bias.device)
    return BoltzmannMachine(kept, energy.bias.detach(), edges=edges, domain=energy.domain)


def _by_folds(
    convex: BoltzmannRecipe,
    rows: Rows,
    asked: SparsityPath,
    generator: torch.Generator,
    values: np.ndarray,
) -> tuple[list[np.ndarray], list[float]]:
    """Graphs of a path of all rows, and the mean loss of held-out rows at each penalty."""
    if len(rows) < asked.n_folds:
        raise ValueError(f"n_folds={asked.n_folds} needs as many rows, and there are {len(rows)}.")
    total = np.zeros(len(values))
    order = torch.randperm(len(rows), generator=generator, device=rows.device)
    parts = order.chunk(asked.n_folds)
    for part in progress_bar(parts, desc="graphs", disable=not shows_progress(convex.plan.verbose)):
        train, held_out, last = without(rows, part), rows.subset(part), None
        for i, l1 in enumerate(values):
            model = fit_convex(with_penalties(convex, l1, 0.0), train, last)
            last = model.energy
            total[i] += loss_of(model, held_out)
    last, graphs = None, []
    for l1 in values:
        last = fit_convex(with_penalties(convex, l1, 0.0), rows, last).energy
        graphs.append(support(last, convex))
    return graphs, list(total / float(rows.counts.sum()))


def largest_penalty(convex: BoltzmannRecipe, rows: Rows, generator: torch.Generator) -> float:
    """Penalty at which all couplings are zero: the largest gradient at independent columns."""
    plain = with_penalties(convex, 0.0, 0.0)
    objective: Any = plain.family.objective(plain, generator)
    if not len(objective.energy.weight):
        return 0.0
    x, weight = rows.block(0, len(rows)), rows.weight
    objective.gradients(Batch(x, None, weight), None, generator)
    return float(objective.energy.weight.grad.abs().max())


def support(energy: Any, recipe: BoltzmannRecipe) -> np.ndarray:
    """Pairs of entries whose columns are coupled, (D, D)."""
    widths = columns_of(recipe.table.domain)
    coupled = column_pairs((energy.coupling.detach() != 0).cpu().numpy(), widths)
    return coupled.repeat(widths, 0).repeat(widths, 1) & recipe.family.edges


def column_pairs(pairs: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Pairs of columns of which some entries are paired, from pairs of entries."""
    first = np.cumsum([0, *widths[:-1]])
    found: np.ndarray = np.logical_or.reduceat(np.logical_or.reduceat(pairs, first, 0), first, 1)
    return found


def n_free(edges: np.ndarray, recipe: BoltzmannRecipe) -> int:
    """Number of couplings that rows determine: the others could be moved into biases."""
    widths = columns_of(recipe.table.domain)
    free = np.maximum(np.array(widths) - 1, 1)  # a bit is one entry, as is one of two levels
    pairs = np.triu(column_pairs(edges, widths), 1)
    return int((pairs * np.outer(free, free)).sum())


def n_pairs(edges: np.ndarray, recipe: BoltzmannRecipe) -> int:
    """Number of coupled pairs of columns."""
    return int(column_pairs(edges, columns_of(recipe.table.domain)).sum()) // 2
