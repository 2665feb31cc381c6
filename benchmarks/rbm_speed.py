"""Seconds per epoch of RBM training: skebm, a bare torch loop, scikit-learn.

    python -m benchmarks.rbm_speed [--threads 1] [--sizes 64x64 784x256] [--json out.json]

Protocol: random binary rows, 30 % ones (the arithmetic does not depend on the data); PCD-1,
centred gradient on in skebm and in the bare loop; as many chains as rows in a batch, as in
scikit-learn; skebm and the bare loop in float32, scikit-learn in float64 (what it does with float64
input) and in float32. An epoch is the difference between fits of 1 + k and 1 passes, one after the
other, so set-up cancels. Contestants take turns, with pauses; medians of the paired ratios,
quartiles in brackets. The floor is the time of what no RBM can leave out: three matrix products,
the random numbers and the sigmoids, in float32. BLAS has as many threads as torch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM
from threadpoolctl import threadpool_limits

from benchmarks._common import machine, seconds, spread, table, write
from skebm import RBMEstimator

BATCHES = (10, 100, 500)
# Seconds between contestants: threads of the last one's BLAS wait busily for a while.
PAUSE = 0.2
# (d, H): rows and epochs for each of the batch sizes.
SIZES = {
    (64, 64): ((10_000, 5), (10_000, 20), (10_000, 30)),
    (784, 256): ((2000, 2), (5000, 4), (5000, 6)),
    (784, 1024): ((1000, 2), (5000, 1), (5000, 2)),
}


def bare_epochs(x: torch.Tensor, n_hidden: int, batch: int, n_epochs: int, rate: float) -> None:
    """PCD-1 with a centred gradient, written down in torch with nothing around it."""
    n, d = x.shape
    g = torch.Generator().manual_seed(0)
    w = 0.01 * torch.randn(n_hidden, d, generator=g)
    b, c = torch.zeros(d), torch.zeros(n_hidden)
    mu, lam = x.mean(0), torch.full((n_hidden,), 0.5)
    h_chain = torch.zeros(batch, n_hidden)
    for _ in range(n_epochs):
        for index in torch.randperm(n, generator=g).split(batch):
            v = x.index_select(0, index)
            p = torch.addmm(b, h_chain, w).sigmoid_()
            v_chain = torch.empty_like(p).uniform_(generator=g).lt_(p)
            rows = torch.cat([v, v_chain])
            h = torch.addmm(c, rows, w.t()).sigmoid_()
            p = h[len(v) :]
            h_chain = torch.empty_like(p).uniform_(generator=g).lt_(p)
            sign = torch.full((len(rows),), 1 / len(v_chain))
            sign[: len(v)] = -1 / len(v)
            mu.lerp_(v.mean(0), 0.01)
            lam.lerp_(h[: len(v)].mean(0), 0.01)
            rows.sub_(mu)
            left = h.sub_(lam).t().mul_(sign)
            grad_b = torch.addmv(sign, h, lam, alpha=-1) @ rows
            grad_c = left @ (1 - rows @ mu)
            w.add_(left @ rows, alpha=-rate)
            b.add_(grad_b, alpha=-rate)
            c.add_(grad_c, alpha=-rate)


def floor_steps(d: int, n_hidden: int, batch: int, n_steps: int) -> None:
    """Matrix products, random numbers and sigmoids of so many steps, into the same memory."""
    g = torch.Generator().manual_seed(0)
    w, grad = torch.zeros(n_hidden, d), torch.empty(n_hidden, d)
    x, h = torch.zeros(2 * batch, d), torch.zeros(2 * batch, n_hidden)
    x_chain, h_chain = x[batch:], h[batch:]
    for _ in range(n_steps):
        torch.mm(h_chain, w, out=x_chain).sigmoid_()
        x_chain.uniform_(generator=g)
        torch.mm(x, w.t(), out=h).sigmoid_()
        torch.mm(h.t(), x, out=grad)
        h_chain.uniform_(generator=g)


def contestants(X: np.ndarray, n_hidden: int, batch: int) -> dict[str, Callable[[int], object]]:
    """Each runs a number of epochs."""
    X32, x = X.astype(np.float32), torch.as_tensor(X, dtype=torch.float32)
    common = {"batch_size": batch, "learning_rate": 0.01, "random_state": 0}

    def skebm(k: int) -> object:
        model = RBMEstimator(n_hidden, n_iter=k, learning="pcd", centering="auto", **common)
        return model.fit(X32)

    def sklearn(k: int, data: np.ndarray) -> object:
        return BernoulliRBM(n_hidden, n_iter=k, **common).fit(data)

    return {
        "skebm": skebm,
        "bare": lambda k: bare_epochs(x, n_hidden, batch, k, 0.01),
        "floor": lambda k: floor_steps(x.shape[1], n_hidden, batch, k * -(-len(x) // batch)),
        "sklearn64": lambda k: sklearn(k, X),
        "sklearn32": lambda k: sklearn(k, X32),
    }


def measure(d: int, n_hidden: int, batch: int, repeats: int) -> dict[str, object]:
    """One row of the table."""
    n, k = SIZES[d, n_hidden][BATCHES.index(batch)]
    X = (np.random.default_rng(0).random((n, d)) < 0.3).astype(np.float64)
    runs = contestants(X, n_hidden, batch)
    epoch: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(1)
    for _ in range(repeats):
        for name, run in runs.items():
            time.sleep(PAUSE)
            extra = seconds(lambda run=run: run(1 + k)) - seconds(lambda run=run: run(1))
            epoch[name].append(max(extra, 1e-9) / k)
    return {
        "d x H": f"{d} x {n_hidden}",
        "batch": batch,
        "skebm, us per step": round(1e6 * median(epoch["skebm"]) / -(-n // batch)),
        "over the floor": spread(epoch["skebm"], epoch["floor"]),
        "over the bare loop": spread(epoch["skebm"], epoch["bare"]),
        "against sklearn (float64)": spread(epoch["sklearn64"], epoch["skebm"]),
        "against sklearn (float32)": spread(epoch["sklearn32"], epoch["skebm"]),
    }


def main() -> None:
    """Print the table."""
    names = ["x".join(map(str, size)) for size in SIZES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, choices=BATCHES)
    parser.add_argument("--sizes", nargs="+", default=names, choices=names, help="d x H")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    with threadpool_limits(args.threads):
        for size, name in zip(SIZES, names, strict=True):
            for batch in args.batches if name in args.sizes else ():
                rows.append(measure(*size, batch, args.repeats))
                print(*rows[-1].values(), sep=" | ", file=sys.stderr, flush=True)
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
