"""Continuous densities: KL in the plane, held-out likelihood on wine; protocol in density.py."""

from __future__ import annotations

import functools
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity

from benchmarks import _toys
from skebm import (
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    NCEDensity,
    ScoreMatchingDensity,
)
from skebm.energies import MLP
from skebm.estimators import MixtureBase
from skebm.samplers import Persistent
from skebm.training import AdamW

N_SPLITS = 10
N_TOY, N_TOY_VALID = 20_000, 2_000
WINES = ("redwine", "whitewine", "redwine, distinct", "whitewine, distinct")

# What of ours is tried: the best on the valid part is kept.
FOURIER: dict[str, Any] = {
    "network": MLP(output="sum", n_frequencies=64),
    "sigma": 0.02,
    "batch_size": 512,
    "n_iter": 40,
}
# Two steps a batch of the chains, which go on from batch to batch.
CHAINS = FOURIER | {"chains": Persistent(n_steps=2)}
# Four draws for a row, and faster for longer.
MORE_NOISE: dict[str, Any] = {"noise_ratio": 4, "learning_rate": 5e-3, "n_iter": 60}
TOY_CANDIDATES: dict[type, dict[str, dict[str, Any]]] = {
    ScoreMatchingDensity: {
        "defaults": {},
        "sigma=0.02": {"sigma": 0.02},
        "sigma=0.02, 8 components": {"sigma": 0.02, "base": MixtureBase(8)},
        "sigma=0.02, 32 components": {"sigma": 0.02, "base": MixtureBase(32)},
    },
    ContrastiveDivergenceDensity: {
        "defaults": {},
        "sigma=0.02": {"sigma": 0.02},
        "Fourier features": CHAINS,
        "Fourier features, 8 components": CHAINS | {"base": MixtureBase(8)},
    },
    NCEDensity: {
        "defaults": {},
        "Fourier features": FOURIER,
        "Fourier features, 8 components": FOURIER | {"base": MixtureBase(8)},
        "8 components, more noise": FOURIER | MORE_NOISE | {"base": MixtureBase(8)},
        "32 components, more noise": FOURIER | MORE_NOISE | {"base": MixtureBase(32)},
    },
}
SMALL = MLP(hidden_sizes=(64, 64), output="sum")
ON_KERNELS: dict[str, Any] = {"base": "kernel", "deconvolve": True, "network": SMALL}
WINE_CANDIDATES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "kernels alone": ON_KERNELS | {"n_iter": 0},
    "kernels, sigma=0.35": ON_KERNELS | {"sigma": 0.35, "optimizer": AdamW(weight_decay=0.01)},
    "kernels, sigma=0.5": ON_KERNELS | {"sigma": 0.5, "optimizer": AdamW(weight_decay=0.01)},
}
# The same; on kernels, which are near the model, chains go by draws of them instead of steps.
PROPOSALS: dict[str, Any] = {"chains": Persistent(n_steps=1, n_independence_steps=10)}
CONTRASTIVE_CANDIDATES: dict[str, dict[str, Any]] = {
    name: settings if name == "defaults" else settings | PROPOSALS
    for name, settings in WINE_CANDIDATES.items()
}

# Kernels stand on the rows, which are told from them by that: few passes, or none.
NOISE_CANDIDATES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "kernels alone": {"noise": "kernel", "sigma": None, "n_iter": 0},
    "kernels, ten passes": {
        "noise": "kernel",
        "sigma": None,
        "network": SMALL,
        "n_iter": 10,
        "noise_ratio": 4,
        "optimizer": AdamW(weight_decay=1.0),
    },
    "mixture, held out": {
        "network": SMALL,
        "sigma": None,
        "early_stopping": True,
        "noise_ratio": 4,
    },
}


def wine(data: Path, name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Train and test rows of a split: dequantised, permuted, whitened by the training rows."""
    name, _, distinct = name.partition(", ")
    X = np.load(data / "uci" / "wine.npz")[name][:, :-1]
    X = np.unique(X, axis=0) if distinct else X
    rng = np.random.default_rng(seed)
    gap = np.array([np.median(np.diff(np.unique(column))) for column in X.T])
    X = X + gap * (rng.uniform(size=X.shape) - 0.5)
    X = X[rng.permutation(len(X))]
    n = len(X) // 10
    test, train = X[:n], X[n:]
    mean, (w, axes) = train.mean(0), np.linalg.eigh(np.cov(train.T))
    whiten = axes / np.sqrt(w)
    return (train - mean) @ whiten, (test - mean) @ whiten


# Each takes train and test rows and returns log-likelihoods of the test rows and what was chosen.
def kernels(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, str]:
    """One bandwidth, by five folds."""
    grid = {"bandwidth": np.geomspace(0.15, 0.8, 10)}
    folds = KFold(5, shuffle=True, random_state=0)
    search = GridSearchCV(KernelDensity(leaf_size=len(train)), grid, cv=folds).fit(train)
    return search.best_estimator_.score_samples(test), f"{search.best_params_['bandwidth']:.2f}"


def mixture(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, str]:
    """Components and covariances by BIC."""
    models = [
        GaussianMixture(k, covariance_type=kind, random_state=0, max_iter=200).fit(train)
        for kind in ("full", "tied")
        for k in (1, 2, 3, 4, 5, 6, 8, 10, 12)
    ]
    best = min(models, key=lambda model: model.bic(train))
    return best.score_samples(test), f"{best.n_components} {best.covariance_type}"


# The best on the valid parts of splits 0 and 1 of red wine and 0 of white, among 9 settings around.
FLOW = {"transforms": 3, "hidden_features": (64, 64), "bins": 8}


def spline_flow(
    train: np.ndarray, test: np.ndarray, seconds: float = 300
) -> tuple[np.ndarray, str]:
    """A neural spline flow, stopped by a tenth of the training rows, or after some seconds."""
    import zuko

    with torch.random.fork_rng():
        torch.manual_seed(0)
        flow = zuko.flows.NSF(train.shape[1], **FLOW)
        rows = torch.as_tensor(train, dtype=torch.float32)
        valid, rows = rows[: len(rows) // 10], rows[len(rows) // 10 :]
        optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-3, weight_decay=1.0)
        best, state, since, began = -math.inf, flow.state_dict(), 0, time.monotonic()
        epoch = 0
        while epoch < 400 and since < 25 and time.monotonic() - began < seconds:
            epoch += 1
            for index in torch.randperm(len(rows)).split(256):
                loss = -flow().log_prob(rows[index]).mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
                optimizer.step()
            with torch.no_grad():
                found = float(flow().log_prob(valid).mean())
            since = 0 if found > best else since + 1
            if since == 0:
                best, state = found, {k: v.clone() for k, v in flow.state_dict().items()}
        flow.load_state_dict(state)
        with torch.no_grad():
            x = torch.as_tensor(test, dtype=torch.float32)
            return flow().log_prob(x).double().numpy(), f"{epoch} epochs"


def chosen(
    cls: Any, candidates: dict[str, dict[str, Any]], train: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, str]:
    """Of the candidates the best on a tenth of the training rows, fitted again to all of them."""
    n = len(train) // 10
    scores = {}
    for name, settings in candidates.items():
        model = cls(random_state=0, **settings).fit(train[n:])
        scores[name] = model.score(train[:n])
    best = max(scores, key=scores.__getitem__)
    model = cls(random_state=0, **candidates[best]).fit(train)
    # `score` takes the pessimistic end of log Z: so do the rows.
    return model.score_samples(test) + model.score(test) - model.score_samples(test).mean(), best


def flow_contrastive(train: np.ndarray, test: np.ndarray, **more: Any) -> tuple[np.ndarray, str]:
    """An energy and a flow; with ``n_iter=0`` the flow by maximum likelihood alone."""
    settings: dict[str, Any] = {"flow": "maf", "sigma": 0.1, "early_stopping": True}
    model = FlowContrastiveDensity(**settings | more, random_state=0).fit(train)
    lower = model.score(test) - model.score_samples(test).mean()  # the pessimistic end of log Z
    return model.score_samples(test) + lower, f"{model.n_iter_} passes"


CONTENDERS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, str]]] = {
    "KDE": kernels,
    "GMM, BIC": mixture,
    "NSF": spline_flow,
    "ours": functools.partial(chosen, ScoreMatchingDensity, WINE_CANDIDATES),
    "ours, CD": functools.partial(chosen, ContrastiveDivergenceDensity, CONTRASTIVE_CANDIDATES),
    "ours, NCE": functools.partial(chosen, NCEDensity, NOISE_CANDIDATES),
    "ours, FCE": flow_contrastive,
    "its flow, ML": functools.partial(flow_contrastive, n_iter=0, early_stopping=False),
}


def measure_wine(
    data: Path, name: str, n_splits: int, contenders: list[str]
) -> dict[str, list[float]]:
    """Mean log-likelihood of the test rows for each contender and split."""
    found: dict[str, list[float]] = {contender: [] for contender in contenders}
    for split in range(n_splits):
        train, test = wine(data, name, split)
        for contender in contenders:
            began = time.monotonic()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                values, what = CONTENDERS[contender](train, test)
            found[contender].append(float(values.mean()))
            print(
                f"{name} {split}: {contender} {values.mean():.3f} ({what}), "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    return found


def mean_and_error(values: np.ndarray) -> str:
    """Mean and its standard error over splits."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{values.mean():.2f} ({error:.2f})"


def wine_rows(results: dict[str, dict[str, list[float]]]) -> list[dict[str, object]]:
    """A line for each table of wine: means, and ours less each peer, paired."""
    rows = []
    for name, found in results.items():
        values = {contender: np.array(one) for contender, one in found.items()}
        row: dict[str, object] = {"set": name, "splits": len(next(iter(values.values())))}
        row |= {contender: mean_and_error(one) for contender, one in values.items()}
        for own in ("ours", "ours, NCE"):
            if own in values:
                row |= {
                    f"{own} - {peer}": mean_and_error(values[own] - one)
                    for peer, one in values.items()
                    if peer != own
                }
        rows.append(row)
    return rows


def toy_row(name: str, cls: Any) -> dict[str, object]:
    """KL of the candidate of an estimator that is best on the valid part, and of its defaults."""
    X = _toys.sample(name, N_TOY, 0)
    train, valid = X[:-N_TOY_VALID], X[-N_TOY_VALID:]
    best: tuple[float, str, float, float] | None = None
    row: dict[str, object] = {"set": name, "estimator": cls.__name__}
    for what, settings in TOY_CANDIDATES[cls].items():
        began = time.monotonic()
        model = cls(random_state=0, **settings).fit(train)
        spent = time.monotonic() - began
        score = model.score(valid)
        kl = _toys.kl_divergence(name, lambda x, model=model: -model.energy(x))
        print(f"{name}: {what}, valid {score:.4f}, KL {kl:.4f}, {spent:.1f} s", flush=True)
        if what == "defaults":
            row |= {"KL of the defaults": f"{kl:.4f}"}
        if best is None or score > best[0]:
            best = score, what, kl, spent
    assert best is not None
    return row | {"KL": f"{best[2]:.4f}", "chosen": best[1], "fit, s": f"{best[3]:.0f}"}


def load_results(paths: list[str]) -> dict[str, dict[str, list[float]]]:
    """Contenders of earlier runs on the same splits."""
    merged: dict[str, dict[str, list[float]]] = {}
    for path in paths:
        for name, found in json.loads(Path(path).read_text())["wine"].items():
            merged.setdefault(name, {}).update(found)
    return merged
