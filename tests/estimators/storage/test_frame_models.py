"""Every estimator, fitted to a frame, is stored by skops and gives the same answers, bit for bit.

The frame has text, categories, dates, booleans and missing entries; an estimator is fitted to the
columns of it that it takes.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline

import skebm
from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBeliefNetwork,
    DeepBoltzmannMachine,
    DensityClassifier,
    DensityImputer,
    DensityRegressor,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    GatedRBM,
    HopfieldMemory,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    OutlierEnsemble,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    RowSurprise,
    ScoreMatchingDensity,
    SequenceOutlierDetector,
    SpikeSlabRBM,
    StreamMonitor,
    SubspaceRBM,
    TableEncoder,
    TemporalRBM,
    TemporalRBMClassifier,
    TractableDensity,
    Windows,
)
from skebm.energies import MLP
from skebm.metrics import log_likelihood_score
from skebm.partition import ImportanceSampling
from skebm.samplers import Persistent
from tests.support.storage import by_skops
from tests.support.tiers import named

N = 80
RNG = np.random.default_rng(0)


def frame():
    found = pd.DataFrame(
        {
            "size": RNG.normal(size=N),
            "count": RNG.poisson(3, N).astype(float),
            "kind": pd.Categorical(RNG.choice(["x", "y", "z"], N)),
            "colour": RNG.choice(["red", "green", "blue"], N),
            "flag": RNG.random(N) < 0.3,
            "when": pd.Timestamp("2026-01-01") + pd.to_timedelta(RNG.integers(0, 9**7, N), "s"),
        }
    )
    found.loc[3:9, "size"] = np.nan
    found.loc[12:15, "kind"] = np.nan
    found.loc[20:24, "colour"] = None
    found.loc[30:31, "when"] = pd.NaT
    return found


ANY = frame()
MIXED = ANY[["size", "count", "kind", "colour"]]
COMPLETE = MIXED.fillna({"size": 0.0, "colour": "red"}).dropna()
NUMBERS = ANY[["size", "count"]].fillna(0.0)
LEVELS = COMPLETE[["kind", "colour"]]
BITS = (NUMBERS > 1.0).astype(float)
SERIES = NUMBERS.set_index(pd.date_range("2026-01-01", periods=N, freq="h"))
LABELS = np.where(np.arange(N) % 2, "yes", "no")

few = {"n_iter": 2, "random_state": 0}
small = few | {"network": MLP((4,)), "batch_size": 40, "partition": ImportanceSampling(300)}
normal = small | {"base": "gaussian"}
RBM = RBMEstimator(2, **few)
GAUSSIAN = TractableDensity("gaussian")
ENCODED = make_pipeline(TableEncoder(), TractableDensity(random_state=0))

# What is stored and what it is fitted to, for each public estimator and for what holds some.
CASES = {
    "BoltzmannMachineDensity": (BoltzmannMachineDensity(l2=0.01, random_state=0), LEVELS),
    "BoostedDensity": (BoostedDensity(n_iter=3, random_state=0), MIXED),
    "ConditionalDensity": (
        ConditionalDensity(["count"], **few, network=MLP((4,)), base="linear"),
        NUMBERS,
    ),
    "ContrastiveDivergenceDensity": (
        ContrastiveDivergenceDensity(**normal, chains=Persistent(n_steps=2)),
        NUMBERS,
    ),
    "DeepBeliefNetwork": (DeepBeliefNetwork((3, 2), rbm=RBM, random_state=0), COMPLETE),
    "DeepBoltzmannMachine": (DeepBoltzmannMachine((3, 2), **few), MIXED),
    "DensityClassifier": (DensityClassifier(random_state=0), MIXED, LABELS),
    "DensityImputer": (DensityImputer(random_state=0), MIXED),
    "DensityRegressor": (DensityRegressor(random_state=0), MIXED, np.arange(N) % 7.0),
    "EnergyOutlierDetector": (EnergyOutlierDetector(random_state=0), ANY),
    "FlowContrastiveDensity": (
        FlowContrastiveDensity(**small, flow="maf", n_flow_steps=3),
        NUMBERS,
    ),
    "GatedRBM": (GatedRBM(2, 3, **few), BITS, BITS.iloc[::-1]),
    "HopfieldMemory": (HopfieldMemory(random_state=0), 2 * BITS.head(5) - 1),
    "JEMClassifier": (JEMClassifier(**normal, chains=Persistent(n_steps=2)), NUMBERS, LABELS),
    "NCEDensity": (NCEDensity(**small, noise="gaussian"), NUMBERS),
    "NeuralDensity": (NeuralDensity(**normal, objective="score_matching"), NUMBERS),
    "OutlierEnsemble": (OutlierEnsemble(random_state=0), ANY),
    "ProductOfDensities": (ProductOfDensities(random_state=0), NUMBERS),
    "RBMClassifier": (RBMClassifier(2, **few), COMPLETE, LABELS[: len(COMPLETE)]),
    "RBMEstimator": (RBMEstimator(3, **few), MIXED),
    "RowSurprise": (RowSurprise(random_state=0), NUMBERS),
    "ScoreMatchingDensity": (ScoreMatchingDensity(**normal), NUMBERS),
    "SequenceOutlierDetector": (
        SequenceOutlierDetector(TemporalRBM(2, **few), random_state=0),
        NUMBERS,
    ),
    "SpikeSlabRBM": (SpikeSlabRBM(2, **few), NUMBERS),
    "SubspaceRBM": (SubspaceRBM(2, 2, **few), MIXED),
    "TableEncoder": (TableEncoder(), ANY),
    "TemporalRBM": (TemporalRBM(2, **few), NUMBERS),
    "TemporalRBMClassifier": (TemporalRBMClassifier(2, **few), BITS, LABELS),
    "TractableDensity": (TractableDensity(random_state=0), MIXED),
    "Windows": (Windows(3), SERIES),
    "pipeline": (ENCODED, ANY),
    "pipeline of a classifier": (
        make_pipeline(TableEncoder(), RBM, LogisticRegression()),
        ANY,
        LABELS,
    ),
    "pipeline of windows": (
        make_pipeline(Windows(3), EnergyOutlierDetector(random_state=0)),
        SERIES,
    ),
    "conformal": (EnergyOutlierDetector(method="conformal", random_state=0), ANY),
    "cross-conformal": (EnergyOutlierDetector(GAUSSIAN, method="cross-conformal", cv=2), NUMBERS),
    "trimmed": (EnergyOutlierDetector(trim="auto", random_state=0), ANY),
    "boosted density": (BoostedDensity(GAUSSIAN, n_iter=3, random_state=0), NUMBERS),
    "search": (GridSearchCV(ENCODED, {"tractabledensity__random_state": [0, 1]}, cv=2), ANY),
    "search by a score": (
        GridSearchCV(
            GAUSSIAN,
            {"distribution": ["gaussian", "mixture"]},
            scoring=log_likelihood_score,
            cv=TimeSeriesSplit(2),
        ),
        NUMBERS,
    ),
    "search by a name": (
        GridSearchCV(
            DensityClassifier(GAUSSIAN), {"random_state": [0, 1]}, scoring="roc_auc", cv=2
        ),
        NUMBERS,
        LABELS,
    ),
}
FIRST = {
    "EnergyOutlierDetector",
    "OutlierEnsemble",
    "RBMEstimator",
    "TableEncoder",
    "pipeline of windows",
    "search by a name",
    "search by a score",
}
METHODS = (
    "score_samples",
    "energy",
    "transform",
    "predict",
    "predict_proba",
    "decision_function",
    "p_values",
)


def test_every_estimator_has_a_case():
    public = {name for name in skebm.__all__ if hasattr(getattr(skebm, name), "get_params")}
    assert public <= set(CASES)


def answers(model, X, *given):
    """What each method says of the rows, as frames, which are compared exactly."""
    about = (X, *given) if isinstance(model, GatedRBM) else (X,)
    for name in METHODS:
        if hasattr(model, name):
            yield name, plain(getattr(model, name)(*about))
    if hasattr(model, "impute"):
        yield "impute", plain(model.impute(*about, random_state=0))
    if hasattr(model, "sample"):
        first = (NUMBERS[["count"]].head(3),) if isinstance(model, ConditionalDensity) else (3,)
        first = (BITS.head(3),) if isinstance(model, GatedRBM) else first
        yield "sample", plain(model.sample(*first, random_state=0))
    if hasattr(model, "explain") and not isinstance(model, SequenceOutlierDetector):
        yield "explain", model.explain(X.head(2)).to_frame(3)
    if hasattr(model, "cv_results_"):
        yield "cv_results_", pd.DataFrame(model.cv_results_).drop(columns="params")


def plain(found):
    values = np.asarray(found)
    return pd.DataFrame(values.reshape(len(values), -1))


def assert_the_same(expected, found):
    expected, found = list(expected), list(found)
    assert [name for name, _ in expected] == [name for name, _ in found]
    assert expected
    for (name, one), (_, other) in zip(expected, found, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True, obj=name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", named(FIRST, CASES))
def test_a_model_of_a_frame_is_loaded_with_the_same_answers(name):
    model, *data = CASES[name]
    model.fit(*data)
    rows = data if isinstance(model, GatedRBM) else data[:1]
    again = by_skops(model)
    assert type(again) is type(model)
    assert_the_same(answers(model, *rows), answers(again, *rows))


@pytest.mark.parametrize(
    "rows", [ANY, ANY.iloc[:, :2].fillna(0.0).to_numpy()], ids=["frame", "array"]
)
@pytest.mark.parametrize("settings", [{}, {"level": None, "run_length": 100}, {"window": 60}])
def test_a_monitor_is_loaded_with_its_stream(rows, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(rows)
        monitor = StreamMonitor(detector, rows, **settings, random_state=0)
        monitor.update(rows[:20])
        again = by_skops(monitor)
        one, other = (m.update(rows[20:60]) for m in (monitor, again))
    for expected, found in zip(one, other, strict=True):
        np.testing.assert_array_equal(expected, found)
    pd.testing.assert_frame_equal(
        monitor.drift().to_frame(), again.drift().to_frame(), check_exact=True
    )
