"""Densities of boosted trees: likelihoods of new rows, samples, the base where trees fail."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_iris, make_moons

from benchmarks._log_z_of_trees import board as grid
from benchmarks._log_z_of_trees import z_of_bits, z_of_numbers
from skebm import BoostedDensity, TractableDensity
from skebm.base import Binary, DataWarning, TrainingWarning
from skebm.distributions import Gaussian
from skebm.objectives.noise_contrastive import boosting
from skebm.objectives.noise_contrastive.boosting import BoostingSettings, Sample, boost
from skebm.partition import Exact


@pytest.fixture(scope="module")
def board():
    return BoostedDensity("gaussian", learning_rate=0.2, random_state=0).fit(grid(1500, 0))


def test_steps_and_corners_are_followed(board):
    new = grid(1000, 1)
    truth = -np.log(8)  # nats: half of sixteen squares
    assert truth - 0.25 < board.score(new) < truth + 0.02
    assert board.score(new) > TractableDensity("kernel").fit(grid(1500, 0)).score(new)
    assert board.log_partition_std_ < 0.02


def test_samples_lie_in_the_squares(board):
    x = board.sample(1000, random_state=0)
    inside = (np.floor(x).sum(1) % 2 == 0) & ((x > 0) & (x < 4)).all(1)
    assert inside.mean() > 0.9


def test_columns_are_imputed_given_the_others(board):
    x = grid(300, 2)
    x[:, 1] = np.nan
    found = board.impute(x, random_state=0)
    assert_array_equal(found[:, 0], x[:, 0])
    assert (np.floor(found).sum(1) % 2 == 0).mean() > 0.85


def test_rows_of_the_base_are_the_base():
    x = np.random.default_rng(0).normal(size=(400, 3))
    model = BoostedDensity("gaussian", random_state=0).fit(x)
    base = TractableDensity("gaussian").fit(x)
    new = np.random.default_rng(1).normal(size=(400, 3))
    assert model.score(new) > base.score(new) - 0.05


def test_a_small_table_is_its_base():
    x = np.random.default_rng(0).normal(size=(12, 2))
    model = BoostedDensity("gaussian", random_state=0).fit(x)
    assert model.n_trees_ == 0
    assert model.history_ == []


def test_bits_have_an_exact_log_z():
    random = np.random.default_rng(0)
    first = random.integers(0, 2, (600, 3))
    x = np.c_[first, first[:, [0]] ^ first[:, [1]] ^ (random.random((600, 1)) < 0.05)].astype(float)
    model = BoostedDensity("independent", learning_rate=0.2, random_state=0).fit(x)
    assert isinstance(model.partition_, Exact)
    states = np.array(np.meshgrid(*[[0.0, 1.0]] * 4)).reshape(4, -1).T
    p = np.exp(model.score_samples(states))
    assert p.sum() == pytest.approx(1, abs=1e-5)
    parity = states[:, :2].sum(1) % 2
    assert p[parity == states[:, 3]].sum() == pytest.approx(0.95, abs=0.09)


def test_a_frame_with_categories():
    random = np.random.default_rng(0)
    kind = random.choice(["a", "b", "c"], 600)
    size = np.where(kind == "a", 1.0, 5.0) + 0.3 * random.normal(size=600)
    frame = pd.DataFrame({"kind": kind, "size": size})
    model = BoostedDensity(learning_rate=0.2, n_iter=60, random_state=0).fit(frame)
    usual = pd.DataFrame({"kind": ["a", "b"], "size": [1.0, 5.0]})
    wrong = pd.DataFrame({"kind": ["a", "b"], "size": [5.0, 1.0]})
    assert (model.score_samples(usual) > model.score_samples(wrong) + 2).all()
    drawn = model.sample(400, random_state=0)
    assert list(drawn.columns) == ["kind", "size"]
    assert drawn["size"][drawn["kind"] == "a"].median() == pytest.approx(1, abs=0.3)


def counts_and_sizes(n, seed):
    """A count, a price in steps of five, and a size that depends on whether the count is even."""
    random = np.random.default_rng(seed)
    count = random.poisson(4, n)
    price = 5 * np.round(4 * np.exp(0.5 * random.normal(size=n))) - 0.01
    return np.c_[count, price, 4 * (count % 2) + 0.5 * random.normal(size=n)]


@pytest.fixture(scope="module")
def of_few_values():
    model = BoostedDensity(n_iter=60, learning_rate=0.2, random_state=0)
    return model.fit(counts_and_sizes(1000, 0))


def test_columns_of_few_values_are_no_spikes(of_few_values):
    """Densities of cells, times their width, are probabilities: at most 1, and 1 in all."""
    model = of_few_values
    assert_allclose(model.resolution_, [1, 5, 0], rtol=1e-6)
    new = counts_and_sizes(1000, 1)
    log_p = model.score_samples(new) + np.log(5)
    # Entropies of count and price, 2.09 and 2.13 nats, and of a normal of deviation 0.5, 0.73.
    assert -5.4 < log_p.mean() < -4.85
    assert log_p.max() < -np.log(0.5 * np.sqrt(2 * np.pi))  # of the size alone
    beside = new + [0.3, 0, 0]
    assert model.score_samples(beside).mean() > model.score(new) - 0.5


@pytest.mark.parametrize("kind", ["numbers", "frame", "frame with holes"])
def test_few_rows_of_rounded_numbers_are_no_spikes(kind):
    x = pd.DataFrame(load_iris().data, columns=list("abcd"))
    x = x.sample(frac=1, random_state=0).sample(frac=1, random_state=2)
    if kind != "numbers":
        x = x.assign(kind=np.where(x["c"] < 2.5, "small", "large"))
    train, new = x[:75], x[75:]
    if kind == "frame with holes":
        train = train.mask(np.random.default_rng(0).random(train.shape) < 0.2)
    model = BoostedDensity(random_state=0).fit(train)
    base = TractableDensity(random_state=0).fit(train)
    assert model.score(new) < base.score(new) + 0.5


def test_draws_of_columns_of_few_values_lie_around_these(of_few_values):
    model = of_few_values
    x = model.sample(800, random_state=0)
    assert np.quantile(x[:, 0], 0.01) > -0.6
    nearest = np.round(x[:, 0])
    assert (np.abs(x[:, 2] - 4 * (nearest % 2)) < 2).mean() > 0.9
    apart = np.abs(x[:, 0] - nearest)  # uniform: not at the values
    assert apart.mean() == pytest.approx(0.25, abs=0.04)


def test_there_is_no_stream():
    assert not hasattr(BoostedDensity(), "partial_fit")
    with pytest.raises(AttributeError) as caught:
        BoostedDensity().partial_fit(grid(100, 0))
    assert "call fit" in str(caught.value.__cause__)


def test_the_number_of_trees_is_at_most_that_asked_for():
    X, _ = make_moons(300, noise=0.1, random_state=0)
    model = BoostedDensity("gaussian", learning_rate=0.2, n_iter=4, random_state=0).fit(X)
    assert 0 < model.n_trees_ <= 4
    assert model.n_iter_ == len(model.history_) == 4


def after(monkeypatch, n_trees):
    """Ctrl-C while the next tree after some is grown."""
    count, grow = iter(range(n_trees)), boosting.grow_tree

    def interrupted(*args):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return grow(*args)

    monkeypatch.setattr(boosting, "grow_tree", interrupted)


def test_an_interrupted_fit_has_the_trees_so_far(monkeypatch):
    model = BoostedDensity("gaussian", learning_rate=0.2, random_state=0)
    after(monkeypatch, 12)
    with pytest.raises(KeyboardInterrupt, match="after 12 trees"):
        model.fit(grid(600, 0))
    short = BoostedDensity("gaussian", learning_rate=0.2, n_iter=12, random_state=0)
    monkeypatch.undo()
    short.fit(grid(600, 0))
    assert model.n_trees_ == short.n_trees_ > 0
    assert_array_equal(model.score_samples(grid(50, 1)), short.score_samples(grid(50, 1)))


def test_an_interrupted_round_keeps_those_before(monkeypatch):
    """Ctrl-C while draws of the second round are made."""
    count, draws = iter(range(2)), boosting._Boosting._draws

    def interrupted(*args):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return draws(*args)

    monkeypatch.setattr(boosting._Boosting, "_draws", interrupted)
    model = BoostedDensity("gaussian", learning_rate=0.3, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="is usable"):
        model.fit(grid(600, 0))
    assert model.n_trees_ > 10
    assert model.score(grid(500, 1)) > -2.6


def test_a_fit_that_is_interrupted_before_a_tree_leaves_no_model(monkeypatch):
    model = BoostedDensity("gaussian", random_state=0)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(boosting._Boosting, "_draws", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(grid(100, 0))
    assert not hasattr(model, "n_trees_")


def test_trees_that_gain_nothing_are_said():
    """Twenty rows of two columns without a relation, of which three choose."""
    random = np.random.default_rng(3)
    x = random.normal(size=(24, 2))
    with pytest.warns(TrainingWarning, match="is its base"):
        BoostedDensity("gaussian", learning_rate=1.0, n_iter=30, random_state=1).fit(x)


@pytest.mark.full
def test_log_z_is_within_its_error():
    z = np.array([one(seed)[0] for seed in range(300, 320) for one in (z_of_bits, z_of_numbers)])
    assert 0.8 < np.sqrt(np.mean(z**2)) < 1.3
    assert np.abs(z.mean()) < 0.5


def with_holes(X, share=0.25, seed=1):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def test_rows_with_missing_entries_are_fitted():
    """Those that are known are a better fit than the complete rows alone."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 3))
    x[:, 1] = np.where(x[:, 0] > 0, x[:, 0], -2) + 0.3 * x[:, 1]
    x[:, 2] = np.round(2 * x[:, 0] + x[:, 2])
    holes, new = with_holes(x[:300], 0.35), x[500:]
    kind = {"base": "gaussian", "n_iter": 60, "random_state": 0}
    model = BoostedDensity(**kind).fit(holes)
    complete = holes[~np.isnan(holes).any(1)]
    assert model.score(new) > BoostedDensity(**kind).fit(complete).score(new) + 0.3
    assert model.resolution_[2] == pytest.approx(1.0)  # draws for missing entries are whole numbers
    assert np.array_equal(model.predict(holes[:20]) == 1, model.decision_function(holes[:20]) >= 0)
    expected = -model.score_samples(holes[:20]) - model.log_partition_
    assert np.allclose(model.energy(holes[:20]), expected, atol=1e-4)


def test_frames_and_bits_with_missing_entries():
    random = np.random.default_rng(0)
    kind = random.choice(["a", "b"], 300).astype(object)
    size = np.where(kind == "a", 1.0, 4.0) + 0.3 * random.normal(size=300)
    frame = pd.DataFrame({"kind": kind, "size": size})
    frame.loc[::7, "kind"], frame.loc[1::7, "size"] = None, np.nan
    model = BoostedDensity(n_iter=5, random_state=0).fit(frame)
    filled = model.impute(pd.DataFrame({"kind": [None, None], "size": [1.0, 4.0]}), random_state=0)
    assert filled["kind"].tolist() == ["a", "b"]
    bits = (random.random((200, 3)) < 0.5).astype(float)
    bits[:, 1] = bits[:, 0]
    model = BoostedDensity(n_iter=0, random_state=0).fit(with_holes(bits))
    assert model.energy_.domain == Binary((3,))
    given = model.log_conditional(np.array([[1.0, 1.0, np.nan]]), given=[0])
    assert given[0] > np.log(0.8)


def test_a_column_without_known_entries_is_named():
    x = np.random.default_rng(0).normal(size=(30, 2))
    x[:, 1] = np.nan
    with pytest.raises(ValueError, match="Column 1 is missing in all rows"):
        BoostedDensity().fit(x)
    frame = pd.DataFrame(x, columns=["a", "b"])
    with pytest.raises(ValueError, match="'b' is missing in all rows"):
        BoostedDensity().fit(frame)


def test_wide_tables_have_fewer_draws_and_smaller_trees(monkeypatch):
    """Of two thousand columns, draws and rows of a tree would take gigabytes."""
    monkeypatch.setattr(boosting, "NUMBERS_OF_DRAWS", 9000)
    monkeypatch.setattr(boosting, "NUMBERS_OF_TREE", 9000)
    drawn, grown, grow = [], [], boosting.grow_tree

    class Counted(Gaussian):
        def sample(self, n, generator):
            drawn.append(n)
            return super().sample(n, generator)

    def counted(codes, *args):
        grown.append(len(codes))
        return grow(codes, *args)

    monkeypatch.setattr(boosting, "grow_tree", counted)
    generator = torch.Generator().manual_seed(0)
    rows = Sample(torch.randn(4000, 3, generator=generator), torch.ones(4000))
    held_out = Sample(torch.randn(100, 3, generator=generator), torch.ones(100))
    settings = BoostingSettings(most_trees=2)
    boost(Counted(torch.zeros(3), 1.0), rows, held_out, settings, generator)
    assert drawn == [3000, 3000]
    assert grown == [3000, 3000]


def test_a_column_of_identifiers_is_named():
    frame = pd.DataFrame({"id": [f"row {i}" for i in range(60)], "x": np.linspace(0, 1, 60)})
    for model in (BoostedDensity(n_iter=0, random_state=0), TractableDensity(random_state=0)):
        with pytest.warns(DataWarning, match=r"'id' \(60 levels in 60 rows\)"):
            model.fit(frame)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("n_ones", [0, 3])
def test_bits_of_which_none_can_be_divided_are_fitted(n_ones):
    X = np.zeros((100, 4))
    X[np.arange(n_ones), np.arange(n_ones)] = 1.0
    model = BoostedDensity(random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
    assert model.score_samples(X[-1:]) > model.score_samples(1 - X[-1:])
