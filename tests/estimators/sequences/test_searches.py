"""Cross-validation that respects sequences, as `docs/models/sequences.md` recommends it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, TimeSeriesSplit, cross_val_score

from skebm import TemporalRBM
from tests.support.tiers import full

LENGTHS = (17, 23, 20, 11, 19, 30)
SONG = np.repeat(np.arange(6), LENGTHS)


def songs():
    """Frames of six sequences of different lengths, and the column that says which."""
    rng = np.random.default_rng(0)
    X = np.concatenate([np.eye(3)[(np.arange(n) + n) % 3] for n in LENGTHS])
    X = np.where(rng.random(X.shape) < 0.05, 1 - X, X)
    return pd.DataFrame(X, columns=list("abc")).assign(song=SONG)


MODEL = TemporalRBM(
    2, order=1, n_iter=5, learning_rate=0.05, sequence_column="song", random_state=0
)


def test_folds_of_whole_sequences():
    frame, cv = songs(), GroupKFold(3)
    found = cross_val_score(MODEL, frame, groups=frame["song"], cv=cv)
    plain = clone(MODEL).set_params(sequence_column=None)
    for value, (train, test) in zip(found, cv.split(frame, groups=SONG), strict=True):
        parts = [
            [frame[k == SONG].drop(columns="song") for k in np.unique(SONG[rows])]
            for rows in (train, test)
        ]
        assert not set(SONG[train]) & set(SONG[test])
        assert sum(map(len, parts[0])) == len(train)
        assert value == pytest.approx(clone(plain).fit(parts[0]).score(parts[1]), abs=1e-9)


def test_splits_of_one_long_sequence():
    X, cv = songs().drop(columns="song"), TimeSeriesSplit(3, gap=2)
    plain = clone(MODEL).set_params(sequence_column=None)
    found = cross_val_score(plain, X, cv=cv)
    for value, (train, test) in zip(found, cv.split(X), strict=True):
        assert train.max() + 2 < test.min()
        model = clone(plain).fit(X.iloc[train])
        assert value == pytest.approx(model.score(X.iloc[test]), abs=1e-9)


def test_a_search_over_a_configuration():
    frame = songs()
    grid = {"chains__n_steps": [1, 3], "order": [1, 2]}
    search = GridSearchCV(MODEL, grid, cv=GroupKFold(2), error_score="raise")
    search.fit(frame, groups=frame["song"])
    best = search.best_estimator_
    assert best.chains.n_steps == search.best_params_["chains__n_steps"]
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert MODEL.chains is None  # the search has set those of its copies
    assert search.score(frame) == best.score(frame)
    assert np.isfinite(best.score_samples(frame)).all()


@full
def test_a_search_prefers_a_past_that_matters():
    frame = songs()
    search = GridSearchCV(
        clone(MODEL).set_params(n_components=4),
        {"n_iter": [0, 60]},
        cv=TimeSeriesSplit(2),
    ).fit(frame)
    assert search.best_params_ == {"n_iter": 60}
