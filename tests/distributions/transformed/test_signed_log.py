"""Distributions of signed logarithms: changes of variables, units of columns."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from skebm.base import Real
from skebm.distributions import Gaussian, GaussianMixture, KernelDensity, SignedLog, Uniform
from tests.support.distributions import assert_distribution
from tests.support.oracle import DOUBLE, P_FLOOR, row_gradients, seeded

CENTRE = torch.tensor([1.0, -2.0], dtype=DOUBLE)
SCALE = torch.tensor([0.5, 3.0], dtype=DOUBLE)
ROOT = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=DOUBLE)
PLANE = SignedLog(Gaussian(torch.ones(2, dtype=DOUBLE), covariance=ROOT @ ROOT.t()), CENTRE, SCALE)
LINE = SignedLog(Gaussian(torch.ones(1, dtype=DOUBLE), 0.7), CENTRE[:1], SCALE[:1])


def rows(n=200):
    return torch.randn(n, 2, generator=seeded(3), dtype=DOUBLE).mul(2).sinh()


def test_the_density_is_that_of_johnson():
    x = torch.linspace(-30, 30, 50, dtype=DOUBLE)
    truth = scipy.stats.johnsonsu(-1 / 0.7, 1 / 0.7, loc=1.0, scale=0.5).logpdf(x)
    np.testing.assert_allclose(LINE.log_prob(x[:, None]), truth, rtol=1e-10)


def test_the_density_integrates_to_one():
    u = torch.linspace(-7, 9, 801, dtype=DOUBLE)
    x = torch.cartesian_prod(u, u)
    rows = CENTRE + SCALE * x.sinh()
    cells = (SCALE * x.cosh()).prod(1) * (u[1] - u[0]) ** 2
    assert float((PLANE.log_prob(rows).exp() * cells).sum()) == pytest.approx(1, abs=1e-6)


def test_scores_are_gradients():
    x = rows(20)
    truth = row_gradients(PLANE.log_prob, x)
    torch.testing.assert_close(PLANE.score(x), truth, rtol=1e-5, atol=1e-7)
    at = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(PLANE.log_prob(at).sum(), at)
    torch.testing.assert_close(PLANE.score(x), gradient)


def test_draws_follow_the_density():
    x = PLANE.sample(4000, seeded(1))
    assert torch.equal(PLANE.sample(4000, seeded(1)), x)
    for i, spread in enumerate((1.0, 1.0)):
        logs = torch.arcsinh((x[:, i] - CENTRE[i]) / SCALE[i])
        assert scipy.stats.kstest((logs.numpy() - 1) / spread, "norm").pvalue > P_FLOOR


def test_marginals():
    x = rows(20)
    for i in (0, 1):
        marginal = PLANE.marginal(torch.tensor([i]))
        truth = scipy.stats.johnsonsu(-1, 1, loc=CENTRE[i], scale=SCALE[i]).logpdf(x[:, i])
        np.testing.assert_allclose(marginal.log_prob(x[:, i : i + 1]), truth, rtol=1e-8)
    assert PLANE.has_marginal
    assert PLANE.has_given
    assert not PLANE.has_convolved


def test_the_distribution_satisfies_the_contract():
    assert_distribution(PLANE)


def test_units_are_medians_and_quartiles():
    x = torch.arange(101.0, dtype=DOUBLE)[:, None].repeat(1, 3)
    x[:, 1] = 5.0  # constant
    x[:, 2] = torch.where(x[:, 2] > 90, x[:, 2], 0.0)  # mostly zero
    centre, scale = SignedLog.units(x, torch.ones(101, dtype=DOUBLE))
    assert centre.tolist() == [50, 5, 0]
    assert scale.tolist() == pytest.approx([50 / 1.349, 1, float(x[:, 2].std(correction=0))])
    weight = torch.randint(0, 4, (40,), generator=seeded(1)).double()
    some = rows(40)
    repeated = some.repeat_interleave(weight.long(), 0)
    for one, other in zip(
        SignedLog.units(some, weight),
        SignedLog.units(repeated, torch.ones(len(repeated), dtype=DOUBLE)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_logs_suit_heavy_tails():
    x = torch.from_numpy(scipy.stats.cauchy.rvs(size=(600, 1), random_state=0))
    train, test = x[:300], x[300:]
    centre, scale = SignedLog.units(train, torch.ones(300, dtype=DOUBLE))
    kernels = KernelDensity.fit(torch.arcsinh((train - centre) / scale))
    value = SignedLog(kernels, centre, scale).log_prob(test).mean()
    assert value > KernelDensity.fit(train).log_prob(test).mean() + 0.5
    assert value > scipy.stats.cauchy.logpdf(test).mean() - 0.1


@pytest.mark.parametrize(
    ("inner", "centre", "scale", "message"),
    [
        (Uniform(Real((2,), 0.0, 1.0), DOUBLE), CENTRE, SCALE, "flat unbounded"),
        (Gaussian(torch.zeros(2, 2), 1.0), CENTRE, SCALE, "flat unbounded"),
        (PLANE.distribution, CENTRE[:1], SCALE, "centre must be"),
        (PLANE.distribution, CENTRE * math.nan, SCALE, "centre must be"),
        (PLANE.distribution, CENTRE, SCALE[:1], "scale must be"),
        (PLANE.distribution, CENTRE, 0 * SCALE, "scale must be"),
    ],
)
def test_bad_arguments_are_refused(inner, centre, scale, message):
    with pytest.raises(ValueError, match=message):
        SignedLog(inner, centre, scale)


def test_any_distribution_of_numbers_is_taken():
    mixture = GaussianMixture.fit(rows().arcsinh(), n_components=2, generator=seeded(0))
    q = SignedLog(mixture, torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))
    assert q.log_prob(rows()).isfinite().all()
