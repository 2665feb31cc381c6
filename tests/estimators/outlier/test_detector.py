"""The default detector on tables nobody cleaned, and trimming of training rows."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from skebm import (
    EnergyOutlierDetector,
    OutlierEnsemble,
    ProductOfDensities,
    RowSurprise,
    TractableDensity,
)
from skebm.estimators.outlier.bulk import Bulk
from skebm.estimators.outlier.trimming import HALVED, LEAST, contaminated_share
from tests.support.tiers import full, leading


def normal(n=120, d=4, seed=0):
    """Correlated normal rows."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, d)) @ np.tri(d) / d


ODD_TABLES = {
    "all rows alike": np.full((40, 3), 7.0),
    "one column": normal(d=1),
    "more columns than rows": normal(20, 50),
    "ten copies": np.repeat(normal(12), 10, axis=0),
    "integers": np.random.default_rng(0).integers(0, 4, (100, 3)),
    "huge": normal() * 1e9 + 1e12,
    "tiny": normal() * 1e-9,
    "mixed scales": normal() * [1e9, 1, 1e-9, 1],
    "heavy tails": np.random.default_rng(0).standard_cauchy((120, 3)) ** 3,
    "bits": np.random.default_rng(0).integers(0, 2, (100, 6)),
    "mostly zeros": np.where(np.random.default_rng(0).random((120, 3)) < 0.95, 0.0, normal(d=3)),
    "booleans": np.random.default_rng(0).random((100, 3)) < 0.3,
}


@pytest.mark.parametrize("method", ["quantile", pytest.param("conformal", marks=full)])
@pytest.mark.parametrize("name", ODD_TABLES)
def test_odd_tables_have_finite_scores(name, method):
    X = ODD_TABLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = EnergyOutlierDetector(method=method, random_state=0).fit(X)
        assert np.isfinite(detector.score_samples(X)).all()
        assert np.isfinite(detector.decision_function(X)).all()
        labels = detector.predict(X)
    assert set(labels) <= {1, -1}
    assert (labels == 1).mean() > 0.7


@pytest.mark.parametrize("name", ["integers", "huge", "tiny", "mixed scales", "ten copies"])
def test_far_rows_are_outliers_in_any_units(name):
    X = ODD_TABLES[name].astype(float)
    detector = EnergyOutlierDetector(random_state=0).fit(X)
    far = X.mean(0) + 30 * X.std(0)
    assert detector.predict(far[None]) == [-1]


def test_one_row_fits_and_is_normal():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = EnergyOutlierDetector(random_state=0).fit(normal(1))
    assert detector.predict(normal(1)) == [1]
    assert detector.decision_function(normal(1) + 100) < 0


def test_missing_entries_in_new_rows_alone():
    X = normal(200)
    detector = EnergyOutlierDetector(random_state=0).fit(X)
    new = normal(100, seed=1)
    new[::2, 1] = np.nan
    assert (detector.predict(new) == 1).mean() > 0.75
    new[0] = np.nan
    assert detector.predict(new[:1]) == [1]


@pytest.mark.parametrize(
    "frame", [pd.DataFrame(), pd.DataFrame({"a": []}), pd.DataFrame(index=[0])]
)
def test_empty_frames_are_refused(frame):
    with pytest.raises(ValueError, match="0 sample|0 feature|at least one"):
        EnergyOutlierDetector().fit(frame)


@pytest.mark.parametrize(("method", "n"), [("quantile", 1), ("cross-conformal", 3)])
def test_a_verbose_fit_shows_models_and_experts(method, n, capfd):
    params = {"cv": 3} if method == "cross-conformal" else {}
    EnergyOutlierDetector(method=method, verbose=1, random_state=0, **params).fit(normal())
    out, err = capfd.readouterr()
    assert out == ""
    for step in ("fit", "threshold"):
        counts = re.findall(rf"EnergyOutlierDetector: {step}:.*?(\d)/{n} ", err)
        assert counts[0] == "0"
        assert counts[-1] == str(n)
    # Its three experts are fitted to all rows, and without each of three folds.
    assert err.count("12/12 ") >= n
    assert "mixture 0." in err


def test_other_fits_are_silent_or_as_verbose_as_their_estimator(capfd):
    EnergyOutlierDetector(random_state=0).fit(normal())
    assert capfd.readouterr() == ("", "")
    EnergyOutlierDetector(ProductOfDensities(), verbose=1).fit(normal())
    assert "ProductOfDensities" not in capfd.readouterr().err


# ------------------------------------------------------------------------------
# Trimming
# ------------------------------------------------------------------------------


def contaminated(seed=0):
    """200 normal rows and 20 wide ones in random order, and which are the latter."""
    random = np.random.default_rng(seed)
    X = np.vstack([normal(200, seed=seed), random.normal(size=(20, 4)) * 4])
    order = random.permutation(len(X))
    return X[order], (np.arange(len(X)) >= 200)[order]


class Centre(BaseEstimator):
    """Minus the squared distance to the mean of the rows; remembers which these were."""

    def fit(self, X, y=None, sample_weight=None):
        self.mean_, self.rows_ = X.mean(0), X
        self.weight_ = sample_weight
        return self

    def score_samples(self, X):
        return -np.square(X - self.mean_).sum(1) + 1e3 * self.mean_[0]


@pytest.mark.parametrize("trim", leading(1, [0.15, 0.1]))
def test_the_given_share_of_rows_is_left_out(trim):
    X, odd = contaminated()
    detector = EnergyOutlierDetector(Centre(), trim=trim, random_state=0).fit(X)
    assert detector.n_trimmed_ == int(trim * len(X))
    assert len(detector.estimator_.rows_) == len(X) - detector.n_trimmed_
    kept = {tuple(row) for row in detector.estimator_.rows_}
    assert np.mean([tuple(row) in kept for row in X[odd]]) < 0.2
    # The threshold is that of all rows.
    assert (detector.predict(X) == -1).mean() == pytest.approx(0.1, abs=0.01)


def test_auto_leaves_out_what_is_far_from_the_bulk():
    X, odd = contaminated()
    dirty = EnergyOutlierDetector(Centre(), trim="auto", random_state=0).fit(X)
    kept = {tuple(row) for row in dirty.estimator_.rows_}
    assert np.mean([tuple(row) in kept for row in X[odd]]) < 0.2
    assert len(kept) == len(X) - dirty.n_trimmed_ > 0.75 * len(X)
    assert EnergyOutlierDetector(Centre(), random_state=0).fit(X).n_trimmed_ == 0


@pytest.mark.parametrize(
    "X", leading(2, [normal(80) * 1e300, np.full((40, 2), 3.0), np.tile([[0.0], [1.0]], (40, 1))])
)
def test_auto_keeps_half_of_rows_that_differ_in_little(X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = EnergyOutlierDetector(trim="auto", random_state=0).fit(X)
        assert np.isfinite(detector.decision_function(X)).all()
    assert detector.n_trimmed_ <= len(X) / 2


@full
def test_trimming_helps_the_default_on_rows_with_anomalies():
    random = np.random.default_rng(1)

    def rows(n, n_odd):
        wide = 1.5 * random.normal(size=(n_odd, 4)) + [3, 3, 0, 0]
        return np.vstack([random.normal(size=(n, 4)), wide])

    train, test, labels = rows(300, 15), rows(300, 50), np.repeat([1, -1], [300, 50])
    values = []
    for trim in (None, 0.1):
        detector = EnergyOutlierDetector(trim=trim, random_state=0).fit(train)
        values.append(roc_auc_score(labels, detector.decision_function(test)))
    assert values[1] > values[0] + 0.003


@pytest.mark.parametrize("method", leading(1, ["conformal", "cross-conformal"]))
def test_calibration_rows_are_not_trimmed(method):
    X, _ = contaminated()
    detector = EnergyOutlierDetector(Centre(), method=method, trim=0.1, random_state=0).fit(X)
    whole = EnergyOutlierDetector(Centre(), method=method, random_state=0).fit(X)
    assert detector.n_calibration_ == whole.n_calibration_
    for model, other in zip(detector.estimators_, whole.estimators_, strict=True):
        assert len(model.rows_) == len(other.rows_) - int(0.1 * len(other.rows_))


def test_weights_are_trimmed_like_the_rows():
    X, _ = contaminated()
    weight = np.arange(1.0, len(X) + 1)
    detector = EnergyOutlierDetector(Centre(), trim=0.1, random_state=0)
    model = detector.fit(X, sample_weight=weight).estimator_
    assert np.array_equal(X[model.weight_.astype(int) - 1], model.rows_)


@full
def test_trimming_is_reproducible():
    X, _ = contaminated()
    one, two = (EnergyOutlierDetector(trim=0.1, random_state=3).fit(X) for _ in range(2))
    assert np.array_equal(one.decision_function(X), two.decision_function(X))


def test_trimming_of_frames():
    X, _ = contaminated()
    frame = pd.DataFrame(X).assign(kind=["a", "b"] * 110)
    frame.columns = [str(name) for name in frame.columns]
    detector = EnergyOutlierDetector(TractableDensity(), trim=0.1, random_state=0)
    assert detector.fit(frame).n_trimmed_ == 22


def test_bad_trims():
    X, _ = contaminated()
    for trim in (0.0, 0.5, -1, "all", 1):
        with pytest.raises(ValueError, match="'trim' parameter"):
            EnergyOutlierDetector(trim=trim).fit(X)
    with pytest.raises(ValueError, match=r"trim=0\.1 takes at least 20 rows"):
        EnergyOutlierDetector(trim=0.1).fit(X[:15])
    mixture = GaussianMixture(random_state=0).fit(X)
    with pytest.warns(UserWarning, match="trim, because"):
        detector = EnergyOutlierDetector(FrozenEstimator(mixture), trim=0.1).fit(X)
    assert detector.n_trimmed_ == 0


def clustered(n, n_odd, d, seed, *, spread=0.2):
    """Correlated normal rows, of which the first are a tight cluster far from all others."""
    random = np.random.default_rng(seed)
    X = normal(n, d, seed)
    odd = X.mean(0) + 8 * X.std(0) * np.sign(random.normal(size=d))
    X[:n_odd] = odd + spread * X.std(0) * random.normal(size=(n_odd, d))
    return X


@pytest.mark.parametrize("n_odd", leading(1, [40, 15, 50]))
def test_a_cluster_of_anomalies_is_left_out(n_odd):
    """The nearest row and kernels find such rows normal: they are near to each other."""
    X = clustered(500, n_odd, 5, seed=n_odd)
    odd = np.arange(len(X)) < n_odd
    detector = EnergyOutlierDetector(trim="auto", random_state=0).fit(X)
    kept = {tuple(row) for row in detector.estimator_[-1]._nearest.rows}
    assert len(kept) == len(X) - detector.n_trimmed_
    assert roc_auc_score(odd, -detector.decision_function(X)) > 0.999
    plain = EnergyOutlierDetector(random_state=0).fit(X)
    assert roc_auc_score(odd, -plain.decision_function(X)) < 0.5
    share = detector.contaminated_
    assert share.lower <= n_odd / len(X) <= share.upper
    assert share.value == pytest.approx(n_odd / len(X), rel=1)


@full
@pytest.mark.parametrize("d", [2, 3, 6, 20])
def test_bounds_of_the_share_of_anomalies_hold_at_their_level(d):
    """Normal rows have lighter tails than the bounds suppose, so that they err less than said."""
    n, n_trials, errors = 300, 30, np.zeros(2)
    for seed in range(n_trials):
        n_odd = (0, 15, 60)[seed % 3]
        X = clustered(n, n_odd, d, seed, spread=1.0)
        distances = Bulk.fit(X, np.random.RandomState(seed)).distances(X)
        share = contaminated_share(distances)
        errors += [share.lower > n_odd / n, share.upper < n_odd / n]
    assert (errors / n_trials <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / n_trials)).all()


def test_the_share_is_that_of_an_exponential_tail_and_what_is_beyond():
    """By counting: quantiles of the tail that is supposed, and a tenth far beyond."""
    n, n_odd = 10_000, 1000
    u = (np.arange(n - n_odd) + 0.5) / (n - n_odd)
    tail = -np.log2(2 * np.minimum(u, 1 - u)) * np.sign(u - 0.5) * HALVED
    values = np.concatenate([tail, np.full(n_odd, 40.0)])
    value, lower, upper = contaminated_share(np.column_stack([values] * 3))
    assert value == pytest.approx(0.1, abs=0.01)
    assert value - 0.015 < lower < value < upper


def test_clean_rows_lose_few_of_them():
    X = normal(400, 6)
    detector = EnergyOutlierDetector(Centre(), trim="auto", random_state=0).fit(X)
    assert int(LEAST * len(X)) <= detector.n_trimmed_ < 0.1 * len(X)
    assert detector.contaminated_.lower == 0
    assert detector.contaminated_.value < 0.05


def test_many_anomalies_are_said():
    """Wide rows around the others; a cluster of as many would be taken to be normal."""
    random = np.random.default_rng(0)
    X = normal(400, 6)
    X[:160] += 30 * X.std(0) * random.normal(size=(160, 6))
    with pytest.warns(UserWarning, match="training rows seem to be anomalies.*\nFit to rows"):
        detector = EnergyOutlierDetector(Centre(), trim="auto", random_state=0).fit(X)
    assert detector.contaminated_.lower <= 0.4


def test_the_share_is_told_with_a_trim_alone():
    X, _ = contaminated()
    assert EnergyOutlierDetector(Centre()).fit(X).contaminated_ is None
    detector = EnergyOutlierDetector(Centre(), trim=0.1, method="cross-conformal", cv=3).fit(X)
    share = detector.contaminated_
    assert 0 <= share.lower <= share.value <= share.upper <= 1


def test_rows_of_one_table_are_judged_as_new_ones_are():
    X = clustered(300, 30, 4, seed=1)
    detector = EnergyOutlierDetector(trim="auto", random_state=0)
    labels = detector.fit_predict(X)
    assert np.array_equal(labels, detector.fit(X).predict(X))
    assert (labels[:30] == -1).all()
    assert (labels == -1).mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("copies", [2, 3])
def test_the_bulk_of_copies_is_that_of_weights(copies):
    """Rows that occur more often and rows of as much weight have the same tails of the bulk."""
    X = normal(120, 3)
    weight = np.where(np.arange(120) < 40, copies, 1)
    weighted = RowSurprise(bulk=0.5, random_state=0)._bulk_of(
        X, weight.astype(float), np.random.RandomState(0)
    )
    repeated = Bulk.fit(np.repeat(X, weight, axis=0), np.random.RandomState(0))
    assert np.allclose(weighted.centre, repeated.centre, atol=0.05)
    assert np.allclose(weighted.unit, repeated.unit, rtol=0.05)


def test_the_bulk_has_no_units():
    X = clustered(200, 20, 3, seed=0)
    found, other = (
        Bulk.fit(x, np.random.RandomState(0)).distances(x) for x in (X, X * [1e9, 1, 1e-9] + 5)
    )
    assert np.allclose(found, other, atol=1e-4)


# ------------------------------------------------------------------------------
# Rows that recur
# ------------------------------------------------------------------------------


def with_zeros(n, seed):
    """A row in three is zero, which is no copy of another but what such rows are."""
    x = normal(n, 2, seed) + 4
    x[np.random.default_rng(seed + 500).random(n) < 0.3] = 0
    return x


@pytest.mark.parametrize("make", [EnergyOutlierDetector, OutlierEnsemble])
def test_false_alarms_where_rows_recur(make):
    """Were all zeros held out together, a third of new rows would be false alarms."""
    density = TractableDensity("gaussian")
    rates = []
    for seed in range(80):
        X, new = with_zeros(150, seed), with_zeros(400, 100 + seed)
        if make is EnergyOutlierDetector:
            detector = make(density, method="conformal", contamination=0.1, random_state=seed)
        else:
            detector = make([("density", density)], level=0.1, random_state=seed)
        detector.set_params(calibration_fraction=0.5)
        rates.append((detector.fit(X).predict(new) == -1).mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert np.mean(rates) <= 0.1 + 3 * error


def test_accidental_copies_are_held_out_together():
    X = np.repeat(normal(40, 2), 2, axis=0)
    detector = EnergyOutlierDetector(TractableDensity(), method="conformal", random_state=0)
    assert detector.fit(X).n_calibration_ == 20
