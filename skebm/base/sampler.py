"""Samplers: how x ~ exp(-E) is drawn."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skebm.base.checks import check_end, check_held, check_start, schedule, whole_number
from skebm.base.domains import Domain
from skebm.base.energy import Clamp, Energy, check_energy
from skebm.base.state import ChainState, SamplingError, StepInfo
from skebm.base.trace import Recorder, Trace

# Warm-up of a run whose length is not known beforehand.
DEFAULT_WARMUP = 500


class Sampler(BaseEstimator, abc.ABC):
    r"""A Markov kernel that leaves exp(-beta E) invariant; holds configuration and nothing else.

    The energy, the chain and the generator are arguments. The E of a bipartite energy is that of
    both layers: at `beta` rows have the marginal of :math:`e^{-\beta E(x, h)}`.
    """

    domains: ClassVar[tuple[type[Domain], ...]]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    @property
    def exact(self) -> bool:
        """Whether steps leave exp(-beta E) invariant (once frozen); false for a known bias."""
        return True

    @property
    def kernel(self) -> Sampler:
        """A kernel that is exact from rows alone, whatever chains were before: for annealing."""
        return self

    @property
    def adapts(self) -> bool:
        """Whether steps change the settings of later steps until the chain is frozen."""
        return bool(getattr(self, "adapt", False))

    @property
    def accepts_relaxed_rows(self) -> bool:
        """Whether rows may start, and be clamped, between the states of a discrete domain."""
        return False

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
        """One transition of every chain. Call it in ``eval()`` mode, as :meth:`run` does.

        The state that is passed in is left as it is.
        """

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same chains under an energy that has changed since the state was made."""
        return self.init(energy, state.x)._replace(aux=state.aux)

    def freeze(self, state: ChainState) -> ChainState:
        """The same chains, whose further steps are all alike: warm-up is over.

        The ``aux`` of a sampler that adapts itself knows what it has found, ``aux.frozen()``.
        """
        return state._replace(aux=state.aux.frozen()) if self.adapts else state

    def energies(self, energy: Energy, state: ChainState) -> Tensor:
        """Energies of the chains (n,), for the record."""
        return energy(state.x) if state.energy is None else state.energy

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy, `ValueError` for settings this cannot sample with."""
        self._validate_params()
        check_energy(energy)
        if not isinstance(energy.domain, self.domains):
            names = " or ".join(domain.__name__ for domain in self.domains)
            raise TypeError(
                f"{type(self).__name__} samples {names} rows, but the energy is defined on "
                f"{energy.domain}. Use a sampler made for that domain."
            )

    def run(
        self,
        energy: Energy,
        x: Tensor | ChainState,
        n_steps: int,
        generator: torch.Generator,
        beta: float | Sequence[float] | Tensor = 1.0,
        clamp: Clamp | None = None,
        n_warmup: int | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Start chains at x, take `n_steps` steps, return the last state and the mean acceptance.

        The energy is in ``eval()`` mode meanwhile and gets its mode back; no ``.grad`` is set.

        Parameters
        ----------
        energy : Energy
        x : Tensor of shape (n, ...) or ChainState
            Rows to start from, or a state of this sampler and this energy to go on from.
        n_steps : int
            At least 1.
        generator : torch.Generator
            On the device of x.
        beta : float or sequence of `n_steps` floats, default=1.0
            Inverse temperature, or a schedule of it: simulated annealing (or melting).
        clamp : Clamp or None, default=None
            Coordinates held fixed.
        n_warmup : int or None, default=None
            Steps before the others, in which a sampler with ``adapt=True`` tunes itself. None is
            `n_steps` for such a sampler that starts from rows, and 0 for any other. A state that
            is frozen stays so.
        """
        self.check(energy)
        acceptance: float | Tensor = 0.0
        walk = self._walk(energy, x, n_steps, generator, beta, clamp, n_warmup)
        with sampling(energy), torch.no_grad():
            for last in walk:
                acceptance = acceptance + last[1].acceptance
        state = last[0]
        check_end(state)
        return state, StepInfo(acceptance / n_steps)

    def trace(
        self,
        energy: Energy,
        x: Tensor | ChainState,
        n_draws: int,
        generator: torch.Generator,
        *,
        thin: int = 1,
        beta: float = 1.0,
        clamp: Clamp | None = None,
        n_warmup: int | None = None,
    ) -> Trace:
        """Run the chains as :meth:`run` does and keep every `thin`-th of ``n_draws * thin`` steps.

        Returns
        -------
        Trace
            Rows, energies and acceptance of each kept step; its ``ess()`` and ``r_hat()``.
        """
        self.check(energy)
        whole_number("thin", thin, 1)
        whole_number("n_draws", n_draws, 1)
        kept = Recorder(self, thin)
        walk = self._walk(energy, x, n_draws * thin, generator, beta, clamp, n_warmup)
        with sampling(energy), torch.no_grad():
            for state, info in walk:
                kept.add(energy, state, info)
        check_end(state)
        return kept.trace()

    def run_until(
        self,
        energy: Energy,
        x: Tensor | ChainState,
        generator: torch.Generator,
        *,
        r_hat: float = 1.01,
        max_steps: int = 10_000,
        max_seconds: float | None = None,
        beta: float = 1.0,
        clamp: Clamp | None = None,
        n_warmup: int | None = None,
    ) -> Trace:
        """Run until the chains agree with each other, or a budget is spent.

        Converged means that the largest R-hat over all columns and the energy, of the second half
        of the steps, is at most `r_hat`. It is looked at after 100 steps and whenever they have
        grown by half. Chains that all miss the same mode agree as well: start them far apart.

        Parameters
        ----------
        energy, x, generator, clamp
            As for :meth:`run`; at least two chains.
        r_hat : float, default=1.01
            Above 1.
        max_steps : int, default=10000
            Budget in steps after the warm-up, 100 or more.
        max_seconds : float or None, default=None
            Budget in seconds, warm-up included; looked at together with R-hat.
        beta : float, default=1.0
        n_warmup : int or None, default=None
            None is 500 for a sampler with ``adapt=True`` that starts from rows, and 0 for others.

        Returns
        -------
        Trace
            The second half of the steps, and ``converged``. Draws are thinned to at most 1,000.
            Where the budget ended first, a `ConvergenceWarning` says what R-hat was reached.
        """
        started = time.monotonic()
        self.check(energy)
        whole_number("max_steps", max_steps, 100)
        if not r_hat > 1:
            raise ValueError(f"r_hat must be above 1, got {r_hat!r}.")
        if n_warmup is None and self.adapts and not isinstance(x, ChainState):
            n_warmup = DEFAULT_WARMUP
        n_chains = len(x.x if isinstance(x, ChainState) else x)
        if n_chains < 2:
            raise ValueError("R-hat compares chains: start at least two, from different rows.")
        kept, look = Recorder(self, 1, room=2000), 100
        walk = self._walk(energy, x, max_steps, generator, beta, clamp, n_warmup)
        with sampling(energy), torch.no_grad():
            for state, info in walk:
                kept.add(energy, state, info)
                if kept.n_steps not in (look, max_steps):
                    continue
                look = look * 3 // 2
                late = max_seconds is not None and time.monotonic() - started > max_seconds
                if kept.agree(r_hat, final=late or kept.n_steps == max_steps) or late:
                    break
        check_end(state)
        return kept.trace(late=True)

    def _walk(
        self,
        energy: Energy,
        x: Tensor | ChainState,
        n_steps: int,
        generator: torch.Generator,
        beta: float | Sequence[float] | Tensor,
        clamp: Clamp | None,
        n_warmup: int | None,
    ) -> Iterator[tuple[ChainState, StepInfo]]:
        """States and diagnostics after each step that follows the warm-up."""
        whole_number("n_steps", n_steps, 1)
        rows = x.x if isinstance(x, ChainState) else x
        check_start(energy, rows, generator, clamp, self.accepts_relaxed_rows)
        betas = schedule(beta, n_steps)
        if n_warmup is None:
            n_warmup = n_steps if self.adapts and not isinstance(x, ChainState) else 0
        whole_number("n_warmup", n_warmup, 0)
        if isinstance(x, ChainState):
            state = x
            check_held(state, clamp)
        else:
            state = self.init(energy, x if clamp is None else clamp.apply(x))
        for k in range(n_warmup):
            state, _ = self._guarded(energy, state, generator, betas[0], clamp, k - n_warmup)
        state = self.freeze(state)
        for k in range(n_steps):
            b = betas[k if len(betas) > 1 else 0]
            state, info = self._guarded(energy, state, generator, b, clamp, k)
            yield state, info

    def _guarded(
        self,
        energy: Energy,
        state: ChainState,
        generator: torch.Generator,
        beta: float,
        clamp: Clamp | None,
        number: int,
    ) -> tuple[ChainState, StepInfo]:
        """One step; where it fails, the error says at which and brings the state before it."""
        try:
            return self.step(energy, state, generator, beta, clamp)
        except SamplingError as error:
            error.state = state
            error.add_note(f"At step {number} of the run (warm-up is negative); see error.state.")
            raise


@contextlib.contextmanager
def sampling(energy: nn.Module) -> Iterator[None]:
    """Put a network in ``eval()`` mode and give every part of it its own mode back."""
    trained = [module for module in energy.modules() if module.training]
    # Flag by flag, as they are set back: energy.eval() would take as long as a tenth of a step.
    for module in trained:
        module.training = False
    try:
        yield
    finally:
        for module in trained:
            module.training = True
