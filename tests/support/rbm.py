"""Restricted Boltzmann machines in tests: one estimator of each mode, and fits that are shared."""

import copy
import warnings

import joblib
import numpy as np
from sklearn.base import clone

from skebm import RBMEstimator
from skebm.samplers import Gibbs, ParallelTempering, Persistent
from tests.support.storage import by_pickle

quick = {"n_components": 3, "n_iter": 5, "random_state": 0}

MODES = {
    "pcd": RBMEstimator(**quick, learning="pcd"),
    "exact_tree": RBMEstimator(**quick, base="chow-liu"),
    "auto": RBMEstimator(n_components=3, n_iter=20, random_state=0),
    "cd": RBMEstimator(**quick, base="independent", learning="cd"),
    "exact": RBMEstimator(**quick, learning="exact", learning_rate=0.05),
    "float64": RBMEstimator(**quick, base="independent", learning="pcd", dtype="float64"),
    "early_stopping": RBMEstimator(**quick, learning="pcd", early_stopping=True),
    "no_partition": RBMEstimator(**quick, base="independent", learning="pcd", partition=None),
    "tree": RBMEstimator(**quick, learning="pcd", base="chow-liu"),
    "reweight": RBMEstimator(**quick, chains=Persistent(reweight=True), early_stopping=True),
    "tempering": RBMEstimator(
        **quick, base="independent", learning="pcd", sampler=ParallelTempering(3)
    ),
    "collapsed": RBMEstimator(**quick, base="independent", learning="pcd", sampler=Gibbs(2)),
}

# Methods that take rows.
METHODS = (
    "decision_function",
    "denoise",
    "energy",
    "gibbs",
    "impute",
    "predict",
    "pseudo_likelihood",
    "reconstruct",
    "score",
    "score_samples",
    "transform",
)

_fitted: dict[str, RBMEstimator] = {}


def fit_once(model, X):
    """A copy of the model fitted to X; what is asked for again in this process is not fitted anew.

    The model itself stays as it is.
    """
    key = joblib.hash((model.get_params(deep=False), X))
    if key not in _fitted:
        _fitted[key] = clone(model).fit(X)
    return copy.deepcopy(_fitted[key])


def call(model, method, X):
    """What a method says of rows, by short chains where it needs chains."""
    short = {"n_steps": 5} if method in ("denoise", "impute") else {}
    return getattr(model, method)(X, **short)


def assert_sound(model, X):
    """Finite everywhere, and a probability distribution."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in METHODS:
            assert np.isfinite(call(model, name, X)).all(), name
        draws = model.sample(20, random_state=0)
    assert np.isfinite(draws).all()
    assert draws.shape == (20, X.shape[1])
    assert np.isfinite(model.components_).all()


def assert_usable(model, X):
    """Sound, stored as it is, and trained further."""
    assert_sound(model, X)
    assert set(model.predict(X)) <= {-1, 1}
    assert len(model.history_) == model.n_iter_
    same = by_pickle(model)
    np.testing.assert_array_equal(same.predict(X), model.predict(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(net_params=None).partial_fit(X)
    assert np.abs(same.components_ - model.components_).max() > 0


def independent_score(X):
    """Mean log-likelihood of the columns' own frequencies: the best model without interactions."""
    p = np.clip(X.mean(0), 1e-12, 1 - 1e-12)
    return float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())
