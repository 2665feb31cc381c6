"""Restricted Boltzmann machine as a scikit-learn estimator."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from skebm._validation import Interval, Options, StrOptions, check_is_fitted
from skebm.estimators._docs import shared_docs
from skebm.estimators.base import BaseDensity, validate_coded
from skebm.estimators.rbm import methods
from skebm.estimators.rbm.blueprint import BinaryUnits, RBMBlueprint, designed
from skebm.estimators.tables.columns import (
    RESCALE_ADVICE,
    Coding,
    ColumnTable,
    learn_columns,
)
from skebm.estimators.tables.table import Table, UnitIntervalTable
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


@shared_docs
class RBMEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseDensity):
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

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of hidden units, H. If held-out rows guard the training (see Notes) and it takes
        10,000 steps, ``"auto"`` is the one of 64, 256 and 16 with which held-out rows are most
        likely after a part of the epochs; otherwise it is 256, as in `BernoulliRBM`. See
        `n_components_`.
    learning_rate : float or "auto", default="auto"
        Learning rate. ``"auto"``: 0.1 (0.3 if the base is a tree), decaying linearly to a
        hundredth of that; or L-BFGS with a line search, if learning is exact and
        neither `batch_size` nor a momentum is set.
    batch_size : int or "auto", default="auto"
        Maximum number of rows per step; the sizes of batches differ by at most one. ``"auto"``:
        100, or less (down to 10) if there would otherwise be fewer than 10,000 steps in `n_iter`
        epochs, or fewer than ten in a call of `partial_fit`; all rows with L-BFGS.
    n_iter : int or "auto", default="auto"
        Number of epochs (iterations with L-BFGS). ``"auto"``: 10,000 steps, or as many as take 2e11
        multiplications if columns times hidden units times rows of a batch exceed 2e7, but at least
        10 epochs. With fewer than 200 rows, PCD and CD take at most 500 epochs; models of the two
        halves of the rows determine how many (see Notes), possibly 0. L-BFGS takes up to 500
        iterations, and is stopped by the `tol` of `early_stopping`.
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
        held-out rows are more likely with another base after a tenth of the epochs than with
        independent columns after half of them; this is compared only if held-out rows guard the
        training (see Notes). `base_reason_` gives the result. Any distribution of
        :mod:`skebm.distributions` with exact conditionals and a positive probability for every row
        of X can be passed, too.
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
        Momentum, learning rate schedule, weight averaging and roll-backs; None is
        :class:`skebm.training.SGD` with its default settings.
    visible : {"auto", "bernoulli"}, default="auto"
        Visible units of the columns that are not categorical. ``"auto"``: Bernoulli units if all
        values are in [0, 1], as in `BernoulliRBM`. Otherwise columns of zeros and ones are
        Bernoulli units, and the others Gaussian units of standardised values, whose means and
        variances are learned. ``"bernoulli"``: all of them are Bernoulli units, see `rescale`; the
        columns of sparse X always are.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, which are softmax units: names, numbers or a boolean mask.
        ``"from_dtype"``: columns of frames that hold text or are of a categorical type, and columns
        of object arrays that hold other values than numbers. None: no column is categorical.
    rescale : {"auto", False}, default="auto"
        Treatment of columns of Bernoulli units with values outside [0, 1] in `fit`: ``"auto"``
        min-max scales them, with a warning that names them, and clips later values out of range,
        also with a warning; False raises an error.
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
    device : str, default="auto"
        ``"auto"`` is a GPU if there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation; outputs of `transform` have that of X.
    <<net_params>>

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_visible)
        Weights W, a read-only view; to change it, assign a whole array, as for the biases. With
        categorical or Gaussian units the `n_visible` entries are the bits, followed by one entry
        for each level of a category, and by the real columns.
    intercept_hidden_, intercept_visible_ : ndarray of shape (n_components,) and (n_visible,)
        Biases c and b, in addition to those of the base if not all units are Bernoulli units.
    h_samples_ : ndarray of shape (n_chains, n_components)
        Hidden units of the persistent chains; for the other rules, draws from the model.
    <<log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses, energy gap, reconstruction error, learning rate, seconds.
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
    base_name_, base_reason_ : str
        Name of the base (``"given"`` for a distribution that was passed), and why the base and the
        number of hidden units were chosen.
    scaling_ : MinMax
        Columns of Bernoulli units that were scaled, their minima and ranges; only if all units are
        Bernoulli units.
    sampler_, energy_, net_ : Sampler, BernoulliRBM or MixedRBM, EnergyNet
        The sampler, the energy as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    DeepBeliefNetwork : RBMs on top of each other.
    sklearn.neural_network.BernoulliRBM : PCD-1 without a likelihood.

    Notes
    -----
    **Held-out rows guard the training** if there are 200 rows or more, learning is not exact,
    `learning_rate` and `batch_size` are ``"auto"``, and there is no `early_stopping`. A tenth of
    the rows, at most 500, is then not trained on. Twenty times during a fit, the log-likelihood
    ratio of these rows to the base is estimated by annealing from the base and from the uniform
    distribution (``gain_over_base`` and ``gain_error`` in `history_`). Annealing finds modes that
    chains near the data never visit; up to half of the chains continue from the annealed rows.
    After a loss of more than half a nat, training continues from the best weights at half the
    learning rate. `fit` does not keep weights that are clearly worse than earlier ones, or worse
    than the base. If the mean ratio still rises by 0.1 nats from the third to the last quarter of a
    fit, a `ConvergenceWarning` suggests a larger `n_iter`.

    **With fewer rows**, but at least 8, the rows determine the number of epochs instead, if
    `n_iter` is ``"auto"`` as well. A model of each half of the rows is trained first, and is
    assessed on the other half after ten of the epochs. The fit then ends after the one of these ten
    epochs at which the other halves were most likely on average. If they never gain more over the
    base than a standard error, the model is the base alone, with a `ConvergenceWarning`.

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
    (2022), "Deep Generative Modeling", section 6.5.

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
    _parameter_constraints: dict = methods.CONSTRAINTS | {
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "rescale": [StrOptions({"auto"}), Options(bool, {False})],
    }
    _configs = methods.CONFIGS
    _blueprint: RBMBlueprint

    def __init__(
        self,
        n_components="auto",
        *,
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
        visible="auto",
        categorical_features="from_dtype",
        rescale="auto",
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.n_components = n_components
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.verbose = verbose
        self.random_state = random_state
        self.learning = learning
        self.chains = chains
        self.base = base
        self.centering = centering
        self.penalty = penalty
        self.optimizer = optimizer
        self.visible = visible
        self.categorical_features = categorical_features
        self.rescale = rescale
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.sampler = sampler
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    _config_of = methods.config_of

    # ---------------------------------------------------------------- hooks of the base class

    def _accepted_input(self, *, reset: bool) -> dict[str, Any]:
        return {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        """Validated X, its categories as codes, nan where missing."""
        kwargs |= {"reset": reset, "min_samples": min_samples}
        return validate_coded(self, X, super()._validate, Coding.learn, **kwargs)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> UnitIntervalTable | ColumnTable:
        return learn_columns(self, X, weight, rescale=self.rescale, advice=RESCALE_ADVICE)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> RBMBlueprint:
        return designed(self, rows, table, before, streaming=streaming)

    def _units(self, n: int) -> BinaryUnits:
        """Hidden units, n of them."""
        return BinaryUnits(n)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self._blueprint.units.n_features

    # ---------------------------------------------------------------- missing entries

    def _energies(self, rows: Rows, *, likely: bool = False) -> np.ndarray:
        """Energies of rows, of their known entries where others are missing."""
        known = rows.known_entries()
        if known is None:
            return super()._energies(rows, likely=likely)
        return methods.energies_of_known(self, rows, known, likely=likely)

    log_marginal = methods.log_marginal

    # ---------------------------------------------------------------- methods

    transform, pseudo_likelihood = methods.transform, methods.pseudo_likelihood
    reconstruct, gibbs, denoise = methods.reconstruct, methods.gibbs, methods.denoise
    sample, impute = methods.sample, methods.impute

    def joint_energy(self, X: Any, H: Any) -> np.ndarray:
        r"""Energy of rows with given states of the hidden units, E(x, h), in nats.

        .. math:: \sum_h e^{-E(x, h)} = e^{-E(x)}

        with E(x) the :meth:`energy`, in the same units. For binary columns with independent bases
        it is :math:`-h^\top W x - b^\top x - c^\top h`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Without missing entries.
        H : array-like of shape (n_samples, n_components)
            States of the hidden units, 0 or 1, for each row.

        Returns
        -------
        ndarray of shape (n_samples,)

        References
        ----------
        Smolensky (1986), "Information processing in dynamical systems: foundations of harmony
        theory".
        """
        check_is_fitted(self)
        rows = methods.complete_rows(self, X, "joint_energy")
        H = methods.checked_states(H, "H", (len(rows), self._n_features_out))
        field = self._map(rows, lambda energy, x: energy.hidden_field(x))
        log_odds = field[:, : self._n_features_out].double().numpy()
        free: np.ndarray = self._energies(rows)
        return free + np.logaddexp(0, log_odds).sum(1) - (H * log_odds).sum(1)

    # ---------------------------------------------------------------- fitted attributes

    components_ = methods.parameter("weight", "Weights W, (n_components, n_features).")
    intercept_hidden_ = methods.parameter("hidden_bias", "Hidden biases c, (n_components,).")
    intercept_visible_ = methods.parameter("visible_bias", "Visible biases b, (n_features,).")
    h_samples_, sampler_, scaling_ = methods.h_samples_, methods.sampler_, methods.scaling_
    base_, base_name_, base_reason_ = methods.base_, methods.base_name_, methods.base_reason_
    n_components_, n_chains_ = methods.n_components_, methods.n_chains_
    learning_, learning_rate_ = methods.learning_, methods.learning_rate_
    batch_size_, centered_ = methods.batch_size_, methods.centered_
    precondition_ = methods.precondition_
