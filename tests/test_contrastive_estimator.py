"""ContrastiveDivergenceDensity on real rows: what is learned, where chains are, what goes wrong."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ContrastiveDivergenceDensity, ScoreMatchingDensity
from skebm.base import Real
from skebm.distributions import Gaussian, GaussianMixture, Uniform
from skebm.energies import MLP, Conv
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
from tests.contracts.test_estimators import Interrupt, Poison, real_rows
from tests.storage import by_pickle

STRINGS = ("persistent", "replay", "data", "noise")
each_init = pytest.mark.parametrize("init", STRINGS)
quick = {
    "network": MLP((16,)),
    "n_iter": 3,
    "chains__n_steps": 3,
    "random_state": 0,
    "base": "gaussian",
}
# Steps by which nothing moves, and offers of the base left out: chains stay where they began.
rooted = {
    "sampler": MALA(1e-12),
    "chains__n_independence_steps": 0,
    "sigma": None,
    "standardize": False,
}

X, X_NEW = real_rows(100, 3), real_rows(40, 3, seed=1)


def density(**params):
    return ContrastiveDivergenceDensity().set_params(**quick | params)


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


@each_init
@pytest.mark.parametrize("name", ["moons", "ring"])
def test_held_out_rows_gain_from_training(name, init):
    """Over the normal distribution that is corrected, which alone misses half a nat or more."""
    draw = {"moons": moons, "ring": ring}[name]
    rows, new = draw(500, 0), draw(500, 1)
    params = {"sigma": 0.15, "chains": init, "network": MLP((64, 64)), "chains__n_steps": 5}
    params |= {"chains__size": 1000, "partition": ImportanceSampling(20_000)}
    base = density(**params | {"n_iter": 0}).fit(rows).score(new)
    model = density(**params | {"n_iter": 40}).fit(rows)
    assert model.n_restarts_ == 0
    assert model.score(new) > base + 0.15
    assert model.score(new) > normal_score(rows, new) + 0.15


def test_the_default_gains_on_its_base_and_on_a_normal_distribution():
    rows, new = moons(400, 0), moons(400, 1)
    model = ContrastiveDivergenceDensity(n_iter=60, random_state=0).fit(rows)
    base = ContrastiveDivergenceDensity(n_iter=0, random_state=0).fit(rows)
    assert model.score(new) > base.score(new)
    assert model.score(new) > normal_score(rows, new) + 0.2


@pytest.mark.parametrize("base", ["gaussian", "mixture", "kernel", "given"])
@pytest.mark.parametrize("standardize", [False, True])
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
    """A normal base is blurred by it; taken off, the base is that of the rows."""
    rows = np.random.default_rng(0).normal(size=(4000, 1))
    params = {"n_iter": 0, "sigma": 0.5, "dtype": "float64"}
    noisy = density(**params).fit(rows)
    clean = density(**params, deconvolve=True).fit(rows)
    for model, variance in ((noisy, 1.25), (clean, 1.0)):
        expected = scipy.stats.norm(0, variance**0.5).logpdf([[0.0], [2.0]])[:, 0]
        assert_allclose(model.score_samples([[0.0], [2.0]]), expected, atol=0.06)
    assert_allclose(noisy.sigma_, [0.5])


def test_the_score_without_log_z_is_the_hyvarinen_score():
    model = ScoreMatchingDensity(MLP((16,)), base="gaussian", n_iter=0, sigma=0.3, partition=None)
    expected = model.fit(X).score(X_NEW)
    found = density(n_iter=0, sigma=0.3, partition=None).fit(X).score(X_NEW)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bounds", [(0, None), (None, 9), (0, 9)], ids=str)
def test_inside_walls(bounds):
    rows = np.random.default_rng(0).beta(1, 2, (200, 2)) * 8
    model = density(bounds=bounds, base="auto").fit(rows)
    assert model.sigma_ is None
    drawn = model.sample(200, random_state=0, n_steps=20)
    low, high = (-np.inf if bounds[0] is None else 0, np.inf if bounds[1] is None else 9)
    assert ((drawn >= low) & (drawn <= high)).all()
    holes = rows.copy()
    holes[:, 1] = np.nan
    filled = model.impute(holes, random_state=0, n_steps=20)
    assert ((filled >= low) & (filled <= high)).all()
    assert_array_equal(filled[:, 0], rows[:, 0])
    beyond = np.array([[4.0, -1.0 if bounds[0] == 0 else 10.0]])
    assert model.score_samples(beyond) == -np.inf
    assert model.predict(beyond) == -1
    assert_array_equal(model.score_function(beyond), 0.0)


def test_rows_without_a_base_inside_walls():
    """Uniform at first; log Z is then that of the box."""
    rows = np.random.default_rng(0).beta(2, 5, (400, 1)) * 4
    params = {"bounds": (0, 4), "base": None, "dtype": "float64"}
    model = density(**params, n_iter=0).fit(rows)
    assert_allclose(model.score_samples([[0.5], [3.9]]), -np.log(4), atol=1e-9)
    model = density(**params, n_iter=40, chains__n_steps=5, learning_rate=0.01).fit(rows)
    truth = scipy.stats.beta(2, 5, scale=4).logpdf(rows).mean()
    assert model.score(rows) > (truth - np.log(4)) / 2  # half way at least
    grid = np.linspace(0, 4, 2001)[:, None]
    density_there = np.exp(model.score_samples(grid))
    assert np.trapezoid(density_there, grid[:, 0]) == pytest.approx(1, abs=0.02)


# ------------------------------------------------------------------------------
# Scores, noise, imputations
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["auto", "gaussian", "kernel"])
def test_the_score_function_is_the_slope_of_log_p(base):
    model = density(base=base, dtype="float64", n_iter=10).fit(X)
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
    with pytest.raises(ValueError, match="one level of noise"):
        model.denoise(new, 0.3)
    clean = density(**params, sigma=None).fit(rows)
    assert_allclose(clean.denoise(new, 0.1), new - 0.01 * (new - 2) / 4, rtol=1e-6)
    with pytest.raises(ValueError, match="without noise"):
        clean.denoise(new)


def test_samples_and_fill_ins_are_those_of_a_known_model():
    """Correlated normal columns: their means and covariances, and the same given one of them."""
    covariance = np.array([[2.0, 0.9], [0.9, 1.0]])
    base = Gaussian(torch.tensor([1.0, -2.0]), covariance=torch.tensor(covariance).float())
    rows = np.random.default_rng(0).multivariate_normal([1, -2], covariance, 50)
    model = density(base=base, n_iter=0, sigma=None).fit(rows)
    n, row = 4000, np.array([np.nan, -1.0])
    drawn = model.sample(n, random_state=0, n_steps=20)
    assert_allclose(drawn.mean(0), [1, -2], atol=5 * (2 / n) ** 0.5)
    assert_allclose(np.cov(drawn.T), covariance, atol=5 * 2 * (2 / n) ** 0.5)
    given = scipy.stats.norm(1 + 0.9 * 1.0, (2 - 0.81) ** 0.5)
    for found in (
        model.sample(n, random_state=0, given=row, n_steps=20),
        model.impute(np.repeat(row[None], n, 0), random_state=0, n_steps=20),
    ):
        assert (found[:, 1] == -1).all()
        assert scipy.stats.kstest(found[:, 0], given.cdf).pvalue > 1e-3


# ------------------------------------------------------------------------------
# Where chains start
# ------------------------------------------------------------------------------


FAR = Gaussian(torch.tensor([50.0, -50.0, 0.0]), 30.0)  # to be told from the data, but not lost


def test_without_a_base_samples_start_in_the_replay_buffer():
    inside = 1 / (1 + np.exp(-X))
    walls = {"base": None, "bounds": (0, 1), "sigma": None, "standardize": False}
    model = density(chains="replay", chains__size=150, sampler=MALA(1e-12), **walls).fit(inside)
    run = model.net_.run_
    run.state = run.state._replace(pool=torch.full_like(run.state.pool, 0.25))
    assert_allclose(model.sample(5, random_state=0), 0.25, atol=1e-4)


@pytest.mark.parametrize("init", ["persistent", "replay", "noise"])
def test_chains_begin_at_the_base(init):
    model = density(
        chains=init, base=FAR, **rooted, chains__size=400, chains__n_chains=400, batch_size=400
    )
    rows = real_rows(400, 3)
    model.set_params(optimizer__max_restarts=0, n_iter=1).fit(rows)
    state = state_of(model)
    x = state.pool if init == "replay" else state.chain.x
    assert_allclose(x.mean(0), [50, -50, 0], atol=5 * 30 / len(x) ** 0.5)
    assert_allclose(x.std(0), 30, rtol=0.2)


def test_chains_begin_at_the_rows_of_the_batch():
    model = density(chains="data", **rooted, batch_size=1000).fit(X)
    assert_allclose(state_of(model).chain.x, X, atol=1e-4)


def test_the_number_of_chains():
    assert len(state_of(density(batch_size=20).fit(X)).chain.x) == 20
    assert len(state_of(density(batch_size=20, chains__n_chains=7).fit(X)).chain.x) == 7
    assert len(state_of(density(chains="replay", chains__size=150).fit(X)).pool) == 150


def test_offers_of_the_base_are_taken():
    """All of them as long as the model is the base; none are made with n_independence_steps=0."""
    params = rooted | {"network": MLP((4,)), "learning_rate": 1e-8}
    still = density(**params, n_iter=1).fit(X)
    later = density(**params, n_iter=4).fit(X)
    assert_allclose(state_of(still).chain.x, state_of(later).chain.x, atol=1e-4)
    params["chains__n_independence_steps"] = 1
    one, other = density(**params, n_iter=1).fit(X), density(**params, n_iter=2).fit(X)
    apart = (state_of(one).chain.x - state_of(other).chain.x).abs()
    assert (apart > 1e-4).all()


POLICIES = [
    ReplayBuffer(size=200, restart=0.1),
    Persistent(n_chains=7),
    Persistent(n_chains=7, initial=Gaussian(torch.zeros(3), 2.0)),
    FromNoise(),
    FromNoise(initial=Gaussian(torch.zeros(3), 2.0)),
    FromData(),
    FromData(noise_scale=0.1),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_policy_is_where_chains_start(policy):
    before = policy.get_params()
    model = density(chains=policy).fit(X)
    assert np.isfinite(model.score(X_NEW))
    assert model.init is policy
    assert policy.get_params() == before
    assert_same_training(by_pickle(model).partial_fit(X), model.partial_fit(X))
    size = getattr(policy, "size", None) or getattr(policy, "n_chains", None)
    if size is not None:
        x = state_of(model).chain.x if isinstance(policy, Persistent) else state_of(model).pool
        assert len(x) == size


def test_policies_are_searched_over():
    model = density(chains=ReplayBuffer(size=200, restart=0.1))
    assert model.get_params()["init__size"] == 200
    search = GridSearchCV(model, {"init__size": [128, 150], "init__restart": [0.0, 1.0]}, cv=2)
    search.set_params(error_score="raise").fit(X)
    best = search.best_estimator_
    assert len(state_of(best).pool) == search.best_params_["init__size"]
    with pytest.raises(ValueError, match="init__size.*init='replay'.*Pass one as init="):
        density(chains="replay").set_params(init__size=300)


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


@each_init
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_every_sampler_of_real_rows(sampler, init):
    model = density(sampler=sampler, chains=init, chains__size=200, n_iter=10).fit(X)
    assert model.n_restarts_ == 0
    assert np.isfinite(model.score(X_NEW))
    assert np.isfinite(model.sample(5, random_state=0, n_steps=5)).all()
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
    for init in ("data", "noise", "replay"):
        with pytest.raises(ValueError, match="persistent chains"):
            density(sampler=sampler, domain="real", chains=init, chains__size=200).fit(X)


def test_the_steps_of_the_sampler_are_searched_over():
    """By its own name and by that of the estimator, `n_steps`, in a pipeline."""
    model = density(sampler=MALA(0.1), partition=ImportanceSampling(500))
    assert model.get_params()["sampler__step_size"] == 0.1
    assert model.get_params()["sampler__n_steps"] == model.n_steps == 3
    assert model.set_params(sampler__n_steps=4).n_steps == 4
    pipeline = make_pipeline(StandardScaler(), model)
    name = "contrastivedivergencedensity__sampler__"
    grid = {f"{name}step_size": [0.01, 0.1], f"{name}n_steps": [1, 6]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X)
    best = search.best_estimator_[-1]
    assert best.n_steps == search.best_params_[f"{name}n_steps"]
    assert best.sampler.step_size == search.best_params_[f"{name}step_size"]
    assert best.net_.module_.n_steps == best.n_steps
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    assert pipeline[-1].n_steps == 4  # a search fits clones


def test_the_number_of_steps_has_one_value():
    model = density()  # of no sampler that is given
    assert model.set_params(sampler__n_steps=5).n_steps == 5
    assert clone(model).n_steps == 5
    assert "sampler__n_steps" not in model.get_params(deep=False)
    model.set_params(**model.get_params())
    assert model.n_steps == 5
    with pytest.raises(ValueError, match="n_steps and sampler__n_steps"):
        model.set_params(chains__n_steps=7, sampler__n_steps=8)
    assert model.n_steps == 5
    with pytest.raises(ValueError, match="n_steps"):
        density().set_params(sampler__n_steps=0).fit(X)


@pytest.mark.parametrize("n_steps", [1, 7])
def test_chains_make_as_many_steps(n_steps):
    """Without a gradient, without rejections and from one point they diffuse by n h."""
    base = Uniform(Real((3,), -100.0, 100.0))
    sampler = Langevin(0.01)
    params = rooted | {
        "sampler": sampler,
        "base": base,
        "chains": FromNoise(initial=Gaussian(torch.zeros(3), 1e-6)),
    }
    params |= {"learning_rate": 1e-8, "n_iter": 1, "chains__n_steps": n_steps, "batch_size": 2000}
    model = density(**params, bounds=(-100, 100)).fit(np.repeat(X, 10, 0))
    assert_allclose(state_of(model).chain.x.var(0), 0.02 * n_steps, rtol=0.25)


# ------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------


MODES = {
    "persistent": {},
    "fixed step": {"sampler": MALA(0.1)},
    "replay": {"chains": "replay", "chains__size": 150},
    "data": {"chains": "data"},
    "noise": {"chains": "noise"},
    "chains__reweight": {"chains__reweight": True},
    "momentum": {"chains": "data", "sampler": HMC(adapt=True)},
    "refined": {"objective__kl_weight": 0.1, "objective__entropy_weight": 0.1},
}
each_mode = pytest.mark.parametrize("params", MODES.values(), ids=MODES.keys())


@each_mode
def test_training_that_is_stored_goes_on_bit_for_bit(params):
    model = density(**params, batch_size=30).fit(X)
    loaded = by_pickle(model)
    assert_same_training(model, loaded)
    for rows in (X_NEW, X):
        assert_same_training(model.partial_fit(rows), loaded.partial_fit(rows))
    assert loaded.n_iter_ == model.n_iter_


@pytest.mark.parametrize("reweight", [False, True])
@pytest.mark.parametrize("n_chains", [50, "auto"])
@pytest.mark.parametrize("go_on", ["partial_fit", "warm_start"])
def test_chains_go_on(go_on, n_chains, reweight):
    """They stand where they stood, up to steps that move them by next to nothing."""
    params = rooted | {"chains__n_chains": n_chains, "warm_start": True, "learning_rate": 1e-8}
    model = density(**params, chains__reweight=reweight).fit(X)
    before, n_batches = state_of(model).chain.x.clone(), state_of(model).n_batches
    if go_on == "partial_fit":
        model.partial_fit(X_NEW)  # of fewer rows
    else:
        model.fit(X_NEW)
    assert state_of(model).n_batches > n_batches
    assert_allclose(state_of(model).chain.x, before, atol=1e-4)


def test_the_buffer_goes_on():
    model = density(**rooted, chains=ReplayBuffer(size=150, restart=0.0)).fit(X)
    before = state_of(model).pool.clone()
    assert_allclose(state_of(model.partial_fit(X)).pool, before, atol=1e-4)


@pytest.mark.parametrize("later", STRINGS)
@pytest.mark.parametrize("first", STRINGS)
def test_another_policy_starts_other_chains(first, later):
    model = density(chains=first, chains__size=150, warm_start=True).fit(X)
    weights = model.energy(X)
    model.set_params(chains=later, n_iter=1, learning_rate=1e-6).fit(X)
    assert_allclose(model.energy(X), weights, atol=1e-3)
    state = state_of(model)
    assert (state.pool is not None) == (later == "replay")
    assert np.isfinite(model.score(X_NEW))
    assert_same_training(by_pickle(model).partial_fit(X), model.partial_fit(X))


@pytest.mark.parametrize("n_independence_steps", [0, 1, 3])
def test_weights_are_those_of_the_parameters_alone(n_independence_steps):
    """Rows that move, by steps or to draws of the base, do not change what they weigh."""
    params = {"sampler": MALA(0.2), "learning_rate": 1e-9, "n_iter": 50, "chains__n_chains": 200}
    model = density(
        **params, chains__reweight=True, chains__n_independence_steps=n_independence_steps
    ).fit(X)
    walkers = state_of(model).walkers
    assert_allclose(walkers.log_weight, 0, atol=1e-4)
    assert float(walkers.log_z) == pytest.approx(0, abs=1e-4)


def test_weights_know_log_z():
    """That of a model which was trained before without any, and is trained on."""
    model = density(n_iter=20, warm_start=True, learning_rate=0.01).fit(X)
    model.set_params(
        chains__reweight=True, n_iter=5, chains__n_chains=1000, learning_rate=1e-3
    ).fit(X)
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


@each_mode
def test_an_interrupted_fit_keeps_its_chains(params):
    callbacks = {"callbacks": [("stop", Interrupt(7))]}
    model = density(**params, batch_size=20, n_iter=50, net_params=callbacks)
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch 2.*usable"):
        model.fit(X)
    assert state_of(model).n_batches == 7
    assert np.isfinite(model.score(X_NEW))
    assert np.isfinite(model.sample(3, random_state=0, n_steps=5)).all()
    model.set_params(net_params=None)
    loaded = by_pickle(model)
    assert_same_training(model, loaded)
    assert_same_training(model.partial_fit(X), loaded.partial_fit(X))
    assert state_of(model).n_batches == 12


@pytest.mark.parametrize("init", ["persistent", "replay"])
def test_a_roll_back_keeps_chains_that_were_well_with_half_the_step(init):
    """Those of the buffer, too; they hardly move here."""
    params = rooted | {"sampler": MALA(1e-8), "chains": init, "chains__size": 150, "batch_size": 20}
    good = density(**params).fit(X)
    model = density(**params, net_params={"callbacks": [Poison(6)]})
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model.fit(X)
    assert model.n_restarts_ == 1
    assert state_of(model).halvings == 1
    assert model.net_.module_.kernel(1).step_size == 0.5e-8
    here, there = (s.pool if init == "replay" else s.chain.x for s in map(state_of, (model, good)))
    same = ((here - there).abs().amax(1) < 1e-2).float().mean()
    assert same > (0.5 if init == "replay" else 0.99)  # restarts are drawn with another seed


STEPS = {
    "langevin": {"sampler": Langevin(0.1)},
    "langevin 10x": {"sampler": Langevin(1.0), "chains": "data"},
    "langevin 100x": {"sampler": Langevin(10.0)},
    "mala": {},
    "mala 10x": {"sampler": MALA(1.0), "chains": "replay", "chains__size": 1000},
    "mala 100x": {"sampler": MALA(10.0)},
    "reweight 10x": {"sampler": MALA(1.0), "chains__reweight": True},
}


@pytest.mark.parametrize("learning_rate", [0.02, 0.2, 2.0])
@pytest.mark.parametrize("name", STEPS)
def test_steps_that_are_much_too_large(name, learning_rate):
    """A model that is finite and no worse than its base, and a word of what was done for that."""
    params = STEPS[name] | {"n_iter": 15, "learning_rate": learning_rate, "batch_size": 20}
    params |= {"network": MLP((32, 32)), "partition": ImportanceSampling(5000), "sigma": 0.3}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = density(**params).fit(X)
    discriminated = [str(w.message) for w in caught if "rolled back" in str(w.message)]
    assert bool(discriminated) == (model.n_restarts_ > 0)
    if discriminated:
        assert f"rolled back {model.n_restarts_} times" in discriminated[0]
        assert "learning_rate" in discriminated[0]
    assert np.isfinite(model.energy(X)).all()
    if "langevin" not in name:  # which says itself that its steps are too large
        assert np.isfinite(model.sample(20, random_state=0)).all()
    base = density(**params | {"n_iter": 0, "sampler": None}).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model.score(X) > base.score(X) - 0.5


def test_a_learning_rate_that_nothing_can_save():
    with pytest.raises(FloatingPointError, match=r"epoch \d+, batch \d+: .*learning_rate"):
        density(learning_rate=1e6, optimizer__max_restarts=1, n_iter=10).fit(X)


@pytest.mark.filterwarnings("error")
@each_mode
def test_good_training_is_not_rolled_back(params):
    for seed in range(3):
        model = density(**params, n_iter=10, batch_size=20, random_state=seed).fit(X)
        assert model.n_restarts_ == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_steps", [1, 2, 5, 10])
@pytest.mark.parametrize("base", ["auto", "gaussian", "kernel"])
def test_a_sampler_that_tunes_itself_has_not_diverged(base, n_steps):
    """Its first steps are tries, of which few may be accepted."""
    for seed in range(3):
        rows = real_rows(60, 6, seed)
        model = density(base=base, chains__n_steps=n_steps, n_iter=5, random_state=seed).fit(rows)
        assert model.n_restarts_ == 0


# ------------------------------------------------------------------------------
# What a fit says
# ------------------------------------------------------------------------------


@each_mode
def test_the_history_tells_whether_it_works(params):
    model = density(**params).fit(X)
    for row in model.history_:
        assert {"energy_gap", "acceptance", "gain_over_base", "train_loss", "lr"} <= row.keys()
        assert all(np.isfinite(row[name]) for name in ("energy_gap", "gain_over_base"))
        assert 0 <= row["acceptance"] <= 1
        assert row["train_loss"] == row["energy_gap"]


def test_the_gain_is_that_over_the_base():
    """Up to its error: the estimate comes from a thousand draws and the chains."""
    rows = moons(500, 0)
    params = {"sigma": 0.15, "network": MLP((64, 64)), "chains__n_steps": 5}
    params |= {"batch_size": 1000, "n_iter": 150, "partition": ImportanceSampling(20_000)}
    model, base = density(**params).fit(rows), density(**params | {"n_iter": 0}).fit(rows)
    noisy = rows + model.sigma_ * model.units_.scale * np.random.default_rng(0).normal(
        size=(500, 2)
    )
    gain = model.score_samples(noisy).mean() - base.score_samples(noisy).mean()
    assert gain > 0.1
    assert model.history_[-1]["gain_over_base"] == pytest.approx(gain, abs=0.15)
    assert abs(model.history_[-1]["energy_gap"]) < 0.5


def test_displays():
    plt = pytest.importorskip("matplotlib.pyplot")
    model = density(early_stopping=True).fit(moons(200, 0))
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


def test_images_with_chains_that_are_shifted():
    seen = []

    def shifted(rows, generator):
        seen.append(tuple(rows.shape))
        return Shift(1)(rows, generator)

    params = {"network": Conv((2, 3)), "partition": ImportanceSampling(200), "batch_size": 20}
    params |= {"chains": "replay", "chains__size": 50, "n_iter": 2}
    model = density(**params, chains__augmentation=shifted).fit(IMAGES)
    assert seen == [(20, 1, 4, 4)] * 4
    assert model.sample(3, random_state=0, n_steps=3).shape == (3, 1, 4, 4)
    assert model.denoise(IMAGES[:3]).shape == (3, 1, 4, 4)
    assert np.isfinite(model.score(IMAGES))
    plain = density(**params).fit(IMAGES)
    assert not np.array_equal(plain.energy(IMAGES), model.energy(IMAGES))
    with_object = density(**params, chains__augmentation=Shift(1)).fit(IMAGES)
    assert_array_equal(by_pickle(with_object).energy(IMAGES), with_object.energy(IMAGES))


# ------------------------------------------------------------------------------
# Tables and settings that are no good
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_none(value):
    bad, model = X.copy(), density().fit(X)
    bad[3, 1] = value
    for ask in (density().fit, density().partial_fit, model.partial_fit, model.score, model.sample):
        with pytest.raises((ValueError, TypeError), match="NaN|infinity|n_samples"):
            ask(bad)
    if np.isinf(value):
        with pytest.raises(ValueError, match="infinity"):
            model.impute(bad)
        with pytest.raises(ValueError, match="finite"):
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
        (pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), "could not convert"),
        (X + 1j, "Complex"),
        ([[1.0, 2.0], [3.0]], "inhomogeneous|sequence"),
    ],
)
def test_tables_that_are_none(bad, match):
    with pytest.raises(ValueError, match=match):
        density().fit(bad)


@pytest.mark.filterwarnings("error:Training diverged")
def test_a_constant_column():
    rows = X.copy()
    rows[:, 1] = 7.0
    for base in ("auto", "gaussian", "kernel"):
        with pytest.warns(UserWarning, match=r"Columns \[1\] are constant"):
            model = density(base=base).fit(rows)
        assert np.isfinite(model.score_samples(rows)).all()
        assert model.predict([[*rows[0, :1], 1000.0, rows[0, 2]]]) == -1


def test_huge_values():
    rows = X.copy()
    rows[0, 2], rows[1, 2] = 1e300, -1e300
    with pytest.raises(ValueError, match=r"Columns \[2\] span more.*divide"):
        density().fit(rows)
    model = density().fit(X)
    with np.errstate(all="ignore"):
        for scale in (1e6, 1e12, 1e18, 1e24, 1e30, 1e300):
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
    before = by_pickle(model)
    with np.errstate(all="ignore"), pytest.raises((ValueError, FloatingPointError)):
        model.partial_fit(np.vstack([X, np.full((1, 3), 1e30)]))
    assert_same_training(model, before)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"sampler": GibbsWithGradients(), "domain": "real"}, "GibbsWithGradients samples Binary"),
        ({"sampler": GibbsWithGradients()}, "other than 0 and 1|GibbsWithGradients"),
        ({"sampler": "mala"}, "'sampler' parameter"),
        ({"sampler": MALA}, "'sampler' parameter"),
        ({"sampler": AnnealedLangevin()}, "level"),
        ({"chains": "persistant"}, "'init' parameter"),
        ({"chains": FromData}, "'init' parameter"),
        (
            {"chains": "replay", "chains__size": 50},
            "replay buffer of 50.*batch of 100.*buffer_size",
        ),
        ({"chains": ReplayBuffer(size=50)}, "replay buffer of 50.*batch of 100"),
        ({"chains": FromNoise(initial=Gaussian(torch.zeros(5), 1.0))}, "noise|columns"),
        ({"chains__reweight": True, "chains": "data"}, "reweight.*init"),
        ({"chains__reweight": True, "chains": "noise"}, "reweight.*init"),
        ({"chains__reweight": True, "chains": "replay"}, "reweight.*init"),
        ({"chains__reweight": True, "sampler": Langevin(0.01)}, "reweight.*MALA, not Langevin"),
        ({"chains__reweight": True, "base": None}, "reweight.*base|base.*reweight"),
        ({"objective__kl_weight": 0.1, "sampler": HMC()}, "Langevin or MALA on real rows, not HMC"),
        ({"objective__entropy_weight": 0.1, "sampler": HMC()}, "Langevin or MALA"),
        ({"sigma": 0.3, "bounds": (-50, 50)}, "sigma=0.3.*walls.*None"),
        ({"sigma": "bandwidth", "bounds": (-50, 50)}, "sigma=.*walls"),
        ({"sigma": [0.1, 0.2]}, "one for each of 3 columns"),
        ({"sigma": [0.1, 0.2, np.nan]}, "positive and finite"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": "kurtosis"}, "sigma"),
        ({"objective__sigma_anneal": 0.5}, "sigma_anneal"),
        ({"bounds": (0, 50)}, "below the lower bound"),
        ({"bounds": (50, 0)}, "lower bounds must be below"),
        ({"bounds": (-50, 50), "base": "kernel", "sigma": None}, "walls.*gaussian"),
        ({"base": Gaussian(torch.zeros(2), 1.0)}, "2 columns, but X has 3"),
        (
            {"base": Uniform(Real((3,), -1.0, 1.0)), "standardize": False, "sigma": None},
            "no density at .* rows of X, first at row",
        ),
        ({"chains__augmentation": Shift(1), "chains": "data"}, "images"),
        ({"chains__augmentation": Shift(1)}, "Persistent chains|images"),
        ({"chains__n_steps": 0}, "n_steps"),
        ({"chains__n_independence_steps": -1}, "n_independence_steps"),
        ({"chains__n_chains": 0}, "n_chains"),
        ({"objective__clip_norm": 0}, "clip_norm"),
        ({"objective__energy_l2": -1.0}, "energy_l2"),
        ({"net_params": {"optimiser": 1}}, "net_params has no 'optimiser'"),
        ({"network": "mlp"}, "network"),
        ({"network": MLP}, "class: pass an instance"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_settings_that_do_not_go_together(params, match):
    with pytest.raises((ValueError, TypeError), match=match):
        density(**params).fit(X)


def test_names_that_are_none():
    with pytest.raises(ValueError, match="Invalid parameter 'n_step'"):
        density().set_params(n_step=3)
    with pytest.raises(ValueError, match="sampler__n_step needs an object"):
        density().set_params(sampler__n_step=3)
    with pytest.raises(ValueError, match="Invalid parameter 'n_step' for estimator MALA"):
        density(sampler=MALA()).set_params(sampler__n_step=3)
    with pytest.raises(ValueError, match="net_params has no 'optimiser'"):
        density().set_params(net__optimiser=1)


def test_a_buffer_is_as_large_as_a_batch_or_larger():
    """However many rows there are."""
    for size in (20, 21):
        model = density(chains="replay", chains__size=size, batch_size=20).fit(X)
        assert len(state_of(model).pool) == size
        model.partial_fit(X)
    by_net = density(chains="replay", chains__size=20, net_params={"batch_size": 20}).fit(X)
    assert len(state_of(by_net).pool) == 20


def test_columns_that_are_steps():
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


@pytest.mark.filterwarnings("ignore:Columns")
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (9, 2), (8, 20), (30, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("base", ["auto", "gaussian", "kernel"])
def test_small_tables(base, shape):
    rows = np.random.default_rng(0).normal(size=shape)
    model = density(base=base, partition=ImportanceSampling(500)).fit(rows)
    assert model.n_restarts_ == 0
    assert np.isfinite(model.score_samples(rows)).all()
    assert np.isfinite(model.sample(2, random_state=0, n_steps=2)).all()
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
    model = density(**rooted).fit(X)
    with torch.no_grad():
        model.net_.module_.energy.network.last.fill_(100.0)
    starts = model._starts(model.energy_, 64, torch.Generator().manual_seed(0))
    assert len(torch.unique(starts, dim=0)) > 20
