"""log Z and means of one or two columns given conditions, by the trapezoidal rule.

The rule converges faster than any power for smooth densities that vanish at the ends. Where it has
converged, half of the nodes give the same log Z to within 1e-4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.distributions import RowMixtures
from skebm.energies import ConditionalEnergy, RowwiseEnergy
from skebm.partition.given import LogZGiven

# Nodes of a component's standard deviation, and standard deviations on either side; nodes of a
# column at most, where it is the only one or one of two; nats by which half of the nodes may be
# off.
PER_DEVIATION, DEVIATIONS, MOST_NODES, TOLERANCE = 2.0, 8.0, {1: 5000, 2: 70}, 1e-4
# Nats below its largest value where a density has vanished.
VANISHED = 16.0
# Nodes that no condition needs, numbers that a network holds for each node, and numbers at once.
MOST, NODE_WIDTH, CHUNK = 1e6, 50, 2_000_000
# Log-weight below which a component of the base has no part in the range of the nodes.
NEGLIGIBLE = -30.0
# Nodes of all components of a condition at most.
MOST_OF_COMPONENTS = 40_000


def by_quadrature(energy: ConditionalEnergy, c: Tensor) -> LogZGiven:
    """log Z and means on a grid of each condition, or on grids of the components of its base.

    Values that have converged are `exact`. Those that would need too many nodes have an infinite
    standard error.
    """
    found = _by_grids(energy, c)
    left = (~found.exact & energy.base.given(c).log_weight.isfinite().all(1)).nonzero().ravel()
    if len(left):
        found.put(left, _by_components(energy, c[left]))
    return found


def _unit_grid(n_nodes: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes of a cube from -1 to 1, (N, dx), which of them are at its ends, and every second."""
    t = torch.linspace(-1, 1, n_nodes, dtype=like.dtype, device=like.device)
    place = torch.arange(n_nodes, device=like.device)
    dx = like.shape[-1]
    nodes = torch.cartesian_prod(*[t] * dx).view(-1, dx)
    places = torch.cartesian_prod(*[place] * dx).view(-1, dx)
    is_end = ((places == 0) | (places == n_nodes - 1)).any(1)
    return nodes, is_end, (places % 2 == 0).all(1)


def _by_grids(energy: ConditionalEnergy, c: Tensor) -> LogZGiven:
    """On one grid of each condition.

    It has two nodes per standard deviation of the narrowest component of the base, and extends
    eight standard deviations beyond all components. It is made twice as fine, or twice as wide if
    the density does not vanish at its ends, until it has converged.
    """
    low, high, size = _grid(energy.given(c))
    n, dx = low.shape
    found = LogZGiven.unknown(n, c.device, dx)
    while True:
        left = (~found.exact & (size <= MOST_NODES[dx])).nonzero().ravel()
        if not len(left):
            return found
        for nodes in size[left].unique().tolist():
            some = left[size[left] == nodes]
            for rows in some.split(max(1, CHUNK // (nodes**dx * NODE_WIDTH))):
                given = energy.given(c[rows])
                new, open_ends = _trapezoid(given, low[rows], high[rows], nodes)
                found.put(rows, new)
                more = (high[rows] - low[rows]) / 2 * open_ends[:, None]
                low[rows], high[rows] = low[rows] - more, high[rows] + more
        size[left] = 2 * size[left] - 1


def _grid(given: RowwiseEnergy) -> tuple[Tensor, Tensor, Tensor]:
    """Ends of the ranges of columns, (n, dx), and nodes of a column, (n,), a power of 2, plus 1."""
    base = given.base
    scale = base.scale_tril.square().sum(2).sqrt()  # (K, dx)
    counts = (base.log_weight > NEGLIGIBLE)[..., None]
    width = DEVIATIONS * scale
    low = (base.means - width).masked_fill(~counts, torch.inf).amin(1)
    high = (base.means + width).masked_fill(~counts, -torch.inf).amax(1)
    least = scale.expand_as(base.means).masked_fill(~counts, torch.inf).amin(1)
    needed = ((high - low) / least * PER_DEVIATION).amax(1).nan_to_num(MOST).clamp(2, MOST)
    return low, high, (2 ** needed.log2().ceil() + 1).long()


def _trapezoid(
    given: RowwiseEnergy, low: Tensor, high: Tensor, n_nodes: int
) -> tuple[LogZGiven, Tensor]:
    """log Z by so many nodes of a column, and where the density does not vanish at the ends, (n,).

    Errors are infinite there, and where half of the nodes differ.
    """
    n, dx = low.shape
    t, is_end, is_second = _unit_grid(n_nodes, low)
    x = low + (t[:, None] + 1) / 2 * (high - low)  # (N, n, dx)
    log_p = -given(x.flatten(0, 1)).double().view(len(t), n)
    cell = ((high - low) / (n_nodes - 1)).double().log().sum(1)
    value = log_p.logsumexp(0) + cell
    half = log_p[is_second].logsumexp(0) + cell + dx * math.log(2)
    mean = torch.einsum("Nn,Nnd->nd", (log_p - log_p.logsumexp(0)).exp(), x.double())
    open_ends = log_p[is_end].amax(0) > log_p.amax(0) - VANISHED
    exact = ((value - half).abs() <= TOLERANCE) & ~open_ends
    error = torch.full_like(value, torch.inf).masked_fill(exact, 0.0)
    mean_error = error[:, None].repeat(1, dx)
    found = LogZGiven(value, error, value, exact, None, mean, mean_error)
    return found, open_ends


# ------------------------------------------------------------------------------
# Grids of components
# ------------------------------------------------------------------------------


class _Grids:
    """A grid of each component of the base given each of n conditions, along its own axes.

    Attributes
    ----------
    log_share, half : Tensor of shape (n, K)
        Log of what a component adds to Z, by all nodes and by half of them; minus infinity of
        components without weight.
    mean : Tensor of shape (n, K, dx)
        Of rows, within a component.
    ends : Tensor of shape (n, K)
        As `log_share`, of the node at an end that adds the most.
    width : Tensor of shape (n, K)
        Standard deviations on either side.
    n_nodes : Tensor of shape (n, K), int
        Of an axis; 0 of components without weight.
    """

    def __init__(self, base: RowMixtures):
        self.base = base
        counts = base.log_weight > NEGLIGIBLE
        self.log_share = torch.full_like(base.log_weight, -torch.inf, dtype=torch.float64)
        self.half, self.ends = self.log_share.clone(), self.log_share.clone()
        self.mean = torch.zeros_like(base.means, dtype=torch.float64)
        self.width = torch.full_like(base.log_weight, DEVIATIONS)
        # At first a node for each standard deviation, and for two as half of them.
        self.n_nodes = torch.where(counts, int(2 * DEVIATIONS) + 1, 0)

    @property
    def log_z(self) -> Tensor:
        """log Z of each condition, (n,)."""
        return self.log_share.logsumexp(1)

    def has_open_ends(self) -> Tensor:
        """Whether a component does not vanish at the ends of its grid, (n, K)."""
        return self.ends > self.log_z[:, None] - VANISHED

    def is_off(self) -> Tensor:
        """Whether the grid of a component is too small or too coarse, (n, K)."""
        total = self.log_z[:, None]
        error = ((self.log_share - total).exp() - (self.half - total).exp()).abs()
        return (self.n_nodes > 0) & (~(error <= TOLERANCE) | self.has_open_ends())

    def evaluate(self, energy: ConditionalEnergy, c: Tensor, which: Tensor) -> None:
        """Fill in components `which` (n, K), bool."""
        for n_nodes in self.n_nodes[which].unique().tolist():
            t, is_end, is_second = _unit_grid(n_nodes, self.base.means)
            some = (which & (self.n_nodes == n_nodes)).nonzero()
            for part in some.split(max(1, CHUNK // (len(t) * NODE_WIDTH))):
                row, k = part.unbind(1)
                width = self.width[row, k][:, None, None]
                z = t * width  # (m, N, dx)
                x = self.base.means[row, k][:, None] + z @ self.base.scale_tril[k].mT
                given = c[row][:, None].expand(-1, len(t), -1)
                f = energy.parametric_energy(torch.cat([given, x], 2).flatten(0, 1))
                cell = (2 * width[:, :, 0] / (n_nodes - 1) / math.tau**0.5).log() * z.shape[2]
                log_q = self.base.log_weight[row, k][:, None] - z.square().sum(2) / 2 + cell
                log_p = (log_q - f.view(len(part), -1)).double()
                self.log_share[row, k] = log_p.logsumexp(1)
                self.half[row, k] = log_p[:, is_second].logsumexp(1) + z.shape[2] * math.log(2)
                self.ends[row, k] = log_p[:, is_end].amax(1)
                self.mean[row, k] = (log_p.softmax(1)[..., None] * x.double()).sum(1)

    def refine(self, which: Tensor) -> None:
        """Make grids twice as wide if a component does not vanish at its ends, or as fine."""
        self.width[which & self.has_open_ends()] *= 2
        self.n_nodes[which] = 2 * self.n_nodes[which] - 1


def _by_components(energy: ConditionalEnergy, c: Tensor) -> LogZGiven:
    """On grids of the components, whatever their distances and widths.

    A grid begins with a node per standard deviation, up to eight on either side. Those that matter
    are made twice as fine or as wide until all have converged.
    """
    dx = energy.target_domain.n_columns
    grids = _Grids(energy.base.given(c))
    off = which = grids.n_nodes > 0
    while which.any():
        grids.evaluate(energy, c, which)
        off = grids.is_off()
        needed = torch.where(off, 2, 1) * grids.n_nodes
        which = off & ((needed**dx).sum(1, keepdim=True) <= MOST_OF_COMPONENTS)
        grids.refine(which)
    exact = ~off.any(1)
    value = grids.log_z
    error = torch.full_like(value, torch.inf).masked_fill(exact, 0.0)
    mean = (grids.log_share.softmax(1)[..., None] * grids.mean).sum(1)
    return LogZGiven(value, error, value.clone(), exact, None, mean, error[:, None].repeat(1, dx))
