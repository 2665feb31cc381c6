"""log Z of a fitted model: how it is found, when, and how well it is known."""

from __future__ import annotations

import abc
from typing import Any

from sklearn.base import BaseEstimator, clone

from skebm._validation import check_is_fitted
from skebm.base import LogPartition
from skebm.partition import Choice, choose
from skebm.partition.choice import in_a_line


class Normalised(BaseEstimator, abc.ABC):
    """Finds log Z on first need and keeps it until the weights change."""

    partition: Any
    energy_: Any

    @abc.abstractmethod
    def _partition_inputs(self) -> dict[str, Any]:
        """Arguments ``base``, ``sampler``, ``x`` and ``generator`` of an estimate of log Z."""

    def _choose_partition(self) -> Choice:
        """What ``partition="auto"`` means for the fitted energy."""
        inputs = self._partition_inputs()
        return choose(self.energy_, base=inputs["base"], x=inputs["x"])

    def _forget_log_partition(self) -> None:
        # A holder made in fit: filling it later leaves the estimator's __dict__ as it was.
        self._holder: dict[str, LogPartition] = {}

    def _log_partition(self) -> LogPartition:
        check_is_fitted(self)
        if self.partition is None:
            nan = float("nan")
            return LogPartition(0.0, nan, nan, nan, "heuristic", nan)
        if "value" not in self._holder:
            inputs = self._partition_inputs()
            self._holder["value"] = self.partition_.estimate(self.energy_, **inputs)
        return self._holder["value"]

    @property
    def partition_(self) -> Any:
        """How log Z is found: what ``partition="auto"`` chose, or a copy of what was given."""
        check_is_fitted(self)
        if self.partition is None:
            return None
        return (
            self._choose_partition().method if self.partition == "auto" else clone(self.partition)
        )

    @property
    def log_partition_method_(self) -> str:
        """How log Z is found and why: ``"Exact(): 2^16 hidden states x 64 columns are ..."``.

        ``"as given: AIS(n_betas=100)"`` for a method that was passed, and ``"none"`` for None.
        """
        check_is_fitted(self)
        if self.partition is None:
            return "none"
        if self.partition == "auto":
            return str(self._choose_partition())
        return f"as given: {in_a_line(self.partition)}"

    @property
    def log_partition_(self) -> float:
        """log Z in nats, computed on first need; 0 with ``partition=None``."""
        return self._log_partition().value

    @property
    def log_partition_std_(self) -> float:
        """Standard error of `log_partition_`; 0 when exact."""
        return self._log_partition().std_error

    @property
    def log_partition_bounds_(self) -> tuple[float, float]:
        """Lower and upper end for log Z; `log_partition_kind_` says what they are worth."""
        found = self._log_partition()
        return found.lower, found.upper

    @property
    def log_partition_kind_(self) -> str:
        """``"exact"``, ``"probabilistic"`` or ``"heuristic"``: the nature of the bounds."""
        return self._log_partition().bound_kind

    @property
    def log_partition_parts_(self) -> dict[str, tuple[float, float]]:
        """Estimates that the bounds were made of, each with its standard error; by name."""
        return self._log_partition().parts
