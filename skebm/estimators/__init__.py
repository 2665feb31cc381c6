"""Estimators: the scikit-learn surface."""

from skebm.estimators.rbm import RBMEstimator

__all__ = ["RBMEstimator"]
