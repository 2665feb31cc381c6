"""Boltzmann machines: recovery of couplings and graphs, speed, likelihoods, perturb-and-MAP.

    OMP_NUM_THREADS=1 python -m benchmarks.boltzmann [--only recovery inverse speed debd map]
        [--data PATH] [--seeds 20] [--json F]

Protocols.

- *recovery*: 10 units, couplings N(0, 0.5) and fields N(0, 0.5) of bits, 20 seeds, exact rows.
  Every rule with ``l2=0``. The Cramer-Rao bound is the root of the mean of the diagonal of the
  inverse Fisher information over the couplings. Cover: share of couplings within 1.96 standard
  errors of the truth.
- *inverse*: spins on a 16 x 16 grid without periodic boundary at couplings 0.3 and 0.44, and on a
  random 3-regular graph of 64 spins at 0.3; 20,000 exact rows by coupling from the past (Propp and
  Wilson, 1996). The peers are scikit-learn's logistic regressions of each column on the others:
  without a penalty, and with the l1 penalty sqrt(log d / n) of Ravikumar et al. (2010) with either
  rule for the graph and couplings without a penalty on it. Errors are over all pairs.
- *speed*: rows of the fitted grid, d = 256, n = 20,000; the pseudo-likelihood against d calls of
  ``LogisticRegression(C=inf, solver="lbfgs")``, with the mean pseudo-log-likelihood that either
  reaches.
- *debd*: published splits, defaults; ``"pcd"`` as well where the likelihood is not exact.
- *map*: an attractive 4 x 4 grid with random couplings in (0, 1) and fields, 5,000 exact rows,
  mean log-likelihood of 100,000 others less that of exact maximum likelihood; CD-1 for the seconds
  that perturb-and-MAP takes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks._common import shown, write
from skebm import BoltzmannMachineDensity
from skebm.base import Batch
from skebm.energies import BoltzmannMachine, grid_edges
from skebm.estimators import SparsityPath
from skebm.objectives import ContrastiveDivergence
from skebm.partition import Exact
from skebm.partition.exact import exact_draws
from skebm.samplers import FromData, Gibbs

RULES = ("exact", "pseudo_likelihood", "ratio_matching", "probability_flow")
SIZES = (1_000, 10_000, 100_000)
SIDE, N_ROWS = 16, 20_000
UPPER = 1.96


def seeded(seed: int) -> torch.Generator:
    """A generator in a fixed state."""
    return torch.Generator().manual_seed(seed)


def machine(d: int, seed: int) -> BoltzmannMachine:
    """A random machine of bits."""
    generator = seeded(seed)
    J = 0.5 * torch.randn(d, d, generator=generator, dtype=torch.float64)
    J = J.triu(1)
    return BoltzmannMachine(
        J + J.t(), 0.5 * torch.randn(d, generator=generator, dtype=torch.float64)
    )


# ------------------------------------------------------------------------------
# Recovery
# ------------------------------------------------------------------------------


def bound(energy: BoltzmannMachine, n: int) -> float:
    """Cramer-Rao bound of the root mean squared error of the couplings."""
    d = len(energy.bias)
    states = energy.domain.states(0, 2**d, dtype=torch.float64, device="cpu")
    i, j = torch.triu_indices(d, d, 1)
    t = torch.cat([states[:, i] * states[:, j], states], 1)
    p = torch.softmax(-energy(states), 0).detach()
    centred = t - p @ t
    information = centred.t() @ (centred * p[:, None])
    variance = torch.linalg.inv(information).diagonal()[: len(i)]
    return float((variance / n).mean().sqrt())


def recovery(seeds: int) -> Iterator[dict[str, Any]]:
    """Root mean squared errors of the couplings, and cover of their standard errors."""
    upper = np.triu_indices(10, 1)
    for n in SIZES:
        squares: dict[str, list[float]] = {rule: [] for rule in RULES}
        cover: dict[str, list[float]] = {rule: [] for rule in RULES}
        bounds, taken = [], dict.fromkeys(RULES, 0.0)
        for seed in range(seeds):
            energy = machine(10, seed)
            with torch.no_grad():
                X = exact_draws(energy, n, seeded(1000 + seed)).numpy()
            truth = energy.coupling.detach().numpy()[upper]
            bounds.append(bound(energy, n) ** 2)
            for rule in RULES:
                start = time.perf_counter()
                model = BoltzmannMachineDensity(rule, l2=0.0, dtype="float64").fit(X)
                taken[rule] += time.perf_counter() - start
                off = model.couplings_[upper] - truth
                squares[rule].append(float((off**2).mean()))
                error = model.standard_errors(X).couplings[upper]
                cover[rule].append(float((np.abs(off) < UPPER * error).mean()))
        least = np.sqrt(np.mean(squares["exact"]))
        for rule in RULES:
            found = np.sqrt(np.mean(squares[rule]))
            yield {
                "rows": n,
                "rule": rule,
                "RMSE": f"{found:.4f}",
                "bound": f"{np.sqrt(np.mean(bounds)):.4f}",
                "of bound": f"{found / np.sqrt(np.mean(bounds)):.3f}",
                "of exact": f"{found / least:.3f}",
                "cover": f"{100 * np.mean(cover[rule]):.1f} %",
                "seconds": f"{taken[rule] / seeds:.2f}",
            }


# ------------------------------------------------------------------------------
# Inverse Ising
# ------------------------------------------------------------------------------


def from_the_past(energy: BoltzmannMachine, n: int, seed: int) -> np.ndarray:
    """Exact rows of an attractive machine by monotone coupling from the past, as spins."""
    d, done = len(energy.bias), np.empty((0, len(energy.bias)), dtype=np.float32)
    block = 2_000
    for number in range(-(-n // block)):
        length, open_ = 8, np.arange(block)
        found = np.empty((block, d), dtype=np.float32)
        while len(open_):
            low, high = torch.zeros(len(open_), d), torch.ones(len(open_), d)
            for step in range(length, 0, -1):
                u = torch.rand(block, d, generator=seeded(hash((seed, number, step)) % 2**62))
                logit = u[open_].clamp(1e-7, 1 - 1e-7).logit()
                for columns in energy.colours:
                    for x in (low, high):
                        x[:, columns] = (logit[:, columns] < energy.logits(x, columns)).float()
            met = (low == high).all(1).numpy()
            found[open_[met]] = low.numpy()[met]
            open_, length = open_[~met], 2 * length
        done = np.concatenate([done, found])
    return 2 * done[:n] - 1


def regular_graph(d: int, degree: int, seed: int) -> np.ndarray:
    """Adjacency matrix of a random regular graph, by pairing of stubs."""
    random = np.random.default_rng(seed)
    while True:
        stubs = random.permutation(np.repeat(np.arange(d), degree)).reshape(-1, 2)
        adjacency = np.zeros((d, d), dtype=int)
        np.add.at(adjacency, (stubs[:, 0], stubs[:, 1]), 1)
        adjacency += adjacency.T
        if adjacency.max() == 1 and not adjacency.diagonal().any():
            return adjacency > 0


def node_by_node(S: np.ndarray, C: float) -> np.ndarray:
    """Couplings of spins by a logistic regression of each column on the others."""
    d = S.shape[1]
    found = np.zeros((d, d))
    for i in range(d):
        others = np.delete(np.arange(d), i)
        penalty: dict[str, Any] = {"C": C, "solver": "lbfgs", "max_iter": 1000}
        if np.isfinite(C):
            penalty = {"C": C, "l1_ratio": 1.0, "solver": "liblinear", "max_iter": 200}
        model = LogisticRegression(**penalty).fit(S[:, others], S[:, i])
        found[i, others] = model.coef_[0] / 2  # log-odds are 2 (h + J s)
    return found


def on_graph(S: np.ndarray, graph: np.ndarray) -> np.ndarray:
    """Couplings without a penalty on a graph, node by node."""
    found = np.zeros(graph.shape)
    for i, row in enumerate(graph):
        if row.any():
            model = LogisticRegression(C=np.inf, max_iter=1000).fit(S[:, row], S[:, i])
            found[i, row] = model.coef_[0] / 2
    return found


def compared(name: str, J: np.ndarray, graph: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Errors of couplings and of a graph."""
    upper = np.triu_indices(len(truth), 1)
    wrong, right = graph[upper] & (truth[upper] == 0), ~graph[upper] & (truth[upper] != 0)
    return {
        "method": name,
        "false edges": int(wrong.sum()),
        "missing edges": int(right.sum()),
        "RMSE": f"{np.sqrt(np.mean((J - truth)[upper] ** 2)):.5f}",
    }


def inverse() -> Iterator[dict[str, Any]]:
    """Graphs and couplings of spins."""
    grid = grid_edges(SIDE, SIDE).numpy()
    regular = regular_graph(64, 3, 0)
    cases = (("grid", grid, 0.3), ("grid", grid, 0.44), ("3-regular", regular, 0.3))
    for number, (name, graph, K) in enumerate(cases):
        truth = K * graph
        energy = BoltzmannMachine.from_spins(torch.tensor(truth, dtype=torch.float32))
        with torch.no_grad():
            S = from_the_past(energy, N_ROWS, number)
        n, d = S.shape
        for row in _methods(S, truth, np.sqrt(np.log(d) / n)):
            yield {"spins": f"{name}, {d} at {K}"} | row


def _methods(S: np.ndarray, truth: np.ndarray, l1: float) -> Iterator[dict[str, Any]]:
    def timed(run: Any) -> tuple[Any, str]:
        start = time.perf_counter()
        found = run()
        return found, f"{time.perf_counter() - start:.0f}"

    for asked in ("ebic", "none"):
        chosen: dict[str, Any] = {"l1": SparsityPath()} if asked == "ebic" else {}
        model, seconds = timed(
            lambda chosen=chosen: BoltzmannMachineDensity(
                "pseudo_likelihood", coding="spin", random_state=0, **chosen
            ).fit(S)
        )
        name = "pseudo-likelihood" + (", EBIC" if chosen else "")
        yield compared(name, model.couplings_, model.graph_, truth) | {"seconds": seconds}
    J, seconds = timed(lambda: node_by_node(S, np.inf))
    mean = (J + J.T) / 2
    yield compared("logistic regressions", mean, mean != 0, truth) | {"seconds": seconds}
    J, seconds = timed(lambda: node_by_node(S, 1 / (len(S) * l1)))
    for name, graph in (("and", (J != 0) & (J.T != 0)), ("or", (J != 0) | (J.T != 0))):
        again = on_graph(S, graph)
        row = compared(f"l1 regressions, {name}", (again + again.T) / 2, graph, truth)
        yield row | {"seconds": seconds}


# ------------------------------------------------------------------------------
# Speed
# ------------------------------------------------------------------------------


def speed(repeats: int = 3) -> Iterator[dict[str, Any]]:
    """Seconds of a fit, against regressions of each column, at equal optimum."""
    energy = BoltzmannMachine.from_spins(torch.tensor(0.3 * grid_edges(SIDE, SIDE).numpy()).float())
    with torch.no_grad():
        S = from_the_past(energy, N_ROWS, 0)
    start = time.perf_counter()
    d, value = S.shape[1], 0.0
    for i in range(d):
        others = np.delete(np.arange(d), i)
        model = LogisticRegression(C=np.inf, solver="lbfgs").fit(S[:, others], S[:, i])
        value += float(
            model.predict_log_proba(S[:, others])[np.arange(len(S)), (S[:, i] > 0) * 1].mean()
        )
    theirs = time.perf_counter() - start
    yield {
        "method": f"{d} logistic regressions",
        "seconds": f"{theirs:.1f}",
        "mean": f"{value:.4f}",
    }
    for dtype in ("float32", "float64"):
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            ours = BoltzmannMachineDensity("pseudo_likelihood", l2=0.0, dtype=dtype).fit(S)
            taken.append(time.perf_counter() - start)
        seconds = float(np.median(taken))
        yield {
            "method": f"pseudo-likelihood, {dtype}",
            "seconds": f"{seconds:.1f}",
            "mean": f"{ours.pseudo_likelihood(S).mean():.4f}",
            "times faster": f"{theirs / seconds:.1f}",
        }


# ------------------------------------------------------------------------------
# Likelihoods
# ------------------------------------------------------------------------------


def debd(data: Path, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Test log-likelihoods of published splits."""
    for name in names:
        with np.load(data / "debd" / f"{name}.npz") as stored:
            d = int(stored["d"])
            parts = [
                np.unpackbits(stored[part], axis=1)[:, :d] for part in ("train", "valid", "test")
            ]
        train, valid, test = (part.astype(np.float32) for part in parts)
        for rule in ("auto", "pcd"):
            start = time.perf_counter()
            model = BoltzmannMachineDensity(rule, random_state=0).fit(train)
            if rule == "pcd" and model.log_partition_kind_ == "exact" and d < 20:
                continue
            found = model.score_samples(test)
            yield {
                "set": name,
                "rule": model.learning_,
                "valid": f"{model.score(valid):.3f}",
                "test": f"{model.score(test):.3f}",
                "error": f"{found.std() / np.sqrt(len(test)):.3f}",
                "log Z": model.log_partition_kind_,
                "upper - value": f"{model.log_partition_bounds_[1] - model.log_partition_:.2f}",
                "seconds": f"{time.perf_counter() - start:.0f}",
            }


# ------------------------------------------------------------------------------
# Perturb-and-MAP
# ------------------------------------------------------------------------------


def contrastive(X: np.ndarray, edges: Any, seconds: float) -> BoltzmannMachine:
    """CD-1 by Adam for so many seconds."""
    energy = BoltzmannMachine(torch.zeros(X.shape[1], X.shape[1]), edges=edges)
    objective = ContrastiveDivergence(energy, Gibbs(), FromData(n_steps=1))
    optimizer = torch.optim.Adam(energy.parameters(), lr=0.02)
    generator, x = seeded(0), torch.as_tensor(X, dtype=torch.float32)
    with torch.no_grad():
        state = objective.start(Batch(x), generator)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pick = torch.randint(len(x), (500,), generator=generator)
        with torch.no_grad():
            loss = objective.gradients(Batch(x[pick]), state, generator)
        state = loss.state
        optimizer.step()
    return energy


def perturb_and_map(seeds: int = 5) -> Iterator[dict[str, Any]]:
    """Log-likelihoods of rules on attractive grids, less that of exact learning."""
    edges = grid_edges(4, 4)
    for strength in (0.5, 1.0, 2.0):
        lost: dict[str, list[float]] = {"perturb_and_map": [], "cd-1": [], "pseudo_likelihood": []}
        taken = []
        for seed in range(seeds):
            generator = seeded(seed)
            J = strength * torch.rand(16, 16, generator=generator, dtype=torch.float64) * edges
            J = J.triu(1)
            h = 0.3 * torch.randn(16, generator=generator, dtype=torch.float64)
            truth = BoltzmannMachine.from_spins(J + J.t(), h)
            with torch.no_grad():
                X = exact_draws(truth, 5_000, generator).numpy()
                test = exact_draws(truth, 100_000, generator).numpy()
            best = BoltzmannMachineDensity("exact", edges=edges.numpy()).fit(X).score(test)
            for rule in ("perturb_and_map", "pseudo_likelihood"):
                start = time.perf_counter()
                model = BoltzmannMachineDensity(rule, edges=edges.numpy(), random_state=0).fit(X)
                if rule == "perturb_and_map":
                    taken.append(time.perf_counter() - start)
                lost[rule].append(best - model.score(test))
            energy = contrastive(X, edges, taken[-1])
            with torch.no_grad():
                mean = -float(energy(torch.as_tensor(test, dtype=torch.float32)).mean())
            lost["cd-1"].append(best - mean + Exact().estimate(energy).value)
        for rule, values in lost.items():
            yield {
                "couplings of spins": f"0 to {strength}",
                "rule": rule,
                "lost": f"{np.mean(values):.4f} ({np.std(values, ddof=1) / np.sqrt(seeds):.4f})",
                "seconds": f"{np.mean(taken):.1f}" if rule != "pseudo_likelihood" else "",
            }


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("recovery", "inverse", "speed", "debd", "map")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["nltcs", "plants", "jester"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    for name in args.only:
        if name == "debd" and args.data is None:
            print("debd needs --data")
            continue
        runs = {
            "recovery": lambda: recovery(args.seeds),
            "inverse": inverse,
            "speed": speed,
            "debd": lambda: debd(args.data, tuple(args.sets)),
            "map": perturb_and_map,
        }
        print(f"\n## {name}\n", flush=True)
        results[name] = shown(runs[name]())
    write(args.json, results)


if __name__ == "__main__":
    main()
