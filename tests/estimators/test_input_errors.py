"""What estimators say of rows that they do not take: each message names a remedy."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline

import skebm
from skebm import (
    EnergyOutlierDetector,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
    SequenceOutlierDetector,
    TableEncoder,
    TemporalRBM,
    TractableDensity,
)

X = (np.random.default_rng(0).random((40, 3)) < [0.3, 0.5, 0.7]).astype(float)
Y = np.arange(40) % 2
FITTED = [
    value
    for name, value in sorted(vars(skebm).items())
    if isinstance(value, type) and hasattr(value, "fit")
]
MISSING = np.where(np.arange(120).reshape(40, 3) == 3, np.nan, X)
TEXT = pd.DataFrame(X, columns=list("abc")).assign(a=["red", "blue"] * 20)
# They take missing entries; the detector by default only, and the deep network by its first layer.
TAKE_MISSING = {
    "BoostedDensity",
    "DeepBeliefNetwork",
    "DeepBoltzmannMachine",
    "DensityClassifier",
    "DensityImputer",
    "DensityRegressor",
    "EnergyOutlierDetector",
    "OutlierEnsemble",
    "RBMEstimator",
    "SpikeSlabRBM",
    "SubspaceRBM",
    "TableEncoder",
    "TractableDensity",
    "Windows",
}
TAKE_NO_TEXT = [
    "FlowContrastiveDensity",
    "GatedRBM",
    "HopfieldMemory",
    "JEMClassifier",
    "NCEDensity",
    "ProductOfDensities",
    "ScoreMatchingDensity",
    "SpikeSlabRBM",
]


def fit(cls, rows):
    model = cls(TemporalRBM()) if cls is SequenceOutlierDetector else cls()
    if cls.__name__ in ("GatedRBM", "ConditionalDensity"):
        return model.fit(rows, rows)
    has_target = hasattr(cls, "predict_proba") or cls.__name__.endswith("Regressor")
    y = Y[: len(rows)] if isinstance(rows, pd.DataFrame) else Y
    return model.fit(rows, y) if has_target else model.fit(rows)


def named(cls):
    return cls.__name__


@pytest.mark.parametrize("cls", FITTED, ids=named)
def test_lazy_frames_are_not_collected_in_silence(cls):
    with pytest.raises(TypeError, match=r"LazyFrame.*pass X\.collect\(\)"):
        fit(cls, pl.DataFrame(X, schema=list("abc")).lazy())


@pytest.mark.parametrize("cls", FITTED, ids=named)
def test_tensors_are_not_detached_in_silence(cls):
    with pytest.raises(TypeError, match=r"requires gradients.*pass X\.detach\(\)"):
        fit(cls, torch.tensor(X, requires_grad=True))


@pytest.mark.parametrize("cls", FITTED, ids=named)
def test_a_frame_without_rows_is_said_to_be_empty(cls):
    with pytest.raises(ValueError, match=r"0 sample\(s\)|0 class"):
        fit(cls, TEXT[:0])


NO_TABLES = {
    "dictionary": (dict(zip("abc", X.T, strict=True)), r"a dictionary.*pandas\.DataFrame\(X\)"),
    "records": (
        np.array([tuple(row) for row in X], dtype=[(name, float) for name in "abc"]),
        r"an array of records.*pandas\.DataFrame\(X\)",
    ),
    "lengths": ([*X.tolist()[1:], [1.0]], "Row 0 of X has 3 columns, and row 39 has 1: pass rows"),
}


@pytest.mark.parametrize("kind", NO_TABLES)
@pytest.mark.parametrize("cls", FITTED, ids=named)
def test_what_is_no_table_is_said_to_be_none(cls, kind):
    rows, match = NO_TABLES[kind]
    with pytest.raises(ValueError, match=match):
        fit(cls, rows)


def test_rows_that_are_scored_are_checked_alike():
    rows = torch.tensor(X)
    lazy = pl.DataFrame(X, schema=list("abc")).lazy()
    text = pd.DataFrame(TEXT)
    density = TractableDensity("gaussian").fit(rows)
    detector = EnergyOutlierDetector(GaussianMixture()).fit(X)
    rbm = RBMEstimator(2, n_iter=1, random_state=0).fit(text)
    for score in (density.score_samples, detector.predict, rbm.score_samples, rbm.transform):
        with pytest.raises(TypeError, match="collect"):
            score(lazy)
        with pytest.raises(TypeError, match="detach"):
            score(rows.clone().requires_grad_())
    assert density.score_samples(rows).shape == (40,)


@pytest.mark.parametrize(
    "cls", [cls for cls in FITTED if cls.__name__ not in TAKE_MISSING], ids=named
)
@pytest.mark.parametrize("rows", [MISSING, pl.DataFrame(MISSING)], ids=["array", "frame"])
def test_missing_entries_name_who_fills_them_in(cls, rows):
    with pytest.raises(ValueError, match=r"X contains NaN.*(?i:imput)"):
        fit(cls, rows)


@pytest.mark.parametrize("name", TAKE_NO_TEXT)
@pytest.mark.parametrize(
    "rows", [TEXT, TEXT.astype({"a": "category"}), pl.DataFrame(TEXT.to_dict("list"))]
)
def test_text_and_categories_name_who_takes_them(name, rows):
    with pytest.raises(ValueError, match="TableEncoder|RBMEstimator"):
        fit(getattr(skebm, name), rows)


def test_the_recipe_works():
    """The pipeline that the messages name."""
    rows = TEXT.copy()
    rows.iloc[0, 1] = np.nan
    for density in (TractableDensity("gaussian"), ProductOfDensities(random_state=0)):
        model = make_pipeline(TableEncoder(), density).fit(rows)
        assert np.isfinite(model.score_samples(rows)).all()


def test_the_message_is_of_the_estimator_and_names_the_column():
    with pytest.raises(
        ValueError, match="make_pipeline\\(TableEncoder\\(\\), ScoreMatchingDensity"
    ) as e:
        ScoreMatchingDensity().fit(TEXT)
    assert "Column 'a' holds text" in str(e.value)
    with pytest.raises(ValueError, match="infinity"):  # which no encoder mends
        ScoreMatchingDensity().fit(np.where(X == 1, np.inf, X))
