"""Frames of a stream are scored as those of a whole sequence."""

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError

from skebm import TemporalRBM
from tests.support.tiers import full, named


def notes(n=60, seed=0):
    X = np.tile(np.eye(3), (n // 3, 1))
    return np.where(np.random.default_rng(seed).random(X.shape) < 0.05, 1 - X, X)


KINDS = {
    "conditional": {"order": 2},
    "recurrent": {"order": 0, "recurrent": True},
    "both": {"order": 1, "recurrent": True},
}


@pytest.fixture(scope="module", params=named(["conditional", "both"], KINDS))
def model(request):
    return TemporalRBM(4, n_iter=5, random_state=0, **KINDS[request.param]).fit(notes())


def test_scores_are_those_of_the_whole_sequence(model):
    X = notes(30, 1)
    expected = model.score_samples(X)
    stream = model.stream()
    assert_allclose([stream.score(x) for x in X], expected, atol=1e-5)
    assert stream.n_frames == 30
    later = model.stream(start=X[:10])
    assert later.n_frames == 10
    assert_allclose([later.score(x[None]) for x in X[10:]], expected[10:], atol=1e-5)
    assert_allclose(later.expected(), model.predict_next(X), atol=0.1)


@full
def test_estimated_scores_are_near_the_exact_ones():
    X = notes(30, 1)
    model = TemporalRBM(20, order=1, n_iter=10, random_state=0).fit(notes())
    stream, found = model.stream(), model.log_conditional(X)
    assert not found.exact.any()
    values = np.array([stream.score(x) for x in X])
    assert np.abs(values - found.log_prob).max() < 0.5
    assert abs(values.mean() - found.log_prob.mean()) < 0.05


def test_memory_does_not_grow(model):
    stream = model.stream()
    stream.score(notes()[0])
    size = len(pickle.dumps(stream))
    for x in notes():
        stream.score(x)
    assert abs(len(pickle.dumps(stream)) - size) < 64


def test_stored_streams_go_on(model):
    X = notes(12, 2)
    stream = model.stream(X[:4])
    stream.score(X[4])
    other = pickle.loads(pickle.dumps(stream))
    assert other.n_frames == 5
    assert [other.score(x) for x in X[5:]] == [stream.score(x) for x in X[5:]]
    assert "12 frames" in repr(other)


def test_later_fits_do_not_change_a_stream():
    X, model = notes(), TemporalRBM(3, order=1, n_iter=5, random_state=0)
    stream = model.fit(X).stream()
    expected = model.score_samples(X[:5])
    model.partial_fit(1 - X)
    assert_allclose([stream.score(x) for x in X[:5]], expected, atol=1e-5)


def test_frames_of_any_form():
    frame = pd.DataFrame({"note": list("cega") * 20, "loud": np.arange(80.0) % 7})
    model = TemporalRBM(4, order=1, n_iter=30, learning_rate=0.05, random_state=0).fit(frame)
    expected = model.score_samples(frame)[:3]
    stream = model.stream(frame[:1])
    found = [stream.score(frame.iloc[1]), stream.score(frame.iloc[[2]])]
    assert_allclose(found, expected[1:], atol=1e-5)
    assert stream.expected()["note"].tolist() == ["a"]


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        ([np.nan, 0, 0], "contains NaN"),
        ([np.inf, 0, 0], "infinity"),
        ([0, 1], "features"),
        (notes()[:2], "one frame at a time, got 2"),
        (["a", "b", "c"], "could not convert"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros((1, 1, 3)), "dim 3"),
        (1.0, "no table"),
    ],
)
def test_bad_frames_do_not_change_the_stream(model, frame, match):
    X = notes(9, 3)
    stream, other = model.stream(X[:5]), model.stream(X[:5])
    with pytest.raises(ValueError, match=match):
        stream.score(frame)
    assert stream.n_frames == 5
    assert stream.score(X[5]) == other.score(X[5])


def test_bad_starts(model):
    with pytest.raises(ValueError, match="contains NaN"):
        model.stream(np.full((3, 3), np.nan))
    with pytest.raises(ValueError, match="n_draws"):
        model.stream().expected(n_draws=0)
    with pytest.raises(NotFittedError):
        TemporalRBM().stream()
    assert_array_equal(model.stream().expected().shape, (1, 3))
