"""log Z by annealed importance sampling between a tractable base and the model."""

from __future__ import annotations

import abc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real as RealNumber
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import ChainState, Energy, LikelihoodWarning, LogPartition, Sampler, sampling
from skebm.base.processes import Notice, collect_warnings, progress_bar, repeat
from skebm.base.sampler import number_in, whole_number
from skebm.base.torchtools import check_memory
from skebm.distributions._fitting import draw_index
from skebm.energies import AnnealingPath, annealing_path
from skebm.partition.checks import (
    NO_UPPER,
    MonteCarloEstimator,
    check_base,
    covers,
    default_base,
    default_sampler,
    fits_base,
    generator_for,
    rows_of,
    template_for,
)
from skebm.partition.importance import WeightSummary, summarise
from skebm.samplers import Gibbs

# Pilot runs have a quarter of the chains, within these limits, and this many intervals of the
# inverse temperature. More chains or steps than the largest improve the schedule no further.
N_INTERVALS, MIN_CHAINS, MAX_CHAINS, MAX_STEPS = 10, 10, 50, 800


# Parts of the temperatures that are tried first, where there are enough of them.
FRACTIONS = (1 / 16, 1 / 4)
FEWEST_BETAS = 125

R = TypeVar("R")


class Deadline:
    """A limit on wall-clock time; `cut` says whether it has shortened a run."""

    def __init__(self, max_seconds: float | None):
        self.max_seconds = math.inf if max_seconds is None else max_seconds
        self.started, self.cut = time.monotonic(), False

    def seconds_left(self) -> float:
        """Seconds until it has passed."""
        return self.started + self.max_seconds - time.monotonic()


def check_seconds(max_seconds: Any) -> None:
    """Raise `ValueError` unless `max_seconds` is a positive number or None."""
    if max_seconds is None or isinstance(max_seconds, RealNumber) and float(max_seconds) > 0:
        return
    raise ValueError(f"max_seconds must be a positive number or None, got {max_seconds!r}.")


def fractions(n_betas: int) -> list[float]:
    """Fractions of `n_betas` temperatures that are worth a run of their own, and 1 for all."""
    return [fraction for fraction in FRACTIONS if fraction * n_betas >= FEWEST_BETAS] + [1.0]


def in_stages(
    fractions: list[float],
    run: Callable[[float], R],
    deadline: Deadline,
    *,
    enough: Callable[[R], bool] = lambda found: False,
    affordable: Callable[[R, float], bool] = lambda found, factor: True,
) -> tuple[R, bool]:
    """The result of `run` with growing parts of the temperatures, and whether a limit ended it.

    It ends when a result is `enough`, when the next run, which costs `factor` times as much, is
    not `affordable`, or when that run would take longer than the time left, as judged by the run
    before it.
    """
    fraction, *later = fractions
    began = time.monotonic()
    result = run(fraction)
    while later and not enough(result):
        factor = later[0] / fraction
        if (time.monotonic() - began) * factor > deadline.seconds_left() or not affordable(
            result, factor
        ):
            return result, True
        fraction, *later = later
        began = time.monotonic()
        new = run(fraction)
        # An unfinished run is of less use than a finished one of fewer temperatures.
        if deadline.cut:
            return result, True
        result = new
    return result, deadline.cut


class Schedule(NamedTuple):
    """Inverse temperatures from 0 to 1, and the settings to which a kernel has adapted.

    Attributes
    ----------
    betas : list of float
    pilot_betas : list of float
        Inverse temperatures at which the kernel has adapted, increasing.
    settings : list
        ``aux`` of the kernel's states at these temperatures, frozen; None for a kernel without
        settings. The list is empty for Gibbs.
    """

    betas: list[float]
    pilot_betas: list[float]
    settings: list[Any]

    def settings_at(self, beta: float) -> Any:
        """Settings of the pilot's `beta` at or above this one; None if the kernel has none.

        Their steps are too small rather than too large.
        """
        if not self.settings:
            return None
        index = int(np.searchsorted(self.pilot_betas, beta))
        return self.settings[min(index, len(self.settings) - 1)]


class AnnealingSteps(abc.ABC):
    """How chains anneal: what they gain between two temperatures, and how they move at one.

    What a state is, each kind of steps decides: rows, or rows with what is known of them.
    """

    @abc.abstractmethod
    def log_ratio(self, state: Any, old: float, new: float) -> Tensor:
        """log of the unnormalised density of each chain at `new` over that at `old`, float64."""

    @abc.abstractmethod
    def step(self, state: Any, beta: float) -> Any:
        """The states after a step that keeps the distribution at `beta`."""


def anneal(
    steps: AnnealingSteps, state: Any, betas: Sequence[float], deadline: Deadline | None = None
) -> Iterator[tuple[Tensor, Any]]:
    """Anneal the states of chains along inverse temperatures, up to the model or down to the base.

    Yields the increments (n,) of the log weights, each with the states that it belongs to. At each
    intermediate temperature, after its increment, the chains move once. Once the deadline has
    passed, a single increment replaces those that remain, as in a schedule without their
    temperatures. The clock does not depend on the states, so the weights remain unbiased.
    """
    for old, new in itertools.pairwise(betas):
        if deadline is not None and new != betas[-1] and deadline.seconds_left() < 0:
            deadline.cut = True
            yield steps.log_ratio(state, old, betas[-1]), state
            return
        yield steps.log_ratio(state, old, new), state
        if 0 < new < 1:
            state = steps.step(state, new)


class KernelSteps(AnnealingSteps):
    """Steps of a sampler along a path; states are rows x (n, ...).

    Parameters
    ----------
    path : AnnealingPath
    kernel : Sampler
        Exact at every temperature.
    schedule : Schedule
        With the settings of the kernel.
    generator : torch.Generator
    """

    def __init__(
        self, path: AnnealingPath, kernel: Sampler, schedule: Schedule, generator: torch.Generator
    ):
        self.path, self.kernel, self.schedule = path, kernel, schedule
        self.generator = generator
        self.next: tuple[Energy, ChainState] | None = None  # at the temperature that follows

    def log_ratio(self, state: Tensor, old: float, new: float) -> Tensor:
        # The path keeps what the kernel computes of rows here.
        energy = self.path.at(new) if 0 < new < 1 else None
        self.next = None if energy is None else (energy, self.kernel.init(energy, state))
        return self.path.log_ratio(state, old, new)

    def step(self, state: Tensor, beta: float) -> Tensor:
        assert self.next is not None
        energy, chain = self.next
        if chain.x is not state:  # it was resampled
            chain = self.kernel.init(energy, state)
        settings = self.schedule.settings_at(beta)
        if settings is not None:
            chain = chain._replace(aux=settings)
        elif isinstance(self.kernel, Gibbs):
            chain = chain._replace(aux=self.path.hidden_layer(state, beta, self.generator))
        x = self.kernel.step(energy, chain, self.generator)[0].x
        self.path.remember(x)
        return x


def adaptive_schedule(
    path: AnnealingPath, kernel: Sampler, n_chains: int, n_betas: int, generator: torch.Generator
) -> Schedule:
    r"""Temperatures spaced by thermodynamic length, and kernels adapted to them.

    The variance of the log weights is least for steps of equal length
    :math:`\sqrt{\zeta}\, d\beta`, where

    .. math:: \zeta(\beta) = \mathrm{Var}(s)\, \Bigl(1 + 2 \sum_{k > 0} \rho_k\Bigr), \qquad
        s = \frac{d}{d\beta} \log p_\beta(x)

    is the score of the temperature (of the unnormalised density) and :math:`\rho_k` its
    autocorrelation at lag k along a chain at :math:`\beta`. The variance alone gives equal
    conditional effective sample sizes,
    :math:`(\sum w)^2 / (n \sum w^2) = 1 - \mathrm{Var}(s)\, d\beta^2` to second order, which is
    optimal for chains that are independent after one step. The autocorrelation adds temperatures
    where the chains mix slowly.

    Two pilot runs, which together take a tenth of the cost, anneal draws of the base over ten
    intervals. In the first run the intervals have equal widths, and a kernel with ``adapt=True``
    adapts for 20 steps in each of them, however short the run. In the second run they are spaced
    by the variances of the first, and :math:`\zeta` is estimated in each by the variance of a sum
    over consecutive steps. As these estimates are rough, half of the final temperatures are spread
    evenly.

    The chains of the pilot runs do not enter the estimate, which is unbiased given the schedule.

    Parameters
    ----------
    path : AnnealingPath
    kernel : Sampler
        Exact at every temperature.
    n_chains, n_betas : int
        Chains and temperatures of the run that the schedule is for.
    generator : torch.Generator
        On the device of the path.

    Returns
    -------
    Schedule
        A schedule of `n_betas` temperatures.

    References
    ----------
    Grosse, Maddison and Salakhutdinov (2013), "Annealing between distributions by averaging
    moments", NeurIPS, section 3 (lengths). Sivak and Crooks (2012), "Thermodynamic metrics and
    optimal paths", PRL 108, eq. 7 and 12 (autocorrelation). Zhou, Johansen and Aston (2016),
    "Toward automatic model comparison", JCGS 25(3), section 3.3 (conditional effective sample
    size).
    """
    even = np.linspace(0, 1, n_betas)
    # With fewer temperatures than this an even spacing is as good.
    min_betas = 20
    if n_betas == 2 or not (kernel.adapts or n_betas >= min_betas):
        return Schedule(even.tolist(), [], [])
    n = min(max(n_chains // 4, min(n_chains, MIN_CHAINS), 2), MAX_CHAINS)
    # Cost of the two pilot runs together, relative to that of the run.
    pilot_cost = 0.1
    pilot_steps = max(min(int(pilot_cost * n_betas * n_chains / n), MAX_STEPS), 2)
    betas = np.linspace(0, 1, min(N_INTERVALS, pilot_steps // 2) + 1)
    # Adaptation steps of a kernel at each temperature of the first pilot run.
    adaptation_steps = 20
    n_steps = adaptation_steps if kernel.adapts else 1
    lengths, schedule = _pilot_run(path, kernel, n, betas, n_steps, generator)
    if pilot_steps > 2 * N_INTERVALS:
        betas = np.asarray(_space_betas(betas, lengths, N_INTERVALS + 1))
        n_steps = pilot_steps // N_INTERVALS - 1
        lengths, schedule = _pilot_run(path, kernel, n, betas, n_steps, generator, schedule)
    return schedule._replace(betas=_space_betas(betas, lengths, n_betas))


def _space_betas(betas: np.ndarray, lengths: np.ndarray, n: int) -> list[float]:
    """`n` inverse temperatures, from the lengths (k,) of the intervals between betas (k+1,)."""
    cumulative = np.append(0, np.cumsum(lengths))
    even = np.linspace(0, 1, n)
    # A path without length, or an overflow, about which the run itself warns.
    if not 0 < cumulative[-1] < np.inf:
        return even.tolist()
    # Weight of the thermodynamic length in the spacing; the rest is even, as short pilot runs
    # underestimate long autocorrelation times.
    length_weight = 0.5
    position = length_weight * cumulative / cumulative[-1] + (1 - length_weight) * betas
    return np.interp(even, position, betas).tolist()


def _pilot_run(
    path: AnnealingPath,
    kernel: Sampler,
    n: int,
    betas: np.ndarray,
    n_steps: int,
    generator: torch.Generator,
    adapted: Schedule | None = None,
) -> tuple[np.ndarray, Schedule]:
    """Lengths (k,) of the intervals of betas (k+1,), from n chains at their midpoints.

    The kernel has the settings of `adapted`, or adapts during the run; the schedule returned holds
    its settings.
    """
    x, lengths, settings = path.base.sample(n, generator), [], []
    midpoints = (betas[:-1] + betas[1:]) / 2
    for old, new, midpoint in zip(betas, betas[1:], midpoints.tolist(), strict=False):
        energy = path.at(midpoint)
        state = kernel.init(energy, x)
        if adapted is not None:
            state = state._replace(aux=adapted.settings_at(midpoint))
        total = torch.zeros(n, dtype=torch.float64, device=x.device)
        for _ in range(n_steps):
            state = kernel.step(energy, state, generator)[0]
            path.remember(state.x)
            total += path.log_ratio(state.x, float(old), float(new))
            if isinstance(kernel, Gibbs):
                state = state._replace(aux=path.hidden_layer(state.x, midpoint, generator))
        x = state.x
        lengths.append(total.std() / n_steps**0.5)
        if adapted is None and not isinstance(kernel, Gibbs):
            state = kernel.freeze(state)
            settings.append(state.aux)
            if (
                kernel.adapts and state.aux is not None
            ):  # the adaptation at the next temperature starts from this step
                kernel = kernel.with_step_size(float(state.aux.step_size))
    schedule = adapted or Schedule([], midpoints.tolist(), settings)
    return torch.stack(lengths).cpu().numpy(), schedule


# Seconds after which an annealing run shows its progress.
PROGRESS_DELAY = 2.0
# Effective sample size below which an annealing run warns.
MIN_ESS = 5
# What to do about an estimate that is not precise enough.
MORE = (
    ("Use more n_betas and n_chains.", "n_betas", "n_chains"),
    ("Pass partition=AISBracket(n_betas=10_000).", "partition"),
)
NO_LOWER = "no lower bound: the weights do not show a mode that all draws of the model have missed"


def systematic_draws(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Places (m, n) drawn by each row of weights (m, n) that sum to 1, in increasing order.

    A number is drawn from each of n equal parts of [0, 1], at the same place in all of them.
    """
    m, n = weight.shape
    like: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
    start = torch.rand(m, 1, generator=generator, **like)
    return draw_index(weight, (torch.arange(n, **like) + start) / n)


class ResamplingSteps(AnnealingSteps):
    """Steps of chains in populations, each of which is resampled where its weights are uneven.

    Chains of a population then have the mean of its weights, so that the mean over all of them
    remains an unbiased estimate of the ratio of the normalisers.

    Parameters
    ----------
    steps : AnnealingSteps
        Of rows x (n, ...), n a multiple of `n_populations`.
    n_populations : int
    generator : torch.Generator
    """

    def __init__(self, steps: AnnealingSteps, n_populations: int, generator: torch.Generator):
        self.steps, self.n_populations, self.generator = steps, n_populations, generator
        self.log_weight: Any = 0.0  # (populations, chains of each)
        self.change: Any = 0.0  # of the log weights, by resampling, since the last increment

    def log_ratio(self, state: Tensor, old: float, new: float) -> Tensor:
        found = self.steps.log_ratio(state, old, new)
        self.log_weight = self.log_weight + found.view(self.n_populations, -1)
        found, self.change = found + self.change, 0.0
        return found

    def step(self, state: Tensor, beta: float) -> Tensor:
        m, size = self.log_weight.shape
        weight = self.log_weight.softmax(1)
        uneven = 1 / weight.square().sum(1) < LEAST_EVEN * size
        if not bool(uneven.any()):
            return self.steps.step(state, beta)
        place = torch.arange(size, device=weight.device)
        index = torch.where(uneven[:, None], systematic_draws(weight, self.generator), place)
        mean = torch.logsumexp(self.log_weight, 1, keepdim=True) - math.log(size)
        even = torch.where(uneven[:, None], mean, self.log_weight)
        self.change = (even - self.log_weight).flatten()
        self.log_weight = even
        first = torch.arange(m, device=weight.device)[:, None] * size
        return self.steps.step(state[(first + index).flatten()], beta)


# Effective sample size, a chain, below which a population is resampled.
LEAST_EVEN = 0.5


class Particles(NamedTuple):
    """Rows x (n, ...) after annealing, with their log weights (n,), whose mean estimates Z."""

    x: Tensor
    log_weight: Tensor


class AnnealingPlan(NamedTuple):
    """What all annealing runs of an estimate share: path, kernel and schedule."""

    path: AnnealingPath
    kernel: Sampler
    schedule: Schedule
    delta: float
    generator: torch.Generator
    verbose: int = 0
    deadline: Deadline | None = None
    n_populations: int = 0  # of chains that are resampled among themselves; 0 for none

    def forward(self, n_chains: int) -> LogPartition:
        """AIS from `n_chains` draws of the base; on average below log Z."""
        value, std_error, ess = self._summary(self.particles(n_chains).log_weight)
        lower = value + math.log(self.delta)
        return LogPartition(
            value,
            std_error,
            lower,
            math.nan,
            "probabilistic",
            ess,
            reason=NO_UPPER,
        )

    def particles(self, n_chains: int) -> Particles:
        """The rows of a forward run with log weights, under which they represent the model."""
        x, log_w = self._ends_and_weights(self.path.base.sample(n_chains, self.generator))
        return Particles(x, self.path.log_z0 + log_w)

    def reverse(self, x: Tensor) -> LogPartition:
        """Reverse AIS from rows x; on average above log Z if they are exact draws."""
        return self._reverse_estimate(self._ends_and_weights(x, reverse=True)[1])

    def reverse_each(self, starts: Mapping[str, Tensor]) -> dict[str, LogPartition]:
        """Reverse AIS from each of several starts; the rows of all starts move together."""
        _, log_w = self._ends_and_weights(torch.cat(list(starts.values())), reverse=True)
        parts = log_w.split([len(x) for x in starts.values()])
        return {
            name: self._reverse_estimate(part) for name, part in zip(starts, parts, strict=True)
        }

    def _reverse_estimate(self, log_w: Tensor) -> LogPartition:
        log_mean, std_error, ess = self._summary(log_w)
        value = self.path.log_z0 - log_mean
        upper = value - math.log(self.delta)
        return LogPartition(value, std_error, math.nan, upper, "heuristic", ess, reason=NO_LOWER)

    def _ends_and_weights(self, x: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
        """Rows x (n, ...) at the end, and their log weights (n,); progress after two seconds."""
        log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        steps: AnnealingSteps = KernelSteps(self.path, self.kernel, self.schedule, self.generator)
        if self.n_populations:
            steps = ResamplingSteps(steps, self.n_populations, self.generator)
        betas = self.schedule.betas[:: -1 if reverse else 1]
        increments = anneal(steps, x, betas, self.deadline)
        shown: dict[str, Any] = {"delay": PROGRESS_DELAY, "disable": not self.verbose}
        n, name = len(self.schedule.betas) - 1, "reverse AIS" if reverse else "AIS"
        progress = progress_bar(increments, total=n, desc=f"log Z: {name}", leave=False, **shown)
        for increment, rows in progress:
            x = rows
            log_w += increment
        return x, log_w

    def _summary(self, log_w: Tensor) -> WeightSummary:
        """Summary of log weights (n,); warns where the effective sample is small.

        Of populations, whose chains depend on each other, each counts as one draw.
        """
        if self.n_populations:
            log_w = log_w.view(self.n_populations, -1)
            log_w = torch.logsumexp(log_w, 1) - math.log(log_w.shape[1])
        summary, n = summarise(log_w), len(log_w)
        if n > 1 and summary.ess < min(MIN_ESS, n / 10):
            repeat([uneven(summary.ess, n)])
        return summary


def within_seconds(estimator: Any, run: Callable[[Any, Deadline], LogPartition]) -> LogPartition:
    """The estimate of ``run(estimator, deadline)``, with as many temperatures as there is time for.

    If the estimator has no `max_seconds`, all of its temperatures are used.
    """
    check_seconds(estimator.max_seconds)
    whole_number("n_betas", estimator.n_betas, 2)
    deadline = Deadline(estimator.max_seconds)
    if estimator.max_seconds is None:
        return run(estimator, deadline)

    def part(fraction: float) -> tuple[LogPartition, list[Notice]]:
        few = clone(estimator).set_params(n_betas=round(fraction * estimator.n_betas))
        with collect_warnings() as caught:
            estimate = run(few, deadline)
        return estimate, caught

    (estimate, notices), limited = in_stages(fractions(estimator.n_betas), part, deadline)
    if limited:
        limits = {"max_seconds": estimator.max_seconds}
        notices.insert(0, notice_of_limits(limits, estimate.std_error))
    repeat(notices[:1])
    return estimate


def annealing_plan(
    estimator: Any,
    energy: Energy,
    base: Any,
    sampler: Sampler | None,
    x: Tensor | Mapping[str, Tensor] | None,
    generator: torch.Generator | None,
    n_chains: int,
    deadline: Deadline | None = None,
    *,
    pilots: bool = True,
) -> AnnealingPlan:
    """Check the settings and inputs of an estimate, fill in defaults and make the schedule.

    Without `pilots` temperatures are evenly spaced, unless the kernel has to adapt in pilot runs.
    It is to be called without gradients, with the energy in ``eval()`` mode, after
    ``estimator.check``. It raises `TypeError` or `ValueError` for what cannot be annealed.
    """
    number_in("delta", estimator.delta, "(0, 1]")
    whole_number("n_betas", estimator.n_betas, 2)
    whole_number("n_chains", n_chains, 1)
    rows = rows_of(energy, x)
    template = template_for(energy, rows)
    generator = generator_for(generator, template.device)
    n_numbers = n_chains * energy.domain.n_columns
    check_memory(f"n_chains={n_chains}", n_numbers, template.dtype, template.device)
    check_memory(f"n_betas={estimator.n_betas}", estimator.n_betas, torch.float64)
    base = default_base(energy, rows) if base is None else base
    check_base(energy, base, rows)
    if not covers(energy.domain, base.domain):
        raise ValueError(
            f"Annealing starts at draws of the base, and some of {base!r} are outside "
            f"{energy.domain}. Pass a base on that domain, or use ImportanceSampling or "
            "BridgeSampling."
        )
    if base is not getattr(energy, "base", None):
        base = base.to(template.device, template.dtype)
    path = annealing_path(energy, base)
    midpoint = path.at(0.5)
    kernel = (default_sampler(midpoint) if sampler is None else sampler).kernel
    if not kernel.exact:
        raise ValueError(
            f"Annealed importance sampling is unbiased only with exact kernels, and {kernel} is "
            "biased. Pass a sampler that accepts or rejects its steps."
        )
    kernel.check(midpoint)
    schedule = Schedule(np.linspace(0, 1, estimator.n_betas).tolist(), [], [])
    if pilots or kernel.adapts:
        schedule = adaptive_schedule(path, kernel, n_chains, estimator.n_betas, generator)
    verbose = estimator.verbose
    return AnnealingPlan(path, kernel, schedule, estimator.delta, generator, verbose, deadline)


def uneven(ess: float, n: int) -> Notice:
    """What a small effective sample size of `n` annealing runs means, and what to do."""
    return Notice(
        f"The effective sample size of {n} annealing runs is {ess:.2f}: log Z is known to within "
        "several nats at best.",
        LikelihoodWarning,
        MORE,
    )


def notice_of_limits(limits: dict[str, Any], std_error: float) -> Notice:
    """That a limit has ended an estimate, with which error, and what to do."""
    shown = ", ".join(f"{name}={value:.3g}" for name, value in limits.items() if value is not None)
    return Notice(
        f"A limit has ended the estimate of log Z at a standard error of {std_error:.2g} nats "
        f"({shown}).",
        LikelihoodWarning,
        (("Raise the limit for a smaller error.", *limits),),
    )


class AIS(MonteCarloEstimator):
    r"""Annealed importance sampling, from a tractable base to the model.

    Direction: :math:`\hat Z` is unbiased, so :math:`\log \hat Z` is on average below log Z.
    ``lower`` = :math:`\log \hat Z - \log(1 / \delta)` is a lower bound that holds with probability
    at least :math:`1 - \delta` (Markov's inequality). There is no upper bound (``nan``): the
    weights do not show a mode that all chains have missed. ``std_error`` is that of the delta
    method, increased by an estimate of the unobserved tail of the weights; it does not account for
    modes that no chain has come near. Sums are accumulated in float64. A warning is issued if the
    effective sample size is below five (or a tenth of the chains, if that is less).

    Pilot runs of a tenth of the cost place the temperatures closer together where annealing is
    hard, and let a sampler with ``adapt=True`` adapt at each of them. Their chains do not enter the
    estimate, which is therefore unbiased given the schedule.

    Parameters
    ----------
    n_chains : int, default=100
        Independent annealing runs.
    n_betas : int, default=2000
        Number of inverse temperatures of the path. The error decreases faster with `n_betas` than
        with `n_chains`.
    delta : float in (0, 1], default=0.05
        Probability with which the bound may fail.
    verbose : int, default=0
        1 shows a progress bar for what takes over two seconds.
    max_seconds : float or None, default=None
        Limit on wall-clock time. A sixteenth, a quarter and all of the temperatures (125 at least)
        are tried in turn, as long as time remains. If the first run is unfinished when the time is
        up, it skips the rest of its temperatures; a later one is discarded. The estimate keeps its
        direction and bound, has a larger error, and is not reproducible, even with the same seed. A
        warning is issued if the limit takes effect.

    References
    ----------
    Neal (2001), "Annealed importance sampling", Statistics and Computing 11(2). Salakhutdinov and
    Murray (2008), "On the quantitative analysis of deep belief networks", ICML, section 4. Grosse,
    Maddison and Salakhutdinov (2013), "Annealing between distributions by averaging moments",
    NeurIPS, section 3, and Sivak and Crooks (2012), "Thermodynamic metrics and optimal paths", PRL
    108 (the schedule).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import AIS, Exact
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(8, 4, generator=generator, scale=0.5)
    >>> estimate = AIS(n_betas=200).estimate(energy, generator=generator)
    >>> abs(estimate.value - Exact().estimate(energy).value) < 0.1
    True
    """

    def __init__(
        self,
        n_chains: int = 100,
        n_betas: int = 2000,
        delta: float = 0.05,
        verbose: int = 0,
        max_seconds: float | None = None,
    ):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.delta = delta
        self.verbose = verbose
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
        """Anneal `n_chains` draws of `base`.

        The default base is that of the energy. Without one it is uniform or, on unbounded real
        rows, a normal distribution, fitted to `x` if this is given and otherwise standard. The
        default `sampler` is Gibbs for bipartite and pairwise energies, GibbsWithGradients on other
        discrete rows, and HMC with adaptation on real ones.
        """
        self.check(energy)

        def run(one: AIS, deadline: Deadline) -> LogPartition:
            plan = annealing_plan(one, energy, base, sampler, x, generator, self.n_chains, deadline)
            return plan.forward(self.n_chains)

        with sampling(energy), torch.no_grad():
            return within_seconds(self, run)


class ReverseAIS(MonteCarloEstimator):
    r"""Reverse annealed importance sampling, from samples of the model to the base.

    Direction: from **exact** model samples :math:`1 / \hat Z` is unbiased, so :math:`\log \hat Z`
    is on average above log Z and ``upper`` = :math:`\log \hat Z + \log(1 / \delta)` holds with
    probability at least :math:`1 - \delta` (``bound_kind`` "probabilistic"). From data or training
    chains the estimate is heuristic and can lie on either side of log Z. `exact_samples` says which
    of the two cases applies. There is no lower bound (``nan``). The schedule and ``std_error`` are
    those of :class:`AIS`.

    Parameters
    ----------
    n_betas : int, default=2000
        Inverse temperatures of the path.
    delta : float in (0, 1], default=0.05
        Probability with which the bound may fail, given exact samples.
    exact_samples : bool, default=False
        Whether the rows `x` passed to :meth:`estimate` are exact samples of the model.
    verbose : int, default=0
        1 shows a progress bar for what takes over two seconds.
    max_seconds : float or None, default=None
        Limit on wall-clock time, as in :class:`AIS`; with it the estimate is not reproducible.

    References
    ----------
    Burda, Grosse and Salakhutdinov (2015), "Accurate and conservative estimates of MRF
    log-likelihood using reverse annealing", AISTATS. Grosse, Ghahramani and Adams (2015),
    "Sandwiching the marginal likelihood using bidirectional Monte Carlo".

    Examples
    --------
    Without weights any row is an exact sample of the uniform distribution, and Z is known:

    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import ReverseAIS
    >>> energy = BernoulliRBM(4, 2, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> estimate = ReverseAIS(50, exact_samples=True).estimate(energy, x=torch.eye(4))
    >>> round(estimate.value, 4), estimate.bound_kind  # 6 log 2
    (4.1589, 'probabilistic')
    """

    def __init__(
        self,
        n_betas: int = 2000,
        delta: float = 0.05,
        exact_samples: bool = False,
        verbose: int = 0,
        max_seconds: float | None = None,
    ):
        self.n_betas = n_betas
        self.delta = delta
        self.exact_samples = exact_samples
        self.verbose = verbose
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
        """Anneal the rows `x` (n, ...), a tensor or several by name, from the model to the base.

        A default normal base is fitted to half of the rows, and the other half is annealed.
        """
        self.check(energy)
        rows = rows_of(energy, x)
        if rows is None:
            raise ValueError("ReverseAIS starts from samples of the model: pass them as x.")
        if fits_base(energy, base) and len(rows) > 1:
            base, rows = default_base(energy, rows[::2]), rows[1::2]

        def run(one: ReverseAIS, deadline: Deadline) -> LogPartition:
            n = len(rows)
            plan = annealing_plan(one, energy, base, sampler, x, generator, n, deadline)
            return plan.reverse(rows)

        with sampling(energy), torch.no_grad():
            estimate = within_seconds(self, run)
        return estimate._replace(bound_kind="probabilistic") if self.exact_samples else estimate
