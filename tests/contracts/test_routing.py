"""Weights that scikit-learn's metadata routing passes, in every estimator that takes weights."""

import inspect
import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from skebm import EnergyOutlierDetector, GatedRBM
from tests.support.estimators import FITS
from tests.support.tiers import leading

TAKERS = [
    kind
    for kind in FITS
    if kind is EnergyOutlierDetector or "sample_weight" in inspect.signature(kind.fit).parameters
]
METHODS = ("score_samples", "transform", "predict")


def results(model, X, y):
    """What a fitted model says of its rows."""
    name = next(name for name in METHODS if hasattr(model, name))
    pairs = y if isinstance(model, GatedRBM) else []
    return np.asarray(getattr(model, name)(X, *pairs), dtype=float)


def test_most_estimators_take_weights():
    assert len(TAKERS) > 15


@pytest.mark.parametrize(
    "kind",
    leading(4, [EnergyOutlierDetector, *(k for k in TAKERS if k is not EnergyOutlierDetector)]),
)
def test_a_pipeline_routes_weights(kind):
    model, X, *y = FITS[kind]
    weight = 1.0 + np.arange(len(X)) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = clone(model).fit(X, *y, sample_weight=weight)
        with config_context(enable_metadata_routing=True):
            step = clone(model).set_fit_request(sample_weight=True)
            routed = make_pipeline(step).fit(X, *y, sample_weight=weight)
        found, expected = results(routed[-1], X, y), results(plain, X, y)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
