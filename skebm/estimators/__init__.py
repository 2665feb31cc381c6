"""Estimators with the scikit-learn API."""

import sys

from skebm.base import LogLikelihoods
from skebm.base.processes import enter_all
from skebm.estimators.boltzmann import BoltzmannMachineDensity, SparsityPath
from skebm.estimators.boltzmann.hopfield import HopfieldMemory, Recall
from skebm.estimators.deep import DeepBeliefNetwork, DeepBoltzmannMachine
from skebm.estimators.deep.meanfield import MeanField, PosteriorMeans
from skebm.estimators.neural import (
    Adversarial,
    Attack,
    BoostedDensity,
    Boosting,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    ContrastiveDivergenceLearning,
    Discrepancy,
    FlowContrastiveDensity,
    FlowContrastiveEstimation,
    Hybrid,
    JEMClassifier,
    Likelihood,
    NCEDensity,
    NeuralDensity,
    NeuralObjective,
    NoiseContrastiveEstimation,
    ScoreMatching,
    ScoreMatchingDensity,
    Sliced,
    lagged,
)
from skebm.estimators.outlier import (
    ColumnDrift,
    EnergyOutlierDetector,
    Explanation,
    LogitEnergy,
    OutlierEnsemble,
    ProductOfDensities,
    RowSurprise,
    StreamMonitor,
    StreamUpdate,
    merge_p_values,
)
from skebm.estimators.queries.columns import ColumnConditional
from skebm.estimators.queries.imputer import DensityImputer
from skebm.estimators.queries.predictors import DensityClassifier, DensityRegressor
from skebm.estimators.queries.tractable import TractableDensity
from skebm.estimators.rbm import (
    GatedRBM,
    RBMClassifier,
    RBMEstimator,
    SpikeSlab,
    SpikeSlabRBM,
    Subspace,
    SubspaceRBM,
)
from skebm.estimators.sequences import (
    FrameStream,
    SequenceOutlierDetector,
    TemporalRBM,
    TemporalRBMClassifier,
    Windows,
)
from skebm.estimators.tables.bases import MixtureBase
from skebm.estimators.tables.encoding import TableEncoder

__all__ = [
    "Adversarial",
    "Attack",
    "BoltzmannMachineDensity",
    "BoostedDensity",
    "Boosting",
    "ColumnConditional",
    "ColumnDrift",
    "ConditionalDensity",
    "ContrastiveDivergenceDensity",
    "ContrastiveDivergenceLearning",
    "DeepBeliefNetwork",
    "DeepBoltzmannMachine",
    "DensityClassifier",
    "DensityImputer",
    "DensityRegressor",
    "Discrepancy",
    "EnergyOutlierDetector",
    "Explanation",
    "FlowContrastiveDensity",
    "FlowContrastiveEstimation",
    "GatedRBM",
    "FrameStream",
    "HopfieldMemory",
    "Hybrid",
    "JEMClassifier",
    "Likelihood",
    "LogLikelihoods",
    "LogitEnergy",
    "MeanField",
    "MixtureBase",
    "PosteriorMeans",
    "NCEDensity",
    "NeuralDensity",
    "NeuralObjective",
    "NoiseContrastiveEstimation",
    "OutlierEnsemble",
    "ProductOfDensities",
    "RBMClassifier",
    "RBMEstimator",
    "RowSurprise",
    "Recall",
    "ScoreMatching",
    "ScoreMatchingDensity",
    "SpikeSlab",
    "SpikeSlabRBM",
    "Sliced",
    "SparsityPath",
    "StreamMonitor",
    "StreamUpdate",
    "Subspace",
    "SubspaceRBM",
    "TableEncoder",
    "SequenceOutlierDetector",
    "TemporalRBM",
    "TemporalRBMClassifier",
    "TractableDensity",
    "Windows",
    "lagged",
    "merge_p_values",
]

# The one entrance: the settings of torch and the number of threads in a public call, of helper
# objects too, are decided here.
enter_all(sys.modules[__name__])
