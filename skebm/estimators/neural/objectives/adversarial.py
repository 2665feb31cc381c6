"""Settings of adversarial training, for ``Hybrid`` of joint energy-based models."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skebm._validation import Interval
from skebm.base import Real as RealDomain
from skebm.estimators.tables.table import Table
from skebm.objectives import SignAttack


class Attack(BaseEstimator):
    r"""Settings of adversarial training of the classes: steps against the class of each row.

    Rows of the cross-entropy are moved by projected gradient ascent within a box of half the width
    `radius` around them, which starts at a random point of the box [1]_. A classifier that is
    trained so keeps its class when no entry of a row changes by more than that, at a price in
    accuracy on rows that nobody moves.

    Parameters
    ----------
    radius : float
        Largest change of an entry, in the units of X: 8 / 255 for pixels from 0 to 1, 8 for bytes.
    n_steps : int >= 1, default=5
        Number of steps. Each is a forward and a backward pass over the batch.
    step_size : float or None, default=None
        Length of a step in units of the radius; None is 2.5 / `n_steps`, with which every point of
        the box is within reach.

    References
    ----------
    .. [1] Madry, Makelov, Schmidt, Tsipras and Vladu (2018), "Towards deep learning models
       resistant to adversarial attacks", ICLR.

    Examples
    --------
    >>> from skebm import JEMClassifier
    >>> from skebm.estimators import Attack, Hybrid
    >>> JEMClassifier(objective=Hybrid(attack=Attack(8 / 255, n_steps=3))).objective.attack.n_steps
    3
    """

    _parameter_constraints: dict = {
        "radius": [Interval(Real, 0, None, closed="neither")],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "step_size": [Interval(Real, 0, None, closed="neither"), None],
    }

    def __init__(self, radius, *, n_steps=5, step_size=None):
        self.radius = radius
        self.n_steps = n_steps
        self.step_size = step_size


class Adversarial(BaseEstimator):
    r"""Settings of negatives by gradient ascent, in place of chains, for p(x) of a joint model.

    .. math:: \mathbb E_{data} \log(1 + e^{-g(x)}) + \mathbb E_{neg} \log(1 + e^{g(x')})

    is minimised in place of minus the log-likelihood [1]_, where g is the log-sum-exp of the
    logits. A negative starts at a draw of the base, or at one of the rows `start`, and takes a
    random number of steps along the gradient of g. There is no sampler that could diverge, and
    rows are not compared with draws of the model: g separates them from what the model itself
    would take for them.

    This is no maximum likelihood, and g is no log-ratio of two densities, but with ``n_steps=0``,
    which is noise contrastive estimation. p(x) of the fitted model is nevertheless normalised, with
    an error: it is the base times :math:`e^{c g}`, where `power_`, c, is the likelihood's choice,
    and 0 where g would make rows less likely than the base does.

    Parameters
    ----------
    n_steps : int >= 0, default=5
        Maximum number of steps of a negative.
    step_size : float, default=0.1
        Root mean square of what a step changes in a row, in standard deviations of the columns (in
        units of X with ``standardize=False``).
    start : array-like of shape (m, ...) or None, default=None
        Rows at which negatives start, such as other images, in the form and the units of X; None
        are draws of the base. Their use has to be told with results on rows like them.

    References
    ----------
    .. [1] Yin, Zhang, Steele, Shavit and Wang (2025), "Joint discriminative-generative modeling via
       dual adversarial training", arXiv:2510.13872.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skebm import JEMClassifier
    >>> from skebm.estimators import Adversarial, Hybrid
    >>> X, y = make_moons(300, noise=0.1, random_state=0)
    >>> objective = Hybrid(negatives=Adversarial(n_steps=3))
    >>> model = JEMClassifier(objective=objective, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: dict = {
        "n_steps": [Interval(Integral, 0, None, closed="left")],
        "step_size": [Interval(Real, 0, None, closed="neither")],
        "start": ["array-like", None],
    }

    def __init__(self, *, n_steps=5, step_size=0.1, start=None):
        self.n_steps = n_steps
        self.step_size = step_size
        self.start = start


def attack_of(settings: Attack | None, radius: np.ndarray | None) -> SignAttack | None:
    """The attack with a radius for each column, (d,), in units of the energy."""
    if settings is None or radius is None:
        return None
    step = 2.5 / settings.n_steps if settings.step_size is None else settings.step_size
    return SignAttack(torch.as_tensor(radius), int(settings.n_steps), float(step))


def radius_of(settings: Attack | None, table: Table) -> np.ndarray | None:
    """The radius in units of the energy, (d,); `ValueError` for rows that are no numbers."""
    if settings is None:
        return None
    settings._validate_params()
    if not isinstance(table.domain, RealDomain):
        raise ValueError(
            f"attack moves numbers a little, and X is {table.domain}: pass attack=None."
        )
    units: Any = table.units
    return np.asarray(settings.radius / units.scale)


def starts_of(settings: Adversarial, table: Table) -> np.ndarray | None:
    """Rows at which negatives start, in units of the energy; None for draws of the base."""
    if not isinstance(table.domain, RealDomain):
        raise ValueError(
            f'negatives="adversarial" are rows of numbers, and X is {table.domain}: use '
            'negatives="chains".'
        )
    if settings.start is None:
        return None
    X = np.asarray(settings.start, dtype=np.float64)
    shape = (len(X), *table.row_shape) if X.ndim else ()
    if X.shape != shape or not len(X) or not np.isfinite(X).all():
        raise ValueError(
            f"start of Adversarial must hold finite rows like X, of shape (m, "
            f"{', '.join(map(str, table.row_shape))}), got shape {X.shape}."
        )
    units: Any = table.units
    found: np.ndarray = units.apply(X.reshape(len(X), -1)).astype(np.float32)
    return found
