"""Restricted Boltzmann machines."""

from skebm.estimators.rbm.classifier import RBMClassifier
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.gated import GatedRBM

__all__ = ["GatedRBM", "RBMClassifier", "RBMEstimator"]
