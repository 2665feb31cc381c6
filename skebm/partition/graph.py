r"""Pairwise binary models as graphs: what variational methods and MAP solvers read of an energy."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from skebm.base import Energy, LogPartition, PairwiseEnergy, PartitionEstimator
from skebm.energies import BernoulliRBM, Corrected, Tilted
from skebm.noise import ChowLiuTree, Noise

FRUSTRATED = (
    "couplings are frustrated: no relabelling of zeros and ones makes all of them attractive"
)


@dataclass(frozen=True, eq=False)
class PairwiseGraph:
    r"""A distribution of binary units, with their couplings as the edges of a graph.

    .. math:: \log \tilde p(x) = c + \sum_i \theta_i x_i + \sum_{(i, j)} J_{ij} x_i x_j

    Parameters
    ----------
    offset : float
        c, the log-weight of the row of zeros.
    fields : ndarray of shape (n,)
        :math:`\theta`.
    edges : ndarray of int of shape (2, m)
        Pairs i < j, each at most once.
    couplings : ndarray of shape (m,)
        J of each edge, none of them zero.
    """

    offset: float
    fields: np.ndarray
    edges: np.ndarray
    couplings: np.ndarray

    @property
    def n_nodes(self) -> int:
        """Number of units."""
        return len(self.fields)

    @property
    def n_edges(self) -> int:
        """Number of pairs that are coupled."""
        return len(self.couplings)

    @functools.cached_property
    def components(self) -> np.ndarray:
        """Number of the connected component of each unit, (n,)."""
        return connected_components(adjacency(self.n_nodes, self.edges), directed=False)[1]

    @property
    def n_components(self) -> int:
        """Number of connected components."""
        return int(self.components.max()) + 1

    @property
    def is_forest(self) -> bool:
        """Whether there are no loops: sums over the states are then exact by message passing."""
        return self.n_edges == self.n_nodes - self.n_components

    @functools.cached_property
    def signs(self) -> np.ndarray | None:
        """Units (n,) of bool to flip so that all couplings are positive; None if there are none.

        The graph of two copies of each unit, the second one flipped, falls in two just where the
        signs are balanced (Harary, 1953, Michigan Mathematical Journal 2).
        """
        n, (i, j) = self.n_nodes, self.edges
        crossed = np.where(self.couplings < 0, n, 0)
        lifted = np.stack([np.r_[i, i + n], np.r_[j + crossed, j + n - crossed]])
        label = connected_components(adjacency(2 * n, lifted), directed=False)[1]
        if (label[:n] == label[n:]).any():
            return None
        return label[:n] > label[n:]

    @property
    def scale(self) -> float:
        """Size of the terms that log Z is summed from, for the allowance for rounding."""
        return (
            1 + abs(self.offset) + float(np.abs(self.fields).sum() + np.abs(self.couplings).sum())
        )

    def sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Sums over each unit's edges, (n,), of what these hold for their two ends, (m,) each."""
        (i, j), n = self.edges, self.n_nodes
        return np.bincount(i, first, n) + np.bincount(j, second, n)

    def log_weight(self, x: np.ndarray) -> np.ndarray:
        """Unnormalised log-probability of rows (r, n) of zeros and ones, (r,)."""
        i, j = self.edges
        pairs = sp.csr_array((self.couplings, (i, j)), shape=(self.n_nodes, self.n_nodes))
        return self.offset + x @ self.fields + ((x @ pairs) * x).sum(1)

    def flipped(self, units: np.ndarray) -> PairwiseGraph:
        """The same distribution with x_i renamed 1 - x_i where `units` (n,) is true."""
        s, (i, j), J = units.astype(float), self.edges, self.couplings
        turn = 1 - 2 * s
        fields = turn * (self.fields + self.sums(J * s[j], J * s[i]))
        offset = self.offset + float(self.fields @ s + (J * s[i]) @ s[j])
        return PairwiseGraph(offset, fields, self.edges, J * turn[i] * turn[j])


def adjacency(n: int, edges: np.ndarray) -> sp.csr_array:
    """Sparse matrix (n, n) with a one for each edge, in one direction."""
    return sp.csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n))


def exactly(value: float) -> LogPartition:
    """The result of a method that happens to be exact on its graph."""
    return LogPartition(value, 0.0, value, value, "exact", math.inf)


# ------------------------------------------------------------------------------
# From energies
# ------------------------------------------------------------------------------


class PairwiseMethod(PartitionEstimator):
    """A way to log Z that takes pairwise models of binary units alone."""

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy that is no pairwise one of binary units."""
        super().check(energy)
        check_pairwise(self, energy)


def check_pairwise(method: Any, energy: Energy) -> None:
    """Raise `TypeError` for an energy that is no pairwise one of binary units."""
    name = type(method).__name__
    if isinstance(energy, Tilted):
        if energy.field.ndim != 1:
            raise ValueError(
                f"{name} takes one model at a time, but the field holds one for each row: tilt the "
                "energy by a field of shape (d,)."
            )
        return check_pairwise(method, energy.energy)
    if isinstance(energy, Corrected):
        return check_pairwise(method, energy.energy)
    if isinstance(energy, BernoulliRBM):
        if not isinstance(energy.structure, ChowLiuTree | None):
            raise TypeError(
                f"{name} takes machines whose base couples pairs of columns, independent ones or "
                f"a ChowLiuTree, not a {type(energy.structure).__name__}: use AIS."
            )
    elif not isinstance(energy, PairwiseEnergy):
        raise TypeError(
            f"{name} takes pairwise energies of binary units, BoltzmannMachine and BernoulliRBM, "
            f"not {type(energy).__name__}. Use AIS for other bipartite energies, and Exact where "
            "the states can be enumerated."
        )


def pairwise_graph(energy: Energy) -> PairwiseGraph:
    """The graph of a pairwise energy; of the joint of both layers where it is bipartite.

    Hidden units follow the visible ones. log Z is that of the energy.
    """
    with torch.no_grad(), np.errstate(invalid="ignore"):
        graph = _graph(energy)
    parts = (graph.offset, graph.fields, graph.couplings)
    if not all(np.isfinite(part).all() for part in parts):
        raise FloatingPointError(
            "The energy has parameters that are not finite, so it has no log Z: train again with a "
            "smaller learning rate."
        )
    return graph


def _graph(energy: Any) -> PairwiseGraph:
    if isinstance(energy, Tilted):
        graph = _scaled(_graph(energy.energy), energy.beta)
        fields = graph.fields.copy()
        fields[: len(energy.field)] += _array(energy.field)
        return replace(graph, fields=fields)
    if isinstance(energy, Corrected):
        model = energy.energy
        return _with_base(_scaled(_machine(model), energy.beta), model.structure)
    if isinstance(energy, BernoulliRBM):
        return _with_base(_machine(energy), energy.structure)
    coupling, bias = _array(energy.coupling), _array(energy.bias)
    edges = np.stack(np.triu(coupling, 1).nonzero())  # NaN is not zero
    offset = -float(energy(torch.zeros_like(energy.bias)[None]))
    return PairwiseGraph(offset, bias, edges, coupling[edges[0], edges[1]])


def _machine(energy: BernoulliRBM) -> PairwiseGraph:
    """Both layers of a machine, without its base."""
    weight, b, c = (_array(parameter) for parameter in energy.tensors)
    hidden, visible = weight.nonzero()
    edges = np.stack([visible, hidden + len(b)])
    return PairwiseGraph(0.0, np.r_[b, c], edges, weight[hidden, visible])


def _with_base(graph: PairwiseGraph, base: Noise | None) -> PairwiseGraph:
    """Add log q(x) of a tree over the first units, whose pairs the graph does not couple yet."""
    if base is None:
        return graph
    assert isinstance(base, ChowLiuTree)  # check_pairwise has looked
    off, on = _array(base.logits).T
    parent = base.parent.cpu().numpy()
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    fields = graph.fields.copy()
    fields[: len(off)] += off
    change = np.logaddexp(0, off) - np.logaddexp(0, on)
    np.add.at(fields, above, change[child])
    coupling = (on - off)[child]
    edges = np.stack([np.minimum(child, above), np.maximum(child, above)])[:, coupling != 0]
    return PairwiseGraph(
        graph.offset - float(np.logaddexp(0, off).sum()),
        fields,
        np.concatenate([graph.edges, edges], 1),
        np.r_[graph.couplings, coupling[coupling != 0]],
    )


def _scaled(graph: PairwiseGraph, beta: float) -> PairwiseGraph:
    """The distribution at an inverse temperature."""
    if beta == 0:
        none = np.zeros((2, 0), dtype=np.int64)
        return PairwiseGraph(0.0, np.zeros(graph.n_nodes), none, np.zeros(0))
    return PairwiseGraph(
        beta * graph.offset, beta * graph.fields, graph.edges, beta * graph.couplings
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
