"""Fit every estimator with many settings to hostile tables, and list what does not hold.

    python -m tools.soak --n 1000                      # about an hour on one core
    python -m tools.soak --only NCEDensity --seconds 300
    python -m tools.soak --only JEMClassifier/defaults/cauchy --seed 3 --n 1

A case is an estimator, a setting and a table, in random order; when all have had their turn they
come again with the next seed. What is to hold of each fit: only ValueErrors that name what to do;
finite scores; at most 60 s for `fit` and the first `score_samples`; at most two warnings; p sums or
integrates to one where that is cheap to check. Models whose held-out rows are less likely than
under the base by more than two standard errors are listed, and are no violation. The exit status
is 1 if there is a violation.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBeliefNetwork,
    DeepBoltzmannMachine,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    GatedRBM,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    OutlierEnsemble,
    RBMClassifier,
    RBMEstimator,
    RowSurprise,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TemporalRBM,
    TemporalRBMClassifier,
)
from skebm.estimators import Hybrid
from skebm.samplers import FromData, ParallelTempering, Persistent
from skebm.training import SGD
from tests.adversarial.hostile import TABLES, split
from tests.adversarial.invariants import Found, check

SHORT = {"n_iter": 5}
FLOW = {"n_iter": 5, "n_flow_steps": 20, "flow": "maf"}
# Parameters of each estimator by the name of the setting.
SETTINGS: dict[type, dict[str, dict[str, Any]]] = {
    RBMEstimator: {
        "defaults": {},
        "exact": {"n_components": 8, "learning": "exact", **SHORT},
        "pcd": {"n_components": 8, "learning": "pcd", **SHORT},
        "cd": {"n_components": 8, "learning": "cd", **SHORT},
        "chow-liu": {"n_components": 8, "base": "chow-liu", **SHORT},
        "block-tree": {"n_components": 8, "base": "block-tree", **SHORT},
        "tempered": {"learning": "pcd", "sampler": ParallelTempering(4), **SHORT},
        "reweighted": {"learning": "pcd", "chains": Persistent(reweight=True), **SHORT},
        "fast": {"n_components": 8, "learning": "pcd", "learning_rate": 1.0, "n_iter": 20},
        "averaged": {"n_components": 8, "learning": "pcd", "optimizer": SGD(averaging=0.5)},
        "early-stopping": {"n_components": 8, "early_stopping": True},
    },
    SpikeSlabRBM: {
        "defaults": {},
        "pcd": {"n_components": 8, **SHORT},
        "cd": {"n_components": 8, "learning": "cd", **SHORT},
        "independent": {"n_components": 8, "base": "independent", **SHORT},
        "fast": {"n_components": 8, "learning_rate": 1.0, "n_iter": 20},
        "early-stopping": {"n_components": 8, "early_stopping": True},
    },
    SubspaceRBM: {
        "defaults": {},
        "exact": {"n_components": 4, "n_subspace": 2, "learning": "exact", **SHORT},
        "pcd": {"n_components": 4, "n_subspace": 3, "learning": "pcd", **SHORT},
        "chow-liu": {"n_components": 4, "n_subspace": 2, "base": "chow-liu", **SHORT},
        "fast": {"n_components": 4, "learning": "pcd", "learning_rate": 1.0, "n_iter": 20},
        "early-stopping": {"n_components": 4, "early_stopping": True},
    },
    GatedRBM: {
        "defaults": {},
        "few": {"n_components": 8, "n_factors": 12, **SHORT},
        "fast": {"n_components": 8, "n_factors": 12, "learning_rate": 0.1, "n_iter": 20},
        "bits": {"n_components": 8, "n_factors": 12, "visible": "bernoulli", **SHORT},
        "early-stopping": {"n_components": 8, "n_factors": 12, "early_stopping": True},
    },
    ConditionalDensity: {
        "defaults": {},
        "score-matching": {"objective": "score_matching", **SHORT},
        "chains": {"objective": "contrastive_divergence", **SHORT},
        "linear": {"base": "linear", **SHORT},
        "fast": {"learning_rate": 0.1, "n_iter": 20},
        "early-stopping": {"early_stopping": True, **SHORT},
    },
    TemporalRBM: {
        "defaults": {},
        "few": {"n_components": 8, "order": 1, **SHORT},
        "recurrent": {"n_components": 8, "order": 0, "recurrent": True, **SHORT},
        "pcd": {"n_components": 8, "chains": Persistent(n_steps=2), **SHORT},
        "early-stopping": {"n_components": 8, "early_stopping": True, **SHORT},
    },
    TemporalRBMClassifier: {
        "defaults": {},
        "few": {"n_components": 8, "order": 1, **SHORT},
        "generative": {"n_components": 8, "objective": "generative", **SHORT},
        "hybrid": {"n_components": 8, "objective": "hybrid", "label_order": 0, **SHORT},
        "early-stopping": {"n_components": 8, "early_stopping": True, **SHORT},
    },
    DeepBoltzmannMachine: {
        "defaults": {},
        "short": {"hidden_layer_sizes": (8, 4), **SHORT},
        "bound": {"hidden_layer_sizes": (24, 20), **SHORT},
        "three": {"hidden_layer_sizes": (8, 6, 4), "pretraining": "layerwise", **SHORT},
        "chow-liu": {"hidden_layer_sizes": (8, 4), "base": "chow-liu", **SHORT},
        "from-data": {"hidden_layer_sizes": (8, 4), "chains": FromData(n_steps=2), **SHORT},
        "early-stopping": {"hidden_layer_sizes": (8, 4), "early_stopping": True},
    },
    BoltzmannMachineDensity: {
        "defaults": {},
        "pseudo-likelihood": {"learning": "pseudo_likelihood"},
        "ratio-matching": {"learning": "ratio_matching"},
        "flow": {"learning": "probability_flow"},
        "pcd": {"learning": "pcd", **SHORT},
        "graph": {"l1": "ebic"},
        "stochastic": {"learning": "pseudo_likelihood", "batch_size": 32, **SHORT},
    },
    ContrastiveDivergenceDensity: {
        "defaults": {},
        "no-base": {"base": None, **SHORT},
        "no-base-long": {"base": None},
        "gaussian": {"base": "gaussian", **SHORT},
        "kernel": {"base": "kernel", **SHORT},
        "replay": {"chains": "replay", **SHORT},
        "from-data": {"chains": "data", **SHORT},
        "discrepancy": {"objective": "discrepancy", **SHORT},
        "no-noise": {"sigma": None, **SHORT},
        "deconvolved": {"deconvolve": True, **SHORT},
        "unscaled": {"standardize": False, **SHORT},
        "float64": {"dtype": "float64", **SHORT},
        "early-stopping": {"early_stopping": True, "n_iter": 20},
    },
    ScoreMatchingDensity: {
        "defaults": {},
        "no-base": {"base": None, **SHORT},
        "gaussian": {"base": "gaussian", **SHORT},
        "kernel": {"base": "kernel", **SHORT},
        "exact": {"objective": "exact", **SHORT},
        "sliced": {"objective": "sliced", **SHORT},
        "multiscale": {"objective": "multiscale", **SHORT},
        "bandwidth": {"sigma": "bandwidth", "deconvolve": True, **SHORT},
        "kurtosis": {"sigma": "kurtosis", **SHORT},
        "unscaled": {"standardize": False, **SHORT},
        "early-stopping": {"early_stopping": True, "n_iter": 20},
    },
    BoostedDensity: {
        "defaults": {},
        "gaussian": {"base": "gaussian", "n_iter": 100},
        "large": {"learning_rate": 0.5, "max_leaf_nodes": 64, "min_samples_leaf": 1},
    },
    NCEDensity: {
        "defaults": {},
        "ranking": {"form": "ranking", **SHORT},
        "gaussian": {"noise": "gaussian", **SHORT},
        "kernel": {"noise": "kernel", "early_stopping": True, "n_iter": 20},
        "maf": {"noise": "maf", **SHORT},
        "bridges": {"noise": "gaussian", "n_bridges": 3, **SHORT},
        "four-draws": {"noise_ratio": 4.0, **SHORT},
        "no-noise": {"sigma": None, **SHORT},
        "early-stopping": {"early_stopping": True, "n_iter": 20},
    },
    NeuralDensity: {
        "defaults": {},
        "score-matching": {"objective": "score_matching", **SHORT},
        "noise-contrastive": {"objective": "nce", **SHORT},
        "local": {"objective": "pseudo_likelihood", **SHORT},
    },
    FlowContrastiveDensity: {
        "defaults": {},
        "maf": FLOW,
        "coupling": FLOW | {"flow": "coupling"},
        "nsf": FLOW | {"flow": "nsf"},
        "early-stopping": FLOW | {"early_stopping": True, "n_iter": 20},
    },
    JEMClassifier: {
        "defaults": {},
        "no-base": {"base": None, **SHORT},
        "classes": {"base": "classes", **SHORT},
        "replay": {"chains": "replay", **SHORT},
        "discriminative": {"generative_weight": 0, **SHORT},
        "balanced": {"class_weight": "balanced", **SHORT},
        "book": {"objective": Hybrid(power=1.0, deconvolve=False), "generative_weight": 1, **SHORT},
        "early-stopping": {"early_stopping": True, "n_iter": 20},
    },
    RBMClassifier: {
        "defaults": {},
        "discriminative": {"objective": "discriminative", **SHORT},
        "generative": {"objective": "generative", **SHORT},
        "gaussian": {"base": "gaussian", **SHORT},
        "balanced": {"class_weight": "balanced", **SHORT},
        "early-stopping": {"early_stopping": True, "n_iter": 20},
    },
    DeepBeliefNetwork: {
        "defaults": {},
        "summed": {"hidden_layer_sizes": (8, 6), "rbm": RBMEstimator(**SHORT)},
        "drawn": {"hidden_layer_sizes": (20, 8), "rbm": RBMEstimator(**SHORT)},
        "one": {"hidden_layer_sizes": (8,), "rbm": RBMEstimator(**SHORT)},
        "states": {
            "hidden_layer_sizes": (6, 5, 4),
            "rbm": RBMEstimator(learning="pcd", **SHORT),
            "upper_input": "states",
        },
    },
    EnergyOutlierDetector: {
        "defaults": {},
        "conformal": {"estimator": ScoreMatchingDensity(**SHORT), "method": "conformal"},
        "cross-conformal": {
            "estimator": ScoreMatchingDensity(**SHORT),
            "method": "cross-conformal",
            "cv": 3,
        },
        "rbm": {"estimator": RBMEstimator(8, **SHORT)},
        "noise-contrastive": {"estimator": NCEDensity(**SHORT)},
        "max-probability": {"estimator": JEMClassifier(**SHORT), "statistic": "max_proba"},
    },
    OutlierEnsemble: {"defaults": {}, "minimum": {"merge": "minimum"}},
    RowSurprise: {"defaults": {}},
}
KINDS = ("exception", "nan", "warnings", "slow", "normalised")


class Case(NamedTuple):
    """A setting of an estimator, and the table that it is fitted to."""

    estimator: str
    setting: str
    table: str
    make: Callable[[int], Any]

    @property
    def name(self) -> str:
        return f"{self.estimator}/{self.setting}/{self.table}"


class Violation(NamedTuple):
    """One case that did something else than what is to hold."""

    name: str
    seed: int
    kind: str
    seen: str


def all_cases(only: str = "") -> list[Case]:
    """Cases whose name has `only` in it, or the case of just that name."""
    cases = [
        Case(cls.__name__, setting, table, lambda seed, c=cls, p=params: made(c, p, seed))
        for cls, settings in SETTINGS.items()
        for setting, params in settings.items()
        for table in TABLES
    ]
    return [c for c in cases if c.name == only] or [c for c in cases if only in c.name]


def made(cls: Any, params: dict[str, Any], seed: int) -> Any:
    """An unfitted estimator; the parts of a detector have a seed of their own."""
    estimator = cls(**params, random_state=seed)
    if params.get("estimator") is not None:
        estimator.set_params(estimator__random_state=seed)
    return estimator


def soak(cases: Sequence[Case], n: int, seed: int, seconds: float) -> list[tuple[Case, int, Found]]:
    """Fit `n` cases, or as many as the seconds allow."""
    order, done = list(cases), []
    random.Random(seed).shuffle(order)
    started = time.perf_counter()
    for k in tqdm(range(n), unit="fit", mininterval=1.0):
        if time.perf_counter() - started > seconds:
            break
        case, own_seed = order[k % len(order)], seed + k // len(order)
        found = check(case.make(own_seed), split(case.table, own_seed))
        done.append((case, own_seed, found))
        for kind, seen in found.violations.items():
            tqdm.write(f"{kind}: {case.name} --seed {own_seed}: {seen}")
    return done


# ------------------------------------------------------------------------------
# The report
# ------------------------------------------------------------------------------


def report(done: Sequence[tuple[Case, int, Found]]) -> list[Violation]:
    """Print the table, refusals, models below their base, and violations; these are returned."""
    rows: dict[tuple[str, str], list[Found]] = {}
    for case, _, found in done:
        rows.setdefault((case.estimator, case.setting), []).append(found)
    heads = ("fits", "refused", *KINDS, "checked", "below base", "slowest s")
    print("\n" + f"{'estimator, setting':46}" + "".join(f"{head:>11}" for head in heads))
    ordered = sorted(rows, key=lambda row: (row[0], row[1] != "defaults", row[1]))
    for row in ordered:
        print(f"{' '.join(row):46}" + "".join(f"{value:>11}" for value in counts(rows[row])))
    total = counts([found for _, _, found in done])
    print(f"{'all':46}" + "".join(f"{value:>11}" for value in total))
    refusals = Counter(found.refused.split(". ")[0] for _, _, found in done if found.refused)
    print("\nrefused with a ValueError, which is allowed:")
    for message, times in refusals.most_common():
        print(f"  {times} x {message[:200]}")
    print("\nbelow the base by more than two standard errors (listed, no violation):")
    for case, seed, found in done:
        if found.below_base:
            print(f"  {case.name} --seed {seed}: {found.below_base}")
    violations = [
        Violation(case.name, seed, kind, seen)
        for case, seed, found in done
        for kind, seen in found.violations.items()
    ]
    print(f"\n{len(done)} fits, {len(violations)} violations")
    for found in sorted(violations, key=lambda v: v.kind):
        print(f"  {found.kind}: {found.seen[:400]}")
        print(f"    make soak ARGS='--only {found.name} --seed {found.seed} --n 1'")
    return violations


def counts(found: Sequence[Found]) -> tuple[Any, ...]:
    """A line of the table."""
    kinds = [sum(kind in one.violations for one in found) for kind in KINDS]
    refused = sum(bool(one.refused) for one in found)
    below, checked = sum(bool(o.below_base) for o in found), sum(o.checked for o in found)
    slowest = max((one.seconds for one in found), default=0.0)
    return (len(found), refused, *kinds, checked, below, f"{slowest:.1f}")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--n", type=int, default=1000, help="number of fits")
    parser.add_argument("--seed", type=int, default=0, help="of tables, of models and of the order")
    parser.add_argument("--only", default="", metavar="NAME", help="part of the name of a case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which it stops")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    cases = all_cases(args.only)
    if not cases:
        print(f"No case has {args.only!r} in its name, as in {all_cases()[0].name}.")
        return 2
    torch.set_num_threads(1)
    return int(bool(report(soak(cases, args.n, args.seed, args.seconds))))


if __name__ == "__main__":
    sys.exit(main())
