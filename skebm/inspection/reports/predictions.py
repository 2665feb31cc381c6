"""How good the predictions of classifiers and regressors are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skebm.inspection._drawing import NAVY
from skebm.inspection.reports.page import NotSaidError, Section, Tabulated, with_error
from skebm.inspection.reports.pictures import SMALL, picture, tidy
from skebm.inspection.reports.subject import Subject, ask
from skebm.metrics import expected_calibration_error

# Classes whose confusions are listed; intervals of regressors.
MOST_CLASSES = 12
CONFIDENCES = (0.5, 0.8, 0.95)
LEAST = 1e-15


def predictions_section(subject: Subject) -> Section | None:
    """Accuracy and calibration of classes, or errors and coverage of numbers."""
    if not (subject.is_classifier or subject.is_regressor):
        return None
    if subject.y is None:
        raise NotSaidError("it needs labels: pass X_test= and y=")
    return _of_classes(subject) if subject.is_classifier else _of_numbers(subject)


def _of_classes(subject: Subject) -> Section:
    y, classes = np.asarray(subject.y), np.asarray(subject.model.classes_)
    unknown = sorted(set(y.tolist()) - set(classes.tolist()), key=str)
    if unknown:
        raise NotSaidError(f"y has classes that the model does not know: {unknown[:5]}")
    proba = np.asarray(ask(subject.model.predict_proba, subject.X_test), dtype=float)
    code = np.searchsorted(classes, y)
    loss = -np.log(proba[np.arange(len(y)), code].clip(LEAST))
    right = proba.argmax(1) == code
    share = np.bincount(code, minlength=len(classes)) / len(y)
    of_shares = -float((share[share > 0] * np.log(share[share > 0])).sum())
    ece = float(expected_calibration_error(y, proba, labels=classes))
    rows = [
        (
            "accuracy",
            _with_error(right.astype(float)),
            f"{share.max():.3f}, of the commonest class",
        ),
        ("cross-entropy, nats", _with_error(loss), f"{of_shares:.3f}, of the shares of classes"),
        ("expected calibration error", f"{ece:.3f}", "0, of calibrated probabilities"),
    ]
    section = Section("How good are the class probabilities?")
    section.blocks.append(Tabulated(("", "of the model", "beside"), rows))
    section.facts = {
        "accuracy": float(right.mean()),
        "nll": float(loss.mean()),
        "ece": ece,
        "nll_of_shares": of_shares,
    }
    if len(classes) <= MOST_CLASSES:
        counts = np.zeros((len(classes), len(classes)), dtype=int)
        np.add.at(counts, (code, proba.argmax(1)), 1)
        names = ["true class", *(f"as {label}" for label in classes)]
        lines = [[str(c), *map(int, row)] for c, row in zip(classes, counts, strict=True)]
        section.blocks += [
            "Rows of each class by their most probable class:",
            Tabulated(names, lines),
        ]
    section.blocks += _reliability(proba.max(1), right)
    return section


def _reliability(confidence: np.ndarray, right: np.ndarray) -> list[Any]:
    edges = np.quantile(confidence, np.linspace(0, 1, 9))
    bins = np.clip(np.searchsorted(edges, confidence, "right") - 1, 0, 7)
    used = [k for k in range(8) if (bins == k).any()]
    at = [float(confidence[bins == k].mean()) for k in used]
    share = [float(right[bins == k].mean()) for k in used]
    errors = [
        math.sqrt(max(p * (1 - p), 1e-12) / int((bins == k).sum()))
        for k, p in zip(used, share, strict=True)
    ]

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        ax.plot([0, 1], [0, 1], color="0.5", ls="--", lw=1)
        ax.errorbar(at, share, errors, fmt="o", ms=4, lw=1.2, color=NAVY)
        low = max(0.0, min(at + share) - 0.05)
        ax.set(xlim=(low, 1.02), ylim=(low, 1.02))
        ax.set_xlabel("probability of the most probable class", fontsize=SMALL)
        ax.set_ylabel("share that is right", fontsize=SMALL)
        tidy(ax)

    caption = "Calibration, in eight parts of equally many rows, with standard errors."
    return picture(caption, (4.0, 3.0), draw, prefix="calibration")


def _of_numbers(subject: Subject) -> Section:
    y = np.asarray(subject.y, dtype=float)
    error = np.asarray(ask(subject.model.predict, subject.X_test), dtype=float) - y
    spread = float(y.std())
    rows = [
        ("mean absolute error", _with_error(np.abs(error))),
        ("root mean squared error", f"{math.sqrt(float(np.square(error).mean())):.4g}"),
        ("standard deviation of y", f"{spread:.4g}"),
    ]
    section = Section("How good are the predictions?")
    section.facts = {"mae": float(np.abs(error).mean()), "std": spread}
    if hasattr(subject.model, "predict_interval"):
        for confidence in CONFIDENCES:
            ends = ask(subject.model.predict_interval, subject.X_test, confidence)
            low, high = np.asarray(ends).T
            inside = ((low <= y) & (y <= high)).astype(float)
            rows.append((f"inside of the {confidence:.0%} interval", _with_error(inside)))
            section.facts[f"coverage_{confidence}"] = float(inside.mean())
    section.blocks.append(Tabulated(("", "of test rows"), rows))
    return section


def _with_error(values: np.ndarray) -> str:
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return with_error(float(values.mean()), error)
