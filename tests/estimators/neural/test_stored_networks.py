"""Networks that users pass: with parametrizations of torch, without weights, and as classes."""

import copy
import pickle

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    ScoreMatchingDensity,
)
from tests.support.tiers import full

X = np.random.default_rng(0).normal(size=(120, 4))
Y = (X[:, 0] > 0).astype(int)
MODELS = [
    ScoreMatchingDensity,
    ContrastiveDivergenceDensity,
    NCEDensity,
    FlowContrastiveDensity,
    ConditionalDensity,
    JEMClassifier,
]


class Fixed(nn.Module):
    """A known energy without weights."""

    def forward(self, x):
        return x.square().sum(1) / 4


class Net(nn.Sequential):
    def __init__(self, n_features):
        super().__init__(nn.Linear(n_features, 1), nn.Flatten(0))


def model(kind, network):
    more = {"given": [0]} if kind is ConditionalDensity else {}
    more |= {"n_flow_steps": 2} if kind is FlowContrastiveDensity else {}
    return kind(network=network, n_iter=1, random_state=0, **more)


def network(norm, n_outputs=1):
    ends = [nn.Flatten(0)] if n_outputs == 1 else []
    return nn.Sequential(norm(nn.Linear(4, 8)), nn.SiLU(), nn.Linear(8, n_outputs), *ends)


def fitted(kind, given):
    return model(kind, given).fit(X, Y if kind is JEMClassifier else None)


def value(estimator):
    return estimator.energy(X[:7])


@full
@pytest.mark.parametrize(
    ("kind", "norm"),
    [
        *((kind, spectral_norm) for kind in MODELS),
        (ScoreMatchingDensity, weight_norm),
        (ScoreMatchingDensity, orthogonal),
    ],
)
def test_parametrizations_are_stored(kind, norm, tmp_path):
    given = network(norm, 2 if kind is JEMClassifier else 1)
    unfitted = pickle.loads(pickle.dumps(model(kind, given)))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unfitted.network.eval()(x), copy.deepcopy(given).eval()(x))
    one = fitted(kind, given)
    joblib.dump(one, tmp_path / "model")
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        np.testing.assert_array_equal(value(other), value(one))
    loaded = joblib.load(tmp_path / "model")
    np.testing.assert_array_equal(value(loaded), value(one))
    y = Y if kind is JEMClassifier else None
    np.testing.assert_array_equal(value(clone(loaded).fit(X, y)), value(one))
    assert np.isfinite(value(loaded.partial_fit(X, y))).all()


class Local(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = spectral_norm(nn.Linear(4, 1))
        self.last = lambda x: x[:, 0]

    def forward(self, x):
        return self.last(self.linear(x))


def test_what_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match="network cannot be pickled"):
        pickle.dumps(ScoreMatchingDensity(Local()))


@full
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind is not JEMClassifier])
def test_networks_without_trained_weights_stay_as_they_are(kind):
    """The difference of two energies is that of the network, and of the base."""
    for given in (Fixed(), Net(4).requires_grad_(False)):
        one = fitted(kind, given)
        energy = one.energy_
        x = torch.randn(5, energy.domain.n_columns, generator=torch.Generator().manual_seed(0))
        inner = energy.network
        inner = getattr(inner, "network", inner)
        while hasattr(inner, "network"):
            inner = inner.network
        assert torch.equal(inner(x), given.to(x.dtype)(x))
        assert np.isfinite(value(one)).all()
        np.testing.assert_array_equal(value(pickle.loads(pickle.dumps(one))), value(one))


@full
def test_a_known_energy_is_the_model():
    """Two equal halves of a normal energy: log Z is that of the normal distribution."""
    one = ContrastiveDivergenceDensity(
        network=Fixed(), base=None, standardize=False, n_iter=1, partition="auto", random_state=0
    ).fit(X)
    z = 2 * np.log(4 * np.pi)  # of four columns of variance 2
    assert abs(one.log_partition_ - z) < 0.1
    np.testing.assert_allclose(one.energy(X), (X**2).sum(1) / 4, rtol=1e-5)


@full
@pytest.mark.parametrize("kind", MODELS)
def test_other_networks_are_refused_by_name(kind):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))
    with pytest.raises(TypeError, match="network is a scripted module"):
        fitted(kind, scripted)
