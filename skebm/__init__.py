"""Energy-based models as scikit-learn estimators.

One convention everywhere: p(x) = exp(-E(x)) / Z, so lower energy means more likely, and
``score_samples`` is log p(x) in nats, higher = more likely.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from skebm import base, diagnostics, distributions, energies, objectives, partition, samplers
from skebm.estimators import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBeliefNetwork,
    DeepBoltzmannMachine,
    DensityClassifier,
    DensityImputer,
    DensityRegressor,
    EnergyOutlierDetector,
    Explanation,
    FlowContrastiveDensity,
    GatedRBM,
    HopfieldMemory,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    OutlierEnsemble,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    RowSurprise,
    ScoreMatchingDensity,
    SequenceOutlierDetector,
    SpikeSlabRBM,
    StreamMonitor,
    SubspaceRBM,
    TableEncoder,
    TemporalRBM,
    TemporalRBMClassifier,
    TractableDensity,
    Windows,
)
from skebm.estimators.storage import load, package_version, trusted_types

if TYPE_CHECKING:
    from skebm import export as export
    from skebm import inspection as inspection
    from skebm import metrics as metrics

__version__ = package_version()

__all__ = [
    "BoltzmannMachineDensity",
    "BoostedDensity",
    "ConditionalDensity",
    "ContrastiveDivergenceDensity",
    "DeepBeliefNetwork",
    "DeepBoltzmannMachine",
    "DensityClassifier",
    "DensityImputer",
    "DensityRegressor",
    "EnergyOutlierDetector",
    "Explanation",
    "FlowContrastiveDensity",
    "GatedRBM",
    "HopfieldMemory",
    "JEMClassifier",
    "NCEDensity",
    "NeuralDensity",
    "OutlierEnsemble",
    "ProductOfDensities",
    "RBMClassifier",
    "RBMEstimator",
    "RowSurprise",
    "ScoreMatchingDensity",
    "SpikeSlabRBM",
    "StreamMonitor",
    "SubspaceRBM",
    "TableEncoder",
    "SequenceOutlierDetector",
    "TemporalRBM",
    "TemporalRBMClassifier",
    "TractableDensity",
    "Windows",
    "base",
    "diagnostics",
    "energies",
    "distributions",
    "load",
    "objectives",
    "partition",
    "samplers",
    "trusted_types",
]

# Packages that are imported when they are first asked for, as ``skebm.metrics``.
_LAZY = ("export", "inspection", "metrics")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
