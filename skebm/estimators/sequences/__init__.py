"""Estimators of sequences."""

from skebm.estimators.sequences.classifier import TemporalRBMClassifier
from skebm.estimators.sequences.detector import SequenceOutlierDetector
from skebm.estimators.sequences.estimator import TemporalRBM
from skebm.estimators.sequences.series import Windows
from skebm.estimators.sequences.stream import FrameStream

__all__ = [
    "FrameStream",
    "SequenceOutlierDetector",
    "TemporalRBM",
    "TemporalRBMClassifier",
    "Windows",
]
