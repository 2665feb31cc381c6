"""Memory maps: rows are read in blocks, and what is fitted is what an array would give."""

import tracemalloc

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.mixture import GaussianMixture
from skorch.callbacks import Callback
from torch.utils.data import TensorDataset

from skebm import (
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    JEMClassifier,
    NCEDensity,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TableEncoder,
    TractableDensity,
)
from skebm.energies import MLP
from skebm.estimators.base import upper_quantile
from skebm.training import Resume, mapped, rows
from skebm.training.mapped import BlockOrder, MappedArray, is_large
from skebm.training.rows import Batches, Rows
from tests.support.tiers import named

SMALL = {"network": MLP(hidden_sizes=(8,)), "n_iter": 1, "random_state": 0, "partition": None}
REAL = {
    "score matching": ScoreMatchingDensity(base="gaussian", sigma=0.3, **SMALL),
    "contrastive": ContrastiveDivergenceDensity(base="gaussian", sigma=None, **SMALL),
    "noise": NCEDensity(noise="gaussian", sigma=None, **SMALL),
    "spikes": SpikeSlabRBM(4, n_iter=1, random_state=0, partition=None),
    "mixed RBM": RBMEstimator(4, base="gaussian", n_iter=1, random_state=0, partition=None),
}
BITS = {
    "RBM": RBMEstimator(4, base="chow-liu", n_iter=1, random_state=0, partition=None),
    "exact RBM": RBMEstimator(4, learning="exact", n_iter=1, random_state=0, partition=None),
    "subspace": SubspaceRBM(3, n_iter=1, random_state=0, partition=None),
    "bits": ContrastiveDivergenceDensity(base="chow-liu", **SMALL),
}


@pytest.fixture
def _tiny(monkeypatch):
    """Maps of more than 300 rows are large, and blocks are small."""
    monkeypatch.setattr(mapped, "MOST_ROWS", 300)
    monkeypatch.setattr(mapped, "BLOCK", 256 * 5)
    monkeypatch.setattr(rows, "SHUFFLED_WHOLE", 500)
    monkeypatch.setattr(mapped, "WINDOW", 5 * 400)


def map_of(folder, X, name="x"):
    np.save(folder / f"{name}.npy", X)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def numbers(n=900, d=5, dtype=np.float32):
    x = np.random.default_rng(0).standard_normal((n, d))
    x[:, 1:] += 0.5 * x[:, :-1]
    return (100 + 3 * x).astype(dtype)


def bits(n=900, dtype=np.uint8):
    return (numbers(n, 6) > 100).astype(dtype)


# ------------------------------------------------------------------------------
# Arrays in files
# ------------------------------------------------------------------------------


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint8])
def test_rows_of_a_map_are_those_of_the_array(tmp_path, dtype):
    X = numbers().astype(dtype)
    found = MappedArray(map_of(tmp_path, X))
    expected = X if X.dtype.kind == "f" else X.astype(np.float64)
    index = np.arange(0, 900, 7)
    for part, rows_of in (
        (found[:], expected),
        (found[index], expected[index]),
        (found.subset(index)[2:5], expected[index][2:5]),
        (found.subset(index).subset(np.array([1, 3]))[:], expected[[7, 21]]),
        (found.of_columns([3, 1]).of_columns([1])[4:6], expected[4:6, [1]]),
        (np.concatenate([block for _, block in found.blocks()]), expected),
    ):
        assert part.dtype == found.dtype == expected.dtype
        assert_array_equal(part, rows_of)
        part[:] = 0  # a copy
    assert_array_equal(found.ranges, (expected.min(0), expected.max(0)))


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_blocks_are_those_of_all_rows(tmp_path, weighted):
    X = numbers(dtype=np.float64) + 1e9  # of which a sum of squares would lose all digits
    weight = np.random.default_rng(1).random(len(X)) if weighted else None
    if weighted:
        weight[:256] = 0.0  # a block without weight
    mean, variance = mapped.moments_of_map(MappedArray(map_of(tmp_path, X)), weight)
    centre = np.average(X, axis=0, weights=weight)
    assert_allclose(mean, centre, rtol=1e-14)
    assert_allclose(variance, np.average((X - centre) ** 2, axis=0, weights=weight), rtol=1e-7)


def test_images_are_flat_rows(tmp_path):
    X = numbers(50, 12).reshape(50, 3, 4)
    assert_array_equal(MappedArray(map_of(tmp_path, X)).flat()[3:], X.reshape(50, 12)[3:])


def test_what_is_larger_than_memory(tmp_path, monkeypatch):
    X = numbers(400, 3)
    monkeypatch.setattr(mapped, "MOST_ROWS", 300)
    found = map_of(tmp_path, X)
    assert is_large(found)
    assert is_large(np.asarray(found)[:, :2])  # a view of it
    assert not is_large(X)
    assert not is_large(found[:300])
    assert not is_large(found[np.arange(350)])  # a copy
    shared = tmp_path / f"{mapped.SHARED}_1_2"
    shared.mkdir()
    assert not is_large(map_of(shared, X))  # joblib's copy of an array in memory
    monkeypatch.setattr(mapped, "MOST_NUMBERS", 3 * 250)
    monkeypatch.setattr(mapped, "FEWEST_ROWS", 10)
    assert is_large(found[:251])
    assert not is_large(found[:250])


# ------------------------------------------------------------------------------
# Order of rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 63, 1000, 10_000])
def test_an_order_of_blocks_has_every_row_once(n, monkeypatch):
    monkeypatch.setattr(mapped, "WINDOW", 3 * 640)
    order = BlockOrder(n, 3, torch.Generator().manual_seed(0))
    cuts = [0, n // 3, n // 2, n]
    found = torch.cat([order.numbers(a, b) for a, b in zip(cuts, cuts[1:], strict=False)])
    assert_array_equal(found.sort().values, torch.arange(n))
    size = 640 // mapped.FEWEST_BLOCKS
    together = (found.diff() == 1).double().mean() if n > 1 else 1
    assert together >= 1 - 1 / size - 0.02
    assert n == 1 or not torch.equal(found, torch.arange(n))
    plain = BlockOrder(n, 3, None)
    assert_array_equal(plain.numbers(0, n), torch.arange(n))


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("n", [450, 900])
def test_batches_of_a_map_hold_every_row_once(tmp_path, n, shuffled):
    X = numbers(n)
    weight = torch.rand(n, generator=torch.Generator().manual_seed(0)) + 0.5
    found = Rows(
        MappedArray(map_of(tmp_path, X)),
        weight,
        y=torch.arange(n),
        dtype=torch.float32,
        device=torch.device("cpu"),
        convert=lambda x: x - 100,
    )
    seen = list(Batches(found, 32, torch.Generator().manual_seed(0) if shuffled else None))
    assert {len(batch.x) for batch in seen} <= {n // len(seen), n // len(seen) + 1}
    number = torch.cat([batch.row_index for batch in seen])
    assert torch.equal(number, torch.arange(n)) != shuffled
    assert torch.equal(number.sort().values, torch.arange(n))
    for batch in seen:
        assert_array_equal(batch.x, X[batch.row_index] - 100)
        assert torch.equal(batch.y, batch.row_index)
        assert torch.equal(batch.weight, found.weight[batch.row_index])


@pytest.mark.usefixtures("_tiny")
def test_parts_of_rows_of_a_map(tmp_path):
    X = numbers()
    kind = {"dtype": torch.float32, "device": torch.device("cpu")}
    found = Rows(MappedArray(map_of(tmp_path, X)), **kind)
    train, held_out = found.split(90, torch.Generator().manual_seed(0))
    assert train.is_mapped
    assert not held_out.is_mapped
    together = np.concatenate([train.block(0, 810), held_out.block(0, 90)])
    assert_array_equal(np.sort(together, axis=0), np.sort(X, axis=0))
    sample = found.subsample(0)
    assert (len(sample), sample.n_table, sample.whole) == (300, 900, found)
    assert_array_equal(sample.x, found.subsample(0).x)
    assert not torch.equal(sample.x, found.subsample(1).x)
    _, new = found.split(250, torch.Generator().manual_seed(0))
    both = np.concatenate([new.block(0, 250), found.subsample(1).x])
    assert len(np.unique(both, axis=0)) == 550  # none of the last sample
    assert found.counts.untyped_storage().nbytes() == 8  # no memory for equal weights
    assert_array_equal(
        found.map(lambda x: x.sum(1)), Rows(torch.tensor(X), **kind).map(lambda x: x.sum(1))
    )


# ------------------------------------------------------------------------------
# Estimators
# ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize(
    "name", named({"score matching", "mixed RBM", "RBM", "bits"}, [*REAL, *BITS])
)
def test_a_model_of_a_map(tmp_path, name):
    X = numbers() if name in REAL else bits()
    model = (REAL | BITS)[name]
    table = map_of(tmp_path, X)
    model.fit(table)
    energy = model.energy(table)
    assert_array_equal(energy, model.energy(X))  # bit for bit, whatever the blocks
    assert_array_equal(model.decision_function(table), model.decision_function(X))
    assert_array_equal(model.score_samples(table), model.score_samples(X))
    assert model.threshold_ == upper_quantile(energy, 0.1, np.ones(900))
    assert_allclose(model.score(table), model.score(X), rtol=1e-6)
    if hasattr(model, "transform"):
        assert_array_equal(model.transform(table), model.transform(X))
    assert_array_equal(energy, model.fit(table).energy(table))  # the same seed, the same model
    before = model.n_iter_
    assert model.partial_fit(table).n_iter_ == before + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
def test_columns_have_the_units_of_all_rows(tmp_path):
    X = numbers(dtype=np.float64)
    model = ScoreMatchingDensity(base="gaussian", sigma=0.3, **SMALL).fit(map_of(tmp_path, X))
    assert_allclose(model.units_.centre, X.mean(0), rtol=1e-13)
    assert_allclose(model.units_.scale, X.std(0), rtol=1e-12)
    with pytest.raises(ValueError, match="below the lower bound"):
        ScoreMatchingDensity(bounds=(100, None)).fit(map_of(tmp_path, X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
def test_rows_without_weight_are_left_out(tmp_path):
    X, weight = numbers(), np.ones(900)
    weight[::3] = 0
    model = ScoreMatchingDensity(base="gaussian", sigma=0.3, **SMALL)
    found = model.fit(map_of(tmp_path, X), sample_weight=weight).energy(X)
    kept = map_of(tmp_path, X[weight > 0], "kept")
    assert_allclose(found, model.fit(kept, sample_weight=weight[weight > 0]).energy(X), rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_map_that_is_read_whole_is_an_array(tmp_path):
    X = numbers(200)
    model = ScoreMatchingDensity(base="gaussian", sigma=0.3, **SMALL)
    assert_array_equal(model.fit(map_of(tmp_path, X)).energy(X), model.fit(X).energy(X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
def test_classes_of_a_map(tmp_path):
    X = numbers()
    y = np.where(X[:, 0] > 100, "above", "below")
    table = map_of(tmp_path, X)
    model = JEMClassifier(base="gaussian", **SMALL | {"n_iter": 2})
    model.fit(table, y)
    assert_array_equal(model.predict_proba(table), model.predict_proba(X))
    assert_array_equal(model.predict(table), model.predict(X))
    assert set(model.predict(table)) == {"above", "below"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("method", ["quantile", "conformal", "cross-conformal"])
def test_a_detector_of_a_map(tmp_path, method):
    X = numbers()
    table = map_of(tmp_path, X)
    detector = EnergyOutlierDetector(
        TractableDensity("gaussian"), method=method, random_state=0
    ).fit(table)
    assert_allclose(detector.decision_function(table), detector.decision_function(X))
    assert detector.n_calibration_ == {"conformal": 225}.get(method, 900)
    if method != "quantile":
        assert_allclose(detector.p_values(table), detector.p_values(X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
def test_a_detector_fits_its_default_estimator_to_a_sample(tmp_path):
    table = map_of(tmp_path, numbers())
    detector = EnergyOutlierDetector(random_state=0).fit(table)
    assert len(detector.estimator_[0]._donors) == 300
    assert (detector.predict(table) == -1).sum() == 90
    calls = []

    class Counting(GaussianMixture):
        def fit(self, X, y=None):
            calls.append(X)
            return super().fit(X)

    EnergyOutlierDetector(Counting(), trim="auto", random_state=0).fit(table)
    assert len(calls[0]) <= 300


@pytest.mark.usefixtures("_tiny")
def test_densities_in_memory_are_fitted_to_a_sample(tmp_path):
    X = numbers()
    table = map_of(tmp_path, X)
    for model in (TractableDensity("gaussian", random_state=0), ProductOfDensities(random_state=0)):
        model.fit(table)
        assert_array_equal(model.score_samples(table), model.score_samples(X))
    encoder = TableEncoder()
    assert encoder.fit_transform(table).shape == X.shape
    assert_array_equal(encoder.transform(table), encoder.transform(X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_bad_rows_of_a_map_are_named(tmp_path, value, name):
    X = numbers()
    good = map_of(tmp_path, X, "good")
    X[700, 2] = value
    bad = map_of(tmp_path, X)
    for model in (REAL["score matching"], REAL["noise"]):
        with pytest.raises(ValueError, match=f"contains {name}: row 700, column 2"):
            model.fit(bad)
    model = REAL["score matching"].fit(good)
    with pytest.raises(ValueError, match=f"contains {name}: row 700, column 2"):
        model.energy(bad)
    with pytest.raises(ValueError, match="has 4 features, but .* is expecting 5"):
        model.energy(good[:, :4])
    with pytest.raises(ValueError, match="has 4 features, but .* is expecting 5"):
        model.partial_fit(good[:, :4])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
def test_missing_entries_of_a_map(tmp_path):
    X = bits(dtype=np.float32)
    X[::7, 1] = np.nan
    table = map_of(tmp_path, X)
    model = RBMEstimator(3, base="independent", n_iter=1, random_state=0)
    with pytest.warns(UserWarning, match="the memory map is read whole"):
        model.fit(table)
    assert_allclose(model.energy(table), model.energy(X), rtol=1e-6)  # sums of few rows at once
    assert_array_equal(model.energy(X), model.fit(X).energy(X))
    with pytest.warns(UserWarning, match="the memory map is read whole"):
        assert not np.isnan(model.impute(table, random_state=0, n_steps=2)).any()
    density = REAL["score matching"].fit(numbers())
    x = numbers()
    x[5, 2] = np.nan
    found = density.impute(map_of(tmp_path, x, "holes"), random_state=0, n_steps=2)
    assert_array_equal(np.isnan(x), found != x)


class Stop(Callback):
    """Ends a fit after two epochs, as a crash would."""

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            raise MemoryError("the end")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("name", ["score matching", "RBM"])
def test_a_fit_to_a_file_goes_on_from_a_checkpoint(tmp_path, name):
    X = numbers() if name in REAL else bits()
    table, again = map_of(tmp_path, X), TensorDataset(torch.from_numpy(X))
    model = clone((REAL | BITS)[name]).set_params(n_iter=4)
    expected = model.fit(table).energy(X)
    resume = ("resume", Resume(tmp_path / "fit.pt"))
    with pytest.raises(MemoryError):
        clone(model).set_params(net__callbacks=[resume, ("stop", Stop())]).fit(again)
    assert (tmp_path / "fit.pt").is_file()
    found = clone(model).set_params(net__callbacks=[resume]).fit(again)
    assert_array_equal(found.energy(X), expected)


def test_scoring_a_map_takes_memory_for_a_block_and_the_scores(tmp_path):
    n = 200_000
    table = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (n, 20))
    table[:] = np.random.default_rng(0).random((n, 20), dtype=np.float32)
    model = EnergyOutlierDetector(TractableDensity("gaussian")).fit(table)
    tracemalloc.start()
    model.score_samples(table)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 16 MB in the file; a block has 8 MB, twice that as float64, and scores have 1.6 MB.
    assert most < 3.2 * 4 * mapped.BLOCK + 8 * n


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 1.0])
def test_a_quantile_without_weights_is_that_of_equal_ones(share):
    values = np.random.default_rng(0).standard_normal(101)
    assert upper_quantile(values.copy(), share, None) == upper_quantile(values, share, np.ones(101))
