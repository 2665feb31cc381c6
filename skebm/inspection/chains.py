"""Display of Markov chains: traces, acceptance, autocorrelation, R-hat and sample size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skebm.base import Trace
from skebm.diagnostics import autocorrelation, effective_sample_size, r_hat
from skebm.inspection._drawing import NAVY, ORANGE, pyplot

KINDS = ("all", "energy", "columns", "acceptance", "autocorrelation")
# Most chains that are drawn.
MAX_CHAINS = 8
# Largest lag of the autocorrelation, relative to the number of draws.
LAGS = 0.25
PANEL = (4.5, 2.6)  # inches


@dataclass(kw_only=True, eq=False, repr=False)
class ChainDisplay:
    """Energy, slowest columns, acceptance and autocorrelation of a run of chains.

    Create it with :meth:`from_trace`; :meth:`plot` only draws, and can be called repeatedly. All
    data are stored as plain arrays.

    Parameters
    ----------
    energy : ndarray of shape (n_draws, n_chains)
        Energies of the draws, in nats.
    acceptance : ndarray of shape (n_draws,)
        Mean acceptance rate of the steps of each draw.
    columns : ndarray of shape (n_draws, n_chains, n_columns)
        The columns with the smallest effective sample sizes, slowest first.
    column_names : list of str
        Their names.
    ess, r_hat : ndarray of shape (n_columns,)
        Effective sample size (bulk) and R-hat of these columns.
    energy_ess, energy_r_hat : float
        Effective sample size and R-hat of the energy.
    steps : ndarray of shape (n_draws,)
        Number of the step of each draw.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure or matplotlib.figure.SubFigure
        Figure of the last :meth:`plot`.
    axes_ : dict of str to matplotlib.axes.Axes
        Its axes by the name of the part.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import ising_grid
    >>> from skebm.inspection import ChainDisplay
    >>> from skebm.samplers import Gibbs
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = ising_grid(4, 4, coupling=0.3)
    >>> x = energy.domain.uniform(4, generator, dtype=torch.float32)
    >>> trace = Gibbs().trace(energy, x, 200, generator)
    >>> display = ChainDisplay.from_trace(trace)
    >>> bool(display.energy_r_hat < 1.1)
    True
    """

    energy: np.ndarray
    acceptance: np.ndarray
    columns: np.ndarray
    column_names: list[str]
    ess: np.ndarray
    r_hat: np.ndarray
    energy_ess: float
    energy_r_hat: float
    steps: np.ndarray
    figure_: Any = field(default=None, init=False)
    axes_: dict[str, Any] = field(default_factory=dict, init=False)

    @classmethod
    def from_trace(
        cls, trace: Trace, *, n_columns: int = 1, feature_names: Any = None
    ) -> ChainDisplay:
        """Compute the display of a trace.

        Parameters
        ----------
        trace : Trace
            At least four draws, from :meth:`~skebm.base.Sampler.trace` or
            :meth:`~skebm.base.Sampler.run_until`.
        n_columns : int, default=1
            Number of the slowest columns to show.
        feature_names : sequence of str or None, default=None
            Names of all columns.

        Returns
        -------
        ChainDisplay
        """
        x = trace.x.flatten(2).cpu().numpy()
        energy = trace.energy.cpu().numpy()
        if feature_names is None:
            feature_names = [f"column {i}" for i in range(x.shape[2])]
        if len(feature_names) != x.shape[2] or not 1 <= n_columns <= x.shape[2]:
            raise ValueError(
                f"The trace has {x.shape[2]} columns: n_columns={n_columns} and "
                f"{len(feature_names)} feature_names do not fit."
            )
        ess = effective_sample_size(x)
        slowest = np.argsort(ess, kind="stable")[:n_columns]
        several = x.shape[1] > 1
        return cls(
            energy=energy,
            acceptance=trace.acceptance.cpu().numpy(),
            columns=x[..., slowest],
            column_names=[str(feature_names[i]) for i in slowest],
            ess=ess[slowest],
            r_hat=r_hat(x[..., slowest]) if several else np.full(n_columns, np.nan),
            energy_ess=float(effective_sample_size(energy)),
            energy_r_hat=float(r_hat(energy)) if several else np.nan,
            steps=trace.thin * (trace.n_steps // trace.thin - np.arange(len(x) - 1, -1, -1)),
        )

    def plot(self, kind: str = "all", *, figure: Any = None) -> ChainDisplay:
        """Draw all parts or one of them.

        Parameters
        ----------
        kind : {"all", "energy", "columns", "acceptance", "autocorrelation"}, default="all"
            The part.
        figure : Figure, SubFigure or None, default=None
            Figure to draw in; None makes a new one.

        Returns
        -------
        ChainDisplay
            Itself, with `figure_` and `axes_` set.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
        names = [name for name in self._parts() if kind == "all" or name.startswith(kind)]
        n_rows = (len(names) + 1) // 2
        if figure is None:
            width = PANEL[0] * min(len(names), 2)
            figure = pyplot("ChainDisplay").figure(
                figsize=(width, PANEL[1] * n_rows), layout="constrained"
            )
        axes = np.ravel(figure.subplots(n_rows, min(len(names), 2)))
        self.figure_, self.axes_ = figure, dict(zip(names, axes, strict=False))
        for spare in axes[len(names) :]:
            spare.remove()
        for name, ax in self.axes_.items():
            self._parts()[name](ax)
            ax.spines[["top", "right"]].set_visible(False)
        return self

    def _parts(self) -> dict[str, Any]:
        """Drawing functions of the parts, by name."""
        parts: dict[str, Any] = {"energy": self._draw_energy}
        for i, name in enumerate(self.column_names):
            key = "columns" if i == 0 else f"columns {name}"
            parts[key] = lambda ax, i=i: self._draw_column(ax, i)
        parts["acceptance"] = self._draw_acceptance
        parts["autocorrelation"] = self._draw_autocorrelation
        return parts

    def _draw_energy(self, ax: Any) -> None:
        self._chains(ax, self.energy, "Energy", self.energy_ess, self.energy_r_hat)
        ax.set_ylabel("nats")

    def _draw_column(self, ax: Any, i: int) -> None:
        name = self.column_names[i]
        self._chains(ax, self.columns[..., i], name, self.ess[i], self.r_hat[i])

    def _chains(self, ax: Any, values: np.ndarray, name: str, ess: float, r_hat: float) -> None:
        ax.plot(self.steps, values[:, :MAX_CHAINS], linewidth=0.7, alpha=0.8)
        title = f"{name}: ESS {ess:.0f} of {values.size}"
        ax.set_title(title + ("" if np.isnan(r_hat) else f", R-hat {r_hat:.3f}"))
        ax.set_xlabel("step")

    def _draw_acceptance(self, ax: Any) -> None:
        ax.plot(self.steps, self.acceptance, color=NAVY)
        ax.set_title(f"Acceptance: {self.acceptance.mean():.2f}")
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel("step")

    def _draw_autocorrelation(self, ax: Any) -> None:
        n_lags = max(2, int(LAGS * len(self.energy)))
        lags = (self.steps[1] - self.steps[0]) * np.arange(n_lags)
        ax.plot(lags, autocorrelation(self.energy, n_lags), color=NAVY, label="energy")
        slow = autocorrelation(self.columns[..., 0], n_lags)
        ax.plot(lags, slow, color=ORANGE, label=self.column_names[0])
        ax.axhline(0, color="0.7", linewidth=0.7)
        ax.set_title("Autocorrelation")
        ax.set_xlabel("lag, steps")
        ax.legend(frameon=False)
