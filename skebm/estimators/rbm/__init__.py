"""Restricted Boltzmann machines."""

from skebm.estimators.rbm.estimator import RBMEstimator

__all__ = ["RBMEstimator"]
