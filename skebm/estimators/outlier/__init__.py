"""Outlier detection with any density or score: the detector and the parts that it holds."""

from skebm.estimators.outlier.detector import EnergyOutlierDetector
from skebm.estimators.outlier.ensembles import OutlierEnsemble, merge_p_values
from skebm.estimators.outlier.logits import LogitEnergy
from skebm.estimators.outlier.product import ProductOfDensities
from skebm.estimators.outlier.reasons.explanations import Explanation
from skebm.estimators.outlier.streams import ColumnDrift, StreamMonitor, StreamUpdate
from skebm.estimators.outlier.surprise import RowSurprise

__all__ = [
    "ColumnDrift",
    "EnergyOutlierDetector",
    "Explanation",
    "LogitEnergy",
    "OutlierEnsemble",
    "ProductOfDensities",
    "RowSurprise",
    "StreamMonitor",
    "StreamUpdate",
    "merge_p_values",
]
