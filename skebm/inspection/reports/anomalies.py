"""Calibration of scores, and the most anomalous rows with their reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import get_tags

from skebm._validation import is_frame, take_rows
from skebm.base.processes import collect_warnings
from skebm.estimators import EnergyOutlierDetector
from skebm.estimators.queries.densities import log_density
from skebm.inspection._drawing import NAVY, ORANGE
from skebm.inspection.detection.p_values import PValueDisplay
from skebm.inspection.reports.page import NotSaidError, Section, Tabulated, number, with_error
from skebm.inspection.reports.pictures import SMALL, outline, picture, tidy
from skebm.inspection.reports.subject import Subject, ask, random_rows
from skebm.metrics import average_precision_bootstrap, roc_auc_bootstrap

N_ANOMALIES = 10
LEVELS = (0.01, 0.05, 0.1, 0.2)
# Rows and columns up to which reasons are looked for.
MOST_EXPLAINED_COLUMNS = 60
N_REFERENCE_ROWS = 1000


def calibration_section(subject: Subject) -> Section | None:
    """Whether as many rows are flagged as the level says."""
    if subject.is_detector:
        return _of_detector(subject)
    return _of_density(subject)


def _of_detector(subject: Subject) -> Section:
    X, is_test = subject.outer_rows, subject.is_test
    model, section = subject.model, Section("Does it detect what it should?")
    score = np.asarray(ask(model.score_samples, X), dtype=float)
    flagged = np.asarray(ask(model.predict, X)) == -1
    normal = np.ones(len(score), dtype=bool)
    if subject.y is not None:
        normal = _is_normal(subject.y)
        _say_of_labels(section, normal, score)
    rows = "rows labelled normal" if subject.y is not None else "test rows"
    rows = rows if is_test else "training rows"
    rate, error = _rate(flagged[normal])
    level = getattr(model, "contamination_", None)
    asked = "" if level is None else f"; the level is {number(float(level), 3)}"
    section.blocks.append(f"Flagged: {with_error(rate, error)} of the {rows}{asked}.")
    section.facts |= {"rate": rate, "rate_error": error, "level": level, "is_test": is_test}
    if is_test and hasattr(model, "p_values"):
        _say_of_p_values(section, model, take_rows(X, np.flatnonzero(normal)))
    section.blocks += _histogram(score, normal, getattr(model, "offset_", None), subject)
    return section


def _is_normal(y: np.ndarray) -> np.ndarray:
    found = set(np.unique(y).tolist())
    if not found <= {1, -1}:
        raise NotSaidError("y of a detector is +1 for normal rows and -1 for anomalies")
    return np.asarray(y == 1)


def _say_of_labels(section: Section, normal: np.ndarray, score: np.ndarray) -> None:
    if normal.all() or not normal.any():
        section.blocks.append("All labels are the same, so that there is nothing to tell apart.")
        return
    area = roc_auc_bootstrap(~normal, -score, random_state=0)
    precision = average_precision_bootstrap(~normal, -score, random_state=0)
    names = ("", "value", "95 % interval")
    rows = [
        (name, round(one.value, 3), f"{one.lower:.3f} to {one.upper:.3f}")
        for name, one in (("AUROC", area), ("average precision", precision))
    ]
    section.blocks.append(Tabulated(names, rows))
    section.facts |= {"auroc": area.value, "average_precision": precision.value}


def _say_of_p_values(section: Section, model: Any, normal: Any) -> None:
    p = np.asarray(ask(model.p_values, normal))
    rows = _rates_by_level(p)
    section.blocks.append(
        "Share of these rows with a p-value of at most the level, which it should not exceed:"
    )
    section.blocks.append(Tabulated(("level", "share", "standard error"), rows))
    section.facts["p_values"] = {level: share for level, share, _ in rows}
    if not (hasattr(model, "n_calibration_") and hasattr(model, "estimators_")):
        return  # an ensemble, whose members are calibrated together
    if np.ndim(model.n_calibration_):
        return  # with thresholds by class, whose p-values have no band in common
    display = PValueDisplay.from_estimator(model, normal)

    def draw(figure: Any) -> None:
        display.plot(figure.subplots())

    caption = "P-values of these rows; calibrated ones follow the diagonal."
    section.blocks += picture(caption, (5.2, 3.6), draw, prefix="p-values")


def _of_density(subject: Subject) -> Section | None:
    if not subject.has_density or not subject.draws_rows:
        return None
    is_test = subject.is_test
    draws = subject.draws
    own = np.sort(np.asarray(ask(log_density, subject.final, draws), dtype=float))
    score = subject.log_prob
    n = len(own)
    share = np.searchsorted(own, score, "right") / n
    rows = "test rows" if is_test else "training rows"
    section = Section("Are rows as surprising as the model expects?")
    section.blocks.append(
        f"Share of {rows} whose log-likelihood is among the lowest of the model's own draws. More "
        "than the level: rows are more surprising than the model expects; fewer: it is too broad."
    )
    grid = _rates_by_level(share)
    section.blocks.append(
        Tabulated(("lowest share of draws", "share of rows", "standard error"), grid)
    )
    section.facts["share_by_level"] = {level: part for level, part, _ in grid}
    section.blocks += _histogram(score, np.ones(len(score), bool), None, subject, own)
    return section


def _rate(hits: np.ndarray) -> tuple[float, float]:
    """Share of hits, and its standard error."""
    rate = float(hits.mean()) if len(hits) else float("nan")
    return rate, (rate * (1 - rate) / max(1, len(hits))) ** 0.5


def _rates_by_level(values: np.ndarray) -> list[tuple[float, float, float]]:
    """For each level, the share of values of at most the level, and its standard error."""
    found = []
    for level in LEVELS:
        rate, error = _rate(values <= level)
        found.append((level, round(rate, 4), round(error, 4)))
    return found


def _histogram(
    score: np.ndarray, normal: np.ndarray, offset: Any, subject: Subject, own: Any = None
) -> list[Any]:
    known = score[np.isfinite(score)]
    if not len(known):
        return []
    low, high = np.quantile(known, [0.0, 1.0])
    if own is not None:
        low = min(low, float(np.quantile(own[np.isfinite(own)], 0.001)))
    edges = np.linspace(low, high if high > low else low + 1, 41)
    thresholds = np.array([] if offset is None else offset, dtype=float).ravel()  # or by class
    parts = [(score[normal], NAVY, "rows")]
    if not normal.all():
        parts.append((score[~normal], ORANGE, "anomalies"))
    if own is not None:
        parts.append((own, ORANGE, "draws"))

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        for part in parts:
            outline(ax, part[0], edges, *part[1:])
        for k, one in enumerate(thresholds[np.isfinite(thresholds)]):
            ax.axvline(one, color="0.5", ls="--", lw=1, label=None if k else "threshold")
        ax.set_xlabel("score, nats" if subject.has_density else "score, higher is more normal")
        ax.set_yticks([])
        ax.legend(frameon=False, fontsize=SMALL)
        tidy(ax)

    return picture("Scores.", (7.2, 2.4), draw, prefix="scores")


# ------------------------------------------------------------------------------
# The most anomalous rows
# ------------------------------------------------------------------------------


def anomalies_section(subject: Subject) -> Section | None:
    """The rows with the lowest scores, and why."""
    if not hasattr(subject.model, "score_samples") or not (
        subject.is_detector or subject.has_density
    ):
        return None
    X, is_test = subject.outer_rows, subject.is_test
    if subject.is_detector:
        score = np.asarray(ask(subject.model.score_samples, X), dtype=float)
    else:
        score = subject.log_prob
    order = np.argsort(score, kind="stable")[: min(N_ANOMALIES, len(score))]
    worst = take_rows(X, order)
    names = [str(name) for name in X.index[order]] if hasattr(X, "iloc") else order.tolist()
    section = Section(f"The {len(order)} most anomalous {'test' if is_test else 'training'} rows")
    reasons = _reasons(subject, worst, section)
    columns = ["row", "score"] + (["reasons"] if reasons else [])
    rows = [
        [str(name), round(float(score[k]), 2)] + ([reasons[i]] if reasons else [])
        for i, (name, k) in enumerate(zip(names, order, strict=True))
    ]
    section.blocks.insert(0, Tabulated(columns, rows))
    section.facts["rows"] = [
        {"row": name, "score": float(score[k]), "reasons": reasons[i] if reasons else ""}
        for i, (name, k) in enumerate(zip(names, order, strict=True))
    ]
    return section


def _reasons(subject: Subject, worst: Any, section: Section) -> list[str]:
    """Sentences of the reasons of rows; none, and why in the section, if there are none."""
    n_columns = int(np.prod(np.shape(worst)[1:])) if not is_frame(worst) else worst.shape[1]
    if n_columns > MOST_EXPLAINED_COLUMNS:
        section.blocks.append(
            f"Reasons of rows of {n_columns} columns take long: ask for those of one row by "
            "EnergyOutlierDetector.explain."
        )
        return []
    try:
        return [str(one) for one in ask(_explain_worst, subject, worst).sentences()]
    except NotSaidError as error:
        section.blocks.append(f"There are no reasons: {error}.")
        return []


def _explain_worst(subject: Subject, worst: Any) -> Any:
    """Reasons by the model itself, or by a detector that is made of it."""
    if hasattr(subject.model, "explain"):
        return subject.model.explain(worst)
    if not subject.has_density:
        raise ValueError("its scores are no densities, and it explains nothing itself")
    reference = subject.X_train if subject.X_train is not None else subject.outer_rows
    some = random_rows(reference, N_REFERENCE_ROWS, subject.seed)
    if get_tags(subject.model).estimator_type == "classifier":
        raise ValueError("reasons are for densities and detectors")
    with collect_warnings():
        detector = EnergyOutlierDetector(subject.model, prefit=True).fit(some)
        return detector.explain(worst)
