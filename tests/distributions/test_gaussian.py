"""Normal and uniform distributions: normalised densities, draws that follow them, fits."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.covariance import ledoit_wolf

from skebm.base import Binary, Categorical, Mixed, Real
from skebm.distributions import Gaussian, Uniform
from tests.support.distributions import assert_distribution
from tests.support.oracle import DOUBLE, P_FLOOR, chi_square, row_gradients, seeded
from tests.support.targets import Normal

MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
ROOT = torch.tensor([[2.0, 0, 0], [0.7, 0.4, 0], [-1.0, 0.3, 0.9]], dtype=DOUBLE)
COV = ROOT @ ROOT.t()
SCALE = torch.tensor([[0.1, 3.0], [1.0, 0.5]], dtype=DOUBLE)
MIXED = Mixed((Binary((2,)), Real((2,), -1.0, 2.0), Categorical((3,))))

INSTANCES = {
    "dense": Gaussian(MEAN, covariance=COV),
    "diagonal": Gaussian(MEAN, torch.tensor([0.5, 2.0, 1.0], dtype=DOUBLE)),
    "image": Gaussian(torch.ones(2, 2, dtype=DOUBLE), SCALE),
    "box": Uniform(Real((2, 2), -3.0, 0.5), DOUBLE),
    "bits": Uniform(Binary((3,)), DOUBLE),
    "levels": Uniform(Categorical((3, 2)), DOUBLE),
    "mixed": Uniform(MIXED, DOUBLE),
}


@pytest.fixture(params=INSTANCES)
def noise(request):
    return INSTANCES[request.param]


# ------------------------------------------------------------------------------
# All of them
# ------------------------------------------------------------------------------


def test_distributions_satisfy_the_contract(noise):
    assert_distribution(noise)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_results_have_the_precision_of_the_rows(noise, dtype):
    x = noise.sample(20, seeded(1))
    found = noise.log_prob(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.to(DOUBLE), noise.log_prob(x), rtol=0, atol=1e-3)


# ------------------------------------------------------------------------------
# Gaussian
# ------------------------------------------------------------------------------


def test_gaussian_densities_are_those_of_scipy():
    x = 3 * torch.randn(50, 3, generator=seeded(), dtype=DOUBLE)
    truth = scipy.stats.multivariate_normal(MEAN.numpy(), COV.numpy()).logpdf(x.numpy())
    np.testing.assert_allclose(INSTANCES["dense"].log_prob(x), truth, rtol=1e-10)
    image = 3 * torch.randn(50, 2, 2, generator=seeded(), dtype=DOUBLE)
    truth = scipy.stats.norm(1.0, SCALE.numpy()).logpdf(image.numpy()).sum((1, 2))
    np.testing.assert_allclose(INSTANCES["image"].log_prob(image), truth, rtol=1e-10)


def test_gaussian_densities_integrate_to_one():
    at = torch.linspace(-9, 9, 601, dtype=DOUBLE)
    line = Gaussian(MEAN[:1], 1.3).log_prob(at[:, None]).exp().sum() * 0.03
    assert float(line) == pytest.approx(1.0, abs=1e-8)
    grid = torch.cartesian_prod(at, at)
    plane = Gaussian(MEAN[:2], covariance=COV[:2, :2]).log_prob(grid).exp().sum() * 0.03**2
    assert float(plane) == pytest.approx(1.0, abs=1e-4)  # the grid ends at 4 deviations


def test_gaussian_draws_follow_the_density(generator):
    assert Normal(MEAN, COV).p_value(INSTANCES["dense"].sample(5000, generator)) > P_FLOOR
    image = INSTANCES["image"].sample(5000, generator).flatten(1)
    target = Normal(torch.ones(4, dtype=DOUBLE), SCALE.flatten().square().diag())
    assert target.p_value(image) > P_FLOOR
    assert target.p_value(image * 1.1) < P_FLOOR  # the test can tell


def test_gaussian_draws_are_scaled_and_moved_standard_draws():
    z = Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0).sample(9, seeded())
    torch.testing.assert_close(INSTANCES["dense"].sample(9, seeded()), MEAN + z @ ROOT.t())
    scale = torch.tensor([0.5, 2.0, 1.0], dtype=DOUBLE)
    torch.testing.assert_close(INSTANCES["diagonal"].sample(9, seeded()), MEAN + z * scale)


@pytest.mark.parametrize("name", ["dense", "diagonal", "image"])
def test_gaussian_gradients_are_those_of_the_density(name):
    noise = INSTANCES[name]
    x = noise.sample(4, seeded(2)).requires_grad_(True)
    (grad,) = torch.autograd.grad(noise.log_prob(x).sum(), x)
    numeric = row_gradients(noise.log_prob, x)
    torch.testing.assert_close(grad, numeric, rtol=1e-6, atol=1e-6)


def test_gaussian_stores_its_parameters():
    mean, cov = MEAN.clone(), COV.clone()
    noise = Gaussian(mean, covariance=cov)
    mean.zero_()
    assert torch.equal(noise.mean, MEAN)
    torch.testing.assert_close(noise.covariance, COV)
    torch.testing.assert_close(INSTANCES["image"].covariance, SCALE.flatten().square().diag())


@pytest.mark.parametrize("name", ["dense", "image"])
def test_a_widened_gaussian_has_larger_variances(name):
    noise = INSTANCES[name]
    wider = noise.with_covariance_times(1.5)
    torch.testing.assert_close(wider.covariance, 1.5 * noise.covariance)
    assert torch.equal(wider.mean, noise.mean)
    peak = wider.log_prob(noise.mean[None]) - noise.log_prob(noise.mean[None])
    assert float(peak) == pytest.approx(-noise.mean.numel() / 2 * math.log(1.5))


ONE = torch.ones(2, dtype=DOUBLE)


@pytest.mark.parametrize(
    ("mean", "kwargs", "message"),
    [
        (torch.ones(2, dtype=torch.long), {"scale": 1.0}, "floating-point"),
        ([0.0, 0.0], {"scale": 1.0}, "floating-point"),
        (torch.tensor(0.0), {"scale": 1.0}, "shape of a row"),
        (torch.tensor([0.0, math.nan]), {"scale": 1.0}, "mean must be finite"),
        (ONE, {}, "either scale or covariance"),
        (ONE, {"scale": ONE, "covariance": ONE.diag()}, "either scale or covariance"),
        (ONE, {"scale": 0.0}, "positive"),
        (ONE, {"scale": torch.tensor([1.0, -1.0])}, "positive"),
        (ONE, {"scale": math.nan}, "positive and finite"),
        (ONE, {"scale": torch.tensor([1.0, math.inf])}, "positive and finite"),
        (ONE, {"scale": torch.ones(3)}, r"shape \(2,\)"),
        (ONE, {"scale": [1.0, 1.0]}, "list"),
        (ONE, {"covariance": torch.ones(3, 3)}, r"\(d, d\)"),
        (ONE.diag(), {"covariance": ONE.diag()}, "pass scale"),
        (ONE, {"covariance": torch.tensor([[1.0, 0.5], [0.0, 1.0]])}, "symmetric"),
        (ONE, {"covariance": torch.full((2, 2), math.nan)}, "finite"),
        (ONE, {"covariance": torch.ones(2, 2)}, "positive definite"),
        (ONE, {"covariance": torch.tensor([[1.0, 2.0], [2.0, 1.0]])}, "positive definite"),
    ],
)
def test_bad_gaussians_are_refused(mean, kwargs, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(mean, **kwargs)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def rows(n, seed=0):
    return MEAN + torch.randn(n, 3, generator=seeded(seed), dtype=DOUBLE) @ ROOT.t()


def test_an_unshrunk_fit_has_the_moments_of_the_rows():
    x = rows(200)
    fitted = Gaussian.fit(x, shrinkage=0.0)
    torch.testing.assert_close(fitted.mean, x.mean(0))
    torch.testing.assert_close(fitted.covariance, x.t().cov(correction=0))
    alone = Gaussian.fit(x.view(200, 3, 1), diagonal=True)
    torch.testing.assert_close(alone.scale, x.std(0, correction=0)[:, None])
    assert alone.domain == Real((3, 1))


@pytest.mark.parametrize(("n", "d"), [(30, 3), (20, 40)])
def test_the_shrinkage_is_that_of_ledoit_and_wolf(n, d):
    x = torch.randn(n, d, generator=seeded(), dtype=DOUBLE) @ torch.randn(
        d, d, generator=seeded(1), dtype=DOUBLE
    )
    scale = x.std(0, correction=0)
    truth, shrinkage = ledoit_wolf(((x - x.mean(0)) / scale).numpy())
    assert shrinkage > 0.01
    found = Gaussian.fit(x).covariance / torch.outer(scale, scale)
    np.testing.assert_allclose(found, truth, rtol=1e-6, atol=1e-8)


def test_a_fit_is_equivariant_to_units():
    x, unit = rows(30), torch.tensor([1e-4, 1.0, 1e5], dtype=DOUBLE)
    small, large = Gaussian.fit(x), Gaussian.fit(x * unit)
    torch.testing.assert_close(large.covariance, small.covariance * torch.outer(unit, unit))


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("shrinkage", ["auto", 0.2])
def test_weights_count_as_repeated_rows(diagonal, shrinkage):
    x = rows(6)
    weight = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 5.0], dtype=DOUBLE)
    repeated = x.repeat_interleave(weight.long(), 0)
    one = Gaussian.fit(x, weight, shrinkage, diagonal)
    other = Gaussian.fit(repeated, None, shrinkage, diagonal)
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.covariance, other.covariance)
    assert not torch.allclose(one.covariance, Gaussian.fit(x).covariance)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("diagonal", [True, False])
def test_constant_and_duplicated_columns_have_finite_densities(dtype, diagonal):
    x = rows(100).to(dtype)
    constant = torch.full((100, 1), 1e4 / 3).to(dtype)
    table = torch.cat([x, constant, 1000 * x[:, :1] + 7], 1)
    fitted = Gaussian.fit(table, diagonal=diagonal)
    assert fitted.mean.dtype == dtype
    assert fitted.log_prob(table).isfinite().all()
    assert fitted.sample(5, seeded()).isfinite().all()
    variance = fitted.covariance.diagonal()
    assert float(variance[3]) == pytest.approx(1.0, rel=1e-3)
    assert float(variance[4] / variance[0]) == pytest.approx(1e6, rel=1e-3)


def test_whole_numbers_that_doubles_hardly_tell_apart_are_a_constant_column():
    """Identifiers near 2^60, which vary by a few units in the last place."""
    x = rows(100).to(DOUBLE)
    identifiers = 2.0**60 + 256 * torch.arange(100, dtype=DOUBLE)[:, None] % 7
    fitted = Gaussian.fit(torch.cat([x, identifiers], 1))
    torch.testing.assert_close(fitted.covariance[:-1, :-1], Gaussian.fit(x).covariance)
    assert fitted.covariance[-1].tolist() == [0.0] * x.shape[1] + [1.0]


def test_one_row_is_the_mean_of_a_unit_normal():
    fitted = Gaussian.fit(torch.tensor([[2.0, 3.0]]))
    assert fitted.mean.tolist() == [2.0, 3.0]
    torch.testing.assert_close(fitted.covariance, torch.eye(2))


def test_a_singular_covariance_without_shrinkage_is_refused():
    x = rows(50)
    with pytest.raises(ValueError, match="shrinkage"):
        Gaussian.fit(torch.cat([x, x], 1), shrinkage=0.0)


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.ones(0, 2), {}, "n of at least 1"),
        (torch.ones(3), {}, "floating-point rows"),
        (torch.ones(3, 2, dtype=torch.long), {}, "floating-point rows"),
        ([[1.0, 2.0]], {}, "floating-point rows"),
        (torch.tensor([[1.0, 1.0], [math.nan, 1.0]]), {}, "row 1"),
        (torch.ones(3, 2, 2), {}, "diagonal=True"),
        (torch.ones(3, 2), {"weight": torch.ones(2)}, "number per row"),
        (torch.ones(3, 2), {"weight": torch.tensor([1.0, -1.0, 1.0])}, "non-negative"),
        (torch.ones(3, 2), {"weight": torch.zeros(3)}, "above zero"),
        (torch.ones(3, 2), {"shrinkage": 1.5}, "shrinkage"),
        (torch.ones(3, 2), {"shrinkage": "some"}, "shrinkage"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(x, kwargs, message):
    with pytest.raises(ValueError, match=message):
        Gaussian.fit(x, **kwargs)


# ------------------------------------------------------------------------------
# Uniform
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bits", "levels"])
def test_uniform_probabilities_sum_to_one_over_states(name, generator):
    noise = INSTANCES[name]
    states = torch.cat(list(noise.domain.enumerate(dtype=DOUBLE)))
    p = noise.log_prob(states).exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-12)
    draws = noise.sample(6000, generator)
    counts = (draws[:, None] == states).all(2).sum(0)
    assert chi_square(counts, p) > P_FLOOR


def test_a_uniform_density_is_one_over_the_volume(generator):
    noise = INSTANCES["box"]
    x = noise.sample(2000, generator)
    assert float(noise.log_prob(x)[0]) == pytest.approx(-4 * math.log(3.5))
    for column in x.flatten(1).t().numpy():
        assert scipy.stats.kstest(column, scipy.stats.uniform(-3, 3.5).cdf).pvalue > P_FLOOR
    mixed = INSTANCES["mixed"]
    level = mixed.log_prob(mixed.sample(10, generator))
    expected = torch.full_like(level, -2 * math.log(2) - 2 * math.log(3) - math.log(3))
    torch.testing.assert_close(level, expected)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("box", [[0.0, 0.0], [0.0, 0.6]]),
        ("box", [[0.0, -3.1], [0.0, 0.0]]),
        ("box", [[math.nan, 0.0], [0.0, 0.0]]),
        ("bits", [0.0, 1.0, 0.5]),
        ("levels", [1.0, 1.0, 0.0, 0.0, 1.0]),
        ("mixed", [0.0, 1.0, 0.0, 3.0, 0.0, 1.0, 0.0]),
    ],
)
def test_the_probability_outside_is_zero(name, row):
    noise = INSTANCES[name]
    x = torch.cat([noise.sample(1, seeded()), torch.tensor([row], dtype=DOUBLE)])
    inside, outside = noise.log_prob(x).tolist()
    assert inside > outside == -math.inf


def test_flips_of_uniform_bits_change_nothing():
    noise = INSTANCES["bits"]
    assert not noise.flip_log_ratio(noise.sample(5, seeded())).any()


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (Real((2,)), r"skebm\.distributions\.Gaussian"),
        (Real((2,), lower=0.0), r"skebm\.distributions\.Gaussian"),
        (Real((2,), upper=0.0), r"skebm\.distributions\.Gaussian"),
        (Real((2,), 0.0, math.inf), r"skebm\.distributions\.Gaussian"),
        (Mixed((Binary((2,)), Real((1,)))), r"skebm\.distributions\.Gaussian"),
        (Real((2,), 1.0, 1.0), "below the upper"),
        (Real((2,), 1.0, 0.0), "below the upper"),
    ],
)
def test_unbounded_domains_have_no_uniform_distribution(domain, message):
    with pytest.raises(ValueError, match=message):
        Uniform(domain)


def test_uniform_refuses_other_than_domains():
    with pytest.raises(TypeError, match="Domain"):
        Uniform((0.0, 1.0))
