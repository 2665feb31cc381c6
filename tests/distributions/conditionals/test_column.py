"""Mixtures of normal distributions of one number, row by row, against SciPy's."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from skebm.base import Clamp, Real
from skebm.distributions import (
    Affine,
    GaussianMixture,
    KernelDensity,
    LatentClasses,
    LowRankMixture,
    SignedLog,
    Stack,
)
from skebm.distributions.conditionals import NormalMixtures

U = torch.tensor([1e-9, 0.03, 0.4, 0.97, 1 - 1e-9], dtype=torch.float64)


@pytest.fixture
def mixtures():
    generator = torch.Generator().manual_seed(0)
    log_weight, mean, scale = (torch.randn(4, 3, generator=generator) for _ in range(3))
    return NormalMixtures(log_weight, 3 * mean, scale.abs() + 0.05)


def of_scipy(mixtures, row, method, x):
    weight = mixtures.log_weight[row].exp().numpy()
    normal = scipy.stats.norm(mixtures.means[row].numpy(), mixtures.scales[row].numpy())
    return getattr(normal, method)(np.asarray(x)[:, None]) @ weight


def test_densities_and_probabilities(mixtures):
    x = torch.linspace(-5, 5, 7).double().expand(4, -1)
    for row in range(4):
        np.testing.assert_allclose(
            mixtures.log_prob(x)[row].exp(), of_scipy(mixtures, row, "pdf", x[row]), rtol=1e-6
        )
        found, truth = mixtures.cdf(x)[row], of_scipy(mixtures, row, "cdf", x[row])
        np.testing.assert_allclose(found, truth, rtol=1e-6)


def test_densities_far_away_do_not_underflow(mixtures):
    one = mixtures.of_rows(slice(0, 1))
    x = torch.tensor([[100.0, 1e4]]).double()
    normal = scipy.stats.norm(one.means[0].numpy(), one.scales[0].numpy())
    logs = normal.logpdf(x.numpy().T) + one.log_weight[0].numpy()
    np.testing.assert_allclose(one.log_prob(x)[0], scipy.special.logsumexp(logs, 1), rtol=1e-12)


def test_densities_of_some_rows_and_in_single_precision(mixtures):
    rows, x = torch.tensor([2, 0, 2]), torch.linspace(-3, 3, 6).double().view(3, 2)
    expected = mixtures.of_rows(rows).log_prob(x)
    np.testing.assert_allclose(mixtures.log_prob(x, rows), expected, rtol=1e-12)
    single = mixtures.to(torch.float32).log_prob(x, rows)
    assert single.dtype == torch.float64
    np.testing.assert_allclose(single, expected, atol=1e-4)


def test_numbers_that_hold_all_but_the_tails(mixtures):
    ends = mixtures.spread(6)
    assert ends.shape == (4, 7)
    assert (ends.diff(dim=1) >= 0).all()
    np.testing.assert_allclose(mixtures.cdf(ends[:, [0, -1]]), [[0, 1]] * 4, atol=1e-12)


def test_quantiles_invert_probabilities(mixtures):
    x = mixtures.ppf(U.expand(4, -1))
    np.testing.assert_allclose(mixtures.cdf(x), U.expand(4, -1), rtol=1e-7)
    assert (x.diff(dim=1) > 0).all()
    ends = mixtures.ppf(torch.tensor([[0.0, 1.0]]).expand(4, -1))
    assert ends.tolist() == [[-np.inf, np.inf]] * 4


def test_quantiles_of_many_rows_at_once():
    generator = torch.Generator().manual_seed(0)
    log_weight, mean, scale = (torch.randn(200, 50, generator=generator) for _ in range(3))
    many = NormalMixtures(3 * log_weight, 3 * mean, scale.abs() + 0.05)
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64).expand(200, -1)
    x = many.ppf(u)
    np.testing.assert_allclose(many.cdf(x), u, rtol=1e-9)
    assert (x.diff(dim=1) > 0).all()
    one = many.of_rows(slice(7, 8))
    np.testing.assert_allclose(one.ppf(u[:1]), x[7:8], rtol=1e-9)


def test_quantiles_beside_a_gap():
    apart = NormalMixtures(torch.zeros(1, 2), torch.tensor([[-1e3, 1e3]]), torch.ones(1, 2))
    u = torch.tensor([[0.25, 0.5, 0.75]], dtype=torch.float64)
    low, middle, high = apart.ppf(u)[0].tolist()
    assert (low, high) == pytest.approx((-1e3, 1e3), rel=1e-9)
    assert low < middle < high


def test_quantiles_whose_probability_is_met_to_the_last_digit_stay():
    generator = torch.Generator().manual_seed(2)
    log_weight, mean, scale = (torch.randn(500, 10, generator=generator) for _ in range(3))
    many = NormalMixtures(log_weight, mean, scale.abs() / 4 + 0.1)
    for p in (0.05, 0.1, 0.5, 0.95):  # 120 medians were off, by up to 0.28
        one = torch.full((500, 1), p, dtype=torch.float64)
        np.testing.assert_allclose(many.cdf(many.ppf(one)), one, rtol=1e-11)


def test_moments_are_those_of_draws(mixtures):
    drawn = mixtures.sample(10_000, torch.Generator().manual_seed(1))
    error = mixtures.std / 100
    assert ((drawn.mean(0) - mixtures.mean).abs() < 4 * error).all()
    np.testing.assert_allclose(drawn.std(0), mixtures.std, rtol=0.03)


def test_negligible_components_are_left_out():
    weights = torch.tensor([[0.0, -40.0, -1.0], [0.0, -50.0, -60.0]])
    kept = NormalMixtures(weights, torch.zeros(3), torch.ones(3)).without_small_weights()
    assert kept.means.shape == (2, 2)
    assert float(kept.log_weight.exp().sum(1).min()) == pytest.approx(1)


# ------------------------------------------------------------------------------
# Conditionals of distributions
# ------------------------------------------------------------------------------


def distributions(d=3, n=120):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing
    w = torch.ones(n, dtype=torch.float64)
    stack = Stack.fit(x, w, generator=generator)
    two = torch.full((d,), 2.0, dtype=torch.float64)
    return x, {
        "mixture": GaussianMixture.fit(x, w, 3, generator=generator),
        "kernels": KernelDensity.fit(x, w),
        "kernels by neighbours": KernelDensity.fit(x, w, n_neighbours=5),
        "stack": stack,
        "affine": Affine(stack, two / 2, two),
        "low rank": LowRankMixture.fit(x, w, 2, 1, generator=generator),
        "latent classes": LatentClasses.fit(x, Real((d,)), w, 3),
        "signed logs": SignedLog.fit(x, w, KernelDensity.fit),
    }


X, DISTRIBUTIONS = distributions()
KNOWN = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0]]).bool()
CLAMP = Clamp(KNOWN, X[:5])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_column_is_the_ratio_of_two_marginals(name):
    q = DISTRIBUTIONS[name]
    given, grid = q.given(CLAMP), torch.linspace(-30, 30, 601, dtype=torch.float64)
    both = KNOWN.clone()
    both[:, 2] = True
    column = given.column(2)
    for row in range(5):
        x = X[row].repeat(len(grid), 1)
        x[:, 2] = grid
        joint = q.log_marginal(Clamp(both[row].expand(len(grid), -1), x))
        density = (joint - q.log_marginal(CLAMP)[row]).exp()
        step = float(grid[1] - grid[0])
        assert float(density.sum()) * step == pytest.approx(1, abs=1e-6)
        assert float(density @ grid) * step == pytest.approx(float(given.mean[row, 2]), abs=1e-6)
        if column is not None:
            found = column.log_prob(grid.expand(5, -1))[row].exp()
            np.testing.assert_allclose(found, density, atol=1e-12)
    assert (column is None) == (name == "signed logs")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_given_columns_keep_them_and_have_the_conditional_mean(name):
    given = DISTRIBUTIONS[name].given(Clamp(KNOWN[:1].expand(4000, -1), X[:1].expand(4000, -1)))
    drawn = given.sample(torch.Generator().manual_seed(0))
    assert (drawn[:, :2] == X[0, :2]).all()
    error = float(drawn[:, 2].std()) / 4000**0.5
    assert abs(float(drawn[:, 2].mean() - given.mean[0, 2])) < 4 * error


def test_nothing_known_has_probability_one():
    none = Clamp(torch.zeros(2, 3, dtype=torch.bool), X[:2])
    for q in DISTRIBUTIONS.values():
        assert q.log_marginal(none).tolist() == [0.0, 0.0]
