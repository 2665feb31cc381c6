"""Telescoping density ratios: waymarks between data and noise, and energies of their ratios."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy import integrate
from torch.nn.functional import softplus

from skebm.base import Batch, Real
from skebm.distributions import Gaussian
from skebm.energies import MLP, NeuralEnergy, Spec, Telescope, build_network, fit_waymarks
from skebm.objectives import NoiseContrastive
from tests.support.networks import build, normal_base
from tests.support.objectives import flat, gradient
from tests.support.oracle import DOUBLE, mean_is, seeded

SIEVE = 5


def normal(d, sd=1.0, mean=0.0):
    return Gaussian(torch.full((d,), mean, dtype=DOUBLE), sd)


def divergence(p, q):
    """Symmetric, of two Gaussians, in nats."""
    (_, (m,), (a,)), (_, (n,), (b,)) = p.components(), q.components()
    both = torch.linalg.solve(a, b).trace() + torch.linalg.solve(b, a).trace() - 2 * len(m)
    off = (m - n) @ (torch.linalg.solve(a, m - n) + torch.linalg.solve(b, m - n))
    return float(both + off) / 2


def marks(waymarks):
    """Waymarks as normal distributions."""
    parts = (torch.as_tensor(part) for part in waymarks)
    return [
        Gaussian(centre, covariance=torch.linalg.inv(w @ w))
        for _, centre, w in zip(*parts, strict=True)
    ]


# ------------------------------------------------------------------------------
# The waymarks
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("convex", [False, True])
def test_steps_are_of_equal_length(convex):
    data, noise = (
        normal_base(4, 1).to("cpu", DOUBLE),
        normal_base(4, 2).with_covariance_times(400.0),
    )
    waymarks = fit_waymarks(data, noise, 12, convex=convex)
    lengths = [
        divergence(a, b) ** 0.5 for a, b in zip(marks(waymarks), marks(waymarks)[1:], strict=False)
    ]
    assert max(lengths) < 1.2 * min(lengths)


@pytest.mark.parametrize("sd", [1e-3, 0.2, 30.0])
def test_the_number_of_bridges_follows_the_length_of_the_path(sd):
    """Independent columns whose deviation goes from sd to 1: sqrt(2 d) |log sd|."""
    waymarks = fit_waymarks(normal(6, sd), normal(6), "auto")
    assert waymarks.n_bridges == math.ceil(12**0.5 * abs(math.log(sd)) / 2)


def test_noise_near_the_data_needs_one_step():
    assert fit_waymarks(normal(20), normal(20, 1.5**0.5), "auto").n_bridges == 1


def test_whitening_matrices_are_those_of_combined_rows():
    data, noise = normal_base(3, 1), normal_base(3, 2)
    waymarks = fit_waymarks(data, noise, 4)
    one, two = data.sample(200_000, seeded(0)), noise.sample(200_000, seeded(1))
    for (a, b), centre, whitening in zip(*waymarks, strict=True):
        y = (a * one.numpy() + b * two.numpy() - centre) @ whitening
        np.testing.assert_allclose(y.mean(0), 0, atol=0.02)
        np.testing.assert_allclose(np.cov(y.T), np.eye(3), atol=0.02)


def test_waymarks_go_from_the_data_to_the_noise():
    waymarks = fit_waymarks(normal(2, 0.1), normal(2), 3)
    np.testing.assert_array_equal(waymarks.coefficients[[0, -1]], np.eye(2))
    np.testing.assert_allclose((waymarks.coefficients**2).sum(1), 1)
    inside = fit_waymarks(normal(2, 0.1, 0.5), normal(2, 0.3, 0.5), 3, convex=True)
    np.testing.assert_array_equal(inside.coefficients[[0, -1]], np.eye(2))
    np.testing.assert_allclose(inside.coefficients.sum(1), 1)


def test_equal_moments_give_evenly_spaced_angles():
    waymarks = fit_waymarks(normal(2), normal(2), 4)
    np.testing.assert_allclose(
        np.arctan2(*waymarks.coefficients.T[::-1]), np.linspace(0, np.pi / 2, 5)
    )


# ------------------------------------------------------------------------------
# The energy
# ------------------------------------------------------------------------------


def telescope(data, noise, n_bridges, network=build):
    waymarks = fit_waymarks(data, noise, n_bridges)
    shape = (data.domain.n_columns,)
    return Telescope([network(MLP((6, 5)), shape, seed=k) for k in range(n_bridges)], waymarks)


def zero(config, shape, seed):
    return build_network(config, Spec(shape, seeded(seed), DOUBLE))


def test_a_telescope_starts_at_the_normal_distribution_of_the_data():
    data, noise = normal_base(3, 1), normal_base(3, 2)
    energy = NeuralEnergy(telescope(data, noise, 3, zero), Real((3,)), noise)
    x = torch.randn(9, 3, generator=seeded(0), dtype=DOUBLE)
    torch.testing.assert_close(-energy(x), data.log_prob(x))


def test_a_telescope_is_the_sum_of_its_ratios():
    network = telescope(normal_base(3, 1), normal_base(3, 2), 4)
    x = torch.randn(9, 3, generator=seeded(0), dtype=DOUBLE)
    ratios = sum(network.log_ratio(x, k) for k in range(4))
    torch.testing.assert_close(network(x), -ratios)


def test_networks_of_images_get_images():
    waymarks = fit_waymarks(normal(12, 0.1), normal(12), 2)

    class Seen(torch.nn.Linear):
        def forward(self, x):
            assert x.shape[1:] == (1, 3, 4)
            return super().forward(x.flatten(1))[:, 0]

    images = torch.randn(5, 1, 3, 4)
    network = Telescope([Seen(12, 1), Seen(12, 1)], waymarks)
    assert network(images).shape == (5,)


def test_a_network_for_each_bridge():
    with pytest.raises(ValueError, match="need a network each"):
        Telescope([torch.nn.Linear(2, 1)], fit_waymarks(normal(2, 0.1), normal(2), 3))


# ------------------------------------------------------------------------------
# The objective
# ------------------------------------------------------------------------------


def narrow(n_bridges, mean=0.0):
    """An energy that is the narrow normal distribution it is trained on."""
    noise = normal(1)
    network = telescope(normal(1, 0.05, mean), noise, n_bridges, zero)
    return NoiseContrastive(NeuralEnergy(network, Real((1,)), noise), noise)


def test_each_bridge_is_a_classifier_of_neighbours():
    objective = narrow(3, 0.2)
    truth = 0.0
    for a, b in zip(
        marks(fit_waymarks(normal(1, 0.05, 0.2), normal(1), 3)), range(1, 4), strict=False
    ):
        b = marks(fit_waymarks(normal(1, 0.05, 0.2), normal(1), 3))[b]
        p, q = (scipy.stats.norm(float(m.mean), float(m.scale_tril)) for m in (a, b))
        grid = np.linspace(-8, 8, 200_001)
        odds = p.logpdf(grid) - q.logpdf(grid)
        loss = p.pdf(grid) * np.logaddexp(0, -odds) + q.pdf(grid) * np.logaddexp(0, odds)
        truth += integrate.trapezoid(loss, grid) / 3
    values = []
    for seed in range(200):
        x = 0.2 + 0.05 * torch.randn(200, 1, generator=seeded(seed), dtype=DOUBLE)
        values.append(objective.rowwise(x, seeded(1000 + seed)).mean()[None].detach())
    assert mean_is(torch.stack(values), truth) < SIEVE


def test_the_expected_gradient_vanishes_at_the_truth():
    objective = narrow(3)
    off = narrow(3)
    with torch.no_grad():
        off.shift[1] += 0.04  # times ten, in nats

    def gradients(objective):
        found = []
        for seed in range(100):
            x = 0.05 * torch.randn(200, 1, generator=seeded(seed), dtype=DOUBLE)
            grads, _ = gradient(objective, Batch(x), None, 1000 + seed)
            found.append(torch.cat([flat(grads), objective.shift.grad.clone()]))
        found = torch.stack(found)
        return found[:, found.std(0) > 0]  # inner layers stand still while the last one is zero

    assert mean_is(gradients(objective), 0.0) < SIEVE
    assert mean_is(gradients(off), 0.0) > 2 * SIEVE


@pytest.mark.parametrize("m", [1, 3, 4, 6, 7])
def test_all_rows_and_all_draws_are_used(m):
    objective = narrow(2)
    x, other = (
        torch.arange(4.0, dtype=DOUBLE)[:, None],
        torch.arange(1.0, m + 1)[:, None].to(DOUBLE),
    )
    other.requires_grad_(True)
    found = objective._bridges(x, other)
    assert found.loss.shape == (4,)
    (used,) = torch.autograd.grad(found.loss.sum(), other)
    assert (used != 0).all()


def test_one_bridge_equals_noise_contrastive_estimation():
    """Of one bridge the loss is that of the one classifier, and the normal part known."""
    objective = narrow(1)
    x, other = 0.05 * torch.ones(3, 1, dtype=DOUBLE), torch.full((3, 1), 0.4, dtype=DOUBLE)
    ratio = objective.log_ratio(torch.cat([x, other])).detach()
    expected = softplus(-ratio[:3]) + softplus(ratio[3:])
    torch.testing.assert_close(objective._bridges(x, other).loss.detach(), expected)


def test_weights_are_repeated_rows():
    objective = narrow(3)
    x = 0.05 * torch.randn(6, 1, generator=seeded(0), dtype=DOUBLE)
    count = torch.tensor([1.0, 3, 0, 2, 1, 1], dtype=DOUBLE)
    objective.noise_ratio = 0.1  # one draw for either
    by_weight, _ = gradient(objective, Batch(x, weight=count * 6 / 8), None, 0)
    by_rows, _ = gradient(objective, Batch(x.repeat_interleave(count.long(), 0)), None, 0)
    torch.testing.assert_close(flat(by_weight), flat(by_rows))


def test_the_monitor_reports_the_best_classified_bridge():
    objective = narrow(2)
    x = 0.05 * torch.randn(2000, 1, generator=seeded(0), dtype=DOUBLE)
    logs = objective.monitor(Batch(x), None, seeded(1))
    assert set(logs) == {"loss", "accuracy"}
    right = objective._bridges(*objective._pair(x, seeded(1))).right.mean(1)
    assert float(logs["accuracy"]) == pytest.approx(float(right.max()))
    assert 0.6 < float(logs["accuracy"]) < 1


def test_ranks_have_no_bridges():
    energy = narrow(2).energy
    with pytest.raises(ValueError, match="does not support bridges"):
        NoiseContrastive(energy, energy.base, form="ranking")
