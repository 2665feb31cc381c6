"""Neural densities and classifiers: a network that corrects a base."""

from skebm.estimators.neural.boosted import BoostedDensity
from skebm.estimators.neural.conditional import ConditionalDensity, lagged
from skebm.estimators.neural.contrastive import ContrastiveDivergenceDensity
from skebm.estimators.neural.density import NeuralDensity
from skebm.estimators.neural.flow_contrastive import FlowContrastiveDensity
from skebm.estimators.neural.jem import Hybrid, JEMClassifier
from skebm.estimators.neural.noise_contrastive import NCEDensity
from skebm.estimators.neural.objectives import (
    Adversarial,
    Attack,
    Boosting,
    ContrastiveDivergenceLearning,
    Discrepancy,
    FlowContrastiveEstimation,
    Likelihood,
    NeuralObjective,
    NoiseContrastiveEstimation,
    ScoreMatching,
    Sliced,
)
from skebm.estimators.neural.score_matching import ScoreMatchingDensity

__all__ = [
    "Adversarial",
    "Attack",
    "BoostedDensity",
    "Boosting",
    "ConditionalDensity",
    "ContrastiveDivergenceDensity",
    "ContrastiveDivergenceLearning",
    "Discrepancy",
    "FlowContrastiveDensity",
    "FlowContrastiveEstimation",
    "Hybrid",
    "JEMClassifier",
    "Likelihood",
    "NCEDensity",
    "NeuralDensity",
    "NeuralObjective",
    "NoiseContrastiveEstimation",
    "ScoreMatching",
    "ScoreMatchingDensity",
    "Sliced",
    "lagged",
]
