"""Distributions: log-probabilities that sum to one, draws that follow them, weighted fits."""

import math

import pytest
import torch

from skebm.base import Binary, Clamp
from skebm.distributions import (
    Affine,
    CategoricalTree,
    ChowLiuTree,
    Columns,
    CorrelatedClasses,
    Distribution,
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    IndependentCategorical,
    KernelDensity,
    LatentClasses,
    LowRankMixture,
    NormalizingFlow,
    SignedLog,
    Stack,
    TruncatedGaussian,
    Uniform,
)
from skebm.distributions.trees.blocks import BlockTree
from skebm.energies.deep import FirstLayerRows
from skebm.energies.rbm.mixed import WiderColumns
from skebm.estimators.tables.densities import EstimatorDensity
from tests.distributions.trees import test_blocks, test_chow_liu
from tests.support.discovery import without_case
from tests.support.distributions import assert_distribution
from tests.support.oracle import DOUBLE, P_FLOOR, bits, chi_square, count_states, seeded

LOGITS = torch.tensor([-2.0, 0.0, 0.7, 1.5], dtype=DOUBLE)

# An enumerable instance of every distribution.
CASES = {
    IndependentBernoulli: [
        IndependentBernoulli(LOGITS),
        IndependentBernoulli.fit(bits(3)[:5]),
        IndependentBernoulli(torch.zeros(5, dtype=DOUBLE)),
    ],
    ChowLiuTree: [
        ChowLiuTree.fit(bits(4)[[0, 3, 3, 7, 8, 12, 15]], smoothing=0.1),
        *map(test_chow_liu.make_tree, test_chow_liu.SHAPES),
    ],
    BlockTree: [
        BlockTree.fit(bits(5)[[0, 3, 9, 9, 18, 18, 31]], block_size=2, smoothing=0.1),
        *map(test_blocks.tree, test_blocks.SHAPES),
    ],
    CategoricalTree: [
        CategoricalTree.fit(bits(4)[[0, 3, 3, 7, 8, 12, 15]], Binary((4,)), smoothing=0.1)
    ],
    LatentClasses: [
        LatentClasses(
            torch.tensor([0.3, -0.4], dtype=DOUBLE),
            Binary((4,)),
            logits=torch.stack([LOGITS, -LOGITS - 0.5]),
            mean=torch.zeros(2, 0, dtype=DOUBLE),
            scale=torch.ones(2, 0, dtype=DOUBLE),
        )
    ],
    # Those on one-hot, real and mixed rows have tests of their own: in tests/distributions/,
    # and tests/energies/rbm/test_mixed.py for their tilts.
    Columns: [],
    CorrelatedClasses: [],
    WiderColumns: [],
    IndependentCategorical: [],
    Affine: [],
    EstimatorDensity: [],
    FirstLayerRows: [],  # tests/estimators/deep/test_first_layer.py
    Gaussian: [],
    GaussianMixture: [],
    KernelDensity: [],
    LowRankMixture: [],
    NormalizingFlow: [],
    SignedLog: [],
    Stack: [],
    TruncatedGaussian: [],
    Uniform: [],
}
INSTANCES = [one for instances in CASES.values() for one in instances]
each_instance = pytest.mark.parametrize("noise", INSTANCES)


def test_every_distribution_has_a_case():
    assert without_case(Distribution, CASES, "CASES in tests/distributions/test_base.py") == []


@each_instance
def test_probabilities_sum_to_one(noise):
    x = torch.cat(list(noise.domain.enumerate()))
    assert noise.log_prob(x).shape == (len(x),)
    assert float(noise.log_prob(x).exp().sum()) == pytest.approx(1.0, abs=1e-12)


@each_instance
def test_draws_follow_log_prob(noise, generator):
    draws = noise.sample(20_000, generator)
    assert draws.dtype == DOUBLE
    assert noise.domain.contains(draws).all()
    p = noise.log_prob(bits(noise.domain.n_columns)).exp()
    assert chi_square(count_states(draws), p) > P_FLOOR


@each_instance
def test_distributions_satisfy_the_contract(noise):
    assert_distribution(noise)


# ------------------------------------------------------------------------------
# IndependentBernoulli
# ------------------------------------------------------------------------------


def test_bernoulli_logits_are_log_odds():
    q = IndependentBernoulli(LOGITS)
    for i, a in enumerate(LOGITS.tolist()):
        one = torch.zeros(1, 4, dtype=DOUBLE)
        one[0, i] = 1
        gain = q.log_prob(one) - q.log_prob(torch.zeros(1, 4, dtype=DOUBLE))
        assert float(gain) == pytest.approx(a)
        assert float(q.mean[i]) == pytest.approx(1 / (1 + math.exp(-a)))


def test_bernoulli_normaliser_sums_over_all_states():
    q = IndependentBernoulli(LOGITS)
    total = (bits(4) * LOGITS).sum(1).exp().sum().log()
    assert float(q.log_normaliser) == pytest.approx(float(total))


@pytest.mark.parametrize("pseudo_count", [0.5, 1.0, 10.0])
def test_a_fit_adds_rows_of_one_half(generator, pseudo_count):
    x = torch.bernoulli(torch.full((20, 3), 0.3, dtype=DOUBLE), generator=generator)
    q = IndependentBernoulli.fit(x, pseudo_count=pseudo_count)
    half = torch.full((20, 3), 0.5, dtype=DOUBLE)  # weighs as much as the pseudo-count together
    mean = (x.mean(0) * 20 + half.mean(0) * pseudo_count) / (20 + pseudo_count)
    torch.testing.assert_close(q.mean, mean)


def test_the_smoothing_vanishes_with_the_rows():
    x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], dtype=DOUBLE).repeat(5000, 1)
    mean = IndependentBernoulli.fit(x).mean
    torch.testing.assert_close(mean, x.mean(0), atol=1e-4, rtol=0)


def test_weights_count_as_repeated_rows(generator):
    x = torch.bernoulli(torch.full((6, 3), 0.5, dtype=DOUBLE), generator=generator)
    weight = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 5.0], dtype=DOUBLE)
    weighted = IndependentBernoulli.fit(x, weight)
    repeated = IndependentBernoulli.fit(x.repeat_interleave(weight.long(), 0))
    torch.testing.assert_close(weighted.logits, repeated.logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [None, 1.0, 0.0, 1e8])
def test_constant_columns_stay_finite(dtype, weight):
    """Also under weights so large that half a row is lost in rounding."""
    x = torch.tensor([[0.0, 1.0]], dtype=dtype).repeat(3, 1)
    q = IndependentBernoulli.fit(x, None if weight is None else torch.full((3,), weight).to(dtype))
    assert torch.isfinite(q.logits).all()
    assert torch.isfinite(q.log_prob(bits(2).to(dtype))).all()
    if weight != 0:
        assert q.logits[0] < 0 < q.logits[1]


# ------------------------------------------------------------------------------
# Tilts of all
# ------------------------------------------------------------------------------


def tilted_states(noise, field, power):
    """All states, and their log-weights under each row of the field, (n, 2 ** d)."""
    x = bits(noise.domain.n_columns)
    return x, power * noise.log_prob(x) + field @ x.t()


@pytest.mark.parametrize("scale", [0.0, 3.0, 50.0])
@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
@each_instance
def test_tilts_equal_enumeration(noise, power, scale):
    field = scale * torch.randn(7, noise.domain.n_columns, generator=seeded(11), dtype=DOUBLE)
    field, before = field.clamp_(-50, 50), field.clone()
    if power != 1 and not noise.has_powers:
        with pytest.raises(ValueError, match="no closed form"):
            noise.tilted(field, power)
        return
    tilt = noise.tilted(field, power)
    x, log_weight = tilted_states(noise, field, power)
    torch.testing.assert_close(tilt.log_normaliser, log_weight.logsumexp(1))
    torch.testing.assert_close(tilt.mean, log_weight.softmax(1) @ x, atol=1e-8, rtol=1e-7)
    draws = tilt.sample(seeded(1))
    assert noise.domain.contains(draws).all()
    assert draws.shape == field.shape
    assert draws.dtype == field.dtype
    assert torch.equal(tilt.sample(seeded(1)), draws)
    assert torch.equal(field, before)


@pytest.mark.parametrize("power", [0.3, 1.0])
@each_instance
def test_tilts_given_some_columns_sum_over_rows_that_agree(noise, power):
    power = power if noise.has_powers else 1.0
    field = 3 * torch.randn(7, noise.domain.n_columns, generator=seeded(11), dtype=DOUBLE)
    mask = torch.rand(field.shape, generator=seeded(12)) < 0.5
    mask[0], mask[-1] = False, True
    value = noise.domain.uniform(7, seeded(13), dtype=DOUBLE)
    x, log_weight = tilted_states(noise, field, power)
    wrong = (mask[:, None] & (x != value[:, None])).any(-1)  # (n, states)
    log_weight = log_weight.masked_fill(wrong, -torch.inf)
    tilt = noise.tilted(field, power).given(Clamp(mask, torch.where(mask, value, torch.nan)))
    torch.testing.assert_close(tilt.log_normaliser, log_weight.logsumexp(1))
    torch.testing.assert_close(tilt.mean, log_weight.softmax(1) @ x, atol=1e-8, rtol=1e-7)
    assert torch.equal(tilt.mean[mask], value[mask])
    assert torch.equal(tilt.sample(seeded(5))[mask], value[mask])


@pytest.mark.parametrize("power", [0.3, 1.0])
@each_instance
def test_draws_follow_the_tilt_of_their_row(noise, power):
    power = power if noise.has_powers else 1.0
    field = 2 * torch.randn(2, noise.domain.n_columns, generator=seeded(11), dtype=DOUBLE)
    draws = noise.tilted(field.repeat(10_000, 1), power).sample(seeded(3))
    assert draws.is_contiguous()
    for i, p in enumerate(tilted_states(noise, field, power)[1].softmax(1)):
        assert chi_square(count_states(draws[i::2]), p) > P_FLOOR


@each_instance
def test_flips_equal_differences(noise):
    x = bits(noise.domain.n_columns)[::3]
    flips = noise.flip_log_ratio(x)
    for i in range(x.shape[1]):
        flipped = x.clone()
        flipped[:, i] = 1 - x[:, i]
        torch.testing.assert_close(flips[:, i], noise.log_prob(flipped) - noise.log_prob(x))


def test_the_score_of_independent_columns_is_their_log_odds():
    """Samplers that follow gradients start there."""
    x = torch.tensor([[0.0, 1.0, 0.0, 1.0]], dtype=DOUBLE, requires_grad=True)
    (score,) = torch.autograd.grad(IndependentBernoulli(LOGITS).log_prob(x).sum(), x)
    torch.testing.assert_close(score[0], LOGITS)


def test_a_column_that_is_never_one_has_probability_zero_of_a_one():
    q = IndependentBernoulli(torch.tensor([-math.inf, 0.0], dtype=DOUBLE))
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=DOUBLE)
    assert q.log_prob(x).exp().tolist() == [0.5, 0.0]
