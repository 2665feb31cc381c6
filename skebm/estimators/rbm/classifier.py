"""Classification restricted Boltzmann machine as a scikit-learn estimator."""

from __future__ import annotations

import functools
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import (
    clone,
)
from torch import Tensor

from skebm._validation import Interval, StrOptions, check_is_fitted
from skebm.distributions import Distribution
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    JOINT_CONSTRAINTS,
    BaseEBM,
    assign_parameters,
    draw_seed,
    fraction_of_early_stopping,
)
from skebm.estimators.classifiers import (
    ProbabilisticClassifierMixin,
    class_weights,
)
from skebm.estimators.rbm.class_family import (
    PRECONDITION,
    ClassFamily,
    ClassRecipe,
    chooses_weight,
    class_chains,
    class_plan,
    epochs_by_folds,
    is_judged_in_fit,
    p_by_trial,
    takes_folds,
    usual_weight,
    weight_by_trials,
)
from skebm.estimators.rbm.drawing import LayersMixin, draw_visible
from skebm.estimators.rbm.family import GibbsChains, check_units
from skebm.estimators.rbm.missing import log_sums
from skebm.estimators.rbm.safety import N_HELD_OUT
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.bases import COLUMN_BASES, check_base_stays
from skebm.estimators.tables.table import Table, fit_table_base, learn_columns
from skebm.objectives import Centering, Penalty
from skebm.samplers import ChainPolicy, Gibbs, Persistent
from skebm.training import SGD, EarlyStopping
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Number of hidden units of "auto".
N_HIDDEN = 100


@insert_shared_docs
class RBMClassifier(ProbabilisticClassifierMixin, LayersMixin, BaseEBM):
    r"""Classification restricted Boltzmann machine: exact class probabilities and a density.

    .. math::
        p(x, y, h) = \frac1Z e^{-E(x, h) + d_y + h^\top U_y}, \qquad
        p(y \mid x) = \mathrm{softmax}_y
        \Bigl(d_y + \sum_j \log\bigl(1 + e^{c_j + W_j x + U_{jy}}\bigr)\Bigr)

    This is a restricted Boltzmann machine of rows and their classes [1]_. It classifies by exact
    probabilities, has a normalised density p(x) in which the classes are summed out, draws rows of
    a given class, learns from unlabelled rows as well, and provides features. :class:`RBMEstimator`
    is the same model without classes.

    Columns become visible units as in :class:`RBMEstimator`: values in [0, 1] are probabilities of
    bits if they vary like these, other numbers are standardised and have Gaussian units, and
    categories have softmax units. If training diverges, it is rolled back to an earlier state and
    continues with smaller steps.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of hidden units, H; ``"auto"`` is 100.
    objective : {"hybrid", "discriminative", "generative"}, default="hybrid"
        What is minimised: :math:`-\log p(y \mid x) - \lambda \log p(x)` on average, with
        :math:`\lambda` = 0 for ``"discriminative"``, `generative_weight` for ``"hybrid"``, and 1
        for ``"generative"``, so that the sum is then :math:`-\log p(x, y)`. The first term and its
        gradient are exact; the gradient of the second is estimated by contrastive divergence.
    generative_weight : float in (0, 1) or "auto", default="auto"
        :math:`\lambda` of ``"hybrid"``, which equals :math:`\alpha / (1 + \alpha)` with the
        :math:`\alpha` of [1]_. ``"auto"``: of 0.03, 0.1 and 0.3, that with which held-out rows are
        most likely after a short training; 0.1 and 0.3 only where the cross-entropy of these rows
        is then at most 0.01 nats above that with 0.03, to within a standard error. It is 0.03 with
        less than 60 labelled rows and in streams. If less than a fifth of the rows have a label, it
        is 0.03 if all columns are bits, 0.1 with numbers or categories.
    unlabeled : label or None, default=None
        Label of rows whose class is unknown, which contribute to p(x) only. None: all are labelled.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the cross-entropy; they do not affect p(x).
    learning_rate : float or "auto", default="auto"
        Learning rate. ``"auto"``: 5 if all columns are bits, 1 with numbers or categories, or
        :math:`0.15 / \lambda` if that is smaller; it decays linearly to a hundredth of this value.
    batch_size : int or "auto", default="auto"
        Maximum number of rows per step; ``"auto"`` is 100.
    n_iter : int or "auto", default="auto"
        Number of epochs; ``"auto"`` amounts to 3,000 steps, but at least 20 epochs. With up to
        3,000 rows, of which at least a fifth have a label, it is instead the number with the lowest
        cross-entropy in a three-fold cross-validation on the labelled rows, which trains for 1,000
        steps, but at least 20 epochs.
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    chains : Persistent, FromData or None, default=None
        Chains of p(x): persistent (None is ``Persistent(n_steps=1)``) or started at the data, as in
        :class:`RBMEstimator`.
    base : str or Distribution, default="independent"
        Base q of p(x), which the RBM corrects, as in :class:`RBMEstimator`:
        ``"independent"``, ``"chow-liu"``, ``"block-tree"``, ``"gaussian"``, ``"latent-classes"`` or
        a distribution. It does not enter p(y | x).
    centering : Centering, "auto" or None, default="auto"
        Centre the units, classes among them, in the gradient; ``"auto"`` is
        ``Centering(precondition=0.25)``, without preconditioning if `learning_rate` is set. See
        :class:`skebm.objectives.Centering`.
    penalty : Penalty or None, default=None
        ``Penalty(l1=0, l2=0)`` on the weights of rows and classes, see
        :class:`skebm.objectives.Penalty`; `sparsity_target` is not available.
    optimizer : SGD or None, default=None
        Momentum, learning rate schedule, weight averaging and roll-backs; None is
        :class:`skebm.training.SGD` with its default settings.
    visible : {"auto", "bernoulli", "probabilities"}, default="auto"
        ``"auto"``: columns of zeros and ones are bits, other columns numbers; values in [0, 1] are
        probabilities of bits if X has no others and their variance is at least 0.3 times that of
        bits with the same means (grey values of digits, not of faces). Otherwise as in
        :class:`RBMEstimator`. ``"bernoulli"``: all columns that are not categorical are
        probabilities of bits, min-max scaled with a warning where values are outside [0, 1].
        ``"probabilities"``: such values raise an error.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, as in :class:`RBMEstimator`.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the cross-entropy of held-out labelled rows no longer improves, and keep the best
        weights; settings in :class:`skebm.training.EarlyStopping`.
    warm_start : bool, default=False
        Continue from the weights and chains of the previous `fit`, with the same classes.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z of p(x) is estimated, when it is first needed, as in :class:`RBMEstimator`. None:
        log Z is not estimated; `score_samples` is then -E(x).
    sampler : Sampler or None, default=None
        Sampler of p(x); None is :class:`skebm.samplers.Gibbs`.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation.
    <<net_params>>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    density_ : {"model", "base"}
        What p(x) is: the model, or the base alone. It is the base after discriminative training,
        and if held-out rows gain too little over it: those that early stopping holds out, or a
        tenth, 500 at most. Of up to 3,000 rows, a trial on the other rows is judged, by 60 rows or
        a third, so that the class probabilities lose none; of more, those rows are left out of the
        fit.
    generative_weight_ : float
        :math:`\lambda`.
    base_ : Distribution
        The fitted base.
    components_, class_components_ : ndarray of shape (H, n_visible) and (H, n_classes)
        Weights W and U, read-only.
    <<log_partition>>
    history_ : list of dict
        One entry per epoch: ``cross_entropy`` and ``accuracy`` on a hundred training rows (no
        accuracy if none of these has a label); energy gap, reconstruction error; learning rate,
        seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, and number of roll-backs.
    energy_, net_ : ClassRBM, EnergyNet
        The energy of p(x) as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    JEMClassifier : The same with a neural network in place of the hidden units.
    RBMEstimator : A restricted Boltzmann machine without classes.

    References
    ----------
    .. [1] Larochelle, Mandel, Pascanu and Bengio (2012), "Learning algorithms for the
       classification restricted Boltzmann machine", JMLR 13. Larochelle and Bengio (2008),
       "Classification using discriminative restricted Boltzmann machines", ICML.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skebm import RBMClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> X = X / 16  # pixels as probabilities of bits
    >>> model = RBMClassifier(n_iter=20, random_state=0).fit(X[:1500], y[:1500])
    >>> bool(model.score(X[1500:], y[1500:]) > 0.85)
    True
    >>> model.sample(2, y=3, random_state=0).shape
    (2, 64)
    """

    _parameter_constraints: dict = JOINT_CONSTRAINTS | {
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "objective": [StrOptions({"hybrid", "discriminative", "generative"})],
        "generative_weight": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "unlabeled": "no_validation",  # a label of any type
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "chains": [ChainPolicy, None],
        "base": [StrOptions(set(COLUMN_BASES)), Distribution],
        "centering": [Centering, StrOptions({"auto"}), None],
        "penalty": [Penalty, None],
        "optimizer": [SGD, None],
        "visible": [StrOptions({"auto", "bernoulli", "probabilities"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
    }
    _configs = {
        "chains": lambda value, names: Persistent(n_steps=1),
        "sampler": lambda value, names: Gibbs(),
        "centering": lambda value, names: Centering(),
        "penalty": lambda value, names: Penalty(),
        "optimizer": lambda value, names: SGD(),
        "early_stopping": lambda value, names: EarlyStopping(),
    }
    _recipe: ClassRecipe
    _density_alone = "RBMEstimator"

    def __init__(
        self,
        n_components="auto",
        *,
        objective="hybrid",
        generative_weight="auto",
        unlabeled=None,
        class_weight=None,
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        chains=None,
        base="independent",
        centering="auto",
        penalty=None,
        optimizer=None,
        visible="auto",
        categorical_features="from_dtype",
        early_stopping=False,
        warm_start=False,
        partition="auto",
        sampler=None,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- hooks of the base class

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {"accept_sparse": "csr"}

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        return learn_columns(self, X, weight, narrow_are_numbers=True)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> ClassRecipe:
        weight, seed = usual_weight(self, rows, table.domain), None
        if before is None:
            if is_judged_in_fit(self, weight, rows, streaming=streaming):
                seed = draw_seed(self.random_state_)
            base = fit_table_base(self.base, rows, table)
            name = self.base if isinstance(self.base, str) else None
        else:
            base, name = self._recipe.base, self._recipe.base_name
            check_base_stays(self.base, base, name)
            if self.objective == "hybrid" and self.generative_weight == "auto":
                weight = self._recipe.family.generative_weight or weight
        plan = class_plan(self, weight, rows, table.domain, streaming=streaming)
        n_hidden = N_HIDDEN if self.n_components == "auto" else int(self.n_components)
        check_units(n_hidden, n_hidden, rows, plan.batch_size)
        if self.penalty is not None:
            self.penalty.check()
        sampler = None if self.sampler is None else clone(self.sampler)
        family = ClassFamily(
            n_hidden=n_hidden,
            n_classes=len(self.classes_),
            generative_weight=weight,
            class_weight=class_weights(self.class_weight, self.classes_, rows),
            chains=GibbsChains(sampler, class_chains(self.chains, plan.batch_size)),
            centering=self._centering(),
            penalty=None if self.penalty is None else clone(self.penalty),
            p_is_base=not weight,
        )
        more: dict[str, Any] = {"n_guards": N_HELD_OUT, "guard_seed": seed}
        found = Recipe(table, plan, base, family, base_name=name, **more)
        return found if before is not None or streaming else self._by_trials(found, rows)

    def _with_weight(self, found: ClassRecipe, rows: Rows, weight: float) -> ClassRecipe:
        """The recipe with another weight of -log p(x), and the learning rate that goes with it."""
        plan = class_plan(self, weight, rows, found.table.domain, streaming=False)
        return replace(found.with_settings(generative_weight=weight), plan=plan)

    def _by_trials(self, found: ClassRecipe, rows: Rows) -> ClassRecipe:
        """The recipe with weight, epochs, and what p(x) is, as parts of the rows choose."""
        # Drawn in any case: with the weight that would be chosen, all that follows is the same.
        seed = draw_seed(self.random_state_)
        if chooses_weight(self, rows):
            of_weight = functools.partial(self._with_weight, found, rows)
            found = of_weight(weight_by_trials(of_weight, rows, seed, self.net_params))
        if takes_folds(self, rows):
            generator = torch.Generator(rows.device).manual_seed(draw_seed(self.random_state_))
            found = found.with_epochs(epochs_by_folds(found, rows, generator, self.net_params))
        by_fit = (
            found.guard_seed is not None
            or fraction_of_early_stopping(self.early_stopping) is not None
        )
        if found.family.p_is_base or by_fit:
            return found
        base_of = functools.partial(fit_table_base, self.base, table=found.table)
        return p_by_trial(found, base_of, rows, draw_seed(self.random_state_), self.net_params)

    def _centering(self) -> Centering | None:
        if self.centering is None or isinstance(self.centering, Centering):
            return None if self.centering is None else clone(self.centering)
        free = (self.net_params or {}).get("lr", self.learning_rate) == "auto"
        return Centering(precondition=PRECONDITION if free else 0.0)

    # ---------------------------------------------------------------- classes

    def logits(self, X: Any) -> np.ndarray:
        """log p(x, y) of all classes up to a function of x, in nats.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._of_rows(X, self._logits_of)

    def _logits_of(self, rows: Rows) -> np.ndarray:
        energy = self._scoring_energy(self._energy_of_net)
        found = rows.map(energy.class_logits, energy.domain.n_columns).double().numpy()
        return self._recipe.table.check_finite(found, rows, "the logits")

    def _log_class_proba(self, x: Tensor) -> Tensor:
        return self._energy_of_net.log_class_proba(x)

    def _log_class_proba_of_known(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.density_ == "base":
            return super()._log_class_proba_of_known(x, generator)
        energy, known, groups = self._energy_of_net, ~x.isnan(), self._recipe.table.groups
        parts = []
        for k in range(energy.n_classes):
            of_class = energy.given(k)
            sums = log_sums(of_class, of_class.base, x.nan_to_num(), known, groups, generator)
            parts.append(sums.value + energy.class_bias[k])
        return torch.stack(parts, 1)

    # ---------------------------------------------------------------- features and samples

    def transform(self, X: Any) -> np.ndarray:
        """Probability that each hidden unit is on, p(h_j = 1 given x), the class summed out.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            In the precision of X.
        """
        check_is_fitted(self)
        return self._over_blocks(X, self._hidden_means)

    def _hidden_means(self, X: Any) -> np.ndarray:
        X = self._validate(X)
        rows = self._rows_of(X)
        energy = self._scoring_energy(self._energy_of_net)
        n = energy.n_classes
        features = rows.map(lambda x: energy.hidden(x).mean[:, n:], energy.domain.n_columns)
        found: np.ndarray = features[:, : self._n_features_out].numpy()
        return found.astype(X.dtype, copy=False)

    def sample(
        self,
        n_samples: int = 1,
        y: Any = None,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
        n_steps: int = 1000,
    ) -> np.ndarray:
        r"""Draw rows from p(x) or p(x | y), to the power of 1 / T and normalised.

        The rows are exact and independent if the states of a layer can be enumerated (at most 1e7
        terms), or if p(x) is the base. Otherwise they are the final states of Gibbs chains of
        `n_steps` steps, and approximate if the chains have not converged. The chains start from the
        persistent chains or training rows; for rows of a class, these are drawn in proportion to
        p(y | x).

        Parameters
        ----------
        n_samples : int, default=1
        y : label, array-like of shape (n_samples,) or None, default=None
            Class of all rows, or of each; None draws from p(x).
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy of both layers is divided, as in :class:`RBMEstimator`. For
            rows of a class it must be 1 unless p(x) is the model (see `density_`).
        given : array-like, data frame, dict or None, default=None
            A row whose known entries are fixed, and whose missing entries, NaN, are drawn by
            chains; frames and dicts may leave columns out. Or `n_samples` such rows. Only without
            `y`.
        n_steps : int, default=1000
            Gibbs steps of the chains, if they are needed.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        return self._draw_labelled(n_samples, y, random_state, temperature, given, n_steps)

    def _draw_class(
        self, code: int, n: int, generator: torch.Generator, n_steps: int, temperature: float
    ) -> Tensor:
        if self.density_ == "base":
            return self._draws_by_rejection(code, n, generator, temperature)

        def starts(n: int, generator: torch.Generator, temperature: float) -> Tensor:
            rows = self._starts()(n, generator, temperature)
            share = self._energy_of_net.log_class_proba(rows)[:, code].double().softmax(0)
            pick = torch.multinomial(share, len(rows), replacement=True, generator=generator)
            return rows[pick]

        how: dict[str, Any] = {"n_steps": n_steps, "temperature": temperature}
        rbm = self._energy_of_net.given(code)
        return draw_visible(
            rbm, self._recipe.family.chains.layer_sampler, starts, n, generator, **how
        )

    @torch.no_grad()
    def _draws_by_rejection(
        self, code: int, n: int, generator: torch.Generator, temperature: float
    ) -> Tensor:
        """Draws of the base, each accepted with its probability of the class: exact."""
        if temperature != 1:
            raise ValueError(
                f"temperature={temperature} with y needs a model of p(x), and here p(x) is the "
                'base: use temperature=1.0, or objective="hybrid".'
            )
        energy, kept, left = self._energy_of_net, [], n
        # Draws of the base, of which those of a class are kept, at most so many for each that is
        # wanted.
        most_rejected = 10_000
        for _ in range(most_rejected):
            x = energy.base.sample(max(n, 100), generator).to(energy.weight)
            p = energy.log_class_proba(x)[:, code].exp()
            kept.append(x[torch.rand(p.shape, generator=generator, device=p.device) < p][:left])
            left -= len(kept[-1])
            if not left:
                return torch.cat(kept)
        raise ValueError(
            f"Of {most_rejected * max(n, 100)} draws of the base less than {n} are of class "
            f'{self.classes_[code]!r}: fit with objective="hybrid" to draw its rows.'
        )

    # ---------------------------------------------------------------- fitted attributes

    @property
    def density_(self) -> str:
        """What p(x) is, the model or the base."""
        check_is_fitted(self)
        return "base" if self._recipe.family.p_is_base else "model"

    @property
    def generative_weight_(self) -> float:
        """Weight of -log p(x) in training."""
        check_is_fitted(self)
        return self._recipe.family.generative_weight

    @property
    def components_(self) -> np.ndarray:
        """Weights W of the rows, (H, n_visible)."""
        return self._parameter_array("weight")

    @property
    def class_components_(self) -> np.ndarray:
        """Weights U of the classes, (H, n_classes)."""
        return self._parameter_array("class_weight")
