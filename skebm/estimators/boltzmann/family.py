"""The family of Boltzmann machines: their energy and rules, and what "auto" means."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from skebm._validation import warn
from skebm.base import (
    Binary,
    Categorical,
    DataWarning,
    Objective,
    Sampler,
    TrainingWarning,
    sampling,
)
from skebm.base.domains import columns_of, parts_of
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Distribution,
    IndependentBernoulli,
    IndependentCategorical,
)
from skebm.energies import BoltzmannMachine
from skebm.energies.pairwise import same_column
from skebm.energies.path import unary_fields
from skebm.estimators.base import annealing_starts, at_least_two, states_near
from skebm.estimators.boltzmann.convex import CONVEX, convex_objective, minimise
from skebm.estimators.rbm.safety import over_log_z
from skebm.estimators.recipe import Family, JointModel, Recipe
from skebm.estimators.tables.table import Table
from skebm.objectives import ContrastiveDivergence, Penalty, pseudo_log_likelihood
from skebm.samplers import ChainPolicy, Gibbs, Persistent, PerturbedMAP
from skebm.training.guard import copy_weights, weights_of
from skebm.training.rows import Rows
from skebm.training.selection import LogRatioOf, LogRatios

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Terms of an enumeration (states times entries of a row) up to which exact learning is the default,
# and up to which it is allowed.
CHEAP_COST, MOST_COST = 2e7, 2e9
# Coupling of two bits beyond which no table can tell it from an infinite one.
INFINITE = 20.0


@dataclass(frozen=True)
class BoltzmannFamily(Family, JointModel):
    """Boltzmann machines on a graph, whose base has independent columns.

    Attributes
    ----------
    learning, reason : str
        The rule, and why it is the rule.
    edges : ndarray of bool of shape (D, D)
        Entries of rows that may be coupled.
    unseen : ndarray of bool of shape (D,)
        Entries whose state never occurs, or always: their fields are not trained.
    start : Distribution
        Where annealing starts: a tree of bits, or the base.
    l1, l2 : float
        Penalties of couplings of bits.
    sampler : Sampler or None
    chains : ChainPolicy or None
    """

    learning: str
    reason: str
    edges: np.ndarray
    unseen: np.ndarray
    start: Distribution
    l1: float
    l2: float
    sampler: Sampler | None
    chains: ChainPolicy | None

    def objective(self, recipe: BoltzmannRecipe, generator: torch.Generator) -> Objective:
        energy = self._energy(recipe, generator.device)
        if self.learning in CONVEX:
            return convex_objective(self.learning, energy, self.l1, self.l2)
        chains = clone(self.chains)
        if isinstance(chains, Persistent):
            chains.set_params(initial=self.start.to(generator.device, recipe.plan.torch_dtype))
        penalty = Penalty(l2=self.l2) if self.l2 else None
        sampler = PerturbedMAP() if self.learning == "perturb_and_map" else self.model_sampler
        return ContrastiveDivergence(energy, sampler, chains, penalty=penalty)

    def _energy(self, recipe: BoltzmannRecipe, device: torch.device) -> BoltzmannMachine:
        """Uncoupled columns with the fields of the base; fields of unseen states stay."""
        d, fields = recipe.table.domain.n_columns, unary_fields(recipe.base)
        assert fields is not None  # the base has independent columns
        kind: dict[str, Any] = {"device": device, "dtype": recipe.plan.torch_dtype}
        energy = BoltzmannMachine(
            torch.zeros(d, d, **kind),
            fields.logits.to(**kind),
            edges=self.edges,
            domain=recipe.table.domain,
        )
        if self.unseen.any():
            unseen = torch.as_tensor(self.unseen, device=device)
            energy.bias.register_hook(lambda grad: grad.masked_fill(unseen, 0))
        return energy

    def initialise(self, recipe: BoltzmannRecipe, energy: BoltzmannMachine, rows: Rows) -> None:
        """By pseudo-likelihood for the rules with chains, which start near the optimum then."""
        if self.learning in CONVEX or not len(energy.weight):
            return
        if energy.domain.contains(rows.block(0, len(rows))).all():  # probabilities have none
            minimise(convex_objective("pseudo_likelihood", energy, self.l1, self.l2), rows, self.l1)
            energy.zero_grad()

    def log_ratios(self, recipe: BoltzmannRecipe) -> LogRatioOf:
        return functools.partial(pairwise_log_ratios, recipe.base, self.start)

    def set_to_base(self, recipe: BoltzmannRecipe, net: EnergyNet, rows: Rows) -> BoltzmannFamily:
        """No couplings, and the fields of the base."""
        base = self._energy(recipe, torch.device(net.device))
        copy_weights(weights_of(base), weights_of(net.module_.energy))
        return self

    def partition_input(
        self, recipe: BoltzmannRecipe, name: str, energy: Any, net: EnergyNet, reference: Tensor
    ) -> Any:
        if name == "base":
            return self.start.to(reference.device, reference.dtype)
        if name == "sampler":
            return self.model_sampler.kernel
        data = states_near(reference, energy.domain)
        return (
            annealing_starts(net, data) if self.learning == "pcd" else {"data": at_least_two(data)}
        )

    def proper_score(self, recipe: BoltzmannRecipe, rows: Rows, energy: Any) -> Tensor:
        return rows.map(lambda x: pseudo_log_likelihood(energy, x), energy.domain.n_columns)

    @property
    def model_sampler(self) -> Sampler:
        """Sampler of rows of the model."""
        return Gibbs() if self.sampler is None else self.sampler

    def check_trained(self, recipe: BoltzmannRecipe, net: EnergyNet, rows: Rows) -> None:
        """Warn of couplings that grow without limit."""
        coupling = net.module_.energy.coupling.detach().abs()
        if float(coupling.max()) > INFINITE:
            i, j = divmod(int(coupling.argmax()), len(coupling))
            names = " and ".join(str(recipe.table.column_at(k)) for k in (i, j))
            warn(
                f"The coupling of columns {names} grows without limit, because one (almost) "
                f"determines the other: it is {float(coupling.max()):.3g} after {len(net.history)} "
                "iterations.",
                TrainingWarning,
                ("Raise l2, or drop one of them.", "l2"),
                ("Drop one of them.",),
            )

    def without_effect(self, recipe: BoltzmannRecipe, asked: dict[str, Any]) -> dict[str, str]:
        found = {}
        if self.learning in CONVEX and "chains" in asked:
            found["chains"] = f'learning="{self.learning}" has no chains'
        if self.learning == "perturb_and_map" and "chains" in asked:
            found["chains"] = "every perturbation is a draw of its own"
        if recipe.plan.searches and "optimizer" in asked:
            found["optimizer"] = (
                "all rows are used at every step, by L-BFGS (a batch_size changes that)"
            )
        return found


BoltzmannRecipe: TypeAlias = Recipe[BoltzmannFamily]


# ------------------------------------------------------------------------------
# Pieces
# ------------------------------------------------------------------------------


def pairwise_log_ratios(
    base: Distribution,
    start: Distribution,
    energy: BoltzmannMachine,
    x: Tensor,
    generator: torch.Generator,
) -> LogRatios:
    """Log-likelihood ratios of rows to the base, with log Z by short annealing from two starts.

    Direction: that of :func:`~skebm.estimators.rbm.safety.rbm_log_ratios`.
    """
    starts = [one.to(x.device, x.dtype) for one in ((base,) if start is base else (start, base))]
    with torch.no_grad(), sampling(energy):
        ratio = -energy(x) - starts[-1].log_prob(x)
    return over_log_z(energy, ratio, generator, starts=starts)


def independent(rows: Rows, domain: Any) -> Distribution:
    """Independent columns, with a row of prior counts."""
    x, weight = rows.block(0, len(rows)).double(), rows.counts
    parts, blocks = parts_of(domain), x.split([p.n_columns for p in parts_of(domain)], 1)
    # Prior rows of the fields of columns that have one state only.
    pseudo_count = 1.0
    found: list[Distribution] = [
        IndependentCategorical.fit(block, part.groups, weight, pseudo_count=pseudo_count)
        if isinstance(part, Categorical)
        else IndependentBernoulli.fit(block, weight, pseudo_count=pseudo_count)
        for part, block in zip(parts, blocks, strict=True)
    ]
    return found[0] if len(found) == 1 else Columns(found)


def nearest_start(rows: Rows, base: Distribution) -> Distribution:
    """A tree of bits, which is nearer to the rows than independent columns; else the base."""
    x = rows.block(0, len(rows))
    if not isinstance(base, IndependentBernoulli) or not base.domain.contains(x).all():
        return base
    return ChowLiuTree.fit(x.double(), rows.counts)


def unseen_states(rows: Rows) -> np.ndarray:
    """Entries (D,) that are all zeros or all ones."""
    x = rows.block(0, len(rows))
    found: np.ndarray = (((x == 0) | (x == 1)) & (x == x[:1])).all(0).cpu().numpy()
    return found


def warn_of_unseen(unseen: np.ndarray, name_of: Callable[[int], Any]) -> None:
    """Warn of columns with states that never occur."""
    names = list(dict.fromkeys(str(name_of(int(i))) for i in np.flatnonzero(unseen)))
    if names:
        shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        warn(
            f"Some states of the columns {shown} never occur. Their fields would be infinite: they "
            "are those of one more row in which all states are equally likely, without couplings.",
            DataWarning,
            ("Drop columns that cannot vary.",),
        )


def entry_edges(edges: np.ndarray | None, table: Table) -> np.ndarray:
    """Pairs of entries that may be coupled, (D, D), from pairs of columns of X."""
    domain = table.domain
    others: np.ndarray = ~same_column(domain).numpy()
    if edges is None:
        return others
    order, widths = columns_in_order(table), columns_of(domain)
    found = edges[order][:, order].repeat(widths, 0).repeat(widths, 1)
    return found & others


def check_same_edges(before: np.ndarray, now: np.ndarray) -> None:
    """`ValueError` where training cannot go on, because other pairs may be coupled."""
    if not np.array_equal(before, now):
        raise ValueError(
            "edges differ from those of the previous fit, whose couplings warm_start and "
            "partial_fit go on from: clone the estimator to start anew."
        )


def columns_in_order(table: Table) -> list[int]:
    """Numbers of the columns of X in the order of the rows of the energy."""
    return [j for block in table.blocks for j in block.columns]


def cost_of_sum(domain: Any) -> float:
    """Terms of a sum over all states."""
    return float(domain.n_states * domain.n_columns)


def choose_rule(asked: str, domain: Any) -> tuple[str, str]:
    """The learning rule, and why it is."""
    cost = cost_of_sum(domain)
    if asked == "exact" and cost > MOST_COST:
        raise ValueError(
            f'learning="exact" would sum {cost:.2g} terms at every step, more than '
            f'{MOST_COST:.0e}. Use learning="pseudo_likelihood", or "pcd".'
        )
    if asked == "perturb_and_map" and not isinstance(domain, Binary):
        raise ValueError(
            'learning="perturb_and_map" is for bits and spins: use "pseudo_likelihood" for '
            "categories."
        )
    if asked != "auto":
        return asked, "as given"
    if cost <= CHEAP_COST:
        return "exact", f"a sum over all states has {cost:.2g} terms, at most {CHEAP_COST:.0e}"
    return "pseudo_likelihood", f"a sum over all states has more than {CHEAP_COST:.0e} terms"
