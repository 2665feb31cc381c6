"""Neural densities by noise contrastive estimation, which also learns log Z."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from scipy.special import expit

from skebm._validation import check_is_fitted
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.neural.density import NeuralDensity
from skebm.estimators.neural.objectives import NoiseContrastiveEstimation


@insert_shared_docs
class NCEDensity(NeuralDensity):
    r"""Neural density by noise contrastive estimation: a classifier of data versus known noise.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad
        \log \frac{P(data \mid x)}{P(noise \mid x)} = -f(x) - \log Z - \log \nu

    A noise distribution q is fitted to the rows, and a network f learns to discriminate them from
    draws of q, :math:`\nu` per row [1]_, without Markov chains. log Z is learned as a parameter.
    After `fit` log Z is estimated again, by importance sampling from q, because the error of the
    learned value grows with that of the model, and makes bad fits look good.

    The nearer q is to the data, the better. If it is so far away, more than about 20 nats, that all
    rows are classified correctly, a single classifier cannot learn the density ratio, and a warning
    is given. Rows and draws can then be interpolated, which gives waymarks between data and noise;
    each of `n_bridges` networks discriminates one waymark from the next [3]_.

    If there are 50 rows or more, a tenth, at most 100, are held out from the network to monitor
    training.

    Parameters
    ----------
    <<network>>
    noise : str, MixtureBase, estimator or Distribution, default="auto"
        Noise distribution q, which is also the base of the energy. Real columns: ``"gaussian"``
        (with shrunk covariance, or truncated at `bounds`), ``"mixture"`` (a Gaussian mixture;
        settings in :class:`MixtureBase`), ``"kernel"`` (Gaussian kernels of several scales),
        ``"stack"`` (mixtures of several sizes and kernels, weighted by held-out rows:
        :class:`skebm.distributions.Stack`), or the normalizing flows ``"nsf"``, ``"coupling"`` and
        ``"maf"``, fitted to noisy rows (:class:`skebm.distributions.NormalizingFlow`). Among the
        flows, the first is the most accurate, the second is sampled fastest and the third is fitted
        fastest; they need ``pip install "skebm[flows]"``, and have no exact conditionals from which
        `impute` could start. Binary columns: ``"independent"``, ``"chow-liu"`` or
        ``"block-tree"``. One-hot columns: ``"independent"``. ``"auto"`` is the stack for clean rows
        and, with mixtures of low rank, for more than 100 real columns, the mixture for other real
        rows (the Gaussian if there are bounds), the Chow-Liu tree for binary rows and independent
        columns for one-hot ones. An estimator with ``fit``, ``score_samples`` in nats and
        ``sample``, such as scikit-learn's GaussianMixture, is cloned and fitted to numbers or bits,
        in the units of X; a ``FrozenEstimator``, and a distribution of
        :mod:`skebm.distributions`, is used as it is. `sample` needs derivatives of an estimator's
        log p, which are known of ours and of scikit-learn's.
    noise_ratio : float > 0, default=1
        :math:`\nu`, the number of draws of the noise per row.
    n_bridges : int >= 1 or "auto", default="auto"
        Number of networks between noise and data, each a copy of `network`, for real rows; 1 is
        plain noise contrastive estimation. ``"auto"``: 1 if the noise is fitted to the rows,
        otherwise as many as are needed for neighbouring waymarks to be at most 4 nats apart (in
        the symmetric KL divergence of Gaussians with their moments).
    form : {"logistic", "ranking"}, default="logistic"
        ``"ranking"`` selects the row among all draws of a batch [2]_: log Z cancels and is not
        learned.
    sampler : Sampler or None, default=None
        Sampler for samples and imputations. None is adaptive :class:`skebm.samplers.MALA`, and
        :class:`~skebm.samplers.GibbsWithGradients` on discrete rows.
    <<domain, sigma, deconvolve, bounds, standardize, learning_rate, batch_size, n_iter>>
    optimizer : AdamW or None, default=None
        Settings of the optimizer; None is :class:`skebm.training.AdamW` with its defaults. Weight
        decay applies to the network, but not to the learned log Z that normalises it: prefer
        `log_partition_`.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows no longer improves, and keep the best weights;
        settings in :class:`skebm.training.EarlyStopping`. Recommended for ``noise="kernel"``, as
        the network easily overfits to kernels centred on the training rows. The held-out rows are
        not used to fit the noise either.
    <<warm_start, contamination, partition, compute>>

    Attributes
    ----------
    n_bridges_ : int
        Number of networks between noise and data.
    log_partition_learned_ : float
        log Z as learned by the classifier, in nats; nan with ``form="ranking"``.
    <<log_partition, offset_, sigma_, base_, units_, row_shape_>>
    history_ : list of dict
        One entry per epoch: ``train_loss``; ``accuracy``, the mean fraction of rows and of draws
        that are classified correctly (by the best of several bridges); ``gain_over_base``, the
        estimated mean log-likelihood ratio to the noise in nats (not with several bridges);
        learning rate, seconds.
    <<converged_, n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    ContrastiveDivergenceDensity : Maximum likelihood of the same model, with chains.
    ScoreMatchingDensity : Score matching, without a noise distribution.

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
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> bool(abs(model.log_partition_learned_ - model.log_partition_) < 0.2)
    True
    """

    _kind = NoiseContrastiveEstimation
    _names = {"base": "noise"}

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

    # ---------------------------------------------------------------- the classifier

    @property
    def n_bridges_(self) -> int:
        """Number of networks between noise and data."""
        check_is_fitted(self)
        rule: Any = self._recipe.family.rule
        return rule.n_bridges

    @property
    def log_partition_learned_(self) -> float:
        """log Z as learned by the classifier, in nats; nan with ``form="ranking"``."""
        check_is_fitted(self)
        rule: Any = self._recipe.family.rule
        if rule.form == "ranking":
            return math.nan
        module: Any = self.net_.module_
        return float(module.log_partition.detach())

    def noise_posterior(self, X: Any) -> np.ndarray:
        r"""Probability, by the classifier, that each row is from the data and not from the noise.

        .. math:: D(x) = \frac{p(x)}{p(x) + \nu q(x)}

        where p is the model with the log Z that the classifier learned (`log_partition_learned_`;
        `log_partition_` with ``form="ranking"``, which learns none), q is the noise and :math:`\nu`
        is `noise_ratio`. With several bridges it is the probability by a single classifier of data
        and noise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
            In [0, 1].

        References
        ----------
        Gutmann and Hyvärinen (2012), "Noise-contrastive estimation of unnormalized statistical
        models, with applications to natural image statistics", JMLR 13, equation 6.
        """
        rows, rule = self._rows(X), cast(Any, self._recipe.family.rule)
        log_z = self.log_partition_ if rule.form == "ranking" else self.log_partition_learned_
        correction = self._map(rows, lambda energy, x: energy.correction(x)).double().numpy()
        found: np.ndarray = expit(-correction - log_z - math.log(rule.noise_ratio))
        return found
