"""Pairwise binary models as graphs of units and couplings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True, eq=False)
class PairwiseGraph:
    r"""An unnormalised distribution of binary units, with couplings on the edges of a graph.

    .. math:: \log \tilde p(x) = c + \sum_i \theta_i x_i + \sum_{(i, j)} J_{ij} x_i x_j

    Parameters
    ----------
    offset : float
        c, the log-weight of the state of zeros.
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
        """Number of coupled pairs."""
        return len(self.couplings)

    @functools.cached_property
    def components(self) -> np.ndarray:
        """Index of the connected component of each unit, (n,)."""
        return connected_components(adjacency(self.n_nodes, self.edges), directed=False)[1]

    @property
    def n_components(self) -> int:
        """Number of connected components."""
        return int(self.components.max()) + 1

    @property
    def is_forest(self) -> bool:
        """Whether there are no loops, so that message passing computes log Z exactly."""
        return self.n_edges == self.n_nodes - self.n_components

    @functools.cached_property
    def flips(self) -> np.ndarray | None:
        """Units (n,) of bool to flip, x -> 1 - x, so that all couplings are positive; or None.

        Such units exist if and only if the signs of the couplings are balanced, that is, if no unit
        is connected with its own copy in the graph that has two copies of each unit, the second one
        flipped (Harary, 1953, Michigan Mathematical Journal 2).
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
        """Sum of the absolute parameters, to which rounding errors of log Z are proportional."""
        return (
            1 + abs(self.offset) + float(np.abs(self.fields).sum() + np.abs(self.couplings).sum())
        )

    def node_sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Sums (n,) over the edges of each unit, of values (m,) at the first and the second end."""
        (i, j), n = self.edges, self.n_nodes
        return np.bincount(i, first, n) + np.bincount(j, second, n)

    def log_weight(self, x: np.ndarray) -> np.ndarray:
        """Unnormalised log-probability (r,) of states (r, n) of zeros and ones."""
        i, j = self.edges
        pairs = sp.csr_array((self.couplings, (i, j)), shape=(self.n_nodes, self.n_nodes))
        return self.offset + x @ self.fields + ((x @ pairs) * x).sum(1)

    def with_flips(self, units: np.ndarray) -> PairwiseGraph:
        """The same distribution with x_i replaced by 1 - x_i where `units` (n,) is true."""
        s, (i, j), J = units.astype(float), self.edges, self.couplings
        sign = 1 - 2 * s
        fields = sign * (self.fields + self.node_sums(J * s[j], J * s[i]))
        offset = self.offset + float(self.fields @ s + (J * s[i]) @ s[j])
        return PairwiseGraph(offset, fields, self.edges, J * sign[i] * sign[j])


def adjacency(n: int, edges: np.ndarray) -> sp.csr_array:
    """Sparse matrix (n, n) with a one for each edge (2, m), in one direction.

    Its indices have 32 bits, because the graph routines of SciPy 1.11 silently ignore others.
    """
    i, j = edges.astype(np.int32)
    return sp.csr_array((np.ones(len(i)), (i, j)), shape=(n, n))


def graph_of(energy: Any) -> PairwiseGraph:
    """The graph of a pairwise energy of bits; its values are not checked."""
    coupling = energy.coupling.detach().cpu().double().numpy()
    bias = energy.bias.detach()
    edges = np.stack(np.triu(coupling, 1).nonzero())  # nan counts as nonzero
    offset = -float(energy(bias.new_zeros(1, len(bias))).detach())
    fields = bias.cpu().double().numpy()
    return PairwiseGraph(offset, fields, edges, coupling[edges[0], edges[1]])
