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
from skebm.estimators.boltzmann.blueprint import CONVEX, ROUGH, BoltzmannBlueprint, loss_of, without
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
    blueprint: BoltzmannBlueprint, rows: Rows, asked: Any, generator: torch.Generator
) -> tuple[BoltzmannBlueprint, PathResult]:
    """The blueprint on the chosen graph without an l1 penalty, and what was compared."""
    rule = blueprint.learning if blueprint.learning in CONVEX else "pseudo_likelihood"
    convex = blueprint.with_rule(rule)
    largest = largest_penalty(convex, rows, generator)
    # At the largest penalty itself, rounding decides.
    values = np.geomspace(1.001, asked.ratio, asked.n_values) * largest
    if largest == 0:  # no edges, or no row tells of any
        none = np.zeros(1)
        result = PathResult(none, none, none.astype(int), 0)
        return blueprint.with_edges(np.zeros_like(blueprint.edges)), result
    walk = _by_folds if asked.criterion == "cv" else _by_ebic
    graphs, criterion = walk(convex, rows, asked, generator, values)
    chosen = int(np.argmin(criterion))
    n_edges = np.array([n_pairs(graph, blueprint) for graph in graphs])
    result = PathResult(values[: len(criterion)], np.array(criterion), n_edges, chosen)
    return blueprint.with_edges(graphs[chosen]), result


def _by_ebic(
    convex: BoltzmannBlueprint,
    rows: Rows,
    asked: SparsityPath,
    generator: torch.Generator,
    values: np.ndarray,
) -> tuple[list[np.ndarray], list[float]]:
    """Graphs of a path, to where the criterion no longer falls, and the criterion of each."""
    n, d = float(rows.counts.sum()), len(columns_of(convex.table.domain))
    twice = 1 if convex.learning == "exact" else 2
    price = twice * (np.log(n) + 4 * asked.gamma * np.log(d))
    last: BoltzmannMachine | None = None
    graphs: list[np.ndarray] = []
    found: list[float] = []
    for l1 in progress_bar(values, desc="graphs", disable=not shows_progress(convex.plan.verbose)):
        last = convex.with_penalties(l1, 0.0).fit_objective(rows, generator, last, ROUGH).energy
        graphs.append(support(last, convex))
        if len(graphs) > 1 and np.array_equal(graphs[-1], graphs[-2]):
            found.append(found[-1])
            continue
        relaxed = convex.with_edges(graphs[-1]).with_penalties(0.0, 1.0 / n)
        again = relaxed.fit_objective(rows, generator, on_edges(last, graphs[-1]), ROUGH)
        found.append(2 * loss_of(again, rows) + price * n_free(graphs[-1], convex))
        if len(found) - 1 - int(np.argmin(found)) >= PATIENCE:
            break
    return graphs, found


def on_edges(energy: BoltzmannMachine, edges: np.ndarray) -> BoltzmannMachine:
    """An energy with the couplings of the edges that are given."""
    kept = energy.coupling.detach() * torch.as_tensor(edges, device=energy.bias.device)
    return BoltzmannMachine(kept, energy.bias.detach(), edges=edges, domain=energy.domain)


def _by_folds(
    convex: BoltzmannBlueprint,
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
            model = convex.with_penalties(l1, 0.0).fit_objective(train, generator, last)
            last = model.energy
            total[i] += loss_of(model, held_out)
    last, graphs = None, []
    for l1 in values:
        last = convex.with_penalties(l1, 0.0).fit_objective(rows, generator, last).energy
        graphs.append(support(last, convex))
    return graphs, list(total / float(rows.counts.sum()))


def largest_penalty(convex: BoltzmannBlueprint, rows: Rows, generator: torch.Generator) -> float:
    """Penalty at which all couplings are zero: the largest gradient at independent columns."""
    objective: Any = convex.with_penalties(0.0, 0.0).objective(generator)
    if not len(objective.energy.weight):
        return 0.0
    x, weight = rows.block(0, len(rows)), rows.weight
    objective.gradients(Batch(x, None, weight), None, generator)
    return float(objective.energy.weight.grad.abs().max())


def support(energy: Any, blueprint: BoltzmannBlueprint) -> np.ndarray:
    """Pairs of entries whose columns are coupled, (D, D)."""
    widths = columns_of(blueprint.table.domain)
    coupled = column_pairs((energy.coupling.detach() != 0).cpu().numpy(), widths)
    return coupled.repeat(widths, 0).repeat(widths, 1) & blueprint.edges


def column_pairs(pairs: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Pairs of columns of which some entries are paired, from pairs of entries."""
    first = np.cumsum([0, *widths[:-1]])
    found: np.ndarray = np.logical_or.reduceat(np.logical_or.reduceat(pairs, first, 0), first, 1)
    return found


def n_free(edges: np.ndarray, blueprint: BoltzmannBlueprint) -> int:
    """Number of couplings that rows determine: the others could be moved into biases."""
    widths = columns_of(blueprint.table.domain)
    free = np.maximum(np.array(widths) - 1, 1)  # a bit is one entry, as is one of two levels
    pairs = np.triu(column_pairs(edges, widths), 1)
    return int((pairs * np.outer(free, free)).sum())


def n_pairs(edges: np.ndarray, blueprint: BoltzmannBlueprint) -> int:
    """Number of coupled pairs of columns."""
    return int(column_pairs(edges, columns_of(blueprint.table.domain)).sum()) // 2
