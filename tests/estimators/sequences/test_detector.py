"""Anomalous frames of sequences: the guarantee of thresholds over whole sequences."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.base import BaseEstimator, clone
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import (
    EnergyOutlierDetector,
    RBMEstimator,
    SequenceOutlierDetector,
    TemporalRBM,
    TemporalRBMClassifier,
)
from tests.support.checks import parametrize_with_checks
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import full, leading

QUICK = {"n_components": 2, "order": 1, "n_iter": 5, "random_state": 0}


class Autoregression(BaseEstimator):
    """Minus the squared error of the next number, by one coefficient: a model that costs nothing.

    First frames of a sequence follow a zero.
    """

    def fit(self, X, y=None, lengths=None):
        x, before = X[:, 0], self._before(X, lengths)
        self.coef_ = (x @ before) / (before @ before + 1e-9)
        return self

    def _before(self, X, lengths):
        first = np.cumsum([0, *(lengths if lengths is not None else [len(X)])][:-1])
        before = np.append(0.0, X[:-1, 0])
        before[first] = 0.0
        return before

    def score_samples(self, X, lengths=None):
        return -np.square(X[:, 0] - self.coef_ * self._before(X, lengths))


def walks(n, rng, length=None):
    """Autoregressive sequences with heavy tails, each of its own length and scale."""
    found = []
    for _ in range(n):
        steps = rng.standard_t(3, rng.integers(5, 40) if length is None else length)
        steps *= np.exp(rng.normal()) if length is None else 1.0
        for t in range(1, len(steps)):
            steps[t] += 0.7 * steps[t - 1]
        found.append(steps[:, None])
    return found


def notes(n, rng, length=20):
    """Sequences of three notes in a fixed order."""
    return [np.eye(3)[(np.arange(length) + start) % 3] for start in rng.integers(0, 3, n)]


# ------------------------------------------------------------------------------
# The guarantee
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", leading(1, [0.25, 0.05, 0.1]))
def test_the_rate_of_false_alarms_over_sequences(level):
    """P(any frame of a new sequence is flagged), over fits, is the level up to rounding."""
    rng, n_fits, alarms, rates = np.random.default_rng(0), 80, [], []
    for k in range(n_fits):
        sequences = walks(60, rng)
        detector = SequenceOutlierDetector(
            Autoregression(), contamination=level, calibration_fraction=0.5, random_state=k
        ).fit(sequences[:-20])
        new = sequences[-20:]
        p = detector.sequence_p_values(new)
        flagged = detector.predict(new) == -1
        of_sequence = [part.any() for part in np.split(flagged, np.cumsum(list(map(len, new))))]
        np.testing.assert_array_equal(of_sequence[:-1], p <= level + 1e-9)
        alarms.append(of_sequence[0])
        rates.append(np.mean(of_sequence[:-1]))
    bound = detector.false_alarm_bound_
    assert bound <= level
    assert sum(alarms) <= binom.ppf(0.999, n_fits, level)
    # Continuous statistics: the rate is the bound itself, not less.
    assert abs(np.mean(rates) - bound) < 4 * np.std(rates) / np.sqrt(n_fits)


def test_thresholds_over_frames_would_not_hold():
    """With as many held-out frames and no sequences, most sequences have a false alarm."""
    rng = np.random.default_rng(1)
    sequences = walks(60, rng)
    held_out, new = sequences[:30], sequences[30:]
    model = Autoregression().fit(np.concatenate(held_out), lengths=list(map(len, held_out)))
    value = model.score_samples(np.concatenate(held_out), list(map(len, held_out)))
    threshold = np.quantile(value, 0.1)
    alarms = [(model.score_samples(one, [len(one)]) <= threshold).any() for one in new]
    assert np.mean(alarms) > 0.3


@full
def test_the_guarantee_of_a_temporal_rbm():
    rng, alarms = np.random.default_rng(0), []
    model = TemporalRBM(**QUICK)
    for k in range(40):
        X = [np.where(rng.random(one.shape) < 0.05, 1 - one, one) for one in notes(60, rng)]
        detector = SequenceOutlierDetector(model, random_state=k).fit(X[:40])
        alarms.extend(detector.sequence_p_values(X[40:]) <= 0.1)
    assert np.mean(alarms) <= 0.1 + 4 * 0.3 / np.sqrt(40 * 5)


def test_blocks_of_a_stationary_sequence_are_nearly_at_the_level():
    rng, alarms = np.random.default_rng(0), []
    for _ in range(40):
        (X,) = walks(1, rng, length=1200)
        detector = SequenceOutlierDetector(
            Autoregression(), contamination=0.2, block_length=20, gap=5
        ).fit(X[:800])
        assert detector.block_length_ == 20
        assert np.isnan(detector.false_alarm_bound_)
        blocks = [X[start : start + 20] for start in range(810, 1180, 30)]
        alarms.append(np.mean(detector.sequence_p_values(blocks) <= 0.2))
    assert abs(np.mean(alarms) - 0.2) < 0.06


def test_blocks_do_not_touch():
    X = np.arange(100.0)[:, None]
    seen = {}

    class Numbers(Autoregression):
        def fit(self, X, y=None, lengths=None):
            seen["fit"] = X[:, 0]
            return self

        def score_samples(self, X, lengths=None):
            return X[:, 0]

    detector = SequenceOutlierDetector(Numbers(), contamination=0.2, block_length=6, gap=4).fit(X)
    np.testing.assert_array_equal(seen["fit"], np.arange(50))
    np.testing.assert_array_equal(detector._threshold.parts[0], [54, 64, 74, 84, 94])


# ------------------------------------------------------------------------------
# What it finds
# ------------------------------------------------------------------------------


@full
def test_foreign_frames_are_found():
    rng = np.random.default_rng(0)
    model = TemporalRBM(8, order=1, n_iter=60, random_state=0)
    detector = SequenceOutlierDetector(model, random_state=0).fit(notes(60, rng))
    new = notes(10, rng)
    for one in new[:5]:
        one[10] = one[11]
    found = detector.predict(new).reshape(10, 20)
    assert (found[:5, 10] == -1).all()
    assert (found[5:] == 1).all()
    p = detector.sequence_p_values(new)
    assert p.shape == (10,)
    assert (p[:5] == 1 / (detector.n_calibration_ + 1)).all()
    frames = detector.p_values(new)
    np.testing.assert_array_equal(frames.reshape(10, 20).min(1), p)
    value = detector.score_samples(new)
    np.testing.assert_allclose(detector.decision_function(new), value - detector.offset_)


def test_ways_to_pass_sequences_agree():
    rng = np.random.default_rng(0)
    X = notes(24, rng, length=6)
    both, lengths = np.concatenate(X), [6] * 24
    detector = SequenceOutlierDetector(TemporalRBM(**QUICK), random_state=0).fit(X)
    found = detector.p_values(X)
    other = clone(detector).fit(both, lengths=lengths)
    np.testing.assert_array_equal(other.p_values(both, lengths=lengths), found)
    frame = pd.DataFrame(both, columns=list("abc")).assign(song=np.repeat(np.arange(24), 6))
    by_song = clone(detector).set_params(estimator__sequence_column="song").fit(frame)
    np.testing.assert_array_equal(by_song.p_values(frame), found)
    assert by_song.n_features_in_ == 3


@pytest.mark.parametrize("store", leading(1, [by_skops, by_pickle, by_joblib]))
def test_stored_detectors_say_the_same(store):
    X = notes(24, np.random.default_rng(0), length=6)
    detector = SequenceOutlierDetector(TemporalRBM(**QUICK), random_state=0).fit(X)
    np.testing.assert_array_equal(store(detector).p_values(X), detector.p_values(X))


def test_a_seed_makes_fits_equal():
    X = notes(24, np.random.default_rng(0), length=6)
    model = TemporalRBM(**QUICK | {"random_state": None})
    one, other = (SequenceOutlierDetector(model, random_state=3).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.score_samples(X), other.score_samples(X))


# ------------------------------------------------------------------------------
# The contract, and bad input
# ------------------------------------------------------------------------------

OF_SEQUENCES = {
    "check_methods_sample_order_invariance": "frames are a sequence",
    "check_methods_subset_invariance": "frames are a sequence",
    "check_outliers_train": "contamination is a level for new sequences",
    "check_outliers_fit_predict": "contamination is a level for new sequences",
}


@pytest.mark.filterwarnings("ignore:Bits take values in", "ignore:X. columns")
@pytest.mark.filterwarnings("ignore:Columns .* (are constant|have few distinct)")
@pytest.mark.filterwarnings("ignore:contamination='auto' means", "ignore:The threshold is")
@parametrize_with_checks(
    {"default": SequenceOutlierDetector(TemporalRBM(**QUICK | {"n_iter": 1}))},
    lambda estimator: OF_SEQUENCES,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_rows_and_sequences_are_not_taken_for_each_other():
    X = notes(24, np.random.default_rng(0), length=6)
    with pytest.raises(TypeError, match="takes no lengths"):
        SequenceOutlierDetector(GaussianMixture()).fit(X)
    with pytest.raises(TypeError, match="takes no lengths"):
        SequenceOutlierDetector(RBMEstimator()).fit(X)
    for model in (TemporalRBM(**QUICK), make_pipeline(StandardScaler(), TemporalRBM(**QUICK))):
        with pytest.raises(TypeError, match="use SequenceOutlierDetector"):
            EnergyOutlierDetector(model).fit(X[0])
    labels = TemporalRBMClassifier(4)
    with pytest.raises(TypeError, match="use SequenceOutlierDetector"):
        EnergyOutlierDetector(labels, statistic="max_proba").fit(X[0], np.arange(6) % 2)
    fitted = TemporalRBM(**QUICK).fit(X)
    with pytest.raises(TypeError, match="use SequenceOutlierDetector"):
        EnergyOutlierDetector(fitted, prefit=True).fit(X[0])


@pytest.mark.parametrize(
    ("settings", "X", "match"),
    [
        ({"contamination": 0.05}, notes(20, np.random.default_rng(0)), "At least 19 are needed"),
        ({"contamination": 0.1}, [np.zeros((5, 2))] * 2, "1 calibration sequences are too few"),
        ({"contamination": 0.1, "block_length": 30}, np.eye(3)[np.arange(90) % 3], "blocks of 30"),
        ({"contamination": 0.1}, np.eye(3)[:1], "blocks of 1"),
        ({}, [np.zeros((5, 2)), np.zeros((0, 2))], "Sequence 1 has no frames"),
        ({}, [np.zeros((5, 2)), np.zeros((5, 3))], "sequence 1 has 3"),
        ({}, [np.full((5, 2), np.nan)] * 30, "NaN"),
        ({}, np.zeros((0, 3)), "0 sample"),
    ],
)
def test_bad_sequences(settings, X, match):
    with pytest.raises(ValueError, match=match):
        SequenceOutlierDetector(TemporalRBM(**QUICK), **settings).fit(X)


def test_lengths_that_do_not_add_up():
    X = np.concatenate(notes(24, np.random.default_rng(0), length=6))
    detector = SequenceOutlierDetector(TemporalRBM(**QUICK))
    with pytest.raises(ValueError, match="add up to 12"):
        detector.fit(X, lengths=[6, 6])
    detector.fit(X, lengths=[6] * 24)
    with pytest.raises(ValueError, match="add up to 12"):
        detector.predict(X, lengths=[6, 6])
    with pytest.raises(ValueError, match="features"):
        detector.predict(X[:, :2])


def test_settings_without_effect_and_levels_that_are_raised():
    X = notes(24, np.random.default_rng(0), length=6)
    with pytest.warns(UserWarning, match="block_length, because whole sequences"):
        SequenceOutlierDetector(TemporalRBM(**QUICK), block_length=5).fit(X)
    with pytest.warns(UserWarning, match="allow no level below 0.25"):
        detector = SequenceOutlierDetector(TemporalRBM(**QUICK)).fit(X[:6])
    assert detector.contamination_ == 0.25
    assert detector.n_calibration_ == 3
