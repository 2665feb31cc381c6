"""ScoreMatchingDensity against densities that are known, and on unusable tables."""

import copy
import functools
import itertools
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skebm import EnergyOutlierDetector, ScoreMatchingDensity
from skebm.base import Real
from skebm.distributions import Gaussian, GaussianMixture, IndependentBernoulli, Uniform
from skebm.energies import MLP, Conv
from skebm.estimators import MixtureBase, Sliced
from skebm.metrics import hyvarinen_score
from skebm.partition import AIS, AISBracket, ImportanceSampling
from skebm.samplers import HMC, MALA
from skebm.training import AdamW, EarlyStopping
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import about, full, leading, only_full

OBJECTIVES = ("denoising", "multiscale", "exact", "sliced")
each_objective = pytest.mark.parametrize("objective", OBJECTIVES)
# One objective with noise and one with second derivatives; and one of them alone, where the
# objective has no part in what is shown.
two_objectives = pytest.mark.parametrize(
    "objective", ["denoising", "exact", only_full("multiscale"), only_full("sliced")]
)
one_objective = pytest.mark.parametrize("objective", leading(1, OBJECTIVES))
few_draws = ImportanceSampling(500)
quick = {"n_iter": 3, "random_state": 0, "learning_rate": 0.01, "base": "gaussian"}
quick |= {"partition": few_draws}
# As it is before the first step: the base, or what a module says.
still = {"n_iter": 0, "random_state": 0, "standardize": False, "dtype": "float64"}


def density(objective="exact", **params):
    """A density that is trained for a moment; of levels that suit the tables below."""
    sigma = (0.1, 2.0) if objective == "multiscale" else 0.2
    params = {
        **quick,
        "base": "gaussian",
        "network": MLP((16,)),
        "objective": objective,
        "sigma": sigma,
        **params,
    }
    return ScoreMatchingDensity(**params)


def correlated(n=200, d=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 1)) + 0.6 * rng.normal(size=(n, d)) + np.arange(d)


X = correlated()
X_NEW = correlated(50, seed=1)
MEAN = np.array([1.0, -2.0])
COVARIANCE = np.array([[2.0, 0.9], [0.9, 1.0]])


@functools.cache
def _trained(objective, base, dtype):
    model = density(objective, base=base, dtype=dtype).fit(X)
    _ = model.log_partition_  # which the copies share
    return model


def trained(objective="exact", base="gaussian", dtype="float32"):
    """A copy of a model of X; each is fitted once."""
    return copy.deepcopy(_trained(objective, base, dtype))


def normal(mean=MEAN, covariance=COVARIANCE):
    return Gaussian(torch.tensor(mean), covariance=torch.tensor(covariance))


class TwoModes(nn.Module):
    """What makes a normal base N(0, 9 I) a mixture: 0.2 N(-3, I) + 0.8 N(3, I) on the diagonal."""

    def __init__(self, log_factor=0.0):
        super().__init__()
        self.log_factor = nn.Parameter(torch.tensor(log_factor))

    def forward(self, x):
        means = x.new_tensor([-3.0, 3.0])[:, None, None]
        log_p = -((x - means) ** 2).sum(-1) / 2 - x.shape[1] * math.log(2 * math.pi) / 2
        log_p = torch.logsumexp(log_p + x.new_tensor([0.2, 0.8]).log()[:, None], 0)
        log_q = -(x**2).sum(-1) / 18 - x.shape[1] * math.log(18 * math.pi) / 2
        return log_q - log_p - self.log_factor


def two_modes(n=200, d=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + np.where(rng.random((n, 1)) < 0.2, -3.0, 3.0)


def wide(d=2):
    return Gaussian(torch.zeros(d, dtype=torch.float64), 3.0)


def known(d=2, log_factor=0.0, **params):
    """The mixture itself, as a fitted model."""
    params = still | {"objective": "exact", "base": wide(d)} | params
    return ScoreMatchingDensity(TwoModes(log_factor), **params).fit(two_modes(d=d))


def log_mixture(rows):
    parts = [scipy.stats.norm.logpdf(rows, mean).sum(1) for mean in (-3, 3)]
    return logsumexp(np.stack(parts, 1), axis=1, b=[0.2, 0.8])


def log_integral(model, *axes):
    """log of the integral of exp(score_samples) over a grid of midpoints."""
    middles = [(axis[1:] + axis[:-1]) / 2 for axis in axes]
    grid = np.array(list(itertools.product(*middles)))
    cell = math.prod(axis[1] - axis[0] for axis in axes)
    return logsumexp(model.score_samples(grid)) + math.log(cell)


def numerical_gradient(model, rows, h=1e-4):
    """Central differences of score_samples."""
    steps = h * np.eye(rows.shape[1])
    return np.stack(
        [(model.score_samples(rows + s) - model.score_samples(rows - s)) / (2 * h) for s in steps],
        1,
    )


# ------------------------------------------------------------------------------
# What is learned
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", leading(1, [2, 1]))
@each_objective
def test_a_normal_distribution_is_recovered(objective, d):
    mean, covariance = MEAN[:d], COVARIANCE[:d, :d]
    truth = scipy.stats.multivariate_normal(mean, covariance)
    rows, new = (truth.rvs(2000, random_state=seed).reshape(-1, d) for seed in (0, 1))
    sigma = (0.05, 2.0) if objective == "multiscale" else 0.1
    params = {"sigma": sigma, "learning_rate": 1e-3, "partition": "auto"}
    model = density(objective, **params).fit(rows)
    assert model.score(new) == pytest.approx(truth.logpdf(new).mean(), abs=0.05)


@full
@pytest.mark.parametrize("d", leading(1, [2, 1]))
@one_objective
def test_a_mixture_is_recovered(objective, d):
    """On a normal base, which alone is off by a quarter of a nat."""

    def rows(n, seed):
        rng = np.random.default_rng(seed)
        return 0.6 * rng.normal(size=(n, d)) + np.where(rng.random((n, 1)) < 0.4, -1.0, 1.0)

    def log_p(x):
        parts = [scipy.stats.norm.logpdf(x, mean, 0.6).sum(1) for mean in (-1, 1)]
        return logsumexp(np.stack(parts, 1), axis=1, b=[0.4, 0.6])

    params = {"partition": "auto", "network": MLP((32, 32)), "learning_rate": 0.02}
    if objective == "multiscale":  # which learns many densities
        params |= {"sigma": (0.1, 2.0), "n_iter": 15, "batch_size": 64}
    else:
        params |= {"sigma": 0.15, "n_iter": 8}
    model = density(objective, **params).fit(rows(2000, 0))
    new = rows(2000, 1)
    assert model.score(new) == pytest.approx(log_p(new).mean(), abs=0.05)


@pytest.mark.parametrize("d", leading(1, [2, 1]))
@each_objective
def test_densities_integrate_to_one(objective, d):
    model = density(objective, base="gaussian").fit(two_modes(d=d))
    axis = np.linspace(-15, 15, 2001 if d == 1 else 201)
    slack = 5 * model.log_partition_std_ + 1e-3
    assert log_integral(model, *[axis] * d) == pytest.approx(0, abs=slack)


BOUNDS = {
    "both": ((0, 1), np.linspace(0, 1, 201)),
    "lower": ((0, None), np.linspace(0, 12, 401)),
    "upper": ((None, 3), np.linspace(-9, 3, 401)),
}


def inside(name, n=200, d=1, seed=0):
    rng = np.random.default_rng(seed)
    if name == "both":
        return rng.beta(2, 3, (n, d))
    rows = rng.gamma(2.0, 1.0, (n, d))
    return rows if name == "lower" else 3 - rows


@pytest.mark.parametrize("d", leading(1, [2, 1]))
@pytest.mark.parametrize("objective", leading(1, ["exact", "sliced"]))
@pytest.mark.parametrize("name", BOUNDS)
def test_densities_inside_bounds_integrate_to_one(name, objective, d):
    bounds, axis = BOUNDS[name]
    axis = axis if d == 1 else axis[::2]
    model = density(objective, bounds=bounds).fit(inside(name, d=d))
    slack = 5 * model.log_partition_std_ + 0.01
    assert log_integral(model, *[axis] * d) == pytest.approx(0, abs=slack)
    drawn = model.sample(200, random_state=0, n_steps=5)
    low, high = (-np.inf if bounds[0] is None else bounds[0], bounds[1] or np.inf)
    assert ((drawn >= low) & (drawn <= high)).all()
    far = np.full((1, d), -1.0 if name != "upper" else 3.5)
    assert model.score_samples(far) == -np.inf
    assert model.energy(far) == np.inf
    assert model.predict(far) == -1
    assert_array_equal(model.score_function(far), 0.0)


def test_bounds_of_each_column():
    rows = inside("both", d=2) * [2.0, 10.0] + [0.0, 5.0]
    model = density(bounds=([0, 5], [2, 15])).fit(rows)
    assert np.isfinite(model.score_samples(rows)).all()
    assert model.predict([[1.0, 16.0]]) == model.predict([[-0.1, 9.0]]) == -1
    drawn = model.sample(100, random_state=0, n_steps=5)
    assert (drawn >= [0, 5]).all()
    assert (drawn <= [2, 15]).all()


def test_a_density_without_a_base_inside_bounds():
    model = density(base=None, bounds=(0, 1), n_iter=30, partition=ImportanceSampling())
    model.fit(inside("both"))
    slack = 5 * model.log_partition_std_ + 1e-3
    assert log_integral(model, BOUNDS["both"][1]) == pytest.approx(0, abs=slack)


# ------------------------------------------------------------------------------
# Settings of training
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", leading(1, ["exact", "denoising"]))
def test_early_stopping_keeps_the_best_weights(objective):
    rows = two_modes(60)  # too few: it must overfit
    stopping = EarlyStopping(validation_fraction=0.3, n_iter_no_change=5)
    kind = {"base": "gaussian", "n_iter": 300, "early_stopping": stopping}
    model = density(objective, **kind).fit(rows)
    assert model.n_iter_ < 300
    losses = [row["valid_loss"] for row in model.history_]
    net = model.net_
    net._validate(net.get_iterator(net.validation))
    assert net.history[-1, "valid_loss"] == pytest.approx(min(losses), abs=2e-4)
    assert losses[-1] > min(losses)


def test_early_stopping_without_held_out_rows_is_judged_by_the_training_loss():
    stopping = EarlyStopping(validation_fraction=None, n_iter_no_change=2, tol=1e9)
    model = density(base="gaussian", n_iter=20, early_stopping=stopping).fit(X)
    assert model.n_iter_ == 3  # no gain is as large as that
    assert model.net_.validation is None
    assert "valid_loss" not in model.history_[0]
    assert density(base="gaussian", n_iter=4, early_stopping=False).fit(X).n_iter_ == 4


def test_the_schedule_and_the_weight_decay_are_those_of_the_optimizer():
    constant = AdamW(schedule="constant", weight_decay=0.3)
    model = density(base="gaussian", optimizer=constant).fit(X)
    assert [row["lr"] for row in model.history_] == [0.01] * 3
    assert model.net_.optimizer_.param_groups[0]["weight_decay"] == 0.3
    assert constant.get_params()["weight_decay"] == 0.3
    falling = [row["lr"] for row in density(base="gaussian", n_iter=20).fit(X).history_]
    assert falling[-1] < 0.001 < 0.009 < max(falling) <= 0.01


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"optimizer": AdamW(averaging=1.0)}, "'averaging' parameter of AdamW"),
        ({"optimizer": AdamW(weight_decay=-1.0)}, "'weight_decay' parameter of AdamW"),
        ({"optimizer": AdamW(schedule="linear")}, "'schedule' parameter of AdamW"),
        ({"optimizer": AdamW(max_restarts=-1)}, "'max_restarts' parameter of AdamW"),
        ({"optimizer": "adamw"}, "'optimizer' parameter of ScoreMatchingDensity"),
        (
            {"early_stopping": EarlyStopping(validation_fraction=1.0)},
            "'validation_fraction' parameter of EarlyStopping",
        ),
        (
            {"early_stopping": EarlyStopping(n_iter_no_change=0)},
            "'n_iter_no_change' parameter of EarlyStopping",
        ),
        ({"early_stopping": EarlyStopping(tol=-1)}, "'tol' parameter of EarlyStopping"),
        ({"early_stopping": "yes"}, "'early_stopping' parameter of ScoreMatchingDensity"),
        ({"objective": Sliced(n_projections=0)}, "'n_projections' parameter of Sliced"),
        ({"objective": Sliced(projection="cauchy")}, "'projection' parameter of Sliced"),
        ({"objective": Sliced}, "'objective' parameter of ScoreMatchingDensity"),
        ({"base": MixtureBase(n_components=0)}, "'n_components' parameter of MixtureBase"),
        ({"base": MixtureBase}, "'base' parameter of ScoreMatchingDensity"),
    ],
    ids=repr,
)
def test_settings_out_of_range_are_refused_with_their_name(params, match):
    with pytest.raises(ValueError, match=match):
        density(**params).fit(X)


def test_settings_are_set_on_what_a_default_stands_for():
    model = ScoreMatchingDensity().set_params(
        network__hidden_sizes=(5,),
        sampler__n_leapfrog=3,
        base__n_components=2,
        optimizer__averaging=0.5,
        early_stopping__n_iter_no_change=4,
    )
    kinds = (model.network, model.sampler, model.base, model.optimizer, model.early_stopping)
    assert list(map(type, kinds)) == [MLP, HMC, MixtureBase, AdamW, EarlyStopping]
    assert model.sampler.adapt  # as the default one
    assert not ScoreMatchingDensity().set_params(sampler__step_size=0.1).sampler.adapt
    twin = clone(model).set_params(n_iter=2, random_state=0)
    assert twin.get_params()["optimizer__averaging"] == 0.5
    twin.fit(X)
    assert [layer.out_features for layer in twin.energy_.network.layers] == [5]
    assert len(twin.base_.weights) == 3  # with a broad one
    assert twin.net_.averaging == 0.5
    assert twin.net_.patience == 4
    assert twin.sampler_.n_leapfrog == 3
    assert model.network.hidden_sizes == (5,)  # of its own


def test_settings_of_sliced_score_matching():
    with_name = density("sliced", base="gaussian").set_params(objective__n_projections=4)
    assert with_name.objective.n_projections == 4
    given = density(Sliced(n_projections=4), base="gaussian").fit(X)
    assert_array_equal(with_name.fit(X).energy(X), given.energy(X))
    for other in ({"n_projections": 1}, {"n_projections": 4, "projection": "gaussian"}):
        model = density(Sliced(**other), base="gaussian").fit(X)
        assert model.history_[0]["train_loss"] != given.history_[0]["train_loss"]
    assert_array_equal(density(Sliced()).fit(X).energy(X), density("sliced").fit(X).energy(X))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({}, "objective__n_projections"),  # denoising has none
        ({"objective": "exact"}, "objective__n_projections"),
        ({"base": "gaussian"}, "base__n_components"),
        ({"base": None}, "base__n_components"),
        ({}, "bounds__lower"),
    ],
    ids=str,
)
def test_settings_of_what_has_none_are_refused(params, name):
    owner = name.partition("__")[0]
    with pytest.raises(ValueError, match=f"{name} cannot be set.*Pass an object as {owner}="):
        ScoreMatchingDensity(**params).set_params(**{name: 3})


def test_names_that_no_settings_take_are_refused():
    for name in ("network__depth", "optimizer__momentum", "base__rank", "early_stopping__patience"):
        with pytest.raises(ValueError, match=f"Invalid parameter '{name.partition('__')[2]}'"):
            ScoreMatchingDensity().set_params(**{name: 3})


# ------------------------------------------------------------------------------
# Units
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective", ["denoising", "multiscale", only_full("exact"), only_full("sliced")]
)
def test_log_p_is_in_the_units_of_the_data(objective):
    a, b = np.array([3.0, 0.01, 1e4]), np.array([5.0, -7.0, 1e5])
    one = density(objective, dtype="float64").fit(X)
    other = density(objective, dtype="float64").fit(a * X + b)
    assert_allclose(
        other.score_samples(a * X_NEW + b), one.score_samples(X_NEW) - np.log(a).sum(), atol=1e-6
    )
    assert_allclose(
        other.score_function(a * X_NEW + b), one.score_function(X_NEW) / a, rtol=1e-5, atol=1e-9
    )
    assert_array_equal(other.predict(a * X_NEW + b), one.predict(X_NEW))
    drawn = one.sample(50, random_state=0, n_steps=5)
    moved = other.sample(50, random_state=0, n_steps=5)
    assert_allclose(moved, a * drawn + b, rtol=1e-4, atol=1e-4)


def test_bounded_log_p_is_in_the_units_of_the_data():
    rows = inside("both", d=2)
    a, b = np.array([3.0, 0.1]), np.array([-1.0, 4.0])
    one = density(dtype="float64", bounds=(0, 1)).fit(rows)
    other = density(dtype="float64", bounds=(b, a + b)).fit(a * rows + b)
    expected = one.score_samples(rows) - np.log(a).sum()
    assert_allclose(other.score_samples(a * rows + b), expected, atol=1e-6)


@one_objective
def test_without_standardization_units_matter(objective):
    model = density(objective, standardize=False, partition="auto").fit(X)
    assert_array_equal(model.units_.scale, 1.0)
    assert_array_equal(model.units_.centre, 0.0)
    assert np.isfinite(model.score(X_NEW))
    axes = [np.linspace(m - 8, m + 8, 41) for m in range(3)]
    assert log_integral(model, *axes) == pytest.approx(0, abs=0.02)


def test_the_score_without_log_z_is_in_inverse_squared_units():
    params = {"dtype": "float64", "partition": None, "base": "gaussian"}
    one, other = density(**params).fit(X), density(**params).fit(10 * X)
    assert one.score(X_NEW) == pytest.approx(hyvarinen_score(one, X_NEW), rel=1e-9)
    assert other.score(10 * X_NEW) == pytest.approx(one.score(X_NEW) / 100, rel=1e-6)


# ------------------------------------------------------------------------------
# Scores: gradients of log p
# ------------------------------------------------------------------------------

BASES_OF = {
    "denoising": ("auto", "gaussian", "mixture", "kernel"),
    "multiscale": ("auto", "gaussian"),
    "exact": ("auto", "gaussian", "mixture", "kernel"),
    "sliced": ("auto", "gaussian", "mixture", "kernel"),
}
# Kernels and a mixture are parts of the base by default.
FIRST = {("denoising", "auto"), ("denoising", "gaussian"), ("multiscale", "gaussian")}


@pytest.mark.parametrize(
    ("objective", "base"),
    [
        (objective, base) if (objective, base) in FIRST else only_full(objective, base)
        for objective, bases in BASES_OF.items()
        for base in bases
    ],
)
def test_the_score_function_is_the_gradient_of_log_p(objective, base):
    """On every base by name; log Z does not matter."""
    model = density(objective, base=base, dtype="float64", partition=few_draws).fit(X)
    assert model.base_.domain.n_columns == 3
    expected = numerical_gradient(model, X_NEW)
    assert_allclose(model.score_function(X_NEW), expected, rtol=1e-4, atol=1e-5)
    assert model.score_function(X_NEW.astype(np.float32)).shape == X_NEW.shape
    assert np.isfinite(model.score(X_NEW))


def test_the_score_function_inside_bounds():
    model = density(bounds=(0, None), dtype="float64").fit(inside("lower", d=2))
    rows = inside("lower", 50, 2, seed=1)
    expected = numerical_gradient(model, rows, 1e-5)
    assert_allclose(model.score_function(rows), expected, rtol=1e-4, atol=1e-4)
    beyond = rows - 100 * np.eye(2)[np.arange(50) % 2]
    assert_array_equal(model.score_function(beyond), 0.0)


@pytest.mark.parametrize(
    "objective", ["exact", "multiscale", only_full("denoising"), only_full("sliced")]
)
def test_the_hyvarinen_score_is_that_of_finite_differences(objective):
    model = trained(objective, dtype="float64").set_params(partition=None)
    h = 1e-3
    middle, laplacian = model.score_samples(X_NEW), 0.0
    for s in h * np.eye(3):
        around = model.score_samples(X_NEW + s) + model.score_samples(X_NEW - s)
        laplacian = laplacian + (around - 2 * middle) / h**2
    expected = -(laplacian + np.square(model.score_function(X_NEW)).sum(1) / 2).mean()
    assert hyvarinen_score(model, X_NEW) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert model.score(X_NEW) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_hyvarinen_score_ranks_models():
    good = density(n_iter=0, base="gaussian").fit(X)
    bad = density(n_iter=0, base="gaussian").fit(3 * X)
    assert hyvarinen_score(good, X_NEW) > hyvarinen_score(bad, X_NEW)


def test_scores_of_a_module_and_of_many_columns():
    """Second derivatives are worked out in parts."""
    rows = correlated(60, 40)
    module = nn.Sequential(nn.Linear(40, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0))
    model = density("denoising", network=module, n_iter=2, partition=None, base="gaussian")
    model.fit(rows)
    assert model.score(rows) == pytest.approx(hyvarinen_score(model, rows), rel=1e-5)


def test_a_detector_by_the_norm_of_the_score():
    rows = np.vstack([X, [[30.0, 30.0, 30.0]]])
    one = density(base="gaussian")
    for model in (one, make_pipeline(StandardScaler(), one)):
        detector = EnergyOutlierDetector(model, statistic="score_norm", random_state=0).fit(X)
        found = detector.predict(rows)
        assert found[-1] == -1
        assert (found[:-1] == 1).mean() > 0.7
        plain = EnergyOutlierDetector(model, random_state=0).fit(X)
        assert plain.predict(rows)[-1] == -1


# ------------------------------------------------------------------------------
# Sampling
# ------------------------------------------------------------------------------


def test_samples_of_a_known_mixture_have_its_masses():
    model = known()
    rows = model.sample(2000, random_state=0, n_steps=10)
    right = rows.sum(1) > 0
    assert right.mean() == pytest.approx(0.8, abs=0.05)
    for side, mean in ((right, 3.0), (~right, -3.0)):
        assert_allclose(rows[side].mean(0), mean, atol=0.2)
        assert_allclose(np.cov(rows[side].T), np.eye(2), atol=0.25)


@full
@pytest.mark.parametrize(
    "objective", ["denoising", "multiscale", only_full("exact"), only_full("sliced")]
)
def test_samples_have_the_moments_of_the_data(objective):
    """Those of one level by HMC from the base; of several levels by annealing."""
    model = trained(objective)
    rows = model.sample(1000, random_state=0, n_steps=10)
    assert rows.shape == (1000, 3)
    assert_allclose(rows.mean(0), X.mean(0), atol=0.25)
    assert_allclose(rows.std(0), X.std(0), rtol=0.2)
    assert_allclose(np.corrcoef(rows.T), np.corrcoef(X.T), atol=0.15)
    assert model.sample(random_state=0, n_steps=1).shape == (1, 3)


def known_normal(**params):
    params = still | {"objective": "exact", "base": normal()} | params
    rows = np.random.default_rng(0).multivariate_normal(MEAN, COVARIANCE, 100)
    return ScoreMatchingDensity(MLP((4,)), **params).fit(rows)


@pytest.mark.parametrize("standardize", leading(1, [True, False]))
def test_conditional_samples_of_a_normal_distribution(standardize):
    model = known_normal(standardize=standardize)
    rows = model.sample(2000, random_state=0, given=[np.nan, 0.5], n_steps=10)
    coefficient = COVARIANCE[0, 1] / COVARIANCE[1, 1]
    std = math.sqrt(COVARIANCE[0, 0] - coefficient * COVARIANCE[0, 1])
    assert_array_equal(rows[:, 1], 0.5)
    assert rows[:, 0].mean() == pytest.approx(MEAN[0] + coefficient * (0.5 - MEAN[1]), abs=0.1)
    assert rows[:, 0].std() == pytest.approx(std, rel=0.1)
    p = scipy.stats.kstest(
        rows[:, 0], scipy.stats.norm(MEAN[0] + coefficient * (0.5 - MEAN[1]), std).cdf
    ).pvalue
    assert p > 1e-4


def test_conditional_samples_of_a_mixture():
    model = known()
    for x, expected in ((0.0, 0.2), (-0.3, 0.2 / (0.2 + 0.8 * math.exp(-1.8)))):
        rows = model.sample(1000, random_state=0, given=[x, np.nan], n_steps=10)
        assert (rows[:, 1] < 0).mean() == pytest.approx(expected, abs=0.06)


def test_given_rows_that_are_unusable():
    model = known_normal()
    assert_array_equal(model.sample(3, 0, given=[1.0, 2.0], n_steps=2), [[1.0, 2.0]] * 3)
    assert model.sample(3, 0, given=[np.nan, np.nan], n_steps=2).shape == (3, 2)
    with pytest.raises(ValueError, match="one row of shape"):
        model.sample(3, 0, given=[1.0])
    with pytest.raises(ValueError, match="infinity"):
        model.sample(3, 0, given=[np.inf, np.nan])
    for wrong in ({"n_samples": 0}, {"n_samples": -1}, {"n_steps": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            model.sample(**wrong)
    for wrong in ({"n_samples": 2.5}, {"n_steps": "many"}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            model.sample(**wrong)


def test_imputations_follow_the_conditional_distribution():
    model = known_normal()
    rng = np.random.default_rng(1)
    rows = rng.multivariate_normal(MEAN, COVARIANCE, 3000)
    missing = rows.copy()
    missing[:1000, 0] = np.nan
    missing[1000:2000, 1] = np.nan
    missing[2000:2500] = np.nan
    filled = model.impute(missing, random_state=0, n_steps=10)
    unknown = np.isnan(missing)
    assert_array_equal(filled[~unknown], rows[~unknown])
    for part in (slice(0, 1000), slice(1000, 2000), slice(2000, 2500)):
        assert_allclose(filled[part].mean(0), MEAN, atol=0.2)
        assert_allclose(np.cov(filled[part].T), COVARIANCE, atol=0.35)


@pytest.mark.parametrize(
    "objective", ["denoising", "multiscale", only_full("exact"), only_full("sliced")]
)
def test_impute_keeps_what_is_known(objective):
    model = trained(objective)
    assert_array_equal(model.impute(X_NEW), X_NEW)
    missing = X_NEW.copy()
    missing[3], missing[5, 1], missing[7, :2] = np.nan, np.nan, np.nan
    filled = model.impute(missing, random_state=0, n_steps=3)
    assert_array_equal(filled[~np.isnan(missing)], X_NEW[~np.isnan(missing)])
    assert np.isfinite(filled).all()
    assert_array_equal(model.impute(missing, 0, n_steps=3), filled)
    small = model.impute(missing.astype(np.float32), 0, n_steps=3)
    assert small.dtype == np.float32


def test_imputation_inside_bounds():
    model = density(bounds=(0, 1)).fit(inside("both", d=2))
    filled = model.impute([[np.nan, 0.5], [np.nan, np.nan], [0.1, 0.2]], 0, n_steps=5)
    assert ((filled >= 0) & (filled <= 1)).all()
    assert filled[0, 1] == 0.5
    assert_array_equal(filled[2], [0.1, 0.2])


def test_a_given_sampler_moves_the_chains():
    model = density(base="gaussian", sampler=MALA(step_size=0.1)).fit(X)
    assert isinstance(model.sampler_, MALA)
    assert np.isfinite(model.sample(5, random_state=0, n_steps=5)).all()


# ------------------------------------------------------------------------------
# Denoising
# ------------------------------------------------------------------------------


def test_denoising_a_normal_distribution_is_the_posterior_mean():
    rows = np.random.default_rng(3).normal(size=(20, 2))
    model = known_normal(objective="denoising", sigma=0.5)
    gain = COVARIANCE @ np.linalg.inv(COVARIANCE + 0.25 * np.eye(2))
    assert_allclose(model.denoise(rows), MEAN + (rows - MEAN) @ gain.T, atol=1e-8)


def test_noise_of_each_column_is_in_its_standard_deviations():
    rows = np.random.default_rng(3).normal(size=(20, 2))
    model = known_normal(objective="denoising", sigma=[0.2, 0.6], standardize=True)
    noise = np.diag((model.units_.scale * [0.2, 0.6]) ** 2)
    gain = COVARIANCE @ np.linalg.inv(COVARIANCE + noise)
    assert_allclose(model.denoise(rows), MEAN + (rows - MEAN) @ gain.T, atol=1e-8)


@pytest.mark.parametrize("level", [0.1, 0.7, 2.0])
def test_denoising_at_a_chosen_level(level):
    rows = np.random.default_rng(3).normal(size=(20, 2))
    model = known_normal(objective="multiscale", sigma=(0.1, 2.0))
    gain = COVARIANCE @ np.linalg.inv(COVARIANCE + level**2 * np.eye(2))
    expected = MEAN + (rows - MEAN) @ gain.T
    assert_allclose(model.denoise(rows, noise_level=level), expected, atol=1e-6)
    if level == 0.1:
        assert_allclose(model.denoise(rows), expected, atol=1e-6)


@pytest.mark.parametrize("objective", ["exact", "sliced"])
def test_denoising_by_a_density_of_clean_rows_is_of_first_order(objective):
    rows = np.random.default_rng(3).normal(size=(20, 2))
    model = known_normal(objective=objective)
    expected = rows - 0.01 * (rows - MEAN) @ np.linalg.inv(COVARIANCE)
    assert_allclose(model.denoise(rows, noise_level=0.1), expected, atol=1e-8)
    with pytest.raises(ValueError, match="trained without noise.*noise_level"):
        model.denoise(rows)


def test_levels_that_a_model_does_not_know():
    rows = X_NEW
    with pytest.raises(ValueError, match="single noise level.*multiscale"):
        trained("denoising").denoise(rows, noise_level=0.7)
    model = trained("multiscale")
    for level in (0.05, 3.0):
        with pytest.raises(ValueError, match="outside the levels"):
            model.denoise(rows, noise_level=level)
    for level in (0, -1.0, np.nan, np.inf, "0.3", [0.3]):
        with pytest.raises(ValueError, match="positive number"):
            model.denoise(rows, noise_level=level)


@each_objective
def test_denoising_takes_noise_off(objective):
    noisy = X_NEW + 0.3 * X.std(0) * np.random.default_rng(0).normal(size=X_NEW.shape)
    sigma = (0.1, 1.0) if objective == "multiscale" else 0.3
    model = density(objective, sigma=sigma, base="gaussian").fit(X)
    level = None if objective == "denoising" else 0.3
    cleaned = model.denoise(noisy, noise_level=level)
    assert np.square(cleaned - X_NEW).mean() < 0.9 * np.square(noisy - X_NEW).mean()


# ------------------------------------------------------------------------------
# log Z
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "d"),
    [
        ("auto", 2),
        (ImportanceSampling(20_000), 2),
        (AIS(50, 50), 1),
        (AISBracket(30, 30, 5), 1),
        only_full("auto", 1),
        only_full(AIS(50, 50), 2),
    ],
    ids=str,
)
def test_log_z_of_a_known_model(partition, d):
    # With the sampler that is given, and in the full tier with the one by default.
    model = known(d, log_factor=1.5, partition=partition, sampler=MALA(1.0) if d == 1 else None)
    slack = 5 * model.log_partition_std_ + 1e-3
    assert model.log_partition_ == pytest.approx(1.5, abs=slack)
    assert slack < 1
    assert model.score_samples(two_modes(20, d)) == pytest.approx(
        log_mixture(two_modes(20, d)), abs=slack
    )
    name = "Quadrature" if partition == "auto" else type(partition).__name__
    prefix = "" if partition == "auto" else "as given: "
    assert model.log_partition_method_.startswith(prefix + name)
    assert model.score(two_modes(20, d)) <= model.score_samples(two_modes(20, d)).mean()


def test_log_z_of_the_base_is_zero():
    model = known_normal()
    assert model.log_partition_ == pytest.approx(0, abs=model.log_partition_std_)
    assert model.log_partition_std_ < 1e-4
    truth = scipy.stats.multivariate_normal(MEAN, COVARIANCE)
    rows = truth.rvs(20, random_state=0)
    assert_allclose(model.score_samples(rows), truth.logpdf(rows), atol=1e-4)


def flat_network(spec):
    """Zero before training, where a network without base would grow with the distance."""
    return MLP((16,)).build(spec._replace(confining=False))


def test_what_cannot_be_normalised_has_no_likelihood():
    model = density(base=None, n_iter=0, network=flat_network).fit(X)
    assert np.isfinite(model.energy(X_NEW)).all()
    assert set(model.predict(X_NEW)) <= {-1, 1}
    assert np.isfinite(model.decision_function(X_NEW)).all()
    assert np.isfinite(model.score_function(X_NEW)).all()
    assert np.isfinite(model.denoise(X_NEW, noise_level=0.1)).all()
    for ask in ("score_samples", "score"):
        with pytest.raises(ValueError, match=r"base|bounds|confine|proper"):
            getattr(model, ask)(X_NEW)
    with pytest.raises(ValueError, match=r"base|bounds|confine|proper"):
        _ = model.log_partition_
    model.set_params(partition=None)
    assert np.isfinite(model.score(X_NEW))


# ------------------------------------------------------------------------------
# Bases
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["mixture", "kernel", MixtureBase(2)], ids=str)
def test_several_levels_need_a_normal_base(base):
    with pytest.raises(ValueError, match="normal base"):
        density("multiscale", base=base).fit(X)


@pytest.mark.parametrize("standardize", [False, True])
def test_a_base_is_given_in_the_units_of_the_data(standardize):
    rows = X * [1.0, 100.0, 0.01]
    base = Gaussian.fit(torch.tensor(rows), shrinkage=0.0)
    params = {"standardize": standardize, "dtype": "float64", "n_iter": 0}
    model = density(base=base, **params).fit(rows)
    truth = scipy.stats.multivariate_normal(rows.mean(0), np.cov(rows.T, bias=True))
    assert_allclose(model.score_samples(rows), truth.logpdf(rows), rtol=1e-6, atol=1e-6)
    further = density(base=base, standardize=standardize, partition=few_draws).fit(rows)
    assert np.isfinite(further.score(rows))
    assert_allclose(base.mean, rows.mean(0))  # as it was


def test_a_mixture_is_a_base():
    base = GaussianMixture(
        torch.tensor([0.2, 0.8]),
        torch.tensor([[-3.0, -3.0], [3.0, 3.0]]),
        torch.eye(2).repeat(2, 1, 1),
    )
    model = density(base=base, n_iter=0).fit(two_modes())
    rows = two_modes(20)
    assert_allclose(model.score_samples(rows), log_mixture(rows), atol=1e-4)


def test_the_number_of_components_of_a_mixture():
    rows = two_modes(200)
    for base, n in ((MixtureBase(3), 3), (MixtureBase(), 2), ("mixture", 2)):
        assert len(density(base=base, n_iter=0).fit(rows).base_.weights) == n + 1  # a broad one


def test_a_mixture_of_many_columns_has_few_components(monkeypatch):
    """EM costs rows times components times squared columns."""
    rows = np.random.default_rng(0).standard_normal((400, 5))

    def count():
        model = ScoreMatchingDensity(base="mixture", n_iter=0, partition=None, random_state=0)
        return len(model.fit(rows).base_.weights)

    assert count() == 4 + 1  # one for every hundred rows, and a broad one
    monkeypatch.setattr("skebm.estimators.tables.bases.MOST_WORK", 2.5 * 400 * 5**2)
    assert count() == 2 + 1
    monkeypatch.setattr("skebm.estimators.tables.bases.MOST_WORK", 1.0)
    assert count() == 1


def test_bases_that_do_not_fit():
    with pytest.raises(ValueError, match="2 columns, but X has 3"):
        density(base=normal()).fit(X)
    uniform = Uniform(Real((2,), 0.0, 1.0))
    with pytest.raises(ValueError, match="no density at .* rows of X, first at row"):
        density(base=uniform, standardize=False).fit(np.vstack([inside("both", d=2), [[5.0, 5.0]]]))
    for base in ("mixture", "kernel", MixtureBase(2)):
        with pytest.raises(ValueError, match="outside `bounds`.*gaussian"):
            density(base=base, bounds=(0, 1)).fit(inside("both"))
    with pytest.raises(ValueError, match="base"):
        density(base="independent").fit(X)
    with pytest.raises(ValueError, match="base"):
        density(base=Gaussian).fit(X)


def test_binary_bases_are_refused():
    base = IndependentBernoulli(torch.zeros(3))
    with pytest.raises((ValueError, TypeError)):
        density(base=base).fit(X)


# ------------------------------------------------------------------------------
# Images
# ------------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).normal(size=(30, 1, 4, 4)).cumsum(3)


@one_objective
def test_images_keep_their_shape(objective):
    model = density(objective, network=Conv((2, 3)), partition=ImportanceSampling(200)).fit(IMAGES)
    assert model.row_shape_ == (1, 4, 4)
    for method in ("score_samples", "energy", "decision_function", "predict"):
        assert getattr(model, method)(IMAGES[:7]).shape == (7,)
    assert np.isfinite(model.score(IMAGES))
    assert model.score_function(IMAGES[:7]).shape == (7, 1, 4, 4)
    assert model.sample(5, random_state=0, n_steps=1).shape == (5, 1, 4, 4)
    level = 0.3 if objective in ("exact", "sliced") else None
    assert model.denoise(IMAGES[:7], level).shape == (7, 1, 4, 4)
    missing = IMAGES[:7].copy()
    missing[:, :, :2] = np.nan
    filled = model.impute(missing, random_state=0, n_steps=1)
    assert filled.shape == missing.shape
    assert_array_equal(filled[:, :, 2:], IMAGES[:7, :, 2:])
    drawn = model.sample(3, random_state=0, given=missing[0], n_steps=1)
    assert drawn.shape == (3, 1, 4, 4)
    assert_array_equal(drawn[:, :, 2:], np.repeat(IMAGES[:1, :, 2:], 3, 0))
    again = by_pickle(model)
    assert_array_equal(again.energy(IMAGES), model.energy(IMAGES))
    assert model.partial_fit(IMAGES[:5]).n_iter_ == 4  # three before


def test_images_of_another_shape():
    model = density("denoising", network=Conv((2,)), partition=None)
    with pytest.raises(ValueError, match=r"Conv takes images.*reshape"):
        clone(model).fit(X)
    with pytest.raises(ValueError, match=r"dim|flat"):
        density(network=MLP((4,))).fit(IMAGES)
    with pytest.raises(ValueError, match=r"dim|flat"):
        density(network=None).fit(IMAGES)
    model.fit(IMAGES)
    for wrong in (IMAGES[:, :, :3], IMAGES[:, 0], IMAGES.reshape(30, 16)):
        with pytest.raises(ValueError, match="shape|features"):
            model.predict(wrong)


# ------------------------------------------------------------------------------
# Unusable tables
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(value):
    rows = X.copy()
    rows[3, 1] = value
    with pytest.raises(ValueError, match="NaN|infinity"):
        density().fit(rows)
    model = trained()
    scores = () if np.isnan(value) else ("score_samples", "score")  # of what is known
    for method in ("predict", "score_function", *scores):
        with pytest.raises(ValueError, match="NaN|infinity"):
            getattr(model, method)(rows)
    if value == np.inf:
        with pytest.raises(ValueError, match="infinity"):
            model.impute(rows)


def test_rows_outside_the_bounds_of_a_fit():
    with pytest.raises(ValueError, match=r"Columns \[1\]"):
        density(bounds=(0, None)).fit(inside("lower", d=2) - [0.0, 1.0])
    with pytest.raises(ValueError, match=r"Columns \[0\]"):
        density(bounds=(None, 3)).fit(inside("upper", d=2) + [5.0, 0.0])
    for objective in ("denoising", "multiscale"):
        with pytest.raises(ValueError, match="out of `bounds`.*exact.*sliced"):
            density(objective, bounds=(0, None)).fit(inside("lower"))


def test_rows_on_the_bounds():
    rows = np.vstack([inside("both"), [[0.0], [1.0]]])
    model = density(bounds=(0, 1)).fit(rows)
    assert np.isfinite(model.score_samples(rows)).all()
    assert np.isfinite(model.score_function(rows)).all()
    assert np.isfinite(model.set_params(partition=None).score(rows))


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ((0, 1, 2), "pair"),
        ((0,), "pair"),
        ((1, 0), "below"),
        ((1, 1), "below"),
        ((np.nan, 1), "finite"),
        ((0, np.inf), "finite"),
        (([0, 0], None), "each of 1 columns"),
        (("a", None), "bound|could not convert"),
        (3, "bounds"),
        ("01", "bound"),
    ],
)
def test_bad_bounds(bounds, match):
    with pytest.raises(ValueError, match=match):
        density(bounds=bounds).fit(inside("both"))


def test_bounds_of_each_column_need_standardized_columns():
    with pytest.raises(ValueError, match="same bounds"):
        density(bounds=([0, 1], None), standardize=False).fit(inside("lower", d=2) + [0.0, 1.0])


@two_objectives
def test_repeated_rows(objective):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = density(objective, sigma="auto").fit(np.repeat(X[:40], 5, axis=0))
    assert np.isfinite(model.score(X_NEW))


@two_objectives
def test_discrete_columns(objective):
    rows = X.copy()
    rows[:, 1] = np.round(rows[:, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = density(objective, base="gaussian").fit(rows)
        assert np.isfinite(model.score(rows))
    messages = [str(w.message) for w in caught if "few distinct values" in str(w.message)]
    if objective in ("exact", "sliced"):
        assert len(messages) == 1
        assert "Columns [1]" in messages[0]
        assert "denoising" in messages[0]
        jitter = model.net_.module_.jitter
        assert (jitter > 0).tolist() == [False, True, False]
        assert jitter[1] == pytest.approx(0.5 / model.units_.scale[1], rel=0.05)
    else:
        assert not messages


def test_discrete_columns_inside_bounds():
    rows = np.hstack([inside("both"), np.random.default_rng(0).integers(0, 2, (200, 1))])
    with pytest.warns(UserWarning, match=r"Columns \[1\] have few distinct values"):
        model = density(bounds=(0, 1)).fit(rows)
    assert np.isfinite(model.score(rows))


@two_objectives
def test_constant_columns(objective):
    rows = X.copy()
    rows[:, 1] = 7.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = density(objective).fit(rows)
    assert any("[1] are constant" in str(w.message) for w in caught)
    assert np.isfinite(model.score(rows))
    assert np.isfinite(model.score_function(rows)).all()
    assert model.predict([[*X.mean(0)[:1], 1000.0, X.mean(0)[2]]]) == -1


SHAPES = [(2, 3), (3, 2), (9, 2), (8, 20), (30, 1), (2, 1)]


@pytest.mark.filterwarnings("ignore:Columns")
@pytest.mark.parametrize(
    ("objective", "base", "shapes"),
    [
        ("denoising", "auto", SHAPES),
        ("denoising", "kernel", [(2, 3), (8, 20)]),
        ("exact", "gaussian", [(2, 1)]),
        only_full("denoising", "kernel", SHAPES),
        *(
            only_full(objective, base, SHAPES)
            for objective in ("multiscale", "exact", "sliced")
            for base in BASES_OF[objective]
        ),
    ],
)
def test_small_tables(objective, base, shapes):
    for shape in shapes:
        with about(objective, base, shape):
            rows = np.random.default_rng(0).normal(size=shape)
            model = density(objective, base=base, n_iter=2, partition=ImportanceSampling(200))
            model.fit(rows)
            assert np.isfinite(model.score_samples(rows)).all()
            assert np.isfinite(model.sample(2, random_state=0, n_steps=1)).all()
            assert set(model.predict(rows)) <= {-1, 1}


def test_one_row_is_too_few():
    with pytest.raises(ValueError, match="minimum of 2"):
        density().fit(X[:1])
    with pytest.raises(ValueError, match="two rows"):
        density(early_stopping=True).fit(X[:2], sample_weight=[0, 1])
    density(early_stopping=True).fit(X[:2])


@one_objective
def test_one_outlier(objective):
    rows = np.vstack([X, np.full((1, 3), 1e6)])
    model = density(objective, base="gaussian", partition=few_draws).fit(rows)
    assert np.isfinite(model.score_samples(rows)).all()
    assert model.predict(rows)[-1] == -1
    model = trained(objective)
    assert model.predict(rows)[-1] == -1
    assert not np.isnan(model.score_samples(rows)).any()


@one_objective
def test_values_too_large_for_a_float(objective):
    rows = X.copy()
    rows[0, 2], rows[1, 2] = 1e300, -1e300
    with pytest.warns(UserWarning, match=r"2 rows are left out"), np.errstate(all="ignore"):
        assert (density(objective).fit(rows).predict(rows)[:2] == -1).all()
    model = trained(objective)
    with np.errstate(all="ignore"):
        assert (model.predict(rows)[:2] == -1).all()
        assert not np.isnan(model.energy(rows)).any()


def test_large_offsets_keep_their_digits():
    shifted = X + 1e7
    model = density(base="gaussian").fit(shifted)
    assert_allclose(model.units_.scale, X.std(0), rtol=1e-6)
    assert model.score(shifted) == pytest.approx(trained().score(X), abs=1e-3)


def test_single_precision_rows():
    model = density(base="gaussian").fit(X.astype(np.float32))
    assert model.score(X.astype(np.float32)) == pytest.approx(trained().score(X), abs=1e-3)
    assert model.score_samples(X.astype(np.float32)).dtype == np.float64


def test_unusable_frames():
    model = density(base="gaussian")
    with pytest.raises(ValueError, match="0 sample|minimum of"):
        clone(model).fit(pd.DataFrame({"a": [], "b": []}))
    with pytest.raises(ValueError, match="0 feature|at least one|minimum of|Found array"):
        clone(model).fit(pd.DataFrame(index=range(5)))
    with pytest.raises(ValueError, match="could not convert|numeric"):
        clone(model).fit(pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model.fit(frame)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"c": "d"}))
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])
    mixed = frame.astype({"a": "float32"}).assign(b=frame["b"].astype(object))
    assert_allclose(clone(model).fit(mixed).score(frame), model.score(frame), atol=1e-3)


@pytest.mark.parametrize(
    "sigma",
    [-0.1, 0, 0.0, np.nan, np.inf, [0.1, 0.2], [0.1, 0.2, -0.3], [0.1, 0.2, np.nan], "wide", None],
    ids=str,
)
def test_bad_sigma(sigma):
    with pytest.raises(ValueError, match="sigma"):
        density("denoising", sigma=sigma).fit(X)


@pytest.mark.parametrize(
    "sigma", [0.3, (2.0, 0.1), (0.1, 0.1), (0.0, 1.0), (0.1, np.inf), (0.1, 0.2, 0.3), "bandwidth"]
)
def test_bad_levels(sigma):
    with pytest.raises(ValueError, match="sigma.*(smallest, largest)"):
        density("multiscale", sigma=sigma).fit(X)


@pytest.mark.parametrize("sigma", ["auto", "bandwidth", "kurtosis", 0.4, [0.1, 0.2, 0.3]], ids=str)
def test_good_sigma(sigma):
    model = density("denoising", base="gaussian", sigma=sigma, n_iter=0).fit(X)
    found = model.net_.module_.sigma
    assert found.shape == (3,)
    assert (found > 0).all()
    if not isinstance(sigma, str):
        assert_allclose(found, np.broadcast_to(sigma, 3), rtol=1e-6)


# ------------------------------------------------------------------------------
# Networks
# ------------------------------------------------------------------------------


class Columns(nn.Module):
    """A network that returns a number for each column."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize(
    ("network", "match"),
    [
        (Columns(), "one number per row"),
        (nn.Linear(5, 1), r"network.*rows of shape \(2, 3\)"),
        (lambda spec: "no module", "Module"),
        (MLP(()), "hidden_sizes"),
        (MLP((4, 0)), "hidden_sizes"),
        (MLP((4,), activation="relu"), "activation.*second derivatives"),
        ("mlp", "network"),
        (7, "network"),
    ],
)
def test_unusable_networks(network, match):
    with pytest.raises((ValueError, TypeError), match=match):
        density("denoising", base="gaussian", network=network).fit(X)


def user_module():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))


@pytest.mark.parametrize("objective", ["denoising", only_full("exact"), only_full("sliced")])
def test_a_network_is_a_module_or_builds_one(objective):
    module = user_module()
    before = [p.detach().clone() for p in module.parameters()]
    model = density(objective, network=module).fit(X)
    for given, p in zip(before, module.parameters(), strict=True):
        assert torch.equal(given, p)  # a copy was trained
    assert np.isfinite(model.score(X_NEW))
    assert_array_equal(clone(model).fit(X).energy(X), model.energy(X))
    built = density(objective, network=lambda spec: user_module()).fit(X)
    assert np.isfinite(built.score(X_NEW))


def test_the_default_network():
    model = ScoreMatchingDensity(base="gaussian", n_iter=1, random_state=0).fit(X)
    assert [layer.out_features for layer in model.energy_.network.layers] == [128, 128]


# ------------------------------------------------------------------------------
# Life of an estimator
# ------------------------------------------------------------------------------


@one_objective
def test_a_stream_learns_what_a_fit_learns(objective):
    model = density(objective, partition="auto")
    for start in range(0, 200, 40):
        model.partial_fit(X[start : start + 40])
    assert model.n_iter_ == 5
    fitted = density(objective, partition="auto").fit(X)
    assert model.score(X_NEW) == pytest.approx(fitted.score(X_NEW), abs=0.5)
    model.partial_fit(X[:1])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2])


def test_a_stream_inside_bounds():
    model = density(bounds=(0, None)).partial_fit(inside("lower"))
    rows = inside("lower", seed=1)
    assert np.isfinite(model.partial_fit(rows).score(rows))
    with pytest.raises(ValueError, match="outside `bounds`"):
        model.partial_fit(inside("lower") - 5)
    assert np.isfinite(model.score(inside("lower")))


def test_warm_start_goes_on_and_keeps_the_units():
    model = density(base="gaussian", warm_start=True, n_iter=2).fit(X)
    scale, before = model.units_.scale.copy(), model.energy(X)
    model.fit(5 * X)
    assert_array_equal(model.units_.scale, scale)
    assert not np.array_equal(model.energy(X), before)
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(network__hidden_sizes=(5,)).fit(X)
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(network=MLP((16,)), objective="multiscale", sigma="auto").fit(X)


def test_warm_start_goes_on_from_one_objective_of_clean_rows_to_another():
    model = density("exact", base="gaussian", warm_start=True).fit(X)
    for objective in ("sliced", Sliced(n_projections=2)):
        assert np.isfinite(model.set_params(objective=objective).fit(X).score(X))
    with pytest.raises(ValueError, match="objective='sliced'.*'denoising'"):
        model.set_params(objective="denoising").fit(X)


@full
def test_a_search_over_noise_and_networks():
    """By names of the estimator, of what None stands for, and of skorch."""
    grid = {"sigma": [0.1, 0.5], "network__hidden_sizes": [(4,), (8, 8)]}
    search = GridSearchCV(
        density("denoising", base="gaussian", n_iter=1, network=None),
        grid,
        cv=2,
        error_score="raise",
    ).fit(X)
    assert set(search.best_params_) == set(grid)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    plain = density(base="gaussian", n_iter=1, partition=None)
    other = {"net__lr": [1e-3, 1e-2], "optimizer__weight_decay": [0.0, 10.0]}
    without = GridSearchCV(plain, other, cv=2, error_score="raise").fit(X)
    assert np.isfinite(without.cv_results_["mean_test_score"]).all()
    assert len(np.unique(without.cv_results_["mean_test_score"])) == 4
    assert plain.optimizer is None  # a search fits clones


@functools.cache
def _to_store(objective, base):
    given = Gaussian.fit(torch.tensor(X)) if base == "given" else base
    return density(objective, base=given, partition=few_draws).fit(X)


# A way to store does not depend on what is stored, but skops takes each base apart.
STORED = [("denoising", base, by_skops) for base in ("given", "kernel", "gaussian", "mixture")]
STORED += [("exact", base, by_pickle) for base in ("given", "kernel")]
STORED += [("exact", "gaussian", by_joblib), ("exact", "mixture", by_skops)]


@pytest.mark.parametrize(
    ("objective", "base", "store"),
    [case if i == 0 else only_full(*case) for i, case in enumerate(STORED)],
)
def test_a_stored_model_is_the_same_model(objective, base, store):
    model = _to_store(objective, base)
    loaded, twin = store(model), copy.deepcopy(model)
    assert_array_equal(loaded.score_samples(X_NEW), model.score_samples(X_NEW))
    assert_array_equal(loaded.sample(2, 0, n_steps=1), model.sample(2, 0, n_steps=1))
    for one in (loaded, twin):
        one.partial_fit(X_NEW)
    assert_array_equal(loaded.energy(X_NEW), twin.energy(X_NEW))


def test_a_stored_model_does_not_depend_on_what_is_set_later():
    """A pickle that is written after set_params must load."""
    model = trained("denoising")
    expected = model.energy(X)
    model.set_params(network__hidden_sizes=(3, 3), objective="exact", bounds=(-100, 100))
    assert_array_equal(model.energy(X), expected)
    loaded = pickle.loads(pickle.dumps(model))
    assert_array_equal(loaded.energy(X), expected)
    assert_array_equal(loaded.denoise(X), model.denoise(X))


def test_divergence_is_not_silent():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = density(base="gaussian", learning_rate=1e3, n_iter=10).fit(X)
        except FloatingPointError as error:
            assert "learning_rate" in str(error)  # noqa: PT017
            return
    messages = [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]
    assert messages
    assert "learning_rate" in messages[0]
    assert np.isfinite(model.energy(X)).all()


def test_a_base_has_no_component_for_a_lone_outlier():
    X = np.random.default_rng(0).normal(size=(100, 2))
    X[0] = 50.0
    model = ScoreMatchingDensity(base=MixtureBase(n_components=2), n_iter=0, random_state=0).fit(X)
    assert model.base_.n_components == 1
    assert model.score_samples(X)[0] < -100


def test_parameters_of_parameters_are_checked_before_any_work(monkeypatch):
    def worked(*args, **kwargs):
        raise AssertionError("a base was fitted")

    monkeypatch.setattr("skebm.estimators.neural.objectives.score_matching.fit_real_bases", worked)
    model = ScoreMatchingDensity(optimizer=AdamW(averaging=1.0))
    with pytest.raises(ValueError, match="'averaging' parameter of AdamW"):
        model.fit(np.random.default_rng(0).normal(size=(30, 2)))
