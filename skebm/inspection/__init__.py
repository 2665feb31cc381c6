"""Displays of fitted models, detectors, chains and estimates of log Z, and reports of models.

matplotlib is imported when something is drawn.
"""

import sys

from skebm.base.processes import enter_all
from skebm.inspection.boltzmann.couplings import CouplingDisplay
from skebm.inspection.boltzmann.rbm import RBMDisplay
from skebm.inspection.chains import ChainDisplay
from skebm.inspection.detection.histograms import EnergyHistogramDisplay
from skebm.inspection.detection.p_values import PValueDisplay
from skebm.inspection.detection.roc import DetectorROCDisplay
from skebm.inspection.energy import EnergyDisplay
from skebm.inspection.explanations import ExplanationDisplay
from skebm.inspection.partition import PartitionDisplay
from skebm.inspection.queries import ConditionalDisplay, PartialDisplay
from skebm.inspection.reports.report import Report, report
from skebm.inspection.sequences import PianoRollDisplay, TrajectoryDisplay
from skebm.inspection.training import TrainingDisplay

__all__ = [
    "ChainDisplay",
    "ConditionalDisplay",
    "CouplingDisplay",
    "DetectorROCDisplay",
    "EnergyDisplay",
    "EnergyHistogramDisplay",
    "ExplanationDisplay",
    "PValueDisplay",
    "PartialDisplay",
    "PartitionDisplay",
    "PianoRollDisplay",
    "RBMDisplay",
    "Report",
    "TrainingDisplay",
    "TrajectoryDisplay",
    "report",
]

enter_all(sys.modules[__name__])
