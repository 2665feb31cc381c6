"""Estimators of sequences."""

from skebm.estimators.sequences.classifier import TemporalRBMClassifier
from skebm.estimators.sequences.detector import SequenceOutlierDetector
from skebm.estimators.sequences.estimator import FrameScores, TemporalRBM

__all__ = ["FrameScores", "SequenceOutlierDetector", "TemporalRBM", "TemporalRBMClassifier"]
