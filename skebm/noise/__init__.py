"""Tractable distributions: bases of energies and of annealing, starts of chains, NCE noise."""

from skebm.noise.base import Noise, Tilt
from skebm.noise.blocks import BlockTree
from skebm.noise.gaussian import Gaussian
from skebm.noise.independent import IndependentBernoulli
from skebm.noise.tree import ChowLiuTree
from skebm.noise.uniform import Uniform

__all__ = [
    "BlockTree",
    "ChowLiuTree",
    "Gaussian",
    "IndependentBernoulli",
    "Noise",
    "Tilt",
    "Uniform",
]
