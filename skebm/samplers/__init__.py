"""Samplers: how x ~ exp(-E) is drawn."""

from skebm.samplers.gibbs import Gibbs

__all__ = ["Gibbs"]
