"""Metrics of anomaly detection, calibration and sample quality, and scorers of densities."""

import sys

from skebm.base.processes import enter_all
from skebm.metrics.calibration import expected_calibration_error
from skebm.metrics.detection import (
    Estimate,
    average_precision_bootstrap,
    fpr_at_tpr,
    roc_auc_bootstrap,
    roc_auc_difference,
)
from skebm.metrics.samples import FisherDivergence, fisher_divergence, mode_mass_distance
from skebm.metrics.scorers import (
    converged_score,
    hyvarinen_score,
    log_likelihood_score,
    pessimistic_log_likelihood_score,
    pseudo_log_likelihood_score,
)

__all__ = [
    "Estimate",
    "FisherDivergence",
    "average_precision_bootstrap",
    "converged_score",
    "expected_calibration_error",
    "fisher_divergence",
    "fpr_at_tpr",
    "hyvarinen_score",
    "log_likelihood_score",
    "mode_mass_distance",
    "pessimistic_log_likelihood_score",
    "pseudo_log_likelihood_score",
    "roc_auc_bootstrap",
    "roc_auc_difference",
]

enter_all(sys.modules[__name__])
