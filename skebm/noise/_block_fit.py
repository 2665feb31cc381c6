"""Which columns a block tree joins, and its tables: the structure and the smoothing of a fit."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.noise._spanning import best_tree

# Shares and prices, in nats a row, are the best compromise on the validation parts of seven DEBD
# sets of 1,600 to 29,000 rows. They know nothing of the number of rows: weights have no scale.
BIT_SHARE = 1e-3  # of one half in the columns' means
PATTERN_SHARE = 1e-3  # of independent columns in a block's patterns
CELL_PRICE = 3e-5  # what a cell of the larger tables must bring
LEAST_GAIN = 1e-3  # what a merge must bring on top
FREE = 1e-8  # the worth of a merge that gains nothing and costs nothing
EXCLUSIVE = 0.1  # together this share of what independent columns would be, at most
LEAST_MISSING = 0.01  # share of rows in which they would be together
CAUTION = 0.5  # merge what brings this share of the best merge, then look again
NEIGHBOURS = 16  # strongest neighbours of a node whose pairs are looked at


class Counts(NamedTuple):
    """Shares of the total weight: of pairs of patterns (M, M); where each block's start."""

    pairs: Tensor
    starts: Tensor

    @property
    def node_of(self) -> Tensor:
        """Block of each pattern, (M,)."""
        sizes = self.starts.diff(append=torch.tensor([len(self.pairs)]))
        return torch.arange(len(sizes)).repeat_interleave(sizes)

    def used(self) -> Tensor:
        """How many pairs of patterns occur in each pair of blocks, (m, m)."""
        m = len(self.starts)
        rows = torch.zeros(m, len(self.pairs)).index_add_(0, self.node_of, (self.pairs > 0).float())
        return torch.zeros(m, m).index_add_(1, self.node_of, rows)


class Structure(NamedTuple):
    """Blocks of columns, the parent of each (-1 for the root) and the tables of their pairs."""

    blocks: list[list[int]]
    parent: list[int]
    counts: Counts


def find_blocks(x: Tensor, weight: Tensor | None, block_size: int) -> Structure:
    """Find blocks and a tree, from single columns and from what looks like one-hot codes."""
    x = x.cpu()
    weight = torch.ones(len(x), dtype=torch.double) if weight is None else weight.cpu().double()
    weight = weight / weight.sum().clamp_min(torch.finfo(torch.double).tiny)
    columns = [[i] for i in range(x.shape[1])]
    plain = _grow(x, weight, columns, block_size)
    counts = _count(*_patterns(x.long(), columns), weight, x.dtype)
    codes = _exclusive(counts.pairs[1::2, 1::2].clone(), block_size)
    if len(codes) == len(columns):
        return plain
    # Columns may exclude each other without being a code: then other merges are worth more.
    return max(plain, _grow(x, weight, codes, block_size), key=_likelihood)


def _grow(x: Tensor, weight: Tensor, blocks: list[list[int]], block_size: int) -> Structure:
    """Merge blocks as long as it pays."""
    bits = x.long()
    while True:
        patterns, sizes = _patterns(bits, blocks)
        counts = _count(patterns, sizes, weight, x.dtype)
        information = mutual_information(counts)
        parent = best_tree(information.numpy()).tolist()
        if block_size == 1:
            return Structure(blocks, parent, counts)
        gains = _gains(patterns, sizes, weight, x.dtype, counts, information, parent)
        merged = _merge(blocks, _worth(gains, counts, information), block_size)
        if len(merged) == len(blocks):
            return Structure(blocks, parent, counts)
        blocks = merged


def _likelihood(structure: Structure) -> float:
    """Mean log-likelihood of the tree on its own rows, less the price of its cells."""
    _, parent, counts = structure
    p, used = counts.pairs.diagonal(), counts.used().diagonal()
    above = torch.tensor(parent)
    node = (above >= 0).nonzero()[:, 0]
    joined = mutual_information(counts)[node, above[node]].sum()
    cells = ((used[node] - 1) * used[above[node]]).sum()
    return float(torch.special.xlogy(p, p).sum() + joined - CELL_PRICE * cells)


def _patterns(bits: Tensor, blocks: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Number of each block's pattern, (n, m), and how many patterns each block has, (m,)."""
    patterns = torch.empty(len(bits), len(blocks), dtype=torch.long)
    for u, block in enumerate(blocks):
        patterns[:, u] = (bits[:, block] << torch.arange(len(block))).sum(1)
    return patterns, torch.tensor([2 ** len(block) for block in blocks])


def _count(patterns: Tensor, sizes: Tensor, weight: Tensor, dtype: torch.dtype) -> Counts:
    """Weight of all pairs of patterns, by products of indicators; sums over chunks in float64."""
    starts, total = sizes.cumsum(0) - sizes, int(sizes.sum())
    pairs = torch.zeros(total, total, dtype=torch.double)
    size = max(1, min(4096, 4_000_000 // total))
    for some, w in zip(patterns.split(size), weight.to(dtype).split(size), strict=True):
        on = torch.zeros(len(some), total, dtype=dtype).scatter_(1, some + starts, 1)
        pairs += on.t() @ (on * w[:, None])
    return Counts(pairs, starts)


def mutual_information(counts: Counts) -> Tensor:
    """Mutual information of all pairs of blocks, (m, m), in nats; pairs may sum to any total."""
    pairs, node_of = counts.pairs, counts.node_of
    tiny = torch.finfo(torch.double).tiny
    log_p = pairs.diagonal().clamp_min(tiny).log()
    total = pairs.diagonal()[node_of == 0].sum().clamp_min(tiny)
    terms = pairs.clamp_min(tiny).log_().sub_(log_p).sub_(log_p[:, None]).add_(total.log())
    terms.mul_(pairs)
    m = int(node_of[-1]) + 1
    rows = torch.zeros(m, len(pairs), dtype=torch.double).index_add_(0, node_of, terms)
    return torch.zeros(m, m, dtype=torch.double).index_add_(1, node_of, rows) / total


def _exclusive(both: Tensor, block_size: int) -> list[list[int]]:
    """Groups of columns that are hardly ever on together, from E[x x'], (d, d): one-hot codes.

    What a tree of bits joins are rather the like levels of different codes.
    """
    blocks = [[i] for i in range(len(both))]
    on, size = both.diagonal().clone(), torch.ones(len(both))
    while True:
        expected = on[:, None] * on
        missing = (expected - both).triu(1)
        missing[both > EXCLUSIVE * expected] = 0
        missing[size[:, None] + size > block_size] = 0
        best = missing.round(decimals=9).argmax()
        i, j = divmod(int(best), len(both))
        if missing[i, j] < LEAST_MISSING:
            return [sorted(block) for block in blocks if block]
        blocks[i] += blocks[j]
        blocks[j] = []
        for values in (both, both.t(), on, size):
            values[i] += values[j]
            values[j] = 0


def _gains(
    patterns: Tensor,
    sizes: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    counts: Counts,
    information: Tensor,
    parent: list[int],
) -> dict[tuple[int, int], float]:
    """What merging two nodes adds to the likelihood of the tree, less the price of its cells.

    Whichever two of x - m - y are merged, I(x; y given m) is gained.
    """
    used = counts.used().diagonal()
    neighbours = defaultdict(list)
    for node, above in enumerate(parent):
        if above >= 0:
            neighbours[node].append(above)
            neighbours[above].append(node)
    gains: dict[tuple[int, int], float] = defaultdict(float)
    for m, around in neighbours.items():
        around.sort(key=lambda k, m=m: -float(information[m, k]))  # type: ignore[misc]
        around = around[:NEIGHBOURS]
        beside = patterns[:, around]
        brought = torch.zeros(len(around), len(around), dtype=torch.double)
        for a in range(int(sizes[m]) if len(around) > 1 else 0):
            rows = patterns[:, m] == a
            some = _count(beside[rows], sizes[around], weight[rows], dtype)
            share = some.pairs.diagonal()[: int(sizes[around[0]])].sum()
            brought += share * mutual_information(some)
        cells = (used[around] - 1)[:, None] * (used[around] - 1) * used[m]
        net = (brought - CELL_PRICE * cells).tolist()
        for i, x in enumerate(around):
            for j, y in enumerate(around[:i]):
                for pair in ((x, y), (x, m), (y, m)):
                    gains[min(pair), max(pair)] += net[i][j]
    return gains


def _worth(
    gains: dict[tuple[int, int], float], counts: Counts, information: Tensor
) -> dict[tuple[int, int], float]:
    """Gain of merges per pattern that they add; next to nothing where they add none.

    One-hot codes add few patterns, so they are merged before what is merely dependent. Of two
    nodes one of which determines the other a merge gains nothing but saves a node: those go last.
    """
    used = counts.used()
    own = used.diagonal()
    added = used - torch.maximum(own, own[:, None])
    free = ((added <= 0) & (information > LEAST_GAIN)).triu(1).nonzero().tolist()
    worth = {
        pair: gain / max(1.0, float(added[pair]))
        for pair, gain in gains.items()
        if gain > LEAST_GAIN
    }
    return dict.fromkeys(map(tuple, free), FREE) | worth


def _merge(
    blocks: list[list[int]], worth: dict[tuple[int, int], float], block_size: int
) -> list[list[int]]:
    """Blocks after the merges that pay best, each block in one of them at most."""
    options = [
        (round(value, 9), *pair)
        for pair, value in worth.items()
        if sum(len(blocks[k]) for k in pair) <= block_size
    ]
    options.sort(key=lambda option: (-option[0], option[1:]))
    merged, gone = list(blocks), set[int]()
    for value, i, j in options:
        if value >= CAUTION * options[0][0] and not gone & {i, j}:
            gone |= {i, j}
            merged[i] = sorted(blocks[i] + blocks[j])
            merged[j] = []
    return [block for block in merged if block]


def fit_tables(
    blocks: list[list[int]], parent: list[int], counts: Counts, share: float
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
        smooth = (1 - PATTERN_SHARE) * p + PATTERN_SHARE * _independent(p, len(block))
        table = smooth[None]
        if above >= 0:
            table = counts.pairs[own[above], own[u]] + share * smooth
        tables[u, : len(table), :k] = table / table.sum(1, keepdim=True)
    return padded, tables


def _independent(p: Tensor, n_columns: int) -> Tensor:
    """Probabilities of patterns if the columns were independent, their means shrunk, (K,)."""
    number = torch.arange(len(p))
    result = torch.ones_like(p)
    for j in range(n_columns):
        on = (number >> j) & 1 == 1
        mean = (1 - BIT_SHARE) * p[on].sum() + BIT_SHARE / 2
        result *= torch.where(on, mean, 1 - mean)
    return result
