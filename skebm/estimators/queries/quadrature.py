"""Densities of one number for each of n rows, known up to a constant, by adaptive quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Nodes of Gauss's rule in a cell. Halvings of a cell at most, and cells of all rows at most.
N_NODES, MOST_HALVINGS, MOST_CELLS = 12, 20, 400_000
# Coefficients of the highest degrees, which say how far the polynomial of a cell is off.
N_LAST = 2
# What the integral of a base may be off by: it has next to nothing outside of the cells.
LEAST_OFF = 1e-8
# Halvings of a cell that find a quantile.
BISECTIONS = 60

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(N_NODES))
# From values at the nodes to coefficients of the polynomial through them, by powers of t and in
# Legendre polynomials.
_TO_POLYNOMIAL = torch.from_numpy(np.linalg.inv(np.vander(_NODES.numpy(), increasing=True)))
_TO_LEGENDRE = torch.from_numpy(
    np.linalg.inv(np.polynomial.legendre.legvander(_NODES.numpy(), N_NODES - 1))
)
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
    def mean_error(self) -> Tensor:
        """Standard errors of the means, (n,): none."""
        return torch.zeros_like(self.mean)

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


def density_in_cells(
    log_density: LogDensity,
    edges: Tensor,
    tolerance: float,
    log_base: LogDensity | None = None,
) -> CellDensities:
    """Densities of n rows that are known up to a constant, as polynomials in cells.

    A cell is halved until the last coefficients of its density in Legendre polynomials are a part
    `tolerance` of the integral of the row. Where the density corrects a base, all cells of a row
    are halved as long as they miss a part of the base, whose integral is 1: no narrow component
    stays between the nodes.

    Parameters
    ----------
    log_density : callable
        ``log_density(rows (N,), x (N, k)) -> (N, k)`` in float64; minus infinity where there is no
        density.
    edges : Tensor of shape (n, m + 1)
        Of the first cells, increasing; outside there is no density.
    tolerance : float
    log_base : callable or None
        The log-density of a normalised base, which is added to `log_density`.
    """
    edges = edges.double()
    cells = _evaluate_cells(log_density, log_base, torch.arange(len(edges)), edges)
    for _ in range(MOST_HALVINGS):
        open_ = cells.inexact(tolerance, len(edges))
        if not bool(open_.any()) or int(open_.sum()) > MOST_CELLS:
            break
        low, high = cells.low[open_], cells.high[open_]
        three = torch.stack([low, (low + high) / 2, high], 1)
        halves = _evaluate_cells(log_density, log_base, cells.rows[open_], three)
        cells = _Cells(*(torch.cat([a[~open_], b]) for a, b in zip(cells, halves, strict=True)))
    return _join_cells(*cells[:4], n=len(edges))


class _Cells(NamedTuple):
    """Cells of all rows: their rows (N,), ends (N,), and log-densities at their nodes (N, k)."""

    rows: Tensor
    low: Tensor
    high: Tensor
    logs: Tensor
    base: Tensor

    def inexact(self, tolerance: float, n: int) -> Tensor:
        """Which cells are to be halved, (N,)."""
        rows, width = self.rows, (self.high - self.low) / 2
        scale = _largest(rows, self.logs, n)
        shift = torch.where(scale.isfinite(), scale, 0.0)[rows]
        density = (self.logs - shift[:, None]).exp() * width[:, None]
        total = _sum_of_rows(rows, density @ _WEIGHTS, n)
        last = (density @ _TO_LEGENDRE[-N_LAST:].t()).abs().sum(1)
        open_ = last > tolerance * total[rows]
        if self.base.shape[1]:
            of_base = _sum_of_rows(rows, (self.base.exp() @ _WEIGHTS) * width, n)
            closed = _sum_of_rows(rows, open_.double(), n) == 0
            open_ |= (closed & ((of_base - 1).abs() > max(tolerance, LEAST_OFF)))[rows]
        # A cell of few units in the last place has no halves.
        return open_ & (width > 1e-13 * torch.maximum(self.low.abs(), self.high.abs()))


def _evaluate_cells(
    log_density: LogDensity, log_base: LogDensity | None, rows: Tensor, edges: Tensor
) -> _Cells:
    """Cells between the edges (N, m + 1) of rows (N,), without those that have no width."""
    low, high = edges[:, :-1], edges[:, 1:]
    x = ((low + high)[..., None] / 2 + (high - low)[..., None] / 2 * _NODES).flatten(1)
    logs = log_density(rows, x).double()
    base = None if log_base is None else log_base(rows, x).double()
    logs = logs if base is None else logs + base
    real = (high > low).flatten()

    def of_cells(values: Tensor) -> Tensor:
        return values.reshape(len(real), -1)[real]

    rows = rows.repeat_interleave(low.shape[1])[real]
    base = logs.new_empty(len(real), 0)[real] if base is None else of_cells(base)
    return _Cells(rows, low.flatten()[real], high.flatten()[real], of_cells(logs), base)


def _sum_of_rows(rows: Tensor, values: Tensor, n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.float64).index_add(0, rows, values)


def _largest(rows: Tensor, logs: Tensor, n: int) -> Tensor:
    """Largest log-density of each row, (n,); 0 where there is none."""
    found = torch.full((n,), -math.inf, dtype=torch.float64)
    return found.scatter_reduce(0, rows, logs.amax(1), "amax")


def _integral(logs: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Integrals over cells, relative to the largest density of the row, (N,)."""
    shift = torch.where(scale.isfinite(), scale, 0.0)
    return ((logs - shift[:, None]).exp() @ _WEIGHTS) * (high - low) / 2


def _join_cells(rows: Tensor, low: Tensor, high: Tensor, logs: Tensor, *, n: int) -> CellDensities:
    """Cells of all rows, in order, as many for each."""
    order = low.argsort(stable=True)
    order = order[rows[order].argsort(stable=True)]
    rows, low, high, logs = rows[order], low[order], high[order], logs[order]
    scale = _largest(rows, logs, n)
    total = _sum_of_rows(rows, _integral(logs, scale[rows], low, high), n)
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
