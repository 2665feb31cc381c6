"""Integrals of normal densities over intervals, far out in the tails as well; float64."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.special import log_ndtr

LOG_ROOT = math.log(math.tau) / 2  # log sqrt(2 pi)

# Intervals that a density is this flat over are integrated by the middle.
NARROW = 1e-2

# Nodes of the quadrature, and how many nats below its largest value a density is zero.
N_NODES, DEPTH = 128, 40.0

MAX_STEPS = 100


def log_mass(a: Tensor, b: Tensor) -> Tensor:
    r"""log(Phi(b) - Phi(a)) for a < b, either of which may be infinite."""
    flip = a > -b
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)  # more to the left
    top, bottom = log_ndtr(high), log_ndtr(low)
    wide = top + torch.log(-torch.expm1(bottom - top))
    # The difference of nearly equal ones has few digits: phi in the middle, to fourth order.
    width, middle = b - a, (a + b) / 2
    narrow = width * middle.abs().clamp(min=1) < NARROW
    middle, width = torch.where(narrow, middle, 0.0), torch.where(narrow, width, 1.0)
    curved = torch.log1p((middle.square() - 1) * width.square() / 24)
    flat = width.log() + curved - middle.square() / 2 - LOG_ROOT
    return torch.where(narrow, flat, wide)


def inverse_log_ndtr(y: Tensor) -> Tensor:
    """z of log Phi(z) = y, for y < 0."""
    largest = 1 - torch.finfo(y.dtype).eps / 2
    near = torch.special.ndtri(y.exp().clamp(max=largest))
    # Where exp(y) is lost: from the leading term of log Phi, by Newton's method.
    far = y < -500
    goal = torch.where(far, y, -600.0)
    z = -(-2 * goal - (-4 * math.pi * goal).log()).sqrt()
    for _ in range(4):
        value = log_ndtr(z)
        z = z - (value - goal) * (value + z.square() / 2 + LOG_ROOT).exp()
    return torch.where(far, z, near)


def expectation(a: Tensor, b: Tensor) -> Tensor:
    """Mean of a standard normal variable between a and b."""
    return quadrature(torch.zeros_like(a), torch.ones_like(a), a, b)[1]


def quadrature(
    tilt: Tensor, precision: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Integral of exp(tilt y - precision y^2 / 2) over [low, high], by Gauss-Legendre.

    All are (d,). Returns its logarithm (d,), the mean of y (d,), and the covariance matrix of
    (y, -y^2 / 2), (d, 2, 2). The moments are sums of positive terms: nothing cancels where the
    mean before the restriction is far outside.
    """
    mode = torch.clamp(tilt / precision, low, high)
    slope = (tilt - precision * mode).abs()  # not zero only at an end
    reach = 2 * DEPTH / (slope + (slope.square() + 2 * DEPTH * precision).sqrt())
    start, stop = torch.maximum(low, mode - reach), torch.minimum(high, mode + reach)
    node, node_weight = (tilt.new_tensor(v) for v in np.polynomial.legendre.leggauss(N_NODES))
    # From the mode: far out, y itself has not the digits.
    middle, half = ((start - mode) + (stop - mode)) / 2, (stop - start) / 2
    t = middle[:, None] + half[:, None] * node
    slope = tilt - precision * mode
    height = slope[:, None] * t - precision[:, None] * t.square() / 2
    p = height.exp() * node_weight * half[:, None]
    total = p.sum(1)
    p = p / total[:, None]
    mean = (p * t).sum(1)
    off = t - mean[:, None]
    # -y^2 / 2 about its value at the mean of y.
    bend = -off * (t + mean[:, None] + 2 * mode[:, None]) / 2
    bend = bend - (p * bend).sum(1, keepdim=True)
    mixed = (p * off * bend).sum(1)
    spread = torch.stack([(p * off.square()).sum(1), mixed, mixed, (p * bend.square()).sum(1)], 1)
    log_total = total.log() + tilt * mode - precision * mode.square() / 2
    return log_total, mode + mean, spread.view(-1, 2, 2)


def maximise(low: Tensor, high: Tensor, largest_scale: float) -> tuple[Tensor, Tensor]:
    """Likeliest tilt and precision for columns of mean 0 and variance 1 on [low, high], (d,).

    The negative log-likelihood a row, F = log integral exp(t y - p y^2 / 2) + p / 2, is convex in
    (t, p). Newton steps, halved until F falls, with p from 1 / largest_scale^2 to 1: a restriction
    makes a normal distribution no wider.
    """
    theta = torch.stack([torch.zeros_like(low), torch.ones_like(low)], 1)
    least = largest_scale**-2
    value, gradient, hessian = _objective(theta, low, high)
    for _ in range(MAX_STEPS):
        # At a bound that the gradient pushes against, the tilt alone is free.
        stuck = (theta[:, 1] <= least) & (gradient[:, 1] > 0)
        stuck |= (theta[:, 1] >= 1) & (gradient[:, 1] < 0)
        step = _newton(gradient, hessian, stuck)
        decrease = -(gradient * step).sum(1)
        active = decrease > 1e-14
        if not active.any():
            break
        size = torch.where(active, 1.0, 0.0).to(theta)
        for _ in range(60):
            trial = theta + size[:, None] * step
            trial[:, 1].clamp_(least, 1.0)
            new = _objective(trial, low, high)
            worse = active & ~(new[0] <= value + 1e-13 * (1 + value.abs()))
            if not worse.any():
                break
            size = torch.where(worse, size / 2, size)
        theta, (value, gradient, hessian) = trial, new
    return theta[:, 0], theta[:, 1]


def _objective(theta: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tilt, precision = theta.unbind(1)
    log_total, mean, hessian = quadrature(tilt, precision, low, high)
    square = hessian[:, 0, 0] + mean.square()
    return log_total + precision / 2, torch.stack([mean, (1 - square) / 2], 1), hessian


def _newton(gradient: Tensor, hessian: Tensor, stuck: Tensor) -> Tensor:
    a, b, c = hessian[:, 0, 0], hessian[:, 0, 1], hessian[:, 1, 1]
    b = torch.where(stuck, 0.0, b)
    # A covariance matrix; what rounding makes of its determinant must stay positive.
    determinant = (a * c - b.square()).clamp_min(1e-12 * a * c)
    tilt = -(c * gradient[:, 0] - b * gradient[:, 1]) / determinant
    precision = -(a * gradient[:, 1] - b * gradient[:, 0]) / determinant
    return torch.stack(
        [torch.where(stuck, -gradient[:, 0] / a, tilt), torch.where(stuck, 0.0, precision)], 1
    )
