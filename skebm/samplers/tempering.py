"""Parallel tempering: replicas at higher temperatures carry the cold chains across barriers."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from skebm.base import (
    BipartiteEnergy,
    ChainState,
    Clamp,
    Domain,
    Energy,
    Sampler,
    StepInfo,
)
from skebm.samplers.gibbs import Gibbs


class ParallelTempering(Sampler):
    r"""Replica exchange along the path from an energy's base to the energy itself.

    Each chain is a ladder of replicas at :math:`0 \le t_1 < \dots < t_K = 1`, replica k on
    :math:`p_k \propto \exp(-E_{t_k})` with :math:`E_0` the base (the uniform distribution without
    one) and :math:`E_1 = E`. A step moves every replica by `sampler`, then neighbours a and b
    exchange their rows with probability
    :math:`\min\bigl(1, \exp(E_a(x_a) + E_b(x_b) - E_a(x_b) - E_b(x_a))\bigr)`, first pairs (1, 2),
    (3, 4), ..., then (2, 3), (4, 5), .... Exact: the product of all :math:`p_k` is invariant, and
    so is the energy's own distribution. A step costs K times that of `sampler`, and more for the
    exchange.

    Parameters
    ----------
    n_temperatures : int, default=8
        Replicas K of each chain, 2 or more; evenly spaced from 0 to 1.
    sampler : Sampler or None, default=None
        Kernel of the replicas; None is :class:`Gibbs`.

    References
    ----------
    Desjardins, Courville, Bengio, Vincent and Delalleau (2010), "Tempered Markov chain Monte Carlo
    for training of restricted Boltzmann machines", AISTATS. Cho, Raiko and Ilin (2010), "Parallel
    tempering is efficient for learning restricted Boltzmann machines", IJCNN.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import ParallelTempering
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(6, 3, generator=generator)
    >>> state, info = ParallelTempering(4).run(energy, torch.zeros(5, 6), 10, generator)
    >>> tuple(state.x.shape), tuple(state.aux.shape)
    ((5, 6), (3, 5, 6))
    """

    domains = (Domain,)

    def __init__(self, n_temperatures: int = 8, sampler: Sampler | None = None):
        self.n_temperatures = n_temperatures
        self.sampler = sampler

    def check(self, energy: Energy) -> None:
        """Raise unless `sampler` takes the energy and there are temperatures to exchange."""
        k, kernel = self.n_temperatures, self.kernel
        if not isinstance(k, Integral) or k < 2:
            raise ValueError(f"n_temperatures must be at least 2 and an integer, got {k!r}.")
        if not isinstance(kernel, Sampler) or kernel.kernel is not kernel:
            raise ValueError(
                "The sampler of ParallelTempering moves each replica from its row alone, as Gibbs "
                f"does, which {kernel!r} cannot. Use sampler=None."
            )
        if not isinstance(energy, BipartiteEnergy):
            raise TypeError(
                "ParallelTempering needs the path from a base that bipartite energies have; "
                f"{type(energy).__name__} has none."
            )
        kernel.check(energy)

    @property
    def kernel(self) -> Sampler:
        """That of the replicas: rows alone do not tell where the others stand."""
        return Gibbs() if self.sampler is None else self.sampler

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """Chains whose replicas all stand at the rows of x; ``aux`` (K - 1, n, d), hot to cold."""
        return ChainState(x, aux=x.expand(self.n_temperatures - 1, *x.shape).clone())

    def step(
        self,
        energy: Any,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Move every replica, then let neighbours exchange; acceptance is that of exchanges."""
        kernel, last = self.kernel, self.n_temperatures - 1
        ladder = [energy.annealed(k / last) for k in range(last)] + [energy]
        rows = [
            kernel.step(rung, kernel.init(rung, x), generator, beta, clamp)[0].x
            for rung, x in zip(ladder, [*state.aux, state.x], strict=True)
        ]
        accepted = []
        for first in (0, 1):
            for k in range(first, last, 2):
                a, b = rows[k], rows[k + 1]
                both = torch.cat([a, b])
                hot, cold = (rung.free_energy(both, beta) for rung in ladder[k : k + 2])
                gain = hot - cold  # (2n,)
                log_accept = gain[: len(a)] - gain[len(a) :]
                u = torch.rand(len(a), generator=generator, dtype=a.dtype, device=a.device)
                swap = u.log() < log_accept
                keep = swap.view(-1, *[1] * (a.dim() - 1))
                rows[k], rows[k + 1] = torch.where(keep, b, a), torch.where(keep, a, b)
                accepted.append(swap)
        rate = torch.stack(accepted).to(state.x.dtype).mean()
        return ChainState(rows[-1], aux=torch.stack(rows[:-1])), StepInfo(rate)
