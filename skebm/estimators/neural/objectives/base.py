"""What a neural density minimises, as a parameter: an object with parameters of its own."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from skebm._validation import StrOptions
from skebm.base import Real as RealDomain
from skebm.base import Sampler
from skebm.estimators.base import set_by_name
from skebm.estimators.neural.family import CONFIGS, N_STEPS, Rule, neural_plan
from skebm.estimators.tables.bases import Bases
from skebm.estimators.tables.table import Table
from skebm.estimators.tables.unchanged import check_setting_stays
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# What is asked of columns by an objective of real rows, and by one without categories.
NO_CATEGORIES: dict[str, list[Any]] = {
    "categorical_features": [StrOptions({"from_dtype"}), None],
}
REAL_ROWS: dict[str, list[Any]] = NO_CATEGORIES | {
    "domain": [StrOptions({"auto", "real"}), RealDomain],
}


class TrainingStart(NamedTuple):
    """What is known of a fit when its rule is made.

    Attributes
    ----------
    rows : Rows
    table : Table
    plan : TrainingPlan
    base : str, MixtureBase, Distribution or None
        The base as it was asked for.
    bases : Bases
        The fitted base, with and without the noise of training.
    noise : ndarray of shape (d,) or None
        Noise level of training.
    rule : Rule or None
        Rule of the fit that is continued; None if training starts anew.
    net : EnergyNet or None
        The trained net of that fit.
    """

    rows: Rows
    table: Table
    plan: TrainingPlan
    base: Any
    bases: Bases
    noise: np.ndarray | None
    rule: Any
    net: EnergyNet | None


class NeuralObjective(BaseEstimator, abc.ABC):
    """What a :class:`skebm.NeuralDensity` minimises, with the parameters that are its own.

    It fits the base, and makes the rule of training from what is known by then. `model` is the
    density, whose parameters it reads.
    """

    # What parameters of the density may be with this objective, beside what all of them take.
    takes: ClassVar[dict[str, list[Any]]] = {}
    # Whether rows are real whatever their values, and whether columns of categories are coded.
    of_real_rows: ClassVar[bool] = True
    codes_categories: ClassVar[bool] = False
    # Whether entries of the rows of a fit may be missing.
    takes_holes: ClassVar[bool] = False
    # Optimizer steps of a fit with ``n_iter="auto"``.
    n_steps: ClassVar[int] = N_STEPS
    # Parameters that a fit cannot change which goes on from an earlier one.
    kept: ClassVar[tuple[str, ...]] = ()
    # Factories for ``<parameter>__<name>`` if the parameter is None or a string.
    _configs: ClassVar[dict[str, Callable[[Any, set[str]], Any]]] = {}

    @abc.abstractmethod
    def fit_bases(
        self, model: Any, base: Any, rows: Rows, table: Table
    ) -> tuple[Bases, np.ndarray | None]:
        """The fitted base, and the noise level of training."""

    @abc.abstractmethod
    def rule(self, model: Any, start: TrainingStart) -> Rule:
        """The rule of training."""

    def check(self, model: Any) -> None:
        """Raise `ValueError` for parameters of the density that contradict each other."""
        return

    def check_goes_on(self, first: NeuralObjective) -> None:
        """Raise `ValueError` if training by the objective `first` cannot go on with this one."""
        if type(first) is not type(self):
            check_setting_stays("objective", self, first)
        for name in self.kept:
            check_setting_stays(f"{name} of objective", getattr(self, name), getattr(first, name))

    def plan(self, model: Any, n_rows: int, *, streaming: bool) -> TrainingPlan:
        """The steps of training for a table of `n_rows`."""
        settings = self.optimizer_settings(model)
        kind: dict[str, Any] = {"n_steps": self.n_steps, "optimizer_settings": settings}
        return neural_plan(model, n_rows, streaming=streaming, **kind)

    def optimizer_settings(self, model: Any) -> dict[str, Any]:
        """Further settings of the optimizer."""
        return {}

    def sampler_of_names(self, value: Any, names: set[str]) -> Sampler:
        """The default sampler, if parameters with these names are to be set."""
        return CONFIGS["sampler"](value, names)

    def _config_of(self, owner: str, value: Any, names: set[str]) -> Any:
        make = self._configs.get(owner)
        return None if make is None else make(value, names)

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name; the object that a string stands for is created if need be."""
        set_by_name(self, params, super().set_params)
        return self
