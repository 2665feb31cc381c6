"""The family of gated RBMs: their energy, what guards its fits, and what "auto" means."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import Real, TrainingWarning, sampling
from skebm.distributions import Distribution, Gaussian, IndependentBernoulli
from skebm.energies import GatedEnergy
from skebm.energies.rbm.gated import MAX_LOG_PRECISION
from skebm.estimators.recipe import Family, Recipe
from skebm.estimators.tables.bases import column_means
from skebm.estimators.tables.table import Table
from skebm.objectives import ConditionalDivergence
from skebm.partition.given import gated_gains
from skebm.training import AdamW
from skebm.training.plan import TrainingPlan, asked_steps, plan_of
from skebm.training.rows import Rows
from skebm.training.selection import LogRatioOf, LogRatios, assess

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Steps of a fit by default, and epochs at most; and the rows of a step, a twentieth of all. Shifts
# of 20,000 random dot images are recognised in 57 % of new pairs after 2,000 steps of 100 pairs,
# and in all after 1,500 of 500: gradients of small batches are too noisy.
N_STEPS, MOST_EPOCHS, LARGEST_BATCH, LEAST_BATCH = 2000, 200, 500, 100
# Standard deviations of the filters' first responses. From 0.1 they stay near 0 for hundreds of
# steps, as the gradient of each factor is a product of the two others.
RESPONSE = 0.5
# Pairs that are held out, at most, and their chains. Twenty assessments of
# a default fit of large images then take a quarter of its time.
N_HELD_OUT, N_CHAINS, N_BETAS = 200, 2, 50
# Loss to the base, in nats, of which a fit warns.
NOTED_LOSS = 0.1


@dataclass(frozen=True)
class GatedFamily(Family):
    """Gated RBMs, whose base has independent columns of y.

    Attributes
    ----------
    n_factors, n_hidden, n_steps : int
    without_filters : bool
        Whether p(y given x) is the base: without training, and where held-out pairs, or else the
        training pairs, are less likely under the trained model.
    """

    n_factors: int
    n_hidden: int
    n_steps: int
    without_filters: bool = False
    needs_validation_rows: ClassVar[bool] = True
    of_what: ClassVar[str] = "p(y given x)"

    def objective(self, recipe: GatedRecipe, generator: torch.Generator) -> ConditionalDivergence:
        dtype = recipe.plan.torch_dtype
        energy = GatedEnergy(
            recipe.base.to(generator.device, dtype),
            recipe.table.given[0].domain,
            self.n_factors,
            self.n_hidden,
            generator=generator,
            scale=RESPONSE,
            dtype=dtype,
        )
        with torch.no_grad():
            energy.mapping.div_(math.sqrt(self.n_factors))
        assessed = functools.partial(assess, pair_log_ratios)
        return ConditionalDivergence(energy, self.n_steps, assessed)

    @torch.no_grad()
    def initialise(self, recipe: GatedRecipe, energy: GatedEnergy, rows: Rows) -> None:
        """Offsets at the means of the columns, and filter responses of the right size."""
        mean = column_means(rows)
        energy.given_offset.copy_(mean[: energy.n_given])
        energy.offset.copy_(mean[energy.n_given :])
        x, y = energy.split(rows.block(0, min(len(rows), 10_000)))
        for filters, block in ((energy.given_filters, x), (energy.filters, y)):
            width = float(block.double().var(0, correction=0).mean().sqrt())
            filters.div_(max(width, 0.01))

    def log_ratios(self, recipe: GatedRecipe) -> LogRatioOf:
        return pair_log_ratios

    # ---------------------------------------------------------------- the trained model

    def energy(self, recipe: GatedRecipe, trained: GatedEnergy) -> GatedEnergy:
        """The energy of p(y given x)."""
        return trained.without_filters() if self.without_filters else trained

    def scoring_energy(self, recipe: GatedRecipe, energy: GatedEnergy) -> GatedEnergy:
        """A copy in double precision, whose rounding is below what a row is given in."""
        return energy.in_double()

    def set_to_base(self, recipe: GatedRecipe, net: EnergyNet, rows: Rows) -> GatedFamily:
        """Independent columns of y, beside mapping units of the trained model."""
        return replace(self, without_filters=True)

    def check_trained(self, recipe: GatedRecipe, net: EnergyNet, rows: Rows) -> None:
        """Warn of variances of y given the mapping units that collapsed."""
        narrow = net.module_.energy.log_precision >= MAX_LOG_PRECISION
        places = narrow.nonzero().ravel().tolist()
        if places:
            warn(
                f"The variances of columns {places} of y given x and the mapping units became the "
                f"least that is allowed, {math.exp(-MAX_LOG_PRECISION):.0e} of those of the "
                "columns, which are constant or determined by x.",
                TrainingWarning,
                ("Drop them if they are constant.",),
            )


GatedRecipe: TypeAlias = Recipe[GatedFamily]


def pair_log_ratios(energy: GatedEnergy, x: Tensor, generator: torch.Generator) -> LogRatios:
    """log p(y given x) - log q(y) of pairs x, (n, dx + dy), by short annealing.

    Direction: see :func:`~skebm.partition.given.gated_gains`.
    """
    with sampling(energy):
        return LogRatios(gated_gains(energy, x, generator, N_CHAINS, N_BETAS))


def fit_target_base(rows: Rows, table: Table) -> Distribution:
    """Independent columns of y, on rows of the energy."""
    y = rows.block(0, len(rows))[:, table.n_conditions :]
    if isinstance(table.targets[0].domain, Real):
        return Gaussian.fit(y, rows.weight, diagonal=True)
    return IndependentBernoulli.fit(y, None if rows.weight is None else rows.counts)


def gated_plan(estimator: Any, rows: Rows, *, streaming: bool) -> TrainingPlan:
    """Steps of a fit, by AdamW."""
    rate, size, n_iter = asked_steps(estimator)
    if size == "auto":
        size = min(LARGEST_BATCH, max(LEAST_BATCH, len(rows) // 20), len(rows))
    if n_iter == "auto":
        n_iter = min(MOST_EPOCHS, math.ceil(N_STEPS / math.ceil(len(rows) / size)))
    steps: dict[str, Any] = {"n_iter": n_iter, "batch_size": size, "learning_rate": rate}
    return plan_of(estimator, estimator.optimizer or AdamW(), streaming=streaming, **steps)
