"""Conditional distributions given some entries of a row, of all others and of one."""

from skebm.distributions.conditionals.column import NormalMixtures
from skebm.distributions.conditionals.given import (
    Given,
    IndependentGiven,
    KernelGiven,
    MixtureGiven,
    ScalesGiven,
    in_order,
)

__all__ = [
    "Given",
    "IndependentGiven",
    "KernelGiven",
    "MixtureGiven",
    "NormalMixtures",
    "ScalesGiven",
    "in_order",
]
