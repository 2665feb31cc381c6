"""log Z during training: also that of mass where no draw of the base lies."""

import math

import pytest
import torch
from torch import nn

from skebm.base import Binary, Real
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.objectives.log_partition import BELIEVED, LogPartitionMonitor


class Growing(nn.Module):
    """A correction a * |x_1|: it grows in one direction, with a mode at a."""

    def __init__(self, a, flat_up_to=0.0):
        super().__init__()
        self.a, self.flat = nn.Parameter(torch.tensor(a)), flat_up_to

    def correction(self, x):
        return -self.a * (x[:, 0] - self.flat).clamp(min=0)


def monitor_of(d):
    return LogPartitionMonitor(Gaussian(torch.zeros(d), torch.ones(d)), Real((d,)))


@pytest.mark.parametrize("d", [1, 3, 10])
def test_a_mode_far_from_the_base_is_found(d):
    """The mass beyond 6 is exp(a (a / 2 - 6)) of a normal distribution: 700 nats for a = 44."""
    energy = Growing(44.0, flat_up_to=6.0)
    truth = 44.0**2 / 2 - 6 * 44.0
    rows = torch.zeros(50, d)
    found, _ = monitor_of(d).log_partition(energy, None)
    assert truth - 400 < found < truth + BELIEVED
    assert monitor_of(d).gains(energy, rows, None)["gain_over_base"] < -200


@pytest.mark.parametrize("a", [0.0, 0.5, 1.5])
def test_a_model_near_its_base_has_the_estimate_of_the_base(a):
    """Z is exp(a^2 / 2) Phi(a) + 1 / 2; wider bases are no better there, and are not believed."""
    found, error = monitor_of(2).log_partition(Growing(a), None)
    phi = (1 + math.erf(a / math.sqrt(2))) / 2
    assert abs(found - math.log(math.exp(a**2 / 2) * phi + 0.5)) < 4 * error + 1e-6


def test_an_estimate_from_a_wide_base_is_unbiased():
    total = 0.0
    for seed in range(200):
        monitor = monitor_of(1)
        monitor._draws = torch.randn(1000, 1, generator=torch.Generator().manual_seed(seed))
        far = monitor.log_partition_far(lambda x: torch.zeros(len(x)))
        total += math.exp(far) / 200
    assert total < 3  # the largest of six estimates of 1


def test_there_is_nothing_far_where_space_is_bounded():
    bits = LogPartitionMonitor(IndependentBernoulli(torch.zeros(3)), Binary((3,)))
    box = LogPartitionMonitor(None, Real((3,), 0.0, 1.0))
    for monitor in (bits, box):
        monitor.draws(torch.zeros(1, 3))
        found = monitor.log_partition_far(lambda x: x[:, 0])
        assert found == -math.inf
