"""How surprising rows of a table are: densities, the nearest row and values never seen, in nats."""

from __future__ import annotations

import itertools
import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import KFold
from sklearn.neighbors import NearestNeighbors

from skebm._validation import (
    N_JOBS,
    HasMethods,
    Interval,
    check_columns,
    check_is_fitted,
    check_weight,
    distinct_numbers_of,
    fit_context,
    set_seeds,
    take_rows,
    that_vary,
    validate_data,
)
from skebm.base.processes import TasksMixin, collect_warnings, fit_of, parts_of_fit
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import ThresholdMixin, atomic, set_nested_params, upper_quantile
from skebm.estimators.outlier.bulk import Bulk, mean_of_two_highest
from skebm.estimators.outlier.product import ProductOfDensities
from skebm.estimators.queries.densities import relative_log_density
from skebm.training.streams import SourceMixin

# Folds, and most rows that they hold out together and that a model is fitted to without one.
N_FOLDS, MOST_HELD_OUT, MOST_FITTED = 3, 500, 2000
# Fewest rows that are held out: with fewer, training rows are judged by their own model.
FEWEST_ROWS = 20
# Most training rows among which the nearest is searched, and of which values are remembered.
MOST_NEAR, MOST_REMEMBERED = 5000, 20_000
# Numbers of rows whose nearest ones are compared at a time.
MOST_NUMBERS = 1_000_000
# Share of held-out rows beyond which a tail is exponential.
TAIL = 0.1
# Decimal places of the range of held-out values below which they are equal.
DIGITS = 10
# Columns of which more values than this share are unique have no pairs of values to remember.
MOSTLY_UNIQUE = 0.5
# Values that differ by less than this, relative to the largest of their column, are equal: by about
# as much as numbers of single precision differ from those that they stand for.
RELATIVE_TOLERANCE = 2.0**-22


class RankTail(NamedTuple):
    """How rare values as low as a given one are among held-out rows, in nats.

    Attributes
    ----------
    values : ndarray of shape (n,)
        Distinct values of held-out rows, increasing.
    nats : ndarray of shape (n,)
        Minus the log of the share of rows with at most that value.
    scale : float
        By how much a value must be lower for one more nat: the mean of the lowest tenth; 1 if there
        is none below, as the values are nats themselves.
    """

    values: np.ndarray
    nats: np.ndarray
    scale: float

    @classmethod
    def fit(cls, values: np.ndarray, weight: np.ndarray) -> RankTail:
        """Of values of held-out rows, (n,) each; those that are not finite count as the lowest."""
        finite = np.isfinite(values)
        if not finite.any():
            return cls(np.zeros(1), np.zeros(1), 1.0)
        # Values that differ by rounding are equal: they may lie on either side of each other.
        scale = float(np.ptp(values[finite])) or 1.0
        rounded = np.round(values[finite] / scale, DIGITS) * scale
        distinct, member = np.unique(rounded, return_inverse=True)
        share = np.bincount(member, weight[finite])
        below = np.cumsum(share) + weight[~finite].sum()
        unit = weight.mean()  # a new row counts as one of them
        nats = -np.log((below + unit) / (weight.sum() + unit))
        start = min(int(np.searchsorted(-nats, math.log(TAIL) - 1e-9)), len(distinct) - 1)
        edge = distinct[start]
        scale = 1.0
        if start:
            scale = float(np.average(edge - distinct[:start], weights=share[:start]))
        return cls(distinct[start:], nats[start:], scale)

    def surprise(self, values: np.ndarray) -> np.ndarray:
        """Nats of each value: between those of held-out rows, and exponential below them, (n,)."""
        with np.errstate(over="ignore"):
            beyond = np.maximum(self.values[0] - values, 0) / self.scale
        found: np.ndarray = np.interp(values, self.values, self.nats) + beyond
        return found


class NearestRow(NamedTuple):
    """Log of one over the distance to the nearest training row, in standard deviations."""

    centre: np.ndarray
    unit: np.ndarray
    rows: np.ndarray
    offset: float

    @classmethod
    def fit(cls, X: np.ndarray) -> NearestRow:
        """Search among the rows of X."""
        centre, unit = X.mean(0), X.std(0)
        unit = np.where(unit > 0, unit, 1.0)
        rows = (X - centre) / unit
        found = cls(centre, unit, rows, 0.0)
        distance, _ = found.distances(X)
        apart = distance[distance > 0]
        if not len(apart):
            return found._replace(offset=1.0)
        # The resolution: of rows on levels most distances are zero.
        least = max(np.quantile(distance, TAIL), 1e-3 * np.median(apart))
        return found._replace(offset=float(least))

    def distances(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distance to the nearest row, and whether the row is one of them, (n,) each.

        Of a row that equals a single one, which may be itself, it is the distance to the next: so
        training rows and new ones are on one scale.
        """
        search = NearestNeighbors(n_neighbors=min(2, len(self.rows)), algorithm="brute")
        search.fit(self.rows)
        found = np.empty((len(X), search.n_neighbors))
        step = max(1, MOST_NUMBERS // X.shape[1])
        for start in range(0, len(X), step):
            scaled = (X[start : start + step] - self.centre) / self.unit
            # Products of matrices, by which it searches, do not tell which distances are zero.
            near = self.rows[search.kneighbors(scaled, return_distance=False)]
            with np.errstate(over="ignore"):
                found[start : start + step] = np.linalg.norm(near - scaled[:, None], axis=2)
        found.sort(axis=1)
        itself = (found[:, 0] == 0) & ((found[:, -1] > 0) | (len(self.rows) == 1))
        return np.where(itself, found[:, -1], found[:, 0]), itself

    def log_nearness(self, distance: np.ndarray) -> np.ndarray:
        """Higher for rows that are near to a training row, (n,)."""
        nearness: np.ndarray = -np.log(distance + self.offset)
        return nearness


class Event(NamedTuple):
    """Combinations of values of some columns, and how rare one is that the table does not hold.

    Attributes
    ----------
    columns : tuple of int
    known : ndarray of shape (n_known, n_columns)
        Codes of the combinations that occur.
    repeated : ndarray of shape (n_known,) of bool
        Which of them more than one row has.
    nats : float
        Minus the log of the share of rows whose combination no other has, times the number of
        events (Bonferroni), at least 0.
    """

    columns: tuple[int, ...]
    known: np.ndarray
    repeated: np.ndarray
    nats: float

    def are_seen(self, codes: np.ndarray, itself: np.ndarray) -> np.ndarray:
        """Whether another row than the one that a row may be has its values, (n,)."""
        keys, known = _keys(codes[:, list(self.columns)]), _keys(self.known)
        seen: np.ndarray = np.isin(keys, known)
        if itself.any():
            seen[itself] = np.isin(keys[itself], known[self.repeated])
        return seen


class UnseenValues(NamedTuple):
    """Values, pairs of values and rows of levels that no other row of a table has.

    The probability that a new row has one is the share of rows of which no other has the same
    [1]_. A row that is one of the table is judged like that by the others.

    References
    ----------
    .. [1] Good (1953), "The population frequencies of species and the estimation of population
       parameters", Biometrika 40(3-4), equation 9.
    """

    levels: dict[int, np.ndarray]
    events: list[Event]

    @classmethod
    def fit(cls, X: np.ndarray, weight: np.ndarray) -> UnseenValues:
        """Remember the values of the rows of X of the given weights."""
        n, d = X.shape
        found = cls({j: np.unique(X[:, j]) for j in range(d)}, [])
        codes = found.codes(X)
        once = np.empty((n, d), dtype=bool)
        for j in range(d):
            found.events.append(_event((j,), codes[:, [j]], np.ones(n, dtype=bool), weight))
            once[:, j] = ~found.events[j].are_seen(codes, np.ones(n, dtype=bool))
        levels = [j for j in range(d) if once[:, j].mean() < MOSTLY_UNIQUE]
        pairs = list(itertools.combinations(levels, 2))
        # Of more pairs than rows none is rarer than the rarest of as many is by chance.
        if len(pairs) > n:
            pairs = []
        for columns in [*pairs, *([tuple(levels)] if len(levels) > 2 else [])]:
            both = np.logical_not(once[:, list(columns)].any(axis=1))
            if both.any():
                found.events.append(_event(columns, codes[:, list(columns)], both, weight))
        return found._that_can_surprise()

    def _that_can_surprise(self) -> UnseenValues:
        """Without what is too common, given the number of things (Bonferroni), with less nats."""
        least = math.log(len(self.events))
        events = [event._replace(nats=max(event.nats - least, 0.0)) for event in self.events]
        combined = [event for event in events if len(event.columns) > 1 and event.nats]
        asked = {j for event in combined for j in event.columns}
        single = [event for event in events if len(event.columns) == 1]
        kept = [event for event in single if event.nats or event.columns[0] in asked]
        used = {j for event in kept for j in event.columns}
        levels = {j: values for j, values in self.levels.items() if j in used}
        return type(self)(levels, [*kept, *combined])

    def without(self, columns: set[int]) -> UnseenValues:
        """What remains without what some columns are part of."""
        events = [event for event in self.events if not columns.intersection(event.columns)]
        return self._replace(events=events)

    def codes(self, X: np.ndarray) -> np.ndarray:
        """Number of each value among the levels of its column, (n, d).

        It is -1 where it is none of them, and in columns of which nothing is asked.
        """
        found = np.full(X.shape, -1, dtype=np.int64)
        for j, levels in self.levels.items():
            column = X[:, j]
            above = np.searchsorted(levels, column).clip(1, max(len(levels) - 1, 1))
            lower, upper = levels[above - 1], levels[np.minimum(above, len(levels) - 1)]
            nearest = np.where(column - lower <= upper - column, above - 1, above)
            nearest = np.minimum(nearest, len(levels) - 1)
            most = RELATIVE_TOLERANCE * np.abs(levels[[0, -1]]).max()
            found[:, j] = np.where(np.abs(levels[nearest] - column) <= most, nearest, -1)
        return found

    def surprise(self, X: np.ndarray, itself: np.ndarray) -> np.ndarray:
        """Nats of the rarest thing of each row that is unseen, given how many are looked at, (n,).

        `itself` says which rows are of the table.
        """
        codes, found = self.codes(X), np.zeros(len(X))
        known = np.ones(codes.shape, dtype=bool)
        for event in self.events:
            columns = list(event.columns)
            unseen = ~event.are_seen(codes, itself)
            if len(columns) == 1:
                known[:, columns[0]] = ~unseen
            else:
                unseen &= known[:, columns].all(1)
            found[unseen] = np.maximum(found[unseen], event.nats)
        return found


def _event(
    columns: tuple[int, ...], codes: np.ndarray, of: np.ndarray, weight: np.ndarray
) -> Event:
    """The combinations that occur, and nats of those that occur once among the rows `of`."""
    _, first, member, count = np.unique(
        _keys(codes), return_index=True, return_inverse=True, return_counts=True
    )
    once = of & (count[member] == 1)
    unit = weight.mean()
    rate = (weight[once].sum() + unit) / (weight[of].sum() + unit)
    return Event(columns, codes[first], count > 1, -math.log(rate))


def _keys(codes: np.ndarray) -> np.ndarray:
    """One value for each row of codes, equal where the rows are."""
    if codes.shape[1] == 1:
        return codes[:, 0]
    rows = np.ascontiguousarray(codes)
    found: np.ndarray = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    return found


class RowSurprise(
    DocLinkMixin, SourceMixin, TasksMixin, ThresholdMixin, MetaEstimatorMixin, BaseEstimator
):
    r"""How surprising rows are beside those of a table, in nats.

    .. math:: s(x) = \frac1{K + 1} \sum_{k=0}^{K} -\log \hat P(q_k(X) \le q_k(x)) + u(x)

    Each of the K experts of a product of densities, and the distance to the nearest training row,
    gives the share of held-out rows that it finds as unlikely as the row; below a tenth of them the
    share decreases exponentially. All are thus in the same unit, and their mean needs no weights.
    To it is added what is surprising about values that the table does not hold: u is minus the log
    of the probability that a row has a value, a pair of values or a row of levels that no other row
    has, by the share of such rows [1]_, times the number of columns and pairs (Bonferroni), and at
    least 0. In columns of measurements all values are new, and none of them is surprising; where
    codes or counts repeat, a new one is.

    A row that equals a single training row may be that row, which the experts know: it is compared
    with training rows as they find them, and its nearest row and its values are those of others.
    So training rows are about as surprising as new ones.

    Kernels and the nearest row find a cluster of anomalies normal if it is among the training rows.
    With `bulk` = b the mean is replaced by 1 - b times it and b times how far the row is from the
    bulk of the table, of which clusters of few rows are no part: the mean of the two highest of the
    nats of three distances, to the nearest of the large clusters in random halves of the rows, to
    the ends of windows that hold a fifth of the values of each column, and to the core of the rows
    by its covariance.

    It is no density: :math:`e^{-s}` is not normalised. `density_` is one.

    Parameters
    ----------
    density : estimator or None, default=None
        A density of the columns of X, whose experts are used if it is a
        :class:`ProductOfDensities`. It is cloned. None is a :class:`ProductOfDensities`.
    bulk : float in [0, 1], default=0
        Weight of the distance to the bulk of the table, for rows that contain anomalies;
        :class:`EnergyOutlierDetector` sets it with ``trim="auto"``.
    random_state : int, RandomState instance or None, default=None
        Seed of the folds, and of every ``random_state`` of the density that is None.
    n_jobs : int or None, default=None
        Number of fits at the same time, for a density of several experts; -1 is one for each
        processor. None is 1 outside of a :func:`joblib.parallel_config`.
    verbose : int, default=0
        1 shows the progress bar of the density.

    Attributes
    ----------
    density_ : estimator
        The density, fitted to all rows.
    offset_ : float
        Threshold of `predict`: a tenth of the held-out rows are below it.
    n_held_out_ : int
        Number of rows by which shares are known: at most 500, in three folds without which the
        density is fitted to at most 2,000 rows; 0 with fewer than 20 rows, which are then judged by
        the density that knows them.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    EnergyOutlierDetector : Uses it by default, on columns of any type.
    ProductOfDensities : The density.

    References
    ----------
    .. [1] Good (1953), "The population frequencies of species and the estimation of population
       parameters", Biometrika 40(3-4), equation 9.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RowSurprise
    >>> random = np.random.default_rng(0)
    >>> X = np.column_stack([random.normal(size=300), random.integers(0, 3, 300)])
    >>> model = RowSurprise(random_state=0).fit(X)
    >>> usual, far, unseen = -model.score_samples([[0.1, 1], [5.0, 1], [0.1, 0.5]])
    >>> bool(usual < 2 < far and unseen > usual + 4)  # half a count was never seen
    True
    """

    _parameter_constraints: dict = {
        "density": [HasMethods(["fit", "score_samples", "get_params"]), None],
        "bulk": [Interval(Real, 0, 1, closed="both")],
        "random_state": ["random_state"],
        "n_jobs": N_JOBS,
        "verbose": ["verbose"],
    }
    _has_tasks = True

    def __init__(self, density=None, *, bulk=0, random_state=None, n_jobs=None, verbose=0):
        self.density = density
        self.bulk = bulk
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, ``density__<name>`` included."""
        set_nested_params(self, params)
        return super().set_params(**params)

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RowSurprise:
        """Fit the density, and find how surprising held-out rows are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite numbers.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale. Rows of weight 0 are ignored.

        Returns
        -------
        self : RowSurprise
        """
        X, header, sample_weight = self._in_memory(X, sample_weight)
        X = validate_data(self, X, dtype=np.float64)
        if header is not None:
            check_columns(self, header, reset=True)
        weight = check_weight(sample_weight, X)
        if weight is not None:
            X, weight = X[weight > 0], weight[weight > 0]
        once = _rows_of_one_copy(X)
        if once is not None:
            X, weight = X[once], None if weight is None else weight[once]
        random = self._common_random()
        model = self._model(random)
        folds = _folds(X, random)
        tasks = parts_of_fit(["fit-density", *["fit-fold"] * len(folds)])
        kind = {} if weight is None else {"sample_weight": weight}
        with fit_of(tasks[0], model):
            self.density_ = model.fit(X, **kind)
        w = np.ones(len(X)) if weight is None else weight
        self._nearest = NearestRow.fit(_some(X, MOST_NEAR, random))
        self._bulk = self._bulk_of(X, w, random)
        self._weight_of_bulk = float(self.bulk)
        remembered = _numbers(len(X), MOST_REMEMBERED, random)
        self._unseen = UnseenValues.fit(X[remembered], w[remembered])
        found: list[RowViews] = []
        for task, (train, test) in zip(tasks[1:], folds, strict=True):
            fold = clone(model)
            if isinstance(fold, ProductOfDensities):  # its weights would need folds of their own
                fold.set_params(weights=np.ones(len(self.density_.experts_)), verbose=0)
            kind = {} if weight is None else {"sample_weight": weight[train]}
            with collect_warnings(), fit_of(task, fold):  # the fit to all rows has said it
                fold.fit(X[train], **kind)
            nearest = NearestRow.fit(_some(X[train], MOST_NEAR, random))
            nearest = nearest._replace(offset=self._nearest.offset)
            bulk = self._bulk_of(X[train], w[train], random)
            found.append(RowViews.of(fold, nearest, bulk, X[test]))
        held_out = np.concatenate([test for _, test in folds]) if folds else np.arange(len(X))
        self.n_held_out_ = len(held_out) if folds else 0
        own = RowViews.of(self.density_, self._nearest, self._bulk, X[held_out])
        parts = RowViews(*map(np.concatenate, zip(*found, strict=True))) if found else own
        self._tails, self._own_tails = (
            [RankTail.fit(values, w[held_out]) for values in one.values.T] for one in (parts, own)
        )
        values = -self._surprise_of_parts(parts, X[held_out])
        self.offset_ = -upper_quantile(-values, TAIL, w[held_out])
        return self

    def ignore_new_values(self, columns: list[int]) -> None:
        """Find nothing surprising about new values in these columns, and combinations with them.

        Parameters
        ----------
        columns : list of int
            Such as that of a date, which goes on.
        """
        check_is_fitted(self)
        self._unseen = self._unseen.without(set(columns))

    def _model(self, random: np.random.RandomState) -> Any:
        """The density to be fitted, with seeds."""
        if self.density is None:
            model = ProductOfDensities(n_jobs=self.n_jobs, verbose=self.verbose)
        else:
            model = clone(self.density)
        if self.random_state is not None:
            set_seeds(model, random)
        return model

    def _surprise_of_parts(self, parts: RowViews, X: np.ndarray) -> np.ndarray:
        nats = _nats(self._tails, parts.values)
        if parts.itself.any():
            nats[parts.itself] = _nats(self._own_tails, parts.values[parts.itself])
        n_bulk = 0 if self._bulk is None else self._bulk.n_distances
        found: np.ndarray = nats[:, : nats.shape[1] - n_bulk].mean(1)
        if n_bulk:
            far, finite = mean_of_two_highest(nats[:, -n_bulk:]), np.isfinite(found)
            found[finite] += self._weight_of_bulk * (far - found)[finite]
        found += self._unseen.surprise(X, parts.itself)
        return found

    def _bulk_of(
        self, X: np.ndarray, weight: np.ndarray, random: np.random.RandomState
    ) -> Bulk | None:
        """That of the rows, each of which occurs as often as its weight says; None without."""
        if not self.bulk:
            return None
        if np.ptp(weight):
            begins = np.cumsum(weight) / weight.sum()
            X = X[np.searchsorted(begins, (np.arange(len(X)) + 0.5) / len(X))]
        return Bulk.fit(X, random)

    @property
    def _density(self) -> Any:
        """The density for :mod:`skebm.estimators.queries.densities`."""
        return self.density_

    def score_samples(self, X: Any) -> np.ndarray:
        """Minus the surprise of each row, in nats: higher for more normal rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._scores)

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return -self._surprise_of_parts(RowViews.of(self.density_, self._nearest, self._bulk, X), X)


def _nats(tails: list[RankTail], values: np.ndarray) -> np.ndarray:
    pairs = zip(tails, values.T, strict=True)
    return np.column_stack([tail.surprise(value) for tail, value in pairs])


class RowViews(NamedTuple):
    """What experts, the nearest row and the bulk say of rows, higher for normal ones.

    There are K + 1 columns, and three more with a bulk.
    """

    values: np.ndarray
    itself: np.ndarray

    @classmethod
    def of(cls, density: Any, nearest: NearestRow, bulk: Bulk | None, X: np.ndarray) -> RowViews:
        """Of each row of X; `itself` says which are rows of the table."""
        experts = (
            density.experts_.values() if isinstance(density, ProductOfDensities) else [density]
        )
        found = [relative_log_density(expert, X) for expert in experts]
        distance, itself = nearest.distances(X)
        found.append(nearest.log_nearness(distance))
        if bulk is not None:
            found.append(-bulk.distances(X))
        return cls(np.column_stack(found), itself)


def _rows_of_one_copy(X: np.ndarray) -> np.ndarray | None:
    """The rows of the table of which X is so many copies; None if it is one.

    Where all rows occur twice, three times and so on, each would have another one like it.
    """
    first, member = distinct_numbers_of(X)
    count = np.bincount(member)
    n_copies = int(np.gcd.reduce(count))
    if n_copies == 1 or len(first) == 1:
        return None
    order = np.argsort(member, kind="stable")
    begins = np.repeat(np.cumsum(count) - count, count)
    kept: np.ndarray = order[(np.arange(len(X)) - begins) % n_copies == 0]
    return np.sort(kept)


def _folds(X: np.ndarray, random: np.random.RandomState) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit to and to hold out; no fold with fewer than 20 distinct rows."""
    if len(distinct_numbers_of(X)[0]) < FEWEST_ROWS:
        return []
    some = random.permutation(len(X))[:MOST_FITTED]
    held_out = some[:MOST_HELD_OUT]
    folds = []
    for _, out in KFold(N_FOLDS).split(held_out):
        train = np.setdiff1d(some, held_out[out])
        added = that_vary(X, train)
        test = np.setdiff1d(held_out[out], added)
        if len(test):
            folds.append((np.concatenate([train, added]), test))
    return folds


def _numbers(n: int, most: int, random: np.random.RandomState) -> np.ndarray:
    """Numbers of at most so many rows, in their order."""
    return np.arange(n) if n <= most else np.sort(random.permutation(n)[:most])


def _some(X: np.ndarray, most: int, random: np.random.RandomState) -> np.ndarray:
    found: np.ndarray = take_rows(X, _numbers(len(X), most, random))
    return found
