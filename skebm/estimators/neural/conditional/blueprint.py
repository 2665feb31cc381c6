"""Settings of a conditional density that are resolved before training, its base and its guard."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from skebm.base import sampling
from skebm.base.objective import Objective, weighted_mean
from skebm.distributions import GaussianMixture, RegressionMixture
from skebm.energies import ConditionalEnergy, Spec, build_network
from skebm.energies.conditional import target_whitening
from skebm.estimators.base import GuardedBlueprint
from skebm.estimators.neural.blueprint import check_initial_values
from skebm.estimators.neural.conditional.normalisers import (
    MOST_NODES,
    N_PILOTS,
    by_quadrature,
    pilot_step,
)
from skebm.estimators.tables.bases import noise_level
from skebm.estimators.tables.table import Table
from skebm.objectives import (
    ClampedDivergence,
    DenoisingScoreMatching,
    GivenConditions,
    RankedConditional,
)
from skebm.partition.given import (
    LangevinSteps,
    annealed_log_z,
    log_mean_of_chains,
    uniforms_of,
)
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows
from skebm.training.selection import LogRatioOf, LogRatios, gain_by_more_rows, n_held_out

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

OBJECTIVES = ("nce", "score_matching", "contrastive_divergence")
BASES = ("linear", "residuals", "mixture")
# Numbers of components of a mixture; rows for each, at least; how many numbers in a row may be
# worse; and columns, at most.
COMPONENTS, ROWS_PER_COMPONENT, MOST_WORSE, MOST_COLUMNS = (1, 2, 3, 5, 8, 16, 32, 64), 20, 2, 100
# Rows from which on a fifth chooses the base, and rows to which mixtures are fitted, at most.
FEWEST_TO_CHOOSE, MOST_ROWS = 50, 20_000
# Rows that guard the training, at most.
N_HELD_OUT = 200
# Chains of a row, and temperatures, by which held-out rows assess a model.
N_CHAINS, N_BETAS = 4, 20


@dataclass(frozen=True)
class ConditionalBlueprint(GuardedBlueprint):
    """Resolved settings of a conditional density.

    Attributes
    ----------
    table : Table
    plan : TrainingPlan
    rule : {"nce", "score_matching", "contrastive_divergence"}
    network_config : object
        A copy of the parameter `network`.
    base : RegressionMixture
        Of rows (c, u) of the energy.
    base_name : {"linear", "residuals", "mixture"}
    sigma : ndarray of shape (dx,) or None
        Noise level of score matching, in units of the rows.
    n_draws, n_steps, seed : int
        `seed` decides on the rows that are held out.
    step_size : float
        Of Langevin steps of the trained model.
    """

    table: Table
    plan: TrainingPlan
    rule: str
    network_config: Any
    base: RegressionMixture
    base_name: str
    sigma: Any
    n_draws: int
    n_steps: int
    seed: int
    step_size: float = 0.1
    needs_validation_rows: ClassVar[bool] = True
    of_what: ClassVar[str] = "p(x given c)"

    def objective(self, generator: torch.Generator) -> Objective:
        dtype, n_conditions = self.plan.torch_dtype, self.table.n_conditions
        sigma = None if self.sigma is None else torch.as_tensor(self.sigma)
        base = self.base if sigma is None else self.base.convolved(sigma)
        base = base.to(generator.device, dtype)
        whitening = target_whitening(base, n_conditions)
        spec = Spec(self.table.domain.row_shape, generator, dtype, whitening=whitening)
        energy = ConditionalEnergy(build_network(self.network_config, spec), base, n_conditions)
        if sigma is not None:
            level = sigma.to(generator.device, dtype)
            return GivenConditions(energy, functools.partial(DenoisingScoreMatching, sigma=level))
        if self.rule == "nce":
            return RankedConditional(energy, self.n_draws)
        return ClampedDivergence(energy, self.n_steps, self.n_draws)

    def initialise(self, energy: Any, rows: Rows) -> None:
        check_initial_values(energy, rows)

    def energy(self, trained: ConditionalEnergy) -> ConditionalEnergy:
        """The energy of clean rows: with the base of these where training added noise."""
        if self.sigma is None:
            return trained
        like = next(trained.parameters())
        return trained.with_base(self.base.to(like.device, like.dtype))

    def scoring_energy(self, energy: ConditionalEnergy) -> ConditionalEnergy:
        """A copy in double precision, whose rounding is below what a row is given in."""
        return energy.in_double()

    def hold_out(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        """The rows that neither the base nor the network sees, see :func:`guarding_rows`."""
        return self._rows_apart(rows) or (rows, None)

    @property
    def log_ratios(self) -> LogRatioOf:
        return functools.partial(conditional_log_ratios, self.energy)

    def after_training(self, net: EnergyNet, rows: Rows) -> ConditionalBlueprint:
        """With a step size of the model's chains; the base where rows gain too little."""
        found = super().after_training(net, rows)
        energy = found.energy(net.module_.energy.eval())
        generator = torch.Generator(rows.device).manual_seed(net.seed_)
        index = torch.linspace(0, len(rows) - 1, min(len(rows), N_PILOTS), device=rows.device)
        c, x = energy.split(rows.take(index.long()))
        with torch.no_grad(), sampling(energy):
            step = pilot_step(energy.given(c), x, generator)
        return replace(found, step_size=step)

    def base_alone(self, net: EnergyNet, rows: Rows) -> ConditionalBlueprint:
        """f = 0, on a base of all rows."""
        base, _ = fit_conditional_base(self.base_name, rows, self.table, self.seed)
        found = replace(self, base=base)
        net.replace(found.objective(torch.Generator(rows.device).manual_seed(net.seed_)))
        net.module_.energy.network_share.zero_()
        return found

    def gain_of_all_rows(self, rows: Rows) -> float:
        apart = self._rows_apart(rows)
        if apart is None:
            return 0.0
        return gain_by_more_rows(self._mean_of_base, *apart)

    def _rows_apart(self, rows: Rows) -> tuple[Rows, Rows] | None:
        """Rows that the base and the network see, and those that guard; None without any."""
        out = guarding_rows(rows, self.seed)
        if not out.any():
            return None
        return rows.subset((~out).nonzero().ravel()), rows.subset(out.nonzero().ravel())

    def _mean_of_base(self, rows: Rows) -> float:
        """Mean log-likelihood of rows given their conditions, under the base."""
        x, n_given = rows.block(0, len(rows)), self.table.n_conditions
        with torch.no_grad():
            found = self.base.to(rows.device, rows.dtype).given(x[:, :n_given])
            value = found.log_prob(x[:, n_given:]).double()
        return float(rows.counts / rows.counts.sum() @ value)

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        found = super().without_effect(asked)
        used = {
            "sigma": ("score_matching",),
            "n_draws": ("nce", "contrastive_divergence"),
            "n_steps": ("contrastive_divergence",),
        }
        for name, rules in used.items():
            if name in asked and self.rule not in rules:
                found[name] = f'objective is "{self.rule}"'
        return found


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


def guarding_rows(rows: Rows, seed: int) -> Tensor:
    """Which rows are held out, (n,) bool: a tenth, 200 at most, more of few rows."""
    n = n_held_out(len(rows), N_HELD_OUT)
    generator = torch.Generator(rows.device).manual_seed(seed)
    return torch.randperm(len(rows), generator=generator, device=rows.device) < n


def fit_conditional_base(
    asked: str, rows: Rows, table: Table, seed: int
) -> tuple[RegressionMixture, str]:
    """The base of rows (c, u) and its name.

    The number of components, and with ``"auto"`` the kind, are those under which a left-out fifth
    of the rows is most likely; the base is then fitted to all rows. ``"auto"`` excludes mixtures of
    more than 100 columns, and with fewer than 50 rows there is one component.
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
    best = (-math.inf, names[0], 1)
    for name in names:
        own, worse = -math.inf, 0
        for k in COMPONENTS[: 1 if name == "linear" else None]:
            if worse == MOST_WORSE or (k > 1 and k * ROWS_PER_COMPONENT > len(x)):
                break
            found = _fit_named(name, k, x[n_out:], w[n_out:], n_given, seed)
            given = found.given(x[:n_out, :n_given])
            value = float(weighted_mean(given.log_prob(x[:n_out, n_given:]), w[:n_out]))
            worse, own = (worse + 1, own) if value <= own else (0, value)
            best = max(best, (value, name, k), key=lambda one: one[0])
    _, name, k = best
    return _fit_named(name, k, x, w, n_given, seed), name


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
    return RegressionMixture(GaussianMixture.fit(part, weight, k, generator=generator), dx)


def noise_of(asked: Any, rows: Rows, table: Table) -> Any:
    """Noise level of score matching, (dx,), in units of the rows of the energy."""
    x = rows.block(0, len(rows))[:, table.n_conditions :]
    own = Rows(x, dtype=rows.dtype, device=rows.device)
    return noise_level(asked, own).cpu().numpy()
