"""Restricted Boltzmann machine as a scikit-learn estimator."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from skebm._validation import Interval, MinMax, StrOptions, check_is_fitted, warn
from skebm.base import Binary, BipartiteEnergy, SettingWarning
from skebm.base.sampler import number_in, whole_number
from skebm.distributions import Distribution
from skebm.energies import Tilted, TrajectoryEnergy
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    DENSITY_CONSTRAINTS,
    BaseDensity,
    LogZ,
    assign_parameters,
    atomic,
    chain_rows,
)
from skebm.estimators.rbm.choice import PLAIN
from skebm.estimators.rbm.drawing import BLOCK, LayersDensityMixin
from skebm.estimators.rbm.family import GIVEN, RBMRecipe, design_recipe
from skebm.estimators.rbm.hidden import BinaryLayer, BinaryUnits, HiddenLayer, HiddenUnits
from skebm.estimators.rbm.missing import hidden_means
from skebm.estimators.tables.bases import COLUMN_BASES
from skebm.estimators.tables.blocks import ProbabilityBlock
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.frames import as_given
from skebm.estimators.tables.table import Table
from skebm.objectives import Centering, Penalty
from skebm.objectives.local import LOCAL_RULES
from skebm.samplers import ChainPolicy, FromData, Gibbs, Persistent
from skebm.training import SGD, EarlyStopping
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Gibbs steps for the features of rows with missing entries.
N_MEAN_STEPS = 100


def _takes_bits(model: RBMEstimator) -> bool:
    """Whether columns may be bits; `AttributeError` that says so otherwise."""
    if not model._kind.takes_bits:
        raise AttributeError(f"Columns are numbers, as the model has {model._kind.name}.")
    return True


def _has_bits_only(model: RBMEstimator) -> bool:
    """Whether noise can flip every column; `AttributeError` that says so otherwise."""
    if model.__sklearn_is_fitted__() and not isinstance(model._recipe.table.domain, Binary):
        raise AttributeError("denoise is for binary columns only, which noise flips.")
    return _takes_bits(model)


def _array(name: str, doc: str) -> property:
    """A parameter of the energy as a read-only array, which a whole array may be assigned to."""

    def parameter(self: RBMEstimator) -> str:
        """Its name in the energy."""
        found = self._kind.arrays.get(name)
        if found is None:
            raise AttributeError(f"There is no {name}, as the model has {self._kind.name}.")
        return found

    def get(self: RBMEstimator) -> np.ndarray:
        return self._parameter_array(parameter(self))

    def assign(self: RBMEstimator, value: Any) -> None:
        check_is_fitted(self)
        old = getattr(self.energy_, parameter(self))
        new = torch.as_tensor(np.array(value), dtype=old.dtype, device=old.device)
        if new.shape != old.shape:
            raise ValueError(f"Expected an array of shape {tuple(old.shape)}, got {new.shape}.")
        with torch.no_grad():
            old.copy_(new)
        self._log_z = LogZ()

    return property(get, assign, doc=doc)


@insert_shared_docs
class RBMEstimator(LayersDensityMixin, BaseDensity):
    r"""Restricted Boltzmann machine: features, a density, imputations and anomaly scores.

    .. math::
        p(x) = \frac{1}{Z} \sum_h e^{-E(x, h)}, \qquad
        E(x, h) = -b^\top x - c^\top h - h^\top W x .

    It can replace :class:`sklearn.neural_network.BernoulliRBM`, whose parameters have the same
    meaning here. In addition it offers normalised log-likelihoods with error estimates, exact
    learning if the states can be enumerated, centred gradients, sampling, imputation, outlier
    labels, sample weights and GPU support.

    Tables may also contain numbers and categories, which become Gaussian and softmax units (see
    `visible` and `categorical_features`); likelihoods are in the units of X. Entries may be missing
    (nan, None, pandas.NA) in `fit`, `score_samples`, `score`, `energy`, `predict`, `transform` and
    `impute`. Training then maximises the likelihood of the known entries, and the likelihood of a
    new row is that of its known entries (:meth:`log_marginal` also returns its error).

    What it is for is decided by the method that fits it: :meth:`fit` fits a density, and
    :meth:`fit_transform`, which pipelines call, features for the next step. `aim` sets it.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of hidden units, H. If held-out rows may choose (see Notes) and training takes 10,000
        steps, or is exact, ``"auto"`` is the one of 64, 256 and 16 with which these rows are most
        likely after a part of the epochs; otherwise it is 256, as in `BernoulliRBM`. See
        `n_components_`.
    hidden : "binary", Subspace or SpikeSlab, default="binary"
        Hidden units: independent bits; ``Subspace(n_subspace=4, features="gates")``, gates with a
        subspace of units each (:class:`skebm.estimators.Subspace`, the model of
        :class:`SubspaceRBM`); or ``SpikeSlab(features="spikes")``, which change the covariance of
        real columns (:class:`skebm.estimators.SpikeSlab`, the model of :class:`SpikeSlabRBM`).
        Parameters can be searched over by ``hidden__<name>``. What these units take and what
        ``"auto"`` is for them is on their pages.
    learning_rate : float or "auto", default="auto"
        Learning rate. ``"auto"``: 0.1 (0.3 if the base is a tree), decaying linearly to a
        hundredth of that; or L-BFGS with a line search, if learning is exact and
        neither `batch_size` nor a momentum is set.
    batch_size : int or "auto", default="auto"
        Maximum number of rows per step; the sizes of batches differ by at most one. ``"auto"``:
        100, or less (down to 10) if there would otherwise be fewer than 10,000 steps in `n_iter`
        epochs, or fewer than ten in a call of `partial_fit`; all rows with L-BFGS.
    n_iter : int or "auto", default="auto"
        Number of epochs (iterations with L-BFGS). ``"auto"``: 10,000 steps, or 1,000 epochs if that
        is less and steps are slow, as of numbers or missing entries, and up to eight times 10,000
        while held-out rows gain (see Notes); or as many as take 2e11 multiplications if columns
        times hidden units times rows of a batch exceed 2e7, but at least 10 epochs. With fewer than
        200 rows, PCD and CD take at most 500 epochs; models of the two halves of the rows determine
        how many (see Notes), possibly 0. L-BFGS takes up to 500 iterations; halves and the `tol` of
        `early_stopping` end it sooner.
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    learning : str, default="auto"
        Learning rule. ``"pcd"``, ``"cd"``: persistent contrastive divergence and contrastive
        divergence. ``"exact"``: the likelihood gradient by enumeration, which is possible if the
        number of terms, states of the smaller layer times units of the other, is at most 1e8.
        ``"pseudo_likelihood"``, ``"ratio_matching"``, ``"probability_flow"``: rules for bits and
        categories that compare each row with those that differ from it in one column
        (:class:`skebm.objectives.PseudoLikelihood`, :class:`~skebm.objectives.RatioMatching`,
        :class:`~skebm.objectives.ProbabilityFlow`). They need neither chains nor log Z, but a step
        takes as many times longer as there are columns. ``"auto"`` is the rule that matches
        `chains`. If `chains` is None, it is exact up to 1e7 terms (3e4 if `learning_rate`,
        `batch_size` or a momentum is given, and in `partial_fit`), and PCD beyond.
    chains : Persistent, FromData or None, default=None
        Chains of PCD and CD: ``Persistent(n_steps=1, n_chains=None, reweight=False)`` and
        ``FromData(n_steps=1)`` (:mod:`skebm.samplers`). `n_steps` is the number of Gibbs steps per
        batch, the k of PCD-k and CD-k. `n_chains` defaults to the batch size, and to at least 500
        with `reweight`, which weights the chains by Jarzynski's equality
        (:class:`skebm.objectives.Walkers`). Gradients are then consistent however slowly the chains
        mix, and `history_` contains a running log-likelihood, which `early_stopping` uses. A step
        takes about 1.5 times as long. If chains cannot follow large steps, the running value is too
        high by many nats: compare it with `score`. Parameters can be searched over by
        ``chains__<name>``.
    base : str or Distribution, default="auto"
        Base q that the RBM corrects, E(x) = -log q(x) + F(x); it is fitted first and then fixed:
        ``"auto"``, ``"independent"``, ``"chow-liu"``, ``"block-tree"``, ``"gaussian"`` or
        ``"latent-classes"``. With independent columns the model is the usual RBM, whose visible
        biases start at the log-odds of the data. ``"chow-liu"`` is the maximum-likelihood tree of
        pairwise dependences, and ``"block-tree"`` a tree whose nodes are blocks of up to three
        dependent columns, as in one-hot codes. The hidden units then model what a tree cannot.
        Categories are nodes of both trees, which then have no blocks; real columns are independent
        of the tree and of each other. ``"gaussian"`` has the full covariance of the real columns.
        ``"latent-classes"`` is a mixture of independent columns of all kinds, for tables that do
        not consist of bits alone; held-out rows choose its number of classes
        (:class:`skebm.distributions.LatentClasses`). ``"auto"`` is independent columns, unless
        held-out rows are more likely, beyond the error of the difference, with another base after a
        tenth of the epochs than with independent columns after half of them; this is compared only
        if held-out rows guard the training (see Notes), or if there are more than four columns for
        each hidden unit. `base_reason_` gives the result. Any
        distribution of :mod:`skebm.distributions` with exact conditionals and a positive
        probability for every row of X can be passed, too.
    centering : Centering, "auto" or None, default="auto"
        Centre the units in the gradient of the stochastic rules, which keeps the fixed points,
        improves the conditioning, and makes training invariant to exchanging zeros and ones.
        ``"auto"`` is ``Centering(precondition=0.5)``, which also divides the gradient of the
        contrastive rules by powers of the units' variances relative to 1/4, so that rare units
        learn as fast as frequent ones; there is no such preconditioning if `learning_rate` is set.
        None uses the gradient of scikit-learn. See :class:`skebm.objectives.Centering`.
    penalty : Penalty or None, default=None
        ``Penalty(l1=0, l2=0, sparsity_target=None, sparsity_cost=0.1)``: l1 * sum of absolute
        weights, l2 / 2 * sum of squared weights, and a penalty that draws the mean activations of
        hidden units to a target. Every learning rule adds them to the mean negative log-likelihood
        of a row. Against overfitting, try l1 = 3e-4 on images and l2 = 20 / n on small tables. With
        l1 the initial weights are larger, since small ones would all end at 0. Its parameters can
        be searched over by ``penalty__<name>``. See :class:`skebm.objectives.Penalty`.
    optimizer : SGD or None, default=None
        Momentum, learning rate schedule, weight averaging, roll-backs and `max_time`; None is
        :class:`skebm.training.SGD` with its default settings. With a `max_time` below a minute,
        base and hidden units are not chosen: they are independent columns, and 256.
    aim : {"auto", "density", "features"}, default="auto"
        What the model is for, which decides what ``"auto"`` is for other parameters. For features
        the base is independent columns, there are 256 hidden units, and training takes 10 epochs,
        but at least 5,000 steps, by PCD, of bits with 10 rows and without centring. Nothing is
        chosen or guarded by held-out rows, and rows are less likely than by ``"density"``.
        ``"auto"`` is features in :meth:`fit_transform` with 200 rows or more, which is what a
        :class:`~sklearn.pipeline.Pipeline` calls, and a density in :meth:`fit` and `partial_fit`;
        so ``fit_transform(X)`` is not ``fit(X).transform(X)``, unless `aim` is set. See `aim_`.
    visible : {"auto", "bernoulli", "probabilities"}, default="auto"
        Visible units of the columns that are not categorical. ``"auto"``: Bernoulli units if all
        values are in [0, 1], as in `BernoulliRBM`. Otherwise columns of zeros and ones are
        Bernoulli units, and the others Gaussian units of standardised values, whose means and
        variances are learned. ``"bernoulli"``: all of them are Bernoulli units, as the columns of
        sparse X always are; columns with values outside [0, 1] are min-max scaled, with a warning
        that names them, and later values out of range are clipped, also with a warning.
        ``"probabilities"``: Bernoulli units, and values outside [0, 1] raise an error.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, which are softmax units: names, numbers or a boolean mask.
        ``"from_dtype"``: columns of frames that hold text or are of a categorical type, and columns
        of object arrays that hold other values than numbers. None: no column is categorical.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the score on held-out rows no longer improves, and keep the best weights. The
        score is the log-likelihood if learning is exact, the objective of the rule for rules
        without chains, and the pseudo-likelihood otherwise. Settings are in
        :class:`skebm.training.EarlyStopping`; its patience and tolerance, applied to the training
        loss, also stop L-BFGS without held-out rows.
    warm_start : bool, default=False
        Continue from the weights and chains of the previous `fit`.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training rows that `predict` classifies as outliers; ``"auto"`` is 0.1. If
        the model overfits, the fraction is larger among new rows.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: exactly, if the enumeration has
        at most 1e9 terms or the graph of the weights has no loops, otherwise by
        :class:`skebm.partition.AISBracket` (see :func:`skebm.partition.choose`);
        `log_partition_method_` gives the reason. None: log Z is not estimated; `score_samples` is
        then -F(x) and `score` the mean pseudo-likelihood.
    sampler : Sampler or None, default=None
        Sampler of binary rows; None is :class:`skebm.samplers.Gibbs`. If chains mix slowly, try
        ``Gibbs(n_collapsed=k)`` for few units, or :class:`skebm.samplers.ParallelTempering`.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation; outputs of `transform` have that of X.
    <<net_params>>

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_visible)
        Weights W, a read-only view; to change it, assign a whole array, as for the biases. With
        categorical or Gaussian units the `n_visible` entries are the bits, followed by one entry
        for each level of a category, and by the real columns. Of shape (n_components, n_subspace,
        n_visible) with subspaces.
    intercept_hidden_, intercept_visible_ : ndarray of shape (n_components,) and (n_visible,)
        Biases c and b, in addition to those of the base if not all units are Bernoulli units. With
        subspaces there are, instead of c, `intercept_gates_` (n_components,) and `intercept_units_`
        (n_components, n_subspace).
    slab_mean_, log_precision_, filters_ : ndarray
        Of spikes and slabs alone, see :class:`SpikeSlabRBM`.
    h_samples_ : ndarray of shape (n_chains, n_components)
        Hidden units of the persistent chains; for the other rules, draws from the model.
    <<log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses, energy gap, reconstruction error, learning rate, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, including those of earlier warm starts and of `partial_fit`, and number of
        roll-backs.
    learning_, learning_rate_, batch_size_, n_chains_ : str, float, int, int
        Values used for ``"auto"``. `learning_rate_` is nan with L-BFGS.
    centered_, precondition_ : bool, float
        Whether the gradient is centred (never with L-BFGS), and its preconditioning.
    base_ : Distribution
        The fitted base.
    n_components_ : int
        Number of hidden units.
    aim_ : {"density", "features"}
        What the model was fitted for.
    base_name_, base_reason_ : str
        Name of the base (``"given"`` for a distribution that was passed), and why the base and the
        number of hidden units were chosen.
    scaling_ : MinMax
        Columns of Bernoulli units that were scaled, their minima and ranges; only if all units are
        Bernoulli units.
    sampler_, energy_, net_ : Sampler, BernoulliRBM or MixedRBM, EnergyNet
        The sampler, the energy as a torch module (a SubspaceEnergy or SpikeSlabEnergy of other
        hidden units), and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    SubspaceRBM, SpikeSlabRBM : The same models with the defaults that suit them.
    DeepBeliefNetwork : RBMs on top of each other.
    sklearn.neural_network.BernoulliRBM : PCD-1 without a likelihood.

    Notes
    -----
    **Held-out rows guard the training** if there are 200 rows or more and steps are stochastic,
    whatever else is set. A tenth of the rows, at most 500, is then not trained on (those of
    `early_stopping` if that is set, which judge the end alone). Twenty times during a fit, less
    often if `learning_rate` or `batch_size` is given and there are few steps, the log-likelihood
    ratio of these rows to the base is estimated by annealing from the base and from the uniform
    distribution (``gain_over_base`` and ``gain_error`` in `history_`). Annealing finds modes that
    chains near the data never visit; up to half of the chains continue from the annealed rows.
    After a loss of more than half a nat, training continues from the best weights at half the
    learning rate. `fit` does not keep weights that are clearly worse than earlier ones. The model
    is its base, with a `TrainingWarning`, if these rows gain less by it than a base of all rows is
    expected to, plus half a standard error.

    **Held-out rows choose** the base, the number of hidden units and, where the likelihood is exact
    for few hidden units, between it and PCD, if these, `learning_rate` and `batch_size` are
    ``"auto"`` and there are 200 rows or more. Each choice is trained for a few of the epochs, and
    the log-likelihoods of the same rows are compared, with log Z at its pessimistic end. Bases that
    are not clearly behind are trained on and compared again, and then other numbers of units with
    them. Of those that are behind the best by no more than the error of the difference the plainest
    is taken, and goes on from its weights (from 2,000 rows on; of fewer, the rows that are trained
    on are not the same, unless the likelihood is exact). The rows that guard this fit are among
    those that chose: if they are less likely after it than after the trial, the model is that of
    the trial, with a `TrainingWarning`.

    **Passes end by gain.** With ``n_iter="auto"``, the mean ratio of the second fourth of a fit is
    compared with that of the first half's end: as long as it still rises by 0.1 nats and by two
    standard errors, there are twice as many epochs, up to eight times 10,000 steps. Without a gain
    over the base until then, training ends. If the ratio still rises at the end, from the third to
    the last quarter, a `TrainingWarning` says by how much.

    **With fewer rows**, but at least 8, and with L-BFGS, halves of the rows determine the number of
    epochs instead, if `n_iter` is ``"auto"``. A model of each half is trained first, and is
    assessed on the other half after ten of the epochs (after each iteration of L-BFGS). The fit
    then ends after the one of these at which the other halves were most likely on average. If they
    never gain more over the base than half a standard error, the model is the base alone, with a
    `TrainingWarning`. Rows of different weights, which may be states with their counts, do not
    choose the iterations of L-BFGS. Nothing guards `partial_fit`, whose rows may not come again,
    nor an `n_iter` that is given with fewer than 200 rows or with L-BFGS.

    Real values in [0, 1] are interpreted as probabilities of bits. Such rows have a free energy but
    no likelihood: as F is concave, `score_samples` gives a lower bound on the mean log-likelihood
    of their random binarisations.

    Missing entries are drawn by Gibbs chains with the known ones clamped, which take one step
    whenever a row is trained on. Held-out rows are completed by the base, and their gain is that of
    their known entries; with `early_stopping`, held-out rows are completed by values of other rows.

    References
    ----------
    Smolensky (1986), "Information processing in dynamical systems". Tieleman (2008), "Training
    restricted Boltzmann machines using approximations to the likelihood gradient", ICML. Melchior,
    Fischer and Wiskott (2016), "How to center deep Boltzmann machines", JMLR 17(99). Tomczak
    (2022), "Deep Generative Modeling", section 6.5. Jamieson and Talwalkar (2016), "Non-stochastic
    best arm identification and hyperparameter optimization", AISTATS (trials that go on).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> X = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]])
    >>> model = RBMEstimator(n_components=2, random_state=0).fit(X)
    >>> model.transform(X).shape
    (4, 2)
    >>> bool(model.score(X) > -2.0)  # nats; the four rows alone would be -log 4 = -1.39
    True
    >>> model.sample(2, random_state=0).shape
    (2, 3)
    """

    _reads_files = True
    _is_in_fit_transform = False
    _keeps_trajectory = True
    _parameter_constraints: dict = DENSITY_CONSTRAINTS | {
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "hidden": [StrOptions({"binary"}), HiddenLayer],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "learning": [StrOptions({"auto", "pcd", "cd", "exact", *LOCAL_RULES})],
        "chains": [ChainPolicy, None],
        "base": [StrOptions({"auto", *COLUMN_BASES}), Distribution],
        "centering": [Centering, StrOptions({"auto"}), None],
        "penalty": [Penalty, None],
        "optimizer": [SGD, None],
        "aim": [StrOptions({"auto", "density", "features"})],
        "visible": [StrOptions({"auto", "bernoulli", "probabilities"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
    }
    _configs = {
        "sampler": lambda value, names: Gibbs(),
        "centering": lambda value, names: Centering(),
        "penalty": lambda value, names: Penalty(),
        "optimizer": lambda value, names: SGD(),
        "early_stopping": lambda value, names: EarlyStopping(),
    }
    _recipe: RBMRecipe

    def __init__(
        self,
        n_components="auto",
        *,
        hidden="binary",
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        learning="auto",
        chains=None,
        base="auto",
        centering="auto",
        penalty=None,
        optimizer=None,
        aim="auto",
        visible="auto",
        categorical_features="from_dtype",
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    def _config_of(self, owner: str, value: Any, names: set[str]) -> Any:
        """The object that None or a string stands for; chains are those of the learning rule."""
        if owner != "chains":
            return super()._config_of(owner, value, names)
        kind = FromData if self.learning == "cd" else Persistent
        return kind(n_steps=self._hidden.kind.n_steps)

    # ---------------------------------------------------------------- hidden units

    @property
    def _hidden(self) -> HiddenLayer:
        """The parameter `hidden` as an object."""
        return self.hidden if isinstance(self.hidden, HiddenLayer) else BinaryLayer()

    @property
    def _kind(self) -> type[HiddenUnits]:
        """Kind of the hidden units of the model, or of the next one if there is none."""
        fitted = self.__sklearn_is_fitted__()
        return type(self._recipe.family.units) if fitted else self._hidden.kind

    # ---------------------------------------------------------------- hooks of the base class

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        kind = self._hidden.kind if reset else self._kind
        sparse = {"accept_sparse": "csr"} if kind.takes_bits else {}
        return sparse | {"ensure_all_finite": "allow-nan"}

    def _learn_coding(self, X: Any, asked: Any) -> Coding | None:
        return self._hidden.coding(X, asked)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        return self._hidden.table(self, X, weight)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> RBMRecipe:
        return design_recipe(self, rows, table, before, streaming=streaming)

    @property
    def _n_features_out(self) -> int:
        return self._recipe.family.units.n_features

    # ---------------------------------------------------------------- energies and likelihoods

    @available_if(_takes_bits)
    def pseudo_likelihood(self, X: Any) -> np.ndarray:
        """Pseudo-log-likelihood of each row, summed exactly over all columns.

        The sum over columns of log p(x_i given the other columns), in nats. It is neither a lower
        nor an upper bound of log p(x).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)

        References
        ----------
        Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).
        """
        rows = self._complete_rows(X, "pseudo_likelihood")
        return self._proper_scores(rows).double().numpy()

    def joint_energy(self, X: Any, H: Any, S: Any = None) -> np.ndarray:
        r"""Energy of rows with given states of the hidden layer, E(x, h) or E(x, h, s), in nats.

        .. math:: \sum_h e^{-E(x, h)} = e^{-E(x)}, \qquad \sum_{h, s} e^{-E(x, h, s)} = e^{-E(x)}

        with E(x) the :meth:`energy`, in the same units. For binary columns with independent bases
        and binary hidden units it is :math:`-h^\top W x - b^\top x - c^\top h`. Slabs are
        integrated out.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Without missing entries.
        H : array-like of shape (n_samples, n_components)
            States of the hidden units, gates or spikes, 0 or 1, for each row.
        S : array-like of shape (n_samples, n_components, n_subspace) or None, default=None
            States of the units of the gates, 0 or 1; with subspaces alone, which need them.

        Returns
        -------
        ndarray of shape (n_samples,)

        References
        ----------
        Smolensky (1986), "Information processing in dynamical systems: foundations of harmony
        theory".
        """
        check_is_fitted(self)
        rows, units = self._complete_rows(X, "joint_energy"), self._recipe.family.units
        states = units.states(H, S, len(rows))
        field = self._map(rows, lambda energy, x: energy.hidden_field(x).flatten(1))
        free = self._energies(rows)
        return units.joint_energy(self.energy_, free, field.double().numpy(), *states)

    # ---------------------------------------------------------------- features

    @atomic
    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the model for features of a next step, as a pipeline does, and return them.

        With ``aim="auto"`` and 200 rows or more, these are features that suit a classifier: they
        are not those of ``fit(X).transform(X)``, which are of a model fitted as a density. With
        ``aim="features"`` or ``"density"``, both are the same.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.
        **fit_params : dict
            Other arguments of `fit`: `sample_weight`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
        """
        self._is_in_fit_transform = True
        features = super().fit_transform(X, y, **fit_params)
        del self._is_in_fit_transform
        return features

    def transform(self, X: Any) -> np.ndarray:
        """Means of the hidden units given x: p(h_j = 1 given x) of binary units.

        For a classifier, fit the model by :meth:`fit_transform`, as pipelines do, or with
        ``aim="features"``. After a :meth:`fit` whose rows chose another base than independent
        columns, hidden units have what the base leaves, and a warning says so.

        With ``hidden=Subspace()`` they are the probabilities of the gates, with ``features="all"``
        followed by those of their units, gate by gate; units of a gate that is off are on with
        probability 1/2. With ``hidden=SpikeSlab()`` they are the probabilities of the spikes, with
        ``features="slabs"`` the means of the slabs times their spikes.

        For a row with missing entries they are conditional on its known entries, and estimated by a
        mean over Gibbs chains with a fixed seed.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            In the precision of X. With units of gates there are n_components * (1 + n_subspace)
            columns.
        """
        check_is_fitted(self)
        chosen = self._recipe.base_name != PLAIN and self._recipe.base_reason != GIVEN
        if chosen and self._kind is BinaryUnits and self.aim == "auto":
            warn(
                f"These are features of a density whose base ({self.base_name_}) was chosen, and "
                "leaves little to the hidden units.",
                SettingWarning,
                ('For a classifier set aim="features", as pipelines do, else "density".', "aim"),
            )
        return self._features_of(X)

    def _features_of(self, X: Any) -> np.ndarray:
        """What `transform` returns, as an array, without advice."""
        found: np.ndarray = self._over_blocks(X, self._hidden_means)
        return found

    def _hidden_means(self, X: Any) -> np.ndarray:
        X = self._validate(X)
        rows, n, means = self._rows_of(X), self._n_features_out, self._recipe.family.units.means
        found: np.ndarray = self._map(rows, means)[:, :n].numpy().astype(X.dtype, copy=False)
        known = rows.present_entries()
        if known is not None:
            index = (~known.all(1)).nonzero().ravel()
            generator = torch.Generator(known.device).manual_seed(self.net_.seed_)
            energy, x = self.energy_, rows.take(index)
            how = known[index], N_MEAN_STEPS, generator, means
            averages, _ = hidden_means(energy, energy.base, x, *how)
            found[index.cpu().numpy()] = averages[:, :n].cpu().numpy()
        return found

    @as_given(means=True)
    def reconstruct(self, X: Any) -> np.ndarray:
        """Mean-field reconstruction: mean of x given the conditional mean of h given x.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        rows = self._complete_rows(X, "reconstruct")
        mean = self._map(rows, lambda energy, x: energy.reconstruct(x))
        return self._recipe.table.invert(mean[:, : rows.n_columns])

    # ---------------------------------------------------------------- rows of the model

    @as_given
    def gibbs(self, v: Any) -> np.ndarray:
        """Take one Gibbs step from v: draw h given v, then v given h.

        Parameters
        ----------
        v : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Booleans as in scikit-learn; in the units of the data if columns were scaled.
        """
        rows = self._complete_rows(v, "gibbs")
        generator = self._generator(self.random_state_)
        state, _ = self._recipe.family.chains.layer_sampler.kernel.run(
            self.energy_, rows.block(0, len(rows)), 1, generator
        )
        table = self._recipe.table
        bits = table.block(ProbabilityBlock)
        if bits is None or len(bits.scaling.columns):
            return table.invert(state.x)
        return state.x.cpu().numpy().astype(bool)

    @available_if(_has_bits_only)
    @as_given(means=True)
    def denoise(
        self, X: Any, noise_level: float = 0.1, random_state: Any = None, *, n_steps: int = 200
    ) -> np.ndarray:
        r"""Posterior mean of the clean row, if each bit was flipped with probability `noise_level`.

        The posterior :math:`p(x \mid \tilde x)` is the same RBM with visible biases shifted by
        :math:`(2 \tilde x - 1) \log\frac{1 - \epsilon}{\epsilon}`; its mean is the Bayes-optimal
        denoiser under the model. The mean is estimated by averaging p(x given h) over the second
        half of `n_steps` Gibbs steps, without bias if the chains have converged by then.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        noise_level : float in (0, 0.5), default=0.1
            Probability that a bit was flipped.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        n_steps : int, default=200
            Gibbs steps.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Probabilities; in the units of the data if columns were scaled.
        """
        number_in("noise_level", noise_level, "(0, 0.5)")
        whole_number("n_steps", n_steps, 1)
        rows = self._complete_rows(X, "denoise")
        generator, energy = self._generator(random_state), self.energy_
        strength = float(np.log((1 - noise_level) / noise_level))
        blocks = []
        for start in range(0, len(rows), BLOCK):
            x = rows.block(start, start + BLOCK)
            posterior = Tilted(energy, strength * (2 * x - 1))
            blocks.append(_posterior_mean(posterior, x, n_steps, generator).cpu())
        return self._recipe.table.invert(torch.cat(blocks))

    # ---------------------------------------------------------------- fitted attributes

    components_ = _array("components_", "Weights W, (n_components, n_features).")
    intercept_visible_ = _array("intercept_visible_", "Visible biases b, (n_features,).")
    intercept_hidden_ = _array("intercept_hidden_", "Hidden biases c, (n_components,).")
    intercept_gates_ = _array("intercept_gates_", "Biases c of the gates, (n_components,).")
    intercept_units_ = _array("intercept_units_", "Biases D, (n_components, n_subspace).")
    slab_mean_ = _array("slab_mean_", "Means mu of the slabs, (n_components,).")
    log_precision_ = _array("log_precision_", "Logarithms tau, (n_features,).")

    @property
    def filters_(self) -> np.ndarray:
        """The direction in which each unit moves rows, in the units of X, (H, n_features)."""
        check_is_fitted(self)
        return self._recipe.family.units.filters(self.energy_, self._recipe.table)

    @property
    def h_samples_(self) -> np.ndarray:
        """Hidden units of the persistent chains, (n_chains, n_components).

        If the chains keep no hidden units, these are drawn with a fixed seed; if the rule has no
        chains, the visible rows are drawn from the model as well.
        """
        x, state = chain_rows(self.net_), self.net_.state_
        if x is not None and type(self.sampler_) is Gibbs and state.chain.aux is not None:
            return state.chain.aux.cpu().numpy()
        generator = torch.Generator(self.energy_.weight.device).manual_seed(self.net_.seed_)
        if x is None:
            x = self._draw(self.n_chains_, generator)
        with torch.no_grad():
            return self.energy_.hidden(x).sample(generator).cpu().numpy()

    @property
    def trajectory_(self) -> TrajectoryEnergy:
        """The energy with the models that training has kept (see :class:`Trajectory`)."""
        check_is_fitted(self)
        found = self._energy_with_trajectory()
        if not isinstance(found, TrajectoryEnergy):
            raise AttributeError(
                "There is no trajectory_: fit with optimizer=SGD(trajectory=Trajectory()). A model "
                "that held-out rows have replaced by its base has none either."
            )
        return found

    @property
    def aim_(self) -> str:
        """What the model was fitted for, a density or features."""
        check_is_fitted(self)
        return self._recipe.family.aim

    @property
    def base_name_(self) -> str:
        """Name of the base."""
        check_is_fitted(self)
        return self._recipe.base_name or "given"

    @property
    def n_components_(self) -> int:
        """Number of hidden units."""
        check_is_fitted(self)
        return self._recipe.family.n_hidden

    @property
    def base_reason_(self) -> str:
        """Why this base was chosen, and this number of hidden units where rows chose it."""
        check_is_fitted(self)
        return self._recipe.base_reason

    @property
    def scaling_(self) -> MinMax:
        """Columns that were scaled to [0, 1], their minima and ranges."""
        check_is_fitted(self)
        bits = self._recipe.table.block(ProbabilityBlock)
        if bits is None:
            raise AttributeError("There is no scaling_: real columns are Gaussian units.")
        return bits.scaling

    @property
    def learning_(self) -> str:
        """Learning rule in use."""
        return self._recipe.family.learning

    @property
    def centered_(self) -> bool:
        """Whether the gradient is centred."""
        return self._recipe.family.centering is not None

    @property
    def precondition_(self) -> float:
        """Exponent of the variances by which the gradient is divided."""
        centering = self._recipe.family.centering
        return 0.0 if centering is None else centering.precondition


def _posterior_mean(
    energy: BipartiteEnergy, x: Tensor, n_steps: int, generator: torch.Generator
) -> Tensor:
    """Mean of x under a bipartite energy, from conditional means along a Gibbs chain from x."""
    total, burn_in = torch.zeros_like(x), n_steps // 2
    with torch.no_grad():
        for step in range(n_steps):
            conditional = energy.visible(energy.hidden(x).sample(generator))
            x = conditional.sample(generator)
            if step >= burn_in:
                total += conditional.mean
    return total / (n_steps - burn_in)
