"""What a fit determines before training: one record for all families, and what a family adds to it.

Policy that all families share is here: which rows are held out, and when a model is its base.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from skebm.base import Objective
from skebm.base.processes import Notice, repeat
from skebm.estimators.tables.bases import mean_log_prob
from skebm.estimators.tables.table import Table
from skebm.training.guard import N_ASSESSMENTS, not_converged, still_rising
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows
from skebm.training.selection import (
    GAIN,
    THE_BASE,
    LogRatioOf,
    gain_by_more_rows,
    is_kept,
    n_held_out,
    rows_apart,
    warn_of_base,
)

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

F = TypeVar("F", bound="Family")
G = TypeVar("G", bound="Family")


@dataclass(frozen=True)
class Recipe(Generic[F]):
    """Everything that a fit determines before training.

    It has no reference to the estimator: parameters that are set after a fit wait for the next one.
    A loaded model rebuilds its net from it.

    Attributes
    ----------
    table : Table
    plan : TrainingPlan
    base : Distribution, Bases or None
        What the energy corrects; of neural densities in training, and in the trained model.
    family : Family
        What is trained, with the settings of its own.
    base_name : str or None
        None if the base was passed, or has no name.
    base_reason : str
        Why it is the base.
    n_guards : int
        Rows that are held out to guard the training, at most; 0 for none.
    guard_seed : int or None
        Which rows these are, apart from those that the base was fitted to; None where it was fitted
        to all.
    n_assessments : int
        How often these rows assess a model that is not assessed after each epoch.
    trial : Trial or None
        The short training that chose these settings, until the model is known to be better.
    """

    table: Table
    plan: TrainingPlan
    base: Any
    family: F
    base_name: str | None = None
    base_reason: str = ""
    n_guards: int = 0
    guard_seed: int | None = None
    n_assessments: int = N_ASSESSMENTS
    trial: Any = None

    def with_settings(self, **settings: Any) -> Self:
        """The same with other settings of the family."""
        return replace(self, family=replace(self.family, **settings))  # type: ignore[type-var]

    def of_family(self, family: G) -> Recipe[G]:
        """The same of another family, of which this one is a part."""
        return replace(self, family=family)  # type: ignore[arg-type, return-value]

    def with_epochs(self, n_iter: int) -> Self:
        """The same with another number of epochs."""
        return replace(self, plan=replace(self.plan, n_iter=n_iter))

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        """Parameters that were `asked` for and that are not used, with the reasons."""
        net = asked.get("net_params") or {}
        ours = {"learning_rate": "lr", "batch_size": "batch_size", "n_iter": "max_epochs"}
        overridden = {
            name: f"net_params={{{theirs!r}: ...}} takes its place"
            for name, theirs in ours.items()
            if name in asked and theirs in net
        }
        return overridden | self.family.without_effect(self, asked)

    def gain_of_all_rows(self, rows: Rows) -> float:
        """Nats of a new row that a base gains if it is fitted to the rows that guard as well."""
        if self.guard_seed is None:
            return 0.0
        train, guards = self.family.rows_apart(self, rows)
        if not len(guards):
            return 0.0
        return gain_by_more_rows(lambda some: self.family.mean_of_base(self, some), train, guards)

    def after_training(self, net: EnergyNet, rows: Rows) -> Self:
        """The recipe of the trained model, or of its base where held-out rows gain too little.

        Training that goes on from an earlier fit keeps what it has, and so does that of a stream.
        """
        if self.trial is not None:
            return self.family.best_of_trial(self, net, rows).after_training(net, rows)
        found = self._of_base(net, rows) if self._is_base(net, rows) else self
        return replace(found, family=found.family.finalise(found, net, rows))

    def check_trained(self, net: EnergyNet, rows: Rows) -> None:
        """Warn if the training history indicates a bad fit."""
        self.family.check_trained(self, net, rows)
        notice = self.family.why_not_converged(self, net, rows)
        if notice is not None:
            repeat([notice])

    def _is_base(self, net: EnergyNet, rows: Rows) -> bool:
        """Whether held-out rows gain too little by a model; with a warning, unless there is one."""
        validated = net.streaming or net.validation is not None
        unjudged = (net.held_out_ is None and not validated) or not len(net.history)
        if unjudged and self.family.needs_validation_rows:
            return True
        gain = net.guard_.final_gain
        judged = net.log_ratios_ is not None or net.judges_ is not None
        if net.streaming or net.n_before_ or not judged or gain is None:
            return False
        more = self.gain_of_all_rows(rows)
        if is_kept(gain, more):
            return False
        if not (net.note_ or self.family.why_not_converged(self, net, rows)):
            warn_of_base(gain, self.family.of_what, self.family.reference)
        return True

    def _of_base(self, net: EnergyNet, rows: Rows) -> Self:
        """The recipe of the base, fitted to all rows, as a model, to which the net is set."""
        found = self
        if self.guard_seed is not None:
            found = replace(self, base=self.family.fit_base(self, rows))
        return replace(found, family=found.family.set_to_base(found, net, rows))


class Family(abc.ABC):
    """What a family of models is by itself: the settings of its energy, and what they mean.

    Subclasses are frozen dataclasses, which hold no functions, since they are stored with the
    model, and none derives from another. Methods are given the recipe that they are a part of.
    """

    # What is the base where held-out rows gain too little, in a warning; and whether it is the
    # base, too, where no rows judge.
    of_what: ClassVar[str] = "The model"
    needs_validation_rows: ClassVar[bool] = False
    # Whether the estimator itself checks that a base stays, and takes its name for "auto".
    checks_base: ClassVar[bool] = True

    @property
    def reference(self) -> str:
        """What held-out rows compare a model with, and what it is where they gain too little."""
        return THE_BASE

    # ---------------------------------------------------------------- before training

    @abc.abstractmethod
    def objective(self, recipe: Any, generator: torch.Generator) -> Objective:
        """An untrained objective, which holds the energy, on the generator's device."""

    def initialise(self, recipe: Any, energy: Any, rows: Rows) -> None:
        """Set initial parameters that depend on the rows; by default none."""
        return

    def continue_trial(self, recipe: Any, net: EnergyNet) -> bool:
        """Set a net to what a trial has learned; False, the default, where it has to start anew."""
        return False

    def deduplicate(self, recipe: Any, rows: Rows) -> Rows:
        """Equivalent rows that are cheaper to train on: distinct ones if each step uses all."""
        return rows.without_duplicates() if recipe.plan.searches else rows

    def without_effect(self, recipe: Any, asked: dict[str, Any]) -> dict[str, str]:
        """Parameters that were `asked` for and that these settings do not use, with the reasons."""
        return {}

    # ---------------------------------------------------------------- held-out rows

    def has_guard(self, recipe: Any) -> bool:
        """Whether a fit to enough rows holds some out to guard its training."""
        return True

    def hold_out(
        self, recipe: Any, rows: Rows, generator: torch.Generator
    ) -> tuple[Rows, Rows | None]:
        """Split off rows that guard the training, a tenth and `n_guards` at most, more of few."""
        n = n_held_out(len(rows), recipe.n_guards)
        if not n:
            return rows, None
        apart = recipe.guard_seed is not None
        train, guards = self.rows_apart(recipe, rows) if apart else rows.split(n, generator)
        return train, self.complete_copies(recipe, guards, generator)

    def rows_apart(self, recipe: Any, rows: Rows) -> tuple[Rows, Rows]:
        """The rows that the base was fitted to, and those that guard the training."""
        return rows_apart(rows, recipe.n_guards, recipe.guard_seed)

    def log_ratios(self, recipe: Any) -> LogRatioOf | None:
        """What assesses a model a few times a fit; None if each epoch's monitor does."""
        return None

    def complete(
        self, recipe: Any, energy: Any, x: Tensor, known: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Rows with their missing entries drawn anew; by default rows are complete."""
        return x

    def complete_copies(self, recipe: Any, rows: Rows, generator: torch.Generator) -> Rows:
        """Held-out rows, or copies that complete missing entries; by default rows are complete."""
        return rows

    def mean_of_base(self, recipe: Any, rows: Rows) -> float:
        """Mean log-likelihood of rows, of their known entries, under the base."""
        return mean_log_prob(recipe.base, rows)

    def why_not_converged(self, recipe: Any, net: EnergyNet, rows: Rows) -> Notice | None:
        """What held-out rows say of a training that was too short; None if it was not.

        By default it was where they still became more likely after as many epochs as a default fit
        may have.
        """
        n_iter = net.max_epochs
        if net.note_ or not recipe.plan.n_iter < n_iter == net.most_epochs:
            return None
        rise = still_rising([row[GAIN] for row in net.history[net.n_before_ :] if GAIN in row])
        return None if rise is None else not_converged(n_iter, rise)

    # ---------------------------------------------------------------- the trained model

    def best_of_trial(self, recipe: Any, net: EnergyNet, rows: Rows) -> Any:
        """The recipe without its trial, or that of the trial where it is better."""
        return replace(recipe, trial=None)

    def check_trained(self, recipe: Any, net: EnergyNet, rows: Rows) -> None:
        """Warn if the training history indicates a bad fit; by default nothing."""
        return

    def fit_base(self, recipe: Any, rows: Rows) -> Any:
        """The base that the recipe names, fitted to all rows; by default the same."""
        return recipe.base

    def set_to_base(self, recipe: Any, net: EnergyNet, rows: Rows) -> Self:
        """Set a net to the base as a model, and return the settings of that model."""
        return self

    def finalise(self, recipe: Any, net: EnergyNet, rows: Rows) -> Self:
        """The settings with what is known after training only; by default the same."""
        return self

    def energy(self, recipe: Any, trained: Any) -> Any:
        """The energy of the model, made from the one that was trained."""
        return trained

    def scoring_energy(self, recipe: Any, energy: Any) -> Any:
        """The energy in a form whose rounding does not depend on the other rows of a batch."""
        return energy


class JointModel(abc.ABC):
    """What a family tells in addition whose models have one log Z for all rows."""

    @abc.abstractmethod
    def partition_input(
        self, recipe: Any, name: str, energy: Any, net: EnergyNet, reference: Tensor
    ) -> Any:
        """Input of an estimate of log Z: ``"base"``, ``"sampler"`` or ``"x"``, rows by origin."""

    @abc.abstractmethod
    def proper_score(self, recipe: Any, rows: Rows, energy: Any) -> Tensor:
        """Proper scoring rule that needs no log Z, (n,), higher is better."""
