"""Merged p-values are p-values under any dependence, and no smaller factor would do."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq

from skebm.estimators import merge_p_values
from skebm.estimators.outlier.ensembles.merging import FACTORS, MEANS, harmonic_factor


def dependent(kind, n, k, random):
    """Uniform p-values, (n, k)."""
    u = random.random((n, 1))
    if kind == "equal":
        return np.tile(u, k)
    if kind == "opposite":
        return np.concatenate([u, *[1 - u] * (k - 1)], axis=1)
    if kind == "shifted":  # one small value at a time, evenly
        return (u + np.arange(k) / k) % 1
    return random.random((n, k))


@pytest.mark.parametrize("method", MEANS)
@pytest.mark.parametrize("kind", ["equal", "opposite", "shifted", "independent"])
def test_merged_p_values_are_p_values(method, kind):
    random, n = np.random.default_rng(0), 20_000
    for k in (1, 2, 3, 10):
        p = merge_p_values(1 - dependent(kind, n, k, random), method)
        for level in (0.01, 0.05, 0.3):
            assert np.mean(p <= level) <= level + 3 * np.sqrt(level / n)


def worst_for_mean(level, n, random):
    """Two p-values whose mean is level / 2 where the first is below the level."""
    u = random.random(n)
    return np.column_stack([u, np.where(u < level, level - u, u)])


def test_the_factor_of_the_mean_is_the_smallest():
    level, random = 0.2, np.random.default_rng(0)
    p = worst_for_mean(level, 20_000, random)
    assert np.mean(merge_p_values(p, "mean") <= level * (1 + 1e-9)) == pytest.approx(
        level, abs=0.01
    )
    assert np.mean(1.9 * p.mean(1) <= level) > 0.19


def test_the_factor_of_the_minimum_is_the_smallest():
    p = dependent("shifted", 20_000, 4, np.random.default_rng(0))
    assert np.mean(merge_p_values(p, "minimum") <= 0.2) == pytest.approx(0.2, abs=0.01)


def test_the_factor_of_the_harmonic_mean_is_that_of_its_equation():
    """Vovk and Wang (2020): y**2 = K ((y + 1) log(y + 1) - y), and (y + K)**2 / ((y + 1) K)."""
    for k in (3, 10, 100):
        root = brentq(lambda y: y**2 - k * ((y + 1) * np.log1p(y) - y), 0.5, 1e6)  # noqa: B023
        assert harmonic_factor(k) == pytest.approx((root + k) ** 2 / ((root + 1) * k), rel=1e-6)
    assert [harmonic_factor(k) for k in (1, 2)] == [1, 2]
    assert harmonic_factor(3) == pytest.approx(2.745, abs=0.01)
    assert harmonic_factor(100) == pytest.approx(7.46, abs=0.01)


def test_a_single_detector_keeps_its_p_values():
    p = np.array([[0.02], [0.5], [1.0]])
    for method in MEANS:
        assert_allclose(merge_p_values(p, method), p[:, 0])
    assert set(FACTORS) == set(MEANS)


@pytest.mark.parametrize(
    ("p", "method", "message"),
    [
        ([[0.1, 0.2]], "fisher", "method='fisher' must be one of 'mean', 'geometric'"),
        ([0.1, 0.2], "mean", r"shape \(2,\): pass \(n_samples, n_detectors\)"),
        (np.empty((3, 0)), "mean", "shape"),
        ([[0.1, 1.2]], "mean", r"p_values\[0, 1\] is 1.2"),
        ([[0.1, np.nan]], "mean", r"p_values\[0, 1\] is nan"),
        ([["small", 0.2]], "mean", "numbers only"),
    ],
)
def test_what_are_no_p_values(p, method, message):
    with pytest.raises(ValueError, match=message):
        merge_p_values(p, method)


def test_no_rows_and_zeros():
    assert merge_p_values(np.empty((0, 3)), "harmonic").shape == (0,)
    for method in ("geometric", "harmonic", "minimum"):
        assert merge_p_values([[0.0, 0.5]], method) == [0]
