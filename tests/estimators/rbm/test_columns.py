"""RBMEstimator on frames and arrays with binary, categorical and real columns."""

import itertools
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV

from skebm import EnergyOutlierDetector, RBMEstimator
from skebm.distributions import Columns, Gaussian, LatentClasses
from skebm.energies import BernoulliRBM, MixedRBM, annealing_path
from skebm.partition import AIS
from skebm.samplers import ParallelTempering
from tests.support.oracle import seeded
from tests.support.tiers import full, leading

CITIES = ("Oslo", "Paris", "Rome")


def frame(n=200, seed=0):
    """Two kinds of rows, which differ in every column."""
    random = np.random.default_rng(seed)
    kind = random.random(n) < 0.4
    city = np.where(random.random(n) < 0.85, np.where(kind, "Paris", "Rome"), "Oslo")
    return pd.DataFrame(
        {
            "age": 30 + 15 * kind + 4 * random.standard_normal(n),
            "city": city,
            "member": kind ^ (random.random(n) < 0.1),
            "visits": (kind ^ (random.random(n) < 0.2)).astype(int),
        }
    )


def rbm(**params):
    settings = {"n_components": 4, "random_state": 0, "n_iter": 40, "base": "independent"}
    return RBMEstimator(**settings | params)


@pytest.fixture(scope="module")
def model():
    return rbm(n_iter=60, batch_size=50, learning_rate=0.3).fit(frame())


@pytest.fixture(scope="module")
def short():
    return rbm(n_iter=3).fit(frame())


def states():
    """Rows of all levels, with nodes along the age."""
    ages = np.linspace(-40, 130, 341)
    rows = list(itertools.product(ages, CITIES, [False, True], [0, 1]))
    return pd.DataFrame(rows, columns=["age", "city", "member", "visits"]), ages[1] - ages[0]


# ------------------------------------------------------------------------------
# A likelihood in the units of the data
# ------------------------------------------------------------------------------


def test_probabilities_sum_and_integrate_to_one(model):
    table, width = states()
    assert np.exp(model.score_samples(table)).sum() * width == pytest.approx(1, abs=1e-4)
    assert model.log_partition_kind_ == "exact"
    assert isinstance(model.energy_, MixedRBM)
    assert isinstance(model.base_, Columns)


def test_it_is_more_likely_than_independent_columns(model):
    new = frame(seed=1)
    untrained = rbm(n_iter=0).fit(frame())
    assert model.score(new) > untrained.score(new) + 0.5


def test_units_do_not_matter(short):
    other = frame()
    other["age"] = 1e6 * other["age"] - 5e7
    scaled = rbm(n_iter=3).fit(other)
    assert_allclose(
        scaled.score_samples(other) + np.log(1e6), short.score_samples(frame()), atol=2e-2
    )


@full
def test_samples_are_distributed_as_the_model(model):
    drawn, (table, width) = model.sample(20_000, random_state=0), states()
    p = np.exp(model.score_samples(table)) * width
    for column in ("city", "member", "visits"):
        expected = pd.Series(p).groupby(table[column].to_numpy()).sum()
        found = drawn[column].value_counts(normalize=True)
        assert_allclose(found.reindex(expected.index), expected, atol=0.015)
    assert drawn["age"].mean() == pytest.approx(p @ table["age"], abs=0.3)
    assert drawn["age"].std() == pytest.approx(
        np.sqrt(p @ (table["age"] - p @ table["age"]) ** 2), rel=0.03
    )


def test_samples_look_like_the_table(model):
    drawn = model.sample(50, random_state=0)
    assert list(drawn.columns) == list(frame().columns)
    assert (drawn.dtypes == frame().dtypes).all()
    assert set(drawn["city"]) <= set(CITIES)
    assert np.isfinite(model.score_samples(drawn)).all()


def test_imputations_follow_the_known_columns(model):
    holes = pd.DataFrame(
        {
            "age": [46.0, np.nan] * 60,
            "city": [None, "Paris"] * 60,
            "member": [True, True] * 60,
            "visits": [1, 1] * 60,
        }
    )
    filled = model.impute(holes, random_state=0)
    assert (filled["city"][::2] == "Paris").mean() > 0.6
    assert filled["age"][1::2].mean() == pytest.approx(45, abs=4)
    assert_array_equal(filled["age"][::2], 46)
    assert (filled["city"][1::2] == "Paris").all()


def test_the_pseudo_likelihood_is_the_sum_of_conditionals(model):
    row = frame(5, seed=2)
    table, width = states()
    total = np.zeros(len(row))
    for column in row.columns:
        others = [name for name in row.columns if name != column]
        for i in range(len(row)):
            values = table[column].drop_duplicates()
            every = pd.DataFrame({column: values})
            for name in others:
                every[name] = row[name].iloc[i]
            every = every[row.columns].astype(row.dtypes)
            log_norm = np.logaddexp.reduce(model.score_samples(every))
            log_norm += np.log(width) * (column == "age")
            total[i] += model.score_samples(row.iloc[[i]])[0] - log_norm
    in_units = -np.log(frame()["age"].std(ddof=0))
    assert_allclose(model.pseudo_likelihood(row) + in_units, total, atol=2e-3)


# ------------------------------------------------------------------------------
# Which columns are what
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["independent", "chow-liu"])
def test_joint_energies_sum_to_the_energy_of_a_row(base):
    """exp(-E(x)) is the sum of exp(-E(x, h)) over all states of the hidden units."""
    X = frame(60)
    model = rbm(n_components=3, base=base, n_iter=3).fit(X)
    joint = [
        model.joint_energy(X[:9], np.tile(h, (9, 1))) for h in itertools.product((0, 1), repeat=3)
    ]
    assert_allclose(-np.logaddexp.reduce(-np.array(joint)), model.energy(X[:9]), rtol=1e-5)
    # The probabilities of hidden states are those of transform.
    on = np.exp(model.energy(X[:9]) - np.array(joint)[4:]).sum(0)  # the first unit is on
    assert_allclose(on, model.transform(X[:9])[:, 0], rtol=1e-4)


def test_joint_energies_of_bits_are_in_the_textbook_form():
    X = np.random.default_rng(0).integers(0, 2, (50, 4)).astype(float)
    model = rbm(n_components=3, base="independent", n_iter=3).fit(X)
    h = np.random.default_rng(1).integers(0, 2, (50, 3))
    linear = X @ model.intercept_visible_ + h @ model.intercept_hidden_
    expected = -np.einsum("nj,ji,ni->n", h, model.components_, X) - linear
    assert_allclose(model.joint_energy(X, h), expected, rtol=1e-5, atol=1e-5)


def test_bad_hidden_states(short):
    X = frame(3)
    for H, message in (
        (np.zeros((2, 3)), "H has shape"),
        (np.full((3, short.n_components), 0.5), "0 or 1"),
        (np.full((3, short.n_components), np.nan), "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            short.joint_energy(X, H)
    X.iloc[0, 0] = None
    with pytest.raises(ValueError, match="joint_energy needs complete rows"):
        short.joint_energy(X, np.zeros((3, short.n_components)))


def test_values_in_the_unit_interval_are_bernoulli_units():
    X = np.random.default_rng(0).random((60, 3))
    assert isinstance(rbm(n_iter=1).fit(X).energy_, BernoulliRBM)
    assert isinstance(rbm(n_iter=1, visible="bernoulli").fit(np.round(X)).energy_, BernoulliRBM)
    assert isinstance(rbm(n_iter=1).fit(3 * X).energy_, MixedRBM)
    with pytest.warns(UserWarning, match="min-max scaled"):
        assert isinstance(rbm(n_iter=1, visible="bernoulli").fit(3 * X).energy_, BernoulliRBM)


@pytest.mark.parametrize(
    "given", [[1], ["city"], [False, True, False, False], [-3], np.array([1])], ids=str
)
def test_columns_can_be_named_numbered_and_masked(short, given):
    coded = frame()
    coded["city"] = coded["city"].map({"Oslo": 0, "Paris": 1, "Rome": 2})
    other = rbm(n_iter=3, categorical_features=given).fit(coded)
    assert_allclose(other.score_samples(coded), short.score_samples(frame()), atol=1e-5)


@full
def test_kinds_of_tables_give_the_same_model(short):
    table = frame()
    expected = short.score_samples(table)
    category = table.assign(city=table["city"].astype("category"))
    assert_allclose(rbm(n_iter=3).fit(category).score_samples(category), expected, atol=1e-5)
    assert rbm(n_iter=3).fit(category).sample(3, random_state=0)["city"].dtype == "category"
    polars = pl.DataFrame({name: table[name].tolist() for name in table.columns})
    other = rbm(n_iter=3).fit(polars)
    assert_allclose(other.score_samples(polars), expected, atol=1e-5)
    assert other.sample(3, random_state=0).schema == polars.schema
    objects = table.to_numpy(dtype=object)
    other = rbm(n_iter=3).fit(objects)
    assert_allclose(other.score_samples(objects), expected, atol=1e-5)
    assert other.sample(3, random_state=0).shape == (3, 4)


def test_levels_of_mixed_types_and_of_declared_categories():
    mixed = pd.DataFrame({"a": [1, "x", 2.5, "y"] * 20, "b": np.arange(80.0)})
    fitted = rbm(n_iter=2).fit(mixed)
    assert set(fitted.sample(40, random_state=0)["a"]) <= {1, "x", 2.5, "y"}
    declared = pd.DataFrame({"a": pd.Categorical(["u", "v"] * 40, categories=["u", "v", "w"])})
    fitted = rbm(n_iter=2).fit(declared)
    never = pd.DataFrame({"a": pd.Categorical(["w"], categories=["u", "v", "w"])})
    assert np.isfinite(fitted.score_samples(never)).all()
    assert fitted.score_samples(never)[0] < fitted.score_samples(declared).min()


@full
def test_full_covariances():
    """A base that explains everything: the model is the normal distribution that made the rows."""
    random = np.random.default_rng(0)
    X = random.standard_normal((400, 3)) @ random.standard_normal((3, 3)) + 5
    model = rbm(base="gaussian", n_components=2).fit(X)
    assert isinstance(model.base_, Gaussian)
    assert model.base_.scale_tril is not None
    new = random.standard_normal((400, 3)) @ np.linalg.cholesky(np.cov(X.T)).T + X.mean(0)
    normal = GaussianMixture(1).fit(X).score(new)
    assert model.score(new) == pytest.approx(normal, abs=0.06)
    assert rbm(base="independent", n_iter=0).fit(X).score(new) < normal - 0.1


@pytest.mark.parametrize("base", leading(1, ["gaussian", "independent", "latent-classes"]))
@torch.no_grad()
def test_annealing_brackets_the_exact_log_z(base):
    """Also from the wider start, which finds modes far from the base."""
    X = np.random.default_rng(0).standard_normal((200, 3)) @ np.diag([1.0, 5.0, 20.0])
    model = rbm(base=base, n_iter=10, batch_size=50, learning_rate=0.3).fit(X)
    energy, exact = model.energy_, model.log_partition_
    assert model.log_partition_kind_ == "exact"
    for start in (energy.base, energy.wider_base()):
        path = annealing_path(energy, start)
        x = start.sample(50, seeded())
        assert_allclose(path.at(1.0)(x).double(), energy(x).double(), atol=1e-3, rtol=1e-5)
        found = AIS(n_betas=200, n_chains=50).estimate(energy, base=start, generator=seeded())
        assert abs(found.value - exact) < 4 * found.std_error + 0.01


def clustered(n=300):
    """A number and a level that four classes tell, of very different widths."""
    random = np.random.default_rng(0)
    c = random.integers(0, 4, n)
    x = np.array([-6.0, 0, 0.3, 9])[c] + np.array([0.1, 1, 0.05, 3])[c] * random.normal(size=n)
    return pd.DataFrame(
        {"x": x, "y": x + random.normal(size=n), "level": np.array(list("abca"))[c]}
    )


@full
def test_latent_classes_are_one_mixture_of_all_columns():
    X = clustered(200)
    base = rbm(base="latent-classes", n_iter=0).fit(X)
    assert isinstance(base.base_, LatentClasses)
    assert base.score(X) > rbm(base="independent", n_iter=0).fit(X).score(X) + 1
    model = rbm(base="latent-classes", n_iter=20).fit(X)
    assert model.log_partition_kind_ == "exact"
    drawn = model.sample(20, random_state=0)
    assert list(drawn.columns) == ["x", "y", "level"]
    X.loc[0, "level"] = X.loc[1, "x"] = np.nan
    for how in ("sample", "mean"):
        filled = model.impute(X, random_state=0, how=how)
        assert not filled.isna().any(axis=None)
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.pseudo_likelihood(X.iloc[2:])).all()
    with pytest.raises(ValueError, match='"chow-liu"'):
        rbm(base="latent-classes").fit(np.eye(4))
    with pytest.raises(ValueError, match="tempers the model"):
        rbm(base="latent-classes", sampler=ParallelTempering(3)).fit(clustered(60))


def test_zeros_beside_numbers_are_a_number():
    X = np.random.default_rng(0).normal(size=(60, 3)) + 3
    X[:, 1], X[:, 2] = 0.0, X[:, 2] > 3
    model = rbm(base="independent", n_iter=1).fit(X)
    bits, numbers = model._recipe.table.blocks
    assert (bits.columns, numbers.columns) == ([2], [0, 1])
    far, near = model.score_samples([[3.0, 40.0, 1.0], [3.0, 0.0, 1.0]])
    assert np.isfinite(far)
    assert far < near - 50


def test_by_default_held_out_rows_choose_latent_classes():
    model = RBMEstimator(4, random_state=0, n_iter=5).fit(clustered())
    assert model.base_name_ == "latent-classes", model.base_reason_


@full
def test_gains_are_those_of_assessments():
    """Chains near the data would say that a model is far better than it is."""
    X = np.random.default_rng(0).standard_normal((200, 3))
    model = rbm(base="independent", n_iter=40).fit(X)
    assert 10 < sum("gain_over_base" in row for row in model.history_) <= 21


def test_bases_without_their_columns_say_so():
    X = np.random.default_rng(0).standard_normal((60, 3))
    with pytest.warns(UserWarning, match="base, because"):
        rbm(base="chow-liu", n_iter=1).fit(X)
    with pytest.warns(UserWarning, match="base, because"):
        rbm(base="gaussian", n_iter=1).fit(X > 0)


# ------------------------------------------------------------------------------
# In the company of other estimators
# ------------------------------------------------------------------------------


def test_a_stored_model_is_the_same_model(model):
    other = pickle.loads(pickle.dumps(model))
    assert_array_equal(other.score_samples(frame()), model.score_samples(frame()))
    assert other.sample(5, random_state=0).equals(model.sample(5, random_state=0))


@full
def test_streams_searches_and_detectors():
    table = frame()
    stream = rbm()
    for _ in range(3):
        stream.partial_fit(table)
    assert np.isfinite(stream.score(table))
    search = GridSearchCV(rbm(n_iter=10), {"n_components": [2, 5]}, cv=2).fit(table)
    assert np.isfinite(search.best_score_)
    detector = EnergyOutlierDetector(rbm(n_iter=10)).fit(table)
    odd = table.iloc[:20].assign(age=200.0)
    assert detector.score_samples(odd).max() < np.median(detector.score_samples(table))


# ------------------------------------------------------------------------------
# Mistakes
# ------------------------------------------------------------------------------


def changed(**columns):
    return frame(20).assign(**columns)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (changed(member=3), "'member' was binary in fit"),
        (changed(age="old"), "'age'.*categorical_features"),
        (changed(age=np.inf), "infinity"),
        (changed().drop(columns="age"), "age"),
        (changed()[["city", "age", "member", "visits"]], "order"),
        (changed().rename(columns={"age": "years"}), "years"),
        (changed().iloc[:0], "0 sample"),
        (np.zeros(4), "Expected 2D array, got 1D array"),
    ],
    ids=range(8),
)
def test_new_rows_that_do_not_fit_are_refused(model, table, message):
    with pytest.raises(ValueError, match=message):
        model.score_samples(table)


@pytest.mark.parametrize(
    ("given", "message"),
    [(["town"], "'town', which is no column"), ([7], "names or numbers"), ([True], "names or")],
)
def test_columns_that_are_not_there(given, message):
    with pytest.raises(ValueError, match=message):
        rbm(categorical_features=given).fit(frame())


@pytest.mark.parametrize("column", ["age", "city"])
def test_a_column_that_is_all_missing_is_named(column):
    with pytest.raises(ValueError, match=f"'{column}' is missing in all rows|NaN"):
        rbm().fit(frame().assign(**{column: None}))


def test_exact_learning_is_for_bits():
    with pytest.raises(ValueError, match="binary columns"):
        rbm(learning="exact").fit(frame())
    assert not hasattr(rbm(n_iter=0).fit(frame()), "denoise")
    assert not hasattr(rbm(n_iter=0).fit(frame()), "scaling_")


@full
def test_a_column_of_few_values_has_a_bounded_density():
    """Integers and constants: no infinite densities, and a warning that names the columns."""
    table = frame().assign(age=7.0)
    with pytest.warns(ConvergenceWarning, match="'age'.*few distinct values"):
        model = rbm(n_iter=50).fit(table)
    assert np.isfinite(model.score_samples(table)).all()
    assert np.isfinite(model.score(table))


def test_small_and_wide_tables():
    table = frame(2)
    model = rbm(n_iter=3).fit(table)
    assert np.isfinite(model.score_samples(table)).all()
    wide = np.random.default_rng(0).standard_normal((10, 40))
    assert np.isfinite(clone(model).fit(wide).score_samples(wide)).all()
