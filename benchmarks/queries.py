"""Regression, classification and imputation by a density, beside estimators made for them.

    OMP_NUM_THREADS=1 python -m benchmarks.queries --data PATH [--parts regression ...] [--json F]

PATH holds `uci/wine.npz`, `tabular/<set>.npz` and `adbench/<set>.npz` (normal rows); others are
scikit-learn's.
Protocol: at most 1,500 rows are fitted and 500 others scored, three random splits; settings of ours
are defaults, which were not chosen on these sets.

`regression`: the target is that of the set, or the last column of numbers of many values. CRPS is
the mean over 19 quantiles of twice the pinball loss, RMSE (of peers, that of the mean of their
quantiles) and CRPS in standard deviations of y; NLL is of p(y given x) in nats, of peers that have
a density; coverage is that of 90 % intervals (`conformal`: with `conformal=0.25`). Peers:
`HistGradientBoostingRegressor(loss="quantile")` for each quantile, linear regression with normal
errors, and 20 nearest neighbours' quantiles; where they are installed, NGBoost (normal
distributions) and a quantile forest (leaves of five rows). `missing`: the same with 30 % of the
entries of X missing in new rows alone; the trees of quantiles see NaN, the others the training
means.

`classification`: log loss and accuracy of `DensityClassifier()`.

`imputation`: 20 and 50 % of the entries of all rows missing at random; RMSE of the missing ones in
standard deviations of their columns, transductive; coverage of 90 % intervals from 40 draws.

`mixed_imputation`: the same of six tables of numbers and a category, the class of each row, also
with entries that are missing more often where the first column, which is known, is large; RMSE of
numbers and accuracy of the category. Peers see an indicator of each level.

`mixed`: nats of one half of these six tables, and of the five of `benchmarks.mixed_columns`, under
densities of the other half, complete and with 20 % of its entries missing: `TractableDensity()`,
and its gain over latent classes, whose numbers are independent within a class; with the standard
error over rows, and the least likely row of each.

`incomplete`: held-out nats of `TractableDensity` fitted to rows with 20 % missing entries, less
those of one fitted to the complete rows alone, and to rows imputed by column means; with the
standard error over rows.

`cost`: CPU seconds of `predict_column` and `quantile` for 10,000 rows of 10 columns, complete and
with 30 % of the entries missing, after a fit to 1,500 rows of two bent clusters; those of trees are
measured on 300 rows and multiplied, which is too much where rows that miss the same share work.

`calibration`: answers of small random models of each family against sums over all states and
quadrature of `score_samples`: largest error of those that are exact (log-likelihoods in nats, means
in standard deviations, or one if that is more), and the root mean square of the others in their
standard errors: of marginals, of means of a column and of means of 400 draws.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logsumexp, softmax
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import mixed_columns
from benchmarks._common import table, write
from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    DensityClassifier,
    DensityRegressor,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TractableDensity,
)
from skebm.energies import MLP

Q = np.arange(1, 20) / 20
N_TRAIN, N_TEST, N_SPLITS = 1500, 500, 3


def regression_sets(data: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Names, rows and targets."""
    yield "diabetes", *load_diabetes(return_X_y=True)
    wine = np.load(data / "uci" / "wine.npz")
    for name in ("redwine", "whitewine"):
        X = wine[name].astype(float)
        yield f"{name}, alcohol", np.delete(X, 10, 1), X[:, 10]
        yield f"{name}, density", np.delete(X, 7, 1), X[:, 7]
    X = load_breast_cancer().data[:, :10]
    yield "breast cancer, area", np.delete(X, [0, 2, 3], 1), X[:, 3]
    yield "wine, proline", *np.split(load_wine().data, [12], 1)
    for name in ("banknote", "phoneme"):
        found = np.load(data / "tabular" / f"{name}.npz")["X"].astype(float)
        yield f"{name}, last", found[:, :-1], found[:, -1]
    for path in sorted((data / "adbench").glob("*.npz")):
        if path.stem.split("_")[-1] in ("cardio", "PageBlocks", "mammography"):
            found = np.load(path)
            X = found["X"][found["y"] == 0].astype(float)
            X = X[:, [len(np.unique(c)) > 30 for c in X.T]][:, :10]
            yield f"{path.stem}, last", X[:, :-1], X[:, -1]


def splits(n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit and rows to score."""
    for seed in range(N_SPLITS):
        order = np.random.RandomState(seed).permutation(n)
        n_test = min(N_TEST, n // 4)
        yield order[n_test : n_test + N_TRAIN], order[:n_test]


def pinball(y: np.ndarray, quantiles: np.ndarray) -> float:
    """CRPS of 19 quantiles, (n, 19)."""
    off = y[:, None] - quantiles
    return float(2 * np.maximum(Q * off, (Q - 1) * off).mean())


def coverage(y: np.ndarray, quantiles: np.ndarray) -> float:
    """Share of the targets between the 5 % and the 95 % quantile."""
    return float(((y >= quantiles[:, 0]) & (y <= quantiles[:, -1])).mean())


def with_holes(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Rows with missing entries, at least one known in each."""
    random = np.random.RandomState(seed)
    holes = random.random_sample(X.shape) < share
    holes[np.arange(len(X)), random.randint(X.shape[1], size=len(X))] = False
    return np.where(holes, np.nan, X)


class Peer(NamedTuple):
    """A fitted estimator of others: 19 quantiles of rows, (n, 19), and log-densities of targets."""

    quantiles: Callable[[np.ndarray], np.ndarray]
    log_density: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


def by_trees(X: np.ndarray, y: np.ndarray) -> Peer:
    models = [HistGradientBoostingRegressor(loss="quantile", quantile=q).fit(X, y) for q in Q]
    return Peer(lambda new: np.sort(np.stack([m.predict(new) for m in models], 1), 1))


def by_line(X: np.ndarray, y: np.ndarray) -> Peer:
    from scipy.stats import norm

    means = X.mean(0)
    model = LinearRegression().fit(X, y)
    scale = float(np.std(y - model.predict(X)))

    def quantiles(new: np.ndarray) -> np.ndarray:
        filled = np.where(np.isnan(new), means, new)
        found: np.ndarray = model.predict(filled)[:, None] + scale * norm.ppf(Q)
        return found

    return Peer(quantiles, lambda new, target: norm.logpdf(target, model.predict(new), scale))


def by_neighbours(X: np.ndarray, y: np.ndarray) -> Peer:
    scaler = StandardScaler().fit(X)
    near = NearestNeighbors(n_neighbors=20).fit(scaler.transform(X))

    def quantiles(new: np.ndarray) -> np.ndarray:
        index = near.kneighbors(np.nan_to_num(scaler.transform(new)), return_distance=False)
        return np.quantile(y[index], Q, axis=1).T

    return Peer(quantiles)


def by_boosted_normals(X: np.ndarray, y: np.ndarray) -> Peer:
    from ngboost import NGBRegressor

    means = X.mean(0)
    model = NGBRegressor(verbose=False, random_state=0).fit(X, y)

    def quantiles(new: np.ndarray) -> np.ndarray:
        normal = model.pred_dist(np.where(np.isnan(new), means, new))
        return np.stack([normal.ppf(q) for q in Q], 1)

    return Peer(quantiles, lambda new, target: model.pred_dist(new).logpdf(target))


def by_forest(X: np.ndarray, y: np.ndarray) -> Peer:
    from quantile_forest import RandomForestQuantileRegressor

    means = X.mean(0)
    kind: dict[str, Any] = {"min_samples_leaf": 5, "random_state": 0}
    model = RandomForestQuantileRegressor(**kind).fit(X, y)

    def quantiles(new: np.ndarray) -> np.ndarray:
        filled = np.where(np.isnan(new), means, new)
        found: np.ndarray = model.predict(filled, quantiles=Q.tolist())
        return found

    return Peer(quantiles)


PEERS = {"trees": by_trees, "line": by_line, "20 neighbours": by_neighbours}
if importlib.util.find_spec("ngboost") is not None:
    PEERS["NGBoost"] = by_boosted_normals
if importlib.util.find_spec("quantile_forest") is not None:
    PEERS["quantile forest"] = by_forest


def regression(data: Path) -> list[dict[str, Any]]:
    """One row for each set: ours and the peers, complete and with missing entries."""
    rows = []
    for name, X, y in regression_sets(data):
        y = np.asarray(y).ravel()
        cells: dict[str, list[float]] = {}
        for train, test in splits(len(y)):
            unit = y[train].std()
            new, holes = X[test], with_holes(X[test], 0.3, 0)

            def note(key: str, value: float, cells: dict[str, list[float]] = cells) -> None:
                cells.setdefault(key, []).append(value)

            started = time.process_time()
            ours = DensityRegressor(random_state=0).fit(X[train], y[train])
            found = ours.predict_quantiles(new, Q)
            note("seconds", time.process_time() - started)
            note("CRPS", pinball(y[test], found) / unit)
            lost = ours.predict_quantiles(holes, Q)
            note("CRPS, missing", pinball(y[test], lost) / unit)
            note("coverage, missing", coverage(y[test], lost))
            note("RMSE", float(np.sqrt(np.mean((ours.predict(new) - y[test]) ** 2))) / unit)
            note("NLL", -float(ours.log_likelihood(new, y[test]).mean()))
            note("coverage", coverage(y[test], found))
            held = DensityRegressor(conformal=0.25, random_state=0).fit(X[train], y[train])
            note("conformal", coverage(y[test], held.predict_interval(new, 0.9)))
            note("conformal, missing", coverage(y[test], held.predict_interval(holes, 0.9)))
            for peer, fit in PEERS.items():
                fitted = fit(X[train], y[train])
                at = fitted.quantiles(new)
                note(f"CRPS {peer}", pinball(y[test], at) / unit)
                note(f"CRPS {peer}, missing", pinball(y[test], fitted.quantiles(holes)) / unit)
                note(f"coverage {peer}", coverage(y[test], at))
                note(f"RMSE {peer}", float(np.sqrt(np.mean((at.mean(1) - y[test]) ** 2))) / unit)
                if fitted.log_density is not None:
                    note(f"NLL {peer}", -float(fitted.log_density(new, y[test]).mean()))
        rows.append({"set": f"{name}, {X.shape[1]} columns"} | means_of(cells))
        print(rows[-1], flush=True)
    return rows


def means_of(cells: dict[str, list[float]]) -> dict[str, str]:
    """Means over splits."""
    return {key: f"{np.mean(values):.3f}" for key, values in cells.items()}


def classification(data: Path) -> list[dict[str, Any]]:
    """One row for each set."""
    wine = np.load(data / "uci" / "wine.npz")["redwine"].astype(float)
    sets = {
        "wine": load_wine(return_X_y=True),
        "iris": load_iris(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "digits, 64 columns": load_digits(return_X_y=True),
        "redwine, quality above 5": (wine[:, :11], (wine[:, 11] > 5).astype(int)),
        "diabetes, above the median": load_diabetes(return_X_y=True),
    }
    rows = []
    for name, (X, y) in sets.items():
        y = (y > np.median(y)).astype(int) if name.startswith("diabetes") else y
        models = {
            "ours": DensityClassifier(random_state=0),
            "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
            "trees": HistGradientBoostingClassifier(random_state=0),
            "QDA": QuadraticDiscriminantAnalysis(reg_param=0.1),
            "naive Bayes": GaussianNB(),
        }
        cells: dict[str, list[float]] = {}
        for train, test in splits(len(y)):
            for key, model in models.items():
                p = model.fit(X[train], y[train]).predict_proba(X[test])
                loss = log_loss(y[test], p, labels=np.unique(y))
                cells.setdefault(f"{key}, NLL", []).append(loss)
                right = accuracy_score(y[test], model.classes_[p.argmax(1)])
                cells.setdefault(f"{key}, accuracy", []).append(right)
        rows.append({"set": name} | means_of(cells))
        print(rows[-1], flush=True)
    return rows


def imputation(data: Path) -> list[dict[str, Any]]:
    """One row for each set and share of missing entries."""
    rows = []
    for name, X, _ in regression_sets(data):
        X = (X - X.mean(0)) / X.std(0)
        X = X[np.random.RandomState(0).permutation(len(X))[:1000]]
        for share in (0.2, 0.5):
            holes = with_holes(X, share, 1)
            lost = np.isnan(holes)
            model = TractableDensity(random_state=0).fit(holes)
            made = {
                "ours": model.impute(holes, 0, how="mean"),
                "iterative": IterativeImputer(random_state=0).fit_transform(holes),
                "neighbours": KNNImputer().fit_transform(holes),
                "means": SimpleImputer().fit_transform(holes),
            }
            row: dict[str, Any] = {"set": name, "missing": f"{share:.0%}"}
            for key, filled in made.items():
                row[key] = f"{np.sqrt(np.mean((filled - X)[lost] ** 2)):.3f}"
            draws = np.stack(model.impute(holes, 0, n_draws=40))
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            row["coverage"] = f"{((low <= X) & (high >= X))[lost].mean():.3f}"
            rows.append(row)
            print(row, flush=True)
    return rows


def mixed_sets(data: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Frames of numbers and a category, the class of each row."""
    for name, load in (
        ("iris", load_iris),
        ("wine", load_wine),
        ("breast cancer", load_breast_cancer),
    ):
        X, y = load(return_X_y=True)
        yield name, frame_of(X[:, :10], y)
    wine = np.load(data / "uci" / "wine.npz")["redwine"].astype(float)
    yield "redwine, quality", frame_of(wine[:, :11], wine[:, 11].astype(int))
    for name in ("banknote", "wheat_seeds"):
        found = np.load(data / "tabular" / f"{name}.npz")
        yield name, frame_of(found["X"].astype(float), found["y"].astype(int))


def frame_of(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """At most 1,000 standardised rows, and their class as text."""
    order = np.random.RandomState(0).permutation(len(X))[:1000]
    X = (X - X.mean(0)) / X.std(0)
    frame = pd.DataFrame(X[order], columns=[f"x{j}" for j in range(X.shape[1])])
    return frame.assign(kind=[f"level {k}" for k in y[order]])


def holes_at(frame: pd.DataFrame, share: float, how: str) -> np.ndarray:
    """Entries that are missing: at random (MCAR), or more often where column 0 is large (MAR)."""
    random = np.random.RandomState(1)
    p = np.full(len(frame), share)
    if how == "MAR":
        rank = frame.iloc[:, 0].rank().to_numpy() / len(frame)
        p = share * (0.5 + rank)
    lost = random.random_sample(frame.shape) < p[:, None]
    lost[np.arange(len(lost)), random.randint(1, lost.shape[1], len(lost))] = False
    if how == "MAR":
        lost[:, 0] = False
    return lost


def by_peers(holes: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Frames filled in by scikit-learn's imputers, with indicators of the levels as numbers."""
    levels = sorted(holes["kind"].dropna().unique())
    numbers = holes.drop(columns="kind").to_numpy()
    one_hot = np.stack([(holes["kind"] == level) for level in levels], 1).astype(float)
    one_hot[holes["kind"].isna()] = np.nan
    # All of them add up to one: regressions on the others would stay where they start.
    both = np.hstack([numbers, one_hot[:, 1:]])
    for name, imputer in (
        ("iterative", IterativeImputer(random_state=0)),
        ("neighbours", KNNImputer()),
        ("most frequent", SimpleImputer()),
    ):
        filled = imputer.fit_transform(both)
        d = numbers.shape[1]
        frame = pd.DataFrame(filled[:, :d], columns=holes.columns[:d])
        rest = np.hstack([1 - filled[:, d:].sum(1, keepdims=True), filled[:, d:]])
        yield name, frame.assign(kind=np.array(levels)[rest.argmax(1)])


def mixed_imputation(data: Path) -> list[dict[str, Any]]:
    """One row for each set, share and mechanism."""
    rows = []
    for name, frame in mixed_sets(data):
        for share, how in ((0.2, "MCAR"), (0.2, "MAR"), (0.5, "MCAR"), (0.5, "MAR")):
            lost = holes_at(frame, share, how)
            holes = frame.mask(lost)
            model = TractableDensity(random_state=0).fit(holes)
            made = [("ours", model.impute(holes, 0, how="mean")), *by_peers(holes)]
            row: dict[str, Any] = {"set": name, "missing": f"{share:.0%}, {how}"}
            truth, numbers = frame.to_numpy()[:, :-1].astype(float), lost[:, :-1]
            for key, filled in made:
                off = filled.to_numpy()[:, :-1].astype(float) - truth
                right = (filled["kind"].to_numpy() == frame["kind"].to_numpy())[lost[:, -1]]
                error = np.sqrt(np.mean(off[numbers] ** 2))
                row[key] = f"{error:.3f} / {right.mean():.3f}"
            draws = [d.to_numpy()[:, :-1].astype(float) for d in model.impute(holes, 0, n_draws=40)]
            low, high = np.quantile(np.stack(draws), [0.05, 0.95], axis=0)
            row["coverage"] = f"{((low <= truth) & (truth <= high))[numbers].mean():.3f}"
            rows.append(row)
            print(row, flush=True)
    return rows


def mixed(data: Path) -> list[dict[str, Any]]:
    """One row for each table."""
    tables = {name: (frame[::2], frame[1::2]) for name, frame in mixed_sets(data)}
    tables |= {
        name: mixed_columns.halves(mixed_columns.frame(data, name)) for name in mixed_columns.MIXED
    }
    rows = []
    for name, (train, test) in tables.items():
        row: dict[str, Any] = {"set": f"{name}, {len(train)} x {train.shape[1]}"}
        holes = train.mask(holes_at(train, 0.2, "MCAR"))
        for key, fitted in {"complete": train, "20 % missing": holes}.items():
            nats = TractableDensity(random_state=0).fit(fitted).score_samples(test)
            classes = RBMEstimator(base="latent-classes", n_iter=0, random_state=0).fit(fitted)
            others = classes.score_samples(test)
            gain = nats - others
            row[key] = f"{nats.mean():.3f}"
            row[f"{key}: gain"] = f"{gain.mean():+.3f} ({gain.std() / len(gain) ** 0.5:.3f})"
            row[f"{key}: least likely rows"] = f"{nats.min():.0f}, {others.min():.0f}"
        rows.append(row)
        print(row, flush=True)
    return rows


def incomplete(data: Path) -> list[dict[str, Any]]:
    """One row for each set."""
    rows = []
    for name, X, _ in regression_sets(data):
        train, test = next(splits(len(X)))
        holes = with_holes(X[train], 0.2, 1)
        ours = TractableDensity(random_state=0).fit(holes).score_samples(X[test])
        whole = holes[~np.isnan(holes).any(1)]
        filled = SimpleImputer().fit_transform(holes)
        row: dict[str, Any] = {"set": name, "complete rows": len(whole), "nats": ours.mean()}
        others = {
            "over complete rows": whole,
            "over imputed rows": filled,
            "less all known": X[train],
        }
        for key, table_ in others.items():
            if len(table_) < 5:
                row[key] = "none"
                continue
            gain = ours - TractableDensity(random_state=0).fit(table_).score_samples(X[test])
            row[key] = f"{gain.mean():+.2f} ({gain.std() / len(gain) ** 0.5:.2f})"
        rows.append(row)
        print(row, flush=True)
    return rows


def cost(data: Path) -> list[dict[str, Any]]:
    """One row for each density."""
    random = np.random.RandomState(0)
    X = random.normal(size=(N_TRAIN + 10_000, 10)) @ random.normal(size=(10, 10)) / 2
    X += np.where(random.random_sample((len(X), 1)) < 0.5, 2.0, -2.0)
    X[:, 1::2] += X[:, ::2] ** 2 / 4
    rows = []
    asked_of = ((TractableDensity, 10_000), (ScoreMatchingDensity, 10_000), (BoostedDensity, 300))
    for kind, n in asked_of:
        new = X[N_TRAIN : N_TRAIN + n]
        started = time.process_time()
        model = kind(random_state=0).fit(X[:N_TRAIN])
        row: dict[str, Any] = {
            "density": kind.__name__,
            "fit": f"{time.process_time() - started:.1f}",
        }
        for key, asked, method, more in (
            ("complete rows", new, model.predict_column, ()),
            ("missing entries", with_holes(new, 0.3, 1), model.predict_column, ()),
            ("quantiles, complete rows", new, model.quantile, ([0.1, 0.9],)),
        ):
            started = time.process_time()
            method(asked, 0, *more)
            row[key] = f"{(time.process_time() - started) * 10_000 / n:.1f}"
        rows.append(row)
        print(row, flush=True)
    return rows


BITS, NUMBERS, N_MODELS, N_DRAWS = 5, 3, 10, 400
ASKED = ("exact", "marginals", "means", "draws")
# Asked rows, and draws of each; ends of numbers whose densities are integrated.
N_ASKED = 3
ENDS = (-25.0, 25.0)
# Standard errors of less are none: draws of a model that is its base have equal weights.
LEAST_ERROR = 1e-9


def calibrated_models(seed: int) -> Iterator[tuple[str, str, Any]]:
    """Kinds of rows, names and untrained models, which are small."""
    few: dict[str, Any] = {"n_iter": 10, "random_state": seed, "dtype": "float64"}
    small = few | {"network": MLP((8,))}
    boltzmann = BoltzmannMachineDensity(l2=0.01, random_state=seed, dtype="float64")
    yield "bits", "BoltzmannMachineDensity", boltzmann
    yield "bits", "ContrastiveDivergenceDensity", ContrastiveDivergenceDensity(**small)
    yield "bits", "DeepBoltzmannMachine", DeepBoltzmannMachine((3, 2), **few)
    yield "bits", "NCEDensity", NCEDensity(**small)
    yield "bits", "RBMClassifier", RBMClassifier(3, objective="hybrid", **few)
    yield "bits", "RBMEstimator", RBMEstimator(3, **few)
    yield "bits", "SubspaceRBM", SubspaceRBM(2, 2, **few)
    yield "bits", "TractableDensity, frames", TractableDensity(random_state=seed)
    yield "numbers", "BoostedDensity", BoostedDensity("gaussian", **few)
    flow = FlowContrastiveDensity(flow="maf", n_flow_steps=3, **small | {"n_iter": 1})
    yield "numbers", "FlowContrastiveDensity", flow
    yield "numbers", "JEMClassifier", JEMClassifier(**small)
    yield "numbers", "ProductOfDensities", ProductOfDensities(random_state=seed)
    yield "numbers", "ScoreMatchingDensity", ScoreMatchingDensity(**small)
    yield "numbers", "SpikeSlabRBM", SpikeSlabRBM(2, **few)
    yield "numbers", "TractableDensity", TractableDensity(random_state=seed)
    yield "mixed", "TractableDensity", TractableDensity(random_state=seed)
    latent = RBMEstimator(3, base="latent-classes", **few)
    yield "mixed", "RBMEstimator", latent


def random_rows(kind: str, seed: int, n: int = 300) -> Any:
    """Dependent bits or numbers, or a frame of three bits and a number."""
    random = np.random.RandomState(seed)
    score = random.normal(size=(n, 2)) @ random.normal(size=(2, BITS))
    bits = (score + random.normal(size=(n, BITS)) > 0).astype(float)
    numbers = random.normal(size=(n, NUMBERS)) @ random.normal(size=(NUMBERS, NUMBERS))
    numbers[:, 1] += numbers[:, 0] ** 2 / 2
    numbers /= numbers.std(0)
    if kind == "numbers":
        return numbers
    if kind == "bits":
        return bits
    frame = pd.DataFrame(bits[:, :3] > 0, columns=["a", "b", "c"])
    return frame.assign(size=score[:, 0] + bits[:, 0])


def nodes_between(edges: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss's rule in each of some cells."""
    t, w = np.polynomial.legendre.leggauss(n_nodes)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + t)).ravel(), (half * w).ravel()


def values_of(model: Any, kind: str, j: int, n_missing: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column and their weights in a sum or an integral."""
    if kind == "bits" or kind == "mixed" and j < 3:
        return np.array([0.0, 1.0]), np.ones(2)
    jumps = np.zeros(0)
    if getattr(model, "energy_", None) is not None and kind == "numbers":
        units = model._query_table.entries_of(j)[0].units
        jumps = model.energy_.discontinuities(j).numpy() * units.scale[j] + units.centre[j]
    if n_missing > 1 and kind == "numbers":  # the square of as many
        near, far = np.linspace(-4, 5, 73), np.linspace(-12, 16, 29)  # narrow components are near
        return nodes_between(np.unique(np.concatenate([near, far, jumps])), 6)
    return nodes_between(np.unique(np.concatenate([np.linspace(*ENDS, 501), jumps])), 8)


def with_values(rows: Any, columns: list[int], values: np.ndarray) -> Any:
    """A row as often as there are values (m, k) of its columns."""
    if isinstance(rows, np.ndarray):
        full = np.repeat(rows, len(values), 0)
        full[:, columns] = values
        return full
    full = rows.loc[rows.index.repeat(len(values))].reset_index(drop=True)
    for j, column in zip(columns, values.T, strict=True):
        full.isetitem(j, column)
    return full.astype({name: float if name == "size" else bool for name in full})


def without(rows: Any, columns: list[int]) -> Any:
    """Rows of which some columns are missing."""
    if isinstance(rows, np.ndarray):
        found = rows.copy()
        found[:, columns] = np.nan
        return found
    found = rows.astype({name: float if name == "size" else object for name in rows})
    for j in columns:
        found.isetitem(j, np.full(len(found), np.nan if rows.columns[j] == "size" else None))
    return found


def calibration_of(kind: str, model: Any, seed: int) -> Iterator[tuple[str, float]]:
    """Errors of exact answers, and those of others in standard errors, with what was asked."""
    X = random_rows(kind, seed)
    y = ((X[:, 0] > 0).astype(int),) if is_classifier(model) else ()
    asked = X[:N_ASKED]
    if kind == "bits" and isinstance(model, TractableDensity):
        X, asked = (pd.DataFrame(part, columns=list("abcde")) > 0 for part in (X, asked))
    model.fit(X, *y)
    random = np.random.RandomState(seed)  # one seed for all questions would give like draws
    for columns in ([1], [1, 2], [0, 2, 3]):
        if max(columns) >= np.shape(X)[1]:
            continue
        holes = without(asked, columns)
        marginals = model.log_marginal(holes)
        for i in range(N_ASKED if kind != "numbers" or len(columns) == 1 else 1):
            axes = [values_of(model, kind, j, len(columns)) for j in columns]
            grid = [np.meshgrid(*part, indexing="ij") for part in zip(*axes, strict=True)]
            values, weights = (np.stack([a.ravel() for a in part], 1) for part in grid)
            full = with_values(asked[i : i + 1], columns, values)
            log_p = model.score_samples(full).astype(float) + np.log(weights).sum(1)
            off = marginals.log_prob[i] - logsumexp(log_p)
            if marginals.std_error[i] < LEAST_ERROR:
                yield "exact", abs(off)
            else:
                yield "marginals", off / marginals.std_error[i]
            row, p = holes[i : i + 1], softmax(log_p)
            yield from of_columns(model, row, columns, values, p, random.randint(2**31))


def of_columns(
    model: Any, row: Any, columns: list[int], values: np.ndarray, p: np.ndarray, seed: int
) -> Iterator[tuple[str, float]]:
    """The same of the columns of a row, given the other ones, and of draws."""
    many = row.repeat(N_DRAWS, 0) if isinstance(row, np.ndarray) else pd.concat([row] * N_DRAWS)
    drawn = np.asarray(model.impute(many, seed))[:, columns].astype(float)
    for k, j in enumerate(columns):
        mean = p @ values[:, k]
        std = np.sqrt(p @ (values[:, k] - mean) ** 2)
        if N_DRAWS * std**2 > 10:  # where means of draws are about normal
            yield "draws", (drawn[:, k].mean() - mean) / std * N_DRAWS**0.5
        found = model.conditional(row, j)
        of_levels = getattr(found, "probabilities", None)
        answer = found.mean()[0] if of_levels is None else of_levels[0, 1]
        if found.mean_error()[0] > LEAST_ERROR:
            yield "means", (answer - mean) / found.mean_error()[0]
        else:
            yield "exact", abs(answer - mean) / max(std, 1.0)


def calibration(_: Path) -> list[dict[str, Any]]:
    """One row for each density."""
    errors: dict[str, dict[str, list[float]]] = {}
    for seed in range(N_MODELS):
        for kind, name, model in calibrated_models(seed):
            found = errors.setdefault(f"{name}, {kind}", {key: [] for key in ASKED})
            try:
                for key, value in calibration_of(kind, model, seed):
                    found[key].append(value)
            except ValueError as error:
                if "no finite integral" not in str(error):
                    raise
                print(f"{name}, seed {seed}: no log Z, so nothing is asked", flush=True)
    rows = []
    for name, found in errors.items():
        row = {"density": name, "exact": f"{max(found['exact']):.1e}" if found["exact"] else ""}
        for key in ASKED[1:]:
            z = np.array(found[key])
            row[f"z, {key}"] = f"{np.sqrt(np.mean(z**2)):.2f} ({len(z)})" if len(z) else ""
        rows.append(row)
        print(row, flush=True)
    return rows


PARTS = {
    "regression": regression,
    "classification": classification,
    "imputation": imputation,
    "mixed_imputation": mixed_imputation,
    "mixed": mixed,
    "incomplete": incomplete,
    "cost": cost,
    "calibration": calibration,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    for part in args.parts:
        found[part] = PARTS[part](args.data)
        print(f"\n## {part}\n\n{table(found[part])}\n", flush=True)
    if args.json:
        write(args.json, found)


if __name__ == "__main__":
    main()
