"""Tractable distributions: bases of energies and of annealing, starts of chains, NCE noise."""

from skebm.noise.base import Noise, Tilt
from skebm.noise.blocks import BlockTree
from skebm.noise.independent import IndependentBernoulli
from skebm.noise.tree import ChowLiuTree

__all__ = ["BlockTree", "ChowLiuTree", "IndependentBernoulli", "Noise", "Tilt"]
