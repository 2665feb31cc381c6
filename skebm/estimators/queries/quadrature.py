"""Densities of one number for each of n rows, known up to a constant, by adaptive quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Nodes of Gauss's rule in a cell. Halvings of a cell at most, and cells of all rows at most.
N_NODES, MOST_HALVINGS, MOST_CELLS = 6, 16, 400_000
# Halvings of a cell that find a quantile.
BISECTIONS = 60

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(N_NODES))
# From values at the nodes to coefficients of the polynomial through them, by powers of t.
_TO_POLYNOMIAL = torch.from_numpy(np.linalg.inv(np.vander(_NODES.numpy(), increasing=True)))
# ``log_density(rows (N,), x (N, k)) -> (N, k)`` of numbers of rows.
LogDensity = Callable[[Tensor, Tensor], Tensor]


class CellDensities:
    """A density of one number for each of n rows: a polynomial in each of some cells.

    Parameters
    ----------
    edges : Tensor of shape (n, m + 1)
        Of the cells, increasing; cells beyond those of a row have no width.
    coefficients : Tensor of shape (n, m, k)
        Of the density in each cell, by powers of the place in it, from -1 to 1.
    log_normaliser : Tensor of shape (n,)
        Log of the integral of the density before it was normalised.
    """

    def __init__(self, edges: Tensor, coefficients: Tensor, log_normaliser: Tensor):
        self.edges, self.coefficients = edges, coefficients
        self.log_normaliser = log_normaliser
        self._widths = edges.diff(dim=1)
        powers = torch.arange(coefficients.shape[2], dtype=torch.float64)
        # The integral of t^k from -1 is (t^(k + 1) - (-1)^(k + 1)) / (k + 1).
        self._integral = coefficients / (powers + 1)
        self._at_left = (self._integral * (-1) ** (powers + 1)).sum(2)
        masses = (self._integral.sum(2) - self._at_left) * self._widths / 2
        zero = masses.new_zeros(len(masses), 1)
        self._cumulative = torch.cat([zero, masses.cumsum(1)], 1)

    # ---------------------------------------------------------------- moments

    def _moment(self, of_x: Callable[[Tensor], Tensor]) -> Tensor:
        """Integral of a function of x, (n,), a polynomial of degree two at most."""
        centre = (self.edges[:, 1:] + self.edges[:, :-1])[..., None] / 2
        x = centre + self._widths[..., None] / 2 * _NODES
        value = self._density(_NODES.expand_as(x), self.coefficients)
        return (of_x(x) * value * _WEIGHTS * self._widths[..., None] / 2).sum((1, 2))

    @property
    def mean(self) -> Tensor:
        """Means, (n,)."""
        return self._moment(lambda x: x)

    @property
    def std(self) -> Tensor:
        """Standard deviations, (n,)."""
        mean = self.mean[:, None, None]
        return self._moment(lambda x: (x - mean).square()).clamp_min(0).sqrt()

    # ---------------------------------------------------------------- densities

    @staticmethod
    def _density(t: Tensor, coefficients: Tensor) -> Tensor:
        """Polynomials (n, m, k) at t (n, m, j) by Horner's rule, not negative."""
        value = torch.zeros_like(t)
        for power in range(coefficients.shape[2] - 1, -1, -1):
            value = value * t + coefficients[:, :, power, None]
        return value.clamp_min(0)

    def _cells(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of the cells of x (n, m), and the places in them from -1 to 1."""
        last = self._widths.shape[1] - 1
        cell = (torch.searchsorted(self.edges, x.contiguous(), right=True) - 1).clamp(0, last)
        width = self._widths.gather(1, cell)
        t = 2 * (x - self.edges.gather(1, cell)) / torch.where(width > 0, width, 1.0) - 1
        return cell, t

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-densities of m numbers of each row, (n, m)."""
        cell, t = self._cells(x)
        index = cell[..., None].expand(-1, -1, self.coefficients.shape[2])
        value = self._density(t[..., None], self.coefficients.gather(1, index))[..., 0]
        inside = (x >= self.edges[:, :1]) & (x <= self.edges[:, -1:])
        return torch.where(inside, value, 0.0).log()

    def cdf(self, x: Tensor) -> Tensor:
        """Probabilities of at most x, (n, m)."""
        x = torch.minimum(torch.maximum(x.double(), self.edges[:, :1]), self.edges[:, -1:])
        return self._mass_below(*self._cells(x)).clamp(0, 1)

    def _mass_below(self, cell: Tensor, t: Tensor) -> Tensor:
        index = cell[..., None].expand(-1, -1, self._integral.shape[2])
        integral, value = self._integral.gather(1, index), torch.zeros_like(t)
        for power in range(integral.shape[2] - 1, -1, -1):
            value = (value + integral[:, :, power]) * t
        inside = (value - self._at_left.gather(1, cell)) * self._widths.gather(1, cell) / 2
        return self._cumulative.gather(1, cell) + inside

    def ppf(self, u: Tensor) -> Tensor:
        """Quantiles, (n, m), of probabilities in [0, 1]."""
        last = self._widths.shape[1] - 1
        u = u.double() * self._cumulative[:, -1:]
        cell = (torch.searchsorted(self._cumulative, u.contiguous()) - 1).clamp(0, last)
        low, high = torch.full_like(u, -1.0), torch.ones_like(u)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self._mass_below(cell, middle) < u
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return self.edges.gather(1, cell) + self._widths.gather(1, cell) * (high + 1) / 2

    def sample(self, n_draws: int, generator: torch.Generator) -> Tensor:
        """Independent draws of each row, (n_draws, n)."""
        u = torch.rand(len(self.edges), n_draws, generator=generator, dtype=torch.float64)
        return self.ppf(u).t()


def density_in_cells(log_density: LogDensity, edges: Tensor, tolerance: float) -> CellDensities:
    """Densities of n rows that are known up to a constant, as polynomials in cells.

    A cell is halved until its integral is that of its halves, up to a part `tolerance` of the
    integral of the row.

    Parameters
    ----------
    log_density : callable
        ``log_density(rows (N,), x (N, k)) -> (N, k)`` in float64; minus infinity where there is no
        density.
    edges : Tensor of shape (n, m + 1)
        Of the first cells, increasing; outside there is no density.
    tolerance : float
    """
    n = len(edges)
    rows = torch.arange(n).repeat_interleave(edges.shape[1] - 1)
    low, high = edges[:, :-1].flatten().double(), edges[:, 1:].flatten().double()
    real = high > low
    rows, low, high = rows[real], low[real], high[real]
    logs = _at_nodes(log_density, rows, low, high)
    done: list[tuple[Tensor, ...]] = []
    scale = _largest(rows, logs, n)
    for halving in range(MOST_HALVINGS):
        middle = (low + high) / 2
        halves = [
            (low, middle, _at_nodes(log_density, rows, low, middle)),
            (middle, high, _at_nodes(log_density, rows, middle, high)),
        ]
        scale = torch.stack([scale, *(_largest(rows, part[2], n) for part in halves)]).amax(0)
        whole = _integral(logs, scale[rows], low, high)
        mass = torch.stack([_integral(part[2], scale[rows], part[0], part[1]) for part in halves])
        total = torch.zeros(n, dtype=torch.float64).index_add(0, rows, mass.sum(0))
        for at, a, b, part in done:
            total = total.index_add(0, at, _integral(part, scale[at], a, b))
        open_ = (whole - mass.sum(0)).abs() > tolerance * total[rows]
        if halving + 1 == MOST_HALVINGS or int(open_.sum()) > MOST_CELLS:
            open_ = torch.zeros_like(open_)
        for a, b, part in halves:
            done.append((rows[~open_], a[~open_], b[~open_], part[~open_]))
        rows = rows[open_].repeat(2)
        low, high = (torch.cat([halves[0][i][open_], halves[1][i][open_]]) for i in (0, 1))
        logs = torch.cat([halves[0][2][open_], halves[1][2][open_]])
        if not len(rows):
            break
    return _joined(*(torch.cat(parts) for parts in zip(*done, strict=True)), n=n)


def _at_nodes(log_density: LogDensity, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Log-densities at the nodes of cells, (N, number of nodes)."""
    x = (low + high)[:, None] / 2 + (high - low)[:, None] / 2 * _NODES
    return log_density(rows, x).double()


def _largest(rows: Tensor, logs: Tensor, n: int) -> Tensor:
    """Largest log-density of each row, (n,); 0 where there is none."""
    found = torch.full((n,), -math.inf, dtype=torch.float64)
    return found.scatter_reduce(0, rows, logs.amax(1), "amax")


def _integral(logs: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Integrals over cells, relative to the largest density of the row, (N,)."""
    shift = torch.where(scale.isfinite(), scale, 0.0)
    return ((logs - shift[:, None]).exp() @ _WEIGHTS) * (high - low) / 2


def _joined(rows: Tensor, low: Tensor, high: Tensor, logs: Tensor, *, n: int) -> CellDensities:
    """Cells of all rows, in order, as many for each."""
    order = low.argsort(stable=True)
    order = order[rows[order].argsort(stable=True)]
    rows, low, high, logs = rows[order], low[order], high[order], logs[order]
    scale = _largest(rows, logs, n)
    masses = _integral(logs, scale[rows], low, high)
    total = torch.zeros(n, dtype=torch.float64).index_add(0, rows, masses)
    counts = rows.bincount(minlength=n)
    place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    most = int(counts.max())
    edges = torch.zeros(n, most + 1, dtype=torch.float64)
    edges[rows, place] = low
    top = torch.zeros(n, dtype=torch.float64)
    top[rows] = high  # the last one of a row stays
    edges = torch.where(torch.arange(most + 1) >= counts[:, None], top[:, None], edges)
    density = (logs - scale[rows, None]).exp() / total[rows, None]
    coefficients = torch.zeros(n, most, N_NODES, dtype=torch.float64)
    coefficients[rows, place] = density @ _TO_POLYNOMIAL.t()
    return CellDensities(edges, coefficients, total.log() + scale)
