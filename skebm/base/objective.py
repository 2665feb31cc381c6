"""Objectives: the loss that training minimises, and the signs that training has diverged."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from skebm.base.domains import Domain
from skebm.base.energy import Energy
from skebm.base.processes import draws_from


class Batch(NamedTuple):
    """A mini-batch: rows, targets, weights (mean 1 over the fit) and row numbers."""

    x: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    row_index: Tensor | None = None


class Loss(NamedTuple):
    """What an objective returns for a batch.

    Attributes
    ----------
    value : Tensor, scalar, or None
        The loss; None from an objective that writes gradients without computing it.
    state : object
        State for the next batch.
    logs : dict of str to Tensor
        Further scalars for the history.
    """

    value: Tensor | None
    state: Any
    logs: dict[str, Tensor] = {}


class Reparametrisation(NamedTuple):
    """A linear change of all parameters, joined in one vector, for better conditioning.

    Attributes
    ----------
    inside, outside : callable
        From the parameters to the coordinates, and back.
    gradient : callable
        From a gradient in the parameters to that in the coordinates.
    curvature : Tensor
        Approximate second derivatives in the coordinates.
    """

    inside: Callable[[Tensor], Tensor]
    outside: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    curvature: Tensor


class FusedSteps(Protocol):
    """Steps that hold the parameters and the state themselves during an epoch."""

    def begin(self, state: Any, rate: float, n_batches: int) -> None:
        """Take the energy's parameters and the state, for `n_batches` steps at a learning rate."""

    def __call__(self, batch: Batch) -> None:
        """Update parameters and state by a batch."""

    def load(self) -> None:
        """Take the energy's parameters again, which may have been changed since `finish`."""

    def finish(self) -> Any:
        """Write the parameters into the energy and return the state; more steps may follow."""


def fill_missing(parameters: list[nn.Parameter]) -> None:
    """Zero gradients where the loss does not depend on a parameter, such as a last bias."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)


class Objective(nn.Module, abc.ABC):
    """A loss that holds the energy; the module that skorch trains.

    Chains and running offsets are kept in the state that is passed through, never in buffers, which
    distributed training would overwrite. An objective whose update is not the gradient of a scalar,
    or whose gradient is cheaper without autograd, overrides :meth:`gradients`.
    """

    energy: Energy
    # Ridge penalty on the weights of the energy, in objectives that have one.
    l2: float = 0.0
    # Measures what monitored rows gain over the base that the trained model will have, where that
    # is another one than the base in training; set by estimators.
    clean_monitor: Any = None
    # Whether layers draw random numbers in training, as dropout does; set by the engine.
    draws = False

    def start(self, batch: Batch, generator: torch.Generator) -> Any:
        """State before the first batch, made from representative rows; None if there is none."""
        return None

    def work(self, n_rows: int) -> float:
        """Approximate multiplications of a step on `n_rows` rows; sets the number of threads."""
        return float(n_rows * sum(p.numel() for p in self.parameters()))

    @abc.abstractmethod
    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch, differentiable with respect to the parameters."""

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write ``.grad`` of every trained parameter, by default with autograd.

        It is called under ``no_grad``.
        """
        trained = self.clear_gradients()
        with torch.enable_grad():
            loss = self(batch, state, generator)
            loss.value.backward()
        fill_missing(trained)
        return loss

    def gradients_with_random_layers(
        self, batch: Batch, state: Any, generator: torch.Generator
    ) -> Loss:
        """:meth:`gradients`, with layers that draw from the generator too."""
        if not self.draws:
            return self.gradients(batch, state, generator)
        with draws_from(generator):
            return self.gradients(batch, state, generator)

    def coordinates(self, batch: Batch) -> Reparametrisation | None:
        """Coordinates of the parameters for optimizers that search along lines.

        They are those of the energy if it has any. None, the default, stands for the parameters
        themselves.
        """
        make = getattr(self.energy, "coordinates", None)
        return None if make is None else make(batch.x, batch.weight, self.l2)

    def fused_steps(
        self, state: Any, n_batches: int, generator: torch.Generator
    ) -> FusedSteps | None:
        """Steps of plain gradient descent on all parameters, where this objective has faster ones.

        They must do what :meth:`gradients` and a step of the optimizer do. None, by default, if
        there are none; `n_batches` is the number of batches in an epoch.
        """
        return None

    def clear_gradients(self) -> list[nn.Parameter]:
        """Trainable parameters, their gradients set to None."""
        trained = [p for p in self.parameters() if p.requires_grad]
        for p in trained:
            p.grad = None
        return trained

    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Diagnostics of training on a fixed monitoring batch; has no side effect.

        ``"loss"`` is recorded in the history; ``"energy_gap"`` is mean E(data) - mean E(model).
        """
        loss = self(batch, state, generator)
        return {"loss": loss.value.detach(), **loss.logs}

    def energies(self, x: Tensor) -> Tensor:
        """Energies of training rows; the size of a step is judged by how much they change."""
        return self.energy(x)

    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Mean loss of held-out rows: lower is better, comparable between epochs.

        The engine seeds the generator identically at every call; otherwise early stopping would
        react to noise.
        """
        return self(batch, state, generator).value.detach()

    def snapshot(self, state: Any) -> Any:
        """A state that later batches do not change: a copy of what they write in place, if any."""
        return state

    def state_after_roll_back(
        self, state: Any, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> Any:
        """State to continue from after a roll-back to `state`.

        `tries` counts the consecutive roll-backs of this epoch.
        """
        return state

    def state_with_draws(self, state: Any, draws: Tensor, generator: torch.Generator) -> Any:
        """State whose chains continue from draws of the model; by default unchanged."""
        return state

    @property
    def why_undivided(self) -> str | None:
        """Why the rows of a batch cannot be divided among processes; None where they can."""
        return None

    def over_ranks(
        self, state: Any, rows: Callable[[Tensor], Tensor], mean: Callable[[Any], Any]
    ) -> Any:
        """State of one process made from that of all processes, or the reverse.

        `rows` is applied to values with a row for each chain, and `mean` to values that all chains
        share and each process adapts. By default the state has neither.
        """
        return state

    def advice(self, state: Any) -> str:
        """Settings to recommend after roll-backs, as text appended to the learning rate."""
        return ""

    def pack(self, state: Any) -> dict[str, Tensor | None]:
        """Convert the state to named tensors for storage; overridden with :meth:`start`."""
        return {}

    def unpack(self, packed: dict[str, Tensor | None]) -> Any:
        """The inverse of :meth:`pack`."""
        return None

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Why training has diverged, judged by the monitor's values on `n_rows` rows; or None.

        `before` are the values before the epoch, so that a poor start is not taken for divergence.
        """
        bad = [name for name, value in logs.items() if not math.isfinite(value)]
        return f"{', '.join(bad)} not finite" if bad else None


def penalty_of(energy: Any, l1: float, l2: float) -> Tensor | float:
    """l1 times the absolute weights of an energy plus l2 / 2 times their squares."""
    if not (l1 or l2):
        return 0.0
    return l1 * energy.weight.abs().sum() + l2 / 2 * energy.weight.square().sum()


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (n,) values under non-negative weights; 0 where all weights are 0."""
    if weight is None:
        return values.mean()
    return (weight @ values) / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)


def weighted_variance(values: Tensor, weight: Tensor | None) -> Tensor:
    """Variance of (n,) values under non-negative weights."""
    return weighted_mean((values - weighted_mean(values, weight)).square(), weight)


def effective_count(values: Tensor, weight: Tensor | None) -> Tensor | int:
    """Kish's effective sample size, (sum w)^2 / sum w^2; at least 1."""
    if weight is None:
        return len(values)
    squares = weight.square().sum().clamp_min(torch.finfo(values.dtype).tiny)
    return (weight.sum().square() / squares).clamp_min(1)


# ------------------------------------------------------------------------------
# Divergence of maximum likelihood: one rule for all objectives of the likelihood
# ------------------------------------------------------------------------------

# No finite data set supports log-odds of this size.
LARGEST_WEIGHT = 100.0
# Mean log-likelihood ratio to the base, in nats, below which a model has diverged.
LEAST_GAIN = -0.5
# Largest change of the rows' relative energies in a single step, in nats; on finite domains, as a
# fraction of the logarithm of the number of states, but at least one nat. On digits and MNIST the
# likelihoods of restricted Boltzmann machines fell below those of independent columns from 3 % on.
LARGEST_CHANGE, LARGEST_SHARE = 3.0, 0.03
# With fewer rows, the means are too noisy to judge by.
LEAST_ROWS = 10


def why_diverged(
    logs: dict[str, float],
    before: dict[str, float] | None,
    n_rows: int,
    domain: Domain,
    rejects: bool = False,
) -> str | None:
    """Reason why training has diverged according to the monitored values, or None.

    Each of the following suffices:

    1. The sampler accepts less than 1 % of its steps (only if it `rejects` steps that are too
       long).
    2. The largest weight between binary units exceeds 100, which no finite data set supports.
    3. The mean energies of data and chains differ by more than ten times one plus the standard
       deviation of the rows' energies: on real rows, in either direction. On finite domains, where
       the gap also has to exceed the logarithm of the number of states, it counts if the energies
       of the chains are above those of the data, because the chains are then not samples from the
       model. An energy gap (or a negative log-likelihood) that exceeds that logarithm, and its own
       value `before`, by more than a nat counts, too: because samples have log p <= 0, the data are
       then less likely than under the uniform distribution.
    4. The data are less likely than under the base, by half a nat per row.
    5. A single step has changed the relative energies of the rows by more than chains can follow:
       by 3 nats, on finite domains by 3 % of the logarithm of the number of states.

    Criteria 3 to 5 require at least ten rows. A value that was as bad `before` the epoch does not
    count: a poor start is not divergence.
    """
    before = before or {}
    # Acceptance rate below which the sampler no longer moves.
    least_acceptance = 0.01
    if rejects and logs.get("acceptance", 1.0) < least_acceptance:
        return f"the sampler accepts {logs['acceptance']:.2g} of its steps"
    finite = math.isfinite(domain.log_n_states)
    weight = logs.get("largest_weight", 0.0)
    if finite and weight > max(LARGEST_WEIGHT, before.get("largest_weight", 0.0)):
        return f"largest weight {weight:.3g}"
    if n_rows < LEAST_ROWS:
        return None
    reason = _energy_gap(logs, before, domain.log_n_states if finite else None)
    if reason is not None:
        return reason
    gain = logs.get("gain_over_base", 0.0)
    if gain < min(before.get("gain_over_base", 0.0), 0.0) + LEAST_GAIN:
        return f"the rows are {-gain:.3g} nats less likely than under the base, on average"
    change = logs.get("energy_change", 0.0)
    limit = max(1.0, LARGEST_SHARE * domain.log_n_states) if finite else LARGEST_CHANGE
    if change > limit:
        return f"one step changed the rows' energies by {change:.3g} nats, more than {limit:.3g}"
    return None


def _energy_gap(
    logs: dict[str, float], before: dict[str, float], log_n_states: float | None
) -> str | None:
    """Reason if the energies of data and chains differ too much, or None; see criterion 3."""
    name = "energy_gap" if "energy_gap" in logs else "loss"
    gap, old = logs[name], before.get(name)
    # Energy gap between data and chains, in units of one plus the standard deviation of the rows'
    # energies.
    largest_gap = 10.0
    limit = largest_gap * (1 + logs.get("energy_spread", math.inf))
    if log_n_states is None:
        lost = abs(gap) > max(limit, abs(old or 0.0))
    else:
        lost = -gap > max(limit, log_n_states, -(old or 0.0))
        if gap > max(log_n_states, -math.inf if old is None else old) + 1:
            return f"{name.replace('_', ' ')} {gap:.3g} nats, worse than a uniform distribution"
    return f"energy gap {gap:.3g} nats" if lost else None
