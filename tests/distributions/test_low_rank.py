"""Mixtures of low rank: exact against full covariances; fits by EM; stacks and whitenings."""

import pytest
import torch
from sklearn.decomposition import FactorAnalysis

from skebm.base import Clamp
from skebm.distributions import Gaussian, GaussianMixture, LowRankMixture, Stack, low_rank, stack
from skebm.energies import MLP, LowRankWhitening, NeuralEnergy, Spec, whitening, whitening_of
from skebm.energies.path import GeometricPath
from tests.distributions.test_mixture import assert_conditional_draws_are_exact, assert_contract
from tests.support.oracle import DOUBLE, mean_is, row_gradients, seeded
from tests.support.tiers import full


def make(n_components, d, rank, seed=0, scale=1.0):
    g = seeded(seed)
    weights = torch.rand(n_components, generator=g, dtype=DOUBLE) + 0.2
    means = 2 * torch.randn(n_components, d, generator=g, dtype=DOUBLE)
    factors = scale * torch.randn(n_components, d, rank, generator=g, dtype=DOUBLE)
    variances = torch.rand(n_components, d, generator=g, dtype=DOUBLE) + 0.2
    return LowRankMixture(weights / weights.sum(), means, factors, variances)


def spelled_out(q):
    return GaussianMixture(q.weights, q.means, q.covariances)


SHAPES = [(1, 3, 0), (3, 1, 1), (3, 4, 2), (2, 3, 5)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@each_shape
def test_the_contract(shape):
    assert_contract(make(*shape))


@each_shape
def test_it_equals_the_mixture_of_full_covariances(shape):
    q = make(*shape)
    truth = spelled_out(q)
    x = 3 * torch.randn(40, shape[1], generator=seeded(1), dtype=DOUBLE)
    torch.testing.assert_close(q.log_prob(x), truth.log_prob(x))
    torch.testing.assert_close(q.score(x), truth.score(x))
    torch.testing.assert_close(q.component_log_probs(x).logsumexp(1), truth.log_prob(x))
    sigma = torch.linspace(0.0, 2.0, shape[1], dtype=DOUBLE)
    torch.testing.assert_close(q.convolved(sigma).log_prob(x), truth.convolved(sigma).log_prob(x))
    assert q.has_convolved
    assert isinstance(q.convolved(sigma), LowRankMixture)
    columns = torch.arange(shape[1]).flip(0)[:2]
    at = x[:, columns]
    torch.testing.assert_close(
        q.marginal(columns).log_prob(at), truth.marginal(columns).log_prob(at)
    )


@each_shape
def test_conditional_means_equal_those_of_full_covariances(shape):
    q = make(*shape)
    x = q.sample(30, seeded(2))
    mask = torch.rand(30, shape[1], generator=seeded(3)) < 0.5
    found, truth = q.given(Clamp(mask, x)), spelled_out(q).given(Clamp(mask, x))
    torch.testing.assert_close(found.mean, truth.mean)
    assert torch.equal(found.sample(seeded())[mask], x[mask])


def test_conditional_draws_are_exact(generator):
    assert_conditional_draws_are_exact(make(3, 3, 1), 1, generator)


def test_draws_have_the_moments(generator):
    q = make(3, 3, 2)
    draws = q.sample(20_000, generator)
    mean_is(draws, q.weights @ q.means)
    squares = q.covariances + q.means[:, :, None] * q.means[:, None]
    mean_is((draws[:, :, None] * draws[:, None]).flatten(1), q.weights @ squares.flatten(1))


def test_large_factors_do_not_cancel_in_single_precision():
    """Nearly equal columns: |z|^2 less its part along the factors would lose every digit."""
    q = make(1, 300, 1, scale=100.0)
    q = LowRankMixture(q.weights, q.means, q.factors, 1e-4 * q.variances)
    x = q.sample(20, seeded())
    single = q.to("cpu", torch.float32)
    # Rows are rounded first, which alone changes the density.
    torch.testing.assert_close(
        single.log_prob(x.float()).double(), q.log_prob(x.float().double()), rtol=0.02, atol=2.0
    )


def test_densities_do_not_depend_on_the_chunks(monkeypatch):
    q, x = make(3, 20, 2), torch.randn(50, 20, generator=seeded(), dtype=DOUBLE)
    value, score = q.log_prob_and_score(x)
    monkeypatch.setattr(low_rank, "AT_ONCE", 100)
    torch.testing.assert_close(q.log_prob_and_score(x), (value, score))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variances": torch.zeros(2, 3)}, "positive and finite"),
        ({"variances": torch.ones(3, 2)}, r"shape \(K, d\)"),
        ({"factors": torch.ones(2, 2, 1)}, "and a rank"),
        ({"weights": torch.tensor([0.5, 0.6])}, "sum to 1"),
        ({"weights": torch.ones(1)}, "one for each of the means"),
        ({"means": torch.full((2, 3), torch.nan)}, "finite"),
        ({"means": torch.ones(3)}, "means must be"),
    ],
)
def test_invalid_parameters_are_refused(change, message):
    valid = {
        "weights": torch.tensor([0.5, 0.5]),
        "means": torch.zeros(2, 3),
        "factors": torch.ones(2, 3, 1),
        "variances": torch.ones(2, 3),
    }
    with pytest.raises(ValueError, match=message):
        LowRankMixture(**(valid | change))


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def test_a_fit_of_one_component_is_factor_analysis():
    x = make(1, 12, 2).sample(800, seeded(1))
    kind = {"regularisation": 0.0, "prior_rows": 0.0, "tol": 1e-7, "max_iter": 1000}
    found = LowRankMixture.fit(x, rank=2, **kind)
    peer = FactorAnalysis(2, tol=1e-8, max_iter=5000).fit(x.numpy())
    covariance = torch.as_tensor(peer.get_covariance())
    torch.testing.assert_close(found.covariances[0], covariance, rtol=0.02, atol=0.02)
    assert float(found.log_prob(x).mean()) == pytest.approx(peer.score(x.numpy()), abs=1e-4)


def test_a_fit_finds_the_components():
    truth = make(3, 30, 3, seed=4)
    x = truth.sample(3000, seeded(1))
    found = LowRankMixture.fit(x[:2000], n_components=3, rank=3, prior_rows=1.0)
    gap = (truth.log_prob(x[2000:]) - found.log_prob(x[2000:])).mean()
    assert float(gap) < 1.0  # nats; of rows of 30 columns
    assert repr(found) == "LowRankMixture(3 components of rank 3, 30 columns)"


def test_em_raises_the_likelihood():
    x = make(2, 20, 3).sample(300, seeded(1))
    kind = {"n_components": 2, "rank": 2, "regularisation": 0.0, "prior_rows": 0.0, "tol": 0.0}
    path = [LowRankMixture.fit(x, max_iter=n, **kind).log_prob(x).mean() for n in range(1, 8)]
    assert all(after > before - 1e-9 for before, after in zip(path, path[1:], strict=False))


def test_a_factor_step_raises_the_likelihood_of_its_covariance():
    x = make(1, 6, 2).sample(100, seeded(1))
    x = x - x.mean(0)
    count, ridge = torch.tensor(100.0, dtype=DOUBLE), torch.zeros(6, dtype=DOUBLE)
    prior = low_rank.IndependencePrior(0.0, ridge)
    scatter = low_rank.Scatter.of(x, count, prior, ridge)
    factors = torch.randn(6, 2, generator=seeded(2), dtype=DOUBLE)
    own, path = (factors, torch.ones(6, dtype=DOUBLE)), []
    for _ in range(20):
        own = low_rank._factor_step(scatter, *own, ridge)
        path.append(LowRankMixture(torch.ones(1), 0 * x[:1], own[0][None], own[1][None]))
    values = torch.stack([q.log_prob(x).mean() for q in path])
    assert (values.diff() > 0).all()


def test_weights_count_as_repeated_rows():
    x = make(2, 8, 1).sample(60, seeded(1))
    weight = torch.arange(60) % 3
    weighted = LowRankMixture.fit(x, weight, 1, 2)
    repeated = LowRankMixture.fit(x.repeat_interleave(weight, 0), None, 1, 2)
    torch.testing.assert_close(weighted.log_prob(x), repeated.log_prob(x), rtol=1e-6, atol=1e-6)


def test_units_do_not_matter():
    x = make(2, 8, 1).sample(200, seeded(1))
    scale = torch.logspace(-3, 3, 8, dtype=DOUBLE)
    found = LowRankMixture.fit(x, None, 2, 1).log_prob(x)
    other = LowRankMixture.fit(x * scale + 5, None, 2, 1).log_prob(x * scale + 5)
    torch.testing.assert_close(other + scale.log().sum(), found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_few_rows_and_constant_columns_are_fitted(n):
    x = torch.randn(n, 30, generator=seeded(), dtype=DOUBLE)
    x[:, 3], x[:, 4] = 7.0, x[:, 5]
    found = LowRankMixture.fit(x, n_components=4, rank=40, regularisation=1e-5, prior_rows=0.0)
    assert found.log_prob(x).isfinite().all()
    assert found.sample(5, seeded()).isfinite().all()


# ------------------------------------------------------------------------------
# Stacks of many columns
# ------------------------------------------------------------------------------


@full
def test_a_stack_of_many_columns_has_low_rank(monkeypatch):
    monkeypatch.setattr(stack, "SHAPES", ((1, 16), (2, 8)))
    truth = make(2, 130, 5)
    x = truth.sample(600, seeded(1))
    found = Stack.fit(x[:300], low_rank=True, generator=seeded())
    assert all(isinstance(part, LowRankMixture) for part in found.parts)
    again = Stack.fit(x[:300], low_rank=True, generator=seeded())
    assert torch.equal(again.log_prob(x), found.log_prob(x))
    full = Gaussian.fit(x[:300]).log_prob(x[300:])
    assert float((found.log_prob(x[300:]) - full).mean()) > 10  # nats


@pytest.mark.parametrize("n", [1, 25])
def test_a_stack_of_few_rows_and_many_columns(n):
    x = torch.randn(n, 130, generator=seeded(), dtype=DOUBLE)
    assert Stack.fit(x, low_rank=True).log_prob(x).isfinite().all()


def test_parts_are_added_as_far_as_their_cost_allows():
    # Each of the first two is right about half of the rows, the third a little about all.
    first = torch.tensor([0.0, -9.0]).repeat(100)
    density = torch.stack([first, first.flip(0), torch.full((200,), -4.0)], 1).double()
    weight = torch.ones(200, dtype=DOUBLE)
    kept, a = stack._affordable(density, weight, [5.0, 5.0, 1.0], 0.01, 10.0)
    assert kept == [2, 0]  # the best one alone, and then one more for 6 of 10
    assert float(a.sum()) == pytest.approx(1)
    kept, _ = stack._affordable(density, weight, [5.0, 5.0, 11.0], 0.01, 10.0)
    assert sorted(kept) == [0, 1]
    kept, _ = stack._affordable(density, weight, [5.0, 5.0, 1.0], 100.0, 10.0)
    assert kept == [2]


def test_the_cost_of_a_stack_does_not_grow_with_the_square_of_the_columns():
    for d in (101, 500, 1200, 6000):
        found = stack._low_rank_candidates(1000, d, 0)
        assert all(candidate.cost <= max(8e4, 72 * d) for candidate in found)
        assert found[-1].name == "independent"
        assert len(found) > 2


@full
def test_thousands_of_columns_have_factors(generator):
    """Where a row of them takes more multiplications than one of a hundred columns may."""
    d = 3400
    factors = torch.randn(1, d, 2, generator=generator)
    q = LowRankMixture(torch.ones(1), torch.zeros(1, d), factors, torch.ones(1, d))
    x = q.sample(120, generator)
    gap = Stack.fit(x[:80], low_rank=True).log_prob(x[80:]) - q.log_prob(x[80:])
    assert float(gap.mean()) > -0.1 * d  # independent columns: -0.5 d


# ------------------------------------------------------------------------------
# Whitenings of many columns
# ------------------------------------------------------------------------------


def parts_of(d):
    return Stack([make(3, d, 2), make(1, d, 4, seed=1)], torch.tensor([0.6, 0.4], dtype=DOUBLE))


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(whitening, "MOST_DENSE", 5)


def matrix_of(found, d):
    return found.times(torch.eye(d, dtype=DOUBLE)).t()


def test_a_whitening_of_few_columns_is_that_of_full_covariances():
    q = parts_of(6)
    full = Stack([spelled_out(part) for part in q.parts], q.weights)
    for ours, theirs in zip(whitening_of(q), whitening_of(full), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_whitening_of_many_columns_whitens(many):
    q, d = parts_of(40), 40
    found = whitening_of(q)
    assert isinstance(found, LowRankWhitening)
    a, moments = matrix_of(found, d), whitening._moments(q)
    torch.testing.assert_close(found.transpose_times(torch.eye(d, dtype=DOUBLE)), a)
    torch.testing.assert_close(found.centre, moments.mean)
    white = a @ moments.covariance @ a.t()
    torch.testing.assert_close(white, white[0, 0] * torch.eye(d, dtype=DOUBLE))
    widest = torch.linalg.eigvalsh(a @ moments.components @ a.t()).max()
    assert float(widest) <= 1
    assert float(widest.clamp_min(white[0, 0])) == pytest.approx(whitening.MARGIN, rel=1e-3)


def test_directions_beyond_the_first_are_on_the_diagonal(many, monkeypatch):
    monkeypatch.setattr(whitening, "MOST_AXES", 2)
    q = parts_of(40)
    found = whitening_of(q)
    assert found.axes.shape == (40, 2)
    a, moments = matrix_of(found, 40), whitening._moments(q)
    # The model is proper: the reconstruction takes less than the precision of every component.
    assert float(torch.linalg.eigvalsh(a @ moments.components @ a.t()).max()) <= 1


def test_a_network_that_reconstructs_many_columns_has_right_derivatives(many):
    q = parts_of(8)
    spec = Spec((8,), seeded(), DOUBLE, whitening=whitening_of(q))
    network = MLP((6, 5)).build(spec)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(1), dtype=DOUBLE))
    energy = NeuralEnergy(network, q.domain, q)
    x = q.sample(5, seeded(2))
    value, grad = energy.value_and_grad(x)
    torch.testing.assert_close(value, energy(x))
    numeric = row_gradients(energy, x)
    torch.testing.assert_close(grad, numeric, rtol=1e-5, atol=1e-5)
    axes = torch.eye(8, dtype=DOUBLE)
    second = energy.second_derivatives(x, axes).second_derivative
    along = [
        row_gradients(lambda rows, i=i: energy.value_and_grad(rows)[1][:, i], x)[:, i]
        for i in range(8)
    ]
    torch.testing.assert_close(second, torch.stack(along).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own", [True, False])
def test_annealing_evaluates_the_base_of_a_network_once(own):
    """The bridges are the same whether the base is the energy's own or an equal one."""
    q = parts_of(6)
    network = MLP((5,)).build(Spec((6,), seeded(), DOUBLE))
    with torch.no_grad():
        network.last.fill_(0.5)
    energy = NeuralEnergy(network, q.domain, q)
    base = q if own else q.to("cpu", DOUBLE)
    assert energy.corrects(base) == own
    path = GeometricPath(energy, base)
    x = q.sample(5, seeded(1))
    value, grad = path.at(0.3).value_and_grad(x)
    expected = 0.3 * energy(x) - 0.7 * q.log_prob(x)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(grad, 0.3 * energy.value_and_grad(x)[1] - 0.7 * q.score(x))
    with torch.no_grad():
        torch.testing.assert_close(path.at(0.3)(x.clone()), expected)
