"""What choosing among products of densities loses: chosen on half of the sets, used on the others.

    OMP_NUM_THREADS=1 python -m benchmarks.products --data PATH [--halvings 5] [--json F]

PATH holds `adbench/<set>.npz`. Protocol: the splits of `benchmarks.anomaly`, seed 0, of which the
first 3,000 training rows, 3,000 normal test rows and 2,000 anomalies are used. Candidates: the
products of one to four of eight experts, each log density divided by its spread, as
`ProductOfDensities` does. Each halving divides the sets at random; the candidate with the largest
mean of AUROC and average precision on one half is scored on the other, and the other way round.
Beside it, on the same sets: the default, which was decided on with all sets in view, so that its
numbers are optimistic beside those of the chosen ones, and two baselines.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks._anomaly_methods import KthNeighbour
from benchmarks._common import table, write
from benchmarks.anomaly import part
from skebm import ProductOfDensities, TractableDensity
from skebm.estimators.outlier.product import default_experts

MOST = (3000, 3000, 2000)
LARGEST = 4
BASELINE = "5th neighbour"


def experts(n: int) -> list[tuple[str, TractableDensity]]:
    """Candidates for a factor, for n training rows; among them those of the default."""
    finer = int(np.clip(n // 30, 1, 40))
    return [
        *default_experts(),
        ("kernels", TractableDensity("kernel")),
        ("equal_kernels_by_range", TractableDensity("kernel", metric="range")),
        ("finer_mixture", TractableDensity("mixture", n_components=finer, regularisation=0.1)),
        ("sharp_mixture", TractableDensity("mixture", regularisation=0.01)),
        ("gaussian", TractableDensity("gaussian")),
    ]


def scaled(data: Path, name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Energies of the test rows by expert, in units of their spread, and the labels."""
    train, test, labels = part(data, name, MOST)
    model = ProductOfDensities(experts(len(train)), random_state=0).fit(train)
    pairs = zip(model.weights_, model.experts_.items(), strict=True)
    found = {label: -w * expert.score_samples(test) for w, (label, expert) in pairs}
    found[BASELINE] = -KthNeighbour().fit(train).score_samples(test)
    return found, labels


def detection(energy: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """AUROC and average precision in percent."""
    return 100 * roc_auc_score(labels, energy), 100 * average_precision_score(labels, energy)


def halvings(sets: list[str], n: int) -> list[tuple[list[int], list[int]]]:
    """Random halves of the sets, to choose on and to score, both ways."""
    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        order = rng.permutation(len(sets)).tolist()
        one, other = order[: len(order) // 2], order[len(order) // 2 :]
        found += [(one, other), (other, one)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--halvings", type=int, default=5)
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    sets = sorted(path.stem for path in (args.data / "adbench").glob("*.npz"))
    names = [name for name, _ in experts(100)]
    candidates = [
        some for size in range(1, LARGEST + 1) for some in itertools.combinations(names, size)
    ]
    default = tuple(name for name, _ in default_experts())
    scores = np.zeros((len(candidates) + 1, len(sets), 2))
    for i, name in enumerate(sets):
        energies, labels = scaled(args.data, name)
        for k, some in enumerate([*candidates, (BASELINE,)]):
            scores[k, i] = detection(sum(energies[label] for label in some), labels)
        print(name, scores[candidates.index(default), i].round(1), flush=True)
    fixed = {
        "default": candidates.index(default),
        "kernels": candidates.index(("kernels",)),
        BASELINE: len(candidates),
    }
    rows: list[dict[str, object]] = []
    found: list[dict[str, np.ndarray]] = []
    for choose, report in halvings(sets, args.halvings):
        best = int(scores[:-1, choose].mean((1, 2)).argmax())
        used = {"chosen on the other half": best} | fixed
        means = {label: scores[k, report].mean(0) for label, k in used.items()}
        row: dict[str, object] = {"chosen": " x ".join(candidates[best])}
        row |= {label: "{:.2f} / {:.2f}".format(*value) for label, value in means.items()}
        found.append(means)
        gap = (scores[best] - scores[-1])[report, 0].min()
        rows.append(row | {f"worst set, chosen - {BASELINE}": f"{gap:+.1f}"})
    print("\n" + table(rows))
    overall = {label: np.mean([one[label] for one in found], 0).round(2) for label in found[0]}
    print(f"{len(candidates)} candidates; means over halves of AUROC and AP:", overall)
    write(args.json, {"halvings": rows})


if __name__ == "__main__":
    main()
