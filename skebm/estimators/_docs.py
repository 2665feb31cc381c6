"""Documentation of the parameters and attributes that estimators share.

A line ``<<name, name>>`` in a class docstring is replaced by the entries of these names.
"""

from __future__ import annotations

import inspect
import re
from typing import TypeVar

Class = TypeVar("Class", bound=type)


class DocLinkMixin:
    """Where the HTML representation of an estimator links to: its page of the reference."""

    _doc_link_module = "skebm"
    _doc_link_template = "https://skebm.readthedocs.io/en/latest/generated/skebm.{name}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        return {"name": type(self).__name__}


class Parameters:
    r"""Entries of constructor parameters.

    network : config object, class, callable, nn.Module or None, default=None
        Network f, which maps rows (n, ...) to one number per row, (n,) or (n, 1). None is
        :class:`skebm.energies.MLP`, whose parameters can be searched over by ``network__<name>``.
        :class:`skebm.energies.Conv` takes images (n, C, H, W). A class or callable builds a module
        from a :class:`skebm.energies.Spec` or the number of columns, and its other arguments are
        ``network__<name>`` (:class:`skebm.energies.NetworkOf`); a module is copied with its
        weights. f is an energy: low where rows are likely.

    sampler : Sampler or None, default=None
        Sampler of the chains, in training and for drawing samples. None is adaptive
        :class:`skebm.samplers.MALA` for real rows (samples are drawn by proposals of the base where
        it is near the model) and
        :class:`~skebm.samplers.GibbsWithGradients` for discrete rows
        (:class:`~skebm.samplers.Gibbs` if the energy is pairwise). Its parameters can be searched
        over by ``sampler__<name>``; a ``sampler__step_size`` that is set while `sampler` is None is
        kept fixed and not adapted.

    chains : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        Where chains start at each batch, and how many steps they take. ``"persistent"``: where they
        ended at the previous batch (:class:`skebm.samplers.Persistent`); ``"replay"``: at rows of a
        buffer, 5 % of them reinitialised (:class:`~skebm.samplers.ReplayBuffer`) [2]_; ``"data"``:
        at the rows of the batch (:class:`~skebm.samplers.FromData`) [1]_; ``"noise"``: at draws of
        the base (:class:`~skebm.samplers.FromNoise`). Draws of the base also initialise the chains
        of the first two. By default chains take ten steps, and one independence Metropolis-Hastings
        step with a draw of the base as the proposal [6]_, which connects well-separated modes.
        Parameters can be searched over by ``chains__<name>``.

    domain : {"auto", "real", "binary"} or Domain, default="auto"
        Type of the rows. ``"auto"`` is that of the sampler; if the sampler allows several, rows are
        binary if all entries in the first `fit` are 0 or 1. ``skebm.base.Categorical(groups)``
        stands for one-hot columns. `ContrastiveDivergenceDensity` alone also accepts ``"mixed"``:
        columns of zeros and ones are then bits and the others numbers, as in tables with
        categories.

    base : str, MixtureBase, Distribution or None, default="auto"
        Base distribution q. Real columns: ``"gaussian"`` (with shrunk covariance, or truncated at
        `bounds`), ``"mixture"`` (a Gaussian mixture; settings in :class:`MixtureBase`),
        ``"kernel"`` (Gaussian kernels of several scales) or ``"stack"`` (mixtures of several sizes
        and kernels, weighted by held-out rows: :class:`skebm.distributions.Stack`; with more than
        100 columns, mixtures whose covariances are of low rank plus diagonal). Binary columns:
        ``"independent"``, ``"chow-liu"`` or ``"block-tree"``. One-hot columns: ``"independent"``.
        With ``"auto"``, the base of real columns is the Gaussian if there are bounds. Without
        bounds it is the stack if the model is that of clean rows or if there are more than 100
        columns (in training without its kernels, which would slow chains down), and the mixture
        otherwise. For binary rows ``"auto"`` is the Chow-Liu tree, or independent columns if the
        network is a pairwise energy, which could be a tree itself; for one-hot rows it is
        independent columns. The attribute `base_` shows what was chosen. A distribution of
        :mod:`skebm.distributions` is used as it is, in the units of X. None means no base, and is
        meant for discrete rows and for columns bounded on both sides.

    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the Gaussian noise added to real rows in training, or one for each
        column, in standard deviations of the columns (in units of X with ``standardize=False``).
        The model is the density of the noisy rows, which prevents it from collapsing to spikes.
        ``"bandwidth"`` is the bandwidth that maximises the leave-one-out likelihood of a kernel
        density; ``"auto"`` is 0.75 times that bandwidth, between 0.05 and 1, and no noise if there
        are bounds; None adds no noise.

    deconvolve : bool, default=True
        Whether the model is the density of clean rows or of rows with the noise of training. True
        removes the noise from the base after training: the energy is then
        :math:`-\log q(x) + f(x)` with the base q of clean rows and the correction f learned on
        noisy ones, so that `score` is the likelihood of rows as they are. False keeps the noise,
        which ranks outliers better. The parameter has no effect if training adds no noise.

    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Bounds (lower, upper) of the columns, with None for an unbounded side. All columns are
        bounded on the same sides.

    standardize : bool, default=True
        Train on columns of mean 0 and variance 1. Likelihoods are in units of X in any case.

    learning_rate : float, default=2e-3
        Learning rate of Adam.

    batch_size : int or "auto", default="auto"
        Maximum number of rows per step; ``"auto"`` is 128, or with more than 781 columns 100,000
        divided by their number, but at least 32.

    n_iter : int or "auto", default="auto"
        Number of epochs; ``"auto"`` amounts to about a thousand steps, but to at most five times as
        many epochs as there are rows, and to up to eight times as many while held-out rows gain.

    optimizer : AdamW or None, default=None
        Weight decay, learning rate schedule, weight averaging and roll-backs; None is
        :class:`skebm.training.AdamW` with its default settings. Parameters can be searched over by
        ``optimizer__<name>``.

    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows no longer improves, and keep the best weights;
        settings in :class:`skebm.training.EarlyStopping`. Outliers are ranked better without it.

    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories: names, numbers or a boolean mask. ``"from_dtype"``: columns of frames
        that hold text or are of a categorical type, and columns of object arrays that hold other
        values than numbers. If there are such columns, each other column is a bit if it holds only
        zeros and ones, and a standardised number otherwise. The base is then one of
        ``"latent-classes"`` (``"auto"``), ``"independent"``, a tree or ``"gaussian"``, as in
        :class:`skebm.RBMEstimator`; no noise is added to the rows, and the sampler is
        :class:`skebm.samplers.Blocks`. None: no column is categorical.

    warm_start : bool, default=False
        Continue from the weights, chains, optimizer and random generator of the previous `fit`,
        with the same base and units; `history_` continues as well. The schedule of the learning
        rate starts anew.

    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training rows that `predict` classifies as outliers; ``"auto"`` is 0.1.

    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: importance sampling from the
        base if the effective sample size is at least a twentieth of the draws (half of them with up
        to three real columns); otherwise :class:`skebm.partition.Quadrature` with up to three real
        columns, and :class:`skebm.partition.AISBracket` with more; `log_partition_method_` gives
        the reason. None: log Z is not estimated; `score_samples` is then -E(x), and `score` a
        proper scoring rule that needs no log Z: minus the Hyvärinen score for real X (which depends
        on the units and is insensitive to the masses of separate modes), and the pseudo-likelihood
        for discrete rows.

    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers.

    verbose : int, default=0
        1 shows a progress bar.

    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.

    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation.

    net_params : dict or None, default=None
        Further arguments of the skorch net, also as ``net__<name>`` in `set_params` and searches:
        optimizer, callbacks, train_split, ... With ``on_interrupt="return"``, a call that is
        interrupted by Ctrl-C issues a warning and returns the model trained so far; with
        ``"raise"``, the default, it raises `KeyboardInterrupt`.
    """


class Attributes:
    """Entries of fitted attributes.

    log_partition_, log_partition_std_ : float
        log Z in nats and its standard error, 0 when exact.

    log_partition_bounds_ : tuple of float
        Ends of the interval for log Z.

    log_partition_kind_ : {"exact", "certain", "probabilistic", "heuristic"}
        Whether the interval is certain, holds with a stated probability, or has no guarantee.

    log_partition_parts_ : dict of str to (float, float)
        Estimates from which the interval was made, with their standard errors.

    partition_ : PartitionEstimator or None
        Method by which log Z is estimated.

    log_partition_method_ : str
        Description of the method, with the reason for the choice of ``"auto"``.

    offset_ : float
        Threshold of `predict` in the units of `score_samples`.

    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.

    n_iter_, n_restarts_ : int
        Number of epochs, including those of earlier warm starts and of `partial_fit`, and number of
        roll-backs.

    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    sigma_ : ndarray of shape (n_features,) or None
        Noise level of training, in the units of `sigma`.

    base_ : Distribution or None
        The fitted base of standardised rows, with the noise included.

    units_ : Units
        Centres and scales of the columns.

    row_shape_ : tuple of int
        Shape of a row.

    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The sampler, the energy of standardised rows as a torch module, and the skorch net.
    """


def _entries(holder: type) -> dict[str, str]:
    """Entries of a docstring by the first name of each."""
    _, *blocks = inspect.cleandoc(holder.__doc__ or "").split("\n\n")
    return {re.split(r"[ ,:]", block, maxsplit=1)[0]: block for block in blocks}


SHARED = _entries(Parameters) | _entries(Attributes)
GROUPS = {
    "log_partition": [
        "log_partition_",
        "log_partition_bounds_",
        "log_partition_kind_",
        "log_partition_parts_",
        "partition_",
        "log_partition_method_",
    ],
    "compute": ["random_state", "verbose", "device", "dtype", "net_params"],
}


def insert_shared_docs(cls: Class) -> Class:
    """Insert the shared entries into the docstring of a class."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = re.sub(r"^<<(.+)>>$", _descriptions, doc, flags=re.MULTILINE)
    return cls


def _descriptions(line: re.Match[str]) -> str:
    names = [name.strip() for name in line[1].split(",")]
    flat = [one for name in names for one in GROUPS.get(name, [name])]
    return "\n".join(SHARED[name] for name in flat)
