"""Parameters and attributes that estimators share, documented once.

A line ``<<name, name>>`` of a class docstring stands for the entries of these names.
"""

from __future__ import annotations

import inspect
import re
from typing import TypeVar

Class = TypeVar("Class", bound=type)


class Parameters:
    r"""Entries of constructor parameters.

    network : config object, callable, nn.Module or None, default=None
        f. None is :class:`skebm.energies.MLP`; ``network__hidden_sizes`` and the like can be
        searched over. :class:`skebm.energies.Conv` takes images (n, C, H, W). A callable makes a
        module from a :class:`skebm.energies.Spec`; a module is copied, weights and all. Rows (n,
        ...) in, one number per row (n,) out.

    sampler : Sampler or None, default=None
        What moves the chains, in training and for samples. None is :class:`skebm.samplers.MALA`,
        adaptive, and :class:`~skebm.samplers.GibbsWithGradients` on discrete rows. Parameters can
        be searched over by ``sampler__<name>``; a ``sampler__step_size`` that is set on None is
        kept, and not adapted.

    chains : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        Where chains start at each batch, and how many steps they take: where they were, as
        :class:`skebm.samplers.Persistent`; at rows of a buffer, 5 % of them anew,
        :class:`~skebm.samplers.ReplayBuffer` [2]_; at the rows of the batch,
        :class:`~skebm.samplers.FromData` [1]_; at draws of the base,
        :class:`~skebm.samplers.FromNoise`, which is also where the first two begin. By default ten
        steps, and one independence Metropolis-Hastings proposal from the base [6]_, which takes
        chains between modes that short steps do not connect; ``chains__n_steps`` and the like can
        be searched over.

    domain : {"auto", "real", "binary"} or Domain, default="auto"
        What rows are. ``"auto"`` is what the sampler takes; where that is open, bits if all entries
        of the first rows are 0 or 1. ``skebm.base.Categorical(groups)`` are one-hot columns.

    base : str, MixtureBase, Distribution or None, default="auto"
        q. Real columns: ``"gaussian"``: shrunk covariance, or columns truncated at `bounds`;
        ``"mixture"``: normal distributions, with settings as :class:`MixtureBase`; ``"kernel"``:
        normal kernels of several scales on the rows. Bits: ``"independent"``, ``"chow-liu"``,
        ``"block-tree"``. One-hot: ``"independent"``. ``"auto"`` is the mixture (the normal
        distribution inside bounds), the Chow-Liu tree and independent columns. A distribution of
        :mod:`skebm.distributions`, of columns in their own units, is taken as it is. None leaves q
        out: for discrete rows, and inside bounds on both sides.

    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the noise that real rows get in training, in standard deviations of
        the columns (in units of X with ``standardize=False``), or one for each column: the model is
        one of rows with that noise, which keeps energies from becoming spikes. ``"auto"`` is 0.75
        times the bandwidth of kernels on the rows that is most likely leaving one out, between 0.05
        and 1, and none inside bounds; ``"bandwidth"`` that bandwidth itself; None is none.

    deconvolve : bool, default=False
        Take the noise off the base when training is over: :math:`-\log q(x) + f(x)` with the base
        of clean rows and the correction of noisy ones. Likelihoods of clean rows are higher where
        the noise is wide; outliers are ranked better without.

    bounds : pair of float or array-like of shape (n_features,), or None, default=None
        Bounds (lower, upper), None for a side without; all columns have them on the same sides.

    standardize : bool, default=True
        Train on columns of mean 0 and variance 1. Likelihoods are those of X in any case.

    learning_rate : float, default=2e-3
        Of Adam.

    batch_size : int or "auto", default="auto"
        Rows per step at most; ``"auto"`` is 128.

    n_iter : int or "auto", default="auto"
        Passes over the data; ``"auto"`` makes about a thousand steps.

    optimizer : AdamW or None, default=None
        Weight decay, schedule of the learning rate, averaging, roll-backs:
        :class:`skebm.training.AdamW`, of which None is the default. ``optimizer__weight_decay`` and
        the like can be searched over.

    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows stagnates, and keep the best weights; settings as
        :class:`skebm.training.EarlyStopping`. Outliers are ranked better without.

    warm_start : bool, default=False
        Go on from the weights of the previous `fit`, on its base and in its units; `history_` goes
        on as well.

    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training rows that `predict` calls outliers; ``"auto"`` is 0.1.

    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is found, on first need. ``"auto"``: importance sampling from the base where the
        effective sample size is a twentieth of its draws or more, else
        :class:`skebm.partition.AISBracket`; `log_partition_method_` says why. None: not at all;
        `score_samples` is then -E(x), and `score` is a proper rule that needs no log Z: minus the
        Hyvärinen score on real X (blind to the masses of far modes and dependent on units), the
        pseudo-likelihood of discrete rows.

    random_state : int, RandomState instance or None, default=None
        Seed of everything that is drawn.

    verbose : int, default=0
        1 shows a progress bar.

    device : str, default="auto"
        ``"auto"`` is a GPU where there is one.

    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation.

    net_params : dict or None, default=None
        Further arguments of the skorch net, also as ``net__<name>`` in `set_params` and searches:
        optimizer, callbacks, train_split, ... With ``on_interrupt="return"`` a call that Ctrl-C
        ends warns and returns the model trained so far, where ``"raise"``, the default, raises
        `KeyboardInterrupt`.
    """


class Attributes:
    """Entries of fitted attributes.

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

    n_iter_, n_restarts_ : int
        Passes that ran, those of earlier warm starts and of `partial_fit` included, and
        roll-backs among them.

    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    sigma_ : ndarray of shape (n_features,) or None
        Noise level of training in the units of `sigma`.

    base_ : Distribution or None
        The fitted base, of standardised rows and with the noise.

    units_ : Units
        Centres and scales of the columns.

    row_shape_ : tuple of int
        Shape of a row.

    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of standardised rows as a torch module, and the skorch net.
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


def shared_docs(cls: Class) -> Class:
    """Write the shared entries out in the docstring of a class."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = re.sub(r"^<<(.+)>>$", _written, doc, flags=re.MULTILINE)
    return cls


def _written(line: re.Match[str]) -> str:
    names = [name.strip() for name in line[1].split(",")]
    flat = [one for name in names for one in GROUPS.get(name, [name])]
    return "\n".join(SHARED[name] for name in flat)
