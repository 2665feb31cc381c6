"""Energies: what E(x) is."""

from skebm.energies.bipartite import BernoulliRBM, Corrected, Moments, Tilted
from skebm.energies.convolution import Conv
from skebm.energies.networks import MLP
from skebm.energies.neural import NeuralEnergy, Spec, build_network
from skebm.energies.pairwise import BoltzmannMachine, ising_grid
from skebm.energies.path import AnnealingPath, annealing_path
from skebm.energies.whitening import Whitening, whitening_of

__all__ = [
    "MLP",
    "AnnealingPath",
    "BernoulliRBM",
    "BoltzmannMachine",
    "Conv",
    "Corrected",
    "Moments",
    "NeuralEnergy",
    "Spec",
    "Tilted",
    "Whitening",
    "annealing_path",
    "build_network",
    "ising_grid",
    "whitening_of",
]
