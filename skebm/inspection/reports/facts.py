"""What a fitted model says of itself: its settings, its training, its log Z, its columns."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import scipy
import sklearn
import torch
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from skebm.base import LogPartition
from skebm.estimators.base import non_default_parameters
from skebm.estimators.queries.densities import (
    has_normaliser,
    is_energy_based,
    last_step,
    leaves_out_log_z,
)
from skebm.estimators.storage import package_version
from skebm.inspection.boltzmann.rbm import _columns
from skebm.inspection.reports.page import Code, NotSaidError, Section, Tabulated, number, with_error
from skebm.inspection.reports.pictures import picture
from skebm.inspection.reports.subject import Subject
from skebm.inspection.training import TrainingDisplay

# Columns that are listed, at most; epochs whose gain says whether training could go on.
MOST_COLUMNS = 40
# Parameters that choose nothing of the model.
SILENT = ("verbose", "n_jobs", "device", "warm_start", "random_state")
# Fitted attributes that stand in sections of their own, or say nothing in a line.
ELSEWHERE = (
    "n_features_in_",
    "history_",
    "net_",
    "random_state_",
    "columns_",
    "feature_names_in_",
    "converged_",
)
MOST_LETTERS = 160


class Setting(NamedTuple):
    """A parameter: what was asked for, what the fit took, and why."""

    name: str
    asked: str
    used: str
    why: str


class Training(NamedTuple):
    """How training went: epochs, seconds, whether it converged, times it was rolled back."""

    n_epochs: int
    seconds: float
    converged: bool
    n_restarts: int


def settings_of_fit(model: Any) -> list[Setting]:
    """Parameters that were set, or that the fit chose."""
    if not hasattr(model, "get_params"):
        return []
    asked = model.get_params(deep=False)
    changed = non_default_parameters(model)
    found = []
    for name, value in asked.items():
        if name in SILENT:
            continue
        used = attribute(model, f"{name}_name_") or attribute(model, f"{name}_")
        has_choice = used is not None and text(used) != text(value)
        if name in changed or has_choice:
            reason = attribute(model, f"{name}_reason_") or ""
            found.append(Setting(name, text(value), text(used) if has_choice else "", reason))
    return found


def results(model: Any) -> dict[str, str]:
    """Fitted attributes that are numbers, words or small objects, but for those of parameters."""
    known = (
        {f"{name}_" for name in model.get_params(deep=False)}
        if hasattr(model, "get_params")
        else set()
    )
    names = {name for name in (*dir(type(model)), *vars(model)) if name.endswith("_")}
    found = {}
    for name in sorted(names - known - set(ELSEWHERE)):
        is_private = name.startswith("_")
        if is_private or name.startswith("log_partition") or name.endswith(("_reason_", "_name_")):
            continue
        value = attribute(model, name)
        if isinstance(value, (str, bool, Integral, Real)) or _is_short_tuple(value):
            found[name] = text(value)
    return found


def attribute(model: Any, name: str) -> Any:
    """A fitted attribute; None where the model has none."""
    try:
        return getattr(model, name, None)
    except (ValueError, TypeError, NotImplementedError):
        return None


def text(value: Any) -> str:
    """A value in a line."""
    if isinstance(value, Real) and not isinstance(value, (bool, Integral)):
        return number(float(value))
    line = " ".join(repr(value).split()) if not isinstance(value, str) else value
    return line if len(line) <= MOST_LETTERS else line[: MOST_LETTERS - 1] + "…"


def training(final: Any) -> Training | None:
    """How the training of a model went; None for one that has no epochs."""
    history = attribute(final, "history_")
    if history is None:
        return None
    curves = _columns(history) if len(history) else {}
    seconds = float(np.nansum(curves["dur"])) if "dur" in curves else math.nan
    return Training(
        len(history), seconds, bool(final.converged_), int(attribute(final, "n_restarts_") or 0)
    )


def gain_of_last_epochs(final: Any) -> float | None:
    """Nats by which held-out rows gained in the last fifth of the epochs; None if not known."""
    history = attribute(final, "history_") or []
    gains = [row["gain_over_base"] for row in history if "gain_over_base" in row]
    if len(gains) < 5:
        return None
    k = max(1, len(gains) // 5)
    return float(np.mean(gains[-k:]) - np.mean(gains[-2 * k : -k]))


def call(model: Any) -> str:
    """The program that makes the unfitted model again."""
    if isinstance(model, BaseEstimator):
        return str(model.__repr__(N_CHAR_MAX=4000))
    return repr(model)


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {
        "skebm": package_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "skorch": version("skorch"),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "Python": platform.python_version(),
    }


def columns_of_fit(model: Any) -> list[tuple[str, str, str]]:
    """Columns of X: name, kind, and what becomes of them."""
    _, final = last_step(model)
    for step in _all_steps(model):
        frame = attribute(step, "columns_")
        if frame is not None and hasattr(frame, "itertuples"):
            return [
                (str(row.column), str(row.kind), str(row.becomes)) for row in frame.itertuples()
            ]
    table = getattr(final, "_query_table", None)
    names = attribute(final, "feature_names_in_")
    if table is None or table.image_shape is not None:
        return [] if names is None else [(str(name), "", "") for name in names]
    found = {}
    for block in table.blocks:
        kind = type(block).__name__.removesuffix("Block").lower()
        for j in block.columns:
            found[j] = (str(names[j]) if names is not None else f"x{j}", KINDS.get(kind, kind), "")
    return [found[j] for j in sorted(found)]


# Kinds of blocks in the words of the guide.
KINDS = {
    "number": "number",
    "bit": "bit",
    "probability": "bit, or the probability of a one",
    "spin": "spin",
    "state": "category",
    "level": "category",
}


# ------------------------------------------------------------------------------
# Sections
# ------------------------------------------------------------------------------


def fit_section(subject: Subject) -> Section:
    """What was fitted, what was chosen, and why."""
    section = Section("What was fitted")
    section.blocks.append(Code(call(subject.model)))
    if subject.final is not subject.model:
        steps = [type(step).__name__ for step in subject.steps]
        path = " → ".join([*steps, type(subject.final).__name__])
        section.blocks.append(f"The innermost model is {type(subject.final).__name__}: {path}.")
    for part in dict.fromkeys((subject.model, subject.final)):
        if isinstance(part, Pipeline):
            continue
        found = settings_of_fit(part)
        if found:
            grid = Tabulated(("parameter", "asked for", "used", "why"), found)
            section.blocks += [f"Settings of {type(part).__name__}:", grid]
            named = section.facts.setdefault("settings", {})
            named[type(part).__name__] = [one._asdict() for one in found]
        more = results(part)
        if more:
            section.blocks.append(Tabulated(("fitted attribute", "value"), list(more.items())))
            section.facts.setdefault("results", {})[type(part).__name__] = more
    return section


def columns_section(subject: Subject) -> Section | None:
    """The columns, and what became of each; nothing where they have no names."""
    found = columns_of_fit(subject.model)
    if not found:
        return None
    names = ("column", "kind", "becomes")
    width = 3 if any(row[2] for row in found) else 2 if any(row[1] for row in found) else 1
    rows = [row[:width] for row in found[:MOST_COLUMNS]]
    section = Section("Columns", [Tabulated(names[:width], rows)])
    if len(found) > MOST_COLUMNS:
        section.blocks.append(f"And {len(found) - MOST_COLUMNS} more.")
    section.facts["columns"] = found
    return section


def training_section(subject: Subject) -> Section | None:
    """Whether training converged, and its curves."""
    found = training(subject.final)
    if found is None:
        return None
    if not found.n_epochs:
        raise NotSaidError("there were no epochs: a trial kept the base, or n_iter=0 was set")
    state = "converged" if found.converged else "did not converge, as a warning said"
    took = "" if math.isnan(found.seconds) else f" in {number(found.seconds, 3)} s"
    rolled = f", and was rolled back {found.n_restarts} times" if found.n_restarts else ""
    section = Section(
        "Training", [f"Training {state}: {found.n_epochs} epochs{took}{rolled}."], found._asdict()
    )
    section.blocks += _curves(subject.final)
    return section


def _curves(final: Any) -> list[Any]:
    display = TrainingDisplay.from_estimator(final)
    names = [name for name in ("train_loss", "valid_loss", "gain_over_base") if _has(display, name)]
    display = TrainingDisplay(history=display.history, names=names or None)
    panels = 1 + ("gain_over_base" in names and len(names) > 1)
    if not names:
        panels = len(display.names or ())

    def draw(figure: Any) -> None:
        display.plot(np.ravel(figure.subplots(panels, 1, sharex=True)))
        figure.axes[0].set_title("")

    return picture("Values after each epoch.", (7.2, 1.4 + 1.5 * panels), draw, prefix="training")


def _has(display: TrainingDisplay, name: str) -> bool:
    values = display.history.get(name)
    return values is not None and not np.isnan(values).all()


def log_z_section(subject: Subject) -> Section | None:
    """log Z, its error and how it was found."""
    final = subject.final
    if not is_energy_based(final) or leaves_out_log_z(final):
        if has_normaliser(final):
            raise NotSaidError(f"each condition of {type(final).__name__} has a log Z of its own")
        return None
    found = log_z_of(final)
    rows = [
        ("log Z", with_error(found.value, found.std_error)),
        ("lower bound", number(found.lower)),
        ("upper bound", number(found.upper)),
        ("kind", found.bound_kind),
        ("method", attribute(final, "log_partition_method_") or "that of its last layer"),
    ]
    rows += [(name, with_error(*part)) for name, part in found.parts.items()]
    section = Section("log Z", [Tabulated(("", "nats"), rows)])
    section.blocks.append(
        f"log-likelihoods use {number(found.value)}, and scores the end that makes the model "
        f"look worst, {number(found.pessimistic)}."
    )
    if found.reason:
        section.blocks.append(f"A bound is not known: {found.reason}.")
    section.facts = {"log_z": found.value, "std_error": found.std_error, "kind": found.bound_kind}
    return section


def log_z_of(final: Any) -> LogPartition:
    """log Z with its error; of a deep belief network that of its last layer."""
    if hasattr(final, "_log_partition"):
        found: LogPartition = final._log_partition()
        return found
    value, error = float(final.log_partition_), float(getattr(final, "log_partition_std_", 0.0))
    return LogPartition(value, error, math.nan, math.nan, "probabilistic", math.nan)


def _all_steps(model: Any) -> list[Any]:
    """A model, and all that it holds in turn."""
    found, open_ = [], [model]
    while open_:
        step = open_.pop(0)
        found.append(step)
        if isinstance(step, Pipeline):
            open_ += [one for _, one in step.steps]
        for name in ("estimator_", "best_estimator_"):
            inner = attribute(step, name)
            open_ += [inner] if inner is not None else []
    return found


def _is_short_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and 0 < len(value) <= 8 and not hasattr(value[0], "shape")
