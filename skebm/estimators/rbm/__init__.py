"""Restricted Boltzmann machines."""

from skebm.estimators.rbm.classifier import RBMClassifier
from skebm.estimators.rbm.estimator import RBMEstimator

__all__ = ["RBMClassifier", "RBMEstimator"]
