"""The ratio of two normalisers, from draws of both distributions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import logsigmoid


class Bridge(NamedTuple):
    """log Z by the optimal bridge, its standard error, and what the draws are worth."""

    value: float
    std_error: float
    ess: float


def bridge(model: Tensor, base: Tensor) -> Bridge:
    r"""The optimal bridge between log weights, -E - log q, of model and of base draws.

    Meng and Wong's fixed point is the root r = log Z of

    .. math:: \sum_{x \sim q} \sigma\bigl(l(x) - r + c\bigr)
        = \sum_{x \sim p} \sigma\bigl(r - l(x) - c\bigr), \qquad c = \log(n_p / n_q),

    with l the log weights. One side falls in r and the other rises, so that a search between
    bounds finds it whatever the overlap, where iterating the fixed point takes ever longer. The
    relative variance is the sum of :math:`\mathrm{Var}(f) / (n\, \mathrm{E}[f]^2)` over the terms
    f of either side; ``ess`` is the smaller :math:`(\sum f)^2 / \sum f^2`.
    """
    shift = math.log(len(model) / len(base))
    pooled = torch.cat([model, base]) + shift
    finite = pooled[pooled > -math.inf]
    # At the ends one side is the larger for sure: its terms are near 1, those of the other near 0.
    room = math.log(len(pooled)) + 1
    low, high = float(finite.min()) - room, float(finite.max()) + room

    def sides(r: float) -> tuple[Tensor, Tensor]:
        return logsigmoid(base + shift - r), logsigmoid(r - model - shift)

    def excess(r: float) -> float:
        down, up = sides(r)
        return float(down.logsumexp(0) - up.logsumexp(0))

    middle = brentq(excess, low, high, xtol=1e-12, maxiter=1000)
    down, up = sides(middle)
    ess, variance = [], 0.0
    for log_f in (down, up):
        n = len(log_f)
        f = (log_f - log_f.logsumexp(0) + math.log(n)).exp()  # mean 1
        ess.append(float(f.sum().square() / f.square().sum()))
        variance += float(f.var(correction=0)) / max(n - 1, 1)
    return Bridge(middle, math.sqrt(variance), min(ess))
