"""Kernel densities: exact against scikit-learn and sums, fits by leaving rows out."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.neighbors import KernelDensity as SklearnKernelDensity

from skebm.base import Clamp, Real
from skebm.noise import GaussianMixture, KernelDensity, _bandwidth
from tests.oracle import DOUBLE, P_FLOOR, mean_is, seeded
from tests.test_noise_mixture import (
    assert_conditional_draws_are_exact,
    assert_conditionals_equal_quadrature,
    assert_contract,
    grid,
)


def rows(n, d, seed=0):
    return torch.randn(n, d, generator=seeded(seed), dtype=DOUBLE) @ torch.randn(
        d, d, generator=seeded(9), dtype=DOUBLE
    )


BANDWIDTH = torch.tensor([0.5, 1.0, 0.2], dtype=DOUBLE)
WEIGHTS = torch.rand(30, generator=seeded(4), dtype=DOUBLE)
INSTANCES = {
    "line": KernelDensity(rows(30, 1), 0.4, WEIGHTS),
    "plane": KernelDensity(rows(30, 2), BANDWIDTH[:2]),
    "space": KernelDensity(rows(30, 3), BANDWIDTH, WEIGHTS),
    "one": KernelDensity(rows(1, 2), 1.0),
}


def as_mixture(noise):
    covariance = noise.bandwidth.square().diag()
    return GaussianMixture(
        noise.weights, noise.centres, covariance.expand(len(noise.weights), *covariance.shape)
    )


@pytest.mark.parametrize("name", INSTANCES)
def test_all_keep_the_contract(name):
    assert_contract(INSTANCES[name])
    assert INSTANCES[name].domain == Real((INSTANCES[name].centres.shape[1],))


# ------------------------------------------------------------------------------
# The density
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTANCES)
def test_densities_and_slopes_are_those_of_the_mixture(name):
    noise = INSTANCES[name]
    x = 3 * torch.randn(50, noise.centres.shape[1], generator=seeded(), dtype=DOUBLE)
    value, slope = as_mixture(noise).log_prob_and_slope(x)
    torch.testing.assert_close(noise.log_prob(x), value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(noise.slope(x), slope, rtol=1e-7, atol=1e-9)


def test_densities_are_those_of_sklearn():
    centres, x = rows(40, 2), rows(10, 2, seed=1)
    truth = SklearnKernelDensity(bandwidth=0.3).fit(
        centres.numpy(), sample_weight=WEIGHTS.repeat(2)[:40]
    )
    found = KernelDensity(centres, 0.3, WEIGHTS.repeat(2)[:40])
    np.testing.assert_allclose(found.log_prob(x), truth.score_samples(x.numpy()), rtol=1e-7)


def test_densities_integrate_to_one():
    x, cell = grid(-15, 15, 3001, 1)
    assert float(INSTANCES["line"].log_prob(x).exp().sum()) * cell == pytest.approx(1, abs=1e-9)
    x, cell = grid(-12, 12, 401, 2)
    assert float(INSTANCES["plane"].log_prob(x).exp().sum()) * cell == pytest.approx(1, abs=1e-6)


def test_large_batches_are_cut(monkeypatch):
    noise = INSTANCES["space"]
    x = noise.sample(100, seeded())
    value, slope = noise.log_prob_and_slope(x)
    monkeypatch.setattr("skebm.noise._fitting.CHUNK", 30 * 7)
    torch.testing.assert_close(noise.log_prob(x), value)
    torch.testing.assert_close(noise.slope(x), slope)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_far_centres_and_rows_keep_their_digits(dtype):
    """Distances are products: of numbers up to 1e6 bandwidths, in double precision."""
    centres = torch.tensor([[0.0, 0.0], [1e3, 1.0], [1e3, 1.001]], dtype=dtype)
    noise = KernelDensity(centres, 0.001)
    x = centres + torch.tensor([[0.0, 0.0], [0.0, 0.0005], [0.0, 5.0]], dtype=dtype)
    off = (x[:, None].double() - centres.double()) / 0.001
    level = -2 * math.log(0.001) - math.log(math.tau) - math.log(3)
    truth = (-off.square().sum(2) / 2).logsumexp(1) + level
    torch.testing.assert_close(noise.log_prob(x).double(), truth, rtol=1e-5, atol=1e-3)
    far = torch.full((1, 2), 1e15, dtype=dtype)
    assert noise.log_prob(far).isfinite().all()
    assert noise.slope(far).isfinite().all()


@pytest.mark.parametrize("name", ["line", "space"])
def test_draws_follow_the_density(name, generator):
    noise = INSTANCES[name]
    x = noise.sample(20_000, generator)
    assert mean_is(x, noise.weights @ noise.centres) < 4.5
    for i, column in enumerate(x.t().numpy()):

        def cdf(t, i=i):
            z = (t[:, None] - noise.centres[:, i].numpy()) / float(noise.bandwidth[i])
            return scipy.stats.norm.cdf(z) @ noise.weights.numpy()

        assert scipy.stats.kstest(column, cdf).pvalue > P_FLOOR


def test_centres_of_no_weight_are_left_out():
    centres = rows(3, 2)
    noise = KernelDensity(centres, 1.0, torch.tensor([2.0, 0.0, 2.0]))
    assert torch.equal(noise.centres, centres[[0, 2]])
    assert noise.weights.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------
# Added noise, conditionals
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.0, 0.7, torch.tensor([0.1, 2.0, 1.0])])
def test_blurs_are_those_of_the_mixture(sigma):
    noise = INSTANCES["space"]
    x = 3 * torch.randn(20, 3, generator=seeded(), dtype=DOUBLE)
    truth = as_mixture(noise).blurred(sigma).log_prob(x)
    torch.testing.assert_close(noise.blurred(sigma).log_prob(x), truth)


@pytest.mark.parametrize("name", ["line", "plane", "space"])
def test_conditional_means_equal_quadrature(name):
    assert_conditionals_equal_quadrature(INSTANCES[name])


@pytest.mark.parametrize(("name", "known"), [("plane", 0), ("space", 1)])
def test_conditional_draws_are_exact(name, known, generator):
    assert_conditional_draws_are_exact(INSTANCES[name], known, generator)


def test_conditionals_of_many_rows_are_cut(monkeypatch):
    noise = INSTANCES["space"]
    x = noise.sample(50, seeded(1))
    mask = torch.rand(50, 3, generator=seeded(2)) < 0.5
    clamp = Clamp(mask, x)
    mean, draws = noise.given(clamp).mean, noise.given(clamp).sample(seeded(3))
    monkeypatch.setattr("skebm.noise._given.CHUNK", 30 * 7)
    torch.testing.assert_close(noise.given(clamp).mean, mean)
    torch.testing.assert_close(noise.given(clamp).sample(seeded(3)), draws)
    empty = noise.given(Clamp(mask[:0], x[:0]))
    assert empty.mean.shape == empty.sample(seeded()).shape == (0, 3)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def left_out_likelihood(x, factor):
    """Spelled out: each row under the kernels of the others, in turn."""
    h, total = factor * x.std(0, correction=0), 0.0
    for i in range(len(x)):
        others = torch.cat([x[:i], x[i + 1 :]])
        total += float(KernelDensity(others, h).log_prob(x[i : i + 1]))
    return total


def test_the_likelihood_leaves_each_row_out():
    x = rows(25, 2)
    z = (x - x.mean(0)) / x.std(0, correction=0)
    w = torch.ones(25, dtype=DOUBLE)
    index, count = _bandwidth.left_out(w)
    grid = _bandwidth._grid(z, w, index, count)
    for factor, coarse in zip(_bandwidth.FACTORS, grid, strict=True):
        found = _bandwidth.log_likelihood(z, w, index, count, factor)
        assert coarse == pytest.approx(found, rel=1e-9)
        # Up to what does not depend on the factor.
        shift = 25 * (math.log(math.tau) + float(x.std(0, correction=0).log().sum()))
        assert found - shift == pytest.approx(left_out_likelihood(x, factor), rel=1e-9)


def test_the_bandwidth_is_the_likeliest():
    x = rows(80, 2)
    found = KernelDensity.fit(x).bandwidth / x.std(0, correction=0)
    assert float(found[0]) == pytest.approx(float(found[1]))
    best = left_out_likelihood(x, float(found[0]))
    assert all(left_out_likelihood(x, float(found[0]) * r) < best for r in (0.9, 1.1))
    assert all(left_out_likelihood(x, f) <= best for f in _bandwidth.FACTORS)


def test_weights_count_as_repeated_rows():
    x = rows(40, 2)
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    one, other = (
        KernelDensity.fit(x, weight),
        KernelDensity.fit(x.repeat_interleave(weight.long(), 0)),
    )
    torch.testing.assert_close(one.bandwidth, other.bandwidth)
    at = rows(10, 2, seed=2)
    torch.testing.assert_close(one.log_prob(at), other.log_prob(at))
    assert not torch.allclose(one.bandwidth, KernelDensity.fit(x).bandwidth)


def test_weights_count_where_rows_are_spread(monkeypatch):
    monkeypatch.setattr(_bandwidth, "MAX_ROWS", 30)
    x = rows(40, 2)
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    one, other = (
        KernelDensity.fit(x, weight),
        KernelDensity.fit(x.repeat_interleave(weight.long(), 0)),
    )
    torch.testing.assert_close(one.bandwidth, other.bandwidth)
    index, count = _bandwidth.left_out(torch.ones(300, dtype=DOUBLE))
    assert count.sum() == 30
    assert index.diff().unique().tolist() == [10]


def test_a_fit_knows_no_units():
    x, unit = rows(60, 3), torch.tensor([1e-4, 1.0, 1e5], dtype=DOUBLE)
    torch.testing.assert_close(
        KernelDensity.fit(x * unit).bandwidth, KernelDensity.fit(x).bandwidth * unit
    )
    given = KernelDensity.fit(x, bandwidth=0.3)
    torch.testing.assert_close(given.bandwidth, 0.3 * x.std(0, correction=0))


def test_constant_columns_do_not_count():
    x = rows(50, 2)
    found = KernelDensity.fit(torch.cat([x, torch.full((50, 1), 1e4 / 3)], 1))
    torch.testing.assert_close(found.bandwidth[:2], KernelDensity.fit(x).bandwidth)
    assert float(found.bandwidth[2]) == 1.0


def test_more_rows_need_less_bandwidth():
    """About Scott's n^(-1/5) on normal rows."""
    for n in (100, 5000):
        x = torch.randn(n, 1, generator=seeded(), dtype=DOUBLE)
        found = float(KernelDensity.fit(x).bandwidth / x.std(0, correction=0))
        assert 0.5 < found / n ** (-1 / 5) < 1.6


HARD = {
    "duplicates": (torch.tensor([[0.0, 1.0], [2.0, 0.0]]).repeat_interleave(50, 0), 0.01),
    "all constant": (torch.full((9, 2), 3.3), 1.0),
    "constant": (torch.cat([rows(50, 2), torch.full((50, 1), 1e4 / 3)], 1), None),
    "one row": (torch.tensor([[1.0, 2.0]]), 1.0),
    "two rows": (torch.tensor([[1.0, 2.0], [3.0, 2.5]]), None),
    "fewer rows than columns": (torch.randn(4, 9, generator=seeded()), None),
    "copies": (rows(50, 2)[:, [0, 0, 1]], None),
    "outliers": (torch.cat([rows(100, 3), torch.full((1, 3), 1e6)]), None),
    "spike": (torch.cat([torch.zeros(60, 2), torch.randn(60, 2, generator=seeded())]), None),
    "large": (1e12 + 1e7 * rows(50, 2), None),
}


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("name", HARD)
def test_hard_rows_give_finite_densities(name, dtype):
    x, factor = HARD[name]
    x = x.to(dtype)
    found = KernelDensity.fit(x)
    assert found.bandwidth.dtype == dtype
    assert found.log_prob(x).isfinite().all()
    assert found.slope(x).isfinite().all()
    assert found.sample(50, seeded()).isfinite().all()
    if factor is not None:
        spread = x.double().std(0, correction=0)
        spread[spread == 0] = 1
        torch.testing.assert_close(
            (found.bandwidth / spread).mean().double(),
            torch.tensor(factor, dtype=DOUBLE),
            rtol=0.03,
            atol=0,
        )


def test_weights_may_be_shares():
    x = rows(50, 2)
    found = KernelDensity.fit(x, torch.full((50,), 0.02))
    torch.testing.assert_close(found.bandwidth, KernelDensity.fit(x).bandwidth)


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.ones(0, 2), {}, "n of at least 1"),
        (torch.ones(3, 2, 2), {}, "flat rows"),
        (torch.tensor([[1.0], [math.nan]]), {}, "row 1"),
        (torch.ones(3, 2), {"weight": torch.ones(2)}, "number a row"),
        (torch.ones(3, 2), {"weight": -torch.ones(3)}, "non-negative"),
        (torch.ones(3, 2), {"bandwidth": "scott"}, "auto"),
        (torch.ones(3, 2), {"bandwidth": 0.0}, "positive"),
        (torch.ones(3, 2), {"bandwidth": [1.0]}, "bandwidth must be a number"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(x, kwargs, message):
    with pytest.raises(ValueError, match=message):
        KernelDensity.fit(x, **kwargs)


@pytest.mark.parametrize(
    ("centres", "bandwidth", "weights", "message"),
    [
        (torch.ones(2, 2, dtype=torch.long), 1.0, None, "floating-point"),
        (torch.ones(2), 1.0, None, r"\(m, d\)"),
        (torch.ones(0, 2), 1.0, None, "at least one row"),
        (torch.full((2, 2), math.nan), 1.0, None, "finite"),
        (torch.ones(2, 2), 0.0, None, "bandwidth must be positive"),
        (torch.ones(2, 2), torch.ones(3), None, r"shape \(2,\)"),
        (torch.ones(2, 2), 1.0, torch.ones(3), "weights must be a tensor"),
        (torch.ones(2, 2), 1.0, torch.zeros(2), "not all zero"),
        (torch.ones(2, 2), 1.0, torch.tensor([1.0, -1.0]), "non-negative"),
    ],
)
def test_bad_kernel_densities_are_refused(centres, bandwidth, weights, message):
    with pytest.raises(ValueError, match=message):
        KernelDensity(centres, bandwidth, weights)
