r"""Pairwise energies: Boltzmann machines of bits and categories, and the Ising model on a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skebm.base import Binary, Categorical, Domain, PairwiseEnergy
from skebm.base.domains import columns_of, parts_of
from skebm.base.energy import difference_of_levels
from skebm.base.objective import Reparametrisation
from skebm.base.sampler import whole_number

# Neighbours are gathered by index if the largest degree times this is below the number of columns:
# 43 us instead of 315 for 100 rows of a 20 x 20 grid on one thread.
GATHER_RATIO = 16
ALL = slice(None)
# Least variance of a column, by which steps are divided.
LEAST_VARIANCE = 1e-3


class BoltzmannMachine(PairwiseEnergy):
    r"""Fully visible Boltzmann machine of binary units; the Potts model of categorical columns.

    .. math::
        E(x) = c - \tfrac12 x^\top J x - b^\top x, \qquad x \in \{0, 1\}^d, \qquad
        \log\frac{p(x_i = 1 \mid x_{-i})}{p(x_i = 0 \mid x_{-i})} = b_i + \sum_j J_{ij} x_j .

    J is symmetric with a zero diagonal, also in training: the parameter has one entry for each edge
    of the graph of couplings. Pairs of columns without an edge stay uncoupled. On one-hot rows
    (`domain`), :math:`b_a + \sum_j J_{aj} x_j` is the log-weight of level a of a column, and levels
    of the same column are not coupled.

    Each pair of columns enters E once, with the factor one half of the double sum. Texts that write
    :math:`E(x) = -x^\top W x - b^\top x` without it, as Tomczak (2022) in eq. 6.32, count each
    pair twice: their model is ``BoltzmannMachine(2 * W, b)``, which differs from
    ``BoltzmannMachine(W, b)`` by nats, not by a unit.

    Parameters
    ----------
    coupling : array-like of shape (d, d)
        W of the term :math:`-x^\top W x / 2`, symmetric or not: J is its symmetric part, and since
        :math:`x_i^2 = x_i`, its diagonal is a bias :math:`W_{ii} / 2`. It determines the precision
        and the device.
    bias : array-like of shape (d,) or None, default=None
        b; ``None`` is zero.
    edges : array-like of bool of shape (d, d) or None, default=None
        Adjacency matrix of the pairs that may be coupled, marked on either side of the diagonal,
        which is ignored. ``None`` takes the nonzero entries of J, so that training from zero
        couplings needs `edges`.
    offset : float, default=0.0
        The constant c, not trained.
    domain : Domain or None, default=None
        Of the rows, with d entries: ``Binary``, ``Categorical``, or ``Mixed`` of these. None is
        binary. Couplings between levels of the same column have no effect and are dropped.

    Attributes
    ----------
    weight : Parameter of shape (n_edges,)
        J of each edge i < j, row by row; a state dict can be loaded by models with the same edges.
    bias : Parameter of shape (d,)
        b, with the contributions of the diagonal of W.
    offset : Tensor of shape ()
        c.

    References
    ----------
    Ackley, Hinton and Sejnowski (1985), "A learning algorithm for Boltzmann machines", Cognitive
    Science 9. Tomczak (2022), "Deep Generative Modeling", section 6.5.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BoltzmannMachine
    >>> energy = BoltzmannMachine([[0.0, 2.0, 0.0], [2.0, 0.0, -1.0], [0.0, -1.0, 0.0]])
    >>> energy(torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])).tolist()
    [-2.0, -1.0]
    >>> energy.colours  # columns 0 and 2 are independent given column 1
    (tensor([1]), tensor([0, 2]))
    """

    offset: Tensor
    edge_index: Tensor
    mask: Tensor
    order: Tensor
    neighbours: Tensor | None

    def __init__(
        self,
        coupling: Any,
        bias: Any = None,
        *,
        edges: Any = None,
        offset: float = 0.0,
        domain: Domain | None = None,
    ):
        super().__init__()
        W = _matrix(coupling)
        self.domain = (
            Binary((len(W),)) if domain is None else _check_pairwise_domain(domain, len(W))
        )
        alone = same_column(self.domain).to(W.device)
        J = ((W + W.t()) / 2).masked_fill(alone, 0)
        pairs = J != 0
        if edges is not None:
            marked = _like(pairs, edges, "edges")
            if (pairs & ~(marked | marked.t())).any():
                raise ValueError("coupling must be zero where there is no edge.")
            pairs = (marked | marked.t()) & ~alone
        self.weight = nn.Parameter(J[pairs.triu()])
        self.bias = nn.Parameter(_like(W[0], bias, "bias") + W.diagonal() / 2)
        # A scalar of double precision is not rounded, and does not promote float32 rows.
        self.register_buffer("offset", _like(W[0, 0].double(), offset, "offset"))
        self._index(pairs)

    def _index(self, pairs: Tensor) -> None:
        """Store index tables of the edges, (d, d) or (d, largest degree), and the colouring."""
        neighbours, mask = None, pairs
        index = pairs.triu().flatten().cumsum(0).view_as(pairs).sub_(1).triu_(1).clamp_(min=0)
        index += index.t().clone()
        degree = pairs.sum(1, keepdim=True)
        largest = int(degree.max())
        if 0 < largest * GATHER_RATIO < len(pairs):
            mask = torch.arange(largest, device=pairs.device) < degree
            neighbours = index.new_zeros(mask.shape)
            neighbours[mask] = pairs.nonzero()[:, 1]  # both list the pairs row by row
            index = index.gather(1, neighbours)
        colour = _column_colouring(pairs.cpu(), self.domain)
        self._sizes = colour.bincount().tolist()
        order = colour.argsort(stable=True).to(pairs.device)
        tables = {"neighbours": neighbours, "edge_index": index, "mask": mask, "order": order}
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    @property
    def colours(self) -> tuple[Tensor, ...]:
        """A partition of the columns into groups without couplings, which are sampled jointly.

        There are two for a bipartite graph, such as a grid of even sides, and d for a complete one.
        A one-hot column is included with all its entries, in a group of columns that have the same
        number of levels.
        """
        return self.order.split(self._sizes)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Entries i < j of each edge, in the order of the weights."""
        mask, number = self.mask, self.edge_index
        if self.neighbours is None:
            row, column = mask.nonzero().t()
        else:
            row = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
            column = self.neighbours[mask]
        upper = row < column
        order = number[mask][upper].argsort()
        return row[upper][order], column[upper][order]

    def coordinates(self, x: Tensor, weight: Tensor | None, l2: float = 0.0) -> Reparametrisation:
        """Coordinates of (weight, bias) in which losses of rows are well conditioned.

        They are those of centred couplings, J_ij (x_i - m_i)(x_j - m_j), which depend little on
        each other and on the biases; curvatures are products of the variances of the columns, plus
        the ridge penalty `l2` on couplings.
        """
        share = torch.full_like(x[:, 0], 1 / len(x)) if weight is None else weight / weight.sum()
        mean = share @ x
        variance = (share @ (x - mean).square()).clamp(min=LEAST_VARIANCE)
        i, j = self.ends

        def shift(w: Tensor) -> Tensor:
            zero = torch.zeros_like(mean)
            return zero.index_add(0, i, mean[j] * w).index_add(0, j, mean[i] * w)

        def split(flat: Tensor) -> tuple[Tensor, Tensor]:
            return flat[: len(i)], flat[len(i) :]

        def inside(flat: Tensor) -> Tensor:
            w, b = split(flat)
            return torch.cat([w, b + shift(w)])

        def outside(flat: Tensor) -> Tensor:
            w, b = split(flat)
            return torch.cat([w, b - shift(w)])

        def gradient(flat: Tensor) -> Tensor:
            w, b = split(flat)
            return torch.cat([w - mean[j] * b[i] - mean[i] * b[j], b])

        curvature = torch.cat([2 * variance[i] * variance[j] + l2, variance])
        return Reparametrisation(inside, outside, gradient, curvature)

    @property
    def coupling(self) -> Tensor:
        """J, (d, d), built at each access; :meth:`logits` does not need it."""
        values, d = self._weights(ALL), len(self.bias)
        if self.neighbours is None:
            return values
        return values.new_zeros(d, d).scatter_add(1, self.neighbours, values)

    def _weights(self, columns: Any) -> Tensor:
        """Rows of J, (k, d), or with gathered neighbours their couplings, (k, degree)."""
        index = self.edge_index[columns]
        if not len(self.weight):
            return self.weight.new_zeros(index.shape)
        values = self.weight.index_select(0, index.flatten()).view(index.shape)
        return values * self.mask[columns]

    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Log-odds of a one in each of `columns` (all by default) given the others, (n, k).

        For a one-hot entry it is the log-weight of the level.
        """
        chosen = ALL if columns is None else columns
        weights, bias = self._weights(chosen), self.bias[chosen]
        if self.neighbours is None:
            return torch.addmm(bias, x, weights.t())
        index = self.neighbours[chosen]
        if torch.is_grad_enabled():  # twice differentiable, which embedding_bag is not
            units = x.t().index_select(0, index.flatten()).view(*index.shape, len(x))
            return (units * weights.unsqueeze(2)).sum(1).t() + bias
        units = x.t().contiguous()
        field = nn.functional.embedding_bag(index, units, per_sample_weights=weights, mode="sum")
        return field.t() + bias

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """c - x'Jx / 2 - b'x, (n,), defined for real x as well; `cond` is not used."""
        return self.offset - (x * (self.logits(x) + self.bias)).sum(1) / 2

    @torch.no_grad()
    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        """Energy (n,) and its gradient, which is minus the logits, (n, d)."""
        logits = self.logits(x)
        return self.offset - (x * (logits + self.bias)).sum(1) / 2, -logits

    def flip_difference(self, x: Tensor) -> Tensor:
        """E(x with entry i set to 1 - x_i) - E(x) = (2 x_i - 1) logit_i, (n, d)."""
        if not isinstance(self.domain, Binary):
            return super().flip_difference(x)  # which says why not
        return (2 * x - 1) * self.logits(x)

    def level_difference(self, x: Tensor) -> Tensor:
        """E(x after a change of one column) - E(x), (n, d), from the logits."""
        return difference_of_levels(self.logits(x), x, self.domain)

    @classmethod
    def from_spins(cls, coupling: Any, field: Any = None, offset: float = 0.0) -> BoltzmannMachine:
        r"""From a spin energy :math:`c - s^\top J s / 2 - h^\top s`, with s = 2x - 1.

        The diagonal of `coupling` (d, d), symmetric or not, adds a constant; `field` (d,) is zero
        by default. Constants are part of `offset`, so that energies and log Z are those of the
        spins.
        """
        W = _matrix(coupling)
        h = _like(W[0], field, "field").double()
        sums = (W + W.t()).sum(1, dtype=torch.float64)
        return cls(4 * W, 2 * h - sums, offset=offset + float(h.sum() - sums.sum() / 4))

    @torch.no_grad()
    def to_spins(self) -> tuple[Tensor, Tensor, float]:
        """Coupling (d, d), field (d,) and offset of the same energy on spins, s = 2x - 1."""
        if not isinstance(self.domain, Binary):
            raise ValueError(
                f"Only bits have spins, 2x - 1; this energy is defined on {self.domain}."
            )
        J = self.coupling / 4
        sums = J.sum(1, dtype=torch.float64)
        h = self.bias / 2 + sums
        return J, h.to(J.dtype), float(self.offset - h.sum() + sums.sum() / 2)


def ising_grid(
    n_rows: int,
    n_columns: int,
    coupling: float = 1.0,
    field: float = 0.0,
    *,
    periodic: bool = True,
    dtype: torch.dtype = torch.float32,
) -> BoltzmannMachine:
    r"""Ising model on a square grid: a :class:`BoltzmannMachine` of spins s = 2x - 1.

    .. math:: E(s) = -K \sum_{\langle i, j \rangle} s_i s_j - h \sum_i s_i

    The sum is over nearest neighbours. On a periodic side of 2 the two neighbours of a site in
    either direction are the same and their pair counts twice, as in transfer matrices; a side of 1
    has no pairs, so that a periodic grid of one row is a ring. The infinite grid is critical at
    :math:`K = \log(1 + \sqrt 2) / 2` (Onsager, 1944, Physical Review 65).

    Parameters
    ----------
    n_rows, n_columns : int
        Sides of the grid; site (r, c) is column ``r * n_columns + c`` of a row.
    coupling, field : float, default=1.0 and 0.0
        K of each pair, negative for an antiferromagnet, and h of each site.
    periodic : bool, default=True
        Whether the last of a row or column is a neighbour of the first.
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import ising_grid
    >>> ising_grid(4, 4)(torch.ones(1, 16)).item()  # 32 pairs that agree
    -32.0
    """
    whole_number("n_rows", n_rows, 1)
    whole_number("n_columns", n_columns, 1)
    site = torch.arange(n_rows * n_columns).view(n_rows, n_columns)
    pairs = torch.zeros(site.numel(), site.numel(), dtype=dtype)
    for axis, side in enumerate(site.shape):
        n_pairs = side if periodic and side > 1 else side - 1
        one, other = (s.narrow(axis, 0, n_pairs).flatten() for s in (site, site.roll(-1, axis)))
        pairs[one, other] += 1
    fields = torch.full((site.numel(),), float(field), dtype=dtype)
    return BoltzmannMachine.from_spins(coupling * (pairs + pairs.t()), fields)


def grid_edges(n_rows: int, n_columns: int, *, periodic: bool = False) -> Tensor:
    """Adjacency matrix of the nearest neighbours on a grid, (d, d) of bool.

    Parameters
    ----------
    n_rows, n_columns : int
        Sides of the grid; site (r, c) is column ``r * n_columns + c`` of a row.
    periodic : bool, default=False
        Whether the last of a row or column is a neighbour of the first.

    Examples
    --------
    >>> from skebm.energies import grid_edges
    >>> int(grid_edges(4, 4).sum()) // 2
    24
    """
    return ising_grid(n_rows, n_columns, 1.0, periodic=periodic).coupling.detach() != 0


def _matrix(coupling: Any) -> Tensor:
    """A finite square matrix of floats."""
    W = torch.as_tensor(coupling)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not len(W):
        raise ValueError(f"coupling must be a square matrix, got shape {tuple(W.shape)}.")
    W = W if W.is_floating_point() else W.to(torch.get_default_dtype())
    return _like(W, W, "coupling")


def _like(model: Tensor, values: Any, name: str) -> Tensor:
    """Finite values in the shape, dtype and device of `model`; zeros for None."""
    if values is None:
        return torch.zeros_like(model)
    if not isinstance(values, Tensor):
        values = np.array(values)  # a copy: stored arrays may be read-only
    tensor = torch.as_tensor(values, dtype=model.dtype, device=model.device).detach()
    if tensor.shape != model.shape:
        raise ValueError(f"{name} must have shape {tuple(model.shape)}, not {tuple(tensor.shape)}.")
    if not tensor.isfinite().all():
        raise ValueError(f"{name} must be finite.")
    return tensor


def _check_pairwise_domain(domain: Domain, d: int) -> Domain:
    """A domain of bits and one-hot columns with d entries in a row."""
    if not all(isinstance(part, (Binary, Categorical)) for part in parts_of(domain)):
        raise ValueError(f"A Boltzmann machine is defined on bits and categories, not on {domain}.")
    if domain.row_shape != (d,):
        raise ValueError(f"{domain} has rows of shape {domain.row_shape}, coupling is {d} x {d}.")
    return domain


def same_column(domain: Domain) -> Tensor:
    """Which pairs of entries of a row belong to the same column, (d, d)."""
    widths = torch.tensor(columns_of(domain))
    column = torch.arange(len(widths)).repeat_interleave(widths)
    return column[:, None] == column


def _column_colouring(pairs: Tensor, domain: Domain) -> Tensor:
    """Colour of each entry of a row, (d,): that of its column, and of no column of other width."""
    widths = torch.tensor(columns_of(domain))
    column = torch.arange(len(widths)).repeat_interleave(widths)
    i, j = pairs.nonzero().t()
    coupled = torch.zeros(len(widths), len(widths), dtype=torch.bool)
    coupled[column[i], column[j]] = True
    both = torch.stack([_colouring(coupled), widths], 1)
    return both.unique(dim=0, return_inverse=True)[1].repeat_interleave(widths)


def _colouring(pairs: Tensor) -> Tensor:
    """Colour of each column, (d,), by DSatur: greedy by saturation, then by degree.

    It needs two colours on any bipartite graph (Brélaz, 1979, CACM 22).
    """
    degree, d = pairs.sum(1), len(pairs)
    used = torch.zeros(d, int(degree.max()) + 1, dtype=torch.bool)  # by neighbours of each column
    colour, rank = torch.zeros(d, dtype=torch.int64), degree.clone()
    for _ in range(d):
        i = int(rank.argmax())
        colour[i] = own = int((~used[i]).byte().argmax())
        rank[i] = -1
        rank[pairs[i] & ~used[:, own] & (rank >= 0)] += d
        used[pairs[i], own] = True
    return colour
