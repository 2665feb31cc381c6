"""Displays of fitted models, detectors, chains and estimates of log Z.

matplotlib is imported when something is drawn.
"""

from skebm.inspection.boltzmann.couplings import CouplingDisplay
from skebm.inspection.boltzmann.rbm import RBMDisplay
from skebm.inspection.chains import ChainDisplay
from skebm.inspection.energy import EnergyDisplay
from skebm.inspection.explanations import ExplanationDisplay
from skebm.inspection.histograms import EnergyHistogramDisplay
from skebm.inspection.p_values import PValueDisplay
from skebm.inspection.partition import PartitionDisplay
from skebm.inspection.roc import DetectorROCDisplay
from skebm.inspection.training import TrainingDisplay

__all__ = [
    "ChainDisplay",
    "CouplingDisplay",
    "DetectorROCDisplay",
    "EnergyDisplay",
    "EnergyHistogramDisplay",
    "ExplanationDisplay",
    "PValueDisplay",
    "PartitionDisplay",
    "RBMDisplay",
    "TrainingDisplay",
]
