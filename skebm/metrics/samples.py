"""Quality of a model's samples and scores where the true density is known."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import KDTree
from sklearn.utils import check_array

from skebm.estimators.queries.densities import score_function
from skebm.metrics._checks import Floats, numbers_of


def mode_mass_distance(
    X: Any, modes: Any, masses: Any = None, *, max_distance: float | None = None
) -> float:
    r"""Total variation distance between the fractions of samples at the modes and the true masses.

    Every sample is assigned to its nearest mode, in Euclidean distance:

    .. math:: \tfrac12 \sum_k |s_k - m_k| + \tfrac12 u

    where :math:`s_k` is the fraction of the samples at mode k, :math:`m_k` its mass, and u the
    fraction assigned to no mode. It is 0 if all masses are right; a missed mode adds its mass.

    It is biased upward in small samples: for n independent exact draws from K modes of equal mass
    it is about :math:`\sqrt{(K - 1) / (2 \pi n)}`, for example 0.04 for ten modes and a thousand
    draws. For dependent draws n is the effective sample size.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Samples of the model.
    modes : array-like of shape (n_modes, n_features)
        Locations of the modes, in the units of X.
    masses : array-like of shape (n_modes,) or None, default=None
        Probabilities of the regions nearest to each mode: for well separated modes the mixing
        weights. They are non-negative and sum to 1. None means equal masses.
    max_distance : float or None, default=None
        Samples farther than this from every mode are assigned to none, and count as missed mass. It
        is in the units of X; None is no limit.

    Returns
    -------
    float
        In [0, 1]; lower is better. The distribution within a mode has no influence.

    References
    ----------
    Che, Li, Jacob, Bengio and Li (2017), "Mode regularized generative adversarial networks", ICLR,
    and Metz, Poole, Pfau and Sohl-Dickstein (2017), "Unrolled generative adversarial networks",
    ICLR (counts of samples by mode).

    Examples
    --------
    >>> from skebm.metrics import mode_mass_distance
    >>> X = [[0.1, 0.0], [0.0, 0.2], [-0.1, 0.0], [4.9, 5.0]]
    >>> modes = [[0.0, 0.0], [5.0, 5.0]]
    >>> mode_mass_distance(X, modes)
    0.25
    >>> mode_mass_distance(X, modes, masses=[0.75, 0.25])
    0.0
    """
    X = check_array(X, dtype=np.float64, input_name="X")
    modes = check_array(modes, dtype=np.float64, input_name="modes")
    if X.shape[1] != modes.shape[1]:
        raise ValueError(f"X has {X.shape[1]} features, but modes have {modes.shape[1]}.")
    masses = _check_masses(masses, len(modes))
    # Not by squared norms, which lose precision far from the origin.
    distance, nearest = KDTree(modes).query(X)
    if max_distance is not None:
        if not isinstance(max_distance, Real) or not max_distance >= 0:
            raise ValueError(f"max_distance must be a number of at least 0, got {max_distance!r}.")
        nearest = nearest[distance <= max_distance]
    fraction = np.bincount(nearest, minlength=len(modes)) / len(X)
    unassigned = 1 - len(nearest) / len(X)
    return float(np.abs(fraction - masses).sum() + unassigned) / 2


class FisherDivergence(NamedTuple):
    """An estimate of the Fisher divergence between two densities, from draws of one of them.

    Attributes
    ----------
    value : float
        The divergence, in inverse squared units of X.
    std_error : float
        Standard error of the mean over independent rows; infinite for a single row.
    """

    value: float
    std_error: float


def fisher_divergence(score: Any, true_score: Any, X: Any) -> FisherDivergence:
    r"""Fisher divergence: half the mean squared distance of two scores under the true density.

    .. math:: \tfrac12 \, E_{x \sim p} \bigl\| \nabla_x \log q(x) - \nabla_x \log p(x) \bigr\|^2

    It is unbiased if the rows of X are draws from the true density p. It needs no normaliser of
    either density, is insensitive to the masses of well separated modes, and depends on the units
    of X.

    Parameters
    ----------
    score : callable, estimator or array-like of shape (n_samples, n_features)
        Score of the model, the gradient of log q: a function of X, a fitted estimator (with a
        method ``score_function``, or a Gaussian mixture or kernel density of scikit-learn), or the
        values of the score at the rows of X.
    true_score : callable, estimator or array-like of shape (n_samples, n_features)
        Score of the true density, the gradient of log p, in one of the same forms.
    X : array-like of shape (n_samples, n_features)
        Draws from p.

    Returns
    -------
    FisherDivergence
        Value and standard error; the value is 0 only where the scores are equal.

    References
    ----------
    Hyvärinen (2005), "Estimation of non-normalized statistical models by score matching", JMLR 6,
    equation 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.metrics import fisher_divergence
    >>> X = np.random.default_rng(0).normal(size=(1000, 2))
    >>> divergence = fisher_divergence(lambda x: -x / 4, lambda x: -x, X)  # twice as wide
    >>> round(divergence.value, 2), round(divergence.std_error, 2)  # 9 / 16 is the exact value
    (0.56, 0.02)
    """
    rows = check_array(X, dtype=np.float64, input_name="X")
    # Estimators get X as it was passed: a frame has the names they were fitted with.
    difference = _scores(score, X, rows, "score") - _scores(true_score, X, rows, "true_score")
    values = np.square(difference).sum(1) / 2
    n = len(values)
    error = values.std(ddof=1) / math.sqrt(n) if n > 1 else math.inf
    return FisherDivergence(float(values.mean()), float(error))


def _check_masses(masses: Any, n_modes: int) -> Floats:
    if masses is None:
        return np.full(n_modes, 1 / n_modes)
    masses = numbers_of(masses, "masses")
    if len(masses) != n_modes:
        raise ValueError(f"masses must be one for each of {n_modes} modes, got {len(masses)}.")
    if (masses < 0).any() or abs(masses.sum() - 1) > 1e-6:
        raise ValueError("masses must be non-negative and sum to 1.")
    return masses / masses.sum()


def _scores(score: Any, X: Any, rows: Floats, name: str) -> Floats:
    """Values of a score at the rows, (n, d)."""
    if callable(score):
        values = score(rows)
    elif hasattr(score, "fit"):
        values = score_function(score, X)
    else:
        values = score
    values = check_array(values, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name=name)
    if values.shape != rows.shape:
        raise ValueError(f"{name} must be of the shape {rows.shape} of X, got {values.shape}.")
    return values
