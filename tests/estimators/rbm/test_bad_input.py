"""RBMEstimator: what cannot work is refused, with the fix named; what is unusual works."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from skebm import RBMEstimator
from skebm.objectives import Centering, Penalty
from skebm.partition import Exact
from skebm.samplers import FromData, Gibbs, Persistent, ReplayBuffer
from skebm.training import SGD, AdamW, EarlyStopping
from tests.support.rbm import METHODS, assert_sound, fit_once
from tests.support.tiers import about, leading, only_full

X = (np.random.default_rng(0).random((40, 5)) < 0.4).astype(np.float64)
# "auto" is "exact" here, by L-BFGS.
RULES = ("pcd", "exact", "cd")
each_rule = pytest.mark.parametrize("learning", leading(2, RULES))


def rbm(**params):
    """Bernoulli units: other kinds of columns are those of tests/estimators/rbm/test_columns.py."""
    kinds = {"visible": "bernoulli", "categorical_features": None}
    return RBMEstimator(**{"n_components": 3, "n_iter": 5, "random_state": 0} | kinds | params)


@pytest.fixture
def model():
    return fit_once(rbm(), X)


# ------------------------------------------------------------------------------
# Values
# ------------------------------------------------------------------------------


def with_value(value, table=X):
    bad = table.copy()
    bad[3, 2] = value
    return bad


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(with_value(np.nan), "NaN", id="nan"),
        pytest.param(with_value(np.inf), "infinity", id="inf"),
        pytest.param(with_value(-np.inf), "infinity", id="-inf"),
        pytest.param(sp.csr_array(with_value(np.nan)), "NaN", id="sparse nan"),
        pytest.param(sp.csr_array(with_value(np.inf)), "infinity", id="sparse inf"),
        pytest.param(X[0], "1D array", id="1d"),
        pytest.param(np.float64(1.0), "no table", id="0d"),
        pytest.param(X[None], "dim 3", id="3d"),
        pytest.param(X[:0], "0 sample", id="no rows"),
        pytest.param(X[:, :0], "0 feature", id="no columns"),
        pytest.param(pd.DataFrame(), "0 feature|at least one array or dtype", id="empty frame"),
        pytest.param(X + 1j, "Complex", id="complex"),
        pytest.param(X.astype(str).astype(object) + "a", "could not convert", id="strings"),
        pytest.param(
            pd.DataFrame({"a": [0, 1], "b": ["x", "y"]}), "could not convert", id="mixed frame"
        ),
        pytest.param([[0, 1], [0]], "one length", id="ragged"),
    ],
)
def test_unusable_rows(model, bad, message):
    is_nan = not isinstance(bad, list) and "NaN" in message
    for method in ("fit", "partial_fit", *METHODS):
        if is_nan and method not in OF_COMPLETE_ROWS:
            found = getattr(rbm() if method in ("fit", "partial_fit") else model, method)(bad)
            if not isinstance(found, RBMEstimator):
                assert np.isfinite(_dense(found)).all()
            continue
        target = rbm() if method in ("fit", "partial_fit") else model
        with about(method), pytest.raises(ValueError, match=message):
            getattr(target, method)(bad)


OF_COMPLETE_ROWS = ("pseudo_likelihood", "reconstruct", "gibbs", "denoise")


def _dense(x):
    return x.toarray() if sp.issparse(x) else x


def test_none_is_not_a_table():
    with pytest.raises(ValueError, match="no table"):
        rbm().fit(None)


def test_another_number_of_columns(model):
    for method in METHODS:
        for other in (X[:, :4], np.hstack([X, X])):
            with about(method), pytest.raises(ValueError, match="features.*expecting 5"):
                getattr(model, method)(other)


@pytest.mark.parametrize("go_on", ["partial_fit", "warm_start"])
def test_going_on_with_other_columns(go_on):
    frame = pd.DataFrame(X, columns=list("abcde"))
    if go_on == "partial_fit":
        model = rbm().partial_fit(frame)
        again = model.partial_fit
    else:
        model = rbm(warm_start=True).fit(frame)
        again = model.fit
    expected = model.score_samples(frame)
    with pytest.raises(ValueError, match="features.*expecting 5"):
        again(frame.iloc[:, :4].to_numpy())
    with pytest.raises(ValueError, match="feature names should match"):
        again(frame.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="feature names should match"):
        again(frame[list("edcba")])
    assert_array_equal(model.score_samples(frame), expected)


def test_unseen_names():
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = rbm().fit(frame)
    for method in METHODS:
        with pytest.raises(ValueError, match="(?s)unseen at fit time.*- z"):
            getattr(model, method)(frame.rename(columns={"a": "z"}))


def test_one_row():
    with pytest.raises(ValueError, match="1 sample"):
        rbm().fit(X[:1])
    assert_sound(rbm().partial_fit(X[:1]), X)
    assert_sound(rbm().fit(X), X[:1])


@each_rule
def test_two_rows(learning):
    assert_sound(rbm(learning=learning).fit(X[:2]), X)


@pytest.mark.parametrize(
    ("learning", "value"),
    [
        ("pcd", 7.0),
        ("pcd", 0.4),
        ("exact", 0.0),
        *(only_full("pcd", value) for value in (0.0, 1.0, -3.5)),
        *(only_full("exact", value) for value in (1.0, -3.5, 0.4)),
        *(only_full("cd", value) for value in (0.0, -3.5, 0.4)),
    ],
)
def test_all_rows_equal(learning, value):
    same = np.full((30, 4), value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rbm(learning=learning, n_iter=50).fit(same)
    assert model.n_restarts_ == 0
    assert_sound(model, same)
    assert (model.predict(same) == 1).all()
    if value == 0.4:
        assert model.sample(2000, random_state=0).mean() == pytest.approx(0.4, abs=0.1)
    else:
        assert (model.sample(2000, random_state=0) == value).mean() > 0.9


@each_rule
def test_a_constant_column(learning):
    constant = X.copy()
    constant[:, 1], constant[:, 3] = 0, 1
    model = rbm(learning=learning).fit(constant)
    assert_sound(model, constant)
    draws = model.sample(500, random_state=0)
    assert draws[:, 1].mean() < 0.1
    assert draws[:, 3].mean() > 0.9


@pytest.mark.parametrize("sparse", leading(1, [False, True]))
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((-1e300, 1e300), np.float64),
        ((-3e38, 3e38), np.float32),
        ((0, 5e-324), np.float64),
        ((1e16, 1e16 + 2), np.float64),
        only_full((0, 1e300), np.float64),
        only_full((0, 1e38), np.float32),
    ],
)
def test_huge_and_tiny_values_are_scaled(values, dtype, sparse):
    huge = np.where(X == 1, values[1], values[0]).astype(dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = rbm().fit(sp.csr_array(huge) if sparse else huge)
    # scikit-learn's own look for infinities sums float32 values of both signs
    ours = [w for w in caught if "encountered in reduce" not in str(w.message)]
    assert not [w for w in ours if w.category is RuntimeWarning]
    assert_sound(model, huge)
    if max(values) > 1:
        assert any("min-max scaled" in str(w.message) for w in caught)
        expected = np.array(values, dtype)
        assert np.isin(model.impute(np.full((9, 5), np.nan, dtype)), expected).all()


def test_a_range_beyond_a_float_is_refused():
    huge = X.copy()
    huge[0, 1], huge[1, 1] = -1.7e308, 1.7e308
    signs = np.resize([1, -1], len(X) - 2)
    huge[2:, 1] = signs * np.linspace(0.9e308, 1e308, len(X) - 2)
    with pytest.raises(ValueError, match=r"Columns \[1\].*divide them"):
        rbm().fit(huge)
    assert np.isfinite(rbm(visible="auto").fit(huge).score_samples(huge)).all()


def test_huge_values_after_the_fit_are_clipped(model):
    for value in (1e300, -1e300):
        with pytest.warns(UserWarning, match="columns 2 .*clipped"):
            scores = model.energy(with_value(value))
        assert_array_equal(scores, model.energy(with_value(float(value > 0))))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        pytest.param(-np.ones(40), "Negative values", id="negative"),
        pytest.param(np.zeros(40), "non-zero", id="zero"),
        pytest.param(np.ones(39), "inconsistent|shape", id="short"),
        pytest.param(np.ones(41), "inconsistent|shape", id="long"),
        pytest.param(np.ones((40, 1)), "1D", id="2d"),
        pytest.param(np.full(40, np.nan), "NaN", id="nan"),
        pytest.param(np.full(40, np.inf), "infinity", id="inf"),
        pytest.param(np.array(["a"] * 40), "could not convert", id="strings"),
    ],
)
def test_unusable_weights(weight, message):
    for method in ("fit", "partial_fit"):
        with about(method), pytest.raises(ValueError, match=message):
            getattr(rbm(), method)(X, sample_weight=weight)


@pytest.mark.parametrize("scale", leading(2, [1e-300, 1e300, 1e-30, 1e30]))
def test_the_scale_of_weights_is_free(scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The base is left as it is")
        model = rbm().fit(X, sample_weight=np.full(40, scale))
    assert_sound(model, X)
    assert model.score(X) == pytest.approx(fit_once(rbm(), X).score(X), abs=1e-2)


@each_rule
def test_one_row_of_positive_weight(learning):
    weight = np.zeros(40)
    weight[3] = 1
    assert_sound(rbm(learning=learning).fit(X, sample_weight=weight), X)


@each_rule
def test_weights_of_very_different_size(learning):
    weight = np.ones(40)
    weight[0] = 1e6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rbm(learning=learning, batch_size=10).fit(X, sample_weight=weight)
    assert_sound(model, X)


# ------------------------------------------------------------------------------
# Parameters
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 0}, r"'n_components'.*\[1, inf\)"),
        ({"n_components": 2.5}, "'n_components'.*int"),
        ({"batch_size": 0}, r"'batch_size'.*\[1, inf\)"),
        ({"batch_size": "all"}, "'batch_size'.*'auto'"),
        ({"learning_rate": 0}, r"'learning_rate'.*\(0"),
        ({"learning_rate": -0.1}, r"'learning_rate'.*\(0"),
        ({"learning_rate": np.nan}, "'learning_rate'"),
        ({"learning_rate": np.inf}, "'learning_rate'"),
        ({"n_iter": -1}, "'n_iter'"),
        ({"learning": "sml"}, "'learning'.*'pcd'"),
        ({"contamination": 0}, "'contamination'"),
        ({"contamination": 0.6}, "'contamination'"),
        ({"partition": "exact"}, "'partition'.*PartitionEstimator"),
        ({"partition": Gibbs()}, "'partition'.*PartitionEstimator"),
        ({"partition": Exact}, "'partition'.*PartitionEstimator"),
        ({"sampler": "gibbs"}, "'sampler'.*Sampler"),
        ({"sampler": Exact()}, "'sampler'.*Sampler"),
        ({"dtype": "float16"}, "'dtype'.*'float64'"),
        ({"random_state": "seed"}, "'random_state'"),
        ({"net_params": "adam"}, "'net_params'.*dict"),
        ({"device": "nonsense"}, 'nonsense.*Pass device="auto"'),
        ({"device": ""}, 'Pass device="auto"'),
        ({"device": "cuda:99"}, 'cuda:99.*Pass device="auto"'),
        ({"device": "meta"}, 'meta.*Pass device="auto"'),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_unusable_parameters(params, message):
    for method in ("fit", "partial_fit"):
        with about(method), pytest.raises(ValueError, match=message):
            getattr(rbm(**params), method)(X)


# Objects that an estimator holds say themselves what is wrong with them.
@pytest.mark.parametrize(
    ("owner", "config", "names"),
    [
        ("chains", Persistent, {"n_steps": 0, "n_chains": 0, "reweight": "yes"}),
        ("chains", FromData, {"n_steps": 0, "noise_scale": -1}),
        ("centering", Centering, {"rate": 2.0, "precondition": -0.1}),
        (
            "penalty",
            Penalty,
            {"l1": -1, "l2": -1, "sparsity_target": 1.0, "sparsity_cost": -1},
        ),
        (
            "optimizer",
            SGD,
            {"momentum": 1.0, "schedule": "cosine", "averaging": 1, "max_restarts": -1},
        ),
        ("early_stopping", EarlyStopping, {"validation_fraction": 1.0, "n_iter_no_change": 0}),
        ("early_stopping", EarlyStopping, {"tol": -1}),
    ],
)
def test_unusable_settings_of_objects(owner, config, names):
    for name, value in names.items():
        message = f"'?{name}'? (parameter )?of {config.__name__}.* must be .*"
        with about(config, name, "fit"), pytest.raises(ValueError, match=message):
            rbm(learning="auto", **{owner: config(**{name: value})}).fit(X)
        with about(config, name, "partial_fit"), pytest.raises(ValueError, match=message):
            rbm(**{owner: config(**{name: value})}).partial_fit(X)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"chains": ReplayBuffer()}, "ReplayBuffer.*FromData"),
        ({"chains": Persistent(), "learning": "exact"}, "chains=None"),
        ({"chains": FromData(), "learning": "pcd"}, "chains=Persist"),
        ({"optimizer": AdamW()}, "'optimizer' parameter of RBMEstimator.*SGD"),
        ({"chains": "persistent"}, "'chains' parameter of RBMEstimator.*ChainPolicy"),
        ({"centering": True}, "'centering' parameter of RBMEstimator.*Centering"),
        ({"penalty": 0.1}, "'penalty' parameter of RBMEstimator.*Penalty"),
        ({"early_stopping": 0.1}, "'early_stopping'.*RBMEstimator.*EarlyStopping"),
    ],
    ids=str,
)
def test_objects_of_other_estimators_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        rbm(**params).fit(X)


def test_a_failed_fit_is_no_fit():
    model = rbm(learning="nonsense")
    with pytest.raises(ValueError, match="learning"):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)
    model = rbm().fit(X)
    expected = model.score_samples(X)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(with_value(np.inf))
    assert_array_equal(model.score_samples(X), expected)


def test_enumerating_too_much_is_refused():
    table = (np.random.default_rng(0).random((30, 40)) < 0.5).astype(float)
    with pytest.raises(ValueError, match='(?s)learning="exact".*Use learning="pcd", or fewer'):
        RBMEstimator(40, learning="exact").fit(table)
    model = RBMEstimator(40, n_iter=1, partition=Exact(), random_state=0).fit(table)
    with pytest.raises(ValueError, match="max_cost.*AISBracket"):
        model.score(table)


@pytest.mark.parametrize("fraction", leading(2, [0.01, 0.99, 0.5, 0.9]))
@pytest.mark.parametrize("n", leading(1, [2, 3, 5]))
@each_rule
def test_few_rows_and_early_stopping(learning, n, fraction):
    """At least one row on each side, or an error that says why not."""
    stopping = EarlyStopping(validation_fraction=fraction)
    model = rbm(learning=learning, early_stopping=stopping)
    try:
        model.fit(X[:n])
    except ValueError as error:
        assert "validation_fraction" in str(error)  # noqa: PT017
    else:
        assert_sound(model, X)


@each_rule
def test_no_iterations(learning):
    model = rbm(learning=learning, n_iter=0).fit(X)
    assert model.n_iter_ == 0
    assert_sound(model, X)


@pytest.mark.parametrize("batch_size", leading(2, [39, 1000, 1, 3, 13, 40]))
@pytest.mark.parametrize("learning", leading(1, RULES))
def test_any_batch_size(learning, batch_size):
    """39 leaves one row for the last batch, 1000 is larger than the table."""
    model = rbm(learning=learning, batch_size=batch_size)
    assert_sound(model.fit(X), X)
    assert model.n_restarts_ == 0
    assert_sound(model.partial_fit(X), X)


@pytest.mark.parametrize("shape", leading(2, [(40, 1), (5, 200), (2, 2)]))
@each_rule
def test_any_shape(learning, shape):
    table = (np.random.default_rng(0).random(shape) < 0.5).astype(float)
    assert_sound(rbm(learning=learning).fit(table), table)


# ------------------------------------------------------------------------------
# Arguments of methods
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_samples", [0, -1])
def test_too_few_samples(model, n_samples):
    with pytest.raises(ValueError, match="n_samples must be"):
        model.sample(n_samples)


def test_a_fraction_of_a_sample(model):
    with pytest.raises((TypeError, ValueError), match="n_samples"):
        model.sample(2.5)
    assert len(model.sample(np.int64(2))) == 2


@pytest.mark.parametrize("noise_level", [0, 0.5, 0.7, 1, -0.1, np.nan])
def test_impossible_noise_levels(model, noise_level):
    with pytest.raises(ValueError, match=r"noise_level must be in \(0, 0.5\)"):
        model.denoise(X, noise_level)


@pytest.mark.parametrize("method", ["impute", "denoise"])
@pytest.mark.parametrize("n_steps", [0, -3])
def test_chains_of_no_steps(model, method, n_steps):
    holes = np.where(X == 1, np.nan, X) if method == "impute" else X
    with pytest.raises(ValueError, match="n_steps must be"):
        getattr(model, method)(holes, n_steps=n_steps)


def test_one_step(model):
    assert np.isfinite(model.denoise(X, n_steps=1)).all()
    assert np.isfinite(model.impute(np.where(X == 1, np.nan, X), n_steps=1)).all()


def test_impute_refuses_infinity(model):
    with pytest.raises(ValueError, match="infinity"):
        model.impute(with_value(np.inf))


def test_a_column_without_any_entry_is_imputed(model):
    holes = X.copy()
    holes[:, 2] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled = model.impute(holes, random_state=0)
    assert set(np.unique(filled[:, 2])) <= {0, 1}
    assert_array_equal(np.delete(filled, 2, axis=1), np.delete(X, 2, axis=1))


def test_not_fitted():
    for method in METHODS:
        for unfitted in (rbm(), RBMEstimator()):
            with about(method), pytest.raises(NotFittedError, match="not fitted yet"):
                getattr(unfitted, method)(X)


def test_attributes_of_an_unfitted_model():
    with pytest.raises(NotFittedError):
        rbm().sample()
    names = ("components_", "intercept_hidden_", "intercept_visible_", "h_samples_")
    names += ("learning_", "learning_rate_", "batch_size_", "n_chains_", "energy_", "n_iter_")
    for name in (*names, "log_partition_", "offset_", "log_partition_bounds_"):
        with pytest.raises((AttributeError, NotFittedError)):
            getattr(rbm(), name)
    for name in names:
        assert not hasattr(rbm(), name)
    with pytest.raises(NotFittedError):
        rbm().components_ = np.zeros((3, 5))
