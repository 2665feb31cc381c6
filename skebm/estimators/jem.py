"""Classifiers that know how likely a row is: joint energy models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sklearn.base import ClassifierMixin
from torch import nn

from skebm._validation import fit_context
from skebm.energies import ClassMarginal, NeuralEnergy, Spec, build_network
from skebm.estimators._any_rows import AnyRows
from skebm.estimators._density_settings import Settings, resolve
from skebm.estimators._jem_methods import JEMMethods
from skebm.estimators._jem_settings import (
    JEM,
    MOST_PASSES,
    class_weights,
    joint_objective,
    joint_rule,
    weight_of,
)
from skebm.estimators._labels import Labelled, Labels
from skebm.estimators._neural import Neural
from skebm.estimators._params import SamplerSteps
from skebm.estimators.base import BaseEBM
from skebm.objectives import JointLikelihood
from skebm.training.rows import Rows


class JEMClassifier(ClassifierMixin, Labelled, SamplerSteps, Neural, AnyRows, JEMMethods, BaseEBM):
    r"""Classifier whose logits are a density of the rows as well: a joint energy model.

    .. math:: p(x, y) = \frac1Z q(x)\, e^{\mathrm{logits}_y(x)} , \qquad
        p(y \mid x) = \mathrm{softmax}(\mathrm{logits}(x)) , \qquad
        p(x) = \frac1Z q(x) \sum_y e^{\mathrm{logits}_y(x)}

    A classifier leaves open what is added to all of its logits; here that is learned, from the
    likelihood of the rows, by sampled negatives [1]_. One network then classifies, knows rows that
    are unlike those of training, draws rows of a class, and learns from rows without labels. The
    base q, which the rows alone decide, is fitted first. Training that runs away goes back to where
    it was well, with smaller steps.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        From rows (n, ...) to logits (n, K). None is :class:`skebm.energies.MLP`;
        :class:`skebm.energies.Conv` takes images (n, C, H, W). A callable makes a module from a
        :class:`skebm.energies.Spec`, whose ``n_classes`` is K; a module is copied, weights and all.
    objective : {"factored", "joint"}, default="factored"
        ``"factored"``: exact cross-entropy, and `generative_weight` times the sampled
        :math:`-\log p(x)`. ``"joint"``: the share `generative_weight` of both is
        :math:`-\log p(x, y)`, sampled as one, with classes drawn for the chains.
    generative_weight : float or "auto", default="auto"
        :math:`\lambda \ge 0`. 0 is a plain classifier: no chain moves. 1 is maximum likelihood of
        rows and labels together, in which :math:`\log p(x)`, a sum over columns, outweighs the
        labels. ``"auto"`` is 0.03, or 1 over the number of columns where these are more than 33.
    sampler : Sampler or None, default=None
        What moves the chains, in training and for samples. None is :class:`skebm.samplers.MALA`,
        tuned, and :class:`~skebm.samplers.GibbsWithGradients` on discrete rows. The step and the
        noise of the paper are ``Langevin(1.0, noise_scale=0.01)``, steps that are clipped
        ``clip_grad=``. ``sampler__step_size`` and the like can be searched over.
    init : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        Where chains start at each batch: where they were; at rows of a buffer, 5 % of them anew; at
        the rows of the batch; at draws of the base (without one, uniform inside `bounds`), which is
        also where the first two begin.
    n_steps : int, default=10
        Sampler steps for each batch. A search can call it ``sampler__n_steps``.
    n_independence_steps : int, default=1
        How often at each batch chains are offered a draw of the base.
    n_chains : int or "auto", default="auto"
        Persistent chains; ``"auto"`` is the batch size.
    buffer_size : int, default=10000
        Rows of a replay buffer, at least a batch.
    unlabeled : label or None, default=None
        The label of rows whose class is not known: they count in p(x) alone. None: there are none.
    class_weight : dict, "balanced" or None, default=None
        Factors of the classes in the cross-entropy; p(x) is that of the rows as they are.
    classify_noisy : bool, default=True
        Whether the cross-entropy sees rows with the noise of p(x), `sigma`, so that one density of
        noisy rows and their classes is learned, as in [1]_; False: as they are, as they always are
        with ``generative_weight=0``.
    augmentation : callable or None, default=None
        ``augmentation(rows, generator)``, of standardised rows or of images (n, C, H, W), for the
        cross-entropy alone [2]_. :class:`skebm.samplers.Shift` and the like.
    sharpness : float, default=0
        Length of the step up the gradient at whose end the gradient is taken [3]_; 0 is none.
    domain : {"auto", "real", "binary"} or Domain, default="auto"
        What rows are; as of :class:`ContrastiveDivergenceDensity`.
    base : str, Distribution or None, default="auto"
        q; as of :class:`ContrastiveDivergenceDensity`, or ``"classes"``: a normal distribution for
        the labelled rows of each class, where chains then start [4]_.
    n_components : int or "auto", default="auto"
        Of a mixture; ``"auto"`` is one for every hundred rows, at most 40 (128 for few columns),
        and fewer where EM would take long (one for 60,000 images of 28 x 28).
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Noise of the rows in p(x), in standard deviations of the columns. As of
        :class:`ContrastiveDivergenceDensity`.
    sigma_anneal : float, default=1
        Factor of the noise at first; it falls to 1 over the first half of the passes.
    energy_l2 : float, default=0
        Penalty on the squares of :math:`\log \sum_y e^{\mathrm{logits}_y}` at rows and chains.
    clip_norm : float or None, default=None
        Largest norm of a gradient.
    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Walls (lower, upper), None for a side without; all columns have them on the same sides.
    standardize : bool, default=True
        Train on columns of mean 0 and variance 1.
    learning_rate : float, default=2e-3
        Of Adam.
    learning_rate_decay : {"cosine", "constant"}, default="cosine"
        ``"cosine"`` rises over a twentieth of the passes and falls to a hundredth.
    batch_size : int or "auto", default="auto"
        Rows per step at most; ``"auto"`` is 128.
    n_iter : int or "auto", default="auto"
        Passes over the data; ``"auto"`` makes about a thousand steps, in at most 100 passes: more
        of them make a classifier of a small table surer of itself than it should be.
    weight_decay : float, default=0
        Of AdamW, per step and relative to the learning rate.
    averaging : float in [0, 1), default=0
        Decay per pass of a moving average of the weights, which is what the model keeps.
    early_stopping : bool, default=False
        Stop when the objective on held-out rows stagnates, and keep the best weights.
    validation_fraction : float in (0, 1), default=0.1
        Share of the rows held out.
    n_iter_no_change : int, default=10
        Passes without a gain of `tol` that end training.
    tol : float, default=1e-4
        Smallest gain that counts.
    warm_start : bool, default=False
        Go on from the weights of the previous `fit`, on its base and its classes.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z of p(x) is found, on first need; as of :class:`ContrastiveDivergenceDensity`.
        None: not at all; `score_samples` is then -E(x).
    max_restarts : int, default=10
        How often a diverged training is rolled back, with half the learning rate.
    random_state : int, RandomState instance or None, default=None
        Seed of everything that is drawn.
    verbose : int, default=0
        1 shows a progress bar.
    device : str, default="auto"
        ``"auto"`` is a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation.
    net_params : dict or None, default=None
        Further arguments of the skorch net, also as ``net__<name>``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    generative_weight_ : float
        :math:`\lambda`.
    sigma_ : ndarray of shape (n_features,) or None
        Noise of training in the units of `sigma`.
    base_ : Distribution or None
        The fitted base, of standardised rows and with the noise.
    units_ : Units
        Centres and scales of the columns.
    row_shape_ : tuple of int
        Shape of a row.
    log_partition_, log_partition_std_ : float
        log Z in nats and its standard error.
    log_partition_bounds_ : tuple of float
        Ends of the interval for log Z.
    log_partition_kind_ : {"exact", "probabilistic", "heuristic"}
        What the interval is worth.
    log_partition_parts_ : dict of str to (float, float)
        Estimates that the interval was made of, with their standard errors.
    partition_ : PartitionEstimator or None
        How log Z is found.
    log_partition_method_ : str
        The same in words.
    history_ : list of dict
        One for each pass: ``cross_entropy`` and ``accuracy`` on a hundred training rows (no
        accuracy where none of these has a label);
        ``train_loss``; ``energy_gap``, ``gain_over_base`` and ``acceptance`` as of
        :class:`ContrastiveDivergenceDensity`; learning rate, seconds.
    n_iter_, n_restarts_ : int
        Passes that ran, and roll-backs among them.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of p(x) of standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    ContrastiveDivergenceDensity : The same density without classes.
    EnergyOutlierDetector : Outliers by log p(x), the largest probability or the slope of log p.

    References
    ----------
    .. [1] Grathwohl, Wang, Jacobsen, Duvenaud, Norouzi and Swersky (2020), "Your classifier is
       secretly an energy based model and you should treat it like one", ICLR.
    .. [2] Yang, Su and Ji (2023), "Towards bridging the performance gaps of joint energy-based
       models", CVPR (SADA-JEM).
    .. [3] Foret, Kleiner, Mobahi and Neyshabur (2021), "Sharpness-aware minimization for
       efficiently improving generalization", ICLR.
    .. [4] Yang and Ji (2021), "JEM++: improved techniques for training JEM", ICCV.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skebm import JEMClassifier
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> model = JEMClassifier(random_state=0).fit(X[:400], y[:400])
    >>> bool(model.score(X[400:], y[400:]) > 0.97)
    True
    >>> near, far = model.score_samples([[0.0, 1.0], [10.0, 10.0]])  # log p(x) in nats
    >>> bool(near > far + 100)
    True
    >>> model.sample(3, y=1, random_state=0).shape
    (3, 2)
    """

    _parameter_constraints: dict = JEM
    deconvolve = False

    def __init__(
        self,
        network=None,
        *,
        objective="factored",
        generative_weight="auto",
        sampler=None,
        init="persistent",
        n_steps=10,
        n_independence_steps=1,
        n_chains="auto",
        buffer_size=10_000,
        unlabeled=None,
        class_weight=None,
        classify_noisy=True,
        augmentation=None,
        sharpness=0.0,
        domain="auto",
        base="auto",
        n_components="auto",
        sigma="auto",
        sigma_anneal=1.0,
        energy_l2=0.0,
        clip_norm=None,
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        learning_rate_decay="cosine",
        batch_size="auto",
        n_iter="auto",
        weight_decay=0.0,
        averaging=0.0,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        partition="auto",
        max_restarts=10,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.objective = objective
        self.generative_weight = generative_weight
        self.sampler = sampler
        self.init = init
        self.n_steps = n_steps
        self.n_independence_steps = n_independence_steps
        self.n_chains = n_chains
        self.buffer_size = buffer_size
        self.unlabeled = unlabeled
        self.class_weight = class_weight
        self.classify_noisy = classify_noisy
        self.augmentation = augmentation
        self.sharpness = sharpness
        self.domain = domain
        self.base = base
        self.n_components = n_components
        self.sigma = sigma
        self.sigma_anneal = sigma_anneal
        self.energy_l2 = energy_l2
        self.clip_norm = clip_norm
        self.bounds = bounds
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.weight_decay = weight_decay
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.partition = partition
        self.max_restarts = max_restarts
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- fitting

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> JEMClassifier:
        """Fit the model to rows and their labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Labels of any type; those equal to `unlabeled` are not known.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight 0 is as if it were not there.

        Returns
        -------
        self : object
        """
        return self._fit(X, sample_weight, streaming=False, y=Labels(y))

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> JEMClassifier:
        """Make one pass over rows and labels, in mini-batches, going on from the present state.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, with the columns of the first call.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), default=None
            All classes that there will be, for the first call; None takes those of its y.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights.

        Returns
        -------
        self : object
        """
        return self._fit(X, sample_weight, streaming=True, y=Labels(y, classes))

    def _resolve(self, n_rows: int, *, streaming: bool) -> Settings:
        found = resolve(self, n_rows, None, streaming=streaming, most_passes=MOST_PASSES)
        n_batches = found.n_iter * math.ceil(n_rows / found.batch_size)
        rule = joint_rule(self, self.units_.domain, min(found.batch_size, n_rows), n_batches)
        return replace(found, rule=rule._replace(sampled=self._with_chains(rule.sampled)))

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        self._count_chains(going_on)
        self.generative_weight_ = weight_of(self, rows.n_columns)
        self._class_weight = class_weights(self.class_weight, self.classes_, rows)
        if not going_on:
            self._learn_base(rows, self.base)

    def _network(self, settings: Settings, spec: Spec) -> nn.Module:
        spec = spec._replace(n_classes=len(self.classes_), whitening=None)
        return ClassMarginal(build_network(settings.network, spec))

    def _objective(self, settings: Settings, energy: NeuralEnergy) -> JointLikelihood:
        return joint_objective(settings.rule, energy, self._noise)
