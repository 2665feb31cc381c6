"""Restricted Boltzmann machines."""

from skebm.estimators.rbm.classifier import RBMClassifier
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.gated import GatedRBM
from skebm.estimators.rbm.spike_slab import SpikeSlabRBM
from skebm.estimators.rbm.subspace import SubspaceRBM

__all__ = ["GatedRBM", "RBMClassifier", "RBMEstimator", "SpikeSlabRBM", "SubspaceRBM"]
