"""Couplings of categories that are comparable, and probabilities of levels given the others."""

from __future__ import annotations

import torch
from torch import Tensor

from skebm.base import Binary, Categorical, Domain
from skebm.base.domains import parts_of
from skebm.base.energy import discrete_columns
from skebm.energies import BoltzmannMachine


def projection(domain: Domain) -> tuple[Tensor, Tensor]:
    """Matrix (D, D) that subtracts the mean over levels of a category, and what it subtracts (D,).

    As the entries x of a category sum to one, x = P x + m with m = 1 / k, so that
    x' J x = x' P J P x + 2 m' J P x + constant; P is the identity, and m zero, at bits.
    """
    d = domain.n_columns
    centre, share = torch.eye(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    for first, width in discrete_columns(domain):
        if width > 1:
            entries = slice(first, first + width)
            centre[entries, entries] -= 1 / width
            share[entries] = 1 / width
    return centre, share


def zero_sum(energy: BoltzmannMachine) -> tuple[Tensor, Tensor]:
    """Couplings and fields of the same model that sum to zero over the levels of a category."""
    J, b = energy.coupling.detach(), energy.bias.detach()
    if isinstance(energy.domain, Binary):
        return J, b
    centre, share = (part.to(J) for part in projection(energy.domain))
    return centre @ J @ centre, centre @ (b + J @ share)


def conditional_means(energy: BoltzmannMachine, x: Tensor) -> Tensor:
    """Probability of each bit and level given the other columns, (n, D)."""
    logits, found = energy.logits(x), []
    for part, block in zip(
        parts_of(energy.domain),
        logits.split([part.n_columns for part in parts_of(energy.domain)], 1),
        strict=True,
    ):
        if isinstance(part, Categorical):
            found += [levels.softmax(1) for levels in block.split(part.groups, 1)]
        else:
            found.append(block.sigmoid())
    return torch.cat(found, 1)
