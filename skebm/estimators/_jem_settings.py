"""What ``"auto"`` means for a classifier that is a density as well."""

from __future__ import annotations

from numbers import Real as RealNumber
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone

from skebm._validation import Interval, StrOptions
from skebm.base import Domain, Sampler
from skebm.distributions import Distribution
from skebm.energies import NeuralEnergy
from skebm.estimators._contrastive_settings import (
    CONTRASTIVE,
    DISCRETE_BASES,
    REAL_BASES,
    SampledRule,
    checked_init,
    default_sampler,
    of_images,
)
from skebm.objectives import JointLikelihood
from skebm.objectives.joint import FORMS, UNKNOWN
from skebm.training.rows import Rows

UNUSED = (
    "perturbation",
    "n_negatives",
    "reweight",
    "kl_weight",
    "entropy_weight",
    "contamination",
    "deconvolve",
)

JEM: dict[str, Any] = {k: v for k, v in CONTRASTIVE.items() if k not in UNUSED} | {
    "objective": [StrOptions(set(FORMS))],
    "generative_weight": [Interval(RealNumber, 0, None, closed="left"), StrOptions({"auto"})],
    "sharpness": [Interval(RealNumber, 0, None, closed="left")],
    "classify_noisy": ["boolean"],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "unlabeled": "no_validation",  # a label of any type
    "base": [StrOptions({"auto", "classes", *REAL_BASES, *DISCRETE_BASES}), Distribution, None],
}

# Passes of ``n_iter="auto"``; a classifier of few rows that goes on is sure where it should not be.
MOST_PASSES = 100
# Weight of log p(x) at most. As that is a sum over columns, of many it is their mean: the sum would
# outweigh a cross-entropy that is nearly nothing.
MOST_WEIGHT = 0.03


class JointRule(NamedTuple):
    """What is minimised, and how negatives are drawn.

    Attributes
    ----------
    sampled : SampledRule
    form : str
    noisy : bool
        Whether the cross-entropy sees what the likelihood sees.
    generative_weight, sharpness : float
    class_weight : tuple of float or None
        Of each class, with the share of labelled rows made up for.
    """

    sampled: SampledRule
    form: str
    noisy: bool
    generative_weight: float
    sharpness: float
    class_weight: tuple[float, ...] | None

    @property
    def sampler(self) -> Sampler:
        """What moves chains."""
        return self.sampled.sampler


def weight_of(estimator: Any, n_columns: int) -> float:
    """Weight of log p(x) that a classifier asks for, of rows of so many columns."""
    if estimator.generative_weight == "auto":
        return min(MOST_WEIGHT, 1 / n_columns)
    weight = float(estimator.generative_weight)
    if estimator.objective == "joint" and weight > 1:
        raise ValueError(
            f'generative_weight is the share of log p(x, y) with objective="joint", 0 to 1, got '
            f"{weight}."
        )
    return weight


def joint_rule(estimator: Any, domain: Domain, batch_size: int, n_batches: int) -> JointRule:
    """Resolve what a classifier says of its terms, for a fit of batches of a size."""
    sampler = estimator.sampler
    n_chains = batch_size if estimator.n_chains == "auto" else estimator.n_chains
    sampled = SampledRule(
        objective="likelihood",
        perturbation=0.0,
        n_negatives=1,
        sampler=default_sampler(domain) if sampler is None else clone(sampler),
        init=checked_init(estimator, batch_size),
        n_chains=int(n_chains),
        buffer_size=estimator.buffer_size,
        n_steps=estimator.n_steps,
        n_independence_steps=estimator.n_independence_steps,
        anneal=(estimator.sigma_anneal, n_batches // 2),
        energy_l2=estimator.energy_l2,
        clip_norm=estimator.clip_norm,
        refinement=None,
        augmentation=estimator.augmentation,
        reweight=False,
    )
    return JointRule(
        sampled,
        estimator.objective,
        estimator.classify_noisy,
        estimator.generative_weight_,
        float(estimator.sharpness),
        estimator._class_weight,
    )


def joint_objective(
    rule: JointRule, energy: NeuralEnergy, noise: np.ndarray | None
) -> JointLikelihood:
    """What is minimised: training begins at the base of the energy, and at even odds."""
    like, sampled = next(energy.parameters()), rule.sampled
    weight = rule.class_weight
    return JointLikelihood(
        energy,
        sampled.sampler,
        sampled._replace(augmentation=None).policy(energy),
        generative_weight=rule.generative_weight,
        form=rule.form,
        noisy=rule.noisy,
        class_weight=None if weight is None else like.new_tensor(weight),
        augmentation=of_images(sampled.augmentation, energy.image_shape),
        sharpness=rule.sharpness,
        clip_norm=sampled.clip_norm,
        sigma=None if noise is None else torch.as_tensor(noise).to(like),
        anneal=sampled.anneal,
        energy_l2=sampled.energy_l2,
    )


def class_weights(asked: Any, classes: np.ndarray, rows: Rows) -> tuple[float, ...] | None:
    """Factors of the classes in the cross-entropy, so that its mean is one over labelled rows.

    None where they are all one.
    """
    assert rows.y is not None
    y, counts = rows.y.cpu().numpy(), rows.counts.cpu().numpy()
    known = y != UNKNOWN
    of_class = np.bincount(y[known], weights=counts[known], minlength=len(classes))
    found = np.ones(len(classes))
    if isinstance(asked, dict):
        names = classes.tolist()
        strange = [label for label in asked if label not in names]
        if strange:
            raise ValueError(f"class_weight names {strange}, and the classes are {names}.")
        found = np.array([float(asked.get(label, 1.0)) for label in names])
        if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
            raise ValueError(f"class_weight must be finite numbers from 0, got {asked!r}.")
    elif asked == "balanced":
        found = of_class.sum() / (len(classes) * np.maximum(of_class, 1e-12))
        found[of_class == 0] = 0.0
    # The batch mean is over all rows: what is labelled counts for what is not.
    found = found * counts.sum() / of_class.sum()
    return None if np.allclose(found, 1) else tuple(found.tolist())
