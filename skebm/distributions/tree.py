"""Chow-Liu trees: the most likely distributions in which each column depends on one other."""

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
from skebm.base.torchtools import softplus
from skebm.distributions.base import Distribution, Tilt


def best_tree(information: np.ndarray) -> np.ndarray:
    """Parents in the spanning tree of the largest sum, rooted at its centre, -1 at the root.

    Of two centres the first is the root, so that depth is least and the choice fixed.
    """
    # Rounded, or noise would decide between equals. Costs of at least 1: next to zero is no edge to
    # SciPy, but what is independent must still be joined.
    cost = information.round(9)
    cost = cost.max() + 1 - cost
    np.fill_diagonal(cost, 0)
    tree = minimum_spanning_tree(cost)
    _, far = _walk(tree, 0)
    parent, other = _walk(tree, far)
    path = [other]
    while path[-1] != far:
        path.append(parent[path[-1]])
    middle = len(path) // 2
    centre = min(path[middle], path[(len(path) - 1) // 2])
    return _walk(tree, centre)[0]


def _walk(tree: sp.csr_array, root: int) -> tuple[np.ndarray, int]:
    """Parents by a breadth-first walk, -1 at the root, and the last node met: the farthest."""
    order, parent = breadth_first_order(tree, root, directed=False)
    return np.where(parent < 0, -1, parent).astype(np.int64), int(order[-1])


# A column whose log-odds exceed those of all tables by this much is decided: exp(-30) is 1e-13.
DECIDED = 30.0


class _Factors(NamedTuple):
    """q(x_i given its parent) to a power, by place; (d, 1) each."""

    off: Tensor  # log-odds of a one given that the parent is 0
    on: Tensor  # and 1
    zero: Tensor  # log q of a zero given that the parent is 0
    shift: Tensor  # what is to be added to that given that it is 1


class ChowLiuTree(Distribution):
    r"""Binary columns on a tree, :math:`q(x) = \prod_i q(x_i \mid x_{\mathrm{parent}(i)})`.

    Of all trees, :meth:`fit` takes the one of the largest likelihood: the spanning tree of the
    largest mutual information between neighbours. Any column may be the root; it is the tree's
    centre, so that the depth, which is what draws cost, is as small as can be.

    Parameters
    ----------
    parent : Tensor of shape (d,), int64
        Column that each column depends on, -1 for the root.
    logits : Tensor of shape (d, 2)
        Log-odds of a one in each column given that its parent is 0 and 1; the root has its own in
        both.

    Attributes
    ----------
    depth : int
        Edges between the root and the farthest column.
    mean : Tensor of shape (d,)
        Probability of a one in each column.

    Notes
    -----
    Rows may hold values inside (0, 1) in :meth:`log_prob`: it is then the mean of log q(x) over
    independent columns of these means.

    Under unary fields the tree keeps its shape and changes its log-odds. With
    :math:`l_{iv}` those of column i given that its parent is v, and :math:`s_i` the field of i
    plus the messages of its children, column i tells its parent

    .. math::
        m_i = \zeta(l_{i1} + s_i) - \zeta(l_{i0} + s_i) - \zeta(l_{i1}) + \zeta(l_{i0}),
        \qquad \zeta(a) = \log(1 + e^a),

    and then :math:`P(x_i = 1 \mid v) = \sigma(l_{iv} + s_i)`: one pass from the leaves up, one
    down.

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
    >>> q.log_prob(x)  # the first two columns are copies: about log(1 / 4)
    tensor([-1.3863, -1.3863, -1.3863, -1.3863])
    >>> q.tilted(torch.tensor([[3.0, 0.0, 0.0]])).mean  # what favours one favours the other
    tensor([[0.9526, 0.9525, 0.5000]])
    """

    def __init__(self, parent: Tensor, logits: Tensor):
        if logits.shape != (len(parent), 2):
            raise ValueError(f"logits must be of shape ({len(parent)}, 2), not {logits.shape}.")
        self.parent, self.logits = parent, logits
        self.domain = Binary((len(parent),))
        self._arrange()

    def _arrange(self) -> None:
        """Number the columns level by level, so that a level is a slice."""
        parent = self.parent.cpu().numpy()
        order, level = _levels(parent)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        above = np.where(parent[order] < 0, 0, place[parent[order]])
        self.depth = int(level[order[-1]])
        self._bounds = np.searchsorted(level[order], np.arange(self.depth + 2)).tolist()
        self._sizes = np.diff(self._bounds).tolist()
        device = self.logits.device
        self._order = torch.as_tensor(order, device=device)
        self._place = torch.as_tensor(place, device=device)
        self._above = torch.as_tensor(above, device=device)  # place of the parent, by place
        self._above_by_level = self._above.split(self._sizes)
        self._factors = self._powered(1.0)
        self._largest = float(self.logits.abs().max())

    def _powered(self, power: float) -> _Factors:
        """Factors of q to a power."""
        off, on = self.logits.index_select(0, self._order).t().unsqueeze(-1)
        zero_off, zero_on = -softplus(off), -softplus(on)
        return _Factors(power * off, power * on, power * zero_off, power * (zero_on - zero_off))

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        share: float = 1e-4,
        shrinkage: float = 0.0,
    ) -> ChowLiuTree:
        """Fit the most likely tree to binary rows.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Values inside (0, 1) count as probabilities.
        weight : Tensor of shape (n,) or None
        share : float in (0, 1), default=1e-4
            Share of fair coins in the tables of pairs, which keeps probabilities positive. A
            share, not a count: weights act on any scale, and a row of weight 2 is the row twice.
        shrinkage : float in [0, 1], default=0
            Share of independent columns in the tables of pairs: the means stay, and covariances of
            neighbours are multiplied by 1 - `shrinkage`. Where a machine corrects the tree, half
            of them can be better than all: what pairs have in common on sparse topic-like tables
            (book: -33.0 instead of -34.1 on the validation part) hidden units say better.
        """
        x, like = x.double(), x
        w = x.new_ones(len(x)) if weight is None else weight.double()
        second = (x * w[:, None]).t() @ x / w.sum()
        second.diagonal().copy_(w @ x / w.sum())
        return cls.from_moments(second, share, like.dtype, like.device, shrinkage)

    @classmethod
    def from_moments(
        cls,
        second: Tensor,
        share: float = 1e-4,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        shrinkage: float = 0.0,
    ) -> ChowLiuTree:
        """Fit to E[x x'] (d, d), its diagonal the means E[x], which are no squares; float64."""
        if not torch.isfinite(second).all():
            raise ValueError("The moments must be finite: is there a row of positive weight?")
        if not 0 <= shrinkage <= 1:
            raise ValueError(f"shrinkage must be in [0, 1], got {shrinkage!r}.")
        second = second.double().cpu()
        mean = second.diagonal()
        p11 = torch.lerp(second, torch.outer(mean, mean), shrinkage)
        p11 = (1 - share) * p11 + share / 4
        mean = (1 - share) * mean + share / 2
        # With a column itself: of no use, but finite.
        p11.diagonal().copy_(mean * mean)
        p10, p01 = mean[:, None] - p11, mean[None, :] - p11
        p00 = 1 - mean[:, None] - mean[None, :] + p11
        parent = torch.as_tensor(best_tree(_information(p11, p10, p01, p00, mean)))
        root, at = parent < 0, parent.clamp_min(0)
        me = torch.arange(len(parent))
        given_on = p11[at, me].log() - p10[at, me].log()
        given_off = p01[at, me].log() - p00[at, me].log()
        own = torch.logit(mean)
        logits = torch.stack(
            [torch.where(root, own, given_off), torch.where(root, own, given_on)], 1
        )
        return cls(parent.to(device), logits.to(device, dtype))

    # ---------------------------------------------------------------- the distribution

    @functools.cached_property
    def _linear(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log q as constant + a' x + sum_i J_i x_i x_parent(i); by place, (d,) each; float64."""
        off, on = self.logits.double().index_select(0, self._order).t()
        a = off.clone()
        a.index_add_(0, self._above[1:], (softplus(off) - softplus(on))[1:])
        coupling = (on - off).index_fill(0, self._above.new_zeros(1), 0.0)
        return -softplus(off).sum(), a, coupling

    @property
    def mean(self) -> Tensor:
        return self.tilted(self.logits.new_zeros(1, len(self.parent))).mean[0]

    def log_prob(self, x: Tensor) -> Tensor:
        constant, a, coupling = self._linear
        own = x.index_select(1, self._order).double()
        # Products and a sum over columns: a row's value does not depend on where it stands.
        value = (own * (a + coupling * own.index_select(1, self._above))).sum(1)
        return (constant + value).to(x.dtype)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.logits
        u = torch.rand(len(like), n, generator=generator, dtype=like.dtype, device=like.device)
        factors = self._factors
        return self._descend(u < factors.off.sigmoid(), u < factors.on.sigmoid()).to(like.dtype)

    def _descend(self, off: Tensor, on: Tensor) -> Tensor:
        """Rows (n, d) from the values that each column has under a parent of 0 and 1, (d, n)."""
        differs = (on ^ off).split(self._sizes)
        x, levels = off, off.split(self._sizes)
        for here, change, above in zip(
            levels[1:], differs[1:], self._above_by_level[1:], strict=True
        ):
            here.bitwise_xor_(x.index_select(0, above).bitwise_and_(change))
        return x.index_select(0, self._place).t()

    def tilted(self, field: Tensor, power: float = 1.0) -> TreeTilt:
        """The same tree with other log-odds, by messages from the leaves to the root."""
        return TreeTilt(self, field, power)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> ChowLiuTree:
        return ChowLiuTree(self.parent.to(device), self.logits.to(device, dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name).cpu().numpy() for name in ("parent", "logits")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*(torch.as_tensor(state[k]) for k in ("parent", "logits")))  # type: ignore[misc]


class TreeTilt(Tilt):
    """A tree under fields (n, d): belief propagation, which is exact on a tree.

    Inside, columns are rows (d, n) and stand by level.

    Parameters
    ----------
    tree : ChowLiuTree
    field : Tensor of shape (n, d)
    power : float
    known : Clamp or None, default=None
        Columns that have known values.

    Attributes
    ----------
    mean : Tensor of shape (n, d)
    log_normaliser : Tensor of shape (n,)
        log of the sum of q(x)^power exp(field' x) over the rows that agree with what is known.
    """

    def __init__(self, tree: ChowLiuTree, field: Tensor, power: float, known: Clamp | None = None):
        self.tree, self.field, self.power, self.known = tree, field, power, known

    def given(self, clamp: Clamp) -> TreeTilt:
        """The same distributions where some columns are known; replaces what was."""
        return TreeTilt(self.tree, self.field, self.power, clamp)

    @functools.cached_property
    def _factors(self) -> _Factors:
        return self.tree._factors if self.power == 1 else self.tree._powered(self.power)

    @functools.cached_property
    def _evidence(self) -> Tensor | None:
        """Log-odds of what is known, infinite, and 0 elsewhere; (d, n)."""
        if self.known is None:
            return None
        decided = torch.where(self.known.value > 0.5, math.inf, -math.inf)
        evidence = torch.where(self.known.mask, decided, 0.0).to(self.field.dtype)
        return evidence.t().index_select(0, self.tree._order)

    @functools.cached_property
    def _upward(self) -> Tensor:
        """Log-odds from below, (d, n): own fields and the messages of all children."""
        tree, factors, evidence = self.tree, self._factors, self._evidence
        odds = self.field.t().contiguous().index_select(0, tree._order)
        off, on, shift = (
            part.split(tree._sizes) for part in (factors.off, factors.on, factors.shift)
        )
        # Beyond this a message does not change, but the rounding of the two terms would show.
        limit = DECIDED + self.power * tree._largest
        for level in range(tree.depth, 0, -1):
            start, stop = tree._bounds[level : level + 2]
            own = odds[start:stop].clone()  # autograd needs it as it is now
            if evidence is not None:
                own += evidence[start:stop]
            own.clamp_(-limit, limit)
            message = softplus(on[level] + own).sub_(softplus(own.add_(off[level])))
            odds.index_add_(0, tree._above_by_level[level], message.add_(shift[level]))
        return odds

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        own = self._factors.off + self._upward
        value = softplus(own)
        if self._evidence is not None:
            value = torch.where(self._evidence == 0, value, own * (self._evidence > 0))
        return (self._factors.zero + value).sum(0)

    def _conditionals(self) -> tuple[Tensor, Tensor]:
        """Probabilities of a one given that the parent is 0 and 1, (d, n) each."""
        factors, odds = self._factors, self._upward
        if self._evidence is not None:
            odds = odds + self._evidence
        return (factors.off + odds).sigmoid_(), (factors.on + odds).sigmoid_()

    def sample(self, generator: torch.Generator) -> Tensor:
        off, on = self._conditionals()
        u = torch.rand(off.shape, generator=generator, dtype=off.dtype, device=off.device)
        x = self.tree._descend(u < off, u < on)
        return x.to(self.field.dtype, memory_format=torch.contiguous_format)

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        tree = self.tree
        off, on = self._conditionals()
        p, bounds = off.clone(), tree._bounds
        for start, stop in zip(bounds[1:-1], bounds[2:], strict=True):
            above = p.index_select(0, tree._above[start:stop])
            p[start:stop] = torch.lerp(off[start:stop], on[start:stop], above)
        return p.index_select(0, tree._place).t().contiguous()


def _information(p11: Tensor, p10: Tensor, p01: Tensor, p00: Tensor, mean: Tensor) -> np.ndarray:
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


def _levels(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns by distance from the root, and the distances; refuses what is no tree."""
    d = len(parent)
    if (parent == -1).sum() != 1 or (parent < -1).any() or (parent >= d).any():
        raise ValueError("parent must name a column for each but one, the root, which has -1.")
    level, at = np.zeros(d, dtype=np.int64), parent.copy()
    for _ in range(d):
        above = at >= 0
        if not above.any():
            return np.argsort(level, kind="stable"), level
        level[above] += 1
        at = np.where(above, parent[at], -1)
    raise ValueError("parent has a cycle: it must describe one tree.")
