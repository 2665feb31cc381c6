"""Model cards of skops, filled with the facts of a fit."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_outlier_detector

try:
    from skops.card import Card
except ImportError as error:
    raise ImportError(
        'skebm.integrations.skops needs skops: pip install "skebm[share]".'
    ) from error

from skebm._validation import check_is_fitted, n_rows
from skebm.estimators.outlier.statistics import is_surprise
from skebm.estimators.queries.densities import (
    last_step,
    leaves_out_log_z,
    log_density,
    scores_are_nats,
)
from skebm.inspection.reports.facts import columns_of_fit, settings_of_fit, versions

# A section of a card: what is said, and the rows of its table.
Facts = dict[str, dict[str, list[str]]]

LONGEST = 200  # characters of a value; longer ones are networks and arrays
TRAINING = ("n_iter_", "n_restarts_", "converged_")
ROWS_INSIDE = (
    "The file may hold rows that the model was fitted to: kernels, neighbours, starts of chains. "
    "Do not publish a model of rows that are secret."
)


def model_card(
    model: Any, X_test: Any = None, y_test: Any = None, *, file: str = "model.skops"
) -> Card:
    """A card of a fitted estimator that says what was fitted, chosen and measured.

    Its sections are the estimator with the parameters that differ from their defaults, what the fit
    chose where it was left to it and why, log Z with its error, what held-out rows say, the columns
    and their kinds, the versions, and how the model is loaded. What the model is for and what it is
    not for is left to its author: add it as to any card of skops.

    Parameters
    ----------
    model : estimator
        A fitted estimator of skebm, or a pipeline or search of one.
    X_test : {array-like, frame} of shape (n_samples, n_features), default=None
        Rows that the model was not fitted to. The card has their number, their mean log-likelihood
        with its standard error where the model is a density, and the part of them that a detector
        flags.
    y_test : array-like of shape (n_samples,), default=None
        Their classes, for a classifier: the card has its accuracy.
    file : str, default="model.skops"
        Name of the file that the card says how to load.

    Returns
    -------
    skops.card.Card
        To which sections and plots may be added, and which ``card.save("README.md")`` writes.

    References
    ----------
    Mitchell et al. (2019), "Model cards for model reporting", FAT*.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import TractableDensity
    >>> from skebm.integrations.skops import model_card
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = TractableDensity("gaussian", random_state=0).fit(X[:200])
    >>> card = model_card(model, X[200:])
    >>> print(card.select("Held-out rows").format().strip())
    |         fact        |           value            |
    | :-----------------: | :------------------------: |
    |         rows        |            100             |
    | mean log-likelihood | -2.838 +- 0.110 nats a row |
    """
    check_is_fitted(model)
    card = Card(model, template=None, model_diagram=False)
    kind = type(last_step(model, into_detectors=False)[1]).__name__
    card.add(**{kind: f"`{kind}` of skebm: energy-based models as scikit-learn estimators."})
    for section, table in facts(model, X_test, y_test).items():
        card.add_table(**{section: table})
    load = f'import skebm\n\nmodel = skebm.load("{file}")'
    card.add(**{"How to load the model": f"```python\n{load}\n```\n\n{ROWS_INSIDE}"})
    return card


def facts(model: Any, X_test: Any = None, y_test: Any = None) -> Facts:
    """What is known of a fitted estimator, in sections, each a table of columns of text.

    Sections of which nothing is known are left out. Parameters are those of :func:`model_card`.
    """
    _, final = last_step(model, into_detectors=False)
    density = last_step(model)[1] if _is_density(model) else final
    found = {
        "Parameters": _table(_changed_parameters(model), "parameter"),
        "Chosen by the fit": _table(_choices(density) | _choices(final), "what"),
        "Normalisation": _table(_normalisation(density), "fact"),
        "Held-out rows": _table(_held_out(model, X_test, y_test), "fact"),
        "Columns": _columns(model),
        "Versions": _table(versions(), "package"),
    }
    return {section: table for section, table in found.items() if table}


def _table(rows: dict[str, Any], of: str) -> dict[str, list[str]]:
    names = [name for name, value in rows.items() if len(_text(value)) <= LONGEST]
    return {of: names, "value": [_text(rows[name]) for name in names]} if names else {}


def _text(value: Any) -> str:
    """In one line, in which no bar ends a cell."""
    said = value if isinstance(value, str) else repr(value)
    return " ".join(said.split()).replace("|", "\\|")


def _parts(model: Any) -> dict[str, Any]:
    """A fitted model and the estimators within it, by the prefixes of their parameters."""
    if hasattr(model, "best_estimator_"):
        return _parts(model.best_estimator_)
    if hasattr(model, "steps"):
        return {
            f"{name}__{prefix}": part
            for name, step in model.steps
            if step is not None and step != "passthrough"
            for prefix, part in _parts(step).items()
        }
    return {"": model}


def _changed_parameters(model: Any) -> dict[str, Any]:
    """Parameters that differ from the defaults of their signatures; the seed in any case."""
    found = {}
    for prefix, part in _parts(model).items():
        signature = inspect.signature(type(part)).parameters
        for name, value in part.get_params(deep=False).items():
            default = signature[name].default if name in signature else inspect.Parameter.empty
            if name == "random_state" or repr(value) != repr(default):
                found[prefix + name] = value if not isinstance(value, str) else repr(value)
    return found


def _choices(estimator: Any) -> dict[str, Any]:
    """What a fit made of parameters that were left to it, and how it ended."""
    found: dict[str, Any] = {
        one.name: f"{one.used} ({one.why})" if one.why else one.used
        for one in settings_of_fit(estimator)
        if one.used
    }
    return found | {
        name.rstrip("_"): getattr(estimator, name) for name in TRAINING if hasattr(estimator, name)
    }


def _normalisation(estimator: Any) -> dict[str, Any]:
    """log Z, its error, and how it was found: estimated now if it was not before."""
    if not hasattr(estimator, "log_partition_"):
        return {}
    value, error = estimator.log_partition_, estimator.log_partition_std_
    found = {"log Z": f"{value:.4f} +- {error:.4f}"}
    if hasattr(estimator, "log_partition_kind_"):  # products of densities have none
        lower, upper = estimator.log_partition_bounds_
        found["bounds"] = f"{lower:.4f} to {upper:.4f}, {estimator.log_partition_kind_}"
    if hasattr(estimator, "log_partition_method_"):  # models of several layers have none
        found["method"] = estimator.log_partition_method_[:LONGEST]
    return found


def _held_out(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """What rows that were not fitted say of the model."""
    _, final = last_step(model, into_detectors=False)
    if y is not None and (X is None or not is_classifier(final)):
        raise ValueError(
            f"y_test is for classifiers, with X_test, and the model is a {type(final).__name__}: "
            "leave it out."
        )
    if X is None:
        return {}
    found: dict[str, Any] = {"rows": n_rows(X)}
    if _is_density(model):
        log_p = log_density(model, X)
        error = np.std(log_p, ddof=1) / math.sqrt(len(log_p)) if len(log_p) > 1 else math.nan
        found["mean log-likelihood"] = f"{np.mean(log_p):.3f} +- {error:.3f} nats a row"
    if is_outlier_detector(final):
        found["flagged"] = f"{np.mean(np.asarray(model.predict(X)) == -1):.1%}"
    if y is not None:
        found["accuracy"] = f"{np.mean(np.asarray(model.predict(X)) == np.asarray(y)):.1%}"
    return found


def _is_density(model: Any) -> bool:
    """Whether ``score_samples`` is a log density: neither a surprise nor minus an energy."""
    if not hasattr(model, "score_samples") or is_surprise(model) or not scores_are_nats(model):
        return False
    return not leaves_out_log_z(last_step(model)[1])


def _columns(model: Any) -> dict[str, list[str]]:
    """Names of the columns, what they are and what becomes of them, as far as the model knows."""
    rows = columns_of_fit(model)
    found = {
        title: [_text(row[j]) for row in rows]
        for j, title in enumerate(("column", "kind", "becomes"))
    }
    return {title: values for title, values in found.items() if any(values)}
