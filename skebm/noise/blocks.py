r"""Chow-Liu trees whose nodes are blocks of columns: one-hot codes, and what trees of bits miss."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.base import Binary, Clamp
from skebm.noise._block_fit import find_blocks, fit_tables
from skebm.noise.base import Noise, Tilt


class BlockTree(Noise):
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
    >>> from skebm.noise import BlockTree
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
