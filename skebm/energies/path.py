r"""The path of distributions between a base that is known and the model."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from skebm.base import BipartiteEnergy, Energy
from skebm.energies.bipartite import Tilted


class AnnealingPath:
    r"""Unnormalised distributions from a product base to an RBM, :math:`\beta` from 0 to 1.

    .. math:: p_\beta(x, h) \propto \exp\bigl(-\beta E(x, h) + (1 - \beta) a^\top x\bigr)

    At 0 it is the base with free hidden units, whose log Z is H log 2 plus the base's.
    """

    def __init__(self, energy: Energy, base: Any):
        if not isinstance(energy, BipartiteEnergy) or not hasattr(base, "logits"):
            raise TypeError(
                "Annealing is implemented for bipartite binary energies with an "
                f"IndependentBernoulli base, not for {type(energy).__name__} with "
                f"{type(base).__name__}."
            )
        self.energy, self.base, self.logits = energy, base, base.logits
        self.log_z0 = float(base.log_normaliser.double()) + energy.hidden_domain.log_n_states

    def at(self, beta: float) -> Tilted:
        """The distribution at `beta`, as an energy of its own."""
        return Tilted(self.energy, (1 - beta) * self.logits, beta)

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        """log of the unnormalised marginal at `new` over that at `old`, (n,) in float64."""
        betas = x.new_tensor([[new], [old]])
        free = self.energy.free_energy(x, betas).double()  # (2, n)
        return free[1] - free[0] - (new - old) * (x @ self.logits).double()
