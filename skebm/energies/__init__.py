"""Energies: functions E(x) with p(x) proportional to exp(-E(x))."""

from skebm.energies.conditional import ConditionalEnergy, RowwiseEnergy
from skebm.energies.convolutions.convolution import Conv
from skebm.energies.convolutions.residual import ResNet
from skebm.energies.deep import BernoulliDBM, MixedDBM
from skebm.energies.factory import NetworkOf, Spec
from skebm.energies.joint import ClassMarginal
from skebm.energies.networks import MLP, Confined
from skebm.energies.neural import NeuralEnergy, build_network
from skebm.energies.pairwise import (
    BoltzmannMachine,
    grid_edges,
    ising_grid,
)
from skebm.energies.pairwise.correction import PairwiseCorrection
from skebm.energies.path import AnnealingPath, annealing_path
from skebm.energies.rbm.binary import BernoulliRBM, Moments, TemperedCorrection, Tilted
from skebm.energies.rbm.classes import ClassRBM
from skebm.energies.rbm.gated import GatedEnergy, GivenEnergy
from skebm.energies.rbm.mixed import MixedRBM
from skebm.energies.rbm.spike_slab import SpikeSlabEnergy
from skebm.energies.rbm.subspace import SubspaceEnergy
from skebm.energies.rbm.temporal import Biases, RowwiseRBM, Targets, TemporalEnergy
from skebm.energies.rbm.trajectory import TrajectoryEnergy
from skebm.energies.telescope import Telescope, Waymarks, fit_waymarks
from skebm.energies.trees import TreeSum
from skebm.energies.whitening import LowRankWhitening, Whitening, whitening_of

__all__ = [
    "MLP",
    "ClassMarginal",
    "ClassRBM",
    "AnnealingPath",
    "BernoulliDBM",
    "Biases",
    "BernoulliRBM",
    "BoltzmannMachine",
    "ConditionalEnergy",
    "Confined",
    "Conv",
    "GatedEnergy",
    "GivenEnergy",
    "MixedDBM",
    "MixedRBM",
    "TemperedCorrection",
    "Moments",
    "NetworkOf",
    "NeuralEnergy",
    "PairwiseCorrection",
    "ResNet",
    "RowwiseEnergy",
    "RowwiseRBM",
    "Spec",
    "SpikeSlabEnergy",
    "SubspaceEnergy",
    "Targets",
    "Telescope",
    "TemporalEnergy",
    "Tilted",
    "TrajectoryEnergy",
    "TreeSum",
    "Waymarks",
    "LowRankWhitening",
    "Whitening",
    "annealing_path",
    "build_network",
    "fit_waymarks",
    "grid_edges",
    "ising_grid",
    "whitening_of",
]
