"""What a model answers, how exactly, and how long it takes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from skebm._validation import is_frame, n_rows, take_rows
from skebm.estimators.queries.densities import is_energy_based
from skebm.estimators.queries.mixin import QueriesMixin
from skebm.inspection.reports.facts import attribute, call, log_z_of, versions
from skebm.inspection.reports.page import Code, NotSaidError, Section, Tabulated, number
from skebm.inspection.reports.subject import Subject, ask

N_TIMED = 1000
N_ASKED = 3  # rows


def answers_section(subject: Subject) -> Section | None:
    """Which questions the model answers, and whether exactly."""
    final = subject.final
    if not isinstance(final, QueriesMixin):
        return None
    X = subject.rows
    if len(np.shape(X)) != 2:
        raise NotSaidError("rows are not flat")
    some = take_rows(X, np.arange(min(N_ASKED, n_rows(X))))
    rows = [("log-likelihood of a row", _kind_of_log_z(final))]
    d = some.shape[1]
    for title, holes in (("one column missing", 1), ("half of the columns missing", d // 2)):
        if holes and d > 1:
            found = ask(final.log_marginal, _with_holes(some, holes))
            rows.append((f"log-likelihood of a row, {title}", _exactness(final, found)))
    rows.append(("a column, given the others", _conditional(final, some, 0)))
    if d > 2:
        rows.append(("a column, given half of the others", _conditional(final, some, d // 2)))
    section = Section("What does it answer, and how exactly?")
    section.blocks.append(Tabulated(("question", "answer"), rows))
    section.facts["answers"] = dict(rows)
    return section


def _kind_of_log_z(final: Any) -> str:
    if not is_energy_based(final):
        return "exact"
    found = log_z_of(final)
    if found.bound_kind == "exact":
        return "exact"
    return f"up to log Z, whose error is {number(found.std_error, 2)} nats"


def _exactness(final: Any, found: Any) -> str:
    if found.exact.all():
        return _kind_of_log_z(final)
    worst = float(np.max(found.std_error))
    return f"estimated from draws, with an error of {number(worst, 2)} nats at most"


def _conditional(final: Any, some: Any, holes: int) -> str:
    X = _with_holes(some, holes, first=1) if holes else some
    return str(ask(final.conditional, X, _first_column(X)).method)


def _first_column(X: Any) -> Any:
    return X.columns[0] if is_frame(X) else 0


def _with_holes(X: Any, n: int, first: int = 0) -> Any:
    """Rows without the entries of `n` columns."""
    if hasattr(X, "iloc"):
        found = X.copy()
        for name in list(X.columns)[first : first + n]:
            values = found[name]
            is_text = values.dtype.kind not in "iufb"
            found[name] = values.where(values.isna()) if is_text else np.nan
        return found
    if is_frame(X):
        raise NotSaidError("frames of this kind are not asked about here")
    found = np.array(X.toarray() if hasattr(X, "toarray") else X, dtype=float)
    found[:, first : first + n] = np.nan
    return found


def cost_section(subject: Subject) -> Section:
    """How long it takes, how large it is, and how it is made again."""
    rows: list[tuple[str, str]] = []
    if subject.n_train or subject.n_test:
        X = subject.outer_rows
        some = take_rows(X, np.arange(min(N_TIMED, n_rows(X))))
        for name in ("score_samples", "predict", "predict_proba", "transform"):
            method = getattr(subject.model, name, None)
            if method is not None:
                _time(rows, f"{name}, {n_rows(some)} rows", method, some)
    weights = attribute(subject.final, "net_")
    if weights is not None:
        n = sum(p.numel() for p in weights.module_.parameters())
        rows.append(("parameters that are learned", f"{n:,}"))
    try:
        rows.append(("size in a file", f"{len(pickle.dumps(subject.model)) / 1e6:.3g} MB"))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        rows.append(("size in a file", f"cannot be stored: {error}"))
    section = Section("Time, size, and how to repeat it", [Tabulated(("", ""), rows)])
    found = versions()
    takes_y = subject.is_classifier or subject.is_regressor
    data = "X_train, y_train" if takes_y else "X_train"
    program = f"model = {call(subject.model)}\nmodel.fit({data})"
    section.blocks.append(Code(program))
    section.blocks.append(", ".join(f"{name} {version}" for name, version in found.items()) + ".")
    seed = subject.model.get_params(deep=False).get("random_state", 0)
    if not isinstance(seed, (int, np.integer)):
        section.blocks.append(
            "It was fitted without a seed: pass random_state=0 for a fit that can be repeated."
        )
    section.facts = {"versions": found, "program": program}
    return section


def _time(rows: list[Any], title: str, method: Callable[[Any], Any], X: Any) -> None:
    start = time.perf_counter()
    try:
        ask(method, X)
    except NotSaidError:
        return
    rows.append((title, f"{time.perf_counter() - start:.2g} s"))
