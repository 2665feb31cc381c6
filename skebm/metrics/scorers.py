"""Scorers of densities, for ``scoring=`` of cross-validation and grid search. Higher is better.

Each is an unweighted mean over rows; ``score`` of scikit-learn's KernelDensity is a sum, that of
its GaussianMixture a mean. A value of nan is returned as nan, so that a search shows which model
failed. In a pipeline the density is that of the rows that reach the last step: the scorers compare
models after the same transformation, not transformations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skebm.estimators.queries.densities import (
    check_normalised,
    hyvarinen,
    input_of_last_step,
    last_step,
    log_density,
    pessimistic_log_likelihood,
)


def converged_score(estimator: Any, X: Any = None, y: Any = None) -> float:
    """1 if the fit of an estimator has converged, 0 if it warned of its training.

    As one of several scores of a search, its mean over the folds says which candidates had not
    converged, by processes as well, which do not pass warnings on.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator, or a pipeline, search or detector that ends in one. One without the
        attribute ``converged_`` has nothing that converges.
    X, y : object
        Not used; part of the signature of scorers.

    Returns
    -------
    float
        0 or 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skebm import RBMEstimator
    >>> from skebm.metrics import converged_score, log_likelihood_score
    >>> X = (np.random.default_rng(0).random((60, 4)) < 0.5).astype(float)
    >>> search = GridSearchCV(
    ...     RBMEstimator(2, n_iter=2, random_state=0),
    ...     {"learning_rate": [0.01, 0.1]},
    ...     scoring={"log_likelihood": log_likelihood_score, "converged": converged_score},
    ...     refit="log_likelihood",
    ...     cv=2,
    ... ).fit(X)
    >>> search.cv_results_["mean_test_converged"].tolist()
    [1.0, 1.0]
    """
    _, final = last_step(estimator)
    return float(getattr(final, "converged_", True))


def log_likelihood_score(estimator: Any, X: Any, y: Any = None) -> float:
    """Mean log p(x), in nats per row, by the estimator's ``score_samples``.

    This is a strictly proper scoring rule for normalised densities. If log Z is estimated, the
    score has the error of that estimate, and may be too high for a model whose chains mix badly:
    see :func:`pessimistic_log_likelihood_score`.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator whose ``score_samples`` is log p(x); that of scikit-learn's BernoulliRBM is
        not. Outlier detectors of scikit-learn and models with ``partition=None`` are refused.
    X : array-like of shape (n_samples, n_features)
        Held-out rows.
    y : None
        Not used; part of the signature of scorers.

    Returns
    -------
    float
        Higher is better. For continuous data it is a log-density, which may be positive and depends
        on the units.

    References
    ----------
    Gneiting and Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA
    102(477), section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn.neighbors import KernelDensity
    >>> from skebm.metrics import log_likelihood_score
    >>> X = np.random.default_rng(0).normal(size=(200, 1))
    >>> widths = {"bandwidth": [0.01, 0.3, 3.0]}
    >>> GridSearchCV(KernelDensity(), widths, scoring=log_likelihood_score).fit(X).best_params_
    {'bandwidth': 0.3}
    """
    check_normalised(estimator)
    return float(np.mean(log_density(estimator, X)))


def pessimistic_log_likelihood_score(estimator: Any, X: Any, y: Any = None) -> float:
    """Mean log p(x), in nats per row, with the largest credible log Z.

    This is a low estimate. If log Z is exact, or the density is not one of skebm, it equals
    :func:`log_likelihood_score`; if log Z is estimated, its uncertainty lowers the score, so
    that a search does not favour models that are hard to normalise.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator whose ``score_samples`` is log p(x), as for :func:`log_likelihood_score`.
    X : array-like of shape (n_samples, n_features)
        Held-out rows.
    y : None
        Not used; part of the signature of scorers.

    Returns
    -------
    float
        Higher is better.

    References
    ----------
    Burda, Grosse and Salakhutdinov (2015), "Accurate and conservative estimates of MRF
    log-likelihood using reverse annealing", AISTATS (conservative estimates).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> from skebm.metrics import log_likelihood_score, pessimistic_log_likelihood_score
    >>> X = (np.random.default_rng(0).random((50, 4)) < 0.3).astype(float)
    >>> rbm = RBMEstimator(n_components=2, n_iter=2, random_state=0).fit(X)
    >>> exact = log_likelihood_score(rbm, X)  # log Z is exact for few states
    >>> bool(np.isclose(pessimistic_log_likelihood_score(rbm, X), exact))
    True
    """
    return pessimistic_log_likelihood(estimator, X)


def hyvarinen_score(estimator: Any, X: Any, y: Any = None) -> float:
    r"""Minus the mean Hyvärinen score: a proper rule for continuous densities without log Z.

    .. math:: -\frac1n \sum_i \Bigl( \Delta \log p(x_i)
        + \tfrac12 \bigl\| \nabla \log p(x_i) \bigr\|^2 \Bigr)

    Up to a constant that depends on the true density only, it is minus the Fisher divergence from
    the true density. It is insensitive to the masses of well separated modes, and depends on the
    units of the columns: a column of small standard deviation outweighs the others, so standardise
    them.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator with known first and second derivatives of log p, such as a Gaussian
        mixture or a Gaussian kernel density of scikit-learn.
    X : array-like of shape (n_samples, n_features)
        Held-out rows.
    y : None
        Not used; part of the signature of scorers.

    Returns
    -------
    float
        Higher is better, in inverse squared units of X.

    References
    ----------
    Hyvärinen (2005), "Estimation of non-normalized statistical models by score matching", JMLR 6,
    equation 4. Parry, Dawid and Lauritzen (2012), "Proper local scoring rules", Annals of
    Statistics 40(1) (propriety).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm.metrics import hyvarinen_score
    >>> X = np.random.default_rng(0).normal(size=(500, 1))
    >>> round(hyvarinen_score(GaussianMixture().fit(X), X), 2)  # 1 / (2 variance), the best
    0.49
    """
    return float(-np.mean(hyvarinen(estimator, X)))


def pseudo_log_likelihood_score(estimator: Any, X: Any, y: Any = None) -> float:
    """Mean pseudo-log-likelihood, in nats per row: a proper rule for discrete rows without log Z.

    It is the sum over columns of log p(x_j given all others). This is neither a lower nor an upper
    bound of log p(x), and like the Hyvärinen score it is insensitive to the masses of well
    separated modes.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator with a method ``pseudo_likelihood`` that returns a value for each row, or a
        pipeline that ends in one.
    X : array-like of shape (n_samples, n_features)
        Held-out rows.
    y : None
        Not used; part of the signature of scorers.

    Returns
    -------
    float
        At most zero; higher is better.

    References
    ----------
    Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3). Dawid,
    Lauritzen and Parry (2012), "Proper local scoring rules on discrete sample spaces", Annals of
    Statistics 40(1).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> from skebm.metrics import pseudo_log_likelihood_score
    >>> X = (np.random.default_rng(0).random((50, 4)) < 0.3).astype(float)
    >>> rbm = RBMEstimator(n_components=2, n_iter=2, random_state=0).fit(X)
    >>> pseudo_log_likelihood_score(rbm, X) < 0
    True
    """
    before, final = last_step(estimator)
    if not hasattr(final, "pseudo_likelihood"):
        raise TypeError(
            f"{type(final).__name__} has no method pseudo_likelihood, which models of discrete "
            "rows have, such as RBMEstimator. Use log_likelihood_score for other models."
        )
    return float(np.mean(final.pseudo_likelihood(input_of_last_step(before, X))))
