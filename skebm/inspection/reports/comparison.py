"""Held-out log-likelihoods of a density beside simple ones that are fitted to the same rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm._validation import take_rows
from skebm.base import Clamp, Domain, Mixed, Real
from skebm.base.domains import columns_of, parts_of
from skebm.distributions import Distribution, GaussianMixture, LatentClasses
from skebm.estimators.queries.densities import (
    is_energy_based,
    log_density,
    pessimistic_log_likelihood,
)
from skebm.estimators.tables.bases import fit_completed
from skebm.inspection.reports.facts import log_z_of
from skebm.inspection.reports.page import NotSaidError, Section, Tabulated, number, with_error
from skebm.inspection.reports.subject import MOST_TEST, Subject, ask, random_rows
from skebm.training.rows import Rows

# Training rows that simple densities are fitted to, columns up to which mixtures have covariances,
# and numbers of components that BIC chooses from.
MOST_FITTED, MOST_CORRELATED = 3000, 60
SIZES = (1, 2, 3, 5, 8, 12)
SIZES_OF_COLUMN = (1, 2, 3, 5)
# Standard errors from which a difference is one.
CLEAR = 2.0


class Rival(NamedTuple):
    """A density that a model is compared with.

    Attributes
    ----------
    name : str
    mean, error : float
        Mean log-likelihood of the rows in nats, and its standard error over rows.
    gain, gain_error : float
        By how much the model is above it, and the standard error of the mean of the differences.
    """

    name: str
    mean: float
    error: float
    gain: float
    gain_error: float


class Likelihoods(NamedTuple):
    """Mean log-likelihoods of rows under a model and under simple densities, in nats.

    Attributes
    ----------
    mean, error : float
        Of the model, and the standard error over rows.
    pessimistic : float
        The same with the end of log Z, and of sums over missing entries, that hurts the model.
    train_mean : float
        Mean of the training rows under the model; nan if they are not known.
    n_impossible : int
        Rows of probability zero, which `mean` leaves out.
    rivals : list of Rival
    """

    mean: float
    error: float
    pessimistic: float
    train_mean: float
    n_impossible: int
    rivals: list[Rival]


class ModelRows(NamedTuple):
    """Rows as densities see them, (n, d), nan where missing, and the log volumes of their units."""

    x: Tensor
    log_volumes: np.ndarray
    domain: Domain

    @property
    def known(self) -> Tensor:
        """Which entries are known, (n, d)."""
        return ~self.x.isnan()

    def log_prob(self, q: Distribution) -> np.ndarray:
        """Log-likelihoods of the known entries in nats, in the units of the data, (n,)."""
        with torch.no_grad():
            found = q.log_marginal(Clamp(self.known, self.x.nan_to_num(0.0)))
        return found.double().cpu().numpy() - self.log_volumes


def likelihoods(subject: Subject) -> Likelihoods:
    """Mean log-likelihoods of the rows."""
    X = subject.rows
    log_prob = subject.log_prob
    possible = np.isfinite(log_prob)
    if not possible.any():
        raise NotSaidError("no row has a probability above zero")
    mean, error = _mean(log_prob[possible])
    rivals = [
        Rival(name, *_mean(other[possible]), *_mean((log_prob - other)[possible]))
        for name, other in _rivals(subject, X).items()
        if np.isfinite(other[possible]).all()
    ]
    return Likelihoods(
        mean,
        error,
        _pessimistic(subject, take_rows(X, np.flatnonzero(possible)), mean),
        _mean_of_train(subject) if subject.is_test else mean,
        int((~possible).sum()),
        rivals,
    )


def _pessimistic(subject: Subject, X: Any, mean: float) -> float:
    """Mean log-likelihood by the end of log Z, and of other estimates, that hurts the model."""
    if not is_energy_based(subject.final):
        return float(ask(pessimistic_log_likelihood, subject.final, X))
    log_z = log_z_of(subject.final)
    return mean + log_z.value - log_z.pessimistic


def comparison_section(subject: Subject) -> Section | None:
    """Held-out nats beside those of simple densities."""
    if not subject.has_density:
        return None
    found, is_test = likelihoods(subject), subject.is_test
    of = "test rows" if is_test else "training rows, which flatter the model"
    section = Section("How likely are new rows?")
    rows: list[Any] = [(subject.name, with_error(found.mean, found.error), "")]
    rows += [
        (one.name, with_error(one.mean, one.error), with_error(one.gain, one.gain_error))
        for one in found.rivals
    ]
    section.blocks.append(
        f"Mean log-likelihood of {of}, in nats a row, with the standard error over rows in "
        "brackets; higher is better."
    )
    section.blocks.append(Tabulated(("density", "nats a row", "the model is above it by"), rows))
    section.blocks += list(_remarks(found, is_test))
    section.facts = found._asdict() | {
        "is_test": is_test,
        "rivals": [one._asdict() for one in found.rivals],
    }
    return section


def _remarks(found: Likelihoods, is_test: bool) -> Any:
    if not math.isnan(found.pessimistic) and found.mean - found.pessimistic > found.error / 2:
        yield f"At the end of log Z that hurts the model the mean is {number(found.pessimistic)}."
    if is_test and not math.isnan(found.train_mean):
        gap = found.train_mean - found.mean
        yield f"Training rows have {number(found.train_mean)}, {number(abs(gap), 2)} " + (
            "more." if gap >= 0 else "less."
        )
    if found.n_impossible:
        yield (
            f"{found.n_impossible} rows have probability zero and are left out: they are outside "
            "of what the model holds possible."
        )
    if not found.rivals:
        yield (
            "No simple density could be fitted to compare it with: pass X_train=, with numbers, "
            "bits or categories."
        )


# ------------------------------------------------------------------------------
# Rivals
# ------------------------------------------------------------------------------


def _rivals(subject: Subject, X: Any) -> dict[str, np.ndarray]:
    """Log-likelihoods of rows under simple densities, by name, (n,) each."""
    found: dict[str, np.ndarray] = {}
    try:
        test = model_rows(subject.final, X)
    except NotSaidError:
        return found
    base = _base_of(subject.final)
    if base is not None and base.domain.n_columns == test.x.shape[1]:
        found["its base"] = test.log_prob(base.to(torch.device("cpu"), torch.float64))
    try:
        train = model_rows(subject.final, random_rows(subject.train, MOST_FITTED, subject.seed))
    except NotSaidError:
        return found
    found["independent columns"] = _independent(train, test)
    rows = _as_rows(train)
    if len(parts_of(test.domain)) == 1 and isinstance(test.domain, Real):
        if rows.n_columns > 1:
            name = "a mixture of normals"
            found[name] = test.log_prob(fit_completed(_fit_mixture, rows, "mixture"))
    elif rows.n_columns > 1:
        weight, known = rows.counts, rows.known
        q = LatentClasses.fit(train.x.nan_to_num(0.0), test.domain, weight, known=known)
        found["latent classes"] = test.log_prob(q)
    return found


def model_rows(final: Any, X: Any) -> ModelRows:
    """Rows of X as the densities of a model see them; `NotSaidError` where there are none."""
    layers = getattr(final, "estimators_", None)
    if isinstance(layers, list) and not hasattr(type(final), "_query_table"):
        final = layers[0]  # a deep belief network, whose first layer has the columns
    if hasattr(type(final), "_query_table"):
        table = final._query_table
        x = ask(final._rows_with_holes, X).detach().double().cpu()
        x = x[:, : sum(table.widths)]  # without the hidden entries of a deep machine
        return ModelRows(x, table.log_volumes((~x.isnan()).numpy()), _domain_of(table))
    if is_energy_based(final) or not hasattr(final, "score_samples"):
        raise NotSaidError(f"rows of {type(final).__name__} are not those of a table")
    try:
        numbers = np.array(X, dtype=float)
    except (TypeError, ValueError) as error:
        raise NotSaidError("the columns are not numbers") from error
    if numbers.ndim != 2:
        raise NotSaidError("the rows are not flat")
    return ModelRows(torch.from_numpy(numbers), np.zeros(len(numbers)), Real(numbers.shape[1:]))


def _base_of(final: Any) -> Distribution | None:
    """What the energy corrects; None where the model has no such part, or is one itself."""
    base = getattr(final, "base_", None)
    return base if isinstance(base, Distribution) and base.has_log_marginal else None


def _as_rows(rows: ModelRows) -> Rows:
    """Rows that distributions are fitted to; completed where entries are missing."""
    found = Rows(rows.x, dtype=torch.float64, device=torch.device("cpu"))
    known = rows.known
    if not bool(known.all()):
        mean = rows.x.nanmean(0).nan_to_num(0.0)
        found = Rows(
            torch.where(known, rows.x, mean), dtype=torch.float64, device=torch.device("cpu")
        )
        found.known = known
    return found


def _domain_of(table: Any) -> Domain:
    """Domain of the entries of X alone."""
    parts = [part for block in table.blocks for part in parts_of(block.domain)]
    return parts[0] if len(parts) == 1 else Mixed(tuple(parts))


def _independent(train: ModelRows, test: ModelRows) -> np.ndarray:
    """Log-likelihoods of test rows under independent columns, (n,).

    Numbers have mixtures of normals chosen by BIC, bits and levels their shares among the training
    rows, with half a row added to each.
    """
    found, first = np.zeros(len(test.x)), 0
    for part in parts_of(test.domain):
        is_real = isinstance(part, Real)
        for width in (1,) * part.n_columns if is_real else columns_of(part):
            place = slice(first, first + width)
            first = place.stop
            known = test.known[:, place.start].numpy()
            ours = train.x[train.known[:, place.start], place]
            theirs = test.x[test.known[:, place.start], place]
            if is_real and len(ours) > 1:
                log_prob = _mixture(ours, SIZES_OF_COLUMN).log_prob(theirs).numpy()
            else:
                log_prob = _log_shares(ours, theirs)
            found[known] += log_prob
    return found - test.log_volumes


def _log_shares(ours: Tensor, theirs: Tensor) -> np.ndarray:
    """Log-likelihoods of a bit (n, 1) or of one-hot levels (n, k), by shares of other rows."""
    if ours.shape[1] == 1:
        ours, theirs = (torch.cat([1 - x, x], 1) for x in (ours, theirs))
    share = (ours.sum(0) + 0.5) / (len(ours) + 0.5 * ours.shape[1])
    found: np.ndarray = (theirs @ share.log()).numpy()
    return found


def _fit_mixture(rows: Rows) -> GaussianMixture:
    x = rows.block(0, len(rows)).double()
    return _mixture(x, SIZES if x.shape[1] <= MOST_CORRELATED else (1,))


def _mixture(x: Tensor, sizes: tuple[int, ...]) -> GaussianMixture:
    """The mixture of normals with the lowest BIC; sizes are tried until it rises."""
    best: GaussianMixture | None = None
    lowest = math.inf
    for size in sizes:
        if size > 1 and len(x) < 10 * size:
            break
        generator = torch.Generator().manual_seed(0)
        fitted = GaussianMixture.fit(x, None, size, generator=generator)
        bic = fitted.bic(x)
        if bic >= lowest:
            break
        best, lowest = fitted, bic
    assert best is not None
    return best


def _mean_of_train(subject: Subject) -> float:
    """Mean log-likelihood of training rows under the model; nan if it is not known."""
    try:
        some = random_rows(subject.train, MOST_TEST, subject.seed)
        log_prob = np.asarray(ask(log_density, subject.final, some))
    except NotSaidError:
        return math.nan
    return float(log_prob[np.isfinite(log_prob)].mean())


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error; infinite for one value."""
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return float(values.mean()), error
