"""Settings of a Boltzmann machine that are resolved before training: rule, edges and penalties."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from skebm._validation import warn
from skebm.base import Batch, Binary, Categorical, DataWarning, Objective, Sampler, TrainingWarning
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
from skebm.estimators.base import JointBlueprint, at_least_two, chain_rows
from skebm.estimators.tables.table import Table
from skebm.objectives import (
    ContrastiveDivergence,
    EnumeratedLikelihood,
    Penalty,
    pseudo_log_likelihood,
)
from skebm.objectives.local import LOCAL_RULES
from skebm.samplers import ChainPolicy, Gibbs, Persistent, PerturbedMAP
from skebm.training.owlqn import OWLQN
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Terms of an enumeration (states times entries of a row) up to which exact learning is the default,
# and up to which it is allowed.
CHEAP_COST, MOST_COST = 2e7, 2e9
CONVEX = ("exact", *LOCAL_RULES)
# Iterations of the quasi-Newton method at most, and those without a gain of nats that end it.
MOST_ITERATIONS, PATIENCE, TOLERANCE = 1000, 3, 1e-7
# Coupling of two bits beyond which no table can tell it from an infinite one.
INFINITE = 20.0


@dataclass(frozen=True)
class BoltzmannBlueprint(JointBlueprint):
    """Resolved settings of a Boltzmann machine.

    Attributes
    ----------
    table : Table
    plan : TrainingPlan
    learning, reason : str
        The rule, and why it is the rule.
    edges : ndarray of bool of shape (D, D)
        Entries of rows that may be coupled.
    unseen : ndarray of bool of shape (D,)
        Entries whose state never occurs, or always: their fields are not trained.
    base : Distribution
        Independent columns, where training starts.
    start : Distribution
        Where annealing starts: a tree of bits, or the base.
    l1, l2 : float
        Penalties of couplings of bits.
    sampler : Sampler or None
    chains : ChainPolicy or None
    """

    table: Table
    plan: TrainingPlan
    learning: str
    reason: str
    edges: np.ndarray
    unseen: np.ndarray
    base: Distribution
    start: Distribution
    l1: float
    l2: float
    sampler: Sampler | None
    chains: ChainPolicy | None

    @property
    def searches(self) -> bool:
        """Whether all rows are used at every step, by a quasi-Newton method."""
        return self.plan.optimizer == "owlqn"

    def objective(self, generator: torch.Generator) -> Objective:
        energy = self._energy(generator.device)
        penalties = {"l1": self.l1, "l2": self.l2}
        if self.learning == "exact":
            return EnumeratedLikelihood(energy, **penalties)
        if self.learning in LOCAL_RULES:
            return LOCAL_RULES[self.learning](energy, **penalties)
        chains = clone(self.chains)
        if isinstance(chains, Persistent):
            chains.set_params(initial=self.start.to(generator.device, self.plan.torch_dtype))
        penalty = Penalty(l2=self.l2) if self.l2 else None
        return ContrastiveDivergence(energy, self.training_sampler, chains, penalty=penalty)

    def _energy(self, device: torch.device) -> BoltzmannMachine:
        """Uncoupled columns with the fields of the base; fields of unseen states stay."""
        d, fields = self.table.domain.n_columns, unary_fields(self.base)
        assert fields is not None  # the base has independent columns
        kind: dict[str, Any] = {"device": device, "dtype": self.plan.torch_dtype}
        energy = BoltzmannMachine(
            torch.zeros(d, d, **kind),
            fields.logits.to(**kind),
            edges=self.edges,
            domain=self.table.domain,
        )
        if self.unseen.any():
            unseen = torch.as_tensor(self.unseen, device=device)
            energy.bias.register_hook(lambda grad: grad.masked_fill(unseen, 0))
        return energy

    def initialise(self, energy: BoltzmannMachine, rows: Rows) -> None:
        """By pseudo-likelihood for the rules with chains, which start near the optimum then."""
        if self.learning in CONVEX or not len(energy.weight):
            return
        if not energy.domain.contains(rows.block(0, len(rows))).all():
            return  # probabilities have no pseudo-likelihood
        convex = self.with_rule("pseudo_likelihood")
        found = convex.fit_objective(rows, torch.Generator(rows.device).manual_seed(0))
        energy.load_state_dict(found.energy.state_dict())

    def with_rule(self, learning: str) -> BoltzmannBlueprint:
        """The same with another rule, by steps that use all rows."""
        return replace(self, learning=learning, plan=line_search_plan(self.plan), chains=None)

    def with_penalties(self, l1: float, l2: float) -> BoltzmannBlueprint:
        """The same with other penalties."""
        new = replace(self, l1=l1, l2=l2)
        return replace(new, plan=with_l1(self.plan, l1)) if self.searches else new

    def with_edges(self, edges: np.ndarray) -> BoltzmannBlueprint:
        """The same on a graph with other edges."""
        return replace(self, edges=edges)

    def fit_objective(
        self,
        rows: Rows,
        generator: torch.Generator,
        start: BoltzmannMachine | None = None,
        tol: float = TOLERANCE,
    ) -> Any:
        """An objective minimised on rows; from the weights of an energy with the same edges."""
        objective = self.objective(generator)
        if start is not None:
            objective.energy.load_state_dict(start.state_dict())
        rows = self.deduplicate(rows)
        batch = Batch(rows.block(0, len(rows)), None, rows.weight)
        minimise(objective, batch, self.l1, tol)
        return objective

    def deduplicate(self, rows: Rows) -> Rows:
        return rows.without_duplicates() if self.searches else rows

    def partition_input(self, name: str, energy: Any, net: EnergyNet, reference: Tensor) -> Any:
        if name == "base":
            return self.start.to(reference.device, reference.dtype)
        if name == "sampler":
            return self.model_sampler.kernel
        starts = {"data": at_least_two(self.states(reference))}
        chain = chain_rows(net)
        if chain is not None and self.learning == "pcd":
            starts["training chains"] = at_least_two(chain)
        return starts

    def states(self, x: Tensor) -> Tensor:
        """Rows whose probabilities of bits are rounded."""
        if not isinstance(self.table.domain, Binary):
            return x
        return (x > 0.5).to(x.dtype)

    def proper_score(self, rows: Rows, energy: Any) -> Tensor:
        return rows.map(lambda x: pseudo_log_likelihood(energy, x), energy.domain.n_columns)

    @property
    def model_sampler(self) -> Sampler:
        """Sampler of rows of the model."""
        return Gibbs() if self.sampler is None else self.sampler

    @property
    def training_sampler(self) -> Sampler:
        """Sampler of the negative phase."""
        return PerturbedMAP() if self.learning == "perturb_and_map" else self.model_sampler

    def check_trained(self, net: EnergyNet, rows: Rows) -> None:
        """Warn of couplings that grow without limit."""
        coupling = net.module_.energy.coupling.detach().abs()
        if float(coupling.max()) > INFINITE:
            i, j = divmod(int(coupling.argmax()), len(coupling))
            names = " and ".join(str(self.table.column_at(k)) for k in (i, j))
            warn(
                f"The coupling of columns {names} grows without limit, because one (almost) "
                f"determines the other: it is {float(coupling.max()):.3g} after {len(net.history)} "
                "iterations.",
                TrainingWarning,
                ("Raise l2, or drop one of them.", "l2"),
                ("Drop one of them.",),
            )

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        found = super().without_effect(asked)
        if self.learning in CONVEX and "chains" in asked:
            found["chains"] = f'learning="{self.learning}" has no chains'
        if self.learning == "perturb_and_map" and "chains" in asked:
            found["chains"] = "every perturbation is a draw of its own"
        if self.searches and "optimizer" in asked:
            found["optimizer"] = (
                "all rows are used at every step, by L-BFGS (a batch_size changes that)"
            )
        return found


# ------------------------------------------------------------------------------
# Pieces
# ------------------------------------------------------------------------------


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


def minimise(objective: Any, batch: Batch, l1: float, tol: float) -> None:
    """Minimise a convex objective of a batch, to where it no longer falls by `tol`."""
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


def with_l1(plan: TrainingPlan, l1: float) -> TrainingPlan:
    """The plan whose optimizer has an l1 penalty on the couplings."""
    groups = {"param_groups": [("energy.weight", {"l1": l1})]} if l1 else {}
    return replace(plan, optimizer_settings=groups)


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


# ------------------------------------------------------------------------------
# The ridge penalty
# ------------------------------------------------------------------------------

# Precisions of the normal prior of a coupling of bits, among which held-out rows choose; the
# first leaves columns independent. Rows for each coupling of a column from which the choice makes
# no difference, and the prior precision is then 1.
PRECISIONS, MANY_ROWS = (1e5, 300.0, 30.0, 10.0, 3.0, 0.3), 50
# Gain of nats at which the models that are compared have converged; terms of a sum over all states
# up to which it is quick.
ROUGH, QUICK_COST = 1e-4, 3e4


def choose_ridge(
    blueprint: BoltzmannBlueprint, rows: Rows, generator: torch.Generator
) -> BoltzmannBlueprint:
    """The blueprint with the ridge penalty under which held-out rows are most likely.

    Precisions are compared from the largest to the smallest, each model starting at the one before.
    """
    n = float(rows.counts.sum())
    if n >= MANY_ROWS * rows.n_columns:
        return blueprint.with_penalties(blueprint.l1, 1.0 / n)
    # Parts of the rows, one of which is held out; rows below which each is in turn, as it says
    # little.
    n_parts, few_rows = 3, 1000
    if len(rows) < n_parts:
        return blueprint.with_penalties(blueprint.l1, PRECISIONS[1] / n)
    convex, factor = _quick(blueprint)
    order = torch.randperm(len(rows), generator=generator, device=rows.device)
    parts = order.chunk(n_parts)
    total = np.zeros(len(PRECISIONS))
    for part in parts if len(rows) < few_rows else parts[:1]:
        train, held_out = without(rows, part), rows.subset(part)
        n_train = float(train.counts.sum())
        last: BoltzmannMachine | None = None
        for i, precision in enumerate(PRECISIONS):
            model = convex.with_penalties(0.0, factor * precision / n_train)
            found = model.fit_objective(train, generator, last, ROUGH)
            last = found.energy
            total[i] += loss_of(found, held_out)
    return blueprint.with_penalties(blueprint.l1, PRECISIONS[int(total.argmin())] / n)


def _quick(blueprint: BoltzmannBlueprint) -> tuple[BoltzmannBlueprint, float]:
    """A convex rule that takes little time, and the penalty relative to that of the rule itself.

    The pseudo-likelihood has every coupling in two conditionals, and so twice the information.
    """
    if blueprint.learning in LOCAL_RULES:
        return blueprint.with_rule(blueprint.learning), 1.0
    if cost_of_sum(blueprint.table.domain) <= QUICK_COST and blueprint.learning == "exact":
        return blueprint.with_rule("exact"), 1.0
    return blueprint.with_rule("pseudo_likelihood"), 2.0


def without(rows: Rows, part: Tensor) -> Rows:
    """All rows but some."""
    keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    keep[part] = False
    return rows.subset(keep.nonzero().ravel())


def loss_of(objective: Any, rows: Rows) -> float:
    """Sum of the loss over rows, without penalties."""
    batch = Batch(rows.block(0, len(rows)), None, rows.counts.to(rows.dtype))
    mean = objective.validation_loss(batch, None, torch.Generator())
    return float(mean) * float(rows.counts.sum())
