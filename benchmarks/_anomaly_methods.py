"""The detectors that `benchmarks.anomaly` compares: one line each.

Settings are the same for all sets, or chosen from the training rows alone inside `fit`. Those of
the baselines reproduce the published columns; see the head of `benchmarks/anomaly.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.neighbors import KernelDensity, LocalOutlierFactor, NearestNeighbors
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import KBinsDiscretizer
from sklearn.svm import OneClassSVM

from skebm import (
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
)
from skebm.estimators.queries.densities import relative_log_density
from skebm.objectives import Penalty

BANDWIDTHS = (0.2, 0.5, 0.7, 1.0, 2.0)
COMPONENTS = (1, 5, 10, 20)


class KthNeighbour(BaseEstimator):
    """Minus the distance to the k-th nearest training row."""

    def __init__(self, k=5):
        self.k = k

    def fit(self, X, y=None):
        """Keep the rows."""
        self.neighbours_ = NearestNeighbors(n_neighbors=self.k).fit(X)
        return self

    def score_samples(self, X):
        """Higher is more normal."""
        return -self.neighbours_.kneighbors(X)[0][:, -1]


def kernel_density(X: np.ndarray) -> GridSearchCV:
    """Bandwidth by the held-out likelihood of three folds."""
    # Trees with smaller leaves start from bounds on the whole and subtract: scikit-learn 1.9.1 is
    # then off by tens of nats on rows far from all others. One leaf is an exact sum.
    model = KernelDensity(leaf_size=len(X))
    return GridSearchCV(model, {"bandwidth": BANDWIDTHS}, cv=3)


def gaussian_mixture(seed: int) -> GridSearchCV:
    """Number of components by the held-out likelihood of three folds."""
    model = GaussianMixture(reg_covar=1e-3, n_init=2, random_state=seed)
    return GridSearchCV(model, {"n_components": COMPONENTS}, cv=3)


def peer(module: str, name: str, **settings: Any) -> Any:
    """A detector of PyOD, which may be missing, with its defaults besides `settings`."""
    return getattr(importlib.import_module(f"pyod.models.{module}"), name)(**settings)


def small_rbm(X: np.ndarray, seed: int, **more: Any) -> RBMEstimator:
    """The penalty that the class recommends for small tables, on fewer units."""
    settings = {
        "n_components": 64,
        "penalty": Penalty(l2=20 / len(X)),
        "random_state": seed,
        "device": "cpu",
    }
    return RBMEstimator(**settings | more)


def binned(model: BaseEstimator, strategy: str, seed: int) -> Pipeline:
    """One-hot codes of ten bins a column."""
    bins = KBinsDiscretizer(
        10,
        encode="onehot-dense",
        strategy=strategy,
        quantile_method="averaged_inverted_cdf",
        random_state=seed,
    )
    return make_pipeline(bins, model)


def tuned_rbm(X: np.ndarray, seed: int) -> GridSearchCV:
    """Units and penalty by the pseudo-likelihood of a fifth of the training rows."""
    grid = {"n_components": [16, 64], "penalty__l2": [2 / len(X), 20 / len(X), 200 / len(X)]}
    # Without log Z `score` is the pseudo-likelihood, which ranks and costs next to nothing.
    model = small_rbm(X, seed, partition=None)
    return GridSearchCV(model, grid, cv=ShuffleSplit(1, test_size=0.2, random_state=seed))


def abnormality(model: Any, X: np.ndarray) -> np.ndarray:
    """Energy of our estimators, as no log Z is needed to rank rows; minus `score_samples`."""
    return -relative_log_density(model, X)


def outlyingness(model: Any, X: np.ndarray) -> np.ndarray:
    """PyOD's scores grow with strangeness."""
    return model.decision_function(X)


def of_training_rows(model: Any, X: np.ndarray) -> np.ndarray:
    """PyOD's scores of the rows that a detector was fitted to."""
    return model.decision_scores_


@dataclass(frozen=True)
class Method:
    """How a detector is made of the training rows and a seed, and how it scores new ones."""

    make: Callable[[np.ndarray, int], Any]
    score: Callable[[Any, np.ndarray], np.ndarray] = abnormality
    most_rows: int | None = None  # training rows, where time or memory grow with their square
    needs: str | None = None  # an optional package
    published: str | None = None  # its column


# `score` is the anomaly score: higher is stranger.
METHODS: dict[str, Method] = {
    "IForest": Method(lambda X, s: IsolationForest(random_state=s), published="IForest"),
    "LOF": Method(lambda X, s: LocalOutlierFactor(novelty=True), published="LOF"),
    "kNN": Method(lambda X, s: KthNeighbour(), published="KNN"),
    "kNN-1": Method(lambda X, s: KthNeighbour(1)),
    "GMM": Method(lambda X, s: gaussian_mixture(s), published="GMM"),
    "KDE": Method(lambda X, s: kernel_density(X), published="KDE"),
    "OCSVM": Method(lambda X, s: OneClassSVM(), most_rows=10_000),
    "ECOD": Method(lambda X, s: peer("ecod", "ECOD"), outlyingness, needs="pyod"),
    "COPOD": Method(lambda X, s: peer("copod", "COPOD"), outlyingness, needs="pyod"),
    "AutoEncoder": Method(
        lambda X, s: peer("auto_encoder", "AutoEncoder", random_state=s, verbose=0),
        outlyingness,
        needs="pyod",
    ),
    "VAE": Method(
        lambda X, s: peer("vae", "VAE", random_state=s, verbose=0), outlyingness, needs="pyod"
    ),
    "DeepSVDD": Method(
        lambda X, s: peer(
            "deep_svdd", "DeepSVDD", n_features=X.shape[1], random_state=s, verbose=0
        ),
        outlyingness,
        needs="pyod",
    ),
    "detector": Method(
        lambda X, s: EnergyOutlierDetector(random_state=s), lambda m, X: -m.decision_function(X)
    ),
    "its density": Method(
        lambda X, s: EnergyOutlierDetector(statistic="log_density", random_state=s)
    ),
    "score matching": Method(
        lambda X, s: ScoreMatchingDensity(deconvolve=False, random_state=s, device="cpu")
    ),
    "contrastive divergence": Method(
        lambda X, s: ContrastiveDivergenceDensity(deconvolve=False, random_state=s, device="cpu")
    ),
    "noise contrastive": Method(
        lambda X, s: NCEDensity(deconvolve=False, random_state=s, device="cpu")
    ),
    "noise contrastive, kernels": Method(
        lambda X, s: NCEDensity(noise="kernel", early_stopping=True, random_state=s, device="cpu")
    ),
    "flow contrastive": Method(
        lambda X, s: FlowContrastiveDensity(early_stopping=True, random_state=s, device="cpu")
    ),
    "RBM": Method(lambda X, s: RBMEstimator(random_state=s, device="cpu")),
    "RBM, tree": Method(lambda X, s: RBMEstimator(base="chow-liu", random_state=s, device="cpu")),
    "RBM, bins": Method(lambda X, s: binned(small_rbm(X, s), "quantile", s)),
    "RBM, even bins": Method(lambda X, s: binned(small_rbm(X, s), "uniform", s)),
    "RBM, chosen": Method(tuned_rbm),
}

# Detectors that score the rows that they are fitted to. Those of PyOD have a seed where they take
# one; its deep ones are left to the protocol of clean rows.
OF_ONE_TABLE: dict[str, Method] = {
    "untrimmed": Method(
        lambda X, s: EnergyOutlierDetector(random_state=s), lambda m, X: -m.decision_function(X)
    ),
    "trimmed": Method(
        lambda X, s: EnergyOutlierDetector(trim="auto", random_state=s),
        lambda m, X: -m.decision_function(X),
    ),
    "PyOD kNN": Method(lambda X, s: peer("knn", "KNN"), of_training_rows, needs="pyod"),
    "PyOD LOF": Method(lambda X, s: peer("lof", "LOF"), of_training_rows, needs="pyod"),
    "PyOD IForest": Method(
        lambda X, s: peer("iforest", "IForest", random_state=s), of_training_rows, needs="pyod"
    ),
    "PyOD ECOD": Method(lambda X, s: peer("ecod", "ECOD"), of_training_rows, needs="pyod"),
    "PyOD COPOD": Method(lambda X, s: peer("copod", "COPOD"), of_training_rows, needs="pyod"),
    "PyOD GMM": Method(
        lambda X, s: peer("gmm", "GMM", random_state=s), of_training_rows, needs="pyod"
    ),
    "PyOD INNE": Method(
        lambda X, s: peer("inne", "INNE", random_state=s), of_training_rows, needs="pyod"
    ),
    "PyOD CBLOF": Method(
        lambda X, s: peer("cblof", "CBLOF", random_state=s), of_training_rows, needs="pyod"
    ),
    "PyOD PCA": Method(
        lambda X, s: peer("pca", "PCA", random_state=s), of_training_rows, needs="pyod"
    ),
    "PyOD DIF": Method(
        lambda X, s: peer("dif", "DIF", random_state=s), of_training_rows, needs="pyod"
    ),
}
METHODS |= OF_ONE_TABLE
