"""Labels of frames: the bass of a piece by its melody, of chorales and folk songs.

    OMP_NUM_THREADS=1 python -m benchmarks.temporal_labels --data PATH
        [--sets JSB_Chorales Nottingham simulated] [--only NAME ...] [--seeds 3] [--open-test]
        [--json F]

PATH holds `music/*.npz`. Of each frame of a piano roll only the highest note is shown; its label is
the pitch class of the lowest one, or none where the frame is silent (13 labels). Training songs up
to 14,000 frames, and 40 songs to choose on or, with `--open-test`, to test. Accuracy, its standard
error over songs, the negative log-probability of the right label in nats (of those with
probabilities), and the difference of accuracies to that of the best peer with its standard error
over songs. Means over seeds. All models take the same frames.

Set *simulated*: 200 songs of 60 notes, of seven, whose label is one of four chords, which follow
each other in an order and last for three to six notes; three notes in four are of the chord. Labels
depend on each other beyond what the notes nearby say.

Peers: a logistic regression of the frame, of the last four frames, and of seven frames around it;
each of the last two followed by Viterbi decoding with the transitions of the training labels,
:math:`\\sum_t \\log p(y_t | x_t) - \\log p(y_t) + \\log p(y_t | y_{t-1})`; `RBMClassifier` of the
frame and of seven frames. `TemporalRBMClassifier` knows the last four frames, with "7 frames" those
around, as one row with the labels before as its past; with "generative" all frames. Penalties of
the regressions are chosen on the validation songs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks._common import shown, write
from skebm import RBMClassifier, TemporalRBMClassifier
from skebm.partition import ConditionalAIS

N_FRAMES, N_SONGS = 14_000, 40
LABELS = np.arange(13)
PENALTIES = (0.01, 0.1, 1.0)
Songs = tuple[list[np.ndarray], list[np.ndarray]]

MODELS: dict[str, dict[str, Any]] = {
    "discriminative": {"objective": "discriminative"},
    "discriminative, no labels before": {"objective": "discriminative", "label_order": 0},
    "discriminative, two labels": {"objective": "discriminative", "label_order": 2},
    "discriminative, 7 frames": {"objective": "discriminative", "order": 1},
    "hybrid": {"objective": "hybrid", "generative_weight": 0.3},
    "generative": {"objective": "generative", "partition": ConditionalAIS(4, n_betas=100)},
}


def songs(data: Path, name: str, part: str, n_frames: int, n_songs: int) -> Songs:
    """Melodies, one-hot, and pitch classes of the lowest notes."""
    stored = np.load(data / f"music/{name}.npz")
    lengths = stored[f"{part}_len"]
    n = min(n_songs, int((np.cumsum(lengths) <= n_frames).sum()))
    roll = np.unpackbits(stored[part], axis=1)[: lengths[:n].sum(), : int(stored["d"])]
    silent, d = ~roll.any(1), roll.shape[1]
    highest, lowest = d - 1 - roll[:, ::-1].argmax(1), roll.argmax(1)
    X = (np.arange(36, d - 12) == highest[:, None]).astype(np.float32)
    X[silent] = 0.0
    y = np.where(silent, 12, lowest % 12)
    ends = np.cumsum(lengths[:n])[:-1]
    return np.split(X, ends), np.split(y, ends)


def simulated(part: str, n_songs: int) -> Songs:
    """Notes of chords, one-hot, and the chords."""
    rng = np.random.default_rng(["train", "valid", "test"].index(part))
    chords, X, y = np.array([[0, 2, 4], [5, 0, 2], [3, 5, 0], [4, 6, 1]]), [], []
    for _ in range(n_songs):
        steps = np.append(rng.integers(4), rng.choice([1, 2], 19, p=[0.8, 0.2]))
        label = np.repeat(np.cumsum(steps) % 4, rng.integers(3, 7, 20))[:60]
        note = chords[label, rng.integers(0, 3, len(label))]
        any_note = rng.random(len(label)) > 0.75
        note[any_note] = rng.integers(0, 7, any_note.sum())
        X.append(np.eye(7, dtype=np.float32)[note])
        y.append(label)
    return X, y


def windows(X: list[np.ndarray], before: int, after: int) -> list[np.ndarray]:
    """Frames with those around them, zeros beyond the ends."""
    found = []
    for one in X:
        padded = np.pad(one, ((before, after), (0, 0)))
        found.append(np.hstack([padded[k : k + len(one)] for k in range(before + after + 1)]))
    return found


# ------------------------------------------------------------------------------
# Models: each gives a function of songs, whose rows are log-probabilities, or labels
# ------------------------------------------------------------------------------

Predict = Callable[[list[np.ndarray]], list[np.ndarray]]


def of_rows(model: Any, before: int, after: int, train: Songs) -> Predict:
    """A classifier of windows."""
    model.fit(np.concatenate(windows(train[0], before, after)), np.concatenate(train[1]))

    def predict(X: list[np.ndarray]) -> list[np.ndarray]:
        found = []
        for one in windows(X, before, after):
            log_p = np.full((len(one), len(LABELS)), -20.0)
            log_p[:, model.classes_] = np.maximum(model.predict_log_proba(one), -20.0)
            found.append(log_p)
        return found

    return predict


def regression(before: int, after: int, train: Songs, valid: Songs) -> Predict:
    """A logistic regression of windows, with the penalty that is best on the validation songs."""
    made = [of_rows(LogisticRegression(C=c, max_iter=300), before, after, train) for c in PENALTIES]
    return max(made, key=lambda predict: accuracies(predict(valid[0]), valid[1]).mean())


def decoded(predict: Predict, train: Songs) -> Predict:
    """Viterbi decoding of a classifier's probabilities with transitions of labels."""
    counts = np.ones((len(LABELS), len(LABELS)))
    for y in train[1]:
        np.add.at(counts, (y[:-1], y[1:]), 1)
    step = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log(np.bincount(np.concatenate(train[1]), minlength=len(LABELS)) + 1.0)

    def viterbi(log_p: np.ndarray) -> np.ndarray:
        own, back = log_p - prior, []
        best = log_p[0]
        for row in own[1:]:
            ways = best[:, None] + step
            back.append(ways.argmax(0))
            best = ways.max(0) + row
        path = [int(best.argmax())]
        for way in back[::-1]:
            path.append(int(way[path[-1]]))
        return np.array(path[::-1])

    return lambda X: [viterbi(log_p) for log_p in predict(X)]


def temporal(settings: dict[str, Any], around: int, train: Songs, seed: int) -> Predict:
    """Our model, of windows of the frames `around` each."""
    model = TemporalRBMClassifier(**settings, random_state=seed)
    model.fit(windows(train[0], around, around), train[1])

    def predict(X: list[np.ndarray]) -> list[np.ndarray]:
        found = np.full((sum(map(len, X)), len(LABELS)), -20.0)
        log_p = model.predict_log_proba(windows(X, around, around))
        found[:, model.classes_] = np.maximum(log_p, -20.0)
        return np.split(found, np.cumsum([len(one) for one in X])[:-1])

    return predict


# ------------------------------------------------------------------------------
# Results
# ------------------------------------------------------------------------------


def accuracies(found: list[np.ndarray], y: list[np.ndarray]) -> np.ndarray:
    """Fraction of right labels of each song."""
    labels = [one if one.ndim == 1 else one.argmax(1) for one in found]
    return np.array([(a == b).mean() for a, b in zip(labels, y, strict=True)])


def candidates(few: dict[str, Any], train: Songs, valid: Songs) -> dict[str, Any]:
    """Functions of a seed that fit a model, by name; peers first."""
    regressions: dict[tuple[int, int], Predict] = {}

    def logistic(before: int, after: int) -> Predict:
        if (before, after) not in regressions:
            regressions[before, after] = regression(before, after, train, valid)
        return regressions[before, after]

    found: dict[str, Any] = {
        "logistic, frame": lambda seed: logistic(0, 0),
        "logistic, 4 frames": lambda seed: logistic(3, 0),
        "logistic, 7 frames": lambda seed: logistic(3, 3),
        "logistic, 4 frames, Viterbi": lambda seed: decoded(logistic(3, 0), train),
        "logistic, 7 frames, Viterbi": lambda seed: decoded(logistic(3, 3), train),
        "RBMClassifier, frame": lambda seed: of_rows(
            RBMClassifier(**few, random_state=seed), 0, 0, train
        ),
        "RBMClassifier, 7 frames": lambda seed: of_rows(
            RBMClassifier(**few, random_state=seed), 3, 3, train
        ),
    }
    for name, settings in MODELS.items():
        found[f"TemporalRBMClassifier, {name}"] = lambda seed, name=name, settings=settings: (
            temporal(settings | few, 3 if "7 frames" in name else 0, train, seed)
        )
    return found


def results(args: argparse.Namespace, name: str) -> Iterator[dict[str, Any]]:
    """Rows of the table of a set."""
    n_frames, n_songs = (600, 3) if args.quick else (N_FRAMES, N_SONGS)
    last = "test" if args.open_test else "valid"
    if name == "simulated":
        sizes = {"train": n_frames // 70, "valid": n_songs, last: n_songs}
        train, valid, test = (simulated(part, sizes[part]) for part in ("train", "valid", last))
    else:
        sizes = {"train": 10_000, "valid": n_songs, last: n_songs}
        train, valid, test = (
            songs(args.data, name, part, n_frames, sizes[part]) for part in ("train", "valid", last)
        )
    best: np.ndarray | None = None
    for model, fit in candidates({"n_iter": 2} if args.quick else {}, train, valid).items():
        ours = model.startswith("Temporal")
        if args.only and not any(part in model for part in args.only):
            continue
        right, loss, start = [], [], time.perf_counter()
        for seed in range(args.seeds if "logistic" not in model else 1):
            found = fit(seed)(test[0])
            right.append(accuracies(found, test[1]))
            if found[0].ndim == 2:
                rows, y = np.concatenate(found), np.concatenate(test[1])
                loss.append(-rows[np.arange(len(y)), y].mean())
        took, of_song = time.perf_counter() - start, np.mean(right, 0)
        if not ours and (best is None or of_song.mean() > best.mean()):
            best = of_song
        gain = of_song - best if best is not None else np.zeros(len(of_song))
        yield {
            "set": name,
            "model": model,
            "accuracy": float(of_song.mean()),
            "error": float(of_song.std(ddof=1) / np.sqrt(len(of_song))),
            "-log p": float(np.mean(loss)) if loss else "",
            "to best peer": float(gain.mean()) if ours else "",
            "its error": float(gain.std(ddof=1) / np.sqrt(len(gain))) if ours else "",
            "seconds": round(took / len(right), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["JSB_Chorales", "Nottingham", "simulated"])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--open-test", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = shown(row for name in args.sets for row in results(args, name))
    if args.json:
        write(args.json, rows)


if __name__ == "__main__":
    main()
