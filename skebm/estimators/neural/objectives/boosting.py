"""Boosting of trees that correct a base, as an objective of densities."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from skebm._validation import HasMethods, Interval, StrOptions, draw_seed
from skebm.base import Domain, PartitionEstimator, Sampler
from skebm.base.processes import progress_bar
from skebm.distributions import Distribution
from skebm.distributions.classes.latent import entries_by_kind
from skebm.distributions.transformed.flow import FLOWS
from skebm.energies import NeuralEnergy, Spec
from skebm.energies.trees import MOST_LEAVES, Growth, TreeSum
from skebm.estimators.neural.family import DOMAIN, Rule, fit_any_bases
from skebm.estimators.neural.objectives.base import NeuralObjective, TrainingStart
from skebm.estimators.tables.bases import (
    COLUMN_BASES,
    REAL_BASES,
    Bases,
    MixtureBase,
    complete_in_units,
    fit_completed,
    resolution,
    spread_ties,
)
from skebm.estimators.tables.densities import METHODS
from skebm.estimators.tables.table import Table
from skebm.objectives import NoiseContrastive
from skebm.objectives.noise_contrastive.boosting import Boosted, BoostingSettings, Sample, boost
from skebm.samplers import IndependenceSampler
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows
from skebm.training.selection import Gain, is_kept, warn_of_base

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Trees at most with ``n_iter="auto"``.
MOST_TREES = 1500
# Share of the rows that choose the number of trees, most of them, and fewest rows of a table of
# which any are held out.
HELD_OUT, MOST_HELD_OUT, FEWEST_ROWS = 0.15, 5000, 20
# Of the noise by which the base is fitted to columns of few values.
TIES_SEED = 0


@dataclass(frozen=True)
class BoostingRule(Rule):
    """Trees that were grown before the engine has anything to train.

    Attributes
    ----------
    trees : dict of ndarray
        The trees (:meth:`skebm.energies.TreeSum.arrays`).
    resolution : ndarray of shape (d,) or None
        Gaps over which values that recur are spread, in the units of the data; 0 in other columns.
    history : list of dict
        For each tree that was tried.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    trees: dict[str, np.ndarray]
    resolution: np.ndarray | None
    history: list[dict[str, float]] = field(default_factory=list)
    interrupted: bool = False
    holds_out = False

    def network(self, config: Any, spec: Spec) -> nn.Module:
        return TreeSum(self.trees, dtype=spec.dtype, device=spec.generator.device)

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> NoiseContrastive:
        base: Any = energy.base
        return NoiseContrastive(energy, base)

    def has_default_sampler(self, domain: Domain) -> bool:
        """No sampler can be named."""
        return True

    def final_sampler(self, net: EnergyNet) -> Sampler:
        """Proposals of the base, from which energies of other rows are sampled too.

        Of whole rows, where the base has no conditionals, as flows and estimators.
        """
        base: Any = net.module_.energy.base
        return IndependenceSampler(base, whole_rows=not base.has_given)


def _spreads_ties(model: Any, table: Table) -> bool:
    """Whether rows are those of unbounded numbers, whose base may have spikes at single values."""
    return not table.by_column and not table.discrete and model.bounds is None


class Boosting(NeuralObjective):
    """Boosting of trees, which needs no gradient: see :class:`skebm.BoostedDensity`.

    Parameters
    ----------
    max_leaf_nodes : int, default=16
        Most leaves of a tree, 2 to 63.
    min_samples_leaf : int, default=5
        Fewest rows of a leaf, among training rows and draws of the model.
    l2_regularization : float, default=1.0
        Penalty on the squares of the values of leaves.

    Examples
    --------
    >>> from skebm.estimators import Boosting
    >>> Boosting(max_leaf_nodes=8)
    Boosting(max_leaf_nodes=8)
    """

    _parameter_constraints: dict = {
        "max_leaf_nodes": [Interval(Integral, 2, MOST_LEAVES, closed="both")],
        "min_samples_leaf": [Interval(Integral, 1, None, closed="left")],
        "l2_regularization": [Interval(Real, 0, None, closed="left")],
    }
    of_real_rows = False
    codes_categories = takes_holes = True
    # Without log Z there is nothing to score by: gradients of trees are zero.
    takes = {
        "base": [
            StrOptions({"auto", *REAL_BASES, *COLUMN_BASES, *FLOWS}),
            MixtureBase,
            Distribution,
            HasMethods(METHODS),
        ],
        "domain": DOMAIN,
        "partition": [StrOptions({"auto"}), PartitionEstimator],
    }

    def __init__(self, *, max_leaf_nodes=16, min_samples_leaf=5, l2_regularization=1.0):
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization

    def plan(self, model: Any, n_rows: int, *, streaming: bool) -> TrainingPlan:
        """The plan of an engine that trains nothing: trees are grown before."""
        plan = super().plan(model, n_rows, streaming=streaming)
        return dataclasses.replace(plan, n_iter=0)

    def fit_bases(
        self, model: Any, base: Any, rows: Rows, table: Table
    ) -> tuple[Bases, np.ndarray | None]:
        if table.by_column and isinstance(base, str) and base == "auto":  # a stack
            if rows.known is None:
                rows = spread_ties(rows, TIES_SEED, entries_by_kind(table.domain)[0])
            return fit_any_bases(model, base, rows, table, stacks="all")
        if rows.known is not None and (table.by_column or table.discrete):

            def fit(some: Rows) -> Any:
                return fit_any_bases(model, base, some, table)[0].clean

            found = fit_completed(fit, rows, base)
            return Bases(found, found), None
        if rows.known is not None:
            complete_in_units(rows, TIES_SEED)
        if _spreads_ties(model, table):
            rows = spread_ties(rows, TIES_SEED)
        return fit_any_bases(model, base, rows, table, stacks="all")

    def rule(self, model: Any, start: TrainingStart) -> BoostingRule:
        n_iter = MOST_TREES if model.n_iter == "auto" else int(model.n_iter)
        seed, rows, gaps = draw_seed(model.random_state_), start.rows, None
        if _spreads_ties(model, start.table):
            found_gaps = resolution(rows.block(0, len(rows))).cpu().double().numpy()
            gaps = found_gaps * start.table.units.scale
        if not n_iter or len(rows) < FEWEST_ROWS:
            return BoostingRule(TreeSum().arrays(), gaps)
        found = self._grow(model, start, n_iter, torch.Generator(rows.device).manual_seed(seed))
        trees = found.trees
        gain = Gain(found.gain, found.error)
        if trees.n_trees == 0 or not is_kept(gain):
            warn_of_base(gain)
            trees = TreeSum()
        return BoostingRule(trees.arrays(), gaps, found.history, found.interrupted)

    def _grow(
        self, model: Any, start: TrainingStart, n_iter: int, generator: torch.Generator
    ) -> Boosted:
        rows = start.rows
        n = min(MOST_HELD_OUT, max(2, round(HELD_OUT * len(rows))))
        train, held_out = rows.split(n, generator)
        growth = Growth(self.max_leaf_nodes, self.l2_regularization, self.min_samples_leaf)
        settings = BoostingSettings(float(model.learning_rate), n_iter, growth)
        # The base has seen the rows that judge, so that their gain may be too small: where
        # it is peaked at them, draws of it are near them, and no rows that trees are grown on.
        base: Any = start.bases.noisy
        base = base.to(rows.device, rows.dtype)
        shown: dict[str, Any] = {
            "total": n_iter,
            "desc": "trees",
            "leave": False,
            "disable": not model.verbose,
        }

        def sample(some: Rows) -> Sample:
            return Sample(some.block(0, len(some)), some.counts)

        return boost(
            base,
            sample(train),
            sample(held_out),
            settings,
            generator,
            lambda numbers: iter(progress_bar(numbers, **shown)),
        )
