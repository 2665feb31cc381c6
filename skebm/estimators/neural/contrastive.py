"""Neural densities trained by contrastive divergence."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from numbers import Real as RealNumber
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from torch import Tensor

from skebm._validation import Interval, StrOptions, boolean_columns
from skebm.base import Domain, Mixed, Objective, Real, Sampler
from skebm.base.domains import parts_of
from skebm.distributions import Distribution
from skebm.energies import NeuralEnergy
from skebm.estimators._docs import shared_docs
from skebm.estimators.base import DENSITY_CONSTRAINTS, BaseDensity, validate_coded
from skebm.estimators.neural import methods
from skebm.estimators.neural.blueprint import (
    BASE,
    CONFIGS,
    NEURAL_CONSTRAINTS,
    POLICIES,
    SIGMA,
    ChainRule,
    NeuralBlueprint,
    Rule,
    accepted_input,
    asks_for_bits,
    fit_any_bases,
    learn_any_table,
    learn_column_table,
    network_of,
    neural_plan,
    policy_for,
    resolved_chains,
    sampler_of,
    stays_pairwise,
)
from skebm.estimators.tables.columns import Coding, ColumnTable
from skebm.estimators.tables.table import FlatTable, Table, has_only_bits
from skebm.objectives import ContrastiveDivergence, EnergyDiscrepancy, Refinement
from skebm.objectives.local import LOCAL_RULES
from skebm.objectives.log_partition import LogPartitionMonitor
from skebm.samplers import ChainPolicy, Gibbs
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


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
OBJECTIVES: dict[Any, type[BaseEstimator]] = {"likelihood": Likelihood, "discrepancy": Discrepancy}


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
        if "chains" in asked:
            return {"chains": f'objective="{self.name}" has no chains (objective="likelihood" has)'}
        return {}


@shared_docs
class ContrastiveDivergenceDensity(BaseDensity):
    r"""Neural density by maximum likelihood, with contrastive divergence.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad
        \nabla_\theta \log p(x) = -\nabla_\theta f(x) + \mathbb E_p \nabla_\theta f

    A base q is fitted first. A network f that corrects it is then trained by the gradient of the
    log-likelihood, whose second term is estimated from Markov chains; by default they start from
    the base and continue from batch to batch. Rows may be real, binary or one-hot, with any network
    and any sampler for such rows. If there are 50 rows or more, a tenth, at most 100, are held out
    from the network to monitor training. If training diverges, it is rolled back to an earlier
    state and continues with smaller steps.

    Parameters
    ----------
    <<network, sampler>>
    objective : str, Likelihood or Discrepancy, default="likelihood"
        ``"likelihood"``: maximum likelihood; its settings, including penalties, are those of
        :class:`Likelihood`. ``"discrepancy"``: energy discrepancy, without chains, which contrasts
        each row with perturbations of a noisy copy of it [7]_; settings in :class:`Discrepancy`. It
        is suited to tables with few columns, as perturbations carry little information in many.
        ``"pseudo_likelihood"``, ``"ratio_matching"``, ``"probability_flow"``: for bits and
        categories only, without chains. Each row is compared with all rows that differ from it in
        one column (:class:`skebm.objectives.PseudoLikelihood`,
        :class:`~skebm.objectives.RatioMatching`, :class:`~skebm.objectives.ProbabilityFlow`), and
        the network is evaluated at all of these.
    <<chains, domain, categorical_features, base, sigma, deconvolve, bounds, standardize>>
    <<learning_rate, batch_size, n_iter, optimizer, early_stopping, warm_start>>
    <<contamination, partition, compute>>

    Attributes
    ----------
    <<sigma_, base_, units_, row_shape_, log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: ``train_loss`` and ``energy_gap``, both mean E(data) - mean E(chains);
        ``gain_over_base``, the estimated mean log-likelihood ratio to the base, in nats;
        ``acceptance``; learning rate, seconds.
    <<n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    ScoreMatchingDensity : Faster, without sampling in training; for real columns.
    RBMEstimator : Binary rows, with hidden units as features.

    References
    ----------
    .. [1] Hinton (2002), "Training products of experts by minimizing contrastive divergence",
       Neural Computation 14(8).
    .. [2] Du and Mordatch (2019), "Implicit generation and modeling with energy based models",
       NeurIPS.
    .. [3] Du, Li, Tenenbaum and Mordatch (2021), "Improved contrastive divergence training of
       energy-based models", ICML.
    .. [4] Grathwohl, Swersky, Hashemi, Duvenaud and Maddison (2021), "Oops I took a gradient:
       scalable sampling for discrete distributions", ICML.
    .. [5] Carbone, Hua, Coste and Vanden-Eijnden (2023), "Efficient training of energy-based models
       using Jarzynski equality", NeurIPS.
    .. [6] Gabrie, Rotskoff and Vanden-Eijnden (2022), "Adaptive Monte Carlo augmented with
       normalizing flows", PNAS 119(10).
    .. [7] Schröder, Ou, Lim, Li, Vollmer and Duncan (2023), "Energy discrepancies: a
       score-independent loss for energy-based models", NeurIPS.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_moons
    >>> from skebm import ContrastiveDivergenceDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = ContrastiveDivergenceDensity(random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> model.sample(3, random_state=0).shape
    (3, 2)
    >>> model.predict([[0.0, 1.0], [10.0, 10.0]])
    array([ 1, -1])
    """

    _reads_files = True
    _parameter_constraints: dict = (
        DENSITY_CONSTRAINTS
        | NEURAL_CONSTRAINTS
        | {
            "objective": [
                StrOptions({"likelihood", "discrepancy", *LOCAL_RULES}),
                Likelihood,
                Discrepancy,
            ],
            "chains": [StrOptions(set(POLICIES)), ChainPolicy],
            "domain": [StrOptions({"auto", "real", "binary", "mixed"}), Domain],
            "base": BASE,
            "sigma": SIGMA,
            "deconvolve": ["boolean"],
            "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
        }
    )
    _configs = CONFIGS | {
        "objective": lambda value, names: OBJECTIVES[value]() if value in OBJECTIVES else None,
        "chains": lambda value, names: POLICIES[value](),
    }
    _blueprint: NeuralBlueprint

    def __init__(
        self,
        network=None,
        *,
        sampler=None,
        objective="likelihood",
        chains="persistent",
        domain="auto",
        categorical_features="from_dtype",
        base="auto",
        sigma="auto",
        deconvolve=True,
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        batch_size="auto",
        n_iter="auto",
        optimizer=None,
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.sampler = sampler
        self.objective = objective
        self.chains = chains
        self.domain = domain
        self.categorical_features = categorical_features
        self.base = base
        self.sigma = sigma
        self.deconvolve = deconvolve
        self.bounds = bounds
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _accepted_input(self, *, reset: bool) -> dict[str, Any]:
        return accepted_input(self, reset=reset)

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        """Validated X, its categories as codes, nan where missing."""
        kwargs |= {"reset": reset, "min_samples": min_samples}
        if reset:
            self._has_booleans = bool(boolean_columns(X))
        return validate_coded(self, X, super()._validate, Coding.learn, **kwargs)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> FlatTable | ColumnTable:
        free = self.domain == "auto" and self.sampler is None and self.bounds is None
        bits = free and self._has_booleans and not has_only_bits(X)  # beside numbers
        if self._coding is not None or self.domain == "mixed" or bits:
            return learn_column_table(self, X, weight, self._coding)
        return learn_any_table(self, X, weight)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralBlueprint:
        assert isinstance(table, FlatTable | ColumnTable)
        asked = OBJECTIVES[self.objective]() if self.objective in OBJECTIVES else self.objective
        by_chains = isinstance(asked, Likelihood)
        if before is None:
            # A tree would be couplings beside those of a pairwise network.
            pairwise = stays_pairwise(self.network, table.domain, None)
            bases, noise = fit_any_bases(
                self,
                "independent" if pairwise and self.base == "auto" else self.base,
                rows,
                table,
                adds_noise=by_chains,
                deconvolve=self.deconvolve,
                stacks="mixtures" if by_chains else "no",  # kernels would slow the chains down
            )
        else:
            bases, noise = self._blueprint.bases, self._blueprint.noise
        plan = neural_plan(self, rows.n_table, streaming=streaming)
        return NeuralBlueprint(
            table=table,
            plan=plan,
            rule=self._rule(asked, rows, table.domain, bases.noisy, plan, before),
            network_config=network_of(self),
            bases=bases,
            noise=noise,
        )

    def _rule(
        self,
        asked: Any,
        rows: Rows,
        domain: Domain,
        base: Distribution | None,
        plan: TrainingPlan,
        before: EnergyNet | None,
    ) -> Rule:
        sampler = sampler_of(self, domain)
        if self.sampler is None and stays_pairwise(self.network, domain, base):
            sampler = Gibbs()
        if isinstance(asked, str):
            check_neighbouring_states(asked, domain)
            return LocalRule(sampler, asked)
        asked = clone(asked)
        if isinstance(asked, Discrepancy):
            check_discrepancy(self.chains, self.base)
            if isinstance(domain, Mixed):
                raise ValueError(
                    'objective="discrepancy" perturbs rows of one kind of columns: use '
                    '"likelihood".'
                )
            return DiscrepancyRule(sampler, asked)
        chains = resolved_chains(self.chains, min(plan.batch_size, rows.n_table), before)
        anneal = asked.sigma_anneal, plan.n_batches(rows.n_table) // 2
        return LikelihoodRule(sampler, chains, asked, anneal)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = asks_for_bits(self.domain)
        return tags

    # ---------------------------------------------------------------- methods

    sample, impute, denoise = methods.sample, methods.impute, methods.denoise
    score_function = methods.score_function
    _score_and_laplacian = methods._score_and_laplacian
    sampler_, sigma_, base_ = methods.sampler_, methods.sigma_, methods.base_
    units_, row_shape_ = methods.units_, methods.row_shape_


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
