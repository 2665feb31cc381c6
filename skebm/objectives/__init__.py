"""Training objectives for energy-based models."""

from skebm.base import Centering, Offsets, Penalty
from skebm.objectives.classes import ClassLikelihood
from skebm.objectives.conditional import ConditionalDivergence
from skebm.objectives.contrastive.divergence import ContrastiveDivergence
from skebm.objectives.contrastive.given import (
    ClampedDivergence,
    GivenConditions,
    RankedConditional,
)
from skebm.objectives.contrastive.negative_phase import ContrastiveState
from skebm.objectives.contrastive.refinement import Refinement
from skebm.objectives.contrastive.walkers import Walkers
from skebm.objectives.deep import AssessedDivergence
from skebm.objectives.discrepancy import EnergyDiscrepancy
from skebm.objectives.flow_contrastive import FlowContrastive, FlowState
from skebm.objectives.joint.adversarial import AdversarialContrast, SignAttack
from skebm.objectives.joint.likelihood import AdversarialJoint, JointLikelihood
from skebm.objectives.likelihood import EnumeratedLikelihood, ExactLikelihood
from skebm.objectives.local import (
    CenteredObjective,
    LocalObjective,
    ProbabilityFlow,
    PseudoLikelihood,
    RatioMatching,
    pseudo_log_likelihood,
)
from skebm.objectives.noise_contrastive.classifier import NoiseContrastive
from skebm.objectives.score_matching import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
    boundary_weight,
)
from skebm.objectives.temporal import LabelDivergence, TemporalDivergence

__all__ = [
    "AdversarialContrast",
    "AdversarialJoint",
    "AssessedDivergence",
    "CenteredObjective",
    "Centering",
    "ClampedDivergence",
    "ClassLikelihood",
    "ConditionalDivergence",
    "ContrastiveDivergence",
    "ContrastiveState",
    "DenoisingScoreMatching",
    "EnergyDiscrepancy",
    "EnumeratedLikelihood",
    "ExactLikelihood",
    "ExactScoreMatching",
    "FlowContrastive",
    "FlowState",
    "GivenConditions",
    "JointLikelihood",
    "LabelDivergence",
    "LocalObjective",
    "MultiscaleScoreMatching",
    "NoiseContrastive",
    "Offsets",
    "Penalty",
    "ProbabilityFlow",
    "PseudoLikelihood",
    "RankedConditional",
    "RatioMatching",
    "Refinement",
    "SignAttack",
    "SlicedScoreMatching",
    "Walkers",
    "boundary_weight",
    "pseudo_log_likelihood",
    "TemporalDivergence",
]
