"""Training objectives for energy-based models."""

from skebm.base import Centering, Offsets, Penalty
from skebm.objectives.contrastive import ContrastiveDivergence
from skebm.objectives.discrepancy import EnergyDiscrepancy
from skebm.objectives.flow_contrastive import FlowContrastive, FlowState
from skebm.objectives.joint import JointLikelihood
from skebm.objectives.likelihood import ExactLikelihood
from skebm.objectives.negative_phase import ContrastiveState
from skebm.objectives.noise_contrastive import NoiseContrastive
from skebm.objectives.pseudo_likelihood import pseudo_log_likelihood
from skebm.objectives.refinement import Refinement
from skebm.objectives.score_matching import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
    boundary_weight,
)
from skebm.objectives.walkers import Walkers

__all__ = [
    "Centering",
    "ContrastiveDivergence",
    "ContrastiveState",
    "DenoisingScoreMatching",
    "EnergyDiscrepancy",
    "ExactLikelihood",
    "ExactScoreMatching",
    "FlowContrastive",
    "FlowState",
    "JointLikelihood",
    "MultiscaleScoreMatching",
    "NoiseContrastive",
    "Offsets",
    "Penalty",
    "Refinement",
    "SlicedScoreMatching",
    "Walkers",
    "boundary_weight",
    "pseudo_log_likelihood",
]
