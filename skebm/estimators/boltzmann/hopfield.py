"""Associative memories: Hopfield networks that store rows and recall them from corrupted ones."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import gen_batches

from skebm._validation import (
    Interval,
    StrOptions,
    check_is_fitted,
    draw_seed,
    fit_context,
    validate_data,
    warn,
)
from skebm.base import DataWarning, SamplingWarning
from skebm.base.processes import TasksMixin
from skebm.energies import BoltzmannMachine
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import atomic, non_default_parameters, warn_without_effect
from skebm.estimators.tables.frames import frame_like
from skebm.training.streams import SourceMixin

# Columns whose fields are computed by one product; within them, they follow the flips.
BLOCK = 64
# Most entries of a table of rows by patterns.
MOST_ENTRIES = 2**22
# Below these, relative to their scale, fields are ties, and moves and gaps of real rows are none.
TIE, STILL, RESOLVED = 1e-10, 1e-6, 1e-12
# Real numbers whose squares neither overflow nor underflow.
LEAST, LARGEST = 1e-100, 1e100
# Most patterns that are checked for being kept, and least overlap after a step of one that is.
MOST_CHECKED, KEPT = 2000, 0.95
# Weight of a real pattern in its own update under beta="auto".
OWN_WEIGHT = 0.99


# ------------------------------------------------------------------------------
# Couplings of spins
# ------------------------------------------------------------------------------


def hebb(spins: np.ndarray) -> np.ndarray:
    """Couplings (d, d) by the rule of Hebb: sums of products over d."""
    coupling: np.ndarray = spins.T @ spins / spins.shape[1]
    return coupling


def pseudoinverse(spins: np.ndarray) -> np.ndarray:
    """The projection onto the span of the patterns.

    From the eigenvectors of the smaller Gram matrix, whose entries are whole numbers, so that
    dependent patterns have eigenvalues of the size of the rounding.
    """
    n, d = spins.shape
    wide = n < d
    values, vectors = scipy.linalg.eigh(spins @ spins.T if wide else spins.T @ spins)
    kept = values > max(n, d) * np.finfo(float).eps * values[-1]
    basis = vectors[:, kept].T
    if wide:
        basis = (basis @ spins) / np.sqrt(values[kept])[:, None]
    coupling: np.ndarray = basis.T @ basis
    return coupling


def storkey(spins: np.ndarray) -> np.ndarray:
    """Couplings by the incremental rule of Storkey, patterns in their order.

    A pattern multiplies what there is by 1 + 2 / d and adds (a a' - b b') / d, where b are its
    fields and a = x - b. These factors are kept, and the matrix is made of them at the end.
    """
    n, d = spins.shape
    a, b = np.empty((n, d)), np.empty((n, d))
    growth, diagonal = 1 + 2 / d, np.zeros(d)
    scale = np.empty(n)
    with np.errstate(over="ignore", invalid="ignore"):
        for k, x in enumerate(spins):
            b[k] = (scale[:k] * (a[:k] @ x)) @ a[:k] - (scale[:k] * (b[:k] @ x)) @ b[:k]
            b[k] -= diagonal * x
            a[k] = x - b[k]
            scale[:k] *= growth
            scale[k] = 1 / d
            diagonal = growth * diagonal + (a[k] ** 2 - b[k] ** 2) / d
        coupling: np.ndarray = (a.T * scale) @ a - (b.T * scale) @ b
    if not np.isfinite(coupling).all():
        raise ValueError(
            f"The couplings of rule='storkey' overflow: they grow with each of the {n} patterns of "
            f"{d} columns. Store fewer, or use another rule."
        )
    return coupling


# Couplings by their names; a memory leaves out the diagonal.
RULES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hebb": hebb,
    "pseudoinverse": pseudoinverse,
    "storkey": storkey,
}


# ------------------------------------------------------------------------------
# Memories
# ------------------------------------------------------------------------------


class Memory(abc.ABC):
    """Patterns stored in an energy of rows (n, d), and the updates that lower it."""

    batch = MOST_ENTRIES  # rows at a time

    @abc.abstractmethod
    def energy(self, rows: np.ndarray) -> np.ndarray:
        """Energy of each row, (n,)."""

    @abc.abstractmethod
    def next_rows(self, rows: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        """New rows: all columns at once, or if there is an order, one after the other."""

    def has_changed(self, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        """Whether a row has changed, (n,)."""
        return (new != old).any(1)

    def is_stable(self, patterns: np.ndarray) -> np.ndarray:
        """Whether a step leaves a stored pattern nearly as it is, (n,)."""
        return (self.next_rows(patterns, None) * patterns).mean(1) >= KEPT


class QuadraticMemory(Memory):
    """Spins with E = -s'Js / 2; the diagonal of J is left out."""

    def __init__(self, coupling: np.ndarray):
        self.trace = float(np.trace(coupling))  # of a projection, the dimension of its image
        np.fill_diagonal(coupling, 0)
        self.coupling = coupling
        self.tie = TIE * max(1.0, np.abs(coupling).sum(1).max())

    def energy(self, rows: np.ndarray) -> np.ndarray:
        energies: np.ndarray = -((rows @ self.coupling) * rows).sum(1) / 2
        return energies

    def next_rows(self, rows: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        if order is None:
            return self._signs_of_fields(rows @ self.coupling, rows)
        s = rows.T.copy()  # a column of rows is contiguous
        for columns in np.array_split(order, -(-len(order) // BLOCK)):
            field = self.coupling[columns] @ s
            within = self.coupling[np.ix_(columns, columns)]
            for k, i in enumerate(columns):
                new = self._signs_of_fields(field[k], s[i])
                change = new - s[i]
                if change.any():
                    field[k + 1 :] += np.outer(within[k + 1 :, k], change)
                    s[i] = new
        return s.T

    def _signs_of_fields(self, field: np.ndarray, spins: np.ndarray) -> np.ndarray:
        """The signs of fields; at a tie, a spin stays as it is."""
        return np.where(np.abs(field) <= self.tie, spins, np.sign(field))


class ExponentialMemory(Memory):
    """Spins with E = -log sum over patterns of exp(beta s'pattern).

    Equal patterns are stored once, with their number.
    """

    def __init__(self, patterns: np.ndarray, beta: float):
        self.patterns, counts = np.unique(patterns, axis=0, return_counts=True)
        self.columns = np.ascontiguousarray(self.patterns.T)
        self.log_counts = np.log(counts)[:, None]
        self.beta = beta
        # Flips depend on the sign of a polynomial in exp(-2 beta) whose coefficients are whole
        # numbers of at most n: from exp(2 beta) = 4 n on it is that of the first one.
        self.decisive = min(beta, np.log(4 * len(patterns)) / 2)
        self.batch = max(1, MOST_ENTRIES // max(self.patterns.shape))

    def energy(self, rows: np.ndarray) -> np.ndarray:
        energies: np.ndarray = -logsumexp(
            self.beta * (self.patterns @ rows.T) + self.log_counts, axis=0
        )
        return energies

    def next_rows(self, rows: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        s = rows.T.copy()
        exponent = self.decisive * (self.patterns @ s) + self.log_counts
        weight, total = _weights(exponent)
        if order is None:
            return np.where(self._flips(s, self.columns @ weight, total), -s, s).T
        for i in order:
            flips = np.flatnonzero(self._flips(s[i], self.columns[i] @ weight, total))
            if len(flips):
                s[i, flips] *= -1
                step = np.outer(self.columns[i], 2 * self.decisive * s[i, flips])
                exponent[:, flips] += step
                weight[:, flips], total[flips] = _weights(exponent[:, flips])
        return s.T

    def _flips(self, spins: np.ndarray, projection: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Whether to flip a spin, by the weights of the patterns that agree with it or do not."""
        agree = (total + spins * projection) / 2
        factor = np.exp(-2 * self.decisive) * (1 + TIE)
        flips: np.ndarray = total - agree > factor * agree + TIE * factor * total
        return flips


class RealMemory(Memory):
    """Real rows z with E = -log sum over patterns of exp(beta (z'pattern - c)) + beta z'z / 2.

    For distances, c is half the squared norm of the pattern, so that E is minus the logarithm of a
    sum of normal kernels; the mean pattern is subtracted from rows and patterns, which changes
    nothing but the rounding. For products, c is zero.
    """

    def __init__(self, patterns: np.ndarray, beta: float | None, similarity: str):
        self.similarity = similarity
        unique, counts = np.unique(patterns, axis=0, return_counts=True)
        self.centre = unique.mean(0) if similarity == "euclidean" else np.zeros(unique.shape[1])
        self.patterns = unique - self.centre
        self.n_patterns = len(patterns)
        half = (self.patterns**2).sum(1) / 2
        self.offset = half if similarity == "euclidean" else np.zeros(len(unique))
        self.log_counts = np.log(counts)
        self.scale = np.abs(self.patterns).max()
        self.batch = max(1, MOST_ENTRIES // max(unique.shape))
        self.beta = self._separating(half.max()) if beta is None else beta

    def _separating(self, scale: float) -> float:
        """The least beta by which every pattern that can be stored keeps its weight."""
        if len(self.patterns) == 1:  # any beta does: the unit of the patterns
            return 1.0 / scale if scale else 1.0
        gaps = self._gaps(RESOLVED * scale)
        gaps = gaps[(gaps > 0) & (gaps < np.inf)]
        if not len(gaps):
            raise ValueError(
                f'similarity="{self.similarity}" separates no pattern from all others: normalise '
                'or centre the rows, use similarity="euclidean", or pass beta.'
            )
        odds = OWN_WEIGHT / (1 - OWN_WEIGHT)
        return float(np.log(odds * (self.n_patterns - 1)) / gaps.min())

    def _gaps(self, least: float) -> np.ndarray:
        """By how much a pattern is closer to itself than to any other; of some, if many.

        Others within a gap of `least` are the same but for rounding; infinite if there is none.
        """
        found = []
        chosen = _some(len(self.patterns))
        for batch in gen_batches(len(chosen), self.batch):
            own = chosen[batch]
            affinity = self._affinity(self.patterns[own])
            gap = affinity[np.arange(len(own)), own, None] - affinity
            found.append(np.where(np.abs(gap) > least, gap, np.inf).min(1))
        return np.concatenate(found)

    def _affinity(self, z: np.ndarray) -> np.ndarray:
        return z @ self.patterns.T - self.offset

    def energy(self, rows: np.ndarray) -> np.ndarray:
        z = rows - self.centre
        affinity = self._affinity(z)
        largest = affinity.max(1)
        # Both terms may be large; their difference is beta times half a squared distance.
        nearest = self.beta * ((z**2).sum(1) / 2 - largest)
        affinity -= largest[:, None]
        energies: np.ndarray = nearest - logsumexp(self.beta * affinity + self.log_counts, axis=1)
        return energies

    def next_rows(self, rows: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        return self.centre + self._weights(rows) @ self.patterns

    def _weights(self, rows: np.ndarray) -> np.ndarray:
        affinity = self._affinity(rows - self.centre)
        affinity -= affinity.max(1, keepdims=True)  # so that no beta is too large for the counts
        weights: np.ndarray = softmax(self.beta * affinity + self.log_counts, axis=1)
        return weights

    def has_changed(self, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return np.abs(new - old).max(1) > STILL * self.scale

    def is_stable(self, patterns: np.ndarray) -> np.ndarray:
        """Whether half of the weight of its update is a stored pattern's own, (n,)."""
        weights = self._weights(patterns)
        own = self.patterns[weights.argmax(1)] == patterns - self.centre
        return own.all(1) & (weights.max(1) >= 0.5)


def _weights(exponent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exponentials of each column relative to its largest entry, and their sums."""
    weight = np.exp(exponent - exponent.max(0))
    return weight, weight.sum(0)


def _some(n: int) -> np.ndarray:
    """All of n, or random ones if there are many."""
    return np.sort(np.random.RandomState(0).permutation(n)[:MOST_CHECKED])


# ------------------------------------------------------------------------------
# Recall
# ------------------------------------------------------------------------------


class Recall(NamedTuple):
    """What a memory recalls from rows, as returned by :meth:`HopfieldMemory.recall`.

    Attributes
    ----------
    rows : ndarray of shape (n_samples, n_features)
        The last state of each row, in the coding of the patterns.
    n_steps : ndarray of int of shape (n_samples,)
        Number of steps (asynchronous: sweeps over the columns) that changed the row; for a row in a
        cycle, number of steps until the cycle was found.
    converged : ndarray of bool of shape (n_samples,)
        Whether the row is a fixed point.
    cycle_length : ndarray of int of shape (n_samples,)
        1 for a fixed point, 2 for a row that alternates between two states, and so on; 0 if
        `max_steps` ended the recall before this was known.
    """

    rows: np.ndarray
    n_steps: np.ndarray
    converged: np.ndarray
    cycle_length: np.ndarray


def iterate(
    memory: Memory, rows: np.ndarray, orders: Iterator[np.ndarray | None], max_steps: int
) -> Recall:
    """Update rows until they stay or repeat, which is found as by Brent (1980).

    A state is compared with the one before and with the one at the last power of two.
    """
    rows = rows.copy()
    n_steps, cycle = np.zeros(len(rows), dtype=int), np.zeros(len(rows), dtype=int)
    active, past, past_step = np.arange(len(rows)), rows.copy(), 0
    for step in range(1, max_steps + 1):
        new = memory.next_rows(rows[active], next(orders))
        moved = memory.has_changed(new, rows[active])
        repeats = moved & ~memory.has_changed(new, past[active])
        rows[active] = new
        n_steps[active[moved]] = step
        cycle[active[~moved]] = 1
        cycle[active[repeats]] = step - past_step
        active = active[moved & ~repeats]
        if not len(active):
            break
        if step & (step - 1) == 0:
            past, past_step = rows.copy(), step
    return Recall(rows, n_steps, cycle == 1, cycle)


def similarities(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """2 a'b / (a'a + b'b) of rows side by side, 1 if equal: for spins, the overlap a'b / d."""
    return _ratio((rows * others).sum(1), (rows**2).sum(1) + (others**2).sum(1))


def largest_similarities(rows: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    """The similarity of each row to its most similar pattern."""
    squares = (patterns**2).sum(1)
    found = [
        _ratio(part @ patterns.T, (part**2).sum(1)[:, None] + squares).max(1)
        for part in (
            rows[batch] for batch in gen_batches(len(rows), max(1, MOST_ENTRIES // len(patterns)))
        )
    ]
    return np.concatenate(found)


def _ratio(product: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Similarity from products and sums of squares; two zero rows are equal."""
    return np.where(squares > 0, 2 * product / np.where(squares > 0, squares, 1), 1.0)


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


class HopfieldMemory(
    DocLinkMixin, SourceMixin, TasksMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator
):
    r"""Associative memory: a Hopfield network, which recalls stored rows from corrupted ones.

    `fit` stores the rows of X, the patterns :math:`\xi^\mu`, as low points of an energy;
    `transform` lowers the energy of other rows until nothing changes. For spins
    :math:`s \in \{-1, 1\}^d`, to which bits x are converted by s = 2x - 1, the quadratic rules have

    .. math:: E(s) = -\tfrac12 s^\top J s, \qquad J_{ii} = 0, \qquad
        s_i \leftarrow \operatorname{sign} \textstyle\sum_j J_{ij} s_j ,

    where J is given by

    - ``"hebb"``: :math:`J = \frac1d \sum_\mu \xi^\mu \xi^{\mu\top}` (Hopfield, 1982);
    - ``"pseudoinverse"``: the projection onto the span of the patterns (Personnaz et al., 1985),
      without its diagonal (Kanter and Sompolinsky, 1987). Patterns may be correlated, repeated and
      linearly dependent;
    - ``"storkey"``: one pattern after the other (Storkey, 1997),
      :math:`J_{ij} \leftarrow J_{ij} + \frac1d (\xi_i \xi_j - \xi_i h_{ji} - h_{ij} \xi_j)` with
      :math:`h_{ij} = \sum_{k \ne i, j} J_{ik} \xi_k`.

    For spins, the dense associative memory (Krotov and Hopfield, 2016) has the energy of Demircigil
    et al. (2017), and :math:`s_i` is set to the sign with the lower energy,

    .. math:: E(s) = -\log \sum_\mu \exp(\beta\, \xi^\mu \cdot s),

    and for real rows that of the modern Hopfield network (Ramsauer et al., 2021), which with
    ``similarity="dot"`` is

    .. math:: E(x) = -\log \sum_\mu \exp(\beta\, \xi^\mu \cdot x) + \tfrac\beta2 x \cdot x, \qquad
        x \leftarrow \sum_\mu \xi^\mu
        \frac{\exp(\beta\, \xi^\mu \cdot x)}{\sum_\nu \exp(\beta\, \xi^\nu \cdot x)} ,

    which prefers patterns of large norm. With ``"euclidean"``, the exponents are
    :math:`-\tfrac\beta2 \lVert x - \xi^\mu \rVert^2`, without a further term; the result is the
    same if all norms are equal.

    Parameters
    ----------
    rule : {"dense", "pseudoinverse", "storkey", "hebb"}, default="dense"
        How patterns are stored. The three others are for bits and spins.
    update : {"auto", "asynchronous", "synchronous"}, default="auto"
        ``"asynchronous"``: one column after the other, in a random order that is new in each sweep;
        this never raises the energy. ``"synchronous"``: all columns at once, which may end in a
        cycle (of length 2 with the quadratic rules). ``"auto"``: asynchronous for bits and spins.
        Real rows are always updated as a whole, which does not raise their energy.
    max_steps : int, default=100
        Maximum number of steps of a recall: sweeps over all columns, or updates of all at once.
    beta : float or "auto", default="auto"
        Inverse temperature :math:`\beta` of the dense rule. ``"auto"`` is 1 for bits and spins. For
        real rows it is a value with which each pattern (each of 2,000 random ones if there are
        more) has a weight of at least 0.99 in its own update; patterns that `similarity` does not
        separate from all others are disregarded.
    similarity : {"euclidean", "dot"}, default="euclidean"
        How the dense rule compares real rows: by distances or by products.
    random_state : int, RandomState instance or None, default=None
        Seed of the orders of asynchronous updates. It is drawn once, in `fit`, so that the same row
        is always recalled in the same way.

    Attributes
    ----------
    patterns_ : ndarray of shape (n_patterns, n_features)
        The stored rows.
    coding_ : {"bits", "spins", "real"}
        Values of the patterns: 0 and 1, -1 and 1, or other numbers. Rows of ones alone are bits.
    load_ : float
        Number of patterns divided by the number of columns.
    beta_ : float
        Inverse temperature of the dense rule; other rules have none.
    coupling_ : ndarray of shape (n_features, n_features)
        J of the spins; the dense rule has none.
    energy_ : BoltzmannMachine
        The same energy as an energy of skebm, for samplers and log Z; its rows are bits in float64.
        It is built at each access. The dense rule has none.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : Learns a distribution of rows instead of the rows themselves.
    skebm.energies.BoltzmannMachine : The energy of the quadratic rules.

    Notes
    -----
    Random patterns are recalled up to a load of 0.138 by Hebb's rule (Amit et al., 1985, 1987),
    :math:`1 / \sqrt{2 \log d}` by Storkey's, and 1 by the pseudo-inverse, whose basins of
    attraction shrink to nothing as the load increases to 1 (Kanter and Sompolinsky, 1987); the
    dense rule with :math:`\beta = 1` keeps a number of spin patterns that grows like
    :math:`2^{d/2}` (Demircigil et al., 2017). `fit` warns if the load is too large, and if patterns
    are not kept; the rules of Hebb and Storkey often do not keep correlated patterns.
    ``benchmarks/results/hopfield.md`` has measurements.

    A sweep takes time in proportion to :math:`d^2` for each row with quadratic rules, and to
    :math:`d` times the number of patterns with the dense one.

    References
    ----------
    Hopfield (1982), "Neural networks and physical systems with emergent collective computational
    abilities", PNAS 79. Amit, Gutfreund and Sompolinsky (1985), "Storing infinite numbers of
    patterns in a spin-glass model of neural networks", Physical Review Letters 55; (1987),
    "Statistical mechanics of neural networks near saturation", Annals of Physics 173. Personnaz,
    Guyon and Dreyfus (1985), "Information storage and retrieval in spin-glass like neural
    networks", Journal de Physique Lettres 46. Kanter and Sompolinsky (1987), "Associative recall of
    memory without errors", Physical Review A 35. Storkey (1997), "Increasing the capacity of a
    Hopfield network without sacrificing functionality", ICANN. Krotov and Hopfield (2016), "Dense
    associative memory for pattern recognition", NeurIPS. Demircigil, Heusel, Löwe, Upgang and
    Vermet (2017), "On a model of associative memory with huge storage capacity", Journal of
    Statistical Physics 168. Ramsauer et al. (2021), "Hopfield networks is all you need", ICLR.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import HopfieldMemory
    >>> X = np.array([[1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0]])
    >>> memory = HopfieldMemory("pseudoinverse").fit(X)
    >>> memory.transform([[1, 1, 0, 0, 0, 0]])  # a bit of the first pattern is flipped
    array([[1., 1., 1., 0., 0., 0.]])
    >>> memory.energy([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]).round(2).tolist()
    [-0.5, -2.0]
    """

    _parameter_constraints: dict = {
        "rule": [StrOptions({"dense", *RULES})],
        "update": [StrOptions({"auto", "asynchronous", "synchronous"})],
        "max_steps": [Interval(Integral, 1, None, closed="left")],
        "beta": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "similarity": [StrOptions({"euclidean", "dot"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        rule="dense",
        *,
        update="auto",
        max_steps=100,
        beta="auto",
        similarity="euclidean",
        random_state=None,
    ):
        self.rule = rule
        self.update = update
        self.max_steps = max_steps
        self.beta = beta
        self.similarity = similarity
        self.random_state = random_state

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> HopfieldMemory:
        """Store the rows of X.

        Parameters
        ----------
        X : array-like of shape (n_patterns, n_features)
            Bits (0 and 1), spins (-1 and 1), or for the dense rule any finite numbers.
        y : None
            Not used; present by convention.

        Returns
        -------
        self : HopfieldMemory

        Raises
        ------
        ValueError
            If the rule does not accept such rows; the message names the column.

        Warns
        -----
        DataWarning
            If there are more patterns than the rule can hold, or if some are not kept.
        SettingWarning
            If a parameter has no effect.
        """
        X = self._check_numbers(X, reset=True)
        self.coding_ = self._coding(X)
        self.patterns_ = X.copy()
        self.load_ = X.shape[0] / X.shape[1]
        self._seed = draw_seed(self._common_random())
        self._memory = self._memory_of(self._states(X))
        warn_without_effect(self._without_effect())
        self._warn_of_load()
        return self

    def _check_numbers(self, X: Any, *, reset: bool) -> np.ndarray:
        """Finite numbers whose squares are finite, float64."""
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite=False, reset=reset)
        for what, wrong in (("NaN", np.isnan(X)), ("infinity", np.isinf(X))):
            if wrong.any():
                raise ValueError(
                    f"Input X contains {what}, in column {self._name(wrong)!r}: drop such rows, or "
                    "impute the entries."
                )
        wrong = np.abs(X) > LARGEST
        if wrong.any():
            raise ValueError(f"Column {self._name(wrong)!r} has values above {LARGEST:g}: scale X.")
        return X

    def _name(self, wrong: np.ndarray) -> str:
        """Name of the first column in which an entry is marked."""
        j = int(wrong.any(0).argmax())
        names = getattr(self, "feature_names_in_", None)
        return f"x{j}" if names is None else str(names[j])

    def _coding(self, X: np.ndarray) -> str:
        """What the patterns are made of."""
        zero, minus = X == 0, X == -1
        other = ~(zero | minus | (X == 1))
        if not other.any() and not (zero.any() and minus.any()):
            return "spins" if minus.any() else "bits"
        if self.rule == "dense":
            return "real"
        advice = 'turn them into bits first, or take rule="dense".'
        if other.any():
            value = X[other][0]
            raise ValueError(
                f'rule="{self.rule}" stores bits (0 and 1) or spins (-1 and 1), but column '
                f"{self._name(other)!r} holds {value:g}: {advice}"
            )
        raise ValueError(
            f"Column {self._name(zero)!r} holds 0 and column {self._name(minus)!r} holds -1: "
            f'rule="{self.rule}" stores either bits (0 and 1) or spins (-1 and 1): {advice}'
        )

    def _memory_of(self, states: np.ndarray) -> Memory:
        """The memory of the patterns."""
        beta = None if self.beta == "auto" else float(self.beta)
        if self.coding_ == "real":
            if 0 < np.abs(states).max() < LEAST:
                raise ValueError(f"All values are below {LEAST:g}: scale X.")
            return RealMemory(states, beta, self.similarity)
        if self.rule == "dense":
            return ExponentialMemory(states, 1.0 if beta is None else beta)
        if states.shape[1] == 1:
            raise ValueError(
                f'rule="{self.rule}" stores couplings of pairs of columns, and n_features = 1: '
                'add columns, or take rule="dense".'
            )
        return QuadraticMemory(RULES[self.rule](states))

    def _without_effect(self) -> dict[str, str]:
        reasons = {}
        if self.rule != "dense":
            why = f'rule="{self.rule}" does not use it'
            reasons = {"beta": why, "similarity": why}
        elif self.coding_ != "real":
            reasons = {"similarity": f"all {self.coding_} have the same norm"}
        elif self.update == "asynchronous":
            reasons = {"update": "real rows are updated as a whole"}
        elif len(np.unique(self.patterns_, axis=0)) == 1:
            reasons = {"beta": "all patterns are alike"}
        return {name: why for name, why in reasons.items() if name in non_default_parameters(self)}

    def _warn_of_load(self) -> None:
        """Warn where the rule cannot hold the patterns, in theory or as seen after one step."""
        n, d = self.patterns_.shape
        memory, load = self._memory, self.load_
        if self.rule == "pseudoinverse" and isinstance(memory, QuadraticMemory):
            load = memory.trace / d  # dependent patterns take no room
        limit, source = _limit(self.rule, self.coding_, d)
        if load > limit:
            warn(
                f"{n} patterns of {d} columns are a load of {load:.3g}, and the limit of "
                f'rule="{self.rule}" for random patterns is {limit:.3g} ({source}).',
                DataWarning,
            )
            return
        chosen = self._states(self.patterns_[_some(n)])
        kept = np.concatenate(
            [memory.is_stable(chosen[part]) for part in gen_batches(len(chosen), memory.batch)]
        )
        if not kept.all():
            warn(
                f"{np.mean(~kept):.1%} of the patterns are lost in the first step of a recall, at "
                f"a load of {self.load_:.3g}: they are too similar for these settings.",
                DataWarning,
            )

    # ---------------------------------------------------------------- fitted memories

    @property
    def beta_(self) -> float:
        """Inverse temperature of the dense rule; other rules have none."""
        return float(self._of_memory("beta"))

    @property
    def coupling_(self) -> np.ndarray:
        """J of the spins, with a zero diagonal; the dense rule has none."""
        coupling: np.ndarray = self._of_memory("coupling")
        return coupling

    @property
    def energy_(self) -> BoltzmannMachine:
        """The energy of the quadratic rules as an energy of skebm, of rows of bits in float64.

        It is for samplers and log Z, and is built at each access. The dense rule has none.
        """
        return BoltzmannMachine.from_spins(torch.tensor(self.coupling_))

    def _of_memory(self, name: str) -> Any:
        check_is_fitted(self)
        if not hasattr(self._memory, name):
            raise AttributeError(f"A memory that was fitted by this rule has no {name}.")
        return getattr(self._memory, name)

    def _states(self, X: np.ndarray) -> np.ndarray:
        """Rows as the memory takes them: bits as spins."""
        return 2 * X - 1 if self.coding_ == "bits" else X

    def _check_rows(self, X: Any) -> np.ndarray:
        """Validated rows in the coding of the patterns, as the memory takes them."""
        check_is_fitted(self)
        X = self._check_numbers(X, reset=False)
        if self.coding_ == "real":
            return X
        low = 0 if self.coding_ == "bits" else -1
        other = ~np.isin(X, (low, 1))
        if other.any():
            raise ValueError(
                f"Column {self._name(other)!r} holds {X[other][0]:g}, but the patterns are "
                f"{self.coding_}, {low} and 1: X must be in the same coding."
            )
        return self._states(X)

    def recall(self, X: Any) -> Recall:
        """Lower the energy of rows until they stop changing or repeat, with details for each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In the coding of the patterns.

        Returns
        -------
        Recall
            The rows; for each its number of steps, whether it has converged, and the length of its
            cycle.
        """
        found = self._recall(self._check_rows(X))
        return found._replace(rows=frame_like(X, found.rows))

    def _recall(self, states: np.ndarray) -> Recall:
        parts = [
            iterate(self._memory, states[part], self._orders(), self.max_steps)
            for part in gen_batches(len(states), self._memory.batch)
        ]
        found = Recall(*map(np.concatenate, zip(*parts, strict=True)))
        return found._replace(rows=(found.rows + 1) / 2) if self.coding_ == "bits" else found

    def _orders(self) -> Iterator[np.ndarray | None]:
        """The orders of the columns, the same for all rows; None for all columns at once."""
        random = np.random.RandomState(self._seed)
        at_once = self.update == "synchronous" or self.coding_ == "real"
        while True:
            yield None if at_once else random.permutation(self.n_features_in_)

    def transform(self, X: Any) -> np.ndarray:
        """Recall rows: their last states.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In the coding of the patterns.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the coding of the patterns.

        Warns
        -----
        SamplingWarning
            If rows end in a cycle, with their number and the length; or if `max_steps` ended the
            recall of rows that still changed.
        """
        states = self._check_rows(X)
        found = self._recall(states)
        lengths, counts = np.unique(found.cycle_length, return_counts=True)
        for length, count in zip(lengths, counts, strict=True):
            if length > 1:
                warn(
                    f"{count} of {len(states)} rows end in a cycle of length {length}: "
                    'update="asynchronous" has none.',
                    SamplingWarning,
                )
            elif length == 0:
                warn(
                    f"{count} of {len(states)} rows still changed after {self.max_steps} steps: "
                    "increase max_steps.",
                    SamplingWarning,
                )
        return found.rows

    def energy(self, X: Any) -> np.ndarray:
        """Energy of rows, in nats: as if p(x) = exp(-E(x)) / Z.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            In the coding of the patterns.

        Returns
        -------
        ndarray of shape (n_samples,)
            Lower is closer to what is stored. With quadratic rules it is about -d / 2 at patterns.
        """
        states, memory = self._check_rows(X), self._memory
        return np.concatenate(
            [memory.energy(states[part]) for part in gen_batches(len(states), memory.batch)]
        )

    def score(self, X: Any, y: Any = None) -> float:
        r"""Mean similarity of what is recalled to what should be.

        The similarity of rows a and b is :math:`2\, a \cdot b / (a \cdot a + b \cdot b)`, which is
        1 if they are equal. For spins, and for bits as spins, it is the overlap: 1 minus twice the
        fraction of wrong entries. The mean of the patterns is first subtracted from real rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to recall from.
        y : array-like of shape (n_samples, n_features), default=None
            The rows that should be recalled. With None, and with labels (a single dimension, as
            scikit-learn passes them), each recalled row is compared with the most similar pattern.

        Returns
        -------
        float
            At most 1.
        """
        rows = self.recall(X).rows
        centre = self.patterns_.mean(0) if self.coding_ == "real" else 0.0
        recalled = self._states(rows) - centre
        if y is None or np.ndim(y) == 1:
            patterns = self._states(self.patterns_) - centre
            return float(largest_similarities(recalled, patterns).mean())
        clean = self._check_rows(y) - centre
        if len(clean) != len(recalled):
            raise ValueError(f"y has {len(clean)} rows and X {len(recalled)}: they must be pairs.")
        return float(similarities(recalled, clean).mean())


def _limit(rule: str, coding: str, d: int) -> tuple[float, str]:
    """Load up to which random patterns are recalled, and who says so."""
    if rule == "hebb":
        return 0.138, "Amit, Gutfreund and Sompolinsky, 1985"
    if rule == "storkey":
        return 1 / np.sqrt(2 * np.log(d)), "Storkey, 1997"
    if rule == "pseudoinverse":
        return 0.5, "above, few flips are undone, at 1 none: Kanter and Sompolinsky, 1987"
    if coding == "real":  # no theory: what is kept is seen
        return np.inf, ""
    return 2 ** min(d / 2, 1000) / d, "Demircigil et al., 2017"
