"""Frames with columns of any kinds, in every estimator: a result, or an error with a remedy."""

import inspect
import itertools
import pickle
import re
import warnings

import numpy as np
import pandas as pd
import pytest

import skebm
from tests.tiers import full

N = 40
ESTIMATORS = [
    name
    for name in skebm.__all__
    if inspect.isclass(getattr(skebm, name)) and hasattr(getattr(skebm, name), "fit")
]
KINDS = ("bit", "kind", "x", "when")
SUBSETS = [s for k in range(1, 5) for s in itertools.combinations(KINDS, k)]
REMEDY = re.compile(
    r"use |Use |pass |Pass |[Ff]ill |[Dd]rop |[Ee]ncode |impute|list it|bin the|turn them|needs? "
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


def made(name):
    """An estimator with little training."""
    cls = getattr(skebm, name)
    known = inspect.signature(cls).parameters
    little = {"n_iter": 1, "random_state": 0, "given": "x", "n_components": 2}
    if name in ("ProductOfDensities", "TractableDensity"):
        del little["n_components"]
    return cls(**{key: value for key, value in little.items() if key in known})


def call(model, method, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(model, method)(*args)


def attempt(name, X):
    """What methods say of X; fails for errors that name no column or no remedy."""
    model, y = made(name), ()
    if name.endswith("Classifier"):
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
                "all columns" in said or "complete rows" in said or method == "score_samples"
            ), f"{method}: {said}"
            assert REMEDY.search(said), f"{method}: {said}"
            if method == "fit":
                return
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
    again = pickle.loads(pickle.dumps(model))
    if hasattr(model, "energy") and not pair:
        try:
            expected = call(model, "energy", X)
        except ValueError:
            return
        np.testing.assert_array_equal(call(again, "energy", X), expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_all_kinds_of_columns_with_holes(name):
    attempt(name, frame(KINDS, holes=True))


@full
@pytest.mark.parametrize("holes", [False, True], ids=["whole", "holes"])
@pytest.mark.parametrize("columns", SUBSETS, ids="+".join)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_any_kinds_of_columns(name, columns, holes):
    attempt(name, frame(columns, holes))
