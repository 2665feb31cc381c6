"""Truncated normal distributions: exact in the tails, fits that stay finite."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch

from skebm.base import Clamp, Real
from skebm.distributions import Gaussian, TruncatedGaussian, bounded
from tests.distributions.test_mixture import assert_contract, grid
from tests.support.oracle import DOUBLE, P_FLOOR, mean_is, seeded

INF = math.inf
LOWER = torch.tensor([-1.0, 0.0, -INF, -INF, 0.0], dtype=DOUBLE)
UPPER = torch.tensor([2.0, INF, 3.0, INF, 1.0], dtype=DOUBLE)
MEAN = torch.tensor([0.5, -1.0, 4.0, 1.0, 3.0], dtype=DOUBLE)
SCALE = torch.tensor([1.0, 0.7, 2.0, 3.0, 0.6], dtype=DOUBLE)
INSTANCES = {
    "own bounds": TruncatedGaussian(MEAN, SCALE, LOWER, UPPER),
    "box": TruncatedGaussian(MEAN, SCALE, -2.0, 5.0),
    "half": TruncatedGaussian(MEAN, 0.5, lower=-2.5),
    "free": TruncatedGaussian(MEAN, SCALE),
    "tail": TruncatedGaussian(MEAN - 12, SCALE, lower=0.0),
}


@pytest.mark.parametrize("name", INSTANCES)
def test_distributions_satisfy_the_contract(name):
    assert_contract(INSTANCES[name])


def test_domains_have_the_bounds():
    assert INSTANCES["box"].domain == Real((5,), -2.0, 5.0)
    assert INSTANCES["half"].domain == Real((5,), -2.5)
    assert INSTANCES["free"].domain == INSTANCES["own bounds"].domain == Real((5,))
    low = torch.tensor([0.0, -1.0])
    assert TruncatedGaussian(torch.zeros(2), 1.0, low, 3.0).domain == Real((2,), -1.0, 3.0)


# ------------------------------------------------------------------------------
# The density
# ------------------------------------------------------------------------------


def scipy_of(noise):
    mean, scale = noise.mean.numpy(), noise.scale.numpy()
    a, b = (noise.lower.numpy() - mean) / scale, (noise.upper.numpy() - mean) / scale
    return scipy.stats.truncnorm(a, b, mean, scale)


@pytest.mark.parametrize("name", INSTANCES)
def test_densities_are_those_of_scipy(name):
    noise = INSTANCES[name]
    x = noise.sample(50, seeded())
    np.testing.assert_allclose(
        noise.log_prob(x), scipy_of(noise).logpdf(x.numpy()).sum(1), rtol=1e-9
    )
    np.testing.assert_allclose(noise.expectation, scipy_of(noise).mean(), rtol=1e-8, atol=1e-9)


def test_densities_integrate_to_one():
    x, cell = grid(-1.0, 2.0, 20_001, 1)
    one = TruncatedGaussian(MEAN[:1], SCALE[:1], -1.0, 2.0)
    p = one.log_prob(x).exp()
    assert float(p.sum() - (p[0] + p[-1]) / 2) * cell == pytest.approx(1, abs=1e-8)
    two = TruncatedGaussian(MEAN[:2], SCALE[:2], -1.0, 2.0)
    x, cell = grid(-1.0, 2.0, 1001, 2)
    p = two.log_prob(x).exp().view(1001, 1001)
    p[[0, -1]] /= 2
    p[:, [0, -1]] /= 2
    assert float(p.sum()) * cell == pytest.approx(1, abs=1e-5)


def test_without_bounds_it_is_a_gaussian():
    x = torch.randn(20, 5, generator=seeded(), dtype=DOUBLE)
    truth = Gaussian(MEAN, SCALE)
    torch.testing.assert_close(INSTANCES["free"].log_prob(x), truth.log_prob(x))
    torch.testing.assert_close(INSTANCES["free"].score(x), truth.score(x))


@pytest.mark.parametrize("name", ["own bounds", "box"])
def test_the_probability_outside_is_zero(name):
    noise = INSTANCES[name]
    x = noise.sample(3, seeded())
    x[1, 0], x[2, 0] = noise.lower[0] - 1e-9, noise.upper[0] + 1
    assert noise.log_prob(x).isfinite().tolist() == [True, False, False]
    assert noise.log_prob(x)[1] == -INF
    assert noise.score(x).any(1).tolist() == [True, False, False]
    ends = torch.stack([noise.lower, noise.upper]).clamp(-9, 9)
    assert noise.log_prob(ends).isfinite().all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (-1.0, 2.0),
        (-INF, INF),
        (0.0, INF),
        (5.0, INF),
        (-INF, -40.0),
        (30.0, 31.0),
        (-31.0, -30.0),
        (0.0, 1e-6),
        (20.0, 20.0001),
        (1000.0, 1000.5),
    ],
)
def test_masses_do_not_lose_precision(a, b):
    """Against the integral of phi relative to its largest value, and mirrored."""
    start = min(max(a, 0.0), b) if b > 0 else b
    reach = min(b - a, 40.0)
    low, high = max(a, start - reach), min(b, start + reach)
    t = np.linspace(low - start, high - start, 400_001)
    if start:  # the density falls off within about 1 / start
        t = np.sign(t) * np.minimum(np.abs(t), 60 / abs(start))
        t = np.linspace(t.min(), t.max(), 400_001)
    truth = math.log(scipy.integrate.trapezoid(np.exp(-t * (t / 2 + start)), t)) - start**2 / 2
    truth -= math.log(math.tau) / 2
    one, other = (torch.tensor([v], dtype=DOUBLE) for v in (a, b))
    assert float(bounded.log_mass(one, other)) == pytest.approx(truth, rel=1e-12, abs=1e-6)
    mirrored = bounded.log_mass(-other, -one)
    assert float(mirrored) == pytest.approx(truth, rel=1e-12, abs=1e-6)


def test_log_probabilities_are_inverted():
    y = torch.tensor([-1e-3, -1.0, -50.0, -499.0, -501.0, -1e4, -4e8], dtype=DOUBLE)
    truth = scipy.special.ndtri_exp(y.numpy())
    np.testing.assert_allclose(bounded.inverse_log_ndtr(y), truth, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_distant_means_do_not_lose_precision(dtype):
    """A mean a million scales below the bound: an exponential density, in either precision."""
    noise = TruncatedGaussian(torch.full((1,), -1e3, dtype=dtype), 1e-3, lower=0.0)
    rate = 1e9
    x = torch.tensor([[0.0], [1e-9], [4e-9]], dtype=dtype)
    truth = math.log(rate) - rate * x[:, 0]
    torch.testing.assert_close(noise.log_prob(x), truth, rtol=1e-5, atol=1e-5)
    draws = noise.sample(4000, seeded())[:, 0].double().numpy()
    assert scipy.stats.kstest(draws, scipy.stats.expon(scale=1e-9).cdf).pvalue > P_FLOOR
    assert float(noise.expectation) == pytest.approx(1e-9, rel=1e-2)


# ------------------------------------------------------------------------------
# Draws
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTANCES)
def test_draws_follow_the_density(name, generator):
    noise = INSTANCES[name]
    x = noise.sample(5000, generator)
    law = scipy_of(noise)
    p = [
        scipy.stats.kstest(column, lambda t, i=i: law.cdf(t[:, None])[:, i]).pvalue
        for i, column in enumerate(x.numpy().T)
    ]
    assert min(p) > P_FLOOR
    single = noise.to("cpu", torch.float32)
    assert single.domain.contains(single.sample(5000, generator)).all()
    assert single.log_prob(single.sample(5000, generator)).isfinite().all()


def test_known_columns_are_clamped(generator):
    noise = INSTANCES["own bounds"]
    x = noise.sample(5000, generator)
    mask = torch.zeros(5000, 5, dtype=torch.bool)
    mask[:, 1] = True
    given = noise.given(Clamp(mask, torch.where(mask, x, math.nan)))
    draws = given.sample(generator)
    assert torch.equal(draws[:, 1], x[:, 1])
    assert mean_is(draws[:, [0, 2, 3, 4]], noise.expectation[[0, 2, 3, 4]]) < 4.5
    assert torch.equal(given.mean[:, 1], x[:, 1])
    torch.testing.assert_close(given.mean[7, [0, 2, 3, 4]], noise.expectation[[0, 2, 3, 4]])
    with pytest.raises(TypeError, match="added normal noise"):
        noise.convolved(1.0)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def test_fits_maximise_the_likelihood():
    """By SciPy's simplex search on each column, from the truth."""
    noise = INSTANCES["own bounds"]
    x = noise.sample(400, seeded(1))
    found = TruncatedGaussian.fit(x, None, LOWER, UPPER)
    assert torch.equal(found.lower, LOWER)
    for i in range(5):
        column = x[:, i].numpy()

        def cost(theta, i=i, column=column):
            mean, scale = theta[0], math.exp(theta[1])
            a, b = (float(LOWER[i]) - mean) / scale, (float(UPPER[i]) - mean) / scale
            return -scipy.stats.truncnorm.logpdf(column, a, b, mean, scale).mean()

        start = [float(MEAN[i]), math.log(float(SCALE[i]))]
        options = {"xatol": 1e-8, "fatol": 1e-12, "maxiter": 4000, "maxfev": 4000}
        best = scipy.optimize.minimize(cost, start, method="Nelder-Mead", options=options)
        here = cost([float(found.mean[i]), math.log(float(found.scale[i]))])
        limited = math.exp(best.x[1]) > 29 * column.std()
        assert here <= best.fun + (1e-3 if limited else 1e-8)


@pytest.mark.full
def test_fits_recover_the_truth():
    noise = TruncatedGaussian(MEAN[:3], SCALE[:3], LOWER[:3], UPPER[:3])
    x = noise.sample(200_000, seeded(2))
    found = TruncatedGaussian.fit(x, None, LOWER[:3], UPPER[:3])
    torch.testing.assert_close(found.mean, noise.mean, rtol=0.1, atol=0.2)
    torch.testing.assert_close(found.scale, noise.scale, rtol=0.1, atol=0.0)
    free = TruncatedGaussian.fit(x)
    torch.testing.assert_close(free.mean, x.mean(0))
    torch.testing.assert_close(free.scale, x.std(0, correction=0))


def test_weights_count_as_repeated_rows():
    x = INSTANCES["own bounds"].sample(40, seeded())
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    one = TruncatedGaussian.fit(x, weight, LOWER, UPPER)
    other = TruncatedGaussian.fit(x.repeat_interleave(weight.long(), 0), None, LOWER, UPPER)
    at = INSTANCES["own bounds"].sample(10, seeded(2))
    torch.testing.assert_close(one.log_prob(at), other.log_prob(at))
    assert not torch.allclose(one.mean, TruncatedGaussian.fit(x, None, LOWER, UPPER).mean)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_columns_without_a_finite_estimate_stay_finite(sign):
    """Exponential, heavier than that, uniform, at both ends, nearly all at one end."""
    n = 2000
    u = (torch.arange(n, dtype=DOUBLE) + 0.5) / n
    few = torch.zeros(n, dtype=DOUBLE)
    few[0] = 1.0
    ends = (u > 0.4).double()
    x = torch.stack([-u.log(), u.log().square(), u, ends, few], 1)
    lower, upper = 0.0, torch.tensor([INF, INF, 1.0, 1.0, INF], dtype=DOUBLE)
    if sign < 0:
        lower, upper = -upper, -lower
    found = TruncatedGaussian.fit(sign * x, None, lower, upper)
    for tensor in (found.mean, found.scale, found.log_prob(sign * x)):
        assert tensor.isfinite().all()
    assert (found.scale <= 30.001 * x.std(0, correction=0)).all()
    torch.testing.assert_close(sign * found.expectation, x.mean(0), rtol=1e-5, atol=1e-8)
    truth = float((-x[:, 0]).mean())  # the exponential distribution of rate 1
    mine = TruncatedGaussian.fit(x[:, :1], lower=0.0).log_prob(x[:, :1]).mean()
    assert float(mine) == pytest.approx(truth, abs=2e-3)
    single = TruncatedGaussian.fit((sign * x).float(), None, lower, upper)
    assert single.mean.dtype == torch.float32
    torch.testing.assert_close(
        single.log_prob((sign * x).float()).double(), found.log_prob(sign * x), rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(5, 2),
        torch.ones(1, 2),
        torch.tensor([[0.0, 3.3]] * 9 + [[1e6, 3.3]]),
        torch.rand(3, 9, generator=seeded()),
    ],
)
def test_degenerate_rows_give_finite_densities(x, dtype):
    x = x.to(dtype)
    found = TruncatedGaussian.fit(x, lower=0.0)
    assert found.log_prob(x).isfinite().all()
    assert found.score(x).isfinite().all()
    draws = found.sample(50, seeded())
    assert found.domain.contains(draws).all()
    assert found.expectation.isfinite().all()


def test_a_fit_is_equivariant_to_units():
    x, unit = INSTANCES["box"].sample(50, seeded()), 1e-5
    small = TruncatedGaussian.fit(x * unit, None, -2 * unit, 5 * unit)
    large = TruncatedGaussian.fit(x, None, -2.0, 5.0)
    torch.testing.assert_close(small.scale, large.scale * unit, rtol=1e-5, atol=0)


def test_rounded_bounds_contain_rounded_rows():
    x = torch.full((3, 1), 0.1)
    x[0] = 0.05
    found = TruncatedGaussian.fit(x, upper=0.1)
    assert found.log_prob(x).isfinite().all()
    assert found.to("cpu", DOUBLE).log_prob(torch.full((1, 1), 0.1, dtype=DOUBLE)).isfinite().all()


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.ones(0, 2), {}, "n of at least 1"),
        (torch.ones(3, 2, 2), {}, "flat rows"),
        (torch.ones(3, 2), {"weight": torch.zeros(3)}, "above zero"),
        (torch.tensor([[1.0], [-1.0]]), {"lower": 0.0}, "row 1 is not: clip"),
        (torch.tensor([[1.0], [-1.0]]), {"upper": 0.0}, "row 0 is not"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(x, kwargs, message):
    with pytest.raises(ValueError, match=message):
        TruncatedGaussian.fit(x, **kwargs)


@pytest.mark.parametrize(
    ("mean", "scale", "lower", "upper", "message"),
    [
        (torch.ones(2, dtype=torch.long), 1.0, None, None, "floating-point"),
        (torch.ones(2, 2), 1.0, None, None, r"\(d,\)"),
        (torch.full((2,), INF), 1.0, None, None, "finite"),
        (torch.ones(2), 0.0, None, None, "scale must be positive"),
        (torch.ones(2), 1.0, 1.0, 1.0, "below upper"),
        (torch.ones(2), 1.0, torch.ones(3), None, "lower must be None"),
        (torch.ones(2), 1.0, None, math.nan, "upper must be None"),
        (torch.ones(2), 1.0, None, -INF, "below upper|minus infinity"),
        (torch.ones(2), 1.0, "0", None, "lower must be None"),
    ],
)
def test_bad_distributions_are_refused(mean, scale, lower, upper, message):
    with pytest.raises(ValueError, match=message):
        TruncatedGaussian(mean, scale, lower, upper)
