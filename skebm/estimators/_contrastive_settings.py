"""What ``"auto"`` means where negatives are sampled: the sampler, the chains, the terms."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone

from skebm._validation import Interval, StrOptions
from skebm.base import Domain, Objective, Real, Sampler
from skebm.distributions import Distribution
from skebm.energies import NeuralEnergy
from skebm.estimators._density_settings import COMMON
from skebm.objectives import ContrastiveDivergence, EnergyDiscrepancy, Refinement
from skebm.samplers import (
    MALA,
    ChainPolicy,
    FromData,
    FromNoise,
    GibbsWithGradients,
    Persistent,
    ReplayBuffer,
)

REAL_BASES = ("gaussian", "mixture", "kernel")
DISCRETE_BASES = ("independent", "chow-liu", "block-tree")

CONTRASTIVE: dict[str, list[Any]] = COMMON | {
    "domain": [StrOptions({"auto", "real", "binary"}), Domain],
    "init": [StrOptions({"data", "persistent", "replay", "noise"}), ChainPolicy],
    "objective": [StrOptions({"likelihood", "discrepancy"})],
    "perturbation": [Interval(RealNumber, 0, None, closed="neither")],
    "n_negatives": [Interval(Integral, 1, None, closed="left")],
    "n_steps": [Interval(Integral, 1, None, closed="left")],
    "n_independence_steps": [Interval(Integral, 0, None, closed="left")],
    "n_chains": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "buffer_size": [Interval(Integral, 1, None, closed="left")],
    "reweight": ["boolean"],
    "base": [StrOptions({"auto", *REAL_BASES, *DISCRETE_BASES}), Distribution, None],
    "sigma": [
        Interval(RealNumber, 0, None, closed="neither"),
        StrOptions({"auto", "bandwidth"}),
        "array-like",
        None,
    ],
    "sigma_anneal": [Interval(RealNumber, 1, None, closed="left")],
    "energy_l2": [Interval(RealNumber, 0, None, closed="left")],
    "clip_norm": [Interval(RealNumber, 0, None, closed="neither"), None],
    "kl_weight": [Interval(RealNumber, 0, None, closed="left")],
    "entropy_weight": [Interval(RealNumber, 0, None, closed="left")],
    "augmentation": [callable, None],
}

# Share of a replay buffer's draws that start anew (Du and Mordatch 2019, section 3.2).
RESTART = 0.05


class SampledRule(NamedTuple):
    """How negatives are drawn, and what is minimised beside the likelihood.

    Attributes
    ----------
    objective : str
    perturbation, n_negatives : float, int
    sampler : Sampler
    init : str or ChainPolicy
    n_chains, buffer_size, n_steps, n_independence_steps : int
    anneal : tuple of (float, int)
        Factor of the noise at first, and batches until it is 1.
    energy_l2 : float
    clip_norm : float or None
    refinement : Refinement or None
    augmentation : callable or None
    reweight : bool
    """

    objective: str
    perturbation: float
    n_negatives: int
    sampler: Sampler
    init: Any
    n_chains: int
    buffer_size: int
    n_steps: int
    n_independence_steps: int
    anneal: tuple[float, int]
    energy_l2: float
    clip_norm: float | None
    refinement: Refinement | None
    augmentation: Any
    reweight: bool

    def policy(self, energy: NeuralEnergy) -> ChainPolicy:
        """Where chains start, from draws of the base, and how many steps they take."""
        base, augmentation = energy.base, of_images(self.augmentation, energy.image_shape)
        if isinstance(self.init, ChainPolicy):
            policy = self.init
        elif self.init == "data":
            policy = FromData()
        elif self.init == "noise":
            policy = FromNoise(initial=base)
        elif self.init == "replay":
            policy = ReplayBuffer(size=self.buffer_size, restart=RESTART, initial=base)
        else:
            policy = Persistent(n_chains=self.n_chains, initial=base)
        if augmentation is not None and isinstance(policy, Persistent):
            raise ValueError(
                "Persistent chains never start anew, so there is nothing to augment: use a replay "
                "buffer, or chains from the data or from noise."
            )
        if self.reweight and not isinstance(policy, Persistent):
            raise ValueError(
                f'reweight weighs persistent chains: use init="persistent", not {policy}.'
            )
        can = base is not None and self.sampler.kernel is self.sampler
        settings: dict[str, Any] = {"n_independence_steps": self.n_independence_steps if can else 0}
        if policy.n_steps is None:
            settings["n_steps"] = self.n_steps
        if augmentation is not None:
            settings["augmentation"] = augmentation
        if self.reweight:
            settings["reweight"] = True
        return policy.set_params(**settings)


def sampled_rule(estimator: Any, domain: Domain, batch_size: int, n_batches: int) -> SampledRule:
    """Resolve what an estimator says of its negatives, for a fit of batches of a size."""
    init = checked_init(estimator, batch_size)
    _check_discrepancy(estimator)
    weights = estimator.kl_weight, estimator.entropy_weight
    n_chains = batch_size if estimator.n_chains == "auto" else estimator.n_chains
    return SampledRule(
        objective=estimator.objective,
        perturbation=estimator.perturbation,
        n_negatives=estimator.n_negatives,
        sampler=default_sampler(domain) if estimator.sampler is None else clone(estimator.sampler),
        init=init,
        n_chains=int(n_chains),
        buffer_size=estimator.buffer_size,
        n_steps=estimator.n_steps,
        n_independence_steps=estimator.n_independence_steps,
        anneal=(estimator.sigma_anneal, n_batches // 2),
        energy_l2=estimator.energy_l2,
        clip_norm=estimator.clip_norm,
        refinement=Refinement(*weights) if any(weights) else None,
        augmentation=estimator.augmentation,
        reweight=estimator.reweight,
    )


def checked_init(estimator: Any, batch_size: int) -> Any:
    """Where chains start, a copy; `ValueError` for a buffer that has no room for a batch."""
    init = estimator.init
    init = clone(init) if isinstance(init, ChainPolicy) else init
    size = init.size if isinstance(init, ReplayBuffer) else estimator.buffer_size
    if (init == "replay" or isinstance(init, ReplayBuffer)) and size < batch_size:
        raise ValueError(
            f"A replay buffer of {size} rows is smaller than a batch of {batch_size}, whose chains "
            "start at different rows of it: raise buffer_size, or lower batch_size."
        )
    return init


def _check_discrepancy(estimator: Any) -> None:
    """Raise `ValueError` for what an objective without chains has no use for."""
    if estimator.objective != "discrepancy":
        return
    asked: dict[str, Any] = {"reweight": False, "energy_l2": 0, "kl_weight": 0, "entropy_weight": 0}
    asked |= {"clip_norm": None, "augmentation": None, "sigma_anneal": 1}
    unused = [name for name, default in asked.items() if getattr(estimator, name) != default]
    if unused:
        raise ValueError(f"{', '.join(unused)}: these belong to chains, and discrepancy has none.")
    if estimator.base == "kernel":
        raise ValueError(
            'base="kernel" has its centres on the rows, which discrepancy would tell from their '
            'copies by that alone: use base="mixture".'
        )


def objective_of(rule: SampledRule, energy: NeuralEnergy, noise: np.ndarray | None) -> Objective:
    """What is minimised: training begins at the base of the energy."""
    if rule.objective == "discrepancy":
        return EnergyDiscrepancy(energy, rule.perturbation, n_negatives=rule.n_negatives)
    like = next(energy.parameters())
    return ContrastiveDivergence(
        energy,
        rule.sampler,
        rule.policy(energy),
        sigma=None if noise is None else torch.as_tensor(noise).to(like),
        anneal=rule.anneal,
        energy_l2=rule.energy_l2,
        clip_norm=rule.clip_norm,
        refinement=rule.refinement,
    )


def of_images(augmentation: Any, shape: tuple[int, ...] | None) -> Any:
    """An augmentation of images as one of the flat rows that energies see."""
    if augmentation is None or shape is None:
        return augmentation
    return lambda x, generator: augmentation(x.unflatten(1, shape), generator).flatten(1)


def default_sampler(domain: Domain) -> Sampler:
    """MALA that tunes itself, or Gibbs with gradients where rows are discrete."""
    if isinstance(domain, Real):
        return MALA(adapt=True, scale="auto")
    return GibbsWithGradients()
