r"""What the upper layers of a deep belief network add to the log-likelihood of its first RBM.

With :math:`q_l(h_l \mid h_{l-1})` and :math:`p_l(h_{l-1} \mid h_l)` the conditionals of RBM l of L,
:math:`F_l` its free energy and :math:`G_l(h) = -\log \sum_x e^{-E_l(x, h)}` that of a row of hidden
units, :math:`p_l(x \mid h) / q_l(h \mid x) = e^{G_l(h) + F_l(x)}` where normalisers are left out.
Thus

.. math::
    \log p(x) = -F_1(x) - \log Z_L + \log E_q \exp \sum_{l=1}^{L-1} \bigl(
        G_l(h_l) - F_{l+1}(h_l) \bigr) .

This module computes the last term, the gain. It is 0 if each RBM is the one below turned upside
down: a second layer that starts there can only gain (Hinton, Osindero and Teh 2006, section 4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy
from skebm.base.torchtools import shifts

# Hidden layers below the top of at most so many units each are summed over.
SUMMED_UNITS = 12
# Pairs of states of two layers that are held at once.
MAX_PAIRS = 4_000_000


def is_summed(n_hidden: Sequence[int]) -> bool:
    """Whether the hidden layers below the top, of these sizes, have few enough states to sum."""
    return all(n <= SUMMED_UNITS for n in n_hidden)


def all_states(energy: BipartiteEnergy) -> Tensor:
    """The states of the hidden layer, (2^H, H), float64."""
    domain, device = energy.hidden_domain, energy.weight.device
    return domain.states(0, round(domain.n_states), dtype=torch.float64, device=device)


def log_state_gains(energies: Sequence[BipartiteEnergy]) -> Tensor:
    """Log of the gain of each state of the first hidden layer, (2^H,), float64; exact.

    The sums over the layers above it are part of it, log Z of the top is not.

    Parameters
    ----------
    energies : sequence of BipartiteEnergy
        At least two RBMs, of bits from the second on.
    """
    found = torch.zeros((), dtype=torch.float64)
    for k in range(len(energies) - 2, -1, -1):
        lower, upper = energies[k], energies[k + 1]
        states = all_states(lower)
        h = states.to(lower.weight.dtype)
        gain = (lower.hidden_energy(h) - upper.free_energy(h)).double()
        if k < len(energies) - 2:
            above = all_states(upper)
            size = max(1, MAX_PAIRS // len(above))
            gain += torch.cat([log_mean_gain(upper, part, above, found) for part in h.split(size)])
        found = gain
    return found


def log_mean_gain(energy: BipartiteEnergy, x: Tensor, states: Tensor, log_gain: Tensor) -> Tensor:
    """log of the mean of exp(`log_gain`) over the hidden states given x, (n,); exact.

    Parameters
    ----------
    energy : BipartiteEnergy
        With the log-odds of its hidden units, ``hidden_field``.
    x : Tensor of shape (n, d)
    states : Tensor of shape (S, H), float64
        All states of the hidden units; a padded energy may have more units, which are never on.
    log_gain : Tensor of shape (S,), float64
    """
    log_odds = energy.hidden_field(x)[:, : states.shape[1]].double()  # type: ignore[operator]
    log_q = log_odds @ states.t() - torch.nn.functional.softplus(log_odds).sum(1, keepdim=True)
    return (log_q + log_gain).logsumexp(1)


def log_mean_gain_of_draws(
    energies: Sequence[BipartiteEnergy], x: Tensor, n_draws: int, seed: int
) -> Tensor:
    """Log of the mean of exp(gain) over draws of the hidden layers given x, (n,), float64.

    Direction: exp of it is unbiased, so that it is a lower bound of the gain in expectation, which
    rises with `n_draws` (Burda, Grosse and Salakhutdinov 2016, theorem 1).

    The draws of a row depend on the seed and on the row alone: all rows share the uniform numbers
    of a draw, each shifted by numbers of its own modulo one, so that a row has the same value
    beside any others, and the errors of different rows are uncorrelated.

    Parameters
    ----------
    energies : sequence of BipartiteEnergy
        At least two RBMs, of bits from the second on; of equal widths where they meet.
    x : Tensor of shape (n, d)
        Rows of the first energy.
    n_draws : int
    seed : int
    """
    widths = [energy.hidden_domain.n_columns for energy in energies[:-1]]
    shift = shifts(x, sum(widths), seed)
    generator = torch.Generator().manual_seed(seed)
    first = energies[0].hidden(x).mean
    total = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    for _ in range(n_draws):
        u = torch.rand(sum(widths), generator=generator).to(x.device) + shift
        parts = torch.where(u >= 1, u - 1, u).split(widths, 1)
        mean, gain = first, torch.zeros_like(total)
        for k, (lower, upper) in enumerate(itertools.pairwise(energies)):
            h = (parts[k] < mean).to(x.dtype)
            gain += (lower.hidden_energy(h) - upper.free_energy(h)).double()
            if k < len(widths) - 1:
                mean = upper.hidden(h).mean
        total = torch.logaddexp(total, gain)
    return total - math.log(n_draws)
