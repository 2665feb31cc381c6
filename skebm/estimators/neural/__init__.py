"""Neural densities and classifiers: a network that corrects a base."""

from skebm.estimators.neural.conditional import ConditionalDensity, lagged
from skebm.estimators.neural.contrastive import (
    ContrastiveDivergenceDensity,
    Discrepancy,
    Likelihood,
)
from skebm.estimators.neural.flow_contrastive import FlowContrastiveDensity
from skebm.estimators.neural.jem import Hybrid, JEMClassifier
from skebm.estimators.neural.noise_contrastive import NCEDensity
from skebm.estimators.neural.score_matching import ScoreMatchingDensity, Sliced

__all__ = [
    "ConditionalDensity",
    "ContrastiveDivergenceDensity",
    "Discrepancy",
    "FlowContrastiveDensity",
    "Hybrid",
    "JEMClassifier",
    "Likelihood",
    "NCEDensity",
    "ScoreMatchingDensity",
    "Sliced",
    "lagged",
]
