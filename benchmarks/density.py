"""Test log-likelihood of binary tables next to the published ones, and of continuous ones.

    python -m benchmarks.density --data PATH [--sets nltcs jester ...] [--bases chow-liu ...]
        [--quick] [--json F]
    python -m benchmarks.density --data PATH --continuous [--sets rings redwine ...]
        [--contenders NAME ...] [--quick] [--json F] [--merge F ...]

PATH holds `debd/<set>.npz` with the published train, valid and test splits as packed bits,
`published/debd_test_ll.csv`, and `images/binarized_mnist.npz` for the set `mnist` (784-16 with an
exact log Z) and `mnist500`.

Protocol: every candidate of a set (`CANDIDATES`: hidden units, base, penalty, steps; seed 0 where
none is given) is fitted on `train`; of those with the same base the one with the best
`score(valid)` is kept, and `test` is opened once for it. Mean log-likelihood in nats with its
standard error over rows. With an estimated log Z all scores are by the pessimistic end of the
bracket: the largest of forward AIS and reverse AIS from three starts (training rows, training
chains, both after 1,000 Gibbs steps), plus two standard errors. `NCE`: networks of `NCEDensity`,
whose log Z is found as `partition="auto"` does (importance sampling from the tree where that knows
it, else the bracket). `spread` is the distance between the largest and the smallest of these
estimates. Threads as torch finds them (OMP_NUM_THREADS=1: one). Seconds are those of the chosen fit
and of all fits.

Protocol of `--continuous`. In the plane (`benchmarks/_toys.py`: definitions with scale and noise):
20,000 rows, seed 0, 2,000 of them to choose by `score` among four settings of
`ScoreMatchingDensity` and of `ContrastiveDivergenceDensity`, five of `NCEDensity`; KL(truth, model)
by quadrature, both normalised on the grid. Wine, for each of ten splits (seeds 0 to 9): without the
quality, each column dequantised by uniform noise of its median gap, permuted, a tenth held out,
whitened by the training rows; mean log-likelihood of the held-out rows in these units. `KDE`: one
bandwidth of ten by five folds. `GMM, BIC`: 1 to 12 components, full or tied covariances. `NSF`: a
neural spline flow of zuko, whose settings were chosen among nine on the valid parts of three
splits, stopped by a tenth of the training rows, at most 300 seconds. `ours`: of four settings of
`ScoreMatchingDensity` the best on a tenth of the training rows, fitted again to all of them; by the
pessimistic end of log Z. `ours, CD`: `ContrastiveDivergenceDensity` with the same settings, on
kernels with one step and ten jumps to draws of them. `ours, NCE`: `NCEDensity`, of four settings in
the same way, which were themselves settled on the valid parts of splits 0 and 1 of red wine.
`ours, FCE`:
`FlowContrastiveDensity` with an affine autoregressive flow, sigma 0.1, stopped by a tenth of the
training rows; of nine settings, some of which fitted the training rows alone, the best on valid
parts of splits 0, 1, 3 and 4. `its flow, ML`: the flow that it starts from, of all training rows
where it is alone. A fifth of wine's rows are copies
of others, most of which have their copy in the other part: narrow kernels on the rows gain nats by
them. So all is also measured on the `distinct` rows.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import _toys
from benchmarks._common import machine, seconds, table, write
from benchmarks._continuous import (
    CONTENDERS,
    N_SPLITS,
    TOY_CANDIDATES,
    WINES,
    load_results,
    measure_wine,
    toy_row,
    wine_rows,
)
from skebm import ContrastiveDivergenceDensity, NCEDensity, RBMEstimator
from skebm.distributions import ChowLiuTree
from skebm.energies import MLP
from skebm.partition import AISBracket
from skebm.samplers import Gibbs, GibbsWithGradients

# Steps of a hundred rows with 500 chains; the step size falls linearly to a hundredth.
STEPS = {
    "centering__precondition": 0.5,
    "optimizer__schedule": "linear",
    "batch_size": 100,
    "chains__n_chains": 500,
}
PLAIN = {"base": "independent", "learning_rate": 0.1} | STEPS
TREE = {"base": "chow-liu", "learning_rate": 0.3} | STEPS
BLOCKS = {"base": "block-tree", "learning_rate": 0.3} | STEPS
# For a machine whose log Z the default budget knows to a nat only.
WIDE = AISBracket(n_chains=200, n_betas=20_000)


def candidate(kind: dict, n_components: int, n_steps: int, l2: float = 0.0, **more) -> dict:
    """Parameters of an estimator, with the number of steps in the place of passes."""
    return kind | {"n_components": n_components, "fit_steps": n_steps, "penalty__l2": l2} | more


CANDIDATES: dict[str, list[dict]] = {
    "nltcs": [{"n_components": h, "random_state": s} for h in (24, 32) for s in range(4)],
    "jester": [candidate(PLAIN, 100, 40_000, 0.003), candidate(PLAIN, 150, 40_000, 0.003)],
    "baudio": [
        candidate(PLAIN, 100, 40_000, 0.001),
        candidate(PLAIN, 100, 40_000, 0.003),
        candidate(PLAIN, 200, 40_000, 0.002),
    ],
    "plants": [
        candidate(PLAIN, 100, 40_000),
        candidate(PLAIN, 150, 40_000, 0.0002),
        candidate(BLOCKS, 100, 20_000, 0.0002),
    ],
    "accidents": [
        candidate(TREE, 200, 20_000, 0.0003),
        candidate(BLOCKS, 150, 15_000, 0.0003),
        candidate(PLAIN, 200, 20_000, 0.0003, learning_rate=0.2),
    ],
    "dna": [
        candidate(TREE, 100, 6000, 0.01),
        candidate(BLOCKS, 20, 5000, 0.01),
        candidate(BLOCKS, 60, 5000, 0.03),
        candidate(PLAIN, 100, 6000, 0.01),
    ],
    "msweb": [
        candidate(TREE, 100, 12_000, 0.0001, learning_rate=1.0),
        candidate(BLOCKS, 60, 10_000, 0.0001, learning_rate=1.0),
        candidate(PLAIN, 100, 12_000, 0.0001, learning_rate=0.5),
    ],
    "tretail": [
        candidate(TREE, 60, 10_000, 0.0003, learning_rate=1.0),
        candidate(TREE, 60, 10_000, 0.001),
        candidate(PLAIN, 60, 10_000, 0.001),
    ],
    "book": [
        candidate(TREE, 100, 12_000, 0.001, learning_rate=0.1),
        candidate(TREE, 100, 8000, 0.001, shrinkage=0.5),
        candidate(TREE, 100, 8000, 0.001, shrinkage=0.8),
        candidate(BLOCKS, 100, 10_000, 0.001, learning_rate=0.1),
        candidate(PLAIN, 100, 10_000, 0.001),
    ],
    "cr52": [
        candidate(TREE, 100, 6000, 0.001, learning_rate=0.1),
        candidate(PLAIN, 100, 6000, 0.001),
    ],
    "mnist": [
        candidate(PLAIN, 16, 100_000, chains__n_chains=100),
        candidate(PLAIN, 16, 45_000, learning_rate=0.3, sampler=Gibbs(n_collapsed=1)),
        candidate(PLAIN, 16, 26_000, learning_rate=1.0, batch_size=1000, chains__n_chains=1000),
        candidate(TREE, 16, 20_000, chains__n_chains=100),
    ],
    "mnist500": [
        candidate(
            PLAIN,
            500,
            280_000,
            penalty__l1=l1,
            learning_rate=0.05,
            chains__n_chains=100,
            partition=WIDE,
        )
        for l1 in (0.0003, 0.0005)
    ],
}

# Networks by contrastive divergence on the tree, for the sets that RBMs were compared on.
NETWORKS: dict[str, Any] = {
    "estimator": ContrastiveDivergenceDensity,
    "domain": "binary",
    "network": MLP((256, 256)),
    "batch_size": 200,
    "sampler": GibbsWithGradients(),
    "chains__n_steps": 20,
}
for name, n_steps in (("nltcs", 3000), ("jester", 3000), ("plants", 3000)):
    CANDIDATES[name] += [
        NETWORKS | {"base": "chow-liu", "fit_steps": n_steps, "optimizer__weight_decay": decay}
        for decay in (0.0, 0.1)
    ]
# The same networks as classifiers, with more or less noise and decay.
CLASSIFIERS: dict[str, Any] = {
    "estimator": NCEDensity,
    "domain": "binary",
    "network": MLP((256, 256)),
    "noise": "chow-liu",
    "batch_size": 200,
    "fit_steps": 3000,
}
for name, pairs in (
    ("nltcs", ((1, 0.0), (4, 0.0))),
    ("jester", ((4, 1.0), (10, 1.0), (10, 0.3))),
    ("plants", ((4, 0.1), (10, 0.1))),
):
    CANDIDATES[name] += [
        CLASSIFIERS | {"noise_ratio": ratio, "optimizer__weight_decay": decay}
        for ratio, decay in pairs
    ]

# What follows the name of the base in the table: candidates with the same are compared.
WHAT = {RBMEstimator: "", ContrastiveDivergenceDensity: ", network", NCEDensity: ", NCE"}


def load(data: Path, name: str) -> tuple[np.ndarray, ...]:
    """Train, valid and test rows of a set, float32; of mnist5k the first 5,000 train."""
    mnist = name.startswith("mnist")
    packed = np.load(data / ("images/binarized_mnist.npz" if mnist else f"debd/{name}.npz"))
    d = int(packed["d"])
    parts = (packed[part] for part in ("train", "valid", "test"))
    bits = [np.unpackbits(part, axis=1)[:, :d].astype(np.float32) for part in parts]
    return (bits[0][:5000] if name == "mnist5k" else bits[0], *bits[1:])


def published(data: Path, name: str) -> dict[str, str]:
    """References for a set."""
    with open(data / "published" / "debd_test_ll.csv", newline="") as file:
        rows = {row["dataset"]: row for row in csv.DictReader(file)}
    return rows.get(name, {"hclt_2021": "", "chow_liu_tree": ""})


def build(settings: dict, train: np.ndarray, share: float) -> Any:
    """The estimator of a candidate, its steps turned into passes."""
    settings = dict(settings)
    cls = settings.pop("estimator", RBMEstimator)
    if "fit_steps" in settings:
        n_batches = -(-len(train) // settings["batch_size"])
        settings["n_iter"] = max(1, round(share * settings.pop("fit_steps") / n_batches))
    if "shrinkage" in settings:
        shrinkage = settings.pop("shrinkage")
        settings["base"] = ChowLiuTree.fit(torch.from_numpy(train), shrinkage=shrinkage)
    return cls().set_params(**{"random_state": 0} | settings)


def describe(settings: dict) -> str:
    """What candidates of a set differ in."""
    names = {
        "n_components": "H",
        "penalty__l1": "l1",
        "penalty__l2": "l2",
        "shrinkage": "shrinkage",
    }
    names |= {"optimizer__weight_decay": "decay", "network": "f", "noise_ratio": "ratio"}
    return " ".join(f"{names[k]}={v}" for k, v in settings.items() if k in names and v)


def spread(model: Any) -> float:
    """Distance of the largest from the smallest estimate of log Z; 0 when exact."""
    values = [value for value, _ in model.log_partition_parts_.values()]
    return max(values) - min(values) if values else 0.0


def measure(
    data: Path, name: str, share: float, bases: list[str] | None = None
) -> list[dict[str, object]]:
    """Fit each candidate, choose on valid one for each base, open test once for it."""
    train, valid, test = load(data, name)
    best: dict[str, tuple] = {}
    for settings in CANDIDATES[name]:
        base = settings.get("base", settings.get("noise", "independent"))
        base += WHAT[settings.get("estimator", RBMEstimator)]
        if bases is not None and base not in bases:
            continue
        model = build(settings, train, share)
        spent = seconds(lambda model=model: model.fit(train))
        score = model.score(valid)
        what = describe(settings)
        print(f"{name}: {base} {what}, valid {score:.4f}, {spent:.1f} s", flush=True)
        total = spent + (best[base][1] if base in best else 0.0)
        if base in best and best[base][0] > score:
            best[base] = best[base][0], total, *best[base][2:]
        else:
            best[base] = score, total, spent, model, what
    rows = [row(name, base, *found, test) for base, found in best.items()]
    return [one | {"HCLT": published(data, name)["hclt_2021"]} for one in rows]


def row(
    name: str,
    base: str,
    score: float,
    total: float,
    spent: float,
    model: Any,
    what: str,
    test: np.ndarray,
) -> dict[str, object]:
    """A line of the table."""
    per_row = model.score_samples(test)
    return {
        "set": name,
        "base": base,
        "chosen": what,
        "log Z": model.log_partition_kind_,
        "valid": f"{score:.3f}",
        "test": f"{model.score(test):.3f}",
        "std. error": f"{per_row.std() / len(per_row) ** 0.5:.3f}",
        "n": len(test),
        "spread": f"{spread(model):.2f}",
        "fit, s": round(spent),
        "all fits, s": round(total),
    }


def continuous(args: argparse.Namespace) -> None:
    """Print the tables of continuous sets."""
    sets = args.sets or [*_toys.NAMES, *WINES]
    named = {cls.__name__: cls for cls in TOY_CANDIDATES}
    classes = [named[name] for name in args.estimators]
    toys = [toy_row(name, cls) for name in sets if name in _toys.NAMES for cls in classes]
    if toys:
        print(table(toys))
    wines = load_results(args.merge)
    for name in sets:
        if name in WINES:
            n_splits = 2 if args.quick else N_SPLITS
            found = measure_wine(args.data, name, n_splits, args.contenders)
            wines[name] = wines.get(name, {}) | found
    if wines:
        print(table(wine_rows(wines)))
    write(args.json, {"toys": toys, "wine": wines})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=[*CANDIDATES, *_toys.NAMES, *WINES])
    parser.add_argument("--continuous", action="store_true")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    names = [cls.__name__ for cls in TOY_CANDIDATES]
    parser.add_argument("--estimators", nargs="+", choices=names, default=names)
    parser.add_argument("--merge", nargs="+", default=[], help="results on the same splits")
    parser.add_argument("--bases", nargs="+", help="candidates with these bases only")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--json")
    args = parser.parse_args()
    print(machine())
    if args.continuous:
        continuous(args)
        return
    share, sets = 0.1 if args.quick else 1.0, args.sets or ["nltcs", "plants"]
    rows = [row for name in sets for row in measure(args.data, name, share, args.bases)]
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
