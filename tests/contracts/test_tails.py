"""Every density of numbers keeps a broad component: no row is as good as impossible."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

from skebm import (
    BoostedDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    NCEDensity,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TractableDensity,
)
from skebm.estimators import MixtureBase
from skebm.partition import ImportanceSampling
from tests.support.tiers import named, only_full

# Nats by which a row may be less likely than under one normal distribution with the moments of
# the training rows.
MOST_LOST = 50.0
few = {"n_iter": 2, "random_state": 0}
DENSITIES = {
    "stack": TractableDensity(random_state=0),
    "kernels": TractableDensity("kernel"),
    "kernels by neighbours": TractableDensity("kernel", n_neighbors=5),
    "kernels of logs": TractableDensity("kernel", metric="log"),
    "mixture": TractableDensity("mixture", n_components=20, random_state=0),
    "gaussian": TractableDensity("gaussian"),
    "product": ProductOfDensities(random_state=0),
    "latent classes": RBMEstimator(2, base="latent-classes", **few),
    "RBM": RBMEstimator(4, base="independent", **few),
    "RBM, covariance": RBMEstimator(4, base="gaussian", **few),
    "subspace RBM": SubspaceRBM(2, base="latent-classes", **few),
    "spike and slab RBM": SpikeSlabRBM(2, **few),
    "deep": DeepBoltzmannMachine((3, 2), **few),
    "score matching": ScoreMatchingDensity(**few),
    "score matching, kernels": ScoreMatchingDensity(
        base="kernel", partition=ImportanceSampling(2000), **few
    ),
    "score matching, mixture": ScoreMatchingDensity(base=MixtureBase(20), **few),
    "NCE": NCEDensity(**few),
    "contrastive divergence": ContrastiveDivergenceDensity(**few),
}
FIRST = (
    "kernels",
    "kernels of logs",
    "mixture",
    "product",
    "latent classes",
    "RBM",
    "score matching, kernels",
)


def rows_with_tails(n, seed):
    """Three narrow clusters, and a heavy tail in one of two columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) * 0.03 + rng.integers(0, 3, (n, 1)) * [1.0, -1.0]
    x[:, 0] += np.where(rng.random(n) < 0.1, rng.standard_t(3, n), 0.0)
    return x


def heavy_rows(n, seed):
    """Two of three columns are correlated, and have hardly a variance."""
    x = np.random.default_rng(seed).standard_t(2, (n, 3))
    x[:, 2] += x[:, 0]
    return x


def rows_on_a_curve(n, seed):
    """A spiral, and planted rows beside it."""
    rng = np.random.default_rng(seed)
    t = rng.random(n) * 6
    x = np.stack([np.cos(t), np.sin(t), t], 1) + 0.01 * rng.normal(size=(n, 3))
    return x + (rng.random((n, 1)) < 0.02) * rng.normal(size=(n, 3))


TRAIN = rows_with_tails(300, 0)
NORMAL = GaussianMixture(1).fit(TRAIN)
# Drawn like the training rows, between the clusters, and beside all of them.
BESIDE = np.array([[0.5, -0.5], [0.5, 0.5], [3.0, 3.0], [-5.0, 0.0], [0.0, 6.0]])
TEST = np.concatenate([rows_with_tails(500, 1), BESIDE])


@pytest.mark.parametrize("name", [k if k in FIRST else only_full(k) for k in DENSITIES])
def test_no_row_is_as_good_as_impossible(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two passes
        model = DENSITIES[name].fit(TRAIN)
    lost = NORMAL.score_samples(TEST) - model.score_samples(TEST)
    assert lost.max() < MOST_LOST


def rows_without_variance(n, seed):
    """Cauchy columns: a few rows set the units of all others."""
    return np.random.default_rng(seed).standard_cauchy((n, 3))


# What is trained in full on rows that are hard: heavy tails, and few rows beside many.
TABLES = {"heavy": heavy_rows, "curve": rows_on_a_curve, "Cauchy": rows_without_variance}
thirty: dict = {"n_iter": 30, "random_state": 0}
TRAINED = {
    "stack": TractableDensity(random_state=0),
    "kernels": TractableDensity("kernel"),
    "mixture": TractableDensity("mixture", random_state=0),
    "boosted": BoostedDensity(random_state=0),
    "score matching": ScoreMatchingDensity(base="gaussian", random_state=0),
    "NCE": NCEDensity(noise="gaussian", random_state=0),
    "contrastive divergence": ContrastiveDivergenceDensity(base="gaussian", **thirty),
    "latent classes": RBMEstimator(8, base="latent-classes", **thirty),
    "RBM": RBMEstimator(8, base="independent", **thirty),
    "RBM, covariance": RBMEstimator(8, base="gaussian", **thirty),
    "subspace RBM": SubspaceRBM(4, base="independent", **thirty),
    "spike and slab RBM": SpikeSlabRBM(4, base="gaussian", **thirty),
    "deep": DeepBoltzmannMachine((4, 2), base="independent", **thirty),
    "deep, covariance": DeepBoltzmannMachine((4, 2), base="gaussian", **thirty),
}


@pytest.mark.filterwarnings("ignore::skebm.base.SkebmWarning")
@pytest.mark.parametrize("of", TABLES)
@pytest.mark.parametrize("name", named(("kernels", "mixture", "RBM"), TRAINED))
def test_no_row_of_a_hard_table_is_as_good_as_impossible(name, of):
    train, new = TABLES[of](600, 0), TABLES[of](3000, 1)
    model = clone(TRAINED[name]).fit(train)
    lost = GaussianMixture(1).fit(train).score_samples(new) - model.score_samples(new)
    assert lost.max() < MOST_LOST
