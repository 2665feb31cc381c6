"""What classifiers share: labels and their weights, fits to them, and class probabilities."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from skebm._validation import as_numbers, check_is_fitted, check_labels, fit_context, warn
from skebm.base import DataWarning
from skebm.estimators.base import BaseEBM, PartitionMixin, atomic, raises_interrupt
from skebm.estimators.queries.mixin import own_generator
from skebm.estimators.queries.models import ModelQueriesMixin
from skebm.objectives.joint.likelihood import UNKNOWN
from skebm.training.rows import Rows
from skebm.training.streams import table_and_labels


def class_indices(estimator: BaseEBM, X: Any, y: Any, on: bool, classes: Any = None) -> np.ndarray:
    """Indices of the labels among the classes, -1 for unlabelled rows; sets `classes_`.

    Parameters
    ----------
    estimator : object
        With the parameter `unlabeled`, the label of rows whose class is unknown, None or no such
        parameter: all are known.
    X : array-like of shape (n_samples, n_features)
        Validated rows.
    y : array-like of shape (n_samples,)
    on : bool
        Whether the fit goes on with the classes of the one before.
    classes : array-like or None, default=None
        All classes; None takes those of y.

    Returns
    -------
    ndarray of shape (n_samples,)

    Raises
    ------
    ValueError
        If all rows are unlabelled, there are fewer than two classes, or a label is none of them.
    """
    found = check_labels(estimator, X, y)
    known = np.ones(len(found), dtype=bool)
    mark = getattr(estimator, "unlabeled", None)
    if mark is not None:
        if np.ndim(mark):
            raise ValueError(f"unlabeled must be one label, got {mark!r}.")
        known = np.array([label != mark for label in found.tolist()])
        if not known.any():
            raise ValueError(
                f"All rows are unlabelled (unlabeled={mark!r}): a classifier needs labels. For "
                f"p(x) alone use {estimator._density_alone}."
            )
    labels = found[known]
    check_classification_targets(labels)
    if mark is None and not on:
        _warn_of_unlabelled(estimator, labels)
    if not on:
        estimator.classes_ = all_classes(labels, classes, estimator._density_alone)
    elif classes is not None and not np.array_equal(np.unique(classes), estimator.classes_):
        raise ValueError(
            f"classes={np.unique(classes).tolist()} are not those of the first call, "
            f"{estimator.classes_.tolist()}."
        )
    names = estimator.classes_.tolist()
    place = {label: number for number, label in enumerate(names)}
    new = sorted({label for label in labels.tolist() if label not in place}, key=str)
    if new:
        raise ValueError(
            f"y contains classes {new}, which are not among {names}: pass all of them as classes= "
            "in the first call of partial_fit, or clone the estimator to start anew."
        )
    codes = np.full(len(found), UNKNOWN, dtype=np.int64)
    codes[known] = [place[label] for label in labels.tolist()]
    return codes


def _warn_of_unlabelled(estimator: BaseEBM, labels: np.ndarray) -> None:
    """Warn of the label -1 beside classes of 0 and more, which usually marks unlabelled rows."""
    if labels.dtype.kind not in "if":
        return
    classes = np.unique(labels)
    if len(classes) > 2 and classes[0] == -1 and classes[1] >= 0:
        remedy = "pass unlabeled=-1" if hasattr(estimator, "unlabeled") else "drop these rows"
        warn(
            f"y has {int((labels == -1).sum())} labels of -1, which count as a class of their own: "
            f"if they mark rows without a label, {remedy}.",
            DataWarning,
        )


def all_classes(labels: np.ndarray, named: Any, density: str) -> np.ndarray:
    """Sorted classes: those given, or those of the labels; `density` models p(x) alone."""
    classes = np.unique(labels if named is None else named)
    if len(classes) < 2:
        raise ValueError(
            f"y contains {len(classes)} class, {classes.tolist()}, but a classifier needs at least "
            f"two. For p(x) alone use {density}."
        )
    return classes


def check_not_both(y: Any, given: Any) -> None:
    """Raise `ValueError` where entries are given to draws of a class."""
    if y is not None and given is not None:
        raise ValueError("Pass y or given: rows of a class are drawn as a whole.")


def codes_of(y: Any, n: int, classes: np.ndarray) -> np.ndarray:
    """Indices of labels among the classes, one for each of n rows or one for all."""
    labels = np.asarray(y)
    if labels.shape not in ((), (n,)):
        raise ValueError(f"y must be a label, or one for each of {n} rows, got {y!r}.")
    names = classes.tolist()
    asked = np.broadcast_to(labels, (n,)).tolist()
    unknown = sorted({label for label in asked if label not in names}, key=str)
    if unknown:
        raise ValueError(f"y contains {unknown}, but the classes are {names}.")
    return np.array([names.index(label) for label in asked])


def class_weights(asked: Any, classes: np.ndarray, rows: Rows) -> tuple[float, ...] | None:
    """Weights of the classes in the cross-entropy, so that it is a mean over labelled rows.

    None if all are 1.
    """
    assert rows.y is not None
    y, counts = rows.y.cpu().numpy(), rows.counts.cpu().numpy()
    labelled = y != UNKNOWN
    of_class = np.bincount(y[labelled], weights=counts[labelled], minlength=len(classes))
    found = np.ones(len(classes))
    if isinstance(asked, dict):
        names = classes.tolist()
        unknown = [label for label in asked if label not in names]
        if unknown:
            raise ValueError(f"class_weight contains {unknown}, but the classes are {names}.")
        found = as_numbers("class_weight", [asked.get(label, 1.0) for label in names])
        if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
            raise ValueError(
                f"class_weight must be finite, not negative and not all zero, got {asked!r}."
            )
    elif asked == "balanced":
        found = of_class.sum() / (len(classes) * np.maximum(of_class, 1e-12))
        found[of_class == 0] = 0.0
    # Batch means are over all rows, also those without labels.
    found = found * counts.sum() / of_class.sum()
    return None if np.allclose(found, 1) else tuple(found.tolist())


def n_copies_of_labelled(rows: Rows) -> int:
    """How often a labelled row occurs in an epoch, so that a third of the rows have labels."""
    assert rows.y is not None
    n_known = int((rows.y != UNKNOWN).sum())
    return max(round((len(rows) - n_known) / (2 * n_known)), 1) if n_known else 1


def with_copies_of_labelled(rows: Rows) -> Rows:
    """Labelled rows several times with a part of their weight each, where they are few.

    Batches then have about one labelled row in three; the means are the same.
    """
    assert rows.y is not None
    known, n_copies = rows.y != UNKNOWN, n_copies_of_labelled(rows)
    if n_copies < 2 or rows.is_mapped:
        return rows
    index = torch.arange(len(rows), device=rows.device)
    found = rows.subset(torch.cat([index[~known], index[known].repeat(n_copies)]))
    weight = torch.cat([rows.counts[~known], (rows.counts[known] / n_copies).repeat(n_copies)])
    return found.with_weights(weight)


# ------------------------------------------------------------------------------
# Methods
# ------------------------------------------------------------------------------


class ProbabilisticClassifierMixin(ClassifierMixin, ModelQueriesMixin, PartitionMixin):
    """Fits to labels, and probabilities of rows and classes, of a classifier that has a density."""

    classes_: np.ndarray
    unlabeled: Any
    _density_alone: ClassVar[str]  # estimator of the same density without classes

    @abc.abstractmethod
    def logits(self, X: Any) -> np.ndarray:
        """log p(x, y) of all classes up to a function of x, (n_samples, n_classes)."""

    @abc.abstractmethod
    def _logits_of(self, rows: Rows) -> np.ndarray:
        """Logits of validated rows."""

    @abc.abstractmethod
    def _log_class_proba(self, x: Tensor) -> Tensor:
        """log p(y | x) of rows of the energy, (n, n_classes)."""

    def _log_class_proba_of_known(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The same of rows with missing entries, nan."""
        known = ~x.isnan()

        def probabilities(rows: Tensor) -> Tensor:
            return self._log_class_proba(rows).exp()

        x = torch.where(known, x, 0.0)
        return (
            self._joint().expectations(x, known, probabilities, len(self.classes_), generator).log()
        )

    @abc.abstractmethod
    def _draw_class(
        self, code: int, n: int, generator: torch.Generator, n_steps: int, temperature: float
    ) -> Tensor:
        """Rows of the energy of a class, at least n."""

    def _draw_labelled(
        self,
        n_samples: int,
        y: Any,
        random_state: Any,
        temperature: float,
        given: Any,
        n_steps: int,
    ) -> np.ndarray:
        """Rows of p(x) or, with labels, of p(x | y), at a temperature."""
        if y is None:
            return self._draw_rows(n_samples, random_state, temperature, given, n_steps)
        self._check_draws(n_samples, temperature, n_steps=n_steps)
        check_not_both(y, given)
        codes, generator = codes_of(y, n_samples, self.classes_), self._generator(random_state)
        drawn = []
        for code, n in zip(*np.unique(codes, return_counts=True), strict=True):
            found = self._draw_class(int(code), int(n), generator, n_steps, temperature)
            drawn.append(found[:n])
        place = np.argsort(codes, kind="stable").argsort()
        return self._recipe.table.invert(torch.cat(drawn)[torch.from_numpy(place)])

    @raises_interrupt
    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model to rows and their labels.

        Ctrl-C during training raises `KeyboardInterrupt` once the model trained so far is usable:
        its weights are those of that moment, and log Z belongs to them. A call that fails in any
        other way leaves the estimator as it was before it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Labels of any type; those equal to `unlabeled` are unknown.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale; rows of weight 0 are ignored.

        Returns
        -------
        self : object
        """
        X, y = table_and_labels(X, y)
        self._fit(
            X, sample_weight, streaming=False, encode=lambda X, on: class_indices(self, X, y, on)
        )
        return self

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train for one epoch on rows and labels, in mini-batches, from the current state.

        A call that fails or is interrupted leaves the estimator as it was before it, bit for bit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, with the columns of the first call.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), default=None
            All classes, for the first call; None takes those of its y.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale.

        Returns
        -------
        self : object
        """
        X, y = table_and_labels(X, y)
        self._fit(
            X,
            sample_weight,
            streaming=True,
            encode=lambda X, on: class_indices(self, X, y, on, classes),
        )
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        r"""Probability of each class, p(y | x), in the order of `classes_`.

        Of rows with missing entries it is that given the known ones,

        .. math:: p(y \mid x_{known}) = E_{p(x_{missing} \mid x_{known})}\, p(y \mid x) ,

        exact where few bits and levels are missing, and with few hidden units; otherwise from
        weighted draws of the base or from chains.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            NaN marks missing entries.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        share: np.ndarray = np.exp(self.predict_log_proba(X))
        total: np.ndarray = share.sum(1, keepdims=True)  # which the logarithms leave to rounding
        return share / total

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of the probability of each class, finite where the probability rounds to 0.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            NaN marks missing entries, as in :meth:`predict_proba`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In nats, in the order of `classes_`.
        """
        check_is_fitted(self)  # also of an empty stream
        return self._over_blocks(X, self._log_probabilities_of_block)

    def _log_probabilities_of_block(self, X: Any) -> np.ndarray:
        def of_complete(some: Rows) -> np.ndarray:
            found: np.ndarray = log_softmax(self._logits_of(some), axis=1)
            return found

        def of_known(x: Tensor, index: Tensor) -> np.ndarray:
            self._check_near(x, index)
            logs = self._log_class_proba_of_known(x, own_generator(x))
            found: np.ndarray = logs.log_softmax(1).cpu().numpy()
            return found

        return self._by_completeness(self._rows_to_score(X), of_complete, of_known)

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits; for two classes their difference, the log-odds of the second.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
        """
        logits: np.ndarray = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> np.ndarray:
        """Most likely class of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Without missing entries, for which :meth:`predict_proba` has probabilities.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        place = self.logits(X).argmax(1)  # checks that the model is fitted
        found: np.ndarray = self.classes_[place]
        return found

    def joint_energy(self, X: Any, y: Any) -> np.ndarray:
        r"""Energy of rows and classes, E(x) - log p(y | x), in nats and in the units of X.

        It is -log p(x, y) - `log_partition_`; :meth:`energy` is minus the logarithm of the sum of
        :math:`e^{-E(x, y)}` over classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), or a label
            Classes of the rows, or one for all.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        rows = self._rows(X)
        codes = codes_of(y, len(rows), self.classes_)
        log_share = log_softmax(self._logits_of(rows), axis=1)
        found: np.ndarray = self._energies(rows) - log_share[np.arange(len(rows)), codes]
        return found

    def joint_log_proba(self, X: Any) -> np.ndarray:
        """log p(x, y) of all classes, log p(x) + log p(y | x), in nats and in the units of X.

        Exact if log Z is; an error of an estimated log Z is the same for all rows and classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        rows = self._rows(X)
        log_p = -self._energies(rows, likely=True) - self.log_partition_
        found: np.ndarray = log_p[:, None] + log_softmax(self._logits_of(rows), axis=1)
        return found
