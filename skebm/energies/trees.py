"""Sums of decision trees: functions of rows that are constant on boxes, and how a tree is grown."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skebm.base.energy import ValueAndInputGrad

# Bins of a column: a split of one byte. Half of the edges are quantiles of the rows of each of two
# samples, so that both are resolved where only one of them has rows.
N_BINS = 255
# Distinct values of a column for each row below which values recur, as rounded numbers do: of 75
# rows of a number with 35 values, trees found density at single ones, 2.3 nats a row.
DISTINCT = 0.9
# What a split gains at least, relative to the curvature of all rows, and the least curvature of a
# leaf: sums of a leaf are differences of those of two others, up to rounding.
LEAST_FALL, LEAST_CURVATURE = 1e-7, 1e-12
# Most leaves of a tree: one bit each of an integer.
MOST_LEAVES = 63
# Entries that are added to histograms at a time: they stay in the cache.
ENTRIES = 2**16
# Trees, and values of rows times trees, that are evaluated at a time: as well.
N_TOGETHER, VALUES = 256, 2**16


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
    def of_samples(cls, rows: Tensor, *others: Tensor) -> Bins:
        """Bins by the quantiles of several samples, (n, d), with equal numbers of each.

        Edges lie between values that occur; in a column of which `rows` have few distinct values,
        between two of these, so that trees do not tell a value from others near it.
        """
        n, d = rows.shape
        edges = rows.new_full((d, N_BINS - 1), math.inf)
        each = (N_BINS - 1) // (1 + len(others))
        for j in range(d):
            distinct = rows[:, j].unique()
            if len(distinct) < DISTINCT * n:
                found = _between(distinct, _levels(rows[:, j], N_BINS).unique())
            else:
                of_samples = [_levels(one[:, j], each + 1) for one in (rows, *others)]
                values = torch.cat(of_samples).unique()
                found = _between(values, values)[: N_BINS - 1]
            edges[j, : len(found)] = found
        return cls(edges)

    def codes(self, x: Tensor) -> Tensor:
        """Bins of rows (n, d), as bytes below N_BINS, (d, n)."""
        return torch.searchsorted(self.edges, x.t().contiguous()).to(torch.uint8)


def divided_columns(codes: Tensor, least: int) -> Tensor:
    """Columns of bins (d, n) that some edge divides so that each side has `least` rows, (k,)."""
    n = codes.shape[1]
    if not 1 <= least <= n - least:
        return torch.arange(0, device=codes.device)
    low, high = codes.kthvalue(least, 1).values, codes.kthvalue(n - least + 1, 1).values
    return (low < high).nonzero().ravel()


def _between(values: Tensor, some: Tensor) -> Tensor:
    """Numbers halfway from some of the increasing values, all but the last, to the next value."""
    half = (values[1:] + values[:-1]) / 2
    apart = (half >= values[:-1]) & (half < values[1:])  # and not rounded to the next value
    place = torch.searchsorted(values, some[:-1])
    return half[place[apart[place]]]


def _levels(values: Tensor, n: int) -> Tensor:
    """The values of a column, or n quantiles of many, increasing."""
    distinct = values.unique()
    if len(distinct) <= n:
        return distinct
    ordered = values.sort().values
    place = torch.linspace(0, len(ordered) - 1, n, dtype=torch.float64, device=values.device)
    return ordered[place.round().long()]


class Tree(NamedTuple):
    """A decision tree of L leaves and K = L - 1 inner nodes, the first of which is the root.

    Attributes
    ----------
    column : ndarray of shape (K,)
        Column that a node compares with its edge.
    edge : ndarray of shape (K,)
        Number of that edge: rows with a larger value go to the right.
    child : ndarray of shape (K, 2)
        The left and the right child: the number of a node, which is larger than that of its
        parent, or -1 - the number of a leaf.
    value : ndarray of shape (L,)
        Values of the leaves.
    """

    column: np.ndarray
    edge: np.ndarray
    child: np.ndarray
    value: np.ndarray

    def values(self, codes: Tensor) -> Tensor:
        """Values of rows, (n,) in float64, by their bins (d, n)."""
        used, place = np.unique(self.column, return_inverse=True)
        left = np.full((len(used), N_BINS), -1)  # bits of leaves, by column and bin
        for j, edge, without in zip(place, self.edge, _bits_without(self.child), strict=True):
            left[j, edge + 1 :] &= without[0]
            left[j, : edge + 1] &= without[1]
        bits = torch.full_like(codes[0], (1 << len(self.value)) - 1, dtype=torch.int64)
        for j, table in zip(used, torch.tensor(left, device=codes.device), strict=True):
            bits &= table.index_select(0, codes[int(j)].int())
        return torch.tensor(self.value, device=codes.device).index_select(0, _place_of_bit(bits))


def _bits_without(child: np.ndarray) -> np.ndarray:
    """Bits of the leaves that are not below a child, for the children (K, 2) of a tree's nodes."""
    below = [0] * len(child)
    found = np.empty(child.shape, dtype=np.int64)
    for k, sides in reversed(list(enumerate(child.tolist()))):
        bits = [1 << -1 - one if one < 0 else below[one] for one in sides]
        below[k], found[k] = bits[0] | bits[1], [~one for one in bits]
    return found


def _place_of_bit(bits: Tensor) -> Tensor:
    """Places of single bits of integers."""
    return bits.float().log2_().round_().int()  # exact: powers of two


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
    codes : Tensor of shape (n, d)
        Bins of the rows, each with its columns side by side.
    grad, curvature : Tensor of shape (n,)
        First and second derivatives of the loss of each row, in float64.
    growth : Growth

    References
    ----------
    Friedman (2001), "Greedy function approximation: a gradient boosting machine", Annals of
    Statistics 29(5). Chen and Guestrin (2016), "XGBoost: a scalable tree boosting system", KDD,
    equations 4 to 7. Ke et al. (2017), "LightGBM: a highly efficient gradient boosting decision
    tree", NeurIPS (the sums of a leaf are those of its parent without those of its sibling).
    """
    whole = float(grad.sum()), float(curvature.sum())
    nodes, leaves = _Nodes(-whole[0] / (whole[1] + growth.l2)), [0]
    # Bits have two bins, and sums over 255 of many columns would take gigabytes.
    n_bins = max(2, int(codes.max()) + 1) if codes.numel() else 2
    some = _SomeRows.all_of(codes, grad, curvature)
    sums = some.histograms(1, n_bins)
    while codes.shape[1]:  # of no columns, the tree is a leaf
        splits = _best_splits(sums, growth, LEAST_CURVATURE * whole[1])
        order = splits.gain.argsort(descending=True)[: growth.max_leaf_nodes - nodes.n_leaves]
        # Rounding alone divides leaves whose rows are all of one kind.
        chosen = order[splits.gain[order] > LEAST_FALL * whole[1]].sort().values
        if not len(chosen):
            break
        splits = _Splits(*(part[chosen] for part in splits))
        leaves = nodes.divide([leaves[k] for k in chosen.tolist()], splits)
        if nodes.n_leaves >= growth.max_leaf_nodes:
            break
        some = some.of_leaves(chosen, sums.shape[1])
        right = some.right_of(splits)
        # Of the two parts of a leaf, the rows of the smaller one are gone through.
        fewer = right == splits.right_has_fewer.index_select(0, some.leaf)
        few = some.subset(fewer.nonzero().ravel()).histograms(len(chosen), n_bins)
        sides = torch.stack([few, sums[:, chosen] - few], 2)
        sides[:, splits.right_has_fewer] = sides[:, splits.right_has_fewer].flip(2)
        sums, some = sides.flatten(1, 2), some._replace(leaf=2 * some.leaf + right)
    return nodes.tree()


class _Nodes:
    """Nodes of a tree as it grows, from a single leaf with a value."""

    def __init__(self, value: float):
        self.column: list[int] = []
        self.edge: list[int] = []
        self.child: list[list[int]] = []
        self.value = [value]
        self.parent: dict[int, tuple[int, int]] = {}  # of each leaf, with its side

    @property
    def n_leaves(self) -> int:
        return len(self.value)

    def divide(self, leaves: list[int], split: _Splits) -> list[int]:
        """Divide leaves, of which a left part keeps the number; numbers of all parts."""
        found: list[int] = []
        for low, column, edge, values in zip(
            leaves, split.column.tolist(), split.edge.tolist(), split.values.tolist(), strict=True
        ):
            node, high = len(self.column), self.n_leaves
            if low in self.parent:
                above, side = self.parent[low]
                self.child[above][side] = node
            self.column.append(column)
            self.edge.append(edge)
            self.child.append([-1 - low, -1 - high])
            self.parent |= {low: (node, 0), high: (node, 1)}
            self.value[low] = values[0]
            self.value.append(values[1])
            found += [low, high]
        return found

    def tree(self) -> Tree:
        child = np.array(self.child, dtype=np.int64).reshape(-1, 2)
        column, edge = (np.array(one, dtype=np.int64) for one in (self.column, self.edge))
        return Tree(column, edge, child, np.array(self.value))


class _SomeRows(NamedTuple):
    """Numbers of some rows, of which `leaf` says in which of several leaves they are."""

    codes: Tensor
    grad: Tensor
    curvature: Tensor
    row: Tensor
    leaf: Tensor

    @classmethod
    def all_of(cls, codes: Tensor, grad: Tensor, curvature: Tensor) -> _SomeRows:
        row = torch.arange(len(codes), dtype=torch.int32, device=codes.device)
        return cls(codes, grad, curvature, row, torch.zeros_like(row))

    def subset(self, place: Tensor) -> _SomeRows:
        row, leaf = (one.index_select(0, place) for one in (self.row, self.leaf))
        return self._replace(row=row, leaf=leaf)

    def of_leaves(self, chosen: Tensor, n_leaves: int) -> _SomeRows:
        """The rows of some of the leaves, which are numbered anew."""
        number = torch.full((n_leaves,), -1, dtype=torch.int32, device=self.row.device)
        number[chosen] = torch.arange(len(chosen), dtype=torch.int32, device=self.row.device)
        found = self._replace(leaf=number.index_select(0, self.leaf))
        return (
            found if len(chosen) == n_leaves else found.subset((found.leaf >= 0).nonzero().ravel())
        )

    def right_of(self, splits: _Splits) -> Tensor:
        """Whether each row is on the right of the split of its leaf, (n,)."""
        d = self.codes.shape[1]
        column = splits.column.index_select(0, self.leaf)
        code = self.codes.flatten().index_select(0, column.add_(self.row, alpha=d))
        return code > splits.edge.to(torch.uint8).index_select(0, self.leaf)

    def histograms(self, m: int, n_bins: int) -> Tensor:
        """Sums by leaf, column and bin, (3, m, d, n_bins): gradients, curvatures, numbers."""
        n = len(self.row)
        codes = self.codes if n == len(self.codes) else self.codes.index_select(0, self.row)
        weights = [one.index_select(0, self.row) for one in (self.grad, self.curvature)]
        parts = []
        for some in codes.split(max(1, ENTRIES // max(n, 1)), 1):
            k = some.shape[1]
            first = torch.arange(0, k * n_bins, n_bins, dtype=torch.int32, device=codes.device)
            key = (some + ((self.leaf * (k * n_bins))[:, None] + first)).flatten()
            sums = self.grad.new_empty(3, m * k * n_bins)
            for found, weight in zip(sums, weights, strict=False):
                repeated = weight[:, None].expand(-1, k).reshape(-1)
                found.copy_(torch.bincount(key, repeated, minlength=len(found)))
            sums[2] = torch.bincount(key, minlength=sums.shape[1])
            parts.append(sums.view(3, m, k, n_bins))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


class _Splits(NamedTuple):
    """The best split of each of m leaves: what it gains, where it is, values of both parts (m, 2).

    `right_has_fewer` says of which part there are fewer rows.
    """

    gain: Tensor
    column: Tensor
    edge: Tensor
    values: Tensor
    right_has_fewer: Tensor


def _best_splits(sums: Tensor, growth: Growth, least: float) -> _Splits:
    """The best split of each of m leaves by their histograms, (3, m, d, n_bins)."""
    m, n_edges = sums.shape[1], sums.shape[3] - 1
    total = sums[:, :, :1].sum(3, keepdim=True)
    below = sums[..., :-1].cumsum(3)
    above = total - below
    gain = _fall(below, growth, least).add_(_fall(above, growth, least))
    gain.masked_fill_(torch.minimum(below[2], above[2]) < growth.min_rows, -math.inf)
    best = gain.flatten(1).max(1)
    column, edge = best.indices // n_edges, best.indices % n_edges
    leaf = torch.arange(m, device=sums.device)
    sides = torch.stack([part[:, leaf, column, edge] for part in (below, above)], 2)  # (3, m, 2)
    values = -sides[0] / (sides[1].clamp_min(least) + growth.l2)
    fall = best.values - _fall(total, growth, least).flatten()
    return _Splits(fall, column, edge, values, sides[2, :, 1] < sides[2, :, 0])


def _fall(sums: Tensor, growth: Growth, least: float) -> Tensor:
    """Twice the fall of the loss by leaves of gradients and curvatures, (3, ...)."""
    return sums[0].square() / sums[1].clamp_min(least).add_(growth.l2)


class TreeSum(nn.Module):
    r"""A sum of trees as a network, :math:`f(x) = -\sum_t F_t(x)`, (n,).

    Its gradient is zero wherever it has one. Missing entries go to the left.

    Parameters
    ----------
    arrays : dict of ndarray or None, default=None
        T trees, as :meth:`arrays` has them; None is a sum of none. ``value`` (T, L) are the values
        of leaves, and ``column`` (T, K), ``threshold`` (T, K) and ``child`` (T, K, 2) the inner
        nodes as those of a :class:`Tree`, with infinite thresholds where a tree has fewer.
    dtype : torch.dtype
    device : torch.device or None, default=None

    References
    ----------
    Lucchese et al. (2015), "QuickScorer: a fast algorithm to rank documents with additive ensembles
    of regression trees", SIGIR: each leaf is a bit, and comparisons clear those out of reach.
    """

    has_gradient = False
    edges: Tensor

    def __init__(
        self,
        arrays: dict[str, Any] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ):
        super().__init__()
        self._nodes = _no_nodes() if arrays is None else dict(arrays)
        value = torch.tensor(self._nodes.pop("value"), dtype=dtype)
        self.value = nn.Parameter(value, requires_grad=False)
        edges, code = _edges(self._nodes)
        self.register_buffer("edges", torch.tensor(edges, dtype=dtype), False)
        # Trees with many columns share few of them.
        self.n_together = min(N_TOGETHER, max(1, 2**14 // max(len(edges), 1)))
        self.blocks = nn.ModuleList(
            _Block(self._nodes, code, slice(first, first + self.n_together), edges.shape[1])
            for first in range(0, len(value), self.n_together)
        )
        self.to(device)

    @classmethod
    def of_trees(
        cls, trees: list[Tree], bins: list[Bins], dtype: torch.dtype = torch.float32
    ) -> TreeSum:
        """The sum of trees, each with the bins that it was grown on."""
        found = _no_nodes(len(trees), max((len(tree.value) for tree in trees), default=1))
        for t, (tree, binned) in enumerate(zip(trees, bins, strict=True)):
            k = len(tree.column)
            found["value"][t, : k + 1] = tree.value
            found["column"][t, :k], found["child"][t, :k] = tree.column, tree.child
            found["threshold"][t, :k] = binned.edges.cpu().numpy()[tree.column, tree.edge]
        return cls(found, dtype=dtype, device=bins[0].edges.device if bins else None)

    def arrays(self) -> dict[str, Any]:
        """The trees as NumPy arrays, by name."""
        return self._nodes | {"value": self.value.detach().cpu().numpy()}

    def discontinuities(self, entry: int) -> Tensor:
        """Thresholds of a column, (k,), increasing."""
        if entry >= len(self.edges):
            return self.edges.new_zeros(0)
        return self.edges[entry][self.edges[entry].isfinite()]

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.value)

    def value_and_input_grad(self, x: Tensor) -> ValueAndInputGrad:
        """f(x), (n,), and its gradient almost everywhere, zero, (n, d)."""
        return ValueAndInputGrad(self(x), torch.zeros_like(x))

    def forward(self, x: Tensor) -> Tensor:
        found = x.new_zeros(len(x))
        if not len(x):
            return found
        entries = x[:, : len(self.edges)].t().contiguous()
        codes = torch.searchsorted(self.edges, entries, out_int32=True)
        codes.masked_fill_(entries.isnan(), 0)
        for block, value in zip(self.blocks, self.value.split(self.n_together), strict=False):
            found -= block(codes, value)
        return found


def _no_nodes(n_trees: int = 0, n_leaves: int = 1) -> dict[str, np.ndarray]:
    """Arrays of trees that have a leaf of value zero each, with place for more leaves."""
    shape = n_trees, n_leaves - 1
    return {
        "value": np.zeros((n_trees, n_leaves)),
        "column": np.zeros(shape, dtype=np.int64),
        "threshold": np.full(shape, np.inf),
        "child": np.full((*shape, 2), -1, dtype=np.int64),
    }


def _edges(nodes: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Increasing thresholds of each column (d, k), and which of them each node has (T, K)."""
    column, threshold = nodes["column"], nodes["threshold"]
    inner = np.isfinite(threshold)
    of_columns = [
        np.unique(threshold[inner & (column == j)]) for j in range(column.max(initial=-1) + 1)
    ]
    width = max(map(len, of_columns), default=0)
    edges = np.full((len(of_columns), width), np.inf)
    code = np.zeros(column.shape, dtype=np.int64)
    for j, values in enumerate(of_columns):
        edges[j, : len(values)] = values
        here = inner & (column == j)
        code[here] = values.searchsorted(threshold[here])
    return edges, code


class _Block(nn.Module):
    """Some trees of a sum, as tables of the leaves that are left by the code of each column.

    A row's code of a column is the number of edges, of `n_edges`, below its value. Leaves are bits,
    and the table of a column has a row for each interval of codes between which trees do not
    differ: all comparisons of a tree with it at once.
    """

    all: Tensor  # leaves that trees have
    table: Tensor
    place: Tensor

    def __init__(self, nodes: dict[str, np.ndarray], code: np.ndarray, some: slice, n_edges: int):
        super().__init__()
        column, child, code = nodes["column"][some], nodes["child"][some], code[some]
        inner = np.isfinite(nodes["threshold"][some])
        self.n_trees, n_nodes = column.shape
        without = np.array([_bits_without(of_tree) for of_tree in child]).reshape(child.shape)
        dtype = np.int32 if n_nodes < 31 else np.int64
        self.columns = [int(j) for j in np.unique(column[inner])]
        tables, places, n_rows = [np.zeros((0, self.n_trees), dtype=dtype)], [], 0
        for j in self.columns:
            tree, node = np.nonzero(inner & (column == j))
            edges, at = np.unique(code[tree, node], return_inverse=True)
            low, high = np.full((2, len(edges) + 1, self.n_trees), -1)
            np.bitwise_and.at(high, (at + 1, tree), without[tree, node, 0])
            np.bitwise_and.at(low, (at, tree), without[tree, node, 1])
            low = np.bitwise_and.accumulate(low[::-1])[::-1]
            tables.append((low & np.bitwise_and.accumulate(high)).astype(dtype))
            places.append(n_rows + edges.searchsorted(np.arange(n_edges + 1)))
            n_rows += len(edges) + 1
        place = np.array(places, dtype=np.int32).reshape(len(places), n_edges + 1)
        arrays = {
            "all": ((1 << (inner.sum(1) + 1)) - 1).astype(dtype),
            "table": np.concatenate(tables),
            "place": place,
        }
        for name, array in arrays.items():
            self.register_buffer(name, torch.tensor(array), False)

    def forward(self, codes: Tensor, value: Tensor) -> Tensor:
        """Sums of the trees at rows, (n,), by their codes (d, n) and the values of leaves."""
        n_leaves = value.shape[1]
        first = torch.arange(0, value.numel(), n_leaves, dtype=torch.int32, device=value.device)
        value = value.flatten()
        found = []
        for part in codes.split(max(1, VALUES // self.n_trees), 1):
            bits = self.all.expand(part.shape[1], -1)
            for j, place in zip(self.columns, self.place, strict=True):
                bits = bits & self.table.index_select(0, place.index_select(0, part[j]))
            leaf = _place_of_bit(bits) + first
            found.append(value.index_select(0, leaf.flatten()).view(leaf.shape).sum(1))
        return torch.cat(found)
