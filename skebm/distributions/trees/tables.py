"""Trees whose nodes have tables: exact tilts, conditionals and draws by belief propagation."""

from __future__ import annotations

import abc
from functools import cached_property

import torch
from torch import Tensor

from skebm.base import Clamp
from skebm.distributions.base import Distribution, Tilt


class TreeOfTables(Distribution):
    """A tree whose nodes have a table of the probabilities of their patterns given the parent's.

    Subclasses define which entries of a row belong to which pattern.

    Attributes
    ----------
    parent : Tensor of shape (m,)
        Parents of the nodes, -1 for the root, in breadth-first order.
    log_tables : Tensor of shape (m, K, K)
        log P(node u has pattern k given that its parent has pattern a) at [u, a, k].
    """

    parent: Tensor
    log_tables: Tensor
    _valid: Tensor  # which patterns a node has, (m, K)

    @abc.abstractmethod
    def potentials(self, field: Tensor, known: Clamp | None) -> Tensor:
        """Field of each pattern, (m, K, n); -inf for those that are known not to occur."""

    @abc.abstractmethod
    def rows_of(self, patterns: Tensor) -> Tensor:
        """Rows (n, d), or their means, from one-hot patterns or probabilities, (m, K, n)."""

    def _arrange(self, parent: Tensor) -> Tensor:
        """Set the parents in breadth-first order, and return that order of the nodes."""
        nodes, self._levels = _breadth_first(parent.tolist())
        order = torch.tensor(nodes, device=parent.device)
        self.parent = torch.where(parent < 0, parent, order.argsort()[parent])[order]
        self._parents = self.parent.clamp_min(0)  # the root counts as a child of itself
        return order

    def _set_tables(self, log_tables: Tensor) -> None:
        """Set the tables, which are in breadth-first order, once `_valid` is known."""
        self.log_tables = self._check_tables(log_tables)
        self._tables = self._power(1.0)

    def _check_tables(self, log_tables: Tensor) -> Tensor:
        """Tables with zeros for patterns that do not exist, and equal rows of the root."""
        tables = log_tables.clone()
        tables[0] = tables[0, 0].clone()
        tables = torch.where(self._valid[:, None], tables, 0.0)
        missing = ~self._valid[self._parents]  # (m, K): patterns that the parent lacks
        missing[0] = False
        tables = torch.where(missing[:, :, None], 0.0, tables)
        total = (tables.double().exp() * self._valid[:, None]).sum(2)
        error = torch.where(missing, 0.0, total - 1).abs().max()
        if not (torch.isfinite(tables).all() and error < 1e-3):
            raise ValueError(
                "The rows of log_tables must be finite and their exponentials sum to 1."
            )
        return tables

    def _power(self, power: float) -> Tensor:
        """The tables to a power, (m, K, K); 0 for patterns that do not exist."""
        return (power * self.log_tables).exp_() * self._valid[:, None]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        size = max(1, 4_000_000 // self._valid.numel())
        fields = [
            self.log_tables.new_zeros(min(size, n - start), self.domain.n_columns)
            for start in range(0, max(n, 1), size)
        ]
        return torch.cat([self.tilted(field).sample(generator) for field in fields])

    def tilted(self, field: Tensor, power: float = 1.0) -> TableTilt:
        """Tilts proportional to q(x)^power exp(field' x), one for each row of `field`, (n, d)."""
        return TableTilt(self, field, power)


class TableTilt(Tilt):
    """The distributions proportional to q(x)^power exp(field' x), by belief propagation.

    The upward pass runs once, when first needed, on all nodes of a level together. Messages are
    sums of positive terms of about one, and only their logarithms are added. They are computed in
    place: results carry no gradient.

    Parameters
    ----------
    tree : TreeOfTables
        q.
    field : Tensor of shape (n, d)
        Unary fields, in nats.
    power : float
        Exponent of q.
    known : Clamp or None, default=None
        Known columns and their values.

    Attributes
    ----------
    mean : Tensor of shape (n, d)
        Probability of a one in each column.
    log_normaliser : Tensor of shape (n,)
        Log of the sum of q(x)^power exp(field' x) over the rows that agree with the known columns.
    """

    def __init__(self, tree: TreeOfTables, field: Tensor, power: float, known: Clamp | None = None):
        self.tree, self.power, self.known = tree, power, known
        self.field = field.detach()
        self._tables = tree._tables if power == 1 else tree._power(power)  # (m, K, K)

    def given(self, clamp: Clamp) -> TableTilt:
        """The tilt conditioned on known columns, which replace those known before."""
        return TableTilt(self.tree, self.field, self.power, clamp)

    @cached_property
    def _upward(self) -> tuple[Tensor, Tensor]:
        """The upward pass: potential times messages of each pattern, (m, K, n), largest 1.

        The second result is the log-normaliser, (n,).
        """
        tree, belief = self.tree, self.tree.potentials(self.field, self.known)
        top = belief.new_empty(len(belief), belief.shape[2])
        for start, stop in reversed(tree._levels):
            level = belief[start:stop]
            torch.amax(level, 1, out=top[start:stop])
            level.sub_(top[start:stop, None]).exp_()
            if start:
                message = torch.bmm(self._tables[start:stop], level).log_()
                belief.index_add_(0, tree._parents[start:stop], message)
        log_root = (self._tables[0, 0, :, None] * belief[0]).sum(0).log()
        return belief, top.t().contiguous().sum(1) + log_root

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        return self._upward[1]

    def _downward(self, start: int, stop: int, p_parent: Tensor) -> Tensor:
        """Weights of the patterns of a level, (., K, n), given those of their parents."""
        belief = self._upward[0][start:stop]
        if not start:
            return self._tables[0, 0, :, None] * belief
        tables = self._tables[start:stop].transpose(1, 2)
        return torch.bmm(tables, p_parent).mul_(belief)

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        tree, (belief, _) = self.tree, self._upward
        p = torch.empty_like(belief)
        for start, stop in tree._levels:
            p_parent = p[tree._parents[start:stop]] if start else p[:0]
            if start:
                p_parent.div_(torch.bmm(self._tables[start:stop], belief[start:stop]))
            weight = self._downward(start, stop, p_parent)
            p[start:stop] = weight.div_(weight.sum(1, keepdim=True))
        mean = tree.rows_of(p).clamp_(0, 1)
        return mean if self.known is None else self.known.apply(mean)

    def sample(self, generator: torch.Generator) -> Tensor:
        tree, (belief, _) = self.tree, self._upward
        u = torch.rand(
            (len(belief), 1, belief.shape[2]),
            generator=generator,
            dtype=belief.dtype,
            device=belief.device,
        )
        chosen = torch.empty_like(belief)
        for start, stop in tree._levels:
            of_parent = chosen[tree._parents[start:stop]] if start else chosen[:0]
            cumulative = self._downward(start, stop, of_parent).cumsum(1)
            # Strictly greater: u = 0 must not select a first pattern of weight zero.
            reached = (cumulative > u[start:stop] * cumulative[:, -1:]).to(belief.dtype)
            chosen[start:stop] = reached
            chosen[start:stop, 1:] -= reached[:, :-1]
        return tree.rows_of(chosen)


def _breadth_first(parent: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Nodes in breadth-first order, and the start and the stop of each level."""
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
