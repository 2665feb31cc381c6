"""Settings of a temporal RBM that are resolved before training."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skebm.base import Domain, Real
from skebm.base.domains import parts_of
from skebm.distributions import Distribution
from skebm.energies import MixedRBM, TemporalEnergy
from skebm.energies.rbm.temporal import RowLogZ, RowwiseRBM, annealed_log_z, exact_log_z
from skebm.estimators.base import Blueprint, stopping_of
from skebm.estimators.sequences.table import SequenceTable
from skebm.estimators.tables.regression import ridge
from skebm.objectives.temporal import TemporalDivergence, log_prob
from skebm.samplers import FromData, Persistent
from skebm.training import AdamW
from skebm.training.engine import Assess, Assessment, EnergyNet
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows
from skebm.training.segments import Segments

# Standard deviation of the initial weights.
SCALE = 0.01
# Learning rate, steps and frames of a step by default.
RATE, N_STEPS, FRAMES_OF_STEP = 0.005, 10_000, 100
# Passes at most, by default.
MOST_PASSES = 500
# Least mean squared error of the autoregression that real columns start at, relative to variances.
LEAST_VARIANCE = 1e-6
# Temperatures of annealing at first, and the standard error that is small enough.
FEWEST_TEMPERATURES, MAX_ERROR = 100, 0.1
# Frames that recurrent units are trained on at once, and those before from which r starts.
RECURRENT_TARGETS, RECURRENT_CONTEXT = 16, 16
# Sequences from which on whole ones are held out; else the last tenth of each.
MANY_SEQUENCES = 10
# Frames that assess a model, at most, and those from which on some are held out.
N_HELD_OUT, FEWEST_FRAMES = 500, 200
# States of the hidden layer, times entries of a frame, up to which log Z is a sum.
EXACT_COST = 1e5


@dataclass(frozen=True)
class TemporalBlueprint(Blueprint):
    """Resolved settings of a temporal RBM.

    Attributes
    ----------
    table : SequenceTable
    plan : TrainingPlan
    base : Distribution
        Of a frame.
    base_name : str or None
        None if the base was passed.
    n_hidden, order : int
    recurrent : bool
    rule : {"cd", "pcd", "exact"}
    n_steps : int
        Gibbs steps of a chain.
    n_windows : int
        Windows that are trained on.
    guarded : bool
        Whether held-out frames guard the training.
    """

    table: SequenceTable
    plan: TrainingPlan
    base: Distribution
    base_name: str | None
    n_hidden: int
    order: int
    recurrent: bool
    rule: str
    n_steps: int
    n_windows: int
    guarded: bool

    def objective(self, generator: torch.Generator) -> TemporalDivergence:
        dtype = self.plan.torch_dtype
        base = self.base.to(generator.device, dtype)
        rbm = MixedRBM(base, self.n_hidden, generator=generator, scale=SCALE, dtype=dtype)
        energy = TemporalEnergy(rbm, self.order, self.recurrent)
        with torch.no_grad():
            for parameter in (energy.lag_hidden, energy.state_hidden):
                if parameter is not None:
                    parameter.normal_(0.0, SCALE, generator=generator)
        return TemporalDivergence(
            energy, self.rule, self.n_steps, self.table.n_targets, self.n_windows
        )

    @torch.no_grad()
    def initialise(self, energy: TemporalEnergy, rows: Rows) -> None:
        """Start real columns at their linear autoregression, with the variances that it leaves."""
        assert isinstance(rows, Segments)
        real = energy.rbm.real_columns
        if not len(real):
            return
        weight, bias, variance = autoregression(rows, self.order, real)
        energy.lag_visible[real] = weight
        at_base = energy.rbm.visible(torch.zeros_like(energy.rbm.hidden_bias)[None]).mean[0]
        energy.rbm.visible_bias[real] = bias - at_base[real]
        energy.rbm.log_precision.copy_(-variance.log())

    def hold_out(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        """Hold out a tenth of the sequences, or the last tenth of few ones."""
        assert isinstance(rows, Segments)
        if not self.guarded:
            return rows, None
        train, held_out = held_out_segments(rows, generator)
        n = max(1, N_HELD_OUT // rows.n_targets)
        pick = torch.randperm(len(held_out), generator=generator, device=rows.device)[:n]
        return train, held_out.subset(pick)

    def assessment(self) -> Assess:
        return functools.partial(assess_frames, self.base, self.table.n_targets)

    def partition_input(self, name: str, energy: Any, net: EnergyNet, reference: Tensor) -> Any:
        raise NotImplementedError("Each frame has a log Z of its own.")

    def proper_score(self, rows: Rows, energy: Any) -> Tensor:
        raise NotImplementedError("log p of frames is estimated frame by frame.")

    def finalised(self, net: EnergyNet, rows: Rows) -> TemporalBlueprint:
        """Go back to the base where held-out frames never were more likely than by it."""
        best = net.guard_.best
        if best is not None and best.gain < 0:
            with torch.no_grad():
                for parameter in net.module_.energy.parameters():
                    parameter.zero_()
        return self

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        found = super().without_effect(asked)
        if self.rule == "exact" and "chains" in asked:
            found["chains"] = "learning is exact"
        return found


def held_out_segments(rows: Segments, generator: torch.Generator) -> tuple[Segments, Segments]:
    """Windows that are trained on, and those of a tenth of the frames: whole sequences if many."""
    starts, ends = rows.sequences()
    first = rows.first[rows.ends]
    if len(starts) >= MANY_SEQUENCES:
        n = max(1, len(starts) // 10)
        order = torch.randperm(len(starts), generator=generator, device=starts.device)
        out = torch.isin(first, starts[order[:n]])
    else:
        length = ends[torch.searchsorted(starts, first)] + 1 - first
        out = rows.ends >= first + 0.9 * length
    if out.all() or not out.any():
        out = torch.zeros_like(out)
        out[-1] = True
    return rows.subset((~out).nonzero().ravel()), rows.subset(out.nonzero().ravel())


def autoregression(rows: Segments, order: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ridge regression of some columns on the frames before, with the penalty that rows choose.

    By generalised cross-validation: see :func:`~skebm.estimators.tables.regression.ridge`.

    Returns
    -------
    tuple
        Weights (k, K (d + 1)), intercepts (k,), and mean squared errors of rows that are left out,
        relative to the variances of the columns, (k,).
    """
    width = rows.x.shape[1] + 1
    frames = rows.ending_at(rows.targets(), order + 1)
    Z, Y = frames[:, : order * width].double(), frames[:, order * width :][:, columns].double()
    found = ridge(Z, Y)
    variance = Y.var(0, correction=0)
    relative = (found.error / variance.clamp(min=LEAST_VARIANCE)).clamp(LEAST_VARIANCE, 1.0)
    parts = found.weight.t(), found.intercept, relative
    return tuple(part.to(rows.x) for part in parts)  # type: ignore[return-value]


def assess_frames(
    base: Distribution,
    n_targets: int,
    energy: TemporalEnergy,
    x: Tensor,
    weight: Tensor | None,
    generator: torch.Generator,
    n_completions: int = 1,
) -> Assessment:
    """Gain of held-out frames over the base, which knows nothing of their past."""
    with torch.no_grad():
        targets = energy.of_windows(x, n_targets)
        frames = targets.x
        value = log_prob(energy, targets, generator)
        gain = value - base.to(frames.device, frames.dtype).log_prob(frames).double()
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return Assessment(float(gain.mean()), error, x[:0])


@torch.no_grad()
def frame_log_z(
    given: RowwiseRBM, n_chains: int, n_temperatures: int, generator: torch.Generator
) -> tuple[RowLogZ, bool]:
    """log Z of frames, and whether it is exact: a sum over hidden states where these are few.

    Else by annealing, at four times as many temperatures again, up to `n_temperatures`, for frames
    whose standard error is above 0.1.
    """
    if given.hidden_domain.n_states * given.domain.n_columns <= EXACT_COST:
        value = exact_log_z(given).double()
        return RowLogZ(value, torch.zeros_like(value), given.biases.visible), True
    n_now = min(FEWEST_TEMPERATURES, n_temperatures)
    found = annealed_log_z(given, n_chains, n_now, generator)
    while n_now < n_temperatures:
        left = (found.std_error > MAX_ERROR).nonzero().ravel()
        if not len(left):
            break
        n_now = min(4 * n_now, n_temperatures)
        some = RowwiseRBM(given.rbm, given.biases.take(left))
        for part, new in zip(found, annealed_log_z(some, n_chains, n_now, generator), strict=True):
            part[left] = new
    return found, False


# ------------------------------------------------------------------------------
# What "auto" means
# ------------------------------------------------------------------------------


def rule_of(estimator: Any, n_hidden: int, n_columns: int) -> tuple[str, int]:
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
    return rule, 1 if n_steps is None else int(n_steps)


def rate_of(rows: Segments, order: int, domain: Domain) -> float:
    """Learning rate by default: of real columns in units of what their past leaves of them.

    The geometric mean of these standard deviations, relative to those of the columns.
    """
    is_real = [torch.full((part.n_columns,), isinstance(part, Real)) for part in parts_of(domain)]
    real = torch.cat(is_real).nonzero().ravel().to(rows.x.device)
    if not len(real):
        return RATE
    _, _, variance = autoregression(rows, order, real)
    return RATE * math.exp(0.5 * float(variance.log().mean()))


def temporal_plan(estimator: Any, rows: Segments, domain: Domain, streaming: bool) -> TrainingPlan:
    """Steps of a fit: AdamW."""
    net, n_windows = estimator.net_params or {}, len(rows)
    optimizer = AdamW() if estimator.optimizer is None else estimator.optimizer
    stopping = stopping_of(estimator.early_stopping)
    rate = net.get("lr", estimator.learning_rate)
    rate = rate_of(rows, estimator.order, domain) if rate == "auto" else float(rate)
    size = net.get("batch_size", estimator.batch_size)
    size = FRAMES_OF_STEP if size == "auto" else int(size)
    size = max(1, min(n_windows, size // rows.n_targets))
    n_iter = net.get("max_epochs", estimator.n_iter)
    if n_iter == "auto":
        n_iter = min(MOST_PASSES, max(10, math.ceil(N_STEPS / math.ceil(n_windows / size))))
    return TrainingPlan(
        n_iter=1 if streaming else int(n_iter),
        batch_size=size,
        learning_rate=rate,
        optimizer="adamw",
        optimizer_settings={"weight_decay": optimizer.weight_decay},
        schedule=optimizer.schedule,
        averaging=optimizer.averaging,
        max_restarts=optimizer.max_restarts,
        patience=stopping.n_iter_no_change,
        tol=stopping.tol,
        judged_by_training=stopping.validation_fraction is None and bool(estimator.early_stopping),
        verbose=int(estimator.verbose),
        dtype=estimator.dtype,
    )
