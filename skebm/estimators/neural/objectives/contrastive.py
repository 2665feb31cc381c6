"""Contrastive divergence and its relatives, of neural densities of rows of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, clone
from torch import Tensor

from skebm._validation import Interval, StrOptions
from skebm.base import Domain, Mixed, Objective, Real, Sampler
from skebm.base.domains import parts_of
from skebm.energies import NeuralEnergy
from skebm.estimators.neural.family import (
    BASE,
    POLICIES,
    SIGMA,
    ChainRule,
    Rule,
    fit_any_bases,
    policy_for,
    policy_with_chains,
    sampler_of,
    stays_pairwise,
)
from skebm.estimators.neural.objectives.base import NeuralObjective, TrainingStart
from skebm.estimators.tables.bases import Bases
from skebm.estimators.tables.table import Table
from skebm.objectives import ContrastiveDivergence, EnergyDiscrepancy, Refinement
from skebm.objectives.local import LOCAL_RULES
from skebm.objectives.log_partition import LogPartitionMonitor
from skebm.samplers import ChainPolicy, Gibbs
from skebm.training.rows import Rows


class Likelihood(BaseEstimator):
    """Settings of maximum likelihood by contrastive divergence, ``objective="likelihood"``.

    Parameters
    ----------
    sigma_anneal : float, default=1
        Initial factor on the noise, which decays to 1 over the first half of training.
    energy_l2 : float, default=0
        Weight of a penalty on the squares of f at data and chains [1]_.
    clip_norm : float or None, default=None
        Maximum norm of the gradient.
    kl_weight, entropy_weight : float, default=0
        Weights of the KL term, whose gradient is taken through the last step of the chains, and of
        the entropy of the chains [2]_; available with ``Langevin`` and ``MALA``.

    References
    ----------
    .. [1] Du and Mordatch (2019), "Implicit generation and modeling with energy based models",
       NeurIPS, section 3.
    .. [2] Du, Li, Tenenbaum and Mordatch (2021), "Improved contrastive divergence training of
       energy-based models", ICML.

    Examples
    --------
    >>> from skebm import ContrastiveDivergenceDensity
    >>> model = ContrastiveDivergenceDensity().set_params(objective__energy_l2=0.01)
    >>> model.objective
    Likelihood(energy_l2=0.01)
    """

    _parameter_constraints: dict = {
        "sigma_anneal": [Interval(RealNumber, 1, None, closed="left")],
        "energy_l2": [Interval(RealNumber, 0, None, closed="left")],
        "clip_norm": [Interval(RealNumber, 0, None, closed="neither"), None],
        "kl_weight": [Interval(RealNumber, 0, None, closed="left")],
        "entropy_weight": [Interval(RealNumber, 0, None, closed="left")],
    }

    def __init__(
        self, *, sigma_anneal=1.0, energy_l2=0.0, clip_norm=None, kl_weight=0.0, entropy_weight=0.0
    ):
        self.sigma_anneal = sigma_anneal
        self.energy_l2 = energy_l2
        self.clip_norm = clip_norm
        self.kl_weight = kl_weight
        self.entropy_weight = entropy_weight


class Discrepancy(BaseEstimator):
    """Settings of energy discrepancy, ``objective="discrepancy"``.

    Parameters
    ----------
    perturbation : float, default=0.2
        Standard deviation of the perturbations, in standard deviations of the columns (in units of
        X with ``standardize=False``); for discrete rows, the probability that a column changes.
    n_negatives : int, default=16
        Number of negatives per row.

    References
    ----------
    Schröder, Ou, Lim, Li, Vollmer and Duncan (2023), "Energy discrepancies: a score-independent
    loss for energy-based models", NeurIPS.

    Examples
    --------
    >>> from skebm import ContrastiveDivergenceDensity
    >>> from skebm.estimators import Discrepancy
    >>> ContrastiveDivergenceDensity(objective=Discrepancy(n_negatives=8)).objective
    Discrepancy(n_negatives=8)
    """

    _parameter_constraints: dict = {
        "perturbation": [Interval(RealNumber, 0, None, closed="neither")],
        "n_negatives": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, *, perturbation=0.2, n_negatives=16):
        self.perturbation = perturbation
        self.n_negatives = n_negatives


# By name; those of `LOCAL_RULES` have no settings.
SETTINGS: dict[Any, type[BaseEstimator]] = {"likelihood": Likelihood, "discrepancy": Discrepancy}


@dataclass(frozen=True)
class LikelihoodRule(ChainRule):
    """Maximum likelihood by contrastive divergence.

    Attributes
    ----------
    sampler : Sampler
    chains : ChainPolicy
    settings : Likelihood
    anneal : tuple of (float, int)
        Initial factor on the noise, and number of batches until it is 1.
    """

    sampler: Sampler
    chains: ChainPolicy
    settings: Likelihood
    anneal: tuple[float, int]
    has_ceiling = True

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> Objective:
        asked = self.settings
        weights = asked.kl_weight, asked.entropy_weight
        return ContrastiveDivergence(
            energy,
            self.sampler,
            policy_for(self.chains, energy),
            sigma=sigma,
            anneal=self.anneal,
            energy_l2=asked.energy_l2,
            clip_norm=asked.clip_norm,
            refinement=Refinement(*weights) if any(weights) else None,
        )


@dataclass(frozen=True)
class DiscrepancyRule(ChainRule):
    """Energy discrepancy, which has no chains."""

    sampler: Sampler
    settings: Discrepancy
    has_ceiling = True
    holds_out = False

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> Objective:
        asked = self.settings
        return EnergyDiscrepancy(energy, asked.perturbation, n_negatives=asked.n_negatives)


@dataclass(frozen=True)
class LocalRule(ChainRule):
    """Comparison of each row with those that differ from it in one column, without chains.

    Attributes
    ----------
    sampler : Sampler
        Of the trained model.
    name : {"pseudo_likelihood", "ratio_matching", "probability_flow"}
    """

    sampler: Sampler
    name: str

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> Objective:
        found = LOCAL_RULES[self.name](energy)
        found.log_partition_monitor = LogPartitionMonitor.of(energy)
        return found

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        reason = f'objective="{self.name}" has no chains (objective="likelihood" has)'
        return {name: reason for name in ("chains", "objective__chains") if name in asked}


class ContrastiveDivergenceLearning(NeuralObjective):
    """Maximum likelihood by contrastive divergence, or a relative without chains.

    See :class:`skebm.ContrastiveDivergenceDensity` for the methods and their references. Rows may
    be real, binary, one-hot or of several kinds of columns.

    Parameters
    ----------
    form : str, Likelihood or Discrepancy, default="likelihood"
        ``"likelihood"`` (settings in :class:`Likelihood`), ``"discrepancy"`` (settings in
        :class:`Discrepancy`), or, of bits and categories, ``"pseudo_likelihood"``,
        ``"ratio_matching"`` or ``"probability_flow"``.
    chains : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        Where the chains of ``"likelihood"`` start at each batch, and how many steps they take.

    Examples
    --------
    >>> from skebm import NeuralDensity
    >>> from skebm.estimators import ContrastiveDivergenceLearning
    >>> model = NeuralDensity(objective=ContrastiveDivergenceLearning(chains="data"))
    >>> model.set_params(objective__form__clip_norm=1.0).objective
    ContrastiveDivergenceLearning(chains='data', form=Likelihood(clip_norm=1.0))
    """

    FORMS: ClassVar[tuple[str, ...]] = (*SETTINGS, *LOCAL_RULES)
    _parameter_constraints: dict = {
        "form": [StrOptions(set(FORMS)), Likelihood, Discrepancy],
        "chains": [StrOptions(set(POLICIES)), ChainPolicy],
    }
    _configs = {
        "form": lambda value, names: SETTINGS[value]() if value in SETTINGS else None,
        "chains": lambda value, names: POLICIES[value](),
    }
    of_real_rows = False
    codes_categories = True
    takes = {"base": BASE, "sigma": SIGMA}

    def __init__(self, *, form="likelihood", chains="persistent"):
        self.form = form
        self.chains = chains

    def _settings(self) -> Any:
        """Settings of the form, or its name if it has none."""
        return SETTINGS[self.form]() if self.form in SETTINGS else clone(self.form, safe=False)

    def fit_bases(
        self, model: Any, base: Any, rows: Rows, table: Table
    ) -> tuple[Bases, np.ndarray | None]:
        by_chains = isinstance(self._settings(), Likelihood)
        # A tree would be couplings beside those of a pairwise network.
        pairwise = stays_pairwise(model.network, table.domain, None)
        return fit_any_bases(
            model,
            "independent" if pairwise and base == "auto" else base,
            rows,
            table,
            adds_noise=by_chains,
            deconvolve=model.deconvolve,
            stacks="mixtures" if by_chains else "no",  # kernels would slow the chains down
        )

    def rule(self, model: Any, start: TrainingStart) -> Rule:
        domain, plan, form = start.table.domain, start.plan, self._settings()
        sampler = sampler_of(model, domain)
        if model.sampler is None and stays_pairwise(model.network, domain, start.bases.noisy):
            sampler = Gibbs()
        if isinstance(form, str):
            check_neighbouring_states(form, domain)
            return LocalRule(sampler, form)
        if isinstance(form, Discrepancy):
            check_discrepancy(self.chains, start.base)
            if isinstance(domain, Mixed):
                raise ValueError(
                    'objective="discrepancy" perturbs rows of one kind of columns: use '
                    '"likelihood".'
                )
            return DiscrepancyRule(sampler, form)
        n_rows = start.rows.n_table
        chains = policy_with_chains(self.chains, min(plan.batch_size, n_rows), start.net)
        anneal = form.sigma_anneal, plan.n_batches(n_rows) // 2
        return LikelihoodRule(sampler, chains, form, anneal)


# ------------------------------------------------------------------------------
# Checks
# ------------------------------------------------------------------------------


def check_neighbouring_states(objective: str, domain: Domain) -> None:
    """Raise `ValueError` for real columns, which have no neighbouring states."""
    kinds = parts_of(domain)
    if all(isinstance(kind, Real) for kind in kinds):
        raise ValueError(
            f'objective="{objective}" compares the states of single columns, and X has real '
            "columns: use ScoreMatchingDensity, which compares their gradients."
        )
    if any(isinstance(kind, Real) for kind in kinds):
        raise ValueError(
            f'objective="{objective}" compares the states of single columns, and some columns of '
            'X are real: use "likelihood" (score matching is for real columns alone).'
        )


def check_discrepancy(chains: Any, base: Any) -> None:
    """Raise `ValueError` for chains and bases that energy discrepancy cannot use."""
    if chains != "persistent":
        raise ValueError(f"chains={chains!r} has no effect: discrepancy has no chains.")
    if isinstance(base, str) and base in ("kernel", "stack"):
        raise ValueError(
            f'base="{base}" has its centres at the training rows, which energy discrepancy would '
            'recognise by that alone: use base="mixture".'
        )
