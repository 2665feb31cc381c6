"""Perturb-and-MAP: most probable states under random fields, as approximate samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor

from skebm._validation import StrOptions
from skebm.base import Binary, ChainState, Clamp, Energy, PairwiseEnergy, Sampler, StepInfo
from skebm.base.graph import PairwiseGraph, graph_of

# SciPy's flows have 32 bits, and a residual capacity is the sum of two flows.
MAX_FLOW = 2**30 - 1
CHUNK = 4_000_000  # states times rows held in memory at a time: 32 MB


class MinCut:
    r"""Maxima of :math:`h^\top x - \sum_{(i, j)} w_{ij} |x_i - x_j|` for one w >= 0 and many h.

    They are found by a minimum cut between a source, on the side of the units that are one, and a
    sink (Greig, Porteous and Seheult, 1989, JRSS B 51). Capacities are rounded down to integers, so
    that the value of a cut is never too large. The maximum is a constant minus this value: it is
    never too small, and too large by at most the resolution times the number of units and edges.

    Parameters
    ----------
    n : int
        Number of units.
    edges : ndarray of shape (2, m)
    weights : ndarray of shape (m,)
        w, at least zero.
    """

    def __init__(self, n: int, edges: np.ndarray, weights: np.ndarray):
        self.n, self.weights = n, weights
        (i, j), units = edges, np.arange(n)
        source, sink = np.full(n, n), np.full(n, n + 1)
        # Both directions of every edge, as SciPy would add missing ones at every call.
        row = np.concatenate([i, j, source, units, units, sink])
        column = np.concatenate([j, i, units, source, sink, units])
        self.shape = (n + 2, n + 2)
        self.order = np.lexsort((column, row))
        self.indices = column[self.order].astype(np.int32)
        self.indptr = np.searchsorted(row[self.order], np.arange(n + 3)).astype(np.int32)

    def maximise(self, fields: np.ndarray) -> tuple[float, np.ndarray]:
        """The maximum for h = `fields` (n,), and where its maximiser is one, (n,) of bool."""
        positive, negative = np.maximum(fields, 0), np.maximum(-fields, 0)
        # An upper bound on the flow, so capacities need not be larger.
        largest = min(positive.sum(), negative.sum())
        if largest == 0:  # all units alike: no edge is cut, also at fields of zero
            return float(positive.sum()), np.full(self.n, bool(positive.any()))
        resolution = largest / MAX_FLOW

        def round_down(capacity: np.ndarray) -> np.ndarray:
            return np.floor(np.minimum(capacity, largest) / resolution).astype(np.int32)

        w, zeros = round_down(self.weights), np.zeros(self.n, dtype=np.int32)
        source, sink = round_down(positive), round_down(negative)
        capacity = np.concatenate([w, w, source, zeros, sink, zeros])[self.order]
        network = sp.csr_array((capacity, self.indices, self.indptr), shape=self.shape)
        result = maximum_flow(network, self.n, self.n + 1)
        residual = network - result.flow
        residual.eliminate_zeros()
        reachable = breadth_first_order(residual, self.n, return_predecessors=False)
        is_one = np.zeros(self.n + 2, dtype=bool)
        is_one[reachable] = True
        return float(positive.sum()) - result.flow_value * resolution, is_one[: self.n]


# ------------------------------------------------------------------------------
# Maxima over the states of a graph's log-weight plus fields (r, n)
# ------------------------------------------------------------------------------


class Maxima(NamedTuple):
    """Largest log-weights (r,) under each of r fields, and states (r, n) that attain them.

    A relaxation has values at or above the exact ones, and states that may be below.
    """

    values: np.ndarray
    states: np.ndarray


def by_enumeration(graph: PairwiseGraph, fields: np.ndarray) -> Maxima:
    """Exact maxima by enumeration of all states."""
    n, maxima = graph.n_nodes, np.full(len(fields), -np.inf)
    states = np.zeros((len(fields), n), dtype=bool)
    chunk = max(1, CHUNK // max(len(fields), n))
    for start in range(0, 2**n, chunk):
        number = np.arange(start, min(start + chunk, 2**n))
        x = ((number[:, None] >> np.arange(n)) & 1).astype(float)
        score = x @ fields.T
        score += graph.log_weight(x)[:, None]
        best = score.argmax(0)
        better = score[best, np.arange(len(fields))] > maxima
        states[better] = x[best[better]] > 0
        np.maximum(maxima, score.max(0), out=maxima)
    return Maxima(maxima, states)


def by_min_cut(graph: PairwiseGraph, fields: np.ndarray) -> Maxima:
    """Exact maxima, rounded upwards, of a graph without frustration."""
    flips = graph.flips
    assert flips is not None
    attractive = graph.with_flips(flips)
    J = attractive.couplings
    # J x_i x_j = J (x_i + x_j - |x_i - x_j|) / 2
    cut = MinCut(graph.n_nodes, graph.edges, J / 2)
    linear = attractive.fields + attractive.node_sums(J, J) / 2
    cuts = [cut.maximise(linear + row) for row in fields * np.where(flips, -1, 1)]
    values = attractive.offset + (fields * flips).sum(1) + [value for value, _ in cuts]
    return Maxima(values, np.stack([state for _, state in cuts]) ^ flips)


def by_relaxation(graph: PairwiseGraph, fields: np.ndarray) -> Maxima:
    r"""Maxima of the linear relaxation, at or above the exact ones, and good states.

    The relaxation is the linear program :math:`\max \theta^\top q + \sum J \xi` over locally
    consistent probabilities of units and pairs. By roof duality its value is the maximum over an
    attractive graph of twice as many units, x and y, with y in the place of 1 - x and half of each
    term. Units in which x = 1 - y have this state in a maximiser of the original problem as well
    (persistency: Hammer, Hansen and Simeone, 1984, Mathematical Programming 28); the others are set
    by coordinate ascent.
    """
    (i, j), n, half = graph.edges, graph.n_nodes, graph.couplings / 2
    attractive = half > 0
    positive, negative = np.where(attractive, half, 0), np.where(attractive, 0, half)
    # x_i x_j as (x_i x_j + (1 - y_i)(1 - y_j)) / 2, or as (x_i (1 - y_j) + (1 - y_i) x_j) / 2
    to_x, to_y = graph.node_sums(negative, negative), graph.node_sums(positive, positive)
    cross = np.where(attractive, 0, n)
    edges = np.stack([np.r_[i, i + n], np.r_[j + cross, j + n - cross]])
    doubled = PairwiseGraph(
        graph.offset + float(graph.fields.sum() / 2 + positive.sum()),
        np.r_[graph.fields / 2 + to_x, -graph.fields / 2 - to_y],
        np.sort(edges, 0),
        np.abs(np.r_[half, half]),
    )
    relaxed = by_min_cut(doubled, np.concatenate([fields, -fields], 1) / 2)
    x, y = relaxed.states[:, :n], relaxed.states[:, n:]
    start = np.where(x != y, x, fields + graph.fields > 0)
    states = _coordinate_ascent(graph, fields, start, free=x == y)
    return Maxima(fields.sum(1) / 2 + relaxed.values, states)


def _coordinate_ascent(
    graph: PairwiseGraph, fields: np.ndarray, start: np.ndarray, free: np.ndarray
) -> np.ndarray:
    """States (r, n) after coordinate ascent of the free units, at most 100 sweeps."""
    (i, j), n, J = graph.edges, graph.n_nodes, graph.couplings
    pairs = sp.csr_array((np.r_[J, J], (np.r_[i, j], np.r_[j, i])), shape=(n, n))
    x, linear = start.astype(float), graph.fields + fields
    for _ in range(100):
        before = x.copy()
        for unit in np.flatnonzero(free.any(0)):
            local = linear[:, unit] + x @ pairs[[unit]].toarray()[0]
            x[:, unit] = np.where(free[:, unit], local > 0, x[:, unit])
        if np.array_equal(before, x):
            break
    return x > 0


# States times perturbations up to which enumeration takes seconds.
MAX_TERMS = 2.0**27
SOLVERS = {
    "enumeration": by_enumeration,
    "min-cut": by_min_cut,
    "relaxation": by_relaxation,
}


def choose_solver(
    asked: str, graph: PairwiseGraph, n_samples: int, few_terms: float = MAX_TERMS
) -> str:
    """The solver to use; `ValueError` if the requested one does not apply.

    ``"auto"`` enumerates if the number of states times that of samples is at most `few_terms`.
    """
    terms = 2.0 ** min(graph.n_nodes, 1000) * n_samples
    if asked == "auto":
        if terms <= few_terms:
            return "enumeration"
        return "relaxation" if graph.flips is None else "min-cut"
    if asked not in SOLVERS:
        raise ValueError(f'solver must be "auto" or one of {list(SOLVERS)}, not {asked!r}.')
    if asked == "enumeration" and terms > MAX_TERMS:
        raise ValueError(
            f"Enumeration would sum {terms:.2g} terms, {n_samples} times all states of "
            f'{graph.n_nodes} units, more than {MAX_TERMS:.2g}: use solver="auto".'
        )
    if asked == "min-cut" and graph.flips is None:
        raise ValueError(
            "min-cut needs couplings that are all positive, possibly after some units are "
            'flipped to 1 - x, and these are frustrated: use solver="relaxation".'
        )
    return asked


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> np.ndarray:
    """Gumbel variables of mean zero, in float64."""
    u = torch.empty(shape, dtype=torch.float64, device=generator.device)
    # Minus the logarithm of an exponential variable, which is kept from zero.
    u.exponential_(generator=generator).clamp_(min=torch.finfo(torch.float64).tiny)
    return -np.log(u.cpu().numpy()) - np.euler_gamma


# States times chains up to which enumeration is faster than a minimum cut for each chain.
FEW_TERMS = 2.0**23


class PerturbedMAP(Sampler):
    r"""Perturb-and-MAP: the most probable state under random fields; no Markov chain, and biased.

    .. math:: x^* = \arg\min_x \Bigl\{ \beta E(x) - \sum_i \gamma_i(x_i) \Bigr\}

    with independent Gumbel variables :math:`\gamma`, one for each unit and state. Draws are
    independent of each other and of where chains start. They are exact for independent units; with
    couplings they have another distribution, which is near the model if the couplings are weak. As
    the sampler of :class:`skebm.objectives.ContrastiveDivergence` it gives perturb-and-MAP
    learning: the gradient is :math:`\mathbb E_{data} \nabla E(x) - \mathbb E \nabla E(x^*)`, so
    that at its fixed point :math:`x^*` has the moments of the data. Strong couplings, under which
    chains do not mix, are no obstacle.

    Parameters
    ----------
    solver : {"auto", "enumeration", "min-cut", "relaxation"}, default="auto"
        How :math:`x^*` is found: ``"enumeration"`` over all states; ``"min-cut"``, exact for
        couplings that are positive, possibly after some units are flipped; ``"relaxation"``, for
        all others, by roof duality and coordinate ascent, which may miss the maximum. ``"auto"``
        is the first that applies, and enumerates where that is quick.

    See Also
    --------
    skebm.partition.PerturbAndMAP : An upper bound on log Z from the same maxima.

    References
    ----------
    Papandreou and Yuille (2011), "Perturb-and-MAP random fields: using discrete optimization to
    learn and sample from energy models", ICCV.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import ising_grid
    >>> from skebm.samplers import PerturbedMAP
    >>> generator = torch.Generator().manual_seed(0)
    >>> state, _ = PerturbedMAP().run(ising_grid(6, 6, 0.3), torch.zeros(4, 36), 1, generator)
    >>> tuple(state.x.shape)
    (4, 36)
    """

    domains = (Binary,)
    _parameter_constraints = {"solver": [StrOptions({"auto", *SOLVERS})]}

    def __init__(self, solver: str = "auto"):
        self.solver = solver

    @property
    def exact(self) -> bool:
        """False: with couplings, the draws have another distribution."""
        return False

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` for an energy that is not pairwise."""
        super().check(energy)
        if not isinstance(energy, PairwiseEnergy):
            raise TypeError(
                f"PerturbedMAP maximises pairwise energies, and {type(energy).__name__} is none."
            )

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """State of chains at the rows of x, (n, d)."""
        return ChainState(x)

    def refresh(self, energy: Energy, state: ChainState) -> ChainState:
        """The same chains: their state holds no energies or gradients."""
        return state

    def step(
        self,
        energy: Any,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """A new draw in every chain, given the clamped units."""
        x, graph = state.x, graph_at_temperature(graph_of(energy), beta)
        if not len(x):
            return state, StepInfo(1.0)
        zero, one = gumbel((2, *x.shape), generator)
        fields = one - zero
        if clamp is not None:
            fields = _clamp_fields(graph, fields, clamp)
        solve = SOLVERS[choose_solver(self.solver, graph, len(x), FEW_TERMS)]
        states = torch.as_tensor(solve(graph, fields).states, dtype=x.dtype, device=x.device)
        if clamp is not None:
            states = clamp.apply(states)
        return ChainState(states), StepInfo(1.0)


def graph_at_temperature(graph: PairwiseGraph, beta: float) -> PairwiseGraph:
    """The graph at an inverse temperature; without couplings at 0."""
    edges, couplings = graph.edges, beta * graph.couplings
    if beta == 0:
        edges, couplings = edges[:, :0], couplings[:0]
    return PairwiseGraph(beta * graph.offset, beta * graph.fields, edges, couplings)


def _clamp_fields(graph: PairwiseGraph, fields: np.ndarray, clamp: Clamp) -> np.ndarray:
    """Fields so large at clamped units that no maximiser changes them."""
    size = graph.scale + np.abs(fields).max(1, keepdims=True)
    sign = np.where(clamp.value.cpu().numpy() > 0.5, 1.0, -1.0)
    return np.where(clamp.mask.cpu().numpy(), sign * size, fields)
