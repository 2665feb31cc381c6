"""Products of densities: weighted geometric means of fitted density estimators."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold
from sklearn.utils import Bunch
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from skebm._validation import (
    N_JOBS,
    Interval,
    StrOptions,
    as_numbers,
    check_columns,
    check_is_fitted,
    check_random_state,
    check_weight,
    distinct_numbers_of,
    draw_seed,
    fit_context,
    mask_as_missing,
    set_seeds,
    take_rows,
    that_vary,
    validate_data,
    warn,
    warn_of_booleans,
)
from skebm.base import LikelihoodWarning, LogPartition
from skebm.base.processes import (
    TasksMixin,
    Workers,
    fit_of,
    lock_of,
    parts_of_fit,
    progress_bar,
)
from skebm.distributions import Distribution, Stack
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import NamedEstimators, PartitionMixin, atomic
from skebm.estimators.queries.densities import (
    draw_rows,
    log_normaliser,
    relative_log_density,
    score_function,
)
from skebm.estimators.queries.joint import Joint, mixture_near
from skebm.estimators.queries.mixin import QueriesMixin
from skebm.estimators.queries.tractable import (
    TractableDensity,
    draw_by_rejection,
    resample_proposals,
    tempered,
)
from skebm.estimators.tables.gross import without_gross_rows
from skebm.estimators.tables.table import (
    Table,
    impossible_if_far,
    plain_number_table,
    shown_names,
)
from skebm.training.distributed import shows_progress
from skebm.training.streams import SourceMixin

# Folds without which training rows are scored for the weights, and fewest and most of these rows.
N_FOLDS, FEWEST_ROWS, MOST_ROWS = 3, 20, 500
# From a number of proposals and a random state to rows and their log ratios.
Propose = Callable[[int, np.random.RandomState], tuple[np.ndarray, np.ndarray]]
# Effective sample size below which log Z has no credible upper end.
LEAST_ESS = 30.0


def default_experts() -> list[tuple[str, Any]]:
    """Kernels in two metrics and a smooth mixture, without settings of their own to search over."""
    return [
        ("kernels_by_range", TractableDensity("kernel", metric="range", n_neighbors=5)),
        ("kernels_of_logs", TractableDensity("kernel", metric="log", n_neighbors=5)),
        ("mixture", TractableDensity("mixture", regularisation=0.1)),
    ]


class Fits:
    """Fits of experts, which workers may share; the progress bar ends with weights and seconds."""

    def __init__(self, names: list[str], n_each: int, n_jobs: int | None, verbose: int):
        self.seconds, self.n_jobs = dict.fromkeys(names, 0.0), n_jobs
        shown = {"desc": "ProductOfDensities", "unit": "fit"}
        self.bar = progress_bar(
            total=n_each * len(names), disable=not shows_progress(verbose), **shown
        )

    def __enter__(self) -> Fits:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def results(self, fits: list[tuple[Any, ...]]) -> list[Any]:
        """Results of ``(name, expert, ...)``, the arguments of :func:`fit_expert`."""
        tasks = parts_of_fit([f"fit-{name}" for name, *_ in fits])

        def calls() -> Iterator[tuple[Any, ...]]:
            for task, (name, *args) in zip(tasks, fits, strict=True):
                self.bar.set_description(f"ProductOfDensities: {name}")
                yield (fit_expert, task, *args)

        found = []
        pairs = Workers(self.n_jobs, self.bar).results(calls())
        for (name, *_), (result, seconds) in zip(fits, pairs, strict=True):
            self.seconds[name] += seconds
            found.append(result)
        return found

    def show_weights(self, weights: np.ndarray) -> None:
        """Show the weights, and the seconds of each expert, in place of its name."""
        self.bar.set_description("ProductOfDensities", refresh=False)
        pairs = zip(self.seconds.items(), weights, strict=True)
        self.bar.set_postfix_str(", ".join(f"{name} {w:.2f} ({s:.1f} s)" for (name, s), w in pairs))


def fit_expert(
    task: Any,
    expert: Any,
    X: np.ndarray,
    weight: np.ndarray | None = None,
    train: np.ndarray | None = None,
    test: np.ndarray | None = None,
) -> tuple[Any, float]:
    """An expert fitted to X, or log densities of rows that it was fitted without; and seconds."""
    started = time.perf_counter()
    if not isinstance(expert, FrozenEstimator):
        kind = {}
        if weight is not None:
            kind["sample_weight"] = weight if train is None else weight[train]
        with fit_of(task, expert):
            expert = expert.fit(X if train is None else take_rows(X, train), **kind)
    found = expert if test is None else relative_log_density(expert, take_rows(X, test))
    return found, time.perf_counter() - started


class ProductOfDensities(
    QueriesMixin,
    DocLinkMixin,
    SourceMixin,
    TasksMixin,
    DensityMixin,
    NamedEstimators,
    BaseEstimator,
):
    r"""Product of powers of densities, each fitted to the rows by itself.

    .. math:: p(x) = \frac1Z \prod_{k=1}^{K} q_k(x)^{w_k} , \qquad
        E(x) = -\sum_k w_k \log q_k(x)

    A row is likely where all experts find it likely [1]_, so that anomalies of several kinds have a
    high energy. With weights that sum to one this is the logarithmic opinion pool [2]_. Then
    :math:`Z \le 1`, and the ratio of the product to the mixture :math:`\sum_k w_k q_k` is at most 1
    everywhere, so that Z is the mean of bounded importance weights, and rejection sampling from the
    mixture is exact.

    Parameters
    ----------
    estimators : list of (str, estimator) or None, default=None
        The experts: densities of the columns of X in their own units, with the methods
        ``score_samples`` and ``sample``. These are the densities of skebm,
        :class:`sklearn.mixture.GaussianMixture` and :class:`sklearn.neighbors.KernelDensity`. They
        are cloned; their parameters are set as ``<name>__<parameter>``. A
        :class:`sklearn.frozen.FrozenEstimator` is used as it is and not fitted again. None: three
        :class:`TractableDensity`, namely kernels in units of the columns' ranges, kernels of their
        signed logarithms, both with bandwidths by the distance to the fifth neighbour, and a smooth
        Gaussian mixture.
    weights : "balanced" or array-like of shape (n_estimators,), default="balanced"
        The exponents w, non-negative. ``"balanced"``: inversely proportional to the standard
        deviation of the expert's log density over held-out rows (three folds of at most 500 rows in
        all), and summing to one, so that all experts have the same influence on the ranking of
        normal rows; with fewer than 20 rows the weights are equal.
    n_draws : int, default=2000
        Number of draws of the mixture that are used to estimate log Z.
    random_state : int, RandomState instance or None, default=None
        Seeds the folds, log Z, and every ``random_state`` of the experts that is None.
    n_jobs : int or None, default=None
        Number of fits at the same time, those of experts and of folds, by the workers of
        :mod:`joblib`; -1 is one for each processor. None is 1 outside of a
        :func:`joblib.parallel_config`. With a `random_state` the result does not depend on it.
    verbose : int, default=0
        1 shows a progress bar over the fits of experts, those of the folds included. It names the
        expert being fitted, and at the end the weights and the time in seconds of each expert.

    Attributes
    ----------
    experts_ : Bunch
        The fitted experts by name.
    weights_ : ndarray of shape (n_estimators,)
        w.
    log_partition_, log_partition_std_ : float
        log Z of the energy, estimated when it is first needed, by importance sampling from the
        mixture (unbiased for Z), and its standard error. The standard error is nan, with a warning,
        if the effective sample size is below 30.
    log_partition_bounds_ : tuple of float
        log Z minus and plus two standard errors; nan if there is no standard error. If the weights
        sum to one, the upper end is at most the exact bound, log Z = 0 for normalised experts.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    EnergyOutlierDetector : Uses this density by default.

    References
    ----------
    .. [1] Hinton (2002), "Training products of experts by minimizing contrastive divergence",
       Neural Computation 14(8).
    .. [2] Genest and Zidek (1986), "Combining probability distributions: a critique and an
       annotated bibliography", Statistical Science 1(1).

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skebm import ProductOfDensities
    >>> X, y = load_wine(return_X_y=True)
    >>> model = ProductOfDensities(random_state=0).fit(X[y < 2])
    >>> list(model.experts_)
    ['kernels_by_range', 'kernels_of_logs', 'mixture']
    >>> bool(model.energy(X[y == 2]).mean() > model.energy(X[y < 2]).mean() + 3)
    True
    """

    _parameter_constraints: dict = {
        "estimators": [list, None],
        "weights": [StrOptions({"balanced"}), "array-like"],
        "n_draws": [Interval(Integral, 100, None, closed="left")],
        "random_state": ["random_state"],
        "n_jobs": N_JOBS,
        "verbose": ["verbose"],
    }
    _has_tasks = True
    _fitted_names = "experts_"
    _default_estimators = staticmethod(default_experts)

    def __init__(
        self,
        estimators=None,
        *,
        weights="balanced",
        n_draws=2000,
        random_state=None,
        n_jobs=None,
        verbose=0,
    ):
        self.estimators = estimators
        self.weights = weights
        self.n_draws = n_draws
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    # ---------------------------------------------------------------- fitting

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ProductOfDensities:
        """Fit all experts to the rows of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite numbers.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale, which is passed to the experts. Rows
            of weight 0 are ignored. Frozen experts are not fitted.

        Returns
        -------
        self : ProductOfDensities
        """
        X, header, sample_weight = self._in_memory(X, sample_weight)
        warn_of_booleans(self, X)
        X = validate_data(self, X, dtype=np.float64)
        if header is not None:
            check_columns(self, header, reset=True)
        sample_weight = check_weight(sample_weight, X)
        experts = self._list_of_experts()
        if sample_weight is not None:
            self._check_take_weights(experts)
            X, sample_weight = X[sample_weight > 0], sample_weight[sample_weight > 0]
        X, sample_weight = without_gross_rows(self, X, sample_weight)
        random = self._common_random()
        balances = self._balances(len(distinct_numbers_of(X)[0]), len(experts))
        names = [name for name, _ in experts]
        # All that is random is drawn here: results do not depend on who computes them.
        asked: list[tuple[Any, ...]] = [
            (name, self._clone_of(expert, random), X, sample_weight) for name, expert in experts
        ]
        some, w = X, sample_weight
        folds: list[tuple[np.ndarray, np.ndarray]] = []
        if balances:
            some, w, folds = self._folds(X, sample_weight, random)
        for fold in folds:
            asked += [
                (name, self._clone_of(expert, random), some, w, *fold) for name, expert in experts
            ]
        with Fits(names, 1 + len(folds), self.n_jobs, self.verbose) as fits:
            found = fits.results(asked)
            if balances:
                self.weights_ = _weights_by_spread(found[len(names) :], folds, w)
            else:
                self.weights_ = self._weights_of_parameters(len(experts))
            fits.show_weights(self.weights_)
        self.experts_ = Bunch(**dict(zip(names, found, strict=False)))
        # Estimated on first need; scoring leaves the attributes of the estimator alone.
        self._log_z: dict[str, Any] = {"seed": draw_seed(random), "found": None}
        return self

    def _list_of_experts(self) -> list[tuple[str, Any]]:
        """The experts; raises for lists that are none, and for estimators without a density."""
        if self.estimators is None:
            return default_experts()
        if not self.estimators or not all(
            isinstance(pair, tuple) and len(pair) == 2 for pair in self.estimators
        ):
            raise ValueError("estimators must be a list of (name, estimator), at least one.")
        self._validate_names([name for name, _ in self.estimators])
        for name, expert in self.estimators:
            if not (hasattr(expert, "score_samples") and hasattr(expert, "sample")):
                raise TypeError(
                    f"Expert {name!r} is {type(expert).__name__}, which has no score_samples or no "
                    "sample: pass a density, such as TractableDensity or GaussianMixture."
                )
        return list(self.estimators)

    def _check_take_weights(self, experts: list[tuple[str, Any]]) -> None:
        """Raise for an expert that would be fitted to rows without their weights."""
        for name, expert in experts:
            if not isinstance(expert, FrozenEstimator) and not has_fit_parameter(
                expert, "sample_weight"
            ):
                raise ValueError(
                    f"Expert {name!r} is {type(expert).__name__}, whose fit takes no "
                    "sample_weight: pass one that does, such as TractableDensity, or repeat rows."
                )

    def _clone_of(self, expert: Any, random: np.random.RandomState) -> Any:
        """A clone of the expert with a seed, to be fitted; a frozen one as it is."""
        if isinstance(expert, FrozenEstimator):
            check_is_fitted(expert)
            return expert
        model = clone(expert)
        if self.random_state is not None:
            set_seeds(model, random)
        return model

    def _balances(self, n_samples: int, n_experts: int) -> bool:
        """Whether weights are computed from held-out rows."""
        return isinstance(self.weights, str) and n_samples >= FEWEST_ROWS and n_experts > 1

    def _weights_of_parameters(self, n: int) -> np.ndarray:
        """The weights of `n` experts that are parameters, or equal ones."""
        if isinstance(self.weights, str):
            return np.full(n, 1 / n)
        weights = as_numbers("weights", self.weights)
        if weights.shape != (n,) or not (weights >= 0).all() or not weights.any():
            raise ValueError(
                f"weights must be {n} non-negative numbers, one for each expert, not all zero."
            )
        return weights

    def _folds(
        self, X: np.ndarray, sample_weight: np.ndarray | None, random: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray | None, list[tuple[np.ndarray, np.ndarray]]]:
        """Rows for `weights_`, their weights, and the indices of those to fit and to score.

        Copies of a row are in one fold, and rows without which a column would not vary are in none.
        """
        first, member = distinct_numbers_of(X)
        some = np.arange(len(first))
        if len(first) > MOST_ROWS:
            some = random.permutation(len(first))[:MOST_ROWS]
        place = np.full(len(first), -1)
        place[some] = np.arange(len(some))
        rows = np.argsort(place[member], kind="stable")[(place[member] < 0).sum() :]
        rows = np.concatenate([rows, that_vary(X, rows)])
        X, member, of_row = take_rows(X, rows), member[rows], place[member[rows]]
        folds = []
        for _, out in KFold(N_FOLDS, shuffle=True, random_state=random).split(some):
            test = np.isin(of_row, out)
            train = np.flatnonzero(~test & (of_row >= 0))
            added = that_vary(X, train)
            test &= ~np.isin(member, member[added])
            folds.append((np.sort(np.concatenate([train, added])), np.flatnonzero(test)))
        return X, None if sample_weight is None else sample_weight[rows], folds

    # ---------------------------------------------------------------- log Z

    def _log_densities(self, X: Any) -> np.ndarray:
        """Normalised log densities by all experts, (n, K)."""
        return log_densities(list(self.experts_.values()), X)

    def _proposals(self, n: int, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the mixture in random order, and log of the product over the mixture at each."""
        share = self.weights_ / self.weights_.sum()
        used = share > 0
        x = draw_mixture(list(self.experts_.values()), share, n, random)
        log_q = self._log_densities(x)[:, used]
        return x, log_q @ self.weights_[used] - logsumexp(log_q + np.log(share[used]), axis=1)

    def _proposals_at_temperature(self, temperature: float) -> tuple[Propose, float]:
        """Proposals of the power 1 / T from a mixture of experts at T, and a log bound, or inf.

        For weights that sum to one the mixture is above the power: a weighted geometric mean of
        powers that are each below a multiple of an expert at T is below their weighted sum.
        """
        used = [(w, q) for w, q in zip(self.weights_, self.experts_.values(), strict=True) if w]
        found = [temper_expert(q, temperature) for _, q in used]
        weights = np.array([w for w, _ in used])
        bounds = np.array([bound for _, bound in found])
        log_share = np.log(weights / weights.sum())
        log_bound = math.inf
        if self._is_pool and np.isfinite(bounds).all():
            log_bound = float(logsumexp(log_share + bounds))
            log_share = log_share + bounds - log_bound

        def propose(n: int, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
            proposals = [q for q, _ in found]
            x = draw_mixture(proposals, np.exp(log_share), n, random)
            log_r = logsumexp(log_densities(proposals, x) + log_share, axis=1)
            log_p = log_densities([q for _, q in used], x) @ weights / temperature
            return x, log_p - log_r

        return propose, log_bound

    @property
    def _is_pool(self) -> bool:
        """Whether the weights sum to one, so that the product is nowhere above the mixture."""
        return math.isclose(float(self.weights_.sum()), 1.0, rel_tol=1e-9)

    def _log_partition(self) -> LogPartition:
        check_is_fitted(self)
        log_z = self._log_z
        with lock_of(self):
            if log_z["found"] is None:
                random = np.random.RandomState(log_z["seed"])
                _, log_ratio = self._proposals(int(self.n_draws), random)
                log_z["found"] = self._estimate_of_weights(log_ratio)
        found: LogPartition = log_z["found"]
        return found

    # Written once, for whoever has `_log_partition`.
    log_partition_ = PartitionMixin.log_partition_
    log_partition_std_ = PartitionMixin.log_partition_std_
    log_partition_bounds_ = PartitionMixin.log_partition_bounds_

    def _estimate_of_weights(self, log_ratio: np.ndarray) -> LogPartition:
        """log Z of the energy, from the log importance weights of draws of the mixture."""
        n, experts = len(log_ratio), self.experts_.values()
        # The energy leaves out the normalisers of experts that are energies themselves.
        offset = float(self.weights_ @ np.array([log_normaliser(expert) for expert in experts]))
        value = float(logsumexp(log_ratio)) - math.log(n)
        relative = np.exp(log_ratio - value)
        std_error = float(relative.std(ddof=1)) / math.sqrt(n)
        ess = n / float(np.square(relative).mean())
        lower, upper, reason = value - 2 * std_error, value + 2 * std_error, ""
        if ess < LEAST_ESS:
            lower = upper = std_error = math.nan
            reason = (
                f"the importance weights have an effective sample size of {ess:.1f} of {n}, as the "
                "experts disagree where they have most of their mass"
            )
            warn(
                f"log Z may be wrong by nats: {reason}.",
                LikelihoodWarning,
                ("Raise n_draws, or use experts that are more alike.", "n_draws"),
            )
        if self._is_pool:  # then Z is at most 1 by Hoelder's inequality
            upper = float(np.fmin(upper, 0.0))
        bounds = (lower + offset, upper + offset)
        return LogPartition(value + offset, std_error, *bounds, "probabilistic", ess, reason=reason)

    # ---------------------------------------------------------------- fitted models

    def _joint(self) -> Joint:
        pairs = zip(self.weights_, self.experts_.values(), strict=True)
        used = [(w, expert) for w, expert in pairs if w]

        def energy(x: Tensor) -> Tensor:
            return torch.as_tensor(self._energies_of(x.numpy()))

        exact = all(isinstance(expert, TractableDensity) for _, expert in used)
        if exact:
            share = torch.tensor([w for w, _ in used], dtype=torch.float64)
            parts = [expert.distribution_ for _, expert in used]
            base: Distribution = parts[0] if len(parts) == 1 else Stack(parts, share / share.sum())
        else:
            base = mixture_near(self._query_reference())
        return Joint(base, self._query_table.groups, energy)

    def _query_input(self, X: Any) -> np.ndarray:
        kind: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        found: np.ndarray = validate_data(self, mask_as_missing(X), reset=False, **kind)
        return found

    def _rows_of_input(self, X: np.ndarray) -> Tensor:
        return torch.tensor(X)

    @property
    def _query_table(self) -> Table:
        known = getattr(self, "feature_names_in_", None)
        return plain_number_table(shown_names(known, self.n_features_in_))

    def _query_reference(self) -> Tensor:
        share = self.weights_ / self.weights_.sum()
        random = np.random.RandomState(self._log_z["seed"])
        experts = list(self.experts_.values())
        return torch.tensor(draw_mixture(experts, share, int(self.n_draws), random))

    def _check_rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        found: np.ndarray = validate_data(self, X, dtype=np.float64, reset=False)
        return found

    def energy(self, X: Any) -> np.ndarray:
        """Energy of each row, in nats: minus the weighted sum of the experts' log densities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._energies)

    def _energies(self, X: Any) -> np.ndarray:
        return self._energies_of(self._check_rows(X))

    def _energies_of(self, X: np.ndarray) -> np.ndarray:
        """Energies of validated rows, of which there may be none."""
        if not len(X):
            return np.zeros(0)
        pairs = zip(self.weights_, self.experts_.values(), strict=True)
        parts = [w * relative_log_density(expert, X) for w, expert in pairs if w]
        return -np.asarray(sum(parts))

    def score_samples(self, X: Any) -> np.ndarray:
        """Log p(x) of each row in nats, or of its known entries, with the estimate of log Z.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            NaN marks missing entries.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._over_blocks(X, self._log_densities_of_known)

    def _log_densities_of_known(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = self._query_input(X)
        missing = np.isnan(X).any(1)
        found = np.empty(len(X))
        complete = torch.tensor(X[~missing])
        energies = torch.from_numpy(self._energies_of(X[~missing]))
        found[~missing] = impossible_if_far(-energies, complete).numpy() - self.log_partition_
        if missing.any():
            found[missing] = self._log_marginals(torch.tensor(X[missing])).log_prob
        return found

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows in nats, with the largest credible log Z: pessimistic.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
            nan if log Z has no credible upper end; if the weights sum to one, it always has one.
        """
        return -float(self.energy(X).mean()) - self._log_partition().pessimistic

    def score_function(self, X: Any) -> np.ndarray:
        """Score of each row: the gradient of log p(x), the weighted sum of the experts' scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        X = self._check_rows(X)
        pairs = zip(self.weights_, self.experts_.values(), strict=True)
        return np.asarray(sum(w * score_function(expert, X) for w, expert in pairs if w))

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
    ) -> np.ndarray:
        r"""Draw rows from the product, :math:`p(x)^{1/T}` normalised, by rejection sampling.

        Proposals are drawn from the mixture of the experts. The samples are independent and exact
        if the weights sum to one and at least one proposal in 200 is accepted, which requires Z to
        be at least about 1/200. Otherwise proposals are resampled by their importance weights, with
        a warning: rows may then be repeated, and are approximate.

        At temperatures other than 1, experts of the class :class:`TractableDensity` propose rows at
        that temperature. Samples are exact under the same conditions if all experts are of this
        class and have a bound there (:meth:`TractableDensity.sample`). Other experts propose rows
        at temperature 1, and the proposals are then always resampled.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
        temperature : float, default=1.0
            T > 0, by which the energy is divided: above 1 rows are more random, below 1 nearer to
            the most probable ones.
        given : array-like, data frame, dict or None, default=None
            A row, or `n_samples` rows, of which nan and columns that are left out are drawn given
            the others, as by :meth:`impute`, at temperature 1.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        self._check_draws(n_samples, temperature, given)
        if given is not None:
            found: np.ndarray = self._sample_given(given, int(n_samples), random_state)
            return found
        random, n_samples = check_random_state(random_state), int(n_samples)
        log_bound = 0.0 if self._is_pool else math.inf
        why = "have weights that do not sum to one"
        propose: Any = self._proposals
        if temperature != 1:
            propose, log_bound = self._proposals_at_temperature(temperature)
            if self._is_pool:
                why = f"have no bound at temperature {temperature}"
        if math.isinf(log_bound):
            return resample_proposals(lambda n: propose(n, random), n_samples, random, why)

        def propose_below_bound(n: int) -> tuple[np.ndarray, np.ndarray]:
            x, log_ratio = propose(n, random)
            return x, log_ratio - log_bound

        return draw_by_rejection(propose_below_bound, n_samples, random)


def _weights_by_spread(
    found: list[np.ndarray],
    folds: list[tuple[np.ndarray, np.ndarray]],
    sample_weight: np.ndarray | None,
) -> np.ndarray:
    """Weights inversely proportional to the spread of log densities of held-out rows.

    The log densities `found` are those of all experts in turn, for each fold.
    """
    n = len(found) // len(folds)
    tested = np.concatenate([test for _, test in folds])
    order = np.argsort(tested)
    weight = None if sample_weight is None else sample_weight[tested[order]]
    spread = np.array([_spread(np.concatenate(found[k::n])[order], weight) for k in range(n)])
    # An expert that cannot discriminate rows has no scale: it counts like the others.
    usual = spread[spread > 0].mean() if (spread > 0).any() else 1.0
    weights = 1 / np.where(spread > 0, spread, usual)
    balanced: np.ndarray = weights / weights.sum()
    return balanced


def _spread(values: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Standard deviation of the finite values; 0 where there are none, or all are equal."""
    finite = np.isfinite(values)
    values, weight = values[finite], None if weight is None else weight[finite]
    if not len(values) or np.ptp(values) == 0:
        return 0.0
    if weight is None:
        return float(values.std())
    return math.sqrt(np.average((values - np.average(values, weights=weight)) ** 2, weights=weight))


def log_densities(experts: list[Any], X: Any) -> np.ndarray:
    """Normalised log densities by experts, (n, K)."""
    return np.stack([relative_log_density(q, X) - log_normaliser(q) for q in experts], 1)


def temper_expert(expert: Any, temperature: float) -> tuple[Any, float]:
    """A density near the power 1 / T of an expert, and the log of a bound of their ratio.

    An expert that has no such density stays as it is, without a bound.
    """
    if isinstance(expert, TractableDensity):
        return tempered(expert, temperature)
    return expert, math.inf


def draw_mixture(
    experts: list[Any], share: np.ndarray, n: int, random: np.random.RandomState
) -> np.ndarray:
    """Draws of a mixture of densities, in random order."""
    pairs = zip(experts, random.multinomial(n, share), strict=True)
    x = np.concatenate([draw_rows(expert, int(count), random) for expert, count in pairs if count])
    return x[random.permutation(n)]
