"""Images of every kind of entry, in every estimator that takes them."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ScoreMatchingDensity,
)
from skebm.base import Binary, SettingWarning
from skebm.energies import Conv, ResNet
from tests.support.tiers import only_full

MODELS = {
    ContrastiveDivergenceDensity: {"base": "gaussian"},
    FlowContrastiveDensity: {"flow": "maf", "n_flow_steps": 5},
    JEMClassifier: {"base": "gaussian"},
    NCEDensity: {"noise": "gaussian"},
    NeuralDensity: {"base": "gaussian"},
    ScoreMatchingDensity: {"base": "gaussian"},
}
random = np.random.default_rng(0)
SHAPE = (30, 1, 4, 4)
IMAGES = {
    "zeros and ones": (random.random(SHAPE) < 0.3).astype(float),
    "booleans": random.random(SHAPE) < 0.3,
    "bytes": random.integers(0, 256, SHAPE).astype(np.uint8),
    "fractions": random.random(SHAPE),
}
FIRST = [ContrastiveDivergenceDensity, FlowContrastiveDensity, JEMClassifier, NCEDensity]


def targets_of(cls, n=30):
    return [np.arange(n) % 2] if cls is JEMClassifier else []


# Every model takes the same numbers: the other kinds in turn, each with two models.
OTHERS = zip(MODELS, itertools.cycle(list(IMAGES)[1:]))
PIXELS = [*((cls, "zeros and ones") for cls in FIRST), *(only_full(*case) for case in OTHERS)]


@pytest.mark.parametrize(("cls", "kind"), PIXELS)
def test_pixels_are_numbers(cls, kind):
    model, X = cls(Conv((4,)), n_iter=1, random_state=0, **MODELS[cls]), IMAGES[kind]
    targets = [np.arange(30) % 2] if cls is JEMClassifier else []
    model.fit(X, *targets)
    assert np.isfinite(model.energy(X)).all()
    assert model.sample(2, random_state=0).shape == (2, 1, 4, 4)
    other = model.energy(1 - X.astype(float))
    assert np.isfinite(other).all()


@pytest.mark.parametrize("domain", ["binary", Binary((16,))], ids=str)
@pytest.mark.parametrize("cls", [ContrastiveDivergenceDensity, JEMClassifier, NCEDensity])
def test_images_of_bits_are_rows_or_numbers(cls, domain):
    X = IMAGES["zeros and ones"]
    targets = [np.arange(30) % 2] if cls is JEMClassifier else []
    with pytest.raises(ValueError, match=r'16\).*domain="real"'):
        cls(Conv((4,)), domain=domain, n_iter=1).fit(X, *targets)
    rows = cls(domain=domain, n_iter=1, random_state=0).fit(X.reshape(30, 16), *targets)
    assert rows.energy(X.reshape(30, 16)).shape == (30,)


# ------------------------------------------------------------------------------
# Residual networks
# ------------------------------------------------------------------------------


NORMS = dict(zip(MODELS, itertools.cycle(["group", None])))
RESIDUAL = [
    (cls, norm) if cls in FIRST[:3] else only_full(cls, norm) for cls, norm in NORMS.items()
]


@pytest.mark.parametrize(("cls", "norm"), RESIDUAL)
def test_residual_networks_are_networks_of_images(cls, norm):
    """And second derivatives of densities exist: norms and activations are smooth."""
    network = ResNet(norm=norm)
    model, X = cls(network, n_iter=1, random_state=0, **MODELS[cls]), IMAGES["fractions"]
    model.fit(X, *targets_of(cls))
    assert np.isfinite(model.energy(X)).all()
    assert model.sample(2, random_state=0).shape == (2, 1, 4, 4)
    alone = np.concatenate([model.energy(x[None]) for x in X[:5]])
    assert_allclose(alone, model.energy(X)[:5], rtol=1e-4)  # of each image by itself


# ------------------------------------------------------------------------------
# Images that are not those of the fit
# ------------------------------------------------------------------------------

CONV = {cls: params | {"n_iter": 1, "random_state": 0} for cls, params in MODELS.items()}


def colours(n=30, seed=1):
    return np.random.default_rng(seed).random((n, 3, 6, 5))


@pytest.fixture(scope="module", params=[ContrastiveDivergenceDensity, JEMClassifier, NCEDensity])
def fitted(request):
    cls = request.param
    return cls(Conv((4,)), **CONV[cls]).fit(colours(), *targets_of(cls))


@pytest.mark.parametrize("cls", MODELS)
def test_images_with_channels_last_are_refused(cls):
    X = np.moveaxis(colours(), 1, 3)
    with pytest.raises(ValueError, match=r"channels last: pass X.transpose\(0, 3, 1, 2\)"):
        cls(Conv((4,)), **CONV[cls]).fit(X, *targets_of(cls))


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X[:, :1],  # grey
        lambda X: X[:, :, :5],  # another size
        lambda X: X.reshape(len(X), -1),
        lambda X: np.moveaxis(X, 1, 3),
    ],
    ids=["grey", "size", "flat", "channels last"],
)
def test_images_of_another_shape_are_refused(fitted, change):
    for method in ("score_samples", "energy"):
        with pytest.raises(ValueError, match="shape|features"):
            getattr(fitted, method)(change(colours()))


def test_images_may_be_bytes_and_of_any_order_in_memory(fitted):
    X = (255 * colours(5, seed=2)).round()
    expected = fitted.energy(X)
    assert_array_equal(fitted.energy(X.astype(np.uint8)), expected)
    assert_array_equal(fitted.energy(np.asfortranarray(X)), expected)
    strided = np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 1, 3)), 3, 1)
    assert_array_equal(fitted.energy(strided), expected)


def test_images_outside_of_the_trained_range_are_unlikely(fitted):
    X = colours(20, seed=3)
    assert fitted.score_samples(255 * X).max() < fitted.score_samples(X).min() - 100
    X[3, 0, 0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        fitted.score_samples(X)


class Normed(nn.Sequential):
    """A classifier or energy with norms over the batch."""

    def __init__(self, n_features, n_classes=1):
        layers = [nn.Linear(n_features, 5), nn.BatchNorm1d(5), nn.SiLU(), nn.Linear(5, n_classes)]
        super().__init__(nn.Flatten(), *layers)


@pytest.mark.parametrize("cls", [JEMClassifier, NCEDensity])
def test_batch_norms_are_warned_of(cls):
    with pytest.warns(SettingWarning, match="batch norms.*depends on the others.*GroupNorm"):
        cls(Normed, **CONV[cls]).fit(IMAGES["fractions"], *targets_of(cls))
