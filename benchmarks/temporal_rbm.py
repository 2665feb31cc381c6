"""Temporal RBMs: likelihoods of music, motion, anomalous frames, the cost of steps.

    OMP_NUM_THREADS=1 python -m benchmarks.temporal_rbm --data PATH --part likelihood
        [--sets JSB_Chorales Nottingham] [--only NAME ...] [--seeds 3] [--open-test] [--json F]
    OMP_NUM_THREADS=1 python -m benchmarks.temporal_rbm --data PATH --part motion [--open-test]
    OMP_NUM_THREADS=1 python -m benchmarks.temporal_rbm --data PATH --part impute [--open-test]
    OMP_NUM_THREADS=1 python -m benchmarks.temporal_rbm --data PATH --part anomalies [--seeds 3]
    OMP_NUM_THREADS=1 python -m benchmarks.temporal_rbm --part steps

PATH holds `music/*.npz` and `mocap/mit_mocap.npz`. All parts take `--quick`, a smoke test.

`likelihood`: piano rolls with their standard splits; mean log-likelihood of a frame in nats, with
its standard error over songs and seeds; that of temporal RBMs by the pessimistic end, as `score`
has it, of a static RBM (Chow-Liu tree and 200 units) by that of `RBMEstimator`, others exact. All
songs of the training part are trained on; 40 chorales and 8 tunes of Nottingham, drawn at random,
are scored, the same by all models, as each frame of a temporal RBM has a log Z of its own. Those
are validation songs, or test songs with `--open-test`; settings of `MODELS`, and weight decay and
learning rate of the default, were chosen on 250 frames of validation songs of JSB chorales.
*logistic*: a logistic regression of each note on the last three frames; *LSTM*: one of as many
weights as a conditional RBM of 100 units, with independent notes given its state. Both by AdamW, a
weight decay of 0, 0.01 or 0.1 and the number of steps chosen on all validation songs. Beside what
Boulanger-Lewandowski et al. (2012) report for the recurrent temporal RBM.

`motion`: MIT motion capture, 29 of the 35 training sequences to train and 6 to choose, the test
sequences with `--open-test`. Mean squared error of the next frame from frame 7 on, and of ten
frames that are generated one after the other from their own predictions, beside a linear
autoregression (order and ridge penalty chosen) and a GRU of as many weights.

`impute`: the same sequences, of which a fifth of the entries is missing: at random, or joints for
ten frames. Mean squared error of the missing entries (standard error over sequences) of `impute`
with ``how="mean"``, of linear interpolation in time, and of the Kalman smoother of an
autoregression, the mean given all known entries, whose order, ridge penalty and shrinkage of the
noise covariance are those of the least error on the validation sequences with the same gaps. (50
passes of the temporal RBM, rather than 200, and the Gaussian base were chosen there, too.)

`anomalies`: test songs of which one frame in a hundred is replaced by a frame of another song;
AUROC of minus log p given the past, and of minus `score_in_context`, which is given the next frame
as well; the three frames after a wrong one are left out. Beside them the distance to the 5th
nearest training window: of the present frame, of 4 frames with it, and of these and the next one.

`steps`: processor time of a step of 88 notes, 200 units, 3 frames before it and one Gibbs step, to
that of its matrix products and draws alone; and how much the largest memory of the process grows.
"""

from __future__ import annotations

import argparse
import copy
import resource
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import nn

from benchmarks._common import shown, spread, write
from skebm import RBMEstimator, TemporalRBM
from skebm.partition import ConditionalAIS
from skebm.samplers import FromData

MODELS: dict[str, dict[str, Any]] = {
    "conditional": {},
    "recurrent": {"n_components": 100, "order": 0, "recurrent": True, "batch_size": 256},
}
NAMES = (*MODELS, "static RBM", "logistic", "LSTM")
# Songs that are scored, at most: log Z of a frame takes a twentieth of a second.
SCORED = {"JSB_Chorales": 40, "Nottingham": 8}
PUBLISHED = {"JSB_Chorales": -6.35, "Nottingham": -2.62}
DECAYS, CHECKS, STEPS = (0.0, 0.01, 0.1), 20, 1500


def songs(data: Path, name: str, part: str, n: int | None) -> list[np.ndarray]:
    """Piano rolls of a split."""
    stored = np.load(data / f"music/{name}.npz")
    frames = np.unpackbits(stored[part], axis=1)[:, : int(stored["d"])].astype(np.float32)
    return np.split(frames, np.cumsum(stored[f"{part}_len"])[:-1])[:n]


# ------------------------------------------------------------------------------
# Peers
# ------------------------------------------------------------------------------


class Logistic(nn.Module):
    """Logits of a frame from the frames before it."""

    def __init__(self, d: int, order: int = 3):
        super().__init__()
        self.order, self.linear = order, nn.Linear(order * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lags = [
            nn.functional.pad(x, (0, 0, k, 0))[:, : x.shape[1]] for k in range(self.order, 0, -1)
        ]
        found: torch.Tensor = self.linear(torch.cat(lags, 2))
        return found


class Recurrent(nn.Module):
    """Output for a frame from the state of a recurrent network after the frame before."""

    def __init__(self, kind: Any, d: int, n_units: int):
        super().__init__()
        self.cell, self.head = kind(d, n_units, batch_first=True), nn.Linear(n_units, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(x, (0, 0, 1, 0))[:, : x.shape[1]]
        found: torch.Tensor = self.head(self.cell(before)[0])
        return found


def n_units(kind: Any, d: int, n_weights: int) -> int:
    """Units of a recurrent network of so many weights."""
    k = 1
    while sum(p.numel() for p in Recurrent(kind, d, k).parameters()) < n_weights:
        k += 1
    return k


def weights_of_conditional(d: int) -> int:
    """Weights of a conditional RBM of 100 units and three lags."""
    return d * 100 + 3 * (d + 1) * (d + 100) + d + 100


def padded(sequences: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences side by side, and which frames there are."""
    tensors = [torch.as_tensor(one, dtype=torch.float32) for one in sequences]
    there = nn.utils.rnn.pad_sequence([torch.ones(len(one)) for one in tensors], batch_first=True)
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True), there > 0


def errors(network: nn.Module, rows: tuple[torch.Tensor, torch.Tensor], loss: Any) -> torch.Tensor:
    """Sum over columns of the loss of each frame."""
    x, there = rows
    found: torch.Tensor = loss(network(x), x, reduction="none").sum(2)[there]
    return found


def trained(make: Any, train: Any, valid: Any, loss: Any, n_steps: int, seed: int) -> nn.Module:
    """The network of the weight decay and step with the least mean loss of validation sequences."""
    best, found = np.inf, None
    held_out = padded(valid)
    for decay in DECAYS:
        torch.manual_seed(seed)
        network, rng = make(), np.random.default_rng(seed)
        optimizer = torch.optim.AdamW(network.parameters(), 0.003, weight_decay=decay)
        for step in range(1, n_steps + 1):
            some = [train[i] for i in rng.integers(0, len(train), 8)]
            starts = [rng.integers(0, max(1, len(one) - 99)) for one in some]
            rows = padded([one[s : s + 100] for one, s in zip(some, starts, strict=True)])
            optimizer.zero_grad()
            errors(network, rows, loss).mean().backward()
            optimizer.step()
            if step % (n_steps // CHECKS) == 0:
                with torch.no_grad():
                    value = float(errors(network, held_out, loss).mean())
                if value < best:
                    best, found = value, copy.deepcopy(network)
    assert found is not None
    return found


# ------------------------------------------------------------------------------
# Likelihoods
# ------------------------------------------------------------------------------


def fitted(model: Any, X: Any) -> tuple[Any, float]:
    """The model and the seconds of its fit."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    return model, time.perf_counter() - started


def scores(
    name: str, seed: int, train: Any, valid: Any, others: Any, quick: bool
) -> tuple[np.ndarray, float]:
    """Log-likelihood of each frame of other songs, and the seconds of the fit."""
    d = train[0].shape[1]
    few: dict[str, Any] = {"n_iter": 2, "n_components": 10} if quick else {}
    if name in MODELS:
        model, took = fitted(TemporalRBM(**MODELS[name] | few, random_state=seed), train)
        found = model.log_conditional(others)
        low = found.lower if found.lower.mean() < found.log_prob.mean() else found.log_prob
        return low - 2 * np.sqrt(np.square(found.std_error).sum()) / len(low), took
    if name == "static RBM":
        settings = {"n_components": 200, "base": "chow-liu"} | few
        model, took = fitted(RBMEstimator(**settings, random_state=seed), np.concatenate(train))
        X = np.concatenate(others)
        value: np.ndarray = model.score_samples(X)
        return value + model.score(X) - value.mean(), took
    started, loss = time.perf_counter(), nn.functional.binary_cross_entropy_with_logits
    n_weights = weights_of_conditional(d)
    make = (lambda: Logistic(d)) if name == "logistic" else None
    if make is None:
        k = n_units(nn.LSTM, d, n_weights)
        make = lambda: Recurrent(nn.LSTM, d, k)  # noqa: E731
    network = trained(make, train, valid, loss, 40 if quick else STEPS, seed)
    with torch.no_grad():
        values = -errors(network, padded(others), loss).numpy()
    return values, time.perf_counter() - started


def likelihood(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each set and model."""
    for dataset in args.sets:
        train, valid, test = (
            songs(args.data, dataset, part, 12 if args.quick else None)
            for part in ("train", "valid", "test")
        )
        others = test if args.open_test else valid
        pick = np.random.default_rng(0).permutation(len(others))[: SCORED[dataset]]
        others = [others[i] for i in pick]
        ends = np.cumsum([len(one) for one in others])
        for name in args.only or NAMES:
            runs = [
                scores(name, seed, train, valid, others, args.quick) for seed in range(args.seeds)
            ]
            values = np.array([value for value, _ in runs])
            of_songs = [one.sum() for one in np.split(values.mean(0) - values.mean(), ends[:-1])]
            error = np.hypot(
                float(np.sqrt(np.square(of_songs).sum())) / ends[-1],
                values.mean(1).std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0,
            )
            yield {
                "set": dataset,
                "model": name,
                "frames": int(ends[-1]),
                "nats": f"{values.mean():.3f} ({error:.3f})",
                "published": PUBLISHED[dataset],
                "fit, s": round(float(np.median([took for _, took in runs]))),
            }


# ------------------------------------------------------------------------------
# Motion
# ------------------------------------------------------------------------------

FROM, FREE = 6, 10


def lagged(sequences: list[np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames before, from frame number 6 on, and the frames themselves."""
    pairs = [
        (one[i - order : i].ravel(), one[i]) for one in sequences for i in range(FROM, len(one))
    ]
    return np.array([z for z, _ in pairs]), np.array([y for _, y in pairs])


def autoregression(train: Any, valid: Any) -> tuple[Ridge, int]:
    """The order and the penalty with the least error of the next frame."""
    tries = []
    for order in (1, 2, 3, 6):
        Z, Y = lagged(train, order)
        Z_valid, Y_valid = lagged(valid, order)
        for penalty in (0.01, 0.1, 1.0, 10.0, 100.0):
            model = Ridge(penalty).fit(Z, Y)
            tries.append((float(((model.predict(Z_valid) - Y_valid) ** 2).mean()), model, order))
    _, model, order = min(tries, key=lambda one: one[0])
    return model, order


def gaits(args: argparse.Namespace) -> tuple[list[np.ndarray], dict[str, list[np.ndarray]]]:
    """Training sequences, and those that models are compared on."""
    stored = np.load(args.data / "mocap/mit_mocap.npz")
    order = np.random.default_rng(0).permutation(len(stored["train"]))
    sequences = [stored["train"][i].astype(np.float32) for i in order]
    test = np.split(stored["test"].astype(np.float32), np.cumsum(stored["test_len"])[:-1])
    parts = {"valid": sequences[:6]} | ({"test": test} if args.open_test else {})
    return sequences[6:], parts


def motion(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Errors of the next frame, and of ten frames that run freely."""
    train, parts = gaits(args)
    valid, d = parts["valid"], train[0].shape[1]

    def rows(name: str, step: Any, free: Any, took: float, nats: Any = None) -> Iterator[Any]:
        for part, own in parts.items():
            one = np.concatenate([((step(x) - x)[FROM:] ** 2).mean(1) for x in own])
            ten = [
                ((free(x[:i]) - x[i : i + FREE]) ** 2).mean()
                for x in own
                for i in (10, 40, 70)
                if i + FREE <= len(x)
            ]
            yield {
                "rows": part,
                "model": name,
                "one step": f"{one.mean():.4f} ({one.std() / len(one) ** 0.5:.4f})",
                "ten steps, free": f"{np.mean(ten):.4f} ({np.std(ten) / len(ten) ** 0.5:.4f})",
                "nats": "" if nats is None else f"{nats(own):.2f}",
                "fit, s": round(took),
            }

    ridge, lags = autoregression(train, valid)

    def ridge_step(x: np.ndarray) -> np.ndarray:
        found = x.copy()
        found[lags:] = ridge.predict(
            np.array([x[i - lags : i].ravel() for i in range(lags, len(x))])
        )
        return found

    def ridge_free(x: np.ndarray) -> np.ndarray:
        found = list(x)
        for _ in range(FREE):
            found.append(ridge.predict(np.concatenate(found[-lags:])[None])[0])
        return np.array(found[-FREE:])

    yield from rows(f"autoregression of order {lags}", ridge_step, ridge_free, 0)
    settings: dict[str, Any] = {"n_components": 100, "order": 3} | (
        {"n_iter": 2} if args.quick else {}
    )
    n_weights = weights_of_conditional(d)
    started = time.perf_counter()
    k = n_units(nn.GRU, d, n_weights)
    network = trained(
        lambda: Recurrent(nn.GRU, d, k),
        train,
        valid,
        nn.functional.mse_loss,
        40 if args.quick else STEPS,
        0,
    )

    @torch.no_grad()
    def gru_step(x: np.ndarray) -> np.ndarray:
        found: np.ndarray = network(torch.as_tensor(x)[None])[0].numpy()
        return found

    def gru_free(x: np.ndarray) -> np.ndarray:
        for _ in range(FREE):
            x = np.concatenate([x, gru_step(np.concatenate([x, x[-1:]]))[-1:]])
        return x[-FREE:]

    yield from rows(f"GRU of {k} units", gru_step, gru_free, time.perf_counter() - started)
    for name, more in (("n_iter=0", {"n_iter": 0}), ("conditional", {})):
        model, took = fitted(TemporalRBM(**settings | more, random_state=0), train)

        def free(x: np.ndarray, model: Any = model) -> np.ndarray:
            for _ in range(FREE):
                x = np.concatenate([x, model.predict_next(x, n_draws=100, n_steps=20)])
            return x[-FREE:]

        step = lambda x, model=model: model.expected(x, n_draws=100, n_steps=20)  # noqa: E731
        yield from rows(f"TemporalRBM, {name}", step, free, took, model.score)


# ------------------------------------------------------------------------------
# Missing joints
# ------------------------------------------------------------------------------

GAPS = {"at random": 1, "for ten frames": 10}


def missing(x: np.ndarray, length: int, seed: int) -> np.ndarray:
    """Which entries are missing: a fifth, in runs of a length."""
    rng, found = np.random.default_rng(seed), np.zeros(x.shape, dtype=bool)
    if length == 1:
        return rng.random(x.shape) < 0.2
    while found.mean() < 0.2:
        start, column = rng.integers(1 - length, len(x)), rng.integers(x.shape[1])
        found[max(start, 0) : start + length, column] = True
    return found


def interpolated(x: np.ndarray) -> np.ndarray:
    """Linear in time between known frames, constant beyond the first and the last one."""
    found, t = x.copy(), np.arange(len(x))
    for j in range(x.shape[1]):
        known = ~np.isnan(x[:, j])
        found[:, j] = np.interp(t, t[known], x[known, j]) if known.any() else 0.0
    return found


class Smoother:
    """Kalman smoother of a ridge autoregression: means of missing entries given all known ones.

    The joint distribution of a sequence is normal, so that they solve linear equations, whose
    matrix is the precision: the same means as by a forward and a backward pass.
    """

    def __init__(self, train: list[np.ndarray], order: int, penalty: float, shrinkage: float):
        pairs = [(one[i - order : i], one[i]) for one in train for i in range(order, len(one))]
        Z, Y = np.array([z.ravel() for z, _ in pairs]), np.array([y for _, y in pairs])
        ridge, self.order = Ridge(penalty).fit(Z, Y), order
        self.weight, self.bias = ridge.coef_.astype(float), ridge.intercept_.astype(float)
        self.noise = self._precision(Y - ridge.predict(Z), shrinkage)
        first = np.array([one[i : i + order].ravel() for one in train for i in range(20)])
        self.mean, self.first = first.mean(0).astype(float), self._precision(first, 0.1)

    @staticmethod
    def _precision(rows: np.ndarray, shrinkage: float) -> np.ndarray:
        covariance = np.cov(rows.T.astype(float))
        own = np.diag(np.diag(covariance) + 1e-6)
        return np.linalg.inv((1 - shrinkage) * covariance + shrinkage * own)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        (n, d), k = x.shape, self.order
        precision, linear = np.zeros((n * d, n * d)), np.zeros(n * d)
        precision[: k * d, : k * d] += self.first
        linear[: k * d] += self.first @ self.mean
        error = np.hstack([-self.weight, np.eye(d)])
        own, offset = error.T @ self.noise @ error, error.T @ self.noise @ self.bias
        for t in range(n - k):
            at = slice(t * d, (t + k + 1) * d)
            precision[at, at] += own
            linear[at] += offset
        flat = x.ravel().astype(float)
        unknown = np.isnan(flat)
        rest = linear[unknown] - precision[unknown][:, ~unknown] @ flat[~unknown]
        flat[unknown] = np.linalg.solve(precision[unknown][:, unknown], rest)
        return flat.reshape(n, d)


def impute(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each part, kind of gap and method."""
    train, parts = gaits(args)
    settings: dict[str, Any] = {"n_components": 100, "order": 3, "random_state": 0}
    n_iter = 2 if args.quick else 50
    kinds: dict[str, dict[str, Any]] = {
        "independent base": {"n_iter": n_iter},
        "Gaussian base, n_iter=0": {"base": "gaussian", "n_iter": 0},
        "Gaussian base": {"base": "gaussian", "n_iter": n_iter},
    }
    models = {
        name: fitted(TemporalRBM(**settings | more), train)[0] for name, more in kinds.items()
    }

    def errors_of(fill: Any, sequences: list[np.ndarray], length: int) -> np.ndarray:
        found = []
        for seed, x in enumerate(sequences):
            out = missing(x, length, seed)
            found.append(float(((fill(np.where(out, np.nan, x)) - x)[out] ** 2).mean()))
        return np.array(found)

    smoothers = [
        Smoother(train, order, penalty, shrinkage)
        for order in ((1,) if args.quick else (1, 2, 3, 6))
        for penalty in (0.1, 1.0, 10.0)
        for shrinkage in (0.01, 0.1, 0.5)
    ]
    for gap, length in GAPS.items():
        best = min(smoothers, key=lambda one: errors_of(one, parts["valid"], length).mean())
        fills = {"interpolation": interpolated, f"Kalman smoother, order {best.order}": best}
        for name, model in models.items():
            fills[f"TemporalRBM, {name}"] = lambda x, model=model: model.impute(
                x, random_state=0, how="mean", n_steps=10 if args.quick else 100
            )
        for part, sequences in parts.items():
            for name, fill in fills.items():
                started = time.perf_counter()
                own = errors_of(fill, sequences, length)
                yield {
                    "rows": part,
                    "missing": gap,
                    "method": name,
                    "error": f"{own.mean():.4f} ({own.std(ddof=1) / len(own) ** 0.5:.4f})",
                    "s a sequence": round((time.perf_counter() - started) / len(own), 2),
                }


# ------------------------------------------------------------------------------
# Anomalous frames
# ------------------------------------------------------------------------------


def windows(sequences: list[np.ndarray], length: int, ahead: int = 0) -> np.ndarray:
    """Windows of frames that end `ahead` frames after each one, zeros where there are none."""
    found = []
    for x in sequences:
        full = np.pad(x, ((length - 1 - ahead, ahead), (0, 0)))
        found.append(np.stack([full[i : i + length].ravel() for i in range(len(x))]))
    return np.concatenate(found)


def anomalies(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """AUROC of each set and method, over seeds of the replaced frames."""
    for dataset in args.sets:
        train = songs(args.data, dataset, "train", 12 if args.quick else 200)
        test = songs(args.data, dataset, "test", 12 if args.quick else 60)
        settings: dict[str, Any] = {"partition": ConditionalAIS(n_betas=100)} | (
            {"n_iter": 2} if args.quick else {}
        )
        model, took = fitted(TemporalRBM(**settings, random_state=0), train)
        near = {
            size: NearestNeighbors(n_neighbors=5).fit(windows(train, *size))
            for size in ((1, 0), (4, 0), (5, 1))
        }
        found: dict[str, list[float]] = {}
        for seed in range(args.seeds):
            changed, wrong, after = replaced(test, seed)
            values = {
                "TemporalRBM, past": -model.score_samples(changed),
                "TemporalRBM, past and next": -model.score_in_context(changed),
            }
            for (length, ahead), index in near.items():
                distance = index.kneighbors(windows(changed, length, ahead))[0][:, -1]
                values[f"5th neighbour, windows of {length}, {ahead} ahead"] = distance
            for name, value in values.items():
                found.setdefault(name, []).append(roc_auc_score(wrong[~after], value[~after]))
        for name, own in found.items():
            yield {
                "set": dataset,
                "method": name,
                "AUROC": f"{np.mean(own):.3f} ({np.std(own, ddof=1) / len(own) ** 0.5:.3f})",
                "fit, s": round(took) if name.startswith("TemporalRBM") else "",
            }


def replaced(
    sequences: list[np.ndarray], seed: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Songs with foreign frames, which frames these are, and which are up to three after one."""
    rng, found = np.random.default_rng(seed), [one.copy() for one in sequences]
    wrong = [np.zeros(len(one), dtype=bool) for one in sequences]
    after = [np.zeros(len(one), dtype=bool) for one in sequences]
    for i, one in enumerate(found):
        for place in np.flatnonzero(rng.random(len(one)) < 0.01):
            other = sequences[rng.choice([j for j in range(len(sequences)) if j != i])]
            frame = other[rng.integers(len(other))]
            if place < 3 or after[i][place] or (frame == one[place]).all():
                continue
            one[place], wrong[i][place] = frame, True
            after[i][place + 1 : place + 4] = True
    return found, np.concatenate(wrong), np.concatenate(after)


# ------------------------------------------------------------------------------
# Steps
# ------------------------------------------------------------------------------


@torch.no_grad()
def products(d: int, n_hidden: int, order: int, n: int, n_steps: int) -> float:
    """Seconds of the matrix products of steps, forward and backward."""
    x, chain, h = torch.rand(n, d), torch.rand(n, d), torch.rand(n, n_hidden)
    lags, weight = torch.rand(n, order * (d + 1)), torch.rand(n_hidden, d)
    A, B = torch.rand(d, order * (d + 1)), torch.rand(n_hidden, order * (d + 1))
    started = time.process_time()
    for _ in range(n_steps):
        lags @ A.t(), lags @ B.t()
        x @ weight.t(), h @ weight, chain @ weight.t()
        torch.rand(n, d), torch.rand(n, n_hidden)
        x.t() @ lags, h.t() @ lags, h.t() @ x, h.t() @ chain
    return time.process_time() - started


def peak() -> float:
    """Largest memory of the process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def steps(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of frames and size of a step."""
    d, n_hidden, order = 88, 200, 3
    few, many = (2000, 4000) if args.quick else (10_000, 100_000)
    for n, size, repeats in ((few, 100, 5), (few, 1000, 5), (many, 100, 2)):
        X = (np.random.default_rng(0).random((n, d)) < 0.05).astype(np.float32)
        before, ours, alone = peak(), [], []
        settings: dict[str, Any] = {"order": order, "batch_size": size, "learning_rate": 1e-3}
        settings |= {"chains": FromData(n_steps=1), "partition": ConditionalAIS(n_betas=1)}
        for _ in range(repeats):
            took = []
            for n_iter in (1, 4):
                started = time.process_time()
                fitted(TemporalRBM(n_hidden, n_iter=n_iter, **settings), X)
                took.append(time.process_time() - started)
            ours.append((took[1] - took[0]) / 3)
            alone.append(products(d, n_hidden, order, size, n // size))
        yield {
            "frames": n,
            "frames of a step": size,
            "ms per step": round(1e3 * float(np.median(ours)) / (n // size), 2),
            "over products": spread(ours, alone),
            "memory of the fits, MB": round(peak() - before),
            "frames alone, MB": round(X.nbytes / 2**20),
        }


PARTS = {
    "likelihood": likelihood,
    "motion": motion,
    "impute": impute,
    "anomalies": anomalies,
    "steps": steps,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--sets", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--only", nargs="+", choices=NAMES, help="models of likelihood")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--open-test", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="F")
    args = parser.parse_args()
    write(args.json, {"rows": shown(PARTS[args.part](args))})


if __name__ == "__main__":
    main()
