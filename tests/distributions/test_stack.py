"""Stacks of distributions: exact against one mixture; weights of held-out rows."""

import math

import pytest
import torch

from skebm.base import Clamp, Real
from skebm.distributions import (
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    KernelDensity,
    Stack,
    TruncatedGaussian,
    Uniform,
    stack,
)
from skebm.distributions.stack import covering_normal
from skebm.energies import whitening_of
from tests.distributions.test_kernel import as_mixture, scales
from tests.distributions.test_kernel import rows as normal_rows
from tests.distributions.test_mixture import (
    assert_conditional_draws_are_exact,
    assert_conditionals_equal_quadrature,
    assert_contract,
    grid,
    make_mixture,
)
from tests.support.oracle import DOUBLE, mean_is, seeded
from tests.support.tiers import full, leading

NAMES = ("means", "covariances")
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=DOUBLE)


def make_stack(d):
    parts = [
        make_mixture(3, d, seed=4),
        scales(normal_rows(12, d), 2),
        Gaussian(torch.ones(d, dtype=DOUBLE), 1.0),
    ]
    return Stack(parts, WEIGHTS)


def spelled_out(noise):
    """The mixture of the components of all parts."""
    mixtures = []
    for part in noise.parts:
        if isinstance(part, KernelDensity):
            part = as_mixture(part)
        elif isinstance(part, Gaussian):
            covariance = torch.diag(part.scale.square())
            part = GaussianMixture(torch.ones(1, dtype=DOUBLE), part.mean[None], covariance[None])
        mixtures.append(part)
    weights = torch.cat([a * q.weights for a, q in zip(noise.weights, mixtures, strict=True)])
    means, covariances = (torch.cat([getattr(q, name) for q in mixtures]) for name in NAMES)
    return GaussianMixture(weights, means, covariances)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_stacks_satisfy_the_contract(d):
    assert_contract(make_stack(d))


@pytest.mark.parametrize("d", [1, 3])
def test_densities_and_scores_equal_those_of_the_mixture(d):
    noise = make_stack(d)
    x = 3 * torch.randn(50, d, generator=seeded(), dtype=DOUBLE)
    value, score = spelled_out(noise).log_prob_and_score(x)
    torch.testing.assert_close(noise.log_prob(x), value)
    torch.testing.assert_close(noise.score(x), score)
    noisy = spelled_out(noise).convolved(0.5)
    torch.testing.assert_close(noise.convolved(0.5).log_prob(x), noisy.log_prob(x))
    assert noise.has_convolved


def test_densities_integrate_to_one():
    x, cell = grid(-15, 15, 3001, 1)
    assert float(make_stack(1).log_prob(x).exp().sum()) * cell == pytest.approx(1, abs=1e-7)


def test_draws_have_the_moments(generator):
    noise = make_stack(2)
    truth = spelled_out(noise)
    draws = noise.sample(20_000, generator)
    mean = truth.weights @ truth.means
    mean_is(draws, mean)
    squares = truth.covariances + truth.means[:, :, None] * truth.means[:, None]
    second = truth.weights @ squares.flatten(1)
    mean_is((draws[:, :, None] * draws[:, None]).flatten(1), second)


def test_marginals_integrate_the_other_columns_out():
    noise = make_stack(3)
    columns = torch.tensor([2, 0])
    truth = spelled_out(noise)
    exact = GaussianMixture(
        truth.weights, truth.means[:, columns], truth.covariances[:, columns][:, :, columns]
    )
    x = torch.randn(20, 2, generator=seeded(), dtype=DOUBLE)
    torch.testing.assert_close(noise.marginal(columns).log_prob(x), exact.log_prob(x))
    at, cell = grid(-20, 20, 2001, 1)
    for row in x[:3]:
        y = torch.cat([row[1].expand_as(at), at, row[0].expand_as(at)], 1)
        total = noise.log_prob(y).exp().sum() * cell
        torch.testing.assert_close(total.log(), noise.marginal(columns).log_prob(row[None])[0])


def test_marginals_of_a_diagonal_gaussian():
    noise = Gaussian(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])).marginal(torch.tensor([1]))
    assert (float(noise.mean), float(noise.scale)) == (2.0, 4.0)


def test_the_whitening_is_that_of_the_mixture():
    noise = make_stack(3)
    diagonal = noise.parts[2]
    dense = Gaussian(diagonal.mean, covariance=torch.diag(diagonal.scale.square()))
    found = whitening_of(Stack([*noise.parts[:2], dense], WEIGHTS))
    assert found is not None
    for ours, theirs in zip(found, whitening_of(spelled_out(noise)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert whitening_of(Stack([diagonal], torch.ones(1, dtype=DOUBLE))) is None


def test_distributions_without_marginals_say_so():
    noise = Uniform(Real((2,), 0.0, 1.0), DOUBLE)
    assert not noise.has_marginal
    with pytest.raises(TypeError, match="no marginals"):
        noise.marginal(torch.tensor([0]))


@pytest.mark.parametrize("d", leading(1, [2, 3]))
def test_conditional_means_equal_quadrature(d):
    assert_conditionals_equal_quadrature(make_stack(d))


def test_conditional_draws_are_exact(generator):
    assert_conditional_draws_are_exact(make_stack(3), 1, generator)


def test_further_entries_can_become_known():
    noise = make_stack(3)
    x = noise.sample(4, seeded())
    one = torch.zeros_like(x, dtype=torch.bool)
    one[:, 0] = True
    two = one.clone()
    two[:, 2] = True
    found = noise.given(Clamp(one, x)).given(Clamp(two, x)).mean
    torch.testing.assert_close(found, noise.given(Clamp(two, x)).mean)


@pytest.mark.parametrize(
    ("parts", "weights", "message"),
    [
        ([], torch.ones(1), "at least one"),
        ([1.0], torch.ones(1), "must be distributions"),
        (
            [Gaussian(torch.zeros(2), 1.0), IndependentBernoulli(torch.zeros(2))],
            torch.ones(2) / 2,
            "the same columns",
        ),
        ([TruncatedGaussian.fit(torch.rand(9, 2), None, 0.0, 1.0)], torch.ones(1), "unbounded"),
        ([Gaussian(torch.zeros(1, 2, 2), 1.0)], torch.ones(1), "flat"),
        ([Gaussian(torch.zeros(2), 1.0)] * 2, torch.ones(3) / 3, r"shape \(2,\)"),
        ([Gaussian(torch.zeros(2), 1.0)] * 2, torch.tensor([1.0, 0.0]), "positive"),
        ([Gaussian(torch.zeros(2), 1.0)] * 2, torch.ones(2), "sum to 1"),
        ([Gaussian(torch.zeros(2), 1.0)], torch.tensor([math.nan]), "positive"),
        ([Gaussian(torch.zeros(2), 1.0)], [1.0], "tensor"),
    ],
)
def test_parts_and_weights_that_do_not_fit_are_refused(parts, weights, message):
    with pytest.raises(ValueError, match=message):
        Stack(parts, weights)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def table(n, seed=0):
    """Two clusters on curves in three columns of very different scales."""
    g = seeded(seed)
    t = torch.rand(n, generator=g, dtype=DOUBLE)
    label = (torch.rand(n, generator=g, dtype=DOUBLE) < 0.3).to(DOUBLE)
    x = torch.stack([t, t.square() + label, torch.randn(n, generator=g, dtype=DOUBLE) * t], 1)
    x[:, 1] += 0.05 * torch.randn(n, generator=g, dtype=DOUBLE)
    return x * torch.tensor([1.0, 100.0, 0.01], dtype=DOUBLE)


def test_weights_maximise_the_likelihood():
    log_density = torch.randn(200, 4, generator=seeded(), dtype=DOUBLE)
    weight = torch.rand(200, generator=seeded(1), dtype=DOUBLE) + 0.1
    a = stack.stacking_weights(log_density, weight)
    assert float(a.sum()) == pytest.approx(1)

    def objective(a):
        likelihood = weight * 200 / weight.sum() @ (log_density + a.log()).logsumexp(1)
        return float(likelihood + a.log().sum() / 4)

    for i in range(4):
        for step in (-0.02, 0.02):
            other = a.clone()
            other[i] = other[i] * (1 + step)
            assert objective(other / other.sum()) < objective(a)


def test_parts_that_add_nothing_are_left_out():
    log_density = torch.randn(200, 1, generator=seeded(), dtype=DOUBLE).repeat(1, 4)
    log_density[:100, 2] += 1
    log_density[100:, 3] += 2
    weight = torch.ones(200, dtype=DOUBLE)
    kept, a = stack._select_parts(log_density, weight)
    assert kept == [2, 3]
    torch.testing.assert_close(a, stack.stacking_weights(log_density[:, kept], weight))
    whole = (log_density + stack.stacking_weights(log_density, weight).log()).logsumexp(1)
    fewer = (log_density[:, kept] + a.log()).logsumexp(1)
    assert float((whole - fewer).mean()) < stack.MOST_LOST


def test_a_fit_is_above_single_models_on_unseen_rows():
    x, unseen = table(300), table(1000, seed=1)
    stack = Stack.fit(x)
    assert len(stack.parts) > 1
    fitted = stack.log_prob(unseen)
    for other in (
        *(GaussianMixture.fit(x, n_components=k) for k in (1, 4, 16)),
        KernelDensity.fit(x),
        KernelDensity.fit(x, n_scales=4),
    ):
        assert (fitted - other.log_prob(unseen)).mean() > -0.02


@full
def test_rows_of_one_gaussian_need_no_more():
    x = normal_rows(400, 3)
    unseen = normal_rows(3000, 3, seed=5)
    loss = GaussianMixture.fit(x).log_prob(unseen) - Stack.fit(x).log_prob(unseen)
    assert float(loss.mean()) < 0.02


@full
def test_units_do_not_matter():
    x = table(300)
    scale = torch.tensor([10.0, 1e-3, 1e3], dtype=DOUBLE)
    one, other = Stack.fit(x), Stack.fit(x * scale)
    expected = one.log_prob(x) - scale.log().sum()
    torch.testing.assert_close(other.log_prob(x * scale), expected, rtol=0.02, atol=0.05)


def test_weights_count_as_repeated_rows():
    x = table(120)
    weight = torch.arange(len(x)) % 3
    weighted = Stack.fit(x, weight.to(DOUBLE))
    repeated = Stack.fit(x.repeat_interleave(weight, 0))
    torch.testing.assert_close(weighted.log_prob(x), repeated.log_prob(x))


@full
def test_repeated_rows_do_not_sharpen_the_density():
    x, unseen = table(200), table(500, seed=1)
    once = Stack.fit(x).log_prob(unseen).mean()
    twice = Stack.fit(torch.cat([x, x])).log_prob(unseen).mean()
    assert abs(float(once - twice)) < 0.05


@pytest.mark.parametrize(
    "x",
    [
        table(1),
        table(3),
        table(1).repeat(50, 1),
        table(100) * torch.tensor([1.0, 0.0, 1.0], dtype=DOUBLE),
        table(60)[:, [0, 0, 1]],
        table(100).round(decimals=0),
        table(100) * 1e8,
        torch.cat([table(100), table(1) + 1e6]),
        torch.randn(40, 60, generator=seeded(), dtype=DOUBLE),
    ],
    ids=[
        "one row",
        "three rows",
        "equal rows",
        "constant",
        "duplicated columns",
        "integers",
        "huge",
        "outlier",
        "wide",
    ],
)
def test_unusual_rows_have_finite_densities(x):
    fitted = Stack.fit(x)
    assert fitted.log_prob(x).isfinite().all()
    assert fitted.log_prob(fitted.sample(20, seeded())).isfinite().all()
    assert float(fitted.weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    "fit",
    [
        Stack.fit,
        lambda x: stack.with_broad_part(KernelDensity.fit(x), x),
        lambda x: stack.with_broad_part(KernelDensity.fit(x, n_scales=2), x),
        lambda x: stack.with_broad_part(GaussianMixture.fit(x, n_components=8), x),
    ],
    ids=["stack", "kernels", "kernels of scales", "mixture"],
)
def test_a_broad_part_bounds_what_a_row_may_lose(fit):
    x = 0.01 * normal_rows(200, 2) + torch.eye(4, 2).roll(1, 0).repeat(50, 1)
    normal = Gaussian.fit(x)
    at = normal.sample(300, seeded())
    # Kernels of the covariance of the rows are wider by up to one nat in two columns.
    assert float((normal.log_prob(at) - fit(x).log_prob(at)).max()) < math.log(201) + 1.1
    share = math.exp(-30)
    tiny = stack.with_broad_part(KernelDensity.fit(x), x, share=share)
    wider = covering_normal(x, torch.ones(len(x)))  # and thus less dense in its centre
    lost = float((normal.log_prob(at) - tiny.log_prob(at)).max())
    assert lost <= 30 + float(wider.log_volume() - normal.log_volume()) + 1e-6


def test_many_rows_are_subsampled(monkeypatch):
    monkeypatch.setattr(stack, "MOST_ROWS", 200)
    monkeypatch.setattr(stack, "MOST_CENTRES", 50)
    fitted = Stack.fit(table(400), generator=seeded())
    sizes = [len(part.centres) for part in fitted.parts if isinstance(part, KernelDensity)]
    assert all(size <= 50 for size in sizes)
    assert fitted.log_prob(table(100, seed=1)).isfinite().all()


def test_fits_repeat_and_report_progress():
    x, seen = table(150).float(), []

    def progress(candidates):
        for candidate in candidates:
            seen.append(candidate.name)
            yield candidate

    one = Stack.fit(x, generator=seeded(3), progress=progress)
    other = Stack.fit(x, generator=seeded(3))
    assert torch.equal(one.log_prob(x), other.log_prob(x))
    assert one.log_prob(x).dtype == torch.float32
    assert {"kernel", "mixture of 4"} <= set(seen)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.full((3, 2), math.nan), None, "finite"),
        (torch.zeros(3, 2), torch.zeros(3), "above zero"),
        (torch.zeros(3, 2), -torch.ones(3), "non-negative"),
        (torch.zeros(0, 2), None, "at least 1"),
        (torch.zeros(3, 1, 2), None, "flat"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(x, weight, message):
    with pytest.raises(ValueError, match=message):
        Stack.fit(x, weight)


def test_a_pair_of_stacks_is_that_of_separate_fits():
    x = torch.randn(150, 2, generator=torch.Generator().manual_seed(0)).cumsum(1)
    both, mixtures = Stack.fit_pair(x)
    for pair, single in ((both, Stack.fit(x)), (mixtures, Stack.fit(x, kernels=False))):
        assert [type(part) for part in pair.parts] == [type(part) for part in single.parts]
        torch.testing.assert_close(pair.log_prob(x), single.log_prob(x))
    assert not any(isinstance(part, KernelDensity) for part in mixtures.parts)


def test_a_covering_normal_is_nowhere_narrower_than_the_rows():
    """Of heavy tails, whose correlations are shrunk most."""
    x = torch.randn(40, 4, dtype=DOUBLE, generator=seeded())
    x = x / torch.rand(40, 1, dtype=DOUBLE, generator=seeded(1)) + 3 * x[:, :1]
    w = torch.ones(40, dtype=DOUBLE)
    covariance = torch.cov(x.t(), correction=0)
    shrunk, wide = Gaussian.fit(x).covariance, covering_normal(x, w).covariance
    assert float(torch.linalg.eigvalsh(shrunk - covariance)[0]) < -1e-3
    assert float(torch.linalg.eigvalsh(wide - covariance)[0]) > -1e-8 * float(wide.diagonal().max())
