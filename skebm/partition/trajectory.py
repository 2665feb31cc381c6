"""log Z through the models of a training: along it, and afterwards."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import (
    BipartiteEnergy,
    Energy,
    LogPartition,
    Sampler,
    SamplingWarning,
    sampling,
)
from skebm.base.processes import Notice, repeat
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.energies import TrajectoryEnergy, annealing_path
from skebm.energies.rbm.trajectory import between, with_weights
from skebm.partition.annealed import (
    AnnealingPlan,
    Deadline,
    annealing_plan,
    systematic_draws,
    within_seconds,
)
from skebm.partition.bracket import UNNAMED, Runs
from skebm.partition.checks import MonteCarloEstimator, rows_of
from skebm.samplers import Gibbs

# Conditional effective sample size, a draw, of each step of the draws that follow a training; and
# steps at most between two looks at it, each of this length at least.
LEAST_CESS, MOST_MOVES, LEAST_STEP = 0.95, 400, 1e-4
# Effective sample size, a draw, below which the draws are resampled.
LEAST_ESS = 0.5
# Batches between two looks, as a part of those so far. Weights after steps of a large rate are
# noisy, and a path through many of them is long: of a rate of 0.1 on MNIST, one through looks after
# each tenth is so long that draws cannot follow.
PACE = 0.5
# Rate of exchanges above which two models are as good as one, and below which nothing passes.
SAME, LEAST_RATE = 0.98, 0.01


class Draws(NamedTuple):
    """Weighted rows that follow a model: x (n, d), log weights (n,), log Z apart from these."""

    x: Tensor
    log_weight: Tensor
    log_z0: float

    @property
    def log_z(self) -> float:
        """Estimate of log Z, in nats."""
        n = len(self.log_weight)
        return self.log_z0 + float(torch.logsumexp(self.log_weight, 0)) - math.log(n)

    @property
    def weight(self) -> Tensor:
        """Weights that sum to 1, (n,)."""
        return self.log_weight.softmax(0)

    def reweighted(self, increment: Tensor) -> Draws:
        """With increments (n,) of the log weights."""
        return self._replace(log_weight=self.log_weight + increment)

    def resampled(self, generator: torch.Generator) -> Draws:
        """Of equal weights, by systematic draws, if the effective sample size is small."""
        n, weight = len(self.x), self.weight
        if 1 / float(weight.square().sum()) >= LEAST_ESS * n:
            return self
        index = systematic_draws(weight[None], generator)[0]
        return Draws(self.x[index], torch.zeros_like(weight), self.log_z)


class KeptModel(NamedTuple):
    """A model of a trajectory: parameters, inverse temperature, draws and their energies (n,)."""

    weights: list[Tensor]
    beta: float
    draws: Draws
    energies: Tensor


class Trail(NamedTuple):
    """Where a training has gone: models kept so far, and draws of the model of the last look.

    Tensors are never changed in place, so that an earlier trail is a snapshot.
    """

    kept: tuple[KeptModel, ...]
    last: KeptModel
    target: float


# Parameters and inverse temperature at a place in [0, 1].
Line = Callable[[float], tuple[list[Tensor], float]]


def model_of(energy: BipartiteEnergy, weights: Sequence[Tensor], beta: float) -> Any:
    """The energy with these parameters, at a temperature of its path from the base."""
    found = with_weights(energy, weights)
    return found if beta == 1.0 else found.annealed(beta)


def exchange_rate(energy: BipartiteEnergy, hot: KeptModel, cold: KeptModel) -> float:
    """Mean probability with which independent rows of two models are exchanged.

    Over all pairs of a draw of each, by their weights: neighbouring draws are no independent pairs
    where those of one model descend from those of the other. To be called in ``eval()`` mode.
    """
    of_hot, of_cold = (model_of(energy, one.weights, one.beta) for one in (hot, cold))
    change_hot = of_cold(hot.draws.x).double() - hot.energies
    change_cold = cold.energies - of_hot(cold.draws.x).double()
    accepted = (change_cold[None, :] - change_hot[:, None]).clamp(max=0).exp()
    return float(hot.draws.weight @ accepted @ cold.draws.weight)


class TrajectoryRecorder:
    """Follows a training by weighted draws, and keeps models that exchange rows with each other.

    The draws begin at the base, and are annealed from each look at the weights to the next one,
    along the line between both, by steps of equal loss of their effective sample size. Where the
    rate at which the present model exchanges rows with the last one that was kept has fallen to
    `acceptance`, it is kept. If there are `n` of them, every other one is dropped, and the rate
    that is aimed at falls to that of the models that are left.

    The draws have a generator of their own, so that the training is the same without them.

    Parameters
    ----------
    n : int
        Models at most.
    acceptance : float
    n_chains, n_steps : int
        Draws, and Gibbs steps that they take after each change of the weights.
    seed : int
    """

    def __init__(self, n: int, acceptance: float, n_chains: int, n_steps: int, seed: int):
        self.n, self.acceptance = n, acceptance
        self.n_chains, self.n_steps, self.seed = n_chains, n_steps, seed
        self.n_batches, self.next_due = 0, 0
        self.trail: Trail | None = None

    def copy(self) -> TrajectoryRecorder:
        """A recorder that goes on from here."""
        return copy.copy(self)

    # ---------------------------------------------------------------- when

    def count(self) -> None:
        """Count a batch."""
        self.n_batches += 1

    @property
    def is_due(self) -> bool:
        """Whether the weights have to be looked at: after a tenth of the batches so far."""
        return self.n_batches >= self.next_due

    # ---------------------------------------------------------------- following

    @torch.no_grad()
    def follow(self, energy: BipartiteEnergy) -> None:
        """Anneal the draws to the present weights of an energy, and keep models on the way.

        Nothing changes where weights are not finite: training will go back from there.
        """
        self.next_due = self.n_batches + max(1, int(PACE * self.n_batches))
        weights = [p.detach().clone() for p in energy.parameters()]
        if not all(bool(one.isfinite().all()) for one in weights):
            return
        with sampling(energy):
            generator = self._generator(weights[0].device)
            if self.trail is None:
                self._begin(energy, weights, generator)
                return
            start = self.trail.last.weights
            self._advance(energy, lambda share: (between(start, weights, share), 1.0), generator)

    def rewind(self, energy: BipartiteEnergy) -> None:
        """Forget the models behind the one that is nearest to the present weights of an energy.

        Training may have gone back to earlier weights.
        """
        if self.trail is None:
            return
        now = [p.detach() for p in energy.parameters()]

        def distance(one: KeptModel) -> float:
            pairs = zip(one.weights, now, strict=True)
            return sum(float((a - b).square().sum()) for a, b in pairs)

        cold = [one for one in self.trail.kept if one.beta == 1.0]
        nearest = min([self.trail.last, *reversed(cold)], key=distance)
        if nearest is not self.trail.last:
            number = next(k for k, one in enumerate(self.trail.kept) if one is nearest)
            kept = self.trail.kept[: number + 1]
            self.trail = self.trail._replace(kept=kept, last=nearest)

    def _generator(self, device: torch.device) -> torch.Generator:
        """A generator of this look at the weights."""
        number = self.seed + 0x9E3779B9 * (self.n_batches + 1)
        return torch.Generator(device).manual_seed(number % 2**63)

    def _begin(
        self, energy: BipartiteEnergy, weights: list[Tensor], generator: torch.Generator
    ) -> None:
        """Draws of the base, annealed to the first weights through their temperatures."""
        base, like = energy.base, weights[0]
        x = base.sample(self.n_chains, generator).to(like)
        size = sum(one.numel() for one in weights) + x.numel()
        what = f"n={self.n} models of a trajectory, each with {self.n_chains} draws,"
        check_memory(what, self.n * size, like.dtype, like.device)
        even = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        draws = Draws(x, even, annealing_path(energy, base).log_z0)
        start = KeptModel(weights, 0.0, draws, model_of(energy, weights, 0.0)(x).double())
        # The base is the first rung, as long as no model is kept.
        self.trail = Trail((start,), start, self.acceptance)
        self._advance(energy, lambda share: (weights, share), generator)
        trail = self.trail
        kept = trail.kept if trail.kept[-1] is trail.last else (*trail.kept, trail.last)
        self.trail = trail._replace(kept=kept[1:])

    def _advance(self, energy: BipartiteEnergy, line: Line, generator: torch.Generator) -> None:
        """Anneal the draws along a line, each time as far as they can follow in a step."""
        place, step = 0.0, 1.0
        for number in range(MOST_MOVES):
            assert self.trail is not None
            last, step = self.trail.last, min(2 * step, 1.0 - place)
            final = number == MOST_MOVES - 1
            while True:
                share = 1.0 if final or place + step > 1 - 1e-9 else place + step
                weights, beta = line(share)
                increment = last.energies - model_of(energy, weights, beta)(last.draws.x).double()
                enough = _conditional_ess(last.draws.weight, increment) >= LEAST_CESS
                if enough or final or step < LEAST_STEP:
                    break
                step /= 2
            draws = last.draws.reweighted(increment).resampled(generator)
            self._arrive(energy, weights, beta, draws, generator)
            place = share
            if place == 1.0:
                return

    def _arrive(
        self,
        energy: BipartiteEnergy,
        weights: list[Tensor],
        beta: float,
        draws: Draws,
        generator: torch.Generator,
    ) -> None:
        """Let draws of a model take steps of it, and keep the model if it is due."""
        assert self.trail is not None
        new, kernel = model_of(energy, weights, beta), Gibbs()
        state = kernel.init(new, draws.x)
        for _ in range(self.n_steps):
            state, _ = kernel.step(new, state, generator)
        here = KeptModel(weights, beta, draws._replace(x=state.x), new(state.x).double())
        self.trail = self.trail._replace(last=here)
        if exchange_rate(energy, self.trail.kept[-1], here) <= self.trail.target:
            self._keep(energy, here)

    def _keep(self, energy: BipartiteEnergy, one: KeptModel) -> None:
        """Keep a model; of a full trajectory, drop every other one before."""
        assert self.trail is not None
        kept, target = self.trail.kept, self.trail.target
        if len(kept) >= self.n:
            hot, cold = ([k for k in kept if (k.beta < 1.0) == is_hot] for is_hot in (True, False))
            kept = (*hot[1::2], *cold[::2])  # with the first cold one, of which the others are hot
            rates = self.rates(energy, (*kept, one))
            target = min(target, sum(rates) / len(rates))
        self.trail = self.trail._replace(kept=(*kept, one), target=target)

    @torch.no_grad()
    def rates(self, energy: BipartiteEnergy, models: Sequence[KeptModel]) -> list[float]:
        """Rates at which neighbours exchange rows."""
        pairs = itertools.pairwise(models)
        with sampling(energy):
            return [exchange_rate(energy, hot, cold) for hot, cold in pairs]

    # ---------------------------------------------------------------- what was found

    def finish(self, energy: BipartiteEnergy) -> None:
        """Follow training to the weights that it ended with, from the nearest ones before."""
        self.rewind(energy)
        self.follow(energy)

    def notice(self, energy: BipartiteEnergy) -> Notice | None:
        """What is said where some neighbours hardly ever exchange rows; None if all do."""
        if self.trail is None:
            return None
        rates = self.rates(energy, (*self.trail.kept, self.trail.last))
        if not rates or min(rates) >= LEAST_RATE:
            return None
        return Notice(
            f"Of {len(rates) + 1} models along training, numbers {rates.index(min(rates)) + 1} and "
            f"the next one exchange rows at a rate of {min(rates):.2g}: rows do not pass there.",
            SamplingWarning,
            (("Lower learning_rate, or raise n of Trajectory.", "optimizer"),),
        )

    @property
    def log_z(self) -> float:
        """log Z of the model of the last look, in nats, by the draws that followed training."""
        assert self.trail is not None
        return self.trail.last.draws.log_z

    def energy(self, last: BipartiteEnergy) -> TrajectoryEnergy:
        """The energy of a model with those that led to it."""
        assert self.trail is not None
        kept = self.trail.kept
        models = [with_weights(last, one.weights) for one in kept if one.beta == 1.0]
        temperatures = [one.beta for one in kept if one.beta < 1.0]
        if len(models) > 1 and self.rates(last, (kept[-1], self.trail.last))[0] > SAME:
            models = models[:-1]  # the last model again
        return TrajectoryEnergy([*models, last], temperatures)

    def pack(self) -> dict[str, Any]:
        """Everything but the settings, as tensors and plain values."""
        trail = self.trail
        found: dict[str, Any] = {"n_batches": self.n_batches, "next_due": self.next_due}
        if trail is None:
            return found
        models = [
            [one.weights, one.beta, list(one.draws), one.energies]
            for one in (*trail.kept, trail.last)
        ]
        return found | {"seed": self.seed, "target": trail.target, "models": models}

    def unpack(self, stored: dict[str, Any]) -> None:
        """Restore what :meth:`pack` returned."""
        self.n_batches, self.next_due = stored["n_batches"], stored["next_due"]
        if "models" not in stored:
            return
        *kept, last = [
            KeptModel(list(weights), beta, Draws(*draws), energies)
            for weights, beta, draws, energies in stored["models"]
        ]
        self.seed, self.trail = stored["seed"], Trail(tuple(kept), last, stored["target"])


def _conditional_ess(weight: Tensor, increment: Tensor) -> float:
    """Conditional effective sample size, a draw, of log increments for weights that sum to 1."""
    w = (increment - increment.max()).exp()
    second = float(weight @ w.square())
    return float(weight @ w) ** 2 / second if second > 0 else 0.0


class TrajectoryAIS(MonteCarloEstimator):
    r"""Annealing of resampled populations through the models that training has gone through.

    The path leads from the base through the models of a :class:`~skebm.energies.TrajectoryEnergy`,
    and on lines between their parameters, instead of through temperatures of the last model. Where
    these pass a transition of first order, which annealing crosses late if at all, training has
    added the modes of the model one after the other. Its path is longer, however, so that weights
    would become uneven: chains are divided into populations, and where the effective sample size of
    one falls below half of its chains, these are resampled by their weights. Places are evenly
    spaced, as neighbours are about equally far from each other.

    Direction: the mean weight of a population is unbiased for Z, and so is the mean over all
    populations, :math:`\hat Z`: ``value`` is on average below log Z, and ``lower`` =
    :math:`\log \hat Z - \log(1 / \delta)` is below it with probability at least
    :math:`1 - \delta` (Markov's inequality). ``std_error`` is by the differences between the
    populations, as few as they are, and ``ess`` is of these. There is no upper bound (``nan``)
    unless `reverse`: chains that go back from rows `x` of the model then give ``upper``, the
    largest credible log Z as in :class:`AISBracket`, which is heuristic.

    Parameters
    ----------
    n_chains : int, default=500
        Chains of all populations, a multiple of `n_populations`.
    n_betas : int, default=200
        Places on the path, base and model included.
    n_populations : int, default=20
        2 or more.
    reverse : bool, default=False
        Whether chains also go back from the rows `x`; each start takes as long as the forward run.
    delta : float in (0, 1], default=0.05
        Probability with which the lower bound may fail.
    verbose : int, default=0
        1 shows a progress bar for each run that takes over two seconds.
    max_seconds : float or None, default=None
        Limit on wall-clock time, as in :class:`AIS`.

    References
    ----------
    Bereux, Decelle, Furtlehner and Seoane (2024), "Fast training and sampling of restricted
    Boltzmann machines", arXiv 2405.15376, section 4. Del Moral, Doucet and Jasra (2006),
    "Sequential Monte Carlo samplers", JRSS B 68(3) (resampling).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM, TrajectoryEnergy
    >>> from skebm.partition import Exact, TrajectoryAIS
    >>> generator = torch.Generator().manual_seed(0)
    >>> models = [BernoulliRBM(8, 4, generator=generator, scale=s) for s in (0.01, 0.3, 0.6)]
    >>> energy = TrajectoryEnergy(models)
    >>> estimate = TrajectoryAIS().estimate(energy)
    >>> abs(estimate.value - Exact().estimate(energy).value) < 0.1
    True
    """

    along_training = True

    def __init__(
        self,
        n_chains: int = 500,
        n_betas: int = 200,
        n_populations: int = 20,
        reverse: bool = False,
        delta: float = 0.05,
        verbose: int = 0,
        max_seconds: float | None = None,
    ):
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.n_populations = n_populations
        self.reverse = reverse
        self.delta = delta
        self.verbose = verbose
        self.max_seconds = max_seconds

    @property
    def uses(self) -> tuple[str, ...]:  # type: ignore[override]
        """Rows are needed to go back from them alone."""
        return ("base", "sampler", "x") if self.reverse else ("base", "sampler")

    def check(self, energy: Energy, x: Tensor | Mapping[str, Tensor] | None = None) -> None:
        """Raise `TypeError` for an energy without the models that led to it."""
        super().check(energy, x)
        if not isinstance(energy, TrajectoryEnergy):
            raise TypeError(
                "TrajectoryAIS anneals through models kept along training, and "
                f"{type(energy).__name__} has none: fit with "
                "optimizer=SGD(trajectory=Trajectory()), or use AISBracket."
            )

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Estimate log Z of the last model; with `reverse` from rows `x`, several by name, too."""
        self.check(energy)
        whole_number("n_populations", self.n_populations, 2)
        whole_number("n_chains", self.n_chains, self.n_populations)
        if self.n_chains % self.n_populations:
            raise ValueError(
                f"n_chains={self.n_chains} is no multiple of n_populations={self.n_populations}."
            )
        starts = self._starts(energy, x) if self.reverse else {}

        def run(one: TrajectoryAIS, deadline: Deadline) -> LogPartition:
            n, given = self.n_chains, (base, sampler, x, generator)
            plan = annealing_plan(one, energy, *given, n, deadline, pilots=False)
            plan = plan._replace(n_populations=self.n_populations)
            forward = plan.forward(n)
            if not starts:
                return forward
            back = {name: plan.reverse(self._some(x, plan)) for name, x in starts.items()}
            runs = Runs(forward, back, None)
            repeat(runs.notices(self.n_populations)[:1])
            return runs.result()

        with sampling(energy), torch.no_grad():
            return within_seconds(self, run)

    def _starts(self, energy: Energy, x: Any) -> dict[str, Tensor]:
        """Rows to go back from, by name."""
        rows_of(energy, x)
        given = dict(x) if isinstance(x, Mapping) else {} if x is None else {UNNAMED: x}
        if not given or min(map(len, given.values())) < self.n_populations:
            raise ValueError(
                f"reverse=True goes back from rows x, {self.n_populations} of each start at least, "
                "one for each population."
            )
        return given

    def _some(self, x: Tensor, plan: AnnealingPlan) -> Tensor:
        """At most `n_chains` of the rows, as many for each population."""
        n = min(len(x), self.n_chains) // self.n_populations * self.n_populations
        return x[torch.randperm(len(x), generator=plan.generator, device=x.device)[:n]]
