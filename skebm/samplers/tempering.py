"""Exchange of rows between replicas: at different temperatures, or of models along training."""

from __future__ import annotations

import abc
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval, warn
from skebm.base import (
    BipartiteEnergy,
    ChainState,
    Clamp,
    Domain,
    Energy,
    EnergyLadder,
    Sampler,
    SamplingWarning,
    StepInfo,
)
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.samplers._moves import accepts, select
from skebm.samplers.gibbs import Gibbs
from skebm.samplers.langevin import AnnealedLangevin

# Rate of exchanges below which a run says that a pair of replicas hardly ever exchanges rows, and
# rows that a run must have offered to each pair to know.
LEAST_RATE, ENOUGH_OFFERS = 0.01, 500


class ReplicaExchange(Sampler):
    """Chains of replicas with distributions of their own, which exchange rows; see subclasses."""

    domains = (Domain,)
    sampler: Sampler | None

    _n_moves = 1  # steps of each replica between exchanges
    _remedy: str  # what to do where neighbours hardly ever exchange rows

    @abc.abstractmethod
    def _rungs(self, energy: Any) -> list[tuple[Any, float]]:
        """Energy and inverse temperature of each replica, the energy that is sampled last."""

    def check(self, energy: Energy) -> None:
        """Raise for invalid parameters, or where `sampler` cannot sample the energy."""
        super().check(energy)
        kernel, name = self.kernel, type(self).__name__
        usable = isinstance(kernel, Sampler) and not isinstance(kernel, AnnealedLangevin)
        if not usable or kernel.kernel is not kernel:
            raise ValueError(
                f"The sampler of {name} must be a kernel of the present row alone, such as Gibbs, "
                f"but got {kernel!r}. Use sampler=None."
            )
        try:
            kernel.check(energy)
        except TypeError as error:
            raise TypeError(
                f"{error} Pass {name} a sampler for it, such as MALA(adapt=True) for "
                "real or GibbsWithGradients() for binary rows."
            ) from error

    @property
    def kernel(self) -> Sampler:
        """The kernel of a replica, because a row does not determine the other replicas."""
        return Gibbs() if self.sampler is None else self.sampler

    @property
    def exact(self) -> bool:
        """Whether the kernel is exact."""
        return self.kernel.exact

    @property
    def adapts(self) -> bool:
        """Whether the kernel adapts."""
        return self.kernel.adapts

    @property
    def accepts_relaxed_rows(self) -> bool:
        """Whether the kernel accepts relaxed rows."""
        return self.kernel.accepts_relaxed_rows

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """Chains with all replicas at the rows of x; ``aux`` holds their states, hottest first."""
        rungs = self._rungs(energy)
        what = f"{len(rungs)} replicas of {len(x)} chains"
        check_memory(what, len(rungs) * x.numel(), x.dtype, x.device)
        return _coldest_state([self.kernel.init(rung, x) for rung, _ in rungs])

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same replicas under an energy that has changed."""
        kernel, rungs = self.kernel, self._rungs(energy)
        return _coldest_state(
            [kernel.refresh(rung, one) for (rung, _), one in zip(rungs, state.aux, strict=True)]
        )

    def freeze(self, state: ChainState) -> ChainState:
        """The same chains with the adapted settings of all replicas fixed."""
        return _coldest_state([self.kernel.freeze(one) for one in state.aux])

    def step(
        self,
        energy: Any,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Move every replica, then exchange neighbours; the acceptance is that of exchanges."""
        kernel, rungs = self.kernel, self._rungs(energy)
        states = list(state.aux)
        for k, (rung, cold) in enumerate(rungs):
            for _ in range(self._n_moves):
                states[k] = kernel.step(rung, states[k], generator, beta * cold, clamp)[0]
        rates: list[Any] = [None] * (len(rungs) - 1)
        for first in (0, 1):
            for k in range(first, len(rungs) - 1, 2):
                a, b = states[k], states[k + 1]
                log_ratio = self._log_exchange_ratio(rungs[k], rungs[k + 1], a, b, beta)
                swap = accepts(log_ratio, generator)
                states[k : k + 2] = select(swap, b, a), select(swap, a, b)
                if a.energy is not None and rungs[k][0] is not rungs[k + 1][0]:
                    for j in (k, k + 1):  # the cached energies are those of the other replica
                        states[j] = kernel.refresh(rungs[j][0], states[j])
                rates[k] = log_ratio.clamp(max=0).exp().mean()
        by_pair = torch.stack(rates)
        return _coldest_state(states), StepInfo(by_pair.mean(), by_pair)

    def _check_run(self, info: StepInfo, n_offers: int) -> None:
        """Warn where neighbours hardly ever exchange rows."""
        assert info.rates is not None
        pair = int(info.rates.argmin())
        rate = float(info.rates[pair])
        if rate < LEAST_RATE and n_offers >= ENOUGH_OFFERS:
            warn(
                f"Rungs {pair} and {pair + 1} of {len(info.rates) + 1} exchange rows at a rate of "
                f"{rate:.2g}: rows of the last one come from later ones alone.",
                SamplingWarning,
                (self._remedy,),
            )

    def _log_exchange_ratio(
        self, hot: Any, cold: Any, a: ChainState, b: ChainState, beta: float
    ) -> Tensor:
        """Log of the acceptance ratio of exchanging replicas a at `hot` and b at `cold`, (n,)."""
        if isinstance(cold[0], BipartiteEnergy):
            both = torch.cat([a.x, b.x])
            energies = [rung.free_energy(both, beta * one) for rung, one in (hot, cold)]
            change = energies[0] - energies[1]  # (2n,)
            return change[: len(a.x)] - change[len(a.x) :]
        energy_a = hot[0](a.x) if a.energy is None else a.energy
        energy_b = cold[0](b.x) if b.energy is None else b.energy
        return beta * (hot[1] - cold[1]) * (energy_a - energy_b)


class ParallelTempering(ReplicaExchange):
    r"""Parallel tempering (replica exchange) with any sampler: exact if the sampler is.

    Each chain is a ladder of K replicas, replica k with :math:`p_k \propto \exp(-E_k)`, the last
    with the energy itself. A step moves every replica by `sampler`, then neighbours a and b
    exchange their rows with probability
    :math:`\min\bigl(1, \exp(E_a(x_a) + E_b(x_b) - E_a(x_b) - E_b(x_a))\bigr)`, first pairs (1, 2),
    (3, 4), ..., then (2, 3), (4, 5), .... The product of all :math:`p_k` is invariant. A step costs
    K times a step of `sampler`, plus the exchange.

    There are two kinds of ladders. On the *path* of a bipartite energy, :math:`E_k = E_{t_k}` with
    :math:`t_k` evenly spaced from 0, the energy's base (the uniform distribution without one), to
    1. With *temperatures*, :math:`E_k = E / T_k` with :math:`T_k` in geometric progression from
    `max_temperature` to 1; for a bipartite energy, E is the joint energy of both layers.

    Parameters
    ----------
    n_temperatures : int, default=8
        Replicas K of each chain, 2 or more. At least a fifth of the exchanges should be accepted:
        a few replicas are enough for tens of columns, RBMs of 784 pixels need 18 to 25.
    sampler : Sampler or None, default=None
        Kernel of the replicas; None is :class:`Gibbs`. With ``adapt=True`` each replica adapts its
        own step size.
    max_temperature : float or None, default=None
        Above 1. None is the path where the energy has one, and otherwise temperatures up to 10.

    Warns
    -----
    SamplingWarning
        By :meth:`run`, if a pair of neighbours accepts less than one exchange in a hundred. The
        rates of all pairs are in ``rates`` of the information that it returns.

    References
    ----------
    Swendsen and Wang (1986), "Replica Monte Carlo simulation of spin-glasses", PRL 57. Desjardins,
    Courville, Bengio, Vincent and Delalleau (2010), "Tempered Markov chain Monte Carlo for training
    of restricted Boltzmann machines", AISTATS. Cho, Raiko and Ilin (2010), "Parallel tempering is
    efficient for learning restricted Boltzmann machines", IJCNN.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import ParallelTempering
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(6, 3, generator=generator)
    >>> state, info = ParallelTempering(4).run(energy, torch.zeros(5, 6), 10, generator)
    >>> tuple(state.x.shape), len(state.aux)
    ((5, 6), 4)

    Two distant modes, with all chains starting in one of them:

    >>> from skebm.base import Energy, Real
    >>> from skebm.samplers import MALA
    >>> class Modes(Energy):
    ...     domain = Real((1,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return -torch.logaddexp(-((x - 6) ** 2) / 2, -((x + 6) ** 2) / 2).squeeze(1)
    >>> sampler = ParallelTempering(6, MALA(adapt=True), max_temperature=30.0)
    >>> state, _ = sampler.run(Modes(), torch.full((400, 1), 6.0), 300, generator)
    >>> round(float((state.x > 0).float().mean()), 1)
    0.5
    """

    _remedy = "Raise n_temperatures, or lower max_temperature where one is set."
    _parameter_constraints = {
        "max_temperature": [Interval(RealNumber, 1, None, closed="neither"), None],
    }

    def __init__(
        self,
        n_temperatures: int = 8,
        sampler: Sampler | None = None,
        *,
        max_temperature: float | None = None,
    ):
        self.n_temperatures = n_temperatures
        self.sampler = sampler
        self.max_temperature = max_temperature

    def check(self, energy: Energy) -> None:
        """Raise for invalid parameters, or where `sampler` cannot sample the energy."""
        whole_number("n_temperatures", self.n_temperatures, 2)
        super().check(energy)

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """Chains with all replicas at the rows of x; ``aux`` holds their states, hottest first."""
        n_numbers = self.n_temperatures * x.numel()
        what = f"n_temperatures={self.n_temperatures} replicas of {len(x)} chains"
        check_memory(what, n_numbers, x.dtype, x.device)
        return super().init(energy, x)

    def _rungs(self, energy: Any) -> list[tuple[Any, float]]:
        """Energy and inverse temperature of each replica, hottest first."""
        last, top = self.n_temperatures - 1, self.max_temperature
        if top is None and isinstance(energy, BipartiteEnergy):
            return [(energy.annealed(k / last), 1.0) for k in range(last)] + [(energy, 1.0)]
        # Highest temperature of the ladder of an energy without a path.
        default_max_temperature = 10.0
        top = default_max_temperature if top is None else top
        return [(energy, top ** (k / last - 1)) for k in range(last + 1)]


class TrajectoryTempering(ReplicaExchange):
    r"""Replica exchange between models that training has gone through: exact if the sampler is.

    Each chain has a replica for each rung of an :class:`~skebm.energies.TrajectoryEnergy`: the
    base of the model, models kept along its training, and the model itself. A step moves every
    replica by `n_steps` steps of `sampler`, then neighbours a and b exchange their rows with
    probability :math:`\min\bigl(1, \exp(E_a(x_a) + E_b(x_b) - E_a(x_b) - E_b(x_a))\bigr)`, as in
    :class:`ParallelTempering`. Draws of the base are independent at every step, and modes of the
    model appear one after the other along the training, so that rows that come from early models
    reach all of them. Temperatures of the trained model alone may pass a transition of first order,
    where hardly any exchange is accepted.

    A trained model brings its energy with the models that were kept (``trajectory_`` of
    :class:`~skebm.RBMEstimator`, with ``optimizer=SGD(trajectory=Trajectory())``). A step costs as
    many steps of `sampler` as there are rungs, plus the exchanges.

    Parameters
    ----------
    n_steps : int, default=1
        Steps of the replicas between exchanges.
    sampler : Sampler or None, default=None
        Kernel of the replicas; None is :class:`Gibbs`.

    Warns
    -----
    SamplingWarning
        By :meth:`run`, if a pair of neighbours accepts less than one exchange in a hundred. The
        rates of all pairs are in ``rates`` of the information that it returns.

    References
    ----------
    Bereux, Decelle, Furtlehner and Seoane (2024), "Fast training and sampling of restricted
    Boltzmann machines", arXiv 2405.15376, section 5.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM, TrajectoryEnergy
    >>> from skebm.samplers import TrajectoryTempering
    >>> generator = torch.Generator().manual_seed(0)
    >>> models = [BernoulliRBM(6, 3, generator=generator, scale=s) for s in (0.01, 0.5, 1.0)]
    >>> energy = TrajectoryEnergy(models)
    >>> state, info = TrajectoryTempering().run(energy, torch.zeros(100, 6), 10, generator)
    >>> tuple(state.x.shape), len(state.aux), tuple(info.rates.shape)
    ((100, 6), 4, (3,))
    """

    _remedy = "Keep more models along training: raise n of Trajectory."

    def __init__(self, n_steps: int = 1, sampler: Sampler | None = None):
        self.n_steps = n_steps
        self.sampler = sampler

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy without rungs, or that `sampler` cannot sample."""
        whole_number("n_steps", self.n_steps, 1)
        if not isinstance(energy, EnergyLadder):
            raise TypeError(
                "TrajectoryTempering exchanges rows between models kept along training, and "
                f"{type(energy).__name__} has none: pass trajectory_ of a model fitted with "
                "optimizer=SGD(trajectory=Trajectory()), or use ParallelTempering."
            )
        super().check(energy)

    @property
    def _n_moves(self) -> int:  # type: ignore[override]
        return self.n_steps

    def _rungs(self, energy: Any) -> list[tuple[Any, float]]:
        return [(rung, 1.0) for rung in energy.rungs]


def _coldest_state(states: list[ChainState]) -> ChainState:
    """The state of the coldest replica, with those of all replicas in ``aux``."""
    return states[-1]._replace(aux=tuple(states))
