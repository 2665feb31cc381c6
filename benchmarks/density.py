"""Test log-likelihood of binary tables next to the published ones.

    python -m benchmarks.density --data PATH [--sets nltcs jester ...] [--quick] [--json F]

PATH holds `debd/<set>.npz` with the published train, valid and test splits as packed bits,
`published/debd_test_ll.csv`, and `images/binarized_mnist.npz` for the set `mnist` (784-16 with an
exact log Z) and `mnist500`.

Protocol: every candidate of a set (`CANDIDATES`: hidden units, base, penalty, passes; seed 0) is
fitted on `train`; the one with the best `score(valid)` is kept; `test` is opened once. Mean
log-likelihood in nats with its standard error over rows. With an estimated log Z all scores are by
the pessimistic end of the bracket: the largest of forward AIS and reverse AIS from three starts
(training rows, training chains, both after 1,000 Gibbs steps), plus two standard errors. `spread`
is the distance between the largest and the smallest of these estimates. Threads as torch finds them
(OMP_NUM_THREADS=1: one). Seconds are those of the chosen fit and of all fits.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from benchmarks._common import machine, seconds, table, write
from skebm import RBMEstimator
from skebm.noise import BlockTree

# Steps of a hundred rows with 500 chains; the step size falls linearly to a hundredth.
STEPS = {"precondition": 0.5, "learning_rate_decay": "linear", "batch_size": 100, "n_chains": 500}
TREE = {"base": "chow-liu", "learning_rate": 0.3} | STEPS
PLAIN = {"base": "independent", "learning_rate": 0.1} | STEPS


def candidate(kind: dict, n_components: int, n_steps: int, l2: float = 0.0, **more) -> dict:
    """Arguments of an estimator, with the number of steps in the place of passes."""
    return kind | {"n_components": n_components, "n_steps": n_steps, "l2": l2} | more


CANDIDATES: dict[str, list[dict]] = {
    "nltcs": [{"n_components": h} for h in (16, 24, 32, 48)],
    "jester": [candidate(PLAIN, 100, 40_000, 0.003), candidate(PLAIN, 150, 40_000, 0.005)],
    "baudio": [candidate(PLAIN, 100, 40_000, 0.001), candidate(PLAIN, 100, 40_000, 0.003)],
    "plants": [candidate(PLAIN, 100, 30_000, 0.0002), candidate(PLAIN, 150, 30_000, 0.0002)],
    "accidents": [candidate(TREE, 200, 30_000, 0.0003), candidate(PLAIN, 200, 20_000, 0.0003)],
    "dna": [
        candidate(TREE, 100, 8000, 0.01),
        candidate(TREE, 30, 6000, 0.01, base="blocks"),
        candidate(TREE, 100, 6000, 0.03, base="blocks"),
    ],
    "msweb": [candidate(TREE, 100, 15_000, 0.0003), candidate(PLAIN, 100, 15_000, 0.0003)],
    "book": [candidate(TREE, 100, 10_000, 0.001), candidate(PLAIN, 100, 10_000, 0.001)],
    "cr52": [candidate(TREE, 100, 6000, 0.001), candidate(PLAIN, 100, 6000, 0.001)],
    "tretail": [candidate(TREE, 60, 10_000, 0.001), candidate(PLAIN, 60, 10_000, 0.001)],
    "mnist": [candidate(PLAIN, 16, 20_000, learning="pcd")],
    "mnist500": [candidate(PLAIN, 500, 250_000, 1e-4, learning_rate=0.05, n_chains=100)],
}


def load(data: Path, name: str) -> tuple[np.ndarray, ...]:
    """Train, valid and test rows of a set, float32."""
    mnist = name.startswith("mnist")
    packed = np.load(data / ("images/binarized_mnist.npz" if mnist else f"debd/{name}.npz"))
    d = int(packed["d"])
    parts = (packed[part] for part in ("train", "valid", "test"))
    return tuple(np.unpackbits(part, axis=1)[:, :d].astype(np.float32) for part in parts)


def published(data: Path, name: str) -> dict[str, str]:
    """References for a set."""
    with open(data / "published" / "debd_test_ll.csv", newline="") as file:
        rows = {row["dataset"]: row for row in csv.DictReader(file)}
    return rows.get(name, {"hclt_2021": "", "chow_liu_tree": ""})


def build(settings: dict, train: np.ndarray, share: float) -> RBMEstimator:
    """The estimator of a candidate, its steps turned into passes."""
    settings = dict(settings)
    if "n_steps" in settings:
        n_batches = -(-len(train) // settings["batch_size"])
        settings["n_iter"] = max(1, round(share * settings.pop("n_steps") / n_batches))
    if settings.get("base") == "blocks":
        settings["base"] = BlockTree.fit(train, block_size=3)
    return RBMEstimator(random_state=0, **settings)


def describe(settings: dict) -> str:
    """A candidate in a few words."""
    base = settings.get("base", "independent")
    return f"H={settings['n_components']} {base} l2={settings.get('l2', 0)}"


def spread(model: RBMEstimator) -> float:
    """Distance of the largest from the smallest estimate of log Z; 0 when exact."""
    values = [value for value, _ in model.log_partition_parts_.values()]
    return max(values) - min(values) if values else 0.0


def measure(data: Path, name: str, share: float) -> dict[str, object]:
    """Fit each candidate, choose on valid, open test once."""
    train, valid, test = load(data, name)
    fits = []
    for settings in CANDIDATES[name]:
        model = build(settings, train, share)
        spent = seconds(lambda model=model: model.fit(train))
        fits.append((model.score(valid), spent, model, describe(settings)))
        print(f"{name}: {fits[-1][3]}, valid {fits[-1][0]:.4f}, {spent:.1f} s", flush=True)
    score, spent, model, what = max(fits, key=lambda fit: fit[0])
    per_row = model.score_samples(test)
    reference = published(data, name)
    return {
        "set": name,
        "chosen": what,
        "rule": model.learning_,
        "log Z": model.log_partition_kind_,
        "valid": f"{score:.4f}",
        "test": f"{model.score(test):.4f}",
        "standard error": f"{per_row.std() / len(per_row) ** 0.5:.4f}",
        "n": len(test),
        "fit, s": round(spent, 1),
        "all fits, s": round(sum(fit[1] for fit in fits), 1),
        "spread": f"{spread(model):.2f}",
        "HCLT": reference["hclt_2021"],
        "Chow-Liu": reference["chow_liu_tree"],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=CANDIDATES, default=["nltcs", "plants"])
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--json")
    args = parser.parse_args()
    share = 0.1 if args.quick else 1.0
    rows = [measure(args.data, name, share) for name in args.sets]
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
