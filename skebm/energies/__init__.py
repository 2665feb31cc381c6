"""Energies: what E(x) is."""

from skebm.energies.bipartite import BernoulliRBM, Corrected, Moments, Tilted
from skebm.energies.convolution import Conv
from skebm.energies.joint import Marginal
from skebm.energies.networks import MLP, Confined
from skebm.energies.neural import NeuralEnergy, Spec, Whitening, build_network, whitening_of
from skebm.energies.pairwise import BoltzmannMachine, ising_grid
from skebm.energies.path import AnnealingPath, annealing_path
from skebm.energies.telescope import Telescope, Way, find_way

__all__ = [
    "MLP",
    "Marginal",
    "AnnealingPath",
    "BernoulliRBM",
    "BoltzmannMachine",
    "Confined",
    "Conv",
    "Corrected",
    "Moments",
    "NeuralEnergy",
    "Spec",
    "Telescope",
    "Tilted",
    "Way",
    "Whitening",
    "annealing_path",
    "build_network",
    "find_way",
    "ising_grid",
    "whitening_of",
]
