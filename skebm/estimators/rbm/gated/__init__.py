"""Gated restricted Boltzmann machines of pairs of rows."""

from skebm.estimators.rbm.gated.estimator import GatedRBM

__all__ = ["GatedRBM"]
