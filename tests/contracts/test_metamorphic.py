"""The same rows given in another way: weights, copies, order, index, dtype, layout and units.

Every public estimator is fitted to tables that say the same, and what it says of new rows must be
the same. `COPIES` and `ORDER` list what differs by definition, with the reason.
"""

import functools
import inspect
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

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
    SubspaceRBM,
    TableEncoder,
    TemporalRBM,
    TemporalRBMClassifier,
    TractableDensity,
    Windows,
)
from skebm.energies import MLP
from tests.support.tiers import full

N = 80


class Table(NamedTuple):
    """Rows to fit and new ones, and the columns that have units."""

    rows: np.ndarray
    new: np.ndarray
    units: tuple[int, ...]


def divided(rows, units=()):
    return Table(rows[:N], rows[N:], tuple(units))


@functools.cache
def table(name):
    """Tables of two parts, of numbers that float32 holds."""
    rng = np.random.default_rng(7)
    n = N + 15
    common = rng.normal(size=(n, 1)) + rng.choice([-1.5, 1.5], (n, 1))
    real = (common + rng.normal(size=(n, 3))).astype(np.float32).astype(float)
    bits = (common + rng.normal(size=(n, 4)) > 0).astype(float)
    if name == "real":
        return divided(real, range(3))
    if name == "binary":
        return divided(bits)
    if name == "mixed":
        levels = rng.integers(0, 3, (n, 1)).astype(float)
        return divided(np.column_stack([real[:, :2], bits[:, :1], levels]), (0, 1))
    if name == "counts":
        return divided(rng.poisson(np.exp(1 + common / 3), (n, 3)).astype(float), range(3))
    if name == "missing":
        holes = rng.random(real.shape) < 0.1
        return divided(np.where(holes, np.nan, real), range(3))
    tails = rng.standard_t(1.5, (n, 3)).astype(np.float32).astype(float)
    return divided(tails, range(3))


class Case(NamedTuple):
    """An estimator that takes little time, what is asked of it, and the tables that it takes."""

    estimator: BaseEstimator
    says: str = "score_samples"
    tables: tuple[str, ...] = ("real",)
    target: str | None = None


NUMBERS = ("real", "counts", "tails")
small = {"network": MLP((8,)), "n_iter": 3, "random_state": 0}
# Which base is chosen is what TractableDensity has relations of.
on_gaussian = small | {"base": "gaussian"}
rbm = {"n_components": 3, "n_iter": 5, "random_state": 0}
deep = {"n_iter": 3, "random_state": 0}
frames = {"n_components": 3, "n_iter": 3, "random_state": 0}
CASES = {
    "TractableDensity": Case(TractableDensity(random_state=0), tables=NUMBERS),
    "TractableDensity-kernel": Case(
        TractableDensity("kernel", metric="log", n_neighbors=5), tables=NUMBERS
    ),
    "TractableDensity-mixture": Case(TractableDensity("mixture", random_state=0), tables=NUMBERS),
    "ProductOfDensities": Case(ProductOfDensities(n_draws=100, random_state=0), tables=NUMBERS),
    "DensityClassifier": Case(
        DensityClassifier(TractableDensity("kernel")), "predict_log_proba", NUMBERS, "class"
    ),
    "DensityImputer": Case(DensityImputer(random_state=0), "transform", (*NUMBERS, "missing")),
    "DensityRegressor": Case(
        DensityRegressor(TractableDensity("gaussian")), "predict", NUMBERS, "class"
    ),
    "EnergyOutlierDetector": Case(
        EnergyOutlierDetector(random_state=0),
        "decision_function",
        (*NUMBERS, "mixed", "missing"),
    ),
    "EnergyOutlierDetector-conformal": Case(
        EnergyOutlierDetector(method="conformal", random_state=0), "p_values", NUMBERS
    ),
    "TableEncoder": Case(TableEncoder(), "transform", (*NUMBERS, "mixed", "missing")),
    "BoltzmannMachineDensity": Case(
        BoltzmannMachineDensity(l2=0.01, random_state=0), tables=("binary",)
    ),
    "HopfieldMemory": Case(HopfieldMemory(random_state=0), "energy", ("binary",)),
    "RBMEstimator": Case(RBMEstimator(**rbm), tables=("binary", "real", "mixed", "missing")),
    "SpikeSlabRBM": Case(SpikeSlabRBM(**rbm), tables=("real", "tails")),
    "SubspaceRBM": Case(SubspaceRBM(2, 2, n_iter=5, random_state=0), tables=("binary", "real")),
    "DeepBoltzmannMachine": Case(DeepBoltzmannMachine((3, 2), **deep), tables=("binary",)),
    "DeepBeliefNetwork": Case(
        DeepBeliefNetwork((3, 2), rbm=RBMEstimator(n_iter=3), random_state=0), tables=("binary",)
    ),
    "RBMClassifier": Case(RBMClassifier(**rbm), "predict_log_proba", ("real",), "class"),
    "GatedRBM": Case(GatedRBM(2, n_factors=3, **deep), "score_samples", ("binary",), "rows"),
    "ScoreMatchingDensity": Case(ScoreMatchingDensity(**on_gaussian), tables=NUMBERS),
    "ContrastiveDivergenceDensity": Case(ContrastiveDivergenceDensity(**small), tables=("binary",)),
    "ContrastiveDivergenceDensity-real": Case(
        ContrastiveDivergenceDensity(**on_gaussian), tables=("real",)
    ),
    "BoostedDensity": Case(
        BoostedDensity(learning_rate=0.05, n_iter=20, random_state=0), tables=("real", "binary")
    ),
    "NCEDensity": Case(NCEDensity(**small), tables=("real", "binary")),
    "NeuralDensity": Case(NeuralDensity(**on_gaussian, objective="nce")),
    "FlowContrastiveDensity": Case(
        FlowContrastiveDensity(**small | {"n_iter": 1}, flow="maf", n_flow_steps=1)
    ),
    "JEMClassifier": Case(JEMClassifier(**on_gaussian), "predict_log_proba", ("real",), "class"),
    "ConditionalDensity": Case(ConditionalDensity(given=[0], base="linear", **small)),
    "TemporalRBM": Case(TemporalRBM(**frames), tables=("binary", "real")),
    "TemporalRBMClassifier": Case(
        TemporalRBMClassifier(**frames), "predict_log_proba", ("binary",), "class"
    ),
    "OutlierEnsemble": Case(
        OutlierEnsemble(
            [
                ("kernel", TractableDensity("kernel", n_neighbors=5)),
                ("logs", TractableDensity("kernel", metric="log", n_neighbors=5)),
            ],
            random_state=0,
        ),
        "p_values",
        NUMBERS,
    ),
    "RowSurprise": Case(RowSurprise(random_state=0), "decision_function", NUMBERS),
    "SequenceOutlierDetector": Case(
        SequenceOutlierDetector(TemporalRBM(**frames), random_state=0),
        "decision_function",
        ("real",),
    ),
    "Windows": Case(Windows(2), "transform", (*NUMBERS, "missing")),
}
ORDERED = ("TemporalRBM", "TemporalRBMClassifier", "SequenceOutlierDetector", "Windows")


def test_every_public_estimator_has_a_case():
    public = {
        name
        for name, cls in vars(skebm).items()
        if inspect.isclass(cls) and issubclass(cls, BaseEstimator) and hasattr(cls, "fit")
    }
    assert public == {name.partition("-")[0] for name in CASES}


def target_of(case, rows):
    if case.target == "class":
        return (rows[:, 0] > rows[:, 0].mean()).astype(int)
    return None if case.target is None else rows[:, ::-1]


def said(case, rows, new, y=None, of_new=None, **kind):
    """What a model fitted to `rows` says of `new` ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(case.estimator)
        model.fit(rows, **kind) if y is None else model.fit(rows, y, **kind)
        ask = getattr(model, case.says)
        return np.asarray(ask(new) if of_new is None else ask(new, of_new), dtype=float)


@functools.cache
def expected(name, kind):
    case, given = CASES[name], table(kind)
    y = target_of(case, given.rows)
    return said(case, given.rows, given.new, y, of_pairs(case, given.new))


def of_pairs(case, new):
    return target_of(case, new) if case.target == "rows" else None


def again(name, kind, change=lambda x: x, order=None, **params):
    """What a model says that is given the rows changed by a function, and new ones as well."""
    case, given = CASES[name], table(kind)
    rows = given.rows if order is None else given.rows[order]
    y = target_of(case, given.rows)
    y = y if y is None or order is None else y[order]
    of_new = of_pairs(case, given.new)
    if case.target == "rows":
        y, of_new = change(y), change(of_new)
    return said(case, change(rows), change(given.new), y, of_new, **params)


# Differences in nats, or in units of what is said, where the model is another one by definition.
# Bits: a row that occurs twice is seen twice, and mini-batches, chains, held-out rows, priors and
# the criteria of a choice are those of as many rows. A memory stores twice what is given twice.
COPIES = {
    "BoltzmannMachineDensity": 1e-3,
    "DeepBeliefNetwork": 1e-3,
    "DeepBoltzmannMachine": 0.5,
    "GatedRBM": 0.1,
    ("ContrastiveDivergenceDensity", "binary"): 0.05,
    ("BoostedDensity", "binary"): 0.8,  # of fifteen rows, two of which choose
    ("NCEDensity", "binary"): 0.05,
    "HopfieldMemory": np.log(2) + 1e-6,
    # Columns of few values recur: each of their rows calibrates, and p-values have finer steps.
    ("EnergyOutlierDetector-conformal", "counts"): 0.4,
    ("OutlierEnsemble", "counts"): 0.2,
    # Rows that recur are others of theirs, and folds are drawn anew.
    ("EnergyOutlierDetector", "counts"): 0.1,
    ("RowSurprise", "counts"): 0.1,
}
# Rows are drawn by their place in the table: those that are held out, folds, mini-batches, starts.
ORDER = {
    "ProductOfDensities": 0.2,
    "EnergyOutlierDetector": 1.0,
    "EnergyOutlierDetector-conformal": 0.6,
    "OutlierEnsemble": 0.6,
    "RowSurprise": 1.0,
    "RBMEstimator": 0.2,
    ("RBMEstimator", "missing"): 0.3,  # whose entries are drawn as well
    "SpikeSlabRBM": 0.2,
    "SubspaceRBM": 0.3,
    "DeepBoltzmannMachine": 0.1,
    "DeepBeliefNetwork": 1e-4,
    "RBMClassifier": 1e-4,
    "GatedRBM": 0.1,
    "ScoreMatchingDensity": 0.6,
    "ContrastiveDivergenceDensity": 0.1,
    "ContrastiveDivergenceDensity-real": 0.1,
    "BoostedDensity": 0.8,
    "NCEDensity": 0.1,
    "NeuralDensity": 0.1,
    "FlowContrastiveDensity": 0.3,
    "JEMClassifier": 1e-3,
    "ConditionalDensity": 1.0,
    ("DensityImputer", "missing"): 0.6,  # draws complete rows by their place
}
# Others draw numbers column by column, or have a column that is a condition or the target.
COLUMNS = {f"TractableDensity{kind}": 1e-6 for kind in ("-kernel", "-mixture")}
# The column of a condition, which has no density.
CONDITION = {"ConditionalDensity": 0}
# Estimators that are tried in the first tier, on their first table.
QUICK = ("TractableDensity-kernel", "TableEncoder", "RBMEstimator")
# Estimators whose fits take a second, which repeat all relations on one table only.
SLOW = (
    "BoltzmannMachineDensity",
    "ConditionalDensity",
    "ContrastiveDivergenceDensity",
    "FlowContrastiveDensity",
    "GatedRBM",
    "ScoreMatchingDensity",
    "TractableDensity",
)


def tried(which=lambda name, kind: True, *, everywhere=False):
    """All estimators on their tables; the slow ones on their first alone unless `everywhere`."""
    return pytest.mark.parametrize(
        ("name", "kind"),
        [
            pytest.param(name, kind, marks=() if name in QUICK and i == 0 else full)
            for name, case in CASES.items()
            for i, kind in enumerate(case.tables)
            if which(name, kind) and (everywhere or not i or name not in SLOW)
        ],
    )


def takes_weights(name, kind=None):
    return "sample_weight" in inspect.signature(CASES[name].estimator.fit).parameters


def check(found, truth, tolerance=1e-6):
    np.testing.assert_allclose(found, truth, rtol=0, atol=tolerance)


# ------------------------------------------------------------------------------
# Containers
# ------------------------------------------------------------------------------


def strided(x):
    wide = np.full((2 * len(x), 2 * x.shape[1]), 9.0)
    wide[::2, ::2] = x
    return wide[::2, ::2]


def read_only(x):
    x = x.copy()
    x.setflags(write=False)
    return x


def single(x):
    return x.astype(np.float32)


@tried()
def test_memory_layout_and_precision_of_equal_numbers(name, kind):
    truth = expected(name, kind)
    check(again(name, kind, strided), truth, 1e-12)
    check(again(name, kind, lambda x: read_only(np.asfortranarray(single(x)))), truth)
    if kind in ("binary", "counts"):
        check(again(name, kind, lambda x: x.astype(int)), truth, 1e-12)


@tried()
def test_the_index_of_a_frame(name, kind):
    pandas = pytest.importorskip("pandas")
    columns = [f"c{j}" for j in range(table(kind).rows.shape[1])]

    def frame(x):
        return pandas.DataFrame(x, columns=columns)

    def labelled(x):
        return frame(x).set_axis([f"row {-i % 7}" for i in range(len(x))])

    check(again(name, kind, labelled), again(name, kind, frame), 0)


# ------------------------------------------------------------------------------
# Weights and copies
# ------------------------------------------------------------------------------


@tried(takes_weights)
def test_weights_have_no_scale(name, kind):
    weight = np.random.default_rng(0).random(N)
    found, truth = (again(name, kind, sample_weight=c * weight) for c in (1.0, 7.0))
    check(found, truth)


@tried(takes_weights)
def test_equal_weights_are_none(name, kind):
    check(again(name, kind, sample_weight=np.full(N, 0.3)), expected(name, kind))


def copies_with_half_the_weight(name, kind):
    twice = np.repeat(np.arange(N), 2)
    halves = {"sample_weight": np.full(2 * N, 0.5)} if takes_weights(name) else {}
    return again(name, kind, order=twice, **halves)


@tried(lambda name, kind: name not in ORDERED, everywhere=True)
def test_copies_of_all_rows(name, kind):
    tolerance = COPIES.get((name, kind), COPIES.get(name, 1e-6))
    check(copies_with_half_the_weight(name, kind), expected(name, kind), tolerance)


# ------------------------------------------------------------------------------
# Order and units
# ------------------------------------------------------------------------------


@tried(lambda name, kind: name not in ORDERED)
def test_the_order_of_rows(name, kind):
    order = np.random.default_rng(1).permutation(N)
    tolerance = ORDER.get((name, kind), ORDER.get(name, 1e-6))
    check(again(name, kind, order=order), expected(name, kind), tolerance)


@tried(lambda name, kind: name in COLUMNS)
def test_the_order_of_columns(name, kind):
    truth = expected(name, kind)
    check(again(name, kind, lambda x: x[:, ::-1].copy()), truth, COLUMNS[name])


@tried(lambda name, kind: table(kind).units)
def test_units_of_columns(name, kind):
    scale = np.ones(table(kind).rows.shape[1])
    scale[list(table(kind).units)] = np.resize([4.0, 0.001, 1000.0], len(table(kind).units))
    # Of the entries that have a density: those that are known, and no condition.
    known = ~np.isnan(table(kind).new) & (np.arange(len(scale)) != CONDITION.get(name, -1))
    shift = known @ np.log(scale) if CASES[name].says == "score_samples" else 0.0
    units = scale if name == "DensityImputer" else 1.0  # in which its rows are returned
    check(again(name, kind, lambda x: x * scale) / units + shift, expected(name, kind))
