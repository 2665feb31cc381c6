"""Densities of tables of numbers by other packages: adversarial forests, vines, spline flows.

Each takes training rows and returns something with `score_samples`; those that are not installed
are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from scipy.stats import truncnorm

from benchmarks._continuous import spline_flow

# Seconds that a flow is trained for at most.
FLOW_SECONDS = 90.0


class AdversarialForest:
    """The density of `arfpy`, which has draws and no method for it: a mean over the trees.

    Each leaf is a product of truncated normal distributions, weighted by its share of the rows.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def fit(self, x: np.ndarray) -> AdversarialForest:
        from arfpy import arf

        vars(np).setdefault("in1d", np.isin)  # arfpy calls what NumPy 2.4 removed
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
        np.random.seed(self.seed)  # noqa: NPY002 - the only seed of its draws
        model = arf.arf(frame, verbose=False, random_state=self.seed)
        cells = model.forde()["cnt"]
        shares = model.bnds[["tree", "nodeid", "cvg"]].drop_duplicates()
        self.forest, self.leaves = model.clf, {}
        both = cells.merge(shares, on=["tree", "nodeid"])
        for key, cell in both.groupby(["tree", "nodeid"]):
            cell = cell.set_index("variable").loc[list(frame)]
            self.leaves[key] = cell[["mean", "sd", "min", "max"]].to_numpy(), cell["cvg"].iloc[0]
        return self

    def score_samples(self, x: np.ndarray) -> np.ndarray:
        """Log-densities in nats; minus infinity where no leaf has mass."""
        leaf = self.forest.apply(x.astype(np.float32))
        found = np.full(leaf.shape, -np.inf)
        for tree in range(leaf.shape[1]):
            for node in np.unique(leaf[:, tree]):
                if (tree, node) in self.leaves:
                    cell, share = self.leaves[tree, node]
                    rows = leaf[:, tree] == node
                    mean, sd, low, high = cell.T
                    ends = (low - mean) / sd, (high - mean) / sd
                    each = truncnorm.logpdf(x[rows], *ends, mean, sd)
                    found[rows, tree] = np.log(share) + each.sum(1)
        density: np.ndarray = logsumexp(found, axis=1) - np.log(leaf.shape[1])
        return density


class SplineFlow:
    """A neural spline flow of zuko, of whitened rows, trained when it is asked."""

    def fit(self, x: np.ndarray) -> SplineFlow:
        self.rows, self.mean = x, x.mean(0)
        w, axes = np.linalg.eigh(np.cov(x.T))
        self.whiten = axes / np.sqrt(w)
        return self

    def score_samples(self, x: np.ndarray) -> np.ndarray:
        """Log-densities in nats."""
        rows, new = ((part - self.mean) @ self.whiten for part in (self.rows, x))
        found = spline_flow(rows, new, FLOW_SECONDS)[0]
        density: np.ndarray = found + np.linalg.slogdet(self.whiten)[1]
        return density


def vine(x: np.ndarray) -> Any:
    """The density of `pyvinecopulib`: margins by kernels, pairs by families and AIC."""
    from pyvinecopulib.sklearn import VineDensity

    return VineDensity().fit(x)


def peers(seed: int) -> dict[str, Callable[[np.ndarray], Any]]:
    """What is installed, by name: functions of training rows."""
    found: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
        "vine": ("pyvinecopulib", vine),
        "adversarial forest": ("arfpy", AdversarialForest(seed).fit),
        "spline flow": ("zuko", SplineFlow().fit),
    }
    installed = importlib.util.find_spec
    return {name: fit for name, (package, fit) in found.items() if installed(package) is not None}
