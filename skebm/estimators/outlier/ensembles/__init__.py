"""Ensembles of detectors of any kind, combined by conformal p-values."""

from skebm.estimators.outlier.ensembles.ensemble import OutlierEnsemble
from skebm.estimators.outlier.ensembles.merging import merge_p_values

__all__ = ["OutlierEnsemble", "merge_p_values"]
