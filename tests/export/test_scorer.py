"""The scorer: its files, the rows that it takes, and that it needs NumPy alone."""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import skebm
from skebm import EnergyOutlierDetector, RBMEstimator, TableEncoder, TractableDensity
from skebm.export import Scorer, load_scorer, scorer, to_numpy
from tests.export.test_detectors import frame, odd_frame
from tests.support.tiers import full

SOURCE = Path(scorer.__file__)
ALONE = """
import importlib.abc, sys

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "skebm", "sklearn", "scipy", "skorch", "pandas"}:
            raise ImportError(name)

sys.meta_path.insert(0, Refusing())
import json
import scorer
model = scorer.load_scorer(sys.argv[1])
rows = json.load(open(sys.argv[2]))
print(json.dumps({"scores": model.score_samples(rows).tolist(),
                  "p": model.p_values(rows).tolist(), "predict": model.predict(rows).tolist()}))
"""


@functools.cache
def of_frame():
    X = frame(200, 0)[["city", "age", "children"]]
    return RBMEstimator(3, base="independent", n_iter=2, random_state=0).fit(X), X


@functools.cache
def of_array():
    X = np.random.default_rng(0).normal(size=(100, 3))
    return TractableDensity("gaussian").fit(X), X


def test_the_file_can_be_read_by_a_person():
    source = SOURCE.read_text()
    assert len(source.splitlines()) < 300
    assert {"torch", "skebm", "sklearn", "pickle"}.isdisjoint(
        line.split()[1].split(".")[0]
        for line in source.splitlines()
        if line.startswith(("import ", "from "))
    )


def test_a_file_is_what_was_written(tmp_path):
    model, X = of_frame()
    exported = to_numpy(model)
    exported.save(tmp_path / "model.npz")
    loaded = load_scorer(tmp_path / "model.npz")
    assert loaded.outputs == exported.outputs
    assert loaded.columns == ["city", "age", "children"]
    assert (loaded.estimator, loaded.version) == ("RBMEstimator", skebm.__version__)
    assert repr(loaded).startswith("Scorer(RBMEstimator, outputs=['log_density'")
    assert np.array_equal(loaded.score_samples(X), exported.score_samples(X))


def test_a_file_holds_no_objects(tmp_path):
    to_numpy(of_frame()[0]).save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as found:
        assert all(found[name].dtype.kind in "fiubU" for name in found.files)


def test_a_file_of_another_version_is_refused(tmp_path):
    exported = to_numpy(of_array()[0])
    graph = json.loads(json.dumps(exported._graph)) | {"format": 2, "skebm": "9.1"}
    Scorer(graph, exported._arrays).save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match=r"format 2, written by skebm 9\.1, .* reads format 1"):
        load_scorer(tmp_path / "model.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", "arrays"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.npz"
    if content == "arrays":
        np.savez(path, x=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="no file of skebm"):
        load_scorer(path)
    with pytest.raises(FileNotFoundError):
        load_scorer(tmp_path / "none.npz")


def test_rows_of_any_kind_have_the_same_scores():
    pl = pytest.importorskip("polars")
    model, X = of_frame()
    found, X = to_numpy(model), X.iloc[:20]
    expected = found.score_samples(X)
    assert np.allclose(expected, model.score_samples(X), rtol=1e-5)
    others = [
        X[["children", "city", "age"]],  # by name
        X.to_dict("list"),
        {name: X[name].to_numpy() for name in X},
        pl.from_pandas(X),
        X.to_numpy(dtype=object),
        X.to_numpy(dtype=object).tolist(),
        X.convert_dtypes(),
        X.astype({"city": "category"}),
    ]
    for other in others:
        assert np.array_equal(found.score_samples(other), expected)


@pytest.mark.parametrize("model", [EnergyOutlierDetector(random_state=0), TableEncoder()])
def test_arrays_of_objects_have_columns_by_number(model):
    X = frame(120, 0)[["city", "age", "street"]].to_numpy(dtype=object)
    found = to_numpy(model.fit(X))
    assert set(found.columns) == {"x0", "x1", "x2"}
    asked = "transform" if hasattr(model, "transform") else "score_samples"
    expected = getattr(model, asked)(X)
    for rows in (X, X.tolist(), dict(zip(["x0", "x1", "x2"], X.T, strict=True))):
        assert np.allclose(getattr(found, asked)(rows), expected, rtol=1e-9)


def test_many_rows_are_scored_in_blocks():
    model, X = of_array()
    found = to_numpy(model)
    found._graph["rows"] = 7
    assert np.allclose(found.score_samples(X), model.score_samples(X), atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"city": ["Rome"], "age": [3.0]}, "lacks the column 'children'"),
        ({"city": ["Rome"], "age": ["old"], "children": [1]}, "Column 'age'"),
        ({"city": ["Rome"], "age": [np.inf], "children": [1]}, "age contains infinity"),
        ({"city": ["Rome"], "age": [1.0, 2.0], "children": [1]}, "one length"),
        ({"city": [], "age": [], "children": []}, "at least one row"),
        ([["Rome", 3.0]], "3 columns"),
    ],
)
def test_rows_that_are_none_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        to_numpy(of_frame()[0]).score_samples(rows)


def test_arrays_of_other_shapes_are_refused():
    found = to_numpy(of_array()[0])
    for X in (np.zeros((2, 2)), np.zeros(3), np.zeros((0, 3))):
        with pytest.raises(ValueError, match=r"shape|at least one row"):
            found.score_samples(X)
    with pytest.raises(AttributeError, match="exported with"):
        found.predict_proba(np.zeros((1, 3)))


@full
def test_a_model_is_scored_where_nothing_but_numpy_is_installed(tmp_path):
    model = EnergyOutlierDetector(method="conformal", random_state=0).fit(frame(300, 0))
    to_numpy(model).save(tmp_path / "model.npz")
    shutil.copy(SOURCE, tmp_path / "scorer.py")
    (tmp_path / "main.py").write_text(ALONE)
    X = odd_frame()
    rows = {name: [None if pd.isna(v) else v for v in X[name]] for name in X}
    rows["smokes"] = [None if v is None else bool(v) for v in rows["smokes"]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    run = subprocess.run(
        [sys.executable, "main.py", "model.npz", "rows.json"],
        cwd=tmp_path,
        env={"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert np.allclose(found["scores"], model.score_samples(X), rtol=1e-9)
    assert np.allclose(found["p"], model.p_values(X), atol=1e-12)
    assert np.array_equal(found["predict"], model.predict(X))
