"""Frames with columns of any kinds, in every estimator: a result, or an error with a remedy."""

import inspect
import itertools
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import skebm
from skebm import (
    BoltzmannMachineDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    TemporalRBM,
)
from tests.support.storage import by_skops
from tests.support.tiers import full

N = 40
ESTIMATORS = [
    name
    for name in skebm.__all__
    if inspect.isclass(getattr(skebm, name)) and hasattr(getattr(skebm, name), "fit")
]
KINDS = ("bit", "kind", "x", "when")
PAIRS = list(itertools.combinations(KINDS, 2))
# Each kind alone, and all of them; pairs with every third estimator, as a kind is refused or taken
# whatever is beside it.
SUBSETS = [
    (name, columns)
    for i, name in enumerate(ESTIMATORS)
    for columns in (*itertools.combinations(KINDS, 1), *PAIRS[i % 3 :: 3], KINDS)
]
REMEDY = re.compile(
    r"use |Use |pass |Pass |[Ff]ill |[Dd]rop |[Ee]ncode |impute|list it|bin the|turn them|needs? "
    r"|leave out "
)


def frame(columns, holes=False, seed=0):
    """Columns of bits, categories, numbers and dates, of rows that are shuffled."""
    rng = np.random.default_rng(seed)
    whole = {
        "bit": rng.random(N) < 0.5,
        "kind": pd.Categorical(rng.choice(list("xyz"), N), categories=list("zyx"), ordered=True),
        "x": rng.normal(size=N),
        "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, N), unit="D"),
    }
    X = pd.DataFrame({name: whole[name] for name in columns})
    if holes:
        for j, name in enumerate(X):
            if X[name].dtype == bool:
                X[name] = X[name].astype("boolean")
            X.loc[[2 * j, 2 * j + 1], name] = None
    return X.sample(frac=1, random_state=seed)


# Ends of names of estimators that are fitted to a target, and to pairs of rows.
WITH_TARGET = ("Classifier", "Regressor", "GatedRBM")


def made(name, given):
    """An estimator with little training; `given` names the condition of a conditional one."""
    cls = getattr(skebm, name)
    known = inspect.signature(cls).parameters
    little = {"n_iter": 1, "random_state": 0, "given": given, "n_components": 2}
    little["rbm"] = RBMEstimator(2, n_iter=1)
    if name == "SequenceOutlierDetector":
        little["estimator"] = TemporalRBM(2, n_iter=1)
    if name.startswith("Deep"):
        little["hidden_layer_sizes"] = (3, 2)
    if name in ("ProductOfDensities", "TractableDensity"):
        del little["n_components"]
    return cls(**{key: value for key, value in little.items() if key in known})


def call(model, method, *args):
    ask = getattr(model, method)
    short = {"n_steps": 2} if "n_steps" in inspect.signature(ask).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ask(*args, **short)


def attempt(name, X):
    """Whether X is fitted, after each method was called; fails for errors without a remedy."""
    model, y = made(name, X.columns[0]), ()
    if name.endswith(WITH_TARGET[:2]):
        y = (np.arange(N) % 2,)
    elif name == "GatedRBM":
        y = (np.random.default_rng(1).normal(size=(N, 2)),)
    steps = [("fit", (X, *y))]
    pair = y if name == "GatedRBM" else ()
    for method in ("energy", "score_samples", "transform"):
        steps.append((method, (X, *pair)))
    steps += [("sample", (X,) if name in ("ConditionalDensity", "GatedRBM") else (3,))]
    steps += [("impute", (X,))]
    for method, args in steps:
        if not hasattr(model, method):
            continue
        try:
            found = call(model, method, *args)
        except (ValueError, TypeError) as error:
            said = str(error)
            assert any(repr(column) in said or f" {column}" in said for column in X) or (
                "all columns" in said or "complete rows" in said or "no column" in said
            ), f"{method}: {said}"
            assert REMEDY.search(said), f"{method}: {said}"
            if method == "fit":
                return False
        else:
            if method == "impute":
                pd.testing.assert_index_equal(found.index, X.index)
                assert found.dtypes.to_dict() == X.dtypes.to_dict()
                assert not found.isna().any().any()
                known = X.notna()
                assert (
                    found.astype(object).where(known, 0) == X.astype(object).where(known, 0)
                ).all(axis=None)
            elif method in ("energy", "score_samples") and isinstance(found, np.ndarray):
                assert len(found) == N
    again = by_skops(model)
    if hasattr(model, "energy") and not pair:
        try:
            expected = call(model, "energy", X)
        except ValueError:
            return True
        np.testing.assert_array_equal(call(again, "energy", X), expected)
    return True


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bits_categories_and_numbers_with_holes(name):
    attempt(name, frame(("bit", "kind", "x"), holes=True))


@full
@pytest.mark.parametrize(
    ("name", "columns"), SUBSETS, ids=lambda some: some if isinstance(some, str) else "+".join(some)
)
def test_any_kinds_of_columns(name, columns):
    if not attempt(name, frame(columns, holes=True)):
        attempt(name, frame(columns))


@full
def test_two_levels_are_a_bit():
    """The same answers as bits and as text: one model, the levels restored."""
    rng = np.random.default_rng(0)
    bits = (rng.random((200, 4)) + 0.3 * rng.integers(0, 2, (200, 1)) > 0.6).astype(float)
    X = pd.DataFrame(bits, columns=list("abcd"))
    text = X.replace({0.0: "n", 1.0: "y"}).astype("category")
    of_bits, of_text = (BoltzmannMachineDensity(l1="ebic").fit(rows) for rows in (X, text))
    np.testing.assert_array_equal(of_bits.graph_, of_text.graph_)
    np.testing.assert_allclose(of_bits.couplings_, of_text.couplings_)
    assert of_text.entries_[0] == ("a", "y")
    assert set(np.unique(of_text.sample(20, random_state=0))) == {"n", "y"}


def test_a_panel_in_the_order_of_time():
    rng = np.random.default_rng(0)
    bits = np.repeat(rng.random((2, 30)) < 0.5, 2, axis=1)
    names = [("a", bits[0]), ("b", bits[1])]
    panel = pd.concat(
        [pd.DataFrame({"t": range(60), "id": name, "bit": b.astype(float)}) for name, b in names]
    )
    panel.index = np.arange(120)
    by_id, by_time = (
        panel.sort_values(order)[["id", "bit"]] for order in (["id", "t"], ["t", "id"])
    )
    model = TemporalRBM(2, order=1, sequence_column="id", n_iter=2, random_state=0)
    expected = pd.Series(call(model, "fit", by_id).score_samples(by_id), by_id.index)
    found = pd.Series(call(model, "fit", by_time).score_samples(by_time), by_time.index)
    pd.testing.assert_series_equal(found.sort_index(), expected.sort_index())


def test_masked_entries_are_missing_ones():
    X = np.random.default_rng(0).normal(size=(60, 3))
    masked = np.ma.masked_array(np.where(np.eye(60, 3) > 0, -9999.0, X), mask=np.eye(60, 3) > 0)
    model = RBMEstimator(2, n_iter=1, random_state=0)
    expected = call(model, "fit", masked.filled(np.nan)).score(X)
    assert call(model, "fit", masked).score(X) == expected
    with pytest.raises(ValueError, match="NaN.*TableEncoder"):
        ScoreMatchingDensity().fit(masked)


TAKE_SERIES = ("SequenceOutlierDetector", "TemporalRBM", "TemporalRBMClassifier", "Windows")


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in TAKE_SERIES])
def test_a_series_is_no_table(name):
    X = pd.Series([0.0, 1.0] * (N // 2))
    y = (np.arange(N) % 2,) if name.endswith(WITH_TARGET) else ()
    with pytest.raises(ValueError, match=r"a Series: pass X\.to_frame\(\).*Windows\(\)"):
        call(made(name, 0), "fit", X, *y)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_columns_of_one_name(name):
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=["a", "b", "a"])
    y = (np.arange(N) % 2,) if name.endswith(WITH_TARGET) else ()
    with pytest.raises(ValueError, match="'a' is the name of 2 columns.*rename"):
        call(made(name, "b"), "fit", X, *y)


@full
def test_booleans_are_bits_or_said_to_be_numbers():
    X = frame(("bit", "x"))
    with pytest.warns(UserWarning, match="'bit' hold booleans"):
        ScoreMatchingDensity(n_iter=1).fit(X)
    with pytest.warns(UserWarning, match="'bit' hold booleans"):
        ConditionalDensity(["x"], base="linear", n_iter=1, random_state=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a condition may be a number 0 or 1
        warnings.simplefilter("ignore", ConvergenceWarning)
        ConditionalDensity(["bit"], base="linear", n_iter=1, random_state=0).fit(X)
    model = call(ContrastiveDivergenceDensity(n_iter=1, random_state=0), "fit", X)
    assert np.isin(np.asarray(model.sample(20, random_state=0))[:, 0], (0, 1)).all()


def test_labels_of_minus_one():
    X, y = np.eye(3)[np.arange(N) % 3], np.arange(N) % 3
    y[:5] = -1
    with pytest.warns(UserWarning, match="unlabeled=-1"):
        RBMClassifier(2, n_iter=1).fit(X, y)


@pytest.mark.parametrize("model", [RBMEstimator(2, n_iter=1), BoltzmannMachineDensity(l2=0.01)])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_arrays_without_holes_come_back_as_they_were(model, dtype):
    X = (np.random.default_rng(0).random((N, 3)) < 0.4).astype(dtype)
    filled = call(call(model, "fit", X), "impute", X)
    assert filled.dtype == X.dtype
    np.testing.assert_array_equal(filled, X)


def test_draws_of_an_array_of_integers_with_categories():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 3, 60), rng.poisson(1, 60)])
    model = RBMEstimator(2, n_iter=1, categorical_features=[0], random_state=0).fit(X)
    drawn = model.sample(300, random_state=0)
    assert drawn.dtype == X.dtype
    assert (drawn.min(0) >= X.min(0)).all()
    assert (drawn.max(0) <= X.max(0)).all()
    floats = clone(model).fit(X.astype(float)).sample(300, random_state=0)
    assert floats.dtype == float
    assert (drawn == np.rint(floats.clip(X.min(0), X.max(0)))).all()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_draws_of_integers_are_values_that_occurred(library):
    """A count of -1 would be none, and 255 as an integer of eight bits without a sign."""
    module = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    counts, kinds = rng.poisson(1, 60).astype(np.uint8), rng.choice(["u", "v"], 60)
    size = rng.normal(size=60).astype(np.float32)
    frame = module.DataFrame({"count": counts, "kind": kinds, "size": size})
    model = RBMEstimator(2, n_iter=1, random_state=0).fit(frame)
    drawn = model.sample(300, random_state=0)
    assert list(drawn.dtypes) == list(frame.dtypes)
    assert 0 <= drawn["count"].min() <= drawn["count"].max() <= counts.max()
    names = [None, *kinds[1:]]
    known = module.DataFrame({"count": counts + np.uint8(100), "kind": names, "size": size})
    assert model.impute(known, random_state=0)["count"].to_list() == known["count"].to_list()
