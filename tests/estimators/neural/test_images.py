"""Images of every kind of entry, in every estimator that takes them."""

import itertools

import numpy as np
import pytest

from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ScoreMatchingDensity,
)
from skebm.base import Binary
from skebm.energies import Conv
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
