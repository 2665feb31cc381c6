"""Pairwise energies that correct a base of independent columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm.base import Binary, PairwiseEnergy
from skebm.base.energy import difference_of_levels
from skebm.distributions import Distribution
from skebm.energies.neural import NeuralEnergy
from skebm.energies.path import unary_fields


class PairwiseCorrection(NeuralEnergy, PairwiseEnergy):
    r"""A pairwise energy that corrects a base of independent columns, which is pairwise again.

    .. math:: E(x) = -\log q(x) + f(x)

    It is a :class:`NeuralEnergy` with f as its network that also has conditionals: their log-odds
    are those of f plus those of q, so that Gibbs samplers can be used.

    Parameters
    ----------
    network : PairwiseEnergy
        f; its parameters are shared, not copied.
    base : Distribution or None, default=None
        q, of independent bits and categories, on the same rows. None leaves it out.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import PairwiseCorrection, ising_grid
    >>> energy = PairwiseCorrection(ising_grid(2, 2), IndependentBernoulli(torch.ones(4)))
    >>> bool(torch.equal(energy.bias, ising_grid(2, 2).bias + 1))
    True
    """

    network: Any

    def __init__(self, network: PairwiseEnergy, base: Distribution | None = None):
        super().__init__(network, network.domain, base)
        fields = None if base is None else unary_fields(base)
        if base is not None and fields is None:
            raise ValueError(f"The base must have independent bits and categories, not {base!r}.")
        bias = network.bias.detach()
        self.field = torch.zeros_like(bias) if fields is None else fields.logits.to(bias)

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """Fields of f plus those of q, (d,)."""
        return self.network.bias + self.field

    @property
    def coupling(self) -> Tensor:
        """Couplings of f, (d, d)."""
        return self.network.coupling

    @property
    def colours(self) -> tuple[Tensor, ...]:
        """The colouring of f."""
        return self.network.colours

    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Log-odds of a one in each of `columns` given the others, (n, k)."""
        field = self.field if columns is None else self.field[columns]
        return self.network.logits(x, columns) + field

    def flip_difference(self, x: Tensor) -> Tensor:
        """E(x with entry i set to 1 - x_i) - E(x), (n, d), from the logits."""
        if not isinstance(self.domain, Binary):
            return super().flip_difference(x)  # which says why not
        return (2 * x - 1) * self.logits(x)

    def level_difference(self, x: Tensor) -> Tensor:
        """E(x after a change of one column) - E(x), (n, d), from the logits."""
        return difference_of_levels(self.logits(x), x, self.domain)
