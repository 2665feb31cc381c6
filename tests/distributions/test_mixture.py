"""Mixtures of normal distributions: exact densities, scores and conditionals, fits by counts.

What holds of all distributions over real rows is checked by `assert_contract`, here for mixtures
and Gaussians.
"""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from skebm.base import Binary, Clamp, Real
from skebm.distributions import (
    Distribution,
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    Uniform,
    mixture,
)
from tests.support.distributions import assert_distribution
from tests.support.oracle import DOUBLE, P_FLOOR, finite_difference, mean_is, row_gradients, seeded
from tests.support.tiers import leading


def make_mixture(n_components, d, seed=0, spread=2.0):
    g = seeded(seed)
    root = torch.randn(n_components, d, d, generator=g, dtype=DOUBLE)
    covariances = root @ root.transpose(1, 2) + 0.3 * torch.eye(d, dtype=DOUBLE)
    means = spread * torch.randn(n_components, d, generator=g, dtype=DOUBLE)
    weights = torch.rand(n_components, generator=g, dtype=DOUBLE) + 0.2
    return GaussianMixture(weights / weights.sum(), means, covariances)


MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
ROOT = torch.tensor([[2.0, 0, 0], [0.7, 0.4, 0], [-1.0, 0.3, 0.9]], dtype=DOUBLE)
DENSE = Gaussian(MEAN, covariance=ROOT @ ROOT.t())
INSTANCES = {
    "line": make_mixture(3, 1),
    "plane": make_mixture(4, 2, seed=1),
    "single": make_mixture(1, 3, seed=2),
    "space": make_mixture(5, 3, seed=3),
    "gaussian": DENSE,
    "diagonal": Gaussian(MEAN, torch.tensor([0.5, 2.0, 1.0], dtype=DOUBLE)),
    "image": Gaussian(torch.ones(2, 2, dtype=DOUBLE), torch.ones(2, 2, dtype=DOUBLE) / 2),
}
MIXTURES = ["line", "plane", "single", "space"]


@pytest.fixture(params=INSTANCES)
def noise(request):
    return INSTANCES[request.param]


# ------------------------------------------------------------------------------
# What holds of all
# ------------------------------------------------------------------------------


def assert_contract(noise):
    """What holds of all distributions, and scores, of one over real rows in float64."""
    assert_distribution(noise)
    x = noise.sample(20, seeded(1))
    assert noise.score(x[:0]).shape == x[:0].shape
    value, score = noise.log_prob(x), noise.score(x)
    for found in (noise.log_prob(x.float()), noise.score(x.float())):
        assert found.dtype == torch.float32
    torch.testing.assert_close(noise.log_prob(x.float()).to(DOUBLE), value, rtol=1e-4, atol=1e-3)
    y = x.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(noise.log_prob(y).sum(), y)
    torch.testing.assert_close(score, grad)
    torch.testing.assert_close(Distribution.score(noise, x), grad)  # the default
    numeric = row_gradients(noise.log_prob, x)
    torch.testing.assert_close(score, numeric, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        both = noise.log_prob_and_score(x)
        assert torch.equal(Distribution.score(noise, y), grad)
    torch.testing.assert_close(both[0], value)
    torch.testing.assert_close(both[1], score)
    # A score in closed form can be differentiated: here the sum of second derivatives.
    (bend,) = torch.autograd.grad(noise.score(y).sum(), y)
    numeric = finite_difference(lambda rows: noise.score(rows).sum(), x)
    torch.testing.assert_close(bend, numeric, rtol=1e-5, atol=1e-5)


def grid(low, high, n, d):
    """Rows of a grid in d dimensions, and the volume of a cell."""
    at = torch.linspace(low, high, n, dtype=DOUBLE)
    return torch.cartesian_prod(*[at] * d).view(-1, d), float(at[1] - at[0]) ** d


def test_distributions_satisfy_the_contract(noise):
    assert_contract(noise)


def test_scores_of_a_uniform_density_are_zero():
    noise = Uniform(Real((2,), 0.0, 1.0), DOUBLE)
    assert not noise.score(noise.sample(5, seeded())).any()
    bits = IndependentBernoulli(torch.tensor([0.3, -1.0]))
    torch.testing.assert_close(bits.score(torch.zeros(1, 2)), bits.logits[None])


def test_missing_closed_forms_are_refused():
    noise = Uniform(Binary((2,)))
    with pytest.raises(TypeError, match="added normal noise: use Gaussian"):
        noise.convolved(1.0)
    with pytest.raises(TypeError, match="conditionals given real entries"):
        noise.given(Clamp(torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2)))


# ------------------------------------------------------------------------------
# The density
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIXTURES)
def test_densities_are_those_of_torch(name):
    noise = INSTANCES[name]
    truth = MixtureSameFamily(
        Categorical(noise.weights), MultivariateNormal(noise.means, noise.covariances)
    )
    x = 4 * torch.randn(50, noise.means.shape[1], generator=seeded(), dtype=DOUBLE)
    torch.testing.assert_close(noise.log_prob(x), truth.log_prob(x), rtol=1e-10, atol=1e-10)
    assert noise.n_components == len(noise.weights)


def test_densities_integrate_to_one():
    x, cell = grid(-20, 20, 4001, 1)
    assert float(INSTANCES["line"].log_prob(x).exp().sum()) * cell == pytest.approx(1, abs=1e-9)
    x, cell = grid(-20, 20, 801, 2)
    assert float(INSTANCES["plane"].log_prob(x).exp().sum()) * cell == pytest.approx(1, abs=1e-9)


def test_distant_rows_and_narrow_components_do_not_lose_precision():
    weights, means = torch.tensor([0.5, 0.5]), torch.tensor([[1e4, 0.0], [1e4 + 3, 1.0]])
    noise = GaussianMixture(weights, means, 1e-4 * torch.eye(2).expand(2, 2, 2))
    x = means + 0.01
    exact = GaussianMixture(weights.double(), means.double(), noise.covariances.double())
    torch.testing.assert_close(
        noise.log_prob(x).double(), exact.log_prob(x.double()), rtol=1e-3, atol=0
    )
    far = torch.full((1, 2), 1e15)
    assert noise.log_prob(far).isfinite().all()
    assert noise.score(far).isfinite().all()


def test_large_batches_are_processed_in_chunks(monkeypatch):
    noise = INSTANCES["space"]
    x = noise.sample(100, seeded())
    value, score = noise.log_prob_and_score(x)
    monkeypatch.setattr("skebm.distributions._fitting.AT_ONCE", 15 * 7)
    torch.testing.assert_close(noise.log_prob(x), value)
    torch.testing.assert_close(noise.log_prob_and_score(x)[1], score)


@pytest.mark.parametrize("name", ["line", "plane", "space"])
def test_draws_follow_the_density(name, generator):
    """Components' counts, and each component's own draws, whitened."""
    noise = INSTANCES[name]
    x = noise.sample(20_000, generator)
    weights, means, covariances = noise.weights, noise.means, noise.covariances
    mean = weights @ means
    second = torch.einsum("k,kij->ij", weights, covariances + means[:, :, None] * means[:, None])
    assert mean_is(x, mean) < 4.5
    assert mean_is((x[:, :, None] * x[:, None]).flatten(1), second.flatten()) < 4.5
    for i, column in enumerate(x.t().numpy()):
        p, scale = weights.numpy(), covariances[:, i, i].sqrt().numpy()

        def cdf(t, i=i, p=p, scale=scale):
            return scipy.stats.norm.cdf((t[:, None] - means[:, i].numpy()) / scale) @ p

        assert scipy.stats.kstest(column, cdf).pvalue > P_FLOOR


# ------------------------------------------------------------------------------
# Added noise
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["line", "gaussian", "diagonal", "plane"])
def test_convolutions_equal_quadrature(name, generator):
    """E over z of q(x - sigma z), by the midpoints of 20,000 normal quantiles or by draws."""
    noise = INSTANCES[name]
    d = noise.domain.n_columns
    sigma = torch.linspace(0.5, 1.5, d, dtype=DOUBLE)
    x = noise.sample(5, seeded(1))
    if d == 1:
        u = (torch.arange(20_000, dtype=DOUBLE) + 0.5) / 20_000
        z = torch.special.ndtri(u)[:, None]
    else:
        z = torch.randn(200_000, d, generator=generator, dtype=DOUBLE)
    for row, found in zip(x, noise.convolved(sigma).log_prob(x).exp(), strict=True):
        values = noise.log_prob(row - sigma * z).exp()
        error = 1e-4 * float(found) if d == 1 else 4.5 * float(values.std()) / 200_000**0.5
        assert float(values.mean()) == pytest.approx(float(found), abs=error)


def test_convolutions_add_their_variances(noise):
    x = noise.sample(5, seeded(1))
    once, twice = noise.convolved(0.5), noise.convolved(0.3).convolved(0.4)
    torch.testing.assert_close(once.log_prob(x), twice.log_prob(x))
    torch.testing.assert_close(noise.convolved(0).log_prob(x), noise.log_prob(x))
    assert type(once) is type(noise)
    with pytest.raises(ValueError, match="sigma must be non-negative"):
        noise.convolved(-1.0)
    with pytest.raises(ValueError, match="one for each entry"):
        noise.convolved(torch.ones(7))


# ------------------------------------------------------------------------------
# Conditionals
# ------------------------------------------------------------------------------


def conditional_mean(noise, mask, value, half_width=20.0):
    """Mean of one or two unknown columns of a row by quadrature."""
    free, cell = grid(
        -half_width, half_width, 4001 if (~mask).sum() == 1 else 501, int((~mask).sum())
    )
    x = value.repeat(len(free), 1)
    x[:, ~mask] = free
    p = noise.log_prob(x).softmax(0)
    return p @ x


def assert_conditionals_equal_quadrature(noise):
    """Rows of different patterns at once, one all known, and in two columns one all unknown."""
    d = noise.domain.n_columns
    patterns = torch.cartesian_prod(*[torch.tensor([True, False])] * d).view(-1, d)
    patterns = [mask for mask in patterns if (~mask).sum() <= 2]
    value = noise.sample(len(patterns), seeded(5))
    mask = torch.stack(patterns)
    hidden = torch.where(mask, value, math.nan)  # what is not known may be anything
    found = noise.given(Clamp(mask, hidden))
    for i in range(len(mask)):
        truth = conditional_mean(noise, mask[i], value[i]) if not mask[i].all() else value[i]
        torch.testing.assert_close(found.mean[i], truth, rtol=1e-5, atol=1e-5)
    draws = found.sample(seeded(2))
    assert torch.equal(draws, found.sample(seeded(2)))
    assert torch.equal(draws[mask], value[mask])
    assert not torch.isnan(draws).any()


def assert_conditional_draws_are_exact(noise, known, generator):
    """Draw rows, forget the unknown columns, draw them anew: the joint is what it was."""
    n = 20_000
    x = noise.sample(n, generator)
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[:, known] = True
    y = noise.given(Clamp(mask, x)).sample(generator)
    assert torch.equal(y[:, known], x[:, known])
    assert not torch.equal(y, x)
    fresh = noise.sample(n, generator)
    for power in (1, 2):
        products = y**power * y[:, [known]]
        truth = fresh**power * fresh[:, [known]]
        error = ((products.var(0) + truth.var(0)) / n).sqrt()
        assert float(((products.mean(0) - truth.mean(0)).abs() / error).max()) < 4.5
    for a, b in zip(y.t().numpy(), fresh.t().numpy(), strict=True):
        assert scipy.stats.ks_2samp(a, b).pvalue > P_FLOOR


@pytest.mark.parametrize("name", ["plane", "space", "gaussian", "diagonal", "single"])
def test_conditional_means_equal_quadrature(name):
    assert_conditionals_equal_quadrature(INSTANCES[name])


@pytest.mark.parametrize(("name", "known"), [("plane", 0), ("space", 1), ("gaussian", 2)])
def test_conditional_draws_are_exact(name, known, generator):
    assert_conditional_draws_are_exact(INSTANCES[name], known, generator)


def test_draws_do_not_depend_on_gathering(monkeypatch):
    noise = make_mixture(5, 3)
    expected = noise.sample(500, seeded(2))
    monkeypatch.setattr(mixture, "GATHER_ENTRIES", 0)
    torch.testing.assert_close(noise.sample(500, seeded(2)), expected)


def test_conditionals_of_a_gaussian_are_the_regression():
    covariance, x = DENSE.covariance, DENSE.sample(1, seeded(4))
    mask = torch.tensor([[True, False, False]])
    draws = DENSE.given(Clamp(mask.expand(20_000, 3), x.expand(20_000, 3))).sample(seeded(1))
    gain = covariance[1:, :1] / covariance[0, 0]
    mean = MEAN[1:] + gain @ (x[0, :1] - MEAN[:1])
    rest = covariance[1:, 1:] - gain @ covariance[:1, 1:]
    assert mean_is(draws[:, 1:], mean) < 4.5
    torch.testing.assert_close(draws[:, 1:].t().cov(), rest, rtol=0.1, atol=0.02)


def test_conditioning_in_two_steps_equals_one():
    noise = INSTANCES["space"]
    x = noise.sample(4, seeded(1))
    first = torch.tensor([True, False, False]).expand(4, 3)
    second = torch.tensor([False, False, True]).expand(4, 3)
    step = noise.given(Clamp(first, x)).given(Clamp(second, x))
    torch.testing.assert_close(step.mean, noise.given(Clamp(first | second, x)).mean)
    assert noise.given(Clamp(first[:0], x[:0])).mean.shape == (0, 3)
    assert noise.given(Clamp(first[:0], x[:0])).sample(seeded()).shape == (0, 3)
    single = noise.given(Clamp(first, x.float()))
    assert single.mean.dtype == single.sample(seeded()).dtype == torch.float32


def test_invalid_known_values_are_refused(noise):
    shape = noise.domain.row_shape
    x = torch.full((2, *shape), math.nan, dtype=DOUBLE)
    with pytest.raises(ValueError, match="Known values must be finite"):
        noise.given(Clamp(torch.ones(2, *shape, dtype=torch.bool), x))
    with pytest.raises(ValueError, match="boolean mask"):
        noise.given(Clamp(torch.ones(2, *shape), x))
    with pytest.raises(ValueError, match="of shape"):
        noise.given(Clamp(torch.ones(2, 9, dtype=torch.bool), torch.ones(2, 9)))


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def rows(n=200, seed=0):
    return INSTANCES["space"].sample(n, seeded(seed))


def assert_same(one, other):
    torch.testing.assert_close(one.weights, other.weights)
    torch.testing.assert_close(one.means, other.means)
    torch.testing.assert_close(one.covariances, other.covariances)


@pytest.mark.parametrize("n_components", [1, 4])
def test_weights_count_as_repeated_rows(n_components):
    x = rows(60)
    weight = torch.randint(0, 4, (60,), generator=seeded(1)).double()
    repeated = x.repeat_interleave(weight.long(), 0)
    one = GaussianMixture.fit(x, weight, n_components, generator=seeded(2))
    other = GaussianMixture.fit(repeated, None, n_components, generator=seeded(2))
    assert_same(one, other)
    assert one.bic(x, weight) == pytest.approx(other.bic(repeated))
    again = GaussianMixture.fit(x, weight, n_components, generator=seeded(2))
    assert torch.equal(again.means, one.means)
    plain = GaussianMixture.fit(x, None, n_components, generator=seeded(2))
    assert not torch.allclose(plain.log_prob(x), one.log_prob(x))


def test_one_component_is_shrunk_slightly():
    x = rows(500)
    found = GaussianMixture.fit(x, regularisation=0.0)
    torch.testing.assert_close(found.means[0], x.mean(0))
    torch.testing.assert_close(found.covariances[0], x.t().cov(correction=0), rtol=0.02, atol=0.02)
    wider = GaussianMixture.fit(x, regularisation=0.1)
    more = (wider.covariances - found.covariances)[0]
    torch.testing.assert_close(more, 0.1 * x.var(0, correction=0).diag())


@pytest.mark.parametrize("blur", [0.7, torch.tensor([0.2, 3.0, 1.0], dtype=DOUBLE)])
def test_one_component_of_noisy_rows_is_convolved(blur):
    x = rows(500)
    plain = GaussianMixture.fit(x, prior_rows=0.0)
    found = GaussianMixture.fit(x, prior_rows=0.0, sigma=blur)
    torch.testing.assert_close(found.covariances, plain.convolved(blur).covariances)


def test_components_of_noisy_rows_adapt_to_the_noise():
    """Two points with noise: nothing but the noise is left of the components."""
    x = torch.tensor([[-3.0], [3.0]], dtype=DOUBLE).repeat(50, 1)
    settings = {"regularisation": 0.0, "prior_rows": 0.0}
    found = GaussianMixture.fit(x, n_components=2, sigma=0.5, **settings)
    torch.testing.assert_close(found.means.sort(0).values, x[:2])
    torch.testing.assert_close(found.covariances.flatten(), torch.full((2,), 0.25, dtype=DOUBLE))


def test_more_prior_rows_make_components_more_similar():
    x = torch.cat([rows(60), 4 + 0.2 * rows(60, 1)])

    def unlike(prior_rows):
        found = GaussianMixture.fit(x, n_components=2, prior_rows=prior_rows).covariances
        return float((found[0] - found[1]).norm())

    assert unlike(1e4) < unlike(5.0) < unlike(0.0)


@pytest.mark.parametrize("more", [{"sigma": -1.0}, {"sigma": torch.ones(2)}, {"prior_rows": -1.0}])
def test_invalid_noise_levels_and_priors_are_refused(more):
    with pytest.raises(ValueError, match=next(iter(more))):
        GaussianMixture.fit(rows(20), **more)


def test_labels_are_components():
    g = seeded(3)
    labels = torch.randint(3, (400,), generator=g) * 2 - 1
    x = (
        torch.randn(400, 2, generator=g, dtype=DOUBLE) * (2.0 + labels[:, None])
        + 5.0 * labels[:, None]
    )
    found = GaussianMixture.from_labels(x, labels, regularisation=0.0, prior_rows=0.0)
    for k, label in enumerate((-1, 1, 3)):
        rows = x[labels == label]
        torch.testing.assert_close(found.weights[k], torch.tensor(len(rows) / 400, dtype=DOUBLE))
        torch.testing.assert_close(found.means[k], rows.mean(0))
        root = found.scale_tril[k]
        torch.testing.assert_close(root @ root.t(), rows.t().cov(correction=0))


def test_components_of_labels_are_weighted_by_their_rows():
    x = torch.randn(60, 3, generator=seeded(4), dtype=DOUBLE)
    labels = torch.arange(60) % 4
    weight = torch.ones(60, dtype=DOUBLE)
    weight[:10], weight[labels == 3] = 2.0, 0.0  # the last has no component
    kept = labels < 3
    twice = torch.cat([x[kept], x[:10][labels[:10] < 3]])
    of_twice = torch.cat([labels[kept], labels[:10][labels[:10] < 3]])
    found = GaussianMixture.from_labels(x, labels, weight, sigma=0.3)
    expected = GaussianMixture.from_labels(twice, of_twice, sigma=0.3)
    assert len(found.weights) == 3
    torch.testing.assert_close(found.log_prob(x), expected.log_prob(x))


def test_a_label_of_one_row_has_the_shape_of_the_others():
    x = torch.randn(50, 2, generator=seeded(5), dtype=DOUBLE)
    labels = (torch.arange(50) == 7).long()
    found = GaussianMixture.from_labels(x, labels)
    torch.testing.assert_close(found.means[1], x[7])
    assert 0.2 < found.scale_tril[1].det() / found.scale_tril[0].det() < 5
    with pytest.raises(ValueError, match="labels must be"):
        GaussianMixture.from_labels(x, labels[:7])


@pytest.mark.parametrize("seed", leading(1, range(3)))
def test_steps_raise_the_penalised_likelihood(seed):
    z = rows(150, seed)
    z = (z - z.mean(0)) / z.std(0)
    w = torch.rand(150, generator=seeded(seed), dtype=DOUBLE) + 0.1
    labels = mixture.clusters(z, w, 6, seed)
    responsibility = torch.nn.functional.one_hot(labels).double()
    count, means, scatter = mixture.component_statistics(z, w, responsibility)
    prior = mixture.make_prior(count, scatter, torch.zeros(3, dtype=DOUBLE))
    path = []
    for _ in range(60):
        found = prior.covariances(count, scatter)
        responsibility, value, penalty = mixture.expectation_step(
            z, w, count / count.sum(), means, found, prior
        )
        path.append(value + penalty)
        count, means, scatter = mixture.component_statistics(z, w, responsibility)
    assert (np.diff(path) > -1e-9).all()
    assert path[-1] - path[0] > 1
    whole = mixture.expectation_maximisation(
        z, w, labels, torch.full((3,), 1e-3, dtype=DOUBLE), 200, 1e-4
    )
    assert len(whole.path) < 200
    assert abs(float(whole.weights.sum()) - 1) < 1e-12


def test_distant_components_are_found():
    truth = torch.tensor([[-9.0, 0.0], [9.0, 0.0], [0.0, 9.0]], dtype=DOUBLE)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=DOUBLE)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE)
    true = GaussianMixture(weights, truth, covariance.expand(3, 2, 2))
    x = true.sample(3000, seeded())
    found = GaussianMixture.fit(x, n_components=3, generator=seeded(1))
    order = torch.cdist(truth, found.means).argmin(1)
    torch.testing.assert_close(found.means[order], truth, rtol=0, atol=0.2)
    torch.testing.assert_close(found.weights[order], weights, rtol=0, atol=0.03)
    torch.testing.assert_close(found.covariances[order], true.covariances, rtol=0.2, atol=0.2)
    scores = [GaussianMixture.fit(x, None, k, generator=seeded(1)).bic(x) for k in range(1, 6)]
    assert int(np.argmin(scores)) == 2  # three components


def test_more_starts_are_no_worse():
    x = rows(150)
    kwargs = {"n_components": 6, "regularisation": 0.0}
    one = [GaussianMixture.fit(x, generator=seeded(s), **kwargs) for s in range(4)]
    best = GaussianMixture.fit(x, n_init=8, generator=seeded(0), **kwargs)
    levels = [float(q.log_prob(x).mean()) for q in one]
    assert float(best.log_prob(x).mean()) > np.mean(levels)


def test_a_fit_is_equivariant_to_units():
    x, unit = rows(), torch.tensor([1e-4, 1.0, 1e5], dtype=DOUBLE)
    small = GaussianMixture.fit(x, None, 3, generator=seeded())
    large = GaussianMixture.fit(x * unit, None, 3, generator=seeded())
    torch.testing.assert_close(large.means, small.means * unit)
    torch.testing.assert_close(large.covariances, small.covariances * torch.outer(unit, unit))


def test_the_number_of_parameters():
    assert INSTANCES["space"].n_parameters == 4 + 15 + 5 * 6
    x = rows()
    log_likelihood = float(INSTANCES["space"].log_prob(x).sum())
    assert INSTANCES["space"].bic(x) == pytest.approx(49 * math.log(200) - 2 * log_likelihood)


HARD = {
    "duplicates": torch.tensor([[0.0, 1.0], [2.0, 0.0]]).repeat_interleave(50, 0),
    "constant": torch.cat([rows(50), torch.full((50, 1), 1e4 / 3)], 1),
    "all constant": torch.full((9, 2), 3.3),
    "few rows": rows(3),
    "fewer rows than columns": torch.randn(4, 9, generator=seeded()),
    "one row": torch.tensor([[1.0, 2.0]]),
    "copies": rows(50)[:, [0, 0, 1]],
    "outliers": torch.cat([rows(100), torch.full((1, 3), 1e6), -1e6 * torch.eye(3)]),
    "spike": torch.cat([torch.zeros(60, 2), torch.randn(60, 2, generator=seeded())]),
    "large": 1e12 + 1e7 * rows(50),
}


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("n_components", [1, 5])
@pytest.mark.parametrize("name", HARD)
def test_degenerate_rows_give_finite_densities(name, n_components, dtype):
    x = HARD[name].to(dtype)
    found = GaussianMixture.fit(x, None, n_components)
    assert found.means.dtype == dtype
    assert found.n_components <= min(n_components, len(x.unique(dim=0)))
    assert found.log_prob(x).isfinite().all()
    assert found.score(x).isfinite().all()
    assert found.sample(50, seeded()).isfinite().all()
    if name == "constant":
        torch.testing.assert_close(
            found.covariances[:, 3, 3],
            torch.ones(found.n_components, dtype=dtype),
            rtol=1e-2,
            atol=0,
        )


def test_weights_may_sum_to_one():
    x = rows()
    found = GaussianMixture.fit(x, torch.full((200,), 1e-6), 5)
    assert found.log_prob(x).isfinite().all()


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.ones(0, 2), {}, "n of at least 1"),
        ([[1.0]], {}, "floating-point rows"),
        (torch.ones(3, 2, 2), {}, "flat rows"),
        (torch.tensor([[1.0], [math.nan]]), {}, "row 1"),
        (torch.ones(3, 2), {"weight": torch.ones(2)}, "number per row"),
        (torch.ones(3, 2), {"weight": torch.zeros(3)}, "above zero"),
        (torch.ones(3, 2), {"n_components": 0}, "n_components must be an integer"),
        (torch.ones(3, 2), {"n_components": 2.0}, "n_components"),
        (torch.ones(3, 2), {"n_init": 0}, "n_init"),
        (torch.ones(3, 2), {"max_iter": True}, "max_iter"),
        (torch.ones(3, 2), {"regularisation": -1.0}, "regularisation"),
        (torch.ones(3, 2), {"regularisation": 1.0}, r"\[0, 1\)"),
        (torch.ones(3, 2), {"tol": math.nan}, "tol"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(x, kwargs, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture.fit(x, **kwargs)


HALF, TWO, EYES = torch.ones(2) / 2, torch.zeros(2, 2), torch.eye(2).expand(2, 2, 2)


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "message"),
    [
        (HALF, TWO.long(), EYES, "floating-point"),
        (HALF, TWO[0], EYES, r"\(K, d\)"),
        (HALF, TWO + math.nan, EYES, "means must be finite"),
        (torch.ones(3) / 3, TWO, EYES, "weights must be a tensor"),
        (torch.ones(2), TWO, EYES, "sum to 1"),
        (torch.tensor([1.0, 0.0]), TWO, EYES, "positive and sum"),
        (HALF, TWO, EYES[:1], r"\(2, 2, 2\)"),
        (HALF, TWO, EYES + torch.tensor([[0.0, 0.5], [0.0, 0.0]]), "symmetric"),
        (HALF, TWO, EYES * math.nan, "finite and symmetric"),
        (HALF, TWO, torch.stack([torch.eye(2), torch.ones(2, 2)]), "number 1 is not"),
        (HALF, TWO, -EYES, "positive definite"),
    ],
)
def test_bad_mixtures_are_refused(weights, means, covariances, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(weights, means, covariances)
