"""Neural densities trained by score matching."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_is_fitted, draw_seed
from skebm.energies import NeuralEnergy
from skebm.estimators._density_settings import (
    SCORE_MATCHING,
    Settings,
    check_objective_stays,
    levels_of,
    matching_rule,
    resolve,
)
from skebm.estimators._neural import Neural
from skebm.estimators._real_bases import fit_real_bases, gap_noise, noise_level
from skebm.estimators._real_methods import RealMethods
from skebm.estimators._real_rows import RealRows
from skebm.estimators.base import BaseDensity
from skebm.objectives import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
)
from skebm.objectives.score_matching import Rowwise
from skebm.training.rows import Rows


class ScoreMatchingDensity(Neural, RealRows, RealMethods, BaseDensity):
    r"""Neural density of continuous columns, from one fit and without sampling in training.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad E(x) = -\log q(x) + f(x)

    A base q is fitted first, and a network f that corrects it is trained by score matching: the
    gradient of log p is fitted to that of the data, which needs neither Z nor samples. Without
    training, or where the base says all, p is the base. log Z is found afterwards, on first need,
    by importance sampling from the base: cheap, as it is near.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        f. None is :class:`skebm.energies.MLP`; ``network__hidden_sizes`` and the like can be
        searched over where one is passed. :class:`skebm.energies.Conv` takes images (n, C, H, W).
        A callable makes a module from a :class:`skebm.energies.Spec`; a module is copied, weights
        and all. Rows (n, ...) in, one number per row (n,) out, twice differentiable for the
        objectives with second derivatives.
    objective : {"denoising", "exact", "sliced", "multiscale"}, default="denoising"
        ``"denoising"``: the density of rows convolved by noise of level `sigma`, whose score is
        known; the cheapest, and bounded on any data. ``"exact"``: the trace of the Hessian, for up
        to about 64 columns; ``"sliced"``: an unbiased estimate of it along random directions.
        ``"multiscale"``: an energy of rows and of the level of noise, for images and for samples
        that come down the levels; its density at the smallest level is known less well.
    base : {"auto", "gaussian", "mixture", "kernel"}, Distribution or None, default="auto"
        q. ``"gaussian"``: shrunk covariance, or columns truncated at `bounds`; ``"mixture"``: of
        `n_components` normal distributions; ``"kernel"``: normal kernels of several scales on the
        rows, learned leaving one out (rows left out in training, too). ``"auto"`` is the mixture,
        and the normal distribution inside walls or for several levels. A distribution of
        :mod:`skebm.distributions`, of columns in their own units, is taken as it is. None leaves q out: p
        then has a log Z inside walls on both sides only.
    n_components : int or "auto", default="auto"
        Of the mixture; ``"auto"`` is one for every hundred rows, at most 40 (128 for few columns),
        and fewer where EM would take long (one for 60,000 images of 28 x 28).
    sigma : float, array-like, "auto", "bandwidth" or "kurtosis", default="auto"
        Standard deviation of the noise, in standard deviations of the columns (in units of X with
        ``standardize=False``), or one for each column. ``"auto"`` is 0.75 times the bandwidth of
        kernels on the rows that is most likely leaving one out, between 0.05 and 1; ``"bandwidth"``
        that bandwidth itself; ``"kurtosis"`` the rule of [4]_, wider in columns of heavy tails. For
        several levels a pair (smallest, largest); ``"auto"`` is 0.05 to half the distance of rows.
        Exact and sliced score matching take no noise, but for columns of few distinct values.
    deconvolve : bool, default=False
        Take the noise off the base when training is over: :math:`-\log q(x) + f(x)` with the base
        of clean rows and the correction of noisy ones. Likelihoods of clean rows are higher where
        the noise is wide, labels of outliers are better without.
    n_projections : int, default=1
        Directions for each row and step of sliced score matching.
    projection : {"rademacher", "gaussian"}, default="rademacher"
        Their distribution.
    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Walls (lower, upper), None for a side without; all columns have them on the same sides.
        Exact and sliced score matching only, by weights that vanish at the walls.
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
        `score` minus the Hyvärinen score on X, proper, but blind to the masses of far modes and
        dependent on units.
    sampler : Sampler or None, default=None
        Of real rows, for samples and fill-ins; None is :class:`skebm.samplers.HMC`, tuned.
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
    sigma_ : ndarray of shape (n_features,), tuple of float or None
        Noise of training in the units of `sigma`; smallest and largest of several levels.
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
        One for each pass: losses (0 is a flat energy), learning rate, seconds.
    n_iter_, n_restarts_ : int
        Passes that ran, and roll-backs among them.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    EnergyOutlierDetector : Labels with a known rate of false alarms, from this or any density.
    skebm.inspection.EnergyDisplay : Contours of the energy with data and samples.

    References
    ----------
    .. [1] Hyvärinen (2005), "Estimation of non-normalized statistical models by score matching",
       JMLR 6.
    .. [2] Vincent (2011), "A connection between score matching and denoising autoencoders", Neural
       Computation 23(7).
    .. [3] Song, Garg, Shi and Ermon (2019), "Sliced score matching", UAI.
    .. [4] Livernoche, Zan and Rabbany (2026), arXiv 2605.06955 (levels from the kurtosis).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_moons
    >>> from skebm import ScoreMatchingDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = ScoreMatchingDensity(random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a normal distribution has -1.9
    True
    >>> model.sample(3, random_state=0).shape
    (3, 2)
    >>> model.predict([[0.0, 1.0], [10.0, 10.0]])
    array([ 1, -1])
    >>> model.impute([[np.nan, 1.0]], random_state=0).shape
    (1, 2)
    """

    _parameter_constraints: dict = SCORE_MATCHING
    _levels: tuple[float, float] | None
    _noise: np.ndarray | None

    def __init__(
        self,
        network=None,
        *,
        objective="denoising",
        base="auto",
        n_components="auto",
        sigma="auto",
        deconvolve=False,
        n_projections=1,
        projection="rademacher",
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
        sampler=None,
        max_restarts=10,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.objective = objective
        self.base = base
        self.n_components = n_components
        self.sigma = sigma
        self.deconvolve = deconvolve
        self.n_projections = n_projections
        self.projection = projection
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
        self.sampler = sampler
        self.max_restarts = max_restarts
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _resolve(self, n_rows: int, *, streaming: bool) -> Settings:
        return resolve(self, n_rows, matching_rule(self), streaming=streaming)

    def _fit(self, X: Any, sample_weight: Any, *, streaming: bool) -> Any:
        if self.__sklearn_is_fitted__():  # what comes now need not be the rows of the base
            self.net_.module_.leaves_out = False
        return super()._fit(X, sample_weight, streaming=streaming)

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        self._leaves_out = not going_on and self.base == "kernel" and len(rows) > 2
        if going_on:
            check_objective_stays(self._settings.rule.objective, self.objective)
            return
        seed = draw_seed(self.random_state_)
        noise = None
        if self.objective == "denoising":
            noise = noise_level(self.sigma, rows)
        elif self.objective != "multiscale":
            noise = gap_noise(rows)
        self._noise = None if noise is None else noise.cpu().numpy()
        self._levels = levels_of(self, rows.n_columns)
        several = self._levels is not None
        self._noisy_base, self.base_ = fit_real_bases(
            self, self.base, rows, noise, seed, several=several
        )

    def _objective(self, settings: Settings, energy: NeuralEnergy) -> Rowwise:
        objective = self._matching(settings, energy)
        objective.leaves_out = self._leaves_out
        return objective

    def _matching(self, settings: Settings, energy: NeuralEnergy) -> Rowwise:
        noise: Any = self._noise
        if noise is not None:
            noise = torch.as_tensor(noise).to(next(energy.parameters()))
        rule = settings.rule
        if rule.objective == "denoising":
            return DenoisingScoreMatching(energy, noise)
        if self._levels is not None:
            return MultiscaleScoreMatching(energy, *self._levels)
        if rule.objective == "exact":
            return ExactScoreMatching(energy, noise)
        return SlicedScoreMatching(energy, rule.n_projections, rule.projection, noise)

    @property
    def sigma_(self) -> Any:
        """Noise of training, in the units of `sigma`; of several levels the ends."""
        check_is_fitted(self)
        if self._levels is not None:
            return self._levels
        return None if self._noise is None else self._noise.astype(np.float64)

    @property
    def _trained_noise(self) -> Tensor | None:
        if self._levels is not None:
            return torch.tensor(self._levels[0], dtype=torch.float64)
        if self._settings.rule.objective != "denoising":
            return None
        return torch.as_tensor(self._noise)
