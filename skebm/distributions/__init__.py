"""Tractable distributions: bases of energies, starts of annealing and of chains, NCE noise."""

from skebm.distributions.base import Distribution, Tilt
from skebm.distributions.bounded import TruncatedGaussian, Uniform
from skebm.distributions.classes import CorrelatedClasses, LatentClasses
from skebm.distributions.gaussian import Gaussian
from skebm.distributions.independent import Columns, IndependentBernoulli, IndependentCategorical
from skebm.distributions.kernel import KernelDensity
from skebm.distributions.low_rank import LowRankMixture
from skebm.distributions.mixture import GaussianMixture
from skebm.distributions.stack import Affine, Stack
from skebm.distributions.transformed.flow import NormalizingFlow
from skebm.distributions.transformed.regression import RegressionMixture, RowMixtures
from skebm.distributions.transformed.signed_log import SignedLog
from skebm.distributions.trees.blocks import BlockTree
from skebm.distributions.trees.categorical import CategoricalTree
from skebm.distributions.trees.chow_liu import ChowLiuTree

__all__ = [
    "Affine",
    "BlockTree",
    "CategoricalTree",
    "ChowLiuTree",
    "Columns",
    "CorrelatedClasses",
    "Gaussian",
    "GaussianMixture",
    "IndependentBernoulli",
    "IndependentCategorical",
    "KernelDensity",
    "LatentClasses",
    "LowRankMixture",
    "Distribution",
    "NormalizingFlow",
    "RegressionMixture",
    "RowMixtures",
    "SignedLog",
    "Stack",
    "Tilt",
    "TruncatedGaussian",
    "Uniform",
]
