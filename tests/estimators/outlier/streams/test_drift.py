"""Drift by column: which columns have moved, at an exact level for each kind of column."""

import datetime

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import fisher_exact

from skebm.estimators.outlier.columns import MAX_LEVELS
from skebm.estimators.outlier.streams.drift import column_drift, column_tests, holm, rate_p_value
from tests.support.tiers import leading


def table(n, seed):
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "number": random.normal(size=n),
            "tail": random.standard_cauchy(n).round(1),
            "count": random.poisson(1.5, n),
            "flag": random.random(n) < 0.1,
            "kind": pd.Categorical(random.choice(["a", "b", "c"], n, p=[0.6, 0.39, 0.01])),
            "holes": np.where(random.random(n) < 0.2, np.nan, random.normal(size=n)),
            "id": [f"{seed}-{i}" for i in range(n)],
            "same": 7,
        }
    )


CHANGES = {
    "number": lambda t: t.assign(number=t.number + 1),
    "count": lambda t: t.assign(count=t["count"] + 1),
    "flag": lambda t: t.assign(flag=~t.flag),
    "kind": lambda t: t.assign(kind=t.kind.astype(object).where(t.index % 3 > 0, "new")),
    "holes": lambda t: t.assign(holes=t.holes.where(t.index % 2 > 0)),
    "same": lambda t: t.assign(same=8),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_column_that_moved_is_named(name):
    found = column_drift(table(300, 0), [CHANGES[name](table(150, 1))], 0.05)
    assert found.moved == [name]
    assert (found.n_reference, found.n_recent) == (300, 150)


def test_what_moved_is_said():
    new = CHANGES["kind"](CHANGES["holes"](table(150, 1)))
    frame = column_drift(table(300, 0), [new[:50], new[50:]], 0.05).to_frame().set_index("what")
    assert frame.loc["rate of 'new'", ["before", "after"]].tolist() == [0, 50 / 150]
    missing = frame.loc["rate of missing entries"]
    assert missing.column == "holes"
    assert missing.before == pytest.approx(0.2, abs=0.06)
    assert missing.after > 0.5
    assert frame.p_value.is_monotonic_increasing
    assert frame.moved.tolist() == (frame.p_value <= 0.05).tolist()


@pytest.mark.parametrize("n", leading(1, [(60, 40), (30, 200)]))
def test_the_family_wise_error_is_at_most_the_level(n):
    level, repeats, named = 0.2, 60, 0
    for seed in range(repeats):
        X = table(sum(n), seed)
        X["twin"] = X["number"]  # columns that depend on each other
        named += bool(column_drift(X[: n[0]], [X[n[0] :]], level).moved)
    assert named / repeats <= level + 3 * np.sqrt(level * (1 - level) / repeats)


@pytest.mark.parametrize("kind", leading(2, ["kind", "holes", "number", "flag"]))
def test_each_test_has_its_level(kind):
    """p-values of one test are stochastically larger than uniform ones, and not all of them 1."""
    smallest = []
    X = table(300 * 100, 0)[kind].to_numpy()
    for part in np.split(X, 300):
        tests = column_tests(kind, [part[:60]], [part[60:]])
        smallest.append(tests[-1].p_value)
    for level in (0.05, 0.2, 0.5):
        rate = np.mean(np.array(smallest) <= level)
        assert rate <= level + 3 * np.sqrt(level * (1 - level) / 300)
    assert np.mean(np.array(smallest) <= 0.5) > 0.1


def test_rates_are_compared_by_fishers_exact_test():
    for k, m, n, N in [(0, 5, 20, 30), (7, 1, 20, 30), (3, 5, 20, 30), (0, 0, 5, 5), (5, 5, 5, 5)]:
        sides = [
            fisher_exact([[k, n - k], [m, N - m]], alternative=side).pvalue
            for side in ("less", "greater")
        ]
        assert rate_p_value((k, m), (n, N)) == pytest.approx(min(1, 2 * min(sides)))


def test_holms_method():
    assert_allclose(holm([0.01, 0.04, 0.03, 0.5]), [0.04, 0.09, 0.09, 0.5])
    assert_allclose(holm([0.9, 0.6]), [1, 1])
    assert len(holm([])) == 0


def test_columns_of_any_kind():
    day = datetime.date(2024, 1, 1)
    old = np.array([[1.0, "x", None, day], [None, 3, "x", day]] * 20, dtype=object)
    new = np.array([["y", "x", np.nan, day]] * 20, dtype=object)
    found = column_drift(old, [new], 0.05)
    assert {"x0", "x2"} <= set(found.moved)
    assert "x1" in found.moved


def test_columns_without_values_have_no_test_of_values():
    old, new = np.full((5, 1), np.nan), np.arange(4.0)[:, None]
    found = column_drift(old, [new], 0.05)
    assert found.what == ["rate of missing entries"]
    assert found.before.tolist() == [1]
    assert column_drift(old, [old], 0.05).p_values.tolist() == [1]


def test_identifiers_and_many_levels_do_not_move():
    ids = np.array([[f"id {i}"] for i in range(400)], dtype=object)
    assert column_drift(ids[:200], [ids[200:]], 0.05).moved == []
    towns = np.array([[f"town {i % (2 * MAX_LEVELS)}"] for i in range(800)], dtype=object)
    assert column_drift(towns[:400], [towns[400:]], 0.05).moved == []


def test_large_samples_are_compared_in_the_limit():
    random = np.random.default_rng(0)
    old, new = random.normal(size=(20_000, 1)), random.normal(size=(3000, 1))
    assert column_drift(old, [new], 0.01).moved == []
    assert column_drift(old, [new + 0.15], 0.01).moved == ["x0"]
    assert column_drift(old, [np.where(new > 1, np.inf, new)], 0.01).moved == ["x0"]
