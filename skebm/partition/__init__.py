"""Partition functions: what log Z is, and how well it is known."""

from skebm.partition.annealed import AIS, AISBracket, ReverseAIS
from skebm.partition.exact import Exact, log_z_cost

__all__ = ["AIS", "AISBracket", "Exact", "ReverseAIS", "log_z_cost"]
