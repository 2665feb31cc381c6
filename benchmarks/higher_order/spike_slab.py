"""Spike-and-slab RBMs: held-out nats beside Gaussian RBMs, one Gaussian and mixtures; one epoch.

    python -m benchmarks.higher_order.spike_slab --data PATH [--sets digits patches faces]
        [--splits 0 1 2] [--shared-base] [--speed] [--out F]

PATH holds `images/freyfaces.npz` and `images/mnist.npz`; digits are those of scikit-learn.

Protocol. All values are integers: noise of the width of a gap, uniform, is added once (seed 0), so
that log-likelihoods are densities that bound those of the integers from below on average. Three
splits (seeds 0 to 2): 400 test rows of digits (1,797 x 64) and of Frey faces (1,965 x 560), 2,000
of patches: 12,000 squares of 8 x 8 from images of MNIST at random places, of which those of a
standard deviation of less than 32 grey levels before the noise are drawn again, as most others are
black.

*One normal* is a normal distribution with full covariance, whose shrinkage of the correlations is
the best of 0.001, 0.003, ..., 0.3 on a tenth of the training rows, which are then given back. The
base of both RBMs is the normal distribution that they fit themselves (``base="gaussian"``). Both
RBMs have the same number of hidden units (64; 100 of faces) and otherwise the defaults of their
estimators, but for 300 epochs of faces. Those of the spike-and-slab RBM (rate, first biases) were
chosen on 300 validation rows of digits in another shuffle, and its five Gibbs steps a batch because
annealing of the model of split 0 found modes that chains of one step had not, so that rows of the
tests on digits had a part in them; patches and faces had none. `--shared-base` gives both RBMs the
normal distribution of the first method instead. Rows that guard their training were then among
those that their base was fitted to.

Both have the same AIS bracket, and the larger end of log Z counts (`score`). Mixtures have the
number of components (1 to 64) and the kind of covariance (full, tied, diagonal) of the least BIC.
Nats are means over test rows; "above" is the mean paired difference of the spike-and-slab RBM over
the other, with the standard error over the test rows of all splits.

`--speed`: steps of training (100 rows, 100 chains, five Gibbs steps, without gradients of torch
as in a fit)
beside the matrix products, the triangular solves and the factorisation that they consist of,
alternating, medians of paired ratios.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture

from benchmarks._common import seconds, spread, table, write
from skebm import RBMEstimator, SpikeSlabRBM
from skebm.base import Batch
from skebm.distributions import Gaussian
from skebm.energies import SpikeSlabEnergy
from skebm.estimators.rbm.spike_slab import N_STEPS
from skebm.objectives import ContrastiveDivergence
from skebm.partition import AISBracket
from skebm.samplers import Gibbs, Persistent

SPLITS = (0, 1, 2)
SHRINKAGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
UNITS = {"digits": 64, "patches": 64, "faces": 100}
N_TEST = {"digits": 400, "patches": 2000, "faces": 400}
SIZES = (1, 2, 4, 8, 16, 32, 64)
LEAST_SPREAD, N_PATCHES = 32.0, 12_000
OURS = "spike and slab"


def patches(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Squares of 8 x 8 at random places that are not nearly constant, (n, 64)."""
    found: list[np.ndarray] = []
    while len(found) < N_PATCHES:
        image = images[rng.integers(len(images))]
        i, j = rng.integers(0, 21, 2)
        one = image[i : i + 8, j : j + 8].astype(float)
        if one.std() >= LEAST_SPREAD:
            found.append(one.ravel())
    return np.array(found)


def rows(name: str, data: Path) -> np.ndarray:
    """A data set with the noise of a gap."""
    rng = np.random.default_rng(0)
    if name == "digits":
        X = load_digits().data
    elif name == "faces":
        X = np.load(data / "images" / "freyfaces.npz")["X"].reshape(-1, 560).astype(float)
    else:
        X = patches(np.load(data / "images" / "mnist.npz")["X_train"], rng)
    return np.asarray(X + rng.uniform(size=X.shape))


def standardised(train: np.ndarray, *others: np.ndarray) -> list[torch.Tensor]:
    """Rows in the standard deviations of the training rows, as estimators have them."""
    mean, scale = train.mean(0), train.std(0)
    return [torch.as_tensor((X - mean) / scale) for X in (train, *others)]


def tuned_base(train: np.ndarray, rng: np.random.Generator) -> tuple[Gaussian, float]:
    """The normal distribution of standardised rows, its shrinkage chosen by a tenth of them."""
    order = rng.permutation(len(train))
    held_out, rest = train[order[: len(train) // 10]], train[order[len(train) // 10 :]]
    z, of_held_out = standardised(rest, held_out)
    nats = [float(Gaussian.fit(z, shrinkage=s).log_prob(of_held_out).mean()) for s in SHRINKAGES]
    best = SHRINKAGES[int(np.argmax(nats))]
    return Gaussian.fit(standardised(train)[0], shrinkage=best), best


def by_bic(train: np.ndarray) -> GaussianMixture:
    """The mixture of the least BIC."""
    kinds = itertools.product(SIZES, ("full", "tied", "diag"))
    fits = (
        GaussianMixture(k, covariance_type=kind, reg_covar=1e-3, random_state=0).fit(train)
        for k, kind in kinds
        if kind != "full" or k * train.shape[1] < len(train)
    )
    return min(fits, key=lambda mixture: mixture.bic(train))


def likelihoods(model: Any, X: np.ndarray) -> np.ndarray:
    """log p of rows with the larger end of log Z."""
    found: np.ndarray = model.score_samples(X)
    return found - found.mean() + model.score(X)


def compare(name: str, X: np.ndarray, seed: int, shared: bool) -> dict[str, np.ndarray]:
    """log p of the test rows of a split, by method."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    test, train = X[order[: N_TEST[name]]], X[order[N_TEST[name] :]]
    base, shrinkage = tuned_base(train, rng)
    z = standardised(train, test)[1]
    found = {"one normal": base.log_prob(z).numpy() - np.log(train.std(0)).sum()}
    mixture = by_bic(train)
    found["mixture by BIC"] = mixture.score_samples(test)
    print(
        f"{name}, split {seed}: shrinkage {shrinkage}, "
        f"{mixture.n_components} {mixture.covariance_type} components",
        flush=True,
    )
    bracket = AISBracket(n_betas=1000 if name == "faces" else 2000, n_steps=500)
    how: dict[str, Any] = {
        "base": base if shared else "gaussian",
        "partition": bracket,
        "random_state": seed,
    }
    if name == "faces":
        how["n_iter"] = 300
    models = {
        "Gaussian RBM": RBMEstimator(UNITS[name], **how),
        OURS: SpikeSlabRBM(UNITS[name], **how),
    }
    for label, model in models.items():
        taken = seconds(lambda model=model: model.fit(train))
        found[label] = likelihoods(model, test)
        parts = {k: f"{v:.2f} +- {e:.2f}" for k, (v, e) in model.log_partition_parts_.items()}
        print(f"    {label}: {taken:.0f} s, {found[label].mean():.2f} nats, {parts}", flush=True)
    print({k: round(float(v.mean()), 2) for k, v in found.items()}, flush=True)
    return found


def nats(names: list[str], data: Path, seeds: list[int], shared: bool) -> list[dict[str, object]]:
    """A row of the table for each data set and method."""
    result: list[dict[str, object]] = []
    for name in names:
        X = rows(name, data)
        splits = [compare(name, X, seed, shared) for seed in seeds]
        ours = np.concatenate([found[OURS] for found in splits])
        for method in splits[0]:
            values = np.concatenate([found[method] for found in splits])
            difference = ours - values
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            above = "" if method == OURS else f"{difference.mean():.2f} +- {error:.2f}"
            by_split = ", ".join(f"{found[method].mean():.1f}" for found in splits)
            result.append(
                {
                    "set": name,
                    "method": method,
                    "nats of a test row": f"{values.mean():.2f}",
                    "by split": by_split,
                    "spike and slab above": above,
                }
            )
    print("\n" + table(result), flush=True)
    return result


# ------------------------------------------------------------------------------
# Speed
# ------------------------------------------------------------------------------


def bare_step(energy: SpikeSlabEnergy, x: torch.Tensor, chain: torch.Tensor) -> None:
    """The products, solves and factorisation of a step, and nothing else."""
    W, frame = energy.weight, energy.frame
    precision = torch.mm(W.t(), W)
    precision.diagonal().add_(1.0)
    factor = torch.linalg.cholesky_ex(precision)[0]
    for _ in range(N_STEPS):
        pulls = frame.white(chain) @ W.t()
        half = torch.linalg.solve_triangular(factor, (pulls @ W).t(), upper=False)
        chain = frame.rows(torch.linalg.solve_triangular(factor.t(), half, upper=True).t())
    u = frame.white(torch.cat([x, chain]))
    torch.mm((u @ W.t()).t(), u)


def speed(n_steps: int = 100, n_times: int = 11) -> list[dict[str, object]]:
    """Steps of training beside their matrix products, by size."""
    result: list[dict[str, object]] = []
    for d, n_hidden, full in (
        (64, 64, False),
        (64, 256, True),
        (560, 200, False),
        (560, 200, True),
    ):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(100, d, generator=generator)
        base = Gaussian(torch.zeros(d), 1.0)
        if full:
            base = Gaussian.fit(torch.randn(2 * d, d, generator=generator))
        energy = SpikeSlabEnergy(base, n_hidden, generator=generator, scale=0.05)
        chains = Persistent(n_steps=N_STEPS, n_chains=100, initial=base)
        objective = ContrastiveDivergence(energy, Gibbs(), chains)
        sgd = torch.optim.SGD(energy.parameters(), lr=1e-4)
        state, chain = objective.start(Batch(x), generator), base.sample(100, generator)

        def train(objective=objective, sgd=sgd, state=state, x=x, generator=generator) -> None:
            with torch.no_grad():
                for _ in range(n_steps):
                    state = objective.gradients(Batch(x), state, generator).state
                    sgd.step()

        def bare(energy=energy, x=x, chain=chain) -> None:
            with torch.no_grad():
                for _ in range(n_steps):
                    bare_step(energy, x, chain)

        train(), bare()
        times = [(seconds(train), seconds(bare)) for _ in range(n_times)]
        slow, fast = (list(part) for part in zip(*times, strict=True))
        result.append(
            {
                "columns": d,
                "hidden units": n_hidden,
                "base": "full covariance" if full else "independent",
                "ms a step": 1000 * float(np.median(slow)) / n_steps,
                "times the products": spread(slow, fast),
            }
        )
    print("\n" + table(result), flush=True)
    return result


def main(argv: list[str] | None = None) -> None:
    """Run the comparison of likelihoods, or that of times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=list(UNITS), choices=list(UNITS))
    parser.add_argument("--splits", nargs="+", type=int, default=list(SPLITS))
    parser.add_argument("--shared-base", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = speed() if args.speed else nats(args.sets, args.data, args.splits, args.shared_base)
    write(args.out, {"rows": found})


if __name__ == "__main__":
    main()
