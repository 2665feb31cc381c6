r"""Chow-Liu trees of categorical columns and bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Binary, Categorical, Clamp, Domain
from skebm.base.domains import columns_of, parts_of
from skebm.base.processes import own_modes
from skebm.base.torchtools import check_memory
from skebm.distributions.trees.blocks import Counts, mutual_information
from skebm.distributions.trees.chow_liu import maximum_spanning_tree
from skebm.distributions.trees.tables import TreeOfTables


class CategoricalTree(TreeOfTables):
    r"""A tree of columns with two or more levels, :math:`q(x) = \prod_i q(x_i \mid x_{\pi(i)})`.

    :meth:`fit` finds the tree of the largest likelihood, the maximum spanning tree of the mutual
    information between columns. Rows have one entry for a bit, and one for each level of a
    category. Tilts, conditionals and draws are exact, by belief propagation.

    Parameters
    ----------
    domain : Binary, Categorical or Mixed of these
        Domain of flat rows.
    parent : array-like of int of shape (m,)
        Parent of each of the m columns, -1 for the root.
    log_tables : Tensor of shape (m, K, K)
        log P(column u has level k given that its parent has level a) at [u, a, k], in nats, with K
        levels at most; 0 and 1 are the levels of a bit. Levels that a column lacks are ignored, and
        so are all rows but row 0 of the root.

    Attributes
    ----------
    parent, log_tables : Tensor
        As given, in breadth-first order of the columns.
    order : Tensor of shape (m,)
        The columns in that order.

    References
    ----------
    Chow and Liu (1968), "Approximating discrete probability distributions with dependence trees",
    IEEE Transactions on Information Theory 14(3).

    Examples
    --------
    A colour of three, and whether it is dark:

    >>> import torch
    >>> from skebm.base import Binary, Categorical, Mixed
    >>> from skebm.distributions import CategoricalTree
    >>> x = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 1]]).repeat(50, 1)
    >>> q = CategoricalTree.fit(x, Mixed((Binary((1,)), Categorical((3,)))))
    >>> q.log_prob(x[:2]).exp().round(decimals=2)
    tensor([0.2500, 0.2500])
    """

    def __init__(self, domain: Domain, parent: Any, log_tables: Tensor):
        device, groups = log_tables.device, _check_columns(domain)
        parent = torch.as_tensor(parent, dtype=torch.long).to(device)
        sizes = [max(k, 2) for k in groups]
        n_levels = max(sizes)
        if tuple(parent.shape) != (len(groups),):
            raise ValueError(f"parent must have shape ({len(groups)},), one for each column.")
        if tuple(log_tables.shape) != (len(groups), n_levels, n_levels):
            raise ValueError(
                f"log_tables must have shape {(len(groups), n_levels, n_levels)}, not "
                f"{tuple(log_tables.shape)}."
            )
        self.domain = domain
        self.order = self._arrange(parent)
        level = torch.arange(n_levels)
        first = torch.tensor([0, *groups]).cumsum(0)[:-1]
        is_bit, size = torch.tensor(groups) == 1, torch.tensor(sizes)
        # Entry of each level; the level 0 of a bit has none, and a zero field after the last entry.
        entry = torch.where(is_bit[:, None], first[:, None] + level - 1, first[:, None] + level)
        entry = torch.where(is_bit[:, None] & (level == 0), domain.n_columns, entry)
        valid = level < size[:, None]
        entry = torch.where(valid, entry, domain.n_columns + 1)
        self._entry = entry.to(device)[self.order].flatten()
        self._valid = valid.to(device)[self.order]
        self._position = self._entry.argsort()[: domain.n_columns]
        self._set_tables(log_tables[self.order])

    @classmethod
    def fit(
        cls,
        x: Tensor,
        domain: Domain,
        weight: Tensor | None = None,
        smoothing: float = 1e-3,
    ) -> CategoricalTree:
        """Fit the maximum-likelihood tree, and smooth its tables.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Rows of the domain.
        domain : Binary, Categorical or Mixed of these
        weight : Tensor of shape (n,) or None, default=None
            Non-negative; only relative weights matter.
        smoothing : float > 0, default=1e-3
            P(k given a) is the mixture of its empirical value and of the marginal probability of k,
            with weights proportional to p(a) and `smoothing`.
        """
        groups = _check_columns(domain)
        n_levels = max(2, *groups)
        what = f"A tree of {len(groups)} columns with up to {n_levels} levels"
        check_memory(what, len(groups) * n_levels**2 + 3 * sum(groups) ** 2, torch.double)
        share = torch.ones(len(x), dtype=torch.double, device=x.device)
        share = share if weight is None else weight.double()
        share = share / share.sum().clamp_min(torch.finfo(torch.double).tiny)
        entries = zip(groups, x.double().split(groups, 1), strict=True)
        on = torch.cat([torch.cat([1 - e, e], 1) if k == 1 else e for k, e in entries], 1)
        sizes = torch.tensor([max(k, 2) for k in groups])
        counts = Counts((on.t() @ (on * share[:, None])).cpu(), sizes.cumsum(0) - sizes)
        parent = maximum_spanning_tree(mutual_information(counts).numpy()).tolist()
        cut = sizes.tolist()
        pairs = [block.split(cut, 1) for block in counts.pairs.split(cut, 0)]
        tables = torch.ones(len(groups), n_levels, n_levels, dtype=torch.double)
        # Weight of even levels in the marginal of a column, which levels that do not occur need.
        level_smoothing = 1e-3
        for u, above in enumerate(parent):
            own = pairs[u][u].diagonal()
            smooth = (1 - level_smoothing) * own / own.sum() + level_smoothing / len(own)
            table = smooth[None] if above < 0 else pairs[above][u] + smoothing * smooth
            tables[u, : len(table), : len(own)] = table / table.sum(1, keepdim=True)
        return cls(domain, parent, tables.log().to(x.device, x.dtype))

    def to(self, device: Any, dtype: torch.dtype) -> CategoricalTree:
        """A copy on a device, in the given precision."""
        return CategoricalTree(
            self.domain, *(part.to(device) for part in self._as_given(self.log_tables.to(dtype)))
        )

    def _as_given(self, log_tables: Tensor) -> tuple[Tensor, Tensor]:
        """Parents and tables in the order of the columns."""
        rank = self.order.argsort()
        parent = torch.where(self.parent < 0, self.parent, self.order[self.parent])
        return parent[rank], log_tables[rank]

    def __getstate__(self) -> dict[str, Any]:
        parent, tables = self._as_given(self.log_tables)
        return {
            "domain": self.domain,
            "parent": parent.cpu().numpy(),
            "log_tables": tables.cpu().numpy(),
        }

    @own_modes()  # in which pickle may call it
    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = torch.tensor(state["log_tables"])
        self.__init__(state["domain"], state["parent"], tables)  # type: ignore[misc]

    def log_prob(self, x: Tensor) -> Tensor:
        """log q of rows, and its multilinear extension between them, (n,)."""
        ends = x.new_zeros(len(x), 2)
        level = torch.cat([x, ends], 1).t().index_select(0, self._entry)
        level = level.view(*self._valid.shape, len(x))
        # What is not the level 1 of a bit is its level 0, which has no entry.
        zero = (self._entry == self.domain.n_columns).view(self._valid.shape)
        level = torch.where(zero[:, :, None], 1 - level.sum(1, keepdim=True), level)
        value = torch.bmm(self.log_tables, level)
        of_parent = level.index_select(0, self._parents)
        # The rows of the root's table are alike, and its levels sum to one.
        return (value * of_parent).sum(1).t().contiguous().sum(1)

    def potentials(self, field: Tensor, known: Clamp | None) -> Tensor:
        """Field of each level, (m, K, n); -inf for those that cannot occur or do not exist."""
        potentials = self._by_level(field, -math.inf)
        if known is not None:
            value = known.value > 0.5
            off = self._by_level((known.mask & ~value).to(field.dtype), 0.0) > 0
            on = self._by_level((known.mask & value).to(field.dtype), 0.0) > 0
            potentials = potentials.masked_fill(off | (on.any(1, keepdim=True) & ~on), -math.inf)
        return potentials

    def _by_level(self, x: Tensor, absent: float) -> Tensor:
        """Entries (n, d) as levels (m, K, n), 0 for the level 0 of a bit."""
        ends = x.new_tensor([0.0, absent]).expand(len(x), 2)
        levels = torch.cat([x, ends], 1).t().index_select(0, self._entry)
        return levels.view(*self._valid.shape, len(x))

    def rows_of(self, patterns: Tensor) -> Tensor:
        """Rows (n, d), or their means, from levels or their probabilities, (m, K, n)."""
        return patterns.flatten(0, 1).index_select(0, self._position).t().contiguous()


def _check_columns(domain: Domain) -> tuple[int, ...]:
    """Entries of each column; `ValueError` for rows that are not of bits and categories."""
    for part in parts_of(domain):
        if not isinstance(part, Binary | Categorical) or len(part.row_shape) != 1:
            raise ValueError(f"A CategoricalTree is of flat bits and categories, not {domain}.")
    return columns_of(domain)
