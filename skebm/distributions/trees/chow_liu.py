"""Chow-Liu trees: the maximum-likelihood tree-structured distributions of binary columns."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor

from skebm.base import Binary, Clamp
from skebm.base.processes import own_modes
from skebm.base.sampler import number_in
from skebm.base.torchtools import softplus
from skebm.distributions.base import Distribution, Tilt


def maximum_spanning_tree(information: np.ndarray) -> np.ndarray:
    """Parents in the maximum spanning tree, rooted at its centre, -1 at the root.

    The centre minimises the depth; of two centres the one with the smaller number is taken.
    """
    # Rounded, so that rounding errors do not break ties. Costs are at least 1, because SciPy takes
    # zero for a missing edge, and independent columns must be connected too.
    cost = information.round(9)
    cost = cost.max() + 1 - cost
    np.fill_diagonal(cost, 0)
    tree = minimum_spanning_tree(cost)
    # The centre of a tree is in the middle of a longest path.
    _, first_end = _root_at(tree, 0)
    parent, second_end = _root_at(tree, first_end)
    path = [second_end]
    while path[-1] != first_end:
        path.append(parent[path[-1]])
    middle = len(path) // 2
    centre = min(path[middle], path[(len(path) - 1) // 2])
    return _root_at(tree, centre)[0]


def _root_at(tree: sp.csr_array, root: int) -> tuple[np.ndarray, int]:
    """Parents of all nodes, -1 at the root, and a node farthest from the root."""
    order, parent = breadth_first_order(tree, root, directed=False)
    return np.where(parent < 0, -1, parent).astype(np.int64), int(order[-1])


class _Factors(NamedTuple):
    """q(x_i given its parent) to a power, columns in breadth-first order; (d, 1) each."""

    off: Tensor  # log-odds of a one given that the parent is 0
    on: Tensor  # log-odds of a one given that the parent is 1
    zero: Tensor  # log q of a zero given that the parent is 0
    shift: Tensor  # log q of a zero given that the parent is 1, less `zero`


class ChowLiuTree(Distribution):
    r"""A tree of binary columns, :math:`q(x) = \prod_i q(x_i \mid x_{\mathrm{parent}(i)})`.

    :meth:`fit` finds the tree of the largest likelihood, which is the maximum spanning tree of the
    mutual information between columns. The root, which does not change the distribution, is the
    centre of the tree, so that its depth and with it the cost of a draw are as small as possible.

    Parameters
    ----------
    parent : Tensor of shape (d,), int64
        Parent of each column, -1 for the root.
    logits : Tensor of shape (d, 2)
        Log-odds of a one in each column given that its parent is 0 and 1; those of the root are
        equal.

    Attributes
    ----------
    depth : int
        Number of edges between the root and the farthest column.
    mean : Tensor of shape (d,)
        Probability of a one in each column.

    Notes
    -----
    Rows of :meth:`log_prob` may have values inside (0, 1); the result is then the mean of log q(x)
    over independent binary columns with these means.

    Under unary fields the tree keeps its structure and changes its log-odds, by belief propagation.
    With :math:`l_{iv}` the log-odds of column i given that its parent is v, and :math:`s_i` the
    field of i plus the messages of its children, the message of column i to its parent is

    .. math::
        m_i = \zeta(l_{i1} + s_i) - \zeta(l_{i0} + s_i) - \zeta(l_{i1}) + \zeta(l_{i0}),
        \qquad \zeta(a) = \log(1 + e^a),

    and then :math:`P(x_i = 1 \mid v) = \sigma(l_{iv} + s_i)`: one upward and one downward pass.

    References
    ----------
    Chow and Liu (1968), "Approximating discrete probability distributions with dependence trees",
    IEEE Transactions on Information Theory 14(3).
    Pearl (1988), "Probabilistic reasoning in intelligent systems", section 4.2 (the messages).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import ChowLiuTree
    >>> x = torch.tensor([[0.0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]])
    >>> q = ChowLiuTree.fit(x)
    >>> q.log_prob(x)  # the first two columns are equal: about log(1 / 4)
    tensor([-1.3863, -1.3863, -1.3863, -1.3863])
    >>> q.tilted(torch.tensor([[3.0, 0.0, 0.0]])).mean  # so a field on one favours the other
    tensor([[0.9526, 0.9525, 0.5000]])
    """

    def __init__(self, parent: Tensor, logits: Tensor):
        if logits.shape != (len(parent), 2):
            raise ValueError(f"logits must be of shape ({len(parent)}, 2), not {logits.shape}.")
        self.parent, self.logits = parent, logits
        self.domain = Binary((len(parent),))
        self._arrange()

    def _arrange(self) -> None:
        """Order the columns by depth, so that the columns of one depth are a slice."""
        parent = self.parent.cpu().numpy()
        order, depth = _depths(parent)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        parent_rank = np.where(parent[order] < 0, 0, rank[parent[order]])
        self.depth = int(depth[order[-1]])
        self._starts = np.searchsorted(depth[order], np.arange(self.depth + 2)).tolist()
        self._sizes = np.diff(self._starts).tolist()
        device = self.logits.device
        self._order = torch.as_tensor(order, device=device)
        self._rank = torch.as_tensor(rank, device=device)
        self._parents = torch.as_tensor(parent_rank, device=device)  # ranks, in rank order
        self._parents_by_depth = self._parents.split(self._sizes)
        self._factors = self._power(1.0)
        self._largest = float(self.logits.abs().max())

    def _power(self, power: float) -> _Factors:
        """The factors of q raised to a power."""
        off, on = self.logits.index_select(0, self._order).t().unsqueeze(-1)
        zero_off, zero_on = -softplus(off), -softplus(on)
        return _Factors(power * off, power * on, power * zero_off, power * (zero_on - zero_off))

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        smoothing: float = 1e-4,
        shrinkage: float = 0.0,
    ) -> ChowLiuTree:
        """Fit the maximum-likelihood tree to binary rows.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Values inside (0, 1) count as probabilities.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative; only relative weights matter. A row of weight 2 counts as two rows.
        smoothing : float in (0, 1), default=1e-4
            Weight of the uniform distribution in the mixture with each pairwise table, which keeps
            probabilities positive. It is relative, so the scale of the weights does not matter.
        shrinkage : float in [0, 1], default=0
            Weight of the product of the marginals in the mixture with each pairwise table: means do
            not change, and covariances of neighbours are multiplied by 1 - `shrinkage`. If an RBM
            corrects the tree, a value of one half can be better than 0: in sparse tables with
            topics (book: -33.0 instead of -34.1 nats on the validation part) hidden units then
            model the remaining dependence better.
        """
        x, like = x.double(), x
        w = x.new_ones(len(x)) if weight is None else weight.double()
        second = (x * w[:, None]).t() @ x / w.sum()
        second.diagonal().copy_(w @ x / w.sum())
        return cls.from_moments(second, smoothing, like.dtype, like.device, shrinkage)

    @classmethod
    def from_moments(
        cls,
        second: Tensor,
        smoothing: float = 1e-4,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        shrinkage: float = 0.0,
    ) -> ChowLiuTree:
        """Fit to the second moments E[x x'], (d, d), in float64.

        The diagonal holds the means E[x], also where x has values inside (0, 1). Other parameters
        are as in :meth:`fit`; `ValueError` for moments that are not finite.
        """
        if not torch.isfinite(second).all():
            raise ValueError("The moments must be finite: is there a row of positive weight?")
        number_in("shrinkage", shrinkage, "[0, 1]")
        second = second.double().cpu()
        mean = second.diagonal()
        p11 = torch.lerp(second, torch.outer(mean, mean), shrinkage)
        p11 = (1 - smoothing) * p11 + smoothing / 4
        mean = (1 - smoothing) * mean + smoothing / 2
        # The diagonal is not used; independence keeps it finite.
        p11.diagonal().copy_(mean * mean)
        p10, p01 = mean[:, None] - p11, mean[None, :] - p11
        p00 = 1 - mean[:, None] - mean[None, :] + p11
        information = _mutual_information(p11, p10, p01, p00, mean)
        parent = torch.as_tensor(maximum_spanning_tree(information))
        root, at = parent < 0, parent.clamp_min(0)
        column = torch.arange(len(parent))
        given_on = p11[at, column].log() - p10[at, column].log()
        given_off = p01[at, column].log() - p00[at, column].log()
        marginal = torch.logit(mean)
        logits = torch.stack(
            [torch.where(root, marginal, given_off), torch.where(root, marginal, given_on)], 1
        )
        return cls(parent.to(device), logits.to(device, dtype))

    # ---------------------------------------------------------------- the distribution

    @functools.cached_property
    def _linear(self) -> tuple[Tensor, Tensor, Tensor]:
        """Constant, a and J (d,) of log q = constant + a' x + sum_i J_i x_i x_parent(i).

        In breadth-first order and in float64.
        """
        off, on = self.logits.double().index_select(0, self._order).t()
        a = off.clone()
        a.index_add_(0, self._parents[1:], (softplus(off) - softplus(on))[1:])
        coupling = (on - off).index_fill(0, self._parents.new_zeros(1), 0.0)
        return -softplus(off).sum(), a, coupling

    @property
    def mean(self) -> Tensor:
        return self.tilted(self.logits.new_zeros(1, len(self.parent))).mean[0]

    def log_prob(self, x: Tensor) -> Tensor:
        constant, a, coupling = self._linear
        x_ordered = x.index_select(1, self._order).double()
        # Products and a row sum: unlike a matrix product it rounds all rows of a batch alike.
        value = (x_ordered * (a + coupling * x_ordered.index_select(1, self._parents))).sum(1)
        return (constant + value).to(x.dtype)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.logits
        u = torch.rand(len(like), n, generator=generator, dtype=like.dtype, device=like.device)
        factors = self._factors
        return self._descend(u < factors.off.sigmoid(), u < factors.on.sigmoid()).to(like.dtype)

    def _descend(self, off: Tensor, on: Tensor) -> Tensor:
        """Rows (n, d), given the value of each column under a parent of 0 and of 1, (d, n)."""
        differs = (on ^ off).split(self._sizes)
        x, by_depth = off, off.split(self._sizes)
        for values, change, parents in zip(
            by_depth[1:], differs[1:], self._parents_by_depth[1:], strict=True
        ):
            values.bitwise_xor_(x.index_select(0, parents).bitwise_and_(change))
        return x.index_select(0, self._rank).t()

    def tilted(self, field: Tensor, power: float = 1.0) -> TreeTilt:
        """Trees of the same structure with other log-odds, by belief propagation."""
        return TreeTilt(self, field, power)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> ChowLiuTree:
        return ChowLiuTree(self.parent.to(device), self.logits.to(device, dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name).cpu().numpy() for name in ("parent", "logits")}

    @own_modes()  # in which pickle may call it
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*(torch.tensor(state[k]) for k in ("parent", "logits")))  # type: ignore[misc]


class TreeTilt(Tilt):
    """A tree under unary fields (n, d), by belief propagation, which is exact on a tree.

    Internal tensors are (d, n), with the columns in breadth-first order.

    Parameters
    ----------
    tree : ChowLiuTree
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

    def __init__(self, tree: ChowLiuTree, field: Tensor, power: float, known: Clamp | None = None):
        self.tree, self.field, self.power, self.known = tree, field, power, known

    def given(self, clamp: Clamp) -> TreeTilt:
        """The tilt conditioned on known columns, which replace those known before."""
        return TreeTilt(self.tree, self.field, self.power, clamp)

    @functools.cached_property
    def _factors(self) -> _Factors:
        return self.tree._factors if self.power == 1 else self.tree._power(self.power)

    @functools.cached_property
    def _evidence(self) -> Tensor | None:
        """Log-odds of the known columns, plus or minus infinity, and 0 elsewhere; (d, n)."""
        if self.known is None:
            return None
        log_odds = torch.where(self.known.value > 0.5, math.inf, -math.inf)
        evidence = torch.where(self.known.mask, log_odds, 0.0).to(self.field.dtype)
        return evidence.t().index_select(0, self.tree._order)

    @functools.cached_property
    def _upward(self) -> Tensor:
        """Log-odds after the upward pass, (d, n): fields plus the messages of all children."""
        tree, factors, evidence = self.tree, self._factors, self._evidence
        log_odds = self.field.t().contiguous().index_select(0, tree._order)
        off, on, shift = (
            part.split(tree._sizes) for part in (factors.off, factors.on, factors.shift)
        )
        # Log-odds beyond those of all tables at which a message has saturated: exp(-30) is 1e-13.
        saturation = 30.0
        # Beyond this limit a message is constant but for the cancellation of its two terms.
        limit = saturation + self.power * tree._largest
        for depth in range(tree.depth, 0, -1):
            start, stop = tree._starts[depth : depth + 2]
            own = log_odds[start:stop].clone()  # autograd needs the present values
            if evidence is not None:
                own += evidence[start:stop]
            own.clamp_(-limit, limit)
            message = softplus(on[depth] + own).sub_(softplus(own.add_(off[depth])))
            log_odds.index_add_(0, tree._parents_by_depth[depth], message.add_(shift[depth]))
        return log_odds

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        own = self._factors.off + self._upward
        value = softplus(own)
        if self._evidence is not None:
            value = torch.where(self._evidence == 0, value, own * (self._evidence > 0))
        return (self._factors.zero + value).sum(0)

    def _conditionals(self) -> tuple[Tensor, Tensor]:
        """Probabilities of a one given that the parent is 0 and 1, (d, n) each."""
        factors, log_odds = self._factors, self._upward
        if self._evidence is not None:
            log_odds = log_odds + self._evidence
        return (factors.off + log_odds).sigmoid_(), (factors.on + log_odds).sigmoid_()

    def sample(self, generator: torch.Generator) -> Tensor:
        off, on = self._conditionals()
        u = torch.rand(off.shape, generator=generator, dtype=off.dtype, device=off.device)
        x = self.tree._descend(u < off, u < on)
        return x.to(self.field.dtype, memory_format=torch.contiguous_format)

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        tree = self.tree
        off, on = self._conditionals()
        p, starts = off.clone(), tree._starts
        for start, stop in zip(starts[1:-1], starts[2:], strict=True):
            p_parent = p.index_select(0, tree._parents[start:stop])
            p[start:stop] = torch.lerp(off[start:stop], on[start:stop], p_parent)
        return p.index_select(0, tree._rank).t().contiguous()


def _mutual_information(
    p11: Tensor, p10: Tensor, p01: Tensor, p00: Tensor, mean: Tensor
) -> np.ndarray:
    """Mutual information of all pairs of columns, (d, d), in nats."""
    total = torch.zeros_like(p11)
    for p, left, right in (
        (p11, mean, mean),
        (p10, mean, 1 - mean),
        (p01, 1 - mean, mean),
        (p00, 1 - mean, 1 - mean),
    ):
        total += p * (p.log() - left.log()[:, None] - right.log()[None, :])
    return total.numpy()


def _depths(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns ordered by depth, and the depth of each; `ValueError` if there is no tree."""
    d = len(parent)
    if (parent == -1).sum() != 1 or (parent < -1).any() or (parent >= d).any():
        raise ValueError("parent must be a column for each column but the root, which has -1.")
    depth, ancestor = np.zeros(d, dtype=np.int64), parent.copy()
    for _ in range(d):
        has_ancestor = ancestor >= 0
        if not has_ancestor.any():
            return np.argsort(depth, kind="stable"), depth
        depth[has_ancestor] += 1
        ancestor = np.where(has_ancestor, parent[ancestor], -1)
    raise ValueError("parent has a cycle: it must describe one tree.")
