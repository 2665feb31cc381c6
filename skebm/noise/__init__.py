"""Tractable distributions: bases of energies and of annealing, starts of chains, NCE noise."""

from skebm.noise.affine import Affine
from skebm.noise.base import Noise, Tilt
from skebm.noise.blocks import BlockTree
from skebm.noise.categorical import IndependentCategorical
from skebm.noise.flow import NormalizingFlow
from skebm.noise.gaussian import Gaussian
from skebm.noise.independent import IndependentBernoulli
from skebm.noise.kernel import KernelDensity
from skebm.noise.mixture import GaussianMixture
from skebm.noise.tree import ChowLiuTree
from skebm.noise.truncated import TruncatedGaussian
from skebm.noise.uniform import Uniform

__all__ = [
    "Affine",
    "BlockTree",
    "ChowLiuTree",
    "Gaussian",
    "GaussianMixture",
    "IndependentBernoulli",
    "IndependentCategorical",
    "KernelDensity",
    "Noise",
    "NormalizingFlow",
    "Tilt",
    "TruncatedGaussian",
    "Uniform",
]
