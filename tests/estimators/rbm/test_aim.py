"""What an RBM is fitted for: a density, or features for a next step."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from skebm import RBMEstimator, SubspaceRBM
from skebm.estimators import Subspace
from skebm.objectives import Centering
from tests.support.tiers import full

DIGITS, LABELS = load_digits(return_X_y=True)
X, X_TEST, y, y_test = train_test_split(DIGITS / 16, LABELS, test_size=0.25, random_state=0)
SMALL = X[:220, 18:30]  # as many rows as choose a base


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def rbm(**params):
    return RBMEstimator(**{"n_iter": 2, "random_state": 0} | params)


@pytest.fixture(scope="module")
def default():
    """An RBM by its defaults, which stands before a classifier."""
    pipeline = make_pipeline(RBMEstimator(random_state=0), LogisticRegression(max_iter=1000, C=100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="lbfgs failed to converge")
        return pipeline.fit(X, y)


def test_a_pipeline_fits_for_features(default):
    model = default[0]
    assert (model.aim_, model.base_name_, model.n_components_) == ("features", "independent", 256)
    assert (model.learning_, model.centered_, model.batch_size_) == ("pcd", False, 10)
    assert model.n_iter_ * -(-len(X) // 10) >= 5000
    assert "gain_over_base" not in model.history_[-1]  # no rows are held out
    assert np.isfinite(model.energy(X_TEST)).all()


@full
def test_the_features_of_a_pipeline_suit_a_classifier(default):
    """Of shifted images, which pixels do not separate, in their rows and columns."""

    def shifted(rows):
        images = rows.reshape(-1, 8, 8)
        return np.concatenate([images, np.roll(images, 1, 1), np.roll(images, 1, 2)]).reshape(
            -1, 64
        )

    few = shifted(X[:400]), np.tile(y[:400], 3)
    other = shifted(X_TEST), np.tile(y_test, 3)
    linear = LogisticRegression(max_iter=300, C=100)
    gain = clone(default).fit(*few).score(*other) - linear.fit(*few).score(*other)
    assert gain > 2 * np.sqrt(0.25 / len(other[1]))


def test_fit_fits_a_density_and_aim_overrides_the_method():
    assert rbm().fit(SMALL).aim_ == rbm().partial_fit(SMALL).aim_ == "density"
    for aim in ("features", "density"):
        model = rbm(aim=aim)
        once = model.fit_transform(SMALL)
        assert model.aim_ == aim
        assert_array_equal(once, clone(model).fit(SMALL).transform(SMALL))
    assert rbm(aim="features").partial_fit(SMALL).aim_ == "features"


def test_the_method_leaves_no_trace():
    model = rbm()
    params = model.get_params()
    model.fit_transform(SMALL)
    assert model.get_params() == params
    assert clone(model).fit(SMALL).aim_ == model.fit(SMALL).aim_ == "density"


def test_a_call_that_fails_leaves_no_trace():
    model = rbm()
    with pytest.raises(ValueError, match="NaN|infinity"):
        model.fit_transform(np.where(SMALL > 0.9, np.inf, SMALL))
    assert model.fit(SMALL).aim_ == "density"


def test_few_rows_have_the_same_features_by_both_methods():
    few = X[:199]
    model = rbm(n_components=4)
    once = model.fit_transform(few)
    assert model.aim_ == "density"
    assert_array_equal(once, clone(model).fit(few).transform(few))
    assert rbm(aim="features").fit(few).aim_ == "features"


def test_settings_that_are_given_are_used():
    asked = {"learning_rate": 0.3, "batch_size": 50, "n_components": 5, "base": "chow-liu"}
    model = rbm(**asked, centering=Centering(precondition=0.5))
    model.fit_transform((X > 0.5).astype(float))
    assert model.base_name_ == "chow-liu"
    assert (model.learning_rate_, model.batch_size_, model.n_components_) == (0.3, 50, 5)
    assert (model.n_iter_, model.centered_, model.precondition_) == (2, True, 0.5)
    exact = rbm(n_components=4, learning="exact", n_iter=3)
    exact.fit_transform(X[:300, 20:30])
    assert (exact.learning_, exact.batch_size_) == ("exact", 300)


def test_numbers_are_centred():
    model = rbm(n_components=4, batch_size=100)
    assert model.fit_transform(3 * X - 1).shape == (len(X), 4)
    assert (model.aim_, model.base_name_, model.centered_) == ("features", "independent", True)


def test_other_units_are_fitted_for_a_density_alone():
    bits = (X[:250] > 0.5).astype(float)
    model = rbm(n_components=4, hidden=Subspace(), aim="features", learning_rate=0.1)
    with pytest.warns(UserWarning, match="aim, because subspaces"):
        assert model.fit(bits).aim_ == "density"
    subspaces = SubspaceRBM(4, learning_rate=0.1, n_iter=2, random_state=0)
    subspaces.fit_transform(bits)
    assert subspaces.aim_ == "density"


def tree_like_bits(n=400):
    """Bits of chains, of which a tree leaves nothing to hidden units."""
    flips = np.random.default_rng(0).random((n, 12)) < 0.15
    return (np.cumsum(flips, axis=1) % 2).astype(float)


@full
def test_features_of_a_base_that_was_chosen_warn_once_asked_for():
    bits = tree_like_bits()
    model = rbm(n_components=8, learning="pcd", n_iter=20).fit(bits)
    assert model.base_name_ != "independent"
    with pytest.warns(UserWarning, match='aim="features"'):
        model.transform(bits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(aim="density").transform(bits)
        assert rbm(n_components=8, aim="features").fit(bits).transform(bits).shape == (400, 8)


def test_frames_keep_their_index():
    frame = pd.DataFrame(X[:220], index=range(5, 225))
    found = rbm(n_components=3).set_output(transform="pandas").fit_transform(frame)
    pd.testing.assert_index_equal(found.index, frame.index)
    assert list(found.columns) == ["rbmestimator0", "rbmestimator1", "rbmestimator2"]


def test_weights_and_missing_entries():
    holes = np.where(np.arange(X.size).reshape(X.shape) % 97 == 0, np.nan, X)
    assert np.isfinite(rbm(n_components=3).fit_transform(holes[:250])).all()
    weight = np.arange(1, 251)
    model = rbm(n_components=3)
    model.fit_transform(X[:250], sample_weight=weight)
    again = rbm(n_components=3, aim="features").fit(X[:250], sample_weight=weight)
    assert_array_equal(model.components_, again.components_)


@full
@pytest.mark.parametrize("wrong", ["feature", None, 1])
def test_an_aim_that_is_none_raises(wrong):
    with pytest.raises(ValueError, match="aim"):
        rbm(aim=wrong).fit_transform(X)
