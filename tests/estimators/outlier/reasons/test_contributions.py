"""Evidence that entries are wrong, and pairs that contradict each other, against closed forms."""

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.stats import norm
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from skebm import EnergyOutlierDetector, RBMEstimator, TractableDensity
from skebm.estimators.outlier.columns import summarise_column, summarise_columns
from skebm.estimators.outlier.reasons.contributions import LogMarginal, disjoint_pairs
from tests.support.tables import binary_rows
from tests.support.tiers import full


def gaussian(n=1500, seed=0, spread=0.3):
    """The second column is near the first; the others are independent, in other units."""
    x = np.random.default_rng(seed).normal(size=(n, 4))
    x[:, 1] = x[:, 0] + spread * x[:, 1]
    return x * [1, 1, 50, 0.01] + [0, 0, 300, 7]


def marginals(X):
    return [LogMarginal.of(column) for column in summarise_columns(X, text_is_dates=False)]


# ------------------------------------------------------------------------------
# Closed forms
# ------------------------------------------------------------------------------


def test_densities_of_columns_and_of_wrong_entries():
    x = np.random.default_rng(0).normal(300, 50, 4000)
    density = LogMarginal.of(summarise_column("x", x))
    inside = np.linspace(200, 400, 41)
    assert_allclose(density(inside), norm(300, 50).logpdf(inside), atol=0.25)
    for log_p in (density, density.of_wrong_entry):
        far = np.linspace(-2e4, 2e4, 80_001)
        assert trapezoid(np.exp(log_p(far)), far) == pytest.approx(1, abs=1e-3)
    # Student's t with two degrees of freedom has the tail v^-3.
    far = density.of_wrong_entry(np.array([1e6, 1e300]))
    assert far[0] - far[1] == pytest.approx(3 * np.log(1e294), rel=1e-4)


def test_units_and_constant_middles_of_columns():
    x = np.r_[np.zeros(60), np.random.default_rng(0).normal(size=40)]
    v = np.array([-1.0, 0.0, 0.3])
    one, other = (LogMarginal.of(summarise_column("x", scale * x)) for scale in (1, 1e200))
    assert_allclose(one(v), other(v * 1e200) + np.log(1e200))
    assert np.isfinite(one(v)).all()


def test_gaussians_in_closed_form():
    X = gaussian()
    normal = GaussianMixture(reg_covar=0).fit(X)
    rows = np.concatenate([X[:4], X[4:6] + [0, 2, 0, 0], X[6:7] + [0, 0, 400, 0]])
    precision = np.linalg.inv(normal.covariances_[0])
    sd = 1 / np.sqrt(np.diag(precision))
    mean = rows - (rows - normal.means_[0]) @ precision * sd**2
    log_q = np.column_stack(
        [q.of_wrong_entry(v) for q, v in zip(marginals(X), rows.T, strict=True)]
    )
    found = EnergyOutlierDetector(normal, prefit=True).fit(X).explain(rows)
    truth = log_q - norm(mean, sd).logpdf(rows)
    near = np.abs(mean - X.mean(0)) < 2 * X.std(0)  # the range of fit has the conditional density
    assert near.sum() >= 25
    assert_allclose(found.contributions[near], truth[near], rtol=1e-3, atol=0.03)
    assert found.unit == "nats"
    assert_array_equal(found.contributions[4:].argmax(1)[2:], [2])
    # A usual value of an independent column is no evidence; that of a dependent one speaks for it.
    assert np.abs(found.contributions[:4, 2:]).max() < 0.6
    assert found.contributions[:4, :2].max() < found.contributions[:4, 2:].min()


@pytest.mark.parametrize("own", [[1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]])
def test_bits_are_log_odds(own):
    model = RBMEstimator(3, n_iter=30, random_state=0, dtype="float64").fit(X := binary_rows(200))
    row = np.array([own], dtype=float)
    found = EnergyOutlierDetector(model, prefit=True).fit(X).explain(row)
    for j in range(6):
        other = row.copy()
        other[0, j] = 1 - row[0, j]
        log_odds = model.score_samples(other) - model.score_samples(row)
        assert found.contributions[0, j] == pytest.approx(log_odds.item() + np.log(0.9), abs=1e-6)
        assert found.expected[0, j] == (other if log_odds > 0 else row)[0, j]


def levels(n=300):
    random = np.random.default_rng(0)
    first = random.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    second = np.where(random.random(n) < 0.9, first, random.choice(["a", "b", "c"], n))
    return np.column_stack([first, second]).astype(object)


def for_levels():
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return EnergyOutlierDetector(make_pipeline(encoder, KernelDensity(bandwidth=0.4)))


def test_levels_by_enumeration():
    X = levels()
    detector = for_levels().fit(X)
    names, counts = np.unique(X[:, 0].astype(str), return_counts=True)
    m = counts / len(X)
    log_p = detector.score_samples(np.array([[name, "a"] for name in names], dtype=object))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = detector.explain(np.array([["c", "a"], ["new", "a"]], dtype=object))
    truth = 0.9 * sum(p[u] * m[2] / (1 - m[u]) for u in (0, 1)) / p[2]
    assert found.contributions[0, 0] == pytest.approx(np.log(truth))
    own = detector.score_samples(np.array([["new", "a"]], dtype=object)).item()
    truth = np.log(0.1) + np.log(np.exp(log_p).sum()) - own
    assert found.contributions[1, 0] == pytest.approx(truth)


def test_a_missing_entry_is_explained_by_its_imputation():
    X = pd.DataFrame(gaussian(300)[:, :3], columns=list("abc"))
    X.loc[::7, "a"] = np.nan
    detector = EnergyOutlierDetector(random_state=0).fit(X)
    detector._reference = None  # which the other method does not use
    rows = X.iloc[[0, 7]]
    found = detector.explain(rows).contributions
    assert_allclose(found[:, 0], detector.explain(rows, method="imputation").contributions[:, 0])
    assert np.isfinite(found).all()


# ------------------------------------------------------------------------------
# What is not usual
# ------------------------------------------------------------------------------


def test_constant_columns():
    X = np.column_stack([gaussian(300)[:, 0], np.full(300, 5.0)])
    detector = EnergyOutlierDetector(TractableDensity("kernel", random_state=0)).fit(X)
    found = detector.explain([[0.0, 5.0], [0.0, 500.0]])
    assert found.contributions[0, 1] == 0
    assert found.contributions[1].argmax() == 1
    assert found.contributions[1, 1] > 5


@pytest.mark.parametrize("shift", [0.0, 9.0])
def test_a_single_column(shift):
    X = gaussian(300)[:, :1]
    found = EnergyOutlierDetector(random_state=0).fit(X).explain([[shift]])
    assert found.contributions.shape == (1, 1)
    assert (found.contributions.item() > 3) == (shift > 0)
    assert found.pairs == []


@pytest.mark.parametrize("value", [1e300, pytest.param(-1e300, marks=full), 1e12])
def test_the_entry_that_is_far_is_named(value):
    X = gaussian(400)
    row = X[:1].copy()
    row[0, 2] = value
    found = EnergyOutlierDetector(random_state=0).fit(X).explain(row)
    assert not np.isnan(found.contributions).any()
    assert found.contributions[0].argmax() == 2
    assert found.contributions[0, 2] > 20


def test_impossible_entries_do_not_hide_each_other():
    X = np.random.default_rng(0).random((200, 3)) * 5
    detector = EnergyOutlierDetector(KernelDensity(kernel="tophat", bandwidth=0.8)).fit(X)
    found = detector.explain([[50.0, 50.0, 2.0], [50.0, 2.0, 2.0]])
    assert (found.contributions[0, :2] > 10).all()
    assert abs(found.contributions[0, 2]) < 1
    assert found.contributions[1, 0] == np.inf


def days(n=400, seed=0):
    random = np.random.default_rng(seed)
    day = random.integers(0, 700, n)
    kind = random.choice(["small", "large"], n)
    return pd.DataFrame(
        {
            "ordered": pd.Timestamp("2024-01-01") + pd.to_timedelta(day, unit="D"),
            "sent": pd.Timestamp("2024-01-04")
            + pd.to_timedelta(day + random.integers(0, 5, n), unit="D"),
            "kind": kind,
            "price": np.where(kind == "small", 20.0, 900.0) * np.exp(0.2 * random.normal(size=n)),
            "paid": random.random(n) < 0.5,
        }
    )


def test_dates_categories_and_missing_entries_of_the_default():
    frame, odd = days(), days(4, seed=1)
    odd.loc[0, "sent"] += pd.Timedelta(300, unit="D")
    odd.loc[1, "kind"] = "enormous"
    odd.loc[2, "price"] = 90_000.0
    odd.loc[3, "price"] = np.nan
    detector = EnergyOutlierDetector(random_state=0).fit(frame)
    found = detector.explain(odd)
    assert np.isfinite(found.contributions).all()
    named = found.contributions.argmax(1)
    assert named[0] in (0, 1)
    assert_array_equal(named[1:3], [2, 3])
    text = found.sentences()
    assert f"{odd['sent'][0]:%Y-%m-%d}" in text[0]
    assert text[1].startswith("kind is enormous where")
    assert text[2].startswith("price is 90,000 where")
    # Others are not blamed for the wrong entry.
    assert all(text.count("nats)") == 1 for text in text[1:3])
    assert np.delete(found.contributions[2], 3).max() < 2
    assert np.delete(found.contributions[2], 3).min() > -100
    with pytest.raises(ValueError, match="feature names"):
        detector.explain(odd.rename(columns={"price": "cost"}))
    with pytest.raises(ValueError, match="now missing"):
        detector.explain(odd[["kind", "price"]])


@full
def test_two_wrong_entries_are_found_one_after_the_other():
    """Given a value that is far off, nothing can be said of the others: those come after it."""
    X = in_twos(600, 0)
    odd = X[:4].copy()
    odd[:, 0], odd[:, 4] = 40.0, 9.0
    density = GaussianMixture(3, reg_covar=0, random_state=0)
    found = EnergyOutlierDetector(density).fit(X).explain(odd)
    order = np.argsort(-found.contributions, axis=1)
    assert_array_equal(order[:, :2], np.tile([0, 4], (4, 1)))
    others = np.delete(found.contributions, [0, 4], axis=1)
    alone = EnergyOutlierDetector(density).fit(X).explain(X[:4]).contributions
    assert others.max() < 3
    assert np.abs(others).max() < 1.5 * np.abs(alone).max() + 3
    # Where the wrong entry is replaced, it is expected what the others say.
    assert_allclose(found.expected[:, 3], X[:4, 3], atol=4)


# ------------------------------------------------------------------------------
# Pairs
# ------------------------------------------------------------------------------


def in_twos(n, seed):
    """Three pairs of columns that are nearly equal, and independent otherwise."""
    random = np.random.default_rng(seed)
    x = np.repeat(random.normal(size=(n, 3)), 2, axis=1)
    return (x + 0.1 * random.normal(size=x.shape))[:, [0, 2, 4, 1, 3, 5]]


@pytest.mark.parametrize("estimator", [None, GaussianMixture(reg_covar=0)])
def test_planted_contradictions_are_named_as_pairs(estimator):
    detector = EnergyOutlierDetector(estimator, random_state=0).fit(in_twos(600, 0))
    odd = in_twos(12, 1)
    which = np.arange(12) % 3
    rows = np.arange(12)
    # Both values are usual, and do not fit each other.
    odd[rows, which], odd[rows, which + 3] = 0.8, -0.8
    found = detector.explain(odd)
    assert [(pair.row, pair.first, pair.second) for pair in found.pairs] == [
        (row, f"x{j}", f"x{j + 3}") for row, j in zip(rows, which, strict=True)
    ]
    assert all("contradict each other" in text for text in found.sentences())
    assert detector.explain(in_twos(12, 2)).pairs == []


def test_one_wrong_entry_among_many_that_agree_is_no_pair():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 1)) + 0.1 * random.normal(size=(600, 4))
    odd = X[:6].copy()
    odd[:, 2] += 2
    found = EnergyOutlierDetector(GaussianMixture(reg_covar=0)).fit(X).explain(odd)
    assert_array_equal(found.contributions.argmax(1), [2] * 6)
    assert found.pairs == []


def test_pairs_have_no_common_member():
    both_ways = {(0, 1): (5, 6), (0, 2): (4, 9), (2, 3): (3, 3)}
    falls = {(7, j, k): one for (j, k), (one, _) in both_ways.items()}
    falls |= {(7, k, j): other for (j, k), (_, other) in both_ways.items()}
    falls |= {(2, 1, 3): 2.0, (2, 3, 1): np.inf, (3, 0, 1): 8.0}  # the last one way only
    assert disjoint_pairs(falls, list("abcd")) == [
        (2, "b", "d", 2.0),
        (7, "a", "b", 5),
        (7, "c", "d", 3),
    ]
    assert disjoint_pairs({}, []) == []


# ------------------------------------------------------------------------------
# Any estimator
# ------------------------------------------------------------------------------


def test_other_statistics_have_no_pairs():
    X = in_twos(200, 0)
    y = (X[:, 0] > 0).astype(int)
    for detector in (
        EnergyOutlierDetector(IsolationForest(random_state=0)).fit(X),
        EnergyOutlierDetector(LogisticRegression(), statistic="max_proba").fit(X, y),
    ):
        found = detector.explain(X[:2] + [9, 0, 0, 0, 0, 0])
        same = detector.explain(X[:2] + [9, 0, 0, 0, 0, 0], method="imputation")
        assert found.unit == ""
        assert found.pairs == []
        assert_array_equal(found.contributions, same.contributions)


@full
@pytest.mark.parametrize(
    "method", [{"method": "conformal"}, {"method": "cross-conformal", "cv": 2}]
)
def test_reasons_of_conformal_defaults(method):
    X = in_twos(150, 0)
    detector = EnergyOutlierDetector(**method, random_state=0).fit(X)
    found = detector.explain(X[:2] + [0, 0, 9, 0, 0, 0])
    assert (found.contributions[:, 2] > 5).all()


# ------------------------------------------------------------------------------
# The sharp density of the default
# ------------------------------------------------------------------------------


def test_the_sharp_density_is_fitted_once_and_stored():
    X = in_twos(200, 0)
    detector = EnergyOutlierDetector(random_state=0).fit(X)
    before = pickle.dumps(detector)
    names = set(vars(detector))
    found = detector.explain(X[:2]).contributions
    density = detector._reference["density"]
    assert_array_equal(detector.explain(X[:2]).contributions, found)
    assert detector._reference["density"] is density
    assert set(vars(detector)) == names
    for stored in (before, pickle.dumps(detector)):
        assert_array_equal(pickle.loads(stored).explain(X[:2]).contributions, found)
    detector.fit(X + 100)
    assert detector._reference["density"] is None
    assert EnergyOutlierDetector(GaussianMixture()).fit(X)._reference is None


def test_a_row_of_the_table_does_not_excuse_itself():
    X = in_twos(300, 0)
    X[7, 2], X[9, [0, 3]] = 9.0, [1.5, -1.5]
    detector = EnergyOutlierDetector(random_state=0).fit(X)
    found = detector.explain(X[[7, 9]])
    assert found.contributions[0].argmax() == 2
    assert found.contributions[0, 2] > 5
    assert [(pair.row, pair.first, pair.second) for pair in found.pairs] == [(1, "x0", "x3")]


def test_rows_of_the_sharp_density():
    X = in_twos(400, 0)
    far = np.r_[X, X[:20] + [0, 0, 30, 0, 0, 0]]
    weight = np.r_[np.ones(400), np.zeros(20)]
    weighted = EnergyOutlierDetector(random_state=0).fit(far, sample_weight=weight)._reference
    assert len(weighted["rows"]) == len(weighted["weight"]) == 380  # without the least likely
    near = np.r_[X, X[:20] + [0, 0, 5, 0, 0, 0]]
    trimmed = EnergyOutlierDetector(trim=0.2, random_state=0).fit(near)
    assert len(trimmed._reference["rows"]) == 420 - trimmed.n_trimmed_
    assert np.ptp(trimmed._reference["rows"], axis=0).max() < 9


@full
def test_many_rows_and_columns_are_sampled(monkeypatch):
    monkeypatch.setattr("skebm.estimators.outlier.reasons.reference.MOST_ROWS", 100)
    detector = EnergyOutlierDetector(random_state=0).fit(in_twos(200, 0))
    assert detector._reference["rows"].shape == (95, 6)
    monkeypatch.setattr("skebm.estimators.outlier.reasons.reference.MOST_ENTRIES", 300)
    detector.fit(in_twos(200, 0))
    assert detector._reference["rows"].shape == (48, 6)
