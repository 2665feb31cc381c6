"""A sampler of rows with several kinds of columns: each block by a sampler of its own."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import (
    ChainState,
    Clamp,
    Domain,
    Energy,
    Mixed,
    Real,
    Sampler,
    StepInfo,
)
from skebm.samplers._moves import evaluate, tempers_joint
from skebm.samplers.discrete import GibbsWithGradients
from skebm.samplers.mala import MALA


class Blocks(Sampler):
    r"""Sample the bits, categories and numbers of a row in turn, each given the others.

    A step consists of one step of `discrete` for the bits, one for the categories, and one step of
    `real` for the numbers, each on :math:`E(x_k \mid x_{-k})`, the energy as a function of one
    block. If both samplers are exact, each leaves the conditional distribution of its block
    invariant, so that the whole step leaves :math:`e^{-\beta E}` invariant. It costs two gradients
    for each kind of column.

    Parameters
    ----------
    real : Sampler or None, default=None
        Sampler of real columns; None is ``MALA(adapt=True, scale="auto")``.
    discrete : Sampler or None, default=None
        Sampler of bits and of one-hot columns, which must not adapt; None is
        :class:`GibbsWithGradients`.

    References
    ----------
    Tierney (1994), "Markov chains for exploring posterior distributions", Annals of Statistics
    22(4), section 2.4 (cycles of kernels).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Binary, Mixed, Real
    >>> from skebm.distributions import Columns, Gaussian, IndependentBernoulli
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.samplers import Blocks
    >>> generator = torch.Generator().manual_seed(0)
    >>> q = Columns([IndependentBernoulli(torch.zeros(2)), Gaussian(torch.zeros(1), 1.0)])
    >>> energy = NeuralEnergy(MLP().build(Spec((3,), generator)), q.domain, q)
    >>> state, _ = Blocks().run(energy, q.sample(100, generator), 10, generator)
    >>> bool(energy.domain.contains(state.x).all())
    True
    """

    domains = (Mixed,)
    _parameter_constraints = {"real": [Sampler, None], "discrete": [Sampler, None]}

    def __init__(self, real: Sampler | None = None, discrete: Sampler | None = None):
        self.real = real
        self.discrete = discrete

    @property
    def _of_real(self) -> Sampler:
        return MALA(adapt=True, scale="auto") if self.real is None else self.real

    @property
    def _of_discrete(self) -> Sampler:
        return GibbsWithGradients() if self.discrete is None else self.discrete

    @property
    def exact(self) -> bool:
        """Whether both samplers are exact."""
        return self._of_real.exact and self._of_discrete.exact

    @property
    def adapts(self) -> bool:
        """Whether the sampler of real columns adapts."""
        return self._of_real.adapts

    def freeze(self, state: ChainState) -> ChainState:
        """The state without adaptation; without real columns there is none."""
        return state if state.aux is None else super().freeze(state)

    def with_step_size(self, step_size: float) -> Blocks:
        return clone(self).set_params(real=self._of_real.with_step_size(step_size))

    def check(self, energy: Energy) -> None:
        """Raise for an energy of one kind of columns, and samplers that cannot be blocks."""
        super().check(energy)
        turns = self._turns(energy.domain)
        if [type(part) for _, part, _ in turns].count(Real) > 1:
            raise ValueError(f"{energy.domain} has several blocks of real columns: make them one.")
        for sampler, part, _ in turns:
            name = "real" if isinstance(part, Real) else "discrete"
            if not isinstance(part, sampler.domains):
                raise TypeError(f"{name}={sampler} does not sample {part}.")
            if sampler.kernel is not sampler:
                raise ValueError(f"{name}={sampler} has replicas, which blocks cannot have.")
        if self._of_discrete.adapts:
            raise ValueError(f"discrete={self.discrete} adapts, which only `real` may.")

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x; ``aux`` is that of the real columns."""
        aux = None
        for sampler, part, first in self._turns(energy.domain):
            block = Block(energy, part, x, first)
            state = sampler.init(block, block.cut(x))
            if isinstance(part, Real):
                aux = state.aux
        return ChainState(x, evaluate(energy, x)[0], aux=aux)

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same chains with their adapted settings, under an energy that has changed."""
        return ChainState(state.x, evaluate(energy, state.x)[0], aux=state.aux)

    @tempers_joint
    def step(
        self,
        energy: Energy,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """A step of each block, given the others."""
        accepted: float | Tensor = 0.0
        x, aux, value = state.x, state.aux, state.energy
        turns = self._turns(energy.domain)
        for sampler, part, first in turns:
            block, real = Block(energy, part, x, first), isinstance(part, Real)
            before = sampler.refresh(block, ChainState(block.cut(x), aux=aux if real else None))
            known = None if clamp is None else Clamp(*(block.cut(part) for part in clamp))
            new, info = sampler.step(block, before, generator, beta, known)
            x, accepted, value = block.whole(new.x), accepted + info.acceptance, new.energy
            aux = new.aux if real else aux
        return ChainState(x, value, aux=aux), StepInfo(accepted / len(turns))

    def _turns(self, domain: Any) -> list[tuple[Sampler, Domain, int]]:
        """For each block its sampler, its domain, and its first entry of a row."""
        turns, first = [], 0
        for part in domain.parts:
            sampler = self._of_real if isinstance(part, Real) else self._of_discrete
            turns.append((sampler, part, first))
            first += part.n_columns
        return turns


class Block(Energy):
    """An energy as a function of one block of columns, the others being as in rows x (n or 1)."""

    energy: Energy

    def __init__(self, energy: Energy, domain: Domain, x: Tensor, first: int):
        super().__init__()
        self.energy, self.domain, self.x, self.first = energy, domain, x, first
        self.last = first + domain.n_columns

    def cut(self, x: Tensor) -> Tensor:
        """The block of whole rows."""
        return x[:, self.first : self.last].reshape(len(x), *self.domain.row_shape)

    def whole(self, x: Tensor) -> Tensor:
        """Whole rows from those of the block."""
        rest = self.x.expand(len(x), -1)
        return torch.cat([rest[:, : self.first], x.flatten(1), rest[:, self.last :]], 1)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        value: Tensor = self.energy(self.whole(x))
        return value

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        value, grad = self.energy.value_and_grad(self.whole(x))
        return value, self.cut(grad)
