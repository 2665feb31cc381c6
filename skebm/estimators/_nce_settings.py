"""What noise contrastive estimation is told."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone

from skebm._validation import Interval, StrOptions
from skebm.base import Domain, Sampler
from skebm.distributions import Distribution
from skebm.distributions.flow import FLOWS
from skebm.energies import NeuralEnergy
from skebm.estimators._contrastive_settings import (
    CONTRASTIVE,
    DISCRETE_BASES,
    REAL_BASES,
    default_sampler,
)
from skebm.estimators._density_settings import COMMON
from skebm.objectives import NoiseContrastive

# Rows and draws that are told right, beyond which a classifier has nothing more to learn.
SATURATED = 0.97
# Of fewer rows all may be told right by chance.
FEWEST_ROWS = 20

NCE: dict[str, list[Any]] = {
    name: kinds for name, kinds in COMMON.items() if name != "deconvolve"
} | {
    "noise": [StrOptions({"auto", *REAL_BASES, *FLOWS, *DISCRETE_BASES}), Distribution],
    "noise_ratio": [Interval(RealNumber, 0, None, closed="neither")],
    "n_bridges": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "form": [StrOptions({"logistic", "ranking"})],
    "domain": CONTRASTIVE["domain"],
    "sigma": CONTRASTIVE["sigma"],
}


class NoiseRule(NamedTuple):
    """How data are told from noise, and what moves samples.

    Attributes
    ----------
    sampler : Sampler
    noise_ratio : float
    form : str
    """

    sampler: Sampler
    noise_ratio: float
    form: str


def noise_rule(estimator: Any, domain: Domain) -> NoiseRule:
    """Resolve what an estimator says of its noise."""
    sampler = default_sampler(domain) if estimator.sampler is None else clone(estimator.sampler)
    return NoiseRule(sampler, float(estimator.noise_ratio), estimator.form)


def contrast_of(
    rule: NoiseRule, energy: NeuralEnergy, sigma: np.ndarray | None
) -> NoiseContrastive:
    """The objective; the noise is the base of the energy."""
    noise: Any = energy.base
    like = next(energy.parameters())
    return NoiseContrastive(
        energy,
        noise,
        noise_ratio=rule.noise_ratio,
        form=rule.form,
        sigma=None if sigma is None else torch.as_tensor(sigma).to(like),
    )
