"""A report of a fitted model: one file of HTML, and the same as data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from skebm._validation import check_random_state, draw_seed
from skebm.base.processes import collect_warnings
from skebm.inspection.reports.advice import Recommendation, advice_section, recommendations
from skebm.inspection.reports.anomalies import anomalies_section, calibration_section
from skebm.inspection.reports.answers import answers_section, cost_section
from skebm.inspection.reports.comparison import CLEAR, comparison_section
from skebm.inspection.reports.facts import (
    columns_section,
    fit_section,
    log_z_section,
    training_section,
)
from skebm.inspection.reports.page import NotSaidError, Section, Tabulated, document, in_frame
from skebm.inspection.reports.pictures import has_matplotlib
from skebm.inspection.reports.predictions import predictions_section
from skebm.inspection.reports.samples import samples_section
from skebm.inspection.reports.subject import MOST_TEST, MOST_TRAIN, Subject

# Sections in their order: a name, what it is called where it cannot be written, and what writes it.
SECTIONS: dict[str, tuple[str, Callable[[Subject], Section | None]]] = {
    "likelihood": ("log-likelihoods of new rows", comparison_section),
    "predictions": ("predictions", predictions_section),
    "detection": ("calibration of scores", calibration_section),
    "anomalies": ("anomalous rows", anomalies_section),
    "samples": ("draws", samples_section),
    "training": ("training", training_section),
    "log_z": ("log Z", log_z_section),
    "fit": ("settings", fit_section),
    "columns": ("columns", columns_section),
    "answers": ("questions about columns", answers_section),
    "cost": ("time and size", cost_section),
}


class Report:
    """What is known of a fitted model, as HTML and as data.

    It is made by :func:`report`. In a notebook it shows itself.

    Attributes
    ----------
    html : str
        A page without scripts, which loads nothing.
    facts : dict of str to dict
        What the sections say, as numbers and words, by section: ``"likelihood"``,
        ``"predictions"``, ``"detection"``, ``"anomalies"``, ``"samples"``, ``"training"``,
        ``"log_z"``, ``"fit"``, ``"columns"``, ``"answers"``, ``"cost"``.
    not_said : dict of str to str
        Sections that could not be written, with the reason.
    recommendations : list of Recommendation
        At most three changes, each with its `change` (parameters), `why` and `program`.
    seconds : float
        Time that it took.
    """

    def __init__(
        self,
        html: str,
        facts: dict[str, dict[str, Any]],
        not_said: dict[str, str],
        recommendations: list[Recommendation],
        seconds: float,
    ):
        self.html, self.facts, self.not_said = html, facts, not_said
        self.recommendations, self.seconds = recommendations, seconds

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file.

        Parameters
        ----------
        path : str or path-like
            Such as ``"report.html"``; a file that is there is replaced.

        Returns
        -------
        Path
        """
        target = Path(path)
        target.write_text(self.html, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return in_frame(self.html)

    def __repr__(self) -> str:
        return (
            f"Report({len(self.facts)} sections, {len(self.recommendations)} recommendations, "
            f"{len(self.html) / 1e6:.2g} MB)"
        )


def report(
    model: Any,
    X_train: Any = None,
    X_test: Any = None,
    y: Any = None,
    *,
    random_state: Any = 0,
    verbose: bool | None = None,
) -> Report:
    """What was fitted, whether it worked, and what to change: a page for a fitted model.

    It says which settings the fit chose and why, whether training converged, how likely new rows
    are beside simple densities that are fitted to the same rows, log Z with its error, how draws
    differ from rows (by columns, pairs, a classifier, and the nearest training row), whether scores
    are calibrated, which rows are most anomalous and why, how good predictions are, what the model
    answers exactly, how long it takes, and how to repeat it. It ends with at most three
    recommendations. A section that a model or these rows do not allow is named, with the reason.

    Pictures need matplotlib (``pip install skebm[plot]``); without it there are none.

    Parameters
    ----------
    model : fitted estimator
        Of skebm, or a pipeline, search or detector around it; also densities of scikit-learn.
    X_train : data of shape (n_samples, n_features) or None, default=None
        Rows that it was fitted to. At most 5,000 of them, at random, are looked at.
    X_test : data of shape (n_samples, n_features) or None, default=None
        Other rows, of which at most 2,000 are looked at. Without them likelihoods and scores are
        those of training rows, which flatter the model, and the page says so.
    y : array-like of shape (n_samples,) or None, default=None
        Of the rows of `X_test`: classes or numbers that the model predicts; for a detector +1 for
        normal rows and -1 for anomalies.
    random_state : int, RandomState instance or None, default=0
        Seed of the rows that are looked at, and of draws.
    verbose : bool or None, default=None
        Whether a progress bar is shown; None shows it in a terminal alone.

    Returns
    -------
    Report
        With ``save(path)``, ``html``, ``facts`` and ``recommendations``.

    Notes
    -----
    Errors in brackets are standard errors over rows. `score_samples` uses the estimate of log Z;
    the pessimistic end is given beside it. Recommendations come from rules: a parameter that was
    set is named where a simple density is better by two errors, where training ended while
    held-out rows still gained, or where draws are easily told from rows. Test rows that choose a
    model are no longer test rows.

    References
    ----------
    Lopez-Paz and Oquab (2017), "Revisiting classifier two-sample tests", ICLR. Gelman, Meng and
    Stern (1996), "Posterior predictive assessment of model fitness via realized discrepancies",
    Statistica Sinica 6 (rows among draws of the model).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.model_selection import train_test_split
    >>> from skebm import TractableDensity
    >>> from skebm.inspection import report
    >>> cells = load_breast_cancer().data[:, :10]
    >>> X_train, X_test = train_test_split(cells, random_state=0)
    >>> model = TractableDensity("gaussian").fit(X_train)
    >>> found = report(model, X_train, X_test)
    >>> [one["name"] for one in found.facts["likelihood"]["rivals"]]
    ['independent columns', 'a mixture of normals']
    >>> found.recommendations[0].program
    "model.set_params(distribution='stack')"

    ``found.save("report.html")`` writes it, and a notebook shows it.
    """
    start = time.perf_counter()
    seed = draw_seed(check_random_state(random_state))
    subject = Subject(model, X_train, X_test, y, seed)
    sections, not_said, notices = _write(subject, verbose)
    facts = {name: section.facts for name, section in sections.items()}
    found = recommendations(subject, facts)
    pages = [_summary(subject, facts), *sections.values()]
    pages += _warnings(notices) + _gaps(not_said)
    pages.append(advice_section(found))
    title = f"{subject.name}: {_what_it_is(subject)}"
    seconds = time.perf_counter() - start
    lead = [
        f"Made on {datetime.now(UTC):%Y-%m-%d} in {seconds:.1f} s, of {_rows_in_words(subject)}."
    ]
    return Report(document(title, lead, pages), facts, not_said, found, seconds)


def _write(
    subject: Subject, verbose: bool | None
) -> tuple[dict[str, Section], dict[str, str], list[str]]:
    """The sections that can be written, why others cannot, and warnings of the model."""
    sections, not_said = {}, {}
    hidden = None if verbose is None else not verbose
    bar = tqdm(SECTIONS.items(), desc="report", disable=hidden, leave=False)
    with collect_warnings() as caught:
        for name, (what, write) in bar:
            bar.set_postfix_str(what)
            try:
                section = write(subject)
            except NotSaidError as reason:
                not_said[name] = str(reason)
                continue
            if section is not None:
                sections[name] = section
    return sections, not_said, list(dict.fromkeys(one.text() for one in caught))


def _summary(subject: Subject, facts: dict[str, dict[str, Any]]) -> Section:
    """The numbers that matter most."""
    rows = []
    found = facts.get("likelihood")
    if found:
        which = "test" if found["is_test"] else "training"
        rows.append((f"log-likelihood of {which} rows, nats a row", f"{found['mean']:.3f}"))
        for one in found["rivals"]:
            sign = "+" if one["gain"] >= 0 else "−"
            close = abs(one["gain"]) <= CLEAR * one["gain_error"]
            gap = f"{sign}{abs(one['gain']):.3f} ({one['gain_error']:.3f})"
            rows.append((f"above {one['name']}", gap + (", no difference" if close else "")))
    for name, key, title in (
        ("predictions", "accuracy", "accuracy"),
        ("predictions", "nll", "cross-entropy, nats"),
        ("predictions", "mae", "mean absolute error"),
        ("detection", "auroc", "AUROC of anomalies"),
        ("detection", "rate", "share of rows that are flagged"),
        ("samples", "two_sample_auroc", "AUROC of draws against rows (0.5 is best)"),
    ):
        if key in facts.get(name, {}):
            rows.append((title, f"{facts[name][key]:.3f}"))
    training = facts.get("training")
    if training:
        rows.append(("training", "converged" if training["converged"] else "did not converge"))
    if not rows:
        return Section("In short", ["There are no rows to judge the model by: pass X_test=."])
    return Section("In short", [Tabulated(("", ""), rows)])


def _what_it_is(subject: Subject) -> str:
    kinds = (
        (subject.is_classifier, "a classifier"),
        (subject.is_regressor, "a regressor"),
        (subject.is_detector, "a detector"),
        (subject.has_density, "a density"),
    )
    return next((name for holds, name in kinds if holds), "a model")


def _rows_in_words(subject: Subject) -> str:
    parts = []
    for n, most, name in (
        (subject.n_train, MOST_TRAIN, "training"),
        (subject.n_test, MOST_TEST, "test"),
    ):
        if n:
            looked = f" ({most:,} of them, at random)" if n > most else ""
            parts.append(f"{n:,} {name} rows{looked}")
    return " and ".join(parts) or "the model alone, without rows"


def _warnings(notices: list[str]) -> list[Section]:
    if not notices:
        return []
    return [Section("Warnings while it was looked at", list(notices))]


def _gaps(not_said: dict[str, str]) -> list[Section]:
    """What the report cannot say."""
    rows = [(SECTIONS[name][0], reason) for name, reason in not_said.items()]
    if not has_matplotlib():
        rows.append(("pictures", "matplotlib is not installed: pip install skebm[plot]"))
    return [Section("Not in this report", [Tabulated(("about", "because"), rows)])] if rows else []
