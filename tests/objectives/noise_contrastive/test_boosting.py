"""Boosting of trees: ratios by enumeration, gains of fresh rows, nothing of nothing."""

import math

import numpy as np
import pytest
import torch

from skebm.base import Binary
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies.trees import Growth
from skebm.objectives.noise_contrastive.boosting import BoostingSettings, Sample, boost
from tests.support.oracle import DOUBLE, seeded

QUICK = BoostingSettings(learning_rate=0.2, most_trees=100)


def sample(x, weight=None):
    return Sample(x, torch.ones(len(x), dtype=DOUBLE) if weight is None else weight)


def pairs(n, seed):
    """Four bits of which the second and fourth repeat the first and third nine times in ten."""
    bits = (torch.rand(n, 2, generator=seeded(seed), dtype=DOUBLE) < 0.5).double()
    flips = (torch.rand(n, 2, generator=seeded(seed + 1), dtype=DOUBLE) < 0.1).double()
    return torch.stack([bits, (bits - flips).abs()], 2).flatten(1)


def test_the_model_of_bits_is_near_the_truth():
    """log p of each of 16 states, against the probabilities that the rows are drawn from."""
    base = IndependentBernoulli(torch.zeros(4, dtype=DOUBLE))
    found = boost(base, sample(pairs(4000, 0)), sample(pairs(1000, 5)), QUICK, seeded())
    states = Binary((4,)).states(0, 16, dtype=DOUBLE, device="cpu")
    log_p = (-found.trees(states)).log_softmax(0)
    agrees = (states[:, ::2] == states[:, 1::2]).double()
    truth = (agrees * math.log(0.45) + (1 - agrees) * math.log(0.05)).sum(1)
    kl = float((truth.exp() * (truth - log_p)).sum())
    assert 0 <= kl < 0.005
    gain = float((truth.exp() * truth).sum()) + 4 * math.log(2)
    assert found.gain == pytest.approx(gain, abs=4 * found.error)
    assert found.error < 0.05


def mixture(n, seed):
    """Two narrow normals in a column, and a column of noise."""
    x = 0.3 * torch.randn(n, 2, generator=seeded(seed), dtype=DOUBLE)
    x[:, 0] += torch.where(torch.rand(n, generator=seeded(seed + 1), dtype=DOUBLE) < 0.5, -1.0, 1.0)
    return x


def log_mixture(x):
    parts = torch.stack([-(x[:, 0] - m).square() / 0.18 for m in (-1.0, 1.0)]).logsumexp(0)
    return parts - math.log(2) - x[:, 1].square() / 0.18 - math.log(2 * math.pi * 0.09)


def test_gains_are_those_of_new_rows():
    rows = mixture(2000, 0)
    base = Gaussian.fit(rows)
    found = boost(base, sample(rows), sample(mixture(500, 4)), QUICK, seeded())
    new, draws = mixture(10_000, 8), base.sample(50_000, seeded(9))
    log_z = float((-found.trees(draws)).logsumexp(0)) - math.log(len(draws))
    true_gain = float((-found.trees(new)).mean()) - log_z
    possible = float((log_mixture(new) - base.log_prob(new)).mean())
    assert found.gain == pytest.approx(true_gain, abs=4 * found.error)
    assert 0.8 * possible < true_gain < possible


def test_rows_of_the_base_gain_nothing():
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    rows, held_out = base.sample(1000, seeded(1)), base.sample(1000, seeded(2))
    found = boost(base, sample(rows), sample(held_out), QUICK, seeded())
    assert found.gain < 2 * found.error + 0.01
    draws = base.sample(20_000, seeded(3))
    f = -found.trees(draws)
    assert float(f.mean() - (f.logsumexp(0) - math.log(len(f)))) > -0.02


def test_levels_that_hardly_occur_divide_no_rows():
    """Bits that are one in three of 1,000 rows, as levels of a column of names are."""
    rows = torch.cat([pairs(1000, 0), torch.zeros(1000, 300, dtype=DOUBLE)], 1)
    place = torch.arange(900) % 300 + 4
    rows[torch.arange(900), place] = 1.0
    base = IndependentBernoulli(torch.logit(rows.mean(0)))
    found = boost(base, sample(rows), sample(rows[:200]), QUICK, seeded())
    arrays = found.trees.arrays()
    assert set(arrays["column"][np.isfinite(arrays["threshold"])].ravel()) == {0, 1, 2, 3}
    assert found.gain > 0.5


def test_weights_count_but_not_their_scale():
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    rows, held_out = mixture(60, 0), mixture(60, 4)
    weight = 1.0 + (torch.arange(60) % 3).double()
    settings = BoostingSettings(0.2, 5, Growth(l2=0.0, min_rows=20))
    one = boost(base, sample(rows, weight), sample(held_out), settings, seeded())
    again = boost(base, sample(rows, 8 * weight), sample(held_out), settings, seeded())
    assert one.trees.n_trees > 0
    new = mixture(100, 6)
    equal = boost(base, sample(rows), sample(held_out), settings, seeded())
    assert not torch.equal(one.trees(new), equal.trees(new))
    torch.testing.assert_close(one.trees(new), again.trees(new))


def test_the_history_has_an_entry_for_each_tree():
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0)
    rows = mixture(300, 0)
    settings = QUICK._replace(most_trees=7)
    found = boost(base, sample(rows), sample(mixture(100, 4)), settings, seeded())
    assert [row["epoch"] for row in found.history] == [1, 2, 3, 4, 5, 6, 7]
    assert found.trees.n_trees <= 7
    assert found.history[-1]["train_loss"] < found.history[0]["train_loss"] < math.log(2)
    assert 0 < found.history[-1]["effective_share"] < 1
