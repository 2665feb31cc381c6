r"""The path of distributions between a base that is known and the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, Energy
from skebm.energies.bipartite import Tilted
from skebm.noise import IndependentBernoulli


class AnnealingPath:
    r"""Unnormalised distributions from a base q to an RBM, :math:`\beta` from 0 to 1.

    .. math:: p_\beta(x, h) \propto q(x)^{1 - \beta} \exp\bigl(-\beta E(x, h)\bigr)

    At 0 it is the base with free hidden units, of known log Z. The base is the energy's own, or
    uniform, unless one of independent columns is given for an energy without structure.
    """

    def __init__(self, energy: Energy, base: Any = None):
        base = getattr(energy, "base", None) if base is None else base
        if base is None:
            base = IndependentBernoulli(
                next(energy.parameters()).new_zeros(energy.domain.n_columns)
            )
        structure = getattr(energy, "structure", None)
        fits = isinstance(base, IndependentBernoulli) if structure is None else base is structure
        if not isinstance(energy, BipartiteEnergy) or not fits:
            raise TypeError(
                "Annealing is implemented for bipartite binary energies, from their own base or "
                f"an IndependentBernoulli, not for {type(energy).__name__} from "
                f"{type(base).__name__}."
            )
        self.energy, self.base, self.structured = energy, base, structure is not None
        # A product base enters without its normaliser, as fields.
        self.log_z0 = energy.hidden_domain.log_n_states
        if structure is None:
            self.log_z0 += float(base.log_normaliser.double())

    def at(self, beta: float) -> BipartiteEnergy:
        """The distribution at `beta`, as an energy of its own."""
        if self.structured:
            return self.energy.annealed(beta)
        return Tilted(self.energy, (1 - beta) * self.base.logits, beta)

    def log_ratio(self, x: Tensor, old: float, new: float) -> Tensor:
        """log of the unnormalised marginal at `new` over that at `old`, (n,) in float64."""
        betas = torch.tensor([[new], [old]], dtype=x.dtype, device=x.device)
        if self.structured:
            energy: Any = self.energy
            change = energy.correction(x, betas).double()  # (2, n)
            return change[1] - change[0]
        free = self.energy.free_energy(x, betas).double()
        return free[1] - free[0] - (new - old) * (x @ self.base.logits).double()
