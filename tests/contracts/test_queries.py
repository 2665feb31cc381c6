"""Every density of rows answers the same questions: against sums over all states and quadrature."""

import inspect
import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from sklearn.base import clone, is_classifier

import skebm
from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TractableDensity,
)
from skebm.base import DataWarning, LikelihoodWarning
from skebm.base.processes import collect_warnings
from skebm.energies import MLP
from skebm.estimators.queries.mixin import QueriesMixin
from tests.support.tiers import named

NAN = np.nan
few = {"n_iter": 5, "random_state": 0, "dtype": "float64"}
small = few | {"network": MLP((8,))}
OF_BITS = {
    BoltzmannMachineDensity: BoltzmannMachineDensity(l2=0.01, random_state=0, dtype="float64"),
    ContrastiveDivergenceDensity: ContrastiveDivergenceDensity(**small),
    DeepBoltzmannMachine: DeepBoltzmannMachine((3, 2), **few),
    NCEDensity: NCEDensity(**small),
    RBMClassifier: RBMClassifier(3, objective="hybrid", **few),
    RBMEstimator: RBMEstimator(3, **few),
    SubspaceRBM: SubspaceRBM(2, 2, **few),
}
OF_NUMBERS = {
    BoostedDensity: BoostedDensity("gaussian", n_iter=5, random_state=0, dtype="float64"),
    FlowContrastiveDensity: FlowContrastiveDensity(
        flow="maf", n_flow_steps=3, **small | {"n_iter": 1}
    ),
    JEMClassifier: JEMClassifier(**small),
    NeuralDensity: NeuralDensity(objective="score_matching", **small),
    ProductOfDensities: ProductOfDensities(random_state=0),
    ScoreMatchingDensity: ScoreMatchingDensity(**small),
    SpikeSlabRBM: SpikeSlabRBM(2, **few),
    TractableDensity: TractableDensity(random_state=0),
}
CHEAP_OF_BITS = (BoltzmannMachineDensity, RBMEstimator)
CHEAP_OF_NUMBERS = (TractableDensity, BoostedDensity)
_random = np.random.default_rng(0)
BITS = (_random.random((200, 5)) < [0.2, 0.4, 0.5, 0.6, 0.7]).astype(float)
BITS[:, 1] = np.where(_random.random(200) < 0.8, BITS[:, 0], BITS[:, 1])
NUMBERS = _random.normal(size=(200, 3))
NUMBERS[:, 1] += NUMBERS[:, 0] ** 2
STATES = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
HOLES = np.array([[1, NAN, 0, 1, 0], [NAN, 0, 1, NAN, NAN], [NAN] * 5, [1, 1, 0, 0, 1]])
FITTED = {}


def fitted(cls, cases, X):
    if (cls, len(X[0])) not in FITTED:
        y = ((X[:, 0] > 0).astype(int),) if is_classifier(cases[cls]) else ()
        with collect_warnings():
            FITTED[cls, len(X[0])] = clone(cases[cls]).fit(X, *y)
    return FITTED[cls, len(X[0])]


def test_every_density_has_a_case():
    public = {getattr(skebm, name) for name in skebm.__all__}
    asked = {one for one in public if isinstance(one, type) and issubclass(one, QueriesMixin)}
    assert asked == set(OF_BITS | OF_NUMBERS)
    assert all("given" in inspect.signature(one.sample).parameters for one in asked)


def agreeing(row):
    """States that agree with the known entries of a row."""
    return np.all(np.isnan(row) | (row == STATES), axis=1)


@pytest.mark.parametrize("cls", named(CHEAP_OF_BITS, OF_BITS))
def test_bits_against_the_sum_over_all_states(cls):
    model = fitted(cls, OF_BITS, BITS)
    log_p = model.score_samples(STATES)
    tolerance = 1e-6 if cls is not DeepBoltzmannMachine else 1e-5
    expected = np.array([logsumexp(log_p[agreeing(row)]) for row in HOLES])
    found = model.log_marginal(HOLES)
    np.testing.assert_allclose(found.log_prob, expected, atol=tolerance)
    np.testing.assert_allclose(model.score_samples(HOLES), expected, atol=tolerance)
    assert found.exact.all()
    assert found.log_prob[2] == 0
    given = np.where([[True, False, True, False, False]], HOLES, NAN)
    np.testing.assert_allclose(
        model.log_conditional(HOLES, [0, 2]),
        expected - [logsumexp(log_p[agreeing(row)]) for row in given],
        atol=2 * tolerance,
    )
    column, one = model.conditional(HOLES, 1), HOLES.copy()
    one[:, 1] = NAN
    on = one.copy()
    on[:, 1] = 1
    p = [
        np.exp(logsumexp(log_p[agreeing(a)]) - logsumexp(log_p[agreeing(b)]))
        for a, b in zip(on, one, strict=True)
    ]
    np.testing.assert_allclose(column.probabilities[:, 1], p, atol=tolerance)
    np.testing.assert_allclose(column.mean(), model.predict_column(HOLES, 1))
    assert column.method == "exact"


@pytest.mark.parametrize("cls", named(CHEAP_OF_BITS, OF_BITS))
def test_draws_of_bits_given_others(cls):
    model = fitted(cls, OF_BITS, BITS)
    given = np.array([1, NAN, NAN, 0, NAN])
    drawn = np.asarray(model.sample(2000, random_state=0, given=given))
    p = np.exp(model.score_samples(STATES))
    weight = p * agreeing(given)
    expected = weight @ STATES / weight.sum()
    assert (drawn[:, [0, 3]] == [1, 0]).all()
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.06)
    filled = np.asarray(model.impute(given[None], 0, how="mean", n_steps=4000))
    np.testing.assert_allclose(filled[0], expected, atol=0.03)


@pytest.mark.parametrize("cls", named(CHEAP_OF_NUMBERS, OF_NUMBERS))
def test_a_number_given_all_others_against_a_fine_grid(cls):
    model = fitted(cls, OF_NUMBERS, NUMBERS)
    x = NUMBERS[:2]
    column, grid = model.conditional(x, 1), np.linspace(-15, 30, 3001)
    for row in range(2):
        table = np.repeat(x[row : row + 1], len(grid), 0)
        table[:, 1] = grid
        density = np.exp(model.score_samples(table))
        density /= density.sum() * (grid[1] - grid[0])
        # float32 of flows; a grid across the discontinuities of trees
        tolerance = 1e-3 if cls in (FlowContrastiveDensity, BoostedDensity) else 1e-5
        found = column.pdf(np.broadcast_to(grid[:, None], (len(grid), 2)))[:, row]
        np.testing.assert_allclose(found, density, atol=tolerance)
        mean = density @ grid * (grid[1] - grid[0])
        assert column.mean()[row] == pytest.approx(mean, abs=10 * tolerance)
    np.testing.assert_allclose(model.predict_column(x, 1), column.mean(), atol=1e-3)
    q = np.array([[0.05], [0.5], [0.95]])
    np.testing.assert_allclose(column.cdf(column.ppf(q)), np.broadcast_to(q, (3, 2)), atol=1e-9)
    np.testing.assert_allclose(model.quantile(x, 1, model.cdf(x, 1)[0])[0], x[0, 1], atol=1e-6)
    low, high = model.interval(x, 1, 0.9).T
    np.testing.assert_allclose(column.cdf(high) - column.cdf(low), 0.9, atol=1e-9)


@pytest.mark.parametrize("cls", named(CHEAP_OF_NUMBERS, OF_NUMBERS))
def test_marginals_and_conditionals_agree_where_numbers_are_missing(cls):
    """log p(a, b) = log p(a) + log p(b given a), within errors where these are stated."""
    model = fitted(cls, OF_NUMBERS, NUMBERS)
    x = NUMBERS[:3].copy()
    x[:, 2] = NAN
    both, alone = model.log_marginal(x), x.copy()
    alone[:, 1] = NAN
    first = model.log_marginal(alone)
    assert (first.std_error[first.exact] == 0).all()
    column = model.conditional(alone, 1)
    error = np.hypot(both.std_error, first.std_error)
    log_density = np.log(column.pdf(x[:, 1]))
    off = abs(both.log_prob - first.log_prob - log_density)
    assert (off < 1e-6 + 5 * error + 0.1 * (error > 0)).all()
    np.testing.assert_allclose(
        model.log_conditional(x, 0), both.log_prob - first.log_prob, atol=1e-6 + 5 * error.max()
    )
    lost = model.log_marginal(np.full((1, 3), NAN))
    assert lost.log_prob.tolist() == [0.0]


@pytest.mark.parametrize("cls", named(CHEAP_OF_NUMBERS, OF_NUMBERS))
def test_imputations_keep_what_is_known(cls):
    model = fitted(cls, OF_NUMBERS, NUMBERS)
    x = NUMBERS[:4].copy()
    x[0, 1] = x[1, 0] = x[1, 2] = NAN
    known = ~np.isnan(x)
    for how in ("draw", "mean", "mode"):
        filled = model.impute(x, 0, how=how)
        assert np.isfinite(filled).all()
        np.testing.assert_array_equal(filled[known], x[known])
    assert len(model.impute(x, 0, n_draws=2)) == 2
    assert model.impute(x, 0, how="mean")[0, 1] == pytest.approx(
        model.conditional(x[:1], 1).mean()[0], abs=0.5
    )


@pytest.mark.parametrize("cls", named(CHEAP_OF_NUMBERS, OF_NUMBERS))
def test_what_is_known_may_be_too_far_away(cls):
    """Rows are impossible where powers overflow, and nothing is computed given them."""
    model = fitted(cls, OF_NUMBERS, NUMBERS)
    x = np.array([[0.0, 0.0, NAN], [1e300, NAN, 0.0]])
    assert np.isneginf(model.score_samples(x)).tolist() == [False, True]
    assert np.isneginf(model.log_marginal(x).log_prob).tolist() == [False, True]
    full = np.nan_to_num(x)
    assert np.isneginf(model.score_samples(full)).tolist() == [False, True]
    assert np.isneginf(model.log_conditional(full, 1)).tolist() == [False, True]
    # The column itself is not used.
    assert np.isfinite(model.predict_column(full, 0)).all()
    asked = {
        "log_conditional": lambda: model.log_conditional(full, 0),
        "predict_column": lambda: model.predict_column(x, 1),
        "quantile": lambda: model.quantile(x, 1, 0.5),
        "impute": lambda: model.impute(x, 0),
        "mean": lambda: model.impute(x, how="mean"),
        "sample": lambda: model.sample(2, random_state=0, given=x[1]),
    }
    if is_classifier(model):
        asked["predict_proba"] = lambda: model.predict_proba(x)
    for ask in asked.values():
        with pytest.raises(ValueError, match=r"^Row [01] of X: .* column .?x?0.? lies too far"):
            ask()


def test_an_error_that_is_not_known_is_infinite():
    """All draws of what stands in for the base of a flow may be far from the model."""
    model = fitted(FlowContrastiveDensity, OF_NUMBERS, NUMBERS)
    x = np.array([[0.0, NAN, NAN], [300.0, NAN, NAN]])
    with pytest.warns(LikelihoodWarning, match="1 of 2 rows .* not known"):
        found = model.log_marginal(x)
    assert np.isinf(found.std_error).tolist() == [False, True]
    assert found.lower[1] == -np.inf
    assert found.upper[1] == np.inf


# ------------------------------------------------------------------------------
# Frames
# ------------------------------------------------------------------------------


def frame(n=120, seed=0):
    random = np.random.default_rng(seed)
    size = random.normal(size=n)
    return pd.DataFrame(
        {
            "size": size,
            "colour": pd.Categorical(np.where(size + random.normal(size=n) > 0, "red", "blue")),
            "heavy": random.random(n) < 0.3,
            "count": random.integers(0, 6, n),
        }
    )


MIXED = {
    TractableDensity: TractableDensity(random_state=0),
    RBMEstimator: RBMEstimator(3, base="latent-classes", **few),
}


@pytest.mark.parametrize("cls", MIXED)
def test_frames_of_several_kinds(cls):
    X = frame()
    with collect_warnings():
        model = clone(MIXED[cls]).fit(X)
    asked = X.head(4).copy()
    asked.loc[0, "colour"], asked.loc[1, "size"] = None, NAN
    levels = []
    for level in ("red", "blue"):
        full = asked.iloc[:1].copy()
        full["colour"] = pd.Categorical([level], categories=X["colour"].cat.categories)
        levels.append(model.score_samples(full)[0])
    assert model.score_samples(asked)[0] == pytest.approx(logsumexp(levels), abs=1e-5)
    colour = model.conditional(asked, "colour")
    assert set(colour.levels) == {"red", "blue"}
    assert colour.mode()[0] == model.predict_column(asked, "colour")[0]
    assert set(model.predict_column(asked, "heavy")) <= {True, False}
    assert np.isfinite(model.quantile(asked, "size", [0.1, 0.9])).all()
    filled = model.impute(asked, 0)
    assert list(filled.columns) == list(X.columns)
    assert filled.dtypes.tolist() == X.dtypes.tolist()
    drawn = model.sample(20, random_state=0, given={"colour": "red"})
    assert set(drawn["colour"]) == {"red"}
    assert drawn["count"].between(0, 5).all()


def test_what_is_asked_wrongly_names_the_column():
    model = fitted(TractableDensity, OF_NUMBERS, NUMBERS)
    with pytest.raises(ValueError, match="n_features=3"):
        model.conditional(NUMBERS[:2], 7)
    with pytest.raises(ValueError, match="coverage"):
        model.interval(NUMBERS[:2], 1, 1.5)
    with pytest.raises(ValueError, match="probabilities"):
        model.quantile(NUMBERS[:2], 1, 2.0)
    with pytest.raises(ValueError, match="given must be one row"):
        model.sample(3, given=[1.0])
    of_frames = TractableDensity("gaussian").fit(pd.DataFrame(NUMBERS, columns=["a", "b", "c"]))
    with pytest.raises(ValueError, match="nothing"):
        of_frames.conditional(pd.DataFrame(NUMBERS[:2], columns=["a", "b", "c"]), "nothing")
    with pytest.raises(ValueError, match=r"\['d'\].*does not know"):
        of_frames.sample(2, given={"d": 1.0})
    assert of_frames.sample(2, given={"a": 1.0}).shape == (2, 3)


# ------------------------------------------------------------------------------
# Classes
# ------------------------------------------------------------------------------

CLASSIFIERS = {
    "hybrid": RBMClassifier(3, objective="hybrid", **few),
    "generative": RBMClassifier(3, objective="generative", **few),
    "network": JEMClassifier(domain="binary", **small),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_class_probabilities_given_what_is_known(name):
    y = np.array(["ash", "birch", "cedar"])[(BITS[:, 0] + BITS[:, 2]).astype(int)]
    with collect_warnings():
        model = clone(CLASSIFIERS[name]).fit(BITS, y)
    joint = np.exp(model.joint_log_proba(STATES))
    expected = np.array([joint[agreeing(row)].sum(0) for row in HOLES])
    expected /= expected.sum(1, keepdims=True)
    found = model.predict_proba(HOLES)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(HOLES)), found)
    with pytest.raises(ValueError, match=r"NaN.*predict_proba"):
        model.predict(HOLES)


def test_no_class_probability_is_nan():
    y = (NUMBERS[:, 0] > 0).astype(int)
    with collect_warnings():
        model = clone(OF_BITS[RBMClassifier]).set_params(dtype="float32").fit(NUMBERS, y)
    for far in ([1e300, 0.0, 0.0], [1e300, NAN, 0.0]):
        with pytest.raises(ValueError, match=r"^Row 1 of X: .* column .?x?0.? lies too far"):
            model.predict_proba([[0.0, 0.0, 0.0], far])


def test_class_probabilities_given_some_numbers():
    y = (NUMBERS[:, 0] + NUMBERS[:, 1] > 0.5).astype(int)
    with collect_warnings():
        model = clone(OF_NUMBERS[JEMClassifier]).fit(NUMBERS, y)
    holes, grid = NUMBERS[:3].copy(), np.linspace(-10, 20, 3001)
    holes[:, 1] = NAN
    found = model.predict_proba(holes)
    for row, p in zip(holes, found, strict=True):
        full = np.repeat(row[None], len(grid), 0)
        full[:, 1] = grid
        joint = np.exp(model.joint_log_proba(full)).sum(0)
        np.testing.assert_allclose(p, joint / joint.sum(), atol=0.05)


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------

EVERY = named(CHEAP_OF_BITS, OF_BITS) + named(CHEAP_OF_NUMBERS, OF_NUMBERS)


def of_every(cls):
    """A fitted model and its rows."""
    cases, X = (OF_BITS, BITS) if cls in OF_BITS else (OF_NUMBERS, NUMBERS)
    return fitted(cls, cases, X), X


@pytest.mark.parametrize("cls", EVERY)
def test_of_rows_of_which_nothing_or_all_is_known(cls):
    model, X = of_every(cls)
    nothing = np.full_like(X[:2], NAN)
    assert model.score_samples(nothing).tolist() == [0.0, 0.0]
    assert model.log_marginal(nothing).log_prob.tolist() == [0.0, 0.0]
    assert model.log_conditional(nothing, 0).tolist() == [0.0, 0.0]
    assert np.isfinite(model.predict_column(nothing, 0)).all()
    for how in ("draw", "mean", "mode"):
        assert np.isfinite(model.impute(nothing, 0, how=how)).all()
        np.testing.assert_array_equal(model.impute(X[:2], 0, how=how), X[:2])
    np.testing.assert_array_equal(model.sample(2, random_state=0, given=X[:2]), X[:2])
    everything = list(range(X.shape[1]))
    assert model.log_conditional(X[:2], everything).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("cls", EVERY)
def test_rows_that_miss_different_columns_are_answered_in_their_order(cls):
    """Rows with the same known entries are computed together."""
    model, X = of_every(cls)
    x = X[:6].copy()
    x[[0, 2, 5], 1] = x[[1, 4], 2] = x[3, 1:3] = NAN
    together = model.conditional(x, 0)
    alone = [model.conditional(row[None], 0) for row in x]
    error = np.hypot(together.mean_error(), [one.mean_error()[0] for one in alone])
    off = together.mean() - [one.mean()[0] for one in alone]
    assert (abs(off) <= 1e-5 + 5 * error).all()
    marginals, alone = model.log_marginal(x), [model.log_marginal(row[None]) for row in x]
    error = np.hypot(marginals.std_error, [one.std_error[0] for one in alone])
    off = marginals.log_prob - [one.log_prob[0] for one in alone]
    assert (abs(off) <= 1e-5 + 5 * error).all()
    filled = np.stack(model.impute(x, 0, n_draws=40)).mean(0)
    for row, one in zip(x, filled, strict=True):
        expected = model.impute(row[None], 0, how="mean", n_steps=2000)[0]
        assert (abs(one - expected) <= 5 * np.std(X, axis=0) / 40**0.5).all()


@pytest.mark.parametrize("cls", EVERY)
def test_questions_that_have_no_answer_say_what_is_wrong(cls):
    model, X = of_every(cls)
    x, d = X[:2], X.shape[1]
    one = np.where(np.arange(d) == 0, 1.0, NAN)
    refused = {
        "given=99": lambda: model.log_conditional(x, 99),
        "given=1.5": lambda: model.log_conditional(x, 1.5),
        "given=None": lambda: model.log_conditional(x, None),
        "X has no names": lambda: model.log_conditional(x, "a"),
        f"column={d} ": lambda: model.predict_column(x, d),
        r"got \[0, 1\]": lambda: model.conditional(x, [0, 1]),
        "q must be probabilities, from 0 to 1": lambda: model.quantile(x, 0, 2),
        "q must be probabilities, got": lambda: model.quantile(x, 0, "a"),
        "coverage must be in": lambda: model.interval(x, 0, "a"),
        "value must be a number, or one for each": lambda: model.cdf(x, 0, [1.0, 2.0, 3.0]),
        "value must be numbers": lambda: model.cdf(x, 0, "a"),
        "n_samples=3": lambda: model.sample(3, random_state=0, given=x),
        "contains infinity": lambda: model.sample(2, random_state=0, given=one * np.inf),
        r"0 sample\(s\)": lambda: model.predict_column(x[:0], 0),
        "how must be": lambda: model.impute(x, how="median"),
    }
    for match, ask in refused.items():
        with collect_warnings(), pytest.raises(ValueError, match=match):
            ask()
    if is_classifier(model):
        with pytest.raises(ValueError, match="predict_proba"):
            model.predict_column(x, d)
    if cls in OF_BITS:  # of which 17 is none, whether it would be refused or taken for 1
        with collect_warnings(), pytest.raises(ValueError, match=r"[Cc]olumn '?x?0'?.*"):
            model.sample(2, random_state=0, given=17 * one)


@pytest.mark.parametrize("cls", MIXED)
def test_values_that_a_column_cannot_have(cls):
    X = frame()
    with collect_warnings():
        model = clone(MIXED[cls]).fit(X)
    k = X.head(2)
    for given, match in (
        ({"colour": "green"}, r"'green' of column 'colour'.*'blue', 'red'"),
        ({"count": 2.5}, "2.5 of column 'count'.*integers"),
        ({"heavy": 2}, "'heavy'"),
        ({"size": np.inf}, "infinity, in column 'size'"),
        ({"size": "large"}, "'size'.*no numbers"),
        (pd.concat([k[["size"]], k[["size"]]], axis=1), "'size' is the name of 2 columns"),
    ):
        with pytest.raises(ValueError, match=match):
            model.sample(2, random_state=0, given=given)
    assert model.sample(2, random_state=0, given={}).shape == (2, 4)
    assert (model.sample(2, random_state=0, given={"count": 17})["count"] == 17).all()
    with pytest.raises(ValueError, match="X has no columns"):
        model.score_samples(k[[]])
    with pytest.raises(ValueError, match="order"):
        model.predict_column(k[["colour", "size", "heavy", "count"]], "size")
    with pytest.raises(ValueError, match="'colour' has levels and no numbers"):
        model.quantile(k, "colour", 0.5)


@pytest.mark.parametrize("cls", MIXED)
def test_categories_in_another_order_or_with_other_names(cls):
    X = frame()
    with collect_warnings():
        model = clone(MIXED[cls]).fit(X)
    k = X.head(3)
    expected = model.score_samples(k)
    other = k.assign(colour=k["colour"].cat.reorder_categories(["red", "blue"]))
    np.testing.assert_array_equal(model.score_samples(other), expected)
    np.testing.assert_array_equal(model.score_samples(k.assign(colour=list(k["colour"]))), expected)
    filled = model.impute(other.assign(size=NAN), 0)
    assert list(filled["colour"].cat.categories) == ["red", "blue"]
    renamed = k.assign(colour=k["colour"].cat.rename_categories({"red": "rot", "blue": "blau"}))
    with pytest.warns(DataWarning, match="'colour'"):  # they count as missing
        found = model.score_samples(renamed)
    lost = k.assign(colour=None)
    np.testing.assert_array_equal(found, model.score_samples(lost))
    # A column that is empty in X is of floats, or objects; it is filled with levels.
    for empty in (NAN, None):
        filled = model.impute(k.assign(colour=empty), 0)
        assert set(filled["colour"]) <= {"red", "blue"}


def test_levels_of_a_column_of_polars_that_is_empty():
    pl = pytest.importorskip("polars")
    X = frame().drop(columns="heavy")
    with collect_warnings():
        model = clone(MIXED[TractableDensity]).fit(pl.from_pandas(X))
    lost = pl.from_pandas(X.head(3)).with_columns(pl.lit(None).alias("colour"))
    for dtype in (pl.Null, pl.Float64, pl.String):
        filled = model.impute(lost.with_columns(pl.col("colour").cast(dtype)), 0)
        assert set(filled["colour"]) <= {"red", "blue"}
