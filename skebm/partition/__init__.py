"""Partition functions: estimates of log Z and bounds on it."""

from skebm.partition.annealed import AIS, ReverseAIS
from skebm.partition.bracket import AISBracket
from skebm.partition.bridge import BridgeSampling
from skebm.partition.choice import Choice, choose
from skebm.partition.comparison import compare
from skebm.partition.exact import Exact, cheaper_side, exact_draws, log_z_cost
from skebm.partition.given import ConditionalAIS
from skebm.partition.importance import ImportanceSampling
from skebm.partition.pairwise.bethe import Bethe
from skebm.partition.pairwise.perturb_and_map import PerturbAndMAP
from skebm.partition.pairwise.tree_reweighted import TreeReweighted
from skebm.partition.quadrature import Quadrature
from skebm.partition.trajectory import TrajectoryAIS

__all__ = [
    "AIS",
    "AISBracket",
    "Bethe",
    "BridgeSampling",
    "Choice",
    "ConditionalAIS",
    "Exact",
    "ImportanceSampling",
    "PerturbAndMAP",
    "Quadrature",
    "TrajectoryAIS",
    "ReverseAIS",
    "TreeReweighted",
    "cheaper_side",
    "exact_draws",
    "choose",
    "compare",
    "log_z_cost",
]
