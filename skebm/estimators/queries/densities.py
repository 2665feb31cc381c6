"""Log densities and their derivatives, of anything fitted with ``score_samples``: our
estimators, scikit-learn's densities, and pipelines and searches that end in either.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier, is_outlier_detector
from sklearn.frozen import FrozenEstimator
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from skebm._validation import check_is_fitted, draw_seed, validate_data

# Rows and kernels whose distances are held at a time.
MAX_PAIRS = 4_000_000


def last_step(estimator: Any, *, into_detectors: bool = True) -> tuple[list[Any], Any]:
    """The transformers that X passes, and the last step, which sees what they return.

    Looks into pipelines, searches, frozen estimators and, by default, our own detector.
    """
    before: list[Any] = []
    while True:
        if isinstance(estimator, Pipeline):
            before += [estimator[:-1]] if len(estimator) > 1 else []
            estimator = estimator[-1]
        elif isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):  # a search
            estimator = estimator.best_estimator_
        elif into_detectors and hasattr(estimator, "_density"):  # a detector that scores by log p
            estimator = estimator._density
        else:
            return before, estimator


def input_of_last_step(before: list[Any], X: Any) -> Any:
    """X as the last step sees it."""
    for transformer in before:
        X = transformer.transform(X)
    return X


def log_density(estimator: Any, X: Any) -> np.ndarray:
    """Log p(x) in nats by ``score_samples``, (n,)."""
    if not hasattr(estimator, "score_samples"):
        raise TypeError(
            f"{type(estimator).__name__} has no score_samples, so it gives no log p(x). Densities "
            "have one, such as RBMEstimator, GaussianMixture, KernelDensity, and so do pipelines "
            "that end in one."
        )
    return np.asarray(estimator.score_samples(X))


def fit_weighted(density: Any, X: Any, weight: np.ndarray | None) -> Any:
    """Fit a density to rows of weights (n,); `ValueError` where it takes none."""
    if weight is None:
        return density.fit(X)
    if not has_fit_parameter(density, "sample_weight"):
        raise ValueError(
            f"{type(density).__name__} takes no sample_weight: pass a density that does, such as "
            "TractableDensity, or repeat rows."
        )
    return density.fit(X, sample_weight=weight)


def draw_rows(estimator: Any, n: int, random: np.random.RandomState) -> np.ndarray:
    """Draws of a density of ours, of scikit-learn's, or of anything with ``sample``, (n, d).

    They are seeded by the argument ``random_state``, or by the parameter of that name where the
    method has none, as in scikit-learn's mixtures; what has neither draws as it likes.
    """
    while isinstance(estimator, FrozenEstimator):
        estimator = estimator.estimator
    seed = draw_seed(random)
    if "random_state" in inspect.signature(estimator.sample).parameters:
        return np.asarray(estimator.sample(n, random_state=seed))
    if hasattr(estimator, "random_state"):
        estimator = copy.copy(estimator)
        estimator.random_state = seed
    drawn = estimator.sample(n)
    return np.asarray(drawn[0] if isinstance(drawn, tuple) else drawn)


def relative_log_density(estimator: Any, X: Any) -> np.ndarray:
    """Log p(x) up to a constant that is the same for all rows, (n,): needs no log Z."""
    before, final = last_step(estimator)
    if is_energy_based(final):
        return -np.asarray(final.energy(input_of_last_step(before, X)))
    return log_density(estimator, X)


def log_normaliser(estimator: Any) -> float:
    """The constant that :func:`relative_log_density` leaves out: log Z."""
    _, final = last_step(estimator)
    return float(final.log_partition_) if is_energy_based(final) else 0.0


def is_energy_based(final: Any) -> bool:
    """Whether this is an estimator of ours: an energy whose log Z is found on first need."""
    return hasattr(type(final), "energy") and hasattr(type(final), "log_partition_")


def leaves_out_log_z(final: Any) -> bool:
    """Whether ``score_samples`` is minus an energy, as of ``partition=None``."""
    return is_energy_based(final) and getattr(final, "partition", "auto") is None


def has_normaliser(final: Any) -> bool:
    """Whether this is an estimator of ours with log Z: one for all rows, or one for a condition."""
    return hasattr(type(final), "partition_")


def scores_are_nats(estimator: Any) -> bool:
    """Whether ``score_samples`` is a log density: not that of scikit-learn's outlier detectors."""
    _, final = last_step(estimator)
    return has_normaliser(final) or not is_outlier_detector(final)


def check_normalised(estimator: Any) -> None:
    """Raise unless ``score_samples`` is a log-likelihood, whose mean ranks models."""
    _, final = last_step(estimator)
    if not scores_are_nats(final):
        raise TypeError(
            f"score_samples of {type(final).__name__} is no log-likelihood: its mean does not rank "
            'models. Compare detectors by labels, scoring="roc_auc".'
        )
    if leaves_out_log_z(final):
        # Its score_samples is minus the energy, whose mean grows with the scale of the energy.
        raise ValueError(
            f"{type(final).__name__} was given partition=None, so it has no log-likelihood: use "
            'partition="auto", or a score that needs no log Z.'
        )


def pessimistic_log_likelihood(estimator: Any, X: Any) -> float:
    """Mean log p(x) by the largest credible log Z; exact where the density needs none."""
    check_normalised(estimator)
    before, final = last_step(estimator)
    if is_classifier(final) and is_energy_based(final):  # whose score is its accuracy
        energy = final.energy(input_of_last_step(before, X))
        return -float(np.mean(energy)) - final._log_partition().pessimistic
    if not is_classifier(final) and (is_energy_based(final) or has_normaliser(final)):
        return float(final.score(input_of_last_step(before, X)))
    return float(np.mean(log_density(estimator, X)))


# ------------------------------------------------------------------------------
# Derivatives of log p
# ------------------------------------------------------------------------------


class ScoreAndLaplacian(NamedTuple):
    """First and second derivatives of log p with respect to a row."""

    score: np.ndarray  # grad log p, (n, d)
    laplacian: np.ndarray  # (n,)


def score_function(estimator: Any, X: Any) -> np.ndarray:
    """Score of each row: the gradient of log p there, (n, d), as the last step sees the row."""
    before, final = last_step(estimator)
    X = input_of_last_step(before, X)
    if hasattr(final, "score_function"):
        return np.asarray(final.score_function(X))
    return score_and_laplacian(final, X).score


def hyvarinen(estimator: Any, X: Any) -> np.ndarray:
    """Laplacian of log p plus half the squared norm of its gradient, (n,): lower is better.

    In the units of the row that the last step sees (Hyvärinen 2005, equation 4).
    """
    before, final = last_step(estimator)
    found = score_and_laplacian(final, input_of_last_step(before, X))
    return found.laplacian + np.square(found.score).sum(1) / 2


def score_and_laplacian(final: Any, X: Any) -> ScoreAndLaplacian:
    """Derivatives of log p, where they are known."""
    if hasattr(final, "_score_and_laplacian"):  # a neural density of ours
        return ScoreAndLaplacian(*final._score_and_laplacian(X))
    if isinstance(final, (GaussianMixture, BayesianGaussianMixture)):
        return _mixture_scores(final, X)
    gaussian = isinstance(final, KernelDensity) and final.kernel == "gaussian"
    if gaussian and final.metric == "euclidean":
        return _kernel_scores(final, X)
    raise TypeError(
        f"No derivatives of log p are known for {type(final).__name__}. They are for "
        "ScoreMatchingDensity, GaussianMixture and for KernelDensity with a Gaussian kernel and "
        "Euclidean distances; the first ones also for estimators with a method score_function."
    )


def _mixture_scores(mixture: Any, X: Any) -> ScoreAndLaplacian:
    """Mean of the scores of the components, weighted by responsibility, and its divergence."""
    responsibility = mixture.predict_proba(X)
    X = np.asarray(X, dtype=float)
    score, mean = np.zeros(X.shape), np.zeros(len(X))
    for k, factor in enumerate(precision_factors(mixture)):
        own = -((X - mixture.means_[k]) @ factor) @ factor.T
        score += responsibility[:, k, None] * own
        mean += responsibility[:, k] * (np.square(own).sum(1) - np.square(factor).sum())
    return ScoreAndLaplacian(score, mean - np.square(score).sum(1))


def precision_factors(mixture: Any) -> Iterator[np.ndarray]:
    """A matrix for each component; times its transpose it is the precision."""
    n_features = mixture.means_.shape[1]
    for k in range(len(mixture.means_)):
        factors = mixture.precisions_cholesky_
        if mixture.covariance_type == "tied":
            yield factors
        elif mixture.covariance_type == "full":
            yield factors[k]
        else:  # a number for each feature, or one for all
            yield np.diag(np.broadcast_to(factors[k], n_features))


def _kernel_scores(density: Any, X: Any) -> ScoreAndLaplacian:
    """Derivatives of a mixture with a Gaussian at each training row."""
    check_is_fitted(density)
    X = validate_data(density, X, dtype=np.float64, reset=False)
    centres = np.asarray(density.tree_.data)
    middle = centres.mean(0)  # far from the origin, distances would lose their digits
    X, centres = X - middle, centres - middle
    weight = density.tree_.sample_weight
    log_weight = 0.0 if weight is None else np.log(np.asarray(weight))
    variance = density.bandwidth_**2
    norm = np.square(centres).sum(1)
    score, laplacian = np.empty(X.shape), np.empty(len(X))
    step = max(1, MAX_PAIRS // len(centres))
    for start in range(0, len(X), step):
        part = slice(start, start + step)
        x = X[part]
        distance = np.square(x).sum(1)[:, None] - 2 * x @ centres.T + norm
        distance = distance.clip(min=0)
        log_joint = log_weight - distance / (2 * variance)
        responsibility = np.exp(log_joint - log_joint.max(1, keepdims=True))
        responsibility /= responsibility.sum(1, keepdims=True)
        score[part] = (responsibility @ centres - x) / variance
        mean = (responsibility * distance).sum(1) / variance**2 - X.shape[1] / variance
        laplacian[part] = mean - np.square(score[part]).sum(1)
    return ScoreAndLaplacian(score, laplacian)
