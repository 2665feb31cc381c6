"""An interval for log Z from AIS and reverse AIS, and a test whether they agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import Energy, LikelihoodWarning, LogPartition, Sampler, sampling
from skebm.base.processes import Notice, collect_warnings, repeat
from skebm.base.sampler import whole_number
from skebm.partition.annealed import (
    MIN_ESS,
    MORE,
    Deadline,
    annealing_plan,
    check_seconds,
    fractions,
    in_stages,
    notice_of_limits,
    uneven,
)
from skebm.partition.checks import MonteCarloEstimator, wide_base

UNNAMED = "the given rows"
WIDE = "AIS from a wider base"
# Standard error, as a multiple of `tol`, from which on a limit that ended the estimate is told.
TOLD = 4
# Nats between value and upper end from which on it is told.
WIDEST = 1.0
# What to do about a model that chains do not explore.
TRAIN = (
    ("Train with more steps (chains__n_steps), or rely on the pessimistic end.", "chains"),
    ("Train with more steps of the sampler, or rely on the pessimistic end.",),
)


class AISBracket(MonteCarloEstimator):
    r"""AIS and reverse AIS from several starts: an estimate with a pessimistic upper end.

    ``value`` and ``std_error`` are those of AIS and ``lower`` its probabilistic bound. ``upper`` is
    the largest credible log Z: the maximum over all informative estimates of the value plus two
    standard errors. The estimate of AIS is always included. Another estimate is informative if its
    standard error is at most twice the smallest, or if its value exceeds that of the most precise
    estimate by more than their combined error. (A run with a large error and no larger value gives
    no information on how large log Z may be.) ``parts`` holds every estimate.

    Direction: heuristic, because the reverse runs start from rows that are not exact samples. All
    runs share one schedule, that of :class:`AIS`, except for a forward run from a wider base
    (uniform, or with ten times the standard deviations), which finds modes far from both the base
    and the rows. If the value of this run is clearly larger than that from the usual base, it is
    the one returned, with a lower bound that holds with the same probability.

    A warning is issued if forward and reverse estimates cross, if the reverse ones depend on their
    start (the chains have not mixed), or if AIS lies far below the reverse runs or the run from the
    wider base (it has missed modes). In these cases no value can be trusted, and the pessimistic
    end is the one to report. A warning is also issued if the upper end is more than a nat above the
    value. The absence of a warning is no proof: a mode that all runs miss has no effect on them.

    Parameters
    ----------
    n_chains : int, default=100
        Forward runs, and the largest number of rows in a reverse run.
    n_betas : int, default=2000
        Inverse temperatures of the path.
    n_steps : int, default=1000
        Number of sampler steps that lead from the rows of `x` to an additional reverse start; with
        0 there is no such start.
    delta : float in (0, 1], default=0.05
        Probability with which the lower bound may fail.
    tol : float or None, default=0.05
        Standard error, in nats, at which a sixteenth or a quarter of `n_betas` and `n_steps` is
        enough, provided that forward and reverse values differ by at most four times as much. None
        uses all of them. A part of fewer than 125 temperatures is not tried.
    verbose : int, default=0
        1 shows a progress bar for each run that takes over two seconds.
    max_evaluations : float or None, default=None
        Largest number of rows at which one of the attempts above (with a sixteenth, a quarter or
        all of the temperatures) computes energies, not counting pilot runs. An attempt that would
        need more is skipped, and the estimate is that of the attempt before it, with its larger
        error; the first attempt is always made. A warning is issued if the standard error is then
        above four times `tol`.
    max_seconds : float or None, default=None
        Limit on wall-clock time, as in :class:`AIS`; with it the estimate is not reproducible.

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
        self,
        n_chains: int = 100,
        n_betas: int = 2000,
        n_steps: int = 1000,
        delta: float = 0.05,
        tol: float | None = 0.05,
        verbose: int = 0,
        max_evaluations: float | None = None,
        max_seconds: float | None = None,
    ):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.n_steps = n_steps
        self.delta = delta
        self.tol = tol
        self.verbose = verbose
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Estimate log Z and an interval for it.

        `x` are rows near the model to start from: a tensor, or several by name, such as
        ``{"data": ..., "training chains": ...}``, each of which gets a reverse run of its own.
        """
        given = x if isinstance(x, Mapping) else {} if x is None else {UNNAMED: x}
        if not given or any(len(rows) < 2 for rows in given.values()):
            raise ValueError(
                "AISBracket needs at least two rows to start a reverse run from: pass them as x."
            )
        whole_number("n_steps", self.n_steps, 0)
        whole_number("n_betas", self.n_betas, 2)
        if not isinstance(self.tol, RealNumber | None) or self.tol is not None and not self.tol > 0:
            raise ValueError(f"tol must be a positive number or None, got {self.tol!r}.")
        most = self.max_evaluations
        if not isinstance(most, RealNumber | None) or most is not None and not most > 0:
            raise ValueError(f"max_evaluations must be a positive number or None, got {most!r}.")
        check_seconds(self.max_seconds)
        self.check(energy)
        deadline = Deadline(self.max_seconds)

        def run(fraction: float) -> Runs:
            some = self
            if fraction < 1:
                some = clone(self).set_params(
                    n_betas=round(fraction * self.n_betas),
                    n_steps=math.ceil(fraction * self.n_steps),
                )
            with collect_warnings():  # the result says what is wrong, once
                return some._runs(energy, base, sampler, given, generator, deadline)

        tol = self.tol
        some = most is not None or self.max_seconds is not None or tol is not None
        runs, limited = in_stages(
            fractions(self.n_betas) if some else [1.0],
            run,
            deadline,
            enough=lambda runs: tol is not None and runs.agree(tol),
            affordable=lambda runs, factor: most is None or factor * runs.n_evaluations <= most,
        )
        notices, result = runs.notices(self.n_chains), runs.result()
        limits = {"max_evaluations": most, "max_seconds": self.max_seconds}
        timed = self.max_seconds is not None
        if limited and (timed or not result.std_error <= TOLD * (tol or 0)):
            # What was to be had in so many seconds explains the rest.
            notices.insert(0 if timed else len(notices), notice_of_limits(limits, result.std_error))
        repeat(notices[:1])  # the estimates themselves are among the parts of the result
        return result

    def _runs(
        self,
        energy: Energy,
        base: Any,
        sampler: Sampler | None,
        given: Mapping[str, Tensor],
        generator: torch.Generator | None,
        deadline: Deadline,
    ) -> Runs:
        """All annealing runs, with `n_betas` temperatures each."""
        n = self.n_chains
        with sampling(energy), torch.no_grad():
            plan = annealing_plan(self, energy, base, sampler, given, generator, n, deadline)
            generator = plan.generator
            forward = plan.forward(self.n_chains)
            starts = {name: self._subsample(rows, generator) for name, rows in given.items()}
            pooled = self._subsample(torch.cat(list(starts.values())), generator)
            n_moved = 0
            if self.n_steps and deadline.seconds_left() > 0:
                kernel = plan.kernel if sampler is None else sampler
                moved = kernel.run(energy, pooled, self.n_steps, generator)[0].x
                starts[f"rows after {self.n_steps} sampler steps"] = moved
                n_moved = self.n_steps * len(pooled) * (2 if kernel.adapts else 1)
            reverse = plan.reverse_each(starts)
            wide, base = None, wide_base(energy, plan.path.base)
            if base is not None and deadline.seconds_left() > 0:
                plan = annealing_plan(self, energy, base, sampler, given, generator, n, deadline)
                wide = plan.forward(self.n_chains)
        n_annealed = n * (1 if wide is None else 2) + sum(map(len, starts.values()))
        per_step = getattr(plan.kernel, "n_leapfrog", 1)
        return Runs(forward, reverse, wide, per_step * (self.n_betas * n_annealed + n_moved))

    def _subsample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """At most `n_chains` of the rows, drawn without replacement."""
        return x[torch.randperm(len(x), generator=generator, device=x.device)[: self.n_chains]]


class Runs(NamedTuple):
    """Estimates by AIS, by reverse AIS from several starts, and by AIS from a wider base."""

    forward: LogPartition
    reverse: dict[str, LogPartition]
    wide: LogPartition | None
    n_evaluations: int = 0

    def agree(self, tol: float) -> bool:
        """Whether errors are at most `tol`, and values differ by at most four times as much."""
        both = [self.forward, *self.reverse.values()]
        values = [one.value for one in both]
        if self.wide is not None and _exceeds(self.wide, _most_precise(both)):
            return False  # a mode far away, or chance: more temperatures decide
        return max(one.std_error for one in both) <= tol and max(values) - min(values) <= 4 * tol

    @property
    def has_missed_modes(self) -> bool:
        """Whether annealing from the wider base gives more than AIS, beyond the errors."""
        if self.wide is None:
            return False
        error = 3 * math.hypot(self.forward.std_error, self.wide.std_error)
        return self.wide.value - self.forward.value > max(0.5, error)

    @property
    def from_below(self) -> LogPartition:
        """The estimate that is a lower bound on average: that of AIS, or of the wider base."""
        return self.wide if self.wide is not None and self.has_missed_modes else self.forward

    def result(self) -> LogPartition:
        """The estimate with its interval."""
        forward, wide = self.forward, self.wide
        estimates = {"AIS": forward}
        estimates |= {f"reverse AIS from {name}": one for name, one in self.reverse.items()}
        if wide is not None:
            estimates[WIDE] = wide
        if self.has_missed_modes:
            # Union bound: either of the two lower bounds may fail.
            forward = self.from_below._replace(lower=self.from_below.lower - math.log(2))
        best = _most_precise(estimates.values())
        told = [one for one in estimates.values() if _is_informative(one, best)]
        upper = max(one.value + 2 * one.std_error for one in (forward, *told))
        parts = {name: (one.value, one.std_error) for name, one in estimates.items()}
        return forward._replace(upper=upper, bound_kind="heuristic", parts=parts, reason="")

    def notices(self, n_chains: int) -> list[Notice]:
        """Warnings of estimates that disagree beyond their errors, the gravest first."""
        forward, reverse, texts = self.forward, self.reverse, []
        by_value = sorted(reverse, key=lambda name: reverse[name].value)
        low, high = reverse[by_value[0]], reverse[by_value[-1]]
        result = f"log Z = {_in_words(forward)} by AIS"
        if self.has_missed_modes:
            wider = _in_words(self.from_below)
            texts.append(
                f"Annealing has missed modes far from its base ({result}, {wider} from a wider "
                "one, which is returned): rows and base are near a part of the model only."
            )
        error = 3 * math.hypot(forward.std_error, high.std_error)
        if high.value - forward.value > max(1.0, error):
            texts.append(
                f"Forward annealing has missed modes: {result}, {_in_words(high)} by reverse AIS "
                f"from {by_value[-1]}, far above it."
            )
        if high.value - low.value > max(0.5, 3 * math.hypot(low.std_error, high.std_error)):
            texts.append(
                f"Reverse AIS depends on its start (log Z = {low.value:.2f} from {by_value[0]}, "
                f"{high.value:.2f} from {by_value[-1]}): chains do not mix between the modes."
            )
        if low.value < forward.value - max(0.01, 3 * math.hypot(forward.std_error, low.std_error)):
            texts.append(
                f"Forward and reverse annealing have crossed: {result}, {_in_words(low)} by "
                f"reverse AIS from {by_value[0]}, which are no samples of the model."
            )
        notices = [Notice(text, LikelihoodWarning, TRAIN) for text in texts]
        ess = self.from_below.ess
        if ess < min(MIN_ESS, n_chains / 10):
            notices.append(uneven(ess, n_chains))
        interval = self.result()
        if not notices and interval.upper - interval.value > WIDEST:
            text = (
                f"The upper end of the interval for log Z is {interval.upper - interval.value:.1f} "
                f"nats above its value, {interval.value:.2f}: smaller differences say nothing."
            )
            notices.append(Notice(text, LikelihoodWarning, MORE))
        return notices


def _most_precise(estimates: Iterable[LogPartition]) -> LogPartition:
    return min(estimates, key=lambda one: one.std_error)


def _exceeds(one: LogPartition, other: LogPartition) -> bool:
    """Whether a value is larger by more than the combined standard error."""
    return one.value - other.value > math.hypot(one.std_error, other.std_error)


def _is_informative(one: LogPartition, best: LogPartition) -> bool:
    """Whether an estimate says how large log Z may be, beside the most precise one."""
    # Standard error, as a multiple of the smallest, up to which a run of any value counts.
    precise = 2
    return one.std_error <= precise * best.std_error or _exceeds(one, best)


def _in_words(one: LogPartition) -> str:
    return f"{one.value:.2f} +- {one.std_error:.2f}"
