"""Samplers: how x ~ exp(-E) is drawn."""

from skebm.samplers.gibbs import Gibbs
from skebm.samplers.tempering import ParallelTempering

__all__ = ["Gibbs", "ParallelTempering"]
