"""Restricted Boltzmann machine as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, clone
from torch import Tensor

from skebm.base import Objective
from skebm.distributions import Distribution
from skebm.energies import BernoulliRBM
from skebm.estimators._bases import check_base_stays, fit_base
from skebm.estimators._rbm_attributes import RBMAttributes
from skebm.estimators._rbm_methods import RBMMethods, at_least_two
from skebm.estimators._rbm_settings import CONSTRAINTS, Settings, resolve
from skebm.estimators._unit_interval import UnitInterval
from skebm.estimators.base import BaseDensity
from skebm.objectives import (
    Centering,
    ContrastiveDivergence,
    ExactLikelihood,
    Penalty,
    pseudo_log_likelihood,
)
from skebm.samplers import ChainPolicy, FromData, Gibbs, Persistent
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows

# Where hidden biases start: units on in a quarter of the rows. Under a centred gradient units that
# start at one half stay there and are poor features (a classifier on shifted digits reads 82 % from
# them, 88 % from these); likelihoods on nltcs, digits and MNIST are the same or better.
HIDDEN_BIAS = -1.0


class RBMEstimator(
    ClassNamePrefixFeaturesOutMixin, UnitInterval, RBMAttributes, RBMMethods, BaseDensity
):
    r"""Restricted Boltzmann machine with binary units: features, a density and anomaly scores.

    .. math::
        p(x) = \frac{1}{Z} \sum_h e^{-E(x, h)}, \qquad
        E(x, h) = -b^\top x - c^\top h - h^\top W x .

    A program written for :class:`sklearn.neural_network.BernoulliRBM` runs with the name changed;
    a parameter given means what it means there. What is added: normalised log-likelihoods with an
    error, exact learning where the states can be enumerated, centred gradients, sampling,
    imputation, outlier labels, sample weights, a GPU.

    Parameters
    ----------
    n_components : int, default=256
        Number of hidden units, H.
    learning_rate : float or "auto", default="auto"
        Step size. ``"auto"``: 0.1 (0.3 on a base other than independent columns) falling linearly
        to a hundredth of it; or, under the exact rule with `batch_size` and `momentum` left alone,
        L-BFGS with a line search.
    batch_size : int or "auto", default="auto"
        Rows per step at most; batches are of even sizes. ``"auto"``: 100, less (down to 10) where
        `n_iter` or `partial_fit` would make few steps of it, or all rows under L-BFGS.
    n_iter : int or "auto", default="auto"
        Passes over the data (L-BFGS iterations). ``"auto"``: 10,000 steps, but at least 10 and at
        most 500 passes; up to 500 L-BFGS iterations, ended by `tol`.
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; the global generators are not touched.
    learning : {"auto", "pcd", "cd", "exact"}, default="auto"
        Learning rule: persistent or restarted contrastive divergence, or the likelihood's own
        gradient by enumeration, possible where states of the smaller layer times units of the
        other are at most 1e8. ``"auto"`` is exact up to 1e7 and PCD elsewhere.
    n_gibbs_steps : int, default=1
        Gibbs steps of the chains for each batch (k of PCD-k and CD-k).
    n_chains : int or "auto", default="auto"
        Persistent chains; ``"auto"`` is the batch size, and 500 or more under `reweight`.
    base : {"independent", "chow-liu", "block-tree"} or Distribution, default="independent"
        What the energy corrects, E(x) = -log q(x) + F(x); fitted first, not trained. Independent
        columns are the usual machine, whose visible biases start at the log-odds of the data.
        ``"chow-liu"`` is the most likely tree of pairwise dependences, ``"block-tree"`` one whose
        nodes are up to three columns that belong together, as in one-hot codes: hidden units are
        free for what a tree cannot say. Or any distribution of :mod:`skebm.distributions` with exact
        conditionals that gives every row of X a probability.
    reweight : bool, default=False
        Weigh persistent chains by Jarzynski's equality (:class:`skebm.objectives.Walkers`):
        consistent gradients however slowly the chains mix, and a running log-likelihood in
        `history_` that `early_stopping` uses. A step takes about 1.5 times as long. Where chains
        cannot follow large steps the running value is too high by many nats: compare with `score`.
    centered : bool, default=True
        Centre the units in the gradient of the stochastic rules: same fixed points, better
        conditioned, and the same for data with zeros and ones exchanged. False is
        scikit-learn's gradient.
    precondition : float in [0, 1] or "auto", default="auto"
        Exponent of the units' variances, relative to a fair coin's, by which the centred gradient
        of the contrastive rules is divided: rare units learn as fast as frequent ones. ``"auto"``
        is 0.5, and 0 where `learning_rate` is given, as scikit-learn has it.
    learning_rate_decay : {"auto", "linear", "constant"}, default="auto"
        ``"auto"`` keeps a learning rate given as a number constant, as scikit-learn does.
    momentum : float in [0, 1), default=0
        Momentum of the stochastic rules.
    l1, l2 : float, default=0
        Penalties on the weights: l1 * sum of absolute values, l2 / 2 * sum of squares. Where a
        fit does not carry over to new rows try l1 = 3e-4 on images, l2 = 20 / n on small tables.
    sparsity_target : float in (0, 1) or None, default=None
        Mean activation that hidden units are pulled to; None for none.
    sparsity_cost : float, default=0.1
        Weight of that pull, a Kullback-Leibler divergence for each unit.
    averaging : float in [0, 1), default=0
        Decay per epoch of a moving average of the weights, which is what the model keeps; 0 keeps
        the last weights.
    rescale : {"auto", False}, default="auto"
        What happens to columns that leave [0, 1] in `fit`: ``"auto"`` min-max scales them (the
        scaling is stored, one warning names them, later values are clipped with a warning); False
        raises.
    early_stopping : bool, default=False
        Stop when the score on held-out rows stagnates, and keep the best weights. The score is the
        exact log-likelihood under the exact rule, the pseudo-likelihood otherwise.
    validation_fraction : float in (0, 1), default=0.1
        Share of the rows held out.
    n_iter_no_change : int, default=10
        Epochs without a gain of `tol` that end training (L-BFGS: also without early stopping).
    tol : float, default=1e-4
        Smallest gain, in nats, that counts.
    warm_start : bool, default=False
        Go on from the weights and chains of the previous `fit`.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Share of the training rows that `predict` calls outliers; ``"auto"`` is 0.1. A model that
        overfits calls a larger share of new rows so.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is found, on first need. ``"auto"``: exactly where the enumeration has at most 1e9
        terms or the weights make no loops, by :class:`skebm.partition.AISBracket` otherwise (see
        :func:`skebm.partition.choose`); `log_partition_method_` says why. None: not at all;
        `score_samples` is then -F(x) and `score` the mean pseudo-likelihood.
    sampler : Sampler or None, default=None
        Of binary rows; None is :class:`skebm.samplers.Gibbs`. Where chains stick, try
        ``Gibbs(n_collapsed=k)`` for few units, or :class:`skebm.samplers.ParallelTempering`.
    max_restarts : int, default=10
        How often a diverged training is rolled back, with half the learning rate, before
        `FloatingPointError` is raised.
    device : str, default="auto"
        ``"auto"`` is a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation; outputs of `transform` have that of X.
    net_params : dict or None, default=None
        Further arguments of the skorch net, also as ``net__<name>`` in `set_params` and searches:
        optimizer, callbacks, train_split, ...

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Weights W; read-only views, assign a whole array to change them. So are the biases.
    intercept_hidden_, intercept_visible_ : ndarray of shape (n_components,) and (n_features,)
        Biases c and b.
    h_samples_ : ndarray of shape (n_chains, n_components)
        Hidden units of the persistent chains; drawn from the model for the other rules.
    log_partition_, log_partition_std_ : float
        log Z in nats and its standard error, 0 when exact.
    log_partition_bounds_ : tuple of float
        Ends of the interval for log Z.
    log_partition_kind_ : {"exact", "probabilistic", "heuristic"}
        What the interval is worth.
    log_partition_parts_ : dict of str to (float, float)
        Estimates that the interval was made of, with their standard errors.
    partition_ : PartitionEstimator or None
        How log Z is found.
    log_partition_method_ : str
        The same in words, with the reason for what ``"auto"`` chose.
    offset_ : float
        Threshold of `predict` in the units of `score_samples`.
    history_ : list of dict
        One for each epoch: losses, energy gap, reconstruction error, learning rate, seconds.
    n_iter_, n_restarts_ : int
        Epochs that ran, and roll-backs among them.
    learning_, learning_rate_, batch_size_, n_chains_ : str, float, int, int
        What ``"auto"`` became. `learning_rate_` is nan under L-BFGS.
    centered_, precondition_ : bool, float
        Whether the gradient is centred (never under L-BFGS), and its preconditioning.
    base_ : Distribution
        The fitted base.
    scaling_ : MinMax
        Columns that were scaled, their minima and widths.
    sampler_, energy_, net_ : Sampler, BernoulliRBM, EnergyNet
        The kernel, the energy as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    sklearn.neural_network.BernoulliRBM : SML on one core, without a likelihood.

    Notes
    -----
    Real values inside [0, 1] are taken as probabilities. They have a free energy but no
    likelihood: F is concave, so `score_samples` of such a row is a lower bound on the mean
    log-likelihood of its random binarisations.

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

    _parameter_constraints: dict = CONSTRAINTS
    base_: Distribution

    def __init__(
        self,
        n_components=256,
        *,
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        learning="auto",
        n_gibbs_steps=1,
        n_chains="auto",
        base="independent",
        reweight=False,
        centered=True,
        precondition="auto",
        learning_rate_decay="auto",
        momentum=0.0,
        l1=0.0,
        l2=0.0,
        sparsity_target=None,
        sparsity_cost=0.1,
        averaging=0.0,
        rescale="auto",
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        max_restarts=10,
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
        self.n_gibbs_steps = n_gibbs_steps
        self.n_chains = n_chains
        self.base = base
        self.reweight = reweight
        self.centered = centered
        self.precondition = precondition
        self.learning_rate_decay = learning_rate_decay
        self.momentum = momentum
        self.l1 = l1
        self.l2 = l2
        self.sparsity_target = sparsity_target
        self.sparsity_cost = sparsity_cost
        self.averaging = averaging
        self.rescale = rescale
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.sampler = sampler
        self.max_restarts = max_restarts
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _resolve(self, n_rows: int, *, streaming: bool) -> Settings:
        return resolve(self, n_rows, self.n_features_in_, streaming=streaming)

    def _new_net(
        self,
        settings: Settings,
        generator: torch.Generator,
        *,
        streaming: bool,
        validation: Rows | None = None,
    ) -> EnergyNet:
        energy = BernoulliRBM(
            settings.n_visible,
            settings.n_hidden,
            generator=generator,
            dtype=getattr(torch, settings.dtype),
            base=self.base_.to(generator.device, getattr(torch, settings.dtype)),
        )
        stop_on = "valid_loss" if validation is not None else None
        if settings.line_search and validation is None:
            stop_on = "train_loss"
        kwargs = settings.net_kwargs(self.momentum) | {
            "device": generator.device,
            "verbose": int(self.verbose),
            **(self.net_params or {}),
        }
        if streaming:
            kwargs["max_epochs"] = 1
        return EnergyNet(
            self._objective(energy, settings),
            generator=generator,
            averaging=0.0 if streaming else self.averaging,
            max_restarts=self.max_restarts,
            validation=validation,
            stop_on=stop_on,
            patience=self.n_iter_no_change,
            tol=self.tol,
            streaming=streaming,
            **kwargs,
        )

    def _objective(self, energy: BernoulliRBM, settings: Settings) -> Objective:
        centering = Centering(precondition=settings.precondition) if settings.centered else None
        penalty = None
        if self.l1 or self.l2 or self.sparsity_target is not None:
            penalty = Penalty(self.l1, self.l2, self.sparsity_target, self.sparsity_cost)
        if settings.learning == "exact":
            return ExactLikelihood(energy, centering=centering, penalty=penalty)
        chains: ChainPolicy = FromData(self.n_gibbs_steps)
        if settings.learning == "pcd":
            chains = Persistent(
                self.n_gibbs_steps,
                n_chains=settings.n_chains,
                reweight=settings.reweight,
                initial=energy.base,
            )
        return ContrastiveDivergence(
            energy, self.sampler_, chains, centering=centering, penalty=penalty
        )

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        self.sampler_ = Gibbs() if self.sampler is None else clone(self.sampler)
        if going_on:
            check_base_stays(self.base, self.base_)
        else:
            self.base_ = fit_base(self.base, rows)

    def _initialise(self, energy: Any, rows: Rows) -> None:
        """The base itself: its log-odds where columns are independent, nothing on top of others.

        Hidden units start mostly off.
        """
        with torch.no_grad():
            if energy.structure is None:
                energy.visible_bias.copy_(energy.base.logits)
            energy.hidden_bias.fill_(HIDDEN_BIAS)

    def _condense(self, rows: Rows) -> Rows:
        """Merge duplicate rows where every step sees all of them."""
        return rows.merged() if self._settings.line_search else rows

    def _partition_inputs(self) -> dict[str, Any]:
        energy: BernoulliRBM = self.energy_
        like = energy.weight
        x = torch.as_tensor(self._reference, dtype=like.dtype, device=like.device)
        starts = {"data": at_least_two((x > 0.5).to(x.dtype))}
        chain = self._chains()
        if chain is not None:
            starts["training chains"] = at_least_two(chain)
        generator = torch.Generator(like.device).manual_seed(self.net_.seed_)
        start = {"base": energy.base, "sampler": self._blocks, "x": starts}
        return start | {"generator": generator}

    def _proper_score(self, rows: Rows) -> Tensor:
        return self._map(rows, pseudo_log_likelihood)

    def _scoring_energy(self) -> BernoulliRBM:
        return self.energy_.padded()

    @property
    def _n_features_out(self) -> int:
        return self._settings.n_hidden

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
