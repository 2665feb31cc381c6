"""Samplers: Markov chain Monte Carlo for p(x) proportional to exp(-E(x))."""

from skebm.samplers.augmentation import Augmentation, Compose, Flip, Shift
from skebm.samplers.blocks import Blocks
from skebm.samplers.chains import ChainPolicy, FromData, FromNoise, Persistent, ReplayBuffer
from skebm.samplers.discrete import DiscreteLangevin, GibbsWithGradients
from skebm.samplers.gibbs import Gibbs
from skebm.samplers.hamiltonian import HMC
from skebm.samplers.langevin import AnnealedLangevin, Langevin
from skebm.samplers.mala import MALA
from skebm.samplers.metropolis import IndependenceSampler, MetropolisHastings
from skebm.samplers.perturbed_map import PerturbedMAP
from skebm.samplers.tempering import ParallelTempering, TrajectoryTempering

__all__ = [
    "HMC",
    "MALA",
    "AnnealedLangevin",
    "Augmentation",
    "Blocks",
    "ChainPolicy",
    "Compose",
    "DiscreteLangevin",
    "Flip",
    "FromData",
    "FromNoise",
    "Gibbs",
    "GibbsWithGradients",
    "IndependenceSampler",
    "Langevin",
    "MetropolisHastings",
    "ParallelTempering",
    "Persistent",
    "PerturbedMAP",
    "ReplayBuffer",
    "Shift",
    "TrajectoryTempering",
]
