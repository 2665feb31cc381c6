"""Energies: what E(x) is."""

from skebm.energies.bipartite import BernoulliRBM, Moments, Tilted
from skebm.energies.path import AnnealingPath

__all__ = ["AnnealingPath", "BernoulliRBM", "Moments", "Tilted"]
