"""Estimators: the scikit-learn surface."""

from skebm.estimators.contrastive import ContrastiveDivergenceDensity
from skebm.estimators.flow_contrastive import FlowContrastiveDensity
from skebm.estimators.jem import JEMClassifier
from skebm.estimators.nce import NCEDensity
from skebm.estimators.outlier import EnergyOutlierDetector, Explanation
from skebm.estimators.rbm import RBMEstimator
from skebm.estimators.score_matching import ScoreMatchingDensity

__all__ = [
    "ContrastiveDivergenceDensity",
    "EnergyOutlierDetector",
    "Explanation",
    "FlowContrastiveDensity",
    "JEMClassifier",
    "NCEDensity",
    "RBMEstimator",
    "ScoreMatchingDensity",
]
