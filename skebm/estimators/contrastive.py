"""Neural densities trained by maximum likelihood, with sampled negatives."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from skebm.base import Objective
from skebm.energies import NeuralEnergy
from skebm.estimators._any_methods import AnyMethods
from skebm.estimators._any_rows import AnyRows
from skebm.estimators._contrastive_settings import CONTRASTIVE, objective_of, sampled_rule
from skebm.estimators._density_settings import Settings, resolve
from skebm.estimators._neural import Neural, withheld
from skebm.estimators._params import SamplerSteps
from skebm.estimators.base import BaseDensity
from skebm.training.rows import Rows


class ContrastiveDivergenceDensity(SamplerSteps, Neural, AnyRows, AnyMethods, BaseDensity):
    r"""Neural density by maximum likelihood: energies fall at the data and rise at samples.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad
        \nabla_\theta \log p(x) = -\nabla_\theta f(x) + \mathbb E_p \nabla_\theta f

    A base q is fitted first, and a network f that corrects it is trained along the gradient of the
    likelihood, whose second term is a mean over Markov chains that start at the base and go on from
    batch to batch. Real columns, bits or one-hot columns; any network; any sampler of such rows.
    Of 200 rows or more a tenth, at most 100, is not shown to the network: by these training is
    watched. Where it runs away it goes back to where it was well, with smaller steps.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        f. None is :class:`skebm.energies.MLP`; ``network__hidden_sizes`` and the like can be
        searched over where one is passed. :class:`skebm.energies.Conv` takes images (n, C, H, W).
        A callable makes a module from a :class:`skebm.energies.Spec`; a module is copied, weights
        and all. Rows (n, ...) in, one number per row (n,) out.
    sampler : Sampler or None, default=None
        What moves the chains, in training and for samples. None is
        :class:`skebm.samplers.MALA`, tuned, and :class:`~skebm.samplers.GibbsWithGradients` on
        discrete rows. ``sampler__step_size`` and the like can be searched over where one is passed.
    objective : {"likelihood", "discrepancy"}, default="likelihood"
        ``"discrepancy"`` does without chains: rows are told from what their noisy copies might have
        been [7]_, :class:`skebm.objectives.EnergyDiscrepancy`. For few columns: its samples carry
        little in many.
    init : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        Where chains start at each batch: where they were; at rows of a buffer, 5 % of them anew
        [2]_; at the rows of the batch [1]_; at draws of the base, which is also where the first two
        begin.
    n_steps : int, default=10
        Sampler steps for each batch. A search can call it ``sampler__n_steps``.
    n_independence_steps : int, default=1
        How often at each batch chains are offered a draw of the base, by the Metropolis-Hastings
        rule: exact, and they travel between modes that short steps do not connect [6]_.
    n_chains : int or "auto", default="auto"
        Persistent chains; ``"auto"`` is the batch size.
    buffer_size : int, default=10000
        Rows of a replay buffer, at least a batch.
    domain : {"auto", "real", "binary"} or Domain, default="auto"
        What rows are. ``"auto"`` is what the sampler takes; where that is open, bits if all entries
        of the first rows are 0 or 1. ``skebm.base.Categorical(groups)`` are one-hot columns.
    base : str, Distribution or None, default="auto"
        q. Real columns: ``"gaussian"``: shrunk covariance, or columns truncated at `bounds`;
        ``"mixture"``: of `n_components` normal distributions; ``"kernel"``: normal kernels of
        several scales on the rows. Bits: ``"independent"``, ``"chow-liu"``, ``"block-tree"``.
        One-hot: ``"independent"``. ``"auto"`` is the mixture (the normal distribution inside
        walls), the Chow-Liu tree and independent columns. A distribution of :mod:`skebm.distributions`, of
        columns in their own units, is taken as it is. None leaves q out: for discrete rows and
        inside walls on both sides.
    n_components : int or "auto", default="auto"
        Of the mixture; ``"auto"`` is one for every hundred rows, at most 40 (128 for few columns),
        and fewer where EM would take long (one for 60,000 images of 28 x 28).
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the noise that real rows get in training, in standard deviations of
        the columns (in units of X with ``standardize=False``), or one for each column: the model is
        one of rows with that noise, which keeps energies from becoming spikes. ``"auto"`` is 0.75
        times the bandwidth of kernels on the rows that is most likely leaving one out, between
        0.05 and 1, and none inside walls; ``"bandwidth"`` that bandwidth itself; None is none.
    sigma_anneal : float, default=1
        Factor of the noise at first; it falls to 1 over the first half of the passes.
    deconvolve : bool, default=False
        Take the noise off the base when training is over: :math:`-\log q(x) + f(x)` with the base
        of clean rows and the correction of noisy ones.
    reweight : bool, default=False
        Weigh persistent chains by Jarzynski's equality [5]_: a gradient without bias however
        slowly chains mix, and masses of modes that chains do not travel between.
    energy_l2 : float, default=0
        Penalty on the squares of f at data and chains [2]_.
    clip_norm : float or None, default=None
        Largest norm of a gradient.
    kl_weight, entropy_weight : float, default=0
        Weights of the terms that the gradient leaves out, through the last step of the chains, and
        of their entropy [3]_; for ``Langevin`` and ``MALA``.
    augmentation : callable or None, default=None
        What happens to rows on which chains start anew, ``augmentation(rows, generator)``; images
        come as (n, C, H, W). :class:`skebm.samplers.Shift` and the like [3]_.
    perturbation : float, default=0.2
        Noise of ``objective="discrepancy"``, in standard deviations of the columns (in units of X
        with ``standardize=False``); on discrete rows the probability that a column changes.
    n_negatives : int, default=16
        Copies of each row there.
    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Walls (lower, upper), None for a side without; all columns have them on the same sides.
    standardize : bool, default=True
        Train on columns of mean 0 and variance 1. Likelihoods are those of X in any case.
    learning_rate : float, default=2e-3
        Of Adam.
    learning_rate_decay : {"cosine", "constant"}, default="cosine"
        ``"cosine"`` rises over a twentieth of the passes and falls to a hundredth.
    batch_size : int or "auto", default="auto"
        Rows per step at most; ``"auto"`` is 128.
    n_iter : int or "auto", default="auto"
        Passes over the data; ``"auto"`` makes about a thousand steps.
    weight_decay : float, default=0
        Of AdamW, per step and relative to the learning rate.
    averaging : float in [0, 1), default=0
        Decay per pass of a moving average of the weights, which is what the model keeps.
    early_stopping : bool, default=False
        Stop when the objective on held-out rows stagnates, and keep the best weights. Anomalies are
        ranked better without.
    validation_fraction : float in (0, 1), default=0.1
        Share of the rows held out; the base does not see them either.
    n_iter_no_change : int, default=10
        Passes without a gain of `tol` that end training.
    tol : float, default=1e-4
        Smallest gain that counts.
    warm_start : bool, default=False
        Go on from the weights of the previous `fit`, on its base and in its units.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Share of the training rows that `predict` calls outliers; ``"auto"`` is 0.1.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is found, on first need. ``"auto"``: importance sampling from the base where a
        twentieth of its draws carries the mean, else :class:`skebm.partition.AISBracket`;
        `log_partition_method_` says why. None: not at all; `score_samples` is then -E(x), and
        `score` is a proper rule that needs no log Z: minus the Hyvärinen score on real X (blind to
        the masses of far modes and dependent on units), the pseudo-likelihood of discrete rows.
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
    offset_ : float
        Threshold of `predict` in the units of `score_samples`.
    history_ : list of dict
        One for each pass: ``train_loss`` and ``energy_gap``, both mean E(data) - mean E(chains);
        ``gain_over_base``, nats a row above the base (an estimate); ``acceptance``; learning rate,
        seconds.
    n_iter_, n_restarts_ : int
        Passes that ran, and roll-backs among them.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    ScoreMatchingDensity : Faster, without sampling in training; of real columns.
    RBMEstimator : Binary rows, with features.

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
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a normal distribution has -1.9
    True
    >>> model.sample(3, random_state=0).shape
    (3, 2)
    >>> model.predict([[0.0, 1.0], [10.0, 10.0]])
    array([ 1, -1])
    """

    _parameter_constraints: dict = CONTRASTIVE

    def __init__(
        self,
        network=None,
        *,
        sampler=None,
        objective="likelihood",
        init="persistent",
        n_steps=10,
        n_independence_steps=1,
        n_chains="auto",
        buffer_size=10_000,
        domain="auto",
        base="auto",
        n_components="auto",
        sigma="auto",
        sigma_anneal=1.0,
        deconvolve=False,
        reweight=False,
        energy_l2=0.0,
        clip_norm=None,
        kl_weight=0.0,
        entropy_weight=0.0,
        augmentation=None,
        perturbation=0.2,
        n_negatives=16,
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
        contamination="auto",
        partition="auto",
        max_restarts=10,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.sampler = sampler
        self.objective = objective
        self.init = init
        self.n_steps = n_steps
        self.n_independence_steps = n_independence_steps
        self.n_chains = n_chains
        self.buffer_size = buffer_size
        self.domain = domain
        self.base = base
        self.n_components = n_components
        self.sigma = sigma
        self.sigma_anneal = sigma_anneal
        self.deconvolve = deconvolve
        self.reweight = reweight
        self.energy_l2 = energy_l2
        self.clip_norm = clip_norm
        self.kl_weight = kl_weight
        self.entropy_weight = entropy_weight
        self.augmentation = augmentation
        self.perturbation = perturbation
        self.n_negatives = n_negatives
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
        self.contamination = contamination
        self.partition = partition
        self.max_restarts = max_restarts
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _resolve(self, n_rows: int, *, streaming: bool) -> Settings:
        found = resolve(self, n_rows, None, streaming=streaming)
        n_batches = found.n_iter * math.ceil(n_rows / found.batch_size)
        rule = sampled_rule(self, self.units_.domain, min(found.batch_size, n_rows), n_batches)
        return replace(found, rule=self._with_chains(rule))

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        self._count_chains(going_on)
        if not going_on:
            self._learn_base(rows, self.base, smooth=self.objective == "likelihood")

    def _withhold(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        return withheld(rows, generator) if self.objective == "likelihood" else (rows, None)

    def _objective(self, settings: Settings, energy: NeuralEnergy) -> Objective:
        return objective_of(settings.rule, energy, self._noise)
