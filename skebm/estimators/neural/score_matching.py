"""Neural densities trained by score matching."""

from __future__ import annotations

from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.neural.density import NeuralDensity
from skebm.estimators.neural.objectives import ScoreMatching


@insert_shared_docs
class ScoreMatchingDensity(NeuralDensity):
    r"""Neural density of continuous columns by score matching, without sampling in training.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad E(x) = -\log q(x) + f(x)

    A base q is fitted first, and a network f that corrects it is trained by score matching: the
    gradient of log p is fitted to that of the data, which needs neither Z nor samples. The model
    starts as its base. log Z is estimated after training, when it is first needed, by importance
    sampling from the base, which is cheap as the base is near the model. If there are 50 rows or
    more, a tenth, at most 100, are held out from the network to monitor training; if they do not
    become more likely than under the base, training ends early, and the model is the base.

    Parameters
    ----------
    network : config object, class, callable, nn.Module or None, default=None
        Network f, which maps rows (n, ...) to one number per row, (n,) or (n, 1), and must be twice
        differentiable for the objectives with second derivatives. None is
        :class:`skebm.energies.MLP`, whose parameters can be searched over by ``network__<name>``.
        :class:`skebm.energies.Conv` takes images (n, C, H, W). A class or callable builds a module
        from a :class:`skebm.energies.Spec` or the number of columns, and its other arguments are
        ``network__<name>`` (:class:`skebm.energies.NetworkOf`); a module is copied with its
        weights.
    objective : {"denoising", "exact", "sliced", "multiscale"} or Sliced, default="denoising"
        ``"denoising"``: denoising score matching [2]_, which fits the density of rows with noise of
        level `sigma`; it is the cheapest, and bounded below on any data. ``"exact"``: score
        matching with the exact trace of the Hessian [1]_, for up to about 64 columns. ``"sliced"``:
        with an unbiased estimate of the trace along random directions [3]_; settings in
        :class:`Sliced`.
        ``"multiscale"``: denoising score matching at a range of noise levels, for images and for
        annealed sampling; its density at the smallest level is less accurate.
    base : str, MixtureBase, Distribution or None, default="auto"
        Base distribution q: ``"gaussian"`` (with shrunk covariance, or truncated at `bounds`),
        ``"mixture"`` (a Gaussian mixture; settings in :class:`MixtureBase`), ``"kernel"``
        (Gaussian kernels of several scales, fitted by leave-one-out; the kernel of a row is also
        left out in training) or ``"stack"`` (Gaussian mixtures of several sizes and kernels,
        weighted by held-out rows: :class:`skebm.distributions.Stack`; with more than 100 columns,
        only mixtures whose covariances are low-rank plus diagonal). ``"auto"`` is the stack for
        clean rows and for more than 100 columns, the mixture for other rows, and the Gaussian if
        there are bounds or several noise levels; the attribute `base_` shows what was chosen. A
        distribution of :mod:`skebm.distributions` is used as it is, in the units of X. None is no
        base; log Z then exists only if columns are bounded on both sides.
    sigma : float, array-like, "auto", "bandwidth" or "kurtosis", default="auto"
        Standard deviation of the noise, or one for each column, in standard deviations of the
        columns (in units of X with ``standardize=False``). ``"bandwidth"`` is the bandwidth that
        maximises the leave-one-out likelihood of a kernel density; ``"auto"`` is 0.75 times that
        bandwidth, between 0.05 and 1; ``"kurtosis"`` is the rule of [4]_, which adds more noise to
        columns with heavy tails. For several levels it is a pair (smallest, largest); ``"auto"`` is
        then 0.05 to half the distance between rows. Exact and sliced score matching add noise only
        to columns with few distinct values.
    <<deconvolve>>
    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Bounds (lower, upper) of the columns, with None for an unbounded side; all columns are
        bounded on the same sides. Only for exact and sliced score matching, whose weights vanish at
        the bounds.
    <<standardize, learning_rate, batch_size, n_iter, optimizer, early_stopping, warm_start>>
    <<contamination, partition>>
    sampler : Sampler or None, default=None
        Sampler of real rows for samples and imputations; None is proposals of the base where it is
        near the model, and adaptive :class:`skebm.samplers.HMC` elsewhere.
    <<compute>>

    Attributes
    ----------
    sigma_ : ndarray of shape (n_features,), tuple of float or None
        Noise level of training, in the units of `sigma`; smallest and largest of several levels.
    <<base_, units_, row_shape_, log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses (0 for a flat energy); ``gain_over_base``, the estimated mean
        log-likelihood ratio to the base, in nats; learning rate, seconds.
    <<converged_, n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    EnergyOutlierDetector : Outlier detection with a bounded rate of false alarms.
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
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> model.sample(3, random_state=0).shape
    (3, 2)
    >>> model.predict([[0.0, 1.0], [10.0, 10.0]])
    array([ 1, -1])
    >>> model.impute([[np.nan, 1.0]], random_state=0).shape
    (1, 2)
    """

    _kind = ScoreMatching
    _names = {"form": "objective"}

    def __init__(
        self,
        network=None,
        *,
        objective="denoising",
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
        sampler=None,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())
