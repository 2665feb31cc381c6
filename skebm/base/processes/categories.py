"""Warnings of skebm by kind, for the filters of :mod:`warnings`.

All are a :class:`SkebmWarning`. Those of an iteration that has not converged are a
:class:`sklearn.exceptions.ConvergenceWarning` as well.

>>> import warnings
>>> from skebm.base import DataWarning, LikelihoodWarning
>>> warnings.filterwarnings("ignore", category=LikelihoodWarning)  # show none of log Z
>>> warnings.filterwarnings("error", category=DataWarning)  # raise what X is suspected of
"""

from sklearn.exceptions import ConvergenceWarning

__all__ = [
    "DataWarning",
    "LikelihoodWarning",
    "SamplingWarning",
    "SettingWarning",
    "SkebmWarning",
    "TrainingWarning",
]


class SkebmWarning(UserWarning):
    """Base class of all warnings of skebm."""


class TrainingWarning(SkebmWarning, ConvergenceWarning):
    """Training ended too early, diverged, overfitted or gained nothing over the base."""


class LikelihoodWarning(SkebmWarning, ConvergenceWarning):
    """log Z, or a likelihood or a bound that needs it, may be wrong or is nan."""


class SamplingWarning(SkebmWarning, ConvergenceWarning):
    """Samples are approximate: chains, or the recall of a memory, have not converged."""


class DataWarning(SkebmWarning):
    """Rows, columns or labels are not what they seem, or are changed before they are used."""


class SettingWarning(SkebmWarning):
    """A parameter is without effect, or another value takes its place."""
