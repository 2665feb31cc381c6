"""Energies: what E(x) is."""

from skebm.energies.bipartite import BernoulliRBM, Corrected, Moments, Tilted
from skebm.energies.path import AnnealingPath

__all__ = ["AnnealingPath", "BernoulliRBM", "Corrected", "Moments", "Tilted"]
