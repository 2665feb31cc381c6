"""Gated RBMs: which relation two images have, analogies, nats of pairs, the cost of an epoch.

    OMP_NUM_THREADS=1 python -m benchmarks.higher_order gated --part relations [--seeds 3]
        [--only TASK ...] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.higher_order gated --part epoch

All parts take `--quick`, a smoke test.

`relations`: pairs of images x and y, of which y is x shifted by one of the 9 shifts of up to one
pixel in both directions, or rotated by one of 9 multiples of 40 degrees (linear interpolation).
Images are random dots (13 x 13, a pixel is on with probability 0.1; new dots move in from outside)
and the digits of scikit-learn (8 x 8, on 12 x 12 zeros). Digits are shifted at random by up to one
pixel before they become x, and all images that are rotated are first rotated at random, so that x
or y alone does not tell the relation.
20,000 pairs of training images (1,000 of digits) train the model without being told the relation;
a logistic regression of 3,000 of them on the mapping units then reads it out, its C one of 0.01,
0.1 and 1 by 1,000 pairs of validation images (300 of digits), and is tested once by 2,000
pairs of test images (497 of digits). No image is in two parts. Beside it the same regression on
the pixels of both images, and on the hidden units of an `RBMEstimator` of as many units and as
many steps fitted to pairs side by side.

`GatedRBM(100, 200, n_iter=60)`, defaults otherwise, but for ``visible="gaussian"`` of rotated dots,
whose grey values as bits are mostly noise (14 % of validation pairs are read out). These, and the
defaults (size of steps, first responses, learning rate), were chosen on validation pairs. Of the
pairs that train a model of digits, RBMs too, half are random dots with the same relations: strokes
of 1,000 digits alone leave the model with filters for parts of digits (87 % of validation pairs
are read out, and 73 % of the variance of analogies is not explained).

`analogy` is the squared error of the test image d in a : b = c : d, with the mapping units inferred
from another pair (a, b) of the same relation, over the error of the mean of each pixel; `of many`
with the mean of the mapping units over all 2,000 test pairs of this relation, `own` with those of
the pair (c, d) itself, and `unaided` by E(y | x) without a pair. Nats are log p(y | x) of 200 test
pairs, at the lower and the upper end of the bracket, beside independent pixels. Means and standard
errors over seeds.

`epoch`: an epoch of a fit to 20,000 pairs, 500 a step, beside the matrix products, sigmoids and
draws of its steps alone: medians of paired ratios of processor time of the epochs after which
held-out pairs are not assessed; and of all epochs together, which are 40, with 20 assessments.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import Callback

from benchmarks._common import seconds, shown, spread, write
from skebm import GatedRBM, RBMEstimator

SHIFTS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
DOTS, MARGIN, CANVAS = 13, 4, 12
TASKS = ("dots shifted", "dots rotated", "digits shifted", "digits rotated")
N_PAIRS = {"train": 20_000, "valid": 1000, "test": 2000}
N_READ_OUT = 3000

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


# ------------------------------------------------------------------------------
# Pairs
# ------------------------------------------------------------------------------


def shifted(image: np.ndarray, shift: tuple[int, int]) -> np.ndarray:
    """An image with a margin of zeros, or of dots, moved."""
    return np.roll(image, shift, (0, 1))


def rotated(image: np.ndarray, degrees: float) -> np.ndarray:
    return np.clip(rotate(image, degrees, reshape=False, order=1), 0, 1)


def pairs(task: str, part: str, n: int, seed: int) -> Pairs:
    """Rows x and y, and the number of their relation."""
    kind, how = task.split()
    rng = np.random.default_rng([seed, list(N_PAIRS).index(part)])
    images = digits(part) if kind == "digits" else None
    which = rng.integers(0, 9, n)
    x, y = [], []
    for k in which:
        if images is None:
            image = (rng.random((DOTS + 2 * MARGIN,) * 2) < 0.1).astype(np.float32)
        else:
            image = images[rng.integers(len(images))]
        first, second = related(image, how, k, rng, 0 if images is not None else MARGIN)
        x.append(first)
        y.append(second)
    return np.stack(x), np.stack(y), which


def related(
    image: np.ndarray, how: str, k: int, rng: np.random.Generator, margin: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two flat images whose relation is number k, of which a margin is cut off."""
    inside = slice(margin, image.shape[0] - margin)
    if how == "shifted":
        first = image if margin else shifted(image, SHIFTS[rng.integers(9)])
        second = shifted(first, SHIFTS[k])
    else:
        start = 360 * rng.random()
        first, second = rotated(image, start), rotated(image, start + 40 * k)
    return first[inside, inside].ravel(), second[inside, inside].ravel()


def trained_on(task: str, found: Pairs, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training pairs; of digits every second one is made of random dots instead."""
    X, Y, which = found
    kind, how = task.split()
    if kind == "dots":
        return X, Y
    rng, X, Y = np.random.default_rng([seed, 3]), X.copy(), Y.copy()
    for place in range(0, len(X), 2):
        dots = (rng.random((CANVAS, CANVAS)) < 0.15).astype(np.float32)
        X[place], Y[place] = related(dots, how, which[place], rng, 0)
    return X, Y


def digits(part: str) -> np.ndarray:
    """The digits of a part on a larger canvas, grey values in [0, 1]."""
    order = np.random.default_rng(0).permutation(1797)
    own = {"train": order[:1000], "valid": order[1000:1300], "test": order[1300:]}[part]
    margin = (CANVAS - 8) // 2
    images = load_digits().images[own].astype(np.float32) / 16
    return np.pad(images, ((0, 0), (margin, margin), (margin, margin)))


# ------------------------------------------------------------------------------
# Relations
# ------------------------------------------------------------------------------


def read_out(features: dict[str, np.ndarray], which: dict[str, np.ndarray]) -> float:
    """Accuracy on test pairs, in percent, of a logistic regression chosen on validation pairs."""

    def fitted(C: float) -> Any:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=200))
        return model.fit(features["train"][:N_READ_OUT], which["train"][:N_READ_OUT])

    models = [fitted(C) for C in (0.01, 0.1, 1.0)]
    best = max(models, key=lambda model: model.score(features["valid"], which["valid"]))
    return 100 * best.score(features["test"], which["test"])


def relation(task: str, seed: int, quick: bool) -> dict[str, float]:
    """Accuracies, errors and nats of a task and a seed."""
    size = {part: n // 20 if quick else n for part, n in N_PAIRS.items()}
    found = {part: pairs(task, part, n, seed) for part, n in size.items()}
    which = {part: k for part, (_, _, k) in found.items()}
    X, Y = trained_on(task, found["train"], seed)
    # As bits, the faint grey dots that interpolation leaves are mostly noise.
    visible = "gaussian" if task == "dots rotated" else "auto"
    model = GatedRBM(100, 200, n_iter=60, visible=visible, random_state=seed)
    n_iter = 60
    if quick:
        model.set_params(n_components=20, n_factors=30, n_iter=3)
        n_iter = 2
    took = seconds(lambda: model.fit(X, Y))
    plain = RBMEstimator(
        n_components=model.n_components,
        learning="pcd",
        n_iter=n_iter,
        batch_size=500,
        partition=None,
        random_state=seed,
    )
    both = {part: np.hstack([x, y]) for part, (x, y, _) in found.items()}
    plain.fit(np.hstack([X, Y]))
    units = {part: model.transform(x, y) for part, (x, y, _) in found.items()}
    x, y, k = found["test"]
    ends = model.log_conditional(x[:200], y[:200])
    alone = GatedRBM(n_iter=0, visible=visible, random_state=seed).fit(X, Y)
    return {
        "gated, %": read_out(units, which),
        "RBM, %": read_out({part: plain.transform(rows) for part, rows in both.items()}, which),
        "pixels, %": read_out(both, which),
        "analogy": analogy(model, x, y, k, units["test"]),
        "of many": analogy(model, x, y, k, units["test"], many=True),
        "own": unexplained(y, model.predict(x, units["test"])),
        "unaided": unexplained(y[:500], model.predict(x[:500])),
        "nats, lower": float(ends.lower.mean()),
        "nats, upper": float(ends.upper.mean()),
        "independent pixels": alone.score(x[:200], y[:200]),
        "fit, s": took,
    }


def analogy(
    model: Any,
    x: np.ndarray,
    y: np.ndarray,
    k: np.ndarray,
    units: np.ndarray,
    *,
    many: bool = False,
) -> float:
    """Share of the variance of d that is not explained in a : b = c : d, by one pair or `many`."""
    guess = np.empty_like(y)
    for one in np.unique(k):
        same = np.flatnonzero(k == one)
        others = units[same].mean(0) if many else units[np.roll(same, 1)]
        guess[same] = model.predict(x[same], others)
    return unexplained(y, guess)


def unexplained(y: np.ndarray, guess: np.ndarray) -> float:
    return float(np.square(y - guess).mean() / np.square(y - y.mean(0)).mean())


def relations(tasks: Sequence[str], n_seeds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each task."""
    for task in tasks:
        runs = [relation(task, seed, quick) for seed in range(n_seeds)]
        row: dict[str, Any] = {"pairs": task}
        for name in runs[0]:
            values = np.array([run[name] for run in runs])
            error = values.std(ddof=1) / len(values) ** 0.5 if n_seeds > 1 else float("nan")
            row[name] = f"{values.mean():.4g} ({error:.2g})"
        yield row


# ------------------------------------------------------------------------------
# Epochs
# ------------------------------------------------------------------------------


class Clock(Callback):
    """Processor time of each epoch, and beside it of what `alone` does, once before every epoch."""

    def __init__(self, alone: Callable[[], object]):
        self.alone = alone
        self.ours: list[float] = []
        self.beside: list[float] = []

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        self.beside.append(cpu_seconds(self.alone))
        self.started = time.process_time()

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        self.ours.append(time.process_time() - self.started)


def epochs(quick: bool) -> Iterator[dict[str, Any]]:
    """Epochs of a fit beside their products alone."""
    n, n_iter = (2000, 25) if quick else (20_000, 40)
    X, Y, _ = pairs("dots shifted", "train", n, 0)
    rows = torch.from_numpy(X), torch.from_numpy(Y)
    for n_hidden, n_factors in ((50, 100), (100, 200), (200, 400)):
        clock = Clock(lambda s=(n_hidden, n_factors): products(*rows, *s))
        model = GatedRBM(
            n_hidden,
            n_factors,
            batch_size=500,
            n_iter=n_iter,
            random_state=0,
            net_params={"callbacks": [clock]},
        )
        model.fit(X, Y)
        plain = [k for k, row in enumerate(model.history_) if "gain_over_base" not in row]
        ours, alone = np.array(clock.ours), np.array(clock.beside[: len(clock.ours)])
        yield {
            "mapping units": n_hidden,
            "factors": n_factors,
            "epoch, s": float(np.median(ours[plain])),
            "over products": spread(ours[plain].tolist(), alone[plain].tolist()),
            "with assessments": float(ours.sum() / alone.sum()),
        }


def cpu_seconds(run: Callable[[], object]) -> float:
    """Time of the processor, which other processes on the computer do not change much."""
    started = time.process_time()
    run()
    return time.process_time() - started


@torch.no_grad()
def products(X: torch.Tensor, Y: torch.Tensor, n_hidden: int, n_factors: int) -> None:
    """What a step cannot do without: its products, sigmoids and draws of both layers."""
    U, V = torch.randn(n_factors, X.shape[1]), torch.randn(n_factors, Y.shape[1])
    W = torch.randn(n_factors, n_hidden)
    for x, y in zip(X.split(500), Y.split(500), strict=True):
        gate, response = x @ U.t(), y @ V.t()
        h = ((gate * response) @ W).sigmoid_()
        layer = torch.empty_like(h).uniform_().lt_(h)
        mean = ((gate * (layer @ W.t())) @ V).sigmoid_()
        chain = torch.empty_like(mean).uniform_().lt_(mean)
        of_chain = chain @ V.t()
        other = ((gate * of_chain) @ W).sigmoid_()
        both, factors = torch.cat([h, other]), torch.cat([response, of_chain])
        pulled = both @ W.t()
        gates = gate.repeat(2, 1)
        (gates * factors).t() @ both
        (gates * pulled).t() @ torch.cat([y, chain])
        (factors * pulled)[: len(x)].t() @ x


def main(argv: Sequence[str] | None = None) -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("relations", "epoch"), default="relations")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--data", help="not used: digits are scikit-learn's, dots are drawn")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if args.part == "epoch":
        rows = epochs(args.quick)
    else:
        rows = relations(args.only, 1 if args.quick else args.seeds, args.quick)
    write(args.json, {"part": args.part, "rows": shown(rows)})


if __name__ == "__main__":
    main()
