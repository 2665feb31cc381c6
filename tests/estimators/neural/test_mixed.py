"""Neural densities of tables with categories, bits and numbers, by contrastive divergence."""

import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

from skebm import ContrastiveDivergenceDensity, EnergyOutlierDetector
from skebm.base import Categorical, Mixed
from skebm.distributions import (
    CategoricalTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    LatentClasses,
)
from skebm.energies import MLP
from skebm.partition import AIS, AISBracket, ImportanceSampling, choose
from skebm.samplers import Blocks, GibbsWithGradients
from tests.support.oracle import DOUBLE, seeded
from tests.support.targets import MixedRows, MixedTarget
from tests.support.tiers import full

pytestmark = pytest.mark.filterwarnings("ignore")
LEVELS = ["Bern", "Oslo", "Rome"]


def frame(n=300, seed=0):
    """A city, a bit and a number that two classes tell."""
    random = np.random.default_rng(seed)
    c = random.integers(0, 2, n)
    city = np.where(random.random(n) < 0.8, np.array(LEVELS)[c], "Rome")
    x = np.array([-3.0, 100.0])[c] + np.array([1.0, 9.0])[c] * random.normal(size=n)
    return pd.DataFrame({"city": city, "x": x, "member": (c == 1) ^ (random.random(n) < 0.1)})


def density(**params):
    asked = {"network": MLP((16,)), "n_iter": 5, "learning_rate": 0.01, "random_state": 0}
    return ContrastiveDivergenceDensity(**asked | params)


@pytest.fixture(scope="module")
def model():
    return density().fit(frame())


def test_columns_become_what_they_are(model):
    blocks = model._recipe.table.blocks
    assert isinstance(model.energy_.domain, Mixed)
    assert [block.names for block in blocks] == [["member"], ["city"], ["x"]]
    assert isinstance(model.base_, LatentClasses)
    assert isinstance(model.sampler_, Blocks)
    assert model.row_shape_ == (3,)


def test_the_density_sums_and_integrates_to_one(model):
    """In the units of the data: over all states, by a rule of rectangles along the number."""
    grid, total = np.linspace(-80, 300, 4001), []
    for city, member in itertools.product(LEVELS, (False, True)):
        X = pd.DataFrame({"city": city, "x": grid, "member": member})
        total.append(logsumexp(model.score_samples(X)) + np.log(grid[1] - grid[0]))
    assert logsumexp(total) == pytest.approx(0, abs=4 * model.log_partition_std_ + 0.01)


@full
def test_training_leaves_no_model_below_its_base():
    X = frame(600)
    weak = density(base="independent", n_iter=15, learning_rate=0.02).fit(X[:300])
    base = density(base="independent", n_iter=0).fit(X[:300])
    assert weak.score(X[300:]) > base.score(X[300:]) + 0.3
    assert isinstance(weak.base_, Columns)


def test_samples_are_tables_like_the_rows(model):
    drawn = model.sample(400, random_state=0, n_steps=10)
    assert list(drawn.dtypes) == list(frame().dtypes)
    assert set(drawn["city"]) <= set(LEVELS)
    share = (drawn["x"] > 40).mean()
    assert share == pytest.approx((frame()["x"] > 40).mean(), abs=0.12)
    assert drawn.groupby(drawn["x"] > 40)["member"].mean().diff().iloc[1] > 0.5


def test_imputations_keep_what_is_known(model):
    X = frame(40, seed=1)
    holes = X.copy()
    holes.loc[:9, "city"] = None
    holes.loc[5:14, "x"] = np.nan
    filled = model.impute(holes, random_state=0, n_steps=10)
    assert not filled.isna().any(axis=None)
    known = holes.notna()
    for name in X:
        assert_array_equal(filled[name][known[name]], X[name][known[name]])
    near = filled["x"] > 40
    assert (near == X["member"])[5:15].mean() >= 0.6


def test_rows_score_alike_in_any_company(model):
    X = frame(30, seed=2)
    alone = [model.score_samples(X[i : i + 1])[0] for i in range(30)]
    assert_allclose(model.score_samples(X), alone, rtol=1e-4)
    other = pickle.loads(pickle.dumps(model))
    assert_array_equal(other.score_samples(X), model.score_samples(X))
    assert (model.energy(X.assign(x=1e38)) > 1e3).all()


@full
def test_bits_and_numbers_of_an_array():
    random = np.random.default_rng(0)
    X = np.column_stack([random.random(200) < 0.3, random.normal(size=(200, 2))]).astype(float)
    model = density(domain="mixed", base="gaussian").fit(X)
    assert [type(part).__name__ for part in model.energy_.domain.parts] == ["Binary", "Real"]
    assert model.sample(3, random_state=0).shape == (3, 3)
    assert np.isfinite(model.score(X))


def test_categories_alone():
    X = frame()[["city"]].assign(other=frame()["city"].str[0])
    model = density(base="chow-liu", n_iter=2).fit(X)
    assert isinstance(model.energy_.domain, Categorical)
    assert isinstance(model.base_, CategoricalTree)
    assert isinstance(model.sampler_, GibbsWithGradients)
    total = sum(
        np.exp(model.score_samples(pd.DataFrame({"city": [a], "other": [b]})))[0]
        for a, b in itertools.product(LEVELS, "BOR")
    )
    assert total == pytest.approx(1, abs=1e-3)


def test_streams_go_on():
    model = density()
    for part in (frame(100), frame(100, seed=1)):
        model.partial_fit(part)
    assert np.isfinite(model.score(frame()))
    assert model.n_iter_ == 2


@full
def test_annealing_knows_log_z_of_mixed_rows():
    """From a base that leaves out how the columns depend on each other."""
    energy, generator = MixedRows(), seeded()
    exact = float(MixedTarget(energy).log_z)
    q = Columns(
        [
            IndependentBernoulli(torch.zeros(1, dtype=DOUBLE)),
            IndependentCategorical(torch.zeros(3, dtype=DOUBLE), (3,)),
            Gaussian(torch.zeros(1, dtype=DOUBLE), 1.5),
        ]
    )
    x = MixedTarget(energy).draw(200, generator)
    assert isinstance(choose(energy, base=q, x=x, importance=False).method, AISBracket)
    found = AIS(n_chains=200, n_betas=50).estimate(energy, base=q, generator=generator)
    assert abs(found.value - exact) < 4 * found.std_error
    found = ImportanceSampling(20_000).estimate(energy, base=q, generator=generator)
    assert abs(found.value - exact) < 4 * found.std_error


@full
def test_a_detector_explains_by_the_columns():
    detector = EnergyOutlierDetector(density()).fit(frame())
    odd = pd.DataFrame({"city": ["Bern"], "x": [100.0], "member": [False]})
    assert detector.predict(odd)[0] == -1
    assert detector.explain(odd).to_frame(1)["feature"].item() == "x"


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"bounds": (0, 1)}, "real columns"),
        ({"sigma": 0.1}, "real columns"),
        ({"standardize": False}, "standardised"),
        ({"base": None}, "base=None is not possible"),
        ({"base": "kernel"}, "distribution of real columns"),
        ({"objective": "discrepancy"}, "one kind of columns"),
        ({"categorical_features": ["nowhere"]}, "no column of X"),
    ],
)
def test_settings_of_real_columns_are_refused(params, match):
    with pytest.raises(ValueError, match=match):
        density(**params).fit(frame(40))


def test_missing_entries_are_refused_by_name(model):
    X = frame(60)
    X.loc[3, "x"] = np.nan
    with pytest.raises(ValueError, match=r"'x'.*RBMEstimator"):
        density().fit(X)
    with pytest.raises(ValueError, match="by impute"):
        model.predict(X)
    assert np.isfinite(model.score_samples(X)).all()
    with pytest.warns(UserWarning, match="did not occur in fit"):
        filled = model.impute(frame(2).assign(city="Paris"), random_state=0, n_steps=2)
    assert set(filled["city"]) <= set(LEVELS)


def test_what_needs_one_kind_of_columns_says_so(model):
    X = frame(5)
    with pytest.raises(ValueError, match="one kind of columns"):
        model.denoise(X)
    with pytest.raises(ValueError, match="no gradients"):
        model.score_function(X)
    with pytest.raises(ValueError, match="several kinds of columns"):
        density(partition=None, n_iter=1).fit(frame(40)).score(X)
