"""Training objectives for energy-based models."""

from skebm.base import Centering, Offsets, Penalty
from skebm.objectives.contrastive import ContrastiveDivergence
from skebm.objectives.discrepancy import EnergyDiscrepancy
from skebm.objectives.flow_contrastive import FlowContrastive, FlowState
from skebm.objectives.joint import JointLikelihood
from skebm.objectives.likelihood import EnumeratedLikelihood, ExactLikelihood
from skebm.objectives.local import (
    CenteredObjective,
    LocalObjective,
    ProbabilityFlow,
    PseudoLikelihood,
    RatioMatching,
    pseudo_log_likelihood,
)
from skebm.objectives.negative_phase import ContrastiveState
from skebm.objectives.noise_contrastive import NoiseContrastive
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
    "CenteredObjective",
    "Centering",
    "ContrastiveDivergence",
    "ContrastiveState",
    "DenoisingScoreMatching",
    "EnergyDiscrepancy",
    "EnumeratedLikelihood",
    "ExactLikelihood",
    "ExactScoreMatching",
    "FlowContrastive",
    "FlowState",
    "JointLikelihood",
    "LocalObjective",
    "MultiscaleScoreMatching",
    "NoiseContrastive",
    "Offsets",
    "Penalty",
    "ProbabilityFlow",
    "PseudoLikelihood",
    "RatioMatching",
    "Refinement",
    "SlicedScoreMatching",
    "Walkers",
    "boundary_weight",
    "pseudo_log_likelihood",
]
