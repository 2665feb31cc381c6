"""Training with sampled negatives: its bias, its cost, and whether it always comes out well.

    python -m benchmarks.contrastive --bias [--json F]
    python -m benchmarks.contrastive --speed [--json F]
    python -m benchmarks.contrastive --long [--json F]
    python -m benchmarks.contrastive --robust --data PATH [--seeds N] [--settings S ...]
        [--sets NAME ...] [--json F]
    python -m benchmarks.contrastive --samplers --data PATH [--json F]
    python -m benchmarks.contrastive --images PNG --data PATH [--json F]

`--bias`: the expected gradient of the objective less that of the likelihood, in per cent of the
latter's norm, with its standard error over 200 draws of 2,000 rows and chains. `normal`: mean and
log-precisions of a normal energy in two columns, off by a half and a factor of 2 from data that are
standard normal, chains moved by MALA of step 0.3. `bits`: a network of 8 bits with random weights
on independent columns, rows of other probabilities, chains moved by Gibbs with gradients; the
likelihood's gradient by enumeration. Chains start at the rows (`data`), at the base (`noise`), or
are exact draws of the model.

`--speed`: one training step of the default estimator (MLP of two layers of 128 on a normal base,
128 rows, 128 persistent chains, k steps of MALA, one jump, AdamW) in microseconds, medians of 7
rounds of 100 steps in which contestants take turns. `engine` is an epoch of the estimator's own net
over its steps, with what it looks at; `bare` writes the same arithmetic down in torch with nothing
around it.

`--long`: fits to 18,000 rows of the five sets in the plane (`benchmarks/_toys.py`, seed 0) with
sigma 0.02; then 1,000 chains of 10,000 steps of MALA (4,000 on eight Gaussians) from independent
draws of the base, moved by nothing else: mean energy of 2,000 held-out rows (with the noise of
training) and of the chains' ends, with the standard error of the difference; for eight Gaussians
the largest relative error of a mode's mass (its standard error is 4 % for 4,000 independent draws,
the largest of eight is expected at 7 %), and the same of the model itself by quadrature.

`--robust`: 1,000 normal rows (shuffled by the seed) of six sets of `PATH/adbench`, the others, up
to 2,000, held out; defaults, and with a learning rate and an (unadjusted, Langevin) step ten times
too large. Nats a held-out row above the base: mean over rows, log Z relative to the base by the
mean of 50,000 draws of it where 5 % of them carry that, else by a bridge to the ends of 1,000
chains of 500 steps. The median over fits, and how many are above and below by more than two
standard errors (some held-out rows are 100 and up to 1,600 standard deviations away, and then most
of a mean is one such row); the worst is the lowest in standard errors. Roll-backs are counted.

`--samplers`: the same rows of magic.gamma and fault, seeds 0 to 2, with other samplers and chains;
nats a held-out row above the base as there, seconds of `fit`.

`--images`: digits (8 x 8, scikit-learn, 1,500 rows) and MNIST (`PATH/images/mnist.npz`, the first
10,000 rows, means of 2 x 2 pixels), pixels from -1 to 1, by a convolutional energy on a mixture of
15 and of 10 normal distributions, with a replay buffer and noise of 0.2; nats a row above the base
for 297 and 1,000 held-out rows (bridge to chains of 100 steps), and a picture: rows, draws of the
base, samples of the model (from the base where it is near, else from the buffer, whose chains
started there), with the noise taken off.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import _toys
from benchmarks._bare import chain_steps
from benchmarks._common import machine, seconds, spread, table, write
from benchmarks.anomaly import load
from skebm import ContrastiveDivergenceDensity
from skebm.base import Batch, Binary, Energy, Real
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import MLP, Conv, NeuralEnergy, Spec, build_network
from skebm.estimators import MixtureBase
from skebm.objectives import ContrastiveDivergence
from skebm.partition import BridgeSampling
from skebm.samplers import (
    HMC,
    MALA,
    FromData,
    FromNoise,
    GibbsWithGradients,
    Langevin,
    MetropolisHastings,
    Persistent,
)

N_ROWS, N_STEPS, N_ROUNDS = 128, 100, 7
N_DRAWS, N_REPEATS = 2000, 200
KS = (1, 3, 10, 30, 100)
SETS = (
    "2_annthyroid",
    "12_fault",
    "20_letter",
    "22_magic.gamma",
    "23_mammography",
    "32_shuttle",
)
# Ten times the default learning rate, and a step at which chains of rows of variance one run off.
SETTINGS: dict[str, dict[str, object]] = {
    "defaults": {},
    "ten-times": {"learning_rate": 2e-2, "sampler": Langevin(0.1)},
}


# ------------------------------------------------------------------------------
# Bias
# ------------------------------------------------------------------------------


class Normal(Energy):
    """A normal energy that learns its mean and its precisions."""

    domain = Real((2,))

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.5, -0.5], dtype=torch.float64))
        self.log_precision = nn.Parameter(torch.tensor([2.0, 0.5], dtype=torch.float64).log())
        self.base = Gaussian(torch.zeros(2, dtype=torch.float64), 1.5)

    def forward(self, x: Tensor, cond: object = None) -> Tensor:
        return ((x - self.mean).square() * self.log_precision.exp()).sum(1) / 2

    def log_z(self) -> Tensor:
        return math.log(2 * math.pi) - self.log_precision.sum() / 2

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        return (self.mean + z * (-self.log_precision / 2).exp()).detach()

    def data(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, 2, generator=generator, dtype=torch.float64)


class Bits(NeuralEnergy):
    """A network of eight bits, its weights random."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        network = build_network(MLP((16,)), Spec((8,), generator, torch.float64))
        with torch.no_grad():
            network.last.copy_(torch.randn(16, generator=generator, dtype=torch.float64))
        base = IndependentBernoulli(torch.zeros(8, dtype=torch.float64))
        super().__init__(network, Binary((8,)), base)

    def states(self) -> Tensor:
        return self.domain.states(0, 256, dtype=torch.float64, device="cpu")

    def log_z(self) -> Tensor:
        return (-self(self.states())).logsumexp(0)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        p = (-self(self.states())).softmax(0).detach()
        return self.states()[torch.multinomial(p, n, replacement=True, generator=generator)]

    def data(self, n: int, generator: torch.Generator) -> Tensor:
        p = torch.linspace(0.2, 0.8, 8, dtype=torch.float64)
        return (torch.rand(n, 8, generator=generator, dtype=torch.float64) < p).double()


def flat_gradient(energy: Energy) -> Tensor:
    """The gradients of all parameters in a row; zero where none was written."""
    parts = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in energy.parameters()]
    return torch.cat([part.flatten() for part in parts])


def bias(energy: Normal | Bits, sampler: object, start: str, k: int) -> dict[str, object]:
    """A line: the expected gradient of k steps from somewhere against the likelihood's own."""
    generator = torch.Generator().manual_seed(k)
    policy = FromNoise(initial=energy.base) if start == "noise" else FromData()
    objective = ContrastiveDivergence(
        energy, sampler, policy.set_params(n_steps=k, n_independence_steps=0)
    )
    off = []
    for _ in range(N_REPEATS):
        x = energy.data(N_DRAWS, generator)
        energy.zero_grad()
        (energy(x).mean() + energy.log_z()).backward()
        right = flat_gradient(energy).clone()
        if start == "exact":
            policy.draw = lambda *args: (energy.draw(N_DRAWS, generator), None)
        with torch.no_grad():
            objective.gradients(Batch(x), objective.start(Batch(x), generator), generator)
        off.append(torch.stack([flat_gradient(energy) - right, right]))
    found = torch.stack(off)  # (repeats, 2, parameters)
    mean, norm = found[:, 0].mean(0), found[:, 1].mean(0).norm()
    error = (found[:, 0].var(0).sum() / N_REPEATS).sqrt()
    return {
        "energy": type(energy).__name__.lower(),
        "chains": start,
        "k": k,
        "bias, %": f"{float(100 * mean.norm() / norm):.2f}",
        "of noise alone, %": f"{float(100 * error / norm):.2f}",
    }


def biases() -> list[dict[str, object]]:
    """Both energies from all starts."""
    rows = []
    for energy, sampler in ((Normal(), MALA(0.3)), (Bits(), GibbsWithGradients())):
        rows += [bias(energy, sampler, "data", k) for k in KS]
        rows += [bias(energy, sampler, "noise", k) for k in KS]
        rows += [bias(energy, sampler, "exact", k) for k in (1, 10)]
    return rows


# ------------------------------------------------------------------------------
# Cost
# ------------------------------------------------------------------------------


def bare_step(model: ContrastiveDivergenceDensity, rows: Tensor, k: int) -> Callable[[], None]:
    """The same arithmetic with nothing around it, on the network of a fitted model."""
    objective = model.net_.module_
    network, base, sigma = objective.energy.network, objective.energy.base, objective.sigma
    aux = model.net_.state_.chain.aux
    walk = chain_steps(network, base, aux.step_size, aux.scale)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.0)
    chains = model.net_.state_.chain.x.clone()
    n = len(rows)

    def step() -> None:
        nonlocal chains
        with torch.no_grad():
            x = rows + sigma * torch.randn_like(rows)
            chains = walk(chains, k)
        optimizer.zero_grad()
        f = network(torch.cat([x, chains]))
        (f[:n].mean() - f[n:].mean()).backward()
        optimizer.step()

    return step


def measure_step(d: int, k: int, sizes: tuple[int, ...]) -> dict[str, object]:
    """Paired rounds of an epoch of the engine and of as many bare steps."""
    X = np.random.default_rng(0).standard_normal((N_ROWS * N_STEPS, d))
    settings = {"sigma": 0.3, "base": "gaussian", "random_state": 0, "n_iter": 1, "device": "cpu"}
    model = ContrastiveDivergenceDensity(MLP(sizes), chains=Persistent(n_steps=k), **settings).fit(
        X
    )
    rows = torch.as_tensor(X[:N_ROWS], dtype=torch.float32)
    found: dict[str, list[float]] = {"engine": [], "bare": []}
    step = bare_step(model, rows, k)
    for _ in range(N_ROUNDS):
        model.partial_fit(X)
        found["engine"].append(model.history_[-1]["dur"] / N_STEPS * 1e6)
        found["bare"].append(seconds(lambda: [step() for _ in range(N_STEPS)]) / N_STEPS * 1e6)
    return {
        "d": d,
        "k": k,
        "layers": " x ".join(map(str, sizes)),
        "engine, us": round(statistics.median(found["engine"])),
        "engine / bare": spread(found["engine"], found["bare"]),
    }


# ------------------------------------------------------------------------------
# Long chains
# ------------------------------------------------------------------------------


def long_run(name: str) -> dict[str, object]:
    """Energies of data and of long chains; masses of modes."""
    X = _toys.sample(name, 20_000, 0)
    model = ContrastiveDivergenceDensity(sigma=0.02, random_state=0).fit(X[:18_000])
    energy, generator = model.energy_, torch.Generator().manual_seed(1)
    z = torch.as_tensor(model.units_.apply(X[18_000:])).float()
    z = z + 0.02 * torch.randn(z.shape, generator=generator)
    start = energy.base.sample(4000 if name == "8gaussians" else 1000, generator)
    sampler = MALA(adapt=True, scale="auto")
    ends = sampler.run(energy, start, 10_000, generator, n_warmup=500)[0].x
    with torch.no_grad():
        data, model_ = energy(z).double(), energy(ends).double()
    error = math.sqrt(float(data.var()) / len(data) + float(model_.var()) / len(model_))
    row: dict[str, object] = {
        "set": name,
        "E(data)": f"{float(data.mean()):.3f}",
        "E(chains)": f"{float(model_.mean()):.3f}",
        "std. error": f"{error:.3f}",
    }
    if name == "8gaussians":
        row["largest error of a mass"] = f"{mass_error(model.units_.invert(ends.numpy())):.1%}"
        points, _ = _toys.grid(name)
        p = -model.energy(points)
        row["of the model's"] = f"{mass_error(points, np.exp(p - p.max())):.1%}"
    print(row, flush=True)
    return row


def mass_error(x: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Largest relative error of the mass in an eighth of the circle, which each have the same."""
    eighth = np.round(np.arctan2(x[:, 1], x[:, 0]) / (math.pi / 4)).astype(int) % 8
    masses = np.bincount(eighth, weights=weight, minlength=8)
    return float(np.abs(8 * masses / masses.sum() - 1).max())


# ------------------------------------------------------------------------------
# Robustness
# ------------------------------------------------------------------------------


def gain(
    model: ContrastiveDivergenceDensity, X: np.ndarray, n_steps: int = 500
) -> tuple[float, float]:
    """Nats a row above the base, and the standard error of the mean and of log Z together."""
    energy, generator = model.energy_, torch.Generator().manual_seed(1)
    z = torch.as_tensor(model.units_.apply(X.reshape(len(X), -1))).float()
    with torch.no_grad():
        f = energy.parametric_energy(z).double()
        log_w = -energy.parametric_energy(energy.base.sample(50_000, generator)).double()
    top = log_w.max()
    w = (log_w - top).exp()
    log_z = float(w.mean().log() + top)
    error = float(w.std() / w.mean()) / math.sqrt(len(w))
    if float(w.sum() ** 2 / w.square().sum()) < 0.05 * len(w):
        rows = energy.base.sample(1000, generator)
        sampler = HMC(n_leapfrog=5, adapt=True, scale="auto")
        bridge = BridgeSampling(n_steps=n_steps, n_samples=1000)
        found = bridge.estimate(
            energy, base=energy.base, sampler=sampler, x=rows, generator=generator
        )
        log_z, error = found.value, found.std_error
    total = math.sqrt(float(f.var()) / len(f) + error**2)
    return -float(f.mean()) - log_z, total


def split(data: Path, name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A thousand normal rows to train on, and up to two thousand others."""
    X, y = load(data, name)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(y == 0))
    return X[order[:1000]], X[order[1000:3000]]


def judged(
    train: np.ndarray, test: np.ndarray, seed: int, arguments: dict[str, object]
) -> tuple[ContrastiveDivergenceDensity, float, tuple[float, float]]:
    """A fitted model, the seconds that took, and what held-out rows gain over its base."""
    model = ContrastiveDivergenceDensity(random_state=seed, device="cpu", **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spent = seconds(lambda: model.fit(train))
        return model, spent, gain(model, test)


def robust(
    data: Path, n_seeds: int, settings: list[str], sets: list[str]
) -> list[dict[str, object]]:
    """A line for each set and setting."""
    rows = []
    for setting in settings:
        arguments = SETTINGS[setting]
        for name in sets:
            gains, restarts, spent, finite = [], [], [], True
            for seed in range(n_seeds):
                train, test = split(data, name, seed)
                model, seconds_, found = judged(train, test, seed, arguments)
                spent.append(seconds_)
                gains.append(found)
                restarts.append(model.n_restarts_)
                finite &= bool(np.isfinite(model.energy(np.concatenate([train, test]))).all())
            worst = min(gains, key=lambda found: found[0] / max(found[1], 1e-6))  # 0 of the base
            row = {"set": name, "settings": setting, "fits": n_seeds, "finite": finite}
            row |= {"rolled back": f"{sum(restarts)} times in {sum(r > 0 for r in restarts)} fits"}
            row |= {"nats above the base": f"{statistics.median(g for g, _ in gains):.3f}"}
            row |= {"clearly above": sum(g > 2 * error for g, error in gains)}
            row |= {"clearly below": sum(g < -2 * error for g, error in gains)}
            row |= {"worst (its error)": f"{worst[0]:.3f} ({worst[1]:.3f})"}
            row |= {"fit, s": f"{statistics.median(spent):.1f}"}
            print(row, flush=True)
            rows.append(row)
    return rows


# ------------------------------------------------------------------------------
# Samplers
# ------------------------------------------------------------------------------

CHAINS: dict[str, dict[str, object]] = {
    "MALA, tuned (default)": {},
    "one step": {"chains": Persistent(n_steps=1)},
    "no proposals of the base": {"chains": Persistent(n_independence_steps=0)},
    "HMC, adapted, 2 steps of 5": {
        "sampler": HMC(adapt=True, scale="auto"),
        "chains": Persistent(n_steps=2),
    },
    "Langevin 0.003": {"sampler": Langevin(0.003)},
    "Langevin 0.01, averaged": {"sampler": Langevin(0.01, averaged=True)},
    "Metropolis-Hastings, tuned": {"sampler": MetropolisHastings(adapt=True)},
    "replay buffer": {"chains": "replay"},
    "from the data": {"chains": "data"},
    "from the base": {"chains": "noise"},
    "reweighted chains": {"chains": Persistent(reweight=True)},
    "energy discrepancy": {"objective": "discrepancy"},
}


def samplers(data: Path) -> list[dict[str, object]]:
    """A line for each way to the negatives."""
    rows = []
    for what, arguments in CHAINS.items():
        row: dict[str, object] = {"negatives": what}
        for name in ("22_magic.gamma", "12_fault"):
            found, spent = [], []
            for seed in range(3):
                train, test = split(data, name, seed)
                _, seconds_, nats = judged(train, test, seed, arguments)
                spent.append(seconds_)
                found.append(nats[0])
            error = statistics.stdev(found) / math.sqrt(len(found))
            row |= {name: f"{statistics.mean(found):.2f} ({error:.2f})"}
            row |= {f"{name.split('_')[1]}, s": f"{statistics.median(spent):.1f}"}
        print(row, flush=True)
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------
# Images
# ------------------------------------------------------------------------------

PAINTER = {
    "chains": "replay",
    "sigma": 0.2,
    "standardize": False,
    "random_state": 0,
    "device": "cpu",
}


def images(data: Path, path: str) -> list[dict[str, object]]:
    """Fit both sets, draw the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from sklearn.datasets import load_digits

    digits = load_digits().images[:, None] / 8 - 1
    mnist = np.load(data / "images" / "mnist.npz")["X_train"][:11_000] / 127.5 - 1
    mnist = mnist.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5))
    tasks = [
        ("digits, 8 x 8", 15, digits[:1500], digits[1500:], 60),
        ("MNIST, 14 x 14", 10, mnist[:10_000], mnist[10_000:], 20),
    ]
    fig, axes = plt.subplots(6, 20, figsize=(12, 4.4), layout="constrained")
    rows = []
    for block, (name, n_components, train, test, n_iter) in enumerate(tasks):
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of constant pixels
            model = ContrastiveDivergenceDensity(
                Conv((16, 32)), base=MixtureBase(n_components), n_iter=n_iter, **PAINTER
            )
            model.fit(train)
        spent = time.perf_counter() - began
        found, error = gain(model, test, n_steps=100)
        draws = model.energy_.base.sample(20, torch.Generator().manual_seed(0))
        lines = {
            name: test[:20],
            "base": model.denoise(draws.double().numpy().reshape(-1, *train.shape[1:])),
            "samples": model.denoise(model.sample(20, random_state=0, n_steps=300)),
        }
        for line, (label, shown) in enumerate(lines.items()):
            for ax, image in zip(axes[3 * block + line], shown, strict=True):
                ax.imshow(image[0], cmap="gray_r", vmin=-1, vmax=1)
                ax.set(xticks=[], yticks=[])
            axes[3 * block + line, 0].set_ylabel(label, rotation=0, ha="right", va="center")
        row = {"images": name, "rows": len(train), "nats above the base": f"{found:.1f}"}
        row |= {"std. error": f"{error:.1f}", "rolled back": model.n_restarts_}
        row |= {"fit, s": round(spent)}
        print(row, flush=True)
        rows.append(row)
    fig.savefig(path, dpi=90)
    return rows


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for what in ("bias", "speed", "long", "robust", "samplers"):
        parser.add_argument(f"--{what}", action="store_true")
    parser.add_argument("--images", metavar="PNG")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--json")
    args = parser.parse_args()
    if (args.robust or args.images or args.samplers) and args.data is None:
        parser.error("--robust, --samplers and --images need --data")
    print(machine())
    result: dict[str, object] = {}
    if args.bias:
        result["bias"] = biases()
        print(table(result["bias"]))
    if args.speed:
        shapes = ((2, 10), (11, 10), (30, 10), (30, 3))
        result["steps"] = [measure_step(d, k, (128, 128)) for d, k in shapes]
        print(table(result["steps"]))
    if args.long:
        # Only one of the sets has masses to be compared: its cells are the first.
        found = [long_run(name) for name in _toys.NAMES]
        names = list(found[0])
        result["long"] = [{n: row.get(n, "") for n in names} for row in found]
        print(table(result["long"]))
    if args.robust:
        result["robust"] = robust(args.data, args.seeds, args.settings, args.sets)
        print(table(result["robust"]))
    if args.samplers:
        result["samplers"] = samplers(args.data)
        print(table(result["samplers"]))
    if args.images:
        result["images"] = images(args.data, args.images)
        print(table(result["images"]))
    write(args.json, result)


if __name__ == "__main__":
    main()
