"""Independent one-hot columns: probabilities, draws, fits and conditionals by enumeration."""

import math

import pytest
import torch

from skebm.base import Categorical, Clamp
from skebm.distributions import IndependentBernoulli, IndependentCategorical
from tests.support.distributions import assert_distribution
from tests.support.oracle import DOUBLE, P_FLOOR, Discrete, mean_is, seeded

GROUPS = (3, 1, 2, 4)
DOMAIN = Categorical(GROUPS)
N = sum(GROUPS)
STATES = torch.cat(list(DOMAIN.enumerate(dtype=DOUBLE)))
LOGITS = 1.5 * torch.randn(N, generator=seeded(1), dtype=DOUBLE)
IMPOSSIBLE = LOGITS.index_fill(0, torch.tensor([1, 7]), -math.inf)


def make(logits=LOGITS):
    return IndependentCategorical(logits, GROUPS)


def spelled_out(logits=LOGITS):
    """Probabilities of all states, from products over the columns."""
    p = []
    for row in STATES.tolist():
        probability, first = 1.0, 0
        for k in GROUPS:
            column = logits[first : first + k].exp().tolist()
            level = row[first : first + k].index(1.0)
            probability *= column[level] / sum(column)
            first += k
        p.append(probability)
    return torch.tensor(p, dtype=DOUBLE)


# ------------------------------------------------------------------------------
# The distribution
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "logits", [LOGITS, IMPOSSIBLE, LOGITS * 0], ids=["any", "impossible", "uniform"]
)
def test_probabilities_are_products_over_columns(logits):
    q, p = make(logits), spelled_out(logits)
    torch.testing.assert_close(q.log_prob(STATES).exp(), p)
    assert float(q.log_prob(STATES).exp().sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(q.mean, p @ STATES)


@pytest.mark.parametrize("logits", [LOGITS, IMPOSSIBLE], ids=["any", "impossible"])
def test_draws_follow_log_prob(logits):
    draws = make(logits).sample(20_000, seeded(2))
    assert draws.dtype == DOUBLE
    assert DOMAIN.contains(draws).all()
    assert Discrete(STATES, spelled_out(logits).log()).p_value(draws) > P_FLOOR
    assert make(logits).sample(0, seeded(2)).shape == (0, N)


@pytest.mark.parametrize("logits", [LOGITS, IMPOSSIBLE], ids=["any", "impossible"])
def test_the_distribution_satisfies_the_contract(logits):
    assert_distribution(make(logits))


def test_scores_are_differences_of_levels():
    q = make()
    score = q.score(STATES)
    for i in range(3):  # levels of the first column
        one = torch.zeros(N, dtype=DOUBLE)
        one[[i, 3, 4, 6]] = 1
        other = one.clone()
        other[[i, (i + 1) % 3]] = torch.tensor([0.0, 1.0], dtype=DOUBLE)
        gain = q.log_prob(other[None]) - q.log_prob(one[None])
        found = score[0] @ (other - one)
        torch.testing.assert_close(found, gain[0])
    assert score.shape == STATES.shape


def test_shifts_within_a_column_change_nothing():
    shift = torch.tensor([5.0, 5.0, 5.0, -2.0, 0, 0, 7.0, 7.0, 7.0, 7.0], dtype=DOUBLE)
    torch.testing.assert_close(make(LOGITS + shift).logits, make().logits)


def test_pairs_of_levels_are_bits():
    odds = torch.tensor([-2.0, 0.3], dtype=DOUBLE)
    pairs = IndependentCategorical(torch.stack([odds * 0, odds], 1).flatten(), (2, 2))
    bits = IndependentBernoulli(odds)
    x = torch.cat(list(pairs.domain.enumerate(dtype=DOUBLE)))
    torch.testing.assert_close(pairs.log_prob(x), bits.log_prob(x[:, [1, 3]]))


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("pseudo_count", [0.0, 1.0, 7.5])
def test_a_fit_adds_rows_of_equal_probabilities(pseudo_count):
    x = make().sample(200, seeded(3))
    q = IndependentCategorical.fit(x, GROUPS, pseudo_count=pseudo_count)
    equal = torch.cat([torch.full((k,), 1 / k, dtype=DOUBLE) for k in GROUPS])
    torch.testing.assert_close(q.mean, (x.sum(0) + pseudo_count * equal) / (200 + pseudo_count))


def test_a_fit_recovers_the_distribution_of_rows():
    x = make().sample(50_000, seeded(4))
    assert mean_is(x[:, [0, 1, 2, 4, 6, 7]], make().mean[[0, 1, 2, 4, 6, 7]]) < 4.5
    torch.testing.assert_close(
        IndependentCategorical.fit(x, GROUPS).mean, make().mean, atol=0.015, rtol=0
    )


def test_weights_count_as_repeated_rows():
    x = make().sample(6, seeded(5))
    weight = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 5.0], dtype=DOUBLE)
    weighted = IndependentCategorical.fit(x, GROUPS, weight)
    repeated = IndependentCategorical.fit(x.repeat_interleave(weight.long(), 0), GROUPS)
    torch.testing.assert_close(weighted.logits, repeated.logits)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_levels_that_do_not_occur_stay_finite(dtype):
    x = STATES[:1].to(dtype).repeat(10, 1)
    q = IndependentCategorical.fit(x, GROUPS)
    assert q.logits.dtype == dtype
    assert q.log_prob(STATES.to(dtype)).isfinite().all()


# ------------------------------------------------------------------------------
# What is known
# ------------------------------------------------------------------------------

# A level known to be on, two known to be off, both, all but one column, nothing.
KNOWN = [{0: 1.0}, {6: 0.0, 9: 0.0}, {2: 0.0, 5: 1.0}, {0: 1, 1: 0, 2: 0, 3: 1, 4: 0}, {}]


def clamp_of(known, n=1):
    mask, value = torch.zeros(n, N).bool(), torch.full((n, N), torch.nan, dtype=DOUBLE)
    for place, level in known.items():
        mask[:, place], value[:, place] = True, level
    return Clamp(mask, value)


def conditional(known, logits=LOGITS):
    agrees = torch.ones(len(STATES), dtype=torch.bool)
    for place, level in known.items():
        agrees &= STATES[:, place] == level
    return Discrete(STATES, (spelled_out(logits) * agrees).log())


@pytest.mark.parametrize(
    "logits",
    [LOGITS, LOGITS.index_fill(0, torch.tensor([1]), -math.inf)],
    ids=["any", "impossible"],
)
def test_conditional_means_equal_enumeration(logits):
    clamps = [clamp_of(known) for known in KNOWN]
    found = make(logits).given(Clamp(*(torch.cat(part) for part in zip(*clamps, strict=True))))
    expected = torch.stack([conditional(known, logits).mean(STATES) for known in KNOWN])
    torch.testing.assert_close(found.mean, expected)


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_conditional_draws_follow_enumeration(known):
    clamp = clamp_of(known, 10_000)
    draws = make().given(clamp).sample(seeded(6))
    assert torch.equal(draws[clamp.mask], clamp.value[clamp.mask])
    assert conditional(known).p_value(draws) > P_FLOOR


def test_conditioning_twice_equals_conditioning_once():
    found = make().given(clamp_of({0: 1.0})).given(clamp_of({6: 0.0}))
    torch.testing.assert_close(found.mean, make().given(clamp_of({0: 1.0, 6: 0.0})).mean)


def test_known_levels_may_have_had_probability_zero():
    found = make(IMPOSSIBLE).given(clamp_of({1: 1.0}))
    assert found.mean[0, :3].tolist() == [0.0, 1.0, 0.0]
    assert found.sample(seeded())[0, :3].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("known", "match"),
    [
        ({0: 1.0, 1: 1.0}, "must leave it one level"),
        ({4: 0.0, 5: 0.0}, "must leave it one level"),
        ({3: 0.0}, "must leave it one level"),
        ({0: 0.5}, "must be 0 or 1"),
        ({0: math.nan}, "finite"),
    ],
    ids=["two on", "all off", "the only level off", "a half", "nan"],
)
def test_contradictory_known_levels_are_refused(known, match):
    with pytest.raises(ValueError, match=match):
        make().given(clamp_of(known))


# ------------------------------------------------------------------------------
# Construction and storage
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "groups", "match"),
    [
        (torch.zeros(4), (3, 2), "one for each level"),
        (torch.zeros(2, 2), (2, 2), "one for each level"),
        (torch.zeros(3), (3, 0), "each of groups must be an integer of at least 1"),
        (torch.zeros(0), (), "groups must hold"),
        (torch.tensor([0.0, -math.inf, -math.inf]), (1, 2), "above minus infinity"),
        (torch.tensor([0.0, math.inf]), (2,), "below infinity"),
        (torch.tensor([0.0, math.nan]), (2,), "must be numbers"),
    ],
    ids=["few", "square", "empty column", "nothing", "impossible", "infinite", "nan"],
)
def test_invalid_logits_are_refused(logits, groups, match):
    with pytest.raises(ValueError, match=match):
        IndependentCategorical(logits, groups)


def test_a_fit_names_groups_that_do_not_fit():
    with pytest.raises(ValueError, match="have 5 levels, but rows of x have 10"):
        IndependentCategorical.fit(STATES, (3, 2))


def test_conditionals_have_the_precision_of_what_is_known():
    single = make().to("cpu", torch.float32)
    given = single.given(Clamp(*(part[:1] for part in clamp_of({0: 1.0}))))
    assert given.sample(seeded()).dtype == DOUBLE
