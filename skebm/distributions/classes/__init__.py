"""Mixtures of bits, categories and numbers side by side: classes of rows."""

from skebm.distributions.classes.correlated import CorrelatedClasses
from skebm.distributions.classes.latent import LatentClasses

__all__ = ["CorrelatedClasses", "LatentClasses"]
