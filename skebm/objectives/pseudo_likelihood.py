"""Pseudo-likelihood of discrete rows, which needs neither samples nor log Z."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from skebm.base import Categorical, Energy


def pseudo_log_likelihood(energy: Energy, x: Tensor) -> Tensor:
    r"""Pseudo-log-likelihood of binary or one-hot rows, summed exactly over all columns.

    .. math:: \sum_i \log p(x_i \mid x_{-i})
        = -\sum_i \log \sum_k \exp\bigl(E(x) - E(x^{(i \to k)})\bigr)

    where :math:`x^{(i \to k)}` is x with column i set to level k (0 or 1 for a bit). It is neither
    a lower nor an upper bound of log p(x). It takes one evaluation of the energy for each other
    level of each column, d for d bits, unless the energy has a cheaper formula.

    Parameters
    ----------
    energy : Energy
        Energy on flat binary rows or on one-hot rows.
    x : Tensor of shape (n, d)

    Returns
    -------
    Tensor of shape (n,)
        Pseudo-log-likelihood of each row, in nats.

    References
    ----------
    Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Categorical
    >>> from skebm.energies import NeuralEnergy
    >>> from skebm.objectives import pseudo_log_likelihood
    >>> field = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0))
    >>> _ = torch.nn.init.zeros_(field[0].weight)
    >>> energy = NeuralEnergy(field, Categorical((3, 2)))  # all levels are equally likely
    >>> pseudo_log_likelihood(energy, torch.tensor([[1.0, 0, 0, 0, 1]])).exp()
    tensor([0.1667], grad_fn=<ExpBackward0>)
    """
    if isinstance(energy.domain, Categorical):
        return _of_levels(energy, x, energy.domain.groups)
    return logsigmoid(energy.flip_difference(x)).sum(1)


def _of_levels(energy: Energy, x: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Pseudo-log-likelihood of one-hot rows: each column is rolled through all of its levels."""
    here, first = energy(x), 0
    total = torch.zeros_like(here)
    for k in groups:
        column, gains = slice(first, first + k), [torch.zeros_like(here)]
        for shift in range(1, k):
            other = x.clone()
            other[:, column] = x[:, column].roll(shift, 1)
            gains.append(here - energy(other))
        total = total - torch.stack(gains).logsumexp(0)
        first += k
    return total
