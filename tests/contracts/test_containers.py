"""Tables and targets of any container, in every estimator: a model, or an error with a remedy."""

import datetime
import enum
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from skebm import (
    BoltzmannMachineDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TableEncoder,
    TractableDensity,
)
from tests.contracts.test_frames import ESTIMATORS, WITH_TARGET, N, call, made
from tests.support.tiers import about, named, only_full

NAMES = list("abc")
NUMBERS = np.round(8 * np.random.default_rng(0).normal(size=(N, 3))) / 8
CLASSES = np.arange(N) % 2


def fit(name, X, y=CLASSES):
    """A fitted estimator; `y` is the target of those that need one."""
    return call(made(name, NAMES[0]), "fit", X, *((y,) if name.endswith(WITH_TARGET) else ()))


def objects(*first):
    """An array of objects whose first column repeats the given ones."""
    X = NUMBERS.astype(object)
    X[:, 0] = [first[i % len(first)] for i in range(N)]
    return X


REFUSED = {
    "none": (None, "X is None, and no table"),
    "path": ("table.csv", r"X is 'table\.csv', and no table"),
    "column": (
        NUMBERS[:, 0],
        r"1D array instead: X has the shape \(\d+,\)\. Reshape your data, by",
    ),
    "complex": (NUMBERS + 1j, "Complex data not supported.*two columns"),
    "brief": (torch.tensor(NUMBERS, dtype=torch.bfloat16), r"bfloat16.*X\.float\(\)"),
    "sparse": (torch.tensor(NUMBERS).to_sparse(), r"sparse tensor: pass X\.to_dense\(\)"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_no_table_is_made_of_is_refused_in_a_line(name):
    for kind, (X, match) in REFUSED.items():
        with about(kind), pytest.raises((TypeError, ValueError), match=match) as caught:
            fit(name, X)
        assert len(str(caught.value)) < 200


TARGETS = [name for name in ESTIMATORS if name.endswith(WITH_TARGET)]
DATES = np.datetime64("2020-01-01") + CLASSES


@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_are_refused(name):
    wrong = {
        "gradients": (torch.tensor(1.0 * CLASSES, requires_grad=True), r"pass y\.detach\(\)"),
        "complex": (CLASSES + 0j, "y holds complex numbers: pass"),
        "masked": (np.ma.masked_array(CLASSES, mask=CLASSES > 0), "y has masked entries"),
    }
    missing = np.where(np.arange(N) == 3, np.nan, CLASSES)
    if name != "GatedRBM":
        row = r"row 3 has no label\. Drop such rows"
        wrong |= {"nan": (missing, row), "category": (pd.Series(missing, dtype="category"), row)}
    if not name.endswith("Classifier"):
        wrong |= {"dates": (DATES, "y holds dates: pass numbers of days")}
        wrong |= {"polars": (pl.Series(DATES), "y holds dates: pass numbers of days")}
    for kind, (y, match) in wrong.items():
        with about(kind), pytest.raises((TypeError, ValueError), match=match):
            fit(name, NUMBERS, y)


def sparse_frames():
    """Frames with sparse columns, and their like with dense ones."""
    positive = NUMBERS.clip(0)
    numbers, bits = (pd.DataFrame(x, columns=NAMES) for x in (positive, positive > 0))
    yield numbers.astype(pd.SparseDtype(float, 0.0)), numbers
    yield bits.astype(pd.SparseDtype(bool, False)), bits
    yield numbers.astype({"b": pd.SparseDtype(float, np.nan)}), numbers


IN_FIRST_TIER = {"DensityImputer", "RBMEstimator", "TableEncoder", "TractableDensity", "Windows"}


@pytest.mark.parametrize("name", named(IN_FIRST_TIER, ESTIMATORS))
def test_sparse_columns_of_a_frame_are_those_of_a_dense_one(name):
    if name in ("HopfieldMemory", "SequenceOutlierDetector"):
        pytest.skip("It has no scores, or those of its estimator.")
    asked = next(
        m
        for m in ("score_samples", "predict_proba", "transform", "predict")
        if hasattr(made(name, NAMES[0]), m)
    )
    for sparse, dense in sparse_frames():
        pair = (CLASSES,) if name == "GatedRBM" else ()
        found, expected = (
            np.asarray(call(fit(name, X), asked, X, *pair), float) for X in (sparse, dense)
        )
        np.testing.assert_array_equal(found, expected)


# ------------------------------------------------------------------------------
# Objects in cells
# ------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


TAKE_LEVELS = [
    only_full(BoltzmannMachineDensity()),
    RBMEstimator(2, n_iter=1, random_state=0),
    TractableDensity(random_state=0),
]


@pytest.mark.parametrize("model", TAKE_LEVELS)
def test_objects_are_numbers_levels_or_refused(model):
    frame = pd.DataFrame(NUMBERS > 0, columns=NAMES, dtype=float)
    halves = [Fraction(int(bit), 2) for bit in CLASSES]
    numbers = call(model, "fit", frame.assign(a=halves)).score_samples(frame)
    np.testing.assert_allclose(
        numbers, call(model, "fit", frame.assign(a=CLASSES / 2)).score_samples(frame)
    )
    colours = frame.assign(a=[list(Colour)[i] for i in CLASSES])
    of_text = frame.assign(a=[("b", "r")[1 - i] for i in CLASSES])  # in the order of their names
    found, expected = (call(model, "fit", X).score_samples(X) for X in (colours, of_text))
    np.testing.assert_allclose(found, expected)
    days = [datetime.date(2020, 1, 1 + i) for i in CLASSES]
    for values, match in (
        (days, "'a' holds dates"),
        ([None, *days[1:]], "'a' holds dates"),
        ([datetime.timedelta(int(i)) for i in CLASSES], "'a' holds durations"),
    ):
        with pytest.raises(ValueError, match=match):
            call(model, "fit", frame.assign(a=pd.Series(values, dtype=object)))
    mixed = [days[0], "unknown", *days[2:]]
    orders = (frame.assign(a=pd.Series(v, dtype=object)) for v in (mixed, mixed[::-1]))
    for X in orders:  # levels in either order
        assert call(model, "fit", X).score_samples(X).shape == (N,)


def test_arrays_of_objects_name_the_column():
    for X, match in (
        (objects(datetime.date(2020, 1, 1)), "Column 0 of X holds dates"),
        (objects({"key": 1}), "Column 0 of X holds lists or other objects"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            ScoreMatchingDensity().fit(X)


def test_missing_booleans_of_polars_are_named():
    X = pl.DataFrame({"a": [None, *(NUMBERS[1:, 0] > 0).tolist()], "b": NUMBERS[:, 1]})
    with pytest.raises(ValueError, match="NaN in column 'a'"):
        ScoreMatchingDensity().fit(X)


def test_missing_objects_and_arrays_in_cells():
    X = pd.DataFrame({"a": pd.Series([pd.NA, *NUMBERS[1:, 0]], dtype=object), "b": NUMBERS[:, 1]})
    found = call(TableEncoder(), "fit", X).transform(X)
    holes = X.assign(a=X["a"].fillna(np.nan).astype(float))
    np.testing.assert_array_equal(found, call(TableEncoder(), "fit", holes).transform(holes))
    with pytest.raises(ValueError, match="NaN in column 'a'"):
        ScoreMatchingDensity().fit(X)
    with pytest.raises(TypeError, match="'a' holds values that are no levels.*'ndarray'"):
        TableEncoder().fit(X.assign(a=[np.arange(2)] * N))


def test_structures_and_dictionaries_are_told_from_text():
    arrow = pytest.importorskip("pyarrow")
    records = pl.DataFrame({"a": [{"key": 1}] * N, "b": NUMBERS[:, 1]})
    with pytest.raises(ValueError, match="'a' holds lists or other objects"):
        ScoreMatchingDensity().fit(records)
    text = pd.Series(["no", "yes"] * (N // 2))
    coded = text.astype(pd.ArrowDtype(arrow.dictionary(arrow.int32(), arrow.string())))
    model = TractableDensity()
    found, expected = (
        call(model, "fit", X).score(X) for X in (pd.DataFrame({"a": c}) for c in (coded, text))
    )
    assert found == expected
    frame = pd.DataFrame({"a": coded, "b": NUMBERS[:, 1]})
    drawn = call(TractableDensity(random_state=0), "fit", frame).sample(9, random_state=0)
    assert set(drawn["a"]) <= {"no", "yes"}


def test_numbers_as_text_are_said_to_be_so():
    X = pd.DataFrame({"a": [f"{value:.6f}" for value in np.linspace(0, 1, N)], "b": NUMBERS[:, 1]})
    with pytest.warns(UserWarning, match="'a', by pandas.to_numeric"):
        TractableDensity().fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        TractableDensity().fit(X.assign(a=pd.to_numeric(X["a"])))
