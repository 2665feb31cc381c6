"""Programs written for BernoulliRBM: the very same code runs with the name changed."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler

from skebm import RBMEstimator
from tests.support.tiers import full, only_full

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are not binary:UserWarning")
each_class = pytest.mark.parametrize("RBM", [RBMEstimator, only_full(BernoulliRBM)])

IMAGES, LABELS = load_digits(return_X_y=True)
BITS = (IMAGES > 8).astype(np.float64)

TEXTS = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a cat and a dog",
    "stocks fell as the bank raised rates",
    "the bank cut rates and stocks rose",
    "rates and stocks and bonds",
] * 5


@full
@each_class
def test_features_for_a_linear_classifier(RBM):
    X = MinMaxScaler().fit_transform(IMAGES)
    X_train, X_test, y_train, y_test = train_test_split(X, LABELS, random_state=0)
    rbm = RBM(n_components=64, learning_rate=0.06, n_iter=10, random_state=0)
    classifier = Pipeline([("rbm", rbm), ("logistic", LogisticRegression(max_iter=1000, C=100))])
    assert classifier.fit(X_train, y_train).score(X_test, y_test) > 0.9


@full
@each_class
def test_grid_search(RBM):
    pipeline = make_pipeline(RBM(n_iter=10, random_state=0), LogisticRegression(max_iter=500))
    name = RBM.__name__.lower()
    grid = {f"{name}__n_components": [2, 40], f"{name}__learning_rate": [0.0001, 0.1]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(BITS[:400], LABELS[:400])
    assert search.best_params_ == {f"{name}__n_components": 40, f"{name}__learning_rate": 0.1}
    assert search.best_score_ > 0.5


@each_class
def test_words_in_a_sparse_matrix(RBM):
    pipeline = make_pipeline(
        CountVectorizer(binary=True, dtype=np.float64),
        RBM(n_components=8, learning_rate=0.1, n_iter=20, random_state=0),
    )
    features = pipeline.fit_transform(TEXTS)
    assert isinstance(features, np.ndarray)
    assert features.shape == (30, 8)
    assert ((features >= 0) & (features <= 1)).all()
    counts = pipeline[0].transform(TEXTS)
    np.testing.assert_allclose(features, pipeline[1].transform(counts.toarray()), atol=1e-6)


@each_class
def test_integer_counts_of_words(RBM):
    counts = CountVectorizer(binary=True).fit_transform(TEXTS)
    assert counts.dtype == np.int64
    assert RBM(n_components=4, n_iter=2, random_state=0).fit_transform(counts).shape == (30, 4)


@each_class
def test_a_stream_of_batches(RBM):
    rbm = RBM(n_components=8, learning_rate=0.02, batch_size=10, random_state=0)
    before = None
    for start in range(0, 1500, 100):
        rbm.partial_fit(BITS[start : start + 100])
        before = rbm.components_.copy() if before is None else before
    assert rbm.components_.shape == (8, 64)
    assert not np.array_equal(rbm.components_, before)
    seen, noise = rbm.score_samples(BITS[:200]), np.random.RandomState(0).rand(200, 64) < 0.5
    assert seen.mean() > rbm.score_samples(noise.astype(float)).mean()


@each_class
def test_a_gibbs_chain(RBM):
    rbm = RBM(n_components=8, learning_rate=0.1, n_iter=3, random_state=0).fit(BITS)
    v = BITS[:50]
    for _ in range(20):
        v = rbm.gibbs(v)
    assert v.shape == (50, 64)
    assert v.dtype == bool
    frequency = BITS.mean(0)
    assert np.corrcoef(v.mean(0), frequency)[0, 1] > 0.8


@each_class
def test_frames_in_and_out(RBM):
    frame = pd.DataFrame(BITS[:100], columns=[f"pixel {i}" for i in range(64)])
    rbm = RBM(n_components=3, n_iter=2, random_state=0).set_output(transform="pandas")
    out = rbm.fit(frame).transform(frame)
    prefix = RBM.__name__.lower()
    assert list(out.columns) == [f"{prefix}0", f"{prefix}1", f"{prefix}2"]
    assert list(rbm.get_feature_names_out()) == list(out.columns)
    assert list(rbm.feature_names_in_) == list(frame.columns)
    assert rbm.n_features_in_ == 64
    pd.testing.assert_index_equal(out.index, frame.index)


@each_class
def test_single_precision(RBM):
    rbm = RBM(n_components=5, n_iter=2, random_state=0)
    assert rbm.fit_transform(BITS.astype(np.float32)).dtype == np.float32
    assert rbm.fit_transform(BITS).dtype == np.float64
    assert rbm.fit(BITS.astype(np.float32)).components_.dtype == np.float32


@each_class
def test_a_random_state_instance(RBM):
    def components():
        state = np.random.RandomState(7)
        return RBM(n_components=4, n_iter=2, random_state=state).fit(BITS[:200]).components_

    np.testing.assert_array_equal(components(), components())


@pytest.mark.parametrize("n_components", [2, 64])
@each_class
def test_learned_attributes(RBM, n_components):
    rbm = RBM(n_components, learning_rate=0.05, batch_size=20, n_iter=2, random_state=0)
    rbm.fit(BITS[:100])
    assert rbm.components_.shape == (n_components, 64)
    assert rbm.intercept_hidden_.shape == (n_components,)
    assert rbm.intercept_visible_.shape == (64,)
    assert rbm.h_samples_.shape == (20, n_components)
    assert np.isin(rbm.h_samples_, (0, 1)).all()


@each_class
def test_transform_by_hand(RBM):
    rbm = RBM(n_components=6, n_iter=2, random_state=0).fit(BITS)
    field = BITS @ rbm.components_.T + rbm.intercept_hidden_
    np.testing.assert_allclose(rbm.transform(BITS), 1 / (1 + np.exp(-field)), rtol=1e-4, atol=1e-6)


@each_class
def test_weights_can_be_replaced(RBM):
    rbm = RBM(n_components=6, n_iter=2, random_state=0).fit(BITS)
    rbm.components_ = np.zeros((6, 64))
    rbm.intercept_hidden_ = np.zeros(6)
    np.testing.assert_array_equal(rbm.transform(BITS[:5]), np.full((5, 6), 0.5))


@full
@each_class
def test_score_samples_ranks_data_above_noise(RBM):
    rbm = RBM(n_components=10, learning_rate=0.1, n_iter=5, random_state=0).fit(BITS)
    noise = (np.random.RandomState(0).rand(300, 64) < BITS.mean()).astype(float)
    seen, random = rbm.score_samples(BITS[:300]), rbm.score_samples(noise)
    assert seen.shape == random.shape == (300,)
    assert (seen[:, None] > random[None, :]).mean() > 0.75


@each_class
def test_a_verbose_run(RBM, capfd):
    RBM(n_components=4, n_iter=3, verbose=1, random_state=0).fit(BITS[:100])
    shown = "".join(capfd.readouterr())
    assert RBM.__name__.removesuffix("Estimator") in shown
    assert "3" in shown
    RBM(n_components=4, n_iter=3, verbose=0, random_state=0).fit(BITS[:100])
    assert capfd.readouterr() == ("", "")


@each_class
def test_scikit_learns_own_parameters_keep_their_names_and_order(RBM):
    rbm = RBM(5, learning_rate=0.1, batch_size=10, n_iter=2, verbose=0, random_state=0)
    assert (
        clone(rbm).get_params().items()
        >= {
            "n_components": 5,
            "learning_rate": 0.1,
            "batch_size": 10,
            "n_iter": 2,
            "verbose": 0,
            "random_state": 0,
        }.items()
    )
    assert rbm.fit(BITS[:50]) is rbm
    assert rbm.fit(BITS[:50], LABELS[:50]) is rbm
    rbm.partial_fit(BITS[:50], LABELS[:50])
    assert rbm.transform(BITS).shape == (1797, 5)


@each_class
def test_a_stack_and_a_union(RBM):
    deep = make_pipeline(
        RBM(n_components=32, learning_rate=0.05, n_iter=1, random_state=0),
        RBM(n_components=16, learning_rate=0.05, n_iter=1, random_state=0),
    )
    assert deep.fit_transform(BITS[:300]).shape == (300, 16)
    wide = FeatureUnion(
        [("a", RBM(4, n_iter=1, random_state=0)), ("b", RBM(6, n_iter=1, random_state=1))]
    )
    assert wide.fit_transform(BITS[:300]).shape == (300, 10)


@full  # starts two processes, each of which imports torch
@each_class
def test_cross_validation_in_processes_that_pickle(RBM):
    pipeline = make_pipeline(
        RBM(40, learning_rate=0.1, n_iter=10, random_state=0), LogisticRegression(max_iter=500)
    )
    scores = cross_val_score(pipeline, BITS[:300], LABELS[:300], cv=2, n_jobs=2)
    assert scores.min() > 0.4  # 150 rows of ten classes: chance is 0.1
