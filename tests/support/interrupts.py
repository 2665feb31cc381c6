"""Estimators whose calls fail or are interrupted, and what is to hold of them afterwards."""

import itertools
import sys

import joblib
import numpy as np
import pytest
from sklearn.base import clone, is_classifier

from skebm import (
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
)
from skebm.energies import MLP
from skebm.estimators.base import upper_quantile
from skebm.partition import ImportanceSampling
from skebm.samplers import Persistent, ReplayBuffer
from skebm.training import SGD, AdamW

STATES = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
GRID = np.linspace(-30, 30, 3001)[:, None]

_random = np.random.default_rng(0)
BITS = np.where(_random.random((60, 5)) < 0.2, 1, 0) ^ _random.integers(0, 2, (60, 1))
BITS = BITS.astype(float)
REALS = np.concatenate([_random.normal(-2, 0.5, (40, 1)), _random.normal(1, 1, (40, 1))])

bits = {"n_iter": 4, "batch_size": 15, "random_state": 0}
network = bits | {"network": MLP((8,)), "domain": "binary", "base": "independent"}
real = bits | {"network": MLP((8,)), "base": "gaussian", "partition": ImportanceSampling(4000)}

# For features no halves of the rows are trained before.
features = bits | {"aim": "features"}
CASES = {
    "exact": RBMEstimator(3, learning="exact", learning_rate=0.1, **features),
    "line search": RBMEstimator(3, learning="exact", n_iter=20, random_state=0, aim="features"),
    "pcd": RBMEstimator(3, learning="pcd", optimizer=SGD(momentum=0.5, averaging=0.5), **features),
    "reweighted": RBMEstimator(3, chains=Persistent(reweight=True), learning="pcd", **features),
    "contrastive": ContrastiveDivergenceDensity(**network, optimizer=AdamW(averaging=0.5)),
    "replay": ContrastiveDivergenceDensity(**network, chains=ReplayBuffer(size=50)),
    "noise": NCEDensity(**bits, network=MLP((8,)), domain="binary"),
    "score matching": ScoreMatchingDensity(**real, sigma=0.3),
    "flow": FlowContrastiveDensity(
        **{k: v for k, v in real.items() if k != "base"}, flow="maf", n_flow_steps=3
    ),
    "joint": JEMClassifier(**network, chains=ReplayBuffer(size=50)),
    "classes": RBMClassifier(3, **bits),
}
DETECTOR = EnergyOutlierDetector(CASES["exact"], random_state=0)


def make(name, **params):
    """An unfitted estimator."""
    return clone(DETECTOR if name == "detector" else CASES[name]).set_params(**params)


def rows_of(model):
    """Arguments of `fit`: rows, and labels where there are classes."""
    if isinstance(model, ScoreMatchingDensity | FlowContrastiveDensity):
        return (REALS,)
    return (BITS, BITS[:, 0]) if is_classifier(model) else (BITS,)


def fingerprint(model):
    """A hash of everything that is learned, stored or cached; not of the user's callbacks."""
    state = dict(model.__getstate__())
    state.pop("net_params", None)
    return joblib.hash(state)


def mass(model):
    """Sum or integral of p over all rows, and the standard error of its logarithm."""
    if isinstance(model, EnergyOutlierDetector):
        return mass(model.estimator_)
    if len(rows_of(model)[0][0]) == 1:
        density = np.exp(model.score_samples(GRID))
        return density.sum() * (GRID[1, 0] - GRID[0, 0]), model.log_partition_std_
    return np.exp(model.score_samples(STATES)).sum(), model.log_partition_std_


def assert_usable(model):
    """Normalised, with a threshold or classes that are those of its own energies."""
    total, error = mass(model)
    assert abs(np.log(total)) < 5 * error + 1e-3, (total, error)
    X = rows_of(model)[0]
    assert len(model.predict(X)) == len(X)
    if hasattr(model, "threshold_"):
        expected = upper_quantile(model.energy(X), 0.1, np.ones(len(X)))
        assert model.threshold_ == pytest.approx(expected, rel=1e-5, abs=1e-5)


def interrupted_at(number, call, is_traced):
    """Call it with a Ctrl-C at an instruction of traced code; whether it has as many of them."""
    left = [number]

    def at_instruction(frame, event, arg):
        if event == "opcode":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return at_instruction

    def at_call(frame, event, arg):
        if is_traced(frame.f_code):
            frame.f_trace_opcodes = True
            return at_instruction
        return None

    def alone():  # CPython goes on handling what was handled there, in a generator until it ends
        yield call()

    sys.settrace(at_call)
    try:
        next(alone())
    finally:
        sys.settrace(None)
    return left[0] <= 0
