"""Energies: what E(x) is."""

from skebm.energies.bipartite import BernoulliRBM, Corrected, Moments, Tilted
from skebm.energies.pairwise import BoltzmannMachine, ising_grid
from skebm.energies.path import AnnealingPath, annealing_path

__all__ = [
    "AnnealingPath",
    "BernoulliRBM",
    "BoltzmannMachine",
    "Corrected",
    "Moments",
    "Tilted",
    "annealing_path",
    "ising_grid",
]
