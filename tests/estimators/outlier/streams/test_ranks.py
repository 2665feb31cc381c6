"""Online conformal p-values: by their definition, independent and uniform, with any ties."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare, kstest

from skebm.estimators.outlier.streams.ranks import (
    AT_ONCE,
    SortedScores,
    online_p_values,
    rounded,
)


def scores_of(kind, random, n):
    if kind == "numbers":
        return random.normal(size=n)
    return random.choice([-np.inf, -2.0, -1.5, 0.0, np.inf], p=[0.1, 0.2, 0.5, 0.1, 0.1], size=n)


def by_definition(known, scores, u):
    known, found = list(known), []
    for s, v in zip(scores, u, strict=True):
        below, equal = sum(x < s for x in known), sum(x == s for x in known)
        found.append((below + v * (1 + equal)) / (len(known) + 1))
        known.append(s)
    return found


@pytest.mark.parametrize("kind", ["numbers", "ties"])
def test_p_values_are_those_of_the_definition(kind):
    random = np.random.default_rng(0)
    known, scores = scores_of(kind, random, 30), scores_of(kind, random, AT_ONCE + 90)
    u = 1 - random.random(len(scores))
    p, after = online_p_values(SortedScores((np.sort(known),)), scores, u)
    assert_allclose(p, by_definition(known, scores, u), rtol=1e-12)
    assert_array_equal(np.sort(np.concatenate(after.parts)), np.sort([*known, *scores]))


def test_rows_together_are_rows_one_after_the_other():
    random = np.random.default_rng(1)
    scores = scores_of("ties", random, 700)
    u = 1 - random.random(700)
    together, _ = online_p_values(SortedScores(), scores, u)
    known, found = SortedScores(), []
    for rows in np.split(np.arange(700), [1, 2, 2, 40, 600]):
        p, known = online_p_values(known, scores[rows], u[rows])
        found.append(p)
    assert_array_equal(np.concatenate(found), together)


def test_sorted_scores_are_few_arrays_of_any_number_of_values():
    random = np.random.default_rng(2)
    known, all_values = SortedScores(), []
    for _ in range(300):
        values = scores_of("ties", random, random.integers(0, 4))
        known, all_values = known.with_values(values), [*all_values, *values]
    assert len(known) == len(all_values)
    assert len(known.parts) <= 10
    below, equal = known.counts(np.array([-1.5, 5.0]))
    assert_array_equal(below, [np.sum(np.array(all_values) < v) for v in (-1.5, 5.0)])
    assert_array_equal(equal, [np.sum(np.array(all_values) == v) for v in (-1.5, 5.0)])


@pytest.mark.parametrize("kind", ["numbers", "ties"])
def test_p_values_are_independent_and_uniform(kind):
    """Of three rows after two: all 27 cells of thirds are equally likely."""
    random = np.random.default_rng(3)
    counts = np.zeros(27)
    every = []
    for _ in range(4000):
        scores = scores_of(kind, random, 5)
        p, _ = online_p_values(
            SortedScores((np.sort(scores[:2]),)), scores[2:], 1 - random.random(3)
        )
        every.append(p)
        counts[np.ravel_multi_index(np.minimum(p * 3, 2).astype(int), (3, 3, 3))] += 1
    assert kstest(np.ravel(every), "uniform").pvalue > 1e-3
    assert chisquare(counts).pvalue > 1e-3


def test_p_values_with_a_fixed_set_of_known_scores_would_depend_on_each_other():
    """So the test above can fail: they have one set in common, and are small or large together."""
    random = np.random.default_rng(3)
    counts = np.zeros(27)
    for _ in range(4000):
        scores = scores_of("numbers", random, 5)
        known = SortedScores((np.sort(scores[:2]),))
        p = [online_p_values(known, s[None], 1 - random.random(1))[0][0] for s in scores[2:]]
        counts[np.ravel_multi_index((np.array(p) * 3).clip(0, 2).astype(int), (3, 3, 3))] += 1
    assert chisquare(counts).pvalue < 1e-9


def test_rounding_makes_equal_what_differs_in_its_last_bits():
    scores = np.array([1.0, -3e-5, 7.7e300, -np.inf, np.inf, 0.0, 123.456])
    assert_allclose(rounded(scores), scores, rtol=2.0**-32)
    noisy = scores * (1 + np.array([1, -2, 2, 0, 0, 1, -1]) * 1e-15)
    assert_array_equal(rounded(noisy), rounded(scores))
    assert_array_equal(np.argsort(rounded(scores), kind="stable"), np.argsort(scores))
