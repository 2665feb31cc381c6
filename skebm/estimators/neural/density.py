"""Neural densities with any objective: the body that all of them share."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import clone

from skebm._validation import StrOptions, boolean_columns, check_constraints
from skebm.base import Domain
from skebm.distributions import Distribution
from skebm.distributions.transformed.flow import FLOWS
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    DENSITY_CONSTRAINTS,
    BaseDensity,
    CategoriesMixin,
    assign_parameters,
)
from skebm.estimators.neural.family import (
    CONFIGS,
    NEURAL_CONSTRAINTS,
    SIGMA,
    NeuralFamily,
    NeuralRecipe,
    asks_for_bits,
    learn_any_table,
    learn_column_table,
    network_of,
    validation_options,
)
from skebm.estimators.neural.model import NeuralMixin
from skebm.estimators.neural.objectives import (
    BY_NAME,
    NeuralObjective,
    TrainingStart,
    objective_of,
)
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.bases import COLUMN_BASES, REAL_BASES, MixtureBase
from skebm.estimators.tables.blocks import check_known, has_only_bits
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.table import Table
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


@insert_shared_docs
class NeuralDensity(CategoriesMixin, NeuralMixin, BaseDensity):
    r"""Neural density with any objective: a network that corrects a base.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad E(x) = -\log q(x) + f(x)

    A base q is fitted first, and a network f that corrects it is trained by the `objective`. The
    model starts as its base. log Z is estimated after training, when it is first needed. If there
    are 50 rows or more, a tenth, at most 100, are held out from the network to monitor training.

    Each objective has an estimator of its own, with the same results, which says in its docstring
    what the objective does and has its parameters beside the others:
    :class:`ScoreMatchingDensity`, :class:`NCEDensity`, :class:`ContrastiveDivergenceDensity` and
    :class:`FlowContrastiveDensity`. This class is for searches over objectives, and for programs
    that get the objective as an argument.

    Parameters
    ----------
    <<network>>
    objective : str or NeuralObjective, default="contrastive_divergence"
        ``"score_matching"`` (:class:`skebm.estimators.ScoreMatching`), for real rows, without
        sampling; ``"nce"`` (:class:`~skebm.estimators.NoiseContrastiveEstimation`), against draws
        of the base, which learns log Z as well; ``"contrastive_divergence"``
        (:class:`~skebm.estimators.ContrastiveDivergenceLearning`), maximum likelihood with chains,
        for columns of any kinds; or ``"flow_contrastive"``
        (:class:`~skebm.estimators.FlowContrastiveEstimation`), against a normalizing flow, for real
        rows. The forms of the first and the third have names too: ``"denoising"``, ``"exact"``,
        ``"sliced"``, ``"multiscale"``; ``"likelihood"``, ``"discrepancy"``,
        ``"pseudo_likelihood"``, ``"ratio_matching"``, ``"probability_flow"``. Parameters of the
        objective can be searched over by ``objective__<name>``.
    sampler : Sampler or None, default=None
        Sampler of the chains, in training if there are any, and for drawing samples. None draws
        samples by proposals of the base where it is near the model, and is otherwise adaptive
        :class:`skebm.samplers.MALA` for real rows (:class:`~skebm.samplers.HMC` with score
        matching), and :class:`~skebm.samplers.GibbsWithGradients` for discrete rows
        (:class:`~skebm.samplers.Gibbs` if the energy is pairwise). Its parameters can be searched
        over by ``sampler__<name>``; a ``sampler__step_size`` that is set while `sampler` is None is
        kept fixed and not adapted.
    domain : {"auto", "real", "binary", "mixed"} or Domain, default="auto"
        Type of the rows. ``"auto"``: real for score matching and against flows; otherwise that of
        the sampler, and if the sampler allows several, rows are binary if all entries in the first
        `fit` are 0 or 1. ``skebm.base.Categorical(groups)`` stands for one-hot columns.
        ``"mixed"``, for contrastive divergence alone: columns of zeros and ones are bits and the
        others numbers.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, for contrastive divergence alone, as in
        :class:`ContrastiveDivergenceDensity`.
    base : str, MixtureBase, Distribution or None, default="auto"
        Base distribution q, as in the estimator of the objective: for ``"nce"`` the noise, which
        may be a flow (``"nsf"``, ``"coupling"``, ``"maf"``) and is never None; for
        ``"flow_contrastive"`` the flow of the objective, so that `base` stays ``"auto"``.
    sigma : float, array-like, "auto", "bandwidth", "kurtosis" or None, default="auto"
        Standard deviation of the Gaussian noise added to real rows in training, or one for each
        column, in standard deviations of the columns (in units of X with ``standardize=False``).
        ``"bandwidth"`` is the bandwidth that maximises the leave-one-out likelihood of a kernel
        density; ``"auto"`` is 0.75 times that bandwidth, between 0.05 and 1, and no noise if there
        are bounds. ``"kurtosis"``, and the pair of ``"multiscale"``, are for score matching alone,
        which cannot do without noise; for the others None adds no noise.
    <<deconvolve>>
    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Bounds (lower, upper) of the columns, with None for an unbounded side. All columns are
        bounded on the same sides. Not for objectives that add noise of themselves (``"denoising"``,
        ``"multiscale"``) nor for flows.
    <<standardize, learning_rate, batch_size>>
    n_iter : int or "auto", default="auto"
        Number of epochs; ``"auto"`` amounts to about a thousand steps (250 with flows), but to at
        most five times as many epochs as there are rows, and to up to eight times as many while
        held-out rows gain.
    <<optimizer, early_stopping, warm_start, contamination, partition, compute>>

    Attributes
    ----------
    <<sigma_, base_, units_, row_shape_, log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses and what else the objective tells, ``gain_over_base``, the
        estimated mean log-likelihood ratio to the base, in nats; learning rate, seconds.
    <<converged_, n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    ScoreMatchingDensity : Score matching.
    NCEDensity : Noise contrastive estimation, with what the classifier says.
    ContrastiveDivergenceDensity : Contrastive divergence.
    FlowContrastiveDensity : Flow contrastive estimation, with the trained flow.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skebm import NeuralDensity
    >>> X, _ = make_moons(400, noise=0.1, random_state=0)
    >>> model = NeuralDensity(base="gaussian", n_iter=20, random_state=0)
    >>> grid = {"objective": ["score_matching", "nce"]}
    >>> search = GridSearchCV(model, grid, cv=2).fit(X)
    >>> bool(search.best_score_ > -1.9)  # nats; a Gaussian has -1.9
    True
    >>> model = NeuralDensity(objective="nce").set_params(objective__noise_ratio=2)
    >>> model.objective
    NoiseContrastiveEstimation(noise_ratio=2)
    """

    _reads_files = True
    _parameter_constraints: dict = (
        DENSITY_CONSTRAINTS
        | NEURAL_CONSTRAINTS
        | {
            "objective": [StrOptions(set(BY_NAME)), NeuralObjective],
            "domain": [StrOptions({"auto", "real", "binary", "mixed"}), Domain],
            "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
            "base": [
                StrOptions({"auto", *REAL_BASES, *COLUMN_BASES, *FLOWS}),
                MixtureBase,
                Distribution,
                None,
            ],
            "sigma": [*SIGMA, StrOptions({"kurtosis"})],
            "deconvolve": ["boolean"],
        }
    )
    _configs = CONFIGS | {"objective": lambda value, names: objective_of(value)}
    # Of subclasses that have the parameters of one objective among their own: that objective, and
    # their names of parameters that have other ones here or in the objective.
    _kind: ClassVar[type[NeuralObjective] | None] = None
    _names: ClassVar[dict[str, str]] = {}
    _recipe: NeuralRecipe
    _first_objective: NeuralObjective
    _coding: Coding | None

    def __init__(
        self,
        network=None,
        *,
        objective="contrastive_divergence",
        sampler=None,
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
        assign_parameters(self, locals())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Kinds of the parameters of a subclass: those of the objective and of this class."""
        super().__init_subclass__(**kwargs)
        if cls._kind is None or "_parameter_constraints" in vars(cls):
            return
        own = {theirs: name for name, theirs in cls._names.items()}
        kinds = NeuralDensity._parameter_constraints | cls._kind.takes
        kinds |= cls._kind._parameter_constraints
        makers = NeuralDensity._configs | cls._kind._configs
        names = {name: own.get(name, name) for name in cls._get_param_names()}
        cls._parameter_constraints = {k: kinds[name] for k, name in names.items() if name in kinds}
        cls._configs = {k: makers[name] for k, name in names.items() if name in makers}

    # ---------------------------------------------------------------- parameters

    def _setting(self, name: str) -> Any:
        """A parameter of this class or of the objective, whatever its name in a subclass.

        It is the default of this class if the subclass has no such parameter.
        """
        own = self._names.get(name, name)
        if own in vars(self):
            return getattr(self, own)
        return inspect.signature(NeuralDensity).parameters[name].default

    def _training_objective(self) -> NeuralObjective:
        """The objective, with its parameters."""
        if self._kind is None:
            return objective_of(self.objective)
        return self._kind(**{name: self._setting(name) for name in self._kind._get_param_names()})

    def _objective_for(self, *, reset: bool) -> NeuralObjective:
        """The objective of the fit to come, or of the one that there is."""
        return self._training_objective() if reset else self._first_objective

    def _domain_setting(self, objective: NeuralObjective) -> Any:
        """The parameter `domain`, as an objective of real rows understands ``"auto"``."""
        domain = self._setting("domain")
        return "real" if objective.of_real_rows and domain == "auto" else domain

    def _config_of(self, owner: str, value: Any, names: set[str]) -> Any:
        if owner == "sampler":
            return self._training_objective().sampler_of_names(value, names)
        return super()._config_of(owner, value, names)

    def _validate_params(self) -> None:
        super()._validate_params()
        if self._kind is None:
            objective = self._training_objective()
            owner = f"{type(self).__name__} with objective={objective}"
            check_constraints(objective.takes, self.get_params(deep=False), owner)

    # ---------------------------------------------------------------- hooks of the base class

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        objective = self._objective_for(reset=reset)
        options = validation_options(self, self._domain_setting(objective), reset=reset)
        return options | ({"ensure_all_finite": "allow-nan"} if objective.takes_holes else {})

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        """Validated X, its categories as codes, nan where missing."""
        kwargs |= {"reset": reset, "min_samples": min_samples}
        if reset:
            self.__dict__.pop("_coding", None)  # of a fit by another objective
        if not self._objective_for(reset=reset).codes_categories:
            return super(CategoriesMixin, self)._validate(X, **kwargs)
        if reset:
            self._has_booleans = bool(boolean_columns(X))
        return super()._validate(X, **kwargs)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        objective, bounds = self._training_objective(), self._setting("bounds")
        domain = self._domain_setting(objective)
        if objective.takes_holes:
            check_known(X, getattr(self, "feature_names_in_", None))
        if objective.codes_categories:
            free = domain == "auto" and self.sampler is None and bounds is None
            bits = free and self._has_booleans and not has_only_bits(X)  # beside numbers
            if self._coding is not None or domain == "mixed" or bits:
                return learn_column_table(self, X, weight, self._coding)
        return learn_any_table(self, X, weight, domain=domain, bounds=bounds)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralRecipe:
        objective, base = self._training_objective(), self._setting("base")
        objective.check(self)
        if before is None:
            self._first_objective = clone(objective)
            known, (bases, noise) = None, objective.fit_bases(self, base, rows, table)
        else:
            objective.check_goes_on(self._first_objective)
            last, bases = self._recipe.family, self._recipe.base
            known, noise = last.rule, last.noise
        plan = objective.plan(self, rows.n_table, streaming=streaming)
        start = TrainingStart(rows, table, plan, base, bases, noise, known, before)
        family = NeuralFamily(objective.rule(self, start), network_of(self), noise)
        return Recipe(table, plan, bases, family)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = asks_for_bits(self._setting("domain"))
        return tags

    # ---------------------------------------------------------------- methods

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
        n_steps: int = 100,
    ) -> np.ndarray:
        r"""Draw rows from the model, :math:`p(x)^{1/T}` normalised, or given some of its columns.

        Draws of the base are resampled by importance weights, so that modes have the right
        probabilities, and then moved by `n_steps`: of independence sampling, whose proposals are
        draws of the base, if at least a fifth of these count, and otherwise, or if a sampler was
        named, of the sampler. Samples are approximate, and exact in the limit of many draws and
        steps. Without a base near the model, chains start from
        training chains or training rows. A model with several noise levels is sampled by annealed
        Langevin dynamics from Gaussian noise.

        At temperatures other than 1, the covariances of a normal base, of a mixture of normals and
        of kernels are multiplied by T. Other bases and training rows are used unchanged, and are
        then further from the model. If the tails of p(x) fall as a power of x, its power 1 / T may
        not be normalisable for T above 1, which raises a `ValueError`.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy is divided: above 1 rows are more random, below 1 nearer to
            the most probable ones.
        given : array-like of shape (n_features,) or None, default=None
            A row whose known entries are fixed, and whose NaN entries are drawn.
        n_steps : int, default=100
            Number of steps of the chains, after as many adaptation steps.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        return self._draw_rows(n_samples, random_state, temperature, given, n_steps)
