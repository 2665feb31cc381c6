"""RBMs on tables of numbers, categories and bits: held-out likelihood and imputation.

    OMP_NUM_THREADS=1 python -m benchmarks.mixed_columns --data PATH [--table levels] [--json F]

PATH holds `adbench/<set>.npz` (normal rows), `uci/wine.npz` and `debd/<set>.npz`. Protocol of
`likelihood`: of shuffled rows (seed 0) at most 2,000 are fitted and 2,000 others scored. Mixed
tables: columns in turn stay numbers, become four categories by quartiles, or bits by the median;
ties make fewer levels. Numbers are standardised by the fitted rows. Nats of a row, by the end of
log Z that hurts, with the standard error of the difference to our RBM.

`latent classes`: a mixture whose components are products of normal, categorical and Bernoulli
columns, by EM from k-means, 1 to 50 components by BIC. `full`, `factors`: one normal distribution,
factor analysis, with shrinkage and number of factors by five folds; of numbers only. `measured` is
the same on Frey faces, digits (pixels with uniform noise) and wine, of which half is fitted.

Protocol of `imputation`: a fifth or half of the entries of 500 scored rows, at random, are taken
out, and all methods are fitted to complete rows. Errors are mean squares of numbers in standard
deviations, and shares of wrong levels of bits and categories. scikit-learn's `KNNImputer` with 5,
10 or 20 neighbours and `IterativeImputer` with ridge or histogram boosting are chosen on a fifth
of the fitted rows; categories are one-hot for them, and the largest entry is taken. Where columns
are numbers, the share of lost ones within 90 % intervals of 100 imputations.

Protocol of `levels`: two binary sets whose bits are one-hot codes, as categories; fitted to train,
scored on test with the end of log Z that hurts. All zeros of dna are the fourth base.

Protocol of `simulated`: 10,000 rows (`--rows`) of twelve columns, six numbers with tails and
counts, three columns of text and three of bits, of five groups (`simulated`), of which a twentieth
of the entries is missing; 2,000 complete rows are scored. Beside the default RBM are its bases
alone, fitted to the same rows with holes: independent columns and latent classes. `worst row` is
the least difference to one normal distribution of the numbers with the moments of the fitted rows,
times the frequencies of levels, in nats.

Protocol of `holes`: default fits to the train part, whole and with a fifth of its entries missing
at random; whole test rows are scored. The loss is paired, with its standard error.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.covariance import EmpiricalCovariance, ShrunkCovariance
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import FactorAnalysis
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV

from benchmarks import density
from benchmarks._common import shown, write
from skebm import RBMEstimator

MOST_ROWS = 2000
MIXED = ("2_annthyroid", "22_magic.gamma", "10_cover", "40_vowels", "47_yeast")
NUMBERS = ("redwine", "40_vowels", "29_Pima", "22_magic.gamma")
DEQUANTISED = {"faces": 256, "digits": 17, "wine": None}
IMPUTED = ("redwine", "40_vowels", "40_vowels, levels", "22_magic.gamma, levels", "nltcs", "plants")


def load(data: Path, name: str) -> np.ndarray:
    """Rows of a set, shuffled."""
    if name == "redwine":
        X = np.unique(np.load(data / "uci" / "wine.npz")["redwine"][:, :-1], axis=0)
    elif name in DEQUANTISED:
        X = measured(data, name)
    elif (data / "debd" / f"{name}.npz").is_file():
        content = np.load(data / "debd" / f"{name}.npz")
        X = np.unpackbits(content["train"], axis=1)[:, : int(content["d"])]
    else:
        content = np.load(data / "adbench" / f"{name}.npz")
        X = content["X"][content["y"] == 0]
    return X[np.random.default_rng(0).permutation(len(X))].astype(float)


def measured(data: Path, name: str) -> np.ndarray:
    """Frey faces, digits and wine, pixels with uniform noise of one grey level."""
    if name == "faces":
        found: np.ndarray = np.load(data / "images" / "freyfaces.npz")["X"].reshape(-1, 560)
    else:
        found = {"digits": load_digits, "wine": load_wine}[name]().data
    if DEQUANTISED[name]:
        found = found + np.random.default_rng(0).random(found.shape)
    return found


def frame(data: Path, name: str) -> pd.DataFrame:
    """The mixed table of a set; ``", levels"`` has categories only."""
    name, _, only = name.partition(", ")
    X = load(data, name)[: 2 * MOST_ROWS]
    kinds = ("category",) if only else ("number", "category", "bit")
    columns = {}
    for j, x in enumerate(X.T):
        kind = kinds[j % len(kinds)]
        if kind == "number" and len(np.unique(x)) > 20:
            columns[f"x{j}"] = x
        elif kind == "bit":
            columns[f"x{j}"] = (x > np.median(x)).astype(float)
        else:
            bins = np.unique(np.quantile(x, [0.25, 0.5, 0.75]))
            levels = np.array(["a", "b", "c", "d"])[np.searchsorted(bins, x)]
            columns[f"x{j}"] = pd.Categorical(levels)
    return pd.DataFrame(columns)


def numbers(data: Path, name: str) -> pd.DataFrame:
    """A table of numbers, or of bits, as it is."""
    return pd.DataFrame(load(data, name)[: 2 * MOST_ROWS])


def halves(X: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fitted and scored rows, numbers standardised by the former."""
    n = min(MOST_ROWS, len(X) // 2)
    train, test = X.iloc[:n].reset_index(drop=True), X.iloc[n : 2 * n].reset_index(drop=True)
    for name in X.columns:
        if X[name].dtype == float and X[name].nunique() > 2:
            mean, scale = train[name].mean(), train[name].std(ddof=0)
            train[name], test[name] = (train[name] - mean) / scale, (test[name] - mean) / scale
    return train, test


def one_hot(X: pd.DataFrame) -> tuple[np.ndarray, list[int]]:
    """Numbers, and one-hot codes of categories, nan where missing; number of entries of columns."""
    blocks, sizes = [], []
    for name in X.columns:
        x = X[name]
        if isinstance(x.dtype, pd.CategoricalDtype):
            code = x.cat.codes.to_numpy()
            block = np.eye(len(x.cat.categories))[code]
            block[code < 0] = np.nan
        else:
            block = x.to_numpy(float)[:, None]
        blocks.append(block)
        sizes.append(block.shape[1])
    return np.concatenate(blocks, 1), sizes


class LatentClasses:
    """A mixture of products of columns, of the number of components that BIC prefers."""

    def fit(self, X: pd.DataFrame) -> LatentClasses:
        x, sizes = one_hot(X)
        starts = np.cumsum([0, *sizes])[:-1]
        real = [k == 1 and len(np.unique(x[:, s])) > 2 for k, s in zip(sizes, starts, strict=True)]
        self.real = np.repeat(real, sizes)
        self.bit = np.repeat([k == 1 for k in sizes], sizes) & ~self.real
        found = [self._em(x, k) for k in (1, 2, 3, 5, 8, 12, 20, 30, 50)]
        self.parameters, _ = min(found, key=lambda one: one[1])
        return self

    def _em(self, x: np.ndarray, k: int) -> tuple[Any, float]:
        n, d = x.shape
        r = np.eye(k)[KMeans(k, n_init=3, random_state=0).fit_predict(x)]
        old = -np.inf
        for _ in range(500):
            weight = r.sum(0) + 1e-9
            mean = (r.T @ x + 0.5 / max(k, 2)) / (weight[:, None] + 1)
            mean[:, self.real] = (r.T @ x / weight[:, None])[:, self.real]
            variance = r.T @ x**2 / weight[:, None] - mean**2
            variance = np.maximum(variance, 1e-3)
            self.parameters = (weight + 1) / (n + k), mean, variance
            logs = self._joint(x)
            value = np.logaddexp.reduce(logs, 1)
            r = np.exp(logs - value[:, None])
            if value.mean() - old < 1e-5:
                break
            old = value.mean()
        n_free = k - 1 + k * (2 * self.real.sum() + (~self.real).sum())
        return self.parameters, -2 * value.sum() + n_free * np.log(n)

    def _joint(self, x: np.ndarray) -> np.ndarray:
        share, mean, variance = self.parameters
        logs = np.log(share) + np.zeros((len(x), 1))
        for j in range(x.shape[1]):
            z = x[:, j, None]
            if self.real[j]:
                logs = logs - (z - mean[:, j]) ** 2 / variance[:, j] / 2
                logs = logs - np.log(2 * np.pi * variance[:, j]) / 2
            else:
                p = mean[:, j].clip(1e-4, 1 - 1e-4)
                logs = logs + z * np.log(p) + (1 - z) * np.log1p(-p) * self.bit[j]
        return logs

    def score_samples(self, X: pd.DataFrame) -> np.ndarray:
        """Log-likelihoods in nats."""
        found: np.ndarray = np.logaddexp.reduce(self._joint(one_hot(X)[0]), 1)
        return found


class Full:
    """One normal distribution, its shrinkage by five folds."""

    def fit(self, X: pd.DataFrame) -> Full:
        shares = {"shrinkage": [0.0, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7]}
        self.model = GridSearchCV(ShrunkCovariance(), shares).fit(X.to_numpy()).best_estimator_
        return self

    def score_samples(self, X: pd.DataFrame) -> np.ndarray:
        """Log-likelihoods in nats."""
        z = self.model.mahalanobis(X.to_numpy())
        sign = np.linalg.slogdet(self.model.covariance_)[1]
        found: np.ndarray = -(z + sign + X.shape[1] * np.log(2 * np.pi)) / 2
        return found


def factors(train: pd.DataFrame) -> Any:
    """Factor analysis."""
    sizes = [k for k in (1, 2, 3, 4, 6, 8, 16, 32, 64) if k < train.shape[1]]
    return GridSearchCV(FactorAnalysis(random_state=0), {"n_components": sizes}).fit(train)


def pessimistic(model: Any, test: pd.DataFrame) -> np.ndarray:
    """Log-likelihoods by the end of log Z that hurts."""
    found: np.ndarray = getattr(model, "best_estimator_", model).score_samples(test)
    return found + (model.score(test) - found.mean()) if isinstance(model, RBMEstimator) else found


def likelihood(data: Path, name: str, *, mixed: bool) -> dict[str, Any]:
    """A row of the table of likelihoods."""
    train, test = halves(frame(data, name) if mixed else numbers(data, name))
    plain = RBMEstimator(base="independent", random_state=0)
    fits: dict[str, Any] = {
        "RBM": lambda: RBMEstimator(random_state=0).fit(train),
        "RBM, independent base": lambda: plain.fit(train),
        "independent": lambda: clone(plain).set_params(n_iter=0).fit(train),
        "latent classes": lambda: LatentClasses().fit(train),
    }
    if not mixed:
        full = RBMEstimator(base="gaussian", random_state=0)
        fits |= {"RBM, gaussian base": lambda: full.fit(train)}
        fits |= {"full": lambda: Full().fit(train), "factors": lambda: factors(train)}
    row: dict[str, Any] = {"set": name, "rows": len(train), "columns": train.shape[1]}
    ours = np.zeros(len(test))
    for label, fit in fits.items():
        started = time.perf_counter()
        model = fit()
        found = pessimistic(model, test)
        took = time.perf_counter() - started
        if label == "RBM":
            ours = found
        error = (found - ours).std() / len(test) ** 0.5
        row[label] = f"{found.mean():.2f}" + (f" ({error:.2f})" if label != "RBM" else "")
        if label == "RBM":
            chosen = f"{model.base_name_}, {model.n_components_}"
            row |= {"chosen": chosen, "seconds": f"{took:.0f}"}
    return row


# ------------------------------------------------------------------------------
# Imputation
# ------------------------------------------------------------------------------


def imputers() -> dict[str, Any]:
    """scikit-learn's, by name."""
    return {f"{k} neighbours": KNNImputer(n_neighbors=k) for k in (5, 10, 20)} | {
        "ridge": IterativeImputer(BayesianRidge(), random_state=0),
        "boosting": IterativeImputer(
            HistGradientBoostingRegressor(max_iter=50, random_state=0), max_iter=3, random_state=0
        ),
    }


def losses(truth: pd.DataFrame, filled: pd.DataFrame) -> np.ndarray:
    """Squares of numbers and whether levels are wrong, of all entries."""
    found = np.empty(truth.shape)
    for j, name in enumerate(truth.columns):
        if isinstance(truth[name].dtype, pd.CategoricalDtype):
            found[:, j] = truth[name].astype(str) != filled[name].astype(str)
        elif truth[name].nunique() == 2:
            found[:, j] = truth[name] != filled[name].round()
        else:
            found[:, j] = (truth[name] - filled[name]) ** 2
    return found


def errors(truth: pd.DataFrame, filled: pd.DataFrame, lost: np.ndarray) -> float:
    """Mean square of numbers and share of wrong levels, over the entries that were taken out."""
    return float(losses(truth, filled)[lost].mean())


def by_sklearn(model: Any, train: pd.DataFrame, holes: pd.DataFrame) -> pd.DataFrame:
    """Impute by a model of one-hot codes."""
    x, sizes = one_hot(train)
    z = model.fit(x).transform(one_hot(holes)[0])
    found, at = holes.copy(), 0
    for name, k in zip(holes.columns, sizes, strict=True):
        block, at = z[:, at : at + k], at + k
        if k == 1:
            found[name] = block[:, 0]
        else:
            levels = holes[name].cat.categories
            found[name] = pd.Categorical(levels[block.argmax(1)], categories=levels)
    return found


def imputation(data: Path, name: str, share: float) -> dict[str, Any]:
    """A row of the table of imputations."""
    levels = name.endswith("levels")
    train, test = halves(frame(data, name) if levels else numbers(data, name))
    test = test.iloc[:500]
    random = np.random.default_rng(1)
    lost = random.random(test.shape) < share
    holes = test.mask(lost)
    n_fit = 4 * len(train) // 5
    part, valid = train.iloc[:n_fit], train.iloc[n_fit:].iloc[:200]
    gone = random.random(valid.shape) < share
    trial = {
        label: errors(valid, by_sklearn(model, part, valid.mask(gone)), gone)
        for label, model in imputers().items()
    }
    best = min(trial, key=lambda label: trial[label])
    peer = errors(test, by_sklearn(imputers()[best], train, holes), lost)
    model = RBMEstimator(random_state=0).fit(train)
    ours = errors(test, means(model, holes), lost)
    kept = len(test) * test.shape[1] * share
    alone = RBMEstimator(base=model.base_name_, n_iter=0, random_state=0).fit(train)
    filled = errors(test, means(alone, holes), lost)
    known = model.score_samples(test) - model.score_samples(holes)
    return {
        "set": name,
        "missing": share,
        "base": model.base_name_,
        "RBM": f"{ours:.4f}",
        "its base": f"{filled:.4f}",
        "best of five": f"{peer:.4f}",
        "which": best,
        "nats of an entry": f"{known.sum() / kept:.3f}",
        "90 % intervals": coverage(model, test, holes, lost),
    }


def means(model: Any, holes: pd.DataFrame) -> pd.DataFrame:
    """Conditional means, and modes of categories, as a frame also where all columns are numbers."""
    found = model.impute(holes, how="mean", random_state=0, n_steps=400)
    return pd.DataFrame(found, columns=holes.columns, index=holes.index)


def coverage(model: Any, truth: pd.DataFrame, holes: pd.DataFrame, lost: np.ndarray) -> str:
    """Share of the lost numbers between the 5 % and 95 % quantiles of 100 imputations."""
    real = [j for j in range(truth.shape[1]) if truth.iloc[:, j].nunique() > 10]
    if not real or isinstance(truth.iloc[:, real[0]].dtype, pd.CategoricalDtype):
        return ""
    drawn = model.impute(holes, random_state=0, n_draws=100, n_steps=100)
    values = np.stack([np.asarray(x)[:, real].astype(float) for x in drawn])
    low, high = np.quantile(values, (0.05, 0.95), axis=0)
    inside = (truth.values[:, real] >= low) & (truth.values[:, real] <= high)
    return f"{inside[lost[:, real]].mean():.3f}"


# ------------------------------------------------------------------------------
# Bits that are levels
# ------------------------------------------------------------------------------

CODES = {
    "dna": (3,) * 60,
    "mushrooms": (6, 4, 10, 2, 9, 2, 2, 2, 12, 2, 4, 4, 9, 9, 1, 4, 3, 5, 9, 6, 7),
}


def of_bits(X: np.ndarray, name: str) -> pd.DataFrame:
    """The columns of a binary set as categories; all zeros are a level of their own."""
    blocks = np.split(X, np.cumsum(CODES[name])[:-1], axis=1)
    return pd.DataFrame(
        {f"x{j}": np.where(b.any(1), b.argmax(1), -1) for j, b in enumerate(blocks)}
    )


def one_hot_codes(data: Path, name: str) -> dict[str, Any]:
    """A row of the table of sets whose bits are one-hot codes."""
    train, _, test = (of_bits(X, name) for X in density.load(data, name))
    row: dict[str, Any] = {"set": name, "rows": len(train)}
    plain = RBMEstimator(categorical_features=list(train.columns), random_state=0)
    for label, more in (
        ("tree", {"n_components": 1, "base": "chow-liu", "n_iter": 0}),
        *((f"{h} units", {"n_components": h}) for h in (20, 64)),
        ("default", {}),
    ):
        model = clone(plain).set_params(**more)
        started = time.perf_counter()
        model.fit(train)
        took = time.perf_counter() - started
        value = f"{pessimistic(model, test).mean():.3f}"
        row[label] = f"{value} ({model.base_name_}, {model.n_components_}, {took:.0f} s)"
    return row


# ------------------------------------------------------------------------------
# Numbers, text and bits with holes
# ------------------------------------------------------------------------------


def simulated(n: int, seed: int = 0) -> pd.DataFrame:
    """Complete rows of twelve columns of people in five groups, unlike in size and in width."""
    r = np.random.default_rng(seed)
    group = r.choice(5, n, p=[0.35, 0.25, 0.2, 0.12, 0.08])
    centre = np.array([[0, 0, 0], [2, -1, 1], [-2, 1, 2], [1, 3, -1], [-1, -2, -3]])
    width = np.array([0.6, 0.9, 0.5, 1.2, 0.4])[group][:, None]
    u, tail = centre[group] + width * r.normal(size=(n, 3)), r.standard_t(3, (n, 2))
    cities, colours = np.array(["Berlin", "Hamburg", "Köln", "München"]), ["red", "green", "blue"]
    elsewhere = (r.random(n) < 0.2) * r.integers(0, 4, n)
    grade = np.clip(np.round(u[:, 2] + 2 + 0.5 * r.normal(size=n)), 0, 4).astype(int)
    columns = {
        "height": 170 + 8 * u[:, 0],
        "weight": 70 + 6 * u[:, 0] + 4 * u[:, 1] + 2 * tail[:, 0],
        "income": np.exp(7 + 0.5 * u[:, 1] + 0.5 * r.normal(size=n)),
        "visits": r.poisson(np.exp(0.5 * u[:, 2])).astype(float),
        "latency": u[:, 2] + 0.3 * tail[:, 1],
        "share": 1 / (1 + np.exp(-u[:, 0] - r.normal(size=n))),
        "city": cities[(group + elsewhere) % 4],
        "colour": np.array(colours)[np.digitize(u[:, 1] + r.normal(size=n), [-1, 1])],
        "grade": np.array(list("ABCDE"))[grade],
        "smoker": r.random(n) < 1 / (1 + np.exp(-u[:, 1])),
        "member": r.random(n) < 1 / (1 + np.exp(-2 * u[:, 2])),
        "urgent": r.random(n) < np.where(group == 3, 0.8, 0.1),
    }
    return pd.DataFrame({k: v * 1.0 if v.dtype == bool else v for k, v in columns.items()})


def one_normal(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Log-likelihoods under one normal distribution of the numbers and the levels' frequencies."""
    numbers = [k for k in train if train[k].dtype == float and train[k].nunique() > 2]
    moments = EmpiricalCovariance().fit(train[numbers].dropna().to_numpy())
    square = moments.mahalanobis(test[numbers].to_numpy())
    volume = np.linalg.slogdet(2 * np.pi * moments.covariance_)[1]
    found: np.ndarray = -(square + volume) / 2
    for k in train.columns.difference(numbers):
        found += np.log(test[k].map(train[k].value_counts(normalize=True)).to_numpy(float))
    return found


def of_simulation(n: int) -> dict[str, Any]:
    """The row of the simulated table."""
    whole = simulated(n + MOST_ROWS)
    lost = np.random.default_rng(1).random((n, whole.shape[1])) < 0.05
    train, test = whole.iloc[:n].mask(lost), whole.iloc[n:].reset_index(drop=True)
    floor, row, ours = one_normal(train, test), {"rows": n}, np.zeros(len(test))
    row["one normal"] = f"{floor.mean():.2f}"
    for label, more in (
        ("RBM", {}),
        ("independent", {"base": "independent", "n_iter": 0}),
        ("latent classes", {"base": "latent-classes", "n_iter": 0}),
    ):
        started = time.process_time()
        model = RBMEstimator(random_state=0).set_params(**more).fit(train)
        took = time.process_time() - started
        found = pessimistic(model, test)
        if label == "RBM":
            ours, chosen = found, f" ({model.base_name_}, {model.n_components_})"
        else:
            chosen = f" ({(found - ours).std() / len(test) ** 0.5:.2f})"
        row[label] = f"{found.mean():.2f}{chosen}"
        row[f"{label}, worst row"] = f"{(found - floor).min():.1f}"
        row[f"{label}, seconds"] = f"{took:.0f}"
    return row


# ------------------------------------------------------------------------------
# Missing entries in training
# ------------------------------------------------------------------------------


def with_holes(data: Path, name: str) -> dict[str, Any]:
    """A row of the table of training rows with holes."""
    train, _, test = density.load(data, name)
    lost = np.random.default_rng(0).random(train.shape) < 0.2
    holes = np.where(lost, np.nan, train.astype(float))
    row: dict[str, Any] = {"set": name, "rows": len(train)}
    values = {}
    for label, rows in (("whole", train), ("holes", holes)):
        started = time.perf_counter()
        model = RBMEstimator(random_state=0).fit(rows)
        took = time.perf_counter() - started
        values[label] = pessimistic(model, test)
        chosen = f"{model.base_name_}, {model.n_components_}, {took:.0f} s"
        row[label] = f"{values[label].mean():.3f} ({chosen})"
    loss = values["whole"] - values["holes"]
    return row | {"loss": f"{loss.mean():.3f} ({loss.std() / len(loss) ** 0.5:.3f})"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--table",
        default="all",
        choices=("likelihood", "imputation", "levels", "measured", "simulated", "holes", "all"),
    )
    parser.add_argument("--rows", type=int, default=10_000, help="of the simulated table")
    parser.add_argument("--json", metavar="F")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    data, asked = arguments.data, arguments.table
    if asked in ("levels", "all"):
        found["levels"] = shown(one_hot_codes(data, name) for name in CODES)
    if asked in ("likelihood", "all"):
        found["mixed"] = shown(likelihood(data, name, mixed=True) for name in MIXED)
        found["numbers"] = shown(likelihood(data, name, mixed=False) for name in NUMBERS)
    if asked in ("measured", "all"):
        found["measured"] = shown(likelihood(data, name, mixed=False) for name in DEQUANTISED)
    if asked in ("simulated", "all"):
        found["simulated"] = shown([of_simulation(arguments.rows)])
    if asked in ("holes", "all"):
        found["holes"] = shown(with_holes(data, name) for name in ("nltcs", "plants"))
    if asked in ("imputation", "all"):
        cells = itertools.product(IMPUTED, (0.2, 0.5))
        found["imputation"] = shown(imputation(data, name, share) for name, share in cells)
    write(arguments.json, found)


if __name__ == "__main__":
    main()
