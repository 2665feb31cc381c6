"""The family of conditional densities: their energy, their base and what guards their fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from skebm.base import sampling
from skebm.base.objective import Objective, weighted_mean
from skebm.distributions import GaussianMixture, RegressionMixture
from skebm.energies import ConditionalEnergy, Spec, build_network
from skebm.energies.conditional import target_whitening
from skebm.estimators.neural.conditional.normalisers import N_PILOTS, pilot_step
from skebm.estimators.neural.conditional.quadrature import MOST_NODES, by_quadrature
from skebm.estimators.neural.family import check_initial_values
from skebm.estimators.recipe import Family, Recipe
from skebm.estimators.tables.bases import noise_level
from skebm.estimators.tables.table import Table
from skebm.objectives import (
    ClampedDivergence,
    DenoisingScoreMatching,
    GivenConditions,
    RankedConditional,
)
from skebm.partition.given import LangevinSteps, annealed_log_z, log_mean_of_chains, uniforms_of
from skebm.training.rows import Rows
from skebm.training.selection import LogRatioOf, LogRatios, n_held_out

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

OBJECTIVES = ("nce", "score_matching", "contrastive_divergence")
BASES = ("linear", "residuals", "mixture")
# Numbers of components of a mixture; rows for each, at least; how many numbers in a row may be
# worse; and columns, at most.
COMPONENTS, ROWS_PER_COMPONENT, MOST_WORSE, MOST_COLUMNS = (1, 2, 3, 5, 8, 16, 32, 64), 20, 2, 100
# Rows from which on a fifth chooses the base, below which three fifths do, and rows to which
# mixtures are fitted, at most.
FEWEST_TO_CHOOSE, FEW_ROWS, MOST_ROWS = 50, 1000, 20_000
# Rows that guard the training, at most.
N_HELD_OUT = 200
# Chains of a row, and temperatures, by which held-out rows assess a model.
N_CHAINS, N_BETAS = 4, 20


@dataclass(frozen=True)
class ConditionalFamily(Family):
    """Densities of rows given conditions, whose base is a regression mixture.

    Attributes
    ----------
    rule : {"nce", "score_matching", "contrastive_divergence"}
    network_config : object
        A copy of the parameter `network`.
    sigma : ndarray of shape (dx,) or None
        Noise level of score matching, in units of the rows.
    n_draws, n_steps : int
    step_size : float
        Of Langevin steps of the trained model.
    """

    rule: str
    network_config: Any
    sigma: Any
    n_draws: int
    n_steps: int
    step_size: float = 0.1
    needs_validation_rows: ClassVar[bool] = True
    of_what: ClassVar[str] = "p(x given c)"

    def objective(self, recipe: ConditionalRecipe, generator: torch.Generator) -> Objective:
        dtype, n_conditions = recipe.plan.torch_dtype, recipe.table.n_conditions
        sigma = None if self.sigma is None else torch.as_tensor(self.sigma)
        base = recipe.base if sigma is None else recipe.base.convolved(sigma)
        base = base.to(generator.device, dtype)
        whitening = target_whitening(base, n_conditions)
        spec = Spec(recipe.table.domain.row_shape, generator, dtype, whitening=whitening)
        energy = ConditionalEnergy(build_network(self.network_config, spec), base, n_conditions)
        if sigma is not None:
            level = sigma.to(generator.device, dtype)
            return GivenConditions(energy, functools.partial(DenoisingScoreMatching, sigma=level))
        if self.rule == "nce":
            return RankedConditional(energy, self.n_draws)
        return ClampedDivergence(energy, self.n_steps, self.n_draws)

    def initialise(self, recipe: ConditionalRecipe, energy: Any, rows: Rows) -> None:
        check_initial_values(energy, rows)

    def energy(self, recipe: ConditionalRecipe, trained: ConditionalEnergy) -> ConditionalEnergy:
        """The energy of clean rows: with the base of these where training added noise."""
        if self.sigma is None:
            return trained
        like = next(trained.parameters())
        return trained.with_base(recipe.base.to(like.device, like.dtype))

    def scoring_energy(
        self, recipe: ConditionalRecipe, energy: ConditionalEnergy
    ) -> ConditionalEnergy:
        """A copy in double precision, whose rounding is below what a row is given in."""
        return energy.in_double()

    def rows_apart(self, recipe: ConditionalRecipe, rows: Rows) -> tuple[Rows, Rows]:
        """The rows that the base and the network see, and those that guard the training."""
        assert recipe.guard_seed is not None
        return rows_by_seed(rows, recipe.guard_seed)

    def mean_of_base(self, recipe: ConditionalRecipe, rows: Rows) -> float:
        """Mean log-likelihood of rows given their conditions, under the base."""
        x, n_given = rows.block(0, len(rows)), recipe.table.n_conditions
        with torch.no_grad():
            found = recipe.base.to(rows.device, rows.dtype).given(x[:, :n_given])
            value = found.log_prob(x[:, n_given:]).double()
        return float(rows.counts / rows.counts.sum() @ value)

    def log_ratios(self, recipe: ConditionalRecipe) -> LogRatioOf:
        return functools.partial(conditional_log_ratios, functools.partial(self.energy, recipe))

    def fit_base(self, recipe: ConditionalRecipe, rows: Rows) -> RegressionMixture:
        assert recipe.base_name is not None
        assert recipe.guard_seed is not None
        return fit_conditional_base(recipe.base_name, rows, recipe.table, recipe.guard_seed)[0]

    def set_to_base(
        self, recipe: ConditionalRecipe, net: EnergyNet, rows: Rows
    ) -> ConditionalFamily:
        """f = 0."""
        generator = torch.Generator(rows.device).manual_seed(net.seed_)
        net.replace(self.objective(recipe, generator))
        net.module_.energy.network_share.zero_()
        return self

    def finalise(self, recipe: ConditionalRecipe, net: EnergyNet, rows: Rows) -> ConditionalFamily:
        """With a step size of the model's chains."""
        energy = self.energy(recipe, net.module_.energy.eval())
        generator = torch.Generator(rows.device).manual_seed(net.seed_)
        index = torch.linspace(0, len(rows) - 1, min(len(rows), N_PILOTS), device=rows.device)
        c, x = energy.split(rows.take(index.long()))
        with torch.no_grad(), sampling(energy):
            step = pilot_step(energy.given(c), x, generator)
        return replace(self, step_size=step)

    def without_effect(self, recipe: ConditionalRecipe, asked: dict[str, Any]) -> dict[str, str]:
        used = {
            "sigma": ("score_matching",),
            "n_draws": ("nce", "contrastive_divergence"),
            "n_steps": ("contrastive_divergence",),
        }
        return {
            name: f'objective is "{self.rule}"'
            for name, rules in used.items()
            if name in asked and self.rule not in rules
        }


ConditionalRecipe: TypeAlias = Recipe[ConditionalFamily]


def conditional_log_ratios(
    clean: Callable[[ConditionalEnergy], ConditionalEnergy],
    trained: ConditionalEnergy,
    rows: Tensor,
    generator: torch.Generator,
) -> LogRatios:
    """log p(x | c) - log q(x | c) of rows (c, x) under the energy of clean rows."""
    energy = clean(trained)
    with torch.no_grad(), sampling(energy):
        return LogRatios(conditional_gain(energy, rows, generator))


def conditional_gain(energy: ConditionalEnergy, rows: Tensor, generator: torch.Generator) -> Tensor:
    """log p(x | c) - log q(x | c) of rows (c, x), (n,) float64.

    Direction: annealing forward is low for log Z on average, and backward from x high where this
    is a draw of the model; the larger one of the two counts. Of one column log Z is exact.
    """
    c, x = energy.split(rows)
    given = energy.given(c)
    f = given.parametric_energy(x).double()
    if x.shape[1] == min(MOST_NODES):
        found = by_quadrature(energy, c)
        if found.exact.all():
            return -f - found.value
    step = pilot_step(given, x, generator)
    size = (N_CHAINS * len(x), x.shape[1] + 1)
    steps = LangevinSteps(given, uniforms_of(generator, size, x), step)
    forward, _ = annealed_log_z(steps, N_BETAS)
    backward, _ = annealed_log_z(steps, N_BETAS, x.repeat(N_CHAINS, 1))
    low = log_mean_of_chains(forward, N_CHAINS)
    high = -log_mean_of_chains(-backward, N_CHAINS)
    return -f - torch.maximum(low, high)


# ------------------------------------------------------------------------------
# The base
# ------------------------------------------------------------------------------


def rows_by_seed(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """All rows but those that guard the training, and these: a tenth, 200 at most, more of few."""
    generator = torch.Generator(rows.device).manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator, device=rows.device)
    return rows.without((order < n_held_out(len(rows), N_HELD_OUT)).nonzero().ravel())


def fit_conditional_base(
    asked: str, rows: Rows, table: Table, seed: int
) -> tuple[RegressionMixture, str]:
    """The base of rows (c, u) and its name.

    The number of components, and with ``"auto"`` the kind, are those under which a left-out fifth
    of the rows is most likely, or three of less than 1,000 rows; the base is then fitted to all.
    ``"auto"`` excludes mixtures of more than 100 columns, and with fewer than 50 rows there is one
    component.
    """
    generator = torch.Generator(rows.device).manual_seed(seed)
    index = torch.randperm(len(rows), generator=generator, device=rows.device)[:MOST_ROWS]
    x, w, n_given = rows.take(index).double(), rows.counts[index], table.n_conditions
    names = [asked]
    if asked == "auto":
        names = [name for name in BASES if _columns_of(name, x, n_given) <= MOST_COLUMNS]
    n_out = len(x) // 5
    if len(x) < FEWEST_TO_CHOOSE:
        return _fit_named(names[0], 1, x, w, n_given, seed), names[0]
    # Several fifths of few rows: one chose three components or eight by chance.
    parts = [slice(k * n_out, (k + 1) * n_out) for k in range(3 if len(x) < FEW_ROWS else 1)]
    best = (-math.inf, names[0], 1)
    for name in names:
        own, worse = -math.inf, 0
        for k in COMPONENTS[: 1 if name == "linear" else None]:
            if worse == MOST_WORSE or (k > 1 and k * ROWS_PER_COMPONENT > len(x)):
                break
            value = sum(
                _log_likelihood_of_fold(name, k, x, w, n_given, seed, part) for part in parts
            )
            worse, own = (worse + 1, own) if value <= own else (0, value)
            best = max(best, (value, name, k), key=lambda one: one[0])
    _, name, k = best
    return _fit_named(name, k, x, w, n_given, seed), name


def _log_likelihood_of_fold(
    name: str, k: int, x: Tensor, weight: Tensor, n_given: int, seed: int, part: slice
) -> float:
    """Mean log-likelihood of some rows (c, u) under a base that is fitted to the others."""
    number = torch.arange(len(x), device=x.device)
    fitted = torch.cat([number[: part.start], number[part.stop :]])
    base = _fit_named(name, k, x[fitted], weight[fitted], n_given, seed)
    given = base.given(x[part, :n_given])
    return float(weighted_mean(given.log_prob(x[part, n_given:]), weight[part]))


def _columns_of(name: str, x: Tensor, n_given: int) -> int:
    """Columns of the mixture that is fitted for a base."""
    return {"linear": 1, "residuals": x.shape[1] - n_given, "mixture": x.shape[1]}[name]


def _fit_named(
    name: str, k: int, x: Tensor, weight: Tensor, n_given: int, seed: int
) -> RegressionMixture:
    """A base of k components of rows (c, u) of weights (n,), in float64."""
    dx = x.shape[1] - n_given
    if name == "linear":
        eye = torch.eye(dx, dtype=x.dtype, device=x.device)
        joint = GaussianMixture(eye.new_ones(1), eye.new_zeros(1, dx), eye[None])
        return RegressionMixture(joint, dx)
    part = x[:, n_given:] if name == "residuals" else x
    generator = torch.Generator(x.device).manual_seed(seed)
    joint = GaussianMixture.fit(part, weight, k, generator=generator)
    return RegressionMixture(joint.with_broad_component(part, weight), dx)


def noise_of(asked: Any, rows: Rows, table: Table) -> Any:
    """Noise level of score matching, (dx,), in units of the rows of the energy."""
    x = rows.block(0, len(rows))[:, table.n_conditions :]
    own = Rows(x, dtype=rows.dtype, device=rows.device)
    return noise_level(asked, own).cpu().numpy()
