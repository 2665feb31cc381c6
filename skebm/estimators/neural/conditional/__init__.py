"""Conditional densities of real rows."""

from skebm.estimators.neural.conditional.estimator import ConditionalDensity
from skebm.estimators.neural.conditional.table import lagged

__all__ = ["ConditionalDensity", "lagged"]
