"""How surprising rows are: shares of held-out rows, the nearest row, and values never seen."""

import math

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from skebm import EnergyOutlierDetector, ProductOfDensities, RowSurprise
from skebm.estimators.outlier.surprise import NearestRow, RankTail, UnseenValues
from tests.support.checks import parametrize_with_checks
from tests.support.tiers import full


def of_table(n, seed=0):
    """Codes of which one determines another, counts, and a measurement."""
    random = np.random.default_rng(seed)
    code = random.choice(40, n, p=np.arange(1, 41) / 820)
    return np.column_stack(
        [code, (7 * code) % 40, random.poisson(3, n), random.normal(size=n)]
    ).astype(float)


# ------------------------------------------------------------------------------
# Shares of held-out rows
# ------------------------------------------------------------------------------


def test_a_tail_is_the_share_of_held_out_rows_and_exponential_beyond_a_tenth():
    values = np.random.default_rng(0).permutation(np.arange(99.0))
    tail = RankTail.fit(values, np.ones(99))
    assert_allclose(tail.surprise(np.array([49.0, 98.0, 1e9])), [-math.log(0.51), 0, 0])
    edge = 8.0  # nine of 99 rows and the new one are at most that high
    scale = np.mean(edge - np.arange(8))
    expected = math.log(10) + (edge - np.array([8.0, 4.0, -100.0])) / scale
    assert_allclose(tail.surprise(np.array([8.0, 4.0, -100.0])), expected)
    assert tail.surprise(np.array([-np.inf]))[0] == np.inf


def test_weights_of_held_out_rows_are_copies_up_to_the_new_row():
    random = np.random.default_rng(0)
    values, weight = random.normal(size=400), random.integers(1, 4, 400).astype(float)
    copies = np.repeat(values, weight.astype(int))
    x = np.linspace(-4, 3, 50)
    one, other = RankTail.fit(values, weight), RankTail.fit(copies, np.ones(len(copies)))
    assert_allclose(one.surprise(x), other.surprise(x), atol=0.03)


@pytest.mark.parametrize("values", [[-np.inf, -np.inf], [2.0, 2.0, 2.0], [-np.inf, 0.0]])
def test_tails_of_hardly_any_values(values):
    tail = RankTail.fit(np.array(values), np.ones(len(values)))
    found = tail.surprise(np.array([-5.0, 0.0, 2.0, 9.0]))
    assert np.isfinite(found).all()
    assert (np.diff(found) <= 0).all()


# ------------------------------------------------------------------------------
# The nearest row
# ------------------------------------------------------------------------------


def test_rows_of_the_table_are_judged_by_the_others():
    X = np.random.default_rng(0).normal(size=(60, 3)) * [1, 10, 0.1]
    X[1] = X[0]
    found, itself = NearestRow.fit(X).distances(np.vstack([X, X[:5] + 1e-3]))
    scaled = X / X.std(0)
    exact = np.linalg.norm(scaled[:, None] - scaled, axis=2)
    np.fill_diagonal(exact, np.inf)
    assert_allclose(found[:60], exact.min(1), atol=1e-9)
    assert found[0] == 0  # another row is equal
    assert_array_equal(itself, [False] * 2 + [True] * 58 + [False] * 5)


# ------------------------------------------------------------------------------
# Values that were never seen
# ------------------------------------------------------------------------------


def test_a_new_value_is_as_surprising_as_values_that_occur_once_are_rare():
    X = np.column_stack([np.repeat([0.0, 1.0, 2.0], [50, 48, 1]), np.arange(99) / 7.0])
    unseen = UnseenValues.fit(X, np.ones(99))
    new = np.zeros(4, dtype=bool)
    rows = np.array([[0, 0.5], [3, 0.5], [2, 0.5], [0, 3 / 7]])
    rare = -math.log(2 / 100) - math.log(2)  # two columns are looked at
    assert_allclose(unseen.surprise(rows, new), [0, rare, 0, 0])
    # The row that has the rare value is judged by the others.
    assert_allclose(unseen.surprise(X[[0, -1]], ~new[:2]), [0, rare])


def test_pairs_and_rows_that_were_never_seen():
    random = np.random.default_rng(1)
    a = random.integers(0, 5, 400)
    X = np.column_stack([a, (2 * a) % 5, a % 2]).astype(float)
    unseen = UnseenValues.fit(X, np.ones(400))
    found = unseen.surprise(np.array([[1.0, 2, 1], [1, 3, 1], [9, 2, 1]]), np.zeros(3, dtype=bool))
    rate = math.log(401) - math.log(7)  # of three columns, three pairs and the row
    assert_allclose(found, [0, rate, rate])


@pytest.mark.parametrize("seed", range(3))
def test_what_is_never_seen_is_no_more_probable_than_it_says(seed):
    unseen = UnseenValues.fit(of_table(1000, seed), np.ones(1000))
    found = unseen.surprise(of_table(20_000, 10 + seed), np.zeros(20_000, dtype=bool))
    for nats in (2.0, 3.0, 5.0):
        assert (found >= nats).mean() <= 1.2 * math.exp(-nats)
    assert (found > 0).any()


def test_columns_of_measurements_hold_nothing_unseen():
    X = np.random.default_rng(0).normal(size=(300, 4))
    unseen = UnseenValues.fit(X, np.ones(300))
    assert not unseen.surprise(X[:9] + 5, np.zeros(9, dtype=bool)).any()


def test_numbers_of_single_precision_are_those_they_stand_for():
    X = of_table(300) / [3, 1, 7, 1]
    unseen = UnseenValues.fit(X, np.ones(300))
    itself = np.zeros(300, dtype=bool)
    assert_array_equal(unseen.codes(X.astype(np.float32).astype(float)), unseen.codes(X))
    assert not unseen.surprise(X.astype(np.float32).astype(float), itself).any()


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


def unequal_by_design(estimator):
    """A row that is repeated has another one like it, and one of weight two has not."""
    reason = "folds are drawn by row, and a row of weight two is one row"
    name = "check_sample_weight_equivalence_on_{}_data"
    return {name.format(kind): reason for kind in ("dense", "sparse")}


@parametrize_with_checks({"surprise": RowSurprise()}, unequal_by_design)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_surprise_is_the_mean_of_the_parts_and_what_was_never_seen():
    X, new = of_table(200), of_table(50, 1)
    model = RowSurprise(random_state=0).fit(X)
    experts = model.density_.experts_.values()
    parts = [-expert.score_samples(new) for expert in experts]
    assert len(model._tails) == len(parts) + 1
    tails = [t.surprise(-p) for t, p in zip(model._tails[:-1], parts, strict=True)]
    distance, itself = model._nearest.distances(new)
    last = model._tails[-1].surprise(-np.log(distance + model._nearest.offset))
    expected = np.mean([*tails, last], axis=0) + model._unseen.surprise(new, itself)
    assert_allclose(-model.score_samples(new), expected, atol=1e-9)


def test_surprise_of_new_rows_has_the_scale_of_nats():
    """A tenth of new rows is beyond the threshold, and e^-s of them about as surprising as s."""
    random = np.random.default_rng(0)
    X, new = random.normal(size=(1000, 3)), random.normal(size=(20_000, 3))
    model = RowSurprise(random_state=0).fit(X)
    assert (model.predict(new) == -1).mean() == pytest.approx(0.1, abs=0.025)
    surprise = -model.score_samples(new)
    for nats in (1.0, 2.0, 3.0):
        assert (surprise >= nats).mean() < 1.5 * math.exp(-nats)


def test_rows_of_the_table_are_about_as_surprising_as_new_ones():
    """By the density, whose kernels know the training rows, far more new ones are outliers."""
    X, new = of_table(800), of_table(4000, 1)
    rates = []
    for statistic in ("auto", "log_density"):
        detector = EnergyOutlierDetector(random_state=0, statistic=statistic).fit(X)
        assert (detector.predict(X) == -1).mean() == pytest.approx(0.1, abs=0.01)
        rates.append((detector.predict(new) == -1).mean())
    assert rates[0] == pytest.approx(0.1, abs=0.03)
    assert rates[1] > 0.15


def test_combinations_that_were_never_seen_are_found_by_default():
    X, normal, odd = of_table(800), of_table(400, 1), of_table(100, 2)
    odd[:, 1] = np.roll(odd[:, 1], 1)
    odd = odd[odd[:, 1] != (7 * odd[:, 0]) % 40]
    labels = np.repeat([0, 1], [len(normal), len(odd)])
    rows = np.vstack([normal, odd])
    new = EnergyOutlierDetector(random_state=0).fit(X).decision_function(rows)
    before = EnergyOutlierDetector(random_state=0, statistic="log_density").fit(X)
    assert roc_auc_score(labels, -new) > 0.98
    assert roc_auc_score(labels, -before.decision_function(rows)) < 0.9


@pytest.mark.parametrize("density", [GaussianMixture(2), ProductOfDensities(weights=[1, 0, 2])])
def test_any_density_is_calibrated(density):
    X = np.random.default_rng(0).normal(size=(200, 2))
    model = RowSurprise(density, random_state=0).fit(X)
    assert len(model._tails) == (4 if isinstance(density, ProductOfDensities) else 2)
    assert_array_equal(model.predict([[0.0, 0.0], [9.0, 9.0]]), [1, -1])


@pytest.mark.parametrize("n", [2, 5, 19])
def test_few_rows_are_judged_by_the_density_that_knows_them(n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    model = RowSurprise(random_state=0).fit(X)
    assert model.n_held_out_ == 0
    near, far = model.score_samples([X[0] + 1e-3, [50.0, 50.0]])
    assert np.isfinite(near)
    assert near > far


def test_constant_columns_one_row_and_values_far_away():
    X = np.column_stack([np.ones(60), np.random.default_rng(0).normal(size=60)])
    model = RowSurprise(random_state=0).fit(X)
    usual, other, far = model.score_samples([[1, 0.0], [2, 0.0], [1, 1e300]])
    assert usual > other > far
    model = RowSurprise(random_state=0).fit([[1.0, 2.0]])
    assert model.predict([[1.0, 2.0]]) == 1


def test_rows_without_density_are_infinitely_far_with_a_bulk():
    X = np.random.default_rng(0).normal(size=(100, 2))
    for bulk in (0.5, 1.0):
        model = RowSurprise(bulk=bulk, random_state=0).fit(X)
        assert model.score_samples([[1e200, 0.0]])[0] == -np.inf


def test_new_values_of_some_columns_are_no_news():
    X = of_table(200)
    model = RowSurprise(random_state=0).fit(X)
    row = np.array([[X[0, 0], X[0, 1], 2.5, 0.0]])
    before = model.score_samples(row)
    model.ignore_new_values([2])
    assert model.score_samples(row) > before + 2
    model.ignore_new_values([0, 1, 3])
    assert not model._unseen.events
    assert np.isfinite(model.score_samples(row))


def test_new_texts_and_later_dates_are_no_news_by_default():
    """Texts of which most occur once, and dates that go on, are new in most rows."""
    random = np.random.default_rng(0)

    def frame(n, begin):
        day = pd.Timestamp("2026-01-01") + pd.to_timedelta(begin + random.integers(0, 30, n), "D")
        return pd.DataFrame(
            {
                "day": day,
                "customer": [f"c{k}" for k in random.integers(0, 400, n)],
                "amount": random.normal(size=n),
            }
        )

    detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(frame(600, 0))
    assert (detector.predict(frame(600, 10)) == -1).mean() < 0.2


def test_copies_of_a_table_are_the_table():
    X = of_table(90)
    once, thrice = (RowSurprise(random_state=0).fit(np.tile(X, (k, 1))) for k in (1, 3))
    assert_allclose(thrice.score_samples(X), once.score_samples(X), rtol=1e-9)


def test_rows_of_weight_zero_are_ignored():
    X = of_table(120)
    weight = np.repeat([1.0, 0.0], 60)
    one = RowSurprise(random_state=0).fit(X, sample_weight=weight)
    other = RowSurprise(random_state=0).fit(X[:60], sample_weight=np.ones(60))
    assert_allclose(one.score_samples(X), other.score_samples(X), rtol=1e-9)


def test_the_statistic_surprise_needs_its_estimator():
    with pytest.raises(TypeError, match="needs RowSurprise, not GaussianMixture"):
        EnergyOutlierDetector(GaussianMixture(), statistic="surprise").fit(of_table(60))


@full
@pytest.mark.parametrize("seed", range(5))
def test_thresholds_of_held_out_rows_hold_for_new_ones(seed):
    X, new = of_table(2500, seed), of_table(10_000, 100 + seed)
    model = RowSurprise(random_state=seed).fit(X)
    assert (model.predict(new) == -1).mean() == pytest.approx(0.1, abs=0.04)
