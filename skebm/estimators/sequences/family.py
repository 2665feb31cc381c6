"""The family of temporal RBMs: their energy, held-out frames, log Z, and what "auto" means."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skebm.base import Domain, Real
from skebm.base.domains import parts_of
from skebm.base.torchtools import check_memory
from skebm.distributions import Columns, Distribution, Gaussian
from skebm.distributions.independent import blocks_of
from skebm.energies import MixedRBM, TemporalEnergy
from skebm.energies.rbm.temporal import RowwiseRBM, exact_log_z
from skebm.estimators.base import fraction_of_early_stopping
from skebm.estimators.recipe import Family, Recipe
from skebm.estimators.tables.table import Table
from skebm.objectives.temporal import TemporalDivergence
from skebm.partition.given import (
    ConditionalAIS,
    LogZGiven,
    frames_log_prob,
    numbers_of_temperatures,
    rowwise_log_z,
)
from skebm.samplers import FromData, Persistent
from skebm.training.plan import TrainingPlan, asked_steps, plan_of
from skebm.training.rows import Rows
from skebm.training.segments import Segments
from skebm.training.selection import LogRatioOf, LogRatios

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Standard deviation of the initial weights.
SCALE = 0.01
# Learning rate, that of real columns, steps and frames of a step by default. Real columns start at
# their autoregression, and jumps in a few frames make larger steps spoil it.
RATE, REAL_RATE, N_STEPS, FRAMES_OF_STEP = 0.01, 0.0005, 10_000, 100
# Passes at most, by default.
MOST_PASSES = 500
# Penalties of the autoregression that real columns start at, for each frame; its folds; and frames
# that are taken at once.
PENALTIES = torch.logspace(-6, 2, 17)
N_FOLDS, AT_ONCE = 5, 4096
LEAST_VARIANCE = 1e-6
# Temperatures of annealing at first.
FEWEST_TEMPERATURES = 100
# Frames that recurrent units are trained on at once, and those before from which r starts.
RECURRENT_TARGETS, RECURRENT_CONTEXT = 16, 16
# Frames that assess a model, at most, and those from which on some are held out.
N_HELD_OUT, FEWEST_FRAMES = 500, 200
# States of the hidden layer, times entries of a frame, up to which log Z is a sum.
EXACT_COST = 1e5


@dataclass(frozen=True)
class TemporalFamily(Family):
    """Temporal RBMs.

    Attributes
    ----------
    n_hidden, order : int
    recurrent : bool
    rule : {"cd", "pcd", "exact"}
    n_steps : int
        Gibbs steps of a chain.
    n_windows : int
        Windows that are trained on.
    """

    n_hidden: int
    order: int
    recurrent: bool
    rule: str
    n_steps: int
    n_windows: int

    def objective(self, recipe: Any, generator: torch.Generator) -> TemporalDivergence:
        energy, n_targets = self.new_energy(recipe, generator), recipe.table.layout.n_targets
        return TemporalDivergence(
            energy, self.rule, self.n_steps, n_targets, self.n_windows, frames_log_prob
        )

    def new_energy(self, recipe: Any, generator: torch.Generator) -> TemporalEnergy:
        """Untrained energy of small random weights."""
        dtype = recipe.plan.torch_dtype
        base = recipe.base.to(generator.device, dtype)
        rbm = MixedRBM(base, self.n_hidden, generator=generator, scale=SCALE, dtype=dtype)
        energy = TemporalEnergy(rbm, self.order, self.recurrent)
        with torch.no_grad():
            for parameter in (energy.lag_hidden, energy.state_hidden):
                if parameter is not None:
                    parameter.normal_(0.0, SCALE, generator=generator)
        return energy

    @torch.no_grad()
    def initialise(self, recipe: Any, energy: TemporalEnergy, rows: Rows) -> None:
        """Start real columns at their linear autoregression, with the variances that it leaves."""
        assert isinstance(rows, Segments)
        real = energy.rbm.real_columns
        if not len(real):
            return
        weight, bias, variance = autoregression(rows, self.order, real)
        energy.rbm.log_precision.copy_(-variance.log())
        # Hidden units of small random weights and biases of 0 are on half of the time.
        half = torch.full_like(energy.rbm.hidden_bias, 0.5)[None]
        at_base = energy.rbm.visible(half).mean[0]
        # Biases that move means by the regression, whatever the correlations of the base.
        moved = energy.mean_shift(torch.eye(len(real), dtype=torch.float64).to(weight))
        both = torch.cat([weight, (bias - at_base[real])[:, None]], 1)
        found = torch.linalg.solve(moved.t().double(), both.double()).to(weight)
        energy.lag_visible[real], energy.rbm.visible_bias[real] = found[:, :-1], found[:, -1]

    def hold_out(
        self, recipe: Any, rows: Rows, generator: torch.Generator
    ) -> tuple[Rows, Rows | None]:
        """Hold out a tenth of the sequences, or the last tenth of few ones."""
        assert isinstance(rows, Segments)
        if not recipe.n_guards:
            return rows, None
        train, held_out = rows.split(len(rows) // 10, generator)
        n = max(1, recipe.n_guards // rows.n_targets)
        pick = torch.randperm(len(held_out), generator=generator, device=rows.device)[:n]
        return train, held_out.subset(pick)

    def log_ratios(self, recipe: Any) -> LogRatioOf:
        return functools.partial(frame_log_ratios, recipe.base, recipe.table.layout.n_targets)

    def set_to_base(self, recipe: Any, net: EnergyNet, rows: Rows) -> TemporalFamily:
        """The base of single frames."""
        with torch.no_grad():
            for parameter in net.module_.energy.parameters():
                parameter.zero_()
        return self

    def without_effect(self, recipe: Any, asked: dict[str, Any]) -> dict[str, str]:
        without = self.rule == "exact" and "chains" in asked
        return {"chains": "learning is exact"} if without else {}


def autoregression(rows: Segments, order: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ridge regression of some columns on the frames before, with the penalty that rows choose.

    One penalty for all columns is chosen by cross-validation over sequences, or over stretches of
    frames if there are few sequences. Columns that the regression predicts worse than their mean
    get weights of 0.

    Returns
    -------
    tuple
        Weights (k, K (d + 1)), intercepts (k,), and mean squared errors of sequences that are left
        out, relative to the variances of the columns, (k,).
    """
    moments = [_sums_of_products(rows, order, columns, fold) for fold in folds(rows)]
    total = torch.stack(moments).sum(0)
    n, k = total[0, 0], len(columns)
    errors = torch.zeros(len(PENALTIES), k, dtype=torch.float64, device=total.device)
    for own in moments if len(moments) > 1 else []:
        for i, weight in enumerate(_ridges(total - own, k)):
            errors[i] += (weight * (own @ weight)).sum(0) / n
    variance = (total.diagonal()[-k:] - total[0, -k:].square() / n) / n
    relative = (errors / variance.clamp(min=LEAST_VARIANCE)).clamp(min=LEAST_VARIANCE)
    best = int(relative.log().sum(1).argmin())
    weight = -_ridges(total, k)[best][1:-k]
    weight[:, (relative[best] > 1) | (variance < LEAST_VARIANCE) | (len(moments) == 1)] = 0.0
    bias = (total[0, -k:] - total[0, 1:-k] @ weight) / n
    left = relative[best].clamp(max=1.0)
    # Of a constant column nothing is explained.
    left[(variance < LEAST_VARIANCE) | (len(moments) == 1)] = 1.0
    return weight.t().to(rows.x), bias.to(rows.x), left.to(rows.x)


def folds(rows: Segments) -> list[Tensor]:
    """Numbers of the targets of each fold: whole sequences, or stretches of fewer than five."""
    targets = rows.targets().sort().values
    starts, _ = rows.sequences()
    number = torch.searchsorted(starts, rows.first[targets])
    if len(number.unique()) < N_FOLDS:
        number = torch.arange(len(targets), device=targets.device)
    _, number = number.unique(return_inverse=True)
    fold = number * N_FOLDS // (int(number.max()) + 1)
    return [targets[fold == i] for i in fold.unique().tolist()]


def _sums_of_products(rows: Segments, order: int, columns: Tensor, targets: Tensor) -> Tensor:
    """Sums of products of 1, the frames before and the columns, (1 + K (d + 1) + k, same)."""
    width = rows.x.shape[1] + 1
    size = 1 + order * width + len(columns)
    found = torch.zeros(size, size, dtype=torch.float64, device=rows.device)
    for some in targets.split(AT_ONCE):
        frames = rows.ending_at(some, order + 1).double()
        before, now = frames[:, : order * width], frames[:, order * width :][:, columns]
        row = torch.cat([torch.ones_like(now[:, :1]), before, now], 1)
        found.addmm_(row.t(), row)
    return found


def _ridges(moments: Tensor, k: int) -> list[Tensor]:
    """Residuals as a function of 1, the frames before and the columns, of each penalty."""
    n, mean = moments[0, 0], moments[0, 1:] / moments[0, 0]
    products = moments[1:, 1:] - n * torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(products[:-k, :-k])
    values, cross = values.clamp(min=0), vectors.t() @ products[:-k, -k:]
    found = []
    for penalty in (PENALTIES * float(n)).tolist():
        weight = vectors @ (cross / (values + penalty)[:, None])
        bias = mean[-k:] - mean[:-k] @ weight
        found.append(torch.cat([-bias[None], -weight, torch.eye(k).to(weight)]))
    return found


def with_residual_correlations(base: Distribution, rows: Segments, order: int) -> Distribution:
    """A base whose real columns have the correlations that their autoregression leaves.

    Those of the frames themselves are the ones that the past explains. Means and variances stay.
    """
    found, first = [], 0
    for part in blocks_of(base):
        d = part.domain.n_columns
        columns = torch.arange(first, first + d, device=rows.x.device)
        first += d
        if isinstance(part, Gaussian) and part.scale_tril is not None:
            rest = Gaussian.fit(_residuals(rows, order, columns)).covariance
            scale = (part.covariance.diagonal() / rest.diagonal()).sqrt()
            part = Gaussian(part.mean, covariance=rest * scale[:, None] * scale)
        found.append(part)
    return Columns(found) if isinstance(base, Columns) else found[0]


def _residuals(rows: Segments, order: int, columns: Tensor) -> Tensor:
    """What the autoregression leaves of columns, (m, k)."""
    (weight, bias, _), found = autoregression(rows, order, columns), []
    for some in rows.targets().split(AT_ONCE):
        before = rows.ending_at(some, order + 1)[:, : weight.shape[1]]
        found.append(rows.x[some][:, columns] - before @ weight.t() - bias)
    return torch.cat(found)


def frame_log_ratios(
    base: Distribution,
    n_targets: int,
    energy: TemporalEnergy,
    x: Tensor,
    generator: torch.Generator,
) -> LogRatios:
    """Log-likelihood ratios of frames to the base, which knows nothing of their past."""
    with torch.no_grad():
        targets = energy.of_windows(x, n_targets)
        frames = targets.x
        value = frames_log_prob(energy, targets, generator)
        return LogRatios(value - base.to(frames.device, frames.dtype).log_prob(frames).double())


@torch.no_grad()
def frame_log_z(
    given: RowwiseRBM, settings: ConditionalAIS, generator: torch.Generator
) -> LogZGiven:
    """log Z of frames, exact where hidden states are few: a sum over these.

    Otherwise log Z is estimated by annealing, as `settings` say.
    """
    n_chains = settings.n_chains
    if given.hidden_domain.n_states * given.domain.n_columns <= EXACT_COST:
        return LogZGiven.exactly(exact_log_z(given), given.biases.visible)
    n_numbers = float(n_chains) * (given.domain.n_columns + len(given.rbm.weight))
    check_memory(f"n_chains={n_chains}", n_numbers, given.biases.visible.dtype)

    def estimate(index: Tensor, n: int) -> LogZGiven:
        some = RowwiseRBM(given.rbm, given.biases.take(index))
        return rowwise_log_z(some, n_chains, n, generator)

    first, *more = numbers_of_temperatures(FEWEST_TEMPERATURES, settings.n_betas)
    found = rowwise_log_z(given, n_chains, first, generator)
    found.refine(estimate, more, settings.max_error)
    return found


# ------------------------------------------------------------------------------
# What "auto" means
# ------------------------------------------------------------------------------


def learning_rule(estimator: Any, n_hidden: int, n_columns: int) -> tuple[str, int]:
    """The learning rule and the Gibbs steps of a chain."""
    chains, asked = estimator.chains, estimator.learning
    if chains is not None and not isinstance(chains, FromData | Persistent):
        raise ValueError(f"chains={chains!r}: frames take FromData (CD) or Persistent (PCD).")
    own = "auto"
    if chains is not None:
        own = "cd" if isinstance(chains, FromData) else "pcd"
    if asked not in ("auto", "exact") and own not in ("auto", asked):
        raise ValueError(f"learning={asked!r} does not go with chains={chains!r}.")
    rule = own if asked == "auto" else asked
    if rule == "auto":
        rule = "cd"
    if rule == "exact" and 2.0**n_hidden * n_columns > EXACT_COST:
        raise ValueError(
            f'learning="exact" sums over 2^{n_hidden} hidden states for each frame: use "cd", or '
            "fewer hidden units."
        )
    n_steps = None if chains is None else chains.n_steps
    return rule, int(default_of(estimator, "chains").n_steps if n_steps is None else n_steps)


def default_of(estimator: Any, name: str) -> Any:
    """What None stands for in a parameter."""
    return type(estimator)._configs[name](None, set())


def rate_of(rows: Segments, order: int, domain: Domain) -> float:
    """Default learning rate; with real columns in units of what their past leaves unexplained.

    The unit is the geometric mean of the residual standard deviations, relative to those of the
    columns.
    """
    is_real = [torch.full((part.n_columns,), isinstance(part, Real)) for part in parts_of(domain)]
    real = torch.cat(is_real).nonzero().ravel().to(rows.x.device)
    if not len(real):
        return RATE
    _, _, variance = autoregression(rows, order, real)
    return REAL_RATE * math.exp(0.5 * float(variance.log().mean()))


def frames_recipe(
    estimator: Any,
    rows: Segments,
    table: Table,
    base: Distribution,
    name: str | None,
    *,
    recurrent: bool,
    streaming: bool,
) -> Recipe[TemporalFamily]:
    """The recipe of a fit, of which the base and its name are known."""
    rule, n_steps = learning_rule(estimator, estimator.n_components, table.domain.n_columns)
    guarded = not (fraction_of_early_stopping(estimator.early_stopping) or streaming)
    family = TemporalFamily(
        n_hidden=int(estimator.n_components),
        order=int(estimator.order),
        recurrent=recurrent,
        rule=rule,
        n_steps=n_steps,
        n_windows=len(rows),
    )
    return Recipe(
        table=table,
        plan=_temporal_plan(estimator, rows, table.domain, streaming),
        base=base,
        base_name=name,
        family=family,
        n_guards=N_HELD_OUT if guarded and len(rows.x) >= FEWEST_FRAMES else 0,
    )


def _temporal_plan(estimator: Any, rows: Segments, domain: Domain, streaming: bool) -> TrainingPlan:
    """Steps of a fit: AdamW."""
    (rate, size, n_iter), n_windows = asked_steps(estimator), len(rows)
    rate = rate_of(rows, estimator.order, domain) if rate == "auto" else float(rate)
    size = FRAMES_OF_STEP if size == "auto" else int(size)
    size = max(1, min(n_windows, size // rows.n_targets))
    if n_iter == "auto":
        n_iter = min(MOST_PASSES, max(10, math.ceil(N_STEPS / math.ceil(n_windows / size))))
    steps: dict[str, Any] = {"n_iter": n_iter, "batch_size": size, "learning_rate": rate}
    optimizer = estimator.optimizer or default_of(estimator, "optimizer")
    return plan_of(estimator, optimizer, streaming=streaming, **steps)
