"""Estimators of sequences."""

from skebm.estimators.sequences.estimator import FrameScores, TemporalRBM
from skebm.estimators.sequences.stream import FrameStream

__all__ = ["FrameScores", "FrameStream", "TemporalRBM"]
