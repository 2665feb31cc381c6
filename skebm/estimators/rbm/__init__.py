"""Restricted Boltzmann machines."""

from skebm.estimators.rbm.classifier import RBMClassifier
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.subspace import SubspaceRBM

__all__ = ["RBMClassifier", "RBMEstimator", "SubspaceRBM"]
