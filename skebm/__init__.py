"""Energy-based models as scikit-learn estimators.

One convention everywhere: p(x) = exp(-E(x)) / Z, so lower energy means more likely, and
``score_samples`` is log p(x) in nats, higher = more likely.
"""

from skebm import base, diagnostics, distributions, energies, objectives, partition, samplers
from skebm.estimators import (
    BoltzmannMachineDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBeliefNetwork,
    DeepBoltzmannMachine,
    EnergyOutlierDetector,
    Explanation,
    FlowContrastiveDensity,
    GatedRBM,
    HopfieldMemory,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    SequenceOutlierDetector,
    SpikeSlabRBM,
    SubspaceRBM,
    TableEncoder,
    TemporalRBM,
    TemporalRBMClassifier,
    TractableDensity,
    Windows,
)
from skebm.estimators.storage import load, package_version, trusted_types

__version__ = package_version()

__all__ = [
    "BoltzmannMachineDensity",
    "ConditionalDensity",
    "ContrastiveDivergenceDensity",
    "DeepBeliefNetwork",
    "DeepBoltzmannMachine",
    "EnergyOutlierDetector",
    "Explanation",
    "FlowContrastiveDensity",
    "GatedRBM",
    "HopfieldMemory",
    "JEMClassifier",
    "NCEDensity",
    "NeuralDensity",
    "ProductOfDensities",
    "RBMClassifier",
    "RBMEstimator",
    "ScoreMatchingDensity",
    "SpikeSlabRBM",
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
