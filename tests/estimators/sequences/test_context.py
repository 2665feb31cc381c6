"""Scores of frames by the past and the next frame, as the formula says; anomalies by them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.metrics import roc_auc_score

from skebm import SequenceOutlierDetector, TemporalRBM
from tests.support.tiers import leading

SETTINGS = {
    "lags": {"n_components": 3, "order": 2},
    "recurrent": {"n_components": 3, "order": 0, "recurrent": True},
    "both": {"n_components": 3, "order": 1, "recurrent": True},
}


def sequences(kind, n=8, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "bits":
        return [(rng.random((rng.integers(1, 9), 4)) < 0.4).astype(float) for _ in range(n)]
    return [rng.normal(size=(rng.integers(1, 9), 2)).cumsum(0) for _ in range(n)]


@pytest.mark.parametrize("kind", leading(1, ["numbers", "bits"]))
@pytest.mark.parametrize("name", leading(1, ["both", "lags", "recurrent"]))
def test_it_is_what_the_formula_says(kind, name, monkeypatch):
    """By scores of sequences of which a frame is replaced by its mean given the past."""
    X = sequences(kind)
    model = TemporalRBM(**SETTINGS[name], n_iter=3, dtype="float64", random_state=0).fit(X)
    d = X[0].shape[1]
    monkeypatch.setattr(  # a mean that takes no draws
        model, "_means", lambda biases, *_: biases.visible.new_full((len(biases.visible), d), 0.25)
    )
    found = np.split(model.score_in_context(X), np.cumsum([len(x) for x in X])[:-1])
    quarter = model._recipe.table.invert(torch.full((1, d), 0.25, dtype=torch.float64))[0]
    for x, own in zip(X, found, strict=True):
        given = model.score_samples(x)
        assert_allclose(own[-1], given[-1])
        for t in range(len(x) - 1):
            other = np.vstack([x[:t], quarter, x[t + 1]])
            expected = given[t] + given[t + 1] - model.score_samples(other)[-1]
            assert_allclose(own[t], expected, atol=1e-9)


@pytest.mark.full
def test_foreign_frames_are_found_by_what_follows():
    """Bits that go round: a wrong frame is likely given the past half of the time."""
    rng = np.random.default_rng(0)

    def song(n):
        x, found = rng.integers(4), []
        for _ in range(n):
            x = (x + rng.integers(2)) % 4  # stays, or goes on
            found.append(np.eye(4)[x])
        return np.array(found)

    model = TemporalRBM(8, order=1, learning_rate=0.02, random_state=0).set_params(n_iter=30)
    model.fit([song(30) for _ in range(30)])
    test, wrong = [song(30) for _ in range(30)], []
    for x in test:
        out = np.zeros(len(x), dtype=bool)
        out[[10, 20]] = True
        for t in (10, 20):  # the next place, as is possible, but then two places on in one step
            x[t] = np.roll(x[t - 1], 1)
            x[t + 1] = x[t - 1] if t % 20 else np.roll(x[t - 1], 1)
        wrong.append(out)
    before, both = model.score_samples(test), model.score_in_context(test)
    wrong = np.concatenate(wrong)
    assert roc_auc_score(wrong, -both) > roc_auc_score(wrong, -before) + 0.05


def test_the_detector_uses_next_where_it_can():
    X = sequences("bits", 30)
    model = TemporalRBM(2, order=1, n_iter=1, random_state=0)
    ahead = SequenceOutlierDetector(model, random_state=0).fit(X)
    past = SequenceOutlierDetector(model, use_next=False, random_state=0).fit(X)
    assert_allclose(ahead.score_samples(X[:2]), ahead.estimator_.score_in_context(X[:2]))
    assert_allclose(past.score_samples(X[:2]), past.estimator_.score_samples(X[:2]))
    with pytest.raises(ValueError, match="use_next=True needs"):
        SequenceOutlierDetector(Scores(), use_next=True).fit(X)


class Scores:
    """A model of sequences without a view of the next frame."""

    def fit(self, X, y=None, lengths=None):
        return self

    def score_samples(self, X, lengths=None):
        return np.zeros(len(X))

    def get_params(self, deep=True):
        return {}

    def set_params(self, **params):
        return self
