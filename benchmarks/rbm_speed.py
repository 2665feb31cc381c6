"""Seconds per epoch of RBM training: skebm, a bare torch loop, scikit-learn.

    python -m benchmarks.rbm_speed [--threads 1] [--repeats 5] [--json out.json]

Protocol: random binary rows, 30 % ones (the arithmetic does not depend on the data); PCD-1,
centred gradient on in skebm and in the bare loop; as many chains as rows in a batch, as in
scikit-learn; skebm and the bare loop in float32, scikit-learn in float64 (what it does with float64
input) and in float32. An epoch is the difference between fits of 1 + k and 1 passes, so set-up
cancels. Contestants take turns; medians of the paired ratios. BLAS has as many threads as torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM
from threadpoolctl import threadpool_limits

from benchmarks._common import machine, paired, ratio, table, write
from skebm import RBMEstimator

SIZES = {(64, 64): 10_000, (784, 256): 5000, (784, 1024): 5000}  # (d, H): rows


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
            v_chain = torch.rand(p.shape, generator=g).lt_(p)
            rows = torch.cat([v, v_chain])
            h = torch.addmm(c, rows, w.t()).sigmoid_()
            sign = torch.full((len(rows),), 1 / len(v_chain))
            sign[: len(v)] = -1 / len(v)
            mu.lerp_(v.mean(0), 0.01)
            lam.lerp_(h[: len(v)].mean(0), 0.01)
            grad = ((h - lam) * sign[:, None]).t() @ (rows - mu)
            grad_b = sign @ rows - lam @ grad
            grad_c = sign @ h - grad @ mu
            w.add_(grad, alpha=-rate)
            b.add_(grad_b, alpha=-rate)
            c.add_(grad_c, alpha=-rate)
            p = h[len(v) :]
            h_chain = torch.rand(p.shape, generator=g).lt_(p)


def contestants(
    X: np.ndarray, n_hidden: int, batch: int
) -> dict[str, Callable[[int], Callable[[], object]]]:
    """Each maps a number of epochs to a run."""
    X32, x = X.astype(np.float32), torch.as_tensor(X, dtype=torch.float32)
    common = {"batch_size": batch, "learning_rate": 0.01, "random_state": 0}

    def skebm(k: int) -> Callable[[], object]:
        model = RBMEstimator(n_hidden, n_iter=k, learning="pcd", centered=True, **common)
        return lambda: model.fit(X32)

    def sklearn(k: int, data: np.ndarray) -> Callable[[], object]:
        model = BernoulliRBM(n_hidden, n_iter=k, **common)
        return lambda: model.fit(data)

    return {
        "skebm": skebm,
        "bare": lambda k: lambda: bare_epochs(x, n_hidden, batch, k, 0.01),
        "sklearn64": lambda k: sklearn(k, X),
        "sklearn32": lambda k: sklearn(k, X32),
    }


def measure(d: int, n_hidden: int, batch: int, repeats: int) -> dict[str, object]:
    """One row of the table."""
    n = SIZES[d, n_hidden]
    X = (np.random.default_rng(0).random((n, d)) < 0.3).astype(np.float64)
    k = max(2, 5000 * batch // n) if d == 64 else 3
    makers = contestants(X, n_hidden, batch)
    long = paired({name: make(1 + k) for name, make in makers.items()}, repeats)
    short = paired({name: make(1) for name, make in makers.items()}, repeats)
    epoch = {
        name: [max(a - b, 1e-9) / k for a, b in zip(long[name], short[name], strict=True)]
        for name in makers
    }
    steps = -(-n // batch)
    return {
        "d x H": f"{d} x {n_hidden}",
        "batch": batch,
        "skebm, us per step": round(1e6 * sorted(epoch["skebm"])[repeats // 2] / steps),
        "over the bare loop": f"{100 * (ratio(epoch['skebm'], epoch['bare']) - 1):+.1f} %",
        "against sklearn (float64)": ratio(epoch["sklearn64"], epoch["skebm"]),
        "against sklearn (float32)": ratio(epoch["sklearn32"], epoch["skebm"]),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--max-hidden", type=int, default=9999)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with threadpool_limits(args.threads):
        rows = [
            measure(*size, batch, args.repeats)
            for size in SIZES
            if size[1] <= args.max_hidden
            for batch in args.batches
        ]
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
