"""Objectives: what is minimised."""

from skebm.objectives._sampled_state import SampledState
from skebm.objectives.contrastive import ContrastiveDivergence, ContrastiveState
from skebm.objectives.discrepancy import EnergyDiscrepancy
from skebm.objectives.flow_contrastive import FlowContrastive, FlowState
from skebm.objectives.joint import JointLikelihood
from skebm.objectives.likelihood import ExactLikelihood
from skebm.objectives.noise_contrastive import NoiseContrastive
from skebm.objectives.pseudo_likelihood import pseudo_log_likelihood
from skebm.objectives.rbm_gradient import Offsets, Regulariser
from skebm.objectives.refinement import Refinement
from skebm.objectives.sampled import SampledLikelihood
from skebm.objectives.score_matching import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
    boundary_weight,
)
from skebm.objectives.walkers import Walkers

__all__ = [
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
    "Refinement",
    "Regulariser",
    "SampledLikelihood",
    "SampledState",
    "SlicedScoreMatching",
    "Walkers",
    "pseudo_log_likelihood",
    "boundary_weight",
]

from skebm.objectives._shim import (
    Centering,
    ContrastiveDivergence,
    ExactLikelihood,
    JointLikelihood,
    Penalty,
)
