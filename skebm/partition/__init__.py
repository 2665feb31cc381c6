"""Partition functions: what log Z is, and how well it is known."""

from skebm.partition.annealed import AIS, ReverseAIS
from skebm.partition.bracket import AISBracket
from skebm.partition.exact import Exact, cheaper_side, log_z_cost

__all__ = ["AIS", "AISBracket", "Exact", "ReverseAIS", "cheaper_side", "log_z_cost"]
