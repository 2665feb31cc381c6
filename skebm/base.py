r"""The vocabulary: what every part of skebm is, and what it may rely on.

One convention holds everywhere: :math:`p(x) = \exp(-E(x)) / Z`, so lower energy means more likely.
Configuration lives in constructor arguments, running state in named tuples that are passed through,
randomness in one :class:`torch.Generator` that is passed as an argument.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skebm.domains import Binary, Categorical, Domain, Mixed, Real

__all__ = [
    "Batch",
    "Binary",
    "BipartiteEnergy",
    "Categorical",
    "ChainState",
    "Clamp",
    "Conditional",
    "Domain",
    "Energy",
    "LogPartition",
    "Loss",
    "Mixed",
    "Objective",
    "PartitionEstimator",
    "Real",
    "Sampler",
    "StepInfo",
    "sampling",
]

# ---- Energy: what E(x) is


class Energy(nn.Module, abc.ABC):
    """A scalar function of a row, E(x), with the domain it is defined on.

    An energy neither samples nor computes losses. Row i of a batch has the same energy as row i
    alone.
    """

    domain: Domain

    @abc.abstractmethod
    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Energy of each row, (n,); `cond` carries a noise level, a label or a history."""

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        """Energy (n,) and its gradient with respect to x, (n, ...); works under ``no_grad``.

        Gradients of the parameters are left as they are.
        """
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            value = self(x, cond)
            (grad,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), grad

    def flip_difference(self, x: Tensor) -> Tensor:
        """E(x with entry i set to 1 - x_i) - E(x), (n, d), for flat binary rows."""
        if not isinstance(self.domain, Binary):
            raise ValueError(f"Only binary rows can be flipped; this energy lives on {self.domain}")
        here, columns = self(x), []
        for i in range(x.shape[1]):
            flipped = x.clone()
            flipped[:, i] = 1 - x[:, i]
            columns.append(self(flipped) - here)
        return torch.stack(columns, 1)


class Conditional(abc.ABC):
    """A factorised (or otherwise tractable) distribution of one layer given the other.

    Attributes
    ----------
    mean : Tensor of shape (n, d)
    """

    mean: Tensor

    @abc.abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw one row from each of the n distributions, (n, d)."""

    def given(self, clamp: Clamp) -> Conditional:
        """The same distribution where some coordinates are known.

        Factorised ones are what they were: what is known of a unit tells nothing of the others.
        """
        return self


class BipartiteEnergy(Energy):
    """An energy E(x) = -log sum_h exp(-E(x, h)) whose joint has two conditionally simple layers.

    ``forward`` is the free energy of a visible row. At inverse temperature `beta` the joint is
    proportional to exp(-beta E(x, h)).
    """

    hidden_domain: Domain
    base: Any = None  # where annealing and tempering start; None: the uniform distribution

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Free energy of each row, (n,)."""
        return self.free_energy(x)

    @abc.abstractmethod
    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""

    @abc.abstractmethod
    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x) at inverse temperature `beta`."""

    @abc.abstractmethod
    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h), proportional to exp(-beta E(x, h) + field' x)."""

    @abc.abstractmethod
    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, h) + field' x) over x that agree with `clamp`, (n,)."""

    @abc.abstractmethod
    def annealed(self, beta: float) -> BipartiteEnergy:
        """The distribution at `beta` on the way from the base, 0, to this energy, 1."""


# ---- Sampler: how x ~ exp(-E) is drawn


class Clamp(NamedTuple):
    """Coordinates held fixed while sampling: ``mask`` (n, ...) bool, ``value`` (n, ...)."""

    mask: Tensor
    value: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Write the fixed coordinates into x."""
        return torch.where(self.mask, self.value, x)


class ChainState(NamedTuple):
    """What the next step of a chain needs; a sampler leaves None what it does not need.

    Attributes
    ----------
    x : Tensor of shape (n, ...)
    energy : Tensor of shape (n,) or None
    grad : Tensor of shape (n, ...) or None
        Gradient of the energy with respect to x.
    aux : object or None
        Further state, such as a hidden layer already drawn at this x.
    """

    x: Tensor
    energy: Tensor | None = None
    grad: Tensor | None = None
    aux: Any = None


class StepInfo(NamedTuple):
    """Diagnostics of a step: the mean acceptance in [0, 1] (a Gibbs step accepts always)."""

    acceptance: float | Tensor


class Sampler(BaseEstimator, abc.ABC):
    """A Markov kernel that leaves exp(-beta E) invariant; holds configuration and nothing else.

    The energy, the chain and the generator are arguments.
    """

    domains: ClassVar[tuple[type[Domain], ...]]

    @property
    def kernel(self) -> Sampler:
        """A kernel that is exact from rows alone, whatever chains were before: for annealing."""
        return self

    @abc.abstractmethod
    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains that stand at the rows of x."""

    @abc.abstractmethod
    def step(
        self,
        energy: Energy,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """One transition of every chain. Call it in ``eval()`` mode, as :meth:`run` does."""

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` when this sampler cannot draw from the energy's domain."""
        if not isinstance(energy.domain, self.domains):
            names = " or ".join(domain.__name__ for domain in self.domains)
            raise TypeError(
                f"{type(self).__name__} samples {names} rows, but the energy is defined on "
                f"{energy.domain}. Use a sampler made for that domain."
            )

    def run(
        self,
        energy: Energy,
        x: Tensor,
        n_steps: int,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Start chains at x, take `n_steps` steps, return the last state and the mean acceptance.

        The energy is in ``eval()`` mode meanwhile and gets its mode back; no ``.grad`` is set.
        """
        self.check(energy)
        acceptance: float | Tensor = 0.0
        with sampling(energy), torch.no_grad():
            state = self.init(energy, x if clamp is None else clamp.apply(x))
            for _ in range(n_steps):
                state, info = self.step(energy, state, generator, beta, clamp)
                acceptance = acceptance + info.acceptance
        return state, StepInfo(acceptance / n_steps if n_steps else 1.0)


@contextlib.contextmanager
def sampling(energy: nn.Module) -> Iterator[None]:
    """Put a network in ``eval()`` mode and give every part of it its own mode back."""
    modes = [(module, module.training) for module in energy.modules()]
    energy.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


# ---- Objective: what is minimised


class Batch(NamedTuple):
    """What an objective sees: rows, targets, weights (mean 1 over the fit) and row numbers."""

    x: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    row_index: Tensor | None = None


class Loss(NamedTuple):
    """What an objective returns for a batch.

    Attributes
    ----------
    value : Tensor, scalar, or None
        What is minimised; None from an objective that writes gradients and has no use for it.
    state : object
        State for the next batch.
    logs : dict of str to Tensor
    """

    value: Tensor | None
    state: Any
    logs: dict[str, Tensor] = {}


class Objective(nn.Module, abc.ABC):
    """What is minimised; holds the energy (and so is the module that skorch trains).

    Chains and running offsets live in the state that is passed through, never in buffers, which
    distributed training would overwrite. An objective whose update is not the gradient of a scalar,
    or for which autograd is waste, overrides :meth:`gradients`.
    """

    energy: Energy

    def start(self, batch: Batch, generator: torch.Generator) -> Any:
        """State before the first batch, made from rows that stand for all; None without one."""
        return None

    def work(self, n_rows: int) -> float:
        """Multiplications of a step on a batch of `n_rows`, roughly: decides on threads."""
        return float(n_rows * sum(p.numel() for p in self.parameters()))

    @abc.abstractmethod
    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch, differentiable with respect to the parameters."""

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write ``.grad`` of every parameter, here by autograd. Called under ``no_grad``."""
        self.zero_grad()
        with torch.enable_grad():
            loss = self(batch, state, generator)
            loss.value.backward()
        return loss

    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Numbers that tell whether training works, at the end of an epoch; has no side effect.

        ``"loss"`` is what the history records; ``"energy_gap"`` = mean E(data) - mean E(model).
        """
        loss = self(batch, state, generator)
        return {"loss": loss.value.detach(), **loss.logs}

    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Mean loss of held-out rows: lower is better, comparable between epochs.

        The engine seeds the generator alike at every call, or early stopping would stop on noise.
        """
        return self(batch, state, generator).value.detach()

    def pack(self, state: Any) -> dict[str, Tensor | None]:
        """Take the state apart into named tensors, for storage; overridden with :meth:`start`."""
        return {}

    def unpack(self, packed: dict[str, Tensor | None]) -> Any:
        """Rebuild a state that :meth:`pack` took apart."""
        return None

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Why training has run away, judged by the monitor's numbers on `n_rows`, or None.

        `before` are the numbers before the epoch: to start badly is not to diverge.
        """
        bad = [name for name, value in logs.items() if not math.isfinite(value)]
        return f"{', '.join(bad)} not finite" if bad else None


# ---- PartitionEstimator: what log Z is


class LogPartition(NamedTuple):
    r"""An estimate of log Z with what is known about it.

    Attributes
    ----------
    value : float
        The estimate, in nats.
    std_error : float
        Standard error of `value`; 0 when exact.
    lower, upper : float
        Interval for log Z; ``nan`` where the method gives no bound on that side.
    bound_kind : {"exact", "probabilistic", "heuristic"}
        Whether the interval is the value itself, holds with stated probability, or is a guess.
    ess : float
        Effective sample size of the weights; ``inf`` when exact.
    parts : dict of str to (float, float)
        The estimates that the interval was made of, each with its standard error.
    """

    value: float
    std_error: float
    lower: float
    upper: float
    bound_kind: str
    ess: float
    parts: dict[str, tuple[float, float]] = {}

    @property
    def pessimistic(self) -> float:
        """Largest credible log Z: the upper end, or two standard errors where there is none."""
        return self.value + 2 * self.std_error if math.isnan(self.upper) else self.upper


class PartitionEstimator(BaseEstimator, abc.ABC):
    """A way to compute log Z of any energy it supports; holds configuration and nothing else."""

    @abc.abstractmethod
    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Estimate log Z, accumulating in float64; `x` are rows near the model, by origin."""
