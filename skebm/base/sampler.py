"""Samplers: Markov kernels that draw x ~ exp(-E)."""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator, clone
from torch import Tensor, nn

from skebm.base.domains import Binary, Domain
from skebm.base.domains import Real as RealRows
from skebm.base.energy import Clamp, Energy, check_energy
from skebm.base.state import ChainState, SamplingError, StepInfo
from skebm.base.torchtools import memory_errors
from skebm.base.trace import Recorder, Trace


def whole_number(name: str, value: Any, least: int) -> None:
    """Raise `ValueError` unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def whole_numbers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """Return one integer or several as a tuple; `ValueError` unless each is at least `least`."""
    several = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in several:
        whole_number(f"each of {name}", value, least)
    return tuple(int(value) for value in several)


def number_in(name: str, value: Any, interval: str) -> float:
    """A number as float; `ValueError` unless it lies in an interval, such as ``"(0, 1]"``."""
    low, high = map(float, interval[1:-1].split(","))
    number = float(value) if isinstance(value, Real) else math.nan
    at_end = (number == low and interval[0] == "[") or (number == high and interval[-1] == "]")
    if not (low < number < high or at_end):
        raise ValueError(f"{name} must be in {interval}, got {value!r}.")
    return number


def check_start(
    energy: Energy,
    x: Tensor,
    generator: torch.Generator,
    clamp: Clamp | None,
    relaxed: bool = False,
) -> None:
    """Raise `ValueError` where chains cannot start at rows x.

    `relaxed` allows values between 0 and 1 on a binary domain, such as means of bits.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"Chains start at rows of a tensor, not of {type(x).__name__}: torch.as_tensor(x)."
        )
    if not hasattr(generator, "device"):
        raise TypeError(
            f"Chains draw from a torch.Generator, not from {generator!r}: "
            "torch.Generator().manual_seed(0), on the device of the rows."
        )
    shape = energy.domain.row_shape
    if x.dim() == 0 or x.shape[1:] != shape or not x.is_floating_point():
        raise ValueError(
            f"Chains start at floating-point rows of shape (n, {', '.join(map(str, shape))}), got "
            f"{x.dtype} of shape {tuple(x.shape)}."
        )
    if generator.device.type != x.device.type:
        raise ValueError(
            f"The generator is on {generator.device}, the chains are on {x.device}: make it by "
            f"torch.Generator({str(x.device)!r})."
        )
    if clamp is not None and not isinstance(clamp, Clamp):
        raise TypeError(
            f"clamp must be a skebm.base.Clamp(mask, value), not {type(clamp).__name__}."
        )
    if clamp is not None:
        parts = ("mask", clamp.mask, torch.bool), ("value", clamp.value, x.dtype)
        for name, part, kind in parts:
            if part.shape != x.shape or part.dtype != kind:
                raise ValueError(
                    f"clamp.{name} must be {kind} of shape {tuple(x.shape)} like the chains, got "
                    f"{part.dtype} of shape {tuple(part.shape)}."
                )
        x = clamp.apply(x)
    if energy.domain == RealRows(shape) and math.isfinite(float(x.sum())):
        return  # one sum takes a tenth of the time of the check of every row below
    if relaxed and isinstance(energy.domain, Binary):
        inside = ((x >= 0) & (x <= 1)).flatten(1).all(1)
    else:
        inside = energy.domain.contains(x)
    if not inside.all():
        row = int((~inside).nonzero()[0])
        raise ValueError(
            f"Chains cannot start outside of {energy.domain}: row {row} is not in it "
            f"({int((~inside).sum())} of {len(x)} rows are not)."
        )


def check_clamped(state: ChainState, clamp: Clamp | None) -> None:
    """Raise `ValueError` where a state, or a replica in it, differs from the clamped values."""
    if clamp is None:
        return
    kept = state.aux if isinstance(state.aux, tuple) else ()
    replicas = [one for one in kept if isinstance(one, ChainState)]
    for one in (state, *replicas):
        if not torch.equal(clamp.apply(one.x), one.x):
            raise ValueError(
                "The state to continue from does not have the clamped values. Start from rows "
                "instead: pass state.x."
            )


def check_end(state: ChainState) -> None:
    """Raise `SamplingError` where chains on an accelerator ended in nan.

    On an accelerator single steps are not checked, because reading a result makes the host wait.
    """
    if state.x.is_cuda and not (
        state.x.isfinite().all() and (state.energy is None or not state.energy.isnan().any())
    ):
        raise SamplingError("The energy was nan at a step of this run.")


def schedule(beta: Any, n_steps: int) -> Sequence[float]:
    """Inverse temperature of each step."""
    single = isinstance(beta, Real) or (isinstance(beta, Tensor) and beta.dim() == 0)
    betas = [float(beta)] if single else [float(b) for b in beta]
    complete = single or len(betas) == n_steps
    if not complete or not all(0 <= b < math.inf for b in betas):
        raise ValueError(
            f"beta must be a finite number of at least 0, or one for each of the {n_steps} steps; "
            f"got {beta!r}."
        )
    return betas


class Sampler(BaseEstimator, abc.ABC):
    r"""A Markov kernel that leaves exp(-beta E) invariant; holds configuration and nothing else.

    The energy, the chain and the generator are arguments. For a bipartite energy `beta` tempers the
    joint energy of both layers: rows have the marginal of :math:`e^{-\beta E(x, h)}`.
    """

    domains: ClassVar[tuple[type[Domain], ...]]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    @property
    def exact(self) -> bool:
        """Whether steps leave exp(-beta E) invariant (once frozen); False for a known bias."""
        return True

    @property
    def kernel(self) -> Sampler:
        """A kernel for annealing: exact given the rows alone, whatever the chains did before."""
        return self

    @property
    def adapts(self) -> bool:
        """Whether steps adapt the settings of later steps until the chain is frozen."""
        return bool(getattr(self, "adapt", False))

    @property
    def accepts_relaxed_rows(self) -> bool:
        """Whether rows may start, and be clamped, at values between the states of a domain."""
        return False

    @abc.abstractmethod
    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x."""

    @abc.abstractmethod
    def step(
        self,
        energy: Energy,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """One transition of every chain; call it in ``eval()`` mode, as :meth:`run` does.

        The state that is passed in does not change.
        """

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same chains under an energy that has changed since the state was made."""
        return self.init(energy, state.x)._replace(aux=state.aux)

    def freeze(self, state: ChainState) -> ChainState:
        """The same chains with the adapted settings fixed, which ends the warm-up.

        The ``aux`` of an adaptive sampler has a method ``frozen()``.
        """
        return state._replace(aux=state.aux.frozen()) if self.adapts else state

    def with_step_size(self, step_size: float) -> Sampler:
        """A copy with another step size, of samplers that have one."""
        return clone(self).set_params(step_size=step_size)

    def energies(self, energy: Energy, state: ChainState) -> Tensor:
        """Energies of the chains, (n,), as a trace records them."""
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

    @memory_errors()
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

        The energy is in ``eval()`` mode during the run and in its own mode afterwards; no ``.grad``
        is set.

        Parameters
        ----------
        energy : Energy
        x : Tensor of shape (n, ...) or ChainState
            Rows to start from, or a state of this sampler and this energy to continue from.
        n_steps : int
            At least 1.
        generator : torch.Generator
            On the device of x.
        beta : float or sequence of `n_steps` floats, default=1.0
            Inverse temperature, or a schedule of it, as in simulated annealing.
        clamp : Clamp or None, default=None
            Coordinates held fixed.
        n_warmup : int or None, default=None
            Number of steps before the others, during which a sampler with ``adapt=True`` adapts.
            None is `n_steps` if such a sampler starts from rows, and 0 otherwise. A frozen state
            remains frozen.

        Returns
        -------
        state : ChainState
            State after the last step.
        info : StepInfo
            Mean acceptance of the `n_steps` steps, and mean rates of exchanges.
        """
        self.check(energy)
        acceptance: float | Tensor = 0.0
        rates: Any = 0.0
        walk = self._walk(energy, x, n_steps, generator, beta, clamp, n_warmup)
        with sampling(energy), torch.no_grad():
            for last in walk:
                acceptance = acceptance + last[1].acceptance
                rates = None if last[1].rates is None else rates + last[1].rates
        state = last[0]
        check_end(state)
        info = StepInfo(acceptance / n_steps, None if rates is None else rates / n_steps)
        self._check_run(info, n_steps * len(state.x))
        return state, info

    def _check_run(self, info: StepInfo, n_offers: int) -> None:
        """Warn of a run of `n_offers` steps of a row that went badly; by default of none."""
        return

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
            Rows, energies and acceptance of each kept step, with ``ess()`` and ``r_hat()``.
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
        """Run until R-hat says that the chains have converged, or a budget is spent.

        Converged means that the largest R-hat over all columns and the energy, of the second half
        of the steps, is at most `r_hat`. It is checked after 100 steps and then each time their
        number has grown by half. Chains that all miss the same mode agree too, so start them far
        apart.

        Parameters
        ----------
        energy, x, generator, clamp
            As for :meth:`run`; at least two chains.
        r_hat : float, default=1.01
            Above 1.
        max_steps : int, default=10000
            Budget in steps after the warm-up, 100 or more.
        max_seconds : float or None, default=None
            Budget in seconds, warm-up included; checked together with R-hat.
        beta : float, default=1.0
        n_warmup : int or None, default=None
            None is 500 for a sampler with ``adapt=True`` that starts from rows, and 0 for others.

        Returns
        -------
        Trace
            The second half of the steps, and ``converged``. Draws are thinned to at most 1,000.
            If the budget ends first, a `ConvergenceWarning` reports the R-hat reached.
        """
        started = time.monotonic()
        self.check(energy)
        whole_number("max_steps", max_steps, 100)
        if not r_hat > 1:
            raise ValueError(f"r_hat must be above 1, got {r_hat!r}.")
        # Warm-up steps of a run whose length is not known in advance.
        default_warmup = 500
        if n_warmup is None and self.adapts and not isinstance(x, ChainState):
            n_warmup = default_warmup
        n_chains = len(x.x if isinstance(x, ChainState) else x)
        if n_chains < 2:
            raise ValueError("R-hat compares chains: start at least two, from different rows.")
        kept, next_check = Recorder(self, 1, max_draws=2000), 100
        walk = self._walk(energy, x, max_steps, generator, beta, clamp, n_warmup)
        with sampling(energy), torch.no_grad():
            for state, info in walk:
                kept.add(energy, state, info)
                if kept.n_steps not in (next_check, max_steps):
                    continue
                next_check = next_check * 3 // 2
                late = max_seconds is not None and time.monotonic() - started > max_seconds
                final = late or kept.n_steps == max_steps
                if kept.check_convergence(r_hat, final=final) or late:
                    break
        check_end(state)
        return kept.trace(second_half=True)

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
        """States and diagnostics after each step that follows the warm-up.

        A step that fails raises with its number and the state before it.
        """
        whole_number("n_steps", n_steps, 1)
        rows = x.x if isinstance(x, ChainState) else x
        check_start(energy, rows, generator, clamp, self.accepts_relaxed_rows)
        betas = schedule(beta, n_steps)
        if n_warmup is None:
            n_warmup = n_steps if self.adapts and not isinstance(x, ChainState) else 0
        whole_number("n_warmup", n_warmup, 0)
        if isinstance(x, ChainState):
            state = x
            check_clamped(state, clamp)
        else:
            state = self.init(energy, x if clamp is None else clamp.apply(x))
        for k in range(n_warmup):
            state, _ = self._step_with_number(
                energy, state, generator, betas[0], clamp, k - n_warmup
            )
        state = self.freeze(state)
        for k in range(n_steps):
            b = betas[k if len(betas) > 1 else 0]
            state, info = self._step_with_number(energy, state, generator, b, clamp, k)
            yield state, info

    def _step_with_number(
        self,
        energy: Energy,
        state: ChainState,
        generator: torch.Generator,
        beta: float,
        clamp: Clamp | None,
        number: int,
    ) -> tuple[ChainState, StepInfo]:
        """One step; its error names the number of the step and carries the state before it."""
        try:
            return self.step(energy, state, generator, beta, clamp)
        except SamplingError as error:
            error.state = state
            error.add_note(f"At step {number} of the run (warm-up is negative); see error.state.")
            raise


@contextlib.contextmanager
def sampling(energy: nn.Module) -> Iterator[None]:
    """Put a network in ``eval()`` mode and restore the mode of every submodule afterwards."""
    trained = [module for module in energy.modules() if module.training]
    # Setting the flags is faster than energy.eval(), which takes a tenth of a step.
    for module in trained:
        module.training = False
    try:
        yield
    finally:
        for module in trained:
            module.training = True
