"""Five two-dimensional densities with exact log-probabilities.

The sets are those of FFJORD's ``toy_data.py`` (Grathwohl et al. 2019), drawn
independently: where the original spaces angles evenly or draws equal class counts,
`sample` draws them at random, so that the rows are an i.i.d. sample of the density that
`log_prob` evaluates. `grid` gives midpoints of a square lattice that holds the mass of
each density, for quadrature of Kullback-Leibler divergences; its cells are aligned with
the edges of the checkerboard.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ive, logsumexp

NAMES = ("8gaussians", "checkerboard", "pinwheel", "moons", "rings")
# KL, in nats, that a fit to 20,000 rows should reach.
TARGETS = {"8gaussians": 0.02, "checkerboard": 0.1, "pinwheel": 0.05, "moons": 0.05, "rings": 0.1}

# 8 Gaussians: centres on a circle of radius 4 and deviation 0.5, all divided by 1.414.
_G_CENTRES = (
    4.0 * np.stack([np.cos(np.arange(8) * np.pi / 4), np.sin(np.arange(8) * np.pi / 4)], 1) / 1.414
)
_G_STD = 0.5 / 1.414
# Pinwheel: radial and tangential deviation, arms, rate of the twist, final scale.
_P_RADIAL, _P_TANGENTIAL, _P_ARMS, _P_RATE, _P_SCALE = 0.3, 0.1, 5, 0.25, 2.0
# Moons: deviation, then x * 2 + shift.
_M_STD, _M_SCALE, _M_SHIFT = 0.1, 2.0, np.array([-1.0, -0.2])
# Rings: radii and deviation.
_R_RADII, _R_STD = 3.0 * np.array([1.0, 0.75, 0.5, 0.25]), 0.08

# Half-width of the quadrature square and default number of cells along a side.
_GRIDS = {
    "8gaussians": (5.0, 400),
    "checkerboard": (5.0, 400),
    "pinwheel": (6.0, 480),
    "moons": (5.0, 400),
    "rings": (4.0, 400),
}


def _check_name(name):
    if name not in NAMES:
        raise ValueError(f"name must be one of {NAMES}; got {name!r}.")


def _moon_arcs(t):
    """Points of the two half arcs (before scaling) at angles `t`, (2, len(t), 2)."""
    outer = np.stack([np.cos(t), np.sin(t)], axis=-1)
    inner = np.stack([1.0 - np.cos(t), 0.5 - np.sin(t)], axis=-1)
    return np.stack([outer, inner])


def sample(name, n, seed=None):
    """Draw independent rows.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    n : int
        Number of rows.
    seed : int, Generator or None, default=None
        Seed of `numpy.random.default_rng`.

    Returns
    -------
    ndarray of shape (n, 2)
    """
    _check_name(name)
    rng = np.random.default_rng(seed)
    if name == "8gaussians":
        return _G_CENTRES[rng.integers(8, size=n)] + _G_STD * rng.standard_normal((n, 2))
    if name == "checkerboard":
        x1 = rng.uniform(-2.0, 2.0, size=n)
        x2 = rng.uniform(size=n) - 2.0 * rng.integers(2, size=n) + np.floor(x1) % 2
        return 2.0 * np.column_stack([x1, x2])
    if name == "pinwheel":
        features = rng.standard_normal((n, 2)) * [_P_RADIAL, _P_TANGENTIAL] + [1.0, 0.0]
        arm = 2.0 * np.pi * rng.integers(_P_ARMS, size=n) / _P_ARMS
        angle = arm + _P_RATE * np.exp(features[:, 0])
        cos, sin = np.cos(angle), np.sin(angle)
        x1 = features[:, 0] * cos + features[:, 1] * sin
        x2 = -features[:, 0] * sin + features[:, 1] * cos
        return _P_SCALE * np.column_stack([x1, x2])
    if name == "moons":
        arcs = _moon_arcs(rng.uniform(0.0, np.pi, size=n))
        points = arcs[rng.integers(2, size=n), np.arange(n)]
        points = points + _M_STD * rng.standard_normal((n, 2))
        return _M_SCALE * points + _M_SHIFT
    radius = _R_RADII[rng.integers(4, size=n)]
    angle = rng.uniform(0.0, 2.0 * np.pi, size=n)
    centre = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return centre + _R_STD * rng.standard_normal((n, 2))


def _log_prob_pinwheel(x, n_grid=512):
    """Change of variables from the features of an arm to the twisted plane.

    A point at radius r comes from features r (cos t, sin t) of an arm at angle b where
    h(t) = t - rate exp(r cos t) - b - angle(x) is a multiple of 2 pi; the Jacobian of the
    twist there is h'(t) = 1 + rate r sin t exp(r cos t). All roots are bracketed on a lattice
    of t by the sign changes of sin(h / 2), refined by bisection and summed.
    """
    y = x / _P_SCALE
    r, theta = np.hypot(y[:, 0], y[:, 1]), np.arctan2(y[:, 1], y[:, 0])
    # Half a step off 0, so that no lattice point is a root by symmetry.
    t = -np.pi + (np.arange(n_grid + 1) + 0.5) * (2.0 * np.pi / n_grid)
    twist = t - _P_RATE * np.exp(r[:, None] * np.cos(t))
    density = np.zeros(len(x))
    for k in range(_P_ARMS):
        offset = theta + 2.0 * np.pi * k / _P_ARMS
        sign = np.sin(0.5 * (twist - offset[:, None])) > 0
        rows, cols = np.nonzero(sign[:, 1:] != sign[:, :-1])
        low, high, positive = t[cols], t[cols + 1], sign[rows, cols]
        rr, off = r[rows], offset[rows]
        for _ in range(40):
            mid = 0.5 * (low + high)
            same = (np.sin(0.5 * (mid - _P_RATE * np.exp(rr * np.cos(mid)) - off)) > 0) == positive
            low, high = np.where(same, mid, low), np.where(same, high, mid)
        root = 0.5 * (low + high)
        f0, f1 = rr * np.cos(root), rr * np.sin(root)
        jacobian = np.abs(1.0 + _P_RATE * f1 * np.exp(f0))
        log_normal = -0.5 * (((f0 - 1.0) / _P_RADIAL) ** 2 + (f1 / _P_TANGENTIAL) ** 2)
        density += np.bincount(
            rows, np.exp(log_normal) / np.maximum(jacobian, 1e-12), minlength=len(x)
        )
    norm = 2.0 * np.pi * _P_RADIAL * _P_TANGENTIAL * _P_ARMS * _P_SCALE**2
    with np.errstate(divide="ignore"):
        return np.log(density) - np.log(norm)


def log_prob(name, x):
    """Exact log-density of rows.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    x : array-like of shape (n, 2)

    Returns
    -------
    ndarray of shape (n,)
        Log-densities in nats; -inf where the density is zero (or, for the pinwheel,
        underflows).
    """
    _check_name(name)
    x = np.asarray(x, dtype=float)
    if name == "8gaussians":
        sq = ((x[:, None] - _G_CENTRES) ** 2).sum(2) / _G_STD**2
        return logsumexp(-0.5 * sq, axis=1) - np.log(8 * 2.0 * np.pi * _G_STD**2)
    if name == "checkerboard":
        a, b = np.floor(x[:, 0] / 2.0), np.floor(x[:, 1] / 2.0)
        inside = (np.abs(x) <= 4.0).all(axis=1) & ((a + b) % 2 == 0)
        return np.where(inside, -np.log(32.0), -np.inf)
    if name == "pinwheel":
        parts = [_log_prob_pinwheel(x[i : i + 4096]) for i in range(0, len(x), 4096)]
        return np.concatenate(parts) if parts else np.empty(0)
    if name == "moons":
        nodes, weights = np.polynomial.legendre.leggauss(128)
        arcs = _moon_arcs(0.5 * np.pi * (nodes + 1.0)).reshape(-1, 2)
        log_w = np.log(np.tile(weights, 2) / 4.0)
        y = (x - _M_SHIFT) / _M_SCALE
        out = np.empty(len(x))
        for i in range(0, len(x), 4096):
            sq = ((y[i : i + 4096, None] - arcs) ** 2).sum(2)
            out[i : i + 4096] = logsumexp(log_w - 0.5 * sq / _M_STD**2, axis=1)
        return out - np.log(2.0 * np.pi * _M_STD**2 * _M_SCALE**2)
    r = np.hypot(x[:, 0], x[:, 1])[:, None]
    log_ring = -0.5 * ((r - _R_RADII) / _R_STD) ** 2
    log_ring = log_ring + np.log(ive(0, r * _R_RADII / _R_STD**2))
    return logsumexp(log_ring, axis=1) - np.log(4 * 2.0 * np.pi * _R_STD**2)


def grid(name, n_side=None):
    """Midpoints of a square lattice for quadrature.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    n_side : int or None, default=None
        Cells along a side; the default resolves each density. For the checkerboard keep it a
        multiple of 10, so that its edges are edges of cells.

    Returns
    -------
    points : ndarray of shape (n_side ** 2, 2)
    area : float
        Area of a cell.
    """
    _check_name(name)
    half, default = _GRIDS[name]
    n_side = default if n_side is None else n_side
    step = 2.0 * half / n_side
    axis = -half + step * (np.arange(n_side) + 0.5)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    return points, step**2


def kl_divergence(name, model_log_prob, n_side=None):
    """Quadrature of KL(truth, model), both normalised on the grid.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    model_log_prob : callable
        Maps rows to log-densities; a constant offset cancels.
    n_side : int or None, default=None
        As in `grid`.

    Returns
    -------
    float
        Divergence in nats.
    """
    points, _ = grid(name, n_side)
    log_p = log_prob(name, points)
    log_p = log_p - logsumexp(log_p)
    log_q = np.asarray(model_log_prob(points), dtype=float)
    log_q = log_q - logsumexp(log_q)
    mass = log_p > -700.0
    return float(np.sum(np.exp(log_p[mass]) * (log_p[mass] - log_q[mass])))
