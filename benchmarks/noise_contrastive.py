"""Telling data from noise: how good the log Z is that comes of it, and what a step costs.

    python -m benchmarks.noise_contrastive --log-z [--seeds N] [--json F]
    python -m benchmarks.noise_contrastive --speed [--json F]
    python -m benchmarks.noise_contrastive --chasm [--json F]
    python -m benchmarks.noise_contrastive --flows [--sets NAME ...] [--json F]

`--log-z`: 20,000 rows of a normal distribution of d columns, its mean standard normal and its
covariance A A' / d + 0.1 (A of standard normal entries, all by the seed); noise is the normal
distribution of the same mean with 1.5 times that covariance, passed as it is. Of the fitted energy
the true log Z is found by 1,000,000 draws in float64, half of them from the noise, half from the
distribution of the rows with the noise of training, weighed by the mean of both densities; its
standard error is printed (the largest over seeds). `learned` is `log_partition_learned_` less the
true one: the mean over seeds with its standard error, and the largest in absolute value.
`importance` is the same for `log_partition_`, with `z` in units of the error that it states (and
the true one's): its root mean square, 1 where stated errors are right. `gain` is what the model has
above the noise in nats a row, by fresh rows with the noise of training, and `possible` what their
distribution has; means over seeds. Settings are the defaults.

`--speed`: one pass of the default network (two layers of 128) over 200 batches of 10 columns, in
microseconds a step. `engine` is an epoch of the net of `NCEDensity`, with the noise of training
(0.3), the draws of the noise, shuffling and the look at its end; `bare` a classifier in torch: the
same network, AdamW, binary cross-entropy, on slices of twice the rows, that is of the rows and of
as many draws made before; `fused` is the same with the AdamW that the engine has, in one operation,
instead of torch's default. Medians of 7 rounds in which contestants take turns; quartiles of the
paired ratios. In the same rounds `drawing` is what draws of the noise for a batch take, and
`noise of training` what is added to the rows, in per cent of a bare step.

`--chasm`: 20,000 rows of 20 columns and a standard normal distribution as noise, 25, 50 and 100
nats from them. `normal`: five axes of deviation 1 and fifteen so narrow, turned at random;
`clusters`: four normal distributions of equal narrow deviations around centres from N(0, 0.8^2).
Defaults, without noise of training, once with the bridges of ``n_bridges="auto"`` and once with one
classifier; seed 0. On 2,000 new rows: `error`, mean of `score_samples` less the true log-density,
and its standard deviation over rows; of one classifier log Z is the learned one. `warned`: whether
`fit` said that rows and noise are too far apart.

`--flows`: `FlowContrastiveDensity` on 18,000 rows of the sets in the plane (seed 0), with one
setting for all (`FLOW`), settled before the sets were looked at: KL(truth, model) by quadrature of
the energy, of its flow, and of the same flow by maximum likelihood, which it started from.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks import _toys
from benchmarks._common import machine, seconds, spread, table, write
from skebm import FlowContrastiveDensity, NCEDensity
from skebm.distributions import Distribution, Gaussian
from skebm.energies import MLP

N_ROWS, N_DRAWS, N_CHUNK = 20_000, 1_000_000, 50_000
DIMENSIONS = (2, 5, 10, 20)

N_CHASM, N_NEW, DISTANCES = 20_000, 2_000, (25, 50, 100)
FLOW: dict[str, Any] = {
    "network": MLP(n_frequencies=64),
    "sigma": 0.02,
    "batch_size": 512,
    "n_iter": 30,
    "learning_rate": 5e-3,
}

N_STEPS, N_ROUNDS, N_COLUMNS, SIGMA = 200, 7, 10, 0.3


# ------------------------------------------------------------------------------
# log Z
# ------------------------------------------------------------------------------


def normal(d: int, seed: int) -> Gaussian:
    """The distribution of the rows."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, d))
    covariance = torch.as_tensor(A @ A.T / d + 0.1 * np.eye(d))
    return Gaussian(torch.as_tensor(rng.standard_normal(d)), covariance=covariance)


def noisy(model: NCEDensity, truth: Gaussian) -> Gaussian:
    """Distribution of standardised rows with the noise of training."""
    centre, scale = (torch.as_tensor(one) for one in (model.units_.centre, model.units_.scale))
    covariance = truth.covariance / torch.outer(scale, scale)
    if model.sigma_ is not None:
        covariance = covariance + torch.diag(torch.as_tensor(model.sigma_).square())
    return Gaussian((truth.mean - centre) / scale, covariance=covariance)


def true_log_z(model: NCEDensity, rows: Gaussian) -> tuple[float, float]:
    """log Z of the fitted energy and its standard error, from the noise and the rows' own."""
    energy, generator = copy.deepcopy(model.energy_).double(), torch.Generator().manual_seed(1)
    base = model.base_.to(torch.device("cpu"), torch.float64)
    parts = []
    with torch.no_grad():
        for _ in range(N_DRAWS // (2 * N_CHUNK)):
            x = torch.cat([q.sample(N_CHUNK, generator) for q in (base, rows)])
            log_q = base.log_prob(x)
            log_mean = torch.logaddexp(log_q, rows.log_prob(x)) - math.log(2)
            parts.append(log_q - energy.network(x) - log_mean)
    log_w = torch.cat(parts)
    value = float(log_w.logsumexp(0)) - math.log(len(log_w))
    return value, float((log_w - value).exp().std()) / math.sqrt(len(log_w))


def log_z(d: int, n_seeds: int) -> dict[str, object]:
    """A line: errors of both estimates over seeds."""
    found: dict[str, list[float]] = {}
    for seed in range(n_seeds):
        truth = normal(d, seed)
        X = truth.sample(N_ROWS, torch.Generator().manual_seed(seed)).numpy()
        noise = truth.with_covariance_times(1.5)
        began = time.perf_counter()
        model = NCEDensity(noise=noise, random_state=seed, device="cpu").fit(X)
        spent = time.perf_counter() - began
        rows = noisy(model, truth)
        value, error = true_log_z(model, rows)
        z = rows.sample(N_ROWS, torch.Generator().manual_seed(seed + 1000))
        base = model.base_.to(torch.device("cpu"), torch.float64)
        with torch.no_grad():
            gain = float(-model.energy_.network(z.float()).double().mean()) - value
        off = model.log_partition_ - value
        one = {
            "learned": model.log_partition_learned_ - value,
            "importance": off,
            "z": off / math.hypot(model.log_partition_std_, error),
            "error": error,
            "gain": gain,
            "possible": float((rows.log_prob(z) - base.log_prob(z)).mean()),
            "seconds": spent,
        }
        print(f"d={d}, seed {seed}: {one}", flush=True)
        for name, number in one.items():
            found.setdefault(name, []).append(number)
    mean = {name: statistics.mean(values) for name, values in found.items()}
    return {
        "d": d,
        "seeds": n_seeds,
        "learned": with_error(found["learned"]),
        "largest": f"{max(map(abs, found['learned'])):.4f}",
        "importance": with_error(found["importance"]),
        "rms z": f"{math.sqrt(statistics.mean(z * z for z in found['z'])):.2f}",
        "error of the truth": f"{max(found['error']):.4f}",
        "gain": f"{mean['gain']:.3f}",
        "possible": f"{mean['possible']:.3f}",
        "fit, s": f"{statistics.median(found['seconds']):.1f}",
    }


def with_error(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{statistics.mean(values):+.4f} ({statistics.stdev(values) / len(values) ** 0.5:.4f})"


# ------------------------------------------------------------------------------
# Cost
# ------------------------------------------------------------------------------


class Bare:
    """A classifier of rows and draws, mixed beforehand."""

    def __init__(
        self, model: NCEDensity, rows: Tensor, draws: Tensor, batch: int, fused: bool | None
    ):
        network: Any = model.energy_.network
        self.network, self.size = copy.deepcopy(network).train(), 2 * batch
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=1e-4, weight_decay=0.0, fused=True
        )
        order = torch.randperm(2 * len(rows), generator=torch.Generator().manual_seed(0))
        self.x = torch.cat([rows, draws])[order].contiguous()
        self.y = (order < len(rows)).float()

    def epoch(self) -> None:
        """Once over all."""
        for x, y in zip(self.x.split(self.size), self.y.split(self.size), strict=True):
            self.optimizer.zero_grad()
            binary_cross_entropy_with_logits(-self.network(x), y).backward()
            self.optimizer.step()


def measure_step(noise: str, batch: int) -> dict[str, object]:
    """Paired rounds of an epoch of the engine and of the bare classifier, and of its draws."""
    X = np.random.default_rng(0).standard_normal((batch * N_STEPS, N_COLUMNS))
    model = NCEDensity(
        noise=noise, sigma=SIGMA, batch_size=batch, n_iter=1, random_state=0, device="cpu"
    ).fit(X)
    rows, generator = torch.as_tensor(X, dtype=torch.float32), torch.Generator().manual_seed(0)
    base: Distribution = model.energy_.base
    draws = base.sample(len(rows), generator)
    bare, fused = (Bare(model, rows, draws, batch, how) for how in (None, True))
    first = rows[:batch]
    found: dict[str, list[float]] = {
        name: [] for name in ("engine", "bare", "fused", "drawing", "added")
    }

    def draw() -> None:
        base.sample(batch, generator)

    def add() -> Tensor:
        return first + SIGMA * torch.empty_like(first).normal_(generator=generator)

    def each(run: Any) -> float:
        return seconds(lambda: [run() for _ in range(N_STEPS)])

    for _ in range(N_ROUNDS):
        model.partial_fit(X)
        found["engine"].append(model.history_[-1]["dur"])
        found["bare"].append(seconds(bare.epoch))
        found["fused"].append(seconds(fused.epoch))
        found["drawing"].append(each(draw))
        found["added"].append(each(add))
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {
        "noise": noise,
        "rows": batch,
        "engine, us": round(middle["engine"] / N_STEPS * 1e6),
        "bare, us": round(middle["bare"] / N_STEPS * 1e6),
        "fused, us": round(middle["fused"] / N_STEPS * 1e6),
        "engine / bare": spread(found["engine"], found["bare"]),
        "engine / fused": spread(found["engine"], found["fused"]),
        "drawing": f"{middle['drawing'] / middle['bare']:.1%}",
        "noise of training": f"{middle['added'] / middle['bare']:.1%}",
    }


# ------------------------------------------------------------------------------
# Far noise
# ------------------------------------------------------------------------------


def far_rows(kind: str, nats: float, d: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows so many nats from N(0, 1), new ones, and the log-densities of these."""
    rng = np.random.default_rng(0)
    make = narrow_axes(rng, d) if kind == "normal" else clusters(rng, d)
    low, high = 1e-8, 1.0
    for _ in range(60):  # the deviation that is as far
        sd = math.sqrt(low * high)
        low, high = (sd, high) if make(sd)[2] > nats else (low, sd)
    draw, log_prob, _ = make(sd)
    rows, new = draw(N_CHASM), draw(N_NEW)
    return rows, new, log_prob(new)


def narrow_axes(rng: np.random.Generator, d: int) -> Any:
    """Normal rows, most axes of which are narrow."""
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]

    def make(sd: float) -> Any:
        scale = np.r_[np.ones(d // 4), np.full(d - d // 4, sd)]
        log_det = np.log(scale).sum() + d / 2 * math.log(2 * math.pi)
        return (
            lambda n: rng.standard_normal((n, d)) * scale @ axes.T,
            lambda x: -0.5 * np.square(x @ axes / scale).sum(1) - log_det,
            float((-np.log(scale) - 0.5 + scale**2 / 2).sum()),
        )

    return make


def clusters(rng: np.random.Generator, d: int, n_clusters: int = 4) -> Any:
    """Rows of narrow clusters; their distance is that of 20,000 draws."""
    centres = 0.8 * rng.standard_normal((n_clusters, d))
    which, z = rng.integers(n_clusters, size=20_000), rng.standard_normal((20_000, d))

    def make(sd: float) -> Any:
        def log_prob(x: np.ndarray) -> np.ndarray:
            squares = ((x[:, None] - centres) ** 2).sum(2) / sd**2
            level = math.log(n_clusters) + d * math.log(sd) + d / 2 * math.log(2 * math.pi)
            return logsumexp(-squares / 2, axis=1) - level

        def draw(n: int) -> np.ndarray:
            at = centres[rng.integers(n_clusters, size=n)]
            return at + sd * rng.standard_normal((n, d))

        x = centres[which] + sd * z
        far = log_prob(x) + (x**2).sum(1) / 2 + d / 2 * math.log(2 * math.pi)
        return draw, log_prob, float(far.mean())

    return make


def chasm(kind: str, nats: float, n_bridges: Any) -> dict[str, object]:
    """A line of the table."""
    rows, new, truth = far_rows(kind, nats)
    noise = Gaussian(torch.zeros(rows.shape[1], dtype=torch.float64), 1.0)
    model = NCEDensity(
        noise=noise, n_bridges=n_bridges, sigma=None, standardize=False, random_state=0
    )
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows)
    spent = time.perf_counter() - began
    error = -model.energy(new) - truth
    error = error - (model.log_partition_learned_ if n_bridges == 1 else model.log_partition_)
    return {
        "rows": kind,
        "KL": nats,
        "bridges": model.n_bridges_,
        "error": f"{error.mean():+.2f}",
        "over rows": f"{error.std():.2f}",
        "learned": f"{model.log_partition_learned_ - model.log_partition_:+.2f}"
        if n_bridges != 1
        else "",
        "warned": any("apart" in str(w.message) for w in caught),
        "fit, s": f"{spent:.0f}",
    }


# ------------------------------------------------------------------------------
# Flows
# ------------------------------------------------------------------------------


def flows(name: str) -> dict[str, object]:
    """A line of the table."""
    rows = _toys.sample(name, 20_000, 0)[:18_000]
    began = time.perf_counter()
    model = FlowContrastiveDensity(random_state=0, **FLOW).fit(rows)
    spent = time.perf_counter() - began
    before = FlowContrastiveDensity(random_state=0, **FLOW | {"n_iter": 0}).fit(rows)

    def by_flow(one: FlowContrastiveDensity) -> float:
        def log_prob(x: np.ndarray) -> np.ndarray:
            return one.flow_.log_prob(torch.as_tensor(x, dtype=torch.float32)).numpy()

        return _toys.kl_divergence(name, log_prob)

    return {
        "set": name,
        "KL of the energy": f"{_toys.kl_divergence(name, lambda x: -model.energy(x)):.4f}",
        "of its flow": f"{by_flow(model):.4f}",
        "of the flow by maximum likelihood": f"{by_flow(before):.4f}",
        "fit, s": f"{spent:.0f}",
    }


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log-z", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--chasm", action="store_true")
    parser.add_argument("--flows", action="store_true")
    parser.add_argument("--sets", nargs="+", choices=_toys.NAMES, default=_toys.NAMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    print(machine())
    result: dict[str, object] = {}
    if args.log_z:
        result["log_z"] = [log_z(d, args.seeds) for d in DIMENSIONS]
        print(table(result["log_z"]))
    if args.speed:
        result["steps"] = [
            measure_step(noise, batch) for noise in ("gaussian", "mixture") for batch in (128, 512)
        ]
        print(table(result["steps"]))
    if args.chasm:
        result["chasm"] = [
            chasm(kind, nats, n_bridges)
            for kind in ("normal", "clusters")
            for nats in DISTANCES
            for n_bridges in ("auto", 1)
        ]
        print(table(result["chasm"]))
    if args.flows:
        result["flows"] = [flows(name) for name in args.sets]
        print(table(result["flows"]))
    write(args.json, result)


if __name__ == "__main__":
    main()
