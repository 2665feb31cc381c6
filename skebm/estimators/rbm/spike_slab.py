"""Hidden units that change the covariance of rows, spikes with slabs, and the RBM of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skebm._validation import StrOptions
from skebm.base import Domain
from skebm.distributions import Distribution, Gaussian
from skebm.energies import SpikeSlabEnergy
from skebm.energies.rbm.mixed import MAX_LOG_PRECISION
from skebm.energies.rbm.spike_slab import MAX_PRECISION
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.hidden import HiddenLayer, HiddenUnits
from skebm.estimators.tables.blocks import check_known
from skebm.estimators.tables.table import Table, number_table, shown_names
from skebm.estimators.tables.units import learn_units
from skebm.objectives import Centering

# Learning rate and hidden bias: on digits rates of 0.03 and 0.05 end alike, and from 0.05 on chains
# do not follow the steps half-way; with spikes that are rarely on at first (-2) held-out rows gain
# more steadily than with -1 and 0.
RATE, HIDDEN_BIAS = 0.03, -2.0
# Gibbs steps a batch: along the filters of large units that are on, rows move in small steps, as
# the slabs were drawn given the row. With one step, a model of one of three splits of digits had
# most of its mass at rows of three times the norm, which its chains had not reached.
N_STEPS = 5
# Norm of the initial weights of a unit, and precision of a column that all of them add at most:
# without weights the gradient is 0, so that from small ones units stay alike for long.
NORM, MOST_ADDED = 0.5, 0.3


@dataclass(frozen=True)
class SlabUnits(HiddenUnits):
    """Spikes with slabs that are integrated out, of real columns on a normal distribution.

    Attributes
    ----------
    features : {"spikes", "slabs"}
        Which of their means are features.
    """

    features: str
    name = "spikes and slabs"
    arrays: ClassVar[dict[str, str]] = {
        "components_": "weight",
        "intercept_hidden_": "hidden_bias",
        "slab_mean_": "slab_mean",
        "intercept_visible_": "visible_bias",
        "log_precision_": "log_precision",
    }
    takes_bits = False
    centers = False
    n_steps = N_STEPS
    remedy_of_narrow = ("Drop them, or add noise of the size of a rounding error.",)

    def cost(self, domain: Domain) -> float:
        return math.inf

    def energy(self, domain: Domain, base: Distribution, **new: Any) -> SpikeSlabEnergy:
        assert isinstance(base, Gaussian)
        return SpikeSlabEnergy(base, self.n, **new)

    def weight_scale(self, n_visible: int) -> float:
        """Such that units have the norm `NORM`, and less where many share few columns."""
        return min(NORM / math.sqrt(n_visible), math.sqrt(MOST_ADDED / self.n))

    def start(self, energy: SpikeSlabEnergy, mean: Tensor) -> None:
        """Spikes are mostly off, and the base is wider by what they add to its precision."""
        energy.hidden_bias.fill_(HIDDEN_BIAS)
        added = torch.sigmoid(-energy.hidden_bias) @ energy.weight.square()
        energy.log_precision.copy_((1 - added).clamp_min(0.5).log())

    def learning_rate(self, base: Distribution) -> float:
        return RATE

    def narrow(self, energy: SpikeSlabEnergy, table: Table) -> str:
        """Columns along which a precision is the largest allowed, of the units or of the base."""
        held = energy.weight.square().sum(1) >= MAX_PRECISION * (1 - 1e-5)
        along = energy.frame.pullback(energy.weight[held]).abs().argmax(1).tolist()
        along += (energy.log_precision >= MAX_LOG_PRECISION).nonzero().ravel().tolist()
        if not along:
            return ""
        names = table.names_of_numbers(sorted(set(along)))
        return (
            f"Variances along columns {names} became the least that is allowed, "
            f"{1 / MAX_PRECISION:.0e} of those of the base: given the others they are constant or "
            "have few distinct values."
        )

    def proper_score(self, energy: SpikeSlabEnergy, table: Table) -> Callable[[Tensor], Tensor]:
        """Minus the Hyvarinen score in the units of the data."""
        scale = energy.base.mean.new_tensor(table.units.scale)

        def score(x: Tensor) -> Tensor:
            found = (part[:, : len(scale)] for part in energy.derivatives(x))
            gradient, second = found
            return -((gradient.square() / 2 + second) / scale.square()).sum(1)

        return score

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        if not isinstance(asked.get("centering"), Centering):
            return {}
        return {"centering": f"the gradient of {self.name} is not centred"}

    def means(self, energy: SpikeSlabEnergy, x: Tensor) -> Tensor:
        return energy.slabs(x) if self.features == "slabs" else super().means(energy, x)

    def filters(self, energy: SpikeSlabEnergy, table: Table) -> np.ndarray:
        moved = energy.frame.rows(energy.weight.detach()) - energy.frame.centre
        found: np.ndarray = moved.double().cpu().numpy() * table.units.scale
        return found


class SpikeSlab(HiddenLayer):
    r"""Hidden units that change the covariance of rows, as ``RBMEstimator(hidden=SpikeSlab())``.

    .. math::
        E(x, h) = -\log q_\tau(x) - b^\top u
            + \sum_i \Bigl[\tfrac{1 - h_i}2 z_i^2 - h_i (c_i + \mu_i z_i)\Bigr],
            \qquad z_i = W_i^\top u

    as in :class:`skebm.SpikeSlabRBM`. All columns are treated as numbers: columns of categories,
    sparse X and ``visible="bernoulli"`` raise `ValueError`. The parameter `base` is then
    ``"gaussian"`` (``"auto"`` is the same), ``"independent"`` or a
    :class:`skebm.distributions.Gaussian`, `learning` is ``"pcd"`` or ``"cd"``, and the gradient is
    not centred. By default chains take 5 Gibbs steps, and the learning rate is 0.03.

    Parameters
    ----------
    features : {"spikes", "slabs"}, default="spikes"
        What `transform` returns: the probability that each spike is on, or the mean of each slab
        times its spike, :math:`p(h_i = 1 \mid x)\, (\mu_i + z_i)`.

    References
    ----------
    Courville, Bergstra and Bengio (2011), "A spike and slab restricted Boltzmann machine", AISTATS.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> from skebm.estimators import SpikeSlab
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2)) * rng.choice([0.2, 2.0], size=(100, 1))
    >>> model = RBMEstimator(3, hidden=SpikeSlab(), n_iter=5, random_state=0).fit(X)
    >>> model.base_name_, model.slab_mean_.shape
    ('gaussian', (3,))
    """

    kind = SlabUnits
    _parameter_constraints: dict = {"features": [StrOptions({"spikes", "slabs"})]}

    def __init__(self, *, features="spikes"):
        self.features = features

    def units(self, n: int) -> SlabUnits:
        return SlabUnits(n, self.features)

    def base(self, asked: Any) -> Any:
        """The parameter `base`; `ValueError` for others than normal distributions."""
        if not isinstance(asked, Gaussian) and asked not in ("auto", "gaussian", "independent"):
            raise ValueError(
                f'base={asked!r} is not for {self}: it takes "gaussian", "independent" or a '
                "skebm.distributions.Gaussian."
            )
        return "gaussian" if isinstance(asked, str) and asked == "auto" else asked

    def coding(self, X: Any, asked: Any) -> None:
        """None; `ValueError` that names the columns of categories."""
        coding = super().coding(X, asked)
        if coding is not None:
            names = [coding.names[j] for j in coding.levels]
            raise ValueError(
                f"Columns {names} hold categories, and spikes and slabs take numbers alone: drop "
                "them, encode them as numbers, or use RBMEstimator with binary hidden units, which "
                "takes them as they are."
            )

    def table(self, estimator: Any, X: Any, weight: np.ndarray | None) -> Table:
        """Real columns, all of them."""
        if estimator.visible != "auto":
            raise ValueError(
                f"visible={estimator.visible!r} is not for {self}, which takes all columns as "
                'numbers: use visible="auto", or hidden="binary".'
            )
        names = shown_names(getattr(estimator, "feature_names_in_", None), X.shape[1])
        check_known(X, names)
        # In C order, as another memory layout would change the rounding.
        units = learn_units(np.ascontiguousarray(X), weight, True, None, names)
        return number_table(units, names)


@insert_shared_docs
class SpikeSlabRBM(RBMEstimator):
    r"""Spike-and-slab restricted Boltzmann machine: hidden units change the covariance of rows.

    .. math::
        p(x) = \frac1Z\, q_\tau(x)\, e^{b^\top u}
            \prod_i \Bigl(e^{-z_i^2 / 2} + e^{c_i + \mu_i z_i}\Bigr), \qquad z_i = W_i^\top u

    where u are linear coordinates of x in which the Gaussian base q has mean zero and unit
    covariance [1]_, [2]_. A hidden unit whose spike is off adds precision along its weights; a unit
    whose spike is on adds none, and moves the mean. The model is therefore a mixture of :math:`2^H`
    normal distributions with different covariances, whereas all components have the same covariance
    in a Gaussian RBM (:class:`RBMEstimator` on real columns). Z is finite for all weights
    (:class:`skebm.energies.SpikeSlabEnergy` explains why).

    All columns are treated as numbers, including those of zeros and ones. They are standardised,
    and log-likelihoods are in the units of X. Entries may be missing (nan) in `fit`,
    `score_samples`, `score`, `energy`, `predict`, `transform` and `impute`, as in
    :class:`RBMEstimator`.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of hidden units, H. If held-out rows guard the training (see Notes) and it takes
        10,000 steps, ``"auto"`` is the one of 64, 256 and 16 with which held-out rows are most
        likely after a part of the epochs; otherwise it is 256. See `n_components_`.
    features : {"spikes", "slabs"}, default="spikes"
        What `transform` returns: the probability that each spike is on, or the mean of each slab
        times its spike, :math:`p(h_i = 1 \mid x)\, (\mu_i + z_i)`.
    learning_rate : float or "auto", default="auto"
        Learning rate. ``"auto"`` is 0.03, decaying linearly to a hundredth of that.
    batch_size : int or "auto", default="auto"
        Maximum number of rows per step. ``"auto"``: 100, or less (down to 10) if there would
        otherwise be fewer than 10,000 steps in `n_iter` epochs, or fewer than ten in a call of
        `partial_fit`.
    n_iter : int or "auto", default="auto"
        Number of epochs. ``"auto"``: 10,000 steps, or fewer if columns times hidden units times
        rows of a batch exceed 2e7, but at least 10 epochs. With fewer than 200 rows it is at most
        500 epochs; models of the two halves of the rows determine how many (see Notes), possibly 0.
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    learning : {"auto", "pcd", "cd"}, default="auto"
        Learning rule: persistent contrastive divergence or contrastive divergence. ``"auto"`` is
        the rule that matches `chains`, and PCD if `chains` is None.
    chains : Persistent, FromData or None, default=None
        Chains of PCD and CD: ``Persistent(n_steps=5, n_chains=None, reweight=False)`` and
        ``FromData(n_steps=5)`` (:mod:`skebm.samplers`). `n_steps` is the number of Gibbs steps per
        batch, `n_chains` defaults to the batch size. Parameters can be searched over by
        ``chains__<name>``.
    base : {"gaussian", "independent"} or Gaussian, default="gaussian"
        Base q that the hidden units correct; fitted first, then fixed. ``"gaussian"`` has the full
        covariance, with the correlations shrunk by Ledoit and Wolf's estimate. A
        :class:`skebm.distributions.Gaussian` of standardised rows is used as it is.
    penalty : Penalty or None, default=None
        ``Penalty(l1=0, l2=0, sparsity_target=None, sparsity_cost=0.1)`` on the weights and on the
        means of the spikes. Its parameters can be searched over by ``penalty__<name>``. See
        :class:`skebm.objectives.Penalty`.
    optimizer : SGD or None, default=None
        Momentum, learning rate schedule, weight averaging and roll-backs; None is
        :class:`skebm.training.SGD` with its default settings.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the likelihood of held-out rows no longer improves, and keep the best weights.
        Settings in :class:`skebm.training.EarlyStopping`.
    warm_start : bool, default=False
        Continue from the weights and chains of the previous `fit`.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training rows that `predict` classifies as outliers; ``"auto"`` is 0.1. If
        the model overfits, the fraction is larger among new rows.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: exactly, by a sum over the
        spikes, for up to about 15 hidden units; otherwise by quadrature with up to three columns,
        by importance sampling from the base if the base is near the model, or by
        :class:`skebm.partition.AISBracket` from the base (see :func:`skebm.partition.choose`);
        `log_partition_method_` gives the reason. None: log Z is not estimated; `score_samples` is
        then -F(x) and `score` minus the Hyvarinen score in the units of X.
    sampler : Sampler or None, default=None
        Sampler of rows; None is :class:`skebm.samplers.Gibbs`.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation; outputs of `transform` have that of X.
    <<net_params>>

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Weights W in the coordinates u of the base, a read-only view; to change it, assign a whole
        array. The same holds for the next four attributes.
    intercept_hidden_, slab_mean_ : ndarray of shape (n_components,)
        c and mu.
    intercept_visible_, log_precision_ : ndarray of shape (n_features,)
        b and tau, in the coordinates u.
    filters_ : ndarray of shape (n_components, n_features)
        The direction in which each unit moves rows, in the units of X.
    <<log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses, energy gap, reconstruction error, learning rate, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, including those of earlier warm starts and of `partial_fit`, and number of
        roll-backs.
    learning_, learning_rate_, batch_size_, n_chains_ : str, float, int, int
        Values used for ``"auto"``.
    n_components_ : int
        Number of hidden units.
    base_ : Gaussian
        The fitted base of standardised rows.
    base_name_, base_reason_ : str
        Name of the base (``"given"`` for a distribution that was passed), and why the number of
        hidden units was chosen.
    sampler_, energy_, net_ : Sampler, SpikeSlabEnergy, EnergyNet
        The sampler, the energy as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : With Gaussian units; hidden units move only the mean.
    sklearn.mixture.GaussianMixture : As many normal distributions as components.

    Notes
    -----
    With 200 rows or more, held-out rows guard the training; with fewer, models of the two halves of
    the rows determine the number of epochs, as in :class:`RBMEstimator`. On rows that training has
    not seen, the fitted model is not worse than the base.

    A unit adds at most 10,000 times the precision of the base. Columns that are determined by
    others, or that have few distinct values, would get ever larger precisions. These are held at
    the limit, with a `ConvergenceWarning` that names the columns. To model the density of integers,
    add noise of the width of the gaps between them.

    References
    ----------
    .. [1] Courville, Bergstra and Bengio (2011), "A spike and slab restricted Boltzmann machine",
       AISTATS.
    .. [2] Courville, Bergstra and Bengio (2011), "Unsupervised models of images by spike-and-slab
       RBMs", ICML.

    Examples
    --------
    Two columns that are uncorrelated, and yet depend on each other:

    >>> import numpy as np
    >>> from sklearn.mixture import GaussianMixture
    >>> from skebm import SpikeSlabRBM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 2)) * rng.choice([0.2, 2.0], size=(1000, 1))
    >>> model = SpikeSlabRBM(4, n_iter=100, random_state=0).fit(X)
    >>> normal = GaussianMixture().fit(X)
    >>> bool(model.score(X) > normal.score(X) + 0.3)  # nats
    True
    >>> model.transform(X).shape
    (1000, 4)
    """

    _parameter_constraints: dict = {
        name: kinds
        for name, kinds in RBMEstimator._parameter_constraints.items()
        if name not in ("hidden", "centering", "visible", "categorical_features", "aim")
    } | {
        "learning": [StrOptions({"auto", "pcd", "cd"})],
        "base": [StrOptions({"gaussian", "independent"}), Gaussian],
        **SpikeSlab._parameter_constraints,
    }
    # Not parameters: all columns are numbers, and those of categories are found and refused.
    visible, categorical_features = "auto", "from_dtype"
    features: str

    def __init__(
        self,
        n_components="auto",
        *,
        features="spikes",
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        learning="auto",
        chains=None,
        base="gaussian",
        penalty=None,
        optimizer=None,
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    @property
    def _hidden(self) -> SpikeSlab:
        return SpikeSlab(features=self.features)
