"""What ``"auto"`` means: the hyper-parameters of an RBM's training, resolved from the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch

from skebm._validation import Interval, Options, StrOptions
from skebm.base import Binary, PartitionEstimator, Sampler
from skebm.base.domains import enumeration_cost
from skebm.distributions import Distribution, IndependentBernoulli

# Terms of an enumeration (states times units of the other layer): what is visited at every step
# without a second thought, and at most.
CHEAP_COST, EXACT_LEARNING_COST = 1e7, 1e8
# Weights of fewer chains say little of log Z.
REWEIGHTED_CHAINS = 500

CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "n_iter": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
    "verbose": ["verbose"],
    "random_state": ["random_state"],
    "learning": [StrOptions({"auto", "pcd", "cd", "exact"})],
    "n_gibbs_steps": [Interval(Integral, 1, None, closed="left")],
    "n_chains": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "base": [StrOptions({"independent", "chow-liu", "block-tree"}), Distribution],
    "reweight": ["boolean"],
    "centered": ["boolean"],
    "precondition": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
    "learning_rate_decay": [StrOptions({"auto", "linear", "constant"})],
    "momentum": [Interval(Real, 0, 1, closed="left")],
    "l1": [Interval(Real, 0, None, closed="left")],
    "l2": [Interval(Real, 0, None, closed="left")],
    "sparsity_target": [Interval(Real, 0, 1, closed="neither"), None],
    "sparsity_cost": [Interval(Real, 0, None, closed="left")],
    "averaging": [Interval(Real, 0, 1, closed="left")],
    "rescale": [StrOptions({"auto"}), Options(bool, {False})],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "warm_start": ["boolean"],
    "contamination": [Interval(Real, 0, 0.5, closed="right"), StrOptions({"auto"})],
    "partition": [StrOptions({"auto"}), PartitionEstimator, None],
    "sampler": [Sampler, None],
    "max_restarts": [Interval(Integral, 0, None, closed="left")],
    "device": [str],
    "dtype": [StrOptions({"float32", "float64"})],
    "net_params": [dict, None],
}


@dataclass(frozen=True)
class Settings:
    """Resolved hyper-parameters.

    Attributes
    ----------
    n_visible, n_hidden : int
    dtype : str
    learning : {"exact", "pcd", "cd"}
    line_search : bool
        Full-batch L-BFGS, where the likelihood is exact and nothing asks for steps of a given size.
    learning_rate : float
    batch_size, n_iter, n_chains : int
    centered : bool
        Never under L-BFGS, which needs the gradient of the value.
    precondition : float
        Exponent of the units' variances; 0 leaves the gradient as it is.
    reweight : bool
        Whether the chains are weighed.
    decay : bool
        Whether the learning rate falls linearly to a hundredth.
    """

    n_visible: int
    n_hidden: int
    dtype: str
    learning: str
    line_search: bool
    learning_rate: float
    batch_size: int
    n_iter: int
    n_chains: int
    centered: bool
    precondition: float
    reweight: bool
    decay: bool

    def net_kwargs(self, momentum: float) -> dict[str, Any]:
        """Arguments of the engine."""
        common = {"max_epochs": self.n_iter, "batch_size": self.batch_size}
        if self.line_search:
            return common | {
                "optimizer": torch.optim.LBFGS,
                "lr": 1.0,
                "optimizer__max_iter": 1,
                "optimizer__max_eval": 30,
                "optimizer__history_size": 20,
                "optimizer__tolerance_change": 0.0,
                "optimizer__line_search_fn": "strong_wolfe",
            }
        sgd: dict[str, Any] = {"optimizer": torch.optim.SGD, "lr": self.learning_rate}
        if momentum:
            sgd["optimizer__momentum"] = momentum
        return common | sgd | {"schedule": linear_decay if self.decay else None}


def linear_decay(done: float) -> float:
    """Factor of the learning rate after a fraction of the epochs: from 1 down to 0.01."""
    return 1 - 0.99 * done


def _batch_size(n_rows: int, n_iter: int | str) -> int:
    """100 rows, down to scikit-learn's 10 where few passes were asked for.

    So that they make 2,000 steps if they can; a call of `partial_fit` should make ten.
    """
    if n_iter == "auto":
        return 100
    wanted = n_rows // 10 if n_iter == 0 else n_rows * int(n_iter) // 2000
    return min(100, max(10, wanted))


def _precondition(estimator: Any, learning: str, centered: bool, free: bool) -> float:
    """Half the variances where nobody asked for steps of a given size; none without centring."""
    if estimator.precondition == "auto":
        return 0.5 if free and centered and learning != "exact" else 0.0
    if estimator.precondition and (learning == "exact" or not centered):
        raise ValueError(
            f"precondition={estimator.precondition} scales the centred gradient of the "
            f'contrastive rules; here learning is "{learning}" and centered '
            f'{estimator.centered}. Use learning="pcd" and centered=True, or precondition="auto".'
        )
    return float(estimator.precondition)


def _rule(estimator: Any, n_visible: int) -> str:
    """The learning rule: exact where that is cheap and nothing else is asked for."""
    cost = enumeration_cost(Binary((n_visible,)), Binary((estimator.n_components,)))
    learning = estimator.learning
    if learning == "auto":
        return "exact" if cost <= CHEAP_COST and not estimator.reweight else "pcd"
    if learning != "pcd" and estimator.reweight:
        raise ValueError(
            f"reweight=True weighs persistent chains, and learning={learning!r} has none. Use "
            'learning="pcd" (with warm_start too), or reweight=False.'
        )
    if learning == "exact" and cost > EXACT_LEARNING_COST:
        raise ValueError(
            f'learning="exact" would visit {cost:.2g} terms at every step, more than '
            f'{EXACT_LEARNING_COST:.0e}. Use learning="pcd", or fewer units.'
        )
    return learning


def _check_sampler(estimator: Any, learning: str) -> None:
    """Raise `ValueError` where replicas that exchange rows are of no use."""
    sampler = estimator.sampler
    if sampler is None or sampler.kernel is sampler:
        return
    if learning == "cd":
        raise ValueError(
            f'learning="cd" restarts its chains at every batch, before those of {sampler} have '
            'spread out. Use learning="pcd" (with warm_start too), or sampler=None.'
        )
    if estimator.reweight:
        raise ValueError(
            f"reweight=True weighs chains that keep to themselves, and those of {sampler} exchange "
            "rows. Use sampler=None, or reweight=False."
        )


def _learning_rate(base: Any) -> float:
    """What was best on the validation parts of eight DEBD sets, to within a factor of three.

    Hidden units on a tree have less to say, and chains that move by it keep up with larger steps.
    """
    plain = base == "independent" or isinstance(base, IndependentBernoulli)
    return 0.1 if plain else 0.3


def resolve(estimator: Any, n_rows: int, n_visible: int, *, streaming: bool) -> Settings:
    """Resolve every ``"auto"`` of an estimator for a table of the given size.

    An explicit learning rate, batch size or momentum asks for stochastic steps, also under the
    exact rule; a stream (`partial_fit`) always takes them.
    """
    learning = _rule(estimator, n_visible)
    _check_sampler(estimator, learning)
    net = estimator.net_params or {}
    rate = net.get("lr", estimator.learning_rate)
    size = net.get("batch_size", estimator.batch_size)
    n_iter = net.get("max_epochs", estimator.n_iter)
    given = any(name.startswith("optimizer") for name in net)
    if estimator.momentum and given:
        raise ValueError(
            "momentum is an argument of the default optimizer; with an optimizer in net_params "
            "pass its arguments as optimizer__<name> there."
        )
    stochastic = rate != "auto" or size != "auto" or estimator.momentum or given or streaming
    line_search = learning == "exact" and not stochastic
    batch_size = size
    if size == "auto":
        batch_size = n_rows if line_search else _batch_size(n_rows, 0 if streaming else n_iter)
    n_chains = estimator.n_chains
    if n_chains == "auto":
        n_chains = max(batch_size, REWEIGHTED_CHAINS) if estimator.reweight else batch_size
    if n_iter == "auto":
        n_batches = math.ceil(n_rows / batch_size)
        n_iter = 500 if line_search else min(500, max(10, math.ceil(10_000 / n_batches)))
    decay, centered = estimator.learning_rate_decay, bool(estimator.centered) and not line_search
    if streaming:
        n_iter = 1
    return Settings(
        n_visible=n_visible,
        n_hidden=estimator.n_components,
        dtype=estimator.dtype,
        learning=learning,
        line_search=line_search,
        learning_rate=_learning_rate(estimator.base) if rate == "auto" else float(rate),
        batch_size=batch_size,
        n_iter=n_iter,
        n_chains=n_chains,
        centered=centered,
        precondition=_precondition(estimator, learning, centered, rate == "auto"),
        reweight=bool(estimator.reweight),
        decay=not streaming and (rate == "auto" if decay == "auto" else decay == "linear"),
    )
