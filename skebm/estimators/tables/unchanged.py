"""Parameters that must not change from a first fit to one that goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from torch import nn

from skebm.distributions import Distribution
from skebm.energies.neural import network_from_state, network_to_state
from skebm.estimators.tables.bases import same_distribution

# What tables, bases, noise and networks are made of. Sizes of hidden layers are seen by the shapes
# of the weights; all other parameters are settings of the training, and new ones are used.
KEPT = (
    "base",
    "bounds",
    "categorical_features",
    "coding",
    "deconvolve",
    "domain",
    "edges",
    "flow",
    "given",
    "hidden",
    "label_order",
    "n_bridges",
    "network",
    "noise",
    "order",
    "pretraining",
    "recurrent",
    "sequence_column",
    "sigma",
    "standardize",
    "unlabeled",
    "visible",
)


def first_parameters(estimator: Any) -> dict[str, Any]:
    """The parameters of an estimator that must not change, as they are now, by name."""
    params = estimator.get_params(deep=False)
    return {name: _snapshot(params[name]) for name in KEPT if name in params}


def check_unchanged(estimator: Any, first: dict[str, Any]) -> None:
    """Raise `ValueError` for a parameter that is not what it was at the first fit, `first`.

    Families that check their base accept its name in the place of ``"auto"``.
    """
    checked = estimator._recipe.family.checks_base
    for name, value in first.items():
        now, value = getattr(estimator, name), network_from_state(value)
        if not (name == "base" and checked):
            check_setting_stays(name, now, value)


def check_setting_stays(name: str, now: Any, first: Any) -> None:
    """Raise `ValueError` for a parameter `name` that is not what it was at the first fit."""
    if not _same_setting(now, first):
        raise ValueError(
            f"{name} was {first!r} at the first fit, and is now {now!r}: with warm_start and "
            "partial_fit it must not change. Clone the estimator to start anew."
        )


def _snapshot(value: Any) -> Any:
    """A value that stays what it is if users change their own object in place."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, nn.Module):
        return network_to_state(value)
    return clone(value, safe=False) if isinstance(value, BaseEstimator) else value


def _same_setting(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, list | tuple | np.ndarray) and isinstance(other, list | tuple | np.ndarray):
        return len(one) == len(other) and all(map(_same_setting, one, other))
    if type(one) is not type(other):
        return isinstance(one, int | float) and isinstance(other, int | float) and one == other
    if isinstance(one, BaseEstimator):
        ours, theirs = one.get_params(deep=False), other.get_params(deep=False)
        return all(_same_setting(value, theirs[name]) for name, value in ours.items())
    if isinstance(one, Distribution):
        return same_distribution(one, other)
    if isinstance(one, nn.Module):
        ours, theirs = one.state_dict(), other.state_dict()
        return ours.keys() == theirs.keys() and all(ours[k].equal(theirs[k]) for k in ours)
    if sp.issparse(one):
        return one.shape == other.shape and (one != other).nnz == 0
    return bool(one == other)
