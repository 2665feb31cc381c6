"""Estimators as bases: densities of other libraries, in the units of the data."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity

from skebm import BoostedDensity, NCEDensity, RBMEstimator, TractableDensity
from skebm.base import Real
from skebm.estimators.tables.densities import EstimatorDensity
from skebm.estimators.tables.units import Units

CENTRE, SCALE = np.array([1.7e9, -3.0]), np.array([5.0, 0.01])


def rows(n=300, seed=0):
    """Two clusters in columns of very different units."""
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, 2)) + 4 * random.integers(0, 2, (n, 1))
    return CENTRE + SCALE * z


class Plain:
    """The least that a density of another library has; its draws need no seed."""

    def fit(self, X):
        self.mean, self.std = X.mean(0), X.std(0)
        return self

    def get_params(self, deep=True):
        return {}

    def set_params(self, **params):
        return self

    def score_samples(self, X):
        z = (X - self.mean) / self.std
        return -(z**2).sum(1) / 2 - np.log(self.std * np.sqrt(2 * np.pi)).sum()

    def sample(self, n):
        return self.mean + self.std * np.linspace(-1, 1, n)[:, None]


DENSITIES = {
    "mixture": GaussianMixture(2),
    "kernels": KernelDensity(bandwidth=0.5),
    "ours": TractableDensity("gaussian"),
    "plain": Plain(),
}


@pytest.mark.parametrize("base", DENSITIES.values(), ids=list(DENSITIES))
@pytest.mark.parametrize("model", [BoostedDensity, NCEDensity])
def test_a_model_without_training_is_the_density_of_the_estimator(model, base):
    X, X_new = rows(), rows(50, seed=1)
    given = {"base" if model is BoostedDensity else "noise": base}
    found = model(**given, n_iter=0, random_state=0).fit(X)
    alone = type(base)(**base.get_params())
    if "random_state" in base.get_params():
        alone.set_params(random_state=found.base_.estimator.random_state)
    expected = alone.fit(X).score_samples(X_new)
    assert np.allclose(
        found.score_samples(X_new), expected, atol=1e-3
    )  # X in float32, standardised


def test_values_draws_and_scores_are_in_units_of_the_energy():
    X = rows()
    units = Units(CENTRE, SCALE, Real((2,)))
    model = GaussianMixture(2, random_state=0).fit(X)
    density = EstimatorDensity(model, Real((2,)), units)
    z = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = units.invert(z.numpy())
    assert np.allclose(density.log_prob(z), model.score_samples(at) + np.log(SCALE).sum())
    step = 1e-4 * torch.eye(2, dtype=torch.float64)
    slope = [(density.log_prob(z + h) - density.log_prob(z - h)) / 2e-4 for h in step]
    assert torch.allclose(density.score(z), torch.stack(slope, 1), rtol=1e-2, atol=1e-2)
    draws = density.sample(4000, torch.Generator().manual_seed(0)).double().numpy()
    assert np.allclose(units.invert(draws).mean(0), X.mean(0), atol=0.2 * X.std(0))
    again = density.sample(4000, torch.Generator().manual_seed(0)).double().numpy()
    assert np.array_equal(draws, again)


def test_trees_correct_an_estimator_and_its_draws_follow():
    X, X_new = rows(600), rows(600, seed=1)
    alone = GaussianMixture(1).fit(X).score(X_new)
    model = BoostedDensity(GaussianMixture(1), n_iter=60, random_state=0).fit(X)
    assert model.score(X_new) > alone + 0.3
    drawn = model.sample(600, random_state=0)
    in_units = (drawn - CENTRE) / SCALE
    assert np.mean(np.abs(in_units[:, 0] - in_units[:, 1]) > 3.5) < 0.1  # a normal one has 0.2
    again = BoostedDensity(GaussianMixture(1), n_iter=60, random_state=0).fit(X)
    assert np.array_equal(again.score_samples(X_new), model.score_samples(X_new))


def test_a_search_reaches_the_estimator_and_a_frozen_one_stays():
    X = rows(200)
    search = GridSearchCV(
        BoostedDensity(GaussianMixture(), n_iter=0, random_state=0),
        {"base__n_components": [1, 2]},
        cv=2,
    ).fit(X)
    assert search.best_params_ == {"base__n_components": 2}
    fitted = GaussianMixture(2, random_state=0).fit(rows(200, seed=5))
    model = BoostedDensity(FrozenEstimator(fitted), n_iter=0).fit(X)
    assert np.allclose(model.score_samples(X), fitted.score_samples(X), atol=1e-3)


def test_bits_have_the_probabilities_of_the_estimator():
    random = np.random.default_rng(0)
    X = (random.random((200, 4)) < 0.4).astype(float)
    X[:, 1] = X[:, 0]
    base = RBMEstimator(2, n_iter=5, random_state=0)
    model = BoostedDensity(base, n_iter=0, random_state=0).fit(X)
    assert np.allclose(model.score_samples(X), base.fit(X).score_samples(X), atol=1e-4)


def test_draws_need_no_conditionals_of_the_base():
    X = rows(60)
    model = BoostedDensity("maf", n_iter=2, random_state=0).fit(X)
    assert np.isfinite(model.sample(5, random_state=0)).all()


def test_what_is_no_base_is_refused():
    X = rows(40)
    with pytest.raises(ValueError, match="several kinds|numbers or of bits"):
        BoostedDensity(GaussianMixture()).fit(pd.DataFrame({"a": ["x", "y"] * 20, "b": X[:, 1]}))
    with pytest.raises(ValueError, match="numbers or of bits"):
        BoostedDensity(GaussianMixture(), bounds=(-4, 2e9)).fit(X)
    with pytest.raises(ValueError, match="sample_weight"):
        BoostedDensity(GaussianMixture()).fit(X, sample_weight=np.arange(1.0, 41))
    with pytest.raises(ValueError, match="base"):
        BoostedDensity(base=object()).fit(X)
    with pytest.raises(TypeError, match=r"is a class: pass base=GaussianMixture\(\)"):
        BoostedDensity(GaussianMixture).fit(X)
    with pytest.raises(ValueError, match=r"KernelDensity\(kernel='linear'\) has no draws"):
        BoostedDensity(KernelDensity(kernel="linear")).fit(X)
    far = FrozenEstimator(KernelDensity(kernel="tophat", bandwidth=0.1).fit(X[:5]))
    with pytest.raises(ValueError, match="no density at"):
        BoostedDensity(far).fit(X)
