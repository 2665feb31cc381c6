"""Hidden units in subspaces, each behind a gate, and the RBM of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skebm._validation import Interval, StrOptions
from skebm.base import Binary, Domain, Objective
from skebm.base.domains import enumeration_cost
from skebm.distributions import Distribution
from skebm.energies import MixedRBM, SubspaceEnergy
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.hidden import HiddenLayer, HiddenUnits, hidden_states
from skebm.objectives import Centering, EnumeratedLikelihood, Penalty

# Initial log-odds of gates and of the units of open ones. On binarised Frey faces held-out rows
# gain 112 nats over the base with these, and 102 with units that are on in half of the rows; a
# classifier of shifted digits by the gates has 52 % right, and 41 %. With gates that are open in
# half of the rows or more, likelihoods are the same and features worse.
GATE_BIAS, UNIT_BIAS = -1.0, -2.0


@dataclass(frozen=True)
class SubspaceUnits(HiddenUnits):
    """Gates, each with a subspace of units.

    Attributes
    ----------
    n : int
        Number of gates.
    n_subspace : int
        Units of each.
    features : {"gates", "all"}
        What of the hidden layer is a feature.
    """

    n_subspace: int
    features: str
    name = "subspaces"
    arrays: ClassVar[dict[str, str]] = {
        "components_": "subspaces",
        "intercept_gates_": "gate_bias",
        "intercept_units_": "unit_bias",
        "intercept_visible_": "visible_bias",
    }
    usual = 64
    centers_likelihood = False

    @property
    def n_rows(self) -> int:
        return self.n * self.n_subspace

    @property
    def n_features(self) -> int:
        return self.n if self.features == "gates" else self.n + self.n_rows

    def cost(self, domain: Domain) -> float:
        return enumeration_cost(domain, Binary((self.n + self.n_rows,)))

    def energy(self, domain: Domain, base: Distribution, **new: Any) -> SubspaceEnergy:
        return SubspaceEnergy(MixedRBM(base, self.n_rows, **new), self.n_subspace)

    def likelihood(
        self, energy: Any, centering: Centering | None, penalty: Penalty | None
    ) -> Objective:
        how = {} if penalty is None else {"l1": penalty.l1, "l2": penalty.l2}
        return EnumeratedLikelihood(energy, **how)

    def start(self, energy: Any, mean: Tensor) -> None:
        """Gates are mostly off, and the units of open gates as well."""
        weight, visible_bias, unit_bias = energy.tensors
        of_units = math.log1p(math.exp(UNIT_BIAS)) - math.log(2)
        energy.gate_bias.fill_(GATE_BIAS - self.n_subspace * of_units)
        on = torch.tensor([GATE_BIAS, UNIT_BIAS]).sigmoid().prod()
        visible_bias.sub_(weight.sum(0), alpha=float(on))
        torch.mv(weight, mean, out=unit_bias).neg_().add_(UNIT_BIAS)

    def states(self, H: Any, S: Any, n_rows: int) -> tuple[np.ndarray, ...]:
        """States of the gates and of their units; `ValueError` for others than 0 and 1."""
        if S is None:
            raise ValueError("S must hold the states of the units of each gate.")
        shape = (n_rows, self.n, self.n_subspace)
        return hidden_states(H, "H", shape[:2]), hidden_states(S, "S", shape)

    def joint_energy(
        self, energy: Any, free: np.ndarray, field: np.ndarray, *states: np.ndarray
    ) -> np.ndarray:
        gate, unit = states
        field = field.reshape(unit.shape)
        inside = np.logaddexp(0, field).sum(2)
        gate_bias = energy.gate_bias.detach().cpu().numpy()
        logits = inside - self.n_subspace * np.log(2) + gate_bias
        log_gate = gate * logits - np.logaddexp(0, logits)
        log_open = (unit * field).sum(2) - inside
        log_unit = np.where(gate > 0, log_open, -self.n_subspace * np.log(2))
        found: np.ndarray = free - (log_gate + log_unit).sum(1)
        return found


class Subspace(HiddenLayer):
    r"""Hidden units in subspaces, each behind a gate, as ``RBMEstimator(hidden=Subspace())``.

    .. math::
        E(x, h, s) = -b^\top x - c^\top h - \sum_j h_j \sum_k s_{jk} (D_{jk} + W_{jk}^\top x)

    as in :class:`skebm.SubspaceRBM`. `n_components` is then the number of gates h, which is 64 if
    it is ``"auto"`` and the rows do not choose it. A sparsity target in `penalty` raises
    `ValueError`, and the gradient of the exact likelihood is not centred.

    Parameters
    ----------
    n_subspace : int, default=4
        Number of units of each gate, K.
    features : {"gates", "all"}, default="gates"
        What `transform` returns: p(h_j = 1 | x) alone, or p(s_jk = 1 | x) as well.

    References
    ----------
    Tomczak and Gonczarek (2017), "Learning invariant features using subspace restricted Boltzmann
    machine", Neural Processing Letters 45.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> from skebm.estimators import Subspace
    >>> X = np.random.default_rng(0).integers(0, 2, (100, 6))
    >>> model = RBMEstimator(2, hidden=Subspace(n_subspace=3), n_iter=5, random_state=0).fit(X)
    >>> model.components_.shape
    (2, 3, 6)
    >>> model.set_params(hidden__features="all").fit(X).transform(X).shape
    (100, 8)
    """

    kind = SubspaceUnits
    _parameter_constraints: dict = {
        "n_subspace": [Interval(Integral, 1, None, closed="left")],
        "features": [StrOptions({"gates", "all"})],
    }

    def __init__(self, n_subspace=4, *, features="gates"):
        self.n_subspace = n_subspace
        self.features = features

    def units(self, n: int) -> SubspaceUnits:
        return SubspaceUnits(n, int(self.n_subspace), self.features)


@insert_shared_docs
class SubspaceRBM(RBMEstimator):
    r"""Subspace restricted Boltzmann machine: hidden units in subspaces, each behind a gate.

    .. math::
        p(x) = \frac{1}{Z} \sum_{h, s} e^{-E(x, h, s)}, \qquad
        E(x, h, s) = -b^\top x - c^\top h - \sum_j h_j \sum_k s_{jk} (D_{jk} + W_{jk}^\top x) .

    A gate h_j is on if a row lies in the subspace of its K filters, whatever its position there.
    Gates are therefore features that do not change if rows move within subspaces, as images do when
    they are shifted a little; the units s represent the position. As a density the model is an RBM
    whose hidden units come in groups [1]_, with as many weights as an RBM of `n_components` times
    `n_subspace` units.

    As in :class:`RBMEstimator`, columns may be bits, numbers and categories, entries may be
    missing, and there are normalised likelihoods with error estimates, samples, imputations and
    outlier labels.

    Parameters
    ----------
    n_components : int, default=64
        Number of gates, H.
    n_subspace : int, default=4
        Number of units of each gate, K.
    learning_rate : float or "auto", default="auto"
        Learning rate. ``"auto"``: 0.1 (0.3 on a tree), decaying linearly to a hundredth of that; or
        L-BFGS with a line search, if learning is exact and neither `batch_size` nor a momentum is
        set.
    batch_size : int or "auto", default="auto"
        Maximum number of rows per step. ``"auto"``: 100, or less (down to 10) if there would
        otherwise be fewer than 10,000 steps in `n_iter` epochs; all rows with L-BFGS.
    n_iter : int or "auto", default="auto"
        Number of epochs (iterations with L-BFGS). ``"auto"``: 10,000 steps, or as many as take 2e11
        multiplications if these are fewer, but at least 10 epochs. With fewer than 200 rows, the
        rows determine the number, as in :class:`RBMEstimator`.
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    learning : str, default="auto"
        Learning rule: ``"pcd"``, ``"cd"``, ``"exact"`` (the likelihood of bits, by a sum over all
        states of the rows or of the hidden layer: at most 1e8 terms), ``"pseudo_likelihood"``,
        ``"ratio_matching"`` or ``"probability_flow"`` (bits and categories). ``"auto"`` is the rule
        that matches `chains`. If `chains` is None, it is exact up to 1e7 terms (3e4 if
        `learning_rate`, `batch_size` or a momentum is given, and in `partial_fit`), and PCD beyond.
    chains : Persistent, FromData or None, default=None
        Chains of PCD and CD (:mod:`skebm.samplers`).
    base : str or Distribution, default="auto"
        Base q that the model corrects, fitted first: ``"auto"``, ``"independent"``,
        ``"chow-liu"``, ``"block-tree"``, ``"gaussian"`` or ``"latent-classes"``, or a distribution
        of :mod:`skebm.distributions` with exact conditionals, as in :class:`RBMEstimator`.
    centering : Centering, "auto" or None, default="auto"
        Centre the units in the gradient of the stochastic rules; the gradient of the exact
        likelihood is not centred. ``"auto"`` is ``Centering(precondition=0.5)``, without the
        preconditioning if `learning_rate` is set. See :class:`skebm.objectives.Centering`.
    penalty : Penalty or None, default=None
        Penalties l1 and l2 on the weights. A sparsity target is not accepted, because units of a
        subspace are not independent. See :class:`skebm.objectives.Penalty`.
    optimizer : SGD or None, default=None
        Momentum, learning rate schedule, weight averaging and roll-backs; None is
        :class:`skebm.training.SGD` with its default settings.
    visible : {"auto", "bernoulli", "probabilities"}, default="auto"
        Visible units of the columns that are not categorical. ``"auto"``: Bernoulli units if all
        values are in [0, 1]; otherwise columns of zeros and ones are Bernoulli units, and the
        others Gaussian units of standardised values. ``"bernoulli"``: all are Bernoulli units;
        columns with values outside [0, 1] are scaled to that range, with a warning.
        ``"probabilities"``: values outside [0, 1] raise an error.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, which are softmax units: names, numbers or a boolean mask.
        ``"from_dtype"``: columns of frames that hold text or are of a categorical type, and columns
        of object arrays that hold other values than numbers. None: no column is categorical.
    features : {"gates", "all"}, default="gates"
        What `transform` returns: p(h_j = 1 | x) alone, or p(s_jk = 1 | x) as well.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the score on held-out rows no longer improves, and keep the best weights. The
        score is the log-likelihood if learning is exact, the objective of the rule for rules
        without chains, and the pseudo-likelihood otherwise.
    warm_start : bool, default=False
        Continue from the weights and chains of the previous `fit`.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training rows that `predict` classifies as outliers; ``"auto"`` is 0.1. If
        the model overfits, the fraction is larger among new rows.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: exactly, if the enumeration has
        at most 1e9 terms, otherwise by :class:`skebm.partition.AISBracket`. None: log Z is not
        estimated; `score_samples` is then -F(x) and `score` the mean pseudo-likelihood.
    sampler : Sampler or None, default=None
        Sampler of the rows; None is :class:`skebm.samplers.Gibbs` over gates and units.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation; outputs of `transform` have that of X.
    <<net_params>>

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_subspace, n_visible)
        Weights W, a read-only view; to change it, assign a whole array, as for the biases. With
        categorical or Gaussian units the `n_visible` entries are the bits, followed by one entry
        for each level of a category, and by the real columns.
    intercept_gates_ : ndarray of shape (n_components,)
        Biases c of the gates.
    intercept_units_ : ndarray of shape (n_components, n_subspace)
        Biases D of the units of gates that are on.
    intercept_visible_ : ndarray of shape (n_visible,)
        Biases b, in addition to those of the base.
    h_samples_ : ndarray of shape (n_chains, n_components * (1 + n_subspace))
        Gates, then units, of the persistent chains; for the other rules, draws from the model.
    <<log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: losses, energy gap, reconstruction error, learning rate, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, including those of earlier warm starts and of `partial_fit`, and number of
        roll-backs.
    learning_, learning_rate_, batch_size_, n_chains_ : str, float, int, int
        Values used for ``"auto"``. `learning_rate_` is nan with L-BFGS.
    centered_, precondition_ : bool, float
        Whether the gradient is centred, and its preconditioning.
    base_ : Distribution
        The fitted base.
    n_components_ : int
        Number of gates.
    base_name_, base_reason_ : str
        Name of the base (``"given"`` for a distribution that was passed), and why it was chosen.
    scaling_ : MinMax
        Columns of Bernoulli units that were scaled; only if all units are Bernoulli units.
    sampler_, energy_, net_ : Sampler, SubspaceEnergy, EnergyNet
        The sampler, the energy as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : An RBM whose hidden units are independent given the row.

    Notes
    -----
    Held-out rows guard the training, and on them the model never ends below its base, as in
    :class:`RBMEstimator`, whose Notes explain how.

    References
    ----------
    .. [1] Tomczak and Gonczarek (2017), "Learning invariant features using subspace restricted
       Boltzmann machine", Neural Processing Letters 45. Tomczak (2022), "Deep Generative Modeling",
       equations 6.44 to 6.47.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skebm import SubspaceRBM
    >>> X = (load_digits().data[:300] > 7).astype(float)
    >>> model = SubspaceRBM(8, 3, base="independent", n_iter=200, random_state=0).fit(X)
    >>> model.transform(X).shape, model.components_.shape
    ((300, 8), (8, 3, 64))
    >>> model.sample(2, random_state=0).shape
    (2, 64)
    """

    _parameter_constraints: dict = {
        name: kinds
        for name, kinds in RBMEstimator._parameter_constraints.items()
        if name not in ("hidden", "aim")
    } | {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        **Subspace._parameter_constraints,
    }
    n_subspace: int
    features: str

    def __init__(
        self,
        n_components=64,
        n_subspace=4,
        *,
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        learning="auto",
        chains=None,
        base="auto",
        centering="auto",
        penalty=None,
        optimizer=None,
        visible="auto",
        categorical_features="from_dtype",
        features="gates",
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
    def _hidden(self) -> Subspace:
        return Subspace(self.n_subspace, features=self.features)
