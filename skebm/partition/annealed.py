"""log Z by annealing between a distribution that is known and the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm.base import Energy, LogPartition, Sampler, sampling
from skebm.base.energy import check_energy
from skebm.base.sampler import whole_number
from skebm.energies import AnnealingPath, annealing_path
from skebm.partition.checks import (
    NO_UPPER,
    WeighingMethod,
    check_base,
    check_delta,
    covers,
    default_base,
    default_sampler,
    generator_for,
    is_fitted,
    like,
    rows_of,
)
from skebm.partition.importance import Weights, summarise
from skebm.samplers import Gibbs

# Pilots have a quarter of the chains (some, if there are so many), at this many temperatures.
# Beyond the largest numbers of chains and steps nothing is learned that shows.
N_RUNGS, MIN_CHAINS, MAX_CHAINS, MAX_STEPS = 10, 10, 50, 800
# Share of the run's cost that the pilots take, together.
PILOTS = 0.1
# Fewer temperatures tell no more about the path than an even spacing.
MIN_BETAS = 20
# Steps by which a kernel tunes itself at each temperature of the first pilot.
TUNING_STEPS = 20
# Share of the temperatures that go by length; the others are even, as short pilots do not see all
# of a long autocorrelation.
SHARE = 0.5


class Schedule(NamedTuple):
    """Inverse temperatures from 0 to 1, and the settings that a kernel has found along them.

    Attributes
    ----------
    betas : list of float
    known_betas : list of float
        Where the settings were found, rising.
    settings : list
        ``aux`` of the kernel's states, frozen; None where it has none.
    """

    betas: list[float]
    known_betas: list[float]
    settings: list[Any]

    def at(self, beta: float) -> Any:
        """Settings found at `beta` or next above it, where steps are rather too small."""
        if not self.settings:
            return None
        place = int(np.searchsorted(self.known_betas, beta))
        return self.settings[min(place, len(self.settings) - 1)]


def anneal(
    path: AnnealingPath,
    kernel: Sampler,
    x: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
    backwards: bool = False,
) -> Iterator[Tensor]:
    """Take rows along a schedule from the base to the model; yield each step's log weights.

    At every inner temperature the rows move once: after the weights of the step that leads there.
    `backwards` starts at the model.
    """
    betas = schedule.betas[::-1] if backwards else schedule.betas
    for old, new in zip(betas, betas[1:], strict=False):
        inner = 0 < new < 1
        if inner:
            rung = path.at(new)
            state = kernel.init(rung, x)
        yield path.log_ratio(x, old, new)
        if inner:
            settings = schedule.at(new)
            if settings is not None:
                state = state._replace(aux=settings)
            elif isinstance(kernel, Gibbs):
                state = state._replace(aux=path.hidden_layer(x, new, generator))
            x = kernel.step(rung, state, generator)[0].x


def adapted(
    path: AnnealingPath, kernel: Sampler, n_chains: int, n_betas: int, generator: torch.Generator
) -> Schedule:
    r"""Temperatures closer together where annealing is hard, and kernels that fit them.

    Steps of equal length :math:`\sqrt{\zeta}\, d\beta` give weights the least variance, where

    .. math:: \zeta(\beta) = \mathrm{Var}(s)\, \Bigl(1 + 2 \sum_{k > 0} \rho_k\Bigr), \qquad
        s = \frac{d}{d\beta} \log p_\beta(x)

    (not normalised) and :math:`\rho_k` is its autocorrelation along a chain at :math:`\beta`. The
    variance alone is the rule of equal conditional effective sample sizes,
    :math:`(\sum w)^2 / (n \sum w^2) = 1 - \mathrm{Var}(s)\, d\beta^2` to second order, and right
    for chains that forget within a step. The autocorrelation adds temperatures where they lag.

    Two pilots, of a tenth of the cost together, anneal draws of the base over twenty temperatures:
    evenly spaced ones, at which a kernel with ``adapt=True`` tunes itself (that takes four hundred
    steps, however short the run), then ones spaced by the variances that the first has found, at
    which :math:`\zeta` is the variance of a sum over consecutive steps. Half of the final
    temperatures are spread evenly, as all this is rough.

    The pilots' chains do not enter the estimate, which is unbiased given what they found.

    References
    ----------
    Grosse, Maddison and Salakhutdinov (2013), "Annealing between distributions by averaging
    moments", NeurIPS, section 3 (lengths). Sivak and Crooks (2012), "Thermodynamic metrics and
    optimal paths", PRL 108, eq. 7 and 12 (autocorrelation). Zhou, Johansen and Aston (2016),
    "Toward automatic model comparison", JCGS 25(3), section 3.3 (conditional effective sample
    size).
    """
    even = np.linspace(0, 1, n_betas)
    if n_betas == 2 or not (kernel.adapts or n_betas >= MIN_BETAS):
        return Schedule(even.tolist(), [], [])
    n = min(max(n_chains // 4, min(n_chains, MIN_CHAINS), 2), MAX_CHAINS)
    room = max(min(int(PILOTS * n_betas * n_chains / n), MAX_STEPS), 2)
    rungs = np.linspace(0, 1, min(N_RUNGS, room // 2) + 1)
    n_steps = TUNING_STEPS if kernel.adapts else 1
    length, known = _explore(path, kernel, n, rungs, n_steps, generator)
    if room > 2 * N_RUNGS:
        rungs = np.asarray(_spaced(rungs, length, N_RUNGS + 1))
        length, known = _explore(path, kernel, n, rungs, room // N_RUNGS - 1, generator, known)
    return known._replace(betas=_spaced(rungs, length, n_betas))


def _spaced(betas: np.ndarray, length: np.ndarray, n: int) -> list[float]:
    """`n` inverse temperatures from 0 to 1, by the lengths of the steps between some of them."""
    so_far = np.append(0, np.cumsum(length))
    even = np.linspace(0, 1, n)
    if not 0 < so_far[-1] < np.inf:  # a path without length, or an overflow, left for the run
        return even.tolist()
    return np.interp(even, SHARE * so_far / so_far[-1] + (1 - SHARE) * betas, betas).tolist()


def _explore(
    path: AnnealingPath,
    kernel: Sampler,
    n: int,
    betas: np.ndarray,
    n_steps: int,
    generator: torch.Generator,
    known: Schedule | None = None,
) -> tuple[np.ndarray, Schedule]:
    """Lengths of the steps between some temperatures, seen by chains at their middles.

    The kernel is set as `known`, or its settings are found on the way. Returned with them.
    """
    x, length, found = path.base.sample(n, generator), [], []
    middles = (betas[:-1] + betas[1:]) / 2
    for old, new, middle in zip(betas, betas[1:], middles.tolist(), strict=False):
        rung = path.at(middle)
        state = kernel.init(rung, x)
        if known is not None:
            state = state._replace(aux=known.at(middle))
        total = torch.zeros(n, dtype=torch.float64, device=x.device)
        for _ in range(n_steps):
            state = kernel.step(rung, state, generator)[0]
            total += path.log_ratio(state.x, float(old), float(new))
            if isinstance(kernel, Gibbs):
                state = state._replace(aux=path.hidden_layer(state.x, middle, generator))
        x = state.x
        length.append(total.std() / n_steps**0.5)
        if known is None and not isinstance(kernel, Gibbs):
            state = kernel.freeze(state)
            found.append(state.aux)
            if kernel.adapts:  # the next search starts from here
                kernel = clone(kernel).set_params(step_size=float(state.aux.step_size))
    lengths = torch.stack(length).cpu().numpy()
    return lengths, known or Schedule([], middles.tolist(), found)


# Effective draws below which the mean of weights is not trusted.
FEW = 5
NO_LOWER = "no lower end: weights of model draws that all missed a mode look as good as any"


class AnnealingPlan(NamedTuple):
    """What every annealing run of an estimate has in common."""

    path: AnnealingPath
    kernel: Sampler
    schedule: Schedule
    delta: float
    generator: torch.Generator

    def forward(self, n_chains: int) -> LogPartition:
        """AIS from the base."""
        x = self.path.base.sample(n_chains, self.generator)
        log_mean, std_error, ess = self._weighed(x)
        value = self.path.log_z0 + log_mean
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

    def backward(self, x: Tensor) -> LogPartition:
        """Reverse AIS from rows x: a guess."""
        log_mean, std_error, ess = self._weighed(x, backwards=True)
        value = self.path.log_z0 - log_mean
        upper = value - math.log(self.delta)
        return LogPartition(value, std_error, math.nan, upper, "heuristic", ess, reason=NO_LOWER)

    def _weighed(self, x: Tensor, backwards: bool = False) -> Weights:
        log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for step in anneal(
            self.path, self.kernel, x, self.schedule, self.generator, backwards=backwards
        ):
            log_w += step
        found, n = summarise(log_w), len(log_w)
        if n > 1 and found.ess < min(FEW, n / 10):
            warnings.warn(
                f"Few of {n} annealing runs carry almost all weight (effective sample size "
                f"{found.ess:.2f}): log Z is known to within some nats at best. Use more n_betas, "
                "or a base nearer to the model.",
                ConvergenceWarning,
                stacklevel=4,  # the caller of `estimate`
            )
        return found


def annealing_plan(
    estimator: Any,
    energy: Energy,
    base: Any,
    sampler: Sampler | None,
    x: Tensor | Mapping[str, Tensor] | None,
    generator: torch.Generator | None,
    n_chains: int,
) -> AnnealingPlan:
    """Fill in what was not passed, refuse what cannot be annealed, and place the temperatures.

    To be called without gradients, the energy in ``eval()`` mode.
    """
    estimator.check(energy)
    check_delta(estimator.delta)
    whole_number("n_betas", estimator.n_betas, 2)
    whole_number("n_chains", n_chains, 1)
    rows = rows_of(energy, x)
    kind = like(energy, rows)
    generator = generator_for(generator, kind.device)
    base = default_base(energy, rows) if base is None else base
    check_base(energy, base, rows)
    if not covers(energy.domain, base.domain):
        raise ValueError(
            f"Annealing starts at draws of the base, and some of {base!r} are outside "
            f"{energy.domain}. Pass a base on that domain, or use ImportanceSampling or "
            "BridgeSampling."
        )
    if base is not getattr(energy, "base", None):
        base = base.to(kind.device, kind.dtype)
    path = annealing_path(energy, base)
    middle = path.at(0.5)
    kernel = (default_sampler(middle) if sampler is None else sampler).kernel
    if not kernel.exact:
        raise ValueError(
            f"Annealed importance sampling is unbiased only along exact kernels, and "
            f"{kernel} is biased. Pass one that accepts or rejects its steps."
        )
    kernel.check(middle)
    schedule = adapted(path, kernel, n_chains, estimator.n_betas, generator)
    return AnnealingPlan(path, kernel, schedule, estimator.delta, generator)


class AIS(WeighingMethod):
    r"""Annealed importance sampling, from a base whose log Z is known to the model.

    Direction: :math:`\hat Z` is unbiased, so :math:`\log \hat Z` is on average below log Z.
    ``lower`` = :math:`\log \hat Z - \log(1 / \delta)` is a lower bound that holds with probability
    at least :math:`1 - \delta` (Markov's inequality). There is no upper bound (``nan``): weights
    that missed a mode look as good as any. ``std_error`` is the delta method's, enlarged by what
    the tail of the weights promises; of a mode that no chain came near it knows nothing.
    Accumulates in float64. Warns when one chain carries almost all weight.

    Pilots of a tenth of the cost place the temperatures closer together where annealing is hard,
    and let a sampler with ``adapt=True`` find its settings at each. Their chains are not used
    again, so that the estimate is unbiased given what they found.

    Parameters
    ----------
    n_chains : int, default=100
        Independent annealing runs.
    n_betas : int, default=2000
        Inverse temperatures of the path. The error falls faster in these than in `n_chains`.
    delta : float, default=0.05
        Probability with which the bound may fail.

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

    def __init__(self, n_chains: int = 100, n_betas: int = 2000, delta: float = 0.05):
        self.n_chains = n_chains
        self.n_betas = n_betas
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
        """Anneal `n_chains` draws of `base`.

        The default base is the energy's, or uniform, or on unbounded real rows a normal one: fitted
        to `x`, or standard. The default `sampler` is Gibbs where there are blocks,
        GibbsWithGradients on other discrete rows, and HMC that tunes itself on real ones.
        """
        check_energy(energy)
        with sampling(energy), torch.no_grad():
            run = annealing_plan(self, energy, base, sampler, x, generator, self.n_chains)
            return run.forward(self.n_chains)


class ReverseAIS(WeighingMethod):
    r"""Annealing from samples of the model back to the base.

    Direction: from **exact** model samples :math:`1 / \hat Z` is unbiased, so :math:`\log \hat Z`
    is on average above log Z and ``upper`` = :math:`\log \hat Z + \log(1 / \delta)` holds with
    probability at least :math:`1 - \delta`. From data or training chains it is a guess that can
    lie on either side; say which by `exact_samples`. There is no lower bound (``nan``). The
    schedule and ``std_error`` are made as by :class:`AIS`.

    Parameters
    ----------
    n_betas : int, default=2000
        Inverse temperatures of the path.
    delta : float, default=0.05
        Probability with which the bound may fail, given exact samples.
    exact_samples : bool, default=False
        Whether the rows `x` given to :meth:`estimate` are exact samples of the model.

    References
    ----------
    Burda, Grosse and Salakhutdinov (2015), "Accurate and conservative estimates of MRF
    log-likelihood using reverse annealing", AISTATS. Grosse, Ghahramani and Adams (2015),
    "Sandwiching the marginal likelihood using bidirectional Monte Carlo".

    Examples
    --------
    Without weights every row is an exact sample of the uniform distribution, and Z is known:

    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.partition import ReverseAIS
    >>> energy = BernoulliRBM(4, 2, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> estimate = ReverseAIS(50, exact_samples=True).estimate(energy, x=torch.eye(4))
    >>> round(estimate.value, 4), estimate.bound_kind  # 6 log 2
    (4.1589, 'probabilistic')
    """

    def __init__(self, n_betas: int = 2000, delta: float = 0.05, exact_samples: bool = False):
        self.n_betas = n_betas
        self.delta = delta
        self.exact_samples = exact_samples

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Anneal the rows of `x` (n, d), or of several by name, from the model to the base.

        A normal base, where none is given, is fitted to half of them, and the others are annealed.
        """
        check_energy(energy)
        rows = rows_of(energy, x)
        if rows is None:
            raise ValueError("ReverseAIS starts from model samples: pass rows of them as x.")
        if is_fitted(energy, base) and len(rows) > 1:
            base, rows = default_base(energy, rows[::2]), rows[1::2]
        with sampling(energy), torch.no_grad():
            found = annealing_plan(self, energy, base, sampler, x, generator, len(rows)).backward(
                rows
            )
        return found._replace(bound_kind="probabilistic") if self.exact_samples else found
