"""Effective sample sizes and R-hat against processes of known ESS and against arviz_stats."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.signal import lfilter
from scipy.stats import multivariate_normal, norm

from skebm import diagnostics
from skebm.diagnostics import autocorrelation, effective_sample_size, r_hat
from tests.support.tiers import named

KINDS = ("bulk", "tail", "mean")
STATISTICS = {
    kind: lambda draws, kind=kind: effective_sample_size(draws, kind=kind) for kind in KINDS
} | {"r_hat": r_hat}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_statistic = pytest.mark.parametrize("name", STATISTICS)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


def ar1(rng, rho, shape):
    """Stationary AR(1) of variance one along the first axis."""
    noise = rng.normal(size=shape)
    noise[1:] *= np.sqrt(1 - rho**2)
    return lfilter([1], [1, -rho], noise, axis=0)


def switching(rng, p, shape):
    """Binary chains, half of the time on, that switch with probability p: an AR(1) of 1 - 2p."""
    switch = rng.random(shape) < p
    switch[0] = rng.random(shape[1:]) < 0.5
    return np.logical_xor.accumulate(switch, axis=0)


def share(draws, kind):
    """Mean over columns of ESS / number of draws."""
    return (effective_sample_size(draws, kind=kind) / np.prod(draws.shape[:2])).mean()


# ------------------------------------------------------------------------------
# Effective sample size
# ------------------------------------------------------------------------------


# 5% is above three standard errors of the mean over 16 columns, for the slowest process as well.
@pytest.mark.parametrize("kind", ["bulk", "mean"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.5])
def test_ess_of_an_autoregression_is_the_exact_one(rng, rho, kind):
    draws = ar1(rng, rho, (4000, 4, 16))
    assert_allclose(share(draws, kind), (1 - rho) / (1 + rho), rtol=0.05)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_tail_ess_of_an_autoregression_is_that_of_its_indicators(rng, rho):
    # P(x_0 <= q and x_k <= q) of a bivariate normal, q its 5% quantile; 95% is its mirror image.
    q, p = norm.ppf(0.05), 0.05
    lags = rho ** np.arange(1, 80)
    joint = [multivariate_normal.cdf([q, q], cov=[[1, r], [r, 1]]) for r in lags if r > 1e-4]
    exact = 1 / (1 + 2 * sum((np.array(joint) - p**2) / (p - p**2)))
    found = effective_sample_size(ar1(rng, rho, (4000, 4, 16)), kind="tail") / 16000
    # The smaller of two estimates lies below the exact value by about their standard error.
    assert 0.85 * exact < found.mean() < 1.02 * exact


@pytest.mark.parametrize(
    ("kind", "p"),
    # Not the tails of antithetic chains: see the next test.
    [*((kind, p) for kind in KINDS for p in (0.1, 0.3)), ("bulk", 0.7), ("mean", 0.7)],
)
def test_ess_of_switching_binary_chains_is_the_exact_one(rng, kind, p):
    assert_allclose(share(switching(rng, p, (4000, 4, 16)), kind), p / (1 - p), rtol=0.05)


def test_all_kinds_are_the_same_on_binary_draws(rng):
    # Ranks of binary draws, ties averaged, are a linear function of them. So is being at most the
    # 5% quantile; being at most the 95% quantile is constant, and counts every draw.
    draws = rng.random((400, 3, 20)) < rng.uniform(0.2, 0.8, 20)
    bulk, tail, mean = (effective_sample_size(draws, kind=kind) for kind in KINDS)
    assert_allclose(bulk, mean, rtol=1e-9)
    assert_allclose(tail, np.minimum(mean, 1200), rtol=1e-9)


@pytest.mark.parametrize("kind", ["bulk", "mean"])
def test_ess_of_alternating_chains_is_capped(kind):
    draws = np.arange(1000).reshape(-1, 1) % 2 == np.arange(4)[None] % 2
    assert_allclose(effective_sample_size(draws, kind=kind), 4000 * np.log10(4000))


@pytest.mark.parametrize("kind", ["bulk", "tail"])
@pytest.mark.parametrize("monotone", [np.exp, np.cbrt, np.arctan])
def test_ess_in_ranks_is_unchanged_by_increasing_functions(rng, kind, monotone):
    draws = ar1(rng, 0.5, (401, 3, 5))  # 5% and 95% of 1203 draws fall between two of them
    before = effective_sample_size(draws, kind=kind)
    assert_allclose(effective_sample_size(monotone(draws), kind=kind), before, rtol=1e-9)


@every_kind
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_ess_is_invariant_to_units(rng, kind, scale):
    draws = ar1(rng, 0.5, (200, 3, 5))
    before = effective_sample_size(draws, kind=kind)
    assert_allclose(effective_sample_size(scale * draws, kind=kind), before, rtol=1e-9)


@every_kind
def test_ess_of_chains_that_disagree_is_tiny(rng, kind):
    draws = rng.normal(size=(1000, 4)) + 100 * np.arange(4)
    assert effective_sample_size(draws, kind=kind) < 40


@every_kind
def test_ess_of_a_constant_column_counts_every_draw(kind):
    for value in (0.0, 0.1, -3.0):
        assert effective_sample_size(np.full((101, 3), value), kind=kind) == 300


@every_kind
def test_ess_of_one_chain_sees_its_drift(rng, kind):
    draws = rng.normal(size=(1000, 1))
    assert effective_sample_size(draws, kind=kind) > 500
    assert effective_sample_size(draws + 5 * (np.arange(1000)[:, None] > 500), kind=kind) < 50


# ------------------------------------------------------------------------------
# R-hat
# ------------------------------------------------------------------------------


def test_r_hat_of_independent_draws_is_close_to_one(rng):
    draws = rng.normal(size=(2000, 4, 20))
    for x in (draws, draws > 0, np.round(draws).astype(int), rng.standard_cauchy(draws.shape)):
        assert_allclose(r_hat(x), 1, atol=0.006)


def test_r_hat_sees_chains_around_different_means(rng):
    draws = rng.normal(size=(500, 4, 5))
    draws[:, 0] += 2
    assert (r_hat(draws) > 1.2).all()


def test_r_hat_sees_one_binary_chain_that_is_on_more_often(rng):
    draws = rng.random((500, 4, 5)) < np.array([0.8, 0.2, 0.2, 0.2])[:, None]
    assert (r_hat(draws) > 1.1).all()


def test_r_hat_sees_chains_of_different_scale(rng):
    draws = rng.normal(size=(500, 4, 5))
    draws[:, 0] *= 5
    assert (r_hat(draws) > 1.1).all()


def test_r_hat_sees_a_drift_that_all_chains_share(rng):
    draws = rng.normal(size=(500, 4, 5))
    draws[250:] += 2
    assert (r_hat(draws) > 1.2).all()


def test_r_hat_is_unchanged_by_the_order_of_chains_and_by_linear_functions(rng):
    draws = ar1(rng, 0.9, (200, 4, 5))
    assert_allclose(r_hat(3 - 2 * draws), r_hat(draws), rtol=1e-9)
    assert_allclose(r_hat(draws[:, ::-1]), r_hat(draws), rtol=1e-9)


def test_r_hat_of_two_binary_chains_is_the_formula_by_hand():
    # Halves 0001, 0001, 0111, 0111: means a quarter and three quarters, each of variance 1 / 4.
    # Scores are linear in binary draws; folding at the median 1 / 2 leaves a constant.
    draws = np.array([[0, 0, 0, 1] * 2, [0, 1, 1, 1] * 2]).T
    between, within = 1 / 12, 1 / 4
    assert_allclose(r_hat(draws), np.sqrt(3 / 4 + between / within))


@pytest.mark.filterwarnings("error")
def test_r_hat_of_constant_columns_is_nan_without_a_warning(rng):
    draws = rng.normal(size=(100, 3, 3))
    draws[..., 1] = 0.1
    assert_array_equal(np.isnan(r_hat(draws)), [False, True, False])


def test_r_hat_of_chains_constant_at_different_values_is_huge():
    assert r_hat(np.ones((100, 3)) * [0.1, 0.2, 0.3]) > 1e6


# ------------------------------------------------------------------------------
# Shapes and types
# ------------------------------------------------------------------------------


@every_statistic
@pytest.mark.parametrize("trailing", [(), (3,), (2, 3), (0,), (2, 0)])
def test_results_have_the_trailing_shape(rng, name, trailing):
    found = STATISTICS[name](rng.normal(size=(50, 4, *trailing)))
    assert isinstance(found, np.ndarray)
    assert found.shape == trailing
    assert found.dtype == np.float64


@every_statistic
@pytest.mark.parametrize("chunk", [1, 3 * 101 * 4, 2**20])
def test_a_column_alone_equals_that_column_among_others(rng, monkeypatch, name, chunk):
    draws = ar1(rng, 0.5, (101, 3, 2, 5)) + 0.3 * np.arange(3)[:, None, None]
    alone = [[STATISTICS[name](draws[:, :, i, j]) for j in range(5)] for i in range(2)]
    monkeypatch.setattr(diagnostics, "CHUNK", chunk)
    assert_allclose(STATISTICS[name](draws), alone, rtol=1e-9)


@every_statistic
def test_tensors_and_arrays_of_any_type_give_the_same(rng, name):
    binary = switching(rng, 0.3, (200, 3, 4))
    found = STATISTICS[name](binary)
    others = [binary.astype(t) for t in ("uint8", "int64", "float32")]
    dtypes = (torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.float64)
    others += [torch.as_tensor(binary).to(dtype) for dtype in dtypes]
    others += [torch.as_tensor(binary).double().requires_grad_(), np.asfortranarray(binary)]
    for draws in others:
        assert_array_equal(STATISTICS[name](draws), found)


@every_statistic
def test_draws_are_not_changed(rng, name):
    draws = rng.normal(size=(50, 4, 3))
    before = draws.copy()
    STATISTICS[name](draws)
    assert_array_equal(draws, before)


@every_statistic
@pytest.mark.parametrize("n", [4, 5, 6, 7, 8, 9, 10, 11])
def test_a_few_draws_give_finite_results(rng, name, n):
    found = STATISTICS[name](rng.normal(size=(n, 2, 50)))
    assert np.isfinite(found).all()
    assert (found > 0).all()


# ------------------------------------------------------------------------------
# Errors
# ------------------------------------------------------------------------------


@every_statistic
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((100,), "n_draws.*n_chains"),
        ((), r"shape \(n_draws, n_chains, \.\.\.\); got \(\)"),
        ((3, 100), "Each chain needs at least 4 draws; got 3.*Draws are on the first axis"),
        ((100, 0), r"At least \d chains are needed; got 0.*chains on the second"),
    ],
)
def test_a_wrong_shape_says_what_to_do(name, shape, message):
    with pytest.raises(ValueError, match=message):
        STATISTICS[name](np.zeros(shape))


def test_r_hat_of_one_chain_asks_for_more():
    with pytest.raises(ValueError, match="At least 2 chains are needed; got 1"):
        r_hat(np.zeros((100, 1)))


@every_statistic
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_draws_that_are_not_finite_are_rejected(rng, name, value):
    draws = rng.normal(size=(50, 4, 3))
    draws[7, 2, 1] = value
    with pytest.raises(ValueError, match="NaN or infinity. Leave out the chains that diverged"):
        STATISTICS[name](draws)


@every_statistic
@pytest.mark.parametrize("dtype", [np.complex128, str, object])
def test_draws_that_are_not_real_numbers_are_rejected(name, dtype):
    with pytest.raises(ValueError, match="real, integer or boolean"):
        STATISTICS[name](np.ones((50, 4)).astype(dtype))


def test_an_unknown_kind_is_rejected_by_name():
    with pytest.raises(ValueError, match="'median'"):
        effective_sample_size(np.zeros((50, 4)), kind="median")


# ------------------------------------------------------------------------------
# arviz_stats
# ------------------------------------------------------------------------------


def examples():
    """Draws of every sort. Long enough that no pair of autocorrelations sums to exactly zero:
    there, where Geyer's sequence ends, rounding would decide between two answers.
    """
    rng = np.random.default_rng(0)
    for n_draws, n_chains in ((200, 1), (201, 2), (1000, 4)):
        for rho in (-0.5, 0.0, 0.5, 0.99):
            x = ar1(rng, rho, (n_draws, n_chains, 10))
            yield from (x, x > 1, np.round(x), x + np.arange(n_chains)[:, None], 1e-200 * x)
        yield switching(rng, 0.2, (n_draws, n_chains, 10))
        yield rng.standard_cauchy((n_draws, n_chains, 10))
        yield np.full((n_draws, n_chains, 2), 0.1)
    yield np.arange(500).reshape(125, 4) % 10


def deterministic(n_draws):
    """Draws (n_draws, 3, 6) of a few lengths, with an odd and an even number of pairs of lags."""
    t, chain = np.arange(float(n_draws))[:, None], np.arange(3.0)
    noise = np.sin(1e4 * np.sin(1 + t + 200 * chain))
    ar = [lfilter([1], [1, -rho], noise, axis=0) for rho in (-0.9, -0.5, 0.5, 0.9)]
    return np.stack([*ar, np.exp(3 * noise), np.round(2 * noise + chain)], 2)


def by_arviz(draws, name):
    """The same statistic by arviz_stats, which takes chains and draws on the last axes."""
    array_stats = pytest.importorskip("arviz_stats.base", reason="needs numpy 2").array_stats
    x = np.moveaxis(np.asarray(draws, dtype=float), (0, 1), (-1, -2))
    if name == "r_hat":
        return array_stats.rhat(x, method="rank")
    # In one scale: arviz_stats takes any range below 1e-15 for a constant.
    x = x / np.abs(x).max((-1, -2), keepdims=True).clip(np.finfo(float).tiny)
    return array_stats.ess(x, method=name, prob=(0.05, 0.95) if name == "tail" else None)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", named(["bulk"], STATISTICS))
def test_results_are_those_of_arviz_stats(name):
    draws = [*examples(), *map(deterministic, (11, 14, 301))]
    for x in draws:
        if x.shape[1] > 1 or name != "r_hat":
            assert_allclose(STATISTICS[name](x), by_arviz(x, name), rtol=1e-6)


def test_tensors_that_need_gradients_are_taken_as_numbers():
    draws = torch.linspace(0, 1, 20)[:, None].requires_grad_()
    assert_allclose(autocorrelation(draws, 3), autocorrelation(draws.detach().numpy(), 3))


@pytest.mark.parametrize("n_lags", [0, 21])
def test_lags_are_at_most_the_draws(n_lags):
    draws = np.random.default_rng(0).normal(size=(20, 3))
    assert autocorrelation(draws, 20).shape == (20,)
    with pytest.raises(ValueError, match="n_lags must be"):
        autocorrelation(draws, n_lags)
