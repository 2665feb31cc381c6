"""Products of densities and tractable densities: closed forms, log Z, draws, weights."""

import math
import pickle
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from skebm import EnergyOutlierDetector, ProductOfDensities, RBMEstimator, TractableDensity
from skebm.distributions import KernelDensity as Kernels
from skebm.distributions import SignedLog
from skebm.estimators.outlier.product import default_experts
from skebm.estimators.queries import tractable
from tests.support.checks import parametrize_with_checks
from tests.support.tiers import leading

KINDS = ("stack", "kernel", "mixture", "gaussian")


def table(n=80, d=2, seed=0):
    random = np.random.RandomState(seed)
    return random.standard_normal((n, d)) * [1.0, 20.0, 0.1][:d] + 5


def gaussian(mean, variance):
    """scikit-learn's mixture with one component, of known moments in one column."""
    model = GaussianMixture(1, random_state=0).fit(np.array([[mean - 1.0], [mean + 1.0]]))
    model.means_[:] = mean
    model.covariances_[:] = variance
    model.precisions_cholesky_[:] = variance**-0.5
    return model


class Fixed(GaussianMixture):
    """A mixture that does not learn: it is Gaussian, of the given moments."""

    def __init__(self, mean=0.0, variance=1.0, random_state=None):
        super().__init__(random_state=random_state)
        self.mean, self.variance = mean, variance

    def get_params(self, deep=True):
        return {"mean": self.mean, "variance": self.variance, "random_state": self.random_state}

    def fit(self, X, y=None):
        vars(self).update(vars(gaussian(self.mean, self.variance)))
        return self


TWO = [("a", Fixed(0.0, 1.0)), ("b", Fixed(2.0, 4.0))]


# ------------------------------------------------------------------------------
# Products
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.2, 0.8), (1.0, 1.0), (0.0, 1.0)])
def test_a_product_of_two_gaussians_is_gaussian(weights):
    model = ProductOfDensities(TWO, weights=weights, n_draws=20_000, random_state=0)
    model.fit(np.zeros((30, 1)))
    a, b = weights
    precision = a + b / 4
    mean, x = (a * 0 + b * 2 / 4) / precision, np.linspace(-4, 5, 7)[:, None]
    exact = -0.5 * precision * (x[:, 0] - mean) ** 2 + 0.5 * math.log(precision / math.tau)
    log_z = -model.energy(x) - exact
    assert_allclose(log_z, log_z[0], rtol=0, atol=1e-9)
    assert abs(model.log_partition_ - log_z[0]) < 4 * model.log_partition_std_ + 1e-12
    low, high = model.log_partition_bounds_
    assert low - 1e-9 <= log_z[0] <= high + 1e-9
    assert_allclose(model.score_samples(x), exact, atol=5 * model.log_partition_std_ + 1e-9)
    assert_allclose(model.score_function(x), -precision * (x - mean), atol=1e-9)
    assert model.score(x) <= model.score_samples(x).mean()


def test_draws_of_a_pool_are_exact():
    model = ProductOfDensities(TWO, weights=(0.5, 0.5), random_state=0).fit(np.zeros((30, 1)))
    x = model.sample(20_000, random_state=0)[:, 0]
    precision, mean = 0.5 + 0.5 / 4, 0.5 * 2 / 4 / (0.5 + 0.5 / 4)
    assert abs(x.mean() - mean) < 5 * (precision * len(x)) ** -0.5
    assert abs(x.var() * precision - 1) < 5 * (2 / len(x)) ** 0.5
    assert len(np.unique(x)) == len(x)


def test_draws_of_a_plain_product_are_resampled_with_a_warning():
    model = ProductOfDensities(TWO, weights=(1, 1), random_state=0).fit(np.zeros((30, 1)))
    with pytest.warns(UserWarning, match="do not sum to one.*approximate"):
        x = model.sample(500, random_state=0)
    assert abs(x.mean() - 0.4) < 0.25


def test_the_largest_credible_log_z_of_a_pool_is_at_most_its_bound():
    far = [("a", Fixed(0.0, 1.0)), ("b", Fixed(40.0, 1.0))]
    model = ProductOfDensities(far, weights=(0.5, 0.5), random_state=0).fit(np.zeros((30, 1)))
    zero = np.zeros((1, 1))
    with pytest.warns(ConvergenceWarning, match="log Z may be wrong"):
        assert model.score(zero) == -model.energy(zero)[0]
    assert model.log_partition_bounds_[1] == 0.0
    assert math.isnan(model.log_partition_bounds_[0])
    plain = ProductOfDensities(far, weights=(1, 1), random_state=0).fit(np.zeros((30, 1)))
    with pytest.warns(ConvergenceWarning, match="log Z may be wrong"):
        assert math.isnan(plain.score(zero))


def test_the_integral_of_the_default_is_one():
    X = table()
    model = ProductOfDensities(random_state=0).fit(X)
    assert_array_equal(list(model.experts_), [name for name, _ in default_experts()])

    a, b = np.linspace(0, 10, 201), np.linspace(-120, 130, 201)
    grid = np.stack(np.meshgrid(a, b, indexing="ij"), -1)
    density = np.exp(model.score_samples(grid.reshape(-1, 2))).reshape(201, 201)
    found = integrate.trapezoid(integrate.trapezoid(density, b), a)
    assert abs(math.log(found)) < 4 * model.log_partition_std_ + 2e-3


def test_balanced_weights_make_the_spreads_alike():
    experts = [("wide", Fixed(5.0, 1.0)), ("narrow", Fixed(5.0, 0.01))]
    model = ProductOfDensities(experts, random_state=0).fit(table(60, 1))
    assert_allclose(model.weights_, [100 / 101, 1 / 101])
    constant = ProductOfDensities(experts, random_state=0).fit(np.full((60, 1), 5.0))
    assert_allclose(constant.weights_, [0.5, 0.5])


def test_units_of_the_columns_do_not_matter():
    X, new = table(60), table(20, seed=1)
    model = ProductOfDensities(random_state=0).fit(X)
    scaled = ProductOfDensities(random_state=0).fit(X * [1e6, 1e-3] + [3, -5])
    gap = scaled.energy(new * [1e6, 1e-3] + [3, -5]) - model.energy(new)
    assert_allclose(gap, gap[0], rtol=0, atol=1e-4)
    assert gap[0] == pytest.approx(math.log(1e3), abs=1e-4)


def test_an_energy_based_expert_brings_its_log_z():
    X = (table(60) > 5).astype(float)
    rbm = RBMEstimator(2, n_iter=5, random_state=0)
    model = ProductOfDensities([("rbm", rbm)], random_state=0).fit(X)
    assert model.log_partition_ == pytest.approx(model.experts_["rbm"].log_partition_)
    assert_allclose(model.score_samples(X), model.experts_["rbm"].score_samples(X))


def test_parameters_of_experts_can_be_searched():
    model = ProductOfDensities(random_state=0)
    assert model.get_params()["estimators"] is None
    search = GridSearchCV(model, {"mixture__regularisation": [0.01, 0.3]}, cv=2).fit(table(60))
    expert = search.best_estimator_.experts_["mixture"]
    assert expert.regularisation == search.best_params_["mixture__regularisation"]
    with pytest.raises(ValueError, match="nothing"):
        clone(model).set_params(nothing__at_all=1)


def test_same_seed_same_model_and_a_pickle_is_the_model():
    X = table()
    one, two = (ProductOfDensities(random_state=0).fit(X) for _ in range(2))
    assert_array_equal(one.score_samples(X), two.score_samples(X))
    assert_array_equal(one.sample(5, random_state=1), two.sample(5, random_state=1))
    again = pickle.loads(pickle.dumps(one))
    assert_array_equal(again.score_samples(X), one.score_samples(X))


@pytest.mark.parametrize(
    ("n", "weights", "n_fits"),
    [(60, "balanced", 8), (60, (0.3, 0.7), 2), (19, "balanced", 2)],  # three folds for the weights
)
def test_a_verbose_fit_counts_the_fits_and_shows_the_weights(n, weights, n_fits, capfd):
    model = ProductOfDensities(TWO, weights=weights, verbose=1).fit(table(n, 1))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1  # written over and over, ended once
    shown = re.findall(r"ProductOfDensities: ([a-z]+)", err)
    assert list(dict.fromkeys(shown)) == ["a", "b"]
    last, (a, b) = err.rstrip("\n").split("\r")[-1], model.weights_
    assert re.search(
        rf"{n_fits}/{n_fits} .*a {a:.2f} \(\d+\.\d s\), b {b:.2f} \(\d+\.\d s\)\]", last
    )
    model.set_params(verbose=0).fit(table(n, 1))
    assert capfd.readouterr() == ("", "")


def test_a_bar_ends_with_the_fit_that_fails(capfd):
    with pytest.raises(ValueError, match="2 non-negative numbers"):
        ProductOfDensities(TWO, weights=[1.0], verbose=1).fit(table(30, 1))
    assert capfd.readouterr().err.endswith("\n")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"estimators": []}, "at least one"),
        ({"estimators": ["kernels"]}, r"\(name, estimator\)"),
        ({"estimators": [("a", GaussianMixture()), ("a", GaussianMixture())]}, "unique"),
        ({"estimators": TWO, "weights": [1.0]}, "2 non-negative numbers"),
        ({"estimators": TWO, "weights": [1.0, -1.0]}, "2 non-negative numbers"),
        ({"estimators": TWO, "weights": [0.0, 0.0]}, "not all zero"),
        ({"estimators": TWO, "weights": [np.nan, 1.0]}, "2 non-negative numbers"),
        ({"n_draws": 3}, "n_draws"),
    ],
)
def test_bad_parameters(params, message):
    with pytest.raises(ValueError, match=message):
        ProductOfDensities(**params).fit(table(30, 1))


def test_an_expert_without_a_density_is_refused():
    with pytest.raises(TypeError, match="StandardScaler.*score_samples"):
        ProductOfDensities([("a", StandardScaler())]).fit(table())
    with pytest.raises(NotFittedError):
        ProductOfDensities().energy(table())


HARD = {
    "one row": np.array([[1.0, 2.0]]),
    "all rows alike": np.ones((40, 2)),
    "a constant column": np.c_[table(40, 1), np.ones(40)],
    "ten copies": np.repeat(table(12), 10, axis=0),
    "more columns than rows": np.random.RandomState(0).standard_normal((6, 30)),
    "huge": table(40) * 1e9,
    "heavy tails": np.random.RandomState(0).standard_cauchy((60, 2)),
    "integers": np.random.RandomState(0).randint(0, 3, (60, 4)),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_tables_have_finite_energies(name):
    X = HARD[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector = EnergyOutlierDetector(random_state=0).fit(X)
    assert np.isfinite(detector.decision_function(X)).all()
    new = np.asarray(X[:1] + 7.0 * np.abs(X).max())
    assert detector.decision_function(new)[0] < detector.decision_function(X).min()


# ------------------------------------------------------------------------------
# Tractable densities
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_tractable_density_integrates_to_one(kind):
    model = TractableDensity(kind, random_state=0).fit(table(60, 1))
    grid = np.linspace(-6, 16, 4001)
    found = integrate.trapezoid(np.exp(model.score_samples(grid[:, None])), grid)
    assert found == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_the_gradient(kind):
    X = table(60)
    model = TractableDensity(kind, random_state=0).fit(X)
    at, step = X[:5], np.array([1e-4, 2e-3])
    for j in range(2):
        shift = np.eye(2)[j] * step
        slope = (model.score_samples(at + shift) - model.score_samples(at - shift)) / 2 / step[j]
        assert_allclose(model.score_function(at)[:, j], slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_of_the_rows(kind):
    X = table(200)
    x = TractableDensity(kind, random_state=0).fit(X).sample(4000, random_state=0)
    assert_allclose(x.mean(0), X.mean(0), atol=0.1 * X.std(0).max())
    assert (np.abs(np.log(x.std(0) / X.std(0))) < 0.25).all()


@pytest.mark.parametrize("kind", leading(2, KINDS))
def test_weights_are_repetitions(kind):
    X, w = table(40), np.random.RandomState(0).randint(1, 4, 40)
    weighted = TractableDensity(kind, random_state=0).fit(X, sample_weight=w)
    repeated = TractableDensity(kind, random_state=0).fit(np.repeat(X, w, axis=0))
    tolerance = 0.15 if kind in ("stack", "mixture") else 0.05  # other folds and initial clusters
    gap = weighted.score_samples(X) - repeated.score_samples(X)
    assert np.median(np.abs(gap)) < tolerance


def test_weights_of_rows_reach_the_experts_and_the_balance():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    w = np.random.default_rng(1).integers(0, 3, 60)
    model = ProductOfDensities(random_state=0)
    weighted = clone(model).fit(rows, sample_weight=w)
    kept = clone(model).fit(rows[w > 0], sample_weight=w[w > 0])
    assert_array_equal(weighted.energy(rows), kept.energy(rows))  # weight 0 is no row at all
    repeated = clone(model).fit(np.repeat(rows, w, axis=0))
    for name, expert in weighted.experts_.items():
        assert_allclose(expert.score_samples(rows), repeated.experts_[name].score_samples(rows))
    ones = clone(model).fit(rows, sample_weight=np.ones(60))
    assert_allclose(ones.energy(rows), clone(model).fit(rows).energy(rows))
    assert not np.allclose(weighted.weights_, ones.weights_)


def test_an_expert_that_takes_no_weights_is_refused():
    rows, w = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60)
    experts = [("mixture", GaussianMixture()), ("own", TractableDensity("gaussian"))]
    with pytest.raises(ValueError, match="'mixture'.*GaussianMixture"):
        ProductOfDensities(experts).fit(rows, sample_weight=w)
    frozen = [("mixture", FrozenEstimator(GaussianMixture().fit(rows))), experts[1]]
    assert len(ProductOfDensities(frozen).fit(rows, sample_weight=w).weights_) == 2


def kernels_of(model):
    """The kernels of a density, beside its normal component."""
    return model.distribution_.parts[0]


def test_the_metric_is_the_unit_of_the_bandwidth():
    X = np.random.RandomState(0).standard_exponential((200, 2)) ** 2 * [1.0, 50.0]
    standard = kernels_of(TractableDensity("kernel", random_state=0).fit(X)).bandwidth.numpy()
    ranges = TractableDensity("kernel", metric="range", random_state=0).fit(X)
    assert_allclose(standard / X.std(0), (standard / X.std(0))[0])
    ratio = kernels_of(ranges).bandwidth.numpy() / np.ptp(X, axis=0)
    assert_allclose(ratio, ratio[0])
    scaled = TractableDensity("kernel", metric="range", random_state=0)
    scaled.fit(MinMaxScaler().fit_transform(X))
    assert_allclose(kernels_of(scaled).bandwidth.numpy(), ratio)


@pytest.mark.parametrize(("n", "size"), [(60, 1), (499, 4), (500, 5)])
def test_a_mixture_has_a_component_for_every_hundred_rows(n, size):
    X = np.linspace(0, 1000, n)[:, None] ** 2
    found = TractableDensity("mixture", random_state=0).fit(X).distribution_.n_components
    assert found == size + (size > 1)  # and a broad one


def test_a_large_regularisation_is_the_only_prior():
    X, kind = table(80), {"n_components": 1, "random_state": 0}
    smooth = TractableDensity("mixture", regularisation=0.1, **kind).fit(X).distribution_
    expected = np.cov(X.T, bias=True) + 0.1 * np.diag(X.var(0))
    assert_allclose(smooth.covariances[0].numpy(), expected, rtol=1e-6)
    sharp = TractableDensity("mixture", regularisation=0.001, **kind).fit(X).distribution_
    # Else two rows without correlation are a prior.
    assert abs(float(sharp.covariances[0, 0, 1])) < 0.9995 * abs(np.cov(X.T, bias=True)[0, 1])


def test_names_of_columns_and_arguments_without_effect():
    frame = pd.DataFrame(table(30), columns=["a", "b"])
    model = TractableDensity("gaussian").fit(frame)
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        model.score_samples(frame[["b", "a"]])
    with pytest.warns(UserWarning, match="metric.*does not use it"):
        TractableDensity("gaussian", metric="range").fit(frame)
    with pytest.raises(ValueError, match="unit is for one scale"):
        Kernels.fit(torch.as_tensor(table()), n_scales=2, unit=torch.ones(2))


@parametrize_with_checks(
    {
        "product": ProductOfDensities(random_state=0),
        "kernel": TractableDensity("kernel"),
        "kernel-range": TractableDensity("kernel", metric="range"),
        "stack": TractableDensity(random_state=0),
        "mixture": TractableDensity("mixture", random_state=0),
        "gaussian": TractableDensity("gaussian"),
    },
    first=("product",),
    alike=("kernel",),
    modes=("kernel-range", "stack", "mixture", "gaussian"),
)
def test_sklearn_checks(estimator, check):
    check(estimator)


def test_fitted_experts_are_multiplied_as_they_are():
    """The product of two normal densities of unit variance, in closed form."""
    random = np.random.RandomState(0)
    one, two = (
        TractableDensity("gaussian").fit(random.standard_normal((4000, 2)) + centre)
        for centre in (0, 2)
    )
    experts = [("one", FrozenEstimator(one)), ("two", FrozenEstimator(two))]
    model = ProductOfDensities(experts, weights=[1, 1], n_draws=2000, random_state=0)
    model.fit(table(30) - 5)
    assert model.experts_["one"].estimator is one
    truth = 2 * scipy.stats.norm.logpdf(2, 0, 2**0.5)
    assert model.log_partition_ == pytest.approx(truth, abs=0.15)
    with pytest.warns(UserWarning, match="approximate"):
        draws = model.sample(1000, random_state=0)
    assert_allclose(draws.mean(0), 1, atol=0.1)
    assert_allclose(draws.var(0), 0.5, atol=0.1)
    with pytest.raises(NotFittedError):
        ProductOfDensities([("a", FrozenEstimator(TractableDensity()))]).fit(table(30))


@pytest.mark.parametrize("metric", ["standard", "range", "log"])
@pytest.mark.parametrize("n_neighbors", [None, 3])
def test_kernels_in_every_metric(metric, n_neighbors):
    X = np.vstack([table(60), 20 * table(20, seed=1)])
    model = TractableDensity("kernel", metric=metric, n_neighbors=n_neighbors).fit(X)
    q = kernels_of(model)
    assert isinstance(q, SignedLog) == (metric == "log")
    inner = q.distribution if metric == "log" else q
    assert (inner.factors is None) == (n_neighbors is None)
    scaled = TractableDensity("kernel", metric=metric, n_neighbors=n_neighbors)
    gap = scaled.fit(X * [10, 0.1] + 7).score_samples(X * [10, 0.1] + 7) - model.score_samples(X)
    assert_allclose(gap, 0, atol=1e-6)  # the volumes of 10 and 0.1 cancel
    x = X[:5]
    steps = 1e-6 * np.eye(2)
    slope = [(model.score_samples(x + h) - model.score_samples(x - h)) / 2e-6 for h in steps]
    assert_allclose(model.score_function(x), np.stack(slope, 1), rtol=1e-3, atol=1e-4)


def test_many_rows_are_scored_in_blocks(monkeypatch):
    X = table(50)
    model = TractableDensity("mixture", random_state=0).fit(X)
    value, score = model.score_samples(X), model.score_function(X)
    monkeypatch.setattr(tractable, "BLOCK", 7)
    assert_allclose(model.score_samples(X), value)
    assert_allclose(model.score_function(X), score)


def test_read_only_rows_are_taken_in_silence():
    X = table(30)
    X.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TractableDensity("gaussian").fit(X).score_samples(X)


class Bounded(Fixed):
    """Without a density below its mean."""

    def score_samples(self, X):
        return np.where(X[:, 0] > self.mean, super().score_samples(X), -np.inf)


@pytest.mark.parametrize("mean", [5.0, 1e3])
def test_rows_without_a_density_do_not_count_for_the_weights(mean):
    """Of an expert without any it is that of the others."""
    experts = [("part", Bounded(mean, 1.0)), ("whole", Fixed(5.0, 1.0))]
    weights = ProductOfDensities(experts, random_state=0).fit(table(60, 1)).weights_
    assert np.isfinite(weights).all()
    assert (weights[0] == pytest.approx(0.5)) == (mean == 1e3)
