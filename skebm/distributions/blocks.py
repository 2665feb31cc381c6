r"""Chow-Liu trees whose nodes are blocks of columns: one-hot codes, and what trees of bits miss."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import Binary, Clamp
from skebm.distributions.base import Distribution, Tilt
from skebm.distributions.tree import best_tree

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


class BlockTree(Distribution):
    r"""A tree over blocks of binary columns, each node with all patterns of its columns.

    .. math:: q(x) = q_r(x_{B_r}) \prod_{u \ne r} q_u\bigl(x_{B_u} \mid x_{B_{\pi(u)}}\bigr)

    The blocks :math:`B_u` part the columns, :math:`\pi(u)` is the parent of node u and r the root.
    A one-hot code of a category is one block; blocks of one column make the tree of Chow and Liu.

    Parameters
    ----------
    blocks : array-like of int of shape (m, b), with b from 1 to 5
        Columns of each node, padded with -1 at the end.
    parent : array-like of int of shape (m,)
        Parent of each node, -1 for the root.
    log_tables : Tensor of shape (m, 2 ** b, 2 ** b)
        log P(node u has pattern k given that its parent has pattern a) at [u, a, k]; bit j of a
        pattern's number is the node's column j. Patterns that a smaller block lacks are ignored,
        and so is all but row 0 of the root's. Every pattern must have a positive probability.

    Attributes
    ----------
    blocks, parent, log_tables : Tensor
        As given, the nodes in breadth-first order.

    Notes
    -----
    Rows may hold values inside (0, 1) in :meth:`log_prob`: it is then the mean of log q(x) over
    independent columns of these means, the multilinear extension.

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
        order, self._levels = _breadth_first(_checked_shapes(blocks, parent, log_tables))
        rank = torch.tensor(order, device=device).argsort()
        self.blocks = blocks[order]
        self.parent = torch.where(parent < 0, parent, rank[parent])[order]
        self._up = self.parent.clamp_min(0)  # the root is as good as a child of its own
        n_blocks, width = self.blocks.shape
        self.domain = Binary((int(self.blocks.max()) + 1,))
        present = self.blocks >= 0
        number = torch.arange(2**width, device=device)
        on = (number[:, None] >> torch.arange(width, device=device)) & 1  # (K, b)
        self._valid = ~(on.bool() & ~present[:, None]).any(2)  # (m, K)
        self._bits = on.t().to(log_tables.dtype)  # (b, K)
        # A field of zero stands behind the last column, for the columns that a block lacks.
        self._columns = torch.where(present, self.blocks, self.domain.n_columns).flatten()
        self._position = self._columns.argsort()[: self.domain.n_columns]
        self.log_tables = self._checked_tables(log_tables[order])
        self._tables = self._powered(1.0)

    def _checked_tables(self, log_tables: Tensor) -> Tensor:
        """Tables with zeros for patterns that do not exist, all rows of the root's alike."""
        tables = log_tables.clone()
        tables[0] = tables[0, 0].clone()
        tables = torch.where(self._valid[:, None], tables, 0.0)
        missing = ~self._valid[self._up]  # (m, K): rows that no parent selects
        missing[0] = False
        tables = torch.where(missing[:, :, None], 0.0, tables)
        total = (tables.double().exp() * self._valid[:, None]).sum(2)
        error = torch.where(missing, 0.0, total - 1).abs().max()
        if not (torch.isfinite(tables).all() and error < 1e-3):
            raise ValueError(
                "The rows of log_tables must be finite and their exponentials sum to 1."
            )
        return tables

    def _powered(self, power: float) -> Tensor:
        return (power * self.log_tables).exp_() * self._valid[:, None]

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        block_size: int = 3,
        share: float = 1e-3,
    ) -> BlockTree:
        r"""Find blocks and a tree of high likelihood, and smooth its tables.

        Nodes that the tree joins, or that have a common neighbour, are merged as long as the
        conditional mutual information along the paths that a merge short-cuts pays for the larger
        tables. This starts from single columns and, where some are hardly ever on together, from
        groups of those as well; the likelier tree is kept. Rows enter by shares of the total
        weight alone: weights act as repetitions, and on any scale.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Binary rows.
        weight : Tensor of shape (n,), default=None
            Weights of the rows, non-negative; None: all equal.
        block_size : int from 1 to 5, default=3
            Most columns of a block; 1 gives the tree of Chow and Liu.
        share : float > 0, default=1e-3
            Strength of the smoothing: P(k given a) is the mixture of its empirical value and of
            the pattern's own probability P(k) at p(a) to `share`.

        Notes
        -----
        Costs n (sum of 2 ** b) ** 2 multiplications for each of a few to thirty rounds and
        3 (sum of 2 ** b) ** 2 doubles of memory: 400 MB at 1,500 columns in blocks of three.
        """
        if not 1 <= block_size <= 5:
            raise ValueError(f"block_size must be from 1 to 5, but got {block_size}.")
        blocks, parent, counts = find_blocks(x, weight, block_size)
        padded, tables = fit_tables(blocks, parent, counts, share)
        return cls(padded, parent, tables.log().to(x.device, x.dtype))

    def to(self, device: Any, dtype: torch.dtype) -> BlockTree:
        """Copy on a device, in a precision."""
        return BlockTree(self.blocks, self.parent, self.log_tables.to(device, dtype))

    def __getstate__(self) -> dict[str, np.ndarray]:
        names = ("blocks", "parent", "log_tables")
        return {name: getattr(self, name).cpu().numpy() for name in names}

    def __setstate__(self, state: dict[str, np.ndarray]) -> None:
        tables = torch.from_numpy(np.array(state["log_tables"]))
        self.__init__(state["blocks"], state["parent"], tables)  # type: ignore[misc]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        size = max(1, 4_000_000 // self._valid.numel())
        fields = [
            self.log_tables.new_zeros(min(size, n - start), self.domain.n_columns)
            for start in range(0, max(n, 1), size)
        ]
        return torch.cat([self.tilted(field).sample(generator) for field in fields])

    def tilted(self, field: Tensor, power: float = 1.0) -> BlockTilt:
        """Distributions proportional to q(x)^power exp(field' x), one for each row of `field`."""
        return BlockTilt(self, field, power)

    def log_prob(self, x: Tensor) -> Tensor:
        followed = x.requires_grad and torch.is_grad_enabled()  # a table has no gradient
        if not followed and torch.equal(x, x.round()):  # as below, all weights but one are zero
            pattern = self._patterns(x)
            node = torch.arange(len(self.blocks), device=x.device)
            return self.log_tables[node, pattern[:, self._up], pattern].sum(1)
        padded = torch.nn.functional.pad(x, (0, 1))[:, self._columns]
        weight = x.new_ones(len(x), len(self.blocks), 1)
        for p in padded.view(len(x), *self.blocks.shape).unbind(2):
            weight = torch.cat([weight * (1 - p[..., None]), weight * p[..., None]], 2)
        value = torch.zeros_like(weight[..., 0])
        for a, table in enumerate(self.log_tables.unbind(1)):
            value += weight[:, self._up, a] * (weight * table).sum(2)
        return value.sum(1)

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        """log q(x with entry i set to 1 - x_i) - log q(x), (n, d)."""
        if not torch.equal(x, x.round()):
            return super().flip_log_ratio(x)
        pattern = self._patterns(x).t()  # (m, n)
        node = torch.arange(len(self.blocks), device=x.device)[:, None]
        above, child = pattern[self._up], node[1:]
        here, below = self.log_tables[node, above, pattern], pattern[1:]
        change = []
        for j in range(self.blocks.shape[1]):
            own = self.log_tables[node, above, pattern ^ (1 << j)] - here
            flipped = self.log_tables[child, above[1:] ^ (1 << j), below] - here[1:]
            change.append(own.index_add_(0, self._up[1:], flipped))
        return torch.stack(change, 1).flatten(0, 1)[self._position].t()

    def _patterns(self, x: Tensor) -> Tensor:
        """Number of each node's pattern in binary rows, (n, m)."""
        bits = torch.nn.functional.pad(x, (0, 1)).long()[:, self._columns]
        place = 1 << torch.arange(self.blocks.shape[1], device=x.device)
        return (bits.view(len(x), *self.blocks.shape) * place).sum(2)


class BlockTilt(Tilt):
    """The distributions proportional to q(x)^power exp(field' x), one for each row of the field.

    Messages go up the tree once, on first need, all nodes of a level together; they are sums of
    positive terms around one, and only their logarithms are added up.

    Parameters
    ----------
    tree : BlockTree
    field : Tensor of shape (n, d)
    power : float
    known : Clamp, default=None
        Coordinates that have known values.

    Attributes
    ----------
    mean : Tensor of shape (n, d)
    log_normaliser : Tensor of shape (n,)
        log of the sum of q(x)^power exp(field' x) over the rows that agree with what is known.
    """

    def __init__(self, tree: BlockTree, field: Tensor, power: float, known: Clamp | None = None):
        self.tree, self.field, self.power, self.known = tree, field, power, known
        self._tables = tree._tables if power == 1 else tree._powered(power)  # (m, K, K)

    def given(self, clamp: Clamp) -> BlockTilt:
        """The same distributions where some coordinates are known; replaces what was."""
        return BlockTilt(self.tree, self.field, self.power, clamp)

    def _scores(self) -> Tensor:
        """Sum of the fields over the bits that are on, (m, K, n); -inf where evidence says no."""
        tree, off = self.tree, None
        on = self._by_node(self.field)
        if self.known is not None:
            mask, one = self.known.mask, self.known.value > 0.5
            on = on.masked_fill_(self._by_node(mask & ~one), -math.inf)
            off = torch.zeros_like(on).masked_fill_(self._by_node(mask & one), -math.inf)
        scores = on.new_zeros(len(on), tree._valid.shape[1], on.shape[2])
        for j in range(on.shape[1]):
            half = 1 << j
            torch.add(scores[:, :half], on[:, j, None], out=scores[:, half : 2 * half])
            if off is not None:
                scores[:, :half] += off[:, j, None]
        return scores

    def _by_node(self, x: Tensor) -> Tensor:
        """Columns (n, d) as (m, b, n), with zeros for the columns that a block lacks."""
        columns = torch.nn.functional.pad(x, (0, 1)).t().index_select(0, self.tree._columns)
        return columns.view(*self.tree.blocks.shape, len(x))

    def _by_row(self, patterns: Tensor) -> Tensor:
        """Weights of patterns (m, K, n) as weights of the bits, (n, d)."""
        bits = torch.matmul(self.tree._bits, patterns).flatten(0, 1)
        return bits.index_select(0, self.tree._position).t().contiguous()

    @cached_property
    def _upward(self) -> tuple[Tensor, Tensor]:
        """What fields and subtrees say of each pattern, (m, K, n), largest 1; log-normaliser."""
        tree, here = self.tree, self._scores()
        top = here.new_empty(len(here), here.shape[2])
        for start, stop in reversed(tree._levels):
            level = here[start:stop]
            torch.amax(level, 1, out=top[start:stop])
            level.sub_(top[start:stop, None]).exp_()
            if start:
                message = torch.bmm(self._tables[start:stop], level).log_()
                here.index_add_(0, tree._up[start:stop], message)
        last = (self._tables[0, 0, :, None] * here[0]).sum(0).log()
        return here, top.t().contiguous().sum(1) + last

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        return self._upward[1]

    def _downward(self, start: int, stop: int, above: Tensor) -> Tensor:
        """Weights of a level's patterns, (., K, n), under weights of their parents' patterns."""
        here = self._upward[0][start:stop]
        if not start:
            return self._tables[0, 0, :, None] * here
        tables = self._tables[start:stop].transpose(1, 2)
        return torch.bmm(tables, above).mul_(here)

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        tree, (here, _) = self.tree, self._upward
        p = torch.empty_like(here)
        for start, stop in tree._levels:
            above = p[tree._up[start:stop]] if start else p[:0]
            if start:
                above.div_(torch.bmm(self._tables[start:stop], here[start:stop]))
            weight = self._downward(start, stop, above)
            p[start:stop] = weight.div_(weight.sum(1, keepdim=True))
        mean = self._by_row(p).clamp_(0, 1)
        return mean if self.known is None else self.known.apply(mean)

    def sample(self, generator: torch.Generator) -> Tensor:
        tree, (here, _) = self.tree, self._upward
        u = torch.rand(
            (len(here), 1, here.shape[2]),
            generator=generator,
            dtype=here.dtype,
            device=here.device,
        )
        on = torch.empty_like(here)
        for start, stop in tree._levels:
            above = on[tree._up[start:stop]] if start else on[:0]
            weight = self._downward(start, stop, above).cumsum(1)
            # Strictly above: u = 0 must not select a first pattern of weight zero.
            reached = (weight > u[start:stop] * weight[:, -1:]).to(here.dtype)
            on[start:stop] = reached
            on[start:stop, 1:] -= reached[:, :-1]
        return self._by_row(on)


def _checked_shapes(blocks: Tensor, parent: Tensor, log_tables: Tensor) -> list[int]:
    """Parents of the nodes, once what can be seen without order is in order."""
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
        raise ValueError("A block must hold a column, and its padding must be at its end.")
    return parent.tolist()


def _breadth_first(parent: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Nodes level by level, children of a node together; where each level starts and stops."""
    children: dict[int, list[int]] = {}
    for node, above in enumerate(parent):
        children.setdefault(max(above, -1), []).append(node)
    order: list[int] = []
    levels, level = [], children.get(-1, [])
    if len(level) != 1:
        raise ValueError(f"A tree has one root, with parent -1, but this one has {len(level)}.")
    while level:
        levels.append((len(order), len(order) + len(level)))
        order += level
        level = [child for node in level for child in children.get(node, [])]
    if len(order) != len(parent):
        raise ValueError("The parents must form one tree; some nodes are not below the root.")
    return order, levels
