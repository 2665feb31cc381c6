r"""Chow-Liu trees whose nodes are blocks of binary columns, such as one-hot codes."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import Binary, Clamp
from skebm.base.processes import own_modes
from skebm.distributions.trees.chow_liu import maximum_spanning_tree
from skebm.distributions.trees.tables import TreeOfTables

# Constants of structure learning, chosen on the validation parts of seven DEBD sets of 1,600 to
# 29,000 rows; gains are in nats per row. They do not depend on the number of rows, because only
# relative weights matter.
COLUMN_SMOOTHING = 1e-3  # weight of one half in the means of the columns
PATTERN_SMOOTHING = 1e-3  # weight of independent columns in the patterns of a block
CELL_PENALTY = 3e-5  # per cell of the conditional tables
MIN_GAIN = 1e-3  # least penalised gain of a merge
FREE_MERGE_VALUE = 1e-8  # of a merge without gain and without cost
MAX_CO_OCCURRENCE = 0.1  # of exclusive columns, relative to independent ones
MIN_DEFICIT = 0.01  # expected less observed co-occurrence of exclusive columns
MERGE_THRESHOLD = 0.5  # value of a merge relative to the best one of the same round
MAX_NEIGHBOURS = 16  # neighbours of a node, of largest information, whose pairs are scored


class Counts(NamedTuple):
    """Relative weight of all pairs of patterns, (M, M), and the first pattern of each block."""

    pairs: Tensor
    starts: Tensor

    @property
    def node_of(self) -> Tensor:
        """Block of each pattern, (M,)."""
        sizes = self.starts.diff(append=torch.tensor([len(self.pairs)]))
        return torch.arange(len(sizes)).repeat_interleave(sizes)

    def n_occurring(self) -> Tensor:
        """Number of pairs of patterns that occur in each pair of blocks, (m, m)."""
        m = len(self.starts)
        rows = torch.zeros(m, len(self.pairs)).index_add_(0, self.node_of, (self.pairs > 0).float())
        return torch.zeros(m, m).index_add_(1, self.node_of, rows)


class Structure(NamedTuple):
    """Blocks of columns, the parent of each (-1 for the root) and their pairwise tables."""

    blocks: list[list[int]]
    parent: list[int]
    counts: Counts


def learn_structure(x: Tensor, weight: Tensor | None, block_size: int) -> Structure:
    """Blocks and a tree: the better of the searches from columns and from exclusive columns."""
    x = x.cpu()
    weight = torch.ones(len(x), dtype=torch.double) if weight is None else weight.cpu().double()
    weight = weight / weight.sum().clamp_min(torch.finfo(torch.double).tiny)
    columns = [[i] for i in range(x.shape[1])]
    single = _greedy_merges(x, weight, columns, block_size)
    counts = _count(*_patterns(x.long(), columns), weight, x.dtype)
    codes = _exclusive_columns(counts.pairs[1::2, 1::2].clone(), block_size)
    if len(codes) == len(columns):
        return single
    # Columns may be exclusive without being a one-hot code; then other merges may gain more.
    merged_codes = _greedy_merges(x, weight, codes, block_size)
    return max(single, merged_codes, key=_penalised_likelihood)


def _greedy_merges(
    x: Tensor, weight: Tensor, blocks: list[list[int]], block_size: int
) -> Structure:
    """Merge blocks greedily as long as the penalised likelihood increases."""
    bits = x.long()
    while True:
        patterns, sizes = _patterns(bits, blocks)
        counts = _count(patterns, sizes, weight, x.dtype)
        information = mutual_information(counts)
        parent = maximum_spanning_tree(information.numpy()).tolist()
        if block_size == 1:
            return Structure(blocks, parent, counts)
        gains = _merge_gains(patterns, sizes, weight, x.dtype, counts, information, parent)
        merged = _merge(blocks, _merge_values(gains, counts, information), block_size)
        if len(merged) == len(blocks):
            return Structure(blocks, parent, counts)
        blocks = merged


def _penalised_likelihood(structure: Structure) -> float:
    """Mean log-likelihood of the tree on the training rows, less the penalty of its cells."""
    _, parents, counts = structure
    p, n_patterns = counts.pairs.diagonal(), counts.n_occurring().diagonal()
    parent = torch.tensor(parents)
    node = (parent >= 0).nonzero()[:, 0]
    information = mutual_information(counts)[node, parent[node]].sum()
    cells = ((n_patterns[node] - 1) * n_patterns[parent[node]]).sum()
    return float(torch.special.xlogy(p, p).sum() + information - CELL_PENALTY * cells)


def _patterns(bits: Tensor, blocks: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Number of the pattern of each block, (n, m), and the number of patterns of a block, (m,)."""
    patterns = torch.empty(len(bits), len(blocks), dtype=torch.long)
    for u, block in enumerate(blocks):
        patterns[:, u] = (bits[:, block] << torch.arange(len(block))).sum(1)
    return patterns, torch.tensor([2 ** len(block) for block in blocks])


def _count(patterns: Tensor, sizes: Tensor, weight: Tensor, dtype: torch.dtype) -> Counts:
    """Weight of all pairs of patterns, by products of indicators; chunks are added in float64."""
    starts, total = sizes.cumsum(0) - sizes, int(sizes.sum())
    pairs = torch.zeros(total, total, dtype=torch.double)
    size = max(1, min(4096, 4_000_000 // total))
    for some, w in zip(patterns.split(size), weight.to(dtype).split(size), strict=True):
        on = torch.zeros(len(some), total, dtype=dtype).scatter_(1, some + starts, 1)
        pairs += on.t() @ (on * w[:, None])
    return Counts(pairs, starts)


def mutual_information(counts: Counts) -> Tensor:
    """Mutual information of all pairs of blocks, (m, m), in nats; counts need no normalisation."""
    pairs, node_of = counts.pairs, counts.node_of
    tiny = torch.finfo(torch.double).tiny
    log_p = pairs.diagonal().clamp_min(tiny).log()
    total = pairs.diagonal()[node_of == 0].sum().clamp_min(tiny)
    terms = pairs.clamp_min(tiny).log_().sub_(log_p).sub_(log_p[:, None]).add_(total.log())
    terms.mul_(pairs)
    m = int(node_of[-1]) + 1
    rows = torch.zeros(m, len(pairs), dtype=torch.double).index_add_(0, node_of, terms)
    return torch.zeros(m, m, dtype=torch.double).index_add_(1, node_of, rows) / total


def _exclusive_columns(both: Tensor, block_size: int) -> list[list[int]]:
    """Groups of columns that are hardly ever 1 together, from E[x x'], (d, d): one-hot codes.

    A tree of single columns rather connects corresponding levels of different codes.
    """
    blocks = [[i] for i in range(len(both))]
    on, size = both.diagonal().clone(), torch.ones(len(both))
    while True:
        expected = on[:, None] * on
        deficit = (expected - both).triu(1)
        deficit[both > MAX_CO_OCCURRENCE * expected] = 0
        deficit[size[:, None] + size > block_size] = 0
        best = deficit.round(decimals=9).argmax()
        i, j = divmod(int(best), len(both))
        if deficit[i, j] < MIN_DEFICIT:
            return [sorted(block) for block in blocks if block]
        blocks[i] += blocks[j]
        blocks[j] = []
        for values in (both, both.t(), on, size):
            values[i] += values[j]
            values[j] = 0


def _merge_gains(
    patterns: Tensor,
    sizes: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    counts: Counts,
    information: Tensor,
    parent: list[int],
) -> dict[tuple[int, int], float]:
    """Gain in mean log-likelihood by merging two nodes, less the penalty of the added cells.

    Merging any two nodes of a path x - m - y gains the conditional information I(x; y given m).
    """
    n_patterns = counts.n_occurring().diagonal()
    neighbours = defaultdict(list)
    for node, above in enumerate(parent):
        if above >= 0:
            neighbours[node].append(above)
            neighbours[above].append(node)
    gains: dict[tuple[int, int], float] = defaultdict(float)
    for m, adjacent in neighbours.items():
        adjacent.sort(key=lambda k, m=m: -float(information[m, k]))  # type: ignore[misc]
        adjacent = adjacent[:MAX_NEIGHBOURS]
        of_adjacent = patterns[:, adjacent]
        conditional = torch.zeros(len(adjacent), len(adjacent), dtype=torch.double)
        for a in range(int(sizes[m]) if len(adjacent) > 1 else 0):
            rows = patterns[:, m] == a
            some = _count(of_adjacent[rows], sizes[adjacent], weight[rows], dtype)
            probability = some.pairs.diagonal()[: int(sizes[adjacent[0]])].sum()
            conditional += probability * mutual_information(some)
        free_patterns = n_patterns[adjacent] - 1
        cells = free_patterns[:, None] * free_patterns * n_patterns[m]
        net = (conditional - CELL_PENALTY * cells).tolist()
        for i, x in enumerate(adjacent):
            for j, y in enumerate(adjacent[:i]):
                for pair in ((x, y), (x, m), (y, m)):
                    gains[min(pair), max(pair)] += net[i][j]
    return gains


def _merge_values(
    gains: dict[tuple[int, int], float], counts: Counts, information: Tensor
) -> dict[tuple[int, int], float]:
    """Gain of each merge per pattern that it adds.

    One-hot codes add few patterns, so they are merged before blocks that are merely dependent. A
    merge of two nodes of which one determines the other gains nothing but adds no pattern and
    saves a node; it has the smallest value.
    """
    occurring = counts.n_occurring()
    single = occurring.diagonal()
    added = occurring - torch.maximum(single, single[:, None])
    free = ((added <= 0) & (information > MIN_GAIN)).triu(1).nonzero().tolist()
    values = {
        pair: gain / max(1.0, float(added[pair])) for pair, gain in gains.items() if gain > MIN_GAIN
    }
    return dict.fromkeys(map(tuple, free), FREE_MERGE_VALUE) | values


def _merge(
    blocks: list[list[int]], values: dict[tuple[int, int], float], block_size: int
) -> list[list[int]]:
    """Blocks after the merges of largest value, each block in at most one of them."""
    options = [
        (round(value, 9), *pair)
        for pair, value in values.items()
        if sum(len(blocks[k]) for k in pair) <= block_size
    ]
    options.sort(key=lambda option: (-option[0], option[1:]))
    merged, done = list(blocks), set[int]()
    for value, i, j in options:
        if value >= MERGE_THRESHOLD * options[0][0] and not done & {i, j}:
            done |= {i, j}
            merged[i] = sorted(blocks[i] + blocks[j])
            merged[j] = []
    return [block for block in merged if block]


def fit_tables(
    blocks: list[list[int]], parent: list[int], counts: Counts, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Blocks padded with -1, (m, b), and smoothed tables P(k given a) at [u, a, k], (m, K, K)."""
    width = max(len(block) for block in blocks)
    padded = torch.tensor([block + [-1] * (width - len(block)) for block in blocks])
    tables = torch.ones(len(blocks), 2**width, 2**width, dtype=torch.double)
    ends = torch.cat([counts.starts, torch.tensor([len(counts.pairs)])]).tolist()
    own = [slice(ends[u], ends[u + 1]) for u in range(len(blocks))]
    diagonal = counts.pairs.diagonal()
    for u, (block, above) in enumerate(zip(blocks, parent, strict=True)):
        k = 2 ** len(block)
        p = diagonal[own[u]]
        smooth = (1 - PATTERN_SMOOTHING) * p + PATTERN_SMOOTHING * _independent(p, len(block))
        table = smooth[None]
        if above >= 0:
            table = counts.pairs[own[above], own[u]] + smoothing * smooth
        tables[u, : len(table), :k] = table / table.sum(1, keepdim=True)
    return padded, tables


def _independent(p: Tensor, n_columns: int) -> Tensor:
    """Probabilities of patterns of independent columns with smoothed means, (K,)."""
    number = torch.arange(len(p))
    result = torch.ones_like(p)
    for j in range(n_columns):
        on = (number >> j) & 1 == 1
        mean = (1 - COLUMN_SMOOTHING) * p[on].sum() + COLUMN_SMOOTHING / 2
        result *= torch.where(on, mean, 1 - mean)
    return result


class BlockTree(TreeOfTables):
    r"""A tree over blocks of binary columns, with a free table for the patterns of each block.

    .. math:: q(x) = q_r(x_{B_r}) \prod_{u \ne r} q_u\bigl(x_{B_u} \mid x_{B_{\pi(u)}}\bigr)

    The blocks :math:`B_u` are a partition of the columns, :math:`\pi(u)` is the parent of node u
    and r the root. A one-hot code can be one block; blocks of one column give a Chow-Liu tree.

    Parameters
    ----------
    blocks : array-like of int of shape (m, b), with b from 1 to 5
        Columns of each node, padded with -1 at the end.
    parent : array-like of int of shape (m,)
        Parent of each node, -1 for the root.
    log_tables : Tensor of shape (m, 2 ** b, 2 ** b)
        log P(node u has pattern k given that its parent has pattern a) at [u, a, k], in nats; bit j
        of a pattern's number is the node's column j. Patterns that a smaller block lacks are
        ignored, and so are all rows but row 0 of the root. Every pattern must have a positive
        probability.

    Attributes
    ----------
    blocks, parent, log_tables : Tensor
        As given, the nodes in breadth-first order.

    Notes
    -----
    Rows of :meth:`log_prob` may have values inside (0, 1); the result is then the mean of log q(x)
    over independent binary columns with these means, the multilinear extension.

    References
    ----------
    Chow and Liu (1968), "Approximating discrete probability distributions with dependence trees",
    IEEE Transactions on Information Theory 14(3).

    Examples
    --------
    A colour in a one-hot code, and whether it is dark:

    >>> import torch
    >>> from skebm.distributions import BlockTree
    >>> x = torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]).repeat(50, 1)
    >>> q = BlockTree.fit(x, block_size=3)
    >>> q.blocks
    tensor([[ 0,  1,  2],
            [ 3, -1, -1]])
    >>> q.log_prob(torch.tensor([[1.0, 0, 0, 1], [1, 1, 0, 1]])).exp().round(decimals=2)
    tensor([0.2500, 0.0000])
    """

    def __init__(self, blocks: Any, parent: Any, log_tables: Tensor):
        device = log_tables.device
        blocks = torch.as_tensor(blocks, dtype=torch.long).to(device)
        parent = torch.as_tensor(parent, dtype=torch.long).to(device)
        _check_shapes(blocks, parent, log_tables)
        order = self._arrange(parent)
        self.blocks = blocks[order]
        n_blocks, width = self.blocks.shape
        self.domain = Binary((int(self.blocks.max()) + 1,))
        present = self.blocks >= 0
        number = torch.arange(2**width, device=device)
        on = (number[:, None] >> torch.arange(width, device=device)) & 1  # (K, b)
        self._valid = ~(on.bool() & ~present[:, None]).any(2)  # (m, K)
        self._bits = on.t().to(log_tables.dtype)  # (b, K)
        # Missing columns of a block point to a zero field that is appended after the last column.
        self._columns = torch.where(present, self.blocks, self.domain.n_columns).flatten()
        self._position = self._columns.argsort()[: self.domain.n_columns]
        self._set_tables(log_tables[order])

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        block_size: int = 3,
        smoothing: float = 1e-3,
    ) -> BlockTree:
        r"""Learn blocks and a tree of high likelihood by greedy search, and smooth its tables.

        Nodes that are adjacent in the tree, or have a common neighbour, are merged as long as the
        conditional mutual information that a merge gains exceeds a penalty for the larger tables.
        The search starts from single columns and, where some columns are hardly ever 1 together,
        also from groups of those; the tree of the larger penalised likelihood is kept. Only
        relative weights of rows matter.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Binary rows.
        weight : Tensor of shape (n,), default=None
            Weights of the rows, non-negative; None: all equal.
        block_size : int from 1 to 5, default=3
            Largest number of columns in a block; 1 gives the Chow-Liu tree.
        smoothing : float > 0, default=1e-3
            P(k given a) is the mixture of its empirical value and of the marginal probability P(k)
            of the pattern, with weights proportional to p(a) and `smoothing`.

        Notes
        -----
        The cost is n (sum of 2 ** b) ** 2 multiplications for each of a few to thirty rounds, and
        3 (sum of 2 ** b) ** 2 doubles of memory: 400 MB at 1,500 columns in blocks of three.
        """
        if not 1 <= block_size <= 5:
            raise ValueError(f"block_size must be from 1 to 5, but got {block_size}.")
        blocks, parent, counts = learn_structure(x, weight, block_size)
        padded, tables = fit_tables(blocks, parent, counts, smoothing)
        return cls(padded, parent, tables.log().to(x.device, x.dtype))

    def to(self, device: Any, dtype: torch.dtype) -> BlockTree:
        """A copy on a device, in the given precision."""
        return BlockTree(self.blocks, self.parent, self.log_tables.to(device, dtype))

    def __getstate__(self) -> dict[str, np.ndarray]:
        names = ("blocks", "parent", "log_tables")
        return {name: getattr(self, name).cpu().numpy() for name in names}

    @own_modes()  # in which pickle may call it
    def __setstate__(self, state: dict[str, np.ndarray]) -> None:
        tables = torch.from_numpy(np.array(state["log_tables"]))
        self.__init__(state["blocks"], state["parent"], tables)  # type: ignore[misc]

    def log_prob(self, x: Tensor) -> Tensor:
        differentiated = x.requires_grad and torch.is_grad_enabled()
        if not differentiated and torch.equal(x, x.round()):  # binary rows: table look-ups
            pattern = self._patterns(x)
            node = torch.arange(len(self.blocks), device=x.device)
            return self.log_tables[node, pattern[:, self._parents], pattern].sum(1)
        padded = torch.nn.functional.pad(x, (0, 1))[:, self._columns]
        weight = x.new_ones(len(x), len(self.blocks), 1)
        for p in padded.view(len(x), *self.blocks.shape).unbind(2):
            weight = torch.cat([weight * (1 - p[..., None]), weight * p[..., None]], 2)
        value = torch.zeros_like(weight[..., 0])
        for a, table in enumerate(self.log_tables.unbind(1)):
            value += weight[:, self._parents, a] * (weight * table).sum(2)
        return value.sum(1)

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        """log q(x with entry i set to 1 - x_i) - log q(x), (n, d)."""
        if not torch.equal(x, x.round()):
            return super().flip_log_ratio(x)
        pattern = self._patterns(x).t()  # (m, n)
        node = torch.arange(len(self.blocks), device=x.device)[:, None]
        of_parent, child = pattern[self._parents], node[1:]
        current, of_child = self.log_tables[node, of_parent, pattern], pattern[1:]
        change = []
        for j in range(self.blocks.shape[1]):
            own = self.log_tables[node, of_parent, pattern ^ (1 << j)] - current
            flipped = self.log_tables[child, of_parent[1:] ^ (1 << j), of_child] - current[1:]
            change.append(own.index_add_(0, self._parents[1:], flipped))
        return torch.stack(change, 1).flatten(0, 1)[self._position].t()

    def potentials(self, field: Tensor, known: Clamp | None) -> Tensor:
        """Sum of the fields over the ones of each pattern, (m, K, n); -inf against the evidence."""
        on, off = self._by_node(field), None
        if known is not None:
            one = known.value > 0.5
            on = on.masked_fill_(self._by_node(known.mask & ~one), -math.inf)
            off = torch.zeros_like(on).masked_fill_(self._by_node(known.mask & one), -math.inf)
        potentials = on.new_zeros(len(on), self._valid.shape[1], on.shape[2])
        for j in range(on.shape[1]):
            half = 1 << j
            torch.add(potentials[:, :half], on[:, j, None], out=potentials[:, half : 2 * half])
            if off is not None:
                potentials[:, :half] += off[:, j, None]
        return potentials

    def _by_node(self, x: Tensor) -> Tensor:
        """Columns (n, d) as (m, b, n), with zeros for the columns that a block lacks."""
        columns = torch.nn.functional.pad(x, (0, 1)).t().index_select(0, self._columns)
        return columns.view(*self.blocks.shape, len(x))

    def rows_of(self, patterns: Tensor) -> Tensor:
        """Probabilities of the columns, (n, d), from those of the patterns, (m, K, n)."""
        bits = torch.matmul(self._bits, patterns).flatten(0, 1)
        return bits.index_select(0, self._position).t().contiguous()

    def _patterns(self, x: Tensor) -> Tensor:
        """Number of the pattern of each node in binary rows, (n, m)."""
        bits = torch.nn.functional.pad(x, (0, 1)).long()[:, self._columns]
        place = 1 << torch.arange(self.blocks.shape[1], device=x.device)
        return (bits.view(len(x), *self.blocks.shape) * place).sum(2)


def _check_shapes(blocks: Tensor, parent: Tensor, log_tables: Tensor) -> None:
    """`ValueError` for wrong shapes or blocks that are no partition."""
    if blocks.ndim != 2 or not 1 <= blocks.shape[1] <= 5:
        raise ValueError(f"blocks must have shape (m, 1 to 5), but got {tuple(blocks.shape)}.")
    n_patterns = 2 ** blocks.shape[1]
    wanted = (len(blocks), n_patterns, n_patterns)
    if tuple(parent.shape) != wanted[:1] or tuple(log_tables.shape) != wanted:
        raise ValueError(
            f"For blocks of shape {tuple(blocks.shape)}, parent and log_tables must have the "
            f"shapes {wanted[:1]} and {wanted}, but got {tuple(parent.shape)} and "
            f"{tuple(log_tables.shape)}."
        )
    present = blocks >= 0
    columns = blocks[present].sort().values
    if not torch.equal(columns, torch.arange(len(columns), device=columns.device)):
        raise ValueError("Every column from 0 to d - 1 must be in exactly one block.")
    if not present[:, 0].all() or (present[:, 1:] & ~present[:, :-1]).any():
        raise ValueError("A block must have a column, and its padding must be at its end.")
