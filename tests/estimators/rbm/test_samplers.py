"""RBMEstimator with every sampler of binary rows: it learns, resumes, and is searched over."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer

from skebm import RBMEstimator
from skebm.partition import AIS
from skebm.samplers import (
    MALA,
    DiscreteLangevin,
    FromData,
    Gibbs,
    GibbsWithGradients,
    ParallelTempering,
    Persistent,
)
from tests.support.rbm import fit_once
from tests.support.tiers import full, leading, only_full

X = (np.random.default_rng(0).random((200, 6)) < 0.3).astype(float)
X[:, 1::2] = np.where(np.random.default_rng(1).random((200, 3)) < 0.9, X[:, ::2], 1 - X[:, ::2])

SAMPLERS = [
    GibbsWithGradients(),
    DiscreteLangevin(0.5),
    DiscreteLangevin(adapt=True),
    DiscreteLangevin(0.1, adjust=False),
    ParallelTempering(3, GibbsWithGradients()),
    ParallelTempering(3, max_temperature=3.0),
]


def named_samplers(*first):
    """Every sampler; those in the first tier by their numbers, of which the last is Gibbs."""
    return [one if i in first else only_full(one) for i, one in enumerate((*SAMPLERS, Gibbs()))]


def rbm(**params):
    settings = {"n_iter": 110, "chains": Persistent(n_steps=3), "batch_size": 50}
    settings["learning_rate"] = 0.5
    return RBMEstimator(3, random_state=0, **(settings | params))


@full
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_it_learns_what_gibbs_learns(sampler):
    few = X[:199]  # of more, some guard
    gibbs = fit_once(rbm(), few).score(few)
    nothing = fit_once(rbm(n_iter=1, learning_rate=1e-9), few).score(few)
    # What is biased, and hardly moves, learns less, and unlearns it later.
    length = {} if sampler.exact else {"n_iter": 40}
    found = rbm(sampler=sampler, **length).fit(few).score(few)
    assert gibbs > nothing + 0.3
    assert found > (gibbs - 0.1 if sampler.exact else nothing + 0.05)


@pytest.mark.parametrize("sampler", named_samplers(0, 2, 4, 6), ids=repr)
def test_a_stored_fit_goes_on_bit_for_bit(sampler):
    model = rbm(sampler=sampler, n_iter=3).fit(X)
    other = pickle.loads(pickle.dumps(model))
    for one in (model, other):
        one.partial_fit(X[:80])
    assert np.array_equal(model.score_samples(X), other.score_samples(X))
    assert np.array_equal(model.components_, other.components_)


def test_a_sampler_goes_on_adapting_while_its_chains_restart():
    sampler, chains = DiscreteLangevin(adapt=True), FromData(n_steps=3)
    kind = {"chains": chains, "sampler": sampler, "aim": "features"}  # which no rows guard
    short, long = (rbm(**kind, n_iter=n).fit(X) for n in (1, 6))
    first, last = (model.net_.state_.chain.aux for model in (short, long))
    assert last.adaptation.n_steps == first.adaptation.n_steps + 5  # 4 batches a pass, one in four
    assert last.adaptation.error != first.adaptation.error


def test_shorter_temperature_ladders_start_anew():
    """The first replicas of a longer one are its hottest."""
    kind = {"n_iter": 1, "warm_start": True, "aim": "features"}  # which no rows guard
    model = fit_once(rbm(sampler=ParallelTempering(6), **kind), X)
    packed = model.net_
    model = pickle.loads(pickle.dumps(model)).set_params(sampler=ParallelTempering(3))
    objective = model.fit(X).net_.module_
    state = objective.unpack(packed.module_.pack(packed.state_))
    assert all(torch.equal(one.x, state.chain.x) for one in state.chain.aux)


@pytest.mark.parametrize("sampler", leading(1, [SAMPLERS[0], SAMPLERS[1], SAMPLERS[3]]), ids=repr)
def test_contrastive_divergence_restarts_any_of_them(sampler):
    grey = np.clip(X * 0.9 + 0.05, 0, 1)  # probabilities: chains start at draws of them
    chains = FromData(n_steps=3)
    for table in (X, grey):
        assert np.isfinite(rbm(chains=chains, sampler=sampler, n_iter=5).fit(table).score(X))


# Single bits, and replicas: what draws whole layers, and what needs another kernel for them.
@pytest.mark.parametrize("sampler", named_samplers(0, 5), ids=repr)
def test_a_wide_model_draws_imputes_and_denoises_by_chains(sampler):
    model = RBMEstimator(30, learning="pcd", n_iter=2, sampler=sampler, random_state=0)
    wide = np.tile(X[:100], 5)  # too wide to enumerate, so that chains are needed
    model.set_params(partition=AIS(n_chains=20, n_betas=20)).fit(wide)
    holes = wide[:4].copy()
    holes[:, ::3] = np.nan
    filled = model.impute(holes, 0, n_steps=20)
    assert np.array_equal(filled[:, 1::3], wide[:4, 1::3])
    assert set(np.unique(filled)) <= {0, 1}
    draws = model.sample(5, 0, n_steps=20)
    assert set(np.unique(draws)) <= {0, 1}
    assert model.gibbs(wide[:3]).shape == (3, 30)
    assert model.denoise(wide[:3], n_steps=20).shape == (3, 30)
    assert np.isfinite(model.score_samples(wide)).all()
    assert model.h_samples_.shape[1] == 30


def test_class_and_step_size_are_searched_in_a_pipeline():
    pipeline = Pipeline([("bits", Binarizer(threshold=0.5)), ("rbm", rbm(n_iter=5))])
    grid = [
        {"rbm__sampler": [Gibbs(), GibbsWithGradients()]},
        {"rbm__sampler": [DiscreteLangevin()], "rbm__sampler__step_size": [0.1, 1.0]},
    ]
    search = GridSearchCV(pipeline, grid, cv=2).fit(X)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    best = search.best_params_
    assert type(search.best_estimator_["rbm"].sampler_) is type(best["rbm__sampler"])
    first, second = search.cv_results_["mean_test_score"][2:]
    assert first != second


def test_a_step_size_reaches_the_sampler():
    model = rbm(sampler=DiscreteLangevin(), n_iter=1).set_params(sampler__step_size=0.7).fit(X)
    assert model.sampler_.step_size == 0.7
    assert model.sampler_ is not model.sampler


def test_samplers_of_real_rows_are_refused():
    with pytest.raises(TypeError, match=r"MALA samples Real rows.*Binary"):
        rbm(sampler=MALA()).fit(X)


@pytest.mark.parametrize("step", [0, -1.0, "large"])
def test_bad_step_sizes_are_refused_before_training(step):
    with pytest.raises(ValueError, match="'step_size' parameter of DiscreteLangevin"):
        rbm(sampler=DiscreteLangevin(step)).fit(X)


def test_another_sampler_on_a_warm_start():
    model = rbm(sampler=GibbsWithGradients(), n_iter=2, warm_start=True).fit(X)
    for sampler in (ParallelTempering(3), DiscreteLangevin(adapt=True), None, *SAMPLERS[:1]):
        model.set_params(sampler=sampler).fit(X)
        assert np.isfinite(model.score(X))


def test_annealing_refuses_a_biased_kernel():
    model = rbm(n_iter=1).fit(X)
    with pytest.raises(ValueError, match="unbiased only with exact kernels"):
        AIS(n_betas=10).estimate(model.energy_, sampler=DiscreteLangevin(adjust=False))
    gradients = AIS(n_chains=500, n_betas=100).estimate(
        model.energy_,
        sampler=GibbsWithGradients(),
        generator=torch.Generator().manual_seed(0),
    )
    assert abs(gradients.value - model.log_partition_) < 5 * gradients.std_error + 1e-6
