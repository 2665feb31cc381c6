"""Objectives for discrete rows that need neither samples nor log Z."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from skebm.base import Energy


def pseudo_log_likelihood(energy: Energy, x: Tensor) -> Tensor:
    r"""Pseudo-log-likelihood of binary rows, every bit, exact and deterministic.

    .. math:: \sum_i \log p(x_i \mid x_{-i}) = \sum_i \log \sigma\bigl(E(\bar x^{(i)}) - E(x)\bigr)

    with :math:`\bar x^{(i)}` the row whose entry i is replaced by 1 - x_i. It is neither a lower
    nor an upper bound of log p(x).

    Parameters
    ----------
    energy : Energy
        An energy of flat binary rows.
    x : Tensor of shape (n, d)

    Returns
    -------
    Tensor of shape (n,)
        Nats.

    References
    ----------
    Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).
    """
    return logsigmoid(energy.flip_difference(x)).sum(1)
