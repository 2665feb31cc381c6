"""Every density of numbers keeps a broad component: no row is as good as impossible."""

import warnings

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from skebm import (
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
from tests.support.tiers import only_full

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
    "score matching, kernels": ScoreMatchingDensity(base="kernel", **few),
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
    "NCE",
)


def rows_with_tails(n, seed):
    """Three narrow clusters, and a heavy tail in one of two columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) * 0.03 + rng.integers(0, 3, (n, 1)) * [1.0, -1.0]
    x[:, 0] += np.where(rng.random(n) < 0.1, rng.standard_t(3, n), 0.0)
    return x


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
