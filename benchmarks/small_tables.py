"""Small tables whose best RBM is known: does training get enough steps, and what do penalties do?

    OMP_NUM_THREADS=1 python -m benchmarks.small_tables [--penalties] [--sets bars3 ...] [--json F]

Protocol: 280 rows of each set, drawn with replacement (seed 0 of the data), at most 16 columns and
16 hidden units, so that log Z is exact; mean log-likelihoods of these rows in nats, means over
seeds of the fits with their standard deviation. "50" and "200 passes" are given as `n_iter`, all
else is the default; "entropy" is minus that of the rows, which no model exceeds. `BernoulliRBM` has
its defaults but for `n_iter`. With `--penalties`, the penalised mean negative log-likelihood at the
end (and the likelihood) by three rules.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.neural_network import BernoulliRBM

from benchmarks._common import machine, table, write
from skebm import RBMEstimator
from skebm.objectives import Penalty

N_ROWS = 280


def bars(size: int) -> np.ndarray:
    """Bars and stripes: whole rows or whole columns are on."""
    lines = np.array(list(itertools.product([0, 1], repeat=size)))
    images = [np.repeat(line, size) for line in lines] + [np.tile(line, size) for line in lines]
    return np.unique(images, axis=0)


def parity(n: int) -> np.ndarray:
    """Two blocks of n bits of even parity, one the copy of the other."""
    half = np.array([s for s in itertools.product([0, 1], repeat=n) if sum(s) % 2 == 0])
    return np.concatenate([half, half], 1)


def shifter(n: int, *, labelled: bool) -> np.ndarray:
    """n bits and the same shifted left, not at all or right, with a one-hot label of the shift."""
    found = []
    for bits in itertools.product([0, 1], repeat=n):
        for k, shift in enumerate((-1, 0, 1)):
            label = np.eye(3, dtype=int)[k] if labelled else []
            found.append(np.concatenate([bits, np.roll(bits, shift), label]))
    return np.array(found).astype(int)


def one_hot(sizes: tuple[int, ...]) -> np.ndarray:
    """Categories in one-hot codes, the last one the sum of the others, modulo its size."""
    found = []
    for levels in itertools.product(*[range(k) for k in sizes[:-1]]):
        codes = [*levels, sum(levels) % sizes[-1]]
        found.append(
            np.concatenate([np.eye(k, dtype=int)[c] for c, k in zip(codes, sizes, strict=True)])
        )
    return np.array(found)


def teacher(n: int, n_hidden: int, scale: float) -> np.ndarray:
    """Rows of an RBM with random weights."""
    rng = np.random.default_rng(1)
    weight = scale * rng.standard_normal((n_hidden, n))
    states = np.array(list(itertools.product([0, 1], repeat=n)))
    centred = weight @ (states.T - 0.5)
    log_p = np.logaddexp(0, centred).sum(0)
    p = np.exp(log_p - log_p.max())
    return states[rng.choice(len(states), N_ROWS, p=p / p.sum())]


# States that are equally likely, or the rows themselves; hidden units.
SETS: dict[str, tuple[Callable[[], np.ndarray], int]] = {
    "bars3": (lambda: bars(3), 12),
    "bars4": (lambda: bars(4), 16),
    "parity": (lambda: parity(4), 12),
    "shifter": (lambda: shifter(5, labelled=False), 16),
    "labelled shifter": (lambda: shifter(4, labelled=True), 16),
    "one-hot": (lambda: one_hot((4, 3, 4)), 12),
    "teacher": (lambda: teacher(12, 6, 2.0), 12),
}
FITS: dict[str, dict[str, object]] = {
    "default": {},
    "PCD, 50 passes": {"learning": "pcd", "n_iter": 50},
    "PCD, 200 passes": {"learning": "pcd", "n_iter": 200},
    "CD, 200 passes": {"learning": "cd", "n_iter": 200},
}


def rows(name: str) -> np.ndarray:
    """280 rows of a set."""
    states = SETS[name][0]()
    if len(states) != N_ROWS:
        states = states[np.random.default_rng(0).integers(0, len(states), N_ROWS)]
    return states.astype(float)


def measure(name: str, n_seeds: int) -> dict[str, object]:
    """One row of the table: likelihoods, and how many fits warned and named an n_iter."""
    X, n_hidden = rows(name), SETS[name][1]
    counts = np.unique(X, axis=0, return_counts=True)[1] / N_ROWS
    row: dict[str, object] = {
        "set": f"{name}, {X.shape[1]} columns, H={n_hidden}",
        "entropy": f"{counts @ np.log(counts):.2f}",
    }
    for label, given in FITS.items():
        found, warned = [], 0
        for seed in range(n_seeds):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found.append(RBMEstimator(n_hidden, random_state=seed, **given).fit(X).score(X))
            warned += any("n_iter" in str(w.message) for w in caught)  # the number to set
        row[label] = shown(found) + (f", {warned} warned" if warned else "")
    peer = [peer_score(X, n_hidden, seed) for seed in range(n_seeds)]
    return row | {"`BernoulliRBM`, 200 passes": shown(peer)}


def shown(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(values):.2f} ({np.std(values, ddof=1):.2f})"


def peer_score(X: np.ndarray, n_hidden: int, seed: int) -> float:
    """Mean log-likelihood of scikit-learn's RBM, with log Z by enumeration of the rows."""
    model = BernoulliRBM(n_hidden, n_iter=200, random_state=seed).fit(X)
    states = np.array(list(itertools.product([0.0, 1.0], repeat=X.shape[1])))
    log_z = np.logaddexp.reduce(-model._free_energy(states))
    return float(np.mean(-model._free_energy(X)) - log_z)


def penalties(name: str, seed: int = 0) -> list[dict[str, object]]:
    """The penalised likelihood, which is minimised, at the end of three rules."""
    X, n_hidden = rows(name), SETS[name][1]
    found = []
    for penalty in (Penalty(l2=0.01), Penalty(l1=0.001), Penalty(l1=0.003)):
        row: dict[str, object] = {"set": name, "penalty": str(penalty)}
        for label, given in RULES.items():
            model = RBMEstimator(n_hidden, penalty=penalty, random_state=seed, **given).fit(X)
            weight = model.components_
            cost = penalty.l1 * abs(weight).sum() + penalty.l2 / 2 * (weight**2).sum()
            row[label] = f"{cost - model.score(X):.3f} ({model.score(X):.2f})"
        found.append(row)
    return found


RULES: dict[str, dict[str, object]] = {
    "L-BFGS": {"learning": "exact"},
    "exact steps": {"learning": "exact", "batch_size": 100},
    "PCD": {"learning": "pcd"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--penalties", action="store_true", help="only the table of penalties")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    found = []
    for name in args.sets:
        if args.penalties:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                new = penalties(name)
        else:
            new = [measure(name, args.seeds)]
        found += new
        print("\n".join(table(new).splitlines()[2:]), flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), "small tables": found})


if __name__ == "__main__":
    main()
