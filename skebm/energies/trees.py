"""Sums of decision trees: functions of rows that are constant on boxes, and how a tree is grown."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base.energy import ValueAndInputGrad

# Bins of a column: a split of one byte. Half of the edges are quantiles of the rows of each of two
# samples, so that both are resolved where only one of them has rows.
N_BINS = 255
# What a split gains at least, relative to the curvature of all rows.
LEAST_FALL = 1e-7


class Bins(NamedTuple):
    """Bins of the columns, whose edges are where a tree may split.

    Attributes
    ----------
    edges : Tensor of shape (d, N_BINS - 1)
        Increasing edges of each column; infinite where a column has fewer. A row is in bin k of a
        column if k edges are below its value.
    """

    edges: Tensor

    @classmethod
    def of_samples(cls, *samples: Tensor) -> Bins:
        """Bins by the quantiles of several samples of rows, (n, d), with equal numbers of each.

        Edges lie between values that occur.
        """
        d = samples[0].shape[1]
        edges = samples[0].new_full((d, N_BINS - 1), math.inf)
        each = (N_BINS - 1) // len(samples)
        for j in range(d):
            values = torch.cat([_levels(sample[:, j], each + 1) for sample in samples]).unique()
            found = (values[1:] + values[:-1]) / 2
            found = found[(found >= values[:-1]) & (found < values[1:])][: N_BINS - 1]
            edges[j, : len(found)] = found
        return cls(edges)

    def codes(self, x: Tensor) -> Tensor:
        """Bins of rows (n, d), as integers below N_BINS, (d, n)."""
        return torch.searchsorted(self.edges, x.t().contiguous()).to(torch.int32)


def _levels(values: Tensor, n: int) -> Tensor:
    """The values of a column, or n quantiles of many, increasing."""
    distinct = values.unique()
    if len(distinct) <= n:
        return distinct
    ordered = values.sort().values
    place = torch.linspace(0, len(ordered) - 1, n, dtype=torch.float64, device=values.device)
    return ordered[place.round().long()]


class Tree(NamedTuple):
    """A decision tree of K nodes, of which the children of one are neighbours.

    Attributes
    ----------
    column : Tensor of shape (K,)
        Column that an inner node compares with its edge.
    edge : Tensor of shape (K,)
        Number of that edge: rows with a larger value go to the right. N_BINS at a leaf.
    left : Tensor of shape (K,)
        The left child; the right one is the next node. A leaf is its own.
    value : Tensor of shape (K,)
        Value of a leaf.
    depth : int
    """

    column: Tensor
    edge: Tensor
    left: Tensor
    value: Tensor
    depth: int

    def leaves(self, codes: Tensor) -> Tensor:
        """The leaf of each row, (n,), by its bins (d, n)."""
        n = codes.shape[1]
        place = torch.arange(n, device=codes.device)
        node = torch.zeros(n, dtype=torch.long, device=codes.device)
        for _ in range(self.depth):
            code = codes[self.column[node], place]
            node = self.left[node] + (code > self.edge[node])
        return node


class Growth(NamedTuple):
    """How far a tree grows.

    Attributes
    ----------
    max_leaf_nodes : int
    l2 : float
        Penalty on the squares of the values of leaves.
    min_rows : int
        Fewest rows of a leaf.
    """

    max_leaf_nodes: int = 16
    l2: float = 1.0
    min_rows: int = 5


def grow_tree(codes: Tensor, grad: Tensor, curvature: Tensor, growth: Growth) -> Tree:
    r"""The tree that lowers a loss most, to second order: a step of gradient boosting.

    A leaf of gradient G and curvature H, sums over its rows, has the value
    :math:`-G / (H + \lambda)`, by which the loss falls by :math:`G^2 / 2 (H + \lambda)`. The
    tree grows by levels: of all leaves of a level, those are divided that gain most, until there
    are `max_leaf_nodes`.

    Parameters
    ----------
    codes : Tensor of shape (d, n)
        Bins of the rows.
    grad, curvature : Tensor of shape (n,)
        First and second derivatives of the loss of each row, in float64.
    growth : Growth

    References
    ----------
    Friedman (2001), "Greedy function approximation: a gradient boosting machine", Annals of
    Statistics 29(5). Chen and Guestrin (2016), "XGBoost: a scalable tree boosting system", KDD,
    equations 4 to 7.
    """
    d, n = codes.shape
    device = codes.device
    column, edge = [0], [N_BINS]
    left, values = [0], [0.0]
    node = torch.zeros(n, dtype=torch.long, device=device)  # place of a row's leaf among `open_`
    # Rounding alone divides leaves whose rows are all of one kind.
    least = LEAST_FALL * float(curvature.sum())
    open_, rows, depth, n_leaves = [0], torch.arange(n, device=device), 0, 1
    while open_ and n_leaves < growth.max_leaf_nodes:
        split = _best_splits(codes, grad, curvature, rows, node, len(open_), growth)
        order = split.gain.argsort(descending=True)[: growth.max_leaf_nodes - n_leaves]
        chosen = order[split.gain[order] > least].sort().values
        if not len(chosen):
            break
        depth, n_leaves = depth + 1, n_leaves + len(chosen)
        first_child = torch.full((len(open_),), -1, dtype=torch.long, device=device)
        following: list[int] = []
        for number in chosen.tolist():
            parent = open_[number]
            first_child[number] = len(following)
            column[parent], edge[parent] = int(split.column[number]), int(split.edge[number])
            left[parent] = len(column)
            for value in (float(split.left_value[number]), float(split.right_value[number])):
                following.append(len(column))
                left.append(len(column))
                column.append(0)
                edge.append(N_BINS)
                values.append(value)
        kept = first_child[node] >= 0
        rows, node = rows[kept], node[kept]
        right = codes[split.column[node], rows] > split.edge[node]
        node, open_ = first_child[node] + right, following
    if depth == 0:
        values[0] = float(-grad.sum() / (curvature.sum() + growth.l2))
    return Tree(
        torch.tensor(column, device=device),
        torch.tensor(edge, device=device),
        torch.tensor(left, device=device),
        torch.tensor(values, dtype=grad.dtype, device=device),
        depth,
    )


class _Splits(NamedTuple):
    """The best split of each of m leaves: what it gains, where it is, values of both parts."""

    gain: Tensor
    column: Tensor
    edge: Tensor
    left_value: Tensor
    right_value: Tensor


def _best_splits(
    codes: Tensor,
    grad: Tensor,
    curvature: Tensor,
    rows: Tensor,
    node: Tensor,
    m: int,
    growth: Growth,
) -> _Splits:
    """The best split of each of m leaves; `node` says in which of them the `rows` are."""
    whole = len(rows) == codes.shape[1]
    g, h = (grad, curvature) if whole else (grad[rows], curvature[rows])
    size, first = m * N_BINS, node * N_BINS
    sums = g.new_empty(3, codes.shape[0], size)
    for j, of_column in enumerate(codes):
        key = first + (of_column if whole else of_column[rows])
        sums[0, j] = torch.bincount(key, g, minlength=size)
        sums[1, j] = torch.bincount(key, h, minlength=size)
        sums[2, j] = torch.bincount(key, minlength=size)
    sums = sums.view(3, -1, m, N_BINS)
    total, below = sums.sum(3, keepdim=True), sums.cumsum(3)[..., :-1]
    above = total - below
    gain = _fall(below, growth) + _fall(above, growth) - _fall(total, growth)
    small = torch.minimum(below[2], above[2]) < growth.min_rows
    gain = gain.masked_fill(small, -math.inf).transpose(0, 1).flatten(1)  # (m, d * edges)
    best = gain.max(1)
    column, edge = best.indices // (N_BINS - 1), best.indices % (N_BINS - 1)
    leaf = torch.arange(m, device=codes.device)

    def value(part: Tensor) -> Tensor:
        found = part[:, column, leaf, edge]
        return -found[0] / (found[1] + growth.l2)

    return _Splits(best.values, column, edge, value(below), value(above))


def _fall(sums: Tensor, growth: Growth) -> Tensor:
    """Twice the fall of the loss by leaves of gradients and curvatures, (3, ...)."""
    return sums[0].square() / (sums[1] + growth.l2)


class TreeSum(nn.Module):
    r"""A sum of trees as a network, :math:`f(x) = -\sum_t F_t(x)`, (n,).

    Its gradient is zero wherever it has one. Missing entries go to the left.

    Parameters
    ----------
    n_trees, n_nodes, depth : int
        Number of trees, most nodes of one, and most comparisons on the way to a leaf.
    dtype : torch.dtype
    """

    has_gradient = False
    column: Tensor
    threshold: Tensor
    child: Tensor

    def __init__(
        self,
        n_trees: int = 0,
        n_nodes: int = 1,
        depth: int = 0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ):
        super().__init__()
        shape = (n_trees, n_nodes)
        kind: dict[str, Any] = {"device": device}
        self.depth = depth
        self.value = nn.Parameter(torch.zeros(shape, dtype=dtype, **kind), requires_grad=False)
        self.register_buffer("column", torch.zeros(shape, dtype=torch.int64, **kind), False)
        self.register_buffer("threshold", torch.full(shape, math.inf, dtype=dtype, **kind), False)
        itself = torch.arange(n_trees * n_nodes, **kind).view(shape)
        self.register_buffer("child", itself, False)

    @classmethod
    def of_trees(cls, trees: list[Tree], bins: list[Bins], dtype: torch.dtype) -> TreeSum:
        """The sum of trees, each with the bins that it was grown on."""
        n_nodes = max((len(tree.value) for tree in trees), default=1)
        depth = max((tree.depth for tree in trees), default=0)
        device = trees[0].value.device if trees else None
        found = cls(len(trees), n_nodes, depth, dtype=dtype, device=device)
        for t, (tree, binned) in enumerate(zip(trees, bins, strict=True)):
            k = len(tree.value)
            inner = tree.edge < N_BINS
            found.column[t, :k] = tree.column
            found.child[t, :k] = tree.left + t * n_nodes
            at = binned.edges[tree.column[inner], tree.edge[inner]]
            found.threshold[t, :k][inner] = at.to(dtype)
            found.value.data[t, :k] = tree.value.to(dtype)
        return found

    def arrays(self) -> dict[str, Any]:
        """The trees as NumPy arrays, by name."""
        names = ("value", "column", "threshold", "child")
        return {name: getattr(self, name).detach().cpu().numpy() for name in names}

    def set_arrays(self, arrays: dict[str, Any]) -> None:
        """Set the trees to those of :meth:`arrays`, in place."""
        for name, array in arrays.items():
            own = getattr(self, name).data
            own.copy_(torch.tensor(array))

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.value)

    def value_and_input_grad(self, x: Tensor) -> ValueAndInputGrad:
        """f(x), (n,), and its gradient almost everywhere, zero, (n, d)."""
        return ValueAndInputGrad(self(x), torch.zeros_like(x))

    def forward(self, x: Tensor) -> Tensor:
        if not self.n_trees:
            return x.new_zeros(len(x))
        column, threshold = self.column.flatten(), self.threshold.flatten()
        child, value = self.child.flatten(), self.value.flatten()
        # On flat tensors, where a gather takes half the time.
        n, t = len(x), self.n_trees
        node = torch.arange(0, t * self.value.shape[1], self.value.shape[1], device=x.device)
        node, entries = node.repeat(n), x.flatten()
        row = torch.arange(0, x.numel(), x.shape[1], device=x.device).repeat_interleave(t)
        for _ in range(self.depth):
            entry = entries.index_select(0, column.index_select(0, node) + row)
            right = entry > threshold.index_select(0, node)
            node = child.index_select(0, node) + right
        return -value.index_select(0, node).view(n, t).sum(1)
