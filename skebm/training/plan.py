"""How an estimator is trained: optimizer and stopping as users set them, and resolved for a fit."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sklearn.base import BaseEstimator, clone

from skebm._validation import Interval, StrOptions, torch_dtype_of
from skebm.base import Objective, torchtools
from skebm.training.guard import MOST_TIMES
from skebm.training.owlqn import OWLQN
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Fraction of the passes in which a cosine schedule rises to the learning rate.
WARM_UP = 0.05
# What the skorch net may be given by users; everything else is the estimator's own.
NET_PARAMS = (
    "optimizer",
    "lr",
    "max_epochs",
    "batch_size",
    "train_split",
    "callbacks",
    "verbose",
    "on_interrupt",
)
NET_NUMBERS = {
    "lr": Interval(Real, 0, None, closed="neither"),
    "max_epochs": Interval(Integral, 0, None, closed="left"),
    "batch_size": Interval(Integral, 1, None, closed="left"),
}
NET_PREFIXES = ("optimizer__", "callbacks__")


class Trajectory(BaseEstimator):
    """Which models are kept along the training of an RBM.

    They lead from the base to the trained model, so that rows of neighbours can be exchanged:
    :class:`~skebm.samplers.TrajectoryTempering` draws rows with them, and
    :class:`~skebm.partition.TrajectoryAIS` computes log Z. A model is kept where the rate at which
    it exchanges rows with the last one before has fallen to `acceptance`; the rate is that of
    weighted draws of the present model, which follow training from the base on (annealed importance
    sampling along training, with resampling). They estimate log Z on the way: ``history_`` has
    ``log_z`` and, of held-out rows, ``trajectory_gain``, their log-likelihood ratio to the base, in
    nats, in epochs after which the weights were looked at (the first ones, and then whenever the
    batches so far have grown by half); the last entry has those of the model. Both estimates are
    consistent in the number of draws, and no bounds: low on average, by several nats where training
    runs ahead of what Gibbs steps can follow, as PCD-1 with a large learning rate does. Prefer a
    small one, and several steps (``chains=Persistent(n_steps=10)``).

    Training is the same with it, number by number.

    Parameters
    ----------
    n : int, default=50
        Models that are kept at most. If there are more, every other one is dropped, and later ones
        are as far apart as those that are left. In memory and in files each takes as many numbers
        as the model has parameters, and `n_chains` rows: 50 models of 784 columns and 100 units
        take 94 MB in single precision.
    acceptance : float in (0, 1), default=0.4
        Rate of exchanges between neighbours.
    n_chains : int, default=500
        Weighted draws that follow training, 10 or more.
    n_steps : int, default=1
        Gibbs steps of these draws after each change of the weights.

    References
    ----------
    Bereux, Decelle, Furtlehner and Seoane (2024), "Fast training and sampling of restricted
    Boltzmann machines", arXiv 2405.15376.

    Examples
    --------
    >>> from skebm import RBMEstimator
    >>> from skebm.training import SGD, Trajectory
    >>> model = RBMEstimator(optimizer=SGD(trajectory=Trajectory(n=20)))
    """

    _parameter_constraints: dict = {
        "n": [Interval(Integral, 2, None, closed="left")],
        "acceptance": [Interval(Real, 0, 1, closed="neither")],
        "n_chains": [Interval(Integral, 10, None, closed="left")],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, n=50, *, acceptance=0.4, n_chains=500, n_steps=1):
        self.n = n
        self.acceptance = acceptance
        self.n_chains = n_chains
        self.n_steps = n_steps


class AdamW(BaseEstimator):
    """Settings of the AdamW optimizer; the learning rate is the estimator's.

    Parameters
    ----------
    weight_decay : float, default=0
        Decoupled weight decay per step, relative to the learning rate [1]_.
    schedule : {"cosine", "constant"}, default="cosine"
        ``"cosine"`` rises over a twentieth of the passes and falls to a hundredth of the learning
        rate.
    averaging : float in [0, 1), default=0
        Decay per pass of a moving average of the weights, which is what the model keeps; 0 keeps
        the last weights.
    max_restarts : int, default=10
        How often a diverged training is rolled back, with half the learning rate, before
        `DivergenceError` is raised.
    max_time : float or "auto", default="auto"
        Seconds of training, in (0, inf), after which it ends; the learning rate decays in this
        time, and the model has the best weights. A warning says how much a pass still gained.
        ``"auto"`` counts work instead, so that a seed gives the same model on any machine; with
        seconds it does not.

    References
    ----------
    .. [1] Loshchilov and Hutter (2019), "Decoupled weight decay regularization", ICLR.

    Examples
    --------
    >>> from skebm import ScoreMatchingDensity
    >>> from skebm.training import AdamW
    >>> model = ScoreMatchingDensity(optimizer=AdamW(weight_decay=0.01))
    >>> model.set_params(optimizer__averaging=0.9).optimizer
    AdamW(averaging=0.9, weight_decay=0.01)
    """

    _parameter_constraints: dict = {
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "schedule": [StrOptions({"cosine", "constant"})],
        "averaging": [Interval(Real, 0, 1, closed="left")],
        "max_restarts": [Interval(Integral, 0, None, closed="left")],
        "max_time": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        *,
        weight_decay=0.0,
        schedule="cosine",
        averaging=0.0,
        max_restarts=10,
        max_time="auto",
    ):
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.averaging = averaging
        self.max_restarts = max_restarts
        self.max_time = max_time


class SGD(BaseEstimator):
    """Settings of stochastic gradient descent; the learning rate is the estimator's.

    Parameters
    ----------
    momentum : float in [0, 1), default=0
    schedule : {"auto", "linear", "constant"}, default="auto"
        ``"linear"`` falls to a hundredth of the learning rate; ``"auto"`` does so unless a
        learning rate is given as a number, which stays constant as in scikit-learn.
    averaging : float in [0, 1), default=0
        Decay per pass of a moving average of the weights, which is what the model keeps; 0 keeps
        the last weights.
    max_restarts : int, default=10
        How often a diverged training is rolled back, with half the learning rate, before
        `DivergenceError` is raised.
    max_time : float or "auto", default="auto"
        Seconds of training, in (0, inf), after which it ends; the learning rate decays in this
        time, and the model has the best weights. A warning says how much a pass still gained.
        ``"auto"`` counts work instead, so that a seed gives the same model on any machine; with
        seconds it does not.
    trajectory : Trajectory or None, default=None
        Models to keep along training, of :class:`~skebm.RBMEstimator` alone.

    Examples
    --------
    >>> from skebm import RBMEstimator
    >>> from skebm.training import SGD
    >>> RBMEstimator(optimizer=SGD(momentum=0.5)).get_params()["optimizer__momentum"]
    0.5
    """

    _parameter_constraints: dict = {
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "schedule": [StrOptions({"auto", "linear", "constant"})],
        "averaging": [Interval(Real, 0, 1, closed="left")],
        "max_restarts": [Interval(Integral, 0, None, closed="left")],
        "max_time": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "trajectory": [Trajectory, None],
    }

    def __init__(
        self,
        *,
        momentum=0.0,
        schedule="auto",
        averaging=0.0,
        max_restarts=10,
        max_time="auto",
        trajectory=None,
    ):
        self.momentum = momentum
        self.schedule = schedule
        self.averaging = averaging
        self.max_restarts = max_restarts
        self.max_time = max_time
        self.trajectory = trajectory


class EarlyStopping(BaseEstimator):
    """When training ends before its last pass, and on which rows that is judged.

    Parameters
    ----------
    validation_fraction : float in (0, 1) or None, default=0.1
        Fraction of the rows held out. Neither the base nor the network sees them, and the model
        keeps the weights of the pass with the lowest loss on them. None holds out no rows and
        judges by the training loss.
    n_iter_no_change : int, default=10
        Number of passes without a gain of `tol` after which training ends.
    tol : float, default=1e-4
        Smallest gain that counts, in units of the objective (nats for likelihoods).

    Examples
    --------
    >>> from skebm import ScoreMatchingDensity
    >>> from skebm.training import EarlyStopping
    >>> model = ScoreMatchingDensity(early_stopping=EarlyStopping(n_iter_no_change=5))
    """

    _parameter_constraints: dict = {
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(self, *, validation_fraction=0.1, n_iter_no_change=10, tol=1e-4):
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol


def linear_decay(done: float) -> float:
    """Factor of the learning rate after a fraction of the epochs: from 1 down to 0.01."""
    return 1 - 0.99 * done


def cosine_decay(done: float) -> float:
    """Factor of the learning rate after a fraction of the epochs: up quickly, down to 0.01."""
    rise = min(1.0, (done + 0.2 * WARM_UP) / WARM_UP)
    return rise * (0.505 + 0.495 * math.cos(math.pi * done))


SCHEDULES = {"linear": linear_decay, "cosine": cosine_decay, "constant": None}

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torchtools.SGD, {}),
    "adamw": (torchtools.adamw, {}),
    "owlqn": (OWLQN, {}),
    "lbfgs": (
        torchtools.LBFGS,
        {
            "max_iter": 1,
            "max_eval": 30,
            "history_size": 20,
            "tolerance_change": 0.0,
            "line_search_fn": "strong_wolfe",
        },
    ),
}


# Optimizers of torch by their names in small letters, for ``net_params={"optimizer": "adam"}``.
TORCH_OPTIMIZERS = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if kind is not torch.optim.Optimizer
}


def torch_optimizer(asked: Any) -> Any:
    """The class that ``net_params`` ask for, by itself or by its name; `ValueError` for no name."""
    if not isinstance(asked, str):
        return asked
    if asked.lower() not in TORCH_OPTIMIZERS:
        raise ValueError(
            f"optimizer={asked!r} in net_params is no optimizer of torch: use one of "
            f"{', '.join(sorted(TORCH_OPTIMIZERS))}, or a class."
        )
    return TORCH_OPTIMIZERS[asked.lower()]


def check_net_params(params: dict[str, Any]) -> None:
    """Raise `ValueError` for a name that no net accepts, or for an invalid value."""
    for name in params:
        if name not in NET_PARAMS and not name.startswith(NET_PREFIXES):
            raise ValueError(
                f"net_params has no {name!r}. It takes {', '.join(NET_PARAMS)}, and what starts "
                f"with {' or '.join(NET_PREFIXES)}; the module, its loss, the batches and the "
                "device are the estimator's own."
            )
    torch_optimizer(params.get("optimizer"))
    if params.get("on_interrupt", "raise") not in ("raise", "return"):
        raise ValueError(
            f"on_interrupt in net_params is 'raise' or 'return', not {params['on_interrupt']!r}."
        )
    for name, interval in NET_NUMBERS.items():
        if name in params and not interval.is_satisfied_by(params[name]):
            raise ValueError(f"{name} in net_params must be {interval}, not {params[name]!r}.")


@dataclass(frozen=True)
class TrainingPlan:
    """Resolved settings of a fit, without any ``"auto"``: plain values, stored with the model.

    Attributes
    ----------
    n_iter, batch_size : int
    learning_rate : float
    optimizer : {"sgd", "adamw", "lbfgs", "owlqn"}
    optimizer_settings : dict
        Arguments of the optimizer besides the learning rate.
    schedule : {"linear", "cosine", "constant"}
    averaging : float
    max_restarts : int
    patience, tol : int, float
        Number of passes without a gain of `tol` after which training ends, if it is judged by
        held-out rows or by the training loss.
    judged_by_training : bool
        Whether the training loss decides when training ends, if no rows are held out.
    verbose : int
    dtype : {"float32", "float64"}
    max_time : float
        Seconds; infinite for none.
    most_epochs : int
        Number of epochs to which `n_iter` is doubled while held-out rows gain.
    trajectory : Trajectory or None
        Models that are kept along training.
    """

    n_iter: int
    batch_size: int
    learning_rate: float
    optimizer: str
    optimizer_settings: dict[str, Any]
    schedule: str
    averaging: float
    max_restarts: int
    patience: int
    tol: float
    judged_by_training: bool
    verbose: int
    dtype: str
    max_time: float = math.inf
    most_epochs: int = 0
    trajectory: Trajectory | None = None

    def n_batches(self, n_rows: int, *, longest: bool = False) -> int:
        """Batches of a whole fit, or of the longest one that held-out rows may ask for."""
        n_iter = max(self.n_iter, self.most_epochs) if longest else self.n_iter
        return n_iter * math.ceil(n_rows / self.batch_size)

    def begins_below(self, n_steps: int, n_rows: int) -> bool:
        """Whether a fit begins with fewer steps, though held-out rows may ask for as many."""
        return self.n_batches(n_rows) < n_steps <= self.n_batches(n_rows, longest=True)

    @property
    def searches(self) -> bool:
        """Whether every step uses all rows, and searches along a line."""
        return self.optimizer in ("lbfgs", "owlqn")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Precision of the computation."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def net(
        self,
        objective: Objective,
        generator: torch.Generator,
        *,
        streaming: bool,
        validation: Rows | None = None,
        net_params: dict[str, Any] | None = None,
    ) -> EnergyNet:
        """Build the net that trains an objective; settings in `net_params` take precedence."""
        from skebm.training.engine import EnergyNet  # imports skorch, at the first fit

        given = dict(net_params or {})
        optimizer, settings = self._optimizer(given.pop("optimizer", None))
        stop_on = None if validation is None else "valid_loss"
        if self.judged_by_training and validation is None:
            stop_on = "train_loss"
        kwargs: dict[str, Any] = {
            "optimizer": optimizer,
            "lr": self.learning_rate,
            "max_epochs": self.n_iter,
            "batch_size": self.batch_size,
            "schedule": None if streaming else SCHEDULES[self.schedule],
            "verbose": self.verbose,
            "device": generator.device,
            **settings,
            **given,
        }
        if streaming:
            kwargs["max_epochs"] = 1
        return EnergyNet(
            objective,
            generator=generator,
            averaging=0.0 if streaming else self.averaging,
            max_time=math.inf if streaming else self.max_time,
            most_epochs=self.most_epochs,
            max_restarts=self.max_restarts,
            validation=validation,
            stop_on=stop_on,
            patience=self.patience,
            tol=self.tol,
            streaming=streaming,
            trajectory=self.trajectory,
            **kwargs,
        )

    def _optimizer(self, asked: Any) -> tuple[Any, dict[str, Any]]:
        """The optimizer, or the one that was asked for, and its settings as arguments of a net."""
        if asked is None:
            optimizer, fixed = OPTIMIZERS[self.optimizer]
            settings = fixed | self.optimizer_settings
        else:  # whose own defaults hold for what it does not share with ours
            optimizer = torch_optimizer(asked)
            taken = inspect.signature(optimizer).parameters
            settings = {k: v for k, v in self.optimizer_settings.items() if v or k in taken}
        return optimizer, {f"optimizer__{k}": v for k, v in settings.items()}


def stopping_of(early_stopping: Any) -> EarlyStopping:
    """Settings of the parameter `early_stopping`, a bool or an object."""
    return early_stopping if isinstance(early_stopping, EarlyStopping) else EarlyStopping()


class AskedSteps(NamedTuple):
    """Learning rate, rows of a batch and epochs that are asked for, each a number or ``"auto"``."""

    learning_rate: Any
    batch_size: Any
    n_iter: Any


def asked_steps(estimator: Any) -> AskedSteps:
    """Those of an estimator; `net_params` take precedence over its parameters."""
    net = estimator.net_params or {}
    return AskedSteps(
        net.get("lr", estimator.learning_rate),
        net.get("batch_size", estimator.batch_size),
        net.get("max_epochs", estimator.n_iter),
    )


def plan_of(
    estimator: Any,
    optimizer: AdamW | SGD,
    *,
    n_iter: Any,
    batch_size: Any,
    learning_rate: Any,
    streaming: bool,
    most_epochs: int | None = None,
    **settings: Any,
) -> TrainingPlan:
    """The plan of a fit of resolved epochs, rows of a batch and learning rate.

    Epochs are doubled up to `most_epochs` while held-out rows gain, by default where none are asked
    for. Everything else is as the estimator says; `settings` are more arguments of the optimizer.
    """
    if most_epochs is None:
        most_epochs = MOST_TIMES * int(n_iter) if asked_steps(estimator).n_iter == "auto" else 0
    stopping, schedule = stopping_of(estimator.early_stopping), optimizer.schedule
    if schedule == "auto":
        schedule = "linear" if asked_steps(estimator).learning_rate == "auto" else "constant"
    if isinstance(optimizer, AdamW):
        settings = {"weight_decay": optimizer.weight_decay} | settings
    elif optimizer.momentum:
        settings = {"momentum": optimizer.momentum} | settings
    return TrainingPlan(
        n_iter=1 if streaming else int(n_iter),
        batch_size=int(batch_size),
        learning_rate=float(learning_rate),
        optimizer="adamw" if isinstance(optimizer, AdamW) else "sgd",
        optimizer_settings=settings,
        schedule=schedule,
        averaging=optimizer.averaging,
        max_restarts=optimizer.max_restarts,
        patience=stopping.n_iter_no_change,
        tol=stopping.tol,
        judged_by_training=stopping.validation_fraction is None,
        verbose=int(estimator.verbose),
        dtype=str(torch_dtype_of(estimator.dtype)).removeprefix("torch."),
        max_time=math.inf if optimizer.max_time == "auto" else float(optimizer.max_time),
        most_epochs=0 if streaming else most_epochs,
        trajectory=clone(getattr(optimizer, "trajectory", None), safe=False),
    )
