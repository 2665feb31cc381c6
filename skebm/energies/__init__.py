"""Energies: what E(x) is."""

from skebm.energies.bipartite import BernoulliRBM, Moments, Tilted

__all__ = ["BernoulliRBM", "Moments", "Tilted"]
