"""log Z and mixing by models kept along training: against sums, brackets, Gibbs and tempering.

    python benchmarks/trajectory.py exact DATA RATE STEPS   # RBMs of 784-16 on MNIST, random ones
    python benchmarks/trajectory.py debd DATA RATE STEPS    # against the bracket on eight sets
    python benchmarks/trajectory.py mixing DATA RATE STEPS  # mode changes of an RBM on MNIST

RATE is the learning rate and STEPS are the Gibbs steps of a batch, k of PCD-k. DATA is a folder
with ``images/binarized_mnist.npz``, ``images/mnist.npz`` and ``debd/*.npz``. A z-score is
(estimate - truth) / standard error; calibrated errors have a root mean square of about 1. log Z of
the eight sets is not known: the bracket with all of its temperatures stands for it.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from skebm import RBMEstimator
from skebm.energies import BernoulliRBM, TrajectoryEnergy
from skebm.partition import AISBracket, Exact, TrajectoryAIS
from skebm.samplers import Gibbs, ParallelTempering, Persistent, TrajectoryTempering
from skebm.training import SGD, Trajectory

SETS = "nltcs", "plants", "baudio", "jester", "tretail", "msweb", "dna", "accidents"

# Estimates of each model that is compared with its sum.
N_RUNS = 3


def bits(folder, name):
    file = np.load(Path(folder) / name)
    columns = int(file["d"])
    return np.unpackbits(file["train"], axis=1)[:, :columns].astype(np.float32)


def fit(X, n_components, how, **settings):
    rate, n_steps = how
    optimizer = SGD(schedule="linear", trajectory=Trajectory())
    model = RBMEstimator(
        n_components, base="independent", learning="pcd", optimizer=optimizer, random_state=0
    )
    began = time.perf_counter()
    chains = None if n_steps == 1 else Persistent(n_steps=n_steps)
    model.set_params(learning_rate=rate, chains=chains, **settings).fit(X)
    return model, time.perf_counter() - began


def timed(function):
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def random_trajectory(seed):
    """A random RBM of 20 columns and 12 units, with models of a part of its weights."""
    generator = torch.Generator().manual_seed(seed)
    end = BernoulliRBM(20, 12, generator=generator, scale=0.8, dtype=torch.float64)
    with torch.no_grad():
        for bias in (end.visible_bias, end.hidden_bias):
            bias.normal_(generator=generator).mul_(0.5)
    models = []
    for share in (0.05, 0.2, 0.4, 0.6, 0.8):
        noise = 0.1 * torch.randn(end.weight.shape, generator=generator, dtype=torch.float64)
        one = BernoulliRBM(20, 12, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            one.weight.copy_(share * (end.weight + noise))
            one.visible_bias.copy_(end.visible_bias)
            one.hidden_bias.copy_(share * end.hidden_bias)
        models.append(one)
    return TrajectoryEnergy([*models, end])


def against_sums(folder, how):
    X = bits(folder, "images/binarized_mnist.npz")
    cases = {"random 20-12": [], "MNIST 784-16": []}
    recorded = []
    for seed in range(20):
        energy = random_trajectory(seed)
        cases["random 20-12"].append((energy, Exact().estimate(energy.last).value))
        some = X[seed * 2000 : (seed + 1) * 2000]
        model, _ = fit(some, 16, how, n_iter=40, random_state=seed)
        truth = Exact().estimate(model.energy_).value
        recorded.append(model.net_.trajectory_.log_z - truth)
        cases["MNIST 784-16"].append((model.trajectory_, truth))
    for name, found in cases.items():
        generator = torch.Generator().manual_seed(1)
        runs = [
            (TrajectoryAIS().estimate(e, generator=generator), truth)
            for e, truth in found
            for _ in range(N_RUNS)
        ]
        z = np.array([(one.value - truth) / one.std_error for one, truth in runs])
        error = np.array([one.value - truth for one, truth in runs])
        print(
            f"{name}: z rms {np.sqrt((z**2).mean()):.2f}, mean {z.mean():+.2f}, "
            f"error rms {np.sqrt((error**2).mean()):.3f}, lower bound above log Z "
            f"{sum(one.lower > truth for one, truth in runs)} of {len(runs)}"
        )
    errors = np.array(recorded)
    print(f"along training, MNIST 784-16: error mean {errors.mean():+.3f}, sd {errors.std():.3f}")


def against_brackets(folder, how):
    print(
        "set        models  log Z (bracket)   s      TrajectoryAIS     s     along training  fit s"
    )
    for name in SETS:
        model, seconds = fit(bits(folder, f"debd/{name}.npz"), 64, how, n_iter=30)
        x = model._partition_inputs(("x",))["x"]
        usual, its = timed(lambda m=model, x=x: AISBracket().estimate(m.energy_, x=x))
        best = AISBracket(tol=None).estimate(model.energy_, x=x)
        ours, mine = timed(lambda m=model: TrajectoryAIS().estimate(m.trajectory_))
        along = model.net_.trajectory_.log_z
        print(
            f"{name:10} {len(model.trajectory_.models):6} {best.value:8.2f} +- {best.std_error:.2f}"
            f" ({usual.value - best.value:+.2f}) {its:5.2f}  {ours.value - best.value:+6.2f} +- "
            f"{ours.std_error:.2f} {mine:6.2f}   {along - best.value:+6.2f}      {seconds:8.1f}",
            flush=True,
        )


def mixing(folder, how, n_iter=20, seconds=20):
    X = bits(folder, "images/binarized_mnist.npz")
    model, spent = fit(X, 100, how, n_iter=n_iter, batch_size=100)
    energy, digits = model.trajectory_, np.load(Path(folder) / "images/mnist.npz")
    print(f"784-100, {n_iter} epochs at {how}, {spent:.0f} s, {len(energy.rungs)} rungs")
    labelled = (digits["X_train"][:10_000].reshape(-1, 784) > 127).astype(np.float32)
    classes = digits["y_train"][:10_000]
    judge = LogisticRegression(max_iter=200).fit(labelled, classes)
    start = torch.as_tensor(labelled[classes == 1][:100])
    long, _ = Gibbs().run(
        model.energy_, torch.as_tensor(X[:2000]), 3000, torch.Generator().manual_seed(1)
    )
    usual = np.bincount(judge.predict(long.x.numpy()), minlength=10) / len(long.x)
    means = long.x.mean(0)
    kinds = {
        "Gibbs": (Gibbs(), model.energy_, 50),
        "ParallelTempering(20)": (ParallelTempering(20), model.energy_, 3),
        "TrajectoryTempering": (TrajectoryTempering(), energy, 2),
        "TrajectoryTempering(5)": (TrajectoryTempering(5), energy, 1),
    }
    for name, (sampler, of, every) in kinds.items():
        generator, state = torch.Generator().manual_seed(0), sampler.init(of, start)
        before, changes, n_steps, used, rows = judge.predict(state.x.numpy()), 0, 0, 0.0, []
        with torch.no_grad():
            while used < seconds:
                began = time.perf_counter()
                for _ in range(every):
                    state, _ = sampler.step(of, state, generator)
                used, n_steps = used + time.perf_counter() - began, n_steps + every
                now = judge.predict(state.x.numpy())
                changes, before = changes + int((now != before).sum()), now
                if used > seconds / 2:
                    rows.append(state.x)
        late = torch.cat(rows)
        found = np.bincount(judge.predict(late.numpy()), minlength=10) / len(late)
        far = float((late.mean(0) - means).square().mean().sqrt())
        print(
            f"{name:24} {n_steps:6} steps, {changes / used:7.1f} class changes a second, distance "
            f"of classes {abs(found - usual).sum() / 2:.3f}, of first moments {far:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    what, data, rate, n_steps = sys.argv[1:]
    run = {"exact": against_sums, "debd": against_brackets, "mixing": mixing}[what]
    run(data, (float(rate), int(n_steps)))
