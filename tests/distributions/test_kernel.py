"""Kernel densities: exact against scikit-learn and sums, leave-one-out fits."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.neighbors import KernelDensity as SklearnKernelDensity

from skebm.base import Clamp, Real
from skebm.distributions import GaussianMixture, KernelDensity, kernel
from tests.distributions.test_mixture import (
    assert_conditional_draws_are_exact,
    assert_conditionals_equal_quadrature,
    assert_contract,
    grid,
)
from tests.support.oracle import DOUBLE, P_FLOOR, finite_difference, mean_is, seeded
from tests.support.tiers import leading


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
FACTORS = torch.rand(30, generator=seeded(5), dtype=DOUBLE) + 0.3
LOCAL = {
    "local line": KernelDensity(rows(30, 1), 0.4, WEIGHTS, factors=FACTORS),
    "local space": KernelDensity(rows(30, 3), BANDWIDTH, factors=FACTORS),
}
INSTANCES |= LOCAL


def scales(centres, n_scales, weights=None, seed=7):
    """Kernels of random covariances and mixing weights."""
    d = centres.shape[1]
    size = torch.tensor([0.3, 1.0, 0.1, 2.0], dtype=DOUBLE)[:n_scales, None, None]
    root = size * (
        torch.eye(d, dtype=DOUBLE)
        + 0.5 * torch.randn(n_scales, d, d, generator=seeded(seed), dtype=DOUBLE)
    )
    mixing_weights = torch.rand(n_scales, generator=seeded(seed), dtype=DOUBLE) + 0.1
    return KernelDensity(
        centres, weights=weights, covariances=root @ root.mT, mixing_weights=mixing_weights
    )


SEVERAL = {
    "several line": scales(rows(30, 1), 2, WEIGHTS),
    "several plane": scales(rows(20, 2), 3),
    "several space": scales(rows(30, 3), 4, WEIGHTS),
    "several one": scales(rows(1, 2), 1),
}
INSTANCES |= SEVERAL


def as_mixture(noise):
    """Spelled out: a component for each scale of each centre."""
    covariances = noise.kernel_covariances
    mixing_weights = (
        torch.ones(1, dtype=DOUBLE) if noise.mixing_weights is None else noise.mixing_weights
    )
    m = len(noise.weights)
    covariances = covariances.repeat_interleave(m, 0)
    if noise.factors is not None:
        covariances = covariances * noise.factors.square()[:, None, None]
    return GaussianMixture(
        torch.outer(mixing_weights, noise.weights).flatten(),
        noise.centres.repeat(len(mixing_weights), 1),
        covariances,
    )


@pytest.mark.parametrize("name", INSTANCES)
def test_distributions_satisfy_the_contract(name):
    assert_contract(INSTANCES[name])
    assert INSTANCES[name].domain == Real((INSTANCES[name].centres.shape[1],))


# ------------------------------------------------------------------------------
# The density
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTANCES)
def test_densities_and_scores_equal_those_of_the_mixture(name):
    noise = INSTANCES[name]
    x = 3 * torch.randn(50, noise.centres.shape[1], generator=seeded(), dtype=DOUBLE)
    value, score = as_mixture(noise).log_prob_and_score(x)
    torch.testing.assert_close(noise.log_prob(x), value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(noise.score(x), score, rtol=1e-7, atol=1e-9)


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
    x, cell = grid(-15, 15, 3001, 1)
    for name in ("several line", "local line"):
        found = INSTANCES[name].log_prob(x).exp().sum()
        assert float(found) * cell == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("name", ["several line", "several space"])
def test_several_scales_are_sums_of_normal_densities(name):
    noise = INSTANCES[name]
    x = 2 * torch.randn(10, noise.centres.shape[1], generator=seeded(), dtype=DOUBLE)
    truth = 0.0
    for mixing, covariance in zip(noise.mixing_weights, noise.covariances, strict=True):
        for weight, centre in zip(noise.weights, noise.centres, strict=True):
            normal = scipy.stats.multivariate_normal(centre, covariance)
            truth = truth + float(mixing * weight) * normal.pdf(x)
    np.testing.assert_allclose(noise.log_prob(x), np.log(truth), rtol=1e-9)


def test_one_diagonal_scale_is_a_bandwidth():
    noise = INSTANCES["space"]
    same = KernelDensity(
        noise.centres, weights=noise.weights, covariances=BANDWIDTH.square().diag()[None]
    )
    x = noise.sample(20, seeded(1))
    torch.testing.assert_close(same.log_prob(x), noise.log_prob(x))
    torch.testing.assert_close(same.score(x), noise.score(x))
    torch.testing.assert_close(same.covariances, noise.covariances)
    assert noise.kernel_covariances.shape == (1, 3, 3)
    assert same.bandwidth is None
    assert noise.to("cpu", torch.float32).kernel_covariances.dtype == DOUBLE


COUNTS = torch.tensor([1.0, 2.0, 1.0, 3.0, 0.5], dtype=DOUBLE)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("n_scales", [0, 3])
def test_a_centre_can_be_left_out_for_each_row(n_scales, dtype, monkeypatch):
    """Whatever its weight: the weights of the others are normalised again."""
    centres = rows(5, 2).to(dtype)

    def kernels(counts):
        if n_scales:
            return scales(centres.double(), n_scales, counts).to("cpu", dtype)
        return KernelDensity(centres, BANDWIDTH[:2].to(dtype), counts)

    monkeypatch.setattr("skebm.distributions._fitting.CHUNK", 35)
    noise, without = kernels(COUNTS), torch.tensor([3, 0, 1, 4, 2, 2])
    x = centres[without] + 0.1 * torch.randn(6, 2, generator=seeded()).to(dtype)
    value, score = noise.log_prob_and_score(x, without)
    for i, j in enumerate(without.tolist()):
        fewer = COUNTS.clone()
        fewer[j] = 0
        truth = kernels(fewer).log_prob_and_score(x[[i]])
        torch.testing.assert_close(value[[i]], truth[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(score[[i]], truth[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(noise.log_prob(x, without), value)
    torch.testing.assert_close(noise.score(x, without.int()), score)
    convolved = noise.convolved(0.3).log_prob(x, without)
    fewer = kernels(COUNTS * (torch.arange(5) != 3)).convolved(0.3)
    torch.testing.assert_close(convolved[:1], fewer.log_prob(x[:1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["space", "several space"])
def test_scores_without_a_centre_are_gradients(name):
    noise = INSTANCES[name]
    without = torch.arange(10)
    x = (noise.centres[:10] + 0.05).requires_grad_(True)
    (grad,) = torch.autograd.grad(noise.log_prob(x, without).sum(), x)
    score = noise.score(x, without)
    torch.testing.assert_close(score, grad)
    (bend,) = torch.autograd.grad(score.sum(), x)
    numeric = finite_difference(lambda at: noise.score(at, without).sum(), x.detach())
    torch.testing.assert_close(bend, numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (torch.tensor([0, 1]), "one for each row"),
        (torch.tensor([0.0, 1.0, 2.0]), "integers"),
        (torch.tensor([True, False, True]), "integers"),
        ([0, 1, 2], "integers"),
        (torch.tensor([0, 1, -1]), "0 to 29"),
        (torch.tensor([0, 1, 30]), "0 to 29"),
    ],
)
def test_bad_numbers_of_centres_are_refused(without, message):
    noise = INSTANCES["space"]
    for function in (noise.log_prob, noise.score, noise.log_prob_and_score):
        with pytest.raises(ValueError, match=message):
            function(noise.centres[:3], without)


def test_the_only_centre_cannot_be_left_out():
    noise, x = INSTANCES["several one"], torch.zeros(1, 2, dtype=DOUBLE)
    with pytest.raises(ValueError, match="only centre cannot be left out"):
        noise.log_prob(x, torch.tensor([0]))
    assert noise.log_prob(x[:0], torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("name", ["space", "several space"])
def test_large_batches_are_processed_in_chunks(name, monkeypatch):
    noise = INSTANCES[name]
    x = noise.sample(100, seeded())
    value, score = noise.log_prob_and_score(x)
    monkeypatch.setattr("skebm.distributions._fitting.CHUNK", 30 * 7)
    torch.testing.assert_close(noise.log_prob(x), value)
    torch.testing.assert_close(noise.score(x), score)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_distant_centres_and_rows_do_not_lose_precision(dtype):
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
    assert noise.score(far).isfinite().all()


@pytest.mark.parametrize("name", leading(2, ["line", "several line", "space", "several space"]))
def test_draws_follow_the_density(name, generator):
    noise = INSTANCES[name]
    x = noise.sample(20_000, generator)
    assert mean_is(x, noise.weights @ noise.centres) < 4.5
    for i, column in enumerate(x.t().numpy()):

        def cdf(t, i=i):
            mixture = as_mixture(noise)
            h = mixture.covariances[:, i, i].sqrt().numpy()
            z = (t[:, None] - mixture.means[:, i].numpy()) / h
            return scipy.stats.norm.cdf(z) @ mixture.weights.numpy()

        assert scipy.stats.kstest(column, cdf).pvalue > P_FLOOR


def test_centres_of_weight_zero_are_removed():
    centres = rows(3, 2)
    noise = KernelDensity(centres, 1.0, torch.tensor([2.0, 0.0, 2.0]))
    assert torch.equal(noise.centres, centres[[0, 2]])
    assert noise.weights.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------
# Added noise, conditionals
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.0, 0.7, torch.tensor([0.1, 2.0, 1.0])])
@pytest.mark.parametrize("name", ["space", "several space"])
def test_convolutions_equal_those_of_the_mixture(name, sigma):
    noise = INSTANCES[name]
    x = 3 * torch.randn(20, 3, generator=seeded(), dtype=DOUBLE)
    truth = as_mixture(noise).convolved(sigma).log_prob(x)
    torch.testing.assert_close(noise.convolved(sigma).log_prob(x), truth)


@pytest.mark.parametrize(
    "name",
    leading(2, ["plane", "several plane", "line", "space", "several line", "several space"]),
)
def test_conditional_means_equal_quadrature(name):
    assert_conditionals_equal_quadrature(INSTANCES[name])


@pytest.mark.parametrize("name", ["space", "local space", "several space"])
def test_conditional_means_are_those_of_the_mixture(name):
    noise = INSTANCES[name]
    clamp = Clamp(torch.rand(50, 3, generator=seeded(2)) < 0.5, noise.sample(50, seeded(1)))
    torch.testing.assert_close(noise.given(clamp).mean, as_mixture(noise).given(clamp).mean)


@pytest.mark.parametrize(
    ("name", "known"),
    [("plane", 0), ("space", 1), ("local space", 1), ("several plane", 1), ("several space", 2)],
)
def test_conditional_draws_are_exact(name, known, generator):
    assert_conditional_draws_are_exact(INSTANCES[name], known, generator)


@pytest.mark.parametrize("name", ["space", "several space"])
def test_conditionals_of_many_rows_are_processed_in_chunks(name, monkeypatch):
    noise = INSTANCES[name]
    x = noise.sample(50, seeded(1))
    mask = torch.rand(50, 3, generator=seeded(2)) < 0.5
    clamp = Clamp(mask, x)
    mean, draws = noise.given(clamp).mean, noise.given(clamp).sample(seeded(3))
    monkeypatch.setattr("skebm.distributions.conditionals.given.CHUNK", 30 * 7)
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
    index, count = kernel.rows_to_leave_out(w)
    grid = kernel._grid_scores(z, w, index, count)
    for factor, coarse in zip(kernel.FACTORS, grid, strict=True):
        found = kernel.log_likelihood(z, w, index, count, factor)
        assert coarse == pytest.approx(found, rel=1e-9)
        # Up to what does not depend on the factor.
        shift = 25 * (math.log(math.tau) + float(x.std(0, correction=0).log().sum()))
        assert found - shift == pytest.approx(left_out_likelihood(x, factor), rel=1e-9)


def test_the_bandwidth_maximises_the_likelihood():
    x = rows(80, 2)
    found = KernelDensity.fit(x).bandwidth / x.std(0, correction=0)
    assert float(found[0]) == pytest.approx(float(found[1]))
    best = left_out_likelihood(x, float(found[0]))
    assert all(left_out_likelihood(x, float(found[0]) * r) < best for r in (0.9, 1.1))
    assert all(left_out_likelihood(x, f) <= best for f in kernel.FACTORS)


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
    monkeypatch.setattr(kernel, "MAX_ROWS", 30)
    x = rows(40, 2)
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    one, other = (
        KernelDensity.fit(x, weight),
        KernelDensity.fit(x.repeat_interleave(weight.long(), 0)),
    )
    torch.testing.assert_close(one.bandwidth, other.bandwidth)
    index, count = kernel.rows_to_leave_out(torch.ones(300, dtype=DOUBLE))
    assert count.sum() == 30
    assert index.diff().unique().tolist() == [10]


# ------------------------------------------------------------------------------
# Bandwidths by neighbours
# ------------------------------------------------------------------------------


def neighbour_distance(x, k):
    """Of each row to its k-th nearest other row, in standard deviations of the columns."""
    z = x / x.std(0, correction=0)
    distance = (z[:, None] - z).square().sum(2).sqrt().fill_diagonal_(math.inf)
    return distance.sort(1).values[:, k - 1]


@pytest.mark.parametrize("k", [1, 5])
def test_bandwidths_are_in_proportion_to_distances(k):
    x = rows(60, 2)
    found, truth = KernelDensity.fit(x, n_neighbours=k).factors, neighbour_distance(x, k)
    truth = truth / truth.sort().values[(len(truth) - 1) // 2]
    copies = KernelDensity.fit(x.repeat(3, 1), n_neighbours=k).factors
    torch.testing.assert_close(copies, found)
    torch.testing.assert_close(found, truth.clamp(min=0.1))


def local_left_out_likelihood(q, h):
    """Mean over centres of the log-density of all other kernels, bandwidths times h."""
    total = 0.0
    for i in range(len(q.centres)):
        rest = torch.arange(len(q.centres)) != i
        other = KernelDensity(q.centres[rest], h * q.bandwidth, factors=q.factors[rest])
        total += float(other.log_prob(q.centres[i][None]))
    return total / len(q.centres)


def test_the_common_factor_maximises_the_likelihood():
    q = KernelDensity.fit(rows(60, 2), n_neighbours=3)
    best = local_left_out_likelihood(q, 1.0)
    assert all(local_left_out_likelihood(q, h) < best for h in (0.1, 0.9, 1.1, 10.0))


def test_weights_count_as_repeated_rows_for_neighbours():
    x = rows(40, 2)
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    one = KernelDensity.fit(x, weight, n_neighbours=4)
    other = KernelDensity.fit(x.repeat_interleave(weight.long(), 0), n_neighbours=4)
    torch.testing.assert_close(one.bandwidth, other.bandwidth)
    at = rows(10, 2, seed=2)
    torch.testing.assert_close(one.log_prob(at), other.log_prob(at))


def test_neighbours_describe_narrow_and_wide_parts():
    x = rows(900, 2)
    x[::3] *= 20
    train, test = x[:450], x[450:]
    local = KernelDensity.fit(train, n_neighbours=5).log_prob(test).mean()
    assert local > KernelDensity.fit(train).log_prob(test).mean() + 0.1


@pytest.mark.parametrize("x", [rows(1, 2), torch.ones(5, 2, dtype=DOUBLE), rows(2, 3), rows(3, 0)])
def test_degenerate_rows_have_finite_densities_with_neighbours(x):
    q = KernelDensity.fit(x, n_neighbours=5)
    assert q.log_prob(x).isfinite().all()
    assert q.sample(3, seeded(0)).isfinite().all()


def test_bad_neighbours_and_factors_are_refused():
    x = rows(10, 2)
    for k in (0, -1, 1.5):
        with pytest.raises(ValueError, match="n_neighbours"):
            KernelDensity.fit(x, n_neighbours=k)
    with pytest.raises(ValueError, match="n_neighbours is for one scale"):
        KernelDensity.fit(x, n_scales=2, n_neighbours=3)
    for factors in (torch.ones(9), torch.zeros(10), -torch.ones(10)):
        with pytest.raises(ValueError, match="factors must be"):
            KernelDensity(x, 1.0, factors=factors)
    with pytest.raises(ValueError, match="factors are of a bandwidth"):
        KernelDensity(x, covariances=torch.eye(2)[None], factors=torch.ones(10))
    local = LOCAL["local space"]
    assert not local.has_convolved
    with pytest.raises(TypeError, match="no common noise"):
        local.convolved(0.1)


def test_marginals_keep_the_factors():
    local = LOCAL["local space"]
    columns = torch.tensor([2, 0])
    x = rows(10, 2, seed=2)
    truth = as_mixture(local).marginal(columns).log_prob(x)
    torch.testing.assert_close(local.marginal(columns).log_prob(x), truth)


def test_a_fit_is_equivariant_to_units():
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
    for n in (100, 2000):
        x = torch.randn(n, 1, generator=seeded(), dtype=DOUBLE)
        found = float(KernelDensity.fit(x).bandwidth / x.std(0, correction=0))
        assert 0.5 < found / n ** (-1 / 5) < 1.6


HARD = {
    "duplicates": (torch.tensor([[0.0, 1.0], [2.0, 0.0]]).repeat_interleave(50, 0), 2.0),
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
def test_degenerate_rows_give_finite_scales(name, dtype):
    x = HARD[name][0].to(dtype)
    found = KernelDensity.fit(x, n_scales=3)
    assert found.scale_tril.dtype == dtype
    assert (torch.linalg.eigvalsh(found.kernel_covariances) > 0).all()
    assert found.log_prob(x).isfinite().all()
    assert found.score(x).isfinite().all()
    assert found.sample(50, seeded()).isfinite().all()
    assert found.mixing_weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("name", HARD)
def test_degenerate_rows_give_finite_densities(name, dtype):
    x, factor = HARD[name]
    x = x.to(dtype)
    found = KernelDensity.fit(x)
    assert found.bandwidth.dtype == dtype
    assert found.log_prob(x).isfinite().all()
    assert found.score(x).isfinite().all()
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


def test_weights_may_sum_to_one():
    x = rows(50, 2)
    found = KernelDensity.fit(x, torch.full((50,), 0.02))
    torch.testing.assert_close(found.bandwidth, KernelDensity.fit(x).bandwidth)


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.ones(0, 2), {}, "n of at least 1"),
        (torch.ones(3, 2, 2), {}, "flat rows"),
        (torch.tensor([[1.0], [math.nan]]), {}, "row 1"),
        (torch.ones(3, 2), {"weight": torch.ones(2)}, "number per row"),
        (torch.ones(3, 2), {"weight": -torch.ones(3)}, "non-negative"),
        (torch.ones(3, 2), {"bandwidth": "scott"}, "auto"),
        (torch.ones(3, 2), {"bandwidth": 0.0}, "positive"),
        (torch.ones(3, 2), {"bandwidth": [1.0]}, "bandwidth must be a number"),
        (torch.ones(3, 2), {"n_scales": 0}, "n_scales must be an integer"),
        (torch.ones(3, 2), {"n_scales": 2.0}, "n_scales must be an integer"),
        (torch.ones(3, 2), {"n_scales": 2, "bandwidth": "scott"}, "auto"),
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


EYE = torch.eye(2)[None]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "Pass either"),
        ({"bandwidth": 1.0, "covariances": EYE}, "Pass either"),
        (
            {"bandwidth": 1.0, "mixing_weights": torch.ones(1)},
            "mixing_weights belong to covariances",
        ),
        ({"covariances": torch.eye(2)}, r"\(M, 2, 2\)"),
        ({"covariances": EYE[:0]}, r"\(M, 2, 2\)"),
        ({"covariances": [EYE]}, r"\(M, 2, 2\)"),
        ({"covariances": torch.ones(1, 2, 2)}, "positive definite"),
        ({"covariances": torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])}, "symmetric"),
        ({"covariances": EYE, "mixing_weights": torch.ones(2)}, "mixing_weights must be a tensor"),
        ({"covariances": EYE, "mixing_weights": torch.zeros(1)}, "not all zero"),
    ],
)
def test_bad_scales_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        KernelDensity(torch.ones(3, 2), **kwargs)


def test_scales_of_mixing_weight_zero_are_removed():
    covariances = torch.stack([torch.eye(2), 4 * torch.eye(2)])
    noise = KernelDensity(
        torch.ones(3, 2), covariances=covariances, mixing_weights=torch.tensor([0.0, 5])
    )
    torch.testing.assert_close(noise.covariances, covariances[1:])
    assert noise.mixing_weights.tolist() == [1.0]
    assert repr(noise) == "KernelDensity(3 centres, 2 columns, 1 scales)"


# ------------------------------------------------------------------------------
# Fits of several scales
# ------------------------------------------------------------------------------


def tailed(n, seed=0):
    """Three correlated columns of heavy tails, on a curve."""
    size = torch.rand(n, 1, generator=seeded(100 + seed), dtype=DOUBLE) ** -0.5
    x = size * rows(n, 3, seed)
    x[:, 0] += x[:, 1].square() / 5
    return x


def standardised(x):
    return (x - x.mean(0)) / x.std(0, correction=0)


def start(d, n_scales=3):
    size = torch.tensor([0.1, 0.3, 0.9], dtype=DOUBLE)[:n_scales]
    return torch.diag_embed(size.square()[:, None].expand(-1, d)), size / size.sum()


def test_the_likelihood_of_scales_leaves_each_row_out():
    z = standardised(rows(25, 2))
    covariances, mixing_weights = start(2)
    w = torch.ones(25, dtype=DOUBLE)
    found = kernel.expected_statistics(
        z, w, *kernel.rows_to_leave_out(w), covariances, mixing_weights
    )
    truth = 0.0
    for i in range(25):
        others = KernelDensity(
            torch.cat([z[:i], z[i + 1 :]]), covariances=covariances, mixing_weights=mixing_weights
        )
        truth += float(others.log_prob(z[[i]])) / 25
    assert found.log_likelihood == pytest.approx(truth, rel=1e-9)
    noise = KernelDensity(z, covariances=covariances, mixing_weights=mixing_weights)
    without = noise.log_prob(z, torch.arange(25)).mean()
    assert found.log_likelihood == pytest.approx(float(without), rel=1e-9)


def test_statistics_are_sums_over_pairs(monkeypatch):
    z, w = standardised(rows(12, 2)), torch.arange(1, 13, dtype=DOUBLE) % 3 + 0.5
    covariances, mixing_weights = start(2)
    monkeypatch.setattr(kernel, "PAIRS", 40)
    found = kernel.expected_statistics(z, w, torch.arange(12), w, covariances, mixing_weights)
    density = torch.stack(
        [
            torch.stack([KernelDensity(c[None], covariances=s[None]).log_prob(z).exp() for c in z])
            for s in covariances
        ]
    ).mT  # (M, rows, centres)
    mass = w.expand(12, 12) - w.diag()
    responsibility = mixing_weights[:, None, None] * mass * density
    responsibility = responsibility / responsibility.sum((0, 2))[:, None] * w[:, None]
    off = z[:, None] - z
    torch.testing.assert_close(found.amount, responsibility.sum((1, 2)))
    torch.testing.assert_close(
        found.scatter, torch.einsum("mij,ija,ijb->mab", responsibility, off, off)
    )


def test_steps_raise_the_likelihood():
    """Without a prior."""
    z = standardised(tailed(150))
    w = torch.rand(150, generator=seeded(2), dtype=DOUBLE)  # no row has a copy
    covariances, mixing_weights = start(3)
    path = []
    for _ in range(40):
        found = kernel.expected_statistics(z, w, torch.arange(150), w, covariances, mixing_weights)
        path.append(found.log_likelihood)
        covariances, mixing_weights = kernel.update(
            found, covariances, mixing_weights, 0.0, 0.0, 0.0
        )
    assert (np.diff(path) > -1e-10).all()
    assert path[-1] - path[0] > 0.1


@pytest.mark.parametrize("draw", [tailed, lambda n: rows(n, 4)])
def test_a_fit_raises_the_likelihood(draw):
    """Until the prior lowers it."""
    z = standardised(draw(200))
    w = torch.ones(200, dtype=DOUBLE)
    covariances, mixing_weights, path = kernel.fit_scales(z, w, 3, None)
    assert path[-1] > path[0] + 0.1
    assert (np.diff(path[: np.argmax(path) + 1]) >= 0).all()
    noise = KernelDensity(z, covariances=covariances, mixing_weights=mixing_weights)
    found = float(noise.log_prob(z, torch.arange(200)).mean())
    tril = kernel._correlation_tril(z, w)
    assert found + float(tril.diagonal().log().sum()) == pytest.approx(max(path), rel=1e-9)


def test_nearly_duplicated_columns_are_distinguished():
    """The prior has the shape of the rows, not that of the columns' axes."""
    x, fresh = rows(300, 2), rows(1000, 2, seed=1)
    near = [torch.cat([z, z[:, :1] + 1e-2 * z[:, 1:].sin()], 1) for z in (x, fresh)]
    one = KernelDensity.fit(near[0]).log_prob(near[1]).mean()
    assert float(KernelDensity.fit(near[0], n_scales=2).log_prob(near[1]).mean() - one) > 2


def test_several_scales_describe_tails_and_correlations():
    x, fresh = tailed(500), tailed(2000, seed=1)
    one, found = KernelDensity.fit(x), KernelDensity.fit(x, n_scales=3)
    assert found.centres.shape == (500, 3)
    assert found.covariances.shape == (3, 3, 3)
    gain = found.log_prob(fresh) - one.log_prob(fresh)
    assert float(gain.mean()) > 0.2
    assert float(gain.mean() / gain.std()) * math.sqrt(2000) > 5
    size = torch.linalg.slogdet(found.kernel_covariances)[1]
    assert (size.diff() > 0).all()


@pytest.mark.parametrize("stages", [kernel.STAGES, ((15, 5), (30, 3))])
def test_weights_of_scales_count_as_repeated_rows(stages, monkeypatch):
    monkeypatch.setattr(kernel, "STAGES", stages)
    x = rows(40, 2)
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    one = KernelDensity.fit(x, weight, n_scales=3)
    other = KernelDensity.fit(x.repeat_interleave(weight.long(), 0), n_scales=3)
    torch.testing.assert_close(one.covariances, other.covariances)
    torch.testing.assert_close(one.mixing_weights, other.mixing_weights)
    at = rows(10, 2, seed=2)
    torch.testing.assert_close(one.log_prob(at), other.log_prob(at))
    assert not torch.allclose(one.covariances, KernelDensity.fit(x, n_scales=3).covariances)


def test_weights_of_several_scales_may_sum_to_one():
    x = rows(50, 2)
    found = KernelDensity.fit(x, torch.full((50,), 0.02, dtype=DOUBLE), n_scales=2)
    torch.testing.assert_close(found.covariances, KernelDensity.fit(x, n_scales=2).covariances)


def test_scales_are_equivariant_to_units():
    x, unit = tailed(80), torch.tensor([1e-4, 1.0, 1e5], dtype=DOUBLE)
    found, truth = KernelDensity.fit(x * unit, n_scales=3), KernelDensity.fit(x, n_scales=3)
    torch.testing.assert_close(found.mixing_weights, truth.mixing_weights)
    torch.testing.assert_close(
        found.kernel_covariances, truth.kernel_covariances * torch.outer(unit, unit)
    )


def test_constant_columns_have_a_variance_of_one():
    x = rows(50, 2)
    found = KernelDensity.fit(torch.cat([x, torch.full((50, 1), 1e4 / 3)], 1), n_scales=2)
    truth = KernelDensity.fit(x, n_scales=2)
    torch.testing.assert_close(found.covariances[:, :2, :2], truth.covariances)
    assert torch.equal(found.covariances[:, 2], torch.tensor([0, 0, 1.0]).expand(2, 3).double())


def test_repeated_rows_have_the_scales_of_single_ones():
    x = rows(40, 2)
    found, truth = (KernelDensity.fit(y, n_scales=2) for y in (x.repeat(2, 1), x))
    torch.testing.assert_close(found.covariances, truth.covariances)


def test_the_factor_may_be_given():
    """It sets the initial scales."""
    z = standardised(rows(40, 2))
    found = KernelDensity.fit(z, n_scales=2, bandwidth=0.4)
    truth = kernel.fit_scales(z, torch.ones(40, dtype=DOUBLE), 2, 0.4)
    torch.testing.assert_close(found.covariances, truth[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.mixing_weights, truth[1])


def test_pairs_are_bounded(monkeypatch):
    """The number of pairs in a step is bounded, however many rows there are."""
    x, fresh = rows(300, 3), rows(500, 3, seed=1)
    truth = KernelDensity.fit(x, n_scales=2)
    monkeypatch.setattr(kernel, "MAX_PAIRS", 300 * 50)
    found = KernelDensity.fit(x, n_scales=2)
    assert not torch.equal(found.covariances, truth.covariances)
    assert float((found.log_prob(fresh) - truth.log_prob(fresh)).mean().abs()) < 0.3
