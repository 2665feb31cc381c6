"""Joint energy models of images: classes, images of another kind, and attacks.

    OMP_NUM_THREADS=1 python -m benchmarks.images --only mnist cifar robust --data PATH

Small parts of MNIST and of CIFAR-10, one thread, minutes. The network of all contenders is
``Conv((16, 32, 32))``. The images of CIFAR-10 are re-compressed JPEG files: its numbers are not
those of the original images. Pixels are from 0 to 1; columns are standardised, as by default.

Contenders:

- `plain`: ``generative_weight=0``, cross-entropy alone, stopped by a tenth of the training images
  (at most 40 epochs);
- `JEM`: `JEMClassifier(network)`, its defaults, which choose epochs by labels that trials leave
  out;
- `plain, shifted` and `JEM, shifted`: the same with ``Hybrid(augmentation=Shift(2))``; of CIFAR all
  contenders have images shifted and mirrored;
- `adversarial`: ``Hybrid(negatives="adversarial", augmentation=...)``, its other settings default;
- `attacked` (robust): ``Hybrid(attack=Attack(8 / 255, n_steps=3), augmentation=...)``, 12 epochs
  and ``generative_weight=0``, as `plain` of this part; `attacked, adversarial`: the same with
  adversarial negatives.

Parts:

`mnist`: 3,000 training images and 2,000 test images, drawn anew for each seed. Accuracy,
mean negative log-likelihood, calibration error (`expected_calibration_error` of the confidence, 15
bins), seconds of a fit, roll-backs. Differences are paired by seed. AUROC of test images against
2,000 (or as many as there are) of seven other kinds: KMNIST, Frey faces (20 wide, on a black
field), CIFAR in grey (28 x 28 of the middle), uniform noise, inverted images, images turned by 90
degrees, pixels of each image shuffled. Scores: log p(x) of `JEM`; log p(x) of its base; g, the
log-sum-exp of the logits of `JEM` and of `adversarial`; the same of `plain` (its energy, as
``EnergyOutlierDetector(statistic="logit_energy")`` has it); the largest probability of `plain`.

`cifar`: 3,000 training and 1,000 test images of eight of the ten classes (all but the last two),
one seed. Other kinds: the two other classes (ship and truck), grey, turned by 90 degrees, KMNIST
(padded to 32 x 32), Frey faces (32 x 20, in the middle), uniform noise, shuffled pixels.

`robust`: 3,000 training and 500 test images of all ten classes: accuracy, and accuracy under
projected gradient ascent of the cross-entropy within 8 / 255 of each pixel and within 0 and 1 (20
steps of 2 / 255 from a random point).

Before the test images were used, these were settled on images 50,000 to 51,000 of the training set
of MNIST, with 2,000 others to train on: the network among `Conv` and `ResNet`, norms, and the
weight of the logistic loss (0.1 and 1).
"""

from __future__ import annotations

import argparse
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks._common import seconds, table, write
from skebm import JEMClassifier
from skebm.base import sampling
from skebm.energies import Conv
from skebm.estimators import Attack, Hybrid
from skebm.metrics import expected_calibration_error
from skebm.objectives import SignAttack
from skebm.samplers import Compose, Flip, Shift
from skebm.training import EarlyStopping

NETWORK = Conv((16, 32, 32))
PLAIN: dict[str, Any] = {
    "generative_weight": 0.0,
    "base": "gaussian",
    "n_iter": 40,
    "early_stopping": EarlyStopping(n_iter_no_change=5),
}
MOVES = {"mnist": Shift(2), "cifar": Compose([Shift(2), Flip()])}
RADIUS = 8 / 255
N_TEST = 2000


def contenders(kind: str) -> dict[str, dict[str, Any]]:
    moved: dict[str, Any] = {"objective": Hybrid(augmentation=MOVES[kind])}
    uphill = {"objective": Hybrid(negatives="adversarial", augmentation=MOVES[kind])}
    if kind == "cifar":
        return {"plain": PLAIN | moved, "JEM": moved, "adversarial": uphill}
    return {
        "plain": PLAIN,
        "JEM": {},
        "plain, shifted": PLAIN | moved,
        "JEM, shifted": moved,
        "adversarial": uphill,
    }


# ------------------------------------------------------------------------------
# Images
# ------------------------------------------------------------------------------


def mnist(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    file = np.load(data / "images" / "mnist.npz")
    return file[f"X_{name}"][:, None] / 255.0, file[f"y_{name}"]


def kmnist(data: Path, n: int) -> np.ndarray:
    return np.load(data / "images" / "kmnist_test.npz")["X"][:n, None] / 255.0


def cifar(data: Path, name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first n images (n, 3, 32, 32) and their classes."""
    from PIL import Image

    file = np.load(data / "images" / "cifar10_20k.npz")
    ends, stored = file[f"{name}_end"][:n], file[name]
    parts = np.split(stored[: ends[-1]], ends[:-1])
    images = [np.asarray(Image.open(io.BytesIO(part.tobytes())).convert("RGB")) for part in parts]
    return np.stack(images).transpose(0, 3, 1, 2) / 255.0, file[f"y_{name}"][:n]


def padded(X: np.ndarray, height: int, width: int) -> np.ndarray:
    """Images in the middle of a black field, cut where they are larger."""
    found = np.zeros((*X.shape[:2], height, width))
    h, w = min(height, X.shape[2]), min(width, X.shape[3])
    top, left = (X.shape[2] - h) // 2, (X.shape[3] - w) // 2
    cut = X[:, :, top : top + h, left : left + w]
    down, right = (height - h) // 2, (width - w) // 2
    found[:, :, down : down + h, right : right + w] = cut
    return found


def frey(data: Path) -> np.ndarray:
    return np.load(data / "images" / "freyfaces.npz")["X"][:, None] / 255.0


def made_of(X: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Kinds of images that are made of the test images, or of nothing."""
    pixels = rng.permuted(np.broadcast_to(np.arange(X[0, 0].size), (len(X), X[0, 0].size)), axis=1)
    shuffled = np.take_along_axis(X.reshape(*X.shape[:2], -1), pixels[:, None], 2)
    return {
        "uniform noise": rng.random(X.shape),
        "turned": np.rot90(X, axes=(2, 3)).copy(),
        "shuffled": shuffled.reshape(X.shape),
    }


def odd_of_mnist(data: Path, X: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    grey = cifar(data, "test", N_TEST)[0].mean(1, keepdims=True)
    return {
        "KMNIST": kmnist(data, N_TEST),
        "Frey faces": padded(frey(data), 28, 28),
        "CIFAR, grey": padded(grey, 28, 28),
        "inverted": 1 - X,
        **made_of(X, np.random.default_rng(seed)),
    }


def odd_of_cifar(data: Path, X: np.ndarray, others: np.ndarray) -> dict[str, np.ndarray]:
    def coloured(images: np.ndarray) -> np.ndarray:
        return np.repeat(padded(images, 32, 32), 3, axis=1)

    return {
        "other classes": others,
        "grey": np.repeat(X.mean(1, keepdims=True), 3, axis=1),
        "KMNIST": coloured(kmnist(data, 1000)),
        "Frey faces": coloured(frey(data)[:1000]),
        **made_of(X, np.random.default_rng(0)),
    }


# ------------------------------------------------------------------------------
# Fits and scores
# ------------------------------------------------------------------------------


def jem(seed: int, **params: Any) -> JEMClassifier:
    return JEMClassifier(NETWORK, partition=None, random_state=seed, **params)


def timed(X: np.ndarray, y: np.ndarray, seed: int, **params: Any) -> tuple[JEMClassifier, float]:
    """A fitted model, and the seconds of its fit."""
    model = jem(seed, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of constant pixels, and of roll-backs
        return model, seconds(lambda: model.fit(X, y))


def network_logits(model: JEMClassifier, X: np.ndarray) -> np.ndarray:
    """Logits of the network, without regard to the power of the density."""
    energy: Any = model.energy_
    z = torch.as_tensor(model.units_.apply(X.reshape(len(X), -1)), dtype=torch.float32)
    with torch.no_grad(), sampling(energy):
        parts = [energy.network.classifier(energy.as_input(some)) for some in z.split(500)]
    found: np.ndarray = torch.cat(parts).double().numpy()
    return found


def base_density(model: JEMClassifier, X: np.ndarray) -> np.ndarray:
    """log q(x) of the base of the model, up to a constant."""
    base: Any = model.energy_.base
    z = torch.as_tensor(model.units_.apply(X.reshape(len(X), -1)), dtype=torch.float32)
    found: np.ndarray = torch.cat([base.log_prob(some) for some in z.split(500)]).double().numpy()
    return found


def area(usual: np.ndarray, odd: np.ndarray) -> float:
    known = np.repeat([1, 0], [len(usual), len(odd)])
    return float(roc_auc_score(known, np.concatenate([usual, odd])))


def areas(
    fits: dict[str, JEMClassifier], X: np.ndarray, odd: dict[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """AUROC of each score for each kind of images."""
    scores: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "JEM, log p(x)": lambda x: -fits["JEM"].energy(x),
        "base": lambda x: base_density(fits["JEM"], x),
        "JEM, g": lambda x: logsumexp(network_logits(fits["JEM"], x), axis=1),
        "adversarial, log p(x)": lambda x: -fits["adversarial"].energy(x),
        "adversarial, g": lambda x: logsumexp(network_logits(fits["adversarial"], x), axis=1),
        "plain, g": lambda x: logsumexp(network_logits(fits["plain"], x), axis=1),
        "plain, max p": lambda x: fits["plain"].predict_proba(x).max(1),
    }
    usual = {name: score(X) for name, score in scores.items()}
    return {
        kind: {name: area(usual[name], score(images)) for name, score in scores.items()}
        for kind, images in odd.items()
    }


def quality(model: JEMClassifier, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    p = model.predict_proba(X)
    labels = list(model.classes_)
    return {
        "accuracy": float((model.classes_[p.argmax(1)] == y).mean()),
        "NLL": float(log_loss(y, p, labels=labels)),
        "ECE": float(expected_calibration_error(y, p, labels=labels)),
    }


def summary(found: dict[str, list[dict[str, float]]]) -> list[dict[str, object]]:
    """Means over seeds, and paired differences to `plain` with their standard errors."""
    rows: list[dict[str, object]] = []
    for method, runs in found.items():
        row: dict[str, object] = {"method": method}
        for name in runs[0]:
            values = np.array([run[name] for run in runs])
            row[name] = f"{values.mean():.4f}" if name != "seconds" else f"{values.mean():.0f}"
            gap = values - [run[name] for run in found["plain"]]
            if name in ("accuracy", "NLL", "ECE") and method != "plain" and len(runs) > 1:
                row[name] += f" ({gap.mean():+.4f}, {gap.std(ddof=1) / len(gap) ** 0.5:.4f})"
        rows.append(row)
    return rows


def measured(
    kind: str, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int
) -> tuple[dict[str, JEMClassifier], dict[str, dict[str, float]]]:
    """All contenders fitted, and what they are worth as classifiers."""
    fits, found = {}, {}
    for method, params in contenders(kind).items():
        model, time = timed(X, y, seed, **params)
        fits[method] = model
        found[method] = quality(model, X_test, y_test) | {
            "seconds": time,
            "epochs": model.n_iter_,
            "power": model.power_,
            "roll-backs": model.n_restarts_,
        }
        print(kind, seed, method, found[method], flush=True)
    return fits, found


# ------------------------------------------------------------------------------
# Parts
# ------------------------------------------------------------------------------


def part_mnist(data: Path, seeds: list[int]) -> dict[str, Any]:
    (X, y), (X_test, y_test) = mnist(data, "train"), mnist(data, "test")
    found: dict[str, list[dict[str, float]]] = {}
    separated: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        train, test = rng.permutation(50_000)[:3000], rng.permutation(len(X_test))[:N_TEST]
        fits, these = measured("mnist", X[train], y[train], X_test[test], y_test[test], seed)
        for method, values in these.items():
            found.setdefault(method, []).append(values)
        odd = odd_of_mnist(data, X_test[test], seed)
        for kind, values in areas(fits, X_test[test], odd).items():
            separated.setdefault(kind, []).append(values)
            print("mnist", seed, kind, values, flush=True)
    return {"classes": summary(found), "kinds": mean_areas(separated)}


def mean_areas(found: dict[str, list[dict[str, float]]]) -> list[dict[str, object]]:
    return [
        {"kind": kind} | {name: f"{np.mean([run[name] for run in runs]):.3f}" for name in runs[0]}
        for kind, runs in found.items()
    ]


def part_cifar(data: Path, seeds: list[int]) -> dict[str, Any]:
    X, y = cifar(data, "train", 20_000)
    X_test, y_test = cifar(data, "test", 5000)
    inside = y < 8
    X, y = X[inside][:3000], y[inside][:3000]
    others = X_test[y_test >= 8][:1000]
    X_test, y_test = X_test[y_test < 8][:1000], y_test[y_test < 8][:1000]
    fits, found = measured("cifar", X, y, X_test, y_test, 0)
    for method, model in fits.items():
        found[method]["under attack"] = attacked_accuracy(model, X_test[:500], y_test[:500])
    odd = odd_of_cifar(data, X_test, others)
    separated = {kind: [values] for kind, values in areas(fits, X_test, odd).items()}
    of_classes = summary({name: [values] for name, values in found.items()})
    return {"classes": of_classes, "kinds": mean_areas(separated)}


def attacked_accuracy(model: JEMClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """Accuracy at images moved within `RADIUS` of each pixel, and within 0 and 1."""
    energy, flat = model.energy_, torch.as_tensor(X.reshape(len(X), -1))
    centre, scale = (torch.as_tensor(part) for part in (model.units_.centre, model.units_.scale))
    network: Any = energy.network

    def logits(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = network.classifier(energy.as_input(((x - centre) / scale).float()))
        return found

    attack = SignAttack(torch.full((flat.shape[1],), RADIUS), 20, 0.25)
    domain = type(energy.domain)(energy.domain.shape, 0.0, 1.0)
    codes = torch.as_tensor(np.searchsorted(model.classes_, y))
    with sampling(energy):
        moved = attack(logits, flat, codes, torch.Generator().manual_seed(0), domain)
        with torch.no_grad():
            return float((logits(moved).argmax(1) == codes).double().mean())


def part_robust(data: Path, seeds: list[int]) -> dict[str, Any]:
    X, y = cifar(data, "train", 3000)
    X_test, y_test = cifar(data, "test", 500)
    moves: dict[str, Any] = {"augmentation": MOVES["cifar"]}
    attacks: dict[str, Any] = {"attack": Attack(RADIUS, n_steps=3)} | moves
    kind: dict[str, Any] = {"base": "gaussian", "n_iter": 12}
    alone = kind | {"generative_weight": 0.0}
    methods: dict[str, dict[str, Any]] = {
        "plain": alone | {"objective": Hybrid(**moves)},
        "attacked": alone | {"objective": Hybrid(**attacks)},
        "attacked, adversarial": kind | {"objective": Hybrid(negatives="adversarial", **attacks)},
    }
    rows: list[dict[str, object]] = []
    for method, params in methods.items():
        model, time = timed(X, y, 0, **params)
        rows.append(
            {
                "method": method,
                "accuracy": f"{model.score(X_test, y_test):.3f}",
                "under attack": f"{attacked_accuracy(model, X_test, y_test):.3f}",
                "seconds": f"{time:.0f}",
            }
        )
        print(rows[-1], flush=True)
    return {"attacks": rows}


PARTS = {"mnist": part_mnist, "cifar": part_cifar, "robust": part_robust}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="of MNIST")
    parser.add_argument("--json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {}
    for name in asked.only:
        found = PARTS[name](asked.data, asked.seeds)
        result[name] = found
        for title, rows in found.items():
            print(f"\n{name}, {title}\n\n{table(rows)}", flush=True)
    write(asked.json, result)


if __name__ == "__main__":
    main()
