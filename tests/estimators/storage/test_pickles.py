"""Models travel light: pickles hold no training rows but those that a model has to keep."""

import contextlib
import inspect
import pickle
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator
from sklearn.neighbors import KernelDensity

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
    TemporalRBM,
    TemporalRBMClassifier,
    TractableDensity,
)
from skebm.energies import MLP
from skebm.estimators import TableEncoder, Windows
from skebm.estimators.base import N_REFERENCE
from skebm.partition import ImportanceSampling
from skebm.samplers import ReplayBuffer
from tests.support.tiers import named

# The larger table has ten times the rows; both have more than the reference rows of a model.
SMALL, FACTOR, WIDTH = 600, 10, 6
assert SMALL >= N_REFERENCE

few = {"n_iter": 1, "batch_size": 200, "random_state": 0}
narrow = few | {"network": MLP((4,)), "base": "gaussian", "partition": ImportanceSampling(500)}
SLIGHT = 2000  # bytes: an epoch of few batches more, another number of components


def bits(n):
    rng = np.random.default_rng(0)
    return (rng.random((n, WIDTH)) < 0.2 + 0.6 * (rng.random((n, 1)) < 0.5)).astype(np.float64)


def reals(n):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, WIDTH)) + rng.choice([-1.0, 1.0], (n, 1))


def alone(rows):
    return lambda model, n: model.fit(rows(n))


def labelled(rows):
    return lambda model, n: model.fit(rows(n), np.arange(n) % 2)


def paired(rows):
    return lambda model, n: model.fit(rows(n)[:, :3], rows(n)[:, 3:])


def in_sequences(rows):
    return lambda model, n: model.fit(rows(n), lengths=[20] * (n // 20))


# A model, how it is fitted, and by how many bytes its pickle grows for each further row.
CASES = {
    "rbm": (RBMEstimator(3, **few), alone(bits), 0),
    "rbm-held-out": (RBMEstimator(3, **few, early_stopping=True), alone(bits), 0),
    "spikes": (SpikeSlabRBM(2, **few), alone(reals), 0),
    "subspaces": (SubspaceRBM(2, 2, **few), alone(bits), 0),
    "deep": (DeepBoltzmannMachine((3, 2), **few), alone(bits), 0),
    "belief": (
        DeepBeliefNetwork((3, 2), rbm=RBMEstimator(n_iter=1), random_state=0),
        alone(bits),
        0,
    ),
    "boltzmann": (BoltzmannMachineDensity(n_iter=1, random_state=0), alone(bits), 0),
    "contrastive": (ContrastiveDivergenceDensity(**narrow), alone(reals), 0),
    "replay": (
        ContrastiveDivergenceDensity(**narrow, chains=ReplayBuffer(n_steps=1, size=300)),
        alone(reals),
        0,
    ),
    "score-matching": (ScoreMatchingDensity(**narrow), alone(reals), 0),
    # A kernel at each row for training and one for the model, each with two weights, in float32.
    "kernel-base": (
        ScoreMatchingDensity(**narrow | {"base": "kernel"}),
        alone(reals),
        2 * 4 * (WIDTH + 2),
    ),
    "noise-contrastive": (
        NCEDensity(**few | {"network": MLP((4,))}, noise="gaussian"),
        alone(reals),
        0,
    ),
    "regressor": (DensityRegressor(TractableDensity("gaussian")), labelled(reals), 0),
    "density classifier": (DensityClassifier(TractableDensity("gaussian")), labelled(reals), 0),
    "imputer": (DensityImputer(TractableDensity("gaussian")), alone(reals), 0),
    "boosted": (BoostedDensity("gaussian", n_iter=2, random_state=0), alone(reals), 0),
    "flow-contrastive": (
        FlowContrastiveDensity(**few | {"network": MLP((4,))}, n_flow_steps=1),
        alone(reals),
        0,
    ),
    "neural": (NeuralDensity(**narrow), alone(reals), 0),
    "jem": (JEMClassifier(**narrow), labelled(reals), 0),
    "rbm-classifier": (RBMClassifier(3, **few), labelled(bits), 0),
    "gated": (GatedRBM(2, 3, **few), paired(bits), 0),
    "conditional": (
        ConditionalDensity(base="linear", n_iter=1, network=MLP((4,)), random_state=0),
        alone(reals),
        0,
    ),
    "temporal": (TemporalRBM(2, **few), in_sequences(bits), 0),
    "temporal-classifier": (
        TemporalRBMClassifier(2, **few),
        lambda model, n: model.fit(bits(n), np.arange(n) % 2, lengths=[20] * (n // 20)),
        0,
    ),
    # The statistic of each calibration sequence of twenty frames, in double precision.
    "sequence-detector": (
        SequenceOutlierDetector(TemporalRBM(2, **few), random_state=0),
        in_sequences(bits),
        8,
    ),
    # The patterns are the memory: it recalls them.
    "memory": (HopfieldMemory(), alone(bits), 8 * WIDTH + 24),
    # Kernels at all rows of two experts out of three, of at most 5,000, in double precision.
    "product": (ProductOfDensities(random_state=0), alone(reals), 2 * 8 * (2 * WIDTH + 4)),
    "tractable": (TractableDensity("gaussian"), alone(reals), 0),
    # The rows among which neighbours of incomplete ones are found, of at most 2,000.
    "windows": (Windows(12), alone(reals), 0),
    "encoder": (TableEncoder(), alone(reals), 8 * WIDTH),
    # The statistic of each calibration row, with which new rows are compared.
    "detector": (EnergyOutlierDetector(TractableDensity("gaussian")), alone(reals), 8),
    "conformal": (
        EnergyOutlierDetector(TractableDensity("gaussian"), method="conformal", random_state=0),
        alone(reals),
        8,
    ),
    "cross-conformal": (
        EnergyOutlierDetector(TractableDensity("gaussian"), method="cross-conformal", cv=2),
        alone(reals),
        8,
    ),
    # Of each calibration row the score, its rank and what they are found by, seven numbers of which
    # at most half of the rows have any.
    "ensemble": (
        OutlierEnsemble([("gaussian", TractableDensity("gaussian"))], random_state=0),
        alone(reals),
        28,
    ),
    # The rows among which the nearest is, their values and numbers of these, beside the density.
    "surprise": (
        RowSurprise(TractableDensity("gaussian"), random_state=0),
        alone(reals),
        8 * (4 * WIDTH + 8),
    ),
    # A model of others that keeps its rows.
    "neighbours": (EnergyOutlierDetector(KernelDensity()), alone(reals), 8 * (2 * WIDTH + 4)),
}


def test_every_estimator_has_a_case():
    import skebm.estimators

    public = {getattr(skebm.estimators, name) for name in skebm.estimators.__all__}
    classes = {found for found in public if inspect.isclass(found)}
    fitted = {cls for cls in classes if issubclass(cls, BaseEstimator) and hasattr(cls, "fit")}
    assert {type(model) for model, _, _ in CASES.values()} == fitted


@contextlib.contextmanager
def quietly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# Fits of a second and more are in the full tier.
FIRST = set(CASES) - {
    "conditional",
    "contrastive",
    "flow-contrastive",
    "gated",
    "jem",
    "kernel-base",
    "neighbours",
    "neural",
    "noise-contrastive",
    "product",
    "replay",
}
each_model = pytest.mark.parametrize("name", named(FIRST, CASES))


@each_model
def test_pickles_hold_no_training_rows(name):
    model, fit, growth = CASES[name]
    size = {}
    for n in (SMALL, FACTOR * SMALL):
        with quietly():
            size[n] = len(pickle.dumps(fit(model, n)))
    few, many = size.values()
    assert many - few <= growth * (FACTOR - 1) * SMALL + SLIGHT


@pytest.fixture
def every_warning():
    """torch warns of a read-only array once in a process, unless asked for every warning."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
@each_model
def test_arrays_of_a_pickle_may_be_read_only(name):
    """As those are which Ray hands out; torch has no tensors that cannot be written."""
    model, fit, _ = CASES[name]
    with quietly():
        fit(model, SMALL)
        buffers = []
        data = pickle.dumps(model, protocol=5, buffer_callback=buffers.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(data, buffers=[bytes(part.raw()) for part in buffers])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?!The given NumPy array is not writable)")
            found = statistic(again)
    with quietly():
        assert_array_equal(found, statistic(model))


def statistic(model):
    """A number for each of twenty rows or frames, by which a model is used."""
    if isinstance(model, TableEncoder | Windows | DeepBeliefNetwork | HopfieldMemory):
        return model.transform(bits(20))
    if isinstance(model, GatedRBM):
        return model.score_samples(bits(20)[:, :3], bits(20)[:, 3:])
    if isinstance(model, TemporalRBMClassifier):
        return model.predict_proba(bits(20))
    if isinstance(model, DensityRegressor | DensityClassifier | DensityImputer):
        ask = "transform" if isinstance(model, DensityImputer) else "predict"
        return getattr(model, ask)(reals(20))
    if isinstance(model, ProductOfDensities | TractableDensity):
        return model.score_samples(reals(20))
    return model.decision_function(bits(20))
