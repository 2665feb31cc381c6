"""Fully visible Boltzmann machines."""

from skebm.estimators.boltzmann.estimator import BoltzmannMachineDensity
from skebm.estimators.boltzmann.structure import SparsityPath

__all__ = ["BoltzmannMachineDensity", "SparsityPath"]
