"""A GPU beside the CPU: fits, log Z and scores; how busy it is, and whether the loop waits for it.

    python -m benchmarks.gpu [--devices cpu cuda] [--quick] [--json F]

Each row is a model of the defaults on random rows of a size at which a GPU should pay. `seconds an
epoch` is the difference between fits of several epochs and of one, so that what a fit does once
is left out, over the number of epochs; `whole fit` is that of the longer fit. Medians of three
runs, devices alternating, after a fit that warms up. Threads of the CPU are what torch takes.

On a GPU a further epoch runs under torch's profiler. *busy* is the share of its time in which
kernels run: what is missing to 1 is Python and the launch of kernels; the longest kernels are
printed. *of peak* is the arithmetic
of the matrix products (2 k m n each, counted by shapes) in that time, over what the card does in
single precision without tensor cores, the precision that fits have. *waits a step* counts calls in
which the host waits for the device (synchronisations of streams and of the device, copies of
numbers to the host): 0 where the loop never does.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._common import shown, write
from skebm import (
    ContrastiveDivergenceDensity,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
)
from skebm.energies import MLP
from skebm.partition import AIS

# Operations a second in single precision, by the name of the card.
PEAK = {"H100": 67e12, "H200": 67e12, "A100": 19.5e12}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "aten::_local_scalar_dense")
EPOCHS, REPEATS = 4, 3
# What torch's counter leaves out: products that are added in place.
IN_PLACE: dict[Any, Any] = {
    torch.ops.aten.addmm_: lambda total, a, b, **kwargs: 2 * a[0] * a[1] * b[1]
}


def models(quick: bool) -> dict[str, tuple[Callable[..., Any], np.ndarray]]:
    """Name of each model, how it is made, and its training rows."""
    rng = np.random.default_rng(0)
    n = 4_000 if quick else 20_000
    bits = (rng.random((n, 784)) < 0.2).astype(np.float32)
    rows = rng.normal(size=(2 * n, 20)).astype(np.float32)
    wide = MLP((512, 512))
    kind: dict[str, Any] = {"random_state": 0, "learning_rate": 1e-4}
    return {
        "RBM, 784 x 1,024, PCD, batches of 500": (
            lambda **more: RBMEstimator(
                1024, learning="pcd", base="independent", batch_size=500, **kind | more
            ),
            bits,
        ),
        "score matching, 512 x 512, batches of 1,000": (
            lambda **more: ScoreMatchingDensity(
                wide, base="gaussian", batch_size=1000, **kind | more
            ),
            rows,
        ),
        "NCE, 512 x 512, batches of 1,000": (
            lambda **more: NCEDensity(wide, noise="gaussian", batch_size=1000, **kind | more),
            rows,
        ),
        "contrastive divergence, 512 x 512, batches of 1,000": (
            lambda **more: ContrastiveDivergenceDensity(
                wide, base="gaussian", batch_size=1000, **kind | more
            ),
            rows,
        ),
    }


def fit_seconds(make: Callable[..., Any], X: np.ndarray, device: str, n_iter: int) -> float:
    """Wall time of one fit."""
    model = make(device=device, n_iter=n_iter)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def batches(make: Callable[..., Any], X: np.ndarray) -> int:
    """Steps of an epoch."""
    return -(-len(X) // int(make().batch_size))


def operations(make: Callable[..., Any], X: np.ndarray) -> float:
    """Arithmetic of the matrix products of an epoch, from their shapes, on the CPU."""
    some = X[: 4 * int(make().batch_size)]
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as one:
        fit_seconds(make, some, "cpu", 1)
    first = one.get_total_flops()
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as three:
        fit_seconds(make, some, "cpu", 3)
    return (three.get_total_flops() - first) / 2 * len(X) / len(some)


def under_profiler(make: Callable[..., Any], X: np.ndarray) -> tuple[float, float, float]:
    """Seconds of kernels, of the wall, and waits, of an epoch on the GPU."""
    found = []
    for n_iter in (1, 3):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            wall = fit_seconds(make, X, "cuda", n_iter)
        events = seen.key_averages()
        # Operators of torch have the time of their kernels a second time.
        own = [e for e in events if e.device_type == DeviceType.CUDA]
        kernels = sum(e.self_device_time_total for e in own) / 1e6
        found.append((kernels, wall, sum(e.count for e in events if e.key in WAITS)))
    longest = sorted(own, key=lambda e: -e.self_device_time_total)[:6]
    for e in longest:
        print(f"    {e.self_device_time_total / 1e3:8.2f} ms {e.count:6d} x {e.key[:90]}")
    first, last = (np.array(one) for one in found)
    kernels, wall, waits = (last - first) / 2
    return float(kernels), float(wall), float(waits)


def fits(devices: list[str], quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each model."""
    repeats = 1 if quick else REPEATS
    for name, (make, X) in models(quick).items():
        took: dict[str, list[tuple[float, float]]] = {device: [] for device in devices}
        for device in devices:
            fit_seconds(make, X[: len(X) // 10], device, 1)
        for _ in range(repeats):
            for device in devices:
                one, many = (fit_seconds(make, X, device, n) for n in (1, EPOCHS))
                took[device].append((many, (many - one) / (EPOCHS - 1)))
        row: dict[str, Any] = {"model": name}
        for device, own in took.items():
            row[f"{device}, whole fit, s"] = round(median(a for a, _ in own), 2)
            row[f"{device}, s an epoch"] = round(median(b for _, b in own), 3)
        if "cuda" in devices:
            kernels, wall, waits = under_profiler(make, X)
            epoch = row["cuda, s an epoch"]
            peak = [v for k, v in PEAK.items() if k in torch.cuda.get_device_name()]
            row["busy"] = round(kernels / epoch, 2)
            row["of peak"] = round(operations(make, X) / epoch / peak[0], 3) if peak else "unknown"
            row["waits a step"] = round(waits / batches(make, X), 2)
            row["s an epoch, profiled"] = round(wall, 3)
        yield row


def uses(devices: list[str], quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each use of a trained RBM."""
    make, X = next(iter(models(quick).values()))
    tasks: dict[str, Callable[[Any], Any]] = {
        "log Z: AIS, 300 temperatures, 500 chains": lambda own: own.log_partition_,
        f"energy of {len(X):,} rows": lambda own: own.energy(X),
        "1,000 rows by 200 Gibbs steps": lambda own: own.sample(1000, n_steps=200, random_state=0),
    }
    for name, task in tasks.items():
        row: dict[str, Any] = {"task": name}
        for device in devices:
            found = []
            for _ in range(1 if quick else REPEATS):
                own = make(n_iter=2, device=device, partition=AIS(n_betas=300, n_chains=500)).fit(
                    X[:5000]
                )
                started = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    task(own)
                if device != "cpu":
                    torch.cuda.synchronize()
                found.append(time.perf_counter() - started)
            row[f"{device}, s"] = round(median(found), 3)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--devices", nargs="+", default=here, choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    found = [*shown(fits(args.devices, args.quick)), *shown(uses(args.devices, args.quick))]
    write(args.json, {"rows": found})


if __name__ == "__main__":
    main()
