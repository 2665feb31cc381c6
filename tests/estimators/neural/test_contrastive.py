"""ContrastiveDivergenceDensity on real rows: what is learned, where chains are, what goes wrong."""

import copy
import functools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ContrastiveDivergenceDensity, JEMClassifier, ScoreMatchingDensity
from skebm.base import Real
from skebm.distributions import Gaussian, GaussianMixture, Uniform
from skebm.energies import MLP, Conv
from skebm.estimators import Discrepancy, Likelihood, MixtureBase
from skebm.estimators.neural.sampling import starts
from skebm.inspection import EnergyDisplay, TrainingDisplay
from skebm.partition import ImportanceSampling
from skebm.samplers import (
    HMC,
    MALA,
    AnnealedLangevin,
    FromData,
    FromNoise,
    GibbsWithGradients,
    Langevin,
    MetropolisHastings,
    ParallelTempering,
    Persistent,
    ReplayBuffer,
    Shift,
)
from skebm.training import AdamW, EarlyStopping
from tests.support.callbacks import Interrupt, Poison
from tests.support.storage import by_pickle
from tests.support.tables import real_rows
from tests.support.tiers import about, full, leading, named, only_full

POLICIES = {
    "persistent": Persistent,
    "replay": functools.partial(ReplayBuffer, size=150),
    "data": FromData,
    "noise": FromNoise,
}
quick = {"n_iter": 3, "random_state": 0, "base": "gaussian"}
quick |= {"partition": ImportanceSampling(500)}
# Steps by which nothing moves, and no proposals of the base: chains stay where they began.
rooted = {"sampler": MALA(1e-12), "sigma": None, "standardize": False}


def policy(name, **params):
    """Chains of a kind that take few steps."""
    return POLICIES[name](**{"n_steps": 3} | params)


def still(name="persistent", **params):
    """Chains that are offered no draws of the base."""
    return policy(name, n_independence_steps=0, **params)


X, X_NEW = real_rows(100, 3), real_rows(40, 3, seed=1)


def density(**params):
    params = {"network": MLP((16,)), "chains": Persistent(n_steps=3), **quick, **params}
    return ContrastiveDivergenceDensity(**params)


def state_of(model):
    return model.net_.state_


def packed(model):
    """All that training goes on from beside the weights, by name."""
    state = model.net_.module_.pack(state_of(model))
    return {name: None if part is None else part.numpy() for name, part in state.items()}


def assert_same_training(one, other):
    a, b = packed(one), packed(other)
    assert a.keys() == b.keys()
    for name in a:
        assert_array_equal(a[name], b[name], err_msg=name)
    assert_array_equal(one.energy(X), other.energy(X))


# ------------------------------------------------------------------------------
# What is learned
# ------------------------------------------------------------------------------


def moons(n, seed):
    return make_moons(n, noise=0.1, random_state=seed)[0]


def ring(n, seed):
    """Eight far modes of equal mass."""
    rng = np.random.default_rng(seed)
    angle = rng.integers(0, 8, n) * np.pi / 4
    return 3 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.4 * rng.normal(size=(n, 2))


def normal_score(rows, new):
    return scipy.stats.multivariate_normal(rows.mean(0), np.cov(rows.T)).logpdf(new).mean()


TARGETS = {"moons": moons, "ring": ring}
LEARNED = {
    "sigma": 0.15,
    "network": MLP((32, 32)),
    "learning_rate": 0.01,
    "partition": ImportanceSampling(20_000),
}


@functools.cache
def score_of_the_base(target):
    draw = TARGETS[target]
    return density(**LEARNED, n_iter=0).fit(draw(300, 0)).score(draw(500, 1))


@full
@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("ring", "replay"),
        only_full("moons", "persistent"),
        only_full("moons", "data"),
        only_full("ring", "noise"),
        only_full("moons", "replay"),
        only_full("moons", "noise"),
        only_full("ring", "persistent"),
        only_full("ring", "data"),
    ],
)
def test_held_out_rows_gain_from_training(target, name):
    """Over the normal distribution that is corrected, which alone misses half a nat or more."""
    draw = TARGETS[target]
    rows, new = draw(300, 0), draw(500, 1)
    size = {"size": 1000} if name == "replay" else {}
    model = density(**LEARNED, chains=policy(name, **size), n_iter=25).fit(rows)
    assert model.n_restarts_ == 0
    assert model.score(new) > score_of_the_base(target) + 0.15
    assert model.score(new) > normal_score(rows, new) + 0.15


@full
def test_training_gains_on_a_mixture_and_on_a_normal_distribution():
    rows, new = moons(400, 0), moons(400, 1)
    model = ContrastiveDivergenceDensity(base="mixture", n_iter=30, random_state=0).fit(rows)
    base = ContrastiveDivergenceDensity(base="mixture", n_iter=0, random_state=0).fit(rows)
    assert model.score(new) > base.score(new)
    assert model.score(new) > normal_score(rows, new) + 0.2


@pytest.mark.parametrize(
    ("base", "standardize"),
    [
        ("gaussian", False),
        ("mixture", True),
        ("kernel", True),
        ("given", True),
        only_full("gaussian", True),
        only_full("mixture", False),
        only_full("kernel", False),
        only_full("given", False),
    ],
)
def test_before_training_the_model_is_its_base(base, standardize):
    rows = X * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0]
    given = Gaussian.fit(torch.tensor(rows)) if base == "given" else base
    params = {"n_iter": 0, "base": given, "standardize": standardize, "dtype": "float64"}
    model = density(**params, sigma=None).fit(rows)
    z = torch.tensor(model.units_.apply(rows))
    expected = model.base_.log_prob(z).numpy() - model.units_.log_volume
    assert_allclose(model.score_samples(rows), expected, rtol=1e-9, atol=1e-9)
    assert model.log_partition_ == pytest.approx(0, abs=1e-9)
    if base == "given":
        expected = scipy.stats.multivariate_normal(given.mean, given.covariance).logpdf(rows)
        assert_allclose(model.score_samples(rows), expected, rtol=1e-6)


def test_the_model_is_one_of_rows_with_the_noise_of_training():
    """A normal base is convolved with it; taken off, the base is that of the rows."""
    rows = np.random.default_rng(0).normal(size=(4000, 1))
    params = {"n_iter": 0, "sigma": 0.5, "dtype": "float64"}
    noisy = density(**params, deconvolve=False).fit(rows)
    clean = density(**params).fit(rows)
    for model, variance in ((noisy, 1.25), (clean, 1.0)):
        expected = scipy.stats.norm(0, variance**0.5).logpdf([[0.0], [2.0]])[:, 0]
        assert_allclose(model.score_samples([[0.0], [2.0]]), expected, atol=0.06)
    assert_allclose(noisy.sigma_, [0.5])


def test_the_score_without_log_z_is_the_hyvarinen_score():
    model = ScoreMatchingDensity(MLP((16,)), base="gaussian", n_iter=0, sigma=0.3, partition=None)
    expected = model.fit(X).score(X_NEW)
    found = density(n_iter=0, sigma=0.3, partition=None).fit(X).score(X_NEW)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bounds", leading(2, [(0, None), (0, 9), (None, 9)]), ids=str)
def test_inside_bounds(bounds):
    rows = np.random.default_rng(0).beta(1, 2, (200, 2)) * 8
    model = density(bounds=bounds, base="auto").fit(rows)
    assert model.sigma_ is None
    drawn = model.sample(200, random_state=0, n_steps=5)
    low, high = (-np.inf if bounds[0] is None else 0, np.inf if bounds[1] is None else 9)
    assert ((drawn >= low) & (drawn <= high)).all()
    holes = rows.copy()
    holes[:, 1] = np.nan
    filled = model.impute(holes, random_state=0, n_steps=5)
    assert ((filled >= low) & (filled <= high)).all()
    assert_array_equal(filled[:, 0], rows[:, 0])
    beyond = np.array([[4.0, -1.0 if bounds[0] == 0 else 10.0]])
    assert model.score_samples(beyond) == -np.inf
    assert model.predict(beyond) == -1
    assert_array_equal(model.score_function(beyond), 0.0)


def test_rows_without_a_base_inside_bounds():
    """Uniform at first; log Z is then that of the box."""
    rows = np.random.default_rng(0).beta(2, 5, (400, 1)) * 4
    params = {"bounds": (0, 4), "base": None, "dtype": "float64", "partition": "auto"}
    model = density(**params, n_iter=0).fit(rows)
    assert_allclose(model.score_samples([[0.5], [3.9]]), -np.log(4), atol=1e-9)
    model = density(**params, n_iter=40, learning_rate=0.01).fit(rows)
    truth = scipy.stats.beta(2, 5, scale=4).logpdf(rows).mean()
    assert model.score(rows) > (truth - np.log(4)) / 2  # half way at least
    grid = np.linspace(0, 4, 2001)[:, None]
    density_there = np.exp(model.score_samples(grid))
    assert integrate.trapezoid(density_there, grid[:, 0]) == pytest.approx(1, abs=0.02)


# ------------------------------------------------------------------------------
# Scores, noise, imputations
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", leading(2, ["auto", "kernel", "gaussian"]))
def test_the_score_function_is_the_gradient_of_log_p(base):
    params = {"dtype": "float64", "partition": ImportanceSampling(500)}
    model = density(base=base, **params).fit(X)
    steps = 1e-4 * np.eye(3)
    ends = [(model.score_samples(X_NEW + s) - model.score_samples(X_NEW - s)) for s in steps]
    expected = np.stack(ends, 1) / 2e-4
    assert_allclose(model.score_function(X_NEW), expected, rtol=1e-4, atol=1e-5)


def test_denoised_normal_rows_are_posterior_means():
    """Of a clean N(2, 4) and noise of one half, known without sampling."""
    base = Gaussian(torch.tensor([2.0], dtype=torch.float64), 2.0)
    params = {"base": base, "n_iter": 0, "standardize": False, "dtype": "float64"}
    rows = np.random.default_rng(0).normal(2, 2, (50, 1))
    new = np.array([[-3.0], [0.0], [7.0]])
    model = density(**params, sigma=0.5).fit(rows)
    expected = (4 * new + 0.25 * 2) / 4.25
    assert_allclose(model.denoise(new), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="single noise level"):
        model.denoise(new, 0.3)
    clean = density(**params, sigma=None).fit(rows)
    assert_allclose(clean.denoise(new, 0.1), new - 0.01 * (new - 2) / 4, rtol=1e-6)
    with pytest.raises(ValueError, match="without noise"):
        clean.denoise(new)


def test_samples_and_imputations_are_those_of_a_known_model():
    """Correlated normal columns: their means and covariances, and the same given one of them."""
    covariance = np.array([[2.0, 0.9], [0.9, 1.0]])
    base = Gaussian(torch.tensor([1.0, -2.0]), covariance=torch.tensor(covariance).float())
    rows = np.random.default_rng(0).multivariate_normal([1, -2], covariance, 50)
    model = density(base=base, n_iter=0, sigma=None).fit(rows)
    n, row = 4000, np.array([np.nan, -1.0])
    drawn = model.sample(n, random_state=0, n_steps=10)
    assert_allclose(drawn.mean(0), [1, -2], atol=5 * (2 / n) ** 0.5)
    assert_allclose(np.cov(drawn.T), covariance, atol=5 * 2 * (2 / n) ** 0.5)
    given = scipy.stats.norm(1 + 0.9 * 1.0, (2 - 0.81) ** 0.5)
    for found in (
        model.sample(n, random_state=0, given=row, n_steps=10),
        model.impute(np.repeat(row[None], n, 0), random_state=0, n_steps=10),
    ):
        assert (found[:, 1] == -1).all()
        assert scipy.stats.kstest(found[:, 0], given.cdf).pvalue > 1e-3


# ------------------------------------------------------------------------------
# Where chains start
# ------------------------------------------------------------------------------


FAR = Gaussian(torch.tensor([50.0, -50.0, 0.0]), 30.0)  # seen to be apart from the data


def test_a_name_is_a_policy_with_its_defaults():
    model = density(sampler=MALA(0.1))
    kinds = {
        "persistent": Persistent(),
        "replay": ReplayBuffer(),
        "data": FromData(),
        "noise": FromNoise(),
    }
    assert ContrastiveDivergenceDensity().chains == "persistent"
    for name, same in kinds.items():
        one, other = (clone(model).set_params(chains=c, n_iter=1).fit(X) for c in (name, same))
        assert_same_training(one, other)


def test_without_a_base_samples_start_in_the_replay_buffer():
    inside = 1 / (1 + np.exp(-X))
    params = {"base": None, "bounds": (0, 1), "sigma": None, "standardize": False}
    model = density(chains=policy("replay"), sampler=MALA(1e-12), **params).fit(inside)
    run = model.net_.run_
    run.state = run.state._replace(pool=torch.full_like(run.state.pool, 0.25))
    assert_allclose(model.sample(5, random_state=0), 0.25, atol=1e-4)


@pytest.mark.parametrize("name", ["persistent", "replay", "noise"])
def test_chains_begin_at_the_base(name):
    more = {"persistent": {"n_chains": 400}, "replay": {"size": 400}, "noise": {}}[name]
    model = density(chains=still(name, **more), base=FAR, **rooted, batch_size=400)
    rows = real_rows(400, 3)
    model.set_params(optimizer__max_restarts=0, n_iter=1).fit(rows)
    state = state_of(model)
    x = state.pool if name == "replay" else state.chain.x
    assert_allclose(x.mean(0), [50, -50, 0], atol=5 * 30 / len(x) ** 0.5)
    assert_allclose(x.std(0), 30, rtol=0.2)


def test_chains_begin_at_the_rows_of_the_batch():
    rows = X[:40]  # of which none are held out
    model = density(chains=still("data"), **rooted, batch_size=1000).fit(rows)
    assert_allclose(state_of(model).chain.x, rows, atol=1e-4)


def test_chains_begin_where_the_policy_says():
    begin = Gaussian(torch.tensor([20.0, 0.0, -20.0]), 1.0)
    for name in ("persistent", "replay", "noise"):
        with about(name):
            params = rooted | {"optimizer": AdamW(max_restarts=0), "n_iter": 1}
            model = density(chains=still(name, initial=begin), **params, base=FAR).fit(X)
            state = state_of(model)
            x = state.pool if name == "replay" else state.chain.x
            assert_allclose(x.mean(0), [20, 0, -20], atol=0.5)


def test_the_number_of_chains():
    assert len(state_of(density(batch_size=20).fit(X)).chain.x) == 20
    seven = Persistent(n_steps=3, n_chains=7)
    assert len(state_of(density(batch_size=20, chains=seven).fit(X)).chain.x) == 7
    assert len(state_of(density(chains=policy("replay")).fit(X)).pool) == 150


def test_offers_of_the_base_are_taken():
    """All of them as long as the model is the base; none are made with n_independence_steps=0."""
    params = rooted | {"network": MLP((4,)), "learning_rate": 1e-8}
    first = density(**params, chains=still(), n_iter=1).fit(X)
    later = density(**params, chains=still(), n_iter=4).fit(X)
    assert_allclose(state_of(first).chain.x, state_of(later).chain.x, atol=1e-4)
    for chains in (policy("persistent"), policy("persistent", n_independence_steps=2)):
        one = density(**params, chains=chains, n_iter=1).fit(X)
        other = density(**params, chains=chains, n_iter=2).fit(X)
        apart = (state_of(one).chain.x - state_of(other).chain.x).abs()
        assert (apart > 1e-4).all()


CONFIGURED = [
    ReplayBuffer(n_steps=2, size=200, restart=0.1),
    Persistent(n_steps=2, n_chains=7),
    Persistent(n_steps=2, n_chains=7, initial=Gaussian(torch.zeros(3), 2.0)),
    FromNoise(n_steps=2),
    FromNoise(n_steps=2, initial=Gaussian(torch.zeros(3), 2.0)),
    FromData(n_steps=2),
    FromData(n_steps=2, noise_scale=0.1),
]


# The stored ones are started, those with a size are as large as that.
@pytest.mark.parametrize("chains", named(CONFIGURED[:2] + CONFIGURED[4:5], CONFIGURED), ids=repr)
def test_a_policy_is_where_chains_start(chains):
    before = chains.get_params()
    model = density(chains=chains).fit(X)
    assert np.isfinite(model.score(X_NEW))
    assert model.chains is chains
    assert chains.get_params() == before
    assert_same_training(by_pickle(model).partial_fit(X), model.partial_fit(X))
    size = getattr(chains, "size", None) or getattr(chains, "n_chains", None)
    if size is not None:
        x = state_of(model).chain.x if isinstance(chains, Persistent) else state_of(model).pool
        assert len(x) == size


@full
def test_policies_are_searched_over():
    """Given, and by the name of the parameter where a string stands for one."""
    model = density(chains=ReplayBuffer(n_steps=2, size=200), n_iter=1)
    assert model.get_params()["chains__size"] == 200
    grid = {"chains__size": [128, 150], "chains__n_steps": [1, 2]}
    for chains in (model.chains, "replay"):
        search = GridSearchCV(model.set_params(chains=chains), grid, cv=2, error_score="raise")
        best = search.fit(X).best_estimator_
        assert len(state_of(best).pool) == search.best_params_["chains__size"]
        assert best.chains.n_steps == search.best_params_["chains__n_steps"]
    assert model.chains == "replay"  # a search fits clones
    other = {"chains": [Persistent(n_steps=1), FromNoise(n_steps=1)]}
    search = GridSearchCV(density(n_iter=1), other, cv=2, error_score="raise").fit(X)
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 2


# ------------------------------------------------------------------------------
# Samplers
# ------------------------------------------------------------------------------


SAMPLERS = [
    None,
    MALA(0.1),
    MALA(adapt=True),
    MALA(adapt=True, scale="dense"),
    HMC(0.2, n_leapfrog=3),
    HMC(adapt=True),
    Langevin(0.01),
    Langevin(0.01, noise_scale=0.01),
    MetropolisHastings(0.5),
    MetropolisHastings(adapt=True),
]


# Every kind of sampler moves persistent chains, and every policy starts chains of the default one;
# which of them move the chains of another policy is the same to it: each does of one, in turn.
KINDS = {type(sampler): sampler for sampler in SAMPLERS}
PAIRS = [
    (sampler, name)
    if name == "persistent" and sampler is KINDS[type(sampler)] or sampler is None
    else only_full(sampler, name)
    for i, name in enumerate(POLICIES)
    for j, sampler in enumerate(SAMPLERS)
    if name == "persistent" or sampler is None or j % 3 == i % 3
]


@pytest.mark.parametrize(("sampler", "name"), PAIRS, ids=str)
def test_every_sampler_of_real_rows(sampler, name):
    model = density(sampler=sampler, chains=policy(name)).fit(X)
    assert model.n_restarts_ == 0
    assert np.isfinite(model.score(X_NEW))
    assert np.isfinite(model.sample(5, random_state=0, n_steps=2)).all()
    last = model.history_[-1]
    assert 0 < last["acceptance"] <= 1
    if sampler is not None:
        assert type(model.sampler_) is type(sampler)
        assert model.sampler_ is not sampler
    assert_same_training(by_pickle(model).partial_fit(X), model.partial_fit(X))


def test_tempered_chains():
    """Exact together, so they must be persistent."""
    sampler = ParallelTempering(3, MALA(0.1))
    model = density(sampler=sampler, domain="real").fit(X)
    assert np.isfinite(model.score(X_NEW))
    assert_same_training(by_pickle(model).partial_fit(X), model.partial_fit(X))
    for name in ("data", "noise", "replay"):
        with pytest.raises(ValueError, match="persistent chains"):
            density(sampler=sampler, domain="real", chains=policy(name)).fit(X)


def test_steps_are_searched_over():
    """How long and how many, from a sampler and chains by default, in a pipeline."""
    model = density(chains="persistent", n_iter=2, partition=ImportanceSampling(500))
    pipeline = make_pipeline(StandardScaler(), model)
    step = "contrastivedivergencedensity"
    grid = {f"{step}__sampler__step_size": [0.01, 0.1], f"{step}__chains__n_steps": [1, 6]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X)
    best = search.best_estimator_[-1]
    assert best.chains.n_steps == search.best_params_[f"{step}__chains__n_steps"]
    assert best.sampler.step_size == search.best_params_[f"{step}__sampler__step_size"]
    assert not best.sampler.adapt  # a step that is given is kept
    scores = search.cv_results_["mean_test_score"]
    assert len(np.unique(scores)) > 1  # those below their base are their base
    assert pipeline[-1].chains == "persistent"  # a search fits clones
    assert pipeline[-1].sampler is None


def test_settings_are_set_on_what_a_default_stands_for():
    model = ContrastiveDivergenceDensity().set_params(
        network__hidden_sizes=(5,),
        sampler__target_acceptance=0.5,
        chains__n_steps=2,
        objective__energy_l2=0.1,
        base__n_components=2,
        optimizer__averaging=0.5,
        early_stopping__validation_fraction=0.2,
        random_state=0,
        n_iter=2,
    )
    kinds = {
        "network": MLP,
        "sampler": MALA,
        "chains": Persistent,
        "objective": Likelihood,
        "base": MixtureBase,
        "optimizer": AdamW,
        "early_stopping": EarlyStopping,
    }
    for name, kind in kinds.items():
        assert type(getattr(model, name)) is kind
    assert model.sampler.adapt  # as the default one
    twin = clone(model)
    assert twin.get_params()["objective__energy_l2"] == 0.1
    twin.fit(X)
    assert twin.net_.module_.energy_l2 == 0.1
    assert len(twin.net_.validation) == 20
    assert len(twin.base_.weights) == 3  # with a broad one
    for name, kind in (("replay", ReplayBuffer), ("data", FromData), ("noise", FromNoise)):
        other = ContrastiveDivergenceDensity(chains=name).set_params(chains__n_steps=2)
        assert type(other.chains) is kind
    other = ContrastiveDivergenceDensity(objective="discrepancy")
    assert other.set_params(objective__n_negatives=3).objective.n_negatives == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"energy_l2": 1.0},
        {"clip_norm": 1e-3},
        {"sigma_anneal": 10.0},
        {"kl_weight": 1.0},
        {"entropy_weight": 1.0},
    ],
    ids=str,
)
def test_settings_of_the_likelihood_change_training(settings):
    plain = once("persistent")
    model = density(objective=Likelihood(**settings), batch_size=30).fit(X)
    assert not np.array_equal(model.energy(X), plain.energy(X))


def test_the_objective_by_name_and_with_settings():
    plain = once("persistent")
    assert_same_training(density(objective=Likelihood(), batch_size=30).fit(X), plain)
    params = {"chains": "persistent", "batch_size": 30, "sigma": None}
    by_name = density(objective="discrepancy", **params).fit(X)
    same = density(objective=Discrepancy(), **params).fit(X)
    assert_array_equal(by_name.energy(X), same.energy(X))
    for settings in ({"perturbation": 0.5}, {"n_negatives": 2}):
        other = density(objective=Discrepancy(**settings), **params).fit(X)
        assert not np.array_equal(other.energy(X), by_name.energy(X))


@pytest.mark.parametrize("n_steps", [1, 7])
def test_chains_take_as_many_steps(n_steps):
    """Without a gradient, without rejections and from one point they diffuse by n h."""
    chains = still("noise", n_steps=n_steps, initial=Gaussian(torch.zeros(3), 1e-6))
    params = rooted | {"sampler": Langevin(0.01), "base": Uniform(Real((3,), -100.0, 100.0))}
    params |= {"learning_rate": 1e-8, "n_iter": 1, "chains": chains, "batch_size": 2000}
    rows = np.repeat(X, 10, 0) + 1e-9 * np.arange(10 * len(X))[:, None]  # no copies
    model = density(**params, bounds=(-100, 100)).fit(rows)
    assert_allclose(state_of(model).chain.x.var(0), 0.02 * n_steps, rtol=0.25)


# ------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------


MODES = {
    "persistent": {},
    "fixed step": {"sampler": MALA(0.1)},
    "replay": {"chains": policy("replay")},
    "data": {"chains": policy("data")},
    "noise": {"chains": policy("noise")},
    "reweight": {"chains": policy("persistent", reweight=True)},
    "momentum": {"chains": policy("data"), "sampler": HMC(adapt=True)},
    "refined": {"objective": Likelihood(kl_weight=0.1, entropy_weight=0.1)},
}
each_mode = pytest.mark.parametrize("mode", MODES)


@functools.cache
def _once(mode):
    return density(**MODES[mode], batch_size=30).fit(X)


def once(mode):
    """A copy of a model of X; each is fitted once."""
    return copy.deepcopy(_once(mode))


@pytest.mark.parametrize("mode", named({"replay", "momentum"}, MODES))
def test_training_that_is_stored_goes_on_bit_for_bit(mode):
    model = once(mode)
    loaded = by_pickle(model)
    assert_same_training(model, loaded)
    assert_same_training(model.partial_fit(X_NEW), loaded.partial_fit(X_NEW))
    assert loaded.n_iter_ == model.n_iter_


@pytest.mark.parametrize("reweight", [False, True])
@pytest.mark.parametrize("n_chains", leading(1, [50, None]))
@pytest.mark.parametrize("go_on", ["partial_fit", "warm_start"])
def test_chains_go_on(go_on, n_chains, reweight):
    """They stand where they stood, up to steps that move them by next to nothing."""
    chains = still(n_chains=n_chains, reweight=reweight)
    params = rooted | {"chains": chains, "warm_start": True, "learning_rate": 1e-8}
    model = density(**params).fit(X)
    before, n_batches = state_of(model).chain.x.clone(), state_of(model).n_batches
    if go_on == "partial_fit":
        model.partial_fit(X_NEW)  # of fewer rows
    else:
        model.fit(X_NEW)
    assert state_of(model).n_batches > n_batches
    assert_allclose(state_of(model).chain.x, before, atol=1e-4)


def test_the_buffer_goes_on():
    model = density(**rooted, chains=still("replay", restart=0.0)).fit(X)
    before = state_of(model).pool.clone()
    assert_allclose(state_of(model.partial_fit(X)).pool, before, atol=1e-4)


@functools.cache
def _by_policy(name):
    return density(chains=policy(name), warm_start=True).fit(X)


SWITCHES = [(first, later) for first in POLICIES for later in POLICIES]
EACH_ONCE = [("persistent", "replay"), ("replay", "data")]


@pytest.mark.parametrize(
    ("first", "later"),
    [pair if pair in EACH_ONCE else only_full(*pair) for pair in SWITCHES],
)
def test_another_policy_starts_other_chains(first, later):
    model = copy.deepcopy(_by_policy(first))
    weights = model.energy(X)
    model.set_params(chains=policy(later), n_iter=1, learning_rate=1e-6).fit(X)
    assert_allclose(model.energy(X), weights, atol=1e-3)
    state = state_of(model)
    assert (state.pool is not None) == (later == "replay")
    assert np.isfinite(model.score(X_NEW))
    assert_same_training(by_pickle(model).partial_fit(X), model.partial_fit(X))


@pytest.mark.parametrize("n_independence_steps", leading(1, [1, 0, 3]))
def test_weights_are_those_of_the_parameters_alone(n_independence_steps):
    """Rows that move, by steps or to draws of the base, do not change what they weigh."""
    chains = policy(
        "persistent", n_chains=200, reweight=True, n_independence_steps=n_independence_steps
    )
    params = {"sampler": MALA(0.2), "learning_rate": 1e-9, "n_iter": 30}
    model = density(**params, chains=chains).fit(X)
    walkers = state_of(model).walkers
    assert_allclose(walkers.log_weight, 0, atol=1e-4)
    assert float(walkers.log_z) == pytest.approx(0, abs=1e-4)


def test_weights_know_log_z():
    """That of a model which was trained before without any, and is trained on."""
    kind = {"warm_start": True, "partition": "auto"}
    model = density(n_iter=20, learning_rate=0.01, **kind).fit(X)
    weighted = policy("persistent", n_chains=1000, reweight=True)
    model.set_params(chains=weighted, n_iter=5, learning_rate=1e-3).fit(X)
    state, energy = state_of(model), model.net_.module_.energy
    with torch.no_grad():
        log_z = float(state.walkers.log_partition(energy, state.chain.x))
    assert log_z == pytest.approx(model.log_partition_, abs=0.2)


def test_going_on_with_other_columns():
    frame = pd.DataFrame(X, columns=list("abc"))
    model = density(warm_start=True).fit(frame)
    for again in (model.partial_fit, model.fit):
        with pytest.raises(ValueError, match="feature names"):
            again(frame[list("cba")])
        with pytest.raises(ValueError, match="feature names|features"):
            again(frame[["a", "b"]])
    with pytest.raises(ValueError, match="features"):
        density().fit(X).partial_fit(X[:, :2])
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(network=MLP((7,))).fit(frame)


# ------------------------------------------------------------------------------
# Interruptions and divergence
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", named({"replay"}, MODES))
def test_an_interrupted_fit_keeps_its_chains(mode):
    callbacks = {"callbacks": [("stop", Interrupt(7))]}
    model = density(**MODES[mode], batch_size=20, n_iter=50, net_params=callbacks)
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch 2.*usable"):
        model.fit(X)
    assert state_of(model).n_batches == 7
    assert np.isfinite(model.score(X_NEW))
    assert np.isfinite(model.sample(3, random_state=0, n_steps=1)).all()
    model.set_params(net_params=None)
    loaded = by_pickle(model)
    assert_same_training(model, loaded)
    assert_same_training(model.partial_fit(X), loaded.partial_fit(X))
    assert state_of(model).n_batches == 12


@pytest.mark.parametrize("name", ["persistent", "replay"])
def test_a_rollback_keeps_the_last_good_chains_with_half_the_step(name):
    """Those of the buffer, too; they hardly move here."""
    params = rooted | {"sampler": MALA(1e-8), "chains": still(name), "batch_size": 20}
    good = density(**params).fit(X)
    model = density(**params, net_params={"callbacks": [Poison(6)]})
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model.fit(X)
    assert model.n_restarts_ == 1
    assert state_of(model).halvings == 1
    assert model.net_.module_.kernel(1).step_size == 0.5e-8
    here, there = (s.pool if name == "replay" else s.chain.x for s in map(state_of, (model, good)))
    same = ((here - there).abs().amax(1) < 1e-2).float().mean()
    assert same > (0.5 if name == "replay" else 0.99)  # restarts are drawn with another seed


STEPS = {
    "langevin": {"sampler": Langevin(0.1)},
    "langevin 10x": {"sampler": Langevin(1.0), "chains": policy("data")},
    "langevin 100x": {"sampler": Langevin(10.0)},
    "mala": {},
    "mala 10x": {"sampler": MALA(1.0), "chains": policy("replay", size=1000)},
    "mala 100x": {"sampler": MALA(10.0)},
    "reweight 10x": {"sampler": MALA(1.0), "chains": policy("persistent", reweight=True)},
}
FIRST = {"mala": 2.0}
TOO_LARGE = {"network": MLP((32, 32)), "partition": ImportanceSampling(5000), "sigma": 0.3}


@functools.cache
def score_of_the_base_alone():
    return density(**TOO_LARGE, n_iter=0).fit(X).score(X)


@pytest.mark.parametrize(
    ("name", "learning_rate"),
    [
        (name, rate) if FIRST.get(name) == rate else only_full(name, rate)
        for name in STEPS
        for rate in (0.02, 2.0)
    ],
)
def test_steps_that_are_much_too_large(name, learning_rate):
    """A model that is finite and no worse than its base, and a word of what was done for that."""
    params = TOO_LARGE | STEPS[name] | {"n_iter": 8, "batch_size": 20}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = density(**params, learning_rate=learning_rate).fit(X)
    messages = [str(w.message) for w in caught if "rolled back" in str(w.message)]
    assert bool(messages) == (model.n_restarts_ > 0)
    if messages:
        assert f"rolled back {model.n_restarts_} times" in messages[0]
        assert "learning_rate" in messages[0]
    assert np.isfinite(model.energy(X)).all()
    if "langevin" not in name:  # which says itself that its steps are too large
        assert np.isfinite(model.sample(20, random_state=0, n_steps=5)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model.score(X) > score_of_the_base_alone() - 0.5


def test_a_learning_rate_that_nothing_can_save():
    with pytest.raises(FloatingPointError, match=r"epoch \d+, batch \d+: .*learning_rate"):
        density(learning_rate=1e6, optimizer=AdamW(max_restarts=1), n_iter=10).fit(X)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", leading(1, [0, 1]))
@pytest.mark.parametrize("mode", named({"replay"}, MODES))
def test_good_training_is_not_rolled_back(mode, seed):
    rows = real_rows(300, 3)
    given = {"base": "gaussian"} | MODES[mode]  # a stack leaves a network nothing to learn
    with warnings.catch_warnings():  # five epochs may gain nothing on thirty held-out rows
        warnings.filterwarnings("ignore", "The weights are those after epoch")
        model = density(**given, n_iter=5, batch_size=60, random_state=seed).fit(rows)
    assert model.n_restarts_ == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("base", "n_steps"),
    [
        ("kernel", 5),
        *(only_full("auto", n) for n in (1, 2, 5, 10)),
        *(only_full("gaussian", n) for n in (1, 2, 5, 10)),
        *(only_full("kernel", n) for n in (1, 2, 10)),
    ],
)
def test_a_sampler_that_adapts_has_not_diverged(base, n_steps):
    """Its first steps are tries, of which few may be accepted."""
    for seed in range(2):
        rows = real_rows(40, 6, seed)
        chains = Persistent(n_steps=n_steps)
        model = density(base=base, chains=chains, n_iter=5, random_state=seed).fit(rows)
        assert model.n_restarts_ == 0


# ------------------------------------------------------------------------------
# What a fit says
# ------------------------------------------------------------------------------


@each_mode
def test_the_history_says_whether_it_works(mode):
    model = once(mode)
    assert model.n_restarts_ == 0
    for row in model.history_:
        assert {"energy_gap", "acceptance", "gain_over_base", "train_loss", "lr"} <= row.keys()
        assert all(np.isfinite(row[name]) for name in ("energy_gap", "gain_over_base"))
        assert 0 <= row["acceptance"] <= 1
        assert row["train_loss"] == row["energy_gap"]


@pytest.mark.parametrize("deconvolve", leading(1, [True, False]))
def test_the_gain_is_that_over_the_base(deconvolve):
    """Up to its error: the estimate comes from a thousand draws, and the chains of noisy rows."""
    rows = moons(500, 0)
    params = LEARNED | {"batch_size": 1000, "n_iter": 40, "chains": Persistent(n_steps=5)}
    params["deconvolve"] = deconvolve
    model, base = density(**params).fit(rows), density(**params | {"n_iter": 0}).fit(rows)
    noise = model.sigma_ * model.units_.scale * np.random.default_rng(0).normal(size=(500, 2))
    found = rows if deconvolve else rows + noise
    gain = model.score_samples(found).mean() - base.score_samples(found).mean()
    assert gain > 0.1
    assert model.history_[-1]["gain_over_base"] == pytest.approx(gain, abs=0.15)
    assert abs(model.history_[-1]["energy_gap"]) < 0.5


def test_displays():
    plt = pytest.importorskip("matplotlib.pyplot")
    model = density(base="gaussian", early_stopping=True).fit(moons(200, 0))
    training = TrainingDisplay.from_estimator(model)
    assert {"energy_gap", "acceptance", "gain_over_base", "valid_loss"} <= set(training.names)
    assert "train_loss" not in training.names  # it is the energy gap
    training.plot()
    energy = EnergyDisplay.from_estimator(
        model, moons(50, 1), n_samples=20, grid_resolution=10, random_state=0
    )
    energy.plot()
    plt.close("all")


# ------------------------------------------------------------------------------
# Images
# ------------------------------------------------------------------------------


IMAGES = np.random.default_rng(0).normal(size=(40, 1, 4, 4)).cumsum(3)


@full
def test_images_with_chains_that_are_shifted():
    seen = []

    def shifted(rows, generator):
        seen.append(tuple(rows.shape))
        return Shift(1)(rows, generator)

    params = {"network": Conv((2, 3)), "partition": ImportanceSampling(200), "batch_size": 20}
    params |= {"n_iter": 2}

    def replayed(augmentation=None):
        return policy("replay", size=50, augmentation=augmentation)

    model = density(**params, chains=replayed(shifted)).fit(IMAGES)
    assert seen == [(20, 1, 4, 4)] * 4
    assert model.sample(3, random_state=0, n_steps=3).shape == (3, 1, 4, 4)
    assert model.denoise(IMAGES[:3]).shape == (3, 1, 4, 4)
    assert np.isfinite(model.score(IMAGES))
    plain = density(**params, chains=replayed()).fit(IMAGES)
    assert not np.array_equal(plain.energy(IMAGES), model.energy(IMAGES))
    with_object = density(**params, chains=replayed(Shift(1))).fit(IMAGES)
    assert_array_equal(by_pickle(with_object).energy(IMAGES), with_object.energy(IMAGES))


# ------------------------------------------------------------------------------
# Unusable tables and settings
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value):
    bad, model = X.copy(), once("persistent")
    bad[3, 1] = value
    asks = density().fit, density().partial_fit, model.partial_fit, model.predict, model.sample
    for ask in asks:
        with pytest.raises((ValueError, TypeError), match="NaN|infinity|n_samples"):
            ask(bad)
    if np.isinf(value):
        with pytest.raises(ValueError, match="infinity"):
            model.impute(bad)
        with pytest.raises(ValueError, match="infinity"):
            model.sample(given=bad[3])


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (X[:1], "minimum of 2"),
        (X[:0], "0 sample"),
        (X[:, :0], "0 feature"),
        (pd.DataFrame(), "at least one array|0 feature"),
        (pd.DataFrame({"a": [], "b": []}), "0 sample|minimum of"),
        (X[0], "2D array"),
        (X[None], "dim"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": [None, None]}, dtype=object), "NaN|missing"),
        (X + 1j, "Complex"),
        ([[1.0, 2.0], [3.0]], "one length"),
    ],
)
def test_unusable_tables(bad, match):
    with pytest.raises(ValueError, match=match):
        density().fit(bad)


@full
@pytest.mark.filterwarnings("error:Training diverged")
def test_a_constant_column():
    rows = X.copy()
    rows[:, 1] = 7.0
    for base in ("auto", "gaussian", "kernel"):
        with pytest.warns(UserWarning, match=r"Columns \[1\] are constant"):
            model = density(base=base).fit(rows)
        assert np.isfinite(model.score_samples(rows)).all()
        assert model.predict([[*rows[0, :1], 1000.0, rows[0, 2]]]) == -1


@full
def test_huge_values():
    rows = X.copy()
    rows[0, 2], rows[1, 2] = 1e300, -1e300
    with pytest.warns(UserWarning, match="2 rows are left out"):
        assert np.isfinite(density().fit(rows).score_samples(X)).all()
    model = once("persistent")
    with np.errstate(all="ignore"):
        for scale in (1e6, 1e18, 1e30, 1e300):
            far = X[:3] * scale
            assert (model.predict(far) == -1).all()
            assert not np.isnan(model.score_samples(far)).any()
            assert not np.isnan(model.score(far))
    for scale in (1e30, 1e-30):
        assert np.isfinite(density().fit(X * scale).score_samples(X * scale)).all()
    lone = np.vstack([X, np.full((1, 3), 1e6)])
    model = density().fit(lone)
    assert np.isfinite(model.score_samples(lone)).all()
    assert model.predict(lone)[-1] == -1
    other = by_pickle(model).partial_fit(X)
    with pytest.warns(UserWarning, match="row is left out"):
        model.partial_fit(np.vstack([X, np.full((1, 3), 1e30)]))
    assert_same_training(model, other)


WEIGHTED = Persistent(reweight=True)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"sampler": GibbsWithGradients(), "domain": "real"}, "GibbsWithGradients samples Binary"),
        ({"sampler": GibbsWithGradients()}, "other than 0 and 1|GibbsWithGradients"),
        ({"sampler": "mala"}, "'sampler' parameter"),
        ({"sampler": MALA}, "'sampler' parameter"),
        ({"sampler": AnnealedLangevin()}, "level"),
        ({"chains": "persistant"}, "'chains' parameter"),
        ({"chains": FromData}, "'chains' parameter"),
        ({"chains": ReplayBuffer(size=50)}, "replay buffer of 50.*batch of 100.*raise its size"),
        (
            {"chains": FromNoise(initial=Gaussian(torch.zeros(5), 1.0))},
            "initial distribution is on",
        ),
        ({"chains": WEIGHTED, "sampler": Langevin(0.01)}, "reweight.*MALA, got Langevin"),
        ({"chains": WEIGHTED, "base": None}, "reweight.*base|base.*reweight"),
        ({"objective": Likelihood(kl_weight=0.1), "sampler": HMC()}, "MALA.*HMC"),
        ({"objective": Likelihood(entropy_weight=0.1), "sampler": HMC()}, "Langevin or MALA"),
        ({"sigma": 0.3, "bounds": (-50, 50)}, "sigma=0.3.*out of `bounds`.*None"),
        ({"sigma": "bandwidth", "bounds": (-50, 50)}, "sigma=.*out of `bounds`"),
        ({"sigma": [0.1, 0.2]}, "one for each of 3 columns"),
        ({"sigma": [0.1, 0.2, np.nan]}, "positive and finite"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": "kurtosis"}, "sigma"),
        ({"bounds": (0, 50)}, "below the lower bound"),
        ({"bounds": (50, 0)}, "lower bounds must be below"),
        ({"bounds": (-50, 50), "base": "kernel", "sigma": None}, "outside `bounds`.*gaussian"),
        ({"base": Gaussian(torch.zeros(2), 1.0)}, "2 columns, but X has 3"),
        (
            {"base": Uniform(Real((3,), -1.0, 1.0)), "standardize": False, "sigma": None},
            "no density at .* rows of X, first at row",
        ),
        ({"chains": FromData(augmentation=Shift(1))}, "images"),
        ({"chains": Persistent(n_steps=0)}, "'n_steps' parameter of Persistent"),
        ({"chains": FromData(n_steps=2.5)}, "'n_steps' parameter of FromData"),
        (
            {"chains": FromNoise(n_independence_steps=-1)},
            "'n_independence_steps' parameter of FromNoise",
        ),
        ({"chains": Persistent(n_chains=0)}, "'n_chains' parameter of Persistent"),
        ({"chains": Persistent(reweight="yes")}, "'reweight' parameter of Persistent"),
        ({"chains": ReplayBuffer(restart=2.0)}, "'restart' parameter of ReplayBuffer"),
        ({"chains": FromData(noise_scale=-1.0)}, "'noise_scale' parameter of FromData"),
        ({"chains": FromData(augmentation=3)}, "'augmentation' parameter of FromData"),
        ({"chains": FromNoise(initial="base")}, "'initial' parameter of FromNoise"),
        (
            {"base": None, "chains": Persistent(n_independence_steps=1)},
            "n_independence_steps=1.*no base",
        ),
        ({"objective": "likely"}, "'objective' parameter"),
        ({"objective": Likelihood}, "'objective' parameter"),
        ({"objective": Likelihood(clip_norm=0)}, "'clip_norm' parameter of Likelihood"),
        ({"objective": Likelihood(energy_l2=-1.0)}, "'energy_l2' parameter of Likelihood"),
        ({"objective": Likelihood(sigma_anneal=0.5)}, "'sigma_anneal' parameter of Likelihood"),
        ({"objective": Likelihood(kl_weight=-1.0)}, "'kl_weight' parameter of Likelihood"),
        ({"objective": Discrepancy(n_negatives=0)}, "'n_negatives' parameter of Discrepancy"),
        ({"objective": Discrepancy(perturbation=0)}, "'perturbation' parameter of Discrepancy"),
        ({"objective": "discrepancy", "chains": "data"}, "chains='data'.*no chains"),
        (
            {"objective": "discrepancy", "chains": "persistent", "base": "kernel"},
            "use base=.mixture",
        ),
        (
            {"objective": "discrepancy", "chains": "persistent", "base": "stack"},
            "use base=.mixture",
        ),
        (
            {"objective": "discrepancy", "chains": "persistent", "sigma": 0.3},
            "sigma=0.3.*adds its own noise",
        ),
        ({"optimizer": AdamW(max_restarts=-1)}, "'max_restarts' parameter of AdamW"),
        (
            {"early_stopping": EarlyStopping(validation_fraction=0)},
            "'validation_fraction' parameter of EarlyStopping",
        ),
        ({"base": MixtureBase(n_components=0)}, "'n_components' parameter of MixtureBase"),
        ({"net_params": {"optimiser": 1}}, "net_params has no 'optimiser'"),
        ({"network": "mlp"}, "network"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_settings_that_do_not_go_together(params, match):
    with pytest.raises((ValueError, TypeError), match=match):
        density(**params).fit(X)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("n_step", "Invalid parameter 'n_step'"),
        ("n_steps", "Invalid parameter 'n_steps'"),
        ("sampler__n_steps", "'n_steps'.*MALA"),
        ("chains__reweigh", "'reweigh'"),
        ("objective__n_negatives", "'n_negatives'"),
        ("sigma__level", "sigma__level.*sigma="),
        ("net__optimiser", "net_params has no 'optimiser'"),
    ],
)
def test_names_that_nothing_takes_are_refused(name, match):
    model = density(chains="persistent", network=None)
    before = model.get_params(deep=False)
    with pytest.raises(ValueError, match=match):
        model.set_params(**{"n_iter": 7, "network__activation": "tanh", name: 3})
    assert model.get_params(deep=False) == before
    with pytest.raises(ValueError, match="'reweight'.*FromData"):
        density(chains="data").set_params(chains__reweight=True)


def test_a_buffer_is_as_large_as_a_batch_or_larger():
    """However many rows there are."""
    for size in (20, 21):
        model = density(chains=policy("replay", size=size), batch_size=20).fit(X)
        assert len(state_of(model).pool) == size
        model.partial_fit(X)
    by_net = density(chains=policy("replay", size=20), net_params={"batch_size": 20}).fit(X)
    assert len(state_of(by_net).pool) == 20


def test_columns_of_counts():
    """Counts and ties: the noise of training fills the gaps."""
    rows = np.round(2 * X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = density(n_iter=10).fit(rows)
    assert np.isfinite(model.score(rows))
    repeated = density().fit(np.repeat(X, 5, axis=0))
    assert np.isfinite(repeated.score(X_NEW))


@pytest.mark.filterwarnings("error:var")
def test_a_stream_of_single_rows():
    model = density(standardize=False)
    for row in X[:5]:
        model.partial_fit(row[None])
    assert np.isfinite(model.score_samples(X)).all()


SHAPES = [(2, 3), (3, 2), (9, 2), (8, 20), (30, 1), (2, 1)]


@full
@pytest.mark.filterwarnings("ignore:Columns")
@pytest.mark.parametrize(
    ("base", "shapes"),
    [("auto", SHAPES), only_full("gaussian", SHAPES), only_full("kernel", SHAPES)],
)
def test_small_tables(base, shapes):
    for shape in shapes:
        with about(base, shape):
            rows = np.random.default_rng(0).normal(size=shape)
            model = density(base=base, partition=ImportanceSampling(500)).fit(rows)
            assert model.n_restarts_ == 0
            assert np.isfinite(model.score_samples(rows)).all()
            assert np.isfinite(model.sample(2, random_state=0, n_steps=1)).all()
            assert set(model.predict(rows)) <= {-1, 1}


def test_a_mixture_is_a_base_in_the_units_of_the_data():
    modes = GaussianMixture(
        torch.tensor([0.2, 0.8]),
        torch.tensor([[-30.0, -3.0], [30.0, 3.0]]),
        torch.diag(torch.tensor([100.0, 1.0])).repeat(2, 1, 1),
    )
    rows = np.random.default_rng(0).normal(size=(200, 2)) * [10, 1]
    rows += np.where(np.random.default_rng(1).random((200, 1)) < 0.2, -1, 1) * [30, 3]
    model = density(base=modes, n_iter=0, sigma=None, dtype="float64").fit(rows)
    assert_allclose(
        model.score_samples(rows), modes.log_prob(torch.tensor(rows).float()), rtol=1e-5
    )
    assert np.isfinite(density(base=modes).fit(rows).score(rows))


def test_a_base_that_is_far_away_is_no_place_to_start():
    """A draw or two would carry all the weight, and every chain would start at these."""
    model = density(**rooted, chains=still()).fit(X)
    with torch.no_grad():
        model.net_.module_.energy.network.last.fill_(100.0)
    found = starts(model.energy_, model._chains(), 64, torch.Generator().manual_seed(0))
    assert len(torch.unique(found.x, dim=0)) > 20


@pytest.mark.parametrize("kind", [ContrastiveDivergenceDensity, JEMClassifier])
def test_training_without_a_base_starts_stable(kind):
    X = np.random.default_rng(0).normal(size=(200, 2)) * [1.0, 5.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = kind(base=None, sigma=0.1, n_iter=3, random_state=0).fit(X, X[:, 0] > 0)
    assert model.net_.n_restarts_ == 0
    assert abs(model.history_[-1]["energy_gap"]) < 10  # nats
