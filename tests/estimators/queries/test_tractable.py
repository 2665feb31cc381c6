"""Tractable densities of frames and of rows with missing entries."""

import numpy as np
import pandas as pd
import pytest

from skebm import RBMEstimator, TractableDensity
from skebm.distributions import Gaussian, LatentClasses, Stack
from tests.support.tiers import full, only_full

random = np.random.default_rng(0)
COMMON = random.normal(size=(600, 1))
X = np.hstack([COMMON, 2 * COMMON]) + 0.3 * random.normal(size=(600, 2))
HOLES = random.random(X.shape) < 0.25
HOLES[HOLES.all(1), 0] = False
WITH_HOLES = np.where(HOLES, np.nan, X)


def test_a_normal_distribution_of_rows_with_holes_is_that_of_all_rows():
    found = TractableDensity("gaussian", random_state=0).fit(WITH_HOLES[:400])
    truth = TractableDensity("gaussian").fit(X[:400])
    assert isinstance(found.distribution_, Gaussian)
    assert found.score(X[400:]) == pytest.approx(truth.score(X[400:]), abs=0.05)


@full
@pytest.mark.parametrize("kind", ["stack", "mixture", "kernel"])
def test_rows_with_holes_say_more_than_the_complete_ones_alone(kind):
    model = TractableDensity(kind, random_state=0)
    some = WITH_HOLES[:120]
    found = model.fit(some).score(X[400:])
    complete = some[~np.isnan(some).any(1)]
    assert found > model.fit(complete).score(X[400:]) - 0.05
    means = np.where(np.isnan(some), np.nanmean(some, 0), some)
    assert found > model.fit(means).score(X[400:])


def test_the_likelihood_of_known_entries_is_that_of_the_marginal():
    model = TractableDensity("gaussian").fit(X)
    q = model.distribution_
    x = np.array([[0.5, np.nan], [np.nan, 1.0], [np.nan, np.nan]])
    scale = np.sqrt(np.diag(q.components()[2][0]))
    z = (np.array([0.5, 1.0]) - q.mean.numpy()) / scale
    expected = -(z**2) / 2 - np.log(scale) - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(model.score_samples(x), [*expected, 0.0], rtol=1e-9)


def test_frames_of_categories_are_latent_classes_and_with_numbers_a_stack():
    frame = pd.DataFrame({"x": X[:, 0], "kind": np.where(X[:, 0] > 0, "a", "b")})
    frame.loc[:20, "kind"] = None
    levels = TractableDensity(random_state=0).fit(frame[["kind"]])
    assert isinstance(levels.distribution_, LatentClasses)
    model = TractableDensity(random_state=0).fit(frame)
    assert isinstance(model.distribution_, Stack)
    asked = pd.DataFrame({"x": [2.0, -2.0], "kind": [None, None]})
    assert model.predict_column(asked, "kind").tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="several kinds"):
        TractableDensity("kernel").fit(frame)
    with pytest.raises(ValueError, match="no gradients"):
        model.score_function(frame)
    with pytest.raises(ValueError, match="temperature"):
        model.sample(2, temperature=2.0)


def test_numbers_are_correlated_within_the_levels_of_a_frame():
    random = np.random.default_rng(0)
    z, up = random.standard_normal((450, 2)), random.random(450) < 0.5
    y = np.where(up, 1, -1) * z[:, 0] + 0.2 * z[:, 1]
    frame = pd.DataFrame({"x": z[:, 0], "y": y, "kind": np.where(up, "up", "down")})
    holes = frame[:300].mask(random.random((300, 3)) < 0.2).dropna(how="all")
    model, new = TractableDensity(random_state=0).fit(holes), frame[300:]
    classes = RBMEstimator(base="latent-classes", n_iter=0, random_state=0).fit(holes)
    gain = model.score_samples(new) - classes.score_samples(new)
    assert gain.mean() > 3 * gain.std() / len(gain) ** 0.5
    error = model.predict_column(new.assign(y=np.nan), "y") - new["y"]
    assert np.sqrt(np.mean(error**2)) == pytest.approx(0.2, rel=0.3)
    kinds = model.predict_column(new.assign(kind=None), "kind")
    assert (kinds == new["kind"].to_numpy()).mean() > 0.85
    filled = model.impute(holes, 0)
    assert not filled.isna().any().any()
    assert filled.dtypes.equals(holes.dtypes)


def test_an_unseen_level_counts_as_missing():
    frame = pd.DataFrame({"x": X[:, 0], "kind": np.where(X[:, 0] > 0, "a", "b")})
    model = TractableDensity(random_state=0).fit(frame)
    with pytest.warns(UserWarning, match="did not occur in fit"):
        found = model.score_samples(pd.DataFrame({"x": [0.0], "kind": ["c"]}))
    assert found == model.score_samples(pd.DataFrame({"x": [0.0], "kind": [None]}))


def test_a_column_without_values_is_refused():
    with pytest.raises(ValueError, match="missing in all rows"):
        TractableDensity().fit(np.column_stack([X, np.full(600, np.nan)]))


@pytest.mark.parametrize("distribution", ["kernel", "mixture", only_full("stack")])
def test_imputations_of_rows_of_the_fit_are_not_their_first_draws(distribution):
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 5)) @ random.normal(size=(5, 5))
    holes = np.where(random.random(x.shape) < 0.25, np.nan, x)
    holes[np.isnan(holes).all(1), 0] = 0.0
    lost = np.isnan(holes)
    model = TractableDensity(distribution, random_state=0).fit(holes)
    normal = TractableDensity("gaussian", random_state=0).fit(holes)
    errors = [
        np.sqrt(np.mean((one.impute(holes, 0, how="mean") - x)[lost] ** 2 / x.var()))
        for one in (model, normal)
    ]
    assert errors[0] < 1.1 * errors[1]
    draws = np.stack(model.impute(holes, 0, n_draws=40))
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert 0.75 < ((low <= x) & (x <= high))[lost].mean() < 0.97
