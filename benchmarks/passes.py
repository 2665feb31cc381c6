"""How long RBMs train by default, and whether steps that are given leave a model below its base.

    OMP_NUM_THREADS=1 python -m benchmarks.passes --data PATH --part gain [--sets accidents ...]
    OMP_NUM_THREADS=1 python -m benchmarks.passes --data PATH --part given [--sets dna ...]
    OMP_NUM_THREADS=1 python -m benchmarks.passes --data PATH --part exact [--sets jester ...]
    OMP_NUM_THREADS=1 python -m benchmarks.passes --data PATH --part families [--sets NCE ...]

PATH holds `debd/<set>.npz` with the published train, valid and test splits as packed bits.
Protocol: `RBMEstimator(64, random_state=0)`, fitted to train; valid is not used.

*gain*: base of independent columns, otherwise default, with 10,000 steps and with as many as
held-out rows ask for; `score` of all test rows (the pessimistic end of log Z), processor seconds.
*given*: `learning_rate=1.0`, `batch_size=5` and `n_iter=3`, each alone (the last one with a base of
independent columns) and together, on 1,500 rows of train; *exact*: the default on a few rows of the
first eight or nine columns. Both: what 1,000 (3,000) rows of test gain over independent columns of
the rows that were fitted, each with half a row of both values, and its standard error; in *given*
also by the pessimistic end of log Z.

*families*: the same as *gain* for other models, on numbers (`tabular/phoneme.npz`, 4,000 rows to
fit, the others to score; on one normal distribution, which leaves much to learn) and on chorales
(`music/JSB_Chorales.npz`, the first six validation songs are scored).
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from sklearn.base import clone

import skebm.estimators.rbm.family as rules
from benchmarks._common import machine, table, write
from benchmarks.density import load
from benchmarks.temporal_rbm import songs
from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TemporalRBM,
)
from skebm.training import plan

GIVEN = {
    "rate": {"learning_rate": 1.0},
    "batch": {"batch_size": 5},
    "epochs": {"n_iter": 3, "base": "independent"},
    "together": {"learning_rate": 1.0, "batch_size": 5, "n_iter": 3},
}
SETS = {
    "gain": ["accidents", "plants", "mushrooms", "tretail"],
    "given": ["nltcs", "plants", "jester", "dna", "mushrooms", "msweb"],
    "exact": ["plants", "jester"],
    "families": ["score matching", "NCE", "contrastive divergence", "conditional", "temporal"],
}


def measure_gain(data: Path, name: str) -> list[dict[str, object]]:
    """Rows of the table of one set."""
    train, _, test = load(data, name)
    found: dict[str, object] = {"set": name, "rows": len(train)}
    for most in (rules.ENOUGH_STEPS, rules.MOST_STEPS):
        rules.MOST_STEPS = most
        began = time.process_time()
        model = RBMEstimator(64, base="independent", random_state=0).fit(train)
        took = time.process_time() - began
        steps = model.n_iter_ * int(np.ceil(len(train) / model.batch_size_))
        found[f"at most {most:,} steps"] = f"{model.score(test):.3f} ({steps:,}; {took:.0f} s)"
    return [found]


def over_independent(model: RBMEstimator, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Nats of test rows over independent columns, (n,)."""
    p = (train.sum(0) + 0.5) / (len(train) + 1)
    of_columns: np.ndarray = test @ np.log(p) + (1 - test) @ np.log1p(-p)
    return model.score_samples(test) - of_columns


def shown(gain: np.ndarray) -> str:
    """Mean and standard error."""
    return f"{gain.mean():+.3f} ({gain.std() / len(gain) ** 0.5:.3f})"


def measure_given(data: Path, name: str) -> list[dict[str, object]]:
    """Rows of the table of one set."""
    train, _, test = load(data, name)
    random = np.random.default_rng(0)
    train = train[random.permutation(len(train))[:1500]]
    test = test[random.permutation(len(test))[:1000]]
    found = []
    for label, given in GIVEN.items():
        model = RBMEstimator(64, random_state=0, **given).fit(train)
        gain = over_independent(model, train, test)
        upper = model.score(test) - model.score_samples(test).mean() + gain.mean()
        found.append(
            {"set": name, "given": label, "gain": shown(gain), "pessimistic": f"{upper:+.3f}"}
        )
    return found


def measure_exact(data: Path, name: str) -> list[dict[str, object]]:
    """Rows of the table of one set."""
    d = 8 if name == "plants" else 9
    train, _, test = (x[:, :d] for x in load(data, name))
    train = train[np.random.default_rng(0).permutation(len(train))]
    found = []
    for n in (30, 100, 250):
        model = RBMEstimator(64, random_state=0).fit(train[:n])
        gain = shown(over_independent(model, train[:n], test[:3000]))
        found.append({"set": name, "rows": n, "gain": gain, "iterations": model.n_iter_})
    return found


def phoneme(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit, and others."""
    rows = np.load(data / "tabular/phoneme.npz")["X"].astype(float)
    rows = np.unique(rows, axis=0)[
        np.random.default_rng(0).permutation(len(np.unique(rows, axis=0)))
    ]
    return rows[:4000], rows[4000:]


FAMILIES: dict[str, Any] = {
    "score matching": ScoreMatchingDensity(base="gaussian", random_state=0),
    "NCE": NCEDensity(noise="gaussian", random_state=0),
    "contrastive divergence": ContrastiveDivergenceDensity(base="gaussian", random_state=0),
    "conditional": ConditionalDensity(given=0, base="linear", random_state=0),
    "temporal": TemporalRBM(random_state=0),
}


def measure_families(data: Path, name: str) -> list[dict[str, object]]:
    """Rows of the table of one family."""
    if name == "temporal":
        train, test = songs(data, "JSB_Chorales", "train", None), None
        valid = songs(data, "JSB_Chorales", "valid", 6)
    else:
        train, test = phoneme(data)
        test = test[:200] if name == "conditional" else test
    found: dict[str, object] = {"family": name}
    for most in (1, plan.MOST_TIMES):
        with mock.patch.object(plan, "MOST_TIMES", most):
            began = time.process_time()
            model = clone(FAMILIES[name]).fit(train)
        took = time.process_time() - began
        scored = [model.score_samples(one) for one in (valid if test is None else [test])]
        mean = float(np.concatenate(scored).mean())
        found[f"at most {most} times"] = f"{mean:.3f} ({model.n_iter_} passes, {took:.0f} s)"
    return [found]


PARTS = {
    "families": measure_families,
    "gain": measure_gain,
    "given": measure_given,
    "exact": measure_exact,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for name in args.sets or SETS[args.part]:
        found += PARTS[args.part](args.data, name)
        print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), args.part: found})


if __name__ == "__main__":
    main()
