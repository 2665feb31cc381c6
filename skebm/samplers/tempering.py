"""Parallel tempering: replicas at higher temperatures carry the cold chains across barriers."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm._validation import Interval
from skebm.base import BipartiteEnergy, ChainState, Clamp, Domain, Energy, Sampler, StepInfo
from skebm.samplers._moves import accepts, select
from skebm.samplers.gibbs import Gibbs
from skebm.samplers.langevin import AnnealedLangevin

# Where the ladder of an energy without a base ends.
DEFAULT_MAX_TEMPERATURE = 10.0


class ParallelTempering(Sampler):
    r"""Replica exchange around any sampler: exact where that is.

    Each chain is a ladder of K replicas, replica k on :math:`p_k \propto \exp(-E_k)`, the last on
    the energy itself. A step moves every replica by `sampler`, then neighbours a and b exchange
    their rows with probability
    :math:`\min\bigl(1, \exp(E_a(x_a) + E_b(x_b) - E_a(x_b) - E_b(x_a))\bigr)`, first pairs (1, 2),
    (3, 4), ..., then (2, 3), (4, 5), .... The product of all :math:`p_k` is invariant. A step costs
    K times that of `sampler`, and more for the exchange.

    There are two ladders. Along the *path* of a bipartite energy, :math:`E_k = E_{t_k}` with
    :math:`t_k` evenly spaced from 0, the energy's base (the uniform distribution without one), to
    1. Along *temperatures*, :math:`E_k = E / T_k` with :math:`T_k` in geometric progression from
    `max_temperature` to 1 (E being that of both layers where there are two).

    Parameters
    ----------
    n_temperatures : int, default=8
        Replicas K of each chain, 2 or more. Exchanges should succeed in a fifth of tries or more:
        a few replicas do for tens of columns, 18 to 25 for machines on 784 pixels.
    sampler : Sampler or None, default=None
        Kernel of the replicas; None is :class:`Gibbs`. With ``adapt=True`` each replica finds its
        own step.
    max_temperature : float or None, default=None
        Above 1. None is the path where the energy has one, and temperatures up to 10 elsewhere.

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

    Two far modes, and chains that all start at one of them:

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

    domains = (Domain,)
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
        """Raise unless `sampler` takes the energy and there are temperatures to exchange."""
        super().check(energy)
        k, kernel = self.n_temperatures, self.kernel
        if not isinstance(k, Integral) or k < 2:
            raise ValueError(f"n_temperatures must be at least 2 and an integer, got {k!r}.")
        moves = isinstance(kernel, Sampler) and not isinstance(kernel, AnnealedLangevin)
        if not moves or kernel.kernel is not kernel:
            raise ValueError(
                "The sampler of ParallelTempering moves each replica from its row alone, as Gibbs "
                f"does, which {kernel!r} cannot. Use sampler=None."
            )
        try:
            kernel.check(energy)
        except TypeError as error:
            raise TypeError(
                f"{error} Give ParallelTempering a sampler for it, such as MALA(adapt=True) on "
                "real or GibbsWithGradients() on binary rows."
            ) from error

    @property
    def kernel(self) -> Sampler:
        """That of the replicas: rows alone do not tell where the others stand."""
        return Gibbs() if self.sampler is None else self.sampler

    @property
    def exact(self) -> bool:
        """Whether the kernel is."""
        return self.kernel.exact

    @property
    def adapts(self) -> bool:
        """Whether the kernel does."""
        return self.kernel.adapts

    @property
    def accepts_relaxed_rows(self) -> bool:
        """Whether the kernel's rows do."""
        return self.kernel.accepts_relaxed_rows

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """Chains whose replicas all stand at the rows of x; ``aux`` has their states, hot first."""
        kernel = self.kernel
        return _ladder([kernel.init(rung, x) for rung, _ in self._rungs(energy)])

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same replicas under an energy that has changed."""
        kernel, rungs = self.kernel, self._rungs(energy)
        return _ladder(
            [kernel.refresh(rung, one) for (rung, _), one in zip(rungs, state.aux, strict=True)]
        )

    def freeze(self, state: ChainState) -> ChainState:
        """Replicas whose further steps are all alike."""
        return _ladder([self.kernel.freeze(one) for one in state.aux])

    def step(
        self,
        energy: Any,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Move every replica, then let neighbours exchange; acceptance is that of exchanges."""
        kernel, rungs = self.kernel, self._rungs(energy)
        states = [
            kernel.step(rung, one, generator, beta * cold, clamp)[0]
            for (rung, cold), one in zip(rungs, state.aux, strict=True)
        ]
        rates = []
        for first in (0, 1):
            for k in range(first, len(rungs) - 1, 2):
                a, b = states[k], states[k + 1]
                gain = self._gain(rungs[k], rungs[k + 1], a, b, beta)
                swap = accepts(gain, generator)
                states[k : k + 2] = select(swap, b, a), select(swap, a, b)
                if a.energy is not None and rungs[k][0] is not rungs[k + 1][0]:
                    for j in (k, k + 1):  # what they had cached was of the other rung
                        states[j] = kernel.refresh(rungs[j][0], states[j])
                rates.append(gain.clamp(max=0).exp().mean())
        return _ladder(states), StepInfo(torch.stack(rates).mean())

    def _rungs(self, energy: Any) -> list[tuple[Any, float]]:
        """Energy and inverse temperature of each replica, hot first."""
        last, top = self.n_temperatures - 1, self.max_temperature
        if top is None and isinstance(energy, BipartiteEnergy):
            return [(energy.annealed(k / last), 1.0) for k in range(last)] + [(energy, 1.0)]
        top = DEFAULT_MAX_TEMPERATURE if top is None else top
        return [(energy, top ** (k / last - 1)) for k in range(last + 1)]

    def _gain(self, hot: Any, cold: Any, a: ChainState, b: ChainState, beta: float) -> Tensor:
        """log of the exchange's ratio for replicas a at `hot` and b at `cold`, (n,)."""
        if isinstance(cold[0], BipartiteEnergy):
            both = torch.cat([a.x, b.x])
            level = [rung.free_energy(both, beta * one) for rung, one in (hot, cold)]
            change = level[0] - level[1]  # (2n,)
            return change[: len(a.x)] - change[len(a.x) :]
        level_a = hot[0](a.x) if a.energy is None else a.energy
        level_b = cold[0](b.x) if b.energy is None else b.energy
        return beta * (hot[1] - cold[1]) * (level_a - level_b)


def _ladder(states: list[ChainState]) -> ChainState:
    """The coldest replica, with all of them beside it."""
    return states[-1]._replace(aux=tuple(states))
