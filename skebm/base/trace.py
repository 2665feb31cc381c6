"""What a run of chains leaves behind: draws, energies, acceptance, and what they say of it."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base.energy import Energy
from skebm.diagnostics import effective_sample_size, r_hat


class Trace(NamedTuple):
    """Draws of a run of several chains, oldest first.

    Attributes
    ----------
    x : Tensor of shape (n_draws, n_chains, ...)
    energy : Tensor of shape (n_draws, n_chains)
    acceptance : Tensor of shape (n_draws,)
        Mean acceptance of the steps between a draw and the one before it.
    state : ChainState
        After the last step, to go on from: :meth:`Sampler.run` takes it as `x`.
    n_steps : int
        Steps after the warm-up.
    thin : int
        Steps between draws.
    converged : bool or None
        What :meth:`Sampler.run_until` found; None where nobody asked.
    """

    x: Tensor
    energy: Tensor
    acceptance: Tensor
    state: Any
    n_steps: int
    thin: int
    converged: bool | None = None

    def ess(self, kind: str = "bulk") -> NDArray[np.float64]:
        """Effective sample size of every column over all chains, (...); `kind` as in
        :func:`skebm.diagnostics.effective_sample_size`.
        """
        return effective_sample_size(self.x, kind=kind)

    def r_hat(self) -> NDArray[np.float64]:
        """R-hat of every column, (...); nan where a column never changes."""
        return r_hat(self.x)


class Recorder:
    """Collects the steps of a run; with `room`, it thins what it has instead of growing on."""

    def __init__(self, sampler: Any, thin: int, room: int | None = None):
        self.sampler, self.thin, self.room = sampler, thin, room
        self.n_steps = 0
        self.converged: bool | None = None
        self.state: Any = None
        self._draws: list[tuple[Tensor, Tensor, Tensor]] = []
        self._accepted: float | Tensor = 0.0

    def add(self, energy: Energy, state: Any, info: Any) -> None:
        """Take note of a step."""
        self.n_steps += 1
        self.state = state
        self._accepted = self._accepted + info.acceptance
        if self.n_steps % self.thin:
            return
        level = self.sampler.energies(energy, state)
        rate = torch.as_tensor(self._accepted).to(state.x) / self.thin
        self._draws.append((state.x, level, rate))
        self._accepted = 0.0
        if self.room is not None and len(self._draws) >= self.room:
            pairs = zip(self._draws[::2], self._draws[1::2], strict=True)
            self._draws = [(*late[:2], (early[2] + late[2]) / 2) for early, late in pairs]
            self.thin *= 2

    def agree(self, target: float, final: bool) -> bool:
        """Whether R-hat of the second half is at most `target`; a final no is a warning."""
        late = self.trace(late=True)
        level = late.energy.unsqueeze(2).to(late.x.dtype)
        found = r_hat(torch.cat([late.x.flatten(2), level], 2))
        # A column that never changes in any chain says nothing; if all are such, none has moved.
        largest = np.nan if np.isnan(found).all() else np.nanmax(found)
        self.converged = bool(largest <= target)
        if final and not self.converged:
            warnings.warn(
                f"R-hat is {largest:.3g} after {self.n_steps} steps, above {target:g}: the chains "
                "do not agree yet. Allow more steps, or tune the sampler.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self.converged

    def trace(self, late: bool = False) -> Trace:
        """What has been collected, or its second half."""
        draws = self._draws[len(self._draws) // 2 :] if late else self._draws
        x, level, rate = (torch.stack(part) for part in zip(*draws, strict=True))
        return Trace(x, level, rate, self.state, self.n_steps, self.thin, self.converged)
