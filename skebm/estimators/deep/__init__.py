"""Models of several hidden layers."""

from skebm.estimators.deep.belief import DeepBeliefNetwork

__all__ = ["DeepBeliefNetwork"]
