"""The record of a run of chains: draws, energies, acceptance and convergence diagnostics."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skebm.base.energy import Energy
from skebm.base.processes import warn
from skebm.base.processes.categories import SamplingWarning
from skebm.diagnostics import effective_sample_size, r_hat


class Trace(NamedTuple):
    """Draws of a run of several chains, oldest first.

    Attributes
    ----------
    x : Tensor of shape (n_draws, n_chains, ...)
        Rows.
    energy : Tensor of shape (n_draws, n_chains)
        Energies of the rows.
    acceptance : Tensor of shape (n_draws,)
        Mean acceptance rate of the steps since the draw before.
    state : ChainState
        State after the last step; :meth:`Sampler.run` continues from it if it is passed as `x`.
    n_steps : int
        Steps after the warm-up.
    thin : int
        Steps between draws.
    converged : bool or None
        Result of :meth:`Sampler.run_until`; None for other runs.
    """

    x: Tensor
    energy: Tensor
    acceptance: Tensor
    state: Any
    n_steps: int
    thin: int
    converged: bool | None = None

    def ess(self, kind: str = "bulk") -> NDArray[np.float64]:
        """Effective sample size of every column over all chains, (...), in draws.

        `kind` as in :func:`skebm.diagnostics.effective_sample_size`.
        """
        return effective_sample_size(self.x, kind=kind)

    def r_hat(self) -> NDArray[np.float64]:
        """R-hat of every column, (...); nan where a column never changes."""
        return r_hat(self.x)

    def summary(self) -> dict[str, NDArray[np.float64]]:
        """What a run found, by name: an array with an entry for each column of a row, (d,).

        ``pandas.DataFrame(trace.summary())`` is a table. Columns of an image are its entries in
        order.

        Returns
        -------
        dict of str to ndarray of shape (d,)
            ``"mean"`` and ``"sd"`` over all draws and chains; ``"mcse"``, the Monte Carlo standard
            error of the mean, in the units of the column; ``"ess_bulk"`` and ``"ess_tail"``, in
            draws; ``"r_hat"``.

        References
        ----------
        Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
        localization: an improved R-hat", Bayesian Analysis 16(2).

        Examples
        --------
        >>> import torch
        >>> from skebm.base import Real
        >>> from skebm.distributions import Gaussian
        >>> from skebm.energies import NeuralEnergy
        >>> from skebm.samplers import MALA
        >>> base = Gaussian(torch.zeros(2), 1.0)
        >>> energy = NeuralEnergy(lambda x: x.sum(1), Real((2,)), base)  # a mean of -1
        >>> generator = torch.Generator().manual_seed(0)
        >>> trace = MALA(1.0).trace(energy, torch.zeros(50, 2), 100, generator, n_warmup=50)
        >>> sorted(trace.summary())
        ['ess_bulk', 'ess_tail', 'mcse', 'mean', 'r_hat', 'sd']
        >>> trace.summary()["mean"].round(1)
        array([-1., -1.])
        """
        x = self.x.flatten(2)
        draws = x.flatten(0, 1).double()
        sd = draws.std(0).cpu().numpy()
        return {
            "mean": draws.mean(0).cpu().numpy(),
            "sd": sd,
            "mcse": sd / np.sqrt(effective_sample_size(x, kind="mean")),
            "ess_bulk": effective_sample_size(x),
            "ess_tail": effective_sample_size(x, kind="tail"),
            "r_hat": r_hat(x),
        }

    def to_arviz(self, name: str = "x") -> Any:
        """The draws for ArviZ, which is an optional package: its plots and diagnostics.

        Parameters
        ----------
        name : str, default="x"
            Name of the rows.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            Group ``posterior`` with the rows, of dimensions (chain, draw, ...), and group
            ``sample_stats`` with minus their energies as ``lp``.

        Raises
        ------
        ImportError
            If ArviZ is not installed.
        """
        x, lp = (t.transpose(0, 1).cpu().numpy() for t in (self.x, -self.energy))
        groups = {"posterior": {name: x}, "sample_stats": {"lp": lp}}
        try:
            return importlib.import_module("arviz_base").from_dict(groups)
        except ImportError:
            pass
        try:  # before version 1, where groups are arguments
            return importlib.import_module("arviz").from_dict(**groups)
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install arviz.") from error


class Recorder:
    """Collects the steps of a run; beyond `max_draws` it drops every other draw."""

    def __init__(self, sampler: Any, thin: int, max_draws: int | None = None):
        self.sampler, self.thin, self.max_draws = sampler, thin, max_draws
        self.n_steps = 0
        self.converged: bool | None = None
        self.state: Any = None
        self._draws: list[tuple[Tensor, Tensor, Tensor]] = []
        self._accepted: float | Tensor = 0.0

    def add(self, energy: Energy, state: Any, info: Any) -> None:
        """Record a step."""
        self.n_steps += 1
        self.state = state
        self._accepted = self._accepted + info.acceptance
        if self.n_steps % self.thin:
            return
        value = self.sampler.energies(energy, state)
        rate = torch.as_tensor(self._accepted).to(state.x) / self.thin
        self._draws.append((state.x, value, rate))
        self._accepted = 0.0
        if self.max_draws is not None and len(self._draws) >= self.max_draws:
            pairs = zip(self._draws[::2], self._draws[1::2], strict=True)
            self._draws = [(*late[:2], (early[2] + late[2]) / 2) for early, late in pairs]
            self.thin *= 2

    def check_convergence(self, target: float, final: bool) -> bool:
        """Whether R-hat of the second half is at most `target`; warns if not and `final`."""
        late = self.trace(second_half=True)
        energy = late.energy.unsqueeze(2).to(late.x.dtype)
        values = r_hat(torch.cat([late.x.flatten(2), energy], 2))
        # A column that is constant in all chains has no R-hat; if all are, no chain has moved.
        largest = np.nan if np.isnan(values).all() else np.nanmax(values)
        self.converged = bool(largest <= target)
        if final and not self.converged:
            warn(
                f"R-hat is {largest:.3g} after {self.n_steps} steps, above {target:g}: the chains "
                "have not converged.",
                SamplingWarning,
                ("Allow more steps, or tune the sampler.",),
            )
        return self.converged

    def trace(self, second_half: bool = False) -> Trace:
        """The draws collected so far, or their second half."""
        draws = self._draws[len(self._draws) // 2 :] if second_half else self._draws
        x, energy, rate = (torch.stack(part) for part in zip(*draws, strict=True))
        return Trace(x, energy, rate, self.state, self.n_steps, self.thin, self.converged)
