"""Streams: data sets of torch, Arrow, Parquet and Dask give what their rows as an array give."""

import errno
import tempfile

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from skebm import (
    BoltzmannMachineDensity,
    EnergyOutlierDetector,
    JEMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    TableEncoder,
    TractableDensity,
)
from skebm.energies import MLP
from skebm.training import mapped, streams
from tests.support.tiers import named

NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(streams, "AT_ONCE", 256)
    monkeypatch.setattr(mapped, "MOST_ROWS", 500)


def table(n=700, dtype=np.float32):
    return np.random.default_rng(0).standard_normal((n, 3)).astype(dtype)


def model(**kwargs):
    kind = {"base": "gaussian", "sigma": 0.3, "n_iter": 1, "random_state": 0, "partition": None}
    return ScoreMatchingDensity(network=MLP(hidden_sizes=(8,)), **(kind | kwargs))


class Once(IterableDataset):
    """Rows that can be read a single time."""

    def __init__(self, X, y=None, length=None):
        items = list(X) if y is None else list(zip(X, y, strict=True))
        self.items, self.length = iter(items), length

    def __iter__(self):
        return self.items

    def __len__(self):
        if self.length is None:
            raise TypeError
        return self.length


class Short(Dataset):
    """A data set that has fewer items than it says."""

    def __init__(self, X, n):
        self.X, self.n = X, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.X[index]


def arrow(X):
    return pytest.importorskip("pyarrow").table(dict(zip(NAMES, X.T, strict=True)))


def parquet(X, folder):
    """Files whose names are not in the order in which they were written."""
    pq, folder = pytest.importorskip("pyarrow.parquet"), folder / "parts"
    folder.mkdir(exist_ok=True)
    for name, part in zip("cab", np.array_split(X, 3), strict=True):
        pq.write_table(arrow(part), folder / f"{name}.parquet", row_group_size=100)
    return pytest.importorskip("pyarrow.dataset").dataset(folder)


def parquet_file(X, folder):
    parquet(X, folder)
    return pytest.importorskip("pyarrow.parquet").ParquetFile(folder / "parts" / "a.parquet")


def dask_frame(X):
    dd = pytest.importorskip("dask.dataframe")
    return dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=4)


def dask_array(X, chunks=(150, 2)):
    return pytest.importorskip("dask.array").from_array(X, chunks=chunks)


MAKERS = {
    "data set": lambda X, folder: TensorDataset(torch.from_numpy(X)),
    "iterable": lambda X, folder: Once(X),
    "table": lambda X, folder: arrow(X),
    "record batch": lambda X, folder: arrow(X).to_batches()[0],
    "reader": lambda X, folder: arrow(X).to_reader(max_chunksize=90),
    "dataset": parquet,
    "scanner": lambda X, folder: parquet(X, folder).scanner(columns=NAMES),
    "parquet": lambda X, folder: parquet_file(X, folder),
    "dask array": lambda X, folder: dask_array(X),
    "dask frame": lambda X, folder: dask_frame(X),
    "unknown chunks": lambda X, folder: dask_frame(X).values,
    "unknown divisions": lambda X, folder: dask_frame(X).reset_index(drop=True),
}
NAMED = {"table", "record batch", "reader", "dataset", "scanner", "dask frame"}


def array_of(name, X, stream):
    """The rows of a stream, in its order."""
    if name in ("dataset", "scanner"):
        return np.stack([c.to_numpy() for c in stream.to_table().columns], 1)
    return np.array_split(X, 3)[1] if name == "parquet" else X


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", named(set(MAKERS) - {"scanner", "unknown divisions"}, MAKERS))
def test_a_model_of_a_stream_is_that_of_its_rows(tmp_path, name):
    if name in ("table", "record batch", "reader", "dataset", "scanner", "parquet"):
        pytest.importorskip("pyarrow.parquet")
    X = table()
    make = MAKERS[name]
    rows = array_of(name, X, make(X, tmp_path))
    np.save(tmp_path / "rows.npy", rows)
    expected = model().fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    found = model().fit(make(X, tmp_path))
    assert_array_equal(found.energy(rows), expected.energy(rows))
    assert_array_equal(found.score_samples(make(X, tmp_path)), expected.score_samples(rows))
    assert_array_equal(found.predict(make(X, tmp_path)), expected.predict(rows))
    if name in NAMED:
        assert_array_equal(found.feature_names_in_, NAMES)
    found.partial_fit(make(X, tmp_path))
    assert found.n_iter_ == 2


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_numbers_that_float32_does_not_hold_are_written_in_float64(dtype):
    X = table(dtype=np.float64) * 1000 + 1e8
    X = X.astype(dtype)
    spool = streams.spool(TensorDataset(torch.from_numpy(X)))
    assert spool.table.dtype == np.float64
    assert_array_equal(spool.table, X)
    bits = (table() > 0).astype(np.uint8)
    assert streams.spool(TensorDataset(torch.from_numpy(bits))).table.dtype == np.float32


@pytest.mark.filterwarnings("ignore")
def test_labels_beside_rows_of_a_data_set():
    X = table()
    y = (X[:, 0] > 0).astype(int)
    kind = {"network": MLP(hidden_sizes=(8,)), "n_iter": 1, "random_state": 0, "partition": None}
    kind["base"] = "gaussian"
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    found = JEMClassifier(**kind).fit(pairs, None)
    assert found.classes_.tolist() == [0, 1]
    assert_array_equal(found.predict_proba(pairs), found.predict_proba(X))
    assert_array_equal(found.predict(Once(X)), found.predict(X))
    spool, labels = streams.table_and_labels(Once(X, y), None)
    assert_array_equal(labels, y)
    assert streams.table_and_labels(Once(X, y), y[::-1])[1] is not spool.y
    with pytest.raises(ValueError, match="requires y to be passed"):
        JEMClassifier(**kind).fit(Once(X), None)


@pytest.mark.filterwarnings("ignore")
def test_other_estimators_take_streams():
    X = table()
    stream = arrow(X)
    for make in (
        lambda: TractableDensity("gaussian"),
        lambda: EnergyOutlierDetector(TractableDensity("gaussian"), method="conformal"),
    ):
        found = make().set_params(random_state=0).fit(stream)
        assert_array_equal(found.feature_names_in_, NAMES)
        assert_array_equal(found.score_samples(stream), found.score_samples(X))
    assert_array_equal(found.predict(Once(X)), found.predict(X))
    assert_array_equal(found.p_values(stream), found.p_values(X))
    assert_array_equal(found.select(stream), found.select(X))
    n_before = found.n_calibration_
    assert found.partial_fit(stream).n_calibration_ == n_before + len(X)
    encoder = TableEncoder()
    assert_array_equal(encoder.fit_transform(stream), encoder.transform(X))
    bits = (X > 0).astype(np.uint8)
    rbm = RBMEstimator(2, n_iter=1, random_state=0).fit(arrow(bits))
    assert_array_equal(rbm.transform(arrow(bits)), rbm.transform(bits.astype(np.float32)))
    machine = BoltzmannMachineDensity(random_state=0)  # which reads it whole
    assert_array_equal(machine.fit(arrow(bits)).energy(bits), machine.fit(bits).energy(bits))


# ------------------------------------------------------------------------------
# Streams that cannot be read
# ------------------------------------------------------------------------------


def with_value(value):
    X = table()
    X[600, 1] = value
    return X


def changing(*parts):
    return Once([row for part in parts for row in part])


def arrow_change():
    pa = pytest.importorskip("pyarrow")

    def batches():
        yield arrow(table(50)).to_batches()[0]
        yield pa.RecordBatch.from_pydict({"a": [1.0], "b": [1.0], "d": [1.0]})

    class Changing:
        """As a reader, which itself refuses another schema."""

        read_next_batch = None

        def __iter__(self):
            return batches()

    return Changing()


BAD = {
    "nan": (lambda: Once(with_value(np.nan)), "contains NaN: row 600, column 1"),
    "infinite": (lambda: Once(with_value(np.inf)), "contains infinity: row 600, column 1"),
    "short": (lambda: Once(table(50), length=60), "ended after 50 rows, .* length of 60"),
    "long": (lambda: Once(table(50), length=40), "gave 50 rows, .* length of 40"),
    "index": (lambda: Short(table(50), 60), "ended after 50 rows, .* length of 60"),
    "columns": (lambda: changing(table(50), table(50)[:, :2]), r"row of shape \(2,\), after"),
    "dtype": (lambda: changing(table(256), table(50, np.float64)), "changed at row 256"),
    "empty": (lambda: Once([]), "the stream is empty"),
    "no columns": (lambda: Once(np.empty((5, 0))), "no columns"),
    "numbers": (lambda: Once(np.arange(5.0)), "rows that are single numbers"),
    "text": (lambda: Once(np.array([["x", "y"]])), "Rows of the stream are of type"),
    "arrow text": (
        lambda: pytest.importorskip("pyarrow").table({"a": [1.0], "b": ["x"]}),
        "Column 'b' of the stream is string.*RBMEstimator",
    ),
    "arrow missing": (
        lambda: pytest.importorskip("pyarrow").table({"a": [1.0, 2.0, None]}),
        "Column 'a' has no value in row 2",
    ),
    "arrow empty": (lambda: arrow(table(5)).schema.empty_table(), "the stream is empty"),
    "dask text": (
        lambda: pytest.importorskip("dask.dataframe").from_pandas(
            pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), npartitions=1
        ),
        "Column 'b' of the stream is .*RBMEstimator",
    ),
    "dask missing": (
        lambda: dask_frame(with_value(np.nan)),
        "Column 'b' has no value in row 600",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_streams_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        model().fit(make())
    assert not list(tmp_path.iterdir())
    fitted = model().fit(table(50))
    before = fitted.energy(table(5))
    with pytest.raises(ValueError, match="(?s)" + message):
        list(streams.parts(make()))
    with pytest.raises(ValueError, match="(?s)" + message):
        fitted.partial_fit(make())
    assert_array_equal(fitted.energy(table(5)), before)  # the last good state


def test_a_schema_that_changes_is_refused():
    with pytest.raises(ValueError, match="row 50"):
        list(streams._arrow_parts(arrow_change()))


def test_names_are_compared_with_those_of_fit():
    found = model().fit(arrow(table()))
    other = arrow(table()).rename_columns(["a", "b", "z"])
    for method in (found.energy, found.partial_fit):
        with pytest.raises(ValueError, match="feature names should match"):
            method(other)
    with pytest.raises(ValueError, match="feature names should match"):
        found.energy(dask_frame(table())[["b", "a", "c"]])


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = tempfile.TemporaryFile

    class Full:
        def __init__(self, **kwargs):
            self.file = opened(**kwargs)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    fitted = model().fit(table(50))
    with pytest.raises(OSError, match=f"{tmp_path}.* need 8,400 bytes.*TMPDIR") as caught:
        fitted.fit(TensorDataset(torch.from_numpy(table())))
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="need more than 3,072 bytes"):
        fitted.fit(Once(table()))
    assert not list(tmp_path.iterdir())
    assert fitted.n_iter_ == 1


def test_the_temporary_file_is_in_the_folder_of_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        model().fit(Once(table()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model().fit(Once(table()))
    assert not list(tmp_path.iterdir())
