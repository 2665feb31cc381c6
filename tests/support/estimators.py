"""A small model of every public estimator, and what it is fitted to."""

import numpy as np

from skebm import (
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
    SubspaceRBM,
    TableEncoder,
    TemporalRBM,
    TemporalRBMClassifier,
    TractableDensity,
    Windows,
)
from skebm.energies import MLP
from skebm.partition import ImportanceSampling
from skebm.samplers import Persistent

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(40, 3)) + RNG.choice([-1.0, 1.0], (40, 1))
BITS = (REAL > 0).astype(float)
LABELS = np.arange(40) % 2
few = {"n_iter": 2, "random_state": 0}
small = few | {"network": MLP((4,)), "batch_size": 20, "partition": ImportanceSampling(300)}
normal = small | {"base": "gaussian"}
chains = {"chains": Persistent(n_steps=2)}
RBM = RBMEstimator(2, **few, learning="pcd", base="independent")

# An unfitted model and what it is fitted to.
FITS = {
    BoltzmannMachineDensity: (BoltzmannMachineDensity(l2=0.01, random_state=0), BITS),
    ConditionalDensity: (ConditionalDensity(1, **few, network=MLP((4,)), base="linear"), REAL),
    ContrastiveDivergenceDensity: (ContrastiveDivergenceDensity(**normal, **chains), REAL),
    DeepBeliefNetwork: (DeepBeliefNetwork((3, 2), rbm=RBM, random_state=0), BITS),
    DeepBoltzmannMachine: (DeepBoltzmannMachine((3, 2), **few), BITS),
    DensityClassifier: (
        DensityClassifier(TractableDensity("gaussian"), random_state=0),
        REAL,
        LABELS,
    ),
    DensityImputer: (DensityImputer(TractableDensity("gaussian"), random_state=0), REAL),
    DensityRegressor: (
        DensityRegressor(TractableDensity("gaussian"), random_state=0),
        REAL,
        LABELS,
    ),
    EnergyOutlierDetector: (EnergyOutlierDetector(random_state=0), REAL),
    OutlierEnsemble: (OutlierEnsemble(random_state=0), REAL),
    RowSurprise: (RowSurprise(random_state=0), REAL),
    FlowContrastiveDensity: (FlowContrastiveDensity(**small, flow="maf", n_flow_steps=3), REAL),
    GatedRBM: (GatedRBM(2, 3, **few), BITS, BITS[:, ::-1]),
    HopfieldMemory: (HopfieldMemory(random_state=0), 2 * BITS[:5] - 1),
    JEMClassifier: (JEMClassifier(**normal, **chains), REAL, LABELS),
    BoostedDensity: (BoostedDensity("gaussian", n_iter=3, random_state=0), REAL),
    NCEDensity: (NCEDensity(**small, noise="gaussian"), REAL),
    NeuralDensity: (NeuralDensity(**normal, objective="score_matching"), REAL),
    ProductOfDensities: (
        ProductOfDensities(
            [("kernels", TractableDensity("kernel")), ("normal", TractableDensity("gaussian"))],
            random_state=0,
        ),
        REAL,
    ),
    RBMClassifier: (RBMClassifier(2, **few), BITS, LABELS),
    RBMEstimator: (RBMEstimator(2, **few, base="gaussian"), REAL),
    ScoreMatchingDensity: (ScoreMatchingDensity(**normal), REAL),
    SequenceOutlierDetector: (SequenceOutlierDetector(TemporalRBM(2, **few), random_state=0), BITS),
    SpikeSlabRBM: (SpikeSlabRBM(2, **few), REAL),
    SubspaceRBM: (SubspaceRBM(2, 2, **few), BITS),
    TableEncoder: (TableEncoder(), REAL),
    TemporalRBM: (TemporalRBM(2, **few), BITS),
    TemporalRBMClassifier: (TemporalRBMClassifier(2, **few), BITS, LABELS),
    TractableDensity: (TractableDensity(random_state=0), REAL),
    Windows: (Windows(2), REAL),
}
