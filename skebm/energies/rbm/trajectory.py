"""An energy with the models that led to it along its training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import BipartiteEnergy, Clamp, Conditional, EnergyLadder
from skebm.energies.rbm.binary import BernoulliRBM


def with_weights(energy: BipartiteEnergy, weights: Sequence[Tensor]) -> Any:
    """A copy of a bipartite energy with other parameters, in their order, and the same base."""
    fixed = [w.detach() for w in weights]
    if type(energy) is BernoulliRBM:  # has no caches, and is copied at every temperature
        return energy.copy_with(*fixed).eval()
    base = energy.base
    memo: dict[int, Any] = {id(one): one for one in (base, *getattr(energy, "parts", ()))}
    found: Any = copy.deepcopy(energy, memo).eval().requires_grad_(False)
    with torch.no_grad():
        for own, value in zip(found.parameters(), fixed, strict=True):
            own.copy_(value)
    return found


def between(start: Sequence[Tensor], end: Sequence[Tensor], share: float) -> list[Tensor]:
    """Parameters on the line from `start`, at 0, to `end`, at 1."""
    return [torch.lerp(a, b, share) for a, b in zip(start, end, strict=True)]


class TrajectoryEnergy(EnergyLadder):
    r"""A bipartite energy with models kept along its training, which lead from its base to it.

    It is the energy of the last model: energies, conditionals and gradients are those of
    ``models[-1]``. What knows of the others goes through them:
    :class:`~skebm.samplers.TrajectoryTempering` exchanges rows between neighbours, and
    :class:`~skebm.partition.TrajectoryAIS` (as all annealing from its base) passes through all of
    them instead of through temperatures of the last one.

    Between base and first model, and between neighbours, there are distributions as well. From the
    base to the first model they are those of its own path (``annealed``), and from a model to the
    next one they are models whose parameters are on the line between both.

    Parameters
    ----------
    models : sequence of BipartiteEnergy
        In the order of training, of the same class and size and on the same base; the last one is
        the energy itself. Their parameters are shared, not copied.
    temperatures : sequence of float, default=()
        Inverse temperatures in (0, 1), increasing, of further models between the base and the first
        one of `models`; none are needed if that is the start of training, which is near its base.

    Raises
    ------
    TypeError, ValueError
        If there is no model, if they differ in class or shape, or if temperatures do not increase.

    References
    ----------
    Bereux, Decelle, Furtlehner and Seoane (2024), "Fast training and sampling of restricted
    Boltzmann machines", arXiv 2405.15376.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM, TrajectoryEnergy
    >>> generator = torch.Generator().manual_seed(0)
    >>> models = [BernoulliRBM(6, 3, generator=generator, scale=s) for s in (0.01, 0.5, 1.0)]
    >>> energy = TrajectoryEnergy(models)
    >>> x = torch.eye(6)
    >>> bool((energy(x) == models[-1](x)).all()), len(energy.rungs)  # the base is the first rung
    (True, 4)
    """

    def __init__(self, models: Sequence[BipartiteEnergy], temperatures: Sequence[float] = ()):
        super().__init__()
        models, temperatures = list(models), tuple(float(t) for t in temperatures)
        if not models or not all(isinstance(one, BipartiteEnergy) for one in models):
            raise TypeError("A trajectory consists of bipartite energies, at least one.")
        shapes = {(type(one), tuple(p.shape for p in one.parameters())) for one in models}
        if len(shapes) > 1:
            raise ValueError("The models of a trajectory must be of one class and one size.")
        if list(temperatures) != sorted(set(temperatures)) or any(
            not 0 < t < 1 for t in temperatures
        ):
            raise ValueError(f"temperatures must increase within (0, 1), got {temperatures}.")
        self.models, self.temperatures = nn.ModuleList(models), temperatures
        self.domain, self.hidden_domain = models[-1].domain, models[-1].hidden_domain
        self.always_proper = all(one.always_proper for one in models)

    @property
    def last(self) -> Any:
        """The energy itself."""
        return self.models[-1]

    @property
    def base(self) -> Any:
        """The base of all models."""
        return self.last.base

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Couplings of the last model."""
        found: Tensor = self.last.weight
        return found

    @property
    def rungs(self) -> list[BipartiteEnergy]:
        """The base with free hidden units, models at `temperatures`, those before, and this one."""
        first: Any = self.models[0]
        hot = [first.annealed(beta) for beta in (0.0, *self.temperatures)]
        before: Any = self.models[:-1]
        return [*hot, *before, self]

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """That of the last model, (n,)."""
        found: Tensor = self.last.free_energy(x, beta)
        return found

    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x) of the last model."""
        found: Conditional = self.last.hidden(x, beta)
        return found

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h) of the last model."""
        found: Conditional = self.last.visible(h, beta, field)
        return found

    def next_visible(
        self, x: Tensor, h: Tensor, beta: float, generator: torch.Generator
    ) -> Conditional:
        """What Gibbs steps of the last model draw rows from."""
        found: Conditional = self.last.next_visible(x, h, beta, generator)
        return found

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """Energy of hidden rows under the last model, (n,)."""
        found: Tensor = self.last.hidden_energy(h, beta, field, clamp)
        return found

    @property
    def terms_of_hidden_state(self) -> int:
        """That of the last model."""
        found: int = self.last.terms_of_hidden_state
        return found

    def flip_difference(self, x: Tensor) -> Tensor:
        """E(x with entry i flipped) - E(x) under the last model, (n, d)."""
        found: Tensor = self.last.flip_difference(x)
        return found

    def annealed(self, beta: float) -> BipartiteEnergy:
        """The last model on its own path from the base, without the others."""
        found: BipartiteEnergy = self.last.annealed(beta)
        return found
