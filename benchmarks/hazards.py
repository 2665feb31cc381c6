"""Default RBMs on binary tables made to mislead them: gains over independent columns.

    OMP_NUM_THREADS=1 python -m benchmarks.hazards [--only NAME ...] [--base chow-liu] [--json F]

Protocol: each generator (seed 0) draws 1,000 rows to fit, or as many as it says, and 1,000 to
score; `RBMEstimator(64, base=..., random_state=0)` otherwise with its defaults. The gain is `score`
(log Z at its pessimistic end) less the mean log-likelihood of independent columns with the
training rows' frequencies and one row of each value added; the largest gain possible, where the
generator knows its likelihood, is that of the generator.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from math import comb, lgamma, log

import numpy as np

from benchmarks._common import machine, seconds, table, write
from skebm import RBMEstimator

Random = np.random.Generator
GENERATORS: dict[str, tuple[Callable[[Random, int], np.ndarray], float | None, int]] = {}
N_TEST = 1000


def hazard(log_p: float | None = None, n: int = 1000) -> Callable[..., Callable[..., np.ndarray]]:
    """Register a generator of n rows whose mean log-likelihood is `log_p`, if that is known."""

    def register(draw: Callable[[Random, int], np.ndarray]) -> Callable[[Random, int], np.ndarray]:
        GENERATORS[draw.__name__] = draw, log_p, n
        return draw

    return register


def entropy(p: np.ndarray) -> float:
    """Minus the entropy of independent bits in nats: their mean log-likelihood."""
    return float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())


SKEWED = np.geomspace(0.3, 0.002, 1000)


@hazard(entropy(SKEWED))
def wide_skewed(random: Random, n: int) -> np.ndarray:
    """Independent columns, of which most are rarely on."""
    return random.random((n, 1000)) < SKEWED


@hazard()
def wide_topics(random: Random, n: int) -> np.ndarray:
    """Wide and sparse rows from ten topics."""
    profile = 0.4 * (np.random.default_rng(1).random((10, 800)) < 0.02) + 0.004
    return random.random((n, 800)) < profile[random.integers(10, size=n)]


@hazard(10 * -log(6))
def one_hot(random: Random, n: int) -> np.ndarray:
    """Ten independent categories of six values each."""
    return np.eye(6)[random.integers(6, size=(n, 10))].reshape(n, 60)


@hazard(-log(30) + entropy(np.full(30, 0.05)))
def one_hot_rule(random: Random, n: int) -> np.ndarray:
    """A category of thirty values, and thirty columns of which the category's is flipped."""
    k = random.integers(30, size=n)
    noise = random.random((n, 30)) < 0.05
    return np.hstack([np.eye(30)[k], noise ^ (np.eye(30)[k] > 0)])


@hazard(10 * -log(2))
def duplicated(random: Random, n: int) -> np.ndarray:
    """Ten bits, each eight times."""
    return np.repeat(random.integers(2, size=(n, 10)), 8, axis=1)


@hazard(-log(2))
def all_equal(random: Random, n: int) -> np.ndarray:
    """A hundred copies of one bit."""
    return np.repeat(random.integers(2, size=(n, 1)), 100, axis=1)


@hazard()
def rare_pairs(random: Random, n: int) -> np.ndarray:
    """Rare columns, of which pairs are on together."""
    pair = random.random((n, 40)) < 0.02
    noise = random.random((n, 80)) < 0.01
    return np.repeat(pair, 2, axis=1) | noise


@hazard(-19 * log(2))
def parity(random: Random, n: int) -> np.ndarray:
    """Bits whose last is the parity of the others."""
    x = random.integers(2, size=(n, 19))
    return np.hstack([x, x.sum(1, keepdims=True) % 2])


@hazard(-lgamma(9))
def permutations(random: Random, n: int) -> np.ndarray:
    """Permutation matrices of eight."""
    return np.eye(8)[np.argsort(random.random((n, 8)), axis=1)].reshape(n, 64)


@hazard(-log(comb(40, 10)))
def k_hot(random: Random, n: int) -> np.ndarray:
    """Ten of forty columns are on."""
    return np.argsort(np.argsort(random.random((n, 40)), axis=1), axis=1) < 10


@hazard(-log(50))
def windows(random: Random, n: int) -> np.ndarray:
    """Ten neighbours on, anywhere on a circle of fifty."""
    return (np.arange(50) - random.integers(50, size=(n, 1))) % 50 < 10


@hazard(-log(31))
def ordinal(random: Random, n: int) -> np.ndarray:
    """A number from 0 to 30 in unary code."""
    return np.arange(30) < random.integers(31, size=(n, 1))


@hazard(-log(4) + entropy(np.full(100, 0.02)))
def clusters(random: Random, n: int) -> np.ndarray:
    """Four prototypes with little noise."""
    prototypes = np.random.default_rng(1).integers(2, size=(4, 100))
    return prototypes[random.integers(4, size=n)] ^ (random.random((n, 100)) < 0.02)


@hazard(entropy(np.array([0.05])) + entropy(np.full(60, 0.1)))
def unequal_clusters(random: Random, n: int) -> np.ndarray:
    """Two opposite prototypes, one of them in a row of twenty."""
    far = random.random((n, 1)) < 0.05
    return far ^ (random.random((n, 60)) < 0.1)


@hazard(entropy(np.full(100, 0.001)))
def nearly_constant(random: Random, n: int) -> np.ndarray:
    """Columns that are on once in a thousand rows."""
    return random.random((n, 100)) < 0.001


@hazard(-64 * log(2))
def noise(random: Random, n: int) -> np.ndarray:
    """Independent fair bits."""
    return random.integers(2, size=(n, 64))


@hazard(-log(2) - 49 * log(2) + 49 * (log(2) + entropy(np.array([0.1]))))
def chain(random: Random, n: int) -> np.ndarray:
    """A Markov chain that changes with probability 0.1."""
    x = random.random((n, 50)) < 0.1
    x[:, 0] = random.integers(2, size=n)
    return np.cumsum(x, axis=1) % 2


@hazard(n=60)
def few_rows(random: Random, n: int) -> np.ndarray:
    """Sixty rows of two hundred columns with four factors."""
    loading = np.random.default_rng(1).normal(size=(4, 200))
    logits = 2 * random.normal(size=(n, 4)) @ loading - 1
    return random.random((n, 200)) < 1 / (1 + np.exp(-logits))


@hazard()
def factors(random: Random, n: int) -> np.ndarray:
    """Six factors of a hundred columns."""
    loading = np.random.default_rng(1).normal(size=(6, 100))
    logits = 1.5 * random.normal(size=(n, 6)) @ loading
    return random.random((n, 100)) < 1 / (1 + np.exp(-logits))


@hazard()
def zero_rows(random: Random, n: int) -> np.ndarray:
    """Nine rows in ten are empty, the tenth is dense."""
    return (random.random((n, 1)) < 0.1) & (random.random((n, 80)) < 0.4)


@hazard(3 * -log(10))
def implied(random: Random, n: int) -> np.ndarray:
    """Three digits in one-hot code, and ten columns that their sum determines."""
    digits = random.integers(10, size=(n, 3))
    return np.hstack([np.eye(10)[digits].reshape(n, 30), np.eye(10)[digits.sum(1) % 10]])


def measure(name: str, base: str) -> dict[str, object]:
    """One row of the table."""
    draw, log_p, n = GENERATORS[name]
    random = np.random.default_rng(0)
    train, test = draw(random, n).astype(float), draw(random, N_TEST).astype(float)
    p = (train.sum(0) + 1) / (n + 2)
    independent = float((test @ np.log(p) + (1 - test) @ np.log1p(-p)).mean())
    model = RBMEstimator(64, base=base, random_state=0)
    took = seconds(lambda: model.fit(train))
    gain = model.score_samples(test) + model.log_partition_ - test @ np.log(p)
    gain -= (1 - test) @ np.log1p(-p)
    score = model.score(test)
    of_base = model.base_.log_prob(model._rows(test).block(0, N_TEST)).double().mean()
    return {
        "hazard": name,
        "columns": train.shape[1],
        "rows": n,
        "gain": f"{score - independent:+.2f}",
        "s.e.": f"{gain.std() / N_TEST**0.5:.2f}",
        "of the base": f"{float(of_base) - independent:+.2f}",
        "possible": "" if log_p is None else f"{log_p - independent:+.2f}",
        "assessed": f"{max(h.get('gain_over_base', -np.inf) for h in model.history_):.2f}",
        "fit, s": took,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(GENERATORS))
    parser.add_argument("--base", default="independent")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for name in args.only:
        found.append(measure(name, args.base))
        print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))
    write(args.json, {"machine": machine(), "hazards": found})


if __name__ == "__main__":
    main()
