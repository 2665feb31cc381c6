"""Models of several hidden layers."""

from skebm.estimators.deep.belief import DeepBeliefNetwork
from skebm.estimators.deep.machine import DeepBoltzmannMachine

__all__ = ["DeepBeliefNetwork", "DeepBoltzmannMachine"]
