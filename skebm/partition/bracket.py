"""AIS from below, reverse AIS from above, and whether the two agree."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler, sampling
from skebm.base.energy import check_energy
from skebm.base.sampler import whole_number
from skebm.partition.annealed import annealing_plan
from skebm.partition.checks import WeighingMethod, wide_base

GIVEN = "the given rows"
WIDE = "AIS from a wider base"


class AISBracket(WeighingMethod):
    r"""AIS from below and reverse AIS from several starts: the value with a pessimistic end.

    ``value`` and ``std_error`` are those of AIS and ``lower`` its probabilistic bound. ``upper`` is
    the largest credible log Z: the largest of the estimates, AIS and every reverse run, plus two of
    its standard errors. Direction: heuristic, because the reverse runs start at rows that are not
    exact samples. ``parts`` holds every estimate. All runs share one schedule, made as by
    :class:`AIS`, but for a forward run from a wider base, uniform or ten times as wide, which finds
    modes that neither the base nor the rows are near. Where it lies clearly above the other, its
    value is the one that is returned, with a lower end that holds with the same probability.

    Warns when forward and reverse estimates cross, when the reverse ones depend on where they start
    (the chains have not mixed), and when AIS lies far below the reverse runs or the one from the
    wider base (it missed modes). Then no value is to be trusted, and the pessimistic end is the one
    to report. No warning is no proof: a mode that all of these runs miss leaves no trace.

    Parameters
    ----------
    n_chains : int, default=100
        Forward runs, and at most so many rows for each reverse run.
    n_betas : int, default=2000
        Inverse temperatures of the path.
    n_steps : int, default=1000
        Sampler steps from the rows of `x` for a further reverse start; 0 is none.
    delta : float, default=0.05
        Probability with which the lower bound may fail.

    References
    ----------
    Neal (2001), Statistics and Computing 11(2). Salakhutdinov and Murray (2008), ICML. Burda,
    Grosse and Salakhutdinov (2015), "Accurate and conservative estimates of MRF log-likelihood
    using reverse annealing", AISTATS.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import AISBracket, Exact
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(8, 4, generator=generator, scale=0.5)
    >>> starts = {"data": torch.eye(8), "chains": torch.ones(8, 8)}
    >>> estimate = AISBracket(n_betas=200, n_steps=100).estimate(energy, x=starts)
    >>> estimate.lower < Exact().estimate(energy).value < estimate.upper
    True
    """

    def __init__(
        self, n_chains: int = 100, n_betas: int = 2000, n_steps: int = 1000, delta: float = 0.05
    ):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.n_steps = n_steps
        self.delta = delta

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Bracket log Z.

        `x` are rows near the model to start from: a tensor, or several by name, such as
        ``{"data": ..., "training chains": ...}``, that are told apart by a reverse run each.
        """
        given = x if isinstance(x, Mapping) else {} if x is None else {GIVEN: x}
        if not given or any(len(rows) < 2 for rows in given.values()):
            raise ValueError(
                "AISBracket needs two rows or more to start a reverse run from: pass them as x."
            )
        whole_number("n_steps", self.n_steps, 0)
        check_energy(energy)
        with sampling(energy), torch.no_grad():
            run = annealing_plan(self, energy, base, sampler, given, generator, self.n_chains)
            generator = run.generator
            below = run.forward(self.n_chains)
            starts = {name: self._some(rows, generator) for name, rows in given.items()}
            mixed = self._some(torch.cat(list(starts.values())), generator)
            if self.n_steps:
                moving = run.kernel if sampler is None else sampler
                moved = moving.run(energy, mixed, self.n_steps, generator)[0].x
                starts[f"rows after {self.n_steps} sampler steps"] = moved
            above = {name: run.backward(rows) for name, rows in starts.items()}
            found = {"AIS": below} | {f"reverse AIS from {name}": above[name] for name in above}
            wide = wide_base(energy, run.path.base)
            if wide is not None:
                wider = annealing_plan(self, energy, wide, sampler, given, generator, self.n_chains)
                found[WIDE] = wider.forward(self.n_chains)
        _warn_unless_consistent(below, above)
        if wide is not None and (gap := _missed(below, found[WIDE])):
            _warn_of_far_modes(gap)
            # Either of two bounds may have failed.
            below = found[WIDE]._replace(lower=found[WIDE].lower - math.log(2))
        upper = max(one.value + 2 * one.std_error for one in found.values())
        parts = {name: (one.value, one.std_error) for name, one in found.items()}
        return below._replace(upper=upper, bound_kind="heuristic", parts=parts, reason="")

    def _some(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """At most `n_chains` of the rows, drawn."""
        return x[torch.randperm(len(x), generator=generator, device=x.device)[: self.n_chains]]


def _warn_unless_consistent(forward: LogPartition, reverse: Mapping[str, LogPartition]) -> None:
    """Warn of estimates that cross, lie far apart or depend on the start, by more than noise."""
    by_value = sorted(reverse, key=lambda name: reverse[name].value)
    low, high = reverse[by_value[0]], reverse[by_value[-1]]
    said = f"forward AIS gives log Z = {forward.value:.2f} +- {forward.std_error:.2f}"
    if low.value < forward.value - max(0.01, 3 * math.hypot(forward.std_error, low.std_error)):
        _warn(
            f"Forward and reverse annealing have crossed: {said}, reverse AIS from {by_value[0]} "
            f"{low.value:.2f} +- {low.std_error:.2f}, below it. Those rows are no samples of the "
            "model. Train with more sampler steps or a smaller learning rate."
        )
    if high.value - low.value > max(0.5, 3 * math.hypot(low.std_error, high.std_error)):
        values = ", ".join(f"{reverse[name].value:.2f} from {name}" for name in by_value)
        _warn(
            f"Reverse AIS depends on where it starts: log Z = {values}. The chains do not explore "
            "the model's modes. Train with more sampler steps; report the pessimistic end."
        )
    if high.value - forward.value > max(1.0, 3 * math.hypot(forward.std_error, high.std_error)):
        _warn(
            f"Forward annealing has missed modes: {said}, reverse AIS from {by_value[-1]} "
            f"{high.value:.2f} +- {high.std_error:.2f}, far above it. Use more n_betas and "
            "n_chains; if they stay apart, train with more sampler steps."
        )


def _missed(forward: LogPartition, wide: LogPartition) -> str:
    """What annealing from a wider base has found that lies above the usual one; or nothing."""
    noise = 3 * math.hypot(forward.std_error, wide.std_error)
    if not wide.value - forward.value > max(0.5, noise):
        return ""
    return (
        f"log Z = {forward.value:.2f} +- {forward.std_error:.2f} from the base, {wide.value:.2f} "
        f"+- {wide.std_error:.2f} from a wider one"
    )


def _warn_of_far_modes(gap: str) -> None:
    _warn(
        f"Annealing has missed modes far from its base: {gap}, which is taken. The rows and the "
        "base are near a part of the model only. Train with more sampler steps, from wider starts."
    )


def _warn(message: str) -> None:
    # Three frames up: the caller of `estimate`.
    warnings.warn(message, ConvergenceWarning, stacklevel=4)
