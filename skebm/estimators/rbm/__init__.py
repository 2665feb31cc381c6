"""Restricted Boltzmann machines."""

from skebm.estimators.rbm.classifier import RBMClassifier
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.gated import GatedRBM
from skebm.estimators.rbm.spike_slab import SpikeSlab, SpikeSlabRBM
from skebm.estimators.rbm.subspace import Subspace, SubspaceRBM

__all__ = [
    "GatedRBM",
    "RBMClassifier",
    "RBMEstimator",
    "SpikeSlab",
    "SpikeSlabRBM",
    "Subspace",
    "SubspaceRBM",
]
