"""Hidden layers of RBMs: what a user asks for, and the units that a fit makes of it."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from torch import Tensor

from skebm.base import Binary, Domain, Objective
from skebm.base.domains import enumeration_cost
from skebm.distributions import BlockTree, CategoricalTree, ChowLiuTree, Distribution
from skebm.distributions.independent import blocks_of
from skebm.energies import BernoulliRBM, MixedRBM
from skebm.energies.rbm.mixed import MAX_LOG_PRECISION
from skebm.estimators.rbm.choice import USUAL
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.table import Table, learn_columns
from skebm.objectives import Centering, ExactLikelihood, Penalty, pseudo_log_likelihood

# Initial hidden biases, at which units are on in a quarter of the rows. With a centred gradient,
# units that start at one half stay there and are poor features (a classifier on shifted digits has
# an accuracy of 82 % with them, 88 % with these); likelihoods on nltcs, digits and MNIST are the
# same or better.
HIDDEN_BIAS = -1.0


# ------------------------------------------------------------------------------
# Units
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class HiddenUnits(abc.ABC):
    """The hidden units of an RBM: the energy that they make, its start and its exact learning.

    Attributes
    ----------
    n : int
        Their number, as `n_components` counts them.
    """

    n: int
    # In errors.
    name: ClassVar[str]
    # What to do about columns that are `narrow`.
    remedy_of_narrow: ClassVar[tuple[str, ...]] = (
        "Drop them, or list them in categorical_features.",
        "categorical_features",
    )
    # Fitted attributes of an estimator, by the parameters of the energy that they are.
    arrays: ClassVar[dict[str, str]]
    # Whether columns may be bits and categories; all are numbers otherwise.
    takes_bits: ClassVar[bool] = True
    # Their number where neither the user nor rows choose it.
    usual: ClassVar[int] = USUAL
    # Whether the gradient can be centred, and that of the exact likelihood.
    centers: ClassVar[bool] = True
    centers_likelihood: ClassVar[bool] = True
    # Gibbs steps of the chains at each batch, by default.
    n_steps: ClassVar[int] = 1

    @property
    def n_rows(self) -> int:
        """Number of rows of the weights."""
        return self.n

    @property
    def n_features(self) -> int:
        """Number of means of the hidden layer, from the first, that `transform` returns."""
        return self.n

    @abc.abstractmethod
    def cost(self, domain: Domain) -> float:
        """Terms of the enumeration of a likelihood of bits: states times units that vary."""

    @abc.abstractmethod
    def energy(self, domain: Domain, base: Distribution, **new: Any) -> Any:
        """An untrained energy; `new` are the generator, scale and dtype of its weights."""

    def likelihood(
        self, energy: Any, centering: Centering | None, penalty: Penalty | None
    ) -> Objective | None:
        """The exact likelihood of an energy of bits; by default there is none."""
        return None

    @abc.abstractmethod
    def start(self, energy: Any, mean: Tensor) -> None:
        """Set the biases so that the model starts near its base, with means (d,) of the columns.

        The weights are those of centred units, (h - l)'W (x - m), which changes the base by terms
        of second order only.
        """

    def weight_scale(self, n_visible: int) -> float | None:
        """Standard deviation of the initial weights, None for the one that all RBMs have."""
        return None

    def learning_rate(self, base: Distribution) -> float:
        """What "auto" is on a base.

        Best values on the validation parts of eight DEBD data sets, to within a factor of three. On
        a tree, hidden units have less to model, and chains can follow larger steps.
        """
        trees = (ChowLiuTree, BlockTree, CategoricalTree)
        return 0.3 if any(isinstance(part, trees) for part in blocks_of(base)) else 0.1

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        """Parameters that were `asked` for and that these units do not use, with the reasons."""
        return {}

    def narrow(self, energy: Any, table: Table) -> str:
        """A warning of variances of real columns that are the least allowed; empty for none."""
        held = (energy.log_precision >= MAX_LOG_PRECISION).nonzero().ravel().tolist()
        if not held:
            return ""
        return (
            f"The variances of columns {table.names_of_numbers(held)} given the "
            f"hidden units became the least that is allowed, {math.exp(-MAX_LOG_PRECISION):.0e} of "
            "those of the columns, which are constant or have few distinct values."
        )

    def proper_score(self, energy: Any, table: Table) -> Callable[[Tensor], Tensor]:
        """A proper scoring rule of rows (n, d) that needs no log Z, (n,): pseudo-likelihoods."""
        if math.isfinite(energy.domain.log_n_states):
            return lambda x: pseudo_log_likelihood(energy, x)
        pseudo: Callable[[Tensor], Tensor] = energy.pseudo_log_likelihood
        return pseudo

    # ---------------------------------------------------------------- of a trained model

    def means(self, energy: Any, x: Tensor) -> Tensor:
        """Means of the hidden layer given rows, of which the first are features."""
        mean: Tensor = energy.hidden(x).mean
        return mean

    def filters(self, energy: Any, table: Table) -> np.ndarray:
        """The direction in which each unit moves rows, in the units of the data."""
        raise AttributeError(f"There are no filters_ of {self.name}: see components_.")

    def states(self, H: Any, S: Any, n_rows: int) -> tuple[np.ndarray, ...]:
        """States of the hidden layer for each row; `ValueError` for others than 0 and 1."""
        if S is not None:
            raise ValueError(f"S must be None, as {self.name} have no other states than H.")
        return (hidden_states(H, "H", (n_rows, self.n)),)

    def joint_energy(
        self, energy: Any, free: np.ndarray, field: np.ndarray, *states: np.ndarray
    ) -> np.ndarray:
        """E(x, h) of rows with the energies E(x) `free` and the hidden fields `field` (n, ...)."""
        (h,), log_odds = states, field[:, : self.n]
        found: np.ndarray = free + np.logaddexp(0, log_odds).sum(1) - (h * log_odds).sum(1)
        return found


class BinaryUnits(HiddenUnits):
    """Bits, independent given the visible units."""

    name = "binary hidden units"
    arrays: ClassVar[dict[str, str]] = {
        "components_": "weight",
        "intercept_hidden_": "hidden_bias",
        "intercept_visible_": "visible_bias",
    }

    def cost(self, domain: Domain) -> float:
        return enumeration_cost(domain, Binary((self.n,)))

    def energy(self, domain: Domain, base: Distribution, **new: Any) -> BernoulliRBM | MixedRBM:
        if isinstance(domain, Binary):
            return BernoulliRBM(domain.n_columns, self.n, base=base, **new)
        return MixedRBM(base, self.n, **new)

    def likelihood(
        self, energy: Any, centering: Centering | None, penalty: Penalty | None
    ) -> Objective:
        assert isinstance(energy, BernoulliRBM)
        return ExactLikelihood(energy, centering=centering, penalty=penalty)

    def start(self, energy: Any, mean: Tensor) -> None:
        """Visible biases are the log-odds of a base of independent bits, and 0 of other bases.

        Hidden units are mostly off.
        """
        if isinstance(energy, BernoulliRBM) and energy.structure is None:
            base: Any = energy.base
            energy.visible_bias.copy_(base.logits)
        hidden_mean = torch.full_like(energy.hidden_bias, HIDDEN_BIAS).sigmoid()
        energy.visible_bias.sub_(hidden_mean @ energy.weight)
        energy.hidden_bias.fill_(HIDDEN_BIAS).sub_(energy.weight @ mean)


def hidden_states(states: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """States of hidden units as an array; `ValueError` for others than 0 and 1."""
    found: np.ndarray = check_array(states, dtype=np.float64, input_name=name, allow_nd=True)
    if found.shape != shape:
        raise ValueError(
            f"{name} has shape {found.shape}: it must have a state of each hidden unit for each of "
            f"the {shape[0]} rows, {shape}."
        )
    if not np.isin(found, (0, 1)).all():
        raise ValueError(f"{name} must hold states of hidden units, 0 or 1.")
    return found


# ------------------------------------------------------------------------------
# What a user asks for
# ------------------------------------------------------------------------------


class HiddenLayer(BaseEstimator, abc.ABC):
    """The parameter `hidden` of an estimator: settings of units, and the columns that they take."""

    kind: ClassVar[type[HiddenUnits]]

    @abc.abstractmethod
    def units(self, n: int) -> HiddenUnits:
        """Hidden units, n of them."""

    def base(self, asked: Any) -> Any:
        """The parameter `base`, with what "auto" is where rows do not choose."""
        return asked

    def coding(self, X: Any, asked: Any) -> Coding | None:
        """The categorical columns of X, of which `asked` is the parameter; None without any."""
        return Coding.learn(X, asked)

    def table(self, estimator: Any, X: Any, weight: np.ndarray | None) -> Table:
        """The columns of validated X, at the first fit of an estimator."""
        return learn_columns(estimator, X, weight)


class BinaryLayer(HiddenLayer):
    """What ``hidden="binary"`` is."""

    kind = BinaryUnits

    def units(self, n: int) -> BinaryUnits:
        return BinaryUnits(n)
