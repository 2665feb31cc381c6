"""Rows with missing entries: likelihoods of what is known, training, imputation."""

import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal

from skebm import EnergyOutlierDetector, RBMEstimator
from skebm.estimators.base import with_fewer_holes
from skebm.estimators.queries import joint
from skebm.estimators.rbm import missing
from skebm.samplers import Persistent
from skebm.training.rows import Rows
from tests.estimators.rbm.test_columns import CITIES, frame, rbm, states
from tests.support.tiers import full, only_full

STATES = np.array(list(itertools.product([0.0, 1.0], repeat=6)))


def bits(n=400, seed=0):
    """Three pairs of columns: copies but for a tenth of the rows."""
    random = np.random.default_rng(seed)
    left = random.random((n, 3)) < [0.3, 0.5, 0.7]
    return np.hstack([left, left ^ (random.random((n, 3)) < 0.1)]).astype(float)


def with_holes(X, share=0.3, seed=1):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def marginals_of(model, X):
    """By summing over all states that agree with the known entries."""
    log_p = model.score_samples(STATES)
    agree = (np.isnan(X[:, None]) | (X[:, None] == STATES)).all(2)
    return np.array([np.logaddexp.reduce(log_p[some]) for some in agree])


@pytest.fixture(scope="module", params=["independent", "chow-liu", only_full("block-tree")])
def model(request):
    return RBMEstimator(
        4, base=request.param, n_iter=10, batch_size=20, learning_rate=0.1, random_state=0
    ).fit(bits())


# ------------------------------------------------------------------------------
# Likelihoods of what is known
# ------------------------------------------------------------------------------


def test_hidden_states_are_summed_as_long_as_the_terms_are_few(model, monkeypatch):
    """Rows times states of 4 hidden units times 6 columns."""
    monkeypatch.setattr(joint, "MOST_COMPLETIONS", 1)
    X = np.full((10, 6), np.nan)
    X[:, 0] = 1.0
    for cost, exact in ((10 * 2**4 * 6, True), (10 * 2**4 * 6 - 1, False)):
        monkeypatch.setattr(missing, "EXACT_COST", cost)
        assert (model.log_marginal(X).exact == exact).all()


@pytest.mark.parametrize("way", ["hidden", "completions"])
def test_the_likelihood_of_known_bits_is_the_sum_over_the_others(model, way, monkeypatch):
    X = with_holes(bits(20, seed=2))
    X[0], X[1, :3] = np.nan, np.nan
    if way == "completions":
        monkeypatch.setattr(missing, "EXACT_COST", 0)
    found = model.log_marginal(X)
    assert_allclose(found.log_prob, marginals_of(model, X), atol=1e-5)
    assert found.exact.all()
    assert not found.std_error.any()
    assert_array_equal(model.score_samples(X), found.log_prob)
    assert_allclose(-model.energy(X) - model.log_partition_, found.log_prob, atol=1e-6)
    assert_array_equal(model.predict(X), np.where(model.decision_function(X) >= 0, 1, -1))


def test_a_row_without_known_entries_is_certain(model):
    assert model.score_samples(np.full((1, 6), np.nan))[0] == pytest.approx(0, abs=1e-5)


@full
def test_annealing_is_within_its_error(model, monkeypatch):
    monkeypatch.setattr(missing, "EXACT_COST", 0)
    monkeypatch.setattr(joint, "MOST_COMPLETIONS", 1)
    X = with_holes(bits(200, seed=3))
    X = X[np.isnan(X).any(1)]
    found = model.log_marginal(X)
    assert not found.exact.any()
    assert 0 < found.std_error.max() < 0.2
    # A model that is nearly its base has errors below the rounding of single precision.
    z = (found.log_prob - marginals_of(model, X)) / np.maximum(found.std_error, 1e-5)
    assert np.abs(z).max() < 6
    assert np.sqrt((z**2).mean()) < 1.3


@full
def test_mixed_rows_are_integrated(monkeypatch):
    model = rbm(learning_rate=0.3).fit(frame())
    row = frame(1, seed=3).astype(object)
    table, width = states()
    log_p = model.score_samples(table)
    log_p = log_p - np.log(np.where(table["age"].isin([-40.0, 130.0]), 2, 1))
    for lost in (["age"], ["age", "city"], ["age", "city", "member", "visits"]):
        holes = row.copy()
        holes[lost] = None
        others = [name for name in row.columns if name not in lost]
        agree = np.logical_and.reduce(
            [np.ones(len(table), bool), *((table[o] == row[o].iloc[0]) for o in others)]
        )
        expected = np.logaddexp.reduce(log_p[agree]) + np.log(width)
        assert model.score_samples(holes)[0] == pytest.approx(expected, abs=1e-4)
        with monkeypatch.context() as patch:
            patch.setattr(missing, "EXACT_COST", 0)
            found = model.log_marginal(holes)
        assert found.exact.any() == (len(lost) == len(row.columns))  # of nothing it is 0
        assert abs(found.log_prob[0] - expected) < 5 * found.std_error[0] + 1e-4
    holes = row.copy()
    holes["city"] = None
    known = pd.concat([row.assign(city=city) for city in CITIES])
    expected = np.logaddexp.reduce(model.score_samples(known))
    assert model.score_samples(holes)[0] == pytest.approx(expected, abs=1e-5)


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"learning": "cd"},
        pytest.param({}, marks=full),
        pytest.param({"base": "chow-liu"}, marks=full),
        pytest.param({"chains": Persistent(n_steps=2)}, marks=full),
    ],
    ids=["cd", "pcd", "chow-liu", "two-steps"],
)
def test_training_on_rows_with_holes_learns_the_dependences(params):
    settings = {"n_iter": 50, "batch_size": 20, "learning_rate": 0.3, "random_state": 0}
    X, new = bits(1000), bits(1000, seed=5)
    complete = RBMEstimator(4, **settings | params).fit(X).score(new)
    model = RBMEstimator(4, **settings | params).fit(with_holes(X, 0.2))
    alone = RBMEstimator(4, n_iter=0, random_state=0).fit(X).score(new)
    assert complete > alone + 0.8
    assert model.score(new) > complete - 0.1


def test_bases_are_fitted_to_what_is_known():
    """Missing at random by a known column: the mean of the known values would be wrong."""
    random = np.random.default_rng(0)
    X = bits(4000)
    X[:, 3] = np.where((X[:, 0] == 1) & (random.random(4000) < 0.7), np.nan, X[:, 3])
    model = RBMEstimator(1, base="chow-liu", n_iter=0, random_state=0).fit(X)
    p = np.exp(model.score_samples(STATES))
    assert p @ STATES[:, 3] == pytest.approx(bits(4000)[:, 3].mean(), abs=0.02)
    assert np.nanmean(X[:, 3]) < bits(4000)[:, 3].mean() - 0.1


@full
def test_held_out_rows_with_holes_guard_the_training():
    """A default fit: assessed by the known entries, it ends above its base."""
    model = RBMEstimator(4, base="independent", n_iter=100, random_state=0)
    model.fit(with_holes(bits(400), 0.2))
    assert max(row.get("gain_over_base", -1) for row in model.history_) > 0.3
    base = RBMEstimator(4, n_iter=0, random_state=0).fit(bits())
    assert model.score(bits(400, seed=5)) > base.score(bits(400, seed=5)) + 0.5


def test_streams_warm_starts_early_stopping_and_storage():
    X = with_holes(bits(200))
    model = RBMEstimator(4, n_iter=5, random_state=0, warm_start=True, early_stopping=True)
    model.fit(X).fit(X).partial_fit(X)
    other = pickle.loads(pickle.dumps(model))
    assert_array_equal(other.score_samples(X), model.score_samples(X))
    other.partial_fit(X).partial_fit(X[:1])
    model.partial_fit(X).partial_fit(X[:1])
    assert_array_equal(other.components_, model.components_)


@full
def test_exact_learning_takes_stochastic_steps():
    model = RBMEstimator(3, learning="exact", n_iter=60, batch_size=20, random_state=0)
    model.fit(with_holes(bits(1000), 0.2))
    assert model.learning_ == "exact"
    alone = RBMEstimator(3, n_iter=0, random_state=0).fit(bits())
    assert model.score(bits(400, seed=5)) > alone.score(bits(400, seed=5)) + 0.5


def test_the_rows_of_the_user_keep_their_holes():
    X = with_holes(bits(60))
    before = X.copy()
    RBMEstimator(2, n_iter=2, random_state=0).fit(X).impute(X, random_state=0)
    assert_array_equal(X, before)


# ------------------------------------------------------------------------------
# Imputation and features
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed():
    return rbm(n_iter=60, batch_size=50, learning_rate=0.3).fit(frame())


def test_means_and_modes_are_those_of_the_conditional(model):
    X = np.array([[np.nan, 1, np.nan, 1, np.nan, 0], [np.nan] * 6])
    p = np.exp(model.score_samples(STATES))
    mean = model.impute(X, random_state=0, how="mean", n_steps=600)
    agree = (np.isnan(X[:, None]) | (X[:, None] == STATES)).all(2)
    expected = np.stack([p * some @ STATES / (p @ some) for some in agree])
    assert_allclose(mean, np.where(np.isnan(X), expected, X), atol=0.09)
    mode = model.impute(X, random_state=0, how="mode", n_steps=600)
    clear = np.abs(expected - 0.5) > 0.09
    assert_array_equal(mode[clear], np.where(np.isnan(X), expected > 0.5, X)[clear])


def test_imputations_keep_the_kind_of_a_frame(mixed):
    holes = frame(30, seed=3).astype(object).mask(np.random.default_rng(0).random((30, 4)) < 0.5)
    draws = mixed.impute(holes, random_state=0, n_draws=3, n_steps=5)
    assert len(draws) == 3
    assert not draws[0].equals(draws[1])
    for filled in (*draws, *(mixed.impute(holes, how=how, n_steps=5) for how in ("mean", "mode"))):
        assert (filled.dtypes == holes.dtypes).all()
        assert not filled.isna().any().any()
        assert set(filled["city"]) <= set(CITIES)
        known = holes.notna().to_numpy()
        assert_array_equal(
            filled.to_numpy(dtype=object)[known], holes.to_numpy(dtype=object)[known]
        )


def test_features_of_known_entries_are_means(mixed):
    row = frame(1, seed=3).astype(object)
    row["city"] = None
    many = pd.concat([row] * 60, ignore_index=True)
    drawn = mixed.transform(mixed.impute(many, random_state=0)).mean(0)
    assert_allclose(mixed.transform(row)[0], drawn, atol=0.15)
    assert_array_equal(mixed.transform(row), mixed.transform(row))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"how": "median"}, "how must be"),
        ({"how": "mean", "n_draws": 3}, "n_draws=3 is for"),
        ({"n_draws": 0}, "n_draws"),
    ],
)
def test_what_impute_refuses(mixed, params, message):
    with pytest.raises(ValueError, match=message):
        mixed.impute(frame(3), **params)


# ------------------------------------------------------------------------------
# Mistakes
# ------------------------------------------------------------------------------


def test_levels_that_fit_has_not_seen_are_missing(mixed):
    table = frame(20)
    with pytest.warns(UserWarning, match=r"\['city'\]"):
        found = mixed.score_samples(table.assign(city="Bonn"))
    assert_array_equal(found, mixed.score_samples(table.assign(city=None)))


@pytest.mark.parametrize("method", ["pseudo_likelihood", "reconstruct", "gibbs", "denoise"])
def test_methods_of_complete_rows_say_so(model, method):
    with pytest.raises(ValueError, match=f"NaN, and {method} needs complete rows"):
        getattr(model, method)(with_holes(bits(20)))


def test_columns_without_values():
    X = bits(50)
    X[:, 2] = np.nan
    with pytest.raises(ValueError, match="Column 2"):
        RBMEstimator(2).fit(X)
    with pytest.raises(ValueError, match="Column 'age'"):
        rbm().fit(frame().assign(age=np.nan))
    assert np.isfinite(RBMEstimator(2, n_iter=1).fit(bits(50)).score_samples(X)).all()


def test_infinite_and_sparse_input(model):
    X = bits(50)
    X[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        model.score_samples(X)
    holes = with_holes(bits(50))
    assert_allclose(model.score_samples(sp.csr_array(holes)), model.score_samples(holes), atol=1e-6)
    fitted = RBMEstimator(2, n_iter=2, random_state=0).fit(sp.csr_array(holes))
    assert np.isfinite(fitted.score_samples(holes)).all()


def test_a_detector_explains_rows_with_holes(mixed):
    detector = EnergyOutlierDetector(rbm(n_iter=20)).fit(frame())
    holes = frame(20).assign(city=None)
    assert np.isfinite(detector.score_samples(holes)).all()


def test_a_sample_of_the_rows_with_holes_sets_the_threshold(monkeypatch):
    """In proportion to their weight; the complete rows are all there."""
    monkeypatch.setattr("skebm.estimators.base.MOST_WITH_HOLES", 20)
    x = torch.rand(100, 3, generator=torch.Generator().manual_seed(0))
    x[:60, 1] = torch.nan
    weight = torch.arange(1.0, 101.0)
    rows = Rows(x, weight, dtype=torch.float32, device=torch.device("cpu"))
    some = with_fewer_holes(rows)
    holes = ~some.present_entries().all(1)
    assert (len(some), int(holes.sum())) == (60, 20)
    assert float(some.counts[holes].sum()) == pytest.approx(float(weight[:60].sum()), rel=1e-5)
    assert float(some.counts[~holes].sum()) == pytest.approx(float(weight[60:].sum()), rel=1e-5)
    monkeypatch.setattr("skebm.estimators.base.MOST_WITH_HOLES", 60)
    assert with_fewer_holes(rows) is rows
