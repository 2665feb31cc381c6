"""The ratio of two normalisers, from draws of both distributions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import logsigmoid


class Bridge(NamedTuple):
    """log Z by bridge sampling, its standard error and effective sample size."""

    value: float
    std_error: float
    ess: float


def bridge(model: Tensor, base: Tensor) -> Bridge:
    r"""Optimal bridge sampling from the log weights, -E - log q, of model and of base draws.

    The fixed point of Meng and Wong (1996) is the root r = log Z of

    .. math:: \sum_{x \sim q} \sigma\bigl(l(x) - r + c\bigr)
        = \sum_{x \sim p} \sigma\bigl(r - l(x) - c\bigr), \qquad c = \log(n_p / n_q),

    with l the log weights. The left side decreases in r and the right side increases, so that a
    bracketed root search converges whatever the overlap; iterating the fixed point slows down as
    the overlap shrinks. The relative variance is the sum of
    :math:`\mathrm{Var}(f) / (n\, \mathrm{E}[f]^2)` over the terms f of either side; ``ess`` is the
    smaller :math:`(\sum f)^2 / \sum f^2`.

    Parameters
    ----------
    model, base : Tensor of shape (n_p,), (n_q,)
        Log weights of independent draws of the model and of the base, in nats.

    Returns
    -------
    Bridge
        `value` and `std_error` in nats, `ess` in draws.

    References
    ----------
    Meng, X.-L. and Wong, W. H. (1996). Simulating ratios of normalizing constants via a simple
    identity: a theoretical exploration. Statistica Sinica, 6, 831-860.
    """
    shift = math.log(len(model) / len(base))
    pooled = torch.cat([model, base]) + shift
    finite = pooled[pooled > -math.inf]
    # At the ends of the bracket the terms of one side are near 1 and those of the other near 0.
    margin = math.log(len(pooled)) + 1
    low, high = float(finite.min()) - margin, float(finite.max()) + margin

    def sides(r: float) -> tuple[Tensor, Tensor]:
        return logsigmoid(base + shift - r), logsigmoid(r - model - shift)

    def log_ratio_of_sides(r: float) -> float:
        left, right = sides(r)
        return float(left.logsumexp(0) - right.logsumexp(0))

    root = brentq(log_ratio_of_sides, low, high, xtol=1e-12, maxiter=1000)
    ess, variance = [], 0.0
    for log_f in sides(root):
        n = len(log_f)
        f = (log_f - log_f.logsumexp(0) + math.log(n)).exp()  # mean 1
        ess.append(float(f.sum().square() / f.square().sum()))
        variance += float(f.var(correction=0)) / max(n - 1, 1)
    return Bridge(root, math.sqrt(variance), min(ess))
