"""Sentinels and gross outliers in the rows of a fit, and columns of extreme scales."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    GatedRBM,
    JEMClassifier,
    NCEDensity,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TemporalRBM,
    TractableDensity,
)
from skebm.energies import MLP
from skebm.estimators.tables.gross import gross_of, has_two_values

KIND = {"random_state": 0}
TRAINED = {"n_iter": 3, "random_state": 0}
SMALL = TRAINED | {"network": MLP((8,))}
DENSITIES = {
    "stack": lambda: TractableDensity(**KIND),
    "mixture": lambda: TractableDensity("mixture", **KIND),
    "kernel": lambda: TractableDensity("kernel", **KIND),
    "logs": lambda: TractableDensity("kernel", metric="log", **KIND),
    "gaussian": lambda: TractableDensity("gaussian"),
    "product": lambda: ProductOfDensities(**KIND),
    "detector": lambda: EnergyOutlierDetector(**KIND),
    "rbm": lambda: RBMEstimator(3, **TRAINED),
    "rbm on a normal base": lambda: RBMEstimator(3, base="gaussian", **TRAINED),
    "subspaces": lambda: SubspaceRBM(2, **TRAINED),
    "slabs": lambda: SpikeSlabRBM(3, **TRAINED),
    "deep": lambda: DeepBoltzmannMachine([3, 2], **TRAINED),
    "score matching": lambda: ScoreMatchingDensity(**SMALL, base="mixture"),
    "nce": lambda: NCEDensity(**SMALL, noise="gaussian"),
    "cd": lambda: ContrastiveDivergenceDensity(**SMALL, base="gaussian"),
    "flow": lambda: FlowContrastiveDensity(flow="maf", n_flow_steps=20, **SMALL),
    "conditional": lambda: ConditionalDensity(given=[0], base="linear", **SMALL),
}
FIRST = ("gaussian", "detector")
NAMES = [pytest.param(n, marks=() if n in FIRST else pytest.mark.full) for n in DENSITIES]


def clean_rows(kind, n, d, seed):
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, d))
    if kind == "correlated":
        z = z + 1.5 * random.normal(size=(n, 1))
    return np.exp(z) if kind == "skewed" else z


def fit_quietly(model, X):
    """The model fitted to X, and the warnings that mention far values."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    return model, [str(w.message) for w in caught if "far outside" in str(w.message)]


def check(make, X, far, where, share):
    n = len(X)
    rows = np.sort(np.random.default_rng(5).permutation(n)[: int(share * n)])
    dirty = X.copy()
    if where == "rows":
        dirty[rows] = far
    else:
        dirty[rows, -1] = far
    model, said = fit_quietly(make(), dirty)
    assert len(said) == 1
    column = "'x0'" if where == "rows" else f"'x{X.shape[1] - 1}'"
    assert f"Column {column} has the value {far:.7g} in {len(rows)} of {n} rows" in said[0]
    others, none = fit_quietly(make(), np.delete(X, rows, axis=0))
    assert not none
    return model, others, dirty[rows]


@pytest.mark.parametrize("name", NAMES)
def test_sentinels_cost_the_other_rows_nothing_and_are_flagged(name):
    X, new = clean_rows("correlated", 400, 2, 0), clean_rows("correlated", 100, 2, 1)
    model, others, gross = check(DENSITIES[name], X, -999999.0, "column", 0.01)
    assert_allclose(model.score_samples(new), others.score_samples(new), atol=1e-6)
    found = model.score_samples(gross)
    assert np.isfinite(found).all()
    assert found.max() < model.score_samples(new).min() - 1000
    if hasattr(model, "predict"):
        assert_array_equal(model.predict(gross), -1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["normal", "correlated", "skewed"])
@pytest.mark.parametrize("share", [0.01, 0.02])
@pytest.mark.parametrize("far", [1e2, 1e4, 1e6, -999999.0])
def test_every_sentinel_is_found(kind, share, far):
    for n, d, where in [
        (300, 1, "column"),
        (600, 3, "rows"),
        (600, 3, "column"),
        (2000, 4, "rows"),
    ]:
        X, new = clean_rows(kind, n, d, n), clean_rows(kind, 200, d, 1)
        for name in ("gaussian", "detector") if n == 300 else ("gaussian",):
            model, others, gross = check(DENSITIES[name], X, far, where, share)
            assert model.score_samples(new).mean() > others.score_samples(new).mean() - 0.1
            if name == "detector":
                assert_array_equal(model.predict(gross), -1)


def test_outliers_that_differ_are_left_out():
    random = np.random.default_rng(1)
    X, new = random.normal(size=(600, 2)), random.normal(size=(300, 2))
    for far in (1e2, 1e4, 1e6):
        rows = X.copy()
        rows[:6] += far * random.random((6, 1))
        model, said = fit_quietly(TractableDensity("gaussian"), rows)
        assert "values such as" in said[0]
        assert model.score(new) > TractableDensity("gaussian").fit(X).score(new) - 0.02


def test_a_detector_names_the_column_of_a_frame():
    frame = pd.DataFrame(clean_rows("normal", 300, 2, 0), columns=["a", "b"])
    frame["c"] = np.where(frame.a > 0, "u", "v")
    frame.loc[3:6, "b"] = 9999.0
    model, said = fit_quietly(EnergyOutlierDetector(contamination=0.01, **KIND), frame)
    assert len(said) == 1
    assert "Column 'b' has the value 9999 in 4 of 300 rows" in said[0]
    assert "replace it by nan" in said[0]
    # The threshold lies beside ordinary rows, not half-way to the others.
    assert model.predict(frame.assign(b=60.0).iloc[:1]) == -1
    assert (model.predict(frame) == -1).sum() == 4


@pytest.mark.full
def test_thresholds_count_the_rows_that_were_left_out():
    X = clean_rows("normal", 400, 2, 0)
    X[:8] = 1e6
    model, _ = fit_quietly(RBMEstimator(3, contamination=0.05, **TRAINED), X)
    assert (model.predict(X) == -1).sum() == 20
    model, _ = fit_quietly(RBMEstimator(3, contamination=0.01, **TRAINED), X)
    assert_array_equal(np.flatnonzero(model.predict(X) == -1), np.arange(8))


ORDINARY = {
    "Cauchy": lambda random, n: random.standard_cauchy(n),
    "Student, two degrees": lambda random, n: random.standard_t(2, n),
    "lognormal": lambda random, n: np.exp(2 * random.normal(size=n)),
    "levels": lambda random, n: random.integers(1, 6, n).astype(float),
    "bits": lambda random, n: random.integers(0, 2, n).astype(float),
    "a constant with exceptions": lambda random, n: np.where(random.random(n) < 0.02, 1e6, 3.0),
    "many zeros": lambda random, n: np.where(random.random(n) < 0.9, 0.0, random.gamma(2, size=n)),
    "counts": lambda random, n: random.negative_binomial(1, 0.05, n).astype(float),
    "two clusters": lambda random, n: random.normal(size=n) + 12 * (random.random(n) < 0.03),
    "capped": lambda random, n: np.minimum(np.exp(random.normal(size=n)), 8),
    "timestamps": lambda random, n: 1.6e9 + 1e5 * random.random(n),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_columns_have_no_gross_values(name):
    random = np.random.default_rng(0)
    tables = [ORDINARY[name](random, n) for n in (30, 300, 2000) for _ in range(20)]
    found = [gross_of(x) for x in tables]
    assert sum(one is not None for one in found) <= (1 if name == "Cauchy" else 0)


def test_copies_and_weights_change_no_gross_values():
    x = np.random.default_rng(0).normal(size=400)
    x[:4] = 50.0
    found = gross_of(x)
    assert_array_equal(np.flatnonzero(found.entries), np.arange(4))
    assert found.repeated
    for other in (gross_of(x, np.full(400, 0.1)), gross_of(np.repeat(x, 3), None)):
        assert other.entries.sum() in (4, 12)
    for scale in (1e-310, 1e-200, 1e300):
        assert gross_of(x * scale).entries.sum() == 4


@pytest.mark.full
def test_labelled_rows_leave_gross_values_out():
    X = clean_rows("normal", 300, 2, 0)
    y = (X[:, 0] > 0).astype(int)
    dirty = X.copy()
    dirty[100:104] = -9999.0
    for make in (
        lambda: RBMClassifier(3, **TRAINED),
        lambda: JEMClassifier(n_iter=2, random_state=0),
    ):
        with pytest.warns(UserWarning, match="far outside"):
            model = make().fit(dirty, y)
        assert (model.predict(X) == y).mean() > 0.5


def test_columns_of_two_values_are_recognised():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    X[:, 1] = X[:, 1] > 0
    X[:, 2] = np.where(X[:, 2] > 0, np.nan, -999.0)
    X[:, 3] = np.nan
    X[:, 4] = X[:, 1]
    X[-1, 4] = 0.5
    assert has_two_values(X).tolist() == [False, True, True, True, False]


def test_probabilities_of_bits_are_never_gross():
    """Those that a layer hands to the next one crowd near 0 or 1, and a few are in between."""
    X = np.full((300, 3), 1e-6) * (1 + clean_rows("normal", 300, 3, 0) / 10)
    X[:4] = 0.5
    said = [fit_quietly(RBMEstimator(3, visible=v, **TRAINED), X)[1] for v in ("bernoulli", "auto")]
    assert not said[0]
    assert said[1]


@pytest.mark.full
def test_gated_pairs_leave_gross_values_out():
    X = clean_rows("normal", 300, 3, 0)
    dirty = X.copy()
    dirty[:3, 2] = 1e6
    with pytest.warns(UserWarning, match=r"Column 'y\[0\]' has the value 1000000"):
        GatedRBM(2, n_factors=2, **TRAINED).fit(dirty[:, :2], dirty[:, 2:])


def test_sequences_end_where_a_frame_is_left_out():
    X = np.cumsum(clean_rows("normal", 300, 2, 0), 0) * 0.1
    dirty = np.insert(X, [100, 200, 200], 1e6, axis=0)
    model, said = fit_quietly(TemporalRBM(2, order=1, n_iter=2, random_state=0), dirty)
    assert "in 3 of 303 rows" in said[0]
    parts, none = fit_quietly(
        TemporalRBM(2, order=1, n_iter=2, random_state=0), [X[:100], X[100:200], X[200:]]
    )
    assert not none
    assert_allclose(model.score_samples(X), parts.score_samples(X), atol=1e-5)


SCALES = [1e-310, 1e-200, 1e-100, 1e100, 1e200, 1e300]


@pytest.mark.parametrize("name", NAMES)
def test_units_of_any_size_change_the_density_by_their_volume(name):
    X, new = clean_rows("correlated", 150, 2, 0), clean_rows("correlated", 20, 2, 1)
    plain, _ = fit_quietly(DENSITIES[name](), X)
    expected = plain.score_samples(new)
    n_columns = {"conditional": 1, "detector": 0}.get(name, 2)
    for scale in SCALES if name == "gaussian" else (1e-310, 1e200):
        model, _ = fit_quietly(DENSITIES[name](), X * scale)
        found = model.score_samples(new * scale) + n_columns * np.log(scale)
        assert_allclose(found, expected, atol=2e-3, rtol=1e-3)


def test_extreme_units_keep_temperature_and_samples():
    X = clean_rows("normal", 200, 2, 0) * 1e-200
    model = TractableDensity("mixture", **KIND).fit(X)
    hot = model.sample(400, 0, temperature=4.0)
    assert_allclose((hot * 1e200).std(0), 2.0, atol=0.35)
    assert_allclose((model.sample(400, 0) * 1e200).std(0), 1.0, atol=0.2)
