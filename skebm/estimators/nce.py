"""Neural densities that tell data from noise, and learn their log Z on the way."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from skebm._validation import check_is_fitted, draw_seed
from skebm.base import Objective
from skebm.distributions import Distribution
from skebm.energies import NeuralEnergy, Spec, Telescope, build_network
from skebm.estimators._any_methods import AnyMethods
from skebm.estimators._any_rows import AnyRows
from skebm.estimators._bridges import approach_of
from skebm.estimators._density_settings import Settings, resolve
from skebm.estimators._nce_settings import (
    FEWEST_ROWS,
    NCE,
    SATURATED,
    contrast_of,
    noise_rule,
)
from skebm.estimators._neural import Neural, withheld
from skebm.estimators.base import BaseDensity
from skebm.training.rows import Rows


class NCEDensity(Neural, AnyRows, AnyMethods, BaseDensity):
    r"""Neural density by noise contrastive estimation: a classifier of data against known noise.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad
        \log \frac{P(data \mid x)}{P(noise \mid x)} = -f(x) - \log Z - \log \nu

    A distribution q is fitted to the rows, and a network f learns to tell them from its draws,
    :math:`\nu` for each row. log Z is learned as a parameter beside it; no Markov chain is run.
    After `fit` log Z is estimated again, by importance sampling from q: the learned one is a
    by-product of the training and as wrong as that is, and the worse, the better a bad fit looks.

    The nearer q is to the data, the better; where it is so far that every row is told from every
    draw, beyond 20 nats or so, one classifier has nothing to learn from, and a warning says so.
    Then rows and draws are mixed to waymarks between data and noise, and `n_bridges` networks tell
    each of these from the next [3]_.

    Of 200 rows or more a tenth, at most 100, is not shown to the network: by these training is
    watched.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        f. None is :class:`skebm.energies.MLP`; ``network__hidden_sizes`` and the like can be
        searched over where one is passed. :class:`skebm.energies.Conv` takes images (n, C, H, W).
        A callable makes a module from a :class:`skebm.energies.Spec`; a module is copied, weights
        and all. Rows (n, ...) in, one number per row (n,) out.
    noise : str or Distribution, default="auto"
        q, which is the base of the energy as well. Real columns: ``"gaussian"``: shrunk covariance,
        or columns truncated at `bounds`; ``"mixture"``: of `n_components` normal distributions;
        ``"kernel"``: normal kernels of several scales on the rows; ``"nsf"``, ``"coupling"``,
        ``"maf"``: normalizing flows of noisy rows (:class:`skebm.distributions.NormalizingFlow`; they need
        ``pip install "skebm[flows]"``, and `impute` has no exact conditionals of them to start
        from), of which the first is the most accurate, the second draws fastest and the third is
        fitted fastest. Bits: ``"independent"``,
        ``"chow-liu"``, ``"block-tree"``. One-hot: ``"independent"``. ``"auto"`` is the mixture (the
        normal distribution inside walls), the Chow-Liu tree and independent columns. A
        distribution of :mod:`skebm.distributions`, of columns in their own units, is taken as it is.
    noise_ratio : float > 0, default=1
        :math:`\nu`, draws of the noise for each row.
    n_bridges : int >= 1 or "auto", default="auto"
        Networks on the way from the noise to the data, each of them one `network`; 1 is plain noise
        contrastive estimation. For real rows. ``"auto"``: one for noise that is fitted to the rows,
        else as many as are no more than 4 nats apart (symmetric divergence of normal distributions
        with the moments of the waymarks).
    form : {"logistic", "ranking"}, default="logistic"
        ``"ranking"`` picks the row among all draws of a batch: log Z cancels, and is not learned.
    sampler : Sampler or None, default=None
        What moves samples. None is :class:`skebm.samplers.MALA`, tuned, and
        :class:`~skebm.samplers.GibbsWithGradients` on discrete rows.
    domain : {"auto", "real", "binary"} or Domain, default="auto"
        What rows are. ``"auto"`` is what the sampler takes; where that is open, bits if all entries
        of the first rows are 0 or 1. ``skebm.base.Categorical(groups)`` are one-hot columns.
    n_components : int or "auto", default="auto"
        Of the mixture; ``"auto"`` is one for every hundred rows, at most 40 (128 for few columns),
        and fewer where EM would take long (one for 60,000 images of 28 x 28).
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the noise that real rows get in training, in standard deviations of
        the columns (in units of X with ``standardize=False``), or one for each column: the model is
        one of rows with that noise, which keeps energies from becoming spikes. ``"auto"`` is 0.75
        times the bandwidth of kernels on the rows that is most likely leaving one out, between
        0.05 and 1, and none inside walls; ``"bandwidth"`` that bandwidth itself; None is none.
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
        Of AdamW, per step and relative to the learning rate. The learned log Z is not decayed, but
        is that of a network which is: `log_partition_` is the one to go by.
    averaging : float in [0, 1), default=0
        Decay per pass of a moving average of the weights, which is what the model keeps.
    early_stopping : bool, default=False
        Stop when the objective on held-out rows stagnates, and keep the best weights. For kernels,
        which every row that they were put on is easily told from.
    validation_fraction : float in (0, 1), default=0.1
        Share of the rows held out; the noise is not fitted to them either.
    n_iter_no_change : int, default=10
        Passes without a gain of `tol` that end training.
    tol : float, default=1e-4
        Smallest gain that counts.
    warm_start : bool, default=False
        Go on from the weights of the previous `fit`, on its noise and in its units.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Share of the training rows that `predict` calls outliers; ``"auto"`` is 0.1.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is found, on first need. ``"auto"``: importance sampling from the noise where a
        twentieth of its draws carries the mean, else :class:`skebm.partition.AISBracket`;
        `log_partition_method_` says why. None: not at all; `score_samples` is then -E(x), and
        `score` is a proper rule that needs no log Z.
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
    n_bridges_ : int
        Networks on the way from the noise to the data.
    log_partition_learned_ : float
        log Z as the classifier has it, in nats; nan where rows were ranked.
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
    sigma_ : ndarray of shape (n_features,) or None
        Noise that was added in training, in the units of `sigma`.
    base_ : Distribution
        The fitted q, of standardised rows.
    units_ : Units
        Centres and scales of the columns.
    row_shape_ : tuple of int
        Shape of a row.
    history_ : list of dict
        One for each pass: ``train_loss``; ``accuracy``, the mean share of rows and of draws that
        are told right, of several bridges by the best; ``gain_over_base``, nats a row above the
        noise (an estimate; not with several bridges); learning rate, seconds.
    n_iter_, n_restarts_ : int
        Passes that ran, and roll-backs among them.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    ContrastiveDivergenceDensity : Maximum likelihood of the same model, with chains.
    ScoreMatchingDensity : The slope of log p, without noise to compare with.

    References
    ----------
    .. [1] Gutmann and Hyvarinen (2012), "Noise-contrastive estimation of unnormalized statistical
       models, with applications to natural image statistics", JMLR 13.
    .. [2] Ma and Collins (2018), "Noise contrastive estimation and negative sampling for
       conditional models: consistency and statistical efficiency", EMNLP (ranking).
    .. [3] Rhodes, Xu and Gutmann (2020), "Telescoping density-ratio estimation", NeurIPS.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skebm import NCEDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = NCEDensity(random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a normal distribution has -1.9
    True
    >>> bool(abs(model.log_partition_learned_ - model.log_partition_) < 0.2)
    True
    """

    _parameter_constraints: dict = NCE
    deconvolve = False

    def __init__(
        self,
        network=None,
        *,
        noise="auto",
        noise_ratio=1.0,
        n_bridges="auto",
        form="logistic",
        sampler=None,
        domain="auto",
        n_components="auto",
        sigma="auto",
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
        self.noise = noise
        self.noise_ratio = noise_ratio
        self.n_bridges = n_bridges
        self.form = form
        self.sampler = sampler
        self.domain = domain
        self.n_components = n_components
        self.sigma = sigma
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
        return replace(found, rule=noise_rule(self, self.units_.domain))

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        if not going_on:
            self._learn_base(rows, self.noise)
            self._learn_reach(rows)
            self._approach = approach_of(self, rows, draw_seed(self.random_state_))

    def _network(self, settings: Settings, spec: Spec) -> nn.Module:
        if self._approach is None:
            return super()._network(settings, spec)
        way = self._approach.way
        plain = spec._replace(whitening=None)  # which each waymark has of its own
        networks = [build_network(settings.network, plain) for _ in range(way.n_bridges)]
        return Telescope(networks, way)

    def _proposal(self, energy: NeuralEnergy) -> Distribution | None:
        """What log Z is weighed by and samples start from, where the noise is far."""
        if self._approach is None:
            return energy.base
        like = next(energy.parameters())
        return self._approach.nearby.to(like.device, like.dtype)

    def _withhold(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        return withheld(rows, generator)

    def _objective(self, settings: Settings, energy: NeuralEnergy) -> Objective:
        return contrast_of(settings.rule, energy, self._noise)

    def _net_kwargs(self, settings: Settings) -> dict[str, Any]:
        known = super()._net_kwargs(settings)
        if self.weight_decay:  # log Z is no weight
            known["optimizer__param_groups"] = [("shift", {"weight_decay": 0.0})]
        return known

    def _settle(self, rows: Rows) -> None:
        super()._settle(rows)
        last: dict[str, Any] = self.history_[-1] if self.history_ else {}
        if last.get("accuracy", 0.0) >= SATURATED and len(rows) >= FEWEST_ROWS:
            n, real = self.n_bridges_, not self._discrete and self.form == "logistic"
            apart = "rows and draws of the noise" if n == 1 else "neighbours on its way"
            more = f" or n_bridges of at least {2 * n + 2}," if real else ""
            warnings.warn(
                f"The network tells {last['accuracy']:.1%} of {apart} apart: so far from each "
                "other they teach a classifier little, and its densities are not to be trusted. "
                f"Choose noise nearer to the data,{more} or a larger sigma.",
                ConvergenceWarning,
                stacklevel=4,
            )

    @property
    def n_bridges_(self) -> int:
        """Networks on the way from the noise to the data."""
        check_is_fitted(self)
        return 1 if self._approach is None else self._approach.way.n_bridges

    @property
    def log_partition_learned_(self) -> float:
        """log Z as the classifier has it, in nats; nan where rows were ranked."""
        check_is_fitted(self)
        if self._settings.rule.form == "ranking":
            return math.nan
        return float(self.net_.module_.log_partition.detach())
