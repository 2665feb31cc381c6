"""What to change: at most three recommendations, each an argument, with what speaks for it."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from sklearn.base import clone

from skebm.estimators.base import non_default_parameters
from skebm.inspection.reports.comparison import CLEAR
from skebm.inspection.reports.facts import gain_of_last_epochs, text, training
from skebm.inspection.reports.page import Code, Section, number, with_error
from skebm.inspection.reports.subject import Subject

MOST_ADVICE = 3
# Parameters that may hold a model back, those first that do so most often.
HOLD_BACK = (
    "n_iter",
    "base",
    "noise",
    "distribution",
    "n_components",
    "hidden_layer_sizes",
    "learning_rate",
    "optimizer",
    "batch_size",
    "penalty",
    "l1",
    "l2",
    "regularisation",
    "l2_regularization",
    "max_leaf_nodes",
    "chains",
    "sigma",
    "network",
    "objective",
)
# Epochs that are few if they were named; AUROC of draws against rows from which they differ much;
# nats of an error of log Z that matters.
FEW_EPOCHS, MUCH, LARGE_ERROR = 20, 0.75, 0.1


# What each section found, by its name.
Facts = dict[str, dict[str, Any]]


class Recommendation(NamedTuple):
    """A change that may make the model better.

    Attributes
    ----------
    change : dict of str to object
        Parameters for ``set_params`` of the innermost model, or of the detector; empty where
        another estimator is recommended.
    why : str
        What was found that speaks for it.
    program : str
        The change as a line of Python.
    """

    change: dict[str, Any]
    why: str
    program: str


def recommendations(subject: Subject, facts: Facts) -> list[Recommendation]:
    """What to change, given what the other sections found."""
    facts = defaultdict(dict, facts)
    found: list[Recommendation] = []
    for rule in (_of_detector, _of_likelihood, _of_training, _of_draws, _of_log_z):
        for one in rule(subject, facts):
            if all(not set(one.change) & set(other.change) for other in found) and (
                one.change or all(other.change for other in found)
            ):
                found.append(one)
    return found[:MOST_ADVICE]


def advice_section(found: list[Recommendation]) -> Section:
    """The recommendations."""
    section = Section("What to change")
    if not found:
        section.blocks.append("Nothing that was measured speaks for a change.")
    for k, one in enumerate(found, 1):
        section.blocks += [f"{k}. {one.why}", Code(one.program)]
    section.facts["recommendations"] = [one._asdict() for one in found]
    return section


# ------------------------------------------------------------------------------
# Rules
# ------------------------------------------------------------------------------


def _of_likelihood(subject: Subject, facts: Facts) -> Iterator[Recommendation]:
    """Simple densities that are better than the model."""
    better = _better(facts)
    if not better or not facts["likelihood"]["is_test"]:
        return
    worst = min(better, key=lambda one: one["gain"])
    why = (
        f"New rows are {with_error(-worst['gain'], worst['gain_error'])} nats more likely under "
        f"{worst['name']} than under the model."
    )
    guilty = _guilty(subject, facts)
    if guilty is not None:
        yield _reset(subject, guilty, f"{why} {guilty}={_setting(subject, guilty)} was set.")
        return
    other = "RBMEstimator" if worst["name"] == "latent classes" else "TractableDensity"
    if worst["name"] != "its base" and type(subject.final).__name__ != other:
        why += " No parameter of it was set that could be the reason."
        yield Recommendation({}, why, f"{other}()")


def _of_training(subject: Subject, facts: Facts) -> Iterator[Recommendation]:
    """A training that ended early."""
    found = training(subject.final)
    changed = _changes(subject)
    if found is not None and found.n_restarts and "learning_rate" in changed:
        why = f"Training diverged and was rolled back {found.n_restarts} times."
        yield _reset(subject, "learning_rate", why)
    if found is None or not isinstance(changed.get("n_iter"), int):
        return
    rise = gain_of_last_epochs(subject.final)
    error = facts["likelihood"].get("error", math.inf)
    if rise is not None and rise > 0.1 * error:
        why = f"Held-out rows still gained {number(rise, 2)} nats in the last fifth of the epochs."
        yield _reset(subject, "n_iter", f"{why} n_iter={changed['n_iter']} ended it.")
    elif rise is None and changed["n_iter"] < FEW_EPOCHS:
        why = f"Training had {changed['n_iter']} epochs, as n_iter asked, too few to see it level"
        yield _reset(subject, "n_iter", f"{why} off.")


def _of_draws(subject: Subject, facts: Facts) -> Iterator[Recommendation]:
    """Draws that are nothing like rows."""
    auroc = facts["samples"].get("two_sample_auroc", 0.5)
    guilty = _guilty(subject, facts)
    if auroc < MUCH or guilty is None:
        return
    why = f"A classifier tells draws from rows with an AUROC of {number(auroc, 2)}."
    yield _reset(subject, guilty, f"{why} {guilty}={_setting(subject, guilty)} was set.")


def _of_log_z(subject: Subject, facts: Facts) -> Iterator[Recommendation]:
    """A log Z whose error is large."""
    nats, log_z = facts["likelihood"], facts["log_z"]
    lost = nats.get("mean", math.nan) - nats.get("pessimistic", math.nan)
    error = log_z.get("std_error", 0.0)
    if not (error > LARGE_ERROR or lost > 2 * LARGE_ERROR) or log_z.get("kind") == "exact":
        return
    method = getattr(subject.final, "partition_", None)
    known = {} if method is None else method.get_params(deep=False)
    for name in ("n_betas", "n_samples"):
        if isinstance(known.get(name), int):
            more = clone(method).set_params(**{name: 4 * known[name]})
            why = (
                f"log Z has an error of {number(float(error), 2)} nats, and its pessimistic end "
                f"costs {number(lost, 2)}: its estimate needs more of {name}."
            )
            yield _with(subject, {"partition": more}, why)
            return


def _of_detector(subject: Subject, facts: Facts) -> Iterator[Recommendation]:
    """A detector that flags more rows than its level."""
    of_scores = facts["detection"]
    level, rate = of_scores.get("level"), of_scores.get("rate", math.nan)
    params = subject.model.get_params(deep=False) if hasattr(subject.model, "get_params") else {}
    if level is None or params.get("method") != "quantile" or not of_scores["is_test"]:
        return
    error = of_scores["rate_error"]
    if rate > float(level) + 3 * error and subject.y is not None:
        why = f"{with_error(rate, error)} of normal rows are flagged, at a level of {level:.3g}."
        yield Recommendation(
            {"method": "conformal"}, why, 'model.set_params(method="conformal").fit(X_train)'
        )


# ------------------------------------------------------------------------------
# Parameters
# ------------------------------------------------------------------------------


def _changes(subject: Subject) -> dict[str, Any]:
    """Parameters of the innermost model that are not the default."""
    final = subject.final
    return non_default_parameters(final) if hasattr(final, "get_params") else {}


def _setting(subject: Subject, name: str) -> str:
    value = _changes(subject)[name]
    return repr(value) if isinstance(value, str) else text(value)


def _guilty(subject: Subject, facts: Facts) -> str | None:
    """The parameter that was set and most probably holds the model back."""
    changed = _changes(subject)
    found = [name for name in HOLD_BACK if name in changed]
    found = [name for name in found if changed[name] != "auto"]
    if "base" in found and _is_its_base(facts):
        return "base"
    if len(found) > 1 and found[0] == "n_iter" and changed["n_iter"] >= FEW_EPOCHS:
        found = [*found[1:], "n_iter"]
    return found[0] if found else None


def _better(facts: Facts) -> list[dict[str, Any]]:
    """Simple densities that are clearly better than the model."""
    return [
        one
        for one in facts["likelihood"].get("rivals", [])
        if one["gain"] < -CLEAR * one["gain_error"]
    ]


def _is_its_base(facts: Facts) -> bool:
    """Whether the model is hardly better than its base."""
    of_base = [one for one in facts["likelihood"].get("rivals", []) if one["name"] == "its base"]
    return bool(of_base) and of_base[0]["gain"] <= 3 * of_base[0]["gain_error"]


def _reset(subject: Subject, name: str, why: str) -> Recommendation:
    """Leave a parameter to the fit."""
    default = inspect.signature(type(subject.final).__init__).parameters[name].default
    return _with(subject, {name: default}, why)


def _with(subject: Subject, change: dict[str, Any], why: str) -> Recommendation:
    arguments = ", ".join(f"{name}={value!r}" for name, value in change.items())
    owner = "model" if subject.final is subject.model else type(subject.final).__name__
    return Recommendation(change, why, f"{owner}.set_params({arguments})")
