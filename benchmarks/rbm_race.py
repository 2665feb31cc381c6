"""Time to the best exact test log-likelihood that scikit-learn's BernoulliRBM reaches.

    python -m benchmarks.rbm_race --data PATH [--sets nltcs mnist] [--epochs 50] [--json F]

PATH is the folder of `benchmarks.density`; `mnist` is fixed-binarised MNIST.

Protocol: 16 hidden units, seed 0, one thread, on a CPU. The peer is fitted with learning rates
0.01, 0.05, 0.1 and batches of 10 and 100 rows, on float32 rows: its faster input (programs mostly
give it float64). A copy of the weights and the time since `fit` was called are kept at the end of
every epoch, copies left out of the time; for L-BFGS an epoch is an iteration. Afterwards log p of
the test rows is computed for the copies by enumeration: for the peer those of every epoch (mnist:
every 5th and the last), for skebm every one. The peer's best is the largest test mean over settings
and epochs, so it is chosen on test; its time is that of this setting alone, at the first epoch with
this value, and what the search took is not counted. skebm runs with its defaults, and with
`learning="pcd"` where they are exact; its time is that of the first epoch that is at least as good.

Peers: `all rows` is `fit` on the table as it is. Where the batch size does not divide the number of
rows, its last batch has fewer rows than chains, and at the end of every epoch the gradient is out
of balance; `whole batches` is the same without these last rows.

Standard errors are over test rows; that of the difference is of the rows' differences. Both were
called once on a few rows before. Contestants run one after another: on a busy machine repeat.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn.neural_network
import torch
from skorch.callbacks import Callback
from threadpoolctl import threadpool_limits

from benchmarks._common import machine, table, write
from benchmarks.density import load
from skebm import RBMEstimator
from skebm.energies import BernoulliRBM
from skebm.partition import Exact

H = 16
RATES, BATCHES = (0.01, 0.05, 0.1), (10, 100)
EVERY = {"nltcs": 1, "mnist": 5}  # epochs of the peer that are evaluated


class Snapshot(NamedTuple):
    """Weights at the end of an epoch, and the training time until then."""

    epoch: int
    seconds: float
    weight: np.ndarray
    visible_bias: np.ndarray
    hidden_bias: np.ndarray


class Track:
    """Snapshots of one fit, by a clock that stands still while they are taken."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.started, self.spent_here = time.perf_counter(), 0.0

    def seconds(self) -> float:
        """Training time so far."""
        return time.perf_counter() - self.started - self.spent_here

    def keep(self, *arrays: Any) -> None:
        """Copy weights, visible and hidden biases."""
        now = self.seconds()
        copies = [np.array(a, dtype=np.float32, order="C") for a in arrays]
        self.snapshots.append(Snapshot(len(self.snapshots) + 1, now, *copies))
        self.spent_here += self.seconds() - now


class Peer(sklearn.neural_network.BernoulliRBM):
    """BernoulliRBM that is watched: its `fit` calls `_fit` once for every batch."""

    def fit(self, X, y=None):
        """Fit, with a snapshot whenever all rows were seen."""
        self.n_rows_, self.seen_, self.track_ = len(X), 0, Track()
        return super().fit(X, y)

    def _fit(self, v_pos, rng):
        super()._fit(v_pos, rng)
        self.seen_ += len(v_pos)
        if self.seen_ == self.n_rows_:
            self.seen_ = 0
            self.track_.keep(self.components_, self.intercept_visible_, self.intercept_hidden_)


class LogPartitionMonitor(Callback):
    """The same for skebm."""

    def __init__(self, track: Track):
        self.track = track

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        energy = net.module_.energy
        parameters = energy.weight, energy.visible_bias, energy.hidden_bias
        self.track.keep(*(p.detach().numpy() for p in parameters))


class Curve(NamedTuple):
    """Test log-likelihood of the rows at some epochs of a fit."""

    settings: dict[str, Any]
    epochs: list[int]
    seconds: list[float]
    per_row: list[np.ndarray]
    total: float  # seconds of the whole fit

    @property
    def values(self) -> list[float]:
        """Means over the rows; a model that overflowed is infinitely bad."""
        means = [float(row.mean()) for row in self.per_row]
        return [m if math.isfinite(m) else -math.inf for m in means]

    def best(self) -> int:
        """First place of the largest value."""
        return int(np.argmax(self.values))

    def reached(self, value: float) -> int | None:
        """First place that is at least as good."""
        return next((i for i, own in enumerate(self.values) if own >= value), None)

    def as_json(self) -> dict[str, Any]:
        """Everything but the rows."""
        kept = {"epochs": self.epochs, "seconds": self.seconds, "test": self.values}
        return self.settings | {"total": self.total} | kept


def log_likelihood(snapshot: Snapshot, x: torch.Tensor) -> np.ndarray:
    """Exact log p of each row."""
    n_hidden, d = snapshot.weight.shape
    energy = BernoulliRBM(d, n_hidden, generator=torch.Generator())
    with torch.no_grad():
        energy.weight.copy_(torch.from_numpy(snapshot.weight))
        energy.visible_bias.copy_(torch.from_numpy(snapshot.visible_bias))
        energy.hidden_bias.copy_(torch.from_numpy(snapshot.hidden_bias))
        return -energy(x).double().numpy() - Exact().estimate(energy).value


def curve(track: Track, total: float, settings: dict, x: torch.Tensor, every: int) -> Curve:
    """Evaluate every so many epochs and the last."""
    n = len(track.snapshots)
    chosen = [s for s in track.snapshots if s.epoch % every == 0 or s.epoch == n]
    per_row = [log_likelihood(s, x) for s in chosen]
    return Curve(settings, [s.epoch for s in chosen], [s.seconds for s in chosen], per_row, total)


def run_peer(train: np.ndarray, x: torch.Tensor, settings: dict, epochs: int, every: int) -> Curve:
    """One fit of the peer."""
    kind = {"learning_rate": settings["learning_rate"], "batch_size": settings["batch_size"]}
    rows = train
    if settings["peer"] == "whole batches":
        rows = train[: len(train) // kind["batch_size"] * kind["batch_size"]]
    model = Peer(H, n_iter=epochs, random_state=0, **kind).fit(rows)
    return curve(model.track_, model.track_.seconds(), settings, x, every)


def run_skebm(train: np.ndarray, x: torch.Tensor, more: dict[str, Any]) -> Curve:
    """One fit of skebm."""
    track = Track()
    watch = {"callbacks": [LogPartitionMonitor(track)]}
    model = RBMEstimator(H, random_state=0, device="cpu", net_params=watch, **more)
    track.started = time.perf_counter()
    model.fit(train)
    total = track.seconds()
    if len(track.snapshots) < model.n_iter_:  # ended before the callback was asked
        track.keep(model.components_, model.intercept_visible_, model.intercept_hidden_)
    return curve(track, total, {"rule": model.learning_}, x, 1)


def mean_error(per_row: np.ndarray) -> str:
    """Mean and its standard error."""
    return f"{per_row.mean():.3f} ± {per_row.std() / len(per_row) ** 0.5:.3f}"


def row(name: str, what: str, peer: Curve, ours: Curve) -> dict[str, object]:
    """A line of the table."""
    best, last = peer.best(), ours.per_row[-1]
    place = ours.reached(peer.values[best])
    own = None if place is None else ours.seconds[place]
    return {
        "set": name,
        "peer": what,
        "rate": peer.settings["learning_rate"],
        "batch": peer.settings["batch_size"],
        "epoch": peer.epochs[best],
        "peer's best": mean_error(peer.per_row[best]),
        "after, s": f"{peer.seconds[best]:.2f}",
        "peer's last": f"{peer.values[-1]:.3f}",
        "skebm": ours.settings["rule"],
        "as good after, s": "never" if own is None else f"{own:.2f}",
        "ratio": "" if own is None else f"{peer.seconds[best] / own:.1f}",
        "skebm's last": mean_error(last),
        "its fit, s": f"{ours.total:.2f}",
        "last - peer's best": mean_error(last - peer.per_row[best]),
    }


def measure(data: Path, name: str, epochs: int) -> tuple[list[dict], list[dict]]:
    """Lines of the table for one set, and all curves."""
    train, _, test = load(data, name)
    x = torch.from_numpy(test)
    Peer(H, n_iter=1).fit(train[:100])
    RBMEstimator(H, n_iter=1, device="cpu").fit(train[:100])
    uneven = any(len(train) % batch for batch in BATCHES)
    peers: dict[str, list[Curve]] = {}
    for what in ["all rows", "whole batches"] if uneven else ["all rows"]:
        for rate in RATES:
            for batch in BATCHES:
                settings = {"peer": what, "learning_rate": rate, "batch_size": batch}
                one = run_peer(train, x, settings, epochs, EVERY[name])
                peers.setdefault(what, []).append(one)
                show(name, one)
    ours = [run_skebm(train, x, {})]
    if ours[0].settings["rule"] == "exact":
        ours.append(run_skebm(train, x, {"learning": "pcd"}))
    for one in ours:
        show(name, one)
    rows = [
        row(name, what, max(curves, key=lambda c: c.values[c.best()]), own)
        for what, curves in peers.items()
        for own in ours
    ]
    every = [one for curves in peers.values() for one in curves] + ours
    return rows, [{"set": name} | one.as_json() for one in every]


def show(name: str, one: Curve) -> None:
    """A line of progress."""
    i = one.best()
    where = f"best {one.values[i]:.3f} at epoch {one.epochs[i]}, {one.seconds[i]:.2f} s"
    print(f"{name}: {one.settings}, {where}; last {one.values[-1]:.3f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--epochs", type=int, default=50, help="of the peer")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, curves = [], []
    with threadpool_limits(1):
        for name in args.sets:
            found, kept = measure(args.data, name, args.epochs)
            rows += found
            curves += kept
    print(machine())
    print(table(rows))
    write(args.json, {"rows": rows, "curves": curves})


if __name__ == "__main__":
    main()
